// SPDX-License-Identifier: MIT OR Apache-2.0
//! Chooses the functions and tracepoints to attach to. The choice is the same for the same seed and
//! kernel, and for all mechanisms as far as the kernel allows.

use crate::kallsyms::Kallsyms;
use crate::kernel_btf::KernelBtf;
use crate::lockdown::Lockdown;
use crate::target::Target;
use crate::tracefs_events;
use std::collections::{HashMap, HashSet};
use std::fs;
use std::os::fd::RawFd;
use std::path::Path;
use tramplab_protocol::message::{GuestError, Places};
use tramplab_protocol::pattern::{Patterns, joined, split};

const AVAILABLE: &str = "/sys/kernel/tracing/available_filter_functions";
/// The same with addresses, `ADDRESS NAME [MODULE]`. Exists since 6.5.
const ADDRESSES: &str = "/sys/kernel/tracing/available_filter_functions_addrs";
/// Functions whose return value may be overridden. Exists only with
/// CONFIG_FUNCTION_ERROR_INJECTION.
const INJECTABLE: &str = "/sys/kernel/debug/error_injection/list";
/// Prefix of the hooks of security modules, which may always be overridden.
const SECURITY: &str = "security_";

/// Prefixes of functions that are never chosen. Functions that run inside every trampoline and
/// handler, or below RCU, would trace the tracer. Some of BPF's own functions are kfuncs, which
/// tracing multi refuses.
const DENIED_PREFIXES: [&str; 14] = [
    "rcu_",
    "__rcu_",
    "bpf_",
    "__bpf_",
    "scx_bpf_",
    "ftrace_",
    "__ftrace_",
    "arch_ftrace_",
    "kprobe_",
    "__kprobe",
    "migrate_",
    "___migrate_",
    "preempt_count_",
    "preempt_schedule",
];

/// Functions that are never chosen: the idle loop, and functions that do not return, whose exit
/// never comes.
const DENIED: [&str; 17] = [
    "arch_cpu_idle",
    "default_idle",
    "do_exit",
    "do_group_exit",
    "make_task_dead",
    "kthread_exit",
    "kthread_complete_and_exit",
    "__module_put_and_kthread_exit",
    "do_task_dead",
    "__x64_sys_exit",
    "__x64_sys_exit_group",
    "__ia32_sys_exit",
    "__ia32_sys_exit_group",
    "__arm64_sys_exit",
    "__arm64_sys_exit_group",
    "__arm64_sys_rt_sigreturn",
    "__x64_sys_rt_sigreturn",
];

fn is_denied(name: &str) -> bool {
    DENIED.contains(&name) || DENIED_PREFIXES.iter().any(|prefix| name.starts_with(prefix))
}

/// The functions that may be chosen.
#[derive(Clone, Copy, Debug)]
pub enum Choice<'a> {
    /// Those of the kernel image that are safe to trace.
    Safe,
    /// Those that the user names, safe or not.
    Among(&'a Patterns<'a>),
}

impl Choice<'_> {
    fn takes(self, name: &str, module: Option<&str>) -> bool {
        match self {
            Choice::Safe => module.is_none() && !is_denied(name),
            Choice::Among(patterns) => patterns.matches(name, module),
        }
    }
}

/// Tracepoints that are never chosen. The kernel passes them when an interrupted RCU reader ends. A
/// program there is such a reader itself, and its end passes them again. 7.2 died of it.
const DENIED_TRACEPOINTS: [&str; 2] = ["softirq_raise", "sched_set_need_resched_tp"];

#[derive(Debug, thiserror::Error)]
pub enum FunctionsError {
    #[error("failed to read {path} (CONFIG_DYNAMIC_FTRACE, tracefs): {error}")]
    Read { path: &'static str, error: std::io::Error },
    #[error("failed to read {path}: {lockdown}")]
    LockedDown { path: &'static str, lockdown: Lockdown },
}

impl From<FunctionsError> for GuestError {
    fn from(error: FunctionsError) -> GuestError {
        match error {
            FunctionsError::Read { .. } => GuestError::failed(error),
            FunctionsError::LockedDown { .. } => GuestError::Unsupported(error.to_string()),
        }
    }
}

/// Removes the functions of some names whose name does not tell which of several is meant.
pub fn drop_namesakes(targets: &mut Vec<Target>, names: &HashSet<String>, available: &str) {
    let occurrences = occurrences(available);
    targets.retain(|target| {
        let (module, name) = split(&target.name);
        let several = occurrences.get(&(module, name)).is_some_and(|&count| count > 1);
        !(several && names.contains(&target.name))
    });
}

/// Reads tracefs' list of the functions that ftrace can attach to.
pub fn available() -> Result<String, FunctionsError> {
    let path = AVAILABLE;
    fs::read_to_string(path).map_err(|error| match error.raw_os_error().and_then(Lockdown::of) {
        Some(lockdown) => FunctionsError::LockedDown { path, lockdown },
        None => FunctionsError::Read { path, error },
    })
}

/// Where functions are in a list that has ftrace's order. None if it lacks one of them.
pub fn places<'a>(list: &str, names: impl Iterator<Item = &'a str>) -> Option<Places> {
    let mut of: HashMap<String, u32> = HashMap::new();
    let mut records = 0;
    for (name, module) in lines(list) {
        // The first of its namesakes.
        of.entry(joined(module, name)).or_insert(records);
        records += 1;
    }
    let places: Vec<u32> = names.map(|name| of.get(name).copied()).collect::<Option<_>>()?;
    let (first, last) = (*places.iter().min()?, *places.iter().max()?);
    Some(Places { first, last, records })
}

/// Reads the list with addresses. None if the kernel has no such list.
pub fn available_addresses() -> Option<String> {
    fs::read_to_string(ADDRESSES).ok()
}

/// Reads the list of functions for error injection. Empty if the kernel has no such list.
pub fn injectable() -> String {
    fs::read_to_string(INJECTABLE).unwrap_or_default()
}

/// Names and modules in a list of `NAME` or `NAME [MODULE]` lines.
fn lines(list: &str) -> impl Iterator<Item = (&str, Option<&str>)> {
    list.lines().filter_map(|line| {
        let mut words = line.split_whitespace();
        let name = words.next()?;
        let module = words.next().and_then(|word| word.strip_prefix('[')?.strip_suffix(']'));
        Some((name, module))
    })
}

/// The functions of the kernel image in such a list.
pub fn image_functions(list: &str) -> impl Iterator<Item = &str> {
    lines(list).filter(|(_, module)| module.is_none()).map(|(name, _)| name)
}

/// The chosen functions by name, for mechanisms that attach by name. The kernel refuses namesakes.
pub fn by_name(available: &str, choice: Choice<'_>) -> Vec<Target> {
    let chosen = lines(available).filter(|(name, module)| choice.takes(name, *module));
    let mut names: Vec<String> = chosen.map(|(name, module)| joined(module, name)).collect();
    names.sort_unstable();
    names.dedup();
    names.into_iter().map(|name| Target { name, btf_id: 0, btf: 0, address: 0 }).collect()
}

/// The chosen functions in BTF, sorted by name. `btf_id` looks a function up. A function is
/// included only if its name is unique in ftrace's list, in BTF and in kallsyms.
pub fn candidates(
    available: &str,
    choice: Choice<'_>,
    btf_id: impl Fn(&str) -> Option<u32>,
    kallsyms: &Kallsyms,
) -> Vec<Target> {
    let addresses = kallsyms.unique_addresses();
    let mut names: Vec<&str> =
        image_functions(available).filter(|name| choice.takes(name, None)).collect();
    names.sort_unstable();
    names
        .chunk_by(|a, b| a == b)
        .filter(|namesakes| namesakes.len() == 1)
        .filter_map(|name| {
            let name = name[0];
            let btf_id = btf_id(name)?;
            Some(Target { btf_id, btf: 0, address: *addresses.get(name)?, name: name.to_owned() })
        })
        .collect()
}

/// The chosen functions of modules, sorted by name. `lookup` finds the BTF of a module and the id
/// of a function in it.
pub fn of_modules<E>(
    available: &str,
    choice: Choice<'_>,
    mut lookup: impl FnMut(&str, &str) -> Result<Option<(RawFd, u32)>, E>,
) -> Result<Vec<Target>, E> {
    let mut names: Vec<(&str, &str)> = lines(available)
        .filter_map(|(name, module)| Some((module?, name)))
        .filter(|(module, name)| choice.takes(name, Some(module)))
        .collect();
    names.sort_unstable();
    let mut found = Vec::new();
    for namesakes in names.chunk_by(|a, b| a == b).filter(|namesakes| namesakes.len() == 1) {
        let (module, name) = namesakes[0];
        if let Some((btf, btf_id)) = lookup(module, name)? {
            found.push(Target { name: joined(Some(module), name), btf_id, btf, address: 0 });
        }
    }
    Ok(found)
}

/// Keeps the functions whose return value may be overridden. Of programs that may sleep, only the
/// listed ones: the kernel takes that list for code that may sleep, too.
pub fn keep_injectable(targets: &mut Vec<Target>, injectable: &str, sleeps: bool) {
    let injectable: HashSet<String> =
        lines(injectable).map(|(name, module)| joined(module, name)).collect();
    targets.retain(|target| {
        !sleeps && target.name.starts_with(SECURITY) || injectable.contains(&target.name)
    });
}

/// Returns true if the return value of one function may be overridden.
pub fn is_modifiable(name: &str, injectable: &str) -> bool {
    let is_it = |(listed, module): (&str, _)| joined(module, listed) == name;
    name.starts_with(SECURITY) || lines(injectable).any(is_it)
}

/// How often a list has each function, by module and name.
pub fn occurrences(list: &str) -> HashMap<(Option<&str>, &str), usize> {
    let mut found = HashMap::new();
    for (name, module) in lines(list) {
        *found.entry((module, name)).or_default() += 1;
    }
    found
}

/// The chosen functions by name and address, for mechanisms that attach by address. They include
/// functions that BTF does not describe, and namesakes. For a kernel without a list of addresses,
/// they are the functions with a single address in kallsyms.
pub fn by_address(
    available: &str,
    with_addresses: Option<&str>,
    choice: Choice<'_>,
    kallsyms: &Kallsyms,
) -> Vec<Target> {
    let target = |name: &str, module, address| {
        let named = || Target { name: joined(module, name), btf_id: 0, btf: 0, address };
        choice.takes(name, module).then(named)
    };
    let mut targets: Vec<Target> = match with_addresses {
        Some(list) => list
            .lines()
            .filter_map(|line| {
                let (address, line) = line.split_once(' ')?;
                let (name, module) = lines(line).next()?;
                target(name, module, u64::from_str_radix(address, 16).ok()?)
            })
            .collect(),
        None => {
            let addresses = kallsyms.unique_addresses();
            lines(available)
                .filter_map(|(name, module)| target(name, module, *addresses.get(name)?))
                .collect()
        }
    };
    targets.sort_unstable_by(|a, b| (&a.name, a.address).cmp(&(&b.name, b.address)));
    targets.dedup_by_key(|target| target.address);
    targets
}

/// All allowed tracepoints, by name.
pub fn tracepoints(btf: &KernelBtf) -> Vec<Target> {
    let mut targets: Vec<Target> = btf
        .tracepoints()
        .filter(|(name, _)| !DENIED_TRACEPOINTS.contains(name))
        .map(|(name, btf_id)| Target { name: name.to_owned(), btf_id, btf: 0, address: 0 })
        .collect();
    targets.sort_unstable_by(|a, b| a.name.cmp(&b.name));
    targets
}

/// The events of system calls, by name.
pub fn syscall_events() -> Vec<Target> {
    let events = tracefs_events::events(Path::new(tracefs_events::EVENTS));
    // Files that switch all of them are beside them.
    let names = events.iter().filter_map(|event| event.strip_prefix("syscalls/"));
    let names = names.filter(|name| name.starts_with("sys_"));
    let target = |name: &str| Target { name: name.to_owned(), btf_id: 0, btf: 0, address: 0 };
    let mut targets: Vec<Target> = names.map(target).collect();
    targets.sort_unstable_by(|a, b| a.name.cmp(&b.name));
    targets
}

/// Sorts candidates by a hash of seed and name. A function that another kernel has or lacks then
/// changes only its own place: base and head of a comparison attach to the same functions, except
/// those that one of them lacks. The list of 10 is the head of the list of 100 with the same seed.
pub fn order(targets: &mut [Target], seed: u64) {
    // Namesakes have equal ranks.
    targets.sort_by_cached_key(|target| (rank(seed, &target.name), target.address));
}

/// FNV-1a over the bytes of seed and name, then the last steps of splitmix64, as FNV-1a alone
/// leaves the high bits of short names alike. Written out, because a library may change its hashes
/// and lists must stay the same.
fn rank(seed: u64, name: &str) -> u64 {
    let bytes = seed.to_le_bytes().into_iter().chain(name.bytes());
    let hash = bytes.fold(0xcbf2_9ce4_8422_2325_u64, |hash, byte| {
        (hash ^ u64::from(byte)).wrapping_mul(0x0000_0100_0000_01b3)
    });
    let mixed = (hash ^ (hash >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    let mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    mixed ^ (mixed >> 31)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn ordered(names: impl IntoIterator<Item = String>, seed: u64) -> Vec<String> {
        let target = |name| Target { name, btf_id: 0, btf: 0, address: 0 };
        let mut targets: Vec<Target> = names.into_iter().map(target).collect();
        order(&mut targets, seed);
        targets.into_iter().map(|target| target.name).collect()
    }

    #[test]
    fn keeps_the_order_of_a_seed() {
        // Another program computed it from the published definitions of both hashes.
        let table = [
            (0, "", 0x813f_0174_a236_7c13),
            (0, "vfs_read", 0xe5e5_8a3f_8eae_9926),
            (1, "vfs_read", 0xa4e7_ce01_c852_5a15),
            (0, "vfs_write", 0xbcaa_7cda_31ec_2f36),
            (1 << 63, "tcp_sendmsg", 0x1f08_ef3d_fb6a_90ee),
        ];
        for (seed, name, expected) in table {
            assert_eq!(rank(seed, name), expected, "{seed} {name}");
        }
        let names = || (0..100).map(|number| format!("f{number}"));
        assert_eq!(ordered(names(), 7), ordered(names().rev(), 7), "whatever order they come in");
        assert_ne!(ordered(names(), 7), ordered(names(), 8));
        let mut sorted = ordered(names(), 7);
        sorted.sort_unstable();
        let mut all: Vec<String> = names().collect();
        all.sort_unstable();
        assert_eq!(sorted, all);
        order(&mut [], 0);
    }

    #[test]
    fn finds_the_places_of_functions() {
        let list = "a\nb\nm [ext4]\nb\nc\n";
        let of = |names: &[&'static str]| places(list, names.iter().copied());
        let places = |first, last| Some(Places { first, last, records: 5 });
        assert_eq!(of(&["b"]), places(1, 1));
        assert_eq!(of(&["c", "a", "ext4:m"]), places(0, 4));
        assert_eq!((of(&["a", "d"]), of(&[])), (None, None));
    }

    /// No seed may prefer functions with similar names.
    #[test]
    fn orders_independently_of_the_names() {
        let names =
            |prefix: &str| (0..1000).map(|number| format!("{prefix}{number}")).collect::<Vec<_>>();
        let both = [names("__x64_sys_"), names("tcp_")].concat();
        for seed in 0..20 {
            let chosen = &ordered(both.clone(), seed)[..100];
            let tcp = chosen.iter().filter(|name| name.starts_with("tcp_")).count();
            assert!((25..=75).contains(&tcp), "{tcp} of 100 by seed {seed}");
        }
    }

    #[test]
    fn keeps_the_order_when_a_function_comes_or_goes() {
        let names: Vec<String> = (0..1000).map(|number| format!("f{number}")).collect();
        let base = ordered(names.clone(), 3);
        for gone in names.iter().step_by(37) {
            let head = ordered(names.iter().filter(|&name| name != gone).cloned(), 3);
            assert_eq!(head, base.iter().filter(|&name| name != gone).cloned().collect::<Vec<_>>());
        }
    }

    #[test]
    fn orders_namesakes_by_address() {
        let namesake = |address| Target { name: "t_show".to_owned(), btf_id: 0, btf: 0, address };
        let mut targets = [namesake(3), namesake(1), namesake(2)];
        order(&mut targets, 5);
        assert_eq!(targets.map(|target| target.address), [1, 2, 3]);
    }

    #[test]
    fn chooses_plain_functions_with_unique_names() {
        let kallsyms = Kallsyms::parse(include_str!("../tests/kallsyms.txt").to_owned()).unwrap();
        let btf = KernelBtf::of_functions(&[
            ("__set_task_comm", true),
            ("begin_new_exec", true),
            ("entry_SYSCALL_64", false),
            ("bpf_fentry_test1", true),
            ("t_show", true),
            ("perf_trace_bpf_trigger_tp", true),
            ("perf_trace_bpf_test_finish", true),
        ]);
        // In order: chosen, not plain, denied, two in kallsyms, in a module, none in kallsyms,
        // listed twice, chosen, not in BTF.
        let available = "perf_trace_bpf_trigger_tp\nentry_SYSCALL_64\nbpf_fentry_test1\nt_show\n\
                         _etext [ext4]\nbegin_new_exec\nperf_trace_bpf_test_finish\n\
                         perf_trace_bpf_test_finish\n__set_task_comm\n\
                         __x64_sys_fork\n";
        let named = |chosen: Vec<Target>| {
            chosen.into_iter().map(|target| (target.name, target.address)).collect::<Vec<_>>()
        };
        let chosen =
            |choice| candidates(available, choice, |name| btf.plain_function(name), &kallsyms);
        let plain = || chosen(Choice::Safe);
        let injectable = |list| {
            let mut plain = plain();
            keep_injectable(&mut plain, list, false);
            named(plain)
        };
        let set_comm = ("__set_task_comm".to_owned(), 0xffff_ffff_9301_81a0);
        let trigger = ("perf_trace_bpf_trigger_tp".to_owned(), 0xffff_ffff_937f_fdc0);
        assert_eq!(named(plain()), [set_comm.clone(), trigger.clone()]);
        let traceable = |name: &str| btf.traceable_function(name);
        let all = named(candidates(available, Choice::Safe, traceable, &kallsyms));
        assert_eq!(all.len(), 3, "those that are not plain as well: {all:?}");
        assert_eq!(
            (&all[0], &all[1].0, &all[2]),
            (&set_comm, &"entry_SYSCALL_64".to_owned(), &trigger)
        );
        // The user may name what is not safe, by pattern too.
        let among = ["bpf_fentry_test?".parse().unwrap(), "ext4:*".parse().unwrap()];
        let test = ("bpf_fentry_test1".to_owned(), 0xffff_ffff_937f_fd90);
        let among = Patterns::new(&among);
        assert_eq!(named(chosen(Choice::Among(&among))), [test]);
        assert_eq!(injectable(""), []);
        assert_eq!(injectable("__set_task_comm\tERRNO\n"), [set_comm]);
    }

    /// A hook's result may be overridden; a function of that name need not be allowed to sleep.
    #[test]
    fn only_listed_functions_are_for_programs_that_sleep() {
        let target = |name: &str| Target { name: name.to_owned(), btf_id: 1, btf: 0, address: 1 };
        for (sleeps, expected) in
            [(false, &["security_bpf", "__x64_sys_fork"][..]), (true, &["__x64_sys_fork"])]
        {
            let mut found = ["security_bpf", "__x64_sys_fork", "vfs_read"].map(target).to_vec();
            keep_injectable(&mut found, "__x64_sys_fork\tERRNO\n", sleeps);
            let names: Vec<&str> = found.iter().map(|target| target.name.as_str()).collect();
            assert_eq!(names, expected);
        }
    }

    #[test]
    fn lists_both_namesakes_by_address() {
        let kallsyms = Kallsyms::parse(include_str!("../tests/kallsyms.txt").to_owned()).unwrap();
        let available =
            "__set_task_comm\nt_show\nt_show\nrcu_read_unlock_strict\nvfs_read [fs]\nno_such\n";
        let with = "ffffffff81000014 t_show\nffffffff81000004 vfs_write\nffffffff81000024 t_show\n\
                    ffffffff81000034 rcu_read_unlock_strict\nffffffffc0000004 ext4_read [ext4]\n";
        let named = |targets: Vec<Target>| {
            targets.into_iter().map(|target| (target.name, target.address)).collect::<Vec<_>>()
        };
        assert_eq!(
            named(by_address(available, Some(with), Choice::Safe, &kallsyms)),
            [
                ("t_show", 0xffff_ffff_8100_0014),
                ("t_show", 0xffff_ffff_8100_0024),
                ("vfs_write", 0xffff_ffff_8100_0004)
            ]
            .map(|(name, address)| (name.to_owned(), address))
        );
        // Without addresses a namesake has none.
        let expected = [("__set_task_comm".to_owned(), 0xffff_ffff_9301_81a0)];
        assert_eq!(named(by_address(available, None, Choice::Safe, &kallsyms)), expected);
    }

    #[test]
    fn chooses_what_the_user_names() {
        let kallsyms = Kallsyms::parse(include_str!("../tests/kallsyms.txt").to_owned()).unwrap();
        let available = "t_show\nt_show\n__set_task_comm\next4_read [ext4]\next4_write [ext4]\n";
        let with = "ffffffff81000014 t_show\nffffffff81000024 t_show\n\
                    ffffffff81000034 rcu_read_unlock_strict\nffffffffc0000004 ext4_read [ext4]\n";
        for (patterns, by_addresses, by_names) in [
            ("t_*", "t_show t_show", "t_show"),
            ("ext4:*_read rcu_*", "ext4:ext4_read rcu_read_unlock_strict", "ext4:ext4_read"),
            ("ext4_*", "", ""),
            (
                "__set_task_comm ext?:*",
                "ext4:ext4_read",
                "__set_task_comm ext4:ext4_read ext4:ext4_write",
            ),
        ] {
            let among: Vec<_> =
                patterns.split(' ').map(|pattern| pattern.parse().unwrap()).collect();
            let among = Patterns::new(&among);
            let choice = Choice::Among(&among);
            let named = |targets: Vec<Target>| {
                targets.into_iter().map(|target| target.name).collect::<Vec<_>>().join(" ")
            };
            let found = named(by_address(available, Some(with), choice, &kallsyms));
            assert_eq!(found, by_addresses, "{patterns}");
            assert_eq!(named(by_name(available, choice)), by_names, "{patterns}");
        }
    }

    #[test]
    fn looks_up_functions_of_modules() {
        let available = "vfs_read\nxfs_two [xfs]\nxfs_one [xfs]\ntwin [xfs]\ntwin [xfs]\n\
                         xfs_hidden [xfs]\nxfs_fuse [fuse]\n";
        let among: Vec<_> = ["xfs:*", "vfs_read"].map(|text| text.parse().unwrap()).into();
        let among = Patterns::new(&among);
        let found = of_modules(available, Choice::Among(&among), |module, name| {
            assert_eq!(module, "xfs");
            Ok::<_, ()>((name != "xfs_hidden").then_some((7, name.len() as u32)))
        });
        let mut found = found.unwrap();
        let names: Vec<&str> = found.iter().map(|target| &*target.name).collect();
        assert_eq!(names, ["xfs:xfs_one", "xfs:xfs_two"]);
        assert!(found.iter().all(|target| (target.btf, target.btf_id) == (7, 7)));
        keep_injectable(&mut found, "xfs_one\tERRNO\nxfs_two [xfs]\tERRNO\n", false);
        assert_eq!(found.iter().map(|target| &*target.name).collect::<Vec<_>>(), ["xfs:xfs_two"]);
        let none = of_modules(available, Choice::Safe, |_, _| Ok::<_, ()>(Some((7, 1))));
        assert_eq!(none.unwrap(), []);
    }

    #[test]
    fn leaves_out_modules() {
        let list = "vfs_read\nvirtcons_probe [virtio_console]\nvfs_write\n";
        assert_eq!(image_functions(list).collect::<Vec<_>>(), ["vfs_read", "vfs_write"]);
        let injectable = "should_failslab\tERRNO\nvirt_fn [virtio]\tNULL\nopen_ctree\tERRNO\n";
        assert!(image_functions(injectable).any(|name| name == "open_ctree"));
    }

    #[test]
    fn denies_the_functions_of_the_tracer() {
        for name in [
            "__rcu_read_lock",
            "migrate_disable",
            "preempt_count_add",
            "rcu_read_unlock_strict",
            "do_exit",
        ] {
            assert!(is_denied(name), "{name}");
        }
        for name in ["vfs_read", "__x64_sys_read", "tcp_sendmsg", "security_file_open"] {
            assert!(!is_denied(name), "{name}");
        }
    }
}
