//! A load generator on raw sockets: HTTP/1.1, kept connections, one request at a time on each.

use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::TcpStream;

/// A notification of 230 bytes.
pub(crate) const BODY: &str = r#"{"to":{"email":"ada.lovelace@example.com","name":"Ada Lovelace"},"category":"receipt","email":{"subject":"Your receipt 10432","text":"Thank you for your order. It is on its way to you and arrives soon."},"tags":["shop"]}"#;

/// The same size, for tomorrow: accepted in full and not claimed while the intake is measured.
pub(crate) const BODY_FOR_LATER: &str = r#"{"to":{"email":"ada.lovelace@example.com","name":"Ada Lovelace"},"category":"receipt","email":{"subject":"Your receipt 10432","text":"Thank you for your order. It is on its way to you."},"tags":["shop"],"send_in":"24h"}"#;

/// The bytes of one request.
pub(crate) fn request(path: &str, key: &str, idempotency_key: Option<&str>, body: &str) -> Vec<u8> {
    let key_line = idempotency_key.map_or(String::new(), |key| format!("idempotency-key: {key}\r\n"));
    format!(
        "POST {path} HTTP/1.1\r\nhost: 127.0.0.1\r\nauthorization: Bearer {key}\r\n{key_line}content-type: application/json\r\ncontent-length: {}\r\n\r\n{body}",
        body.len()
    )
    .into_bytes()
}

/// Sends requests for so long; returns how many were answered.
pub(crate) async fn run(address: SocketAddr, connections: usize, time: Duration, make: impl Fn(usize) -> Vec<u8>) -> usize {
    drive(address, connections, usize::MAX, Instant::now() + time, make).await
}

/// Sends exactly `count` requests.
pub(crate) async fn run_count(address: SocketAddr, connections: usize, count: usize, make: impl Fn(usize) -> Vec<u8>) {
    let far = Instant::now() + Duration::from_secs(600);
    assert_eq!(drive(address, connections, count, far, make).await, count);
}

async fn drive(address: SocketAddr, connections: usize, count: usize, until: Instant, make: impl Fn(usize) -> Vec<u8>) -> usize {
    let next = Arc::new(AtomicUsize::new(0));
    let done = AtomicUsize::new(0);
    let clients = (0..connections).map(|_| {
        let (next, done, make) = (next.clone(), &done, &make);
        async move {
            let mut socket = TcpStream::connect(address).await.expect("the server is there");
            socket.set_nodelay(true).expect("a socket");
            let mut buffer = vec![0; 16 * 1024];
            while Instant::now() < until {
                let n = next.fetch_add(1, Ordering::Relaxed);
                if n >= count {
                    break;
                }
                socket.write_all(&make(n)).await.expect("a request can be written");
                read_answer(&mut socket, &mut buffer).await;
                done.fetch_add(1, Ordering::Relaxed);
            }
        }
    });
    futures_util::future::join_all(clients).await;
    done.load(Ordering::Relaxed)
}

/// Reads one whole answer and insists that it is a success.
async fn read_answer(socket: &mut TcpStream, buffer: &mut [u8]) {
    let mut filled = 0;
    loop {
        let read = socket.read(&mut buffer[filled..]).await.expect("an answer can be read");
        assert!(read > 0, "the server closed the connection: {}", String::from_utf8_lossy(&buffer[..filled]));
        filled += read;
        let Some(head) = buffer[..filled].windows(4).position(|w| w == b"\r\n\r\n") else { continue };
        let text = String::from_utf8_lossy(&buffer[..head]).to_ascii_lowercase();
        let length: usize =
            text.split("content-length: ").nth(1).and_then(|rest| rest.lines().next()?.trim().parse().ok()).expect("a length");
        if filled >= head + 4 + length {
            assert!(text.starts_with("http/1.1 20"), "refused: {}", String::from_utf8_lossy(&buffer[..filled]));
            return;
        }
    }
}
