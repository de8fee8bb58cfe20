//! DKIM signatures (RFC 6376, RFC 8463): which fields are signed and what the signature field says. The form in which fields
//! and body are signed is `canonical`'s business, keys are `key`'s. Signing comes last: nothing touches the message afterwards.

use std::collections::BTreeMap;
use std::fmt::Write as _;

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use sha2::{Digest as _, Sha256};
use tidings_core::time::Timestamp;

pub use key::{Key, KeyFault};

mod canonical;
mod key;

/// Fields that are signed once more than they occur, so that nobody can add another without breaking the signature.
const OVERSIGNED: &[&str] =
    &["from", "to", "cc", "reply-to", "subject", "date", "message-id", "mime-version", "content-type", "content-transfer-encoding"];
/// Fields that are signed as often as they occur.
const SIGNED: &[&str] = &[
    "sender",
    "in-reply-to",
    "references",
    "auto-submitted",
    "list-id",
    "list-help",
    "list-post",
    "list-owner",
    "list-archive",
    "list-subscribe",
    "list-unsubscribe",
    "list-unsubscribe-post",
    "feedback-id",
    "x-delivery-id",
];
/// Longest line of the signature field; longer ones were judged invalid by receivers.
const LINE: usize = 76;

/// One key of a domain, and the name under which its public half is published.
#[derive(Debug)]
pub struct Selector {
    /// Such as `s1`: one or more labels of a domain name.
    pub name: String,
    /// The private half.
    pub key: Key,
}

/// The keys of every domain that signs. The first selector of a domain signs, the others are for rotation.
#[derive(Debug, Default)]
pub struct Keys {
    domains: BTreeMap<String, Vec<Selector>>,
}

/// What has to stand in the DNS for signatures to be believed.
#[derive(Debug, Clone, PartialEq, Eq, serde::Serialize)]
pub struct DnsRecord {
    /// The full name, without the last dot.
    pub name: String,
    /// The whole text of the TXT record.
    pub txt: String,
}

impl Keys {
    /// No domain signs.
    pub fn new() -> Self {
        Self::default()
    }

    /// Adds a domain in lower case and ASCII with its selectors, the signing one first.
    pub fn add(&mut self, domain: String, selectors: Vec<Selector>) {
        self.domains.insert(domain, selectors);
    }

    /// What is to be published for every key, signing or not.
    pub fn records(&self) -> Vec<DnsRecord> {
        let of = |(domain, selectors): (&String, &Vec<Selector>)| -> Vec<DnsRecord> {
            let record = |selector: &Selector| DnsRecord {
                name: format!("{}._domainkey.{domain}", selector.name),
                txt: format!("v=DKIM1; k={}; p={}", selector.key.algorithm().key_type(), STANDARD.encode(selector.key.public())),
            };
            selectors.iter().map(record).collect()
        };
        self.domains.iter().flat_map(of).collect()
    }

    /// Whether mail of this domain is signed.
    pub fn signs(&self, domain: &str) -> bool {
        self.signer(domain).is_some()
    }

    /// Puts a signature before the finished message of an author at `domain`, if that domain has a key. Fields in
    /// `replaced` are left out: the relay is known to write them anew.
    pub fn sign(&self, domain: &str, message: &mut Vec<u8>, at: Timestamp, replaced: &[&str]) {
        let Some((domain, selector)) = self.signer(domain) else { return };
        let field = signature(domain, selector, message, at, replaced);
        message.splice(0..0, field.into_bytes());
    }

    fn signer(&self, domain: &str) -> Option<(&str, &Selector)> {
        let (domain, selectors) = self.domains.get_key_value(&domain.to_ascii_lowercase())?;
        Some((domain, selectors.first()?))
    }
}

/// The whole field, with its CRLF.
fn signature(domain: &str, selector: &Selector, message: &[u8], at: Timestamp, replaced: &[&str]) -> String {
    let (head, body) = canonical::split(message);
    let fields = canonical::fields(head);
    let (names, mut signed) = chosen(&fields, replaced);

    let mut field = String::from("DKIM-Signature:");
    let mut line = field.len();
    let mut put = |text: &str, blank: bool| {
        if line + 1 + text.len() > LINE {
            field.push_str("\r\n ");
            line = 1;
        } else if blank {
            field.push(' ');
            line += 1;
        }
        field.push_str(text);
        line += text.len();
    };
    put("v=1;", true);
    put(&format!("a={};", selector.key.algorithm().name()), true);
    put("c=relaxed/relaxed;", true);
    put(&format!("d={domain};"), true);
    put(&format!("s={};", selector.name), true);
    put(&format!("t={};", at.as_millis() / 1_000), true);
    put(&format!("bh={};", STANDARD.encode(Sha256::digest(canonical::body(body)))), true);
    let last = names.len().saturating_sub(1);
    for (position, name) in names.iter().enumerate() {
        let start = if position == 0 { "h=" } else { "" };
        put(&format!("{start}{name}{}", if position == last { ";" } else { ":" }), position == 0);
    }
    put("b=", true);
    // The field itself is signed last, with an empty `b=` and without its line end (RFC 6376 section 3.7).
    let mut own = canonical::field(field.as_bytes());
    own.truncate(own.len() - 2);
    signed.extend_from_slice(&own);

    let signature = STANDARD.encode(selector.key.sign(&signed));
    for piece in signature.as_bytes().chunks(LINE - 2) {
        // Base64 is ASCII; writing to a text cannot fail.
        let _ = write!(field, "\r\n {}", String::from_utf8_lossy(piece));
    }
    field.push_str("\r\n");
    field
}

/// The names for `h=`, and the fields in that order in their signed form. Of several fields with one name the lowest comes
/// first (RFC 6376 section 5.4.2).
fn chosen(fields: &[canonical::Field<'_>], replaced: &[&str]) -> (Vec<&'static str>, Vec<u8>) {
    let (mut names, mut signed) = (Vec::new(), Vec::new());
    let wanted = OVERSIGNED.iter().map(|name| (*name, true)).chain(SIGNED.iter().map(|name| (*name, false)));
    for (name, is_oversigned) in wanted.filter(|(name, _)| !replaced.contains(name)) {
        for field in fields.iter().rev().filter(|field| field.name.eq_ignore_ascii_case(name)) {
            names.push(name);
            signed.extend(canonical::field(field.raw));
        }
        if is_oversigned {
            names.push(name);
        }
    }
    (names, signed)
}
