// SPDX-License-Identifier: MIT OR Apache-2.0
//! git as a user runs it, without what the machine of the tests configures.

use std::{env, path::Path, process::Command};

/// git in a folder, with an author. It leaves no maintenance in the background.
pub fn command(folder: &Path) -> Command {
    let mut command = Command::new("git");
    for (name, _) in env::vars_os().filter(|(name, _)| name.to_string_lossy().starts_with("GIT_")) {
        command.env_remove(name);
    }
    command.env("GIT_CONFIG_GLOBAL", "/dev/null").env("GIT_CONFIG_NOSYSTEM", "1");
    command.current_dir(folder);
    for setting in [
        "user.name=A U Thor",
        "user.email=a@example.org",
        "init.defaultBranch=main",
        "maintenance.auto=false",
    ] {
        command.args(["-c", setting]);
    }
    command
}

/// Returns the output of git, without the last line's end.
pub fn run(folder: &Path, words: &[&str]) -> String {
    output(command(folder).args(words))
}

/// The same of a command that a test has changed.
pub fn output(command: &mut Command) -> String {
    let output = command.output().expect("git");
    assert!(output.status.success(), "{command:?}: {}", String::from_utf8_lossy(&output.stderr));
    let text = String::from_utf8(output.stdout).expect("UTF-8");
    text.strip_suffix('\n').unwrap_or(&text).to_owned()
}
