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
use tramplab_protocol::message::{MapAttribute, Remark};
use tramplab_protocol::program::Global;

/// A prepared object. Its programs are not loaded.
#[derive(Debug)]
pub struct Object {
    open: OpenObject,
    /// The attributes of maps that the object left to its loader.
    set: Vec<Remark>,
}

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

/// A map through which programs hand records to user space.
#[derive(Clone, Debug)]
pub struct Buffer {
    pub name: String,
    pub kind: BufferKind,
    pub fd: RawFd,
    /// Bytes of a ring buffer, slots of an array.
    pub entries: u32,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum BufferKind {
    Ring,
    Perf,
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
        let mut set = Vec::new();
        for mut map in object.maps_mut() {
            let given =
                Sizes { key: map.key_size(), value: map.value_size(), entries: map.max_entries() };
            let Sizes { key, value, entries } = given.finished(map.map_type());
            let name: String = map.name().to_string_lossy().chars().take(LONGEST).collect();
            let mut remark = |attribute, value| {
                set.push(Remark::MapSet { map: name.clone(), attribute, value });
            };
            let mut done = Ok(());
            if key != given.key {
                remark(MapAttribute::KeySize, key);
                done = done.and(map.set_key_size(key));
            }
            if value != given.value {
                remark(MapAttribute::ValueSize, value);
                done = done.and(map.set_value_size(value));
            }
            if entries != given.entries {
                remark(MapAttribute::MaxEntries, entries);
                done = done.and(map.set_max_entries(entries));
            }
            done.map_err(|error| unprepared(&error))?;
        }
        for global in globals {
            fill(&object, global).map_err(|error| unprepared(&error))?;
        }
        // SAFETY: the object is open and not loaded.
        let result = unsafe { libbpf_sys::bpf_object__prepare(object.as_libbpf_object().as_ptr()) };
        if result < 0 {
            return Err(unprepared(&io::Error::from_raw_os_error(-result)));
        }
        Ok(Object { open: object, set })
    }

    /// The attributes of maps that the object left to its loader.
    pub fn remarks(&self) -> &[Remark] {
        &self.set
    }

    fn find(&self, name: &str) -> Option<NonNull<libbpf_sys::bpf_program>> {
        let program = self.open.progs().find(|program| program.name() == name)?;
        Some(program.as_libbpf_object())
    }

    /// A program as the kernel takes it.
    pub fn program(&self, name: &str) -> Option<Program<'_>> {
        let is_sleepable = self.section(name)?.words().ends_with(".s");
        let program = self.find(name)?.as_ptr();
        let object = self.open.as_libbpf_object().as_ptr();
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
            let btf = libbpf_sys::bpf_object__btf(self.open.as_libbpf_object().as_ptr());
            libbpf_sys::btf__find_by_name_kind(btf, name.as_ptr(), libbpf_sys::BTF_KIND_FUNC)
        };
        u32::try_from(id).ok()
    }

    /// All prog arrays, filled or not.
    pub fn prog_arrays(&self) -> Vec<ProgArray> {
        let arrays = self.open.maps().filter(|map| map.map_type() == MapType::ProgArray);
        let array = |map: OpenMap<'_>| ProgArray {
            name: map.name().to_string_lossy().into_owned(),
            // SAFETY: the map belongs to the object.
            fd: unsafe { libbpf_sys::bpf_map__fd(map.as_libbpf_object().as_ptr()) },
            entries: map.max_entries(),
        };
        arrays.map(array).collect()
    }

    /// All maps that hand records to user space.
    pub fn buffers(&self) -> Vec<Buffer> {
        let buffer = |map: OpenMap<'_>| {
            let kind = match map.map_type() {
                MapType::RingBuf => BufferKind::Ring,
                MapType::PerfEventArray => BufferKind::Perf,
                _ => return None,
            };
            // SAFETY: the map belongs to the object.
            let fd = unsafe { libbpf_sys::bpf_map__fd(map.as_libbpf_object().as_ptr()) };
            let name = map.name().to_string_lossy().into_owned();
            // A map that no wanted program uses may not be made.
            (fd >= 0).then(|| Buffer { name, kind, fd, entries: map.max_entries() })
        };
        self.open.maps().filter_map(buffer).collect()
    }

    /// The names of those of these maps whose keys can be listed, and which have none.
    pub fn empty_maps(&self, used: &[RawFd]) -> Vec<String> {
        let is_empty = |map: &OpenMap<'_>| {
            let has_keys = matches!(
                map.map_type(),
                MapType::Hash
                    | MapType::PercpuHash
                    | MapType::LruHash
                    | MapType::LruPercpuHash
                    | MapType::HashOfMaps
                    | MapType::LpmTrie
            );
            // SAFETY: the map belongs to the object.
            let fd = unsafe { libbpf_sys::bpf_map__fd(map.as_libbpf_object().as_ptr()) };
            let mut first = vec![0u8; map.key_size() as usize];
            let next = || {
                let first = first.as_mut_ptr().cast();
                // SAFETY: the key has the map's size, and outlives the call.
                unsafe { libbpf_sys::bpf_map_get_next_key(fd, std::ptr::null(), first) }
            };
            has_keys && used.contains(&fd) && { next }() == -libc::ENOENT
        };
        let name = |map: OpenMap<'_>| map.name().to_string_lossy().chars().take(LONGEST).collect();
        self.open.maps().filter(is_empty).map(name).collect()
    }

    /// The memory of the map with the uninitialised variables, and its size. It lives as long as
    /// the object. None if there is no such map, or if the kernel cannot map it.
    pub fn variables(&self) -> Option<(NonNull<u8>, usize)> {
        let is_it = |name: &OsStr| name.to_string_lossy().ends_with(".bss");
        let map = self.open.maps().find(|map| is_it(map.name()))?.as_libbpf_object();
        let mut size = 0;
        // SAFETY: the map belongs to the object.
        let start = unsafe { libbpf_sys::bpf_map__initial_value(map.as_ptr(), &mut size) };
        Some((NonNull::new(start.cast())?, size as usize))
    }
}

/// Gives a variable its value, in the memory from which libbpf fills the map of its section.
fn fill(object: &OpenObject, global: &Global) -> Result<(), String> {
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

/// The sizes of a map.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Sizes {
    key: u32,
    value: u32,
    entries: u32,
}

/// Characters of a map's name in a remark.
const LONGEST: usize = 128;
/// Bytes of a kernel stack's addresses: `PERF_MAX_STACK_DEPTH` of them.
const STACK: u32 = 127 * 8;
/// Bytes of a descriptor, and of its index.
const FD: u32 = 4;

impl Sizes {
    /// Sets the sizes that objects leave to their own user space, and those that the kernel takes
    /// only in one way. Loaders other than libbpf do that too: bpf2go's objects give a ring buffer
    /// the type of its records.
    fn finished(self, kind: MapType) -> Sizes {
        let or = |given: u32, usual: u32| if given == 0 { usual } else { given };
        match kind {
            // In bytes.
            MapType::RingBuf | MapType::UserRingBuf => {
                Sizes { key: 0, value: 0, entries: or(self.entries, 1 << 20) }
            }
            MapType::StackTrace => {
                Sizes { key: FD, value: or(self.value, STACK), entries: or(self.entries, 1 << 10) }
            }
            // libbpf gives it an entry for each CPU.
            MapType::PerfEventArray => Sizes { key: FD, value: FD, ..self },
            MapType::ProgArray | MapType::CgroupArray | MapType::ArrayOfMaps => {
                Sizes { key: FD, value: FD, ..self }
            }
            MapType::HashOfMaps => Sizes { value: FD, ..self },
            // A set of values, without keys.
            MapType::BloomFilter => Sizes { key: 0, entries: or(self.entries, 1 << 10), ..self },
            MapType::Hash
            | MapType::PercpuHash
            | MapType::LruHash
            | MapType::LruPercpuHash
            | MapType::Array
            | MapType::PercpuArray
            | MapType::LpmTrie
            | MapType::Queue
            | MapType::Stack => Sizes { entries: or(self.entries, 1 << 10), ..self },
            _ => self,
        }
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn finishes_maps_that_other_loaders_finish() {
        let sizes = |key, value, entries| Sizes { key, value, entries };
        for (kind, given, expected) in [
            // libbpf-tools sets the value's size in user space.
            (MapType::StackTrace, sizes(4, 0, 0), sizes(4, 1016, 1024)),
            (MapType::StackTrace, sizes(0, 0, 10), sizes(4, 1016, 10)),
            (MapType::StackTrace, sizes(4, 160, 10), sizes(4, 160, 10)),
            // bpf2go's examples name the type of the records.
            (MapType::RingBuf, sizes(0, 8, 1 << 16), sizes(0, 0, 1 << 16)),
            (MapType::RingBuf, sizes(4, 0, 0), sizes(0, 0, 1 << 20)),
            (MapType::PerfEventArray, sizes(4, 64, 0), sizes(4, 4, 0)),
            (MapType::PerfEventArray, sizes(0, 0, 0), sizes(4, 4, 0)),
            (MapType::Hash, sizes(8, 16, 0), sizes(8, 16, 1024)),
            (MapType::Hash, sizes(8, 16, 7), sizes(8, 16, 7)),
            (MapType::BloomFilter, sizes(4, 8, 0), sizes(0, 8, 1024)),
            (MapType::BloomFilter, sizes(0, 8, 7), sizes(0, 8, 7)),
            (MapType::LpmTrie, sizes(8, 4, 0), sizes(8, 4, 1024)),
            (MapType::LpmTrie, sizes(8, 4, 7), sizes(8, 4, 7)),
            // No usual size is known.
            (MapType::Hash, sizes(0, 0, 7), sizes(0, 0, 7)),
            (MapType::SkStorage, sizes(4, 8, 0), sizes(4, 8, 0)),
        ] {
            assert_eq!(given.finished(kind), expected, "{kind:?} {given:?}");
        }
    }
}
