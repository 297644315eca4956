// SPDX-License-Identifier: MIT OR Apache-2.0
//! `cargo xtask`: the command line of tramplab.
#![recursion_limit = "256"]

/// Prints a message on standard error. It replaces the standard macro, so that no call prints text
/// of guests, builds or strangers' files uncleaned. If standard error is closed, the exit code
/// still tells.
macro_rules! eprintln {
    ($($words:tt)*) => {{
        use std::io::Write as _;
        let words = tramplab_model::text::clean(&format!($($words)*));
        let _ = writeln!(std::io::stderr(), "{words}");
    }};
}

mod commands;

use clap::{CommandFactory, FromArgMatches, Parser, Subcommand};
use clap_complete::CompleteEnv;
use commands::{code_of, complete, early, exit, given::Given};
use nix::sys::signal::{SigHandler, Signal, signal};
use std::{ffi::OsString, path::Path, process::ExitCode};
use tramplab_host::{cache::holder, child};
use tramplab_lab::{Fault, Place, command::VM_TEST, nextest, place, place::typed_name};
use tramplab_model::called::{self, called};
use tramplab_suite::plan::PLAN_ENV;

/// Attach time, trigger cost and branch-record waste of BPF tracing, measured on any kernel in
/// QEMU.
#[derive(Parser)]
#[command(name = "tramplab", version, after_help = EXIT_CODES)]
struct App {
    #[command(subcommand)]
    command: Command,
    /// Read by [`early::color`], as help and usage errors have colours too.
    #[command(flatten)]
    _color: colorchoice_clap::Color,
}

impl App {
    /// The command line, and its command as data.
    fn read() -> Result<(App, Given), clap::Error> {
        let mut command = App::named();
        let matches = command.try_get_matches_from_mut(std::env::args_os())?;
        let app = App::from_arg_matches(&matches).map_err(|error| error.format(&mut command))?;
        let (name, of_command) = matches.subcommand().expect("clap requires one");
        let syntax = command.find_subcommand(name).expect("clap knows it");
        Ok((app, Given::of(syntax, of_command)))
    }

    /// The commands under the name by which the user called us.
    fn named() -> clap::Command {
        match place() {
            Place::Checkout(_) => App::command().bin_name(called()),
            Place::Installed(_) => App::installed().bin_name(called()),
        }
    }

    /// Without the commands of the repository.
    fn installed() -> clap::Command {
        let hidden = |command: clap::Command| command.hide(true);
        ["test", "package"]
            .into_iter()
            .fold(App::command(), |app, name| app.mut_subcommand(name, hidden))
    }
}

const EXIT_CODES: &str = "Exit codes: 0 pass, 1 a number exceeds its budget or is worse than its \
                          base, 2 usage or configuration, 3 something could not be built or \
                          measured, 130 interrupted.";

#[derive(Subcommand)]
enum Command {
    /// Run a suite in guests and report: the main job
    VmTest(commands::vm_test::args::Args),
    /// Boot a guest with a shell, or run one command in it and return its exit code
    Shell(commands::shell::Args),
    /// Run every test of this repository, real guests included
    Test(commands::test::Args),
    /// Check prerequisites; print install commands
    Doctor(commands::doctor::Args),
    /// Render a stored run again
    Report(commands::report::Args),
    /// Merge the runs of several shards into one
    Merge(commands::merge::Args),
    /// Compare two stored runs, base against head
    Compare(commands::compare::Args),
    /// Show metrics over stored runs, by commit where kernels are commits, and their steps
    History(commands::history::Args),
    /// Show where the time of an attach cell goes, alone or against another
    Profile(commands::profile::Args),
    /// Find the commit, or the patch of a series, that changed a metric
    Bisect(commands::bisect::Args),
    /// Measure every mechanism on every kernel and architecture; write docs/mechanisms.md and .json
    Mechanisms(commands::mechanisms::Args),
    /// Measure what was published of the shipped series; write docs/published.md
    Published(commands::published::Args),
    /// Write the JSON Schemas of docs/, or print one
    Schema(commands::schema::Args),
    /// Check that Debian's kernels can be had; pin manifests to a version
    Kernels(commands::kernels::Args),
    /// Write a kernel's sources into a git repository, to commit a series there
    Source(commands::source::Args),
    /// List the cache, or remove its least recently used entries
    Cache(commands::cache::Args),
    /// Make a Debian package, a tarball and a Python wheel, for machines without Rust
    Package(commands::package::Args),
    /// Measure tramplab itself: boots with and without the plugin, armed against idle
    Bench(commands::bench::Args),
}

fn main() -> ExitCode {
    if let Err(error) = child::close_inherited() {
        eprintln!("error: failed to close inherited descriptors: {error}");
        return ExitCode::from(exit::NO_MEASUREMENT);
    }
    // Make a write beyond the file size limit an error, not a signal, here and in every child.
    // SAFETY: no handler is installed.
    let _ = unsafe { signal(Signal::SIGXFSZ, SigHandler::SigIgn) };
    // Skip building the clap command tree: every cell starts this way. So does every test of ours,
    // which needs cargo's variables.
    if let Some(error) = nextest::double_spawn(std::env::args_os().skip(1)) {
        eprintln!("error: {}", error.told());
        return ExitCode::from(exit::USAGE);
    }
    // SAFETY: no other thread runs yet.
    unsafe { forget_cargo_run() };
    // A shell asks for completions. Exits then.
    CompleteEnv::with_factory(App::named).var(complete::VARIABLE).complete();
    // With a plan, this is the process of a cell: nextest starts it.
    if let Some(plan) = std::env::var_os(PLAN_ENV) {
        return tramplab_suite::list::main(Path::new(&plan));
    }
    // SAFETY: no other thread runs yet.
    unsafe { name_servers() };
    // This is set once.
    let _ = holder::SHOW.set(|line| eprintln!("{line}"));
    if let Some(color) = early::color() {
        colorchoice_clap::Color { color }.write_global();
    }
    if !(early::is_command("bisect") && early::has_flag("--step")) {
        let (app, given) = App::read().unwrap_or_else(|error| without_misleading_tip(error).exit());
        return run(app, given, code_of);
    }
    // `git bisect run` takes nearly every code for an answer, even that of a panic.
    let answer = std::panic::catch_unwind(|| match App::read() {
        Ok((app, given)) => run(app, given, commands::bisect::code_of_step),
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
    const TIP: &str =
        "choose cells by parts of their names, such as `vm-test fexit`; --list names them all";
    let is_misleading = error.kind() == clap::error::ErrorKind::UnknownArgument
        && error
            .get(ContextKind::Suggested)
            .is_some_and(|tips| tips.to_string().contains("'-- --"));
    if is_misleading {
        error.remove(ContextKind::Suggested);
        if early::is_command(VM_TEST) {
            error.insert(ContextKind::Suggested, ContextValue::StyledStrs(vec![TIP.into()]));
        }
    }
    error
}

fn run(app: App, given: Given, code_of: fn(Fault) -> u8) -> ExitCode {
    let result = match app.command {
        Command::VmTest(args) => commands::vm_test::vm_test(&args, given.typed),
        Command::Test(args) => commands::test::test(&args),
        Command::Shell(args) => commands::shell::shell(&args),
        Command::Doctor(args) => commands::doctor::doctor(&args),
        Command::Report(args) => commands::report::report(&args),
        Command::Merge(args) => commands::merge::merge(&args, given.kept),
        Command::Compare(args) => commands::compare::compare(&args),
        Command::History(args) => commands::history::history(&args),
        Command::Profile(args) => commands::profile::profile(&args),
        Command::Bisect(args) => commands::bisect::bisect(&args, given.kept),
        Command::Mechanisms(args) => commands::mechanisms::mechanisms(&args, given.kept),
        Command::Published(args) => commands::published::published(&args, given.kept),
        Command::Schema(args) => commands::schema::schema(&args),
        Command::Kernels(args) => commands::kernels::kernels(&args),
        Command::Source(args) => commands::source::source(&args),
        Command::Cache(args) => commands::cache::cache(&args),
        Command::Package(args) => commands::package::package(&args, App::installed()),
        Command::Bench(args) => commands::bench::bench(&args),
    };
    ExitCode::from(ended(result, code_of))
}

/// Prints the error of a command, and makes its exit code.
fn ended(result: tramplab_lab::Result<u8>, code_of: fn(Fault) -> u8) -> u8 {
    result.unwrap_or_else(|error| {
        eprintln!("error: {}", error.told());
        code_of(error.fault())
    })
}

/// Puts the servers of the user's own file into the environment, unless that has them.
///
/// # Safety
/// No other thread may run yet.
unsafe fn name_servers() {
    let servers = commands::defaults::servers().unwrap_or_else(|error| {
        // `vm-test` ends with the error itself.
        if !early::is_command(VM_TEST) {
            eprintln!("warning: the servers of this file are not used: {}", error.told());
        }
        Vec::new()
    });
    for (name, url) in servers {
        if std::env::var_os(name).is_none_or(|value| value.is_empty()) {
            // SAFETY: the caller's promise.
            unsafe { std::env::set_var(name, url) };
        }
    }
}

/// Removes this package's variables, which `cargo run` sets, from the environment. A cargo that
/// inherits them rebuilds the packages that read them, and so does the user's next cargo.
///
/// # Safety
/// No other thread may run yet.
unsafe fn forget_cargo_run() {
    // Asked of the environment once.
    called::set(typed_name());
    place();
    let of_package = |name: &OsString| {
        name.to_str().is_some_and(|name| {
            name == "OUT_DIR"
                || name.starts_with("CARGO_PKG_")
                || name.starts_with("CARGO_MANIFEST_")
        })
    };
    for name in std::env::vars_os().map(|(name, _)| name).filter(of_package).collect::<Vec<_>>() {
        // SAFETY: the caller's promise.
        unsafe { std::env::remove_var(name) };
    }
}
