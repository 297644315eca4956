// SPDX-License-Identifier: MIT OR Apache-2.0
//! Debian's kernels: finds the package with the wanted kernel and extracts its files.
//!
//! Up to 6.x one package `linux-image-RELEASE` holds the image and its configuration in `/boot`.
//! Since 7.0 the image is in `linux-binary-RELEASE` and the configuration in `linux-base-RELEASE`,
//! both under `/usr/lib/modules/RELEASE`. Each also exists unsigned, under another package name.

mod debug;

pub use debug::vmlinux;

use super::{
    KernelError, image, installed, io_error,
    manifest::{WantedKernel, release_of},
    modules::{BUILT_IN, Modules},
    registry::{self, Question, newest},
};
use serde::{Deserialize, Serialize};
use std::{
    fs,
    ops::Not,
    path::{Path, PathBuf},
};
use tramplab_host::{
    cache::Cache,
    debian::{Debian, Package, Pin},
    sha256,
};
use tramplab_model::run::Arch;

const KIND: &str = "kernel-debian";
const MODULES_KIND: &str = "kernel-modules";
/// Raise it if entries get other files of the same packages.
const RECIPE: u32 = 2;

/// A kernel in the registry.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Candidate {
    /// As `uname -r` prints it.
    release: String,
    image: Package,
    /// The package with the configuration, if the image's package lacks it.
    base: Option<Package>,
    /// All its packages, if a manifest names them by their hashes.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pin: Option<Pin>,
}

impl Candidate {
    fn key(&self) -> String {
        self.key_of(&self.image.name)
    }

    /// A manifest may be a stranger's: its pin does not choose what Debian's name stands for.
    fn key_of(&self, package: &str) -> String {
        let pin = self.pin.as_ref().map_or_else(String::new, |pin| format!("+{}", pin.digest()));
        format!("{package}={}{pin}", self.image.version)
    }

    /// Its key for an entry with files that [`RECIPE`] chooses.
    fn recipe_key(&self) -> String {
        format!("{}+{RECIPE}", self.key())
    }

    pub fn version(&self) -> &str {
        &self.image.version
    }

    /// Its files in the cache.
    pub fn cached(&self, cache: &Cache) -> Option<PathBuf> {
        cache.get(KIND, &self.recipe_key())
    }

    /// Those with its image, its configuration, its modules and its debug information.
    pub fn packages(&self, debian: &Debian) -> Result<Vec<Package>, KernelError> {
        let debug = debian.exactly(&debug::package(&self.release), &self.image.version)?;
        let modules = self.modules(debian)?.into_iter().filter(|package| *package != self.image);
        let mut packages: Vec<_> = std::iter::once(self.image.clone()).chain(modules).collect();
        packages.push(debug);
        Ok(packages)
    }

    /// The packages with its modules and the list of those that are built in.
    fn modules(&self, debian: &Debian) -> Result<Vec<Package>, KernelError> {
        Ok(match &self.base {
            None => vec![self.image.clone()],
            Some(base) => {
                let name = format!("linux-modules-{}", self.release);
                vec![debian.exactly(&name, &self.image.version)?, base.clone()]
            }
        })
    }

    fn source(&self) -> String {
        format!("debian {} {}", self.image.name, self.image.version)
    }
}

/// A kernel's files in the cache.
pub struct Files {
    pub image: PathBuf,
    pub config: PathBuf,
    /// In load order.
    pub modules: Vec<PathBuf>,
    pub sha256: String,
    pub source: String,
    pub candidate: Candidate,
}

/// The contents of `kernel.json` in a cache entry.
#[derive(Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct Record {
    candidate: Candidate,
    /// No mirror gave it.
    #[serde(default, skip_serializing_if = "Not::not")]
    of_snapshot: bool,
    image_sha256: String,
    modules: Vec<String>,
}

pub fn fetch(
    wanted: &WantedKernel,
    pin: Option<&Pin>,
    arch: Arch,
    cache: &Cache,
    progress: &mut dyn FnMut(&str),
) -> Result<Files, KernelError> {
    // A pin is asked without the registry, and without waiting for others who ask it.
    let pinned = pin.and_then(|pin| chosen(wanted, Some(pin), pin.packages().collect()));
    if let Some(entry) = pinned.and_then(|candidate| candidate.cached(cache)) {
        return files(&entry);
    }
    let registry = |progress: &mut dyn FnMut(&str)| {
        registry::search(cache, arch.platform().debian, pin, progress, |debian, progress| {
            let candidate = choose(wanted, pin, debian)?;
            let entry = cache.entry(KIND, &candidate.recipe_key(), |folder| {
                progress(&format!("fetching {}", candidate.source()));
                fill(&candidate, arch, debian, folder, progress)
            })?;
            Ok((candidate, entry))
        })
    };
    match pin {
        Some(_) => files(&registry(progress)?.1),
        None => fetch_by(wanted, arch, cache, progress, registry),
    }
}

fn fetch_by(
    wanted: &WantedKernel,
    arch: Arch,
    cache: &Cache,
    progress: &mut dyn FnMut(&str),
    registry: impl FnOnce(&mut dyn FnMut(&str)) -> Result<(Candidate, PathBuf), KernelError>,
) -> Result<Files, KernelError> {
    let here = |candidate: &Candidate| candidate.cached(cache);
    let entry = question(wanted, arch).ask(cache, progress, here, Candidate::source, registry)?;
    files(&entry)
}

pub fn choose(
    wanted: &WantedKernel,
    pin: Option<&Pin>,
    debian: &Debian,
) -> Result<Candidate, KernelError> {
    let described = match wanted {
        WantedKernel::Newest { series: Some(series), flavour } => {
            format!("a kernel of series {series}, flavour {flavour}")
        }
        WantedKernel::Newest { series: None, flavour } => format!("a kernel of flavour {flavour}"),
        WantedKernel::Package { name, version: Some(version) } => {
            format!("version {version} of the package {name}")
        }
        WantedKernel::Package { name, version: None } => format!("the package {name}"),
    };
    let base = match wanted {
        WantedKernel::Newest { .. } => String::new(),
        WantedKernel::Package { name, .. } => {
            let release = release_of(name).expect("checked when the manifest was read");
            format!("linux-base-{release}")
        }
    };
    let packages = debian.search(|found| match wanted {
        WantedKernel::Newest { flavour, .. } => {
            found.starts_with("linux-") && found.trim_end_matches("-unsigned").ends_with(flavour)
        }
        WantedKernel::Package { name, .. } => found == name || found == base,
    })?;
    chosen(wanted, pin, packages).ok_or_else(|| debian.not_found(&described).into())
}

/// The newest fitting kernel in these packages.
pub fn chosen(
    wanted: &WantedKernel,
    pin: Option<&Pin>,
    packages: Vec<Package>,
) -> Option<Candidate> {
    let fits = |candidate: &Candidate| match wanted {
        WantedKernel::Newest { series, flavour } => {
            is_of(&candidate.release, series.as_deref(), flavour)
        }
        WantedKernel::Package { name, version } => {
            candidate.image.name == *name
                && version.as_ref().is_none_or(|version| candidate.image.version == *version)
        }
    };
    let fitting = candidates(&packages).into_iter().filter(fits);
    let found = newest(fitting, |candidate| &candidate.image)?;
    Some(Candidate { pin: pin.cloned(), ..found })
}

/// Returns the kernels in these packages. A `linux-image-*` of 7.x holds none: it only depends on
/// the others.
fn candidates(packages: &[Package]) -> Vec<Candidate> {
    let base = |release: &str, version: &str| {
        let name = format!("linux-base-{release}");
        packages.iter().find(|package| package.name == name && package.version == version).cloned()
    };
    let split = |release: &str| {
        packages.iter().any(|package| {
            package.name == format!("linux-base-{release}")
                || package.name == format!("linux-binary-{release}")
                || package.name == format!("linux-binary-unsigned-{release}")
        })
    };
    let candidate = |image: &Package| {
        let release = release_of(&image.name)?.to_owned();
        if image.name.starts_with("linux-binary-") {
            let base = Some(base(&release, &image.version)?);
            Some(Candidate { release, image: image.clone(), base, pin: None })
        } else if split(&release) {
            None
        } else {
            Some(Candidate { release, image: image.clone(), base: None, pin: None })
        }
    };
    packages.iter().filter_map(candidate).collect()
}

/// True if the release has this series and flavour: `6.12.107+deb13-cloud-amd64` has series 6.12
/// and flavour cloud-amd64, not amd64.
fn is_of(release: &str, series: Option<&str>, flavour: &str) -> bool {
    let Some(version) = release.strip_suffix(flavour).and_then(|rest| rest.strip_suffix('-'))
    else {
        return false;
    };
    let mut words = version.split('-');
    let number = words.next().unwrap_or_default();
    // An ABI number (`6.1.0-50`) or a release candidate (`6.13-rc7`) is not part of the flavour.
    let plain = words.all(|word| {
        word.strip_prefix("rc").unwrap_or(word).starts_with(|c: char| c.is_ascii_digit())
    });
    let in_series = series.is_none_or(|series| {
        number
            .strip_prefix(series)
            .is_some_and(|rest| !rest.starts_with(|c: char| c.is_ascii_digit()))
    });
    plain && in_series
}

/// Downloads and unpacks the packages. Keeps the image, its configuration and the modules a guest
/// may need.
fn fill(
    candidate: &Candidate,
    arch: Arch,
    debian: &Debian,
    folder: &Path,
    progress: &mut dyn FnMut(&str),
) -> Result<(), KernelError> {
    let unpacked = folder.join("unpacked");
    let packages: Vec<_> =
        std::iter::once(&candidate.image).chain(&candidate.base).cloned().collect();
    debian.unpack(&packages, &unpacked, &|_, _| true, progress)?;
    installed::without_links(&unpacked)?;
    let release = &candidate.release;
    let take = |places: Vec<String>, name: &str| {
        let from = places
            .iter()
            .map(|place| unpacked.join(place))
            .find(|path| path.is_file())
            .ok_or_else(|| KernelError::Layout {
                package: candidate.key(),
                expected: places.clone(),
            })?;
        let to = folder.join(name);
        fs::rename(&from, &to).map_err(io_error("move", &from))?;
        Ok::<_, KernelError>(to)
    };
    let kernel = take(installed::images(release), "vmlinuz")?;
    let config = take(installed::configs_of_packages(release), "config")?;
    image::check(&kernel, arch)
        .map_err(|source| KernelError::Image { path: kernel.clone(), source })?;
    super::read_config(&config)?;

    // The cloud kernel of 6.1 has nothing of virtio built in.
    let kept = Modules::of_all(&trees(&unpacked, release))?.write_for_guest(folder)?;
    fs::remove_dir_all(&unpacked).map_err(io_error("remove", &unpacked))?;
    let image_sha256 = sha256(&kernel).map_err(io_error("read", &kernel))?;
    let of_snapshot = debian.used_snapshot();
    let record = Record { candidate: candidate.clone(), of_snapshot, image_sha256, modules: kept };
    let path = folder.join("kernel.json");
    let json = serde_json::to_vec_pretty(&record).expect("plain data");
    fs::write(&path, json).map_err(io_error("write", &path))
}

fn files(entry: &Path) -> Result<Files, KernelError> {
    let path = entry.join("kernel.json");
    let record = fs::read(&path)
        .and_then(|bytes| Ok(serde_json::from_slice::<Record>(&bytes)?))
        .map_err(io_error("read", &path))?;
    Ok(Files {
        image: entry.join("vmlinuz"),
        config: entry.join("config"),
        modules: record.modules.iter().map(|module| entry.join(module)).collect(),
        sha256: record.image_sha256,
        source: match (&record.candidate.pin, record.of_snapshot) {
            (Some(pin), true) => {
                format!("{}, of the snapshot {}", record.candidate.source(), pin.snapshot)
            }
            _ => record.candidate.source(),
        },
        candidate: record.candidate,
    })
}

/// Runs `attempt` where the kernel came from.
fn search<R>(
    candidate: &Candidate,
    arch: Arch,
    cache: &Cache,
    progress: &mut dyn FnMut(&str),
    attempt: impl FnMut(&Debian, &mut dyn FnMut(&str)) -> Result<R, KernelError>,
) -> Result<R, KernelError> {
    registry::search(cache, arch.platform().debian, candidate.pin.as_ref(), progress, attempt)
}

/// All modules of a kernel. They are fetched once, when a module is asked for.
pub fn modules(
    candidate: &Candidate,
    arch: Arch,
    cache: &Cache,
    progress: &mut dyn FnMut(&str),
) -> Result<Modules, KernelError> {
    let key = candidate.recipe_key();
    let entry = match cache.get(MODULES_KIND, &key) {
        Some(entry) => entry,
        None => search(candidate, arch, cache, progress, |debian, progress| {
            cache.entry(MODULES_KIND, &key, |folder| {
                progress(&format!("fetching the modules of {}", candidate.source()));
                fill_modules(candidate, debian, folder, progress)
            })
        })?,
    };
    Modules::of(&entry)
}

/// Keeps the modules as they are packed, and the list of those that are built in.
fn fill_modules(
    candidate: &Candidate,
    debian: &Debian,
    folder: &Path,
    progress: &mut dyn FnMut(&str),
) -> Result<(), KernelError> {
    let release = &candidate.release;
    let packages = candidate.modules(debian)?;
    let unpacked = folder.join("unpacked");
    debian.unpack(&packages, &unpacked, &|_, _| true, progress)?;
    installed::without_links(&unpacked)?;
    keep_modules(&unpacked, release, &packages[0].name, folder)?;
    fs::remove_dir_all(&unpacked).map_err(io_error("remove", &unpacked))
}

/// The folders with its modules. Its packages may use both names of `lib`.
fn trees(unpacked: &Path, release: &str) -> Vec<PathBuf> {
    let trees = installed::folders(release).map(|tree| unpacked.join(tree));
    trees.into_iter().filter(|tree| tree.is_dir()).collect()
}

fn keep_modules(
    unpacked: &Path,
    release: &str,
    package: &str,
    folder: &Path,
) -> Result<(), KernelError> {
    for name in ["kernel", BUILT_IN] {
        let found = trees(unpacked, release).into_iter().map(|tree| tree.join(name));
        let found: Vec<_> = found.filter(|path| path.exists()).collect();
        if found.is_empty() {
            let expected = vec![format!("usr/lib/modules/{release}/{name}")];
            return Err(KernelError::Layout { package: package.to_owned(), expected });
        }
        for (index, from) in found.iter().enumerate() {
            let to = match index {
                0 => folder.join(name),
                _ => folder.join(format!("{name}-{index}")),
            };
            fs::rename(from, to).map_err(io_error("move", from))?;
        }
    }
    Ok(())
}

fn question(wanted: &WantedKernel, arch: Arch) -> Question {
    let text = match wanted {
        WantedKernel::Newest { series, flavour } => {
            format!("newest-{}-{flavour}", series.as_deref().unwrap_or("any"))
        }
        WantedKernel::Package { name, version } => {
            let version = version.as_deref().unwrap_or("newest");
            format!("{name}={}", version.replace(['/', ':'], "_"))
        }
    };
    let is_pinned = matches!(wanted, WantedKernel::Package { version: Some(_), .. });
    Question { file: format!("{KIND}-answers/{}-{text}.json", arch.name()), is_pinned }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::NoModule;
    use std::{
        cell::Cell,
        os::unix::fs::symlink,
        time::{Duration, SystemTime},
    };
    use tramplab_host::debian::{ArchiveError, File};

    /// An excerpt of the registry in November 2026: bookworm, trixie, forky, sid and experimental.
    /// The signed 6.12.107 is omitted on purpose, so that the newest 6.12 is unsigned.
    const REGISTRY: &str = "\
linux-base-7.2.12+deb14-cloud-amd64 7.2.12-1
linux-base-7.2.13+deb14-amd64 7.2.13-1
linux-base-7.2.13+deb14-cloud-amd64 7.2.13-1
linux-base-7.3-cloud-amd64 7.3~rc7-1~exp1
linux-binary-7.2.12+deb14-cloud-amd64 7.2.12-1
linux-binary-7.2.13+deb14-amd64 7.2.13-1
linux-binary-7.2.13+deb14-cloud-amd64 7.2.13-1
linux-binary-7.3-cloud-amd64 7.3~rc7-1~exp1
linux-binary-unsigned-7.2.13+deb14-cloud-amd64 7.2.13-1
linux-binary-unsigned-7.3-cloud-amd64 7.3~rc7-1~exp1
linux-image-6.1.0-47-cloud-amd64 6.1.170-3
linux-image-6.1.0-50-amd64 6.1.176-1
linux-image-6.1.0-50-cloud-amd64 6.1.176-1
linux-image-6.1.0-50-cloud-amd64-dbg 6.1.176-1
linux-image-6.1.0-50-cloud-amd64-unsigned 6.1.176-1
linux-image-6.1.0-50-rt-amd64 6.1.176-1
linux-image-6.12.107+deb13-cloud-amd64-unsigned 6.12.107-1
linux-image-6.12.94+deb13-cloud-amd64 6.12.94-1
linux-image-7.2.13+deb14-cloud-amd64 7.2.13-1
linux-image-7.3-cloud-amd64 7.3~rc7-1~exp1
linux-image-cloud-amd64 7.2.13-1
";

    fn registry() -> Vec<Package> {
        let package = |line: &str| {
            let (name, version) = line.split_once(' ').unwrap();
            let (architecture, sha256) = ("amd64".to_owned(), "0".repeat(64));
            Package { name: name.into(), version: version.into(), architecture, sha256, room: 0 }
        };
        REGISTRY.lines().map(package).collect()
    }

    fn pick(series: Option<&str>, flavour: &str) -> Option<Candidate> {
        let fits = |candidate: &Candidate| is_of(&candidate.release, series, flavour);
        newest(candidates(&registry()).into_iter().filter(fits), |found| &found.image)
    }

    #[test]
    fn picks_newest_of_series_and_prefers_signed() {
        for (series, flavour, expected) in [
            (Some("6.1"), "cloud-amd64", Some("linux-image-6.1.0-50-cloud-amd64=6.1.176-1")),
            (Some("6.1"), "amd64", Some("linux-image-6.1.0-50-amd64=6.1.176-1")),
            (Some("6.1"), "rt-amd64", Some("linux-image-6.1.0-50-rt-amd64=6.1.176-1")),
            // 107 is newer than 94. A newer unsigned kernel beats an older signed one.
            (
                Some("6.12"),
                "cloud-amd64",
                Some("linux-image-6.12.107+deb13-cloud-amd64-unsigned=6.12.107-1"),
            ),
            (Some("7.2"), "cloud-amd64", Some("linux-binary-7.2.13+deb14-cloud-amd64=7.2.13-1")),
            (Some("7.2"), "amd64", Some("linux-binary-7.2.13+deb14-amd64=7.2.13-1")),
            (Some("7.3"), "cloud-amd64", Some("linux-binary-7.3-cloud-amd64=7.3~rc7-1~exp1")),
            (None, "cloud-amd64", Some("linux-binary-7.3-cloud-amd64=7.3~rc7-1~exp1")),
            (Some("6.6"), "cloud-amd64", None),
            (Some("6.12"), "rt-amd64", None),
        ] {
            let picked = pick(series, flavour).map(|candidate| candidate.key());
            assert_eq!(picked.as_deref(), expected, "{series:?} {flavour}");
        }
        let split = pick(Some("7.2"), "cloud-amd64").unwrap();
        assert_eq!(split.base.unwrap().name, "linux-base-7.2.13+deb14-cloud-amd64");
        assert_eq!(pick(Some("6.1"), "cloud-amd64").unwrap().base, None);
    }

    #[test]
    fn matches_release_to_series_and_flavour() {
        for (release, series, flavour, expected) in [
            ("6.13-rc7-cloud-amd64", Some("6.13"), "cloud-amd64", true),
            ("6.13-rc7-cloud-amd64", Some("6.13"), "amd64", false),
            ("6.12.107+deb13-amd64", Some("6.1"), "amd64", false),
            ("7.3-cloud-amd64", Some("7.3"), "cloud-amd64", true),
            ("7.30-cloud-amd64", Some("7.3"), "cloud-amd64", false),
            ("6.1.0-50-cloud-amd64", None, "cloud-amd64", true),
            ("cloud-amd64", None, "cloud-amd64", false),
        ] {
            assert_eq!(is_of(release, series, flavour), expected, "{release} {series:?} {flavour}");
        }
    }

    fn cached(cache: &Cache, candidate: &Candidate) -> PathBuf {
        let fill = |folder: &Path| {
            let record = Record {
                candidate: candidate.clone(),
                of_snapshot: candidate.pin.is_some(),
                image_sha256: "0".repeat(64),
                modules: vec!["0-virtio.ko".into()],
            };
            fs::write(folder.join("kernel.json"), serde_json::to_vec(&record)?)
        };
        cache.entry(KIND, &candidate.recipe_key(), fill).unwrap()
    }

    /// A manifest may be a stranger's: its kernel is not kept where Debian's is looked for.
    #[test]
    fn a_pin_is_an_entry_of_its_own_which_needs_no_registry() {
        let home = tempfile::tempdir().unwrap();
        let cache = Cache::at(home.path(), true);
        let pin = |digit: &str| {
            let name = "linux-image-6.1.0-50-cloud-amd64_6.1.176-1_amd64.deb";
            let path = format!("pool/main/l/linux-signed-amd64/{name}");
            let files = vec![File { path, size: 7, sha256: digit.repeat(64) }];
            Pin { snapshot: "20260711T220000Z".into(), files }
        };
        let wanted =
            WantedKernel::Newest { series: Some("6.1".into()), flavour: "cloud-amd64".into() };
        let candidate = |pin: &Pin| chosen(&wanted, Some(pin), pin.packages().collect()).unwrap();
        let debians = pick(Some("6.1"), "cloud-amd64").unwrap();
        let (ours, theirs) = (candidate(&pin("1")), candidate(&pin("2")));
        for key in [Candidate::key, |of: &Candidate| of.key_of("linux-modules")] {
            let keys = [&debians, &ours, &theirs].map(key);
            assert!(keys[0] != keys[1] && keys[1] != keys[2] && keys[2] != keys[0], "{keys:?}");
        }
        cached(&cache, &ours);
        let found = fetch(&wanted, Some(&pin("1")), Arch::X86_64, &cache, &mut |_| ()).unwrap();
        assert_eq!(found.candidate.key(), ours.key());
        assert_eq!(
            found.source,
            "debian linux-image-6.1.0-50-cloud-amd64 6.1.176-1, of the snapshot 20260711T220000Z"
        );
    }

    /// A link would lead elsewhere from the place to which it is moved.
    #[test]
    fn takes_no_link_of_a_package() {
        let folder = tempfile::tempdir().unwrap();
        let modules = folder.path().join("lib/modules/6.1");
        fs::create_dir_all(modules.join("kernel")).unwrap();
        fs::write(modules.join("kernel/real.ko"), "").unwrap();
        symlink("../../../../secret", modules.join("kernel/virtio.ko")).unwrap();
        symlink("kernel", modules.join("build")).unwrap();
        installed::without_links(folder.path()).unwrap();
        let left = walkdir::WalkDir::new(folder.path()).into_iter().flatten();
        let left = left.filter(|entry| !entry.file_type().is_dir());
        let left: Vec<_> = left.map(|entry| entry.file_name().to_owned()).collect();
        assert_eq!(left, ["real.ko"]);
    }

    #[test]
    fn finds_modules_in_both_trees() {
        let folder = tempfile::tempdir().unwrap();
        let (unpacked, entry) = (folder.path().join("unpacked"), folder.path().join("entry"));
        for name in ["lib/modules/6.1/kernel/a.ko", "usr/lib/modules/6.1/kernel/b.ko"] {
            let path = unpacked.join(name);
            fs::create_dir_all(path.parent().unwrap()).unwrap();
            fs::write(path, crate::modules::tests::module("depends=\0")).unwrap();
        }
        fs::write(unpacked.join("usr/lib/modules/6.1/modules.builtin"), "kernel/c.ko\n").unwrap();
        fs::create_dir(&entry).unwrap();
        let before = Modules::of_all(&trees(&unpacked, "6.1")).unwrap();
        let names = ["a".to_owned(), "b".to_owned()].into();
        assert_eq!(before.with_dependencies(&names).unwrap().unwrap().len(), 2);
        keep_modules(&unpacked, "6.1", "p", &entry).unwrap();
        let kept = Modules::of(&entry).unwrap();
        assert_eq!(kept.with_dependencies(&names).unwrap().unwrap().len(), 2);
        let built_in = kept.with_dependencies(&["c".to_owned()].into()).unwrap();
        assert_eq!(built_in, Err(NoModule::BuiltIn("c".to_owned())));
    }

    /// An entry of an older recipe has another set of modules.
    #[test]
    fn ignores_entries_of_another_recipe() {
        let home = tempfile::tempdir().unwrap();
        let cache = Cache::at(home.path(), true);
        let candidate = pick(Some("6.1"), "cloud-amd64").unwrap();
        cache.entry(KIND, &candidate.key(), |_| Ok::<_, KernelError>(())).unwrap();
        assert_eq!(candidate.cached(&cache), None);
    }

    #[test]
    fn reuses_answer_for_a_day_and_falls_back_to_older_one() {
        let wanted =
            WantedKernel::Newest { series: Some("6.1".into()), flavour: "cloud-amd64".into() };
        let pinned = WantedKernel::Package {
            name: "linux-image-6.1.0-50-cloud-amd64".into(),
            version: Some("6.1.176-1".into()),
        };
        let candidate = pick(Some("6.1"), "cloud-amd64").unwrap();
        let silent = || {
            let (mirror, messages) = ("http://mirror".into(), vec![]);
            KernelError::Debian(ArchiveError::Silent { mirror, messages }.into())
        };
        let gone = || ArchiveError::Status { url: "u".into(), status: 404 };
        let other_bytes = || {
            let [url, expected, found] = ["u", "e", "f"].map(str::to_owned);
            ArchiveError::Checksum { url, expected, found }
        };
        let nowhere =
            |errors| KernelError::Debian(ArchiveError::Nowhere { file: "f".into(), errors }.into());
        let checksum = || KernelError::Debian(other_bytes().into());
        let checksum_of_one_server = || nowhere(vec![gone(), other_bytes()]);
        let gone_everywhere = || nowhere(vec![gone(), gone()]);
        let stopped = || KernelError::Debian(ArchiveError::Stopped { url: "u".into() }.into());
        let hours = |hours: u64| Duration::from_secs(hours * 3600);
        type Failure<'a> = &'a dyn Fn() -> KernelError;
        // Query, age of the cached answer, the registry's failure, whether the registry is asked,
        // and the expected note (None: an error).
        type Case<'a> = (&'a WantedKernel, Option<Duration>, Failure<'a>, bool, Option<&'a str>);
        let cases: [Case; 8] = [
            (&wanted, Some(hours(1)), &silent, false, Some("")),
            (&wanted, Some(hours(49)), &silent, true, Some("the newest 49 hours ago")),
            (&wanted, Some(hours(49)), &gone_everywhere, true, Some("the newest 49 hours ago")),
            (&wanted, Some(hours(49)), &checksum, true, None),
            (&wanted, Some(hours(49)), &checksum_of_one_server, true, None),
            (&wanted, Some(hours(49)), &stopped, true, None),
            (&pinned, Some(hours(9999)), &silent, false, Some("")),
            (&wanted, None, &silent, true, None),
        ];
        for (wanted, age, failure, asks, note) in cases {
            let folder = tempfile::tempdir().unwrap();
            let cache = Cache::at(folder.path(), true);
            if let Some(age) = age {
                cached(&cache, &candidate);
                let answer = question(wanted, Arch::X86_64);
                answer.save(&cache, &candidate).unwrap();
                let file =
                    fs::File::options().write(true).open(folder.path().join(&answer.file)).unwrap();
                file.set_modified(SystemTime::now() - age).unwrap();
            }
            let asked = Cell::new(false);
            let mut notes = String::new();
            let result =
                fetch_by(wanted, Arch::X86_64, &cache, &mut |note| notes.push_str(note), |_| {
                    asked.set(true);
                    Err(failure())
                });
            assert_eq!(asked.get(), asks, "{wanted:?} {age:?}");
            match (result, note) {
                (Ok(files), Some(note)) => {
                    assert_eq!(files.source, "debian linux-image-6.1.0-50-cloud-amd64 6.1.176-1");
                    assert!(files.modules[0].ends_with("0-virtio.ko"));
                    assert!(notes.contains(note) && notes.is_empty() == note.is_empty(), "{notes}");
                }
                (Err(_), None) => assert_eq!(notes, ""),
                (result, _) => panic!("{wanted:?} {age:?}: {:?}", result.map(|files| files.source)),
            }
        }
    }
}
