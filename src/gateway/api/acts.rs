//! Cancel, PATCH, resolve and resend. What they do is decided in core, inside the transaction that does it; this reads
//! what is asked for and tells what came of it (S-061, S-065, S-130).

use actix_web::http::header;
use actix_web::{HttpRequest, HttpResponse, web};
use serde::Serialize;
use tidings_core::acts::{Act, Refusal, Target, Verb};
use tidings_core::fault::{FaultCode, Faults};
use tidings_core::ids::{DeliveryId, NotificationId};
use tidings_core::pointer::Pointer;
use tidings_core::request;
use tidings_core::store::{Acted, StoreError};
use tidings_core::words::{Class, Mode, Reason};

use super::auth::{self, Caller, Scope};
use super::notifications::{former_accounts, named_by_key, reader, shown, stored};
use super::problem::{Code, Problem};
use super::query::Query;
use super::read::DeliveryView;
use super::view::to_json;
use super::{Api, BUDGET, body, json};

/// Bodies of acts are short.
const BODY_LIMIT: usize = 16 << 10;

/// `POST /v1/notifications/{id}/cancel`
pub(super) async fn cancel(
    http: HttpRequest,
    payload: web::Payload,
    id: web::Path<String>,
    api: web::Data<Api>,
) -> Result<HttpResponse, Problem> {
    let caller = may_cancel(&api, &http).await?;
    Query::read(&http, &[])?;
    let id = id.parse().map_err(|_| Problem::not_found())?;
    cancel_one(&api, &http, payload, &caller, id).await
}

/// `POST /v1/notifications/by-key/cancel?idempotency_key=K`
pub(super) async fn cancel_by_key(http: HttpRequest, payload: web::Payload, api: web::Data<Api>) -> Result<HttpResponse, Problem> {
    let caller = may_cancel(&api, &http).await?;
    let id = named_by_key(&api, &http, &caller).await?;
    cancel_one(&api, &http, payload, &caller, id).await
}

/// `PATCH /v1/notifications/{id}`
pub(super) async fn reschedule(
    http: HttpRequest,
    payload: web::Payload,
    id: web::Path<String>,
    api: web::Data<Api>,
) -> Result<HttpResponse, Problem> {
    let caller = auth::caller(&api, &http).await?;
    caller.require(Scope::Send)?;
    Query::read(&http, &[])?;
    let id = id.parse().map_err(|_| Problem::not_found())?;
    reschedule_one(&api, &http, payload, &caller, id).await
}

/// `PATCH /v1/notifications/by-key?idempotency_key=K`
pub(super) async fn reschedule_by_key(http: HttpRequest, payload: web::Payload, api: web::Data<Api>) -> Result<HttpResponse, Problem> {
    let caller = auth::caller(&api, &http).await?;
    caller.require(Scope::Send)?;
    let id = named_by_key(&api, &http, &caller).await?;
    reschedule_one(&api, &http, payload, &caller, id).await
}

/// `POST /v1/deliveries/{id}/resolve`
pub(super) async fn resolve(
    http: HttpRequest,
    payload: web::Payload,
    id: web::Path<String>,
    api: web::Data<Api>,
) -> Result<HttpResponse, Problem> {
    let (caller, id) = on_delivery(&api, &http, &id).await?;
    let (finding, reason) = request::acts::resolve(&small_body(&api, &http, payload).await?)?;
    let act = Act { note: Some(reason), ..act(&http, &caller, Target::Delivery(id), Verb::Resolve(finding))? };
    carry_out(&api, act).await?;
    delivery_shown(&api, &caller, id).await
}

/// `POST /v1/deliveries/{id}/resend`
pub(super) async fn resend(
    http: HttpRequest,
    payload: web::Payload,
    id: web::Path<String>,
    api: web::Data<Api>,
) -> Result<HttpResponse, Problem> {
    let (caller, id) = on_delivery(&api, &http, &id).await?;
    let (resend, reason) = request::acts::resend(&small_body(&api, &http, payload).await?)?;
    let act = Act { note: Some(reason), ..act(&http, &caller, Target::Delivery(id), Verb::Resend(resend))? };
    carry_out(&api, act).await?;
    delivery_shown(&api, &caller, id).await
}

/// Whoever may send may take it back, and so may whoever operates.
async fn may_cancel(api: &Api, http: &HttpRequest) -> Result<Caller, Problem> {
    let caller = auth::caller(api, http).await?;
    if !caller.has(Scope::Ops) {
        caller.require(Scope::Send)?;
    }
    Ok(caller)
}

async fn cancel_one(
    api: &Api,
    http: &HttpRequest,
    payload: web::Payload,
    caller: &Caller,
    id: NotificationId,
) -> Result<HttpResponse, Problem> {
    let (body, _room) = body::read(&api.room, http, payload, BODY_LIMIT).await?;
    if !body.is_empty() {
        body::require_json(http)?;
    }
    request::acts::cancel(&body)?;
    let reason = if caller.has(Scope::Send) { Reason::CancelledByRequest } else { Reason::CancelledByOperator };
    carry_out(api, act(http, caller, Target::Notification(id), Verb::Cancel(reason))?).await?;
    shown(api, caller, id).await
}

async fn reschedule_one(
    api: &Api,
    http: &HttpRequest,
    payload: web::Payload,
    caller: &Caller,
    id: NotificationId,
) -> Result<HttpResponse, Problem> {
    let send_at = request::acts::reschedule(&small_body(api, http, payload).await?, api.app.now())?;
    carry_out(api, act(http, caller, Target::Notification(id), Verb::Reschedule(send_at))?).await?;
    shown(api, caller, id).await
}

async fn on_delivery(api: &Api, http: &HttpRequest, id: &str) -> Result<(Caller, DeliveryId), Problem> {
    let caller = auth::caller(api, http).await?;
    caller.require(Scope::Ops)?;
    Query::read(http, &[])?;
    Ok((caller, id.parse().map_err(|_| Problem::not_found())?))
}

pub(super) async fn small_body(api: &Api, http: &HttpRequest, payload: web::Payload) -> Result<bytes::Bytes, Problem> {
    body::require_json(http)?;
    Ok(body::read(&api.room, http, payload, BODY_LIMIT).await?.0)
}

fn act(http: &HttpRequest, caller: &Caller, target: Target, verb: Verb) -> Result<Act, Problem> {
    let if_version = if_match(http)?;
    Ok(Act { tenant: caller.tenant, mode: caller.mode, target, verb, if_version, actor: caller.actor(), note: None })
}

/// The version that `If-Match` names: `"7"`, as `ETag` gives it, or 7, as `version` does. Compression on the way makes
/// the tag a weak one, which names the same version.
fn if_match(http: &HttpRequest) -> Result<Option<i64>, Problem> {
    let mut given = http.headers().get_all(header::IF_MATCH);
    let Some(value) = given.next() else { return Ok(None) };
    let wrong = || Problem::new(Code::InvalidField, "If-Match takes one version, such as \"7\", as ETag and version show it");
    let text = value.to_str().map_err(|_| wrong())?.trim();
    if given.next().is_some() {
        return Err(wrong());
    }
    if text == "*" {
        return Ok(None);
    }
    let tag = text.strip_prefix("W/").unwrap_or(text);
    let tag = tag.strip_prefix('"').and_then(|tag| tag.strip_suffix('"')).unwrap_or(tag);
    let is_plain = (1..=18).contains(&tag.len()) && tag.bytes().all(|byte| byte.is_ascii_digit());
    tag.parse().ok().filter(|_| is_plain).map(Some).ok_or_else(wrong)
}

/// Carries out one act within the budget; it goes on when the caller goes away.
async fn carry_out(api: &Api, act: Act) -> Result<Acted, Problem> {
    let acted = carry_out_all(api, vec![act]).await?.pop();
    let acted = acted.unwrap_or_else(|| Err(StoreError::Unreadable("an act without an answer".to_owned())));
    let acted = acted.map_err(|err| store_problem(&err))?;
    acted.answer.map_err(problem)?;
    Ok(acted)
}

/// Carries out several, at most `MOST_ACTS`.
pub(super) async fn carry_out_all(api: &Api, acts: Vec<Act>) -> Result<Vec<Result<Acted, StoreError>>, Problem> {
    let app = api.app.clone();
    let task = api.runtime.spawn(async move { crate::acts::carry_out(&app, &acts).await });
    match tokio::time::timeout(BUDGET, task).await {
        Ok(Ok(acted)) => Ok(acted),
        Ok(Err(panic)) => Err(Problem::internal(&panic)),
        Err(_) => Err(outcome_unknown()),
    }
}

/// What a store's failure means for an act.
pub(super) fn store_problem(err: &StoreError) -> Problem {
    match err {
        StoreError::CommitUnknown(_) => outcome_unknown(),
        StoreError::Busy(_) | StoreError::Unreachable(_) | StoreError::NotWritable(_) => Problem::store(err),
        StoreError::Refused(_) | StoreError::Unreadable(_) => Problem::store(err),
    }
}

fn outcome_unknown() -> Problem {
    Problem::new(Code::OutcomeUnknown, "the store did not say whether this was done: ask for it again, it is done once")
}

/// What is told of a refusal.
pub(super) fn problem(refusal: Refusal) -> Problem {
    let at = |name: &'static str, detail: String| {
        let mut faults = Faults::new();
        faults.add(&Pointer::ROOT.name(name), FaultCode::InvalidField, detail);
        Problem::from(faults)
    };
    match refusal {
        Refusal::NotFound => Problem::not_found(),
        Refusal::StaleVersion => Problem::new(Code::VersionStale, "it has changed since the version in If-Match"),
        Refusal::AlreadyDispatched(state) => Problem::new(Code::AlreadyDispatched, format!("nothing of it waits any more: it is {state}")),
        Refusal::OutcomeUnresolved(state) => {
            Problem::new(Code::OutcomeUnresolved, format!("what became of it is not known: it is {state}"))
        }
        Refusal::OutcomeKnown(state) => Problem::new(Code::VersionConflict, format!("what became of it is known: it is {state}")),
        Refusal::GenerationMissing(next) => {
            at("generation", format!("it was or may have been sent: name the next generation, {next}, to send it once more"))
        }
        Refusal::GenerationAhead(next) => Problem::new(Code::VersionConflict, format!("the next generation is {next}")),
        Refusal::PastDeadline(deadline) => at("send_at", format!("must be earlier than its expires_at, {deadline}")),
        Refusal::Ordered => at("send_at", "a message with an ordering_key goes out in its turn".to_owned()),
        Refusal::ReplayWindowClosed => Problem::new(Code::ReplayWindowClosed, "it ended more than 14 days ago"),
        Refusal::ReplayedTooOften => {
            Problem::new(Code::ReplayWindowClosed, "it was replayed three times: look into it, and resend it by itself")
        }
        Refusal::ContentErased => Problem::new(Code::ContentErased, "its address or content is no longer kept"),
    }
}

#[derive(Serialize)]
struct DeliveryAnswer<'a> {
    notification_id: NotificationId,
    idempotency_key: &'a str,
    mode: Mode,
    category: &'a str,
    class: Class,
    #[serde(flatten)]
    delivery: DeliveryView<'a>,
}

/// How one delivery stands now, with its version as `ETag`.
async fn delivery_shown(api: &Api, caller: &Caller, id: DeliveryId) -> Result<HttpResponse, Problem> {
    let notification = stored(api, caller, id.notification()).await?.ok_or_else(Problem::not_found)?;
    let found = notification.deliveries.iter().find(|stored| stored.delivery.id == id).ok_or_else(Problem::not_found)?;
    let former_accounts = former_accounts(api, caller, [found]).await?;
    let reader = reader(api, caller, &former_accounts);
    let opened = reader.open(found).map_err(|err| Problem::internal(&err))?;
    let answer = DeliveryAnswer {
        notification_id: notification.id,
        idempotency_key: &notification.idempotency_key,
        mode: notification.mode,
        category: &notification.category,
        class: notification.class,
        delivery: reader.delivery(found, &opened).map_err(|err| Problem::internal(&err))?,
    };
    let mut response = HttpResponse::Ok();
    response.insert_header((header::ETAG, format!("\"{}\"", found.delivery.version)));
    Ok(json(response, to_json(&answer)))
}
