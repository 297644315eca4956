// SPDX-License-Identifier: MIT OR Apache-2.0
//! The options of a kernel's configuration that a series changes.

use super::{Series, diff};
use crate::kconfig::{Demand, Fragment, WantedOption};
use diffy::Line;
use std::{
    collections::BTreeSet,
    path::{Path, PathBuf},
};
use tramplab_model::{run::Arch, tree_tests};

impl Series {
    /// Options that the patches define or remove in a Kconfig file: a tree before or after them
    /// lacks some.
    pub fn introduced(&self) -> BTreeSet<String> {
        let is_kconfig = |path: &Path| {
            path.file_name().is_some_and(|name| name.to_string_lossy().starts_with("Kconfig"))
        };
        let option = |line: &(bool, String)| {
            let mut words = line.1.split_ascii_whitespace();
            let is_definition = matches!(words.next(), Some("config" | "menuconfig"));
            words.next().filter(|_| is_definition).map(str::to_owned)
        };
        self.changed(is_kconfig).iter().filter_map(option).collect()
    }

    /// Options that the series adds to the configuration of the tree's own BPF tests.
    pub fn of_tree_tests(&self, arch: Arch) -> Vec<WantedOption> {
        let of_arch = format!("config.{}", arch.platform().machine);
        let files = ["config", &of_arch].map(|name| Path::new(tree_tests::FOLDER).join(name));
        let place = PathBuf::from(format!("the series' {}", files[0].display()));
        let wanted = |line: &(bool, String)| {
            let wanted = Fragment::parse(&line.1, &place).ok().filter(|_| line.0)?;
            // Their dependencies are in files that are not read.
            let of_series = |wanted| WantedOption { line: 0, demand: Demand::Never, ..wanted };
            Some(wanted.into_iter().map(of_series))
        };
        let lines = self.changed(|path| files.iter().any(|file| file == path));
        lines.iter().filter_map(wanted).flatten().collect()
    }

    /// The lines that the patches change in some files. True for those that they add.
    fn changed(&self, is_wanted: impl Fn(&Path) -> bool) -> Vec<(bool, String)> {
        let mut lines = Vec::new();
        for patch in self.ordered() {
            let turned = patch.reversed != self.reverse;
            for change in diff::parse(&patch.diff, patch.strip) {
                let names = [change.before(false), change.before(true)];
                if !names.into_iter().flatten().any(&is_wanted) {
                    continue;
                }
                let text = |line: &[u8]| String::from_utf8_lossy(line).into_owned();
                lines.extend(change.hunks().iter().flat_map(|hunk| hunk.lines()).filter_map(
                    |line| match line {
                        Line::Insert(line) => Some((!turned, text(line))),
                        Line::Delete(line) => Some((turned, text(line))),
                        Line::Context(_) => None,
                    },
                ));
            }
        }
        lines
    }
}
