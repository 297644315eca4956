// SPDX-License-Identifier: MIT OR Apache-2.0
//! The command line as a run keeps it: with absolute paths, so that it runs from any folder.

use std::path::{Path, PathBuf};
use tramplab_lab::place;

/// The words as typed, without the colours of a terminal; what is not UTF-8 is a mark.
pub fn words() -> Vec<String> {
    split(typed()).0
}

/// The value of `--color`.
pub fn color() -> Option<clap::ColorChoice> {
    clap::ValueEnum::from_str(&split(typed()).1?, false).ok()
}

fn typed() -> impl Iterator<Item = String> {
    std::env::args_os().map(|word| word.to_string_lossy().into_owned())
}

/// Takes `--color` out of the words. It may stand anywhere, even before the command.
fn split(mut words: impl Iterator<Item = String>) -> (Vec<String>, Option<String>) {
    let (mut others, mut color) = (Vec::new(), None);
    while let Some(word) = words.next() {
        if word == "--" {
            others.push(word);
            break;
        } else if word == "--color" {
            color = words.next();
        } else if let Some(value) = word.strip_prefix("--color=") {
            color = Some(value.to_owned());
        } else {
            others.push(word);
        }
    }
    others.extend(words);
    (others, color)
}

/// The same with relative paths made absolute.
pub fn with_absolute_paths(words: Vec<String>) -> Vec<String> {
    with_paths_in(words, &std::env::current_dir().unwrap_or_default())
}

/// The same with paths that are relative to this folder.
pub fn with_paths_in(words: Vec<String>, folder: &Path) -> Vec<String> {
    absolute(words.into_iter(), folder, &place().kernel_folders())
}

/// The values of an option that may be a path or something else.
#[derive(Clone, Copy)]
enum Value {
    Path,
    /// A name in `configs/suites/`, without slash and ending.
    Suite,
    /// A name in `kernels/`, or `git:REPOSITORY#REF`.
    Kernel,
    /// A name in `kernels/patches/`, a range of commits, a message-id.
    Series,
    /// Names in `configs/cpus/`, without slash and ending, or families; comma-separated.
    Models,
    /// `[FILE:]NAME=VALUES`, where values may be fragments.
    Axis,
    /// A function, without slash.
    Function,
    /// `FILE[:PROGRAM[,NAME=VALUE…]]`.
    Program,
}

const OPTIONS: [(&str, Value); 12] = [
    ("--suite", Value::Suite),
    ("--model", Value::Models),
    ("--kernel", Value::Kernel),
    ("--series", Value::Series),
    ("--base-patches", Value::Series),
    ("--runs", Value::Path),
    ("--config", Value::Path),
    ("--config-axis", Value::Axis),
    ("--good-config", Value::Path),
    ("--bad-config", Value::Path),
    ("--function", Value::Function),
    ("--program", Value::Program),
];

fn absolute(words: impl Iterator<Item = String>, here: &Path, kernels: &[PathBuf]) -> Vec<String> {
    let mut before: Option<Value> = None;
    let mut told = Vec::new();
    for word in words {
        let option =
            |name: &str| OPTIONS.iter().find(|(known, _)| *known == name).map(|(_, value)| *value);
        let inline =
            word.split_once('=').and_then(|(name, text)| Some((name, text, option(name)?)));
        told.push(match (before.take(), inline) {
            (Some(value), _) => value.absolute(&word, here, kernels),
            (None, Some((name, text, value))) => {
                format!("{name}={}", value.absolute(text, here, kernels))
            }
            (None, None) => {
                before = option(&word);
                word
            }
        });
    }
    told
}

impl Value {
    fn absolute(self, text: &str, here: &Path, kernels: &[PathBuf]) -> String {
        let path = Path::new(text);
        if let (Value::Kernel, Some(place)) = (self, text.strip_prefix("git:")) {
            let (repository, reference) = place.rsplit_once('#').unwrap_or((place, ""));
            return match here.join(repository).exists() {
                true => format!("git:{}#{reference}", joined(here, repository)),
                false => text.to_owned(),
            };
        }
        if let Value::Axis = self {
            let Some((place, values)) = text.split_once('=') else { return text.to_owned() };
            let place = match place.rsplit_once(':') {
                Some((file, name)) => format!("{}:{name}", joined(here, file)),
                None => place.to_owned(),
            };
            let value = |value: &str| match value.ends_with(".config") {
                true => joined(here, value),
                false => value.to_owned(),
            };
            let values: Vec<String> = values.split(',').map(value).collect();
            return format!("{place}={}", values.join(","));
        }
        if let (Value::Program, Some((file, values))) = (self, text.split_once(',')) {
            return format!("{},{values}", joined(here, file));
        }
        if let Value::Models = self {
            let one = |model: &str| Value::Suite.absolute(model, here, kernels);
            return text.split(',').map(one).collect::<Vec<_>>().join(",");
        }
        let is_path = match self {
            Value::Axis | Value::Models => false,
            Value::Path | Value::Program => true,
            Value::Function => text.contains('/'),
            Value::Suite => path.extension().is_some() || text.contains('/'),
            Value::Kernel => {
                let file = format!("{text}.yaml");
                let is_named = kernels.iter().any(|folder| folder.join(&file).is_file());
                !is_named && here.join(path).exists()
            }
            Value::Series => {
                let is_named = |folder: &PathBuf| folder.join("patches").join(path).is_dir();
                // `-` is standard input.
                text != "-" && !kernels.iter().any(is_named) && here.join(path).exists()
            }
        };
        if is_path { joined(here, text) } else { text.to_owned() }
    }
}

/// Without resolving links: `runs/latest` names another run by then.
fn joined(here: &Path, text: &str) -> String {
    here.join(text).components().collect::<PathBuf>().display().to_string()
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::fs;

    #[test]
    fn splits_colours_off() {
        for (typed, words, color) in [
            ("x --color never vm-test -E a", "x vm-test -E a", Some("never")),
            ("x vm-test --color=always fexit", "x vm-test fexit", Some("always")),
            ("x test -- --color never", "x test -- --color never", None),
        ] {
            let (others, found) = split(typed.split(' ').map(String::from));
            assert_eq!((others.join(" ").as_str(), found.as_deref()), (words, color));
        }
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
        for (typed, expected) in [
            (vec!["--suite", "quick"], vec!["--suite".to_owned(), "quick".to_owned()]),
            (vec!["--suite", "own.yaml"], vec!["--suite".to_owned(), at("own.yaml")]),
            (vec!["--suite=./own.yaml"], vec![format!("--suite={}", at("own.yaml"))]),
            (vec!["--kernel", "6.12"], vec!["--kernel".to_owned(), "6.12".to_owned()]),
            (vec!["--kernel", "linux"], vec!["--kernel".to_owned(), at("linux")]),
            (
                vec!["--kernel", "git:linux#v6.12"],
                vec!["--kernel".to_owned(), format!("git:{}#v6.12", at("linux"))],
            ),
            (
                vec!["--kernel", "git:https://a.example/l#v1"],
                vec!["--kernel".to_owned(), "git:https://a.example/l#v1".to_owned()],
            ),
            (vec!["--series", "shipped"], vec!["--series".to_owned(), "shipped".to_owned()]),
            (vec!["--series", "v1..v2"], vec!["--series".to_owned(), "v1..v2".to_owned()]),
            (vec!["--series=a b.mbox"], vec![format!("--series={}", at("a b.mbox"))]),
            (vec!["--config", ".config"], vec!["--config".to_owned(), at(".config")]),
            (vec!["--runs", "out"], vec!["--runs".to_owned(), at("out")]),
            (
                vec!["--config-axis", "preempt=none,full"],
                vec!["--config-axis".to_owned(), "preempt=none,full".to_owned()],
            ),
            (
                vec!["--config-axis", "my.yaml:base=a.config,b"],
                vec![
                    "--config-axis".to_owned(),
                    format!("{}:base={},b", at("my.yaml"), at("a.config")),
                ],
            ),
            (vec!["--function", "a.isra.0"], vec!["--function".to_owned(), "a.isra.0".to_owned()]),
            (vec!["--function", "./mine"], vec!["--function".to_owned(), at("mine")]),
            (vec!["--program", "a.bpf.o:p"], vec!["--program".to_owned(), at("a.bpf.o:p")]),
            (
                vec!["--program", "a.bpf.o:p,path=b//c"],
                vec!["--program".to_owned(), at("a.bpf.o:p,path=b//c")],
            ),
            // A cell's name, and an option of which nothing is known.
            (
                vec!["mine", "--jobs", "2"],
                vec!["mine".to_owned(), "--jobs".to_owned(), "2".to_owned()],
            ),
            (vec!["--runs"], vec!["--runs".to_owned()]),
        ] {
            assert_eq!(
                absolute(typed.iter().map(ToString::to_string), &here, &kernels),
                expected,
                "{typed:?}"
            );
        }
    }
}
