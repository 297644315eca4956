// SPDX-License-Identifier: MIT OR Apache-2.0
//! Other programs that a user's program needs: those in prog arrays, and those in place of its
//! functions. libbpf fills the arrays only if it loads the programs as well.
//!
//! The kernel binds an array to the first program that uses it: to its type, and for tracing to the
//! prototype of its function. So each load makes arrays of its own.

use crate::bpf::{self, BpfError, Instruction, Kind, Link, Program};
use crate::object::{Object, ProgArray};
use std::ffi::CStr;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd, RawFd};
use tramplab_protocol::message::GuestError;
use tramplab_protocol::program::{Extension, Slot};

/// The operation of an instruction that loads a map's address, with a descriptor of the map.
const LOAD: u8 = (libbpf_sys::BPF_LD | libbpf_sys::BPF_IMM | libbpf_sys::BPF_DW) as u8;

/// A loaded program. The kernel empties arrays that no descriptor holds.
#[derive(Debug)]
pub struct Loaded {
    program: OwnedFd,
    _extensions: Vec<Link>,
    _arrays: Vec<OwnedFd>,
}

impl From<OwnedFd> for Loaded {
    fn from(program: OwnedFd) -> Loaded {
        Loaded { program, _extensions: Vec::new(), _arrays: Vec::new() }
    }
}

impl AsFd for Loaded {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.program.as_fd()
    }
}

/// The programs that a program reaches, and the arrays on the way.
#[derive(Debug)]
pub struct TailCalls {
    /// The program itself is the first.
    programs: Vec<String>,
    arrays: Vec<Filled>,
    extensions: Vec<Extending>,
}

/// A program of [`TailCalls::programs`] that replaces a function.
#[derive(Debug)]
struct Extending {
    program: usize,
    function: String,
    /// The function in the BTF of the object.
    id: u32,
}

/// An array of the object. The slots have indexes of [`TailCalls::programs`].
#[derive(Debug)]
struct Filled {
    array: ProgArray,
    slots: Vec<(u32, usize)>,
}

impl TailCalls {
    /// Follows the arrays that a prepared program uses. Rejects a program of another type in them.
    pub fn of(
        object: &Object,
        name: &str,
        slots: &[Slot],
        extensions: &[Extension],
    ) -> Result<TailCalls, GuestError> {
        let all = object.prog_arrays();
        let (programs, arrays) = (vec![name.to_owned()], Vec::new());
        let mut found = TailCalls { programs, arrays, extensions: Vec::new() };
        for Extension { function, program } in extensions {
            let missing = || GuestError::Failed(format!("the object has no function {function}"));
            found.extensions.push(Extending {
                program: found.programs.len(),
                function: function.clone(),
                id: object.function(function).ok_or_else(missing)?,
            });
            found.programs.push(program.clone());
        }
        let mut next = 0;
        while let Some(caller) = found.programs.get(next).cloned() {
            next += 1;
            let missing = || GuestError::Failed(format!("the object has no program {caller}"));
            let program = object.program(&caller).ok_or_else(missing)?;
            let used: Vec<RawFd> = program.instructions.iter().filter_map(map).collect();
            for array in all.iter().filter(|array| used.contains(&array.fd)) {
                if found.arrays.iter().all(|known| known.array.fd != array.fd) {
                    found.add(object, array, slots)?;
                }
            }
        }
        Ok(found)
    }

    fn add(&mut self, object: &Object, array: &ProgArray, all: &[Slot]) -> Result<(), GuestError> {
        let mut slots = Vec::new();
        for slot in all.iter().filter(|slot| slot.array == array.name) {
            check(object, &self.programs[0], slot)?;
            let known = self.programs.iter().position(|name| *name == slot.program);
            let program = known.unwrap_or_else(|| {
                self.programs.push(slot.program.clone());
                self.programs.len() - 1
            });
            slots.push((slot.index, program));
        }
        self.arrays.push(Filled { array: array.clone(), slots });
        Ok(())
    }

    /// The maps of the object that its programs use, by their descriptors.
    pub fn maps(&self, object: &Object) -> Vec<RawFd> {
        let programs = self.programs.iter().filter_map(|name| object.program(name));
        programs.flat_map(|program| program.instructions.iter().filter_map(map)).collect()
    }

    /// Loads all programs and fills the arrays. `load` loads one.
    pub fn load(
        &self,
        object: &Object,
        license: &CStr,
        load: impl Fn(Program<'_>) -> Result<OwnedFd, BpfError>,
    ) -> Result<Loaded, BpfError> {
        let make = |filled: &Filled| prog_array(filled.array.entries);
        let arrays: Vec<OwnedFd> = self.arrays.iter().map(make).collect::<Result<_, _>>()?;
        let mut programs: Vec<OwnedFd> = Vec::with_capacity(self.programs.len());
        let mut links = Vec::new();
        for (index, name) in self.programs.iter().enumerate() {
            let program = object.program(name).expect("found by `of`");
            let instructions = self.with(&arrays, program.instructions);
            let program = Program { instructions: &instructions, license, ..program };
            let extending = self.extensions.iter().find(|extending| extending.program == index);
            let loaded = match (programs.first(), extending) {
                (None, _) => load(program)?,
                (Some(main), Some(Extending { function, id, .. })) => {
                    let during = |error: BpfError| {
                        error.during(format!("replace the function {function} by {name}"))
                    };
                    let kind = Kind { program: libbpf_sys::BPF_PROG_TYPE_EXT, attach: 0 };
                    let loaded = bpf::load_for(kind, main.as_raw_fd(), *id, program);
                    let loaded = loaded.map_err(during)?;
                    let link = bpf::link_extension(loaded.as_fd(), main.as_fd(), *id);
                    links.push(link.map_err(during)?);
                    loaded
                }
                (Some(_), None) => load(program)
                    .map_err(|error| error.during(format!("load {name}, which it tail-calls")))?,
            };
            programs.push(loaded);
        }
        for (Filled { array, slots }, made) in self.arrays.iter().zip(&arrays) {
            for &(index, program) in slots {
                let put = bpf::set_element(made.as_fd(), index, programs[program].as_raw_fd());
                put.map_err(|error| {
                    let name = &self.programs[program];
                    error.during(format!("put {name} into slot {index} of {}", array.name))
                })?;
            }
        }
        Ok(Loaded { program: programs.swap_remove(0), _extensions: links, _arrays: arrays })
    }

    /// The instructions with these arrays instead of the object's.
    fn with(&self, arrays: &[OwnedFd], instructions: &[Instruction]) -> Vec<Instruction> {
        let mut instructions = instructions.to_vec();
        for instruction in &mut instructions {
            let used = map(instruction);
            let used = self.arrays.iter().position(|filled| Some(filled.array.fd) == used);
            if let Some(used) = used {
                instruction[4..].copy_from_slice(&arrays[used].as_raw_fd().to_le_bytes());
            }
        }
        instructions
    }
}

/// The descriptor of the map whose address an instruction loads.
pub fn map(instruction: &Instruction) -> Option<RawFd> {
    let [operation, registers, _, _, value @ ..] = *instruction;
    let is_map = u32::from(registers >> 4) == libbpf_sys::BPF_PSEUDO_MAP_FD;
    (operation == LOAD && is_map).then(|| RawFd::from_le_bytes(value))
}

fn check(object: &Object, caller: &str, slot: &Slot) -> Result<(), GuestError> {
    let Slot { array, index, program } = slot;
    let section = |name: &str| {
        let missing = || GuestError::Failed(format!("the object has no program {name}"));
        object.section(name).ok_or_else(missing)
    };
    let (of, other) = (section(caller)?, section(program)?);
    if of.is_like(&other) {
        return Ok(());
    }
    Err(GuestError::Failed(format!(
        "{caller} of SEC(\"{}\") cannot tail-call {program} of SEC(\"{}\"), which is in slot \
         {index} of {array}: expected a program of the same type",
        of.name, other.name
    )))
}

/// Makes a prog array.
fn prog_array(entries: u32) -> Result<OwnedFd, BpfError> {
    let four = size_of::<u32>() as u32;
    // SAFETY: the name outlives the call. No options are the defaults.
    let fd = unsafe {
        libbpf_sys::bpf_map_create(
            libbpf_sys::BPF_MAP_TYPE_PROG_ARRAY,
            c"tramplab_calls".as_ptr(),
            four,
            four,
            entries,
            std::ptr::null(),
        )
    };
    bpf::owned(fd.into(), "make a prog array")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn finds_the_maps_of_instructions() {
        for (instruction, expected) in [
            ([0x18, 0x12, 0, 0, 7, 0, 0, 0], Some(7)),
            ([0x18, 0x1f, 0, 0, 0, 1, 0, 0], Some(256)),
            // The value of a map, a number, the second half, another operation.
            ([0x18, 0x22, 0, 0, 7, 0, 0, 0], None),
            ([0x18, 0x02, 0, 0, 7, 0, 0, 0], None),
            ([0, 0, 0, 0, 7, 0, 0, 0], None),
            ([0x85, 0x10, 0, 0, 7, 0, 0, 0], None),
        ] {
            assert_eq!(map(&instruction), expected, "{instruction:?}");
        }
    }
}
