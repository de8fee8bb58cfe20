//! API keys: how one looks, whose it is, what it may do. Making and revoking them is `keys`' business.
//!
//! A key is `tdk_live_`, `tdk_test_` or `tdk_team_`, 32 characters of `[0-9A-Za-z]` and a checksum of 6: the first 8 bytes
//! (big-endian) of the SHA-256 of everything before it, modulo 62^6, in base 62. So a mistyped key is told apart from an
//! unknown one without asking the store, and secret scanners can be sure. The store holds SHA-256 of the whole key.

use std::net::IpAddr;
use std::sync::Arc;
use std::time::Duration;

use actix_web::HttpRequest;
use actix_web::http::header;
use aws_lc_rs::digest::{SHA256, digest};
use moka::sync::Cache;
use tidings_core::ids::TenantId;
use tidings_core::store::{ApiKey, StoreError, Tenant};
use tidings_core::time::Timestamp;
use tidings_core::words::Mode;

use super::Api;
use super::keys::KeyId;
use super::limits;
use super::ports::Port;
use super::problem::{Code, Problem};
use crate::setup::Setup;

const DIGITS: &[u8; 62] = b"0123456789ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz";
const BODY: usize = 32;
const CHECKSUM: usize = 6;
const KINDS: [(&str, &str); 3] = [("live", "tdk_live_"), ("test", "tdk_test_"), ("team", "tdk_team_")];
/// How long a revoked key may still be let in by a process that knows it.
const CACHED_FOR: Duration = Duration::from_secs(2);
/// How long a key that the store knew is looked up again whoever else comes from the same address.
const GOOD_FOR: Duration = Duration::from_secs(3_600);
const CACHED_KEYS: u64 = 10_000;

/// A new key of this kind (`live`, `test` or `team`) from 32 random bytes: at least 181 bits of surprise.
pub fn new_key(kind: &str, random: [u8; BODY]) -> String {
    let mut key = format!("tdk_{kind}_");
    key.extend(random.iter().map(|byte| char::from(DIGITS[usize::from(*byte) % DIGITS.len()])));
    let checksum = checksum(&key);
    key.extend(checksum.map(char::from));
    key
}

/// The kind that the prefix of a key names.
pub fn kind_of(key: &str) -> Option<&'static str> {
    KINDS.iter().find(|(_, prefix)| key.starts_with(prefix)).map(|(kind, _)| *kind)
}

/// Whether prefix, length, alphabet and checksum are those of a key.
pub fn is_well_formed(key: &str) -> bool {
    let Some(body) = KINDS.iter().find_map(|(_, prefix)| key.strip_prefix(prefix)) else { return false };
    body.len() == BODY + CHECKSUM
        && body.bytes().all(|byte| byte.is_ascii_alphanumeric())
        && checksum(&key[..key.len() - CHECKSUM]) == key.as_bytes()[key.len() - CHECKSUM..]
}

fn checksum(before: &str) -> [u8; CHECKSUM] {
    let hash = digest(&SHA256, before.as_bytes());
    let first = hash.as_ref().first_chunk().expect("SHA-256 has 32 bytes");
    let mut rest = u64::from_be_bytes(*first);
    let mut text = [0; CHECKSUM];
    for place in text.iter_mut().rev() {
        *place = DIGITS[(rest % 62) as usize];
        rest /= 62;
    }
    text
}

/// What a key may do.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Scope {
    /// Accept notifications.
    Send,
    /// Accept notifications of class critical.
    SendCritical,
    /// Read notifications.
    Read,
    /// See addresses and content.
    Pii,
    /// Operate: accounts, switches, the sandbox.
    Ops,
    /// Everything about keys and tenants.
    Admin,
}

impl Scope {
    /// The word in the key's record.
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Send => "send",
            Self::SendCritical => "send:critical",
            Self::Read => "read",
            Self::Pii => "pii",
            Self::Ops => "ops",
            Self::Admin => "admin",
        }
    }
}

/// Who calls.
#[derive(Clone)]
pub struct Caller {
    /// Whose key it is.
    pub tenant: TenantId,
    /// The only mode that exists for this key.
    pub mode: Mode,
    principal: Arc<Principal>,
    /// The configuration that the request goes by, from first to last.
    pub setup: Arc<Setup>,
    /// Whether the request came in where operators do.
    is_at_operators_port: bool,
}

/// A key that was found, and whose it is.
pub(super) struct Principal {
    key: ApiKey,
    tenant: Tenant,
}

impl Caller {
    /// The key as the audit log names it.
    pub fn actor(&self) -> String {
        format!("key_{} ({})", self.principal.key.id.simple(), self.principal.key.name)
    }

    /// Whether the key has this scope.
    pub fn has(&self, scope: Scope) -> bool {
        self.principal.key.scopes.iter().any(|own| own == scope.as_str())
    }

    /// Refuses keys without this scope.
    ///
    /// # Errors
    /// `scope_missing`, naming it.
    pub fn require(&self, scope: Scope) -> Result<(), Problem> {
        if !self.is_at_operators_port && matches!(scope, Scope::Ops | Scope::Admin) {
            return Err(Problem::not_found());
        }
        if self.has(scope) {
            return Ok(());
        }
        Err(Problem::new(Code::ScopeMissing, format!("the API key lacks the scope {}", scope.as_str())))
    }

    /// The key by its id, for logs.
    pub(super) fn key_id(&self) -> KeyId {
        KeyId(self.principal.key.id)
    }

    /// `live`, `test` or `team`.
    pub fn kind(&self) -> &str {
        &self.principal.key.kind
    }

    /// What its tenant is called.
    pub fn tenant_name(&self) -> &str {
        &self.principal.tenant.name
    }

    /// Whether it may write to the guest list of its tenant alone.
    pub fn is_for_guests(&self) -> bool {
        self.kind() == "team"
    }

    #[cfg(test)]
    pub(crate) fn for_tests(mode: Mode, scopes: &[&str]) -> Self {
        let key = ApiKey {
            id: uuid::Uuid::nil(),
            tenant: TenantId(1),
            name: "test".to_owned(),
            key_hash: Vec::new(),
            kind: "live".to_owned(),
            scopes: scopes.iter().map(|scope| (*scope).to_owned()).collect(),
            expires_at: None,
            revoked_at: None,
        };
        let tenant = Tenant { id: key.tenant, name: "default".to_owned(), active: true };
        Self {
            tenant: key.tenant,
            mode,
            principal: Arc::new(Principal { key, tenant }),
            setup: Arc::new(Setup::for_tests()),
            is_at_operators_port: true,
        }
    }
}

type KeyHash = [u8; 32];

/// The keys that were presented lately, unknown ones too.
pub(super) struct Keys {
    cache: Cache<KeyHash, Option<Arc<Principal>>>,
    /// Those that the store knew lately.
    good: Cache<KeyHash, ()>,
}

impl Keys {
    pub(super) fn new() -> Self {
        Self {
            cache: Cache::builder().max_capacity(CACHED_KEYS).time_to_live(CACHED_FOR).build(),
            good: Cache::builder().max_capacity(CACHED_KEYS).time_to_live(GOOD_FOR).build(),
        }
    }

    fn was_good(&self, hash: &KeyHash) -> bool {
        self.good.contains_key(hash)
    }

    /// What the store says about this hash. A store that does not answer lets nobody in (S-088).
    async fn look_up(&self, api: &Api, hash: KeyHash) -> Result<Option<Arc<Principal>>, Problem> {
        let found = api.read(move |store| async move { store.access().principal(&hash).await }).await?;
        let found = found.map(|(key, tenant)| Arc::new(Principal { key, tenant }));
        if found.is_some() {
            self.good.insert(hash, ());
        }
        self.cache.insert(hash, found.clone());
        Ok(found)
    }

    /// Asks the store again, the next time that this key comes.
    pub(super) fn forget(&self, hash: &[u8]) {
        if let Ok(hash) = KeyHash::try_from(hash) {
            self.cache.invalidate(&hash);
        }
    }
}

/// Who sends this request, by its `Authorization: Bearer`.
///
/// # Errors
/// `unauthorized`, saying why.
pub(super) async fn caller(api: &Api, request: &HttpRequest) -> Result<Caller, Problem> {
    let Some(header) = request.headers().get(header::AUTHORIZATION) else {
        return Err(Problem::unauthorized("the API key is missing: send Authorization: Bearer and a key"));
    };
    let header = header.to_str().unwrap_or_default();
    match header.split_once(' ') {
        Some((scheme, key)) if scheme.eq_ignore_ascii_case("bearer") => {
            let caller = by_key(api, limits::peer(request), key.trim()).await?;
            let caller = Caller { is_at_operators_port: Port::of(request).serves_operators(), ..caller };
            limits::note(request, &caller);
            Ok(caller)
        }
        _ => Err(Problem::unauthorized("the Authorization header is malformed: send Authorization: Bearer and a key")),
    }
}

/// Whose key this is.
///
/// # Errors
/// `unauthorized`, saying why.
pub(super) async fn by_key(api: &Api, from: Option<IpAddr>, presented: &str) -> Result<Caller, Problem> {
    match opened(api, from, presented).await {
        Err(problem) if problem.code() == Code::Unauthorized => {
            api.limits.failed(from, api.app.now())?;
            Err(problem)
        }
        other => other,
    }
}

async fn opened(api: &Api, from: Option<IpAddr>, presented: &str) -> Result<Caller, Problem> {
    let mut hash = KeyHash::default();
    hash.copy_from_slice(digest(&SHA256, presented.as_bytes()).as_ref());
    let key = match api.keys.cache.get(&hash) {
        // Only what is well-formed is ever looked up and remembered.
        Some(known) => known,
        // An address that keeps failing asks the store no more, but for keys that were good lately (S-083).
        None if !api.keys.was_good(&hash) && api.limits.has_failed_too_often(from, api.app.now()) => None,
        None if is_well_formed(presented) => Box::pin(api.keys.look_up(api, hash)).await?,
        None => return Err(Problem::unauthorized("the API key is malformed: it is mistyped, cut off or not a key")),
    };
    let Some(principal) = key else {
        return Err(Problem::unauthorized("the API key is unknown"));
    };
    judge(principal, api.app.setup(), api.app.now())
}

/// Whether a key opens anything at this instant.
pub(super) fn is_in_force(key: &ApiKey, now: Timestamp) -> bool {
    key.revoked_at.is_none_or(|at| at > now) && key.expires_at.is_none_or(|at| at > now)
}

fn judge(principal: Arc<Principal>, setup: Arc<Setup>, now: Timestamp) -> Result<Caller, Problem> {
    let key = &principal.key;
    if key.revoked_at.is_some_and(|at| at <= now) {
        return Err(Problem::unauthorized("the API key is revoked"));
    }
    if key.expires_at.is_some_and(|at| at <= now) {
        return Err(Problem::unauthorized("the API key is expired"));
    }
    if !principal.tenant.active {
        return Err(Problem::unauthorized("the tenant of this API key is disabled"));
    }
    let mode = match key.kind.as_str() {
        "live" | "team" if setup.routing.sandbox_only => Mode::Test,
        "live" | "team" => Mode::Live,
        "test" => Mode::Test,
        _ => return Err(Problem::internal(&StoreError::Unreadable("an API key of an unknown kind".to_owned()))),
    };
    Ok(Caller { tenant: key.tenant, mode, principal, setup, is_at_operators_port: true })
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    proptest! {
        #[test]
        fn one_wrong_character_is_a_malformed_key(random: [u8; 32], place in 0_usize..47, other in proptest::sample::select(&DIGITS[..])) {
            let key = new_key("live", random);
            prop_assert!(is_well_formed(&key) && key.len() == 47 && kind_of(&key) == Some("live"));
            let mut bent = key.clone().into_bytes();
            prop_assume!(bent[place] != other);
            bent[place] = other;
            prop_assert!(!is_well_formed(std::str::from_utf8(&bent).unwrap()));
        }

        #[test]
        fn no_text_panics(text in ".{0,60}") {
            is_well_formed(&text);
            is_well_formed(&format!("tdk_live_{text}"));
        }
    }

    #[test]
    fn the_form_of_a_key_never_changes() {
        // Keys are in other people's configuration: this text must stay valid for ever.
        assert_eq!(new_key("live", [7; 32]), "tdk_live_77777777777777777777777777777777qvJIHV");
    }

    fn key(kind: &str) -> ApiKey {
        let caller = Caller::for_tests(Mode::Live, &["send"]);
        ApiKey { kind: kind.to_owned(), ..caller.principal.key.clone() }
    }

    fn of(key: ApiKey, active: bool) -> Arc<Principal> {
        Arc::new(Principal { tenant: Tenant { id: key.tenant, name: "default".to_owned(), active }, key })
    }

    fn setup(sandbox_only: bool) -> Arc<Setup> {
        let mut setup = Setup::for_tests();
        setup.routing.sandbox_only = sandbox_only;
        Arc::new(setup)
    }

    #[test]
    fn the_mode_follows_the_key_unless_everything_is_sandbox() {
        let mode = |kind, sandbox_only| judge(of(key(kind), true), setup(sandbox_only), Timestamp::from_millis(10)).unwrap().mode;
        assert_eq!(mode("live", false), Mode::Live);
        assert_eq!(mode("live", true), Mode::Test);
        assert_eq!(mode("test", false), Mode::Test);
        assert_eq!((mode("team", false), mode("team", true)), (Mode::Live, Mode::Test));
    }

    #[test]
    fn keys_of_a_disabled_tenant_open_nothing() {
        let judged = |active| judge(of(key("live"), active), setup(false), Timestamp::from_millis(10));
        assert!(judged(true).is_ok() && judged(false).is_err());
    }

    #[test]
    fn a_key_ends_at_the_instant_that_it_names() {
        let at = |millis| Some(Timestamp::from_millis(millis));
        for (expires_at, revoked_at, is_valid) in [(at(11), None, true), (at(10), None, false), (None, at(10), false), (None, at(11), true)]
        {
            let key = ApiKey { expires_at, revoked_at, ..key("live") };
            assert_eq!(is_in_force(&key, Timestamp::from_millis(10)), is_valid);
            assert_eq!(judge(of(key, true), setup(false), Timestamp::from_millis(10)).is_ok(), is_valid);
        }
    }
}
