// SPDX-License-Identifier: MIT OR Apache-2.0
//! Facts about a kernel's machine code, read from its `vmlinux`: source lines and function sizes.

use crate::arch::Arch;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;

/// A source line, in the function that it belongs to.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct SourceLine {
    /// The function, inlined or not, that the line is in.
    pub function: String,
    /// Relative to the kernel's sources: `kernel/bpf/trampoline.c`.
    pub file: String,
    /// 0 if the compiler gives none.
    pub line: u32,
}

/// The source lines of places, by [`place`]. The innermost inlined function comes first; the last
/// line is in the function that the place's symbol names.
pub type SourceLines = BTreeMap<String, Vec<SourceLine>>;

/// The source lines of the places in a kernel's records, and of the first instructions of the
/// functions in its profiles.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct KernelLines {
    /// The name of one of the run's kernels.
    pub kernel: String,
    pub arch: Arch,
    /// By place, `ftrace_stub+0x4`: first the innermost function that was inlined there, last the
    /// one that the symbol names.
    pub places: SourceLines,
}

/// Names a place for [`SourceLines`]: `ftrace_stub+0x4`.
pub fn place(symbol: &str, offset: u64) -> String {
    format!("{symbol}+{offset:#x}")
}

/// The functions of a kernel's `.text`, with their sizes in bytes.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct FunctionSizes(pub BTreeMap<String, u64>);

/// How the functions in `.text` differ between the base and the head of a series.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct TextGrowth {
    /// Bytes of all functions, without the padding between them.
    pub base: u64,
    /// The same of the head.
    pub head: u64,
    /// Number of functions that are larger on the head.
    pub grown: u32,
    /// Number of functions that are smaller on the head.
    pub shrunk: u32,
    /// Number of functions that only the head has.
    pub new: u32,
    /// Number of functions that only the base has.
    pub gone: u32,
    /// The 100 functions that differ most, largest difference first.
    pub functions: Vec<FunctionSize>,
}

/// A function's size on both sides. None if a side does not have the function.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct FunctionSize {
    /// Without the compiler's numbers: `f.part` for `f.part.0`.
    pub name: String,
    /// Bytes.
    pub base: Option<u64>,
    /// Bytes.
    pub head: Option<u64>,
}

impl FunctionSize {
    pub fn change(&self) -> i64 {
        let size = |side: Option<u64>| side.unwrap_or(0).try_into().unwrap_or(i64::MAX);
        size(self.head).saturating_sub(size(self.base))
    }
}

/// An instruction of a function, written so that it does not depend on where the kernel's layout
/// put the function or what it names.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Instruction {
    /// Bytes from the function's start.
    pub offset: u64,
    /// Without the operand that says where in the function it jumps.
    pub text: String,
    /// The offset to which it jumps, in the same function.
    pub target: Option<u64>,
}
