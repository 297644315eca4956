// SPDX-License-Identifier: MIT OR Apache-2.0
//! Converts older schemas of `run.json` and `cell.json` to the present one, in memory.
//!
//! A step renames and moves recorded data. It never invents data: a value that was not recorded
//! stays absent, and the type allows that (`Option`, an empty list). `docs/run-json.md` says how to
//! add a schema.

use super::SCHEMA;
use serde_json::{Map, Value, json};
use sha2::{Digest, Sha256};
use std::collections::BTreeSet;

/// The oldest schema.
pub const OLDEST: u32 = 1;

type Object = Map<String, Value>;

/// Converts one schema to the next.
struct Step {
    run: fn(&mut Object),
    cell: fn(&mut Object),
}

/// In order. A new schema does not compile without its step.
const STEPS: [Step; (SCHEMA - OLDEST) as usize] = [
    Step { run: with_tolerance, cell: with_boots },
    Step { run: nothing, cell: with_digest_of_functions },
    Step { run: by_architecture, cell: without_unsized_profiles },
    Step { run: nothing, cell: without_unseen_interrupts },
    // Every run had guests.
    Step { run: nothing, cell: nothing },
];

/// The steps from a schema to the present one. None for an unknown schema.
fn steps(from: u64) -> Option<&'static [Step]> {
    STEPS.get(from.checked_sub(OLDEST.into())?.try_into().ok()?..)
}

/// Returns true if this program can read the schema.
pub fn reads(schema: u64) -> bool {
    steps(schema).is_some()
}

/// Converts a run to the present schema.
pub fn run(mut run: Value, from: u64) -> Value {
    for step in steps(from).unwrap_or_default() {
        let Some(run) = run.as_object_mut() else { break };
        let cells = run.get_mut("cells").and_then(Value::as_array_mut).into_iter().flatten();
        cells.filter_map(Value::as_object_mut).for_each(step.cell);
        (step.run)(run);
        run.insert("schema".to_owned(), SCHEMA.into());
    }
    run
}

/// Converts a cell to the present schema.
pub fn cell(mut cell: Value, from: u64) -> Value {
    for step in steps(from).unwrap_or_default() {
        cell.as_object_mut().into_iter().for_each(step.cell);
    }
    cell
}

fn nothing(_: &mut Object) {}

/// 1 to 2. Runs compared nothing before, so the default tolerance fits.
fn with_tolerance(run: &mut Object) {
    run.insert("tolerance".to_owned(), json!({}));
}

/// 1 to 2. Attach cells had one guest each.
fn with_boots(cell: &mut Object) {
    if let Some(attach) = attach(cell) {
        let boot = std::mem::take(attach);
        attach.insert("boots".to_owned(), json!([boot]));
    }
}

/// 2 to 3. The function names were in the file itself, not beside it.
fn with_digest_of_functions(cell: &mut Object) {
    let Some(attach) = attach(cell) else { return };
    let boots = attach.get_mut("boots").and_then(Value::as_array_mut).into_iter().flatten();
    for boot in boots.filter_map(Value::as_object_mut) {
        boot.remove("mechanism");
        if let Some(names) = boot.get("functions").and_then(Value::as_array) {
            let list: String =
                names.iter().filter_map(Value::as_str).map(|name| format!("{name}\n")).collect();
            let digest: String =
                Sha256::digest(&list).iter().map(|byte| format!("{byte:02x}")).collect();
            let count = names.len();
            boot.insert("functions".to_owned(), count.into());
            boot.insert("list_sha256".to_owned(), digest.into());
        }
        // Late files of schema 2 define `memory_kib` differently: the drop in available memory, not
        // the growth in allocated memory.
        let rounds = boot.get_mut("rounds").and_then(Value::as_array_mut).into_iter().flatten();
        rounds.filter_map(Value::as_object_mut).for_each(|round| {
            round.remove("memory_kib");
        });
    }
    attach.insert("explained".to_owned(), json!([]));
    attach.insert("unexplained".to_owned(), json!([]));
}

/// 3 to 4. There was one architecture, and three places described the machine.
fn by_architecture(run: &mut Object) {
    let kernels = run.get("kernels").and_then(Value::as_array).into_iter().flatten();
    let arches: BTreeSet<String> =
        kernels.filter_map(|kernel| Some(kernel.get("arch")?.as_str()?.to_owned())).collect();
    let with_arch = |mut of_all: Object, arch: &String| {
        of_all.insert("arch".to_owned(), arch.as_str().into());
        Value::from(of_all)
    };
    let qemu =
        run.get_mut("host").and_then(Value::as_object_mut).and_then(|host| host.remove("qemu"));
    let taken = [run.remove("machine"), run.remove("tools")];
    let machines = match taken {
        [Some(Value::Object(mut machine)), Some(Value::Object(tools))] => {
            machine.extend(tools);
            machine.extend(qemu.map(|qemu| ("qemu".to_owned(), qemu)));
            arches.iter().map(|arch| with_arch(machine.clone(), arch)).collect()
        }
        // Schema 1 has no machine. Reports show QEMU's version nowhere else.
        _ => {
            if let Some(qemu) = qemu.as_ref().and_then(Value::as_str) {
                run.insert("notes".to_owned(), json!([format!("{NO_MACHINE}: {qemu}")]));
            }
            Vec::new()
        }
    };
    run.insert("machines".to_owned(), machines.into());
    let series = match run.remove("series") {
        Some(Value::Object(series)) => {
            arches.iter().map(|arch| with_arch(series.clone(), arch)).collect()
        }
        _ => Vec::new(),
    };
    run.insert("series".to_owned(), series.into());
}

const NO_MACHINE: &str = "This file has schema 1, which records of the guests' machine only QEMU";

/// 3 to 4. Early files of schema 3 do not say how many functions a profile covers, so the profile
/// cannot be compared.
fn without_unsized_profiles(cell: &mut Object) {
    let Some(attach) = attach(cell) else { return };
    let all = attach.get_mut("explained").and_then(Value::as_array_mut);
    let dropped = all.map_or(0, |all| {
        let before = all.len();
        all.retain(|summary| summary.get("attached").is_some());
        before.saturating_sub(all.len())
    });
    let reasons = attach.entry("unexplained").or_insert_with(|| json!([]));
    if let Some(reasons) = reasons.as_array_mut().filter(|_| dropped > 0) {
        reasons
            .push(format!("{dropped} profiles do not say of how many functions they are").into());
    }
}

/// 4 to 5. The CPU's own records show no interrupts; the file said that there were none.
fn without_unseen_interrupts(cell: &mut Object) {
    let Some(waste) = measurement(cell, "lbr_waste") else { return };
    if waste.get("source").and_then(Value::as_str) == Some("hardware") {
        waste.remove("interrupted_hits");
    }
}

/// The measurement of an attach cell.
fn attach(cell: &mut Object) -> Option<&mut Object> {
    measurement(cell, "attach")
}

fn measurement<'a>(cell: &'a mut Object, kind: &str) -> Option<&'a mut Object> {
    cell.get_mut("measurement")?.get_mut(kind)?.as_object_mut()
}
