//! Moving to another store of the same kind; from one kind to the other is told with the stores that have both.

use std::collections::{BTreeMap, VecDeque};
use std::sync::Arc;
use std::time::Duration;

use async_trait::async_trait;
use tidings_core::moving::{COLUMNS_LEFT, DumpFault, FORMAT, Header, Row, TABLES, TABLES_LEFT, Table, Value};
use tidings_core::outcome::Outcome;
use tidings_core::pool::Ask;
use tidings_core::sandbox::SandboxMessage;
use tidings_core::state::State;
use tidings_core::store::{
    Accepted, BoxError, FeedPosition, FeedQuery, ImportError, Origin, Sink, Source, Store, StoredEvent, Sweep, SwitchedBy, WriteBatch,
};
use tidings_core::suppression::SuppressionReason;
use tidings_core::switches::Scope;
use tidings_core::words::{Channel, Class, Mode};

use super::world::{accepted, answered, at};
use super::{World, random, suppressing};

/// When the installation is frozen, in seconds.
const FROZEN: i64 = 100;

/// Everything that a store passes on.
#[derive(Default)]
struct Collected {
    origin: Option<Origin>,
    chunks: Vec<(&'static Table, Vec<Row>)>,
}

#[async_trait]
impl Sink for Collected {
    async fn begin(&mut self, origin: Origin) -> Result<(), BoxError> {
        self.origin = Some(origin);
        Ok(())
    }

    async fn rows(&mut self, table: &'static Table, rows: Vec<Row>) -> Result<(), BoxError> {
        if !rows.is_empty() {
            self.chunks.push((table, rows));
        }
        Ok(())
    }
}

impl Collected {
    async fn of(store: &Arc<dyn Store>) -> Self {
        let mut collected = Self::default();
        store.moving().export(&mut collected).await.expect("an export");
        collected
    }

    /// The rows of each table, in an order of their own.
    fn sorted(&self, but: &[(&str, &str)]) -> BTreeMap<&'static str, Vec<String>> {
        let mut tables: BTreeMap<_, Vec<String>> = BTreeMap::new();
        for (table, rows) in &self.chunks {
            for row in rows {
                let mut row = row.clone();
                for (_, column) in but.iter().filter(|(name, _)| *name == table.name) {
                    row[table.place(column).expect("a column of this table")] = Value::Null;
                }
                tables.entry(table.name).or_default().push(format!("{row:?}"));
            }
        }
        tables.values_mut().for_each(|rows| rows.sort());
        tables
    }

    fn replay(self) -> Replay {
        let origin = self.origin.expect("an export begins");
        let header = Header {
            format: FORMAT,
            version: "1".to_owned(),
            schema: origin.schema,
            source: origin.kind.to_owned(),
            frozen_at: at(FROZEN),
            feed_end: origin.feed_end,
            oldest: origin.oldest,
            master_check: String::new(),
        };
        Replay { header, chunks: self.chunks.into(), fault: None }
    }
}

struct Replay {
    header: Header,
    chunks: VecDeque<(&'static Table, Vec<Row>)>,
    /// What is wrong at the end.
    fault: Option<DumpFault>,
}

#[async_trait]
impl Source for Replay {
    fn header(&self) -> &Header {
        &self.header
    }

    async fn next(&mut self) -> Result<Option<(&'static Table, Vec<Row>)>, DumpFault> {
        match (self.chunks.pop_front(), self.fault.take()) {
            (None, Some(fault)) => Err(fault),
            (next, fault) => {
                self.fault = fault;
                Ok(next)
            }
        }
    }
}

/// Moves everything from one store to another.
///
/// # Panics
/// When it does not.
pub async fn moved(from: &Arc<dyn Store>, to: &Arc<dyn Store>) {
    let mut replay = Collected::of(from).await.replay();
    to.moving().import(&mut replay).await.expect("an import");
}

/// The same world on another store.
fn over(world: &World, store: Arc<dyn Store>) -> World {
    let (db, rules, lanes) = (world.db.clone(), world.rules.clone(), world.lanes.clone());
    World { db, store, rules, lanes, tenant: world.tenant, account: world.account, instance: world.instance }
}

async fn events(world: &World, after: Option<FeedPosition>) -> (Vec<StoredEvent>, FeedPosition) {
    let (mut all, mut place) = (Vec::new(), after);
    loop {
        let query =
            FeedQuery { tenant: world.tenant, mode: Mode::Live, with_installation: true, types: Vec::new(), after: place, limit: 500 };
        let page = world.store.feed().events(&query).await.unwrap().expect("nothing was purged");
        all.extend(page.events);
        place = Some(page.next);
        if page.is_end {
            return (all, page.next);
        }
    }
}

fn told(events: &[StoredEvent]) -> Vec<(String, String, i32, Option<String>)> {
    events.iter().map(|event| (event.delivery.to_string(), event.kind.clone(), event.version, event.detail.clone())).collect()
}

/// What an installation holds after a while: rows in every state, and one of everything else.
pub async fn furnish(world: &World) {
    let ask = Ask { key: "account:1".to_owned(), day: at(0), cap: 100, bound: 100, wanted: 7 };
    world.store.quotas().draw_calls(&[ask]).await.unwrap();
    random::no_walk_breaks_a_relation_between_tables(world).await;
    // What the walks left open is over, so that the claims below find their own rows.
    world.sql("UPDATE queue SET available_at = NULL, state = 'ambiguous', check_at = expires_at WHERE available_at IS NOT NULL").await;
    for (key, outcome) in [("taken", accepted()), ("retried", answered(Some(Duration::from_secs(3_600)))), ("lost", Outcome::Ambiguous)] {
        let delivery = world.dispatched(key, at(1)).await;
        world.moved(&delivery, outcome, at(2)).await;
    }
    world.dispatched("running", at(FROZEN - 5)).await;
    let mut keyed = [world.email("first"), world.email("second"), world.email("code")];
    for item in &mut keyed[..2] {
        item.ordering_key = Some("line".to_owned());
    }
    keyed[2].collapse_key = Some("code".to_owned());
    for item in keyed {
        world.taken(item).await;
    }
    world.suppress(b"nobody", "all", None).await;
    world.store.suppressions().add(&[suppressing::item(world, b"told", SuppressionReason::Manual, at(3))], Some("key_1")).await.unwrap();
    let message = SandboxMessage {
        id: super::unique_id(at(1)).as_uuid(),
        tenant: world.tenant,
        mode: Mode::Live,
        received_at: at(3),
        channel: Channel::Email,
        notification: super::unique_id(at(1)),
        handle: tidings_core::ids::Handle { delivery: super::unique_id(at(1)).delivery(3), generation: 2 },
        idempotency_key: "sandboxed".to_owned(),
        envelope_to: vec!["grün \"x\"@example.com".to_owned(), "b@example.com".to_owned()],
        body: vec![0, 1, 254, 255],
    };
    let batch = WriteBatch { sandbox: vec![message], ..WriteBatch::default() };
    world.store.commit(&world.rules, batch, at(3)).await.sandbox.remove(0).unwrap();
    let by = SwitchedBy { actor: "key_1".to_owned(), reason: Some("storm".to_owned()), at: at(4) };
    world.store.pauses().set_switch(&Scope::Class(Class::Bulk), true, Some(at(60)), &by).await.unwrap();
    world.store.settle_setting("master_secret", b"stays here").await.unwrap();
    world.store.settle_setting("master_check", b"comes along").await.unwrap();
    world.store.settle_setting("frozen", &at(FROZEN).as_micros().to_be_bytes()).await.unwrap();
}

/// What holds in a store into which a furnished world was moved.
pub async fn goes_on(old: &World, store: Arc<dyn Store>) {
    let new = over(old, store);
    assert_eq!(new.store.setting("master_secret").await.unwrap(), None);
    assert_eq!(new.store.setting("frozen").await.unwrap(), None);
    assert_eq!(new.store.setting("master_check").await.unwrap().as_deref(), Some(b"comes along".as_slice()));

    // Keys mean what they meant, and statuses are the same.
    for key in ["taken", "retried", "lost", "first"] {
        let held = old.store.by_key(old.tenant, Mode::Live, key).await.unwrap().expect("a holder");
        assert_eq!(new.store.by_key(new.tenant, Mode::Live, key).await.unwrap().as_ref(), Some(&held));
        let again = new.accept(vec![new.email(key)]).await.remove(0).unwrap();
        assert_eq!(again, Accepted::KeyHeld(held.clone()));
        let there = old.store.notification(old.tenant, Mode::Live, held.id).await.unwrap().expect("it is there");
        let here = new.store.notification(new.tenant, Mode::Live, held.id).await.unwrap().expect("it is here");
        assert_eq!(format!("{there:?}"), format!("{here:?}"));
    }

    // The feed goes on where a reader stood, and new events come behind the end that the old store told.
    let (all, end) = events(old, None).await;
    assert_eq!(told(&events(&new, None).await.0), told(&all));
    for kind in ["suppression.created", "switch.paused"] {
        assert!(all.iter().any(|event| event.kind == kind && event.detail.is_some()), "{kind}");
    }
    for read in [0, all.len() / 3, all.len() / 2, all.len() - 1] {
        assert_eq!(told(&events(&new, Some(all[read].position)).await.0), told(&all)[read + 1..], "after {read}");
    }
    assert_eq!(told(&events(&new, Some(end)).await.0), []);

    // The call that ran has no answer: perhaps sent, and not sent again by a claim.
    let running = old.store.by_key(old.tenant, Mode::Live, "running").await.unwrap().unwrap().id.delivery(1);
    let swept = new.store.sweep(&new.rules, Sweep::LeaseExpired, 1_000, at(FROZEN + 1)).await.unwrap();
    assert!(swept.iter().any(|moved| moved.id == running && moved.to == State::Ambiguous), "{swept:?}");
    let claimed = new.claim(100, at(FROZEN + 2)).await;
    assert!(claimed.iter().all(|delivery| delivery.id != running));

    // New rows have numbers of their own, and lines go on.
    new.store.ensure_tenant("another").await.unwrap();
    new.store.ensure_accounts(&[("another".to_owned(), "smtp".to_owned())]).await.unwrap();
    let fresh = new.taken(new.email("fresh")).await;
    let delivery = new.claim(100, at(3)).await.into_iter().find(|delivery| delivery.id == fresh).expect("it is due");
    new.moved(&delivery, accepted(), at(4)).await;
    let news = events(&new, Some(end)).await.0;
    assert!(news.iter().any(|event| event.delivery == fresh), "{news:?}");
    let findings = new.store.audit(at(-1_000), at(1_000_000), at(-1_000)).await.unwrap();
    assert_eq!(findings, []);
}

/// S-237: everything comes along, and exported again it is the same.
pub async fn everything_moves_and_goes_on(world: &World) {
    furnish(world).await;
    let target = world.db.another().await;
    moved(&world.store, &target).await;
    // Where readers stand in the feed is what counts, and is looked at below.
    let but = [("queue", "lease_expires_at"), ("events", "pos")];
    let (there, here) = (Collected::of(&world.store).await.sorted(&but), Collected::of(&target).await.sorted(&but));
    for table in TABLES {
        assert_eq!(there.get(table.name), here.get(table.name), "{}", table.name);
    }
    for state in ["dispatching", "ambiguous", "queued", "retry_wait"] {
        assert!(there["queue"].iter().any(|row| row.contains(&format!("\"{state}\""))), "{state}");
    }
    let used = target.quotas().calls_used(&[("account:1".to_owned(), at(0))]).await.unwrap();
    assert_eq!(used, [7], "the calls of today stay used");
    goes_on(world, target).await;
}

/// What breaks off leaves the store empty, and it can be filled afterwards.
pub async fn an_import_that_breaks_off_leaves_nothing(world: &World) {
    world.taken(world.email("a")).await;
    let target = world.db.another().await;
    let mut broken = Collected::of(&world.store).await.replay();
    broken.fault = Some(DumpFault { line: 7, what: "cut short".to_owned() });
    let error = target.moving().import(&mut broken).await.unwrap_err();
    assert!(matches!(error, ImportError::Dump(DumpFault { line: 7, .. })), "{error:?}");
    assert!(Collected::of(&target).await.chunks.is_empty());

    // A row that the schema refuses takes everything with it.
    let mut refused = Collected::of(&world.store).await.replay();
    let (table, rows) = refused.chunks.iter_mut().find(|(table, _)| table.name == "queue").expect("a chunk of open rows");
    rows[0][table.place("state").unwrap()] = Value::Text("dispatching".to_owned());
    let error = target.moving().import(&mut refused).await.unwrap_err();
    assert!(matches!(error, ImportError::Rows { table: "queue", .. }), "{error:?}");
    assert!(Collected::of(&target).await.chunks.is_empty());
    let mut newer = Collected::of(&world.store).await.replay();
    newer.header.schema += 1;
    let error = target.moving().import(&mut newer).await.unwrap_err();
    assert!(matches!(error, ImportError::Newer { .. }), "{error:?}");
    moved(&world.store, &target).await;
    assert_eq!(target.open_count().await.unwrap(), 1);
}

/// A store that holds anything is left as it is.
pub async fn only_an_empty_store_is_imported_into(world: &World) {
    world.taken(world.email("a")).await;
    let target = world.db.another().await;
    target.ensure_tenant("default").await.unwrap();
    let before = Collected::of(&target).await.sorted(&[]);
    let error = target.moving().import(&mut Collected::of(&world.store).await.replay()).await.unwrap_err();
    assert_eq!(error.to_string(), "the store is not empty: it holds 1 row in tenants");
    assert_eq!(Collected::of(&target).await.sorted(&[]), before);
}

/// A column that a migration adds moves, or somebody has said that it does not.
pub async fn every_column_moves_or_is_named(world: &World) {
    let columns = world.db.columns().await;
    assert!(columns.len() > 200, "{columns:?}");
    for (table, column) in columns {
        let moves = TABLES.iter().any(|known| known.name == table && known.place(&column).is_some());
        let stays = TABLES_LEFT.contains(&table.as_str()) || COLUMNS_LEFT.contains(&(table.as_str(), column.as_str()));
        assert!(moves || stays, "{table}.{column} would be lost by a move: say in core/moving/tables.rs what becomes of it");
    }
}

/// Who is under way and who was seen is told; to unfreeze ends what `frozen` began.
pub async fn a_freeze_is_ended_once(world: &World) {
    let moving = world.store.moving();
    assert_eq!(moving.under_way().await.unwrap(), []);
    world.dispatched("a", at(1)).await;
    let under_way = moving.under_way().await.unwrap();
    assert_eq!((under_way[0].owner, under_way[0].calls, under_way[0].newest), (world.instance, 1, at(1)));
    assert!(moving.seen_since(at(0)).await.unwrap().contains(&world.instance));
    assert!(!moving.seen_since(at(FROZEN * 10)).await.unwrap().contains(&world.instance));
    assert!(!moving.unfreeze().await.unwrap());
    world.store.settle_setting("frozen", &[0; 8]).await.unwrap();
    assert!(moving.unfreeze().await.unwrap());
    assert_eq!(world.store.setting("frozen").await.unwrap(), None);
}
