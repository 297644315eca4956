// SPDX-License-Identifier: MIT OR Apache-2.0
//! The kernels of a run: fetched, or built from sources, alone or with a series on them.

mod building;
mod names;
mod preparing;
mod wanted;

pub use preparing::Preparing;
pub use wanted::WantedKernels;

use crate::{
    error::{Error, Result},
    place::place,
    run_dir::sha256,
};
use std::{collections::BTreeSet, time::Duration};
use tramplab_kernel::{
    self as kernel, Image, Manifest,
    axis::Axis,
    compile::{Means, TreeTests},
};
use tramplab_model::{
    run::{self, Arch, Outcome, Test},
    tree_tests::Name,
};
use tramplab_suite::{Suite, plan};

/// A series to measure, and how.
#[derive(Clone, Default)]
pub struct SeriesOptions {
    /// An mbox, a maildir, a folder of patches, a quilt series, commits BASE..HEAD, a message-id,
    /// or a name in kernels/patches/.
    pub series: Option<String>,
    /// Patches for both sides, in the forms of a series, in order.
    pub base_patches: Vec<String>,
    /// Measure after each patch, not only after the last.
    pub each_patch: bool,
    /// Kernels with code that is never called.
    pub placebos: usize,
    /// Build without confinement.
    pub unconfined: bool,
    /// Configurations of each kernel.
    pub axes: Vec<Axis>,
}

/// The kernels of a run.
#[derive(Default)]
pub struct Prepared {
    /// Tests of `test_progs` that the series adds or changes.
    pub tests: BTreeSet<Name>,
    pub kernels: Vec<Ready>,
    /// The kernel of this machine, measured without a guest.
    pub here: Option<Ready>,
    /// One for each architecture.
    pub series: Vec<run::Series>,
}

impl Prepared {
    /// How the kernels' configurations differ from the wanted ones, each once.
    pub fn notes(&self) -> Vec<String> {
        let builds = self.kernels.iter().filter_map(|kernel| kernel.build.as_ref());
        let notes: BTreeSet<&String> = builds.flat_map(|build| &build.notes).collect();
        notes.into_iter().cloned().collect()
    }

    /// Tests of the suite that no tree has. Empty while a kernel does not build: its tree may have
    /// them.
    pub fn unknown_tests(&self, suite: &Suite) -> Vec<Test> {
        if self.kernels.iter().any(|kernel| kernel.facts.image_sha256.is_none()) {
            return Vec::new();
        }
        let trees: Vec<&TreeTests> =
            self.kernels.iter().filter_map(|kernel| kernel.tree_tests.as_ref()).collect();
        plan::unknown_tests(suite, &trees)
    }
}

#[derive(Clone)]
pub struct Ready {
    pub facts: run::Kernel,
    /// None of one that could not be built.
    pub image: Option<Image>,
    /// The tests of its tree, where the suite runs some.
    pub tree_tests: Option<TreeTests>,
    /// The kernel's name without the series; none of a placebo, whose numbers are judged by
    /// nothing.
    pub budgets_of: Option<String>,
    pub build: Option<BuildCell>,
}

/// How a build went, as a cell tells it.
#[derive(Clone)]
pub struct BuildCell {
    pub outcome: Outcome,
    pub taken: Duration,
    pub means: Means,
    /// How its configuration differs from the wanted one.
    pub notes: Vec<String>,
}

/// A kernel on the requested architectures; else on this machine's, or on the first that it is for.
pub fn find(name: &str, arches: &[Arch]) -> Result<Vec<Manifest>> {
    let found = kernel::find(name, &place().kernels_with(name))?;
    let on = |arch: Arch| found.iter().find(|manifest| manifest.arch == arch).cloned();
    if arches.is_empty() {
        let own = Arch::host().and_then(on);
        return Ok(own.or_else(|| found.first().cloned()).into_iter().collect());
    }
    let asked = arches.iter().map(|&arch| {
        let has =
            || found.iter().map(|manifest| manifest.arch.name()).collect::<Vec<_>>().join(", ");
        on(arch).ok_or_else(|| {
            Error::Usage(format!("kernel {name} is not for {arch}, but for: {}", has()))
        })
    });
    asked.collect()
}

/// True for the name of a manifest, also as a CPU boots it (`6.12+zen4`) or in a configuration
/// (`6.12+preempt-full`).
pub fn is_known(name: &str) -> bool {
    let cpus = place().cpus();
    let is_point = |part: &str| part.contains('-') || cpus.iter().any(|cpu| cpu == part);
    let (kernel, points) = name.split_once('+').unwrap_or((name, ""));
    find(name, &[]).is_ok() || (find(kernel, &[]).is_ok() && points.split('+').all(is_point))
}

/// Rejects a kernel on which nothing can be measured.
pub(super) fn check(image: &Image) -> Result<()> {
    let missing = image.missing_base();
    if missing.is_empty() {
        return Ok(());
    }
    let names: Vec<String> = missing.iter().map(ToString::to_string).collect();
    // Distributions pack modules apart from the image.
    let advice = match missing.iter().any(|missing| missing.module) {
        true => {
            "; build it in, or list the packages of its modules, too (`packages:` in a manifest)"
        }
        false => "",
    };
    let message = format!(
        "kernel {} for {} cannot be measured: it lacks {}{advice}",
        image.name,
        image.arch,
        names.join(", ")
    );
    Err(Error::Usage(message))
}

pub(super) fn facts(image: &Image, build: Option<run::Build>) -> Result<run::Kernel> {
    Ok(run::Kernel {
        name: image.name.clone(),
        arch: image.arch,
        source: image.source.clone(),
        commit: None,
        image_sha256: Some(image.sha256.clone()),
        config_sha256: image.config_file.as_deref().map(sha256).transpose()?,
        paravirt_xxl: image.config.as_ref().map(|config| config.get("PARAVIRT_XXL") == Some("y")),
        build,
        configuration: None,
    })
}

#[cfg(test)]
mod tests {
    use super::names::names;
    use super::*;
    use std::{
        collections::BTreeMap,
        path::{Path, PathBuf},
    };
    use tramplab_kernel::Kconfig;
    use tramplab_kernel::tree_tests::DenyList;
    use tramplab_kernel::{compile::TreeTestsRecord, series};

    fn ready(name: &str, tests: Option<&[&str]>) -> Ready {
        let digest = tests.map(|_| "0".to_owned());
        let facts = run::Kernel {
            name: name.to_owned(),
            arch: Arch::X86_64,
            source: "s".to_owned(),
            commit: None,
            config_sha256: digest.clone(),
            paravirt_xxl: None,
            image_sha256: digest,
            build: None,
            configuration: None,
        };
        let record = |tests: &[&str]| TreeTestsRecord {
            key: "k".to_owned(),
            seconds: 1.0,
            tests: tests.iter().map(|name| (name.parse().unwrap(), format!("{name}.c"))).collect(),
            programs: BTreeSet::new(),
            broken: BTreeMap::new(),
            clang: None,
            contents: "c".to_owned(),
        };
        let tree_tests = tests.map(|tests| TreeTests {
            root: PathBuf::new(),
            record: record(tests),
            denied: DenyList::default(),
        });
        Ready { facts, image: None, tree_tests, budgets_of: Some(name.to_owned()), build: None }
    }

    #[test]
    fn facts_say_whether_msrs_are_accessed_by_calls() {
        let of = |config: Option<&str>| {
            let image = Image {
                name: "k".to_owned(),
                arch: Arch::X86_64,
                image: PathBuf::new(),
                vmlinux: None,
                functions: None,
                config: config.map(|text| Kconfig::parse(text).unwrap()),
                config_file: None,
                modules: Vec::new(),
                loadable: Default::default(),
                source: "s".to_owned(),
                sha256: String::new(),
            };
            facts(&image, None).unwrap().paravirt_xxl
        };
        let plain = "CONFIG_PARAVIRT=y\n# CONFIG_PARAVIRT_XXL is not set\n";
        let table = [
            (Some("CONFIG_PARAVIRT=y\nCONFIG_PARAVIRT_XXL=y\n"), Some(true)),
            (Some(plain), Some(false)),
            (None, None),
        ];
        for (config, expected) in table {
            assert_eq!(of(config), expected, "{config:?}");
        }
    }

    #[test]
    fn names_kernels_in_the_order_of_the_patches_without_building_them() {
        let mut series = series::load("lbr-helpers", &place().series_with("lbr-helpers")).unwrap();
        assert_eq!(names("k", None, false), ["k"]);
        series.reverse = false;
        assert_eq!(names("k", Some(&series), false), ["k", "k+lbr-helpers"]);
        series.reverse = true;
        assert_eq!(names("k", Some(&series), false), ["k+lbr-helpers.0", "k"]);
        assert_eq!(names("k", Some(&series), true), ["k+lbr-helpers.0", "k+lbr-helpers.1", "k"]);
        // A prepared base is neither the kernel nor the head.
        (series.reverse, series.base) = (false, 1);
        assert_eq!(names("k", Some(&series), true), ["k+lbr-helpers.0", "k+lbr-helpers"]);
    }

    #[test]
    fn a_test_that_a_kernel_may_have_that_does_not_build_is_no_wrong_name() {
        let text = "name: t\ndescription: d\nkernels: [a]\ntests:\n  - test_progs: { tests: [old, \
                    added] }\n";
        let suite: Suite = tramplab_host::config::parse(text, Path::new("t.yaml")).unwrap();
        let unknown = |head: Option<&[&str]>| -> Vec<String> {
            let kernels = vec![ready("a", Some(&["old"])), ready("a+s", head)];
            let prepared = Prepared { kernels, ..Prepared::default() };
            prepared.unknown_tests(&suite).iter().map(Test::name).collect()
        };
        assert_eq!(unknown(Some(&["old"])), ["test_progs/added"]);
        assert_eq!(unknown(Some(&["old", "added"])), [""; 0]);
        assert_eq!(unknown(None), [""; 0]);
    }
}
