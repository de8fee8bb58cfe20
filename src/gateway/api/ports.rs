//! Which of two ports a request came in by. Where `server.admin_bind` is set, operators have one of their own: metrics, the
//! sandbox's pages, the documentation and everything of scope `ops` or `admin` are found there alone. The other paths are
//! found at both.

use actix_web::body::BoxBody;
use actix_web::dev::{ServiceRequest, ServiceResponse};
use actix_web::http::StatusCode;
use actix_web::middleware::Next;
use actix_web::{Error, HttpRequest, web};

use super::problem::Problem;

/// Where a server listens.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Port {
    /// The only port there is.
    Only,
    /// Where applications come in, beside a port for operators.
    Applications,
    /// Where operators come in.
    Operators,
}

/// What is looked at by people and machines that operate, and asks for no key.
const OPERATORS_PATHS: &[&str] = &["/metrics", "/sandbox", "/docs"];

impl Port {
    /// The port of a request.
    pub(super) fn of(request: &HttpRequest) -> Self {
        request.app_data::<web::Data<Self>>().map_or(Self::Only, |port| ***port)
    }

    /// Whether operators may act here.
    pub(super) const fn serves_operators(self) -> bool {
        matches!(self, Self::Only | Self::Operators)
    }
}

/// Hides the operators' pages where applications come in.
pub(super) async fn guard(request: ServiceRequest, next: Next<BoxBody>) -> Result<ServiceResponse<BoxBody>, Error> {
    // As the router reads it: `%6d` is an `m`.
    if !Port::of(request.request()).serves_operators() && is_for_operators(request.match_info().as_str()) {
        return Err(Problem::of_status(StatusCode::NOT_FOUND).into());
    }
    next.call(request).await
}

fn is_for_operators(path: &str) -> bool {
    OPERATORS_PATHS.iter().any(|own| path.strip_prefix(own).is_some_and(|rest| rest.is_empty() || rest.starts_with('/')))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_whole_segments_count() {
        for path in ["/metrics", "/sandbox", "/sandbox/msg_1", "/docs/errors/not_found"] {
            assert!(is_for_operators(path), "{path}");
        }
        for path in ["/", "/metricsx", "/v1/sandbox/messages", "/healthz", "/documents"] {
            assert!(!is_for_operators(path), "{path}");
        }
    }
}
