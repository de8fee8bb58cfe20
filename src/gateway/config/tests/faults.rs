//! What is refused, and in which words.

use super::*;

#[test]
fn a_variable_of_the_wrong_type_says_what_was_expected_and_not_what_stands_there() {
    for (name, setting, expected) in [
        ("STORE__MAX_CONNECTIONS", "store.max_connections", "a whole number from 3 to 1000"),
        ("STORE__STATEMENT_CACHE", "store.statement_cache", "true or false"),
        ("STORE__MIGRATE", "store.migrate", "\"auto\" or \"never\""),
        ("SERVER__LINGER", "server.linger", "a duration such as \"500ms\", \"90s\", \"10m\", \"24h\" or \"7d\""),
        ("SERVER__BIND", "server.bind", "an address and a port such as \"127.0.0.1:8080\" or \"[::]:8080\""),
        ("LIMITS__BODY", "limits.body", "a size such as \"500KiB\" or \"10MiB\""),
        (
            "ROUTES__EMAIL__BULK",
            "routes.email.bulk",
            "a list of accounts such as [\"a\", \"b\"] or [{ account = \"a\", weight = 9 }, { account = \"b\", weight = 1 }]",
        ),
        ("SERVER", "server", "a table"),
        ("ACCOUNTS__RELAY__RATE", "accounts.relay.rate", "a rate such as \"14/s\""),
        ("SECRETS__MASTER", "secrets.master", "32 bytes in base64, such as `openssl rand -base64 32` makes"),
    ] {
        let given = Given::file(RELAY).variable(&format!("TIDINGS__{name}"), "hunter2");
        assert_eq!(given.faults(), [format!("{setting} (variable TIDINGS__{name}): expected {expected}")]);
    }
}

#[test]
fn a_wrong_type_in_the_file_is_found_with_its_line() {
    for (file, fault) in [
        ("[store]\nmax_connections = \"16\"", "store.max_connections (tidings.toml line 2): expected a whole number from 3 to 1000"),
        (
            "[store]\nmigrate_url = \"sqlite://d\"",
            "store.migrate_url (tidings.toml line 2): expected \"postgres://USER:PASSWORD@HOST/DATABASE\" (special characters percent-encoded)",
        ),
        ("[store]\nmax_connections = 1", "store.max_connections (tidings.toml line 2): expected a whole number from 3 to 1000"),
        ("[sandbox]\n\nenabled = \"yes\"", "sandbox.enabled (tidings.toml line 3): expected true or false"),
        ("server = 1", "server (tidings.toml line 1): expected a table"),
        (
            "[log]\nlevel = \"loud\"",
            "log.level (tidings.toml line 2): expected \"error\" or \"warn\" or \"info\" or \"debug\" or \"trace\"",
        ),
        ("[log]\nfilter = \"a=b=c\"", "log.filter (tidings.toml line 2): expected log directives such as \"info,tidings_gateway=debug\""),
        (
            "[server]\npublic_url = \"tidings\"",
            "server.public_url (tidings.toml line 2): expected a URL such as \"https://tidings.example.com\"",
        ),
        ("[limits]\nbody = \"1GiB\"", "limits.body (tidings.toml line 2): expected a size such as \"500KiB\" or \"10MiB\""),
        ("[limits]\nbody = \"100MiB\"", "limits.body (tidings.toml line 2): may be from 1KiB to 48MiB"),
        ("[limits]\nbatch_body = \"1KB\"", "limits.batch_body (tidings.toml line 2): expected a size such as \"500KiB\" or \"10MiB\""),
        ("[limits]\ntenant_rate = \"100\"", "limits.tenant_rate (tidings.toml line 2): expected \"off\" or a rate such as \"100/s\""),
        ("[limits]\ntenant_burst = 200", "limits.tenant_burst (tidings.toml line 2): means nothing without limits.tenant_rate"),
        (
            "[limits]\ntenant_rate = \"10/s\"",
            "limits.tenant_rate (tidings.toml line 2): a tenant must be allowed as many messages at once as one request has recipients (limits.recipients)",
        ),
        (
            "[tenants.acme]\nfrom = \"shop\"",
            "tenants.acme.from (tidings.toml line 2): expected a mailbox or the name of a table [senders.NAME]",
        ),
        ("[categories.a]\nchannels = [\"sms\"]", "categories.a.channels (tidings.toml line 2): expected \"email\""),
        (
            "[retention]\ndestination = \"29d\"",
            "retention.destination (tidings.toml line 2): may be 30d at least: until the key is free, the answer to a repeated request repeats the address",
        ),
        ("[retention]\ncontent_dead = \"6d\"", "retention.content_dead (tidings.toml line 2): may not be shorter than retention.content"),
        (
            "[retention]\ndestination = \"40d\"\nmetadata = \"39d\"",
            "retention.metadata (tidings.toml line 3): may not be shorter than retention.destination",
        ),
        (
            "[retention]\nmetadata = \"32d\"",
            "retention.metadata (tidings.toml line 2): may be 33d at least: bounces come late, and are then matched with their record",
        ),
        (
            "[retention]\nmetadata = \"60d\"\nevents = \"61d\"",
            "retention.metadata (tidings.toml line 2): may not be shorter than retention.events: an event is told with the words of its record",
        ),
        (
            "[categories.a]\non_key_reuse = \"last\"",
            "categories.a.on_key_reuse (tidings.toml line 2): expected \"refuse\" or \"first_wins\"",
        ),
        (
            "[server]\nroles = []",
            "server.roles (tidings.toml line 2): a process needs at least one role; leave the setting out for all of them",
        ),
        (
            "[server]\nroles = [\"intake\", \"worker\"]",
            "server.roles (tidings.toml line 2): expected \"intake\" or \"workers\" or \"webhooks\" or \"sweeps\"",
        ),
        ("[server]\nroles = [\"sweeps\", \"sweeps\"]", "server.roles (tidings.toml line 2): the role \"sweeps\" is named twice"),
        ("[server]\nroles = \"intake\"", "server.roles (tidings.toml line 2): expected a list of texts such as [\"a\", \"b\"]"),
        ("[server]\ngrace = \"1h\"", "server.grace (tidings.toml line 2): may be 10m at most"),
    ] {
        assert_eq!(Given::file(file).faults(), [fault]);
    }
}

#[test]
fn unknown_settings_name_the_nearest_known_one_and_all_faults_come_at_once() {
    let file =
        "[server]\nbnid = \"x\"\nlinger = 5\n[serverr]\n[webhooks.acme]\n[accounts.relay]\nkind = \"smtp\"\nhots = \"h\"\napps = 5\n";
    let given = Given::file(file).variable("TIDINGS__STORE__MAX_CONECTIONS", "5");
    let faults = given.faults();
    let expected = [
        "server.linger (tidings.toml line 3): expected a duration",
        "server.bnid (tidings.toml line 2): unknown setting; did you mean server.bind?",
        "store.max_conections (variable TIDINGS__STORE__MAX_CONECTIONS): unknown setting; did you mean store.max_connections?",
        "accounts.relay.hots (tidings.toml line 8): unknown setting; did you mean accounts.relay.host?",
        "accounts.relay.apps (tidings.toml line 9): unknown setting; known here: ",
        "serverr (tidings.toml line 4): unknown setting; did you mean server?",
        "webhooks (tidings.toml line 5): unknown setting; known here: server, store, ",
    ];
    assert_eq!(faults.len(), expected.len(), "{faults:#?}");
    for (fault, expected) in faults.iter().zip(expected) {
        assert!(fault.starts_with(expected), "{fault}\n{expected}");
    }
}

#[test]
fn a_file_that_is_not_toml_is_named_with_its_line_and_never_quoted() {
    let faults = Given::file("[accounts.relay]\npassword = \"hunter2\npassword = 1\n").faults();
    assert!(faults[0].starts_with("tidings.toml line 2: "), "{faults:?}");
    assert!(!faults[0].contains("hunter2"), "{faults:?}");
}

#[test]
fn what_contradicts_something_else_is_refused() {
    for (file, fault) in [
        (
            "[routes.email]\nbulk = [\"rely\"]\n",
            "routes.email.bulk (tidings.toml line 5): there is no account \"rely\"; did you mean \"relay\"?",
        ),
        (
            "[routes.email]\nbulk = [\"other\"]\n",
            "routes.email.bulk (tidings.toml line 5): there is no account \"other\"; it needs a table [accounts.other]",
        ),
        ("[routes.email]\nbulk = [\"relay\", \"relay\"]\n", "routes.email.bulk (tidings.toml line 5): account \"relay\" is named twice"),
        (
            "[routes.email]\nbulk = []\n",
            "routes.email.bulk (tidings.toml line 5): an empty list carries nothing; leave the setting out to use every account",
        ),
        (
            "[routes.email]\nbulk = [{ account = \"relay\", weight = 0 }]\n",
            "routes.email.bulk.weight (tidings.toml line 5): expected a whole number from 1 to 1000",
        ),
        (
            "[routes.email]\nbulk = [{ account = \"rely\", weight = 1 }]\n",
            "routes.email.bulk.account (tidings.toml line 5): there is no account \"rely\"; did you mean \"relay\"?",
        ),
        (
            "[routes.email]\nbulk = [{ account = \"relay\", weight = 1 }, { account = \"relay\", weight = 2 }]\n",
            "routes.email.bulk.account (tidings.toml line 5): account \"relay\" is named twice",
        ),
        (
            "[routes.email]\nbulk = [{ account = \"relay\" }]\n",
            "routes.email.bulk (tidings.toml line 5): routes.email.bulk.weight is missing: expected a list of accounts such as [\"a\", \"b\"] or [{ account = \"a\", weight = 9 }, { account = \"b\", weight = 1 }]",
        ),
        (
            "[routes.email]\nbulk = [{ account = \"relay\", weight = 1, share = 2 }]\n",
            "routes.email.bulk.share (tidings.toml line 5): unknown setting; known here: account, weight",
        ),
        (
            "[accounts.b]\nkind = \"smtp\"\nhost = \"h\"\n[routes.email]\nbulk = [\"b\", { account = \"relay\", weight = 1 }]\n",
            "routes.email.bulk.account (tidings.toml line 8): accounts with a weight stand before those without, which are tried when all of them have failed",
        ),
        (
            "[routes.email.categories]\nlogin-code = [\"rely\"]\n",
            "routes.email.categories.login-code (tidings.toml line 5): there is no account \"rely\"; did you mean \"relay\"?",
        ),
        (
            "[routes.email.categories]\nlogin-code = []\n",
            "routes.email.categories.login-code (tidings.toml line 5): an empty list carries nothing; leave the setting out to use every account",
        ),
        (
            "[routes.email.categories]\n\"a b\" = [\"relay\"]\n",
            "routes.email.categories.\"a b\" (tidings.toml line 5): a category is 1 to 64 characters of [A-Za-z0-9_.:-]",
        ),
        (
            "[categories.login-code]\n[routes.email.categories]\nlogin-cod = [\"relay\"]\n",
            "routes.email.categories.login-cod (tidings.toml line 6): no request may name this category; did you mean \"login-code\"?",
        ),
        (
            "[limits]\nundeclared_categories = \"refuse\"\n[routes.email.categories]\nreceipt = [\"relay\"]\n",
            "routes.email.categories.receipt (tidings.toml line 7): no request may name this category: declare it as [categories.receipt], or set limits.undeclared_categories",
        ),
        (
            "[routes.email.tenants.acme]\nbulk = [\"relay\", \"relay\"]\n",
            "routes.email.tenants.acme.bulk (tidings.toml line 5): account \"relay\" is named twice",
        ),
        (
            "[routes.email.tenants.acme]\nbulc = [\"relay\"]\ndefault = [\"relay\"]\n",
            "routes.email.tenants.acme.bulc (tidings.toml line 5): unknown setting; did you mean routes.email.tenants.acme.bulk?",
        ),
        (
            "[routes.email.tenants.acme]\n",
            "routes.email.tenants.acme (tidings.toml line 4): says nothing: name accounts in default, critical, transactional or bulk",
        ),
        (
            "[routes.email.tenants.Acme]\ndefault = [\"relay\"]\n",
            "routes.email.tenants.Acme (tidings.toml line 4): a tenant's name is 1 to 40 characters of [a-z0-9-]",
        ),
        (
            "tenant = \"shop\"\n[routes.email.tenants.acme]\ndefault = [\"relay\"]\n",
            "routes.email.tenants.acme.default (tidings.toml line 6): account \"relay\" belongs to another tenant (accounts.relay.tenant), so that it would carry nothing",
        ),
        (
            "tenant = \"Acme\"\n",
            "accounts.relay.tenant (tidings.toml line 4): expected the name of a tenant: 1 to 40 characters of [a-z0-9-]",
        ),
        (
            "sends_as = []\n",
            "accounts.relay.sends_as (tidings.toml line 4): an empty list allows nobody; leave the setting out to allow every author",
        ),
        (
            "sends_as = [\"a b\"]\n",
            "accounts.relay.sends_as (tidings.toml line 4): expected a domain such as \"shop.example.com\" or an email address",
        ),
        ("from = \"nobody\"\n", "accounts.relay.from (tidings.toml line 4): expected a mailbox such as \"Shop <shop@example.com>\""),
        (
            "from = \"a@example.org\"\nsends_as = [\"example.com\"]\n",
            "accounts.relay.from (tidings.toml line 4): the account may not send as its own author: accounts.relay.sends_as names neither the address nor its domain",
        ),
        ("daily_cap = 0\n", "accounts.relay.daily_cap (tidings.toml line 4): expected a whole number from 1 to 1000000000"),
        ("daily_cap = \"many\"\n", "accounts.relay.daily_cap (tidings.toml line 4): expected a whole number from 1 to 1000000000"),
        (
            "daily_cap_zone = \"UTC\"\n",
            "accounts.relay.daily_cap_zone (tidings.toml line 4): means nothing without accounts.relay.daily_cap",
        ),
        (
            "daily_cap_zone = \"Mars/Olympus\"\ndaily_cap = 5\n",
            "accounts.relay.daily_cap_zone (tidings.toml line 4): expected a time zone such as \"UTC\" or \"Europe/Berlin\"",
        ),
        ("concurrency = 0\n", "accounts.relay.concurrency (tidings.toml line 4): expected a whole number from 1 to 1000"),
        ("rate = \"0/s\"\n", "accounts.relay.rate (tidings.toml line 4): expected a rate such as \"14/s\""),
        ("[senders.shop]\n", "senders.shop (tidings.toml line 4): senders.shop.email is missing"),
        (
            "[categories.x]\nfrom = \"shop\"\n",
            "categories.x.from (tidings.toml line 5): expected a mailbox or the name of a table [senders.NAME]",
        ),
        (
            "[categories.x]\nexpires_in = \"10d\"\n",
            "categories.x.expires_in (tidings.toml line 5): may be 9d at most: idempotency keys have to outlive it",
        ),
        ("[categories.\"a b\"]\n", "categories.\"a b\" (tidings.toml line 4): a category is 1 to 64 characters of [A-Za-z0-9_.:-]"),
        ("[retry.bulk]\nfactor = 0\n", "retry.bulk.factor (tidings.toml line 5): expected a whole number from 1 to 100"),
        ("[retry.bulk]\nbase = \"7h\"\n", "retry.bulk.base: retry.bulk.base must not exceed retry.bulk.cap"),
        (
            "[ambiguity.critical]\nhold = \"10m\"\n",
            "ambiguity.critical.hold: ambiguity.critical.hold and patience together must be shorter than retry.critical.deadline",
        ),
        (
            "[ambiguity.bulk]\npolicy = { fax = \"hold\" }\n",
            "ambiguity.bulk.policy.fax (tidings.toml line 5): unknown setting; known here: email, sms, push",
        ),
        ("[accounts.two]\n", "accounts.two (tidings.toml line 4): accounts.two.kind is missing"),
        ("[accounts.two]\nkind = \"smpt\"\n", "accounts.two.kind (tidings.toml line 5): expected a kind of account: \"smtp\""),
        ("[accounts.Two]\nkind = \"smtp\"\n", "accounts.Two (tidings.toml line 4): an account's name is 1 to 40 characters of [a-z0-9-]"),
        ("[accounts.sandbox]\nkind = \"smtp\"\n", "accounts.sandbox (tidings.toml line 4): this name belongs to the built-in sandbox"),
    ] {
        assert_eq!(Given::file(&format!("{RELAY}{file}")).faults(), [fault]);
    }
}
