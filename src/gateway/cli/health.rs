//! Asks a server on this machine whether it is ready, for images that have no curl. What ready means is said by `/readyz`.

use std::io::{Read as _, Write as _};
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr, TcpStream};
use std::process::ExitCode;
use std::time::{Duration, Instant};

use anyhow::{Context as _, bail};
use serde_json::json;

use super::http::show;

/// All of it together takes no longer.
const PATIENCE: Duration = Duration::from_secs(3);
/// The status line comes first, and nothing else is looked at.
const LONGEST_ANSWER: usize = 4 << 10;

/// Says by the exit code whether the server that listens on `bind` is ready, and why not.
///
/// # Errors
/// That it is not, in words for people; programs get them with the answer.
pub(super) fn run(bind: SocketAddr, json: bool) -> anyhow::Result<ExitCode> {
    let asked = ask(bind);
    if !json {
        return asked.map(|()| ExitCode::SUCCESS);
    }
    let why = asked.err().map(|err| format!("{err:#}"));
    show(&json!({ "ready": why.is_none(), "detail": why }), true, |_| String::new());
    Ok(if why.is_none() { ExitCode::SUCCESS } else { ExitCode::FAILURE })
}

/// Whether the server that listens on `bind` says that it is ready.
fn ask(bind: SocketAddr) -> anyhow::Result<()> {
    let address = reachable(bind)?;
    let answer = get_readyz(address, Instant::now() + PATIENCE).with_context(|| format!("{address} does not answer"))?;
    match answer.split(' ').nth(1) {
        Some("200") => Ok(()),
        Some(status) => bail!("{address} answers {status}: not ready"),
        None => bail!("{address} does not speak HTTP"),
    }
}

/// Where a server that listens on `bind` can be reached from here.
pub(super) fn reachable(bind: SocketAddr) -> anyhow::Result<SocketAddr> {
    if bind.port() == 0 {
        bail!("server.bind leaves the port open, so that nobody can know which one it is");
    }
    let ip = match bind.ip() {
        IpAddr::V4(ip) if ip.is_unspecified() => Ipv4Addr::LOCALHOST.into(),
        IpAddr::V6(ip) if ip.is_unspecified() => Ipv6Addr::LOCALHOST.into(),
        ip => ip,
    };
    Ok(SocketAddr::new(ip, bind.port()))
}

/// As much of the answer as came before the deadline or the end.
fn get_readyz(address: SocketAddr, deadline: Instant) -> std::io::Result<String> {
    let left = || match deadline.saturating_duration_since(Instant::now()) {
        Duration::ZERO => Err(std::io::ErrorKind::TimedOut.into()),
        left => Ok::<_, std::io::Error>(left),
    };
    let mut stream = TcpStream::connect_timeout(&address, left()?)?;
    stream.set_write_timeout(Some(left()?))?;
    // At once: `write!` would send it piece by piece.
    stream.write_all(format!("GET /readyz HTTP/1.1\r\nHost: {address}\r\nConnection: close\r\n\r\n").as_bytes())?;
    let (mut answer, mut block) = (Vec::new(), [0; 512]);
    while answer.len() < LONGEST_ANSWER && !answer.contains(&b'\n') {
        stream.set_read_timeout(Some(left()?))?;
        match stream.read(&mut block)? {
            0 => break,
            read => answer.extend_from_slice(&block[..read]),
        }
    }
    Ok(String::from_utf8_lossy(&answer).into_owned())
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::net::TcpListener;

    fn server_that_answers(answer: &'static str) -> SocketAddr {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let address = listener.local_addr().unwrap();
        std::thread::spawn(move || {
            let (mut stream, _) = listener.accept().unwrap();
            // All of it: what lies unread when the connection is closed resets it, and the answer may be lost.
            let (mut request, mut block) = (Vec::new(), [0; 512]);
            while !request.ends_with(b"\r\n\r\n") {
                let read = stream.read(&mut block).unwrap();
                request.extend_from_slice(&block[..read]);
            }
            assert!(request.starts_with(b"GET /readyz HTTP/1.1\r\n"));
            stream.write_all(answer.as_bytes()).unwrap();
        });
        address
    }

    #[test]
    fn only_200_is_ready() {
        assert!(ask(server_that_answers("HTTP/1.1 200 OK\r\ncontent-length: 0\r\n\r\n")).is_ok());
        for answer in ["HTTP/1.1 503 Service Unavailable\r\n\r\n", "SSH-2.0-x\r\n", ""] {
            assert!(ask(server_that_answers(answer)).is_err(), "{answer}");
        }
    }

    #[test]
    fn a_server_on_every_address_is_asked_on_loopback() {
        let asked = |bind: &str| reachable(bind.parse().unwrap()).map(|address| address.to_string()).ok();
        assert_eq!(asked("0.0.0.0:8080").as_deref(), Some("127.0.0.1:8080"));
        assert_eq!(asked("[::]:8080").as_deref(), Some("[::1]:8080"));
        assert_eq!(asked("10.0.0.7:80").as_deref(), Some("10.0.0.7:80"));
        assert_eq!(asked("127.0.0.1:0"), None);
    }
}
