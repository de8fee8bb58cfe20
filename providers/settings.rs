//! Reads a kind's own settings from JSON without ever repeating a value, since any of them may be a secret.

use std::time::Duration;

use serde::de::{DeserializeOwned, Error as _};
use serde::{Deserialize as _, Deserializer};
use serde_json::Value;
use tidings_core::time::parse_duration;

use crate::AccountError;

/// The settings in their type.
pub(crate) fn read<T: DeserializeOwned>(settings: Value) -> Result<T, AccountError> {
    serde_json::from_value(settings).map_err(|err| AccountError::Settings(without_values(&err.to_string())))
}

/// serde's message less the offending value: `invalid type: string "hunter2", expected u16` becomes `expected u16`.
fn without_values(message: &str) -> String {
    match message.starts_with("invalid ").then(|| message.rsplit_once(", expected ")).flatten() {
        Some((_, expected)) => format!("a setting has the wrong type: expected {expected}"),
        None => message.to_owned(),
    }
}

/// For fields such as `"10s"`.
pub(crate) fn duration<'de, D: Deserializer<'de>>(deserializer: D) -> Result<Duration, D::Error> {
    let raw = String::deserialize(deserializer)?;
    parse_duration(&raw).map_err(D::Error::custom)
}

/// For fields such as `"25MiB"`.
pub(crate) fn bytes<'de, D: Deserializer<'de>>(deserializer: D) -> Result<u64, D::Error> {
    let raw = String::deserialize(deserializer)?;
    let unit_at = raw.find(|c: char| !c.is_ascii_digit()).unwrap_or(raw.len());
    let (number, unit) = raw.split_at(unit_at);
    let scale: u64 = match unit {
        "KiB" => 1 << 10,
        "MiB" => 1 << 20,
        _ => return Err(D::Error::custom("not a size such as \"500KiB\" or \"25MiB\"")),
    };
    number
        .parse()
        .ok()
        .and_then(|number: u64| number.checked_mul(scale))
        .ok_or_else(|| D::Error::custom("not a size such as \"500KiB\" or \"25MiB\""))
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde::Deserialize;
    use serde_json::json;

    #[derive(Debug, Deserialize)]
    #[serde(deny_unknown_fields)]
    struct Sample {
        #[serde(deserialize_with = "duration")]
        wait: Duration,
        #[serde(deserialize_with = "bytes")]
        size: u64,
        #[allow(dead_code, reason = "only its type matters")]
        port: Option<u16>,
    }

    #[test]
    fn durations_and_sizes_are_texts() {
        let sample: Sample = read(json!({"wait": "90s", "size": "25MiB"})).unwrap();
        assert_eq!((sample.wait, sample.size), (Duration::from_secs(90), 25 << 20));
    }

    #[test]
    fn a_wrong_value_is_not_repeated() {
        for wrong in [
            json!({"wait": "1s", "size": "1MiB", "port": "hunter2"}),
            json!({"wait": "hunter2", "size": "1MiB"}),
            json!({"wait": 1, "size": 1}),
        ] {
            let said = read::<Sample>(wrong).unwrap_err().to_string();
            assert!(!said.contains("hunter2") && said.contains("expected") || said.contains("duration"), "{said}");
        }
    }
}
