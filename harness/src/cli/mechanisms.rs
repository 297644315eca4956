// SPDX-License-Identifier: MIT OR Apache-2.0
//! `cargo xtask mechanisms`: writes `docs/mechanisms.md` anew.

use super::{
    UsageError, exit, repository,
    vm_test::{self, Measured},
};
use anyhow::{Context, Result};
use clap::Parser;
use std::path::PathBuf;
use tramplab::{
    report,
    run::{Arch, Kernel, Machine, Run, RunDir},
};

#[derive(clap::Args)]
pub struct Args {
    /// Install or name what is missing, fetch QEMU and Rust, then measure
    #[arg(long)]
    setup: bool,
    /// Measure nothing: write the page of this run, or of several that were made of kernels and architectures of their own
    #[arg(long = "run", value_name = "RUN", conflicts_with = "setup")]
    runs: Vec<PathBuf>,
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
    let stored = args.runs.iter().map(|path| RunDir::load(path)).collect::<Result<Vec<_>, _>>()?;
    let run = match joined(stored)? {
        Some(run) => run,
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

/// All as one; the first tells when and where.
fn joined(runs: Vec<Run>) -> Result<Option<Run>> {
    let mut runs = runs.into_iter();
    let Some(mut all) = runs.next() else { return Ok(None) };
    for run in runs {
        if let Some(twice) = run.cells.iter().find(|cell| all.cells.iter().any(|known| known.id == cell.id)) {
            let message = format!("{} is in {} and in {}", twice.id.name(), all.id, run.id);
            return Err(UsageError(message).into());
        }
        let differ = |what: &str| -> anyhow::Error {
            UsageError(format!("{} and {} do not go on one page: {what}", all.id, run.id)).into()
        };
        let mut machines = run.machines.iter();
        if machines.any(|machine| all.machine(machine.arch).is_some_and(|known| known != machine)) {
            return Err(differ("they measured in different machines, or with another agent or plugin"));
        }
        let same = |a: &Kernel, b: &Kernel| (&a.name, a.arch) == (&b.name, b.arch);
        let mut kernels = run.kernels.iter();
        if kernels.any(|kernel| all.kernels.iter().any(|known| same(kernel, known) && kernel != known)) {
            return Err(differ("a kernel of one name is not the same in both"));
        }
        let is_new = |machine: &Machine| all.machine(machine.arch).is_none();
        let machines: Vec<Machine> = run.machines.into_iter().filter(is_new).collect();
        all.machines.extend(machines);
        for kernel in run.kernels {
            if !all.kernels.contains(&kernel) {
                all.kernels.push(kernel);
            }
        }
        all.cells.extend(run.cells);
    }
    Ok(Some(all))
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
