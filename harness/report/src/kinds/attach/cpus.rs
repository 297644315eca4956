// SPDX-License-Identifier: MIT OR Apache-2.0
//! The work that the guest's other CPUs add to attaching.

use super::explained;
use crate::group::Group;
use tramplab_model::{
    run::{Accel, Cell, Run},
    table::Table,
    text,
};
use tramplab_protocol::message::Explain;

/// None if each guest has one CPU.
pub fn instructions(cells: &[&Cell]) -> Option<Table> {
    let mut rows = Vec::new();
    for (name, summary) in explained(cells, Explain::Exact) {
        for of in &summary.cpus {
            let totals = of.totals;
            let mut row = vec![name.clone(), summary.phase.name().to_owned(), of.cpu.to_string()];
            row.extend([totals.task, totals.interrupts, totals.others].map(|n| n.to_string()));
            rows.push(row);
        }
    }
    let header = ["cell", "phase", "CPU", "attaching thread", "interrupts", "other threads"];
    let note = "Each number is exact. It does not repeat: the host decides when the CPUs run, and \
                so how long one waits for another in a loop.";
    Table::new("The same by the guest's CPU", header, rows).noted([note]).if_filled()
}

/// The caveat of times of several CPUs.
pub fn note(run: &Run, group: &Group) -> Option<String> {
    let cpus = run.cpus_of(group.arch, group.kernel, group.accel).filter(|&cpus| cpus > 1)?;
    (group.accel == Accel::Tcg).then(|| {
        format!(
            "Under TCG each of the guest's {} is a thread of the host, which has {}: times of the \
             free clock have the contention of the host in them, and no cost of an IPI's hardware.",
            text::counted(cpus as usize, "CPU"),
            text::counted(run.host.cpus, "CPU"),
        )
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::tests::two_architectures;

    #[test]
    fn warns_of_times_of_several_cpus() {
        let mut run = two_architectures();
        let (kernel, arch) = (run.kernels[0].name.clone(), run.kernels[0].arch);
        let group = |accel| Group {
            kernel: &kernel,
            arch,
            accel,
            cells: Vec::new(),
            booted: None,
            cpu: None,
            lines: None,
        };
        run.host.cpus = 2;
        assert_eq!(note(&run, &group(Accel::Tcg)), None);
        for machine in &mut run.machines {
            machine.cpus = 8;
        }
        let text = note(&run, &group(Accel::Tcg)).unwrap();
        assert!(text.contains("8 CPUs is a thread of the host, which has 2 CPUs"), "{text}");
        assert_eq!(note(&run, &group(Accel::Kvm)), None);
    }
}
