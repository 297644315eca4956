// SPDX-License-Identifier: MIT OR Apache-2.0
//! The programs that `lbr_waste` and `trigger` groups attach, and the functions that they trace.

use crate::{
    program::{Program, Programs},
    yaml::Mechanisms,
};
use tramplab_model::{function::FunctionName, program::ProgramName};
use tramplab_protocol::{Mechanism, program as protocol};

/// The program and the function of one cell.
#[derive(Clone, Copy, Debug)]
pub(super) struct Hook<'a> {
    pub mechanism: Mechanism,
    own: Option<&'a Program>,
    pub function: Option<FunctionName>,
}

impl Hook<'_> {
    pub fn program(&self) -> Option<ProgramName> {
        self.own.map(Program::name)
    }

    pub fn sent(&self) -> Option<protocol::Program> {
        self.own.map(|program| program.sent.clone())
    }
}

/// Each mechanism, or each program of one of them, with each function that it can attach to.
/// Tracepoints are none. Without `targets` a program traces the function in its section's name.
pub(super) fn hooks<'a>(
    mechanisms: &'a Mechanisms,
    programs: &'a Programs,
    targets: &'a [FunctionName],
) -> Vec<Hook<'a>> {
    let hook = |mechanism: &Mechanism| Hook { mechanism: *mechanism, own: None, function: None };
    let attached: Vec<Hook> = match programs.is_empty() {
        true => mechanisms.0.iter().map(hook).collect(),
        false => of_mechanisms(mechanisms, programs)
            .map(|own| Hook { mechanism: own.mechanism(), own: Some(own), function: own.function })
            .collect(),
    };
    if targets.is_empty() {
        return attached;
    }
    let is_on = |hook: &&Hook| !hook.mechanism.is_tracepoint();
    let on = |&function| {
        let on = move |hook: &Hook<'a>| Hook { function: Some(function), ..*hook };
        attached.iter().filter(is_on).map(on).collect::<Vec<_>>()
    };
    targets.iter().flat_map(on).collect()
}

/// The programs that a group measures.
pub(super) fn of_mechanisms<'a>(
    mechanisms: &'a Mechanisms,
    programs: &'a Programs,
) -> impl Iterator<Item = &'a Program> {
    programs.all().iter().filter(|own| mechanisms.0.contains(&own.mechanism()))
}

/// The reason why a group has no cells.
pub(super) fn misfit(
    mechanisms: &Mechanisms,
    programs: &Programs,
    targets: &[FunctionName],
) -> Option<String> {
    let foreign = || {
        let own = programs.all().first()?;
        of_mechanisms(mechanisms, programs).next().is_none().then(|| {
            format!(
                "the program {} is for {}, which is not among the group's mechanisms: add it",
                own.name(),
                own.mechanism()
            )
        })
    };
    let no_function = || {
        let function = targets.first()?;
        hooks(mechanisms, programs, targets).is_empty().then(|| {
            format!(
                "no mechanism of the group attaches to functions such as {function}; name another \
                 mechanism, or remove `targets`"
            )
        })
    };
    foreign().or_else(no_function)
}
