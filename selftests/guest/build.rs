// SPDX-License-Identifier: MIT OR Apache-2.0
//! Compiles the BPF programs with clang. The agent embeds the objects.

use std::path::{Path, PathBuf};
use std::process::Command;
use std::{env, fs};

/// Versions tried as `clang-NN`, newest first.
const CLANG_VERSIONS: std::ops::RangeInclusive<u32> = 14..=30;

fn main() {
    let sources = Path::new(&variable("CARGO_MANIFEST_DIR")).join("../bpf");
    let out = PathBuf::from(variable("OUT_DIR"));
    // libbpf-sys exports the folder of bpf_helpers.h.
    let headers = variable("DEP_BPF_INCLUDE");
    println!("cargo::rerun-if-changed={}", sources.display());
    println!("cargo::rerun-if-env-changed=CLANG");
    let clang = find_clang();
    let mut found: Vec<PathBuf> = fs::read_dir(&sources)
        .unwrap_or_else(|e| panic!("failed to list {}: {e}", sources.display()))
        .map(|entry| entry.expect("a directory entry").path())
        .filter(|path| path.to_string_lossy().ends_with(".bpf.c"))
        .collect();
    found.sort();
    for source in found {
        compile(&clang, &source, &headers, &out);
    }
    // The agent travels in an initramfs with every VM. Debug builds, and so tests, keep their
    // symbols.
    if variable("PROFILE") == "release" {
        println!("cargo::rustc-link-arg-bins=-Wl,--strip-all");
    }
}

fn variable(name: &str) -> String {
    env::var(name).unwrap_or_else(|_| panic!("{name} is not set: is this build run by cargo?"))
}

fn find_clang() -> String {
    if let Ok(clang) = env::var("CLANG") {
        assert!(answers(&clang), "CLANG={clang} is set, but `{clang} --version` does not run");
        return clang;
    }
    std::iter::once("clang".to_owned())
        .chain(CLANG_VERSIONS.rev().map(|version| format!("clang-{version}")))
        .find(|clang| answers(clang))
        .unwrap_or_else(|| {
            panic!(
                "found no clang to compile the guest agent's BPF programs: neither `clang` nor \
                 `clang-NN` \
                 ({} to {}) is in PATH. Install it (`cargo xtask doctor` prints the command) or \
                 set CLANG.",
                CLANG_VERSIONS.start(),
                CLANG_VERSIONS.end()
            )
        })
}

fn answers(clang: &str) -> bool {
    Command::new(clang).arg("--version").output().is_ok_and(|output| output.status.success())
}

fn compile(clang: &str, source: &Path, headers: &str, out: &Path) {
    let object = out.join(source.file_name().expect("a file name")).with_extension("o");
    let output = Command::new(clang)
        .args(["-target", "bpf", "-mcpu=v3", "-O2", "-g", "-Wall", "-Werror", "-I", headers, "-c"])
        .arg(source)
        .arg("-o")
        .arg(&object)
        .output()
        .unwrap_or_else(|e| panic!("failed to run {clang}: {e}"));
    assert!(
        output.status.success(),
        "{clang} failed to compile {}:\n{}",
        source.display(),
        String::from_utf8_lossy(&output.stderr)
    );
}
