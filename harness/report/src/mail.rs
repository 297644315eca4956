// SPDX-License-Identifier: MIT OR Apache-2.0
//! The report as the text of a mail: plain, with lines short enough for a mailing list.

mod before_after;

use super::{
    comparison::Verdicts,
    content::{BRANCH_RECORDS, Document, NOTE, PUBLISHED, VERDICT},
    outcomes::WORSE,
    paragraph::wrapped,
    terminal,
    view::View,
};
use tramplab_model::{
    run::Run,
    text::{counted, line, plain},
};

/// Characters of a line, as in `git format-patch` and most mail programs.
const WIDTH: usize = 72;

/// Renders what a series changed, what failed, and how to reproduce it. If the view has listings,
/// those that differ appear as a diff.
pub fn render(run: &Run, view: &View) -> String {
    let document = Document::new(run, view);
    let mut out = String::new();
    for series in &document.series {
        out += &render_verdicts(&series.whole, !view.listings.is_empty());
        out.push('\n');
    }
    for series in &run.series {
        for table in before_after::tables(run, series) {
            let rows = terminal::within(&table, WIDTH as u16);
            out.extend(rows.lines().map(|row| format!("{}{row}\n", before(row))));
            out.push('\n');
        }
    }
    let outcomes = &document.outcomes;
    out += &paragraph(&outcomes.summary, "");
    out.extend(outcomes.lacks.iter().map(|said| paragraph(said, "")));
    if !outcomes.worse.is_empty() {
        out += &format!("\n{}", paragraph(&format!("fail: {WORSE}"), ""));
        out.extend(outcomes.worse.iter().map(|cell| paragraph(cell, "  ")));
    }
    for (cell, reasons) in &outcomes.failures {
        out += &format!("\n{}", paragraph(&format!("fail {cell}"), ""));
        out.extend(reasons.iter().map(|reason| paragraph(reason, "  ")));
    }
    for failed in &outcomes.errors {
        let heading = paragraph(&format!("error {}", failed.heading()), "");
        out += &format!("\n{heading}{}", paragraph(&failed.message, "  "));
    }
    for (reason, cells) in &outcomes.skips {
        let skipped = counted(cells.len(), "cell");
        out += &format!("\n{}", paragraph(&format!("skip, {skipped}: {reason}"), ""));
    }
    for (warning, cells) in &outcomes.allowed {
        let count = counted(cells.len(), "cell");
        out += &format!("\n{}", paragraph(&format!("allowed, {count}: {warning}"), ""));
    }
    out.push('\n');
    for kernel in run.kernels_with_cells() {
        out += &paragraph(&format!("{} {}: {}", kernel.name, kernel.arch, kernel.source), "");
    }
    for (name, value) in document.about.iter().filter(|(name, _)| {
        [VERDICT, PUBLISHED, "suite", "host", "QEMU", BRANCH_RECORDS, NOTE, "tramplab"]
            .contains(name)
    }) {
        out += &paragraph(&format!("{name}: {value}"), "");
    }
    out + &repeated(run)
}

/// The command that repeats the run, in lines that a shell takes as one. It asks before it attaches
/// anything on the reader's machine.
fn repeated(run: &Run) -> String {
    let words = run
        .command
        .iter()
        .filter(|word| *word != "--yes")
        .map(|word| shell_words::quote(&line(word)).into_owned());
    let mut lines: Vec<String> = vec!["to repeat:".to_owned()];
    for word in words {
        let last = lines.last_mut().expect("it has one");
        // Room for a space and the backslash.
        match last.chars().count().saturating_add(word.chars().count()) < WIDTH.saturating_sub(3) {
            true => *last += &format!(" {word}"),
            false => lines.push(format!("    {word}")),
        }
    }
    lines.join(" \\\n") + "\n"
}

/// Renders a comparison alone. A record always stays on one line.
pub fn render_verdicts(verdicts: &Verdicts, with_listings: bool) -> String {
    let title = verdicts.title.as_ref().map(|title| paragraph(title, ""));
    let mut out = title.unwrap_or_default();
    out += &(paragraph(&verdicts.heading, "") + &paragraph(&verdicts.summary, "  "));
    out.extend(
        verdicts.overlooked.iter().map(|why| paragraph(&format!("compared although {why}"), "  ")),
    );
    for told in &verdicts.findings {
        let lines = told.lines();
        let (head, rest) = lines.split_first().expect("a verdict");
        out += &format!("\n{}", paragraph(head, "  "));
        out.extend(rest.iter().map(|text| paragraph(text, "    ")));
    }
    let changed = verdicts.changed.iter().map(|test| paragraph(test, "  "));
    out += &format!("\n{}", changed.collect::<String>());
    for listing in verdicts.records.iter().filter(|_| with_listings) {
        out += &format!("\n{}{}", paragraph(&listing.caption, ""), plain(&listing.text));
    }
    out
}

fn paragraph(text: &str, indent: &str) -> String {
    let before = |_, word: &str| if indent.is_empty() { before(word) } else { indent };
    wrapped(text, WIDTH, before)
}

/// Programs look at the start of lines, so a space is enough.
fn before(line: &str) -> &'static str {
    if is_taken_for_more(line.split(' ').next().unwrap_or_default()) { " " } else { "" }
}

/// Tells if programs that read mails take a line with this first word for more than text: the next
/// mail of an mbox, a diff or the separator before it, a header, a signature, a quote, or a
/// trailer, which would speak for a person.
fn is_taken_for_more(word: &str) -> bool {
    let is_header = |name: &str| {
        let name = name.to_ascii_lowercase();
        name.ends_with("-by") || HEADERS.contains(&name.as_str())
    };
    ["From", "diff", "--", "***"].contains(&word)
        || ["---", "+++", "@@", ">"].iter().any(|start| word.starts_with(start))
        || word.strip_suffix(':').is_some_and(is_header)
}

const HEADERS: [&str; 12] = [
    "from",
    "to",
    "cc",
    "subject",
    "date",
    "message-id",
    "index",
    "fixes",
    "link",
    "closes",
    "change-id",
    "base-commit",
];

#[cfg(test)]
mod tests {
    use super::*;
    use crate::tests::{run, series};
    use tramplab_model::run::{Cell, Outcome};

    #[test]
    fn mail_text_of_a_series() {
        let mail = render(&series(), &View::default());
        insta::assert_snapshot!(mail);
        let stored = run();
        // A kernel with a long name makes `ARCH/KERNEL/ACCEL/TEST` long.
        let mut long = stored.clone();
        for cell in &mut long.cells {
            cell.id.kernel = format!(
                "{}-{}",
                cell.id.kernel, "of-a-topic-branch-with-a-long-name-and-some-more"
            );
        }
        let failed =
            |cell: &&Cell| matches!(cell.outcome, Outcome::Fail { .. } | Outcome::Error { .. });
        assert!(long.cells.iter().filter(failed).any(|cell| cell.id.name().len() > WIDTH - 6));
        for mail in [mail, render(&stored, &View::default()), render(&long, &View::default())] {
            for line in mail.lines() {
                // Wider lines have no space at which to break.
                assert!(line.chars().count() <= WIDTH || !line.trim().contains(' '), "{line}");
                assert!(!line.contains('\u{1b}') && line.trim_end() == line, "{line:?}");
            }
        }
    }

    /// A title of a stranger, with parts that stay on one line.
    #[test]
    fn no_line_of_a_title_is_a_trailer() {
        for title in ["Acked-by: +1 Somebody", "From +1 on", "-- -> x", "diff -> x"] {
            let mut run = series();
            run.series[0].title = Some(title.to_owned());
            let mail = render(&run, &View::default());
            assert!(mail.starts_with(&format!(" {title}\n")), "{mail}");
        }
    }

    #[test]
    fn shows_listings_as_a_diff() {
        let run = series();
        let view = View { listings: vec!["any".parse().unwrap()], ..View::default() };
        let mail = render(&run, &view);
        let kretprobe =
            mail.split("kretprobe.multi, any (intel-lbr): - base, + head").nth(1).expect(&mail);
        let records: Vec<&str> =
            kretprobe.lines().skip(1).take_while(|line| line.contains("[#")).collect();
        let count = |mark: char| records.iter().filter(|line| line.starts_with(mark)).count();
        // 16 wasted records and the one before them. The series removes three. Records called from
        // another place appear twice.
        assert_eq!(records.len() - count('+'), 17, "{kretprobe}");
        assert_eq!(records.len() - count('-'), 14, "{kretprobe}");
        assert!(!render(&run, &View::default()).contains("[#"));
    }
}
