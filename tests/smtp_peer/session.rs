//! Recorded dialogues as scripts: each reply of the server becomes the act of the phase that it answers.
//!
//! The recordings are of clients that may send MAIL, RCPT and DATA at once. A client that waits for each reply gets
//! the same replies one by one; those to commands that it no longer sends stay unsaid.

use std::fs;
use std::path::Path;

use serde_json::Value;

use super::{Act, Behaviour, PeerTls, Phase};

/// One recorded dialogue.
#[derive(Debug)]
pub struct Session {
    /// The file's name without `session_` and its ending.
    pub name: String,
    /// `refused`, `timeout` or `dns_failure` where there is no dialogue.
    pub connect: Option<String>,
    /// What the server does.
    pub behaviour: Behaviour,
    /// What the client of the recording said, a line each.
    pub client: Vec<String>,
    /// Whether the client of the recording sent its commands in groups.
    pub is_pipelined: bool,
    /// What is to come of it.
    pub expected: Value,
}

impl Session {
    /// All recordings, by name.
    pub fn all() -> Vec<Self> {
        let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("fixtures/smtp");
        let mut files: Vec<_> =
            fs::read_dir(folder).expect("the recordings are there").map(|entry| entry.expect("a readable folder").path()).collect();
        files.sort();
        files.iter().map(|file| Self::read(file)).collect()
    }

    fn read(file: &Path) -> Self {
        let stem = file.file_stem().and_then(|stem| stem.to_str()).unwrap_or_default();
        let recorded: Value = serde_json::from_slice(&fs::read(file).expect("a readable file")).expect("a recording is JSON");
        let mut session = Self {
            name: stem.trim_start_matches("session_").to_owned(),
            connect: None,
            behaviour: Behaviour::default(),
            client: Vec::new(),
            is_pipelined: false,
            expected: recorded["expected"].clone(),
        };
        let mut open = vec![Phase::Greeting];
        let mut answered = None;
        for step in recorded["steps"].as_array().expect("a recording has steps") {
            session.follow(step, &mut open, &mut answered);
        }
        session
    }

    /// `open`: what the client said and nobody has answered. `answered`: what was answered last.
    fn follow(&mut self, step: &Value, open: &mut Vec<Phase>, answered: &mut Option<Phase>) {
        let text = |key: &str| step[key].as_str().map(str::to_owned);
        if let Some(how) = text("connect") {
            self.connect = Some(how);
        } else if let Some(said) = text("client") {
            open.extend(said.split("\r\n").map(phase_of));
            self.is_pipelined |= said.contains("\r\n");
            self.client.extend(said.split("\r\n").map(str::to_owned));
        } else if let Some(said) = text("server") {
            let phase = if open.is_empty() { Phase::Other } else { open.remove(0) };
            *answered = Some(phase);
            self.act(phase, Act::Reply(said));
        } else if step["client_end_of_data"] == true {
            open.push(Phase::Dot);
            if step["write_error"] == true {
                self.act(Phase::Dot, Act::Lose);
            }
        } else if let Some(bytes) = step["stop_after_bytes"].as_u64() {
            self.act(Phase::Body, Act::DropAfter(usize::try_from(bytes).expect("a small number")));
            *open = vec![Phase::Body];
        } else if step["silence_seconds"].is_u64() {
            self.act(Phase::Dot, Act::Silence);
        } else if let Some(how) = text("tls") {
            self.behaviour.tls = PeerTls::StartTls;
            self.behaviour.untrusted = how == "certificate_invalid";
        } else if step["drop"] == true {
            self.close(open.first().copied(), *answered);
        }
    }

    fn act(&mut self, phase: Phase, act: Act) {
        self.behaviour.once.entry(phase).or_default().push_back(act);
    }

    fn close(&mut self, open: Option<Phase>, answered: Option<Phase>) {
        match (open, answered) {
            // Says by itself after how many bytes.
            (Some(Phase::Body), _) => {}
            (Some(phase), _) => self.act(phase, Act::Drop),
            (None, Some(phase)) => {
                let last = self.behaviour.once.get_mut(&phase).and_then(|acts| acts.back_mut());
                if let Some(act) = last
                    && let Act::Reply(reply) = act
                {
                    *act = Act::ReplyAndDrop(std::mem::take(reply));
                }
            }
            (None, None) => {}
        }
    }
}

fn phase_of(line: &str) -> Phase {
    match line.split(' ').next().unwrap_or_default() {
        "EHLO" => Phase::Ehlo,
        "STARTTLS" => Phase::StartTls,
        "AUTH" => Phase::Auth,
        "MAIL" => Phase::Mail,
        "RCPT" => Phase::Rcpt,
        "DATA" => Phase::Data,
        "QUIT" => Phase::Quit,
        _ => Phase::Other,
    }
}
