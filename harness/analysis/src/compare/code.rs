// SPDX-License-Identifier: MIT OR Apache-2.0
//! Lays the instructions of a function on two kernels side by side.

use super::Side;
use similar::{Algorithm, DiffTag, capture_diff_slices};
use std::collections::HashMap;
use tramplab_model::code::Instruction;

/// An instruction on both sides, or on one.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct CodeRow {
    pub base: Option<Instruction>,
    pub head: Option<Instruction>,
    /// `Moved`: the same instruction jumps to another one.
    pub side: Side,
}

/// Aligns the instructions of two builds. Offsets do not count: an instruction that came shifts
/// all that follow.
pub fn code(base: &[Instruction], head: &[Instruction]) -> Vec<CodeRow> {
    let keys = |side: &[Instruction]| -> Vec<(String, bool)> {
        side.iter().map(|one| (one.text.clone(), one.target.is_some())).collect()
    };
    let mut rows = Vec::new();
    for change in capture_diff_slices(Algorithm::Myers, &keys(base), &keys(head)) {
        let (tag, before, after) = change.as_tag_tuple();
        let (before, after) = (&base[before], &head[after]);
        let both = |(base, head): (&Instruction, &Instruction)| CodeRow {
            base: Some(base.clone()),
            head: Some(head.clone()),
            side: Side::Both,
        };
        let went =
            |one: &Instruction| CodeRow { base: Some(one.clone()), head: None, side: Side::Base };
        let came =
            |one: &Instruction| CodeRow { base: None, head: Some(one.clone()), side: Side::Head };
        if tag == DiffTag::Equal {
            rows.extend(before.iter().zip(after).map(both));
        } else {
            rows.extend(before.iter().map(went).chain(after.iter().map(came)));
        }
    }
    let offsets = |row: &CodeRow| Some((row.base.as_ref()?.offset, row.head.as_ref()?.offset));
    let places: HashMap<u64, u64> = rows.iter().filter_map(offsets).collect();
    for row in &mut rows {
        let jumps = |one: &Option<Instruction>| one.as_ref().and_then(|one| one.target);
        if row.side == Side::Both
            && let (Some(base), Some(head)) = (jumps(&row.base), jumps(&row.head))
            && places.get(&base) != Some(&head)
        {
            row.side = Side::Moved;
        }
    }
    rows
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Instructions of four bytes.
    fn function(of: &[(&str, Option<u64>)]) -> Vec<Instruction> {
        let one = |(number, (text, target)): (u64, &(&str, Option<u64>))| Instruction {
            offset: number * 4,
            text: (*text).to_owned(),
            target: target.map(|number| number * 4),
        };
        (0..).zip(of).map(one).collect()
    }

    #[test]
    fn follows_jumps_over_instructions_that_came() {
        let base = function(&[("je", Some(3)), ("call f", None), ("jmp", Some(0)), ("ret", None)]);
        // A nop shifts the code, and the last jump goes to it instead of the first instruction.
        let head = function(&[
            ("nop", None),
            ("je", Some(4)),
            ("call f", None),
            ("jmp", Some(0)),
            ("ret", None),
        ]);
        let sides = |rows: Vec<CodeRow>| rows.iter().map(|row| row.side).collect::<Vec<_>>();
        assert_eq!(
            sides(code(&base, &head)),
            [Side::Head, Side::Both, Side::Both, Side::Moved, Side::Both]
        );
        assert!(sides(code(&base, &base)).iter().all(|side| *side == Side::Both));
        assert_eq!(sides(code(&base, &[])), [Side::Base; 4]);
    }
}
