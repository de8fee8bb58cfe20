//! Takes a request body in: its type, its size, the time it may take, and how much of them the process holds at once.
//! What stands in it is decided elsewhere.

use std::future::poll_fn;
use std::pin::{Pin, pin};
use std::sync::Arc;
use std::task::Poll;
use std::time::Duration;

use actix_web::http::header;
use actix_web::{HttpRequest, web};
use bytes::{Bytes, BytesMut};
use futures_util::StreamExt as _;
use tokio::sync::{OwnedSemaphorePermit, Semaphore};

use super::problem::{Code, Problem};

/// How long a body may take to arrive. The framework has a limit for the head only.
const PATIENCE: Duration = Duration::from_secs(10);
/// Bodies up to this size need no room of their own: the number of connections bounds them.
const SMALL: usize = 64 << 10;
/// What all larger bodies may take together, in KiB; whoever comes later waits.
const ROOM: usize = 256 << 10;

/// The memory for large bodies.
pub(super) struct Room(Arc<Semaphore>);

/// A part of it, taken until this is dropped.
pub(super) type Taken = Option<OwnedSemaphorePermit>;

impl Room {
    pub(super) fn new() -> Self {
        Self(Arc::new(Semaphore::new(ROOM)))
    }

    async fn take(&self, bytes: usize) -> Result<Taken, Problem> {
        if bytes <= SMALL {
            return Ok(None);
        }
        let kib = u32::try_from(bytes.div_ceil(1024).min(ROOM)).unwrap_or(u32::MAX);
        match tokio::time::timeout(PATIENCE, self.0.clone().acquire_many_owned(kib)).await {
            Ok(Ok(permit)) => Ok(Some(permit)),
            Ok(Err(_)) | Err(_) => Err(Problem::new(Code::Overloaded, "too many large bodies at once")),
        }
    }
}

/// Refuses bodies that are not sent as plain JSON.
///
/// # Errors
/// `unsupported_media_type`.
pub(super) fn require_json(request: &HttpRequest) -> Result<(), Problem> {
    let text = |name| request.headers().get(name).and_then(|value| value.to_str().ok());
    let content_type = text(header::CONTENT_TYPE).unwrap_or_default();
    let (essence, parameters) = content_type.split_once(';').unwrap_or((content_type, ""));
    if !essence.trim().eq_ignore_ascii_case("application/json") {
        return Err(Problem::new(Code::UnsupportedMediaType, "send Content-Type: application/json"));
    }
    let charset = parameters
        .split(';')
        .filter_map(|parameter| parameter.trim().split_once('='))
        .find(|(name, _)| name.eq_ignore_ascii_case("charset"));
    if charset.is_some_and(|(_, charset)| !charset.trim_matches('"').eq_ignore_ascii_case("utf-8")) {
        return Err(Problem::new(Code::UnsupportedMediaType, "the body must be UTF-8"));
    }
    let encoding = text(header::CONTENT_ENCODING).unwrap_or("identity");
    if !encoding.eq_ignore_ascii_case("identity") {
        return Err(Problem::new(Code::UnsupportedMediaType, "the body must not be compressed"));
    }
    Ok(())
}

/// Reads a whole body of at most `limit` bytes, and takes room for it.
///
/// # Errors
/// `payload_too_large`, `request_timeout`, `overloaded`, or `invalid_json` where the connection broke off.
pub(super) async fn read(room: &Room, request: &HttpRequest, payload: web::Payload, limit: usize) -> Result<(Bytes, Taken), Problem> {
    let announced = request.headers().get(header::CONTENT_LENGTH).and_then(|value| value.to_str().ok()?.parse::<usize>().ok());
    if announced.is_some_and(|length| length > limit) {
        return Err(too_large(limit));
    }
    let taken = room.take(announced.unwrap_or(limit)).await?;
    Ok((within(PATIENCE, payload, limit).await?, taken))
}

async fn within(patience: Duration, payload: web::Payload, limit: usize) -> Result<Bytes, Problem> {
    let mut body = pin!(collect(payload, limit));
    if let Some(body) = at_second_look(body.as_mut()).await {
        return body;
    }
    match tokio::time::timeout(patience, body).await {
        Ok(body) => body,
        Err(_) => Err(Problem::new(Code::RequestTimeout, format!("the body did not arrive within {} s", patience.as_secs()))),
    }
}

/// What is done by the second look. A body that came with its head is, as the framework hands it over between the
/// two; it needs no timer.
async fn at_second_look<F: Future>(mut work: Pin<&mut F>) -> Option<F::Output> {
    let mut looked = false;
    poll_fn(move |cx| match work.as_mut().poll(cx) {
        Poll::Ready(done) => Poll::Ready(Some(done)),
        Poll::Pending if looked => Poll::Ready(None),
        Poll::Pending => {
            looked = true;
            cx.waker().wake_by_ref();
            Poll::Pending
        }
    })
    .await
}

async fn collect(mut payload: web::Payload, limit: usize) -> Result<Bytes, Problem> {
    let broken = |_| Problem::new(Code::InvalidJson, "the body broke off");
    // Nearly every body comes in one piece, which is then used as it is.
    let first = match payload.next().await {
        Some(chunk) => chunk.map_err(broken)?,
        None => return Ok(Bytes::new()),
    };
    let mut whole = BytesMut::new();
    while let Some(chunk) = payload.next().await {
        let chunk = chunk.map_err(broken)?;
        if whole.is_empty() {
            whole.extend_from_slice(&first);
        }
        if whole.len() + chunk.len() > limit {
            return Err(too_large(limit));
        }
        whole.extend_from_slice(&chunk);
    }
    let whole = if whole.is_empty() { first } else { whole.freeze() };
    if whole.len() > limit { Err(too_large(limit)) } else { Ok(whole) }
}

fn too_large(limit: usize) -> Problem {
    Problem::new(Code::PayloadTooLarge, format!("the body may have {limit} bytes (limits.body)"))
}

#[cfg(test)]
mod tests {
    use super::*;
    use actix_web::dev::Payload;
    use actix_web::error::PayloadError;
    use actix_web::{FromRequest as _, test::TestRequest};
    use futures_util::stream;

    async fn payload(chunks: Vec<&'static [u8]>, then_silence: bool) -> web::Payload {
        let silence = if then_silence { stream::pending().left_stream() } else { stream::empty().right_stream() };
        let chunks = stream::iter(chunks.into_iter().map(|chunk| Ok::<_, PayloadError>(Bytes::from_static(chunk)))).chain(silence);
        let boxed: std::pin::Pin<Box<dyn futures_util::Stream<Item = Result<Bytes, PayloadError>>>> = Box::pin(chunks);
        web::Payload::from_request(&TestRequest::default().to_http_request(), &mut Payload::from(boxed)).await.unwrap()
    }

    #[actix_web::test]
    async fn a_body_in_pieces_is_put_together_up_to_the_limit() {
        let long = Duration::from_secs(60);
        for (chunks, limit, whole) in [
            (vec![b"abc".as_slice(), b"", b"def"], 6, Some(&b"abcdef"[..])),
            (vec![b"abc", b"defg"], 6, None),
            (vec![b"abcdefg"], 6, None),
            (vec![b"", b"abcdef"], 6, Some(b"abcdef")),
            (vec![], 6, Some(b"")),
        ] {
            match within(long, payload(chunks, false).await, limit).await {
                Ok(body) => assert_eq!(Some(&body[..]), whole),
                Err(problem) => assert_eq!((problem.code(), whole), (Code::PayloadTooLarge, None)),
            }
        }
    }

    #[actix_web::test]
    async fn a_body_that_stops_half_way_is_given_up() {
        let problem = within(Duration::from_millis(20), payload(vec![b"{\"to\""], true).await, 100).await.unwrap_err();
        assert_eq!(problem.code(), Code::RequestTimeout);
    }

    #[actix_web::test]
    async fn large_bodies_share_a_bounded_room() {
        let room = Room::new();
        assert!(room.take(SMALL).await.unwrap().is_none());
        let all = room.take(ROOM * 1024).await.unwrap();
        assert_eq!((all.is_some(), room.0.available_permits()), (true, 0));
        drop(all);
        assert_eq!(room.0.available_permits(), ROOM);
    }
}
