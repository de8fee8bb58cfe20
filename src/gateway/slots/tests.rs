use super::*;

fn account(rate: Option<u32>, adapter: &Arc<dyn tidings_core::adapter::Adapter>) -> Arc<Account> {
    Arc::new(Account {
        id: AccountId(1),
        name: "relay".to_owned(),
        kind: "smtp".to_owned(),
        adapter: adapter.clone(),
        built_from: [0; 32],
        from: None,
        sends_as: Vec::new(),
        owner: None,
        is_on: true,
        concurrency: 10,
        rate: rate.and_then(std::num::NonZeroU32::new),
        daily_cap: None,
    })
}

/// Not of size zero: two of them have two addresses.
#[derive(Default)]
#[allow(dead_code, reason = "it takes room")]
struct Silent(u8);

#[async_trait::async_trait]
impl tidings_core::adapter::Adapter for Silent {
    fn abilities(&self) -> tidings_core::adapter::Abilities {
        unreachable!("nobody asks")
    }
    fn check(&self, _: &tidings_core::content::Content) -> Result<(), Vec<tidings_core::adapter::ContentFault>> {
        Ok(())
    }
    async fn send(&self, _: &tidings_core::adapter::Outgoing) -> tidings_core::outcome::Report {
        tidings_core::outcome::Report::new(Outcome::NotStarted)
    }
}

const NOW: Timestamp = Timestamp::from_millis(1_800_000_000_000);

fn free(slots: &Slots) -> u16 {
    slots.capacity(&[AccountId(1)], NOW).first().map_or(0, |capacity| capacity.free)
}

#[test]
fn a_reload_doubles_neither_slots_nor_tokens() {
    let adapter: Arc<dyn tidings_core::adapter::Adapter> = Arc::new(Silent::default());
    let (unlimited, limited) = (account(None, &adapter), account(Some(3), &adapter));
    let slots = Arc::new(Slots::new(std::slice::from_ref(&unlimited), NOW));
    for _ in 0..4 {
        slots.begin(AccountId(1), Class::Critical);
    }
    slots.adopt(std::slice::from_ref(&unlimited), NOW);
    assert_eq!(free(&slots), 6);
    // Gone and back again: what runs still has its slots.
    slots.adopt(&[], NOW);
    slots.adopt(&[unlimited], NOW);
    assert_eq!(free(&slots), 6);
    // A new rate has no tokens: one call is claimed and waits for one. The same rate goes on with what it has.
    slots.adopt(std::slice::from_ref(&limited), NOW);
    assert_eq!(free(&slots), 1);
    let turn = slots.begin(AccountId(1), Class::Critical);
    for _ in 0..2 {
        assert_eq!(free(&slots), 0);
        slots.adopt(std::slice::from_ref(&limited), NOW);
    }
    drop(turn);
    assert_eq!(free(&slots), 1);
}

#[test]
fn an_account_that_is_unchanged_stays_parked_and_one_with_other_settings_tries_at_once() {
    let adapter: Arc<dyn tidings_core::adapter::Adapter> = Arc::new(Silent::default());
    let other: Arc<dyn tidings_core::adapter::Adapter> = Arc::new(Silent::default());
    let slots = Slots::new(&[account(None, &adapter)], NOW);
    slots.learn(AccountId(1), &Outcome::Credential, NOW);
    slots.adopt(&[account(None, &adapter)], NOW);
    assert_eq!((slots.hindrance(AccountId(1), NOW), free(&slots)), (Some(Hindrance::Parked(NOW.plus(PARKED[0]))), 0));
    slots.adopt(&[account(None, &other)], NOW);
    assert_eq!(free(&slots), 1);
    slots.learn(AccountId(1), &Outcome::Throttled { retry_after: Some(Duration::from_secs(60)) }, NOW);
    slots.adopt(&[account(None, &other)], NOW);
    assert_eq!(free(&slots), 0);
}

#[test]
fn an_account_is_merely_busy_only_while_it_is_well() {
    let adapter: Arc<dyn tidings_core::adapter::Adapter> = Arc::new(Silent::default());
    let busy = |slots: &Arc<Slots>| {
        Class::ALL.iter().map(|class| slots.capacity(&[AccountId(1)], NOW)[0].is_merely_busy(*class)).collect::<Vec<_>>()
    };
    let slots = Arc::new(Slots::new(&[account(None, &adapter)], NOW));
    assert_eq!(busy(&slots), [false, false, false], "it has room");
    for _ in 0..7 {
        slots.begin(AccountId(1), Class::Bulk);
    }
    assert_eq!(busy(&slots), [false, false, true], "bulk has used its part");
    for _ in 0..3 {
        slots.begin(AccountId(1), Class::Critical);
    }
    assert_eq!(busy(&slots), [false, true, true], "a code waits for nobody");
    slots.learn(AccountId(1), &Outcome::Throttled { retry_after: Some(Duration::from_secs(60)) }, NOW);
    assert_eq!(busy(&slots), [false, false, false], "it asked for silence");
    let parked = Arc::new(Slots::new(&[account(None, &adapter)], NOW));
    parked.learn(AccountId(1), &Outcome::Credential, NOW);
    assert_eq!(busy(&parked), [false, false, false], "its credential is refused");
}

#[test]
fn nobody_waits_for_an_account_in_which_nothing_comes_free() {
    let adapter: Arc<dyn tidings_core::adapter::Adapter> = Arc::new(Silent::default());
    let slots = Arc::new(Slots::new(&[account(None, &adapter)], NOW));
    let is_busy_after = |class: Class, seconds: u64| {
        let now = NOW.plus(Duration::from_secs(seconds));
        slots.capacity(&[AccountId(1)], now)[0].is_merely_busy(class)
    };
    assert!(!is_busy_after(Class::Bulk, 0));
    for _ in 0..7 {
        slots.begin(AccountId(1), Class::Bulk);
    }
    assert!(is_busy_after(Class::Bulk, 7) && !is_busy_after(Class::Bulk, 8), "seven calls hang");
    slots.end(AccountId(1), Class::Bulk);
    assert!(!is_busy_after(Class::Bulk, 20), "one ended");
    slots.begin(AccountId(1), Class::Bulk);
    assert!(is_busy_after(Class::Bulk, 27) && !is_busy_after(Class::Bulk, 28));
}

#[test]
fn that_an_account_is_parked_or_recovered_is_said_once() {
    let adapter: Arc<dyn tidings_core::adapter::Adapter> = Arc::new(Silent::default());
    let slots = Slots::new(&[account(None, &adapter)], NOW);
    let (taken, refused) = (Outcome::Accepted { message_id: None, refused_copies: Vec::new() }, Outcome::Credential);
    let said = [&taken, &refused, &refused, &Outcome::NotStarted, &taken, &taken, &refused];
    let said = said.map(|outcome| {
        slots.learn(AccountId(1), outcome, NOW);
        slots.news.take().map(|news| news.health)
    });
    let parked = Some(Health::Parked(NOW.plus(PARKED[0])));
    assert_eq!(said, [None, parked, None, None, Some(Health::Recovered), None, parked]);
    slots.learn(AccountId(2), &refused, NOW);
    assert_eq!(slots.news.take(), None, "an account that nobody knows");
}

#[test]
fn a_fifth_is_kept_for_critical_and_bulk_gets_seven_tenths() {
    assert_eq!([1, 2, 3, 5, 10, 32, 100].map(reserved), [(1, 1), (1, 1), (2, 2), (4, 3), (8, 7), (25, 22), (80, 70)]);
}

#[test]
fn whatever_tokens_say_a_process_alone_keeps_to_the_rate_of_an_account() {
    let adapter: Arc<dyn tidings_core::adapter::Adapter> = Arc::new(Silent::default());
    let slots = Slots::new(&[account(Some(3), &adapter)], NOW);
    assert_eq!([(); 5].map(|()| slots.is_admitted(AccountId(1))), [true, true, true, false, false]);
    slots.adopt(&[account(Some(3), &adapter)], NOW);
    assert!(!slots.is_admitted(AccountId(1)));
    slots.adopt(&[account(None, &adapter)], NOW);
    assert!(slots.is_admitted(AccountId(1)));
}
