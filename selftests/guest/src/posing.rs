// SPDX-License-Identifier: MIT OR Apache-2.0
//! Makes a guest that serves branch records look like a machine: not virtual. Otherwise the kernel
//! tree's own test of branch records skips itself.

use crate::changes;
use crate::known::Known;
use crate::serving::Serving;
use crate::userspace;
use std::fs;
use tramplab_protocol::delivery::Filters;
use tramplab_protocol::message::GuestError;

const CPUINFO: &str = "/proc/cpuinfo";
/// The file mounted over it.
const BARE: &str = "/tmp/cpuinfo";

/// Starts the delivery of branch records on what looks like a machine of its own.
pub fn begin(filters: &Filters, known: &Known) -> Result<Serving, GuestError> {
    userspace::prepare();
    bare_cpuinfo()
        .map_err(|error| GuestError::Failed(format!("failed to mount over {CPUINFO}: {error}")))?;
    Serving::begin(filters, known.symbols()?)
}

/// Mounts a copy of cpuinfo without the flag that marks a guest.
fn bare_cpuinfo() -> std::io::Result<()> {
    let text = fs::read_to_string(CPUINFO)?;
    changes::write(BARE, without_hypervisor(&text))?;
    changes::mount_over(BARE, CPUINFO)?;
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
