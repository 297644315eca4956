// SPDX-License-Identifier: MIT OR Apache-2.0
//! The modules of a kernel that is built here, if its configuration has any.

use super::{
    BuildError,
    error::io_error,
    output::{is_own, require_own},
};
use crate::modules::BUILT_IN;
use std::{fs, io, path::Path};

/// The folder of modules in a cache entry.
pub const FOLDER: &str = "modules";
pub const TARGET: &str = "modules";
/// A build with more modules than any kernel has is not kept.
const MOST: usize = 20_000;
/// kbuild's list of the modules that it made.
const ORDER: &str = "modules.order";

/// True if a configuration has options that are built as modules.
pub fn has_any(config: &str) -> bool {
    config.lines().any(|line| line.starts_with("CONFIG_") && line.ends_with("=m"))
}

/// Copies the list of built-in modules into a cache entry and, if they were `made`, the modules.
pub fn keep(build: &Path, made: bool, entry: &Path) -> Result<(), BuildError> {
    let folder = entry.join(FOLDER);
    fs::create_dir(&folder).map_err(io_error("make", &folder))?;
    let list = build.join(BUILT_IN);
    if is_own(&list, build).unwrap_or(false) {
        fs::copy(&list, folder.join(BUILT_IN)).map_err(io_error("copy", &list))?;
    }
    if !made {
        return Ok(());
    }
    // Modules of an earlier configuration may still be there: kbuild deletes none.
    let order = build.join(ORDER);
    require_own(&order, build)?;
    let text = fs::read_to_string(&order).map_err(io_error("read", &order))?;
    if text.lines().count() > MOST {
        return Err(io_error("keep", &order)(io::Error::other("it has too many modules")));
    }
    for line in text.lines() {
        // Linux before 6.3 lists `kernel/….ko`, others `….o`.
        let path = build.join(line.strip_prefix("kernel/").unwrap_or(line)).with_extension("ko");
        require_own(&path, build)?;
        let name = path.file_name().expect("a file has a name");
        // Modules of one kernel have different names.
        fs::copy(&path, folder.join(name)).map_err(io_error("copy", &path))?;
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn keeps_the_modules_that_this_configuration_makes() {
        let (build, entry) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
        for path in ["fs/xfs/xfs.ko", "lib/crc.ko", "fs/stale.ko", "lib/crc.o"] {
            let path = build.path().join(path);
            fs::create_dir_all(path.parent().unwrap()).unwrap();
            fs::write(path, "module").unwrap();
        }
        fs::write(build.path().join(ORDER), "fs/xfs/xfs.o\nkernel/lib/crc.ko\n").unwrap();
        fs::write(build.path().join(BUILT_IN), "kernel/fs/ext4/ext4.ko\n").unwrap();
        let kept = |made: bool| {
            keep(build.path(), made, entry.path()).unwrap();
            let folder = entry.path().join(FOLDER);
            let mut kept: Vec<String> = fs::read_dir(&folder)
                .unwrap()
                .map(|file| file.unwrap().file_name().into_string().unwrap())
                .collect();
            kept.sort();
            fs::remove_dir_all(folder).unwrap();
            kept
        };
        assert_eq!(kept(false), [BUILT_IN]);
        assert_eq!(kept(true), ["crc.ko", BUILT_IN, "xfs.ko"]);
    }

    #[test]
    fn keeps_nothing_from_elsewhere() {
        let outside = tempfile::tempdir().unwrap();
        fs::write(outside.path().join("a.ko"), "module").unwrap();
        let path = outside.path().join("a.o");
        for order in [path.to_str().unwrap(), "gone.o", "link.o", "..", "/", "folder"] {
            let (build, entry) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
            std::os::unix::fs::symlink("/etc/passwd", build.path().join("link.ko")).unwrap();
            fs::create_dir(build.path().join("folder.ko")).unwrap();
            fs::write(build.path().join(ORDER), order).unwrap();
            let error = keep(build.path(), true, entry.path()).unwrap_err();
            assert!(matches!(error, BuildError::Io { .. }), "{order}: {error}");
            assert_eq!(fs::read_dir(entry.path().join(FOLDER)).unwrap().count(), 0, "{order}");
        }
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
