// SPDX-License-Identifier: MIT OR Apache-2.0
//! `cargo xtask test`: the tests of this repository, real guests included.

use super::{exit, progress::Progress};
use std::{fmt::Write as _, path::Path};
use tramplab_host::{Cache, Purpose, Qemu};
use tramplab_kernel as kernel;
use tramplab_kernel::{Compiler, Toolchain};
use tramplab_lab::{
    Error, Result, artifacts, kernels,
    nextest::own_tests::{Choice, End, OwnTests, Target, Tier},
    place, setup,
};
use tramplab_model::{
    run::{Arch, Backend},
    tree_tests,
};
use tramplab_vm::WITH_HOST_FILES;

/// The toolchains with which tests build or configure kernels.
const TOOLCHAINS: [(Compiler, Arch); 3] =
    [(Compiler::Gcc, Arch::X86_64), (Compiler::Gcc, Arch::Arm64), (Compiler::Clang, Arch::Arm64)];

/// Names a file for variables of tests, one a line: nextest's setup scripts write to it.
const NEXTEST_ENV: &str = "NEXTEST_ENV";

#[derive(clap::Args)]
pub struct Args {
    /// Install what the tests need and is missing, or print the install commands; then test
    #[arg(long)]
    setup: bool,
    /// Run the slow tests, too; or one PART of all: kvm, faults, survive, kernels, or rest
    #[arg(
        long, value_name = "PART", num_args = 0..=1, require_equals = true,
        default_missing_value = Tier::FULL
    )]
    full: Option<Tier>,
    /// Skip what passed on the same sources in the last call with the same tier
    #[arg(long)]
    resume: bool,
    /// Fetch and build what guests of tests need: x86_64, arm64, or delivering
    #[arg(long, hide = true, value_name = "GUESTS")]
    provide: Option<Guests>,
    /// Build and run only the tests of a PACKAGE, or of its TARGET: lib, bin, or a file of tests
    #[arg(value_name = "PACKAGE[/TARGET]")]
    targets: Vec<Target>,
    /// Run only tests whose name contains one of these words
    #[arg(last = true, value_name = "NAME")]
    names: Vec<String>,
}

#[derive(Clone, Copy, clap::ValueEnum)]
enum Guests {
    #[value(name = "x86_64")]
    X86_64,
    Arm64,
    /// A QEMU that hands branch records to its guests, for both architectures.
    Delivering,
}

pub fn test(args: &Args) -> Result<u8> {
    let root = place().checkout("test")?;
    if let Some(guests) = args.provide {
        return provide(guests, root);
    }
    let choice = Choice {
        tier: args.full.unwrap_or(Tier::Quick),
        targets: args.targets.clone(),
        names: args.names.clone(),
        resume: args.resume,
    };
    let tests = OwnTests::new(root)?;
    if args.setup {
        set_up(tests.builds(&choice)?.iter().any(|build| build.has_guests))?;
    }
    let colour = anstream::stderr().current_choice() != anstream::ColorChoice::Never;
    let end = tests.run(&choice, colour, &|line| eprintln!("{line}"))?;
    Ok(match end {
        End::Passed => exit::PASS,
        End::Failed => exit::FAIL,
        End::Interrupted => exit::INTERRUPTED,
    })
}

/// Installs prerequisites: for guests and kernels, or only the programs of unit tests.
fn set_up(guests: bool) -> Result<()> {
    let cache = Cache::open(true)?;
    let progress = Progress::new();
    let gcc = |arch| (Toolchain::default(), arch);
    let small = setup::Prerequisites {
        toolchains: Vec::new(),
        arches: Vec::new(),
        emulators: Vec::new(),
        backend: Backend::Qemu,
        tree_tests: None,
        tests: true,
    };
    if !guests {
        return Ok(setup::setup(&cache, &small, &mut |step| progress.step(step))?);
    }
    let toolchains = TOOLCHAINS.map(|(compiler, arch)| (compiler.into(), arch));
    // All backends are tested; this one needs all that QEMU alone does, and more. QEMU is fetched
    // for the tests that run it.
    let wanted = setup::Prerequisites {
        toolchains: toolchains.to_vec(),
        arches: Arch::ALL.to_vec(),
        backend: WITH_HOST_FILES,
        ..small
    };
    setup::setup(&cache, &wanted, &mut |step| progress.step(step))?;
    // The trees' own tests are built only for this host's architecture: others need foreign
    // libraries.
    let own = setup::Prerequisites {
        toolchains: vec![gcc(Arch::host().unwrap_or(Arch::X86_64))],
        arches: Vec::new(),
        backend: Backend::Qemu,
        tree_tests: Some(tree_tests::WantedTests {
            bench: true,
            tests: [tree_tests::SNAPSHOT_TEST.parse().expect("a name")].into(),
            ..tree_tests::WantedTests::default()
        }),
        tests: false,
        ..wanted
    };
    Ok(setup::setup(&cache, &own, &mut |step| progress.step(step))?)
}

/// Fetches and builds what guests need. Writes the variables that name it to nextest's file.
fn provide(guests: Guests, root: &Path) -> Result<u8> {
    let file = std::env::var_os(NEXTEST_ENV)
        .ok_or_else(|| Error::usage("--provide is for nextest: .config/nextest.toml"))?;
    let cache = Cache::open(true)?;
    let progress = Progress::new();
    let mut variables = String::new();
    let mut set = |what: &str, path: &Path| {
        let _ = writeln!(variables, "TRAMPLAB_{what}={}", path.display());
    };
    let upper = |arch: Arch| arch.name().to_uppercase();
    let qemu =
        |arch, purpose| Qemu::provision(&cache, arch, purpose, &mut |step| progress.step(step));
    // The kernel with the most mechanisms.
    let (arch, kernel) = match guests {
        Guests::X86_64 => (Arch::X86_64, "6.12"),
        Guests::Arm64 => (Arch::Arm64, "7.2"),
        Guests::Delivering => {
            for arch in Arch::ALL {
                let qemu = qemu(arch, Purpose::Delivering)?;
                set(&format!("QEMU_DELIVERING_{}", upper(arch)), qemu.single_program());
            }
            std::fs::write(file, variables)?;
            return Ok(exit::PASS);
        }
    };
    let emulator = qemu(arch, Purpose::Measuring)?;
    let manifest = kernels::find(kernel, &[arch])?.remove(0);
    let image = kernel::fetch(&manifest, &cache, &mut |step| progress.step(step))?;
    let built = artifacts::build(root, &cache, &[arch], &|event| progress.show(event))?;
    set(&format!("QEMU_{}", upper(arch)), emulator.single_program());
    set(&format!("TEST_KERNEL_{}", upper(arch)), &image.image);
    set(&format!("AGENT_{}", upper(arch)), &built.agents[&arch]);
    set("PLUGIN", &built.plugin);
    std::fs::write(file, variables)?;
    Ok(exit::PASS)
}
