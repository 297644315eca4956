// SPDX-License-Identifier: MIT OR Apache-2.0
//! What the kernel's BTF says of itself: functions, tracepoints, and the attach types it was built with.

use libbpf_rs::btf::{Btf, BtfKind, BtfType, types};
use std::collections::{HashMap, HashSet};

pub const PATH: &str = "/sys/kernel/btf/vmlinux";
/// A tracepoint `NAME` has a typedef of this prefix.
const TRACEPOINT: &str = "btf_trace_";

/// The kernel's BTF, read once: it never changes while the kernel runs.
#[derive(Debug, Default)]
pub struct KernelBtf {
    /// Ids by name; only names that stand for one function.
    functions: HashMap<String, u32>,
    /// Ids by the tracepoint's name.
    tracepoints: HashMap<String, u32>,
    /// The enumerators of `enum bpf_attach_type`.
    attach_types: HashSet<String>,
}

#[derive(Debug, thiserror::Error)]
#[error("no BTF of the kernel ({PATH}, CONFIG_DEBUG_INFO_BTF): {0}")]
pub struct BtfError(#[from] libbpf_rs::Error);

impl KernelBtf {
    pub fn read() -> Result<KernelBtf, BtfError> {
        let btf = Btf::from_vmlinux()?;
        let mut kernel = KernelBtf::default();
        let mut ambiguous = HashSet::new();
        for id in 1..btf.len() as u32 {
            let Some(kind) = btf.type_by_id::<BtfType<'_>>(id.into()) else { continue };
            match kind.kind() {
                BtfKind::Func => {
                    let Some(name) = kind.name() else { continue };
                    let name = name.to_string_lossy().into_owned();
                    if kernel.functions.insert(name.clone(), id).is_some() {
                        ambiguous.insert(name);
                    }
                }
                BtfKind::Typedef => {
                    let name = kind.name().map(|name| name.to_string_lossy());
                    if let Some(tracepoint) = name.as_deref().and_then(|name| name.strip_prefix(TRACEPOINT)) {
                        kernel.tracepoints.insert(tracepoint.to_owned(), id);
                    }
                }
                BtfKind::Enum if kind.name().is_some_and(|name| name == "bpf_attach_type") => {
                    let Ok(kind) = types::Enum::try_from(kind) else { continue };
                    let names = kind.iter().filter_map(|member| member.name);
                    kernel.attach_types.extend(names.map(|name| name.to_string_lossy().into_owned()));
                }
                _ => {}
            }
        }
        for name in ambiguous {
            kernel.functions.remove(&name);
        }
        Ok(kernel)
    }

    pub fn function(&self, name: &str) -> Option<u32> {
        self.functions.get(name).copied()
    }

    pub fn tracepoint(&self, name: &str) -> Option<u32> {
        self.tracepoints.get(name).copied()
    }

    pub fn tracepoints(&self) -> impl Iterator<Item = (&str, u32)> {
        self.tracepoints.iter().map(|(name, id)| (name.as_str(), *id))
    }

    pub fn has_attach_type(&self, name: &str) -> bool {
        self.attach_types.contains(name)
    }
}
