// SPDX-License-Identifier: MIT OR Apache-2.0
//! Pages of histories of a recorded series whose three kernels are taken for commits.

use super::*;
use crate::terminal;
use tramplab_analysis::history::{Query, of};
use tramplab_model::run::Run;
use tramplab_testdata::{commit as run, commits as runs};

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
fn overview_without_changes_has_no_empty_table() {
    let found = of(&runs(&[0, 0]), None, &Query::default());
    let text = terminal::table(&overview(&found.histories));
    let all = found.histories.len();
    assert_eq!(
        text,
        format!(
            "What changed from run to run\n {all} of {all} did not change. --metric NAME shows one \
             in full.\n"
        )
    );
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

/// `|` in the name of a union is no pipe.
#[test]
fn quotes_metrics_in_the_command_of_a_bisection() {
    let all = runs(&[2, 1]);
    let ids: Vec<String> = all.iter().map(|run| run.kernels[0].commit.clone().unwrap()).collect();
    let [old, new] = [ids[0].clone(), ids[1].clone()];
    let told = Told {
        tree: Some("../linux".to_owned()),
        between: [((old, new), Between { older: 0, newer: 3 })].into(),
    };
    for (metric, word) in [
        ("lbr_waste.fexit.any_call|cond", "'lbr_waste.fexit.any_call|cond'"),
        ("lbr_waste.fexit.any", "lbr_waste.fexit.any"),
    ] {
        let query = Query { metrics: vec![metric.parse().unwrap()], ..Query::default() };
        let text = terminal::table(&table(&of(&all, None, &query).histories[0], &told));
        let words = text.split_once(" cargo xtask bisect ").expect("a command").1;
        assert!(words.trim_end().ends_with(&format!(" --arch x86_64 --metric {word}")), "{text}");
    }
}

/// The row names another QEMU or plugin, which may cause the step.
#[test]
fn tells_which_tools_changed() {
    let mut all = runs(&[0, 0, 1, 1]);
    all[2].machines[0].qemu = Some("QEMU emulator version 10.1.0".to_owned());
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
