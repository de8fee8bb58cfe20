//! `[categories.NAME]`, `[retry.CLASS]` and `[ambiguity.CLASS]` as the rules that core decides by.
//! What they lead to, and which contradict each other, is decided in `tidings_core::policy`.

use std::collections::{BTreeMap, HashMap};
use std::time::Duration;

use tidings_core::address::Mailbox;
use tidings_core::policy::{Ambiguity, CategoryRules, ClassRules, OnAmbiguous, OnKeyReuse, Retry, Rules};
use tidings_core::words::{Channel, Class};

use super::routes::{CATEGORY_RULE, is_label};
use super::table::Table;
use super::value::Setting;

/// Idempotency keys are kept 30 days, of which 14 are for replays and 7 for callers that come back late: what is left is the
/// longest time that a message may be tried (S-009).
const LONGEST_DEADLINE: Duration = Duration::from_secs(9 * 86_400);
const CLASSES: [(&str, Class); 3] = [("critical", Class::Critical), ("transactional", Class::Transactional), ("bulk", Class::Bulk)];
const ON_KEY_REUSE: [(&str, OnKeyReuse); 2] = [("refuse", OnKeyReuse::Refuse), ("first_wins", OnKeyReuse::FirstWins)];
const ON_AMBIGUOUS: [(&str, OnAmbiguous); 2] = [("resend", OnAmbiguous::Resend), ("hold", OnAmbiguous::Hold)];

pub(super) fn read(root: &Table<'_>, senders: &BTreeMap<String, Mailbox>) -> Rules {
    let mut rules = Rules { categories: root.table("categories", |table| categories(table, senders)), ..Rules::default() };
    let retries = root.table("retry", |table| CLASSES.map(|(name, class)| table.table(name, |table| retry(table, rules.of(class)))));
    let ambiguities =
        root.table("ambiguity", |table| CLASSES.map(|(name, class)| table.table(name, |table| ambiguity(table, rules.of(class)))));
    let classes = [&mut rules.critical, &mut rules.transactional, &mut rules.bulk];
    for ((class, retry), ambiguity) in classes.into_iter().zip(retries).zip(ambiguities) {
        *class = ClassRules { retry, ambiguity, ..*class };
    }
    // Where a value is wrong already, what it contradicts is noise.
    if root.reader.is_clean() {
        for contradiction in rules.contradictions() {
            // The first setting that it names is the one to look at.
            let setting = contradiction.split(' ').next().unwrap_or_default();
            root.reader.fault(setting, None, contradiction.clone());
        }
    }
    rules
}

fn retry(table: &Table<'_>, usual: &ClassRules) -> Retry {
    let usual = usual.retry;
    Retry {
        attempts: table.get("attempts").number(1..=1_000).unwrap_or(usual.attempts),
        deadline: deadline(&table.get("deadline")).unwrap_or(usual.deadline),
        base: table.get("base").duration().unwrap_or(usual.base),
        factor: table.get("factor").number(1..=100).unwrap_or(usual.factor),
        cap: table.get("cap").duration().unwrap_or(usual.cap),
        unreachable_cap: usual.unreachable_cap,
    }
}

/// How long a message may be tried.
fn deadline(setting: &Setting<'_>) -> Option<Duration> {
    let deadline = setting.duration()?;
    if deadline.is_zero() {
        setting.fault("must be longer than 0s");
    } else if deadline > LONGEST_DEADLINE {
        setting.fault("may be 9d at most: idempotency keys have to outlive it");
    }
    Some(deadline)
}

fn ambiguity(table: &Table<'_>, usual: &ClassRules) -> Ambiguity {
    let usual = usual.ambiguity;
    let timed = Ambiguity {
        patience: table.get("patience").duration().unwrap_or(usual.patience),
        hold: table.get("hold").duration().unwrap_or(usual.hold),
        ..usual
    };
    policy(table, timed)
}

/// A word for all channels, or a table that says otherwise for some.
fn policy(table: &Table<'_>, usual: Ambiguity) -> Ambiguity {
    let (word, tables) = table.get("policy").text_and_tables();
    let word = word.parsed("\"resend\" or \"hold\", or a table such as { email = \"resend\", sms = \"hold\" }", |text| text.parse().ok());
    let for_all = word.map_or(usual, |word| Ambiguity { email: word, sms: word, push: word, ..usual });
    let by_channel = tables.into_table();
    let on = |channel: &str, usual| by_channel.get(channel).word(&ON_AMBIGUOUS).unwrap_or(usual);
    let rules = Ambiguity { email: on("email", for_all.email), sms: on("sms", for_all.sms), push: on("push", for_all.push), ..for_all };
    by_channel.refuse_the_rest();
    rules
}

/// The channels of requests that name none.
fn channels(setting: &Setting<'_>) -> Vec<Channel> {
    let mut channels = Vec::new();
    for item in setting.items().unwrap_or_default() {
        match item.word(&[("email", Channel::Email)]) {
            Some(channel) if channels.contains(&channel) => item.fault("the channel is named twice"),
            Some(channel) => channels.push(channel),
            None => {}
        }
    }
    channels
}

fn categories(table: &Table<'_>, senders: &BTreeMap<String, Mailbox>) -> HashMap<String, CategoryRules> {
    let category = |name: String| {
        let rules = table.table(&name, |table| {
            if !is_label(&name) {
                table.fault(CATEGORY_RULE);
            }
            CategoryRules {
                class: table.get("class").word(&CLASSES),
                on_ambiguous: table.get("on_ambiguous").word(&ON_AMBIGUOUS),
                expires_in: deadline(&table.get("expires_in")),
                channels: channels(&table.get("channels")),
                on_key_reuse: table.get("on_key_reuse").word(&ON_KEY_REUSE).unwrap_or_default(),
                from: table.get("from").parsed("a mailbox or the name of a table [senders.NAME]", |text| {
                    (senders.contains_key(text) || text.parse::<Mailbox>().is_ok()).then(|| text.to_owned())
                }),
                is_sensitive: table.get("sensitive").flag().unwrap_or_default(),
            }
        });
        (name, rules)
    };
    table.names().into_iter().map(category).collect()
}
