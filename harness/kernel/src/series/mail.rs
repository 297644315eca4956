// SPDX-License-Identifier: MIT OR Apache-2.0
//! Turns bytes into messages: mboxes, single mails and bare diffs. Pure; any input gives messages
//! or an error.

use super::{
    b4::message_id,
    subject::{self, Subject},
};
use mailparse::{MailHeaderMap, MailParseError, ParsedMail};

/// A message, as far as a series needs it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Message {
    /// The file, and the message's number within it.
    pub origin: String,
    /// Its message-id, without angle brackets.
    pub id: Option<String>,
    /// The message-id of the message that it answers.
    pub answers: Option<String>,
    pub subject: Subject,
    /// The unified diff, from its first line on, with Unix line ends. None if the message has none
    /// or is a reply.
    pub diff: Option<Vec<u8>>,
    /// The value of the trailer `base-commit:`.
    pub base_commit: Option<String>,
    /// The values of the trailers `prerequisite-patch-id:`: stable patch-ids of patches that the
    /// tree must have.
    pub prerequisites: Vec<String>,
}

#[derive(Debug, thiserror::Error)]
pub enum MailError {
    #[error("it is not a mail: {0}")]
    Parse(#[from] MailParseError),
    #[error("{0} of its parts have a diff; expected one: save the right one as a file")]
    SeveralDiffs(usize),
}

/// Returns the messages of a file: an mbox, a mail, or a bare diff as one message without a
/// subject.
pub fn messages(bytes: &[u8], origin: &str) -> Result<Vec<Message>, (String, MailError)> {
    if !bytes.starts_with(b"From ") {
        let message = if is_mail(bytes) { mail(bytes, origin) } else { Ok(bare(bytes, origin)) };
        return message.map(|message| vec![message]).map_err(|error| (origin.to_owned(), error));
    }
    let split = split(bytes);
    let single = split.len() == 1;
    let name =
        |index| if single { origin.to_owned() } else { format!("{origin}, message {}", index + 1) };
    let read = |(index, bytes)| mail(bytes, &name(index)).map_err(|error| (name(index), error));
    split.into_iter().enumerate().map(read).collect()
}

/// Splits an mbox into messages without their `From ` lines. A line of a log message that begins
/// with `From ` has no time.
fn split(mbox: &[u8]) -> Vec<&[u8]> {
    let mut messages = Vec::new();
    let (mut start, mut at) = (0, 0);
    for line in mbox.split_inclusive(|byte| *byte == b'\n') {
        if at == 0 || is_separator(line) {
            messages.push(&mbox[start..at]);
            start = at + line.len();
        }
        at += line.len();
    }
    messages.push(&mbox[start..]);
    // Nothing precedes the first separator.
    messages.remove(0);
    messages
}

/// Matches `From WHO … HH:MM:SS YEAR`, as git does.
fn is_separator(line: &[u8]) -> bool {
    let Some(rest) = line.strip_prefix(b"From ") else { return false };
    let Ok(rest) = std::str::from_utf8(rest) else { return false };
    let words: Vec<_> = rest.split_ascii_whitespace().collect();
    words.windows(2).any(|pair| {
        let time = pair[0].split(':').collect::<Vec<_>>();
        let digits =
            |text: &&str| !text.is_empty() && text.bytes().all(|byte| byte.is_ascii_digit());
        time.len() == 3 && time.iter().all(digits) && pair[1].len() == 4 && digits(&pair[1])
    })
}

/// True if the bytes begin with mail headers that include a subject.
fn is_mail(bytes: &[u8]) -> bool {
    let mut subject = false;
    for line in bytes.split(|byte| *byte == b'\n') {
        if line.is_empty() || line == b"\r" {
            return subject;
        }
        let name = line.split(|byte| *byte == b':').next().unwrap_or_default();
        let field = name.len() < line.len()
            && !name.is_empty()
            && name.iter().all(|byte| byte.is_ascii_alphanumeric() || *byte == b'-');
        if !field && !line.starts_with(b" ") && !line.starts_with(b"\t") {
            return false;
        }
        subject |= field && name.eq_ignore_ascii_case(b"subject");
    }
    subject
}

fn bare(bytes: &[u8], origin: &str) -> Message {
    let diff = find_diff(bytes).map(|at| unix_lines(&bytes[at..]));
    Message {
        origin: origin.to_owned(),
        id: None,
        answers: None,
        subject: subject::parse(""),
        diff,
        base_commit: base_commit(bytes),
        prerequisites: prerequisites(bytes),
    }
}

fn mail(bytes: &[u8], origin: &str) -> Result<Message, MailError> {
    let mail = mailparse::parse_mail(bytes)?;
    let subject = subject::parse(&mail.headers.get_first_value("Subject").unwrap_or_default());
    let id_in = |header: &str| {
        let value = mail.headers.get_first_value(header);
        value.as_deref().and_then(message_id).map(str::to_owned)
    };
    let mut message = Message {
        origin: origin.to_owned(),
        id: id_in("Message-ID"),
        answers: id_in("In-Reply-To"),
        subject,
        diff: None,
        base_commit: None,
        prerequisites: Vec::new(),
    };
    // A reply's diff is a quotation or a suggestion, not part of the series.
    if message.subject.reply {
        return Ok(message);
    }
    let mut diffs = 0;
    for part in mail.parts() {
        if !part.subparts.is_empty()
            || matches!(&*part.ctype.mimetype, "text/html" | "message/rfc822")
        {
            continue;
        }
        let body = body(part)?;
        message.base_commit = message.base_commit.or_else(|| base_commit(&body));
        message.prerequisites.extend(prerequisites(&body));
        if let Some(at) = find_diff(&body) {
            diffs += 1;
            message.diff = Some(unix_lines(&body[at..]));
        }
    }
    if diffs > 1 { Err(MailError::SeveralDiffs(diffs)) } else { Ok(message) }
}

/// Returns the decoded body as bytes. As in `git am`, the character set is left alone: a diff has
/// the character set of the files it changes.
fn body(part: &ParsedMail<'_>) -> Result<Vec<u8>, MailError> {
    let body = part.get_body_raw()?;
    let format = part.ctype.params.get("format");
    let flowed = format.is_some_and(|format| format.eq_ignore_ascii_case("flowed"));
    if !flowed {
        return Ok(body);
    }
    // RFC 3676: a line that began with a space gets one more; a line that ends with a space
    // continues in the next.
    let delete =
        part.ctype.params.get("delsp").is_some_and(|delete| delete.eq_ignore_ascii_case("yes"));
    let mut whole = Vec::with_capacity(body.len());
    for line in body.split_inclusive(|byte| *byte == b'\n') {
        let line = line.strip_prefix(b" ").unwrap_or(line);
        let text = line.strip_suffix(b"\n").map(|line| line.strip_suffix(b"\r").unwrap_or(line));
        match text {
            Some(text) if text.ends_with(b" ") && text != b"-- " => {
                whole.extend_from_slice(&text[..text.len() - usize::from(delete)]);
            }
            _ => whole.extend_from_slice(line),
        }
    }
    Ok(whole)
}

/// Returns the offset of the diff, which begins with `diff --git`, or with `---` and `+++` lines.
fn find_diff(text: &[u8]) -> Option<usize> {
    let mut at = 0;
    let mut lines = text.split_inclusive(|byte| *byte == b'\n').peekable();
    while let Some(line) = lines.next() {
        let plain =
            line.starts_with(b"--- ") && lines.peek().is_some_and(|next| next.starts_with(b"+++ "));
        if plain || line.starts_with(b"diff --git ") {
            return Some(at);
        }
        at += line.len();
    }
    None
}

/// Undoes a conversion to DOS line ends. If the first line has it, the whole diff was converted, as
/// many times as that line ends with a carriage return. Otherwise the lines of a DOS file keep
/// their ends.
fn unix_lines(diff: &[u8]) -> Vec<u8> {
    let lines = || diff.split(|byte| *byte == b'\n');
    let added = |line: &[u8]| line.iter().rev().take_while(|byte| **byte == b'\r').count();
    let conversions = lines().next().map_or(0, added);
    if conversions == 0 {
        return diff.to_vec();
    }
    let kept = |line: &[u8]| line.len() - conversions.min(added(line));
    lines().map(|line| &line[..kept(line)]).collect::<Vec<_>>().join(&b'\n')
}

fn base_commit(text: &[u8]) -> Option<String> {
    ids_after(b"base-commit:", text).next()
}

fn prerequisites(text: &[u8]) -> Vec<String> {
    ids_after(b"prerequisite-patch-id:", text).collect()
}

/// The ids that lines with this trailer name.
fn ids_after<'a>(trailer: &'a [u8], text: &'a [u8]) -> impl Iterator<Item = String> + 'a {
    text.split(|byte| *byte == b'\n').filter_map(|line| {
        let id = std::str::from_utf8(line.strip_prefix(trailer)?).ok()?.trim();
        let fits = matches!(id.len(), 12..=64) && id.bytes().all(|byte| byte.is_ascii_hexdigit());
        fits.then(|| id.to_ascii_lowercase())
    })
}
