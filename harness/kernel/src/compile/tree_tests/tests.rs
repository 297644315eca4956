// SPDX-License-Identifier: MIT OR Apache-2.0
//! Builds a small tree with tests of its own.

use super::*;
use crate::{
    compile::{
        Confinement, Event, Order, Reason,
        tests::{ApplyFn, git_apply, order},
    },
    series::Patch,
};
use std::{ops::ControlFlow, process::Command, time::Duration};
use tramplab_host::{cache::Cache, child};
use tramplab_model::tree_tests::ROOT;

/// Imitates Linux's Makefile: an image beside a vmlinux.
const KERNEL: &str = "\
allnoconfig:\n\tcp $(KCONFIG_ALLCONFIG) $(O)/.config
prepare modules headers:\n\t@echo '  GEN     $@'
bzImage:\n\t@mkdir -p $(O)/arch/x86/boot; cp one.c $(O)/vmlinux; cp one.c $(O)/arch/x86/boot/bzImage
";

/// Imitates the real Makefile: writes into its sources, collects its tests from the files it
/// finds, needs the programs they include, and fails if it is repeated in the same folder.
const TESTS: &str = "\
bench test_progs: %: $(OUTPUT)/% ;
$(OUTPUT)/bench: bench.c $(VMLINUX_BTF) prog_tests/*.c
\t$(CC) -o $@ $<\n\tcp progs/always.c $(OUTPUT)/always.bpf.o
$(OUTPUT)/test_progs: test_progs.c
\tsed -n 's/^void test_\\([a-z_]*\\)(void).*/{ \"\\1\", test_\\1 },/p' prog_tests/*.c \
> prog_tests/tests.h
\tprintf '#include \"%s\"\\n' $(CURDIR)/prog_tests/*.c > $(OUTPUT)/all.h
\tls progs > $(OUTPUT)/programs.txt
\techo '$@: nowhere.lskel.h' > $(OUTPUT)/test.d
\tfor program in progs/w*.c; do if [ -e $$program ]; then \
$(CC) -c -o $(OUTPUT)/w.bpf.o $$program || exit 1; fi; done
\t$(CC) -I$(OUTPUT) -Iprog_tests -o $@ $<
words: always.skel.h
include $(wildcard $(OUTPUT)/test.d)
";

/// Each program has its own result. `waits` needs a tool that is missing the first time.
const OTHERS: &str = "\
TEST_GEN_PROGS := $(wildcard *.c) odd huge nothing waits fifo folder
TEST_PROGS := reads
install:\n\tmkdir -p $(INSTALL_PATH); cp -r reads data $(INSTALL_PATH)
$(OUTPUT)/%: %.c\n\t$(CC) -o $@ $<
$(OUTPUT)/odd: says_ok.c\n\t$(CC) -Wl,--dynamic-linker=/etc/passwd -o $@ $<
$(OUTPUT)/huge: says_ok.c\n\ttruncate -s 600M $@
$(OUTPUT)/nothing: says_ok.c\n\t@:
$(OUTPUT)/fifo: says_ok.c\n\tmkfifo $@
$(OUTPUT)/folder: says_ok.c\n\tmkdir $@
$(OUTPUT)/waits: says_ok.c
\tif [ -e $(OUTPUT)/../../../../there ]; then $(CC) -o $@ $<; \
else touch $(OUTPUT)/../../../../there; no-such-tool; fi
";

const MAIN: &str = "\
#include <stdio.h>
#include \"all.h\"
static struct { const char *name; void (*run)(void); } tests[] = {\n#include \"tests.h\"\n};
int main(void) {
for (int i = 0; i < sizeof(tests) / sizeof(*tests); i++) {
printf(\"%s \", tests[i].name); tests[i].run();
} return 0; }
";

fn tree(folder: &Path) -> Result<(), Reason> {
    let own = folder.join(FOLDER);
    fs::create_dir_all(own.join("prog_tests"))?;
    fs::create_dir_all(own.join("progs"))?;
    let other = folder.join(ROOT).join("other");
    fs::create_dir_all(other.join("data"))?;
    let test = |name: &str, body: &str| {
        format!("// \"{name}.skel.h\"\nvoid test_{name}(void)\n{{ {body} }}\n")
    };
    for (file, text) in [
        (folder.join("Makefile"), KERNEL.to_owned()),
        (folder.join("one.c"), "one\n".to_owned()),
        (own.join("Makefile"), TESTS.to_owned()),
        (own.join("bench.c"), "int main(void) { return 0; }\n".to_owned()),
        (own.join("test_progs.c"), MAIN.to_owned()),
        (own.join("prog_tests/first.c"), test("first", "puts(\"ok\");")),
        (own.join("prog_tests/second.c"), test("second", "not C")),
        (own.join("prog_tests/worse.c"), test("worse", "puts(\"ok\");")),
        (own.join("progs/worse.c"), "not C either\n".to_owned()),
        (other.join("Makefile"), OTHERS.to_owned()),
        (
            other.join("says_ok.c"),
            "#include <stdio.h>\nint main(void) { return puts(\"ok\") < 0; }\n".to_owned(),
        ),
        (other.join("reads"), "#!/bin/sh\ncat data/text\n".to_owned()),
        (other.join("data/text"), "of a script\n".to_owned()),
        (other.join("broken.c"), "not C\n".to_owned()),
        (own.join("progs/first.c"), String::new()),
        (own.join("progs/second.c"), String::new()),
        (own.join("progs/always.c"), "always\n".to_owned()),
        (own.join("DENYLIST"), "second # is broken\n".to_owned()),
    ] {
        fs::write(file, text)?;
    }
    Ok(())
}

/// A tree, its order with one patch, and a cache.
struct Place {
    cache: Cache,
    order: Order,
    apply: Box<ApplyFn>,
    folder: tempfile::TempDir,
}

impl Place {
    fn new() -> Place {
        let folder = tempfile::tempdir().unwrap();
        let file = format!("{FOLDER}/prog_tests/third.c");
        let patch = Patch {
            number: 1,
            ids: Default::default(),
            subject: "selftests: a third test".into(),
            origin: "some.patch".into(),
            diff: format!(
                "--- /dev/null\n+++ b/{file}\n@@ -0,0 +1,2 @@\n+void test_third(void)\n\
                 +{{ puts(\"new\"); }}\n"
            )
            .into(),
            strip: 1,
            reversed: false,
            touched: vec![file.into()],
        };
        Place {
            cache: Cache::at(folder.path().join("cache"), true),
            order: Order { confinement: Confinement::probe().ok(), ..order(vec![patch]) },
            apply: git_apply(folder.path()),
            folder,
        }
    }

    /// None on a host without a toolchain.
    fn builder(&self) -> Option<Builder<'_>> {
        available(Builder::new(&self.order, &self.cache, &tree, &*self.apply))
    }

    /// Builds the tests of the tree with `count` patches. None on a host without clang.
    fn build(
        &self,
        builder: &mut Builder,
        count: usize,
        wanted: &WantedTests,
    ) -> Option<TreeTests> {
        self.build_telling(builder, count, wanted, &mut |_| ControlFlow::Continue(()))
    }

    fn build_telling(
        &self,
        builder: &mut Builder,
        count: usize,
        wanted: &WantedTests,
        events: &mut Events,
    ) -> Option<TreeTests> {
        let log = self.folder.path().join("log");
        builder.build(count, &log, events).unwrap();
        available(builder.build_tree_tests(count, wanted, &log, events))
    }
}

fn available<T>(result: Result<T, BuildError>) -> Option<T> {
    match result {
        Ok(value) => Some(value),
        Err(BuildError::Toolchain(error)) => {
            eprintln!("skipped: {error}");
            None
        }
        Err(error) => panic!("{error}"),
    }
}

fn wanted_tests<const N: usize>(tests: [&str; N]) -> WantedTests {
    WantedTests { tests: tests.map(|name| name.parse().unwrap()).into(), ..WantedTests::default() }
}

fn wanted_programs<const N: usize>(names: [&str; N]) -> WantedTests {
    let programs = names.map(|name| format!("other/{name}").parse().unwrap()).into();
    WantedTests { programs, ..WantedTests::default() }
}

fn names(built: &TreeTests) -> Vec<String> {
    built.record.tests.keys().map(ToString::to_string).collect()
}

/// The path of a program of the folder `other`.
fn program(built: &TreeTests, name: &str) -> PathBuf {
    built.root.join(IN_GUEST).join("kselftest/other").join(name)
}

fn output_of(program: &Path) -> String {
    child::run(&mut Command::new(program), Duration::from_secs(20)).unwrap().stdout
}

/// Runs `test_progs`.
fn said(built: &TreeTests) -> String {
    output_of(&built.root.join(IN_GUEST).join("test_progs"))
}

#[test]
fn builds_trees_tests_with_its_patches() {
    let place = Place::new();
    let Some(mut builder) = place.builder() else { return };
    let wanted = WantedTests {
        bench: true,
        tests: ["first".parse().unwrap()].into(),
        files: ["third.c".to_owned()].into(),
        ..wanted_programs(["says_ok", "missing", "broken", "wildcard", "reads"])
    };
    let Some(base) = place.build(&mut builder, 0, &wanted) else { return };
    // `second` does not compile, but was not requested.
    assert_eq!((names(&base), said(&base).as_str()), (vec!["first".to_owned()], "first ok\n"));
    let own = base.root.join(IN_GUEST);
    assert_eq!(fs::read_to_string(own.join("programs.txt")).unwrap(), "always.c\nfirst.c\n");
    assert!(own.join("bench").is_file() && own.join("always.bpf.o").is_file());
    assert!(!own.join("all.h").exists());
    let linked = base.root.join("lib64/ld-linux-x86-64.so.2");
    assert!(std::env::consts::ARCH != "x86_64" || linked.is_file());
    assert!(base.denied.denies(&"second".parse().unwrap()).is_some());

    let head = place.build(&mut builder, 1, &wanted).unwrap();
    assert_eq!(names(&head), ["first", "third"]);
    assert_eq!(said(&head), "first ok\nthird new\n");
    // The base is cached, without the series' test.
    let mut events = |event| panic!("{event:?}");
    let again = place.build_telling(&mut builder, 0, &wanted, &mut events).unwrap();
    assert_eq!(again.record, base.record);

    // A program of another folder has its own place. One that does not compile has an error. A
    // missing one has no result.
    assert_eq!(output_of(&program(&base, "says_ok")), "ok\n");
    assert!(!program(&base, "broken").exists());
    // A script comes with the files that the folder's Makefile installs.
    let text = |name: &str| fs::read_to_string(program(&base, name)).unwrap();
    assert_eq!(
        (text("reads").as_str(), text("data/text").as_str()),
        ("#!/bin/sh\ncat data/text\n", "of a script\n")
    );
    let programs: Vec<String> = base.record.programs.iter().map(ToString::to_string).collect();
    assert_eq!(programs, ["other/broken", "other/reads", "other/says_ok"]);
    assert_eq!(base.record.broken.keys().collect::<Vec<_>>(), ["kselftest/other/broken"]);
}

#[test]
fn builds_other_tests_without_broken_ones() {
    let place = Place::new();
    let Some(mut builder) = place.builder() else { return };
    // One fails in its own file, one in its BPF program.
    let broken = WantedTests { bench: true, ..wanted_tests(["first", "second", "worse"]) };
    let Some(some) = place.build(&mut builder, 0, &broken) else { return };
    assert_eq!(names(&some), ["first", "second", "worse"]);
    assert_eq!(said(&some), "first ok\n");
    for (test, place) in [("second", "prog_tests/second.c:3: "), ("worse", "progs/worse.c:1: ")] {
        let message = &some.record.broken[&format!("test_progs/{test}")].reason;
        let message = message.strip_prefix(&format!("{FOLDER}/")).unwrap_or(message);
        assert!(message.starts_with(place), "{message}");
    }
    assert_eq!(some.record.broken.len(), 2);
    assert!(some.root.join(IN_GUEST).join("bench").is_file());
    // Without tests there is no program.
    let all = place.build(&mut builder, 0, &wanted_tests(["second"])).unwrap();
    assert_eq!(all.record.broken.keys().collect::<Vec<_>>(), ["test_progs/second"]);
    assert!(!all.root.join(IN_GUEST).join("test_progs").exists());
    // The tree's rules need a test file for `bench` as well.
    let bench = WantedTests { bench: true, ..WantedTests::default() };
    let bench = place.build(&mut builder, 0, &bench).unwrap();
    assert!(bench.record.broken.is_empty() && bench.root.join(IN_GUEST).join("bench").is_file());
    // A test that the tree lacks is not built.
    let none = place.build(&mut builder, 0, &wanted_tests(["fourth"])).unwrap();
    assert!(none.record.tests.is_empty() && none.record.broken.is_empty());
}

#[test]
fn rejects_programs_that_guest_cannot_use() {
    let place = Place::new();
    let Some(mut builder) = place.builder() else { return };
    let wanted = wanted_programs(["says_ok", "odd", "huge", "nothing", "fifo", "folder"]);
    let built = place.build(&mut builder, 0, &wanted).unwrap();
    let why: Vec<&str> =
        built.record.broken.values().map(|broken| broken.reason.as_str()).collect();
    assert!(
        why.len() == 5
            && why[0].ends_with("fifo is not a regular file")
            && why[1].ends_with("folder is not a regular file")
            && why[2].ends_with("exceed 512 MiB")
            && why[3].ends_with("did not make kselftest/other/nothing")
            && why[4].ends_with("its dynamic linker is /etc/passwd"),
        "{why:?}"
    );
    for (name, is_usable) in [("says_ok", true), ("odd", false), ("huge", false)] {
        assert_eq!(program(&built, name).is_file(), is_usable, "{name}");
    }
}

/// The next run retries errors that may be this host's, but not those of the sources.
#[test]
fn retries_errors_of_this_host() {
    let place = Place::new();
    let Some(mut builder) = place.builder() else { return };
    let wanted = wanted_programs(["broken", "waits"]);
    let reason = |built: &TreeTests, name: &str| {
        let broken = built.record.broken.get(&format!("kselftest/other/{name}"));
        broken.map(|broken| broken.reason.clone())
    };
    let first = place.build(&mut builder, 0, &wanted).unwrap();
    assert!(reason(&first, "waits").unwrap().contains("no-such-tool"), "{:?}", first.record);
    let again = place.build(&mut builder, 0, &wanted).unwrap();
    assert_eq!(again.root, first.root);
    drop(builder);
    let later = || {
        let mut stages = 0;
        let mut events = |event| {
            stages += u32::from(matches!(event, Event::Stage(_)));
            ControlFlow::Continue(())
        };
        let mut builder = place.builder().unwrap();
        let built = place.build_telling(&mut builder, 0, &wanted, &mut events).unwrap();
        (built, stages > 0)
    };
    let (second, was_made) = later();
    assert!(was_made && reason(&second, "waits").is_none());
    assert!(program(&second, "waits").is_file());
    assert!(reason(&second, "broken").unwrap().contains("broken.c"));
    // Another result for the same key has other contents, so guests do not mix them up.
    assert_eq!(first.record.key, second.record.key);
    assert_ne!(first.record.contents, second.record.contents);
    // The first result stays for its users.
    assert!(first.root.is_dir());
    let (third, was_made) = later();
    assert_eq!((third.root, was_made), (second.root, false));
}
