//! Headers of the application's own. Those that Tidings or the mail system writes are refused, so that no message has one
//! twice and none of ours is replaced.

use std::collections::HashSet;

use crate::fault::{Fault, FaultCode, Faults};
use crate::json::Json;
use crate::pointer::Pointer;

use super::fields::texts;

const MAX_HEADERS: usize = 50;
const MAX_NAME: usize = 76;
/// A line without its end (RFC 5322 section 2.1.1).
const MAX_VALUE: usize = 998;

const OURS: &[&str] = &[
    "message-id",
    "date",
    "from",
    "to",
    "cc",
    "bcc",
    "subject",
    "reply-to",
    "sender",
    "mime-version",
    "dkim-signature",
    "return-path",
    "received",
    "x-delivery-id",
];
const OUR_PREFIXES: &[&str] = &["content-", "resent-"];

/// Reads `headers`, in the caller's order.
pub(super) fn headers(value: &Json<'_>, at: &Pointer<'_>, faults: &mut Faults) -> Vec<(String, String)> {
    let pairs = texts(value, at, faults);
    if pairs.len() > MAX_HEADERS {
        faults.push(Fault::new(at, FaultCode::InvalidContent, format!("at most {MAX_HEADERS} headers")).over(MAX_HEADERS, pairs.len()));
        return Vec::new();
    }
    let mut seen = HashSet::with_capacity(pairs.len());
    for (name, value) in &pairs {
        let at = at.name(name);
        let folded = name.to_ascii_lowercase();
        if let Err(why) = check_name(&folded) {
            faults.add(&at, FaultCode::InvalidContent, why);
        } else if !seen.insert(folded) {
            faults.add(&at, FaultCode::InvalidContent, "the header is given twice; letter case makes no difference");
        }
        if value.trim().is_empty() || value.chars().any(|c| c.is_control() && c != '\t') {
            faults.add(&at, FaultCode::InvalidContent, "a value is one line of text, not empty and without control characters");
        }
        if value.len() > MAX_VALUE {
            let detail = format!("a value has at most {MAX_VALUE} bytes");
            faults.push(Fault::new(&at, FaultCode::InvalidContent, detail).over(MAX_VALUE, value.len()));
        }
    }
    pairs.into_iter().map(|(name, value)| (name.to_owned(), value.to_owned())).collect()
}

fn check_name(folded: &str) -> Result<(), &'static str> {
    // RFC 5322 ftext: visible ASCII but the colon.
    if !(1..=MAX_NAME).contains(&folded.len()) || !folded.bytes().all(|b| b.is_ascii_graphic() && b != b':') {
        return Err("the name of a header is 1 to 76 visible ASCII characters without a colon");
    }
    if OURS.contains(&folded) || OUR_PREFIXES.iter().any(|prefix| folded.starts_with(prefix)) {
        return Err("Tidings writes this header itself, or leaves it to the mail system; use the field of that meaning, if there is one");
    }
    Ok(())
}
