//! Reads of a notification in the middle of its life.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use async_trait::async_trait;
use tidings_core::adapter::{Abilities, Adapter, ContentFault, Idempotency, Lookup, Outgoing};
use tidings_core::content::Content;
use tidings_core::ids::{InstanceId, LaneId, NotificationId, TenantId};
use tidings_core::outcome::{Outcome, RefusedCopy, Report};
use tidings_core::words::{Class, Mode};

use super::*;
use crate::routing::{Account, MAIN_ROUTE, Route};
use crate::sealed::Address;

const NOW: Timestamp = Timestamp::from_millis(1_800_000_000_000);

struct Silent;

#[async_trait]
impl Adapter for Silent {
    fn abilities(&self) -> Abilities {
        let (idempotency, lookup) = (Idempotency::None, Lookup::None);
        Abilities { channel: Channel::Email, idempotency, lookup, visibility_lag: Duration::ZERO, receipts: false }
    }
    fn check(&self, _: &Content) -> Result<(), Vec<ContentFault>> {
        Ok(())
    }
    async fn send(&self, _: &Outgoing) -> Report {
        Report::new(Outcome::NotStarted)
    }
}

fn routing(is_on: bool) -> Routing {
    let account = Arc::new(account(1, "relay", is_on));
    let (lane, channel, class) = (LaneId(1), Channel::Email, Class::Transactional);
    let route = Route { lane, channel, class, name: MAIN_ROUTE.to_owned(), accounts: vec![account.clone()], weights: Vec::new() };
    Routing { routes: vec![route], former: Vec::new(), accounts: vec![account], sandbox_only: false }
}

fn account(id: i32, name: &str, is_on: bool) -> Account {
    Account {
        id: AccountId(id),
        name: name.to_owned(),
        kind: "smtp".to_owned(),
        adapter: Arc::new(Silent),
        built_from: [0; 32],
        from: None,
        sends_as: Vec::new(),
        owner: None,
        is_on,
        concurrency: 1,
        rate: None,
        daily_cap: None,
    }
}

fn keyring() -> Keyring {
    Keyring::derive(&[7; 32])
}

/// A delivery that was refused for the time being once, by an account that is gone, and is being sent again.
fn second_try() -> StoredNotification {
    let id = NotificationId::new(NOW, [1; 10]);
    let delivery = Delivery {
        id: id.delivery(1),
        tenant: TenantId(1),
        mode: Mode::Live,
        channel: Channel::Email,
        class: Class::Transactional,
        lane: LaneId(1),
        category: "receipt".to_owned(),
        state: State::Dispatching,
        version: 4,
        generation: 1,
        attempt_number: 2,
        attempt_count: 2,
        attempts_used: 1,
        attempt_limit: 10,
        lost_count: 0,
        build_failures: 0,
        unresolved: 0,
        no_resend: None,
        available_at: None,
        blocked: false,
        lease_expires_at: Some(NOW.plus(Duration::from_secs(60))),
        lease_owner: Some(InstanceId(1)),
        account: Some(AccountId(1)),
        attempt_started_at: Some(NOW),
        ambiguous_since: None,
        check_at: None,
        rung: 0,
        expires_at: NOW.plus(Duration::from_secs(3_600)),
        sender: None,
        flags: Flags::default(),
        reason: None,
        settled_at: None,
        siblings: 1,
        is_ordered: false,
        is_collapsible: false,
    };
    let first = AttemptRecord {
        number: 1,
        generation: 1,
        account: Some(AccountId(9)),
        started_at: NOW.minus(Duration::from_secs(30)),
        finished_at: Some(NOW.minus(Duration::from_secs(29))),
        outcome: AttemptOutcome::NotSent,
        accepted_at: None,
        late: false,
        provider_code: Some("451 4.7.1".to_owned()),
        provider_message_id: None,
        match_key: None,
        detail: Some("greylisted".to_owned()),
    };
    let mailbox = "Ada <ada@example.com>".parse().unwrap();
    let address = Address { written: "Ada <ada@example.com>".to_owned(), mailbox, metadata: vec![("seat".to_owned(), "4A".to_owned())] };
    let refused_copies = vec![RefusedCopy { address: "cc@example.com".to_owned(), code: "550 5.1.1".to_owned() }];
    let mut copies = Report::new(Outcome::Accepted { message_id: None, refused_copies });
    copies.accepted_copies.push("bcc@example.com".to_owned());
    let stored = StoredDelivery {
        address: Some(sealed::seal_address(&keyring(), delivery.id, &address)),
        reference: Some(sealed::seal_reference(&keyring(), delivery.id, "user_42")),
        copies: Some(sealed::seal_copies(&keyring(), delivery.id, &sealed::Copies::default().after(&copies))),
        send_at: None,
        message_id: Some(format!("{}@example.com", delivery.id)),
        suppression: None,
        updated_at: NOW,
        attempts: vec![first],
        delivery,
    };
    StoredNotification {
        tenant: TenantId(1),
        id,
        mode: Mode::Live,
        idempotency_key: "order-10432".to_owned(),
        category: "receipt".to_owned(),
        class: Class::Transactional,
        tags: vec!["a".to_owned()],
        metadata: sealed::seal_metadata(&keyring(), id, &[("order".to_owned(), "10432".to_owned())]),
        send_at: None,
        expires_at: NOW.plus(Duration::from_secs(3_600)),
        deliveries: vec![stored],
    }
}

fn read(stored: &StoredNotification, routing: &Routing, sees_addresses: bool) -> serde_json::Value {
    let former_accounts = HashMap::from([(AccountId(9), "old-relay".to_owned())]);
    let reader = Reader {
        is_disabled: false,
        paused: Paused::default(),
        keyring: &keyring(),
        routing,
        former_accounts: &former_accounts,
        senders: &BTreeMap::new(),
        sees_addresses,
        slots: &Slots::new(&routing.accounts, NOW),
        now: NOW,
    };
    serde_json::from_slice(&reader.render(stored).unwrap()).unwrap()
}

#[test]
fn a_running_call_is_shown_beside_the_finished_ones() {
    insta::assert_json_snapshot!(read(&second_try(), &routing(true), true));
}

#[test]
fn without_the_scope_no_address_is_shown() {
    let body = read(&second_try(), &routing(true), false);
    let delivery = &body["deliveries"][0];
    assert_eq!(delivery["to"], "a***@example.com");
    assert_eq!((&delivery["copies"][0]["to"], &delivery["copies"][1]["to"]), (&"b***@example.com".into(), &"c***@example.com".into()));
    for address in ["ada@", "cc@", "bcc@"] {
        assert!(!body.to_string().contains(address));
    }
}

#[test]
fn a_due_delivery_without_an_account_says_so() {
    let mut stored = second_try();
    let delivery = &mut stored.deliveries[0].delivery;
    (delivery.state, delivery.available_at, delivery.lease_expires_at) = (State::RetryWait, Some(NOW), None);
    assert_eq!(read(&stored, &routing(false), true)["deliveries"][0]["wait_reason"], "no_account");
    assert_eq!(read(&stored, &routing(true), true)["deliveries"][0]["wait_reason"], serde_json::Value::Null);
}

#[test]
fn what_is_drawn_for_an_account_without_tokens_waits_for_its_rate_until_its_patience_is_over() {
    let slow = Account { rate: std::num::NonZeroU32::new(1), ..account(1, "slow", true) };
    let accounts = vec![Arc::new(slow), Arc::new(account(2, "fast", true))];
    let (lane, channel, class) = (LaneId(1), Channel::Email, Class::Transactional);
    let read_with = |weights: Vec<u16>, age: u64, is_empty: bool| {
        let route = Route { lane, channel, class, name: MAIN_ROUTE.to_owned(), accounts: accounts.clone(), weights };
        let routing = Routing { routes: vec![route], former: Vec::new(), accounts: accounts.clone(), sandbox_only: false };
        let slots = Arc::new(Slots::new(&routing.accounts, NOW));
        let _turn = is_empty.then(|| slots.begin(AccountId(1), class));
        let mut stored = second_try();
        let delivery = &mut stored.deliveries[0].delivery;
        (delivery.state, delivery.available_at, delivery.lease_expires_at) = (State::Queued, Some(NOW), None);
        (delivery.attempt_number, delivery.attempt_count, delivery.account, delivery.attempt_started_at) = (0, 0, None, None);
        let (former_accounts, senders) = (HashMap::new(), BTreeMap::new());
        let reader = Reader {
            is_disabled: false,
            paused: Paused::default(),
            keyring: &keyring(),
            routing: &routing,
            former_accounts: &former_accounts,
            senders: &senders,
            sees_addresses: true,
            slots: &slots,
            now: NOW.plus(Duration::from_secs(age)),
        };
        let body: serde_json::Value = serde_json::from_slice(&reader.render(&stored).unwrap()).unwrap();
        body["deliveries"][0]["wait_reason"].clone()
    };
    assert_eq!(read_with(vec![1], 4, true), "rate");
    assert_eq!(read_with(vec![1], 4, false), serde_json::Value::Null);
    assert_eq!(read_with(vec![1], 5, true), serde_json::Value::Null, "the other one takes it");
    assert_eq!(read_with(Vec::new(), 0, true), serde_json::Value::Null, "without weights nobody waits");
}

#[test]
fn an_address_that_was_erased_is_null_and_a_foreign_one_opens_nothing() {
    let mut stored = second_try();
    stored.deliveries[0].address = None;
    assert_eq!(read(&stored, &routing(true), true)["deliveries"][0]["to"], serde_json::Value::Null);
    stored.deliveries[0].address = stored.deliveries[0].reference.clone();
    let (routing, former_accounts, senders) = (routing(true), HashMap::new(), BTreeMap::new());
    let slots = Slots::new(&routing.accounts, NOW);
    let reader = Reader {
        is_disabled: false,
        paused: Paused::default(),
        keyring: &keyring(),
        routing: &routing,
        former_accounts: &former_accounts,
        senders: &senders,
        sees_addresses: true,
        slots: &slots,
        now: NOW,
    };
    assert_eq!(reader.render(&stored), Err(CannotOpen));
}
