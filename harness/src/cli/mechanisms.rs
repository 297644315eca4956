// SPDX-License-Identifier: MIT OR Apache-2.0
//! `cargo xtask mechanisms`: writes `docs/mechanisms.md` anew.

use super::{
    exit, repository,
    vm_test::{self, Measured},
};
use anyhow::{Context, Result};
use clap::Parser;
use std::path::PathBuf;
use tramplab::{
    report,
    run::{Arch, Run, RunDir},
};

#[derive(clap::Args)]
pub struct Args {
    /// Install or name what is missing, fetch QEMU and Rust, then measure
    #[arg(long)]
    setup: bool,
    /// Measure nothing: write the page of this run
    #[arg(long, value_name = "RUN", conflicts_with = "setup")]
    run: Option<PathBuf>,
    /// Where to write it [default: docs/mechanisms.md of the repository]
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
    let run = match &args.run {
        Some(path) => RunDir::load(path)?,
        None => match measured(args.setup)? {
            Ok(run) => run,
            Err(code) => return Ok(code),
        },
    };
    let path = args.output.clone().unwrap_or_else(|| repository().join("docs/mechanisms.md"));
    std::fs::write(&path, report::mechanisms::render(&run))
        .with_context(|| format!("failed to write {}", path.display()))?;
    eprintln!("written: {}", path.display());
    Ok(vm_test::exit_code(&run))
}

/// The run, or why there is none worth a page.
fn measured(setup: bool) -> Result<Result<Run, u8>> {
    let arches = Arch::ALL.map(Arch::name).join(",");
    let mut words = vec!["vm-test", "--suite", "mechanisms", "--arch", &arches];
    words.extend(setup.then_some("--setup"));
    let VmTest { args } = VmTest::parse_from(words);
    Ok(match vm_test::measure(&args)? {
        Measured::Cells(run, run_dir) => {
            vm_test::finish(&run, &run_dir, &args.look)?;
            if run.interrupted { Err(exit::INTERRUPTED) } else { Ok(*run) }
        }
        Measured::Nothing(code) => Err(code),
    })
}
