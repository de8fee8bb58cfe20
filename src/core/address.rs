//! Destinations, canonicalised once at the edge (S-016): what is an address, what it is sent as,
//! and what it is matched by. Whether anybody may be written to is decided elsewhere.

use std::fmt;
use std::str::FromStr;

use serde::{Deserialize, Deserializer, Serialize, Serializer};

/// Why a text is not a mailbox. Never repeats the text.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum RecipientError {
    /// Nothing there.
    #[error("an address is missing")]
    Empty,
    /// CR, LF, NUL or another control character.
    #[error("control characters are not allowed")]
    ControlCharacter,
    /// No `@` outside quotes.
    #[error("not an email address: there is no @")]
    NoAt,
    /// The part before the `@` is neither a dot-atom nor a quoted string (RFC 5321 section 4.1.2).
    #[error("the part before the @ is not valid")]
    LocalPart,
    /// The part after the `@` is not a domain name.
    #[error("the part after the @ is not a domain name")]
    Domain,
    /// Over 64 octets before the `@`, or 254 in all (RFC 5321 section 4.5.3.1).
    #[error("the address is too long")]
    TooLong,
    /// One string is one mailbox; an unquoted comma or semicolon would make it several.
    #[error("one string is one mailbox: put a name with a comma in quotes, or use {{\"email\", \"name\"}}")]
    SeveralMailboxes,
    /// Brackets or quotes that do not match, or text after the address.
    #[error("not a mailbox such as \"Ada <ada@example.com>\"")]
    Malformed,
    /// A display name over 255 characters.
    #[error("the name is too long")]
    NameTooLong,
}

/// An email address in the form it is sent to: the local part as written, the domain as lower-case A-label.
#[derive(Clone, PartialEq, Eq, Hash)]
pub struct EmailAddress {
    text: String,
    at: usize,
}

impl EmailAddress {
    /// `local@domain`, ready for an envelope.
    pub fn as_str(&self) -> &str {
        &self.text
    }

    /// The part before the `@`, as written.
    pub fn local_part(&self) -> &str {
        &self.text[..self.at]
    }

    /// The domain in ASCII.
    pub fn domain(&self) -> &str {
        &self.text[self.at + 1..]
    }

    /// Whether the local part needs SMTPUTF8 (RFC 6531).
    pub fn needs_smtputf8(&self) -> bool {
        !self.text.is_ascii()
    }

    /// What the address is matched by: quotes that change nothing removed, letters folded to lower case.
    pub fn canonical(&self) -> String {
        let local = self.local_part();
        // Nearly every address: the domain is in lower case already.
        if local.is_ascii() && !local.starts_with('"') {
            return self.text.to_ascii_lowercase();
        }
        let folded = match unquote(local) {
            Some(content) if is_dot_atom(&content) => content.to_lowercase(),
            _ => local.to_lowercase(),
        };
        format!("{folded}@{}", self.domain())
    }

    /// The address as it is shown without scope `pii`: `a***@example.com`.
    pub fn masked(&self) -> String {
        let first = self.text.trim_start_matches('"').chars().next().filter(|c| *c != '@');
        format!("{}***@{}", first.map(String::from).unwrap_or_default(), self.domain())
    }
}

// Addresses never reach a log (S-213).
impl fmt::Debug for EmailAddress {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("EmailAddress(..)")
    }
}

impl FromStr for EmailAddress {
    type Err = RecipientError;
    fn from_str(raw: &str) -> Result<Self, RecipientError> {
        if raw.is_empty() {
            return Err(RecipientError::Empty);
        }
        if raw.chars().any(char::is_control) {
            return Err(RecipientError::ControlCharacter);
        }
        let at = last_unquoted(raw, '@')?.ok_or(RecipientError::NoAt)?;
        let (local, domain) = (&raw[..at], &raw[at + 1..]);
        if local.len() > 64 {
            return Err(RecipientError::TooLong);
        }
        if !is_dot_atom(local) && unquote(local).is_none() {
            return Err(RecipientError::LocalPart);
        }
        let domain = to_a_labels(domain)?;
        let text = format!("{local}@{domain}");
        if text.len() > 254 {
            return Err(RecipientError::TooLong);
        }
        Ok(Self { text, at: local.len() })
    }
}

impl Serialize for EmailAddress {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.serialize_str(&self.text)
    }
}

impl<'de> Deserialize<'de> for EmailAddress {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let raw = std::borrow::Cow::<'de, str>::deserialize(deserializer)?;
        raw.parse().map_err(serde::de::Error::custom)
    }
}

/// One person's mailbox: an address and, perhaps, a name.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Mailbox {
    /// The display name in any script, without quotes or control characters.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub name: Option<String>,
    /// The address.
    pub email: EmailAddress,
}

impl Mailbox {
    /// A mailbox from its two parts, as `{"email", "name"}` gives them. Any printable name is fine.
    ///
    /// # Errors
    /// What is wrong with either part.
    pub fn new(email: &str, name: Option<&str>) -> Result<Self, RecipientError> {
        let name = name.map(str::trim).filter(|name| !name.is_empty());
        if let Some(name) = name {
            if name.chars().any(char::is_control) {
                return Err(RecipientError::ControlCharacter);
            }
            if name.chars().count() > 255 {
                return Err(RecipientError::NameTooLong);
            }
        }
        Ok(Self { name: name.map(str::to_owned), email: email.parse()? })
    }
}

/// One JSON string is one mailbox: `ada@example.com`, `Ada <ada@example.com>` or `"Doe, Jane" <j@example.com>`.
impl FromStr for Mailbox {
    type Err = RecipientError;
    fn from_str(raw: &str) -> Result<Self, RecipientError> {
        let raw = raw.trim();
        if raw.chars().any(char::is_control) {
            return Err(RecipientError::ControlCharacter);
        }
        let Some(inner) = raw.strip_suffix('>') else {
            if last_unquoted(raw, ',')?.is_some() || last_unquoted(raw, ';')?.is_some() {
                return Err(RecipientError::SeveralMailboxes);
            }
            if last_unquoted(raw, '<')?.is_some() {
                return Err(RecipientError::Malformed);
            }
            return Self::new(raw, None);
        };
        let open = last_unquoted(inner, '<')?.ok_or(RecipientError::Malformed)?;
        let (phrase, email) = (inner[..open].trim(), &inner[open + 1..]);
        if last_unquoted(phrase, ',')?.is_some() || last_unquoted(phrase, ';')?.is_some() {
            return Err(RecipientError::SeveralMailboxes);
        }
        if last_unquoted(phrase, '<')?.is_some() || last_unquoted(phrase, '>')?.is_some() {
            return Err(RecipientError::Malformed);
        }
        match (phrase.is_empty(), unquote(phrase)) {
            (true, _) => Self::new(email, None),
            (false, Some(name)) => Self::new(email, Some(&name)),
            (false, None) if phrase.contains('"') => Err(RecipientError::Malformed),
            (false, None) => Self::new(email, Some(phrase)),
        }
    }
}

/// The byte position of the last `wanted` outside double quotes.
fn last_unquoted(text: &str, wanted: char) -> Result<Option<usize>, RecipientError> {
    let (mut quoted, mut escaped, mut found) = (false, false, None);
    for (position, c) in text.char_indices() {
        match c {
            _ if escaped => escaped = false,
            '\\' if quoted => escaped = true,
            '"' => quoted = !quoted,
            c if c == wanted && !quoted => found = Some(position),
            _ => {}
        }
    }
    if quoted { Err(RecipientError::Malformed) } else { Ok(found) }
}

/// The content of a quoted string, escapes undone; `None` where the text is not one quoted string.
fn unquote(text: &str) -> Option<String> {
    let inner = text.strip_prefix('"')?.strip_suffix('"').filter(|_| text.len() >= 2)?;
    let mut content = String::with_capacity(inner.len());
    let mut chars = inner.chars();
    while let Some(c) = chars.next() {
        match c {
            '\\' => content.push(chars.next()?),
            '"' => return None,
            c => content.push(c),
        }
    }
    Some(content)
}

/// RFC 5322 dot-atom, with letters of other scripts as RFC 6531 allows.
fn is_dot_atom(text: &str) -> bool {
    let atom = |part: &str| {
        !part.is_empty()
            && part
                .chars()
                .all(|c| if c.is_ascii() { c.is_ascii_alphanumeric() || "!#$%&'*+-/=?^_`{|}~".contains(c) } else { !c.is_whitespace() })
    };
    text.split('.').all(atom)
}

/// The domain as lower-case A-labels (RFC 5890), at least two of them.
fn to_a_labels(domain: &str) -> Result<String, RecipientError> {
    let ascii = idna::domain_to_ascii_cow(domain.as_bytes(), idna::AsciiDenyList::STD3).map_err(|_| RecipientError::Domain)?;
    let label = |label: &str| {
        (1..=63).contains(&label.len())
            && label.bytes().all(|b| b.is_ascii_alphanumeric() || b == b'-')
            && !label.starts_with('-')
            && !label.ends_with('-')
    };
    let top = ascii.rsplit('.').next().unwrap_or_default();
    let named = ascii.contains('.') && ascii.len() <= 253 && ascii.split('.').all(label) && !top.bytes().all(|b| b.is_ascii_digit());
    if named { Ok(ascii.into_owned()) } else { Err(RecipientError::Domain) }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn mailbox(raw: &str) -> Result<(Option<String>, String), RecipientError> {
        raw.parse::<Mailbox>().map(|m| (m.name, m.email.as_str().to_owned()))
    }

    #[test]
    fn mailboxes_are_read_as_people_write_them() {
        let named = |name: &str, email: &str| Ok((Some(name.to_owned()), email.to_owned()));
        assert_eq!(mailbox("ada@example.com"), Ok((None, "ada@example.com".into())));
        assert_eq!(mailbox(" <ada@example.com> "), Ok((None, "ada@example.com".into())));
        assert_eq!(mailbox("Ada Lovelace <ada@example.com>"), named("Ada Lovelace", "ada@example.com"));
        assert_eq!(mailbox("\"Doe, Jane\" <j@example.com>"), named("Doe, Jane", "j@example.com"));
        assert_eq!(mailbox("渡辺 <w@例え.テスト>"), named("渡辺", "w@xn--r8jz45g.xn--zckzah"));
        assert_eq!(mailbox("\"say \\\"hi\\\"\" <a@example.com>"), named("say \"hi\"", "a@example.com"));
    }

    #[test]
    fn one_string_is_one_mailbox() {
        for raw in ["Doe, Jane <j@example.com>", "a@example.com, b@example.com", "a@example.com;b@example.com"] {
            assert_eq!(mailbox(raw), Err(RecipientError::SeveralMailboxes), "{raw}");
        }
        for raw in ["<a@example.com> b", "a <b <c@example.com>", "\"a <b@example.com>", "a\"b\" <c@example.com>", "> <a@example.com>"] {
            assert_eq!(mailbox(raw), Err(RecipientError::Malformed), "{raw}");
        }
    }

    #[test]
    fn idna_touches_the_domain_only() {
        let address: EmailAddress = "A.Lovelace+TH@Exämple.com".parse().unwrap();
        assert_eq!(address.as_str(), "A.Lovelace+TH@xn--exmple-cua.com");
        assert_eq!(address.canonical(), "a.lovelace+th@xn--exmple-cua.com");
        assert_eq!(address.masked(), "A***@xn--exmple-cua.com");
    }

    #[test]
    fn the_domain_is_what_follows_the_last_unquoted_at() {
        let address: EmailAddress = "\"victim@gmail.com x\"@internal.example".parse().unwrap();
        assert_eq!((address.domain(), address.local_part()), ("internal.example", "\"victim@gmail.com x\""));
        let (quoted, plain): (EmailAddress, EmailAddress) = ("\"Ada\"@example.com".parse().unwrap(), "ada@EXAMPLE.com".parse().unwrap());
        assert_eq!(quoted.canonical(), plain.canonical());
    }

    #[test]
    fn what_is_not_an_address_says_why() {
        use RecipientError::*;
        let long = format!("{}@example.com", "a".repeat(65));
        for (raw, why) in [
            ("", Empty),
            ("ada", NoAt),
            ("ada@", Domain),
            ("@example.com", LocalPart),
            ("a..b@example.com", LocalPart),
            ("a b@example.com", LocalPart),
            ("ada@localhost", Domain),
            ("ada@[127.0.0.1]", Domain),
            ("ada@127.0.0.1", Domain),
            ("ada@exam ple.com", Domain),
            ("ada@-x.com", Domain),
            ("ada@example..com", Domain),
            ("a\r\nBcc: x@example.com", ControlCharacter),
            ("a\0@example.com", ControlCharacter),
            (&long, TooLong),
        ] {
            assert_eq!(raw.parse::<EmailAddress>(), Err(why), "{raw:?}");
        }
    }

    proptest! {
        #[test]
        fn no_text_panics_and_what_is_taken_is_safe_in_an_envelope(raw in "\\PC{0,40}|[a-zA-Z@\"<>,.;\\\\ é]{0,30}|.{0,30}") {
            if let Ok(mailbox) = raw.parse::<Mailbox>() {
                let text = mailbox.email.as_str();
                prop_assert!(!text.chars().any(|c| c.is_control()));
                prop_assert!(mailbox.email.domain().is_ascii());
                prop_assert_eq!(text.parse::<EmailAddress>().map(|a| a.canonical()), Ok(mailbox.email.canonical()));
            }
        }
    }
}
