// SPDX-License-Identifier: MIT OR Apache-2.0
//! The kernel's BTF: functions, tracepoints, and the attach types that the kernel was built with.

use libbpf_rs::btf::types::{self, MemberAttr};
use libbpf_rs::btf::{Btf, BtfKind, BtfType};
use std::collections::{HashMap, HashSet};

pub const PATH: &str = "/sys/kernel/btf/vmlinux";
/// The tag of functions that BPF programs may call. Tracing multi refuses to attach to them.
const KFUNC: &str = "bpf_kfunc";
/// A tracepoint `NAME` has a typedef of this prefix.
const TRACEPOINT: &str = "btf_trace_";
/// Arguments that travel in registers on every architecture. Older trampolines take no more.
const REGISTER_ARGUMENTS: usize = 6;

/// The kernel's BTF, read once. It never changes while the kernel runs.
#[derive(Debug, Default)]
pub struct KernelBtf {
    /// By name. Ambiguous names are left out.
    functions: HashMap<String, Function>,
    ambiguous: HashSet<String>,
    /// Ids by the tracepoint's name.
    tracepoints: HashMap<String, u32>,
    /// The enumerators of `enum bpf_attach_type`.
    attach_types: HashSet<String>,
    /// Byte offsets of `comm` and `pid` in `struct task_struct`.
    task_offsets: Option<(u32, u32)>,
}

#[derive(Clone, Copy, Debug)]
struct Function {
    id: u32,
    /// True if its prototype suits every trampoline.
    plain: bool,
    /// True if BPF programs may call it.
    kfunc: bool,
    /// True if it has a result.
    returns: bool,
}

/// A BTF's answer for a function's name.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Described {
    Absent,
    One,
    /// One that BPF programs may call.
    Kfunc,
    Several,
}

impl Described {
    /// Returns true if tracing programs may find the function by its name.
    pub fn is_one(self) -> bool {
        matches!(self, Described::One | Described::Kfunc)
    }
}

#[derive(Debug, thiserror::Error)]
#[error("the kernel has no BTF ({PATH}, CONFIG_DEBUG_INFO_BTF): {0}")]
pub struct BtfError(#[from] libbpf_rs::Error);

impl KernelBtf {
    pub fn read() -> Result<KernelBtf, BtfError> {
        Ok(KernelBtf::of(&Btf::from_vmlinux()?))
    }

    fn of(btf: &Btf<'_>) -> KernelBtf {
        let mut kernel = KernelBtf::default();
        let mut ambiguous = HashSet::new();
        let mut kfuncs = HashSet::new();
        for id in 1..btf.len() as u32 {
            let Some(entry) = btf.type_by_id::<BtfType<'_>>(id.into()) else { continue };
            let Some(name) = entry.name().map(|name| name.to_string_lossy()) else { continue };
            match entry.kind() {
                BtfKind::Func => {
                    let function = Function {
                        id,
                        plain: is_plain(btf, entry),
                        kfunc: false,
                        returns: returns(entry),
                    };
                    if kernel.functions.insert(name.clone().into_owned(), function).is_some() {
                        ambiguous.insert(name.into_owned());
                    }
                }
                BtfKind::Typedef => {
                    if let Some(tracepoint) = name.strip_prefix(TRACEPOINT) {
                        kernel.tracepoints.insert(tracepoint.to_owned(), id);
                    }
                }
                BtfKind::DeclTag if name == KFUNC => {
                    let tagged = entry.next_type().and_then(|function| function.name());
                    kfuncs.extend(tagged.map(|name| name.to_string_lossy().into_owned()));
                }
                BtfKind::Enum if name == "bpf_attach_type" => {
                    let Ok(entry) = types::Enum::try_from(entry) else { continue };
                    let names = entry.iter().filter_map(|member| member.name);
                    kernel
                        .attach_types
                        .extend(names.map(|name| name.to_string_lossy().into_owned()));
                }
                BtfKind::Struct if name == "task_struct" => {
                    kernel.task_offsets =
                        types::Struct::try_from(entry).ok().and_then(task_offsets);
                }
                _ => {}
            }
        }
        for name in &ambiguous {
            kernel.functions.remove(name);
        }
        kernel.ambiguous = ambiguous;
        for name in kfuncs {
            kernel.functions.entry(name).and_modify(|function| function.kfunc = true);
        }
        kernel
    }

    /// A BTF of functions, plain or not, with ids from 1.
    #[cfg(test)]
    pub fn of_functions(functions: &[(&str, bool)]) -> KernelBtf {
        let function = |(id, (name, plain)): (usize, &(&str, bool))| {
            (
                (*name).to_owned(),
                Function { id: id as u32 + 1, plain: *plain, kfunc: false, returns: true },
            )
        };
        KernelBtf {
            functions: functions.iter().enumerate().map(function).collect(),
            ..KernelBtf::default()
        }
    }

    pub fn function(&self, name: &str) -> Option<u32> {
        self.functions.get(name).map(|function| function.id)
    }

    /// True if a function has a result.
    pub fn returns_value(&self, name: &str) -> bool {
        self.functions.get(name).is_some_and(|function| function.returns)
    }

    /// The entry of a name.
    pub fn described(&self, name: &str) -> Described {
        match self.functions.get(name) {
            Some(Function { kfunc: true, .. }) => Described::Kfunc,
            Some(_) => Described::One,
            None if self.ambiguous.contains(name) => Described::Several,
            None => Described::Absent,
        }
    }

    /// The id of a function that tracing programs may attach to if its prototype suits them.
    pub fn traceable_function(&self, name: &str) -> Option<u32> {
        self.functions.get(name).filter(|function| !function.kfunc).map(|function| function.id)
    }

    /// The id of a function that every mechanism can attach to, according to BTF.
    pub fn plain_function(&self, name: &str) -> Option<u32> {
        let plain = |function: &&Function| function.plain && !function.kfunc;
        self.functions.get(name).filter(plain).map(|function| function.id)
    }

    pub fn tracepoint(&self, name: &str) -> Option<u32> {
        self.tracepoints.get(name).copied()
    }

    pub fn tracepoints(&self) -> impl Iterator<Item = (&str, u32)> {
        self.tracepoints.iter().map(|(name, id)| (name.as_str(), *id))
    }

    /// Byte offsets of the command name and the process id in `task_struct`.
    pub fn task_offsets(&self) -> Option<(u32, u32)> {
        self.task_offsets
    }

    pub fn has_attach_type(&self, name: &str) -> bool {
        self.attach_types.contains(name)
    }
}

fn task_offsets(task: types::Struct<'_>) -> Option<(u32, u32)> {
    let offset = |wanted: &str| {
        let member = task.iter().find(|member| member.name.is_some_and(|name| name == wanted))?;
        match member.attr {
            MemberAttr::Normal { offset } => Some(offset / 8),
            MemberAttr::BitField { .. } => None,
        }
    };
    Some((offset("comm")?, offset("pid")?))
}

/// Returns true if a function has a result.
fn returns(function: BtfType<'_>) -> bool {
    let result = function.next_type().and_then(|prototype| prototype.next_type());
    result.is_some_and(|result| result.skip_mods_and_typedefs().kind() != BtfKind::Void)
}

/// Returns true if arguments and result are few and fit registers. Trampolines refuse variable
/// arguments, and some refuse structures by value.
fn is_plain(btf: &Btf<'_>, function: BtfType<'_>) -> bool {
    let prototype =
        function.next_type().and_then(|prototype| types::FuncProto::try_from(prototype).ok());
    let Some(prototype) = prototype else { return false };
    let kind = |entry: BtfType<'_>| entry.skip_mods_and_typedefs().kind();
    let is_structure = |kind| matches!(kind, BtfKind::Struct | BtfKind::Union);
    let result = prototype.next_type().map_or(BtfKind::Void, kind);
    prototype.len() <= REGISTER_ARGUMENTS
        && !is_structure(result)
        && prototype.iter().all(|parameter| {
            let kind = btf.type_by_id::<BtfType<'_>>(parameter.ty).map_or(BtfKind::Void, kind);
            // `...` is a last parameter without a type.
            kind != BtfKind::Void && !is_structure(kind)
        })
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::ffi::CString;

    /// Writes BTF with libbpf, as pahole writes the kernel's.
    struct Writer(*mut libbpf_sys::btf);

    impl Writer {
        fn new() -> Writer {
            // SAFETY: no arguments.
            Writer(unsafe { libbpf_sys::btf__new_empty() })
        }

        fn function(&mut self, name: &str, result: i32, parameters: &[i32]) -> u32 {
            let name = CString::new(name).unwrap();
            // SAFETY: the BTF is valid; libbpf copies the names.
            unsafe {
                let prototype = libbpf_sys::btf__add_func_proto(self.0, result);
                for parameter in parameters {
                    libbpf_sys::btf__add_func_param(self.0, c"".as_ptr(), *parameter);
                }
                libbpf_sys::btf__add_func(
                    self.0,
                    name.as_ptr(),
                    libbpf_sys::BTF_FUNC_STATIC,
                    prototype,
                ) as u32
            }
        }

        /// Goes through a file, because libbpf-rs accepts no BTF from others.
        fn read(self) -> KernelBtf {
            let mut size = 0;
            // SAFETY: the data lives until the BTF is freed, after it was written.
            let bytes = unsafe {
                let data = libbpf_sys::btf__raw_data(self.0, &mut size);
                std::slice::from_raw_parts(data.cast::<u8>(), size as usize)
            };
            let path = std::env::temp_dir().join(format!("tramplab-btf-{}", std::process::id()));
            std::fs::write(&path, bytes).unwrap();
            // SAFETY: freed once.
            unsafe { libbpf_sys::btf__free(self.0) };
            let btf = Btf::from_path(&path).unwrap();
            std::fs::remove_file(&path).unwrap();
            KernelBtf::of(&btf)
        }
    }

    #[test]
    fn tells_plain_functions_tracepoints_and_attach_types() {
        let mut writer = Writer::new();
        let raw = writer.0;
        // SAFETY: the BTF is valid; libbpf copies the names.
        let (int, structure, typedef, tracepoint) = unsafe {
            let int = libbpf_sys::btf__add_int(
                raw,
                c"int".as_ptr(),
                4,
                libbpf_sys::BTF_INT_SIGNED as i32,
            );
            let structure = libbpf_sys::btf__add_struct(raw, c"tnum".as_ptr(), 16);
            let typedef = libbpf_sys::btf__add_typedef(raw, c"ZSTD_customMem".as_ptr(), structure);
            libbpf_sys::btf__add_enum(raw, c"bpf_attach_type".as_ptr(), 4);
            libbpf_sys::btf__add_enum_value(raw, c"BPF_TRACE_FENTRY".as_ptr(), 24);
            let tracepoint =
                libbpf_sys::btf__add_typedef(raw, c"btf_trace_task_rename".as_ptr(), int);
            (int, structure, typedef, tracepoint as u32)
        };
        let pointer = unsafe { libbpf_sys::btf__add_ptr(raw, structure) };
        let plain = writer.function("vfs_read", int, &[pointer, int]);
        let none = writer.function("schedule", 0, &[]);
        for (name, result, parameters) in [
            ("slab_fix", 0, &[pointer, 0][..]),
            ("tnum_bswap64", structure, &[int]),
            ("ZSTD_createCDict_advanced2", pointer, &[typedef]),
            ("seven", int, &[int; 7]),
        ] {
            assert_ne!(writer.function(name, result, parameters), 0);
        }
        writer.function("t_show", int, &[pointer]);
        writer.function("t_show", int, &[pointer]);
        let kfunc = writer.function("bpf_cpumask_first", int, &[pointer]);
        // SAFETY: the BTF is valid; libbpf copies the name.
        let tag =
            unsafe { libbpf_sys::btf__add_decl_tag(raw, c"bpf_kfunc".as_ptr(), kfunc as i32, -1) };
        assert!(tag > 0);

        let kernel = writer.read();
        assert_eq!(kernel.plain_function("vfs_read"), Some(plain));
        assert_eq!(kernel.plain_function("schedule"), Some(none));
        for unfit in
            ["slab_fix", "tnum_bswap64", "ZSTD_createCDict_advanced2", "seven", "bpf_cpumask_first"]
        {
            assert!(kernel.function(unfit).is_some(), "{unfit}");
            assert_eq!(kernel.plain_function(unfit), None, "{unfit}");
        }
        assert_eq!(kernel.traceable_function("bpf_cpumask_first"), None);
        assert!(kernel.traceable_function("seven").is_some());
        assert_eq!(kernel.function("t_show"), None, "two functions of one name");
        for (name, described) in [
            ("vfs_read", Described::One),
            ("bpf_cpumask_first", Described::Kfunc),
            ("t_show", Described::Several),
            ("no_such_function", Described::Absent),
        ] {
            assert_eq!(kernel.described(name), described, "{name}");
        }
        assert_eq!(kernel.tracepoints().collect::<Vec<_>>(), [("task_rename", tracepoint)]);
        assert!(
            kernel.has_attach_type("BPF_TRACE_FENTRY")
                && !kernel.has_attach_type("BPF_TRACE_FSESSION")
        );
    }
}
