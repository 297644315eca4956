// SPDX-License-Identifier: MIT OR Apache-2.0
//! The fault matrix: each row causes one fault for real, under the real command line, and checks
//! the verdict. With `TRAMPLAB_FAULTS_TABLE=FILE` the rows are also written to FILE, as
//! docs/faults.md has them.

#[path = "../command/mod.rs"]
mod command;
mod observed;
mod place;
mod rows;
mod scene;
mod started;
mod table;

use libtest_mimic::{Arguments, Completion, Trial};
use observed::Observed;
use place::Place;
use std::{
    collections::BTreeMap,
    process::ExitCode,
    sync::{Arc, Mutex},
    thread,
};

/// Names the file for the table.
const TABLE: &str = "TRAMPLAB_FAULTS_TABLE";

/// The reason why this machine cannot run a row.
#[derive(Clone, Debug)]
pub struct NotRun(String);

type Seen = BTreeMap<usize, Result<Observed, NotRun>>;

fn main() -> ExitCode {
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
    let conclusion = libtest_mimic::run(&arguments, trials.chain([documented]).collect());
    if let Some(file) = std::env::var_os(TABLE) {
        let seen = seen.lock().expect("not poisoned");
        std::fs::write(file, table::markdown(&names, &seen)).expect("the table is written");
    }
    conclusion.exit_code()
}
