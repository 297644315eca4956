// SPDX-License-Identifier: MIT OR Apache-2.0
//! QEMU's command line.

use super::{Deadlines, snapshot::Snapshots, virtme::Virtme};
use std::{
    ffi::OsString,
    os::{
        fd::{AsRawFd, OwnedFd},
        unix::ffi::{OsStrExt, OsStringExt},
    },
    path::{Path, PathBuf},
};
use tramplab_host::QemuProgram;
use tramplab_host::lbr::LbrFormat;
use tramplab_model::run::{Accel, Arch, Clock};
use tramplab_protocol::message::PORT_NAME;

/// What to boot.
#[derive(Clone, Debug)]
pub struct Spec {
    pub qemu: QemuProgram,
    pub arch: Arch,
    pub accel: Accel,
    pub clock: Clock,
    pub kernel: PathBuf,
    pub initrd: PathBuf,
    /// Boots the host's own userspace instead of the initramfs.
    pub virtme: Option<Virtme>,
    pub cpus: u32,
    pub memory_mib: u32,
    /// Added to the kernel's command line.
    pub append: Vec<String>,
    /// The TCG plugin.
    pub plugin: Option<PathBuf>,
    /// Where guests are kept that have booted, for the next one of the kind.
    pub snapshots: Option<Snapshots>,
    /// The CPU's own branch records for a guest under KVM.
    pub lbr: Option<LbrFormat>,
    /// Where `console.log`, `qemu.log` and the plugin's traces go; exists.
    pub dir: PathBuf,
    pub deadlines: Deadlines,
}

/// The ends of pipes and sockets that QEMU inherits, under their numbers: none has a name that could be left behind.
pub struct Ends<'a> {
    pub console: &'a OwnedFd,
    pub link: &'a OwnedFd,
    pub monitor: Option<&'a OwnedFd>,
}

/// How a guest begins.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Start {
    Boot,
    /// With the state of another, which the monitor says where to find. QEMU wants the rest of the command line to be the same.
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
    if let Some(plugin) = &spec.plugin {
        argv.extend(["-plugin".into(), plugin_option(plugin, &spec.dir)]);
    }
    argv
}

/// The machine and what is attached to it: all that a guest sees, but for the kernel and the agent.
pub fn guest(spec: &Spec) -> Vec<OsString> {
    let mut argv = bare(spec);
    let mut add = |words: &[&str]| argv.extend(words.iter().map(OsString::from));
    // The console: the kernel's log, and nothing else.
    add(&["-serial", "chardev:console"]);
    // The agent's link, apart from the console: nothing the kernel prints gets into a frame.
    // The guest's notifications are handled at once, on the vCPU's thread: handled beside it, their effects would come at
    // any time.
    let ioeventfd = if spec.clock == Clock::Exact { ",ioeventfd=off" } else { "" };
    add(&["-device", &format!("virtio-serial-pci{ioeventfd}")]);
    add(&["-device", &format!("virtserialport,chardev=agent,name={PORT_NAME}")]);
    argv
}

/// Booted without a disk or a boot loader.
pub fn boot(spec: &Spec, initrd: &Path, line: &str) -> [OsString; 6] {
    let kernel = spec.kernel.clone().into();
    ["-kernel".into(), kernel, "-initrd".into(), initrd.into(), "-append".into(), line.into()]
}

/// A machine with nothing attached.
pub fn bare(spec: &Spec) -> Vec<OsString> {
    let Spec { arch, accel, clock, cpus, memory_mib, lbr, .. } = spec;
    let mut argv: Vec<OsString> = Vec::new();
    let mut add = |words: &[&str]| argv.extend(words.iter().map(OsString::from));
    // Nothing that was not asked for: no default devices, no network, no window, nothing from the user's files.
    add(&["-nodefaults", "-no-user-config", "-display", "none", "-nic", "none"]);
    // A panic reboots (`panic=-1`); that must be the end of QEMU, and is the kernel's last word.
    add(&["-no-reboot"]);
    add(&["-sandbox", SANDBOX]);
    add(&["-machine", board(*arch, *accel)]);
    add(&["-accel", accel.name(), "-cpu", &cpu_model(*accel, *arch, *lbr)]);
    if *clock == Clock::Exact {
        // Guest time is counted in instructions, 1 ns each; an idle guest jumps to its next timer. What else is random
        // or comes from the host's clock is fixed.
        add(&["-icount", "shift=0,sleep=off", "-seed", "1", "-rtc", "base=2000-01-01,clock=vm"]);
    }
    add(&["-smp", &cpus.to_string(), "-m", &format!("{memory_mib}M")]);
    argv
}

/// QEMU runs what we boot, which may be anything: it may start no process and gain no rights.
pub const SANDBOX: &str = "on,obsolete=deny,elevateprivileges=deny,spawn=deny,resourcecontrol=deny";

/// QEMU's `-machine`.
pub fn board(arch: Arch, accel: Accel) -> &'static str {
    match (arch, accel) {
        // The least that still has PCIe and ACPI power-off: `microvm` boots nothing under TCG. The ports of VMware, a USB
        // and an SMBus controller would only be probed; a disk controller moreover answers the firmware from a thread of
        // its own, and no two boots would be the same even with the exact clock.
        (Arch::X86_64, _) => "q35,usb=off,vmport=off,sata=off,smbus=off",
        (Arch::Arm64, Accel::Tcg) => "virt,gic-version=3",
        // What the host has.
        (Arch::Arm64, Accel::Kvm) => "virt,gic-version=host",
    }
}

pub fn plugin_option(plugin: &Path, dir: &Path) -> OsString {
    let mut option = OsString::from("file=");
    option.push(escaped(plugin));
    option.push(",dir=");
    option.push(escaped(dir));
    option
}

pub fn command_line(arch: Arch, append: &[String]) -> String {
    let console = match arch {
        Arch::X86_64 => "ttyS0",
        Arch::Arm64 => "ttyAMA0",
    };
    let mut line = format!("console={console} {}", own_words(arch).join(" "));
    for word in append {
        // The kernel takes the last of a repeated option, so a suite can undo what stands before.
        line.push(' ');
        line.push_str(word);
    }
    line
}

/// What is on every guest's command line but the console.
pub fn own_words(arch: Arch) -> [&'static str; 4] {
    let own = match arch {
        // Whether the timer interrupts in time is a question to the host, and on a loaded one the kernel panics at boot for
        // want of an answer.
        Arch::X86_64 => "no_timer_check",
        // Where the stack begins in a system call would be random, and as copies align themselves to it, so would the branches.
        Arch::Arm64 => "randomize_kstack_offset=off",
    };
    // `panic=-1`: reboot at once. An oops must not become a panic: it has a verdict of its own. `mitigations=off`:
    // they add branches, and which ones depends on CPU and kernel; a suite that wants them says so. The address space
    // stays randomised, as it is elsewhere: all symbols come from the guest. `cryptomgr.notests`: ciphers testing
    // themselves take a sixth of the boot under TCG.
    [own, "cryptomgr.notests", "panic=-1", "mitigations=off"]
}

/// A comma in an option's value is doubled (QEMU's qemu-option.c). Paths need not be UTF-8.
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
        // All that TCG can do: the same on every host, and boots as fast as any. To the kernel it is an AMD CPU that needs
        // no return thunks and no page-table isolation. Models named after real CPUs have features that TCG lacks, and
        // bring those CPUs' mitigations, which add branches.
        (Accel::Tcg, Arch::X86_64) => "max",
        // Emulating the architected pointer authentication takes most of the time.
        (Accel::Tcg, Arch::Arm64) => "max,pauth-impdef=on",
        // A measurement is of this machine's CPU.
        (Accel::Kvm, _) => "host",
    };
    match lbr.filter(|_| accel == Accel::Kvm) {
        // QEMU takes no other format than KVM's, and KVM lets no guest have it whose CPU is another model than the host's.
        Some(format) => format!("{model},pmu=on,lbr-fmt={format}"),
        None => model.to_owned(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn argv(arch: Arch, accel: Accel, plugin: Option<&str>) -> String {
        let spec = Spec {
            qemu: QemuProgram { program: "qemu".into(), arguments: vec![], environment: vec![] },
            arch,
            accel,
            clock: Clock::Free,
            kernel: "k".into(),
            initrd: "i".into(),
            virtme: None,
            cpus: 2,
            memory_mib: 512,
            append: vec!["mitigations=auto".to_owned(), "quiet".to_owned()],
            plugin: plugin.map(PathBuf::from),
            snapshots: None,
            lbr: None,
            dir: "runs/a,b".into(),
            deadlines: Deadlines::default(),
        };
        let (_, console) = crate::process::pipe().unwrap();
        let (_, link) = crate::process::socket_pair().unwrap();
        let ends = Ends { console: &console, link: &link, monitor: None };
        let words = arguments(&spec, &ends, Start::Boot);
        let text = words.iter().map(|word| word.to_string_lossy()).collect::<Vec<_>>().join(" ");
        text.replace(&format!("/dev/fd/{}", console.as_raw_fd()), "/dev/fd/CONSOLE")
            .replace(&format!("fd={}", link.as_raw_fd()), "fd=LINK")
    }

    #[test]
    fn what_every_machine_has() {
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
            // What the suite appends comes last, and so wins.
            assert!(argv.contains("panic=-1 mitigations=off mitigations=auto quiet -chardev"), "{argv}");
        }
    }

    #[test]
    fn what_differs() {
        for (arch, accel, words) in [
            (Arch::X86_64, Accel::Tcg, ["-machine q35", "-accel tcg -cpu max", "console=ttyS0 "]),
            (Arch::X86_64, Accel::Kvm, ["-machine q35", "-accel kvm -cpu host", "console=ttyS0 "]),
            (Arch::Arm64, Accel::Tcg, ["-machine virt", "-cpu max,pauth-impdef=on", "console=ttyAMA0 "]),
            (Arch::Arm64, Accel::Kvm, ["gic-version=host", "-accel kvm -cpu host", "console=ttyAMA0 "]),
        ] {
            let argv = argv(arch, accel, None);
            for part in words {
                assert!(argv.contains(part), "{part:?} is missing in {argv}");
            }
        }
    }

    #[test]
    fn branch_records_of_the_cpu_are_for_guests_under_kvm() {
        let format: Option<LbrFormat> = serde_json::from_str("5").unwrap();
        assert_eq!(cpu_model(Accel::Kvm, Arch::X86_64, format), "host,pmu=on,lbr-fmt=0x5");
        assert_eq!(cpu_model(Accel::Kvm, Arch::X86_64, None), "host");
        assert_eq!(cpu_model(Accel::Tcg, Arch::X86_64, format), "max");
    }

    #[test]
    fn commas_in_paths_are_doubled() {
        let argv = argv(Arch::X86_64, Accel::Tcg, Some("target/x,y.so"));
        assert!(argv.ends_with("-plugin file=target/x,,y.so,dir=runs/a,,b"), "{argv}");
    }

    #[test]
    fn paths_need_not_be_text() {
        let odd = OsString::from_vec(b"/a,\xff,b".to_vec());
        assert_eq!(escaped(Path::new(&odd)).into_vec(), b"/a,,\xff,,b");
    }
}
