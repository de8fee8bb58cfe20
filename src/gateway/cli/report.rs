//! How findings about a configuration are shown. What is found is decided in `config`.

use std::fmt;

use serde::Serialize;
use tidings_providers::dkim::DnsRecord;

use crate::config::{self, ConfigError, Finding, Settings, Severity, Shares};

/// What `tidings check` has to say.
#[derive(Serialize)]
pub(super) struct Report {
    findings: Vec<Finding>,
    /// How messages are shared out, where routes have weights.
    shares: Vec<Shares>,
    /// Secrets that were not there and did not have to be.
    unresolved: Vec<String>,
    /// TXT records without which nobody believes what is signed.
    dns: Vec<DnsRecord>,
}

/// The most that one string of a TXT record holds.
const TXT_STRING: usize = 255;

/// A TXT record in the form of a zone file, in several strings where one is too short.
fn zone_line(record: &DnsRecord) -> String {
    let strings = record.txt.as_bytes().chunks(TXT_STRING).map(|piece| format!("\"{}\"", String::from_utf8_lossy(piece)));
    format!("{}. TXT {}", record.name, strings.collect::<Vec<_>>().join(" "))
}

impl Report {
    pub(super) fn of(loaded: Result<Settings, ConfigError>) -> Self {
        match loaded {
            Ok(settings) => Self {
                findings: config::check(&settings),
                shares: settings.shares(),
                dns: settings.dkim.records(),
                unresolved: settings.unresolved,
            },
            Err(err) => Self {
                findings: err.faults.into_iter().map(Finding::from).collect(),
                shares: Vec::new(),
                unresolved: Vec::new(),
                dns: Vec::new(),
            },
        }
    }

    pub(super) fn worst(&self) -> Option<Severity> {
        self.findings.iter().map(|finding| finding.severity).max()
    }

    pub(super) fn to_json(&self) -> String {
        serde_json::to_string_pretty(self).expect("texts and words always have a JSON form")
    }
}

impl fmt::Display for Report {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for entry in &self.unresolved {
            writeln!(f, "skipped  {entry}")?;
        }
        for finding in &self.findings {
            let word = match finding.severity {
                Severity::Warning => "warning",
                Severity::Fault => "fault  ",
            };
            writeln!(f, "{word}  {finding}")?;
        }
        for shares in &self.shares {
            writeln!(f, "shares   {shares}")?;
        }
        for record in &self.dns {
            writeln!(f, "publish  {}", zone_line(record))?;
        }
        let count = |severity| self.findings.iter().filter(|finding| finding.severity == severity).count();
        match (count(Severity::Fault), count(Severity::Warning)) {
            (0, 0) => f.write_str("the configuration is fine"),
            (faults, warnings) => write!(f, "faults: {faults}, warnings: {warnings}"),
        }
    }
}

/// Logs warnings at start.
///
/// # Errors
/// The faults: it must not run like this.
pub(super) fn warn(findings: &[Finding]) -> Result<(), ConfigError> {
    let faults: Vec<_> = findings.iter().filter(|finding| finding.severity == Severity::Fault).map(Finding::as_fault).collect();
    for finding in findings.iter().filter(|finding| finding.severity == Severity::Warning) {
        tracing::warn!(setting = finding.setting, "{}", finding.text);
    }
    if faults.is_empty() { Ok(()) } else { Err(ConfigError { faults }) }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn finding(severity: Severity) -> Finding {
        Finding { severity, setting: "server.bind".to_owned(), source: None, text: "is odd".to_owned() }
    }

    #[test]
    fn the_worst_finding_decides_and_each_is_shown_with_its_setting() {
        let report = |findings| Report { findings, shares: vec![], unresolved: vec![], dns: vec![] };
        assert_eq!(report(vec![]).worst(), None);
        assert_eq!(report(vec![]).to_string(), "the configuration is fine");
        let both = report(vec![finding(Severity::Fault), finding(Severity::Warning)]);
        assert_eq!(both.worst(), Some(Severity::Fault));
        assert_eq!(both.to_string(), "fault    server.bind: is odd\nwarning  server.bind: is odd\nfaults: 1, warnings: 1");
        assert!(both.to_json().contains("\"severity\": \"fault\""));
    }

    #[test]
    fn a_long_record_is_shown_in_strings_that_a_zone_file_takes() {
        let record = DnsRecord { name: "s1._domainkey.example.com".to_owned(), txt: "x".repeat(300) };
        let (first, second) = ("x".repeat(255), "x".repeat(45));
        assert_eq!(zone_line(&record), format!("s1._domainkey.example.com. TXT \"{first}\" \"{second}\""));
    }

    #[test]
    fn a_fault_keeps_the_service_from_starting_and_a_warning_does_not() {
        assert!(warn(&[finding(Severity::Warning)]).is_ok());
        assert_eq!(warn(&[finding(Severity::Fault), finding(Severity::Warning)]).unwrap_err().faults.len(), 1);
    }
}
