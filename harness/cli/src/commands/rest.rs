// SPDX-License-Identifier: MIT OR Apache-2.0
//! The commands that complete an interrupted run, printed after it.

use tramplab_host::runs::{RunDir, running};
use tramplab_lab::rest::{Interrupted, resolved};
use tramplab_model::run::Run;

const VM_TEST: &str = "vm-test";
const REST_OF: &str = "--rest-of";

/// Prints how to measure the missing cells of a run.
pub fn tell(run: &Run, run_dir: &RunDir) {
    let is_of_vm_test = run.joined.is_none() && run.command.get(1).is_some_and(|command| command == VM_TEST);
    if run.missing.is_empty() || !is_of_vm_test || running::is_going_on(run_dir) {
        return;
    }
    // A rest has no rest of its own: what the first run lacks is measured again.
    let folder = resolved(run_dir);
    let first = run.rest_of.as_ref().map_or_else(|| folder.clone(), |id| folder.with_file_name(id));
    eprintln!("to measure the missing cells: {}", command_line(run, &first.display().to_string()));
}

/// Prints how to make one run of an interrupted one and its rest.
pub fn tell_of_merging(rest: &Run, rest_dir: &RunDir, of: &Interrupted) {
    // A rest that lacks cells is not merged; other shards are known only to whoever started them.
    if rest.missing.is_empty() && rest.shard.is_none() {
        let folders = [of.folder.path().to_owned(), resolved(rest_dir)];
        let folders = folders.iter().map(|folder| folder.display().to_string());
        let words: Vec<String> =
            ["cargo", "xtask", "merge"].map(str::to_owned).into_iter().chain(folders).collect();
        eprintln!("to merge both runs: {}", shell_words::join(words));
    }
}

/// The command line as it was typed, with another `--rest-of`.
fn command_line(run: &Run, rest_of: &str) -> String {
    let mut typed = run.command.iter().skip(2).map(String::as_str);
    let mut words = vec!["cargo", "xtask", VM_TEST, REST_OF, rest_of];
    while let Some(word) = typed.next() {
        if word == REST_OF {
            typed.next();
        } else if !word.starts_with(REST_OF) {
            words.push(word);
        }
    }
    shell_words::join(words)
}
