//! Builds the finished bytes of an email: which headers, which parts, which encoding.
//! The same `Outgoing` always gives the same bytes. Who is in the envelope is `envelope`'s business.

use std::time::{Duration, SystemTime};

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use lettre::message::Body;
use lettre::message::header::{ContentTransferEncoding, Date, Headers};
use tidings_core::adapter::Outgoing;
use tidings_core::address::Mailbox;
use tidings_core::content::{Attachment, Content, EmailContent};
use tidings_core::time::Timestamp;

use crate::envelope::LeftOut;
use header::Field;

mod header;

/// Why no message can be made of the content. Intake refuses all of this; a row of an older version may hold it.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum CannotBuild {
    /// A custom header that Tidings writes itself.
    #[error("a custom header is one that Tidings sets itself")]
    OwnedHeader,
    /// A header name outside RFC 5322, or a control character in a value.
    #[error("a custom header is malformed")]
    MalformedHeader,
    /// A word that no folding brings under 998 octets (RFC 5322 section 2.1.1).
    #[error("a custom header has a word that is too long for a line")]
    LineTooLong,
}

/// Headers that Tidings writes; in `headers` of a request they are refused, whatever their case, like every `Content-*`.
pub const OWNED_HEADERS: &[&str] = &[
    "bcc",
    "cc",
    "date",
    "dkim-signature",
    "from",
    "message-id",
    "mime-version",
    "received",
    "reply-to",
    "return-path",
    "subject",
    "to",
    "x-delivery-id",
];

/// Words longer than this cannot be sure of a line.
pub(crate) const LONGEST_WORD: usize = 900;

/// The finished message, every line ended by CRLF, 7-bit clean but for mailboxes that need SMTPUTF8.
///
/// # Errors
/// When a custom header cannot be written.
pub fn message(outgoing: &Outgoing) -> Result<Vec<u8>, CannotBuild> {
    let Content::Email(email) = &*outgoing.content;
    let mut out = Vec::with_capacity(usize::try_from(encoded_size(email)).unwrap_or(0) + 2_048);
    write_headers(outgoing, email, &mut out)?;
    let mut boundaries = Boundaries::of(&outgoing.message_id);
    write_part(&parts(email), &mut boundaries, &mut out);
    Ok(out)
}

/// About how large the finished message is, headers aside.
pub fn encoded_size(email: &EmailContent) -> u64 {
    let texts = [&email.text, &email.html].into_iter().flatten().map(|text| encode_text(text).1.len());
    texts.chain(files_size(email)).sum::<usize>() as u64
}

/// No less than `encoded_size`, without encoding anything: a byte of text becomes at most `=XX` and its share of line ends.
pub(crate) fn encoded_size_at_most(email: &EmailContent) -> u64 {
    let texts = [&email.text, &email.html].into_iter().flatten().map(|text| text.len() * 4 + 64);
    texts.chain(files_size(email)).sum::<usize>() as u64
}

fn files_size(email: &EmailContent) -> impl Iterator<Item = usize> {
    email.attachments.iter().map(|file| file.content.len().div_ceil(3) * 4 + file.content.len().div_ceil(57) * 2 + 512)
}

/// The longest word of a header value, which no folding can break.
pub(crate) fn longest_word(value: &str) -> usize {
    header::longest_word(value)
}

fn write_headers(outgoing: &Outgoing, email: &EmailContent, out: &mut Vec<u8>) -> Result<(), CannotBuild> {
    let left_out = LeftOut::of(outgoing);
    let shown = |mailbox: &&Mailbox| !left_out.has(&mailbox.email);
    write_date(outgoing.date, out);
    Field::new("From").mailboxes([&email.from]).end(out);
    if !email.reply_to.is_empty() {
        Field::new("Reply-To").mailboxes(&email.reply_to).end(out);
    }
    Field::new("To").mailboxes(std::iter::once(&outgoing.to).chain(email.also_to.iter().filter(shown))).end(out);
    if email.cc.iter().any(|mailbox| shown(&mailbox)) {
        Field::new("Cc").mailboxes(email.cc.iter().filter(shown)).end(out);
    }
    Field::new("Subject").text(&email.subject).end(out);
    Field::new("Message-ID").words(&format!("<{}>", outgoing.message_id)).end(out);
    if !email.headers.iter().any(|(name, _)| name.eq_ignore_ascii_case("auto-submitted")) {
        Field::new("Auto-Submitted").words("auto-generated").end(out);
    }
    Field::new("X-Delivery-Id").words(&outgoing.handle.to_string()).end(out);
    for (name, value) in &email.headers {
        check_header(name, value)?;
        Field::new(name).text(value).end(out);
    }
    out.extend_from_slice(b"MIME-Version: 1.0\r\n");
    Ok(())
}

fn check_header(name: &str, value: &str) -> Result<(), CannotBuild> {
    let lower = name.to_ascii_lowercase();
    if lower.starts_with("content-") || OWNED_HEADERS.contains(&lower.as_str()) {
        return Err(CannotBuild::OwnedHeader);
    }
    let named = (1..=76).contains(&name.len()) && name.bytes().all(|b| matches!(b, b'!'..=b'~') && b != b':');
    if !named || value.chars().any(char::is_control) {
        return Err(CannotBuild::MalformedHeader);
    }
    if header::longest_word(value) > LONGEST_WORD { Err(CannotBuild::LineTooLong) } else { Ok(()) }
}

fn write_date(date: Timestamp, out: &mut Vec<u8>) {
    // The year 9999 is the last that the header can show.
    let seconds = (date.as_millis() / 1_000).min(253_402_300_799);
    let mut headers = Headers::new();
    headers.set(Date::new(SystemTime::UNIX_EPOCH + Duration::from_secs(seconds)));
    out.extend_from_slice(headers.to_string().as_bytes());
}

enum Part<'a> {
    Text { subtype: &'static str, text: &'a str },
    File { file: &'a Attachment, disposition: &'static str },
    Multi { kind: &'static str, parts: Vec<Part<'a>> },
}

/// The tree of parts: files around alternatives, images beside the HTML that shows them (RFC 2387).
fn parts(email: &EmailContent) -> Part<'_> {
    let (inline, files): (Vec<_>, Vec<_>) = email.attachments.iter().partition(|file| file.content_id.is_some() && email.html.is_some());
    let html = email.html.as_deref().map(|text| {
        let shown = inline.into_iter().map(|file| Part::File { file, disposition: "inline" });
        group("related", std::iter::once(Part::Text { subtype: "html", text }).chain(shown).collect())
    });
    let plain = match (&email.text, &html) {
        (Some(text), _) => Some(Part::Text { subtype: "plain", text }),
        (None, None) if files.is_empty() => Some(Part::Text { subtype: "plain", text: "" }),
        (None, _) => None,
    };
    let mut all: Vec<Part<'_>> = Vec::new();
    if plain.is_some() || html.is_some() {
        all.push(group("alternative", plain.into_iter().chain(html).collect()));
    }
    all.extend(files.into_iter().map(|file| Part::File { file, disposition: "attachment" }));
    group("mixed", all)
}

/// The parts as one; a single part needs no wrapping, but for a file, which no reader expects to be the whole mail.
fn group<'a>(kind: &'static str, mut parts: Vec<Part<'a>>) -> Part<'a> {
    match parts.pop() {
        Some(only) if parts.is_empty() && !matches!(only, Part::File { .. }) => only,
        last => Part::Multi { kind, parts: parts.into_iter().chain(last).collect() },
    }
}

/// Boundaries that follow from the message id. `=_` cannot occur in base64 or quoted-printable (RFC 2045 section 6.7).
struct Boundaries {
    stem: String,
    next: u32,
}

impl Boundaries {
    fn of(message_id: &str) -> Self {
        let stem = message_id.chars().take_while(|c| *c != '@').filter(|c| c.is_ascii_alphanumeric() || *c == '_');
        Self { stem: stem.take(48).collect(), next: 0 }
    }

    fn next(&mut self) -> String {
        self.next += 1;
        format!("=_{}_{}", self.next, self.stem)
    }
}

fn write_part(part: &Part<'_>, boundaries: &mut Boundaries, out: &mut Vec<u8>) {
    match part {
        Part::Text { subtype, text } => {
            let (encoding, body) = encode_text(text);
            let head = format!("Content-Type: text/{subtype}; charset=utf-8\r\nContent-Transfer-Encoding: {encoding}\r\n\r\n");
            out.extend_from_slice(head.as_bytes());
            out.extend_from_slice(&body);
            out.extend_from_slice(b"\r\n");
        }
        Part::File { file, disposition } => write_file(file, disposition, out),
        Part::Multi { kind, parts } => {
            let boundary = boundaries.next();
            let mut content_type = Field::new("Content-Type").words(&format!("multipart/{kind};"));
            if *kind == "related" {
                content_type.token(1, "type=\"text/html\";");
            }
            content_type.token(1, &format!("boundary=\"{boundary}\""));
            content_type.end(out);
            out.extend_from_slice(b"\r\n");
            for part in parts {
                out.extend_from_slice(format!("--{boundary}\r\n").as_bytes());
                write_part(part, boundaries, out);
            }
            out.extend_from_slice(format!("--{boundary}--\r\n").as_bytes());
        }
    }
}

fn write_file(file: &Attachment, disposition: &str, out: &mut Vec<u8>) {
    content_type(file).end(out);
    disposition_of(disposition, &file.filename).end(out);
    if let Some(id) = file.content_id.as_deref().filter(|id| id.bytes().all(|b| matches!(b, b'!'..=b'~'))) {
        Field::new("Content-ID").words(&format!("<{id}>")).end(out);
    }
    out.extend_from_slice(b"Content-Transfer-Encoding: base64\r\n\r\n");
    write_base64(&file.content, out);
    out.extend_from_slice(b"\r\n");
}

/// The caller's media type with all its parameters, and the name for readers that do not know RFC 2231.
fn content_type(file: &Attachment) -> Field {
    let given = file.content_type.trim().trim_end_matches(';');
    let usable = header::is_plain(given) && given.contains('/') && header::longest_word(given) <= LONGEST_WORD;
    let given = if usable { given } else { "application/octet-stream" };
    let named = given.split(';').skip(1).any(|parameter| parameter.trim_start().to_ascii_lowercase().starts_with("name="));
    if named {
        return Field::new("Content-Type").words(given);
    }
    let mut field = Field::new("Content-Type").words(&format!("{given};"));
    if header::is_plain(&file.filename) && file.filename.len() <= 60 {
        field.token(1, &format!("name={}", header::quoted(&file.filename)));
    } else {
        let words = header::encoded_words(&file.filename);
        let last = words.len().saturating_sub(1);
        for (position, word) in words.iter().enumerate() {
            let (open, close) = (if position == 0 { "name=\"" } else { "" }, if position == last { "\"" } else { "" });
            field.token(1, &format!("{open}{word}{close}"));
        }
    }
    field
}

/// `filename*=utf-8''...` where ASCII does not do (RFC 2231), in several pieces where one line does not do.
fn disposition_of(disposition: &str, filename: &str) -> Field {
    let mut field = Field::new("Content-Disposition").words(&format!("{disposition};"));
    if header::is_plain(filename) && filename.len() <= 60 {
        field.token(1, &format!("filename={}", header::quoted(filename)));
        return field;
    }
    let encoded: Vec<String> = filename.chars().map(percent_encoded).collect();
    if encoded.iter().map(String::len).sum::<usize>() <= 54 {
        field.token(1, &format!("filename*=utf-8''{}", encoded.concat()));
        return field;
    }
    let mut pieces = vec![String::from("utf-8''")];
    for character in encoded {
        match pieces.last_mut() {
            Some(piece) if piece.len() + character.len() <= 56 => piece.push_str(&character),
            _ => pieces.push(character),
        }
    }
    let last = pieces.len() - 1;
    for (position, piece) in pieces.iter().enumerate() {
        let semicolon = if position == last { "" } else { ";" };
        field.token(1, &format!("filename*{position}*={piece}{semicolon}"));
    }
    field
}

fn percent_encoded(character: char) -> String {
    if character.is_ascii_alphanumeric() || "-._~".contains(character) {
        return character.to_string();
    }
    character.encode_utf8(&mut [0; 4]).bytes().map(|byte| format!("%{byte:02X}")).collect()
}

/// The text with every line ended by CRLF, in the shorter of the two encodings that survive every relay.
fn encode_text(text: &str) -> (&'static str, Vec<u8>) {
    let text = with_crlf(text);
    let odd = text.bytes().filter(|b| !matches!(b, b' '..=b'~' | b'\r' | b'\n' | b'\t')).count();
    if odd * 6 > text.len() {
        let mut out = Vec::with_capacity(text.len() / 3 * 4);
        write_base64(text.as_bytes(), &mut out);
        return ("base64", out);
    }
    let body = Body::new_with_encoding(text, ContentTransferEncoding::QuotedPrintable);
    ("quoted-printable", body.map_or_else(|raw| raw, Body::into_vec))
}

fn with_crlf(text: &str) -> String {
    text.replace("\r\n", "\n").replace('\r', "\n").replace('\n', "\r\n")
}

/// Lines of 76 characters; no CRLF after the last.
fn write_base64(content: &[u8], out: &mut Vec<u8>) {
    let mut line = [0; 76];
    for (position, chunk) in content.chunks(57).enumerate() {
        if position > 0 {
            out.extend_from_slice(b"\r\n");
        }
        let length = STANDARD.encode_slice(chunk, &mut line).expect("57 bytes are 76 characters of base64");
        out.extend_from_slice(&line[..length]);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    proptest! {
        #[test]
        fn no_text_grows_beyond_the_bound(text in "[ -~\r\n\té€=.]{0,400}") {
            let from = "a@example.com".parse().unwrap();
            let empty = Vec::new;
            let email = EmailContent {
                from, subject: String::new(), text: Some(text), html: None,
                reply_to: empty(), cc: empty(), bcc: empty(), also_to: empty(), headers: Vec::new(), attachments: Vec::new(),
            };
            prop_assert!(encoded_size(&email) <= encoded_size_at_most(&email));
        }
    }
}
