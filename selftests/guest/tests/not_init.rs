// SPDX-License-Identifier: MIT OR Apache-2.0
//! The agent must refuse to run when started by hand: it would mount over, unbind and power off the
//! machine.

use std::process::Command;

#[test]
fn refuses_to_run_as_anything_but_init() {
    let output = Command::new(env!("CARGO_BIN_EXE_tramplab-agent")).output().unwrap();
    assert_eq!(output.status.code(), Some(2));
    let text = String::from_utf8_lossy(&output.stderr);
    assert!(text.contains("only as process 1"), "{text}");
    // The word that lets it run elsewhere counts only on the kernel's command line.
    let output = Command::new(env!("CARGO_BIN_EXE_tramplab-agent"))
        .arg("tramplab.agent=program")
        .env("tramplab.agent", "program")
        .output()
        .unwrap();
    assert_eq!(output.status.code(), Some(2));
}
