// SPDX-License-Identifier: MIT OR Apache-2.0
//! Every form of the report, of stored runs.

use super::{cell_line, content::Document, github, junit, mail, markdown, terminal, view::View};
use std::collections::BTreeMap;
use tramplab_analysis::{
    branch::{Model, waste},
    compare,
};
use tramplab_model::run::{
    Accel, BranchSource, Built, Cell, Delivered, ErrorKind, Joined, Kernel, Kind, Measurement,
    NamedRecord, Outcome, Run, Test,
};
use tramplab_model::table::Table;
use tramplab_protocol::{
    Beside, BesideSet, Mechanism,
    message::{Counter, MapAttribute, Missing, Remark},
    trace,
};

mod extreme;
mod hardware;
mod hostile;
mod html;
mod json;
pub mod profiles;
mod useful;
mod xml;

use hardware::hardware;
use tramplab_testdata::{call_ops, each_alone};
use xml::parse;

pub use tramplab_testdata::{series, stored as run, two_architectures};

pub(crate) fn boot_as_zen4(run: &mut Run) {
    boot_as(run, "zen4", Model::AmdLbrV2, 16);
}

/// Adds the guests of the usual kernels once more, as if they had booted as a CPU: each trace has
/// another record.
fn boot_as(run: &mut Run, name: &str, family: Model, depth: u32) {
    let cpu = serde_json::json!({
        "about": "a test's", "arch": "x86_64",
        "qemu": { "cpu": "EPYC-Genoa", "source": "s" },
        "mitigations": { "append": ["mitigations=auto"], "source": "s" },
        "branches": { "family": family.name(), "depth": depth, "source": "s" },
    });
    let model = serde_json::json!({ "name": name, "cpu": cpu });
    let usual: Vec<Kernel> =
        run.kernels.iter().filter(|kernel| kernel.configuration.is_none()).cloned().collect();
    for mut kernel in usual {
        let configuration = serde_json::json!({
            "of": kernel.name, "settings": [], "append": ["mitigations=auto"],
            "cpu": "EPYC-Genoa", "model": model,
        });
        kernel.configuration = Some(serde_json::from_value(configuration).unwrap());
        let cells: Vec<Cell> = run.cells_of(kernel.arch, &kernel.name).cloned().collect();
        kernel.name += &format!("+{name}");
        for mut cell in cells {
            cell.id.kernel.clone_from(&kernel.name);
            if let Some(Measurement::LbrWaste(waste)) = &mut cell.measurement {
                for point in &mut waste.points {
                    point.records.insert(0, point.records[0].clone());
                    point.wasted.clear();
                }
            }
            run.cells.push(cell);
        }
        run.kernels.push(kernel);
    }
}

/// Guests of several CPUs are shown as each booted, whichever a report asks for.
#[test]
fn shows_guests_of_each_cpu_with_its_own_records() {
    let mut run = run();
    boot_as_zen4(&mut run);
    boot_as(&mut run, "golden-cove", Model::ArchLbr, 32);
    let kernel = run.kernels[0].name.clone();
    let of = |view: &View, caption: &str| {
        let text = terminal::render(&run, view, terminal::Style::default());
        assert!(text.contains(caption), "{caption}: {text}");
        let (_, section) = text.split_once(&format!("Linux {kernel}+golden-cove (")).unwrap();
        let (_, caption) = section.split_once("Useful branch records of ").unwrap();
        caption.lines().next().unwrap().to_owned()
    };
    let usual = |usual: &str| {
        format!(
            "Useful branch records of {kernel}: as usual ({usual}), as zen4 (amd-lbrv2, of 16), as \
             golden-cove (arch-lbr, of 32)"
        )
    };
    assert_eq!(of(&View::default(), &usual("intel-lbr, of 16 / 32")), "32 (arch-lbr)");
    let zen4 = View {
        model: Some(Model::AmdLbrV2),
        depth: Some(16),
        cpu: Some("zen4".to_owned()),
        ..View::default()
    };
    assert_eq!(of(&zen4, &usual("amd-lbrv2, of 16")), "32 (arch-lbr)");
    // A family is for all.
    let family = View { model: Some(Model::IntelLbr), ..View::default() };
    assert_eq!(of(&family, "as golden-cove (intel-lbr, of 16 / 32)"), "16 / 32 (intel-lbr)");
}

/// The tables of both worlds have the numbers of each kernel's own tables.
#[test]
fn shows_guests_of_different_cpus_side_by_side() {
    let mut run = run();
    boot_as_zen4(&mut run);
    let text = shown(&run);
    let rows = |text: &str, caption: &str| -> BTreeMap<String, Vec<String>> {
        let (_, table) = text.split_once(caption).unwrap_or_else(|| panic!("{caption}: {text}"));
        let rows = table.lines().skip(3).take_while(|line| line.contains('|'));
        let cells = rows.map(|row| row.split('|').map(|cell| cell.trim().to_owned()));
        cells.map(|mut row| (row.next().unwrap(), row.collect())).collect()
    };
    let kernel = &run.kernels[0].name;
    let own = |name: &str, caption: &str| {
        let (_, section) = text.split_once(&format!("Linux {name} (")).unwrap();
        rows(section, caption)
    };
    for (both, one) in [
        (
            format!("Wasted branch records of {kernel}: as usual (amd-lbrv2), as zen4 (amd-lbrv2)"),
            "Wasted branch records (amd-lbrv2)",
        ),
        (
            format!(
                "Useful branch records of {kernel}: as usual (amd-lbrv2, of 16), as zen4 \
                 (amd-lbrv2, of 16)"
            ),
            "Useful branch records of 16 (amd-lbrv2)",
        ),
    ] {
        let both = rows(&text, &both);
        let [usual, zen4] = [kernel.clone(), format!("{kernel}+zen4")].map(|name| own(&name, one));
        let mut differ = 0;
        for (mechanism, cells) in &both {
            for (column, cell) in cells.iter().enumerate() {
                let (a, b) = (&usual[mechanism][column], &zen4[mechanism][column]);
                let expected =
                    if a == "-" && b == "-" { "-".to_owned() } else { format!("{a}, {b}") };
                assert_eq!(*cell, expected, "{mechanism}");
                differ += usize::from(a != b);
            }
        }
        assert!(differ > 0, "{both:?}");
    }
}

/// Base, patch 1 and head are kernels of their own in each world, although all have the base's
/// configuration.
#[test]
fn worlds_of_a_series_are_shown_for_each_of_its_kernels() {
    let mut run = series();
    boot_as_zen4(&mut run);
    let mut zen4 = run.series[0].clone();
    let base = zen4.base().kernel.clone();
    zen4.steps.iter_mut().for_each(|step| step.kernel += "+zen4");
    run.series.push(zen4);
    for kernel in &mut run.kernels {
        kernel.configuration.iter_mut().for_each(|point| point.of.clone_from(&base));
    }
    let text = terminal::render(&run, &with_listings(), terminal::Style::default());
    for step in &run.series[0].steps {
        let kernel = &step.kernel;
        let caption = format!(
            "Wasted branch records of {kernel}: as usual (amd-lbrv2), as zen4 (amd-lbrv2)\n"
        );
        assert!(text.contains(&caption), "{caption}: {text}");
    }
}

fn shown(run: &Run) -> String {
    terminal::render(run, &View::default(), terminal::Style::default())
}

fn with_listings() -> View {
    View {
        model: Some(Model::AmdLbrV2),
        listings: vec!["any".parse().unwrap(), "any_call|cond".parse().unwrap()],
        what_if: vec!["any".parse().unwrap(), "any_return".parse().unwrap()],
        ..View::default()
    }
}

#[test]
fn hits_that_nobody_timed_have_no_columns_of_times() {
    let mut run = run();
    let times = shown(&run).matches("| hits/s").count();
    for cell in &mut run.cells {
        if let Some(Measurement::Trigger(trigger)) = &mut cell.measurement
            && cell.id.kernel == "6.12"
        {
            trigger.attached_ns.clear();
            trigger.detached_ns.clear();
        }
    }
    let text = shown(&run);
    assert_eq!(text.matches("| hits/s").count(), times - 1, "{text}");
    let caption = "Cost of a hit of the empty program: instructions, taken branches\n";
    assert_eq!(text.matches(caption).count(), 1, "{text}");
}

#[test]
fn terminal_text() {
    insta::assert_snapshot!(shown(&run()));
}

#[test]
fn terminal_text_of_two_architectures() {
    let run = two_architectures();
    insta::assert_snapshot!(shown(&run));
    let cells = junit::render(&run).unwrap();
    let count = |arch: &str| {
        String::from_utf8_lossy(&cells).matches(&format!("classname=\"{arch}/7.2\"")).count()
    };
    assert_eq!((count("x86_64"), count("arm64")), (3, 3));
}

#[test]
fn terminal_text_with_listings() {
    insta::assert_snapshot!(terminal::render(&run(), &with_listings(), terminal::Style::default()));
}

/// A program has a row if the empty program was measured in the same way.
#[test]
fn shows_costs_above_those_of_the_empty_program() {
    let mut run = run();
    let is_hit =
        |cell: &&Cell| cell.id.test.name() == "trigger/fexit" && cell.outcome == Outcome::Pass;
    let mut cell = run.cells.iter().find(is_hit).unwrap().clone();
    cell.id.test = "trigger/fexit=hash_inc".parse().unwrap();
    let Some(Measurement::Trigger(trigger)) = &mut cell.measurement else { panic!() };
    let part = &mut trigger.cost.as_mut().unwrap().parts[0];
    (part.instructions, part.branches) = (part.instructions + 7, part.branches - 1);
    let mut alone = cell.clone();
    alone.id.test = "trigger/fexit=hash_inc+fentry".parse().unwrap();
    run.cells.extend([cell, alone]);
    let sections = Document::new(&run, &View::default()).sections;
    let tables = sections.into_iter().flat_map(|section| section.tables);
    let mut more = tables.filter(|table| table.caption.contains("less that of the empty program"));
    let rows = more.next().unwrap().rows;
    assert_eq!(rows, [["fexit=hash_inc", "7", "-1", "-", "-"].map(str::to_owned)]);
    assert!(more.next().is_none());
}

/// Missed hits and completed maps stand below the table of their cell, in one line each.
#[test]
fn notes_tell_remarks() {
    let mut run = run();
    let kinds = [Kind::LbrWaste, Kind::Attach, Kind::Trigger];
    for kind in kinds {
        let cell = run.cells.iter_mut().find(|cell| cell.id.test.kind() == kind).unwrap();
        cell.remarks = vec![
            Remark::Missed { hits: 21, by: Missing::Probe },
            Remark::MapSet {
                map: "a\nb".to_owned(),
                attribute: MapAttribute::ValueSize,
                value: 1016,
            },
        ];
    }
    let view = View::default();
    let sections = Document::new(&run, &view).sections;
    let notes: Vec<String> = sections
        .into_iter()
        .flat_map(|section| section.tables)
        .flat_map(|table| table.notes)
        .collect();
    for words in ["21 hits (nmissed)", "got value_size 1016"] {
        let told: Vec<&String> = notes.iter().filter(|note| note.contains(words)).collect();
        assert_eq!(told.len(), kinds.len(), "{notes:?}");
        assert!(told.iter().all(|note| !note.contains('\n')), "{told:?}");
    }
}

/// Returns the tables of useful records.
fn useful(run: &Run, model: Option<Model>) -> Vec<Table> {
    let view = View { model, ..View::default() };
    let sections = Document::new(run, &view).sections;
    let tables = sections.into_iter().flat_map(|section| section.tables);
    tables.filter(|table| table.caption.starts_with("Useful ")).collect()
}

#[test]
fn shows_useful_records_for_each_depth_of_the_model() {
    for model in [Model::IntelLbr, Model::ArchLbr, Model::AmdLbrV2] {
        let tables = useful(&run(), Some(model));
        assert!(!tables.is_empty(), "{model}");
        for table in tables {
            let fexit = table.rows.iter().find(|row| row[0] == "fexit").expect("a row of fexit");
            assert_eq!(fexit[1].split(" / ").count(), model.depths().len(), "{model}: {fexit:?}");
        }
    }
}

#[test]
fn notes_how_many_records_the_driver_takes() {
    let takes = |model, paravirt_xxl| {
        let mut run = run();
        run.kernels.iter_mut().for_each(|kernel| kernel.paravirt_xxl = paravirt_xxl);
        // A stored run keeps it.
        let run: Run = serde_json::from_str(&serde_json::to_string(&run).unwrap()).unwrap();
        useful(&run, Some(model)).remove(0).notes.remove(0)
    };
    let table = [
        (Model::IntelLbr, "any 5, any_call 3, any_return 2, call 3"),
        (Model::ArchLbr, "any 3, any_call 2, any_return 1, call 2"),
        (Model::AmdLbrV2, "any 5, any_call 3, any_return 2, call 3"),
    ];
    for (model, expected) in table {
        let [with, without, unknown] = [Some(true), Some(false), None].map(|xxl| takes(model, xxl));
        let subtracted = format!(
            "The driver's own records are subtracted: {expected}. The kernel has PARAVIRT_XXL."
        );
        assert_eq!(with, subtracted, "{model}");
        assert!(without.contains("takes none"), "{model}: {without}");
        let bound = format!("the driver takes up to {expected} of these.");
        assert!(unknown.starts_with("≤: ") && unknown.ends_with(&bound), "{model}: {unknown}");
    }
    let brbe = useful(&two_architectures(), None)
        .into_iter()
        .find(|table| table.caption.ends_with("(brbe)"));
    assert!(brbe.expect("arm64's table").notes[0].contains("no driver"));
}

#[test]
fn notes_how_long_the_returns_of_the_driver_are() {
    let note = |mitigations: &[&str]| {
        let mut run = run();
        run.kernels.iter_mut().for_each(|kernel| kernel.paravirt_xxl = Some(true));
        for cell in &mut run.cells {
            let lines = mitigations.iter().map(|&line| line.to_owned()).collect();
            cell.guest.iter_mut().for_each(|guest| guest.mitigations.clone_from(&lines));
            let Some(Measurement::LbrWaste(waste)) = &mut cell.measurement else { continue };
            let kept = |record: &NamedRecord| record.kind != trace::Kind::Ret;
            waste.points.iter_mut().for_each(|point| point.records.retain(kept));
        }
        useful(&run, None).remove(0).notes.remove(0)
    };
    let safe = note(&["spec_rstack_overflow: Mitigation: Safe RET"]);
    assert!(safe.contains("any 9, any_call 5, any_return 2, call 5."), "{safe}");
    assert!(safe.ends_with(", and each return is 3 records."), "{safe}");
    let aligned = note(&["indirect_target_selection: Mitigation: Aligned branch/return thunks"]);
    assert!(aligned.contains("any 5 to 7, any_call 3, any_return 2, call 3."), "{aligned}");
    assert!(aligned.ends_with("each return of the driver is 1 to 2 records."), "{aligned}");
    let nothing = note(&[]);
    assert!(nothing.contains("any 5 to 9, any_call 3 to 5, any_return 2,"), "{nothing}");
}

#[test]
fn host_of_another_vendor_adds_a_hint_and_changes_no_number() {
    let mut run = two_architectures();
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
    // The hint is at x86-64's table, not at arm64's.
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
    let colour =
        terminal::render(&run(), &with_listings(), terminal::Style { colour: true, width: None });
    assert!(!plain.contains('\x1b') && colour.contains('\x1b'));
    assert_eq!(strip_ansi_escapes::strip_str(colour), plain);
}

#[test]
fn markdown_text() {
    // The content is that of the terminal's snapshot: one kernel shows the form.
    let mut run = run();
    run.kernels.truncate(1);
    run.cells.retain(|cell| cell.id.kernel == run.kernels[0].name);
    insta::assert_snapshot!(markdown::render(&run, &with_listings()));
}

#[test]
fn names_programs_that_received_records() {
    let mut run = run();
    let told = |run: &Run| shown(run).matches("Experiment: ").count();
    assert_eq!(told(&run), 0);
    for cell in &mut run.cells {
        if let (Some(Measurement::LbrWaste(waste)), "lbr_waste/fexit") =
            (&mut cell.measurement, cell.id.test.name().as_str())
        {
            let (model, filter) = ("intel-lbr".to_owned(), "any".to_owned());
            waste.delivered = Some(Delivered { model, filter, depth: 32, records: 32 });
        }
    }
    let text = shown(&run);
    assert!(
        text.contains(
            "32 entries each in the guest (intel-lbr, any), all equal to the trace: fexit."
        ),
        "{text}"
    );
    let again: Run = serde_json::from_str(&serde_json::to_string(&run).unwrap()).unwrap();
    assert_eq!(told(&again), told(&run));
}

#[test]
fn programs_attached_beside_make_a_row_of_their_own() {
    let mut run = run();
    let cell = run
        .cells
        .iter()
        .find(|cell| cell.id.test.name() == "trigger/fexit")
        .expect("a trigger cell");
    let mut beside = cell.clone();
    let Test::Trigger(tramplab_model::kinds::trigger::Test { beside: set, .. }) =
        &mut beside.id.test
    else {
        unreachable!("found by its name")
    };
    *set =
        BesideSet::of([Beside::program(Mechanism::KprobeMulti), Beside::FunctionTracer]).unwrap();
    run.cells.push(beside);
    let text = terminal::render(&run, &with_listings(), terminal::Style::default());
    let rows =
        |name: &str| text.lines().filter(|line| line.starts_with(&format!(" {name} "))).count();
    // In the kernel's table and in the table of all kernels.
    assert_eq!(rows("fexit+kprobe.multi+function_tracer"), 2, "{text}");
    assert!(
        text.contains("fexit+kprobe.multi+function_tracer of bpf_fentry_test1, a hit at entry"),
        "{text}"
    );
}

#[test]
fn terminal_text_of_a_series() {
    let style = terminal::Style::default();
    insta::assert_snapshot!(terminal::render(&series(), &View::default(), style));
    // A screen has 80 columns and 40 lines. Each patch after the second may add 20.
    let style = terminal::Style { width: Some(80), ..style };
    for run in each_alone().iter().chain([&series()]) {
        let text = terminal::render(run, &View::default(), style);
        let more = run.series[0].steps.len().saturating_sub(3);
        assert!(text.lines().count() <= 40 + 20 * more, "{text}");
    }
}

/// One cause, two, the same function in both directions, and a patch that helps one mechanism and
/// harms another.
#[test]
fn recorded_series_have_these_findings() {
    let mut told: Vec<String> = Vec::new();
    for run in each_alone().iter().chain(&[series(), call_ops()]) {
        for (series, findings) in crate::comparison::findings_of(run) {
            told.push(format!("{} ({})", series.title.as_deref().unwrap_or_default(), series.arch));
            told.extend(
                findings.iter().flat_map(|one| one.lines()).map(|line| format!("  {line}")),
            );
        }
    }
    insta::assert_snapshot!(told.join("\n"));
}

/// A cell that got worse fails once, by the finding.
#[test]
fn failures_that_findings_tell_are_not_told_again() {
    let all = each_alone();
    let is_worse =
        |run: &&Run| run.cells.iter().any(|cell| matches!(cell.outcome, Outcome::Fail { .. }));
    let mut run = all.iter().find(is_worse).expect("a series that is worse").clone();
    let render = |run: &Run| {
        let (view, style) = (View::default(), terminal::Style::default());
        let full = View { listings: vec!["any".parse().unwrap()], ..View::default() };
        let terminal = [&view, &full].map(|view| terminal::render(run, view, style));
        let [brief, full] = terminal;
        [brief, full, mail::render(run, &view), markdown::render(run, &view)]
    };
    for text in render(&run) {
        let words = text.split_whitespace().collect::<Vec<_>>().join(" ");
        assert!(words.contains("worse, as the findings say"), "{text}");
        assert!(!text.contains("is worse than on"), "{text}");
    }
    let xml = String::from_utf8(junit::render(&run).unwrap()).unwrap();
    assert!(xml.contains("message=\"worse: patch 1/1 "), "{xml}");
    // A cell of the base, or of another architecture, has no part in it.
    let failures = |run: &Run| {
        let xml = String::from_utf8(junit::render(run).unwrap()).unwrap();
        xml.matches("message=\"worse: patch 1/1 ").count()
    };
    let reason = "attach.fentry.1.attach.instructions is worse than on x: 1 -> 2".to_owned();
    let [base, head] = [run.series[0].base(), run.series[0].head()].map(|step| step.kernel.clone());
    let failed = |cell: &Cell| matches!(cell.outcome, Outcome::Fail { .. });
    let of_head = run.cells.iter().filter(|cell| failed(cell)).count();
    assert!(run.cells.iter().all(|cell| !failed(cell) || cell.id.kernel == head));
    assert_eq!(failures(&run), of_head);
    let mut other = run.clone();
    for cell in other.cells.iter_mut().filter(|cell| cell.id.kernel == base) {
        cell.outcome = Outcome::Fail { reasons: vec![reason.clone()] };
    }
    assert_eq!(failures(&other), of_head);
    assert!(render(&other).iter().all(|text| text.contains("is worse than on x")));
    // A failure without a reason is one.
    let mut silent = run.clone();
    silent.cells.iter_mut().filter(|cell| failed(cell)).for_each(|cell| {
        cell.outcome = Outcome::Fail { reasons: Vec::new() };
    });
    assert_eq!(github::annotations(&silent).matches("::error title=fail ").count(), of_head);
    assert!(crate::why(&run).contains("; first worse: patch 1/1 "), "{}", crate::why(&run));
    // Another reason of the same cell.
    let failed = run.cells.iter_mut().find_map(|cell| match &mut cell.outcome {
        Outcome::Fail { reasons } => Some(reasons),
        _ => None,
    });
    failed.unwrap().push("over its budget".to_owned());
    for text in render(&run) {
        assert!(text.contains("over its budget"), "{text}");
    }
    assert!(github::annotations(&run).contains("::over its budget"), "and not the other reasons");
    // A failure that an older tramplab judged stays, if no finding tells it.
    let old = "attach.fentry.7.detach.exact is worse than on base: 1 -> 2".to_owned();
    let failed = run.cells.iter_mut().find_map(|cell| match &mut cell.outcome {
        Outcome::Fail { reasons } => Some(reasons),
        _ => None,
    });
    failed.unwrap().push(old);
    for text in render(&run).iter().chain([&github::annotations(&run)]) {
        assert!(text.contains("attach.fentry.7.detach.exact is worse"), "{text}");
    }
}

#[test]
fn markdown_text_of_a_series() {
    insta::assert_snapshot!(markdown::render(&series(), &View::default()));
}

/// A walk that ended early names kernels not built and not reached. An error is not a number.
#[test]
fn shows_a_broken_series_patch_by_patch() {
    let mut run = series();
    let series = &mut run.series[0];
    series.steps[1].built = Built::Failed { message: "oh".to_owned() };
    series.steps[2].built = Built::NotReached;
    let kernels = [series.steps[1].kernel.clone(), series.steps[2].kernel.clone()];
    run.cells.retain(|cell| !kernels.contains(&cell.id.kernel));
    run.cells[1].outcome = Outcome::Error { kind: ErrorKind::Panic, message: "ah".to_owned() };
    let text = shown(&run);
    let table =
        text.split("Patch by patch").nth(1).and_then(|rest| rest.split("\n\n").next()).unwrap();
    for (words, line) in
        ["1 of 5 cells: panic", "does not build", "not reached"].iter().zip(table.lines().skip(3))
    {
        assert!(line.contains(&format!("| {words} ")), "{words}: {table}");
    }
    assert!(table.ends_with("No metric changed."), "{table}");
    assert!(markdown::render(&run, &View::default()).contains("not reached"));
    parse(&junit::render(&run).unwrap());
    // The first patch is measured, the second does not build.
    let mut run = self::series();
    let head = run.series[0].head().kernel.clone();
    let message = format!("with patch 2 (bpf: X): failed to build {head}: a.c:1: error: oh");
    run.series[0].steps[2].built = Built::Failed { message };
    run.cells.retain(|cell| cell.id.kernel != head);
    let text = shown(&run);
    let summary =
        format!("{head} does not build (a.c:1: error: oh): patch by patch 12 better, 0 worse");
    assert!(text.contains(&summary), "{text}");
}

#[test]
fn stored_counts_match_the_stored_records() {
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
    // Anybody may have written a stored run.
    run.notes = vec!["\u{1b}[2J\u{202e}evil\n::error::x".to_owned(); 9];
    for report in text(&run) {
        assert!(report.contains("evil") && !report.contains(['\u{1b}', '\u{202e}']), "{report}");
        assert!(!report.lines().any(|line| line.starts_with("::error::x")), "{report}");
    }
    assert!(github::annotations(&run).contains("and 4 more"), "{}", github::annotations(&run));
}

/// The lines of a compiler or a verifier say more than the console.
#[test]
fn the_rest_of_a_message_stands_in_place_of_the_console() {
    let mut run = run();
    run.cells.retain(|cell| !cell.console_tail.is_empty());
    run.cells.truncate(1);
    let console = run.cells[0].console_tail.clone();
    for (message, expected) in [("one", &console), ("one\ntwo", &vec!["two".to_owned()])] {
        run.cells[0].outcome =
            Outcome::Error { kind: ErrorKind::Guest, message: message.to_owned() };
        let document = Document::new(&run, &View::default());
        assert_eq!(document.outcomes.errors[0].console, *expected, "{message}");
    }
}

#[test]
fn terminal_says_how_many_lines_it_cuts() {
    let mut run = run();
    run.cells.retain(|cell| !cell.console_tail.is_empty());
    run.cells.truncate(1);
    for (lines, cut) in [(12, None), (20, Some("… 8 more before: report.md"))] {
        run.cells[0].console_tail = (0..lines).map(|number| format!("line {number}")).collect();
        let text = shown(&run);
        assert_eq!(text.contains("more before"), cut.is_some(), "{text}");
        assert!(cut.is_none_or(|cut| text.contains(cut)), "{text}");
        assert!(text.contains(&format!("line {}", lines - 1)), "{text}");
    }
}

#[test]
fn a_run_without_any_function_or_record_that_was_asked_for_says_so() {
    let mut run = run();
    run.cells.truncate(1);
    let cell = &mut run.cells[0];
    (cell.measurement, cell.outcome) = (None, Outcome::Skip { reason: "none".to_owned() });
    let notes = |run: &Run| {
        let about = Document::new(run, &View::default()).about;
        about.iter().filter(|(_, text)| text.contains("exit code 3")).count()
    };
    assert_eq!(notes(&run), 0);
    run.cells[0].id.test = "lbr_waste/fexit@sys_typo".parse().unwrap();
    assert_eq!(notes(&run), 1);
    let asked = [("branches".to_owned(), vec!["emulated".to_owned()])];
    run.options = Some(tramplab_model::run::GivenOptions(asked.into()));
    assert_eq!(notes(&run), 2);
}

#[test]
fn a_console_with_a_fence_gets_a_longer_fence() {
    let mut run = run();
    run.cells.retain(|cell| !cell.console_tail.is_empty());
    run.cells[0].console_tail.push("Code: ``` <b>&amp; 48 8b".to_owned());
    let text = markdown::render(&run, &View::default());
    let (_, fenced) = text.split_once("\n````\n").expect("a fence");
    let (console, rest) = fenced.split_once("\n````\n").expect("its end");
    assert!(console.ends_with("\nCode: ``` <b>&amp; 48 8b") && !rest.contains("````"), "{text}");
}

#[test]
fn renders_empty_and_interrupted_runs() {
    let mut run = run();
    run.cells.clear();
    run.interrupted = true;
    for text in [
        terminal::render(&run, &with_listings(), terminal::Style::default()),
        markdown::render(&run, &with_listings()),
    ] {
        assert!(text.contains("0 cells") && text.contains("interrupted"), "{text}");
    }
    // Nothing passed in a killed run without cells, nor in a run with too few shards.
    run.joined = Some(Joined { runs: vec!["a".to_owned()], expected: 2 });
    let text = shown(&run);
    assert!(text.contains("Only 1 of 2 runs are here."), "{text}");
    let xml = junit::render(&run).unwrap();
    parse(&xml);
    assert_eq!(String::from_utf8(xml).unwrap().matches("<error").count(), 2);
}

#[test]
fn every_report_lists_the_missing_cells_of_an_interrupted_run() {
    let mut run = run();
    let all = run.cells.len();
    run.interrupted = true;
    run.missing = run.cells.drain(all - 2..).map(|cell| cell.id).collect();
    let names = [0, 1].map(|place| run.missing[place].name()).join(", ");
    let said = format!("interrupted: 2 of {all} cells left no result: {names}.");
    let document = mail::render(&run, &View::default());
    let annotations = github::annotations(&run);
    for text in [shown(&run), markdown::render(&run, &View::default()), document, annotations] {
        assert!(text.replace('\n', " ").contains(&said), "{text}");
    }
    let xml = String::from_utf8(junit::render(&run).unwrap()).unwrap();
    assert_eq!(
        xml.matches("the run was interrupted").count(),
        4,
        "as a message and as a trace: {xml}"
    );
    // A run that still goes on, or was killed.
    run.finished = None;
    let text = shown(&run);
    assert!(text.contains(&said.replace("interrupted", "The run has not ended")), "{text}");
    let xml = String::from_utf8(junit::render(&run).unwrap()).unwrap();
    assert_eq!(xml.matches("the run has not ended").count(), 4, "{xml}");
}

#[test]
fn shows_counts_of_a_pmu_but_not_of_the_kernel() {
    let counter =
        |event: &str, count, estimated| Counter { event: event.to_owned(), count, estimated };
    let with = |counters: &[Counter]| {
        let mut run = run();
        for cell in &mut run.cells {
            if let Some(Measurement::Attach(attach)) = &mut cell.measurement {
                attach
                    .explained
                    .iter_mut()
                    .for_each(|summary| summary.counters = counters.to_vec());
            }
        }
        shown(&run)
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

#[test]
fn a_brief_report_begins_with_the_verdict() {
    let recorded = series();
    let view = View { listings: vec!["any".parse().unwrap()], ..View::default() };
    let mut long = recorded.clone();
    for number in 0..400 {
        let mut cell = long.cells[0].clone();
        cell.id.test = format!("test_progs/t{number}").parse().unwrap();
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
        assert!(at("12 better") < at("### What changed") && at("12 better") < 25, "{brief}");
        assert!(at("details.md") == lines.len() - 1, "{brief}");
    }
}

/// 120 columns fit every table of a comparison and of waste. 80 columns do not fit attach times,
/// but break no number.
#[test]
fn tables_fit_the_terminal_and_break_no_value() {
    let view = View { listings: vec!["any".parse().unwrap()], ..View::default() };
    for run in [run(), series()] {
        for width in [80, 120] {
            let style = terminal::Style { colour: true, width: Some(width) };
            let text = terminal::render(&run, &view, style);
            let text = strip_ansi_escapes::strip_str(&text);
            let is_of_a_table = |line: &&str| {
                let is_listing = line.contains("[#") || line.contains("| head");
                line.contains('|') && !is_listing && !line.trim_start().starts_with('|')
            };
            let widest =
                text.lines().filter(is_of_a_table).map(|line| line.chars().count()).max().unwrap();
            assert!(widest <= usize::from(width.max(110)), "{width}: {widest}\n{text}");
            let whole = terminal::render(&run, &view, terminal::Style::default());
            wraps_captions_and_notes(&text, &whole, width.into());
            // A range may break before its second number.
            let words = whole.lines().filter(is_of_a_table).flat_map(|line| line.split(['|', ' ']));
            let values = words.flat_map(|word| word.split(".."));
            for value in values.filter(|value| value.starts_with(|c: char| c.is_ascii_digit())) {
                assert!(text.contains(value), "{width}: {value}\n{text}");
            }
        }
    }
    let style = terminal::Style { colour: true, width: None };
    assert!(terminal::render(&series(), &View::default(), style).contains("\u{1b}[32mbetter"));
}

/// The same words, in lines that fit.
fn wraps_captions_and_notes(text: &str, whole: &str, width: usize) {
    let words = |text: &str| text.split_whitespace().collect::<Vec<_>>().join(" ");
    let all = words(text);
    let is_row = |line: &str| line.contains('|') || line.contains("-+-");
    // A note stands behind one space, captions behind none.
    let is_long = |line: &&str| {
        let start = line.trim_start_matches(' ');
        let of_outcomes = ["skip ", "error ", "fail "].iter().any(|word| start.starts_with(word));
        line.len() - start.len() < 2
            && !of_outcomes
            && !is_row(line)
            && !line.contains("[#")
            && line.chars().count() > width
    };
    let long: Vec<&str> = whole.lines().filter(is_long).collect();
    assert!(width > 80 || !long.is_empty(), "{whole}");
    for note in long {
        assert!(all.contains(&words(note)), "{note}\n{text}");
        assert!(!text.lines().any(|line| line == note), "{note}\n{text}");
    }
}

/// A kernel panics at boot: its boot cell has the details, and one line names all other cells.
#[test]
fn groups_equal_errors() {
    let mut run = series();
    let head = run.series[0].head().kernel.clone();
    let error =
        |message: &str| Outcome::Error { kind: ErrorKind::Panic, message: message.to_owned() };
    let mut count = 0;
    for cell in
        run.cells.iter_mut().filter(|cell| cell.id.kernel == head && cell.id.test != Test::Build)
    {
        (cell.outcome, cell.measurement, cell.console_tail) =
            (error("does not boot: oh"), None, Vec::new());
        count += 1;
    }
    assert!(count > 2);
    let mut boot = run.cells.iter().find(|cell| cell.id.kernel == head).unwrap().clone();
    (boot.id.test, boot.outcome, boot.console_tail) =
        (Test::Boot, error("oh"), vec!["the end".to_owned()]);
    run.cells.push(boot);
    let view = View::default();
    for (name, text) in [
        ("terminal", terminal::render(&run, &view, terminal::Style::default())),
        ("markdown", markdown::render(&run, &view)),
        ("mail", mail::render(&run, &view).replace("\n  ", " ")),
        ("github", github::annotations(&run)),
    ] {
        // Skip the comparison's table, which has a row for each test that only the base measured.
        let text = match name {
            "terminal" | "mail" => text.split_once("\nerror ").unwrap().1,
            _ => text.rsplit(" cells: ").next().unwrap(),
        };
        assert_eq!(text.matches("panic: does not boot: oh").count(), 1, "{name}: {text}");
        assert!(text.contains(&format!("and {} more", count - 1)), "{name}: {text}");
        assert_eq!(text.matches("panic: oh").count(), 1, "{name}: {text}");
    }
    // Each cell has a case, and only one has the console.
    let junit = String::from_utf8(junit::render(&run).unwrap()).unwrap();
    assert_eq!(junit.matches("message=\"does not boot: oh\"").count(), count, "{junit}");
    assert_eq!(junit.matches("the end").count(), 1, "{junit}");
}

/// The notes of a comparison: tests only of the head, and differences that were overlooked.
#[test]
fn notes_differences_that_were_overlooked() {
    let whole = |run: &Run| shown(run);
    let [base, head] = {
        let run = series();
        [run.series[0].base().kernel.clone(), run.series[0].head().kernel.clone()]
    };

    let mut run = series();
    run.cells.retain(|cell| cell.id.kernel != base || cell.id.test.name() != "lbr_waste/fexit");
    let comparison = compare::whole(&run, &run.series[0], None);
    let tables = crate::comparison::verdicts(&comparison, [None; 2]).tables;
    let row = ["lbr_waste/fexit", "not in the run", "pass"].map(str::to_owned).to_vec();
    assert!(tables.iter().any(|table| table.rows.contains(&row)), "{tables:?}");

    let mut run = series();
    for cell in run.cells.iter_mut().filter(|cell| cell.id.kernel == head) {
        if let Some(Measurement::Attach(attach)) = &mut cell.measurement {
            attach.boots.iter_mut().for_each(|boot| boot.list_sha256 = "0".repeat(64));
        }
    }
    let text = whole(&run);
    assert!(
        text.contains("compared although attach/kprobe.multi/10 attached to other functions"),
        "{text}"
    );

    let mut run = series();
    let guests = run
        .cells
        .iter_mut()
        .filter(|cell| cell.id.kernel == head)
        .filter_map(|cell| cell.guest.as_mut());
    guests.for_each(|guest| guest.clocksource = "hpet".to_owned());
    let told = "compared although the clock source was tsc on the base and hpet on the head";
    assert!(whole(&run).contains(told));
}
