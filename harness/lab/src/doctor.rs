// SPDX-License-Identifier: MIT OR Apache-2.0
//! The check-up: what is there, what is missing, and the line that mends it.

use super::{
    place::{Place, place},
    setup::REQUIREMENTS,
};
use serde::Serialize;
use std::{borrow::Cow, fmt::Display, fs};
use tramplab_host::{
    cache::Cache,
    debian,
    kvm::{self, KvmError},
    lbr::{self, Facts, LbrFormat},
    packages::install_line,
    qemu::{Purpose, Qemu, QemuError, Unfit},
    rust::{RustError, Rustc, target},
    virtme::{VirtmeError, VirtmeNg},
};
use tramplab_kernel::{
    Compiler, Toolchain,
    compile::{
        PinnedRoot,
        toolchain::{self, Need},
    },
};
use tramplab_model::{called::called, run::Arch};
use tramplab_vm::accel::{self, Circumstances};

fn setup_line() -> String {
    format!("{} vm-test --setup", called())
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum State {
    Ok,
    Missing,
    /// Present, and unusable.
    Broken,
}

impl State {
    fn name(self) -> &'static str {
        match self {
            State::Ok => "ok",
            State::Missing => "missing",
            State::Broken => "broken",
        }
    }
}

/// One check.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Check {
    pub name: Cow<'static, str>,
    pub state: State,
    /// Nothing can be measured without it.
    pub required: bool,
    /// The finding, or the fallback.
    pub detail: String,
    /// The command that fixes it.
    pub mend: Option<String>,
}

impl Check {
    fn ok(name: impl Into<Cow<'static, str>>, detail: impl Into<String>) -> Check {
        let name = name.into();
        Check { name, state: State::Ok, required: false, detail: detail.into(), mend: None }
    }

    fn not(
        name: impl Into<Cow<'static, str>>,
        state: State,
        detail: impl Into<String>,
        mend: Option<String>,
    ) -> Check {
        Check { name: name.into(), state, required: false, detail: detail.into(), mend }
    }

    fn required(self) -> Check {
        Check { required: true, ..self }
    }
}

/// All checks, and the facts that decide whether guests have this machine's branch records.
#[derive(Clone, Debug, Serialize)]
pub struct Checkup {
    pub tramplab: &'static str,
    pub checks: Vec<Check>,
    pub host: Facts,
    pub branches: Branches,
}

/// The branch records of guests of this machine's architecture.
#[derive(Clone, Debug, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Branches {
    /// The format of the LBR.
    Hardware(LbrFormat),
    /// The reason for it.
    Virtual(String),
}

/// Looks at everything. Takes seconds: it starts QEMU and a KVM guest.
pub fn checkup(cache: &Cache) -> Checkup {
    let probe = kvm::probe();
    let host = Facts::gather(probe.as_ref().err().map(ToString::to_string));
    let arch = Arch::host().unwrap_or(Arch::X86_64);
    let branches = match lbr::decide(&host, arch) {
        Ok(format) => Branches::Hardware(format),
        Err(reason) => Branches::Virtual(reason.to_string()),
    };
    let checks = checks(cache, probe, lbr_check(host.depth, &branches));
    Checkup { tramplab: env!("CARGO_PKG_VERSION"), checks, host, branches }
}

fn checks(cache: &Cache, probe: Result<i32, KvmError>, lbr: Check) -> Vec<Check> {
    let own = Arch::host().unwrap_or(Arch::X86_64);
    let mut checks = vec![cache_check(cache), files_check(place(), own)];
    checks.extend(qemu_checks(own, Qemu::find(cache, own, Purpose::Measuring)));
    for requirement in REQUIREMENTS.iter().filter(|requirement| requirement.applies()) {
        let check = match requirement.check() {
            Ok(detail) => Check::ok(requirement.name, detail),
            Err(why) => {
                let detail = format!("{why}: {}", requirement.why);
                Check::not(requirement.name, State::Missing, detail, Some(requirement.mend()))
            }
        };
        checks.push(if requirement.is_of_all() { check.required() } else { check });
    }
    for arch in Arch::ALL.into_iter().filter(|&arch| arch != own) {
        // Guests of the host's own architecture can be measured without.
        let found = Qemu::find(cache, arch, Purpose::Measuring);
        // A QEMU that the user names must work.
        let required = matches!(found, Err(QemuError::Unfit { .. }));
        checks.extend(qemu_checks(arch, found).map(|check| Check { required, ..check }));
        if !place().is_installed() {
            checks.push(rust_check(arch, Rustc::find(cache, arch)));
        }
    }
    checks.push(clang_check(&toolchain::missing(&clang(), own)));
    checks.extend(place().toolchain_names().iter().map(|name| root_check(name, cache)));
    checks.push(tree_tests_check(&toolchain::missing_bpf(&gcc(), own, true)));
    let remembered = || {
        let qemu = Qemu::find(cache, own, Purpose::Measuring).ok()?;
        accel::remembered(&accel::memory(cache), &Circumstances::of(&qemu.program))?
    };
    checks.push(kvm_check(probe, remembered()));
    checks.push(lbr);
    checks.push(vng_check(VirtmeNg::find(cache)));
    checks.push(Check::ok("bpftool", "not used: the guest agent brings libbpf"));
    checks
}

/// True if every required check is ok.
pub fn all_required(checks: &[Check]) -> bool {
    checks.iter().all(|check| !check.required || check.state == State::Ok)
}

/// One aligned line per check, and below those that are not well the line that mends them.
pub fn render(checks: &[Check]) -> String {
    let width = checks.iter().map(|check| check.name.len()).max().unwrap_or(0);
    let mut text = String::new();
    for Check { name, state, required, detail, mend } in checks {
        let state = if *required || *state == State::Ok {
            state.name().to_owned()
        } else {
            format!("({})", state.name())
        };
        // A detail of several lines, such as a program's own error, stays in its column.
        let indent = format!("\n{:12}{:width$}", "", "");
        let detail = detail.trim_end().replace('\n', &indent);
        text.push_str(format!("{state:<10}{name:<width$}  {detail}").trim_end());
        text.push('\n');
        if let Some(mend) = mend {
            text.push_str(&format!("{:10}{:width$}  mend: {mend}\n", "", ""));
        }
    }
    text.push_str(if all_required(checks) {
        "\nAll that is required is there; what is in brackets is optional.\n"
    } else {
        "\nSomething required is not there; what is in brackets is optional.\n"
    });
    text
}

fn cache_check(cache: &Cache) -> Check {
    const NAME: &str = "cache";
    match cache.write(".check", b"") {
        Ok(()) => {
            let _ = fs::remove_file(cache.root().join(".check"));
            Check::ok(NAME, cache.root().display().to_string()).required()
        }
        Err(error) => {
            let mend = Some("export TRAMPLAB_CACHE=FOLDER".to_owned());
            Check::not(NAME, State::Broken, error.to_string(), mend).required()
        }
    }
}

fn files_check(place: &Place, arch: Arch) -> Check {
    const NAME: &str = "tramplab's files";
    let check = match place.check(arch) {
        Ok(()) => Check::ok(NAME, place.data().display().to_string()),
        Err(error) => Check::not(NAME, State::Missing, error.to_string(), None),
    };
    check.required()
}

fn qemu_checks(arch: Arch, found: Result<Qemu, QemuError>) -> [Check; 2] {
    const PLUGINS: &str = "its TCG plugins";
    let name = format!("QEMU for {}", arch.platform().spoken);
    let setup = format!("{} --arch {arch}", setup_line());
    // The first run fetches one.
    let is_missing = matches!(found, Err(QemuError::NotFound { .. }));
    let required = !(is_missing && debian::verifier().is_ok());
    let mend = || {
        let install = |_| format!("{}  # then {setup}", install_line(&["gpgv"]));
        Some(debian::verifier().map_or_else(install, |_| setup.clone()))
    };
    let checks = match found {
        Ok(qemu) => [
            Check::ok(name, format!("{} ({})", qemu.version, qemu.origin)),
            Check::ok(PLUGINS, "the option -plugin is there"),
        ],
        Err(error) => {
            let detail = error.to_string();
            let (state, mend) = match &error {
                QemuError::NotFound { .. } => (State::Missing, mend()),
                QemuError::Unfit { .. } => {
                    (State::Broken, Some(format!("unset {}", arch.platform().qemu.variable)))
                }
                QemuError::PrivateUnfit { entry, .. } => {
                    (State::Broken, Some(format!("rm -r '{}' && {setup}", entry.display())))
                }
                _ => (State::Broken, None),
            };
            let without = matches!(
                error,
                QemuError::Unfit { why: Unfit::NoPlugins, .. }
                    | QemuError::PrivateUnfit { why: Unfit::NoPlugins, .. }
            );
            let plugins = if without { "this QEMU was built without" } else { "no QEMU to ask" };
            [Check::not(name, state, detail, mend), Check::not(PLUGINS, state, plugins, None)]
        }
    };
    checks.map(|check| Check { required, ..check })
}

/// `failure` is what a guest found that `vm-test` booted, if it did not answer.
fn kvm_check(probe: Result<i32, KvmError>, failure: Option<String>) -> Check {
    const NAME: &str = "KVM";
    let without =
        |error: &dyn Display| format!("{error}; guests run under TCG, slower but just as exact");
    match (probe, failure) {
        (Ok(_), Some(failure)) => Check::not(NAME, State::Broken, without(&failure), None),
        (Ok(version), None) => Check::ok(NAME, format!("API version {version}, a guest ran")),
        (Err(error), _) => {
            let (state, mend) = match &error {
                KvmError::Absent if cfg!(target_arch = "x86_64") => {
                    (State::Missing, Some("sudo modprobe -a kvm_intel kvm_amd"))
                }
                // On arm64 it is a part of the kernel, or the machine cannot.
                KvmError::Absent | KvmError::Foreign | KvmError::Unsupported => {
                    (State::Missing, None)
                }
                KvmError::Denied { by_group: true } => {
                    (State::Missing, Some("sudo usermod -aG kvm \"$USER\"  # then log in again"))
                }
                // A group of root's would open more than the device.
                KvmError::Denied { by_group: false } => (
                    State::Missing,
                    Some(
                        "sudo chown root:kvm /dev/kvm && sudo chmod 0660 /dev/kvm && \
                          sudo usermod -aG kvm \"$USER\"  # then log in again",
                    ),
                ),
                // Mostly a virtual machine whose own host offers no nesting.
                KvmError::Failed { .. } | KvmError::Ended(_) | KvmError::Hangs(_) => {
                    (State::Broken, None)
                }
            };
            Check::not(NAME, state, without(&error), mend.map(str::to_owned))
        }
    }
}

/// With clang kernels of every architecture are built.
fn clang() -> Toolchain {
    Compiler::Clang.into()
}

fn clang_check(missing: &[Need]) -> Check {
    const NAME: &str = "LLVM";
    if missing.is_empty() {
        return Check::ok(NAME, "what builds kernels with clang");
    }
    let detail = format!("no {}: for kernels with `toolchain: clang`", Need::names(missing));
    Check::not(NAME, State::Missing, detail, Some(Need::install_line(missing)))
}

/// A build fetches a root that it needs.
fn root_check(name: &str, cache: &Cache) -> Check {
    let title = format!("toolchain {name}");
    match PinnedRoot::read(name, &place().toolchains()) {
        Ok(root) if root.is_cached(cache) => Check::ok(title, "in the cache"),
        Ok(root) => {
            let detail = format!("{} MiB, fetched when something is built with it", root.mib());
            Check::ok(title, detail)
        }
        Err(error) => Check::not(title, State::Broken, error.to_string(), None),
    }
}

/// Those of kernels that gcc builds: clang compiles the BPF programs alone.
fn gcc() -> Toolchain {
    Compiler::Gcc.into()
}

fn tree_tests_check(missing: &[Need]) -> Check {
    const NAME: &str = "tree's own tests";
    if missing.is_empty() {
        return Check::ok(
            NAME,
            "what builds a kernel tree's bench and test_progs, installs scripts",
        );
    }
    let names = Need::names(missing);
    let detail =
        format!("no {names}: for suites with `bench`, `test_progs` or `kselftest` scripts");
    Check::not(NAME, State::Missing, detail, Some(Need::install_line(missing)))
}

/// `depth` is how many records perf on this host gets.
fn lbr_check(depth: Option<u32>, branches: &Branches) -> Check {
    const NAME: &str = "LBR";
    let host = match depth {
        Some(depth) => format!("the host's has {depth} records, which `--vm none` counts"),
        None => "perf on the host has none".to_owned(),
    };
    match branches {
        Branches::Hardware(format) => {
            Check::ok(NAME, format!("{host}; KVM offers it to guests (format {format})"))
        }
        Branches::Virtual(reason) => Check::not(
            NAME,
            State::Missing,
            format!("virtual records are used: {reason}; {host}"),
            None,
        ),
    }
}

/// Rust for guests of a foreign architecture.
fn rust_check(arch: Arch, found: Result<Rustc, RustError>) -> Check {
    let name = format!("Rust for {}", arch.platform().spoken);
    match found {
        Ok(Rustc::Host) => Check::ok(name, format!("rustc has the target {}", target(arch))),
        Ok(Rustc::Private(program)) => {
            Check::ok(name, format!("private copy, {}", program.display()))
        }
        Err(error) => {
            let (state, mend) = match &error {
                RustError::NotFound { .. } => {
                    (State::Missing, Some(format!("{} --arch {arch}", setup_line())))
                }
                RustError::Unfit { entry, .. } => (
                    State::Broken,
                    Some(format!("rm -r '{}' && {} --arch {arch}", entry.display(), setup_line())),
                ),
                _ => (State::Broken, None),
            };
            Check::not(name, state, error.to_string(), mend)
        }
    }
}

fn vng_check(found: Result<VirtmeNg, VirtmeError>) -> Check {
    const NAME: &str = "virtme-ng";
    match found {
        Ok(VirtmeNg { vng, version }) => Check::ok(
            NAME,
            format!(
                "{version} ({}), virtiofsd ({})",
                vng.program.display(),
                vng.virtiofsd.display()
            ),
        ),
        Err(error @ VirtmeError::NotFound { .. }) => Check::not(
            NAME,
            State::Missing,
            error.to_string(),
            Some(format!("{} --vm virtme-ng", setup_line())),
        ),
        Err(error) => Check::not(NAME, State::Broken, error.to_string(), None),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use semver::Version;
    use std::path::PathBuf;

    #[test]
    fn the_checkup_is_aligned_and_each_lack_has_its_line() {
        let checks = [
            Check::ok("QEMU", "QEMU emulator version 10.0.13 (private copy)").required(),
            Check::not(
                "clang",
                State::Missing,
                "no clang: compiles the BPF programs",
                Some("apt-get install clang".into()),
            )
            .required(),
            Check::not("KVM", State::Broken, "it ended with InternalError\nextra data", None),
            Check::not(
                "virtme-ng",
                State::Missing,
                "no vng",
                Some("pipx install virtme-ng".into()),
            ),
        ];
        insta::assert_snapshot!(render(&checks), @r"
        ok        QEMU       QEMU emulator version 10.0.13 (private copy)
        missing   clang      no clang: compiles the BPF programs
                             mend: apt-get install clang
        (broken)  KVM        it ended with InternalError
                             extra data
        (missing) virtme-ng  no vng
                             mend: pipx install virtme-ng

        Something required is not there; what is in brackets is optional.
        ");
        assert!(!all_required(&checks));
        assert!(all_required(&checks[2..]), "what is optional is not required");
        insta::assert_snapshot!(render(&checks[2..3]), @r"
        (broken)  KVM  it ended with InternalError
                       extra data

        All that is required is there; what is in brackets is optional.
        ");
    }

    #[test]
    fn what_clang_lacks_to_build_kernels_is_named_and_optional() {
        assert_eq!(clang_check(&[]).state, State::Ok);
        let need = |name: &str, package: &str| Need { name: name.into(), package: package.into() };
        let check =
            clang_check(&[need("ld.lld", "lld"), need("llvm-ar", "llvm"), need("llvm-nm", "llvm")]);
        assert_eq!((check.state, check.required), (State::Missing, false));
        assert_eq!(
            check.detail,
            "no ld.lld, llvm-ar, llvm-nm: for kernels with `toolchain: clang`"
        );
        let tests =
            tree_tests_check(&[need("rsync", "rsync"), need("<libelf.h>, -lelf", "libelf-dev")]);
        assert_eq!(
            tests.detail,
            "no rsync, <libelf.h>, -lelf: for suites with `bench`, `test_progs` or `kselftest` \
             scripts"
        );
        assert!(tests.mend.is_some_and(|line| line.ends_with(" rsync")));
        assert_eq!(tree_tests_check(&[]).state, State::Ok);
        assert!(check.mend.unwrap().ends_with(" lld llvm"));
    }

    #[test]
    fn kvm_is_ok_only_when_a_guest_ran_and_never_required() {
        for (probe, state, mended) in [
            (Ok(12), State::Ok, false),
            (Err(KvmError::Absent), State::Missing, cfg!(target_arch = "x86_64")),
            (Err(KvmError::Unsupported), State::Missing, false),
            (Err(KvmError::Denied { by_group: true }), State::Missing, true),
            (Err(KvmError::Denied { by_group: false }), State::Missing, true),
            (Err(KvmError::Ended("InternalError".into())), State::Broken, false),
            (Err(KvmError::Hangs(2)), State::Broken, false),
        ] {
            let check = kvm_check(probe, None);
            assert_eq!(
                (check.state, check.mend.is_some(), check.required),
                (state, mended, false),
                "{check:?}"
            );
            assert!(check.state == State::Ok || check.detail.contains("TCG"), "{check:?}");
        }
    }

    #[test]
    fn kvm_is_broken_if_a_kernel_did_not_boot_under_it() {
        let check = kvm_check(Ok(12), Some("QEMU exit: it reset".to_owned()));
        assert_eq!(check.state, State::Broken);
        assert!(check.detail.contains("it reset"), "{check:?}");
    }

    /// The probe returns on any host; of a broken KVM it says how it is broken.
    #[test]
    fn the_probe_of_this_hosts_kvm_answers() {
        match kvm::probe() {
            Ok(version) => assert_eq!(version, 12, "the API version has been 12 since 2007"),
            Err(KvmError::Absent | KvmError::Unsupported) => {
                assert!(!PathBuf::from("/dev/kvm").exists());
            }
            Err(error) => println!("{error}"),
        }
    }

    #[test]
    fn a_qemu_that_does_not_do_says_why_and_what_mends_it() {
        let old = || Unfit::Version(Version::new(7, 2, 22));
        let program = PathBuf::from("/opt/qemu");
        for (error, words, mend) in [
            (
                QemuError::NotFound {
                    arch: Arch::Arm64,
                    purpose: Purpose::Measuring,
                    why: "qemu-system-aarch64 is not in PATH".into(),
                },
                "not in PATH",
                Some("cargo xtask vm-test --setup --arch arm64"),
            ),
            (
                QemuError::Unfit { arch: Arch::Arm64, program: program.clone(), why: old() },
                "7.2.22",
                Some("unset TRAMPLAB_QEMU_ARM64"),
            ),
            (
                QemuError::Unfit { arch: Arch::Arm64, program, why: Unfit::NoPlugins },
                "without TCG plugins",
                Some("unset TRAMPLAB_QEMU_ARM64"),
            ),
        ] {
            let without = matches!(error, QemuError::Unfit { why: Unfit::NoPlugins, .. });
            let is_missing = matches!(error, QemuError::NotFound { .. });
            let [qemu, plugins] = qemu_checks(Arch::Arm64, Err(error));
            assert!(qemu.state != State::Ok && qemu.detail.contains(words), "{qemu:?}");
            // One that is missing is fetched when a guest needs it.
            assert_eq!(qemu.required, !(is_missing && debian::verifier().is_ok()), "{qemu:?}");
            assert_eq!(qemu.mend.as_deref(), mend);
            assert_eq!(plugins.detail.contains("built without"), without, "{plugins:?}");
        }
    }

    #[test]
    fn lbr_counts_when_guests_are_offered_it() {
        let offered = Branches::Hardware(serde_json::from_str("5").unwrap());
        let check = lbr_check(Some(32), &offered);
        assert_eq!((check.state, check.required), (State::Ok, false));
        assert!(
            check.detail.contains("32 records") && check.detail.contains("format 0x5"),
            "{check:?}"
        );
        let check = lbr_check(None, &Branches::Virtual("it is too old".to_owned()));
        assert_eq!((check.state, check.required), (State::Missing, false));
        assert!(check.detail.contains("it is too old"), "{check:?}");
    }
}
