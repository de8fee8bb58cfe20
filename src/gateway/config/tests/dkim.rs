//! Keys that sign.

use super::*;

const FIXTURES: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/../../tests/fixtures/dkim");

fn pem(name: &str) -> String {
    std::fs::read_to_string(format!("{FIXTURES}/{name}.pem")).unwrap()
}

#[test]
fn keys_stand_elsewhere_and_give_the_records_to_publish() {
    let given = Given::file(
        "[dkim.\"Shop.Example.com\"]\nselectors = [{ selector = \"S1\", key = { file = \"a.pem\" } }, { selector = \"s2\", key = { env = \"B\" } }]\n",
    );
    let given = given.and_file("a.pem", &pem("rsa-pkcs1")).variable("B", &pem("ed25519"));
    let settings = given.load();
    let records = settings.dkim.records();
    assert_eq!(
        records.iter().map(|record| record.name.as_str()).collect::<Vec<_>>(),
        ["s1._domainkey.shop.example.com", "s2._domainkey.shop.example.com"]
    );
    assert!(records[0].txt.starts_with("v=DKIM1; k=rsa; p=MII") && records[1].txt.starts_with("v=DKIM1; k=ed25519; p="));
    assert!(settings.dkim.signs("shop.example.com") && !settings.dkim.signs("example.com"));
    assert!(!format!("{settings:?}").contains("PRIVATE"));
    let other = given.and_file("a.pem", &pem("rsa-pkcs8")).load();
    assert_ne!(settings.digest(), other.digest());
}

#[test]
fn what_cannot_sign_is_named_with_its_domain_and_never_repeated() {
    let faults = |selectors: &str| {
        let given = Given::file(&format!("[dkim.\"example.com\"]\nselectors = {selectors}\n"));
        given
            .and_file("short.pem", &pem("rsa-1024"))
            .and_file("good.pem", &pem("ed25519"))
            .and_file("no.pem", "hunter2")
            .faults()
            .join("\n")
    };
    let good = "{ selector = \"s1\", key = { file = \"good.pem\" } }";
    for (selectors, said) in [
        ("[{ selector = \"s1\", key = { file = \"short.pem\" } }]", "neither RSA with 2048"),
        ("[{ selector = \"s1\", key = { file = \"no.pem\" } }]", "expected an unencrypted private key in PEM"),
        ("[{ selector = \"s 1\", key = { file = \"good.pem\" } }]", "expected a label such as"),
        ("[{ selector = \"s1\" }]", "key is missing"),
        ("[{ key = { file = \"good.pem\" } }]", "selector is missing"),
        ("[{ selektor = \"s1\", key = { file = \"good.pem\" } }]", "did you mean dkim.\"example.com\".selectors.selector?"),
        ("[]", "an empty list signs nothing"),
        (&format!("[{good}, {good}]"), "stands there twice"),
    ] {
        let faults = faults(selectors);
        assert!(faults.contains(said) && faults.starts_with("dkim.\"example.com\".selectors"), "{selectors}: {faults}");
        assert!(!faults.contains("hunter2"), "{faults}");
    }
    assert!(Given::file("[dkim.\"not a domain\"]\n").faults()[0].contains("the domain of the author"));
}
