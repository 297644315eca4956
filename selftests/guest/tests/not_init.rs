// SPDX-License-Identifier: MIT OR Apache-2.0
//! Started by hand, the agent must refuse: as process 1 it would mount over, unbind and power off the machine.

use std::process::Command;

#[test]
fn refuses_to_run_as_anything_but_init() {
    let output = Command::new(env!("CARGO_BIN_EXE_tramplab-agent")).output().unwrap();
    assert_eq!(output.status.code(), Some(2));
    let text = String::from_utf8_lossy(&output.stderr);
    assert!(text.contains("process 1 only"), "{text}");
}
