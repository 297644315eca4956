// SPDX-License-Identifier: MIT OR Apache-2.0
//! This repository's tests: built by cargo, run by nextest as `.config/nextest.toml` says.

use super::{
    Host, environment,
    journal::Journal,
    nextest, quiet, runner,
    targets::{self, Build},
    watch,
};
use crate::{
    artifacts,
    error::{Context, Error, Result},
    interrupt::Interrupt,
};
use camino::{Utf8Path, Utf8PathBuf};
use guppy::graph::PackageGraph;
use nextest_filtering::{Filterset, FiltersetKind, KnownGroups, ParseContext};
use nextest_runner::{
    cargo_config::EnvironmentMap,
    config::core::{ConfigExperimental, NextestConfig},
    helpers::ShowTerminalProgress,
    list::{
        BinaryList, BinaryListBuilder, RustBuildMeta, RustTestArtifact, TestList, TestListState,
    },
    platform::BuildPlatforms,
    record::ComputedRerunInfo,
    reporter::{
        ReporterBuilder, ReporterOutput, events::RunOutcome, structured::StructuredReporter,
    },
    reuse_build::PathMapper,
    run_mode::NextestRunMode,
    runner::TestRunnerBuilder,
    test_filter::{FilterBound, RunIgnored, TestFilter, TestFilterPatterns},
};
use std::{
    collections::BTreeSet,
    fs,
    io::{self, BufRead, BufReader},
    path::Path,
    process::{Command, Stdio},
    str::FromStr,
    sync::Arc,
    thread,
    time::{Duration, Instant},
};
use tramplab_host::{child::Group, rust::target};
use tramplab_model::run::Arch;

pub use super::targets::Target;

/// Tests and steps that are listed at the end.
const SLOWEST: usize = 10;

/// In the tests' TMPDIR: those that this machine cannot run, and why, one a line.
const NOT_RUN: &str = "not-run";

/// Binaries that list their tests at the same time.
const LISTERS: usize = 2;

/// The parts of the full tier. A test belongs to the first whose filterset matches.
const PARTS: [(&str, &str); 5] = [
    ("kvm", "test(/^nested::/)"),
    ("faults", "binary(faults)"),
    ("survive", "test(/^survive::/)"),
    ("kernels", "test(/^(bisect|hostile_build|kernel_config|tree_tests|series)::/)"),
    ("rest", "all()"),
];

/// The tests to run. CONTRIBUTING.md says which tier checks what.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Tier {
    /// Those that are not `#[ignore]`d.
    Quick,
    Full,
    /// A part of the full tier, by its number in `PARTS`.
    Part(usize),
}

impl Tier {
    pub const FULL: &str = "all";

    fn name(self) -> &'static str {
        match self {
            Tier::Quick => "quick",
            Tier::Full => Tier::FULL,
            Tier::Part(number) => PARTS[number].0,
        }
    }

    /// nextest's filterset.
    fn filterset(self) -> Option<String> {
        let Tier::Part(number) = self else { return None };
        let (earlier, (_, own)) = (&PARTS[..number], PARTS[number]);
        let earlier = earlier.iter().map(|(_, filterset)| format!(" - ({filterset})"));
        Some(format!("({own}){}", earlier.collect::<String>()))
    }

    /// The time that a hanging test gets.
    fn limit(self) -> Duration {
        match self {
            Tier::Quick => Duration::from_hours(1),
            Tier::Full | Tier::Part(_) => Duration::from_hours(3),
        }
    }
}

impl FromStr for Tier {
    type Err = String;

    fn from_str(text: &str) -> Result<Tier, String> {
        if text == Tier::FULL {
            return Ok(Tier::Full);
        }
        PARTS.iter().position(|(name, _)| *name == text).map(Tier::Part).ok_or_else(|| {
            let names = PARTS.map(|(name, _)| name).join(", ");
            format!("no such part; there are: {names}, and `{}` of them", Tier::FULL)
        })
    }
}

/// The tests to build and run.
pub struct Choice {
    pub tier: Tier,
    /// Empty: all packages.
    pub targets: Vec<Target>,
    /// Parts of tests' names. Empty: all.
    pub names: Vec<String>,
    /// Skips the tests that an earlier, interrupted call passed on the same sources.
    pub resume: bool,
}

impl Choice {
    /// Names the journal. A choice of some tests leaves that of its tier alone.
    fn name(&self) -> &'static str {
        if self.targets.is_empty() && self.names.is_empty() { self.tier.name() } else { "some" }
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum End {
    Passed,
    Failed,
    Interrupted,
}

/// The repository and its packages.
pub struct OwnTests {
    root: Utf8PathBuf,
    graph: PackageGraph,
}

impl OwnTests {
    pub fn new(root: &Path) -> Result<OwnTests> {
        let root = Utf8PathBuf::try_from(root.to_owned()).map_err(nextest)?;
        let mut metadata = guppy::MetadataCommand::new();
        metadata.cargo_path(artifacts::cargo()).current_dir(&root);
        Ok(OwnTests { graph: metadata.build_graph().map_err(nextest)?, root })
    }

    /// Cargo's calls for a choice.
    pub fn builds(&self, choice: &Choice) -> Result<Vec<Build>> {
        let is_wrong = |name: &&String| name.is_empty() || name.starts_with('-');
        if let Some(word) = choice.names.iter().find(is_wrong) {
            return Err(Error::Usage(format!(
                "expected parts of tests' names behind `--`, got `{word}`"
            )));
        }
        targets::builds(&self.graph, &choice.targets)
    }

    /// Builds and runs tests. `say` gets lines for the user.
    pub fn run(&self, choice: &Choice, colour: bool, say: &(dyn Fn(&str) + Sync)) -> Result<End> {
        let builds = self.builds(choice)?;
        let interrupt = Interrupt::watch()?;
        let store = self.root.join("target/nextest");
        fs::create_dir_all(&store)?;
        let journal = store.join(choice.name()).with_extension("tsv");
        let mut journal = Journal::open(&self.root, journal, choice.resume)?;
        let platforms = BuildPlatforms::new_with_no_target().map_err(nextest)?;
        let (binaries, meta) = self.binaries(&builds, &platforms, &interrupt, &mut journal)?;
        let context = ParseContext::new(&self.graph);
        let config = self.config(&context)?;
        let profile = config.profile(NextestConfig::DEFAULT_PROFILE).map_err(nextest)?;
        let filter = filter(choice, journal.passed(), &context, &profile.known_groups())?;
        let profile = profile.apply_build_platforms(&platforms);
        // Files of killed tests end with this folder.
        let temporary = tempfile::Builder::new().prefix("tramplab-test-").tempdir()?;
        let host = Host::new();
        let execute = host.context(&profile);
        let tests = TestList::new(
            &execute,
            binaries,
            meta,
            &filter,
            None,
            self.root.clone(),
            variables(&store, temporary.path())?,
            &profile,
            FilterBound::All,
            LISTERS,
            quiet(),
        )
        .map_err(nextest)?;
        if tests.run_count() == 0 {
            return nothing_to_run(choice, &builds, &journal, say);
        }
        let runner = runner(TestRunnerBuilder::default(), &execute, &tests, &profile)?;
        let mut reporter = ReporterBuilder::default().set_colorize(colour).build(
            &tests,
            &profile,
            ShowTerminalProgress::No,
            ReporterOutput::Terminal,
            StructuredReporter::new(),
        );
        // From here on nextest handles signals.
        if interrupt.came() {
            return Err(Error::Interrupted);
        }
        drop(interrupt);
        watch::adopt_orphans()?;
        let outcome = watch::limited(choice.tier.limit(), say, || {
            runner.try_execute(|event| {
                journal.note(&event);
                reporter.report_event(event)
            })
        });
        reporter.finish();
        let left = watch::clear(matches!(outcome, Ok(RunOutcome::Cancelled { .. })));
        let outcome =
            outcome.map_err(|error| Error::failed(format!("failed to run the tests: {error}")))?;
        say("the slowest, in seconds:");
        for (seconds, name) in journal.slowest(SLOWEST) {
            say(&format!("{seconds:9.1}  {name}"));
        }
        for command in &left {
            journal.left(command);
            say(&format!("killed, as a test left it: {command}"));
        }
        let not_run = fs::read_to_string(temporary.path().join(NOT_RUN)).unwrap_or_default();
        not_run.lines().for_each(|line| say(&format!("not run: {line}")));
        Ok(match outcome {
            RunOutcome::Cancelled { .. } => {
                say("interrupted; --resume skips what passed");
                End::Interrupted
            }
            RunOutcome::Success if left.is_empty() => End::Passed,
            _ => End::Failed,
        })
    }

    /// Builds the test binaries.
    fn binaries(
        &self,
        builds: &[Build],
        platforms: &BuildPlatforms,
        interrupt: &Interrupt,
        journal: &mut Journal,
    ) -> Result<(Vec<RustTestArtifact<'_>>, RustBuildMeta<TestListState>)> {
        let mapper = PathMapper::noop();
        let (mut binaries, mut meta) = (Vec::new(), None);
        for build in builds {
            let began = Instant::now();
            let list = Arc::new(self.build(build, platforms.clone(), interrupt)?);
            let name = format!("cargo test --no-run {}", build.options.join(" "));
            journal.step(&name, began.elapsed());
            let of_build = list.rust_build_meta.map_paths(&mapper);
            let built =
                RustTestArtifact::from_binary_list(&self.graph, list, &of_build, &mapper, None)
                    .map_err(nextest)?;
            let is_wanted = |binary: &RustTestArtifact| {
                build.package.as_ref().is_none_or(|package| binary.package.name() == package)
            };
            binaries.extend(built.into_iter().filter(is_wanted));
            meta.get_or_insert(of_build);
        }
        Ok((binaries, meta.expect("there is always a build")))
    }

    fn config(&self, context: &ParseContext) -> Result<NextestConfig> {
        let file = self.root.join(".config/nextest.toml");
        let experiments = BTreeSet::from([ConfigExperimental::SetupScripts]);
        NextestConfig::from_sources(&self.root, context, Some(&file), [], &experiments)
            .map_err(nextest)
            .with_context(|| format!("failed to read {file}"))
    }

    /// Has cargo build tests. A signal stops it.
    fn build(
        &self,
        build: &Build,
        platforms: BuildPlatforms,
        interrupt: &Interrupt,
    ) -> Result<BinaryList> {
        let mut cargo = Command::new(artifacts::cargo());
        cargo.current_dir(&self.root).stdin(Stdio::null()).stdout(Stdio::piped());
        cargo.args(["test", "--no-run", "--message-format", "json-render-diagnostics"]);
        cargo.args(&build.options);
        if build.is_agent {
            // The agent's flags: nothing is built twice.
            let (name, flags) = artifacts::GUEST_RUSTFLAGS;
            let target = target(Arch::host().unwrap_or(Arch::X86_64));
            cargo.env(name, flags).args(["--release", "--target", &target]);
            cargo.args(["--target-dir", artifacts::GUEST_TARGET]);
        }
        let mut group = Group::spawn(&mut cargo).context("failed to run cargo")?;
        let stdout = group.stdout().expect("piped");
        let reader = thread::spawn(move || {
            BufReader::new(stdout).lines().collect::<Result<Vec<String>, io::Error>>()
        });
        let status = artifacts::ended(group, interrupt)?;
        if !status.success() {
            // cargo has said why.
            return Err(Error::failed(format!(
                "failed to build the tests: cargo ended with {status}"
            )));
        }
        let mut list = BinaryListBuilder::new(&self.graph, platforms);
        for line in reader.join().expect("does not panic")? {
            list.process_message_line(&line).map_err(nextest)?;
        }
        Ok(list.finish())
    }
}

fn filter(
    choice: &Choice,
    passed: Option<ComputedRerunInfo>,
    context: &ParseContext,
    groups: &KnownGroups,
) -> Result<TestFilter> {
    let filtersets = choice.tier.filterset().into_iter().map(|text| {
        Filterset::parse(text, context, FiltersetKind::Test, groups)
            .unwrap_or_else(|error| panic!("{}: {:?}", error.input, error.errors))
    });
    let ignored = match choice.tier {
        Tier::Quick => RunIgnored::Default,
        Tier::Full | Tier::Part(_) => RunIgnored::All,
    };
    let patterns = TestFilterPatterns::new(choice.names.clone());
    let mut filter = TestFilter::new(NextestRunMode::Test, ignored, patterns, filtersets.collect())
        .map_err(nextest)?;
    if let Some(passed) = passed {
        filter.set_outstanding_tests(passed);
    }
    Ok(filter)
}

/// The variables of tests.
fn variables(store: &Utf8Path, temporary: &Path) -> Result<EnvironmentMap> {
    let folder = temporary.to_str().ok_or_else(|| {
        Error::Usage(format!("expected a TMPDIR in UTF-8, got {}", temporary.display()))
    })?;
    // A JSON string is a TOML string. Only a file may say that a variable replaces the user's.
    let file = store.join("environment.toml");
    let folder = serde_json::to_string(folder)?;
    fs::write(&file, format!("[env]\nTMPDIR = {{ value = {folder}, force = true }}\n"))?;
    environment(file.as_str())
}

fn nothing_to_run(
    choice: &Choice,
    builds: &[Build],
    journal: &Journal,
    say: &(dyn Fn(&str) + Sync),
) -> Result<End> {
    let packages: Vec<&str> = builds.iter().filter_map(|build| build.package.as_deref()).collect();
    if !journal.has_passed(&choice.names, &packages) {
        return Err(Error::usage(match choice.tier {
            Tier::Quick => "no test matches; slow ones need --full",
            Tier::Full => "no test matches",
            Tier::Part(_) => "no test matches in this part; --full has all parts",
        }));
    }
    say("every test has passed before on these sources");
    Ok(End::Passed)
}
