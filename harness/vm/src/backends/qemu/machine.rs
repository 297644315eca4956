// SPDX-License-Identifier: MIT OR Apache-2.0
//! QEMU's command line.

use crate::Spec;
use std::{
    ffi::OsString,
    os::{
        fd::{AsRawFd, OwnedFd},
        unix::ffi::{OsStrExt, OsStringExt},
    },
    path::Path,
};
use tramplab_host::lbr::LbrFormat;
use tramplab_model::run::{Accel, Arch, Clock, with_words};
use tramplab_protocol::message::PORT_NAME;

/// The ends of pipes and sockets that QEMU inherits by number. None has a name that could be left
/// behind.
pub struct Ends<'a> {
    pub console: &'a OwnedFd,
    pub link: &'a OwnedFd,
    pub monitor: Option<&'a OwnedFd>,
}

/// How a guest begins.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Start {
    Boot,
    /// With a saved state, whose path the monitor sends. QEMU needs the same command line
    /// otherwise.
    Restore,
}

/// QEMU's arguments.
pub fn arguments(spec: &Spec, ends: &Ends, start: Start) -> Vec<OsString> {
    let mut argv = guest(spec);
    argv.extend(boot(spec, &spec.initrd, &command_line(spec.arch, &spec.append)));
    let mut add = |words: &[&str]| argv.extend(words.iter().map(OsString::from));
    add(&["-chardev", &format!("file,id=console,path=/dev/fd/{}", ends.console.as_raw_fd())]);
    add(&["-chardev", &format!("socket,id=agent,fd={}", ends.link.as_raw_fd())]);
    if let Some(monitor) = ends.monitor {
        add(&["-chardev", &format!("socket,id=monitor,fd={}", monitor.as_raw_fd())]);
        add(&["-mon", "chardev=monitor,mode=control"]);
    }
    if start == Start::Restore {
        add(&["-incoming", "defer"]);
    }
    argv.extend(plugin(spec).into_iter().flatten());
    argv
}

/// The machine and its devices: all that a guest sees, except the kernel and the agent.
pub fn guest(spec: &Spec) -> Vec<OsString> {
    let mut argv = bare(spec);
    let mut add = |words: &[&str]| argv.extend(words.iter().map(OsString::from));
    // The console carries only the kernel's log.
    add(&["-serial", "chardev:console"]);
    // The agent's link is separate from the console: the kernel's output cannot get into a frame.
    // With the exact clock, the vCPU's thread handles the guest's notifications at once. Another
    // thread would handle them at a random time.
    let ioeventfd = if spec.clock == Clock::Exact { ",ioeventfd=off" } else { "" };
    add(&["-device", &format!("virtio-serial-pci{ioeventfd}")]);
    add(&["-device", &format!("virtserialport,chardev=agent,name={PORT_NAME}")]);
    argv
}

/// Boots a kernel without a disk or a boot loader.
pub fn boot(spec: &Spec, initrd: &Path, line: &str) -> [OsString; 6] {
    let kernel = spec.kernel.clone().into();
    ["-kernel".into(), kernel, "-initrd".into(), initrd.into(), "-append".into(), line.into()]
}

/// A machine without devices.
pub fn bare(spec: &Spec) -> Vec<OsString> {
    let Spec { arch, accel, clock, cpus, memory_mib, .. } = spec;
    let mut argv: Vec<OsString> = Vec::new();
    let mut add = |words: &[&str]| argv.extend(words.iter().map(OsString::from));
    // No default devices, network, window or user configuration.
    add(&["-nodefaults", "-no-user-config", "-display", "none", "-nic", "none"]);
    // A panic reboots (`panic=-1`), which must end QEMU.
    add(&["-no-reboot"]);
    add(&["-sandbox", SANDBOX]);
    add(&["-machine", board(*arch, *accel)]);
    add(&["-accel", accel.name(), "-cpu", &spec.cpu_model()]);
    if *clock == Clock::Exact {
        // Guest time counts instructions, 1 ns each. An idle guest jumps to its next timer. The
        // seed and the real-time clock are fixed.
        add(&["-icount", "shift=0,sleep=off", "-seed", "1", "-rtc", "base=2000-01-01,clock=vm"]);
    }
    add(&["-smp", &cpus.to_string(), "-m", &format!("{memory_mib}M")]);
    argv
}

/// QEMU may run any kernel: it must not start processes or gain rights.
pub const SANDBOX: &str = "on,obsolete=deny,elevateprivileges=deny,spawn=deny,resourcecontrol=deny";

/// QEMU's `-machine`.
pub fn board(arch: Arch, accel: Accel) -> &'static str {
    match (arch, accel) {
        // The smallest machine with PCIe and ACPI power-off: `microvm` does not boot under TCG. The
        // kernel would only probe VMware's ports and the USB and SMBus controllers. A disk
        // controller answers the firmware from its own thread, so boots would differ even with the
        // exact clock.
        (Arch::X86_64, _) => "q35,usb=off,vmport=off,sata=off,smbus=off",
        (Arch::Arm64, Accel::Tcg) => "virt,gic-version=3",
        // The host's interrupt controller.
        (Arch::Arm64, Accel::Kvm | Accel::Native) => "virt,gic-version=host",
    }
}

/// The guest's plugin, if it has one.
pub fn plugin(spec: &Spec) -> Option<[OsString; 2]> {
    let plugin = spec.plugin.as_ref()?;
    let mut option = OsString::from("file=");
    option.push(escaped(plugin));
    option.push(",dir=");
    option.push(escaped(&spec.dir));
    if let Some(played) = &spec.played {
        option.push(",lbr=");
        option.push(played);
    }
    if let Some(parts) = &spec.modelled {
        option.push(format!(",cpu={parts}"));
    }
    Some(["-plugin".into(), option])
}

pub fn command_line(arch: Arch, append: &[String]) -> String {
    let console = arch.platform().console.name;
    format!("console={console} {}", words(arch, append).join(" "))
}

/// The words on a guest's command line, except the console: tramplab's own, then the suite's. An
/// option of the suite replaces tramplab's.
pub fn words(arch: Arch, append: &[String]) -> Vec<String> {
    with_words(&own_words(arch).map(str::to_owned), append)
}

fn own_words(arch: Arch) -> [&'static str; 4] {
    let own = match arch {
        // On a loaded host the timer interrupts late, and the kernel's check would panic at boot.
        Arch::X86_64 => "no_timer_check",
        // A random stack offset in system calls changes the alignment of copies, and so the
        // branches.
        Arch::Arm64 => "randomize_kstack_offset=off",
    };
    // `panic=-1`: reboot at once. An oops must not become a panic: it is reported as such.
    // `mitigations=off`: mitigations add branches that depend on CPU and kernel; a suite can enable
    // them. Address space randomization stays on: all symbols come from the guest.
    // `cryptomgr.notests`: self-tests of ciphers take a sixth of the boot under TCG.
    [own, "cryptomgr.notests", "panic=-1", "mitigations=off"]
}

/// Doubles the commas in an option's value (QEMU's qemu-option.c). Paths need not be UTF-8.
pub fn escaped(path: &Path) -> OsString {
    let mut bytes = Vec::new();
    for &byte in path.as_os_str().as_bytes() {
        bytes.push(byte);
        if byte == b',' {
            bytes.push(byte);
        }
    }
    OsString::from_vec(bytes)
}

/// QEMU's `-cpu`.
pub fn cpu_model(accel: Accel, arch: Arch, lbr: Option<LbrFormat>) -> String {
    let model = match (accel, arch) {
        // All of TCG's features: the same on every host, and no model boots faster. The kernel sees
        // an AMD CPU that needs no return thunks and no page-table isolation. Models named after
        // real CPUs have features that TCG lacks, and mitigations that add branches.
        (Accel::Tcg, Arch::X86_64) => "max",
        // Emulating the architected pointer authentication would take most of the time.
        (Accel::Tcg, Arch::Arm64) => "max,pauth-impdef=on",
        // Under KVM a measurement is one of this machine's CPU.
        (Accel::Kvm | Accel::Native, _) => "host",
    };
    match lbr.filter(|_| accel == Accel::Kvm) {
        // QEMU accepts only KVM's format. KVM allows it only to guests with the host's CPU model.
        Some(format) => format!("{model},pmu=on,lbr-fmt={format}"),
        None => model.to_owned(),
    }
}

impl Spec {
    pub(crate) fn cpu_model(&self) -> String {
        let usual = || cpu_model(self.accel, self.arch, self.lbr);
        self.cpu.clone().filter(|_| self.accel == Accel::Tcg).unwrap_or_else(usual)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::path::PathBuf;

    fn argv(arch: Arch, accel: Accel, plugin: Option<&str>) -> String {
        let plugin = plugin.map(PathBuf::from);
        let spec = Spec { plugin, dir: "runs/a,b".into(), ..Spec::example(arch, accel) };
        let (_, console) = crate::process::pipe().unwrap();
        let (_, link) = crate::process::socket_pair().unwrap();
        let ends = Ends { console: &console, link: &link, monitor: None };
        let words = arguments(&spec, &ends, Start::Boot);
        let text = words.iter().map(|word| word.to_string_lossy()).collect::<Vec<_>>().join(" ");
        text.replace(&format!("/dev/fd/{}", console.as_raw_fd()), "/dev/fd/CONSOLE")
            .replace(&format!("fd={}", link.as_raw_fd()), "fd=LINK")
    }

    #[test]
    fn gives_every_machine_the_same_devices() {
        for (arch, accel) in [
            (Arch::X86_64, Accel::Tcg),
            (Arch::X86_64, Accel::Kvm),
            (Arch::Arm64, Accel::Tcg),
            (Arch::Arm64, Accel::Kvm),
        ] {
            let argv = argv(arch, accel, None);
            for part in [
                "-nodefaults -no-user-config -display none -nic none -no-reboot",
                "-sandbox on,",
                "-smp 2 -m 512M",
                "-chardev file,id=console,path=/dev/fd/CONSOLE -chardev socket,id=agent,fd=LINK",
                "-serial chardev:console -device virtio-serial-pci",
                "-device virtserialport,chardev=agent,name=tramplab.agent",
                "-kernel k -initrd i",
            ] {
                assert!(argv.contains(part), "{part:?} is missing in {argv}");
            }
            assert!(!argv.contains("-plugin"), "{argv}");
            // The suite's option replaces tramplab's.
            let line = " panic=-1 mitigations=auto dyndbg=a b -chardev";
            assert!(argv.contains(line), "{argv}");
        }
    }

    #[test]
    fn differs_by_architecture_and_accelerator() {
        for (arch, accel, words) in [
            (Arch::X86_64, Accel::Tcg, ["-machine q35", "-accel tcg -cpu max", "console=ttyS0 "]),
            (Arch::X86_64, Accel::Kvm, ["-machine q35", "-accel kvm -cpu host", "console=ttyS0 "]),
            (
                Arch::Arm64,
                Accel::Tcg,
                ["-machine virt", "-cpu max,pauth-impdef=on", "console=ttyAMA0 "],
            ),
            (
                Arch::Arm64,
                Accel::Kvm,
                ["gic-version=host", "-accel kvm -cpu host", "console=ttyAMA0 "],
            ),
        ] {
            let argv = argv(arch, accel, None);
            for part in words {
                assert!(argv.contains(part), "{part:?} is missing in {argv}");
            }
        }
    }

    #[test]
    fn gives_branch_records_only_to_guests_under_kvm() {
        let format: Option<LbrFormat> = serde_json::from_str("5").unwrap();
        assert_eq!(cpu_model(Accel::Kvm, Arch::X86_64, format), "host,pmu=on,lbr-fmt=0x5");
        assert_eq!(cpu_model(Accel::Kvm, Arch::X86_64, None), "host");
        assert_eq!(cpu_model(Accel::Tcg, Arch::X86_64, format), "max");
    }

    #[test]
    fn doubles_commas_in_paths() {
        let argv = argv(Arch::X86_64, Accel::Tcg, Some("target/x,y.so"));
        assert!(argv.ends_with("-plugin file=target/x,,y.so,dir=runs/a,,b"), "{argv}");
    }

    #[test]
    fn accepts_paths_that_are_not_utf8() {
        let odd = OsString::from_vec(b"/a,\xff,b".to_vec());
        assert_eq!(escaped(Path::new(&odd)).into_vec(), b"/a,,\xff,,b");
    }
}
