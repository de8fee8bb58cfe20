//! What surrounds every route: the request's id, problem documents for whatever went wrong below, one log line.

use std::fmt;

use actix_web::body::BoxBody;
use actix_web::dev::{ServiceRequest, ServiceResponse};
use actix_web::http::header::{self, HeaderName, HeaderValue};
use actix_web::middleware::Next;
use actix_web::{Error, HttpMessage as _};

use super::limits;
use super::problem::Problem;

const REQUEST_ID: HeaderName = HeaderName::from_static("request-id");

/// Names one request in its answer and in the log.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct RequestId(u128);

impl RequestId {
    pub(super) fn new() -> Self {
        Self(rand::random())
    }

    #[cfg(test)]
    pub(super) const fn fixed() -> Self {
        Self(0x2a)
    }

    fn to_header(self) -> HeaderValue {
        let mut digits = [0; 32];
        hex::encode_to_slice(self.0.to_be_bytes(), &mut digits).expect("16 bytes are 32 digits");
        HeaderValue::from_bytes(&digits).expect("hexadecimal digits fit into a header")
    }
}

impl fmt::Display for RequestId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:032x}", self.0)
    }
}

impl serde::Serialize for RequestId {
    fn serialize<S: serde::Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_str(self)
    }
}

/// Runs a request and completes its answer.
pub(super) async fn frame(request: ServiceRequest, next: Next<BoxBody>) -> Result<ServiceResponse<BoxBody>, Error> {
    let id = RequestId::new();
    // Anybody needs the time for the log alone, and handlers the id for it and for answers about many things.
    let started = tracing::enabled!(tracing::Level::DEBUG).then(std::time::Instant::now);
    request.extensions_mut().insert(id);
    let mut answer = next.call(request).await?;
    if answer.status().is_client_error() || answer.status().is_server_error() {
        answer = with_problem(answer, id);
    }
    let request = answer.request().clone();
    limits::complete(answer.response_mut(), &request);
    answer.headers_mut().insert(REQUEST_ID, id.to_header());
    if let Some(started) = started {
        log(&answer, id, started.elapsed());
    }
    Ok(answer)
}

/// Gives the document to a problem of ours, and makes one for a bare answer of the framework; what a handler wrote
/// itself stays as it is. `Allow` is kept.
fn with_problem(answer: ServiceResponse<BoxBody>, id: RequestId) -> ServiceResponse<BoxBody> {
    let (request, bare) = answer.into_parts();
    let document = match bare.error() {
        Some(error) => match error.as_error::<Problem>() {
            Some(problem) => problem.render(id),
            None => Problem::of_status(bare.status()).render(id),
        },
        None if bare.headers().contains_key(header::CONTENT_TYPE) => return ServiceResponse::new(request, bare),
        None => Problem::of_status(bare.status()).render(id),
    };
    let mut answer = ServiceResponse::new(request, document);
    if let Some(allow) = bare.headers().get(header::ALLOW) {
        answer.headers_mut().insert(header::ALLOW, allow.clone());
    }
    answer
}

/// Never the path or the query: they may hold keys and addresses.
fn log(answer: &ServiceResponse<BoxBody>, id: RequestId, took: std::time::Duration) {
    let (method, status) = (answer.request().method(), answer.status().as_u16());
    let route = answer.request().match_pattern().unwrap_or_default();
    tracing::debug!(request_id = %id, %method, route, status, micros = took.as_micros(), "answered");
}
