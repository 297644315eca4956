// SPDX-License-Identifier: MIT OR Apache-2.0
//! The obstacles to measuring the user's own machine, each with the command that removes it. Most
//! are found by trying.

use crate::bpf::{self, BpfError, Kind};
use crate::kallsyms::{Kallsyms, KallsymsError};
use crate::kernel_btf;
use crate::lockdown::Lockdown;
use crate::measuring_cpu;
use crate::sampling::Sampler;
use std::fs;
use std::io::ErrorKind;
use std::os::fd::AsFd;
use std::path::Path;
use tramplab_protocol::message::GuestError;

const TRACEFS: &str = "/sys/kernel/tracing";

/// A raw tracepoint's program needs no target to be loaded, and the same capabilities as others.
const TRACING: Kind = Kind { program: libbpf_sys::BPF_PROG_TYPE_RAW_TRACEPOINT, attach: 0 };

/// With these, a user measures as root does. The first three are for bpf(2) and
/// perf_event_open(2); then kallsyms, tracefs, the buffer of samples, and descriptors.
const CAPABILITIES: &str =
    "+bpf,+perfmon,+sys_admin,+syslog,+dac_read_search,+ipc_lock,+sys_resource";

/// Switches of the kernel with the values that spoil every measurement, the values that do not, and
/// the reason.
const SYSCTLS: [(&str, &str, &str, &str); 2] = [
    ("kernel.ftrace_enabled", "0", "1", "ftrace is off"),
    (
        "kernel.bpf_stats_enabled",
        "1",
        "0",
        "the kernel times every BPF program, which counts for the mechanism",
    ),
];

/// The kernel's answers. An error is the reason for a refusal.
struct Tried {
    locked_down: Option<Lockdown>,
    addresses_are_hidden: bool,
    /// True if a loaded program was compiled.
    load: Result<bool, String>,
    sample: Result<(), String>,
    list_tracefs: Result<bool, ErrorKind>,
    has_btf: bool,
}

pub fn here() -> Vec<String> {
    let tried = Tried {
        locked_down: Lockdown::of(libc::EPERM),
        addresses_are_hidden: matches!(Kallsyms::read(), Err(KallsymsError::Hidden)),
        load: load().map_err(|error| error.to_string()),
        sample: match Sampler::open(measuring_cpu::get() as i32) {
            Ok(_) => Ok(()),
            Err(GuestError::Unsupported(why)) => Err(why),
            Err(error) => Err(error.to_string()),
        },
        list_tracefs: fs::read_dir(TRACEFS)
            .map(|mut entries| entries.next().is_some())
            .map_err(|error| error.kind()),
        has_btf: Path::new(kernel_btf::PATH).exists(),
    };
    let read = |name: &str| {
        fs::read_to_string(format!("/proc/sys/{}", name.replace('.', "/"))).unwrap_or_default()
    };
    missing(&tried, read)
}

/// Returns true if the kernel compiled the program.
fn load() -> Result<bool, BpfError> {
    let program = bpf::load(TRACING, 0, bpf::EMPTY)?;
    Ok(!bpf::code(program.as_fd())?.is_empty())
}

fn missing(tried: &Tried, read: impl Fn(&str) -> String) -> Vec<String> {
    let mut missing = Vec::new();
    if let Some(lockdown) = &tried.locked_down {
        missing.push(format!("{lockdown}: boot without lockdown=confidentiality"));
    }
    if let Err(why) = &tried.load {
        missing.push(format!(
            "{why}: run as root, or with all of these: `sudo setpriv --reuid $(id -u) --regid $(id \
             -g) --init-groups --inh-caps {CAPABILITIES} --ambient-caps {CAPABILITIES}`"
        ));
    }
    if tried.addresses_are_hidden {
        missing.push(
            "/proc/kallsyms hides addresses: run as root, with CAP_SYSLOG, or `sysctl \
             kernel.kptr_restrict=0`"
                .to_owned(),
        );
    // Without addresses the kernel tells none of programs either.
    } else if tried.load == Ok(false) {
        missing.push("BPF programs are interpreted: `sysctl net.core.bpf_jit_enable=1`".to_owned());
    }
    if let Err(why) = &tried.sample {
        missing.push(format!(
            "{why}: run as root, with CAP_PERFMON and CAP_IPC_LOCK, or `sysctl \
             kernel.perf_event_paranoid=-1`"
        ));
    }
    match tried.list_tracefs {
        Ok(true) => {}
        Ok(false) | Err(ErrorKind::NotFound) => {
            missing.push(format!("tracefs is not mounted: `mount -t tracefs tracefs {TRACEFS}`"))
        }
        Err(error) => {
            missing.push(format!("{TRACEFS}: {error}: run as root, or with CAP_DAC_READ_SEARCH"))
        }
    }
    if !tried.has_btf {
        missing.push("the kernel has no BTF: build it with CONFIG_DEBUG_INFO_BTF=y".to_owned());
    }
    for (name, spoilt, good, why) in SYSCTLS {
        if read(name).trim() == spoilt {
            missing.push(format!("{why} ({name}={spoilt}): `sysctl {name}={good}`"));
        }
    }
    missing
}

#[cfg(test)]
mod tests {
    use super::*;

    fn good() -> Tried {
        Tried {
            locked_down: None,
            addresses_are_hidden: false,
            load: Ok(true),
            sample: Ok(()),
            list_tracefs: Ok(true),
            has_btf: true,
        }
    }

    #[test]
    fn names_the_command_for_each_part() {
        let none = |_: &str| String::new();
        assert_eq!(missing(&good(), none), [""; 0]);
        let refused = || Err("EPERM".to_owned());
        for (tried, expected) in [
            (Tried { addresses_are_hidden: true, ..good() }, "`sysctl kernel.kptr_restrict=0`"),
            (Tried { load: Ok(false), ..good() }, "`sysctl net.core.bpf_jit_enable=1`"),
            (Tried { load: Err("EPERM".to_owned()), ..good() }, "+bpf,+perfmon,"),
            (Tried { sample: refused(), ..good() }, "`sysctl kernel.perf_event_paranoid=-1`"),
            (
                Tried { list_tracefs: Ok(false), ..good() },
                "`mount -t tracefs tracefs /sys/kernel/tracing`",
            ),
            (Tried { has_btf: false, ..good() }, "CONFIG_DEBUG_INFO_BTF=y"),
            (Tried { list_tracefs: Err(ErrorKind::PermissionDenied), ..good() }, "run as root"),
            (
                Tried {
                    locked_down: Lockdown::parse("none integrity [confidentiality]"),
                    ..good()
                },
                "(confidentiality)",
            ),
        ] {
            let told = missing(&tried, none);
            assert!(told.len() == 1 && told[0].contains(expected), "{told:?}");
        }
        // Its length is hidden with its address.
        let hidden = Tried { addresses_are_hidden: true, load: Ok(false), ..good() };
        assert_eq!(missing(&hidden, none).len(), 1);
    }

    #[test]
    fn names_the_value_of_each_switch() {
        let is = |values: &'static [&str]| {
            move |name: &str| match name {
                "kernel.ftrace_enabled" => values[0].to_owned(),
                _ => values[1].to_owned(),
            }
        };
        assert_eq!(missing(&good(), is(&["1\n", "0\n"])), [""; 0]);
        assert_eq!(
            missing(&good(), is(&["0\n", "1\n"])),
            [
                "ftrace is off (kernel.ftrace_enabled=0): `sysctl kernel.ftrace_enabled=1`",
                "the kernel times every BPF program, which counts for the mechanism \
                 (kernel.bpf_stats_enabled=1): `sysctl kernel.bpf_stats_enabled=0`",
            ]
        );
    }
}
