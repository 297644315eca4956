// SPDX-License-Identifier: MIT OR Apache-2.0
//! Restored guests measure like booted ones, and faulty guests are not kept.

use super::{LIMIT, commands, of_any_boot, waste};
use crate::{command::write_script, exec, machine::spec};
use std::{
    collections::BTreeSet,
    fs,
    path::{Path, PathBuf},
    time::{Duration, SystemTime, UNIX_EPOCH},
};
use tramplab_model::run::{Arch, LbrWaste};
use tramplab_protocol::{Mechanism, message::SHELL};
use tramplab_vm::{Snapshots, Vm};

/// Says the time and a random number.
const MOMENT: &str = "/bin/busybox date +%s; /bin/busybox cat /proc/sys/kernel/random/uuid";

/// The start of a guest, whether it is restored, and what its log says.
type Start = (&'static str, bool, Option<&'static str>);

const STARTS: [Start; 6] = [
    ("boots, is kept, and is restored for the cell", true, None),
    ("restored", true, None),
    ("the snapshot is damaged", true, Some("its checksum is not what it was")),
    ("restored again", true, None),
    ("a QEMU that restores nothing", false, Some("out of luck")),
    ("a cache that is a file", false, Some("no snapshot was kept: ")),
];

#[test]
fn restored_guest_measures_the_same_on_x86_64() {
    restored_guest_measures_the_same(Arch::X86_64, &STARTS[..3]);
}

#[test]
#[ignore = "full: two more boots"]
fn measures_the_same_whatever_snapshots_do_on_x86_64() {
    restored_guest_measures_the_same(Arch::X86_64, &STARTS);
}

#[test]
#[ignore = "full: the twin on x86-64 runs in every change"]
fn restored_guest_measures_the_same_on_arm64() {
    restored_guest_measures_the_same(Arch::Arm64, &STARTS);
}

fn restored_guest_measures_the_same(arch: Arch, starts: &[Start]) {
    let cache = tempfile::tempdir().unwrap();
    let mut seen = BTreeSet::new();
    let mut random = BTreeSet::new();
    for &(start, restored, noted) in starts {
        let dir = tempfile::tempdir().unwrap();
        let mut spec = spec(arch, dir.path());
        commands::add_shell(arch, &mut spec);
        let mut snapshots =
            Snapshots { cache: cache.path().to_owned(), contents: "this test's".to_owned() };
        match start {
            "the snapshot is damaged" => flip_a_bit(&kept(cache.path()).unwrap()),
            "a QEMU that restores nothing" => {
                spec.qemu.program = refusing(&spec.qemu.program, dir.path())
            }
            "a cache that is a file" => snapshots.cache = dir.path().join("initramfs.cpio"),
            _ => {}
        }
        spec.snapshots = Some(snapshots);
        let (mut vm, facts) = Vm::start(&spec).unwrap();
        let log = fs::read_to_string(dir.path().join("snapshot.log")).unwrap_or_default();
        assert_eq!(vm.restored(), restored, "{start}: {log}");
        assert!(noted.map_or(log.is_empty(), |words| log.contains(words)), "{start}: {log}");
        let measured: Vec<LbrWaste> = (0..)
            .zip([Mechanism::Fexit, Mechanism::Kretprobe])
            .map(|(number, mechanism)| waste(arch, &mut vm, dir.path(), number, mechanism))
            .collect();
        seen.insert(of_any_boot(arch, &measured));
        let said = exec::said(&mut vm, &[SHELL, "sh", "-c", MOMENT], None);
        let (seconds, drawn) = said.split_once('\n').unwrap();
        assert!(facts.btf_bytes > 0, "{start}: {facts:?}");
        // The wall clock is right again, within the seconds that the guest takes.
        let now = SystemTime::now().duration_since(UNIX_EPOCH).unwrap();
        let of_guest = Duration::from_secs(seconds.parse().unwrap());
        assert!(now.abs_diff(of_guest) < Duration::from_secs(60), "{start}: {now:?} {said}");
        assert!(random.insert(drawn.to_owned()), "{start}: {random:?}");
        vm.power_off(LIMIT).unwrap();
        let log = fs::read_to_string(dir.path().join("console.log")).unwrap();
        assert!(log.contains("Linux version"), "{start}: {log}");
        // Useless snapshots are removed.
        assert_eq!(kept(cache.path()).is_some(), restored, "{start}");
    }
    assert_eq!(seen.len(), 1, "{seen:#?}");
}

/// Each fault is a word on the kernel's command line. The guest measures, but is no model for
/// others.
#[test]
#[ignore = "full: several guests"]
fn keeps_no_snapshot_of_a_faulty_guest() {
    for (word, clock_source, noted) in [
        ("tsc=unstable", "hpet", "Marking TSC unstable due to boot parameter"),
        ("clocksource=hpet", "hpet", "its clock source is hpet, not tsc"),
        ("maxcpus=1", "tsc", "it runs on 1 CPUs, not on 2"),
    ] {
        let (cache, dir) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
        let mut spec = spec(Arch::X86_64, dir.path());
        spec.append.push(word.to_owned());
        spec.cpus = 2;
        spec.snapshots =
            Some(Snapshots { cache: cache.path().to_owned(), contents: "this test's".to_owned() });
        let (mut vm, facts) = Vm::start(&spec).unwrap();
        let log = fs::read_to_string(dir.path().join("snapshot.log")).unwrap_or_default();
        assert!(log.contains(noted), "{word}: {log}");
        assert_eq!((vm.restored(), kept(cache.path())), (false, None), "{word}: {log}");
        assert!(facts.clocksource.starts_with(clock_source), "{word}: {facts:?}");
        // The guest still measures.
        assert!(!waste(Arch::X86_64, &mut vm, dir.path(), 0, Mechanism::Fexit).points.is_empty());
        vm.power_off(LIMIT).unwrap();
    }
}

/// Returns the only snapshot in the cache.
fn kept(cache: &Path) -> Option<PathBuf> {
    let entries =
        fs::read_dir(cache.join("snapshot")).ok()?.map(|entry| entry.unwrap().path().join("state"));
    let mut kept: Vec<PathBuf> = entries.filter(|state| state.exists()).collect();
    assert!(kept.len() < 2, "{kept:?}");
    kept.pop()
}

/// A QEMU that boots guests but restores none.
fn refusing(program: &Path, dir: &Path) -> PathBuf {
    let path = dir.join("qemu");
    let fails = "case \"$*\" in *-incoming*) echo out of luck >&2; exit 1;; esac";
    write_script(&path, &format!("#!/bin/sh\n{fails}\nexec {} \"$@\"\n", program.display()));
    path
}

fn flip_a_bit(file: &Path) {
    use std::os::unix::fs::FileExt;
    let file = fs::File::options().read(true).write(true).open(file).unwrap();
    let at = file.metadata().unwrap().len() - 1000;
    let mut byte = [0];
    file.read_exact_at(&mut byte, at).unwrap();
    file.write_all_at(&[byte[0] ^ 1], at).unwrap();
}
