// SPDX-License-Identifier: MIT OR Apache-2.0
//! The kernel that runs on this machine: as it runs, and its image for guests.

use super::{
    KernelError, Manifest, Source,
    ikconfig::MOST_CONFIG,
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
const CONFIG_GZ: &str = "/proc/config.gz";
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
    /// `running 6.12.107+deb13-amd64 #1 SMP …`.
    pub source: String,
    /// The digest of its notes: a file in /boot may be another build's.
    pub sha256: String,
    /// None if the machine does not have it.
    pub config_file: Option<PathBuf>,
}

pub(super) fn found(cache: &Cache) -> Result<Found, KernelError> {
    let read = |name: &str| {
        let path = Path::new(KERNEL).join(name);
        let text = fs::read_to_string(&path).map_err(io_error("read", &path))?;
        Ok::<String, KernelError>(text.trim_end().to_owned())
    };
    let (release, version) = (read("osrelease")?, read("version")?);
    let notes = Path::new(NOTES);
    let sha256 = sha256(notes).map_err(io_error("read", notes))?;
    let files = installed::configs(&release).into_iter().map(|file| Path::new("/").join(file));
    let file = files.into_iter().find(|path| path.is_file() && fs::File::open(path).is_ok());
    let config_file = match file {
        Some(file) => Some(file),
        None => unpacked(cache, &sha256)?,
    };
    Ok(Found { source: format!("running {release} {version}"), release, sha256, config_file })
}

/// The running kernel's files for a guest.
pub(super) struct Files {
    pub image: PathBuf,
    pub config: Option<PathBuf>,
    /// Those that a guest needs, in load order.
    pub guest: Vec<PathBuf>,
    pub modules: Option<PathBuf>,
    pub source: String,
}

pub(super) fn files(cache: &Cache, progress: &mut dyn FnMut(&str)) -> Result<Files, KernelError> {
    let Found { release, source, sha256: _, config_file: config } = found(cache)?;
    let root = Path::new("/");
    let image = image(root, &release)?;
    let modules = modules(root, &release);
    let mut guest = Vec::new();
    if let Some(folder) = &modules {
        let key = format!("modules-{}", sha256(&image).map_err(io_error("read", &image))?);
        let entry = cache
            .entry(KIND, &key, |entry| Modules::of(folder)?.write_for_guest(entry).map(|_| ()))?;
        guest = written_for_guest(&entry)?;
    } else {
        progress(&format!("no modules of the running kernel in /lib/modules/{release}"));
    }
    Ok(Files { image, config, guest, modules, source })
}

/// Says what follows from it that no configuration of the running kernel was found.
pub(super) fn tell_unknown_config(progress: &mut dyn FnMut(&str)) {
    progress(&format!(
        "no configuration of the running kernel in /boot, /lib/modules, {CONFIG_GZ} and its image: \
         no test is rejected early"
    ));
    // Its configuration would say so.
    if !Path::new(BTF).exists() {
        progress(&format!(
            "the running kernel has no BTF ({BTF}): fentry and other programs with BTF will fail"
        ));
    }
}

/// Finds the image of a release. A file with the same name may be another build's, which its own
/// text tells on x86-64.
fn image(root: &Path, release: &str) -> Result<PathBuf, KernelError> {
    let mut tried = Vec::new();
    for place in installed::images(release).iter().map(String::as_str).chain([NIXOS[0]]) {
        let path = root.join(place);
        let why = match image::read(&path) {
            Ok(header) => match header.release {
                Some(other) if other != release => format!("it is of {other}"),
                _ => return Ok(path),
            },
            Err(ImageError::Read(error)) => match error.kind() {
                ErrorKind::NotFound => "there is none".to_owned(),
                // Ubuntu's is readable only by root.
                ErrorKind::PermissionDenied => {
                    format!("you may not read it: sudo chmod a+r {}", path.display())
                }
                _ => error.to_string(),
            },
            Err(error) => error.to_string(),
        };
        tried.push((path, why));
    }
    Err(KernelError::NotInstalled { release: release.to_owned(), tried })
}

/// The folder with a release's modules.
fn modules(root: &Path, release: &str) -> Option<PathBuf> {
    let folders = installed::folders(release);
    let nixos = folders.iter().map(|folder| Path::new(NIXOS[1]).join(folder));
    let folders = folders.iter().map(PathBuf::from).chain(nixos);
    folders.map(|folder| root.join(folder)).find(|folder| folder.is_dir())
}

/// The configuration that the kernel itself has.
fn unpacked(cache: &Cache, key: &str) -> Result<Option<PathBuf>, KernelError> {
    let path = Path::new(CONFIG_GZ);
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
    use std::os::unix::fs::PermissionsExt;

    #[test]
    fn finds_the_image_of_the_release_and_says_what_is_elsewhere() {
        let root = tempfile::tempdir().unwrap();
        let write = |place: &str, release: &str| {
            let path = root.path().join(place);
            fs::create_dir_all(path.parent().unwrap()).unwrap();
            fs::write(&path, image::tests::bz_image_of(release)).unwrap();
            path
        };
        let failed = || image(root.path(), "6.1-x").unwrap_err().to_string();
        let none = failed();
        assert!(none.contains("image of the running kernel 6.1-x"), "{none}");
        assert!(none.contains("boot/vmlinuz-6.1-x: there is none"), "{none}");

        // Of another kernel with the same name.
        let boot = write("boot/vmlinuz-6.1-x", "6.1-y");
        assert!(failed().contains("boot/vmlinuz-6.1-x: it is of 6.1-y"), "{}", failed());
        fs::write(&boot, "no image").unwrap();
        assert!(failed().contains("it is not a kernel image"), "{}", failed());
        fs::set_permissions(&boot, fs::Permissions::from_mode(0o000)).unwrap();
        if fs::File::open(&boot).is_err() {
            assert!(failed().contains("sudo chmod a+r"), "{}", failed());
        }
        let nixos = write(NIXOS[0], "6.1-x");
        assert_eq!(image(root.path(), "6.1-x").unwrap(), nixos);
        let modules = write("usr/lib/modules/6.1-x/vmlinuz", "6.1-x");
        assert_eq!(image(root.path(), "6.1-x").unwrap(), modules);
        assert_eq!(
            super::modules(root.path(), "6.1-x").unwrap(),
            root.path().join("usr/lib/modules/6.1-x")
        );
        assert_eq!(super::modules(root.path(), "6.1"), None);
    }
}
