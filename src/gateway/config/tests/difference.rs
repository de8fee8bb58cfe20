//! How two readings differ: by names, never by values.

use super::*;

fn between(before: &Given, after: &Given) -> Difference {
    after.load().difference(&before.load())
}

fn changed(before: &str, after: &str) -> Vec<String> {
    let difference = between(&Given::file(before), &Given::file(after));
    assert_eq!(difference.needs_restart, Vec::<String>::new());
    difference.changed
}

#[test]
fn the_same_reading_differs_in_nothing_however_it_is_written() {
    let rate = format!("{RELAY}rate = \"14/s\"\n");
    assert_eq!(changed(&rate, &format!("# a remark\n{rate}")), Vec::<String>::new());
    let spelled = Given::file(RELAY).variable("TIDINGS__ACCOUNTS__RELAY__RATE", "14/s");
    assert_eq!(between(&Given::file(&rate), &spelled), Difference::default());
    let given = Given::file(&rate);
    assert_eq!(between(&given, &given), Difference::default());
}

#[test]
fn settings_are_named_wherever_they_stand() {
    let timeouts = |dot: &str| format!("{RELAY}timeouts = {{ connect = \"5s\", dot = \"{dot}\" }}\n");
    assert_eq!(changed(&timeouts("1m"), &timeouts("2m")), ["accounts.relay.timeouts.dot"]);
    assert_eq!(
        changed(RELAY, &format!("{RELAY}concurrency = 4\n[retry.bulk]\nattempts = 3\n")),
        ["accounts.relay.concurrency", "retry.bulk.attempts"]
    );
    assert_eq!(
        changed("[limits]\ntenant_rate = \"5/s\"\nrecipients = 5\n", "[limits]\ntenant_rate = \"5/s\"\nrecipients = 4\n"),
        ["limits.recipients"]
    );
    let sends_as = |domains: &str| format!("{RELAY}sends_as = [{domains}]\n");
    assert_eq!(changed(&sends_as("\"a.example\", \"b.example\""), &sends_as("\"b.example\", \"a.example\"")), ["accounts.relay.sends_as"]);
    assert_eq!(
        changed("[ambiguity.bulk]\npolicy = \"resend\"\n", "[ambiguity.bulk]\npolicy = { email = \"resend\" }\n"),
        ["ambiguity.bulk.policy", "ambiguity.bulk.policy.email"]
    );
    // A table that says nothing declares a category all the same.
    assert_eq!(changed("", "[categories.receipt]\n"), ["categories.receipt"]);
}

#[test]
fn accounts_that_come_go_and_change_places_are_named() {
    let spare = "[accounts.spare]\nkind = \"smtp\"\nhost = \"127.0.0.2\"\n";
    let both = ["accounts.spare", "accounts.spare.host", "accounts.spare.kind"];
    assert_eq!(changed(RELAY, &format!("{RELAY}{spare}")), both);
    assert_eq!(changed(&format!("{RELAY}{spare}"), RELAY), both);
    // Without a route they are tried in the order of the file.
    assert_eq!(changed(&format!("{RELAY}{spare}"), &format!("{spare}{RELAY}")), ["accounts"]);
}

#[test]
fn a_secret_and_a_certificate_are_named_when_what_their_file_holds_is_another() {
    let file = format!("{RELAY}username = \"u\"\npassword = {{ file = \"password\" }}\nca_file = \"ca.pem\"\n");
    let given = |password: &str, ca: &str| Given::file(&file).and_file("password", password).and_file("ca.pem", ca);
    // The directories of the two readings have other names, and so has the path that the adapter gets.
    let before = given("old", "one");
    let read = before.load();
    let then = |name: &str, text: &str| {
        std::fs::write(before.under(name), text).unwrap();
        before.load().difference(&read)
    };
    assert_eq!(then("password", "old\n"), Difference::default());
    let difference = then("password", "hunter2");
    assert_eq!(difference.changed, ["accounts.relay.password"]);
    assert_eq!(then("ca.pem", "two").changed, ["accounts.relay.ca_file", "accounts.relay.password"]);
    assert!(!format!("{difference:?}{:?}", before.load()).contains("hunter2"));
    // The digest tells of certificates, and of secrets nothing.
    assert_ne!(before.load().digest(), read.digest());
    std::fs::write(before.under("ca.pem"), "one").unwrap();
    assert_eq!(before.load().digest(), read.digest());
}

#[test]
fn what_is_read_at_start_stays_until_then_and_everything_else_is_taken() {
    let in_force = Given::file("[log]\nlevel = \"info\"\n").load();
    let file = "[server]\nbind = \"127.0.0.1:9\"\nadmin_bind = \"127.0.0.1:10\"\ngrace = \"30s\"\ndata_dir = \"other\"\nroles = [\"intake\"]\n[store]\nmax_connections = 5\n\
                [secrets]\nmaster = \"AAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAA=\"\n[log]\nlevel = \"debug\"\nformat = \"json\"\n";
    let read = Given::file(file).load();
    let difference = read.difference(&in_force);
    assert_eq!(difference.changed, ["log.level", "server.grace"]);
    let expected =
        ["log.format", "secrets.master", "server.admin_bind", "server.bind", "server.data_dir", "server.roles", "store.max_connections"];
    assert_eq!(difference.needs_restart, expected);
    let taken = read.clone().taken_over(&in_force);
    assert_eq!((taken.server.bind, taken.server.admin_bind, taken.server.grace), (in_force.server.bind, None, seconds(30)));
    assert_eq!((taken.store.max_connections, taken.secrets.master.is_none()), (in_force.store.max_connections, true));
    assert!(taken.server.roles.is_all());
    assert_eq!((taken.log.format, taken.log.level), (LogFormat::Auto, LogLevel::Debug));
    // It is said again, as long as it is so.
    assert_eq!(read.difference(&taken), Difference { changed: Vec::new(), needs_restart: difference.needs_restart });
}
