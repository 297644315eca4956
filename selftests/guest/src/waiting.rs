// SPDX-License-Identifier: MIT OR Apache-2.0
//! Times how long the agent's thread is off the CPU, by the kernel stack it left with, with a BPF
//! program on `sched_switch`.

use crate::libbpf_log;
use crate::mapping::Mapping;
use libbpf_rs::{Link, MapCore, MapFlags, MapHandle, Object, ObjectBuilder};
use std::ops::Range;
use std::os::fd::AsFd;
use tramplab_protocol::message::{GuestError, Wait};

const WAITING: &[u8] = include_bytes!(concat!(env!("OUT_DIR"), "/waiting.bpf.o"));

/// Same layout as `state` in waiting.bpf.c.
#[repr(C)]
struct State {
    phase: u32,
    thread: u32,
    since: u64,
    stack: i64,
}

/// Phase and stack id: the program's key.
type Key = (u32, i32);

/// The attached program. Phases are any numbers but 0.
pub struct Waiting {
    state: Mapping,
    waits: MapHandle,
    stacks: MapHandle,
    _link: Link,
    _object: Object,
}

fn failed(what: impl std::fmt::Display) -> GuestError {
    GuestError::Failed(format!("failed to time waiting: {what}"))
}

impl Waiting {
    pub fn attach(thread: u32) -> Result<Waiting, GuestError> {
        libbpf_log::clear();
        let refused =
            |error: libbpf_rs::Error| failed(format!("{error}; {}", libbpf_log::take().trim_end()));
        let object = ObjectBuilder::default()
            .open_memory(WAITING)
            .and_then(libbpf_rs::OpenObject::load)
            .map_err(refused)?;
        let map = |name: &str| {
            let map = object.maps().find(|map| map.name().to_string_lossy().ends_with(name));
            MapHandle::try_from(&map.ok_or_else(|| failed(format!("it has no map {name}")))?)
                .map_err(refused)
        };
        let state = Mapping::new(map(".bss")?.as_fd(), size_of::<State>()).map_err(failed)?;
        // SAFETY: inside the mapping; the program is not attached yet.
        unsafe { (&raw mut (*state.as_ptr::<State>()).thread).write_volatile(thread) };
        let program = object.progs_mut().next().ok_or_else(|| failed("it has no program"))?;
        let link = program.attach().map_err(refused)?;
        Ok(Waiting {
            state,
            waits: map("waits")?,
            stacks: map("stacks")?,
            _link: link,
            _object: object,
        })
    }

    pub fn start(&self, phase: u32) {
        self.set_phase(phase);
    }

    pub fn stop(&self) {
        self.set_phase(0);
    }

    /// Sets the phase. Call it on the timed thread, which is then on the CPU: a wait belongs to one
    /// phase entirely.
    fn set_phase(&self, phase: u32) {
        // SAFETY: inside the mapping; the program only reads it.
        unsafe { (&raw mut (*self.state.as_ptr::<State>()).phase).write_volatile(phase) };
    }

    /// All waits of a phase so far, longest first. Stacks begin in the switching function of the
    /// `scheduler`.
    pub fn of_phase(
        &self,
        phase: u32,
        scheduler: Option<&Range<u64>>,
    ) -> Result<Vec<Wait>, GuestError> {
        let mut waits = Vec::new();
        for key in self.waits.keys() {
            let value = self.waits.lookup(&key, MapFlags::ANY).map_err(failed)?;
            let ((of, id), (ns, count)) =
                (parse_key(&key)?, parse_value(value.as_deref().unwrap_or(&[]))?);
            if of == phase {
                waits.push(Wait { stack: from_scheduler(self.stack(id)?, scheduler), ns, count });
            }
        }
        waits.sort_unstable_by(|a, b| b.ns.cmp(&a.ns).then_with(|| a.stack.cmp(&b.stack)));
        Ok(waits)
    }

    /// Empty if the stack is unknown.
    fn stack(&self, id: i32) -> Result<Vec<u64>, GuestError> {
        let Ok(id) = u32::try_from(id) else { return Ok(Vec::new()) };
        let bytes = self
            .stacks
            .lookup(&id.to_ne_bytes(), MapFlags::ANY)
            .map_err(failed)?
            .unwrap_or_default();
        let addresses =
            bytes.chunks_exact(8).map(|a| u64::from_ne_bytes(a.try_into().expect("eight bytes")));
        Ok(addresses.take_while(|address| *address != 0).collect())
    }
}

/// Removes the innermost frames, which belong to the timing program. Keeps all if the scheduler's
/// frame is missing.
fn from_scheduler(mut stack: Vec<u64>, scheduler: Option<&Range<u64>>) -> Vec<u64> {
    let own = scheduler.and_then(|range| stack.iter().position(|address| range.contains(address)));
    stack.drain(..own.unwrap_or(0));
    stack
}

fn parse_key(bytes: &[u8]) -> Result<Key, GuestError> {
    let (phase, id) = bytes.split_first_chunk().ok_or_else(|| failed("a key is too short"))?;
    let id = id.first_chunk().ok_or_else(|| failed("a key is too short"))?;
    Ok((u32::from_ne_bytes(*phase), i32::from_ne_bytes(*id)))
}

/// Nanoseconds and count.
fn parse_value(bytes: &[u8]) -> Result<(u64, u64), GuestError> {
    let (ns, count) = bytes.split_first_chunk().ok_or_else(|| failed("a value is too short"))?;
    let count = count.first_chunk().ok_or_else(|| failed("a value is too short"))?;
    Ok((u64::from_ne_bytes(*ns), u64::from_ne_bytes(*count)))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn stacks_begin_in_the_scheduler() {
        for (stack, scheduler, expected) in [
            (vec![10, 20, 35, 40], Some(30..39), vec![35, 40]),
            (vec![35, 40], Some(30..39), vec![35, 40]),
            (vec![10, 20, 40], Some(30..39), vec![10, 20, 40]),
            (vec![10, 20], None, vec![10, 20]),
            (vec![], Some(30..39), vec![]),
        ] {
            assert_eq!(from_scheduler(stack, scheduler.as_ref()), expected);
        }
    }

    #[test]
    fn reads_the_layouts_of_the_program() {
        let object = ObjectBuilder::default().open_memory(WAITING).unwrap();
        let sizes: Vec<(String, u32, u32)> = object
            .maps()
            .map(|map| {
                (map.name().to_string_lossy().into_owned(), map.key_size(), map.value_size())
            })
            .collect();
        let size = |name: &str| {
            sizes.iter().find(|(n, ..)| n.ends_with(name)).map(|(_, key, value)| (*key, *value))
        };
        assert_eq!(size(".bss"), Some((4, size_of::<State>() as u32)));
        assert_eq!(size("waits"), Some((8, 16)));
        let key = [2u32.to_ne_bytes(), (-1i32).to_ne_bytes()].concat();
        assert_eq!(parse_key(&key).unwrap(), (2, -1));
        let value = [5u64.to_ne_bytes(), 6u64.to_ne_bytes()].concat();
        assert_eq!(parse_value(&value).unwrap(), (5, 6));
        assert!(parse_key(&key[..7]).is_err() && parse_value(&value[..15]).is_err());
    }
}
