// SPDX-License-Identifier: MIT OR Apache-2.0
//! `tramplab.yaml`: options of `vm-test` that the user gives once, for a kernel's tree or for all.

use super::{
    given::{absolute, name},
    options::{Giver, facts},
    vm_test::args::Alone,
};
use clap::CommandFactory;
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
    backend::{Backends, Where},
    command::VM_TEST,
    error::{Error, Result},
    place,
    place::own_folder,
};
use tramplab_model::{
    name::hex,
    run::{GivenOptions, options::option_words},
};

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
    /// The mirror of Debian's archive, for every command. Only in the user's own file, as is
    /// `snapshot`. `TRAMPLAB_MIRROR` replaces it.
    #[schemars(with = "Option<String>", regex(pattern = URL))]
    mirror: Option<Spanned<String>>,
    /// The archive of Debian's older versions. `TRAMPLAB_SNAPSHOT` replaces it.
    #[schemars(with = "Option<String>", regex(pattern = URL))]
    snapshot: Option<Spanned<String>>,
}

const URL: &str = "^https?://";

/// Whose file it is.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Owner {
    Tree,
    User,
}

impl Owner {
    /// Says why the key of an option is in the wrong file.
    fn misplaced(self, name: &str) -> Option<String> {
        match self {
            Owner::Tree => (giver(name) == Giver::User).then(|| {
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

/// The giver that one of these options needs.
fn giver(name: &str) -> Giver {
    facts(name).and_then(|facts| facts.giver).expect("an option that files may give")
}

/// An option with its values, which a flag has not.
type Given = (&'static str, Vec<Spanned<Option<String>>>);

impl Defaults {
    fn servers(&self, path: &Path, owner: Owner) -> Result<Servers, ConfigError> {
        let keys = [("TRAMPLAB_MIRROR", &self.mirror), ("TRAMPLAB_SNAPSHOT", &self.snapshot)];
        let mut servers = Vec::new();
        for (variable, url) in keys {
            let Some(url) = url else { continue };
            if owner == Owner::Tree {
                let why =
                    format!("servers are the user's: put this into ~/.config/tramplab/{NAME}");
                return Err(config::invalid(path, url, why));
            }
            if !url.value.starts_with("http://") && !url.value.starts_with("https://") {
                let why = "expected a URL that starts with https:// or http://";
                return Err(config::invalid(path, url, why));
            }
            servers.push((variable, url.value.clone()));
        }
        Ok(servers)
    }

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
            mirror: _,
            snapshot: _,
        } = self;
        let all = |values: Vec<Spanned<String>>| -> Vec<Spanned<Option<String>>> {
            values.into_iter().map(|value| value.map(Some)).collect()
        };
        let of = |value: Option<Spanned<String>>| all(Vec::from_iter(value));
        let jobs = jobs.map(|jobs| jobs.map(|jobs| jobs.to_string()));
        let confined = confined.value.then(|| confined.map(|_| None));
        vec![
            ("suite", of(suite)),
            ("arch", all(arch)),
            ("config", of(config)),
            ("config-axis", all(config_axis)),
            ("vm", of(vm)),
            ("accel", of(accel)),
            ("branches", of(branches)),
            ("clock", of(clock)),
            ("jobs", of(jobs)),
            ("confined", Vec::from_iter(confined)),
        ]
    }
}

/// A file that exists, and what it says.
struct File {
    path: PathBuf,
    text: String,
    options: Vec<Given>,
    servers: Servers,
}

/// Environment variables with the servers of Debian's packages.
type Servers = Vec<(&'static str, String)>;

/// The servers that the user's own file names.
pub fn servers() -> Result<Servers> {
    let own = own_folder().map(|folder| found(&folder, Owner::User)).transpose()?.flatten();
    Ok(own.map_or_else(Vec::new, |file| file.servers))
}

impl File {
    fn read(path: PathBuf, owner: Owner) -> Result<File> {
        let text = config::text_of_regular(&path)?;
        Ok(File::parse(path, text, owner)?)
    }

    fn parse(path: PathBuf, text: String, owner: Owner) -> Result<File, ConfigError> {
        let parsed = config::parse::<Defaults>(&text, &path);
        let parsed = parsed.map_err(|error| with_own_keys(error, &text, owner))?;
        let servers = parsed.servers(&path, owner)?;
        let options = parsed.options();
        for (name, values) in &options {
            if let ([value, ..], Some(why)) = (&values[..], owner.misplaced(name)) {
                return Err(config::invalid(&path, value, why));
            }
            let is_here = |value: &&Spanned<Option<String>>| {
                let mut words = value.value.iter().flat_map(|value| value.split(','));
                words.any(|word| matches!(word.parse(), Ok(Where::ThisMachine { .. })))
            };
            if let ("vm", Some(value)) = (*name, values.iter().find(is_here)) {
                let why = "`none` attaches programs on this machine: type it, --vm none";
                return Err(config::invalid(&path, value, why));
            }
        }
        Ok(File { path, text, options, servers })
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
    let own = options.iter().filter(|(name, _)| owner.misplaced(name).is_none());
    let servers: &[&str] = if owner == Owner::User { &["mirror", "snapshot"] } else { &[] };
    let own: Vec<&str> = own.map(|(name, ..)| *name).chain(servers.iter().copied()).collect();
    ConfigError::Invalid {
        path: path.clone(),
        line: *line,
        column: *column,
        message: format!("unknown key `{key}`, expected one of: {}", own.join(", ")),
        snippet: String::new(),
    }
}

/// Returns the typed options together with the defaults of the measured tree and of the user, and
/// prints these. A typed option comes before one of the tree's, which comes before one of the
/// user's.
pub fn added(
    typed: GivenOptions,
    tree: Option<&Path>,
    series: Option<&str>,
) -> Result<GivenOptions> {
    let mut options = typed;
    if let Some(file) = tree.map(|tree| found(tree, Owner::Tree)).transpose()?.flatten() {
        let tree = file.path.parent().expect("in the tree");
        require_owner(tree, &file.path).map_err(KernelError::from)?;
        let more = taken(&options, &file);
        if more.iter().any(|one| giver(one.name) == Giver::AgreedTree) {
            require_agreement(tree, &file, &more, series)?;
        }
        options = with(options, &file, more)?;
    }
    let own = own_folder().map(|folder| found(&folder, Owner::User));
    if let Some(file) = own.transpose()?.flatten() {
        let more = taken(&options, &file);
        options = with(options, &file, more)?;
    }
    Ok(options)
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
    options: &[Taken],
    series: Option<&str>,
) -> Result<()> {
    let usage = |text: String| Error::Usage(format!("{}: {text}", file.path.display()));
    let tree = fs::canonicalize(tree)?;
    let mut named = vec![file.path.clone()];
    let mut read = vec![(file.path.clone(), hex(&Sha256::digest(&file.text)))];
    for Taken { name, value } in options {
        let parts = value.value.iter().flat_map(|value| value.split([':', '=', ',']));
        for path in parts.filter(|part| part.starts_with('/')) {
            let real = fs::canonicalize(path).unwrap_or_else(|_| path.into());
            if !real.starts_with(&tree) {
                return Err(usage(format!("{path} is outside the tree; name it with --{name}")));
            }
            if *name == "suite" {
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

/// An option that is taken from a file. A flag has no value.
struct Taken {
    name: &'static str,
    value: Spanned<Option<String>>,
}

/// The options of a file that the given ones leave room for.
fn taken(given: &GivenOptions, file: &File) -> Vec<Taken> {
    let syntax = Alone::command();
    let is_given = |arg: &clap::Arg| given.0.contains_key(name(arg));
    // `--config FILE` is short for `--config-axis config=FILE`.
    let of_config = |axis: &str| axis.starts_with("config=");
    let has_config = given.0.contains_key("config")
        || given.0.get("config-axis").is_some_and(|axes| axes.iter().any(|axis| of_config(axis)));
    let folder = file.path.parent().unwrap_or(Path::new("/"));
    let mut more = Vec::new();
    for (name, values) in &file.options {
        let mut known = syntax.get_arguments();
        let arg = known.find(|arg| arg.get_long() == Some(name)).expect("an option of vm-test");
        let conflicts = || syntax.get_arg_conflicts_with(arg).into_iter().any(is_given);
        if is_given(arg) || conflicts() || !fits(name, given) {
            continue;
        }
        for value in values {
            let text = value.value.clone().map(expanded);
            let configures = *name == "config" || text.as_deref().is_some_and(of_config);
            if has_config && configures {
                continue;
            }
            let text = text.map(|text| absolute(name, &text, folder));
            more.push(Taken { name, value: value.clone().map(|_| text) });
        }
    }
    more
}

/// False for a default that `--vm none` rejects: it measures one kernel, which nobody builds, one
/// cell after the other, and alone no guest.
fn fits(option: &str, given: &GivenOptions) -> bool {
    let named: Option<Vec<Where>> =
        given.0.get("vm").and_then(|vm| vm.iter().map(|one| one.parse().ok()).collect());
    let Some(Ok(backends)) = named.map(|named| Backends::of(&named)) else { return true };
    match option {
        "arch" | "jobs" | "confined" => backends.this_machine.is_none(),
        "accel" | "branches" | "clock" => backends.guests.is_some(),
        _ => true,
    }
}

fn with(given: GivenOptions, file: &File, more: Vec<Taken>) -> Result<GivenOptions> {
    if more.is_empty() {
        return Ok(given);
    }
    let path = file.path.display();
    let words =
        more.iter().flat_map(|Taken { name, value }| option_words(name, value.value.as_slice()));
    let told = format!("defaults of {path}: {}", shell_words::join(words));
    eprintln!("{told}");
    if given.0.values().flatten().any(|value| value.contains(char::REPLACEMENT_CHARACTER)) {
        return Err(Error::Usage(format!("{path}: the command line is to be UTF-8 to add to it")));
    }
    let mut options = given;
    for Taken { name, value } in more {
        options.0.entry(name.to_owned()).or_default().extend(value.value.clone());
        // One after the other, so that the error has the place of the one at fault.
        if let Err(why) = check(name, value.value.as_deref(), &options) {
            return Err(config::invalid(&file.path, &value, why).into());
        }
    }
    // The report shows it.
    options.0.entry("note".to_owned()).or_default().push(told);
    Ok(options)
}

/// Says what is wrong with an option of a file, or with all options together.
fn check(name: &str, value: Option<&str>, options: &GivenOptions) -> Result<(), String> {
    let words = [VM_TEST.to_owned()].into_iter().chain(options.words());
    if let Err(error) = Alone::command().try_get_matches_from(words) {
        let said = error.to_string();
        let said = said.strip_prefix("error: ").unwrap_or(&said);
        return Err(said.split("\n\nFor more information").next().unwrap_or(said).to_owned());
    }
    match value {
        Some(suite) if name == "suite" && !suite.contains('/') => {
            place().suite(suite).map(drop).map_err(|error| error.to_string())
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
    use super::{super::given::options, *};

    fn given(typed: &str) -> GivenOptions {
        let syntax = Alone::command();
        let words = format!("vm-test {typed}");
        let matches = syntax.clone().try_get_matches_from(words.split_whitespace()).unwrap();
        options(&syntax, &matches)
    }

    /// A file's text, the typed words, and both together.
    #[test]
    fn options_on_the_command_line_replace_those_of_a_file() {
        let path = Path::new("/linux/tramplab.yaml");
        for (text, typed, expected) in [
            ("suite: ci", "", Some("--suite=ci")),
            ("suite: own.yaml", "", Some("--suite=/linux/own.yaml")),
            ("suite: ci", "--suite quick", Some("--suite=quick")),
            ("suite: ci", "--suite=quick", Some("--suite=quick")),
            ("jobs: 3", "-j2", Some("--jobs=2")),
            ("jobs: 3", "-- fexit", Some("--jobs=3 -- fexit")),
            ("confined: true", "", Some("--confined")),
            ("confined: false", "", Some("")),
            (
                "config: .config\narch: [arm64, x86_64]",
                "fexit",
                Some("--arch=arm64 --arch=x86_64 --config=/linux/.config -- fexit"),
            ),
            ("suite: \"\"", "fexit", None),
            ("suite: none-such", "fexit", None),
            ("suite: none-such", "--suite ci", Some("--suite=ci")),
            ("config: a", "--config-axis config=b", Some("--config-axis=config=b")),
            ("config-axis: [config=a]", "--config b", Some("--config=b")),
            (
                "config: a",
                "--config-axis preempt=full",
                Some("--config=/linux/a --config-axis=preempt=full"),
            ),
            // These contradict the typed words.
            ("config: a", "--update-budgets", Some("--update-budgets")),
            ("confined: true", "--series s --unconfined", Some("--series=s --unconfined")),
            ("accel: fast", "", None),
            ("accel: fast", "--accel tcg", Some("--accel=tcg")),
            ("jobs: 3\nclock: exact\nsuite: ci", "--vm none", Some("--suite=ci --vm=none")),
            ("confined: true", "--vm none", Some("--vm=none")),
            ("jobs: 3\naccel: tcg", "--vm=qemu,none:9", Some("--accel=tcg --vm=qemu --vm=none:9")),
            ("jobs: 3\naccel: tcg", "--vm=qemu", Some("--accel=tcg --jobs=3 --vm=qemu")),
        ] {
            let options = config::parse::<Defaults>(text, path).unwrap().options();
            let file =
                File { path: path.to_owned(), text: text.to_owned(), options, servers: Vec::new() };
            let given = given(typed);
            let found = with(given.clone(), &file, taken(&given, &file)).map(|mut with| {
                // The report tells of what came from the file.
                let is_changed = with != given;
                let notes = with.0.remove("note").unwrap_or_default();
                assert_eq!(notes.iter().any(|note| note.starts_with("defaults of ")), is_changed);
                with.words().join(" ")
            });
            assert_eq!(found.ok().as_deref(), expected, "{text}");
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
            let given = GivenOptions::default();
            let found = File::parse(path.to_owned(), text.to_owned(), owner).map_err(Error::from);
            let found = found.and_then(|file| with(given.clone(), &file, taken(&given, &file)));
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
            ("jobs: 2\nvm: qemu,none:all\n", Owner::User, (2, 5)),
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
