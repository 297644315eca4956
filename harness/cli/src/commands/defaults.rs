// SPDX-License-Identifier: MIT OR Apache-2.0
//! `tramplab.yaml`: options of `vm-test` that the user gives once, for a kernel's tree or for all.

use super::{typed, vm_test::args::Alone};
use clap::{CommandFactory, parser::ValueSource};
use schemars::JsonSchema;
use serde::{Deserialize, de::IgnoredAny};
use sha2::{Digest, Sha256};
use std::{
    collections::BTreeMap,
    env, fs,
    io::ErrorKind,
    num::NonZeroUsize,
    path::{Path, PathBuf},
};
use tramplab_host::config::{self, ConfigError, Spanned};
use tramplab_kernel::{
    KernelError,
    git::require_owner,
    series::{Range, SeriesError},
};
use tramplab_lab::{
    error::{Error, Result},
    place,
    place::own_folder,
};
use tramplab_model::name::hex;

const NAME: &str = "tramplab.yaml";
/// In the user's folder: hashes of contents that the user agreed to, as `sha256sum` prints them.
const AGREED: &str = "agreed";
/// Options for kernels that are built here.
const CONFIG: [&str; 2] = ["config", "config-axis"];

/// Default options of `vm-test`. Each is the option of this name; one on the command line replaces
/// it.
#[derive(Default, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields, rename_all = "kebab-case", default)]
pub struct Defaults {
    suite: Option<Spanned<String>>,
    arch: Vec<Spanned<String>>,
    config: Option<Spanned<String>>,
    config_axis: Vec<Spanned<String>>,
    vm: Option<Spanned<String>>,
    accel: Option<Spanned<String>>,
    branches: Option<Spanned<String>>,
    clock: Option<Spanned<String>>,
    jobs: Option<Spanned<NonZeroUsize>>,
    confined: Spanned<bool>,
}

/// Whose file it is.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Owner {
    Tree,
    User,
}

impl Owner {
    /// Says why the key of an option is in the wrong file.
    fn misplaced(self, name: &str, giver: Giver) -> Option<String> {
        match self {
            Owner::Tree => (giver == Giver::User).then(|| {
                format!(
                    "`vm`, `accel` and `branches` choose what the host gives to a guest; put them \
                     into ~/.config/tramplab/{NAME}"
                )
            }),
            Owner::User => CONFIG.contains(&name).then(|| {
                format!(
                    "`config` and `config-axis` are for the {NAME} of a kernel's tree, as other \
                     kernels may not be built here"
                )
            }),
        }
    }
}

/// The giver that an option needs at least.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Giver {
    /// A tree, which may be a stranger's.
    Tree,
    /// A tree whose file the user agreed to: it chooses what is measured and how it is judged.
    AgreedTree,
    /// The user's own file: it chooses what the host gives.
    User,
}

/// An option with its values, which a flag has not.
type Given = (&'static str, Giver, Vec<Spanned<Option<String>>>);

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
        let all = |values: Vec<Spanned<String>>| -> Vec<Spanned<Option<String>>> {
            values.into_iter().map(|value| value.map(Some)).collect()
        };
        let of = |value: Option<Spanned<String>>| all(Vec::from_iter(value));
        let jobs = jobs.map(|jobs| jobs.map(|jobs| jobs.to_string()));
        let confined = confined.value.then(|| confined.map(|_| None));
        vec![
            ("suite", Giver::AgreedTree, of(suite)),
            ("arch", Giver::Tree, all(arch)),
            ("config", Giver::AgreedTree, of(config)),
            ("config-axis", Giver::AgreedTree, all(config_axis)),
            ("vm", Giver::User, of(vm)),
            ("accel", Giver::User, of(accel)),
            ("branches", Giver::User, of(branches)),
            ("clock", Giver::Tree, of(clock)),
            ("jobs", Giver::Tree, of(jobs)),
            ("confined", Giver::Tree, Vec::from_iter(confined)),
        ]
    }
}

/// A file that exists, and what it says.
struct File {
    path: PathBuf,
    text: String,
    options: Vec<Given>,
}

impl File {
    fn read(path: PathBuf, owner: Owner) -> Result<File> {
        let text = config::text_of_regular(&path)?;
        Ok(File::parse(path, text, owner)?)
    }

    fn parse(path: PathBuf, text: String, owner: Owner) -> Result<File, ConfigError> {
        let parsed = config::parse::<Defaults>(&text, &path);
        let options = parsed.map_err(|error| with_own_keys(error, &text, owner))?.options();
        for (name, giver, values) in &options {
            if let ([value, ..], Some(why)) = (&values[..], owner.misplaced(name, *giver)) {
                return Err(config::invalid(&path, value, why));
            }
        }
        Ok(File { path, text, options })
    }
}

/// An error about an unknown key names the keys that this file may have.
fn with_own_keys(error: ConfigError, text: &str, owner: Owner) -> ConfigError {
    let ConfigError::Invalid { path, line, column, .. } = &error else { return error };
    let options = Defaults::default().options();
    let keys: BTreeMap<String, IgnoredAny> = config::parse(text, path).unwrap_or_default();
    let at = text.lines().nth(line.saturating_sub(1) as usize).unwrap_or_default();
    let at: String = at.chars().skip(column.saturating_sub(1) as usize).collect();
    let is_part = |c: char| c.is_alphanumeric() || c == '-';
    let at = at.trim_start_matches(['"', '\'']);
    let is_unknown = |key: &&String| {
        !options.iter().any(|(name, ..)| name == key)
            && at.strip_prefix(&**key).is_some_and(|rest| !rest.starts_with(is_part))
    };
    let Some(key) = keys.keys().find(is_unknown) else { return error };
    let own = options.iter().filter(|(name, giver, _)| owner.misplaced(name, *giver).is_none());
    let own: Vec<&str> = own.map(|(name, ..)| *name).collect();
    ConfigError::Invalid {
        path: path.clone(),
        line: *line,
        column: *column,
        message: format!("unknown key `{key}`, expected one of: {}", own.join(", ")),
        snippet: String::new(),
    }
}

/// Returns the words of a command line together with the defaults of the measured tree and of the
/// user, and prints these. An option of the words comes before one of the tree's, which comes
/// before one of the user's.
pub fn added(words: Vec<String>, tree: Option<&Path>, series: Option<&str>) -> Result<Vec<String>> {
    let mut words = words;
    if let Some(file) = tree.map(|tree| found(tree, Owner::Tree)).transpose()?.flatten() {
        let tree = file.path.parent().expect("in the tree");
        require_owner(tree, &file.path).map_err(KernelError::from)?;
        let (more, judges) = taken(&words, &file)?;
        if judges {
            require_agreement(tree, &file, &more, series)?;
        }
        words = with(words, &file, more)?;
    }
    let own = own_folder().map(|folder| found(&folder, Owner::User));
    if let Some(file) = own.transpose()?.flatten() {
        let (more, _) = taken(&words, &file)?;
        words = with(words, &file, more)?;
    }
    Ok(words)
}

fn found(folder: &Path, owner: Owner) -> Result<Option<File>> {
    let path = folder.join(NAME);
    match path.symlink_metadata() {
        Err(error) if error.kind() == ErrorKind::NotFound => Ok(None),
        // It may lead anywhere, and errors show lines.
        Ok(data) if owner == Owner::Tree && data.is_symlink() => Err(Error::Usage(format!(
            "{}: expected a file of the tree, found a link",
            path.display()
        ))),
        _ => File::read(path, owner).map(Some),
    }
}

/// Fails unless the user agreed to this content of a tree's file and of the suites that it names. A
/// file that the series changes is none that may judge it.
fn require_agreement(
    tree: &Path,
    file: &File,
    options: &[Spanned<String>],
    series: Option<&str>,
) -> Result<()> {
    let usage = |text: String| Error::Usage(format!("{}: {text}", file.path.display()));
    let tree = fs::canonicalize(tree)?;
    let mut named = vec![file.path.clone()];
    let mut read = vec![(file.path.clone(), hex(&Sha256::digest(&file.text)))];
    for option in options {
        let (name, value) = option.value.split_once('=').unwrap_or((&option.value, ""));
        for path in value.split([':', '=', ',']).filter(|part| part.starts_with('/')) {
            let real = fs::canonicalize(path).unwrap_or_else(|_| path.into());
            if !real.starts_with(&tree) {
                return Err(usage(format!("{path} is outside the tree; name it with {name}")));
            }
            if name == "--suite" {
                let text = config::text_of_regular(&real)?;
                read.push((real.clone(), hex(&Sha256::digest(text))));
            }
            named.push(real);
        }
    }
    if let Some(range) = series.and_then(|spec| Range::parse(spec, &place().series_with(spec)))
        && let [first, ..] = &range.changed(&tree, &named).map_err(SeriesError::from)?[..]
    {
        return Err(usage(format!(
            "{range} changes {}, which would judge it; give --suite, --config and --config-axis",
            first.display()
        )));
    }
    let list = own_folder().unwrap_or_default().join(AGREED);
    let agreed = fs::read_to_string(&list).unwrap_or_default();
    let is_agreed = |hash: &str| agreed.lines().any(|line| line.split(' ').next() == Some(hash));
    if read.iter().all(|(_, hash)| is_agreed(hash)) {
        return Ok(());
    }
    let [list, folder] = [&list, list.parent().unwrap_or(&list)].map(quoted);
    let paths: Vec<String> = read.iter().map(|(path, _)| quoted(path)).collect();
    Err(usage(format!(
        "it chooses what is measured and how it is judged. Read it; if you agree to this content: \
         mkdir -p {folder} && sha256sum {} >> {list}",
        paths.join(" ")
    )))
}

fn quoted(path: impl AsRef<Path>) -> String {
    shell_words::quote(&path.as_ref().to_string_lossy()).into_owned()
}

/// The words of a file that the command line leaves room for. Also tells whether one needs the
/// user's agreement.
fn taken(words: &[String], file: &File) -> Result<(Vec<Spanned<String>>, bool)> {
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
    let folder = file.path.parent().unwrap_or(Path::new("/"));
    let (mut more, mut judges) = (Vec::new(), false);
    for (name, giver, values) in &file.options {
        let mut known = command.get_arguments();
        let arg = known.find(|arg| arg.get_long() == Some(name)).expect("an option of vm-test");
        let conflicts = || command.get_arg_conflicts_with(arg).into_iter().any(is_given);
        if is_given(arg) || conflicts() {
            continue;
        }
        for given in values {
            let value = given.value.clone().map(expanded);
            let configures = *name == "config" || value.as_deref().is_some_and(of_config);
            if has_config && configures {
                continue;
            }
            judges |= *giver == Giver::AgreedTree;
            let word = match value {
                Some(value) => format!("--{name}={value}"),
                None => format!("--{name}"),
            };
            let word = typed::with_paths_in(vec![word], folder).remove(0);
            more.push(given.clone().map(|_| word));
        }
    }
    Ok((more, judges))
}

fn with(words: Vec<String>, file: &File, more: Vec<Spanned<String>>) -> Result<Vec<String>> {
    if more.is_empty() {
        return Ok(words);
    }
    let path = file.path.display();
    let told = more.iter().map(|word| &word.value);
    let told = format!("defaults of {path}: {}", shell_words::join(told));
    eprintln!("{told}");
    if env::args_os().any(|word| word.to_str().is_none()) {
        return Err(Error::Usage(format!("{path}: the command line is to be UTF-8 to add to it")));
    }
    // Before `--`, behind which names of cells stand.
    let (before, behind) = words.split_at(2);
    let mut words = before.to_vec();
    for word in more {
        words.push(word.value.clone());
        // One after the other, so that the error has the place of the one at fault.
        if let Err(why) = check(&word.value, &[&words[1..], behind].concat()) {
            return Err(config::invalid(&file.path, &word, why).into());
        }
    }
    // The report shows it.
    words.push(format!("--note={told}"));
    words.extend_from_slice(behind);
    Ok(words)
}

/// Says what is wrong with a word of a file, or with the whole command line that has it last.
fn check(word: &str, words: &[String]) -> Result<(), String> {
    if let Err(error) = Alone::command().try_get_matches_from(words) {
        let said = error.to_string();
        let said = said.strip_prefix("error: ").unwrap_or(&said);
        return Err(said.split("\n\nFor more information").next().unwrap_or(said).to_owned());
    }
    match word.strip_prefix("--suite=") {
        Some(name) if !name.contains('/') => {
            place().suite(name).map(drop).map_err(|error| error.to_string())
        }
        _ => Ok(()),
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
            ("suite: \"\"", "x vm-test fexit", None),
            ("suite: none-such", "x vm-test fexit", None),
            ("suite: none-such", "x vm-test --suite ci", Some("x vm-test --suite ci")),
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
            let file = File { path: path.to_owned(), text: text.to_owned(), options };
            let words: Vec<String> = typed.split(' ').map(String::from).collect();
            let found = taken(&words, &file).and_then(|(more, _)| with(words.clone(), &file, more));
            let found = found.map(|with| {
                // The report tells of what came from the file.
                let is_note = |word: &&String| word.starts_with("--note=defaults of ");
                assert_eq!(with.iter().any(|word| is_note(&word)), with.len() > words.len());
                with.into_iter().filter(|word| !is_note(&word)).collect::<Vec<_>>()
            });
            assert_eq!(found.ok().map(|words| words.join(" ")).as_deref(), expected, "{text}");
        }
        let home = env::home_dir().unwrap().join("a.yaml");
        assert_eq!(expanded("~/a.yaml".to_owned()), home.display().to_string());
        for wrong in ["suit: ci", "jobs: 0", "arch: x86_64", "runs: /tmp"] {
            assert!(config::parse::<Defaults>(wrong, path).is_err(), "{wrong}");
        }
    }

    #[test]
    fn an_error_has_the_place_of_the_value_and_the_keys_of_its_file() {
        let path = Path::new("/linux/tramplab.yaml");
        let error = |text: &str, owner| {
            let typed = ["x", "vm-test"].map(String::from);
            let found = File::parse(path.to_owned(), text.to_owned(), owner).map_err(Error::from);
            let found = found.and_then(|file| with(typed.to_vec(), &file, taken(&typed, &file)?.0));
            match found {
                Err(Error::Config(ConfigError::Invalid { line, column, message, .. })) => {
                    (line, column, message)
                }
                other => panic!("{text}: {other:?}"),
            }
        };
        for (text, owner, place) in [
            ("suite: ci\njobs: 2\nclock: slow\n", Owner::Tree, (3, 8)),
            ("suite: ci\narch: [x86_64, mips]\n", Owner::Tree, (2, 16)),
            ("jobs: 2\nsuite: none-such\n", Owner::User, (2, 8)),
            ("jobs: 2\naccel: fast\n", Owner::User, (2, 8)),
            ("jobs: 2\nbranches: hardware\n", Owner::Tree, (2, 11)),
            ("jobs: 2\nconfig: .config\n", Owner::User, (2, 9)),
            ("clock: exact\njobs: 0\n", Owner::User, (2, 1)),
            ("jobs: 2\nsuit: ci\n", Owner::User, (2, 1)),
            ("suite: [ci]\nsuit: ci\n", Owner::User, (1, 8)),
        ] {
            let (line, column, message) = error(text, owner);
            assert_eq!((line, column), place, "{text}: {message}");
        }
        // Another key begins with the unknown one.
        let (.., message) = error("suite: [ci]\nsuit: ci\n", Owner::User);
        assert!(!message.contains("unknown key"), "{message}");
        for (owner, not) in
            [(Owner::Tree, ["vm", "accel"]), (Owner::User, ["config", "config-axis"])]
        {
            for text in ["confind: true", "{ \"confind\": true }"] {
                let (.., message) = error(text, owner);
                let (_, keys) = message.split_once("expected one of: ").unwrap();
                let keys: Vec<&str> = keys.split(", ").collect();
                assert!(keys.contains(&"confined"), "{message}");
                assert!(not.iter().all(|key| !keys.contains(key)), "{message}");
            }
        }
    }
}
