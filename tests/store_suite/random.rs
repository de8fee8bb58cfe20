//! Random walks over everything that moves a delivery; after each step the relations between the tables hold (S-031).

use std::time::Duration;

use rand::rngs::StdRng;
use rand::seq::IndexedRandom;
use rand::{RngExt, SeedableRng};
use tidings_core::acts::{Finding, Resend, Verb};
use tidings_core::delivery::Delivery;
use tidings_core::outcome::{NotSent, Outcome, Refusal};
use tidings_core::store::Sweep;
use tidings_core::time::Timestamp;
use tidings_core::words::{Class, Reason};

use super::World;
use super::acting::on;
use super::world::{accepted, answered, at};

/// What may never be found, whatever happened: a name and a count.
const INVARIANTS: &[(&str, &str)] = &[
    (
        "a row is in the queue exactly while its record has no state",
        "SELECT count(*) FROM deliveries d LEFT JOIN queue q ON q.id = d.id WHERE (d.state IS NULL) <> (q.id IS NOT NULL)",
    ),
    ("every queue row has a record", "SELECT count(*) FROM queue q WHERE NOT EXISTS (SELECT 1 FROM deliveries d WHERE d.id = q.id)"),
    (
        "a lease stands exactly beside dispatching",
        "SELECT count(*) FROM queue WHERE (state = 'dispatching') <> (lease_expires_at IS NOT NULL AND lease_owner IS NOT NULL)",
    ),
    ("a look-up is due exactly while ambiguous", "SELECT count(*) FROM queue WHERE (state = 'ambiguous') <> (check_at IS NOT NULL)"),
    (
        "calls are counted as they are recorded",
        "SELECT count(*) FROM deliveries d LEFT JOIN queue q ON q.id = d.id WHERE coalesce(q.attempt_count, d.attempt_count) <> \
         (SELECT count(*) FROM attempts a WHERE a.delivery_id = d.id AND a.outcome <> 'not_started')",
    ),
    (
        "no more calls are unresolved than may have been taken",
        "SELECT count(*) FROM deliveries d LEFT JOIN queue q ON q.id = d.id WHERE coalesce(q.unresolved, d.unresolved) > \
         (SELECT count(*) FROM attempts a WHERE a.delivery_id = d.id AND a.outcome IN ('ambiguous', 'lost'))",
    ),
    (
        "an attempt has a number that was claimed",
        "SELECT count(*) FROM attempts a JOIN deliveries d ON d.id = a.delivery_id LEFT JOIN queue q ON q.id = d.id \
         WHERE a.number > coalesce(q.attempt_number, d.attempt_number)",
    ),
    (
        "what is over is settled and was told",
        "SELECT count(*) FROM deliveries d WHERE (d.state IS NULL) <> (d.settled_at IS NULL) OR (d.state IS NOT NULL AND NOT EXISTS \
         (SELECT 1 FROM events e WHERE e.delivery_id = d.id AND e.state = d.state AND e.type = d.state))",
    ),
    (
        "dead and unknown alone ask for attention",
        "SELECT count(*) FROM deliveries WHERE (attention IS NOT NULL) <> \
         (coalesce(state, '') IN ('dead', 'unknown') AND coalesce(reason, '') <> 'discarded')",
    ),
    (
        "an accepted delivery has a recorded acceptance",
        "SELECT count(*) FROM deliveries d WHERE d.state = 'accepted' AND NOT EXISTS \
         (SELECT 1 FROM attempts a WHERE a.delivery_id = d.id AND a.accepted_at IS NOT NULL)",
    ),
];

/// S-031, S-044: no sequence of events breaks a relation.
pub async fn no_walk_breaks_a_relation_between_tables(world: &World) {
    for seed in 0..6 {
        let mut walk = Walk { rng: StdRng::seed_from_u64(seed), now: at(0), claimed: Vec::new(), steps: Vec::new(), seed };
        for _ in 0..60 {
            walk.step(world).await;
            walk.check(world).await;
        }
    }
    assert!(world.count("deliveries", "state = 'accepted'").await > 0 && world.count("deliveries", "state = 'unknown'").await > 0);
}

struct Walk {
    rng: StdRng,
    now: Timestamp,
    /// Everything that was ever claimed: later reports of old claims are stale, and welcome.
    claimed: Vec<Delivery>,
    steps: Vec<String>,
    seed: u64,
}

impl Walk {
    async fn step(&mut self, world: &World) {
        self.now = self.now.plus(Duration::from_secs(*[0, 1, 20, 90, 1_900].choose(&mut self.rng).expect("a span")));
        match self.rng.random_range(0..10) {
            0..2 => self.accept(world).await,
            2..4 => self.claim(world).await,
            4..7 => self.finish(world).await,
            7 => self.act(world).await,
            _ => self.sweep(world).await,
        }
    }

    async fn accept(&mut self, world: &World) {
        let count = self.rng.random_range(1..6);
        self.steps.push(format!("accept {count}"));
        let mut items = Vec::new();
        for _ in 0..count {
            let class = *Class::ALL.choose(&mut self.rng).expect("a class");
            // A small set of keys: some are held, some twice in a batch.
            let mut item = world.email_of(world.tenant, class, &format!("{}-{}", self.seed, self.rng.random_range(0..60)));
            item.expires_at = self.now.plus(world.rules.of(class).retry.deadline);
            item.deliveries[0].available_at = self.now.plus(Duration::from_secs(self.rng.random_range(0..60)));
            item.deliveries[0].attempt_limit = self.rng.random_range(1..4);
            items.push(item);
        }
        world.accept(items).await.into_iter().for_each(|accepted| drop(accepted.expect("an accept")));
    }

    async fn claim(&mut self, world: &World) {
        let free = self.rng.random_range(1..8);
        let claimed = world.claim(free, self.now).await;
        self.steps.push(format!("claim {} of {free}", claimed.len()));
        self.claimed.extend(claimed);
    }

    async fn finish(&mut self, world: &World) {
        let mut items = Vec::new();
        for _ in 0..self.rng.random_range(1..4) {
            // Mostly what runs, sometimes what ran long ago.
            let recent = self.claimed.len().saturating_sub(if self.rng.random_bool(0.7) { 6 } else { 60 });
            let Some(delivery) = self.claimed[recent..].choose(&mut self.rng).cloned() else { return };
            let outcome = self.outcome();
            self.steps.push(format!("finish {} number {} {outcome:?}", delivery.id, delivery.attempt_number));
            items.push(world.report(&delivery, outcome, self.now));
        }
        world.finish_all(items, self.now).await;
    }

    fn outcome(&mut self) -> Outcome {
        match self.rng.random_range(0..9) {
            0..3 => accepted(),
            3 => answered(None),
            4 => Outcome::NotSent { why: NotSent::Unreachable, retry_after: None },
            5 => Outcome::Refused { by: Refusal::Recipient { listed: false, hard: true }, reason: Reason::HardBounce },
            6 => Outcome::NotStarted,
            7 => Outcome::Throttled { retry_after: Some(Duration::from_secs(30)) },
            _ => Outcome::Ambiguous,
        }
    }

    async fn act(&mut self, world: &World) {
        for _ in 0..self.rng.random_range(1..5) {
            let Some(delivery) = self.claimed.choose(&mut self.rng).cloned() else { return };
            let generation = *[None, Some(1), Some(2), Some(3)].choose(&mut self.rng).expect("a generation");
            let verb = match self.rng.random_range(0..8) {
                0 => Verb::Cancel(Reason::CancelledByRequest),
                1 => Verb::Reschedule(Some(self.now.plus(Duration::from_secs(60)))),
                2 => Verb::Resolve(Finding::Sent),
                3 => Verb::Resolve(Finding::NotSent),
                4 => Verb::Discard,
                _ => Verb::Resend(Resend { generation, expires_in: None, replay: None }),
            };
            let act = on(world.tenant, delivery.id, verb);
            let acted = world.store.acts().act(&world.rules, &[act], self.now).await.remove(0).expect("an act");
            self.steps.push(format!("act on {} {verb:?}: {:?}", delivery.id, acted.answer));
        }
    }

    async fn sweep(&mut self, world: &World) {
        for sweep in [Sweep::LeaseExpired, Sweep::PastExpiry, Sweep::ChecksDue] {
            let swept = world.store.sweep(&world.rules, sweep, 20, self.now).await.expect("a sweep");
            self.steps.push(format!("{sweep:?} {}", swept.len()));
        }
    }

    async fn check(&self, world: &World) {
        for (invariant, sql) in INVARIANTS {
            let broken = world.db.number(sql).await;
            assert_eq!(broken, 0, "{invariant}: seed {}, after {:#?}", self.seed, self.steps);
        }
    }
}
