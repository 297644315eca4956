// SPDX-License-Identifier: MIT OR Apache-2.0
//! The options of `vm-test` beyond their syntax: which values are paths, what a stored run may
//! choose again, and what `tramplab.yaml` may give. `bisect` has some of them.

use std::path::{Path, PathBuf};
use tramplab_lab::{Place, cpus, place};
use tramplab_model::run::options::BARE;

/// One option, by its long name.
pub struct Facts {
    pub name: &'static str,
    pub value: Value,
    again: Again,
    /// The file that may give it.
    pub giver: Option<Giver>,
}

/// The kind of an option's values: a path is kept absolute.
#[derive(Clone, Copy)]
pub enum Value {
    Word,
    Path,
    /// A name in `configs/suites/`, without slash and ending.
    Suite,
    /// A name in `kernels/`, or `git:REPOSITORY#REF`.
    Kernel,
    /// A name in `kernels/patches/`, a range of commits, a message-id.
    Series,
    /// `[FILE:]NAME=VALUES`, where values may be fragments.
    Axis,
    /// A function, without slash.
    Function,
    /// `FILE[:PROGRAM[,NAME=VALUE…]]`.
    Program,
}

/// The effect of an option of a stored run when the run is measured again.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Class {
    /// It only chooses and shows measurements: it is taken over.
    Measures,
    /// It chooses what is read, built or used on this machine: the user types it again.
    Typed,
    /// It is left out; the user may type it.
    LeftOut,
}

/// The rule that classes the values of an option.
#[derive(Clone, Copy)]
enum Again {
    All(Class),
    /// A shipped one, or one of the user's own, only measures; else it is a file.
    Named(fn(&Place) -> Vec<String>),
    /// Values that only measure.
    Only(fn(&str) -> bool),
}

/// The giver that an option needs at least.
#[derive(Clone, Copy, PartialEq, Eq)]
pub enum Giver {
    /// A tree, which may be a stranger's.
    Tree,
    /// A tree whose file the user agreed to: it chooses what is measured and how it is judged.
    AgreedTree,
    /// The user's own file: it chooses what the host gives.
    User,
}

const MEASURES: Again = Again::All(Class::Measures);
const TYPED: Again = Again::All(Class::Typed);
const LEFT_OUT: Again = Again::All(Class::LeftOut);

const fn row(name: &'static str, value: Value, again: Again, giver: Option<Giver>) -> Facts {
    Facts { name, value, again, giver }
}

/// Every option of `vm-test` but `--rerun`, which names the run.
const OPTIONS: &[Facts] = &[
    // Tests.
    row("suite", Value::Suite, Again::Named(Place::suites), Some(Giver::AgreedTree)),
    row("function", Value::Function, Again::Only(|value| !value.contains('/')), None),
    row("trigger", Value::Word, MEASURES, None),
    row("program", Value::Program, TYPED, None),
    row("clock", Value::Word, MEASURES, Some(Giver::Tree)),
    row("explain", Value::Word, MEASURES, None),
    row("experiment", Value::Word, MEASURES, None),
    // Kernels and patch series.
    row("kernel", Value::Kernel, Again::Named(Place::kernels), None),
    row("arch", Value::Word, MEASURES, Some(Giver::Tree)),
    row("config", Value::Path, TYPED, Some(Giver::AgreedTree)),
    row("config-axis", Value::Axis, Again::Only(is_plain_axis), Some(Giver::AgreedTree)),
    row("series", Value::Series, Again::Named(Place::series), None),
    row("base-patches", Value::Series, Again::Named(Place::series), None),
    row("each-patch", Value::Word, MEASURES, None),
    row("placebos", Value::Word, MEASURES, None),
    row("confined", Value::Word, MEASURES, Some(Giver::Tree)),
    row("unconfined", Value::Word, LEFT_OUT, None),
    // Guests.
    row("model", Value::Suite, Again::Named(cpus::names), None),
    row("vm", Value::Word, Again::Only(|value| value == "qemu"), Some(Giver::User)),
    row("accel", Value::Word, Again::Only(|value| value != "kvm"), Some(Giver::User)),
    row("branches", Value::Word, Again::Only(|value| value != "hardware"), Some(Giver::User)),
    row("cold", Value::Word, MEASURES, None),
    row("yes", Value::Word, LEFT_OUT, None),
    // Cells.
    row(BARE, Value::Word, MEASURES, None),
    row("filterset", Value::Word, MEASURES, None),
    row("partition", Value::Word, MEASURES, None),
    row("jobs", Value::Word, LEFT_OUT, Some(Giver::Tree)),
    // The run and its report.
    row("setup", Value::Word, LEFT_OUT, None),
    row("list", Value::Word, LEFT_OUT, None),
    row("no-run", Value::Word, LEFT_OUT, None),
    row("keep", Value::Word, LEFT_OUT, None),
    row("update-budgets", Value::Word, LEFT_OUT, None),
    row("runs", Value::Path, LEFT_OUT, None),
    row("note", Value::Word, MEASURES, None),
    row("message-format", Value::Word, MEASURES, None),
    row("format", Value::Word, MEASURES, None),
    row("listing", Value::Word, MEASURES, None),
    row("filter", Value::Word, MEASURES, None),
    row("lines", Value::Word, MEASURES, None),
    row("no-cache", Value::Word, LEFT_OUT, None),
];

/// The facts of an option that `vm-test` has.
pub fn facts(name: &str) -> Option<&'static Facts> {
    OPTIONS.iter().find(|facts| facts.name == name)
}

/// `NAME=VALUES`, of the shipped axes or of an option of the kernel; no files, and no text of a
/// stranger's in the configuration of a kernel.
fn is_plain_axis(text: &str) -> bool {
    let (name, values) = text.split_once('=').unwrap_or((text, ""));
    let is_plain = |c: char| c.is_ascii_alphanumeric() || matches!(c, '_' | '-' | ',');
    name != "config" && (name.to_owned() + values).chars().all(is_plain)
}

/// The class of an option of a stored run. The user types what is not known.
pub fn class(name: &str, values: &[String]) -> Class {
    let only = |measures: bool| if measures { Class::Measures } else { Class::Typed };
    match facts(name).map(|facts| facts.again) {
        None => Class::Typed,
        Some(Again::All(class)) => class,
        Some(Again::Named(names)) => {
            let names = names(place());
            only(values.iter().all(|value| names.contains(value)))
        }
        Some(Again::Only(measures)) => only(values.iter().all(|value| measures(value))),
    }
}

impl Value {
    /// The value with absolute paths, for a user in the folder `here`.
    pub fn absolute(self, text: &str, here: &Path, kernels: &[PathBuf]) -> String {
        let path = Path::new(text);
        let is_path = match self {
            Value::Word => false,
            Value::Path => true,
            Value::Function => text.contains('/'),
            Value::Suite => path.extension().is_some() || text.contains('/'),
            Value::Kernel => {
                if let Some(place) = text.strip_prefix("git:") {
                    let (repository, reference) = place.rsplit_once('#').unwrap_or((place, ""));
                    return match here.join(repository).exists() {
                        true => format!("git:{}#{reference}", joined(here, repository)),
                        false => text.to_owned(),
                    };
                }
                let file = format!("{text}.yaml");
                let is_named = kernels.iter().any(|folder| folder.join(&file).is_file());
                !is_named && here.join(path).exists()
            }
            Value::Series => {
                let is_named = |folder: &PathBuf| folder.join("patches").join(path).is_dir();
                // `-` is standard input.
                text != "-" && !kernels.iter().any(is_named) && here.join(path).exists()
            }
            Value::Axis => return absolute_axis(text, here),
            Value::Program => {
                let (file, values) = text.split_at(text.find(',').unwrap_or(text.len()));
                return joined(here, file) + values;
            }
        };
        if is_path { joined(here, text) } else { text.to_owned() }
    }
}

fn absolute_axis(text: &str, here: &Path) -> String {
    let Some((place, values)) = text.split_once('=') else { return text.to_owned() };
    let place = match place.rsplit_once(':') {
        Some((file, name)) => format!("{}:{name}", joined(here, file)),
        None => place.to_owned(),
    };
    let value = |value: &str| match value.ends_with(".config") {
        true => joined(here, value),
        false => value.to_owned(),
    };
    format!("{place}={}", values.split(',').map(value).collect::<Vec<_>>().join(","))
}

/// Without resolving links: `runs/latest` names another run by then.
fn joined(here: &Path, text: &str) -> String {
    here.join(text).components().collect::<PathBuf>().display().to_string()
}

#[cfg(test)]
mod tests {
    use super::{super::vm_test::args::Alone, *};
    use clap::CommandFactory;
    use std::{collections::BTreeSet, fs};

    #[test]
    fn every_option_has_its_facts() {
        let long = |arg: &clap::Arg| arg.get_long().unwrap_or(BARE).to_owned();
        let mut options: BTreeSet<String> = Alone::command().get_arguments().map(long).collect();
        options.remove("rerun");
        let rows: BTreeSet<String> = OPTIONS.iter().map(|facts| facts.name.to_owned()).collect();
        assert_eq!(rows, options);
    }

    #[test]
    fn makes_paths_absolute_and_leaves_names_alone() {
        let dir = tempfile::tempdir().unwrap();
        let kernels = [dir.path().join("own"), dir.path().join("kernels")];
        fs::create_dir_all(kernels[1].join("patches/shipped")).unwrap();
        fs::write(kernels[1].join("6.12.yaml"), "").unwrap();
        let here = dir.path().join("here");
        for folder in ["linux", "6.12", "shipped", "mine"] {
            fs::create_dir_all(here.join(folder)).unwrap();
        }
        fs::write(here.join("a b.mbox"), "").unwrap();
        let at = |path: &str| here.join(path).display().to_string();
        for (name, value, expected) in [
            ("suite", "quick", "quick".to_owned()),
            ("suite", "own.yaml", at("own.yaml")),
            ("suite", "./own.yaml", at("own.yaml")),
            ("kernel", "6.12", "6.12".to_owned()),
            ("kernel", "linux", at("linux")),
            ("kernel", "git:linux#v6.12", format!("git:{}#v6.12", at("linux"))),
            ("kernel", "git:https://a.example/l#v1", "git:https://a.example/l#v1".to_owned()),
            ("series", "shipped", "shipped".to_owned()),
            ("series", "v1..v2", "v1..v2".to_owned()),
            ("series", "a b.mbox", at("a b.mbox")),
            ("series", "-", "-".to_owned()),
            ("config", ".config", at(".config")),
            ("runs", "out", at("out")),
            ("config-axis", "preempt=none,full", "preempt=none,full".to_owned()),
            (
                "config-axis",
                "my.yaml:base=a.config,b",
                format!("{}:base={},b", at("my.yaml"), at("a.config")),
            ),
            ("function", "a.isra.0", "a.isra.0".to_owned()),
            ("function", "./mine", at("mine")),
            ("program", "a.bpf.o:p", at("a.bpf.o:p")),
            ("program", "a.bpf.o:p,path=b//c", at("a.bpf.o:p,path=b//c")),
            ("model", "zen4", "zen4".to_owned()),
            ("model", "./my.yaml", at("my.yaml")),
            (BARE, "mine", "mine".to_owned()),
        ] {
            let absolute = facts(name).unwrap().value.absolute(value, &here, &kernels);
            assert_eq!(absolute, expected, "{name} {value}");
        }
    }
}
