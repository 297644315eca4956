// SPDX-License-Identifier: MIT OR Apache-2.0
//! `cargo xtask mechanisms`: writes `docs/mechanisms.md` anew.

use super::{
    UsageError, exit, repository,
    vm_test::{self, Measured},
};
use anyhow::{Context, Result};
use clap::Parser;
use std::path::PathBuf;
use tramplab_host::runs::RunDir;
use tramplab_model::run::{self, Arch, Run};
use tramplab_report::mechanisms as page;

const SUITE: &str = "mechanisms";

#[derive(clap::Args)]
pub struct Args {
    /// Install or name what is missing, fetch QEMU and Rust, then measure
    #[arg(long)]
    setup: bool,
    /// Measure nothing: write the page of this run of the suite, or of several that measured different cells of it
    #[arg(long = "run", value_name = "RUN", conflicts_with = "setup")]
    runs: Vec<PathBuf>,
    /// Where to write it [default: docs/mechanisms.md of the repository, if all cells were measured]
    #[arg(short, long, value_name = "FILE")]
    output: Option<PathBuf>,
}

/// `vm-test` as its own command line.
#[derive(Parser)]
struct VmTest {
    #[command(flatten)]
    args: vm_test::Args,
}

pub fn mechanisms(args: &Args) -> Result<u8> {
    let stored = args.runs.iter().map(|path| RunDir::load(path)).collect::<Result<Vec<_>, _>>()?;
    if let Some(run) = stored.iter().find(|run| run.suite.name != SUITE) {
        let message = format!("{} is a run of the suite {}: the page is of {SUITE}", run.id, run.suite.name);
        return Err(UsageError(message).into());
    }
    let parts = stored.len();
    let run = match run::join(stored, parts).map_err(|apart| UsageError(apart.to_string()))? {
        Some(run) => run,
        None => match measured(args.setup)? {
            Ok(run) => run,
            Err(code) => return Ok(code),
        },
    };
    let path = match (&args.output, page::gap(&run)) {
        (Some(path), _) => path.clone(),
        (None, None) => repository().join("docs/mechanisms.md"),
        (None, Some(gap)) => {
            eprintln!(
                "docs/mechanisms.md stays as it was: {gap}; with --run and -o a page is written all the same"
            );
            return Ok(exit::NO_MEASUREMENT);
        }
    };
    std::fs::write(&path, page::render(&run))
        .with_context(|| format!("failed to write {}", path.display()))?;
    eprintln!("written: {}", path.display());
    Ok(vm_test::exit_code(&run))
}

/// The run, or why there is none worth a page.
fn measured(setup: bool) -> Result<Result<Run, u8>> {
    let arches = Arch::ALL.map(Arch::name).join(",");
    // KVM counts nothing.
    let mut words = vec!["vm-test", "--accel", "tcg", "--suite", SUITE, "--arch", &arches];
    words.extend(setup.then_some("--setup"));
    let VmTest { args } = VmTest::parse_from(words);
    Ok(match vm_test::measure(&args)? {
        Measured::Cells(run, run_dir, _) => {
            vm_test::finish(&run, &run_dir, &args.look)?;
            // What was measured can be written with `--run`.
            if run.interrupted { Err(exit::INTERRUPTED) } else { Ok(*run) }
        }
        Measured::Nothing(code) => Err(code),
    })
}
