// SPDX-License-Identifier: MIT OR Apache-2.0
//! `trigger`: the cost of a hit, and the branches that it runs.

mod beside;

use super::Report;
use crate::{
    group::{ByKernel, Group},
    judged,
    parts::Listing,
    programs,
    view::View,
};
use std::{
    collections::{BTreeMap, BTreeSet},
    iter,
};
use tramplab_analysis::{
    branch::{
        self, Share, Split,
        listing::{Line, missed_lines, printed, trigger_lines},
        stable_name,
    },
    compare::{self, Comparison, Metric},
    profile::estimate::{Term, terms_of_hits},
    spread::Spread,
};
use tramplab_model::{
    kinds::trigger::{self, Cost, EstimatedHit},
    run::{
        Accel, Cell, Kind, Measurement, Predicted, Run, Test, Trigger, TriggerCost, TriggerPart,
    },
    table::Table,
};
use tramplab_protocol::{
    Beside, BesideSet, Functions, Point,
    message::{HitCounter, Others},
};

/// In place of a number that is not distinguishable from 0.
pub(super) const NOT_SEEN: &str = "≈ 0";

pub struct Hit;

impl Report for Hit {
    fn line(&self, cell: &Cell) -> String {
        let Some(Measurement::Trigger(trigger)) = &cell.measurement else { return String::new() };
        let counts = trigger.cost.as_ref().map(|cost| counts(|of| cost.count(of)));
        let time = overhead_ns(trigger).map(|ns| match is_seen(ns) {
            true => format!("{ns:.0} ns"),
            false => "time not distinguishable from 0".to_owned(),
        });
        format!("{} per hit", [counts, time].into_iter().flatten().collect::<Vec<_>>().join(", "))
    }

    fn tables(&self, run: &Run, group: &Group, _view: &View) -> Vec<Table> {
        let mut notes = programs::notes(run, Kind::Trigger, &group.cells);
        let program = match triggers(group).all(|(test, _)| test.program.is_none()) {
            true => "the empty program",
            false => "a program, its own instructions included",
        };
        let mut shown = shown(group);
        shown.retain(|cost| !cost.is_predicted());
        let mut header = vec!["mechanism", "at entry", "at exit"];
        header.extend(shown.iter().map(|cost| cost.name()));
        let is_timed = |trigger: &Trigger| overhead_ns(trigger).is_some();
        let times = triggers(group).any(|(_, measured)| measured.is_ok_and(is_timed));
        header.extend(["ns", "hits/s"].iter().filter(|_| times));
        let (mut rows, mut all, mut is_split) = (Vec::new(), BTreeSet::new(), false);
        for (test, measured) in triggers(group) {
            let name = test.to_string();
            let mut row = vec![name.clone()];
            match measured {
                Ok(trigger) => {
                    let exact = |of: &dyn Fn(&TriggerCost) -> Option<u32>| {
                        trigger
                            .cost
                            .as_ref()
                            .and_then(of)
                            .map_or_else(|| "-".to_owned(), |n| n.to_string())
                    };
                    let at = |point| exact(&|cost| Some(cost.part(point)?.instructions));
                    row.extend([at(Point::Entry), at(Point::Exit)]);
                    let split = split_of(trigger);
                    let of = |&of: &Cost| match split.and_then(|split| sum(of, split)) {
                        Some(sum) => format!("{} = {sum}", exact(&|cost| cost.count(of))),
                        None => exact(&|cost| cost.count(of)),
                    };
                    row.extend(shown.iter().map(of));
                    is_split |= split.is_some();
                    let time = overhead_ns(trigger);
                    row.push(match time {
                        Some(ns) if is_seen(ns) => format!("{ns:.0}"),
                        Some(_) => NOT_SEEN.to_owned(),
                        None => String::new(),
                    });
                    notes.extend(
                        time.filter(|&ns| !is_seen(ns))
                            .map(|_| format!("{name}: its time is not distinguishable from 0.")),
                    );
                    let rate = hits_per_second(trigger);
                    row.push(rate.map_or_else(String::new, |rate| format!("{rate:.0}")));
                    row.truncate(header.len());
                    notes.extend(trigger.cost.as_ref().and_then(|cost| disagreement(&name, cost)));
                    notes.extend(shortened(&name, trigger, split));
                    all.extend(all_functions(test.beside, &trigger.others));
                }
                Err(outcome) => {
                    row.push(outcome.to_owned());
                    row.resize(header.len(), String::new());
                }
            }
            rows.push(row);
        }
        notes.extend(is_split.then(|| "Sums are mechanism + program + helpers.".to_owned()));
        notes.extend(all);
        let measured = triggers(group).filter_map(|(test, measured)| Some((test, measured.ok()?)));
        notes.extend(unestimated(measured.map(|(test, trigger)| (test.to_string(), trigger))));
        notes.extend(programs::remarks(Kind::Trigger, &group.cells));
        notes.extend(match group.accel {
            Accel::Kvm => Some(
                "Under KVM nothing counts instructions, branches and accesses: only times are \
                 measured."
                    .to_owned(),
            ),
            Accel::Native => uncounted(group),
            Accel::Tcg => None,
        });
        let mut titles: Vec<&str> = shown
            .iter()
            .chain(times.then_some(&Cost::Time))
            .map(|of| of.definition().title)
            .collect();
        titles.dedup();
        titles.extend(times.then_some("median (min..max)"));
        let caption = format!("Cost of a hit of {program}: {}", titles.join(", "));
        let table = Table::new(caption, header, rows).noted(notes).if_filled();
        let others = [counted(group), increments(group), predictions(group), estimates(group)];
        table.into_iter().chain(others.into_iter().flatten()).collect()
    }

    /// One for each part of a hit.
    fn listings(&self, group: &Group, view: &View) -> Vec<Listing> {
        if view.listings.is_empty() {
            return Vec::new();
        }
        let listing = |(caption, lines): (String, Vec<Line>)| Listing {
            caption,
            text: printed(&lines, group.lines),
        };
        lists(group).into_iter().map(listing).collect()
    }

    fn by_kernel(&self, _: &Run, groups: &[Group], _view: &View) -> Vec<Table> {
        let table = |costs: &[Cost]| {
            let of = |cost: &TriggerCost| {
                let counts = costs.iter().map(|&of| Some(cost.count(of)?.to_string()));
                Some(counts.collect::<Option<Vec<_>>>()?.join(" / "))
            };
            let mut hits = ByKernel::new(groups);
            for (column, group) in groups.iter().enumerate() {
                for (test, measured) in triggers(group) {
                    let value = match measured {
                        Ok(trigger) => {
                            trigger.cost.as_ref().and_then(of).unwrap_or_else(|| "-".to_owned())
                        }
                        Err(outcome) => outcome.to_owned(),
                    };
                    hits.set(test, column, value);
                }
            }
            let caption = format!("{} of a hit by kernel", costs[0].definition().by_kernel);
            hits.table(groups, caption, "mechanism", |test: trigger::Test| test.to_string())
        };
        let all: BTreeSet<Cost> = groups.iter().flat_map(shown).collect();
        let all: Vec<Cost> = all.into_iter().collect();
        let tables = all.chunk_by(|a, b| a.definition().by_kernel == b.definition().by_kernel);
        tables.filter_map(table).chain(beside::tables(groups)).collect()
    }

    /// A row per mechanism. Predicted costs have a table of their own.
    fn compared(&self, comparison: &Comparison) -> Vec<Table> {
        let mut tables: Vec<Table> =
            [false, true].into_iter().filter_map(|is| costs_compared(comparison, is)).collect();
        if let Some(first) = tables.first_mut() {
            first.notes.push("Times are those of one boot each, and not judged.".to_owned());
        }
        tables
    }
}

fn costs_compared(comparison: &Comparison, predicted: bool) -> Option<Table> {
    let costs = Cost::ALL.into_iter().filter(|cost| cost.is_predicted() == predicted);
    let costs: Vec<Cost> = costs.collect();
    let mut rows: BTreeMap<trigger::Test, Vec<String>> = BTreeMap::new();
    for compared in &comparison.metrics {
        let Metric::Trigger(trigger::Metric { test, cost }) = compared.metric else { continue };
        let Some(column) = costs.iter().position(|&known| known == cost) else { continue };
        let cells = rows.entry(test).or_insert_with(|| vec![String::new(); costs.len()]);
        cells[column] = judged::sides(compared);
    }
    let is_shown = |&column: &usize| {
        let is_optional = costs[column].definition().is_optional;
        !is_optional || rows.values().any(|cells| !cells[column].is_empty())
    };
    let shown: Vec<usize> = (0..costs.len()).filter(is_shown).collect();
    let names = shown.iter().map(|&column| costs[column].name());
    let header = iter::once("mechanism").chain(names);
    let row = |(test, cells): (&trigger::Test, &Vec<String>)| {
        let cells = shown.iter().map(|&column| cells[column].clone());
        iter::once(test.to_string()).chain(cells).collect()
    };
    let caption = match predicted {
        false => "Cost of a hit, base -> head",
        true => "Mispredicted from a hit to the next, base -> head",
    };
    Table::new(caption, header, rows.iter().map(row)).if_filled()
}

/// The costs of each program less those of the empty one. None if the group measures no program in
/// both ways.
fn increments(group: &Group) -> Option<Table> {
    let measured: BTreeMap<trigger::Test, &TriggerCost> = triggers(group)
        .filter_map(|(test, measured)| Some((test, measured.ok()?.cost.as_ref()?)))
        .collect();
    let costs = [Cost::Instructions, Cost::Branches, Cost::Reads, Cost::Writes];
    let row = |(test, cost): (&trigger::Test, &&TriggerCost)| {
        test.program?;
        let empty = measured.get(&trigger::Test { program: None, ..*test })?;
        let more = |of| Some(i64::from(cost.count(of)?).saturating_sub(empty.count(of)?.into()));
        let more = costs.map(|of| more(of).map_or_else(|| "-".to_owned(), |more| more.to_string()));
        Some(iter::once(test.to_string()).chain(more).collect())
    };
    let header = iter::once("mechanism").chain(costs.map(Cost::name));
    let caption = "Cost of a hit of a program less that of the empty program";
    Table::new(caption, header, measured.iter().filter_map(row)).if_filled()
}

/// The mispredicted branches of each hit. None if no run of the group predicts any.
fn predictions(group: &Group) -> Option<Table> {
    let (mut rows, mut notes, mut depths) = (Vec::new(), Vec::new(), BTreeSet::new());
    for (test, measured) in triggers(group) {
        let Some(cost) = measured.ok().and_then(|trigger| trigger.cost.as_ref()) else { continue };
        let Some(predicted) = &cost.predicted else {
            notes.push(format!(
                "{test}: nothing is predicted: a command hit the function, or interrupts fell into \
                 too many hits."
            ));
            continue;
        };
        depths.insert(predicted.depth.to_string());
        rows.push(vec![
            test.to_string(),
            format!("{} of {}", predicted.mispredicted_returns, predicted.returns),
            format!("{} of {}", predicted.mispredicted_indirect, predicted.indirect),
        ]);
    }
    let depths = Vec::from_iter(depths).join(", ");
    let caption = format!("Mispredicted from a hit to the next, by a return stack of {depths}");
    let header = ["mechanism", "returns", "indirect branches"];
    Table::new(caption, header, rows).noted(notes).if_filled()
}

/// Why the host's own CPU counted no event at all.
fn uncounted(group: &Group) -> Option<String> {
    let mut counters = triggers(group)
        .filter_map(|(_, measured)| measured.ok())
        .flat_map(|trigger| &trigger.counters)
        .peekable();
    let first = counters.peek()?.refused.clone()?;
    counters
        .all(|counter| counter.refused.is_some())
        .then(|| format!("perf counted no event of a hit: {first}."))
}

/// Why a counter tells nothing. An emulated PMU may take an event and count nothing.
fn not_counted(counter: &HitCounter) -> Option<&str> {
    let is_idle = counter.attached.iter().chain(&counter.detached).all(|&count| count == 0);
    counter.refused.as_deref().or(is_idle.then_some("it stayed 0"))
}

/// The events of a hit that the host's own CPU counted. None in a guest.
fn counted(group: &Group) -> Option<Table> {
    let mut header: Vec<&str> = vec!["mechanism"];
    let (mut rows, mut refused) = (Vec::new(), BTreeMap::<&str, BTreeSet<&str>>::new());
    let measured = || triggers(group).filter_map(|(test, one)| Some((test, one.ok()?)));
    for counter in measured().flat_map(|(_, trigger)| &trigger.counters) {
        match not_counted(counter) {
            Some(why) => drop(refused.entry(why).or_default().insert(&counter.event)),
            None if !header.contains(&&*counter.event) => header.push(&counter.event),
            None => {}
        }
    }
    for (test, trigger) in measured().filter(|(_, trigger)| !trigger.counters.is_empty()) {
        let of = |event: &&str| {
            let counter = trigger.counters.iter().find(|counter| counter.event == *event);
            let counter = counter.filter(|counter| not_counted(counter).is_none());
            let spread = counter
                .and_then(|counter| per_hit(&counter.attached, &counter.detached, trigger.timed));
            spread.map_or_else(|| "-".to_owned(), |spread| format!("{spread:.1}"))
        };
        let events = header.iter().skip(1).map(of);
        rows.push([test.to_string()].into_iter().chain(events).collect());
    }
    if header.len() == 1 {
        return None;
    }
    let refused = refused.into_iter().map(|(why, events)| {
        format!("Not counted: {} ({why}).", Vec::from_iter(events).join(", "))
    });
    let note = "With the program less without it, of the thread that hits, by perf's counters; u: \
                user space, k: kernel.";
    Table::new("Events of a hit on this machine's CPU, median (min..max)", header, rows)
        .noted([note.to_owned()].into_iter().chain(refused))
        .if_filled()
}

/// The parts of a hit's estimated cycles. None if no cell of the group has an estimate.
fn estimates(group: &Group) -> Option<Table> {
    let row = |(test, measured): (trigger::Test, Result<&Trigger, _>)| {
        let hit = measured.ok()?.cost.as_ref()?.estimate.as_ref()?;
        Some(vec![
            test.to_string(),
            hit.attached.cpu.clone(),
            hit.cycles().to_string(),
            hit.cold.map_or_else(String::new, |cold| cold.to_string()),
            swing(hit),
            parts_of(hit).join(", "),
        ])
    };
    let note = "With the program less without it, of the thread that hits, interrupts left out. No \
                CPU was measured: instructions and the events of a modelled CPU are weighed, as \
                `docs/estimated-cycles.md` says. In brackets: how often it happens. A part below 0 \
                costs less with the program. Cold is a hit with empty caches and predictors, which \
                no CPU has. Mispredictions from a hit to the next, in the table above, also have \
                those that happen without it.";
    let header = ["mechanism", "CPU", "warm", "cold", "largest part x 0.5..1.5", "parts of warm"];
    let rows = triggers(group).filter_map(row);
    Table::new("Estimated cycles of a hit, by what costs them", header, rows)
        .noted([note])
        .if_filled()
}

/// Says why cells that were to estimate cycles did not.
fn unestimated<'a>(cells: impl Iterator<Item = (String, &'a Trigger)>) -> Vec<String> {
    let mut reasons: BTreeMap<&str, Vec<String>> = BTreeMap::new();
    for (name, trigger) in cells {
        if let Some(why) = &trigger.unestimated {
            reasons.entry(why).or_default().push(name);
        }
    }
    let note = |(why, names): (&str, Vec<String>)| {
        format!("{}: no estimated cycles: {why}.", names.join(", "))
    };
    reasons.into_iter().map(note).collect()
}

/// The terms of a hit, as `mispredicted returns 104.0 (8)`: cycles, and how often, the largest
/// first. Those of less than half a cycle are left out.
fn parts_of(hit: &EstimatedHit) -> Vec<String> {
    let each = |sum: i64| sum as f64 / f64::from(hit.hits.max(1));
    let parts = terms_of_hits(hit).into_iter();
    let parts = parts.map(|(term, of)| (term, each(of.cycles), each(of.times)));
    let mut parts: Vec<(Term, f64, f64)> =
        parts.filter(|(_, cycles, _)| cycles.abs() >= 0.5).collect();
    parts.sort_by(|(_, a, _), (_, b, _)| b.total_cmp(a));
    let told = |(term, cycles, times): (Term, f64, f64)| {
        // Adding 0 makes 0 of -0.
        let times = (times * 10.0).round() / 10.0 + 0.0;
        format!("{} {cycles:.1} ({times})", term.name())
    };
    parts.into_iter().map(told).collect()
}

/// The cycles if the largest part costs half, and if it costs half as much again.
fn swing(hit: &EstimatedHit) -> String {
    let parts = terms_of_hits(hit);
    let largest = parts.values().map(|of| of.cycles).max_by_key(|cycles| cycles.unsigned_abs());
    let half = hit.each(i128::from(largest.unwrap_or_default()) / 2).abs();
    let cycles = hit.cycles();
    format!("{}..{}", cycles.saturating_sub(half), cycles.saturating_add(half))
}

/// The counted costs without those that all runs of the group lack.
fn shown(group: &Group) -> Vec<Cost> {
    let is_in = |trigger: &Trigger, cost| {
        trigger.cost.as_ref().is_some_and(|counted| counted.count(cost).is_some())
    };
    let is_counted = |&cost: &Cost| {
        !cost.definition().is_optional
            || triggers(group).any(|(_, measured)| measured.is_ok_and(|hit| is_in(hit, cost)))
    };
    Cost::counted().filter(is_counted).collect()
}

/// `189 instructions, 7 branches, 45 reads, 32 writes`, without those that were not counted.
fn counts(count: impl Fn(Cost) -> Option<u32>) -> String {
    let counts = Cost::counted()
        .filter_map(|of| Some(format!("{} {}", count(of)?, of.definition().metric.unit)));
    counts.collect::<Vec<_>>().join(", ")
}

/// Trigger cells with their measurement, or how they ended without one.
fn triggers<'a>(
    group: &'a Group,
) -> impl Iterator<Item = (trigger::Test, Result<&'a Trigger, &'static str>)> + use<'a> {
    group.cells.iter().filter_map(|cell| {
        let Test::Trigger(test) = cell.id.test else { return None };
        let measured = match &cell.measurement {
            Some(Measurement::Trigger(trigger)) => Ok(trigger),
            _ => Err(cell.outcome.name()),
        };
        Some((test, measured))
    })
}

fn missed_name(test: trigger::Test, trigger: &Trigger, predicted: &Predicted) -> String {
    format!(
        "{} of {}, from a hit to the next: {} of {} returns mispredicted (return stack of {} \
         entries), {} of {} indirect branches{}",
        test.attached(),
        trigger.function.name,
        predicted.mispredicted_returns,
        predicted.returns,
        predicted.depth,
        predicted.mispredicted_indirect,
        predicted.indirect,
        match predicted.unlisted() {
            0 => String::new(),
            unlisted => format!("; without the newest {unlisted}"),
        }
    )
}

fn part_name(test: trigger::Test, trigger: &Trigger, part: &TriggerPart) -> String {
    format!(
        "{} of {}, a hit at {}: {}",
        test.attached(),
        trigger.function.name,
        part.point,
        counts(|cost| cost.of_part(part))
    )
}

/// All listings of the group's hits, with their captions. Newest records first.
pub fn lists(group: &Group) -> Vec<(String, Vec<Line>)> {
    let measured = triggers(group).filter_map(|(test, measured)| Some((test, measured.ok()?)));
    let of = |(test, trigger): (trigger::Test, &Trigger)| {
        let Some(cost) = &trigger.cost else { return Vec::new() };
        let predicted = cost.predicted.as_ref();
        let part = |part| (part_name(test, trigger, part), trigger_lines(part, predicted));
        let missed = predicted.filter(|predicted| !predicted.mispredicted.is_empty());
        let missed = missed.map(|all| (missed_name(test, trigger, all), missed_lines(all)));
        cost.parts.iter().map(part).chain(missed).collect()
    };
    measured.flat_map(of).collect()
}

/// A bar for a hit: its functions with their instructions, in the order in which they come first.
/// Their names are those that no build changes.
pub fn by_function(cells: &Group) -> Vec<(trigger::Test, Vec<(String, u32)>)> {
    let of = |cost: &TriggerCost| {
        let mut functions: Vec<(String, u32)> = Vec::new();
        for record in cost.parts.iter().flat_map(|part| &part.records) {
            // The instructions before a branch are of the function that it leaves.
            let name =
                record.from.symbol.as_deref().map_or("code without a name".into(), stable_name);
            match functions.iter_mut().find(|(known, _)| *known == name) {
                Some((_, count)) => *count = count.saturating_add(record.instructions),
                None if record.instructions == 0 => {}
                None => functions.push((name.into_owned(), record.instructions)),
            }
        }
        functions
    };
    let costs = triggers(cells)
        .filter_map(|(test, measured)| Some((test, of(measured.ok()?.cost.as_ref()?))));
    costs.collect()
}

/// The parts of a hit of a user's program.
fn split_of(trigger: &Trigger) -> Option<Split> {
    Some(branch::split(trigger.cost.as_ref()?, trigger.program.as_ref()?))
}

/// `60 + 25 + 66`: mechanism, program and helpers. None for a cost that the records lack.
fn sum(of: Cost, Split { mechanism, program, helpers }: Split) -> Option<String> {
    let count: fn(Share) -> u32 = match of {
        Cost::Instructions => |share| share.instructions,
        Cost::Branches => |share| share.branches,
        _ => return None,
    };
    Some([mechanism, program, helpers].map(|share| count(share).to_string()).join(" + "))
}

/// Says that a hit ran less than half of the program.
fn shortened(name: &str, trigger: &Trigger, split: Option<Split>) -> Option<String> {
    let reached = branch::reached(trigger.cost.as_ref()?, trigger.program.as_ref()?)?;
    let called = match split?.helpers.instructions {
        0 => " and called no helper",
        _ => "",
    };
    (reached < 50).then(|| {
        format!(
            "{name}: the hit ran {reached} % of the program's own code{called}: it returned early \
             or took a shorter way."
        )
    })
}

fn disagreement(name: &str, cost: &TriggerCost) -> Option<String> {
    let clean = cost.hits.saturating_sub(cost.interrupted_hits);
    let agree = cost.agreeing_hits;
    (agree < clean).then(|| format!("{name}: only {agree} of {clean} undisturbed hits agree."))
}

/// Says how many functions `all` other functions were.
pub(super) fn all_functions(set: BesideSet, others: &[Others]) -> Vec<String> {
    let others = set.others().zip(others);
    let all = others.filter(|((_, functions), _)| *functions == Functions::All);
    all.map(|((mechanism, functions), others)| {
        let Others { functions: attached, refused, .. } = others;
        format!(
            "{} was attached to {attached} functions; the kernel refused {refused}.",
            Beside::Others(mechanism, functions)
        )
    })
    .collect()
}

/// Nanoseconds of a hit with the program minus those without it, round by round.
fn overhead_ns(trigger: &Trigger) -> Option<Spread> {
    per_hit(&trigger.attached_ns, &trigger.detached_ns, trigger.timed)
}

fn per_hit(attached: &[u64], detached: &[u64], hits: u32) -> Option<Spread> {
    Spread::of(compare::per_hit(attached, detached, hits))
}

/// False if some round was no slower with the program than without.
fn is_seen(ns: Spread) -> bool {
    ns.min > 0.0
}

/// Triggers per second with the program attached. Each takes a system call.
fn hits_per_second(trigger: &Trigger) -> Option<f64> {
    let ns = Spread::of(trigger.attached_ns.iter().map(|&ns| ns as f64))?.median;
    (ns > 0.0 && trigger.timed > 0).then(|| f64::from(trigger.timed) * 1e9 / ns)
}

#[cfg(test)]
mod tests {
    use super::*;
    use tramplab_model::{
        profile::{Estimate, EventCost},
        run::{Place, TriggerRecord},
    };
    use tramplab_protocol::{Mechanism, estimate::Event, message::Symbol, trace};

    fn trigger(timed: u32, attached_ns: &[u64], detached_ns: &[u64]) -> Trigger {
        Trigger {
            mechanism: Mechanism::Fentry,
            function: Symbol { name: "traced".to_owned(), module: None, start: 1, end: 2 },
            program: None,
            trigger: None,
            unestimated: None,
            others: Vec::new(),
            cost: None,
            timed,
            attached_ns: attached_ns.to_vec(),
            detached_ns: detached_ns.to_vec(),
            counters: Vec::new(),
        }
    }

    #[test]
    fn subtracts_rounds_in_pairs() {
        let trigger = trigger(100, &[5000, 9000, 6000], &[4000, 4000, 7000]);
        assert_eq!(format!("{:.0}", overhead_ns(&trigger).unwrap()), "10 (-10..50)");
        assert_eq!(hits_per_second(&trigger).map(f64::round), Some(16_666_667.0));
        let hitless = Trigger { timed: 0, ..trigger };
        assert!(overhead_ns(&hitless).is_none() && hits_per_second(&hitless).is_none());
    }

    /// Only the records of a user's program, whose code is known, are split.
    #[test]
    fn says_where_a_hit_runs() {
        let place = |symbol: &str, address| Place {
            address,
            symbol: Some(symbol.to_owned()),
            module: symbol.starts_with("bpf_prog_").then(|| "bpf".to_owned()),
            offset: 0,
        };
        let (way, program) = (place("way", 0x1000), place("bpf_prog_6deef7357e7b4530_p", 0x2000));
        let at = |place: &Place, offset| Place { address: place.address + offset, ..place.clone() };
        let record = |from, to, kind, instructions| TriggerRecord { from, to, kind, instructions };
        let part = TriggerPart {
            point: Point::Entry,
            instructions: 15,
            branches: 3,
            reads: Some(4),
            writes: Some(4),
            records: vec![
                record(place("traced", 1), at(&way, 0), trace::Kind::Call, 0),
                record(at(&way, 8), at(&program, 0), trace::Kind::Call, 9),
                record(at(&program, 29), at(&way, 13), trace::Kind::Ret, 6),
            ],
        };
        let mut measured = trigger(1, &[], &[]);
        measured.cost = Some(TriggerCost {
            hits: 1,
            interrupted_hits: 0,
            agreeing_hits: 1,
            digest: String::new(),
            parts: vec![part],
            predicted: None,
            estimate: None,
        });
        assert_eq!(split_of(&measured), None);
        let code = |end| Symbol { name: String::new(), module: None, start: 0x2000, end };
        for (end, early) in [
            (0x2000 + 40, None),
            (
                0x2000 + 100,
                Some(
                    "p: the hit ran 30 % of the \
             program's own code and called no helper: it returned early or took a shorter way.",
                ),
            ),
        ] {
            measured.program = Some(code(end));
            let split = split_of(&measured).unwrap();
            assert_eq!(sum(Cost::Instructions, split).unwrap(), "9 + 6 + 0");
            assert_eq!(sum(Cost::Branches, split).unwrap(), "2 + 1 + 0");
            assert_eq!(sum(Cost::Reads, split), None);
            assert_eq!(shortened("p", &measured, Some(split)).as_deref(), early);
        }
    }

    #[test]
    fn says_once_why_cycles_were_not_estimated() {
        let with = |why: Option<&str>| {
            let unestimated = why.map(str::to_owned);
            Trigger { unestimated, ..trigger(1, &[], &[]) }
        };
        let all = [("a", Some("no CPU")), ("b", None), ("c", Some("no CPU")), ("d", Some("why"))]
            .map(|(name, why)| (name.to_owned(), with(why)));
        let notes = unestimated(all.iter().map(|(name, trigger)| (name.clone(), trigger)));
        let expected = ["a, c: no estimated cycles: no CPU.", "d: no estimated cycles: why."];
        assert_eq!(notes, expected);
    }

    #[test]
    fn names_the_parts_of_a_hit_the_largest_first() {
        let sum = |instructions, events: &[(Event, u64, u64)]| Estimate {
            cpu: "zen4".to_owned(),
            instructions: instructions / 15,
            instruction_cycles: instructions,
            events: events
                .iter()
                .map(|&(event, count, cycles)| EventCost { event, count, cycles })
                .collect(),
        };
        let hit = EstimatedHit {
            hits: 100,
            attached: sum(
                3205,
                &[(Event::MispredictedReturn, 800, 10_400), (Event::DataL2, 70, 1004)],
            ),
            detached: sum(1000, &[(Event::DataL2, 70, 1000), (Event::CodeL2, 200, 500)]),
            cold: None,
        };
        let parts = ["mispredicted returns 104.0 (8)", "instructions 22.1 (1.5)"];
        assert_eq!(parts_of(&hit), parts);
        assert_eq!((hit.cycles(), swing(&hit)), (126, "74..178".to_owned()));
    }

    #[test]
    fn doubts_a_cost_whose_interval_touches_zero() {
        for (with, seen) in [([5000, 4100], true), ([5000, 4000], false), ([5000, 3900], false)] {
            let trigger = trigger(100, &with, &[4000, 4000]);
            assert_eq!(is_seen(overhead_ns(&trigger).unwrap()), seen, "{with:?}");
        }
    }

    #[test]
    fn returns_none_without_rounds() {
        for trigger in [trigger(100, &[], &[]), trigger(100, &[0], &[0])] {
            assert_eq!(hits_per_second(&trigger), None);
        }
        assert_eq!(overhead_ns(&trigger(100, &[], &[])), None);
    }
}
