//! Addresses that are not to be written to, as requests name them: items to add, one to look up, the reason to remove one.
//! Which names of senders there are is the caller's to know.

use crate::address::EmailAddress;
use crate::fault::{Fault, FaultCode, Faults};
use crate::json::{self, Json};
use crate::pointer::Pointer;
use crate::suppression::{SuppressionReason, SuppressionScope, is_suppressible};
use crate::words::Channel;

use super::fields::{Fields, Shape, list};

/// The most items of one request.
const MOST_ITEMS: usize = 1_000;
/// The longest remark or reason, in characters.
const LONGEST_REMARK: usize = 500;

const ADD: Shape = Shape { known: &["items"], later: &[] };
const ITEM: Shape = Shape { known: &["address", "channel", "reason", "scope", "note"], later: &["expires_at", "expires_in"] };
const LOOKUP: Shape = Shape { known: &["address", "channel"], later: &[] };
const REMOVE: Shape = Shape { known: &["reason"], later: &[] };

/// Reasons that somebody may give; the others are found out.
const GIVEN: &[SuppressionReason] = &[
    SuppressionReason::Manual,
    SuppressionReason::HardBounce,
    SuppressionReason::SoftBounce,
    SuppressionReason::Complaint,
    SuppressionReason::Unsubscribe,
    SuppressionReason::Stop,
    SuppressionReason::ProviderSuppressed,
];

/// One address that is not to be written to any more.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Suppress {
    /// The medium.
    pub channel: Channel,
    /// The address.
    pub address: EmailAddress,
    /// Why.
    pub reason: SuppressionReason,
    /// How far it reaches.
    pub scope: SuppressionScope,
    /// A remark for people.
    pub note: Option<String>,
}

/// Reads the items of a request, each with its own faults; pointers count from the root. `sender` gives the canonical
/// author address behind a name, or says what is wrong with it.
///
/// # Errors
/// What is wrong with the request as a whole.
pub fn parse_suppressions(body: &[u8], sender: impl Fn(&str) -> Result<String, String>) -> Result<Vec<Result<Suppress, Faults>>, Faults> {
    let document = json::parse(body)?;
    let mut faults = Faults::new();
    let Some(fields) = Fields::open(&document, &Pointer::ROOT, &ADD, &mut faults) else { return Err(faults) };
    let at = fields.at("items");
    let items = match fields.get("items") {
        Some(items) => list(items, &at, &mut faults),
        None => &[],
    };
    if items.len() > MOST_ITEMS {
        let fault = Fault::new(&at, FaultCode::PayloadTooLarge, format!("at most {MOST_ITEMS} items in one request"));
        faults.push(fault.over(MOST_ITEMS, items.len()));
    } else if items.is_empty() && faults.is_empty() {
        faults.add(&at, FaultCode::InvalidField, "at least one item is needed, such as {\"address\": \"ada@example.com\"}");
    }
    if !faults.is_empty() {
        return Err(faults);
    }
    Ok(items.iter().enumerate().map(|(position, value)| item(value, &at.index(position), &sender)).collect())
}

fn item(value: &Json<'_>, at: &Pointer<'_>, sender: &impl Fn(&str) -> Result<String, String>) -> Result<Suppress, Faults> {
    let mut faults = Faults::new();
    let Some(fields) = Fields::open(value, at, &ITEM, &mut faults) else { return Err(faults) };
    let address = address(&fields, &mut faults);
    let channel = channel(&fields, &mut faults);
    let reason = reason(&fields, &mut faults);
    let scope = scope(&fields, reason, sender, &mut faults);
    let note = remark(&fields, "note", &mut faults);
    if let Some(address) = address.as_ref().filter(|address| !is_suppressible(address)) {
        let detail = format!("addresses at {} rehearse and are never suppressed", address.domain());
        faults.add(&fields.at("address"), FaultCode::InvalidRecipient, detail);
    }
    match (address, channel, reason, scope) {
        (Some(address), Some(channel), Some(reason), Some(scope)) if faults.is_empty() => {
            Ok(Suppress { channel, address, reason, scope, note: note.map(str::to_owned) })
        }
        _ => Err(faults),
    }
}

fn address(fields: &Fields<'_>, faults: &mut Faults) -> Option<EmailAddress> {
    let at = fields.at("address");
    if fields.get("address").is_none() {
        faults.add(&at, FaultCode::InvalidRecipient, "an address is missing");
        return None;
    }
    let text = fields.text("address", faults)?;
    text.parse().map_err(|err: crate::address::RecipientError| faults.add(&at, FaultCode::InvalidRecipient, err.to_string())).ok()
}

fn channel(fields: &Fields<'_>, faults: &mut Faults) -> Option<Channel> {
    if fields.get("channel").is_none() {
        return Some(Channel::Email);
    }
    match fields.text("channel", faults)?.parse() {
        Ok(Channel::Email) => Some(Channel::Email),
        Ok(Channel::Sms | Channel::Push) => {
            faults.add(&fields.at("channel"), FaultCode::InvalidField, "only email is available in this version of Tidings");
            None
        }
        Err(_) => {
            faults.add(&fields.at("channel"), FaultCode::InvalidField, "expected \"email\"");
            None
        }
    }
}

fn reason(fields: &Fields<'_>, faults: &mut Faults) -> Option<SuppressionReason> {
    if fields.get("reason").is_none() {
        return Some(SuppressionReason::Manual);
    }
    let given = fields.text("reason", faults)?.parse().ok().filter(|reason| GIVEN.contains(reason));
    if given.is_none() {
        let words: Vec<&str> = GIVEN.iter().map(|reason| reason.as_str()).collect();
        faults.add(&fields.at("reason"), FaultCode::InvalidField, format!("expected one of {}", words.join(", ")));
    }
    given
}

fn scope(
    fields: &Fields<'_>,
    reason: Option<SuppressionReason>,
    sender: &impl Fn(&str) -> Result<String, String>,
    faults: &mut Faults,
) -> Option<SuppressionScope> {
    if fields.get("scope").is_none() {
        return reason.map(SuppressionReason::usual_scope);
    }
    let word = fields.text("scope", faults)?;
    match parse_scope(word, sender) {
        // What follows from a complaint; nobody else asks for it.
        Ok(SuppressionScope::Complaint) if reason.is_some_and(|reason| reason != SuppressionReason::Complaint) => {
            faults.add(&fields.at("scope"), FaultCode::InvalidField, "the scope complaint goes with the reason complaint alone");
            None
        }
        Ok(scope) => Some(scope),
        Err(detail) => {
            faults.add(&fields.at("scope"), FaultCode::InvalidField, detail);
            None
        }
    }
}

/// A scope as it is written in requests: a sender stands there by its name, or by its address.
///
/// # Errors
/// What is wrong with it.
pub fn parse_scope(word: &str, sender: impl Fn(&str) -> Result<String, String>) -> Result<SuppressionScope, String> {
    match word {
        "all" => Ok(SuppressionScope::All),
        "bulk" => Ok(SuppressionScope::Bulk),
        "complaint" => Ok(SuppressionScope::Complaint),
        other => match other.strip_prefix("sender:") {
            Some(name) if name.contains('@') => {
                let address = name.parse::<EmailAddress>().map_err(|err| err.to_string())?;
                Ok(SuppressionScope::Sender(address.canonical()))
            }
            Some(name) => sender(name).map(SuppressionScope::Sender),
            None => Err("expected all, bulk or sender:NAME".to_owned()),
        },
    }
}

/// A text for people of bounded length on one line, where it is given.
fn remark<'f>(fields: &Fields<'f>, name: &'f str, faults: &mut Faults) -> Option<&'f str> {
    let text = fields.text(name, faults)?;
    if text.chars().any(char::is_control) {
        faults.add(&fields.at(name), FaultCode::InvalidField, "one line without control characters");
    }
    let length = text.chars().count();
    if length > LONGEST_REMARK {
        let fault = Fault::new(&fields.at(name), FaultCode::InvalidField, format!("at most {LONGEST_REMARK} characters"));
        faults.push(fault.over(LONGEST_REMARK, length));
    }
    Some(text)
}

/// Reads which address is to be looked up.
///
/// # Errors
/// Everything that is wrong with it.
pub fn parse_suppression_lookup(body: &[u8]) -> Result<(Channel, EmailAddress), Faults> {
    let document = json::parse(body)?;
    let mut faults = Faults::new();
    let Some(fields) = Fields::open(&document, &Pointer::ROOT, &LOOKUP, &mut faults) else { return Err(faults) };
    let (address, channel) = (address(&fields, &mut faults), channel(&fields, &mut faults));
    match (channel, address) {
        (Some(channel), Some(address)) if faults.is_empty() => Ok((channel, address)),
        _ => Err(faults),
    }
}

/// Reads why something is done: `{"reason": "..."}`, which must say something.
///
/// # Errors
/// Everything that is wrong with it.
pub fn parse_reason(body: &[u8]) -> Result<String, Faults> {
    let document = json::parse(body)?;
    let mut faults = Faults::new();
    let Some(fields) = Fields::open(&document, &Pointer::ROOT, &REMOVE, &mut faults) else { return Err(faults) };
    let reason = remark(&fields, "reason", &mut faults).unwrap_or_default().trim().to_owned();
    if reason.is_empty() && faults.is_empty() {
        faults.add(&fields.at("reason"), FaultCode::InvalidField, "say why: it is written to the audit log");
    }
    if faults.is_empty() { Ok(reason) } else { Err(faults) }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn sender(name: &str) -> Result<String, String> {
        if name == "shop" { Ok("shop@example.com".to_owned()) } else { Err("there is no such sender".to_owned()) }
    }

    fn parsed(body: &str) -> Vec<Result<Suppress, Vec<(String, String)>>> {
        let told = |faults: Faults| faults.as_slice().iter().map(|fault| (fault.pointer.clone(), fault.code.to_string())).collect();
        parse_suppressions(body.as_bytes(), sender).unwrap().into_iter().map(|item| item.map_err(told)).collect()
    }

    #[test]
    fn an_item_has_what_its_reason_usually_means() {
        let scopes = |body: &str| parsed(body).into_iter().map(|item| item.map(|item| item.scope).unwrap()).collect::<Vec<_>>();
        use SuppressionScope::{All, Bulk, Complaint, Sender};
        let body = r#"{"items": [{"address": "A@example.com"}, {"address": "b@example.com", "reason": "unsubscribe"},
            {"address": "c@example.com", "reason": "complaint"}, {"address": "d@example.com", "scope": "sender:shop"},
            {"address": "e@example.com", "scope": "sender:News@example.com"}]}"#;
        let author = |author: &str| Sender(author.to_owned());
        assert_eq!(scopes(body), [All, Bulk, Complaint, author("shop@example.com"), author("news@example.com")]);
        assert_eq!(parsed(body)[0].as_ref().unwrap().reason, SuppressionReason::Manual);
    }

    #[test]
    fn each_item_tells_its_own_faults_and_spares_the_others() {
        let body = r#"{"items": [{"address": "a@example.com"}, {"address": "nobody", "reason": "erased", "scope": "sender:news", "no": 1}, "x",
            {"address": "bounce@sandbox.test"}, {"address": "b@example.com", "channel": "sms"}, {"address": "c@example.com", "scope": "complaint"}]}"#;
        let items = parsed(body);
        assert!(items[0].is_ok());
        let pointers =
            |index: usize| items[index].as_ref().unwrap_err().iter().map(|(at, code)| format!("{at} {code}")).collect::<Vec<_>>();
        assert_eq!(
            pointers(1),
            [
                "/items/1/no unknown_field",
                "/items/1/address invalid_recipient",
                "/items/1/reason invalid_field",
                "/items/1/scope invalid_field"
            ]
        );
        assert_eq!(pointers(2), ["/items/2 invalid_field"]);
        assert_eq!(pointers(3), ["/items/3/address invalid_recipient"]);
        assert_eq!(pointers(4), ["/items/4/channel invalid_field"]);
        assert_eq!(pointers(5), ["/items/5/scope invalid_field"]);
    }

    #[test]
    fn the_whole_is_refused_for_what_is_no_list_of_items() {
        for body in ["{}", r#"{"items": []}"#, r#"{"items": {}}"#, r#"{"item": []}"#, "[]", r#"{"items": [], "items": []}"#] {
            assert!(parse_suppressions(body.as_bytes(), sender).is_err(), "{body}");
        }
        let many = format!(r#"{{"items": [{}]}}"#, vec![r#"{"address": "a@example.com"}"#; MOST_ITEMS + 1].join(","));
        let fault = parse_suppressions(many.as_bytes(), sender).unwrap_err().as_slice()[0].clone();
        assert_eq!((fault.code, fault.limit, fault.actual), (FaultCode::PayloadTooLarge, Some(1_000), Some(1_001)));
    }

    #[test]
    fn a_removal_says_why() {
        assert_eq!(parse_reason(br#"{"reason": " asked for it "}"#), Ok("asked for it".to_owned()));
        for body in [r#"{"reason": " "}"#, "{}", r#"{"reason": 1}"#, r#"{"reason": "a\nb"}"#] {
            assert!(parse_reason(body.as_bytes()).is_err(), "{body}");
        }
    }
}
