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
    Built(Recipe),
}

/// A kernel that is built here.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Recipe {
    pub tree: Tree,
    pub toolchain: Toolchain,
    /// Fragments on top of those in `configs/kconfig/`.
    pub config: Vec<PathBuf>,
}

/// Where sources come from.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Tree {
    /// A commit of a repository: a local folder, or a URL.
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
    /// A folder as it is, changes that are not committed included.
    Folder(PathBuf),
}

/// `gcc`, `gcc-13`, `clang`, `clang-19`.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Toolchain {
    pub compiler: Compiler,
    /// The `13` of `gcc-13`; none is the host's default.
    pub version: Option<String>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Compiler {
    Gcc,
    Clang,
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

#[cfg(test)]
mod tests {
    use super::*;

    fn parsed(text: &str) -> Result<Manifest, String> {
        parse(text, Path::new("kernels/some.yaml")).map_err(|error| error.to_string())
    }

    #[test]
    fn each_kind_of_source_is_read() {
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
                // Unquoted, still the text and not the number 6.1.
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
            assert_eq!(parsed(text), Ok(Manifest { name: "some".into(), arch, source }), "{text}");
        }
    }

    #[test]
    fn bad_manifests_say_where_and_what_is_expected() {
        let short = "arch: x86_64\nurl: {image: https://x/bzImage, sha256: 58AB}\n";
        let file = format!("arch: x86_64\nurl: {{image: ./bzImage, sha256: {}}}\n", "0".repeat(64));
        for (text, place, words) in [
            ("", "1:1", "unexpected end of file"),
            ("arch: x86_64\n", "1:7", "exactly one source, expected one of debian, path, url"),
            (
                "arch: x86_64\ndebian: {series: newest, flavour: amd64}\npath: {image: x}\n",
                "3:7",
                "exactly one source, expected one of debian, path, url",
            ),
            ("arch: mips\ndebian: {series: newest, flavour: amd64}\n", "1:7", "x86_64, arm64"),
            ("arch: x86_64\ndebain: {}\n", "2:1", "expected one of arch, debian, path, url"),
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
            ("arch: x86_64\npath: {vmlinux: x}\n", "2:8", "missing field `image`"),
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

    #[test]
    fn kernels_are_found_by_name_by_manifest_and_by_image() {
        let folder = tempfile::tempdir().unwrap();
        let kernels = folder.path().join("kernels");
        fs::create_dir(&kernels).unwrap();
        let manifest = kernels.join("mine.yaml");
        fs::write(&manifest, "arch: x86_64\npath: {image: bzImage}\n").unwrap();
        fs::write(kernels.join("notes.txt"), "").unwrap();

        let by_name = find("mine", &kernels).unwrap();
        assert_eq!(find(manifest.to_str().unwrap(), Path::new("/no/such")).unwrap(), by_name);
        let Source::Path { image, .. } = by_name.source else { panic!("{:?}", by_name.source) };
        assert_eq!(image, kernels.join("bzImage"));

        let error = find("other", &kernels).unwrap_err().to_string();
        let file = kernels.join("other.yaml");
        let expected = format!(
            "failed to find the kernel `other`: no {}, and no such file; known: mine",
            file.display()
        );
        assert_eq!(error, expected);
        let error = find("../mine", &kernels.join("sub")).unwrap_err().to_string();
        assert!(error.contains("known: none"), "{error}");

        // A build tree: the image, its configuration and vmlinux.
        let boot = folder.path().join("linux/arch/x86/boot");
        fs::create_dir_all(&boot).unwrap();
        for file in [".config", "vmlinux"] {
            fs::write(folder.path().join("linux").join(file), "").unwrap();
        }
        let mut head = vec![0; 2048];
        head[0x1f1] = 1;
        head[0x202..0x206].copy_from_slice(b"HdrS");
        head[0x20e..0x210].copy_from_slice(&0x100u16.to_le_bytes());
        head[0x300..0x30e].copy_from_slice(b"7.3.4-g1/dirty");
        let image = boot.join("bzImage");
        fs::write(&image, &head).unwrap();
        let found = find(image.to_str().unwrap(), &kernels).unwrap();
        assert_eq!((found.name.as_str(), found.arch), ("7.3.4-g1_dirty", Arch::X86_64));
        let tree = folder.path().join("linux");
        let (vmlinux, config) = (Some(tree.join("vmlinux")), Some(tree.join(".config")));
        assert_eq!(found.source, Source::Path { image, vmlinux, config });

        // As distributions install it, here without a configuration.
        let installed = folder.path().join("vmlinuz-7.3.4");
        fs::write(&installed, &head).unwrap();
        let found = find(installed.to_str().unwrap(), &kernels).unwrap();
        assert_eq!(found.source, Source::Path { image: installed.clone(), vmlinux: None, config: None });
        let config = folder.path().join("config-7.3.4");
        fs::write(&config, "").unwrap();
        let found = find(installed.to_str().unwrap(), &kernels).unwrap();
        assert_eq!(found.source, Source::Path { image: installed, vmlinux: None, config: Some(config) });

        let text = folder.path().join("text");
        fs::write(&text, "hello").unwrap();
        let error = find(text.to_str().unwrap(), &kernels).unwrap_err().to_string();
        assert!(error.contains("it is no kernel image"), "{error}");
    }
}
