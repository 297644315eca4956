// SPDX-License-Identifier: MIT OR Apache-2.0
//! Runs the Makefiles of the tree's tests.

use super::{
    BENCH, Broken, PROGRAMS, TEST_PROGS,
    sources::{Way, read_sources, way_of},
};
use crate::{
    compile::{
        BuildError, Event, Events, Order,
        builder::Holds,
        error::{build_error, io_error},
        make::{Make, MakeError},
        output::write_anew,
        toolchain::BpfTools,
    },
    tree_tests::selection::{self, Selection, Sources},
};
use std::{
    collections::{BTreeMap, BTreeSet},
    ffi::OsString,
    fs,
    path::{Path, PathBuf},
};
use tramplab_model::tree_tests::{FOLDER, Name, Program, ROOT, WantedTests};

/// Name of the file in the build folder.
const MAKEFILE: &str = ".tramplab-selftests.mk";

/// The rules are cheap compared to the builds that they prepare. Long lists are passed in files.
/// Only the folders of an earlier build are kept, those of libbpf and bpftool: the tree's other
/// rules miss dependencies on included files.
const PREPARE: &str = r#"# Written by tramplab.
.NOTPARALLEL:
.PHONY: fresh
fresh:
	@mkdir -p $(OUT)
	@find $(OUT) -maxdepth 1 -type f -delete
	@rm -rf $(OUT)/kselftest
	@mkdir -p $(OUT) $(FOLDERS)
.PHONY: prepare
prepare:
	@rm -rf $(TREE)
	@rm -f $(OUT)/*.d
	@mkdir -p $(TREE)
	@for path in $(SOURCE)/*; do ln -s "$$path" $(TREE)/; done
	@rm $(TREE)/tools
	@cp -a $(SOURCE)/tools $(TREE)/tools
	@cd $(TREE)/$(FOLDER)/prog_tests && \
		ls | grep '\.c$$' | grep -vxFf $(KEEP).tests | xargs -r rm -f --
	@cd $(TREE)/$(FOLDER)/progs && \
		ls | grep '\.c$$' | grep -vxFf $(KEEP).programs | xargs -r rm -f --
.PHONY: prepared
prepared:
	@rm -rf $(TREE)
"#;

/// A build of the tests of one tree.
pub struct Job<'a> {
    order: &'a Order,
    wanted: &'a WantedTests,
    clang: Option<&'a BpfTools>,
    make: Make<'a>,
    /// The state of `build/`.
    holds: &'a mut Holds,
    sources: Sources,
    /// The copy of the tree that the tests' Makefiles write to.
    tree: PathBuf,
    /// The folder of all results.
    out: PathBuf,
    /// Prefix of the files that list the kept sources.
    keep: PathBuf,
    /// Number of logs written.
    logs: usize,
    made: Made,
}

impl<'a> Job<'a> {
    /// Reads the tests' sources. `make` must have the programs of `clang`.
    pub fn new(
        order: &'a Order,
        wanted: &'a WantedTests,
        clang: Option<&'a BpfTools>,
        make: Make<'a>,
        holds: &'a mut Holds,
    ) -> Result<Job<'a>, BuildError> {
        let place = make.build.join("selftests");
        Ok(Job {
            order,
            wanted,
            clang,
            holds,
            sources: read_sources(&make.source.join(FOLDER))?,
            tree: place.join("tree"),
            out: place.join("out"),
            keep: make.build.join(".tramplab-selftests"),
            make,
            logs: 0,
            made: Made::default(),
        })
    }

    /// Builds everything wanted. Targets that the sources break are recorded, not returned.
    pub fn build(&mut self, events: &mut Events) -> Result<(), BuildError> {
        let mut modules = None;
        if self.wanted.test_progs() {
            self.order.stage(events, "building modules")?;
            // Modules of the tests need the kernel's modules.
            modules = self.try_run(&self.make.words(&["modules"]), events)?;
        }
        let mut headers = None;
        if !self.wanted.programs.is_empty() {
            headers = self.try_run(&self.make.words(&["headers"]), events)?;
        }
        self.order.stage(events, "copying the tree's own tests")?;
        let selection = selection::select(&self.sources, self.wanted);
        self.prepare(&selection, &["fresh", "prepare"], events)?;
        let built = self.build_test_progs(selection, modules, events)?;
        self.made.tests.extend(built.tests);
        if let Some(clang) = self.clang.filter(|_| self.wanted.bench) {
            self.order.stage(events, "building the tree's bench")?;
            let error = self.try_run(&self.bpf_words(clang, BENCH), events)?;
            self.made.add(BENCH, error);
        }
        self.build_programs(headers.as_ref().map(Broken::of), events)
    }

    /// Has `collect` take the files of the built targets from the output folder, then removes the
    /// copy of the tree. Returns the results without the targets that `collect` rejects.
    pub fn finish(
        mut self,
        collect: impl FnOnce(&Path, &[String]) -> Result<BTreeMap<String, String>, BuildError>,
        events: &mut Events,
    ) -> Result<Made, BuildError> {
        let unfit = collect(&self.out, &self.made.whole);
        // The copy would be scanned, and kept with the base.
        let gone = self.run(&self.rules(&["prepared"]), events);
        self.made.give_up(unfit?);
        gone?;
        Ok(self.made)
    }

    /// Builds `test_progs`, without the tests that do not build. Returns the selection that it was
    /// built from. `modules` is the error of the kernel's modules.
    fn build_test_progs(
        &mut self,
        mut selection: Selection,
        mut modules: Option<BuildError>,
        events: &mut Events,
    ) -> Result<Selection, BuildError> {
        let mut left = self.wanted.clone();
        // If the tree has none of the tests, there is nothing to build.
        while let Some(clang) = self.clang.filter(|_| !selection.tests.is_empty()) {
            let (tests, programs) = (selection.tests.len(), selection.programs.len());
            let stage =
                format!("building the tree's test_progs ({tests} tests, {programs} BPF programs)");
            self.order.stage(events, &stage)?;
            let error = match modules.take() {
                Some(error) => Some(error),
                None => self.try_run(&self.bpf_words(clang, TEST_PROGS), events)?,
            };
            let Some(error) = error else {
                self.made.add(TEST_PROGS, None);
                break;
            };
            // All tests are in one program. It is built again without the tests that the error
            // belongs to.
            let culprits = match &error {
                BuildError::Compile { error, .. } => {
                    let file = error.file.as_deref();
                    selection::needing(&self.sources, &selection, file, &error.message)
                }
                _ => BTreeSet::new(),
            };
            let is_lost = |file: &String| culprits.is_empty() || culprits.contains(file);
            for (test, file) in selection.tests.iter().filter(|(_, file)| is_lost(file)) {
                self.made.broken.insert(format!("{TEST_PROGS}/{test}"), Broken::of(&error));
                self.made.tests.insert(*test, file.clone());
                left.tests.remove(test);
            }
            // Also drop wanted files, which may have no test.
            left.files.retain(|file| !culprits.contains(file));
            let rest = selection::select(&self.sources, &left);
            if culprits.is_empty() || rest == selection {
                return Ok(Selection::default());
            }
            selection = rest;
            self.prepare(&selection, &["prepare"], events)?;
        }
        Ok(selection)
    }

    /// Builds programs of other folders. `headers` is the error of the kernel's headers.
    fn build_programs(
        &mut self,
        headers: Option<Broken>,
        events: &mut Events,
    ) -> Result<(), BuildError> {
        for program in &self.wanted.programs {
            let Some(way) = way_of(&self.make.source.join(ROOT), program)? else { continue };
            self.made.programs.insert(*program);
            let name = format!("{PROGRAMS}/{program}");
            if let Some(error) = &headers {
                self.made.broken.insert(name, error.clone());
                continue;
            }
            self.order.stage(events, &format!("building the tree's {program}"))?;
            let folder = self.tree.join(ROOT).join(program.folder());
            let into = self.out.join(PROGRAMS).join(program.folder());
            let mut include = OsString::from("KHDR_INCLUDES=-D_GNU_SOURCE -isystem ");
            include.push(self.make.build.join("usr/include"));
            let mut words: Vec<OsString> =
                vec!["-C".into(), folder.into(), variable("OUTPUT", &into), include];
            words.extend(self.make.tools.variables.iter().map(OsString::from));
            match way {
                Way::Made => words.push(into.join(program.name()).into()),
                Way::Installed => {
                    words.extend([variable("INSTALL_PATH", &into), "install".into()]);
                }
            }
            let error = self.try_run(&words, events)?;
            self.made.add(&name, error);
        }
        Ok(())
    }

    /// Runs make. Each run has its own log, so that the first error belongs to that run.
    fn run(&mut self, words: &[OsString], events: &mut Events) -> Result<(), BuildError> {
        self.logs += 1;
        let log = self.make.log.with_extension(format!("{}.log", self.logs));
        // Discards the log of another kernel's tests.
        fs::write(&log, "").map_err(io_error("write", &log))?;
        let make = Make { log: &log, ..self.make.clone() };
        let ended = make.run_words(words, &mut |_| events(Event::Waiting));
        ended.map(drop).map_err(|error| {
            if !matches!(error, MakeError::Failed(_)) {
                *self.holds = Holds::Unknown;
            }
            build_error(self.order, error, &self.tree, &log)
        })
    }

    /// Like `run`, but returns an error of the sources as a value: it is reported in the target's
    /// cells. Other errors end the build.
    fn try_run(
        &mut self,
        words: &[OsString],
        events: &mut Events,
    ) -> Result<Option<BuildError>, BuildError> {
        match self.run(words, events) {
            Ok(()) => Ok(None),
            Err(error) if error.is_of_sources() => Ok(Some(error)),
            Err(error) => Err(error),
        }
    }

    /// Writes the lists of kept sources and runs rules of [`PREPARE`].
    fn prepare(
        &mut self,
        selection: &Selection,
        targets: &[&str],
        events: &mut Events,
    ) -> Result<(), BuildError> {
        let list = |names: &BTreeSet<String>| {
            names.iter().map(|name| format!("{name}\n")).collect::<String>()
        };
        // The tree's rules need at least one test file, even if no test is built.
        let any = || self.sources.tests.keys().take(1).cloned().collect();
        let files = if selection.files.is_empty() { any() } else { selection.files.clone() };
        for (path, text) in [
            (self.make.build.join(MAKEFILE), PREPARE.to_owned()),
            (self.keep.with_added_extension("tests"), list(&files)),
            (self.keep.with_added_extension("programs"), list(&selection.programs)),
        ] {
            write_anew(&path, &text).map_err(io_error("write", &path))?;
        }
        self.run(&self.rules(targets), events)
    }

    /// Returns make's arguments for rules of [`PREPARE`].
    fn rules(&self, targets: &[&str]) -> Vec<OsString> {
        let folders: BTreeSet<PathBuf> = self
            .wanted
            .programs
            .iter()
            .map(|program| self.out.join(PROGRAMS).join(program.folder()))
            .collect();
        let mut list = OsString::from("FOLDERS=");
        for folder in folders {
            list.push(folder);
            list.push(" ");
        }
        let mut words: Vec<OsString> = vec![
            "-f".into(),
            self.make.build.join(MAKEFILE).into(),
            variable("SOURCE", self.make.source),
            variable("TREE", &self.tree),
            variable("OUT", &self.out),
            variable("KEEP", &self.keep),
            variable("FOLDER", Path::new(FOLDER)),
            list,
        ];
        words.extend(targets.iter().map(OsString::from));
        words
    }

    /// Returns make's arguments for a target of the BPF selftests.
    fn bpf_words(&self, clang: &BpfTools, target: &str) -> Vec<OsString> {
        let build = self.make.build;
        let mut words: Vec<OsString> = vec![
            "-C".into(),
            self.tree.join(FOLDER).into(),
            variable("O", build),
            variable("KBUILD_OUTPUT", build),
            variable("OUTPUT", &self.out),
            variable("VMLINUX_BTF", &build.join("vmlinux")),
            variable("KDIR", build),
            // Ignore optional libraries of this host: libpcap, LLVM.
            "PKG_CONFIG=false".into(),
            "SKIP_LLVM=1".into(),
            "feature-llvm=0".into(),
            format!("CLANG={}", clang.name).into(),
            format!("LLVM_STRIP={}", clang.strip).into(),
        ];
        words.extend(self.make.tools.variables.iter().map(OsString::from));
        words.push(target.into());
        words
    }
}

/// The results of a build.
#[derive(Default)]
pub struct Made {
    pub tests: BTreeMap<Name, String>,
    pub programs: BTreeSet<Program>,
    pub broken: BTreeMap<String, Broken>,
    /// Files that must exist, relative to the output folder.
    pub whole: Vec<String>,
}

impl Made {
    fn add(&mut self, target: &str, error: Option<BuildError>) {
        match error {
            None => self.whole.push(target.to_owned()),
            Some(error) => {
                self.broken.insert(target.to_owned(), Broken::of(&error));
            }
        }
    }

    /// Marks built targets that a guest cannot use as broken.
    pub fn give_up(&mut self, unfit: BTreeMap<String, String>) {
        for (target, reason) in unfit {
            // A library that this host lacks may be installed later.
            let broken = Broken { reason, lasts: false };
            if target != TEST_PROGS {
                self.broken.insert(target, broken);
                continue;
            }
            for test in self.tests.keys() {
                let name = format!("{TEST_PROGS}/{test}");
                self.broken.entry(name).or_insert_with(|| broken.clone());
            }
        }
    }
}

fn variable(name: &str, value: &Path) -> OsString {
    let mut word = OsString::from(format!("{name}="));
    word.push(value);
    word
}
