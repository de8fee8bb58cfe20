//! What the settings say about routes, categories, the sandbox, and what a check says about them.

use tidings_core::words::Class;

use super::*;

#[test]
fn accounts_keep_the_order_of_the_file_and_routes_may_say_otherwise() {
    let account = |name: &str| format!("[accounts.{name}]\nkind = \"smtp\"\nhost = \"h\"\n");
    let file = account("zebra") + &account("ant");
    assert_eq!(named(&Given::file(&file).load(), Class::Bulk), ["zebra", "ant"]);
    let settings = Given::file(&(file + "[routes.email]\ndefault = [\"ant\"]\ncritical = [\"ant\", \"zebra\"]\n")).load();
    let routes = (named(&settings, Class::Critical), named(&settings, Class::Bulk));
    assert_eq!(routes, (vec!["ant".into(), "zebra".into()], vec!["ant".into()]));
    assert_eq!(settings.shares(), []);
}

#[test]
fn accounts_of_a_route_may_have_weights_and_others_stand_behind_them() {
    let spare = "[accounts.b]\nkind = \"smtp\"\nhost = \"h\"\n[accounts.c]\nkind = \"smtp\"\nhost = \"h\"\n";
    let routes =
        "[routes.email]\ndefault = [\"b\", \"c\"]\nbulk = [{ account = \"relay\", weight = 9 }, { account = \"b\", weight = 1 }, \"c\"]\n";
    let given = Given::file(&format!("{RELAY}{spare}{routes}")).variable("NAME", "c");
    let settings = given.load();
    assert_eq!(named(&settings, Class::Bulk), ["relay", "b", "c"]);
    let weights = |class| settings.route(&Via::Main, class).into_iter().map(|entry| entry.weight).collect::<Vec<_>>();
    assert_eq!((weights(Class::Bulk), weights(Class::Critical)), (vec![Some(9), Some(1), None], vec![None, None]));
    let shares: Vec<String> = settings.shares().iter().map(ToString::to_string).collect();
    assert_eq!(shares, ["routes.email.bulk: relay 90.0%, b 10.0%, then c"]);
    assert_eq!(check(&settings), []);
    // As a variable, and with a name that stands elsewhere.
    let of_variable = given.variable("TIDINGS__ROUTES__EMAIL__BULK", "[{ account = 'b', weight = 1000 }, { env = 'NAME' }]").load();
    assert_eq!(
        (named(&of_variable, Class::Bulk), of_variable.route(&Via::Main, Class::Bulk)[0].weight),
        (vec!["b".into(), "c".into()], Some(1_000))
    );
    assert_eq!(of_variable.difference(&settings).changed, ["routes.email.bulk", "routes.email.bulk.account", "routes.email.bulk.weight"]);
    assert_ne!(of_variable.digest(), settings.digest());
}

const SPECIAL: &str = "[accounts.a]\nkind = \"smtp\"\nhost = \"h\"\n[accounts.b]\nkind = \"smtp\"\nhost = \"h\"\n[accounts.c]\nkind = \"smtp\"\nhost = \"h\"\ntenant = \"acme\"\n\
    [categories.login-code]\nclass = \"critical\"\n[categories.receipt]\n\
    [routes.email]\ndefault = [\"b\"]\nbulk = [\"a\", \"b\"]\n[routes.email.categories]\nlogin-code = [\"a\"]\n\
    [routes.email.tenants.acme]\ndefault = [\"c\", \"a\"]\nbulk = [\"c\"]\n[routes.email.tenants.shop]\ncritical = [\"b\"]\n";

#[test]
fn the_most_special_route_carries_a_message() {
    let settings = Given::file(SPECIAL).load();
    let by = |tenant: &str, category: &str, class: Class| {
        let via = settings.via(tenant, category, class);
        let accounts: Vec<String> = settings.route(&via, class).into_iter().map(|entry| entry.account).collect();
        assert_eq!(via.to_string().parse(), Ok(via.clone()));
        format!("{via} {}", accounts.join(" "))
    };
    use Class::{Bulk, Critical, Transactional};
    assert_eq!(by("acme", "login-code", Critical), "tenant:acme c a", "a tenant's route is a boundary");
    assert_eq!(by("acme", "receipt", Bulk), "tenant:acme c");
    assert_eq!(by("shop", "login-code", Critical), "tenant:shop b");
    assert_eq!(by("shop", "receipt", Transactional), "main b");
    assert_eq!(by("other", "login-code", Critical), "category:login-code a");
    assert_eq!(by("other", "receipt", Bulk), "main a b");
    assert_eq!(by("other", "receipt", Transactional), "main b");
    // What waits in lanes of routes that are set no longer goes by what carries it now.
    let now = |via: &str, class| settings.route(&via.parse().unwrap(), class).iter().map(|entry| entry.account.clone()).collect::<Vec<_>>();
    assert_eq!((now("tenant:shop", Bulk), now("category:gone", Critical)), (vec!["a".into(), "b".into()], vec!["b".into()]));
    assert_eq!(["sandbox", "pool:x", "category"].map(|name| name.parse::<Via>().is_ok()), [false; 3]);
}

#[test]
fn every_special_route_has_lanes_for_the_classes_that_it_can_meet() {
    let lanes: Vec<String> = Given::file(SPECIAL).load().vias().into_iter().map(|(class, via)| format!("{class} {via}")).collect();
    assert_eq!(
        lanes,
        [
            "critical main",
            "critical category:login-code",
            "critical tenant:acme",
            "critical tenant:shop",
            "transactional main",
            "transactional tenant:acme",
            "bulk main",
            "bulk tenant:acme",
        ]
    );
}

#[test]
fn special_routes_are_shown_counted_and_told_apart_like_others() {
    let weighted =
        SPECIAL.replace("login-code = [\"a\"]", "login-code = [{ account = \"a\", weight = 3 }, { account = \"b\", weight = 1 }]");
    let settings = Given::file(&weighted).load();
    let shares: Vec<String> = settings.shares().iter().map(ToString::to_string).collect();
    assert_eq!(shares, ["routes.email.categories.login-code: a 75.0%, b 25.0%"]);
    assert_eq!(check(&settings), [], "an account that a special route alone names sends");
    let before = Given::file(SPECIAL).load();
    assert_ne!(settings.digest(), before.digest());
    let changed = settings.difference(&before).changed;
    assert!(changed.iter().all(|name| name.starts_with("routes.email.categories.login-code")) && !changed.is_empty(), "{changed:?}");
    let without = Given::file(&SPECIAL.replace("[routes.email.tenants.shop]\ncritical = [\"b\"]\n", "")).load();
    assert_eq!(without.difference(&before).changed, ["routes.email.tenants.shop", "routes.email.tenants.shop.critical"]);
    // As a variable: the name in the file that it fits.
    let of_variable = Given::file(SPECIAL).variable("TIDINGS__ROUTES__EMAIL__CATEGORIES__LOGIN_CODE", "['b']").load();
    assert_eq!(of_variable.route(&Via::Category("login-code".into()), Class::Critical)[0].account, "b");

    let warned = |file: &str| check(&Given::file(file).load()).into_iter().map(|finding| finding.setting).collect::<Vec<_>>();
    assert_eq!(warned(&SPECIAL.replace("tenant = \"acme\"", "state = \"off\"")), ["routes.email.tenants.acme.bulk"]);
    let capped = SPECIAL.replace("[accounts.b]", "daily_cap = 100\n[accounts.b]");
    assert_eq!(warned(&capped), ["accounts.a.daily_cap"], "codes have no other account, and newsletters use it too");
}

#[test]
fn the_sandbox_stands_in_only_where_nothing_was_meant_to_leave() {
    for (file, is_sandbox_only) in [
        ("", true),
        ("[server]\nbind = \"[::1]:80\"", true),
        ("[server]\nbind = \"0.0.0.0:80\"", false),
        ("[server]\nbind = \"0.0.0.0:80\"\n[sandbox]\nenabled = true", true),
        ("[sandbox]\nenabled = true\n[accounts.a]\nkind = \"smtp\"\nhost = \"h\"\nstate = \"off\"", false),
    ] {
        assert_eq!(Given::file(file).load().is_sandbox_only(), is_sandbox_only, "{file}");
    }
}

#[test]
fn one_declared_category_closes_the_list_unless_it_is_said_otherwise() {
    let takes = |file: &str| Given::file(file).load().takes_undeclared_categories();
    assert!(takes(""));
    assert!(!takes("[categories.a]"));
    assert!(takes("[categories.a]\n[limits]\nundeclared_categories = \"allow\""));
    assert!(!takes("[limits]\nundeclared_categories = \"refuse\""));
}

#[test]
fn the_author_of_a_category_is_a_mailbox_or_a_sender() {
    let file = "[senders.shop]\nemail = \"Shop <shop@example.com>\"\n[categories.a]\nfrom = \"shop\"\n[categories.b]\nfrom = \"b@example.com\"\n[categories.c]\n";
    let settings = Given::file(file).load();
    let author = |category: &str| settings.author_of(category).map(|author| author.email.as_str().to_owned());
    assert_eq!(author("a").as_deref(), Some("shop@example.com"));
    assert_eq!(author("b").as_deref(), Some("b@example.com"));
    assert_eq!((author("c"), author("d")), (None, None));
}

#[test]
fn instances_with_other_settings_have_another_digest() {
    let digest = |file: &str| Given::file(file).named("tidings.toml").load().digest();
    let absolute = format!("[server]\ndata_dir = \"/d\"\n{RELAY}[categories.a]\n[categories.b]\n[categories.c]\n");
    assert_eq!(digest(&absolute), digest(&absolute));
    assert_ne!(digest(&absolute), digest(&absolute.replace("127.0.0.1", "127.0.0.2")));
    assert_ne!(digest(&absolute), digest(&absolute.replace("[categories.c]", "[categories.d]")));
    // Processes that share the work are one installation.
    assert_eq!(digest(&absolute), digest(&absolute.replace("[server]\n", "[server]\nroles = [\"intake\"]\n")));
}

#[test]
fn a_store_that_is_not_known_yet_may_be_shared() {
    let file = "[server]\nroles = [\"intake\"]\n[store]\nurl = { env = \"DATABASE_URL\" }\n";
    assert_eq!(check(&Given::file(file).offline().load()), []);
}

#[test]
fn a_check_finds_what_is_likely_to_be_regretted() {
    let outside = "[server]\nbind = \"0.0.0.0:80\"\npublic_url = \"https://t.example.com\"\n[secrets]\nmaster = { env = \"MASTER\" }\n";
    let postgres = "[store]\nurl = \"postgres://db.example.com/t\"\n";
    let master = "MDEyMzQ1Njc4OTAxMjM0NTY3ODkwMTIzNDU2Nzg5MDE=";
    let login = "username = \"u\"\npassword = \"p\"\ntls = \"none\"\n";
    for (file, found) in [
        (format!("{outside}{RELAY}"), vec![]),
        (format!("{outside}{RELAY}{login}"), vec![]),
        (RELAY.replace("127.0.0.1", "relay.example.com") + "tls = \"none\"\n", vec![]),
        (RELAY.replace("127.0.0.1", "relay.example.com") + login, vec![(Severity::Fault, "accounts.relay.tls")]),
        (
            "[server]\nbind = \"0.0.0.0:80\"\n".to_owned() + RELAY,
            vec![(Severity::Warning, "server.public_url"), (Severity::Warning, "secrets.master")],
        ),
        (outside.replace("https", "http") + RELAY, vec![(Severity::Warning, "server.public_url")]),
        (format!("{RELAY}concurrency = 1\n"), vec![(Severity::Warning, "accounts.relay.concurrency")]),
        (format!("{RELAY}daily_cap = 9\n"), vec![(Severity::Warning, "accounts.relay.daily_cap")]),
        (format!("{RELAY}daily_cap = 9\n[accounts.b]\nkind = \"smtp\"\nhost = \"h\"\n"), vec![]),
        (
            format!(
                "{RELAY}daily_cap = 9\n[accounts.b]\nkind = \"smtp\"\nhost = \"h\"\n[routes.email]\ndefault = [\"b\"]\ncritical = [\"relay\"]\n"
            ),
            vec![],
        ),
        (format!("{RELAY}state = \"off\"\n"), vec![(Severity::Warning, "accounts")]),
        (
            format!("{RELAY}[accounts.b]\nkind = \"smtp\"\nhost = \"h\"\n[routes.email]\ndefault = [\"b\"]\n"),
            vec![(Severity::Warning, "accounts.relay")],
        ),
        (outside.to_owned(), vec![(Severity::Warning, "accounts")]),
        (format!("{outside}[sandbox]\nenabled = true\n"), vec![(Severity::Warning, "sandbox.enabled")]),
        ("[server]\ngrace = \"21s\"\n".to_owned(), vec![(Severity::Warning, "server.grace")]),
        ("[server]\nlinger = \"10s\"\n".to_owned(), vec![(Severity::Warning, "server.grace")]),
        (format!("{RELAY}tls = \"startls\"\n"), vec![(Severity::Fault, "accounts.relay")]),
        (format!("{RELAY}username = \"u\"\n"), vec![(Severity::Fault, "accounts.relay")]),
        ("[server]\nroles = [\"workers\", \"sweeps\"]\n".to_owned(), vec![(Severity::Fault, "server.roles")]),
        ("[server]\nroles = [\"sweeps\", \"webhooks\", \"workers\", \"intake\"]\n".to_owned(), vec![]),
        (format!("[server]\nroles = [\"workers\"]\n{postgres}"), vec![]),
        (format!("[server]\nroles = [\"webhooks\", \"sweeps\"]\n{postgres}"), vec![]),
        (format!("[server]\nroles = [\"webhooks\"]\n{postgres}"), vec![(Severity::Warning, "server.roles")]),
    ] {
        let settings = Given::file(&file).variable("MASTER", master).load();
        let findings = check(&settings);
        let short: Vec<(Severity, &str)> = findings.iter().map(|finding| (finding.severity, finding.setting.as_str())).collect();
        assert_eq!(short, found, "{file}{findings:#?}");
    }
}
