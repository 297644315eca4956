// SPDX-License-Identifier: MIT OR Apache-2.0
//! Makes a guest look like a machine with branch records: not virtual, and able to open events of
//! branches. Otherwise the kernel tree's own test of branch records skips itself.

use crate::delivering::Delivering;
use crate::known::Known;
use crate::{libbpf_log, userspace};
use libbpf_rs::{Link, Object, ObjectBuilder};
use nix::mount::{MsFlags, mount};
use std::fs;
use tramplab_protocol::delivery::Cpu;
use tramplab_protocol::magic::Magic;
use tramplab_protocol::message::GuestError;

const POSING: &[u8] = include_bytes!(concat!(env!("OUT_DIR"), "/posing.bpf.o"));
#[cfg(target_arch = "x86_64")]
const PROGRAM: &str = "x86_64";
#[cfg(target_arch = "aarch64")]
const PROGRAM: &str = "arm64";

const CPUINFO: &str = "/proc/cpuinfo";
/// The file mounted over it.
const BARE: &str = "/tmp/cpuinfo";

/// While it lives, programs get the branch records they ask for, and events of branches can be
/// opened.
pub struct Posing {
    // Dropped before the link: fields are dropped after `drop`.
    _setup: Delivering,
    _link: Link,
    _object: Object,
}

impl Posing {
    pub fn begin(cpu: Cpu, known: &Known) -> Result<Posing, GuestError> {
        let failed = |what: &str, error: &dyn std::fmt::Display| {
            GuestError::Failed(format!("failed to {what}: {error}"))
        };
        userspace::prepare();
        bare_cpuinfo().map_err(|error| failed(&format!("mount over {CPUINFO}"), &error))?;
        libbpf_log::clear();
        let (object, link) = open_events().map_err(|error| {
            failed(
                "attach to perf_event_open",
                &format!("{error}; {}", libbpf_log::take().trim_end()),
            )
        })?;
        let setup = Delivering::new(known.symbols()?, cpu)?;
        Magic::Deliver.execute_with(setup.setup());
        Ok(Posing { _setup: setup, _link: link, _object: object })
    }
}

impl Drop for Posing {
    fn drop(&mut self) {
        Magic::Disarm.execute();
    }
}

/// Mounts a copy of cpuinfo without the flag that marks a guest.
fn bare_cpuinfo() -> std::io::Result<()> {
    let text = fs::read_to_string(CPUINFO)?;
    fs::write(BARE, without_hypervisor(&text))?;
    mount(Some(BARE), CPUINFO, None::<&str>, MsFlags::MS_BIND, None::<&str>)?;
    Ok(())
}

fn without_hypervisor(cpuinfo: &str) -> String {
    let line = |line: &str| match line.split_once(':') {
        Some((key, flags)) if key.trim_end() == "flags" => {
            let flags: Vec<&str> =
                flags.split_whitespace().filter(|flag| *flag != "hypervisor").collect();
            format!("{key}: {}\n", flags.join(" "))
        }
        _ => format!("{line}\n"),
    };
    cpuinfo.lines().map(line).collect()
}

fn open_events() -> Result<(Object, Link), libbpf_rs::Error> {
    let mut open = ObjectBuilder::default().open_memory(POSING)?;
    open.progs_mut()
        .filter(|program| program.name() == PROGRAM)
        .for_each(|mut program| program.set_autoload(true));
    let object = open.load()?;
    let link = object
        .progs_mut()
        .find(|program| program.name() == PROGRAM)
        .expect("compiled in")
        .attach_trace()?;
    Ok((object, link))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn removes_only_the_hypervisor_flag() {
        let text = "processor\t: 0\nflags\t\t: fpu hypervisor lahf_lm\nbugs\t\t: \
                    hypervisor\n\nprocessor\t: 1\nflags\t\t: fpu\n";
        assert_eq!(
            without_hypervisor(text),
            "processor\t: 0\nflags\t\t: fpu lahf_lm\nbugs\t\t: hypervisor\n\nprocessor\t: \
             1\nflags\t\t: fpu\n"
        );
    }
}
