//! `/v1/dead-letters`: what ended without anybody knowing what to do, with all that is needed to judge it, and the acts
//! on many of them at once: one result for each (S-060, S-062, S-063).

use std::time::Duration;

use actix_web::{HttpRequest, HttpResponse, web};
use serde::Serialize;
use serde_json::value::RawValue;
use tidings_core::acts::{Act, Resend, Target, Verb};
use tidings_core::ids::{DeliveryId, NotificationId};
use tidings_core::policy::REPLAY_WINDOW;
use tidings_core::request::acts::{MOST_DEAD_LETTERS, Matching, OnDeadLetters, Which, on_dead_letters};
use tidings_core::state::State;
use tidings_core::store::{Acted, DeadLetter, DeadLetterFilter, MOST_ACTS, StoreError};
use tidings_core::words::Mode;

use super::acts::{carry_out_all, problem, store_problem};
use super::auth::{self, Caller, Scope};
use super::list::{Cursors, Page, Part};
use super::notifications::{former_accounts, reader};
use super::problem::{Code, Problem};
use super::query::Query;
use super::read::{DeliveryView, Reader};
use super::view::{Instant, to_json};
use super::{Api, body, json};

/// The body of a bulk act: a thousand ids, and room for the rest.
const BODY_LIMIT: usize = 64 << 10;
/// How long a replay leaves between two messages where no account names a rate: 10 a second.
const USUAL_SPACING: Duration = Duration::from_millis(100);
/// The share of an account's rate that a replay takes (S-062).
const SHARE_OF_RATE: u32 = 10;

/// `GET /v1/dead-letters`
pub(super) async fn list(http: HttpRequest, api: web::Data<Api>) -> Result<HttpResponse, Problem> {
    let caller = operator(&api, &http).await?;
    let query = Query::read(&http, &["state", "reason", "channel", "class", "category", "after", "limit", "since", "until"])?;
    let part = Part::read(&query)?;
    let matching = Matching {
        state: query.parsed("state", "dead or unknown")?,
        reason: query.parsed("reason", "a word of /docs/reasons")?,
        channel: query.parsed("channel", "email, sms or push")?,
        class: query.parsed("class", "critical, transactional or bulk")?,
        category: query.get("category").map(str::to_owned),
        since: part.since,
        until: part.until,
    };
    if matching.state.is_some_and(|state| !matches!(state, State::Dead | State::Unknown)) {
        return Err(Problem::new(Code::InvalidField, "the parameter state must be dead or unknown"));
    }
    let bound_to = (matching.state, matching.reason, matching.channel, matching.class, &matching.category, matching.since, matching.until);
    let cursors = Cursors::new(&api.app.keyring, &caller, "dead-letters", &bound_to);
    let before = part.after.as_deref().map(|cursor| cursors.read(cursor)).transpose()?;
    // One more than asked for tells whether there are more.
    let filter = DeadLetterFilter { before, ..filter(&matching, part.limit + 1) };
    let mut letters = read(&api, &caller, filter).await?;
    let has_more = letters.len() > part.limit;
    letters.truncate(part.limit);
    let former_accounts = former_accounts(&api, &caller, letters.iter().map(|letter| &letter.stored)).await?;
    let reader = reader(&api, &caller, &former_accounts);
    let items = letters.iter().map(|letter| shown(&reader, caller.mode, letter)).collect::<Result<Vec<_>, _>>()?;
    let last = letters.last().filter(|_| has_more).map(|letter| letter.stored.delivery.id.as_uuid());
    Ok(Page { items, next: last.map(|last| cursors.write(&last)) }.answer())
}

/// `POST /v1/dead-letters/replay`
pub(super) async fn replay(http: HttpRequest, payload: web::Payload, api: web::Data<Api>) -> Result<HttpResponse, Problem> {
    let (caller, wanted) = bulk(&api, &http, payload, true).await?;
    let (spacing, expires_in) = (spacing(&caller), wanted.expires_in);
    let verb = |place: u32| Verb::Resend(Resend { generation: None, expires_in, replay: Some(spacing * place) });
    each(&api, &caller, wanted, verb).await
}

/// `POST /v1/dead-letters/discard`
pub(super) async fn discard(http: HttpRequest, payload: web::Payload, api: web::Data<Api>) -> Result<HttpResponse, Problem> {
    let (caller, wanted) = bulk(&api, &http, payload, false).await?;
    each(&api, &caller, wanted, |_| Verb::Discard).await
}

async fn operator(api: &Api, http: &HttpRequest) -> Result<Caller, Problem> {
    let caller = auth::caller(api, http).await?;
    caller.require(Scope::Ops)?;
    Ok(caller)
}

async fn bulk(api: &Api, http: &HttpRequest, payload: web::Payload, is_replay: bool) -> Result<(Caller, OnDeadLetters), Problem> {
    let caller = operator(api, http).await?;
    Query::read(http, &[])?;
    body::require_json(http)?;
    let (body, _room) = body::read(&api.room, http, payload, BODY_LIMIT).await?;
    Ok((caller, on_dead_letters(&body, is_replay)?))
}

fn filter(matching: &Matching, limit: usize) -> DeadLetterFilter {
    DeadLetterFilter {
        state: matching.state,
        reason: matching.reason,
        channel: matching.channel,
        class: matching.class,
        category: matching.category.clone(),
        since: matching.since,
        until: matching.until,
        before: None,
        limit: i64::try_from(limit).unwrap_or(i64::MAX),
    }
}

async fn read(api: &Api, caller: &Caller, filter: DeadLetterFilter) -> Result<Vec<DeadLetter>, Problem> {
    let (tenant, mode) = (caller.tenant, caller.mode);
    api.read(move |store| async move { store.acts().dead_letters(tenant, mode, &filter).await }).await
}

/// A tenth of the slowest account's rate, so that live traffic keeps the rest.
fn spacing(caller: &Caller) -> Duration {
    let rates = caller.setup.routing.accounts.iter().filter_map(|account| account.rate);
    let slowest = rates.min().map(|rate| Duration::from_secs(1) * SHARE_OF_RATE / rate.get());
    slowest.map_or(USUAL_SPACING, |slowest| slowest.max(USUAL_SPACING))
}

#[derive(Serialize)]
struct Results {
    results: Vec<ResultView>,
    /// Whether the filter matches more than one act takes.
    more: bool,
}

/// What came of one of them; `status` is the HTTP status that it would have had alone.
#[derive(Serialize)]
struct ResultView {
    index: usize,
    id: DeliveryId,
    status: u16,
    #[serde(skip_serializing_if = "Option::is_none")]
    state: Option<State>,
    #[serde(skip_serializing_if = "Option::is_none")]
    code: Option<&'static str>,
    #[serde(skip_serializing_if = "Option::is_none")]
    problem: Option<ProblemView>,
}

#[derive(Serialize)]
struct ProblemView {
    #[serde(rename = "type")]
    type_: String,
    title: &'static str,
    status: u16,
    code: &'static str,
    detail: String,
    retryable: bool,
}

/// Asks for the same of each, in commits that are short enough to let others between.
async fn each(api: &Api, caller: &Caller, wanted: OnDeadLetters, verb: impl Fn(u32) -> Verb) -> Result<HttpResponse, Problem> {
    let (ids, more) = match wanted.which {
        Which::Ids(ids) => (ids, false),
        Which::Matching(matching) => {
            let letters = read(api, caller, filter(&matching, MOST_DEAD_LETTERS + 1)).await?;
            let more = letters.len() > MOST_DEAD_LETTERS;
            (letters.iter().take(MOST_DEAD_LETTERS).map(|letter| letter.stored.delivery.id).collect(), more)
        }
    };
    let act = |(place, id): (usize, &DeliveryId)| Act {
        tenant: caller.tenant,
        mode: caller.mode,
        target: Target::Delivery(*id),
        verb: verb(u32::try_from(place).unwrap_or(u32::MAX)),
        if_version: None,
        actor: caller.actor(),
        note: Some(wanted.reason.clone()),
    };
    let acts: Vec<Act> = ids.iter().enumerate().map(act).collect();
    let mut results = Vec::with_capacity(ids.len());
    for (round, chunk) in acts.chunks(MOST_ACTS).enumerate() {
        let first = round * MOST_ACTS;
        let told = |offset: usize, told: Result<Option<State>, Problem>| result(first + offset, ids[first + offset], told);
        match carry_out_all(api, chunk.to_vec()).await {
            Ok(acted) => results.extend(acted.into_iter().enumerate().map(|(offset, acted)| told(offset, outcome(acted)))),
            // What was done before this chunk stands; the caller learns of each what is known.
            Err(problem) => {
                results.extend((0..chunk.len()).map(|offset| told(offset, Err(Problem::new(problem.code(), problem.detail().to_owned())))))
            }
        }
    }
    Ok(json(HttpResponse::Ok(), to_json(&Results { results, more })))
}

fn outcome(acted: Result<Acted, StoreError>) -> Result<Option<State>, Problem> {
    let acted = acted.map_err(|err| store_problem(&err))?;
    acted.answer.map_err(problem)?;
    Ok(acted.changed.first().map(|delivery| delivery.state))
}

fn result(index: usize, id: DeliveryId, outcome: Result<Option<State>, Problem>) -> ResultView {
    match outcome {
        Ok(state) => ResultView { index, id, status: 200, state, code: None, problem: None },
        Err(problem) => {
            let code = problem.code();
            let view = ProblemView {
                type_: format!("/docs/errors/{}", code.as_str()),
                title: code.title(),
                status: code.status().as_u16(),
                code: code.as_str(),
                detail: problem.detail().to_owned(),
                retryable: code.is_retryable(),
            };
            ResultView { index, id, status: view.status, state: None, code: Some(view.code), problem: Some(view) }
        }
    }
}

#[derive(Serialize)]
struct DeadLetterView<'a> {
    notification_id: NotificationId,
    idempotency_key: &'a str,
    mode: Mode,
    category: &'a str,
    class: tidings_core::words::Class,
    created_at: Instant,
    first_attempt_at: Option<Instant>,
    last_attempt_at: Option<Instant>,
    /// Whether it could be sent again: `kept` or `erased`.
    content: &'static str,
    schema_version: i16,
    replays: u16,
    replayable_until: Option<Instant>,
    #[serde(flatten)]
    delivery: DeliveryView<'a>,
}

fn shown(reader: &Reader<'_>, mode: Mode, letter: &DeadLetter) -> Result<Box<RawValue>, Problem> {
    let (stored, id) = (&letter.stored, letter.stored.delivery.id.notification());
    let opened = reader.open(stored).map_err(|err| Problem::internal(&err))?;
    let view = DeadLetterView {
        notification_id: id,
        idempotency_key: &letter.idempotency_key,
        mode,
        category: &letter.category,
        class: stored.delivery.class,
        created_at: Instant(id.created_at()),
        first_attempt_at: stored.attempts.first().map(|attempt| Instant(attempt.started_at)),
        last_attempt_at: stored.attempts.last().map(|attempt| Instant(attempt.started_at)),
        content: if letter.has_content { "kept" } else { "erased" },
        schema_version: letter.schema_version,
        replays: letter.replays,
        replayable_until: stored.delivery.settled_at.map(|settled| Instant(settled.plus(REPLAY_WINDOW))),
        delivery: reader.delivery(stored, &opened).map_err(|err| Problem::internal(&err))?,
    };
    Ok(serde_json::value::to_raw_value(&view).expect("texts, numbers and lists always have a JSON form"))
}
