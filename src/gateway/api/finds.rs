//! What a test looks for in a message: one-time codes and links.

/// More codes or links than this in one message help nobody.
const MOST_FINDS: usize = 100;

/// What looks like a one-time code: 4 to 8 digits that stand by themselves.
pub(super) fn codes(text: &str) -> Vec<String> {
    let mut found = Vec::new();
    let stands_alone =
        |c: char| c.is_whitespace() || matches!(c, ':' | '.' | ',' | ';' | '!' | '?' | '"' | '\'' | '(' | ')' | '[' | ']' | '*');
    for word in text.split(stands_alone) {
        if (4..=8).contains(&word.len()) && word.bytes().all(|byte| byte.is_ascii_digit()) {
            push_new(&mut found, word.to_owned());
        }
    }
    found
}

/// Web addresses in a text, without the punctuation of the sentence around them.
pub(super) fn links(text: &str) -> Vec<String> {
    let mut found = Vec::new();
    let mut rest = text;
    while let Some(at) = rest.find("http") {
        rest = &rest[at..];
        let end =
            rest.find(|c: char| c.is_whitespace() || c.is_control() || matches!(c, '"' | '\'' | '<' | '>' | '`')).unwrap_or(rest.len());
        let link = rest[..end].trim_end_matches(['.', ',', ';', ':', '!', '?', ')', ']', '}', '*']);
        if ["http://", "https://"].iter().any(|scheme| link.len() > scheme.len() && link.starts_with(scheme)) {
            push_new(&mut found, link.to_owned());
        }
        rest = &rest[end.max("http".len())..];
    }
    found
}

/// The same in HTML, where `&` is written `&amp;`.
pub(super) fn links_of_html(html: &str) -> Vec<String> {
    links(html).into_iter().map(|link| link.replace("&amp;", "&")).collect()
}

/// Adds what is not there yet, while there is room.
pub(super) fn push_new(found: &mut Vec<String>, text: String) {
    if found.len() < MOST_FINDS && !found.contains(&text) {
        found.push(text);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn codes_stand_alone() {
        let text = "Your code is 482913. Or \"0042\"! Not 12, 123456789, A1234, 2027-03-01, or https://x.test/9999. Again: 482913";
        assert_eq!(codes(text), ["482913", "0042"]);
    }

    #[test]
    fn links_end_where_the_sentence_goes_on() {
        let text = "See https://shop.test/a?b=1&c=2, (http://x.test/y) <https://z.test>. httpfoo http:// https://shop.test/a?b=1&c=2";
        assert_eq!(links(text), ["https://shop.test/a?b=1&c=2", "http://x.test/y", "https://z.test"]);
        assert_eq!(links_of_html("<a href=\"https://shop.test/?a=1&amp;b=2\">x</a>"), ["https://shop.test/?a=1&b=2"]);
    }

    proptest! {
        #[test]
        fn no_text_panics(text in "[htps:/.é<>\" \\n0-9]{0,80}") {
            codes(&text);
            links(&text);
        }
    }
}
