// SPDX-License-Identifier: MIT OR Apache-2.0
//! A program of this host in a real guest: packed with what it is linked to, run by the agent, and ended whatever it does.

mod machine;

use machine::spec;
use std::{fs, time::Duration};
use tramplab::{
    run::Arch,
    selftests::linked,
    vm::{Vm, initramfs},
};
use tramplab_protocol::message::{Command, ExecEnd, ExecReply, ExecRequest, GuestError, Response};

const LIMIT: Duration = Duration::from_secs(90);

/// What the shell did in the guest, and said.
fn sh(vm: &mut Vm, script: &str, seconds: u32, output_bytes: u64) -> (ExecReply, String) {
    let request = ExecRequest {
        argv: ["/own/sh", "-c", script].map(str::to_owned).into(),
        env: vec![("GREETING".to_owned(), "hello".to_owned())],
        cwd: "/own".to_owned(),
        seconds,
        output_bytes,
    };
    let mut said = String::new();
    match vm.exec(request, LIMIT, &mut |text| said.push_str(text)).unwrap() {
        Ok(Response::Exec(reply)) => (reply, said),
        other => panic!("{other:?}"),
    }
}

#[test]
fn a_program_of_the_host_runs_in_the_guest_and_is_ended() {
    let dir = tempfile::tempdir().unwrap();
    let mut spec = spec(Arch::host().expect("guests are of the host's architecture here"), dir.path());
    let root = dir.path().join("root");
    let program = root.join("own/sh");
    fs::create_dir_all(program.parent().unwrap()).unwrap();
    fs::copy("/bin/sh", &program).unwrap();
    for library in linked::libraries(&program, spec.arch).unwrap() {
        let to = root.join(library.strip_prefix("/").unwrap());
        fs::create_dir_all(to.parent().unwrap()).unwrap();
        fs::copy(&library, to).unwrap();
    }
    let with = dir.path().join("with.cpio");
    initramfs::with_folder(&spec.initrd, &root, &with).unwrap();
    spec.initrd = with;
    let mut vm = Vm::boot(&spec).unwrap();

    let (reply, said) =
        sh(&mut vm, "echo $GREETING $PWD; echo to stderr >&2; printf 'no end ±'; exit 3", 60, 1 << 20);
    assert_eq!(reply, ExecReply { end: ExecEnd::Exited(3), dropped: 0 });
    assert_eq!(said, "hello /own\nto stderr\nno end ±");

    // What the kernel's tests take for granted.
    let script = "while read -r a b c d; do echo $b $c; done < /proc/mounts; read -r flags < /sys/class/net/lo/flags; echo lo $flags; \
                  (exit 5); echo child $?; test -d /mnt && echo mnt";
    let (reply, said) = sh(&mut vm, script, 60, 1 << 20);
    assert_eq!(reply.end, ExecEnd::Exited(0), "{said}");
    for line in ["/sys/fs/cgroup cgroup2", "/sys/fs/bpf bpf", "/dev/shm tmpfs", "lo 0x9", "child 5", "mnt"] {
        assert!(said.lines().any(|said| said == line), "{line}: {said}");
    }

    let (reply, _) = sh(&mut vm, "kill -SEGV $$", 60, 1 << 20);
    assert_eq!(reply.end, ExecEnd::Signaled(11));

    // A flood: what is beyond the limit is counted, and no line is cut.
    let (reply, said) = sh(&mut vm, "i=0; while [ $i -lt 5000 ]; do echo line $i; i=$((i+1)); done", 60, 100);
    assert_eq!(reply.end, ExecEnd::Exited(0));
    assert!(said.ends_with('\n') && said.len() <= 100 && said.starts_with("line 0\nline 1\n"), "{said}");
    let all: u64 = (0..5000).map(|i| format!("line {i}\n").len() as u64).sum();
    assert_eq!(reply.dropped + said.len() as u64, all);

    // It would never end, nor would what it left behind; the pipe is held open all the while.
    let (reply, said) = sh(&mut vm, "(trap '' TERM; while :; do :; done) & echo began; wait", 2, 1 << 20);
    assert_eq!((reply.end, said.as_str()), (ExecEnd::TimedOut, "began\n"));
    let (reply, said) = sh(&mut vm, "(while :; do :; done) & echo left", 60, 1 << 20);
    assert_eq!((reply.end, said.as_str()), (ExecEnd::Exited(0), "left\n"));
    // Both are gone: no other shell is there.
    let script = "for f in /proc/[0-9]*/comm; do read -r n < $f && [ $n = sh ] && echo ${f%/comm}; done; echo self /proc/$$";
    let (_, said) = sh(&mut vm, script, 60, 1 << 20);
    let lines: Vec<&str> = said.lines().collect();
    assert!(matches!(lines[..], [one, own] if own == format!("self {one}")), "{said}");

    let request = ExecRequest {
        argv: vec!["/own/nothing".to_owned()],
        env: vec![],
        cwd: "/".to_owned(),
        seconds: 10,
        output_bytes: 1,
    };
    match vm.request(Command::Exec(request), LIMIT).unwrap() {
        Err(GuestError::Failed(message)) => {
            assert!(message.contains("failed to start /own/nothing"), "{message}")
        }
        other => panic!("{other:?}"),
    }
    vm.power_off(LIMIT).unwrap();
}
