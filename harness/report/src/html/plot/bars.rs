// SPDX-License-Identifier: MIT OR Apache-2.0
//! Stacked bars: a bar for each test and kernel, a part for each function.

use super::{
    COLOURS, WIDTH,
    axis::{Axis, Tick, pixels},
    shortened, titled,
};
use std::collections::BTreeMap;

/// A bar and its parts, in the order of execution.
#[derive(Clone, Debug, PartialEq)]
pub struct Stack {
    pub label: String,
    pub kernel: String,
    /// Each function once.
    pub parts: Vec<(String, u32)>,
}

pub struct Bars {
    pub height: f64,
    pub plotted: f64,
    pub ticks: Vec<Tick>,
    pub bars: Vec<Bar>,
    /// The functions with a colour of their own, the largest first, then the others together.
    pub legend: Vec<Entry>,
}

pub struct Bar {
    pub y: f64,
    pub title: String,
    pub label: String,
    pub parts: Vec<Part>,
    pub end: f64,
    pub total: u64,
}

pub struct Part {
    pub x: f64,
    pub width: f64,
    /// None for the other functions together.
    pub colour: Option<usize>,
    /// The part's number in the legend, if the part is wide enough for it.
    pub number: Option<usize>,
    pub title: String,
}

pub struct Entry {
    pub x: f64,
    pub y: f64,
    pub colour: Option<usize>,
    pub number: usize,
    pub title: String,
    pub label: String,
}

pub const LEFT: f64 = 270.0;
const RIGHT: f64 = 790.0;
const ROW: f64 = 24.0;
const TOP: f64 = 8.0;
pub const BAR: f64 = 17.0;
const LABEL: usize = 38;
const LEGEND: f64 = 20.0;
const LEGEND_LABEL: usize = 54;
const OTHERS: &str = "other functions";
/// A part narrower than this has no number in it.
const NUMBERED: f64 = 15.0;

const ROWS: usize = 80;

/// Lays the bars out in their order. Returns the number of bars that it left out. None if there is
/// no bar.
pub fn bars(all: &[Stack]) -> Option<(Bars, usize)> {
    let drawn = &all[..all.len().min(ROWS)];
    let total = |stack: &Stack| stack.parts.iter().map(|(_, n)| u64::from(*n)).sum::<u64>();
    let most = drawn.iter().map(total).max().filter(|most| *most > 0)?;
    let axis = Axis::from_zero(most as f64, LEFT, RIGHT);
    let named = largest(drawn);
    let has_others =
        drawn.iter().flat_map(|stack| &stack.parts).any(|(name, _)| !named.contains(&&**name));
    let several = drawn.iter().any(|stack| stack.kernel != drawn[0].kernel);
    let bars: Vec<Bar> = drawn
        .iter()
        .enumerate()
        .map(|(index, stack)| {
            let title = titled(&stack.label, &stack.kernel, several);
            let total = total(stack);
            Bar {
                y: TOP + ROW * index as f64,
                label: shortened(&title, LABEL),
                title,
                parts: parts(stack, &named, &axis),
                end: axis.at(total as f64),
                total,
            }
        })
        .collect();
    let plotted = TOP + ROW * bars.len() as f64;
    let entries = named.iter().map(|name| (*name).to_owned());
    let entries = entries.chain(has_others.then(|| OTHERS.to_owned()));
    let entry = |(index, title): (usize, String)| Entry {
        x: if index % 2 == 0 { 8.0 } else { WIDTH / 2.0 },
        y: plotted + 40.0 + LEGEND * (index / 2) as f64,
        colour: (index < named.len()).then_some(index),
        number: index + 1,
        label: shortened(&title, LEGEND_LABEL),
        title,
    };
    let legend: Vec<Entry> = entries.enumerate().map(entry).collect();
    let height = legend.last().map_or(plotted, |entry| entry.y) + LEGEND;
    let bars = Bars { height: pixels(height), plotted, ticks: axis.ticks(), bars, legend };
    Some((bars, all.len() - drawn.len()))
}

/// The functions with most instructions over all bars, as many as there are colours.
fn largest(stacks: &[Stack]) -> Vec<&str> {
    let mut sums: BTreeMap<&str, u64> = BTreeMap::new();
    for (name, count) in stacks.iter().flat_map(|stack| &stack.parts) {
        *sums.entry(name).or_default() += u64::from(*count);
    }
    let mut sums: Vec<(&str, u64)> = sums.into_iter().collect();
    sums.sort_by(|a, b| b.1.cmp(&a.1).then_with(|| a.0.cmp(b.0)));
    sums.into_iter().take(COLOURS).map(|(name, _)| name).collect()
}

/// The parts of a bar in the legend's order, so that bars can be compared from the left.
fn parts(stack: &Stack, named: &[&str], axis: &Axis) -> Vec<Part> {
    let of = |name: &str| stack.parts.iter().find(|(known, _)| known == name).map(|(_, n)| *n);
    let mut counts: Vec<(Option<usize>, &str, u64)> = named
        .iter()
        .enumerate()
        .filter_map(|(index, name)| Some((Some(index), *name, u64::from(of(name)?))))
        .collect();
    let others = stack.parts.iter().filter(|(name, _)| !named.contains(&&**name));
    let others: u64 = others.map(|(_, count)| u64::from(*count)).sum();
    counts.push((None, OTHERS, others));
    let mut before = 0;
    let mut parts = Vec::new();
    for (colour, name, count) in counts.into_iter().filter(|(.., count)| *count > 0) {
        let (x, end) = (axis.at(before as f64), axis.at((before + count) as f64));
        before += count;
        let width = pixels(end - x);
        let number = colour.map_or(named.len(), |index| index) + 1;
        parts.push(Part {
            x,
            width,
            colour,
            number: (width >= NUMBERED).then_some(number),
            title: format!("{name}: {count}"),
        });
    }
    parts
}

#[cfg(test)]
mod tests {
    use super::*;

    fn stack(label: &str, parts: &[(&str, u32)]) -> Stack {
        let parts = parts.iter().map(|(name, n)| ((*name).to_owned(), *n)).collect();
        Stack { label: label.to_owned(), kernel: "6.12".to_owned(), parts }
    }

    #[test]
    fn parts_touch_and_add_up_to_the_bar() {
        let all =
            [stack("fexit", &[("a", 10), ("b", 60), ("c", 30)]), stack("kprobe", &[("b", 50)])];
        let (drawn, left_out) = bars(&all).unwrap();
        assert_eq!((drawn.bars.len(), left_out), (2, 0));
        let fexit = &drawn.bars[0];
        assert_eq!((fexit.total, fexit.end), (100, RIGHT));
        // b is the largest over all bars.
        let titles: Vec<&str> = fexit.parts.iter().map(|part| part.title.as_str()).collect();
        assert_eq!(titles, ["b: 60", "c: 30", "a: 10"]);
        let mut x = LEFT;
        for part in &fexit.parts {
            assert_eq!(part.x, x);
            x = pixels(x + part.width);
        }
        assert_eq!(x, RIGHT);
        assert_eq!(drawn.bars[1].parts[0].colour, fexit.parts[0].colour);
    }

    #[test]
    fn functions_without_a_colour_are_summed_up() {
        let names: Vec<String> = (0..COLOURS + 3).map(|index| format!("f{index}")).collect();
        let parts: Vec<(&str, u32)> =
            names.iter().zip((1..=100).rev()).map(|(name, n)| (name.as_str(), n)).collect();
        let (drawn, _) = bars(&[stack("fexit", &parts)]).unwrap();
        let last = drawn.bars[0].parts.last().unwrap();
        assert_eq!((last.colour, drawn.bars[0].parts.len()), (None, COLOURS + 1));
        let small: u32 = parts[COLOURS..].iter().map(|(_, n)| n).sum();
        assert_eq!(last.title, format!("{OTHERS}: {small}"));
        assert_eq!(drawn.legend.len(), COLOURS + 1);
        assert_eq!(drawn.legend[COLOURS].title, OTHERS);
    }

    #[test]
    fn draws_a_limited_number_of_bars() {
        let all = vec![stack("fexit", &[("a", u32::MAX)]); ROWS + 1];
        let (drawn, left_out) = bars(&all).unwrap();
        assert_eq!((drawn.bars.len(), left_out), (ROWS, 1));
        assert!(bars(&[]).is_none() && bars(&[stack("fexit", &[])]).is_none());
    }
}
