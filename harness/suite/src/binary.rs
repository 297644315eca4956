// SPDX-License-Identifier: MIT OR Apache-2.0
//! Reads the functions of an executable or a library: of user space, for its mechanisms.

use crate::symbols::named;
use object::{
    Endianness, Object as _, ObjectSymbol as _, SymbolKind,
    elf::{ET_DYN, ET_EXEC, PF_X, PT_LOAD},
    read::elf::{ElfFile64, FileHeader as _, ProgramHeader as _},
};
use sha2::{Digest as _, Sha256};
use std::collections::BTreeMap;
use tramplab_model::name::hex;
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
        "its code and the names of its functions have {0} bytes, {LARGEST} at most fit into a \
         message to a guest"
    )]
    TooLarge(usize),
}

/// Segments of code. A linker makes one.
const MOST_SEGMENTS: usize = 64;

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
    if segments.len() > MOST_SEGMENTS {
        return Err(not_elf(&"it has more than 64 segments of code"));
    }
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
    let symbols = file.symbols().chain(file.dynamic_symbols());
    let functions =
        symbols.filter(|symbol| symbol.kind() == SymbolKind::Text && symbol.is_definition());
    for (symbol, name) in named(functions, bytes.len()) {
        // A name is a line of the list of functions.
        if name.is_empty() || name.contains(char::is_control) {
            continue;
        }
        let Some(offset) = offset(symbol.address()) else { continue };
        let known = names.entry(offset).or_insert(name);
        // A place with several names has the same one each time.
        *known = (*known).min(name);
    }
    if names.is_empty() {
        return Err(BinaryError::NoFunctions);
    }
    // Each comes back as FILE:NAME, perhaps with the reason of a refusal, in JSON.
    let each = |known: &str| 2 * known.len() + name.len() + 128;
    let size = names.values().fold(code.len(), |sum, known| sum + each(known));
    if size > LARGEST {
        return Err(BinaryError::TooLarge(size));
    }
    let function = |(offset, name): (u64, &str)| Function { name: name.to_owned(), offset };
    Ok(Binary {
        name: name.to_owned(),
        contents: Object(code.into()),
        machine: header.e_machine(endian),
        sha256: hex(&Sha256::digest(bytes)),
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
    }

    #[test]
    fn rejects_files_without_functions() {
        let own = std::fs::read("/proc/self/exe").unwrap();
        assert!(is_elf(&own) && !is_elf(b"vfs_read\n"));
        // A library with so many segments of 64 bytes, and no symbols.
        let library = |segments: u16, rights: u32| {
            let mut file = b"\x7fELF\x02\x01\x01".to_vec();
            file.resize(16, 0);
            file.extend([3_u16, 62].map(u16::to_le_bytes).concat());
            file.extend(1_u32.to_le_bytes());
            file.extend([0_u64, 64, 0].map(u64::to_le_bytes).concat());
            file.extend(0_u32.to_le_bytes());
            file.extend([64_u16, 56, segments, 64, 0, 0].map(u16::to_le_bytes).concat());
            for _ in 0..segments {
                file.extend([1, rights].map(u32::to_le_bytes).concat());
                file.extend([0_u64, 0, 0, 64, 64, 1].map(u64::to_le_bytes).concat());
            }
            file
        };
        let (code, data) = (5, 6);
        for (bytes, expected) in [
            (&b"\x7fELF"[..], "NotElf"),
            (&own[..4096], "NotElf"),
            (&library(65, code), "NotElf"),
            (&library(1, data), "NoCode"),
            (&library(64, code), "NoFunctions"),
        ] {
            let error = format!("{:?}", read("x", bytes).unwrap_err());
            assert!(error.starts_with(expected), "{error}");
        }
    }
}
