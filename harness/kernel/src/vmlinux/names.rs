// SPDX-License-Identifier: MIT OR Apache-2.0
//! Names addresses so that the same thing has the same name in another build.

use super::{named, without_numbers};
use object::{Object, ObjectSection, ObjectSymbol, SectionFlags, SymbolKind, elf};
use std::{collections::BTreeMap, ops::Range};

/// Addresses of kernels begin here. Smaller numbers are numbers.
const KERNEL: u64 = 0xffff << 48;

/// The symbols and sections of a file.
pub struct Names<'a> {
    /// By start.
    symbols: BTreeMap<u64, Symbol<'a>>,
    sections: Vec<(Range<u64>, &'a str)>,
}

/// If several have one address, the greatest is taken.
#[derive(PartialEq, Eq, PartialOrd, Ord)]
struct Symbol<'a> {
    is_global: bool,
    size: u64,
    name: &'a str,
}

impl<'a> Names<'a> {
    /// `length`: of the file.
    pub fn of(file: &'a object::File<'_>, length: usize) -> Names<'a> {
        let is_named = |kind| matches!(kind, SymbolKind::Text | SymbolKind::Data);
        let mut symbols: BTreeMap<u64, Symbol> = BTreeMap::new();
        for (name, symbol) in named(file, length, is_named).filter(|(_, one)| one.size() > 0) {
            let (is_global, size) = (symbol.is_global(), symbol.size());
            let new = Symbol { is_global, size, name };
            if symbols.get(&symbol.address()).is_none_or(|known| new > *known) {
                symbols.insert(symbol.address(), new);
            }
        }
        let is_loaded = |section: &object::Section| match section.flags() {
            SectionFlags::Elf { sh_flags } => sh_flags & u64::from(elf::SHF_ALLOC) != 0,
            _ => false,
        };
        let range = |section: &object::Section<'a, '_>| {
            let start = section.address();
            Some((start..start.saturating_add(section.size()), section.name().ok()?))
        };
        let sections = file.sections().filter(is_loaded).filter_map(|one| range(&one)).collect();
        Names { symbols, sections }
    }

    /// The symbol that has the address. Else the section, without an offset: a string has no
    /// symbol, and lies elsewhere in each build.
    fn known(&self, address: u64) -> Option<String> {
        if let Some((start, symbol)) = self.symbols.range(..=address).next_back()
            && address - start < symbol.size
        {
            let name = without_numbers(symbol.name);
            return Some(match address - start {
                0 => name,
                offset => format!("{name}+{offset:#x}"),
            });
        }
        let holds = |(range, _): &&(Range<u64>, &str)| range.contains(&address);
        self.sections.iter().find(holds).map(|(_, name)| (*name).to_owned())
    }

    pub fn of_address(&self, address: u64) -> String {
        self.known(address).unwrap_or_else(|| format!("{address:#x}"))
    }

    /// Names a number that may be an address. `of_cpu`: one in each CPU's own memory.
    pub fn of_number(&self, number: u64, of_cpu: bool) -> Option<String> {
        (of_cpu || number >= KERNEL).then(|| self.known(number)).flatten()
    }
}
