// SPDX-License-Identifier: MIT OR Apache-2.0
//! The format of manifests: YAML fields, and the checks of their values.

use super::{
    Download, Manifest, Place, Recipe, Source, Toolchain, Tree, Variation, WantedKernel,
    check_reference, is_name, is_series, is_source_package, is_version, release_of, repository_of,
};
use crate::{debian, source};
use schemars::{JsonSchema, Schema, SchemaGenerator, json_schema};
use serde::{
    Deserialize, Deserializer,
    de::{self, SeqAccess, Visitor},
};
use serde_json::json;
use std::{
    borrow::Cow,
    fmt,
    path::{Path, PathBuf},
};
use time::{PrimitiveDateTime, macros::format_description};
use tramplab_host::{
    config::{self, ConfigError, Spanned},
    debian::{File, Package, Pin, pinned_package},
};
use tramplab_model::{called::called, run::Arch};

#[derive(Debug, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
#[schemars(rename = "tramplab kernel manifest", extend("oneOf" = one_of(&SOURCES)))]
pub(super) struct ManifestFile {
    arch: Spanned<Arches>,
    /// A kernel of Debian, as Debian built it.
    debian: Option<Spanned<DebianFields>>,
    /// Files on this host, relative to this one.
    path: Option<Spanned<PathFields>>,
    /// An image to download.
    url: Option<Spanned<UrlFields>>,
    /// The packages with one kernel, of any distribution: `.rpm`, `.deb`, `.pkg.tar.zst`.
    #[schemars(length(min = 1, max = MOST_PACKAGES))]
    packages: Option<Spanned<Vec<Spanned<PlaceFields>>>>,
    /// A commit of a repository.
    git: Option<Spanned<GitFields>>,
    /// The sources of a kernel of Debian.
    #[serde(rename = "debian-source")]
    debian_source: Option<Spanned<DebianSourceFields>>,
    /// A tarball with sources.
    tarball: Option<Spanned<PlaceFields>>,
    /// One version of Debian's packages, which `tramplab kernels --pin` writes. Only for `debian`
    /// and `debian-source`.
    pin: Option<Spanned<PinFields>>,
    /// The compiler: `gcc` (default), `gcc-13`, `clang`, `clang-19`, or a Debian release's:
    /// `debian-13/gcc-14`. Only for sources.
    toolchain: Option<Spanned<Toolchain>>,
    /// Files with options, which override those of `configs/kconfig/`. Only for sources.
    config: Option<Spanned<Vec<PathBuf>>>,
}

/// A kernel of Debian has four packages for an architecture.
const MOST_PINNED: usize = 64;
/// A kernel of Fedora has four packages.
const MOST_PACKAGES: usize = 16;
const SHA256: &str = "^[0-9a-f]{64}$";
const URL: &str = "^https?://";
/// The keys of a kernel's source.
const SOURCES: [&str; 7] = ["debian", "path", "url", "packages", "git", "debian-source", "tarball"];

/// Requires exactly one of these keys.
fn one_of(keys: &[&str]) -> serde_json::Value {
    keys.iter().map(|key| json!({ "required": [key] })).collect()
}

#[derive(Debug, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
/// Either the newest kernel of a series, or one package.
#[schemars(extend("oneOf" = json!([
    { "required": ["series", "flavour"], "properties": { "package": false, "version": false } },
    { "required": ["package"], "properties": { "series": false, "flavour": false } },
])))]
struct DebianFields {
    /// `"6.12"` or `newest`.
    #[schemars(regex(pattern = "^(newest|[0-9]+[.][0-9]+)$"))]
    series: Option<Spanned<String>>,
    /// `cloud`, or with the architecture: `cloud-amd64`.
    #[schemars(length(min = 1))]
    flavour: Option<Spanned<String>>,
    /// `linux-image-RELEASE` or `linux-binary-RELEASE`.
    #[schemars(regex(pattern = "^linux-(binary-unsigned|binary|image)-[0-9]"))]
    package: Option<Spanned<String>>,
    /// The newest if left out.
    version: Option<Spanned<String>>,
}

#[derive(Debug, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
/// Either an image, perhaps with its `vmlinux` and configuration, or a folder with sources.
#[schemars(extend("oneOf" = json!([
    { "required": ["image"], "properties": { "source": false } },
    {
        "required": ["source"],
        "properties": { "image": false, "vmlinux": false, "config": false },
    },
])))]
struct PathFields {
    image: Option<Spanned<PathBuf>>,
    vmlinux: Option<Spanned<PathBuf>>,
    config: Option<Spanned<PathBuf>>,
    source: Option<Spanned<PathBuf>>,
}

#[derive(Debug, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
struct GitFields {
    /// A folder, or a URL.
    repository: Spanned<String>,
    /// A branch, a tag or a commit.
    #[schemars(regex(pattern = "^[^-]"))]
    #[serde(rename = "ref")]
    reference: Spanned<String>,
}

#[derive(Debug, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
struct DebianSourceFields {
    /// `linux-source-6.12`, or `linux-source` for the newest.
    #[schemars(regex(pattern = "^linux-source(-[0-9]+[.][0-9]+)?$"))]
    package: Spanned<String>,
    #[schemars(regex(pattern = "^[0-9][A-Za-z0-9.+~:-]*$"))]
    version: Option<Spanned<String>>,
}

#[derive(Debug, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
struct PinFields {
    /// A time at which Debian's snapshot archive has the packages. It is asked if no mirror has
    /// them.
    #[schemars(regex(pattern = "^[0-9]{8}T[0-9]{6}Z$"))]
    snapshot: Spanned<String>,
    /// The packages of all architectures.
    files: Vec<Spanned<FileFields>>,
}

#[derive(Debug, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
struct FileFields {
    /// Below a mirror of Debian.
    #[schemars(regex(pattern = "^pool/.*[.]deb$"))]
    path: String,
    /// Bytes.
    #[schemars(range(min = 1))]
    size: u64,
    #[schemars(regex(pattern = SHA256))]
    sha256: String,
}

#[derive(Debug, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
/// Either a file, or a URL with the file's digest.
#[schemars(extend("oneOf" = json!([
    { "required": ["path"], "properties": { "url": false, "sha256": false } },
    { "required": ["url", "sha256"], "properties": { "path": false } },
])))]
struct PlaceFields {
    path: Option<Spanned<PathBuf>>,
    #[schemars(regex(pattern = URL))]
    url: Option<Spanned<String>>,
    #[schemars(regex(pattern = SHA256))]
    sha256: Option<Spanned<String>>,
}

#[derive(Debug, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
struct UrlFields {
    #[schemars(regex(pattern = URL))]
    image: Spanned<String>,
    #[schemars(regex(pattern = SHA256))]
    sha256: Spanned<String>,
    config: Option<ConfigFields>,
}

#[derive(Debug, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
struct ConfigFields {
    #[schemars(regex(pattern = URL))]
    url: Spanned<String>,
    #[schemars(regex(pattern = SHA256))]
    sha256: Spanned<String>,
}

/// One architecture or a list of them.
#[derive(Debug)]
struct Arches(Vec<Arch>);

impl JsonSchema for Arches {
    fn schema_name() -> Cow<'static, str> {
        "Arches".into()
    }

    fn json_schema(generator: &mut SchemaGenerator) -> Schema {
        let arch = generator.subschema_for::<Arch>();
        let list = json!({ "type": "array", "items": arch, "minItems": 1, "uniqueItems": true });
        json_schema!({
            "description": "One architecture or a list of them.",
            "anyOf": [arch, list],
        })
    }
}

impl<'de> Deserialize<'de> for Arches {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Arches, D::Error> {
        struct OneOrMore;

        impl<'de> Visitor<'de> for OneOrMore {
            type Value = Arches;

            fn expecting(&self, f: &mut fmt::Formatter) -> fmt::Result {
                write!(
                    f,
                    "an architecture, or a list of them: {}",
                    Arch::ALL.map(Arch::name).join(", ")
                )
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
                if arches.is_empty() {
                    Err(de::Error::invalid_length(0, &self))
                } else {
                    Ok(Arches(arches))
                }
            }
        }
        deserializer.deserialize_any(OneOrMore)
    }
}

/// Parses a manifest. Errors name `path`; relative paths in `text` are relative to its folder.
pub fn parse(text: &str, path: &Path) -> Result<Vec<Manifest>, ConfigError> {
    let ManifestFile {
        arch: arch_at,
        debian,
        path: from_path,
        url,
        packages,
        git,
        debian_source,
        tarball,
        pin,
        toolchain,
        config,
    } = config::parse(text, path)?;
    let Arches(arches) = &arch_at.value;
    // Paths are relative to the manifest, not to the current folder.
    let folder = path.parent().unwrap_or(Path::new(""));
    let is_of_debian = debian.is_some() || debian_source.is_some();
    let source = match (debian, from_path, url, packages, git, debian_source, tarball) {
        (Some(debian), None, None, None, None, None, None) => {
            let source = |&arch| {
                let wanted = wanted(&debian, arch, path)?;
                let fits =
                    |pin: &Pin| debian::chosen(&wanted, None, pin.packages().collect()).is_some();
                let pin = pin.as_ref().map(|pin| pinned(pin, Some(arch), fits, path));
                let pin = pin.transpose()?;
                Ok::<_, ConfigError>(Source::Debian { wanted, pin })
            };
            Found::Prebuilt(arches.iter().map(source).collect::<Result<_, _>>()?)
        }
        (None, Some(fields), None, None, None, None, None) => by_path(fields, folder, path)?,
        (None, None, Some(fields), None, None, None, None) => {
            let UrlFields { image, sha256, config } = fields.value;
            let config =
                config.map(|config| download(config.url, config.sha256, path)).transpose()?;
            Found::Prebuilt(vec![Source::Url { image: download(image, sha256, path)?, config }])
        }
        (None, None, None, Some(packages), None, None, None) => {
            if !(1..=MOST_PACKAGES).contains(&packages.value.len()) {
                let message = format!("expected 1 to {MOST_PACKAGES} packages of one kernel");
                return Err(config::invalid(path, &packages, &message));
            }
            let packages = packages.value.into_iter().map(|fields| place(fields, folder, path));
            Found::Prebuilt(vec![Source::Packages(packages.collect::<Result<_, _>>()?)])
        }
        (None, None, None, None, Some(fields), None, None) => {
            Found::Sources(git_tree(fields.value, folder, path)?)
        }
        (None, None, None, None, None, Some(fields), None) => {
            Found::Sources(debian_tree(fields.value, pin.as_ref(), path)?)
        }
        (None, None, None, None, None, None, Some(fields)) => {
            Found::Sources(match place(fields, folder, path)? {
                Place::File(file) => Tree::TarballFile(file),
                Place::Url(download) => Tree::TarballUrl(download),
            })
        }
        (debian, from_path, url, packages, git, debian_source, tarball) => {
            let places = [
                debian.map(|at| config::invalid(path, &at, EXACTLY_ONE)),
                from_path.map(|at| config::invalid(path, &at, EXACTLY_ONE)),
                url.map(|at| config::invalid(path, &at, EXACTLY_ONE)),
                packages.map(|at| config::invalid(path, &at, EXACTLY_ONE)),
                git.map(|at| config::invalid(path, &at, EXACTLY_ONE)),
                debian_source.map(|at| config::invalid(path, &at, EXACTLY_ONE)),
                tarball.map(|at| config::invalid(path, &at, EXACTLY_ONE)),
            ];
            let last = places.into_iter().flatten().last();
            return Err(last.unwrap_or_else(|| config::invalid(path, &arch_at, EXACTLY_ONE)));
        }
    };
    if let Some(pin) = &pin
        && !is_of_debian
    {
        return Err(config::invalid(path, pin, ONLY_DEBIAN));
    }
    let sources = match source {
        Found::Sources(tree) => {
            vec![Source::Built(recipe(tree, toolchain, config, folder)); arches.len()]
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
                let message = "an image has one architecture: expected one; write a manifest for \
                               each other one";
                return Err(config::invalid(path, &arch_at, message));
            }
            sources
        }
    };
    let stem = path.file_stem().and_then(|stem| stem.to_str()).unwrap_or_default();
    if !is_name(stem) {
        let message = "the file's name is the kernel's: expected letters, digits and `.`, `_`, \
                       `+`, `-` before .yaml";
        return Err(config::invalid(path, &arch_at, message));
    }
    let manifest =
        |(&arch, source)| Manifest { name: stem.to_owned(), arch, source, configuration: None };
    Ok(arches.iter().zip(sources).map(manifest).collect())
}

const EXACTLY_ONE: &str = "a kernel has exactly one source, expected one of debian, path, url, \
                           packages, git, debian-source, tarball";
const ONLY_DEBIAN: &str =
    "a pin is one version of Debian's packages: expected it only with debian or debian-source";
const ONLY_BUILT: &str = "this kernel is not built here: expected toolchain and config only with \
                          git, debian-source, tarball, or path with source";

enum Found {
    /// One source for each architecture.
    Prebuilt(Vec<Source>),
    Sources(Tree),
}

fn recipe(
    tree: Tree,
    toolchain: Option<Spanned<Toolchain>>,
    config: Option<Spanned<Vec<PathBuf>>>,
    folder: &Path,
) -> Recipe {
    let toolchain = toolchain.map_or_else(Toolchain::default, |at| at.value);
    let config = config.map_or_else(Vec::new, |config| config.value);
    let config = config.into_iter().map(|file| folder.join(file)).collect();
    Recipe { tree, toolchain, config, variation: Variation::default() }
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
    check_reference(&reference.value)
        .map_err(|message| config::invalid(path, &reference, message))?;
    let place = repository_of(&repository.value, folder)
        .map_err(|message| config::invalid(path, &repository, message))?;
    Ok(Tree::Git { repository: place, reference: reference.value })
}

fn debian_tree(
    fields: DebianSourceFields,
    pin: Option<&Spanned<PinFields>>,
    path: &Path,
) -> Result<Tree, ConfigError> {
    let DebianSourceFields { package, version } = fields;
    if !is_source_package(&package.value) {
        return Err(config::invalid(
            path,
            &package,
            "expected a package with one kernel's sources, such as linux-source-6.12, or \
             linux-source for the newest",
        ));
    }
    if let Some(version) = &version
        && !is_version(&version.value)
    {
        return Err(config::invalid(
            path,
            version,
            "expected a version of Debian's, such as 6.12.107-1",
        ));
    }
    let (package, version) = (package.value, version.map(|version| version.value));
    let fits =
        |pin: &Pin| source::debian::chosen(&package, version.as_deref(), pin.packages()).is_some();
    let pin = pin.map(|pin| pinned(pin, None, fits, path)).transpose()?;
    Ok(Tree::DebianSource { package, version, pin })
}

/// The files of a pin for an architecture, or for all. It must have the kernel or its sources.
fn pinned(
    fields: &Spanned<PinFields>,
    arch: Option<Arch>,
    fits: impl FnOnce(&Pin) -> bool,
    path: &Path,
) -> Result<Pin, ConfigError> {
    let PinFields { snapshot, files } = &fields.value;
    if !is_time(&snapshot.value) {
        let message = "expected a time such as 20261030T120000Z";
        return Err(config::invalid(path, snapshot, message));
    }
    if files.len() > MOST_PINNED {
        let message = format!("expected at most {MOST_PINNED} packages");
        return Err(config::invalid(path, fields, &message));
    }
    let wanted = arch.map_or("all", |arch| arch.platform().debian);
    let mut pin = Pin { snapshot: snapshot.value.clone(), files: Vec::new() };
    for at in files {
        let FileFields { path: place, size, sha256 } = &at.value;
        let file = File { path: place.clone(), size: *size, sha256: sha256.clone() };
        let Some(package) = pinned_package(&file) else {
            let message = "expected a package of Debian: pool/…/NAME_VERSION_ARCHITECTURE.deb, its \
                           size in bytes, and its SHA-256: 64 lower-case hexadecimal digits";
            return Err(config::invalid(path, at, message));
        };
        let is_known = |known: &File| known.sha256 == file.sha256 || known.path == file.path;
        if pin.files.iter().any(is_known) {
            return Err(config::invalid(path, at, "expected each package once"));
        }
        if package.architecture == wanted {
            let is_other = |known: Package| known.version != package.version;
            if pin.packages().next().is_some_and(is_other) {
                return Err(config::invalid(path, at, "expected one version of all packages"));
            }
            pin.files.push(file);
        }
    }
    if !fits(&pin) {
        let message = format!(
            "expected packages of this kernel for {wanted}: `{} kernels --pin` writes them",
            called()
        );
        return Err(config::invalid(path, fields, &message));
    }
    Ok(pin)
}

/// `20261030T120000Z`
fn is_time(text: &str) -> bool {
    let format = format_description!("[year][month][day]T[hour][minute][second]Z");
    PrimitiveDateTime::parse(text, format).is_ok()
}

fn place(fields: Spanned<PlaceFields>, folder: &Path, path: &Path) -> Result<Place, ConfigError> {
    match fields.value {
        PlaceFields { path: Some(file), url: None, sha256: None } => {
            Ok(Place::File(folder.join(file.value)))
        }
        PlaceFields { path: None, url: Some(url), sha256: Some(sha256) } => {
            Ok(Place::Url(download(url, sha256, path)?))
        }
        PlaceFields { path: None, url: Some(url), sha256: None } => Err(config::invalid(
            path,
            &url,
            "expected sha256 as well: what is downloaded is checked",
        )),
        PlaceFields { path: Some(_), url: None, sha256: Some(sha256) } => Err(config::invalid(
            path,
            &sha256,
            "sha256 is of a url: a file on this machine is taken as it is; leave sha256 out",
        )),
        _ => Err(config::invalid(path, &fields, "expected either path, or url and sha256")),
    }
}

fn wanted(
    debian: &Spanned<DebianFields>,
    arch: Arch,
    path: &Path,
) -> Result<WantedKernel, ConfigError> {
    let error = |at: &Spanned<String>, message: &str| Err(config::invalid(path, at, message));
    let whole = |message: &str| Err(config::invalid(path, debian, message));
    let DebianFields { series, flavour, package, version } = &debian.value;
    match (series, flavour, package, version) {
        (Some(series), Some(flavour), None, None) => {
            if !is_series(&series.value) && series.value != "newest" {
                return error(series, "expected a series such as \"6.12\", or newest");
            }
            let architecture = arch.platform().debian;
            let names =
                |arch: &Arch| flavour.value.split('-').any(|word| word == arch.platform().debian);
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
            Ok(WantedKernel::Newest { series, flavour: full })
        }
        (None, None, Some(package), version) => {
            let Some(release) = release_of(&package.value) else {
                return error(
                    package,
                    "expected a package with one kernel, linux-image-RELEASE or \
                     linux-binary-RELEASE \
                     (for the newest of a series give series and flavour instead)",
                );
            };
            let architecture = arch.platform().debian;
            if !release.split('-').any(|word| word == architecture) {
                return error(
                    package,
                    &format!("expected a package with a kernel for {}", arch.name()),
                );
            }
            let version = version.as_ref().map(|version| version.value.clone());
            Ok(WantedKernel::Package { name: package.value.clone(), version })
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
            "expected series as well, such as \"6.12\" or newest: the newest kernel is chosen by \
             both",
        ),
        _ => whole("expected either series and flavour, or package and perhaps version"),
    }
}

fn download(
    url: Spanned<String>,
    sha256: Spanned<String>,
    path: &Path,
) -> Result<Download, ConfigError> {
    if !url.value.starts_with("https://") && !url.value.starts_with("http://") {
        return Err(config::invalid(
            path,
            &url,
            "expected a URL that starts with https:// or http://",
        ));
    }
    let is_hex = |c: char| c.is_ascii_digit() || ('a'..='f').contains(&c);
    if sha256.value.len() != 64 || !sha256.value.chars().all(is_hex) {
        return Err(config::invalid(
            path,
            &sha256,
            "expected a SHA-256: 64 lower-case hexadecimal digits",
        ));
    }
    Ok(Download { url: url.value, sha256: sha256.value })
}
