// SPDX-License-Identifier: MIT OR Apache-2.0
//! Every form of the report, over one stored run.

use super::{
    cell_line,
    content::{Document, View},
    github, junit, kcidb, mail, markdown, terminal,
};
use proptest::prelude::*;
use quick_xml::events::Event;
use std::collections::BTreeSet;
use tramplab_analysis::{
    branch::{Filter, Model, waste},
    compare,
    profile::{Phase, Space, Unit},
};
use tramplab_model::run::{
    Accel, Backend, BranchSource, Built, Clock, Delivered, ErrorKind, Joined, Measurement, Outcome, Run, Test,
};
use tramplab_protocol::{
    Beside, Functions, Mechanism,
    message::{Counter, Explain},
};

mod hostile;
mod profiles;

use profiles::base as base_profile;
use tramplab_model::table::Table;

/// Recorded with `testdata/fixture.yaml`, as that says, and shortened by `testdata/store.py`: the shipped series `lbr-helpers`
/// on 6.12, patch by patch.
pub fn series() -> Run {
    serde_json::from_str(include_str!("../../testdata/lbr-helpers.json")).expect("the recorded run")
}

/// Recorded with `testdata/stored.yaml` and shortened by `testdata/store.py`, as these say.
pub fn run() -> Run {
    serde_json::from_str(include_str!("../../testdata/run.json")).expect("the stored run")
}

fn with_listings() -> View {
    View {
        model: Some(Model::AmdLbrV2),
        listings: vec!["any".parse().unwrap(), "any_call|cond".parse().unwrap()],
    }
}

#[test]
fn terminal_text() {
    insta::assert_snapshot!(terminal::render(&run(), &View::default(), terminal::Style::default()));
}

/// One kernel on two architectures: 7.2, waste of fexit, fexit.multi and kprobe.multi.
#[test]
fn terminal_text_of_two_architectures() {
    let run: Run = serde_json::from_str(include_str!("../../testdata/two-architectures.json")).unwrap();
    insta::assert_snapshot!(terminal::render(&run, &View::default(), terminal::Style::default()));
    let cells = junit::render(&run).unwrap();
    let count =
        |arch: &str| String::from_utf8_lossy(&cells).matches(&format!("classname=\"{arch}/7.2\"")).count();
    assert_eq!((count("x86_64"), count("arm64")), (3, 3));
}

#[test]
fn terminal_text_with_listings() {
    insta::assert_snapshot!(terminal::render(&run(), &with_listings(), terminal::Style::default()));
}

/// The tables of useful records, with their notes.
fn useful(run: &Run, model: Option<Model>) -> Vec<Table> {
    let view = View { model, listings: Vec::new() };
    let sections = Document::new(run, &view).sections;
    let tables = sections.into_iter().flat_map(|section| section.tables);
    tables.filter(|table| table.caption.starts_with("Useful ")).collect()
}

#[test]
fn useful_records_are_of_depths_that_the_model_has() {
    for model in [Model::IntelLbr, Model::ArchLbr, Model::AmdLbrV2] {
        let tables = useful(&run(), Some(model));
        assert!(!tables.is_empty(), "{model}");
        for table in tables {
            let fexit = table.rows.iter().find(|row| row[0] == "fexit").expect("a row of fexit");
            assert_eq!(fexit[1].split(" / ").count(), model.depths().len(), "{model}: {fexit:?}");
        }
    }
    // 11 wasted of 16.
    assert_eq!(useful(&run(), Some(Model::AmdLbrV2))[0].rows[1][1], "5");
}

#[test]
fn useful_records_say_how_many_the_driver_takes() {
    let takes = |model, paravirt_xxl| {
        let mut run = run();
        run.kernels.iter_mut().for_each(|kernel| kernel.paravirt_xxl = paravirt_xxl);
        // A stored run says it again.
        let run: Run = serde_json::from_str(&serde_json::to_string(&run).unwrap()).unwrap();
        useful(&run, Some(model)).remove(0).notes.remove(0)
    };
    let table = [
        (Model::IntelLbr, "takes 5 (any_call 3, any_return 2, call 3)"),
        (Model::ArchLbr, "takes 3 (any_call 2, any_return 1, call 2)"),
        (Model::AmdLbrV2, "takes 5 (any_call 3, any_return 2, call 3)"),
    ];
    for (model, expected) in table {
        let [with, without, unknown] = [Some(true), Some(false), None].map(|xxl| takes(model, xxl));
        assert!(with.contains(expected), "{model}: {with}");
        assert!(without.contains("takes none"), "{model}: {without}");
        assert!(unknown.contains(expected) && unknown.contains(" if "), "{model}: {unknown}");
    }
    let arm64: Run = serde_json::from_str(include_str!("../../testdata/two-architectures.json")).unwrap();
    let brbe = useful(&arm64, None).into_iter().find(|table| table.caption.ends_with("(brbe)"));
    assert!(brbe.expect("arm64's table").notes[0].contains("unknown"));
}

#[test]
fn host_of_another_vendor_adds_a_hint_and_changes_no_number() {
    let mut run: Run = serde_json::from_str(include_str!("../../testdata/two-architectures.json")).unwrap();
    let on = |run: &mut Run, cpu: &str, model| {
        run.host.cpu = cpu.to_owned();
        useful(run, model)
    };
    let hints = |tables: &[Table]| {
        let has = |table: &Table| table.notes.iter().any(|note| note.contains("--model amd-lbrv2"));
        tables.iter().filter(|table| has(table)).count()
    };
    let intel = on(&mut run, "Intel(R) Xeon(R) Processor", None);
    let amd = on(&mut run, "AMD EPYC 9654 96-Core Processor", None);
    // Of x86-64's table, not of arm64's.
    assert_eq!((intel.len(), hints(&intel), hints(&amd)), (2, 0, 1));
    for (intel, amd) in intel.iter().zip(&amd) {
        assert_eq!((&intel.caption, &intel.rows), (&amd.caption, &amd.rows));
    }
    let asked = on(&mut run, "AMD EPYC 9654 96-Core Processor", Some(Model::AmdLbrV2));
    assert_eq!(hints(&asked), 0);
}

#[test]
fn colour_adds_escapes_and_nothing_else() {
    let plain = terminal::render(&run(), &with_listings(), terminal::Style::default());
    let colour = terminal::render(&run(), &with_listings(), terminal::Style { colour: true, width: None });
    assert!(!plain.contains('\x1b') && colour.contains('\x1b'));
    assert_eq!(strip_ansi_escapes::strip_str(colour), plain);
}

#[test]
fn markdown_text() {
    insta::assert_snapshot!(markdown::render(&run(), &with_listings()));
}

#[test]
fn records_that_programs_were_handed_are_told() {
    let mut run = run();
    let told = |run: &Run| {
        terminal::render(run, &View::default(), terminal::Style::default()).matches("Experiment: ").count()
    };
    assert_eq!(told(&run), 0);
    for cell in &mut run.cells {
        if let (Some(Measurement::LbrWaste(waste)), "lbr_waste/fexit") =
            (&mut cell.measurement, cell.id.test.name().as_str())
        {
            let (model, filter) = ("intel-lbr".to_owned(), "any".to_owned());
            waste.delivered = Some(Delivered { model, filter, depth: 32, records: 32 });
        }
    }
    let text = terminal::render(&run, &View::default(), terminal::Style::default());
    assert!(text.contains("handed 32 entries each (intel-lbr, any), all as in the trace: fexit."), "{text}");
    let again: Run = serde_json::from_str(&serde_json::to_string(&run).unwrap()).unwrap();
    assert_eq!(told(&again), told(&run));
}

#[test]
fn what_is_attached_beside_has_a_row_of_its_own() {
    let mut run = run();
    let cell = run.cells.iter().find(|cell| cell.id.test.name() == "trigger/fexit").expect("a trigger cell");
    let mut beside = cell.clone();
    let Test::Trigger { beside: set, .. } = &mut beside.id.test else { unreachable!("found by its name") };
    *set = [Beside::Mechanism(Mechanism::KprobeMulti), Beside::FunctionTracer].into_iter().collect();
    run.cells.push(beside);
    let text = terminal::render(&run, &with_listings(), terminal::Style::default());
    let rows = |name: &str| text.lines().filter(|line| line.starts_with(&format!(" {name} "))).count();
    // Of its own kernel, and of all side by side.
    assert_eq!(rows("fexit+kprobe.multi+function_tracer"), 2, "{text}");
    assert!(
        text.contains("fexit+kprobe.multi+function_tracer of bpf_fentry_test1, a hit at entry"),
        "{text}"
    );
}

/// Patch by patch, base against head, listings side by side.
#[test]
fn terminal_text_of_a_series() {
    insta::assert_snapshot!(terminal::render(&series(), &View::default(), terminal::Style::default()));
}

#[test]
fn markdown_text_of_a_series() {
    insta::assert_snapshot!(markdown::render(&series(), &View::default()));
}

/// A walk that ended early: what was not built or not reached is told, and an error is no number.
#[test]
fn a_series_that_breaks_is_told_patch_by_patch() {
    let mut run = series();
    let series = &mut run.series[0];
    series.steps[1].built = Built::Failed { message: "oh".to_owned() };
    series.steps[2].built = Built::NotReached;
    let kernels = [series.steps[1].kernel.clone(), series.steps[2].kernel.clone()];
    run.cells.retain(|cell| !kernels.contains(&cell.id.kernel));
    run.cells[1].outcome = Outcome::Error { kind: ErrorKind::Panic, message: "ah".to_owned() };
    let text = terminal::render(&run, &View::default(), terminal::Style::default());
    let table = text.split("Patch by patch").nth(1).and_then(|rest| rest.split("\n\n").next()).unwrap();
    for (words, line) in
        ["1 of 5 cells: panic", "does not build", "not reached"].iter().zip(table.lines().skip(3))
    {
        assert!(line.ends_with(words), "{words}: {table}");
    }
    assert!(table.ends_with("No metric changed."), "{table}");
    assert!(markdown::render(&run, &View::default()).contains("not reached"));
    parse(&junit::render(&run).unwrap());
}

#[test]
fn junit_xml() {
    insta::assert_snapshot!(String::from_utf8(junit::render(&run()).unwrap()).unwrap());
}

#[test]
fn stored_counts_are_those_of_the_stored_records() {
    let mut points = 0;
    for cell in run().cells {
        let Some(Measurement::LbrWaste(measured)) = cell.measurement else { continue };
        for point in measured.points {
            let counted = waste::table(cell.id.arch, &point.records, &measured.function);
            assert_eq!(point.wasted, counted, "{} {}", measured.mechanism, point.point);
            points += 1;
        }
    }
    assert!(points > 0);
}

#[test]
fn every_report_of_a_series_shows_the_notes_of_its_run() {
    let text = |run: &Run| {
        let view = View::default();
        [
            terminal::render(run, &view, terminal::Style::default()),
            markdown::render(run, &view),
            mail::render(run, &view),
            github::annotations(run),
            github::summary(run, &view, github::SUMMARY),
        ]
    };
    let mut run = series();
    assert_eq!(run.notes, [""; 0], "an older file has none");
    let before = text(&run);
    let notes = ["left out one", "the suite is another"];
    run.notes = notes.map(str::to_owned).to_vec();
    let json = serde_json::to_value(&run).unwrap();
    assert_eq!(json["notes"], serde_json::json!(notes));
    for (report, before) in text(&run).iter().zip(before) {
        for note in notes {
            assert!(report.contains(note) && !before.contains(note), "{note}: {report}");
        }
    }
    // Of a stored run that somebody wrote.
    run.notes = vec!["\u{1b}[2J\u{202e}evil\n::error::x".to_owned(); 9];
    for report in text(&run) {
        assert!(report.contains("evil") && !report.contains(['\u{1b}', '\u{202e}']), "{report}");
        assert!(!report.lines().any(|line| line.starts_with("::error::x")), "{report}");
    }
    assert!(github::annotations(&run).contains("and 4 more"), "{}", github::annotations(&run));
}

const SCHEMA_PAGE: &str = include_str!("../../../docs/run-json.md");

fn documented_example() -> &'static str {
    let (_, rest) = SCHEMA_PAGE.split_once("```json\n").expect("an example");
    rest.split_once("```").expect("its end").0
}

#[test]
fn the_documented_example_is_a_run() {
    let run: Run = serde_json::from_str(documented_example()).expect("a run");
    let value: serde_json::Value = serde_json::from_str(documented_example()).unwrap();
    assert_eq!(serde_json::to_value(&run).unwrap(), value, "no field is left out");
    assert_eq!(run.schema, tramplab_model::run::SCHEMA);
    // Counted as the page says, for the counts it shows.
    let Some(Measurement::LbrWaste(measured)) = &run.cells[0].measurement else { panic!("no waste") };
    let counted = waste::table(run.cells[0].id.arch, &measured.points[0].records, &measured.function);
    for (model, filters) in &measured.points[0].wasted {
        for (filter, count) in filters {
            assert_eq!(counted[model][filter], *count, "{model} {filter}");
        }
    }
}

/// Every key of an object, and every string that names an enum's variant.
fn keys(value: &serde_json::Value, found: &mut BTreeSet<String>) {
    match value {
        serde_json::Value::Object(map) => map.iter().for_each(|(key, value)| {
            found.insert(key.clone());
            keys(value, found);
        }),
        serde_json::Value::Array(values) => values.iter().for_each(|value| keys(value, found)),
        _ => {}
    }
}

/// As it is written.
fn variant(value: impl serde::Serialize) -> String {
    serde_json::to_value(value).unwrap().as_str().expect("a variant without fields").to_owned()
}

#[test]
fn every_field_and_variant_is_documented() {
    let mut names = BTreeSet::new();
    let series = include_str!("../../testdata/lbr-helpers.json");
    for text in [documented_example(), include_str!("../../testdata/run.json"), series] {
        let run: Run = serde_json::from_str(text).unwrap();
        keys(&serde_json::to_value(&run).unwrap(), &mut names);
    }
    // Names of models and filters, which are keys too, are documented with the definitions.
    let elsewhere = |name: &String| name.parse::<Model>().is_ok() || name.parse::<Filter>().is_ok();
    names.retain(|name| !elsewhere(name));
    names.extend(Mechanism::ALL.map(|m| m.name().to_owned()));
    names.extend(Phase::ALL.map(|phase| phase.name().to_owned()));
    names.extend(error_kinds().into_iter().map(variant));
    names.extend([Clock::Free, Clock::Exact].map(variant));
    names.extend([Backend::Qemu, Backend::VirtmeNg].map(variant));
    names.extend([Explain::Exact, Explain::Sampled].map(variant));
    names.extend(["notes", "shard", "partition", "joined", "runs", "expected"].map(str::to_owned));
    names.extend([Unit::Instructions, Unit::Samples, Unit::Nanoseconds].map(variant));
    names.extend([Space::Kernel, Space::User].map(variant));
    names.insert(variant(Functions::All));
    let (page, _) = SCHEMA_PAGE.split_once("## Example").expect("the example is last");
    let undocumented: Vec<_> = names
        .iter()
        .filter(|name| !page.contains(&format!("`{name}`")) && !page.contains(&format!("\"{name}\"")))
        .collect();
    assert!(undocumented.is_empty(), "not in docs/run-json.md: {undocumented:?}");
    assert!(names.len() > 60, "{names:?}");
}

/// All of them: the compiler asks for a new one here.
fn error_kinds() -> Vec<ErrorKind> {
    use ErrorKind::*;
    let mut kinds = vec![Panic];
    loop {
        kinds.push(match kinds[kinds.len() - 1] {
            Panic => Oops,
            Oops => RcuStall,
            RcuStall => HungTask,
            HungTask => Lockup,
            Lockup => Warning,
            Warning => Silence,
            Silence => Build,
            Build => BootTimeout,
            BootTimeout => Timeout,
            Timeout => QemuExit,
            QemuExit => QemuStart,
            QemuStart => Protocol,
            Protocol => Guest,
            Guest => Trace,
            Trace => Harness,
            Harness => return kinds,
        });
    }
}

/// Element names and the text in them, in order; panics on what is no XML.
fn parse(xml: &[u8]) -> Vec<(String, String)> {
    let mut reader = quick_xml::Reader::from_reader(xml);
    let mut elements: Vec<(String, String)> = Vec::new();
    let mut depth = 0;
    loop {
        match reader.read_event().expect("well-formed XML") {
            Event::Eof => break,
            Event::Start(start) | Event::Empty(start) => {
                for attribute in start.attributes() {
                    let value = attribute.expect("an attribute");
                    value.normalized_value(quick_xml::XmlVersion::Implicit1_0).expect("its value");
                }
                elements.push((start.name().as_ref().to_owned(), String::new()));
                depth += 1;
            }
            Event::CData(data) => elements.last_mut().unwrap().1 += &*data,
            _ => {}
        }
    }
    assert!(depth > 0);
    elements
}

fn texts(xml: &[u8], element: &str) -> Vec<String> {
    parse(xml).into_iter().filter(|(name, _)| name == element).map(|(_, text)| text).collect()
}

/// What consoles have been seen to hold, and what they might.
#[test]
fn a_hostile_console_stays_xml() {
    let table = [
        ("\x1b[1;31mBUG\x1b[0m", "BUG"),
        ("]]>", "]]>"),
        ("a]]]]>>b", "a]]]]>>b"),
        ("<testcase/>&amp;&#0;", "<testcase/>&amp;&#0;"),
        ("nul\0 bell\x07 back\x08 del\x7f csi\u{9b}31m", "nul bell back del csi31m"),
        ("fffe\u{fffe} ffff\u{ffff} bad\u{fffd}", "fffe\u{fffd} ffff\u{fffd} bad\u{fffd}"),
        ("]]\u{0}>", "]]>"),
    ];
    for (hostile, shown) in table {
        let mut run = run();
        run.cells.truncate(1);
        run.cells[0].console_tail = vec!["first".to_owned(), hostile.to_owned()];
        run.cells[0].outcome = Outcome::Fail { reasons: vec![hostile.to_owned()] };
        let xml = junit::render(&run).unwrap();
        assert_eq!(texts(&xml, "system-out"), [format!("first\n{shown}")], "{hostile:?}");
        assert_eq!(texts(&xml, "failure"), [shown], "{hostile:?}");
        assert!(!xml.contains(&0x1b));
    }
}

#[test]
fn a_console_that_holds_a_fence_has_a_longer_one_around_it() {
    let mut run = run();
    run.cells.retain(|cell| !cell.console_tail.is_empty());
    run.cells[0].console_tail.push("Code: ``` <b>&amp; 48 8b".to_owned());
    let text = markdown::render(&run, &View::default());
    let (_, fenced) = text.split_once("\n````\n").expect("a fence");
    let (console, rest) = fenced.split_once("\n````\n").expect("its end");
    assert!(console.ends_with("\nCode: ``` <b>&amp; 48 8b") && !rest.contains("````"), "{text}");
}

#[test]
fn junit_tells_the_outcomes_apart() {
    let xml = junit::render(&run()).unwrap();
    let count = |element| texts(&xml, element).len();
    assert_eq!((count("testcase"), count("failure"), count("error"), count("skipped")), (21, 1, 1, 3));
}

#[test]
fn junit_names_stay_apart_when_a_kernel_ran_under_both_accelerators() {
    let mut run = run();
    let mut again = run.cells.clone();
    again.iter_mut().for_each(|cell| cell.id.accel = Accel::Kvm);
    run.cells.extend(again);
    let xml = String::from_utf8(junit::render(&run).unwrap()).unwrap();
    let key = |line: &str| {
        let attribute = |name: &str| {
            line.split(&format!(" {name}=\"")).nth(1).unwrap().split('"').next().unwrap().to_owned()
        };
        (attribute("classname"), attribute("name"))
    };
    let mut keys: Vec<_> = xml.split("<testcase").skip(1).map(key).collect();
    let all = keys.len();
    keys.sort();
    keys.dedup();
    assert_eq!((all, keys.len()), (42, 42));
}

#[test]
fn a_start_that_is_no_time_is_named() {
    let mut run = run();
    run.started = "yesterday".to_owned();
    assert!(junit::render(&run).unwrap_err().to_string().contains("`yesterday`"));
}

#[test]
fn an_empty_or_interrupted_run_renders() {
    let mut run = run();
    run.cells.clear();
    run.interrupted = true;
    for text in [
        terminal::render(&run, &with_listings(), terminal::Style::default()),
        markdown::render(&run, &with_listings()),
    ] {
        assert!(text.contains("0 cells") && text.contains("interrupted"), "{text}");
    }
    // A killed run that had selected nothing yet, and one of too few shards: nothing in them passed.
    run.joined = Some(Joined { runs: vec!["a".to_owned()], expected: 2 });
    let text = terminal::render(&run, &View::default(), terminal::Style::default());
    assert!(text.contains("Only 1 of 2 runs are here."), "{text}");
    let xml = junit::render(&run).unwrap();
    parse(&xml);
    assert_eq!(String::from_utf8(xml).unwrap().matches("<error").count(), 2);
}

/// Whoever sees only what passed would take it for all.
#[test]
fn what_an_interrupted_run_did_not_come_to_is_in_every_report() {
    let mut run = run();
    let all = run.cells.len();
    run.interrupted = true;
    run.missing = run.cells.drain(all - 2..).map(|cell| cell.id).collect();
    let names = [0, 1].map(|place| run.missing[place].name()).join(", ");
    let said = format!("interrupted: 2 of {all} cells left no result: {names}.");
    let document = mail::render(&run, &View::default());
    let annotations = github::annotations(&run);
    for text in [
        terminal::render(&run, &View::default(), terminal::Style::default()),
        markdown::render(&run, &View::default()),
        document,
        annotations,
    ] {
        assert!(text.replace('\n', " ").contains(&said), "{text}");
    }
    let xml = String::from_utf8(junit::render(&run).unwrap()).unwrap();
    let kcidb = String::from_utf8(kcidb::render(&run, &kcidb::Origin::default()).unwrap()).unwrap();
    assert_eq!(xml.matches("the run was interrupted").count(), 4, "as a message and as a trace: {xml}");
    assert_eq!(kcidb.matches(r#""status": "MISS""#).count(), 2);
    // One that goes on, or was killed.
    run.finished = None;
    let text = terminal::render(&run, &View::default(), terminal::Style::default());
    assert!(text.contains(&said.replace("interrupted", "The run has not ended")), "{text}");
    let xml = String::from_utf8(junit::render(&run).unwrap()).unwrap();
    assert_eq!(xml.matches("the run has not ended").count(), 4, "{xml}");
}

proptest! {
    #[test]
    fn any_text_of_a_guest_stays_xml_and_prints_no_control_characters(text in any::<String>(), more in "[\\x00-\\xff\u{fffe}>\\]`]{0,40}") {
        let mut run = run();
        run.cells.truncate(2);
        run.cells[0].console_tail = vec![more.clone(), text.clone()];
        run.cells[0].outcome = Outcome::Error { kind: ErrorKind::Oops, message: more.clone() };
        run.cells[1].outcome = Outcome::Skip { reason: text };
        run.cells[1].measurement = None;
        parse(&junit::render(&run).unwrap());
        for text in [terminal::render(&run, &View::default(), terminal::Style::default()), markdown::render(&run, &View::default())] {
            prop_assert!(!text.chars().any(|c| c.is_control() && c != '\n'), "{text:?}");
        }
    }
}

/// The stored run as the CPU's own LBR would have given it, with two records of the driver's before it stopped the ring.
pub fn hardware() -> Run {
    let mut run = run();
    for cell in &mut run.cells {
        cell.id.accel = Accel::Kvm;
        let Some(Measurement::LbrWaste(waste)) = &mut cell.measurement else { continue };
        waste.source = BranchSource::Hardware;
        waste.depth = Some(32);
        for point in &mut waste.points {
            point.wasted.retain(|model, _| model == Model::IntelLbr.name());
            let entry = &mut point.records[0];
            entry.to.symbol = Some("intel_pmu_snapshot_branch_stack".to_owned());
            entry.to.offset = 0;
            let own = entry.clone();
            point.records.splice(0..0, [own.clone(), own]);
            for record in &mut point.records[..2] {
                record.to.offset = 8;
            }
        }
    }
    run
}

#[test]
fn records_of_hardware_are_marked_in_every_form() {
    let (run, plain) = (hardware(), run());
    // As if a modelled CPU were asked for that is not the one.
    let view = with_listings();
    let forms = |run: &Run| {
        [
            ("terminal", terminal::render(run, &view, terminal::Style::default())),
            ("markdown", markdown::render(run, &view)),
            ("mail", mail::render(run, &view)),
            ("JUnit", String::from_utf8(junit::render(run).unwrap()).unwrap()),
            ("GitHub", github::summary(run, &view, github::SUMMARY)),
            ("KCIDB", String::from_utf8(kcidb::render(run, &kcidb::Origin::default()).unwrap()).unwrap()),
            ("JSON", serde_json::to_string(run).unwrap()),
            ("lines", run.cells.iter().map(cell_line).collect()),
        ]
    };
    for ((form, marked), (_, unmarked)) in forms(&run).into_iter().zip(forms(&plain)) {
        assert!(marked.contains("hardware"), "{form}: {marked}");
        assert!(!unmarked.contains("hardware"), "{form}: {unmarked}");
    }
    let text = terminal::render(&run, &View::default(), terminal::Style::default());
    for words in [
        "Wasted branch records (hardware)",
        "Useful branch records of 32 (hardware)",
        "not to be compared with virtual records",
        "In any, 2 of the wasted are the driver's own",
        "by kernel (any; hardware)",
    ] {
        assert!(text.contains(words), "{words:?} is missing in {text}");
    }
    // No model was asked.
    for words in ["intel-lbr", "The same on", "Different on", "amd-lbrv2"] {
        assert!(!text.contains(words), "{words:?} in {text}");
    }
    assert!(!terminal::render(&run, &view, terminal::Style::default()).contains("amd-lbrv2"));
}

#[test]
fn what_the_cpu_kept_under_a_filter_is_what_is_listed_of_it() {
    let mut run = hardware();
    let cell = run.cells.iter_mut().find(|cell| cell.branch_source().is_some()).unwrap();
    let Some(Measurement::LbrWaste(waste)) = &mut cell.measurement else { unreachable!() };
    let mut own = waste.points[0].records[0].clone();
    own.from.symbol = Some("seen_by_the_cpu_alone".to_owned());
    own.from.address = waste.function.start;
    waste.points[0].by_filter.insert("any_return".to_owned(), vec![own]);
    let listed = |filter: &str| {
        let view = View { model: None, listings: vec![filter.parse().unwrap()] };
        terminal::render(&run, &view, terminal::Style::default())
    };
    let text = listed("any_return");
    assert!(
        text.contains("seen_by_the_cpu_alone") && text.contains("any_return (hardware), 0 wasted"),
        "{text}"
    );
    assert!(!listed("any").contains("seen_by_the_cpu_alone"));
}

#[test]
fn what_a_pmu_counted_has_a_table_and_what_the_kernel_counts_has_none() {
    let counter = |event: &str, count, estimated| Counter { event: event.to_owned(), count, estimated };
    let with = |counters: &[Counter]| {
        let mut run = run();
        for cell in &mut run.cells {
            if let Some(Measurement::Attach(attach)) = &mut cell.measurement {
                attach.explained.iter_mut().for_each(|summary| summary.counters = counters.to_vec());
            }
        }
        terminal::render(&run, &View::default(), terminal::Style::default())
    };
    let table = "What the guest's PMU counted of the attaching thread";
    let own = [counter("task-clock", 5_000_000, false), counter("context-switches", 7, false)];
    assert!(!with(&own).contains(table));
    let pmu = [counter("cycles", 2000, false), counter("instructions", 3000, true), own[0].clone()];
    let text = with(&pmu);
    let rest = text.split_once(table).expect(&text).1;
    let row = rest.lines().find(|line| line.contains("attach |")).unwrap();
    let fields: Vec<&str> = row.split('|').map(str::trim).collect();
    assert_eq!(fields[3..], ["2000", "~3000", "-", "-", "1.50"], "{row}");
    assert!(rest.contains("~: counted for a part"), "{rest}");
}

/// However much there is to say.
#[test]
fn a_report_of_a_series_is_brief_and_begins_with_the_verdict() {
    let recorded = series();
    let view = View { model: None, listings: vec!["any".parse().unwrap()] };
    let mut long = recorded.clone();
    for number in 0..400 {
        let mut cell = long.cells[0].clone();
        cell.id.test = Test::TestProgs { test: format!("t{number}").parse().unwrap() };
        cell.measurement = None;
        cell.outcome = Outcome::Error {
            kind: tramplab_model::run::ErrorKind::Panic,
            message: format!("panic {number}"),
        };
        long.cells.push(cell);
    }
    for run in [&recorded, &long] {
        let brief = markdown::brief(run, &view, "details.md");
        let lines: Vec<&str> = brief.lines().collect();
        assert!(lines.len() <= 150, "{}", lines.len());
        let at = |words: &str| lines.iter().position(|line| line.contains(words)).expect(words);
        assert!(at("8 better") < at("### What changed") && at("8 better") < 25, "{brief}");
        assert!(at("details.md") == lines.len() - 1, "{brief}");
    }
}

/// In 120 columns every table of a comparison and of waste fits; in 80 those of attach times do not, and no number is broken.
#[test]
fn tables_fit_the_terminal_and_break_no_value() {
    for run in [run(), series()] {
        for width in [80, 120] {
            let style = terminal::Style { colour: true, width: Some(width) };
            let text = terminal::render(&run, &View::default(), style);
            let text = strip_ansi_escapes::strip_str(&text);
            let is_of_a_table = |line: &&str| {
                let is_listing = line.contains("[#") || line.contains("| head");
                line.contains('|') && !is_listing && !line.trim_start().starts_with('|')
            };
            let widest = text.lines().filter(is_of_a_table).map(|line| line.chars().count()).max().unwrap();
            assert!(widest <= usize::from(width.max(110)), "{width}: {widest}\n{text}");
            let whole = terminal::render(&run, &View::default(), terminal::Style::default());
            let values = whole.lines().filter(is_of_a_table).flat_map(|line| line.split(['|', ' ']));
            for value in values.filter(|value| value.starts_with(|c: char| c.is_ascii_digit())) {
                assert!(text.contains(value), "{width}: {value}\n{text}");
            }
        }
    }
    let style = terminal::Style { colour: true, width: None };
    assert!(terminal::render(&series(), &View::default(), style).contains("\u{1b}[32mbetter"));
}

/// A kernel that panics at boot: its own cell says so, all others the same in a line.
#[test]
fn errors_that_are_alike_are_told_once() {
    let mut run = series();
    let head = run.series[0].head().kernel.clone();
    let error = |message: &str| Outcome::Error { kind: ErrorKind::Panic, message: message.to_owned() };
    let mut count = 0;
    for cell in run.cells.iter_mut().filter(|cell| cell.id.kernel == head && cell.id.test != Test::Build) {
        (cell.outcome, cell.measurement, cell.console_tail) = (error("does not boot: oh"), None, Vec::new());
        count += 1;
    }
    assert!(count > 2);
    let mut boot = run.cells.iter().find(|cell| cell.id.kernel == head).unwrap().clone();
    (boot.id.test, boot.outcome, boot.console_tail) = (Test::Boot, error("oh"), vec!["the end".to_owned()]);
    run.cells.push(boot);
    let view = View::default();
    for (name, text) in [
        ("terminal", terminal::render(&run, &view, terminal::Style::default())),
        ("markdown", markdown::render(&run, &view)),
        ("mail", mail::render(&run, &view).replace("\n  ", " ")),
        ("github", github::annotations(&run)),
    ] {
        // The comparison's table has a row for each test that only the base measured.
        let text = match name {
            "terminal" | "mail" => text.split_once("\nerror ").unwrap().1,
            _ => text.rsplit(" cells: ").next().unwrap(),
        };
        assert_eq!(text.matches("panic: does not boot: oh").count(), 1, "{name}: {text}");
        assert!(text.contains(&format!("and {} more", count - 1)), "{name}: {text}");
        assert_eq!(text.matches("panic: oh").count(), 1, "{name}: {text}");
    }
    // A case of each, and none with another's console.
    let junit = String::from_utf8(junit::render(&run).unwrap()).unwrap();
    assert_eq!(junit.matches("message=\"does not boot: oh\"").count(), count, "{junit}");
    assert_eq!(junit.matches("the end").count(), 1, "{junit}");
}

/// The table of verdicts, the head's own tests and what was compared although it differs: the notes of a comparison.
#[test]
fn tells_what_was_compared_although_it_differs() {
    let whole = |run: &Run| terminal::render(run, &View::default(), terminal::Style::default());
    let [base, head] = {
        let run = series();
        [run.series[0].base().kernel.clone(), run.series[0].head().kernel.clone()]
    };

    let mut run = series();
    run.cells.retain(|cell| cell.id.kernel != base || cell.id.test.name() != "lbr_waste/fexit");
    let comparison = compare::whole(&run, &run.series[0], None);
    let tables = crate::comparison::verdicts(&comparison).tables;
    let row = ["lbr_waste/fexit", "not in the run", "pass"].map(str::to_owned).to_vec();
    assert!(tables.iter().any(|table| table.rows.contains(&row)), "{tables:?}");

    let mut run = series();
    for cell in run.cells.iter_mut().filter(|cell| cell.id.kernel == head) {
        if let Some(Measurement::Attach(attach)) = &mut cell.measurement {
            attach.boots.iter_mut().for_each(|boot| boot.list_sha256 = "0".repeat(64));
        }
    }
    let text = whole(&run);
    assert!(text.contains("compared although attach/kprobe.multi/10 attached to other functions"), "{text}");

    let mut run = series();
    let guests =
        run.cells.iter_mut().filter(|cell| cell.id.kernel == head).filter_map(|cell| cell.guest.as_mut());
    guests.for_each(|guest| guest.clocksource = "hpet".to_owned());
    let told = "compared although the clock source was tsc on the base and hpet on the head";
    assert!(whole(&run).contains(told));
}
