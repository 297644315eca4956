// SPDX-License-Identifier: MIT OR Apache-2.0
//! Standard output.

use anstream::{AutoStream, ColorChoice};
use std::io::{self, Write};
use tramplab_lab::error::{Context, Result};
use tramplab_report::terminal::Style;

/// The style for standard output.
pub fn style() -> Style {
    let terminal = console::Term::stdout();
    let width = terminal.size_checked().map(|(_, columns)| columns.max(NARROWEST));
    // Reads NO_COLOR, CLICOLOR and CLICOLOR_FORCE.
    let colour = AutoStream::choice(&io::stdout()) != ColorChoice::Never;
    Style { colour, width }
}

/// The least width of a table, in columns.
const NARROWEST: u16 = 60;

pub fn print(bytes: &[u8]) -> Result<()> {
    let mut out = StandardOutput;
    let written = out.write_all(bytes).and_then(|()| out.flush());
    written.context("failed to write to standard output")
}

/// Standard output that ignores a closed pipe (`| head`): the exit code stays the same.
pub struct StandardOutput;

impl StandardOutput {
    fn unless_closed<T>(result: io::Result<T>, else_: T) -> io::Result<T> {
        match result {
            Err(error) if error.kind() == io::ErrorKind::BrokenPipe => Ok(else_),
            result => result,
        }
    }
}

impl Write for StandardOutput {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        StandardOutput::unless_closed(io::stdout().write(bytes), bytes.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        StandardOutput::unless_closed(io::stdout().flush(), ())
    }
}
