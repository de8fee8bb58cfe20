//! What a frozen store answers (S-237): everything can be read, nothing is taken or changed, since it would not come along.

use std::time::Duration;

use actix_web::body::BoxBody;
use actix_web::dev::{ServiceRequest, ServiceResponse};
use actix_web::http::Method;
use actix_web::middleware::Next;
use actix_web::{Error, web};

use super::Api;
use super::problem::{Code, Problem};

/// When it may help to come again: an installation moves in minutes.
const COME_AGAIN: Duration = Duration::from_secs(30);
/// What only looks though its method does not say so.
const LOOKS: &[&str] = &["/v1/notifications/search", "/v1/suppressions/lookup"];

/// Turns away what would write while the store is frozen.
pub(super) async fn guard(request: ServiceRequest, next: Next<BoxBody>) -> Result<ServiceResponse<BoxBody>, Error> {
    let is_frozen = request.app_data::<web::Data<Api>>().is_some_and(|api| api.app.pauses.is_frozen());
    if is_frozen && writes(request.method(), request.match_info().as_str()) {
        let detail = "this installation moves to another database: nothing is taken here until that is done";
        return Ok(request.error_response(Problem::new(Code::Overloaded, detail).after(COME_AGAIN)));
    }
    next.call(request).await
}

fn writes(method: &Method, path: &str) -> bool {
    !matches!(*method, Method::GET | Method::HEAD | Method::OPTIONS) && !LOOKS.contains(&path)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_only_looks_is_let_through() {
        for (method, path, expected) in [
            (Method::POST, "/v1/notifications", true),
            (Method::DELETE, "/v1/suppressions/sup_1", true),
            (Method::PUT, "/v1/switches/all", true),
            (Method::POST, "/v1/config/reload", true),
            (Method::GET, "/v1/notifications", false),
            (Method::POST, "/v1/notifications/search", false),
            (Method::POST, "/v1/suppressions/lookup", false),
        ] {
            assert_eq!(writes(&method, path), expected, "{method} {path}");
        }
    }
}
