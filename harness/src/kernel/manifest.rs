// SPDX-License-Identifier: MIT OR Apache-2.0
//! Kernel manifests: `kernels/NAME.yaml` says where the kernel NAME comes from.

use super::{KernelError, image};
use crate::{
    config::{self, ConfigError, Spanned},
    run::Arch,
};
use serde::Deserialize;
use std::{
    fs,
    path::{Path, PathBuf},
};

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Manifest {
    /// The file's name without `.yaml`; what suites and cells call the kernel.
    pub name: String,
    pub arch: Arch,
    pub source: Source,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Source {
    Debian { wanted: Wanted },
    Path { image: PathBuf, vmlinux: Option<PathBuf>, config: Option<PathBuf> },
    Url { image: Download, config: Option<Download> },
}

/// Which of Debian's kernels.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Wanted {
    /// The newest of a series, or of all (`series` is none).
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
    arch: Spanned<Arch>,
    debian: Option<Spanned<DebianFields>>,
    path: Option<Spanned<PathFields>>,
    url: Option<Spanned<UrlFields>>,
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
    image: PathBuf,
    vmlinux: Option<PathBuf>,
    config: Option<PathBuf>,
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

/// Reads one manifest.
pub fn load_manifest(path: &Path) -> Result<Manifest, KernelError> {
    let text =
        fs::read_to_string(path).map_err(|source| ConfigError::Read { path: path.to_owned(), source })?;
    Ok(parse(&text, path)?)
}

/// A kernel by its name in `folder`, by a manifest's path, or by an image's own path.
pub fn find(name: &str, folder: &Path) -> Result<Manifest, KernelError> {
    let path = Path::new(name);
    if path.extension().is_some_and(|extension| extension == "yaml") {
        return load_manifest(path);
    }
    let file = folder.join(format!("{name}.yaml"));
    if is_name(name) && file.is_file() {
        return load_manifest(&file);
    }
    if path.is_file() {
        return of_image(path);
    }
    Err(KernelError::Unknown { name: name.to_owned(), folder: folder.to_owned(), known: names(folder) })
}

/// The kernels a folder has manifests of, sorted.
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

/// The manifest that stands for an image somebody built.
fn of_image(path: &Path) -> Result<Manifest, KernelError> {
    let path = std::path::absolute(path).unwrap_or_else(|_| path.to_owned());
    let header = image::read(&path).map_err(|source| KernelError::Image { path: path.clone(), source })?;
    let file = path.file_name().unwrap_or_default().to_string_lossy();
    let name: String = header.release.unwrap_or_else(|| file.into_owned());
    let name = name.chars().map(|c| if is_name_char(c) { c } else { '_' }).collect();
    let (config, vmlinux) = beside(&path);
    Ok(Manifest { name, arch: header.arch, source: Source::Path { image: path, vmlinux, config } })
}

/// The configuration and vmlinux of an image in a build tree (`arch/x86/boot/bzImage`) or in `/boot` (`vmlinuz-V`).
fn beside(image: &Path) -> (Option<PathBuf>, Option<PathBuf>) {
    let there = |path: PathBuf| path.is_file().then_some(path);
    let file = image.file_name().and_then(|name| name.to_str()).unwrap_or_default();
    if let Some(release) = file.strip_prefix("vmlinuz-") {
        return (there(image.with_file_name(format!("config-{release}"))), None);
    }
    match image.ancestors().nth(4) {
        Some(tree) if image.parent().is_some_and(|folder| folder.ends_with("boot")) => {
            (there(tree.join(".config")), there(tree.join("vmlinux")))
        }
        _ => (None, None),
    }
}

fn parse(text: &str, path: &Path) -> Result<Manifest, ConfigError> {
    let file: ManifestFile = config::parse(text, path)?;
    let arch = file.arch.value;
    let source = match (file.debian, file.path, file.url) {
        (Some(debian), None, None) => Source::Debian { wanted: wanted(debian, arch, path)? },
        (None, Some(fields), None) => {
            // Relative to the manifest, wherever the command is run.
            let folder = path.parent().unwrap_or(Path::new(""));
            let absolute = |file: PathBuf| folder.join(file);
            let PathFields { image, vmlinux, config } = fields.value;
            Source::Path {
                image: absolute(image),
                vmlinux: vmlinux.map(absolute),
                config: config.map(absolute),
            }
        }
        (None, None, Some(fields)) => {
            let UrlFields { image, sha256, config } = fields.value;
            let config = config.map(|config| download(config.url, config.sha256, path)).transpose()?;
            Source::Url { image: download(image, sha256, path)?, config }
        }
        (debian, from_path, url) => {
            let places = [
                debian.map(|at| config::invalid(path, &at, EXACTLY_ONE)),
                from_path.map(|at| config::invalid(path, &at, EXACTLY_ONE)),
                url.map(|at| config::invalid(path, &at, EXACTLY_ONE)),
            ];
            let last = places.into_iter().flatten().last();
            return Err(last.unwrap_or_else(|| config::invalid(path, &file.arch, EXACTLY_ONE)));
        }
    };
    let stem = path.file_stem().and_then(|stem| stem.to_str()).unwrap_or_default();
    if !is_name(stem) {
        let message =
            "the file's name is the kernel's: expected letters, digits and `.`, `_`, `+`, `-` before .yaml";
        return Err(config::invalid(path, &file.arch, message));
    }
    Ok(Manifest { name: stem.to_owned(), arch, source })
}

const EXACTLY_ONE: &str = "a kernel has exactly one source, expected one of debian, path, url";

fn wanted(debian: Spanned<DebianFields>, arch: Arch, path: &Path) -> Result<Wanted, ConfigError> {
    let error = |at: &Spanned<String>, message: &str| Err(config::invalid(path, at, message));
    let whole = |message: &str| Err(config::invalid(path, &debian, message));
    let DebianFields { series, flavour, package, version } = &debian.value;
    match (series, flavour, package, version) {
        (Some(series), Some(flavour), None, None) => {
            if !is_series(&series.value) && series.value != "newest" {
                return error(series, "expected a series such as \"6.12\", or newest");
            }
            if !flavour.value.split('-').any(|word| word == debian_architecture(arch)) {
                let architecture = debian_architecture(arch);
                return error(
                    flavour,
                    &format!(
                        "expected a flavour for {}: {architecture} or cloud-{architecture}",
                        arch.name()
                    ),
                );
            }
            let series = Some(series.value.clone()).filter(|series| series != "newest");
            Ok(Wanted::Newest { series, flavour: flavour.value.clone() })
        }
        (None, None, Some(package), version) => {
            if release_of(&package.value).is_none() {
                return error(
                    package,
                    "expected a package with one kernel, linux-image-RELEASE or linux-binary-RELEASE \
                     (for the newest of a series give series and flavour instead)",
                );
            }
            let version = version.as_ref().map(|version| version.value.clone());
            Ok(Wanted::Package { name: package.value.clone(), version })
        }
        (None, None, None, Some(version)) => {
            error(version, "a version is a package's: expected package as well")
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

/// Debian's word for it.
pub fn debian_architecture(arch: Arch) -> &'static str {
    match arch {
        Arch::X86_64 => "amd64",
        Arch::Arm64 => "arm64",
    }
}

/// `linux-image-6.12.107+deb13-cloud-amd64-unsigned` holds the release `6.12.107+deb13-cloud-amd64`.
pub fn release_of(package: &str) -> Option<&str> {
    let release = ["linux-binary-unsigned-", "linux-binary-", "linux-image-"]
        .iter()
        .find_map(|prefix| package.strip_prefix(prefix))?;
    let release = release.strip_suffix("-unsigned").unwrap_or(release);
    release.starts_with(|c: char| c.is_ascii_digit()).then_some(release)
}

fn is_series(text: &str) -> bool {
    let number = |part: &str| !part.is_empty() && part.chars().all(|c| c.is_ascii_digit());
    text.split_once('.').is_some_and(|(major, minor)| number(major) && number(minor))
}

fn is_name_char(c: char) -> bool {
    c.is_ascii_alphanumeric() || "._+-".contains(c)
}

fn is_name(text: &str) -> bool {
    !text.is_empty() && !text.starts_with('.') && text.chars().all(is_name_char)
}
