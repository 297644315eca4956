// SPDX-License-Identifier: MIT OR Apache-2.0
//! The code and source lines of Debian's kernels, from their debug packages.
//!
//! A package has 300 MB, and besides `vmlinux` every module. So it is fetched only for a user who
//! asks for source lines, and only the parts of `vmlinux` that give them are kept.

use super::Candidate;
use crate::{KernelError, compile, io_error, vmlinux::Vmlinux};
use std::{
    fs,
    path::{Path, PathBuf},
};
use tramplab_host::{cache::Cache, debian};
use tramplab_model::run::Arch;

/// `boot/vmlinux-RELEASE` or `lib/modules/RELEASE/vmlinux`, and links to it.
const PLACE: &str = "usr/lib/debug";

pub fn package(release: &str) -> String {
    format!("linux-image-{release}-dbg")
}

/// Returns the kernel's `vmlinux`, from the cache if it is there.
pub fn vmlinux(
    candidate: &Candidate,
    arch: Arch,
    cache: &Cache,
    progress: &mut dyn FnMut(&str),
) -> Result<PathBuf, KernelError> {
    let name = package(&candidate.release);
    let version = &candidate.image.version;
    let key = candidate.key_of(&name);
    if let Some(kept) = compile::cached_vmlinux(cache, &key) {
        return Ok(kept);
    }
    super::search(candidate, arch, cache, progress, |debian, progress| {
        let package = debian.exactly(&name, version)?;
        compile::keep_vmlinux(cache, &key, |folder| {
            progress(&format!("fetching {key}, for source lines"));
            for file in debian.download(&[package], folder, progress)? {
                take(&file, folder, debian.most(&file))?;
                fs::remove_file(&file).map_err(io_error("remove", &file))?;
            }
            Ok(())
        })
    })
}

/// Copies what is read of the package's `vmlinux` into the folder.
fn take(package: &Path, folder: &Path, most: u64) -> Result<(), KernelError> {
    let unpacked = folder.join("unpacked");
    let is_vmlinux = |path: &Path| {
        let name = path.file_name().unwrap_or_default().to_string_lossy();
        path.starts_with(PLACE) && name.starts_with("vmlinux")
    };
    debian::unpack(package, &unpacked, most, is_vmlinux).map_err(debian::DebianError::from)?;
    let files = walkdir::WalkDir::new(&unpacked).into_iter().flatten();
    let from = files.into_iter().find(|entry| entry.file_type().is_file()).ok_or_else(|| {
        KernelError::Layout {
            package: package.display().to_string(),
            expected: vec![format!("{PLACE}/*/vmlinux*")],
        }
    })?;
    Vmlinux::read(from.path())?.keep(&compile::vmlinux_in(folder))?;
    fs::remove_dir_all(&unpacked).map_err(io_error("remove", &unpacked))
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::{process::Command, time::Duration};
    use tramplab_host::child;

    const MOST: u64 = 1 << 30;

    /// Packs these files as a Debian package.
    fn packed(folder: &Path, files: &[(&str, &[u8])]) -> PathBuf {
        let (tree, package) = (folder.join("tree"), folder.join("p.deb"));
        let control = "Package: p\nVersion: 1\nArchitecture: all\nMaintainer: m\nDescription: d\n";
        let control = ("DEBIAN/control", control.as_bytes());
        for (path, bytes) in files.iter().chain([&control]) {
            let path = tree.join(path);
            fs::create_dir_all(path.parent().unwrap()).unwrap();
            fs::write(path, bytes).unwrap();
        }
        let mut command = Command::new("dpkg-deb");
        command.args(["--root-owner-group", "--build"]).args([&tree, &package]);
        child::run(&mut command, Duration::from_secs(60)).unwrap();
        package
    }

    #[test]
    fn keeps_vmlinux_of_either_layout_alone() {
        let program = fs::read("/bin/true").unwrap();
        let module = ("usr/lib/debug/lib/modules/6.12-cloud/kernel/fs/fuse.ko", &b"module"[..]);
        for place in
            ["usr/lib/debug/boot/vmlinux-6.12-cloud", "usr/lib/debug/lib/modules/7.2-cloud/vmlinux"]
        {
            let dir = tempfile::tempdir().unwrap();
            let package = packed(dir.path(), &[(place, &program), module]);
            let folder = dir.path().join("folder");
            fs::create_dir(&folder).unwrap();
            take(&package, &folder, MOST).unwrap();
            let kept: Vec<_> = fs::read_dir(&folder).unwrap().flatten().collect();
            assert_eq!(kept.len(), 1, "{kept:?}");
            assert_eq!(kept[0].metadata().unwrap().len(), program.len() as u64);
        }
        let dir = tempfile::tempdir().unwrap();
        let package = packed(dir.path(), &[module]);
        assert!(take(&package, dir.path(), MOST).is_err());
    }
}
