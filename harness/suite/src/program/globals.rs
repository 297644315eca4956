// SPDX-License-Identifier: MIT OR Apache-2.0
//! Values for global variables of the user's program, and programs for its global functions, in
//! place of those in the object.

use super::{
    btf::{self, Type},
    extensions::Extensions,
    listed,
    object::File,
};
use crate::symbols::named;
use object::{Object as _, ObjectSection as _, ObjectSymbol as _};
use std::collections::BTreeMap;
use tramplab_protocol::program::{Extension, Global};

/// Sections whose variables libbpf puts into maps.
const SECTIONS: [&str; 3] = [".rodata", ".data", ".bss"];

#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum GlobalError {
    #[error("`{0}` is no value of a variable: expected NAME=VALUE, as in targ_ms=5")]
    Syntax(String),
    #[error("it has no global variable or replaceable function `{name}`; there are: {known}")]
    Unknown { name: String, known: String },
    #[error(
        "`{program}` cannot replace the function {function}: expected a program of \
         SEC(\"freplace/{function}\"); there are: {known}"
    )]
    Extension { function: String, program: String, known: String },
    #[error("{0} has two values")]
    Twice(String),
    #[error("the variable {0} is neither a number, a bool, an enum nor a text")]
    Type(String),
    #[error("`{value}` is no value of the variable {name}: expected {expected}")]
    Value { name: String, value: String, expected: String },
}

/// Bytes of a text.
const LONGEST_TEXT: u32 = 4096;

#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Given {
    /// All of it as text, each value in one form.
    pub text: BTreeMap<String, String>,
    pub globals: Vec<Global>,
    pub extensions: Vec<Extension>,
}

/// Reads `NAME=VALUE` words by the types of the object's variables.
pub fn read(words: &[&str], object: &[u8]) -> Result<Given, GlobalError> {
    let mut given = Given::default();
    if words.is_empty() {
        return Ok(given);
    }
    let variables = Variables::of(object);
    let extensions = Extensions::of(object);
    for word in words {
        let (name, value) =
            word.split_once('=').ok_or_else(|| GlobalError::Syntax((*word).to_owned()))?;
        if extensions.is_function(name) {
            let (function, program) = (name.to_owned(), value.to_owned());
            if !extensions.can(value, name) {
                let known = listed(extensions.of_function(name).into_iter());
                return Err(GlobalError::Extension { function, program, known });
            }
            if given.text.insert(function.clone(), program.clone()).is_some() {
                return Err(GlobalError::Twice(function));
            }
            given.extensions.push(Extension { function, program });
            continue;
        }
        let Some((section, offset, of)) = variables.as_ref().and_then(|all| all.get(name)) else {
            let variables = variables.iter().flat_map(Variables::names);
            let known = listed(variables.chain(extensions.replaceable()));
            return Err(GlobalError::Unknown { name: name.to_owned(), known });
        };
        let (text, bytes) = encoded(&of, value).map_err(|expected| match expected {
            None => GlobalError::Type(name.to_owned()),
            Some(expected) => {
                GlobalError::Value { name: name.to_owned(), value: value.to_owned(), expected }
            }
        })?;
        if given.text.insert(name.to_owned(), text).is_some() {
            return Err(GlobalError::Twice(name.to_owned()));
        }
        given.globals.push(Global { section: section.to_owned(), offset, bytes });
    }
    Ok(given)
}

/// The object's global variables. BTF knows their types, symbols their places.
struct Variables<'a> {
    types: btf::Variables<'a>,
    offsets: BTreeMap<&'a str, u64>,
}

impl<'a> Variables<'a> {
    fn of(object: &'a [u8]) -> Option<Variables<'a>> {
        let file = File::parse(object).ok()?;
        let types = btf::Variables::of(file.section_by_name(".BTF")?.data().ok()?)?;
        let offsets = offsets(&file, &types)?;
        Some(Variables { types, offsets })
    }

    fn names(&self) -> impl Iterator<Item = &'a str> {
        self.offsets.keys().copied()
    }

    /// Section, offset and type.
    fn get(&self, name: &str) -> Option<(&'a str, u64, Type)> {
        let offset = *self.offsets.get(name)?;
        Some((self.types.section(name)?, offset, self.types.type_of(name)))
    }
}

fn offsets<'a>(file: &File<'a>, types: &btf::Variables<'a>) -> Option<BTreeMap<&'a str, u64>> {
    let is_map = |section: &str| {
        SECTIONS.iter().any(|known| {
            section.strip_prefix(known).is_some_and(|rest| rest.is_empty() || rest.starts_with('.'))
        })
    };
    let mut found = BTreeMap::new();
    for (symbol, name) in named(file.symbols(), file.data().len()) {
        let Some(index) = symbol.section_index() else { continue };
        let Some(of) = types.section(name).filter(|of| is_map(of)) else { continue };
        if file.section_by_index(index).ok()?.name().ok()? == of {
            found.insert(name, symbol.address());
        }
    }
    Some(found)
}

/// The value in one form, and its bytes. `Err`: the expected values, none if the type takes none.
fn encoded(of: &Type, value: &str) -> Result<(String, Vec<u8>), Option<String>> {
    match of {
        Type::Bool => match value {
            "true" | "1" => Ok(("true".to_owned(), vec![1])),
            "false" | "0" => Ok(("false".to_owned(), vec![0])),
            _ => Err(Some("true or false".to_owned())),
        },
        Type::Integer { bytes, signed } => {
            let (least, most) = range(*bytes, *signed).ok_or(None)?;
            let number = number(value).filter(|number| (least..=most).contains(number));
            let number = number.ok_or_else(|| Some(format!("a number from {least} to {most}")))?;
            Ok((number.to_string(), of_bytes(number, *bytes)))
        }
        Type::Enum { bytes, signed, values } => {
            range(*bytes, *signed).ok_or(None)?;
            let fits = |(name, number): &&(String, i128)| {
                name == value || self::number(value) == Some(*number)
            };
            let (name, number) = values.iter().find(fits).ok_or_else(|| {
                let names = values.iter().map(|(name, _)| name.as_str());
                Some(format!("one of: {}", listed(names)))
            })?;
            Ok((name.clone(), of_bytes(*number, *bytes)))
        }
        // A stranger's object may say any size.
        Type::Text { bytes } if *bytes > LONGEST_TEXT => Err(None),
        Type::Text { bytes } => {
            let size = *bytes as usize;
            if value.len() >= size {
                return Err(Some(format!("at most {} bytes", size.saturating_sub(1))));
            }
            let mut text = value.as_bytes().to_vec();
            text.resize(size, 0);
            Ok((value.to_owned(), text))
        }
        Type::Other => Err(None),
    }
}

/// The least and the largest number. None for sizes that no processor has.
fn range(bytes: u32, signed: bool) -> Option<(i128, i128)> {
    let bits = match bytes {
        1 | 2 | 4 | 8 => bytes * 8,
        _ => return None,
    };
    Some(match signed {
        true => (-(1 << (bits - 1)), (1 << (bits - 1)) - 1),
        false => (0, (1 << bits) - 1),
    })
}

fn number(text: &str) -> Option<i128> {
    let (sign, digits) = text.strip_prefix('-').map_or((1, text), |digits| (-1, digits));
    let number = match digits.strip_prefix("0x") {
        Some(digits) => u64::from_str_radix(digits, 16),
        None => digits.parse(),
    };
    Some(sign * i128::from(number.ok()?))
}

fn of_bytes(number: i128, bytes: u32) -> Vec<u8> {
    number.to_le_bytes()[..bytes as usize].to_vec()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn encodes_values_by_their_types() {
        let int = |bytes, signed| Type::Integer { bytes, signed };
        let values = vec![("OFF".to_owned(), 0), ("ON".to_owned(), 0x1_0000_0001)];
        let of = Type::Enum { bytes: 8, signed: false, values };
        let text = Type::Text { bytes: 4 };
        for (of, value, expected) in [
            (&int(4, false), "5", Some(("5", vec![5, 0, 0, 0]))),
            (&int(4, false), "0xffffffff", Some(("4294967295", vec![0xff; 4]))),
            (&int(4, false), "4294967296", None),
            (&int(4, false), "-1", None),
            (&int(1, true), "-128", Some(("-128", vec![0x80]))),
            (&int(1, true), "128", None),
            (&int(8, false), "18446744073709551615", Some(("18446744073709551615", vec![0xff; 8]))),
            (&int(2, false), "five", None),
            (&int(2, false), "", None),
            (&Type::Bool, "true", Some(("true", vec![1]))),
            (&Type::Bool, "0", Some(("false", vec![0]))),
            (&Type::Bool, "2", None),
            (&of, "ON", Some(("ON", vec![1, 0, 0, 0, 1, 0, 0, 0]))),
            (&of, "0", Some(("OFF", vec![0; 8]))),
            (&of, "MAYBE", None),
            (&text, "abc", Some(("abc", b"abc\0".to_vec()))),
            (&text, "", Some(("", vec![0; 4]))),
            (&text, "abcd", None),
        ] {
            let encoded = encoded(of, value);
            let expected = expected.map(|(text, bytes)| (text.to_owned(), bytes));
            assert_eq!(encoded.clone().ok(), expected, "{of:?} {value}");
            assert!(!matches!(encoded, Err(None)), "{of:?} {value}");
        }
        for of in [Type::Other, int(16, false), Type::Text { bytes: u32::MAX }] {
            assert_eq!(encoded(&of, "1"), Err(None));
        }
    }

    #[test]
    fn damaged_objects_have_no_variables() {
        let unknown = |object: &[u8]| match read(&["a=1"], object) {
            Err(GlobalError::Unknown { known, .. }) => known,
            other => panic!("{other:?}"),
        };
        assert_eq!(unknown(b"text"), "none");
        assert_eq!(read(&[], b"text"), Ok(Given::default()));
        assert_eq!(read(&["a"], b"text"), Err(GlobalError::Syntax("a".to_owned())));
    }
}
