// SPDX-License-Identifier: MIT OR Apache-2.0
//! Causes a fault and observes the result.

use crate::{
    NotRun,
    command::tramplab,
    observed::{Kept, Observed, Verdict},
    place::{Part, Place, from_env, with_mounts},
    rows::Row,
    started::{LIMIT, SOON, Started},
};
use nix::{
    sys::signal::{self, Signal},
    unistd::Pid,
};
use std::{
    fs::{self, File},
    io,
    os::unix::fs::{FileExt, symlink},
    path::{Path, PathBuf},
    process::Command,
    sync::OnceLock,
    thread::sleep,
    time::{Duration, Instant},
};
use tramplab_host::{Cache, runs::RunDir};
use tramplab_model::run::{Backend, Cell, Measurement, Outcome, Run};
use walkdir::WalkDir;

/// How a fault is caused.
pub enum Cause {
    /// By a request to the agent.
    Guest(&'static str),
    /// By words on the kernel's command line.
    KernelArguments(&'static str),
    /// By a signal, sent while a guest of the run is silent.
    SignalTo(Part, Signal),
    SignalToHarness(Signal),
    /// The harness is killed while a guest with the exact clock works. Another run follows.
    Killed,
    /// This script replaces QEMU, or QEMU is missing.
    Qemu(Option<&'static str>),
    /// This script is the first `vng` in the path.
    Vng(&'static str),
    /// A guest's stored snapshot is damaged.
    Snapshot(fn(&Path)),
    /// By mounts over the cache.
    Cache(&'static str),
    /// This shell script starts the harness, which is its `$@`. `$DIR` is an empty folder, `$RUNS`
    /// the folder of the runs.
    Shell(&'static str),
    /// This shell script mounts something before the harness starts.
    Mounts(&'static str),
    /// The harness is stopped for so many seconds during a run.
    Paused(u64),
    /// The runs are on a disk with room for one cell.
    FullRuns,
    Twice,
    /// `/dev/kvm` is no KVM; the value of `--accel`.
    Kvm(&'static str),
}

/// A cell before and a cell after the one with the fault.
const BEFORE: &str = "  - boot: {}\n";
const AFTER: &str = "  - lbr_waste: { mechanisms: [fentry] }\n";
/// The agent prints it when it falls silent.
const SILENT: &str = "requested fault: Silence";
/// Has room for cells without a trace, but not for the trace of so many hits.
const SMALL: &str = "size=1m";
const LARGE: &str = "  - lbr_waste: { mechanisms: [fentry], hits: 2000 }\n";

/// The digest of fentry's records, which every guest of this kernel shares.
static DIGEST: OnceLock<String> = OnceLock::new();

pub fn play(row: &Row, place: &Place) -> Result<Observed, NotRun> {
    Ok(match &row.cause {
        Cause::Guest(fault) => in_the_guest(place, fault),
        Cause::KernelArguments(words) => at_boot(place, words),
        &Cause::SignalTo(part, signal) => signal_to(place, part, signal),
        &Cause::SignalToHarness(signal) => signal_to_harness(place, signal),
        Cause::Killed => killed(place),
        Cause::Qemu(script) => another_qemu(place, *script),
        Cause::Vng(script) => another_vng(place, script),
        Cause::Snapshot(damage) => damaged_snapshot(place, *damage),
        Cause::Cache(mounts) => cache_with(place, mounts)?,
        Cause::Shell(script) => by_shell(place, shell(place, script)),
        Cause::Mounts(script) => {
            let script = format!("DIR='{}'\n{script}", own_folder(place).display());
            by_shell(place, with_mounts(&script, &place.vm_test(&two_cells()))?)
        }
        &Cause::Paused(seconds) => paused(place, Duration::from_secs(seconds)),
        Cause::FullRuns => full_runs(place)?,
        Cause::Twice => twice(place),
        Cause::Kvm(accel) => broken_kvm(place, accel)?,
    })
}

fn with_fault(fault: &str) -> String {
    format!("tests:\n{BEFORE}  - fault: {{ faults: [{fault}] }}\n{AFTER}")
}

/// The last run of a place.
fn stored(runs: &Path) -> Option<(RunDir, Run)> {
    let folders = fs::read_dir(runs).unwrap().map(|entry| entry.unwrap().path());
    let mut folders: Vec<PathBuf> =
        folders.filter(|path| path.is_dir() && !path.is_symlink()).collect();
    folders.sort();
    let folder = folders.pop()?;
    Some((RunDir::new(&folder), RunDir::load(&folder).ok()?))
}

/// Returns true if a cell was measured with the expected records.
fn is_measured(cell: &Cell) -> bool {
    let right = match &cell.measurement {
        Some(Measurement::LbrWaste(waste)) => {
            let digest = &waste.points[0].digest;
            DIGEST.get_or_init(|| digest.clone()) == digest
        }
        measurement => measurement.is_some(),
    };
    cell.outcome == Outcome::Pass && right
}

/// The result of a command whose cell `fault` should fail, besides `of` others.
fn judged(place: &Place, mut started: Started, fault: &str, of: usize) -> Observed {
    let ended = started.end();
    let left = place.left();
    let said = started.said();
    let run = stored(&place.runs()).map(|(_, run)| run);
    let cells = run.as_ref().map_or(&[][..], |run| &run.cells);
    let faulty = cells.iter().find(|cell| cell.id.test.name() == fault);
    let verdict = match (&ended, faulty) {
        (Err(hangs), _) => hangs.clone(),
        (_, Some(cell)) => Verdict::Cell(cell.outcome.clone()),
        (_, None) => Verdict::Unexpected(format!("there is no {fault} in the run")),
    };
    let others = cells.iter().filter(|cell| cell.id.test.name() != fault);
    let kept = Kept { results: others.filter(|cell| is_measured(cell)).count(), of };
    let taken =
        faulty.map_or(started.began.elapsed(), |cell| Duration::from_millis(cell.duration_ms));
    Observed { code: ended.ok().flatten(), verdict, taken, left, kept, said }
}

fn in_the_guest(place: &Place, fault: &str) -> Observed {
    let mut suite = with_fault(fault);
    if fault == "out_of_memory" {
        // Fills up sooner.
        suite.insert_str(0, "machine: { memory_mib: 512 }\n");
    }
    judged(place, Started::new(place, place.vm_test(&suite)), &format!("fault/{fault}"), 2)
}

fn at_boot(place: &Place, words: &str) -> Observed {
    let suite = format!("machine: {{ append: [\"{words}\"] }}\ntests:\n{BEFORE}");
    judged(place, Started::new(place, place.vm_test(&suite)), "boot", 0)
}

/// Starts a run and waits until its second cell is silent. Also returns the cell's folder.
fn silent(place: &Place) -> (Started, PathBuf) {
    let mut started = Started::new(place, place.vm_test(&with_fault("silence")));
    let cell = || {
        let folders = WalkDir::new(place.runs()).into_iter().flatten();
        folders.map(walkdir::DirEntry::into_path).find(|path| path.ends_with("fault/silence"))
    };
    let is_silent = || {
        let console =
            cell().map(|cell| fs::read_to_string(cell.join("console.log")).unwrap_or_default());
        console.is_some_and(|text| text.contains(SILENT))
    };
    assert!(started.wait_for(is_silent), "no guest fell silent: {}", started.said());
    (started, cell().expect("seen before"))
}

fn signal_to(place: &Place, part: Part, signal: Signal) -> Observed {
    let (mut started, cell) = silent(place);
    let process = place.process_of(part, &cell).expect("the guest runs");
    let began = Instant::now();
    signal::kill(Pid::from_raw(process), signal).unwrap();
    started.wait_for(|| cell.join("cell.json").exists());
    let taken = began.elapsed();
    Observed { taken, ..judged(place, started, "fault/silence", 2) }
}

/// Returns true if `report` treats the run as interrupted: no pass, and the cells from the
/// interrupted one on are missing.
fn is_known_to_be_interrupted(run: &RunDir) -> bool {
    let report = tramplab().arg("report").arg(run.path()).output().unwrap();
    let said = String::from_utf8_lossy(&report.stdout);
    report.status.code() == Some(130) && said.contains("cells left no result")
}

fn stopped(
    place: &Place,
    code: Result<Option<i32>, Verdict>,
    taken: Duration,
    said: String,
) -> Observed {
    let left = place.left();
    let (verdict, results) = match (&code, stored(&place.runs())) {
        (Err(hangs), _) => (hangs.clone(), 0),
        (_, None) => (Verdict::Unexpected("there is no run".to_owned()), 0),
        (_, Some((folder, run))) => {
            let verdict = match run.interrupted && is_known_to_be_interrupted(&folder) {
                true => Verdict::Interrupted,
                false => {
                    Verdict::Unexpected("the run does not know that it was stopped".to_owned())
                }
            };
            (verdict, run.cells.iter().filter(|cell| is_measured(cell)).count())
        }
    };
    Observed {
        code: code.ok().flatten(),
        verdict,
        taken,
        left,
        kept: Kept { results, of: 1 },
        said,
    }
}

fn signal_to_harness(place: &Place, signal: Signal) -> Observed {
    let (mut started, _) = silent(place);
    let began = Instant::now();
    signal::kill(started.pid(), signal).unwrap();
    let code = started.end();
    stopped(place, code, began.elapsed(), started.said())
}

/// A guest with the exact clock keeps files of its own in the run's folder.
fn killed(place: &Place) -> Observed {
    let suite = "tests:\n  - attach: { mechanisms: [fentry], functions: [1], rounds: 1 }\n  \
                 - attach: { mechanisms: [kprobe], functions: [1], rounds: 100000, clock: exact \
                 }\n";
    let mut started = match place.vm() {
        Backend::Qemu => Started::new(place, place.vm_test(suite)),
        // virtme-ng has no exact clock.
        Backend::VirtmeNg => silent(place).0,
        Backend::None => unreachable!("faults are of guests"),
    };
    let root = || {
        let files =
            WalkDir::new(place.runs()).into_iter().flatten().map(walkdir::DirEntry::into_path);
        let mut files = files.filter(|path| path.ends_with("kprobe/1/initramfs.cpio"));
        files.next().filter(|file| place.process_of(Part::Qemu, file.parent().unwrap()).is_some())
    };
    if place.vm() == Backend::Qemu {
        assert!(started.wait_for(|| root().is_some()), "no guest began: {}", started.said());
    }
    let began = Instant::now();
    started.child.kill().unwrap();
    let code = started.end();
    while !place.processes().is_empty() && began.elapsed() < LIMIT {
        sleep(SOON);
    }
    let taken = began.elapsed();
    let (first, run) = stored(&place.runs()).expect("what was measured is kept");
    let id = run.id;
    let kept_aside = place.path().join("first");
    // The next run.
    let mut next = Started::new(place, place.vm_test(&format!("tests:\n{BEFORE}")));
    let next_code = next.end();
    let told = next.said();
    let observed = {
        // Only the killed run is checked below.
        let (second, _) = stored(&place.runs()).expect("the next run");
        assert_ne!(second.path(), first.path(), "{told}");
        fs::rename(second.path(), &kept_aside).unwrap();
        stopped(place, code, taken, started.said())
    };
    let cleaned = told.contains(&format!("run {id} was killed"))
        && next_code.is_ok_and(|code| code == Some(0));
    let verdict = match cleaned {
        true => observed.verdict,
        false => Verdict::Unexpected(format!("the next run did not clean up: {told}")),
    };
    Observed { verdict, ..observed }
}

fn another_qemu(place: &Place, script: Option<&str>) -> Observed {
    let script_of = |script| place.script("qemu", &from_env("TRAMPLAB_QEMU_X86_64"), script);
    let program = script.map_or(place.path().join("no-such-qemu"), script_of);
    let mut command = place.vm_test(&format!("tests:\n{BEFORE}"));
    command.env("TRAMPLAB_QEMU_X86_64", &program).env("TRAMPLAB_CACHE", place.own_cache());
    let started = Started::new(place, command);
    match script.is_some_and(|script| script.contains("-kernel")) {
        true => judged(place, started, "boot", 0),
        false => refused(place, started),
    }
}

fn another_vng(place: &Place, script: &str) -> Observed {
    let folder =
        place.script("vng", Path::new("vng"), script).parent().expect("a folder").to_owned();
    let path = std::env::var_os("PATH").unwrap_or_default();
    let path = [folder].into_iter().chain(std::env::split_paths(&path));
    let mut command = place.vm_test(&format!("tests:\n{BEFORE}"));
    // The user's cache may have the only virtiofsd.
    let virtiofsd = Cache::open(true).unwrap().root().join("virtiofsd");
    fs::create_dir(place.own_cache()).unwrap();
    if virtiofsd.exists() {
        symlink(virtiofsd, place.own_cache().join("virtiofsd")).unwrap();
    }
    command
        .env("PATH", std::env::join_paths(path).unwrap())
        .env("TRAMPLAB_CACHE", place.own_cache());
    refused(place, Started::new(place, command))
}

/// The result of a command that should end before there is a run.
fn refused(place: &Place, mut started: Started) -> Observed {
    let code = started.end();
    let taken = started.began.elapsed();
    let mut left = place.left();
    let runs = fs::read_dir(place.runs()).unwrap().map(|entry| entry.unwrap().path());
    left.extend(runs.map(|run| format!("run {}", run.display())));
    let said = started.said();
    let error = said.lines().rev().find_map(|line| line.strip_prefix("error: "));
    let verdict = match (&code, error) {
        (Err(hangs), _) => hangs.clone(),
        (Ok(_), Some(error)) => Verdict::NoRun(error.to_owned()),
        (Ok(_), None) => Verdict::Unexpected("it said no error".to_owned()),
    };
    Observed {
        code: code.ok().flatten(),
        verdict,
        taken,
        left,
        kept: Kept { results: 0, of: 0 },
        said,
    }
}

/// The result of a command that should measure anyway. `told` extracts its report of the fault.
fn overcome(
    place: &Place,
    mut started: Started,
    told: impl FnOnce(&RunDir, &str) -> String,
) -> Observed {
    let code = started.end();
    let taken = started.began.elapsed();
    let left = place.left();
    let said = started.said();
    let (verdict, results) = match (&code, stored(&place.runs())) {
        (Err(hangs), _) => (hangs.clone(), 0),
        (_, None) => (Verdict::Unexpected("there is no run".to_owned()), 0),
        (_, Some((folder, run))) => {
            let results = run.cells.iter().filter(|cell| is_measured(cell)).count();
            let the_same = results == run.cells.len() && !run.interrupted;
            (Verdict::Measured { told: told(&folder, &said), the_same }, results)
        }
    };
    Observed {
        code: code.ok().flatten(),
        verdict,
        taken,
        left,
        kept: Kept { results, of: 2 },
        said,
    }
}

fn two_cells() -> String {
    format!("tests:\n{BEFORE}{AFTER}")
}

fn damaged_snapshot(place: &Place, damage: fn(&Path)) -> Observed {
    let command = || {
        let mut command = place.vm_test(&two_cells());
        command.env("TRAMPLAB_CACHE", place.own_cache());
        command
    };
    let before = overcome(place, Started::new(place, command()), |_, _| String::new());
    assert!(matches!(before.verdict, Verdict::Measured { the_same: true, .. }), "{before:#?}");
    let states = WalkDir::new(place.own_cache().join("snapshot")).into_iter().flatten();
    let states: Vec<PathBuf> =
        states.map(walkdir::DirEntry::into_path).filter(|path| path.ends_with("state")).collect();
    assert_eq!(states.len(), 1, "{before:#?}");
    damage(&states[0]);
    overcome(place, Started::new(place, command()), |run, _| {
        let logs = WalkDir::new(run.path()).into_iter().flatten().map(walkdir::DirEntry::into_path);
        let logs = logs.filter(|path| path.ends_with("snapshot.log"));
        logs.map(|log| fs::read_to_string(log).unwrap()).collect()
    })
}

pub fn truncate(state: &Path) {
    let file = File::options().write(true).open(state).unwrap();
    file.set_len(file.metadata().unwrap().len() / 2).unwrap();
}

pub fn flip_a_bit(state: &Path) {
    let file = File::options().read(true).write(true).open(state).unwrap();
    let at = file.metadata().unwrap().len() - 1000;
    flip_bit_at(&file, at).unwrap();
}

pub fn flip_bit_at(file: &File, at: u64) -> io::Result<()> {
    let mut byte = [0];
    file.read_exact_at(&mut byte, at)?;
    file.write_all_at(&[byte[0] ^ 1], at)
}

fn cache_with(place: &Place, mounts: &str) -> Result<Observed, NotRun> {
    fs::create_dir(place.own_cache()).unwrap();
    let mut command = place.vm_test(&format!("tests:\n{BEFORE}"));
    command.env("TRAMPLAB_CACHE", place.own_cache());
    let cache = place.own_cache();
    let command = with_mounts(&format!("CACHE='{}'\n{mounts}", cache.display()), &command)?;
    Ok(refused(place, Started::new(place, command)))
}

/// Copies the runs from the small disk at the end.
fn full_runs(place: &Place) -> Result<Observed, NotRun> {
    let runs = place.runs();
    let (runs, kept) = (runs.display(), place.path().join("kept"));
    let mounts = format!("mount -t tmpfs -o {SMALL} none '{runs}'");
    let inside = place.vm_test(&format!("tests:\n{BEFORE}{LARGE}"));
    let mut copying = Command::new("sh");
    copying.args([
        "-c",
        &format!("\"$@\"\ncode=$?\ncp -a '{runs}' '{}'\nexit $code", kept.display()),
        "sh",
    ]);
    copying.arg(inside.get_program()).args(inside.get_args());
    copying.envs(inside.get_envs().filter_map(|(name, value)| Some((name, value?))));
    if let Some(folder) = inside.get_current_dir() {
        copying.current_dir(folder);
    }
    let mut started = Started::new(place, with_mounts(&mounts, &copying)?);
    // Checked in the place of the copy.
    let ended = started.end();
    if ended.is_ok() && kept.exists() {
        fs::remove_dir(place.runs()).unwrap();
        fs::rename(&kept, place.runs()).unwrap();
    }
    Ok(judged(place, started, "lbr_waste/fentry", 1))
}

/// The line with the numbers of outcomes.
fn counted(_: &RunDir, said: &str) -> String {
    said.lines().find(|line| line.contains(" cells: ")).unwrap_or_default().to_owned()
}

fn own_folder(place: &Place) -> PathBuf {
    let folder = place.path().join("own");
    fs::create_dir(&folder).unwrap();
    folder
}

fn shell(place: &Place, script: &str) -> Command {
    let inside = place.vm_test(&two_cells());
    let mut command = Command::new("sh");
    command.args(["-c", script, "sh"]).arg(inside.get_program()).args(inside.get_args());
    command.envs(inside.get_envs().filter_map(|(name, value)| Some((name, value?))));
    command.env("DIR", own_folder(place)).env("RUNS", place.runs());
    command
}

/// The result of a command that may be refused or measure: a run's folder tells which.
fn by_shell(place: &Place, command: Command) -> Observed {
    let mut started = Started::new(place, command);
    // Its files are checked instead.
    let _ = started.end();
    match stored(&place.runs()) {
        Some(_) => overcome(place, started, counted),
        None => refused(place, started),
    }
}

fn paused(place: &Place, pause: Duration) -> Observed {
    let mut started = Started::new(place, place.vm_test(&two_cells()));
    let begun = || {
        WalkDir::new(place.runs())
            .into_iter()
            .flatten()
            .any(|entry| entry.file_name() == "console.log")
    };
    assert!(started.wait_for(begun), "no guest began: {}", started.said());
    signal::kill(started.pid(), Signal::SIGSTOP).unwrap();
    sleep(pause);
    signal::kill(started.pid(), Signal::SIGCONT).unwrap();
    overcome(place, started, counted)
}

fn twice(place: &Place) -> Observed {
    let start = || {
        let mut command = place.vm_test(&two_cells());
        command.env("TRAMPLAB_CACHE", place.own_cache());
        Started::new(place, command)
    };
    let (mut one, other) = (start(), start());
    let first = one.end();
    let observed = overcome(place, other, |_, _| "both ran to their ends".to_owned());
    let folders: Vec<PathBuf> = fs::read_dir(place.runs())
        .unwrap()
        .map(|entry| entry.unwrap().path())
        .filter(|path| !path.is_symlink())
        .collect();
    let runs: Vec<Run> = folders.iter().filter_map(|folder| RunDir::load(folder).ok()).collect();
    let results = runs.iter().flat_map(|run| &run.cells).filter(|cell| is_measured(cell)).count();
    let verdict = match (first, runs.len()) {
        (Ok(Some(0)), 2) => observed.verdict,
        (first, runs) => Verdict::Unexpected(format!(
            "{runs} runs, and the first ended with {first:?}: {}",
            one.said()
        )),
    };
    Observed { verdict, kept: Kept { results, of: 4 }, ..observed }
}

/// Covers an existing /dev/kvm with a device that is no KVM.
fn broken_kvm(place: &Place, accel: &str) -> Result<Observed, NotRun> {
    let mut command = place.vm_test_under(accel, &two_cells());
    command.env("TRAMPLAB_CACHE", place.own_cache());
    let command = match Path::new("/dev/kvm").exists() {
        true => with_mounts("mount --bind /dev/null /dev/kvm", &command)?,
        false => command,
    };
    let started = Started::new(place, command);
    Ok(match accel {
        "kvm" => refused(place, started),
        _ => overcome(place, started, |_, said| {
            said.lines()
                .find(|line| line.contains("KVM runs no guest"))
                .unwrap_or_default()
                .to_owned()
        }),
    })
}
