//! `/v1/suppressions`: addresses that are not written to. What one stops is decided in core, at every attempt; refusals of
//! providers add their own.
//!
//! To read them takes the scope `read`, to add some `send`, since that can only keep messages back; to remove one `ops`.

use std::collections::BTreeMap;
use std::fmt;

use actix_web::{HttpRequest, HttpResponse, web};
use serde::{Serialize, Serializer};
use tidings_core::address::{EmailAddress, Mailbox};
use tidings_core::fault::{Fault, Faults};
use tidings_core::ids::DeliveryId;
use tidings_core::nearest::nearest;
use tidings_core::request::{Suppress, parse_reason, parse_scope, parse_suppression_lookup, parse_suppressions};
use tidings_core::store::{Asked, Deed, NewSuppression, StoredSuppression, Suppressed, SuppressionFilter};
use tidings_core::suppression::SuppressionScope;
use tidings_core::words::Channel;
use uuid::Uuid;

use super::auth::{self, Caller, Scope};
use super::list::{Cursors, Page, Part};
use super::problem::{Code, Problem};
use super::query::Query;
use super::view::Instant;
use super::{Api, body};
use crate::config::Settings;
use crate::sealed;

/// The body of a request with the most items, each with a long remark.
const LARGEST_BODY: usize = 2 << 20;
/// How many rows one transaction writes, so that nobody else waits long for it.
const CHUNK: usize = 100;
const PARAMETERS: &[&str] = &["channel", "reason", "scope", "since", "until", "after", "limit"];

/// `GET /v1/suppressions`
pub(super) async fn list(http: HttpRequest, api: web::Data<Api>) -> Result<HttpResponse, Problem> {
    let caller = auth::caller(&api, &http).await?;
    caller.require(Scope::Read)?;
    let query = Query::read(&http, PARAMETERS)?;
    let part = Part::read(&query)?;
    let settings = &caller.setup.settings;
    let wrong = |detail: String| Problem::new(Code::InvalidField, format!("the parameter scope: {detail}"));
    let scope = query.get("scope").map(|word| parse_scope(word, |name| author_of(settings, name)).map_err(wrong)).transpose()?;
    let mut filter = SuppressionFilter {
        channel: query.parsed("channel", "email, sms or push")?,
        reason: query.get("reason").map(str::to_owned),
        scope: scope.map(|scope| scope.to_string()),
        since: part.since,
        until: part.until,
        before: None,
        limit: i64::try_from(part.limit + 1).unwrap_or(i64::MAX),
    };
    let channel = filter.channel.map(|channel| channel.as_str());
    let bounds = (filter.since.map(|at| at.as_micros()), filter.until.map(|at| at.as_micros()));
    let cursors = Cursors::new(&api.app.keyring, &caller, "suppressions", &(channel, &filter.reason, &filter.scope, bounds));
    filter.before = part.after.as_deref().map(|cursor| cursors.read::<Uuid>(cursor)).transpose()?;
    let (tenant, mode) = (caller.tenant, caller.mode);
    let mut rows = api.read(move |store| async move { store.suppressions().page(tenant, mode, &filter).await }).await?;
    let has_more = rows.len() > part.limit;
    rows.truncate(part.limit);
    let next = rows.last().filter(|_| has_more).map(|last| cursors.write(&last.id));
    let items: Vec<View<'_>> = rows.iter().map(|row| View::of(&api, &caller, row)).collect();
    Ok(Page { items, next }.answer())
}

/// `POST /v1/suppressions`
pub(super) async fn add(http: HttpRequest, payload: web::Payload, api: web::Data<Api>) -> Result<HttpResponse, Problem> {
    let caller = auth::caller(&api, &http).await?;
    caller.require(Scope::Send)?;
    body::require_json(&http)?;
    Query::read(&http, &[])?;
    let (body, _room) = body::read(&api.room, &http, payload, LARGEST_BODY).await?;
    let items = parse_suppressions(&body, |name| author_of(&caller.setup.settings, name))?;
    let wanted: Vec<NewSuppression> = items.iter().flatten().map(|item| new_row(&api, &caller, item)).collect();
    let mut outcomes = Vec::with_capacity(wanted.len());
    for chunk in wanted.chunks(CHUNK) {
        let (chunk, actor) = (chunk.to_vec(), caller.actor());
        outcomes.extend(api.read(move |store| async move { store.suppressions().add(&chunk, Some(&actor)).await }).await?);
    }
    api.app.wake.arrived();
    let mut outcomes = outcomes.into_iter();
    let results: Vec<ItemResult<'_>> = items
        .iter()
        .enumerate()
        .map(|(index, item)| match item {
            Ok(_) => ItemResult::done(index, outcomes.next()),
            Err(faults) => ItemResult::refused(index, faults),
        })
        .collect();
    let added = results.iter().filter(|result| result.status == 201).count();
    tracing::info!(by = %caller.key_id(), added, items = results.len(), "suppressions added");
    Ok(HttpResponse::Ok().json(Results { results }))
}

/// `POST /v1/suppressions/lookup`
pub(super) async fn lookup(http: HttpRequest, payload: web::Payload, api: web::Data<Api>) -> Result<HttpResponse, Problem> {
    let caller = auth::caller(&api, &http).await?;
    caller.require(Scope::Read)?;
    body::require_json(&http)?;
    Query::read(&http, &[])?;
    let (body, _room) = body::read(&api.room, &http, payload, LARGEST_BODY).await?;
    let (channel, address) = parse_suppression_lookup(&body)?;
    let digests = vec![api.app.keyring.address_digest(channel, &address.canonical())];
    let asked = Asked { tenant: caller.tenant, mode: caller.mode, channel, digests };
    let rows = api.read(move |store| async move { store.suppressions().of(&asked).await }).await?;
    let items: Vec<View<'_>> = rows.iter().map(|row| View::of(&api, &caller, row)).collect();
    Ok(Page { items, next: None }.answer())
}

/// `DELETE /v1/suppressions/{id}`
pub(super) async fn remove(
    http: HttpRequest,
    id: web::Path<String>,
    payload: web::Payload,
    api: web::Data<Api>,
) -> Result<HttpResponse, Problem> {
    let caller = auth::caller(&api, &http).await?;
    caller.require(Scope::Ops)?;
    body::require_json(&http)?;
    Query::read(&http, &[])?;
    let (body, _room) = body::read(&api.room, &http, payload, LARGEST_BODY).await?;
    let reason = parse_reason(&body)?;
    let SuppressionId(id) = id.parse().map_err(|_| Problem::not_found())?;
    let entry = Deed {
        at: api.app.now(),
        tenant: Some(caller.tenant),
        actor: caller.actor(),
        action: "suppression.removed",
        subject: SuppressionId(id).to_string(),
        reason: Some(reason),
    };
    let (tenant, mode) = (caller.tenant, caller.mode);
    let removed = api.read(move |store| async move { store.suppressions().remove(tenant, mode, id, &entry).await }).await?;
    if !removed {
        return Err(Problem::not_found());
    }
    api.app.wake.arrived();
    tracing::info!(by = %caller.key_id(), suppression_id = %SuppressionId(id), "suppression removed");
    Ok(HttpResponse::Ok().json(serde_json::json!({ "id": SuppressionId(id).to_string(), "removed": true })))
}

fn new_row(api: &Api, caller: &Caller, item: &Suppress) -> NewSuppression {
    let (keyring, now) = (&api.app.keyring, api.app.now());
    let id = uuid::Builder::from_unix_timestamp_millis(now.as_millis(), &rand::random()).into_uuid();
    NewSuppression {
        id,
        tenant: caller.tenant,
        mode: caller.mode,
        channel: item.channel,
        address_digest: keyring.address_digest(item.channel, &item.address.canonical()),
        address: sealed::seal_suppressed(keyring, id, &item.address),
        reason: item.reason,
        scope: item.scope.clone(),
        source: "api".to_owned(),
        note: item.note.clone(),
        created_at: now,
        delivery: None,
    }
}

/// The canonical author behind the name of a declared sender: what messages from it are told by, also when it is renamed.
fn author_of(settings: &Settings, name: &str) -> Result<String, String> {
    let found = settings.senders.get(name).map(|mailbox| mailbox.email.canonical());
    found.ok_or_else(|| match nearest(name, settings.senders.keys().map(String::as_str)) {
        Some(meant) => format!("there is no such sender; did you mean \"sender:{meant}\"?"),
        None => "neither the name of a declared sender (senders.NAME) nor its address".to_owned(),
    })
}

/// A scope as it is shown: a declared sender by its name.
pub(super) fn shown_scope(senders: &BTreeMap<String, Mailbox>, scope: &str) -> String {
    let Ok(SuppressionScope::Sender(author)) = scope.parse() else { return scope.to_owned() };
    let name = senders.iter().find(|(_, mailbox)| mailbox.email.canonical() == author).map(|(name, _)| name);
    name.map_or_else(|| scope.to_owned(), |name| format!("sender:{name}"))
}

/// `sup_` and 32 hex digits.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct SuppressionId(pub(super) Uuid);

impl fmt::Display for SuppressionId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "sup_{}", self.0.simple())
    }
}

impl std::str::FromStr for SuppressionId {
    type Err = ();
    fn from_str(raw: &str) -> Result<Self, ()> {
        let hex = raw.strip_prefix("sup_").ok_or(())?;
        let is_canonical = hex.len() == 32 && hex.bytes().all(|byte| matches!(byte, b'0'..=b'9' | b'a'..=b'f'));
        if is_canonical { Uuid::try_parse(hex).map(Self).map_err(|_| ()) } else { Err(()) }
    }
}

impl Serialize for SuppressionId {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_str(self)
    }
}

#[derive(Serialize)]
struct View<'a> {
    id: SuppressionId,
    address: Option<String>,
    channel: Channel,
    reason: &'a str,
    scope: String,
    source: &'a str,
    delivery_id: Option<DeliveryId>,
    note: Option<&'a str>,
    created_at: Instant,
    expires_at: Option<Instant>,
}

impl<'a> View<'a> {
    fn of(api: &Api, caller: &Caller, row: &'a StoredSuppression) -> Self {
        let address = sealed::open_suppressed(&api.app.keyring, row);
        if address.is_none() && row.address.is_some() {
            tracing::warn!(suppression_id = %SuppressionId(row.id), "the address of a suppression cannot be opened");
        }
        let shown = |address: EmailAddress| if caller.has(Scope::Pii) { address.as_str().to_owned() } else { address.masked() };
        Self {
            id: SuppressionId(row.id),
            address: address.map(shown),
            channel: row.channel,
            reason: &row.reason,
            scope: shown_scope(&caller.setup.settings.senders, &row.scope),
            source: &row.source,
            delivery_id: row.delivery,
            note: row.note.as_deref(),
            created_at: Instant(row.created_at),
            expires_at: row.expires_at.map(Instant),
        }
    }
}

#[derive(Serialize)]
struct Results<'a> {
    results: Vec<ItemResult<'a>>,
}

/// What became of one item: the status that it would have had alone.
#[derive(Serialize)]
struct ItemResult<'a> {
    index: usize,
    status: u16,
    #[serde(skip_serializing_if = "Option::is_none")]
    id: Option<SuppressionId>,
    #[serde(skip_serializing_if = "Option::is_none")]
    code: Option<&'static str>,
    #[serde(skip_serializing_if = "<[Fault]>::is_empty")]
    errors: &'a [Fault],
}

impl<'a> ItemResult<'a> {
    /// `201` for a new one, `200` for one that was there.
    fn done(index: usize, outcome: Option<Suppressed>) -> Self {
        let (status, id) = match outcome {
            Some(Suppressed::Added(id)) => (201, Some(SuppressionId(id))),
            Some(Suppressed::Kept(id)) => (200, Some(SuppressionId(id))),
            None => (500, None),
        };
        Self { index, status, id, code: None, errors: &[] }
    }

    fn refused(index: usize, faults: &'a Faults) -> Self {
        let code = Problem::from(faults.clone()).code();
        Self { index, status: code.status().as_u16(), id: None, code: Some(code.as_str()), errors: faults.as_slice() }
    }
}
