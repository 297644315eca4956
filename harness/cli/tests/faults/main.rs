// SPDX-License-Identifier: MIT OR Apache-2.0
//! The fault matrix: each row causes one fault for real, under the real command line, and checks
//! the verdict. With `TRAMPLAB_FAULTS_TABLE=FILE` the rows are also written to FILE, as
//! docs/faults.md has them.

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
use observed::Observed;
use place::Place;
use std::{
    collections::{BTreeMap, BTreeSet},
    ffi::OsString,
    path::Path,
    process::ExitCode,
    sync::{Arc, Mutex},
    thread,
};
use tramplab_model::run::Backend;

/// Names the file for the table.
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

type Seen = BTreeMap<usize, Result<Observed, NotRun>>;

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
    let shared = tempfile::Builder::new().prefix("tramplab-faults-").tempdir().expect("a folder");
    // Keep the snapshots apart from the user's.
    let cache = shared.path().join("cache");
    let seen: Arc<Mutex<Seen>> = Arc::default();
    let rows = rows::all();
    let names: Vec<&str> = rows.iter().map(|row| row.fault).collect();
    let documented = {
        let names = names.clone();
        Trial::test("docs/faults.md names every row", move || match table::documented() {
            documented if documented == names => Ok(()),
            documented => Err(format!("expected {names:#?}, found {documented:#?}").into()),
        })
    };
    let checked =
        Trial::test("drawn faults: broken promises are found", || Ok(promises::are_checked()?));
    let jumps = Trial::test("drawn faults: clocks jump", || Ok(disturbed::clocks_jump()?));
    let trials = rows.into_iter().enumerate().map(|(number, row)| {
        let (seen, cache) = (Arc::clone(&seen), cache.clone());
        Trial::ignorable_test(row.fault, move || {
            let place = Place::new(row.vm, &cache).map_err(|error| error.to_string())?;
            let result = scene::play(&row, &place);
            seen.lock().expect("not poisoned").insert(number, result.clone());
            match result {
                Ok(observed) => match row.wrong(&observed) {
                    None => Ok(Completion::Completed),
                    Some(why) => Err(format!("{why}\n{observed:#?}").into()),
                },
                Err(NotRun(why)) => Ok(Completion::ignored_with(why)),
            }
        })
    });
    let kinds: Arc<Mutex<Vec<BTreeSet<&str>>>> = Arc::default();
    let trials = trials.chain([documented, checked, jumps]).chain(drawn(shared.path(), &kinds));
    let conclusion = libtest_mimic::run(&arguments, trials.collect());
    let kinds = kinds.lock().expect("not poisoned");
    let all: BTreeSet<&str> = kinds.iter().flatten().copied().collect();
    if kinds.len() == LANES && !injection::KINDS.iter().all(|kind| all.contains(kind)) {
        eprintln!("of all faults only these kinds took place: {all:?}");
        return ExitCode::FAILURE;
    }
    if let Some(file) = std::env::var_os(TABLE) {
        let seen = seen.lock().expect("not poisoned");
        std::fs::write(file, table::markdown(&names, &seen)).expect("the table is written");
    }
    conclusion.exit_code()
}

fn number((name, default): (&str, usize)) -> usize {
    std::env::var(name).map_or(default, |text| {
        text.parse().unwrap_or_else(|error| panic!("{name}={text}: expected a number: {error}"))
    })
}

/// Tests that together cause the wanted number of drawn faults. Each adds the kinds that took
/// place.
fn drawn(
    shared: &Path,
    kinds: &Arc<Mutex<Vec<BTreeSet<&'static str>>>>,
) -> impl Iterator<Item = Trial> {
    // Apart from the other rows' cache, which changes.
    let cache = shared.join("drawn").join("cache");
    let (wanted, first) = (number(DRAWN).div_ceil(LANES), number(SEED));
    (first..first + LANES).map(move |lane| {
        let (cache, kinds) = (cache.clone(), Arc::clone(kinds));
        Trial::test(format!("drawn faults, seed {lane}"), move || {
            std::fs::create_dir_all(&cache)?;
            let mut happened = Vec::new();
            for seed in (lane as u64..).step_by(LANES) {
                let place = Place::new(Backend::Qemu, &cache)?;
                // At once: other seeds may take hours.
                let faults = disturbed::play(seed, COMMANDS, &place)
                    .inspect_err(|why| eprintln!("seed {seed}: {why}"))?;
                eprintln!("seed {seed}: {} faults", faults.len());
                happened.extend(faults);
                if happened.len() >= wanted {
                    break;
                }
            }
            let own = happened.iter().map(injection::Injection::kind).collect();
            kinds.lock().expect("not poisoned").push(own);
            Ok(())
        })
    })
}
