// SPDX-License-Identifier: MIT OR Apache-2.0
//! `cargo xtask bisect`: which commit, which patch of a series, or which
//! options of a configuration changed a metric.

use super::{code_of, exit, progress::Progress, report, typed, values::one_of, vm_test::ACCELS};
use std::{ffi::OsString, path::PathBuf};
use tramplab_lab::{
    Error, Fault, Result,
    bisect::{self, Answer, Configs, Mark, Options, Question, Range, Repository},
};
use tramplab_model::run::Arch;
use tramplab_vm::accel;

#[derive(clap::Args)]
pub struct Args {
    /// Follow this metric (lbr_waste.kretprobe_multi.any, attach.fentry.1000.instructions), or the
    /// outcome of this test (boot, build, lbr_waste/fentry)
    #[arg(long, value_name = "METRIC")]
    metric: Question,
    /// Search the commits of this git repository of the kernel, which is only read
    #[arg(
        long,
        value_name = "LINUX",
        requires_all = ["good", "bad"],
        required_unless_present_any = ["series", "good_config"]
    )]
    tree: Option<PathBuf>,
    /// Start from this good commit
    #[arg(long, value_name = "COMMIT", requires = "tree")]
    good: Option<String>,
    /// Search up to this bad commit
    #[arg(long, value_name = "COMMIT", requires = "tree")]
    bad: Option<String>,
    /// Search the patches of a series instead: as for `vm-test`
    #[arg(long, value_name = "SERIES", conflicts_with = "tree")]
    series: Option<String>,
    /// Search the differences between this configuration and the one of --bad-config: whole
    /// .config files or fragments
    #[arg(
        long,
        value_name = "FILE",
        requires_all = ["bad_config", "kernel"],
        conflicts_with_all = ["tree", "series", "good", "bad"]
    )]
    good_config: Option<PathBuf>,
    /// The configuration with the other value of the metric
    #[arg(long, value_name = "FILE", requires = "good_config")]
    bad_config: Option<PathBuf>,
    /// Apply the series to this kernel, or configure it: as for `vm-test`
    #[arg(long, value_name = "KERNEL", conflicts_with = "tree")]
    kernel: Option<String>,
    /// Answer for the commit that `git bisect run` has checked out, by the exit code: 0 good, 1
    /// bad, 125 skip, 128 and more to stop
    #[arg(long, requires = "tree")]
    step: bool,
    /// Run guests of this architecture [default: this machine's]
    #[arg(long, value_name = "ARCH")]
    arch: Option<Arch>,
    /// Run guests under KVM or TCG; `auto` takes KVM if a guest has answered under it
    #[arg(long, value_parser = one_of(ACCELS), default_value = "auto")]
    accel: accel::Request,
    /// Build kernels without confinement: builds run with your privileges
    #[arg(long)]
    unconfined: bool,
    /// Keep runs in this folder [default: runs/ of the repository]
    #[arg(long, value_name = "DIR")]
    runs: Option<PathBuf>,
}

/// Exit codes for `git bisect run`. It takes 1 to 127 for "bad", except 125.
pub mod step {
    pub const GOOD: u8 = 0;
    pub const BAD: u8 = 1;
    pub const SKIP: u8 = 125;
    pub const NO_ANSWER: u8 = 128;
    pub const USAGE: u8 = 129;
}

/// The exit code of a step that failed: never one that git takes for an answer.
pub fn code_of_step(fault: Fault) -> u8 {
    match fault {
        Fault::Interrupt => code_of(fault),
        Fault::Users => step::USAGE,
        Fault::Machines => step::NO_ANSWER,
    }
}

/// True if the command line, right or wrong, asks for a step.
pub fn is_step(mut arguments: impl Iterator<Item = OsString>) -> bool {
    arguments.nth(1).is_some_and(|command| command == "bisect")
        && arguments.any(|word| word == "--step")
}

impl Args {
    fn range(&self) -> Result<Range> {
        if let (Some(good), Some(bad), Some(kernel)) =
            (&self.good_config, &self.bad_config, &self.kernel)
        {
            let (kernel, good, bad) = (kernel.clone(), good.clone(), bad.clone());
            return Ok(Range::Configs(Configs { kernel, good, bad }));
        }
        match (&self.tree, &self.series) {
            (Some(tree), _) => {
                let end = |end: &Option<String>, option: &str| {
                    end.clone().ok_or_else(|| Error::Usage(format!("--tree needs {option}")))
                };
                let (good, bad) = (end(&self.good, "--good")?, end(&self.bad, "--bad")?);
                Ok(Range::Repository(Repository {
                    tree: tree.clone(),
                    good,
                    bad,
                    by_hand: self.step,
                }))
            }
            (None, Some(series)) => {
                Ok(Range::Series { series: series.clone(), kernel: self.kernel.clone() })
            }
            (None, None) => Err(Error::usage("bisect needs --tree, --series, or --good-config")),
        }
    }
}

pub fn bisect(args: &Args) -> Result<u8> {
    let options = Options {
        metric: args.metric.clone(),
        range: args.range()?,
        arch: args.arch,
        accel: args.accel,
        unconfined: args.unconfined,
        runs: args.runs.clone(),
        command: typed::with_absolute_paths(typed::words()),
    };
    let progress = Progress::new();
    let answer = bisect::bisect(&options, &|event| progress.show(event));
    drop(progress);
    let answer = answer.inspect_err(|error| {
        if error.is_interrupted() {
            eprintln!("all steps so far are kept; run the same command to continue");
        }
    })?;
    Ok(match answer {
        Answer::Step(Mark::Good) => step::GOOD,
        Answer::Step(Mark::Bad) => step::BAD,
        Answer::Step(Mark::Skip) => step::SKIP,
        Answer::Search { found, report, folder } => {
            report::print(report.as_bytes())?;
            eprintln!("bisection kept in {}", folder.display());
            if found { exit::PASS } else { exit::NO_MEASUREMENT }
        }
    })
}
