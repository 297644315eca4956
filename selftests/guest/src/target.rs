// SPDX-License-Identifier: MIT OR Apache-2.0
//! The targets of links, and lists of them.

use std::collections::HashSet;
use std::os::fd::RawFd;

/// The target of one link: a function, a tracepoint, or a place in the agent's binary.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Target {
    /// The name of a module's function, `MODULE:NAME`, as kprobes take it.
    pub name: String,
    pub btf_id: u32,
    /// The descriptor of the BTF with that id; 0 for the kernel image's. A module's stays open as
    /// long as [`crate::known::Known`].
    pub btf: RawFd,
    /// 0 for a tracepoint. In the binary: the offset in its file.
    pub address: u64,
}

/// Removes functions from a list. Mechanisms' lists may have other names for an address.
pub fn remove(list: &mut Vec<Target>, removed: &[Target]) {
    let names: HashSet<&str> = removed.iter().map(|target| &*target.name).collect();
    let addresses = removed.iter().map(|target| target.address).filter(|address| *address != 0);
    let addresses: HashSet<u64> = addresses.collect();
    list.retain(|one| !names.contains(&*one.name) && !addresses.contains(&one.address));
}

/// Targets in the form that multi links take. Make them outside of timed windows.
#[derive(Debug, Default)]
pub struct List {
    pub ids: Vec<u32>,
    pub addresses: Vec<u64>,
}

impl List {
    pub fn of(targets: &[Target]) -> List {
        List {
            ids: targets.iter().map(|t| t.btf_id).collect(),
            addresses: targets.iter().map(|t| t.address).collect(),
        }
    }
}
