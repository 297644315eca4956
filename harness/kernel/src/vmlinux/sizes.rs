// SPDX-License-Identifier: MIT OR Apache-2.0
//! The sizes of a kernel's functions.

use super::{Function, Vmlinux, VmlinuxError, functions, without_numbers};
use object::{Object, ObjectSection};
use std::collections::BTreeMap;
use tramplab_model::code::FunctionSizes;

impl Vmlinux {
    /// Returns the sizes of the functions in `.text`. Functions of one name count together. Numbers
    /// that the compiler appends are left out, since another build numbers differently. An alias is
    /// not counted again.
    pub fn function_sizes(&self) -> Result<FunctionSizes, VmlinuxError> {
        let elf = self.elf()?;
        let text = elf.section_by_name(".text").map(|section| section.index());
        let mut by_address: BTreeMap<u64, Function> = BTreeMap::new();
        for function in functions(&elf, self.bytes.len())
            .filter(|found| found.size > 0 && found.section == text)
        {
            let rank = |one: &Function| (one.is_global, one.size);
            let is_better = by_address
                .get(&function.address)
                .is_none_or(|known| (rank(&function), known.name) > (rank(known), function.name));
            if is_better {
                by_address.insert(function.address, function);
            }
        }
        let mut sizes = BTreeMap::new();
        for Function { name, size, .. } in by_address.into_values() {
            let sum: &mut u64 = sizes.entry(without_numbers(name)).or_default();
            *sum = sum.saturating_add(size);
        }
        Ok(FunctionSizes(sizes))
    }
}
