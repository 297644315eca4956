// SPDX-License-Identifier: MIT OR Apache-2.0
//! AArch64 makes an address of two instructions: `adrp` puts a page into a register, a later one
//! adds the rest. To name the address, the pages in registers are followed along the jumps.

use super::{Names, Within, last_address};
use std::collections::{BTreeMap, HashMap};
use tramplab_model::code::Instruction;

/// The registers that hold a page, whatever way the code took.
type Pages = BTreeMap<u8, u64>;

struct Line<'a> {
    text: &'a str,
    mnemonic: &'a str,
    operands: Vec<&'a str>,
    /// The last operand, if it is an address, and the text before it.
    address: Option<(&'a str, u64)>,
    target: Option<u64>,
}

pub(super) fn instructions(
    lines: &[(u64, String)],
    names: &Names,
    within: &Within,
) -> Vec<Instruction> {
    let parsed: Vec<Line> = lines.iter().map(|(_, text)| Line::parse(text, within)).collect();
    let offsets: Vec<u64> = lines.iter().map(|(offset, _)| *offset).collect();
    let pages = follow(&offsets, &parsed);
    let one = |((line, pages), &offset): ((&Line, &Option<Pages>), &u64)| {
        let text = line.named(pages.as_ref().unwrap_or(&Pages::new()), names);
        Instruction { offset, text, target: line.target }
    };
    parsed.iter().zip(&pages).zip(&offsets).map(one).collect()
}

/// The pages before each line. None for a line that only a computed jump leads to.
fn follow(offsets: &[u64], lines: &[Line]) -> Vec<Option<Pages>> {
    let places: HashMap<u64, usize> = offsets.iter().copied().zip(0..).collect();
    let mut before: Vec<Option<Pages>> = vec![None; lines.len()];
    let mut waiting = Vec::new();
    if let Some(first) = before.first_mut() {
        *first = Some(Pages::new());
        waiting.push(0);
    }
    // Pages are only taken away from a line that was reached before, so this ends.
    while let Some(at) = waiting.pop() {
        let line = &lines[at];
        let mut after = before[at].clone().unwrap_or_default();
        line.change(&mut after);
        let next = (!line.ends()).then_some(at + 1).filter(|next| *next < lines.len());
        let jump = line.target.and_then(|target| places.get(&target).copied());
        for to in next.into_iter().chain(jump) {
            let joined = match &before[to] {
                None => after.clone(),
                Some(known) => {
                    let both = |(register, page): &(&u8, &u64)| after.get(register) == Some(page);
                    known.iter().filter(both).map(|(register, page)| (*register, *page)).collect()
                }
            };
            if before[to].as_ref() != Some(&joined) {
                before[to] = Some(joined);
                waiting.push(to);
            }
        }
    }
    before
}

/// `x19` and `w19` are number 19.
fn register(operand: &str) -> Option<u8> {
    let number = operand.trim_start_matches('[').strip_prefix(['x', 'w'])?;
    number.trim_end_matches(['!', ']']).parse().ok().filter(|number| *number < 31)
}

fn number(operand: &str) -> Option<u64> {
    let number = operand.strip_prefix('#')?.trim_end_matches(']');
    match number.strip_prefix("0x") {
        Some(digits) => u64::from_str_radix(digits, 16).ok(),
        None => number.parse().ok(),
    }
}

impl<'a> Line<'a> {
    fn parse(text: &'a str, within: &Within) -> Line<'a> {
        let text = text.split("//").next().unwrap_or_default().trim_end();
        let (mnemonic, operands) = text.split_once(' ').unwrap_or((text, ""));
        let address = last_address(text);
        let target = address.filter(|_| mnemonic != "adrp").and_then(|(_, to)| within(to));
        let operands = operands.trim_start().split(", ").collect();
        Line { text, mnemonic, operands, address, target }
    }

    /// No code follows but by a jump.
    fn ends(&self) -> bool {
        matches!(self.mnemonic, "b" | "br" | "ret" | "eret" | "udf")
            || self.mnemonic.starts_with("retaa")
            || self.mnemonic.starts_with("braa")
    }

    /// Changes the pages as the instruction does.
    fn change(&self, pages: &mut Pages) {
        if matches!(self.mnemonic, "bl" | "blr") {
            // A function may leave others in all but x19 to x28.
            pages.retain(|register, _| (19..29).contains(register));
            return;
        }
        // Register stores, compares and jumps write no register but the base of a store.
        let writes_base = self.text.contains("]!") || self.text.contains("], ");
        if let Some(base) = self.operands.iter().find(|one| one.starts_with('['))
            && writes_base
        {
            register(base).map(|base| pages.remove(&base));
        }
        let reads = ["st", "cmp", "cmn", "tst", "cb", "tb", "b.", "prfm", "ccm"];
        let is_exclusive = self.mnemonic.starts_with("stxr") || self.mnemonic.starts_with("stlxr");
        if !is_exclusive && reads.iter().any(|start| self.mnemonic.starts_with(start)) {
            return;
        }
        // Loads of pairs, and atomic operations, write the second.
        let written: Vec<u8> =
            self.operands.iter().take(2).filter_map(|one| register(one)).collect();
        let is_pair =
            ["ldp", "ldxp", "ldaxp", "ldnp", "ldpsw", "cas", "swp", "ldadd", "ldset", "ldclr"];
        let count = if is_pair.iter().any(|one| self.mnemonic.starts_with(one)) { 2 } else { 1 };
        for register in written.iter().take(count) {
            pages.remove(register);
        }
        if let ("adrp", Some((_, page)), Some(register)) =
            (self.mnemonic, self.address, written.first())
        {
            pages.insert(*register, page);
        }
    }

    /// The text, without a target in the function, and with names instead of addresses.
    fn named(&self, pages: &Pages, names: &Names) -> String {
        match self.address {
            // The instruction that adds to it names the symbol.
            Some((rest, _)) if self.mnemonic == "adrp" => format!("{rest}PAGE"),
            Some((rest, _)) if self.target.is_some() => {
                rest.trim_end().trim_end_matches(',').to_owned()
            }
            Some((rest, address)) => format!("{rest}{}", names.of_address(address)),
            None => self.on_a_page(pages, names).unwrap_or_else(|| self.text.to_owned()),
        }
    }

    /// `add x0, x0, #0x10` and `ldr x1, [x0, #16]` with the symbol, if the register holds a page.
    fn on_a_page(&self, pages: &Pages, names: &Names) -> Option<String> {
        let name = |base: &str, offset: u64| {
            Some(names.of_address(pages.get(&register(base)?)?.wrapping_add(offset)))
        };
        let Line { mnemonic, operands, .. } = self;
        if let ("add", [to, base, offset]) = (*mnemonic, &operands[..]) {
            return Some(format!("add    {to}, {base}, {}", name(base, number(offset)?)?));
        }
        let at = operands.iter().position(|one| one.starts_with('['))?;
        let (before, base) = (operands[..at].join(", "), operands[at]);
        let named = match &operands[at + 1..] {
            // `ldr x1, [x0]`: the symbol is at the page's start.
            [] if base.ends_with(']') => name(base, 0)?,
            [offset] if offset.ends_with(']') => name(base, number(offset)?)?,
            _ => return None,
        };
        Some(format!("{mnemonic:<6} {before}, {}, {named}]", base.trim_end_matches(']')))
    }
}
