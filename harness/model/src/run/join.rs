// SPDX-License-Identifier: MIT OR Apache-2.0
//! Joins several runs into one: shards of a CI pipeline, or runs of one suite on different kernels.

use super::{
    Backend, Binary, Cell, CellId, ErrorKind, Joined, Kernel, KernelLines, Machine, Outcome, Run,
    Test,
};
use crate::program::Program;
use std::collections::HashSet;

/// The reason why two runs cannot be joined.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{first} and {second} do not go together: {why}")]
pub struct Apart {
    first: String,
    second: String,
    why: String,
}

/// Joins runs into one; returns none for no runs. The first run gives the id, the host and the
/// command. `expected` is the number of runs that there should be. A cell that a shard plans and
/// that no run has becomes an error. First leave out runs that [`is_superseded`] names.
pub fn join(runs: Vec<Run>, expected: usize) -> Result<Option<Run>, Apart> {
    // A joined run may lack some of its own parts: add them.
    let lacks = |run: &Run| {
        run.joined.as_ref().map_or(0, |joined| joined.expected.saturating_sub(joined.runs.len()))
    };
    let expected = runs.iter().map(lacks).fold(expected, usize::saturating_add);
    let joined = Joined { runs: runs.iter().map(|run| run.id.clone()).collect(), expected };
    // Nobody knows which cells such an interrupted run lacks.
    let unknown = runs.iter().any(|run| run.interrupted && run.missing.is_empty());
    let last = runs.iter().filter_map(|run| run.finished.clone()).max();
    let mut runs = runs.into_iter();
    let Some(mut all) = runs.next() else { return Ok(None) };
    let mut planned: Vec<CellId> = Vec::new();
    let mut parts: Vec<String> = parts_of(&all).cloned().collect();
    plan(&mut planned, &mut all);
    for mut run in runs {
        if let Some(why) = difference(&all, &parts, &run) {
            return Err(Apart { first: all.id, second: run.id, why });
        }
        parts.extend(parts_of(&run).cloned());
        plan(&mut planned, &mut run);
        add(&mut all, run);
    }
    // Another run may have a cell that this one misses.
    let mut seen: HashSet<String> = all.cells.iter().map(|cell| cell.id.name()).collect();
    all.missing.retain(|id| seen.insert(id.name()));
    if !unknown && all.missing.is_empty() && last.is_some() {
        // The other runs have all missing cells.
        (all.interrupted, all.finished) = (false, last);
    }
    let lost: Vec<Cell> =
        planned.iter().filter(|id| !seen.contains(&id.name())).map(missing).collect();
    all.cells.extend(lost);
    // Sort as a single run would. Builds, which are in no plan, come first.
    all.cells.sort_by_key(|cell| planned.iter().position(|id| *id == cell.id));
    all.joined = Some(joined);
    Ok(Some(all))
}

/// True if one of the runs measured again the cells that this one lacks, and took over all others.
pub fn is_superseded(run: &Run, runs: &[Run]) -> bool {
    let ids = |run: &Run| -> HashSet<String> {
        run.cells
            .iter()
            .map(|cell| cell.id.name())
            .chain(run.missing.iter().map(CellId::name))
            .collect()
    };
    // Older versions left the other cells out.
    let is_whole = |other: &Run| ids(run).is_subset(&ids(other));
    runs.iter().any(|other| other.rest_of.as_ref() == Some(&run.id) && is_whole(other))
}

/// The run's id, and the ids of the runs that it was joined from.
fn parts_of(run: &Run) -> impl Iterator<Item = &String> {
    [&run.id].into_iter().chain(run.joined.iter().flat_map(|joined| &joined.runs))
}

/// Adds the planned cells of all parts, if the run is a shard.
fn plan(planned: &mut Vec<CellId>, run: &mut Run) {
    let cells = run.shard.take().map_or_else(Vec::new, |shard| shard.cells);
    for id in cells {
        if !planned.contains(&id) {
            planned.push(id);
        }
    }
}

/// The reason why two runs cannot be joined, if there is one.
fn difference(all: &Run, parts: &[String], run: &Run) -> Option<String> {
    // A run given twice would hide a missing one.
    if let Some(id) = parts_of(run).find(|id| parts.contains(id)) {
        return Some(format!("the run {id} is in both"));
    }
    if let Some(why) = unlike(all, run) {
        return Some(why);
    }
    // Both runs may have a cell if it ended the same: exact numbers, skips and builds repeat. Each
    // shard finds out by itself that a kernel does not boot. Ignore that message: its addresses and
    // times vary.
    let is_dead =
        |cell: &Cell| cell.id.test == Test::Boot && matches!(cell.outcome, Outcome::Error { .. });
    let same = |a: &Cell, b: &Cell| {
        (a.outcome == b.outcome && a.measurement == b.measurement) || (is_dead(a) && is_dead(b))
    };
    let differs = |cell: &&Cell| known(all, cell).is_some_and(|known| !same(known, cell));
    let twice = run.cells.iter().find(differs)?;
    Some(format!(
        "both have a result of {}, and not the same: a merged run has each cell once, so leave one \
         of the runs out",
        twice.id.name()
    ))
}

/// A difference between two runs outside of their cells, if there is one.
pub fn unlike(all: &Run, run: &Run) -> Option<String> {
    if run.suite.sha256 != all.suite.sha256 {
        return Some("they are of different suites".to_owned());
    }
    let plugin = |run: &Run| run.machines.iter().find_map(|one| one.plugin_sha256.clone());
    let is_other =
        |machine: &Machine| same_place(all, machine).is_some_and(|known| known != machine);
    if plugin(run) != plugin(all) || run.machines.iter().any(is_other) {
        return Some(
            "they measured in different machines, or with another agent or plugin".to_owned(),
        );
    }
    let is_other = |program: &&Program| {
        let same_name = |known: &&Program| known.name == program.name;
        all.programs.iter().filter(same_name).any(|known| !known.is_same(program))
    };
    if let Some(Program { name, .. }) = run.programs.iter().find(is_other) {
        return Some(format!("a program of one name is not the same in both: {name}"));
    }
    let is_other = |binary: &&Binary| {
        all.binaries.iter().any(|known| known.name == binary.name && known != *binary)
    };
    if let Some(Binary { name, .. }) = run.binaries.iter().find(is_other) {
        return Some(format!("a file of one name is not the same in both: {name}"));
    }
    let is_other = |kernel: &&Kernel| {
        let same_name = |known: &&Kernel| (&known.name, known.arch) == (&kernel.name, kernel.arch);
        all.kernels.iter().filter(same_name).any(|known| known != *kernel)
    };
    let Kernel { name, arch, .. } = run.kernels.iter().find(is_other)?;
    Some(format!("a kernel of one name is not the same in both: {name} for {arch}"))
}

/// The machine of a run that has guests of the same architecture, or none either.
fn same_place<'a>(all: &'a Run, machine: &Machine) -> Option<&'a Machine> {
    let place = |one: &Machine| (one.arch, one.vm == Backend::None);
    all.machines.iter().find(|known| place(known) == place(machine))
}

fn known<'a>(all: &'a Run, cell: &Cell) -> Option<&'a Cell> {
    all.cells.iter().find(|known| known.id == cell.id)
}

fn add_new<T: PartialEq>(all: &mut Vec<T>, more: Vec<T>) {
    for one in more {
        if !all.contains(&one) {
            all.push(one);
        }
    }
}

fn add(all: &mut Run, run: Run) {
    let Run {
        machines,
        kernels,
        series,
        cells,
        interrupted,
        missing,
        started,
        finished,
        notes,
        programs,
        binaries,
        lines,
        ..
    } = run;
    for machine in machines {
        if same_place(all, &machine).is_none() {
            all.machines.push(machine);
        }
    }
    add_new(&mut all.kernels, kernels);
    add_new(&mut all.series, series);
    add_new(&mut all.notes, notes);
    add_new(&mut all.programs, programs);
    add_new(&mut all.binaries, binaries);
    for cell in cells {
        if known(all, &cell).is_none() {
            all.cells.push(cell);
        }
    }
    for of in lines {
        let is_its =
            |known: &&mut KernelLines| (&known.kernel, known.arch) == (&of.kernel, of.arch);
        match all.lines.iter_mut().find(is_its) {
            Some(known) => known.places.extend(of.places),
            None => all.lines.push(of),
        }
    }
    all.interrupted |= interrupted;
    all.missing.extend(missing);
    // RFC 3339 times in UTC sort as text.
    all.started = started.min(std::mem::take(&mut all.started));
    // A killed run has no end, so the joined run has none either.
    all.finished = all.finished.take().zip(finished).map(|(a, b)| a.max(b));
}

fn missing(id: &CellId) -> Cell {
    let message = "no run has it: the shard that was to measure it did not report".to_owned();
    Cell::without_result(id.clone(), Outcome::Error { kind: ErrorKind::Harness, message })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::run::{Arch, Shard};

    fn whole() -> Run {
        serde_json::from_str(include_str!("../../../testdata/two-architectures.json")).unwrap()
    }

    /// Every `of`-th cell of the recorded run, as in a shard's result.
    fn shard(number: usize, of: usize) -> Run {
        let mut run = whole();
        run.id = format!("shard-{number}");
        let cells = run.cells.iter().map(|cell| cell.id.clone()).collect();
        run.shard = Some(Shard { partition: format!("slice:{}/{of}", number + 1), cells });
        let mut index = 0..;
        run.cells.retain(|_| index.next().is_some_and(|index| index % of == number));
        run
    }

    #[test]
    fn joins_shards_in_any_order() {
        let all = join(vec![shard(2, 3), shard(0, 3), shard(1, 3)], 3).unwrap().unwrap();
        let whole = whole();
        assert_eq!(all.cells, whole.cells);
        assert_eq!(
            (&all.kernels, &all.machines, &all.series),
            (&whole.kernels, &whole.machines, &whole.series)
        );
        let joined = all.joined.unwrap();
        assert_eq!(
            (joined.runs, joined.expected),
            (["shard-2", "shard-0", "shard-1"].map(str::to_owned).into(), 3)
        );
        assert_eq!(join(Vec::new(), 0).unwrap(), None);
    }

    /// One measured this machine, the other guests of its architecture.
    #[test]
    fn joins_this_machine_and_guests() {
        use crate::run::Accel;
        let [mut here, guests] = [shard(0, 2), shard(1, 2)];
        let arch = here.machines[0].arch;
        here.machines.retain(|machine| machine.arch == arch);
        here.machines[0].vm = Backend::None;
        here.cells.retain(|cell| cell.id.arch == arch);
        here.kernels.retain(|kernel| kernel.arch == arch);
        for cell in &mut here.cells {
            (cell.id.accel, cell.id.kernel) = (Accel::Native, "running".to_owned());
        }
        here.kernels.iter_mut().for_each(|kernel| kernel.name = "running".to_owned());
        let all = join(vec![here.clone(), guests.clone()], 2).unwrap().unwrap();
        assert_eq!(all.machines.len(), guests.machines.len() + 1);
        let vm = |accel| all.machine(arch, accel).unwrap().vm;
        assert_eq!((vm(Accel::Native), vm(Accel::Tcg)), (Backend::None, Backend::Qemu));
        // Another agent on this machine is another machine.
        let mut other = here.clone();
        other.machines[0].agent_sha256 = "0".repeat(64);
        let both = join(vec![here, guests], 3).unwrap().unwrap();
        assert!(unlike(&both, &other).is_some());
    }

    #[test]
    fn keeps_each_note_once() {
        let [mut first, mut second] = [shard(0, 2), shard(1, 2)];
        first.notes = vec!["a".to_owned(), "b".to_owned()];
        second.notes = vec!["b".to_owned(), "c".to_owned()];
        assert_eq!(join(vec![first, second], 2).unwrap().unwrap().notes, ["a", "b", "c"]);
    }

    #[test]
    fn joins_source_lines_of_a_kernel() {
        let lines = |kernel: &str, place: &str| KernelLines {
            kernel: kernel.to_owned(),
            arch: Arch::X86_64,
            places: [(place.to_owned(), Vec::new())].into(),
        };
        let [mut first, mut second] = [shard(0, 2), shard(1, 2)];
        first.lines = vec![lines("a", "f+0x0")];
        second.lines = vec![lines("b", "f+0x0"), lines("a", "g+0x0")];
        let all = join(vec![first, second], 2).unwrap().unwrap();
        let places = |kernel| -> Vec<&str> {
            all.lines_of(Arch::X86_64, kernel).unwrap().keys().map(String::as_str).collect()
        };
        assert_eq!((places("a"), places("b")), (vec!["f+0x0", "g+0x0"], vec!["f+0x0"]));
        assert_eq!(all.lines_of(Arch::Arm64, "a"), None);
    }

    #[test]
    fn turns_unreported_cells_into_errors() {
        let whole = whole();
        let all = join(vec![shard(0, 3), shard(2, 3)], 3).unwrap().unwrap();
        assert_eq!(all.cells.len(), whole.cells.len());
        for (index, (cell, known)) in all.cells.iter().zip(&whole.cells).enumerate() {
            assert_eq!(cell.id, known.id);
            match &cell.outcome {
                Outcome::Error { kind: ErrorKind::Harness, message } => {
                    assert!(
                        index % 3 == 1 && message.contains("did not report"),
                        "{index}: {message}"
                    );
                }
                outcome => {
                    assert!(index % 3 != 1 && *outcome == known.outcome, "{index}: {outcome:?}")
                }
            }
        }
    }

    #[test]
    fn the_number_of_expected_runs_stays_at_the_maximum() {
        let mut run = shard(0, 3);
        run.joined = Some(Joined { runs: Vec::new(), expected: usize::MAX });
        let joined = join(vec![run, shard(1, 3)], 2).unwrap().unwrap().joined.unwrap();
        assert_eq!(joined.expected, usize::MAX);
    }

    #[test]
    fn counts_runs_that_a_joined_part_lacks() {
        let all = join(vec![shard(0, 3), shard(1, 3)], 3).unwrap().unwrap();
        let again = join(vec![all], 1).unwrap().unwrap();
        let joined = again.joined.unwrap();
        assert_eq!((joined.runs.len(), joined.expected), (1, 2));
    }

    #[test]
    fn stays_interrupted_if_a_part_did_not_end() {
        let [mut first, second] = [shard(0, 2), shard(1, 2)];
        first.finished = None;
        first.interrupted = true;
        let all = join(vec![second, first], 2).unwrap().unwrap();
        assert!(all.interrupted && all.finished.is_none());
    }

    #[test]
    fn takes_missing_cells_from_another_run() {
        let [mut first, mut second] = [shard(0, 2), shard(1, 2)];
        (first.shard, second.shard) = (None, None);
        first.interrupted = true;
        let [lost, other] = [0, 1].map(|cell| second.cells[cell].id.clone());
        second.cells.remove(0);
        first.missing = vec![lost.clone(), other];
        let parts = vec![first, second];
        assert_eq!(join(parts.clone(), 2).unwrap().unwrap().missing, std::slice::from_ref(&lost));

        let mut third = parts[1].clone();
        third.id = "third".to_owned();
        third.cells = whole().cells.into_iter().filter(|cell| cell.id == lost).collect();
        let [mut killed, second] = <[Run; 2]>::try_from(parts).unwrap();
        killed.finished = None;
        let all = join(vec![killed, second, third], 3).unwrap().unwrap();
        assert_eq!(all.cells.len(), whole().cells.len());
        assert!(all.missing.is_empty() && !all.interrupted && all.finished.is_some());
    }

    /// The shard did report, so its cells are missing and not errors.
    #[test]
    fn lists_cells_of_an_interrupted_shard_as_missing() {
        let [first, mut second] = [shard(0, 2), shard(1, 2)];
        let lost = second.cells.remove(0).id;
        (second.interrupted, second.missing) = (true, vec![lost.clone()]);
        let all = join(vec![first, second], 2).unwrap().unwrap();
        assert_eq!((all.missing, all.cells.len()), (vec![lost], whole().cells.len() - 1));
    }

    /// A run given twice would hide a missing one.
    #[test]
    fn rejects_a_run_given_twice() {
        let error = join(vec![shard(0, 2), shard(1, 2), shard(0, 2)], 3).unwrap_err().to_string();
        assert!(
            error.contains("shard-0 and shard-0 do not go together: the run shard-0 is in both"),
            "{error}"
        );
        // Also reject a run that is part of another one.
        let both = Run {
            id: "both".to_owned(),
            ..join(vec![shard(0, 2), shard(1, 2)], 2).unwrap().unwrap()
        };
        let error = join(vec![both, shard(1, 2)], 2).unwrap_err().to_string();
        assert!(
            error.contains("both and shard-1 do not go together: the run shard-1 is in both"),
            "{error}"
        );
    }

    #[test]
    fn rejects_runs_that_do_not_match() {
        type Case = (&'static str, fn(&mut Run));
        let cases: [Case; 4] = [
            ("they are of different suites", |run| run.suite.sha256 = "0".repeat(64)),
            ("another agent or plugin", |run| run.machines[0].plugin_sha256 = Some("0".repeat(64))),
            ("both have a result of ", |run| {
                let outcome = Outcome::Skip { reason: String::new() };
                run.cells.push(Cell { outcome, ..shard(0, 2).cells[0].clone() });
            }),
            ("a kernel of one name is not the same in both: 7.2 for x86_64", |run| {
                let kernel =
                    run.kernels.iter_mut().find(|kernel| kernel.arch == Arch::X86_64).unwrap();
                kernel.image_sha256 = None;
            }),
        ];
        for (words, change) in cases {
            let [first, mut second] = [shard(0, 2), shard(1, 2)];
            change(&mut second);
            let error = join(vec![first, second], 2).unwrap_err().to_string();
            assert!(
                error.contains(words)
                    && error.starts_with("shard-0 and shard-1 do not go together: "),
                "{error}"
            );
        }
    }

    #[test]
    fn joins_runs_whose_programs_of_one_name_are_the_same() {
        let program = |name: &str, sha256: &str| Program {
            name: name.parse().unwrap(),
            mechanism: tramplab_protocol::Mechanism::Fexit,
            file: "a.bpf.o".to_owned(),
            sha256: sha256.to_owned(),
            instructions: 2,
            globals: Default::default(),
        };
        let join = |of_first: &[Program], of_second: &[Program]| {
            let [mut first, mut second] = [shard(0, 2), shard(1, 2)];
            (first.programs, second.programs) = (of_first.to_vec(), of_second.to_vec());
            join(vec![first, second], 2).map(|run| run.unwrap().programs)
        };
        let (a, b) = (program("a", "1"), program("b", "2"));
        let both = [a.clone(), b.clone()];
        assert_eq!(join(&both[..1], &both), Ok(both.to_vec()));
        assert!(join(&both, &[program("b", "3")]).is_err());
        let globals = [("ms".to_owned(), "5".to_owned())].into();
        assert!(join(&both, &[Program { globals, ..b }]).is_err());
    }

    #[test]
    fn joins_runs_whose_files_of_one_name_are_the_same() {
        let join = |digests: [&str; 2]| {
            let [mut first, mut second] = [shard(0, 2), shard(1, 2)];
            for (run, sha256) in [&mut first, &mut second].into_iter().zip(digests) {
                let name = "libc.so.6".parse().unwrap();
                run.binaries = vec![Binary { name, sha256: sha256.to_owned() }];
            }
            join(vec![first, second], 2).map(|run| run.unwrap().binaries.len())
        };
        assert_eq!(join(["a", "a"]), Ok(1));
        assert!(join(["a", "b"]).is_err());
    }

    /// Each shard's message has another address.
    #[test]
    fn joins_shards_of_a_kernel_that_does_not_boot() {
        let mut shards = [shard(0, 2), shard(1, 2)];
        let id = CellId { test: Test::Boot, ..shards[0].cells[0].id.clone() };
        for (shard, address) in shards.iter_mut().zip(["ffff1", "ffff2"]) {
            let outcome = Outcome::Error { kind: ErrorKind::Oops, message: address.to_owned() };
            shard.cells.push(Cell::without_result(id.clone(), outcome));
        }
        let all = join(shards.to_vec(), 2).unwrap().unwrap();
        let boots: Vec<_> = all.cells.iter().filter(|cell| cell.id == id).collect();
        assert!(
            boots.len() == 1 && boots[0].outcome.reason().unwrap().contains("ffff1"),
            "{boots:?}"
        );
    }

    #[test]
    fn a_run_is_superseded_only_by_one_that_took_over_all_its_cells() {
        let first = Run { id: "first".to_owned(), ..whole() };
        let second = Run { rest_of: Some("first".to_owned()), ..whole() };
        let mut partial = second.clone();
        partial.cells.pop();
        let other = Run { rest_of: Some("another".to_owned()), ..whole() };
        for (runs, superseded) in [
            (vec![first.clone(), second], true),
            (vec![first.clone(), partial], false),
            (vec![first.clone(), other], false),
            (vec![first.clone()], false),
        ] {
            assert_eq!(is_superseded(&first, &runs), superseded, "{:?}", runs.last());
        }
    }
}
