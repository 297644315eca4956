// SPDX-License-Identifier: MIT OR Apache-2.0
//! The program on an arm64 machine: Debian's packages unpacked as its root, and in it an
//! installation, cross-compiled here.

use super::{
    LIMIT, Steps,
    kernel::kernel,
    machine::{Machine, SHARED, Step},
};
use crate::command::{repository, stored};
use std::{
    env, fs,
    path::{Path, PathBuf},
    process::Command,
};
use tramplab_host::{
    Cache, busybox,
    debian::{Debian, Package},
    rust::target,
};
use tramplab_lab::{artifacts, place};
use tramplab_model::run::{Accel, Arch, Outcome};

const ARCH: Arch = Arch::Arm64;
const QEMU: &str = "qemu-system-arm";
/// With all that they need. The program needs QEMU; the others make folders and run the script.
const PACKAGES: [&str; 4] = ["base-files", "coreutils", "dash", QEMU];
/// Beside the agent's folder. Optimised, the program would build for minutes.
const FOLDER: &str = "target/host-arm64";

/// The root of an arm64 machine. The cache keeps it.
fn root(cache: &Cache) -> PathBuf {
    const KIND: &str = "test-root";
    let name = PACKAGES.join("+");
    let is_ours = |entry: &PathBuf| entry.to_string_lossy().contains(&format!("{name}="));
    cache.list(KIND).into_iter().rfind(is_ours).unwrap_or_else(|| {
        let debian =
            Debian::of_suite(cache, ARCH.platform().debian, "trixie", &mut |_| ()).unwrap();
        let closure = |package: &&str| debian.closure(package).unwrap();
        let mut packages: Vec<Package> = PACKAGES.iter().flat_map(closure).collect();
        packages.sort_by(|a, b| a.name.cmp(&b.name));
        packages.dedup();
        let qemu = packages.iter().find(|package| package.name == QEMU).unwrap();
        let key = format!("{name}={}", qemu.version);
        cache
            .entry(KIND, &key, |folder| debian.unpack(&packages, folder, &|_, _| true, &mut |_| ()))
            .unwrap()
    })
}

/// Cross-compiles the program, and installs it in the folder that the machine sees as [`SHARED`].
fn install(cache: &Cache, shared: &Path) {
    let repository = repository();
    let target = target(ARCH);
    let mut cargo = Command::new(artifacts::cargo());
    cargo.current_dir(repository).envs(artifacts::variables(cache, ARCH).unwrap());
    cargo.args(["build", "--package", "tramplab", "--package", "tramplab-plugin"]);
    cargo.args(["--target", &target, "--target-dir", FOLDER]);
    assert!(cargo.status().unwrap().success());

    let built = repository.join(FOLDER).join(target).join("debug");
    let prefix = shared.join("tramplab");
    let copy = |from: &Path, to: &str| {
        let to = prefix.join(to);
        fs::create_dir_all(to.parent().unwrap()).unwrap();
        fs::copy(from, to).unwrap();
    };
    copy(&built.join("tramplab"), "bin/tramplab");
    copy(&built.join(place::PLUGIN), &format!("{}/{}", place::LIB, place::PLUGIN));
    for arch in Arch::ALL {
        let agent = env::var_os(format!("TRAMPLAB_AGENT_{}", arch.name().to_uppercase()));
        let agent = PathBuf::from(agent.expect("run `cargo xtask test`"));
        copy(&agent, &format!("{}/{}", place::LIB, place::agent_name(arch)));
    }
    let share = prefix.join(place::SHARE);
    fs::create_dir_all(&share).unwrap();
    for folder in ["configs", "kernels"] {
        let mut cp = Command::new("cp");
        assert!(cp.arg("-r").arg(repository.join(folder)).arg(&share).status().unwrap().success());
    }
    let image = env::var_os("TRAMPLAB_TEST_KERNEL_ARM64").expect("run `cargo xtask test`");
    for file in ["vmlinuz", "config"] {
        fs::copy(Path::new(&image).with_file_name(file), shared.join(file)).unwrap();
    }
    // `shell` needs it, and the machine has no network.
    let busybox = busybox::provision(cache, ARCH, &mut |_| ()).unwrap();
    let root = cache.root();
    let below = busybox.strip_prefix(root).unwrap();
    let entry: PathBuf = below.components().take(2).collect();
    let to = shared.join("cache").join(entry.parent().unwrap());
    fs::create_dir_all(&to).unwrap();
    let mut cp = Command::new("cp");
    assert!(cp.arg("-r").arg(root.join(entry)).arg(to).status().unwrap().success());
}

#[test]
#[ignore = "full: compiles the program for arm64, boots guests in a guest"]
fn kvm_runs_guests_on_an_arm64_machine() {
    let cache = Cache::open(true).unwrap();
    let machine = Machine::arm64(root(&cache));
    install(&cache, machine.shared());
    // Each byte on the console takes milliseconds here. To the kernel 20 s of that are a lockup.
    let suite = "name: t\ndescription: d\nkernels: [a]\nmachine: { append: [quiet] }\ntests:\n  \
                 - attach: { mechanisms: [fentry], functions: [1], rounds: 1 }\n  \
                 - trigger: { mechanisms: [fentry] }\n";
    fs::write(machine.shared().join("suite.yaml"), suite).unwrap();
    let program = format!("{SHARED}/tramplab/bin/tramplab");
    let vm_test =
        format!("{program} vm-test --suite {SHARED}/suite.yaml --kernel {SHARED}/vmlinuz");
    let shell = format!("{program} shell --append quiet --accel kvm --kernel {SHARED}/vmlinuz");
    let script = format!(
        "mkdir -p /whole/root/.cache; cp -r {SHARED}/cache /whole/root/.cache/tramplab\n\
         step works {program} doctor --json\n\
         step cells {vm_test} --accel auto --runs {SHARED}/runs\n\
         mount -t tracefs tracefs /whole/sys/kernel/tracing\n\
         step here {program} vm-test --vm none --yes --suite {SHARED}/suite.yaml \
         --runs {SHARED}/here\n\
         step shell {shell} --cpus 2 -- 'uname -m; nproc; exit 7'\n\
         rm /dev/kvm\n\
         step absent {program} doctor --json\n\
         step absent-kvm {vm_test} --accel kvm\n\
         step absent-auto {vm_test} --accel auto --list\n"
    );
    let steps = Steps(machine.run(&kernel(ARCH), &script, LIMIT));

    assert_eq!(steps.kvm("works"), ("ok".to_owned(), None));
    steps.assert_code("cells", 0);
    let run = stored(&machine.shared().join("runs"));
    assert_eq!(run.cells.len(), 2);
    for cell in &run.cells {
        let id = &cell.id;
        assert_eq!((&cell.outcome, id.arch, id.accel), (&Outcome::Pass, ARCH, Accel::Kvm));
    }
    steps.assert_code("here", 0);
    let run = stored(&machine.shared().join("here"));
    assert_eq!(run.cells.len(), 2);
    for cell in &run.cells {
        let id = &cell.id;
        assert_eq!((&cell.outcome, id.arch, id.accel), (&Outcome::Pass, ARCH, Accel::Native));
    }
    steps.assert_code("shell", 7);
    assert_eq!(steps.of("shell").out, "aarch64\n2\n");

    // On arm64 KVM is a part of the kernel: no command brings it.
    assert_eq!(steps.kvm("absent"), ("missing".to_owned(), None));
    steps.assert_code("absent-kvm", 3);
    let Step { err, .. } = steps.of("absent-kvm");
    assert!(err.contains("there is no /dev/kvm"), "{err}");
    steps.assert_code("absent-auto", 0);
    let Step { out, .. } = steps.of("absent-auto");
    assert_eq!(out, "arm64/vmlinuz/tcg/attach/fentry/1\narm64/vmlinuz/tcg/trigger/fentry\n");
}
