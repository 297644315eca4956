// SPDX-License-Identifier: MIT OR Apache-2.0
//! Tracers beside the measured programs. Dropping them detaches them.

use crate::bpf::{BpfError, Link};
use crate::changes;
use crate::known::Known;
use crate::livepatch;
use crate::method::Method;
use crate::rounds::{Held, Prepared};
use crate::target::{self, Target};
use crate::targets::Targets;
use std::io::{self, ErrorKind};
use std::num::NonZeroU8;
use std::os::fd::{AsFd, OwnedFd};
use std::path::Path;
use std::slice;
use tramplab_protocol::message::{GuestError, Others, Symbol};
use tramplab_protocol::{Beside, BesideSet, Functions, Mechanism, pattern};

const INSTANCES: &str = "/sys/kernel/tracing/instances";

#[derive(Debug, Default)]
pub struct Attached {
    pub others: Vec<Others>,
    /// The function that a live patch runs in the place of the target.
    pub replacement: Option<Symbol>,
    programs: Vec<(Link, OwnedFd)>,
    _held: Vec<Held>,
    _tracers: Vec<FunctionTracer>,
}

/// Attaches a set of tracers to the target of a measured mechanism, and to other functions.
pub fn attach(
    set: BesideSet,
    measured: Mechanism,
    target: &Target,
    known: &Known,
) -> Result<Attached, GuestError> {
    let measured_ones = slice::from_ref(target);
    let mut attached = Attached::default();
    if set.iter().any(|beside| beside == Beside::Livepatch) {
        attached.replacement = Some(livepatch::replacement(&target.name, known)?);
    }
    // Before the target has so many programs that the kernel refuses one more.
    attached.attach_others(set, measured_ones, known)?;
    let mut methods = Vec::new();
    for beside in set.iter() {
        if !beside.fits(measured) {
            let text = format!("{beside} cannot attach to the target of {measured}");
            return Err(GuestError::Failed(text));
        }
        if let Beside::Programs(mechanism, programs) = beside {
            let method = Method::new(mechanism, known.btf()?)?;
            // A refusal of the probe is the kernel's answer about the mechanism.
            method.probe(target)?;
            methods.push((method, programs.get()));
        }
    }
    for (method, programs) in methods {
        for _ in 0..programs {
            let program = method.load_empty(target)?;
            let link = method.link(program.as_fd(), target);
            let link = link.map_err(|error| attached.refusal(method.mechanism, target, error))?;
            attached.programs.push((link, program));
        }
    }
    if set.iter().any(|beside| beside == Beside::FunctionTracer) {
        attached._tracers.push(FunctionTracer::start("tramplab", &filter(&target.name))?);
    }
    attached.trace_others(set, measured_ones, known)?;
    Ok(attached)
}

/// Attaches a set of tracers to other functions than the measured ones.
pub fn attach_to_others(
    set: BesideSet,
    measured: &[Target],
    known: &Known,
) -> Result<Attached, GuestError> {
    if let Some(beside) = set.iter().find(|beside| !beside.is_of_others()) {
        return Err(GuestError::Failed(format!("{beside} does not attach to other functions")));
    }
    let mut attached = Attached::default();
    attached.attach_others(set, measured, known)?;
    attached.trace_others(set, measured, known)?;
    Ok(attached)
}

/// The first functions of the list that attach tests with the first seed choose from.
fn others(
    functions: NonZeroU8,
    measured: &[Target],
    known: &Known,
) -> Result<Vec<String>, GuestError> {
    let mut plain = known.plain()?.to_vec();
    target::remove(&mut plain, measured);
    let chosen = Targets::choose(plain, Functions::Count(functions.into()), 0, None)?.chosen;
    Ok(chosen.into_iter().map(|target| target.name).collect())
}

/// A function as ftrace's filter takes it.
fn filter(function: &str) -> String {
    match pattern::split(function) {
        (Some(module), name) => format!("{name}:mod:{module}"),
        (None, name) => name.to_owned(),
    }
}

impl Attached {
    fn attach_others(
        &mut self,
        set: BesideSet,
        measured: &[Target],
        known: &Known,
    ) -> Result<(), GuestError> {
        for (mechanism, functions) in set.others() {
            let held = Prepared::others(mechanism, functions, measured, known)?.hold()?;
            self.others.push(held.others);
            self._held.push(held);
        }
        Ok(())
    }

    fn trace_others(
        &mut self,
        set: BesideSet,
        measured: &[Target],
        known: &Known,
    ) -> Result<(), GuestError> {
        for beside in set.iter() {
            if let Beside::FunctionTracerOthers(functions) = beside {
                let names = others(functions, measured, known)?.join("\n");
                self._tracers.push(FunctionTracer::start("tramplab-others", &names)?);
            }
        }
        Ok(())
    }

    /// The meaning of a refused link of a mechanism that can attach to the target alone.
    pub fn refusal(&self, mechanism: Mechanism, target: &Target, error: BpfError) -> GuestError {
        match self.programs.is_empty() && self.others.is_empty() {
            true => error.into(),
            false => refusal(self.programs.len(), mechanism, &target.name, error),
        }
    }
}

fn refusal(programs: usize, mechanism: Mechanism, name: &str, error: BpfError) -> GuestError {
    match error.is_limit() {
        true => GuestError::Unsupported(format!(
            "it refuses {mechanism} on {name}, beside {programs} there: {error}"
        )),
        false => error.into(),
    }
}

/// ftrace's tracer `function`, for some functions, in a tracing instance of its own.
#[derive(Debug)]
struct FunctionTracer(String);

impl FunctionTracer {
    fn start(instance: &str, functions: &str) -> Result<FunctionTracer, GuestError> {
        let folder = format!("{INSTANCES}/{instance}");
        changes::make_folder(&folder)
            .map_err(|error| refused(&folder, &error, ErrorKind::NotFound))?;
        let tracer = FunctionTracer(folder);
        // A kernel without the option has neither this file nor this tracer.
        for (file, text, lacks) in [
            ("set_ftrace_filter", functions, ErrorKind::NotFound),
            ("current_tracer", "function", ErrorKind::InvalidInput),
        ] {
            let path = Path::new(&tracer.0).join(file);
            // Without the end of the line the kernel parses the last name when the file is closed,
            // and forgets the error: an empty filter, which is all functions.
            changes::write(&path, format!("{text}\n")).map_err(|error| match error.kind() {
                ErrorKind::InvalidInput if text == functions => unlisted(functions),
                _ => refused(&path.to_string_lossy(), &error, lacks),
            })?;
        }
        Ok(tracer)
    }
}

/// kallsyms may have several names for a function, ftrace has one.
fn unlisted(function: &str) -> GuestError {
    GuestError::Unsupported(format!(
        "ftrace's filter takes no function {function}: name it as available_filter_functions does"
    ))
}

/// `lacks` is the error of a kernel that was built without the tracer.
fn refused(path: &str, error: &io::Error, lacks: ErrorKind) -> GuestError {
    if error.kind() == lacks {
        GuestError::Unsupported(format!("{path}: {error} (requires the option FUNCTION_TRACER)"))
    } else {
        GuestError::Failed(format!("{path}: {error}"))
    }
}

impl Drop for FunctionTracer {
    fn drop(&mut self) {
        let folder = Path::new(&self.0);
        // A tracing instance cannot be removed.
        let stopped = changes::write(folder.join("current_tracer"), "nop");
        if let Err(error) = stopped.and_then(|()| changes::remove_folder(folder)) {
            eprintln!("tramplab-agent: failed to remove {}: {error}", self.0);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_the_kernels_refusal_of_one_more_program() {
        let refused =
            |errno| refusal(38, Mechanism::Fexit, "f", BpfError::new("make a link", errno, ""));
        let GuestError::Unsupported(reason) = refused(libc::E2BIG) else {
            panic!("not the kernel's answer");
        };
        assert_eq!(
            reason,
            "it refuses fexit on f, beside 38 there: failed to make a link: E2BIG: Argument list \
             too long"
        );
        assert!(matches!(refused(libc::EEXIST), GuestError::Unsupported(_)));
        for errno in [libc::ENOMEM, libc::EMFILE, libc::EINVAL] {
            assert!(matches!(refused(errno), GuestError::Failed(_)), "{errno}");
        }
    }

    #[test]
    fn skips_only_on_kernels_without_the_tracer() {
        let error = |kind: ErrorKind| refused("x", &io::Error::from(kind), ErrorKind::NotFound);
        assert!(matches!(error(ErrorKind::NotFound), GuestError::Unsupported(_)));
        assert!(matches!(error(ErrorKind::ResourceBusy), GuestError::Failed(_)));
    }
}
