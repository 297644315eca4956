// SPDX-License-Identifier: MIT OR Apache-2.0
//! Reads the functions of an executable or a library: of user space, for its mechanisms.

use object::{
    Endianness, Object as _, ObjectSymbol as _, SymbolKind,
    elf::{ET_DYN, ET_EXEC, PF_X, PT_LOAD},
    read::elf::{ElfFile64, FileHeader as _, ProgramHeader as _},
};
use std::collections::BTreeMap;
use tramplab_protocol::{
    binary::{Binary, Function},
    program::{LARGEST, Object},
};

#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum BinaryError {
    #[error("it is no executable or library for 64-bit Linux: {0}")]
    NotElf(String),
    #[error("it has no code")]
    NoCode,
    #[error(
        "it names no functions: `strip` removed its symbols; take the file before stripping, or a \
         library"
    )]
    NoFunctions,
    #[error(
        "its code and the names of its functions have {0} bytes, {LARGEST} at most fit into \
             a message to a guest"
    )]
    TooLarge(usize),
}

/// True if the file begins like an ELF file.
pub fn is_elf(bytes: &[u8]) -> bool {
    bytes.starts_with(b"\x7fELF")
}

/// The functions that the symbols name, each place once, and the part of the file with their code.
pub fn read(name: &str, bytes: &[u8]) -> Result<Binary, BinaryError> {
    let not_elf = |why: &dyn std::fmt::Display| BinaryError::NotElf(why.to_string());
    let file = ElfFile64::<Endianness>::parse(bytes).map_err(|error| not_elf(&error))?;
    let (header, endian) = (file.elf_header(), file.endian());
    if endian != Endianness::Little || ![ET_EXEC, ET_DYN].contains(&header.e_type(endian)) {
        return Err(not_elf(&"it is not linked, or not little-endian"));
    }
    // Addresses, offset in the file, bytes.
    let segments: Vec<(u64, u64, u64)> = file
        .elf_program_headers()
        .iter()
        .filter(|segment| segment.p_type(endian) == PT_LOAD && segment.p_flags(endian) & PF_X != 0)
        .map(|segment| {
            (segment.p_vaddr(endian), segment.p_offset(endian), segment.p_filesz(endian))
        })
        .collect();
    let ends = segments.iter().map(|(_, offset, size)| offset.saturating_add(*size));
    let end = ends.max().ok_or(BinaryError::NoCode)?;
    let code = usize::try_from(end).ok().and_then(|end| bytes.get(..end));
    let code = code.ok_or_else(|| not_elf(&"it ends before its code does"))?;
    let offset = |address: u64| {
        segments.iter().find_map(|(start, offset, size)| {
            let within = address.checked_sub(*start)?;
            (within < *size).then(|| offset + within)
        })
    };
    let mut names: BTreeMap<u64, &str> = BTreeMap::new();
    for symbol in file.symbols().chain(file.dynamic_symbols()) {
        let is_function = symbol.kind() == SymbolKind::Text && symbol.is_definition();
        let Some(offset) = offset(symbol.address()).filter(|_| is_function) else { continue };
        // A name is a line of the list of functions.
        let plain = |name: &&str| !name.is_empty() && !name.contains(char::is_control);
        let Some(name) = symbol.name().ok().filter(plain) else { continue };
        let known = names.entry(offset).or_insert(name);
        // Of several names for a place the same one each time.
        *known = (*known).min(name);
    }
    if names.is_empty() {
        return Err(BinaryError::NoFunctions);
    }
    let size = names.values().fold(code.len(), |sum, name| sum + name.len());
    if size > LARGEST {
        return Err(BinaryError::TooLarge(size));
    }
    let function = |(offset, name): (u64, &str)| Function { name: name.to_owned(), offset };
    Ok(Binary {
        name: name.to_owned(),
        contents: Object(code.into()),
        machine: header.e_machine(endian),
        functions: names.into_iter().map(function).collect(),
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    unsafe extern "C" {
        fn getpid() -> i32;
    }

    /// The kernel tells where it mapped a function of the C library, and from which file.
    #[test]
    fn finds_a_function_where_the_kernel_mapped_it() {
        let address = getpid as *const () as u64;
        let maps = std::fs::read_to_string("/proc/self/maps").unwrap();
        let mapped = |line: &str| {
            let mut words = line.split_ascii_whitespace();
            let number = |text: &str| u64::from_str_radix(text, 16).unwrap();
            let (start, end) = words.next()?.split_once('-')?;
            let offset = number(words.nth(1)?);
            let path = words.nth(2)?.to_owned();
            let (start, end) = (number(start), number(end));
            (start..end).contains(&address).then(|| (address - start + offset, path))
        };
        let (offset, path) = maps.lines().find_map(mapped).unwrap();
        let bytes = std::fs::read(path).unwrap();
        let binary = read("libc.so.6", &bytes).unwrap();
        let functions = &binary.functions;
        let found: Vec<&Function> = functions.iter().filter(|one| one.offset == offset).collect();
        assert!(["__getpid", "getpid"].contains(&&*found[0].name), "{found:?}");
        assert_eq!(found.len(), 1, "a place counts once");
        assert!(functions.len() > 1000, "{}", functions.len());
        assert_eq!(binary.contents.0[..], bytes[..binary.contents.0.len()]);
    }

    #[test]
    fn rejects_files_without_functions() {
        let own = std::fs::read("/proc/self/exe").unwrap();
        assert!(is_elf(&own) && !is_elf(b"vfs_read\n"));
        for (bytes, expected) in [(&b"\x7fELF"[..], "NotElf"), (&own[..4096], "NotElf")] {
            let error = format!("{:?}", read("x", bytes).unwrap_err());
            assert!(error.starts_with(expected), "{error}");
        }
    }
}
