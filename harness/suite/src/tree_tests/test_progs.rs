// SPDX-License-Identifier: MIT OR Apache-2.0
//! Parses the output of the tree's `test_progs`: a line for each subtest and test, and a summary.
//!
//! ```text
//! #103/1   fentry_test/fentry:OK
//! #103     fentry_test:OK
//! Summary: 1/1 PASSED, 0 SKIPPED, 0 FAILED
//! ```

use super::ran::{FAILURES, Kept, Ran};
use std::collections::HashSet;
use tramplab_model::tree_tests::End;

#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Unreadable {
    #[error("test_progs printed no summary; its last line is `{0}`")]
    NoSummary(String),
    #[error("test_progs did not run {0}: its output does not name it")]
    NotRun(String),
    #[error("test_progs contradicts itself: {test} ended as {}, its summary is `{summary}` and its \
             exit code {code}", .end.name())]
    Contradiction { test: String, end: End, summary: String, code: i32 },
}

/// Reads the output of a run of `test` alone. `code` is the exit code.
pub fn read(output: &str, test: &str, code: i32) -> Result<Ran, Unreadable> {
    let mut ended = None;
    let mut kept = Kept::default();
    let mut seen: HashSet<&str> = HashSet::new();
    let mut failures: Vec<String> = Vec::new();
    let mut summary = None;
    for line in output.lines() {
        if let Some(counts) = line.strip_prefix("Summary: ") {
            summary = Some(counts);
            continue;
        }
        match result(line) {
            Some((name, end)) if name == test => ended = Some(end),
            Some((name, end)) => {
                // Failed subtests are printed again at the end, with all logs.
                if let Some(name) = name.strip_prefix(test).and_then(|rest| rest.strip_prefix('/'))
                    && seen.insert(name)
                {
                    kept.add(name, end);
                }
            }
            None if is_failure(line) && failures.len() < FAILURES => {
                let said: String = line.trim().chars().take(300).collect();
                if !failures.contains(&said) {
                    failures.push(said);
                }
            }
            None => {}
        }
    }
    let Some(summary) = summary else {
        let last = output.trim_end().lines().next_back().unwrap_or_default();
        return Err(Unreadable::NoSummary(last.chars().take(120).collect()));
    };
    let end = ended.ok_or_else(|| Unreadable::NotRun(test.to_owned()))?;
    // A pass needs all three to agree: result line, summary and exit code.
    let none_failed = summary.ends_with(" 0 FAILED");
    let subtests_fail = kept.count(End::Fail) > 0;
    let agrees = match end {
        End::Ok | End::Skip => none_failed && code == 0 && !subtests_fail,
        End::Fail => !none_failed && code != 0,
    };
    if !agrees {
        let (test, summary) = (test.to_owned(), summary.chars().take(120).collect());
        return Err(Unreadable::Contradiction { test, end, summary, code });
    }
    // The program counts denied subtests as if they had run.
    let nothing_ran = kept.len() > 0 && kept.count(End::Skip) == kept.len();
    let end = if end == End::Ok && nothing_ran { End::Skip } else { end };
    let Kept { subtests, left_out } = kept;
    Ok(Ran { end, subtests, left_out, failures })
}

/// `#103/1   fentry_test/fentry:OK`, `#5 align:OK (SKIP: 1/4)`.
fn result(line: &str) -> Option<(&str, End)> {
    let rest = line.strip_prefix('#')?;
    let (number, rest) = rest.split_once(' ')?;
    if !number.starts_with(|c: char| c.is_ascii_digit())
        || !number.chars().all(|c| c.is_ascii_digit() || c == '/')
    {
        return None;
    }
    // A subtest's name may contain spaces and colons.
    let (name, word) = rest.trim_start().rsplit_once(':').map(|(name, word)| {
        // `OK (SKIP: 1/4)` contains a colon.
        match name.rsplit_once(":OK (SKIP") {
            Some((name, "")) => (name, "OK"),
            _ => (name, word),
        }
    })?;
    let end = match word {
        "OK" => End::Ok,
        "SKIP" => End::Skip,
        "FAIL" => End::Fail,
        _ => return None,
    };
    Some((name, end))
}

/// `test_x:FAIL:what unexpected error: -22 (errno 22)`: failures that the tests' assertions, libbpf
/// or the runner print.
fn is_failure(line: &str) -> bool {
    line.contains(":FAIL:") || line.contains("libbpf: ") && line.contains("failed")
}

#[cfg(test)]
mod tests {
    use super::*;

    use tramplab_model::tree_tests::LeftOut;

    const PASSES: &str = include_str!("testdata/6.12-test_progs-fentry_test.txt");
    const FAILS: &str = include_str!("testdata/6.12-test_progs-kprobe_multi_test-fails.txt");

    fn ends(ran: &Ran) -> Vec<(&str, End)> {
        ran.subtests.iter().map(|subtest| (subtest.name.as_str(), subtest.end)).collect()
    }

    #[test]
    fn reads_output_of_6_12() {
        let ran = read(PASSES, "fentry_test", 0).unwrap();
        assert_eq!(ran.end, End::Ok);
        assert_eq!(ends(&ran), [("fentry", End::Ok), ("fentry_many_args", End::Ok)]);
        let ran = read(FAILS, "kprobe_multi_test", 1).unwrap();
        assert_eq!(ran.end, End::Fail);
        assert!(
            ends(&ran).contains(&("skel_api", End::Fail))
                && ends(&ran).contains(&("attach_override", End::Ok))
        );
        assert!(ran.failures[0].contains("kprobe_test1_result"), "{:?}", ran.failures);
    }

    #[test]
    fn rejects_truncated_or_contradictory_output() {
        for lines in 0..PASSES.lines().count() {
            let cut: Vec<&str> = PASSES.lines().take(lines).collect();
            assert!(
                matches!(read(&cut.join("\n"), "fentry_test", 0), Err(Unreadable::NoSummary(_))),
                "{cut:?}"
            );
        }
        for (output, test, code) in [
            (PASSES.to_owned(), "fentry_test", 1),
            (FAILS.to_owned(), "kprobe_multi_test", 0),
            (PASSES.replace("#1       fentry_test:OK\n", ""), "fentry_test", 0),
            (PASSES.replace("fentry_test/fentry:OK", "fentry_test/fentry:FAIL"), "fentry_test", 0),
            (PASSES.replace(" 0 FAILED", " 1 FAILED"), "fentry_test", 0),
            (PASSES.to_owned(), "fexit_test", 0),
        ] {
            assert!(read(&output, test, code).is_err(), "{test} {code}\n{output}");
        }
    }

    /// As many subtests as the kept output can name. Each is looked at once: comparing each with
    /// all others would take forever.
    #[test]
    fn counts_all_subtests_and_names_some() {
        let count = 300_000;
        let lines: String = (1..=count)
            .map(|n| format!("#1/{n} t/{n}:{}\n", if n % 100_000 == 0 { "FAIL" } else { "OK" }))
            .collect();
        let output =
            format!("{lines}{lines}#1 t:FAIL\nSummary: 0/{count} PASSED, 0 SKIPPED, 1 FAILED\n");
        let ran = read(&output, "t", 1).unwrap();
        assert_eq!(ran.subtests.len(), 10_000);
        assert_eq!(ran.left_out, LeftOut { ok: count - 10_003, skip: 0, fail: 3 });
        // A failed subtest counts, even if it is not named.
        let code =
            read(&output.replace("#1 t:FAIL", "#1 t:OK").replace("1 FAILED", "0 FAILED"), "t", 0);
        assert!(matches!(code, Err(Unreadable::Contradiction { .. })));
        let long =
            PASSES.replace("fentry_test/fentry:", &format!("fentry_test/{}:", "x".repeat(9999)));
        assert_eq!(read(&long, "fentry_test", 0).unwrap().subtests[0].name.len(), 200);
        // Names that differ only after the limit stay different.
        let alike = long
            .replace("fentry_test/fentry_many_args", &format!("fentry_test/{}y", "x".repeat(9998)));
        let [first, second] = &read(&alike, "fentry_test", 0).unwrap().subtests[..] else {
            panic!("{alike}")
        };
        assert_ne!(first.name, second.name);
    }

    /// As 6.12 counts: a denied subtest is not a skipped one.
    #[test]
    fn skips_if_all_subtests_are_skipped() {
        let skipped = PASSES
            .replace("fentry_test/fentry:OK", "fentry_test/fentry:SKIP")
            .replace("fentry_test/fentry_many_args:OK\n", "fentry_test/fentry_many_args:SKIP\n")
            .replace("fentry_test:OK\n", "fentry_test:OK (SKIP: 2/3)\n");
        assert_eq!(read(&skipped, "fentry_test", 0).unwrap().end, End::Skip);
        let one = skipped.replace("fentry_test/fentry:SKIP", "fentry_test/fentry:OK");
        assert_eq!(read(&one, "fentry_test", 0).unwrap().end, End::Ok);
    }
}
