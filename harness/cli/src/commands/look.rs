// SPDX-License-Identifier: MIT OR Apache-2.0
//! The form in which a report of a run is asked for, and the report in that form.

use super::complete;
use tramplab_analysis::branch::{Branch, Filter, Model};
use tramplab_host::runs::RunDir;
use tramplab_lab::{
    cpus::{AskedCpu, Modelled},
    error::{Context, Error, Result},
    profiles,
};
use tramplab_model::{
    run::{Cell, Kernel, Run},
    text,
};
use tramplab_report as report;
use tramplab_report::{View, terminal::Style};

/// The form of a report.
#[derive(clap::Args, Clone)]
#[command(group(clap::ArgGroup::new("filtered").multiple(true)))]
pub struct Look {
    #[arg(long, value_enum, default_value_t = Format::Terminal)]
    pub format: Format,
    /// Also list the branch records of waste cells and of hits, oldest first, as retsnoop does
    #[arg(long, group = "filtered")]
    pub listing: bool,
    /// Also count the records that an earlier snapshot would waste: an option of `report`.
    #[arg(skip)]
    pub what_if: bool,
    /// Also list, or count, by these filters, beside `any`: any_return, 'any_call|cond', …;
    /// repeatable
    #[arg(long, value_name = "FILTER", value_delimiter = ',', requires = "filtered")]
    pub filter: Vec<Filter>,
    /// In lists of branch records, also show source lines and inlined functions; `vm-test` builds
    /// the kernel again, or fetches its debug package, if the cache has no source lines of it
    #[arg(long)]
    pub lines: bool,
    /// Model a CPU: a name in configs/cpus/ or ~/.config/tramplab/cpus/, or a file. `vm-test` boots
    /// guests as it, with its mitigations, and takes several. Reports show guests that booted so. A
    /// family (intel-lbr, arch-lbr, amd-lbrv2, brbe) reads the records as its CPUs would
    #[arg(long = "model", value_name = "CPU", value_delimiter = ',', add = complete::models())]
    pub models: Vec<AskedCpu>,
}

impl Look {
    /// The report as `vm-test` prints it without options.
    pub fn plain() -> Look {
        Look {
            format: Format::Terminal,
            listing: false,
            what_if: false,
            filter: Vec::new(),
            lines: false,
            models: Vec::new(),
        }
    }

    /// The filters to list by: `any`, then those that are named, each once.
    fn filters(&self) -> Vec<Filter> {
        let mut filters = vec![Filter::of(Branch::Any)];
        for filter in &self.filter {
            if !filters.contains(filter) {
                filters.push(*filter);
            }
        }
        filters
    }

    fn view(&self, model: &Modelled) -> View {
        let if_asked = |asked: bool| if asked { self.filters() } else { Vec::new() };
        View {
            model: model.family,
            depth: model.depth,
            cpu: model.cpu.clone(),
            listings: if_asked(self.listing),
            what_if: if_asked(self.what_if),
            lines: self.lines,
        }
    }
}

#[derive(Clone, Copy, PartialEq, Eq, clap::ValueEnum)]
pub enum Format {
    Terminal,
    Json,
    Junit,
    Markdown,
    /// One page for a browser, without a network; the reader switches filter, depth and CPU model
    Html,
    /// Annotations and folded consoles, as commands of GitHub's runner
    Github,
    /// Markdown of at most 1 MiB, which is what GitHub takes
    GithubSummary,
    /// Plain text of at most 72 columns
    Mail,
    /// Branch records as `perf script -F brstacksym` prints them, by `any`; also by each filter
    /// of --listing --filter
    Brstack,
    /// Go's benchmark text, for benchstat
    Benchstat,
    /// github-action-benchmark's customSmallerIsBetter
    GithubBenchmark,
    /// Bencher's Metric Format
    Bencher,
    /// The run's own time line, for Perfetto and chrome://tracing
    Timeline,
}

impl Format {
    /// Refuses an option of tables where there are none.
    pub fn check_takes(self, option: &str, given: bool) -> Result<()> {
        match self {
            Format::Terminal | Format::Markdown | Format::GithubSummary => Ok(()),
            _ if !given => Ok(()),
            _ => Err(Error::Usage(format!(
                "{option} needs --format terminal, markdown or github-summary"
            ))),
        }
    }
}

/// Renders a run in one format. Its folder may be gone; then the page has no flame graphs.
pub fn render(
    run: &Run,
    run_dir: &RunDir,
    look: &Look,
    model: &Modelled,
    style: Style,
) -> Result<Vec<u8>> {
    let view = look.view(model);
    let model = model.family;
    Ok(match look.format {
        Format::Terminal => report::terminal::render(run, &view, style).into_bytes(),
        Format::Markdown => report::markdown::render(run, &view).into_bytes(),
        Format::Html => page(run, run_dir, model),
        Format::Junit => {
            report::junit::render(run).map_err(|error| Error::failed(error.to_string()))?
        }
        Format::Github => report::github::annotations(run).into_bytes(),
        Format::GithubSummary => {
            report::github::summary(run, &view, report::github::SUMMARY).into_bytes()
        }
        Format::Mail => report::mail::render(run, &view).into_bytes(),
        Format::Json => text::json(&serde_json::to_vec_pretty(run)?).into_owned(),
        Format::Brstack => report::brstack::render(run, &view, &look.filters()).into_bytes(),
        Format::Benchstat => report::benchstat::render(run, model).into_bytes(),
        Format::GithubBenchmark => report::benchmarks::github(run, model).into_bytes(),
        Format::Timeline => report::timeline::render(run).into_bytes(),
        Format::Bencher => report::benchmarks::bencher(run, model).into_bytes(),
    })
}

/// Names the kernels that have no source lines although the user asks for them.
pub fn tell_missing_lines(run: &Run, look: &Look) {
    let has_places = |cell: &Cell| cell.measurement.iter().any(|one| !one.places().is_empty());
    let lacks = |kernel: &&Kernel| {
        run.lines_of(kernel.arch, &kernel.name).is_none()
            && run.cells_of(kernel.arch, &kernel.name).any(has_places)
    };
    for kernel in run.kernels.iter().filter(lacks).filter(|_| look.lines) {
        let why = match kernel.build {
            Some(_) => "this run kept none; measure again with vm-test --lines",
            None if kernel.source.starts_with("debian ") => {
                "vm-test --lines keeps them, if the kernel's debug package can be fetched"
            }
            None => "only a kernel that is built here, or has a vmlinux beside it, has some",
        };
        eprintln!("no source lines of {}: {why}", kernel.name);
    }
}

/// The long report of a series, whose `report.md` is short.
const DETAILS: &str = "details.md";

/// The report for a browser.
pub const PAGE: &str = "report.html";

/// The flame graphs of a page.
const FLAMES: usize = 12;

fn page(run: &Run, run_dir: &RunDir, model: Option<Model>) -> Vec<u8> {
    report::html::render(run, model, &profiles::all(run_dir, run, FLAMES)).into_bytes()
}

/// Writes the reports beside `run.json`.
pub fn write_all(run: &Run, run_dir: &RunDir) -> Result<()> {
    let view = View { listings: vec![Filter::of(Branch::Any)], ..View::default() };
    let whole = report::markdown::render(run, &view).into_bytes();
    let junit = report::junit::render(run).map_err(|error| Error::failed(error.to_string()))?;
    let mut forms = vec![("junit.xml", junit), (PAGE, page(run, run_dir, None))];
    if run.series.is_empty() {
        forms.push(("report.md", whole));
    } else {
        forms.push(("report.md", report::markdown::brief(run, &view, DETAILS).into_bytes()));
        forms.push((DETAILS, whole));
    }
    for (name, bytes) in forms {
        let path = run_dir.path().join(name);
        std::fs::write(&path, bytes)
            .with_context(|| format!("failed to write {}", path.display()))?;
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;
    use clap::Parser;

    #[derive(Parser)]
    struct Command {
        #[command(flatten)]
        look: Look,
    }

    #[test]
    fn filter_adds_to_any() {
        let table: [(&[&str], &[&str]); 7] = [
            (&[], &[]),
            (&["--listing"], &["any"]),
            (&["--listing", "--filter", "any_return"], &["any", "any_return"]),
            (&["--listing", "--filter", "any_return,cond"], &["any", "any_return", "cond"]),
            (
                &["--listing", "--filter", "cond", "--filter", "any_return"],
                &["any", "cond", "any_return"],
            ),
            (&["--listing", "--filter", "any,cond,cond"], &["any", "cond"]),
            (&["--listing", "--filter", "any_call|cond"], &["any", "any_call|cond"]),
        ];
        for (arguments, expected) in table {
            let command = Command::try_parse_from([&["report"], arguments].concat()).unwrap();
            let listings = command.look.view(&Modelled::default()).listings;
            let listings: Vec<String> = listings.iter().map(Filter::to_string).collect();
            assert_eq!(listings, expected, "{arguments:?}");
        }
        let command = Command::try_parse_from(["report", "--listing", "--filter", "cond"]).unwrap();
        let look = Look { listing: false, what_if: true, ..command.look };
        let view = look.view(&Modelled::default());
        let [any, cond] = [Branch::Any, Branch::Cond].map(Filter::of);
        assert_eq!((view.listings, view.what_if), (Vec::new(), vec![any, cond]));
        assert!(
            Command::try_parse_from(["report", "--filter", "cond"]).is_err(),
            "without --listing"
        );
    }
}
