// SPDX-License-Identifier: MIT OR Apache-2.0
//! `lbr_waste`: records the branches of some hits, and counts the wasted ones.

use super::{
    Kind, Needs,
    targets::{self, Hook, TargetSet},
};
use crate::{
    Budget,
    guest::{Booted, Hits, QUICK, Stop, WARMUP, WITH_COMMAND, require_asked, unexpected},
    program::{Program, Programs},
    yaml::{Mechanisms, nonzero},
};
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use std::{collections::BTreeMap, num::NonZeroU32};
use tramplab_analysis::branch::{
    self, Branch, CaptureError, DeliveryError, DriverError, Filter, Model, waste,
};
use tramplab_model::{
    function::{FunctionName, NotAFunction},
    kinds::lbr_waste,
    run::{Accel, BranchSource, Cell, ErrorKind, LbrWaste, Measurement, Test, WasteRow},
};
use tramplab_protocol::{
    Mechanism,
    message::{Command, LbrWasteRequest, Response},
    program as protocol,
};

#[derive(Clone, Debug, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
#[schemars(rename = "LbrWasteGroup")]
pub struct Group {
    pub mechanisms: Mechanisms,
    /// The user's programs, which take the snapshot themselves. Empty: the capturing program of
    /// each mechanism.
    #[serde(default, skip_serializing_if = "Programs::is_empty")]
    pub programs: Programs,
    /// The traced functions. Empty: the kernel's own test functions.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub targets: Vec<FunctionName>,
    /// A line for the guest's shell that hits each of them.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub trigger: Option<String>,
    /// Triggers recorded per cell.
    #[serde(default = "default_hits")]
    pub hits: NonZeroU32,
}

impl Group {
    pub fn only(test: lbr_waste::Test) -> Group {
        Group {
            mechanisms: Mechanisms(vec![test.mechanism]),
            programs: Programs::default(),
            targets: Vec::from_iter(test.function),
            trigger: None,
            hits: default_hits(),
        }
    }
}

pub(super) fn default_hits() -> NonZeroU32 {
    nonzero(8)
}

impl super::Group for Group {
    fn work(&self, _compared: bool) -> Vec<super::Work> {
        let hits = self.hits.get();
        let work = |(hook, function): (Hook, Option<FunctionName>)| {
            let (mechanism, function) = (hook.mechanism, function.or(hook.function()));
            let test = lbr_waste::Test { mechanism, program: hook.program(), function };
            super::Work::LbrWaste(Work {
                command: self.trigger.clone().filter(|_| hook.is_named(function)),
                test,
                program: hook.sent(),
                hits,
            })
        };
        let hooks = targets::hooks(&self.mechanisms, &self.programs, &self.targets);
        hooks.into_iter().map(work).collect()
    }

    fn misfit(&self) -> Option<String> {
        let user = self.mechanisms.0.iter().find(|mechanism| mechanism.is_user()).map(|user| {
            format!(
                "{user} attaches to user-space code, which lbr_waste tests do not measure: remove \
                 it, or measure it in a trigger test"
            )
        });
        user.or_else(|| targets::misfit(&self.mechanisms, &self.programs, &self.targets))
            .or_else(|| targets::nameless(&self.mechanisms, &self.programs, &self.targets))
            .or_else(|| {
                targets::bad_trigger(
                    self.trigger.as_deref(),
                    &self.mechanisms,
                    &self.targets,
                    &self.programs,
                )
            })
    }

    fn trigger(&mut self, line: &str) -> bool {
        self.trigger = Some(line.to_owned());
        true
    }

    fn trace(&mut self, sets: &[TargetSet]) -> Result<bool, NotAFunction> {
        self.targets = targets::names(sets)?;
        if self.targets.is_empty() {
            return Ok(false);
        }
        Ok(targets::misfit(&self.mechanisms, &self.programs, &self.targets).is_none())
    }

    fn programs(&self) -> &[Program] {
        self.programs.all()
    }

    fn attached(&mut self) -> Option<(&Mechanisms, &mut Programs)> {
        Some((&self.mechanisms, &mut self.programs))
    }
}

#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Work {
    pub test: lbr_waste::Test,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub program: Option<protocol::Program>,
    /// The user's command that hits the function.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub command: Option<String>,
    pub hits: u32,
}

impl Kind for Work {
    fn test(&self) -> Test {
        Test::LbrWaste(self.test)
    }

    fn may_restore(&self) -> bool {
        true
    }

    fn is_timed(&self) -> bool {
        false
    }

    fn reduce_to_exact(&mut self) -> bool {
        true
    }

    fn on_this_machine(&mut self, most: u32) -> Option<String> {
        targets::unsafe_here(self.program.as_ref(), self.command.is_some(), 1, most)
    }

    fn needs(&self) -> Needs {
        Needs { modules: targets::module(self.test.function), shell: self.command.is_some() }
    }

    fn mechanisms(&self) -> Vec<Mechanism> {
        vec![self.test.mechanism]
    }

    fn only_tcg(&self) -> Option<&'static str> {
        self.program.as_ref().map(|_| {
            "the records of a user's program are the plugin's, which only TCG has; use --accel auto"
        })
    }

    /// Only the capturing program shows what it got.
    fn asks_for_records(&self) -> bool {
        self.program.is_none()
    }

    fn measure(&self, booted: &mut Booted) -> Result<Measurement, Stop> {
        self.waste(booted).map(Measurement::LbrWaste)
    }
}

impl Work {
    fn waste(&self, booted: &mut Booted) -> Result<LbrWaste, Stop> {
        let &Work { test, ref program, ref command, hits } = self;
        let lbr_waste::Test { mechanism, function, .. } = test;
        let planned = booted.planned;
        let (model, depth) = planned.records();
        let filter = Filter::of(Branch::Any);
        let deliver = planned.deliver.then(|| model.delivered(filter, depth));
        let of_driver = planned.of_driver();
        let events = of_driver.map_or_else(Vec::new, |_| branch::driver::events());
        // A command is a process, each time.
        let within = if command.is_some() { WITH_COMMAND } else { QUICK };
        let request = LbrWasteRequest {
            mechanism,
            program: program.clone(),
            function: function.map(String::from),
            command: command.clone(),
            hits,
            warmup: WARMUP,
            deliver,
            events,
        };
        let reply = match booted.ask(Command::LbrWaste(request), within)? {
            Response::LbrWaste(reply) => reply,
            other => return Err(unexpected(&other)),
        };
        let told = Hits {
            mechanism: reply.mechanism,
            function: &reply.function,
            trigger: reply.trigger.as_ref(),
            hits: reply.hits,
            points: &reply.points,
        };
        require_asked(mechanism, function, command.as_deref(), hits, &told)?;
        if reply.program.is_some() != program.is_some() {
            let message = "the guest does not say which program it attached".to_owned();
            return Err(Stop::Error { kind: ErrorKind::Protocol, message });
        }
        let stop = |message| Stop::Error { kind: ErrorKind::Trace, message };
        let of_driver = match of_driver {
            Some(cpu) => {
                // A played CPU is as its kernel finds it: a kernel without a driver is no failure.
                let error = |error: DriverError| match planned.accel {
                    Accel::Native if error.is_absence() => {
                        Stop::Skip(format!("{error}; --vm qemu counts virtual ones"))
                    }
                    Accel::Tcg if error.is_of_kernel(model) => Stop::Skip(format!(
                        "{error}; the kernel's driver takes snapshots of {model} from Linux 6.10 on"
                    )),
                    Accel::Native => stop(format!("{error}; --vm qemu counts virtual ones")),
                    Accel::Kvm | Accel::Tcg => {
                        stop(format!("{error}; --branches virtual does without"))
                    }
                };
                branch::driver::depth(&reply).map_err(error)?;
                let symbols = booted.resolve(branch::driver::addresses(&reply))?;
                Some(branch::driver_waste(cpu, &reply, &symbols).map_err(error)?)
            }
            None => None,
        };
        if let Some(waste) = of_driver.as_ref().filter(|_| !planned.emulated) {
            booted.vm.request(Command::Release, QUICK)??;
            return Ok(waste.clone());
        }
        let (trace, symbols) = booted.trace()?;
        booted.vm.request(Command::Release, QUICK)??;
        let mut waste = match branch::lbr_waste(planned.arch, &trace, &symbols, &reply) {
            Err(CaptureError::Interrupted { .. }) if booted.may_repeat() => {
                return self.waste(booted);
            }
            Err(error) if error.is_of_function() || error.is_of_program() => {
                return Err(Stop::Skip(error.to_string()));
            }
            counted => counted.map_err(|error| stop(error.to_string()))?,
        };
        if let Some(emulated) = of_driver {
            match branch::driver::check_emulated(model, filter, &trace, &symbols, &reply) {
                // The next run's last hit is another.
                Ok(_) | Err(DriverError::Interrupted) => {}
                Err(error) => return Err(stop(error.to_string())),
            }
            return Ok(branch::driver::with_traced(emulated, &waste));
        }
        if planned.deliver {
            let delivered = branch::delivered(model, filter, depth, &trace, &symbols, &reply);
            waste.delivered = Some(delivered.map_err(|error| match error {
                DeliveryError::NoCall => Stop::Skip(error.to_string()),
                _ => stop(error.to_string()),
            })?);
        }
        Ok(waste)
    }
}

/// Judges by the architecture's first modelled CPU.
pub fn over_budget(cell: &Cell, budgets: &[Budget]) -> Vec<String> {
    let (Some(Measurement::LbrWaste(measured)), &Test::LbrWaste(test)) =
        (&cell.measurement, &cell.id.test)
    else {
        return Vec::new();
    };
    let model = Model::choose(None, cell.id.arch);
    budgets.iter().flat_map(|budget| over(test, model, measured, budget)).collect()
}

fn over(test: lbr_waste::Test, model: Model, measured: &LbrWaste, budget: &Budget) -> Vec<String> {
    let mut reasons = Vec::new();
    for capture in &measured.points {
        let row = test.row(capture.point);
        for (&filter, &most) in budget.wasted.get(&row).into_iter().flatten() {
            match waste::count_at(model, filter, capture, &measured.function).wasted {
                Some(n) if n <= most => {}
                Some(n) => {
                    reasons.push(format!("{row} wastes {n} records in `{filter}`, budget {most}"))
                }
                None => reasons.push(format!(
                    "{row} in `{filter}`: no record touches {}, budget {most}",
                    measured.function.name
                )),
            }
        }
    }
    reasons
}

/// Budgets hold for virtual records only: each real CPU has other ones.
fn virtual_waste(cell: &Cell) -> Option<(lbr_waste::Test, &LbrWaste)> {
    match (&cell.id.test, &cell.measurement) {
        (&Test::LbrWaste(test), Some(Measurement::LbrWaste(measured)))
            if measured.source == BranchSource::Virtual =>
        {
            Some((test, measured))
        }
        _ => None,
    }
}

/// Wasted records by row and filter, if a record touches the function.
pub fn wasted(cell: &Cell) -> BTreeMap<WasteRow, BTreeMap<Filter, u32>> {
    let Some((test, measured)) = virtual_waste(cell) else { return BTreeMap::new() };
    let rows = measured.points.iter().map(|point| test.row(point.point));
    rows.map(|row| {
        let filters = Branch::ALL.into_iter().map(Filter::of);
        (row, filters.filter_map(|filter| Some((filter, wasted_in(cell, row, filter)??))).collect())
    })
    .filter(|(_, filters): &(WasteRow, BTreeMap<_, _>)| !filters.is_empty())
    .collect()
}

/// None if the cell does not measure the row. `Some(None)` if no record touches the function.
pub fn wasted_in(cell: &Cell, row: WasteRow, filter: Filter) -> Option<Option<u32>> {
    let (test, measured) = virtual_waste(cell)?;
    let point = measured.points.iter().find(|point| test.row(point.point) == row)?;
    let model = Model::choose(None, cell.id.arch);
    Some(waste::count_at(model, filter, point, &measured.function).wasted)
}
