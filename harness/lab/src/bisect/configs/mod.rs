// SPDX-License-Identifier: MIT OR Apache-2.0
//! Bisection between two configurations of a kernel.
//!
//! A search tests sets of differences on the good configuration. The configuration that make gives
//! for a set counts, not the set: it drops options whose dependencies are missing and sets those
//! that others select. Sets with one configuration are one candidate, named by its hash.
//!
//! ```text
//! FOLDER/configs/ID.config    a configuration as make gave it
//! FOLDER/configs/sets.json    the configuration of each set
//! FOLDER/without.config, with.config   the result, for `vm-test --config-axis`
//! ```

mod differences;
mod ends;
#[cfg(test)]
mod tests;

use super::{
    Identity,
    narrow::Set,
    options::{BisectOptions, Configs},
    setting::{Setting, quoted},
    state::Sources,
    walk::{Answer, Bisection},
};
use crate::{
    error::{Context, Error, Result},
    event::{Event, Tell},
    kernels,
    place::place,
};
use differences::Differences;
use ends::Ends;
use serde::{Deserialize, Serialize};
use sha2::{Digest, Sha256};
use std::{
    collections::{BTreeMap, BTreeSet},
    fs,
    path::{Path, PathBuf},
};
use tramplab_host::{regular, runs::MOST_BYTES};
use tramplab_kernel::{
    KernelError, Manifest, Recipe, Source, Variation, axis,
    kconfig::{self, Demand, Fragment, Fragments, WantedOption},
    source,
};
use tramplab_model::{name::hex, run::Arch};

/// Differences that are named in one line.
const NAMED: usize = 8;

/// The value of each option; `n` for one that is not set.
type Values = BTreeMap<String, String>;

pub fn bisect(options: &BisectOptions, range: &Configs, tell: Tell) -> Result<Answer> {
    let setting = Setting::new(options, tell)?;
    let arches: Vec<Arch> = options.arch.into_iter().collect();
    let manifest = kernels::find(&range.kernel, &arches)?.remove(0);
    let recipe = recipe(&manifest, range)?;
    let arch = manifest.arch;
    let sources =
        source::resolve(&recipe.tree, &setting.cache, &mut |text| tell(Event::Step(text)))?;
    let sides = Sides::read(range, arch)?;
    let asked = Identity {
        question: options.metric.to_string(),
        sources: Sources::Configs {
            kernel: range.kernel.clone(),
            digest: sources.digest,
            base_sha256: sha256(&Fragments::merge(sides.base.clone()).text()),
        },
        good: sides.good.id.clone(),
        bad: sides.bad.id.clone(),
        arch,
        accel: setting.accel.clone(),
        by_hand: false,
        model: setting.model.clone(),
    };
    let suite = options.metric.suite(vec![range.kernel.clone()]);
    let (lab, place, lock) = setting.open(&asked, suite, options, &[arch])?;
    let preparing = setting.preparing(&lab, &place);
    let files = Files::new(place.folder.path())?;
    let at = |id: &str, options| sides.point(&manifest, id, options);
    sides.overridden().iter().for_each(|conflict| setting.tell(conflict));
    let configured = |options: Vec<WantedOption>| -> Result<(Values, PathBuf)> {
        let (text, tree) = preparing.configured(&at(&sides.bad.id, options))?;
        Ok((values(&text)?, tree))
    };
    let ends = Ends::make(&sides, &files, &configured, arch)?;
    ends.told(range).iter().for_each(|line| setting.tell(line));
    if ends.units.is_empty() {
        return Err(Error::Usage(format!(
            "there is nothing to search: make gives the same configuration for {} and {}. An \
             option that the tree lacks, or whose dependencies are missing, is dropped",
            range.good.display(),
            range.bad.display()
        )));
    }
    let overlaid = |set: &Values| configured(wanted(set)).map(|(values, _)| values);
    let folder = place.folder.path().to_owned();
    let space = Differences {
        names: [&range.good, &range.bad].map(|path| path.display().to_string()),
        ids: [sides.good.id.clone(), sides.bad.id.clone()],
        sets: files.sets()?,
        units: ends.units.clone(),
        good: ends.good.clone(),
        bad: ends.bad.clone(),
        files: &files,
        configure: &overlaid,
    };
    let mut make = |id: &str| {
        let options = Fragment::read(&files.config(id)).map_err(KernelError::from)?;
        let mut ready = preparing.tried(&at(id, options))?;
        // The configurations are the candidates, not the means by which all are made.
        if let Some(build) = &mut ready.build {
            build.means.config_sha256.clear();
        }
        Ok(ready)
    };
    let reproduce = |_: &str, _: &str| {
        let [without, with] =
            ["without.config", "with.config"].map(|name| folder.join(name).display().to_string());
        format!(
            "--kernel {} --config-axis {}",
            quoted(&range.kernel),
            quoted(&format!("config={without},{with}"))
        )
    };
    Bisection::new(&setting, &lab, place.clone(), lock, space, &reproduce, &mut make)?.search()
}

/// The recipe of a kernel that is built here.
fn recipe<'m>(manifest: &'m Manifest, range: &Configs) -> Result<&'m Recipe> {
    match &manifest.source {
        Source::Built(recipe) => Ok(recipe),
        _ => Err(Error::Usage(format!(
            "kernel {} is prebuilt, and its configuration cannot be changed: give --kernel \
             6.12-source, a folder of sources, or git:REPOSITORY#REF",
            range.kernel
        ))),
    }
}

fn sha256(text: &str) -> String {
    hex(&Sha256::digest(text))
}

fn values(text: &str) -> Result<Values> {
    let wanted = Fragment::parse(text, Path::new(".config")).map_err(KernelError::from)?;
    Ok(wanted.into_iter().map(|wanted| (wanted.option, wanted.value)).collect())
}

fn wanted(values: &Values) -> Vec<WantedOption> {
    let one = |(option, value): (&String, &String)| WantedOption {
        option: option.clone(),
        value: value.clone(),
        path: "the configuration".into(),
        line: 0,
        demand: Demand::Never,
    };
    values.iter().map(one).collect()
}

fn text(values: &Values) -> String {
    Fragments::merge(wanted(values)).text()
}

fn value<'v>(values: &'v Values, option: &str) -> &'v str {
    values.get(option).map_or("n", String::as_str)
}

/// The two files, before make has seen them.
struct Sides {
    good: Side,
    bad: Side,
    /// The options that every guest needs, and so both ends have.
    base: Vec<WantedOption>,
    /// One of them is a whole `.config`.
    is_whole: bool,
}

struct Side {
    /// Hash of the file.
    id: String,
    options: Vec<WantedOption>,
}

impl Sides {
    /// The kernel in the configuration `id`.
    fn point(&self, manifest: &Manifest, id: &str, options: Vec<WantedOption>) -> Manifest {
        let mut manifest = manifest.clone();
        if let Source::Built(recipe) = &mut manifest.source {
            let folder = if self.is_whole { axis::WHOLE } else { "" };
            let aside = !self.is_whole || id != self.good.id;
            recipe.variation = Variation { options, aside, folder, ..Variation::default() };
        }
        manifest.name = format!("{}+{}", manifest.name, &id[..12]);
        manifest
    }

    fn read(range: &Configs, arch: Arch) -> Result<Sides> {
        let mut is_whole = false;
        let mut side = |path: &Path| -> Result<Side> {
            let (mut options, of_make) = Fragment::read_any(path).map_err(KernelError::from)?;
            // A whole `.config` has options of other trees and tools.
            options.iter_mut().for_each(|wanted| wanted.demand = Demand::Never);
            let text = fs::read_to_string(path)?;
            is_whole |= of_make;
            Ok(Side { id: sha256(&text), options })
        };
        let (good, bad) = (side(&range.good)?, side(&range.bad)?);
        if good.id == bad.id {
            return Err(Error::Usage(format!(
                "{} and {} are the same: there is nothing to find between them",
                range.good.display(),
                range.bad.display()
            )));
        }
        let file = place().fragments()?.join("base.config");
        let mut base = Fragment::read(&file).map_err(KernelError::from)?;
        base.extend(kconfig::needed("what every guest needs", &kconfig::required_base(arch)));
        Ok(Sides { good, bad, base, is_whole })
    }

    /// The options of a side: the user's, and over them those that guests need.
    fn options(&self, side: &Side) -> Vec<WantedOption> {
        side.options.iter().chain(&self.base).cloned().collect()
    }

    /// The user's options that do not count.
    fn overridden(&self) -> Vec<String> {
        let of = |side: &Side| Fragments::merge(self.options(side)).conflicts;
        let own: BTreeSet<&Path> = self.base.iter().map(|wanted| wanted.path.as_path()).collect();
        let conflicts = [&self.good, &self.bad].into_iter().flat_map(of);
        conflicts
            .filter(|conflict| own.contains(conflict.later.path.as_path()))
            .map(|conflict| conflict.to_string())
            .collect()
    }
}

/// The folder of a bisection, with the configurations that were made.
struct Files {
    folder: PathBuf,
}

/// A set of differences, and the configuration that make gave for it.
#[derive(Serialize, Deserialize)]
struct Recorded {
    differences: Set,
    config: String,
}

impl Files {
    fn new(folder: &Path) -> Result<Files> {
        let configs = folder.join("configs");
        fs::create_dir_all(&configs)
            .with_context(|| format!("failed to create {}", configs.display()))?;
        Ok(Files { folder: folder.to_owned() })
    }

    fn config(&self, id: &str) -> PathBuf {
        self.folder.join("configs").join(format!("{id}.config"))
    }

    fn load(&self, id: &str) -> Option<Values> {
        let bytes = regular::read(&self.config(id), MOST_BYTES).ok()?;
        values(&String::from_utf8(bytes).ok()?).ok()
    }

    fn save(&self, path: &Path, values: &Values) -> Result<()> {
        tramplab_host::cache::write_whole(path, text(values).as_bytes())
            .with_context(|| format!("failed to write {}", path.display()))
    }

    fn sets(&self) -> Result<BTreeMap<Set, String>> {
        let Ok(bytes) = regular::read(&self.folder.join("configs/sets.json"), MOST_BYTES) else {
            return Ok(BTreeMap::new());
        };
        let recorded: Vec<Recorded> = serde_json::from_slice(&bytes)?;
        // In a stranger's folder a name may lead elsewhere.
        let is_id = |one: &Recorded| one.config.bytes().all(|byte| byte.is_ascii_hexdigit());
        Ok(recorded.into_iter().filter(is_id).map(|one| (one.differences, one.config)).collect())
    }

    fn save_sets(&self, sets: &BTreeMap<Set, String>) -> Result<()> {
        let one = |(differences, config): (&Set, &String)| Recorded {
            differences: differences.clone(),
            config: config.clone(),
        };
        let recorded: Vec<Recorded> = sets.iter().map(one).collect();
        let path = self.folder.join("configs/sets.json");
        tramplab_host::cache::write_whole(&path, &serde_json::to_vec(&recorded)?)
            .with_context(|| format!("failed to write {}", path.display()))
    }
}
