//! The compiled-in file says what the code says, and so do the examples.

use serde_json::json;
use tidings_core::policy::{OnKeyReuse, Rules};
use tidings_core::rate::Rate;

use super::*;

#[test]
fn without_file_and_variables_everything_has_its_default() {
    let given = Given::nothing();
    let settings = given.load();
    assert_eq!(settings.rules(), Rules::default());
    assert_eq!(settings.server.bind.to_string(), "127.0.0.1:8080");
    assert_eq!((settings.server.linger, settings.server.grace), (seconds(5), seconds(25)));
    assert_eq!(settings.server.roles, Roles::all());
    assert_eq!(settings.server.data_dir, given.under("data"));
    assert_eq!(settings.store.url.reveal(), format!("sqlite://{}", given.under("data/tidings.db").display()));
    assert_eq!((settings.store.max_connections, settings.store.statement_cache, settings.store.migrates()), (16, true, true));
    assert_eq!((settings.limits.body, settings.limits.batch_body, settings.limits.recipients), (10 << 20, 5 << 20, 50));
    assert_eq!((settings.limits.tenant_rate, settings.limits.queue_depth, settings.limits.requires_keys), (None, 2_000_000, true));
    assert_eq!(settings.retention, tidings_core::retention::Retention::default());
    assert_eq!((settings.log.format, settings.log.level), (LogFormat::Auto, LogLevel::Info));
    assert!(settings.is_sandbox_only() && settings.takes_undeclared_categories());
    assert!(settings.secrets.master.is_none() && settings.bootstrap.api_key.is_none() && settings.accounts.is_empty());
    assert_eq!(check(&settings), []);
}

/// `config/tidings.toml` with its examples switched on.
fn everything() -> String {
    layers::DEFAULTS
        .lines()
        .map(|line| line.strip_prefix('#').filter(|rest| !rest.starts_with(' ') && !rest.is_empty()).unwrap_or(line))
        .fold(String::new(), |text, line| text + line + "\n")
}

#[test]
fn the_built_in_file_names_every_setting() {
    let document: toml::Table = everything().parse().unwrap();
    for table in [
        "server",
        "store",
        "secrets",
        "bootstrap",
        "accounts.relay",
        "accounts.relay.timeouts",
        "senders.shop",
        "tenants.acme",
        "routes",
        "routes.email",
        "routes.email.tenants.acme",
        "tenants.acme",
        "categories.login-code",
        "retry",
        "retry.critical",
        "retry.transactional",
        "retry.bulk",
        "ambiguity",
        "ambiguity.critical",
        "ambiguity.transactional",
        "ambiguity.transactional.policy",
        "ambiguity.bulk",
        "limits",
        "sandbox",
        "retention",
        "log",
    ] {
        let probe = format!("{table}.qqqqqqqq = 1\n");
        let given = Given::file(&probe)
            .variable("TIDINGS__ACCOUNTS__RELAY__KIND", "smtp")
            .variable("TIDINGS__SENDERS__SHOP__EMAIL", "a@example.com");
        let faults = given.faults();
        let known = faults.iter().find_map(|fault| fault.split_once("known here: ")).map(|(_, known)| known.to_owned());
        let written = table.split('.').fold(&document, |document, name| document[name].as_table().unwrap());
        for name in known.unwrap_or_else(|| panic!("{table}: {faults:?}")).split(", ") {
            assert!(written.contains_key(name), "{table} does not name {name}");
        }
    }
}

#[test]
fn the_examples_of_the_built_in_file_are_settings_as_they_stand() {
    let all = Given::file(&everything()).offline().load();
    assert_eq!(all.rules().critical, Rules::default().critical);
    assert_eq!((all.accounts[0].state, all.accounts[0].rate), (AccountState::On, Some(14)));
    assert_eq!(
        all.accounts[0].daily_cap.as_ref().map(|cap| (cap.calls.get(), cap.zone.iana_name())),
        Some((50_000, Some("America/Los_Angeles")))
    );
    assert_eq!(all.author_of("login-code"), "Shop <shop@example.com>".parse().ok());
    assert_eq!(all.author_of_tenant("acme"), all.author_of("login-code"));
    assert_eq!(all.limits.tenant_rate, Some(Rate { per_second: 100, burst: 200 }));
    assert_eq!(all.rules().categories["login-code"].on_key_reuse, OnKeyReuse::FirstWins);
    assert_eq!(all.unresolved.len(), 4, "{:?}", all.unresolved);
}

#[test]
fn the_examples_pass_an_offline_check() {
    for example in [include_str!("../../../../config/examples/production.toml"), include_str!("../../../../config/examples/smtp.toml")] {
        let settings = Given::file(example).offline().load();
        assert_eq!(check(&settings), []);
        assert!(!settings.unresolved.is_empty());
    }
}

#[test]
fn every_kind_and_its_adapter_agree_on_the_names() {
    for (kind, settings) in kinds::KINDS {
        let context = tidings_providers::Context {
            clock: std::sync::Arc::new(check::WallClock),
            concurrency: 1,
            default_helo: None,
            dkim: Default::default(),
            sandbox: None,
        };
        let Err(err) = tidings_providers::build(kind, json!({"qqqqqqqq": 1}), &context) else { panic!("{kind} takes any setting") };
        let err = err.to_string();
        let of_adapter: Vec<&str> = err.split('`').skip(3).step_by(2).collect();
        let ours: Vec<&str> = settings.iter().map(|(name, _)| *name).collect();
        assert_eq!(ours, of_adapter, "{err}");
    }
}
