//! Every answer that is not good, as an RFC 9457 problem document. Which statuses there are stands in
//! `codes`. No address, secret or content stands in any of it (S-019).

use std::borrow::Cow;
use std::fmt;

use actix_web::http::StatusCode;
use actix_web::http::header::{self, HeaderValue};
use actix_web::{HttpResponse, ResponseError};
use serde::Serialize;
use tidings_core::fault::{Fault, Faults};
use tidings_core::ids::NotificationId;
use tidings_core::pointer::Pointer;
use tidings_core::status::Status;
use tidings_core::store::StoreError;

pub use super::codes::Code;
use super::frame::RequestId;
use super::view::{Instant, StatusUrl};

/// The notification that holds a key which was used for another request.
#[derive(Debug, Serialize)]
pub struct Existing {
    id: NotificationId,
    status: Status,
    status_url: StatusUrl,
    created_at: Instant,
}

impl Existing {
    /// The holder and how it stands now.
    pub fn new(id: NotificationId, status: Status) -> Self {
        Self { id, status, status_url: StatusUrl(id), created_at: Instant(id.created_at()) }
    }
}

/// An answer that is not good.
#[derive(Debug)]
pub struct Problem {
    code: Code,
    detail: Cow<'static, str>,
    faults: Vec<Fault>,
    existing: Option<Box<Existing>>,
    /// Where a request differs from the one that has its key; empty where that is not known any more.
    differs: Vec<String>,
    /// Seconds after which it may help to try again.
    retry_after: Option<u32>,
    /// What `WWW-Authenticate` asks for.
    challenge: Option<&'static str>,
}

impl Problem {
    /// A problem without particulars.
    pub fn new(code: Code, detail: impl Into<Cow<'static, str>>) -> Self {
        let retry_after = match code {
            Code::IdempotencyInProgress | Code::Overloaded | Code::OutcomeUnknown => Some(1),
            _ => None,
        };
        Self { code, detail: detail.into(), faults: Vec::new(), existing: None, differs: Vec::new(), retry_after, challenge: None }
    }

    /// No key, or none that is valid.
    pub fn unauthorized(detail: impl Into<Cow<'static, str>>) -> Self {
        Self { challenge: Some("Bearer realm=\"Tidings\""), ..Self::new(Code::Unauthorized, detail) }
    }

    /// Nothing here, or nothing that this key may see: the same answer for both.
    pub fn not_found() -> Self {
        Self::new(Code::NotFound, "there is nothing here for this API key")
    }

    /// The key belongs to another request.
    pub fn key_reused(existing: Existing, differs: Vec<String>) -> Self {
        let detail = "the Idempotency-Key belongs to a different request, which was accepted earlier";
        Self { existing: Some(Box::new(existing)), differs, ..Self::new(Code::IdempotencyKeyReused, detail) }
    }

    /// The same problem, with how long to wait before trying again.
    #[must_use]
    pub fn after(mut self, wait: std::time::Duration) -> Self {
        let seconds = wait.as_secs() + u64::from(wait.subsec_nanos() > 0);
        self.retry_after = Some(u32::try_from(seconds.max(1)).unwrap_or(u32::MAX));
        self
    }

    /// The same problem about a request that stands at `at` in a larger document.
    #[must_use]
    pub fn within(mut self, at: &Pointer<'_>) -> Self {
        for place in &mut self.differs {
            place.insert_str(0, &at.to_string());
        }
        self
    }

    /// A store that did not do what it was asked for. What only an operator can mend is logged here, once.
    pub fn store(error: &StoreError) -> Self {
        match error {
            StoreError::Busy(_) | StoreError::Unreachable(_) => Self::new(Code::Overloaded, "the store cannot be used at the moment"),
            StoreError::NotWritable(_) => {
                Self { retry_after: Some(5), ..Self::new(Code::Overloaded, "the store cannot be written at the moment") }
            }
            StoreError::CommitUnknown(_) => Self::outcome_unknown(),
            StoreError::Refused(_) | StoreError::Unreadable(_) => Self::internal(error),
        }
    }

    /// It may have been accepted.
    pub fn outcome_unknown() -> Self {
        let detail = "the store did not say whether the request was committed: repeat it under the same Idempotency-Key";
        Self::new(Code::OutcomeUnknown, detail)
    }

    /// A fault of ours, logged with its causes.
    pub fn internal(error: &(dyn std::error::Error + 'static)) -> Self {
        tracing::error!(error = %Chain(error), "a request failed");
        Self::new(Code::Internal, "the request failed for a reason of ours")
    }

    /// What an answer of the framework itself means.
    pub fn of_status(status: StatusCode) -> Self {
        match status {
            StatusCode::NOT_FOUND => Self::new(Code::NotFound, "there is no such path"),
            StatusCode::METHOD_NOT_ALLOWED => Self::new(Code::MethodNotAllowed, "this path does not have this method"),
            StatusCode::PAYLOAD_TOO_LARGE => Self::new(Code::PayloadTooLarge, "the body is too large"),
            StatusCode::UNSUPPORTED_MEDIA_TYPE => Self::new(Code::UnsupportedMediaType, "the body must be application/json"),
            StatusCode::REQUEST_TIMEOUT => Self::new(Code::RequestTimeout, "the request did not arrive in time"),
            status if status.is_client_error() => Self::new(Code::InvalidJson, "the request could not be read"),
            _ => Self::new(Code::Internal, "the request failed for a reason of ours"),
        }
    }

    /// The same words under another code.
    #[must_use]
    pub fn with_code(self, code: Code) -> Self {
        Self { code, ..self }
    }

    /// Which one it is.
    pub const fn code(&self) -> Code {
        self.code
    }

    /// What is wrong in particular.
    pub fn detail(&self) -> &str {
        &self.detail
    }

    /// The same problem, asking a browser for user and password.
    #[must_use]
    pub fn asking_for_password(mut self) -> Self {
        if self.code == Code::Unauthorized {
            self.challenge = Some("Basic realm=\"Tidings sandbox\", charset=\"UTF-8\"");
        }
        self
    }

    /// The whole answer.
    pub fn render(&self, request_id: RequestId) -> HttpResponse {
        let body = self.document(request_id);
        let mut answer = HttpResponse::build(self.code.status());
        answer.insert_header((header::CONTENT_TYPE, HeaderValue::from_static("application/problem+json")));
        if let Some(seconds) = self.retry_after {
            answer.insert_header((header::RETRY_AFTER, HeaderValue::from(seconds)));
        }
        if let Some(challenge) = self.challenge {
            answer.insert_header((header::WWW_AUTHENTICATE, HeaderValue::from_static(challenge)));
        }
        answer.body(body)
    }

    /// The document alone, for an answer that tells of many things.
    pub fn document(&self, request_id: RequestId) -> Vec<u8> {
        let document = Document {
            type_: format_args!("/docs/errors/{}", self.code.as_str()),
            title: self.code.title(),
            status: self.code.status().as_u16(),
            code: self.code.as_str(),
            detail: &self.detail,
            retryable: self.code.is_retryable(),
            request_id,
            errors: &self.faults,
            existing: self.existing.as_deref(),
            differs: &self.differs,
        };
        serde_json::to_vec(&document).expect("texts and numbers always have a JSON form")
    }
}

#[derive(Serialize)]
struct Document<'a> {
    #[serde(rename = "type")]
    type_: fmt::Arguments<'a>,
    title: &'a str,
    status: u16,
    code: &'a str,
    detail: &'a str,
    retryable: bool,
    request_id: RequestId,
    errors: &'a [Fault],
    #[serde(skip_serializing_if = "Option::is_none")]
    existing: Option<&'a Existing>,
    #[serde(skip_serializing_if = "<[_]>::is_empty")]
    differs: &'a [String],
}

/// The first fault decides; all of them are listed.
impl From<Faults> for Problem {
    fn from(faults: Faults) -> Self {
        let faults: Vec<Fault> = faults.into_iter().collect();
        match faults.first() {
            Some(first) => Self { faults: faults.clone(), ..Self::new(first.code.into(), first.detail.clone()) },
            None => Self::new(Code::Internal, "the request was refused without a reason"),
        }
    }
}

impl fmt::Display for Problem {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.code.as_str())
    }
}

/// The document itself is written around all routes, where the request's id is known.
impl ResponseError for Problem {
    fn status_code(&self) -> StatusCode {
        self.code.status()
    }

    fn error_response(&self) -> HttpResponse {
        HttpResponse::new(self.status_code())
    }
}

/// An error with its causes.
struct Chain<'a>(&'a (dyn std::error::Error + 'static));

impl fmt::Display for Chain<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}", self.0)?;
        let mut cause = self.0.source();
        while let Some(error) = cause {
            write!(f, ": {error}")?;
            cause = error.source();
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use actix_web::body::to_bytes;
    use tidings_core::fault::FaultCode;
    use tidings_core::time::Timestamp;

    async fn text(problem: Problem) -> String {
        let answer = problem.render(RequestId::fixed());
        let mut headers: Vec<String> =
            answer.headers().iter().map(|(name, value)| format!("{name}: {}", value.to_str().unwrap())).collect();
        headers.sort();
        let status = answer.status();
        let body: serde_json::Value = serde_json::from_slice(&to_bytes(answer.into_body()).await.unwrap()).unwrap();
        format!("{status}\n{}\n{body:#}", headers.join("\n"))
    }

    #[actix_web::test]
    async fn all_faults_stand_in_one_answer_and_the_first_decides() {
        let mut faults = Faults::new();
        let at = Pointer::ROOT;
        faults.push(Fault::new(&at.name("to"), FaultCode::InvalidRecipient, "at most 50 recipients").over(50, 51));
        faults.add(&at.name("subjetc"), FaultCode::UnknownField, "did you mean \"subject\"?");
        insta::assert_snapshot!(text(faults.into()).await);
    }

    #[actix_web::test]
    async fn a_reused_key_names_its_holder() {
        let id = NotificationId::new(Timestamp::from_millis(1_800_000_000_123), [1; 10]);
        insta::assert_snapshot!(text(Problem::key_reused(Existing::new(id, Status::Delivered), vec!["/email/text".to_owned()])).await);
    }

    #[actix_web::test]
    async fn what_passes_by_waiting_says_how_long() {
        insta::assert_snapshot!(text(Problem::store(&StoreError::NotWritable("disk full at /var".into()))).await);
    }
}
