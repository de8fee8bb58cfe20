//! Takes an object apart by name: what is known, what comes later, what nobody knows. Absent and `null` are the same.

use std::borrow::Cow;

use crate::fault::{Fault, FaultCode, Faults};
use crate::json::Json;
use crate::nearest::nearest;
use crate::pointer::Pointer;

/// What an object may hold.
pub(super) struct Shape {
    /// The names that are read.
    pub(super) known: &'static [&'static str],
    /// Names of the contract that this version does not serve: refused unless `null`, never accepted and ignored.
    pub(super) later: &'static [&'static str],
}

/// Facts that are the server's to set (S-015).
const SERVER_OWNED: &[&str] = &[
    "id",
    "tenant",
    "tenant_id",
    "mode",
    "status",
    "state",
    "open",
    "version",
    "class",
    "attempt",
    "attempts",
    "provider",
    "account",
    "created_at",
    "updated_at",
    "deliveries",
    "delivery_id",
    "notification_id",
    "status_url",
];

/// An object whose names have been checked.
pub(super) struct Fields<'j> {
    members: &'j [(Cow<'j, str>, Json<'j>)],
    at: &'j Pointer<'j>,
}

impl<'j> Fields<'j> {
    /// Opens an object and refuses every name that is not known. `None` where it is no object at all.
    pub(super) fn open(value: &'j Json<'j>, at: &'j Pointer<'j>, shape: &Shape, faults: &mut Faults) -> Option<Self> {
        let Json::Object(members) = value else {
            faults.push(wrong_type(at, "an object", value));
            return None;
        };
        for (name, value) in members.iter().filter(|(name, _)| !shape.known.contains(&&**name)) {
            let later = shape.later.contains(&&**name);
            if (later && *value == Json::Null) || !faults.has_room_for(FaultCode::UnknownField) {
                continue;
            }
            let detail = if later { "not available in this version of Tidings".to_owned() } else { why_unknown(name, shape) };
            faults.add(&at.name(name), FaultCode::UnknownField, detail);
        }
        Some(Self { members, at })
    }

    /// Where the field is, or would be.
    pub(super) const fn at(&self, name: &'j str) -> Pointer<'j> {
        self.at.name(name)
    }

    /// The value of a field that is there and not `null`.
    pub(super) fn get(&self, name: &str) -> Option<&'j Json<'j>> {
        self.members.iter().find(|(other, _)| other == name).map(|(_, value)| value).filter(|value| **value != Json::Null)
    }

    /// Whether the field is named, be it `null`.
    pub(super) fn names(&self, name: &str) -> bool {
        self.members.iter().any(|(other, _)| other == name)
    }

    /// The text of a field that is there; another type is a fault.
    pub(super) fn text(&self, name: &'j str, faults: &mut Faults) -> Option<&'j str> {
        self.get(name).and_then(|value| text(value, &self.at(name), faults))
    }
}

fn why_unknown(name: &str, shape: &Shape) -> String {
    if name == "idempotency_key" {
        return "the key of a single notification is given by the header Idempotency-Key".to_owned();
    }
    if SERVER_OWNED.contains(&name) {
        return "set by the server, never by the caller".to_owned();
    }
    match nearest(name, shape.known.iter().copied()) {
        Some(known) => format!("there is no such field; did you mean \"{known}\"?"),
        None => "there is no such field".to_owned(),
    }
}

/// The text of a value; another type is a fault.
pub(super) fn text<'j>(value: &'j Json<'j>, at: &Pointer<'_>, faults: &mut Faults) -> Option<&'j str> {
    match value {
        Json::Text(text) => Some(text),
        other => {
            faults.push(wrong_type(at, "a string", other));
            None
        }
    }
}

/// The elements of a list; another type is a fault.
pub(super) fn list<'j>(value: &'j Json<'j>, at: &Pointer<'_>, faults: &mut Faults) -> &'j [Json<'j>] {
    match value {
        Json::List(items) => items,
        other => {
            faults.push(wrong_type(at, "a list", other));
            &[]
        }
    }
}

/// The members of an object that maps strings to strings, `null` ones left out; another type is a fault.
pub(super) fn texts<'j>(value: &'j Json<'j>, at: &Pointer<'_>, faults: &mut Faults) -> Vec<(&'j str, &'j str)> {
    let Json::Object(members) = value else {
        faults.push(wrong_type(at, "an object", value));
        return Vec::new();
    };
    members
        .iter()
        .filter(|(_, value)| *value != Json::Null)
        .filter_map(|(name, value)| text(value, &at.name(name), faults).map(|text| (&**name, text)))
        .collect()
}

/// `invalid_field`: a value of the wrong type.
pub(super) fn wrong_type(at: &Pointer<'_>, expected: &str, found: &Json<'_>) -> Fault {
    Fault::new(at, FaultCode::InvalidField, format!("expected {expected}, not {}", found.kind()))
}

/// Whether `text` has 1 to 64 characters of `[A-Za-z0-9_.:-]`: a tag, or a name that the configuration gives.
pub(super) fn is_label(text: &str) -> bool {
    (1..=64).contains(&text.len()) && text.bytes().all(|b| b.is_ascii_alphanumeric() || matches!(b, b'_' | b'.' | b':' | b'-'))
}
