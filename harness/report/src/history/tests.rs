// SPDX-License-Identifier: MIT OR Apache-2.0
//! Pages of histories of a recorded series whose three kernels are taken for commits.

use super::*;
use crate::{terminal, tests::series};
use tramplab_analysis::history::{Query, of};
use tramplab_model::run::Run;

const KERNELS: [&str; 3] =
    ["6.12-source+lbr-helpers.0", "6.12-source+lbr-helpers.1", "6.12-source"];

fn commit_of(number: usize) -> String {
    format!("{number:08x}{:032x}", 0xc0ffee)
}

/// The run of commit `number`, whose kernel is the recorded one `state`.
fn run(number: usize, state: usize) -> Run {
    let mut run = series();
    run.series.clear();
    run.id = format!("run-{number}");
    run.started = format!("2026-11-{:02}T10:00:00Z", number + 1);
    run.kernels.retain(|kernel| kernel.name == KERNELS[state]);
    run.cells.retain(|cell| cell.id.kernel == KERNELS[state]);
    let commit = commit_of(number);
    let name = format!("linux-{}", &commit[..12]);
    run.kernels[0].source = format!("git /src/linux {commit}");
    run.kernels[0].commit = Some(commit);
    run.kernels[0].name.clone_from(&name);
    run.cells.iter_mut().for_each(|cell| cell.id.kernel.clone_from(&name));
    run
}

fn runs(states: &[usize]) -> Vec<Run> {
    states.iter().enumerate().map(|(number, &state)| run(number, state)).collect()
}

fn found(runs: &[Run]) -> Found {
    let query = Query { metrics: vec!["lbr_waste.fexit.any".parse().unwrap()], ..Query::default() };
    of(runs, None, &query)
}

fn page(runs: &[Run]) -> String {
    terminal::table(&table(&found(runs).histories[0], &Told::default()))
}

#[test]
fn tables_of_histories() {
    let all = runs(&[0, 0, 1, 2, 2, 1]);
    insta::assert_snapshot!(terminal::table(&overview(
        &of(&all, None, &Query::default()).histories
    )));
    insta::assert_snapshot!("one_history", page(&all));
}

#[test]
fn tells_a_change_without_a_new_commit() {
    let all = [2, 2, 1].map(|state| run(7, state));
    let text = page(&all.map(|run| Run { id: format!("run-{}", run.cells.len()), ..run }));
    assert!(
        text.contains("it is the same commit as before, so the kernel's code is not the cause"),
        "{text}"
    );
}

/// The row names another QEMU or plugin, which may cause the step.
#[test]
fn tells_which_tools_changed() {
    let mut all = runs(&[0, 0, 1, 1]);
    all[2].machines[0].qemu = "QEMU emulator version 10.1.0".to_owned();
    all[2].machines[0].plugin_sha256 = Some("ab".repeat(32));
    all[3].machines = all[2].machines.clone();
    let text = page(&all);
    assert!(
        text.contains("10.1.0")
            && text.contains("1, 2")
            && text.contains(" 2: they were recorded by"),
        "{text}"
    );
}
