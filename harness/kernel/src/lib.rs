// SPDX-License-Identifier: MIT OR Apache-2.0
//! Kernels and patch series. A manifest names a kernel; [`fetch`] brings its image to this host.

mod argument;
pub mod axis;
pub mod compile;
mod debian;
mod download;
mod envelope;
pub mod git;
mod ikconfig;
mod image;
mod installed;
mod isolated;
pub mod kconfig;
mod manifest;
mod modules;
mod packages;
pub mod pins;
mod registry;
mod running;
pub mod series;
pub mod source;
pub mod tree_tests;
pub mod vmlinux;

pub use argument::find;
pub use image::ImageError;
pub use kconfig::{Kconfig, Missing, NotKconfig};
pub use manifest::{
    BadToolchain, Compiler, Download, Manifest, Place, Recipe, Source, Toolchain, Tree, Variation,
    WantedKernel, load_manifest, names, parse as parse_manifest, schema as manifest_schema,
};
pub use modules::{Module, Modules, NoModule};
pub use running::running;
pub use source::{Resolved, SourceError};

use crate::vmlinux::VmlinuxError;
use std::{
    fs,
    io::{self, Seek},
    path::{Path, PathBuf},
};
use tramplab_host::{
    cache::{Cache, CacheError},
    config::ConfigError,
    debian::{ArchiveError, DebianError},
    sha256,
};
use tramplab_model::run::Arch;
use tramplab_protocol::Mechanism;

#[derive(Debug, thiserror::Error)]
pub enum KernelError {
    #[error(transparent)]
    Manifest(#[from] ConfigError),
    #[error(
        "failed to find the kernel `{name}`: no {}, and no such file; known: {}",
        .folder.join(format!("{name}.yaml")).display(),
        if .known.is_empty() { "none".to_owned() } else { .known.join(", ") }
    )]
    Unknown { name: String, folder: PathBuf, known: Vec<String> },
    #[error("failed to understand the kernel `{name}`: {expected}")]
    Argument { name: String, expected: String },
    #[error("failed to use the axis {axis}: {reason}")]
    Axis { axis: String, reason: String },
    #[error(transparent)]
    Source(#[from] SourceError),
    #[error(transparent)]
    Git(#[from] git::GitError),
    #[error("failed to use {path} as a kernel: {source}")]
    Image { path: PathBuf, source: ImageError },
    #[error("failed to read the kernel configuration: {path}: {source}")]
    Config { path: PathBuf, source: NotKconfig },
    #[error("failed to download {url}: {source}")]
    Download { url: String, source: Box<ureq::Error> },
    #[error("failed to download {url}: it has more than {most} MiB")]
    TooLong { url: String, most: u64 },
    #[error("failed to verify {url}: its SHA-256 is {found}; the manifest says {expected}")]
    Checksum { url: String, expected: String, found: String },
    #[error(
        "failed to find a kernel's files in the package {package}: expected one of {}",
        .expected.join(", ")
    )]
    Layout { package: String, expected: Vec<String> },
    #[error(
        "failed to find a kernel in {packages}: expected boot/vmlinuz-RELEASE or \
         [usr/]lib/modules/RELEASE/vmlinuz; name the package with the image: kernel-core of \
         Fedora, kernel-default of openSUSE, linux of Arch, linux-image-RELEASE of Ubuntu"
    )]
    NoKernel { packages: String },
    #[error(
        "failed to choose a kernel: in {packages} are {one} and {other}; name packages of one \
         kernel"
    )]
    Several { packages: String, one: String, other: String },
    #[error("{0}{advice}", advice = again(.0))]
    Package(#[from] ArchiveError),
    #[error("failed to find a guest's modules: {0}; name the package with it in a manifest, too")]
    GuestModule(NoModule),
    #[error(
        "failed to find the image of the running kernel {release}{}\n\
         copy its image there; a guest alone takes it by name, too (--kernel FILE)",
        places(.release, .tried)
    )]
    NotInstalled { release: String, tried: Vec<(PathBuf, String)> },
    #[error("failed to {action} {path}: {source}")]
    Io { action: &'static str, path: PathBuf, source: io::Error },
    #[error(transparent)]
    Fragment(#[from] kconfig::FragmentError),
    #[error("failed to fetch the kernel `{name}`: only vm-test builds kernels from sources")]
    FromSources { name: String },
    #[error("{0}{hint}", hint = without(.0))]
    Debian(#[from] DebianError),
    #[error(transparent)]
    Cache(#[from] CacheError),
    #[error(transparent)]
    Vmlinux(#[from] VmlinuxError),
}

/// The advice for a host that cannot fetch Debian's kernels.
pub const OWN_KERNEL: &str = "name a kernel of your own: an image, or a tree (--kernel ~/linux)";

/// The advice for a version that Debian's suites have no longer.
const GONE: &str = "\nname a series that they have; an older version needs a pin in its manifest";

/// The advice for a package that may be damaged.
fn again(error: &ArchiveError) -> &'static str {
    match error {
        ArchiveError::Broken { .. } => "; fetch it again",
        _ => "",
    }
}

fn without(error: &DebianError) -> String {
    match error {
        DebianError::Archive(ArchiveError::NoVerifier) => format!("; {OWN_KERNEL}"),
        DebianError::Archive(ArchiveError::NotFound { .. }) => GONE.to_owned(),
        _ => String::new(),
    }
}

fn places(release: &str, tried: &[(PathBuf, String)]) -> String {
    if tried.is_empty() {
        return format!("\nthere is none in /boot and /lib/modules/{release}");
    }
    tried.iter().map(|(path, why)| format!("\n{}: {why}", path.display())).collect()
}

impl KernelError {
    fn debian(&self) -> Option<&DebianError> {
        match self {
            KernelError::Debian(error) => Some(error),
            _ => None,
        }
    }

    /// True if the user can fix it by asking for something else; false if the host or the network
    /// failed.
    pub fn is_usage(&self) -> bool {
        match self {
            KernelError::Manifest(_)
            | KernelError::Unknown { .. }
            | KernelError::FromSources { .. }
            | KernelError::Fragment(_)
            | KernelError::Argument { .. }
            | KernelError::Axis { .. }
            | KernelError::Image { .. }
            | KernelError::Config { .. }
            | KernelError::Checksum { .. }
            | KernelError::TooLong { .. }
            | KernelError::NoKernel { .. }
            | KernelError::Several { .. }
            | KernelError::GuestModule(_)
            | KernelError::NotInstalled { .. }
            | KernelError::Debian(DebianError::Archive(ArchiveError::NoVerifier)) => true,
            KernelError::Source(error) => error.is_usage(),
            KernelError::Git(error) => error.is_usage(),
            KernelError::Package(error) => !matches!(error, ArchiveError::Io { .. }),
            KernelError::Io { source, .. } => source.kind() == io::ErrorKind::NotFound,
            KernelError::Download { .. }
            | KernelError::Layout { .. }
            | KernelError::Debian(_)
            | KernelError::Cache(_)
            | KernelError::Vmlinux(_) => false,
        }
    }
}

/// Images that were inside other files.
const BARE: &str = "kernel-image";

/// Where a kernel's modules are.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub enum Loadable {
    /// It is an image without a package.
    #[default]
    Unknown,
    /// In a package that is fetched when a module is asked for.
    Debian(Box<debian::Candidate>),
    /// In a folder and those below it.
    Folder(PathBuf),
}

/// A kernel that is ready to boot.
#[derive(Clone, Debug)]
pub struct Image {
    pub name: String,
    pub arch: Arch,
    pub image: PathBuf,
    pub vmlinux: Option<PathBuf>,
    /// The sizes of its functions, if it was built here.
    pub functions: Option<PathBuf>,
    /// None if the manifest names none and the image has none; then no test is rejected early.
    pub config: Option<Kconfig>,
    /// The file that `config` was read from.
    pub config_file: Option<PathBuf>,
    /// Uncompressed modules that the guest needs to talk to the host, in load order. Usually empty.
    pub modules: Vec<PathBuf>,
    /// The modules that a guest may load besides.
    pub loadable: Loadable,
    /// Shown in reports: `debian linux-image-6.12.107+deb13-cloud-amd64 6.12.107-1`.
    pub source: String,
    pub sha256: String,
}

impl Image {
    /// A kernel that was built on this host. `name` is its name in reports.
    pub fn built(
        name: &str,
        order: &compile::Order,
        built: &compile::Built,
    ) -> Result<Image, KernelError> {
        image::check(&built.image, order.arch)
            .map_err(|source| KernelError::Image { path: built.image.clone(), source })?;
        Ok(Image {
            name: name.to_owned(),
            arch: order.arch,
            image: built.image.clone(),
            vmlinux: built.vmlinux.clone(),
            functions: built.functions.clone(),
            config: Some(read_config(&built.config)?),
            config_file: Some(built.config.clone()),
            modules: Vec::new(),
            loadable: built.modules.clone().map_or(Loadable::Unknown, Loadable::Folder),
            source: order.description.clone(),
            sha256: built.record.sha256.clone(),
        })
    }

    /// Returns the options this kernel lacks for any measurement. Empty if its configuration is
    /// unknown.
    pub fn missing_base(&self) -> Vec<Missing> {
        let Some(config) = &self.config else { return Vec::new() };
        let mut missing = config.missing(&kconfig::required_base(self.arch));
        missing.retain(|missing| !(missing.module && self.brings(missing.option)));
        missing
    }

    /// Returns the options this kernel lacks for one mechanism. Empty if its configuration is
    /// unknown.
    pub fn missing_for(&self, mechanism: Mechanism) -> Vec<Missing> {
        self.config.as_ref().map_or_else(Vec::new, |config| config.missing(mechanism.options()))
    }

    /// Returns the options that are not built in. `options` omit the prefix `CONFIG_`. Empty if the
    /// configuration is unknown.
    pub fn not_built_in(&self, options: &[&'static str]) -> Vec<String> {
        let Some(config) = &self.config else { return Vec::new() };
        let missing = config.missing(options);
        missing.iter().map(ToString::to_string).collect()
    }

    /// All modules that a guest may load. None if they are unknown.
    pub fn loadable(
        &self,
        cache: &Cache,
        progress: &mut dyn FnMut(&str),
    ) -> Result<Option<Modules>, KernelError> {
        Ok(match &self.loadable {
            Loadable::Unknown => None,
            Loadable::Debian(candidate) => {
                Some(debian::modules(candidate, self.arch, cache, progress)?)
            }
            Loadable::Folder(folder) => Some(Modules::of(folder)?),
        })
    }

    /// Fetches the code and source lines of a kernel of Debian.
    pub fn fetch_vmlinux(
        &mut self,
        cache: &Cache,
        progress: &mut dyn FnMut(&str),
    ) -> Result<(), KernelError> {
        if let Loadable::Debian(candidate) = &self.loadable {
            self.vmlinux = Some(debian::vmlinux(candidate, self.arch, cache, progress)?);
        }
        Ok(())
    }

    /// True if the guest loads this option's module.
    fn brings(&self, option: &str) -> bool {
        let file = format!("-{}.ko", option.to_ascii_lowercase());
        self.modules.iter().any(|module| module.to_string_lossy().ends_with(&file))
    }
}

/// Brings a kernel to this host, from the cache if it is there. `progress` gets a line for each
/// slow step and for each problem that `fetch` works around.
pub fn fetch(
    manifest: &Manifest,
    cache: &Cache,
    progress: &mut dyn FnMut(&str),
) -> Result<Image, KernelError> {
    let arch = manifest.arch;
    let plain = |image: PathBuf, source: String, sha256: String| Image {
        name: manifest.name.clone(),
        arch,
        image,
        vmlinux: None,
        functions: None,
        config: None,
        config_file: None,
        modules: Vec::new(),
        loadable: Loadable::Unknown,
        source,
        sha256,
    };
    let mut image = match &manifest.source {
        Source::Debian { wanted, pin } => {
            let files = debian::fetch(wanted, pin.as_ref(), arch, cache, progress)?;
            let (config_file, modules) = (Some(files.config), files.modules);
            let loadable = Loadable::Debian(Box::new(files.candidate));
            let image = plain(files.image, files.source, files.sha256);
            Image { config_file, modules, loadable, ..image }
        }
        Source::Path { image, vmlinux, config } => {
            for path in [Some(image), vmlinux.as_ref()].into_iter().flatten() {
                fs::metadata(path).map_err(io_error("find", path))?;
            }
            let sha256 = sha256(image).map_err(io_error("read", image))?;
            let (vmlinux, config_file) = (vmlinux.clone(), config.clone());
            let source = format!("path {}", image.display());
            Image { vmlinux, config_file, ..plain(image.clone(), source, sha256) }
        }
        Source::Url { image, config } => {
            let entry = fetch_url(image, config.as_ref(), cache, progress)?;
            let config_file = config.as_ref().map(|_| entry.join("config"));
            let source = format!("url {}", image.url);
            Image { config_file, ..plain(entry.join("image"), source, image.sha256.clone()) }
        }
        Source::Packages(packages) => {
            let files = packages::fetch(packages, cache, progress)?;
            let sha256 = sha256(&files.image).map_err(io_error("read", &files.image))?;
            let (config_file, modules) = (files.config, files.guest);
            let loadable = Loadable::Folder(files.modules);
            let image = plain(files.image, files.source, sha256);
            Image { config_file, modules, loadable, ..image }
        }
        Source::Installed => {
            let files = running::files(cache, progress)?;
            let sha256 = sha256(&files.image).map_err(io_error("read", &files.image))?;
            let (config_file, modules) = (files.config, files.guest);
            let loadable = files.modules.map_or(Loadable::Unknown, Loadable::Folder);
            let image = plain(files.image, files.source, sha256);
            Image { config_file, modules, loadable, ..image }
        }
        Source::Built(_) => return Err(KernelError::FromSources { name: manifest.name.clone() }),
        // It need not have an image here: it runs.
        Source::Running => {
            let found = running::found()?;
            let config_file = running::config(cache, &found)?;
            let running::Found { source, sha256, .. } = found;
            let config = config_file.as_deref().map(read_config).transpose()?;
            return Ok(Image { config, config_file, ..plain(PathBuf::new(), source, sha256) });
        }
    };
    let source = PathBuf::from(&image.source);
    // The user named no file of the cache.
    let named = |file: &Path| match file.starts_with(cache.root()) {
        true => source.clone(),
        false => file.to_owned(),
    };
    let path = named(&image.image);
    let unusable = |source| KernelError::Image { path: path.clone(), source };
    image.image = bare(&image, cache, unusable)?;
    if image.config_file.is_none() {
        image.config_file = match ikconfig::cached(&image.image, &image.sha256, cache) {
            // An image without a configuration boots, too.
            Err(KernelError::Cache(error)) => {
                progress(&format!("no configuration of {}: {error}", image.image.display()));
                None
            }
            config => config?,
        };
    }
    image.config = match image.config_file.as_deref().map(read_config).transpose() {
        Err(KernelError::Config { path, source }) => {
            return Err(KernelError::Config { path: named(&path), source });
        }
        config => config?,
    };
    match (&image.config, &manifest.source) {
        (None, Source::Installed) => running::tell_unknown_config(progress),
        (None, _) => progress(&format!(
            "no configuration of {} was found: no test is rejected early",
            image.source
        )),
        _ => {}
    }
    // Cached images are checked too. Reading a header is cheap, and a guest that hangs prints
    // nothing.
    image::check(&image.image, arch).map_err(unusable)?;
    Ok(image)
}

/// The image that QEMU boots: the file itself, or an image inside it, unpacked into the cache.
fn bare(
    image: &Image,
    cache: &Cache,
    unusable: impl Fn(ImageError) -> KernelError,
) -> Result<PathBuf, KernelError> {
    let path = &image.image;
    let mut file = fs::File::open(path).map_err(io_error("read", path))?;
    if let Some(entry) = cache.get(BARE, &image.sha256) {
        return Ok(entry.join("image"));
    }
    let Some(mut inner) = envelope::bare(&mut file).map_err(unusable)? else {
        return Ok(path.clone());
    };
    let entry = cache.entry(BARE, &image.sha256, |folder| {
        let to = folder.join("image");
        inner
            .rewind()
            .and_then(|()| {
                let mut image = fs::File::create(&to)?;
                io::copy(&mut inner, &mut image)
            })
            .map_err(io_error("write", &to))?;
        Ok::<_, KernelError>(())
    })?;
    Ok(entry.join("image"))
}

/// Downloads an image and perhaps its configuration. Returns the cache entry with `image` and
/// `config`.
fn fetch_url(
    image: &Download,
    config: Option<&Download>,
    cache: &Cache,
    progress: &mut dyn FnMut(&str),
) -> Result<PathBuf, KernelError> {
    let key = match config {
        Some(config) => format!("{}-{}", image.sha256, config.sha256),
        None => image.sha256.clone(),
    };
    cache.entry("kernel-url", &key, |folder| {
        progress(&format!("fetching {}", image.url));
        download::fetch(image, &folder.join("image"))?;
        config.map_or(Ok(()), |config| download::fetch(config, &folder.join("config")))
    })
}

fn io_error<'a>(
    action: &'static str,
    path: &'a Path,
) -> impl FnOnce(io::Error) -> KernelError + use<'a> {
    move |source| KernelError::Io { action, path: path.to_owned(), source }
}

fn read_config(path: &Path) -> Result<Kconfig, KernelError> {
    let bytes = fs::read(path).map_err(io_error("read", path))?;
    // A damaged one is no text: the error names its line.
    let text = String::from_utf8_lossy(&bytes);
    Kconfig::parse(&text).map_err(|source| KernelError::Config { path: path.to_owned(), source })
}
