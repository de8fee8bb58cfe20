//! The codes of problems: their statuses, whether repeating helps, what to do. The one list behind answers and documentation.

use actix_web::http::StatusCode;
use tidings_core::fault::FaultCode;

macro_rules! codes {
    ($($variant:ident = $word:literal, $status:ident, $retryable:literal, $title:literal, $advice:literal;)+) => {
        /// What went wrong, by what the caller can do about it. An open list for clients.
        #[derive(Debug, Clone, Copy, PartialEq, Eq)]
        #[allow(missing_docs, reason = "title and advice say it")]
        pub enum Code { $($variant,)+ }

        impl Code {
            /// Every code, in the order of the documentation.
            pub const ALL: &'static [Self] = &[$(Self::$variant,)+];

            /// The word on the wire.
            pub const fn as_str(self) -> &'static str {
                match self { $(Self::$variant => $word,)+ }
            }

            /// The HTTP status.
            pub const fn status(self) -> StatusCode {
                match self { $(Self::$variant => StatusCode::$status,)+ }
            }

            /// Whether the same request under the same key may succeed.
            pub const fn is_retryable(self) -> bool {
                match self { $(Self::$variant => $retryable,)+ }
            }

            /// What it is, in one line.
            pub const fn title(self) -> &'static str {
                match self { $(Self::$variant => $title,)+ }
            }

            /// What to do about it.
            pub const fn advice(self) -> &'static str {
                match self { $(Self::$variant => $advice,)+ }
            }
        }
    };
}

codes! {
    InvalidJson = "invalid_json", BAD_REQUEST, false, "The body is not JSON",
        "Send one JSON document in UTF-8: no name twice in an object, no U+0000, nothing after the end. The detail names line and column.";
    UnknownField = "unknown_field", BAD_REQUEST, false, "A field or parameter is not known",
        "Remove it, or spell it as the detail suggests. Fields that a later version will have are refused until then, never ignored.";
    IdempotencyKeyMissing = "idempotency_key_missing", BAD_REQUEST, false, "The Idempotency-Key header is missing",
        "Send a key of your own that names what is to be said, such as receipt-10432, and the same key again when you repeat the request.";
    IdempotencyKeyInvalid = "idempotency_key_invalid", BAD_REQUEST, false, "The Idempotency-Key header is not usable",
        "A key is 1 to 255 visible ASCII characters without spaces, given once.";
    BadCursor = "bad_cursor", BAD_REQUEST, false, "The cursor does not belong to this list",
        "Take `next` from the answer before, with the same key and the same filters, or start without `after`.";
    FilterUnsupported = "filter_unsupported", BAD_REQUEST, false, "The list cannot be filtered like this",
        "Use the filters of the documentation. Addresses and metadata are looked for by POST /v1/notifications/search.";
    Unauthorized = "unauthorized", UNAUTHORIZED, false, "No valid API key",
        "Send Authorization: Bearer with an API key. The detail says whether it is missing, malformed, unknown, expired or revoked.";
    ScopeMissing = "scope_missing", FORBIDDEN, false, "The API key may not do this",
        "Use a key with the scope that the detail names.";
    NotFound = "not_found", NOT_FOUND, false, "There is no such thing",
        "It does not exist for this key: live and test never see each other, nor do tenants. For a notification: it was not accepted, or its time of retention is over.";
    MethodNotAllowed = "method_not_allowed", METHOD_NOT_ALLOWED, false, "The method does not exist here",
        "The Allow header names those that do.";
    CursorExpired = "cursor_expired", GONE, false, "The position is older than what is kept",
        "Some events after it were purged (retention.events). Read the present state of what matters, and start over without `after`.";
    RequestTimeout = "request_timeout", REQUEST_TIMEOUT, true, "The body did not arrive in time",
        "Send it again: nothing was done.";
    IdempotencyInProgress = "idempotency_in_progress", CONFLICT, true, "The first request under this key is still being decided",
        "Repeat the same request under the same key after the time in Retry-After.";
    AlreadyDispatched = "already_dispatched", CONFLICT, false, "It is on its way or over",
        "Nothing of it could be stopped or moved; the status tells where it stands. A call that runs is the last one of a cancelled delivery.";
    OutcomeUnresolved = "outcome_unresolved", CONFLICT, true, "What became of it is not known yet",
        "Wait until the delivery is no longer open. Where nobody will ever know, name the next generation and accept that it may arrive twice, or resolve it.";
    VersionConflict = "version_conflict", CONFLICT, false, "It is not in the state that the request assumes",
        "Read it again and decide anew. With If-Match the status is 412: it has changed since the version that was named.";
    VersionStale = "version_conflict", PRECONDITION_FAILED, false, "It has changed since the version that was named",
        "Read it again and decide anew. With If-Match the status is 412: it has changed since the version that was named.";
    ContentErased = "content_erased", GONE, false, "The content is erased",
        "Accept the message anew under another key: address or content of this one are no longer kept.";
    ReplayWindowClosed = "replay_window_closed", GONE, false, "It ended too long ago to be sent again",
        "Accept the message anew under another key. A delivery may be sent again for 14 days after its end, and in bulk three times.";
    PayloadTooLarge = "payload_too_large", PAYLOAD_TOO_LARGE, false, "The body is too large",
        "Send less, or have the operator raise limits.body or limits.batch_body. A batch has at most 500 notifications.";
    UnsupportedMediaType = "unsupported_media_type", UNSUPPORTED_MEDIA_TYPE, false, "The body is not sent as JSON",
        "Send Content-Type: application/json, uncompressed, in UTF-8.";
    InvalidField = "invalid_field", UNPROCESSABLE_ENTITY, false, "A field has a value that is not allowed",
        "Each entry of errors names the place and what would be right.";
    InvalidRecipient = "invalid_recipient", UNPROCESSABLE_ENTITY, false, "A recipient is not valid",
        "Correct the address at the pointer. Nothing was accepted, also for the other recipients.";
    InvalidContent = "invalid_content", UNPROCESSABLE_ENTITY, false, "The content cannot be sent",
        "Correct what stands at the pointer: something is missing, too large or not allowed on the channel.";
    UnknownCategory = "unknown_category", UNPROCESSABLE_ENTITY, false, "The category is not declared",
        "Spell it as the configuration does, or have the operator declare it. A category decides class and urgency, so it is not guessed.";
    NoRoute = "no_route", UNPROCESSABLE_ENTITY, false, "No account can carry this",
        "The detail names the setting that is missing. Nothing that was meant to leave is kept in the sandbox instead.";
    RecipientNotAllowed = "recipient_not_allowed", UNPROCESSABLE_ENTITY, false, "This key may not write to this recipient",
        "Use another key, or have the operator add the recipient to the guest list.";
    DestinationNotAllowed = "destination_not_allowed", UNPROCESSABLE_ENTITY, false, "The destination is not allowed",
        "The operator's rules exclude it.";
    SendAtPast = "send_at_past", UNPROCESSABLE_ENTITY, false, "The time to send has passed",
        "Leave send_at out to send now.";
    SendAtTooFar = "send_at_too_far", UNPROCESSABLE_ENTITY, false, "The time to send is too far ahead",
        "At most 90 days.";
    ExpiresAtTooFar = "expires_at_too_far", UNPROCESSABLE_ENTITY, false, "The expiry is too far ahead",
        "At most 90 days after the message is due to be sent.";
    IdempotencyKeyReused = "idempotency_key_reused", UNPROCESSABLE_ENTITY, false, "The key belongs to another request",
        "A key names one request until 30 days after its notification has ended. `existing` is the notification that has it, `differs` where the two requests differ; use another key for another request.";
    InvalidConfiguration = "invalid_configuration", UNPROCESSABLE_ENTITY, false, "The configuration cannot be used",
        "Mend what each entry of errors names and reload again; `tidings check` says the same. The configuration in force stays as it is.";
    RateLimited = "rate_limited", TOO_MANY_REQUESTS, true, "Too many requests",
        "Repeat the same request under the same key after the time in Retry-After. RateLimit says what is left; a batch is charged as a whole, for each recipient of each of its notifications.";
    QuotaExceeded = "quota_exceeded", TOO_MANY_REQUESTS, true, "The calls of the day are used up",
        "The account may make no more calls today (daily_cap). Repeat the request after the time in Retry-After, which is when its provider's next day begins, or have the operator raise the cap.";
    QueueFull = "queue_full", TOO_MANY_REQUESTS, true, "Too many messages wait already",
        "Repeat the same request under the same key after the time in Retry-After, or have the operator find out what holds the messages up.";
    Overloaded = "overloaded", SERVICE_UNAVAILABLE, true, "Not taken for the moment",
        "Repeat the same request under the same key after the time in Retry-After: nothing was done.";
    RoleMissing = "role_missing", SERVICE_UNAVAILABLE, true, "This process does not answer that",
        "Send it to a process of the installation that has the role in the detail (server.roles): nothing was done here. Behind a load balancer, have it choose those alone.";
    OutcomeUnknown = "outcome_unknown", SERVICE_UNAVAILABLE, true, "It is not known whether this was accepted",
        "Repeat the same request under the same key: if it was accepted, you get the first answer again, and it is never sent twice.";
    Internal = "internal", INTERNAL_SERVER_ERROR, true, "Something went wrong inside",
        "Repeat the same request under the same key. The operator finds the cause in the log under request_id.";
}

impl From<FaultCode> for Code {
    fn from(code: FaultCode) -> Self {
        match code {
            FaultCode::InvalidJson => Self::InvalidJson,
            FaultCode::UnknownField => Self::UnknownField,
            FaultCode::InvalidField => Self::InvalidField,
            FaultCode::InvalidRecipient => Self::InvalidRecipient,
            FaultCode::InvalidContent => Self::InvalidContent,
            FaultCode::UnknownCategory => Self::UnknownCategory,
            FaultCode::NoRoute => Self::NoRoute,
            FaultCode::RecipientNotAllowed => Self::RecipientNotAllowed,
            FaultCode::DestinationNotAllowed => Self::DestinationNotAllowed,
            FaultCode::SendAtPast => Self::SendAtPast,
            FaultCode::SendAtTooFar => Self::SendAtTooFar,
            FaultCode::ExpiresAtTooFar => Self::ExpiresAtTooFar,
            FaultCode::PayloadTooLarge => Self::PayloadTooLarge,
            FaultCode::InvalidConfiguration => Self::InvalidConfiguration,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_fault_of_a_body_keeps_its_word() {
        for code in FaultCode::ALL {
            assert_eq!(Code::from(*code).as_str(), code.as_str());
        }
    }
}
