// SPDX-License-Identifier: MIT OR Apache-2.0
//! The program that is attached: the empty one, a shipped one, or one that the user brings.

use crate::bpf::{self, BpfError, Program};
use crate::buffers::Buffers;
use crate::kallsyms::Kallsyms;
use crate::libbpf_log::tail;
use crate::method::Method;
use crate::object::{Object, Unprepared, Wanted};
use crate::tail_calls::{Loaded, TailCalls};
use crate::target::Target;
use std::ffi::CString;
use std::os::fd::BorrowedFd;
use tramplab_protocol::message::{By, GuestError, LONGEST_LOG, Remark, Symbol};
use tramplab_protocol::program;

/// The programs of a request without an object.
const SHIPPED: &[u8] = include_bytes!(concat!(env!("OUT_DIR"), "/shipped.bpf.o"));
/// Lines of the verifier's log in a cell's message.
const LAST: usize = 12;
/// The helper that libbpf calls where a field or type of the object is not in the kernel.
const POISON: &str = "unknown#195896080";

/// The measured program.
#[derive(Debug)]
pub enum Measured {
    Empty,
    Own(Own),
}

/// A user's program or a shipped one, relocated for this kernel.
#[derive(Debug)]
pub struct Own {
    object: Object,
    name: String,
    license: CString,
    calls: TailCalls,
}

impl Measured {
    pub fn prepare(program: Option<&program::Program>) -> Result<Measured, GuestError> {
        Ok(match program {
            None => Measured::Empty,
            Some(program) => Measured::Own(Own::prepare(program)?),
        })
    }

    pub fn load(&self, method: Method, target: &Target) -> Result<Loaded, BpfError> {
        match self {
            Measured::Empty => method.load_empty(target).map(Loaded::from),
            Measured::Own(own) => own.load(method, target),
        }
    }

    /// The attributes of its maps that the agent set.
    pub fn remarks(&self) -> Vec<Remark> {
        match self {
            Measured::Empty => Vec::new(),
            Measured::Own(own) => own.object.remarks().to_vec(),
        }
    }

    /// Its maps without entries at this moment.
    pub fn empty_maps(&self) -> Vec<Remark> {
        let Measured::Own(own) = self else { return Vec::new() };
        let empty = own.object.empty_maps(&own.calls.maps(&own.object));
        empty.into_iter().map(|map| Remark::MapEmpty { map }).collect()
    }

    /// Opens the buffers that it fills.
    pub fn buffers(&self) -> Result<Buffers, GuestError> {
        match self {
            Measured::Empty => Ok(Buffers::default()),
            Measured::Own(own) => Buffers::open(&own.object.buffers()),
        }
    }

    /// The meaning of a refusal to load it.
    pub fn refusal(&self, error: &BpfError) -> GuestError {
        match self {
            Measured::Empty => error.clone().into(),
            Measured::Own(own) => own.refusal(error),
        }
    }
}

impl Own {
    pub fn prepare(program: &program::Program) -> Result<Own, GuestError> {
        let program::Program { name, license, object, globals, slots, extensions, .. } = program;
        let mut wanted: Vec<&str> = slots.iter().map(|slot| slot.program.as_str()).collect();
        wanted.extend(extensions.iter().map(|extension| extension.program.as_str()));
        wanted.push(name);
        let bytes = if object.0.is_empty() { SHIPPED } else { &object.0 };
        let object = Object::prepare(bytes, Wanted::These(&wanted), globals).map_err(|error| {
            let Unprepared { error, log } = error;
            let text = format!("libbpf cannot prepare the program {name}: {error}");
            if log.contains("not found in kernel or module BTFs") {
                return GuestError::Unsupported(format!("{text}; {}", end(&log)));
            }
            let reason = format!("{text}\nEnd of libbpf's log:\n{}", end(&log));
            GuestError::Rejected { reason, by: By::Libbpf, log }
        })?;
        let calls = TailCalls::of(&object, name, slots, extensions)?;
        let license = CString::new(license.as_str()).map_err(GuestError::failed)?;
        Ok(Own { object, name: name.clone(), license, calls })
    }

    fn load(&self, method: Method, target: &Target) -> Result<Loaded, BpfError> {
        let load = |program: Program<'_>| method.load(target, program);
        self.calls.load(&self.object, &self.license, load)
    }

    fn refusal(&self, error: &BpfError) -> GuestError {
        let text = format!("the program {}: {error}", self.name);
        if error.log().is_empty() {
            return match error.is_unsupported() {
                true => GuestError::Unsupported(text),
                false => GuestError::Failed(text),
            };
        }
        if lacks_function(error.log()) || forbids_extensions(error.log()) {
            return GuestError::Unsupported(text);
        }
        let hint = match error.log().contains(POISON) {
            true => "\nThe kernel has not the type or field that the program reads there.",
            false => "",
        };
        GuestError::Rejected {
            reason: format!("{text}{hint}\nEnd of the verifier's log:\n{}", end(error.log())),
            by: By::Verifier,
            log: tail(error.log(), LONGEST_LOG).to_owned(),
        }
    }
}

/// A loaded program, as kallsyms names it.
pub fn symbol(program: BorrowedFd<'_>, names: &Kallsyms) -> Result<Symbol, GuestError> {
    let code = bpf::code(program)?;
    let symbol = names.resolve(code.start).ok_or_else(|| {
        GuestError::failed(format!("kallsyms has no name for the program at {:#x}", code.start))
    })?;
    // In kallsyms it ends where the next symbol begins, which may be the trampoline's or far away.
    Ok(Symbol { end: code.end, ..symbol })
}

/// Returns true if the verifier rejected a helper that the kernel lacks, or does not give to
/// programs of this type.
fn lacks_function(log: &str) -> bool {
    let is_it = |line: &str| {
        (line.starts_with("invalid func unknown#") && !line.contains(POISON))
            || line.starts_with("unknown func ")
            || line.starts_with("program of this type cannot use helper ")
            || (line.starts_with("func bpf_") && line.contains(" not supported for program type "))
    };
    log.lines().rev().take(LAST).any(is_it)
}

/// Returns true if the verifier refused to replace a function of a program of this type.
fn forbids_extensions(log: &str) -> bool {
    log.lines().any(|line| line.starts_with("Cannot extend fentry/fexit"))
}

/// The last lines of a log.
fn end(log: &str) -> String {
    let lines: Vec<&str> = log.lines().collect();
    lines[lines.len().saturating_sub(LAST)..].join("\n")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn tells_missing_helpers_from_rejected_programs() {
        for (log, lacks) in [
            ("0: (85) call unknown#999\ninvalid func unknown#999\nprocessed 1 insns", true),
            ("unknown func bpf_get_branch_snapshot#176\nprocessed 1 insns", true),
            ("program of this type cannot use helper bpf_get_branch_snapshot#176", true),
            ("func bpf_get_func_ip#173 not supported for program type 17\nprocessed 1 insns", true),
            ("invalid func unknown#195896080\nprocessed 1 insns", false),
            ("R1 invalid mem access 'scalar'\nprocessed 1 insns", false),
        ] {
            assert_eq!(lacks_function(log), lacks, "{log}");
        }
    }

    #[test]
    fn tells_programs_that_take_no_extension() {
        for (log, expected) in [
            ("Cannot extend fentry/fexit\nprocessed 0 insns", true),
            ("Cannot extend fentry/fexit/fsession\nprocessed 0 insns", true),
            ("Cannot replace static functions\nprocessed 0 insns", false),
            ("Subprog policy doesn't exist", false),
        ] {
            assert_eq!(forbids_extensions(log), expected, "{log}");
        }
    }

    #[test]
    fn keeps_the_end_of_a_log() {
        let log: String = (0..100).map(|line| format!("{line}\n")).collect();
        assert_eq!(end(&log).lines().next(), Some("88"));
        assert_eq!((tail("aäb", 2), tail("aäb", 3), tail("ab", 9)), ("b", "äb", "ab"));
    }
}
