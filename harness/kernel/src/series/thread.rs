// SPDX-License-Identifier: MIT OR Apache-2.0
//! Turns messages in any order into the ordered patches of one series. Pure.

use super::{
    Patch, diff,
    mail::Message,
    reroll::{self, Answers},
    subject::Version,
};
use std::collections::{BTreeMap, BTreeSet};
use tramplab_model::{run::PatchIds, text::line};

/// More than any real series has.
pub const MOST_PATCHES: usize = 1000;
/// The same of all its versions together.
const MOST_DIFFS: usize = 10 * MOST_PATCHES;

/// A series as read from its messages.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Thread {
    pub title: Option<String>,
    pub base_commit: Option<String>,
    /// The message-id of the cover letter.
    pub cover: Option<String>,
    pub patches: Vec<Patch>,
    /// Patch-ids of patches that the tree must have, as the messages name them.
    pub prerequisites: Vec<String>,
    pub notes: Vec<String>,
}

#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum ThreadError {
    #[error(
        "none of its {messages} messages is a patch (replies: {replies}); expected messages with a \
         subject `[PATCH …]` and a diff, as `git format-patch` writes them"
    )]
    NoPatch { messages: usize, replies: usize },
    #[error(
        "{} missing{}; {}",
        numbers(.missing, *.total), of_version(*.version), remedy(*.version, *.older)
    )]
    Missing {
        version: Version,
        total: usize,
        missing: Vec<usize>,
        /// The version before it, if that is there.
        older: Option<Version>,
    },
    #[error(
        "patch {number} appears twice with different diffs{}: {first} and {second}; remove one",
        of_version(*.version)
    )]
    Twice { version: Version, number: usize, first: String, second: String },
    #[error(
        "two series in one: {first} counts to {first_total}, {second} to {second_total}; put each \
         into its own file"
    )]
    TwoSeries { first: String, first_total: usize, second: String, second_total: usize },
    #[error("{origin} is numbered patch {number} of {total}; expected 0 to {total}")]
    Count { origin: String, number: usize, total: usize },
    #[error(
        "{origin} ({}) is a patch of the series by its subject but has no diff{}",
        line(.title), hint(.title)
    )]
    NoDiff { origin: String, title: String },
    #[error("{0} patches; expected at most {MOST_PATCHES}")]
    TooMany(usize),
}

fn numbers(numbers: &[usize], total: usize) -> String {
    let shown = numbers.iter().take(8).map(ToString::to_string).collect::<Vec<_>>().join(", ");
    let more = if numbers.len() > 8 { ", …" } else { "" };
    match numbers {
        [_] => format!("patch {shown} of {total} is"),
        _ => format!("patches {shown}{more} of {total} are"),
    }
}

fn of_version(version: Version) -> String {
    if version > Version::FIRST { format!(" in version {version}") } else { String::new() }
}

fn remedy(version: Version, older: Option<Version>) -> String {
    let whole = "get the whole thread with `b4 am`, or as an mbox from lore.kernel.org";
    match older {
        None => whole.to_owned(),
        Some(older) => format!(
            "version {older} is there too, but nothing shows that version {version} replaces some \
             of its patches: {whole}, or save the patches that you mean as files and list them in \
             a `series` file"
        ),
    }
}

fn hint(title: &str) -> &'static str {
    let pull = title.to_ascii_lowercase().contains("pull");
    if pull { "; pass the patches, not a pull request" } else { "; its message may be truncated" }
}

/// Picks the newest version of the series and orders its patches. Skips replies.
pub fn collect(messages: Vec<Message>) -> Result<Thread, ThreadError> {
    let total = messages.len();
    let diffs = messages.iter().filter(|message| message.diff.is_some()).count();
    if diffs > MOST_DIFFS {
        return Err(ThreadError::TooMany(diffs));
    }
    let answers = Answers::new(&messages);
    let (replies, mut messages): (Vec<_>, Vec<_>) =
        messages.into_iter().partition(|message| message.subject.reply);
    let mut notes = Vec::new();
    if let Some(first) = replies.first() {
        let count = if replies.len() == 1 {
            "a reply".to_owned()
        } else {
            format!("{} replies", replies.len())
        };
        notes.push(format!("left out {count}, with what they quote: from {} on", first.origin));
    }
    let mut skip = |messages: &mut Vec<Message>, why: &str, keep: &dyn Fn(&Message) -> bool| {
        messages.retain(|message| {
            let kept = keep(message);
            if !kept {
                let title = line(&message.subject.title);
                notes.push(format!("left out {} ({title}): {why}", message.origin));
            }
            kept
        });
    };

    if messages.iter().any(|message| message.subject.patch) {
        skip(&mut messages, "its subject has no [PATCH]", &|message| message.subject.patch);
    }
    reroll::number(&mut messages);
    let newest = messages.iter().map(|message| message.subject.version).max();
    let newest = newest.unwrap_or(Version::FIRST);
    let (mut messages, mut older): (Vec<_>, Vec<_>) =
        messages.into_iter().partition(|message| message.subject.version == newest);
    let previous = older.iter().map(|message| message.subject.version).max();
    let kept = reroll::complete(&messages, &mut older, &answers).unwrap_or_default();
    skip(&mut older, &format!("version {newest} is there too"), &|_| false);
    if messages.iter().any(|message| message.subject.count.is_some()) {
        skip(&mut messages, "the others are counted and it is not", &|message| {
            message.subject.count.is_some()
        });
    }
    let uncounted = |message: &Message| message.subject.count.is_none() && message.diff.is_none();
    skip(&mut messages, "it has no diff", &|message| !uncounted(message));

    for message in kept.iter().filter(|message| message.diff.is_some()) {
        notes.push(format!(
            "version {newest} is a partial reroll: patch {} ({}) is of version {}",
            message.subject.count.map_or(0, |(number, _)| number),
            line(&message.subject.title),
            message.subject.version,
        ));
    }
    messages.extend(kept);
    let counted = messages.first().is_some_and(|message| message.subject.count.is_some());
    let (cover, patches) =
        if counted { in_order(messages, newest, previous)? } else { (None, messages) };
    if patches.is_empty() {
        return Err(ThreadError::NoPatch { messages: total, replies: replies.len() });
    }
    if patches.len() > MOST_PATCHES {
        return Err(ThreadError::TooMany(patches.len()));
    }
    let base_commit = cover.iter().chain(&patches).find_map(|message| message.base_commit.clone());
    let prerequisites: BTreeSet<String> = cover
        .iter()
        .chain(&patches)
        .flat_map(|message| message.prerequisites.iter().cloned())
        .collect();
    let title = match (&cover, &*patches) {
        (Some(cover), _) => Some(cover.subject.title.clone()),
        (None, [only]) => Some(only.subject.title.clone()),
        _ => None,
    };
    // format-patch's placeholder is no title.
    let title = title.filter(|title| !title.is_empty() && title != "*** SUBJECT HERE ***");
    let patch = |(index, message): (usize, Message)| Patch {
        number: index + 1,
        ids: PatchIds { message_id: message.id, patch_id: None },
        subject: message.subject.title,
        origin: message.origin,
        strip: message.diff.as_deref().map_or(1, diff::strip),
        diff: message.diff.unwrap_or_default(),
        reversed: false,
        touched: Vec::new(),
    };
    let patches = patches.into_iter().enumerate().map(patch).collect();
    let cover = cover.and_then(|cover| cover.id);
    let prerequisites = prerequisites.into_iter().collect();
    Ok(Thread { title, base_commit, cover, patches, prerequisites, notes })
}

/// Orders numbered messages. Returns the cover letter, if there is one, and all patches from 1 to
/// the last.
fn in_order(
    messages: Vec<Message>,
    version: Version,
    older: Option<Version>,
) -> Result<(Option<Message>, Vec<Message>), ThreadError> {
    let mut by_number: BTreeMap<usize, Message> = BTreeMap::new();
    let mut first: Option<(String, usize)> = None;
    for message in messages {
        let Some((number, total)) = message.subject.count else { continue };
        let origin = message.origin.clone();
        let (first_origin, first_total) = first.get_or_insert((origin.clone(), total));
        if *first_total != total {
            return Err(ThreadError::TwoSeries {
                first: first_origin.clone(),
                first_total: *first_total,
                second: origin,
                second_total: total,
            });
        }
        if number > total {
            return Err(ThreadError::Count { origin, number, total });
        }
        if number > 0 && message.diff.is_none() {
            return Err(ThreadError::NoDiff { origin, title: message.subject.title });
        }
        match by_number.get(&number) {
            // The message was sent twice, or to two lists.
            Some(other) if number == 0 || other.diff == message.diff => {}
            Some(other) => {
                return Err(ThreadError::Twice {
                    version,
                    number,
                    first: other.origin.clone(),
                    second: origin,
                });
            }
            None => {
                by_number.insert(number, message);
            }
        }
    }
    let total = first.map_or(0, |(_, total)| total);
    let there: BTreeSet<_> = by_number.keys().copied().collect();
    let missing: Vec<_> = (1..=total).filter(|number| !there.contains(number)).collect();
    if !missing.is_empty() {
        return Err(ThreadError::Missing { version, total, missing, older });
    }
    Ok((by_number.remove(&0), by_number.into_values().collect()))
}
