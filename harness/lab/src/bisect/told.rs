// SPDX-License-Identifier: MIT OR Apache-2.0
//! The report of a bisection, and its lines.

use super::{
    Commit, Ends, Found, Identity, Question, TestedCommit, setting::quoted, state::Sources,
    walk::Bisection,
};
use crate::{
    error::{Error, Result},
    profiles,
};
use tramplab_analysis::compare::{self, Metric, Timing};
use tramplab_host::runs::RunDir;
use tramplab_model::{
    called::called,
    kinds::attach,
    name::short,
    run::{Arch, Tolerance},
};
use tramplab_report::{comparison, terminal};

impl Bisection<'_> {
    /// The report of what was found.
    pub(super) fn told(&mut self, found: &Found, ends: &Ends) -> Result<String> {
        let state = &self.place.state;
        let asked = [state.asked.good.as_str(), state.asked.bad.as_str()];
        let headline = self.space.headline(&self.question.to_string(), asked, &state.marks())?;
        let culprit = self.space.commit(&found.commit)?;
        let after =
            state.step(&found.commit).ok_or_else(|| Error::failed("the culprit was not tested"))?;
        let before = found.before.as_deref().and_then(|commit| state.step(commit));
        let mut text = match headline {
            Some(headline) => headline,
            None => {
                let first =
                    format!("{} is the first bad commit for {}\n", culprit.id, self.question);
                first + &self.described(&culprit)?
            }
        };
        let value = |step: &TestedCommit| {
            step.reading.as_ref().map_or_else(|| "-".to_owned(), ToString::to_string)
        };
        let was = before.map_or_else(|| "not measured".to_owned(), value);
        text += &format!(
            "\n{}: {was} before, {} after\n  {}\n",
            self.question,
            value(after),
            ends.threshold()
        );
        if let Some(before) = before {
            text += &self.before_and_after(before, after)?;
        }
        if let (Question::Ending(_), Some(said)) = (self.question, &after.said) {
            text += &format!("\n{}\n", said.trim_end());
        }
        text += &self.tested();
        let command = self
            .reproducer(before.map_or(state.asked.good.as_str(), |step| &step.commit), &culprit.id);
        text += &format!("\nTo see it again:\n  {command}\n");
        Ok(text)
    }

    fn described(&self, commit: &Commit) -> Result<String> {
        let Commit { subject, author, date, .. } = commit;
        let mut text = format!("    {subject}\n");
        if matches!(self.place.state.asked.sources, Sources::Repository(_)) {
            text += &format!("    {author}, {date}\n");
            let stat = self.space.stat(&commit.id)?;
            text.extend(stat.lines().map(|line| format!("   {line}\n")));
        }
        Ok(text)
    }

    /// Listings side by side, and of instructions the functions that changed most.
    fn before_and_after(&self, before: &TestedCommit, after: &TestedCommit) -> Result<String> {
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
            Tolerance::NONE,
            Timing::Apart,
            &compare::Layout::ignored(),
        );
        let mut text = format!(
            "\n{}",
            terminal::render_verdicts(
                &comparison::verdicts(&comparison, [None; 2]),
                true,
                Default::default()
            )
        );
        if let Metric::Attach(metric) = metric
            && let attach::Number::Instructions { phase, .. } = metric.number
        {
            text += &format!("\n{}", profiles::changes((&dirs[0], base), (&dirs[1], head), phase)?);
        }
        Ok(text)
    }

    pub(super) fn untold(&self, candidates: &[String]) -> Result<String> {
        let mut text = format!(
            "only skipped commits are left: the first bad commit for {} is one of these\n",
            self.question
        );
        for id in candidates {
            text += &format!("  {} {}\n", short(id), self.space.commit(id)?.subject);
        }
        text += &self.tested();
        Ok(text)
    }

    fn tested(&self) -> String {
        let steps = &self.place.state.steps;
        let lines: String = steps.iter().map(|step| format!("  {}\n", step.line())).collect();
        let booted = steps.iter().filter(|step| step.run.is_some()).count();
        format!(
            "\nTested {} {}, {booted} of them in guests:\n{lines}",
            steps.len(),
            self.space.noun()
        )
    }

    fn reproducer(&self, before: &str, after: &str) -> String {
        let Identity { arch, accel, .. } = &self.place.state.asked;
        let arch =
            if Arch::host() == Some(*arch) { String::new() } else { format!(" --arch {arch}") };
        let suite = quoted(&self.place.suite.reference.file);
        let unconfined = if self.setting.unconfined { " --unconfined" } else { "" };
        let model = self.setting.typed_model.as_ref();
        let model = model.map_or_else(String::new, |name| format!(" --model {}", quoted(name)));
        format!(
            "{} vm-test --accel {accel}{arch}{model}{unconfined} --suite {suite} {}",
            called(),
            (self.reproduce)(before, after)
        )
    }
}
