// SPDX-License-Identifier: MIT OR Apache-2.0
//! Modelled CPUs by their names: `configs/cpus/NAME.yaml`, the user's own folder, or a file.

use crate::{
    error::{Error, Result},
    place::{Place, place, typed_name},
};
use std::{collections::BTreeSet, convert::Infallible, path::Path, str::FromStr};
use tramplab_analysis::branch::Model;
use tramplab_host::config;
use tramplab_model::{
    cpu::{Branches, Cpu, FAMILIES, Named},
    name::is_name_char,
    run::{Arch, Kernel, Run, option},
    text,
};
use tramplab_protocol::switches;
use tramplab_suite::Suite;

/// An argument of `--model`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum AskedCpu {
    /// Only the branch records of a family of CPUs. Guests boot as usual.
    Family(Model),
    /// A CPU's name or file.
    Cpu(String),
}

impl FromStr for AskedCpu {
    type Err = Infallible;

    fn from_str(text: &str) -> std::result::Result<AskedCpu, Infallible> {
        Ok(text.parse().map_or_else(|_| AskedCpu::Cpu(text.to_owned()), AskedCpu::Family))
    }
}

/// The guests that boot as no CPU.
const USUAL: &str = "usual";
/// The longest name of a CPU, in bytes.
const LONGEST: usize = 40;

/// A model as reports take it.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Modelled {
    pub family: Option<Model>,
    /// The CPU's own depth, in records.
    pub depth: Option<u32>,
    /// The CPU's name. It is not of guests that booted as another.
    pub cpu: Option<String>,
}

/// Reads a CPU's file.
pub fn load(name: &str) -> Result<Named> {
    let is_file = name.contains('/') || name.ends_with(".yaml");
    if !is_file {
        return of_file(&place().cpu(name).map_err(|error| {
            Error::Usage(format!(
                "{}; families of branch records: {}; a file has a slash: ./{name}",
                error.told(),
                FAMILIES.join(", ")
            ))
        })?);
    }
    let cpu = of_file(Path::new(name))?;
    // A run's kernels, budgets and histories know a CPU by its name alone.
    let known = place().cpus().contains(&cpu.name).then(|| load(&cpu.name)).transpose()?;
    match known.filter(|known| known.cpu != cpu.cpu) {
        Some(_) => Err(Error::Usage(format!(
            "{name}: another CPU is called {}: rename the file",
            cpu.name
        ))),
        None => Ok(cpu),
    }
}

fn of_file(path: &Path) -> Result<Named> {
    let cpu: Cpu = config::load(path)?;
    let wrong = |why: String| Error::Usage(format!("{}: {why}", path.display()));
    check_branches(&cpu).map_err(wrong)?;
    let parts = cpu.cycles.as_ref().map(|cycles| cycles.parts(cpu.returns.as_ref()));
    parts.transpose().map_err(|why| wrong(format!("cycles: {why}")))?;
    check_words(&cpu.mitigations.append).map_err(|why| wrong(format!("mitigations: {why}")))?;
    let stem = path.file_stem().and_then(|stem| stem.to_str()).unwrap_or_default();
    let is_plain = |c: char| is_name_char(c) && c != '+';
    let is_taken = stem == USUAL || FAMILIES.contains(&stem);
    if stem.is_empty() || stem.len() > LONGEST || is_taken || !stem.chars().all(is_plain) {
        return Err(wrong(format!(
            "a CPU has the name of its file, which kernels are named after: expected at most \
             {LONGEST} letters, digits, `.`, `_` and `-`, and neither a family nor `{USUAL}`"
        )));
    }
    Ok(Named { name: stem.to_owned(), cpu })
}

/// Without a word for all mitigations a guest would boot with tramplab's `mitigations=off`.
fn check_words(append: &[String]) -> std::result::Result<(), String> {
    let is_word =
        |word: &&String| !word.is_empty() && word.chars().all(|c| c.is_ascii_graphic() && c != '"');
    if let Some(word) = append.iter().find(|word| !is_word(word)) {
        return Err(format!(
            "{word:?} is no word of a command line: expected one a line of the list"
        ));
    }
    if !append.iter().any(|word| option(word) == "mitigations") {
        return Err(
            "expected a word `mitigations=…`: other guests boot with mitigations=off".into()
        );
    }
    switches::objection(append).map_or(Ok(()), Err)
}

fn check_branches(cpu: &Cpu) -> std::result::Result<(), String> {
    let Branches { family, depth, none, .. } = &cpu.branches;
    let (family, depth) = match (family, depth, none) {
        (Some(family), Some(depth), None) => (family, depth),
        (None, None, Some(_)) => return Ok(()),
        _ => return Err("branches: expected `family` and `depth`, or `none`".to_owned()),
    };
    let known = family.parse::<Model>().ok().filter(|model| model.arch() == cpu.arch);
    let Some(model) = known else {
        let of_arch: Vec<&str> = Model::of(cpu.arch).map(Model::name).collect();
        return Err(format!(
            "branches: no family `{family}` of {}: expected {}",
            cpu.arch,
            of_arch.join(", ")
        ));
    };
    if !model.depths().contains(depth) {
        let depths: Vec<String> = model.depths().iter().map(u32::to_string).collect();
        return Err(format!(
            "branches: {family} has no depth of {depth}: expected {}",
            depths.join(", ")
        ));
    }
    Ok(())
}

/// The CPUs that are asked for by name.
pub fn named(asked: &[AskedCpu]) -> Result<Vec<Named>> {
    let names = asked.iter().filter_map(|asked| match asked {
        AskedCpu::Cpu(name) => Some(name),
        AskedCpu::Family(_) => None,
    });
    let cpus = names.map(|name| load(name)).collect::<Result<Vec<_>>>()?;
    let is_again = |at: usize| cpus[..at].iter().any(|other| other.name == cpus[at].name);
    match (0..cpus.len()).find(|&at| is_again(at)) {
        Some(at) => Err(Error::Usage(format!("--model names {} twice", cpus[at].name))),
        None => Ok(cpus),
    }
}

/// How guests boot: as usual, or as a CPU. A suite that names CPUs measures both.
pub(crate) fn worlds(typed: &[Named], of_suite: &[String]) -> Result<Vec<Option<Named>>> {
    let cpus = match typed {
        [] => of_suite.iter().map(|name| of_suite_named(name)).collect::<Result<Vec<_>>>()?,
        typed => typed.to_vec(),
    };
    let usual = (cpus.is_empty() || !of_suite.is_empty()).then_some(None);
    Ok(usual.into_iter().chain(cpus.into_iter().map(Some)).collect())
}

/// Rejects estimates if no guest boots as a CPU that has them.
pub(crate) fn check_estimates(suite: &Suite, worlds: &[Option<Named>]) -> Result<()> {
    let has_cycles =
        |world: &Option<Named>| world.as_ref().is_some_and(|it| it.cpu.cycles.is_some());
    match suite.estimates() && !worlds.iter().any(has_cycles) {
        true => Err(Error::usage(
            "estimated cycles are of a CPU whose file has `cycles`: name one, as --model zen4 or \
             neoverse-n1",
        )),
        false => Ok(()),
    }
}

/// The CPUs whose branch records are played: the typed ones, else those of the suite. Guests that
/// boot as usual have none.
pub(crate) fn played(asked: &[AskedCpu], typed: &[Named], suite: &mut Suite) -> Result<Vec<Named>> {
    let of_suite = std::mem::take(&mut suite.models);
    let is_family = asked.iter().any(|one| matches!(one, AskedCpu::Family(_)));
    let cpus = match typed {
        [] => of_suite.iter().map(|name| of_suite_named(name)).collect::<Result<_>>()?,
        typed => typed.to_vec(),
    };
    match is_family || cpus.is_empty() {
        true => Err(none_to_play()),
        false => Ok(cpus),
    }
}

pub fn none_to_play() -> Error {
    Error::usage(
        "--branches emulated plays the branch records of a CPU: name one, not a family: --model \
         zen4, golden-cove or skylake; for arm64 a file of your own, as docs/emulated.md has one",
    )
}

/// A suite may be a stranger's: it names no file.
fn of_suite_named(name: &str) -> Result<Named> {
    if !name.chars().all(is_name_char) {
        return Err(Error::Usage(format!(
            "models: `{name}` is no name of a CPU; a file is named by --model"
        )));
    }
    of_file(&place().cpu(name)?)
}

/// The model that a report asks for. A CPU as which no guest of the runs booted is refused: its
/// mitigations change the branches.
pub fn of_report(asked: &[AskedCpu], runs: &[&Run]) -> Result<Modelled> {
    match asked {
        [] => Ok(Modelled::default()),
        [AskedCpu::Family(family)] => {
            check_arch(family.name(), family.arch(), &arches(runs))?;
            Ok(Modelled { family: Some(*family), ..Modelled::default() })
        }
        [AskedCpu::Cpu(name)] => of_booted(name, runs),
        [..] => Err(Error::usage("--model takes one CPU here; vm-test boots guests as several")),
    }
}

/// The architectures of the runs' kernels, each once.
fn arches(runs: &[&Run]) -> Vec<Arch> {
    let kernels = runs.iter().flat_map(|run| &run.kernels);
    let arches: BTreeSet<Arch> = kernels.map(|kernel| kernel.arch).collect();
    arches.into_iter().collect()
}

fn of_booted(name: &str, runs: &[&Run]) -> Result<Modelled> {
    let booted = |name: &str| {
        let mut cpus = runs.iter().flat_map(|run| &run.kernels).filter_map(Kernel::cpu);
        cpus.find(|cpu| cpu.name == name).cloned()
    };
    // A run keeps the CPU, whatever its file says today.
    if let Some(kept) = booted(name) {
        return Ok(Modelled::of(&kept));
    }
    let cpu = load(name)?;
    check_arch(&cpu.name, cpu.cpu.arch, &arches(runs))?;
    match (booted(&cpu.name), runs) {
        (Some(kept), _) => Ok(Modelled::of(&kept)),
        (None, []) => Ok(Modelled::of(&cpu)),
        (None, [run, ..]) => {
            let reinterpret = cpu.cpu.branches.family.map_or_else(String::new, |family| {
                format!("; --model {family} reads the records that there are")
            });
            Err(Error::Usage(format!(
                "no guest of run {} booted as {}, and mitigations change the branches: measure it \
                 by {} vm-test --suite {} --model {}{reinterpret}",
                text::line(&run.id),
                cpu.name,
                typed_name(),
                shell_words::quote(&text::line(&run.suite.name)),
                shell_words::quote(name),
            )))
        }
    }
}

impl Modelled {
    fn of(cpu: &Named) -> Modelled {
        let branches = &cpu.cpu.branches;
        let family = Model::of_branches(branches);
        Modelled { family, depth: branches.depth, cpu: Some(cpu.name.clone()) }
    }
}

/// The model of a new run's report: its CPUs are shown as their guests booted.
pub fn of_new_run(asked: &[AskedCpu]) -> Result<Modelled> {
    let families: Vec<Model> = asked
        .iter()
        .filter_map(|asked| match asked {
            AskedCpu::Family(family) => Some(*family),
            AskedCpu::Cpu(_) => None,
        })
        .collect();
    match families[..] {
        [] => Ok(Modelled::default()),
        [family] => Ok(Modelled { family: Some(family), ..Modelled::default() }),
        [..] => Err(Error::usage("--model takes one family of branch records, and any CPUs")),
    }
}

/// Rejects a model of another architecture than these.
pub fn check(asked: &[AskedCpu], cpus: &[Named], arches: &[Arch]) -> Result<()> {
    let families = asked.iter().filter_map(|asked| match asked {
        AskedCpu::Family(model) => Some((model.name(), model.arch())),
        AskedCpu::Cpu(_) => None,
    });
    let cpus = cpus.iter().map(|cpu| (cpu.name.as_str(), cpu.cpu.arch));
    families.chain(cpus).try_for_each(|(name, of)| check_arch(name, of, arches))
}

fn check_arch(name: &str, of: Arch, arches: &[Arch]) -> Result<()> {
    if arches.is_empty() || arches.contains(&of) {
        return Ok(());
    }
    let fitting = arches.iter().flat_map(|&arch| Model::of(arch)).map(Model::name);
    let arches = Vec::from_iter(arches.iter().map(|arch| arch.name())).join(", ");
    Err(Error::Usage(format!(
        "{name} is of {of}; families of {arches} are: {}",
        Vec::from_iter(fitting).join(", ")
    )))
}

/// The names that `--model` takes.
pub fn names(place: &Place) -> Vec<String> {
    place.cpus().into_iter().chain(FAMILIES.map(str::to_owned)).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn reads_every_cpu_that_is_shipped() {
        let names = place().cpus();
        assert!(names.len() >= 6, "{names:?}");
        for name in names {
            let cpu = load(&name).unwrap();
            assert_eq!(cpu.name, name);
            assert_eq!(cpu.recordless().is_some(), Modelled::of(&cpu).depth.is_none(), "{name}");
        }
        // The schema names the families, which the analysis knows.
        assert_eq!(FAMILIES.map(|name| name.parse::<Model>().unwrap()), Model::ALL);
    }

    /// The page's file, under the name that it has there.
    #[test]
    fn reads_the_cpu_of_the_page_on_emulated_records() {
        let page = include_str!("../../../docs/emulated.md");
        let (_, file) = page.split_once("    # any-arm.yaml\n").unwrap();
        let lines = file.lines().map_while(|line| line.strip_prefix("    "));
        let text: String = lines.map(|line| format!("{line}\n")).collect();
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("any-arm.yaml");
        std::fs::write(&path, text).unwrap();
        let cpu = load(path.to_str().unwrap()).unwrap().cpu;
        assert_eq!((cpu.arch, cpu.branches.played()), (Arch::Arm64, Some("brbe:32".to_owned())));
        assert!(page.contains("--model ./any-arm.yaml"));
    }

    #[test]
    fn plays_the_typed_cpus_or_those_of_the_suite() {
        let skylake = || load("skylake").unwrap();
        for (typed, of_suite, expected) in [
            (vec![], vec!["zen4"], Some(vec!["zen4"])),
            (vec![skylake()], vec!["zen4"], Some(vec!["skylake"])),
            (vec![skylake()], vec![], Some(vec!["skylake"])),
            (vec![], vec![], None),
        ] {
            let models: Vec<String> = of_suite.into_iter().map(str::to_owned).collect();
            let text = format!(
                "name: t\ndescription: d\nkernels: [a]\nmodels: {models:?}\ntests: [{{lbr_waste: \
                 {{mechanisms: [fexit]}}}}]\n"
            );
            let mut suite: Suite = config::parse(&text, Path::new("t.yaml")).unwrap();
            let found = played(&[], &typed, &mut suite).ok();
            let names = found.map(|cpus| cpus.into_iter().map(|cpu| cpu.name).collect::<Vec<_>>());
            let expected = expected.map(|all| all.into_iter().map(str::to_owned).collect());
            assert_eq!(names, expected);
            // No guest boots as usual.
            assert!(suite.models.is_empty());
            let family = [AskedCpu::Family(Model::AmdLbrV2)];
            assert!(played(&family, &[skylake()], &mut suite).is_err());
        }
    }

    #[test]
    fn a_suite_that_names_cpus_measures_both_worlds() {
        let of_suite = ["zen4".to_owned()];
        let skylake = load("skylake").unwrap();
        let names = |typed: &[Named], of_suite: &[String]| -> Vec<Option<String>> {
            let worlds = worlds(typed, of_suite).unwrap();
            worlds.into_iter().map(|world| world.map(|cpu| cpu.name)).collect()
        };
        let [zen4, of_typed] = ["zen4", "skylake"].map(|name| Some(name.to_owned()));
        assert_eq!(names(&[], &[]), [None]);
        assert_eq!(names(&[], &of_suite), [None, zen4]);
        // Typed ones replace the suite's.
        assert_eq!(names(std::slice::from_ref(&skylake), &of_suite), [None, of_typed.clone()]);
        assert_eq!(names(&[skylake], &[]), [of_typed]);
    }
}
