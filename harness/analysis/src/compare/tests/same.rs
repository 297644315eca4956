// SPDX-License-Identifier: MIT OR Apache-2.0
//! One kernel against itself, by its recorded boots.

use super::*;
use fastrand::Rng;
use tramplab_testdata::same_kernel;

/// Boots of each side, as a suite has them by default, and if times seem to differ.
const USUAL: usize = 6;
const MORE: usize = 12;

/// A recorded boot of the base and one of the head, which ran next to it.
type Boots = (usize, usize);

/// Boots of both sides that are equally far apart, in either order.
fn draw(rng: &mut Rng, recorded: usize) -> Vec<Boots> {
    let apart = rng.usize(1..=recorded / (2 * MORE));
    let first = rng.usize(..=recorded - 1 - apart * (2 * MORE - 1));
    let pair = |nth: usize| {
        let [one, other] = [2 * nth, 2 * nth + 1].map(|nth| first + nth * apart);
        if rng.bool() { (one, other) } else { (other, one) }
    };
    (0..MORE).map(pair).collect()
}

/// The recorded cells of the kernel.
fn cells() -> Vec<Cell> {
    let mut cells = same_kernel().cells;
    // Three guests of 120 took another clock, for which no time of the run is judged. Here they are
    // part of the noise.
    for cell in &mut cells {
        cell.guest.as_mut().unwrap().clocksource = "tsc".to_owned();
    }
    cells
}

fn attach(cell: &Cell) -> &Attach {
    let Some(Measurement::Attach(attach)) = &cell.measurement else { panic!("no attach") };
    attach
}

/// The cell of base and head with these boots.
fn sides_of(cell: &Cell, boots: &[Boots], slower: f64) -> [Cell; 2] {
    let whole = attach(cell);
    let with = |kernel: &str, nth: fn(&Boots) -> usize| {
        let mut boots: Vec<_> = boots.iter().map(|pair| whole.boots[nth(pair)].clone()).collect();
        if kernel == "head" {
            for round in boots.iter_mut().flat_map(|boot| &mut boot.rounds) {
                for ns in [&mut round.load_ns, &mut round.attach_ns, &mut round.detach_ns] {
                    *ns = (*ns as f64 * slower) as u64;
                }
            }
        }
        let mut cell = cell.clone();
        cell.id.kernel = kernel.to_owned();
        cell.measurement = Some(Measurement::Attach(Attach { boots, ..whole.clone() }));
        cell
    };
    [with("base", |pair| pair.0), with("head", |pair| pair.1)]
}

/// Compares the sides of all cells.
fn compared(sides: &[[Cell; 2]], tolerance: Tolerance) -> Comparison {
    let pairs: Vec<Pair> =
        sides.iter().map(|[base, head]| Pair { base, head: Some(head) }).collect();
    compare("base", "head", &pairs, MODEL, tolerance, Timing::Interleaved, &Layout::default())
}

/// Counts of comparisons.
#[derive(Debug, Default)]
struct Counts {
    /// Those that are worse or better by the usual boots.
    by_usual: usize,
    /// Those that are worse or better as runs judge: by more boots if times seem to differ.
    judged: usize,
    /// Cells with more boots.
    more: usize,
    /// Times whose means are more than 5 % apart.
    apart: usize,
}

/// Compares the kernel with itself, as if the head took this many times as long.
fn count(comparisons: usize, slower: f64) -> Counts {
    let (cells, tolerance) = (cells(), same_kernel().tolerance);
    let recorded = attach(&cells[0]).boots.len();
    assert!(cells.iter().all(|cell| attach(cell).boots.len() == recorded));
    let differs = |comparison: &Comparison| {
        let mut verdicts = comparison.metrics.iter().map(|compared| &compared.verdict);
        verdicts.any(|one| matches!(one, Verdict::Worse | Verdict::Better))
    };
    let mut rng = Rng::with_seed(1);
    let mut counts = Counts::default();
    for _ in 0..comparisons {
        let boots = draw(&mut rng, recorded);
        let usual = cells.iter().map(|cell| sides_of(cell, &boots[..USUAL], slower));
        let usual: Vec<[Cell; 2]> = usual.collect();
        let by_usual = compared(&usual, tolerance);
        let judged: Vec<[Cell; 2]> = cells
            .iter()
            .zip(usual)
            .map(|(cell, usual)| match seem_to_differ(&usual[0], &usual[1], tolerance) {
                true => sides_of(cell, &boots, slower),
                false => usual,
            })
            .collect();
        let ratios = by_usual.metrics.iter().filter_map(|compared| compared.ratio);
        counts.apart += ratios.filter(|ratio| (ratio.mean - 1.0).abs() > 0.05).count();
        counts.by_usual += usize::from(differs(&by_usual));
        counts.more += judged.iter().filter(|[base, _]| attach(base).boots.len() == MORE).count();
        counts.judged += usize::from(differs(&compared(&judged, tolerance)));
    }
    counts
}

/// The times scatter, as the machine did other things meanwhile: judged by their means, most would
/// be worse or better.
#[test]
fn a_kernel_is_hardly_ever_worse_or_better_than_itself() {
    let all = 10_000;
    let Counts { by_usual, judged, more, apart } = count(all, 1.0);
    let cells = cells().len();
    assert!(2 * apart > 3 * cells * all, "{apart}");
    assert!(1000 * judged < all && judged < by_usual, "{judged}, {by_usual}");
    // Few runs take longer.
    assert!(20 * more < cells * all, "{more}");
}

/// Rare false verdicts do not cost true ones.
#[test]
fn more_boots_find_a_slower_kernel() {
    let all = 1000;
    for (slower, found) in [(1.2, 300), (1.3, 700), (1.5, 900)] {
        let Counts { by_usual, judged, .. } = count(all, slower);
        assert!(judged > found && judged > by_usual, "{slower}: {judged}, {by_usual}");
    }
}
