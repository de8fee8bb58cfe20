//! The HTTP side: which paths there are, and the server that serves them. What a path means is its own file's business.

use std::future::Future;
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use actix_web::dev::ServerHandle;
use actix_web::http::header;
use actix_web::middleware::from_fn;
use actix_web::{App as Routes, HttpResponse, HttpResponseBuilder, HttpServer, web};
use tidings_core::store::{Store, StoreError};
use tokio::runtime::Handle;

use crate::app::App;
use ports::Port;
use problem::Problem;
pub use reference::OPENAPI;

mod accounts;
mod acts;
mod allowances;
pub mod auth;
mod batch;
mod body;
mod codes;
mod dead_letters;
mod deliveries;
mod docs;
mod events;
mod finds;
mod frame;
mod frozen;
mod health;
mod hold;
mod html;
pub(crate) mod keys;
mod limits;
mod list;
mod listing;
mod meanings;
mod message;
mod metrics;
mod notifications;
mod page;
mod ports;
pub mod problem;
mod query;
mod read;
mod reference;
mod reload;
mod reuse;
mod roles;
mod sandbox;
mod suppressions;
mod switches;
#[cfg(test)]
mod tests;
pub mod view;

/// What a handler may take once the body is there (S-013).
const BUDGET: Duration = Duration::from_secs(5);
/// How long the head of a request may take to arrive.
const HEAD_PATIENCE: Duration = Duration::from_secs(5);
/// Workers only parse, seal and wait for the writer: more of them than cores help nobody.
const MOST_WORKERS: usize = 4;
/// Connections of one worker; more wait in the kernel.
const CONNECTIONS: usize = 4_096;

/// What every handler has.
pub struct Api {
    app: Arc<App>,
    keys: auth::Keys,
    room: body::Room,
    places: hold::Places,
    limits: limits::Limits,
    runtime: Handle,
    measurements: metrics::Measurements,
}

impl Api {
    /// Handlers of this process; store calls run on the present runtime.
    pub fn new(app: Arc<App>) -> Self {
        Self {
            keys: auth::Keys::new(),
            room: body::Room::new(),
            places: hold::Places::new(),
            limits: limits::Limits::new(&app),
            runtime: Handle::current(),
            measurements: metrics::Measurements::default(),
            app,
        }
    }

    /// Asks the store, within the budget. The call runs on the process's runtime: a connection that is opened by it
    /// must not depend on the worker thread of one request, which ends before the last commits do.
    async fn read<T, F>(&self, question: impl FnOnce(Arc<dyn Store>) -> F) -> Result<T, Problem>
    where
        T: Send + 'static,
        F: Future<Output = Result<T, StoreError>> + Send + 'static,
    {
        let task = self.runtime.spawn(question(self.app.store.clone()));
        match tokio::time::timeout(BUDGET, task).await {
            Ok(Ok(answer)) => answer.map_err(|err| Problem::store(&err)),
            Ok(Err(panic)) => Err(Problem::internal(&panic)),
            Err(late) => Err(Problem::store(&StoreError::Busy(Box::new(late)))),
        }
    }
}

/// A server that listens.
pub struct Server {
    /// Where, with the port that was chosen.
    pub address: SocketAddr,
    /// Where operators come in, if not there.
    pub admin: Option<SocketAddr>,
    /// Stops it.
    pub handle: ServerHandle,
    admin_handle: Option<ServerHandle>,
}

impl Server {
    /// Takes no more requests, and returns when those that run have ended. Operators may look until the last.
    pub async fn stop(&self) {
        self.handle.stop(true).await;
        if let Some(admin) = &self.admin_handle {
            admin.stop(true).await;
        }
    }
}

/// Why nothing listens.
#[derive(Debug, thiserror::Error)]
pub enum ListenError {
    /// Another process has the port.
    #[error("{0} is in use by another process: choose another with {1} (TIDINGS__{2})")]
    InUse(SocketAddr, &'static str, String),
    /// Anything else.
    #[error("cannot listen at {0} ({1})")]
    Refused(SocketAddr, &'static str, #[source] std::io::Error),
}

/// Starts to serve. The server goes on by itself until its handle stops it; signals are not its business.
///
/// # Errors
/// When the address cannot be used.
pub async fn listen(app: Arc<App>) -> Result<Server, ListenError> {
    let setup = app.setup();
    let (bind, admin_bind) = (setup.settings.server.bind, setup.settings.server.admin_bind);
    let api = web::Data::new(Api::new(app));
    let port = if admin_bind.is_some() { Port::Applications } else { Port::Only };
    let (address, handle) = serve(api.clone(), bind, "server.bind", port)?;
    let admin = admin_bind.map(|bind| serve(api, bind, "server.admin_bind", Port::Operators));
    let admin = match admin.transpose() {
        Ok(admin) => admin,
        Err(err) => {
            handle.stop(false).await;
            return Err(err);
        }
    };
    let (admin, admin_handle) = admin.unzip();
    Ok(Server { address, admin, handle, admin_handle })
}

fn serve(api: web::Data<Api>, bind: SocketAddr, setting: &'static str, port: Port) -> Result<(SocketAddr, ServerHandle), ListenError> {
    let workers = std::thread::available_parallelism().map_or(1, usize::from).min(MOST_WORKERS);
    let workers = if port == Port::Operators { 1 } else { workers };
    // A request that runs when the server stops gets its budget.
    let shutdown = BUDGET.as_secs() + 1;
    let port = web::Data::new(port);
    let server = HttpServer::new(move || {
        let routes_at = Routes::new().app_data(api.clone()).app_data(port.clone());
        routes_at
            .wrap(from_fn(frozen::guard))
            .wrap(from_fn(roles::guard))
            .wrap(from_fn(ports::guard))
            .wrap(from_fn(frame::frame))
            .configure(routes)
    })
    .workers(workers)
    .max_connections(CONNECTIONS)
    .keep_alive(Duration::from_secs(75))
    .client_request_timeout(HEAD_PATIENCE)
    .client_disconnect_timeout(Duration::from_secs(1))
    .tcp_nodelay(true)
    .shutdown_timeout(shutdown)
    .disable_signals()
    .bind(bind)
    .map_err(|err| match err.kind() {
        std::io::ErrorKind::AddrInUse => ListenError::InUse(bind, setting, setting.replace('.', "__").to_uppercase()),
        _ => ListenError::Refused(bind, setting, err),
    })?;
    let address = server.addrs().first().copied().unwrap_or(bind);
    let server = server.run();
    let handle = server.handle();
    tokio::spawn(async move {
        if let Err(error) = server.await {
            tracing::error!(%error, "the HTTP server ended");
        }
    });
    Ok((address, handle))
}

/// Every path. What is not named here is `404`, with another method `405`.
pub fn routes(config: &mut web::ServiceConfig) {
    config
        .service(web::resource("/v1/notifications").route(web::post().to(notifications::accept)).route(web::get().to(listing::list)))
        .service(web::resource("/v1/notifications/search").route(web::post().to(listing::search)))
        .service(web::resource("/v1/notifications/batch").route(web::post().to(batch::accept)))
        .service(web::resource("/v1/limits").route(web::get().to(limits::show)))
        .service(
            web::resource("/v1/notifications/by-key")
                .route(web::get().to(notifications::by_key))
                .route(web::patch().to(acts::reschedule_by_key)),
        )
        .service(web::resource("/v1/notifications/by-key/cancel").route(web::post().to(acts::cancel_by_key)))
        .service(
            web::resource("/v1/notifications/{id}").route(web::get().to(notifications::by_id)).route(web::patch().to(acts::reschedule)),
        )
        .service(web::resource("/v1/notifications/{id}/cancel").route(web::post().to(acts::cancel)))
        .service(web::resource("/v1/deliveries/{id}").route(web::get().to(deliveries::by_id)))
        .service(web::resource("/v1/deliveries/{id}/content").route(web::get().to(deliveries::content)))
        .service(web::resource("/v1/deliveries/{id}/resolve").route(web::post().to(acts::resolve)))
        .service(web::resource("/v1/deliveries/{id}/resend").route(web::post().to(acts::resend)))
        .service(web::resource("/v1/dead-letters").route(web::get().to(dead_letters::list)))
        .service(web::resource("/v1/dead-letters/replay").route(web::post().to(dead_letters::replay)))
        .service(web::resource("/v1/dead-letters/discard").route(web::post().to(dead_letters::discard)))
        .service(web::resource("/v1/keys").route(web::get().to(keys::list)).route(web::post().to(keys::create)))
        .service(web::resource("/v1/keys/{id}/rotate").route(web::post().to(keys::rotate)))
        .service(web::resource("/v1/keys/{id}/revoke").route(web::post().to(keys::revoke)))
        .service(web::resource("/v1/suppressions").route(web::get().to(suppressions::list)).route(web::post().to(suppressions::add)))
        .service(web::resource("/v1/suppressions/lookup").route(web::post().to(suppressions::lookup)))
        .service(web::resource("/v1/suppressions/{id}").route(web::delete().to(suppressions::remove)))
        .service(web::resource("/v1/accounts").route(web::get().to(accounts::list)))
        .service(web::resource("/v1/accounts/{name}/pause").route(web::post().to(accounts::pause)))
        .service(web::resource("/v1/accounts/{name}/resume").route(web::post().to(accounts::resume)))
        .service(web::resource("/v1/accounts/{name}/test").route(web::post().to(accounts::test)))
        .service(web::resource("/v1/switches").route(web::get().to(switches::list)))
        .service(
            web::resource("/v1/switches/{scope}")
                .route(web::get().to(switches::one))
                .route(web::put().to(switches::put))
                .route(web::delete().to(switches::delete)),
        )
        .service(web::resource("/v1/config/reload").route(web::post().to(reload::reload)))
        .service(web::resource("/metrics").route(web::get().to(metrics::show)))
        .service(web::resource("/v1/events").route(web::get().to(events::list)))
        .service(web::resource("/v1/sandbox/messages").route(web::get().to(sandbox::list)).route(web::delete().to(sandbox::clear)))
        .service(web::resource("/v1/sandbox/messages/{id}").route(web::get().to(sandbox::one)))
        .service(web::resource("/v1/sandbox/messages/{id}/attachments/{number}").route(web::get().to(sandbox::attachment)))
        .service(web::resource("/sandbox").route(web::get().to(page::list)))
        .service(web::resource("/sandbox/{id}").route(web::get().to(page::message)))
        .service(web::resource("/sandbox/{id}/attachments/{number}").route(web::get().to(page::attachment)))
        .service(web::resource("/healthz").route(web::get().to(health::healthz)).route(web::head().to(health::healthz)))
        .service(web::resource("/readyz").route(web::get().to(health::readyz)).route(web::head().to(health::readyz)))
        .service(web::resource("/version").route(web::get().to(health::version)))
        .service(web::resource("/openapi.json").route(web::get().to(docs::openapi)))
        .service(web::resource("/docs").route(web::get().to(docs::index)))
        .service(web::resource("/docs/style.css").route(web::get().to(html::style)))
        .service(web::resource("/docs/reasons").route(web::get().to(docs::reasons)))
        .service(web::resource("/docs/errors/{code}").route(web::get().to(docs::error)))
        .default_service(web::to(|| async { Err::<HttpResponse, _>(Problem::of_status(actix_web::http::StatusCode::NOT_FOUND)) }));
}

fn json(mut answer: HttpResponseBuilder, body: Vec<u8>) -> HttpResponse {
    answer.insert_header((header::CONTENT_TYPE, header::HeaderValue::from_static("application/json")));
    answer.body(body)
}
