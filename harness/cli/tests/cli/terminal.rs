// SPDX-License-Identifier: MIT OR Apache-2.0
//! Reports on a real terminal: widths and colours.

use super::{stderr, tramplab};
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
fn the_option_outranks_the_environment() {
    for (option, variables, coloured) in [
        ("--color=always", &[("NO_COLOR", "1")], true),
        ("--color=never", &[("CLICOLOR_FORCE", "1")], false),
    ] {
        let text = rendering(variables).arg(option).output().unwrap().stdout;
        assert_eq!(text.contains(&0x1b), coloured, "{option}");
        let error = rendering(variables).args([option, "--bogus"]).output().unwrap().stderr;
        assert_eq!(error.contains(&0x1b), coloured, "{option}");
    }
}

#[test]
fn paths_are_links_where_the_terminal_has_them() {
    let dir = tempfile::tempdir().unwrap();
    let run = dir.path().join("a run%");
    std::fs::create_dir(&run).unwrap();
    std::fs::copy(std::path::Path::new("../..").join(RUN), run.join("run.json")).unwrap();
    for (forced, is_link) in [("1", true), ("0", false)] {
        let mut command = tramplab();
        let merged = dir.path().join("merged%").join(forced);
        command.args(["merge", "--into"]).args([&merged, &run]);
        let said = stderr(&command.env("FORCE_HYPERLINK", forced).output().unwrap());
        let link = said.lines().last().unwrap();
        let merged = merged.canonicalize().unwrap();
        let encoded = merged.display().to_string().replace('%', "%25");
        assert_eq!(link.contains(&format!("{encoded}/report.html\u{1b}\\")), is_link, "{said}");
        assert_eq!(link.contains("\u{1b}]8;;file://"), is_link, "{said}");
        assert!(link.contains(&format!("{}/report.html", merged.display())), "{said}");
    }
}

#[test]
fn tables_fit_the_terminal() {
    // The line below a table's header is as wide as the table.
    let columns = |text: &str| -> Vec<usize> {
        let lines = text.lines().filter(|line| line.contains("-+-"));
        lines.map(|line| line.trim_end().chars().count()).collect()
    };
    let (narrow, wide) = (on_terminal(&[("NO_COLOR", "1")]), piped(&[]));
    assert!(columns(&wide).into_iter().max() > Some(120), "{wide}");
    assert!(columns(&narrow).into_iter().max() <= Some(80), "{narrow}");
    // No number is broken.
    assert!(wide.contains("(1562.61..1626.22)"), "{wide}");
    assert!(narrow.contains("(1562.61..|") && narrow.contains(" 1626.22)|"), "{narrow}");
}
