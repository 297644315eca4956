// SPDX-License-Identifier: MIT OR Apache-2.0
//! Checks an object's ELF header: libbpf in the guest would swap the bytes of another machine's
//! object, and measure something else than the file's author meant.

use object::{Endianness, elf, read::elf::FileHeader as _};
use std::fmt;

/// Bytes of `struct Elf64_Ehdr`.
const HEADER: u16 = 64;

/// The first field of the ELF header that no BPF object of the guest has.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{}; expected {}", Found(*self), self.expected())]
pub enum HeaderError {
    /// Not even a header's worth of bytes, or other bytes.
    NotElf,
    /// `EI_CLASS`.
    Class(u8),
    /// `EI_DATA`.
    Endian(u8),
    /// `EI_VERSION` or `e_version`.
    Version(u32),
    /// `e_type`.
    Kind(u16),
    /// `e_machine`.
    Machine(u16),
    /// `e_ehsize`.
    Size(u16),
}

impl HeaderError {
    fn expected(self) -> &'static str {
        match self {
            HeaderError::NotElf => "the output of `clang -target bpf -c`",
            HeaderError::Class(_) => "a 64-bit object, as `clang -target bpf -c` writes it",
            HeaderError::Endian(_) => {
                "a little-endian object, as guests are little-endian: compile with `clang -target \
                 bpfel`"
            }
            HeaderError::Version(_) => "version 1",
            HeaderError::Kind(elf::ET_EXEC | elf::ET_DYN) => {
                "an object that is not linked, the output of `clang -target bpf -c`"
            }
            HeaderError::Kind(_) => "a relocatable object, the output of `clang -target bpf -c`",
            HeaderError::Machine(_) => "machine 247 (BPF): compile with `clang -target bpf`",
            HeaderError::Size(_) => "64 bytes: the file is damaged",
        }
    }
}

/// The field and its value, in words.
struct Found(HeaderError);

impl fmt::Display for Found {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.0 {
            HeaderError::NotElf => f.write_str("it is no ELF file"),
            HeaderError::Class(elf::ELFCLASS32) => f.write_str("it is 32-bit ELF (EI_CLASS)"),
            HeaderError::Class(class) => write!(f, "its ELF header has EI_CLASS {class}"),
            HeaderError::Endian(elf::ELFDATA2MSB) => {
                f.write_str("it is for big-endian machines (ELF header, EI_DATA)")
            }
            HeaderError::Endian(data) => write!(f, "its ELF header has EI_DATA {data}"),
            HeaderError::Version(version) => write!(f, "its ELF header has version {version}"),
            HeaderError::Kind(kind @ (elf::ET_EXEC | elf::ET_DYN)) => {
                write!(f, "it is linked (ELF header, e_type {kind})")
            }
            HeaderError::Kind(kind) => write!(f, "its ELF header has e_type {kind}"),
            HeaderError::Machine(machine) => {
                let name = match machine {
                    elf::EM_X86_64 => " (x86-64)",
                    elf::EM_AARCH64 => " (arm64)",
                    elf::EM_RISCV => " (RISC-V)",
                    elf::EM_S390 => " (s390)",
                    elf::EM_PPC64 => " (PowerPC)",
                    elf::EM_NONE => " (none)",
                    _ => "",
                };
                write!(f, "its code is for machine {machine}{name} (ELF header, e_machine)")
            }
            HeaderError::Size(bytes) => write!(f, "its ELF header says that it has {bytes} bytes"),
        }
    }
}

/// Checks all fields that tell the machine. Others say where the file's parts are.
pub fn check(bytes: &[u8]) -> Result<(), HeaderError> {
    let (header, _) = object::from_bytes::<elf::FileHeader64<Endianness>>(bytes)
        .map_err(|()| HeaderError::NotElf)?;
    let ident = header.e_ident();
    if ident.magic != elf::ELFMAG {
        return Err(HeaderError::NotElf);
    }
    let field = |is_right, error| if is_right { Ok(()) } else { Err(error) };
    field(ident.class == elf::ELFCLASS64, HeaderError::Class(ident.class))?;
    field(ident.data == elf::ELFDATA2LSB, HeaderError::Endian(ident.data))?;
    let (endian, current) = (Endianness::Little, elf::EV_CURRENT);
    field(ident.version == current, HeaderError::Version(ident.version.into()))?;
    let (version, kind) = (header.e_version(endian), header.e_type(endian));
    field(version == u32::from(current), HeaderError::Version(version))?;
    field(kind == elf::ET_REL, HeaderError::Kind(kind))?;
    let (machine, size) = (header.e_machine(endian), header.e_ehsize(endian));
    field(machine == elf::EM_BPF, HeaderError::Machine(machine))?;
    field(size == HEADER, HeaderError::Size(size))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::program::object::{ObjectError, find, tests::elf};

    #[test]
    fn rejects_objects_of_other_machines() {
        let whole = elf(&[("fentry/f", "a", 2)]).bytes();
        assert_eq!(check(&whole), Ok(()));
        for (at, bytes, expected) in [
            (0, &b"\x7fElf"[..], HeaderError::NotElf),
            (4, &[1], HeaderError::Class(1)),
            (5, &[2], HeaderError::Endian(2)),
            (5, &[0], HeaderError::Endian(0)),
            (6, &[2], HeaderError::Version(2)),
            (16, &[3, 0], HeaderError::Kind(3)),
            // Fields are read in the header's own order: 0x100 is a relocatable of big-endian.
            (16, &[0, 1], HeaderError::Kind(0x100)),
            (18, &[62, 0], HeaderError::Machine(62)),
            (18, &[0, 0], HeaderError::Machine(0)),
            (20, &[0], HeaderError::Version(0)),
            (52, &[52], HeaderError::Size(52)),
        ] {
            let mut damaged = whole.clone();
            damaged[at..at + bytes.len()].copy_from_slice(bytes);
            let found = find(&damaged, None);
            assert_eq!(found, Err(ObjectError::Header(expected)), "{at} {bytes:?}");
        }
        for short in [&whole[..63], b"text", b""] {
            assert_eq!(check(short), Err(HeaderError::NotElf));
        }
    }
}
