// SPDX-License-Identifier: MIT OR Apache-2.0
//! Applies tramplab's configurations to the sources of 6.12 for arm64, with a cross compiler.
//! Configures kernels, but builds none.

use std::{
    collections::BTreeSet,
    env, fs,
    ops::ControlFlow,
    path::{Path, PathBuf},
    time::Duration,
};
use tramplab_host::{Cache, child};
use tramplab_kernel as kernel;
use tramplab_kernel::{
    Recipe, Source,
    compile::{BuildError, Builder, Confinement, Event, Order, ToolchainError},
    kconfig::{self, Uses},
    source,
};
use tramplab_model::run::Arch;
use tramplab_protocol::Mechanism;

/// 6.12's sources, unpacked once for all configurations.
struct Sources {
    /// In the cache's folder, where there is room.
    folder: tempfile::TempDir,
    tree: PathBuf,
}

const PREFIX: &str = "test-kernel-config-";

/// Removes the folders of killed tests, a gigabyte each.
fn sweep(root: &Path) {
    for entry in fs::read_dir(root).unwrap().flatten() {
        let name = entry.file_name().to_string_lossy().into_owned();
        let process = name.strip_prefix(PREFIX).and_then(|rest| rest.split('-').next());
        if process.is_some_and(|process| !Path::new("/proc").join(process).exists()) {
            let _ = fs::remove_dir_all(entry.path());
        }
    }
}

impl Sources {
    fn unpack() -> Sources {
        let cache = Cache::open(true).unwrap();
        let recipe = recipe(Path::new(concat!(
            env!("CARGO_MANIFEST_DIR"),
            "/../../kernels/6.12-source.yaml"
        )));
        let mut progress = |_: &str| ();
        let sources = source::resolve(&recipe.tree, &cache, &mut progress).unwrap();
        sweep(cache.root());
        let prefix = format!("{PREFIX}{}-", std::process::id());
        let folder = tempfile::Builder::new().prefix(&prefix).tempdir_in(cache.root()).unwrap();
        let tree = folder.path().join("tree");
        fs::create_dir(&tree).unwrap();
        sources.checkout(&tree, &cache, &mut progress).unwrap();
        Sources { folder, tree }
    }

    /// Configures an arm64 kernel with tramplab's fragments and `extra` lines.
    fn configure(&self, toolchain: &str, extra: &str) -> Result<(), BuildError> {
        let folder = tempfile::tempdir_in(self.folder.path()).unwrap();
        let path = |name: &str| folder.path().join(name);
        fs::write(path("extra.config"), extra).unwrap();
        let text = format!(
            "arch: arm64\ndebian-source: {{ package: linux-source-6.12 }}\n\
             toolchain: {toolchain}\nconfig: [extra.config]\n"
        );
        fs::write(path("k.yaml"), text).unwrap();
        let recipe = recipe(&path("k.yaml"));
        let configs = Path::new(concat!(env!("CARGO_MANIFEST_DIR"), "/../../configs/kconfig"));
        let order = Order {
            name: "k".into(),
            arch: Arch::Arm64,
            digest: "6.12".into(),
            description: "6.12".into(),
            lineage: "6.12".into(),
            starts_from: None,
            toolchain: recipe.toolchain,
            root: None,
            config: kconfig::fragments(
                configs,
                Arch::Arm64,
                &Mechanism::ALL,
                Uses::default(),
                &[],
                &recipe.config,
                &recipe.variation.options,
            )
            .unwrap(),
            patches: Vec::new(),
            completes: false,
            introduced: BTreeSet::new(),
            reverse: false,
            confinement: Confinement::probe().ok(),
            aside: false,
            lines: false,
            modules: false,
        };
        let cache = Cache::at(self.folder.path().join("cache"), true);
        // All build folders share the sources, which are only read.
        let checkout = |into: &Path| {
            let mut command = std::process::Command::new("cp");
            command
                .args(["--archive", "--link", "--no-target-directory"])
                .arg(&self.tree)
                .arg(into);
            Ok(child::run(&mut command, Duration::from_mins(60)).map(drop)?)
        };
        let mut builder = Builder::new(&order, &cache, &checkout, &|_, _| Ok(()))?;
        let mut configured = false;
        let built = builder.build(0, &path("log"), &mut |event| match event {
            // The configuration is done.
            Event::Stage(text) if text == "preparing" => {
                configured = true;
                ControlFlow::Break(())
            }
            _ => ControlFlow::Continue(()),
        });
        match built {
            Err(BuildError::Interrupted { .. }) if configured => Ok(()),
            Err(error) => Err(error),
            Ok(_) => panic!("it was built"),
        }
    }

    /// The whole `.config` that the tree proposes for arm64.
    fn defconfig(&self) -> String {
        let folder = tempfile::tempdir_in(self.folder.path()).unwrap();
        let mut make = std::process::Command::new("make");
        make.arg("-C").arg(&self.tree).arg(format!("O={}", folder.path().display()));
        make.args(["ARCH=arm64", "CROSS_COMPILE=aarch64-linux-gnu-", "defconfig"]);
        child::run(&mut make, Duration::from_mins(60)).unwrap();
        fs::read_to_string(folder.path().join(".config")).unwrap()
    }

    /// Returns each option that was lost, with the reason.
    fn lost(&self, toolchain: &str, extra: &str) -> Vec<(String, String)> {
        match self.configure(toolchain, extra) {
            Ok(()) => Vec::new(),
            Err(BuildError::Config { unmet, .. }) => {
                unmet.into_iter().map(|unmet| (unmet.wanted.option, unmet.why)).collect()
            }
            Err(error) => panic!("{error}"),
        }
    }
}

/// Reads a manifest's build recipe for arm64.
fn recipe(path: &Path) -> Recipe {
    let manifests = kernel::find(path.to_str().unwrap(), Path::new("/nonexistent")).unwrap();
    let manifest = manifests.into_iter().find(|manifest| manifest.arch == Arch::Arm64).unwrap();
    let Source::Built(recipe) = manifest.source else { panic!("{manifest:?}") };
    recipe
}

const CALL_OPS: &str = "DYNAMIC_FTRACE_WITH_CALL_OPS";
const DIRECT_CALLS: &str = "DYNAMIC_FTRACE_WITH_DIRECT_CALLS";

#[test]
#[ignore = "full: configures kernels of several versions"]
fn arm64_keeps_its_tracing_options_or_names_the_reason() {
    let sources = Sources::unpack();
    // Asked for as `=y`, they must be there.
    let kept = format!("CONFIG_{CALL_OPS}=y\nCONFIG_{DIRECT_CALLS}=y\n");
    assert_eq!(sources.lost("gcc", &kept), []);

    // 6.12 has no fprobe for arm64. Only a configuration that insists on it is an error.
    let lost = sources.lost("gcc", "CONFIG_FPROBE=y\n");
    let [(option, why)] = &lost[..] else { panic!("{lost:?}") };
    assert!(option == "FPROBE" && why.contains("HAVE_RETHOOK [=n]"), "{lost:?}");

    // Options without a prompt follow from others in a whole `.config`.
    let whole = "# Automatically generated file; DO NOT EDIT.\nCONFIG_GCC_VERSION=1\n\
                 CONFIG_HZ_1000=y\nCONFIG_FUSE_DAX=y\nCONFIG_NOT_OF_THIS_TREE=y\n";
    let lost = sources.lost("gcc", whole);
    let [(option, why)] = &lost[..] else { panic!("{lost:?}") };
    assert!(option == "FUSE_DAX" && why.contains("VIRTIO_FS [=n]"), "{lost:?}");
    // The tree's own has no debug information and no tracing.
    assert_eq!(sources.lost("gcc", &sources.defconfig()), []);

    const SMALL: &str =
        "# CONFIG_CC_OPTIMIZE_FOR_PERFORMANCE is not set\nCONFIG_CC_OPTIMIZE_FOR_SIZE=y\n";
    let lost = sources.lost("gcc", SMALL);
    let names: Vec<_> = lost.iter().map(|(option, _)| option.as_str()).collect();
    assert_eq!(names, [DIRECT_CALLS, CALL_OPS]);
    for (option, why) in &lost {
        assert!(why.contains("is selected by ARM64 [=y] only with"), "{option}: {why}");
        assert!(why.contains("!CC_OPTIMIZE_FOR_SIZE [=y]"), "{option}: {why}");
        assert!(why.contains(&format!("# CONFIG_{option} is not set")), "{option}: {why}");
    }
    // A configuration that leaves both out on purpose is no error.
    let meant =
        format!("{SMALL}# CONFIG_{CALL_OPS} is not set\n# CONFIG_{DIRECT_CALLS} is not set\n");
    assert_eq!(sources.lost("gcc", &meant), []);

    // clang keeps both at any size. It may be missing.
    match sources.configure("clang", &format!("{kept}{SMALL}")) {
        Ok(()) => {}
        Err(BuildError::Toolchain(error @ ToolchainError::Missing { .. })) => {
            return eprintln!("without clang: {error}");
        }
        Err(error) => panic!("{error}"),
    }
    let lost = sources.lost("clang", "CONFIG_CFI_CLANG=y\n");
    match &lost[..] {
        // Before clang 16.
        [(option, why)] => {
            assert!(option == "CFI_CLANG" && why.contains("the compiler"), "{lost:?}")
        }
        lost => {
            let names: Vec<_> = lost.iter().map(|(option, _)| option.as_str()).collect();
            assert_eq!(names, [DIRECT_CALLS, CALL_OPS]);
            assert!(
                lost.iter().all(|(_, why)| why.contains("only with !CFI_CLANG [=y]")),
                "{lost:?}"
            );
        }
    }
}
