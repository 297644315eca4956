// SPDX-License-Identifier: MIT OR Apache-2.0
//! The names in a stranger's ELF file, which may give one long text a million names.

use object::{Endianness, ObjectSymbol as _, read::elf::ElfSymbol64};

/// Bytes of a name, as in the kernel (`KSYM_NAME_LEN`).
const LONGEST: usize = 512;

/// Symbols of a file of so many bytes, with their names. Those with a longer name are left out. It
/// ends when the names have several times the bytes of the file.
pub fn named<'a, 'f>(
    symbols: impl Iterator<Item = ElfSymbol64<'a, 'f, Endianness>>,
    file: usize,
) -> impl Iterator<Item = (ElfSymbol64<'a, 'f, Endianness>, &'a str)>
where
    'a: 'f,
{
    let mut left = file.saturating_mul(4);
    symbols
        .map_while(move |symbol| {
            let name = symbol.name();
            // The end of a damaged one was searched in all of the file.
            left = left.checked_sub(name.as_ref().map_or(file, |name| name.len()))?;
            Some((symbol, name.unwrap_or_default()))
        })
        .filter(|(_, name)| name.len() <= LONGEST)
}
