// SPDX-License-Identifier: MIT OR Apache-2.0
//! The functions of loaded programs, as kallsyms would list them. With `bpf_jit_harden` it hides
//! them (K `bpf_jit_kallsyms_enabled`, include/linux/filter.h). Nothing describes trampolines.

use crate::bpf::{self, BpfError};
use std::collections::HashMap;
use std::ffi::CStr;
use std::fs;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd};
use std::ptr::NonNull;
use tramplab_protocol::message::Symbol;

/// The module of programs in kallsyms.
const MODULE: &str = "bpf";
/// A program's functions, at most (K `BPF_MAX_SUBPROGS`, and one for exceptions).
const MOST: usize = 257;

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
    let mut names = Names::default();
    let mut id = 0;
    // SAFETY: the id outlives the call.
    while unsafe { libbpf_sys::bpf_prog_get_next_id(id, &mut id) } == 0 {
        // SAFETY: takes no pointer.
        let fd = unsafe { libbpf_sys::bpf_prog_get_fd_by_id(id) };
        // A program may be gone meanwhile.
        let Ok(program) = bpf::owned(fd.into(), "open a program") else { continue };
        all.extend(functions_of(program.as_fd(), &mut names)?);
    }
    Ok(all)
}

fn functions_of(program: BorrowedFd<'_>, names: &mut Names) -> Result<Vec<Symbol>, BpfError> {
    let (mut starts, mut lengths, mut tags) = ([0u64; MOST], [0u32; MOST], [[0u8; 8]; MOST]);
    let mut described = [libbpf_sys::bpf_func_info::default(); MOST];
    let mut info = libbpf_sys::bpf_prog_info {
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
    let mut length = size_of::<libbpf_sys::bpf_prog_info>() as u32;
    // SAFETY: all outlive the call, and the lengths are theirs.
    let result =
        unsafe { libbpf_sys::bpf_prog_get_info_by_fd(program.as_raw_fd(), &mut info, &mut length) };
    if result < 0 {
        return Err(BpfError::new("ask for a program's functions", -result, ""));
    }
    let short = info.name.map(|c| c as u8);
    let short = CStr::from_bytes_until_nul(&short).unwrap_or_default().to_string_lossy();
    let described = &described[..MOST.min(info.nr_func_info as usize)];
    let function = |index: usize| {
        let of_btf = described.get(index).and_then(|one| names.of(info.btf_id, one.type_id));
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

/// Names of functions by BTF objects and types. Programs share objects.
#[derive(Default)]
struct Names(HashMap<u32, Option<Btf>>);

impl Names {
    fn of(&mut self, btf: u32, function: u32) -> Option<String> {
        self.0.entry(btf).or_insert_with(|| Btf::of(btf)).as_ref()?.name(function)
    }
}

/// A program's BTF object.
struct Btf(NonNull<libbpf_sys::btf>);

impl Btf {
    fn of(id: u32) -> Option<Btf> {
        // SAFETY: takes no pointer. The caller owns the result.
        NonNull::new(unsafe { libbpf_sys::btf__load_from_kernel_by_id(id) }).map(Btf)
    }

    fn name(&self, id: u32) -> Option<String> {
        // SAFETY: types and names live as long as their object. libbpf checks both numbers.
        let name = unsafe {
            let of_type = libbpf_sys::btf__type_by_id(self.0.as_ptr(), id).as_ref()?;
            let name = libbpf_sys::btf__name_by_offset(self.0.as_ptr(), of_type.name_off);
            (!name.is_null()).then(|| CStr::from_ptr(name))?
        };
        Some(name.to_string_lossy().into_owned()).filter(|name| !name.is_empty())
    }
}

impl Drop for Btf {
    fn drop(&mut self) {
        // SAFETY: it was loaded and is freed once.
        unsafe { libbpf_sys::btf__free(self.0.as_ptr()) };
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
