// SPDX-License-Identifier: MIT OR Apache-2.0
//! The report for GitHub: annotations, folded consoles, and a summary of the size that it accepts.
//!
//! Text by a guest, a compiler or a series' author is data. None of it becomes a command of the
//! runner.

use super::{
    View, comparison,
    findings::{OfSeries, untold, with_the_dearest},
    markdown,
    outcomes::and_more,
};
use tramplab_model::{
    run::{Cell, ErrorKind, Outcome, Run},
    text::{line, plain},
};

/// Annotations of one kind that GitHub shows per step.
const SHOWN: usize = 10;
/// Bytes that GitHub accepts as a step's summary. It drops a larger one whole.
pub const SUMMARY: usize = 1 << 20;
/// Lines of an annotation; the log has the rest.
const LINES: usize = 6;

#[derive(Clone, Copy)]
enum Level {
    Error,
    Warning,
}

struct Annotation {
    title: String,
    message: String,
    /// A file of the tree and its line.
    place: Option<(String, u32)>,
}

/// Prints lines that the runner turns into annotations and folded parts of the log.
pub fn annotations(run: &Run) -> String {
    let mut out = all(Level::Error, errors(run)) + &all(Level::Warning, warnings(run));
    for cell in run.cells.iter().filter(|cell| !cell.console_tail.is_empty()) {
        out += &format!("::group::{}\n", data(&format!("console of {}", cell.id.name())));
        out.extend(cell.console_tail.iter().map(|line| format!("{}\n", harmless(line))));
        out += "::endgroup::\n";
    }
    out
}

fn errors(run: &Run) -> Vec<Annotation> {
    let mut errors = Vec::new();
    errors.extend(run.shortage().map(|message| Annotation {
        title: "tramplab: a shard did not report".to_owned(),
        message,
        place: None,
    }));
    errors.extend(run.interruption().map(|message| Annotation {
        title: "tramplab: interrupted".to_owned(),
        message,
        place: None,
    }));
    let is_empty = run.cells.is_empty() && !run.interrupted && run.shard.is_none();
    errors.extend(is_empty.then(|| Annotation {
        title: "tramplab: nothing was measured".to_owned(),
        message: "The run has no cells.".to_owned(),
        place: None,
    }));
    let findings = comparison::findings_of(run);
    errors.extend(of_findings(&findings));
    errors.extend(of_cells(&run.cells, &findings));
    errors
}

/// Makes one annotation for all cells that got worse by one cause.
fn of_findings(findings: &[OfSeries]) -> Vec<Annotation> {
    let mut all: Vec<Annotation> = Vec::new();
    for (series, told) in findings {
        for told in told.iter().filter(|told| !told.harmed.is_empty()) {
            let (base, head) = (&series.base().kernel, &series.head().kernel);
            let kernels = || format!("{base} -> {head} ({})", series.arch);
            let heading = match &told.patch {
                Some(_) => told.heading(),
                None => format!("{}: {}", told.verdict, kernels()),
            };
            let message = [&told.causes[..], &told.moved].concat().join("\n");
            all.push(Annotation { title: heading, message, place: None });
        }
    }
    all.dedup_by(|a, b| (&a.title, &a.message) == (&b.title, &b.message));
    all
}

/// Makes one annotation for all cells that ended alike, because GitHub shows few.
fn of_cells(cells: &[Cell], findings: &[OfSeries]) -> Vec<Annotation> {
    let mut alike: Vec<(&Cell, Vec<String>)> = Vec::new();
    for cell in cells {
        let is_same = |(first, _): &&mut (&Cell, Vec<String>)| first.outcome == cell.outcome;
        let is_error = matches!(cell.outcome, Outcome::Error { .. });
        match alike.iter_mut().find(is_same).filter(|_| is_error) {
            Some((_, names)) => names.push(cell.id.name()),
            None => alike.push((cell, vec![cell.id.name()])),
        }
    }
    alike.iter().filter_map(|(cell, names)| of_cell(cell, &and_more(names), findings)).collect()
}

fn of_cell(cell: &Cell, names: &str, findings: &[OfSeries]) -> Option<Annotation> {
    let (message, place) = match &cell.outcome {
        Outcome::Pass | Outcome::Skip { .. } => return None,
        Outcome::Fail { reasons } => {
            let reasons = untold(findings, &cell.id, reasons)?;
            (with_the_dearest(cell, reasons).join("\n"), None)
        }
        Outcome::Error { kind, message } => {
            (cell.outcome.reason()?, place(message).filter(|_| *kind == ErrorKind::Build))
        }
    };
    let title = format!("{} {names}", cell.outcome.name());
    Some(Annotation { title, message, place })
}

/// Finds the place of a compiler's error: the first `kernel/bpf/trampoline.c:897:` of a message.
fn place(message: &str) -> Option<(String, u32)> {
    message.split_whitespace().find_map(|word| {
        let mut parts = word.split(':');
        let (file, line) = (parts.next()?, parts.next()?.parse().ok()?);
        let of_the_tree = !file.starts_with('/') && !file.contains("..") && file.contains('.');
        of_the_tree.then(|| (file.to_owned(), line))
    })
}

/// Warns of notes and of kernels that were built unconfined.
fn warnings(run: &Run) -> Vec<Annotation> {
    let mut warnings = Vec::new();
    if !run.notes.is_empty() {
        let mut lines: Vec<String> =
            run.notes.iter().map(|note| plain(note).replace('\n', " ")).collect();
        if lines.len() > LINES {
            let rest = lines.split_off(LINES - 1).len();
            lines.push(format!("and {rest} more: the step's summary has them all"));
        }
        warnings.push(Annotation {
            title: "tramplab: read this with the verdict".to_owned(),
            message: lines.join("\n"),
            place: None,
        });
    }
    let unconfined = |kernel: &&tramplab_model::run::Kernel| {
        kernel.build.as_ref().is_some_and(|build| !build.confined)
    };
    for kernel in run.kernels.iter().filter(unconfined) {
        warnings.push(Annotation {
            title: format!("{} for {} was built unconfined", kernel.name, kernel.arch),
            message: "Commands that a patch adds to a Makefile ran with the rights of this job."
                .to_owned(),
            place: None,
        });
    }
    warnings
}

/// Prints as many annotations as GitHub shows. The last counts the others.
fn all(level: Level, annotations: Vec<Annotation>) -> String {
    let name = match level {
        Level::Error => "error",
        Level::Warning => "warning",
    };
    let count = annotations.len();
    let one = |Annotation { title, message, place }: &Annotation| {
        let place = place.as_ref().map_or_else(String::new, |(file, line)| {
            format!("file={},line={line},", property(file))
        });
        let lines: Vec<String> = plain(message).lines().take(LINES).map(str::to_owned).collect();
        format!("::{name} {place}title={}::{}\n", property(title), data(&lines.join("\n")))
    };
    if count <= SHOWN {
        return annotations.iter().map(one).collect();
    }
    let shown: String = annotations.iter().take(SHOWN - 1).map(one).collect();
    let rest = count - (SHOWN - 1);
    format!("{shown}::{name} title=tramplab::and {rest} more: the step's summary has them all\n")
}

/// Escapes the text of a runner's command.
fn data(text: &str) -> String {
    plain(text).replace('%', "%25").replace('\r', "%0D").replace('\n', "%0A")
}

/// Escapes the property of a runner's command.
fn property(text: &str) -> String {
    data(text).replace(':', "%3A").replace(',', "%2C")
}

/// Makes a line of text harmless: the runner looks for `::` at its start and for `##[` anywhere.
fn harmless(text: &str) -> String {
    let text = line(text).replace("##[", "## [");
    format!("| {text}").trim_end().to_owned()
}

/// Renders the report as Markdown of at most `limit` bytes. A note tells if it was cut, and where
/// the whole report is.
pub fn summary(run: &Run, view: &View, limit: usize) -> String {
    let whole = markdown::render(run, view);
    if whole.len() <= limit {
        return whole;
    }
    let kib = |bytes: usize| bytes.div_ceil(1024);
    let note = |shown: usize| {
        format!(
            "\n**Cut off: this is {} of {} KiB. The whole report is in the run's folder, which the \
             job uploads: `report.md`, for a series `details.md`.**\n",
            kib(shown),
            kib(whole.len())
        )
    };
    let room = limit.saturating_sub(note(whole.len()).len());
    let shown = &whole[..last_break(&whole, room)];
    shown.to_owned() + &note(shown.len())
}

/// Finds the last end of a block within `room` bytes, outside of tables and folded parts.
fn last_break(text: &str, room: usize) -> usize {
    let (mut at, mut last, mut open) = (0, 0, 0usize);
    let mut fence: Option<&str> = None;
    for line in text.split_inclusive('\n') {
        let trimmed = line.trim_end();
        match fence {
            Some(mark) if trimmed == mark => fence = None,
            Some(_) => {}
            None if trimmed.starts_with("```") => fence = Some(trimmed),
            None if trimmed.starts_with("<details>") => open += 1,
            None if trimmed == "</details>" => open = open.saturating_sub(1),
            None => {}
        }
        at += line.len();
        if at > room {
            break;
        }
        if fence.is_none() && open == 0 && trimmed.is_empty() {
            last = at;
        }
    }
    last
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::tests::{run as stored, series};
    use tramplab_analysis::compare;

    fn error(message: &str) -> Outcome {
        Outcome::Error { kind: ErrorKind::Build, message: message.to_owned() }
    }

    #[test]
    fn annotates_failures_only() {
        let mut run = stored();
        run.cells.iter_mut().for_each(|cell| cell.outcome = Outcome::Pass);
        run.cells.iter_mut().for_each(|cell| cell.console_tail.clear());
        assert_eq!(annotations(&run), "");
        let empty = Run { cells: Vec::new(), ..run.clone() };
        assert_eq!(
            annotations(&empty),
            "::error title=tramplab%3A nothing was measured::The run has no cells.\n"
        );
        let reasons =
            vec!["fexit wastes 9, budget 1 (100 % more)".to_owned(), "and\ranother".to_owned()];
        run.cells[0].outcome = Outcome::Fail { reasons };
        let name = run.cells[0].id.name();
        assert_eq!(
            annotations(&run),
            format!(
                "::error title=fail {name}::fexit wastes 9, budget 1 (100 %25 more)%0Aandanother\n"
            )
        );
    }

    #[test]
    fn annotates_the_line_of_a_compilers_error() {
        let table = [
            (
                "with patch 2 (bpf: X): failed to build a+b: kernel/bpf/trampoline.c:897:12: \
                 error: no\n    897 | x",
                "::error file=kernel/bpf/trampoline.c,line=897,title=",
            ),
            ("failed to build a: /usr/include/x.h:3: error: no", "::error title="),
            ("failed to build a: ../x.h:3: error", "::error title="),
            ("make[2]: *** [scripts/Makefile:3: x] Error 2", "::error title="),
            ("k,:e/r.c:7: error", "::error title="),
        ];
        for (message, begins) in table {
            let mut run = stored();
            run.cells[0].outcome = error(message);
            let out = annotations(&run);
            assert!(out.starts_with(begins), "{message}: {out}");
        }
    }

    #[test]
    fn text_of_a_guest_is_no_command() {
        let mut run = stored();
        let hostile = [
            "::add-mask::a",
            "  ::error::b",
            "x ##[error]c",
            "\u{1b}[1m::stop-commands::d",
            "e\n::f::",
        ];
        run.cells[0].outcome = error("bad\n::error::g\r\n%0A::h");
        run.cells[0].console_tail = hostile.map(str::to_owned).to_vec();
        let out = annotations(&run);
        let commands: Vec<&str> = out
            .lines()
            .filter(|line| line.trim_start().starts_with("::") || line.contains("##["))
            .map(|line| line.split([' ', ':']).find(|word| !word.is_empty()).unwrap())
            .collect();
        assert!(
            commands.iter().all(|word| ["error", "warning", "group", "endgroup"].contains(word)),
            "{out}"
        );
        assert!(
            out.contains("bad%0A::error::g%0A%250A::h") && out.contains("| ::add-mask::a"),
            "{out}"
        );
        assert!(out.contains("| x ## [error]c"), "{out}");
    }

    #[test]
    fn the_last_annotation_counts_the_others() {
        let mut run = stored();
        let cell = run.cells[0].clone();
        let failing = |count: usize, run: &mut Run| {
            let outcome = Outcome::Fail { reasons: vec!["worse".to_owned()] };
            run.cells = vec![Cell { outcome, console_tail: Vec::new(), ..cell.clone() }; count];
            annotations(run)
                .lines()
                .filter(|line| line.starts_with("::error "))
                .map(str::to_owned)
                .collect()
        };
        let ten: Vec<String> = failing(10, &mut run);
        assert!(ten.len() == 10 && !ten[9].contains("more"), "{ten:?}");
        let eleven: Vec<String> = failing(11, &mut run);
        assert!(eleven.len() == 10 && eleven[9].contains("and 2 more"), "{eleven:?}");
    }

    #[test]
    fn annotates_missing_shards_and_unconfined_builds() {
        let mut run = stored();
        run.joined = Some(tramplab_model::run::Joined { runs: vec!["a".to_owned()], expected: 2 });
        let build = tramplab_model::run::Build {
            toolchain: String::new(),
            key: String::new(),
            confined: false,
        };
        run.kernels[0].build = Some(build);
        let out = annotations(&run);
        assert!(
            out.starts_with("::error title=tramplab%3A a shard did not report::Only 1 of 2 runs"),
            "{out}"
        );
        assert!(out.contains("was built unconfined::"), "{out}");
    }

    #[test]
    fn does_not_annotate_changes_within_the_tolerance() {
        let mut run = series();
        run.cells.iter_mut().for_each(|cell| cell.outcome = Outcome::Pass);
        // The other way round, improvements are regressions.
        run.series.iter_mut().for_each(|series| series.steps.reverse());
        run.tolerance.wasted = 100;
        compare::judge(&mut run);
        assert_eq!(annotations(&run), "");
        run.tolerance.wasted = 0;
        compare::judge(&mut run);
        // One annotation for each patch, none for each cell.
        let out = annotations(&run);
        let titles = out.lines().filter_map(|line| line.split("::").nth(1));
        let titles: Vec<&str> = titles.collect();
        assert_eq!(titles.len(), 2, "{out}");
        assert!(titles.iter().all(|title| title.starts_with("error title=worse%3A ")), "{out}");
        assert!(out.contains("%0Albr_waste of fexit, kretprobe_multi: any +2"), "{out}");
    }

    #[test]
    fn cuts_a_summary_between_blocks() {
        let run = stored();
        let view = View { listings: vec!["any".parse().unwrap()], ..View::default() };
        let whole = markdown::render(&run, &view);
        assert_eq!(summary(&run, &view, whole.len()), whole);
        for limit in (600..whole.len()).step_by(97) {
            let cut = summary(&run, &view, limit);
            assert!(cut.len() <= limit, "{limit}");
            let (shown, _) = cut.split_once("\n**Cut off: ").expect("it says so");
            assert!(whole.starts_with(shown) && shown.ends_with("\n\n"), "{limit}: {shown}");
            assert_eq!(
                shown.matches("<details>").count(),
                shown.matches("</details>").count(),
                "{limit}"
            );
        }
    }
}
