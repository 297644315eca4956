// SPDX-License-Identifier: MIT OR Apache-2.0
//! Every form of the report, of runs in which every text that others can choose is an attack.

use super::{profiles::base as base_profile, *};
use crate::{
    benchmarks, benchstat, comparison, history as histories, mechanisms, openmetrics, timeline,
};
use comrak::{
    Arena, Options,
    nodes::{AstNode, NodeValue},
    parse_document,
};
use proptest::prelude::*;
use regex::Regex;
use serde_json::Value;
use std::{collections::BTreeSet, sync::LazyLock};
use tramplab_analysis::{
    compare,
    history::{self, Query},
    profile::{self, Names, Of, Profile, Subject, Tree, diff, folded},
};
use tramplab_model::table::Table;
use tramplab_model::text;

pub const ATTACKS: [&str; 7] = [
    "\u{1b}[31m\u{1b}]0;title\u{7}\u{9b}2J\r\u{8}\u{7f}\0",
    "\u{202e}\u{2066}\u{200b}\u{200d}\u{feff}\u{61c}\u{2028}\u{e0041}\u{ad}\u{3164}",
    "a\n::error::x\n##[error]y\nFrom me\n---\ndiff --git a b\nAcked-by: you\n\
     [#00] vfs_read+0x0  ->  x+0x0\n| a | b |\tc",
    "![x](http://e.org) [y](http://e.org) <img src=x> <b>z</b> <!-- --> &#64;octocat @octocat \
     a@b.org https://e.org http://e.org www.e.org #123 GH-7 org/repo#1 :smile: $x$ $$y$$",
    "` `` ``` ````` ~~~~ *a* **b** _c_ __d__ ~~e~~ \\ \\\\ \\| \\` [^1]: [ ] ^f^ ==g==",
    "|\\|\\\\|`|`\\`@a|b`@`c|@d\\|e@f\\",
    "]]></failure><system-out>&\"'%0A::stop-commands::x",
];

/// A run, and the places in it that may have any text: the types still accept the run with it.
struct Stored {
    run: Value,
    places: BTreeSet<String>,
}

impl Stored {
    fn new(run: &Run) -> Stored {
        let run = serde_json::to_value(run).unwrap();
        let mut places = BTreeSet::new();
        collect(&run, "", &mut places);
        let all = places.len();
        places.retain(|place| {
            let mut tried = run.clone();
            poison(&mut tried, "", place, "any text");
            // JUnit rejects a start that is not a time.
            !place.ends_with("/started") && serde_json::from_value::<Run>(tried).is_ok()
        });
        assert!(places.len() > 20, "{} of {all}", places.len());
        Stored { run, places }
    }

    /// Puts the attack in all places.
    fn poisoned(&self, attack: &str) -> Run {
        let mut value = self.run.clone();
        self.places.iter().for_each(|place| poison(&mut value, "", place, attack));
        let run: Run = serde_json::from_value(value).unwrap();
        for text in
            [&run.host.cpu, &run.kernels[0].name, &run.kernels[0].source, &run.cells[0].id.kernel]
        {
            assert!(text.contains(attack), "{text:?}");
        }
        run
    }
}

/// Collects the places of strings. All strings of an array are one place.
fn collect(value: &Value, place: &str, places: &mut BTreeSet<String>) {
    match value {
        Value::String(_) => drop(places.insert(place.to_owned())),
        Value::Array(values) => {
            values.iter().for_each(|value| collect(value, &format!("{place}/*"), places))
        }
        Value::Object(entries) => entries
            .iter()
            .for_each(|(name, value)| collect(value, &format!("{place}/{name}"), places)),
        _ => {}
    }
}

fn poison(value: &mut Value, here: &str, place: &str, attack: &str) {
    match value {
        // Different texts stay different, and equal texts equal.
        Value::String(text) if here == place => *text = format!("{attack}{text} {attack}"),
        Value::Array(values) => {
            values.iter_mut().for_each(|value| poison(value, &format!("{here}/*"), place, attack));
        }
        Value::Object(entries) => {
            entries
                .iter_mut()
                .for_each(|(name, value)| poison(value, &format!("{here}/{name}"), place, attack));
        }
        _ => {}
    }
}

/// The stored runs, with cells of every outcome.
static STORED: LazyLock<[Stored; 4]> = LazyLock::new(|| {
    let mut stored = run();
    for (cell, outcome) in stored.cells.iter_mut().zip([
        Outcome::Fail { reasons: vec!["it".to_owned(), "is".to_owned()] },
        Outcome::Error { kind: ErrorKind::Guest, message: "said".to_owned() },
        Outcome::Error { kind: ErrorKind::Build, message: "a.c:1: error\nmore".to_owned() },
    ]) {
        cell.outcome = outcome;
        cell.console_tail = vec!["last".to_owned()];
    }
    let skipped = stored.cells.last_mut().unwrap();
    skipped.outcome = Outcome::Skip { reason: "no such".to_owned() };
    skipped.measurement = None;
    [stored, two_architectures(), series(), hardware()].map(|mut run| {
        // One cell of each kind is enough for a kernel.
        let mut seen = BTreeSet::new();
        run.cells.retain(|cell| {
            let kind = cell.id.test.name().split('/').next().map(str::to_owned);
            let kernel = (cell.id.kernel.clone(), cell.id.arch);
            !matches!(cell.outcome, Outcome::Pass) || seen.insert((kernel, kind))
        });
        Stored::new(&run)
    })
});

pub fn runs(attack: &str) -> impl Iterator<Item = Run> {
    STORED.iter().map(move |stored| stored.poisoned(attack))
}

pub fn assert_seen(form: &str, text: &str) {
    for line in text.split('\n') {
        let hidden = line.chars().find(|&c| !text::is_seen(c));
        assert_eq!(hidden, None, "{form}: {line:?}");
    }
}

#[test]
fn no_text_moves_a_cursor_or_hides() {
    for attack in ATTACKS {
        for run in runs(attack) {
            let view = with_listings();
            let plain = terminal::render(&run, &view, terminal::Style::default());
            assert_seen("terminal", &plain);
            assert_eq!(
                strip_ansi_escapes::strip_str(terminal::render(
                    &run,
                    &view,
                    terminal::Style { colour: true, width: None }
                )),
                plain
            );
            run.cells.iter().for_each(|cell| assert_seen("line", &cell_line(cell)));
            assert_seen("Markdown", &markdown::render(&run, &view));
            assert_seen("mechanisms", &mechanisms::render(&mechanisms::data::data(&run)));
            assert_seen("mail", &mail::render(&run, &view));
            assert_seen("GitHub", &github::annotations(&run));
            assert_seen("summary", &github::summary(&run, &view, 20_000));
            let xml = junit::render(&run).unwrap();
            parse(&xml);
            assert_seen("JUnit", str::from_utf8(&xml).unwrap());
            let go = benchstat::render(&run, None);
            assert_seen("benchstat", &go);
            let keys = ["kernel: ", "arch: ", "accel: ", "model: ", "# ", "Benchmark", "Unit "];
            let is_known = |line: &str| keys.iter().any(|key| line.starts_with(key));
            assert!(go.lines().all(|line| line.is_empty() || is_known(line)), "{go}");
            assert_seen("time line", &timeline::render(&run));
            assert_seen("github-action-benchmark", &benchmarks::github(&run, None));
            assert_seen("Bencher", &benchmarks::bencher(&run, None));
            let found = history::of(&[run.clone(), run], None, &Query::default());
            assert!(!found.histories.is_empty());
            for history in &found.histories {
                let table = histories::table(history, &histories::Told::default());
                assert_seen("history", &terminal::table(&table));
                assert_seen("history", &markdown::table(&table));
                assert_columns(&markdown::table(&table));
            }
            let metrics = openmetrics::render(&found.histories);
            assert_seen("OpenMetrics", &metrics);
            assert!(metrics.lines().all(|line| line.starts_with(['#', 't'])), "{metrics}");
            assert_seen("overview", &terminal::table(&histories::overview(&found.histories)));
        }
    }
}

#[test]
fn no_text_begins_a_line_with_a_meaning() {
    let starts = ["From ", "---", "+++", "diff --git", "@@", "-- ", ">", "Acked-by:"];
    for attack in ATTACKS {
        for run in runs(attack) {
            let mail = mail::render(&run, &View::default());
            for line in mail.lines() {
                assert!(!starts.iter().any(|start| line.starts_with(start)), "{line:?}");
            }
            let commands = github::annotations(&run);
            for line in commands.lines().filter(|line| line.trim_start().starts_with("::")) {
                let known = ["::error ", "::warning ", "::group::", "::endgroup::"];
                assert!(known.iter().any(|start| line.starts_with(start)), "{line:?}");
            }
            assert!(!commands.lines().any(|line| line.starts_with("| ") && line.contains("##[")));
            // Listings have only the run's records, although the attack contains one.
            let listed = terminal::render(&run, &with_listings(), terminal::Style::default());
            assert!(!listed.lines().any(|line| line.starts_with("[#00] vfs_read+0x0")), "{listed}");
            let cells = run.cells.iter().map(cell_line).collect::<Vec<_>>();
            assert!(
                cells
                    .iter()
                    .flat_map(|cell| cell.lines().skip(1))
                    .all(|line| line.starts_with("      "))
            );
        }
    }
}

fn options() -> Options<'static> {
    let mut options = Options::default();
    let extension = &mut options.extension;
    extension.table = true;
    extension.autolink = true;
    extension.strikethrough = true;
    extension.tasklist = true;
    extension.footnotes = true;
    extension.math_dollars = true;
    extension.math_code = true;
    extension.alerts = true;
    options
}

/// Asserts that a page has only our headings, lists, tables, code and folds, and that GitHub links
/// no text outside of code.
fn assert_harmless(page: &str) {
    let arena = Arena::new();
    for node in parse_document(&arena, page, &options()).descendants() {
        match &node.data.borrow().value {
            NodeValue::Document
            | NodeValue::Paragraph
            | NodeValue::Heading(_)
            | NodeValue::List(_) => {}
            NodeValue::Item(_)
            | NodeValue::Table(_)
            | NodeValue::TableRow(_)
            | NodeValue::TableCell => {}
            NodeValue::Code(_)
            | NodeValue::CodeBlock(_)
            | NodeValue::SoftBreak
            | NodeValue::Strong => {}
            NodeValue::HtmlBlock(html) => assert_folds(&html.literal),
            NodeValue::Text(text) => assert_unlinked(text),
            other => panic!("{other:?}"),
        }
    }
    assert_columns(page);
}

static CODE: LazyLock<Regex> = LazyLock::new(|| Regex::new("<code>[^<>]*</code>").unwrap());
/// Text that GitHub links or draws as a picture.
static LINKED: LazyLock<Regex> = LazyLock::new(|| {
    Regex::new(r"(?i)@\w|#[1-9]|gh-[1-9]|://|www\.|:[a-z+][a-z0-9_+-]*:").unwrap()
});

fn assert_folds(html: &str) {
    let inner = html
        .trim_end()
        .strip_prefix("<details><summary>")
        .map(|rest| rest.strip_suffix("</summary>"));
    match inner {
        Some(Some(caption)) => {
            let rest = CODE.replace_all(caption, "");
            assert!(!rest.contains(['<', '>']), "{html}");
            assert_unlinked(&rest);
        }
        _ => assert_eq!(html.trim_end(), "</details>"),
    }
}

fn assert_unlinked(text: &str) {
    assert!(!LINKED.is_match(text), "{text}");
}

/// Asserts that every row of a table has as many cells as its header. It counts bars, because the
/// parser fills up and cuts off rows.
fn assert_columns(page: &str) {
    let mut columns = None;
    let mut fence: Option<&str> = None;
    for line in page.lines() {
        match fence {
            Some(mark) if line == mark => fence = None,
            Some(_) => continue,
            None if line.starts_with("```") => fence = Some(line),
            None => {}
        }
        if !line.starts_with("| ") {
            columns = None;
            continue;
        }
        let mut bars = 0;
        let mut characters = line.chars();
        while let Some(c) = characters.next() {
            match c {
                '\\' => drop(characters.next()),
                '|' => bars += 1,
                _ => {}
            }
        }
        assert_eq!(bars, *columns.get_or_insert(bars), "{line}");
    }
}

#[test]
fn markdown_of_a_hostile_run_links_mentions_and_draws_nothing() {
    for attack in ATTACKS {
        for run in runs(attack) {
            assert_harmless(&markdown::render(&run, &with_listings()));
            for series in &run.series {
                let verdicts = comparison::verdicts(&compare::whole(&run, series, None), [None; 2]);
                assert_harmless(&markdown::render_verdicts(&verdicts));
            }
        }
    }
    // The check notices links and mark-up.
    for linked in [
        "![x](y)",
        "[x](y)",
        "www.e.org",
        "<b>",
        "a *b*",
        "@me",
        "see #1",
        "| a | b |\n| --- | --- |\n| a |",
    ] {
        let found = std::panic::catch_unwind(|| assert_harmless(linked));
        assert!(found.is_err(), "{linked}");
    }
}

/// The text that a reader sees after GitHub has read the Markdown.
fn shown<'a>(node: &'a AstNode<'a>) -> String {
    let text = |node: &'a AstNode<'a>| match &node.data.borrow().value {
        NodeValue::Text(text) => text.to_string(),
        NodeValue::Code(code) => code.literal.clone(),
        NodeValue::SoftBreak => "\n".to_owned(),
        _ => String::new(),
    };
    node.descendants().map(text).collect()
}

/// Writes a table of these texts as Markdown and reads it back.
fn read_back(texts: &[String]) -> (Vec<String>, String) {
    let table = Table {
        caption: texts[0].clone(),
        header: texts.to_vec(),
        rows: vec![texts.to_vec()],
        notes: vec![texts[0].clone()],
    };
    let page = markdown::table(&table);
    let arena = Arena::new();
    let root = parse_document(&arena, &page, &options());
    let is = |value: fn(&NodeValue) -> bool| {
        root.descendants().filter(move |node| value(&node.data.borrow().value)).collect::<Vec<_>>()
    };
    let cells = is(|value| matches!(value, NodeValue::TableCell));
    let notes = is(|value| matches!(value, NodeValue::Paragraph));
    let kinds = root.children().count();
    assert!(kinds <= 3, "{page}");
    assert_harmless(&page);
    (cells.into_iter().map(shown).collect(), notes.last().map_or(String::new(), |note| shown(note)))
}

fn assert_shows_as_it_is(texts: &[String]) {
    let expected: Vec<String> =
        texts.iter().map(|text| text::line(text).trim().to_owned()).collect();
    let (cells, note) = read_back(texts);
    assert_eq!(cells, [expected.clone(), expected.clone()].concat());
    assert_eq!(note, expected[0]);
}

#[test]
fn markdown_shows_the_text_it_is_made_of() {
    for attack in ATTACKS {
        assert_shows_as_it_is(&[attack.to_owned(), "x".to_owned(), format!("{attack} {attack}")]);
    }
    for start in [
        "- a", "+ a", "* a", "1. a", "12) a", "-", "---", "===", ":-:", "-:", "# a", "> a", "~~~",
        "```", "    a", "1)",
    ] {
        assert_shows_as_it_is(&[start.to_owned(), start.to_owned()]);
    }
}

/// Short texts made of characters that mean something to Markdown.
const MARKS: &str = "[-a1 .:#@`|\\\\_*!\\[\\]()<>&;~$+=/\u{202e}\u{e9}]{0,24}";

proptest! {
    #[test]
    fn markdown_shows_any_text_as_it_is(texts in proptest::collection::vec(MARKS, 2..4)) {
        assert_shows_as_it_is(&texts);
    }
}

#[test]
fn prints_profiles_with_hostile_names() {
    for attack in ATTACKS {
        let mut value = serde_json::to_value(base_profile()).unwrap();
        let mut places = BTreeSet::new();
        collect(&value, "", &mut places);
        for place in &places {
            let mut tried = value.clone();
            poison(&mut tried, "", place, attack);
            if serde_json::from_value::<Profile>(tried.clone()).is_ok() {
                value = tried;
            }
        }
        let hostile: Profile = serde_json::from_value(value).unwrap();
        assert!(hostile.functions[0].name.contains(attack) && hostile.cell.contains(attack));
        let profiles = [hostile];
        let subject = Subject::new(&profiles, Of::All);
        let (mut tree, mut sides) = (Tree::<1>::new(Names::Stable), Tree::<2>::new(Names::Stable));
        tree.add(&profiles[0], Of::All, 0);
        sides.add(&base_profile(), Of::All, 0);
        sides.add(&profiles[0], Of::All, 1);
        let (mut text, mut stacks) = (Vec::new(), Vec::new());
        profile::text::render(&subject, &tree, 0.0, &mut text).unwrap();
        folded::write(&sides, &mut stacks).unwrap();
        let text = String::from_utf8(text).unwrap();
        assert_seen("perf's text", &text);
        assert_seen("folded", str::from_utf8(&stacks).unwrap());
        assert_harmless(&markdown::fenced(&text));
        let table = diff::table(&subject, &subject, &sides);
        assert_seen("table", &terminal::table(&table));
        assert_harmless(&markdown::table(&table));
        let (mut one, mut both) = (Vec::new(), Vec::new());
        profile::flame::render(&subject, &tree, &mut one).unwrap();
        profile::flame::render_difference(&subject, &subject, &sides, true, &mut both).unwrap();
        for svg in [one, both] {
            parse(&svg);
            assert_seen("SVG", &String::from_utf8(svg).unwrap().replace(['\r', '\t'], " "));
        }
    }
}
