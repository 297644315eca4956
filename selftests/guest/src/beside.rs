// SPDX-License-Identifier: MIT OR Apache-2.0
//! Further tracers on the function of a hit, or elsewhere. Dropping them detaches them.

use crate::bpf::Link;
use crate::kernel_btf::KernelBtf;
use crate::method::{Method, Target};
use std::fs;
use std::io::{self, ErrorKind};
use std::os::fd::{AsFd, OwnedFd};
use std::path::Path;
use tramplab_protocol::message::GuestError;
use tramplab_protocol::{Beside, BesideSet, Mechanism, pattern};

const INSTANCES: &str = "/sys/kernel/tracing/instances";

/// Every kernel has this function, and a guest that still runs has not called it.
const ELSEWHERE: &str = "kernel_restart";

/// In attach order.
#[derive(Debug)]
pub struct Attached {
    _programs: Vec<(Link, OwnedFd)>,
    _tracers: Vec<FunctionTracer>,
}

/// Attaches a set of tracers to the target of a measured mechanism.
pub fn attach(
    set: BesideSet,
    measured: Mechanism,
    target: &Target,
    btf: &KernelBtf,
) -> Result<Attached, GuestError> {
    let mut attached = Attached { _programs: Vec::new(), _tracers: Vec::new() };
    for beside in set.iter() {
        if !beside.fits(measured) {
            let text = format!("{beside} cannot attach to the target of {measured}");
            return Err(GuestError::Failed(text));
        }
        match beside {
            Beside::Mechanism(mechanism) => {
                let method = Method::new(mechanism, btf)?;
                // A refusal of the probe is the kernel's answer about the mechanism.
                method.probe(target)?;
                let program = method.load_empty(target)?;
                attached._programs.push((method.link(program.as_fd(), target)?, program));
            }
            Beside::FunctionTracer => {
                attached._tracers.push(FunctionTracer::start("tramplab", &target.name)?);
            }
            Beside::FunctionTracerElsewhere => {
                attached._tracers.push(FunctionTracer::start("tramplab-elsewhere", ELSEWHERE)?);
            }
        }
    }
    Ok(attached)
}

/// ftrace's tracer `function`, for one function, in a tracing instance of its own.
#[derive(Debug)]
struct FunctionTracer(String);

impl FunctionTracer {
    fn start(instance: &str, function: &str) -> Result<FunctionTracer, GuestError> {
        let folder = format!("{INSTANCES}/{instance}");
        fs::create_dir(&folder).map_err(|error| refused(&folder, &error, ErrorKind::NotFound))?;
        let tracer = FunctionTracer(folder);
        let function = match pattern::split(function) {
            (Some(module), name) => format!("{name}:mod:{module}"),
            (None, name) => name.to_owned(),
        };
        // A kernel without the option has neither this file nor this tracer.
        for (file, text, lacks) in [
            ("set_ftrace_filter", &*function, ErrorKind::NotFound),
            ("current_tracer", "function", ErrorKind::InvalidInput),
        ] {
            let path = Path::new(&tracer.0).join(file);
            fs::write(&path, text)
                .map_err(|error| refused(&path.to_string_lossy(), &error, lacks))?;
        }
        Ok(tracer)
    }
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
        let stopped = fs::write(folder.join("current_tracer"), "nop");
        if let Err(error) = stopped.and_then(|()| fs::remove_dir(folder)) {
            eprintln!("tramplab-agent: failed to remove {}: {error}", self.0);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn skips_only_on_kernels_without_the_tracer() {
        let error = |kind: ErrorKind| refused("x", &io::Error::from(kind), ErrorKind::NotFound);
        assert!(matches!(error(ErrorKind::NotFound), GuestError::Unsupported(_)));
        assert!(matches!(error(ErrorKind::ResourceBusy), GuestError::Failed(_)));
    }
}
