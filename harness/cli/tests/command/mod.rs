// SPDX-License-Identifier: MIT OR Apache-2.0
//! Runs the program as its users do, and reads the run it made.

use std::{
    fs,
    os::unix::fs::PermissionsExt,
    path::Path,
    process::{Command, Output},
};
use tramplab_host::runs::RunDir;
use tramplab_model::run::Run;

/// The program, started in the folder that `cargo xtask` starts it in.
pub fn tramplab() -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_tramplab"));
    command.current_dir(repository());
    // No suites, kernels and defaults of who runs the tests.
    command.env("XDG_CONFIG_HOME", concat!(env!("CARGO_TARGET_TMPDIR"), "/none"));
    command
}

pub fn repository() -> &'static Path {
    Path::new(env!("CARGO_MANIFEST_DIR")).ancestors().nth(2).unwrap()
}

#[allow(dead_code, reason = "`faults` only starts the program")]
pub fn said(output: &Output) -> String {
    String::from_utf8_lossy(&output.stdout).into_owned() + &stderr(output)
}

pub fn stderr(output: &Output) -> String {
    String::from_utf8_lossy(&output.stderr).into_owned()
}

/// Writes a script that can be run.
#[allow(dead_code, reason = "`faults` only starts the program")]
pub fn write_script(path: &Path, text: &str) {
    fs::write(path, text).unwrap();
    fs::set_permissions(path, fs::Permissions::from_mode(0o755)).unwrap();
}

/// Makes a folder that looks like kernel sources and does not build.
#[allow(dead_code, reason = "`faults` only starts the program")]
pub fn kernel_tree(folder: &Path) {
    fs::create_dir(folder).unwrap();
    for (file, text) in [("Kbuild", ""), ("Kconfig", ""), ("Makefile", "VERSION = 6\n")] {
        fs::write(folder.join(file), text).unwrap();
    }
}

/// Loads the newest run in the folder `runs`.
#[allow(dead_code, reason = "`faults` only starts the program")]
pub fn stored(runs: &Path) -> Run {
    RunDir::load(&runs.join("latest")).unwrap()
}
