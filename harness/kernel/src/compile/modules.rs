// SPDX-License-Identifier: MIT OR Apache-2.0
//! The modules of a kernel that is built here, if its configuration has any.

use super::{
    BuildError,
    error::io_error,
    output::{is_own, require_own},
};
use crate::modules::BUILT_IN;
use std::{collections::BTreeMap, fs, io, path::Path};
use tramplab_host::cache::{RESERVE, require_room};

/// The folder of modules in a cache entry.
pub const FOLDER: &str = "modules";
pub const TARGET: &str = "modules";
/// A build with more modules than any kernel has is not kept.
const MOST: usize = 20_000;
/// Bytes of the list of built-in modules. A distribution's has 200 KiB.
const LONGEST: u64 = 8 << 20;
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
        if length(&list)? > LONGEST {
            return Err(refused(&list, "it is longer than any kernel's"));
        }
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
        return Err(refused(&order, "it has too many modules"));
    }
    let (mut modules, mut bytes) = (BTreeMap::new(), 0_u64);
    for line in text.lines() {
        // Linux before 6.3 lists `….ko`, others `….o`.
        let path = build.join(line).with_extension("ko");
        require_own(&path, build)?;
        bytes = bytes.saturating_add(length(&path)?);
        let name = path.file_name().expect("a file has a name").to_owned();
        if let Some(other) = modules.insert(name, path) {
            return Err(refused(&other, "two modules have this name"));
        }
    }
    // Hard links and holes make modules that are larger than the disk.
    require_room(entry, bytes.saturating_add(RESERVE)).map_err(BuildError::NoRoom)?;
    for (name, path) in modules {
        fs::copy(&path, folder.join(name)).map_err(io_error("copy", &path))?;
    }
    Ok(())
}

fn length(path: &Path) -> Result<u64, BuildError> {
    Ok(fs::metadata(path).map_err(io_error("find", path))?.len())
}

fn refused(path: &Path, why: &'static str) -> BuildError {
    io_error("keep", path)(io::Error::other(why))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn keeps_the_modules_that_this_configuration_makes() {
        let (build, entry) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
        let all = ["fs/xfs/xfs.ko", "lib/crc.ko", "kernel/kheaders.ko", "fs/stale.ko", "lib/crc.o"];
        for path in all {
            let path = build.path().join(path);
            fs::create_dir_all(path.parent().unwrap()).unwrap();
            fs::write(path, "module").unwrap();
        }
        fs::write(build.path().join(ORDER), "fs/xfs/xfs.o\nlib/crc.ko\nkernel/kheaders.o\n")
            .unwrap();
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
        assert_eq!(kept(true), ["crc.ko", "kheaders.ko", BUILT_IN, "xfs.ko"]);
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
    fn rejects_modules_that_fill_the_disk() {
        let (build, entry) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
        let order = |lines: &[String]| {
            fs::write(build.path().join(ORDER), lines.join("\n")).unwrap();
            let kept = keep(build.path(), true, entry.path());
            let copied = fs::read_dir(entry.path().join(FOLDER)).unwrap().count();
            fs::remove_dir(entry.path().join(FOLDER)).unwrap();
            (kept.unwrap_err(), copied)
        };
        // A hole takes no space before it is copied.
        let first = build.path().join("0.ko");
        fs::File::create(&first).unwrap().set_len(512 << 20).unwrap();
        let all: Vec<String> = (0..MOST).map(|number| format!("{number}.o")).collect();
        for name in &all[1..] {
            fs::hard_link(&first, build.path().join(name).with_extension("ko")).unwrap();
        }
        let (error, copied) = order(&all);
        assert!(matches!(error, BuildError::NoRoom(_)) && copied == 0, "{error}");
        let (error, copied) = order(&["0.o".to_owned(), "0.ko".to_owned()]);
        assert!(matches!(error, BuildError::Io { .. }) && copied == 0, "{error}");
        fs::File::create(build.path().join(BUILT_IN)).unwrap().set_len(LONGEST + 1).unwrap();
        let (error, copied) = order(&[]);
        assert!(matches!(error, BuildError::Io { .. }) && copied == 0, "{error}");
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
