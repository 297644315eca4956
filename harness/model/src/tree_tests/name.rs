// SPDX-License-Identifier: MIT OR Apache-2.0
//! Names of benchmarks and tests, as in the kernel tree.

use arrayvec::ArrayString;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use std::{fmt, str::FromStr};

/// `trig-kprobe-multi`, `fentry_test`. A name has only letters, digits, `_` and `-`, so it can be a
/// file name, a word of a command line and a part of a metric's name.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize, JsonSchema)]
#[serde(try_from = "String", into = "String")]
#[schemars(extend("pattern" = "^[A-Za-z0-9][A-Za-z0-9_-]*$", "maxLength" = 48))]
#[schemars(rename = "TreeTestName")]
pub struct Name(ArrayString<48>);

#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error(
    "`{0}` is no name of a test: expected up to 48 letters, digits, `_` and `-`, as in fentry_test \
     or trig-fentry"
)]
pub struct NotAName(String);

impl Name {
    pub fn as_str(&self) -> &str {
        &self.0
    }
}

impl FromStr for Name {
    type Err = NotAName;

    fn from_str(text: &str) -> Result<Name, NotAName> {
        let is_plain = |c: char| c.is_ascii_alphanumeric() || c == '_' || c == '-';
        let plain =
            text.chars().all(is_plain) && text.starts_with(|c: char| c.is_ascii_alphanumeric());
        match ArrayString::from(text) {
            Ok(name) if plain => Ok(Name(name)),
            _ => Err(NotAName(text.chars().take(80).collect())),
        }
    }
}

tramplab_protocol::by_text!(Name, NotAName);

impl fmt::Display for Name {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(&self.0)
    }
}

impl fmt::Debug for Name {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Debug::fmt(self.as_str(), f)
    }
}

/// `perf_events/remove_on_exec`: a program in a folder of `tools/testing/selftests`. The folder may
/// be nested.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize, JsonSchema)]
#[serde(try_from = "String", into = "String")]
#[schemars(extend("pattern" = PROGRAM, "maxLength" = 60, "not" = serde_json::json!({"pattern": "^bpf/"})))]
#[schemars(rename = "TreeProgram")]
pub struct Program(ArrayString<60>);

const BPF: &str = "bpf/";
const PROGRAM: &str = "^[A-Za-z0-9][A-Za-z0-9_-]{0,47}(/[A-Za-z0-9][A-Za-z0-9_-]{0,47})+\
                       ([.][A-Za-z0-9][A-Za-z0-9_-]{0,47})?$";

#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum NotAProgram {
    #[error(
        "`{0}` is no program of a folder of tools/testing/selftests: expected FOLDER/PROGRAM, as \
         in perf_events/remove_on_exec"
    )]
    Name(String),
    #[error("`{0}` is one of the BPF selftests: use `test_progs` or `bench` for them")]
    Bpf(String),
}

impl Program {
    pub fn as_str(&self) -> &str {
        &self.0
    }

    pub fn folder(&self) -> &str {
        self.0.rsplit_once('/').expect("has both").0
    }

    pub fn name(&self) -> &str {
        self.0.rsplit_once('/').expect("has both").1
    }
}

impl FromStr for Program {
    type Err = NotAProgram;

    fn from_str(text: &str) -> Result<Program, NotAProgram> {
        let told = || text.chars().take(100).collect();
        // They have their own Makefile and their own groups in a suite.
        if text.starts_with(BPF) {
            return Err(NotAProgram::Bpf(told()));
        }
        let is_name = |part: &str| part.parse::<Name>().is_ok();
        let known = text.rsplit_once('/').is_some_and(|(folder, program)| {
            // A script may have one ending.
            let mut parts = program.splitn(2, '.');
            folder.split('/').all(is_name) && parts.all(is_name)
        });
        match ArrayString::from(text) {
            Ok(program) if known => Ok(Program(program)),
            _ => Err(NotAProgram::Name(told())),
        }
    }
}

tramplab_protocol::by_text!(Program, NotAProgram);

impl fmt::Display for Program {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(&self.0)
    }
}

impl fmt::Debug for Program {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rejects_names_that_leave_a_folder_or_split_a_command_line() {
        for good in ["fentry_test", "trig-kprobe-multi", "d_path", "8021q"] {
            assert_eq!(good.parse::<Name>().unwrap().as_str(), good);
        }
        let long = "x".repeat(49);
        for bad in ["", "..", "a/b", "a b", "-d", "_a", "a*", "a,b", "a.b", "é", &long] {
            assert!(bad.parse::<Name>().is_err(), "{bad}");
        }
    }

    #[test]
    fn parses_programs_with_their_folder() {
        for (text, folder, name) in [
            ("perf_events/remove_on_exec", "perf_events", "remove_on_exec"),
            ("net/af_unix/scm_rights", "net/af_unix", "scm_rights"),
            ("cgroup/test_cpuset.sh", "cgroup", "test_cpuset.sh"),
        ] {
            let program: Program = text.parse().unwrap();
            assert_eq!(
                (program.folder(), program.name(), program.to_string().as_str()),
                (folder, name, text)
            );
        }
        for bad in [
            "",
            "map_test",
            "/map_test",
            "ring-buffer/",
            "ring-buffer//x",
            "../x",
            "a/../x",
            "a/..",
            "a/.x",
            "a/x.",
            "a/x.y.z",
            "a.b/x",
            "a/-x",
            "a/b c",
            "bpf/test_progs",
        ] {
            assert!(bad.parse::<Program>().is_err(), "{bad}");
        }
    }
}
