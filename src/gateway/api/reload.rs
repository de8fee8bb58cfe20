//! `POST /v1/config/reload`: this process reads its configuration again. What it takes of it is decided in `crate::reload`.

use actix_web::{HttpRequest, HttpResponse, web};
use serde_json::json;
use tidings_core::fault::{Fault, FaultCode, Faults};

use super::Api;
use super::auth;
use super::problem::{Code, Problem};
use super::query::Query;
use crate::config::ConfigError;
use crate::reload::{self, ReloadError};

/// Other instances read theirs when they are told to.
pub(super) async fn reload(http: HttpRequest, api: web::Data<Api>) -> Result<HttpResponse, Problem> {
    let caller = auth::caller(&api, &http).await?;
    caller.require(auth::Scope::Admin)?;
    Query::read(&http, &[])?;
    let (app, actor) = (api.app.clone(), caller.actor());
    // It goes on when the caller goes away: taken whole or not at all.
    let reloaded = api.runtime.spawn(async move { reload::reload(&app, &actor).await }).await;
    let reloaded = reloaded.map_err(|panic| Problem::internal(&panic))?.map_err(problem)?;
    Ok(HttpResponse::Ok().json(json!({
        "config_digest": reloaded.digest,
        "changed": reloaded.difference.changed,
        "needs_restart": reloaded.difference.needs_restart,
    })))
}

fn problem(error: ReloadError) -> Problem {
    match error {
        ReloadError::Invalid(ConfigError { faults }) => {
            let mut all = Faults::new();
            for fault in faults {
                // Where in the configuration; the text names it as `tidings check` does.
                let (pointer, detail) = (fault.pointer(), fault.to_string());
                all.push(Fault { pointer, code: FaultCode::InvalidConfiguration, detail, limit: None, actual: None });
            }
            all.into()
        }
        ReloadError::Late => Problem::new(Code::Overloaded, "the configuration could not be read in time, or another reload is at work"),
        ReloadError::Frozen => Problem::new(Code::Overloaded, "the store is frozen: this installation moves to another database"),
        ReloadError::Store(error) => Problem::store(&error),
    }
}
