// SPDX-License-Identifier: MIT OR Apache-2.0
//! Configuration axes: one kernel in several configurations.
//!
//! An axis is a name in `configs/axes.yaml` or in a file of the user's, an option of the kernel
//! (`CONFIG_FOO=n,y`), or a list of fragments or whole `.config` files (`base=a.config,b.config`).

use super::{
    KernelError, Toolchain,
    kconfig::{Fragment, WantedOption},
    manifest::{Manifest, Source},
};
use schemars::{JsonSchema, Schema, schema_for};
use serde::Deserialize;
use std::{
    collections::{BTreeMap, BTreeSet},
    num::NonZeroU32,
    path::{Path, PathBuf},
    str::FromStr,
};
use tramplab_host::{
    config::{self, Spanned},
    regular,
};
use tramplab_model::{
    cpu,
    run::{Arch, Configuration, Setting, option, with_words},
};
use tramplab_protocol::switches;

/// Suffix of the build folder for whole configurations, whose objects are of no use to the kernel's
/// own.
pub const WHOLE: &str = "-config";
/// More kernels than a night builds.
const MOST: usize = 64;

/// The argument of `--config-axis`: `[FILE.yaml:]NAME=VALUE,…`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Axis {
    /// The user's own file of axes.
    pub file: Option<PathBuf>,
    pub name: String,
    /// The first is what the others are compared with.
    pub values: Vec<String>,
}

#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("expected [FILE.yaml:]NAME=VALUE,VALUE…, each value once: preempt=none,full")]
pub struct BadAxis;

impl Axis {
    /// The axis of one file, with the options of a configuration.
    pub fn of_config(file: &str) -> Axis {
        let file = if file.contains('/') { file.to_owned() } else { format!("./{file}") };
        Axis { file: None, name: "config".to_owned(), values: vec![file] }
    }
}

impl FromStr for Axis {
    type Err = BadAxis;

    fn from_str(text: &str) -> Result<Axis, BadAxis> {
        let (place, values) = text.split_once('=').ok_or(BadAxis)?;
        let (file, name) = match place.rsplit_once(':') {
            Some((file, name)) => (Some(PathBuf::from(file)), name),
            None => (None, place),
        };
        let values: Vec<String> = values.split(',').map(str::to_owned).collect();
        let is_each_once = values.iter().collect::<BTreeSet<_>>().len() == values.len();
        if name.is_empty() || values.iter().any(String::is_empty) || !is_each_once {
            return Err(BadAxis);
        }
        Ok(Axis { file, name: name.to_owned(), values })
    }
}

/// One value of an axis, and how it changes a kernel or its guest.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Value {
    pub setting: Setting,
    options: Vec<WantedOption>,
    /// A whole `.config`.
    whole: Option<PathBuf>,
    toolchain: Option<Toolchain>,
    append: Vec<String>,
    shows: Vec<String>,
    cpus: Option<NonZeroU32>,
    /// None: every architecture.
    arch: Option<Vec<Arch>>,
}

impl Value {
    fn new(axis: &str, value: &str, options: Vec<WantedOption>) -> Value {
        let setting = Setting { axis: axis.to_owned(), value: value.to_owned() };
        let (append, shows) = (Vec::new(), Vec::new());
        Value {
            setting,
            options,
            whole: None,
            toolchain: None,
            append,
            shows,
            cpus: None,
            arch: None,
        }
    }

    /// True if it needs a kernel of its own.
    fn is_built(&self) -> bool {
        !self.options.is_empty() || self.whole.is_some() || self.toolchain.is_some()
    }
}

/// A file of axes: name, value, change.
type Axes = BTreeMap<String, BTreeMap<String, Spanned<Fields>>>;

/// The JSON Schema of a file of axes.
pub fn schema() -> Schema {
    let mut schema = schema_for!(Axes);
    schema.insert("title".to_owned(), "tramplab axes".into());
    schema
}

/// How a value changes a kernel or its guest.
#[derive(Debug, Default, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields, default)]
#[schemars(rename = "Value")]
struct Fields {
    /// Options of the kernel, as in its configuration.
    config: Vec<String>,
    /// Builds the kernel.
    toolchain: Option<Toolchain>,
    /// Words of the kernel's command line.
    append: Vec<String>,
    /// Mitigations that the guest must have: `NAME: STATE`, where NAME is a file of
    /// `/sys/devices/system/cpu/vulnerabilities` and STATE a part of what it says. A guest without
    /// them is skipped.
    shows: Vec<String>,
    /// The number of the guest's CPUs.
    cpus: Option<NonZeroU32>,
    /// The architectures that have the value. All if left out.
    arch: Option<Vec<Arch>>,
}

impl Fields {
    fn value(&self, setting: &Setting) -> Result<Value, String> {
        if let Some(why) = switches::objection(&self.append) {
            return Err(why);
        }
        Ok(Value {
            toolchain: self.toolchain.clone(),
            append: self.append.clone(),
            shows: self.shows.clone(),
            cpus: self.cpus,
            arch: self.arch.clone(),
            ..Value::new(&setting.axis, &setting.value, options(setting, &self.config.join("\n"))?)
        })
    }
}

/// Options that a setting wants. An error about one names the setting.
fn options(setting: &Setting, lines: &str) -> Result<Vec<WantedOption>, String> {
    let place = PathBuf::from(format!("axis {setting}"));
    let wanted = Fragment::parse(lines, &place).map_err(|error| error.to_string())?;
    Ok(wanted.into_iter().map(|wanted| WantedOption { line: 0, ..wanted }).collect())
}

/// Reads the values of an axis. `shipped` is the file of the axes that tramplab knows.
pub fn read(axis: &Axis, shipped: &Path) -> Result<Vec<Value>, KernelError> {
    let file = axis.file.as_deref().unwrap_or(shipped);
    let known: Axes = config::load(file)?;
    let error = |reason: String| KernelError::Axis { axis: axis.name.clone(), reason };
    let setting = |value: &String| Setting { axis: axis.name.clone(), value: value.to_owned() };
    if axis.name == Setting::MODEL {
        return Err(error("CPUs are named by --model".to_owned()));
    }
    if let Some(values) = known.get(&axis.name) {
        let of_file = |value: &String| -> Result<Value, KernelError> {
            let fields = values.get(value).ok_or_else(|| {
                let known: Vec<&str> = values.keys().map(String::as_str).collect();
                error(format!(
                    "no value `{value}` in {}; expected one of {}",
                    file.display(),
                    known.join(", ")
                ))
            })?;
            let read = fields.value.value(&setting(value));
            Ok(read.map_err(|message| config::invalid(file, fields, message))?)
        };
        return axis.values.iter().map(of_file).collect();
    }
    if axis.name.starts_with("CONFIG_") {
        let raw = |value: &String| {
            let line = match value.as_str() {
                "n" => format!("# {} is not set", axis.name),
                _ => format!("{}={value}", axis.name),
            };
            let options = options(&setting(value), &line).map_err(error)?;
            Ok(Value::new(&axis.name, value, options))
        };
        return axis.values.iter().map(raw).collect();
    }
    if axis.values.iter().all(|value| value.ends_with(".config") || value.contains('/')) {
        return axis.values.iter().map(|value| of_config(&axis.name, value)).collect();
    }
    let names: Vec<&str> = known.keys().map(String::as_str).collect();
    Err(error(format!(
        "no axis of this name in {}; expected one of {}, an option (CONFIG_FOO=n,y) or fragments \
         (NAME=a.config,b.config)",
        file.display(),
        names.join(", ")
    )))
}

fn of_config(axis: &str, value: &str) -> Result<Value, KernelError> {
    let path = Path::new(value);
    let name = path.file_name().unwrap_or_default().to_string_lossy();
    // The pipe of `<(…)` has the number of its descriptor as its only name.
    let name = if regular::is_of_shell(path) { format!("pipe{name}").into() } else { name };
    let stem = name.strip_suffix(".config").filter(|stem| !stem.is_empty()).unwrap_or(&name);
    let (options, is_whole) = Fragment::read_any(path)?;
    if is_whole {
        let whole = Some(path.to_owned());
        return Ok(Value { whole, ..Value::new(axis, stem, Vec::new()) });
    }
    Ok(Value::new(axis, stem, options))
}

/// All combinations of values, the last axis first to change.
pub fn points(axes: &[Vec<Value>]) -> Result<Vec<Vec<Value>>, KernelError> {
    let mut names = BTreeSet::new();
    for values in axes {
        let error =
            |axis: &str, reason: String| Err(KernelError::Axis { axis: axis.to_owned(), reason });
        let Some(Value { setting: Setting { axis, .. }, .. }) = values.first() else { continue };
        if !names.insert(axis) {
            return error(axis, "it is given twice; list all its values once".to_owned());
        }
        let values: BTreeSet<&Setting> = values.iter().map(|value| &value.setting).collect();
        if values.len() != axes[names.len() - 1].len() {
            return error(axis, "two of its files have one name; rename one".to_owned());
        }
    }
    let mut points: Vec<Vec<Value>> = vec![Vec::new()];
    for values in axes {
        let longer = |point: &Vec<Value>| -> Vec<Vec<Value>> {
            values
                .iter()
                .map(|value| [point.as_slice(), std::slice::from_ref(value)].concat())
                .collect()
        };
        points = points.iter().flat_map(longer).collect();
        if points.len() > MOST {
            let axis = values[0].setting.axis.clone();
            let reason = format!("all axes together have more than {MOST} points; leave some out");
            return Err(KernelError::Axis { axis, reason });
        }
    }
    Ok(points)
}

/// The kernel at a point, in guests that boot as a CPU.
pub fn at(
    manifest: &Manifest,
    point: &[Value],
    model: Option<&cpu::Named>,
) -> Result<Manifest, KernelError> {
    let mut manifest = manifest.clone();
    if point.is_empty() && model.is_none() {
        return Ok(manifest);
    }
    let usual = || Configuration { of: manifest.name.clone(), ..Configuration::default() };
    let mut configuration = model.map_or_else(usual, |model| booted(&manifest.name, model));
    let mut words: BTreeMap<&str, (&Setting, &String)> = BTreeMap::new();
    for value in point {
        let Setting { axis, value: name } = &value.setting;
        let error = |reason: String| KernelError::Axis { axis: axis.clone(), reason };
        if let Some(arches) = &value.arch
            && !arches.contains(&manifest.arch)
        {
            let arches: Vec<&str> = arches.iter().map(|arch| arch.name()).collect();
            return Err(error(format!(
                "{name} is for {} only; leave it out, or give --arch",
                arches.join(", ")
            )));
        }
        match &mut manifest.source {
            Source::Built(recipe) => {
                recipe.variation.options.extend(value.options.iter().cloned());
                recipe.variation.aside = true;
                if let Some(whole) = &value.whole {
                    recipe.config.push(whole.clone());
                    recipe.variation.folder = WHOLE;
                }
                if let Some(toolchain) = &value.toolchain {
                    // Another compiler of the same system, unless the value names a system.
                    let root = toolchain.root.clone().or(recipe.toolchain.root.take());
                    recipe.toolchain = Toolchain { root, ..toolchain.clone() };
                }
            }
            _ if value.is_built() => {
                return Err(error(format!(
                    "{name} needs a kernel that is built here, and {} is prebuilt: give --kernel \
                     6.12-source, a folder of sources, or git:REPOSITORY#REF",
                    manifest.name
                )));
            }
            _ => {}
        }
        // A setting replaces a CPU's words, but none of another axis.
        for word in &value.append {
            let other = words.insert(option(word), (&value.setting, word));
            if let Some((setting, other)) = other.filter(|(_, other)| *other != word) {
                return Err(error(format!("{name} wants `{word}`, {setting} `{other}`")));
            }
        }
        configuration.append = with_words(&configuration.append, &value.append);
        configuration.shows.extend(value.shows.iter().cloned());
        if let Some(cpus) = value.cpus.map(NonZeroU32::get)
            && configuration.cpus.replace(cpus).is_some_and(|other| other != cpus)
        {
            return Err(error(format!("{name} and another axis set the number of CPUs")));
        }
        configuration.settings.push(value.setting.clone());
    }
    // An option of two axes would silently have the later value.
    if let Source::Built(recipe) = &manifest.source {
        let mut seen: BTreeMap<&str, &WantedOption> = BTreeMap::new();
        for wanted in &recipe.variation.options {
            let other = seen.insert(&wanted.option, wanted);
            if let Some(other) = other.filter(|other| other.value != wanted.value) {
                return Err(KernelError::Axis {
                    axis: configuration.settings[0].axis.clone(),
                    reason: format!("{} wants {other}, {} {wanted}", other.place(), wanted.place()),
                });
            }
        }
    }
    manifest.name = configuration.name();
    manifest.configuration = Some(configuration);
    Ok(manifest)
}

/// A kernel whose guests boot as a CPU.
pub fn booted(kernel: &str, model: &cpu::Named) -> Configuration {
    Configuration {
        of: kernel.to_owned(),
        cpu: Some(model.cpu.qemu.cpu.clone()),
        append: model.cpu.mitigations.append.clone(),
        model: Some(model.clone()),
        ..Configuration::default()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::manifest::{Recipe, Tree, Variation};

    fn shipped() -> PathBuf {
        Path::new(env!("CARGO_MANIFEST_DIR")).join("../../configs/axes.yaml")
    }

    fn values(text: &str) -> Vec<Value> {
        read(&text.parse().unwrap(), &shipped()).unwrap()
    }

    fn manifest(arch: Arch) -> Manifest {
        let recipe = Recipe {
            tree: Tree::Folder("/linux".into()),
            toolchain: Toolchain::default(),
            config: Vec::new(),
            variation: Variation::default(),
        };
        Manifest { name: "k".into(), arch, source: Source::Built(recipe), configuration: None }
    }

    /// The reason why a kernel has no such point.
    fn refused(arch: Arch, axes: &[&str]) -> String {
        let axes: Vec<_> = axes.iter().map(|text| values(text)).collect();
        let at = |point: &Vec<Value>| at(&manifest(arch), point, None).map(drop);
        points(&axes).unwrap().iter().find_map(|point| at(point).err()).unwrap().to_string()
    }

    #[test]
    fn reads_every_value_that_is_shipped() {
        let axes: Axes = config::load(&shipped()).unwrap();
        for (axis, of_axis) in axes {
            let names = Vec::from_iter(of_axis.keys().cloned()).join(",");
            assert_eq!(values(&format!("{axis}={names}")).len(), of_axis.len(), "{axis}");
        }
    }

    #[test]
    fn another_compiler_is_of_the_same_system() {
        for (kernels, named, expected) in [
            ("gcc", "clang", "clang"),
            ("debian-12/gcc", "clang", "debian-12/clang"),
            ("debian-12/gcc", "debian-13/gcc-14", "debian-13/gcc-14"),
            ("gcc", "debian-13/gcc", "debian-13/gcc"),
        ] {
            let mut built = manifest(Arch::X86_64);
            let Source::Built(recipe) = &mut built.source else { panic!("it is built") };
            recipe.toolchain = kernels.parse().unwrap();
            let value = Value {
                toolchain: Some(named.parse().unwrap()),
                ..Value::new("compiler", "x", Vec::new())
            };
            let Source::Built(recipe) = at(&built, &[value], None).unwrap().source else {
                panic!("it is built")
            };
            assert_eq!(recipe.toolchain.to_string(), expected, "{kernels}, {named}");
        }
    }

    #[test]
    fn switches_a_running_kernel_by_words() {
        for (axis, name, words) in [
            ("bpf_stats=on", "k+bpf_stats-on", "sysctl.kernel.bpf_stats_enabled=1"),
            ("jit_harden=2", "k+jit_harden-2", "sysctl.net.core.bpf_jit_harden=2"),
            ("lsm=none", "k+lsm-none", "lsm="),
            ("cgroup_program=present", "k+cgroup_program-present", "tramplab.cgroup_program=1"),
        ] {
            let manifest = at(&manifest(Arch::Arm64), &values(axis), None).unwrap();
            assert_eq!(manifest.name, name);
            assert_eq!(manifest.configuration.unwrap().append, [words]);
        }
    }

    #[test]
    fn parses_arguments() {
        let axis: Axis = "a/b.yaml:preempt=none,full".parse().unwrap();
        let values = ["none", "full"].map(str::to_owned).to_vec();
        let expected = Axis { file: Some("a/b.yaml".into()), name: "preempt".to_owned(), values };
        assert_eq!(axis, expected);
        for text in ["", "preempt", "=none", "preempt=", "preempt=none,", "preempt=none,none"] {
            assert_eq!(text.parse::<Axis>(), Err(BadAxis), "{text}");
        }
    }

    #[test]
    fn combines_axes_and_changes_kernel_and_guest() {
        let two = at(&manifest(Arch::Arm64), &values("cpus=2"), None).unwrap();
        assert_eq!((&*two.name, two.configuration.unwrap().cpus), ("k+cpus-2", Some(2)));
        let axes = [values("CONFIG_NR_CPUS=8,512"), values("mitigations=off,srso")];
        let points = points(&axes).unwrap();
        let made: Vec<Manifest> =
            points.iter().map(|point| at(&manifest(Arch::X86_64), point, None).unwrap()).collect();
        let names: Vec<&str> = made.iter().map(|manifest| manifest.name.as_str()).collect();
        assert_eq!(
            names,
            [
                "k+CONFIG_NR_CPUS-8+mitigations-off",
                "k+CONFIG_NR_CPUS-8+mitigations-srso",
                "k+CONFIG_NR_CPUS-512+mitigations-off",
                "k+CONFIG_NR_CPUS-512+mitigations-srso",
            ]
        );
        let Manifest { source: Source::Built(recipe), configuration, .. } = &made[3] else {
            panic!("{made:?}")
        };
        let [option] = &recipe.variation.options[..] else { panic!("{recipe:?}") };
        assert_eq!(option.to_string(), "CONFIG_NR_CPUS=512");
        assert_eq!(option.place(), "axis CONFIG_NR_CPUS=512");
        assert!(recipe.variation.aside);
        let configuration = configuration.as_ref().unwrap();
        assert_eq!(configuration.append, ["mitigations=auto", "spec_rstack_overflow=safe-ret"]);
        assert_eq!(configuration.shows, ["spec_rstack_overflow: Safe RET"]);
    }

    #[test]
    fn a_setting_stands_beside_the_words_of_a_cpu_and_replaces_the_same() {
        let file = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../configs/cpus/zen4.yaml");
        let zen4 = cpu::Named { name: "zen4".to_owned(), cpu: config::load(&file).unwrap() };
        let booted = |axes: &str| {
            let point = if axes.is_empty() { Vec::new() } else { values(axes) };
            let kernel = at(&manifest(Arch::X86_64), &point, Some(&zen4)).unwrap();
            let Configuration { append, cpu, .. } = kernel.configuration.unwrap();
            assert_eq!(cpu.as_deref(), Some("EPYC-Genoa,hypervisor=off"));
            (kernel.name, append.join(" "))
        };
        for (axes, name, words) in [
            ("", "k+zen4", "mitigations=auto spectre_v2=off"),
            ("mitigations=off", "k+zen4+mitigations-off", "spectre_v2=off mitigations=off"),
            (
                "mitigations=retpoline",
                "k+zen4+mitigations-retpoline",
                "mitigations=auto spectre_v2=retpoline",
            ),
        ] {
            assert_eq!(booted(axes), (name.to_owned(), words.to_owned()), "{axes}");
        }
    }

    #[test]
    fn takes_fragments_as_values() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("a.config");
        std::fs::write(&path, "CONFIG_A=y\n").unwrap();
        let axis = |values: Vec<String>| Axis { file: None, name: "own".to_owned(), values };
        let value = path.display().to_string();
        let found = read(&axis(vec![value.clone()]), &shipped()).unwrap();
        assert_eq!(found[0].setting.to_string(), "own=a");
        // A whole configuration is under tramplab's options. Any file is one of an axis `config`.
        let own = folder.path().join("config-6.12.1");
        std::fs::write(&own, "# Automatically generated file; DO NOT EDIT.\nCONFIG_A=y\n").unwrap();
        let whole = read(&Axis::of_config(&own.display().to_string()), &shipped()).unwrap();
        let kernel = at(&manifest(Arch::X86_64), &whole, None).unwrap();
        assert_eq!(kernel.name, "k+config-config-6.12.1");
        let Source::Built(recipe) = &kernel.source else { panic!("{kernel:?}") };
        assert_eq!((&recipe.config[..], recipe.variation.folder), (&[own.clone()][..], "-config"));
        // A shell passes `<(…)` so.
        let open = std::fs::File::open(&path).unwrap();
        let descriptor = std::os::fd::AsRawFd::as_raw_fd(&open);
        let passed = Axis::of_config(&format!("/proc/self/fd/{descriptor}"));
        let setting = &read(&passed, &shipped()).unwrap()[0].setting;
        assert_eq!(setting.to_string(), format!("config=pipe{descriptor}"));
        // An error in it names the file and the line.
        assert_eq!(found[0].options[0].place(), format!("{value}:1"));
        let missing = read(&axis(vec![format!("{value}.config")]), &shipped());
        assert!(matches!(missing, Err(KernelError::Fragment(_))), "{missing:?}");
    }

    #[test]
    fn refuses_settings_that_do_not_fit_together() {
        let x86 = Arch::X86_64;
        for (arch, axes, words) in [
            (Arch::Arm64, &["mitigations=srso"][..], "srso is for x86_64 only"),
            (x86, &["nr_cpus=8", "CONFIG_NR_CPUS=9"], "axis nr_cpus=8 wants CONFIG_NR_CPUS=8"),
        ] {
            let error = refused(arch, axes);
            assert!(error.contains(words), "{axes:?}: {error}");
        }
        let folder = tempfile::tempdir().unwrap();
        let own = folder.path().join("own.yaml");
        std::fs::write(&own, "a:\n  b: { cpus: 4 }\n").unwrap();
        let of_own = format!("{}:a=b", own.display());
        let error = refused(x86, &["cpus=2", &of_own]);
        assert!(error.contains("b and another axis set the number of CPUs"), "{error}");
        std::fs::write(&own, "a:\n  b: { append: [mitigations=auto] }\n").unwrap();
        let error = refused(x86, &["mitigations=off", &of_own]);
        assert!(error.contains("b wants `mitigations=auto`, mitigations=off `mitigations=off`"));
        std::fs::write(&own, "a:\n  b: { cpus: 0 }\n").unwrap();
        let none = of_own.parse().unwrap();
        assert!(read(&none, &shipped()).is_err());
        std::fs::write(&own, "a:\n  b: { append: [sysctl.kernel.kptr_restrict=2] }\n").unwrap();
        let error = read(&of_own.parse().unwrap(), &shipped()).unwrap_err().to_string();
        assert!(error.contains("own.yaml:2:6: `sysctl.kernel.kptr_restrict=2` hides"), "{error}");
        let many = ["8,16,32", "1,2,3", "1,2,3", "1,2,3"];
        let axes: Vec<_> = many
            .iter()
            .enumerate()
            .map(|(number, list)| values(&format!("CONFIG_A{number}={list}")))
            .collect();
        assert!(points(&axes).unwrap_err().to_string().contains("more than 64 points"));
        let twice = [values("nr_cpus=8"), values("nr_cpus=512")];
        assert!(points(&twice).unwrap_err().to_string().contains("given twice"));
    }
}
