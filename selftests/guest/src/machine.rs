// SPDX-License-Identifier: MIT OR Apache-2.0
//! The commands that the agent executes on the user's own machine. They change nothing outside this
//! process but what ends with it: programs, links and perf events.

use tramplab_protocol::message::{
    AttachRequest, Command, Explain, ExplainRequest, GuestError, LbrWasteRequest, TriggerRequest,
};
use tramplab_protocol::program::Program;
use tramplab_protocol::{Beside, BesideSet};

/// Refuses the commands that would do more, and those that only a guest can execute.
pub fn check(command: &Command) -> Result<(), GuestError> {
    match command {
        Command::Facts
        | Command::Prepare
        | Command::Resolve { .. }
        | Command::Release
        | Command::Moment
        | Command::PowerOff => Ok(()),
        Command::LbrWaste(LbrWasteRequest { program, command, deliver, .. }) => {
            of_user(program.as_ref(), command.as_deref())?;
            match deliver {
                Some(_) => Err(needs_guest("records of another CPU come from the TCG plugin")),
                None => Ok(()),
            }
        }
        Command::Attach(request) => attach(request),
        Command::Explain(ExplainRequest { attach: request, how, .. }) => {
            attach(request)?;
            match how {
                Explain::Sampled => Ok(()),
                Explain::Exact | Explain::Estimated => {
                    Err(needs_guest("exact counts come from the TCG plugin"))
                }
            }
        }
        Command::Trigger(TriggerRequest { program, command, beside: set, estimated, .. }) => {
            of_user(program.as_ref(), command.as_deref())?;
            beside(*set)?;
            match estimated {
                0 => Ok(()),
                _ => Err(needs_guest("estimated cycles come from the TCG plugin")),
            }
        }
        Command::Survive(_) => Err(needs_guest("a storm may kill the kernel")),
        Command::Calls(_) => Err(needs_guest("counting calls writes files of tracefs")),
        Command::Exec(_) => Err(needs_guest("the command would run as root")),
        Command::Inject(_) => Err(needs_guest("a fault would hit all that runs here")),
        Command::Awake { .. } => Err(needs_guest("the clock is not the agent's to set")),
    }
}

fn attach(request: &AttachRequest) -> Result<(), GuestError> {
    of_user(request.program.as_ref(), None)?;
    beside(request.beside)
}

fn of_user(program: Option<&Program>, command: Option<&str>) -> Result<(), GuestError> {
    match (program, command) {
        (Some(_), _) => Err(needs_guest("a program of yours would run for every task")),
        (_, Some(_)) => Err(needs_guest("the trigger command would run as root")),
        (None, None) => Ok(()),
    }
}

fn beside(set: BesideSet) -> Result<(), GuestError> {
    let is_written = |beside: &Beside| match beside {
        Beside::FunctionTracer | Beside::FunctionTracerOthers(_) => true,
        Beside::Programs(..) | Beside::Others(..) => false,
    };
    match set.iter().find(is_written) {
        Some(beside) => Err(needs_guest(&format!("{beside} writes files of tracefs"))),
        None => Ok(()),
    }
}

fn needs_guest(why: &str) -> GuestError {
    GuestError::Unsupported(format!(
        "{why}, and this machine must stay as it is: measure it in a guest (--vm qemu)"
    ))
}
