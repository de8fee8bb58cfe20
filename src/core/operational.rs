//! Events that are about no delivery: suppressions, switches and the health of accounts. What each tells, and when there is
//! something to tell; how they are kept is the stores' business, how they look on the wire the gateway's.
//!
//! What one tells is fixed as JSON when it happens: flat and small, never an address, content or a secret.

use serde::Serialize;
use sha2::{Digest as _, Sha256};
use uuid::Uuid;

use crate::delivery::EventType;
use crate::ids::{DeliveryId, InstanceId, TenantId};
use crate::store::SwitchedBy;
use crate::suppression::SuppressionScope;
use crate::switches::Scope;
use crate::time::Timestamp;
use crate::words::Mode;

/// Whose events those are that concern the whole installation: no tenant has this number, and their mode is live.
pub const INSTALLATION: TenantId = TenantId(0);

/// Something that happened to anything but a delivery.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Occurrence {
    /// Whose feed tells it; `INSTALLATION` for those of operators.
    pub tenant: TenantId,
    /// Of which mode.
    pub mode: Mode,
    /// What happened.
    pub kind: EventType,
    /// When.
    pub at: Timestamp,
    /// The `data` of the event: a JSON object.
    pub data: String,
}

impl Occurrence {
    fn new(tenant: TenantId, mode: Mode, kind: EventType, at: Timestamp, data: &impl Serialize) -> Self {
        let data = serde_json::to_string(data).expect("texts and numbers always have a JSON form");
        Self { tenant, mode, kind, at, data }
    }

    /// The identity of the event: a UUIDv7 of its instant, told from others by what it says. Nothing random is needed, and
    /// the same occurrence has the same however often it is written.
    pub fn id(&self) -> Uuid {
        let whole = (self.tenant, self.mode, self.kind, self.at.as_micros(), &self.data);
        let digest = Sha256::digest(serde_json::to_vec(&whole).expect("texts and numbers always have a JSON form"));
        let mut unique = [0; 10];
        unique.copy_from_slice(&digest[..10]);
        uuid::Builder::from_unix_timestamp_millis(self.at.as_millis(), &unique).into_uuid()
    }
}

/// A suppression as far as it is told. Words that a newer binary wrote are told as they stand.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ToldSuppression {
    /// Which one.
    pub id: Uuid,
    /// Whose.
    pub tenant: TenantId,
    /// Live or test.
    pub mode: Mode,
    /// The medium.
    pub channel: String,
    /// Why.
    pub reason: String,
    /// How far it reaches, as it is stored.
    pub scope: String,
    /// Who said so.
    pub source: String,
    /// Not in force from here on.
    pub expires_at: Option<Timestamp>,
}

/// What led to a change of a suppression: a key, a refusal, or neither.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Cause {
    /// Whose key.
    pub actor: Option<String>,
    /// The delivery whose refusal it was.
    pub delivery: Option<DeliveryId>,
}

impl Cause {
    /// The refusal of a delivery.
    pub const fn of(delivery: DeliveryId) -> Self {
        Self { actor: None, delivery: Some(delivery) }
    }
}

#[derive(Serialize)]
struct SuppressionData<'a> {
    suppression_id: String,
    channel: &'a str,
    reason: &'a str,
    scope: &'a str,
    source: &'a str,
    expires_at: Option<String>,
    actor: Option<&'a str>,
    notification_id: Option<String>,
    delivery_id: Option<String>,
}

/// That a suppression was made, changed or removed. One that ends by its `expires_at` is not told: its end was.
pub fn of_suppression(kind: EventType, told: &ToldSuppression, cause: &Cause, at: Timestamp) -> Occurrence {
    // An author is an address: that it is about one is told, which one is in the list.
    let Ok(scope) = told.scope.parse();
    let data = SuppressionData {
        suppression_id: format!("sup_{}", told.id.simple()),
        channel: &told.channel,
        reason: &told.reason,
        scope: if matches!(scope, SuppressionScope::Sender(_)) { "sender" } else { &told.scope },
        source: &told.source,
        expires_at: told.expires_at.map(|at| at.to_string()),
        actor: cause.actor.as_deref(),
        notification_id: cause.delivery.map(|delivery| delivery.notification().to_string()),
        delivery_id: cause.delivery.map(|delivery| delivery.to_string()),
    };
    Occurrence::new(told.tenant, told.mode, kind, at, &data)
}

/// What a switch says: whether it stops anything, and until when.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Setting {
    /// Whether it stops anything.
    pub paused: bool,
    /// It stops nothing from here on.
    pub until: Option<Timestamp>,
}

#[derive(Serialize)]
struct SwitchData<'a> {
    scope: String,
    until: Option<String>,
    reason: Option<&'a str>,
    actor: &'a str,
}

/// What is told of a switch that was changed from `before` to `after`; `None` is no switch. Every pause is told, also one
/// that gives another a new end or reason; a resumption only where something was in force: a pause that ended by its `until`
/// was told with it.
pub fn of_switch(scope: &Scope, before: Option<Setting>, after: Option<Setting>, by: &SwitchedBy) -> Option<Occurrence> {
    let is_in_force = |setting: Setting| setting.paused && setting.until.is_none_or(|until| until > by.at);
    let (kind, until) = match after {
        Some(Setting { paused: true, until }) => (EventType::SwitchPaused, until),
        Some(Setting { paused: false, .. }) | None if before.is_some_and(is_in_force) => (EventType::SwitchResumed, None),
        Some(_) | None => return None,
    };
    let data = SwitchData {
        scope: scope.to_string(),
        until: until.map(|until| until.to_string()),
        reason: by.reason.as_deref(),
        actor: &by.actor,
    };
    Some(Occurrence::new(INSTALLATION, Mode::Live, kind, by.at, &data))
}

/// How an account is, as one process sees it, where that has changed.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Health {
    /// Its credential was refused: it takes nothing until it tries again, then.
    Parked(Timestamp),
    /// It takes messages again.
    Recovered,
}

#[derive(Serialize)]
struct AccountData<'a> {
    account: &'a str,
    reason: &'static str,
    until: Option<String>,
    instance: InstanceId,
}

/// That an account was parked or recovered, in this process: others learn it by themselves and tell their own.
pub fn of_account(account: &str, health: Health, instance: InstanceId, at: Timestamp) -> Occurrence {
    let (kind, until) = match health {
        Health::Parked(until) => (EventType::AccountParked, Some(until.to_string())),
        Health::Recovered => (EventType::AccountRecovered, None),
    };
    Occurrence::new(INSTALLATION, Mode::Live, kind, at, &AccountData { account, reason: "credential", until, instance })
}

#[cfg(test)]
mod tests {
    use super::*;

    const NOW: Timestamp = Timestamp::from_millis(1_800_000_000_000);
    const LATER: Timestamp = Timestamp::from_millis(1_800_000_060_000);

    fn told(scope: &str) -> ToldSuppression {
        let text = str::to_owned;
        ToldSuppression {
            id: Uuid::from_u128(7),
            tenant: TenantId(1),
            mode: Mode::Live,
            channel: text("email"),
            reason: text("manual"),
            scope: text(scope),
            source: text("api"),
            expires_at: None,
        }
    }

    #[test]
    fn the_author_of_a_senders_suppression_is_not_told() {
        let of = |scope: &str| of_suppression(EventType::SuppressionCreated, &told(scope), &Cause::default(), NOW).data;
        assert!(of("sender:shop@example.com").contains(r#""scope":"sender""#) && !of("sender:shop@example.com").contains('@'));
        assert!(of("bulk").contains(r#""scope":"bulk""#));
    }

    #[test]
    fn a_switch_tells_every_pause_and_the_end_of_what_was_in_force() {
        let by = SwitchedBy { actor: "key:key_1".to_owned(), reason: None, at: NOW };
        let kind = |before: Option<(bool, Option<Timestamp>)>, after: Option<(bool, Option<Timestamp>)>| {
            let setting = |(paused, until)| Setting { paused, until };
            of_switch(&Scope::All, before.map(setting), after.map(setting), &by).map(|told| told.kind)
        };
        let (paused, resumed) = (Some(EventType::SwitchPaused), Some(EventType::SwitchResumed));
        assert_eq!(kind(None, Some((true, None))), paused);
        assert_eq!(kind(Some((true, None)), Some((true, Some(LATER)))), paused);
        assert_eq!(kind(Some((true, Some(LATER))), Some((false, None))), resumed);
        assert_eq!(kind(Some((true, None)), None), resumed);
        assert_eq!(kind(Some((true, Some(NOW))), None), None, "it had ended by itself");
        assert_eq!(kind(None, Some((false, None))), None);
        assert_eq!(kind(Some((false, None)), None), None);
    }

    #[test]
    fn an_occurrence_has_one_identity_and_no_other_has_it() {
        let one = of_account("relay", Health::Parked(LATER), InstanceId(1), NOW);
        assert_eq!(one.id(), one.clone().id());
        for other in [
            of_account("relay", Health::Parked(LATER), InstanceId(2), NOW),
            of_account("relay", Health::Recovered, InstanceId(1), NOW),
            of_account("relay", Health::Parked(LATER), InstanceId(1), NOW.plus(std::time::Duration::from_micros(1))),
        ] {
            assert_ne!(one.id(), other.id());
        }
        assert!(one.id() < of_account("relay", Health::Recovered, InstanceId(1), LATER).id());
    }
}
