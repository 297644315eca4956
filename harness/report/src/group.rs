// SPDX-License-Identifier: MIT OR Apache-2.0
//! The cells of one kernel, and tables with a column for each kernel.

use crate::view::View;
use std::collections::{BTreeMap, BTreeSet};
use tramplab_analysis::branch::Model;
use tramplab_model::{
    code::SourceLines,
    cpu,
    run::{Accel, Arch, BranchSource, Cell, Kernel, Run},
    table::Table,
};

/// The cells of one kernel under one accelerator.
pub struct Group<'a> {
    pub kernel: &'a str,
    pub arch: Arch,
    pub accel: Accel,
    pub cells: Vec<&'a Cell>,
    /// The CPU as which the guests booted.
    pub booted: Option<&'a cpu::Named>,
    /// The CPU whose branch records are shown, unless the view has another.
    pub cpu: Option<&'a cpu::Named>,
    /// The source lines to show.
    pub lines: Option<&'a SourceLines>,
}

impl Group<'_> {
    pub fn heading(&self) -> String {
        format!("Linux {} ({}, {})", self.kernel, self.arch.name(), self.accel.name())
    }

    pub fn model(&self, view: &View) -> Model {
        let asked = self.asked(view);
        Model::choose(asked.or_else(|| Model::of_branches(&self.cpu?.cpu.branches)), self.arch)
    }

    /// The depth of the CPU, if one is named or booted.
    pub fn depth(&self, view: &View) -> Option<u32> {
        match self.asked(view) {
            Some(_) => view.depth,
            None => self.cpu?.cpu.branches.depth,
        }
    }

    /// The model of the view, if it is for these guests.
    fn asked(&self, view: &View) -> Option<Model> {
        view.model_of(self.booted).filter(|model| model.arch() == self.arch)
    }

    pub fn facts<'a>(&self, run: &'a Run) -> Option<&'a Kernel> {
        run.kernel(self.arch, self.kernel)
    }

    /// `uname -r` and `uname -v`, as the kernel itself said.
    fn uname(&self) -> Option<[&str; 2]> {
        let guest = self.cells.iter().find_map(|cell| cell.guest.as_ref())?;
        Some([&guest.release, &guest.version])
    }

    /// The driver's source of records, if a driver's were counted.
    pub fn of_driver(&self) -> Option<BranchSource> {
        let mut sources = self.cells.iter().filter_map(|cell| cell.branch_source());
        sources.find(|source| source.is_of_driver())
    }
}

/// The kernel of this machine, and its guests of the same build: those that boot as a CPU, if some
/// do.
pub fn pairs_of_this_machine<'a, 'b>(
    groups: &'a [Group<'b>],
) -> impl Iterator<Item = [&'a Group<'b>; 2]> {
    let of = |accel: Accel| groups.iter().filter(move |group| group.accel == accel);
    let boots_as_a_cpu = |group: &&Group| group.booted.is_some();
    let is_usual = !of(Accel::Tcg).any(|group| boots_as_a_cpu(&group));
    let guests = move || of(Accel::Tcg).filter(move |one| is_usual || boots_as_a_cpu(one));
    let pairs = of(Accel::Native).flat_map(move |here| guests().map(move |guest| [here, guest]));
    pairs.filter(|[here, guest]| {
        let builds = [here, guest].map(|group| group.uname());
        here.arch == guest.arch && builds[0].is_some() && builds[0] == builds[1]
    })
}

/// The values of a table that has a row for each key and a column for each kernel.
pub struct ByKernel<K> {
    rows: BTreeMap<K, Vec<String>>,
    columns: usize,
}

impl<K: Ord> ByKernel<K> {
    pub fn new(groups: &[Group]) -> ByKernel<K> {
        ByKernel { rows: BTreeMap::new(), columns: groups.len() }
    }

    pub fn set(&mut self, key: K, column: usize, value: String) {
        self.rows.entry(key).or_insert_with(|| vec![String::new(); self.columns])[column] = value;
    }

    /// None if it has no row. `first` heads the column of the rows' names.
    pub fn table(
        self,
        groups: &[Group],
        caption: String,
        first: &str,
        name: impl Fn(K) -> String,
    ) -> Option<Table> {
        let row = |(key, values)| [vec![name(key)], values].concat();
        let header = std::iter::once(first.to_owned()).chain(columns(groups));
        Table::new(caption, header, self.rows.into_iter().map(row)).if_filled()
    }
}

/// The kernels' names, with architecture and accelerator if these differ.
fn columns(groups: &[Group]) -> Vec<String> {
    let several_accels = groups.iter().map(|g| g.accel).collect::<BTreeSet<_>>().len() > 1;
    let several_archs = groups.iter().map(|g| g.arch).collect::<BTreeSet<_>>().len() > 1;
    let column = |group: &Group| {
        let mut name = group.kernel.to_owned();
        if several_archs {
            name += &format!(" {}", group.arch.name());
        }
        if several_accels {
            name += &format!(" {}", group.accel.name());
        }
        name
    };
    groups.iter().map(column).collect()
}
