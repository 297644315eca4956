// SPDX-License-Identifier: MIT OR Apache-2.0
//! The main job: from a suite and kernels to a run.

use crate::{
    backend, cache_limit, cpus,
    error::{Error, Result},
    event::{Event, Tell},
    interrupt::Interrupt,
    kernels::{Prepared, Preparing, WantedKernels},
    lab::{AskedSuite, Guests, Lab, NotBuilt, Wanting},
    listing::{self, Listed},
    nextest::cells::Selection,
    options::{Options, Until},
    place::place,
    planned::Planned,
    planning, programs,
    run_dir::{discard, new_run_dir, note_newest, sha256},
    setup,
};
use nix::unistd::geteuid;
use std::{
    num::NonZeroUsize,
    path::{Path, PathBuf},
};
use tramplab_host::{Cache, Purpose, program::in_path, runs::RunDir};
use tramplab_kernel::compile::Confinement;
use tramplab_model::{
    run::{Arch, Backend, Run, SuiteRef},
    text,
};
use tramplab_suite::{self as suite, plan};
use tramplab_vm::branches;

/// The result of a measurement.
pub enum Measured {
    Run {
        run: Box<Run>,
        run_dir: RunDir,
    },
    Listed(Listed),
    /// All kernels were fetched and built.
    Built,
    /// Some kernel does not build.
    NotBuilt(NotBuilt),
}

pub fn measure(options: &Options, tell: Tell) -> Result<Measured> {
    let options = &options.clone().in_tree(tell);
    let mut asked = asked(options, tell)?;
    // Rejects a bad limit before the run, not after it.
    cache_limit::limit()?;
    let lists = options.until == Until::Listed;
    // Waits for nobody who prunes the cache.
    let cache = if lists { Cache::located(true) } else { Cache::open(!options.no_cache) }?;
    let arches: Vec<Arch> = options.arches.iter().copied().collect();
    let named = cpus::named(&options.models)?;
    let models = match options.branches {
        branches::Request::Emulated => cpus::played(&options.models, &named, &mut asked.suite)?,
        _ => named.clone(),
    };
    let wanted = match (options.backends.this_machine, options.backends.guests) {
        (None, _) => {
            WantedKernels::new(&options.kernels, &arches, &options.series, &models, &asked.suite)?
        }
        (Some(_), None) => WantedKernels::running()?,
        (Some(_), Some(_)) => WantedKernels::running_and_its_image(&models, &asked.suite)?,
    };
    cpus::check(&options.models, &named, &wanted.arches())?;
    if let Some(misfit) = plan::misfit(&asked.suite) {
        return Err(Error::Usage(format!("{}: {misfit}", asked.reference.file)));
    }
    let wanting = wanting(options, &asked, &wanted, &cache, tell)?;
    if lists {
        return Ok(Measured::Listed(listing::list(options, &asked, &wanted, &cache, tell)?));
    }
    let lab = Lab::set_up(cache, &wanted.arches(), wanting, tell)?;
    lab.check(&options.selection)?;
    let (planned, selection) = plan_run(options, &asked, &wanted, &lab, tell)?;
    Ok(match options.until {
        Until::Built => lab.stop_before_cells(&planned).map_or(Measured::Built, Measured::NotBuilt),
        Until::Listed => unreachable!("returned before"),
        Until::Measured => {
            if let (Some(ask), Some(most)) = (options.ask, options.backends.this_machine) {
                let cells = lab.selected(&planned, &selection);
                let agreed = cells.and_then(|cells| ask(&cells, most));
                if !matches!(agreed, Ok(true)) {
                    discard(&planned.run_dir);
                    agreed?;
                    return Err(Error::usage("not started, and nothing was attached"));
                }
            }
            note_newest(&planned.run_dir, place().runs().ok().as_deref());
            let (run, run_dir) = lab.run(planned, &selection, tell)?;
            cache_limit::keep_within(&lab.cache, tell);
            Measured::Run { run: Box::new(run), run_dir }
        }
    })
}

fn asked(options: &Options, tell: Tell) -> Result<AskedSuite> {
    let file = suite_file(&options.suite)?;
    let suite = options.overridden(suite::load(&file, &options.kept())?, tell)?;
    programs::check_names(&suite)?;
    let reference = SuiteRef {
        name: suite.name.clone(),
        file: file.display().to_string(),
        sha256: sha256(&file)?,
    };
    Ok(AskedSuite { suite, reference })
}

/// Makes the run's folder, fetches or builds its kernels, and plans its cells.
fn plan_run(
    options: &Options,
    asked: &AskedSuite,
    wanted: &WantedKernels,
    lab: &Lab,
    tell: Tell,
) -> Result<(Planned, Selection)> {
    let runs = options.runs.clone().map_or_else(|| place().runs(), Ok)?;
    let run_dir = new_run_dir(&runs, "")?;
    let interrupt = Interrupt::watch()?;
    let preparing = Preparing {
        suite: &asked.suite,
        each_patch: options.series.each_patch,
        placebos: options.series.placebos,
        unconfined: options.series.unconfined,
        lines: options.lines,
        backend: options.backends.guests.unwrap_or(Backend::None),
        cache: &lab.cache,
        run_dir: &run_dir,
        tell,
        interrupt: &interrupt,
    };
    let prepared = preparing
        .prepare(wanted)
        .and_then(|prepared| check_tests(prepared, asked))
        .map_err(|error| if interrupt.came() { Error::Interrupted } else { error })
        .inspect_err(|error| {
            if matches!(error, Error::Interrupted) {
                tell(Event::Line("no cell had begun: the same command goes on, not --rerun"));
            }
            let kernels = run_dir.kernels();
            if kernels.exists() {
                tell(Event::Line(&format!("make's output is kept in {}", kernels.display())));
            } else {
                discard(&run_dir);
            }
        })?;
    let of_builds = prepared.notes();
    let is_built_here = prepared.kernels.iter().any(|kernel| kernel.build.is_some());
    let plan = || {
        let series = wanted.of_series().map(|(_, series)| series);
        let mut notes = notes(&options.notes, series.map_or(&[][..], |series| &series.notes));
        notes.extend(of_builds);
        let planned =
            planning::plan(lab, asked, prepared, series.is_some(), run_dir.clone(), tell)?;
        let mut planned = planned.with_notes(notes);
        // nextest handles signals from here on.
        if interrupt.came() {
            return Err(Error::Interrupted);
        }
        let jobs = match options.backends.this_machine {
            // Cells would record each other's programs.
            Some(_) => Some(NonZeroUsize::MIN),
            None => options.selection.jobs,
        };
        let selection = match &options.rerun {
            None => Selection { jobs, ..options.selection.clone() },
            Some(earlier) => Selection {
                jobs,
                jobs_named: earlier.take_over(&mut planned)?,
                ..Selection::default()
            },
        };
        Ok((planned, selection))
    };
    plan().inspect_err(|_| {
        if !is_built_here {
            discard(&run_dir);
        }
    })
}

/// Rejects a suite whose tests no kernel's tree has.
fn check_tests(prepared: Prepared, asked: &AskedSuite) -> Result<Prepared> {
    match &prepared.unknown_tests(&asked.suite)[..] {
        [] => Ok(prepared),
        [test, ..] => Err(Error::Usage(format!(
            "{}: no kernel's tree has {}: expected the NAME of a `void test_NAME(void)` in \
             prog_tests/, or FOLDER/PROGRAM of tools/testing/selftests",
            asked.reference.file,
            test.name()
        ))),
    }
}

/// Checks what is asked of this machine, and with `--setup` installs it.
fn wanting(
    options: &Options,
    asked: &AskedSuite,
    wanted: &WantedKernels,
    cache: &Cache,
    tell: Tell,
) -> Result<Wanting> {
    let branches = options.branches(&asked.suite)?;
    let purpose = match branches {
        branches::Request::Emulated => Purpose::Emulating,
        _ if asked.suite.delivers_records() => Purpose::Delivering,
        _ => Purpose::Measuring,
    };
    let guests = options.backends.guests.unwrap_or(Backend::None);
    backend::check(guests, &wanted.arches())?;
    let of_the_host = wanted.of_the_host(purpose);
    let builds = !of_the_host.toolchains.is_empty();
    if options.setup {
        let mut needed = setup::Prerequisites { backend: guests, ..of_the_host };
        let cannot_confine = || in_path("bwrap").is_some() && Confinement::probe().is_err();
        if builds && (options.series.unconfined || cannot_confine()) {
            // No root is entered then: this host's programs build.
            needed.toolchains.iter_mut().for_each(|(toolchain, _)| toolchain.root = None);
        }
        if options.backends.guests.is_none() {
            needed.emulators.clear();
        }
        setup::setup(cache, &needed, &mut |step| tell(Event::Step(step)))?;
    }
    if options.confined
        && builds
        && let Err(reason) = Confinement::probe()
    {
        return Err(Error::Usage(format!(
            "--confined: this machine cannot confine builds: {reason}"
        )));
    }
    Ok(Wanting {
        purpose,
        backends: options.backends,
        accel: options.accel,
        branches,
        // Root leaves no files of its own in the user's folder of builds.
        builds: options.backends.this_machine.is_none()
            || options.until == Until::Built
            || !geteuid().is_root(),
        guests: if options.cold || options.no_cache { Guests::Cold } else { Guests::Restored },
        command: options.command.clone(),
    })
}

/// The notes of a run, one line each. A stranger's mailbox may have more of them than anyone reads.
fn notes(given: &[String], of_series: &[String]) -> Vec<String> {
    const MOST: usize = 50;
    let rest = of_series.len().saturating_sub(MOST);
    let rest = (rest > 0).then(|| format!("left out {rest} more of the series"));
    let all = given.iter().chain(of_series.iter().take(MOST)).chain(&rest);
    all.map(|note| text::line(note).trim().to_owned()).collect()
}

/// The file of a suite, by its name or its path.
pub fn suite_file(name: &str) -> Result<PathBuf> {
    let path = Path::new(name);
    if path.extension().is_some() || name.contains('/') {
        return Ok(path.to_owned());
    }
    place().suite(name)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn limits_notes_to_a_line_each_and_to_fifty() {
        let of_series = vec!["left\nout\u{1b}[2J".to_owned(); 60];
        let notes = notes(&["of the suite".to_owned()], &of_series);
        assert_eq!(notes.len(), 52);
        assert_eq!((&*notes[0], &*notes[1]), ("of the suite", "left out"));
        assert_eq!(notes[51], "left out 10 more of the series");
    }
}
