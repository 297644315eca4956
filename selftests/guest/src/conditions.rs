// SPDX-License-Identifier: MIT OR Apache-2.0
//! The state of the user's own machine, as far as it bears on times. It is told, and not changed.

use crate::hooked;
use crate::lockdown;
use crate::measuring_cpu;
use crate::tracers;
use std::collections::BTreeSet;
use std::fs;
use tramplab_protocol::message::Condition;

const CPUS: &str = "/sys/devices/system/cpu";

/// Turbo or boost by driver: the file, and its text when it is on.
const TURBO: [(&str, &str); 2] = [("intel_pstate/no_turbo", "0"), ("cpufreq/boost", "1")];

pub fn here(cpus: u32) -> Vec<Condition> {
    let of_cpu = |name: &str| read(&format!("{CPUS}/{name}"));
    let cpuinfo = read("/proc/cpuinfo").unwrap_or_default();
    let turbo = TURBO.iter().find_map(|(name, on)| Some((of_cpu(name)?, *on)));
    let known = [
        governors(&all_governors()),
        turbo.and_then(|(text, on)| switch("turbo", &text, on, FASTER)),
        of_cpu("smt/active").and_then(|text| switch("SMT", &text, "1", SHARED)),
        microcode(&cpuinfo),
        read("/proc/sys/kernel/nmi_watchdog")
            .and_then(|text| switch("NMI watchdog", &text, "1", WATCHED)),
        read("/proc/sys/kernel/unprivileged_bpf_disabled")
            .map(|text| fact("kernel.unprivileged_bpf_disabled", text.trim())),
        read("/proc/sys/net/core/bpf_jit_harden").and_then(|text| hardening(&text)),
        read("/proc/sys/net/core/bpf_jit_kallsyms").and_then(|text| listed(&text)),
        read(lockdown::FILE).and_then(|text| Some(fact("lockdown", lockdown::level(&text)?))),
        has_flag(&cpuinfo, "ibt").then(|| fact("IBT", "on the CPU")),
        read("/proc/loadavg").and_then(|text| load(&text, cpus)),
        has_flag(&cpuinfo, "hypervisor").then(|| spoiling("virtual machine", "yes", VIRTUAL)),
        tracers::links().map(|links| counted("tracing BPF links", links)),
        tracers::programs().map(|loaded| counted("tracing BPF programs", loaded)),
        read(hooked::FILE).map(|text| counted("functions with ftrace hooks", of_hooks(&text))),
        read("/sys/kernel/tracing/current_tracer").map(|text| tracer(&text)),
        read("/sys/kernel/tracing/kprobe_events")
            .map(|text| counted("kprobe events", text.lines().count())),
        read("/sys/kernel/tracing/uprobe_events")
            .map(|text| counted("uprobe events", text.lines().count())),
        of_cpu("isolated").and_then(|text| isolated(&text)),
        Some(fact("measuring CPU", &measuring_cpu::get().to_string())),
    ];
    known.into_iter().flatten().collect()
}

const SCALED: &str = "the CPU's frequency changes: `cpupower frequency-set -g performance`";
const FASTER: &str = "the CPU's frequency depends on its heat and on the other cores";
const SHARED: &str = "the other thread of the core takes its resources";
const WATCHED: &str = "it uses one of the PMU's counters: `sysctl kernel.nmi_watchdog=0`";
const BLINDED: &str = "it makes programs longer, and hides the names of trampolines";
const UNLISTED: &str = "trampolines have no names: `sysctl net.core.bpf_jit_kallsyms=1`";
const BUSY: &str = "other tasks take the CPUs";
const VIRTUAL: &str = "times are those of its host";
const TRACED: &str = "others trace this kernel, maybe the measured functions";

fn read(path: &str) -> Option<String> {
    fs::read_to_string(path).ok()
}

fn fact(name: &str, value: &str) -> Condition {
    Condition { name: name.to_owned(), value: value.to_owned(), spoils: None }
}

fn spoiling(name: &str, value: &str, why: &str) -> Condition {
    Condition { spoils: Some(why.to_owned()), ..fact(name, value) }
}

fn all_governors() -> BTreeSet<String> {
    let cpus = fs::read_dir(CPUS).into_iter().flatten().flatten();
    let governor = |cpu: fs::DirEntry| read(cpu.path().join("cpufreq/scaling_governor").to_str()?);
    cpus.filter_map(governor).map(|text| text.trim().to_owned()).collect()
}

fn governors(all: &BTreeSet<String>) -> Option<Condition> {
    let value = all.iter().map(String::as_str).collect::<Vec<_>>().join(", ");
    match &*value {
        "" => None,
        "performance" => Some(fact("scaling governor", &value)),
        _ => Some(spoiling("scaling governor", &value, SCALED)),
    }
}

/// A switch that spoils times when it is on.
fn switch(name: &str, text: &str, on: &str, why: &str) -> Option<Condition> {
    match text.trim() {
        "" => None,
        value if value == on => Some(spoiling(name, "on", why)),
        _ => Some(fact(name, "off")),
    }
}

/// x86 only.
fn microcode(cpuinfo: &str) -> Option<Condition> {
    Some(fact("microcode", values(cpuinfo, "microcode").next()?))
}

fn has_flag(cpuinfo: &str, flag: &str) -> bool {
    values(cpuinfo, "flags").next().is_some_and(|all| all.split_whitespace().any(|it| it == flag))
}

fn values<'a>(cpuinfo: &'a str, key: &str) -> impl Iterator<Item = &'a str> {
    let value = move |line: &'a str| {
        let (name, value) = line.split_once(':')?;
        (name.trim_end() == key).then(|| value.trim())
    };
    cpuinfo.lines().filter_map(value)
}

/// 1 is for programs of users without privileges.
fn hardening(text: &str) -> Option<Condition> {
    let name = "net.core.bpf_jit_harden";
    match text.trim() {
        "0" => None,
        value => Some(spoiling(name, value, BLINDED)),
    }
}

fn listed(text: &str) -> Option<Condition> {
    let name = "net.core.bpf_jit_kallsyms";
    (text.trim() != "1").then(|| spoiling(name, text.trim(), UNLISTED))
}

/// The average of a minute.
fn load(loadavg: &str, cpus: u32) -> Option<Condition> {
    let value = loadavg.split_whitespace().next()?;
    let is_busy = value.parse::<f64>().ok()? > f64::from(cpus) / 2.0;
    Some(if is_busy { spoiling("load", value, BUSY) } else { fact("load", value) })
}

fn counted(name: &str, count: usize) -> Condition {
    match count {
        0 => fact(name, "0"),
        count => spoiling(name, &count.to_string(), TRACED),
    }
}

fn of_hooks(enabled: &str) -> usize {
    hooked::functions(enabled).count()
}

/// ftrace's own tracer, of its main instance.
fn tracer(text: &str) -> Condition {
    let name = "ftrace's tracer";
    match text.trim() {
        "nop" => fact(name, "nop"),
        value => spoiling(name, value, TRACED),
    }
}

fn isolated(text: &str) -> Option<Condition> {
    match text.trim() {
        "" => None,
        cpus => Some(fact("isolated CPUs", cpus)),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const CPUINFO: &str = "processor\t: 0\nmicrocode\t: 0xb000040\nflags\t\t: fpu ibt hypervisor\n\
                           bugs\t\t: spectre_v1\n\nprocessor\t: 1\nmicrocode\t: 0xb000040\n";
    const ARM64: &str = "processor\t: 0\nFeatures\t: fp asimd\nCPU part\t: 0xd0c\n";

    #[test]
    fn tells_what_spoils_times() {
        let set = |all: &[&str]| all.iter().map(|&it| it.to_owned()).collect::<BTreeSet<_>>();
        let spoils = Some(true);
        let fine = Some(false);
        for (told, value, expected) in [
            (governors(&set(&["performance"])), "performance", fine),
            (governors(&set(&["powersave", "performance"])), "performance, powersave", spoils),
            (governors(&set(&[])), "", None),
            (switch("turbo", "0\n", "0", FASTER), "on", spoils),
            (switch("turbo", "1\n", "0", FASTER), "off", fine),
            (switch("SMT", "1\n", "1", SHARED), "on", spoils),
            (switch("SMT", "0\n", "1", SHARED), "off", fine),
            (switch("SMT", "", "1", SHARED), "", None),
            (microcode(CPUINFO), "0xb000040", fine),
            (microcode(ARM64), "", None),
            (hardening("0\n"), "", None),
            (hardening("2\n"), "2", spoils),
            (listed("1\n"), "", None),
            (listed("0\n"), "0", spoils),
            (load("0.93 0.50 0.20 1/99 7\n", 2), "0.93", fine),
            (load("1.20 0.50 0.20 1/99 7\n", 2), "1.20", spoils),
            (load("", 2), "", None),
            (Some(counted("tracing BPF links", 0)), "0", fine),
            (Some(counted("tracing BPF links", 3)), "3", spoils),
            (Some(counted("hooks", of_hooks("vfs_read (1) R\n\tdirect-->x\n"))), "1", spoils),
            (Some(counted("hooks", of_hooks(""))), "0", fine),
            (Some(tracer("nop\n")), "nop", fine),
            (Some(tracer("function_graph\n")), "function_graph", spoils),
            (isolated("2-3\n"), "2-3", fine),
            (isolated("\n"), "", None),
        ] {
            let shown = told.as_ref().map_or("", |told| &told.value);
            assert_eq!(shown, value, "{told:?}");
            assert_eq!(told.as_ref().map(|told| told.spoils.is_some()), expected, "{told:?}");
        }
    }

    #[test]
    fn finds_flags_as_words() {
        for (cpuinfo, flag, expected) in [
            (CPUINFO, "ibt", true),
            (CPUINFO, "ib", false),
            (CPUINFO, "spectre_v1", false),
            (ARM64, "fp", false),
        ] {
            assert_eq!(has_flag(cpuinfo, flag), expected, "{flag}");
        }
    }
}
