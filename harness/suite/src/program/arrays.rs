// SPDX-License-Identifier: MIT OR Apache-2.0
//! Programs that an object puts into its prog arrays: `.values` of a map in its source, relocations
//! of the section `.maps` in the file.

use super::{
    btf,
    object::{self, File},
};
use crate::symbols::named;
use ::object::{Object as _, ObjectSection as _, ObjectSymbol as _, RelocationTarget};
use std::collections::{BTreeMap, BTreeSet};
use tramplab_protocol::program::Slot;

const SECTION: &str = ".maps";
/// Bytes of a pointer, which stands for a slot.
const POINTER: u64 = 8;

#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum ArrayError {
    #[error("the relocation at {SECTION}+{0:#x} names no symbol")]
    Symbol(u64),
    #[error("the prog array {array} has a value at {offset:#x}, where it has no slot")]
    Place { array: String, offset: u64 },
    #[error("the prog array {array} has {entries} entries and a value for slot {index}")]
    Index { array: String, entries: u32, index: u64 },
    #[error("slot {index} of the prog array {array} has {symbol:?}, which is no program")]
    NotAProgram { array: String, index: u32, symbol: String },
    #[error("slot {index} of the prog array {array} is filled twice")]
    Twice { array: String, index: u32 },
    #[error("its prog arrays have more than {MOST} values")]
    TooMany,
}

/// Filled slots of all arrays, which fit into a message to a guest beside the object.
const MOST: usize = 4096;
/// Bytes of a program's name. The kernel keeps 15 of them.
const LONGEST: usize = 512;

/// The filled slots of all prog arrays. None of an object whose BTF is damaged, or which has none.
pub fn slots(bytes: &[u8]) -> Result<Vec<Slot>, ArrayError> {
    let Some((file, arrays)) = arrays(bytes) else { return Ok(Vec::new()) };
    let Some(section) = file.section_by_name(SECTION) else { return Ok(Vec::new()) };
    let (mut slots, mut filled) = (Vec::new(), BTreeSet::new());
    for (at, relocation) in section.relocations() {
        // Other maps are libbpf's: it puts maps into maps.
        let Some((start, array)) = arrays.range(..=at).next_back() else { continue };
        if at - start >= array.bytes {
            continue;
        }
        let index = index(array, at - start)?;
        let RelocationTarget::Symbol(symbol) = relocation.target() else {
            return Err(ArrayError::Symbol(at));
        };
        let symbol = file.symbol_by_index(symbol).map_err(|_| ArrayError::Symbol(at))?;
        let program: String = symbol.name().unwrap_or_default().chars().take(LONGEST).collect();
        let array = array.name.clone();
        if !object::is_program(&file, &symbol) || program.len() >= LONGEST {
            return Err(ArrayError::NotAProgram { array, index, symbol: program });
        }
        if !filled.insert((at, index)) {
            return Err(ArrayError::Twice { array, index });
        }
        if slots.len() == MOST {
            return Err(ArrayError::TooMany);
        }
        slots.push(Slot { array, index, program });
    }
    Ok(slots)
}

struct Array {
    name: String,
    bytes: u64,
    of: btf::ProgArray,
}

/// The slot of a value, by its place in the map.
fn index(array: &Array, place: u64) -> Result<u32, ArrayError> {
    let name = || array.name.clone();
    let offset = place.checked_sub(u64::from(array.of.values)).filter(|at| at % POINTER == 0);
    let index = offset.ok_or_else(|| ArrayError::Place { array: name(), offset: place })? / POINTER;
    let entries = array.of.entries;
    u32::try_from(index).ok().filter(|&index| index < entries).ok_or_else(|| ArrayError::Index {
        array: name(),
        entries,
        index,
    })
}

/// The prog arrays by their places. BTF knows their types, symbols their places.
fn arrays(bytes: &[u8]) -> Option<(File<'_>, BTreeMap<u64, Array>)> {
    let file = File::parse(bytes).ok()?;
    let mut types = btf::prog_arrays(file.section_by_name(".BTF")?.data().ok()?)?;
    let section = file.section_by_name(SECTION)?.index();
    let mut arrays = BTreeMap::new();
    let symbols = file.symbols().filter(|symbol| symbol.section_index() == Some(section));
    for (symbol, name) in named(symbols, bytes.len()) {
        if let Some(of) = types.remove(name) {
            let array = Array { name: name.to_owned(), bytes: symbol.size(), of };
            arrays.insert(symbol.address(), array);
        }
    }
    Some((file, arrays))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::program::object::tests::{Elf, Maps, elf};

    const NAMES: &str = "\0calls\0.maps\0type\0max_entries\0values\0";

    /// BTF of a map `calls` with two slots, at 16 and 24.
    fn btf(map_type: u32) -> Vec<u8> {
        let name = |name: &str| match name {
            "" => 0,
            name => NAMES.find(&format!("\0{name}\0")).unwrap() as u32 + 1,
        };
        let kind = |kind: u32, members: u32| kind << 24 | members;
        let types = [
            // 1: int. 2, 3: the type. 4, 5: the number of entries. 6, 7: the values.
            vec![0, kind(1, 0), 4, 32],
            vec![0, kind(3, 0), 0, 1, 1, map_type],
            vec![0, kind(2, 0), 2],
            vec![0, kind(3, 0), 0, 1, 1, 2],
            vec![0, kind(2, 0), 4],
            vec![0, kind(2, 0), 0],
            vec![0, kind(3, 0), 0, 6, 1, 0],
            [
                &[0, kind(4, 3), 16][..],
                &[name("type"), 3, 0],
                &[name("max_entries"), 5, 64],
                &[name("values"), 7, 128],
            ]
            .concat(),
            vec![name("calls"), kind(14, 0), 8, 1],
            vec![name(".maps"), kind(15, 1), 32, 9, 0, 32],
        ];
        let types: Vec<u8> = types.concat().iter().flat_map(|word| word.to_le_bytes()).collect();
        let length = types.len() as u32;
        let header = [24, 0, length, length, NAMES.len() as u32];
        let header = header.iter().flat_map(|word| word.to_le_bytes());
        let start = [0x9f, 0xeb, 1, 0];
        start.into_iter().chain(header).chain(types).chain(NAMES.bytes()).collect()
    }

    fn object(map_type: u32, relocations: &[(u64, u32)]) -> Elf {
        let programs = [("fentry/f", "a", 2), ("fentry", "b", 2), (".text", "helper", 2)];
        let maps =
            Maps { btf: btf(map_type), name: "calls", bytes: 32, relocations: relocations.into() };
        elf(&programs).with(maps)
    }

    fn slot(index: u32, program: &str) -> Slot {
        Slot { array: "calls".to_owned(), index, program: program.to_owned() }
    }

    #[test]
    fn reads_the_filled_slots() {
        let found = |relocations: &[(u64, u32)]| slots(&object(3, relocations).bytes());
        assert_eq!(found(&[]), Ok(Vec::new()));
        assert_eq!(found(&[(24, 1)]), Ok(vec![slot(1, "a")]));
        assert_eq!(found(&[(24, 1), (16, 2)]), Ok(vec![slot(1, "a"), slot(0, "b")]));
        // Behind the map, and in a map of maps.
        assert_eq!(found(&[(32, 1), (u64::MAX, 1)]), Ok(Vec::new()));
        assert_eq!(slots(&object(12, &[(24, 1)]).bytes()), Ok(Vec::new()));
        assert_eq!(slots(&elf(&[("fentry", "a", 2)]).bytes()), Ok(Vec::new()));
        assert_eq!(slots(b"text"), Ok(Vec::new()));
    }

    #[test]
    fn rejects_relocations_that_fill_no_slot() {
        let array = || "calls".to_owned();
        let place = |offset| ArrayError::Place { array: array(), offset };
        let no_program = |symbol: &str| ArrayError::NotAProgram {
            array: array(),
            index: 1,
            symbol: symbol.into(),
        };
        for (relocation, expected) in [
            ((0, 1), place(0)),
            ((15, 1), place(15)),
            ((20, 1), place(20)),
            ((24, 99), ArrayError::Symbol(24)),
            ((24, 0), ArrayError::Symbol(24)),
            // A function that programs call, and the map itself.
            ((24, 3), no_program("helper")),
            ((24, 4), no_program("calls")),
            ((16, 2), ArrayError::Twice { array: array(), index: 0 }),
        ] {
            let object = object(3, &[(16, 1), relocation]);
            assert_eq!(slots(&object.bytes()), Err(expected), "{relocation:?}");
        }
        // More values than entries.
        let mut large = object(3, &[(32, 1)]);
        large =
            large.with(Maps { btf: btf(3), name: "calls", bytes: 40, relocations: vec![(32, 1)] });
        let error = ArrayError::Index { array: array(), entries: 2, index: 2 };
        assert_eq!(slots(&large.bytes()), Err(error));
    }

    /// Millions of look-ups of long names, in a second.
    #[test]
    fn large_definitions_are_no_prog_arrays() {
        let members: Vec<[u32; 3]> = vec![[0, 3, 0]; 65_535];
        let words: Vec<u32> = [vec![0, 4 << 24 | 65_535, 16], members.concat()].concat();
        let variables: Vec<u32> = (0..65_535).flat_map(|_| [2, 0, 32]).collect();
        let name = |text: &str| NAMES.find(&format!("\0{text}\0")).unwrap() as u32 + 1;
        let all = [
            words,
            vec![name("calls"), 14 << 24, 1, 1],
            [vec![name(".maps"), 15 << 24 | 65_535, 32], variables].concat(),
        ];
        let types: Vec<u8> = all.concat().iter().flat_map(|word| word.to_le_bytes()).collect();
        let length = types.len() as u32;
        let header = [24, 0, length, length, NAMES.len() as u32].map(u32::to_le_bytes).concat();
        let btf = [&[0x9f, 0xeb, 1, 0], &header[..], &types, NAMES.as_bytes()].concat();
        let maps = Maps { btf, name: "calls", bytes: 32, relocations: vec![(24, 1)] };
        let object = elf(&[("fentry/f", "a", 2)]).with(maps);
        assert_eq!(slots(&object.bytes()), Ok(Vec::new()));
    }

    #[test]
    fn survives_every_damaged_byte() {
        let whole = object(3, &[(16, 1), (24, 2)]).bytes();
        assert_eq!(slots(&whole), Ok(vec![slot(0, "a"), slot(1, "b")]));
        let mut damaged = whole.clone();
        let mut others = 0;
        for at in 0..whole.len() {
            for byte in [0, 0xff, whole[at] ^ 1] {
                damaged[at] = byte;
                others += usize::from(slots(&damaged) != slots(&whole));
                let _ = crate::program::globals::read(&["a=1"], &damaged);
                let _ = crate::program::object::find(&damaged, None);
            }
            damaged[at] = whole[at];
            let _ = slots(&whole[..at]);
        }
        assert!(others > 100, "{others}");
    }
}
