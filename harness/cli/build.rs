// SPDX-License-Identifier: MIT OR Apache-2.0
//! Each cell is a start of the program and one of the tests: loaded where they were linked to, both
//! take a third less for it, as nobody mends a hundred thousand addresses in them.

use std::env;

fn main() {
    println!("cargo::rerun-if-changed=build.rs");
    if env::var("CARGO_CFG_TARGET_ENV").is_ok_and(|env| env == "gnu") {
        println!("cargo::rustc-link-arg-bins=-no-pie");
        println!("cargo::rustc-link-arg-tests=-no-pie");
    }
}
