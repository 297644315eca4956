// SPDX-License-Identifier: MIT OR Apache-2.0
//! The command line of a run whose cells are measured again, and the command that does it.

use super::vm_test::args::Alone;
use clap::{ArgMatches, CommandFactory, parser::ValueSource};
use tramplab_host::runs::{RunDir, running};
use tramplab_lab::{
    cpus,
    error::{Error, Result},
    place::{Place, place},
    rerun::{Earlier, RERUN, is_of_vm_test, left, rejected, resolved},
};
use tramplab_model::{
    called::called,
    run::Run,
    text::{self, counted},
};

/// Prints how to measure the cells of a run that were not measured.
pub fn tell(run: &Run, run_dir: &RunDir) {
    let rejected = rejected(run);
    let left = left(run).len().saturating_sub(rejected);
    let can_go_on = run.joined.is_none() && is_of_vm_test(run) && !running::is_going_on(run_dir);
    if rejected > 0 {
        // `--rerun` reads the run's copy of the program.
        let cells = counted(rejected, "cell");
        eprintln!("to measure {cells} of rejected programs: change the programs and run all again");
    }
    if left == 0 || !can_go_on {
        return;
    }
    let folder = resolved(run_dir).display().to_string();
    let words = ["vm-test", RERUN, &folder];
    let cells = counted(left, "cell");
    eprintln!("to measure {cells} without a result: {} {}", called(), shell_words::join(words));
}

/// The effect of an option of a stored run when the run is measured again.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Class {
    /// It only chooses and shows measurements: it is taken over.
    Measures,
    /// It chooses what is read, built or used on this machine: the user types it again.
    Typed,
    /// It is left out; the user may type it.
    LeftOut,
}

/// How to class the values of an option.
enum Rule {
    All(Class),
    /// A shipped one, or one of the user's own, only measures; else it is a file.
    Named(fn(&Place) -> Vec<String>),
    /// Values that only measure.
    Only(fn(&str) -> bool),
}

/// The rule of each option of `vm-test`, by clap's id.
fn rule(id: &str) -> Rule {
    match id {
        "suite" => Rule::Named(Place::suites),
        "kernels" => Rule::Named(Place::kernels),
        "models" => Rule::Named(cpus::names),
        "series" | "base_patches" => Rule::Named(Place::series),
        "axes" => Rule::Only(is_plain_axis),
        "functions" => Rule::Only(|value| !value.contains('/')),
        "vm" => Rule::Only(|value| value == "qemu"),
        "accel" => Rule::Only(|value| value != "kvm"),
        "branches" => Rule::Only(|value| value != "hardware"),
        "config" | "programs" => Rule::All(Class::Typed),
        "arches" | "each_patch" | "placebos" | "confined" | "clock" | "explain" | "trigger"
        | "experiments" | "filtersets" | "partition" | "names" | "format" | "listing"
        | "what_if" | "filter" | "lines" | "origin" | "message_format" | "cold" | "notes" => {
            Rule::All(Class::Measures)
        }
        // `rerun` names the stored run; the others are this call's.
        "rerun" | "setup" | "unconfined" | "no_cache" | "runs" | "list" | "no_run" | "keep"
        | "update_budgets" | "jobs" => Rule::All(Class::LeftOut),
        _ => unreachable!("a test has each option"),
    }
}

/// `NAME=VALUES`, of the shipped axes or of an option of the kernel; no files, and no text of a
/// stranger's in the configuration of a kernel.
fn is_plain_axis(text: &str) -> bool {
    let (name, values) = text.split_once('=').unwrap_or((text, ""));
    let is_plain = |c: char| c.is_ascii_alphanumeric() || matches!(c, '_' | '-' | ',');
    name != "config" && (name.to_owned() + values).chars().all(is_plain)
}

fn class(id: &str, value: &str) -> Class {
    let only = |measures: bool| if measures { Class::Measures } else { Class::Typed };
    match rule(id) {
        Rule::All(class) => class,
        Rule::Named(names) => only(names(place()).iter().any(|name| name == value)),
        Rule::Only(measures) => only(measures(value)),
    }
}

/// An option with one of its values.
struct Given {
    /// clap's id.
    id: String,
    word: String,
    value: String,
}

/// The options that stand on a command line.
fn options(matches: &ArgMatches) -> Vec<Given> {
    let mut all = Vec::new();
    for arg in Alone::command().get_arguments() {
        let id = arg.get_id().as_str();
        if matches.value_source(id) != Some(ValueSource::CommandLine) {
            continue;
        }
        let values = matches.get_raw(id).into_iter().flatten();
        for value in values.map(|value| value.to_string_lossy().into_owned()) {
            let word = match arg.get_long() {
                Some(long) if arg.get_action().takes_values() => format!("--{long}={value}"),
                Some(long) => format!("--{long}"),
                None => value.clone(),
            };
            all.push(Given { id: id.to_owned(), word, value });
        }
    }
    all
}

/// The words that measure an earlier run again: its own that only choose measurements, and what the
/// user typed now.
pub fn words(earlier: &Earlier, typed: &[String]) -> Result<Vec<String>> {
    let parsed = |words: &[String]| {
        let words = ["vm-test"].into_iter().chain(words.iter().map(String::as_str));
        Alone::command().try_get_matches_from(words)
    };
    let stored = parsed(earlier.words()).map_err(|error| {
        Error::Usage(format!(
            "{RERUN}: this tramplab does not understand the command line of run {}: {error}",
            earlier.run.id
        ))
    })?;
    let typed = parsed(&typed[2..]).map_err(|error| Error::Usage(error.to_string()))?;
    let typed: Vec<Given> = options(&typed).into_iter().filter(|one| one.id != "rerun").collect();
    let is_typed = |option: &Given| typed.iter().any(|typed| typed.id == option.id);
    let (mut again, mut lacking, mut left_out) = (Vec::new(), Vec::new(), Vec::new());
    for option in options(&stored).into_iter().filter(|option| !is_typed(option)) {
        match class(&option.id, &option.value) {
            Class::Measures => again.push(option),
            Class::Typed => lacking.push(option.word),
            Class::LeftOut => left_out.push(option.word),
        }
    }
    if !lacking.is_empty() {
        return Err(Error::Usage(format!(
            "{RERUN}: run {} was made with options that choose what this machine reads, builds or \
             uses. If you want them, type them again: {}",
            earlier.run.id,
            shown(&lacking)
        )));
    }
    again.extend(typed);
    let (names, options): (Vec<_>, Vec<_>) =
        again.into_iter().partition(|option| option.id == "names");
    let dashes = (!names.is_empty()).then(|| "--".to_owned());
    let word = |option: Given| option.word;
    let words: Vec<String> =
        options.into_iter().map(word).chain(dashes).chain(names.into_iter().map(word)).collect();
    if !left_out.is_empty() {
        eprintln!("left out, as a stored run has it; you may type it: {}", shown(&left_out));
    }
    eprintln!("measuring again: {} vm-test {}", called(), shown(&words));
    Ok([called_words(), words].concat())
}

/// For the terminal: `--NAME VALUE`, as a user types it.
fn shown(words: &[String]) -> String {
    let word = |word: &String| match word.split_once('=') {
        Some((name, value)) if name.starts_with("--") => {
            format!("{name} {}", shell_words::quote(value))
        }
        _ => shell_words::quote(word).into_owned(),
    };
    text::line(&words.iter().map(word).collect::<Vec<_>>().join(" "))
}

fn called_words() -> Vec<String> {
    ["tramplab", "vm-test"].map(str::to_owned).to_vec()
}

#[cfg(test)]
mod tests {
    use super::*;
    use tramplab_host::runs::RunDir;
    use tramplab_testdata::stored;

    #[test]
    fn classes_every_option() {
        for arg in Alone::command().get_arguments() {
            let id = arg.get_id().as_str();
            if id != "help" {
                rule(id);
            }
        }
    }

    fn again(command: &str, typed: &str) -> Result<String, String> {
        let folder = tempfile::tempdir().unwrap();
        let mut run = stored();
        run.command = shell_words::split(&format!("tramplab vm-test {command}")).unwrap();
        run.interrupted = true;
        run.missing = vec![run.cells.pop().expect("a cell").id];
        RunDir::new(folder.path()).save(&run).unwrap();
        let earlier = Earlier::load(folder.path()).map_err(|error| error.told()).unwrap();
        let typed = format!("tramplab vm-test --rerun R {typed}");
        words(&earlier, &shell_words::split(&typed).unwrap())
            .map(|words| words[2..].join(" "))
            .map_err(|error| error.told())
    }

    #[test]
    fn takes_over_what_only_chooses_measurements() {
        for (stored, typed, expected) in [
            ("", "", ""),
            (
                "--suite waste --kernel 6.12 --kernel 7.2 --arch x86_64,arm64 --accel tcg -- fexit",
                "",
                "--suite=waste --kernel=6.12 --kernel=7.2 --arch=x86_64 --arch=arm64 --accel=tcg \
                 -- fexit",
            ),
            ("--series lbr-helpers --each-patch", "", "--series=lbr-helpers --each-patch"),
            (
                "--config-axis preempt=none,full -E 'test(a)'",
                "",
                "--config-axis=preempt=none,full --filterset=test(a)",
            ),
            // Left out, or typed now.
            ("--setup --unconfined --runs /etc -j 9999 --no-cache", "", ""),
            ("--jobs 3 fexit", "--jobs 2", "--jobs=2 -- fexit"),
            ("--kernel /src/linux", "--kernel /src/linux", "--kernel=/src/linux"),
            ("--message-format human", "--message-format json", "--message-format=json"),
        ] {
            assert_eq!(again(stored, typed).as_deref(), Ok(expected), "{stored}");
        }
    }

    #[test]
    fn has_the_user_type_again_what_touches_this_machine() {
        for word in [
            "--suite=/tmp/evil.yaml",
            "--suite=evil.yaml",
            "--suite=../suites/evil",
            "--kernel=/tmp/linux",
            "--kernel=linux",
            "--kernel=git:/home/me/linux#main",
            "--kernel=https://example.org/linux.tar.xz",
            "--series=evil.mbx",
            "--series=HEAD~1..",
            "--series=20260101-fix@kernel.org",
            "--config=/etc/passwd",
            "--config-axis=config=a.config",
            "--config-axis=/tmp/axes.yaml:a=b",
            "--config-axis=CONFIG_LOCALVERSION=$(shell${IFS}id)",
            "--config-axis=CONFIG_SYSTEM_TRUSTED_KEYS=pkcs11:a",
            "--program=/tmp/evil.bpf.o",
            "--function=/tmp/functions",
            "--vm=virtme-ng",
            "--accel=kvm",
            "--branches=hardware",
        ] {
            let said = again(word, "").unwrap_err();
            let (_, value) = word.split_once('=').unwrap();
            assert!(said.contains(value), "{word}: {said}");
        }
        let said = again("'--nope\u{1b}[2J'", "").unwrap_err();
        assert!(!said.contains('\u{1b}'), "{said:?}");
        // No escape sequence reaches the terminal.
        let said = again("$'--kernel=/\u{1b}[2J'".trim_matches('$'), "").unwrap_err();
        assert!(!said.contains('\u{1b}'), "{said:?}");
    }
}
