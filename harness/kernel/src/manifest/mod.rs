// SPDX-License-Identifier: MIT OR Apache-2.0
//! Kernel manifests: `kernels/NAME.yaml` describes the kernel NAME.

mod file;
#[cfg(test)]
mod tests;

use super::{KernelError, kconfig};
pub use file::parse;
use schemars::{JsonSchema, Schema, schema_for};
use serde::Deserialize;
use std::{
    fmt, fs,
    path::{Path, PathBuf},
    str::FromStr,
};
use tramplab_host::{config, debian::Pin};
use tramplab_model::{
    name::is_name_char,
    run::{Arch, Configuration},
};

/// A kernel for one architecture.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Manifest {
    /// The file's name without `.yaml`. Suites and cells use it on every architecture.
    pub name: String,
    pub arch: Arch,
    pub source: Source,
    /// The point of configuration axes that it was made for.
    pub configuration: Option<Configuration>,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Source {
    Debian {
        wanted: WantedKernel,
        pin: Option<Pin>,
    },
    Path {
        image: PathBuf,
        vmlinux: Option<PathBuf>,
        config: Option<PathBuf>,
    },
    Url {
        image: Download,
        config: Option<Download>,
    },
    /// Packages of any distribution with one kernel.
    Packages(Vec<Place>),
    Built(Recipe),
    /// The image of the kernel that runs on this machine, for guests. No file names it.
    Installed,
    /// The kernel that runs on this machine. No file names it.
    Running,
}

impl Source {
    /// True if it is an image or packages on this machine.
    pub fn is_here(&self) -> bool {
        match self {
            Source::Path { .. } | Source::Installed => true,
            Source::Packages(places) => places.iter().all(|place| matches!(place, Place::File(_))),
            _ => false,
        }
    }
}

/// A file that a manifest names.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Place {
    File(PathBuf),
    Url(Download),
}

/// How to build a kernel on this host.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Recipe {
    pub tree: Tree,
    pub toolchain: Toolchain,
    /// Configuration fragments to add to those in `configs/kconfig/`.
    pub config: Vec<PathBuf>,
    pub variation: Variation,
}

/// How a build differs from that of the kernel's own configuration.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Variation {
    /// Options after those of all fragments.
    pub options: Vec<kconfig::WantedOption>,
    /// Leaves the base in its build folder for others: the build starts from a copy.
    pub aside: bool,
    /// Kconfig's defaults may complete the options of the user's files.
    pub completes: bool,
    /// The commit on whose base it is built, if not on its own.
    pub starts_from: Option<String>,
    /// Suffix of the build folder's name, for configurations that share few objects with the
    /// kernel's own.
    pub folder: &'static str,
}

impl Manifest {
    /// True if both are one kernel, whatever their guests are.
    pub fn builds_as(&self, other: &Manifest) -> bool {
        (&self.source, self.arch) == (&other.source, other.arch)
    }
}

/// Where sources come from.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Tree {
    /// A commit of a repository. `repository` is a local folder or a URL.
    Git {
        repository: String,
        reference: String,
    },
    /// Debian's `linux-source-*`; [`NEWEST_SOURCE`] is the newest of all.
    DebianSource {
        package: String,
        version: Option<String>,
        pin: Option<Pin>,
    },
    TarballFile(PathBuf),
    TarballUrl(Download),
    /// A folder with its uncommitted changes.
    Folder(PathBuf),
}

/// `gcc`, `gcc-13`, `clang`, `clang-19`, `debian-13/gcc-14`.
#[derive(Clone, Debug, PartialEq, Eq, Hash, Deserialize, JsonSchema)]
#[serde(try_from = "String")]
#[schemars(with = "String", extend("pattern" = "^(debian-[0-9]{1,3}/)?(gcc|clang)(-[0-9]{1,3})?$"))]
pub struct Toolchain {
    /// The `debian-13` whose programs build; None for the host's.
    pub root: Option<String>,
    pub compiler: Compiler,
    /// The `13` of `gcc-13`; None for the system's default.
    pub version: Option<String>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, strum::Display, strum::EnumString)]
#[strum(serialize_all = "lowercase")]
pub enum Compiler {
    Gcc,
    Clang,
}

#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error(
    "no toolchain `{0}`: expected gcc or clang, perhaps with a version (gcc-13, clang-19), perhaps \
     of a Debian release (debian-13/gcc-14)"
)]
pub struct BadToolchain(String);

impl Default for Toolchain {
    fn default() -> Toolchain {
        Compiler::Gcc.into()
    }
}

/// The host's default one.
impl From<Compiler> for Toolchain {
    fn from(compiler: Compiler) -> Toolchain {
        Toolchain { root: None, compiler, version: None }
    }
}

impl FromStr for Toolchain {
    type Err = BadToolchain;

    fn from_str(text: &str) -> Result<Toolchain, BadToolchain> {
        let error = || BadToolchain(text.to_owned());
        let (root, rest) = match text.split_once('/') {
            Some((root, rest)) => (Some(root), rest),
            None => (None, text),
        };
        let (compiler, version) = match rest.split_once('-') {
            Some((compiler, version)) => (compiler, Some(version)),
            None => (rest, None),
        };
        let compiler = compiler.parse().map_err(|_| error())?;
        // The version becomes part of a program's name, the root that of a file.
        let is_number =
            |text: &str| (1..=3).contains(&text.len()) && text.chars().all(|c| c.is_ascii_digit());
        let is_root = |root: &str| root.strip_prefix("debian-").is_some_and(is_number);
        if !version.is_none_or(is_number) || !root.is_none_or(is_root) {
            return Err(error());
        }
        let (root, version) = (root.map(str::to_owned), version.map(str::to_owned));
        Ok(Toolchain { root, compiler, version })
    }
}

impl TryFrom<String> for Toolchain {
    type Error = BadToolchain;

    fn try_from(text: String) -> Result<Toolchain, BadToolchain> {
        text.parse()
    }
}

impl fmt::Display for Toolchain {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.root.as_ref().map_or(Ok(()), |root| write!(f, "{root}/"))?;
        write!(f, "{}", self.compiler)?;
        self.version.as_ref().map_or(Ok(()), |version| write!(f, "-{version}"))
    }
}

/// Selects one of Debian's kernels.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum WantedKernel {
    /// The newest kernel of a series, or of all series if `series` is None.
    Newest {
        series: Option<String>,
        flavour: String,
    },
    Package {
        name: String,
        version: Option<String>,
    },
}

#[derive(Clone, Debug, PartialEq, Eq, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Download {
    pub url: String,
    pub sha256: String,
}

/// The JSON Schema of a manifest.
pub fn schema() -> Schema {
    schema_for!(file::ManifestFile)
}

/// Reads a manifest file. Returns a manifest for each of its architectures.
pub fn load_manifest(path: &Path) -> Result<Vec<Manifest>, KernelError> {
    Ok(parse(&config::text(path)?, path)?)
}

/// Returns the names of the manifests in a folder, sorted.
pub fn names(folder: &Path) -> Vec<String> {
    let name = |path: PathBuf| {
        let stem = path.file_stem()?.to_str()?.to_owned();
        (path.extension()? == "yaml").then_some(stem)
    };
    let entries = fs::read_dir(folder).into_iter().flatten().flatten();
    let mut names: Vec<_> = entries.filter_map(|entry| name(entry.path())).collect();
    names.sort();
    names
}

/// Checks a repository, which is a URL or a folder. Makes a folder relative to `folder`.
pub(super) fn repository_of(text: &str, folder: &Path) -> Result<String, String> {
    const SCHEMES: [&str; 5] = ["https", "http", "git", "ssh", "file"];
    let plain = !text.is_empty() && !text.chars().any(char::is_control);
    match text.split_once("://") {
        Some((scheme, rest))
            if plain && SCHEMES.contains(&scheme) && !rest.is_empty() && !rest.starts_with('-') =>
        {
            Ok(text.to_owned())
        }
        None if plain => Ok(folder.join(text).to_str().expect("made of texts").to_owned()),
        _ => Err(format!(
            "expected a folder, or a URL that starts with one of {}://",
            SCHEMES.join("://, ")
        )),
    }
}

/// Rejects references that git would take for an option and those with control characters.
pub(super) fn check_reference(text: &str) -> Result<(), &'static str> {
    if text.is_empty() || text.starts_with('-') || text.chars().any(char::is_control) {
        return Err("expected a branch, a tag or a commit, such as v6.12");
    }
    Ok(())
}

/// Debian's package that depends on the newest `linux-source-*`.
pub const NEWEST_SOURCE: &str = "linux-source";

pub(super) fn is_source_package(name: &str) -> bool {
    name == NEWEST_SOURCE || name.strip_prefix("linux-source-").is_some_and(is_series)
}

pub(super) fn is_version(text: &str) -> bool {
    text.starts_with(|c: char| c.is_ascii_digit())
        && text.chars().all(|c| c.is_ascii_alphanumeric() || ".+~:-".contains(c))
}

/// Returns the kernel release of a Debian package:
/// `linux-image-6.12.107+deb13-cloud-amd64-unsigned` holds `6.12.107+deb13-cloud-amd64`.
pub fn release_of(package: &str) -> Option<&str> {
    let release = ["linux-binary-unsigned-", "linux-binary-", "linux-image-"]
        .iter()
        .find_map(|prefix| package.strip_prefix(prefix))?;
    let release = release.strip_suffix("-unsigned").unwrap_or(release);
    release.starts_with(|c: char| c.is_ascii_digit()).then_some(release)
}

pub(super) fn is_series(text: &str) -> bool {
    let number = |part: &str| !part.is_empty() && part.chars().all(|c| c.is_ascii_digit());
    text.split_once('.').is_some_and(|(major, minor)| number(major) && number(minor))
}

pub(crate) fn is_name(text: &str) -> bool {
    !text.is_empty() && !text.starts_with('.') && text.chars().all(is_name_char)
}
