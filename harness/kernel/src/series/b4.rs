// SPDX-License-Identifier: MIT OR Apache-2.0
//! Series by message-id: b4 finds the whole thread on lore.kernel.org and saves it.

use std::{
    ffi::{OsStr, OsString},
    io,
    path::Path,
    process::Command,
    time::Duration,
};
use tramplab_host::{ChildError, child};

/// It asks lore.kernel.org, its mirrors and the DNS keys of the senders.
const LIMIT: Duration = Duration::from_secs(180);

#[derive(Debug, thiserror::Error)]
pub enum B4Error {
    #[error(
        "failed to get the thread of {0}: b4 is not installed; run `apt install b4` or `pipx install b4`, or save \
         the thread's mbox from lore.kernel.org and give its file"
    )]
    Missing(String),
    #[error("failed to get the thread of {id}: {source}")]
    Child { id: String, source: Box<ChildError> },
    #[error("failed to get the thread of {id}: b4 found no series there:\n{output}")]
    Nothing { id: String, output: String },
    #[error("failed to make a folder for b4: {0}")]
    Folder(#[from] io::Error),
}

/// The message-id that a user means: bare, in `<>`, or in a URL of a public archive. None when it is none.
pub fn message_id(spec: &str) -> Option<&str> {
    let spec = spec.trim();
    let id = match spec.split_once("://") {
        // https://lore.kernel.org/bpf/ID/T/#u, https://patch.msgid.link/ID
        Some(("https" | "http", rest)) => {
            let (host, path) = rest.split_once('/')?;
            let known = ["lore.kernel.org", "lkml.kernel.org", "patch.msgid.link"].contains(&host);
            path.split('/').find(|part| known && part.contains('@'))?
        }
        Some(_) => return None,
        None => spec.strip_prefix('<').and_then(|spec| spec.strip_suffix('>')).unwrap_or(spec),
    };
    let id = id.split(['?', '#']).next()?;
    let (left, right) = id.split_once('@')?;
    // As strict as the ids of mail programs are: nothing that b4 would take for something else.
    let fits = |text: &str| {
        !text.is_empty()
            && text.bytes().all(|byte| byte.is_ascii_alphanumeric() || b"!#$&'*+-=^_.{}~".contains(&byte))
    };
    (id.len() <= 250 && fits(left) && fits(right) && !id.starts_with('-')).then_some(id)
}

/// b4's arguments. A maildir, as an mbox leaves open where a message ends; the trailers of replies do not matter.
pub fn arguments(id: &str, folder: &Path) -> Vec<OsString> {
    let words = ["--no-interactive", "am", "--save-as-maildir", "--no-add-trailers", "--outdir"];
    let words =
        words.into_iter().map(OsStr::new).chain([folder.as_os_str(), OsStr::new("--"), OsStr::new(id)]);
    words.map(OsStr::to_owned).collect()
}

/// Has b4 save the newest version of the series of a message into a folder.
pub fn fetch(id: &str, folder: &Path) -> Result<String, B4Error> {
    let mut command = Command::new("b4");
    command.args(arguments(id, folder)).current_dir(folder);
    let output = child::run(&mut command, LIMIT).map_err(|source| match &source {
        ChildError::Start { source: why, .. } if why.kind() == io::ErrorKind::NotFound => {
            B4Error::Missing(id.to_owned())
        }
        _ => B4Error::Child { id: id.to_owned(), source: Box::new(source) },
    })?;
    Ok(output.stderr)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn message_ids_are_told_from_all_else() {
        let id = "20260101-fix-v2-0-0123456789ab@kernel.org";
        for spec in [
            id.to_owned(),
            format!(" <{id}> "),
            format!("https://lore.kernel.org/bpf/{id}/"),
            format!("https://lore.kernel.org/r/{id}"),
            format!("https://lore.kernel.org/all/{id}/T/#u"),
            format!("https://patch.msgid.link/{id}?x"),
        ] {
            assert_eq!(message_id(&spec), Some(id), "{spec}");
        }
        for spec in [
            "6.12",
            "a b@c",
            "-o@x",
            "--outdir=/@x",
            "@x",
            "x@",
            "a@b@c",
            "a/b@c",
            "<a@b",
            "a%2f@b",
            "a\n@b",
            "https://example.com/a@b",
            "file:///a@b",
            "https://lore.kernel.org/bpf/",
        ] {
            assert_eq!(message_id(spec), None, "{spec}");
        }
    }

    #[test]
    fn the_id_is_the_last_argument_and_no_option() {
        let expected = [
            "--no-interactive",
            "am",
            "--save-as-maildir",
            "--no-add-trailers",
            "--outdir",
            "/tmp/x y",
            "--",
            "a@b",
        ];
        assert_eq!(arguments("a@b", Path::new("/tmp/x y")), expected);
    }
}
