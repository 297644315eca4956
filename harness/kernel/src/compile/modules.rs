// SPDX-License-Identifier: MIT OR Apache-2.0
//! The modules of a kernel that is built here, if its configuration has any.

use super::{
    BuildError,
    error::io_error,
    output::{is_own, require_own},
};
use crate::modules::BUILT_IN;
use std::{fs, io, path::Path};
use walkdir::{DirEntry, WalkDir};

/// The folder of modules in a cache entry.
pub const FOLDER: &str = "modules";
pub const TARGET: &str = "modules";
/// A build with more modules than any kernel has is not kept.
const MOST: usize = 20_000;
/// The tree's own tests are built in the same folder, with modules of their own.
const SELFTESTS: &str = "selftests";

/// True if a configuration has options that are built as modules.
pub fn has_any(config: &str) -> bool {
    config.lines().any(|line| line.starts_with("CONFIG_") && line.ends_with("=m"))
}

/// Copies the modules of a build into a cache entry.
pub fn keep(build: &Path, entry: &Path) -> Result<(), BuildError> {
    let folder = entry.join(FOLDER);
    fs::create_dir(&folder).map_err(io_error("make", &folder))?;
    let is_kernels = |entry: &DirEntry| entry.depth() != 1 || entry.file_name() != SELFTESTS;
    let files = WalkDir::new(build).sort_by_file_name().into_iter().filter_entry(is_kernels);
    let mut count = 0;
    for file in files {
        let file = file.map_err(|error| io_error("list", build)(error.into()))?;
        let path = file.path();
        if path.extension().is_none_or(|extension| extension != "ko") {
            continue;
        }
        require_own(path, build)?;
        count += 1;
        if count > MOST {
            return Err(io_error("keep", build)(io::Error::other("it has too many modules")));
        }
        // Modules of one kernel have different names.
        fs::copy(path, folder.join(file.file_name())).map_err(io_error("copy", path))?;
    }
    let list = build.join(BUILT_IN);
    if is_own(&list, build).unwrap_or(false) {
        fs::copy(&list, folder.join(BUILT_IN)).map_err(io_error("copy", &list))?;
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn keeps_the_kernels_modules_but_no_links_or_tests() {
        let (build, entry) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
        for path in ["fs/xfs/xfs.ko", "lib/crc.ko", "selftests/out/bpf_testmod.ko", "lib/crc.o"] {
            let path = build.path().join(path);
            fs::create_dir_all(path.parent().unwrap()).unwrap();
            fs::write(path, "module").unwrap();
        }
        fs::write(build.path().join(BUILT_IN), "kernel/fs/ext4/ext4.ko\n").unwrap();
        keep(build.path(), entry.path()).unwrap();
        let mut kept: Vec<String> = fs::read_dir(entry.path().join(FOLDER))
            .unwrap()
            .map(|file| file.unwrap().file_name().into_string().unwrap())
            .collect();
        kept.sort();
        assert_eq!(kept, ["crc.ko", BUILT_IN, "xfs.ko"]);
        std::os::unix::fs::symlink("/etc/passwd", build.path().join("bad.ko")).unwrap();
        let another = tempfile::tempdir().unwrap();
        let error = keep(build.path(), another.path()).unwrap_err().to_string();
        assert!(error.contains("bad.ko"), "{error}");
    }

    #[test]
    fn finds_options_that_are_modules() {
        for (config, expected) in [
            ("CONFIG_XFS_FS=y\nCONFIG_TUN=m\n", true),
            ("CONFIG_MODULES=y\n# CONFIG_TUN=m\nCONFIG_X=\"a=m\"\n", false),
            ("", false),
        ] {
            assert_eq!(has_any(config), expected, "{config}");
        }
    }
}
