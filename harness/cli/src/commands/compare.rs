// SPDX-License-Identifier: MIT OR Apache-2.0
//! `cargo xtask compare RUN_A RUN_B`: two stored runs, base against head.

use super::{
    complete, exit,
    output::{print, style},
};
use std::{
    collections::BTreeSet,
    path::{Path, PathBuf},
};
use tramplab_analysis::{
    branch::Model,
    compare::{
        self, Layout, Timing, Verdict,
        runs::{Measured, obstacles, settings_apart},
    },
};
use tramplab_host::{
    regular,
    runs::{MOST_BYTES, RunDir},
};
use tramplab_kernel::Kconfig;
use tramplab_lab::{
    cpus::{self, AskedCpu},
    error::{Error, Result},
};
use tramplab_model::run::{Arch, Cell, Kernel, Run, Series};
use tramplab_report as report;

#[derive(clap::Args)]
pub struct Args {
    /// The base: a run's folder or run.json
    #[arg(value_name = "RUN_A", value_parser = complete::run(), add = complete::runs())]
    base: PathBuf,
    /// The head
    #[arg(value_name = "RUN_B", value_parser = complete::run(), add = complete::runs())]
    head: PathBuf,
    /// The base's kernel, where its run has several
    #[arg(long, value_name = "KERNEL")]
    base_kernel: Option<String>,
    /// The head's kernel, where its run has several
    #[arg(long, value_name = "KERNEL")]
    head_kernel: Option<String>,
    /// The architecture, where a run has several
    #[arg(long, value_name = "ARCH")]
    arch: Option<Arch>,
    /// Compare despite incompatibilities, and list them
    #[arg(long)]
    anyway: bool,
    #[arg(long, value_enum, default_value_t = Format::Terminal)]
    format: Format,
    /// Also show all tables and the branch records that differ; in a mail only the records.
    /// Markdown always has them
    #[arg(long)]
    listing: bool,
    /// In lists of branch records, also show source lines and inlined functions, if the kernels
    /// were built here
    #[arg(long)]
    lines: bool,
    /// Model this CPU, as which guests booted, or a family: intel-lbr, arch-lbr, amd-lbrv2, brbe
    /// [default: the one that booted, else the architecture's first family]
    #[arg(long, value_name = "CPU", add = complete::models())]
    model: Option<AskedCpu>,
}

#[derive(Clone, Copy, clap::ValueEnum)]
enum Format {
    Terminal,
    Markdown,
    /// Plain text of at most 72 columns
    Mail,
    Json,
}

pub fn compare(args: &Args) -> Result<u8> {
    let (base, head) = (RunDir::load(&args.base)?, RunDir::load(&args.head)?);
    let asked = cpus::of_report(args.model.as_slice(), &[&base, &head])?;
    let [a, b] = kernels(&base, &head, asked.cpu.as_deref(), args)?;
    if a.arch != b.arch {
        let message = format!(
            "{} is of {} and {} of {}: architectures are shown side by side by a run of both \
             (--arch {},{}), and not compared",
            args.base.display(),
            a.arch,
            args.head.display(),
            b.arch,
            a.arch,
            b.arch
        );
        return Err(Error::Usage(message));
    }
    if args.model.is_none() && [a, b].iter().all(|kernel| kernel.cpu().is_none()) {
        let cpus = base.kernels.iter().chain(&head.kernels).filter_map(Kernel::cpu);
        let cpus: BTreeSet<&str> = cpus.map(|cpu| cpu.name.as_str()).collect();
        cpus.iter().for_each(|cpu| eprintln!("guests that booted as {cpu}: --model {cpu}"));
    }
    let reasons = doubts((&base, a, &args.base), (&head, b, &args.head), args.anyway)?;
    let (of_base, of_head) = (cells(&base, a), cells(&head, b));
    let pair = if args.anyway { compare::pair_across } else { compare::pair_up };
    let pairs = pair(&of_base, &of_head);
    let model = Model::of_kernel(asked.family, &head, b);
    let name = |run: &Run, kernel: &Kernel| format!("{} ({})", kernel.name, run.id);
    let one_run = base.id == head.id && !base.series.is_empty();
    let timing = if one_run { Timing::Interleaved } else { Timing::Apart };
    let [base_name, head_name] = [name(&base, a), name(&head, b)];
    let is_of = |series: &&Series| {
        series.arch == a.arch && series.steps.iter().any(|step| step.kernel == a.name)
    };
    let series = base.series.iter().find(|series| one_run && is_of(series));
    let layout =
        series.map_or_else(Layout::default, |series| Layout::measured(&base, series, model));
    let mut comparison =
        compare::compare(&base_name, &head_name, &pairs, model, head.tolerance, timing, &layout);
    let sources = [(&base, a), (&head, b)]
        .map(|(run, kernel)| run.lines_of(kernel.arch, &kernel.name).filter(|_| args.lines));
    let text = series.and_then(|series| compare::growth_between(series, &a.name, &b.name));
    let sides = [(&base, a, &args.base), (&head, b, &args.head)];
    let [old, new] = sides.map(|(run, kernel, path)| measured(run, kernel, path));
    comparison.explain(&pairs, text, settings_apart(&old, &new));
    comparison.head_only = compare::head_only(&pairs, &of_head);
    let mut verdicts = report::comparison::verdicts(&comparison, sources);
    verdicts.overlooked.splice(..0, reasons);
    let text = match args.format {
        Format::Terminal => {
            report::terminal::render_verdicts(&verdicts, args.listing || args.lines, style())
        }
        Format::Markdown => report::markdown::render_verdicts(&verdicts),
        Format::Mail => report::mail::render_verdicts(&verdicts, args.listing),
        Format::Json => report::compared::render(&comparison, &verdicts, exit_code(&comparison)),
    };
    print(text.as_bytes())?;
    if !comparison.unmatched.is_empty() {
        eprintln!("{} tests are not measured on both sides", comparison.unmatched.len());
    }
    if !comparison.head_only.is_empty() {
        eprintln!(
            "{} tests are in the head's run only: they are listed, not judged",
            comparison.head_only.len()
        );
    }
    Ok(exit_code(&comparison))
}

/// Why the two cannot be compared, which is an error unless they are to be compared `anyway`.
pub fn doubts(
    base: (&Run, &Kernel, &Path),
    head: (&Run, &Kernel, &Path),
    anyway: bool,
) -> Result<Vec<String>> {
    let mut reasons =
        obstacles(&measured(base.0, base.1, base.2), &measured(head.0, head.1, head.2));
    // Two sides of one run have the same faults: each is said once.
    reasons.dedup();
    if reasons.is_empty() || anyway {
        return Ok(reasons);
    }
    let listed: String = reasons.iter().map(|reason| format!("\n  {reason}")).collect();
    let name = |(_, kernel, path): (&Run, &Kernel, &Path)| {
        format!("{} of {}", kernel.name, path.display())
    };
    Err(Error::Usage(format!(
        "{} and {} are not comparable (--anyway compares them all the same):{listed}",
        name(base),
        name(head)
    )))
}

fn exit_code(comparison: &compare::Comparison) -> u8 {
    if comparison.count(|verdict| *verdict == Verdict::Worse) > 0
        || comparison.unmatched.iter().any(|u| u.lost)
    {
        exit::FAIL
    } else if comparison.metrics.is_empty() || !comparison.unmatched.is_empty() {
        exit::NO_MEASUREMENT
    } else {
        exit::PASS
    }
}

/// The kernels that are meant: named, or the only ones, or a series' head.
fn kernels<'a>(
    base: &'a Run,
    head: &'a Run,
    cpu: Option<&str>,
    args: &Args,
) -> Result<[&'a Kernel; 2]> {
    const OPTIONS: [&str; 2] = ["--base-kernel", "--head-kernel"];
    let choose = |run: &'a Run,
                  named: &Option<String>,
                  other: &'a Run,
                  at: usize|
     -> Result<&'a Kernel> {
        let (option, other_option) = (OPTIONS[at], OPTIONS[1 - at]);
        let arches_of =
            |run: &Run| run.kernels.iter().map(|kernel| kernel.arch).collect::<BTreeSet<Arch>>();
        let arches = arches_of(run);
        let common: Vec<Arch> = arches.intersection(&arches_of(other)).copied().collect();
        let names = Vec::from_iter(arches.iter().map(|arch| arch.name())).join(", ");
        let arch = match (args.arch, &common[..]) {
            (Some(arch), _) if arches.contains(&arch) => arch,
            (Some(arch), _) => {
                return Err(Error::Usage(format!(
                    "run {} has nothing of {arch}, but of: {names}",
                    run.id
                )));
            }
            (None, &[only]) => only,
            (None, _) if arches.len() == 1 => *arches.first().expect("just counted"),
            (None, _) => {
                let message = format!(
                    "run {} has several architectures: choose one with --arch: {names}",
                    run.id
                );
                return Err(Error::Usage(message));
            }
        };
        let is_of_arch = |kernel: &&Kernel| kernel.arch == arch;
        let mut all: Vec<&Kernel> = run.kernels_with_cells().filter(is_of_arch).collect();
        if all.is_empty() {
            all.extend(run.kernels.iter().filter(is_of_arch));
        }
        let names = |all: &[&Kernel]| {
            all.iter().map(|kernel| kernel.name.as_str()).collect::<Vec<_>>().join(", ")
        };
        if let Some(name) = named {
            let found = all.iter().copied().find(|kernel| kernel.name == *name);
            return found.ok_or_else(|| {
                Error::Usage(format!(
                    "run {} has no kernel `{name}`; it has: {}",
                    run.id,
                    names(&all)
                ))
            });
        }
        let of = |run: &Run| {
            run.kernels.iter().map(|kernel| kernel.name.clone()).collect::<BTreeSet<_>>()
        };
        let all = booted_alike(all, cpu).ok_or_else(|| {
            let (id, suite) = (&run.id, shell_words::quote(&run.suite.name));
            Error::Usage(format!(
                "run {id} booted no guest as that CPU: vm-test --suite {suite} --model … does"
            ))
        })?;
        let is_of = |series: &&Series| {
            series.arch == arch && all.iter().any(|one| one.name == series.head().kernel)
        };
        let series = run.series.iter().find(is_of);
        match (&all[..], series) {
            (&[only], _) => Ok(only),
            // In a series, prefer the head, unless both runs have the same kernels.
            (all, Some(series)) if of(run) != of(other) => {
                let head = series.head();
                all.iter().copied().find(|kernel| kernel.name == head.kernel).ok_or_else(|| {
                    Error::Usage(format!(
                        "run {} has not built its head {}: choose with {option}: {}",
                        run.id,
                        head.kernel,
                        names(all)
                    ))
                })
            }
            _ => Err(Error::Usage(format!(
                "run {} has several kernels: choose one with {option}: {}; the other run's with \
                 {other_option}, if it has several",
                run.id,
                names(&all)
            ))),
        }
    };
    Ok([choose(base, &args.base_kernel, head, 0)?, choose(head, &args.head_kernel, base, 1)?])
}

/// The kernels whose guests booted as the CPU that is asked for, none if there is none. Without a
/// CPU those that booted as usual, else all.
fn booted_alike<'a>(all: Vec<&'a Kernel>, cpu: Option<&str>) -> Option<Vec<&'a Kernel>> {
    let is_alike = |kernel: &&&Kernel| kernel.cpu().map(|booted| booted.name.as_str()) == cpu;
    let alike: Vec<&Kernel> = all.iter().filter(is_alike).copied().collect();
    match (alike.is_empty(), cpu) {
        (false, _) => Some(alike),
        (true, None) => Some(all),
        (true, Some(_)) => None,
    }
}

fn cells<'a>(run: &'a Run, kernel: &'a Kernel) -> Vec<&'a Cell> {
    run.cells_of(kernel.arch, &kernel.name).collect()
}

fn measured<'a>(run: &'a Run, kernel: &'a Kernel, path: &Path) -> Measured<'a> {
    let dir = RunDir::at(path);
    // Before schema 4 there was one architecture, and no folder for it.
    let flat = dir.kernels().join(format!("{}.config", kernel.name));
    let read = |path: &Path| {
        let bytes = regular::read(path, MOST_BYTES).ok()?;
        Some(String::from_utf8_lossy(&bytes).into_owned())
    };
    let config = read(&dir.config(kernel.arch, &kernel.name)).or_else(|| read(&flat));
    // Without the file there are still the hashes.
    Measured { run, kernel, config: config.and_then(|text| Kconfig::parse(&text).ok()) }
}
