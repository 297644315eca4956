// SPDX-License-Identifier: MIT OR Apache-2.0
//! The commands that complete an interrupted run, printed after it.

use std::path::{Path, PathBuf};
use tramplab_host::runs::{RunDir, running};
use tramplab_lab::rest::{Interrupted, REST_OF, resolved, words};
use tramplab_model::run::Run;

/// Prints how to measure the missing cells of a run.
pub fn tell(run: &Run, run_dir: &RunDir) {
    let is_of_vm_test =
        run.joined.is_none() && run.command.get(1).is_some_and(|command| command == "vm-test");
    if run.missing.is_empty() || !is_of_vm_test || running::is_going_on(run_dir) {
        return;
    }
    let first = first(run, &resolved(run_dir));
    let words = ["cargo", "xtask", "vm-test", REST_OF, &first].into_iter().chain(words(run));
    let what = match run.rest_of {
        None => "to measure the missing cells",
        Some(_) => "this rest is incomplete; to measure all missing cells again",
    };
    eprintln!("{what}: {}", shell_words::join(words));
}

/// The run to name with `--rest-of`. A rest has no rest of its own: the missing cells of its first
/// run are measured again.
fn first(run: &Run, folder: &Path) -> String {
    let Some(id) = &run.rest_of else { return folder.display().to_string() };
    // As it was named, unless `latest` is another run by now; else beside the rest.
    let named = run.command.iter().skip_while(|word| *word != REST_OF).nth(1).map(PathBuf::from);
    let places = named.into_iter().chain([folder.with_file_name(id)]);
    let is_it = |place: &PathBuf| RunDir::load(place).is_ok_and(|found| found.id == *id);
    places.into_iter().find(is_it).map_or_else(|| id.clone(), |place| place.display().to_string())
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
