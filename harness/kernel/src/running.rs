// SPDX-License-Identifier: MIT OR Apache-2.0
//! The kernel that runs on this machine: as it runs, and its image for guests.

use super::{
    KernelError, Manifest, Source,
    ikconfig::{self, MOST_CONFIG},
    image::{self, ImageError},
    installed, io_error,
    modules::{Modules, written_for_guest},
};
use flate2::read::GzDecoder;
use std::{
    fs,
    io::{ErrorKind, Read},
    path::{Path, PathBuf},
};
use tramplab_host::{cache::Cache, sha256};
use tramplab_model::run::Arch;

/// Its name in cells, in reports and for `--kernel`.
pub(super) const NAME: &str = "running";
/// ELF notes of the kernel, with the build ID that its linker made of all its code and data.
const NOTES: &str = "/sys/kernel/notes";
const KERNEL: &str = "/proc/sys/kernel";
/// With CONFIG_IKCONFIG_PROC.
const CONFIG_GZ: &str = "proc/config.gz";
/// With CONFIG_DEBUG_INFO_BTF.
const BTF: &str = "/sys/kernel/btf/vmlinux";
/// NixOS's image and the root of its modules.
const NIXOS: [&str; 2] = ["run/booted-system/kernel", "run/booted-system/kernel-modules"];
const KIND: &str = "kernel-running";

pub fn running(arch: Arch) -> Manifest {
    Manifest { name: NAME.to_owned(), arch, source: Source::Running, configuration: None }
}

/// The image of the running kernel, for guests. None if this machine's architecture is not known.
pub(super) fn installed() -> Option<Manifest> {
    let source = Source::Installed;
    Some(Manifest { name: NAME.to_owned(), arch: Arch::host()?, source, configuration: None })
}

pub(super) struct Found {
    pub release: String,
    /// `#1 SMP PREEMPT_DYNAMIC Debian 6.12.107-1 (2026-11-02)`.
    pub version: String,
    /// `running 6.12.107+deb13-amd64 #1 SMP …`.
    pub source: String,
    /// The digest of its notes: a file in /boot may be another build's.
    pub sha256: String,
}

pub(super) fn found() -> Result<Found, KernelError> {
    let read = |name: &str| {
        let path = Path::new(KERNEL).join(name);
        let text = fs::read_to_string(&path).map_err(io_error("read", &path))?;
        Ok::<String, KernelError>(text.trim_end().to_owned())
    };
    let (release, version) = (read("osrelease")?, read("version")?);
    let notes = Path::new(NOTES);
    let sha256 = sha256(notes).map_err(io_error("read", notes))?;
    Ok(Found { source: format!("running {release} {version}"), release, version, sha256 })
}

/// The file with its configuration, for `--vm none`. None if the machine does not have it.
pub(super) fn config(cache: &Cache, found: &Found) -> Result<Option<PathBuf>, KernelError> {
    let root = Path::new("/");
    let image = || {
        let image = image(root, &found.release, &found.version).ok()?;
        image.is_verified.then_some(image.path)
    };
    config_below(root, cache, found, image)
}

/// The kernel's own word comes first: a file of the same release may be another build's.
fn config_below(
    root: &Path,
    cache: &Cache,
    found: &Found,
    image: impl FnOnce() -> Option<PathBuf>,
) -> Result<Option<PathBuf>, KernelError> {
    if let Some(config) = unpacked(&root.join(CONFIG_GZ), cache, &found.sha256)? {
        return Ok(Some(config));
    }
    if let Some(image) = &image() {
        let key = sha256(image).map_err(io_error("read", image))?;
        match ikconfig::cached(image, &key, cache) {
            Ok(None) | Err(KernelError::Cache(_)) => {}
            config => return config,
        }
    }
    let mut files = installed::configs(&found.release).into_iter().map(|file| root.join(file));
    Ok(files.find(|path| path.is_file() && fs::File::open(path).is_ok()))
}

/// The running kernel's files for a guest.
pub(super) struct Files {
    pub image: PathBuf,
    pub config: Option<PathBuf>,
    /// Those that a guest needs, in load order.
    pub guest: Vec<PathBuf>,
    pub modules: Option<PathBuf>,
    /// `running 6.12.107+deb13-amd64 #1 SMP …, /boot/vmlinuz-6.12.107+deb13-amd64`.
    pub source: String,
}

pub(super) fn files(cache: &Cache, progress: &mut dyn FnMut(&str)) -> Result<Files, KernelError> {
    let root = Path::new("/");
    let found = found()?;
    let Found { release, version, .. } = &found;
    let Installed { path: image, is_verified } = image(root, release, version)?;
    // Only a verified image is this build.
    let source = match is_verified {
        true => format!("{}, {}", found.source, image.display()),
        false => format!("running {release}, {}", image.display()),
    };
    if !is_verified {
        progress(&format!(
            "{} does not name its build: it may be another of {release} than the one that runs",
            image.display()
        ));
    }
    let config = config_below(root, cache, &found, || Some(image.clone()))?;
    let modules = modules(root, release);
    let guest = match &modules {
        Some(folder) => guest_modules(cache, &image, folder)?,
        None => {
            progress(&format!("no modules of the running kernel in /lib/modules/{release}"));
            Vec::new()
        }
    };
    Ok(Files { image, config, guest, modules, source })
}

fn guest_modules(cache: &Cache, image: &Path, folder: &Path) -> Result<Vec<PathBuf>, KernelError> {
    let key = format!("modules-{}", sha256(image).map_err(io_error("read", image))?);
    if let Some(entry) = cache.get(KIND, &key) {
        return written_for_guest(&entry);
    }
    let modules = Modules::of(folder)?;
    // The user may install a package with them later.
    if !modules.has_for_guest() {
        return Ok(Vec::new());
    }
    let entry = cache.entry(KIND, &key, |entry| modules.write_for_guest(entry).map(|_| ()))?;
    written_for_guest(&entry)
}

/// Says what follows from it that no configuration of the running kernel was found.
pub(super) fn tell_unknown_config(progress: &mut dyn FnMut(&str)) {
    progress(&format!(
        "no configuration of the running kernel in /{CONFIG_GZ}, its image, /boot and \
         /lib/modules: no test is rejected early"
    ));
    // Its configuration would say so.
    if !Path::new(BTF).exists() {
        progress(&format!(
            "the running kernel has no BTF ({BTF}): fentry and other programs with BTF will fail"
        ));
    }
}

/// An image of the running kernel's release.
#[derive(Debug, PartialEq, Eq)]
struct Installed {
    path: PathBuf,
    /// It names the build that runs. An image without its version may be another build's.
    is_verified: bool,
}

/// Finds the image of a build. A file with the same name may be another build's.
fn image(root: &Path, release: &str, version: &str) -> Result<Installed, KernelError> {
    let mut tried = Vec::new();
    for place in installed::images(release).iter().map(String::as_str).chain([NIXOS[0]]) {
        let path = root.join(place);
        let why = match build_of(&path) {
            Ok((Some(other), _)) if other != release => format!("it is of {other}"),
            Ok((_, Some(other))) if other != version => {
                format!("it is another build, {other}; {version} runs")
            }
            Ok((_, known)) => return Ok(Installed { path, is_verified: known.is_some() }),
            Err(ImageError::Read(error)) => match error.kind() {
                ErrorKind::NotFound => continue,
                // Ubuntu's is readable only by root.
                ErrorKind::PermissionDenied if fs::symlink_metadata(&path).is_ok() => {
                    format!("you may not read it: sudo chmod a+r {}", path.display())
                }
                ErrorKind::PermissionDenied => {
                    let folder = path.parent().expect("below the root").to_owned();
                    let why = format!("you may not enter it: sudo chmod a+x {}", folder.display());
                    if !tried.contains(&(folder.clone(), why.clone())) {
                        tried.push((folder, why));
                    }
                    continue;
                }
                _ => error.to_string(),
            },
            Err(error) => error.to_string(),
        };
        tried.push((path, why));
    }
    Err(KernelError::NotInstalled { release: release.to_owned(), tried })
}

/// The release and the version of an image, as far as it names them.
fn build_of(path: &Path) -> Result<(Option<String>, Option<String>), ImageError> {
    let header = image::read(path)?;
    if header.release.is_some() {
        return Ok((header.release, header.version));
    }
    Ok(image::banner(path)?.unzip())
}

/// The folder with a release's modules.
fn modules(root: &Path, release: &str) -> Option<PathBuf> {
    let folders = installed::folders(release);
    let nixos = folders.iter().map(|folder| Path::new(NIXOS[1]).join(folder));
    let folders = folders.iter().map(PathBuf::from).chain(nixos);
    folders.map(|folder| root.join(folder)).find(|folder| folder.is_dir())
}

/// The configuration that the kernel itself has.
fn unpacked(path: &Path, cache: &Cache, key: &str) -> Result<Option<PathBuf>, KernelError> {
    let Ok(file) = fs::File::open(path) else { return Ok(None) };
    let mut text = String::new();
    GzDecoder::new(file)
        .take(MOST_CONFIG)
        .read_to_string(&mut text)
        .map_err(io_error("read", path))?;
    let folder = cache.entry(KIND, key, |folder| {
        let path = folder.join("config");
        fs::write(&path, &text).map_err(io_error("write", &path))
    })?;
    Ok(Some(folder.join("config")))
}

#[cfg(test)]
mod tests {
    use super::*;
    use flate2::{Compression, write::GzEncoder};
    use std::{io::Write, os::unix::fs::PermissionsExt};

    const VERSION: &str = "#2 SMP Mon Nov 2";

    fn text(release: &str, version: &str) -> String {
        format!("{release} (user@host) {version}")
    }

    fn write(root: &Path, place: &str, bytes: &[u8]) -> PathBuf {
        let path = root.join(place);
        fs::create_dir_all(path.parent().unwrap()).unwrap();
        fs::write(&path, bytes).unwrap();
        path
    }

    #[test]
    fn finds_the_image_of_the_release_and_says_what_is_elsewhere() {
        let root = tempfile::tempdir().unwrap();
        let write = |place: &str, release: &str| {
            let bytes = image::tests::bz_image_of(&text(release, VERSION));
            write(root.path(), place, &bytes)
        };
        let found = || image(root.path(), "6.1-x", VERSION);
        let failed = || found().unwrap_err().to_string();
        let none = failed();
        assert!(none.contains("image of the running kernel 6.1-x"), "{none}");
        assert!(none.contains("none in /boot") && !none.contains("vmlinuz.unsigned"), "{none}");

        // Of another kernel with the same name.
        let boot = write("boot/vmlinuz-6.1-x", "6.1-y");
        assert!(failed().contains("boot/vmlinuz-6.1-x: it is of 6.1-y"), "{}", failed());
        assert_eq!(failed().lines().count(), 3, "{}", failed());
        fs::write(&boot, "no image").unwrap();
        assert!(failed().contains("it is not a kernel image"), "{}", failed());
        fs::set_permissions(&boot, fs::Permissions::from_mode(0o000)).unwrap();
        if fs::File::open(&boot).is_err() {
            assert!(failed().contains("sudo chmod a+r"), "{}", failed());
            let folder = boot.parent().unwrap();
            fs::set_permissions(folder, fs::Permissions::from_mode(0o000)).unwrap();
            let locked = failed();
            fs::set_permissions(folder, fs::Permissions::from_mode(0o755)).unwrap();
            assert_eq!(locked.matches("sudo chmod a+x").count(), 1, "{locked}");
        }
        let nixos = write(NIXOS[0], "6.1-x");
        assert_eq!(found().unwrap(), Installed { path: nixos, is_verified: true });
        let modules = write("usr/lib/modules/6.1-x/vmlinuz", "6.1-x");
        assert_eq!(found().unwrap().path, modules);
        assert_eq!(
            super::modules(root.path(), "6.1-x").unwrap(),
            root.path().join("usr/lib/modules/6.1-x")
        );
        assert_eq!(super::modules(root.path(), "6.1"), None);
    }

    #[test]
    fn rejects_another_build_of_the_same_release() {
        let arm64 = |text: &str| {
            let mut image = image::tests::arm64();
            image.resize(0x30000, 0);
            [image, format!("Linux version {text}\n\0").into_bytes()].concat()
        };
        let x86 = |text: &str| image::tests::bz_image_of(text);
        let (same, other) = (text("6.1-x", VERSION), text("6.1-x", "#1 SMP Sun Nov 1"));
        let another = Err("it is another build, #1 SMP Sun Nov 1; #2 SMP Mon Nov 2 runs");
        for (name, bytes, expected) in [
            ("x86, the same", x86(&same), Ok(true)),
            ("x86, another", x86(&other), another),
            ("x86, without a version", x86("6.1-x"), Ok(false)),
            ("arm64, the same", arm64(&same), Ok(true)),
            ("arm64, another", arm64(&other), another),
            ("arm64, another release", arm64(&text("6.1-y", VERSION)), Err("it is of 6.1-y")),
            ("arm64, without a banner", arm64(""), Ok(false)),
        ] {
            let root = tempfile::tempdir().unwrap();
            write(root.path(), "boot/vmlinuz-6.1-x", &bytes);
            match (image(root.path(), "6.1-x", VERSION), expected) {
                (Ok(found), Ok(is_verified)) => {
                    assert_eq!(found.is_verified, is_verified, "{name}")
                }
                (Err(error), Err(expected)) => {
                    assert!(error.to_string().contains(expected), "{name}: {error}");
                }
                (found, _) => panic!("{name}: {found:?}"),
            }
        }
    }

    #[test]
    fn takes_the_kernels_own_configuration_before_files_and_none_of_a_live_tree() {
        let root = tempfile::tempdir().unwrap();
        let cache = Cache::at(root.path().join("cache"), true);
        let found = Found {
            release: "6.1-x".into(),
            version: VERSION.into(),
            source: String::new(),
            sha256: "0".repeat(64),
        };
        let gz = |text: &str| {
            let mut encoder = GzEncoder::new(Vec::new(), Compression::fast());
            encoder.write_all(text.as_bytes()).unwrap();
            encoder.finish().unwrap()
        };
        let inside = [&image::tests::arm64(), &b"IKCFG_ST"[..], &gz("image")].concat();
        let image = write(root.path(), "boot/vmlinuz-6.1-x", &inside);
        let config = |image: Option<&Path>| {
            let image = || image.map(Path::to_owned);
            let file = config_below(root.path(), &cache, &found, image).unwrap();
            file.map(|file| fs::read_to_string(file).unwrap())
        };
        write(root.path(), "lib/modules/6.1-x/build/.config", b"tree");
        assert_eq!(config(None), None);
        write(root.path(), "lib/modules/6.1-x/config", b"modules");
        assert_eq!(config(None).as_deref(), Some("modules"));
        write(root.path(), "boot/config-6.1-x", b"boot");
        assert_eq!(config(None).as_deref(), Some("boot"));
        assert_eq!(config(Some(&image)).as_deref(), Some("image"));
        write(root.path(), CONFIG_GZ, &gz("proc"));
        assert_eq!(config(Some(&image)).as_deref(), Some("proc"));
    }

    #[test]
    fn looks_again_for_modules_that_were_not_installed() {
        let root = tempfile::tempdir().unwrap();
        let cache = Cache::at(root.path().join("cache"), true);
        let image = write(root.path(), "vmlinuz", b"");
        let folder = root.path().join("modules");
        fs::create_dir(&folder).unwrap();
        let guest = || guest_modules(&cache, &image, &folder).unwrap().len();
        assert_eq!(guest(), 0);
        let module = crate::modules::tests::module("depends=\0");
        write(&folder, "virtio_console.ko", &module);
        assert_eq!(guest(), 1);
    }
}
