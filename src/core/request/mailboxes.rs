//! Mailboxes as requests write them: a string or `{"email", "name"}`, one or a list.
//! What an address is is decided in `address`.

use crate::address::{Mailbox, RecipientError};
use crate::fault::{Fault, FaultCode, Faults};
use crate::json::Json;
use crate::pointer::Pointer;

use super::fields::{Fields, Shape, wrong_type};

const SHAPE: Shape = Shape { known: &["email", "name"], later: &[] };

/// One value or a list of them, each with its place.
pub(super) fn one_or_list<'j>(value: &'j Json<'j>) -> (&'j [Json<'j>], bool) {
    match value {
        Json::List(items) => (items, true),
        one => (std::slice::from_ref(one), false),
    }
}

/// Mailboxes of an email beside `to`.
pub(super) fn mailboxes(fields: &Fields<'_>, name: &str, limit: usize, faults: &mut Faults) -> Vec<Mailbox> {
    let Some(value) = fields.get(name) else { return Vec::new() };
    let (at, (items, is_list)) = (fields.at(name), one_or_list(value));
    if items.len() > limit {
        faults.push(Fault::new(&at, FaultCode::InvalidRecipient, format!("at most {limit} mailboxes")).over(limit, items.len()));
        return Vec::new();
    }
    let read = |(position, item)| if is_list { mailbox(item, &at.index(position), faults) } else { mailbox(item, &at, faults) };
    items.iter().enumerate().filter_map(read).collect()
}

/// One mailbox.
pub(super) fn mailbox(value: &Json<'_>, at: &Pointer<'_>, faults: &mut Faults) -> Option<Mailbox> {
    match value {
        Json::Text(text) => accept(text.parse(), at, faults),
        Json::Object(_) => named(&Fields::open(value, at, &SHAPE, faults)?, faults),
        other => {
            faults.push(wrong_type(at, "a mailbox (\"ada@example.com\", \"Ada <ada@example.com>\" or {\"email\", \"name\"})", other));
            None
        }
    }
}

/// A mailbox from the fields `email` and `name`.
pub(super) fn named(fields: &Fields<'_>, faults: &mut Faults) -> Option<Mailbox> {
    let name = fields.text("name", faults);
    if fields.get("email").is_none() {
        faults.add(&fields.at("email"), FaultCode::InvalidRecipient, RecipientError::Empty.to_string());
        return None;
    }
    let email = fields.text("email", faults)?;
    if let Ok(mailbox) = Mailbox::new(email, name) {
        return Some(mailbox);
    }
    // Each part is judged beside one that is certainly fine, so that both faults show.
    accept(Mailbox::new(email, None), &fields.at("email"), faults);
    accept(Mailbox::new("fine@example.com", name), &fields.at("name"), faults);
    None
}

fn accept(read: Result<Mailbox, RecipientError>, at: &Pointer<'_>, faults: &mut Faults) -> Option<Mailbox> {
    read.map_err(|err| faults.add(at, FaultCode::InvalidRecipient, err.to_string())).ok()
}
