// SPDX-License-Identifier: MIT OR Apache-2.0
//! `test_progs`: a test of the tree's own `test_progs`.

use crate::tree_tests::Name;

pub const TEST_SYNTAX: &str = "test_progs/TEST";
pub const METRIC_SYNTAX: &str = "test_progs.TEST.result";

super::one_parameter!("TestProgsTest", test: Name);
