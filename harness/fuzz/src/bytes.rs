// SPDX-License-Identifier: MIT OR Apache-2.0
//! Reads an input as a stream of small numbers, for targets that take neither text nor a file.
//!
//! The stream never ends: it reads as zeros past the end, so a truncated input stays meaningful.

use tramplab_protocol::message::Symbol;

pub struct Bytes<'a>(&'a [u8]);

impl<'a> Bytes<'a> {
    pub fn new(data: &'a [u8]) -> Bytes<'a> {
        Bytes(data)
    }

    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    pub fn byte(&mut self) -> u8 {
        match self.0.split_first() {
            Some((&first, rest)) => {
                self.0 = rest;
                first
            }
            None => 0,
        }
    }

    /// One of `values`.
    pub fn one_of<T: Copy>(&mut self, values: &[T]) -> T {
        values[usize::from(self.byte()) % values.len()]
    }

    /// A small number, or a large one near which sums overflow.
    pub fn number(&mut self) -> u64 {
        match self.byte() {
            small @ 0..=0xef => small.into(),
            at => u64::MAX >> ((at & 0xf) * 4),
        }
    }
}

/// A function's name, and its module's as kallsyms writes it.
pub type Named = (&'static str, Option<&'static str>);

/// Adjacent functions of equal size.
pub struct Table {
    pub base: u64,
    /// Bytes per function.
    pub each: u64,
    pub names: &'static [Named],
}

impl Table {
    pub fn symbols(&self) -> impl Iterator<Item = Symbol> + '_ {
        (0..).zip(self.names).map(|(at, (name, module))| Symbol {
            name: (*name).to_owned(),
            module: module.map(str::to_owned),
            start: self.base + at * self.each,
            end: self.base + (at + 1) * self.each,
        })
    }

    /// The address of function number `function`, which may lie past the last one.
    pub fn address(&self, function: u8, offset: u64) -> u64 {
        self.base + u64::from(function) * self.each + offset
    }
}
