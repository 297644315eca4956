// SPDX-License-Identifier: MIT OR Apache-2.0
//! The kernel that runs on this machine.

use super::{KernelError, Manifest, Source, io_error};
use flate2::read::GzDecoder;
use std::{
    fs,
    io::Read,
    path::{Path, PathBuf},
};
use tramplab_host::{cache::Cache, sha256};
use tramplab_model::run::Arch;

/// Its name in cells and reports.
const NAME: &str = "running";
/// ELF notes of the kernel, with the build ID that its linker made of all its code and data.
const NOTES: &str = "/sys/kernel/notes";
const KERNEL: &str = "/proc/sys/kernel";
/// With CONFIG_IKCONFIG_PROC.
const CONFIG_GZ: &str = "/proc/config.gz";
/// Debian's has 300 KiB.
const MOST_CONFIG: u64 = 16 << 20;

pub fn running(arch: Arch) -> Manifest {
    Manifest { name: NAME.to_owned(), arch, source: Source::Running, configuration: None }
}

pub(super) struct Found {
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
    // The places of Debian, Fedora and openSUSE; of Fedora without /boot.
    let files = [format!("/boot/config-{release}"), format!("/lib/modules/{release}/config")];
    let file = files.into_iter().map(PathBuf::from).find(|path| path.is_file());
    let config_file = match file {
        Some(file) => Some(file),
        None => unpacked(cache, &sha256)?,
    };
    Ok(Found { source: format!("running {release} {version}"), sha256, config_file })
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
    let folder = cache.entry("kernel-running", key, |folder| {
        let path = folder.join("config");
        fs::write(&path, &text).map_err(io_error("write", &path))
    })?;
    Ok(Some(folder.join("config")))
}
