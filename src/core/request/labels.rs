//! What the application calls things: category, channels, tags, metadata. None of it is shown to the person.

use crate::fault::{Fault, FaultCode, Faults};
use crate::json::Json;
use crate::nearest::nearest;
use crate::pointer::Pointer;
use crate::words::Channel;

use super::fields::{Fields, is_label, list, text, texts};

const MAX_TAGS: usize = 10;
const MAX_METADATA: usize = 20;
const MAX_METADATA_NAME: usize = 40;
const MAX_METADATA_VALUE: usize = 500;
pub(super) const MAX_REF: usize = 128;

pub(super) fn category(fields: &Fields<'_>, faults: &mut Faults) -> Option<String> {
    let name = fields.text("category", faults)?;
    if !is_label(name) {
        faults.add(&fields.at("category"), FaultCode::InvalidField, "a category is 1 to 64 characters of [A-Za-z0-9_.:-]");
    }
    Some(name.to_owned())
}

pub(super) fn channels(fields: &Fields<'_>, faults: &mut Faults) -> Vec<Channel> {
    let Some(value) = fields.get("channels") else { return Vec::new() };
    let at = fields.at("channels");
    if matches!(value, Json::List(items) if items.is_empty()) {
        faults.add(&at, FaultCode::InvalidField, "name at least one channel, or leave the field out");
    }
    let mut channels = Vec::new();
    for (position, item) in list(value, &at, faults).iter().enumerate() {
        let at = at.index(position);
        let Some(word) = text(item, &at, faults) else { continue };
        match channel(word) {
            Ok(channel) if channels.contains(&channel) => faults.add(&at, FaultCode::InvalidField, "the channel is named twice"),
            Ok(channel) => channels.push(channel),
            Err(why) => faults.add(&at, FaultCode::InvalidField, why),
        }
    }
    channels
}

fn channel(word: &str) -> Result<Channel, String> {
    match word.parse() {
        Ok(Channel::Email) => Ok(Channel::Email),
        Ok(Channel::Sms | Channel::Push) => Err("the channel is not available in this version of Tidings; \"email\" is".to_owned()),
        Err(_) => Err(match nearest(word, Channel::ALL.iter().map(|channel| channel.as_str())) {
            Some(known) => format!("there is no such channel; did you mean \"{known}\"?"),
            None => "there is no such channel; \"email\" is one".to_owned(),
        }),
    }
}

pub(super) fn tags(fields: &Fields<'_>, faults: &mut Faults) -> Vec<String> {
    let Some(value) = fields.get("tags") else { return Vec::new() };
    let at = fields.at("tags");
    let items = list(value, &at, faults);
    if items.len() > MAX_TAGS {
        faults.push(Fault::new(&at, FaultCode::InvalidField, format!("at most {MAX_TAGS} tags")).over(MAX_TAGS, items.len()));
        return Vec::new();
    }
    let mut tags: Vec<String> = Vec::with_capacity(items.len());
    for (position, item) in items.iter().enumerate() {
        let at = at.index(position);
        match text(item, &at, faults) {
            Some(tag) if !is_label(tag) => faults.add(&at, FaultCode::InvalidField, "a tag is 1 to 64 characters of [A-Za-z0-9_.:-]"),
            Some(tag) if tags.iter().any(|other| other == tag) => faults.add(&at, FaultCode::InvalidField, "the tag is given twice"),
            Some(tag) => tags.push(tag.to_owned()),
            None => {}
        }
    }
    tags
}

/// `metadata` of a notification or of a recipient, in the caller's order.
pub(super) fn metadata(fields: &Fields<'_>, faults: &mut Faults) -> Vec<(String, String)> {
    let Some(value) = fields.get("metadata") else { return Vec::new() };
    let at = fields.at("metadata");
    let pairs = texts(value, &at, faults);
    if pairs.len() > MAX_METADATA {
        faults.push(Fault::new(&at, FaultCode::InvalidField, format!("at most {MAX_METADATA} entries")).over(MAX_METADATA, pairs.len()));
        return Vec::new();
    }
    for (name, value) in &pairs {
        let at = at.name(name);
        if name.is_empty() {
            faults.add(&at, FaultCode::InvalidField, "a name has at least one character");
        }
        refuse_long(name, MAX_METADATA_NAME, "a name", &at, faults);
        refuse_long(value, MAX_METADATA_VALUE, "a value", &at, faults);
    }
    pairs.into_iter().map(|(name, value)| (name.to_owned(), value.to_owned())).collect()
}

/// `ref`: the application's own name for a person.
pub(super) fn reference(fields: &Fields<'_>, faults: &mut Faults) -> Option<String> {
    let reference = fields.text("ref", faults)?;
    let at = fields.at("ref");
    if reference.is_empty() || reference.chars().any(char::is_control) {
        faults.add(&at, FaultCode::InvalidField, format!("a ref is 1 to {MAX_REF} characters, none of them a control character"));
    }
    refuse_long(reference, MAX_REF, "a ref", &at, faults);
    Some(reference.to_owned())
}

fn refuse_long(text: &str, limit: usize, what: &str, at: &Pointer<'_>, faults: &mut Faults) {
    let actual = text.chars().count();
    if actual > limit {
        faults.push(Fault::new(at, FaultCode::InvalidField, format!("{what} has at most {limit} characters")).over(limit, actual));
    }
}
