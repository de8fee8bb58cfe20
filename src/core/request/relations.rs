//! Keys that relate notifications to each other: `ordering_key` and `collapse_key` (S-076, S-079).

use crate::fault::{Fault, FaultCode, Faults};

use super::fields::Fields;

const LONGEST: usize = 128;

/// What goes out one after the other cannot also go at a time of its own.
pub(super) fn ordering_key(fields: &Fields<'_>, faults: &mut Faults) -> Option<String> {
    let key = key(fields, "ordering_key", faults)?;
    if let Some(time) = ["send_at", "send_in"].into_iter().find(|time| fields.get(time).is_some()) {
        faults.add(&fields.at(time), FaultCode::InvalidField, "what has an ordering_key is sent in its turn, not at a time of its own");
    }
    Some(key)
}

/// A key of 1 to 128 characters.
pub(super) fn key<'j>(fields: &Fields<'j>, name: &'j str, faults: &mut Faults) -> Option<String> {
    let key = fields.text(name, faults)?;
    let length = key.chars().count();
    if length == 0 || length > LONGEST {
        let fault = Fault::new(&fields.at(name), FaultCode::InvalidField, format!("a key has 1 to {LONGEST} characters"));
        faults.push(if length == 0 { fault } else { fault.over(LONGEST, length) });
    }
    Some(key.to_owned())
}
