// SPDX-License-Identifier: MIT OR Apache-2.0
//! `cargo xtask history`: a metric over stored runs, and where it steps; as tables or as a site.

use super::{complete, exit, output::print};
use std::{
    collections::{BTreeSet, btree_map::Entry},
    path::{Path, PathBuf},
};
use time::OffsetDateTime;
use tramplab_analysis::{
    compare::Metric,
    history::{self, Found, History, Query},
};
use tramplab_lab::{
    cpus::{self, AskedCpu},
    error::{Error, Result},
    history::{Commits, Folder, load::Loaded},
    place,
};
use tramplab_model::{name::is_commit_id, run::Arch, text};
use tramplab_report as report;
use tramplab_report::{
    history::Told,
    html::site::{self, Content},
};

#[derive(clap::Args)]
pub struct Args {
    /// Show this metric in full, by its name in the tables of `compare`: lbr_waste.fexit.any,
    /// trigger.fentry.instructions, attach.fentry.1000.attach.instructions, …; repeatable [default:
    /// one line for each metric that changed]
    #[arg(long = "metric", value_name = "METRIC")]
    metrics: Vec<Metric>,
    /// Read these runs, and all runs in these folders [default: where `vm-test` keeps
    /// them]
    #[arg(
        long,
        value_name = "DIR|RUN",
        num_args = 1..,
        value_parser = complete::run(),
        add = complete::runs()
    )]
    runs: Vec<PathBuf>,
    /// Order commits as this git repository has them, and show their subjects [default: by the
    /// runs' time]
    #[arg(long, value_name = "LINUX")]
    tree: Option<PathBuf>,
    /// Show only this kernel, or the commits of this repository
    #[arg(long, value_name = "KERNEL")]
    kernel: Option<String>,
    /// Show only this architecture
    #[arg(long, value_name = "ARCH")]
    arch: Option<Arch>,
    /// Model this CPU, as which guests booted, or a family: intel-lbr, arch-lbr, amd-lbrv2, brbe
    /// [default: the one that booted, else the architecture's first family]
    #[arg(long, value_name = "CPU", add = complete::models())]
    model: Option<AskedCpu>,
    #[arg(long, value_enum, default_value_t = Format::Terminal)]
    format: Format,
    /// Write a site of HTML pages into this folder instead: a front page with the newest steps, and
    /// a page for each metric. Replace the site that is there
    #[arg(long, value_name = "DIR", conflicts_with = "format")]
    site: Option<PathBuf>,
    /// Exit with 1 if the newest row of a history is a step to the worse
    #[arg(long)]
    fail_on_step: bool,
}

#[derive(Clone, Copy, clap::ValueEnum)]
enum Format {
    Terminal,
    Markdown,
    Json,
    /// For Prometheus, with a sample at the start of each run
    Openmetrics,
}

pub fn history(args: &Args) -> Result<u8> {
    // Before the runs are read, which may take a while.
    let folder = args.site.as_deref().map(Folder::new).transpose()?;
    let places = if args.runs.is_empty() { vec![place().runs()?] } else { args.runs.clone() };
    let Loaded { runs, left_out } = tramplab_lab::history::load(&places)?;
    if runs.is_empty() {
        let places: Vec<String> = places.iter().map(|place| place.display().to_string()).collect();
        let told: String = left_out.iter().map(|why| format!("\n  {why}")).collect();
        return Err(Error::Usage(format!(
            "there is no run to read in {}{told}",
            places.join(", ")
        )));
    }
    let model = cpus::of_report(args.model.as_slice(), &Vec::from_iter(&runs))?.family;
    let tree = args.tree.as_deref().map(Commits::open).transpose()?;
    let ancestry = tree.as_ref().map(|tree| tree.ancestry(&history::commits(&runs))).transpose()?;
    let query = Query {
        metrics: args.metrics.clone(),
        kernel: args.kernel.clone(),
        arch: args.arch,
        model,
        now: Some(OffsetDateTime::now_utc()),
    };
    let mut found = history::of(&runs, ancestry.as_ref(), &query);
    found.left_out.splice(..0, left_out);
    found.left_out.iter().for_each(|why| eprintln!("left out: {why}"));
    for metric in &args.metrics {
        if !found.histories.iter().any(|history| history.metric == *metric) {
            return Err(Error::Usage(missing(
                *metric,
                &history::of(&runs, None, &Query::default()),
            )));
        }
    }
    if found.histories.is_empty() {
        let message = "no run has a metric of this --kernel and --arch";
        return Err(Error::Usage(message.to_owned()));
    }
    let told =
        tree.map_or_else(|| Ok(Told::default()), |tree| told(&tree, args.tree.as_deref(), &found))?;
    match folder {
        Some(folder) => {
            let ancestry = ancestry.as_ref();
            let content = Content { found: &found, told: &told, ancestry, runs: runs.len() };
            let files = site::render(&content);
            let written = format!(
                "{}: {} of {}\n",
                folder.path().join("index.html").display(),
                text::counted(files.len() - 1, "metric"),
                text::counted(runs.len(), "run")
            );
            folder.replace(files.into_iter().map(|file| (file.path, file.html)))?;
            print(written.as_bytes())?;
        }
        None => print(shown(&found, &told, args)?.as_bytes())?,
    }
    let is_new = |history: &History| history.newest_step().is_some_and(|step| step.worse);
    let fails = args.fail_on_step && found.histories.iter().any(is_new);
    Ok(if fails { exit::FAIL } else { exit::PASS })
}

fn shown(found: &Found, told: &Told, args: &Args) -> Result<String> {
    let layout = match args.format {
        Format::Json => return Ok(report::json::written(&report::history::json(found, told))?),
        Format::Openmetrics => return Ok(report::openmetrics::render(&found.histories)),
        Format::Terminal => report::terminal::table,
        Format::Markdown => report::markdown::table,
    };
    if args.metrics.is_empty() {
        return Ok(layout(&report::history::overview(&found.histories)));
    }
    let tables =
        found.histories.iter().map(|history| layout(&report::history::table(history, told)));
    Ok(tables.collect::<Vec<_>>().join("\n"))
}

/// The distance between the commits of each step, as the tree knows it.
fn told(commits: &Commits, tree: Option<&Path>, found: &Found) -> Result<Told> {
    let mut told = Told { tree: tree.map(|tree| tree.display().to_string()), ..Told::default() };
    for history in &found.histories {
        for (row, step) in history.rows.iter().filter_map(|row| Some((row, row.step.as_ref()?))) {
            let since = &history.rows[step.since].kernel;
            let known = |commit: &Option<String>| commit.clone().filter(|id| is_commit_id(id));
            let Some(pair) = known(&since.commit).zip(known(&row.kernel.commit)) else { continue };
            if let Entry::Vacant(place) = told.between.entry(pair) {
                let (older, newer) = place.key();
                let between = commits.between(older, newer)?;
                place.insert(between);
            }
        }
    }
    Ok(told)
}

fn missing(metric: Metric, all: &Found) -> String {
    let names: BTreeSet<Metric> = all.histories.iter().map(|history| history.metric).collect();
    let of_test: Vec<String> = names
        .iter()
        .filter(|other| other.test() == metric.test())
        .map(ToString::to_string)
        .collect();
    let names: Vec<String> = names.iter().map(ToString::to_string).collect();
    match of_test.is_empty() {
        true => format!("no run measured {metric}; they have: {}", names.join(", ")),
        false => format!(
            "no run measured {metric} as asked (--kernel, --arch); of its test they have: {}",
            of_test.join(", ")
        ),
    }
}
