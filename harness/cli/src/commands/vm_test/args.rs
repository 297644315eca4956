// SPDX-License-Identifier: MIT OR Apache-2.0
//! The options of `vm-test`.

use super::super::{
    complete,
    look::Look,
    values::{ACCELS, one_of},
};
use std::{num::NonZeroUsize, path::PathBuf};
use tramplab_kernel::{axis::Axis, series::placebo};
use tramplab_lab::{
    Result,
    backend::{Backends, Where},
    command::CommandLine,
    kernels::SeriesOptions,
    nextest::cells::{Partition, Selection},
    options::{Options, Until},
    rerun::Earlier,
};
use tramplab_model::run::Arch;
use tramplab_protocol::message::Explain;
use tramplab_suite::{Clocks, Experiment};
use tramplab_vm::{accel, branches};

#[derive(clap::Args)]
pub struct Args {
    #[command(flatten)]
    what: WhatArgs,
    #[command(flatten)]
    kernels: KernelArgs,
    #[command(flatten)]
    pub(super) series: SeriesArgs,
    #[command(flatten)]
    pub(super) guests: GuestArgs,
    #[command(flatten)]
    cells: CellArgs,
    #[command(flatten)]
    pub(super) call: CallArgs,
    #[command(flatten, next_help_heading = "CPU and report")]
    pub(super) look: Look,
}

/// The command without the program's name before it: the words that a run keeps.
#[derive(clap::Parser)]
#[command(name = "vm-test")]
pub struct Alone {
    #[command(flatten)]
    pub args: Args,
}

#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum MessageFormat {
    Human,
    Json,
}

const MESSAGES: &[(&str, MessageFormat)] =
    &[("human", MessageFormat::Human), ("json", MessageFormat::Json)];

#[derive(clap::Args)]
#[command(next_help_heading = "Tests")]
struct WhatArgs {
    /// Run this suite: the name of a shipped one or of one in ~/.config/tramplab/suites/, or a
    /// file
    #[arg(long, value_name = "SUITE", default_value = "quick", add = complete::suites())]
    suite: String,
    /// Trace this function in lbr_waste and trigger tests, and attach to it in attach tests, which
    /// take patterns too (`tcp_*`, `xfs:*`); run no other tests. A value with a slash is a file
    /// with a function per line, or an executable or library for probes of user space; repeatable
    #[arg(long = "function", value_name = "NAME|PATTERN|FILE", conflicts_with = "update_budgets")]
    functions: Vec<String>,
    /// Hit the functions of --function, or the program's own, by this command in the guest's shell
    /// (busybox), instead of by a system call that the agent knows; run only lbr_waste and trigger
    /// tests
    #[arg(long, value_name = "COMMAND")]
    trigger: Option<String>,
    /// Attach this BPF program instead of tramplab's own, in lbr_waste, trigger and attach tests of
    /// its mechanism; run no other tests. FILE is an object that clang made. Each VALUE replaces
    /// that of a global variable, or names the extension that replaces a function; repeatable
    #[arg(
        long = "program",
        value_name = "FILE[:PROGRAM[,NAME=VALUE…]]",
        conflicts_with = "update_budgets"
    )]
    programs: Vec<String>,
    /// Time attach tests by the host's clock, by the guest's instruction count (`-icount`, which
    /// repeats exactly), or by both in two guests [default: the suite's]
    #[arg(long, value_parser = one_of(CLOCKS), value_name = "CLOCK")]
    clock: Option<Clocks>,
    /// Explain attach times: `exact` counts instructions by call path, `sampled` samples call
    /// chains and times waits, `estimated` estimates cycles of the CPU of --model, of hits too;
    /// repeatable [default: the suite's]
    #[arg(long, value_parser = one_of(EXPLAIN), value_name = "HOW", value_delimiter = ',')]
    explain: Vec<Explain>,
    /// Add an experiment: `deliver-records` delivers branch records to programs in the guest and
    /// checks them against the trace (QEMU 10.1 or newer, which --setup fetches); repeatable
    #[arg(long = "experiment", value_parser = one_of(EXPERIMENTS), value_name = "NAME")]
    experiments: Vec<Experiment>,
}

#[derive(clap::Args)]
#[command(next_help_heading = "Kernels")]
struct KernelArgs {
    /// Run on these kernels instead of the suite's: names of shipped ones or of manifests in
    /// ~/.config/tramplab/kernels/, manifests, images, packages (.rpm, .deb, .pkg.tar.zst), running
    /// for the kernel that runs here, or sources to build (a folder, a tarball,
    /// git:REPOSITORY#REF, debian-source:6.12); repeatable [default: the kernel tree that you are
    /// in, else the suite's]
    #[arg(long = "kernel", value_name = "KERNEL", add = complete::kernels())]
    kernels: Vec<String>,
    /// Run guests of these architectures: x86_64, arm64 or both [default: this machine's]
    #[arg(long = "arch", value_name = "ARCH", value_delimiter = ',')]
    arches: Vec<Arch>,
    /// Configure kernels that are built here by this .config instead of tramplab's options, or add
    /// those of a fragment: short for --config-axis config=FILE
    #[arg(long, value_name = "FILE", conflicts_with = "update_budgets")]
    config: Option<String>,
    /// Measure each kernel in these configurations: an axis of configs/axes.yaml or of FILE.yaml,
    /// an option of the kernel (CONFIG_FOO=n,y) or files (NAME=a.config,b.config); repeatable, for
    /// all combinations
    #[arg(
        long = "config-axis",
        value_name = "[FILE.yaml:]NAME=VALUES",
        conflicts_with = "update_budgets"
    )]
    axes: Vec<Axis>,
    /// Fail if kernels cannot be built confined, instead of warning
    #[arg(long, conflicts_with = "unconfined")]
    confined: bool,
    /// Build kernels without confinement: builds run with your privileges
    #[arg(long)]
    unconfined: bool,
    /// Fetch and build everything anew
    #[arg(long)]
    no_cache: bool,
}

#[derive(clap::Args)]
#[command(next_help_heading = "Patch series")]
pub(super) struct SeriesArgs {
    /// Compare a kernel with and without these patches: an mbox, a maildir, a folder or tarball of
    /// patches, a quilt series, `-` for standard input, commits BASE..HEAD of the kernel's
    /// repository, a message-id (needs b4), or a shipped series
    #[arg(long, value_name = "SERIES", add = complete::series())]
    pub(super) series: Option<String>,
    /// Apply these patches to both sides, under the series; takes the forms of --series but no
    /// commits; repeatable
    #[arg(
        long = "base-patches",
        value_name = "PATCHES",
        requires = "series",
        add = complete::series()
    )]
    base_patches: Vec<String>,
    /// Measure after each patch of the series, not only after the last
    #[arg(long, requires = "series")]
    each_patch: bool,
    /// Also measure N kernels (at most 6) with code that is never called. They show how far layout
    /// alone moves numbers; a smaller difference is neither better nor worse
    #[arg(
        long,
        value_name = "N",
        default_value_t = 0,
        requires = "series",
        value_parser = placebos
    )]
    placebos: usize,
}

fn placebos(text: &str) -> Result<usize, String> {
    let number = text.parse().ok().filter(|number| *number <= placebo::MOST);
    number.ok_or_else(|| format!("expected a number from 0 to {}", placebo::MOST))
}

#[derive(clap::Args)]
#[command(next_help_heading = "Guests")]
pub(super) struct GuestArgs {
    /// Start guests with QEMU alone, or with virtme-ng, whose guests use this machine's files
    /// (read-only) as their userspace; or start `none` and measure the kernel that runs on this
    /// machine, as root, attaching to 100 functions at once, at most; `none:N` and `none:all` to
    /// more. `none,qemu` measures it, and its image in guests beside it
    #[arg(
        long,
        value_name = "qemu|virtme-ng|none[:N]",
        value_delimiter = ',',
        default_value = "qemu",
        add = complete::vms()
    )]
    vm: Vec<Where>,
    /// Run guests under KVM or TCG; `auto` takes KVM if a guest has answered under it
    #[arg(long, value_parser = one_of(ACCELS), default_value = "auto")]
    accel: accel::Request,
    /// Count the CPU's own branch records (KVM on Intel, Haswell to Ice Lake) or the plugin's,
    /// which are exact everywhere; `auto` takes the CPU's where guests can have them. `emulated`
    /// plays the registers of --model's CPU and counts what the kernel's own driver hands over
    #[arg(long, value_parser = one_of(BRANCHES), value_name = "WHOSE", default_value = "auto")]
    branches: branches::Request,
    /// Boot every guest instead of restoring it from a snapshot
    #[arg(long)]
    cold: bool,
    /// Attach programs on this machine without asking; for --vm none
    #[arg(long)]
    pub(super) yes: bool,
}

#[derive(clap::Args)]
#[command(next_help_heading = "Cells")]
struct CellArgs {
    /// Run only cells with one of these in their name; a part between slashes selects only itself
    /// (fexit does not select fexit.multi)
    #[arg(
        value_name = "CELL",
        value_parser = clap::builder::NonEmptyStringValueParser::new(),
        add = complete::cells()
    )]
    names: Vec<String>,
    /// Run only cells that match a nextest filterset, e.g. 'test(/lbr_waste/) & !test(/kprobe/)';
    /// repeatable (or)
    #[arg(short = 'E', long = "filterset", value_name = "EXPR")]
    filtersets: Vec<String>,
    /// Run one shard, e.g. hash:1/2, count:2/4 or slice:1/3
    #[arg(long, value_name = "KIND:M/N")]
    partition: Option<Partition>,
    /// Run N cells at once; timed cells always run alone [default: two more than there are CPUs]
    #[arg(short = 'j', long, value_name = "N")]
    jobs: Option<NonZeroUsize>,
}

#[derive(clap::Args)]
#[command(next_help_heading = "Run")]
pub(super) struct CallArgs {
    /// Install what is missing and fetch QEMU, or print the install commands; then run
    #[arg(long)]
    setup: bool,
    /// Print the selected cells; build no kernel and run nothing
    #[arg(long)]
    list: bool,
    /// Fetch and build everything; run nothing
    #[arg(long, conflicts_with = "list")]
    no_run: bool,
    /// Measure again the cells of RUN that ended as an error or have no result, and keep RUN's
    /// other results. RUN's options apply; those that choose files, builds or devices of this
    /// machine must be typed again. An option that you type replaces RUN's
    #[arg(
        long,
        value_name = "RUN",
        value_parser = complete::run(),
        add = complete::runs(),
        conflicts_with_all = ["list", "no_run", "keep", "update_budgets"]
    )]
    pub(super) rerun: Option<PathBuf>,
    /// After a cell that did not pass, boot its guest again with a shell; needs a terminal on stdin
    #[arg(long, conflicts_with_all = ["list", "no_run"])]
    pub(super) keep: bool,
    /// Write the measured values into the suite's file as budgets, and print the diff
    #[arg(long, conflicts_with_all = ["list", "no_run", "series"])]
    pub(super) update_budgets: bool,
    /// Keep runs in this folder [default: runs/ of the repository, else
    /// ~/.local/state/tramplab/runs]
    #[arg(long, value_name = "DIR")]
    runs: Option<PathBuf>,
    /// Print the report at the end, or one JSON object per line for each event while the run goes
    /// on. Progress goes to standard error either way [default: human; with --rerun as RUN]
    #[arg(
        long,
        value_name = "FORMAT",
        value_parser = one_of(MESSAGES),
        conflicts_with_all = ["list", "no_run", "keep", "update_budgets", "format", "filtered"]
    )]
    pub(super) message_format: Option<MessageFormat>,
    /// Keep this note with the run (for .github/ci.sh)
    #[arg(long = "note", value_name = "TEXT", hide = true)]
    notes: Vec<String>,
}

const BRANCHES: &[(&str, branches::Request)] = &[
    ("auto", branches::Request::Auto),
    ("emulated", branches::Request::Emulated),
    ("hardware", branches::Request::Hardware),
    ("virtual", branches::Request::Virtual),
];

const CLOCKS: &[(&str, Clocks)] =
    &[("free", Clocks::Free), ("exact", Clocks::Exact), ("both", Clocks::Both)];

const EXPLAIN: &[(&str, Explain)] =
    &[("exact", Explain::Exact), ("sampled", Explain::Sampled), ("estimated", Explain::Estimated)];

const EXPERIMENTS: &[(&str, Experiment)] = &[("deliver-records", Experiment::DeliverRecords)];

impl Args {
    pub(super) fn options(&self, command: CommandLine, rerun: Option<Earlier>) -> Result<Options> {
        let Args { what, kernels, series, guests, cells, call, look } = self;
        let of_config = kernels.config.iter().map(|file| Axis::of_config(file));
        Ok(Options {
            suite: what.suite.clone(),
            functions: what.functions.clone(),
            trigger: what.trigger.clone(),
            programs: what.programs.clone(),
            clocks: what.clock,
            explain: what.explain.iter().copied().collect(),
            experiments: what.experiments.iter().copied().collect(),
            kernels: kernels.kernels.clone(),
            here: std::env::current_dir().ok(),
            arches: kernels.arches.iter().copied().collect(),
            confined: kernels.confined,
            no_cache: kernels.no_cache,
            series: SeriesOptions {
                series: series.series.clone(),
                base_patches: series.base_patches.clone(),
                each_patch: series.each_patch,
                placebos: series.placebos,
                unconfined: kernels.unconfined,
                axes: of_config.chain(kernels.axes.clone()).collect(),
            },
            models: look.models.clone(),
            backends: Backends::of(&guests.vm)?,
            accel: guests.accel,
            branches: guests.branches,
            cold: guests.cold,
            selection: Selection {
                names: cells.names.clone(),
                filtersets: cells.filtersets.clone(),
                partition: cells.partition.clone(),
                jobs: cells.jobs,
                jobs_named: Vec::new(),
            },
            setup: call.setup,
            ask: None,
            until: match (call.list, call.no_run) {
                (true, _) => Until::Listed,
                (_, true) => Until::Built,
                _ => Until::Measured,
            },
            rerun,
            runs: call.runs.clone(),
            notes: call.notes.clone(),
            lines: look.lines,
            command,
        })
    }
}
