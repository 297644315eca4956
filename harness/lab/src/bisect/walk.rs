// SPDX-License-Identifier: MIT OR Apache-2.0
//! Measuring commits until the first bad one is known.

use super::{
    End, Ending, Ends, Found, Identity, Mark, Next, Question, Reading, TestedCommit, Unread,
    Verdict,
    reading::{Interleaved, LOOKS},
    setting::{Place, Setting},
    space::Space,
    state::first_line,
};
use crate::{
    cache_limit,
    error::{Context, Error, Result},
    kernels::{Prepared, Ready},
    lab::Lab,
    nextest::cells::Selection,
    planning,
};
use std::{fs, path::PathBuf};
use tramplab_analysis::branch::Model;
use tramplab_host::{cache::Lock, runs::RunDir};
use tramplab_model::{
    name::short,
    run::{Cell, ErrorKind, Run},
    text,
};

/// The answer of a bisection.
pub enum Answer {
    /// For one step of `git bisect run`.
    Step(Mark),
    /// The search has ended; `found`: with one commit. Everything is kept in the folder.
    Search { found: bool, report: String, folder: PathBuf },
}

/// A bisection that goes on.
pub(super) struct Bisection<'a> {
    pub(super) question: &'a Question,
    pub(super) setting: &'a Setting<'a>,
    pub(super) lab: &'a Lab,
    pub(super) place: Place,
    pub(super) space: Box<dyn Space + 'a>,
    /// The kernels of two commits, as `vm-test` takes them.
    pub(super) reproduce: &'a dyn Fn(&str, &str) -> String,
    /// The kernel of a commit.
    make: &'a mut dyn FnMut(&str) -> Result<Ready>,
    /// The ends' kernels, where every commit is measured beside them.
    ends: Option<[Ready; 2]>,
    _lock: Lock,
}

/// The answer of a commit's kernel.
struct Asking {
    /// Its verdict is not known yet.
    step: TestedCommit,
    /// Its reading, or the reason why it has none.
    given: Result<Reading, String>,
    /// The verdict, if the same image has one.
    known: Option<Verdict>,
}

impl<'a> Bisection<'a> {
    pub(super) fn new(
        setting: &'a Setting<'a>,
        lab: &'a Lab,
        place: Place,
        lock: Lock,
        space: impl Space + 'a,
        reproduce: &'a dyn Fn(&str, &str) -> String,
        make: &'a mut dyn FnMut(&str) -> Result<Ready>,
    ) -> Result<Bisection<'a>> {
        let question = &setting.question;
        let bisection = Bisection {
            question,
            setting,
            lab,
            place,
            space: Box::new(space),
            reproduce,
            make,
            ends: None,
            _lock: lock,
        };
        bisection.save()?;
        Ok(bisection)
    }

    fn save(&self) -> Result<()> {
        let folder = self.place.folder.path();
        self.place
            .state
            .save(folder)
            .with_context(|| format!("failed to write into {}", folder.display()))
    }

    fn keep(&mut self, step: TestedCommit) -> Result<()> {
        self.setting.tell(&step.line());
        self.place.state.steps.push(step);
        self.save()
    }

    /// For `git bisect run`.
    pub(super) fn answer_for(mut self, commit: &str) -> Result<Answer> {
        let ends = self.measured_ends()?;
        if let Some(known) = self.place.state.step(commit) {
            self.setting.tell(&known.line());
        } else {
            let step = self.test(commit, &ends)?;
            self.keep(step)?;
        }
        let step = self.place.state.step(commit).expect("just tested");
        Ok(Answer::Step(step.verdict.mark()))
    }

    pub(super) fn search(mut self) -> Result<Answer> {
        let ends = self.measured_ends()?;
        self.setting.tell(&format!("{}: {}", self.question, ends.threshold()));
        let Identity { good, bad, .. } = self.place.state.asked.clone();
        let end = loop {
            if let Some(end) = self.place.state.end.clone() {
                break end;
            }
            match self.space.next(&good, &bad, &self.place.state.marks())? {
                Next::Test { commit, left } => {
                    self.setting.tell(&left);
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
        };
        self.save()?;
        let (text, found) = match end {
            End::Found(found) => (self.told(&found, &ends)?, true),
            End::OnlySkipped(candidates) => (self.untold(&candidates)?, false),
        };
        let report = text::clean(&text);
        let folder = self.place.folder.path().to_owned();
        let path = folder.join("report.txt");
        fs::write(&path, &report).with_context(|| format!("failed to write {}", path.display()))?;
        cache_limit::keep_within(&self.lab.cache, self.setting.tell);
        Ok(Answer::Search { found, report, folder })
    }

    /// Both ends come first: without a difference there is nothing to search.
    fn measured_ends(&mut self) -> Result<Ends> {
        let Identity { good, bad, .. } = self.place.state.asked.clone();
        if self.question.is_timed() {
            self.timed_ends(&good, &bad)?;
        } else {
            for (commit, verdict) in [(&good, Verdict::Good), (&bad, Verdict::Bad)] {
                if self.place.state.step(commit).is_none() {
                    let Asking { step, given, .. } = self.ask(commit, None)?;
                    self.keep_end(step, given, verdict)?;
                }
            }
        }
        let reading =
            |commit: &str| self.place.state.step(commit).and_then(|step| step.reading.clone());
        let [good, bad] =
            [good, bad].map(|commit| reading(&commit).expect("an end that is kept has one"));
        Ends::new(good, bad).map_err(|error| Error::Usage(format!("{}: {error}", self.question)))
    }

    fn keep_end(
        &mut self,
        step: TestedCommit,
        given: Result<Reading, String>,
        verdict: Verdict,
    ) -> Result<()> {
        match given {
            Ok(reading) => self.keep(TestedCommit { verdict, reading: Some(reading), ..step }),
            Err(reason) => {
                let message = format!(
                    "the {} end, {} ({}), says nothing of {}: {reason}",
                    verdict.name(),
                    short(&step.commit),
                    step.subject,
                    self.question
                );
                Err(Error::Usage(message))
            }
        }
    }

    /// Measures both ends in turns until they differ for sure, and keeps their kernels for each
    /// commit.
    fn timed_ends(&mut self, good: &str, bad: &str) -> Result<()> {
        let made = [self.made(good)?, self.made(bad)?];
        for (ready, end) in made.iter().zip(["good", "bad"]) {
            if ready.image.is_none() {
                let message =
                    format!("the {end} end does not build: {}", first_line(&not_built(ready)));
                return Err(Error::Usage(message));
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
                    Ok(other) => {
                        return Err(Error::failed(format!(
                            "a time was asked for, and {other} given"
                        )));
                    }
                    Err(reason) => {
                        let message = format!(
                            "{} says nothing of {}: {reason}",
                            ready.facts.name, self.question
                        );
                        return Err(Error::Usage(message));
                    }
                }
            }
            if times.differ().is_some() {
                for (commit, ready, times, verdict) in [
                    (good, &made[0], &times.good, Verdict::Good),
                    (bad, &made[1], &times.bad, Verdict::Bad),
                ] {
                    let step = self.blank(commit, ready)?;
                    let reading = Some(Reading::Times(times.clone()));
                    self.keep(TestedCommit { verdict, reading, run: Some(run.clone()), ..step })?;
                }
                return Ok(());
            }
        }
        let boots = times.good.len();
        let message = format!(
            "{}: the ends do not differ for sure after {boots} boots of each",
            self.question
        );
        Err(Error::Usage(message))
    }

    fn blank(&self, commit: &str, ready: &Ready) -> Result<TestedCommit> {
        Ok(TestedCommit {
            commit: commit.to_owned(),
            subject: self.space.commit(commit)?.subject,
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
        let ready = self.setting.booted((self.make)(commit)?);
        let means = ready.build.as_ref().map(|build| build.means.clone());
        match (&self.place.state.means, means) {
            (Some(known), Some(means)) if *known != means => {
                let what = match known.toolchain == means.toolchain {
                    true => "another kernel configuration".to_owned(),
                    false => {
                        format!("another toolchain ({}, now {})", known.toolchain, means.toolchain)
                    }
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

    fn begun_with(&self, what: &str) -> Error {
        let message = format!(
            "{} was begun with {what}: new numbers cannot be compared with those in it; move the \
             folder away to begin anew",
            self.place.folder.path().display()
        );
        Error::Usage(message)
    }

    /// Makes a commit's kernel, and measures it unless the same image was measured. `ends` is
    /// `None` while an end is measured.
    fn ask(&mut self, commit: &str, ends: Option<&Ends>) -> Result<Asking> {
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
            return Ok(Asking { step, given, known: None });
        }
        if of_builds {
            let given = Ok(Reading::Ending(Ending::Pass));
            return Ok(Asking { step, given, known: None });
        }
        let image = step.image_sha256.as_deref().unwrap_or_default();
        // The tree's own tests are no part of the image.
        let twin = self
            .place
            .state
            .with_image(image)
            .filter(|_| !self.setting.question.test().is_of_the_tree());
        if let Some(twin) = twin {
            let (verdict, reading) = (twin.verdict.clone(), twin.reading.clone());
            step = TestedCommit {
                same_as: Some(twin.commit.clone()),
                said: twin.said.clone(),
                ..step
            };
            let given = match (&verdict, reading) {
                (_, Some(reading)) => Ok(reading),
                (Verdict::Skip(why), None) => Err(why.clone()),
                (_, None) => Err("it gave nothing".to_owned()),
            };
            return Ok(Asking { step, given, known: Some(verdict) });
        }
        let name = format!("{:02}-{}", self.place.state.steps.len() + 1, short(commit));
        if let (Some(made), Some(ends)) = (self.ends.clone(), ends) {
            return self.ask_beside(made, ends, ready, step, &name);
        }
        let run = self.run(&name, vec![ready.clone()], false)?;
        step.said = self.cell(&run, &ready.facts.name).and_then(|cell| cell.outcome.reason());
        step.run = Some(name);
        Ok(Asking { given: self.reading(&run, &ready.facts.name)?, step, known: None })
    }

    /// Beside both ends, again and again until it is sure on which side it is.
    fn ask_beside(
        &mut self,
        [good, bad]: [Ready; 2],
        ends: &Ends,
        ready: Ready,
        mut step: TestedCommit,
        name: &str,
    ) -> Result<Asking> {
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
                    Ok(other) => {
                        return Err(Error::failed(format!(
                            "a time was asked for, and {other} given"
                        )));
                    }
                    Err(why) if of.facts.name == ready.facts.name => {
                        return Ok(Asking { step, given: Err(why), known: None });
                    }
                    Err(why) => {
                        return Err(Error::failed(format!(
                            "an end that was measured before is not again: {}: {why}",
                            of.facts.name
                        )));
                    }
                }
            }
            if let Some(side) = ends.side_beside(&times) {
                let given = Ok(Reading::Times(times.candidate));
                return Ok(Asking { step, given, known: Some(side) });
            }
        }
        let why = format!("unsure: after {} boots it may be on either side", times.candidate.len());
        let known = Some(Verdict::Skip(why));
        Ok(Asking { step, given: Ok(Reading::Times(times.candidate)), known })
    }

    fn test(&mut self, commit: &str, ends: &Ends) -> Result<TestedCommit> {
        let Asking { step, given, known } = self.ask(commit, Some(ends))?;
        let verdict = known.unwrap_or_else(|| match &given {
            Ok(reading) => ends.side(reading),
            Err(why) => Verdict::Skip(why.clone()),
        });
        Ok(TestedCommit { verdict, reading: given.ok(), ..step })
    }

    /// Runs the cell on these kernels.
    fn run(&mut self, name: &str, kernels: Vec<Ready>, compared: bool) -> Result<Run> {
        let Setting { tell, interrupt, .. } = self.setting;
        let dir = self.steps().join(name);
        if dir.exists() {
            // An interrupted step left it.
            fs::remove_dir_all(&dir)
                .with_context(|| format!("failed to remove {}", dir.display()))?;
        }
        fs::create_dir_all(&dir).with_context(|| format!("failed to create {}", dir.display()))?;
        let prepared = Prepared { kernels, ..Prepared::default() };
        let planned = planning::plan(
            self.lab,
            &self.place.suite,
            prepared,
            compared,
            RunDir::new(dir),
            *tell,
        )?;
        // Other bisections have steps of the same names.
        let planned = planned.with_id(format!("{}-{name}", self.place.folder.id()));
        let machine = planned.machine(self.place.state.asked.arch).cloned();
        match &self.place.state.machine {
            None => self.place.state.machine = machine,
            known if *known == machine => {}
            _ => return Err(self.begun_with("another QEMU, plugin or guest agent")),
        }
        if interrupt.came() {
            return Err(Error::Interrupted);
        }
        let (run, _) = self.lab.run(planned, &Selection::default(), *tell)?;
        if run.interrupted || interrupt.came() {
            return Err(Error::Interrupted);
        }
        Ok(run)
    }

    pub(super) fn steps(&self) -> PathBuf {
        self.place.folder.path().join("steps")
    }

    pub(super) fn cell<'r>(&self, run: &'r Run, kernel: &str) -> Option<&'r Cell> {
        let test = self.question.test();
        run.cells_of(self.place.state.asked.arch, kernel).find(|cell| cell.id.test == test)
    }

    /// A kernel's reading, or the reason to skip its commit.
    fn reading(&self, run: &Run, kernel: &str) -> Result<Result<Reading, String>> {
        let Some(cell) = self.cell(run, kernel) else {
            return Err(Error::failed(format!("the run {} has no cell of {kernel}", run.id)));
        };
        match Reading::of(self.question, cell, self.model()) {
            Ok(reading) => Ok(Ok(reading)),
            Err(Unread::Skip(why)) => Ok(Err(why)),
            Err(Unread::Infrastructure(why)) => Err(Error::failed(format!(
                "{kernel} gave no answer: {why}; run the same command to continue"
            ))),
        }
    }

    pub(super) fn model(&self) -> Model {
        Model::choose(None, self.place.state.asked.arch)
    }

    /// A commit right before the culprit that was measured.
    fn before(&mut self, culprit: &str, ends: &Ends) -> Result<Option<String>> {
        let parents = self.space.commit(culprit)?.parents;
        let is_good = |bisection: &Self, parent: &&String| {
            bisection.place.state.step(parent).is_some_and(|step| step.verdict == Verdict::Good)
        };
        if let Some(known) = parents.iter().find(|parent| is_good(self, parent)) {
            return Ok(Some(known.clone()));
        }
        // An ancestor of what is good: good, and not tested itself.
        let Some(first) = parents.first().filter(|parent| self.place.state.step(parent).is_none())
        else {
            return Ok(None);
        };
        let step = self.test(first, ends)?;
        self.keep(step)?;
        Ok(parents.iter().find(|parent| is_good(self, parent)).cloned())
    }
}

fn not_built(ready: &Ready) -> String {
    ready.build.as_ref().and_then(|build| build.outcome.reason()).unwrap_or_default()
}
