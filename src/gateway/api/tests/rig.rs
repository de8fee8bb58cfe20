//! The HTTP side over a real store, without workers: what is accepted stays as it was accepted.

use std::sync::Arc;

use actix_web::body::BoxBody;
use actix_web::dev::{Service, ServiceResponse};
use actix_web::middleware::from_fn;
use actix_web::test::{TestRequest, init_service, read_body};
use actix_web::{App as Routes, web};
use arc_swap::ArcSwap;
use async_trait::async_trait;
use serde_json::Value;
use tidings_core::adapter::{Abilities, Adapter, ContentFault, Idempotency, Lookup, Outgoing};
use tidings_core::content::Content;
use tidings_core::ids::AccountId;
use tidings_core::outcome::{Outcome, Report};
use tidings_core::secrets::Keyring;
use tidings_core::store::{ApiKey, Store};
use tidings_core::time::Clock as _;
use tidings_core::words::{Channel, Class};

use super::broken::Broken;
use super::database::{Database, Place};
use crate::api::{Api, auth, frame, frozen, roles, routes};
use crate::app::{App, Readiness};
use crate::clock::StoreClock;
use crate::config::{self, MissingSecrets, Sources};
use crate::metrics::Metrics;
use crate::pauses::Pauses;
use crate::reload::Reloads;
use crate::routing::{Account, MAIN_ROUTE, Owner, Route, Routing, SANDBOX_ROUTE};
use crate::setup::Setup;
use crate::slots::Slots;
use crate::wake::Wake;
use crate::writer::Writer;

/// An adapter whose limit is 1,000 bytes of text.
struct Picky;

#[async_trait]
impl Adapter for Picky {
    fn abilities(&self) -> Abilities {
        Abilities {
            channel: Channel::Email,
            idempotency: Idempotency::None,
            lookup: Lookup::None,
            visibility_lag: std::time::Duration::ZERO,
            receipts: false,
        }
    }

    fn check(&self, content: &Content) -> Result<(), Vec<ContentFault>> {
        let Content::Email(email) = content;
        let bytes = email.text.as_deref().unwrap_or_default().len() as u64;
        if bytes <= 1_000 {
            return Ok(());
        }
        Err(vec![ContentFault { pointer: "/text".to_owned(), detail: "too long for the relay".to_owned(), limit: Some((1_000, bytes)) }])
    }

    async fn send(&self, _: &Outgoing) -> Report {
        Report::new(Outcome::NotStarted)
    }
}

/// What the installation has.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum Accounts {
    /// One account, `relay`, that sends as `shop.example.com` and has an author.
    Relay,
    /// The same account, which belongs to the tenant acme.
    Owned,
    /// None: the sandbox stands in for all.
    SandboxOnly,
    /// None, and the sandbox does not stand in.
    Nothing,
}

/// One installation.
pub(super) struct Rig {
    pub(super) store: Arc<Broken>,
    pub(super) app: Arc<App>,
    /// A live key with every scope.
    pub(super) key: String,
    /// What a process remembers between requests; `None` where each request meets a new one.
    api: Option<web::Data<Api>>,
    place: Arc<Place>,
}

/// An answer that has been read.
pub(super) struct Answer {
    pub(super) status: u16,
    pub(super) headers: Vec<(String, String)>,
    pub(super) body: Vec<u8>,
}

impl Answer {
    pub(super) fn header(&self, name: &str) -> Option<&str> {
        self.headers.iter().find(|(own, _)| own == name).map(|(_, value)| value.as_str())
    }

    pub(super) fn json(&self) -> Value {
        serde_json::from_slice(&self.body).unwrap()
    }

    pub(super) fn text(&self) -> String {
        String::from_utf8(self.body.clone()).unwrap()
    }

    /// Status, code and detail of a problem document, whose fixed members are checked on the way.
    pub(super) fn problem(&self) -> (u16, String, String) {
        assert_eq!(self.header("content-type"), Some("application/problem+json"), "{}", self.text());
        let body = self.json();
        assert_eq!(body["status"], self.status);
        assert_eq!(body["request_id"].as_str(), self.header("request-id"));
        let text = |name: &str| body[name].as_str().unwrap().to_owned();
        assert_eq!(text("type"), format!("/docs/errors/{}", text("code")));
        (self.status, text("code"), text("detail"))
    }

    pub(super) fn code(&self) -> String {
        self.problem().1
    }
}

impl Rig {
    pub(super) async fn start(on: Database, accounts: Accounts, file: &str) -> Self {
        let (store, place) = on.open().await;
        Self::over(Arc::new(Broken::around(store)), Arc::new(place), accounts, file).await
    }

    /// Another configuration over the same store.
    pub(super) async fn again(&self, accounts: Accounts, file: &str) -> Self {
        let again = Self::over(self.store.clone(), self.place.clone(), accounts, file).await;
        Self { key: self.key.clone(), ..again }
    }

    async fn over(store: Arc<Broken>, place: Arc<Place>, accounts: Accounts, file: &str) -> Self {
        let sources = sources(place.folder.path(), file);
        let settings = config::load(&sources).unwrap();
        let routing = routing(store.as_ref(), accounts).await;
        let clock = Arc::new(StoreClock::start());
        let rules = Arc::new(settings.rules());
        let wake = Arc::new(Wake::default());
        let metrics = Arc::new(Metrics::new());
        let app = Arc::new(App {
            slots: Arc::new(Slots::new(&routing.accounts, clock.now())),
            pauses: Pauses::default(),
            metrics: metrics.clone(),
            started: std::time::Instant::now(),
            writer: Writer::start(store.clone(), clock.clone(), rules, wake.clone(), metrics.clone()),
            in_force: ArcSwap::from_pointee(Setup::new(settings, routing)),
            reloads: Reloads::new(sources),
            store: store.clone(),
            clock,
            keyring: Arc::new(Keyring::derive(&[7; 32])),
            wake,
            readiness: Readiness::default(),
        });
        let key = add_key(store.as_ref(), "default", "live", &["send", "send:critical", "read", "pii", "ops", "admin"]).await;
        Self { store, app, key, api: None, place }
    }

    /// Where its configuration stands.
    pub(super) fn path(&self) -> &std::path::Path {
        self.place.folder.path()
    }

    /// Writes a file beside the configuration, or the configuration itself as `tidings.toml`.
    pub(super) fn write(&self, name: &str, text: &str) {
        std::fs::write(self.place.folder.path().join(name), text).unwrap();
    }

    /// The same installation as one process that remembers.
    pub(super) fn remembering(self) -> Self {
        Self { api: Some(web::Data::new(Api::new(self.app.clone()))), ..self }
    }

    /// Another key.
    pub(super) async fn key(&self, kind: &str, scopes: &[&str]) -> String {
        add_key(self.store.as_ref(), "default", kind, scopes).await
    }

    /// A key of another tenant.
    pub(super) async fn key_of(&self, tenant: &str, kind: &str, scopes: &[&str]) -> String {
        add_key(self.store.as_ref(), tenant, kind, scopes).await
    }

    /// Answers a request; nothing is added to it.
    pub(super) async fn raw(&self, request: TestRequest) -> Answer {
        let api = self.api.clone().unwrap_or_else(|| web::Data::new(Api::new(self.app.clone())));
        let service = init_service(
            Routes::new()
                .app_data(api)
                .wrap(from_fn(frozen::guard))
                .wrap(from_fn(roles::guard))
                .wrap(from_fn(frame::frame))
                .configure(routes),
        )
        .await;
        let answer: ServiceResponse<BoxBody> = service.call(request.to_request()).await.unwrap();
        let headers = answer.headers().iter().map(|(name, value)| (name.to_string(), value.to_str().unwrap().to_owned())).collect();
        let status = answer.status().as_u16();
        let body = read_body(answer).await.to_vec();
        Answer { status, headers, body }
    }

    pub(super) async fn get(&self, path: &str) -> Answer {
        self.get_as(&self.key, path).await
    }

    pub(super) async fn get_as(&self, key: &str, path: &str) -> Answer {
        self.raw(TestRequest::get().uri(path).insert_header(("authorization", format!("Bearer {key}")))).await
    }

    pub(super) async fn post(&self, idempotency_key: &str, body: &str) -> Answer {
        self.post_as(&self.key, idempotency_key, body).await
    }

    pub(super) async fn batch(&self, body: &str) -> Answer {
        let request = TestRequest::post().uri("/v1/notifications/batch").insert_header(("content-type", "application/json"));
        self.raw(request.insert_header(("authorization", format!("Bearer {}", self.key))).set_payload(body.to_owned())).await
    }

    pub(super) async fn post_as(&self, key: &str, idempotency_key: &str, body: &str) -> Answer {
        self.raw(post(key, idempotency_key).set_payload(body.to_owned())).await
    }
}

pub(super) fn post(key: &str, idempotency_key: &str) -> TestRequest {
    TestRequest::post()
        .uri("/v1/notifications")
        .insert_header(("authorization", format!("Bearer {key}")))
        .insert_header(("idempotency-key", idempotency_key))
        .insert_header(("content-type", "application/json"))
}

async fn add_key(store: &dyn Store, tenant: &str, kind: &str, scopes: &[&str]) -> String {
    let tenant = store.ensure_tenant(tenant).await.unwrap().id;
    let key = auth::new_key(kind, rand::random());
    let row = ApiKey {
        id: uuid::Builder::from_random_bytes(rand::random()).into_uuid(),
        tenant,
        name: "test".to_owned(),
        key_hash: aws_lc_rs::digest::digest(&aws_lc_rs::digest::SHA256, key.as_bytes()).as_ref().to_vec(),
        kind: kind.to_owned(),
        scopes: scopes.iter().map(|scope| (*scope).to_owned()).collect(),
        expires_at: None,
        revoked_at: None,
    };
    store.add_key(&row).await.unwrap();
    key
}

fn sources(directory: &std::path::Path, file: &str) -> Sources {
    std::fs::write(directory.join("tidings.toml"), file).unwrap();
    let variables = std::collections::BTreeMap::new();
    Sources { config: None, directory: directory.to_owned(), variables, missing_secrets: MissingSecrets::AreFaults }
}

async fn routing(store: &dyn Store, accounts: Accounts) -> Routing {
    let ids = store.ensure_accounts(&[("relay".into(), "smtp".into()), ("sandbox".into(), "sandbox".into())]).await.unwrap();
    let owner = (accounts == Accounts::Owned).then(|| Owner::new("acme".to_owned()));
    let relay = account(ids[0], "relay", "shop@shop.example.com", &["shop.example.com"], owner);
    let sandbox = account(ids[1], "sandbox", "tidings@sandbox.test", &[], None);
    let wanted: Vec<(Class, &'static str)> = Class::ALL.iter().flat_map(|class| [(*class, MAIN_ROUTE), (*class, SANDBOX_ROUTE)]).collect();
    let rows: Vec<_> = wanted.iter().map(|(class, name)| (Channel::Email, *class, (*name).to_owned())).collect();
    let lanes = store.ensure_lanes(&rows).await.unwrap();
    let of = |name: &str| match (name, accounts) {
        (SANDBOX_ROUTE, _) => vec![sandbox.clone()],
        (_, Accounts::Relay | Accounts::Owned) => vec![relay.clone()],
        (_, Accounts::SandboxOnly | Accounts::Nothing) => Vec::new(),
    };
    let route = |((class, name), lane): ((Class, &str), _)| Route {
        lane,
        channel: Channel::Email,
        class,
        name: name.to_owned(),
        accounts: of(name),
        weights: Vec::new(),
    };
    let routes = wanted.into_iter().zip(lanes).map(route).collect();
    let accounts_there =
        if matches!(accounts, Accounts::Relay | Accounts::Owned) { vec![relay.clone(), sandbox.clone()] } else { vec![sandbox.clone()] };
    Routing { routes, former: Vec::new(), accounts: accounts_there, sandbox_only: accounts == Accounts::SandboxOnly }
}

fn account(id: AccountId, name: &str, from: &str, sends_as: &[&str], owner: Option<Owner>) -> Arc<Account> {
    Arc::new(Account {
        id,
        name: name.to_owned(),
        kind: name.to_owned(),
        adapter: Arc::new(Picky),
        built_from: [0; 32],
        from: Some(from.parse().unwrap()),
        sends_as: sends_as.iter().map(|domain| (*domain).to_owned()).collect(),
        owner,
        is_on: true,
        concurrency: 1,
        rate: None,
        daily_cap: None,
    })
}
