//! The rules of layering, spelling and reading, each by example: what the examples have in common.

use std::time::Duration;

use super::*;

mod defaults;
mod difference;
mod dkim;
mod faults;
mod layering;
mod meaning;
mod secrets;

/// A working directory with files in it, and an environment.
struct Given {
    directory: tempfile::TempDir,
    sources: Sources,
}

impl Given {
    fn nothing() -> Self {
        let directory = tempfile::tempdir().unwrap();
        let sources = Sources {
            config: None,
            directory: directory.path().to_owned(),
            variables: BTreeMap::new(),
            missing_secrets: MissingSecrets::AreFaults,
        };
        Self { directory, sources }
    }

    /// `tidings.toml` in the working directory.
    fn file(text: &str) -> Self {
        Self::nothing().and_file("tidings.toml", text)
    }

    fn and_file(self, name: &str, text: &str) -> Self {
        let path = self.directory.path().join(name);
        std::fs::create_dir_all(path.parent().unwrap()).unwrap();
        std::fs::write(path, text).unwrap();
        self
    }

    fn variable(mut self, name: &str, value: &str) -> Self {
        self.sources.variables.insert(name.into(), value.into());
        self
    }

    fn named(mut self, path: &str) -> Self {
        self.sources.config = Some(path.into());
        self
    }

    fn offline(mut self) -> Self {
        self.sources.missing_secrets = MissingSecrets::AreTolerated;
        self
    }

    fn load(&self) -> Settings {
        load(&self.sources).unwrap()
    }

    /// Every fault as people see it, without the directory's random name.
    fn faults(&self) -> Vec<String> {
        let directory = format!("{}/", self.directory.path().display());
        let faults = load(&self.sources).unwrap_err().faults;
        faults.iter().map(|fault| fault.to_string().replace(&directory, "")).collect()
    }

    fn under(&self, path: &str) -> PathBuf {
        self.directory.path().join(path)
    }
}

const RELAY: &str = "[accounts.relay]\nkind = \"smtp\"\nhost = \"127.0.0.1\"\n";

/// The accounts of a class in order.
fn named(settings: &Settings, class: tidings_core::words::Class) -> Vec<String> {
    settings.route(&Via::Main, class).into_iter().map(|entry| entry.account).collect()
}

fn seconds(seconds: u64) -> Duration {
    Duration::from_secs(seconds)
}
