// SPDX-License-Identifier: MIT OR Apache-2.0
//! The instructions of a function on base and head, side by side.

use std::collections::BTreeSet;
use tramplab_analysis::compare::{CodeRow, Side};
use tramplab_model::{code::Instruction, text::line};

/// Equal instructions that are shown around others.
const CONTEXT: usize = 3;

/// Lays a function out in two columns. `kernels` are the names of base and head, `mispredicted` the
/// offsets of their branches that hits mispredict.
pub fn render(
    function: &str,
    kernels: [&str; 2],
    rows: &[CodeRow],
    mispredicted: &[BTreeSet<u64>; 2],
) -> String {
    let function = line(function);
    let [base, head] = kernels.map(line);
    let count = |of: fn(&CodeRow) -> bool| rows.iter().filter(|row| of(row)).count();
    let [old, new] = [count(|row| row.base.is_some()), count(|row| row.head.is_some())];
    let misses = |row: &CodeRow| {
        let is_missed = |one: &Option<Instruction>, missed: &BTreeSet<u64>| {
            one.as_ref().is_some_and(|one| missed.contains(&one.offset))
        };
        [is_missed(&row.base, &mispredicted[0]), is_missed(&row.head, &mispredicted[1])]
    };
    let differs = |row: &CodeRow| {
        let [base, head] = misses(row);
        row.side != Side::Both || base != head
    };
    if !rows.iter().any(differs) {
        return format!("{function}: {old} instructions, the same on {base} and {head}\n");
    }
    let cell = |one: &Option<Instruction>, is_missed| {
        one.as_ref().map_or_else(String::new, |one| instruction(one, is_missed))
    };
    let cells = rows.iter().map(|row| {
        let [base, head] = misses(row);
        [cell(&row.base, base), cell(&row.head, head)]
    });
    let cells: Vec<[String; 2]> = cells.collect();
    let shown: Vec<bool> = (0..rows.len())
        .map(|at| {
            let near = at.saturating_sub(CONTEXT)..rows.len().min(at + CONTEXT + 1);
            rows[near].iter().any(differs)
        })
        .collect();
    let left = cells.iter().zip(&shown).filter(|(_, shown)| **shown);
    let width = left.map(|([base, _], _)| base.chars().count()).max().unwrap_or(0).max(base.len());
    let mut out = format!(
        "{function}: {old} -> {new} instructions; - went, + came, ~ jumps elsewhere\n  \
         {base:width$} | {head}\n"
    );
    let mut hidden = 0;
    for ((row, [base, head]), shown) in rows.iter().zip(&cells).zip(shown) {
        if !shown {
            hidden += 1;
            continue;
        }
        out += &equal(&mut hidden);
        let mark = match row.side {
            Side::Both => " ",
            Side::Moved => "~",
            Side::Base => "-",
            Side::Head => "+",
        };
        out += format!("{mark} {base:width$} | {head}").trim_end();
        out.push('\n');
    }
    out + &equal(&mut hidden)
}

/// A line for instructions that are left out.
fn equal(hidden: &mut usize) -> String {
    match std::mem::take(hidden) {
        0 => String::new(),
        1 => "  … 1 equal instruction\n".to_owned(),
        count => format!("  … {count} equal instructions\n"),
    }
}

fn instruction(one: &Instruction, is_missed: bool) -> String {
    let offset = format!("+{:#x}", one.offset);
    let text = match one.target {
        Some(target) => format!("{:<6} +{target:#x}", one.text),
        None => one.text.clone(),
    };
    let note = if is_missed { "  (mispredicted)" } else { "" };
    line(&format!("{offset:<7} {text}{note}"))
}

#[cfg(test)]
mod tests {
    use super::*;
    use tramplab_analysis::compare::code;

    fn function(texts: &[&str]) -> Vec<Instruction> {
        let one = |(offset, text): (u64, &&str)| Instruction {
            offset: offset * 4,
            text: (*text).to_owned(),
            target: (*text == "jmp   ").then_some(0),
        };
        (0..).zip(texts).map(one).collect()
    }

    #[test]
    fn shows_what_changed_and_counts_the_rest() {
        let base = function(&["a", "b", "c", "d", "e", "f\x1b[2J", "jmp   ", "ret"]);
        let head = function(&["a", "b", "c", "d", "e", "new", "jmp   ", "ret"]);
        let shown =
            |head, mispredicted| render("f", ["k", "k+s"], &code(&base, head), &mispredicted);
        let none = || [BTreeSet::new(), BTreeSet::new()];
        insta::assert_snapshot!(shown(&head, none()));
        let same = "f: 8 instructions, the same on k and k+s\n";
        assert_eq!(shown(&base, none()), same);
        let ret = || BTreeSet::from([0x1c]);
        assert_eq!(shown(&base, [ret(), ret()]), same);
        // The code is the same, and only the head's callers pay.
        let paid = shown(&base, [BTreeSet::new(), ret()]);
        let lines: Vec<&str> = paid.lines().collect();
        assert_eq!(lines.len(), 7, "{paid}");
        assert_eq!(lines[6], "  +0x1c   ret         | +0x1c   ret  (mispredicted)");
    }
}
