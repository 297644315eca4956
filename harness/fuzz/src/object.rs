// SPDX-License-Identifier: MIT OR Apache-2.0
//! Fuzz the readers of a user's BPF object: its programs, the types of its variables, its prog
//! arrays and extensions. libbpf reads it in the guest and is not fuzzed.

use std::path::Path;
use tramplab_suite::program::Program;

/// Names in the seed, `harness/suite/src/program/testdata/small.bpf.c`.
const PROGRAMS: [&str; 2] = ["first", "next"];
const VALUES: [&str; 5] = ["limit=7", "mode=LOUD", "prefix=abc", "prefix=7", "own=replaced"];

pub fn run(data: &[u8]) -> bool {
    let parse =
        |name, values: &[&str]| match Program::parse(Path::new("o"), data.to_vec(), name, values) {
            Ok(program) => Some(program),
            Err(error) => {
                assert!(error.to_string().starts_with("o: "), "{error}");
                None
            }
        };
    let mut is_read = parse(None, &[]).is_some();
    for name in PROGRAMS {
        let Some(program) = parse(Some(name), &[]) else { continue };
        is_read = true;
        assert_eq!(program.name().as_str(), name);
        assert_eq!(&program.sent.object.0[..], data);
        assert!(program.facts.instructions as usize <= data.len());
        for value in VALUES {
            let Some(given) = parse(Some(name), &[value]) else { continue };
            assert_eq!(given.facts.globals.len(), 1);
            assert_eq!(given.sent.globals.len() + given.sent.extensions.len(), 1);
            assert_eq!(given.sent.slots, program.sent.slots);
        }
    }
    is_read
}
