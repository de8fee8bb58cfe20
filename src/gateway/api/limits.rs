//! How much one tenant may ask for, how deep the queue may get, and how often an address may fail to authenticate
//! (S-083 to S-087, S-100). Failed authentications are counted in each process alone: no store can fail them (S-088).

use std::collections::HashMap;
use std::net::IpAddr;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use actix_web::http::header::{HeaderName, HeaderValue};
use actix_web::{HttpMessage as _, HttpRequest, HttpResponse, web};
use serde::Serialize;
use tidings_core::ids::TenantId;
use tidings_core::rate::{Bucket, Rate, Refused};
use tidings_core::time::Timestamp;
use tidings_core::words::Class;

use super::allowances::Allowances;
use super::auth::{self, Caller};
use super::problem::{Code, Problem};
use super::query::Query;
use super::{Api, json, view};
use crate::app::App;

/// How often one address may present a key that does not open: once a second, after twenty at once.
const FAILURES: Rate = Rate { per_second: 1, burst: 20 };
/// Addresses that are remembered (S-100).
const ADDRESSES: usize = 100_000;
/// After which it may help to come back to a full queue.
const QUEUE_PATIENCE: Duration = Duration::from_secs(10);
/// The most notifications of one batch.
pub(super) const BATCH: usize = 500;

static POLICY: HeaderName = HeaderName::from_static("ratelimit-policy");
static STATE: HeaderName = HeaderName::from_static("ratelimit");

/// The limits of this process. What a tenant may is in the configuration that its request goes by; what it has used stays
/// when that changes.
pub(super) struct Limits {
    tenants: Arc<Allowances>,
    failures: Mutex<Failures>,
}

impl Limits {
    /// Nobody has asked or failed yet.
    pub(super) fn new(app: &App) -> Self {
        Self { tenants: Allowances::new(app), failures: Mutex::default() }
    }

    /// Takes what a request costs from its tenant's bucket: all of it or nothing (S-084).
    ///
    /// # Errors
    /// `rate_limited`, saying when to come back.
    pub(super) async fn charge(&self, caller: &Caller, cost: u32) -> Result<(), Problem> {
        let Some(rate) = rate_of(caller) else { return Ok(()) };
        self.tenants.charge(caller.tenant, rate, cost.max(1)).await.map_err(|refused| {
            let per_second = rate.per_second;
            let (wait, detail) = match refused {
                Refused::For(wait) => (wait, format!("this costs {cost} of the {per_second} messages a second that a tenant may ask for")),
                Refused::TooMuch => {
                    let detail = format!("this costs {cost}, and a tenant may ask for {} at once: send it in parts", rate.burst);
                    (rate.window(), detail)
                }
            };
            Problem::new(Code::RateLimited, detail).after(wait)
        })
    }

    /// Refuses a caller whose bucket is empty before anything is read of the request.
    ///
    /// # Errors
    /// `rate_limited`, saying when to come back.
    pub(super) fn admit(&self, caller: &Caller) -> Result<(), Problem> {
        let Some(rate) = &rate_of(caller) else { return Ok(()) };
        match self.tenants.state(caller.tenant, *rate) {
            (0, _) => {
                let wait = Duration::from_secs(1) / rate.per_second.max(1);
                let detail = format!("a tenant may ask for {} messages a second", rate.per_second);
                Err(Problem::new(Code::RateLimited, detail).after(wait))
            }
            _ => Ok(()),
        }
    }

    /// Counts a failed authentication.
    ///
    /// # Errors
    /// `rate_limited`, once the address has failed too often.
    pub(super) fn failed(&self, from: Option<IpAddr>, now: Timestamp) -> Result<(), Problem> {
        lock(&self.failures).take(from, now).map_err(|wait| {
            Problem::new(Code::RateLimited, "too many requests with API keys that are not valid came from your address").after(wait)
        })
    }

    /// Whether an address has failed so often that the next key is not even looked up.
    pub(super) fn has_failed_too_often(&self, from: Option<IpAddr>, now: Timestamp) -> bool {
        lock(&self.failures).is_empty(from, now)
    }
}

/// How much a tenant may ask for, by the configuration that its request goes by.
fn rate_of(caller: &Caller) -> Option<Rate> {
    caller.setup.settings.limits.tenant_rate
}

fn lock<T>(mutex: &Mutex<T>) -> std::sync::MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Failed authentications by address; of IPv6 the /64, since one machine has all of it.
#[derive(Default)]
struct Failures {
    buckets: HashMap<IpAddr, Bucket>,
    /// Addresses were forgotten for want of room: until then an unknown one starts empty, so that nobody wins by it.
    distrusted_until: Option<Timestamp>,
}

impl Failures {
    fn take(&mut self, from: Option<IpAddr>, now: Timestamp) -> Result<(), Duration> {
        let address = network(from);
        if !self.buckets.contains_key(&address) {
            self.make_room(now);
            let fresh = self.fresh(now);
            self.buckets.insert(address, fresh);
        }
        let Some(bucket) = self.buckets.get_mut(&address) else { return Ok(()) };
        bucket.take(&FAILURES, 1, now).map_err(|refused| match refused {
            Refused::For(wait) => wait,
            Refused::TooMuch => FAILURES.window(),
        })
    }

    fn is_empty(&mut self, from: Option<IpAddr>, now: Timestamp) -> bool {
        self.buckets.get_mut(&network(from)).is_some_and(|bucket| bucket.state(&FAILURES, now).0 == 0)
    }

    fn fresh(&self, now: Timestamp) -> Bucket {
        if self.distrusted_until.is_some_and(|until| now < until) { Bucket::empty(now) } else { Bucket::full(&FAILURES, now) }
    }

    fn make_room(&mut self, now: Timestamp) {
        if self.buckets.len() < ADDRESSES {
            return;
        }
        self.buckets.retain(|_, bucket| bucket.state(&FAILURES, now).0 < FAILURES.burst);
        if self.buckets.len() >= ADDRESSES {
            self.buckets.clear();
            self.distrusted_until = Some(now.plus(FAILURES.window()));
        }
    }
}

fn network(from: Option<IpAddr>) -> IpAddr {
    match from {
        Some(IpAddr::V6(v6)) => match v6.to_ipv4_mapped() {
            Some(v4) => IpAddr::V4(v4),
            None => IpAddr::V6((u128::from(v6) & !u128::from(u64::MAX)).into()),
        },
        Some(v4) => v4,
        None => IpAddr::V4(std::net::Ipv4Addr::UNSPECIFIED),
    }
}

/// The address of the other end of the connection: what a client writes into headers does not count.
pub(super) fn peer(request: &HttpRequest) -> Option<IpAddr> {
    request.peer_addr().map(|address| address.ip())
}

/// Refuses what would make the queue deeper than it may be. Codes get a tenth more: they are what must not wait behind.
///
/// # Errors
/// `queue_full`.
pub(super) fn refuse_full_queue(api: &Api, caller: &Caller, class: Class) -> Result<(), Problem> {
    let depth = caller.setup.settings.limits.queue_depth;
    let depth = if class == Class::Critical { depth + depth / 10 } else { depth };
    if api.app.writer.open_rows() < depth {
        return Ok(());
    }
    let detail = "too many messages wait to be sent (limits.queue_depth)";
    Err(Problem::new(Code::QueueFull, detail).after(QUEUE_PATIENCE))
}

/// Whose bucket the answer tells of.
#[derive(Clone, Copy)]
struct Limited(TenantId, Rate);

/// Notes whose request this is, for the headers of its answer.
pub(super) fn note(request: &HttpRequest, caller: &Caller) {
    if let Some(rate) = rate_of(caller) {
        request.extensions_mut().insert(Limited(caller.tenant, rate));
    }
}

/// `RateLimit` and `RateLimit-Policy` (draft-ietf-httpapi-ratelimit-headers-10), on good answers too, where a limit is set.
pub(super) fn complete(answer: &mut HttpResponse, request: &HttpRequest) {
    let Some(Limited(tenant, rate)) = request.extensions().get::<Limited>().copied() else { return };
    let Some(api) = request.app_data::<web::Data<Api>>() else { return };
    let (left, full_in) = api.limits.tenants.state(tenant, rate);
    let policy = format!("\"tenant\";q={};w={}", rate.burst, seconds(rate.window()));
    let state = format!("\"tenant\";r={left};t={}", seconds(full_in));
    for (name, value) in [(&POLICY, policy), (&STATE, state)] {
        if let Ok(value) = HeaderValue::try_from(value) {
            answer.headers_mut().insert(name.clone(), value);
        }
    }
}

/// Whole seconds, rounded up.
fn seconds(span: Duration) -> u64 {
    span.as_secs() + u64::from(span.subsec_nanos() > 0)
}

#[derive(Serialize)]
struct Shown {
    tenant_rate: Option<ShownRate>,
    queue_depth: i64,
    body: u64,
    batch_body: u64,
    batch_items: usize,
    recipients: usize,
    idempotency_key: &'static str,
}

#[derive(Serialize)]
struct ShownRate {
    per_second: u32,
    burst: u32,
    remaining: u32,
    full_in_ms: u64,
}

/// `GET /v1/limits`: what holds for this key, for anybody who has one.
pub(super) async fn show(http: HttpRequest, api: web::Data<Api>) -> Result<HttpResponse, Problem> {
    let caller = auth::caller(&api, &http).await?;
    Query::read(&http, &[])?;
    let limits = &caller.setup.settings.limits;
    let state = |rate: Rate| (rate, api.limits.tenants.state(caller.tenant, rate));
    let shown = Shown {
        tenant_rate: limits.tenant_rate.map(state).map(|(rate, (remaining, full_in))| ShownRate {
            per_second: rate.per_second,
            burst: rate.burst,
            remaining,
            full_in_ms: u64::try_from(full_in.as_millis()).unwrap_or(u64::MAX),
        }),
        queue_depth: limits.queue_depth,
        body: limits.body,
        batch_body: limits.batch_body,
        batch_items: BATCH,
        recipients: limits.recipients,
        idempotency_key: if limits.requires_keys { "required" } else { "optional" },
    };
    Ok(json(HttpResponse::Ok(), view::to_json(&shown)))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn at(seconds: i64) -> Timestamp {
        Timestamp::from_millis(1_800_000_000_000 + seconds * 1_000)
    }

    #[test]
    fn who_fails_too_often_has_to_wait_and_nobody_else_has() {
        let mut failures = Failures::default();
        let (bad, other) = (Some("192.0.2.1".parse().unwrap()), Some("192.0.2.2".parse().unwrap()));
        assert_eq!((0..30).filter(|_| failures.take(bad, at(0)).is_ok()).count(), 20);
        assert!(failures.is_empty(bad, at(0)) && !failures.is_empty(other, at(0)));
        assert!(failures.take(other, at(0)).is_ok());
        assert!(!failures.is_empty(bad, at(10)));
    }

    #[test]
    fn one_network_of_ipv6_is_one_caller() {
        let mut failures = Failures::default();
        let address = |last: u16| Some(IpAddr::from([0x2001, 0xdb8, 0, 1, 7, 8, 9, last]));
        assert_eq!((0..30).filter(|n| failures.take(address(*n), at(0)).is_ok()).count(), 20);
        assert_eq!(network(Some("::ffff:192.0.2.1".parse().unwrap())), network(Some("192.0.2.1".parse().unwrap())));
    }

    /// S-100: a million addresses take no more room than a hundred thousand, and whoever is forgotten starts empty.
    #[test]
    fn addresses_are_bounded_and_nobody_wins_by_being_forgotten() {
        let mut failures = Failures::default();
        for n in 0..1_000_000_u32 {
            let _ = failures.take(Some(IpAddr::V4(n.into())), at(0));
            assert!(failures.buckets.len() <= ADDRESSES);
        }
        assert!(failures.take(Some("203.0.113.9".parse().unwrap()), at(0)).is_err());
        assert!(failures.take(Some("203.0.113.10".parse().unwrap()), at(60)).is_ok());
    }
}
