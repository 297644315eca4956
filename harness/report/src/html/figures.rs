// SPDX-License-Identifier: MIT OR Apache-2.0
//! The pictures of a run, from the numbers of its tables.

use super::{
    plot::{
        Figure, Plot,
        bars::{Stack, bars},
        growth::{Grown, growth},
        times::{Timed, times},
    },
    room::shown,
};
use crate::{
    group::Group,
    kinds::{attach, trigger},
};
use tramplab_model::{
    kinds::{Kind, attached},
    text,
};

/// Kernels whose growth is drawn.
const KERNELS: usize = 8;

pub fn of(kind: Kind, groups: &[Group]) -> Vec<Figure> {
    match kind {
        Kind::Attach => attaching(groups).into_iter().chain(growing(groups)).collect(),
        Kind::Trigger => hits(groups).into_iter().collect(),
        Kind::LbrWaste
        | Kind::Bench
        | Kind::TestProgs
        | Kind::Kselftest
        | Kind::Survive
        | Kind::Boot
        | Kind::Build
        | Kind::Fault => Vec::new(),
    }
}

/// The kernel's name; on several architectures or accelerators with these.
fn name(group: &Group, groups: &[Group]) -> String {
    let is_other = |other: &Group| (other.arch, other.accel) != (group.arch, group.accel);
    let name = match groups.iter().any(is_other) {
        true => format!("{} {} {}", group.kernel, group.arch, group.accel.name()),
        false => group.kernel.to_owned(),
    };
    shown(&name)
}

/// The rows of one test are neighbours, whatever the kernel.
fn attaching(groups: &[Group]) -> Option<Figure> {
    let mut all = Vec::new();
    for (number, group) in groups.iter().enumerate() {
        for rounds in attach::growth::rounds(&group.cells) {
            let attach::growth::Rounds { test, clock, phase, ns, stopped } = rounds;
            // The budget of time ended it: its time is that of fewer functions.
            let of = stopped.map_or_else(String::new, |count| format!(" (only {count})"));
            let label = format!("{test} {phase}{of}, {clock} clock");
            let ms = ns.iter().map(|&ns| ns as f64 / 1e6).collect();
            let timed = Timed { label: shown(&label), kernel: name(group, groups), number, ms };
            all.push(((test, phase, clock), timed));
        }
    }
    all.sort_by_key(|(key, timed)| (*key, timed.number));
    let all: Vec<Timed> = all.into_iter().map(|(_, timed)| timed).collect();
    let (plot, left_out) = times(&all)?;
    Some(Figure {
        caption: "Times to attach and detach, ms by the clock that the row names: each round, the \
                  median, and the range from the shortest to the longest"
            .to_owned(),
        plot: Plot::Times(plot),
        notes: left_out_note(left_out, "row"),
    })
}

fn growing(groups: &[Group]) -> Vec<Figure> {
    let mut figures = Vec::new();
    for group in groups.iter().take(KERNELS) {
        let quantities = attach::growth::by_size(&group.cells);
        for (unit, instructions) in
            [("ms by the clock that the line names", false), ("instructions", true)]
        {
            let of_unit = quantities
                .iter()
                .filter(|(quantity, _)| attach::growth::is_instructions(quantity) == instructions);
            let grown = of_unit.map(|(&(mechanism, program, of), points)| Grown {
                label: format!("{} {of}", attached(mechanism, program)),
                points: points.clone(),
            });
            let Some((plot, left_out)) = growth(&grown.collect::<Vec<_>>(), unit) else {
                continue;
            };
            figures.push(Figure {
                caption: format!(
                    "Growth with the number of functions on {}, {unit}: both axes are \
                     logarithmic, lines are fits",
                    name(group, groups)
                ),
                plot: Plot::Growth(plot),
                notes: left_out_note(left_out, "more line"),
            });
        }
    }
    figures
}

fn hits(groups: &[Group]) -> Option<Figure> {
    let mut all = Vec::new();
    for (number, group) in groups.iter().enumerate() {
        for (test, functions) in trigger::by_function(group) {
            let parts = functions.into_iter().map(|(name, count)| (shown(&name), count));
            let stack = Stack {
                label: shown(&test.to_string()),
                kernel: name(group, groups),
                parts: parts.collect(),
            };
            all.push(((test, number), stack));
        }
    }
    all.sort_by_key(|(key, _)| *key);
    let all: Vec<Stack> = all.into_iter().map(|(_, stack)| stack).collect();
    let (plot, left_out) = bars(&all)?;
    Some(Figure {
        caption: "Instructions of a hit, by function".to_owned(),
        plot: Plot::Bars(plot),
        notes: left_out_note(left_out, "more bar"),
    })
}

fn left_out_note(count: usize, noun: &str) -> Vec<String> {
    let note = || format!("Not drawn: {}.", text::counted(count, noun));
    (count > 0).then(note).into_iter().collect()
}
