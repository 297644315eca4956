// SPDX-License-Identifier: MIT OR Apache-2.0
//! One line per cell, printed as it ends.

use super::{selftests, throughput};
use tramplab_analysis::{
    branch::{Branch, Filter, Model, waste},
    spread::Spread,
};
use tramplab_model::{
    run::{BranchSource, Cell, Measurement, Outcome, Row},
    text::{line, plain},
};
use tramplab_protocol::message::Stopped;

/// `pass  x86_64/6.12/tcg/lbr_waste/fexit  5.2 s  wasted: any 8, any_return 4`.
pub fn cell_line(cell: &Cell) -> String {
    let seconds = cell.duration_ms as f64 / 1e3;
    let head = format!("{:<5} {:<52} {seconds:6.1} s", cell.outcome.name(), line(&cell.id.name()));
    let rest = match (&cell.outcome, &cell.measurement) {
        (Outcome::Skip { reason }, _) => reason.clone(),
        (Outcome::Error { kind, message }, _) => format!("{kind}: {message}"),
        (Outcome::Fail { reasons }, _) => reasons.join("; "),
        (Outcome::Pass, Some(measurement)) => measured(cell, measurement),
        (Outcome::Pass, None) => String::new(),
    };
    // Of several lines only the first begins where cells do: a guest's words cannot pass for another cell.
    let rest = plain(&rest).replace('\n', "\n      ");
    format!("{head}  {rest}").trim_end().to_owned()
}

fn measured(cell: &Cell, measurement: &Measurement) -> String {
    match measurement {
        Measurement::Boot => {
            cell.boot_ms.map_or_else(String::new, |ms| format!("boots in {:.1} s", ms as f64 / 1e3))
        }
        Measurement::LbrWaste(measured) => {
            let model = Model::choose(None, cell.id.arch);
            let points = measured.points.iter().map(|capture| {
                let row = Row { mechanism: measured.mechanism, point: capture.point };
                let counts = [Branch::Any, Branch::AnyReturn].map(|branch| {
                    let count = waste::count_at(model, Filter::of(branch), capture, &measured.function);
                    let wasted = count.wasted.map_or("-".to_owned(), |n| n.to_string());
                    format!("{} {wasted}", branch.name())
                });
                format!("{row} wastes {}", counts.join(", "))
            });
            let mark = if measured.source == BranchSource::Hardware { " (hardware)" } else { "" };
            points.collect::<Vec<_>>().join("; ") + mark
        }
        Measurement::Attach(attach) => {
            let ms = |of: fn(&tramplab_protocol::message::AttachRound) -> u64| {
                Spread::of_ns(attach.rounds_of_a_clock().map(of))
                    .map_or("-".to_owned(), |spread| format!("{:.2}", spread.median))
            };
            let [attached, detached] = [ms(|r| r.attach_ns), ms(|r| r.detach_ns)];
            match attach.stopped() {
                None => format!("attach {attached} ms, detach {detached} ms"),
                Some(Stopped { wanted, attached: a, detached: d, .. }) => {
                    format!("{a} of {wanted} attached in {attached} ms, {d} detached in {detached} ms")
                }
            }
        }
        Measurement::Trigger(trigger) => {
            let cost = trigger.cost.as_ref();
            let counts = cost
                .map(|cost| format!("{} instructions, {} branches", cost.instructions(), cost.branches()));
            let time = throughput::overhead_ns(trigger).map(|ns| format!("{ns:.0} ns"));
            format!("{} per hit", [counts, time].into_iter().flatten().collect::<Vec<_>>().join(", "))
        }
        Measurement::Bench(bench) => {
            selftests::rate(bench).map_or_else(String::new, |rate| format!("{rate:.3} M hits/s"))
        }
        Measurement::TestProgs(test) | Measurement::Kselftest(test) => selftests::subtests(test),
    }
}
