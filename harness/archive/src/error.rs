// SPDX-License-Identifier: MIT OR Apache-2.0

use std::{
    io,
    path::{Path, PathBuf},
};
use tramplab_model::called::called;

#[derive(Debug, thiserror::Error)]
pub enum ArchiveError {
    #[error(
        "failed to check the signatures of Debian's archive: this host has neither sqv nor gpgv; \
         `{} doctor` prints the command that installs one",
        called()
    )]
    NoVerifier,
    #[error("failed to get package lists from {mirror}: no suite answered{}", lines(.messages))]
    Silent { mirror: String, messages: Vec<String> },
    #[error(
        "failed to find {wanted} in Debian's suites {}{}",
        .suites.join(", "), fetched(.messages)
    )]
    NotFound { wanted: String, suites: Vec<&'static str>, messages: Vec<String> },
    #[error("failed to read {path}: {source}; run again to fetch Debian's package lists")]
    Index { path: PathBuf, source: io::Error },
    #[error(
        "failed to find {wanted} in the pin of {snapshot}; it has {}; `kernels --pin` writes all",
        .pinned.join(", ")
    )]
    NotPinned { wanted: String, snapshot: String, pinned: Vec<String> },
    #[error("failed to pair Debian's {packages}: their versions are {versions}")]
    Apart { packages: String, versions: String },

    #[error("failed to verify {url}: it is no clear-signed text; use another mirror")]
    Unsigned { url: String },
    #[error(
        "failed to verify {url}: no key of Debian's archive signed it; use another mirror, or a \
         newer tramplab if Debian has new keys: {why}"
    )]
    Signature { url: String, why: String },
    #[error("failed to read {url}: no {field}; use another mirror")]
    Format { url: String, field: &'static str },
    #[error("failed to use {url}: it is the release file of {found}; use another mirror")]
    OtherSuite { url: String, found: String },
    #[error(
        "failed to use {url}: it has expired ({until}); check the clock, use another mirror, or \
         set apt's Acquire::Check-Valid-Until to false"
    )]
    Expired { url: String, until: String },
    #[error(
        "failed to use {url}: it is of {date}, older than the one seen before; use another mirror"
    )]
    Replayed { url: String, date: String },

    #[error(
        "failed to fetch {url}: {source}; check the network, http_proxy, https_proxy and \
         SSL_CERT_FILE"
    )]
    Fetch { url: String, source: Box<ureq::Error> },
    #[error("failed to fetch {url}: the server answered {status}")]
    Status { url: String, status: u16 },
    #[error("failed to fetch {url}: interrupted")]
    Stopped { url: String },
    #[error("failed to fetch {file}: no server has it{}", lines(.errors))]
    Nowhere { file: String, errors: Vec<ArchiveError> },
    #[error("failed to fetch {url}: it redirects to {to}, another host; use that mirror itself")]
    Redirect { url: String, to: String },
    #[error("failed to fetch {url}: expected {expected} bytes, and the server has {found}")]
    Size { url: String, expected: u64, found: u64 },
    #[error("failed to fetch {url}: it has more than the {most} bytes that it may have")]
    TooLong { url: String, most: u64 },
    #[error("failed to fetch {url}: it ends after {found} of {expected} bytes, at each attempt")]
    Truncated { url: String, expected: u64, found: u64 },
    #[error("failed to verify {url}: expected SHA-256 {expected}, found {found}; fetch it again")]
    Checksum { url: String, expected: String, found: String },

    #[error("failed to unpack {package}: {path:?} leads out of its folder")]
    Outside { package: String, path: PathBuf },
    #[error("failed to unpack {package}: {path:?} is neither a file, a folder nor a link")]
    Device { package: String, path: PathBuf },
    #[error("failed to unpack {package}: {path:?} is a hard link to {target:?}, a file left out")]
    Unwanted { package: String, path: PathBuf, target: PathBuf },
    #[error("failed to unpack {package}: {path:?} has more than {most} names")]
    Deep { package: String, path: PathBuf, most: usize },
    #[error("failed to unpack {package}: it has more than {most} MiB, or too many files")]
    TooBig { package: String, most: u64 },
    #[error("failed to unpack {package}: {why}")]
    Broken { package: String, why: io::Error },
    #[error("failed to {action} {path}: {source}")]
    Io { action: &'static str, path: PathBuf, source: io::Error },
}

impl ArchiveError {
    /// The indexes may be older than the archive: what they name is gone, or the package is new.
    pub fn may_be_stale(&self) -> bool {
        match self {
            ArchiveError::NotFound { .. }
            | ArchiveError::Index { .. }
            | ArchiveError::Apart { .. }
            | ArchiveError::Status { .. } => true,
            ArchiveError::Nowhere { errors, .. } => errors.iter().any(ArchiveError::may_be_stale),
            _ => false,
        }
    }

    /// An older version in the cache is no answer to this: a server sent other bytes than were
    /// signed or pinned, or the user interrupted.
    pub fn forbids_older(&self) -> bool {
        match self {
            ArchiveError::Checksum { .. } | ArchiveError::Stopped { .. } => true,
            ArchiveError::Nowhere { errors, .. } => errors.iter().any(ArchiveError::forbids_older),
            _ => false,
        }
    }

    /// Another server may have the file.
    pub(crate) fn is_of_server(&self) -> bool {
        !matches!(self, ArchiveError::Io { .. } | ArchiveError::Stopped { .. })
    }

    /// The same request may succeed at once.
    pub(crate) fn may_be_transient(&self) -> bool {
        matches!(
            self,
            ArchiveError::Fetch { .. }
                | ArchiveError::Truncated { .. }
                | ArchiveError::Status { status: 500.., .. }
        )
    }
}

fn lines(messages: &[impl ToString]) -> String {
    messages.iter().map(|message| format!("\n{}", message.to_string())).collect()
}

fn fetched(messages: &[String]) -> String {
    if messages.is_empty() {
        return String::new();
    }
    format!("\nsuites that could not be refreshed:{}", lines(messages))
}

pub(crate) fn io_error(
    action: &'static str,
    path: &Path,
) -> impl Fn(io::Error) -> ArchiveError + use<> {
    let path = path.to_owned();
    move |source| ArchiveError::Io { action, path: path.clone(), source }
}
