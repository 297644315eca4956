// SPDX-License-Identifier: MIT OR Apache-2.0
//! The effect of fragments in small trees. The excerpts are shortened from 6.12.

use super::*;
use std::{fs, path::Path};

const TOP: &str = r#"
mainmenu "Linux/$(ARCH) $(KERNELVERSION) Kernel Configuration"

source "arch/$(SRCARCH)/Kconfig"
source "kernel/trace/Kconfig"
source "lib/Kconfig.debug"
"#;

const ARCH: &str = r#"
config 64BIT
	bool "64-bit kernel" if "$(ARCH)" = "x86"
	default "$(ARCH)" != "i386"

config X86
	def_bool y
	select PERF_EVENTS
	select HAVE_RETHOOK

config PERF_EVENTS
	bool "Kernel performance events"

config MMU
	def_bool y

menu "Binary Emulations"

config IA32_EMULATION
	bool "IA32 Emulation"
	depends on X86 && 64BIT
	help
	  Include code to run legacy 32-bit programs
	  if you say y here.

endmenu

choice
	prompt "Preemption Model"
	default PREEMPT_NONE

config PREEMPT_NONE
	bool "No Forced Preemption"

config PREEMPT_VOLUNTARY
	bool "Voluntary"
	depends on !ARCH_NO_PREEMPT

endchoice

config ARCH_NO_PREEMPT
	bool

config NR_CPUS
	int "CPUs" if MMU
	range 2 512
	default "64"

config MODULES
	bool "Modules"
	modules

if MODULES

config LOADER
	tristate "Loader"
	depends on MMU || (NR_CPUS > 1000 && !X86)

endif

config STACKPROTECTOR
	bool "Stack Protector"
	depends on $(cc-option,-fstack-protector)

menu "Firmware"
	depends on 64BIT
	visible if EXPERT

config FW_LOADER
	bool "Loader of firmware"

endmenu

config EXPERT
	bool "Experts"

config HOSTNAME
	string "Host"
	default "(none)"
"#;

const TRACE: &str = r#"
config HAVE_RETHOOK
	bool

config RETHOOK
	bool
	depends on HAVE_RETHOOK

menuconfig FTRACE
	bool "Tracers"

if FTRACE

config FUNCTION_TRACER
	bool "Kernel Function Tracer"

config FPROBE
	bool "Kernel Function Probe (fprobe)"
	depends on FUNCTION_TRACER
	depends on DYNAMIC_FTRACE_WITH_REGS
	select RETHOOK

config DYNAMIC_FTRACE_WITH_REGS
	def_bool y
	depends on FUNCTION_TRACER

endif # FTRACE
"#;

const DEBUG: &str = r#"
config DEBUG_INFO
	bool
	help
	  A kernel debug info option other than "None" has been selected.

config DEBUG_INFO_REDUCED
	bool "Reduce debugging information"

config DEBUG_INFO_BTF
	bool "Generate BTF type information"
	depends on !DEBUG_INFO_SPLIT && !DEBUG_INFO_REDUCED
"#;

const ARM64: &str = r#"
config ARM64
	def_bool y
	select HAVE_DYNAMIC_FTRACE_WITH_ARGS \
		if (GCC_SUPPORTS_DYNAMIC_FTRACE_WITH_ARGS || \
		    CLANG_SUPPORTS_DYNAMIC_FTRACE_WITH_ARGS)
	select HAVE_DYNAMIC_FTRACE_WITH_DIRECT_CALLS \
		if DYNAMIC_FTRACE_WITH_ARGS && DYNAMIC_FTRACE_WITH_CALL_OPS
	select HAVE_DYNAMIC_FTRACE_WITH_CALL_OPS \
		if (DYNAMIC_FTRACE_WITH_ARGS && !CFI_CLANG && \
		    (CC_IS_CLANG || !CC_OPTIMIZE_FOR_SIZE))
	select ARCH_HAS_PREEMPT_LAZY

config GCC_SUPPORTS_DYNAMIC_FTRACE_WITH_ARGS
	def_bool CC_IS_GCC
	depends on $(cc-option,-fpatchable-function-entry=2)

config CLANG_SUPPORTS_DYNAMIC_FTRACE_WITH_ARGS
	def_bool CC_IS_CLANG

config CC_IS_GCC
	def_bool $(success,test "$(cc-name)" = GCC)

config CC_IS_CLANG
	def_bool $(success,test "$(cc-name)" = Clang)

config CFI_CLANG
	bool "Control Flow Integrity"
	depends on $(cc-option,-fsanitize=kcfi)

choice
	prompt "Compiler optimization level"

config CC_OPTIMIZE_FOR_PERFORMANCE
	bool "-O2"

config CC_OPTIMIZE_FOR_SIZE
	bool "-Os"

endchoice

config ARCH_HAS_PREEMPT_LAZY
	bool

config PREEMPT_VOLUNTARY
	bool "Voluntary"
	depends on !ARCH_HAS_PREEMPT_LAZY
"#;

/// All architectures share it, as in Linux.
const CALL_OPS: &str = r#"
config HAVE_DYNAMIC_FTRACE_WITH_ARGS
	bool

config HAVE_DYNAMIC_FTRACE_WITH_DIRECT_CALLS
	bool

config HAVE_DYNAMIC_FTRACE_WITH_CALL_OPS
	bool

config HAVE_RETHOOK
	bool

menuconfig FTRACE
	bool "Tracers"

if FTRACE

config DYNAMIC_FTRACE
	bool "Tracers that are patched in"

config DYNAMIC_FTRACE_WITH_DIRECT_CALLS
	def_bool y
	depends on DYNAMIC_FTRACE_WITH_REGS || DYNAMIC_FTRACE_WITH_ARGS
	depends on HAVE_DYNAMIC_FTRACE_WITH_DIRECT_CALLS

config DYNAMIC_FTRACE_WITH_CALL_OPS
	def_bool y
	depends on HAVE_DYNAMIC_FTRACE_WITH_CALL_OPS

config DYNAMIC_FTRACE_WITH_ARGS
	def_bool y
	depends on DYNAMIC_FTRACE
	depends on HAVE_DYNAMIC_FTRACE_WITH_ARGS

config FPROBE
	bool "Kernel Function Probe (fprobe)"
	depends on HAVE_RETHOOK
	select RETHOOK

config RETHOOK
	bool

config RETHOOK_STATISTICS
	def_bool y
	depends on RETHOOK

endif # FTRACE
"#;

pub fn write(tree: &Path, files: &[(&str, &str)]) {
    for (name, text) in files {
        let path = tree.join(name);
        fs::create_dir_all(path.parent().unwrap()).unwrap();
        fs::write(path, text).unwrap();
    }
}

pub fn tree() -> tempfile::TempDir {
    let tree = tempfile::tempdir().unwrap();
    write(
        tree.path(),
        &[
            ("Kconfig", TOP),
            ("arch/x86/Kconfig", ARCH),
            ("kernel/trace/Kconfig", TRACE),
            ("lib/Kconfig.debug", DEBUG),
        ],
    );
    tree
}

fn explained(tree: &Path, wanted: &str, result: &str) -> Vec<String> {
    let wanted = Fragment::parse(wanted, Path::new("my.config")).unwrap();
    let result = Kconfig::parse(result).unwrap();
    unmet(&wanted, &result, tree, Arch::X86_64).iter().map(ToString::to_string).collect()
}

/// The same on arm64, for options demanded only if offered.
fn lost_on_arm64(wanted: &str, result: &str) -> Vec<String> {
    let tree = tree();
    write(tree.path(), &[("arch/arm64/Kconfig", ARM64), ("kernel/trace/Kconfig", CALL_OPS)]);
    let mut wanted = Fragment::parse(wanted, Path::new("offered.config")).unwrap();
    wanted.iter_mut().for_each(|wanted| wanted.demand = Demand::WhereOffered);
    let result = Kconfig::parse(result).unwrap();
    unmet(&wanted, &result, tree.path(), Arch::Arm64).iter().map(ToString::to_string).collect()
}

#[test]
fn reports_lost_options_but_not_unavailable_ones() {
    const SET: &str = "CONFIG_ARM64=y\nCONFIG_CC_IS_GCC=y\n\
                       CONFIG_GCC_SUPPORTS_DYNAMIC_FTRACE_WITH_ARGS=y\nCONFIG_FTRACE=y\n\
                       CONFIG_DYNAMIC_FTRACE=y\nCONFIG_HAVE_DYNAMIC_FTRACE_WITH_ARGS=y\n\
                       CONFIG_DYNAMIC_FTRACE_WITH_ARGS=y\n";
    const CALL_OPS: &str = "DYNAMIC_FTRACE_WITH_CALL_OPS";
    const DIRECT: &str = "DYNAMIC_FTRACE_WITH_DIRECT_CALLS";
    let have = "it depends on HAVE_DYNAMIC_FTRACE_WITH_CALL_OPS [=n]; \
                HAVE_DYNAMIC_FTRACE_WITH_CALL_OPS is selected by ARM64 [=y] \
                only with ";
    for (option, set, expected) in [
        (
            CALL_OPS,
            format!("{SET}CONFIG_CC_OPTIMIZE_FOR_SIZE=y\n"),
            format!("{have}(CC_IS_CLANG [=n] || !CC_OPTIMIZE_FOR_SIZE [=y])"),
        ),
        (
            CALL_OPS,
            SET.replace("GCC", "CLANG") + "CONFIG_CFI_CLANG=y\nCONFIG_CC_OPTIMIZE_FOR_SIZE=y\n",
            format!("{have}!CFI_CLANG [=y]"),
        ),
        // Options lost with it name it as the cause.
        (
            DIRECT,
            format!("{SET}CONFIG_CC_OPTIMIZE_FOR_SIZE=y\n"),
            "it depends on HAVE_DYNAMIC_FTRACE_WITH_DIRECT_CALLS [=n]; \
             HAVE_DYNAMIC_FTRACE_WITH_DIRECT_CALLS is selected by ARM64 [=y] \
             only with DYNAMIC_FTRACE_WITH_CALL_OPS [=n]; DYNAMIC_FTRACE_WITH_CALL_OPS depends on \
             HAVE_DYNAMIC_FTRACE_WITH_CALL_OPS [=n]; HAVE_DYNAMIC_FTRACE_WITH_CALL_OPS is selected \
             by ARM64 [=y] only with (CC_IS_CLANG [=n] || !CC_OPTIMIZE_FOR_SIZE [=y])"
                .to_owned(),
        ),
        // The compiler cannot pad functions.
        (
            "DYNAMIC_FTRACE_WITH_ARGS",
            "CONFIG_ARM64=y\nCONFIG_CC_IS_GCC=y\nCONFIG_FTRACE=y\nCONFIG_DYNAMIC_FTRACE=y\n"
                .to_owned(),
            "it depends on HAVE_DYNAMIC_FTRACE_WITH_ARGS [=n]; HAVE_DYNAMIC_FTRACE_WITH_ARGS is \
             selected by ARM64 [=y] only with \
             (GCC_SUPPORTS_DYNAMIC_FTRACE_WITH_ARGS [=n] || \
             CLANG_SUPPORTS_DYNAMIC_FTRACE_WITH_ARGS [=n])"
                .to_owned(),
        ),
        (
            "GCC_SUPPORTS_DYNAMIC_FTRACE_WITH_ARGS",
            "CONFIG_CC_IS_GCC=y\n".to_owned(),
            "it depends on $(cc-option, -fpatchable-function-entry=2), which the compiler and the \
             other tools decide"
                .to_owned(),
        ),
    ] {
        let found = lost_on_arm64(&format!("CONFIG_{option}=y\n"), &set);
        let expected = format!(
            "offered.config:1: CONFIG_{option}=y did not survive (it is n): {expected}; for a \
             kernel without it, write \
             `# CONFIG_{option} is not set` into a fragment of the manifest's"
        );
        assert_eq!(found, [expected]);
    }
    // Nothing selects HAVE_RETHOOK here, and ARCH_HAS_PREEMPT_LAZY is always set.
    for option in [
        "FPROBE",
        "RETHOOK",
        "RETHOOK_STATISTICS",
        "HAVE_RETHOOK",
        "PREEMPT_VOLUNTARY",
        "NO_SUCH_OPTION",
    ] {
        assert_eq!(lost_on_arm64(&format!("CONFIG_{option}=y\n"), SET), [""; 0], "{option}");
    }
    // On x86-64 something selects it, so it must be set.
    let tree = tree();
    let mut wanted = Fragment::parse("CONFIG_FPROBE=y\n", Path::new("offered.config")).unwrap();
    wanted[0].demand = Demand::WhereOffered;
    let result = Kconfig::parse("CONFIG_FTRACE=y\n").unwrap();
    assert_eq!(unmet(&wanted, &result, tree.path(), Arch::X86_64).len(), 1);
    // If the tree cannot be read, the option is reported.
    write(tree.path(), &[("Kconfig", "config A\n\twhatever\n")]);
    let [lost] = &unmet(&wanted, &result, tree.path(), Arch::X86_64)[..] else { panic!() };
    assert!(
        lost.why.contains("not known") && lost.why.contains("# CONFIG_FPROBE is not set"),
        "{}",
        lost.why
    );
}

#[test]
fn names_unmet_dependencies_of_lost_options() {
    let tree = tree();
    let usual = "CONFIG_X86=y\nCONFIG_MMU=y\nCONFIG_HAVE_RETHOOK=y\nCONFIG_PREEMPT_NONE=y\n\
                 CONFIG_NR_CPUS=64\n";
    for (wanted, result, expected) in [
        (
            "FPROBE=y",
            "CONFIG_FTRACE=y",
            "it is n): it depends on FUNCTION_TRACER [=n] and DYNAMIC_FTRACE_WITH_REGS [=n]",
        ),
        (
            "FPROBE=y",
            "CONFIG_FTRACE=y\nCONFIG_FUNCTION_TRACER=y",
            "it is n): it depends on DYNAMIC_FTRACE_WITH_REGS [=n]",
        ),
        // The enclosing block counts.
        ("FUNCTION_TRACER=y", "", "it is n): it depends on FTRACE [=n]"),
        (
            "DEBUG_INFO_BTF=y",
            "CONFIG_DEBUG_INFO_REDUCED=y",
            "it is n): it depends on !DEBUG_INFO_REDUCED [=y]",
        ),
        ("IA32_EMULATION=y", "", "it is n): it depends on 64BIT [=n]"),
        ("PREEMPT_VOLUNTARY=y", "", "it is n): PREEMPT_NONE [=y] of the same choice is set"),
        (
            "PREEMPT_VOLUNTARY=y",
            "CONFIG_ARCH_NO_PREEMPT=y",
            "it is n): it depends on !ARCH_NO_PREEMPT [=y]",
        ),
        ("RETHOOK=y", "", "it is n): it has no prompt: it is set by what selects it, FPROBE [=n]"),
        ("DEBUG_INFO=y", "", "it is n): it has no prompt: only its default sets it"),
        ("PERF_EVENTS=n", "CONFIG_PERF_EVENTS=y", "it is y): it is selected by X86 [=y]"),
        ("FW_LOADER=y", "CONFIG_64BIT=y", "it is n): it can be set only with EXPERT [=n]"),
        (
            "FPROBES=y",
            "",
            "it is n): this tree has no option CONFIG_FPROBES (did you mean CONFIG_FPROBE?)",
        ),
        ("NOTHING_LIKE_IT=y", "", "it is n): this tree has no option CONFIG_NOTHING_LIKE_IT"),
        ("NR_CPUS=9999", "", "it is 64): its range is 2 512"),
        ("NR_CPUS=\"8\"", "", "it is 64): it is a number"),
        ("MODULES=m", "", "it is n): it is a bool, expected y or n"),
        (
            "HOSTNAME=y",
            "CONFIG_HOSTNAME=\"(none)\"",
            "it is (none)): it is a string, expected a \"text\"",
        ),
        ("LOADER=m", "", "it is n): it depends on MODULES [=n]"),
        (
            "LOADER=y",
            "CONFIG_MODULES=y\nCONFIG_LOADER=m",
            "it is m): all its known dependencies are met",
        ),
        (
            "STACKPROTECTOR=y",
            "",
            "it is n): it depends on $(cc-option, -fstack-protector), which the compiler and the \
             other tools decide",
        ),
    ] {
        let found =
            explained(tree.path(), &format!("\nCONFIG_{wanted}\n"), &format!("{usual}{result}\n"));
        let start = format!("my.config:2: CONFIG_{wanted} did not survive (");
        let [text] = found.as_slice() else { panic!("{wanted}: {found:?}") };
        let is_expected = text.strip_prefix(&start).is_some_and(|rest| rest.starts_with(expected));
        assert!(is_expected, "expected {start}{expected}\ngot {text}");
    }
    // An alternative is shown in full.
    let [text] = &explained(
        tree.path(),
        "CONFIG_LOADER=m",
        "CONFIG_MODULES=y\nCONFIG_NR_CPUS=64\nCONFIG_X86=y",
    )[..] else {
        panic!()
    };
    assert!(
        text.ends_with("it depends on (MMU [=n] || (NR_CPUS [=64] > 1000 && !X86 [=y]))"),
        "{text}"
    );
    // Options with the wanted value are not reported, and the tree is not read.
    let met =
        "CONFIG_FPROBE=y\n# CONFIG_NONE is not set\nCONFIG_HOSTNAME=\"a\"\nCONFIG_NR_CPUS=8\n";
    assert_eq!(explained(Path::new("/no/such"), met, met), [""; 0]);
}

/// The reason why an option of a tree with this file is not explained.
fn unreadable(tree: &Path) -> String {
    let found = explained(tree, "CONFIG_FPROBE=y\n", "CONFIG_X86=y\n");
    let start = "my.config:1: CONFIG_FPROBE=y did not survive (it is n): its dependencies are not \
                 known, failed to read this tree's Kconfig files: ";
    assert_eq!(found.len(), 1);
    found[0].strip_prefix(start).unwrap_or_else(|| panic!("{}", found[0])).to_owned()
}

#[test]
fn reports_unreadable_tree() {
    let blocks = "if A\n".repeat(500) + &"endif\n".repeat(500);
    for (name, text, words) in [
        ("Kconfig", "source \"Kconfig\"\n", "files deep"),
        ("Kconfig", "source \"../../etc/passwd\"\n", "leads outside the tree"),
        ("Kconfig", "source \"/etc/passwd\"\n", "leads outside the tree"),
        ("Kconfig", "source \"none/Kconfig\"\n", "at Kconfig:1"),
        ("Kconfig", blocks.as_str(), "nest more than"),
        ("kernel/trace/Kconfig", "config A\n\tbool\n\twhatever\n", "kernel/trace/Kconfig:3"),
    ] {
        let tree = tree();
        write(tree.path(), &[(name, text)]);
        let found = unreadable(tree.path());
        assert!(found.contains(words), "{name}: {found}");
    }
    let empty = tempfile::tempdir().unwrap();
    assert!(sources::Sources::read(empty.path(), Arch::X86_64).is_err());
}

/// The parser knows variables, and finds statements where no line begins with them.
#[test]
fn parser_opens_no_file() {
    for (top, below) in [
        ("A := /dev/zero\nsource \"below\"\n", "source \"$(A)\"\n"),
        ("A := pipe\nsource \"below\"\n", "source \"$(A)\"\n"),
        ("A := below\nsource \"below\"\n", "source \"$(A)\"\n"),
        ("source/dev/zero\n", ""),
        ("comment \"c\" source \"/dev/zero\"\n", ""),
        ("source \\\n\"/dev/zero\"\n", ""),
        ("source \"pipe\"\n", ""),
        ("source \"devices/zero\"\n", ""),
    ] {
        let tree = tree();
        write(tree.path(), &[("Kconfig", top), ("below", below)]);
        std::os::unix::fs::symlink("/dev", tree.path().join("devices")).unwrap();
        let mode = nix::sys::stat::Mode::S_IRUSR;
        nix::unistd::mkfifo(&tree.path().join("pipe"), mode).unwrap();
        unreadable(tree.path());
    }
}

/// Nobody knows how deep the parser recurses, and how often it tries again.
#[test]
fn parser_ends_at_its_limits() {
    let nested = |count: usize| {
        let (open, close) = ("(".repeat(count), ")".repeat(count));
        format!("config A\n\tbool \"a\"\n\tdepends on {open}A{close}\n")
    };
    for text in [nested(400_000), "if A\n".repeat(60_000)] {
        let tree = tree();
        write(tree.path(), &[("Kconfig", &text)]);
        unreadable(tree.path());
    }
}

/// A fragment that chooses another model than tramplab's files.
#[test]
fn last_option_of_a_choice_replaces_the_others() {
    let tree = tree();
    let kept = |text: &str| {
        let wanted = Fragment::parse(text, Path::new("a.config")).unwrap();
        let kept = without_replaced(&wanted, tree.path(), Arch::X86_64).unwrap();
        kept.iter().map(ToString::to_string).collect::<Vec<_>>().join(" ")
    };
    for (text, expected) in [
        (
            "CONFIG_PREEMPT_NONE=y\nCONFIG_MODULES=y\nCONFIG_PREEMPT_VOLUNTARY=y\n",
            "CONFIG_MODULES=y CONFIG_PREEMPT_VOLUNTARY=y",
        ),
        (
            "CONFIG_PREEMPT_VOLUNTARY=y\n# CONFIG_PREEMPT_NONE is not set\nCONFIG_NONE=y\n",
            "CONFIG_PREEMPT_VOLUNTARY=y CONFIG_PREEMPT_NONE=n CONFIG_NONE=y",
        ),
    ] {
        assert_eq!(kept(text), expected);
    }
}
