// SPDX-License-Identifier: MIT OR Apache-2.0
//! The programs that cells attach, and the functions that they trace where the user names them.

use crate::{
    program::{Program, Programs},
    yaml::{Mechanisms, filled},
};
use schemars::{JsonSchema, Schema, SchemaGenerator, json_schema};
use serde::{Deserialize, Deserializer, Serialize, Serializer, de};
use std::{
    borrow::Cow,
    collections::{BTreeSet, HashSet},
    fmt,
    str::FromStr,
};
use tramplab_model::{
    function::{Among, FunctionName, NotAFunction},
    program::ProgramName,
};
use tramplab_protocol::{
    Mechanism,
    binary::Binary,
    mechanism::{HOOK_PREFIX, SYSCALL_PREFIXES, Site, USER_FUNCTIONS},
    pattern::{NotAPattern, Pattern},
    program as protocol,
};

/// The mechanism and the program of one cell.
#[derive(Clone, Copy, Debug)]
pub(super) struct Hook<'a> {
    pub mechanism: Mechanism,
    own: Option<&'a Program>,
}

impl Hook<'_> {
    pub fn program(&self) -> Option<ProgramName> {
        self.own.map(Program::name)
    }

    pub fn sent(&self) -> Option<protocol::Program> {
        self.own.map(|program| program.sent.clone())
    }

    /// The function in the section's name.
    pub fn function(&self) -> Option<FunctionName> {
        self.own.and_then(|program| program.function)
    }

    /// True if a command can hit it at what the cell or its own section names.
    pub fn is_named(&self, function: Option<FunctionName>) -> bool {
        function.is_some() || self.own.is_some_and(Program::has_tracepoint)
    }
}

/// Functions that cells name.
pub(super) trait Traced: Clone + fmt::Display {
    /// True if the mechanism can attach to them. Tracepoints attach to no functions.
    fn is_for(&self, mechanism: Mechanism) -> bool;
    /// True if all their names or patterns begin with one of these.
    fn begin_with(&self, prefixes: &[&str]) -> bool;
}

impl Traced for FunctionName {
    fn is_for(&self, mechanism: Mechanism) -> bool {
        mechanism.attaches_to(self.as_str())
    }

    fn begin_with(&self, prefixes: &[&str]) -> bool {
        prefixes.iter().any(|prefix| self.as_str().starts_with(prefix))
    }
}

impl Traced for TargetSet {
    /// A file has no USDT probes: they are no functions.
    fn is_for(&self, mechanism: Mechanism) -> bool {
        match self.binary {
            Some(_) => mechanism.site() == Site::UserFunction,
            None => !mechanism.is_tracepoint() && !mechanism.is_user(),
        }
    }

    fn begin_with(&self, prefixes: &[&str]) -> bool {
        let begins = |of: &Pattern| {
            let of = of.to_string();
            prefixes.iter().any(|prefix| of.starts_with(prefix))
        };
        self.of.iter().all(begins)
    }
}

/// Each mechanism, or each program of one of them, with each target that it can attach to.
pub(super) fn hooks<'a, T: Traced>(
    mechanisms: &'a Mechanisms,
    programs: &'a Programs,
    targets: &[T],
) -> Vec<(Hook<'a>, Option<T>)> {
    let hook = |mechanism: &Mechanism| Hook { mechanism: *mechanism, own: None };
    let attached: Vec<Hook> = match programs.is_empty() {
        true => mechanisms.0.iter().map(hook).collect(),
        false => of_mechanisms(mechanisms, programs)
            .map(|own| Hook { mechanism: own.mechanism(), own: Some(own) })
            .collect(),
    };
    if targets.is_empty() {
        return attached.into_iter().map(|hook| (hook, None)).collect();
    }
    // A name without its prefix is a system call's or a hook's only to these mechanisms: in a group
    // with mechanisms of functions, they take whole names.
    let of_functions = attached
        .iter()
        .any(|hook| matches!(hook.mechanism.site(), Site::Function | Site::Modifiable));
    let on = |target: &T| {
        let is_whole = |mechanism: Mechanism| match mechanism.site() {
            Site::Syscall => target.begin_with(&SYSCALL_PREFIXES),
            Site::Hook => target.begin_with(&[HOOK_PREFIX]),
            _ => true,
        };
        let is_on = |hook: &&Hook| {
            let takes = hook.own.is_some() || !of_functions || is_whole(hook.mechanism);
            takes && target.is_for(hook.mechanism)
        };
        let on = |hook: &Hook<'a>| (*hook, Some(target.clone()));
        attached.iter().filter(is_on).map(on).collect::<Vec<_>>()
    };
    targets.iter().flat_map(on).collect()
}

/// Functions of one attach cell: those that one of the patterns matches. In a suite a pattern, or
/// `{ name: mine, of: [tcp_*, udp_*] }`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TargetSet {
    pub name: Among,
    pub of: Vec<Pattern>,
    /// Instead: those of a file with user-space code, which only the command line names.
    pub binary: Option<Binary>,
}

impl TargetSet {
    /// The functions' names. An error if one is a pattern.
    pub(crate) fn names(&self) -> impl Iterator<Item = Result<FunctionName, NotAFunction>> {
        self.of.iter().map(|pattern| pattern.to_string().parse())
    }
}

impl FromStr for TargetSet {
    type Err = NotAPattern;

    fn from_str(text: &str) -> Result<TargetSet, NotAPattern> {
        Ok(TargetSet { name: text.parse()?, of: vec![text.parse()?], binary: None })
    }
}

/// The form with a name of its own.
#[derive(Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
struct Named {
    name: Among,
    #[serde(deserialize_with = "filled")]
    #[schemars(length(min = 1))]
    of: Vec<Pattern>,
}

impl JsonSchema for TargetSet {
    fn schema_name() -> Cow<'static, str> {
        "TargetSet".into()
    }

    fn json_schema(generator: &mut SchemaGenerator) -> Schema {
        let (one, named) = (generator.subschema_for::<Pattern>(), Named::json_schema(generator));
        json_schema!({
            "description": "Functions of one cell: a name, a pattern, or a list with a name.",
            "anyOf": [one, named],
        })
    }
}

impl Serialize for TargetSet {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        let TargetSet { name, of, .. } = self;
        match of.as_slice() {
            [one] if one.to_string() == name.to_string() => name.serialize(serializer),
            _ => Named { name: *name, of: of.clone() }.serialize(serializer),
        }
    }
}

impl<'de> Deserialize<'de> for TargetSet {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<TargetSet, D::Error> {
        struct Visitor;
        impl<'de> de::Visitor<'de> for Visitor {
            type Value = TargetSet;
            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("a name or pattern of functions, or `{ name: …, of: [PATTERN, …] }`")
            }
            fn visit_str<E: de::Error>(self, text: &str) -> Result<TargetSet, E> {
                text.parse().map_err(E::custom)
            }
            fn visit_map<A: de::MapAccess<'de>>(self, map: A) -> Result<TargetSet, A::Error> {
                let Named { name, of } =
                    Named::deserialize(de::value::MapAccessDeserializer::new(map))?;
                Ok(TargetSet { name, of, binary: None })
            }
        }
        deserializer.deserialize_any(Visitor)
    }
}

/// The programs that a group measures.
pub(super) fn of_mechanisms<'a>(
    mechanisms: &'a Mechanisms,
    programs: &'a Programs,
) -> impl Iterator<Item = &'a Program> {
    programs.all().iter().filter(|own| own.fits(&mechanisms.0))
}

/// For a name like those of the agent's functions: all of these.
pub fn functions_of_user(name: &str) -> String {
    match name.starts_with("user_") {
        true => format!("; mechanisms of user space have {}", USER_FUNCTIONS.join(", ")),
        false => String::new(),
    }
}

/// The reason why a group has no cells.
pub(super) fn misfit<T: Traced>(
    mechanisms: &Mechanisms,
    programs: &Programs,
    targets: &[T],
) -> Option<String> {
    let foreign = || {
        let own = programs.all().first()?;
        of_mechanisms(mechanisms, programs).next().is_none().then(|| {
            format!(
                "the program {} is for {}, which is not among the group's mechanisms: add it",
                own.name(),
                own.mechanism()
            )
        })
    };
    let no_function = || {
        let target = targets.first()?;
        hooks(mechanisms, programs, targets).is_empty().then(|| {
            format!(
                "no mechanism of the group attaches to functions such as {target}; name another \
                 mechanism, or remove `targets`{}",
                functions_of_user(&target.to_string())
            )
        })
    };
    foreign().or_else(no_function)
}

/// The reason why a cell is not measured on the user's own machine: it would run what a suite's
/// file names, or attach too much.
pub(super) fn unsafe_here(
    program: Option<&protocol::Program>,
    command: bool,
    attached: u32,
    most: u32,
) -> Option<String> {
    let program = program.is_some_and(protocol::Program::is_of_user);
    if program || command {
        let what = if program { "program" } else { "command" };
        return Some(format!("only a guest runs a {what} of the user's; use --vm qemu"));
    }
    (attached > most).then(|| {
        let named = if attached == u32::MAX { "all".to_owned() } else { attached.to_string() };
        format!(
            "at most {most} functions and programs are attached at once on this machine; allow \
             it by --vm none:{named}, or use --vm qemu"
        )
    })
}

/// The reason why a program of the group has no function to be hit at.
pub(super) fn nameless(
    mechanisms: &Mechanisms,
    programs: &Programs,
    targets: &[FunctionName],
) -> Option<String> {
    let placeholder = |own: &Program| Some((own.name(), own.placeholder.clone()?));
    let (name, section) = of_mechanisms(mechanisms, programs).find_map(placeholder)?;
    targets.is_empty().then(|| {
        format!(
            "the program {name} is for SEC(\"{section}\"), which names no function: name one by \
             --function, or by `targets` in the suite"
        )
    })
}

impl fmt::Display for TargetSet {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.name.fmt(f)
    }
}

/// Bytes of a command. A longer one is a script, which a guest does not have.
const LONGEST_COMMAND: usize = 4096;

/// The reason why a group's command hits nothing.
pub(super) fn bad_trigger(
    line: Option<&str>,
    mechanisms: &Mechanisms,
    targets: &[FunctionName],
    programs: &Programs,
) -> Option<String> {
    let line = line?;
    if line.trim().is_empty() || line.contains('\0') || line.len() > LONGEST_COMMAND {
        return Some(format!(
            "`trigger` must be a line for the guest's shell, of up to {LONGEST_COMMAND} bytes"
        ));
    }
    if let Some(user) = targets.iter().find(|name| USER_FUNCTIONS.contains(&name.as_str())) {
        return Some(format!(
            "`trigger` hits functions of the kernel, and the agent calls {user} itself: remove \
             `trigger`, or this target"
        ));
    }
    // Without a function the program is measured on one of the agent's own: not by the command.
    let is_hit = |own: &Program| own.function.is_some() || own.has_tracepoint();
    let mut measured = of_mechanisms(mechanisms, programs).peekable();
    let named = measured.peek().is_some() && measured.all(is_hit);
    (targets.is_empty() && !named).then(|| {
        "`trigger` hits the functions that `targets` (--function) or a program's section names: \
         add one"
            .to_owned()
    })
}

/// The module that has a function.
pub(super) fn module(function: Option<FunctionName>) -> BTreeSet<String> {
    function.iter().filter_map(FunctionName::module).map(str::to_owned).collect()
}

/// The names in all sets, each once, for tests whose cells have one function each.
pub(super) fn names(sets: &[TargetSet]) -> Result<Vec<FunctionName>, NotAFunction> {
    let mut names: Vec<FunctionName> =
        sets.iter().flat_map(TargetSet::names).collect::<Result<_, _>>()?;
    let mut known = HashSet::new();
    names.retain(|name| known.insert(*name));
    Ok(names)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::Suite;
    use std::path::Path;
    use tramplab_host::config::{self, ConfigError};

    fn suite(targets: &str) -> Result<Suite, ConfigError> {
        let text = format!(
            "name: t\ndescription: d\nkernels: [a]\ntests:\n  - attach:\n      \
             mechanisms: [fentry, tp_btf]\n      functions: [2, all]\n      rounds: 1\n      \
             targets: {targets}\n"
        );
        config::parse(&text, Path::new("t.yaml"))
    }

    fn cells(suite: &Suite) -> Vec<String> {
        suite.work(false).map(|work| work.test().name()).collect()
    }

    #[test]
    fn attach_tests_have_a_cell_for_each_set() {
        let named = suite("[vfs_read, { name: net, of: ['tcp_*', 'ext4:*'] }]").unwrap();
        assert_eq!(
            cells(&named),
            [
                "attach/fentry/2@vfs_read",
                "attach/fentry/all@vfs_read",
                "attach/fentry/2@net",
                "attach/fentry/all@net"
            ]
        );
        // Written and read again, it is the same.
        let text = serde_json::to_string(&named).unwrap();
        let again: Suite = serde_json::from_str(&text).unwrap();
        assert_eq!(cells(&again), cells(&named));
        assert_eq!(serde_json::to_string(&again).unwrap(), text);
        // The command line attaches to all of each set.
        let sets = ["tcp_*", "udp_*"].map(|text| text.parse().unwrap());
        let traced = named.tracing(&sets).unwrap().unwrap();
        assert_eq!(cells(&traced), ["attach/fentry/all@tcp_*", "attach/fentry/all@udp_*"]);
        for (bad, line) in [
            ("['tcp_[']", 9),
            ("['a b']", 9),
            ("[{ name: net, of: [] }]", 9),
            ("[{ of: ['tcp_*'] }]", 9),
            ("[{ name: net, of: ['tcp_*'], more: 1 }]", 9),
        ] {
            match suite(bad) {
                Err(ConfigError::Invalid { line: at, .. }) => assert_eq!(at, line, "{bad}"),
                other => panic!("{bad}: {other:?}"),
            }
        }
    }

    /// `vfs_read` is neither a hook nor a system call, `getpgid` may be one.
    #[test]
    fn system_calls_and_hooks_take_short_names_only_among_themselves() {
        let cells = |mechanisms: &str, targets: &str| {
            let text = format!(
                "name: t\ndescription: d\nkernels: [a]\ntests:\n\
                 \x20 - trigger: {{ mechanisms: {mechanisms}, targets: [{targets}] }}\n"
            );
            cells(&config::parse::<Suite>(&text, Path::new("t.yaml")).unwrap())
        };
        let of_all = cells("all", "vfs_read, __x64_sys_getpgid, bpf_lsm_file_open");
        let of = |mechanism: &str| -> Vec<&str> {
            let is_of = |name: &&String| name.starts_with(&format!("trigger/{mechanism}@"));
            let function = |name: &'_ String| name.find('@').map(|at| at + 1);
            let names = of_all.iter().filter(is_of);
            names.map(|name| &name[function(name).unwrap()..]).collect()
        };
        assert_eq!(of("ksyscall"), ["__x64_sys_getpgid"]);
        assert_eq!(of("lsm"), ["bpf_lsm_file_open"]);
        assert_eq!(of("kprobe"), ["vfs_read", "__x64_sys_getpgid", "bpf_lsm_file_open"]);
        assert_eq!(
            cells("[ksyscall, kretsyscall]", "getpgid"),
            ["trigger/ksyscall@getpgid", "trigger/kretsyscall@getpgid"]
        );
    }

    #[test]
    fn mechanisms_of_user_space_take_files() {
        let text = "name: t\ndescription: d\nkernels: [a]\ntests:\n\
                    \x20 - trigger: { mechanisms: [uprobe, fentry] }\n\
                    \x20 - attach: { mechanisms: [uprobe, usdt, fentry], functions: [1], rounds: 1 }\n\
                    \x20 - attach: { mechanisms: [uprobe, uretprobe], functions: [2], rounds: 3 }\n";
        let suite: Suite = config::parse(text, Path::new("t.yaml")).unwrap();
        let contents = tramplab_protocol::program::Object([0; 4].as_slice().into());
        let binary = Binary {
            name: "l.so".into(),
            contents,
            machine: 62,
            sha256: "ab".into(),
            functions: Vec::new(),
        };
        let name = "l.so".parse().unwrap();
        let file = TargetSet { name, of: Vec::new(), binary: Some(binary) };
        let traced = suite.clone().tracing(std::slice::from_ref(&file)).unwrap().unwrap();
        // The first of two groups with one test.
        assert_eq!(cells(&traced), ["attach/uprobe/all@l.so", "attach/uretprobe/all@l.so"]);
        assert!(crate::plan::contradiction(&traced).is_none());
        assert!(traced.traces(&file) && !suite.traces(&file));
        assert_eq!(traced.binaries()[0].sha256, "ab");
        let both = [file, "vfs_read".parse().unwrap()];
        assert_eq!(
            cells(&suite.tracing(&both).unwrap().unwrap()),
            [
                "trigger/fentry@vfs_read",
                "attach/uprobe/all@l.so",
                "attach/fentry/all@vfs_read",
                "attach/uretprobe/all@l.so"
            ]
        );
    }

    #[test]
    fn tests_with_a_cell_for_each_function_take_no_pattern() {
        let text = "name: t\ndescription: d\nkernels: [a]\ntests:\n\
                    \x20 - lbr_waste: { mechanisms: [fexit] }\n";
        let suite: Suite = config::parse(text, Path::new("t.yaml")).unwrap();
        let sets = |values: &[&str]| -> Vec<TargetSet> {
            values.iter().map(|value| value.parse().unwrap()).collect()
        };
        let named = ["vfs_read", "vfs_read", "__sys_bpf", "kvm-amd:svm_vcpu_run"];
        let traced = suite.clone().tracing(&sets(&named)).unwrap();
        assert_eq!(
            cells(&traced.unwrap()),
            [
                "lbr_waste/fexit@vfs_read",
                "lbr_waste/fexit@__sys_bpf",
                "lbr_waste/fexit@kvm_amd:svm_vcpu_run"
            ]
        );
        for value in ["vfs_*", "xfs:xfs_*"] {
            let expected = NotAFunction::Pattern(value.to_owned());
            assert_eq!(suite.clone().tracing(&sets(&[value])).unwrap_err(), expected);
        }
    }

    #[test]
    fn guests_load_the_modules_that_are_named() {
        let of = |suite: &Suite| -> Vec<String> {
            let modules = |work: crate::kinds::Work| {
                work.kind().needs().modules.into_iter().collect::<Vec<_>>().join(" ")
            };
            suite.work(false).map(modules).collect()
        };
        let attach = suite("['tcp_*', { name: fs, of: ['xfs:*', 'x*:*', 'btrfs:btrfs_*'] }]");
        assert_eq!(of(&attach.unwrap()), ["", "", "btrfs xfs", "btrfs xfs"]);
        let text = "name: t\ndescription: d\nkernels: [a]\ntests:\n\
                    \x20 - lbr_waste: { mechanisms: [fexit], targets: ['xfs:a', b] }\n\
                    \x20 - trigger: { mechanisms: [kprobe], targets: ['kvm_amd:a'] }\n";
        let suite: Suite = config::parse(text, Path::new("t.yaml")).unwrap();
        assert_eq!(of(&suite), ["xfs", "", "kvm_amd"]);
    }
}
