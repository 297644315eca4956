// SPDX-License-Identifier: MIT OR Apache-2.0
//! The reasons why a mechanism cannot trace a function of some name. Every measurement tells them
//! in the same words.

use crate::functions;
use crate::kallsyms::{ByName, Kallsyms};
use crate::kernel_btf::{Described, KernelBtf};
use crate::known::Known;
use std::cell::OnceCell;
use std::collections::HashMap;
use std::ops::Range;
use tramplab_protocol::Mechanism;
use tramplab_protocol::mechanism::{Site, Way};
use tramplab_protocol::message::GuestError;
use tramplab_protocol::pattern;

/// Names of a message at most.
const SHOWN: usize = 5;

#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum NameError {
    #[error(
        "the kernel has no function {name}{}{}",
        did_you_mean(suggestion.as_deref()),
        of_a_module(name)
    )]
    Unknown { name: String, suggestion: Option<String> },
    #[error("the kernel has no LSM hook {name}{}", did_you_mean(suggestion.as_deref()))]
    NoHook { name: String, suggestion: Option<String> },
    #[error("the kernel has {name} only as {}, which the compiler made of it", others.join(", "))]
    OnlyAs { name: String, others: Vec<String> },
    #[error("{count} functions have the name {name}, which cannot tell one from another")]
    Several { name: String, count: usize },
    #[error("{name} is data, and no function")]
    Data { name: String },
    #[error("{name} is a function of the module {module}: name it {module}:{name}")]
    InModule { name: String, module: String },
    #[error("{name} is __init: its code is gone once the kernel is up")]
    Init { name: String },
    #[error("{name} is an alias of {of}, as which the kernel lists it: name {of}")]
    Alias { name: String, of: String },
    #[error("{name} is a part of {of}, which the compiler moved out of it: name {of}")]
    Part { name: String, of: String },
    #[error("ftrace does not list {name}: it is notrace, or not compiled from C")]
    NoTrace { name: String },
    #[error("ftrace lists {name}, but BTF does not describe it, and {mechanism} needs that")]
    NotInBtf { name: String, mechanism: Mechanism },
    #[error("BTF describes several functions of the name {name}, and {mechanism} needs one")]
    SeveralInBtf { name: String, mechanism: Mechanism },
    #[error("{name} is a kfunc, which tracing multi refuses, and attach tests leave out")]
    Kfunc { name: String },
    #[error(
        "{mechanism} cannot change the result of {name}: the kernel allows that for security hooks \
         and functions of its error injection"
    )]
    NotModifiable { name: String, mechanism: Mechanism },
}

pub fn did_you_mean(suggestion: Option<&str>) -> String {
    suggestion.map_or_else(String::new, |name| format!("; did you mean {name}?"))
}

fn of_a_module(name: &str) -> &'static str {
    match name.contains(':') {
        // Modules free the code of their initialisation, and the kernel the names of it.
        true => "; an __init function of a module is gone once it is loaded",
        false => "; a function of a module is named MODULE:FUNCTION",
    }
}

impl From<NameError> for GuestError {
    fn from(error: NameError) -> GuestError {
        GuestError::Unsupported(error.to_string())
    }
}

/// The table that a mechanism finds a function in.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Needs {
    Symbol,
    Ftrace,
    Btf,
}

impl Needs {
    fn of(mechanism: Mechanism) -> Needs {
        match mechanism.way() {
            Way::Kprobe => Needs::Symbol,
            Way::Fprobe => Needs::Ftrace,
            _ => Needs::Btf,
        }
    }
}

/// The lists of tracefs and debugfs, read when they are needed.
#[derive(Debug, Default)]
pub struct Lists {
    /// None if the kernel has no such list.
    available: OnceCell<Option<String>>,
    injectable: OnceCell<String>,
}

impl Lists {
    fn available(&self) -> Option<&str> {
        self.available.get_or_init(|| functions::available().ok()).as_deref()
    }

    fn injectable(&self) -> &str {
        self.injectable.get_or_init(functions::injectable)
    }
}

/// The entry of a function in BTF, by module and name.
type Describe<'a> = dyn Fn(Option<&str>, &str) -> Described + 'a;

/// How often ftrace's list has each function, by module and name.
type Listed<'a> = HashMap<(Option<&'a str>, &'a str), usize>;

/// The kernel's tables of functions, for some names.
pub struct Tables<'a> {
    symbols: &'a Kallsyms,
    by_name: ByName<'a>,
    init: Range<u64>,
    described: Box<Describe<'a>>,
    lists: &'a Lists,
    /// None if the kernel has no such list.
    listed: OnceCell<Option<Listed<'a>>>,
}

impl<'a> Tables<'a> {
    fn new(
        names: &[String],
        symbols: &'a Kallsyms,
        lists: &'a Lists,
        described: Box<Describe<'a>>,
    ) -> Self {
        let initial = |name: &String| pattern::split(name).1.bytes().next();
        let mut initials: Vec<u8> = names.iter().filter_map(initial).collect();
        initials.sort_unstable();
        initials.dedup();
        Tables {
            symbols,
            by_name: symbols.by_name(&initials),
            init: symbols.init(),
            described,
            lists,
            listed: OnceCell::new(),
        }
    }

    fn listed(&self) -> Option<&Listed<'a>> {
        let read = || self.lists.available().map(functions::occurrences);
        self.listed.get_or_init(read).as_ref()
    }

    /// The tables for `names`.
    pub fn of(names: &[String], known: &'a Known, lists: &'a Lists) -> Result<Self, GuestError> {
        let btf: &KernelBtf = known.btf()?;
        let described = |module: Option<&str>, name: &str| match module {
            None => btf.described(name),
            Some(module) => known.modules.described(module, name),
        };
        Ok(Tables::new(names, known.symbols()?, lists, Box::new(described)))
    }
}

/// The reason against one name, as far as the tables tell one.
pub fn reason_of_one(
    mechanism: Mechanism,
    name: &str,
    known: &Known,
) -> Result<Option<NameError>, GuestError> {
    let lists = Lists::default();
    Ok(reason(mechanism, name, &Tables::of(&[name.to_owned()], known, &lists)?))
}

/// The same after the kernel's refusal.
pub fn reason_of_refusal(
    mechanism: Mechanism,
    name: &str,
    known: &Known,
) -> Result<Option<NameError>, GuestError> {
    let lists = Lists::default();
    Ok(reason_in_lists(mechanism, name, &Tables::of(&[name.to_owned()], known, &lists)?))
}

/// As [`reason`], and also if only ftrace does not list the function. Kprobes find every symbol,
/// but attach tests choose from ftrace's list, and the kernel forbids them in most other code.
pub fn reason_in_lists(mechanism: Mechanism, name: &str, tables: &Tables<'_>) -> Option<NameError> {
    let of_ftrace = || reason(Mechanism::KprobeMulti, name, tables);
    reason(mechanism, name, tables).or_else(of_ftrace)
}

/// The reason why a mechanism cannot trace `NAME` or `MODULE:NAME`, if the tables tell one.
pub fn reason(mechanism: Mechanism, name: &str, tables: &Tables<'_>) -> Option<NameError> {
    let Tables { symbols, by_name, init, described, lists, .. } = tables;
    let (module, plain) = pattern::split(name);
    let named = || name.to_owned();
    let all = by_name.named(module, plain);
    let functions: Vec<_> = all.iter().filter(|symbol| symbol.is_text).collect();
    let (only, address) = match functions[..] {
        [] => return Some(absent(name, !all.is_empty(), by_name)),
        [only] => (only.module, only.address),
        _ => return Some(NameError::Several { name: named(), count: functions.len() }),
    };
    if let (None, Some(of)) = (module, only) {
        return Some(NameError::InModule { name: named(), module: of.to_owned() });
    }
    if init.contains(&address) {
        return Some(NameError::Init { name: named() });
    }
    let needs = Needs::of(mechanism);
    // Another name of the same code that satisfies the mechanism.
    let alias = |suits: &dyn Fn(&str) -> bool| {
        let others = symbols.names_at(address);
        let of = others.into_iter().find(|&other| other != plain && suits(other))?;
        Some(NameError::Alias { name: named(), of: pattern::joined(module, of) })
    };
    if needs != Needs::Symbol
        && let Some(available) = tables.listed()
    {
        let listed = |name: &str| available.get(&(module, name)).copied().unwrap_or(0);
        match listed(plain) {
            1 => {}
            0 => {
                let is_listed = |other: &str| {
                    listed(other) == 1
                        && (needs == Needs::Ftrace || described(module, other).is_one())
                };
                let part = || {
                    let of = [".cold", ".part."].iter().find_map(|mark| plain.split_once(mark))?.0;
                    let of = pattern::joined(module, of);
                    Some(NameError::Part { name: named(), of })
                };
                let no_trace = || NameError::NoTrace { name: named() };
                return Some(alias(&is_listed).or_else(part).unwrap_or_else(no_trace));
            }
            count => return Some(NameError::Several { name: named(), count }),
        }
    }
    if needs == Needs::Btf {
        match described(module, plain) {
            Described::One => {}
            Described::Kfunc => return Some(NameError::Kfunc { name: named() }),
            Described::Several => {
                return Some(NameError::SeveralInBtf { name: named(), mechanism });
            }
            Described::Absent => {
                let is_described = |other: &str| described(module, other).is_one();
                let none = || NameError::NotInBtf { name: named(), mechanism };
                return Some(alias(&is_described).unwrap_or_else(none));
            }
        }
    }
    let is_fixed =
        mechanism.site() == Site::Modifiable && !functions::is_modifiable(name, lists.injectable());
    is_fixed.then(|| NameError::NotModifiable { name: named(), mechanism })
}

/// The reason why there is no function of a name.
fn absent(name: &str, is_data: bool, symbols: &ByName<'_>) -> NameError {
    let (module, plain) = pattern::split(name);
    if is_data {
        return NameError::Data { name: name.to_owned() };
    }
    let mut others = symbols.variants(module, plain);
    if others.is_empty() {
        let nearest = symbols.nearest(module, plain);
        let suggestion = nearest.map(|nearest| pattern::joined(module, nearest));
        return NameError::Unknown { name: name.to_owned(), suggestion };
    }
    let more = others.len() > SHOWN;
    others.truncate(SHOWN);
    let mut others: Vec<String> =
        others.into_iter().map(|other| pattern::joined(module, other)).collect();
    others.extend(more.then(|| "…".to_owned()));
    NameError::OnlyAs { name: name.to_owned(), others }
}

#[cfg(test)]
mod tests {
    use super::*;
    use Mechanism::{Fentry, FmodRet, Kprobe, KprobeMulti};

    /// Lines of a 7.2 of x86-64 (Debian's cloud kernel), shortened.
    const KALLSYMS: &str = "\
ffffffff81000000 T _text
ffffffff81000010 t finish_task_switch.isra.0
ffffffff81000020 t s_next
ffffffff81000030 t s_next
ffffffff81000040 T __x64_sys_getpid
ffffffff81000040 t __do_sys_getpid
ffffffff81000050 T asm_sysvec_reschedule_ipi
ffffffff81000060 T vfs_statfs
ffffffff81000070 t vfs_read.cold
ffffffff81000080 T vfs_read
ffffffff81000090 t twice_in_btf
ffffffff810000a0 T bpf_kfunc_like
ffffffff810000b0 T security_task_prctl
ffffffff810000c0 T should_failslab
ffffffff810000d0 D jiffies
ffffffff82000000 T _sinittext
ffffffff82000000 T start_kernel
ffffffff82001000 T _einittext
ffffffffc0301000 t md_flush_request\t[md_mod]
ffffffffc0301010 t bare\t[md_mod]
ffffffffc0301020 t twin\t[md_mod]
ffffffffc0301030 t twin\t[md_mod]
";
    const AVAILABLE: &str = "finish_task_switch.isra.0\ns_next\ns_next\n__do_sys_getpid\n\
                             vfs_statfs\nvfs_read\ntwice_in_btf\nbpf_kfunc_like\n\
                             security_task_prctl\nshould_failslab\nmd_flush_request [md_mod]\n\
                             bare [md_mod]\n";

    fn described(module: Option<&str>, name: &str) -> Described {
        match (module, name) {
            (None, "twice_in_btf") => Described::Several,
            (None, "bpf_kfunc_like") => Described::Kfunc,
            (None, "finish_task_switch.isra.0") | (Some(_), "bare") => Described::Absent,
            _ => Described::One,
        }
    }

    fn told(mechanism: Mechanism, name: &str) -> Option<NameError> {
        let symbols = Kallsyms::parse(KALLSYMS.to_owned()).unwrap();
        let lists = Lists {
            available: OnceCell::from(Some(AVAILABLE.to_owned())),
            injectable: OnceCell::from("should_failslab ERRNO\n".to_owned()),
        };
        let names = [name.to_owned(), "zero".to_owned()];
        reason(mechanism, name, &Tables::new(&names, &symbols, &lists, Box::new(described)))
    }

    #[test]
    fn tells_one_reason_for_each_name() {
        let name = |name: &str| name.to_owned();
        let unknown = |of: &str, suggestion: Option<&str>| NameError::Unknown {
            name: name(of),
            suggestion: suggestion.map(str::to_owned),
        };
        let alias =
            NameError::Alias { name: name("__x64_sys_getpid"), of: name("__do_sys_getpid") };
        let no_trace = || Some(NameError::NoTrace { name: name("asm_sysvec_reschedule_ipi") });
        let only_as = NameError::OnlyAs {
            name: name("finish_task_switch"),
            others: vec![name("finish_task_switch.isra.0")],
        };
        let several = |of: &str| Some(NameError::Several { name: name(of), count: 2 });
        let init = || Some(NameError::Init { name: name("start_kernel") });
        let part = NameError::Part { name: name("vfs_read.cold"), of: name("vfs_read") };
        let not_in_btf = |of: &str| Some(NameError::NotInBtf { name: name(of), mechanism: Fentry });
        let in_module =
            || Some(NameError::InModule { name: name("md_flush_request"), module: name("md_mod") });
        for (of, by_btf, by_address, by_name) in [
            ("vfs_statfs", None, None, None),
            ("finish_task_switch", Some(only_as.clone()), Some(only_as.clone()), Some(only_as)),
            ("finish_task_switch.isra.0", not_in_btf("finish_task_switch.isra.0"), None, None),
            ("s_next", several("s_next"), several("s_next"), several("s_next")),
            ("__do_sys_getpid", None, None, None),
            ("__x64_sys_getpid", Some(alias.clone()), Some(alias), None),
            ("asm_sysvec_reschedule_ipi", no_trace(), no_trace(), None),
            ("start_kernel", init(), init(), init()),
            ("vfs_read.cold", Some(part.clone()), Some(part), None),
            (
                "twice_in_btf",
                Some(NameError::SeveralInBtf { name: name("twice_in_btf"), mechanism: Fentry }),
                None,
                None,
            ),
            ("bpf_kfunc_like", Some(NameError::Kfunc { name: name("bpf_kfunc_like") }), None, None),
            (
                "jiffies",
                Some(NameError::Data { name: name("jiffies") }),
                Some(NameError::Data { name: name("jiffies") }),
                Some(NameError::Data { name: name("jiffies") }),
            ),
            ("md_flush_request", in_module(), in_module(), in_module()),
            ("md_mod:md_flush_request", None, None, None),
            ("md_mod:bare", not_in_btf("md_mod:bare"), None, None),
            ("md_mod:twin", several("md_mod:twin"), several("md_mod:twin"), several("md_mod:twin")),
        ] {
            assert_eq!(told(Fentry, of), by_btf, "{of}");
            assert_eq!(told(KprobeMulti, of), by_address, "{of}");
            assert_eq!(told(Kprobe, of), by_name, "{of}");
        }
        for (of, suggestion) in [
            ("do_nothing_such", None),
            ("vfs_stafs", Some("vfs_statfs")),
            ("vfs_raed", Some("vfs_read")),
            ("md_mod:md_flush_requests", Some("md_mod:md_flush_request")),
            ("md_mod:vfs_reed", None),
        ] {
            for mechanism in [Fentry, KprobeMulti, Kprobe] {
                assert_eq!(told(mechanism, of), Some(unknown(of, suggestion)));
            }
        }
    }

    #[test]
    fn modifies_only_results_of_injectable_functions() {
        for name in ["security_task_prctl", "should_failslab"] {
            assert_eq!(told(FmodRet, name), None, "{name}");
        }
        let name = "vfs_statfs".to_owned();
        assert_eq!(
            told(FmodRet, "vfs_statfs"),
            Some(NameError::NotModifiable { name, mechanism: FmodRet })
        );
    }
}
