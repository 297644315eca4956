// SPDX-License-Identifier: MIT OR Apache-2.0
//! Small programs of tramplab's own, which the agent has. Any mechanism runs them.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use tramplab_model::program::ProgramName;
use tramplab_protocol::program as protocol;

/// A program of `selftests/bpf/shipped.bpf.c`, or the empty one.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum Shipped {
    Empty,
    /// Counts in a per-CPU array.
    ArrInc,
    /// Counts in a per-CPU hash.
    HashInc,
    /// Counts in a global array, in the slot of the CPU.
    GlobArrInc,
    /// Takes a stack trace by `bpf_get_stackid`.
    GetStackid,
    /// Writes a record of 8 bytes into a ring buffer.
    Ringbuf,
    /// Calls `bpf_get_func_ip`.
    GetFuncIp,
}

impl Shipped {
    pub const ALL: [Shipped; 7] = [
        Shipped::Empty,
        Shipped::ArrInc,
        Shipped::HashInc,
        Shipped::GlobArrInc,
        Shipped::GetStackid,
        Shipped::Ringbuf,
        Shipped::GetFuncIp,
    ];

    /// None for the empty program, which stands in no name of a cell.
    pub fn name(self) -> Option<ProgramName> {
        let name = match self {
            Shipped::Empty => return None,
            Shipped::ArrInc => "arr_inc",
            Shipped::HashInc => "hash_inc",
            Shipped::GlobArrInc => "glob_arr_inc",
            Shipped::GetStackid => "get_stackid",
            Shipped::Ringbuf => "ringbuf",
            Shipped::GetFuncIp => "get_func_ip",
        };
        Some(name.parse().expect("a name in C"))
    }

    pub fn of(name: ProgramName) -> Option<Shipped> {
        Shipped::ALL.into_iter().find(|shipped| shipped.name() == Some(name))
    }

    /// The form in which the guest gets it. None for the empty program.
    pub fn sent(self) -> Option<protocol::Program> {
        self.name().map(|name| protocol::Program {
            name: name.as_str().to_owned(),
            target: None,
            license: "GPL".to_owned(),
            object: protocol::Object::default(),
            globals: Vec::new(),
            slots: Vec::new(),
            extensions: Vec::new(),
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_name_is_a_program_of_the_agent() {
        let source = include_str!("../../../../selftests/bpf/shipped.bpf.c");
        for shipped in Shipped::ALL {
            let Some(name) = shipped.name() else { continue };
            assert!(source.contains(&format!("int {name}(void *ctx)")), "{name}");
            assert_eq!(serde_json::to_value(shipped).unwrap(), name.as_str());
            assert_eq!(Shipped::of(name), Some(shipped));
        }
        assert_eq!(source.matches("SEC(\"raw_tp\")").count() + 1, Shipped::ALL.len());
    }
}
