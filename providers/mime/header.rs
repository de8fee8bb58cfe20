//! Writes header fields: folded, 7-bit, names quoted or encoded. What stands in which field is decided in `mime`.

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use tidings_core::address::Mailbox;

/// Longest line wanted, without its CRLF (RFC 5322 section 2.1.1, RFC 2047 section 2).
const LINE: usize = 76;
const WORD_START: &str = "=?utf-8?B?";
const WORD_END: &str = "?=";
/// Bytes of text that fit an encoded word on a line of its own.
const WORD_BYTES: usize = (LINE - 1 - WORD_START.len() - WORD_END.len()) / 4 * 3;

/// One header field on its way into a message.
pub(super) struct Field {
    text: String,
    /// Length of the last line.
    line: usize,
    /// Whether anything follows the name.
    begun: bool,
}

impl Field {
    pub(super) fn new(name: &str) -> Self {
        Self { text: format!("{name}:"), line: name.len() + 1, begun: false }
    }

    /// Adds `token` after `spaces` spaces, on a new line where this one is full.
    /// Never before the first token: readers stumble over a line that holds a name alone.
    pub(super) fn token(&mut self, spaces: usize, token: &str) {
        if self.begun && spaces > 0 && self.line + spaces + token.len() > LINE {
            self.new_line();
        }
        self.text.extend(std::iter::repeat_n(' ', spaces));
        self.text.push_str(token);
        self.line += spaces + token.len();
        self.begun = true;
    }

    /// Adds words as they stand; the spaces between them are kept and may become line ends.
    pub(super) fn words(mut self, text: &str) -> Self {
        for (spaces, word) in words(text) {
            self.token(spaces.max(usize::from(!self.begun)), word);
        }
        self
    }

    /// Free text: as it stands when it is plain ASCII, else encoded words.
    pub(super) fn text(mut self, text: &str) -> Self {
        let text = text.trim();
        if is_plain(text) {
            return self.words(text);
        }
        self.encoded(text);
        self
    }

    /// Mailboxes, separated by commas. Only the name is ever encoded, never the address.
    pub(super) fn mailboxes<'a>(mut self, mailboxes: impl IntoIterator<Item = &'a Mailbox>) -> Self {
        let mut mailboxes = mailboxes.into_iter().peekable();
        while let Some(mailbox) = mailboxes.next() {
            let comma = if mailboxes.peek().is_some() { "," } else { "" };
            let address = mailbox.email.as_str();
            match mailbox.name.as_deref() {
                Some(name) => {
                    self.phrase(name);
                    self.token(1, &format!("<{address}>{comma}"));
                }
                None => self.token(1, &format!("{address}{comma}")),
            }
        }
        self
    }

    /// The finished field with its CRLF.
    pub(super) fn end(self, out: &mut Vec<u8>) {
        out.extend_from_slice(self.text.as_bytes());
        out.extend_from_slice(b"\r\n");
    }

    fn phrase(&mut self, name: &str) {
        if !is_plain(name) {
            self.encoded(name);
        } else if name.bytes().all(is_phrase_byte) && !name.contains("  ") {
            words(name).for_each(|(_, word)| self.token(1, word));
        } else {
            let quoted = quoted(name);
            words(&quoted).for_each(|(spaces, word)| self.token(spaces.max(1), word));
        }
    }

    /// Encoded words (RFC 2047), cut between characters; readers join them without the space between.
    fn encoded(&mut self, mut text: &str) {
        while !text.is_empty() {
            let room = LINE.saturating_sub(self.line + 1 + WORD_START.len() + WORD_END.len()) / 4 * 3;
            let cut = cut_at(text, room);
            let cut = if cut == 0 {
                self.new_line();
                cut_at(text, WORD_BYTES)
            } else {
                cut
            };
            let word = format!("{WORD_START}{}{WORD_END}", STANDARD.encode(&text[..cut]));
            self.text.push(' ');
            self.text.push_str(&word);
            self.line += 1 + word.len();
            self.begun = true;
            text = &text[cut..];
        }
    }

    fn new_line(&mut self) {
        self.text.push_str("\r\n");
        self.line = 0;
    }
}

/// A quoted string (RFC 5322 section 3.2.4).
pub(super) fn quoted(text: &str) -> String {
    format!("\"{}\"", text.replace('\\', "\\\\").replace('"', "\\\""))
}

/// An encoded word for each piece of `text`, for places that fold by themselves.
pub(super) fn encoded_words(text: &str) -> Vec<String> {
    let (mut rest, mut words) = (text, Vec::new());
    while !rest.is_empty() {
        // Two bytes less: quotes stand around the words.
        let (word, tail) = rest.split_at(cut_at(rest, WORD_BYTES - 3));
        words.push(format!("{WORD_START}{}{WORD_END}", STANDARD.encode(word)));
        rest = tail;
    }
    words
}

/// Whether the text may stand in a header as it is.
pub(super) fn is_plain(text: &str) -> bool {
    text.bytes().all(|b| matches!(b, b' '..=b'~')) && !text.contains("=?")
}

/// The longest word of `text`, which no folding can break.
pub(super) fn longest_word(text: &str) -> usize {
    if is_plain(text) { text.split(' ').map(str::len).max().unwrap_or(0) } else { 0 }
}

/// The largest character boundary at or below `limit`.
pub(super) fn cut_at(text: &str, limit: usize) -> usize {
    (0..=limit.min(text.len())).rev().find(|at| text.is_char_boundary(*at)).unwrap_or(0)
}

fn is_phrase_byte(byte: u8) -> bool {
    byte.is_ascii_alphanumeric() || b" !#$%&'*+-/=?^_`{|}~".contains(&byte)
}

/// Each word with the number of spaces before it; trailing spaces are lost.
fn words(text: &str) -> impl Iterator<Item = (usize, &str)> {
    let mut rest = text;
    std::iter::from_fn(move || {
        let word = rest.trim_start_matches(' ');
        let spaces = rest.len() - word.len();
        let (word, tail) = word.split_at(word.find(' ').unwrap_or(word.len()));
        rest = tail;
        (!word.is_empty()).then_some((spaces, word))
    })
}
