// SPDX-License-Identifier: MIT OR Apache-2.0
//! Facts about the guest's kernel.

use crate::boot_words;
use crate::changes;
use crate::functions;
use crate::kernel_btf::{self, KernelBtf};
use crate::role;
use nix::sys::utsname::uname;
use std::fs;
use tramplab_protocol::message::{Facts, GuestError};

const CLOCKSOURCE: &str = "/sys/devices/system/clocksource/clocksource0/current_clocksource";
const MEMORY: &str = "/proc/meminfo";
const REFRESH: &str = "/proc/sys/vm/stat_refresh";
/// Non-overlapping lines of meminfo: objects, JITed code and other vmalloc, page tables, per-CPU
/// data.
const KERNEL_MEMORY: [&str; 4] = ["Slab:", "VmallocUsed:", "PageTables:", "Percpu:"];
const VULNERABILITIES: &str = "/sys/devices/system/cpu/vulnerabilities";

/// `uname -r`, also used in the greeting.
pub fn release() -> String {
    uname().map_or_else(
        |_| "unknown".to_owned(),
        |names| names.release().to_string_lossy().into_owned(),
    )
}

/// Collects the facts. Without BTF in the kernel, `btf` is none and the facts say so.
pub fn gather(btf: Option<&KernelBtf>, not_taken: Vec<String>) -> Result<Facts, GuestError> {
    let failed = |what: &str, error: &dyn std::fmt::Display| {
        GuestError::Failed(format!("failed to {what}: {error}"))
    };
    let names = uname().map_err(|errno| failed("ask for the kernel's name", &errno))?;
    let read = |path: &str| {
        fs::read_to_string(path).map_err(|error| failed(&format!("read {path}"), &error))
    };
    let available = functions::available().unwrap_or_default();
    let (mut ftrace_functions, mut btf_functions) = (0, 0);
    for name in functions::image_functions(&available) {
        ftrace_functions += 1;
        btf_functions += u32::from(btf.is_some_and(|btf| btf.function(name).is_some()));
    }
    Ok(Facts {
        release: names.release().to_string_lossy().into_owned(),
        version: names.version().to_string_lossy().into_owned(),
        machine: names.machine().to_string_lossy().into_owned(),
        cpus: online_cpus(),
        memory_kib: memory_kib(&read(MEMORY)?, "MemTotal:"),
        clocksource: read(CLOCKSOURCE)
            .map_or_else(|_| "unknown".to_owned(), |text| text.trim_end().to_owned()),
        btf_bytes: fs::metadata(kernel_btf::PATH).map_or(0, |m| m.len()),
        ftrace_functions,
        btf_functions,
        mitigations: mitigations(),
        cmdline: told(boot_words::line(), role::is_own_machine()),
        not_taken,
        missing: Vec::new(),
        conditions: Vec::new(),
    })
}

fn told(cmdline: &str, own_machine: bool) -> String {
    match own_machine {
        true => boot_words::bearing(cmdline),
        false => cmdline.trim_end().to_owned(),
    }
}

/// CPUs of the machine, independent of this thread's affinity.
fn online_cpus() -> u32 {
    let count = nix::unistd::sysconf(nix::unistd::SysconfVar::_NPROCESSORS_ONLN);
    count.ok().flatten().and_then(|n| n.try_into().ok()).unwrap_or(1)
}

/// Memory that the kernel allocated for itself, in KiB. Free or available memory would be less
/// precise: agents' memory, page caches and the allocator's lists per CPU change it as well. None
/// on a machine where others allocate, too.
pub fn kernel_memory_kib() -> std::io::Result<Option<i64>> {
    if role::is_own_machine() {
        return Ok(None);
    }
    // The kernel counts per CPU and sums up now and then. This write forces it, if the kernel has
    // CONFIG_SMP.
    let _ = changes::write(REFRESH, "1");
    let meminfo = fs::read_to_string(MEMORY)?;
    Ok(Some(KERNEL_MEMORY.map(|name| memory_kib(&meminfo, name) as i64).iter().sum()))
}

fn memory_kib(meminfo: &str, name: &str) -> u64 {
    let line = meminfo.lines().find_map(|line| line.strip_prefix(name));
    line.and_then(|rest| rest.split_whitespace().next()).and_then(|n| n.parse().ok()).unwrap_or(0)
}

fn mitigations() -> Vec<String> {
    let mut lines: Vec<String> = fs::read_dir(VULNERABILITIES)
        .into_iter()
        .flatten()
        .flatten()
        .filter_map(|entry| {
            let state = fs::read_to_string(entry.path()).ok()?;
            Some(format!("{}: {}", entry.file_name().to_string_lossy(), state.trim_end()))
        })
        .collect();
    lines.sort();
    lines
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn tells_the_whole_command_line_only_of_guests() {
        let line = "root=UUID=4f6a-77 mds=off\n";
        assert_eq!(told(line, true), "mds=off");
        assert_eq!(told(line, false), "root=UUID=4f6a-77 mds=off");
    }

    #[test]
    fn finds_memory_by_its_name() {
        let meminfo =
            "MemTotal:         989080 kB\nMemFree:          935480 kB\nSlab:   930112 kB\n";
        assert_eq!(memory_kib(meminfo, "MemTotal:"), 989_080);
        assert_eq!(memory_kib(meminfo, "Slab:"), 930_112);
        assert_eq!(memory_kib("", "MemTotal:"), 0);
    }
}
