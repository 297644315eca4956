// SPDX-License-Identifier: MIT OR Apache-2.0
//! Reports of records that a driver handed over.

use super::*;
use tramplab_model::run::WasteCount;
use tramplab_protocol::message::HitCounter;

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

/// The same records, of a CPU that the plugin plays. Its trace has two records fewer by `any`.
fn emulated() -> Run {
    let mut run = hardware();
    for cell in &mut run.cells {
        cell.id.accel = Accel::Tcg;
        let Some(Measurement::LbrWaste(waste)) = &mut cell.measurement else { continue };
        waste.source = BranchSource::Emulated;
        waste.family = Some(Model::IntelLbr.name().to_owned());
        for point in &mut waste.points {
            let counts = point.wasted[Model::IntelLbr.name()].clone();
            let fewer = |(filter, count): (String, WasteCount)| {
                let own = if filter == "any" { 2 } else { 0 };
                let wasted = count.wasted.map(|wasted| wasted - own);
                (filter, WasteCount { wasted, ..count })
            };
            point.traced = counts.into_iter().map(fewer).collect();
        }
    }
    run
}

#[test]
fn every_form_marks_records_of_a_driver() {
    let plain = run();
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
    let own =
        ["In any, 2 of the wasted are the driver's own", "the trace of the same guest: any 2,"];
    for (run, name, own) in [(hardware(), "hardware", own[0]), (emulated(), "emulated", own[1])] {
        for ((form, marked), (_, unmarked)) in forms(&run).into_iter().zip(forms(&plain)) {
            assert!(marked.contains(name), "{form}: {marked}");
            assert!(!unmarked.contains(name), "{form}: {unmarked}");
        }
        let text = terminal::render(&run, &View::default(), terminal::Style::default());
        for words in [
            &*format!("Wasted branch records ({name})"),
            &format!("Useful branch records of 32 ({name})"),
            "not to be compared with virtual records",
            own,
            &format!("by kernel (any; {name})"),
        ] {
            assert!(text.contains(words), "{words:?} is missing in {text}");
        }
        // They have no other model.
        for words in ["The same on", "Different on", "amd-lbrv2"] {
            assert!(!text.contains(words), "{words:?} in {text}");
        }
        assert!(!terminal::render(&run, &view, terminal::Style::default()).contains("amd-lbrv2"));
    }
}

#[test]
fn names_rows_with_another_number_of_the_drivers_own() {
    let mut run = emulated();
    let text = |run: &Run| terminal::render(run, &View::default(), terminal::Style::default());
    assert!(!text(&run).contains("Another number"));
    let fexit = run.cells.iter_mut().find(|cell| cell.id.test.name() == "lbr_waste/fexit").unwrap();
    let Some(Measurement::LbrWaste(waste)) = &mut fexit.measurement else { unreachable!() };
    let traced = waste.points[0].traced.get_mut("any").unwrap();
    traced.wasted = traced.wasted.map(|wasted| wasted - 1);
    assert!(text(&run).contains("Another number: fexit any 3."), "{}", text(&run));
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

/// A run of this machine and of its image in a guest. Both have the records of one trace.
fn both() -> Run {
    let (mut both, mut here) = (run(), hardware());
    let name = both.kernels[0].name.clone();
    both.kernels.truncate(1);
    both.cells.retain(|cell| cell.id.kernel == name);
    here.cells.retain(|cell| cell.id.kernel == name);
    for cell in &mut here.cells {
        cell.id.kernel = "running".to_owned();
        cell.id.accel = Accel::Native;
        let Some(Measurement::Trigger(trigger)) = &mut cell.measurement else { continue };
        trigger.cost = None;
        let hits = u64::from(trigger.timed);
        let counter = |event: &str, refused: Option<&str>| HitCounter {
            event: event.to_owned(),
            refused: refused.map(str::to_owned),
            attached: vec![170 * hits],
            detached: vec![50 * hits],
        };
        trigger.counters =
            vec![counter("instructions:k", None), counter("cycles:k", Some("no such event"))];
    }
    let mut kernel = both.kernels[0].clone();
    kernel.name = "running".to_owned();
    both.kernels.insert(0, kernel);
    both.cells.splice(0..0, here.cells);
    both
}

fn beside_the_guest(run: &Run, about: &str) -> Option<Vec<Vec<String>>> {
    let tables = Document::new(run, &View::default()).comparison;
    let table = tables.into_iter().find(|table| table.caption.starts_with(about))?;
    assert!(table.caption.contains(" beside "), "{}", table.caption);
    Some(table.rows)
}

#[test]
fn this_machines_records_are_compared_row_by_row_with_its_images() {
    let of = |run: &Run| beside_the_guest(run, "Branch records of this machine");
    let mut run = both();
    let rows = of(&run).unwrap();
    assert!(rows.len() > 1);
    for row in &rows {
        let [same, all] = row[2].split(" of ").collect::<Vec<_>>()[..] else { panic!("{row:?}") };
        assert_eq!(same, all, "{row:?}");
        assert_eq!((&*row[1], &*row[3]), ("2", "the same records"), "{row:?}");
    }
    for name in ["terminal", "markdown"] {
        let text = match name {
            "terminal" => terminal::render(&run, &View::default(), terminal::Style::default()),
            _ => markdown::render(&run, &View::default()),
        };
        assert!(text.contains("the same records"), "{name}: {text}");
    }
    let Some(Measurement::LbrWaste(waste)) = &mut run.cells[0].measurement else { unreachable!() };
    waste.points[0].records[5].to.offset += 1;
    let other = of(&run).unwrap();
    assert!(other[0][2].starts_with("3 of "), "{other:?}");
    assert!(other[0][3].starts_with("#05 ") && !other[0][4].is_empty(), "{other:?}");
    assert_eq!(other[1..], rows[1..]);
    // Guests that boot as a CPU are nearer to a machine than usual ones.
    let mut as_zen4 = run.clone();
    boot_as_zen4(&mut as_zen4);
    let zen4 = of(&as_zen4).unwrap();
    assert!(zen4.iter().all(|row| row[2].starts_with("1 of ")), "{zen4:?}");
    // Records of a driver are no trace.
    let mut of_drivers = run.clone();
    for cell in of_drivers.cells.iter_mut().filter(|cell| cell.id.accel == Accel::Tcg) {
        let Some(Measurement::LbrWaste(waste)) = &mut cell.measurement else { continue };
        waste.source = BranchSource::Emulated;
    }
    assert_eq!(of(&of_drivers), None);
    // An image that does not name its build may be of another kernel, as its guests then say.
    for cell in run.cells.iter_mut().filter(|cell| cell.id.accel == Accel::Tcg) {
        let Some(guest) = &mut cell.guest else { continue };
        guest.version = "#2 SMP".to_owned();
    }
    assert_eq!(of(&run), None);
}

#[test]
fn this_machines_counters_stand_beside_exact_counts() {
    let rows = beside_the_guest(&both(), "Cost of a hit on this machine").unwrap();
    for row in rows {
        let exact: f64 = row[1].parse().unwrap();
        assert_eq!(row[3], format!("{:+.1}", 120.0 - exact), "{row:?}");
        assert!(row[2].starts_with("120.0"), "{row:?}");
        // A PMU that counts nothing, and one without the event.
        assert_eq!(row[4..7], ["-", "-", "-"], "{row:?}");
    }
}
