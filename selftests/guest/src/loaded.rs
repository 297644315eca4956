// SPDX-License-Identifier: MIT OR Apache-2.0
//! The functions of loaded programs, as kallsyms would list them. With `bpf_jit_harden` it hides
//! them (K `bpf_jit_kallsyms_enabled`, include/linux/filter.h). Nothing describes trampolines.

use crate::bpf::{self, BpfError};
use libbpf_rs::btf::{Btf, BtfType};
use std::collections::HashMap;
use std::ffi::CStr;
use std::fs;
use std::os::fd::{AsFd, BorrowedFd};
use tramplab_protocol::message::Symbol;

/// The module of programs in kallsyms.
const MODULE: &str = "bpf";
/// A program's functions, at most (K `BPF_MAX_SUBPROGS`, and one for exceptions).
const MOST: usize = 257;

/// BTF objects by their ids. Programs share them.
type Objects = HashMap<u32, Option<Btf<'static>>>;

/// Returns true if kallsyms lists no programs.
pub fn are_hidden() -> bool {
    let is = |name: &str, value: &str| {
        fs::read_to_string(format!("/proc/sys/net/core/{name}"))
            .is_ok_and(|text| text.trim() == value)
    };
    let is_hardened = !is("bpf_jit_harden", "0");
    is_hardened || !is("bpf_jit_kallsyms", "1")
}

/// The functions of all programs of this moment.
pub fn functions() -> Result<Vec<Symbol>, BpfError> {
    let mut all = Vec::new();
    let mut objects = Objects::new();
    for id in bpf::ids(libbpf_sys::bpf_prog_get_next_id).map_while(Result::ok) {
        // SAFETY: takes no pointer.
        let fd = unsafe { libbpf_sys::bpf_prog_get_fd_by_id(id) };
        // A program may be gone meanwhile.
        let Ok(program) = bpf::owned(fd.into(), "open a program") else { continue };
        all.extend(functions_of(program.as_fd(), &mut objects)?);
    }
    Ok(all)
}

fn functions_of(program: BorrowedFd<'_>, objects: &mut Objects) -> Result<Vec<Symbol>, BpfError> {
    let (mut starts, mut lengths, mut tags) = ([0u64; MOST], [0u32; MOST], [[0u8; 8]; MOST]);
    let mut described = [libbpf_sys::bpf_func_info::default(); MOST];
    let info = libbpf_sys::bpf_prog_info {
        nr_jited_ksyms: MOST as u32,
        jited_ksyms: starts.as_mut_ptr() as u64,
        nr_jited_func_lens: MOST as u32,
        jited_func_lens: lengths.as_mut_ptr() as u64,
        nr_prog_tags: MOST as u32,
        prog_tags: tags.as_mut_ptr() as u64,
        nr_func_info: MOST as u32,
        func_info: described.as_mut_ptr() as u64,
        func_info_rec_size: size_of::<libbpf_sys::bpf_func_info>() as u32,
        ..Default::default()
    };
    let info = bpf::program_info(program, info, "ask for a program's functions")?;
    let short = info.name.map(|c| c as u8);
    let short = CStr::from_bytes_until_nul(&short).unwrap_or_default().to_string_lossy();
    let described = &described[..MOST.min(info.nr_func_info as usize)];
    let btf = objects.entry(info.btf_id).or_insert_with(|| Btf::from_prog_id(info.id).ok());
    let function = |index: usize| {
        let of_btf = btf.as_ref().zip(described.get(index)).and_then(|(btf, one)| {
            let function = btf.type_by_id::<BtfType<'_>>(one.type_id.into())?;
            Some(function.name()?.to_string_lossy())
        });
        Symbol {
            name: symbol_name(tags[index], of_btf.as_deref().unwrap_or(&short)),
            module: Some(MODULE.to_owned()),
            start: starts[index],
            end: starts[index] + u64::from(lengths[index]),
        }
    };
    let functions = (0..MOST.min(info.nr_jited_ksyms as usize)).map(function);
    // A program that is not compiled has no address.
    Ok(functions.filter(|function| function.start < function.end).collect())
}

/// K `bpf_prog_ksym_set_name`, kernel/bpf/core.c.
fn symbol_name(tag: [u8; 8], name: &str) -> String {
    let tag: String = tag.iter().map(|byte| format!("{byte:02x}")).collect();
    match name {
        "" => format!("bpf_prog_{tag}"),
        _ => format!("bpf_prog_{tag}_{name}"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_functions_as_kallsyms_does() {
        let tag = [0x6d, 0xee, 0xf7, 0x35, 0x7e, 0x7b, 0x45, 0x03];
        assert_eq!(symbol_name(tag, "capture_fexit"), "bpf_prog_6deef7357e7b4503_capture_fexit");
        assert_eq!(symbol_name(tag, ""), "bpf_prog_6deef7357e7b4503");
    }
}
