// SPDX-License-Identifier: MIT OR Apache-2.0
//! Kernel manifests: `kernels/NAME.yaml` describes the kernel NAME.

use super::KernelError;
use serde::{
    Deserialize, Deserializer,
    de::{self, SeqAccess, Visitor},
};
use std::{
    fmt, fs,
    path::{Path, PathBuf},
    str::FromStr,
};
use tramplab_host::{
    apt::debian_architecture,
    config::{self, ConfigError, Spanned},
};
use tramplab_model::{name::is_name_char, run::Arch};

/// A kernel for one architecture.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Manifest {
    /// The file's name without `.yaml`. Suites and cells use it on every architecture.
    pub name: String,
    pub arch: Arch,
    pub source: Source,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Source {
    Debian { wanted: Wanted },
    Path { image: PathBuf, vmlinux: Option<PathBuf>, config: Option<PathBuf> },
    Url { image: Download, config: Option<Download> },
    Built(Recipe),
}

/// How to build a kernel on this host.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Recipe {
    pub tree: Tree,
    pub toolchain: Toolchain,
    /// Configuration fragments to add to those in `configs/kconfig/`.
    pub config: Vec<PathBuf>,
}

/// Where sources come from.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Tree {
    /// A commit of a repository. `repository` is a local folder or a URL.
    Git {
        repository: String,
        reference: String,
    },
    /// Debian's `linux-source-*`.
    DebianSource {
        package: String,
        version: Option<String>,
    },
    TarballFile(PathBuf),
    TarballUrl(Download),
    /// A folder with its uncommitted changes.
    Folder(PathBuf),
}

/// `gcc`, `gcc-13`, `clang`, `clang-19`.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Toolchain {
    pub compiler: Compiler,
    /// The `13` of `gcc-13`; None for the host's default.
    pub version: Option<String>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Compiler {
    Gcc,
    Clang,
}

#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("no toolchain `{0}`: expected gcc or clang, perhaps with a version: gcc-13, clang-19")]
pub struct BadToolchain(String);

impl Default for Toolchain {
    fn default() -> Toolchain {
        Toolchain { compiler: Compiler::Gcc, version: None }
    }
}

impl FromStr for Toolchain {
    type Err = BadToolchain;

    fn from_str(text: &str) -> Result<Toolchain, BadToolchain> {
        let error = || BadToolchain(text.to_owned());
        let (compiler, version) = match text.split_once('-') {
            Some((compiler, version)) => (compiler, Some(version)),
            None => (text, None),
        };
        let compiler = match compiler {
            "gcc" => Compiler::Gcc,
            "clang" => Compiler::Clang,
            _ => return Err(error()),
        };
        // The version becomes part of a program's name.
        let is_number =
            |text: &str| (1..=3).contains(&text.len()) && text.chars().all(|c| c.is_ascii_digit());
        if version.is_some_and(|version| !is_number(version)) {
            return Err(error());
        }
        Ok(Toolchain { compiler, version: version.map(str::to_owned) })
    }
}

impl fmt::Display for Toolchain {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self.compiler {
            Compiler::Gcc => "gcc",
            Compiler::Clang => "clang",
        })?;
        self.version.as_ref().map_or(Ok(()), |version| write!(f, "-{version}"))
    }
}

/// Selects one of Debian's kernels.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Wanted {
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

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
struct ManifestFile {
    arch: Spanned<Arches>,
    debian: Option<Spanned<DebianFields>>,
    path: Option<Spanned<PathFields>>,
    url: Option<Spanned<UrlFields>>,
    git: Option<Spanned<GitFields>>,
    #[serde(rename = "debian-source")]
    debian_source: Option<Spanned<DebianSourceFields>>,
    tarball: Option<Spanned<TarballFields>>,
    toolchain: Option<Spanned<String>>,
    config: Option<Spanned<Vec<PathBuf>>>,
}

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
struct DebianFields {
    series: Option<Spanned<String>>,
    flavour: Option<Spanned<String>>,
    package: Option<Spanned<String>>,
    version: Option<Spanned<String>>,
}

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
struct PathFields {
    image: Option<Spanned<PathBuf>>,
    vmlinux: Option<Spanned<PathBuf>>,
    config: Option<Spanned<PathBuf>>,
    source: Option<Spanned<PathBuf>>,
}

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
struct GitFields {
    repository: Spanned<String>,
    #[serde(rename = "ref")]
    reference: Spanned<String>,
}

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
struct DebianSourceFields {
    package: Spanned<String>,
    version: Option<Spanned<String>>,
}

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
struct TarballFields {
    path: Option<Spanned<PathBuf>>,
    url: Option<Spanned<String>>,
    sha256: Option<Spanned<String>>,
}

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
struct UrlFields {
    image: Spanned<String>,
    sha256: Spanned<String>,
    config: Option<ConfigFields>,
}

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
struct ConfigFields {
    url: Spanned<String>,
    sha256: Spanned<String>,
}

/// One architecture or a list of them.
#[derive(Debug)]
struct Arches(Vec<Arch>);

impl<'de> Deserialize<'de> for Arches {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Arches, D::Error> {
        struct OneOrMore;

        impl<'de> Visitor<'de> for OneOrMore {
            type Value = Arches;

            fn expecting(&self, f: &mut fmt::Formatter) -> fmt::Result {
                write!(f, "an architecture, or a list of them: {}", Arch::ALL.map(Arch::name).join(", "))
            }

            fn visit_str<E: de::Error>(self, name: &str) -> Result<Arches, E> {
                Ok(Arches(vec![name.parse().map_err(E::custom)?]))
            }

            fn visit_seq<A: SeqAccess<'de>>(self, mut names: A) -> Result<Arches, A::Error> {
                let mut arches = Vec::new();
                while let Some(name) = names.next_element::<String>()? {
                    let arch = name.parse().map_err(de::Error::custom)?;
                    if arches.contains(&arch) {
                        return Err(de::Error::custom(format!("{name} is named twice")));
                    }
                    arches.push(arch);
                }
                if arches.is_empty() { Err(de::Error::invalid_length(0, &self)) } else { Ok(Arches(arches)) }
            }
        }
        deserializer.deserialize_any(OneOrMore)
    }
}

/// Reads a manifest file. Returns a manifest for each of its architectures.
pub fn load_manifest(path: &Path) -> Result<Vec<Manifest>, KernelError> {
    let text =
        fs::read_to_string(path).map_err(|source| ConfigError::Read { path: path.to_owned(), source })?;
    Ok(parse(&text, path)?)
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

/// Parses a manifest. Errors name `path`; relative paths in `text` are relative to its folder.
pub fn parse(text: &str, path: &Path) -> Result<Vec<Manifest>, ConfigError> {
    let ManifestFile {
        arch: arch_at,
        debian,
        path: from_path,
        url,
        git,
        debian_source,
        tarball,
        toolchain,
        config,
    } = config::parse(text, path)?;
    let Arches(arches) = &arch_at.value;
    // Paths are relative to the manifest, not to the current folder.
    let folder = path.parent().unwrap_or(Path::new(""));
    let source = match (debian, from_path, url, git, debian_source, tarball) {
        (Some(debian), None, None, None, None, None) => {
            let wanted = arches.iter().map(|&arch| wanted(&debian, arch, path));
            let sources = wanted.map(|wanted| Ok(Source::Debian { wanted: wanted? }));
            Found::Prebuilt(sources.collect::<Result<_, ConfigError>>()?)
        }
        (None, Some(fields), None, None, None, None) => by_path(fields, folder, path)?,
        (None, None, Some(fields), None, None, None) => {
            let UrlFields { image, sha256, config } = fields.value;
            let config = config.map(|config| download(config.url, config.sha256, path)).transpose()?;
            Found::Prebuilt(vec![Source::Url { image: download(image, sha256, path)?, config }])
        }
        (None, None, None, Some(fields), None, None) => Found::Sources(git_tree(fields.value, folder, path)?),
        (None, None, None, None, Some(fields), None) => Found::Sources(debian_tree(fields.value, path)?),
        (None, None, None, None, None, Some(fields)) => Found::Sources(tarball_tree(fields, folder, path)?),
        (debian, from_path, url, git, debian_source, tarball) => {
            let places = [
                debian.map(|at| config::invalid(path, &at, EXACTLY_ONE)),
                from_path.map(|at| config::invalid(path, &at, EXACTLY_ONE)),
                url.map(|at| config::invalid(path, &at, EXACTLY_ONE)),
                git.map(|at| config::invalid(path, &at, EXACTLY_ONE)),
                debian_source.map(|at| config::invalid(path, &at, EXACTLY_ONE)),
                tarball.map(|at| config::invalid(path, &at, EXACTLY_ONE)),
            ];
            let last = places.into_iter().flatten().last();
            return Err(last.unwrap_or_else(|| config::invalid(path, &arch_at, EXACTLY_ONE)));
        }
    };
    let sources = match source {
        Found::Sources(tree) => {
            let toolchain = match toolchain {
                Some(at) => at
                    .value
                    .parse()
                    .map_err(|error: BadToolchain| config::invalid(path, &at, error.to_string()))?,
                None => Toolchain::default(),
            };
            let config = config.map_or_else(Vec::new, |config| config.value);
            let config = config.into_iter().map(|file| folder.join(file)).collect();
            vec![Source::Built(Recipe { tree, toolchain, config }); arches.len()]
        }
        Found::Prebuilt(sources) => {
            let places = [
                toolchain.map(|at| config::invalid(path, &at, ONLY_BUILT)),
                config.map(|at| config::invalid(path, &at, ONLY_BUILT)),
            ];
            if let Some(error) = places.into_iter().flatten().next() {
                return Err(error);
            }
            if sources.len() != arches.len() {
                let message =
                    "an image has one architecture: expected one; write a manifest for each other one";
                return Err(config::invalid(path, &arch_at, message));
            }
            sources
        }
    };
    let stem = path.file_stem().and_then(|stem| stem.to_str()).unwrap_or_default();
    if !is_name(stem) {
        let message =
            "the file's name is the kernel's: expected letters, digits and `.`, `_`, `+`, `-` before .yaml";
        return Err(config::invalid(path, &arch_at, message));
    }
    let manifest = |(&arch, source)| Manifest { name: stem.to_owned(), arch, source };
    Ok(arches.iter().zip(sources).map(manifest).collect())
}

const EXACTLY_ONE: &str =
    "a kernel has exactly one source, expected one of debian, path, url, git, debian-source, tarball";
const ONLY_BUILT: &str = "this kernel is not built here: expected toolchain and config only with \
                          git, debian-source, tarball, or path with source";

enum Found {
    /// One source for each architecture.
    Prebuilt(Vec<Source>),
    Sources(Tree),
}

fn by_path(fields: Spanned<PathFields>, folder: &Path, path: &Path) -> Result<Found, ConfigError> {
    let absolute = |file: Spanned<PathBuf>| folder.join(file.value);
    let whole = |message: &str| Err(config::invalid(path, &fields, message));
    match &fields.value {
        PathFields { image: Some(_), source: None, .. } => {}
        PathFields { image: None, source: Some(_), vmlinux: None, config: None } => {}
        PathFields { image: None, source: Some(_), .. } => {
            return whole("vmlinux and config are an image's: expected only source");
        }
        _ => return whole("expected either image (and perhaps vmlinux and config), or source"),
    }
    let PathFields { image, vmlinux, config, source } = fields.value;
    Ok(match (image, source) {
        (Some(image), _) => Found::Prebuilt(vec![Source::Path {
            image: absolute(image),
            vmlinux: vmlinux.map(absolute),
            config: config.map(absolute),
        }]),
        (None, source) => Found::Sources(Tree::Folder(absolute(source.expect("checked above")))),
    })
}

fn git_tree(fields: GitFields, folder: &Path, path: &Path) -> Result<Tree, ConfigError> {
    let GitFields { repository, reference } = fields;
    check_reference(&reference.value).map_err(|message| config::invalid(path, &reference, message))?;
    let place = repository_of(&repository.value, folder)
        .map_err(|message| config::invalid(path, &repository, message))?;
    Ok(Tree::Git { repository: place, reference: reference.value })
}

fn debian_tree(fields: DebianSourceFields, path: &Path) -> Result<Tree, ConfigError> {
    let DebianSourceFields { package, version } = fields;
    if !is_source_package(&package.value) {
        return Err(config::invalid(
            path,
            &package,
            "expected a package with one kernel's sources, such as linux-source-6.12",
        ));
    }
    if let Some(version) = &version
        && !is_version(&version.value)
    {
        return Err(config::invalid(path, version, "expected a version of Debian's, such as 6.12.107-1"));
    }
    Ok(Tree::DebianSource { package: package.value, version: version.map(|version| version.value) })
}

fn tarball_tree(fields: Spanned<TarballFields>, folder: &Path, path: &Path) -> Result<Tree, ConfigError> {
    match fields.value {
        TarballFields { path: Some(file), url: None, sha256: None } => {
            Ok(Tree::TarballFile(folder.join(file.value)))
        }
        TarballFields { path: None, url: Some(url), sha256: Some(sha256) } => {
            Ok(Tree::TarballUrl(download(url, sha256, path)?))
        }
        TarballFields { path: None, url: Some(url), sha256: None } => {
            Err(config::invalid(path, &url, "expected sha256 as well: what is downloaded is checked"))
        }
        _ => Err(config::invalid(path, &fields, "expected either path, or url and sha256")),
    }
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
        _ => Err(format!("expected a folder, or a URL that starts with one of {}://", SCHEMES.join("://, "))),
    }
}

/// Rejects references that git would take for an option and those with control characters.
pub(super) fn check_reference(text: &str) -> Result<(), &'static str> {
    if text.is_empty() || text.starts_with('-') || text.chars().any(char::is_control) {
        return Err("expected a branch, a tag or a commit, such as v6.12");
    }
    Ok(())
}

pub(super) fn is_source_package(name: &str) -> bool {
    name.strip_prefix("linux-source-").is_some_and(is_series)
}

pub(super) fn is_version(text: &str) -> bool {
    text.starts_with(|c: char| c.is_ascii_digit())
        && text.chars().all(|c| c.is_ascii_alphanumeric() || ".+~:-".contains(c))
}

fn wanted(debian: &Spanned<DebianFields>, arch: Arch, path: &Path) -> Result<Wanted, ConfigError> {
    let error = |at: &Spanned<String>, message: &str| Err(config::invalid(path, at, message));
    let whole = |message: &str| Err(config::invalid(path, debian, message));
    let DebianFields { series, flavour, package, version } = &debian.value;
    match (series, flavour, package, version) {
        (Some(series), Some(flavour), None, None) => {
            if !is_series(&series.value) && series.value != "newest" {
                return error(series, "expected a series such as \"6.12\", or newest");
            }
            let architecture = debian_architecture(arch);
            let names = |arch: &Arch| flavour.value.split('-').any(|word| word == debian_architecture(*arch));
            // `cloud` stands for cloud-amd64 and cloud-arm64.
            let full = match Arch::ALL.into_iter().find(names) {
                None if !flavour.value.is_empty() => format!("{}-{architecture}", flavour.value),
                Some(named) if named == arch => flavour.value.clone(),
                _ => {
                    let expected = format!(
                        "expected a flavour for {}: {architecture} or cloud-{architecture}, or \
                         cloud for any architecture",
                        arch.name()
                    );
                    return error(flavour, &expected);
                }
            };
            let series = Some(series.value.clone()).filter(|series| series != "newest");
            Ok(Wanted::Newest { series, flavour: full })
        }
        (None, None, Some(package), version) => {
            let Some(release) = release_of(&package.value) else {
                return error(
                    package,
                    "expected a package with one kernel, linux-image-RELEASE or linux-binary-RELEASE \
                     (for the newest of a series give series and flavour instead)",
                );
            };
            let architecture = debian_architecture(arch);
            if !release.split('-').any(|word| word == architecture) {
                return error(package, &format!("expected a package with a kernel for {}", arch.name()));
            }
            let version = version.as_ref().map(|version| version.value.clone());
            Ok(Wanted::Package { name: package.value.clone(), version })
        }
        (None, None, None, Some(version)) => {
            error(version, "version belongs to a package: expected package as well")
        }
        (Some(series), None, None, _) => error(
            series,
            "expected flavour as well, such as cloud-amd64: the newest kernel is chosen by both",
        ),
        (None, Some(flavour), None, _) => error(
            flavour,
            "expected series as well, such as \"6.12\" or newest: the newest kernel is chosen by both",
        ),
        _ => whole("expected either series and flavour, or package and perhaps version"),
    }
}

fn download(url: Spanned<String>, sha256: Spanned<String>, path: &Path) -> Result<Download, ConfigError> {
    if !url.value.starts_with("https://") && !url.value.starts_with("http://") {
        return Err(config::invalid(path, &url, "expected a URL that starts with https:// or http://"));
    }
    let is_hex = |c: char| c.is_ascii_digit() || ('a'..='f').contains(&c);
    if sha256.value.len() != 64 || !sha256.value.chars().all(is_hex) {
        return Err(config::invalid(path, &sha256, "expected a SHA-256: 64 lower-case hexadecimal digits"));
    }
    Ok(Download { url: url.value, sha256: sha256.value })
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

pub(super) fn is_name(text: &str) -> bool {
    !text.is_empty() && !text.starts_with('.') && text.chars().all(is_name_char)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn parsed(text: &str) -> Result<Vec<Manifest>, String> {
        parse(text, Path::new("kernels/some.yaml")).map_err(|error| error.to_string())
    }

    #[test]
    fn reads_each_kind_of_prebuilt_kernel() {
        let debian = |wanted| Source::Debian { wanted };
        let sha256 = "5891b5b522d5df086d0ff0b110fbd9d21bb4fc7163af34d08286a2e846f6be03";
        let url = format!("arch: x86_64\nurl: {{image: https://x/bzImage, sha256: {sha256}}}\n");
        for (text, arch, source) in [
            (
                "arch: x86_64\ndebian: {series: \"6.10\", flavour: cloud-amd64}\n",
                Arch::X86_64,
                debian(Wanted::Newest { series: Some("6.10".into()), flavour: "cloud-amd64".into() }),
            ),
            (
                // Unquoted, but still the text and not the number 6.1.
                "arch: arm64\ndebian: {series: 6.10, flavour: arm64}\n",
                Arch::Arm64,
                debian(Wanted::Newest { series: Some("6.10".into()), flavour: "arm64".into() }),
            ),
            (
                "arch: x86_64\ndebian: {series: newest, flavour: cloud-amd64}\n",
                Arch::X86_64,
                debian(Wanted::Newest { series: None, flavour: "cloud-amd64".into() }),
            ),
            (
                "arch: x86_64\ndebian: {package: linux-binary-7.3-cloud-amd64, version: 7.3~rc7-1~exp1}\n",
                Arch::X86_64,
                debian(Wanted::Package {
                    name: "linux-binary-7.3-cloud-amd64".into(),
                    version: Some("7.3~rc7-1~exp1".into()),
                }),
            ),
            (
                "arch: x86_64\npath: {image: ../linux/bzImage, config: /boot/config}\n",
                Arch::X86_64,
                Source::Path {
                    image: "kernels/../linux/bzImage".into(),
                    vmlinux: None,
                    config: Some("/boot/config".into()),
                },
            ),
            (
                &url,
                Arch::X86_64,
                Source::Url {
                    image: Download { url: "https://x/bzImage".into(), sha256: sha256.into() },
                    config: None,
                },
            ),
        ] {
            assert_eq!(parsed(text), Ok(vec![Manifest { name: "some".into(), arch, source }]), "{text}");
        }
    }

    #[test]
    fn reads_manifest_for_several_architectures() {
        let debian = |flavour: &str| Source::Debian {
            wanted: Wanted::Newest { series: Some("6.12".into()), flavour: flavour.into() },
        };
        let on = |arch, source| Manifest { name: "some".into(), arch, source };
        for (arch, flavour, expected) in [
            ("x86_64", "cloud", vec![on(Arch::X86_64, debian("cloud-amd64"))]),
            (
                "[x86_64, arm64]",
                "cloud",
                vec![on(Arch::X86_64, debian("cloud-amd64")), on(Arch::Arm64, debian("cloud-arm64"))],
            ),
            ("[arm64]", "cloud-arm64", vec![on(Arch::Arm64, debian("cloud-arm64"))]),
        ] {
            let text = format!("arch: {arch}\ndebian: {{series: \"6.12\", flavour: {flavour}}}\n");
            assert_eq!(parsed(&text), Ok(expected), "{text}");
        }
        let found = parsed("arch: [arm64, x86_64]\npath: {source: ../linux}\n").unwrap();
        assert_eq!(
            found.iter().map(|manifest| manifest.arch).collect::<Vec<_>>(),
            [Arch::Arm64, Arch::X86_64]
        );
        assert_eq!(found[0].source, found[1].source);
    }

    #[test]
    fn reads_each_kind_of_sources() {
        let sha256 = "0".repeat(64);
        let url = format!("tarball: {{url: https://x/y.tar.xz, sha256: {sha256}}}\n");
        let git = |repository: &str| Tree::Git { repository: repository.into(), reference: "v6.12".into() };
        let debian = |version: Option<&str>| Tree::DebianSource {
            package: "linux-source-6.12".into(),
            version: version.map(str::to_owned),
        };
        for (text, tree) in [
            ("git: {repository: ../linux, ref: v6.12}\n", git("kernels/../linux")),
            ("git: {repository: /src/linux, ref: v6.12}\n", git("/src/linux")),
            ("git: {repository: https://x/linux, ref: v6.12}\n", git("https://x/linux")),
            ("debian-source: {package: linux-source-6.12}\n", debian(None)),
            (
                "debian-source: {package: linux-source-6.12, version: 6.12.107-1}\n",
                debian(Some("6.12.107-1")),
            ),
            ("tarball: {path: x.tar.xz}\n", Tree::TarballFile("kernels/x.tar.xz".into())),
            (&url, Tree::TarballUrl(Download { url: "https://x/y.tar.xz".into(), sha256: sha256.clone() })),
            ("path: {source: ../linux}\n", Tree::Folder("kernels/../linux".into())),
        ] {
            let clang = Toolchain { compiler: Compiler::Clang, version: Some("19".into()) };
            let config = vec!["kernels/a.config".into(), "/b.config".into()];
            for (more, toolchain, config) in [
                ("", Toolchain::default(), vec![]),
                ("toolchain: clang-19\nconfig: [a.config, /b.config]\n", clang, config),
            ] {
                let recipe = Recipe { tree: tree.clone(), toolchain, config };
                let source = Source::Built(recipe);
                let expected = Manifest { name: "some".into(), arch: Arch::X86_64, source };
                assert_eq!(
                    parsed(&format!("arch: x86_64\n{text}{more}")),
                    Ok(vec![expected]),
                    "{text}{more}"
                );
            }
        }
    }

    #[test]
    fn parses_and_formats_toolchains() {
        for text in ["gcc", "gcc-13", "clang", "clang-19"] {
            assert_eq!(text.parse::<Toolchain>().unwrap().to_string(), text);
        }
        for text in ["", "GCC", "gcc-", "gcc-x", "gcc-13-1", "gcc-1300", "clang-../x"] {
            assert_eq!(text.parse::<Toolchain>(), Err(BadToolchain(text.to_owned())));
        }
    }

    #[test]
    fn errors_name_place_and_expectation() {
        let short = "arch: x86_64\nurl: {image: https://x/bzImage, sha256: 58AB}\n";
        let file = format!("arch: x86_64\nurl: {{image: ./bzImage, sha256: {}}}\n", "0".repeat(64));
        for (text, place, words) in [
            ("", "1:1", "unexpected end of file"),
            (
                "arch: x86_64\n",
                "1:7",
                "exactly one source, expected one of debian, path, url, git, debian-source, tarball",
            ),
            (
                "arch: x86_64\ndebian: {series: newest, flavour: amd64}\npath: {image: x}\n",
                "3:7",
                "exactly one source, expected one of debian, path, url, git, debian-source, tarball",
            ),
            ("arch: mips\ndebian: {series: newest, flavour: amd64}\n", "1:7", "x86_64, arm64"),
            ("arch: [mips]\ndebian: {series: newest, flavour: amd64}\n", "1:7", "x86_64, arm64"),
            ("arch: []\ndebian: {series: newest, flavour: amd64}\n", "1:1", "x86_64, arm64"),
            ("arch: 5\ndebian: {series: newest, flavour: amd64}\n", "1:1", "x86_64, arm64"),
            (
                "arch: [arm64, arm64]\ndebian: {series: newest, flavour: cloud}\n",
                "1:7",
                "arm64 is named twice",
            ),
            (
                "arch: [x86_64, arm64]\ndebian: {series: newest, flavour: amd64}\n",
                "2:35",
                "expected a flavour for arm64: arm64 or cloud-arm64, or cloud for any architecture",
            ),
            (
                "arch: [x86_64, arm64]\ndebian: {package: linux-image-6.1.0-50-amd64}\n",
                "2:19",
                "expected a package with a kernel for arm64",
            ),
            ("arch: [x86_64, arm64]\npath: {image: x}\n", "1:7", "an image has one architecture"),
            (
                "arch: x86_64\ndebain: {}\n",
                "2:1",
                "expected one of arch, debian, path, url, git, debian-source, tarball",
            ),
            (
                "arch: x86_64\ndebian: {serie: newest}\n",
                "2:10",
                "expected one of series, flavour, package, version",
            ),
            ("arch: x86_64\ndebian: {}\n", "2:9", "expected either series and flavour, or package"),
            (
                "arch: x86_64\ndebian: {series: \"6\", flavour: amd64}\n",
                "2:18",
                "expected a series such as \"6.12\", or newest",
            ),
            ("arch: x86_64\ndebian: {series: \"6.12\"}\n", "2:18", "expected flavour as well"),
            ("arch: x86_64\ndebian: {flavour: amd64}\n", "2:19", "expected series as well"),
            (
                "arch: arm64\ndebian: {series: \"6.12\", flavour: cloud-amd64}\n",
                "2:35",
                "expected a flavour for arm64: arm64 or cloud-arm64",
            ),
            ("arch: x86_64\ndebian: {version: \"1\"}\n", "2:19", "expected package as well"),
            (
                "arch: x86_64\ndebian: {package: linux-image-amd64}\n",
                "2:19",
                "expected a package with one kernel",
            ),
            (
                "arch: x86_64\ndebian: {package: linux-image-6.1.0-50-amd64, flavour: amd64}\n",
                "2:9",
                "expected either series and flavour, or package",
            ),
            (
                "arch: x86_64\npath: {vmlinux: x}\n",
                "2:7",
                "expected either image (and perhaps vmlinux and config), or source",
            ),
            ("arch: x86_64\npath: {source: x, config: y}\n", "2:7", "expected only source"),
            ("arch: x86_64\npath: {source: x, image: y}\n", "2:7", "expected either image"),
            ("arch: x86_64\ngit: {repository: ../linux}\n", "2:7", "missing field `ref`"),
            (
                "arch: x86_64\ngit: {repository: ../linux, ref: --all}\n",
                "2:34",
                "expected a branch, a tag or a commit",
            ),
            (
                "arch: x86_64\ngit: {repository: ext::sh://x, ref: v1}\n",
                "2:19",
                "a URL that starts with one of https://",
            ),
            ("arch: x86_64\ndebian-source: {package: linux-source}\n", "2:26", "such as linux-source-6.12"),
            (
                "arch: x86_64\ndebian-source: {package: linux-source-6.12, version: ../x}\n",
                "2:54",
                "expected a version of Debian's",
            ),
            ("arch: x86_64\ntarball: {}\n", "2:10", "expected either path, or url and sha256"),
            ("arch: x86_64\ntarball: {url: https://x/y}\n", "2:16", "expected sha256 as well"),
            (
                "arch: x86_64\ntarball: {path: x, sha256: y}\n",
                "2:10",
                "expected either path, or url and sha256",
            ),
            (
                "arch: x86_64\ntoolchain: icc\npath: {source: x}\n",
                "2:12",
                "no toolchain `icc`: expected gcc or clang",
            ),
            ("arch: x86_64\ntoolchain: gcc-13/x\npath: {source: x}\n", "2:12", "no toolchain `gcc-13/x`"),
            ("arch: x86_64\ntoolchain: gcc\npath: {image: x}\n", "2:12", "this kernel is not built here"),
            (
                "arch: x86_64\ndebian: {series: newest, flavour: amd64}\nconfig: [x]\n",
                "3:9",
                "this kernel is not built here",
            ),
            ("arch: x86_64\nconfig: x\npath: {source: x}\n", "2:9", ""),
            (short, "2:41", "expected a SHA-256: 64 lower-case hexadecimal digits"),
            (&file, "2:14", "expected a URL that starts with https:// or http://"),
        ] {
            let error = parsed(text).unwrap_err();
            let start = format!("kernels/some.yaml:{place}: ");
            assert!(
                error.starts_with(&start) && error.contains(words),
                "{text}expected {start}… {words}\ngot {error}"
            );
        }
        let error = parse("arch: x86_64\npath: {image: x}\n", Path::new("a b.yaml")).unwrap_err().to_string();
        assert!(error.contains("the file's name is the kernel's"), "{error}");
    }
}
