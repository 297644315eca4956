// SPDX-License-Identifier: MIT OR Apache-2.0
//! Finds the host's programs by name.

use std::{
    env, io,
    os::unix::fs::PermissionsExt,
    path::{Path, PathBuf},
};

/// The path of an executable in `PATH`.
pub fn in_path(name: &str) -> Option<PathBuf> {
    find_program(name, &env::var_os("PATH")?)
}

/// The path of an executable in `path`, a list of folders like `PATH`.
pub fn find_program(name: &str, path: &std::ffi::OsStr) -> Option<PathBuf> {
    let runs = |path: &Path| -> io::Result<bool> {
        let file = path.metadata()?;
        Ok(file.is_file() && file.permissions().mode() & 0o111 != 0)
    };
    env::split_paths(path).map(|folder| folder.join(name)).find(|path| runs(path).unwrap_or(false))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn finds_only_files_that_can_be_run() {
        let folder = tempfile::tempdir().unwrap();
        let path = env::join_paths([Path::new("/no/such/folder"), folder.path()]).unwrap();
        let program = folder.path().join("tool");
        assert_eq!(find_program("tool", &path), None);
        std::fs::write(&program, "").unwrap();
        std::fs::set_permissions(&program, std::fs::Permissions::from_mode(0o644)).unwrap();
        assert_eq!(find_program("tool", &path), None);
        std::fs::set_permissions(&program, std::fs::Permissions::from_mode(0o755)).unwrap();
        assert_eq!(find_program("tool", &path), Some(program));
        std::fs::create_dir(folder.path().join("folder")).unwrap();
        assert_eq!(find_program("folder", &path), None);
    }
}
