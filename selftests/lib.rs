// SPDX-License-Identifier: MIT OR Apache-2.0
//! The cells of a run as a libtest-mimic target: see `tests/cells.rs`.
