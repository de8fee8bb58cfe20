//! Stories of the server itself, over real connections.

use std::time::Duration;

use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::TcpStream;

use super::database::{Database, on_both_databases};
use super::rig::{Accounts, Rig};
use crate::api::{self, ListenError};

on_both_databases!(it_listens_on_a_port_of_its_choice_and_stops_when_told,);

/// Sends bytes and reads until the server closes.
async fn exchange(address: std::net::SocketAddr, request: &str) -> String {
    let mut stream = TcpStream::connect(address).await.unwrap();
    stream.write_all(request.as_bytes()).await.unwrap();
    let mut answer = String::new();
    let read = tokio::time::timeout(Duration::from_secs(20), stream.read_to_string(&mut answer)).await;
    read.expect("the server closes the connection").unwrap();
    answer
}

async fn it_listens_on_a_port_of_its_choice_and_stops_when_told(on: Database) {
    let rig = Rig::start(on, Accounts::Relay, "[server]\nbind = \"127.0.0.1:0\"\n").await;
    let server = api::listen(rig.app.clone()).await.unwrap();
    assert_ne!(server.address.port(), 0);

    let answer = exchange(server.address, "GET /healthz HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n").await;
    assert!(answer.starts_with("HTTP/1.1 200 OK\r\n") && answer.contains("request-id: "), "{answer}");
    let post = format!(
        "POST /v1/notifications HTTP/1.1\r\nHost: x\r\nConnection: close\r\nAuthorization: Bearer {}\r\nIdempotency-Key: k\r\n\
         Content-Type: application/json\r\nTransfer-Encoding: chunked\r\n\r\n",
        rig.key
    );
    let taken = exchange(server.address, &format!("{post}{}0\r\n\r\n", chunked(super::HELLO))).await;
    assert!(taken.starts_with("HTTP/1.1 202 Accepted\r\n"), "{taken}");
    let replayed = exchange(server.address, &format!("{post}{}0\r\n\r\n", chunked(super::HELLO))).await;
    assert!(replayed.contains("idempotent-replayed: true\r\n"), "{replayed}");

    let again = Rig::start(on, Accounts::Relay, &format!("[server]\nbind = \"{}\"\n", server.address)).await;
    let Err(error) = api::listen(again.app.clone()).await else { panic!("the port is in use") };
    assert!(matches!(error, ListenError::InUse(address, ..) if address == server.address));
    assert!(error.to_string().contains("server.bind"));

    server.handle.stop(true).await;
    assert!(TcpStream::connect(server.address).await.is_err());
}

fn chunked(body: &str) -> String {
    let (one, two) = body.split_at(body.len() / 2);
    [one, two].map(|part| format!("{:x}\r\n{part}\r\n", part.len())).concat()
}
