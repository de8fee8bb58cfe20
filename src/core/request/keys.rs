//! API keys, as requests ask for them: a new one, or how long an old one stays beside its successor.

use std::time::Duration;

use crate::fault::{Fault, FaultCode, Faults};
use crate::json;
use crate::pointer::Pointer;
use crate::time::{Timestamp, parse_duration};

use super::fields::{Fields, Shape, list, text};

/// Everything that a key may be allowed to do.
pub const SCOPES: [&str; 6] = ["send", "send:critical", "read", "pii", "ops", "admin"];
/// What a key may be: `live` acts for real, `test` in the sandbox, `team` for real with the guest list alone.
pub const KINDS: [&str; 3] = ["live", "test", "team"];
/// What a key may do where nobody says otherwise.
const USUAL_SCOPES: [&str; 2] = ["send", "read"];
/// How long an old key stays where nobody says otherwise.
const USUAL_OVERLAP: Duration = Duration::from_secs(86_400);
/// Longer than this is no rotation.
const LONGEST_OVERLAP: Duration = Duration::from_secs(30 * 86_400);
const LONGEST_NAME: usize = 100;

const NEW: Shape = Shape { known: &["name", "kind", "scopes", "expires_at", "expires_in"], later: &[] };
const ROTATE: Shape = Shape { known: &["overlap"], later: &[] };
const NOTHING: Shape = Shape { known: &[], later: &[] };

/// A key that is asked for.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct NewKey {
    /// What people call it.
    pub name: String,
    /// `live`, `test` or `team`.
    pub kind: String,
    /// At least one.
    pub scopes: Vec<String>,
    /// Not valid from here on.
    pub expires_at: Option<Timestamp>,
}

/// Reads which key is asked for.
///
/// # Errors
/// Everything that is wrong with it.
pub fn parse_new_key(body: &[u8], now: Timestamp) -> Result<NewKey, Faults> {
    let document = json::parse(body)?;
    let mut faults = Faults::new();
    let Some(fields) = Fields::open(&document, &Pointer::ROOT, &NEW, &mut faults) else { return Err(faults) };
    let name = name(&fields, &mut faults);
    let kind = match fields.get("kind") {
        None => Some("live"),
        Some(_) => fields.text("kind", &mut faults).and_then(|kind| {
            let known = KINDS.contains(&kind).then_some(kind);
            if known.is_none() {
                faults.add(&fields.at("kind"), FaultCode::InvalidField, format!("expected one of {}", KINDS.join(", ")));
            }
            known
        }),
    };
    let scopes = scopes(&fields, &mut faults);
    let expires_at = expiry(&fields, now, &mut faults);
    match (name, kind, scopes) {
        (Some(name), Some(kind), Some(scopes)) if faults.is_empty() => {
            Ok(NewKey { name: name.to_owned(), kind: kind.to_owned(), scopes, expires_at })
        }
        _ => Err(faults),
    }
}

fn name<'f>(fields: &Fields<'f>, faults: &mut Faults) -> Option<&'f str> {
    let at = fields.at("name");
    if fields.get("name").is_none() {
        faults.add(&at, FaultCode::InvalidField, "a name is missing, such as that of the application that gets the key");
        return None;
    }
    let name = fields.text("name", faults)?;
    let length = name.chars().count();
    if name.trim().is_empty() || name.chars().any(char::is_control) {
        faults.add(&at, FaultCode::InvalidField, "one line that says something");
    }
    if length > LONGEST_NAME {
        faults.push(Fault::new(&at, FaultCode::InvalidField, format!("at most {LONGEST_NAME} characters")).over(LONGEST_NAME, length));
    }
    Some(name)
}

fn scopes(fields: &Fields<'_>, faults: &mut Faults) -> Option<Vec<String>> {
    let at = fields.at("scopes");
    let Some(value) = fields.get("scopes") else { return Some(USUAL_SCOPES.map(str::to_owned).to_vec()) };
    let mut scopes: Vec<String> = Vec::new();
    let items = list(value, &at, faults);
    for (position, item) in items.iter().enumerate() {
        let at = at.index(position);
        let Some(scope) = text(item, &at, faults) else { continue };
        if !SCOPES.contains(&scope) {
            faults.add(&at, FaultCode::InvalidField, format!("expected one of {}", SCOPES.join(", ")));
        } else if !scopes.iter().any(|own| own == scope) {
            scopes.push(scope.to_owned());
        }
    }
    if items.is_empty() {
        faults.add(&at, FaultCode::InvalidField, "a key without scopes can do nothing");
    }
    Some(scopes)
}

fn expiry(fields: &Fields<'_>, now: Timestamp, faults: &mut Faults) -> Option<Timestamp> {
    let at = fields.at("expires_at");
    let instant = match fields.get("expires_at").is_some() {
        true => {
            let raw = fields.text("expires_at", faults)?;
            raw.parse::<Timestamp>().map_err(|err| faults.add(&at, FaultCode::InvalidField, err.to_string())).ok()
        }
        false => None,
    };
    if fields.get("expires_in").is_none() {
        if instant.is_some_and(|instant| instant <= now) {
            faults.add(&at, FaultCode::InvalidField, "must lie ahead");
        }
        return instant;
    }
    if fields.get("expires_at").is_some() {
        faults.add(&fields.at("expires_in"), FaultCode::InvalidField, "expires_at is there too: give one of the two");
    }
    duration(fields, "expires_in", faults).map(|after| now.plus(after))
}

/// A duration longer than nothing.
fn duration<'f>(fields: &Fields<'f>, name: &'f str, faults: &mut Faults) -> Option<Duration> {
    let raw = fields.text(name, faults)?;
    match parse_duration(raw) {
        Ok(duration) if !duration.is_zero() => Some(duration),
        Ok(_) => {
            faults.add(&fields.at(name), FaultCode::InvalidField, "must be longer than 0s");
            None
        }
        Err(err) => {
            faults.add(&fields.at(name), FaultCode::InvalidField, err.to_string());
            None
        }
    }
}

/// Reads how long the old key stays in force beside the new one.
///
/// # Errors
/// Everything that is wrong with it.
pub fn parse_rotation(body: &[u8]) -> Result<Duration, Faults> {
    let document = json::parse(body)?;
    let mut faults = Faults::new();
    let Some(fields) = Fields::open(&document, &Pointer::ROOT, &ROTATE, &mut faults) else { return Err(faults) };
    let overlap = match fields.get("overlap") {
        None => Some(USUAL_OVERLAP),
        Some(_) => fields.text("overlap", &mut faults).and_then(|raw| {
            parse_duration(raw).map_err(|err| faults.add(&fields.at("overlap"), FaultCode::InvalidField, err.to_string())).ok()
        }),
    };
    if overlap.is_some_and(|overlap| overlap > LONGEST_OVERLAP) {
        faults.add(&fields.at("overlap"), FaultCode::InvalidField, "30d at most");
    }
    match overlap {
        Some(overlap) if faults.is_empty() => Ok(overlap),
        _ => Err(faults),
    }
}

/// Reads a body that has nothing to say: none at all, or an empty object.
///
/// # Errors
/// Everything that stands in it.
pub fn parse_nothing(body: &[u8]) -> Result<(), Faults> {
    if body.is_empty() {
        return Ok(());
    }
    let document = json::parse(body)?;
    let mut faults = Faults::new();
    let _ = Fields::open(&document, &Pointer::ROOT, &NOTHING, &mut faults);
    if faults.is_empty() { Ok(()) } else { Err(faults) }
}

#[cfg(test)]
mod tests {
    use super::*;

    const NOW: Timestamp = Timestamp::from_millis(1_800_000_000_000);

    fn faults(body: &str) -> Vec<String> {
        parse_new_key(body.as_bytes(), NOW).unwrap_err().as_slice().iter().map(|fault| fault.pointer.clone()).collect()
    }

    #[test]
    fn a_key_is_live_and_sends_and_reads_unless_it_says_otherwise() {
        let key = parse_new_key(br#"{"name": "shop"}"#, NOW).unwrap();
        assert_eq!((key.kind.as_str(), key.scopes.join(" "), key.expires_at), ("live", "send read".to_owned(), None));
        let key = parse_new_key(br#"{"name": "ci", "kind": "test", "scopes": ["pii", "pii"], "expires_in": "90d"}"#, NOW).unwrap();
        assert_eq!((key.kind.as_str(), key.scopes.join(" ")), ("test", "pii".to_owned()));
        assert_eq!(key.expires_at, Some(NOW.plus(Duration::from_secs(90 * 86_400))));
    }

    #[test]
    fn every_fault_of_a_new_key_is_told_at_its_place() {
        let body = r#"{"kind": "root", "scopes": ["send", "everything", 1], "expires_in": "soon", "tenant": "acme"}"#;
        assert_eq!(faults(body), ["/tenant", "/name", "/kind", "/scopes/1", "/scopes/2", "/expires_in"]);
        assert_eq!(faults(r#"{"name": "x", "scopes": []}"#), ["/scopes"]);
        assert_eq!(faults(r#"{"name": " ", "expires_at": "2020-01-01T00:00:00Z"}"#), ["/name", "/expires_at"]);
        assert_eq!(faults(r#"{"name": "x", "expires_at": "2100-01-01T00:00:00Z", "expires_in": "1d"}"#), ["/expires_in"]);
    }

    #[test]
    fn a_rotation_overlaps_a_day_unless_it_says_otherwise() {
        let overlap = |body: &str| parse_rotation(body.as_bytes()).map(|overlap| overlap.as_secs()).ok();
        assert_eq!(
            (overlap("{}"), overlap(r#"{"overlap": "0s"}"#), overlap(r#"{"overlap": "30d"}"#)),
            (Some(86_400), Some(0), Some(2_592_000))
        );
        assert_eq!((overlap(r#"{"overlap": "31d"}"#), overlap(r#"{"overlap": 1}"#), overlap(r#"{"over": "1h"}"#)), (None, None, None));
        assert!(parse_nothing(b"").is_ok() && parse_nothing(b"{}").is_ok() && parse_nothing(b"{\"a\": 1}").is_err());
    }
}
