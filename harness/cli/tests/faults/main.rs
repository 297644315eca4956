// SPDX-License-Identifier: MIT OR Apache-2.0
//! The fault matrix: each row causes one fault for real, under the real command line, and checks
//! the verdict. A sample of the rows runs in every test run, the others in the full tier.
//!
//! With `TRAMPLAB_FAULTS_TABLE=FOLDER` each row is also written to a file there, with the words of
//! its verdict, its seconds, what it left behind and the results kept. docs/faults.md has the rows.

#[path = "../command/mod.rs"]
mod command;
mod disturbed;
mod injection;
mod observed;
mod place;
mod promises;
mod rows;
mod scene;
mod started;
mod table;
mod wire;

use libtest_mimic::{Arguments, Completion, Trial};
use place::Place;
use std::{
    collections::BTreeSet,
    ffi::OsString,
    fs::File,
    io::Write,
    path::{Path, PathBuf},
    process::ExitCode,
    thread,
};
use tramplab_model::run::Backend;

/// Names the folder for the table's rows.
const TABLE: &str = "TRAMPLAB_FAULTS_TABLE";
/// The number of faults that are drawn from seeds.
const DRAWN: (&str, usize) = ("TRAMPLAB_FAULTS_DRAWN", 100);
/// The first seed.
const SEED: (&str, usize) = ("TRAMPLAB_FAULTS_SEED", 1);
/// Tests that draw faults at the same time.
const LANES: usize = 4;
/// Disturbed commands of a seed.
const COMMANDS: u32 = 10;

/// The reason why this machine cannot run a row.
#[derive(Clone, Debug)]
pub struct NotRun(String);

fn main() -> ExitCode {
    let words: Vec<OsString> = std::env::args_os().skip(1).collect();
    if let [first, qemu @ ..] = &words[..]
        && first == wire::IN_PLACE_OF_QEMU
    {
        return wire::in_place_of_qemu(qemu);
    }
    let mut arguments = Arguments::from_args();
    // Most rows sleep: they wait for a silence to become long enough.
    let processors = thread::available_parallelism().map_or(1, usize::from);
    arguments.test_threads = arguments.test_threads.or(Some(2 * processors));
    // Keep the snapshots apart from the user's. nextest's processes share the folder of the run.
    let own = tempfile::Builder::new().prefix("tramplab-faults-").tempdir().expect("a folder");
    let shared = match std::env::var_os("NEXTEST_RUN_ID") {
        Some(run) => std::env::temp_dir().join(format!("tramplab-faults-{}", run.display())),
        None => own.path().to_owned(),
    };
    let cache = shared.join("cache");
    let rows = rows::all();
    let names: Vec<&str> = rows.iter().map(|row| row.fault).collect();
    let sampled = rows.iter().filter(|row| row.is_sampled()).count();
    assert_eq!(sampled, rows::SAMPLE.len(), "each name of the sample is a row's");
    let documented =
        Trial::test("docs/faults.md names every row", move || match table::documented() {
            documented if documented == names => Ok(()),
            documented => Err(format!("expected {names:#?}, found {documented:#?}").into()),
        });
    let checked =
        Trial::test("drawn faults: broken promises are found", || Ok(promises::are_checked()?));
    let jumps = Trial::test("drawn faults: clocks jump", || Ok(disturbed::clocks_jump()?));
    let trials = rows.into_iter().enumerate().map(|(number, row)| {
        let cache = cache.clone();
        let is_sampled = row.is_sampled();
        let trial = Trial::ignorable_test(row.fault, move || {
            let place = Place::new(row.vm, &cache).map_err(|error| error.to_string())?;
            let result = scene::play(&row, &place);
            if let Some(folder) = std::env::var_os(TABLE) {
                let file = Path::new(&folder).join(format!("{number:02}"));
                std::fs::write(file, table::row(row.fault, &result))?;
            }
            match result {
                Ok(observed) => match row.wrong(&observed) {
                    None => Ok(Completion::Completed),
                    Some(why) => Err(format!("{why}\n{observed:#?}").into()),
                },
                Err(NotRun(why)) => {
                    // nextest takes it for a pass: `cargo xtask test` prints these lines.
                    let mut file = File::options().append(true).create(true).open(not_run())?;
                    writeln!(file, "{}: {why}", row.fault)?;
                    Ok(Completion::ignored_with(why))
                }
            }
        });
        trial.with_ignored_flag(!is_sampled)
    });
    // Apart from the other rows' cache, which changes.
    let cache = shared.join("drawn").join("cache");
    let drawn = Trial::test("drawn faults: promises hold", move || Ok(drawn(&cache)?));
    let drawn = drawn.with_ignored_flag(true);
    let jumps = jumps.with_ignored_flag(true);
    let trials = trials.chain([documented, checked, jumps, drawn]);
    libtest_mimic::run(&arguments, trials.collect()).exit_code()
}

fn not_run() -> PathBuf {
    std::env::temp_dir().join("not-run")
}

fn number((name, default): (&str, usize)) -> usize {
    std::env::var(name).map_or(default, |text| {
        text.parse().unwrap_or_else(|error| panic!("{name}={text}: expected a number: {error}"))
    })
}

/// Causes the wanted number of drawn faults, several commands at a time. Each kind must take place.
fn drawn(cache: &Path) -> Result<(), String> {
    std::fs::create_dir_all(cache).map_err(|error| error.to_string())?;
    let (wanted, first) = (number(DRAWN).div_ceil(LANES), number(SEED));
    let lanes = thread::scope(|scope| {
        let lane = |lane| scope.spawn(move || drawn_in_a_lane(lane, wanted, cache));
        let lanes: Vec<_> = (first..first + LANES).map(lane).collect();
        let lanes = lanes.into_iter().map(|lane| lane.join().expect("does not panic"));
        lanes.collect::<Result<Vec<_>, String>>()
    })?;
    let all: BTreeSet<&str> = lanes.into_iter().flatten().collect();
    match injection::KINDS.iter().all(|kind| all.contains(kind)) {
        true => Ok(()),
        false => Err(format!("of all faults only these kinds took place: {all:?}")),
    }
}

/// Causes faults of every `LANES`th seed. Returns the kinds that took place.
fn drawn_in_a_lane(
    lane: usize,
    wanted: usize,
    cache: &Path,
) -> Result<BTreeSet<&'static str>, String> {
    let mut happened = Vec::new();
    for seed in (lane as u64..).step_by(LANES) {
        let place = Place::new(Backend::Qemu, cache).map_err(|error| error.to_string())?;
        let faults =
            disturbed::play(seed, COMMANDS, &place).map_err(|why| format!("seed {seed}: {why}"))?;
        // At once: other seeds may take hours.
        eprintln!("seed {seed}: {} faults", faults.len());
        happened.extend(faults);
        if happened.len() >= wanted {
            break;
        }
    }
    Ok(happened.iter().map(injection::Injection::kind).collect())
}
