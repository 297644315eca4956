// SPDX-License-Identifier: MIT OR Apache-2.0
//! The commands that the agent executes on the user's own machine. They change nothing outside this
//! process but what ends with it: programs, links and perf events.

use tramplab_protocol::message::{
    AttachRequest, Command, Explain, ExplainRequest, GuestError, LbrWasteRequest, TriggerRequest,
};
use tramplab_protocol::program::Program;
use tramplab_protocol::{Beside, BesideSet, Functions};

/// Refuses the commands that would do more, and those that only a guest can execute. `most`
/// functions and programs may be attached at once.
pub fn check(command: &Command, most: u32) -> Result<(), GuestError> {
    match command {
        Command::Facts
        | Command::Prepare
        | Command::Resolve { .. }
        | Command::Release
        | Command::PowerOff => Ok(()),
        Command::LbrWaste(LbrWasteRequest { program, command, deliver, .. }) => {
            of_user(program.as_ref(), command.as_deref())?;
            match deliver {
                Some(_) => Err(needs_plugin("records of another CPU")),
                None => Ok(()),
            }
        }
        Command::Attach(request) => attach(request, most),
        Command::Explain(ExplainRequest { attach: request, how, .. }) => {
            attach(request, most)?;
            match how {
                Explain::Sampled => Ok(()),
                Explain::Exact | Explain::Estimated => Err(needs_plugin("exact counts")),
            }
        }
        Command::Trigger(TriggerRequest { program, command, beside: set, estimated, .. }) => {
            of_user(program.as_ref(), command.as_deref())?;
            beside(*set, None, most)?;
            match estimated {
                0 => Ok(()),
                _ => Err(needs_plugin("estimated cycles")),
            }
        }
        Command::Survive(_) => Err(changes_machine("a storm may kill the kernel")),
        Command::Calls(_) => Err(changes_machine("tracing calls writes files of tracefs")),
        Command::Exec(_) => Err(changes_machine("the command would run as root")),
        Command::Inject(_) => Err(changes_machine("the fault would hit all that runs here")),
        Command::Awake { .. } => Err(changes_machine("it would set the clock")),
    }
}

fn attach(request: &AttachRequest, most: u32) -> Result<(), GuestError> {
    of_user(request.program.as_ref(), None)?;
    beside(request.beside, Some(request.functions), most)
}

fn of_user(program: Option<&Program>, command: Option<&str>) -> Result<(), GuestError> {
    match (program.filter(|program| program.is_of_user()), command) {
        (Some(_), _) => Err(changes_machine("your program would run for every task")),
        (_, Some(_)) => Err(changes_machine("the trigger command would run as root")),
        (None, None) => Ok(()),
    }
}

/// `functions` is the number of measured ones, if there are many.
fn beside(set: BesideSet, functions: Option<Functions>, most: u32) -> Result<(), GuestError> {
    let change = |beside: Beside| match beside {
        Beside::FunctionTracer | Beside::FunctionTracerOthers(_) => {
            Some(format!("{beside} writes files of tracefs"))
        }
        Beside::Livepatch => Some(format!("{beside} changes the kernel")),
        Beside::Programs(..) | Beside::Others(..) => None,
    };
    if let Some(change) = set.iter().find_map(change) {
        return Err(changes_machine(&change));
    }
    if set.attached_with(functions) > most {
        return Err(GuestError::Unsupported(format!(
            "more than {most} functions and programs would be attached at once on this machine: \
             allow it (--vm none:all), or measure it in a guest (--vm qemu)"
        )));
    }
    Ok(())
}

fn needs_plugin(what: &str) -> GuestError {
    GuestError::Unsupported(format!(
        "{what} come from the TCG plugin: measure it in a guest (--vm qemu)"
    ))
}

fn changes_machine(why: &str) -> GuestError {
    GuestError::Unsupported(format!(
        "{why}, and this machine must stay as it is: measure it in a guest (--vm qemu)"
    ))
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    /// A command with the members that a request needs, and some others.
    fn request(kind: &str, others: serde_json::Value) -> Command {
        let attach = json!({
            "mechanism": "fentry", "program": null, "functions": 10, "among": [], "binary": null,
            "beside": [], "rounds": 3, "seed": 1, "seconds": null,
        });
        let mut members = match kind {
            "attach" => attach,
            "explain" => json!({ "attach": attach, "how": "sampled", "system_calls": false }),
            _ => json!({
                "mechanism": "fentry", "program": null, "function": null, "command": null,
                "hits": 1, "warmup": 1, "deliver": null, "events": [], "beside": [], "timed": 1,
                "rounds": 1, "estimated": 0,
            }),
        };
        for (name, value) in others.as_object().unwrap() {
            members[name] = value.clone();
        }
        serde_json::from_value(json!({ kind: members })).unwrap()
    }

    #[test]
    fn refuses_what_would_change_the_machine() {
        let program = |object: &str| {
            json!({
                "name": "p", "target": null, "license": "GPL", "object": object, "globals": [],
            })
        };
        let (shipped, program) = (program(""), program("AA=="));
        for (kind, others, expected) in [
            ("lbr_waste", json!({}), None),
            ("lbr_waste", json!({ "function": "vfs_read" }), None),
            ("lbr_waste", json!({ "command": "true" }), Some("run as root")),
            ("lbr_waste", json!({ "program": program }), Some("your program")),
            (
                "lbr_waste",
                json!({ "deliver": { "depth": 32, "ring": 1, "kept": 1 } }),
                Some("TCG plugin"),
            ),
            ("trigger", json!({ "beside": ["3xfexit", "kprobe.multi:10"] }), None),
            ("trigger", json!({ "beside": ["function_tracer"] }), Some("function_tracer writes")),
            ("trigger", json!({ "beside": ["livepatch"] }), Some("livepatch changes")),
            ("trigger", json!({ "program": program }), Some("your program")),
            ("trigger", json!({ "program": shipped }), None),
            ("trigger", json!({ "command": "true" }), Some("run as root")),
            ("trigger", json!({ "estimated": 10 }), Some("TCG plugin")),
            ("attach", json!({}), None),
            ("attach", json!({ "program": program }), Some("your program")),
            (
                "attach",
                json!({ "beside": ["function_tracer:1"] }),
                Some("function_tracer:1 writes"),
            ),
            ("attach", json!({ "functions": 100 }), None),
            ("attach", json!({ "functions": 101 }), Some("more than 100")),
            ("attach", json!({ "functions": "all" }), Some("more than 100")),
            ("attach", json!({ "functions": 60, "beside": ["fentry:41"] }), Some("more than 100")),
            ("attach", json!({ "beside": ["kprobe.multi:all"] }), Some("more than 100")),
            ("trigger", json!({ "beside": ["kprobe.multi:101"] }), Some("more than 100")),
            ("trigger", json!({ "beside": ["101xfexit"] }), Some("more than 100")),
            ("trigger", json!({ "beside": ["60xfexit", "60xfentry"] }), Some("more than 100")),
            ("explain", json!({}), None),
            ("explain", json!({ "how": "exact" }), Some("TCG plugin")),
        ] {
            let checked = check(&request(kind, others.clone()), 100);
            match (checked, expected) {
                (Ok(()), None) => {}
                (Err(GuestError::Unsupported(why)), Some(expected)) => {
                    assert!(why.contains(expected) && why.contains("--vm qemu"), "{why}");
                }
                (other, _) => panic!("{kind} {others}: {other:?}"),
            }
        }
        for command in [
            Command::Inject(tramplab_protocol::message::Fault::Panic),
            Command::Awake { realtime_ns: 1, seed: [0; 32] },
        ] {
            assert!(matches!(check(&command, 100), Err(GuestError::Unsupported(_))), "{command:?}");
        }
        assert_eq!(check(&Command::PowerOff, 100), Ok(()));
        let all = request("attach", json!({ "functions": "all" }));
        assert!(check(&all, u32::MAX - 1).is_err() && check(&all, u32::MAX).is_ok());
    }
}
