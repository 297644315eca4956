// SPDX-License-Identifier: MIT OR Apache-2.0
//! Builds small trees with the host's tools.

use super::{
    output::{is_own, write_anew},
    *,
};
use crate::kconfig::{Fragment, Fragments};
use std::{collections::BTreeSet, fs, path::Path, time::Duration};
use tramplab_host::{cache::Cache, child};

/// A patch to the only line of `one.c`.
fn patch(from: &str, to: &str) -> Patch {
    Patch {
        number: 1,
        ids: Default::default(),
        subject: format!("one: {to}"),
        origin: "some.patch".into(),
        diff: format!("--- a/one.c\n+++ b/one.c\n@@ -1 +1 @@\n-{from}\n+{to}\n").into(),
        strip: 1,
        reversed: false,
        touched: vec!["one.c".into()],
    }
}

pub fn order(patches: Vec<Patch>) -> Order {
    Order {
        name: "n".into(),
        arch: Arch::X86_64,
        digest: "d".into(),
        description: "x".into(),
        lineage: "l".into(),
        starts_from: None,
        toolchain: Toolchain::default(),
        root: None,
        config: config("CONFIG_A=y\n"),
        patches,
        completes: false,
        introduced: BTreeSet::new(),
        reverse: false,
        aside: false,
        lines: false,
        modules: false,
        confinement: None,
    }
}

fn config(text: &str) -> Fragments {
    Fragments::merge(Fragment::parse(text, Path::new("a.config")).unwrap())
}

/// Applies a patch to sources.
pub type ApplyFn = dyn Fn(&Patch, &Path) -> Result<(), Reason>;

/// Applies patches with git. `folder` must outlive the sources.
pub fn git_apply(folder: &Path) -> Box<ApplyFn> {
    let file = folder.join("diff");
    Box::new(move |patch, source| {
        fs::write(&file, &patch.diff)?;
        let mut command = tramplab_testdata::git::command(source);
        command.arg("apply").arg(&file);
        Ok(child::run(&mut command, Duration::from_secs(60)).map(drop)?)
    })
}

#[test]
fn replaces_planted_link_and_rejects_it_as_product() {
    let folder = tempfile::tempdir().unwrap();
    let (build, outside) = (folder.path().join("build"), folder.path().join("outside"));
    fs::create_dir(&build).unwrap();
    fs::create_dir(&outside).unwrap();
    fs::write(outside.join("secret"), "secret").unwrap();
    let link = build.join("fragment");
    std::os::unix::fs::symlink(outside.join("secret"), &link).unwrap();
    assert!(!is_own(&link, &build).unwrap());
    write_anew(&link, "text").unwrap();
    assert!(is_own(&link, &build).unwrap());
    assert_eq!(fs::read_to_string(&link).unwrap(), "text");
    assert_eq!(fs::read_to_string(outside.join("secret")).unwrap(), "secret");
    std::os::unix::fs::symlink(&outside, build.join("boot")).unwrap();
    assert!(!is_own(&build.join("boot/secret"), &build).unwrap());
}

/// Needs a host that can build kernels: the key includes tool versions.
#[test]
fn key_covers_all_inputs() {
    let patch = |diff: &str| Patch { diff: diff.into(), ..patch("", "") };
    let order = order(vec![patch("a"), patch("b")]);
    let cache = Cache::at("/nonexistent", true);
    let keys = |order: &Order| -> Option<Vec<String>> {
        match Builder::new(order, &cache, &|_| Ok(()), &|_, _| Ok(())) {
            Ok(builder) => Some((0..=2).map(|count| builder.key(count)).collect()),
            Err(BuildError::Toolchain(error)) => {
                eprintln!("skipped: {error}");
                None
            }
            Err(error) => panic!("{error}"),
        }
    };
    let Some(first) = keys(&order) else { return };
    assert_eq!(first.iter().collect::<BTreeSet<_>>().len(), 3);
    let named =
        Order { name: "m".into(), description: "y".into(), lineage: "k".into(), ..order.clone() };
    assert_eq!(keys(&named).unwrap(), first);
    for other in [
        Order { digest: "e".into(), ..order.clone() },
        Order { config: config("CONFIG_A=n\n"), ..order.clone() },
    ] {
        assert!(keys(&other).unwrap().iter().all(|key| !first.contains(key)));
    }
    let swapped = keys(&Order { patches: vec![patch("b"), patch("a")], ..order.clone() }).unwrap();
    assert!(swapped[0] == first[0] && swapped[1] != first[1] && swapped[2] != first[2]);
    let reversed = keys(&Order { reverse: true, ..order.clone() }).unwrap();
    // Without patches it is the same kernel.
    assert_eq!(reversed[0], first[0]);
    assert!(reversed[1..].iter().all(|key| !first.contains(key)) && reversed[1] != swapped[1]);
    let joined = keys(&Order { patches: vec![patch("ab")], ..order.clone() }).unwrap();
    assert_ne!(joined[1], first[2]);
}

/// Imitates Linux's three targets. make, compiler, git, workspace, cache and confinement are
/// real.
const MAKEFILE: &str = "\
allnoconfig:\n\tcp $(KCONFIG_ALLCONFIG) $(O)/.config
prepare:\n\t@echo '  GEN     prepared'
bzImage: $(O)/arch/x86/boot/bzImage
$(O)/arch/x86/boot/bzImage: $(O)/one.o\n\t@echo '  BUILD   bzImage'; mkdir -p $(@D); cp $< $(O)/vmlinux; cp $< $@
$(O)/one.o: one.c\n\t@echo '  CC      one.o'; $(CC) -c -o $@ $<
";

#[test]
fn builds_series_patch_by_patch_and_caches_each_kernel() {
    let (one, two, three) = ("int a = 1;", "int a = 2;", "int a = x;");
    let folder = tempfile::tempdir().unwrap();
    let cache = Cache::at(folder.path().join("cache"), true);
    let log = folder.path().join("log");
    let mut order = Order {
        confinement: Confinement::probe().ok(),
        ..order(vec![
            patch(one, two),
            patch(two, one),
            patch(one, three),
            patch("no such line", two),
        ])
    };
    let checkout = |folder: &Path| -> Result<(), Reason> {
        fs::write(folder.join("Makefile"), MAKEFILE)?;
        Ok(fs::write(folder.join("one.c"), format!("{one}\n"))?)
    };
    let apply = git_apply(folder.path());
    let mut builder = match Builder::new(&order, &cache, &checkout, &apply) {
        Ok(builder) => builder,
        Err(BuildError::Toolchain(error)) => return eprintln!("skipped: {error}"),
        Err(error) => panic!("{error}"),
    };
    let mut last = Event::Progress { done: 0, total: 0 };
    let mut events = |event: Event| {
        last = event;
        ControlFlow::Continue(())
    };
    let first = builder.build(1, &log, &mut events).unwrap();
    let base = builder.build(0, &log, &mut events).unwrap();
    let second = builder.build(2, &log, &mut events).unwrap();
    assert!(!first.cached && !base.cached && !second.cached);
    assert_ne!(first.record.sha256, base.record.sha256);
    // The second patch reverts the first: another order, the same kernel.
    assert_eq!(second.record.sha256, base.record.sha256);
    assert_ne!(second.record.key, base.record.key);
    assert_eq!(fs::read_to_string(&base.config).unwrap(), "CONFIG_A=y\n");
    assert!(builder.build(1, &log, &mut events).unwrap().cached);
    assert!(matches!(last, Event::Progress { done, total } if done == total));

    let error = builder.build(3, &log, &mut |_| ControlFlow::Continue(())).unwrap_err();
    let BuildError::Compile { error, .. } = error else { panic!("{error}") };
    assert_eq!((error.file.as_deref(), error.line), (Some("one.c"), Some(1)), "{error}");
    let error = builder.build(4, &log, &mut |_| ControlFlow::Continue(())).unwrap_err();
    assert!(matches!(error, BuildError::Apply { .. }), "{error}");
    assert!(
        error.to_string().starts_with("failed to apply `one: int a = 2;` (some.patch) to x: "),
        "{error}"
    );
    // After failures, the next build starts from the intact base.
    fs::remove_dir_all(first.image.parent().unwrap()).unwrap();
    let again = builder.build(1, &log, &mut |_| ControlFlow::Continue(())).unwrap();
    assert_eq!((again.cached, &again.record.sha256), (false, &first.record.sha256));
    drop(builder);

    order.config = config("CONFIG_A=y\nCONFIG_B=y\n");
    let mut builder = Builder::new(&order, &cache, &checkout, &apply).unwrap();
    let stop = builder.build(order.patches.len(), &log, &mut |_| ControlFlow::Break(()));
    assert!(matches!(stop, Err(BuildError::Interrupted { .. })), "{stop:?}");
}

/// Modules take long to build, and are only there if a test names one.
#[test]
fn builds_modules_that_are_asked_for_and_trusts_no_makefile() {
    let folder = tempfile::tempdir().unwrap();
    let (cache, log) = (Cache::at(folder.path().join("cache"), true), folder.path().join("log"));
    let plain = Order {
        confinement: Confinement::probe().ok(),
        config: config("CONFIG_A=y\nCONFIG_M=m\n"),
        ..order(Vec::new())
    };
    let apply = git_apply(folder.path());
    let build = |order: &Order, rules: &str| {
        let checkout = |folder: &Path| -> Result<(), Reason> {
            fs::write(folder.join("Makefile"), format!("{MAKEFILE}{rules}"))?;
            Ok(fs::write(folder.join("one.c"), "int a = 1;\n")?)
        };
        let mut builder = Builder::new(order, &cache, &checkout, &apply)?;
        builder.build(0, &log, &mut |_| ControlFlow::Continue(()))
    };
    let rules = "modules:\n\techo module > $(O)/m.ko; echo m.o > $(O)/modules.order\n";
    let kept = |built: Built| fs::read_dir(built.modules.unwrap()).unwrap().count();
    match build(&plain, rules) {
        Err(BuildError::Toolchain(error)) => return eprintln!("skipped: {error}"),
        built => assert_eq!(kept(built.unwrap()), 0),
    }
    let asking = Order { modules: true, ..plain.clone() };
    assert_eq!(kept(build(&asking, rules).unwrap()), 1);
    assert!(build(&plain, rules).unwrap().cached);
    // To open a FIFO would block.
    let hostile = Order { digest: "hostile".into(), lineage: "h".into(), ..asking };
    let rules = format!("{rules}bzImage: fifo\nfifo:\n\trm $(O)/.config; mkfifo $(O)/.config\n");
    let error = build(&hostile, &rules).unwrap_err();
    assert!(matches!(error, BuildError::Io { action: "use", .. }), "{error}");
}

/// Source lines take more room than kernels, and may be gone, or never have been there.
#[test]
fn builds_cached_kernel_again_only_for_source_lines_that_are_asked_for() {
    let folder = tempfile::tempdir().unwrap();
    let (cache, log) = (Cache::at(folder.path().join("cache"), true), folder.path().join("log"));
    let patch = patch("int a = 1;", "int a = 2;");
    let plain = Order { confinement: Confinement::probe().ok(), ..order(vec![patch]) };
    let asking = Order { lines: true, ..plain.clone() };
    let checkout = |folder: &Path| -> Result<(), Reason> {
        fs::write(folder.join("Makefile"), MAKEFILE)?;
        Ok(fs::write(folder.join("one.c"), "int a = 1;\n")?)
    };
    let apply = git_apply(folder.path());
    let build = |order: &Order, count: usize| {
        let mut builder = Builder::new(order, &cache, &checkout, &apply).unwrap();
        builder.build(count, &log, &mut |_| ControlFlow::Continue(()))
    };
    if let Err(BuildError::Toolchain(error)) = Builder::new(&plain, &cache, &checkout, &apply) {
        return eprintln!("skipped: {error}");
    }
    let lines = |count: usize| build(&plain, count).unwrap().vmlinux;
    let forget_all = || fs::remove_dir_all(cache.root().join("kernel-debug")).unwrap();

    let [base, head] = [0, 1].map(|count| build(&plain, count).unwrap());
    assert!(!base.cached && !head.cached);
    for kernel in [&base, &head] {
        assert!(kernel.vmlinux.is_some() && kernel.functions.is_some(), "{kernel:?}");
    }
    forget_all();
    for count in [0, 1] {
        let again = build(&plain, count).unwrap();
        assert!(again.cached && again.vmlinux.is_none() && again.functions.is_some(), "{again:?}");
    }
    for count in [1, 0] {
        assert!(build(&asking, count).unwrap().cached);
        assert!(lines(count).is_some());
    }
    // The head's build passes by the base's.
    forget_all();
    fs::remove_dir_all(head.image.parent().unwrap()).unwrap();
    build(&plain, 1).unwrap();
    assert!(lines(0).is_some());
    // Without a copy of the base to start from.
    forget_all();
    fs::remove_dir_all(cache.root().join("kernel-build")).unwrap();
    build(&asking, 0).unwrap();
    assert!(lines(0).is_some());

    // Lines of another kernel would be wrong.
    forget_all();
    let record = BuildRecord { sha256: "0".repeat(64), ..base.record };
    output::write_record(base.image.parent().unwrap(), &record).unwrap();
    let error = build(&asking, 0).unwrap_err();
    assert!(matches!(error, BuildError::Lines { .. }), "{error}");
    assert_eq!(lines(0), None);
}

/// Imitates Kconfig: a configuration has the options that `Kconfig` defines; option B depends on a
/// default.
const CONFIGURED: &str = "\
DEFINED = for o in $$(sed -n 's/^config //p' Kconfig); do \\\n\tsed -n \"/^CONFIG_$$o=/p\" $(KCONFIG_ALLCONFIG); done
allnoconfig:\n\t($(DEFINED)) | sed /CONFIG_B=/d > $(O)/.config
alldefconfig:\n\t($(DEFINED)) > $(O)/.config
prepare:\n\t@echo '  GEN     prepared'
bzImage: $(O)/arch/x86/boot/bzImage
$(O)/arch/x86/boot/bzImage: Kconfig $(O)/.config\n\tmkdir -p $(@D); cp $< $(O)/vmlinux; cp $< $@
";

/// Builds an order in a cache. Returns the kernels' options and records, base first.
fn configured(order: &Order, cache: &Cache) -> Result<Vec<(String, Configured)>, BuildError> {
    let folder = tempfile::tempdir().unwrap();
    let checkout = |folder: &Path| -> Result<(), Reason> {
        fs::write(folder.join("Makefile"), CONFIGURED)?;
        let options = ["A", "B"].map(|name| format!("config {name}\n\tbool \"{name}\"\n\n"));
        Ok(fs::write(folder.join("Kconfig"), options.concat())?)
    };
    let apply = git_apply(folder.path());
    let mut builder = Builder::new(order, cache, &checkout, &apply)?;
    let log = folder.path().join("log");
    let built = |count| {
        let built = builder.build(count, &log, &mut |_| ControlFlow::Continue(()))?;
        Ok((fs::read_to_string(built.config).unwrap(), built.record.configured))
    };
    let built: Result<Vec<_>, BuildError> = (0..=order.patches.len()).map(built).collect();
    if let Err(BuildError::Config { unmet, .. }) = &built {
        let told = fs::read_to_string(&log).unwrap();
        assert!(unmet.iter().all(|unmet| told.contains(&unmet.to_string())), "{told}");
    }
    built
}

/// Defines option C.
fn defining_patch() -> Patch {
    let diff = "--- a/Kconfig\n+++ b/Kconfig\n@@ -4,3 +4,6 @@\n config B\n \tbool \"B\"\n \n\
                +config C\n+\tbool \"C\"\n+\n";
    Patch { diff: diff.into(), touched: vec!["Kconfig".into()], ..patch("", "") }
}

#[test]
fn completes_configuration_by_defaults_for_base_and_patched_kernels() {
    let folder = tempfile::tempdir().unwrap();
    let cache = Cache::at(folder.path().join("cache"), true);
    let alone = Order { config: config("CONFIG_A=y\nCONFIG_B=y\n"), ..order(Vec::new()) };
    match configured(&alone, &cache) {
        Err(BuildError::Toolchain(error)) => return eprintln!("skipped: {error}"),
        Err(BuildError::Config { unmet, .. }) => {
            assert_eq!((unmet.len(), &*unmet[0].wanted.option), (1, "B"));
        }
        other => panic!("{other:?}"),
    }
    let completed = Order { completes: true, ..alone };
    let both = "CONFIG_A=y\nCONFIG_B=y\n";
    let [(base, how)] = &configured(&completed, &cache).unwrap()[..] else { panic!() };
    assert_eq!((&**base, how.completion.defaults), (both, true));
    // The base is in the cache. A patch of Kconfig has the configuration made again.
    let patched = Order { patches: vec![defining_patch()], ..completed.clone() };
    let [_, (head, how)] = &configured(&patched, &cache).unwrap()[..] else { panic!() };
    assert_eq!((&**head, how.completion.defaults), (both, true));
    // Nothing to complete.
    let small = Order { config: config("CONFIG_A=y\n"), ..completed };
    let [(base, how)] = &configured(&small, &cache).unwrap()[..] else { panic!() };
    assert_eq!((&**base, how), ("CONFIG_A=y\n", &Configured::default()));
}

#[test]
fn leaves_out_options_that_only_the_series_has() {
    let folder = tempfile::tempdir().unwrap();
    let cache = Cache::at(folder.path().join("cache"), true);
    let alone =
        Order { config: config("CONFIG_A=y\nCONFIG_C=y\n"), ..order(vec![defining_patch()]) };
    let introduced = Order { introduced: BTreeSet::from(["C".to_owned()]), ..alone.clone() };
    let kernels = match configured(&introduced, &cache) {
        Err(BuildError::Toolchain(error)) => return eprintln!("skipped: {error}"),
        kernels => kernels.unwrap(),
    };
    let [(base, of_base), (head, of_head)] = &kernels[..] else { panic!("{kernels:?}") };
    assert_eq!((&**base, &of_base.left_out[..]), ("CONFIG_A=y\n", &["CONFIG_C=y".to_owned()][..]));
    assert_eq!((&**head, of_head), ("CONFIG_A=y\nCONFIG_C=y\n", &Configured::default()));
    // The cache has that base. Without the series its configuration is an error.
    for order in [alone, Order { introduced: BTreeSet::from(["B".to_owned()]), ..introduced }] {
        match configured(&order, &cache) {
            Err(BuildError::Config { unmet, .. }) => {
                assert!(unmet[0].is_unknown && unmet[0].wanted.option == "C", "{unmet:?}");
            }
            other => panic!("{other:?}"),
        }
    }
}

#[test]
fn names_first_lost_options_and_counts_the_others() {
    let folder = tempfile::tempdir().unwrap();
    let cache = Cache::at(folder.path().join("cache"), true);
    let lost: String = (0..11).map(|number| format!("CONFIG_N{number}=y\n")).collect();
    let text = format!("CONFIG_A=y\n{lost}");
    match configured(&Order { config: config(&text), ..order(Vec::new()) }, &cache) {
        Err(BuildError::Toolchain(error)) => eprintln!("skipped: {error}"),
        Err(error) => {
            let text = error.to_string();
            assert!(
                text.contains(": 11 options did not survive\na.config:2: CONFIG_N0=y"),
                "{text}"
            );
            assert!(text.contains("\n3 more: ") && !text.contains("CONFIG_N8"), "{text}");
        }
        Ok(kernels) => panic!("{kernels:?}"),
    }
}
