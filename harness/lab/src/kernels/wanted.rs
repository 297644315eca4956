// SPDX-License-Identifier: MIT OR Apache-2.0
//! The kernels that were asked for, before anything is fetched or built.

use super::{
    Ready, SeriesOptions, check, find,
    names::{files_of_tests, names, placebo_name, put_before_the_head, unbuilt},
};
use crate::{
    cpus,
    error::{Error, Result},
    event::{Event, Tell},
    place::place,
    setup,
};
use std::{
    collections::{BTreeMap, BTreeSet},
    path::Path,
};
use tramplab_host::{Cache, Purpose};
use tramplab_kernel::{
    KernelError, Manifest, Recipe, Source, Tree,
    axis::{self, Axis},
    compile,
    kconfig::{self, Demand, Fragment, Unmet, WantedOption},
    series::{self, Range, Series},
    source,
};
use tramplab_model::{
    cpu,
    run::{Arch, Backend},
    tree_tests,
};
use tramplab_suite::{Kernels, Suite};

/// The image of the running kernel in guests. A run has one kernel of a name.
const IMAGE: &str = "running-image";

/// The request, read and understood. Nothing is fetched or built yet.
pub struct WantedKernels {
    /// One for each kernel and architecture.
    pub(super) manifests: Vec<Manifest>,
    /// The kernel of this machine, to be measured without a guest.
    pub(super) here: Option<Manifest>,
    pub(super) series: Option<Series>,
    /// The trees' own tests that are built with them.
    tree_tests: Option<tree_tests::WantedTests>,
}

impl WantedKernels {
    /// `named` replaces the suite's own kernels, `arches` the host's own architecture, `models` the
    /// CPUs as which guests boot.
    pub fn new(
        named: &[String],
        arches: &[Arch],
        args: &SeriesOptions,
        models: &[cpu::Named],
        suite: &Suite,
    ) -> Result<WantedKernels> {
        let worlds = cpus::worlds(models, &suite.models)?;
        cpus::check_estimates(suite, &worlds)?;
        let Some(spec) = &args.series else {
            let manifests = match &suite.kernels {
                Kernels::Own(own) if named.is_empty() => of_architectures(own, arches, suite)?,
                Kernels::Same(names) if named.is_empty() => of_all(names, arches)?,
                _ => of_all(named, arches)?,
            };
            let tree_tests = suite.tree_tests(&BTreeSet::new());
            let manifests = in_configurations(manifests, &args.axes, &worlds)?;
            return Ok(WantedKernels { manifests, here: None, series: None, tree_tests });
        };
        let folder = place().series_with(spec);
        let range = Range::parse(spec, &folder);
        let loaded = |spec: &String| series::load(spec, &place().series_with(spec));
        let series = if range.is_none() { Some(loaded(spec)?) } else { None };
        let shipped =
            series.as_ref().and_then(|series| Some(series.shipped.as_ref()?.kernel.clone()));
        let own: Vec<String> = match &suite.kernels {
            Kernels::Same(names) => names.clone(),
            Kernels::Own(own) => {
                let own = asked(own, arches).into_iter().filter_map(|arch| own.get(&arch));
                let names: BTreeSet<&String> = own.flatten().collect();
                names.into_iter().cloned().collect()
            }
        };
        let name = match (named, &shipped, &own[..]) {
            ([name], ..) | ([], Some(name), _) | ([], None, [name]) => name,
            _ => {
                let message = "a series is compared on one kernel: name it with one --kernel";
                return Err(Error::Usage(message.to_owned()));
            }
        };
        let mut manifests = find(name, arches)?;
        if !manifests.iter().all(is_built) {
            let message = format!(
                "kernel {name} is prebuilt, and a series needs one that is built from sources: \
                 give --kernel 6.12-source, a folder of sources, or git:REPOSITORY#REF"
            );
            return Err(Error::Usage(message));
        }
        if let Some(series) = &series {
            fits(series, &manifests)?;
        }
        manifests = of_a_series(manifests, &args.axes, &worlds)?;
        let series = match (series, range) {
            (None, Some(range)) if args.base_patches.is_empty() => {
                of_range(&range, name, &mut manifests)?
            }
            (None, Some(range)) => {
                let message = format!(
                    "{range} are commits, and their sources must be those commits: --base-patches \
                     would change them. Give the commits as patches: git format-patch --stdout \
                     {range} > series.mbox"
                );
                return Err(Error::Usage(message));
            }
            (series, _) => series.expect("what is no range was read"),
        };
        let below = args.base_patches.iter().map(|spec| Ok((spec.clone(), loaded(spec)?)));
        let below = below.collect::<Result<_, series::SeriesError>>()?;
        let mut series = series::onto(series, spec, below)?;
        let arches: BTreeSet<Arch> = manifests.iter().map(|manifest| manifest.arch).collect();
        let of_tree_tests = arches.iter().map(|arch| series.of_tree_tests(*arch));
        let notes: BTreeSet<String> =
            of_tree_tests.filter_map(|options| note_of_tree_tests(&options)).collect();
        series.notes.extend(notes);
        let tree_tests = suite.tree_tests(&files_of_tests(&series));
        Ok(WantedKernels { manifests, here: None, series: Some(series), tree_tests })
    }

    /// The kernel that runs on this machine, whatever the suite names.
    pub fn running() -> Result<WantedKernels> {
        let arch = Arch::host().ok_or_else(|| {
            Error::usage("this machine is neither of x86_64 nor of arm64: its kernel is not known")
        })?;
        let here = Some(tramplab_kernel::running(arch));
        Ok(WantedKernels { manifests: Vec::new(), here, series: None, tree_tests: None })
    }

    /// The same, and its image for guests, which boot as each of the CPUs.
    pub fn running_and_its_image(models: &[cpu::Named], suite: &Suite) -> Result<WantedKernels> {
        let worlds = cpus::worlds(models, &suite.models)?;
        cpus::check_estimates(suite, &worlds)?;
        let wanted = WantedKernels::running()?;
        let image = |here: &Manifest| Manifest {
            name: IMAGE.to_owned(),
            source: Source::Installed,
            ..here.clone()
        };
        let images = wanted.here.iter().map(image).collect();
        let manifests = in_configurations(images, &[], &worlds)?;
        Ok(WantedKernels { manifests, ..wanted })
    }

    /// The kernel that the series goes onto, on the first requested architecture.
    pub fn of_series(&self) -> Option<(&Manifest, &Series)> {
        Some((self.manifests.first()?, self.series.as_ref()?))
    }

    /// The kernels as far as they are known before one is fetched or built, in a run's order, and
    /// how many are built.
    pub fn named(&self, of: &SeriesOptions, suite: &Suite, tell: Tell) -> (Vec<Ready>, usize) {
        let line = |text: &str| tell(Event::Line(text));
        self.series.iter().flat_map(|series| &series.notes).for_each(|note| line(note));
        let (mut kernels, mut builds) = (Vec::new(), 0);
        for manifest in &self.manifests {
            let names = names(&manifest.name, self.series.as_ref(), of.each_patch);
            let mut made: Vec<Ready> =
                names.into_iter().map(|name| unbuilt(manifest, name)).collect();
            let placebos = (1..=of.placebos).map(|number| Ready {
                budgets_of: None,
                ..unbuilt(manifest, placebo_name(manifest, number))
            });
            put_before_the_head(&mut made, placebos);
            // Guests that boot otherwise have the same kernels.
            let same = |other: &&Manifest| other.builds_as(manifest);
            let is_first = self.manifests.iter().find(same) == Some(manifest);
            builds += if is_built(manifest) && is_first { made.len() } else { 0 };
            kernels.extend(made);
        }
        let files = self.series.as_ref().map(files_of_tests).unwrap_or_default();
        if suite.tree_tests(&files).is_some_and(|wanted| !wanted.files.is_empty())
            && !files.is_empty()
        {
            line("tests that the series adds are known once it is built: they are not named");
        }
        let mut recipes = self.manifests.iter().filter_map(|manifest| match &manifest.source {
            Source::Built(recipe) => Some(recipe),
            _ => None,
        });
        let is_configured =
            |recipe: &Recipe| !recipe.config.is_empty() || !recipe.variation.options.is_empty();
        if recipes.any(is_configured) || self.series.is_some() {
            line("patches and options of kernels are checked once a run builds them");
        }
        (kernels, builds)
    }

    /// The kernel of this machine, likewise.
    pub fn named_here(&self) -> Option<Ready> {
        self.here.as_ref().map(|manifest| unbuilt(manifest, manifest.name.clone()))
    }

    /// Rejects options of the user's that no tree has, where the tree is on this machine. A build
    /// rejects them all.
    pub fn check_options(&self, cache: &Cache) -> Result<()> {
        let introduced = self.series.as_ref().map(Series::introduced).unwrap_or_default();
        let mut asked: Vec<(&Tree, Arch, Vec<WantedOption>)> = Vec::new();
        for manifest in &self.manifests {
            let Source::Built(recipe) = &manifest.source else { continue };
            let mut options = recipe.variation.options.clone();
            for path in &recipe.config {
                let (of_file, is_whole) = Fragment::read_any(path).map_err(KernelError::from)?;
                options.extend(of_file.into_iter().filter(|_| !is_whole));
            }
            options.retain(|wanted| {
                wanted.demand == Demand::Always && !introduced.contains(&wanted.option)
            });
            // Points of an axis have one tree, which takes seconds to read.
            let of_tree = (&recipe.tree, manifest.arch);
            match asked.iter_mut().find(|(tree, arch, _)| (*tree, *arch) == of_tree) {
                Some((.., all)) => all.extend(options),
                None => asked.push((&recipe.tree, manifest.arch, options)),
            }
        }
        asked.retain(|(.., options)| !options.is_empty());
        for (tree, arch, options) in asked {
            let Some(folder) = compile::sources_here(tree, cache) else { continue };
            let unmet = kconfig::undefined(&options, &folder, arch);
            let line = |one: &Unmet| format!("{}: {}", one.wanted.place(), one.why);
            let lines: BTreeSet<String> = unmet.iter().map(line).collect();
            if !lines.is_empty() {
                return Err(Error::Usage(lines.into_iter().collect::<Vec<_>>().join("\n")));
            }
        }
        Ok(())
    }

    /// Rejects prebuilt kernels and sources on this machine as a run does. Fetches none.
    pub fn check_files(&self, cache: &Cache, tell: Tell) -> Result<()> {
        for manifest in &self.manifests {
            if let Source::Built(Recipe { tree: Tree::Folder(folder), .. }) = &manifest.source {
                source::check_tree(folder)?;
            }
        }
        for manifest in self.manifests.iter().filter(|manifest| manifest.source.is_here()) {
            let step = &mut |text: &str| tell(Event::Step(text));
            check(&tramplab_kernel::fetch(manifest, cache, step)?)?;
        }
        Ok(())
    }

    /// The requirements on this machine.
    pub fn of_the_host(&self, purpose: Purpose) -> setup::Prerequisites {
        let toolchains = self.manifests.iter().filter_map(|manifest| match &manifest.source {
            Source::Built(recipe) => Some((recipe.toolchain.clone(), manifest.arch)),
            _ => None,
        });
        let emulators = self.arches().into_iter().map(|arch| (arch, purpose)).collect();
        setup::Prerequisites {
            toolchains: toolchains.collect(),
            arches: self.arches(),
            emulators,
            backend: Backend::Qemu,
            tree_tests: self.tree_tests.clone(),
            tests: false,
        }
    }

    /// Each once.
    pub fn arches(&self) -> Vec<Arch> {
        self.here
            .iter()
            .chain(&self.manifests)
            .map(|manifest| manifest.arch)
            .collect::<BTreeSet<_>>()
            .into_iter()
            .collect()
    }
}

/// Fails if the series changes nothing on an architecture: its base would be compared with itself.
fn fits(series: &Series, manifests: &[Manifest]) -> Result<()> {
    let arches = series.shipped.as_ref().map_or(&[][..], |shipped| &shipped.arches);
    let other = manifests.iter().find(|manifest| !arches.contains(&manifest.arch));
    let Some(other) = other.filter(|_| !arches.is_empty()) else { return Ok(()) };
    let names: Vec<&str> = arches.iter().map(|arch| arch.name()).collect();
    let names = names.join(",");
    Err(Error::Usage(format!(
        "the series {} changes nothing on {}: give --arch {names}",
        series.name,
        other.arch.name()
    )))
}

/// Names the options that a series adds for the tree's own tests.
fn note_of_tree_tests(options: &[kconfig::WantedOption]) -> Option<String> {
    let first = options.first()?;
    let names: Vec<String> = options.iter().map(ToString::to_string).collect();
    Some(format!(
        "{} has {}: set in base and head, where the tree has them and their dependencies are met",
        first.path.display(),
        names.join(", ")
    ))
}

/// Commits of the repository that the kernel `name` is built from. A folder has no commit of its
/// own: it is built from the range's base, whatever is checked out there.
fn of_range(range: &Range, name: &str, manifests: &mut [Manifest]) -> Result<Series> {
    let mut read: Option<Series> = None;
    for manifest in manifests {
        let Source::Built(recipe) = &mut manifest.source else {
            unreachable!("a series is put onto what is built")
        };
        let series = match &mut recipe.tree {
            Tree::Git { repository, reference } if !source::is_url(repository) => {
                series::from_range(range, Path::new(repository), Some((name, reference)))?
            }
            Tree::Folder(path) => {
                let series = series::from_range(range, path, None)?;
                let repository = path.to_str().map(str::to_owned);
                let (Some(repository), Some(reference)) = (repository, series.base_commit.clone())
                else {
                    let message = format!(
                        "{} is no path in UTF-8: it cannot be named in a report",
                        path.display()
                    );
                    return Err(Error::Usage(message));
                };
                recipe.tree = Tree::Git { repository, reference };
                series
            }
            _ => {
                let message = format!(
                    "{range} are commits, and kernel {name} comes from no git repository on this \
                     machine: expected --kernel git:REPOSITORY#BASE, or the commits as patches: \
                     --series <(git format-patch --stdout {range})"
                );
                return Err(Error::Usage(message));
            }
        };
        read = Some(series);
    }
    Ok(read.expect("a kernel is for one architecture at least"))
}

/// Each kernel at each point of the axes, in guests that boot as usual or as each CPU of its
/// architecture.
fn in_configurations(
    manifests: Vec<Manifest>,
    axes: &[Axis],
    worlds: &[Option<cpu::Named>],
) -> Result<Vec<Manifest>> {
    let shipped = place().data().join("configs/axes.yaml");
    let values =
        axes.iter().map(|axis| axis::read(axis, &shipped)).collect::<Result<Vec<_>, _>>()?;
    let points = axis::points(&values)?;
    let mut made = Vec::new();
    for manifest in &manifests {
        let fits = |world: &&Option<cpu::Named>| {
            world.as_ref().is_none_or(|model| model.cpu.arch == manifest.arch)
        };
        // No CPU of another architecture takes a kernel away.
        let usual = (!worlds.iter().any(|world| fits(&world))).then_some(&None);
        for world in worlds.iter().filter(fits).chain(usual) {
            let at = |point: &Vec<axis::Value>| axis::at(manifest, point, world.as_ref());
            made.extend(points.iter().map(at).collect::<Result<Vec<_>, _>>()?);
        }
    }
    // A whole configuration that is the only one is the base of later builds of it.
    for recipe in recipes(&mut made).filter(|_| points.len() == 1) {
        recipe.variation.aside &= recipe.variation.folder.is_empty();
        allow_completion(recipe);
    }
    Ok(made)
}

/// Points of an axis are compared: one that is completed in another way would differ in more than
/// its options. A kernel of its own may be.
fn allow_completion(recipe: &mut Recipe) {
    let is_of_file = |wanted: &kconfig::WantedOption| wanted.line > 0;
    recipe.variation.completes =
        !recipe.config.is_empty() || recipe.variation.options.iter().any(is_of_file);
}

fn recipes(manifests: &mut [Manifest]) -> impl Iterator<Item = &mut Recipe> {
    manifests.iter_mut().filter_map(|manifest| match &mut manifest.source {
        Source::Built(recipe) => Some(recipe),
        _ => None,
    })
}

/// The bases of a series: one for each configuration and CPU.
fn of_a_series(
    manifests: Vec<Manifest>,
    axes: &[Axis],
    worlds: &[Option<cpu::Named>],
) -> Result<Vec<Manifest>> {
    let mut manifests = in_configurations(manifests, axes, worlds)?;
    for recipe in recipes(&mut manifests) {
        // The patched kernels start from the objects of this base.
        recipe.variation.aside = false;
        if !recipe.variation.options.is_empty() {
            recipe.variation.folder = "-configured";
        }
    }
    Ok(manifests)
}

pub(super) fn is_built(manifest: &Manifest) -> bool {
    matches!(manifest.source, Source::Built(_))
}

fn of_all(names: &[String], arches: &[Arch]) -> Result<Vec<Manifest>> {
    let found = names.iter().map(|name| find(name, arches)).collect::<Result<Vec<_>>>()?;
    Ok(found.concat())
}

/// Without `arches`, the host's own, or the first that the suite has kernels for.
fn asked(own: &BTreeMap<Arch, Vec<String>>, arches: &[Arch]) -> Vec<Arch> {
    if !arches.is_empty() {
        return arches.to_vec();
    }
    let host = Arch::host().filter(|host| own.contains_key(host));
    host.or_else(|| own.keys().next().copied()).into_iter().collect()
}

fn of_architectures(
    own: &BTreeMap<Arch, Vec<String>>,
    arches: &[Arch],
    suite: &Suite,
) -> Result<Vec<Manifest>> {
    let found = asked(own, arches).into_iter().map(|arch| match own.get(&arch) {
        Some(names) => of_all(names, &[arch]),
        None => Err(Error::Usage(format!(
            "the suite {} has no kernel for {arch}: name one with --kernel",
            suite.name
        ))),
    });
    Ok(found.collect::<Result<Vec<_>>>()?.concat())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rejects_an_architecture_on_which_a_series_changes_nothing() {
        let suite = "name: s\ndescription: d\nkernels: [\"7.2\"]\ntests: [{ boot: {} }]\n";
        let suite: Suite = tramplab_host::config::parse(suite, Path::new("s.yaml")).unwrap();
        let wanted = |series: &str, arches: &[Arch]| {
            let series = SeriesOptions { series: Some(series.to_owned()), ..Default::default() };
            WantedKernels::new(&[], arches, &series, &[], &suite).map(|wanted| wanted.arches())
        };
        for arches in [&[Arch::X86_64][..], &[Arch::X86_64, Arch::Arm64]] {
            let Err(Error::Usage(text)) = wanted("call-ops", arches) else { panic!("{arches:?}") };
            assert!(text.contains("nothing on x86_64: give --arch arm64"), "{text}");
        }
        assert_eq!(wanted("call-ops", &[Arch::Arm64]).unwrap(), [Arch::Arm64]);
        assert_eq!(wanted("lbr-helpers", &[Arch::X86_64]).unwrap(), [Arch::X86_64]);
    }

    /// A run has one kernel of a name.
    #[test]
    fn the_image_of_the_running_kernel_has_a_name_of_its_own() {
        let suite = "name: s\ndescription: d\nkernels: [\"7.2\"]\ntests: [{ boot: {} }]\n";
        let suite: Suite = tramplab_host::config::parse(suite, Path::new("s.yaml")).unwrap();
        let named = |models: &[cpu::Named]| {
            let wanted = WantedKernels::running_and_its_image(models, &suite).unwrap();
            let here = wanted.named_here().map(|ready| ready.facts.name);
            let of_guests = wanted.manifests.iter().map(|manifest| {
                let Manifest { name, configuration, source, .. } = manifest;
                assert_eq!(*source, Source::Installed);
                assert!(configuration.as_ref().is_none_or(|of| of.name() == *name), "{name}");
                name.clone()
            });
            (here.unwrap(), Vec::from_iter(of_guests))
        };
        if Arch::host() != Some(Arch::X86_64) {
            return;
        }
        let here = "running".to_owned();
        assert_eq!(named(&[]), (here.clone(), vec!["running-image".to_owned()]));
        let cpus = ["zen4", "skylake"].map(|name| cpus::load(name).unwrap());
        let images = ["running-image+zen4", "running-image+skylake"].map(str::to_owned);
        assert_eq!(named(&cpus), (here, images.to_vec()));
    }

    #[test]
    fn a_series_is_built_in_each_configuration() {
        let kernel = || find("6.12-source", &[Arch::X86_64]).unwrap();
        let made = |axis: &str, worlds: &[Option<cpu::Named>]| {
            let made = of_a_series(kernel(), &[axis.parse().unwrap()], worlds).unwrap();
            let told = made.into_iter().map(|manifest| {
                let Source::Built(recipe) = manifest.source else { panic!("it is built") };
                (manifest.name, recipe.variation.aside, recipe.variation.folder)
            });
            told.collect::<Vec<_>>()
        };
        let built = |name: &str| (format!("6.12-source+{name}"), false, "-configured");
        assert_eq!(
            made("preempt=none,full", &[None]),
            [built("preempt-none"), built("preempt-full")]
        );
        // Only the guest differs: the kernel's own build is the base.
        let booted = |name: &str| (format!("6.12-source+{name}"), false, "");
        let zen4 = cpus::load("zen4").unwrap();
        assert_eq!(made("cpus=2", &[None, Some(zen4)]), [booted("cpus-2"), booted("zen4+cpus-2")]);
        // A CPU of another architecture leaves the kernel as it is.
        let n1 = cpus::load("neoverse-n1").unwrap();
        assert_eq!(made("cpus=2", &[Some(n1)]), [booted("cpus-2")]);
    }
}
