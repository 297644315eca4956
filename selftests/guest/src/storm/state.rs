// SPDX-License-Identifier: MIT OR Apache-2.0
//! Objects and memory of the kernel.

use crate::bpf::{self, NextId};
use crate::changes;
use std::path::Path;
use std::thread;
use std::time::{Duration, Instant};
use std::{fs, io};
use tramplab_protocol::storm::State;

/// Guest time that the kernel gets to free what the storm left: it waits for RCU, and for tasks to
/// leave trampolines.
const SETTLING: Duration = Duration::from_secs(40);
/// Objects that are left for so long will stay.
const STUCK: Duration = Duration::from_secs(8);
const POLL: Duration = Duration::from_millis(200);
/// For memory that is freed after the objects are gone.
const LATER: Duration = Duration::from_millis(1000);

/// The state once there are no more objects than `before`, or after a while.
pub fn settled(before: Option<&State>) -> io::Result<State> {
    let deadline = Instant::now() + SETTLING;
    let (mut state, mut changed) = (objects()?, Instant::now());
    while let Some(before) = before
        && has_more(&state, before)
        && Instant::now() < deadline.min(changed + STUCK)
    {
        thread::sleep(POLL);
        let next = objects()?;
        if next != state {
            (state, changed) = (next, Instant::now());
        }
    }
    thread::sleep(LATER);
    trim();
    with_memory(state)
}

pub fn has_more(state: &State, before: &State) -> bool {
    state.objects().iter().zip(before.objects()).any(|((_, now), (_, then))| *now > then)
}

fn count(next: NextId) -> io::Result<u32> {
    bpf::ids(next).map(|id| id.map(|_| 1)).sum()
}

/// A kernel without such objects lacks the file. `mount` has other files if it is mounted.
fn lines(mount: &str, file: &str, is_one: impl Fn(&str) -> bool) -> io::Result<u32> {
    let text = match fs::read_to_string(Path::new(mount).join(file)) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => {
            let is_mounted = fs::read_dir(mount).is_ok_and(|mut entries| entries.next().is_some());
            let lacking = || io::Error::new(io::ErrorKind::Unsupported, format!("no {mount}"));
            return is_mounted.then_some(0).ok_or_else(lacking);
        }
        read => read.map_err(|error| io::Error::other(format!("{mount}/{file}: {error}")))?,
    };
    Ok(text.lines().filter(|line| is_one(line)).count() as u32)
}

fn objects() -> io::Result<State> {
    Ok(State {
        programs: count(libbpf_sys::bpf_prog_get_next_id)?,
        links: count(libbpf_sys::bpf_link_get_next_id)?,
        maps: count(libbpf_sys::bpf_map_get_next_id)?,
        trampolines: lines("/proc", "kallsyms", |line| line.contains(" bpf_trampoline_"))?,
        ftrace: lines("/sys/kernel/tracing", "enabled_functions", |line| {
            !line.starts_with([' ', '\t'])
        })?,
        kprobes: lines("/sys/kernel/debug", "kprobes/list", |_| true)?,
        ..State::default()
    })
}

/// Has caches give back what they keep for later. KASAN keeps freed objects until then.
fn trim() {
    let _ = changes::write("/proc/sys/vm/drop_caches", "3");
    for cache in fs::read_dir("/sys/kernel/slab").into_iter().flatten().flatten() {
        let _ = changes::write(cache.path().join("shrink"), "1");
    }
}

fn with_memory(state: State) -> io::Result<State> {
    let text = fs::read_to_string("/proc/meminfo")?;
    let kib = |name| {
        let lacking = || io::Error::other(format!("/proc/meminfo has no {name}"));
        kib(&text, name).ok_or_else(lacking)
    };
    Ok(State {
        slab_kib: kib("SUnreclaim")?,
        percpu_kib: kib("Percpu")?,
        vmalloc_kib: kib("VmallocUsed")?,
        ..state
    })
}

fn kib(text: &str, name: &str) -> Option<u64> {
    let line = text.lines().find_map(|line| line.strip_prefix(name)?.strip_prefix(':'))?;
    line.trim().strip_suffix(" kB")?.trim().parse().ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rejects_counts_that_cannot_be_read() {
        let dir = tempfile::tempdir().unwrap();
        let mount = dir.path().to_str().unwrap();
        let is_one = |line: &str| !line.starts_with(' ');
        let error = lines(mount, "list", is_one).unwrap_err();
        assert_eq!(error.kind(), io::ErrorKind::Unsupported);
        fs::write(dir.path().join("other"), "").unwrap();
        assert_eq!(lines(mount, "list", is_one).unwrap(), 0);
        fs::write(dir.path().join("list"), "a\n b\nc\n").unwrap();
        assert_eq!(lines(mount, "list", is_one).unwrap(), 2);
        assert!(lines(mount, "list/of", is_one).is_err());

        extern "C" fn two(id: u32, next: *mut u32) -> i32 {
            // SAFETY: the caller's id.
            unsafe { *next = id + 1 };
            if id < 2 { 0 } else { -libc::ENOENT }
        }
        extern "C" fn refused(_: u32, _: *mut u32) -> i32 {
            -libc::EPERM
        }
        assert_eq!(count(two).unwrap(), 2);
        assert_eq!(count(refused).unwrap_err().raw_os_error(), Some(libc::EPERM));
    }

    #[test]
    fn reads_kinds_of_memory() {
        let text = "SReclaimable:      1000 kB\nSUnreclaim:        26164 kB\nPercpu:  992 kB\n";
        assert_eq!(kib(text, "SUnreclaim"), Some(26164));
        assert_eq!(kib(text, "Percpu"), Some(992));
        assert_eq!(kib(text, "VmallocUsed"), None);
    }
}
