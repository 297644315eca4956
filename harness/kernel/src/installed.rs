// SPDX-License-Identifier: MIT OR Apache-2.0
//! Where distributions put a kernel's files, relative to a root: that of a machine, or of an
//! unpacked package.

use super::{KernelError, io_error, modules::name_of};
use std::{
    collections::BTreeSet,
    ffi::OsStr,
    fs,
    path::{Path, PathBuf},
};

/// Folders with one folder for each kernel.
pub const MODULES: [&str; 2] = ["lib/modules", "usr/lib/modules"];
/// Names of an image in such a folder, and before `-RELEASE` in `/boot`. openSUSE's for arm64 is
/// `Image`; Debian's unsigned packages have the last.
const IMAGES: [&str; 3] = ["vmlinuz", "Image", "vmlinuz.unsigned"];

pub fn images(release: &str) -> Vec<String> {
    let boot = IMAGES.map(|name| format!("boot/{name}-{release}"));
    let beside = folders(release).into_iter();
    let beside = beside.flat_map(|folder| IMAGES.map(|name| format!("{folder}/{name}")));
    boot.into_iter().chain(beside).collect()
}

pub fn configs(release: &str) -> Vec<String> {
    let beside = folders(release).map(|folder| format!("{folder}/config"));
    [format!("boot/config-{release}")].into_iter().chain(beside).collect()
}

/// Those of unpacked packages. On a machine `build` may be a link to a tree that has changed.
pub fn configs_of_packages(release: &str) -> Vec<String> {
    // Arch has it only in linux-headers.
    let headers = folders(release).map(|folder| format!("{folder}/build/.config"));
    configs(release).into_iter().chain(headers).collect()
}

/// The folders with a kernel's modules.
pub fn folders(release: &str) -> [String; 2] {
    MODULES.map(|tree| format!("{tree}/{release}"))
}

/// The releases of all kernels with an image there.
pub fn releases(root: &Path) -> BTreeSet<String> {
    let names = |folder: &str| {
        let entries = fs::read_dir(root.join(folder)).into_iter().flatten().flatten();
        entries.filter_map(|entry| entry.file_name().into_string().ok()).collect::<Vec<_>>()
    };
    let release = |name: String| {
        let found = IMAGES.iter().find_map(|image| name.strip_prefix(image)?.strip_prefix('-'));
        found.map(str::to_owned)
    };
    let in_boot = names("boot").into_iter().filter_map(release);
    let known = in_boot.chain(MODULES.into_iter().flat_map(names)).collect::<BTreeSet<_>>();
    let has_image =
        |release: &String| images(release).iter().any(|place| root.join(place).is_file());
    known.into_iter().filter(has_image).collect()
}

/// The releases of all kernels with modules there.
pub fn releases_of_modules(root: &Path) -> BTreeSet<String> {
    let trees = MODULES.iter().flat_map(|tree| fs::read_dir(root.join(tree)).into_iter().flatten());
    let has_module = |folder: &Path| {
        let files = walkdir::WalkDir::new(folder).into_iter().flatten();
        files.into_iter().any(|file| name_of(file.path()).is_some())
    };
    let folders = trees.flatten().filter(|folder| has_module(&folder.path()));
    folders.filter_map(|folder| folder.file_name().into_string().ok()).collect()
}

/// Removes links: once moved, they would lead out of the package. That to a configuration inside it
/// becomes the file. Returns the configurations that lead to no file.
pub fn without_links(unpacked: &Path) -> Result<Vec<PathBuf>, KernelError> {
    let root = unpacked.canonicalize().map_err(io_error("read", unpacked))?;
    let entries = walkdir::WalkDir::new(&root).into_iter().flatten();
    let links = entries.filter(|entry| entry.path_is_symlink()).map(walkdir::DirEntry::into_path);
    // A link may lead to another: all are followed before one is removed.
    let led = links.map(|link| (link.canonicalize().ok(), link)).collect::<Vec<_>>();
    let mut lost = Vec::new();
    for (target, link) in led {
        fs::remove_file(&link).map_err(io_error("remove", &link))?;
        if !is_config(&link) {
            continue;
        }
        match target.filter(|target| target.starts_with(&root) && target.is_file()) {
            Some(target) => fs::hard_link(&target, &link).map_err(io_error("link", &link))?,
            None => lost.push(link.strip_prefix(&root).expect("below it").to_owned()),
        }
    }
    Ok(lost)
}

/// True for the name of a configuration.
pub fn is_config(path: &Path) -> bool {
    let name = path.file_name().and_then(OsStr::to_str).unwrap_or_default();
    name.starts_with("config-") || ["config", ".config"].contains(&name)
}
