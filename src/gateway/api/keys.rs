//! `/v1/keys`: the keys of the caller's own tenant, for callers with the scope `admin`. The key itself is told once, by the
//! answer that makes it. Which keys open what is `auth`'s business.
//!
//! A key manages no key that may do what it may not: `test` keys know `test` keys alone, `team` keys none that is `live`.

use std::fmt;

use actix_web::{HttpRequest, HttpResponse, web};
use serde::{Serialize, Serializer};
use tidings_core::request::{KINDS, parse_new_key, parse_nothing, parse_rotation};
use tidings_core::store::{ApiKey, Deed, KeyFilter};
use tidings_core::time::Timestamp;
use uuid::Uuid;

use super::auth::{self, Caller, Scope};
use super::list::{Cursors, Page, Part};
use super::problem::{Code, Problem};
use super::query::Query;
use super::view::Instant;
use super::{Api, body, json};
use crate::keys;

/// A body with a name, some scopes and a time.
const LARGEST_BODY: usize = 16 << 10;

/// `GET /v1/keys`
pub(super) async fn list(http: HttpRequest, api: web::Data<Api>) -> Result<HttpResponse, Problem> {
    let caller = admin(&api, &http).await?;
    let query = Query::read(&http, &["after", "limit"])?;
    let part = Part::read(&query)?;
    let kinds = managed(&caller);
    let cursors = Cursors::new(&api.app.keyring, &caller, "keys", &kinds);
    let before = part.after.as_deref().map(|cursor| cursors.read::<Uuid>(cursor)).transpose()?;
    let limit = i64::try_from(part.limit + 1).unwrap_or(i64::MAX);
    let filter = KeyFilter { tenant: Some(caller.tenant), kinds: kinds.iter().map(|kind| (*kind).to_owned()).collect(), before, limit };
    let mut rows = api.read(move |store| async move { store.access().page(&filter).await }).await?;
    let has_more = rows.len() > part.limit;
    rows.truncate(part.limit);
    let next = rows.last().filter(|_| has_more).map(|last| cursors.write(&last.id));
    Ok(Page { items: rows.iter().map(View::of).collect(), next }.answer())
}

/// `POST /v1/keys`
pub(super) async fn create(http: HttpRequest, payload: web::Payload, api: web::Data<Api>) -> Result<HttpResponse, Problem> {
    let caller = admin(&api, &http).await?;
    body::require_json(&http)?;
    Query::read(&http, &[])?;
    let (body, _room) = body::read(&api.room, &http, payload, LARGEST_BODY).await?;
    let now = api.app.now();
    let wanted = parse_new_key(&body, now)?;
    if !managed(&caller).contains(&wanted.kind.as_str()) {
        return Err(Problem::new(Code::ScopeMissing, format!("a {} key does not make {} keys", caller.kind(), wanted.kind)));
    }
    let (row, key) = keys::new(caller.tenant, &wanted.name, &wanted.kind, &wanted.scopes, wanted.expires_at, now);
    let entry = entry(&caller, now, "key.created", row.id);
    let added = row.clone();
    api.read(move |store| async move { store.access().issue(&added, None, &entry).await }).await?;
    tracing::info!(by = %caller.key_id(), key_id = %KeyId(row.id), kind = row.kind, "API key created");
    Ok(told_once(&Made { view: View::of(&row), key: &key, replaces: None }))
}

/// `POST /v1/keys/{id}/rotate`
pub(super) async fn rotate(
    http: HttpRequest,
    id: web::Path<String>,
    payload: web::Payload,
    api: web::Data<Api>,
) -> Result<HttpResponse, Problem> {
    let caller = admin(&api, &http).await?;
    body::require_json(&http)?;
    Query::read(&http, &[])?;
    let (body, _room) = body::read(&api.room, &http, payload, LARGEST_BODY).await?;
    let overlap = parse_rotation(&body)?;
    let old = find(&api, &caller, &id).await?;
    let now = api.app.now();
    if !auth::is_in_force(&old, now) {
        return Err(Problem::new(Code::InvalidField, "the key is revoked or expired: make a new one"));
    }
    let (row, key) = keys::new(old.tenant, &old.name, &old.kind, &old.scopes, old.expires_at, now);
    let until = now.plus(overlap);
    let entry = Deed { reason: Some(format!("by {}", KeyId(row.id))), ..entry(&caller, now, "key.rotated", old.id) };
    let added = row.clone();
    let earlier = old.id;
    api.read(move |store| async move { store.access().issue(&added, Some((earlier, until)), &entry).await }).await?;
    tracing::info!(by = %caller.key_id(), key_id = %KeyId(old.id), successor = %KeyId(row.id), "API key rotated");
    let ends = old.expires_at.map_or(until, |expires_at| expires_at.min(until));
    let replaces = Some(Replaced { id: KeyId(old.id), expires_at: Instant(ends) });
    Ok(told_once(&Made { view: View::of(&row), key: &key, replaces }))
}

/// `POST /v1/keys/{id}/revoke`
pub(super) async fn revoke(
    http: HttpRequest,
    id: web::Path<String>,
    payload: web::Payload,
    api: web::Data<Api>,
) -> Result<HttpResponse, Problem> {
    let caller = admin(&api, &http).await?;
    Query::read(&http, &[])?;
    let (body, _room) = body::read(&api.room, &http, payload, LARGEST_BODY).await?;
    parse_nothing(&body)?;
    let key = find(&api, &caller, &id).await?;
    let now = api.app.now();
    let (id, entry) = (key.id, entry(&caller, now, "key.revoked", key.id));
    let revoked = api.read(move |store| async move { store.access().revoke(id, &entry).await }).await?;
    // Here at once; other processes know within two seconds.
    api.keys.forget(&key.key_hash);
    let revoked_at = if revoked { Some(now) } else { key.revoked_at };
    tracing::info!(by = %caller.key_id(), key_id = %KeyId(key.id), "API key revoked");
    let view = ApiKey { revoked_at, ..key };
    Ok(json(HttpResponse::Ok(), serde_json::to_vec(&View::of(&view)).expect("texts and lists always have a JSON form")))
}

async fn admin(api: &Api, http: &HttpRequest) -> Result<Caller, Problem> {
    let caller = auth::caller(api, http).await?;
    caller.require(Scope::Admin)?;
    Ok(caller)
}

/// The kinds of keys that exist for this caller.
fn managed(caller: &Caller) -> Vec<&'static str> {
    let kinds = KINDS.into_iter();
    match caller.kind() {
        "live" => kinds.collect(),
        "team" => kinds.filter(|kind| *kind != "live").collect(),
        _ => kinds.filter(|kind| *kind == "test").collect(),
    }
}

/// A key that the caller manages.
async fn find(api: &Api, caller: &Caller, id: &str) -> Result<ApiKey, Problem> {
    let KeyId(id) = id.parse().map_err(|()| Problem::not_found())?;
    let found = api.read(move |store| async move { store.access().key(id).await }).await?;
    let kinds = managed(caller);
    let own = found.filter(|key| key.tenant == caller.tenant && kinds.contains(&key.kind.as_str()));
    own.ok_or_else(Problem::not_found)
}

fn entry(caller: &Caller, at: Timestamp, action: &'static str, key: Uuid) -> Deed {
    Deed { at, tenant: Some(caller.tenant), actor: caller.actor(), action, subject: KeyId(key).to_string(), reason: None }
}

/// An answer that nobody on the way may keep.
fn told_once(made: &Made<'_>) -> HttpResponse {
    let mut answer = HttpResponse::Created();
    answer.insert_header(("cache-control", "no-store"));
    json(answer, serde_json::to_vec(made).expect("texts and lists always have a JSON form"))
}

/// `key_` and 32 hex digits.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct KeyId(pub(crate) Uuid);

impl fmt::Display for KeyId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "key_{}", self.0.simple())
    }
}

impl std::str::FromStr for KeyId {
    type Err = ();
    fn from_str(raw: &str) -> Result<Self, ()> {
        let hex = raw.strip_prefix("key_").ok_or(())?;
        let is_canonical = hex.len() == 32 && hex.bytes().all(|byte| matches!(byte, b'0'..=b'9' | b'a'..=b'f'));
        if is_canonical { Uuid::try_parse(hex).map(Self).map_err(|_| ()) } else { Err(()) }
    }
}

impl Serialize for KeyId {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_str(self)
    }
}

/// A key without the key.
#[derive(Serialize)]
struct View<'a> {
    id: KeyId,
    name: &'a str,
    kind: &'a str,
    scopes: &'a [String],
    created_at: Option<Instant>,
    expires_at: Option<Instant>,
    revoked_at: Option<Instant>,
}

impl<'a> View<'a> {
    fn of(key: &'a ApiKey) -> Self {
        let millis = (key.id.get_version_num() == 7).then(|| i64::try_from(key.id.as_u128() >> 80).unwrap_or_default());
        Self {
            id: KeyId(key.id),
            name: &key.name,
            kind: &key.kind,
            scopes: &key.scopes,
            created_at: millis.map(|millis| Instant(Timestamp::from_millis(millis))),
            expires_at: key.expires_at.map(Instant),
            revoked_at: key.revoked_at.map(Instant),
        }
    }
}

/// A key that was made, and the key.
#[derive(Serialize)]
struct Made<'a> {
    #[serde(flatten)]
    view: View<'a>,
    key: &'a str,
    #[serde(skip_serializing_if = "Option::is_none")]
    replaces: Option<Replaced>,
}

/// The key that a new one follows, and until when it is still in force.
#[derive(Serialize)]
struct Replaced {
    id: KeyId,
    expires_at: Instant,
}
