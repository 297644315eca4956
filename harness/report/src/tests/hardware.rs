// SPDX-License-Identifier: MIT OR Apache-2.0
//! Reports of hardware records.

use super::*;

/// The stored run with hardware records: the driver left two records before it stopped the ring.
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
fn every_form_marks_hardware_records() {
    let (run, plain) = (hardware(), run());
    // The view asks for another CPU model.
    let view = with_listings();
    let forms = |run: &Run| {
        [
            ("terminal", terminal::render(run, &view, terminal::Style::default())),
            ("markdown", markdown::render(run, &view)),
            ("mail", mail::render(run, &view)),
            ("JUnit", String::from_utf8(junit::render(run).unwrap()).unwrap()),
            ("GitHub", github::summary(run, &view, github::SUMMARY)),
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
    // Hardware records have no model.
    for words in ["intel-lbr", "The same on", "Different on", "amd-lbrv2"] {
        assert!(!text.contains(words), "{words:?} in {text}");
    }
    assert!(!terminal::render(&run, &view, terminal::Style::default()).contains("amd-lbrv2"));
}

#[test]
fn lists_the_cpus_own_records_of_a_filter() {
    let mut run = hardware();
    let cell = run.cells.iter_mut().find(|cell| cell.branch_source().is_some()).unwrap();
    let Some(Measurement::LbrWaste(waste)) = &mut cell.measurement else { unreachable!() };
    let mut own = waste.points[0].records[0].clone();
    own.from.symbol = Some("seen_by_the_cpu_alone".to_owned());
    own.from.address = waste.function.start;
    waste.points[0].by_filter.insert("any_return".to_owned(), vec![own]);
    let listed = |filter: &str| {
        let view = View { listings: vec![filter.parse().unwrap()], ..View::default() };
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
fn says_why_hardware_records_have_no_what_if() {
    let view = View { what_if: vec!["any".parse().unwrap()], ..View::default() };
    let captions = |run: &Run| {
        let tables = Document::new(run, &view).sections.into_iter().flat_map(|s| s.tables);
        let early = tables.filter(|table| table.caption.contains("if the snapshot were taken"));
        early.map(|table| (table.caption, table.rows.len(), table.notes.len())).collect::<Vec<_>>()
    };
    let hardware = captions(&hardware());
    let why = ("Wasted branch records if the snapshot were taken at … (hardware)".to_owned(), 0, 1);
    assert!(!hardware.is_empty() && hardware.iter().all(|found| *found == why), "{hardware:?}");
    let plain = captions(&run());
    assert!(
        plain.iter().all(|(caption, rows, _)| caption.ends_with("(intel-lbr, any)") && *rows > 0)
    );
    assert_eq!(plain.len(), 2 * hardware.len());
}
