// SPDX-License-Identifier: MIT OR Apache-2.0
//! Runtime switches: words of a kernel's command line that change what a guest measures. The host
//! rejects those with which nothing can be measured; the agent keeps the others and checks that the
//! kernel took them.

use crate::message::PROGRAM_WORD;
use std::collections::BTreeMap;

/// Prefix of words for the agent. The kernel takes a word with a dot for a module's parameter and
/// ignores it.
const OWN: &str = "tramplab.";
/// `tramplab.cgroup_program=1`: the agent attaches a program to the root cgroup.
pub const CGROUP_PROGRAM: &str = "tramplab.cgroup_program";

/// The switches of one command line.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Switches {
    /// Values by name, with slashes: `kernel/bpf_stats_enabled`.
    pub sysctls: BTreeMap<String, String>,
    /// Security modules that `lsm=` enables. None: the kernel's own choice.
    pub lsm: Option<Vec<String>>,
    pub cgroup_program: bool,
}

impl Switches {
    /// Reads a command line as the kernel does: the last word for an option wins, and words behind
    /// `--` are for the first process.
    pub fn of(line: &str) -> Switches {
        let mut switches = Switches::default();
        for (name, value) in options(line) {
            match (sysctl(name), name) {
                (Some(name), _) => {
                    switches.sysctls.insert(name, value.to_owned());
                }
                (None, "lsm") => {
                    let names = value.split(',').filter(|name| !name.is_empty());
                    switches.lsm = Some(names.map(str::to_owned).collect());
                }
                (None, CGROUP_PROGRAM) => switches.cgroup_program = value == "1",
                (None, _) => {}
            }
        }
        switches
    }
}

/// The word for a sysctl: `sysctl.kernel.bpf_stats_enabled=1`.
pub fn word(name: &str, value: &str) -> String {
    format!("sysctl.{}={value}", name.replace('/', "."))
}

/// `kernel/bpf_stats_enabled`, if the option sets a sysctl. The kernel takes `.` and `/` alike
/// (K `process_sysctl_arg`, fs/proc/proc_sysctl.c).
fn sysctl(option: &str) -> Option<String> {
    let name = option.strip_prefix("sysctl")?.strip_prefix(['.', '/'])?;
    Some(name.replace('.', "/"))
}

/// Returns true for an option of the kernel about mitigations
/// (Documentation/admin-guide/kernel-parameters.txt).
pub fn is_of_mitigations(option: &str) -> bool {
    const OPTIONS: [&str; 25] = [
        "gather_data_sampling",
        "indirect_target_selection",
        "kpti",
        "kvm.nx_huge_pages",
        "l1tf",
        "mds",
        "mitigations",
        "mmio_stale_data",
        "nopti",
        "nospectre_bhb",
        "nospectre_v1",
        "nospectre_v2",
        "pti",
        "reg_file_data_sampling",
        "retbleed",
        "spec_rstack_overflow",
        "spec_store_bypass_disable",
        "spectre_bhi",
        "spectre_v2",
        "spectre_v2_user",
        "srbds",
        "ssbd",
        "tsa",
        "tsx_async_abort",
        "vmscape",
    ];
    OPTIONS.contains(&option)
}

/// Splits a command line into options and values, without quotes (K `next_arg`, lib/cmdline.c).
pub fn options(line: &str) -> impl Iterator<Item = (&str, &str)> {
    let mut quoted = false;
    let words = line.split(move |c: char| {
        quoted ^= c == '"';
        c.is_ascii_whitespace() && !quoted
    });
    words.filter(|word| !word.is_empty()).take_while(|&word| word != "--").map(|word| {
        let word = word.strip_prefix('"').map_or(word, |rest| rest.trim_end_matches('"'));
        let (name, value) = word.split_once('=').unwrap_or((word, ""));
        (name, value.trim_matches('"'))
    })
}

/// Values of a sysctl with which nothing can be measured, or an error would be a pass.
struct Unusable {
    sysctl: &'static str,
    is_usable: fn(i128) -> bool,
    /// Follows the word in a message.
    why: &'static str,
}

/// All were tried in guests. Other sysctls are the user's: the agent changes none that is set.
const UNUSABLE: [Unusable; 3] = [
    Unusable {
        sysctl: "kernel/kptr_restrict",
        is_usable: |value| matches!(value, 0 | 1),
        why: "hides the addresses of functions from the agent: set 0 or 1",
    },
    Unusable {
        sysctl: "kernel/ftrace_enabled",
        is_usable: |value| value != 0,
        why: "keeps functions from calling ftrace, and so all programs on functions: remove it",
    },
    Unusable {
        sysctl: "kernel/printk",
        // A warning has level 4 and is printed below the console's level.
        is_usable: |value| value > 4,
        why: "hides warnings from the console, by which a run notices them: set 5 or more",
    },
];

/// Why guests with these words cannot measure, if they cannot.
pub fn objection(words: &[String]) -> Option<String> {
    if let Some(word) = words.iter().find(|word| word.contains(char::is_control)) {
        return Some(format!("{word:?} has a control character: expected a word"));
    }
    let line = words.join(" ");
    let switches = Switches::of(&line);
    let unusable = UNUSABLE.iter().find_map(|Unusable { sysctl, is_usable, why }| {
        let value = switches.sysctls.get(*sysctl)?;
        let first = number(value.split_ascii_whitespace().next()?)?;
        (!is_usable(first)).then(|| format!("`{}` {why}", word(sysctl, value)))
    });
    unusable.or_else(|| foreign(&line))
}

/// An option of tramplab's own that does not exist: the kernel would ignore it.
fn foreign(line: &str) -> Option<String> {
    let is_known = |name: &str, value: &str| name == CGROUP_PROGRAM && matches!(value, "0" | "1");
    let own = options(line).filter(|(name, _)| name.starts_with(OWN));
    let (name, value) = own.filter(|(name, value)| !is_known(name, value)).last()?;
    let word = format!("{name}={value}");
    Some(match word == PROGRAM_WORD {
        true => format!("`{word}` is for guests of virtme-ng, which get it anyway: remove it"),
        false => format!("`{word}` is no switch: expected {CGROUP_PROGRAM}=0 or 1"),
    })
}

/// True if a sysctl that reads as `now` has the value that was written. The kernel formats numbers
/// anew, and a list may be written in part.
pub fn is_taken(written: &str, now: &str) -> bool {
    let mut read = now.split_ascii_whitespace();
    let mut wanted = written.split_ascii_whitespace().peekable();
    wanted.peek().is_some()
        && wanted.all(|wanted| {
            read.next().is_some_and(|read| {
                let same = || Some(number(wanted)? == number(read)?);
                wanted == read || same().unwrap_or(false)
            })
        })
}

/// A number as the kernel reads it: decimal, or `0x1f`, or octal with a leading 0.
fn number(text: &str) -> Option<i128> {
    let (sign, digits) = text.strip_prefix('-').map_or((1, text), |digits| (-1, digits));
    let hexadecimal = digits.strip_prefix("0x").or_else(|| digits.strip_prefix("0X"));
    let value = match (hexadecimal, digits.strip_prefix('0')) {
        (Some(digits), _) => i128::from_str_radix(digits, 16),
        (None, Some(octal)) if !octal.is_empty() => i128::from_str_radix(octal, 8),
        (None, _) => digits.parse(),
    };
    value.ok().map(|value| sign * value)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn sysctls(line: &str) -> Vec<(String, String)> {
        Switches::of(line).sysctls.into_iter().collect()
    }

    #[test]
    fn reads_sysctls_as_the_kernel_does() {
        let one = |name: &str, value: &str| vec![(name.to_owned(), value.to_owned())];
        let stats = |value| one("kernel/bpf_stats_enabled", value);
        for (line, expected) in [
            ("quiet sysctl.kernel.bpf_stats_enabled=1 panic=-1\n", stats("1")),
            ("sysctl/kernel/bpf_stats_enabled=1", stats("1")),
            ("sysctl.kernel/bpf_stats_enabled=1", stats("1")),
            // The last wins, in any spelling.
            ("sysctl.kernel.bpf_stats_enabled=1 sysctl.kernel/bpf_stats_enabled=0", stats("0")),
            ("sysctl.kernel.printk=\"4 4 1 7\"", one("kernel/printk", "4 4 1 7")),
            ("\"sysctl.kernel.printk=4 4 1 7\" a", one("kernel/printk", "4 4 1 7")),
            ("sysctl.a=b=c", one("a", "b=c")),
            // The kernel takes neither.
            ("sysctl.kernel.bpf_stats_enabled", stats("")),
            ("sysctl.kernel.bpf_stats_enabled=", stats("")),
            (
                "sysctl_kernel.bpf_stats_enabled=1 sysctls.a=1 kernel.sysctl.a=1 dyndbg=\"a b\"",
                vec![],
            ),
            ("quiet -- sysctl.kernel.bpf_stats_enabled=1", vec![]),
        ] {
            assert_eq!(sysctls(line), expected, "{line}");
        }
    }

    #[test]
    fn reads_other_switches() {
        let names = |names: &[&str]| Some(names.iter().map(|&name| name.to_owned()).collect());
        for (line, lsm, cgroup_program) in [
            ("lsm_debug lsmx=a security=b", None, false),
            ("lsm= tramplab.cgroup_program=1", names(&[]), true),
            ("lsm=bpf lsm=lockdown,yama", names(&["lockdown", "yama"]), false),
            ("tramplab.cgroup_program=1 tramplab.cgroup_program=0", None, false),
        ] {
            let switches = Switches::of(line);
            assert_eq!((switches.lsm, switches.cgroup_program), (lsm, cgroup_program), "{line}");
        }
    }

    #[test]
    fn rejects_words_with_which_nothing_can_be_measured() {
        let of =
            |words: &[&str]| objection(&words.iter().map(|&w| w.to_owned()).collect::<Vec<_>>());
        for (words, expected) in [
            (&["sysctl.kernel.kptr_restrict=2"][..], "`sysctl.kernel.kptr_restrict=2` hides"),
            (&["quiet sysctl/kernel/kptr_restrict=2"], "`sysctl.kernel.kptr_restrict=2` hides"),
            (&["sysctl.kernel.ftrace_enabled=0"], "`sysctl.kernel.ftrace_enabled=0` keeps"),
            (&["sysctl.kernel.ftrace_enabled=0x0"], "`sysctl.kernel.ftrace_enabled=0x0` keeps"),
            (&["sysctl.kernel.printk=\"4 4 1 7\""], "`sysctl.kernel.printk=4 4 1 7` hides warn"),
            (&["tramplab.agent=program"], "for guests of virtme-ng"),
            (&["tramplab.cgroup_program=yes"], "expected tramplab.cgroup_program=0 or 1"),
            (&["tramplab.cgroups=1"], "`tramplab.cgroups=1` is no switch"),
        ] {
            let error = of(words).unwrap_or_else(|| panic!("{words:?} accepted"));
            assert!(error.contains(expected), "{words:?}: {error}");
        }
        for fine in [
            &["sysctl.kernel.kptr_restrict=1"][..],
            // The last counts.
            &["sysctl.kernel.kptr_restrict=2", "sysctl.kernel.kptr_restrict=0"],
            &["sysctl.kernel.printk=7"],
            &["sysctl.kernel.ftrace_enabled=1", "tramplab.cgroup_program=0"],
            &["sysctl.kernel.bpf_stats_enabled=1", "sysctl.no.such=1", "mitigations=auto"],
        ] {
            assert_eq!(of(fine), None, "{fine:?}");
        }
    }

    #[test]
    fn compares_a_sysctl_with_what_was_written() {
        for (written, now, taken) in [
            ("1", "1\n", true),
            ("1", "0\n", false),
            ("0x10", "16\n", true),
            ("010", "8", true),
            ("-1", "-1\n", true),
            ("4 4", "4\t4\t1\t7\n", true),
            ("7", "7\t4\t1\t7\n", true),
            ("4 4 1 7 9", "4\t4\t1\t7\n", false),
            ("core.%p", "core.%p\n", true),
            ("core", "core.%p\n", false),
            ("", "\n", false),
            ("1", "", false),
        ] {
            assert_eq!(is_taken(written, now), taken, "{written:?} {now:?}");
        }
    }
}
