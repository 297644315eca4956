// SPDX-License-Identifier: MIT OR Apache-2.0
//! `kselftest`: a program of another folder of the tree's selftests, which reports in KTAP.

use crate::tree_tests::Program;

pub const TEST_SYNTAX: &str = "kselftest/FOLDER/PROGRAM";
pub const METRIC_SYNTAX: &str = "kselftest.FOLDER/PROGRAM.result";

super::one_parameter!("KselftestTest", program: Program);
