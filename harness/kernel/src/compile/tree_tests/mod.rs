// SPDX-License-Identifier: MIT OR Apache-2.0
//! Builds the kernel tree's own `bench`, `test_progs` and kselftest programs, from the same sources
//! as a kernel, in the same folder and confinement.
//!
//! Their Makefile writes into the sources, which must not change here. So it runs in a copy of
//! `tools/`, with links to the rest. The copy is made anew each time, inside the confinement. The
//! results stay in `selftests/out` of the build folder and are kept with the base.

mod collect;
mod job;
mod sources;
#[cfg(test)]
mod tests;

use super::{
    BuildError, Builder, Events,
    builder::Holds,
    error::io_error,
    make::Make,
    output::{read_record, write_record},
    toolchain::{self, BpfTools},
};
use crate::tree_tests::DenyList;
use job::{Job, Made};
use serde::{Deserialize, Serialize};
use std::{
    collections::{BTreeMap, BTreeSet},
    fs, io,
    path::{Path, PathBuf},
    time::Instant,
};
use tramplab_model::{
    run::{Arch, Test},
    tree_tests::{FOLDER, Name, Program, WantedTests},
};

/// Version of the procedure, like `compile::RECIPE`.
const RECIPE: &str = "5";

const KIND: &str = "kernel-selftests";

/// The folder of the built tests in the guest.
pub const IN_GUEST: &str = "selftests";

const BENCH: &str = "bench";
const TEST_PROGS: &str = "test_progs";
/// Subfolder for programs of folders other than BPF's, in the build and in the guest.
pub const PROGRAMS: &str = "kselftest";

/// Built tests in the cache.
#[derive(Clone, Debug)]
pub struct TreeTests {
    /// Files to add to a guest's root, under their paths there.
    pub root: PathBuf,
    pub record: TreeTestsRecord,
    /// Tests that the tree denies.
    pub denied: DenyList,
}

#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct TreeTestsRecord {
    pub key: String,
    pub seconds: f64,
    /// The tests of `test_progs`, each with its file.
    pub tests: BTreeMap<Name, String>,
    /// Programs of other folders.
    pub programs: BTreeSet<Program>,
    /// Targets that the tree has but that do not build: `bench`, `test_progs/TEST`,
    /// `kselftest/PROGRAM`.
    pub broken: BTreeMap<String, Broken>,
    pub clang: Option<String>,
    /// SHA-256 of the files for a guest's root. The same key may have other contents on a host with
    /// other libraries.
    pub contents: String,
}

/// Why something does not build.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Broken {
    pub reason: String,
    /// True if the same sources always fail like this. Otherwise the next run tries again: a tool
    /// was missing, or a compiler was killed.
    pub lasts: bool,
}

impl TreeTestsRecord {
    /// Returns why one of the tree's tests is not built.
    pub fn broken(&self, test: &Test) -> Option<&str> {
        let error = match test {
            Test::Bench(_) => self.broken.get(BENCH),
            test => self.broken.get(&test.name()),
        };
        error.map(|broken| broken.reason.as_str())
    }

    /// True if another run would give the same result.
    fn lasts(&self) -> bool {
        self.broken.values().all(|broken| broken.lasts)
    }
}

impl Builder<'_> {
    /// Builds the tests of the tree with `count` patches.
    pub fn build_tree_tests(
        &mut self,
        count: usize,
        wanted: &WantedTests,
        log: &Path,
        events: &mut Events,
    ) -> Result<TreeTests, BuildError> {
        let count = count.min(self.order.patches.len());
        let clang = match wanted.bpf() {
            true => Some(toolchain::find_bpf(
                &self.order.toolchain,
                self.order.arch,
                wanted.test_progs(),
                self.order.system(),
            )?),
            false => None,
        };
        let key = {
            let mut words = vec![RECIPE.to_owned(), self.key(count), format!("{wanted:?}")];
            words.extend(clang.iter().map(|clang| clang.version.clone()));
            super::digest(words.iter().map(String::as_str))
        };
        let arch = self.order.arch;
        // Each attempt has an entry. Users of an unlasting result keep its entry; later runs skip
        // it.
        let mut place = key.clone();
        for attempt in 2.. {
            let Some(entry) = self.cache.get(KIND, &place) else { break };
            let found = built(&entry, arch)?;
            if found.record.lasts() || self.tried.contains(&place) {
                return Ok(found);
            }
            place = format!("{key}-{attempt}");
        }
        // Opens the workspace first, as in `build`.
        self.open(events)?;
        let cache = self.cache;
        let entry = cache.entry(KIND, &place, |folder| {
            let start = Instant::now();
            let made = self.make_tree_tests(count, wanted, clang.as_ref(), folder, log, events)?;
            let record = TreeTestsRecord {
                key: key.clone(),
                seconds: start.elapsed().as_secs_f64(),
                tests: made.tests,
                programs: made.programs,
                broken: made.broken,
                clang: clang.as_ref().map(|clang| clang.version.clone()),
                contents: collect::contents(&folder.join("root"))?,
            };
            write_record(folder, &record)
        });
        let entry = entry.inspect_err(|error| self.give_back(error))?;
        self.tried.insert(place);
        built(&entry, arch)
    }

    /// Builds the tests and copies the files for a guest into `folder`.
    fn make_tree_tests(
        &mut self,
        count: usize,
        wanted: &WantedTests,
        clang: Option<&BpfTools>,
        folder: &Path,
        log: &Path,
        events: &mut Events,
    ) -> Result<Made, BuildError> {
        // `build/` must hold the kernel. If the kernel came from the cache, it does not.
        let (holds, applied) = (self.opened().build, self.opened().applied);
        if holds == Holds::Unknown || applied != count {
            self.require_base(log, events)?;
            if count == 0 && self.opened().aside.is_none() {
                self.take_out()?;
                self.order.stage(events, "copying the base")?;
                self.opened().workspace.begin_series()?;
                self.opened().build = Holds::Series;
            } else if count > 0 {
                self.with_patches(count, log, events)?;
            }
        }
        let order = self.order;
        let system = order.system();
        let ccache = self.ccache(count == 0, log)?;
        let mut tools = self.tools.clone();
        tools.programs.extend(clang.iter().flat_map(|clang| clang.programs.iter().cloned()));
        let open = self.opened();
        let (source, build) = (open.workspace.source(), open.workspace.build());
        let make = Make {
            tools: &tools,
            confinement: order.confinement.as_ref(),
            source: &source,
            build: &build,
            ccache,
            log,
        };
        let mut job = Job::new(order, wanted, clang, make, &mut open.build)?;
        job.build(events)?;
        let collect = |out: &Path, made: &[String]| {
            collect::collect(out, &source.join(FOLDER), folder, order.arch, system.folder(), made)
        };
        let made = job.finish(collect, events)?;
        if count == 0 && self.opened().aside.is_none() {
            order.stage(events, "keeping the base")?;
            let workspace = &self.opened().workspace;
            if let Some(state) = workspace.base_state() {
                workspace.keep_base(&state)?;
            }
        }
        Ok(made)
    }
}

impl Broken {
    /// Omits the log's path: the record outlives the log, and may be reused for a kernel with
    /// another name.
    fn of(error: &BuildError) -> Broken {
        let reason = match error {
            BuildError::Compile { error, .. } => error.to_string(),
            error => error.to_string(),
        };
        Broken { reason, lasts: error.lasts() }
    }
}

fn deny_lists(arch: Arch) -> [String; 2] {
    ["DENYLIST".to_owned(), format!("DENYLIST.{}", arch.platform().machine)]
}

fn built(entry: &Path, arch: Arch) -> Result<TreeTests, BuildError> {
    let record = read_record(entry)?;
    let mut denied = DenyList::default();
    for name in deny_lists(arch) {
        match fs::read_to_string(entry.join("deny").join(&name)) {
            Ok(text) => denied = denied.and(DenyList::parse(&text, &name)),
            Err(error) if error.kind() == io::ErrorKind::NotFound => {}
            Err(error) => return Err(io_error("read", &entry.join("deny").join(&name))(error)),
        }
    }
    Ok(TreeTests { root: entry.join("root"), record, denied })
}
