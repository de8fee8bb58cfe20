//! `/v1/notifications`: accepting one, replaying an earlier answer, reading how one stands.
//! What becomes of a key is decided by the store's unique index; this tells the caller (S-005 to S-012).

use std::collections::HashMap;
use std::time::Duration;

use actix_web::http::header::{self, HeaderName, HeaderValue};
use actix_web::{HttpMessage as _, HttpRequest, HttpResponse, web};
use tidings_core::fault::Faults;
use tidings_core::fingerprint;
use tidings_core::ids::{AccountId, NotificationId};
use tidings_core::request::{self, Refused};
use tidings_core::secrets::FINGERPRINT_VERSION;
use tidings_core::store::{Accepted, KeyHolder, StoreError, StoredDelivery, StoredNotification};

use super::auth::{self, Caller, Scope};
use super::frame::RequestId;
use super::problem::{Code, Existing, Problem};
use super::query::Query;
use super::read::Reader;
use super::view;
use super::{Api, BUDGET, body, json};
use crate::intake::{self, Call, Intake, Refusal};
use crate::writer::WriteError;

static IDEMPOTENCY_KEY: HeaderName = HeaderName::from_static("idempotency-key");
static TRACEPARENT: HeaderName = HeaderName::from_static("traceparent");
const LONGEST_KEY: usize = 255;
/// When the outcome of a commit is not known, the key is looked up after each of these (S-012).
const LOOK_UPS: [Duration; 3] = [Duration::ZERO, Duration::from_millis(300), Duration::from_millis(600)];

/// `POST /v1/notifications`
pub(super) async fn accept(http: HttpRequest, payload: web::Payload, api: web::Data<Api>) -> Result<HttpResponse, Problem> {
    let caller = auth::caller(&api, &http).await?;
    caller.require(Scope::Send)?;
    body::require_json(&http)?;
    let idempotency_key = idempotency_key(&http)?;
    let limit = usize::try_from(api.app.settings.limits.body).unwrap_or(usize::MAX);
    let (body, room) = body::read(&api.room, &http, payload, limit).await?;
    match judged(&api, &http, &caller, idempotency_key, &body)? {
        Judged::Fit(intake) => {
            drop(body);
            let request_id = http.extensions().get::<RequestId>().copied();
            commit(&api, &caller, intake, request_id, room).await
        }
        // What was accepted once keeps its answer, though it would not be accepted now.
        Judged::Unfit(faults, fingerprint) => match Box::pin(earlier_answer(&api, &caller, idempotency_key, &fingerprint)).await {
            Some(answer) => Ok(answer),
            None => Err(faults.into()),
        },
    }
}

/// What a body comes to.
enum Judged {
    /// It may be committed.
    Fit(Intake),
    /// It would not be accepted now; its fingerprint tells whether it was.
    Unfit(Faults, [u8; 32]),
}

/// Everything between body and commit, apart from the handler: what it needs on the way does not ride in the handler's future.
fn judged(api: &Api, http: &HttpRequest, caller: &Caller, idempotency_key: &str, body: &[u8]) -> Result<Judged, Problem> {
    let now = api.app.now();
    let (request, overdue) = match request::parse(body, &api.app.settings.limits.of_requests(), now) {
        Ok(request) => (request, None),
        Err(Refused { faults, overdue: Some(request) }) => (*request, Some(faults)),
        Err(Refused { faults, overdue: None }) => return Err(faults.into()),
    };
    let fingerprint = api.app.keyring.fingerprint(&fingerprint::canonical(&request));
    if let Some(faults) = overdue {
        return Ok(Judged::Unfit(faults, fingerprint));
    }
    let call = Call { caller, idempotency_key, fingerprint, trace_context: trace_context(http), now };
    match intake::prepare(&api.app, &call, request) {
        Ok(intake) => Ok(Judged::Fit(intake)),
        Err(Refusal::Faults(faults)) => Ok(Judged::Unfit(faults, fingerprint)),
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

/// The caller's key: 1 to 255 visible ASCII characters, given once (S-003).
fn idempotency_key(http: &HttpRequest) -> Result<&str, Problem> {
    let mut given = http.headers().get_all(&IDEMPOTENCY_KEY);
    let Some(key) = given.next() else {
        let detail = "send an Idempotency-Key header: your own name for this notification, the same again when you repeat the request";
        return Err(Problem::new(Code::IdempotencyKeyMissing, detail));
    };
    let invalid = |detail: &'static str| Problem::new(Code::IdempotencyKeyInvalid, detail);
    if given.next().is_some() {
        return Err(invalid("the Idempotency-Key header is given twice"));
    }
    match key.to_str() {
        Ok(key) if (1..=LONGEST_KEY).contains(&key.len()) && key.bytes().all(|byte| byte.is_ascii_graphic()) => Ok(key),
        _ => Err(invalid("an Idempotency-Key is 1 to 255 visible ASCII characters without spaces")),
    }
}

/// The caller's `traceparent`, where it is one (W3C Trace Context); anything else is left out without a word.
fn trace_context(http: &HttpRequest) -> Option<String> {
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

/// Commits within the budget. The commit and its wake-up are the writer's, and go on when the caller goes away (S-013).
async fn commit(
    api: &Api,
    caller: &Caller,
    intake: Intake,
    request_id: Option<RequestId>,
    room: body::Taken,
) -> Result<HttpResponse, Problem> {
    match tokio::time::timeout(BUDGET, decided(api, caller, intake, request_id, room)).await {
        Ok(answer) => answer,
        Err(_) => Err(Problem::outcome_unknown()),
    }
}

async fn decided(
    api: &Api,
    caller: &Caller,
    intake: Intake,
    request_id: Option<RequestId>,
    room: body::Taken,
) -> Result<HttpResponse, Problem> {
    // What is rare is boxed: nobody else's future carries it.
    match api.app.writer.accept(intake.notification.clone(), room).await {
        Ok(Accepted::Taken) => Ok(taken(intake, request_id)),
        Ok(Accepted::KeyHeld(holder)) => Box::pin(held(api, caller, &intake.notification.fingerprint, &holder)).await,
        Ok(Accepted::InProgress) => {
            Err(Problem::new(Code::IdempotencyInProgress, "an earlier request under this Idempotency-Key is not decided yet"))
        }
        Err(WriteError::Overloaded) => Err(Problem::new(Code::Overloaded, "too many requests wait for the store")),
        Err(WriteError::Stopped | WriteError::Store(StoreError::CommitUnknown(_))) => {
            Box::pin(find_out(api, caller, intake, request_id)).await
        }
        Err(WriteError::Store(error)) => Err(Problem::store(&error)),
    }
}

fn taken(intake: Intake, request_id: Option<RequestId>) -> HttpResponse {
    let Intake { notification, answer } = intake;
    tracing::debug!(
        request_id = request_id.map(tracing::field::display),
        notification_id = %notification.id,
        deliveries = notification.deliveries.len(),
        class = notification.class.as_str(),
        "notification accepted"
    );
    json(HttpResponse::Accepted(), answer)
}

/// The commit may have happened: the key knows (S-012).
async fn find_out(api: &Api, caller: &Caller, intake: Intake, request_id: Option<RequestId>) -> Result<HttpResponse, Problem> {
    for pause in LOOK_UPS {
        tokio::time::sleep(pause).await;
        match holder(api, caller, &intake.notification.idempotency_key).await {
            Ok(Some(holder)) if holder.id == intake.notification.id => return Ok(taken(intake, request_id)),
            Ok(Some(holder)) => return held(api, caller, &intake.notification.fingerprint, &holder).await,
            // Not there yet, or not to be read yet.
            Ok(None) | Err(_) => {}
        }
    }
    Err(Problem::outcome_unknown())
}

/// The key belongs to an earlier notification: the same request gets the first answer again, another one is refused.
async fn held(api: &Api, caller: &Caller, fingerprint: &[u8], holder: &KeyHolder) -> Result<HttpResponse, Problem> {
    let stored = stored(api, caller, holder.id).await?;
    let stored = stored.ok_or_else(|| Problem::internal(&StoreError::Unreadable("a key whose notification is gone".to_owned())))?;
    if is_same(holder, fingerprint) {
        return replay(api, &stored);
    }
    Err(Problem::key_reused(Existing::new(stored.id, view::status(&stored))))
}

/// The first answer, where this very request was accepted earlier under this key.
async fn earlier_answer(api: &Api, caller: &Caller, key: &str, fingerprint: &[u8]) -> Option<HttpResponse> {
    let holder = holder(api, caller, key).await.ok()??;
    if !is_same(&holder, fingerprint) {
        return None;
    }
    let stored = stored(api, caller, holder.id).await.ok()??;
    replay(api, &stored).ok()
}

/// A fingerprint of another version says nothing about ours.
fn is_same(holder: &KeyHolder, fingerprint: &[u8]) -> bool {
    holder.fingerprint_version == FINGERPRINT_VERSION && holder.fingerprint == fingerprint
}

fn replay(api: &Api, stored: &StoredNotification) -> Result<HttpResponse, Problem> {
    let body = view::first_again(&api.app.keyring, stored).map_err(|err| Problem::internal(&err))?;
    let mut answer = json(HttpResponse::Accepted(), body);
    answer.headers_mut().insert(HeaderName::from_static("idempotent-replayed"), HeaderValue::from_static("true"));
    Ok(answer)
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
    let former_accounts = former_accounts(api, &stored.deliveries).await?;
    let body = reader(api, caller, &former_accounts).render(&stored).map_err(|err| Problem::internal(&err))?;
    let version: i64 = stored.deliveries.iter().map(|stored| i64::from(stored.delivery.version)).sum();
    let mut answer = HttpResponse::Ok();
    answer.insert_header((header::ETAG, format!("\"{version}\"")));
    Ok(json(answer, body))
}

/// What renders answers for this caller.
pub(super) fn reader<'a>(api: &'a Api, caller: &Caller, former_accounts: &'a HashMap<AccountId, String>) -> Reader<'a> {
    Reader {
        keyring: &api.app.keyring,
        routing: &api.app.routing,
        slots: &api.app.slots,
        former_accounts,
        sees_addresses: caller.has(Scope::Pii),
        now: api.app.now(),
    }
}

/// The names of accounts, where one of these deliveries had one that is no longer configured.
pub(super) async fn former_accounts(
    api: &Api,
    deliveries: impl IntoIterator<Item = &StoredDelivery>,
) -> Result<HashMap<AccountId, String>, Problem> {
    let accounts = deliveries
        .into_iter()
        .flat_map(|stored| stored.delivery.account.into_iter().chain(stored.attempts.iter().filter_map(|attempt| attempt.account)));
    if accounts.into_iter().all(|id| api.app.routing.account(id).is_some()) {
        return Ok(HashMap::new());
    }
    Ok(api.read(|store| async move { store.account_names().await }).await?.into_iter().collect())
}
