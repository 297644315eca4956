// SPDX-License-Identifier: MIT OR Apache-2.0
//! A form of records that is the same at every boot.

use super::symbols::is_kernel;
use sha2::{Digest, Sha256};
use std::{borrow::Cow, fmt};
use tramplab_model::run::{NamedRecord, Place};
use tramplab_protocol::{message::Symbol, trace::Kind};

/// Hashes records with SHA-256 in a form that is the same at every boot: symbols and offsets
/// instead of addresses, BPF names without their ids, user space without its address.
pub fn digest(records: &[NamedRecord]) -> String {
    digest_lines(records.iter().map(|record| line(record.kind, &record.from, &record.to)))
}

/// The [`digest`] by which hits of `function` are compared. It begins where the function is
/// entered: the way there may branch on addresses, as `__check_object_size` does
/// (K `mm/usercopy.c`), and the scheduler is entered in many ways. Without a record that enters the
/// function, all records count.
pub(super) fn form(records: &[NamedRecord], function: &Symbol) -> String {
    let entry = records.iter().position(|record| record.to.address == function.start);
    digest(&records[..entry.map_or(records.len(), |entry| entry + 1)])
}

/// `call traced+0x4 bpf_trampoline_*+0x0`.
pub(super) fn line(kind: Kind, from: &Place, to: &Place) -> String {
    format!("{kind} {} {}", Symbolic(from), Symbolic(to))
}

/// Hashes lines with SHA-256; returns it in hexadecimal.
pub(super) fn digest_lines(lines: impl Iterator<Item = String>) -> String {
    let mut hash = Sha256::new();
    for line in lines {
        hash.update(line);
        hash.update("\n");
    }
    hash.finalize().iter().map(|byte| format!("{byte:02x}")).collect()
}

pub(super) struct Symbolic<'a>(pub &'a Place);

impl fmt::Display for Symbolic<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Symbolic(place) = self;
        match &place.symbol {
            Some(symbol) => write!(f, "{}+{:#x}", stable_name(symbol), place.offset),
            None if is_kernel(place.address) => f.write_str("?"),
            None => f.write_str("user"),
        }
    }
}

/// Removes the parts of a BPF name that change with every build.
///
/// `bpf_trampoline_6442508829` holds BTF ids. `bpf_prog_6deef7357e7b4530_name` holds the program's
/// tag, a hash of instructions that may hold such ids.
pub fn stable_name(symbol: &str) -> Cow<'_, str> {
    if let Some(id) = symbol.strip_prefix("bpf_trampoline_")
        && id.bytes().all(|b| b.is_ascii_digit() || b == b'_')
    {
        return "bpf_trampoline_*".into();
    }
    if let Some((tag, name)) =
        symbol.strip_prefix("bpf_prog_").and_then(|rest| rest.split_once('_'))
        && tag.len() == 16
        && tag.bytes().all(|b| b.is_ascii_hexdigit())
    {
        return format!("bpf_prog_*_{name}").into();
    }
    symbol.into()
}
