// SPDX-License-Identifier: MIT OR Apache-2.0
//! `tramplab.yaml`: options of `vm-test` that the user gives once, for a kernel's tree or for all.

use super::{typed, vm_test::Alone};
use clap::{CommandFactory, parser::ValueSource};
use schemars::JsonSchema;
use serde::Deserialize;
use std::{
    env,
    io::ErrorKind,
    num::NonZeroUsize,
    path::{Path, PathBuf},
};
use tramplab_host::config;
use tramplab_lab::{
    error::{Error, Result},
    place::own_folder,
};

const NAME: &str = "tramplab.yaml";
/// Options for kernels that are built here.
const CONFIG: [&str; 2] = ["config", "config-axis"];

/// Default options of `vm-test`. Each is the option of this name; one on the command line replaces
/// it.
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

/// An option with its values, which a flag has not.
type Given = (&'static str, Vec<Option<String>>);

impl Defaults {
    fn options(self) -> Vec<Given> {
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
        let of = |value: Option<String>| Vec::from_iter(value.map(Some));
        vec![
            ("suite", of(suite)),
            ("arch", arch.into_iter().map(Some).collect()),
            ("config", of(config)),
            ("config-axis", config_axis.into_iter().map(Some).collect()),
            ("vm", of(vm)),
            ("accel", of(accel)),
            ("branches", of(branches)),
            ("clock", of(clock)),
            ("jobs", of(jobs.map(|jobs| jobs.to_string()))),
            ("confined", Vec::from_iter(confined.then_some(None))),
        ]
    }
}

/// A file that exists, and what it says.
struct File {
    path: PathBuf,
    options: Vec<Given>,
}

/// Returns the words of a command line together with the defaults of the measured tree and of the
/// user, and prints these. An option of the words comes before one of the tree's, which comes
/// before one of the user's.
pub fn added(words: Vec<String>, tree: Option<&Path>) -> Result<Vec<String>> {
    let mut words = words;
    for (folder, is_of_tree) in [(tree.map(Path::to_owned), true), (own_folder(), false)] {
        let Some(path) = folder.map(|folder| folder.join(NAME)) else { continue };
        let is_missing = path.metadata().is_err_and(|error| error.kind() == ErrorKind::NotFound);
        if is_missing && !path.is_symlink() {
            continue;
        }
        let options = config::load_regular::<Defaults>(&path)?.options();
        let configures = |(name, values): &Given| CONFIG.contains(name) && !values.is_empty();
        if !is_of_tree && options.iter().any(configures) {
            return Err(Error::Usage(format!(
                "{}: `config` and `config-axis` are for the {NAME} of a kernel's tree, as other \
                 kernels may not be built here",
                path.display()
            )));
        }
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
    // `--config FILE` is short for `--config-axis config=FILE`.
    let of_config = |axis: &str| axis.starts_with("config=");
    let mut axes = given.get_raw("axes").into_iter().flatten();
    let has_config = given.value_source("config").is_some()
        || axes.any(|axis| of_config(&axis.to_string_lossy()));
    let mut more = Vec::new();
    for (name, values) in file.options {
        let mut known = command.get_arguments();
        let arg = known.find(|arg| arg.get_long() == Some(name)).expect("an option of vm-test");
        let conflicts = || command.get_arg_conflicts_with(arg).into_iter().any(is_given);
        if is_given(arg) || conflicts() {
            continue;
        }
        for value in values.into_iter().map(|value| value.map(expanded)) {
            let configures = name == "config" || value.as_deref().is_some_and(of_config);
            if has_config && configures {
                continue;
            }
            more.push(match value {
                Some(value) => format!("--{name}={value}"),
                None => format!("--{name}"),
            });
        }
    }
    if more.is_empty() {
        return Ok(words);
    }
    let more = typed::with_paths_in(more, file.path.parent().unwrap_or(Path::new("/")));
    let path = file.path.display();
    eprintln!("defaults of {path}: {}", shell_words::join(&more));
    if env::args_os().any(|word| word.to_str().is_none()) {
        return Err(Error::Usage(format!("{path}: the command line is to be UTF-8 to add to it")));
    }
    // Before `--`, behind which names of cells stand.
    words.splice(2..2, more);
    match command.try_get_matches_from(&words[1..]) {
        Ok(_) => Ok(words),
        Err(error) => {
            let said = error.to_string();
            let said = said.strip_prefix("error: ").unwrap_or(&said);
            let said = said.split("\n\nFor more information").next().unwrap_or(said);
            Err(Error::Usage(format!("{path}: {said}")))
        }
    }
}

/// No shell expands what stands in a file.
fn expanded(value: String) -> String {
    match (value.strip_prefix("~/"), env::home_dir()) {
        (Some(path), Some(home)) => home.join(path).display().to_string(),
        _ => value,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A file's text, the typed words, and both together.
    #[test]
    fn options_on_the_command_line_replace_those_of_a_file() {
        let path = Path::new("/linux/tramplab.yaml");
        for (text, typed, expected) in [
            ("suite: ci", "x vm-test", Some("x vm-test --suite=ci")),
            ("suite: own.yaml", "x vm-test", Some("x vm-test --suite=/linux/own.yaml")),
            ("suite: ci", "x vm-test --suite quick", Some("x vm-test --suite quick")),
            ("suite: ci", "x vm-test --suite=quick", Some("x vm-test --suite=quick")),
            ("jobs: 3", "x vm-test -j2", Some("x vm-test -j2")),
            ("jobs: 3", "x vm-test -- fexit", Some("x vm-test --jobs=3 -- fexit")),
            ("confined: true", "x vm-test", Some("x vm-test --confined")),
            ("confined: false", "x vm-test", Some("x vm-test")),
            (
                "config: .config\narch: [arm64, x86_64]",
                "x vm-test fexit",
                Some("x vm-test --arch=arm64 --arch=x86_64 --config=/linux/.config fexit"),
            ),
            ("suite: \"\"", "x vm-test fexit", Some("x vm-test --suite= fexit")),
            (
                "config: a",
                "x vm-test --config-axis config=b",
                Some("x vm-test --config-axis config=b"),
            ),
            ("config-axis: [config=a]", "x vm-test --config b", Some("x vm-test --config b")),
            (
                "config: a",
                "x vm-test --config-axis preempt=full",
                Some("x vm-test --config=/linux/a --config-axis preempt=full"),
            ),
            // These contradict the typed words.
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
        let home = env::home_dir().unwrap().join("a.yaml");
        assert_eq!(expanded("~/a.yaml".to_owned()), home.display().to_string());
        for wrong in ["suit: ci", "jobs: 0", "arch: x86_64", "runs: /tmp"] {
            assert!(config::parse::<Defaults>(wrong, path).is_err(), "{wrong}");
        }
    }
}
