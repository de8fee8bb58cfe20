//! The rules that configuration can change: retry schedules, deadlines, ambiguity, categories; their defaults and
//! the inequalities between them. How a rule is applied to a delivery is decided in `transition`.

use std::collections::HashMap;
use std::time::Duration;

use crate::outcome::NotSent;
use crate::words::{Channel, Class, words};

const SECOND: Duration = Duration::from_secs(1);
const MINUTE: Duration = Duration::from_secs(60);
const HOUR: Duration = Duration::from_secs(3_600);

/// How long a lease lasts without a renewal.
pub const LEASE: Duration = Duration::from_secs(60);
/// How often the leases of running calls are renewed; `LEASE >= 3 x HEARTBEAT`.
pub const HEARTBEAT: Duration = Duration::from_secs(20);
/// A claim whose first byte has not left this long before its lease ends is handed back.
pub const START_MARGIN: Duration = Duration::from_secs(10);
/// Attempts closed by lease loss after which a row counts as poison (S-040).
pub const POISON_LOSSES: u16 = 2;
/// How far ahead `send_at` may lie (S-064).
pub const SEND_AT_HORIZON: Duration = Duration::from_secs(90 * 86_400);
/// After how long a row that no account of its route may send is looked at again.
pub const NOBODY_RETRY: Duration = Duration::from_secs(30);
/// How long after its end a delivery may be sent again by an operator (S-063).
pub const REPLAY_WINDOW: Duration = Duration::from_secs(14 * 86_400);
/// How often a dead letter may be replayed in bulk (S-062).
pub const MOST_REPLAYS: u16 = 3;
/// How long the first call of a receipt waits, from when it is due, for the account that its weight drew and that is merely busy:
/// people look for it in seconds, and most bursts are over by then.
pub const SHARE_PATIENCE: Duration = Duration::from_secs(5);
/// The same for bulk, which nobody waits for: an account that is fresh (a new IP address that is warmed up) keeps its share in
/// longer bursts, and one that hangs holds up a newsletter for a minute at most.
pub const SHARE_PATIENCE_BULK: Duration = Duration::from_secs(60);
/// A message that could not be built is tried once more after this.
pub const BUILD_RETRY: Duration = Duration::from_secs(30);

words! {
    /// What happens when nothing resolves an ambiguous send within its hold.
    pub enum OnAmbiguous {
        /// One more send, flagged `possible_duplicate`.
        Resend = "resend",
        /// It ends in `unknown`.
        Hold = "hold",
    }
}

words! {
    /// What another request under a key that is held gets.
    #[derive(Default)]
    pub enum OnKeyReuse {
        /// A refusal that names the holder.
        #[default]
        Refuse = "refuse",
        /// The first answer, marked as that of another request.
        FirstWins = "first_wins",
    }
}

/// When a class tries again, and until when.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Retry {
    /// Calls that a provider may answer with a temporary refusal.
    pub attempts: u16,
    /// The age at which an unsent message expires, where the request names no other.
    pub deadline: Duration,
    /// The ceiling of the first delay.
    pub base: Duration,
    /// By what the ceiling grows.
    pub factor: u32,
    /// The highest ceiling after an answer.
    pub cap: Duration,
    /// The highest ceiling while nobody answers.
    pub unreachable_cap: Duration,
}

impl Retry {
    /// The ceiling of the delay after `failures` earlier failures of the same kind (S-054).
    pub fn ceiling(&self, why: NotSent, failures: u16) -> Duration {
        let cap = match why {
            NotSent::Unreachable => self.unreachable_cap.min(self.cap),
            NotSent::Answered | NotSent::Route => self.cap,
        };
        // Past 32 doublings every cap is long reached.
        let growth = u128::from(self.factor.max(1)).saturating_pow(u32::from(failures.min(32)));
        let grown = self.base.as_micros().saturating_mul(growth);
        u64::try_from(grown).map_or(cap, |micros| Duration::from_micros(micros).min(cap))
    }

    /// The delay before the next try: fully random below the ceiling, never less than the provider asks for.
    /// `jitter` lies in `0.0..1.0`.
    pub fn delay(&self, why: NotSent, failures: u16, retry_after: Option<Duration>, jitter: f64) -> Duration {
        let spread = self.ceiling(why, failures).mul_f64(jitter.clamp(0.0, 1.0));
        spread.max(retry_after.unwrap_or_default())
    }
}

/// What a class does about a send that may have been taken.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Ambiguity {
    /// How long the one deciding answer is worth waiting for.
    pub patience: Duration,
    /// How long the row waits for evidence.
    pub hold: Duration,
    /// What then happens to an email.
    pub email: OnAmbiguous,
    /// What then happens to a text.
    pub sms: OnAmbiguous,
    /// What then happens to a push.
    pub push: OnAmbiguous,
}

impl Ambiguity {
    /// The policy for a channel.
    pub const fn on(&self, channel: Channel) -> OnAmbiguous {
        match channel {
            Channel::Email => self.email,
            Channel::Sms => self.sms,
            Channel::Push => self.push,
        }
    }
}

/// The rules of one class.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct ClassRules {
    /// When it tries again.
    pub retry: Retry,
    /// What it does when a send may have been taken.
    pub ambiguity: Ambiguity,
    /// How long after its `send_at` a message still makes sense (S-071).
    pub max_lateness: Duration,
}

/// The category of a request that names none.
pub const DEFAULT_CATEGORY: &str = "default";

/// What an operator says about one category.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct CategoryRules {
    /// Its class; transactional where none is given.
    pub class: Option<Class>,
    /// Overrides the class policy on every channel.
    pub on_ambiguous: Option<OnAmbiguous>,
    /// The deadline, where the request names none.
    pub expires_in: Option<Duration>,
    /// The author, where the request names none: a mailbox or the name of a sender.
    pub from: Option<String>,
    /// The channels, where the request names none; empty: every channel that has an address and content.
    pub channels: Vec<Channel>,
    /// What happens when its key belongs to another request.
    pub on_key_reuse: OnKeyReuse,
    /// Its content is erased as soon as nothing of a notification is open any more (S-214).
    pub is_sensitive: bool,
}

/// Everything that decisions go by.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Rules {
    /// Codes and security alerts.
    pub critical: ClassRules,
    /// Receipts and account mail.
    pub transactional: ClassRules,
    /// Digests and promotions.
    pub bulk: ClassRules,
    /// What the operator declared, by name.
    pub categories: HashMap<String, CategoryRules>,
}

impl Rules {
    /// The rules of a class.
    pub const fn of(&self, class: Class) -> &ClassRules {
        match class {
            Class::Critical => &self.critical,
            Class::Transactional => &self.transactional,
            Class::Bulk => &self.bulk,
        }
    }

    /// The class of a category's messages; transactional where nothing is said.
    pub fn class_of(&self, category: &str) -> Class {
        self.categories.get(category).and_then(|category| category.class).unwrap_or(Class::Transactional)
    }

    /// What happens when nothing resolves an ambiguous send: the category's word, else its class's for the channel.
    pub fn on_ambiguous(&self, category: &str, class: Class, channel: Channel) -> OnAmbiguous {
        let own = self.categories.get(category).and_then(|category| category.on_ambiguous);
        own.unwrap_or_else(|| self.of(class).ambiguity.on(channel))
    }

    /// How long a message of this category is worth sending from when it is due, where the request names no end.
    pub fn deadline(&self, category: &str, class: Class) -> Duration {
        let own = self.categories.get(category).and_then(|category| category.expires_in);
        own.unwrap_or(self.of(class).retry.deadline)
    }

    /// The settings that contradict each other; empty for the defaults.
    pub fn contradictions(&self) -> Vec<String> {
        let mut found = Vec::new();
        for class in Class::ALL {
            let rules = self.of(*class);
            let mut check = |holds: bool, text: String| {
                if !holds {
                    found.push(text);
                }
            };
            check(rules.retry.attempts >= 1, format!("retry.{class}.attempts must be at least 1"));
            check(!rules.retry.base.is_zero(), format!("retry.{class}.base must be longer than 0s"));
            check(rules.retry.base <= rules.retry.cap, format!("retry.{class}.base must not exceed retry.{class}.cap"));
            check(
                rules.ambiguity.hold + rules.ambiguity.patience < rules.retry.deadline,
                format!("ambiguity.{class}.hold and patience together must be shorter than retry.{class}.deadline"),
            );
            let ceilings: Duration = (0..rules.retry.attempts.saturating_sub(1)).map(|n| rules.retry.ceiling(NotSent::Answered, n)).sum();
            // Full jitter halves the sum on average; the deadline has to leave room for at least that.
            check(
                ceilings / 2 < rules.retry.deadline,
                format!("retry.{class}.deadline is too short for its {} attempts", rules.retry.attempts),
            );
        }
        found
    }
}

impl Default for Rules {
    fn default() -> Self {
        use OnAmbiguous::{Hold, Resend};
        Self {
            critical: ClassRules {
                retry: Retry { attempts: 8, deadline: 10 * MINUTE, base: 2 * SECOND, factor: 2, cap: MINUTE, unreachable_cap: 15 * SECOND },
                ambiguity: Ambiguity { patience: 20 * SECOND, hold: 20 * SECOND, email: Resend, sms: Resend, push: Resend },
                max_lateness: 2 * MINUTE,
            },
            transactional: ClassRules {
                retry: Retry {
                    attempts: 10,
                    deadline: 24 * HOUR,
                    base: 30 * SECOND,
                    factor: 4,
                    cap: 4 * HOUR,
                    unreachable_cap: 5 * MINUTE,
                },
                ambiguity: Ambiguity { patience: 5 * MINUTE, hold: 30 * MINUTE, email: Resend, sms: Hold, push: Hold },
                max_lateness: 12 * HOUR,
            },
            bulk: ClassRules {
                retry: Retry { attempts: 14, deadline: 72 * HOUR, base: MINUTE, factor: 4, cap: 6 * HOUR, unreachable_cap: 5 * MINUTE },
                ambiguity: Ambiguity { patience: 10 * MINUTE, hold: 2 * HOUR, email: Hold, sms: Hold, push: Hold },
                max_lateness: 2 * HOUR,
            },
            categories: HashMap::new(),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;
    use proptest::sample::select;

    #[test]
    fn the_defaults_do_not_contradict_each_other() {
        assert_eq!(Rules::default().contradictions(), Vec::<String>::new());
    }

    #[test]
    fn the_nearest_contradiction_is_named() {
        let mut rules = Rules::default();
        rules.critical.ambiguity.hold = 10 * MINUTE - rules.critical.ambiguity.patience;
        assert_eq!(rules.contradictions(), ["ambiguity.critical.hold and patience together must be shorter than retry.critical.deadline"]);
        rules.critical.ambiguity.hold -= Duration::from_millis(1);
        assert_eq!(rules.contradictions(), Vec::<String>::new());
    }

    proptest! {
        #[test]
        fn delays_are_spread_below_their_ceiling_and_never_shorter_than_asked(
            class in select(Class::ALL), why in select(&[NotSent::Unreachable, NotSent::Answered][..]), failures in 0_u16..500,
            asked in proptest::option::of(0_u64..100_000), jitter in 0.0_f64..1.0,
        ) {
            let retry = Rules::default().of(*Class::ALL.iter().find(|c| **c == class).unwrap()).retry;
            let asked = asked.map(Duration::from_secs);
            let delay = retry.delay(why, failures, asked, jitter);
            prop_assert!(delay >= asked.unwrap_or_default());
            prop_assert!(delay <= retry.ceiling(why, failures).max(asked.unwrap_or_default()));
            prop_assert!(retry.ceiling(why, failures) <= retry.cap);
            prop_assert!(retry.ceiling(why, failures) <= retry.ceiling(why, failures + 1));
        }
    }
}
