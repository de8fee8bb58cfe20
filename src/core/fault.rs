//! What is wrong with a request body: where, which rule, and what would be right. Never what was written there.
//! Which HTTP status a code becomes is the gateway's business.

use serde::Serialize;

use crate::pointer::Pointer;
use crate::words::words;

/// More faults than this help nobody; further ones are left out, so that an answer stays small.
const MAX_FAULTS: usize = 100;

words! {
    /// The rule that a request body breaks.
    pub enum FaultCode {
        InvalidJson = "invalid_json", UnknownField = "unknown_field", InvalidField = "invalid_field",
        InvalidRecipient = "invalid_recipient", InvalidContent = "invalid_content", UnknownCategory = "unknown_category",
        NoRoute = "no_route", RecipientNotAllowed = "recipient_not_allowed", DestinationNotAllowed = "destination_not_allowed",
        SendAtPast = "send_at_past", SendAtTooFar = "send_at_too_far", ExpiresAtTooFar = "expires_at_too_far",
        PayloadTooLarge = "payload_too_large", InvalidConfiguration = "invalid_configuration",
    }
}

impl FaultCode {
    /// Whether the body is not a request at all, as opposed to a request that cannot be fulfilled.
    pub const fn is_malformed(self) -> bool {
        match self {
            Self::InvalidJson | Self::UnknownField => true,
            Self::InvalidField
            | Self::InvalidRecipient
            | Self::InvalidContent
            | Self::UnknownCategory
            | Self::NoRoute
            | Self::RecipientNotAllowed
            | Self::DestinationNotAllowed
            | Self::SendAtPast
            | Self::SendAtTooFar
            | Self::ExpiresAtTooFar
            | Self::PayloadTooLarge
            | Self::InvalidConfiguration => false,
        }
    }
}

/// One thing that is wrong, in the form in which answers show it.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct Fault {
    /// Where: RFC 6901, from the root of the document. A missing field is named as if it were there.
    pub pointer: String,
    /// Which rule.
    pub code: FaultCode,
    /// What is wrong and what would be right, in words, without the value.
    pub detail: String,
    /// The limit that is broken, where there is one.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub limit: Option<u64>,
    /// What was found instead.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub actual: Option<u64>,
}

impl Fault {
    /// A fault without numbers.
    pub fn new(at: &Pointer<'_>, code: FaultCode, detail: impl Into<String>) -> Self {
        Self { pointer: at.to_string(), code, detail: detail.into(), limit: None, actual: None }
    }

    /// The same fault with the limit that is broken and what was found.
    #[must_use]
    pub fn over(self, limit: usize, actual: usize) -> Self {
        let number = |n| u64::try_from(n).unwrap_or(u64::MAX);
        Self { limit: Some(number(limit)), actual: Some(number(actual)), ..self }
    }
}

/// Everything that is wrong with a body, malformed first, else in the order in which it was found.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Faults(Vec<Fault>);

impl Faults {
    /// Nothing wrong yet.
    pub const fn new() -> Self {
        Self(Vec::new())
    }

    /// Whether another fault of this code is still taken: a malformed one takes the place of another kind.
    pub fn has_room_for(&self, code: FaultCode) -> bool {
        self.0.len() < MAX_FAULTS || (code.is_malformed() && self.0.last().is_some_and(|last| !last.code.is_malformed()))
    }

    /// Adds a fault, if there is room.
    pub fn push(&mut self, fault: Fault) {
        if !self.has_room_for(fault.code) {
            return;
        }
        self.0.truncate(MAX_FAULTS - 1);
        let place = if fault.code.is_malformed() { self.0.partition_point(|other| other.code.is_malformed()) } else { self.0.len() };
        self.0.insert(place, fault);
    }

    /// Adds a fault without numbers.
    pub fn add(&mut self, at: &Pointer<'_>, code: FaultCode, detail: impl Into<String>) {
        self.push(Fault::new(at, code, detail));
    }

    /// The same faults of something that stands at `at` in a larger document.
    #[must_use]
    pub fn within(mut self, at: &Pointer<'_>) -> Self {
        let prefix = at.to_string();
        self.0.iter_mut().for_each(|fault| fault.pointer.insert_str(0, &prefix));
        self
    }

    /// Whether nothing is wrong.
    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// The faults; the first one decides code and status of the answer.
    pub fn as_slice(&self) -> &[Fault] {
        &self.0
    }
}

impl From<Fault> for Faults {
    fn from(fault: Fault) -> Self {
        Self(vec![fault])
    }
}

impl Extend<Fault> for Faults {
    fn extend<I: IntoIterator<Item = Fault>>(&mut self, faults: I) {
        faults.into_iter().for_each(|fault| self.push(fault));
    }
}

impl IntoIterator for Faults {
    type Item = Fault;
    type IntoIter = std::vec::IntoIter<Fault>;
    fn into_iter(self) -> Self::IntoIter {
        self.0.into_iter()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn malformed_comes_before_invalid_and_either_keeps_its_order() {
        let mut faults = Faults::new();
        for (place, code) in
            [FaultCode::InvalidField, FaultCode::UnknownField, FaultCode::InvalidContent, FaultCode::InvalidJson].iter().enumerate()
        {
            faults.add(&Pointer::ROOT.index(place), *code, "wrong");
        }
        let pointers: Vec<_> = faults.as_slice().iter().map(|fault| fault.pointer.as_str()).collect();
        assert_eq!(pointers, ["/1", "/3", "/0", "/2"]);
    }

    #[test]
    fn faults_are_bounded_and_a_malformed_one_is_never_crowded_out() {
        let mut faults = Faults::new();
        for place in 0..1_000 {
            faults.add(&Pointer::ROOT.index(place), FaultCode::InvalidField, "wrong");
        }
        faults.add(&Pointer::ROOT, FaultCode::UnknownField, "wrong");
        assert_eq!(faults.as_slice().len(), MAX_FAULTS);
        assert_eq!(faults.as_slice()[0].code, FaultCode::UnknownField);
        assert!(!faults.has_room_for(FaultCode::InvalidField) && faults.has_room_for(FaultCode::UnknownField));
    }
}
