// SPDX-License-Identifier: MIT OR Apache-2.0
//! One kernel against itself, by its recorded boots.

use super::*;
use tramplab_testdata::same_kernel;

/// The head's boots of four: in a series' order, and another.
const ORDERS: [[usize; 2]; 2] = [[1, 2], [1, 3]];

/// A comparison of the kernel with itself for each choice of so many boots that are equally far
/// apart, in both orders.
fn comparisons(boots: usize) -> Vec<Comparison> {
    let (mut run, template) = (same_kernel(), recorded());
    // Three guests of 120 took another clock, for which no time of the run is judged. Here they are
    // part of the noise.
    for cell in &mut run.cells {
        cell.guest.as_mut().unwrap().clocksource = "tsc".to_owned();
    }
    let recorded = boots_of(&run.cells[0]);
    assert!(run.cells.iter().all(|cell| boots_of(cell) == recorded));
    let mut all = Vec::new();
    for apart in 1..=recorded / boots {
        for first in 0..recorded - apart * (boots - 1) {
            for heads in ORDERS {
                let side = |kernel: &str, is_head: bool| {
                    let is_side = |nth: &usize| heads.contains(&(nth % 4)) == is_head;
                    let chosen: Vec<usize> =
                        (0..boots).filter(is_side).map(|nth| first + nth * apart).collect();
                    let cells = run.cells.iter().map(|cell| with_boots(cell, kernel, &chosen));
                    cells.collect::<Vec<_>>()
                };
                let mut compared = run.clone();
                compared.series = template.series.clone();
                let series = &mut compared.series[0];
                series.steps.remove(1);
                let (base, head) = (series.base().kernel.clone(), series.head().kernel.clone());
                compared.cells = [side(&base, false), side(&head, true)].concat();
                all.push(whole(&compared, &compared.series[0], None));
            }
        }
    }
    all
}

fn attach(cell: &Cell) -> &Attach {
    let Some(Measurement::Attach(attach)) = &cell.measurement else { panic!("no attach") };
    attach
}

fn boots_of(cell: &Cell) -> usize {
    attach(cell).boots.len()
}

fn with_boots(cell: &Cell, kernel: &str, boots: &[usize]) -> Cell {
    let whole = attach(cell);
    let boots = boots.iter().map(|&nth| whole.boots[nth].clone()).collect();
    let mut cell = cell.clone();
    cell.id.kernel = kernel.to_owned();
    cell.measurement = Some(Measurement::Attach(Attach { boots, ..whole.clone() }));
    cell
}

/// The times scatter, as the machine did other things meanwhile: judged by their means, most would
/// be worse or better. The intervals promise 5 % of wrong comparisons at most.
#[test]
fn a_kernel_is_rarely_worse_or_better_than_itself() {
    for (boots, expected) in [(24, 0), (20, 1), (16, 1), (12, 1), (8, 4)] {
        let comparisons = comparisons(boots);
        let is_wrong =
            |compared: &Compared| matches!(compared.verdict, Verdict::Worse | Verdict::Better);
        let wrong = comparisons.iter().filter(|one| one.metrics.iter().any(is_wrong)).count();
        let all = comparisons.iter().flat_map(|one| &one.metrics);
        let ratios: Vec<_> = all.filter_map(|compared| compared.ratio).collect();
        let apart = ratios.iter().filter(|ratio| (ratio.mean - 1.0).abs() > 0.05).count();
        assert_eq!(ratios.len(), 6 * comparisons.len());
        assert!(comparisons.len() > 90 && 2 * apart > ratios.len(), "{boots} boots: {apart}");
        assert_eq!(wrong, expected, "{boots} boots: of {}", comparisons.len());
    }
}
