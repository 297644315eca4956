// SPDX-License-Identifier: MIT OR Apache-2.0
//! `cargo xtask`: the command line of tramplab.
#![recursion_limit = "256"]

/// What the program says of itself on standard error. In place of the standard one: messages quote guests, kernel builds and files of
/// strangers, and no call of it may forget that. Where nobody can be told (a full disk, a closed pipe), the exit code still tells.
macro_rules! eprintln {
    ($($words:tt)*) => {{
        use std::io::Write as _;
        let _ = writeln!(std::io::stderr(), "{}", tramplab_model::text::clean(&format!($($words)*)));
    }};
}

mod commands;

use clap::{Parser, Subcommand};
use commands::exit;
use nix::sys::signal::{SigHandler, Signal, signal};
use std::process::ExitCode;
use tramplab_analysis::profile;
use tramplab_host as host;
use tramplab_host::config;
use tramplab_host::runs;
use tramplab_kernel::{KernelError, compile::BuildError, series::SeriesError};
use tramplab_lab::bisect::SearchError;
use tramplab_lab::setup;
use tramplab_suite::baseline;

/// Attach time, trigger cost and branch-record waste of BPF tracing, measured on any kernel in QEMU.
#[derive(Parser)]
#[command(name = "cargo xtask", bin_name = "cargo xtask", version, after_help = EXIT_CODES)]
struct App {
    #[command(subcommand)]
    command: Command,
}

const EXIT_CODES: &str = "Exit codes: 0 pass, 1 a test failed, 2 usage or configuration, 3 no measurement could be made, 130 interrupted.";

#[derive(Subcommand)]
enum Command {
    /// Run a suite in guests and report: the main job
    VmTest(commands::vm_test::Args),
    /// A guest to look around in: at the terminal, or for one command, whose exit code is then this one's
    Shell(commands::shell::Args),
    /// Run every test of this repository, real guests included
    Test(commands::test::Args),
    /// Make everything go wrong that can, for real, and print what came of it as a table
    Faults(commands::faults::Args),
    /// Say what this machine has, what is missing and the line that mends it
    Doctor(commands::doctor::Args),
    /// Render a stored run again
    Report(commands::report::Args),
    /// Put the runs of several shards together to one
    Merge(commands::merge::Args),
    /// Compare two stored runs, base against head
    Compare(commands::compare::Args),
    /// Show metrics over stored runs, commit by commit where kernels are commits, and where they step
    History(commands::history::Args),
    /// Show where the time of an attach cell went, alone or against another
    Profile(commands::profile::Args),
    /// Find the commit, or the patch of a series, that changed a metric
    Bisect(commands::bisect::Args),
    /// Write docs/mechanisms.md anew: every mechanism on every kernel and architecture
    Mechanisms(commands::mechanisms::Args),
    /// List what is kept between runs, or remove what was not used for longest
    Cache(commands::cache::Args),
    /// Measure tramplab itself: boot with and without the plugin, armed against idle
    Bench(commands::bench::Args),
    /// Fuzz what reads the files, messages and words of others: an hour, or a while for each target
    Fuzz(commands::fuzz::Args),
}

fn main() -> ExitCode {
    // SAFETY: it is the first thing that is done.
    unsafe { commands::forget_cargo_run() };
    if let Err(error) = host::child::close_inherited() {
        eprintln!("error: failed to keep inherited descriptors from what is started: {error}");
        return ExitCode::from(exit::NO_MEASUREMENT);
    }
    // A file that may not grow is then an error of what writes to it, here and in all that is started.
    // SAFETY: no handler is installed.
    let _ = unsafe { signal(Signal::SIGXFSZ, SigHandler::SigIgn) };
    // Each cell begins here: all that the other commands have to say of themselves is not made up for it.
    if let Some((error, code)) = commands::nextest::double_spawn(std::env::args_os().skip(1)) {
        eprintln!("error: {error:#}");
        return ExitCode::from(code);
    }
    if !commands::bisect::is_step(std::env::args_os()) {
        return run(App::try_parse().unwrap_or_else(|error| without_misleading_tip(error).exit()), &ended);
    }
    // git takes nearly every code for an answer: of a command line that is wrong, and of a panic, it must see none.
    let step = |result| match result {
        Ok(code) => code,
        Err(error) => match ended(Err(error)) {
            exit::INTERRUPTED => exit::INTERRUPTED,
            exit::USAGE => commands::bisect::step::USAGE,
            _ => commands::bisect::step::NO_ANSWER,
        },
    };
    let answer = std::panic::catch_unwind(|| match App::try_parse() {
        Ok(app) => run(app, &step),
        Err(error) => {
            let _ = error.print();
            ExitCode::from(commands::bisect::step::USAGE)
        }
    });
    answer.unwrap_or(ExitCode::from(commands::bisect::step::NO_ANSWER))
}

/// clap offers to take an unknown option for the name of a cell.
fn without_misleading_tip(mut error: clap::Error) -> clap::Error {
    use clap::error::{ContextKind, ContextValue};
    const TIP: &str = "choose cells by parts of their names, such as `vm-test fexit`; --list names them all";
    let is_misleading = error.kind() == clap::error::ErrorKind::UnknownArgument
        && error.get(ContextKind::Suggested).is_some_and(|tips| tips.to_string().contains("'-- --"));
    if is_misleading {
        error.remove(ContextKind::Suggested);
        let is_vm_test = std::env::args_os().nth(1).is_some_and(|command| command == "vm-test");
        if is_vm_test {
            error.insert(ContextKind::Suggested, ContextValue::StyledStrs(vec![TIP.into()]));
        }
    }
    error
}

fn run(app: App, ended: &dyn Fn(anyhow::Result<u8>) -> u8) -> ExitCode {
    let result = match app.command {
        Command::VmTest(args) => commands::vm_test::vm_test(&args),
        Command::Test(args) => commands::test::test(&args),
        Command::Shell(args) => commands::shell::shell(&args),
        Command::Faults(args) => commands::faults::faults(&args),
        Command::Doctor(args) => commands::doctor::doctor(&args),
        Command::Report(args) => commands::report::report(&args),
        Command::Merge(args) => commands::merge::merge(&args),
        Command::Compare(args) => commands::compare::compare(&args),
        Command::History(args) => commands::history::history(&args),
        Command::Profile(args) => commands::profile::profile(&args),
        Command::Bisect(args) => commands::bisect::bisect(&args),
        Command::Mechanisms(args) => commands::mechanisms::mechanisms(&args),
        Command::Cache(args) => commands::cache::cache(&args),
        Command::Bench(args) => commands::bench::bench(&args),
        Command::Fuzz(args) => commands::fuzz::fuzz(&args),
    };
    ExitCode::from(ended(result))
}

/// What a caller sees of how a command ended.
fn ended(result: anyhow::Result<u8>) -> u8 {
    match result {
        Ok(code) => code,
        Err(error) => {
            eprintln!("error: {}", told(&error));
            if error.is::<commands::Interrupted>() {
                return exit::INTERRUPTED;
            }
            if is_usage(&error) { exit::USAGE } else { exit::NO_MEASUREMENT }
        }
    }
}

/// The error and its causes, but for those that have already been quoted by the error above them.
fn told(error: &anyhow::Error) -> String {
    error.chain().map(ToString::to_string).fold(String::new(), |told, cause| match told.contains(&cause) {
        true => told,
        false if told.is_empty() => cause,
        false => format!("{told}: {cause}"),
    })
}

/// Errors that the user mends by changing what was asked, or by installing what is missing.
fn is_usage(error: &anyhow::Error) -> bool {
    error.chain().any(|cause| {
        cause.is::<config::ConfigError>()
            || cause.is::<commands::UsageError>()
            || cause.is::<setup::SetupError>()
            || cause.is::<host::QemuError>()
            || cause.is::<host::rust::RustError>()
            || cause.is::<host::VirtmeError>()
            || cause.downcast_ref::<host::CacheError>().is_some_and(host::CacheError::is_usage)
            || cause.is::<host::fuzzer::FuzzerError>()
            || cause.downcast_ref::<runs::StoreError>().is_some_and(runs::StoreError::is_usage)
            || cause.is::<baseline::BaselineError>()
            || cause.is::<profile::ProfileError>()
            || cause.downcast_ref::<KernelError>().is_some_and(KernelError::is_usage)
            || cause.downcast_ref::<BuildError>().is_some_and(BuildError::is_usage)
            || cause.downcast_ref::<SeriesError>().is_some_and(SeriesError::is_usage)
            || cause.downcast_ref::<SearchError>().is_some_and(SearchError::is_usage)
    })
}
