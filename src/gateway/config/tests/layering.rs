//! What lies above what, and how variables are spelled and read.

use std::path::Path;

use serde_json::json;
use tidings_core::policy::OnAmbiguous;
use tidings_core::words::Class;

use super::*;

#[test]
fn a_variable_is_above_the_file_and_the_file_above_the_default() {
    let given = Given::file("[store]\nmax_connections = 3\n[server]\nlinger = \"1s\"\n").variable("TIDINGS__STORE__MAX_CONNECTIONS", "4");
    let settings = given.load();
    assert_eq!((settings.store.max_connections, settings.server.linger, settings.server.grace), (4, seconds(1), seconds(25)));
}

#[test]
fn the_named_file_is_read_in_place_of_the_usual_one() {
    let given = Given::file("[limits]\nrecipients = 1\n")
        .and_file("by-variable.toml", "[limits]\nrecipients = 2\n")
        .and_file("by-option.toml", "[limits]\nrecipients = 3\n");
    assert_eq!(given.load().limits.recipients, 1);
    let given = given.variable("TIDINGS_CONFIG", "by-variable.toml");
    assert_eq!(given.load().limits.recipients, 2);
    assert_eq!(given.named("by-option.toml").load().limits.recipients, 3);
}

#[test]
fn only_the_usual_file_may_be_absent() {
    assert_eq!(Given::nothing().load().limits.recipients, 50);
    for given in [Given::nothing().named("gone.toml"), Given::nothing().variable("TIDINGS_CONFIG", "gone.toml")] {
        assert!(given.faults()[0].starts_with("gone.toml: the configuration file cannot be read"), "{:?}", given.faults());
    }
}

#[test]
fn an_underscore_in_a_variable_fits_what_is_in_the_name() {
    let file = format!("{RELAY}[accounts.ses-eu]\nkind = \"smtp\"\nhost = \"a.example\"\n[categories.\"a.b_c-D\"]\nclass = \"bulk\"\n");
    let given = Given::file(&file)
        .variable("TIDINGS__ACCOUNTS__SES_EU__HELO_NAME", "gateway.example")
        .variable("TIDINGS__CATEGORIES__A_B_C_D__EXPIRES_IN", "5m");
    let settings = given.load();
    assert_eq!(settings.accounts[1].settings, json!({"host": "a.example", "helo_name": "gateway.example"}));
    let rules = settings.rules();
    let category = &rules.categories["a.b_c-D"];
    assert_eq!((category.class, category.expires_in, rules.categories.len()), (Some(Class::Bulk), Some(seconds(300)), 1));
}

#[test]
fn variables_alone_make_an_account() {
    let given = Given::nothing()
        .variable("TIDINGS__ACCOUNTS__MY_RELAY__KIND", "smtp")
        .variable("TIDINGS__ACCOUNTS__MY_RELAY__HOST", "12.example")
        .variable("TIDINGS__ACCOUNTS__MY_RELAY__PORT", "2525")
        .variable("TIDINGS__ACCOUNTS__MY_RELAY__USERNAME", "true")
        .variable("TIDINGS__ACCOUNTS__MY_RELAY__PASSWORD", "12345")
        .variable("TIDINGS__ACCOUNTS__MY_RELAY__TIMEOUTS__DOT", "1m")
        .variable("TIDINGS__ACCOUNTS__MY_RELAY__TIMEOUTS", "{ connect = \"1s\" }");
    let settings = given.load();
    assert_eq!(settings.accounts[0].name, "my-relay");
    let own =
        json!({"host": "12.example", "port": 2525, "username": "true", "password": "12345", "timeouts": {"connect": "1s", "dot": "1m"}});
    assert_eq!(settings.accounts[0].settings, own);
}

#[test]
fn a_variable_that_fits_two_names_is_refused() {
    let given = Given::file("[categories.a-b]\n[categories.a_b]\n").variable("TIDINGS__CATEGORIES__A_B__CLASS", "bulk");
    let fault =
        "categories.a_b (variable TIDINGS__CATEGORIES__A_B__CLASS): the variable fits a-b and a_b alike; rename one or set it in the file";
    assert_eq!(given.faults(), [fault]);
}

#[test]
fn variables_without_the_two_underscores_are_somebody_elses() {
    let given = Given::nothing()
        .variable("TIDINGS_PORT", "tcp://10.0.0.1:80")
        .variable("TIDINGS_SERVER__BIND", "nonsense")
        .variable("tidings__server__bind", "nonsense")
        .variable("TIDINGS", "x");
    assert_eq!(given.load().server.bind.port(), 8080);
}

#[test]
fn the_type_of_the_setting_decides_how_a_variable_is_read() {
    let given = Given::file(RELAY)
        .variable("TIDINGS__STORE__STATEMENT_CACHE", "false")
        .variable("TIDINGS__STORE__MAX_CONNECTIONS", "1_0")
        .variable("TIDINGS__SERVER__GRACE", "30s")
        .variable("TIDINGS__ROUTES__EMAIL__DEFAULT", "[\"relay\"]")
        .variable("TIDINGS__ACCOUNTS__RELAY__SENDS_AS", "[\n  'Example.COM', # ours\n  \"Ada@Example.com\",\n]")
        .variable("TIDINGS__AMBIGUITY__BULK__POLICY", "resend")
        .variable("TIDINGS__AMBIGUITY__TRANSACTIONAL__POLICY", "{ sms = \"resend\" }");
    let settings = given.load();
    assert_eq!((settings.store.statement_cache, settings.store.max_connections, settings.server.grace), (false, 10, seconds(30)));
    assert_eq!(named(&settings, Class::Bulk), ["relay"]);
    assert_eq!(settings.accounts[0].sends_as, ["example.com", "ada@example.com"]);
    let (bulk, transactional) = (settings.rules().bulk.ambiguity, settings.rules().transactional.ambiguity);
    assert_eq!((bulk.email, bulk.sms, bulk.push), (OnAmbiguous::Resend, OnAmbiguous::Resend, OnAmbiguous::Resend));
    assert_eq!((transactional.email, transactional.sms, transactional.push), (OnAmbiguous::Resend, OnAmbiguous::Resend, OnAmbiguous::Hold));
}

#[test]
fn relative_paths_are_relative_to_the_file_that_names_them() {
    let file = "[server]\ndata_dir = \"state\"\n[store]\nurl = \"sqlite://db/t.db\"\n[accounts.relay]\nkind = \"smtp\"\nhost = \"h\"\n\
                ca_file = \"ca.pem\"\nusername = \"u\"\npassword = { file = \"password\" }\n";
    let given = Given::nothing().and_file("etc/t.toml", file).and_file("etc/password", "p").named("etc/t.toml");
    let settings = given.load();
    assert_eq!(settings.server.data_dir, given.under("etc/state"));
    assert_eq!(settings.store.url.reveal(), format!("sqlite://{}", given.under("etc/db/t.db").display()));
    assert_eq!(Path::new(settings.accounts[0].settings["ca_file"].as_str().unwrap()), given.under("etc/ca.pem"));
    let given = given.variable("TIDINGS__SERVER__DATA_DIR", "/var/lib/tidings");
    assert_eq!(given.load().server.data_dir, Path::new("/var/lib/tidings"));
}

#[test]
fn the_database_follows_the_data_directory_unless_it_is_set() {
    let given = Given::nothing().variable("TIDINGS__SERVER__DATA_DIR", "/var/lib/tidings");
    assert_eq!(given.load().store.url.reveal(), "sqlite:///var/lib/tidings/tidings.db");
    let given = given.variable("TIDINGS__STORE__URL", "postgres://t:p%23@db/t");
    let store = given.load().store;
    assert_eq!(store.url.reveal(), "postgres://t:p%23@db/t");
    assert!(store.listen_url.is_none() && store.migrate_url.is_none());
    let given = given
        .variable("TIDINGS__STORE__LISTEN_URL", "postgres://t@db:5433/t")
        .variable("TIDINGS__STORE__MIGRATE_URL", "postgres://owner@db/t");
    let store = given.load().store;
    let revealed = |url: &Option<tidings_core::secrets::Secret>| url.as_ref().map(|url| url.reveal().to_owned());
    assert_eq!(revealed(&store.listen_url).as_deref(), Some("postgres://t@db:5433/t"));
    assert_eq!(revealed(&store.migrate_url).as_deref(), Some("postgres://owner@db/t"));
}
