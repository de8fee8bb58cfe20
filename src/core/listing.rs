//! Which notifications a filtered list shows, from the facts about each. In which order they are looked at, and how many
//! at a time, is the reader's business; what is sealed is matched by digest or after it was opened.

use crate::ids::NotificationId;
use crate::secrets::DIGEST_LEN;
use crate::state::State;
use crate::status::Status;
use crate::words::{Channel, Mode};

/// What a notification must be to be shown; everything that is named must hold.
#[derive(Debug, Clone, Default, PartialEq, Eq, serde::Serialize)]
pub struct ListFilter {
    /// How it stands as a whole.
    pub status: Option<Status>,
    /// The application's name for its kind.
    pub category: Option<String>,
    /// One of its tags.
    pub tag: Option<String>,
    /// The digest of the caller's name for one of its recipients.
    pub ref_digest: Option<Vec<u8>>,
    /// The state of a delivery of it. `channel` and `address_digest` must hold for the same one.
    pub state: Option<State>,
    /// The channel of a delivery of it.
    pub channel: Option<Channel>,
    /// The digest of the address of a delivery of it.
    pub address_digest: Option<Vec<u8>>,
}

/// What is known of a notification before it is read as a whole.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Seen {
    /// Its identity.
    pub id: NotificationId,
    /// Live or test.
    pub mode: Mode,
    /// The application's name for its kind.
    pub category: String,
    /// In the caller's order.
    pub tags: Vec<String>,
    /// The digests of the caller's names for its recipients, end to end.
    pub ref_digest: Option<Vec<u8>>,
    /// Sealed metadata, where it was asked for.
    pub metadata: Option<Vec<u8>>,
    /// How many deliveries it has.
    pub delivery_count: u16,
    /// Its deliveries, where they were asked for.
    pub deliveries: Vec<SeenDelivery>,
}

/// What is known of a delivery.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct SeenDelivery {
    /// The medium.
    pub channel: Channel,
    /// Where it stands.
    pub state: State,
    /// What its address is matched by.
    pub address_digest: Vec<u8>,
}

impl ListFilter {
    /// Whether deliveries have to be looked at.
    pub const fn asks_of_deliveries(&self) -> bool {
        self.status.is_some() || self.asks_of_one_delivery()
    }

    const fn asks_of_one_delivery(&self) -> bool {
        self.state.is_some() || self.channel.is_some() || self.address_digest.is_some()
    }

    /// Whether the notification is shown.
    pub fn fits(&self, seen: &Seen) -> bool {
        is_or_open(self.category.as_ref(), &seen.category)
            && self.tag.as_ref().is_none_or(|tag| seen.tags.contains(tag))
            && self.ref_digest.as_ref().is_none_or(|digest| has_digest(seen.ref_digest.as_deref(), digest))
            && (!self.asks_of_one_delivery() || seen.deliveries.iter().any(|delivery| self.fits_delivery(delivery)))
            && self.status.is_none_or(|status| Status::of(seen.deliveries.iter().map(|delivery| delivery.state)) == status)
    }

    fn fits_delivery(&self, delivery: &SeenDelivery) -> bool {
        is_or_open(self.state.as_ref(), &delivery.state)
            && is_or_open(self.channel.as_ref(), &delivery.channel)
            && is_or_open(self.address_digest.as_ref(), &delivery.address_digest)
    }
}

fn is_or_open<T: PartialEq>(asked: Option<&T>, is: &T) -> bool {
    asked.is_none_or(|asked| asked == is)
}

fn has_digest(digests: Option<&[u8]>, digest: &[u8]) -> bool {
    digests.is_some_and(|digests| digests.chunks_exact(DIGEST_LEN).any(|own| own == digest))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::time::Timestamp;

    fn delivery(channel: Channel, state: State, digest: u8) -> SeenDelivery {
        SeenDelivery { channel, state, address_digest: vec![digest; DIGEST_LEN] }
    }

    fn seen() -> Seen {
        Seen {
            id: NotificationId::new(Timestamp::from_millis(1), [1; 10]),
            mode: Mode::Live,
            category: "receipt".to_owned(),
            tags: vec!["a".to_owned(), "b".to_owned()],
            ref_digest: Some([[1; DIGEST_LEN], [2; DIGEST_LEN]].concat()),
            metadata: None,
            delivery_count: 2,
            deliveries: vec![delivery(Channel::Email, State::Delivered, 7), delivery(Channel::Sms, State::Bounced, 8)],
        }
    }

    #[test]
    fn everything_that_is_named_must_hold() {
        let any = ListFilter::default();
        assert!(any.fits(&seen()) && !any.asks_of_deliveries());
        let text = |text: &str| Some(text.to_owned());
        for (filter, fits) in [
            (ListFilter { category: text("receipt"), tag: text("b"), ..any.clone() }, true),
            (ListFilter { category: text("receipt"), tag: text("c"), ..any.clone() }, false),
            (ListFilter { category: text("Receipt"), ..any.clone() }, false),
            (ListFilter { ref_digest: Some(vec![2; DIGEST_LEN]), ..any.clone() }, true),
            (ListFilter { ref_digest: Some(vec![3; DIGEST_LEN]), ..any.clone() }, false),
            (ListFilter { status: Some(Status::PartiallyFailed), ..any.clone() }, true),
            (ListFilter { status: Some(Status::Delivered), ..any.clone() }, false),
            (ListFilter { state: Some(State::Bounced), status: Some(Status::PartiallyFailed), ..any.clone() }, true),
        ] {
            assert_eq!(filter.fits(&seen()), fits, "{filter:?}");
        }
    }

    #[test]
    fn state_channel_and_address_are_those_of_one_delivery() {
        let of = |channel, state, digest: Option<u8>| ListFilter {
            channel,
            state,
            address_digest: digest.map(|digest| vec![digest; DIGEST_LEN]),
            ..ListFilter::default()
        };
        assert!(of(Some(Channel::Sms), Some(State::Bounced), Some(8)).fits(&seen()));
        assert!(!of(Some(Channel::Email), Some(State::Bounced), None).fits(&seen()));
        assert!(!of(None, Some(State::Delivered), Some(8)).fits(&seen()));
    }

    #[test]
    fn a_digest_is_not_found_across_two_others() {
        let mut digests = vec![0; DIGEST_LEN * 2];
        digests[1..=DIGEST_LEN].fill(9);
        let seen = Seen { ref_digest: Some(digests), ..seen() };
        assert!(!ListFilter { ref_digest: Some(vec![9; DIGEST_LEN]), ..ListFilter::default() }.fits(&seen));
    }
}
