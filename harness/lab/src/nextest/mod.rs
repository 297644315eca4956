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
    config::core::EvaluatableProfile,
    double_spawn::{DoubleSpawnInfo, double_spawn_child_init},
    helpers::{ShowTerminalProgress, ThemeCharacters, force_or_new_run_id},
    input::InputHandlerKind,
    list::{ListProgressOptions, TestExecuteContext, TestList},
    reporter::ShowProgress,
    runner::{TestRunner, TestRunnerBuilder, VersionEnvVars},
    signal::SignalHandlerKind,
    target_runner::TargetRunner,
    test_output::CaptureStrategy,
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

/// This program, as far as nextest asks about it.
struct Host {
    /// Passed to the tests, which do not read them.
    versions: VersionEnvVars,
    double_spawn: DoubleSpawnInfo,
    target_runner: TargetRunner,
}

impl Host {
    fn new() -> Host {
        let versions = VersionEnvVars {
            current_version: semver::Version::new(0, 9, 0),
            required_version: None,
            recommended_version: None,
        };
        let double_spawn = DoubleSpawnInfo::try_enable();
        Host { versions, double_spawn, target_runner: TargetRunner::empty() }
    }

    /// The context of one run.
    fn context<'a>(&'a self, profile: &'a EvaluatableProfile<'_>) -> TestExecuteContext<'a> {
        TestExecuteContext {
            run_id: force_or_new_run_id(),
            version_env_vars: &self.versions,
            profile_name: profile.name(),
            double_spawn: &self.double_spawn,
            target_runner: &self.target_runner,
        }
    }
}

/// The runner of listed tests. While it works, nextest handles signals.
fn runner<'a>(
    mut builder: TestRunnerBuilder,
    context: &TestExecuteContext<'_>,
    tests: &'a TestList<'_>,
    profile: &'a EvaluatableProfile<'a>,
) -> Result<TestRunner<'a>> {
    builder.set_capture_strategy(CaptureStrategy::Combined);
    builder
        .build(
            context.run_id,
            context.version_env_vars.clone(),
            tests,
            profile,
            Vec::new(),
            SignalHandlerKind::Standard,
            InputHandlerKind::Noop,
            context.double_spawn.clone(),
            context.target_runner.clone(),
        )
        .map_err(nextest)
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
