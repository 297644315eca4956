// SPDX-License-Identifier: MIT OR Apache-2.0
//! Guests that lie: the program in QEMU's place says what it likes. The host neither believes it,
//! nor waits for ever, nor fills its memory or disk.

use std::{ffi::OsString, fs, path::Path, time::Duration};
use tramplab_host::QemuProgram;
use tramplab_host::runs::RunDir;
use tramplab_model::{
    run::{Arch, ErrorKind, Measurement, Outcome, Run},
    text,
};
use tramplab_protocol::message::{self, Command, ExecRequest, Response};
use tramplab_vm::{Deadlines, Spec, Vm, VmError};

/// For each request; some lies last all of it.
const LIMIT: Duration = Duration::from_secs(5);
/// For lies that take long to read.
const LONG: Duration = Duration::from_secs(120);
/// Bytes: the log's limit of 16 MiB, and a little.
const CONSOLE: u64 = 17 << 20;
/// Bytes of an error's message.
const WORDS: usize = 5000;
/// KiB, of this process. At most three messages of 16 MiB are held: one waits, one is read, one is
/// in use. In memory each takes 256 MiB at most.
const MEMORY: u64 = 1 << 20;

fn spec(lie: &str, dir: &Path) -> Spec {
    let script = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/liar/qemu.py");
    let qemu = QemuProgram {
        program: "/usr/bin/python3".into(),
        arguments: [script, lie].map(OsString::from).to_vec(),
        environment: vec![("VERSION".into(), message::VERSION.to_string().into())],
    };
    Spec {
        memory_mib: 16,
        deadlines: Deadlines { boot: Duration::from_secs(20), silence: LONG },
        ..Spec::new(qemu, Arch::X86_64, "/none", dir)
    }
}

/// The host's request to a guest that got ready.
type Then = fn(&mut Vm) -> VmError;

fn resolve(vm: &mut Vm) -> VmError {
    vm.request(Command::Resolve { addresses: vec![1 << 63] }, LONG).unwrap_err()
}

fn resolve_in_time(vm: &mut Vm) -> VmError {
    vm.request(Command::Resolve { addresses: vec![1 << 63] }, LIMIT).unwrap_err()
}

fn exec(vm: &mut Vm) -> VmError {
    let program = ExecRequest {
        argv: vec![],
        env: vec![],
        cwd: "/".to_owned(),
        seconds: 1,
        output_bytes: 10,
        deliver: None,
    };
    vm.exec(program, LIMIT, &mut |_| ()).unwrap_err()
}

#[test]
fn believes_and_awaits_no_lie() {
    let table: [(&str, Option<Then>, ErrorKind, &str); 9] = [
        ("announces 4 GiB", None, ErrorKind::Protocol, "announces 4294967295 bytes"),
        ("begins with a long text", None, ErrorKind::Protocol, "the agent began with Output"),
        ("prints without end", None, ErrorKind::BootTimeout, "first word"),
        ("has long names", Some(resolve), ErrorKind::Protocol, "a symbol's name"),
        ("answers another", Some(resolve), ErrorKind::Protocol, "expected the answer to request 1"),
        (
            "floods",
            Some(|vm| {
                resolve_ends_well(vm);
                resolve(vm)
            }),
            ErrorKind::Protocol,
            "expected the answer to request 2",
        ),
        (
            "never ends its output",
            Some(exec),
            ErrorKind::Protocol,
            "expected the answer to request 1",
        ),
        (
            "beats without end",
            Some(resolve_in_time),
            ErrorKind::Timeout,
            "the answer to a request did not come",
        ),
        ("has too many facts", None, ErrorKind::Protocol, "described the guest in"),
    ];
    for (lie, then, kind, words) in table {
        let dir = tempfile::tempdir().unwrap();
        let spec = spec(lie, dir.path());
        let error = match (then, lie) {
            (Some(then), _) => {
                then(&mut Vm::boot(&spec).unwrap_or_else(|error| panic!("{lie}: {error}")))
            }
            (None, "has too many facts") => Vm::boot(&spec).unwrap().facts().unwrap_err(),
            (None, _) => {
                Vm::boot(&spec).err().unwrap_or_else(|| panic!("{lie}: it passes for a guest"))
            }
        };
        assert_eq!(error.kind, kind, "{lie}: {error}");
        assert!(error.message.contains(words), "{lie}: {error}");
        assert!(error.message.len() <= WORDS, "{lie}: {} bytes of words", error.message.len());
        let log = fs::metadata(dir.path().join("console.log")).unwrap().len();
        assert!(log <= CONSOLE, "{lie}: {log} bytes of console");
        let mut files: Vec<_> =
            fs::read_dir(dir.path()).unwrap().map(|entry| entry.unwrap().file_name()).collect();
        files.sort();
        assert_eq!(files, ["console.log", "qemu.log"], "{lie}");
        let most = peak();
        assert!(most < MEMORY, "{lie}: {most} KiB of memory");
    }
}

/// The flood's first message answers the first request.
fn resolve_ends_well(vm: &mut Vm) {
    vm.request(Command::Resolve { addresses: vec![1 << 63] }, LONG).unwrap().unwrap();
}

/// QEMU's memory and files are limited, whatever a guest makes it do.
#[test]
fn limits_memory_and_files_of_qemu() {
    let dir = tempfile::tempdir().unwrap();
    let vm = Vm::boot(&spec("takes what it can", dir.path())).unwrap();
    assert_eq!(vm.ready().release, "File too large, Cannot allocate memory");
}

/// The peak memory of this process, in KiB.
fn peak() -> u64 {
    let status = fs::read_to_string("/proc/self/status").unwrap();
    let line = status.lines().find_map(|line| line.strip_prefix("VmHWM:")).unwrap();
    line.trim().trim_end_matches(" kB").parse().unwrap()
}

/// Removes control and invisible characters from all that is stored or shown of a guest.
#[test]
fn stores_and_shows_no_escape_sequences_of_guests() {
    let dir = tempfile::tempdir().unwrap();
    let mut vm = Vm::boot(&spec("hides its words", dir.path())).unwrap();
    assert_eq!(vm.ready().release, "6.12\u{fffd}\u{fffd}\u{fffd}\n");
    let facts = vm.facts().unwrap();
    let Ok(Response::Resolve { symbols }) = vm.request(resolved(), LIMIT).unwrap() else {
        panic!("no answer")
    };
    assert_eq!(symbols[0].name, "vfs_read\u{fffd}\u{fffd}\u{fffd}\n");
    let error = vm.request(resolved(), LIMIT).unwrap().unwrap_err();

    let stored = concat!(env!("CARGO_MANIFEST_DIR"), "/../testdata/run.json");
    let mut run: Run = serde_json::from_slice(&fs::read(stored).unwrap()).unwrap();
    for cell in &mut run.cells {
        cell.guest = Some(facts.clone());
        if let Some(Measurement::LbrWaste(waste)) = &mut cell.measurement {
            waste.function = symbols[0].clone();
            waste.points[0].records[0].to.symbol = Some(symbols[0].name.clone());
        }
    }
    let failed = &mut run.cells[0];
    failed.outcome = Outcome::Error { kind: ErrorKind::Guest, message: error.to_string() };
    failed.console_tail = vm.console_tail();
    assert_eq!(
        failed.console_tail,
        ["[    1.0] a line \u{fffd}\u{fffd}\u{fffd}", "of the console"]
    );
    drop(vm);
    // A field may come from elsewhere than the link.
    failed.console_tail.push("\u{1b}[2J\u{202e}".to_owned());
    let folder = RunDir::new(dir.path());
    folder.save_cell(&run.cells[0]).unwrap();
    folder.save(&run).unwrap();
    let mut kept: Vec<(String, Vec<u8>)> =
        [folder.cell(&run.cells[0].id).join("cell.json"), dir.path().join("run.json")]
            .map(|path| (path.display().to_string(), fs::read(&path).unwrap()))
            .into();
    for format in ["terminal", "markdown", "json", "mail", "github"] {
        let mut report = std::process::Command::new(env!("CARGO_BIN_EXE_tramplab"));
        report.args(["report", "--format", format]).arg(dir.path());
        let output = report.args((format == "terminal").then_some("--listing")).output().unwrap();
        assert!(!output.stdout.is_empty(), "{format}: {}", String::from_utf8_lossy(&output.stderr));
        kept.extend([
            (format.to_owned(), output.stdout),
            (format!("{format}'s words"), output.stderr),
        ]);
    }
    for (what, bytes) in kept {
        let text = String::from_utf8(bytes).unwrap();
        for line in text.lines() {
            assert!(line.chars().all(text::is_seen) && !line.contains("\\u00"), "{what}: {line:?}");
        }
    }
}

fn resolved() -> Command {
    Command::Resolve { addresses: vec![1 << 63] }
}
