// SPDX-License-Identifier: MIT OR Apache-2.0
//! Partial rerolls: a version that has only some patches of the version before it. The rules are
//! those of b4, and also accept `v3.1`. Pure.

use super::{
    mail::Message,
    subject::{Subject, Version},
};
use std::collections::{BTreeMap, BTreeSet};

/// Most answers that are followed, and most versions: a hostile thread has endless ones.
const DEPTH: usize = 100;

/// Most pairs of messages that are compared by their titles.
const MOST_COMPARED: usize = 1_000_000;

/// Says what each message answers, for all messages, replies included.
pub struct Answers(BTreeMap<String, (Option<String>, Subject)>);

impl Answers {
    pub fn new(messages: &[Message]) -> Answers {
        let of = |message: &Message| {
            Some((message.id.clone()?, (message.answers.clone(), message.subject.clone())))
        };
        Answers(messages.iter().filter_map(of).collect())
    }

    /// True if the message answers, perhaps through others, the same patch of an older version.
    fn is_in_place(&self, message: &Message) -> bool {
        let mut at = message.answers.as_ref();
        for _ in 0..DEPTH {
            let Some((answers, subject)) = at.and_then(|id| self.0.get(id)) else { return false };
            let is_patch = !subject.reply && subject.version < message.subject.version;
            if is_patch && subject.count == message.subject.count {
                return true;
            }
            at = answers.as_ref();
        }
        false
    }
}

/// The numbers from 1 on that counted messages leave out, and their total. None if nothing is
/// counted, or not to one total.
fn missing(messages: &[Message]) -> Option<(Vec<usize>, usize)> {
    let counts = || messages.iter().filter_map(|message| message.subject.count);
    let (_, total) = counts().next()?;
    if !counts().all(|(_, other)| other == total) {
        return None;
    }
    let there: BTreeSet<usize> = counts().map(|(number, _)| number).collect();
    Some(((1..=total).filter(|number| !there.contains(number)).collect(), total))
}

/// Gives a `[PATCH v3.1]` without a number the number of the patch of `v3` with its title.
pub fn number(messages: &mut [Message]) {
    let mut known: BTreeMap<String, Vec<Subject>> = BTreeMap::new();
    for Message { subject, .. } in messages.iter() {
        let like = known.entry(subject.title.clone()).or_default();
        // A hostile thread has any number with one title.
        if like.len() < DEPTH {
            like.push(subject.clone());
        }
    }
    for message in messages.iter_mut().filter(|message| message.diff.is_some()) {
        let Subject { version, title, count, .. } = &message.subject;
        if version.minor == 0 || count.is_some() {
            continue;
        }
        let is_older =
            |old: &&Subject| old.version.major == version.major && old.version < *version;
        let like = known.get(title).into_iter().flatten().filter(is_older);
        let like: BTreeSet<(usize, usize)> = like.filter_map(|old| old.count).collect();
        if like.len() == 1 {
            message.subject.count = like.first().copied();
        }
    }
}

/// The patches, and perhaps the cover letter, of older versions that complete a version, if that
/// is a partial reroll. `older` loses them.
pub fn complete(
    version: &[Message],
    older: &mut Vec<Message>,
    answers: &Answers,
) -> Option<Vec<Message>> {
    complete_from(version, older, answers, DEPTH)
}

fn complete_from(
    version: &[Message],
    older: &mut Vec<Message>,
    answers: &Answers,
    depth: usize,
) -> Option<Vec<Message>> {
    let depth = depth.checked_sub(1)?;
    let (wanted, total) = missing(version).filter(|(wanted, _)| !wanted.is_empty())?;
    let last = older.iter().map(|message| message.subject.version).max()?;
    let is_last = |message: &Message| message.subject.version == last;
    let is_replacement = |message: &Message| {
        let Some((number, _)) = message.subject.count else { return false };
        let Version { major, minor } = message.subject.version;
        let has_title = |old: &Message| {
            is_last(old)
                && old.subject.count == message.subject.count
                && old.subject.title == message.subject.title
        };
        answers.is_in_place(message)
            || (number > 0 && minor > 0 && major == last.major)
            // Mails that were saved without their ids.
            || (number > 0 && message.id.is_none() && older.iter().any(has_title))
    };
    let is_too_much = version.len().saturating_mul(older.len()) > MOST_COMPARED;
    if is_too_much || !version.iter().all(is_replacement) {
        return None;
    }
    let mut previous: Vec<Message> = older.extract_if(.., |message| is_last(message)).collect();
    // The previous version can be a partial reroll, too.
    let before = complete_from(&previous, older, answers, depth);
    previous.extend(before.into_iter().flatten());
    let is_of = |message: &Message, number| {
        message.subject.count == Some((number, total)) && (number == 0 || message.diff.is_some())
    };
    let is_there = |number: &usize| previous.iter().any(|message| is_of(message, *number));
    if !wanted.iter().all(is_there) {
        older.append(&mut previous);
        return None;
    }
    let is_wanted = |message: &mut Message| {
        is_of(message, 0) || wanted.iter().any(|number| is_of(message, *number))
    };
    // All copies: two that differ are an error, as within a version.
    let kept = previous.extract_if(.., is_wanted).collect();
    older.append(&mut previous);
    Some(kept)
}
