// SPDX-License-Identifier: MIT OR Apache-2.0
//! Checks figures in `docs/` against the recorded runs they come from.

use crate::tests::series;
use tramplab_analysis::{
    branch::{Branch, Filter, Model, waste},
    compare,
};
use tramplab_model::kinds::{lbr_waste, trigger::Cost};
use tramplab_model::run::{CapturePoint, LbrWaste, Measurement, Run, Test};
use tramplab_protocol::{Mechanism, message::Symbol};

pub const SHIPPED: &str = include_str!("../../../docs/shipped-series.md");
const ATTACH: &str = include_str!("../../../docs/attach.md");
const COMPARING: &str = include_str!("../../../docs/comparing.md");
const SUITES: &str = include_str!("../../../docs/suites.md");
const HIT_COST: &str = include_str!("../../../docs/hit-cost.md");
const MODEL: Model = Model::IntelLbr;

pub fn waste_of(run: &Run, kernel: &str, mechanism: Mechanism) -> LbrWaste {
    let is_it = |cell: &&tramplab_model::run::Cell| {
        cell.id.kernel == kernel
            && cell.id.test
                == Test::LbrWaste(lbr_waste::Test { mechanism, program: None, function: None })
    };
    match run.cells.iter().find(is_it).and_then(|cell| cell.measurement.clone()) {
        Some(Measurement::LbrWaste(measured)) => measured,
        other => panic!("{kernel} {mechanism}: {other:?}"),
    }
}

pub fn only(measured: &LbrWaste) -> (&CapturePoint, &Symbol) {
    let [point] = &measured.points[..] else { panic!("{} points", measured.points.len()) };
    (point, &measured.function)
}

/// Returns the cells of each row of the table that follows `heading`.
pub fn table<'a>(page: &'a str, heading: &str) -> Vec<Vec<&'a str>> {
    let at = page.find(heading).unwrap_or_else(|| panic!("no {heading:?}"));
    let lines = page[at..].lines().skip_while(|line| !line.starts_with('|'));
    lines
        .take_while(|line| line.starts_with('|'))
        .skip(2)
        .map(|line| line.trim_matches('|').split('|').map(str::trim).collect())
        .collect()
}

#[test]
fn pages_list_every_cost_of_a_hit_and_every_mechanism() {
    for cost in Cost::ALL {
        assert!(COMPARING.contains(&format!(".{}`", cost.name())), "{}", cost.name());
    }
    for mechanism in Mechanism::ALL {
        assert!(SUITES.contains(&format!("`{mechanism}`")), "{mechanism}");
    }
}

#[test]
fn the_page_has_the_wasted_records_of_the_recorded_run() {
    let rows = table(SHIPPED, "\n## Measured\n");
    let is_ours = |row: &&Vec<&str>| row[0].contains("lbr-helpers");
    let from = rows.iter().position(|row| is_ours(&row)).expect("rows of lbr-helpers");
    for (row, (mechanism, branch)) in rows[from..].iter().zip([
        (Mechanism::Fexit, Branch::Any),
        (Mechanism::Fexit, Branch::AnyReturn),
        (Mechanism::KretprobeMulti, Branch::Any),
        (Mechanism::KretprobeMulti, Branch::AnyReturn),
    ]) {
        let filter = Filter::of(branch);
        assert!(row[0].ends_with(mechanism.name()) && row[1] == format!("`{filter}`"), "{row:?}");
        let counted = ["6.12-source+lbr-helpers.0", "6.12-source+lbr-helpers.1", "6.12-source"]
            .map(|kernel| {
                let measured = waste_of(&series(), kernel, mechanism);
                let (point, function) = only(&measured);
                waste::count_at(MODEL, filter, point, function).wasted.unwrap().to_string()
            });
        assert_eq!(row[2..5], counted, "{row:?}");
    }
    assert_eq!(rows.len() - from, 4);
}

/// Names the function of a place such as `bpf_trampoline_6442505049+0x31`, without the parts that
/// change with every build.
pub fn function(place: &str) -> &str {
    match place.split('+').next().unwrap() {
        name if name.starts_with("bpf_trampoline_") => "bpf_trampoline",
        name if name.starts_with("bpf_prog_") => "program",
        name => name,
    }
}

#[test]
fn pages_have_the_numbers_of_each_series_alone() {
    let alone = table(ATTACH, "\n### Each series alone\n");
    let call_ops = table(HIT_COST, "\n### Without a function's own ops\n");
    let runs = tramplab_testdata::each_alone().into_iter().map(|run| (run, &alone));
    for (run, rows) in runs.chain([(tramplab_testdata::call_ops(), &call_ops)]) {
        let [series] = &run.series[..] else { panic!("{} series", run.series.len()) };
        let comparison = compare::whole(&run, series, None);
        let named = format!("`{}`", series.name);
        let ours: Vec<_> = rows.iter().filter(|row| row[0] == named).collect();
        assert!(!ours.is_empty(), "{named} has no row");
        for row in ours {
            let metric = row[1].trim_matches('`');
            let compared = comparison.metrics.iter().find(|it| it.metric.to_string() == metric);
            let compared = compared.unwrap_or_else(|| panic!("{named} did not measure {metric}"));
            let measured = [&compared.base, &compared.head].map(ToString::to_string);
            assert_eq!([2, 3].map(|column| row[column].replace(',', "")), measured, "{row:?}");
        }
    }
}
