// SPDX-License-Identifier: MIT OR Apache-2.0
//! Fetches a series by message-id: b4 finds the whole thread on lore.kernel.org and saves it.

use std::{
    ffi::{OsStr, OsString},
    io,
    path::Path,
    process::Command,
    time::Duration,
};
use tramplab_host::{ChildError, child, packages::install_line};

/// b4 asks lore.kernel.org, its mirrors, and DNS for the senders' keys.
const LIMIT: Duration = Duration::from_secs(180);

#[derive(Debug, thiserror::Error)]
pub enum B4Error {
    #[error(
        "failed to get the thread of {0}: b4 is not installed; install it ({line}, or pipx install \
         b4), or save the thread's mbox from lore.kernel.org and pass that file",
        line = install_line(&["b4"])
    )]
    Missing(String),
    #[error("failed to get the thread of {id}: {source}")]
    Child { id: String, source: Box<ChildError> },
    #[error("failed to get the thread of {id}: b4 found no series there:\n{output}")]
    Nothing { id: String, output: String },
    #[error("failed to make a folder for b4: {0}")]
    Folder(#[from] io::Error),
}

/// Extracts a message-id that is bare, in `<>`, or in a URL of a public archive. Returns None if
/// there is none.
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
    // Accepts only the characters of real ids, so that b4 cannot take it for anything else.
    let fits = |text: &str| {
        !text.is_empty()
            && text
                .bytes()
                .all(|byte| byte.is_ascii_alphanumeric() || b"!#$&'*+-=^_.{}~".contains(&byte))
    };
    (id.len() <= 250 && fits(left) && fits(right) && !id.starts_with('-')).then_some(id)
}

/// b4's arguments. A maildir, because an mbox is ambiguous about where a message ends. Replies'
/// trailers do not matter.
pub fn arguments(id: &str, folder: &Path) -> Vec<OsString> {
    let words = ["--no-interactive", "am", "--save-as-maildir", "--no-add-trailers", "--outdir"];
    let words = words.into_iter().map(OsStr::new).chain([
        folder.as_os_str(),
        OsStr::new("--"),
        OsStr::new(id),
    ]);
    words.map(OsStr::to_owned).collect()
}

/// Makes b4 save the newest version of a message's series into a folder.
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
    fn recognizes_message_ids() {
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
    fn passes_id_as_last_argument() {
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
