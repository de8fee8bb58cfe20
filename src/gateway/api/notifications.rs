//! `/v1/notifications`: accepting one, replaying an earlier answer, reading how one stands.
//! What becomes of a key is decided by the store's unique index; this tells the caller (S-005 to S-012).

use std::collections::HashMap;
use std::time::Duration;

use actix_web::http::header::{self, HeaderName, HeaderValue};
use actix_web::{HttpMessage as _, HttpRequest, HttpResponse, web};
use tidings_core::fault::Faults;
use tidings_core::fingerprint;
use tidings_core::ids::{AccountId, NotificationId};
use tidings_core::key_expiry::key_is_free;
use tidings_core::pointer::Pointer;
use tidings_core::policy::OnKeyReuse;
use tidings_core::request::{self, Refused, Request};
use tidings_core::secrets::FINGERPRINT_VERSION;
use tidings_core::store::{Accepted, KeyHolder, StoreError, StoredDelivery, StoredNotification};
use tidings_core::time::Timestamp;

use super::auth::{self, Caller, Scope};
use super::frame::RequestId;
use super::problem::{Code, Existing, Problem};
use super::query::Query;
use super::read::Reader;
use super::view;
use super::{Api, BUDGET, body, json, limits, reuse};
use crate::intake::{self, Call, Intake, Refusal};
use crate::writer::WriteError;

static IDEMPOTENCY_KEY: HeaderName = HeaderName::from_static("idempotency-key");
static TRACEPARENT: HeaderName = HeaderName::from_static("traceparent");
const LONGEST_KEY: usize = 255;
/// When the outcome of a commit is not known, the key is looked up after each of these (S-012).
const LOOK_UPS: [Duration; 3] = [Duration::ZERO, Duration::from_millis(300), Duration::from_millis(600)];
/// How far the clocks of processes may be apart, with room to spare.
const CLOCKS_DIFFER: Duration = Duration::from_secs(60);

/// `POST /v1/notifications`
pub(super) async fn accept(http: HttpRequest, payload: web::Payload, api: web::Data<Api>) -> Result<HttpResponse, Problem> {
    let caller = auth::caller(&api, &http).await?;
    caller.require(Scope::Send)?;
    body::require_json(&http)?;
    let idempotency_key = idempotency_key(&http, caller.setup.settings.limits.requires_keys)?;
    api.limits.admit(&caller)?;
    let limit = usize::try_from(caller.setup.settings.limits.body).unwrap_or(usize::MAX);
    let (body, room) = body::read(&api.room, &http, payload, limit).await?;
    match judged(&api, &http, &caller, idempotency_key, &body)? {
        Judged::Fit(intake) => {
            drop(body);
            limits::refuse_full_queue(&api, &caller, intake.notification.class)?;
            Box::pin(api.limits.charge(&caller, intake.cost())).await?;
            let request_id = http.extensions().get::<RequestId>().copied();
            commit(&api, &caller, intake, request_id, room).await
        }
        // What was accepted once keeps its answer, though it would not be accepted now.
        Judged::Unfit(faults, fingerprint) => match Box::pin(earlier_answer(&api, &caller, idempotency_key, &fingerprint)).await {
            Some(answer) => Ok(answer.into_response()),
            None => Err(faults.into()),
        },
    }
}

/// What a body comes to.
pub(super) enum Judged {
    /// It may be committed.
    Fit(Intake),
    /// It would not be accepted now; its fingerprint tells whether it was.
    Unfit(Faults, [u8; 32]),
}

/// Everything between body and commit, apart from the handler: what it needs on the way does not ride in the handler's future.
fn judged(api: &Api, http: &HttpRequest, caller: &Caller, key: Option<&str>, body: &[u8]) -> Result<Judged, Problem> {
    let now = api.app.now();
    let parsed = request::parse(body, &caller.setup.settings.limits.of_requests(), now);
    judge(api, caller, key, &Pointer::ROOT, trace_context(http), parsed, now)
}

/// What a request that was read at `at` comes to.
pub(super) fn judge(
    api: &Api,
    caller: &Caller,
    idempotency_key: Option<&str>,
    at: &Pointer<'_>,
    trace_context: Option<String>,
    parsed: Result<Request, Refused>,
    now: Timestamp,
) -> Result<Judged, Problem> {
    let (request, overdue) = match parsed {
        Ok(request) => (request, None),
        Err(Refused { faults, overdue: Some(request) }) => (*request, Some(faults)),
        Err(Refused { faults, overdue: None }) => return Err(faults.into()),
    };
    let fingerprint = api.app.keyring.fingerprint(&fingerprint::canonical(&request));
    if let Some(faults) = overdue {
        return Ok(Judged::Unfit(faults, fingerprint));
    }
    let call = Call { caller, idempotency_key, fingerprint, trace_context, now };
    match intake::prepare(&api.app, &call, request) {
        Ok(intake) => Ok(Judged::Fit(intake)),
        Err(Refusal::Faults(faults)) => Ok(Judged::Unfit(faults.within(at), fingerprint)),
        Err(Refusal::CriticalScopeMissing) => caller.require(Scope::SendCritical).and(Err(Problem::not_found())),
    }
}

/// `GET /v1/notifications/{id}`
pub(super) async fn by_id(http: HttpRequest, id: web::Path<String>, api: web::Data<Api>) -> Result<HttpResponse, Problem> {
    let caller = auth::caller(&api, &http).await?;
    caller.require(Scope::Read)?;
    Query::read(&http, &[])?;
    let id = id.parse().map_err(|_| Problem::not_found())?;
    shown(&api, &caller, id).await
}

/// `GET /v1/notifications/by-key?idempotency_key=K`
pub(super) async fn by_key(http: HttpRequest, api: web::Data<Api>) -> Result<HttpResponse, Problem> {
    let caller = auth::caller(&api, &http).await?;
    caller.require(Scope::Read)?;
    let id = named_by_key(&api, &http, &caller).await?;
    shown(&api, &caller, id).await
}

/// The notification that the parameter `idempotency_key` names.
pub(super) async fn named_by_key(api: &Api, http: &HttpRequest, caller: &Caller) -> Result<NotificationId, Problem> {
    let query = Query::read(http, &["idempotency_key"])?;
    let key = query.get("idempotency_key").map(str::to_owned);
    let key = key.ok_or_else(|| Problem::new(Code::InvalidField, "the parameter idempotency_key is missing"))?;
    Ok(holder(api, caller, &key).await?.ok_or_else(Problem::not_found)?.id)
}

/// The caller's key, given once (S-003); `None` where it may be left out and is.
fn idempotency_key(http: &HttpRequest, is_required: bool) -> Result<Option<&str>, Problem> {
    let mut given = http.headers().get_all(&IDEMPOTENCY_KEY);
    let Some(key) = given.next() else {
        let detail = "send an Idempotency-Key header: your own name for this notification, the same again when you repeat the request";
        return if is_required { Err(Problem::new(Code::IdempotencyKeyMissing, detail)) } else { Ok(None) };
    };
    if given.next().is_some() {
        return Err(Problem::new(Code::IdempotencyKeyInvalid, "the Idempotency-Key header is given twice"));
    }
    match key.to_str() {
        Ok(key) if is_key(key) => Ok(Some(key)),
        _ => Err(Problem::new(Code::IdempotencyKeyInvalid, "an Idempotency-Key is 1 to 255 visible ASCII characters without spaces")),
    }
}

/// Whether this may be a key: 1 to 255 visible ASCII characters.
pub(super) fn is_key(key: &str) -> bool {
    (1..=LONGEST_KEY).contains(&key.len()) && key.bytes().all(|byte| byte.is_ascii_graphic())
}

/// The caller's `traceparent`, where it is one (W3C Trace Context); anything else is left out without a word.
pub(super) fn trace_context(http: &HttpRequest) -> Option<String> {
    let text = http.headers().get(&TRACEPARENT)?.to_str().ok()?;
    let mut parts = text.split('-');
    let mut hex = |length: usize| {
        let part = parts.next()?;
        let is_hex = part.len() == length && part.bytes().all(|byte| matches!(byte, b'0'..=b'9' | b'a'..=b'f'));
        is_hex.then_some(part)
    };
    let (version, trace, span, _flags) = (hex(2)?, hex(32)?, hex(16)?, hex(2)?);
    let is_whole = version == "00" && parts.next().is_none() && [trace, span].iter().all(|id| id.bytes().any(|byte| byte != b'0'));
    is_whole.then(|| text.to_owned())
}

/// The answer to a notification that is accepted, now or earlier.
pub(super) struct Answer {
    /// Which notification.
    pub(super) id: NotificationId,
    /// Whether it was accepted earlier.
    pub(super) replay: Replay,
    /// The body of the first answer.
    pub(super) body: Vec<u8>,
}

/// Whether a request was answered before.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum Replay {
    /// It is the first.
    No,
    /// The same request was.
    Same,
    /// Another request was, and its category says that the first one wins.
    Mismatch,
}

impl Answer {
    fn into_response(self) -> HttpResponse {
        let mut answer = json(HttpResponse::Accepted(), self.body);
        let marks: &[&'static str] = match self.replay {
            Replay::No => &[],
            Replay::Same => &["idempotent-replayed"],
            Replay::Mismatch => &["idempotent-replayed", "idempotent-mismatch"],
        };
        for mark in marks {
            answer.headers_mut().insert(HeaderName::from_static(mark), HeaderValue::from_static("true"));
        }
        answer
    }
}

/// Commits within the budget. The commit and its wake-up are the writer's, and go on when the caller goes away (S-013).
async fn commit(
    api: &Api,
    caller: &Caller,
    intake: Intake,
    request_id: Option<RequestId>,
    room: body::Taken,
) -> Result<HttpResponse, Problem> {
    let decided = async {
        let accepted = api.app.writer.accept(intake.notification.clone(), room).await;
        answered(api, caller, intake, accepted, request_id).await
    };
    match tokio::time::timeout(BUDGET, decided).await {
        Ok(answer) => answer.map(Answer::into_response),
        Err(_) => Err(Problem::outcome_unknown()),
    }
}

/// What the writer's word means for the caller.
pub(super) async fn answered(
    api: &Api,
    caller: &Caller,
    intake: Intake,
    accepted: Result<Accepted, WriteError>,
    request_id: Option<RequestId>,
) -> Result<Answer, Problem> {
    // What is rare is boxed: nobody else's future carries it.
    match accepted {
        Ok(Accepted::Taken) => Ok(taken(intake, request_id)),
        Ok(Accepted::KeyHeld(holder)) => Box::pin(held(api, caller, &intake, &holder)).await,
        Ok(Accepted::InProgress) => Err(undecided()),
        Err(WriteError::Overloaded) => Err(overloaded()),
        Err(WriteError::Stopped | WriteError::Store(StoreError::CommitUnknown(_))) => {
            Box::pin(find_out(api, caller, intake, request_id)).await
        }
        Err(WriteError::Store(error)) => Err(Problem::store(&error)),
    }
}

fn undecided() -> Problem {
    Problem::new(Code::IdempotencyInProgress, "an earlier request under this Idempotency-Key is not decided yet")
}

pub(super) fn overloaded() -> Problem {
    Problem::new(Code::Overloaded, "too many requests wait for the store")
}

fn taken(intake: Intake, request_id: Option<RequestId>) -> Answer {
    let Intake { notification, answer, .. } = intake;
    tracing::debug!(
        request_id = request_id.map(tracing::field::display),
        notification_id = %notification.id,
        deliveries = notification.deliveries.len(),
        class = notification.class.as_str(),
        "notification accepted"
    );
    Answer { id: notification.id, replay: Replay::No, body: answer }
}

/// The commit may have happened: the key knows (S-012).
async fn find_out(api: &Api, caller: &Caller, intake: Intake, request_id: Option<RequestId>) -> Result<Answer, Problem> {
    for pause in LOOK_UPS {
        tokio::time::sleep(pause).await;
        match holder(api, caller, &intake.notification.idempotency_key).await {
            Ok(Some(holder)) if holder.id == intake.notification.id => return Ok(taken(intake, request_id)),
            Ok(Some(holder)) => return held(api, caller, &intake, &holder).await,
            // Not there yet, or not to be read yet.
            Ok(None) | Err(_) => {}
        }
    }
    Err(Problem::outcome_unknown())
}

/// The key belongs to an earlier notification: the same request gets the first answer again, another one is refused, or
/// gets it too where its category says so.
async fn held(api: &Api, caller: &Caller, intake: &Intake, holder: &KeyHolder) -> Result<Answer, Problem> {
    let stored = stored(api, caller, holder.id).await?;
    // It was purged since: the key is nobody's by now.
    let stored = stored.ok_or_else(undecided)?;
    let new = &intake.notification;
    if is_same(holder, &new.fingerprint) {
        return replay(api, &stored, Replay::Same);
    }
    let rules = caller.setup.rules.categories.get(&new.category);
    match rules.map(|rules| rules.on_key_reuse).unwrap_or_default() {
        OnKeyReuse::FirstWins => replay(api, &stored, Replay::Mismatch),
        OnKeyReuse::Refuse => {
            api.app.metrics.idem_mismatch.inc();
            let differs = reuse::differs(api, &stored, intake).await;
            Err(Problem::key_reused(Existing::new(stored.id, view::status(&stored)), differs))
        }
    }
}

/// The first answer, where this very request was accepted earlier under this key and the key is still its own.
pub(super) async fn earlier_answer(api: &Api, caller: &Caller, key: Option<&str>, fingerprint: &[u8]) -> Option<Answer> {
    let holder = holder(api, caller, key?).await.ok()??;
    if !is_same(&holder, fingerprint) {
        return None;
    }
    let stored = stored(api, caller, holder.id).await.ok()??;
    let is_over = key_is_free(stored.deliveries.iter().map(|stored| stored.delivery.settled_at), api.app.now());
    if is_over { None } else { replay(api, &stored, Replay::Same).ok() }
}

/// A fingerprint of another version says nothing about ours.
fn is_same(holder: &KeyHolder, fingerprint: &[u8]) -> bool {
    holder.fingerprint_version == FINGERPRINT_VERSION && holder.fingerprint == fingerprint
}

fn replay(api: &Api, stored: &StoredNotification, replay: Replay) -> Result<Answer, Problem> {
    // The first answer repeats the address, which is erased when the key is free: that was a moment ago, or is so by the
    // clock of another process. Who asks again has the key.
    let settled = stored.deliveries.iter().map(|stored| stored.delivery.settled_at);
    if stored.deliveries.iter().any(|stored| stored.address.is_none()) && key_is_free(settled, api.app.now().plus(CLOCKS_DIFFER)) {
        return Err(undecided());
    }
    let body = view::first_again(&api.app.keyring, stored).map_err(|err| Problem::internal(&err))?;
    match replay {
        Replay::Mismatch => api.app.metrics.idem_mismatch.inc(),
        _ => api.app.metrics.idem_replay.inc(),
    };
    Ok(Answer { id: stored.id, replay, body })
}

pub(super) async fn holder(api: &Api, caller: &Caller, key: &str) -> Result<Option<KeyHolder>, Problem> {
    let (tenant, mode, key) = (caller.tenant, caller.mode, key.to_owned());
    api.read(move |store| async move { store.by_key(tenant, mode, &key).await }).await
}

pub(super) async fn stored(api: &Api, caller: &Caller, id: NotificationId) -> Result<Option<StoredNotification>, Problem> {
    let (tenant, mode) = (caller.tenant, caller.mode);
    api.read(move |store| async move { store.notification(tenant, mode, id).await }).await
}

/// How a notification stands now, with its version as `ETag`.
pub(super) async fn shown(api: &Api, caller: &Caller, id: NotificationId) -> Result<HttpResponse, Problem> {
    let stored = stored(api, caller, id).await?.ok_or_else(Problem::not_found)?;
    let former_accounts = former_accounts(api, caller, &stored.deliveries).await?;
    let body = reader(api, caller, &former_accounts).render(&stored).map_err(|err| Problem::internal(&err))?;
    let version: i64 = stored.deliveries.iter().map(|stored| i64::from(stored.delivery.version)).sum();
    let mut answer = HttpResponse::Ok();
    answer.insert_header((header::ETAG, format!("\"{version}\"")));
    Ok(json(answer, body))
}

/// What renders answers for this caller.
pub(super) fn reader<'a>(api: &'a Api, caller: &'a Caller, former_accounts: &'a HashMap<AccountId, String>) -> Reader<'a> {
    let now = api.app.now();
    Reader {
        is_disabled: api.app.pauses.is_disabled(caller.tenant),
        paused: api.app.pauses.at(now, &caller.setup.routing),
        keyring: &api.app.keyring,
        routing: &caller.setup.routing,
        slots: &api.app.slots,
        former_accounts,
        senders: &caller.setup.settings.senders,
        sees_addresses: caller.has(Scope::Pii),
        now,
    }
}

/// The names of accounts, where one of these deliveries had one that is no longer configured.
pub(super) async fn former_accounts(
    api: &Api,
    caller: &Caller,
    deliveries: impl IntoIterator<Item = &StoredDelivery>,
) -> Result<HashMap<AccountId, String>, Problem> {
    let accounts = deliveries
        .into_iter()
        .flat_map(|stored| stored.delivery.account.into_iter().chain(stored.attempts.iter().filter_map(|attempt| attempt.account)));
    if accounts.into_iter().all(|id| caller.setup.routing.account(id).is_some()) {
        return Ok(HashMap::new());
    }
    Ok(api.read(|store| async move { store.account_names().await }).await?.into_iter().collect())
}
