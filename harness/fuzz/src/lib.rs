// SPDX-License-Identifier: MIT OR Apache-2.0
//! Fuzz targets, one module for each kind of untrusted input.
//!
//! Each `run` takes any bytes and panics if an invariant breaks. It returns true if a reader
//! accepted the input, so that a test notices seeds that no longer get past the reader.
//!
//! `harness/cli/tests/corpora.rs` includes this file: keep the fuzzer out of it.

pub mod bytes;
pub mod counts;
pub mod frames;
pub mod kallsyms;
pub mod ktap;
pub mod mbox;
pub mod object;
pub mod perf;
pub mod trace;
pub mod yaml;
