// SPDX-License-Identifier: MIT OR Apache-2.0
//! The instructions of a function on base and head, side by side.

use tramplab_analysis::compare::{CodeRow, Side};
use tramplab_model::{code::Instruction, text::line};

/// Equal instructions that are shown around others.
const CONTEXT: usize = 3;

/// Lays a function out in two columns. `kernels` are the names of base and head.
pub fn render(function: &str, kernels: [&str; 2], rows: &[CodeRow]) -> String {
    let function = line(function);
    let [base, head] = kernels.map(line);
    let count = |of: fn(&CodeRow) -> bool| rows.iter().filter(|row| of(row)).count();
    let [old, new] = [count(|row| row.base.is_some()), count(|row| row.head.is_some())];
    if rows.iter().all(|row| row.side == Side::Both) {
        return format!("{function}: {old} instructions, the same on {base} and {head}\n");
    }
    let cell = |one: &Option<Instruction>| one.as_ref().map_or_else(String::new, instruction);
    let cells: Vec<[String; 2]> =
        rows.iter().map(|row| [cell(&row.base), cell(&row.head)]).collect();
    let shown: Vec<bool> = (0..rows.len())
        .map(|at| {
            let near = at.saturating_sub(CONTEXT)..rows.len().min(at + CONTEXT + 1);
            rows[near].iter().any(|row| row.side != Side::Both)
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

fn instruction(one: &Instruction) -> String {
    let offset = format!("+{:#x}", one.offset);
    let text = match one.target {
        Some(target) => format!("{:<6} +{target:#x}", one.text),
        None => one.text.clone(),
    };
    line(&format!("{offset:<7} {text}"))
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
        insta::assert_snapshot!(render("f", ["k", "k+s"], &code(&base, &head)));
        assert_eq!(
            render("f", ["k", "k+s"], &code(&base, &base)),
            "f: 8 instructions, the same on k and k+s\n"
        );
    }
}
