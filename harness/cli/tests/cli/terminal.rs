// SPDX-License-Identifier: MIT OR Apache-2.0
//! Reports on a real terminal: widths and colours.

use super::tramplab;
use nix::pty::{Winsize, openpty};
use std::{fs::File, io::Read, process::Stdio};

const RUN: &str = "harness/testdata/run.json";

/// Renders a run on a terminal of 80 columns, with these variables.
fn on_terminal(variables: &[(&str, &str)]) -> String {
    let size = Winsize { ws_row: 24, ws_col: 80, ws_xpixel: 0, ws_ypixel: 0 };
    let pty = openpty(&size, None).unwrap();
    let mut command = rendering(variables);
    let mut child = command.stdout(pty.slave).stderr(Stdio::null()).spawn().unwrap();
    // Closes the parent's end of the terminal.
    drop(command);
    let mut bytes = Vec::new();
    // Linux ends the last read with an error.
    let _ = File::from(pty.master).read_to_end(&mut bytes);
    child.wait().unwrap();
    String::from_utf8(bytes).unwrap()
}

fn piped(variables: &[(&str, &str)]) -> String {
    String::from_utf8(rendering(variables).output().unwrap().stdout).unwrap()
}

fn rendering(variables: &[(&str, &str)]) -> std::process::Command {
    let mut command = tramplab();
    command.args(["report", RUN]).env("TERM", "xterm-256color");
    for name in ["NO_COLOR", "CLICOLOR", "CLICOLOR_FORCE", "CI"] {
        command.env_remove(name);
    }
    command.envs(variables.iter().copied());
    command
}

#[test]
fn colours_follow_the_conventions() {
    for (variables, on_tty, on_pipe) in [
        (&[][..], true, false),
        (&[("NO_COLOR", "1")], false, false),
        (&[("NO_COLOR", "")], true, false),
        (&[("CLICOLOR", "0")], false, false),
        (&[("CLICOLOR_FORCE", "1")], true, true),
        (&[("CLICOLOR_FORCE", "1"), ("NO_COLOR", "1")], false, false),
        (&[("TERM", "dumb")], false, false),
    ] {
        for (text, coloured) in [(on_terminal(variables), on_tty), (piped(variables), on_pipe)] {
            assert!(text.contains("kprobe.multi"), "{text}");
            assert_eq!(text.contains('\u{1b}'), coloured, "{variables:?}");
        }
    }
}

#[test]
fn tables_fit_the_terminal_unless_their_values_do_not() {
    // The line below a table's header is as wide as the table.
    let columns = |text: &str| -> Vec<usize> {
        let lines = text.lines().filter(|line| line.contains("-+-"));
        lines.map(|line| line.trim_end().chars().count()).collect()
    };
    let (narrow, wide) = (columns(&on_terminal(&[("NO_COLOR", "1")])), columns(&piped(&[])));
    let fitting = |all: &[usize]| all.iter().filter(|columns| **columns <= 80).count();
    assert!(fitting(&narrow) > fitting(&wide), "{narrow:?} {wide:?}");
    // No value is broken: a table of attach times with their ranges stays wider.
    assert!(narrow.iter().max() < wide.iter().max(), "{narrow:?} {wide:?}");
}
