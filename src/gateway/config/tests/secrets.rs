//! Texts that stand elsewhere.

use super::*;

#[test]
fn secrets_are_taken_byte_for_byte_from_wherever_they_stand() {
    let secret = " pa$$w\"o'r&d #! {x} ";
    let relay = |reference: &str| format!("{RELAY}username = \"u\"\npassword = {reference}\n");
    let credentials = tempfile::tempdir().unwrap();
    std::fs::write(credentials.path().join("smtp"), format!("{secret}\n")).unwrap();
    for given in [
        Given::file(&relay("{ env = \"SMTP_PASSWORD\" }")).variable("SMTP_PASSWORD", secret),
        Given::file(&relay("{ file = \"password\" }")).and_file("password", secret),
        Given::file(&relay("{ file = \"password\" }")).and_file("password", &format!("{secret}\n")),
        Given::file(&relay("{ credential = \"smtp\" }")).variable("CREDENTIALS_DIRECTORY", credentials.path().to_str().unwrap()),
        Given::file(&relay("\"below\"")).variable("TIDINGS__ACCOUNTS__RELAY__PASSWORD", secret),
        Given::file(&relay("{ env = \"GONE\" }"))
            .variable("TIDINGS__ACCOUNTS__RELAY__PASSWORD__FILE", "password")
            .and_file("password", secret),
    ] {
        // A variable's relative path is relative to the working directory, which here is the file's.
        let settings = given.load();
        assert_eq!(settings.accounts[0].settings["password"], secret);
        assert!(!format!("{settings:?}").contains("pa$$"));
    }
    let two = Given::file(&relay("{ file = \"password\" }")).and_file("password", "two\n\n");
    assert_eq!(two.load().accounts[0].settings["password"], "two\n");
}

#[test]
fn a_missing_secret_is_a_fault_with_setting_and_source_unless_the_file_is_only_looked_at() {
    for (reference, why) in [
        ("{ env = \"SMTP_PASSWORD\" }", "the variable SMTP_PASSWORD is not set"),
        ("{ credential = \"smtp\" }", "the credential smtp cannot be read: CREDENTIALS_DIRECTORY is not set"),
        ("{ file = \"gone\" }", "the file gone cannot be read: No such file or directory (os error 2)"),
    ] {
        let given = Given::file(&format!("{RELAY}username = \"u\"\npassword = {reference}\n"));
        assert_eq!(given.faults(), [format!("accounts.relay.password (tidings.toml line 5): {why}")]);
        let settings = given.offline().load();
        assert_eq!(settings.unresolved, [format!("accounts.relay.password: {why}")]);
        assert_eq!(check(&settings), []);
    }
}

#[test]
fn a_secret_that_is_there_and_no_good_is_always_a_fault() {
    for (reference, why) in [
        ("{ env = \"EMPTY\" }", "the variable EMPTY is empty"),
        ("{ credential = \"../etc/passwd\" }", "the credential ../etc/passwd is not a plain name"),
        ("{ env = \"A\", file = \"b\" }", "expected a text, or { env = \"..\" }, { file = \"..\" } or { credential = \"..\" }"),
        ("{ enw = \"A\" }", "expected a text, or { env = \"..\" }, { file = \"..\" } or { credential = \"..\" }"),
        ("12", "expected a text, or { env = \"..\" }, { file = \"..\" } or { credential = \"..\" }"),
    ] {
        let given = Given::file(&format!("{RELAY}username = \"u\"\npassword = {reference}\n")).variable("EMPTY", "").offline();
        assert_eq!(given.faults(), [format!("accounts.relay.password (tidings.toml line 5): {why}")]);
    }
}

#[test]
fn no_fault_repeats_a_secret() {
    let file = "[store]\nurl = \"hunter2://x\"\n[secrets]\nmaster = \"hunter2\"\n[bootstrap]\napi_key = \"tdk_live_hunter2\"\n\
                [accounts.relay]\nkind = \"smtp\"\nhost = \"h\"\npassword = [\"hunter2\"]\nport = \"hunter2\"\n";
    let faults = Given::file(file).faults();
    assert_eq!(faults.len(), 5, "{faults:#?}");
    assert!(!faults.concat().contains("hunter2"), "{faults:#?}");
}
