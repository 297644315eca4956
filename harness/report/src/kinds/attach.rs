// SPDX-License-Identifier: MIT OR Apache-2.0
//! `attach`: times, how they grow with the number of functions, and profiles.

mod cpus;
pub mod growth;

use super::{
    Report,
    trigger::{NOT_SEEN, all_functions},
};
use crate::{
    group::{ByKernel, Group},
    judged, programs,
    view::View,
};
use std::collections::BTreeMap;
use tramplab_analysis::{
    compare::{Comparison, Difference, Metric, Verdict, Waiting, jump},
    profile::{How, Phase, Summary, Unit, Waited, estimate::terms},
    spread::Spread,
};
use tramplab_model::{
    kinds::attach::{self, Number, SystemCalls},
    run::{Attach, AttachBoot, Cell, Clock, Kind, Measurement, Run, Test},
    table::Table,
};
use tramplab_protocol::{
    Functions,
    message::{AttachRound, Explain, Places, Refusal, Stopped},
};

/// Functions and waits that are named per phase.
const NAMED: usize = 4;
/// Smaller shares of a phase, in per cent, are not named.
const LEAST_PERCENT: f64 = 1.0;

pub struct Attaching;

impl Report for Attaching {
    fn line(&self, cell: &Cell) -> String {
        let Some(Measurement::Attach(attach)) = &cell.measurement else { return String::new() };
        let clock = if attach.boots.is_empty() { Clock::Exact } else { Clock::Free };
        let ms = |phase: attach::Phase| {
            level(attach, clock, phase, attach.rounds_of_a_clock()).unwrap_or("-".to_owned())
        };
        let [attached, detached] = [ms(attach::Phase::Attach), ms(attach::Phase::Detach)];
        let times = match attach.stopped() {
            None => format!("attach {attached} ms, detach {detached} ms"),
            Some(Stopped { wanted, attached: a, detached: d, .. }) => {
                format!("{a} of {wanted} attached in {attached} ms, {d} detached in {detached} ms")
            }
        };
        format!("{times} ({} clock)", clock_of(clock))
    }

    fn tables(&self, run: &Run, group: &Group, _view: &View) -> Vec<Table> {
        let cells = &group.cells;
        let mut times = times(cells);
        if let Some(table) = &mut times {
            table.notes.extend(programs::notes(run, Kind::Attach, cells));
            table.notes.extend(programs::remarks(Kind::Attach, cells));
            table.notes.extend(cpus::note(run, group));
        }
        let tables = [
            times,
            growth::table(cells),
            time_explained(cells),
            counted(cells),
            waits(cells),
            instructions(cells),
            estimates(cells),
            cpus::instructions(cells),
            system_calls(cells),
            functions(cells),
        ];
        tables.into_iter().flatten().collect()
    }

    /// The median time by each clock, and the attaching thread's instructions if they were counted.
    fn by_kernel(&self, _: &Run, groups: &[Group], _view: &View) -> Vec<Table> {
        let [mut by_host, mut exact, mut counted] = [(); 3].map(|()| ByKernel::new(groups));
        let (mut has_host, mut has_exact) = (false, false);
        for (column, group) in groups.iter().enumerate() {
            for (test, measured) in attaches(&group.cells) {
                let attach = match measured {
                    Ok(attach) => attach,
                    Err(outcome) => {
                        by_host.set(test, column, outcome.to_owned());
                        exact.set(test, column, outcome.to_owned());
                        continue;
                    }
                };
                if let Some(time) = median_time(attach, Clock::Free, &attach.boots) {
                    by_host.set(test, column, time);
                    has_host = true;
                }
                if let Some(time) = median_time(attach, Clock::Exact, attach.exact.as_slice()) {
                    exact.set(test, column, time);
                    has_exact = true;
                }
                if let Some(instructions) = to_attach(attach) {
                    counted.set(test, column, instructions.to_string());
                }
            }
        }
        let first = "mechanism/functions";
        let name = |test: attach::Test| test.to_string();
        let captions = [
            "Median attach time by kernel, ms by the host's clock",
            "Median attach time by kernel, ms by the exact clock (instructions as time)",
            "Instructions of the attaching thread to attach, by kernel (exact)",
        ];
        // Outcomes without a time are in the table of the clock that measured others.
        let is_shown = [has_host || !has_exact, has_exact, true];
        let tables = [by_host, exact, counted].into_iter().zip(captions).zip(is_shown);
        tables
            .filter(|(_, is_shown)| *is_shown)
            .filter_map(|((table, caption), _)| {
                table.table(groups, caption.to_owned(), first, name)
            })
            .collect()
    }

    fn compared(&self, comparison: &Comparison) -> Vec<Table> {
        [compared_times(comparison), compared_exactly(comparison)].into_iter().flatten().collect()
    }
}

fn clock_of(clock: Clock) -> &'static str {
    match clock {
        Clock::Free => "host's",
        Clock::Exact => "exact",
    }
}

/// None without a guest of the clock.
fn median_time(attach: &Attach, clock: Clock, boots: &[AttachBoot]) -> Option<String> {
    let rounds = boots.iter().flat_map(|boot| &boot.rounds);
    let time = level(attach, clock, attach::Phase::Attach, rounds)?;
    // Take the boot that attached the fewest functions.
    let stopped = boots.iter().filter_map(|boot| boot.stopped).min_by_key(|it| it.attached);
    Some(match stopped.filter(|stopped| stopped.attached < stopped.wanted) {
        Some(stopped) => format!("{time} for {}", stopped.attached),
        None => time,
    })
}

/// The median in ms. The range if rounds jump by a grace period: then no time is typical.
fn level<'a>(
    attach: &Attach,
    clock: Clock,
    phase: attach::Phase,
    rounds: impl Iterator<Item = &'a AttachRound>,
) -> Option<String> {
    let rounds: Vec<u64> = rounds.map(|round| phase.ns(round)).collect();
    let spread = Spread::of_ns(rounds.iter().copied())?;
    Some(match jumps(attach, clock, phase, &rounds) {
        true => spread.range(),
        false => format!("{:.2}", spread.median),
    })
}

/// Rounds of the exact clock differ by nothing else.
fn jumps(attach: &Attach, clock: Clock, phase: attach::Phase, rounds: &[u64]) -> bool {
    (attach.waits(phase) || attach.seems_to_wait(phase))
        && match clock {
            Clock::Free => jump(rounds),
            Clock::Exact => {
                Waiting::of(rounds, true).is_some_and(|waiting| waiting.level().is_none())
            }
        }
}

/// Instructions that the attaching thread executes to attach; none if they were not counted.
pub(crate) fn to_attach(attach: &Attach) -> Option<u64> {
    let counted =
        |summary: &&Summary| summary.phase == Phase::Attach && summary.how == Explain::Exact;
    attach.explained.iter().find(counted).map(|summary| summary.totals.task)
}

/// Attach cells with their measurement, or how they ended without one.
fn attaches<'a>(
    cells: &[&'a Cell],
) -> impl Iterator<Item = (attach::Test, Result<&'a Attach, &'static str>)> {
    cells.iter().filter_map(|cell| {
        let Test::Attach(test) = cell.id.test else { return None };
        let measured = match &cell.measurement {
            Some(Measurement::Attach(attach)) => Ok(attach),
            _ => Err(cell.outcome.name()),
        };
        Some((test, measured))
    })
}

const TIMES: [&str; 10] = [
    "mechanism",
    "functions",
    "clock",
    "programs",
    "links",
    "rounds",
    "load",
    "attach",
    "detach",
    "memory KiB",
];
/// Reasons that are told, and functions that are named for each, if the user chose among some.
const REFUSED: usize = 20;

fn times(cells: &[&Cell]) -> Option<Table> {
    let mut notes = Vec::new();
    let mut rows = Vec::new();
    let (mut has_jumps, mut has_no_memory) = (false, false);
    for (test, measured) in attaches(cells) {
        let name = test.attached();
        let attach = match measured {
            Ok(attach) => attach,
            Err(outcome) => {
                let mut row = vec![name, test.functions(), outcome.to_owned()];
                row.resize(TIMES.len(), String::new());
                rows.push(row);
                continue;
            }
        };
        let clocks: [(Clock, &[AttachBoot]); 2] =
            [(Clock::Free, &attach.boots), (Clock::Exact, attach.exact.as_slice())];
        for (clock, boots) in clocks {
            let Some(first) = boots.first() else { continue };
            let rounds = || boots.iter().flat_map(|boot| &boot.rounds);
            let mut row = vec![name.clone(), reached(test, first), clock_of(clock).to_owned()];
            row.extend(
                [first.programs, first.links, rounds().count() as u32].map(|n| n.to_string()),
            );
            row.extend(attach::Phase::ALL.map(|phase| {
                let rounds: Vec<u64> = rounds().map(|round| phase.ns(round)).collect();
                let Some(spread) = Spread::of_ns(rounds.iter().copied()) else {
                    return String::new();
                };
                let is_jumping = jumps(attach, clock, phase, &rounds);
                has_jumps |= is_jumping;
                if is_jumping { spread.range() } else { spread.to_string() }
            }));
            let memory = middle(rounds().filter_map(|round| round.memory_kib));
            row.push(match memory {
                Some(kib) if kib > 0 => kib.to_string(),
                Some(_) => NOT_SEEN.to_owned(),
                None => String::new(),
            });
            has_no_memory |= memory.is_some_and(|kib| kib <= 0);
            rows.push(row);
            notes.extend(first.stopped.map(|stopped| budget_note(test, clock, &stopped)));
        }
        let left_out = |why| format!("{test}: not explained: {why}");
        notes.extend(attach.unexplained.iter().map(left_out));
        let boot = attach.boots.first().or(attach.exact.as_ref());
        notes.extend(boot.and_then(|boot| refusals(test, boot)));
        let others = boot.map_or(&[][..], |boot| &boot.others);
        notes.extend(all_functions(test.beside, others));
    }
    if has_jumps {
        let note = "min..max without a median: rounds lie on several levels, mostly a grace period \
                    apart, so no time is typical.";
        notes.insert(0, note.to_owned());
    }
    if has_no_memory {
        let note = "memory ≈ 0: the links' memory is not distinguishable from 0.";
        notes.push(note.to_owned());
    }
    let caption = "Attach times in ms by the host's clock, or by the exact clock (instructions as \
                   time), median (min..max)";
    Table::new(caption, TIMES, rows).noted(notes).if_filled()
}

/// `1000`, `all (38559)`, `all@tcp_* (152)`, `271 of 1000`.
fn reached(test: attach::Test, boot: &AttachBoot) -> String {
    match (boot.stopped, test.functions) {
        (Some(Stopped { wanted, attached, .. }), _) if attached < wanted => {
            format!("{attached} of {wanted}")
        }
        (_, Functions::All) => format!("{} ({})", test.functions(), boot.functions),
        (_, Functions::Count(_) | Functions::Links { .. }) => test.functions(),
    }
}

fn budget_note(test: attach::Test, clock: Clock, stopped: &Stopped) -> String {
    let Stopped { wanted, attached, detached, seconds } = stopped;
    format!(
        "{test}, {} clock: the budget of {seconds} s ended it: {attached} of {wanted} attached, \
         {detached} of them detached; its times are of that many.",
        clock_of(clock)
    )
}

fn refusals(test: attach::Test, boot: &AttachBoot) -> Option<String> {
    if test.among.is_some() && !boot.refused.is_empty() {
        return Some(format!("{test}: refused: {}.", named(&boot.refused)));
    }
    let mut reasons: BTreeMap<&str, usize> = BTreeMap::new();
    for refusal in &boot.refused {
        let count = reasons.entry(&refusal.reason).or_default();
        *count = count.saturating_add(1);
    }
    let (reason, _) = reasons.iter().max_by_key(|(_, count)| **count)?;
    let more = match reasons.len().saturating_sub(1) {
        0 => String::new(),
        others => format!(", and {others} other reasons"),
    };
    Some(format!(
        "{test}: {} other functions were refused ({reason}{more}); run.json names them.",
        boot.refused.len()
    ))
}

/// Names by reason, in the order of the first name of each.
fn named(refused: &[Refusal]) -> String {
    let mut reasons: Vec<(&str, Vec<&str>)> = Vec::new();
    let mut places = BTreeMap::new();
    for Refusal { function, reason } in refused {
        let place = *places.entry(reason).or_insert(reasons.len());
        if place == reasons.len() {
            reasons.push((reason, Vec::new()));
        }
        reasons[place].1.push(function);
    }
    let group = |(reason, names): &(&str, Vec<&str>)| {
        let shown = names.iter().take(REFUSED).copied().collect::<Vec<_>>().join(", ");
        match names.len().saturating_sub(REFUSED) {
            0 => format!("{shown} ({reason})"),
            more => format!("{shown} and {more} more ({reason})"),
        }
    };
    let mut told: Vec<String> = reasons.iter().take(REFUSED).map(group).collect();
    let more = reasons
        .iter()
        .skip(REFUSED)
        .fold(0_usize, |sum, (_, names)| sum.saturating_add(names.len()));
    if more > 0 {
        told.push(format!("{more} more, which run.json names"));
    }
    told.join("; ")
}

fn middle(values: impl Iterator<Item = i64>) -> Option<i64> {
    let mut values: Vec<i64> = values.collect();
    values.sort_unstable();
    values.get(values.len() / 2).copied()
}

/// Profiled phases with their rows' names.
fn explained<'a>(cells: &[&'a Cell], how: Explain) -> impl Iterator<Item = (String, &'a Summary)> {
    attaches(cells)
        .filter_map(|(test, measured)| Some((test.to_string(), measured.ok()?)))
        .flat_map(move |(name, attach)| {
            let of_this = attach.explained.iter().filter(move |summary| summary.how == how);
            of_this.map(move |summary| (name.clone(), summary))
        })
}

/// Time on the CPU and waiting should add up to the wall time. The remainder is shown.
fn time_explained(cells: &[&Cell]) -> Option<Table> {
    let row = |(name, summary): (String, &Summary)| {
        let ms = |ns: i128| format!("{:.2}", ns as f64 / 1e6);
        let [wall, cpu, waited] =
            [summary.wall_ns, summary.cpu_ns, summary.waited_ns].map(i128::from);
        let remainder = wall.saturating_sub(cpu).saturating_sub(waited);
        let percent = 100.0 * remainder as f64 / (wall as f64).max(1.0);
        let mut row = vec![name, summary.phase.name().to_owned(), summary.rounds.to_string()];
        row.extend([wall, cpu, waited].map(ms));
        row.push(format!("{} ({percent:.1} %)", ms(remainder)));
        row
    };
    let caption = "Where the attaching thread's time went, ms by the host's clock, all rounds \
                   together (sampled)";
    let header = ["cell", "phase", "rounds", "wall", "on CPU", "waiting", "remainder"];
    let note = "remainder: time that the scheduler counts neither as the thread's own nor as \
                waiting; mostly from the wake-up of a thread that preempts it to the switch. \
                Between the phases of the last round tramplab reads names: a grace period that \
                detaching would wait for may end meanwhile.";
    let rows = explained(cells, Explain::Sampled).map(row);
    Table::new(caption, header, rows).noted([note]).if_filled()
}

/// Events that need a PMU.
const COUNTED: [&str; 4] = ["cycles", "instructions", "branches", "branch-misses"];

/// Counters as in `perf stat`, if the guest has a PMU.
fn counted(cells: &[&Cell]) -> Option<Table> {
    let mut rows = Vec::new();
    let mut estimated = false;
    for (name, summary) in explained(cells, Explain::Sampled) {
        let count = |event: &str| summary.counters.iter().find(|counter| counter.event == event);
        if COUNTED.iter().all(|event| count(event).is_none()) {
            continue;
        }
        estimated |=
            COUNTED.iter().filter_map(|event| count(event)).any(|counter| counter.estimated);
        let shown = |event| match count(event) {
            Some(counter) => {
                format!("{}{}", if counter.estimated { "~" } else { "" }, counter.count)
            }
            None => "-".to_owned(),
        };
        let per_cycle = match (count("instructions"), count("cycles")) {
            (Some(instructions), Some(cycles)) if cycles.count > 0 => {
                format!("{:.2}", instructions.count as f64 / cycles.count as f64)
            }
            _ => "-".to_owned(),
        };
        let head = [name, summary.phase.name().to_owned(), summary.rounds.to_string()];
        rows.push(head.into_iter().chain(COUNTED.map(shown)).chain([per_cycle]).collect());
    }
    let caption = "What the guest's PMU counted of the attaching thread, all rounds together";
    let header = ["cell", "phase", "rounds"].into_iter().chain(COUNTED).chain(["per cycle"]);
    let note = estimated.then_some("~: counted for a part of the time, and taken for the whole.");
    Table::new(caption, header, rows).noted(note).if_filled()
}

fn waits(cells: &[&Cell]) -> Option<Table> {
    let mut rows = Vec::new();
    for (name, summary) in explained(cells, Explain::Sampled) {
        let mut by_place: BTreeMap<String, (u64, u64)> = BTreeMap::new();
        for Waited { stack, ns, count } in &summary.waits {
            let place = by_place.entry(waited_in(stack)).or_default();
            *place = (place.0.saturating_add(*ns), place.1.saturating_add(*count));
        }
        let mut places: Vec<(String, (u64, u64))> = by_place.into_iter().collect();
        places.sort_by(|a, b| b.1.cmp(&a.1).then_with(|| a.0.cmp(&b.0)));
        let percent = |ns: u64| 100.0 * ns as f64 / (summary.wall_ns as f64).max(1.0);
        let telling = places.into_iter().filter(|(_, (ns, _))| percent(*ns) >= LEAST_PERCENT);
        for (place, (ns, count)) in telling.take(NAMED) {
            rows.push(vec![
                name.clone(),
                summary.phase.name().to_owned(),
                format!("{:.2}", ns as f64 / 1e6),
                format!("{:.1} %", percent(ns)),
                count.to_string(),
                place,
            ]);
        }
    }
    let caption = "What it waited for, longest first (from 1 % of the wall time)";
    let header = ["cell", "phase", "ms", "of wall", "times", "where"];
    Table::new(caption, header, rows).if_filled()
}

/// Functions of the scheduler, which all waits share.
const WAITING: [&str; 14] = [
    "__schedule",
    "schedule",
    "schedule_timeout",
    "schedule_preempt_disabled",
    "schedule_hrtimeout_range_clock",
    "preempt_schedule",
    "preempt_schedule_common",
    "preempt_schedule_irq",
    "__cond_resched",
    "wait_for_completion",
    "wait_for_completion_state",
    "__wait_for_common",
    "__wait_rcu_gp",
    "raw_irqentry_exit_cond_resched",
];

/// The innermost function outside the scheduler, and its caller.
fn waited_in(stack: &[String]) -> String {
    let mut telling = stack.iter().filter(|name| !WAITING.contains(&name.as_str()));
    match (telling.next(), telling.next()) {
        (Some(place), Some(caller)) => format!("{place} < {caller}"),
        (Some(place), None) => place.clone(),
        (None, _) => "an unknown place".to_owned(),
    }
}

fn instructions(cells: &[&Cell]) -> Option<Table> {
    let has_waits =
        explained(cells, Explain::Exact).any(|(_, summary)| summary.grace_periods.is_some());
    let has_places = explained(cells, Explain::Exact).any(|(_, summary)| summary.places.is_some());
    let row = |(name, summary): (String, &Summary)| {
        let totals = summary.totals;
        let clock = clock_of(summary.clock).to_owned();
        let mut row = vec![name, summary.phase.name().to_owned(), clock];
        row.extend([totals.task, totals.interrupts, totals.others].map(|n| n.to_string()));
        // An instruction takes a nanosecond of the exact clock.
        let own = totals.task.saturating_add(totals.interrupts);
        let waiting = summary.wall_ns.saturating_sub(own);
        row.push(match summary.clock {
            Clock::Free => "-".to_owned(),
            Clock::Exact => format!("{:.2}", waiting as f64 / 1e6),
        });
        let periods = || summary.grace_periods.map_or("-".to_owned(), |number| number.to_string());
        row.extend(has_waits.then(periods));
        row.extend(has_places.then(|| summary.places.map_or("-".to_owned(), place)));
        row
    };
    let header = ["cell", "phase", "clock", "attaching thread", "interrupts", "other threads"];
    let header = header.into_iter().chain(["waiting ms"]);
    let header = header.chain(has_waits.then_some("grace periods"));
    let header = header.chain(has_places.then_some("place"));
    let note = "By the exact clock they repeat; by the host's clock interrupts come elsewhere each \
                time. waiting: the exact clock's time in which neither the attaching thread nor an \
                interrupt ran; the round is another than those of the times. grace periods: how \
                often the thread waited for one.";
    let place = "place: of 100 of ftrace's records, how many are before the first and the last of \
                 the functions. Some steps walk the records up to a function.";
    let rows = explained(cells, Explain::Exact).map(row);
    Table::new("Instructions of one round, by whose work they were (exact)", header, rows)
        .noted([note].into_iter().chain(has_places.then_some(place)))
        .if_filled()
}

/// `50`, `1..98`
fn place(places: Places) -> String {
    let Places { first, last, records } = places;
    let share = |place: u32| format!("{:.0}", 100.0 * f64::from(place) / f64::from(records.max(1)));
    if first == last { share(first) } else { format!("{}..{}", share(first), share(last)) }
}

/// The parts of estimated cycles, and how much they hang on the largest.
fn estimates(cells: &[&Cell]) -> Option<Table> {
    let row = |(name, summary): (String, &Summary)| {
        let estimate = summary.estimate.as_ref()?;
        let terms = terms(estimate);
        let total = summary.totals.task;
        let percent = |cycles: u64| 100.0 * cycles as f64 / (total as f64).max(1.0);
        let named = terms.iter().filter(|(_, cycles)| percent(*cycles) >= LEAST_PERCENT);
        let named =
            named.map(|(term, cycles)| format!("{} {:.1} %", term.name(), percent(*cycles)));
        let half = terms.first().map_or(0, |(_, cycles)| cycles / 2);
        Some(vec![
            name,
            summary.phase.name().to_owned(),
            estimate.cpu.clone(),
            total.to_string(),
            format!("{}..{}", total.saturating_sub(half), total.saturating_add(half)),
            named.collect::<Vec<_>>().join(", "),
        ])
    };
    let header = ["cell", "phase", "CPU", "cycles", "largest part x 0.5..1.5", "parts"];
    let rows = explained(cells, Explain::Estimated).filter_map(row);
    let note = "Of the attaching thread, interrupts left out. No CPU was measured: instructions \
                and the events of a modelled CPU are weighed, as `docs/estimated-cycles.md` says.";
    Table::new("Estimated cycles of one warm round, by what costs them", header, rows)
        .noted([note])
        .if_filled()
}

/// The cost of the same system calls, before and while all is attached.
fn system_calls(cells: &[&Cell]) -> Option<Table> {
    let counted = |(test, measured): (attach::Test, Result<&Attach, _>)| {
        let SystemCalls { calls, before, attached, clock, .. } = measured.ok()?.system_calls?;
        let times = attached as f64 / (before as f64).max(1.0);
        let mut row = vec![test.to_string(), clock_of(clock).to_owned(), calls.to_string()];
        row.extend([before.to_string(), attached.to_string(), format!("{times:.2}")]);
        Some(row)
    };
    let caption =
        "Instructions of system calls before attaching, and while all is attached (exact)";
    let header = ["cell", "clock", "system calls", "before", "attached", "times"];
    let note = "The calling thread's own, interrupts left out: getppid, stat, /proc/version read, \
                a byte through a pipe and through a Unix socket, ten times. Tracers beside are \
                attached in both.";
    let rows = attaches(cells).filter_map(counted);
    Table::new(caption, header, rows).noted([note]).if_filled()
}

/// The functions in which the attaching thread spent most, without what they call.
fn functions(cells: &[&Cell]) -> Option<Table> {
    let row = |(name, summary): (String, &Summary)| {
        let how = match summary.unit {
            Unit::Instructions => "exact".to_owned(),
            Unit::EstimatedCycles => "estimated cycles".to_owned(),
            // Few samples make the shares rough.
            Unit::Samples | Unit::Nanoseconds => format!("{} samples", summary.totals.task),
        };
        let percent = |own: u64| 100.0 * own as f64 / (summary.totals.task as f64).max(1.0);
        let dearest = summary.functions.iter().take(NAMED);
        let named = dearest
            .filter(|cost| percent(cost.own) >= LEAST_PERCENT)
            .map(|cost| format!("{} {:.1} %", cost.function.name, percent(cost.own)));
        vec![name, summary.phase.name().to_owned(), how, named.collect::<Vec<_>>().join(", ")]
    };
    let there = |how| explained(cells, how).next().is_some();
    let mut notes =
        vec!["Call paths, flame graphs, the whole of it: `profile RUN CELL`.".to_owned()];
    if there(Explain::Exact) && there(Explain::Sampled) {
        let believed = |how: How| format!("Believe {}.", how.believed_for());
        notes.extend([How::Exact, How::Sampled].map(believed));
    }
    let all = [Explain::Exact, Explain::Estimated, Explain::Sampled];
    let all = all.into_iter().flat_map(|how| explained(cells, how));
    let header = ["cell", "phase", "how", "functions"];
    Table::new("What the attaching thread did, by function", header, all.map(row))
        .noted(notes)
        .if_filled()
}

fn number(metric: Metric) -> Option<Number> {
    match metric {
        Metric::Attach(metric) => Some(metric.number),
        _ => None,
    }
}

fn compared_times(all: &Comparison) -> Option<Table> {
    let is_time = |metric| matches!(number(metric), Some(Number::Time(_)));
    let note = "Guest time by the host's clock: median (min..max) over boots of each boot's median \
                round. Change: geometric mean of head / base over pairs of boots, with a \
                confidence interval that holds for all times together (99 %).";
    let table = judged::table("Times by the host's clock, base -> head", all, is_time);
    table.noted([note]).if_filled()
}

/// The numbers of attaching that repeat.
fn compared_exactly(all: &Comparison) -> Option<Table> {
    let is_exact = |metric| {
        matches!(
            number(metric),
            Some(
                Number::ExactTime(_)
                    | Number::Instructions { .. }
                    | Number::GracePeriods(_)
                    | Number::SystemCalls
                    | Number::EstimatedCycles(_)
            )
        )
    };
    let mut notes = vec![
        "exact: time by the exact clock, waiting included, the median round, or min..max if rounds \
         jump by grace periods. instructions: the attaching thread's own, interrupts left out: the \
         work without waits. grace_periods: how often it waited for one.",
    ];
    if all.metrics.iter().any(|compared| number(compared.metric) == Some(Number::SystemCalls)) {
        notes.push("syscall_instructions: fixed system calls while all is attached.");
    }
    if all.count(|verdict| *verdict == Verdict::Same(Difference::Layout)) > 0 {
        notes.push(
            "same (layout): adding code that nobody calls moves it as far; --placebos 3 measures \
             how far.",
        );
    }
    let caption = "Attaching by the exact clock (instructions as time), base -> head";
    judged::table(caption, all, is_exact).noted(notes).if_filled()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn refusal(function: &str, reason: &str) -> Refusal {
        Refusal { function: function.to_owned(), reason: reason.to_owned() }
    }

    #[test]
    fn tells_the_reason_of_each_refused_name() {
        let mut refused: Vec<Refusal> = (0..14)
            .map(|number| refusal(&format!("f{number}"), &format!("f{number} is __init")))
            .collect();
        refused.extend(["a", "b"].map(|name| refusal(name, "EINVAL")));
        let told = named(&refused);
        assert!((0..14).all(|n| told.contains(&format!("f{n} (f{n} is __init); "))), "{told}");
        assert!(told.ends_with("a, b (EINVAL)"), "{told}");
    }

    /// A pattern may match thousands.
    #[test]
    fn limits_refused_names() {
        let many: Vec<Refusal> = (0..1000).map(|n| refusal(&format!("f{n}"), "EINVAL")).collect();
        let told = named(&many);
        assert!(told.ends_with("f19 and 980 more (EINVAL)"), "{told}");
        let each: Vec<Refusal> = (0..1000).map(|n| refusal("f", &n.to_string())).collect();
        let told = named(&each);
        assert!(told.ends_with("f (19); 980 more, which run.json names"), "{told}");
    }

    #[test]
    fn names_a_wait_by_its_function_outside_the_scheduler() {
        let stack =
            |names: &[&str]| names.iter().map(|name| (*name).to_owned()).collect::<Vec<_>>();
        for (names, place) in [
            (
                &[
                    "__schedule",
                    "schedule",
                    "schedule_timeout",
                    "__wait_for_common",
                    "__wait_rcu_gp",
                    "synchronize_rcu_tasks",
                    "unregister_ftrace_direct",
                ][..],
                "synchronize_rcu_tasks < unregister_ftrace_direct",
            ),
            (&["__schedule", "__cond_resched", "mutex_lock"], "mutex_lock"),
            (&["__schedule"], "an unknown place"),
            (&[], "an unknown place"),
        ] {
            assert_eq!(waited_in(&stack(names)), place);
        }
    }
}
