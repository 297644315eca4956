// SPDX-License-Identifier: MIT OR Apache-2.0
//! `cargo xtask bisect`: which commit, or which patch of a series, changed a metric.

use super::{
    Interrupted, UsageError, cache, exit,
    interrupt::Interrupt,
    kernels::{self, Prepared, Preparing, Ready, SeriesArgs, Wanted},
    lab::{self, Guests, Lab, Wanting},
    nextest::Selection,
    profile,
    progress::Progress,
    report, repository,
    scratch::Scratch,
    vm_test::AccelArg,
};
use anyhow::{Context, Result, bail};
use clap::ValueEnum;
use sha2::{Digest, Sha256};
use std::{
    ffi::OsString,
    fs,
    path::{Path, PathBuf},
};
use tramplab_analysis::{
    branch::Model,
    compare::{self, Metric, Timing},
};
use tramplab_host::{Cache, Purpose, cache::Lock, config, runs::RunDir};
use tramplab_kernel::{Source, source};
use tramplab_lab::bisect::{
    Asked, Commit, End, Ending, Ends, Found, History, Mark, Next, Question, Reading, State, Step, Unread,
    Verdict,
    reading::{Interleaved, LOOKS},
    state::{self, Sources},
};
use tramplab_model::name::hex;
use tramplab_model::{
    run::{Arch, Backend, Cell, ErrorKind, Run, SuiteRef, Tolerance},
    text,
};
use tramplab_report::{comparison, terminal};
use tramplab_vm::branches;

#[derive(clap::Args)]
pub struct Args {
    /// The metric that changed (lbr_waste.kretprobe_multi.any, attach.fentry.1000.instructions), or the test that ends
    /// otherwise (boot, build, lbr_waste/fentry)
    #[arg(long, value_name = "METRIC")]
    metric: Question,
    /// A git repository of the kernel; it is only read
    #[arg(long, value_name = "LINUX", requires_all = ["good", "bad"], required_unless_present = "series")]
    tree: Option<PathBuf>,
    /// A commit that is as it should be
    #[arg(long, value_name = "COMMIT", requires = "tree")]
    good: Option<String>,
    /// A commit that is not
    #[arg(long, value_name = "COMMIT", requires = "tree")]
    bad: Option<String>,
    /// Search the patches of a series instead: as `vm-test` takes it
    #[arg(long, value_name = "SERIES", conflicts_with = "tree")]
    series: Option<String>,
    /// What the series is put onto: as `vm-test` takes it
    #[arg(long, value_name = "KERNEL", requires = "series")]
    kernel: Option<String>,
    /// Answer for the commit that `git bisect run` has chosen, by the exit code: 0 good, 1 bad, 125 skip, 128 and more to stop
    #[arg(long, requires = "tree")]
    step: bool,
    /// The guests' architecture [default: this machine's]
    #[arg(long, value_name = "ARCH")]
    arch: Option<Arch>,
    /// KVM counts only when a guest answered under it
    #[arg(long, value_enum, default_value_t = AccelArg::Auto)]
    accel: AccelArg,
    /// Build kernels without confinement
    #[arg(long)]
    unconfined: bool,
    /// Where runs are kept [default: runs/ of the repository]
    #[arg(long, value_name = "DIR")]
    runs: Option<PathBuf>,
}

/// What `git bisect run` understands. 1 to 127 are bad but for 125, so nothing but a verdict may end with one of them.
pub mod step {
    pub const GOOD: u8 = 0;
    pub const BAD: u8 = 1;
    pub const SKIP: u8 = 125;
    pub const NO_ANSWER: u8 = 128;
    pub const USAGE: u8 = 129;
}

/// Whether the command line is of a step, however wrong it may be otherwise.
pub fn is_step(mut arguments: impl Iterator<Item = OsString>) -> bool {
    arguments.nth(1).is_some_and(|command| command == "bisect") && arguments.any(|word| word == "--step")
}

pub fn bisect(args: &Args) -> Result<u8> {
    let end = match (&args.tree, &args.series) {
        (Some(tree), _) => of_tree(args, tree),
        (None, Some(series)) => of_series(args, series),
        (None, None) => unreachable!("one of them is required"),
    };
    if end.as_ref().is_err_and(|error| error.is::<Interrupted>()) {
        eprintln!("what is known so far is kept: the same command goes on from there");
    }
    end
}

fn of_tree(args: &Args, tree: &Path) -> Result<u8> {
    let setting = Setting::new(args)?;
    let arch = args.arch.or(Arch::host()).unwrap_or(Arch::X86_64);
    let tree = fs::canonicalize(tree)
        .map_err(|error| UsageError(format!("failed to find the tree {}: {error}", tree.display())))?;
    let kernel = |commit: &str| format!("git:{}#{commit}", tree.display());
    let manifest = |commit: &str| Ok::<_, anyhow::Error>(kernels::find(&kernel(commit), &[arch])?.remove(0));
    let resolve = |reference: &str| -> Result<String> {
        let manifest = manifest(reference)?;
        let Source::Built(recipe) = &manifest.source else { unreachable!("what git: names is built") };
        let sources = source::resolve(&recipe.tree, &setting.cache, &mut |_| ())?;
        Ok(sources.commit().expect("of git").to_owned())
    };
    let end = |end: &Option<String>| resolve(end.as_deref().expect("required with the tree"));
    let asked = Asked {
        question: args.metric.to_string(),
        sources: Sources::Repository(tree.clone()),
        good: end(&args.good)?,
        bad: end(&args.bad)?,
        arch,
        accel: setting.accel.clone(),
        by_hand: args.step,
    };
    // What git has checked out, or with --no-checkout would have.
    let chosen = args.step.then(|| resolve("BISECT_HEAD").or_else(|_| resolve("HEAD"))).transpose()?;
    let suite = args.metric.suite([&asked.good, &asked.bad].map(|commit| kernel(commit)).to_vec());
    let (lab, place, lock) = setting.open(&asked, suite, args, &[arch])?;
    let history = History::of_repository(&tree, &place.folder.path().join("git"))?;
    let preparing = setting.preparing(&lab, &place);
    let mut make = |commit: &str| preparing.tried(&manifest(commit)?);
    let reproduce = |before: &str, after: &str| {
        format!("--kernel {} --kernel {}", quoted(&kernel(before)), quoted(&kernel(after)))
    };
    let bisection = Bisection::new(&setting, &lab, place.clone(), lock, history, &reproduce, &mut make)?;
    match chosen {
        Some(commit) => bisection.answer_for(&commit),
        None => bisection.search(),
    }
}

fn of_series(args: &Args, spec: &str) -> Result<u8> {
    let setting = Setting::new(args)?;
    let arches: Vec<Arch> = args.arch.into_iter().collect();
    let named: Vec<String> = args.kernel.iter().cloned().collect();
    let series_args = SeriesArgs {
        series: Some(spec.to_owned()),
        each_patch: false,
        placebos: 0,
        unconfined: args.unconfined,
    };
    // Of the kernels only what was named, or comes with the series.
    let wanted = Wanted::new(&named, &arches, &series_args, &args.metric.suite(Vec::new()))?;
    let (manifest, series) = wanted.of_series().expect("just read");
    let Source::Built(recipe) = &manifest.source else { unreachable!("a series is put onto what is built") };
    let sources = source::resolve(&recipe.tree, &setting.cache, &mut |text| setting.progress.step(text))?;
    let kernel = args.kernel.clone().unwrap_or_else(|| manifest.name.clone());
    let subjects: Vec<String> = series.patches.iter().map(|patch| patch.subject.clone()).collect();
    // Known only from its history: the same series always has the same.
    let commits = {
        let scratch = Scratch::new()?;
        History::of_series(&series.name, &subjects, scratch.path())?.1
    };
    let asked = Asked {
        question: args.metric.to_string(),
        sources: Sources::Series {
            name: series.name.clone(),
            sha256: series.sha256(),
            kernel: kernel.clone(),
            digest: sources.digest,
        },
        good: commits[0].clone(),
        bad: commits[commits.len() - 1].clone(),
        arch: manifest.arch,
        accel: setting.accel.clone(),
        by_hand: false,
    };
    let (lab, place, lock) =
        setting.open(&asked, args.metric.suite(vec![kernel.clone()]), args, &[manifest.arch])?;
    let (history, _) = History::of_series(&series.name, &subjects, &place.folder.path().join("git"))?;
    let preparing = setting.preparing(&lab, &place);
    let reproduce =
        |_: &str, _: &str| format!("--kernel {} --series {} --each-patch", quoted(&kernel), quoted(spec));
    preparing.with_patches(manifest, series, |with| {
        let mut make = |commit: &str| {
            let patches = commits.iter().position(|known| known == commit).expect("of the series");
            with(patches)
        };
        Bisection::new(&setting, &lab, place.clone(), lock, history, &reproduce, &mut make)?.search()
    })
}

fn quoted(word: &str) -> String {
    shell_words::quote(word).into_owned()
}

/// What is asked, and what every bisection needs of this host.
struct Setting {
    question: Question,
    cache: Cache,
    progress: Progress,
    interrupt: Interrupt,
    accel: String,
    unconfined: bool,
}

/// Where a bisection is kept, and what runs for each commit.
#[derive(Clone)]
struct Place {
    folder: RunDir,
    state: State,
    suite: lab::Asked,
}

impl Setting {
    fn new(args: &Args) -> Result<Setting> {
        let accel = args.accel.to_possible_value().expect("none is hidden").get_name().to_owned();
        let interrupt = Interrupt::watch()?;
        let (cache, progress) = (Cache::open(true)?, Progress::steps());
        let (question, unconfined) = (args.metric.clone(), args.unconfined);
        Ok(Setting { question, cache, progress, interrupt, accel, unconfined })
    }

    /// Goes on with what was asked before, or begins. Its folder is this one's alone while the lock is held.
    fn open(
        &self,
        asked: &Asked,
        suite: tramplab_suite::Suite,
        args: &Args,
        arches: &[Arch],
    ) -> Result<(Lab, Place, Lock)> {
        // Without QEMU nothing is begun, and no folder left.
        let lab = Lab::set_up(
            self.cache.clone(),
            arches,
            Wanting {
                purpose: Purpose::Measuring,
                backend: Backend::Qemu,
                accel: args.accel.request(),
                // What differs by one record must repeat.
                branches: branches::Request::Virtual,
                // Each kernel boots once.
                guests: Guests::Cold,
            },
            &self.progress,
        )?;
        let runs = args.runs.clone().unwrap_or_else(|| repository().join("runs"));
        let text = config::write(&suite);
        let (folder, mut state) = match state::find(&runs, asked) {
            Some((folder, state)) => {
                let folder = RunDir::new(fs::canonicalize(folder)?);
                // A verdict at each of git's steps needs no such line.
                if !asked.by_hand {
                    self.progress.line(&format!("going on with {}", folder.path().display()));
                }
                (folder, state)
            }
            None => {
                let folder = lab::new_run_dir(&runs, state::PREFIX)?;
                (folder, State::new(asked.clone()))
            }
        };
        let lock = lab.cache.lock(&folder.id())?;
        // Another run of the same may have gone on while this one waited.
        if let Some(newer) = State::load(folder.path()) {
            state = newer;
        }
        let file = folder.path().join("suite.yaml");
        fs::write(&file, &text).with_context(|| format!("failed to write {}", file.display()))?;
        let reference = SuiteRef {
            name: suite.name.clone(),
            file: file.display().to_string(),
            sha256: hex(&Sha256::digest(&text)),
        };
        Ok((lab, Place { folder, state, suite: lab::Asked { suite, reference } }, lock))
    }

    fn preparing<'a>(&'a self, lab: &'a Lab, place: &'a Place) -> Preparing<'a> {
        Preparing {
            suite: &place.suite.suite,
            each_patch: false,
            placebos: 0,
            unconfined: self.unconfined,
            backend: Backend::Qemu,
            cache: &lab.cache,
            run_dir: &place.folder,
            progress: &self.progress,
            interrupt: &self.interrupt,
        }
    }
}

/// A bisection that goes on.
struct Bisection<'a> {
    question: &'a Question,
    setting: &'a Setting,
    lab: &'a Lab,
    place: Place,
    history: History,
    /// The kernels of two commits, as `vm-test` takes them.
    reproduce: &'a dyn Fn(&str, &str) -> String,
    /// The kernel of a commit.
    make: &'a mut dyn FnMut(&str) -> Result<Ready>,
    /// The ends' kernels, where every commit is measured beside them.
    ends: Option<[Ready; 2]>,
    _lock: Lock,
}

/// What came of asking a commit's kernel.
struct Answer {
    /// Its verdict is not known yet.
    step: Step,
    /// What it gave, or why nothing.
    given: Result<Reading, String>,
    /// Of a kernel that was known already.
    known: Option<Verdict>,
}

impl<'a> Bisection<'a> {
    fn new(
        setting: &'a Setting,
        lab: &'a Lab,
        place: Place,
        lock: Lock,
        history: History,
        reproduce: &'a dyn Fn(&str, &str) -> String,
        make: &'a mut dyn FnMut(&str) -> Result<Ready>,
    ) -> Result<Bisection<'a>> {
        let question = &setting.question;
        let bisection =
            Bisection { question, setting, lab, place, history, reproduce, make, ends: None, _lock: lock };
        bisection.save()?;
        Ok(bisection)
    }

    fn save(&self) -> Result<()> {
        let folder = self.place.folder.path();
        self.place.state.save(folder).with_context(|| format!("failed to write into {}", folder.display()))
    }

    fn keep(&mut self, step: Step) -> Result<()> {
        self.setting.progress.line(&line(&step));
        self.place.state.steps.push(step);
        self.save()
    }

    /// For `git bisect run`.
    fn answer_for(mut self, commit: &str) -> Result<u8> {
        let ends = self.measured_ends()?;
        if self.place.state.step(commit).is_none() {
            let step = self.test(commit, &ends)?;
            self.keep(step)?;
        } else {
            self.setting.progress.line(&line(self.place.state.step(commit).expect("just looked")));
        }
        Ok(match self.place.state.step(commit).expect("just tested").verdict.mark() {
            Mark::Good => step::GOOD,
            Mark::Bad => step::BAD,
            Mark::Skip => step::SKIP,
        })
    }

    fn search(mut self) -> Result<u8> {
        let ends = self.measured_ends()?;
        self.setting.progress.line(&format!("{}: {}", self.question, ends.threshold()));
        let Asked { good, bad, .. } = self.place.state.asked.clone();
        while self.place.state.end.is_none() {
            match self.history.next(&good, &bad, &self.place.state.marks())? {
                Next::Test { commit, left } => {
                    self.setting.progress.line(&left);
                    let step = self.test(&commit, &ends)?;
                    self.keep(step)?;
                }
                Next::Found(commit) => {
                    let before = self.before(&commit, &ends)?;
                    self.place.state.end = Some(End::Found(Found { commit, before }));
                }
                Next::OnlySkipped(candidates) => {
                    self.place.state.end = Some(End::OnlySkipped(candidates));
                }
            }
        }
        self.save()?;
        let (text, code) = match self.place.state.end.clone().expect("just set") {
            End::Found(found) => (self.told(&found, &ends)?, exit::PASS),
            End::OnlySkipped(candidates) => (self.untold(&candidates)?, exit::NO_MEASUREMENT),
        };
        let text = text::clean(&text);
        let path = self.place.folder.path().join("report.txt");
        fs::write(&path, &text).with_context(|| format!("failed to write {}", path.display()))?;
        self.setting.progress.aside(|| report::print(text.as_bytes()))?;
        eprintln!("bisection kept in {}", self.place.folder.path().display());
        cache::keep_within_limit(&self.lab.cache);
        Ok(code)
    }

    /// Both ends come first: without a difference there is nothing to search.
    fn measured_ends(&mut self) -> Result<Ends> {
        let Asked { good, bad, .. } = self.place.state.asked.clone();
        if self.question.is_timed() {
            self.timed_ends(&good, &bad)?;
        } else {
            for (commit, verdict) in [(&good, Verdict::Good), (&bad, Verdict::Bad)] {
                if self.place.state.step(commit).is_none() {
                    let Answer { step, given, .. } = self.ask(commit, None)?;
                    self.keep_end(step, given, verdict)?;
                }
            }
        }
        let reading = |commit: &str| self.place.state.step(commit).and_then(|step| step.reading.clone());
        let [good, bad] = [good, bad].map(|commit| reading(&commit).expect("an end that is kept has one"));
        Ends::new(good, bad).map_err(|error| UsageError(format!("{}: {error}", self.question)).into())
    }

    fn keep_end(&mut self, step: Step, given: Result<Reading, String>, verdict: Verdict) -> Result<()> {
        match given {
            Ok(reading) => self.keep(Step { verdict, reading: Some(reading), ..step }),
            Err(reason) => {
                let message = format!(
                    "the {} end, {} ({}), says nothing of {}: {reason}",
                    verdict.name(),
                    short(&step.commit),
                    step.subject,
                    self.question
                );
                Err(UsageError(message).into())
            }
        }
    }

    /// The ends take turns until they differ for sure. Their kernels are needed again beside each commit.
    fn timed_ends(&mut self, good: &str, bad: &str) -> Result<()> {
        let made = [self.made(good)?, self.made(bad)?];
        for (ready, end) in made.iter().zip(["good", "bad"]) {
            if ready.image.is_none() {
                let message = format!("the {end} end does not build: {}", first_line(&not_built(ready)));
                return Err(UsageError(message).into());
            }
        }
        self.ends = Some(made.clone());
        if self.place.state.step(good).is_some() && self.place.state.step(bad).is_some() {
            return Ok(());
        }
        let mut times = Interleaved::default();
        for look in 1..=LOOKS {
            let run = format!("00-ends-{look}");
            let found = self.run(&run, made.to_vec(), true)?;
            for (ready, all) in made.iter().zip([&mut times.good, &mut times.bad]) {
                match self.reading(&found, &ready.facts.name)? {
                    Ok(Reading::Times(more)) => all.extend(more),
                    Ok(other) => bail!("a time was asked for, and {other} given"),
                    Err(reason) => {
                        let message =
                            format!("{} says nothing of {}: {reason}", ready.facts.name, self.question);
                        return Err(UsageError(message).into());
                    }
                }
            }
            if times.differ().is_some() {
                for (commit, ready, times, verdict) in
                    [(good, &made[0], &times.good, Verdict::Good), (bad, &made[1], &times.bad, Verdict::Bad)]
                {
                    let step = self.blank(commit, ready)?;
                    let reading = Some(Reading::Times(times.clone()));
                    self.keep(Step { verdict, reading, run: Some(run.clone()), ..step })?;
                }
                return Ok(());
            }
        }
        let boots = times.good.len();
        let message =
            format!("{}: the ends do not differ for sure after {boots} boots of each", self.question);
        Err(UsageError(message).into())
    }

    fn blank(&self, commit: &str, ready: &Ready) -> Result<Step> {
        Ok(Step {
            commit: commit.to_owned(),
            subject: self.history.commit(commit)?.subject,
            kernel: ready.facts.name.clone(),
            image_sha256: ready.facts.image_sha256.clone(),
            verdict: Verdict::Skip(String::new()),
            reading: None,
            said: None,
            same_as: None,
            run: None,
        })
    }

    /// A commit's kernel, made as all others are.
    fn made(&mut self, commit: &str) -> Result<Ready> {
        let ready = (self.make)(commit)?;
        let means = ready.build.as_ref().map(|build| build.means.clone());
        match (&self.place.state.means, means) {
            (Some(known), Some(means)) if *known != means => {
                let what = match known.toolchain == means.toolchain {
                    true => "another kernel configuration".to_owned(),
                    false => format!("another toolchain ({}, now {})", known.toolchain, means.toolchain),
                };
                Err(self.begun_with(&what))
            }
            (None, Some(means)) => {
                self.place.state.means = Some(means);
                Ok(ready)
            }
            _ => Ok(ready),
        }
    }

    fn begun_with(&self, what: &str) -> anyhow::Error {
        let message = format!(
            "{} was begun with {what}: what they measure cannot be laid beside each other; \
             move the folder away to begin anew",
            self.place.folder.path().display()
        );
        UsageError(message).into()
    }

    /// Makes a commit's kernel, and asks it if nobody has asked the same image before. Of an end itself there are no `ends` yet.
    fn ask(&mut self, commit: &str, ends: Option<&Ends>) -> Result<Answer> {
        let ready = self.made(commit)?;
        let mut step = self.blank(commit, &ready)?;
        let of_builds = self.question.is_of_builds();
        if ready.image.is_none() {
            let said = not_built(&ready);
            let given = if of_builds {
                Ok(Reading::Ending(Ending::Error(ErrorKind::Build)))
            } else {
                Err(format!("it does not build: {}", first_line(&said)))
            };
            step.said = Some(said);
            return Ok(Answer { step, given, known: None });
        }
        if of_builds {
            let given = Ok(Reading::Ending(Ending::Pass));
            return Ok(Answer { step, given, known: None });
        }
        let image = step.image_sha256.as_deref().unwrap_or_default();
        // The tree's own tests are no part of the image.
        let twin =
            self.place.state.with_image(image).filter(|_| !self.setting.question.test().is_of_the_tree());
        if let Some(twin) = twin {
            let (verdict, reading) = (twin.verdict.clone(), twin.reading.clone());
            step = Step { same_as: Some(twin.commit.clone()), said: twin.said.clone(), ..step };
            let given = match (&verdict, reading) {
                (_, Some(reading)) => Ok(reading),
                (Verdict::Skip(why), None) => Err(why.clone()),
                (_, None) => Err("it gave nothing".to_owned()),
            };
            return Ok(Answer { step, given, known: Some(verdict) });
        }
        let name = format!("{:02}-{}", self.place.state.steps.len() + 1, short(commit));
        if let (Some(made), Some(ends)) = (self.ends.clone(), ends) {
            return self.ask_beside(made, ends, ready, step, &name);
        }
        let run = self.run(&name, vec![ready.clone()], false)?;
        step.said = self.cell(&run, &ready.facts.name).and_then(|cell| cell.outcome.reason());
        step.run = Some(name);
        Ok(Answer { given: self.reading(&run, &ready.facts.name)?, step, known: None })
    }

    /// Beside both ends, again and again until it is sure on which side it is.
    fn ask_beside(
        &mut self,
        [good, bad]: [Ready; 2],
        ends: &Ends,
        ready: Ready,
        mut step: Step,
        name: &str,
    ) -> Result<Answer> {
        let mut times = Interleaved::default();
        for look in 1..=LOOKS {
            let run = format!("{name}-{look}");
            let found = self.run(&run, vec![good.clone(), ready.clone(), bad.clone()], true)?;
            step.run = Some(run);
            for (of, all) in
                [(&good, &mut times.good), (&ready, &mut times.candidate), (&bad, &mut times.bad)]
            {
                match self.reading(&found, &of.facts.name)? {
                    Ok(Reading::Times(more)) => all.extend(more),
                    Ok(other) => bail!("a time was asked for, and {other} given"),
                    Err(why) if of.facts.name == ready.facts.name => {
                        return Ok(Answer { step, given: Err(why), known: None });
                    }
                    Err(why) => {
                        bail!("an end that was measured before is not again: {}: {why}", of.facts.name)
                    }
                }
            }
            if let Some(side) = ends.side_beside(&times) {
                let given = Ok(Reading::Times(times.candidate));
                return Ok(Answer { step, given, known: Some(Ok(side).into()) });
            }
        }
        let why = format!("unsure: after {} boots it may be on either side", times.candidate.len());
        let known = Some(Verdict::Skip(why));
        Ok(Answer { step, given: Ok(Reading::Times(times.candidate)), known })
    }

    fn test(&mut self, commit: &str, ends: &Ends) -> Result<Step> {
        let Answer { step, given, known } = self.ask(commit, Some(ends))?;
        let verdict = known.unwrap_or_else(|| match &given {
            Ok(reading) => ends.side(reading).into(),
            Err(why) => Verdict::Skip(why.clone()),
        });
        Ok(Step { verdict, reading: given.ok(), ..step })
    }

    /// Runs the cell on these kernels.
    fn run(&mut self, name: &str, kernels: Vec<Ready>, compared: bool) -> Result<Run> {
        let Setting { progress, interrupt, .. } = self.setting;
        let dir = self.steps().join(name);
        if dir.exists() {
            // Of a step that was interrupted.
            fs::remove_dir_all(&dir).with_context(|| format!("failed to remove {}", dir.display()))?;
        }
        fs::create_dir_all(&dir).with_context(|| format!("failed to create {}", dir.display()))?;
        let prepared = Prepared { kernels, ..Prepared::default() };
        let planned = self.lab.plan(&self.place.suite, prepared, compared, RunDir::new(dir), progress)?;
        // Other bisections have steps of the same names.
        let planned = planned.with_id(format!("{}-{name}", self.place.folder.id()));
        let machine = planned.machine(self.place.state.asked.arch).cloned();
        match &self.place.state.machine {
            None => self.place.state.machine = machine,
            known if *known == machine => {}
            _ => return Err(self.begun_with("another QEMU, plugin or guest agent")),
        }
        if interrupt.came() {
            return Err(Interrupted.into());
        }
        let (run, _) = progress.aside(|| self.lab.run(planned, &Selection::default()))?;
        if run.interrupted || interrupt.came() {
            return Err(Interrupted.into());
        }
        Ok(run)
    }

    fn steps(&self) -> PathBuf {
        self.place.folder.path().join("steps")
    }

    fn cell<'r>(&self, run: &'r Run, kernel: &str) -> Option<&'r Cell> {
        let test = self.question.test();
        run.cells_of(self.place.state.asked.arch, kernel).find(|cell| cell.id.test == test)
    }

    /// What a kernel gave, or why the commit is to be skipped.
    fn reading(&self, run: &Run, kernel: &str) -> Result<Result<Reading, String>> {
        let Some(cell) = self.cell(run, kernel) else { bail!("the run {} has no cell of {kernel}", run.id) };
        match Reading::of(self.question, cell, self.model()) {
            Ok(reading) => Ok(Ok(reading)),
            Err(Unread::Skip(why)) => Ok(Err(why)),
            Err(Unread::Infrastructure(why)) => {
                bail!("nothing was learnt of {kernel}: {why}; the same command goes on")
            }
        }
    }

    fn model(&self) -> Model {
        Model::choose(None, self.place.state.asked.arch)
    }

    /// A commit right before the culprit that was measured.
    fn before(&mut self, culprit: &str, ends: &Ends) -> Result<Option<String>> {
        let parents = self.history.commit(culprit)?.parents;
        let is_good = |bisection: &Self, parent: &&String| {
            bisection.place.state.step(parent).is_some_and(|step| step.verdict == Verdict::Good)
        };
        if let Some(known) = parents.iter().find(|parent| is_good(self, parent)) {
            return Ok(Some(known.clone()));
        }
        // An ancestor of what is good: good, and not tested itself.
        let Some(first) = parents.first().filter(|parent| self.place.state.step(parent).is_none()) else {
            return Ok(None);
        };
        let step = self.test(first, ends)?;
        self.keep(step)?;
        Ok(parents.iter().find(|parent| is_good(self, parent)).cloned())
    }

    /// The report of what was found.
    fn told(&self, found: &Found, ends: &Ends) -> Result<String> {
        let state = &self.place.state;
        let culprit = self.history.commit(&found.commit)?;
        let after = state.step(&found.commit).context("the culprit was not tested")?;
        let before = found.before.as_deref().and_then(|commit| state.step(commit));
        let mut text = format!("{} is the first bad commit for {}\n", culprit.id, self.question);
        text += &self.described(&culprit)?;
        let value = |step: &Step| step.reading.as_ref().map_or_else(|| "-".to_owned(), ToString::to_string);
        let was = before.map_or_else(|| "not measured".to_owned(), value);
        text +=
            &format!("\n{}: {was} before, {} after\n  {}\n", self.question, value(after), ends.threshold());
        if let Some(before) = before {
            text += &self.before_and_after(before, after)?;
        }
        if let (Question::Ending(_), Some(said)) = (self.question, &after.said) {
            text += &format!("\n{}\n", said.trim_end());
        }
        text += &self.tested();
        let command =
            self.reproducer(before.map_or(state.asked.good.as_str(), |step| &step.commit), &culprit.id);
        text += &format!("\nTo see it again:\n  {command}\n");
        Ok(text)
    }

    fn described(&self, commit: &Commit) -> Result<String> {
        let Commit { subject, author, date, .. } = commit;
        let mut text = format!("    {subject}\n");
        if matches!(self.place.state.asked.sources, Sources::Repository(_)) {
            text += &format!("    {author}, {date}\n");
            let stat = self.history.stat(&commit.id)?;
            text.extend(stat.lines().map(|line| format!("   {line}\n")));
        }
        Ok(text)
    }

    /// Listings side by side, and of instructions the functions that changed most.
    fn before_and_after(&self, before: &Step, after: &Step) -> Result<String> {
        let (Question::Number(metric), state) = (self.question, &self.place.state) else {
            return Ok(String::new());
        };
        let [before, after] = [before, after].map(|step| state.measured(step));
        let (Some(old), Some(new)) = (&before.run, &after.run) else { return Ok(String::new()) };
        let dirs = [old, new].map(|run| RunDir::new(self.steps().join(run)));
        let runs = [RunDir::load(dirs[0].path())?, RunDir::load(dirs[1].path())?];
        let cells = [self.cell(&runs[0], &before.kernel), self.cell(&runs[1], &after.kernel)];
        let [Some(base), Some(head)] = cells else { return Ok(String::new()) };
        let pairs = compare::pair_up(&[base], &[head]);
        let comparison = compare::compare(
            &before.kernel,
            &after.kernel,
            &pairs,
            self.model(),
            // Any difference was followed.
            Tolerance { wasted: 0, trigger: 0, time_percent: 0.0, exact_percent: 0.0 },
            Timing::Apart,
            &compare::Layout::ignored(),
        );
        let mut text = format!(
            "\n{}",
            terminal::render_verdicts(&comparison::verdicts(&comparison), Default::default())
        );
        if let Metric::Instructions { phase, .. } = metric {
            text += &format!("\n{}", profile::changes((&dirs[0], base), (&dirs[1], head), *phase)?);
        }
        Ok(text)
    }

    fn untold(&self, candidates: &[String]) -> Result<String> {
        let mut text = format!(
            "only skipped commits are left: the first bad commit for {} is one of these\n",
            self.question
        );
        for id in candidates {
            text += &format!("  {} {}\n", short(id), self.history.commit(id)?.subject);
        }
        text += &self.tested();
        Ok(text)
    }

    fn tested(&self) -> String {
        let steps = &self.place.state.steps;
        let lines: String = steps.iter().map(|step| format!("  {}\n", line(step))).collect();
        let booted = steps.iter().filter(|step| step.run.is_some()).count();
        format!("\nTested {} commits, {booted} of them in guests:\n{lines}", steps.len())
    }

    fn reproducer(&self, before: &str, after: &str) -> String {
        let Asked { arch, accel, .. } = &self.place.state.asked;
        let arch = if Arch::host() == Some(*arch) { String::new() } else { format!(" --arch {arch}") };
        let suite = quoted(&self.place.suite.reference.file);
        let unconfined = if self.setting.unconfined { " --unconfined" } else { "" };
        format!(
            "cargo xtask vm-test --accel {accel}{arch}{unconfined} --suite {suite} {}",
            (self.reproduce)(before, after)
        )
    }
}

/// `bad   4d34f2212345  9       bpf: Jump once more`.
fn line(step: &Step) -> String {
    let Step { commit, subject, verdict, reading, same_as, .. } = step;
    let value = reading.as_ref().map_or_else(|| "-".to_owned(), ToString::to_string);
    let mut line = format!("{:<4} {} {value:>8}  {subject}", verdict.name(), short(commit));
    if let Some(twin) = same_as {
        line += &format!(" [the image of {}]", short(twin));
    }
    if let Verdict::Skip(why) = verdict {
        line += &format!(" [{}]", first_line(why));
    }
    line
}

fn short(commit: &str) -> &str {
    commit.get(..12).unwrap_or(commit)
}

fn first_line(text: &str) -> &str {
    text.lines().next().unwrap_or_default()
}

fn not_built(ready: &Ready) -> String {
    ready.build.as_ref().and_then(|build| build.outcome.reason()).unwrap_or_default()
}
