// SPDX-License-Identifier: MIT OR Apache-2.0
//! The instructions of a function, by objdump.
//!
//! objdump gets only the function's bytes: a patch series may have made the file.

mod aarch64;

use super::{Function, Vmlinux, VmlinuxError, functions, io_error, names::Names, without_numbers};
use object::{Object, ObjectSection};
use std::{
    collections::{BTreeMap, btree_map::Entry},
    fs,
    process::Command,
    time::Duration,
};
use tramplab_host::{child, program};
use tramplab_model::{arch::Platform, code::Instruction, run::Arch};

const LIMIT: Duration = Duration::from_secs(60);

/// No function of a kernel is as long. A symbol of a hostile file may be.
const LONGEST: u64 = 1 << 20;

/// Functions have a few parts. A hostile file may have more.
const MOST: usize = 64;

/// The function's parts by name: itself, and what the compiler split from it (`f.cold`, `f.part`).
pub type Parts = BTreeMap<String, Vec<Instruction>>;

impl Vmlinux {
    /// Disassembles a function and its parts. Empty if it is not in the kernel, or only inlined.
    pub fn disassemble(&self, function: &str, arch: Arch) -> Result<Parts, VmlinuxError> {
        let elf = self.elf()?;
        let names = Names::of(&elf, self.bytes.len());
        let mut parts = Parts::new();
        let is_part = |name: &str| {
            name.strip_prefix(function).is_some_and(|rest| rest.is_empty() || rest.starts_with('.'))
        };
        let found = functions(&elf, self.bytes.len());
        let found = found.filter(|found| found.size > 0 && is_part(found.name)).take(MOST);
        let mut found: Vec<Function> = found.collect();
        found.sort_unstable_by_key(|found| found.address);
        for Function { name, address, size, .. } in found {
            let size = size.min(LONGEST);
            let code =
                elf.sections().find_map(|section| section.data_range(address, size).ok().flatten());
            // Several static functions may have the name: the first.
            if let (Some(code), Entry::Vacant(entry)) = (code, parts.entry(without_numbers(name))) {
                let text = objdump(code, address, arch)?;
                entry.insert(instructions(&text, address, size, arch, &names));
            }
        }
        Ok(parts)
    }
}

fn objdump(code: &[u8], start: u64, arch: Arch) -> Result<String, VmlinuxError> {
    let &Platform { triplet, bfd: machine, .. } = arch.platform();
    let own = (Arch::host() == Some(arch)).then_some("objdump".to_owned());
    let all = own.into_iter().chain([format!("{triplet}-objdump")]);
    let found = all.into_iter().find_map(|name| program::in_path(&name));
    let found = found.ok_or(VmlinuxError::NoObjdump { triplet })?;
    let file = tempfile::NamedTempFile::new().map_err(io_error("make", &std::env::temp_dir()))?;
    fs::write(file.path(), code).map_err(io_error("write", file.path()))?;
    let mut command = Command::new(found);
    command
        .env("LC_ALL", "C")
        .args(["--disassemble-all", "--target=binary", "--wide", "--no-show-raw-insn"])
        .args([format!("--architecture={machine}"), format!("--adjust-vma={start:#x}")])
        .arg(file.path());
    Ok(child::run(&mut command, LIMIT)?.stdout)
}

/// Reads lines like `ffffffff81000000: call   0xffffffff81000010`, with a tab after the colon.
fn instructions(text: &str, start: u64, size: u64, arch: Arch, names: &Names) -> Vec<Instruction> {
    let within = |address: u64| address.checked_sub(start).filter(|offset| *offset < size);
    let line = |line: &'_ str| -> Option<(u64, String)> {
        let (address, text) = line.split_once(":\t")?;
        let offset = within(u64::from_str_radix(address.trim(), 16).ok()?)?;
        let text = text.trim();
        let (mnemonic, operands) = text.split_once([' ', '\t']).unwrap_or((text, ""));
        Some((offset, format!("{mnemonic:<6} {}", operands.trim_start()).trim_end().to_owned()))
    };
    let lines: Vec<(u64, String)> = text.lines().filter_map(line).collect();
    match arch {
        Arch::X86_64 => lines
            .into_iter()
            .map(|(offset, text)| {
                let (text, target) = x86_64(&text, names, &within);
                Instruction { offset, text, target }
            })
            .collect(),
        Arch::Arm64 => aarch64::instructions(&lines, names, &within),
    }
}

type Within<'a> = dyn Fn(u64) -> Option<u64> + 'a;

/// The number at the start of the text, and its length: `0x10,%rax` gives 16.
fn number(text: &str) -> Option<(u64, usize)> {
    let digits = text.strip_prefix("0x")?;
    let end = digits.find(|c: char| !c.is_ascii_hexdigit()).unwrap_or(digits.len());
    Some((u64::from_str_radix(&digits[..end], 16).ok()?, end + 2))
}

/// Splits the last operand off if it is an address.
fn last_address(text: &str) -> Option<(&str, u64)> {
    let at = text.rfind([' ', ','])? + 1;
    let (address, length) = number(&text[at..])?;
    (at + length == text.len()).then_some((&text[..at], address))
}

fn x86_64(text: &str, names: &Names, within: &Within) -> (String, Option<u64>) {
    // `mov 0x10(%rip),%rax        # 0xffffffff82000000`
    if let Some((instruction, comment)) = text.split_once('#') {
        let instruction = instruction.trim_end();
        let relative = instruction.find("(%rip)").zip(number(comment.trim()));
        let Some((end, (address, _))) = relative else { return (instruction.to_owned(), None) };
        let begin = instruction[..end].rfind([' ', ',', ':', '*']).map_or(0, |at| at + 1);
        let name = names.of_address(address);
        let text = format!("{}{name}{}", &instruction[..begin], &instruction[end..]);
        return (named_numbers(&text, names), None);
    }
    match last_address(text).filter(|(rest, _)| !rest.ends_with(',')) {
        Some((rest, address)) => match within(address) {
            Some(offset) => (rest.trim_end().to_owned(), Some(offset)),
            None => (format!("{rest}{}", names.of_address(address)), None),
        },
        None => (named_numbers(text, names), None),
    }
}

/// Names the addresses among the numbers: `mov $0xffffffff82000000,%rdi`, or
/// `-0x7e000000(,%rax,8)`, which is the same address.
fn named_numbers(text: &str, names: &Names) -> String {
    let mut out = String::new();
    let mut rest = text;
    while let Some(at) = rest.find("0x") {
        let (before, from) = rest.split_at(at);
        let Some((value, length)) = number(from) else {
            out += &rest[..at + 2];
            rest = &rest[at + 2..];
            continue;
        };
        let sign = before.strip_suffix('-');
        let address = if sign.is_some() { value.wrapping_neg() } else { value };
        let of_cpu = before.ends_with("%gs:");
        match names.of_number(address, of_cpu) {
            Some(name) => {
                out += sign.unwrap_or(before);
                out += &name;
            }
            None => out += &rest[..at + length],
        }
        rest = &from[length..];
    }
    out + rest
}

#[cfg(test)]
mod tests;
