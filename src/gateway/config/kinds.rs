//! What an account's own settings are called, kind by kind, and how each is read: a variable is only a text until the type of
//! its setting is known. What they mean, and which are needed, is the adapter's business.

/// How a setting is read.
#[derive(Clone, Copy)]
pub(super) enum Form {
    Text,
    /// A text that another may stand in for where nothing is sent.
    Secret,
    Number,
    /// Relative to the configuration file.
    Path,
    Table(&'static [KindSetting]),
}

/// One setting of a kind.
pub(super) type KindSetting = (&'static str, Form);

/// Every kind.
pub(super) const KINDS: &[(&str, &[KindSetting])] = &[("smtp", SMTP)];

const SMTP: &[KindSetting] = &[
    ("host", Form::Text),
    ("port", Form::Number),
    ("tls", Form::Text),
    ("username", Form::Secret),
    ("password", Form::Secret),
    ("helo_name", Form::Text),
    ("return_path", Form::Text),
    ("ca_file", Form::Path),
    ("timeouts", Form::Table(SMTP_TIMEOUTS)),
    ("max_messages_per_connection", Form::Number),
    ("idle_timeout", Form::Text),
    ("max_size", Form::Text),
];

const SMTP_TIMEOUTS: &[KindSetting] =
    &[("connect", Form::Text), ("greeting", Form::Text), ("command", Form::Text), ("data", Form::Text), ("dot", Form::Text)];

/// The settings of a kind, if there is such a kind.
pub(super) fn settings_of(kind: &str) -> Option<&'static [KindSetting]> {
    KINDS.iter().find(|(name, _)| *name == kind).map(|(_, settings)| *settings)
}
