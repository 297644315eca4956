// SPDX-License-Identifier: MIT OR Apache-2.0
//! The fault matrix: everything that may go wrong, brought about for real under the real command line, one row each. Every row is a test;
//! `cargo xtask faults` has them written as a table.

#[path = "../command/mod.rs"]
mod command;
mod observed;
mod place;
mod rows;
mod scene;
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

/// Where the table goes, if anywhere.
const TABLE: &str = "TRAMPLAB_FAULTS_TABLE";

/// Why a row could not be tried on this machine.
#[derive(Clone, Debug)]
pub struct NotRun(String);

type Seen = BTreeMap<usize, Result<Observed, NotRun>>;

fn main() -> ExitCode {
    let mut arguments = Arguments::from_args();
    // Most rows wait for a silence to be long enough.
    let processors = thread::available_parallelism().map_or(1, usize::from);
    arguments.test_threads = arguments.test_threads.or(Some(2 * processors));
    let shared = tempfile::Builder::new().prefix("tramplab-faults-").tempdir().expect("a folder");
    // Guests that have booted are kept here: none of the user's own.
    let cache = shared.path().join("cache");
    let seen: Arc<Mutex<Seen>> = Arc::default();
    let rows = rows::all();
    let names: Vec<&str> = rows.iter().map(|row| row.fault).collect();
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
    let conclusion = libtest_mimic::run(&arguments, trials.collect());
    if let Some(file) = std::env::var_os(TABLE) {
        let seen = seen.lock().expect("not poisoned");
        std::fs::write(file, table::markdown(&names, &seen)).expect("the table is written");
    }
    conclusion.exit_code()
}
