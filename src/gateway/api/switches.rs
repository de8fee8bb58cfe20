//! `/v1/switches`: what operators pause and resume (S-118). In force here at once, on every other instance within two seconds.

use actix_web::{HttpRequest, HttpResponse, web};
use serde_json::{Value, json};
use tidings_core::request::operating;
use tidings_core::store::SwitchedBy;
use tidings_core::switches::{SCOPES, Scope, Switch};
use tidings_core::time::Timestamp;

use super::auth::{self, Caller};
use super::problem::{Code, Problem};
use super::query::Query;
use super::{Api, body};

/// Longer bodies do not switch anything.
pub(super) const LONGEST_BODY: usize = 16 << 10;

/// `GET /v1/switches`
pub(super) async fn list(http: HttpRequest, api: web::Data<Api>) -> Result<HttpResponse, Problem> {
    let caller = auth::caller(&api, &http).await?;
    caller.require(auth::Scope::Ops)?;
    Query::read(&http, &[])?;
    let now = api.app.now();
    let items: Vec<Value> = all(&api).await?.iter().map(|switch| shown(switch, now)).collect();
    Ok(HttpResponse::Ok().json(json!({ "items": items, "next": null })))
}

/// `GET /v1/switches/{scope}`
pub(super) async fn one(http: HttpRequest, scope: web::Path<String>, api: web::Data<Api>) -> Result<HttpResponse, Problem> {
    let caller = auth::caller(&api, &http).await?;
    caller.require(auth::Scope::Ops)?;
    Query::read(&http, &[])?;
    let scope = parsed(&scope)?;
    answer(&api, &scope).await?.ok_or_else(Problem::not_found)
}

/// `PUT /v1/switches/{scope}`
pub(super) async fn put(
    http: HttpRequest,
    scope: web::Path<String>,
    payload: web::Payload,
    api: web::Data<Api>,
) -> Result<HttpResponse, Problem> {
    let caller = auth::caller(&api, &http).await?;
    caller.require(auth::Scope::Ops)?;
    Query::read(&http, &[])?;
    let scope = parsed(&scope)?;
    body::require_json(&http)?;
    let (body, _room) = body::read(&api.room, &http, payload, LONGEST_BODY).await?;
    let asked = operating::parse_switch(&body, api.app.now())?;
    must_exist(&api, &caller, &scope).await?;
    set(&api, &caller, scope.clone(), asked).await?;
    answer(&api, &scope).await?.ok_or_else(Problem::not_found)
}

/// `DELETE /v1/switches/{scope}`: nothing of it is paused any longer, whether or not something was.
pub(super) async fn delete(http: HttpRequest, scope: web::Path<String>, api: web::Data<Api>) -> Result<HttpResponse, Problem> {
    let caller = auth::caller(&api, &http).await?;
    caller.require(auth::Scope::Ops)?;
    Query::read(&http, &[])?;
    clear(&api, &caller, parsed(&scope)?).await?;
    Ok(HttpResponse::NoContent().finish())
}

/// Sets a switch, in force in this process when it returns.
pub(super) async fn set(api: &Api, caller: &Caller, scope: Scope, asked: operating::SwitchRequest) -> Result<(), Problem> {
    let by = SwitchedBy { actor: caller.actor(), reason: asked.reason, at: api.app.now() };
    api.read(move |store| async move { store.pauses().set_switch(&scope, asked.paused, asked.until, &by).await }).await?;
    refresh(api).await
}

/// Removes a switch, out of force in this process when it returns.
pub(super) async fn clear(api: &Api, caller: &Caller, scope: Scope) -> Result<(), Problem> {
    let by = SwitchedBy { actor: caller.actor(), reason: None, at: api.app.now() };
    api.read(move |store| async move { store.pauses().clear_switch(&scope, &by).await }).await?;
    refresh(api).await
}

async fn refresh(api: &Api) -> Result<(), Problem> {
    let app = api.app.clone();
    api.read(move |store| async move { app.pauses.refresh(store.as_ref()).await }).await?;
    api.app.wake.look();
    api.app.wake.arrived();
    Ok(())
}

async fn all(api: &Api) -> Result<Vec<Switch>, Problem> {
    api.read(|store| async move { store.pauses().switches().await }).await
}

async fn answer(api: &Api, scope: &Scope) -> Result<Option<HttpResponse>, Problem> {
    let now = api.app.now();
    let switch = all(api).await?.into_iter().find(|switch| switch.scope == *scope);
    Ok(switch.map(|switch| HttpResponse::Ok().json(shown(&switch, now))))
}

/// A mistyped name would pause nothing, and nobody would know.
async fn must_exist(api: &Api, caller: &Caller, scope: &Scope) -> Result<(), Problem> {
    let is_known = match scope {
        Scope::Account(name) => caller.setup.routing.accounts.iter().any(|account| account.name == *name),
        Scope::Tenant(name) => api.read(|store| async move { store.tenants().await }).await?.iter().any(|tenant| tenant.name == *name),
        Scope::Category(name) => caller.setup.rules.categories.contains_key(name) || caller.setup.settings.takes_undeclared_categories(),
        Scope::All | Scope::Retries | Scope::Fallback | Scope::Class(_) | Scope::Channel(_) => true,
    };
    let unknown = || Problem::new(Code::NotFound, "the scope names nothing that there is");
    is_known.then_some(()).ok_or_else(unknown)
}

fn parsed(text: &str) -> Result<Scope, Problem> {
    text.parse().map_err(|_| Problem::new(Code::NotFound, format!("there is no such scope; a scope is {SCOPES}")))
}

/// A switch as answers show it; one whose time is over is no longer paused.
pub(super) fn shown(switch: &Switch, now: Timestamp) -> Value {
    json!({
        "scope": switch.scope.to_string(),
        "paused": switch.is_in_force(now),
        "until": switch.until.map(|until| until.to_string()),
        "reason": switch.reason,
        "actor": switch.actor,
        "version": switch.version,
    })
}
