// SPDX-License-Identifier: MIT OR Apache-2.0
//! The profiles that a run's cells kept.

use crate::error::{Error, Result};
use std::path::{Path, PathBuf};
use tramplab_analysis::profile::{
    How, Names, Of, Phase, Profile, Subject, Summary, Tree, Unit, diff,
};
use tramplab_host::{
    regular,
    runs::{MOST_BYTES, RunDir},
};
use tramplab_model::run::{Cell, Measurement, Run};
use tramplab_protocol::message::Explain;
use tramplab_report::terminal;

/// The functions that changed most between two exact profiles.
pub fn changes(base: (&RunDir, &Cell), head: (&RunDir, &Cell), phase: Phase) -> Result<String> {
    let load = |(dir, cell): (&RunDir, &Cell)| profiles(dir, cell, &[phase], Some(How::Exact));
    let (base, head) = (load(base)?, load(head)?);
    let mut tree: Tree<2> = Tree::new(Names::Stable);
    base.iter().for_each(|profile| tree.add(profile, Of::Task, 0));
    head.iter().for_each(|profile| tree.add(profile, Of::Task, 1));
    let [base, head] = [base, head].map(|profiles| Subject::new(&profiles, Of::Task));
    Ok(terminal::table(&diff::table(&base, &head, &tree)))
}

pub fn summaries(cell: &Cell) -> &[Summary] {
    match &cell.measurement {
        Some(Measurement::Attach(attach)) => &attach.explained,
        _ => &[],
    }
}

/// The other way in which the same phases were profiled: exact beside sampled, or the reverse.
pub fn beside(cell: &Cell, profiles: &[Profile]) -> Option<How> {
    let how = match profiles[0].unit {
        Unit::Instructions => How::Sampled,
        Unit::Samples => How::Exact,
        Unit::Nanoseconds | Unit::EstimatedCycles => return None,
    };
    let is_of =
        |summary: &Summary, phase| (summary.phase, Some(summary.how)) == (phase, how.explained());
    let has = |phase| summaries(cell).iter().any(|summary| is_of(summary, phase));
    profiles.iter().all(|profile| has(profile.phase)).then_some(how)
}

/// The profiles of a run that can be read, for pictures: of each cell and phase the first way in
/// which it was profiled. At most `most`.
pub fn all(dir: &RunDir, run: &Run, most: usize) -> Vec<Profile> {
    let explained = run.cells.iter().filter(|cell| !summaries(cell).is_empty());
    let phases = explained.flat_map(|cell| Phase::ALL.map(|phase| (cell, phase)));
    phases
        .filter_map(|(cell, phase)| profiles(dir, cell, &[phase], None).ok())
        .flatten()
        .take(most)
        .collect()
}

pub fn profiles(
    dir: &RunDir,
    cell: &Cell,
    phases: &[Phase],
    how: Option<How>,
) -> Result<Vec<Profile>> {
    let folder = dir.cell(&cell.id);
    let hows = how.map_or_else(|| How::ALL.to_vec(), |how| vec![how]);
    for &how in &hows {
        let files: Vec<(Phase, PathBuf)> = phases
            .iter()
            .filter_map(|&phase| Some((phase, file(&folder, summaries(cell), phase, how)?)))
            .collect();
        if !files.is_empty() {
            return files.iter().map(|(phase, file)| load(file, cell, *phase, how)).collect();
        }
    }
    let there: String = Phase::ALL
        .into_iter()
        .flat_map(|phase| How::ALL.map(|how| (phase, how)))
        .filter_map(|(phase, how)| {
            file(&folder, summaries(cell), phase, how)?;
            Some(format!("\n  --phase {} --how {}", phase.name(), how.name()))
        })
        .collect();
    let message = format!("{} has no such profile; it has:{there}", cell.id.name());
    Err(Error::Usage(message))
}

/// A profile that is what the run says of it, and not another's.
fn load(file: &Path, cell: &Cell, phase: Phase, how: How) -> Result<Profile> {
    let profile = Profile::read(regular::read(file, MOST_BYTES), file)?;
    let is_of = |one: &&Summary| one.phase == phase && Some(one.how) == how.explained();
    let summary = summaries(cell).iter().find(is_of);
    let is_it = (profile.cell.as_str(), profile.phase, How::of(profile.unit))
        == (&cell.id.name(), phase, how)
        && summary.is_none_or(|summary| summary.totals == profile.totals());
    if !is_it {
        let message = format!(
            "{} is not the profile that the run has made of {}, {}, {}: it was replaced or changed",
            file.display(),
            cell.id.name(),
            phase.name(),
            how.name()
        );
        return Err(Error::Usage(message));
    }
    Ok(profile)
}

/// The waiting profile is made beside the sampled one, whose summary holds the waits.
fn file(folder: &Path, summaries: &[Summary], phase: Phase, how: How) -> Option<PathBuf> {
    let of =
        |explain| summaries.iter().find(|summary| (summary.phase, summary.how) == (phase, explain));
    match how {
        How::Waiting => {
            of(Explain::Sampled).or(of(Explain::Exact)).filter(|summary| !summary.waits.is_empty())
        }
        How::Exact | How::Sampled | How::Estimated => how.explained().and_then(of),
    }?;
    // Not the name that the run gives: it may lead anywhere.
    Some(folder.join(how.file(phase)))
}
