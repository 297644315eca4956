// SPDX-License-Identifier: MIT OR Apache-2.0
//! The options that a user gave to a command, as data.

use super::{
    options::{Value, facts},
    vm_test::args::Alone,
};
use clap::{Arg, ArgMatches, CommandFactory, parser::ValueSource};
use std::{
    any::TypeId,
    path::{Path, PathBuf},
};
use tramplab_lab::{
    command::{CommandLine, VM_TEST},
    place,
};
use tramplab_model::run::{GivenOptions, options::BARE};

/// The name of values that are stored runs, in help.
const RUN: &str = "RUN";

/// A command with its options as the user typed them, and as a run keeps them: with absolute paths.
pub struct Given {
    pub typed: GivenOptions,
    pub kept: CommandLine,
}

impl Given {
    pub fn of(syntax: &clap::Command, matches: &ArgMatches) -> Given {
        let typed = options(syntax, matches);
        let here = std::env::current_dir().unwrap_or_default();
        let kept = at(&here, syntax, typed.clone());
        Given { typed, kept: CommandLine { name: syntax.get_name().to_owned(), options: kept } }
    }
}

/// The options with absolute paths instead of those in a folder.
fn at(folder: &Path, syntax: &clap::Command, mut options: GivenOptions) -> GivenOptions {
    for arg in syntax.get_arguments() {
        let is_path = arg.get_value_parser().type_id() == TypeId::of::<PathBuf>();
        let names_run = arg.get_value_names().is_some_and(|names| names == [RUN]);
        for value in options.0.get_mut(name(arg)).into_iter().flatten() {
            *value = match is_path {
                // The name of a stored run is no path.
                true if names_run && !folder.join(&*value).exists() => continue,
                true => Value::Path.absolute(value, folder, &[]),
                false => absolute(name(arg), value, folder),
            };
        }
    }
    options
}

/// The options of `vm-test` as a run keeps them.
pub fn kept(options: GivenOptions) -> CommandLine {
    let here = std::env::current_dir().unwrap_or_default();
    let options = at(&here, &Alone::command(), options);
    CommandLine { name: VM_TEST.to_owned(), options }
}

/// The options that stand on a command line. Values that are not UTF-8 get marks.
pub fn options(syntax: &clap::Command, matches: &ArgMatches) -> GivenOptions {
    let mut options = GivenOptions::default();
    for arg in syntax.get_arguments() {
        let id = arg.get_id().as_str();
        if arg.is_global_set() || matches.value_source(id) != Some(ValueSource::CommandLine) {
            continue;
        }
        let values = match arg.get_action().takes_values() {
            true => matches.get_raw(id).into_iter().flatten().collect(),
            false => Vec::new(),
        };
        let values = values.iter().map(|value| value.to_string_lossy().into_owned()).collect();
        options.0.insert(name(arg).to_owned(), values);
    }
    options
}

/// The name by which options know an argument.
pub fn name(arg: &Arg) -> &str {
    arg.get_long().unwrap_or(BARE)
}

/// A value of an option of `vm-test` with absolute paths instead of those in a folder.
pub fn absolute(option: &str, value: &str, folder: &Path) -> String {
    let kind = facts(option).map_or(Value::Word, |facts| facts.value);
    kind.absolute(value, folder, &place().kernel_folders())
}

#[cfg(test)]
mod tests {
    use super::*;
    use clap::Parser;

    #[derive(Parser)]
    #[command(name = "bisect")]
    struct Toy {
        #[arg(long, default_value = "HEAD")]
        good: String,
        #[arg(long, value_delimiter = ',')]
        arch: Vec<String>,
        #[arg(long)]
        tree: Option<PathBuf>,
        #[arg(long)]
        step: bool,
        #[arg(long, value_name = "RUN")]
        run: Option<PathBuf>,
        files: Vec<PathBuf>,
    }

    #[test]
    fn keeps_what_is_typed_with_absolute_paths() {
        for (typed, expected) in [
            ("x", ""),
            ("x --good=a b /c", "--good=a -- /b /c"),
            ("x --arch a,b --step --arch c", "--arch=a --arch=b --arch=c --step"),
            ("x --tree=tmp -- -a", "--tree=/tmp -- /-a"),
            ("x --tree=none-such --run=none-such", "--run=none-such --tree=/none-such"),
        ] {
            let syntax = Toy::command();
            let matches = syntax.clone().try_get_matches_from(typed.split(' ')).unwrap();
            let options = at(Path::new("/"), &syntax, options(&syntax, &matches));
            assert_eq!(options.words().join(" "), expected);
        }
    }
}
