// SPDX-License-Identifier: MIT OR Apache-2.0
//! Makes runs believe that KVM runs x86-64 guests: the cache holds that answer.

use std::{fs, path::Path};
use tramplab_host::QemuProgram;
use tramplab_vm::accel::Circumstances;

/// Use a cache that no other run reads.
pub fn remember(cache: &Path) {
    let program = std::env::var_os("TRAMPLAB_QEMU_X86_64").expect("run `cargo xtask test`").into();
    let qemu = QemuProgram { program, arguments: Vec::new(), environment: Vec::new() };
    let answer = serde_json::json!({ "circumstances": Circumstances::of(&qemu), "failure": null });
    fs::create_dir_all(cache.join("accel")).unwrap();
    fs::write(cache.join("accel/kvm.json"), answer.to_string()).unwrap();
}
