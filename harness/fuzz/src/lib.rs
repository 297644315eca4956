// SPDX-License-Identifier: MIT OR Apache-2.0
//! What tramplab reads that others wrote, one function for each kind: it takes any bytes and panics where a promise is broken.
//!
//! Called by libFuzzer (`fuzz_targets/`), and by a plain test of the harness with every kept input (`harness/tests/corpora.rs`),
//! which includes this file: so it knows nothing of the fuzzer.

pub mod bytes;
pub mod counts;
pub mod frames;
pub mod kallsyms;
pub mod ktap;
pub mod mbox;
pub mod perf;
pub mod trace;
pub mod yaml;
