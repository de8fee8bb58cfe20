//! The closed vocabularies: one word per thing in Rust, SQL, JSON and logs.
//! What the words mean for a delivery is decided in `state`, `outcome` and `policy`.

/// Declares an enum whose variants have one fixed spelling everywhere.
macro_rules! words {
    ($(#[$meta:meta])* $vis:vis enum $name:ident { $($(#[$vmeta:meta])* $variant:ident = $word:literal,)+ }) => {
        $(#[$meta])*
        #[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
        #[allow(missing_docs, reason = "the word says it")]
        $vis enum $name { $($(#[$vmeta])* $variant,)+ }

        impl $name {
            /// Every variant, in the order of declaration.
            pub const ALL: &'static [Self] = &[$(Self::$variant,)+];

            /// The word that stands for the variant in SQL, JSON and logs.
            pub const fn as_str(self) -> &'static str {
                match self { $(Self::$variant => $word,)+ }
            }
        }

        impl ::core::fmt::Display for $name {
            fn fmt(&self, f: &mut ::core::fmt::Formatter<'_>) -> ::core::fmt::Result {
                f.write_str(self.as_str())
            }
        }

        impl ::core::str::FromStr for $name {
            type Err = $crate::words::UnknownWord;
            fn from_str(raw: &str) -> Result<Self, Self::Err> {
                match raw { $($word => Ok(Self::$variant),)+ _ => Err($crate::words::UnknownWord(raw.to_owned())) }
            }
        }

        impl ::serde::Serialize for $name {
            fn serialize<S: ::serde::Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
                serializer.serialize_str(self.as_str())
            }
        }

        impl<'de> ::serde::Deserialize<'de> for $name {
            fn deserialize<D: ::serde::Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
                let raw = <::std::borrow::Cow<'de, str> as ::serde::Deserialize>::deserialize(deserializer)?;
                raw.parse().map_err(|_| ::serde::de::Error::unknown_variant(&raw, &[$($word,)+]))
            }
        }
    };
}
pub(crate) use words;

/// A word that the vocabulary does not hold; a store row with one comes from a newer binary (S-231).
#[derive(Debug, thiserror::Error)]
#[error("unknown word {0:?}")]
pub struct UnknownWord(pub String);

words! {
    /// The medium a delivery travels by.
    pub enum Channel { Email = "email", Sms = "sms", Push = "push", }
}

words! {
    /// How urgent a delivery is; fixed when the intent is created (S-080).
    pub enum Class { Critical = "critical", Transactional = "transactional", Bulk = "bulk", }
}

words! {
    /// `test` goes to the sandbox and counts nowhere; the two never see each other.
    pub enum Mode { Live = "live", Test = "test", }
}

impl Mode {
    /// The number stored in `mode` columns.
    pub const fn as_i16(self) -> i16 {
        match self {
            Self::Live => 0,
            Self::Test => 1,
        }
    }

    /// The mode stored as `raw`; anything but 0 is `test`, so that an unknown value never sends.
    pub const fn from_i16(raw: i16) -> Self {
        match raw {
            0 => Self::Live,
            _ => Self::Test,
        }
    }
}

words! {
    /// Why a delivery is in its state; open list for clients, closed here.
    pub enum Reason {
        HardBounce = "hard_bounce", SoftBounce = "soft_bounce", MailboxFull = "mailbox_full",
        DomainNotFound = "domain_not_found", Blocked = "blocked", RecipientRefused = "recipient_refused",
        ContentRefused = "content_refused", RequestRefused = "request_refused", SenderRefused = "sender_refused",
        TooLarge = "too_large", TokenInvalid = "token_invalid", Suppressed = "suppressed",
        ProviderSuppressed = "provider_suppressed", Preference = "preference", Deadline = "deadline", Late = "late",
        QuietHours = "quiet_hours", AttemptsExhausted = "attempts_exhausted", Poison = "poison",
        RenderError = "render_error", RecipientRate = "recipient_rate", SpendCap = "spend_cap",
        DestinationNotAllowed = "destination_not_allowed", NoAccount = "no_account", Collapsed = "collapsed",
        DuplicateCause = "duplicate_cause", CancelledByRequest = "cancelled_by_request",
        CancelledByOperator = "cancelled_by_operator", EarlierHopSucceeded = "earlier_hop_succeeded",
        Erased = "erased", Discarded = "discarded", HoldOver = "hold_over",
        ResolvedNotSent = "resolved_not_sent",
        Expired = "expired", Cancelled = "cancelled", Refused = "refused",
    }
}

words! {
    /// Why a waiting delivery is not on its way; computed when it is read, never stored.
    pub enum WaitReason {
        Scheduled = "scheduled", Backoff = "backoff", Rate = "rate", DailyCap = "daily_cap", Breaker = "breaker",
        Paused = "paused", Credential = "credential", RetryBudget = "retry_budget", Order = "order",
        QuietHours = "quiet_hours", Digest = "digest", Policy = "policy", NoAccount = "no_account",
        Tenant = "tenant", Held = "held",
    }
}

words! {
    /// What became of one call to a provider, as attempts show it.
    pub enum AttemptOutcome {
        InFlight = "in_flight", Accepted = "accepted", AcceptedAgain = "accepted_again", NotStarted = "not_started",
        NotSent = "not_sent", Throttled = "throttled", RecipientRefused = "recipient_refused",
        ContentRefused = "content_refused", RequestRefused = "request_refused", SenderRefused = "sender_refused",
        Credential = "credential", Ambiguous = "ambiguous", Lost = "lost",
    }
}

impl AttemptOutcome {
    /// Whether the account refused a message for itself alone, so that another one may take it.
    pub const fn refused_here(self) -> bool {
        // An open delivery has no other refusals behind it: those of its recipient or content have ended it.
        matches!(self, Self::SenderRefused | Self::RequestRefused)
    }
}
