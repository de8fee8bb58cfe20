//! `GET /v1/notifications` and `POST /v1/notifications/search`: newest first, with bounded work for each page (S-199).
//! Which rows are shown is `core::listing`'s decision; how one looks, `read`'s.

use actix_web::{HttpRequest, HttpResponse, web};
use serde::Serialize;
use serde_json::value::RawValue;
use tidings_core::address::EmailAddress;
use tidings_core::ids::NotificationId;
use tidings_core::listing::{ListFilter, Seen};
use tidings_core::request::{PARAMETERS, Search, USUAL_ITEMS, parse_search};
use tidings_core::secrets::Keyring;
use tidings_core::store::{MOST_DELIVERIES, Scan, Window};
use tidings_core::time::Timestamp;
use tidings_core::words::Channel;
use uuid::Uuid;

use super::auth::{self, Caller, Scope};
use super::list::{Cursors, Page};
use super::problem::{Code, Problem};
use super::query::Query;
use super::{Api, body, notifications};
use crate::sealed;

/// A search is words, not content.
const SEARCH_BYTES: usize = 64 << 10;
/// Rows that are looked at in one go, where not every row is shown.
const WINDOW: usize = 250;
/// How often a call looks before it answers with what it found: at most 2,000 rows and 16,000 deliveries.
const WINDOWS: usize = 8;
/// What stands in a body alone.
const IN_A_BODY: &[&str] = &["to", "metadata", "email", "phone", "address", "recipient"];

/// `GET /v1/notifications`
pub(super) async fn list(http: HttpRequest, api: web::Data<Api>) -> Result<HttpResponse, Problem> {
    let caller = auth::caller(&api, &http).await?;
    caller.require(Scope::Read)?;
    page(&api, &caller, from_query(&http)?).await
}

/// `POST /v1/notifications/search`
pub(super) async fn search(http: HttpRequest, payload: web::Payload, api: web::Data<Api>) -> Result<HttpResponse, Problem> {
    let caller = auth::caller(&api, &http).await?;
    caller.require(Scope::Read)?;
    Query::read(&http, &[])?;
    body::require_json(&http)?;
    let (body, _room) = body::read(&api.room, &http, payload, SEARCH_BYTES).await?;
    page(&api, &caller, parse_search(&body)?).await
}

fn from_query(http: &HttpRequest) -> Result<Search, Problem> {
    let query = Query::read(http, PARAMETERS).map_err(|problem| match problem.code() {
        Code::UnknownField if Query::names(http, IN_A_BODY) => {
            let detail = "addresses and metadata are looked for by POST /v1/notifications/search: what stands in a URL stands in logs";
            Problem::new(Code::FilterUnsupported, detail)
        }
        Code::UnknownField => problem.with_code(Code::FilterUnsupported),
        _ => problem,
    })?;
    let mut search = Search::default();
    for name in PARAMETERS {
        if let Some(raw) = query.get(name) {
            search.set(name, raw).map_err(|why| Problem::new(Code::InvalidField, format!("the parameter {name}: {why}")))?;
        }
    }
    Ok(search)
}

/// A list as it is looked for in the store.
#[derive(Serialize)]
struct Wanted {
    filter: ListFilter,
    idempotency_key: Option<String>,
    metadata: Vec<(String, String)>,
    since: Option<Timestamp>,
    until: Option<Timestamp>,
}

impl Wanted {
    fn new(keyring: &Keyring, search: Search) -> Self {
        let digest = |to: EmailAddress| keyring.address_digest(Channel::Email, &to.canonical());
        let filter = ListFilter {
            status: search.status,
            category: search.category,
            tag: search.tag,
            ref_digest: search.reference.map(|reference| keyring.reference_digest(&reference)),
            state: search.state,
            channel: search.channel,
            address_digest: search.to.map(digest),
        };
        let Search { idempotency_key, metadata, since, until, .. } = search;
        Self { filter, idempotency_key, metadata, since, until }
    }

    /// Whether every row of the caller's mode is shown.
    fn takes_all(&self) -> bool {
        self.filter == ListFilter::default() && self.metadata.is_empty()
    }

    /// Whether a row is shown. One whose metadata cannot be opened is not.
    fn fits(&self, keyring: &Keyring, seen: &Seen) -> bool {
        self.filter.fits(seen) && (self.metadata.is_empty() || self.has_metadata(keyring, seen))
    }

    fn has_metadata(&self, keyring: &Keyring, seen: &Seen) -> bool {
        let Some(sealed) = seen.metadata.as_deref() else { return false };
        let own = sealed::open_metadata(keyring, seen.id, sealed).unwrap_or_else(|_| {
            tracing::error!(notification_id = %seen.id, "the metadata of a notification cannot be opened");
            Vec::new()
        });
        self.metadata.iter().all(|pair| own.contains(pair))
    }
}

/// The lowest id that can have been made at `at` or later; ids know milliseconds.
fn first_id_at(at: Timestamp) -> Uuid {
    NotificationId::first_at(at.plus(std::time::Duration::from_micros(999)).to_millisecond())
}

async fn page(api: &Api, caller: &Caller, mut search: Search) -> Result<HttpResponse, Problem> {
    let keyring = &api.app.keyring;
    let (after, limit) = (search.after.take(), search.limit.take().unwrap_or(USUAL_ITEMS));
    let wanted = Wanted::new(keyring, search);
    let cursors = Cursors::new(keyring, caller, "notifications", &wanted);
    let position: Option<Uuid> = after.map(|cursor| cursors.read(&cursor)).transpose()?;

    let mut from = wanted.since.map_or(Uuid::nil(), first_id_at);
    let mut before = wanted.until.map_or(Uuid::max(), first_id_at);
    before = before.min(position.unwrap_or(Uuid::max()));
    if let Some(key) = &wanted.idempotency_key {
        // The key is an index of its own, read from the primary (S-011).
        let Some(holder) = notifications::holder(api, caller, key).await? else { return Ok(nothing()) };
        let only = holder.id.as_uuid();
        from = from.max(only);
        before = before.min(Uuid::from_u128(only.as_u128().saturating_add(1)));
    }
    let walk = walk(api, caller, &wanted, from, before, limit).await?;
    let items = read(api, caller, walk.found).await?;
    Ok(Page { items, next: walk.next.map(|next| cursors.write(&next)) }.answer())
}

fn nothing() -> HttpResponse {
    Page { items: Vec::<()>::new(), next: None }.answer()
}

/// What a call found, and where the next one goes on.
#[derive(Default)]
struct Walk {
    found: Vec<NotificationId>,
    deliveries: usize,
    next: Option<Uuid>,
}

impl Walk {
    /// Takes what fits of a scan; `true` where the page is full and another one is known.
    fn take(&mut self, scan: Scan, limit: usize, fits: impl Fn(&Seen) -> bool) -> bool {
        for seen in scan.seen.into_iter().filter(fits) {
            let count = usize::from(seen.delivery_count);
            let is_full = self.found.len() == limit || self.deliveries + count > MOST_DELIVERIES;
            if let Some(last) = self.found.last().filter(|_| is_full) {
                self.next = Some(last.as_uuid());
                return true;
            }
            self.deliveries += count;
            self.found.push(seen.id);
        }
        self.next = scan.reached;
        false
    }
}

async fn walk(api: &Api, caller: &Caller, wanted: &Wanted, from: Uuid, before: Uuid, limit: usize) -> Result<Walk, Problem> {
    let mut walk = Walk { next: Some(before), ..Walk::default() };
    for _ in 0..WINDOWS {
        let Some(before) = walk.next.filter(|before| *before > from) else {
            walk.next = None;
            break;
        };
        let rows = if wanted.takes_all() { limit - walk.found.len() + 1 } else { WINDOW };
        let window = Window {
            tenant: caller.tenant,
            from,
            before,
            rows,
            with_deliveries: wanted.filter.asks_of_deliveries(),
            with_metadata: !wanted.metadata.is_empty(),
        };
        let scan = api.read(move |store| async move { store.listing().scan(&window).await }).await?;
        let is_shown = |seen: &Seen| seen.mode == caller.mode && wanted.fits(&api.app.keyring, seen);
        if walk.take(scan, limit, is_shown) || walk.found.len() == limit {
            break;
        }
    }
    Ok(walk)
}

/// The notifications as `GET /v1/notifications/{id}` shows them. What cannot be opened is left out.
async fn read(api: &Api, caller: &Caller, ids: Vec<NotificationId>) -> Result<Vec<Box<RawValue>>, Problem> {
    if ids.is_empty() {
        return Ok(Vec::new());
    }
    let (tenant, mode) = (caller.tenant, caller.mode);
    let stored = api.read(move |store| async move { store.listing().notifications(tenant, mode, &ids).await }).await?;
    let former_accounts = notifications::former_accounts(api, caller, stored.iter().flat_map(|stored| &stored.deliveries)).await?;
    let reader = notifications::reader(api, caller, &former_accounts);
    let shown = stored.iter().filter_map(|stored| {
        let body = reader.render(stored).ok().and_then(|body| String::from_utf8(body).ok());
        let item = body.and_then(|body| RawValue::from_string(body).ok());
        if item.is_none() {
            tracing::error!(notification_id = %stored.id, "a notification cannot be opened");
        }
        item
    });
    Ok(shown.collect())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ids_of_a_millisecond_that_began_before_the_instant_are_not_in() {
        let at = Timestamp::from_micros(1_800_000_000_000_001);
        assert_eq!(first_id_at(at), NotificationId::first_at(Timestamp::from_millis(1_800_000_000_001)));
        let at = Timestamp::from_millis(1_800_000_000_000);
        assert_eq!(first_id_at(at), NotificationId::first_at(at));
    }
}
