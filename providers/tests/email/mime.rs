//! What a message looks like to those who read it.

use mail_parser::{Address, Message, MessageParser, MimeHeaders as _, PartType};
use tidings_core::adapter::Outgoing;
use tidings_core::address::Mailbox;
use tidings_core::content::{Attachment, EmailContent};
use tidings_core::time::Timestamp;
use tidings_providers::mime::{CannotBuild, OWNED_HEADERS, message};

use crate::messages::{mailbox, outgoing};

fn built(edit: impl FnOnce(&mut EmailContent)) -> String {
    String::from_utf8(message(&outgoing(|_, email| edit(email))).unwrap()).unwrap()
}

fn parsed(raw: &str) -> Message<'_> {
    MessageParser::default().parse(raw.as_bytes()).unwrap()
}

fn header<'a>(raw: &'a str, name: &str) -> &'a str {
    let start = raw.find(&format!("\r\n{name}: ")).unwrap_or_else(|| panic!("no {name} in {raw}")) + name.len() + 4;
    let mut end = start;
    while let Some(at) = raw[end..].find("\r\n") {
        end += at;
        if !raw[end + 2..].starts_with(' ') {
            break;
        }
        end += 2;
    }
    &raw[start..end]
}

fn file(filename: &str, content_type: &str, content: &[u8]) -> Attachment {
    Attachment { filename: filename.into(), content_type: content_type.into(), content: content.to_vec(), content_id: None }
}

fn everything() -> Outgoing {
    outgoing(|_, email| {
        email.from = mailbox("Käse & Co <shop@example.com>");
        email.subject = "Grüße und Küsse, 你好 👋 — Ihre Rechnung Nr. 10432 ist da".into();
        email.text = Some("Hallo Ann,\n\n.punkt am Anfang, = und Umlaute: äöü\n".into());
        email.html = Some("<p>Hallo <b>Ann</b></p><img src=\"cid:logo@shop\">".into());
        email.reply_to = vec![mailbox("help@example.com")];
        email.also_to = vec![mailbox("\"Doe, Jane\" <j@example.com>")];
        email.cc = vec![mailbox("渡辺 <w@例え.テスト>")];
        email.bcc = vec![mailbox("secret@example.com")];
        email.headers = vec![
            ("List-Unsubscribe".into(), "<mailto:unsubscribe@example.com?subject=u>, <https://example.com/u/0123456789abcdef>".into()),
            ("List-Unsubscribe-Post".into(), "List-Unsubscribe=One-Click".into()),
        ];
        email.attachments = vec![
            Attachment { content_id: Some("logo@shop".into()), ..file("logo.png", "image/png", b"\x89PNG\r\n") },
            file("Rechnung 😊.pdf", "application/pdf", &[0, 1, 2, 255].repeat(40)),
        ];
    })
}

#[test]
fn a_message_with_everything() {
    let raw = String::from_utf8(message(&everything()).unwrap()).unwrap();
    insta::assert_snapshot!("everything", raw.replace("\r\n", "\n"));
}

#[test]
fn the_same_message_has_the_same_bytes_but_for_its_date() {
    let first = message(&everything()).unwrap();
    assert_eq!(first, message(&everything()).unwrap());
    let later = Outgoing { date: Timestamp::from_millis(1_767_229_200_000), ..everything() };
    let later = String::from_utf8(message(&later).unwrap()).unwrap();
    let first = String::from_utf8(first).unwrap();
    assert_eq!(header(&first, "Message-ID"), header(&later, "Message-ID"));
    assert_eq!(first.split_once("\r\n").unwrap().1, later.split_once("\r\n").unwrap().1);
    assert_ne!(first, later);
}

#[test]
fn readers_get_back_what_was_meant() {
    let raw = String::from_utf8(message(&everything()).unwrap()).unwrap();
    let mail = parsed(&raw);
    let names = |address: Option<&Address<'_>>| -> Vec<(Option<String>, String)> {
        address.unwrap().iter().map(|one| (one.name.as_deref().map(str::to_owned), one.address.as_deref().unwrap().to_owned())).collect()
    };
    let one = |name: &str, address: &str| (Some(name.to_owned()), address.to_owned());
    assert_eq!(mail.subject(), Some("Grüße und Küsse, 你好 👋 — Ihre Rechnung Nr. 10432 ist da"));
    assert_eq!(names(mail.from()), [one("Käse & Co", "shop@example.com")]);
    assert_eq!(names(mail.to()), [one("Ann", "ann@example.com"), one("Doe, Jane", "j@example.com")]);
    assert_eq!(names(mail.cc()), [one("渡辺", "w@xn--r8jz45g.xn--zckzah")]);
    assert!(mail.bcc().is_none() && !raw.contains("secret@"));
    assert_eq!(mail.message_id(), Some("dlv_019cae2c1f5e7c3a9b0d4e5f60718293@example.com"));
    assert_eq!(mail.date().unwrap().to_rfc3339(), "2026-01-01T00:00:00Z");
    assert_eq!(mail.body_text(0).unwrap().trim_end(), "Hallo Ann,\r\n\r\n.punkt am Anfang, = und Umlaute: äöü");
    assert_eq!(mail.body_html(0).unwrap().trim_end(), "<p>Hallo <b>Ann</b></p><img src=\"cid:logo@shop\">");
    let files: Vec<_> = mail.attachments().map(|part| (part.attachment_name().unwrap().to_owned(), part.contents().to_vec())).collect();
    assert_eq!(files, [("logo.png".to_owned(), b"\x89PNG\r\n".to_vec()), ("Rechnung 😊.pdf".to_owned(), [0, 1, 2, 255].repeat(40))]);
    let logo = mail.attachments().next().unwrap();
    assert_eq!(logo.content_id(), Some("logo@shop"));
    assert!(logo.content_disposition().unwrap().is_inline());
}

#[test]
fn images_stand_beside_the_html_and_files_around_it_all() {
    let raw = String::from_utf8(message(&everything()).unwrap()).unwrap();
    let mail = parsed(&raw);
    let kinds: Vec<String> = mail
        .parts
        .iter()
        .map(|part| part.content_type().map_or("", |kind| kind.c_subtype.as_deref().unwrap_or_default()).to_owned())
        .collect();
    assert_eq!(kinds, ["mixed", "alternative", "plain", "related", "html", "png", "pdf"]);
    let simple = built(|_| {});
    assert!(matches!(parsed(&simple).root_part().body, PartType::Text(_)));
}

#[test]
fn lines_are_short_and_headers_are_folded() {
    let raw = built(|email| {
        email.subject = "a somewhat long subject that will not fit on one line of seventy-six characters, not even nearly".into();
        email.also_to = (0..40).map(|n| Mailbox::new(&format!("person{n}@example.com"), Some("Somebody With A Name")).unwrap()).collect();
        email.headers = vec![("X-Note".into(), "ü".repeat(300))];
        email.text = Some("ä".repeat(3) + &"long line without an end ".repeat(100));
        email.attachments =
            vec![file(&"长文件名".repeat(30), "application/octet-stream; x=y", b"x"), file(&"long name ".repeat(12), "text/csv", b"x")];
    });
    for line in raw.split("\r\n") {
        assert!(line.len() <= 76, "{} {line}", line.len());
        assert!(!line.ends_with(' ') && (line.is_empty() || !line.trim().is_empty()), "{line:?}");
    }
    let mail = parsed(&raw);
    assert_eq!(mail.subject(), Some("a somewhat long subject that will not fit on one line of seventy-six characters, not even nearly"));
    assert_eq!(mail.to().unwrap().iter().count(), 41);
    let names: Vec<_> = mail.attachments().map(|part| part.attachment_name().unwrap().to_owned()).collect();
    assert_eq!(names, ["长文件名".repeat(30), "long name ".repeat(12)]);
}

#[test]
fn file_names_are_rfc_2231_in_the_disposition_and_encoded_words_in_the_type() {
    let raw = built(|email| email.attachments = vec![file("😊.txt", "text/plain", b"x"), file("a \"b\".txt", "text/plain", b"x")]);
    assert!(raw.contains("Content-Disposition: attachment; filename*=utf-8''%F0%9F%98%8A.txt\r\n"), "{raw}");
    assert!(raw.contains("Content-Type: text/plain; name=\"=?utf-8?B?8J+Yii50eHQ=?=\"\r\n"), "{raw}");
    assert!(raw.contains("Content-Disposition: attachment; filename=\"a \\\"b\\\".txt\"\r\n"), "{raw}");
    assert!(!raw.split("\r\n").any(|line| line.starts_with("Content-Disposition") && line.contains("=?")));
}

#[test]
fn a_calendar_invitation_keeps_its_method() {
    let raw =
        built(|email| email.attachments = vec![file("invite.ics", "text/calendar; method=REQUEST; charset=UTF-8", b"BEGIN:VCALENDAR")]);
    let mail = parsed(&raw);
    let invite = mail.attachments().next().unwrap().content_type().unwrap();
    assert_eq!((invite.c_type.as_ref(), invite.c_subtype.as_deref()), ("text", Some("calendar")));
    assert_eq!((invite.attribute("method"), invite.attribute("charset")), (Some("REQUEST"), Some("UTF-8")));
}

#[test]
fn only_names_are_encoded_and_a_comma_makes_no_second_author() {
    let from = |name: &str| header(&built(|email| email.from = Mailbox::new("s@example.com", Some(name)).unwrap()), "From").to_owned();
    assert_eq!(from("Shop"), "Shop <s@example.com>");
    assert_eq!(from("Doe, Jane"), "\"Doe, Jane\" <s@example.com>");
    assert_eq!(from("say \"hi\" \\"), "\"say \\\"hi\\\" \\\\\" <s@example.com>");
    assert_eq!(from("Käse"), "=?utf-8?B?S8Okc2U=?= <s@example.com>");
    assert_eq!(from("=?utf-8?B?S8Okc2U=?="), "=?utf-8?B?PT91dGYtOD9CP1M4T2tjMlU9Pz0=?= <s@example.com>");
}

#[test]
fn auto_submitted_is_ours_unless_the_caller_says_it() {
    assert_eq!(header(&built(|_| {}), "Auto-Submitted"), "auto-generated");
    let raw = built(|email| email.headers = vec![("auto-submitted".into(), "auto-replied".into())]);
    assert_eq!(raw.to_lowercase().matches("auto-submitted:").count(), 1);
    assert!(raw.contains("X-Delivery-Id: dlv_019cae2c1f5e7c3a9b0d4e5f60718293_1\r\n"));
}

#[test]
fn headers_that_are_ours_or_malformed_are_never_written() {
    let fault = |name: &str, value: &str| message(&outgoing(|_, email| email.headers = vec![(name.into(), value.into())])).unwrap_err();
    for name in OWNED_HEADERS.iter().map(|name| name.to_uppercase()).chain(["Content-Type".to_owned(), "content-foo".to_owned()]) {
        assert_eq!(fault(&name, "x"), CannotBuild::OwnedHeader, "{name}");
    }
    for (name, value) in [("X Y", "x"), ("X:Y", "x"), ("", "x"), ("Ü", "x"), ("X-Note", "a\r\nBcc: x@example.com"), ("X-Note", "a\0")] {
        assert_eq!(fault(name, value), CannotBuild::MalformedHeader, "{name}");
    }
    assert_eq!(fault("X-Note", &"x".repeat(901)), CannotBuild::LineTooLong);
}

#[test]
fn copies_that_are_left_out_stand_in_no_header() {
    let raw = message(&outgoing(|outgoing, email| {
        email.cc = vec![mailbox("one@example.com"), mailbox("two@example.com")];
        email.also_to = vec![mailbox("three@example.com")];
        outgoing.left_out = vec!["one@example.com".into(), "THREE@example.com".into()];
    }));
    let raw = String::from_utf8(raw.unwrap()).unwrap();
    assert_eq!(header(&raw, "Cc"), "two@example.com");
    assert_eq!(header(&raw, "To"), "Ann <ann@example.com>");
}

#[test]
fn a_mail_may_be_nothing_but_a_file() {
    let raw = built(|email| {
        email.text = None;
        email.attachments = vec![file("a.pdf", "no type at all", b"x")];
    });
    let mail = parsed(&raw);
    assert_eq!(mail.attachment_count(), 1);
    assert!(raw.contains("Content-Type: application/octet-stream; name=\"a.pdf\"\r\n"));
}
