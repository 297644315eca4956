// SPDX-License-Identifier: MIT OR Apache-2.0
//! The command line of a run whose cells are measured again, and the command that does it.

use super::{
    given,
    options::{Class, class},
    vm_test::args::Alone,
};
use clap::CommandFactory;
use tramplab_host::runs::{RunDir, running};
use tramplab_lab::{
    command::VM_TEST,
    error::{Error, Result},
    rerun::{Earlier, RERUN, left, made_by_vm_test, rejected, resolved},
};
use tramplab_model::{
    called::called,
    run::{GivenOptions, Run, options::option_words},
    text::{self, counted},
};

/// Prints how to measure the cells of a run that were not measured, with these words at the end.
pub fn tell(run: &Run, run_dir: &RunDir, retyped: Vec<String>) {
    let rejected = rejected(run);
    let left = left(run).len().saturating_sub(rejected);
    let can_go_on = run.joined.is_none() && made_by_vm_test(run) && !running::is_going_on(run_dir);
    if rejected > 0 {
        // `--rerun` reads the run's copy of the program.
        let cells = counted(rejected, "cell");
        eprintln!("to measure {cells} of rejected programs: change the programs and run all again");
    }
    if left == 0 || !can_go_on {
        return;
    }
    let folder = resolved(run_dir).display().to_string();
    let words = [VM_TEST, RERUN, &folder].into_iter().chain(retyped.iter().map(String::as_str));
    let cells = counted(left, "cell");
    eprintln!("to measure {cells} without a result: {} {}", called(), shell_words::join(words));
}

/// The options of the caller's own run that are typed again, and where it is kept.
pub fn retyped(run: &Run) -> Vec<String> {
    let given = run.options.iter().flat_map(|options| &options.0);
    let again =
        given.filter(|(name, values)| *name == "runs" || class(name, values) == Class::Typed);
    again.flat_map(|(name, values)| option_words(name, values)).collect()
}

/// The options that measure an earlier run again: its own that only choose measurements, and what
/// the user typed now.
pub fn options(earlier: &Earlier, typed: &GivenOptions) -> Result<GivenOptions> {
    let stored = stored(earlier)?;
    let mut again = typed.clone();
    again.0.remove("rerun");
    let (mut lacking, mut left_out) = (Vec::new(), Vec::new());
    for (name, values) in stored.0 {
        if again.0.contains_key(&name) {
            continue;
        }
        match class(&name, &values) {
            Class::Measures => drop(again.0.insert(name, values)),
            Class::Typed => lacking.extend(option_words(&name, &values)),
            Class::LeftOut => left_out.extend(option_words(&name, &values)),
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
    if !left_out.is_empty() {
        eprintln!("left out, as a stored run has it; you may type it: {}", shown(&left_out));
    }
    eprintln!("measuring again: {} {VM_TEST} {}", called(), shown(&again.words()));
    Ok(again)
}

/// The options that made the run. A stranger's file may have anything there.
fn stored(earlier: &Earlier) -> Result<GivenOptions> {
    let syntax = Alone::command();
    let matches = syntax
        .clone()
        .try_get_matches_from([VM_TEST.to_owned()].into_iter().chain(earlier.words()));
    let matches = matches.map_err(|error| {
        Error::Usage(format!(
            "{RERUN}: this tramplab does not understand the command line of run {}: {error}",
            earlier.run.id
        ))
    })?;
    Ok(given::options(&syntax, &matches))
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

#[cfg(test)]
mod tests {
    use super::*;
    use tramplab_host::runs::RunDir;
    use tramplab_testdata::stored;

    fn again(command: &str, typed: &str) -> Result<String, String> {
        let folder = tempfile::tempdir().unwrap();
        let mut run = stored();
        run.command = shell_words::split(&format!("tramplab vm-test {command}")).unwrap();
        run.interrupted = true;
        run.missing = vec![run.cells.pop().expect("a cell").id];
        RunDir::new(folder.path()).save(&run).unwrap();
        let earlier = Earlier::load(folder.path()).map_err(|error| error.told()).unwrap();
        let typed = shell_words::split(&format!("vm-test --rerun R {typed}")).unwrap();
        let syntax = Alone::command();
        let matches = syntax.clone().try_get_matches_from(typed).unwrap();
        options(&earlier, &given::options(&syntax, &matches))
            .map(|options| options.words().join(" "))
            .map_err(|error| error.told())
    }

    #[test]
    fn takes_over_what_only_chooses_measurements() {
        for (stored, typed, expected) in [
            ("", "", ""),
            (
                "--suite waste --kernel 6.12 --kernel 7.2 --arch x86_64,arm64 --accel tcg -- fexit",
                "",
                "--accel=tcg --arch=x86_64 --arch=arm64 --kernel=6.12 --kernel=7.2 --suite=waste \
                 -- fexit",
            ),
            ("--series lbr-helpers --each-patch", "", "--each-patch --series=lbr-helpers"),
            (
                "--config-axis preempt=none,full -E 'test(a)'",
                "",
                "--config-axis=preempt=none,full --filterset=test(a)",
            ),
            // Left out, or typed now.
            ("--setup --unconfined --yes --runs /etc -j 9999 --no-cache", "", ""),
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
            "--vm=none",
            "--accel=kvm",
            "--branches=hardware",
        ] {
            let said = again(word, "").unwrap_err();
            let (_, value) = word.split_once('=').unwrap();
            assert!(said.contains(value), "{word}: {said}");
        }
        // One of the values is enough.
        let said = again("--vm qemu,none", "").unwrap_err();
        assert!(said.contains("--vm"), "{said}");
        let said = again("'--nope\u{1b}[2J'", "").unwrap_err();
        assert!(!said.contains('\u{1b}'), "{said:?}");
        // No escape sequence reaches the terminal.
        let said = again("$'--kernel=/\u{1b}[2J'".trim_matches('$'), "").unwrap_err();
        assert!(!said.contains('\u{1b}'), "{said:?}");
    }
}
