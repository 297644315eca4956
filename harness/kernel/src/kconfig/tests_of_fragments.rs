// SPDX-License-Identifier: MIT OR Apache-2.0
//! Fragments: how they are read and merged.

use super::{
    tests_of_trees::{tree, write},
    *,
};
use std::path::{Path, PathBuf};
use tramplab_protocol::Mechanism;

#[test]
fn reads_fragments_and_names_bad_lines() {
    let text = "# why\n\nCONFIG_A=y\r\nCONFIG_B=m\n# CONFIG_64BIT is not set\n\
                CONFIG_D=\"a \\\"b\\\" c\"\nCONFIG_E=-1\n  CONFIG_F=0xfF\n";
    let wanted = Fragment::parse(text, Path::new("a.config")).unwrap();
    let shown: Vec<_> =
        wanted.iter().map(|wanted| format!("{} {wanted}", wanted.place())).collect();
    assert_eq!(
        shown,
        [
            "a.config:3 CONFIG_A=y",
            "a.config:4 CONFIG_B=m",
            "a.config:5 CONFIG_64BIT=n",
            "a.config:6 CONFIG_D=\"a \\\"b\\\" c\"",
            "a.config:7 CONFIG_E=-1",
            "a.config:8 CONFIG_F=0xfF",
        ]
    );
    for (line, words) in [
        ("A=y", "expected CONFIG_NAME=value, `# CONFIG_NAME is not set` or a comment"),
        ("CONFIG_A", "expected CONFIG_NAME=value or `# CONFIG_NAME is not set`"),
        ("CONFIG_A =y", "expected letters, digits and `_` in an option's name"),
        ("CONFIG_=y", "expected letters, digits"),
        ("CONFIG_A=", "expected y, m, n, a number or a \"text\""),
        ("CONFIG_A=yes", "expected y, m, n, a number or a \"text\""),
        ("CONFIG_A=y # why", "and nothing after it"),
        ("CONFIG_A=\"a\"b\"", "expected y, m, n"),
        ("CONFIG_A=\"a", "expected y, m, n"),
        ("CONFIG_A=0x", "expected y, m, n"),
    ] {
        let error = Fragment::parse(&format!("CONFIG_B=y\n{line}\n"), Path::new("a.config"))
            .unwrap_err()
            .to_string();
        assert!(error.starts_with("a.config:2: ") && error.contains(words), "{line}: {error}");
    }
}

#[test]
fn later_fragments_win_and_raise_demand() {
    let tree = tree();
    let configs = tree.path().join("configs");
    write(
        &configs,
        &[
            ("base.config", "CONFIG_A=y\nCONFIG_FPROBE=y\n"),
            ("x86_64.config", "CONFIG_B=1\n"),
            ("offered.config", "CONFIG_B=1\nCONFIG_D=y\nCONFIG_TRACEPOINTS=y\n"),
            ("mitigations.config", ""),
        ],
    );
    let extra = [configs.join("mine.config"), configs.join("more.config")];
    write(
        &configs,
        &[
            ("mine.config", "# CONFIG_A is not set\nCONFIG_B=1\n"),
            ("more.config", "CONFIG_C=\"c\"\nCONFIG_D=y\n"),
        ],
    );
    let mechanisms = [Mechanism::KprobeMulti, Mechanism::Kprobe, Mechanism::TpBtf];
    let merged =
        fragments(&configs, Arch::X86_64, &mechanisms, Uses::default(), &[], &extra, &[]).unwrap();
    let expected = "# CONFIG_A is not set\nCONFIG_FPROBE=y\nCONFIG_B=1\nCONFIG_D=y\n\
                    CONFIG_TRACEPOINTS=y\nCONFIG_FUNCTION_TRACER=y\nCONFIG_KPROBES=y\n\
                    CONFIG_KPROBE_EVENTS=y\nCONFIG_C=\"c\"\n";
    assert_eq!(merged.text(), expected);
    // The fragment that demands more is named. A mechanism's option may be missing.
    let named = |option: &str| merged.wanted.iter().find(|wanted| wanted.option == option).unwrap();
    for (option, demand, place) in [
        ("FPROBE", Demand::Always, "base.config:2"),
        ("D", Demand::Always, "more.config:2"),
        ("TRACEPOINTS", Demand::WhereOffered, "offered.config:3"),
        ("KPROBES", Demand::WhereOffered, "the mechanism kprobe"),
    ] {
        assert_eq!(named(option).demand, demand, "{option}");
        assert!(named(option).place().ends_with(place), "{option}: {}", named(option).place());
    }
    let place = |name: &str| configs.join(name).display().to_string();
    let conflicts: Vec<_> = merged.conflicts.iter().map(ToString::to_string).collect();
    let expected = format!(
        "{}:1: CONFIG_A=n replaces CONFIG_A=y of {}:1",
        place("mine.config"),
        place("base.config")
    );
    assert_eq!(conflicts, [expected]);
    assert_eq!(merged.wanted[1].place(), format!("{}:2", place("base.config")));

    let none = [PathBuf::from("/no/such.config")];
    let error = fragments(&configs, Arch::X86_64, &[], Uses::default(), &[], &none, &[])
        .unwrap_err()
        .to_string();
    assert!(error.starts_with("failed to read the configuration /no/such.config: "), "{error}");
    let error = fragments(&configs, Arch::Arm64, &[], Uses::default(), &[], &[], &[])
        .unwrap_err()
        .to_string();
    assert!(error.contains("arm64.config"), "{error}");
}

/// The user's own configuration, but for what guests need.
#[test]
fn a_whole_configuration_replaces_the_fragments() {
    let shipped = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../configs/kconfig");
    let folder = tempfile::tempdir().unwrap();
    let made = "#\n# Automatically generated file; DO NOT EDIT.\n# Linux/x86 6.12 Kernel \
                Configuration\n#\nCONFIG_NR_CPUS=512\nCONFIG_VIRTIO_CONSOLE=m\n\
                CONFIG_KASAN=y\n# CONFIG_FPROBE is not set\n";
    write(folder.path(), &[(".config", made), ("own.config", "CONFIG_KASAN=n\n")]);
    let extra = [folder.path().join("own.config"), folder.path().join(".config")];
    let uses = Uses { backend: Some("virtme-ng"), ..Uses::default() };
    let merged =
        fragments(&shipped, Arch::X86_64, &Mechanism::ALL, uses, &[], &extra, &[]).unwrap();
    let found = |option: &str| {
        let found = merged.wanted.iter().find(|wanted| wanted.option == option);
        found.map(|wanted| (wanted.value.as_str(), wanted.demand))
    };
    assert_eq!(found("NR_CPUS"), Some(("512", Demand::WherePrompted)));
    assert_eq!(found("FPROBE"), Some(("n", Demand::Never)));
    assert_eq!(found("VIRTIO_CONSOLE"), Some(("y", Demand::Always)));
    assert_eq!(found("VIRTIO_FS"), Some(("y", Demand::Always)));
    // It is not mentioned.
    assert_eq!(found("JUMP_LABEL"), Some(("y", Demand::Never)));
    // A fragment is above it, in any order.
    assert_eq!(found("KASAN"), Some(("n", Demand::Always)));
    let conflicts: Vec<_> =
        merged.conflicts.iter().map(|conflict| conflict.later.option.as_str()).collect();
    assert_eq!(conflicts, ["VIRTIO_CONSOLE", "KASAN"]);
    write(folder.path(), &[("two.config", made), ("cut.config", made.trim_end())]);
    let error = |name: &str| {
        let extra = [extra[1].clone(), folder.path().join(name)];
        fragments(&shipped, Arch::X86_64, &[], Uses::default(), &[], &extra, &[]).unwrap_err()
    };
    assert!(matches!(error("two.config"), FragmentError::Whole { .. }));
    assert!(matches!(error("cut.config"), FragmentError::Cut { .. }));
}

#[test]
fn reads_shipped_fragments() {
    let configs = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../configs/kconfig");
    for arch in [Arch::X86_64, Arch::Arm64] {
        let merged =
            fragments(&configs, arch, &Mechanism::ALL, Uses::default(), &[], &[], &[]).unwrap();
        assert_eq!(merged.conflicts, []);
        // The suite's mechanisms do not change the kernel.
        assert_eq!(merged, fragments(&configs, arch, &[], Uses::default(), &[], &[], &[]).unwrap());
        // Only kernels that virtme-ng boots have its options.
        let virtme_ng = Uses { backend: Some("virtme-ng"), ..Uses::default() };
        let booted = fragments(&configs, arch, &[], virtme_ng, &[], &[], &[]).unwrap();
        assert_eq!(booted.conflicts, []);
        let has = |fragments: &Fragments, option: &str| {
            fragments.wanted.iter().any(|wanted| wanted.option == option && wanted.value == "y")
        };
        assert!(has(&booted, "VIRTIO_FS"));
        assert!(!has(&merged, "VIRTIO_FS") && merged.wanted.len() < booted.wanted.len());
        let demand = |option: &str| {
            let found = merged.wanted.iter().find(|wanted| wanted.option == option);
            found.unwrap_or_else(|| panic!("no {option}")).demand
        };
        for option in ["FPROBE", "DYNAMIC_FTRACE_WITH_DIRECT_CALLS", "DYNAMIC_FTRACE_WITH_CALL_OPS"]
        {
            assert_eq!(demand(option), Demand::WhereOffered, "{option}");
        }
        // A compiler may lack them.
        assert_eq!(demand("MITIGATION_RETHUNK"), Demand::Never);
        // No measurement works without these.
        for option in required_base(arch) {
            assert_eq!(demand(option), Demand::Always, "{option}");
        }
    }
}

/// Fedora's configurations are whole and have no header of make's.
#[test]
fn many_options_are_a_whole_configuration() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("fedora.config");
    for (count, is_whole) in [(1999, false), (2000, true)] {
        let text: String = (0..count).map(|number| format!("CONFIG_N{number}=y\n")).collect();
        std::fs::write(&path, text).unwrap();
        assert_eq!(Fragment::read_any(&path).unwrap().1, is_whole, "{count}");
    }
}
