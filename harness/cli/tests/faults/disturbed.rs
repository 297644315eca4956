// SPDX-License-Identifier: MIT OR Apache-2.0
//! Runs the command again and again while faults of a seed happen to it.

use crate::{
    injection::{self, Damage, Injection, Target, Wrong},
    place::{Place, from_env},
    promises::{Ended, Undisturbed, broken, digests},
    scene::flip_bit_at,
    started::{SOON, Started},
    wire,
};
use fastrand::Rng;
use nix::{
    sys::signal::{self, Signal},
    unistd::Pid,
};
use std::{
    collections::BTreeSet,
    fs::{self, File},
    io::{self, BufRead, BufReader},
    path::{Path, PathBuf},
    process::{Command, Stdio},
    sync::Mutex,
    thread::sleep,
    time::Instant,
};
use tramplab_host::runs::{RunDir, StoreError};
use tramplab_model::run::Backend;
use walkdir::WalkDir;

const SUITE: &str = "tests:\n  - lbr_waste: { mechanisms: [fentry, kprobe] }\n";

static UNDISTURBED: Mutex<Option<Undisturbed>> = Mutex::new(None);

/// Disturbs the command `times` times, then runs it undisturbed. Returns the faults that took
/// place.
pub fn play(seed: u64, times: u32, place: &Place) -> Result<Vec<Injection>, String> {
    let undisturbed = undisturbed(place)?;
    place.copy_cache().map_err(|error| format!("failed to copy the cache: {error}"))?;
    let mut rng = Rng::with_seed(seed);
    let mut happened = Vec::new();
    for time in 1..=times {
        let injections = injection::draw(&mut rng, undisturbed.taken);
        let faults = disturbed(place, &injections, &undisturbed)
            .map_err(|why| format!("command {time} of seed {seed}, {injections:#?}: {why}"))?;
        happened.extend(faults);
    }
    disturbed(place, &[], &undisturbed)
        .map_err(|why| format!("the undisturbed command after seed {seed}: {why}"))?;
    for run in folders(place) {
        fs::remove_dir_all(run).unwrap();
    }
    match place.left() {
        _ if happened.is_empty() => Err(format!("no fault of seed {seed} took place")),
        left if left.is_empty() => Ok(happened),
        left => Err(format!("seed {seed} left something behind: {left:#?}")),
    }
}

/// Measures what all commands must measure. The first caller does, and fills the shared cache.
fn undisturbed(place: &Place) -> Result<Undisturbed, String> {
    let mut known = UNDISTURBED.lock().expect("not poisoned");
    if let Some(known) = &*known {
        return Ok(known.clone());
    }
    // The first command boots the guest that the second one restores.
    for _ in 0..2 {
        let mut started = Started::new(place, command(place, false));
        if !matches!(started.end(), Ok(Some(0))) {
            return Err(format!("the undisturbed command fails: {}", started.said()));
        }
        let taken = started.began.elapsed();
        let folder = folders(place).pop_last().expect("a run");
        let run = RunDir::load(&folder).map_err(|error| error.to_string())?;
        let digests = run.cells.iter().map(|cell| (cell.id.name(), digests(cell))).collect();
        *known = Some(Undisturbed { digests, taken });
        fs::remove_dir_all(folder).unwrap();
    }
    Ok(known.clone().expect("just measured"))
}

fn command(place: &Place, own_cache: bool) -> Command {
    let mut command = place.vm_test(SUITE);
    command.args(["--message-format", "json"]);
    command.env("TRAMPLAB_QEMU_X86_64", place.qemu_with_wire(&from_env("TRAMPLAB_QEMU_X86_64")));
    if own_cache {
        command.env("TRAMPLAB_CACHE", place.own_cache());
    }
    // rustc hangs under the library of the clock.
    let cargo = std::env::var("CARGO").unwrap_or_else(|_| "cargo".to_owned());
    let script = "unset LD_PRELOAD; exec \"$REAL\" \"$@\"";
    command.env("CARGO", place.script("cargo", Path::new(&cargo), script));
    with_clock(&mut command, place);
    command
}

/// Gives the command the clock of this place, which is right so far.
fn with_clock(command: &mut Command, place: &Place) {
    place.set_clock(0);
    command.env("LD_PRELOAD", faketime()).env("FAKETIME_TIMESTAMP_FILE", place.clock());
    // Processes look at the file each time. Their monotonic clock and times of files are real.
    for name in ["FAKETIME_NO_CACHE", "FAKETIME_DONT_FAKE_MONOTONIC", "NO_FAKE_STAT"] {
        command.env(name, "1");
    }
}

/// Checks that a running process sees the clock jump.
pub fn clocks_jump() -> Result<(), String> {
    let cache = tempfile::tempdir().map_err(|error| error.to_string())?;
    let place = Place::new(Backend::Qemu, cache.path()).map_err(|error| error.to_string())?;
    let mut command = Command::new("python3");
    let script = "import sys, time\nfor _ in range(2):\n  print(int(time.time()), flush=True)\n  \
                  sys.stdin.read()";
    command.args(["-c", script]);
    with_clock(&mut command, &place);
    let mut child =
        command.stdin(Stdio::piped()).stdout(Stdio::piped()).spawn().expect("python3 starts");
    let mut lines = BufReader::new(child.stdout.take().expect("piped")).lines();
    let mut seconds = || lines.next().expect("a line").expect("read").parse::<i64>().expect("time");
    let before = seconds();
    place.set_clock(86_400);
    drop(child.stdin.take());
    let jump = seconds() - before;
    child.wait().expect("it ends");
    if (86_400..86_500).contains(&jump) { Ok(()) } else { Err(format!("it jumped by {jump} s")) }
}

/// The library that moves a process's wall clock.
fn faketime() -> PathBuf {
    let arch = std::env::consts::ARCH;
    let library = PathBuf::from(format!("/usr/lib/{arch}-linux-gnu/faketime/libfaketimeMT.so.1"));
    assert!(library.exists(), "{} is missing: run `cargo xtask test --setup`", library.display());
    library
}

/// The folders of runs, oldest first.
fn folders(place: &Place) -> BTreeSet<PathBuf> {
    let folders = fs::read_dir(place.runs()).unwrap().map(|entry| entry.unwrap().path());
    folders.filter(|path| path.is_dir() && !path.is_symlink()).collect()
}

fn disturbed(
    place: &Place,
    injections: &[Injection],
    undisturbed: &Undisturbed,
) -> Result<Vec<Injection>, String> {
    let before = folders(place);
    let ended = with(place, injections)?;
    let after = folders(place);
    let run = after.difference(&before).next();
    let run = match run.map(|folder| RunDir::load(folder)) {
        // Killed while it prepared.
        None | Some(Err(StoreError::NotFound(_))) => None,
        Some(loaded) => Some(loaded.map_err(|error| error.to_string())?),
    };
    match broken(&ended, run.as_ref(), undisturbed) {
        None => Ok(ended.happened),
        Some(broken) => Err(format!("{broken:?}\n{}", ended.said)),
    }
}

/// Runs the command while these faults happen.
fn with(place: &Place, injections: &[Injection]) -> Result<Ended, String> {
    let wires = tempfile::Builder::new().prefix("wire-").tempdir_in(place.path()).unwrap();
    let tamperings = injections.iter().filter_map(|injection| match injection.wrong {
        Wrong::Wire(tampering) => Some(tampering),
        _ => None,
    });
    wire::write(wires.path(), tamperings).unwrap();
    let mut happened = Vec::new();
    let (early, late): (Vec<Injection>, Vec<Injection>) =
        injections.iter().partition(|injection| injection.after.is_zero());
    for injection in early {
        if let Wrong::Snapshot(damage) = injection.wrong
            && damaged(&snapshots(place), damage)
        {
            happened.push(injection);
        }
    }
    let mut command = command(place, true);
    command.env(wire::FOLDER, wires.path());
    let mut started = Started::new(place, command);
    // Pauses overlap with other faults.
    let mut paused: Vec<(Instant, Pid)> = Vec::new();
    let mut late = late.into_iter().peekable();
    loop {
        let now = started.began.elapsed();
        paused.retain(|&(until, pid)| {
            let over = until <= Instant::now();
            if over {
                let _ = signal::kill(pid, Signal::SIGCONT);
            }
            !over
        });
        if let Some(injection) = late.next_if(|injection| injection.after <= now)
            && took_place(place, &started, injection.wrong, &mut paused)
        {
            happened.push(injection);
        }
        if started.has_ended() && paused.is_empty() {
            break;
        }
        if started.hangs() {
            break;
        }
        sleep(SOON / 10);
    }
    let code = started.end().map_err(|hangs| format!("{hangs:?}: {}", started.said()))?;
    match place.left_processes() {
        left if left.is_empty() => {}
        left => return Err(format!("processes are left: {left:#?}")),
    }
    happened.extend(wire::happened(wires.path(), injections));
    Ok(Ended { code, said: started.said(), happened })
}

/// Causes a fault. Returns false if nothing was there to harm.
fn took_place(
    place: &Place,
    started: &Started,
    wrong: Wrong,
    paused: &mut Vec<(Instant, Pid)>,
) -> bool {
    let process = |target| match target {
        Target::Harness => Some(started.pid()),
        Target::Cell => place.process_with(&[" --exact "]),
        Target::Qemu => place.process_with(&["-nodefaults "]),
    };
    match wrong {
        Wrong::Signal(target, which) => {
            process(target).is_some_and(|pid| signal::kill(pid, which).is_ok())
        }
        Wrong::Pause(target, pause) => process(target).is_some_and(|pid| {
            let stopped = signal::kill(pid, Signal::SIGSTOP).is_ok();
            paused.push((Instant::now() + pause, pid));
            stopped
        }),
        Wrong::NoRoom(target) => process(target).is_some_and(|pid| without_room(pid).is_ok()),
        Wrong::Snapshot(damage) => damaged(&snapshots(place), damage),
        Wrong::Trace(damage) => damaged(&files(&place.runs(), &["trace-0000.bin"]), damage),
        Wrong::Clock(seconds) => {
            place.set_clock(seconds);
            true
        }
        // By the program in QEMU's place.
        Wrong::Wire(_) => false,
    }
}

fn without_room(pid: Pid) -> io::Result<()> {
    let limit = libc::rlimit { rlim_cur: 0, rlim_max: 0 };
    // SAFETY: the limit is read, and none is written.
    match unsafe {
        libc::prlimit(pid.as_raw(), libc::RLIMIT_FSIZE, &raw const limit, std::ptr::null_mut())
    } {
        0 => Ok(()),
        _ => Err(io::Error::last_os_error()),
    }
}

fn snapshots(place: &Place) -> Vec<PathBuf> {
    files(&place.own_cache().join("snapshot"), &["state", "console.log", "about.json", "sound"])
}

fn files(folder: &Path, names: &[&str]) -> Vec<PathBuf> {
    let files = WalkDir::new(folder).into_iter().flatten().map(walkdir::DirEntry::into_path);
    files.filter(|path| names.iter().any(|name| path.ends_with(name))).collect()
}

/// Damages the newest of these files. Others may be of runs that have ended.
fn damaged(files: &[PathBuf], damage: Damage) -> bool {
    let changed = |path: &&PathBuf| fs::metadata(path).and_then(|data| data.modified()).ok();
    let Some(path) = files.iter().max_by_key(changed) else { return false };
    let Ok(file) = File::options().read(true).write(true).open(path) else { return false };
    let length = file.metadata().map_or(0, |data| data.len());
    let done = match damage {
        _ if length == 0 => return false,
        Damage::Cut(at) => file.set_len(length * at / 1000),
        Damage::FlipBit(at) => flip_bit_at(&file, length * at / 1000),
    };
    done.is_ok()
}
