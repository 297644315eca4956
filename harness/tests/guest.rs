// SPDX-License-Identifier: MIT OR Apache-2.0
//! Real guests through the library: what they measure, and how they die.

use std::{
    collections::BTreeSet,
    fs,
    path::{Path, PathBuf},
    time::Duration,
};
use tramplab::{
    branch,
    run::{Accel, Arch, ErrorKind, LbrWaste},
    vm::{Deadlines, QemuProgram, Spec, Vm, VmError, initramfs},
};
use tramplab_protocol::{
    Mechanism,
    message::{Command, Fault, LbrWasteRequest, Response},
    trace::{self, Trace},
};

fn from_env(name: &str) -> PathBuf {
    std::env::var_os(name).unwrap_or_else(|| panic!("{name} is not set: run `cargo xtask test`")).into()
}

fn spec(dir: &Path) -> Spec {
    let initrd = dir.join("initramfs.cpio");
    initramfs::build(&from_env("TRAMPLAB_AGENT"), &[], &initrd).unwrap();
    Spec {
        qemu: QemuProgram { program: from_env("TRAMPLAB_QEMU"), arguments: vec![], environment: vec![] },
        arch: Arch::X86_64,
        accel: Accel::Tcg,
        kernel: from_env("TRAMPLAB_TEST_KERNEL"),
        initrd,
        cpus: 1,
        memory_mib: 1024,
        append: vec![],
        plugin: Some(from_env("TRAMPLAB_PLUGIN")),
        dir: dir.to_owned(),
        deadlines: Deadlines { boot: Duration::from_secs(60), silence: Duration::from_secs(15) },
    }
}

const LIMIT: Duration = Duration::from_secs(60);

fn waste(vm: &mut Vm, dir: &Path, number: u64, mechanism: Mechanism) -> LbrWaste {
    let request = Command::LbrWaste(LbrWasteRequest { mechanism, hits: 8, warmup: 3 });
    let Response::LbrWaste(reply) = vm.request(request, LIMIT).unwrap().unwrap() else { panic!() };
    let trace = Trace::decode(&fs::read(trace::file_name(dir, number)).unwrap()).unwrap();
    let addresses = branch::symbols::addresses(&trace);
    let Response::Resolve { symbols } = vm.request(Command::Resolve { addresses }, LIMIT).unwrap().unwrap() else {
        panic!()
    };
    branch::lbr_waste(Arch::X86_64, &trace, &symbols.into_iter().flatten().collect(), &reply).unwrap()
}

#[test]
fn waste_repeats_bit_for_bit_and_across_boots() {
    let mechanisms = [Mechanism::Fentry, Mechanism::Fexit, Mechanism::KprobeMulti, Mechanism::KretprobeMulti];
    let mut seen = BTreeSet::new();
    for _boot in 0..2 {
        let dir = tempfile::tempdir().unwrap();
        let mut vm = Vm::boot(spec(dir.path())).unwrap();
        let mut number = 0;
        for _round in 0..2 {
            let mut digests = vec![];
            for mechanism in mechanisms {
                let waste = waste(&mut vm, dir.path(), number, mechanism);
                number += 1;
                for point in &waste.points {
                    println!("{mechanism}\n{}", branch::listing(point, &waste.function, branch::Model::IntelLbr, branch::Filter::of(branch::Branch::Any)));
                }
                digests.extend(waste.points.into_iter().map(|point| point.digest));
            }
            seen.insert(digests);
        }
        vm.power_off(LIMIT).unwrap();
    }
    assert_eq!(seen.len(), 1, "{seen:#?}");
}
