//! `POST /v1/notifications/batch`: many notifications at once, each taken or refused for itself (S-193 to S-195). They go
//! the way of single ones; this decides what holds for the whole: form, size, price, and the order of equal keys.

use std::collections::HashSet;

use actix_web::{HttpMessage as _, HttpRequest, HttpResponse, web};
use futures_util::future::join_all;
use serde::Serialize;
use serde_json::value::RawValue;
use tidings_core::fault::{Fault, FaultCode, Faults};
use tidings_core::ids::NotificationId;
use tidings_core::json::{self, Json};
use tidings_core::nearest::nearest;
use tidings_core::pointer::Pointer;
use tidings_core::request;

use super::auth::{self, Caller, Scope};
use super::frame::RequestId;
use super::limits::{self, BATCH};
use super::notifications::{Answer, Judged, Replay, answered, earlier_answer, is_key, judge, overloaded, trace_context};
use super::problem::{Code, Problem};
use super::{Api, BUDGET, body};
use crate::intake::Intake;
use crate::writer::WriteError;

/// After this many items others get their turn on the thread.
const TURN: usize = 16;

const LIST: &str = "notifications";

/// `POST /v1/notifications/batch`
pub(super) async fn accept(http: HttpRequest, payload: web::Payload, api: web::Data<Api>) -> Result<HttpResponse, Problem> {
    let caller = auth::caller(&api, &http).await?;
    caller.require(Scope::Send)?;
    body::require_json(&http)?;
    api.limits.admit(&caller)?;
    let limit = usize::try_from(caller.setup.settings.limits.batch_body).unwrap_or(usize::MAX);
    let (body, room) = body::read(&api.room, &http, payload, limit).await.map_err(|problem| named(problem, limit))?;
    let mut items = judged(&api, &http, &caller, &body).await?;
    drop(body);

    Box::pin(charge(&api, &caller, &items)).await?;
    let request_id = http.extensions().get::<RequestId>().copied().unwrap_or_else(RequestId::new);
    match tokio::time::timeout(BUDGET, commit(&api, &caller, &mut items, room, request_id)).await {
        Ok(committed) => committed?,
        // What is not decided by now may be committed all the same; each item says so for itself.
        Err(_) => items.iter_mut().for_each(Item::give_up),
    }
    answer(items, request_id)
}

/// The framework for the size of a body names the setting of single requests.
fn named(problem: Problem, limit: usize) -> Problem {
    match problem.code() {
        Code::PayloadTooLarge => Problem::new(Code::PayloadTooLarge, format!("a batch may have {limit} bytes (limits.batch_body)")),
        _ => problem,
    }
}

/// One notification of a batch.
struct Item {
    /// The caller's key, where it could be read.
    key: Option<String>,
    stage: Stage,
}

/// How far it has come.
enum Stage {
    /// It may be committed.
    Fit(Box<Intake>),
    /// It is being committed.
    Underway,
    /// It would not be accepted now, but may have been.
    Unfit(Faults, [u8; 32]),
    /// It is decided.
    Done(Result<Answer, Problem>),
}

impl Item {
    fn give_up(&mut self) {
        let undecided = match std::mem::replace(&mut self.stage, Stage::Underway) {
            Stage::Done(done) => done,
            Stage::Unfit(faults, _) => Err(faults.into()),
            // Never given to the writer: nothing happened.
            Stage::Fit(_) => Err(overloaded()),
            Stage::Underway => Err(Problem::outcome_unknown()),
        };
        self.stage = Stage::Done(undecided);
    }
}

/// Reads the document, and each of its notifications as if it had come alone.
async fn judged(api: &Api, http: &HttpRequest, caller: &Caller, body: &[u8]) -> Result<Vec<Item>, Problem> {
    let notifications = list(json::parse(body)?)?;
    let trace = trace_context(http);
    let mut items = Vec::with_capacity(notifications.len());
    for (index, notification) in notifications.into_iter().enumerate() {
        if index % TURN == TURN - 1 {
            tokio::task::yield_now().await;
        }
        items.push(item(api, caller, index, notification, trace.clone()));
    }
    Ok(items)
}

/// The notifications of a batch: the one member of its document.
fn list(document: Json<'_>) -> Result<Vec<Json<'_>>, Problem> {
    let Json::Object(members) = document else {
        return Err(one(&Pointer::ROOT, FaultCode::InvalidField, "expected an object with a list notifications"));
    };
    let mut faults = Faults::new();
    for (name, _) in members.iter().filter(|(name, _)| name != LIST) {
        let detail = match nearest(name, [LIST]) {
            Some(known) => format!("there is no such field; did you mean \"{known}\"?"),
            None => "there is no such field; a batch has notifications, and each of them its own".to_owned(),
        };
        faults.add(&Pointer::ROOT.name(name), FaultCode::UnknownField, detail);
    }
    if !faults.is_empty() {
        return Err(faults.into());
    }
    let at = Pointer::ROOT.name(LIST);
    match members.into_iter().next() {
        Some((_, Json::List(items))) if items.is_empty() => Err(one(&at, FaultCode::InvalidField, "give at least one notification")),
        Some((_, Json::List(items))) if items.len() > BATCH => {
            let fault = Fault::new(&at, FaultCode::PayloadTooLarge, format!("at most {BATCH} notifications")).over(BATCH, items.len());
            Err(Faults::from(fault).into())
        }
        Some((_, Json::List(items))) => Ok(items),
        Some((_, other)) => Err(one(&at, FaultCode::InvalidField, &format!("expected a list, not {}", other.kind()))),
        None => Err(one(&at, FaultCode::InvalidField, "give at least one notification")),
    }
}

fn one(at: &Pointer<'_>, code: FaultCode, detail: &str) -> Problem {
    Faults::from(Fault::new(at, code, detail)).into()
}

fn item(api: &Api, caller: &Caller, index: usize, notification: Json<'_>, trace: Option<String>) -> Item {
    let (list, now) = (Pointer::ROOT.name(LIST), api.app.now());
    let at = list.index(index);
    let (given, document) = without_key(notification);
    let key = match key(given, caller.setup.settings.limits.requires_keys) {
        Ok(key) => key,
        Err(problem) => return Item { key: None, stage: Stage::Done(Err(problem)) },
    };
    let parsed = request::parse_document(&document, &at, &caller.setup.settings.limits.of_requests(), now);
    let stage = match judge(api, caller, key.as_deref(), &at, trace, parsed, now) {
        Ok(Judged::Fit(intake)) => Stage::Fit(Box::new(intake)),
        Ok(Judged::Unfit(faults, fingerprint)) => Stage::Unfit(faults, fingerprint),
        Err(problem) => Stage::Done(Err(problem)),
    };
    Item { key, stage }
}

/// Takes the envelope's own member out of a notification.
fn without_key(notification: Json<'_>) -> (Option<Json<'_>>, Json<'_>) {
    let Json::Object(mut members) = notification else { return (None, notification) };
    let place = members.iter().position(|(name, _)| name == "idempotency_key");
    let key = place.map(|place| members.remove(place).1);
    (key, Json::Object(members))
}

fn key(given: Option<Json<'_>>, is_required: bool) -> Result<Option<String>, Problem> {
    match given {
        Some(Json::Text(key)) if is_key(&key) => Ok(Some(key.into_owned())),
        Some(Json::Null) | None if is_required => {
            let detail = "give each notification an idempotency_key: your own name for it, the same again when you repeat it";
            Err(Problem::new(Code::IdempotencyKeyMissing, detail))
        }
        Some(Json::Null) | None => Ok(None),
        Some(_) => Err(Problem::new(Code::IdempotencyKeyInvalid, "an idempotency_key is 1 to 255 visible ASCII characters without spaces")),
    }
}

/// What the batch costs, all of it before any of it is taken (S-084); and whether the queue takes its most urgent item.
async fn charge(api: &Api, caller: &Caller, items: &[Item]) -> Result<(), Problem> {
    let (mut cost, mut classes) = (0_u32, Vec::new());
    for item in items {
        cost = cost.saturating_add(match &item.stage {
            Stage::Fit(intake) => {
                classes.push(intake.notification.class);
                intake.cost()
            }
            Stage::Underway | Stage::Unfit(..) | Stage::Done(_) => 1,
        });
    }
    if !classes.is_empty() {
        let taken = classes.iter().find_map(|class| limits::refuse_full_queue(api, caller, *class).err());
        taken.map_or(Ok(()), Err)?;
    }
    api.limits.charge(caller, cost).await
}

/// Commits what is fit, the first of each key at once and those that repeat a key of the batch after it, in their order.
async fn commit(api: &Api, caller: &Caller, items: &mut [Item], room: body::Taken, request_id: RequestId) -> Result<(), Problem> {
    for item in items.iter_mut() {
        if let Stage::Unfit(faults, fingerprint) = &item.stage {
            // What was accepted once keeps its answer, though it would not be accepted now.
            let earlier = earlier_answer(api, caller, item.key.as_deref(), fingerprint).await;
            let refused = Problem::from(faults.clone());
            item.stage = Stage::Done(earlier.ok_or(refused));
        }
    }
    let mut seen = HashSet::new();
    let (mut first, mut repeated) = (Vec::new(), Vec::new());
    for (index, item) in items.iter().enumerate() {
        if let Stage::Fit(intake) = &item.stage {
            if seen.insert(intake.notification.idempotency_key.clone()) { first.push(index) } else { repeated.push(index) }
        }
    }
    let notifications = first.iter().filter_map(|index| items[*index].fit()).map(|intake| intake.notification.clone()).collect();
    let waiting = match api.app.writer.accept_all(notifications, room) {
        Ok(waiting) => waiting,
        // Nothing was given to the writer, so that the whole may be repeated.
        Err(WriteError::Overloaded) => return Err(overloaded()),
        Err(_) => return Err(Problem::new(Code::Overloaded, "the process is stopping")),
    };
    let underway = first.iter().map(|index| items[*index].begin()).collect::<Vec<_>>();
    let decide = waiting.into_iter().zip(underway).map(|(accepted, intake)| async {
        let accepted = accepted.await;
        Some(answered(api, caller, *intake?, accepted, Some(request_id)).await)
    });
    for (index, done) in first.into_iter().zip(join_all(decide).await) {
        items[index].end(index, done);
    }
    for index in repeated {
        let Some(intake) = items[index].begin() else { continue };
        let accepted = api.app.writer.accept(intake.notification.clone(), None).await;
        let done = answered(api, caller, *intake, accepted, Some(request_id)).await;
        items[index].end(index, Some(done));
    }
    Ok(())
}

impl Item {
    fn fit(&self) -> Option<&Intake> {
        if let Stage::Fit(intake) = &self.stage { Some(intake) } else { None }
    }

    /// Takes the intake out: from here on it may be committed.
    fn begin(&mut self) -> Option<Box<Intake>> {
        match std::mem::replace(&mut self.stage, Stage::Underway) {
            Stage::Fit(intake) => Some(intake),
            other => {
                self.stage = other;
                None
            }
        }
    }

    fn end(&mut self, index: usize, done: Option<Result<Answer, Problem>>) {
        let list = Pointer::ROOT.name(LIST);
        if let Some(done) = done {
            self.stage = Stage::Done(done.map_err(|problem| problem.within(&list.index(index))));
        }
    }
}

#[derive(Serialize)]
struct Results<'a> {
    results: Vec<Outcome<'a>>,
}

#[derive(Serialize)]
#[serde(untagged)]
enum Outcome<'a> {
    Accepted {
        index: usize,
        idempotency_key: Option<&'a str>,
        status: u16,
        replayed: bool,
        #[serde(skip_serializing_if = "is_false")]
        mismatch: bool,
        id: NotificationId,
        notification: Box<RawValue>,
    },
    Refused {
        index: usize,
        idempotency_key: Option<&'a str>,
        status: u16,
        code: &'static str,
        problem: Box<RawValue>,
    },
}

#[allow(clippy::trivially_copy_pass_by_ref, reason = "serde calls it so")]
const fn is_false(flag: &bool) -> bool {
    !*flag
}

/// `202` if one was taken, else `422`; where nothing was and none of it can be helped by the caller, the whole failed.
fn answer(items: Vec<Item>, request_id: RequestId) -> Result<HttpResponse, Problem> {
    let mut items = items;
    items.iter_mut().for_each(Item::give_up);
    let done: Vec<(Option<String>, Result<Answer, Problem>)> = items.into_iter().filter_map(Item::into_done).collect();
    let is_taken = done.iter().any(|(_, done)| done.is_ok());
    let is_ours = |done: &Result<Answer, Problem>| done.as_ref().err().is_some_and(|problem| problem.code().status().is_server_error());
    if !is_taken && done.iter().all(|(_, done)| is_ours(done)) {
        let failed = done.into_iter().find_map(|(_, done)| done.err());
        return Err(failed.unwrap_or_else(Problem::outcome_unknown));
    }
    let mut keys = Vec::with_capacity(done.len());
    let mut outcomes = Vec::with_capacity(done.len());
    for (key, done) in done {
        keys.push(key);
        outcomes.push(done);
    }
    let results = keys.iter().zip(outcomes).enumerate();
    let results = results.map(|(index, (key, done))| outcome(index, key.as_deref(), done, request_id)).collect::<Result<Vec<_>, _>>()?;
    let body = super::view::to_json(&Results { results });
    let answer = if is_taken { HttpResponse::Accepted() } else { HttpResponse::UnprocessableEntity() };
    Ok(super::json(answer, body))
}

fn outcome(index: usize, key: Option<&str>, done: Result<Answer, Problem>, request_id: RequestId) -> Result<Outcome<'_>, Problem> {
    Ok(match done {
        Ok(Answer { id, replay, body }) => Outcome::Accepted {
            index,
            idempotency_key: key,
            status: 202,
            replayed: replay != Replay::No,
            mismatch: replay == Replay::Mismatch,
            id,
            notification: raw(body)?,
        },
        Err(problem) => Outcome::Refused {
            index,
            idempotency_key: key,
            status: problem.code().status().as_u16(),
            code: problem.code().as_str(),
            problem: raw(problem.document(request_id))?,
        },
    })
}

impl Item {
    fn into_done(self) -> Option<(Option<String>, Result<Answer, Problem>)> {
        match self.stage {
            Stage::Done(done) => Some((self.key, done)),
            Stage::Fit(_) | Stage::Underway | Stage::Unfit(..) => None,
        }
    }
}

/// JSON that was written by us already.
fn raw(json: Vec<u8>) -> Result<Box<RawValue>, Problem> {
    let text = String::from_utf8(json).map_err(|err| Problem::internal(&err))?;
    RawValue::from_string(text).map_err(|err| Problem::internal(&err))
}
