//! What is shipped beside the binary fits it: Dockerfile, compose file, unit, manifest.

#![allow(clippy::unwrap_used, reason = "a story that meets the unexpected has failed")]

use std::process::{Command, Stdio};

const ROOT: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/../..");

fn has(command: &str, arguments: &[&str]) -> bool {
    Command::new(command).args(arguments).stdout(Stdio::null()).stderr(Stdio::null()).status().is_ok_and(|status| status.success())
}

#[test]
fn the_packaging_files_name_settings_commands_and_ports_that_there_are() {
    // Debian's packages belong to Debian's interpreter, which need not be the first one.
    let Some(python) = ["python3", "/usr/bin/python3"].into_iter().find(|python| has(python, &["-c", "import yaml"])) else {
        assert!(std::env::var_os("REQUIRE_PACKAGING").is_none(), "python3-yaml is not installed");
        eprintln!("skipped: python3-yaml is not installed");
        return;
    };
    let checked = Command::new(python).arg(format!("{ROOT}/packaging/check.py")).arg(env!("CARGO_BIN_EXE_tidings")).output().unwrap();
    assert!(checked.status.success(), "{}{}", String::from_utf8_lossy(&checked.stdout), String::from_utf8_lossy(&checked.stderr));
}

#[test]
fn systemd_can_read_the_unit() {
    if !has("systemd-analyze", &["--version"]) {
        assert!(std::env::var_os("REQUIRE_PACKAGING").is_none(), "systemd is not installed");
        eprintln!("skipped: systemd is not installed");
        return;
    }
    // The program is elsewhere here than it will be.
    let directory = tempfile::tempdir().unwrap();
    let unit = std::fs::read_to_string(format!("{ROOT}/packaging/tidings.service")).unwrap();
    let path = directory.path().join("tidings.service");
    std::fs::write(&path, unit.replace("/usr/bin/tidings", env!("CARGO_BIN_EXE_tidings"))).unwrap();
    let verified = Command::new("systemd-analyze").arg("verify").arg(&path).output().unwrap();
    let said = String::from_utf8_lossy(&verified.stderr).into_owned();
    let of_ours: Vec<&str> = said.lines().filter(|line| line.contains("tidings.service")).collect();
    assert!(of_ours.is_empty(), "{of_ours:?}");
}
