// SPDX-License-Identifier: MIT OR Apache-2.0
//! Pins of manifests: written, and compared with what Debian has now.

use crate::{
    KernelError, debian, io_error,
    manifest::{Manifest, Recipe, Source, Tree, WantedKernel, parse},
    registry,
    source::debian as source,
};
use std::{cmp::Ordering, fs, io, path::Path};
use tramplab_host::{
    cache::{Cache, write_whole},
    config::ConfigError,
    debian::{ArchiveError, Debian, File, Package, Pin, compare_versions},
};

/// Tells if a kernel of Debian can be had.
#[derive(Debug)]
pub struct Availability {
    /// The pinned version, or the newest that the suites have.
    pub version: Result<String, KernelError>,
    pub is_cached: bool,
    pub pin: Option<Pinned>,
}

/// Tells which servers have the packages of a pin.
#[derive(Debug)]
pub struct Pinned {
    pub mirrors: Result<(), ArchiveError>,
    pub snapshot: Result<(), ArchiveError>,
    /// The newest version in the suites, if that is a newer one.
    pub newer: Result<Option<String>, KernelError>,
}

impl Availability {
    /// True if a run can have the kernel.
    pub fn is_there(&self) -> bool {
        self.is_cached
            || match &self.pin {
                Some(pin) => pin.mirrors.is_ok() || pin.snapshot.is_ok(),
                None => self.version.is_ok(),
            }
    }
}

/// Looks whether the kernel can be had. None if it is not Debian's.
pub fn availability(
    manifest: &Manifest,
    cache: &Cache,
    progress: &mut dyn FnMut(&str),
) -> Result<Option<Availability>, KernelError> {
    let Some(wanted) = Wanted::of(manifest) else { return Ok(None) };
    let newest = wanted.search(cache, None, progress, |debian| wanted.kernel(None, debian));
    let Some(pin) = wanted.pin else {
        let is_cached = newest.as_ref().is_ok_and(|kernel| kernel.is_cached(None, cache));
        let version = newest.map(|kernel| kernel.version().to_owned());
        return Ok(Some(Availability { version, is_cached, pin: None }));
    };
    let look = |debian: &Debian| Ok((wanted.kernel(Some(pin), debian)?, debian.availability()));
    let (kernel, found) = wanted.search(cache, Some(pin), progress, look)?;
    let [mirrors, snapshot] = found.expect("of a pin");
    let version = kernel.version().to_owned();
    let is_newer =
        |kernel: &Kernel| compare_versions(kernel.version(), &version) == Ordering::Greater;
    let newer = newest
        .map(|newest| Some(newest).filter(is_newer).map(|newest| newest.version().to_owned()));
    Ok(Some(Availability {
        version: Ok(version),
        is_cached: kernel.is_cached(Some(pin), cache),
        pin: Some(Pinned { mirrors, snapshot, newer }),
    }))
}

/// Pins a manifest's file to the newest version that Debian's suites have. None if its kernel is
/// not Debian's.
pub fn raise(
    path: &Path,
    cache: &Cache,
    progress: &mut dyn FnMut(&str),
) -> Result<Option<Pin>, KernelError> {
    // The file itself, not a link to it.
    let path = &fs::canonicalize(path).map_err(io_error("find", path))?;
    let metadata = fs::metadata(path).map_err(io_error("read", path))?;
    if metadata.permissions().readonly() {
        let source = io::ErrorKind::PermissionDenied.into();
        return Err(KernelError::Io { action: "write", path: path.to_owned(), source });
    }
    let text = fs::read_to_string(path).map_err(io_error("read", path))?;
    // An old pin may be of another series.
    let manifests = parse(&with_block(&text, None), path)?;
    let Some(pin) = newest(&manifests, cache, progress)? else { return Ok(None) };
    let text = written(&text, &pin, path)?;
    write_whole(path, text.as_bytes()).map_err(io_error("write", path))?;
    Ok(Some(pin))
}

fn newest(
    manifests: &[Manifest],
    cache: &Cache,
    progress: &mut dyn FnMut(&str),
) -> Result<Option<Pin>, KernelError> {
    let mut whole: Option<Pin> = None;
    for manifest in manifests {
        let Some(wanted) = Wanted::of(manifest) else { return Ok(None) };
        let pin = wanted.search(cache, None, progress, |debian| {
            Ok(debian.pin(&wanted.kernel(None, debian)?.packages(debian)?)?)
        })?;
        match &mut whole {
            None => whole = Some(pin),
            Some(whole) => {
                let is_new = |file: &File| !whole.files.contains(file);
                let new: Vec<File> = pin.files.into_iter().filter(is_new).collect();
                whole.files.extend(new);
                whole.snapshot = std::mem::take(&mut whole.snapshot).max(pin.snapshot);
            }
        }
    }
    Ok(whole)
}

/// The text of a manifest with another pin, or with its first.
fn written(text: &str, pin: &Pin, path: &Path) -> Result<String, ConfigError> {
    let mut block = format!("pin:\n  snapshot: {}\n  files:", pin.snapshot);
    for File { path, size, sha256 } in &pin.files {
        block += &format!("\n  - path: {path}\n    size: {size}\n    sha256: {sha256}");
    }
    let text = with_block(text, Some(&block));
    parse(&text, path)?;
    Ok(text)
}

/// The text with another pin, or without.
fn with_block(text: &str, block: Option<&str>) -> String {
    let is_inner = |line: &str| line.is_empty() || line.starts_with([' ', '-']);
    let mut lines = text.lines().peekable();
    let mut kept = Vec::new();
    let mut block = block;
    while let Some(line) = lines.next() {
        if !line.starts_with("pin:") {
            kept.push(line);
            continue;
        }
        while lines.next_if(|line| is_inner(line)).is_some() {}
        kept.extend(block.take());
    }
    kept.extend(block);
    kept.join("\n") + "\n"
}

/// A manifest's kernel of Debian.
struct Wanted<'a> {
    what: What<'a>,
    pin: Option<&'a Pin>,
    architecture: &'static str,
}

enum What<'a> {
    Image(&'a WantedKernel),
    Sources { package: &'a str, version: Option<&'a str> },
}

enum Kernel {
    Image(Box<debian::Candidate>),
    Sources(Package),
}

impl Wanted<'_> {
    fn of(manifest: &Manifest) -> Option<Wanted<'_>> {
        let (what, pin, architecture) = match &manifest.source {
            Source::Debian { wanted, pin } => {
                (What::Image(wanted), pin, manifest.arch.platform().debian)
            }
            Source::Built(Recipe {
                tree: Tree::DebianSource { package, version, pin }, ..
            }) => {
                (What::Sources { package, version: version.as_deref() }, pin, source::ARCHITECTURE)
            }
            Source::Path { .. }
            | Source::Url { .. }
            | Source::Packages(_)
            | Source::Built(_)
            | Source::Installed
            | Source::Running => return None,
        };
        Some(Wanted { what, pin: pin.as_ref(), architecture })
    }

    fn search<R>(
        &self,
        cache: &Cache,
        pin: Option<&Pin>,
        progress: &mut dyn FnMut(&str),
        mut attempt: impl FnMut(&Debian) -> Result<R, KernelError>,
    ) -> Result<R, KernelError> {
        registry::search(cache, self.architecture, pin, progress, |debian, _| attempt(debian))
    }

    fn kernel(&self, pin: Option<&Pin>, debian: &Debian) -> Result<Kernel, KernelError> {
        Ok(match &self.what {
            What::Image(wanted) => Kernel::Image(Box::new(debian::choose(wanted, pin, debian)?)),
            What::Sources { package, version } => {
                Kernel::Sources(source::choose(package, *version, debian)?)
            }
        })
    }
}

impl Kernel {
    fn version(&self) -> &str {
        match self {
            Kernel::Image(candidate) => candidate.version(),
            Kernel::Sources(package) => &package.version,
        }
    }

    fn is_cached(&self, pin: Option<&Pin>, cache: &Cache) -> bool {
        match self {
            Kernel::Image(candidate) => candidate.cached(cache).is_some(),
            Kernel::Sources(package) => source::is_cached(package, pin, cache),
        }
    }

    /// All packages that a run may ask for.
    fn packages(&self, debian: &Debian) -> Result<Vec<Package>, KernelError> {
        match self {
            Kernel::Image(candidate) => candidate.packages(debian),
            Kernel::Sources(package) => Ok(vec![package.clone()]),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{load_manifest, names};

    fn file(name: &str) -> File {
        let path = format!("pool/main/l/linux/{name}.deb");
        File { path, size: 7, sha256: "0123456789abcdef".repeat(4) }
    }

    #[test]
    fn writes_a_pin_and_keeps_the_rest_of_the_manifest() {
        let pin = Pin {
            snapshot: "20261030T120000Z".into(),
            files: vec![file("linux-source-7.2_7.2.13-1_all")],
        };
        let block = format!(
            "pin:\n  snapshot: 20261030T120000Z\n  files:\n  - path: {}\n    size: 7\n    \
             sha256: {}\n",
            pin.files[0].path, pin.files[0].sha256
        );
        let head = "# A comment.\narch: arm64\ndebian-source:\n  package: linux-source-7.2\n";
        let older = block.replace("20261030", "20250101").replace("7.2.13", "7.2.1");
        let blank = older.replace("  files:", "\n  files:");
        let tail = "# Ours.\nconfig: [my.config]\n";
        let path = Path::new("kernels/some.yaml");
        for (text, expected) in [
            (head.to_owned(), format!("{head}{block}")),
            (format!("{head}{older}"), format!("{head}{block}")),
            (format!("{head}{blank}{tail}"), format!("{head}{block}{tail}")),
            (format!("{older}{head}"), format!("{block}{head}")),
        ] {
            assert_eq!(written(&text, &pin, path).unwrap(), expected, "{text}");
        }
        // One that its own manifest would not take.
        let other = Pin { files: vec![file("linux-source-7.1_7.1.9-1_all")], ..pin };
        assert!(written(head, &other, path).is_err());
    }

    /// Each shipped manifest but the newest ones names all that a run may ask for.
    #[test]
    fn shipped_kernels_are_pinned_with_all_their_packages() {
        let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../kernels");
        let (home, mut pinned) = (tempfile::tempdir().unwrap(), 0);
        let cache = Cache::at(home.path(), true);
        for name in names(&folder) {
            for manifest in load_manifest(&folder.join(format!("{name}.yaml"))).unwrap() {
                let wanted = Wanted::of(&manifest).expect("a kernel of Debian");
                let Some(pin) = wanted.pin else {
                    assert!(name.starts_with("newest"), "{name}");
                    continue;
                };
                let debian = Debian::pinned(&cache, wanted.architecture, pin).unwrap();
                let kernel = wanted.kernel(Some(pin), &debian).unwrap();
                let packages = kernel.packages(&debian).unwrap();
                assert_eq!(packages.len(), pin.files.len(), "{name}");
                let series = name.split_once('-').map_or(&*name, |(series, _)| series);
                assert!(kernel.version().starts_with(series) || name == "letter-2024", "{name}");
                assert!(!kernel.is_cached(Some(pin), &cache));
                pinned += 1;
            }
        }
        assert_eq!(pinned, 13);
    }
}
