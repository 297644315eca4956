// SPDX-License-Identifier: MIT OR Apache-2.0
//! Finds the programs that a selftests Makefile declares: those in the lists that `lib.mk` reads,
//! and those with their own rule. Does not evaluate make functions such as `$(wildcard *.c)`.

/// Covers `TEST_GEN_PROGS`, `TEST_GEN_PROGS_EXTENDED` and `TEST_GEN_FILES`.
const MADE: [&str; 2] = ["TEST_GEN_", "TEST_CUSTOM_PROGS"];
/// Covers `TEST_PROGS` and `TEST_PROGS_EXTENDED`.
const SCRIPTS: [&str; 1] = ["TEST_PROGS"];
const OUTPUT: &str = "$(OUTPUT)/";

/// True if make makes the program.
pub fn makes(makefile: &str, program: &str) -> bool {
    lines(makefile).iter().any(|line| is_listed(line, &MADE, program) || is_target(line, program))
}

/// True if the program is a script, which is installed as it is.
pub fn has_script(makefile: &str, program: &str) -> bool {
    lines(makefile).iter().any(|line| is_listed(line, &SCRIPTS, program))
}

/// Whole lines, without comments and recipes.
fn lines(makefile: &str) -> Vec<String> {
    let whole = makefile.replace("\\\n", " ");
    let lines = whole.lines().map(|line| line.split('#').next().unwrap_or_default());
    lines.filter(|line| !line.starts_with('\t')).map(str::to_owned).collect()
}

fn is_listed(line: &str, lists: &[&str], program: &str) -> bool {
    line.split_once('=').is_some_and(|(variable, value)| {
        let variable = variable.trim_end_matches([':', '+', '?', ' ', '\t']).trim_start();
        let is_it = |word: &str| word.strip_prefix(OUTPUT).unwrap_or(word) == program;
        lists.iter().any(|list| variable.starts_with(list)) && value.split_whitespace().any(is_it)
    })
}

/// True for a rule `$(OUTPUT)/PROGRAM:` and for a variable of that target.
fn is_target(line: &str, program: &str) -> bool {
    line.split_once(':').is_some_and(|(targets, _)| {
        targets.split_whitespace().any(|target| target.strip_prefix(OUTPUT) == Some(program))
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Shortened lines of 6.12's ring-buffer, timers, arm64 and net.
    const MAKEFILE: &str = "\
# SPDX-License-Identifier: GPL-2.0
CFLAGS += -Wl,-no-as-needed -Wall
TEST_GEN_PROGS = map_test
TEST_GEN_PROGS_EXTENDED := alarmtimer-suspend skew_consistency\\
\tset-2038  # not by default: leap-a-day
TEST_PROGS = run.sh clean_up
TEST_CUSTOM_PROGS += $(OUTPUT)/sub/run-me
  TEST_GEN_FILES += nettest
TOOLS := helper
all: $(TEST_GEN_PROGS) everything
$(OUTPUT)/cluster-test: LDLIBS = -lcap
$(OUTPUT)/set-tai: set-tai.c
\t$(CC) recipe_word -o $@ $<
include ../lib.mk
";

    #[test]
    fn finds_only_programs_of_lists_and_rules() {
        for made in [
            "map_test",
            "alarmtimer-suspend",
            "skew_consistency",
            "set-2038",
            "sub/run-me",
            "nettest",
            "set-tai",
            "cluster-test",
        ] {
            assert!(makes(MAKEFILE, made), "{made}");
        }
        for word in [
            "map",
            "CFLAGS",
            "Wall",
            "leap-a-day",
            "clean_up",
            "helper",
            "all",
            "everything",
            "recipe_word",
            "include",
            "LDLIBS",
            "TEST_GEN_PROGS",
            "OUTPUT",
        ] {
            assert!(!makes(MAKEFILE, word), "{word}");
        }
        for (word, is_script) in
            [("run.sh", true), ("clean_up", true), ("map_test", false), ("set-tai", false)]
        {
            assert_eq!(has_script(MAKEFILE, word), is_script, "{word}");
        }
    }
}
