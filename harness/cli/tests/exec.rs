// SPDX-License-Identifier: MIT OR Apache-2.0
//! Runs a program of this host in a real guest: packs it with its libraries, has the agent run it,
//! and ends it whatever it does.

use crate::machine::{delivering, spec};
use std::{fs, path::Path, process, time::Duration};
use tramplab_analysis::branch::Model;
use tramplab_kernel::tree_tests::linked;
use tramplab_model::run::Arch;
use tramplab_protocol::delivery::Filters;
use tramplab_protocol::message::{Command, ExecEnd, ExecReply, ExecRequest, GuestError, Response};
use tramplab_vm::{Spec, Vm, initramfs};

const LIMIT: Duration = Duration::from_mins(5);

/// Runs a script in the guest; returns how it ended and its output.
fn sh(vm: &mut Vm, script: &str, seconds: u32, output_bytes: u64) -> (ExecReply, String) {
    let request = ExecRequest {
        argv: ["/own/sh", "-c", script].map(str::to_owned).into(),
        env: vec![("GREETING".to_owned(), "hello".to_owned())],
        cwd: "/own".to_owned(),
        seconds,
        output_bytes,
        deliver: None,
    };
    let mut said = String::new();
    match vm.exec(request, LIMIT, &mut |text| said.push_str(text)).unwrap() {
        Ok(Response::Exec(reply)) => (reply, said),
        other => panic!("{other:?}"),
    }
}

/// Packs a program and its libraries; it becomes `/own/NAME` in the guest.
pub fn pack(spec: &mut Spec, program: &Path, name: &str) {
    let root = spec.dir.join("root");
    let to = root.join("own").join(name);
    fs::create_dir_all(to.parent().unwrap()).unwrap();
    fs::copy(program, &to).unwrap();
    for library in linked::libraries(program, spec.arch, Path::new("/")).unwrap() {
        let to = root.join(library.strip_prefix("/").unwrap());
        fs::create_dir_all(to.parent().unwrap()).unwrap();
        fs::copy(&library, to).unwrap();
    }
    let with = spec.dir.join("with.cpio");
    initramfs::with_folder(&spec.initrd, &root, &with).unwrap();
    spec.initrd = with;
}

#[test]
fn runs_host_programs_in_the_guest_and_ends_them() {
    let dir = tempfile::tempdir().unwrap();
    let mut spec =
        spec(Arch::host().expect("guests are of the host's architecture here"), dir.path());
    pack(&mut spec, Path::new("/bin/sh"), "sh");
    let mut vm = Vm::boot(&spec).unwrap();

    let (reply, said) = sh(
        &mut vm,
        "echo $GREETING $PWD; echo to stderr >&2; printf 'no end ±'; exit 3",
        60,
        1 << 20,
    );
    assert_eq!(reply, ExecReply { end: ExecEnd::Exited(3), dropped: 0 });
    assert_eq!(said, "hello /own\nto stderr\nno end ±");

    // The kernel's own tests need all of these.
    let script = "while read -r a b c d; do echo $b $c; done < /proc/mounts; \
                  read -r flags < /sys/class/net/lo/flags; echo lo $flags; \
                  (exit 5); echo child $?; test -d /mnt && echo mnt";
    let (reply, said) = sh(&mut vm, script, 60, 1 << 20);
    assert_eq!(reply.end, ExecEnd::Exited(0), "{said}");
    for line in
        ["/sys/fs/cgroup cgroup2", "/sys/fs/bpf bpf", "/dev/shm tmpfs", "lo 0x9", "child 5", "mnt"]
    {
        assert!(said.lines().any(|said| said == line), "{line}: {said}");
    }

    let (reply, _) = sh(&mut vm, "kill -SEGV $$", 60, 1 << 20);
    assert_eq!(reply.end, ExecEnd::Signaled(11));

    // The limit cuts a flood at a line's end; the agent counts the bytes beyond it.
    let (reply, said) =
        sh(&mut vm, "i=0; while [ $i -lt 5000 ]; do echo line $i; i=$((i+1)); done", 60, 100);
    assert_eq!(reply.end, ExecEnd::Exited(0));
    assert!(
        said.ends_with('\n') && said.len() <= 100 && said.starts_with("line 0\nline 1\n"),
        "{said}"
    );
    let all: u64 = (0..5000).map(|i| format!("line {i}\n").len() as u64).sum();
    assert_eq!(reply.dropped + said.len() as u64, all);

    // Neither it nor its child would ever end, and the child holds the pipe open.
    let (reply, said) =
        sh(&mut vm, "(trap '' TERM; while :; do :; done) & echo began; wait", 2, 1 << 20);
    assert_eq!((reply.end, said.as_str()), (ExecEnd::TimedOut, "began\n"));
    let (reply, said) = sh(&mut vm, "(while :; do :; done) & echo left", 60, 1 << 20);
    assert_eq!((reply.end, said.as_str()), (ExecEnd::Exited(0), "left\n"));
    // Both are gone: no other shell runs.
    let script = "for f in /proc/[0-9]*/comm; do \
                  read -r n < $f && [ $n = sh ] && echo ${f%/comm}; done; echo self /proc/$$";
    let (_, said) = sh(&mut vm, script, 60, 1 << 20);
    let lines: Vec<&str> = said.lines().collect();
    assert!(matches!(lines[..], [one, own] if own == format!("self {one}")), "{said}");

    let request = ExecRequest {
        argv: vec!["/own/nothing".to_owned()],
        env: vec![],
        cwd: "/".to_owned(),
        seconds: 10,
        output_bytes: 1,
        deliver: None,
    };
    match vm.request(Command::Exec(request), LIMIT).unwrap() {
        Err(GuestError::Failed(message)) => {
            assert!(message.contains("failed to start /own/nothing"), "{message}")
        }
        other => panic!("{other:?}"),
    }
    vm.power_off(LIMIT).unwrap();
}

/// Runs a program in the guest, which must succeed; returns its output.
pub fn said(vm: &mut Vm, argv: &[&str], deliver: Option<Filters>) -> String {
    let request = ExecRequest {
        argv: argv.iter().map(|&word| word.to_owned()).collect(),
        env: vec![],
        cwd: "/".to_owned(),
        seconds: 240,
        output_bytes: 1 << 22,
        deliver,
    };
    let mut said = String::new();
    match vm.exec(request, LIMIT, &mut |text| said.push_str(text)).unwrap() {
        Ok(Response::Exec(reply)) => assert_eq!(reply.end, ExecEnd::Exited(0), "{said}"),
        other => panic!("{other:?}"),
    }
    said
}

/// Asks as the kernel tree's test of branch records does, in a plain guest and in one that delivers
/// records. Another process than the agent asks, and its program is loaded long after the plugin
/// was armed.
#[test]
fn delivering_guest_looks_like_a_machine_with_records_on_x86_64() {
    delivering_guest_looks_like_a_machine_with_records(Arch::X86_64, "cc");
}

#[test]
#[ignore = "full: the twin on x86-64 runs in every change"]
fn delivering_guest_looks_like_a_machine_with_records_on_arm64() {
    delivering_guest_looks_like_a_machine_with_records(Arch::Arm64, "aarch64-linux-gnu-gcc");
}

fn delivering_guest_looks_like_a_machine_with_records(arch: Arch, compiler: &str) {
    let dir = tempfile::tempdir().unwrap();
    let mut spec = delivering(arch, dir.path());
    let program = dir.path().join("asks");
    let source = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/machine/asks_for_branches.c");
    let made = process::Command::new(compiler)
        .args(["-static", "-o"])
        .arg(&program)
        .arg(source)
        .status()
        .unwrap();
    assert!(made.success());
    pack(&mut spec, &program, "asks");
    let mut vm = Vm::boot(&spec).unwrap();
    let mut asks = |deliver| said(&mut vm, &["/own/asks"], deliver);
    // x86-64 has no PMU here, arm64 has one without branch records. Only x86-64 says who is a guest.
    let missing = nix::errno::Errno::ENOENT as i32;
    let (cpus, branches, cycles) = match arch {
        Arch::X86_64 => (1, missing, missing),
        Arch::Arm64 => (0, nix::errno::Errno::EOPNOTSUPP as i32, 0),
    };
    let nothing =
        format!("branches {branches} cycles {cycles}\nsnapshot -{missing} newest is not\n");
    assert_eq!(asks(None), format!("cpus {cpus} guests {cpus} {nothing}"));
    let model = Model::choose(None, arch);
    let filters = model.deliverable();
    // Only an event that asks for branches opens; the snapshot has two records of 24 bytes.
    let given =
        format!("cpus {cpus} guests 0 branches 0 cycles {cycles}\nsnapshot 48 newest is there\n");
    assert_eq!(asks(Some(filters)), given);
    // The recording ends with the program, and its trace is written.
    assert!(
        dir.path().join("trace-0000.bin").is_file() && !dir.path().join("trace-0001.bin").exists()
    );
    assert_eq!(asks(None), format!("cpus {cpus} guests 0 {nothing}"));
    vm.power_off(LIMIT).unwrap();
}
