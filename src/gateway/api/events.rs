//! `/v1/events`: the pull feed, oldest first. An application reads from its last `next`, and has seen everything (S-206).
//! How an event looks is decided in `event`; which there are, in core.

use std::cell::Cell;

use actix_web::{HttpRequest, HttpResponse, web};
use serde_json::value::RawValue;
use tidings_core::delivery::EventType;
use tidings_core::nearest::nearest;
use tidings_core::store::{FeedPage, FeedPosition, FeedQuery, StoredEvent};
use tidings_core::words::Mode;

use super::auth::{self, Caller, Scope};
use super::list::{Cursors, Page, Part, Position};
use super::problem::{Code, Problem};
use super::query::Query;
use super::{Api, hold};
use crate::event;

/// The value of `after` that means the end of the feed.
const NOW: &str = "now";
/// Pages that one look goes through where a filter leaves out most of them.
const MOST_PAGES: usize = 20;

/// `GET /v1/events`
pub(super) async fn list(http: HttpRequest, api: web::Data<Api>) -> Result<HttpResponse, Problem> {
    let caller = auth::caller(&api, &http).await?;
    caller.require(Scope::Read)?;
    let query = Query::read(&http, &["after", "type", "limit", "wait"])?;
    let patience = hold::patience(&query)?;
    let types = query.get("type").map(types).transpose()?.unwrap_or_default();
    let part = Part::read(&query)?;
    let words: Vec<_> = types.iter().map(|kind| kind.as_str()).collect();
    // Events of the installation are for operators, and as live as it is.
    let with_installation = caller.mode == Mode::Live && caller.has(Scope::Ops);
    let cursors = places(&api, &caller, with_installation, &words);
    let after = match part.after.as_deref() {
        None => None,
        Some(NOW) => Some(api.read(|store| async move { store.feed().end().await }).await?),
        Some(cursor) => Some(cursors.read(cursor).or_else(|problem| {
            // A place that somebody without the scope was given: events of the installation before it were not for them.
            if with_installation { places(&api, &caller, false, &words).read(cursor) } else { Err(problem) }
        })?),
    };
    // A look that found nothing need not look at the same events again.
    let after = Cell::new(after);
    let limit = i64::try_from(part.limit).unwrap_or(i64::MAX);
    let ask = async || {
        let asked =
            FeedQuery { tenant: caller.tenant, mode: caller.mode, with_installation, types: types.clone(), after: after.get(), limit };
        let page = look(&api, asked).await?;
        after.set(Some(page.next));
        Ok(page)
    };
    let page = hold::until_there(&api, patience, |page: &FeedPage| page.events.is_empty(), ask).await?;
    Ok(Page { items: rendered(&api, &caller, &page.events).await?, next: Some(cursors.write(&page.next)) }.answer())
}

/// The cursors of the feed. Those of a reader who sees the events of the installation are no good without the scope for
/// them: who went on without seeing them, and came back, would have missed some silently.
fn places<'a>(api: &'a Api, caller: &Caller, with_installation: bool, types: &[&str]) -> Cursors<'a> {
    let list = if with_installation { "events and those of the installation" } else { "events" };
    Cursors::new(&api.app.keyring, caller, list, &types)
}

/// The next page that holds something, or the end.
async fn look(api: &Api, mut asked: FeedQuery) -> Result<FeedPage, Problem> {
    let mut pages = 0;
    loop {
        let query = asked.clone();
        let page = api.read(move |store| async move { store.feed().events(&query).await }).await?;
        let page = page.ok_or_else(|| Problem::new(Code::CursorExpired, "events after this position were purged"))?;
        pages += 1;
        if page.is_end || !page.events.is_empty() || pages >= MOST_PAGES {
            return Ok(page);
        }
        asked.after = Some(page.next);
    }
}

async fn rendered(api: &Api, caller: &Caller, events: &[StoredEvent]) -> Result<Vec<Box<RawValue>>, Problem> {
    let routing = &caller.setup.routing;
    let mut accounts = events.iter().filter_map(|event| event.account);
    let former = if accounts.all(|id| routing.account(id).is_some()) {
        Vec::new()
    } else {
        api.read(|store| async move { store.account_names().await }).await?
    };
    let name = |event: &StoredEvent| {
        let id = event.account?;
        let configured = routing.account(id).map(|account| account.name.as_str());
        configured.or_else(|| former.iter().find(|(known, _)| *known == id).map(|(_, name)| name.as_str()))
    };
    Ok(events.iter().map(|event| event::render(&api.app.keyring, caller.mode, event, name(event))).collect())
}

/// Types by their names, with commas between them.
fn types(list: &str) -> Result<Vec<EventType>, Problem> {
    let mut types = list.split(',').map(kind).collect::<Result<Vec<_>, _>>()?;
    types.sort_unstable();
    types.dedup();
    Ok(types)
}

fn kind(name: &str) -> Result<EventType, Problem> {
    let names = || EventType::ALL.iter().map(|kind| EventType::wire_name(kind.as_str()));
    if let Some(known) = EventType::ALL.iter().find(|kind| EventType::wire_name(kind.as_str()) == name) {
        return Ok(*known);
    }
    let all: Vec<String> = names().collect();
    let detail = match nearest(name, all.iter().map(String::as_str)) {
        Some(meant) => format!("the parameter type names no type of event; did you mean \"{meant}\"?"),
        None => "the parameter type takes types of events, such as delivery.bounced, with commas between them".to_owned(),
    };
    Err(Problem::new(Code::InvalidField, detail))
}

impl Position for FeedPosition {
    fn to_bytes(&self) -> Vec<u8> {
        [self.pos.to_be_bytes().as_slice(), &self.n.to_be_bytes()].concat()
    }

    fn from_bytes(bytes: &[u8]) -> Option<Self> {
        let (pos, n) = bytes.split_first_chunk::<8>()?;
        Some(Self { pos: i64::from_be_bytes(*pos), n: i32::from_be_bytes(n.try_into().ok()?) })
    }
}
