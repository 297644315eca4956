// SPDX-License-Identifier: MIT OR Apache-2.0
//! All code that touches nextest-runner, whose API breaks about monthly: the cells of a run, and
//! this repository's own tests.

pub mod cells;
mod journal;
pub mod own_tests;
mod targets;
mod watch;

use crate::error::{Error, Result};
use nextest_runner::{
    cargo_config::{CargoConfigs, EnvironmentMap},
    double_spawn::{DoubleSpawnInfo, double_spawn_child_init},
    helpers::{ShowTerminalProgress, ThemeCharacters},
    list::ListProgressOptions,
    reporter::ShowProgress,
    runner::VersionEnvVars,
};
use std::{ffi::OsString, os::unix::process::CommandExt, process::Command};

/// Errors of nextest's many types, which no caller tells apart.
fn nextest(error: impl std::error::Error) -> Error {
    let causes = std::iter::successors(error.source(), |error| error.source());
    let causes: String = causes.map(|cause| format!(": {cause}")).collect();
    Error::failed(format!("{error}{causes}"))
}

/// Variables of the tests. Each setting is one of cargo's configuration, or names a file of them.
fn environment(setting: &str) -> Result<EnvironmentMap> {
    Ok(EnvironmentMap::new(&CargoConfigs::new([setting]).map_err(nextest)?))
}

/// nextest passes these to the tests, which do not read them.
fn versions() -> VersionEnvVars {
    VersionEnvVars {
        current_version: semver::Version::new(0, 9, 0),
        required_version: None,
        recommended_version: None,
    }
}

fn quiet() -> ListProgressOptions {
    ListProgressOptions::new(
        ShowProgress::None,
        ShowTerminalProgress::No,
        ThemeCharacters::default(),
        false,
    )
}

/// Starts a test with clean signal masks, if these are the arguments that nextest passes for that.
/// Returns only if that fails.
pub fn double_spawn(mut arguments: impl Iterator<Item = OsString>) -> Option<Error> {
    if arguments.next()? != DoubleSpawnInfo::SUBCOMMAND_NAME {
        return None;
    }
    double_spawn_child_init();
    let mut arguments = arguments.skip_while(|argument| argument == "--");
    let mut start = || -> Result<()> {
        let (Some(program), Some(line), None) =
            (arguments.next(), arguments.next(), arguments.next())
        else {
            return Err(Error::usage("expected a program and its arguments"));
        };
        Err(Command::new(program)
            .args(
                shell_words::split(&line.to_string_lossy())
                    .map_err(|error| Error::Usage(error.to_string()))?,
            )
            .exec()
            .into())
    };
    start().err()
}
