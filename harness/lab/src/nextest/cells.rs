// SPDX-License-Identifier: MIT OR Apache-2.0
//! The cells of a run as tests of nextest.
//!
//! This program is its own test binary: with a plan in its environment, its tests are the cells.
//! nextest lists, filters, shards, schedules, times out and interrupts them in this process. Its
//! reports become [`JobEvent`]s; results come from the cells' files.

use super::{Host, environment, nextest, quiet, runner};
use crate::{
    error::{Context, Error, Result},
    place::place,
};
use camino::{Utf8Path, Utf8PathBuf};
use guppy::{PackageId, graph::PackageGraph};
use nextest_filtering::{Filterset, FiltersetKind, ParseContext};
use nextest_metadata::{
    BuildPlatform, FilterMatch, MismatchReason, RustBinaryId, RustTestBinaryKind,
};
use nextest_runner::{
    cargo_config::EnvironmentMap,
    config::{core::NextestConfig, elements::TestThreads},
    list::{RustBuildMeta, RustTestArtifact, TestList},
    output_spec::LiveSpec,
    partition::PartitionerBuilder,
    platform::BuildPlatforms,
    reporter::events::{
        ChildExecutionOutputDescription, ChildOutputDescription, ExecutionResultDescription,
        ReporterEvent, RunOutcome, TestEventKind,
    },
    reuse_build::PathMapper,
    run_mode::NextestRunMode,
    runner::TestRunnerBuilder,
    test_filter::{FilterBound, RunIgnored, TestFilter, TestFilterPatterns},
};
use std::{collections::BTreeSet, num::NonZeroUsize, str::FromStr, time::Duration};
use tramplab_model::run;
use tramplab_suite::{Plan, plan::PLAN_ENV};
use tramplab_vm::brief;

/// Where nothing is timed all cells may run at once, whatever their names.
const TIMED: &str = "cells";
const UNTIMED: &str = "untimed";

/// The cells to run, and their number at once.
#[derive(Clone, Debug, Default)]
pub struct Selection {
    /// nextest filtersets; a cell that matches one of them runs.
    pub filtersets: Vec<String>,
    pub partition: Option<Partition>,
    /// Cells at once. Timed cells always run alone. `None`: two more than there are CPUs.
    pub jobs: Option<NonZeroUsize>,
    /// Parts of cells' names: whole parts between slashes, else any part.
    pub names: Vec<String>,
    /// Whole names of jobs. Empty: all.
    pub jobs_named: Vec<String>,
}

/// One shard of the cells: `hash:1/2`, `count:2/4` or `slice:1/3`.
#[derive(Clone, Debug)]
pub struct Partition(PartitionerBuilder);

impl FromStr for Partition {
    type Err = String;

    fn from_str(text: &str) -> Result<Partition, String> {
        text.parse().map(Partition).map_err(|error| error.to_string())
    }
}

/// An event of a job, as nextest reports it.
pub enum JobEvent<'a> {
    /// The selected jobs. None has started yet.
    Selected {
        jobs: Vec<String>,
        part: Option<Part>,
    },
    Started {
        job: &'a str,
    },
    Slow {
        job: &'a str,
        elapsed: Duration,
        will_terminate: bool,
    },
    /// `how` says how the process ended, for a job that left no result.
    Finished {
        job: &'a str,
        how: String,
        timed_out: bool,
        taken: Duration,
    },
    Cancelled,
}

/// The shard that runs, and the jobs of all shards.
pub struct Part {
    pub partition: String,
    pub jobs: Vec<String>,
}

pub enum End {
    Done,
    Interrupted,
}

/// The cells of a plan as nextest sees them: tests of this program.
pub struct Cells {
    /// nextest wants a package for its tests, which this program has only in its repository.
    graph: PackageGraph,
    /// Where the cells run, and what nextest takes for a workspace.
    root: Utf8PathBuf,
    program: Utf8PathBuf,
}

const PACKAGE: &str = "tramplab";
const BINARY: &str = "cells";

impl Cells {
    pub fn new() -> Result<Cells> {
        let utf8 = |path| Utf8PathBuf::try_from(path).map_err(nextest);
        let root = utf8(place().data())?;
        let program = std::env::current_exe().context("failed to find this program's file")?;
        let graph = PackageGraph::from_json(metadata(&root).to_string()).map_err(nextest)?;
        Ok(Cells { graph, root, program: utf8(program)? })
    }

    /// This program as a test binary.
    fn artifact(&self) -> Result<RustTestArtifact<'_>> {
        let package = self.graph.metadata(&PackageId::new(id(&self.root))).map_err(nextest)?;
        Ok(RustTestArtifact {
            binary_id: RustBinaryId::new(&format!("{PACKAGE}::{BINARY}")),
            package,
            binary_path: self.program.clone(),
            binary_name: BINARY.to_owned(),
            kind: RustTestBinaryKind::TEST,
            non_test_binaries: BTreeSet::new(),
            cwd: self.root.clone(),
            build_platform: BuildPlatform::Target,
        })
    }

    /// Rejects an unreadable selection before any work.
    pub fn check(&self, selection: &Selection) -> Result<()> {
        self.filtersets(selection, UNTIMED).map(drop)
    }

    fn filtersets(&self, selection: &Selection, profile: &str) -> Result<Vec<Filterset>> {
        let context = ParseContext::new(&self.graph);
        let config = config(&self.root, &context)?;
        let groups = config.profile(profile).map_err(nextest)?.known_groups();
        let parse =
            |text: &String| Filterset::parse(text.clone(), &context, FiltersetKind::Test, &groups);
        selection.filtersets.iter().map(parse).collect::<Result<Vec<_>, _>>().map_err(|e| {
            let errors: Vec<String> = e.errors.iter().map(ToString::to_string).collect();
            Error::Usage(format!("the filterset `{}` is wrong: {}", e.input, errors.join("; ")))
        })
    }

    fn filter(&self, plan: &Plan, selection: &Selection, profile: &str) -> Result<TestFilter> {
        let filtersets = self.filtersets(selection, profile)?;
        let patterns = patterns(plan, selection)?;
        TestFilter::new(NextestRunMode::Test, RunIgnored::Default, patterns, filtersets)
            .map_err(nextest)
    }

    /// Runs the selected cells of a plan, or with `list` only names them.
    pub fn run(
        &self,
        plan: &Plan,
        selection: &Selection,
        list: bool,
        mut sink: impl FnMut(JobEvent<'_>) + Send,
    ) -> Result<End> {
        let profile = if plan.is_timed() { TIMED } else { UNTIMED };
        let environment = variables(plan)?;
        let context = ParseContext::new(&self.graph);
        let filter = self.filter(plan, selection, profile)?;
        let config = config(&self.root, &context)?;
        let profile = config.profile(profile).map_err(nextest)?;
        let platforms = BuildPlatforms::new_with_no_target().map_err(nextest)?;
        let profile = profile.apply_build_platforms(&platforms);
        // No file is written there: `cells` has no reports of nextest's own.
        let target = self.root.join("target");
        let meta =
            RustBuildMeta::new(target.clone(), target, platforms).map_paths(&PathMapper::noop());
        let host = Host::new();
        let execute = host.context(&profile);
        let tests = TestList::new(
            &execute,
            [self.artifact()?],
            meta,
            &filter,
            selection.partition.as_ref().map(|Partition(partition)| partition),
            self.root.clone(),
            environment,
            &profile,
            FilterBound::DefaultSet,
            1,
            quiet(),
        )
        .map_err(nextest)?;
        if tests.run_count() == 0 {
            return Err(Error::Usage(format!("no cell is selected{}; {ALL}", words(selection))));
        }
        sink(selected(&tests, selection.partition.as_ref()));
        if list {
            return Ok(End::Done);
        }
        let runner = runner(builder(selection.jobs), &execute, &tests, &profile)?;
        let outcome = runner.try_execute(|event| {
            pass_on(&event, &mut sink);
            Ok::<_, std::convert::Infallible>(())
        });
        match outcome.map_err(|e| Error::failed(format!("failed to run the cells: {e}")))? {
            RunOutcome::Cancelled { .. } => Ok(End::Interrupted),
            _ => Ok(End::Done),
        }
    }
}

/// Patterns of the named jobs.
fn patterns(plan: &Plan, selection: &Selection) -> Result<TestFilterPatterns> {
    let mut patterns = TestFilterPatterns::default();
    for part in &selection.names {
        let jobs: Vec<&String> = plan.jobs.iter().map(|job| &job.name).collect();
        let selected = run::select(jobs, |name| name.to_string(), part);
        if selected.is_empty() {
            return Err(Error::Usage(format!("no cell is named `{part}`; {ALL}")));
        }
        selected.iter().for_each(|name| patterns.add_exact_pattern(name.to_string()));
    }
    selection.jobs_named.iter().for_each(|name| patterns.add_exact_pattern(name.clone()));
    Ok(patterns)
}

/// The end of an error about a selection.
const ALL: &str = "--list without a selection names all";

/// The words of a selection that selects nothing.
fn words(selection: &Selection) -> String {
    let filters = selection.filtersets.iter().map(|text| format!("the filterset `{text}`"));
    let names = selection.names.iter().map(|name| format!("`{name}`"));
    let part = selection.partition.iter().map(|Partition(of)| format!("shard {}", named(of)));
    let words: Vec<String> = filters.chain(names).chain(part).collect();
    if words.is_empty() { String::new() } else { format!(" by {}", words.join(" and ")) }
}

/// The variable that names the plan to the cells.
fn variables(plan: &Plan) -> Result<EnvironmentMap> {
    let path = Plan::path(&plan.run_dir);
    let path = path.to_str().ok_or_else(|| {
        Error::Usage(format!("the run's folder must be named in UTF-8: {}", path.display()))
    })?;
    // A JSON string is a TOML string.
    environment(&format!("env.{PLAN_ENV}={}", serde_json::to_string(path)?))
}

fn selected(tests: &TestList, partition: Option<&Partition>) -> JobEvent<'static> {
    let jobs = |is_meant: fn(FilterMatch) -> bool| {
        let meant = tests.iter_tests().filter(|test| is_meant(test.test_info.filter_match));
        meant.map(|test| test.name.to_string()).collect()
    };
    JobEvent::Selected {
        jobs: jobs(|filter_match| filter_match.is_match()),
        part: partition.map(|Partition(partition)| Part {
            partition: named(partition),
            jobs: jobs(is_of_a_part),
        }),
    }
}

fn builder(jobs: Option<NonZeroUsize>) -> TestRunnerBuilder {
    // Two more than CPUs: a cell also waits for the disk, for processes, and for grace periods of
    // its guest.
    let usual = || std::thread::available_parallelism().map_or(1, usize::from) + 2;
    let mut builder = TestRunnerBuilder::default();
    builder.set_test_threads(TestThreads::Count(jobs.map_or_else(usual, usize::from)));
    builder
}

fn config(root: &Utf8Path, context: &ParseContext) -> Result<NextestConfig> {
    let file = Utf8PathBuf::try_from(place().nextest()?).map_err(nextest)?;
    NextestConfig::from_sources(root, context, Some(&file), [], &BTreeSet::new())
        .map_err(nextest)
        .with_context(|| format!("failed to read {file}"))
}

fn id(root: &Utf8Path) -> String {
    format!("path+file://{root}#{PACKAGE}@0.0.0")
}

/// The output of `cargo metadata` for a package whose only target are the cells.
fn metadata(root: &Utf8Path) -> serde_json::Value {
    let (id, target) = (id(root), root.join("target"));
    let package = serde_json::json!({
        "id": id, "name": PACKAGE, "version": "0.0.0", "edition": "2024",
        "manifest_path": root.join("Cargo.toml"),
        "source": null, "license": null, "license_file": null, "description": null,
        "dependencies": [], "features": {}, "metadata": null, "publish": [],
        "authors": [], "categories": [], "keywords": [], "readme": null,
        "repository": null, "homepage": null, "documentation": null,
        "links": null, "default_run": null, "rust_version": null,
        "targets": [{
            "kind": ["test"], "crate_types": ["bin"], "name": BINARY,
            "src_path": root.join("cells.rs"), "edition": "2024",
            "doc": false, "doctest": false, "test": true,
        }],
    });
    let node = serde_json::json!({ "id": id, "dependencies": [], "deps": [], "features": [] });
    serde_json::json!({
        "version": 1,
        "workspace_root": root,
        "target_directory": target,
        "build_directory": target,
        "workspace_members": [id],
        "workspace_default_members": [id],
        "metadata": null,
        "packages": [package],
        "resolve": { "root": null, "nodes": [node] },
    })
}

/// Selected, for this shard or another.
fn is_of_a_part(filter_match: FilterMatch) -> bool {
    matches!(
        filter_match,
        FilterMatch::Matches | FilterMatch::Mismatch { reason: MismatchReason::Partition }
    )
}

/// As it is given on the command line.
fn named(partition: &PartitionerBuilder) -> String {
    use PartitionerBuilder::{Count, Hash, Slice};
    match partition {
        Count { shard, total_shards } => format!("count:{shard}/{total_shards}"),
        Hash { shard, total_shards } => format!("hash:{shard}/{total_shards}"),
        Slice { shard, total_shards } => format!("slice:{shard}/{total_shards}"),
    }
}

fn pass_on(event: &ReporterEvent<'_>, sink: &mut impl FnMut(JobEvent<'_>)) {
    let ReporterEvent::Test(event) = event else { return };
    match &event.kind {
        TestEventKind::TestStarted { test_instance, .. } => {
            sink(JobEvent::Started { job: test_instance.test_name.as_str() });
        }
        TestEventKind::TestSlow { test_instance, elapsed, will_terminate, .. } => {
            sink(JobEvent::Slow {
                job: test_instance.test_name.as_str(),
                elapsed: *elapsed,
                will_terminate: *will_terminate,
            })
        }
        TestEventKind::TestFinished { test_instance, run_statuses, .. } => {
            let last = run_statuses.last_status();
            sink(JobEvent::Finished {
                job: test_instance.test_name.as_str(),
                how: how(&last.result, &last.output),
                timed_out: matches!(last.result, ExecutionResultDescription::Timeout { .. }),
                taken: last.time_taken,
            });
        }
        TestEventKind::RunBeginCancel { .. } => sink(JobEvent::Cancelled),
        _ => {}
    }
}

/// How a job's process ended, and what it said of that.
fn how(
    result: &ExecutionResultDescription,
    output: &ChildExecutionOutputDescription<LiveSpec>,
) -> String {
    let ended = match result {
        ExecutionResultDescription::Fail { failure, .. } => failure.to_string(),
        other => other.as_static_str().to_owned(),
    };
    let said = match output {
        ChildExecutionOutputDescription::Output {
            output: ChildOutputDescription::Combined { output },
            ..
        } => failure_of(output.as_str_lossy()).to_owned(),
        ChildExecutionOutputDescription::StartError(error) => error.to_string(),
        ChildExecutionOutputDescription::Output { .. } => String::new(),
    };
    brief(if said.is_empty() { ended } else { format!("{ended}: {said}") })
}

/// The failure in the output of libtest-mimic; the last line if the test died.
fn failure_of(printed: &str) -> &str {
    let behind =
        printed.split_once("\n---- ").and_then(|(_, rest)| Some(rest.split_once(" ----\n")?.1));
    match behind.and_then(|rest| rest.split("\n\nfailures:").next()) {
        Some(failure) => failure.trim(),
        None => printed.trim().lines().last().unwrap_or_default(),
    }
}

#[cfg(test)]
mod tests {
    use super::failure_of;

    #[test]
    fn a_failure_is_found_in_what_libtest_mimic_prints() {
        let printed = "\nrunning 1 test\ntest a ... FAILED\n\nfailures:\n\n---- a ----\nfailed to \
                       write\nit: full\n\n\nfailures:\n    a\n\n\
                       test result: FAILED. 0 passed; 1 failed\n\n";
        assert_eq!(failure_of(printed), "failed to write\nit: full");
        let died = "running 1 test\n\nthread 'a' has overflowed its stack\nfatal runtime error: \
                    stack overflow\n\n";
        assert_eq!(failure_of(died), "fatal runtime error: stack overflow");
        assert_eq!(failure_of(""), "");
    }
}
