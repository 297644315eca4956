// SPDX-License-Identifier: MIT OR Apache-2.0
//! Reads global variables, their types and prog arrays from an object's BTF. Everything else is
//! skipped.

use std::collections::{BTreeMap, BTreeSet};

const MAGIC: u16 = 0xeb9f;
/// Bytes of the header's fields that are read.
const HEADER: usize = 24;
/// Typedefs and qualifiers around a type, at most.
const DEEPEST: usize = 32;
/// Bytes of a name, as in the kernel (`KSYM_NAME_LEN`).
const LONGEST: usize = 512;
/// Members of a map's definition: one for each of its attributes.
const MOST_MEMBERS: usize = 64;

/// The kinds of types that are read, as the kernel's `BTF_KIND_…` numbers them.
mod kind {
    pub const INT: u32 = 1;
    pub const PTR: u32 = 2;
    pub const ARRAY: u32 = 3;
    pub const STRUCT: u32 = 4;
    pub const UNION: u32 = 5;
    pub const ENUM: u32 = 6;
    pub const TYPEDEF: u32 = 8;
    pub const VOLATILE: u32 = 9;
    pub const CONST: u32 = 10;
    pub const RESTRICT: u32 = 11;
    pub const FUNC_PROTO: u32 = 13;
    pub const VAR: u32 = 14;
    pub const DATASEC: u32 = 15;
    pub const DECL_TAG: u32 = 17;
    pub const TYPE_TAG: u32 = 18;
    pub const ENUM64: u32 = 19;
}

/// The type of a variable that can be given a value.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Type {
    Bool,
    Integer {
        bytes: u32,
        signed: bool,
    },
    Enum {
        bytes: u32,
        signed: bool,
        values: Vec<(String, i128)>,
    },
    /// `char name[N]`.
    Text {
        bytes: u32,
    },
    /// A struct, a pointer, an array of others.
    Other,
}

/// Global variables. Their types are read when asked for: a stranger's object may name one long
/// type a million times.
pub struct Variables<'a> {
    btf: Btf<'a>,
    /// Sections and numbers of types, by name.
    all: BTreeMap<&'a str, (&'a str, u32)>,
}

impl<'a> Variables<'a> {
    /// None if the BTF is damaged.
    pub fn of(btf: &'a [u8]) -> Option<Variables<'a>> {
        let btf = Btf::parse(btf)?;
        let mut all = BTreeMap::new();
        for section in btf.types.iter().filter(|of| of.kind == kind::DATASEC) {
            let name = btf.name(section.name)?;
            for variable in 0..section.length {
                let variable = btf.of(section.word(variable * 3)?)?;
                if variable.kind == kind::VAR {
                    all.insert(btf.name(variable.name)?, (name, variable.size_or_type));
                }
            }
        }
        Some(Variables { btf, all })
    }

    pub fn section(&self, name: &str) -> Option<&'a str> {
        self.all.get(name).map(|(section, _)| *section)
    }

    /// The type of a variable. Kernel symbols may be `extern const void`.
    pub fn type_of(&self, name: &str) -> Type {
        let number = self.all.get(name).map(|(_, number)| *number);
        number.and_then(|number| self.btf.resolved(number)).unwrap_or(Type::Other)
    }
}

/// A map of the type `BPF_MAP_TYPE_PROG_ARRAY` that can have values.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ProgArray {
    /// The place of the first value in the map's variable.
    pub values: u32,
    pub entries: u32,
}

/// The kernel's `BPF_MAP_TYPE_PROG_ARRAY`.
const PROG_ARRAY: u32 = 3;

/// Prog arrays with a member `values`, by name. None if the BTF is damaged.
pub fn prog_arrays(btf: &[u8]) -> Option<BTreeMap<String, ProgArray>> {
    let btf = Btf::parse(btf)?;
    let (mut found, mut read) = (BTreeMap::new(), BTreeSet::new());
    for section in btf.types.iter().filter(|of| of.kind == kind::DATASEC) {
        if btf.name(section.name)? != ".maps" {
            continue;
        }
        for variable in 0..section.length {
            let number = section.word(variable * 3)?;
            if !read.insert(number) {
                continue;
            }
            let variable = btf.of(number)?;
            let map = btf.bare(variable.size_or_type)?;
            let (name, number) = (btf.name(variable.name)?, |name| btf.number(map, name));
            if let (Some(PROG_ARRAY), Some(place)) = (number("type"), btf.place(map, "values")) {
                let entries = number("max_entries").unwrap_or(0);
                found.insert(name.to_owned(), ProgArray { values: place / 8, entries });
            }
        }
    }
    Some(found)
}

struct Btf<'a> {
    /// Number 0 is `void`.
    types: Vec<Record<'a>>,
    strings: &'a [u8],
}

/// `struct btf_type`, and the words that follow it.
struct Record<'a> {
    name: u32,
    kind: u32,
    /// Number of members, values or variables.
    length: usize,
    /// The kind's flag: an enum's values are signed.
    flag: bool,
    size_or_type: u32,
    rest: &'a [u8],
}

impl Record<'_> {
    fn word(&self, index: usize) -> Option<u32> {
        word(self.rest, index * 4)
    }
}

fn word(bytes: &[u8], at: usize) -> Option<u32> {
    Some(u32::from_le_bytes(bytes.get(at..at + 4)?.try_into().ok()?))
}

impl<'a> Btf<'a> {
    fn parse(bytes: &'a [u8]) -> Option<Btf<'a>> {
        let magic = u16::from_le_bytes(bytes.get(..2)?.try_into().ok()?);
        if magic != MAGIC || bytes.len() < HEADER {
            return None;
        }
        let field = |index: usize| word(bytes, 4 + 4 * index).map(|word| word as usize);
        let body = bytes.get(field(0)?..)?;
        let part = |offset: usize, length: usize| body.get(offset..offset.checked_add(length)?);
        let (mut rest, strings) = (part(field(1)?, field(2)?)?, part(field(3)?, field(4)?)?);
        let mut types = Vec::new();
        while !rest.is_empty() {
            let (name, info, size_or_type) = (word(rest, 0)?, word(rest, 4)?, word(rest, 8)?);
            let (kind, length) = (info >> 24 & 0x1f, (info & 0xffff) as usize);
            let bytes = match kind {
                kind::INT | kind::VAR | kind::DECL_TAG => 4,
                kind::ARRAY => 12,
                kind::STRUCT | kind::UNION | kind::DATASEC | kind::ENUM64 => 12 * length,
                kind::ENUM | kind::FUNC_PROTO => 8 * length,
                _ => 0,
            };
            let (of, next) = rest.get(12..)?.split_at_checked(bytes)?;
            rest = next;
            types.push(Record {
                name,
                kind,
                length,
                flag: info >> 31 == 1,
                size_or_type,
                rest: of,
            });
        }
        Some(Btf { types, strings })
    }

    fn of(&self, id: u32) -> Option<&Record<'a>> {
        self.types.get((id as usize).checked_sub(1)?)
    }

    fn name(&self, offset: u32) -> Option<&'a str> {
        let bytes = self.strings.get(offset as usize..)?;
        let bytes = &bytes[..bytes.len().min(LONGEST)];
        let end = bytes.iter().position(|byte| *byte == 0)?;
        std::str::from_utf8(&bytes[..end]).ok()
    }

    fn is_named(&self, offset: u32, name: &str) -> bool {
        let bytes = self.strings.get(offset as usize..).unwrap_or_default();
        bytes.strip_prefix(name.as_bytes()).is_some_and(|rest| rest.first() == Some(&0))
    }

    /// The type behind typedefs and qualifiers.
    fn bare(&self, id: u32) -> Option<&Record<'a>> {
        let mut of = self.of(id)?;
        for _ in 0..DEEPEST {
            match of.kind {
                kind::TYPEDEF | kind::VOLATILE | kind::CONST | kind::RESTRICT | kind::TYPE_TAG => {
                    of = self.of(of.size_or_type)?
                }
                _ => return Some(of),
            }
        }
        None
    }

    /// The type and the place, in bits, of a struct's member.
    fn member(&self, of: &Record<'a>, name: &str) -> Option<(u32, u32)> {
        if of.kind != kind::STRUCT || of.length > MOST_MEMBERS {
            return None;
        }
        let word = |index: usize, word: usize| of.word(index * 3 + word);
        let is_it = |&index: &usize| word(index, 0).is_some_and(|at| self.is_named(at, name));
        let index = (0..of.length).find(is_it)?;
        Some((word(index, 1)?, word(index, 2)?))
    }

    fn place(&self, of: &Record<'a>, member: &str) -> Option<u32> {
        self.member(of, member).map(|(_, place)| place)
    }

    /// The number of `__uint(name, number)`: a pointer to an array of so many elements.
    fn number(&self, of: &Record<'a>, name: &str) -> Option<u32> {
        let pointer = self.bare(self.member(of, name)?.0)?;
        let array = self.bare(pointer.size_or_type)?;
        let is_number = (pointer.kind, array.kind) == (kind::PTR, kind::ARRAY);
        is_number.then(|| array.word(2)).flatten()
    }

    fn resolved(&self, id: u32) -> Option<Type> {
        let of = self.bare(id)?;
        let bytes = of.size_or_type;
        Some(match of.kind {
            kind::INT => {
                let encoding = of.word(0)? >> 24;
                match encoding & 4 != 0 {
                    true => Type::Bool,
                    false => Type::Integer { bytes, signed: encoding & 1 != 0 },
                }
            }
            kind::ENUM | kind::ENUM64 => {
                let values = (0..of.length).map(|index| self.value(of, index));
                Type::Enum { bytes, signed: of.flag, values: values.collect::<Option<_>>()? }
            }
            kind::ARRAY => match self.bare(of.word(0)?).map(|one| (one.kind, one.size_or_type)) {
                Some((kind::INT, 1)) => Type::Text { bytes: of.word(2)? },
                _ => Type::Other,
            },
            _ => Type::Other,
        })
    }

    fn value(&self, of: &Record<'a>, index: usize) -> Option<(String, i128)> {
        let (at, wide) = match of.kind {
            kind::ENUM64 => (index * 3, u64::from(of.word(index * 3 + 2)?) << 32),
            _ => (index * 2, 0),
        };
        let low = of.word(at + 1)?;
        let value = match (of.kind, of.flag) {
            (kind::ENUM64, true) => i128::from((wide | u64::from(low)) as i64),
            (kind::ENUM64, false) => i128::from(wide | u64::from(low)),
            (_, true) => i128::from(low as i32),
            (_, false) => i128::from(low),
        };
        Some((self.name(of.word(at)?)?.to_owned(), value))
    }
}
