// SPDX-License-Identifier: MIT OR Apache-2.0
//! `tramplab.yaml`: options of `vm-test` that the user gives once, for a kernel's tree or for all.

use super::{typed, vm_test::Alone};
use clap::{CommandFactory, parser::ValueSource};
use schemars::JsonSchema;
use serde::Deserialize;
use std::{
    num::NonZeroUsize,
    path::{Path, PathBuf},
};
use tramplab_host::config;
use tramplab_lab::{
    error::{Error, Result},
    place::own_folder,
};

const NAME: &str = "tramplab.yaml";

/// Options of `vm-test` that it has without being told. Each is the option of this name; one on the
/// command line replaces it.
#[derive(Default, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields, rename_all = "kebab-case", default)]
pub struct Defaults {
    suite: Option<String>,
    arch: Vec<String>,
    config: Option<String>,
    config_axis: Vec<String>,
    vm: Option<String>,
    accel: Option<String>,
    branches: Option<String>,
    clock: Option<String>,
    jobs: Option<NonZeroUsize>,
    confined: bool,
}

impl Defaults {
    fn options(self) -> Vec<(&'static str, Vec<String>)> {
        let Defaults {
            suite,
            arch,
            config,
            config_axis,
            vm,
            accel,
            branches,
            clock,
            jobs,
            confined,
        } = self;
        let of = |value: Option<String>| Vec::from_iter(value);
        vec![
            ("suite", of(suite)),
            ("arch", arch),
            ("config", of(config)),
            ("config-axis", config_axis),
            ("vm", of(vm)),
            ("accel", of(accel)),
            ("branches", of(branches)),
            ("clock", of(clock)),
            ("jobs", of(jobs.map(|jobs| jobs.to_string()))),
            // A flag has no value.
            ("confined", of(confined.then(String::new))),
        ]
    }
}

/// A file that exists, and what it says.
struct File {
    path: PathBuf,
    options: Vec<(&'static str, Vec<String>)>,
}

/// Returns the words of a command line together with the defaults of the measured tree and of the
/// user, and tells which these are. An option of the words comes before one of the tree's, which
/// comes before one of the user's.
pub fn added(words: Vec<String>, tree: Option<&Path>) -> Result<Vec<String>> {
    let mut words = words;
    for folder in tree.map(Path::to_owned).into_iter().chain(own_folder()) {
        let path = folder.join(NAME);
        if !path.exists() {
            continue;
        }
        let options = config::load::<Defaults>(&path)?.options();
        words = with(words, File { path, options })?;
    }
    Ok(words)
}

fn with(mut words: Vec<String>, file: File) -> Result<Vec<String>> {
    let command = Alone::command();
    // They are those of the program's own command line, which clap has read before.
    let given = command.clone().try_get_matches_from(&words[1..]);
    let given = given.map_err(|error| Error::Usage(error.to_string()))?;
    let is_given = |arg: &clap::Arg| {
        given.value_source(arg.get_id().as_str()) == Some(ValueSource::CommandLine)
    };
    let mut more = Vec::new();
    for (name, values) in file.options {
        let mut known = command.get_arguments();
        let arg = known.find(|arg| arg.get_long() == Some(name)).expect("an option of vm-test");
        let conflicts = || command.get_arg_conflicts_with(arg).into_iter().any(is_given);
        if is_given(arg) || conflicts() {
            continue;
        }
        for value in values {
            more.push(format!("--{name}"));
            more.extend(Some(value).filter(|value| !value.is_empty()));
        }
    }
    if more.is_empty() {
        return Ok(words);
    }
    let more = typed::with_paths_in(more, file.path.parent().unwrap_or(Path::new("/")));
    let path = file.path.display();
    eprintln!("defaults of {path}: {}", shell_words::join(&more));
    // Before `--`, behind which names of cells stand.
    words.splice(2..2, more);
    match command.try_get_matches_from(&words[1..]) {
        Ok(_) => Ok(words),
        Err(error) => Err(Error::Usage(format!("{path}: {error}"))),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// What a file says, what was typed, and the words of both.
    #[test]
    fn options_on_the_command_line_replace_those_of_a_file() {
        let path = Path::new("/linux/tramplab.yaml");
        for (text, typed, expected) in [
            ("suite: ci", "x vm-test", Some("x vm-test --suite ci")),
            ("suite: own.yaml", "x vm-test", Some("x vm-test --suite /linux/own.yaml")),
            ("suite: ci", "x vm-test --suite quick", Some("x vm-test --suite quick")),
            ("suite: ci", "x vm-test --suite=quick", Some("x vm-test --suite=quick")),
            ("jobs: 3", "x vm-test -j2", Some("x vm-test -j2")),
            ("jobs: 3", "x vm-test -- fexit", Some("x vm-test --jobs 3 -- fexit")),
            ("confined: true", "x vm-test", Some("x vm-test --confined")),
            ("confined: false", "x vm-test", Some("x vm-test")),
            (
                "config: .config\narch: [arm64, x86_64]",
                "x vm-test fexit",
                Some("x vm-test --arch arm64 --arch x86_64 --config /linux/.config fexit"),
            ),
            // These contradict what was typed.
            ("config: a", "x vm-test --update-budgets", Some("x vm-test --update-budgets")),
            (
                "confined: true",
                "x vm-test --series s --unconfined",
                Some("x vm-test --series s --unconfined"),
            ),
            ("accel: fast", "x vm-test", None),
            ("accel: fast", "x vm-test --accel tcg", Some("x vm-test --accel tcg")),
        ] {
            let options = config::parse::<Defaults>(text, path).unwrap().options();
            let words = typed.split(' ').map(String::from).collect();
            let found = with(words, File { path: path.to_owned(), options });
            assert_eq!(found.ok().map(|words| words.join(" ")).as_deref(), expected, "{text}");
        }
        for wrong in ["suit: ci", "jobs: 0", "arch: x86_64", "runs: /tmp"] {
            assert!(config::parse::<Defaults>(wrong, path).is_err(), "{wrong}");
        }
    }
}
