// SPDX-License-Identifier: MIT OR Apache-2.0
//! `cargo xtask faults`: the fault matrix (`harness/tests/faults/`) run and printed as a table.

use super::{exit, report::print, test};
use std::{
    fs,
    io::{self, IsTerminal},
    process::{Command, ExitStatus, Stdio},
    thread,
    time::Duration,
};
use time::{OffsetDateTime, macros::format_description};
use tramplab_host::{Cache, Purpose, Qemu, child::Group};
use tramplab_lab::{
    artifacts,
    error::{Context, Error, Result},
    interrupt::Interrupt,
    planning,
    scratch::Scratch,
};
use tramplab_model::run::Arch;
use xshell::cmd;

/// Where the tests write what they saw.
const TABLE: &str = "TRAMPLAB_FAULTS_TABLE";
/// What the rows' guests are.
const ARCH: Arch = Arch::X86_64;

#[derive(clap::Args)]
pub struct Args {
    /// Install or name what is missing, fetch QEMU, then begin
    #[arg(long)]
    setup: bool,
    /// Only the rows whose name contains this
    #[arg(value_parser = clap::builder::NonEmptyStringValueParser::new())]
    row: Option<String>,
}

pub fn faults(args: &Args) -> Result<u8> {
    let sh = test::prepared(args.setup, &[ARCH])?;
    // Tests that are killed leave their folders.
    let scratch = Scratch::new()?;
    let table = scratch.path().join("table.md");
    fs::write(&table, "").context("failed to create a file for the table")?;
    sh.set_var(TABLE, &table);
    sh.set_var("TMPDIR", scratch.path());
    let (cargo, row) = (artifacts::cargo(), &args.row);
    let quiet = (!io::stderr().is_terminal()).then_some("--quiet");
    let rows = cmd!(sh, "{cargo} test {quiet...} --package tramplab --test faults -- {row...}").quiet();
    let mut rows = Command::from(rows);
    // The standard output is the table's.
    let status = to_its_end(rows.stdout(Stdio::from(io::stderr())));
    let text = fs::read_to_string(&table).context("failed to read the table");
    remove(scratch);
    let (status, text) = (status?, text?);
    if let Some(row) = row
        && !text.lines().filter_map(|line| line.split('|').nth(1)).any(|name| name.contains(row.as_str()))
    {
        return Err(Error::Usage(format!(
            "no row of the fault matrix has `{row}` in its name: docs/faults.md has them all"
        )));
    }
    let qemu = Qemu::find(&Cache::open(true)?, ARCH, Purpose::Measuring)?;
    let host = planning::host_facts();
    let today =
        OffsetDateTime::now_utc().format(format_description!("[day padding:none] [month repr:long] [year]"));
    let table = format!(
        "{}. {}, {}, {} CPUs. {}. Linux {} ({ARCH}, tcg).\n\n{text}\n",
        today.expect("a date is formattable"),
        host.os,
        host.cpu,
        host.cpus,
        qemu.version,
        test::kernel(ARCH),
    );
    print(table.as_bytes())?;
    Ok(if status.success() { exit::PASS } else { exit::FAIL })
}

/// Of the tests none outlives the command, nor what they started: their guests' processes die with those that own them.
fn to_its_end(command: &mut Command) -> Result<ExitStatus> {
    let interrupt = Interrupt::note()?;
    let mut tests = Group::spawn(command).context("failed to run cargo")?;
    loop {
        if let Some(status) = tests.try_wait()? {
            return Ok(status);
        }
        if interrupt.came() {
            return Err(Error::Interrupted);
        }
        thread::sleep(Duration::from_millis(50));
    }
}

/// What was just killed may be writing there for a moment.
fn remove(scratch: Scratch) {
    let folder = scratch.keep();
    for _ in 0..100 {
        match fs::remove_dir_all(&folder) {
            Err(error) if error.kind() != io::ErrorKind::NotFound => thread::sleep(Duration::from_millis(50)),
            _ => return,
        }
    }
}
