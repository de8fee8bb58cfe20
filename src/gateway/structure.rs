//! S-018: nothing but an adapter opens a connection to a provider, and nothing but the dispatcher and the test of an account
//! calls an adapter. This looks at what the crates depend on and at their text: it proves where the doors are, the stories of
//! dispatching prove who stands at them.

use std::collections::BTreeSet;
use std::path::{Path, PathBuf};

/// Crates by which a process can speak to another one over the network, the databases' drivers aside.
const SPEAKING: &[&str] = &["reqwest", "hyper", "lettre", "awc", "ureq", "rustls", "tokio-rustls", "native-tls", "tidings-providers"];
/// Words without which nobody opens a connection.
const CONNECTING: &[&str] = &["reqwest", "hyper::", "awc::", "lettre", "tokio_rustls", "TcpStream", "TcpSocket", "UdpSocket", "UnixStream"];

fn root() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../..").canonicalize().unwrap()
}

/// The crates of `[dependencies]`, and of those for some platforms alone.
fn dependencies(krate: &str) -> BTreeSet<String> {
    let manifest = std::fs::read_to_string(root().join(krate).join("Cargo.toml")).unwrap();
    let manifest: toml::Table = manifest.parse().unwrap();
    let all =
        manifest.get("target").and_then(toml::Value::as_table).into_iter().flat_map(toml::Table::values).filter_map(toml::Value::as_table);
    all.chain([&manifest]).filter_map(|part| part.get("dependencies")?.as_table()).flat_map(toml::Table::keys).cloned().collect()
}

/// The sources of a folder that are not tests, by their path in it.
fn sources(folder: &str) -> Vec<(String, String)> {
    let (folder, mut found) = (root().join(folder), Vec::new());
    let mut folders = vec![folder.clone()];
    while let Some(next) = folders.pop() {
        for path in std::fs::read_dir(next).unwrap().map(|entry| entry.unwrap().path()) {
            let name = path.strip_prefix(&folder).unwrap().to_str().unwrap().to_owned();
            if path.is_dir() && !matches!(path.file_name().and_then(|name| name.to_str()), Some("tests" | "target" | "examples")) {
                folders.push(path);
            } else if name.ends_with(".rs") && !name.ends_with("tests.rs") && name != "structure.rs" {
                let text = std::fs::read_to_string(path).unwrap();
                let code = text.lines().filter(|line| !line.trim_start().starts_with("//")).map(str::trim);
                found.push((name, code.collect::<String>()));
            }
        }
    }
    found
}

fn holding(sources: &[(String, String)], words: &[&str]) -> Vec<String> {
    let mut names: Vec<_> =
        sources.iter().filter(|(_, code)| words.iter().any(|word| code.contains(word))).map(|(name, _)| name.clone()).collect();
    names.sort();
    names
}

#[test]
fn no_crate_beside_the_providers_can_speak_to_one() {
    for krate in ["src/core", "src/store-sqlite", "src/store-postgres", "webhooks"] {
        let speaking: Vec<_> = dependencies(krate).into_iter().filter(|name| SPEAKING.contains(&name.as_str())).collect();
        assert_eq!(speaking, Vec::<String>::new(), "{krate}");
        assert_eq!(holding(&sources(krate), CONNECTING), Vec::<String>::new(), "{krate}");
    }
    assert!(dependencies("src/gateway").contains("tidings-providers") && !sources("src/core").is_empty());
}

/// The command line speaks to a server of Tidings.
#[test]
fn the_gateway_opens_connections_in_its_command_line_alone() {
    let gateway = sources("src/gateway");
    let opening = holding(&gateway, CONNECTING);
    assert!(opening.iter().all(|name| name.starts_with("cli/")) && !opening.is_empty(), "{opening:?}");
}

#[test]
fn adapters_are_called_by_the_dispatcher_and_the_test_of_an_account_alone() {
    let gateway = sources("src/gateway");
    assert_eq!(holding(&gateway, &["adapter.send(", "Adapter::send("]), ["api/accounts.rs", "dispatch.rs"]);
}
