//! What the scripted server is told to do: what it offers, and where it leaves the ordinary way.

use std::collections::{HashMap, VecDeque};

/// Where in the dialogue the server acts.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Phase {
    /// Before the client says anything.
    Greeting,
    /// EHLO or HELO.
    Ehlo,
    /// STARTTLS.
    StartTls,
    /// AUTH, and each line of its exchange.
    Auth,
    /// MAIL.
    Mail,
    /// RCPT.
    Rcpt,
    /// DATA.
    Data,
    /// While the message comes in.
    Body,
    /// The final dot.
    Dot,
    /// NOOP.
    Noop,
    /// RSET.
    Rset,
    /// QUIT.
    Quit,
    /// Anything else.
    Other,
}

/// What the server does instead of its ordinary reply.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Act {
    /// This reply; several lines are parted by CR LF. At the dot a 4yz or 5yz refuses the message.
    Reply(String),
    /// This reply, then the connection is closed.
    ReplyAndDrop(String),
    /// These bytes as they stand, then it goes on. At the dot the message is taken.
    Raw(Vec<u8>),
    /// Closes the connection. At the dot the message is taken.
    Drop,
    /// Closes the connection. At the dot the message is lost.
    Lose,
    /// Says nothing until `release`, then the ordinary reply. At the dot the message is taken at once.
    Silence,
    /// In the body: closes the connection once so many bytes came in.
    DropAfter(usize),
}

impl Act {
    /// A reply.
    pub fn reply(text: &str) -> Self {
        Self::Reply(text.to_owned())
    }
}

/// How the server's connections are encrypted.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum PeerTls {
    /// Not at all, and STARTTLS is not offered.
    #[default]
    None,
    /// STARTTLS is offered.
    StartTls,
    /// From the first byte.
    Implicit,
}

/// Who may log in, and how.
#[derive(Debug, Clone)]
pub struct Login {
    /// The name.
    pub username: String,
    /// The password.
    pub password: String,
    /// What EHLO offers and AUTH takes, such as `PLAIN`.
    pub mechanisms: Vec<String>,
}

/// What the server offers and where it leaves the ordinary way.
#[derive(Debug, Clone)]
pub struct Behaviour {
    /// Encryption.
    pub tls: PeerTls,
    /// Shows a certificate of an authority that nobody trusts.
    pub untrusted: bool,
    /// Lines of the reply to EHLO besides STARTTLS and AUTH.
    pub offers: Vec<String>,
    /// Required before MAIL where set.
    pub login: Option<Login>,
    /// Whether ledger and commands are kept; otherwise messages are counted alone.
    pub keeps_messages: bool,
    pub(super) once: HashMap<Phase, VecDeque<Act>>,
    always: HashMap<Phase, Act>,
    pub(super) recipients: HashMap<String, String>,
}

impl Default for Behaviour {
    fn default() -> Self {
        let offers = ["PIPELINING", "SIZE 33554432", "ENHANCEDSTATUSCODES", "8BITMIME", "SMTPUTF8"];
        Self {
            tls: PeerTls::None,
            untrusted: false,
            offers: offers.map(str::to_owned).to_vec(),
            login: None,
            keeps_messages: true,
            once: HashMap::new(),
            always: HashMap::new(),
            recipients: HashMap::new(),
        }
    }
}

impl Behaviour {
    /// Takes everything and keeps nothing but the count: for measuring.
    pub fn sink() -> Self {
        Self { keeps_messages: false, ..Self::default() }
    }

    /// The same, encrypted so.
    #[must_use]
    pub fn tls(mut self, tls: PeerTls) -> Self {
        self.tls = tls;
        self
    }

    /// The same, with a certificate of an authority that nobody trusts.
    #[must_use]
    pub fn untrusted(mut self) -> Self {
        self.untrusted = true;
        self
    }

    /// The same, with exactly these lines in the reply to EHLO.
    #[must_use]
    pub fn offers(mut self, offers: &[&str]) -> Self {
        self.offers = offers.iter().map(|line| (*line).to_owned()).collect();
        self
    }

    /// The same, with a log-in required.
    #[must_use]
    pub fn login(mut self, username: &str, password: &str, mechanisms: &[&str]) -> Self {
        let mechanisms = mechanisms.iter().map(|mechanism| (*mechanism).to_owned()).collect();
        self.login = Some(Login { username: username.to_owned(), password: password.to_owned(), mechanisms });
        self
    }

    /// The same, acting so the next time this phase comes, after what was said of it before.
    #[must_use]
    pub fn once(mut self, phase: Phase, act: Act) -> Self {
        self.once.entry(phase).or_default().push_back(act);
        self
    }

    /// The same, acting so whenever this phase comes.
    #[must_use]
    pub fn always(mut self, phase: Phase, act: Act) -> Self {
        self.always.insert(phase, act);
        self
    }

    /// The same, with this reply to RCPT for this address.
    #[must_use]
    pub fn recipient(mut self, address: &str, reply: &str) -> Self {
        self.recipients.insert(address.to_owned(), reply.to_owned());
        self
    }

    pub(super) fn next_act(&mut self, phase: Phase) -> Option<Act> {
        self.once.get_mut(&phase).and_then(VecDeque::pop_front).or_else(|| self.always.get(&phase).cloned())
    }
}
