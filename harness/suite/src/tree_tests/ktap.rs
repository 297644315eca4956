// SPDX-License-Identifier: MIT OR Apache-2.0
//! Parses the output of programs of `tools/testing/selftests`: KTAP version 1, or TAP 13, which
//! most of them announce.
//!
//! ```text
//! TAP version 13
//! 1..2
//! # remove_on_exec.c:121:fd:Expected ... (a remark)
//! ok 1 remove_on_exec.fork_only
//! not ok 2 remove_on_exec.fork_exec_then_enable # SKIP no such event
//! ```
//!
//! Other lines are the program's own and mean nothing. Neither do indented lines: the line of the
//! outer test sums them up.

use super::ran::{FAILURES, Kept, Ran};
use tramplab_model::tree_tests::{End, Subtest};

#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Unreadable {
    #[error("it printed neither `KTAP version 1` nor `TAP version 13`; its last line is `{0}`")]
    NoVersion(String),
    #[error("it printed no plan (`1..N`); its last line is `{0}`")]
    NoPlan(String),
    #[error("it gave up: {0}")]
    BailOut(String),
    #[error("it ended after {seen} of {planned} tests; its last line is `{last}`")]
    Unfinished { planned: u32, seen: u32, last: String },
    #[error("its tests are not counted one by one: `{line}` comes after {seen}")]
    Miscounted { seen: u32, line: String },
    #[error("it contradicts itself: {} of its tests failed, and its exit code is \
             {code}", if *.failed == 0 { "none".to_owned() } else { .failed.to_string() })]
    Contradiction { failed: usize, code: i32 },
}

/// Returns true for exit codes with a verdict: 0 to 4 are pass, fail, expected failure, unexpected
/// pass and skip.
pub fn is_verdict(code: i32) -> bool {
    (0..=4).contains(&code)
}

const SKIPPED: i32 = 4;

/// Reads the output of a program that ended with the exit code `code`.
pub fn read(output: &str, code: i32) -> Result<Ran, Unreadable> {
    let mut version = false;
    let mut planned = None;
    let mut kept = Kept::default();
    let mut remarks: Vec<&str> = Vec::new();
    let mut failures: Vec<String> = Vec::new();
    let mut has_failed = false;
    let last = || {
        let line = output.trim_end().lines().next_back().unwrap_or_default();
        line.chars().take(120).collect::<String>()
    };
    for line in output.lines().map(str::trim_end) {
        if let Some(reason) = line.strip_prefix("Bail out!") {
            return Err(Unreadable::BailOut(reason.trim().chars().take(200).collect()));
        }
        version |= is_version(line);
        if let Some(remark) = line.strip_prefix('#') {
            remarks.push(remark);
        } else if let Some(plan) = plan(line) {
            planned = Some(plan);
        } else if let Some((number, subtest)) = result(line) {
            let seen = kept.len() as u32;
            if number.is_some_and(|number| number != seen + 1) {
                return Err(Unreadable::Miscounted {
                    seen,
                    line: line.chars().take(120).collect(),
                });
            }
            match log_of(&remarks) {
                Some(log) if has_failed => tell(&mut failures, log),
                Some(_) => {}
                None if subtest.end == End::Fail => tell(&mut failures, &remarks),
                None => {}
            }
            has_failed = subtest.end == End::Fail;
            remarks.clear();
            kept.add(&subtest.name, subtest.end);
        }
    }
    if let Some(log) = log_of(&remarks).filter(|_| has_failed) {
        tell(&mut failures, log);
    }
    if !version {
        return Err(Unreadable::NoVersion(last()));
    }
    let planned = planned.ok_or_else(|| Unreadable::NoPlan(last()))?;
    let seen = kept.len() as u32;
    if planned != seen {
        return Err(Unreadable::Unfinished { planned, seen, last: last() });
    }
    let failed = kept.count(End::Fail);
    let end = match (failed, kept.count(End::Ok)) {
        (0, 0) => End::Skip,
        (0, _) => End::Ok,
        _ => End::Fail,
    };
    let agrees = match end {
        End::Ok => code == 0,
        End::Skip => code == 0 || code == SKIPPED,
        End::Fail => code != 0 && code != SKIPPED,
    };
    let Kept { subtests, left_out } = kept;
    match agrees {
        true => Ok(Ran { end, subtests, left_out, failures }),
        false => Err(Unreadable::Contradiction { failed, code }),
    }
}

/// Keeps remarks about a failure, as far as there is room.
fn tell(failures: &mut Vec<String>, remarks: &[&str]) {
    let said = remarks.iter().map(|remark| remark.trim()).filter(|remark| is_of_a_failure(remark));
    let room = FAILURES - failures.len();
    failures.extend(said.take(room).map(|remark| remark.chars().take(300).collect()));
}

/// The end of ftracetest's log of a test. It comes after the result, with each command that the
/// test ran; remarks of other programs come before the result.
fn log_of<'a, 'b>(remarks: &'a [&'b str]) -> Option<&'a [&'b str]> {
    let is_log = remarks.first().is_some_and(|first| first.trim().starts_with("execute: "));
    is_log.then(|| &remarks[remarks.len().saturating_sub(3)..])
}

/// The program's reason to skip all of its tests, if it prints one.
pub fn skipped(output: &str) -> Option<&str> {
    let reason =
        output.lines().find_map(|line| line.split_once("# SKIP")).map(|(_, reason)| reason.trim());
    reason.filter(|reason| !reason.is_empty())
}

fn is_version(text: &str) -> bool {
    matches!(text, "KTAP version 1" | "TAP version 13" | "TAP version 14")
}

fn plan(text: &str) -> Option<u32> {
    let digits = text.strip_prefix("1..")?;
    digits.split(' ').next()?.parse().ok()
}

/// `ok 1 name`, `not ok 2 - name # SKIP why`, `ok 3 # SKIP name`.
fn result(text: &str) -> Option<(Option<u32>, Subtest)> {
    let (passed, rest) = match text.strip_prefix("not ok") {
        Some(rest) => (false, rest),
        None => (true, text.strip_prefix("ok")?),
    };
    if !rest.is_empty() && !rest.starts_with(' ') {
        return None;
    }
    let rest = rest.trim_start();
    let digits = rest.find(|c: char| !c.is_ascii_digit()).unwrap_or(rest.len());
    let number = rest[..digits].parse().ok();
    let rest = rest[digits..].trim_start();
    let rest = rest.strip_prefix("- ").unwrap_or(rest);
    let (name, directive) = match rest.split_once("# ") {
        Some((name, directive)) => (name.trim_end(), directive),
        None => (rest, ""),
    };
    let (word, why) = directive.split_once(' ').unwrap_or((directive, ""));
    let end = match (word, passed) {
        // An expected failure says nothing about the kernel.
        ("SKIP" | "XFAIL" | "TODO", _) => End::Skip,
        // ftracetest could not find out, and does not call that a failure.
        ("UNRESOLVED", _) => End::Skip,
        ("XPASS" | "TIMEOUT" | "ERROR" | "error", _) | (_, false) => End::Fail,
        (_, true) => End::Ok,
    };
    // Some helpers of kselftest.h print the name after the directive.
    let name = if name.is_empty() { why } else { name };
    let name = if name.is_empty() {
        number.map_or("?".to_owned(), |number: u32| number.to_string())
    } else {
        name.to_owned()
    };
    Some((number, Subtest { name, end }))
}

/// Returns false for the steps of the tests' own harness: `RUN   a.b ...`, `OK  a.b`, `Starting 4
/// tests`.
fn is_of_a_failure(remark: &str) -> bool {
    !["RUN ", "OK ", "FAIL ", "SKIP ", "Starting "].iter().any(|step| remark.starts_with(step))
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Output of perf_events of 6.12, on a host that allows no hardware events.
    const PASS: &str = include_str!("testdata/6.12-ktap-watermark_signal.txt");
    const SKIPS: &str = include_str!("testdata/6.12-ktap-mmap.txt");
    const FAIL: &str = include_str!("testdata/6.12-ktap-remove_on_exec.txt");
    /// Seven of 147 results, without the middle of the logs.
    const FTRACETEST: &str = include_str!("testdata/6.12-ktap-ftracetest.txt");

    fn ends(output: &str, code: i32) -> Vec<(String, End)> {
        let ran = read(output, code).unwrap();
        ran.subtests.into_iter().map(|test| (test.name, test.end)).collect()
    }

    #[test]
    fn reads_recorded_output() {
        let ran = read(PASS, 0).unwrap();
        assert_eq!((ran.end, ran.failures), (End::Ok, vec![]));
        assert_eq!(ends(PASS, 0), [("global.watermark_signal".to_owned(), End::Ok)]);

        assert_eq!(read(SKIPS, 0).unwrap().end, End::Ok);
        let skipped =
            ends(SKIPS, 0).into_iter().filter(|(_, end)| *end == End::Skip).map(|(name, _)| name);
        assert_eq!(
            skipped.collect::<Vec<_>>(),
            ["perf_mmap.aux.map", "perf_mmap.aux.unmap", "perf_mmap.aux.remap"]
        );

        let ran = read(FAIL, 1).unwrap();
        assert_eq!((ran.end, ran.subtests.len()), (End::Fail, 4));
        assert!(ran.subtests.iter().all(|test| test.end == End::Fail));
        assert_eq!(
            ran.failures[..2],
            [
                "remove_on_exec.c:90:exec_stress:Expected self->fd (-1) != -1 (-1)",
                "exec_stress: Test terminated by assertion",
            ]
        );
    }

    #[test]
    fn reads_ftracetest() {
        let ran = read(FTRACETEST, 1).unwrap();
        let count = |end| ran.subtests.iter().filter(|test| test.end == end).count();
        assert_eq!((count(End::Ok), count(End::Fail), count(End::Skip)), (3, 2, 2));
        assert_eq!(ran.failures.len(), 6);
        let why = "mount: mounting nodev on /sys/kernel/tracing failed: Invalid argument";
        assert_eq!(
            (ran.failures[2].as_str(), ran.failures[5].as_str()),
            (why, "+ grep -q myevent uprobe_events")
        );
        let whole = FTRACETEST.replace("not ok 2", "ok 2").replace("not ok 6", "ok 6");
        assert_eq!(read(&whole, 0).unwrap().end, End::Ok);
    }

    #[test]
    fn parses_every_form_of_result_line() {
        for (line, name, end) in [
            ("ok 1 a b", "a b", End::Ok),
            ("ok 1 - a", "a", End::Ok),
            ("ok", "?", End::Ok),
            ("not ok 1", "1", End::Fail),
            ("not ok 1 a # SKIP no such event", "a", End::Skip),
            ("ok 1 # SKIP a", "a", End::Skip),
            ("not ok 1 a # XFAIL", "a", End::Skip),
            ("not ok 1 a # TODO later", "a", End::Skip),
            ("not ok 1 a # UNRESOLVED", "a", End::Skip),
            ("ok 1 # XPASS a", "a", End::Fail),
            ("not ok 1 a # TIMEOUT", "a", End::Fail),
            ("not ok 1 # error a", "a", End::Fail),
        ] {
            assert_eq!(result(line).unwrap().1, Subtest { name: name.to_owned(), end }, "{line}");
        }
        for line in ["okay", "not okay", "  ok 1 within another", "1 ok", "notok 1", ""] {
            assert_eq!(result(line), None, "{line}");
        }
    }

    /// Rejects output that is cut off, repeated, or contradicted by the exit code.
    #[test]
    fn rejects_incomplete_output() {
        let lines: Vec<&str> = SKIPS.lines().collect();
        let results = lines.iter().rposition(|line| line.starts_with("ok ")).unwrap();
        for kept in 0..results {
            assert!(read(&lines[..kept].join("\n"), 0).is_err(), "{kept} lines");
        }
        let twice = format!("{PASS}{PASS}");
        let missing = SKIPS.replace("ok 2 ", "nothing ");
        let without = |line: &str| PASS.replacen(&format!("{line}\n"), "", 1);
        for (output, code, said) in [
            (twice.as_str(), 0, "counted one by one"),
            (&missing, 0, "counted one by one"),
            (&without("1..1"), 0, "no plan"),
            (&without("TAP version 13"), 0, "printed neither"),
            (PASS, 1, "none of its tests failed, and its exit code is 1"),
            (PASS, 4, "exit code is 4"),
            (FAIL, 0, "4 of its tests failed, and its exit code is 0"),
            ("TAP version 13\n1..2\nBail out! no memory\n", 1, "it gave up: no memory"),
            ("", 0, "printed neither"),
        ] {
            let error = read(output, code).unwrap_err().to_string();
            assert!(error.contains(said), "{said}: {error}");
        }
    }

    #[test]
    fn counts_subtests_beyond_the_named_ones() {
        let lines: String = (1..=10_005).map(|n| format!("# r{n}\nnot ok {n} a\n")).collect();
        let ran = read(&format!("TAP version 13\n1..10005\n{lines}"), 1).unwrap();
        assert_eq!((ran.end, ran.subtests.len(), ran.left_out.fail), (End::Fail, 10_000, 5));
        assert_eq!(ran.failures.len(), FAILURES);
    }

    #[test]
    fn reads_why_a_program_skips_itself() {
        let output = "TAP version 13\n1..0 # SKIP no tracefs\n";
        assert_eq!(read(output, SKIPPED).unwrap().end, End::Skip);
        assert_eq!(skipped(output), Some("no tracefs"));
        assert!((0..=4).all(is_verdict) && !is_verdict(5) && !is_verdict(255) && !is_verdict(-1));
    }

    proptest::proptest! {
        #[test]
        fn never_panics(output in "(TAP version 13\n|1\\.\\.[0-9]{1,10}\n|(not )?ok \
                                            [0-9]{0,10} ?-? ?[a#S ]{0,6}\n|[#±ok \
                                            ]{0,5}\n){0,8}", code in 0..5) {
            let _ = read(&output, code);
        }
    }
}
