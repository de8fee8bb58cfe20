//! The yardstick: an actix-web server that parses a JSON body and gives it back, without a store.

use std::net::SocketAddr;

use actix_web::{App, HttpServer, web};

/// Starts the echo on a thread of its own.
pub(crate) fn start() -> SocketAddr {
    let (tell, told) = std::sync::mpsc::channel();
    std::thread::spawn(move || {
        actix_web::rt::System::new().block_on(async move {
            let app = || {
                App::new().route("/echo", web::post().to(|body: web::Json<serde_json::Value>| async move { web::Json(body.into_inner()) }))
            };
            let server = HttpServer::new(app).workers(2).bind("127.0.0.1:0").expect("a free port");
            tell.send(server.addrs()[0]).expect("somebody waits");
            server.run().await.expect("the echo runs");
        });
    });
    told.recv().expect("the echo starts")
}
