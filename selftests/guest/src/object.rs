// SPDX-License-Identifier: MIT OR Apache-2.0
//! Objects whose programs libbpf relocates once and whose maps it makes. The agent then loads each
//! program with one call.
//!
//! If libbpf loaded a tracing program, it would read the kernel's BTF to find an id that is already
//! known. That takes a seventh of a second under TCG.

use crate::bpf::{Described, Program};
use crate::libbpf_log;
use libbpf_rs::{AsRawLibbpf, MapType, ObjectBuilder, OpenMap, OpenObject, ProgramType};
use std::ffi::{CStr, CString, OsStr};
use std::io;
use std::os::fd::{BorrowedFd, RawFd};
use std::ptr::NonNull;
use std::slice;
use tramplab_protocol::program::Global;

/// A prepared object. Its programs are not loaded.
#[derive(Debug)]
pub struct Object(OpenObject);

/// The reason why libbpf cannot prepare an object, with its own words.
#[derive(Debug, thiserror::Error)]
#[error("{error}; {}", log.trim_end())]
pub struct Unprepared {
    pub error: String,
    pub log: String,
}

/// The programs of an object to prepare.
#[derive(Clone, Copy, Debug)]
pub enum Wanted<'a> {
    /// All, which need nothing of the kernel's BTF.
    All,
    /// These, by the names of their functions.
    These(&'a [&'a str]),
}

/// A prog array that libbpf made.
#[derive(Clone, Debug)]
pub struct ProgArray {
    pub name: String,
    pub fd: RawFd,
    pub entries: u32,
}

/// The section of a program, and the types that libbpf gives it for that.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Section {
    pub name: String,
    kind: u32,
    attach: u32,
}

impl Section {
    /// `fentry.s` of `?fentry.s/tcp_connect`.
    fn words(&self) -> &str {
        let name = self.name.strip_prefix('?').unwrap_or(&self.name);
        name.split('/').next().unwrap_or_default()
    }

    /// Returns true if both programs are of one type, so that one can tail-call the other.
    pub fn is_like(&self, other: &Section) -> bool {
        let unknown = |section: &Section| section.kind == libbpf_sys::BPF_PROG_TYPE_UNSPEC;
        (self.kind, self.attach) == (other.kind, other.attach)
            && (!unknown(self) || self.words() == other.words())
    }
}

impl Object {
    /// `globals` are values instead of those in the object.
    pub fn prepare(
        bytes: &[u8],
        wanted: Wanted<'_>,
        globals: &[Global],
    ) -> Result<Object, Unprepared> {
        libbpf_log::clear();
        let unprepared = |error: &dyn std::fmt::Display| Unprepared {
            error: error.to_string(),
            log: libbpf_log::take(),
        };
        let mut object =
            ObjectBuilder::default().open_memory(bytes).map_err(|error| unprepared(&error))?;
        for mut program in object.progs_mut() {
            match wanted {
                // For this type libbpf does not look for BTF. The real type is set at load time.
                Wanted::All => program.set_prog_type(ProgramType::Kprobe),
                Wanted::These(names) => {
                    let wanted = names.iter().any(|name| program.name() == *name);
                    program.set_autoload(wanted);
                }
            }
        }
        for mut map in object.maps_mut() {
            let size = size(map.map_type()).filter(|_| map.max_entries() == 0);
            if let Some(Err(error)) = size.map(|size| map.set_max_entries(size)) {
                return Err(unprepared(&error));
            }
        }
        for global in globals {
            set(&object, global).map_err(|error| unprepared(&error))?;
        }
        // SAFETY: the object is open and not loaded.
        let result = unsafe { libbpf_sys::bpf_object__prepare(object.as_libbpf_object().as_ptr()) };
        if result < 0 {
            return Err(unprepared(&io::Error::from_raw_os_error(-result)));
        }
        Ok(Object(object))
    }

    fn find(&self, name: &str) -> Option<NonNull<libbpf_sys::bpf_program>> {
        let program = self.0.progs().find(|program| program.name() == name)?;
        Some(program.as_libbpf_object())
    }

    /// A program as the kernel takes it.
    pub fn program(&self, name: &str) -> Option<Program<'_>> {
        let is_sleepable = self.section(name)?.words().ends_with(".s");
        let program = self.find(name)?.as_ptr();
        let object = self.0.as_libbpf_object().as_ptr();
        // SAFETY: both belong to the object, which no longer changes and lives as long. A list
        // without a first entry is empty. Instructions are bytes; libbpf copies them with other
        // records in the size of the structures.
        unsafe {
            let btf = libbpf_sys::bpf_object__btf_fd(object);
            Some(Program {
                name: CStr::from_ptr(libbpf_sys::bpf_program__name(program)),
                license: c"GPL",
                flags: if is_sleepable { libbpf_sys::BPF_F_SLEEPABLE } else { 0 },
                instructions: list(
                    libbpf_sys::bpf_program__insns(program).cast(),
                    libbpf_sys::bpf_program__insn_cnt(program) as usize,
                ),
                described: (btf >= 0).then(|| Described {
                    btf: BorrowedFd::borrow_raw(btf),
                    functions: list(
                        libbpf_sys::bpf_program__func_info(program),
                        libbpf_sys::bpf_program__func_info_cnt(program) as usize,
                    ),
                    lines: list(
                        libbpf_sys::bpf_program__line_info(program),
                        libbpf_sys::bpf_program__line_info_cnt(program) as usize,
                    ),
                }),
            })
        }
    }

    /// The meaning of a program's section.
    pub fn section(&self, name: &str) -> Option<Section> {
        let program = self.find(name)?.as_ptr();
        // SAFETY: it belongs to the object.
        unsafe {
            let text = CStr::from_ptr(libbpf_sys::bpf_program__section_name(program));
            Some(Section {
                name: text.to_string_lossy().into_owned(),
                kind: libbpf_sys::bpf_program__type(program),
                attach: libbpf_sys::bpf_program__expected_attach_type(program),
            })
        }
    }

    /// A function's number in the object's BTF.
    pub fn function(&self, name: &str) -> Option<u32> {
        let name = CString::new(name).ok()?;
        // SAFETY: the BTF belongs to the object; the name outlives the call.
        let id = unsafe {
            let btf = libbpf_sys::bpf_object__btf(self.0.as_libbpf_object().as_ptr());
            libbpf_sys::btf__find_by_name_kind(btf, name.as_ptr(), libbpf_sys::BTF_KIND_FUNC)
        };
        u32::try_from(id).ok()
    }

    /// All prog arrays, filled or not.
    pub fn prog_arrays(&self) -> Vec<ProgArray> {
        let arrays = self.0.maps().filter(|map| map.map_type() == MapType::ProgArray);
        let array = |map: OpenMap<'_>| ProgArray {
            name: map.name().to_string_lossy().into_owned(),
            // SAFETY: the map belongs to the object.
            fd: unsafe { libbpf_sys::bpf_map__fd(map.as_libbpf_object().as_ptr()) },
            entries: map.max_entries(),
        };
        arrays.map(array).collect()
    }

    /// The memory of the map with the uninitialised variables, and its size. It lives as long as
    /// the object. None if there is no such map, or if the kernel cannot map it.
    pub fn variables(&self) -> Option<(NonNull<u8>, usize)> {
        let is_it = |name: &OsStr| name.to_string_lossy().ends_with(".bss");
        let map = self.0.maps().find(|map| is_it(map.name()))?.as_libbpf_object();
        let mut size = 0;
        // SAFETY: the map belongs to the object.
        let start = unsafe { libbpf_sys::bpf_map__initial_value(map.as_ptr(), &mut size) };
        Some((NonNull::new(start.cast())?, size as usize))
    }
}

/// Gives a variable its value, in the memory from which libbpf fills the map of its section.
fn set(object: &OpenObject, global: &Global) -> Result<(), String> {
    let Global { section, offset, bytes } = global;
    let missing = || format!("the object has no variable at {section}+{offset:#x}");
    // Maps of the three usual sections have the object's name before the section's.
    let is_it = |name: &OsStr| name.to_string_lossy().ends_with(section.as_str());
    let map = object.maps().find(|map| is_it(map.name())).ok_or_else(missing)?;
    let mut size = 0;
    // SAFETY: the map belongs to the object.
    let start =
        unsafe { libbpf_sys::bpf_map__initial_value(map.as_libbpf_object().as_ptr(), &mut size) };
    let start = NonNull::new(start.cast::<u8>()).ok_or_else(missing)?;
    let end = offset.checked_add(bytes.len() as u64);
    if end.is_none_or(|end| end > size) {
        return Err(missing());
    }
    // SAFETY: the value is `size` bytes, which nobody else uses before the object is prepared.
    unsafe {
        start
            .add(*offset as usize)
            .copy_from_nonoverlapping(NonNull::from(&bytes[..]).cast(), bytes.len());
    }
    Ok(())
}

/// The size of a map whose size the object leaves to its own user space. None if the kernel or
/// libbpf knows it.
fn size(kind: MapType) -> Option<u32> {
    match kind {
        // In bytes.
        MapType::RingBuf | MapType::UserRingBuf => Some(1 << 20),
        MapType::Hash
        | MapType::PercpuHash
        | MapType::LruHash
        | MapType::LruPercpuHash
        | MapType::Array
        | MapType::PercpuArray
        | MapType::StackTrace
        | MapType::Queue
        | MapType::Stack => Some(1 << 10),
        _ => None,
    }
}

/// # Safety
///
/// Unless `first` is null, `count` values begin there, which live as long as the result.
unsafe fn list<'a, T>(first: *const T, count: usize) -> &'a [T] {
    if first.is_null() {
        return &[];
    }
    // SAFETY: by the caller's promise.
    unsafe { slice::from_raw_parts(first, count) }
}
