// SPDX-License-Identifier: MIT OR Apache-2.0
//! Runtime switches of this boot: words of the kernel's command line. The kernel, or the agent,
//! puts them into force; the agent tells those that it did not.

use crate::boot_words;
use crate::bpf::{self, BpfError, Link};
use crate::changes;
use nix::errno::Errno;
use std::fs::{self, File};
use std::io;
use std::os::fd::AsFd;
use tramplab_protocol::switches::{self, CGROUP_PROGRAM, Switches};

const CGROUP: &str = "/sys/fs/cgroup";
const SECURITY: &str = "/sys/kernel/security";

/// The switches of this boot. Without /proc there are none.
pub fn of_this_boot() -> Switches {
    Switches::of(boot_words::line())
}

/// Switches in force until this is dropped.
#[derive(Default)]
pub struct InForce {
    _cgroup: Option<Link>,
    /// The others, each with its word and the reason.
    pub not_taken: Vec<String>,
}

impl InForce {
    /// Puts the agent's own switch into force and checks those of the kernel.
    pub fn begin(switches: &Switches) -> InForce {
        let read = |name: &str| fs::read_to_string(format!("/proc/sys/{name}"));
        let mut not_taken = sysctls_not_taken(switches, read);
        if let Some(wanted) = &switches.lsm {
            let missing = lsm_not_taken(wanted, security_modules());
            not_taken.extend(missing.map(|why| format!("lsm={}: {why}", wanted.join(","))));
        }
        let mut cgroup = None;
        if switches.cgroup_program {
            match attach_to_root_cgroup() {
                Ok(link) => cgroup = Some(link),
                Err(why) => not_taken.push(format!("{CGROUP_PROGRAM}=1: {why}")),
            }
        }
        InForce { _cgroup: cgroup, not_taken }
    }
}

fn sysctls_not_taken(
    switches: &Switches,
    read: impl Fn(&str) -> io::Result<String>,
) -> Vec<String> {
    let why = |(name, value): (&String, &String)| {
        let why = match read(name) {
            Ok(now) if switches::is_taken(value, &now) => return None,
            Ok(_) if value.is_empty() => "a sysctl needs a value".to_owned(),
            Ok(now) => format!("the kernel did not take it, the value is {}", now.trim()),
            Err(error) if error.kind() == io::ErrorKind::NotFound => {
                "the kernel has no such sysctl".to_owned()
            }
            Err(error) => format!("failed to read it back: {error}"),
        };
        Some(format!("{}: {why}", switches::word(name, value)))
    };
    switches.sysctls.iter().filter_map(why).collect()
}

/// The active security modules: `capability,landlock,bpf`.
pub fn security_modules() -> io::Result<String> {
    let path = format!("{SECURITY}/lsm");
    if !fs::exists(&path)? {
        mounted("securityfs", SECURITY)?;
    }
    fs::read_to_string(path)
}

fn lsm_not_taken(wanted: &[String], active: io::Result<String>) -> Option<String> {
    let active = match active {
        Ok(active) => active,
        Err(error) => return Some(format!("failed to read the active modules: {error}")),
    };
    let is_active = |name: &&String| active.trim().split(',').any(|other| other == *name);
    let missing = wanted.iter().find(|name| !is_active(name))?;
    Some(format!("{missing} is not active, but {}", active.trim()))
}

/// Attaches a program that permits everything to the root cgroup. Inet sockets run it when they
/// connect.
fn attach_to_root_cgroup() -> Result<Link, String> {
    let cgroup = mounted("cgroup2", CGROUP).and_then(|()| File::open(CGROUP));
    let cgroup = cgroup.map_err(|error| format!("failed to open the root cgroup: {error}"))?;
    let attach = || {
        let program = bpf::load(bpf::CONNECT, 0, bpf::PERMIT)?;
        bpf::link_cgroup(program.as_fd(), cgroup.as_fd(), bpf::CONNECT.attach)
    };
    attach().map_err(|error: BpfError| error.to_string())
}

/// Mounts a kernel's file system. Another init may have mounted it.
fn mounted(kind: &str, target: &str) -> io::Result<()> {
    match changes::mount(kind, target, kind) {
        Ok(()) | Err(Errno::EBUSY) => Ok(()),
        Err(errno) => Err(errno.into()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn tells_sysctls_that_the_kernel_did_not_take() {
        let read = |name: &str| match name {
            "kernel/bpf_stats_enabled" => Ok("1\n".to_owned()),
            "net/core/bpf_jit_enable" => Ok("1\n".to_owned()),
            "net/ipv4/route/flush" => Err(io::ErrorKind::PermissionDenied.into()),
            _ => Err(io::ErrorKind::NotFound.into()),
        };
        for (line, expected) in [
            ("sysctl.kernel.bpf_stats_enabled=1", None),
            (
                "sysctl.net.core.bpf_jit_enable=0",
                Some(
                    "sysctl.net.core.bpf_jit_enable=0: the kernel did not take it, the value is 1",
                ),
            ),
            ("sysctl.kernel.nope=1", Some("sysctl.kernel.nope=1: the kernel has no such sysctl")),
            (
                "sysctl.kernel.bpf_stats_enabled=",
                Some("sysctl.kernel.bpf_stats_enabled=: a sysctl needs a value"),
            ),
            (
                "sysctl.net.ipv4.route.flush=1",
                Some("sysctl.net.ipv4.route.flush=1: failed to read it back: permission denied"),
            ),
        ] {
            let told = sysctls_not_taken(&Switches::of(line), read);
            assert_eq!(told, Vec::from_iter(expected.map(str::to_owned)), "{line}");
        }
    }

    #[test]
    fn tells_security_modules_that_are_not_active() {
        let told = |wanted: &[&str]| {
            let wanted: Vec<String> = wanted.iter().map(|&name| name.to_owned()).collect();
            lsm_not_taken(&wanted, Ok("capability,bpf\n".to_owned()))
        };
        assert_eq!(told(&["bpf"]), None);
        assert_eq!(told(&[]), None);
        let expected = "selinux is not active, but capability,bpf";
        assert_eq!(told(&["bpf", "selinux"]).as_deref(), Some(expected));
        let unknown = lsm_not_taken(&["bpf".to_owned()], Err(io::ErrorKind::NotFound.into()));
        assert!(unknown.unwrap().starts_with("failed to read the active modules"));
    }
}
