//! A real MTA: Debian's postfix on a loopback port takes a message over STARTTLS and puts it into a mailbox, where an
//! independent parser finds what was sent.

use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use mail_parser::{Address, MessageParser, MimeHeaders as _};
use serde_json::json;
use tidings_tests::stage::Stage;

const BINARY: &str = env!("CARGO_BIN_EXE_tidings");

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_message_with_everything_in_it_arrives_as_it_was_written() {
    let stage = Stage::sqlite();
    let Some(postfix) = Postfix::start(&stage.directory().join("postfix")) else {
        assert!(std::env::var("REQUIRE_POSTFIX").is_err(), "postfix is required here and could not be started");
        eprintln!("SKIPPED: no postfix, or not root: the story against a real MTA did not run");
        return;
    };
    let account = format!(
        "[accounts.postfix]\nkind = \"smtp\"\nhost = \"localhost\"\nport = {}\ntls = \"starttls\"\nca_file = \"{}\"\n",
        postfix.port,
        postfix.ca_file.display()
    );
    let gateway = stage.launch(BINARY).config(&account).start();
    let client = gateway.client();

    let (picture, text, html) =
        (vec![0x89, b'P', b'N', b'G', 0, 1, 2, 255], "Grüße aus Köln\n.\n..zwei Punkte\n", "<p>Grüße <img src=\"cid:logo\"></p>");
    let invoice: Vec<u8> = (0..=255).cycle().take(5_000).collect();
    let body = json!({
        "to": {"email": "ada+inbox@mail.test", "name": "Ада Лавлейс, Countess"},
        "email": {
            "from": {"email": "shop@mail.test", "name": "Käse & Söhne GmbH"},
            "subject": "Ihre Bestellung 10432 ist unterwegs 📦 — 渡辺様へのお知らせ",
            "text": text, "html": html, "reply_to": "Hilfe <help@mail.test>",
            "headers": {"List-Unsubscribe": "<https://shop.example.com/u/1>", "X-Order": "10432"},
            "attachments": [
                {"filename": "Rechnung März 😊.pdf", "content_type": "application/pdf", "content": STANDARD.encode(&invoice)},
                {"filename": "logo.png", "content_type": "image/png", "content": STANDARD.encode(&picture), "content_id": "logo"},
            ],
        },
    });
    let answer = client.post("postfix-1", &body).await;
    assert_eq!(answer.status, 202, "{}", answer.text);
    let status = client.until_closed("postfix-1", Duration::from_secs(30)).await;
    assert_eq!(status["status"], "accepted", "{status}\n{}", postfix.log());
    let delivery = &status["deliveries"][0];
    assert!(delivery["provider_message_id"].as_str().is_some_and(|id| !id.is_empty()), "postfix names its queue id: {status}");

    let raw = postfix.received(Duration::from_secs(30)).await;
    let message = MessageParser::default().parse(&raw).expect("a message");
    assert_eq!(message.subject(), body["email"]["subject"].as_str());
    let first = |address: Option<&Address<'_>>| {
        let address = address.and_then(|address| address.first()).expect("an address");
        (address.name().map(str::to_owned), address.address().map(str::to_owned))
    };
    assert_eq!(first(message.from()), (Some("Käse & Söhne GmbH".into()), Some("shop@mail.test".into())));
    assert_eq!(first(message.to()), (Some("Ада Лавлейс, Countess".into()), Some("ada+inbox@mail.test".into())));
    assert_eq!(first(message.reply_to()), (Some("Hilfe".into()), Some("help@mail.test".into())));
    assert_eq!(message.message_id(), delivery["message_id"].as_str());
    assert_eq!(message.body_text(0).map(|got| got.replace("\r\n", "\n").trim_end().to_owned()), Some(text.trim_end().to_owned()));
    assert_eq!(message.body_html(0).map(|got| got.trim_end().to_owned()), Some(html.to_owned()));
    assert!(message.header_raw("List-Unsubscribe").is_some_and(|value| value.contains("https://shop.example.com/u/1")));
    let parts: Vec<_> = message.attachments().map(|part| (part.attachment_name().map(str::to_owned), part.contents().to_vec())).collect();
    assert!(
        parts.contains(&(Some("Rechnung März 😊.pdf".into()), invoice)),
        "{:?}",
        parts.iter().map(|(name, _)| name).collect::<Vec<_>>()
    );
    assert!(message.parts.iter().any(|part| part.content_id() == Some("logo") && part.contents() == picture));
}

/// An instance of postfix in a folder of its own; stopped when dropped.
struct Postfix {
    directory: PathBuf,
    ca_file: PathBuf,
    port: u16,
}

impl Postfix {
    fn start(directory: &Path) -> Option<Self> {
        let daemons = ["/usr/lib/postfix/sbin", "/usr/libexec/postfix"].into_iter().find(|path| Path::new(path).is_dir())?;
        for folder in ["", "spool", "data", "mail", "tls"] {
            std::fs::create_dir_all(directory.join(folder)).ok()?;
        }
        let ca_file = certificate(&directory.join("tls"));
        let port = std::net::TcpListener::bind("127.0.0.1:0").ok()?.local_addr().ok()?.port();
        let at = directory.display();
        let main = format!(
            "compatibility_level = 3.6\nqueue_directory = {at}/spool\ndata_directory = {at}/data\ncommand_directory = /usr/sbin\n\
             daemon_directory = {daemons}\nmail_owner = postfix\nsetgid_group = postdrop\nmyhostname = mta.mail.test\n\
             inet_interfaces = 127.0.0.1\ninet_protocols = ipv4\nmydestination =\nmynetworks = 127.0.0.0/8\n\
             smtpd_relay_restrictions = permit_mynetworks, reject\nvirtual_mailbox_domains = mail.test\nvirtual_mailbox_base = {at}/mail\n\
             virtual_mailbox_maps = static:inbox/\nvirtual_uid_maps = static:65534\nvirtual_gid_maps = static:65534\n\
             maillog_file = {at}/mail.log\nmaillog_file_prefixes = {at}\nsmtpd_tls_security_level = encrypt\n\
             smtpd_tls_cert_file = {at}/tls/server.pem\nsmtpd_tls_key_file = {at}/tls/server.key\nalias_maps =\nalias_database =\n"
        );
        std::fs::write(directory.join("main.cf"), main).ok()?;
        std::fs::write(directory.join("master.cf"), master(port)).ok()?;
        Command::new("chmod").arg("-R").arg("a+rX").arg(directory.parent()?).status().ok()?;
        Command::new("chown").arg("postfix").arg(directory.join("data")).status().ok()?;
        Command::new("chown").arg("65534:65534").arg(directory.join("mail")).status().ok()?;
        let started = Command::new("postfix").arg("-c").arg(directory).arg("start").status().ok()?;
        let postfix = Self { directory: directory.to_owned(), ca_file, port };
        let listens = (0..200).any(|_| {
            std::thread::sleep(Duration::from_millis(20));
            std::net::TcpStream::connect(("127.0.0.1", port)).is_ok()
        });
        (started.success() && listens).then_some(postfix)
    }

    fn log(&self) -> String {
        std::fs::read_to_string(self.directory.join("mail.log")).unwrap_or_default()
    }

    /// The one message in the mailbox.
    async fn received(&self, patience: Duration) -> Vec<u8> {
        let inbox = self.directory.join("mail/inbox/new");
        let arrived = async {
            loop {
                let first = std::fs::read_dir(&inbox).ok().and_then(|mut entries| entries.next()?.ok());
                if let Some(entry) = first {
                    return std::fs::read(entry.path()).expect("a message can be read");
                }
                tokio::time::sleep(Duration::from_millis(20)).await;
            }
        };
        tokio::time::timeout(patience, arrived).await.unwrap_or_else(|_| panic!("nothing arrived:\n{}", self.log()))
    }
}

impl Drop for Postfix {
    fn drop(&mut self) {
        let _ = Command::new("postfix").arg("-c").arg(&self.directory).arg("stop").status();
    }
}

/// The services that taking and storing one message needs, none of them in a chroot.
fn master(port: u16) -> String {
    let services = [
        (format!("127.0.0.1:{port}"), "inet", "n", "smtpd"),
        ("pickup".to_owned(), "unix", "n", "pickup"),
        ("cleanup".to_owned(), "unix", "n", "cleanup"),
        ("qmgr".to_owned(), "unix", "n", "qmgr"),
        ("tlsmgr".to_owned(), "unix", "-", "tlsmgr"),
        ("rewrite".to_owned(), "unix", "-", "trivial-rewrite"),
        ("bounce".to_owned(), "unix", "-", "bounce"),
        ("defer".to_owned(), "unix", "-", "bounce"),
        ("trace".to_owned(), "unix", "-", "bounce"),
        ("verify".to_owned(), "unix", "-", "verify"),
        ("error".to_owned(), "unix", "-", "error"),
        ("retry".to_owned(), "unix", "-", "error"),
        ("proxymap".to_owned(), "unix", "-", "proxymap"),
        ("smtp".to_owned(), "unix", "-", "smtp"),
        ("virtual".to_owned(), "unix", "-", "virtual"),
        ("anvil".to_owned(), "unix", "-", "anvil"),
        ("scache".to_owned(), "unix", "-", "scache"),
        ("postlog".to_owned(), "unix-dgram", "n", "postlogd"),
    ];
    let line = |(name, kind, private, program): &(String, &str, &str, &str)| {
        let (unprivileged, limit) = match *program {
            "virtual" => ("n", "-"),
            "postlogd" | "tlsmgr" | "qmgr" | "pickup" | "anvil" | "scache" | "verify" => ("-", "1"),
            "cleanup" | "bounce" => ("-", "0"),
            _ => ("-", "-"),
        };
        format!("{name} {kind} {private} {unprivileged} n - {limit} {program}\n")
    };
    services.iter().map(line).collect()
}

/// A certificate for `localhost` with its key, signed by an authority of its own whose file is returned.
fn certificate(directory: &Path) -> PathBuf {
    let authority_key = rcgen::KeyPair::generate().expect("a key");
    let mut authority = rcgen::CertificateParams::new(Vec::new()).expect("parameters");
    authority.is_ca = rcgen::IsCa::Ca(rcgen::BasicConstraints::Unconstrained);
    let authority_certificate = authority.self_signed(&authority_key).expect("a certificate");
    let issuer = rcgen::Issuer::new(authority, authority_key);
    let key = rcgen::KeyPair::generate().expect("a key");
    let server =
        rcgen::CertificateParams::new(vec!["localhost".to_owned()]).expect("parameters").signed_by(&key, &issuer).expect("a certificate");
    let write = |name: &str, text: String| {
        let path = directory.join(name);
        std::fs::write(&path, text).expect("a file can be written");
        path
    };
    write("server.pem", server.pem());
    write("server.key", key.serialize_pem());
    write("ca.pem", authority_certificate.pem())
}
