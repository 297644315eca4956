// SPDX-License-Identifier: MIT OR Apache-2.0
//! Builds the kernel tree's own `bench`, `test_progs` and kselftest programs, from the same sources
//! as a kernel, in the same folder and confinement.
//!
//! Their Makefile writes into the sources, which must not change here. So it runs in a copy of
//! `tools/`, with links to the rest. The copy is made anew each time, inside the confinement. The
//! results stay in `selftests/out` of the build folder and are kept with the base.

use super::{
    BuildError, Builder, Event, Events, Hasher, Holds, Reason, build_error, io_error, is_own,
    make::{Make, MakeError},
    write_anew,
};
use crate::selftests::DenyList;
use crate::{
    compile::toolchain,
    selftests::{
        linked::{self, LinkedError},
        makefile,
        selection::{self, Selection},
    },
    series::Patch,
};
use serde::{Deserialize, Serialize};
use std::{
    collections::{BTreeMap, BTreeSet},
    ffi::OsString,
    fs,
    io::{self, Read},
    path::{Path, PathBuf},
    time::Instant,
};
use tramplab_model::{
    run::{Arch, Test},
    selftests::{FOLDER, Name, Program, ROOT, Wanted},
};
use walkdir::WalkDir;

/// Version of the procedure, like `compile::RECIPE`.
const RECIPE: &str = "4";

const KIND: &str = "kernel-selftests";

/// The folder of the built tests in the guest.
pub const IN_GUEST: &str = "selftests";

const BENCH: &str = "bench";
const TEST_PROGS: &str = "test_progs";
/// Subfolder for programs of folders other than BPF's, in the build and in the guest.
pub const PROGRAMS: &str = "kselftest";

/// Most bytes read of a source. No test's source is larger.
const SOURCE_LIMIT: u64 = 4 << 20;

/// Most bytes of all files that a guest unpacks into its memory.
const LARGEST: u64 = 512 << 20;

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
	@cd $(TREE)/$(FOLDER)/prog_tests && ls | grep '\.c$$' | grep -vxFf $(KEEP)-tests | xargs -r rm -f --
	@cd $(TREE)/$(FOLDER)/progs && ls | grep '\.c$$' | grep -vxFf $(KEEP)-programs | xargs -r rm -f --
.PHONY: prepared
prepared:
	@rm -rf $(TREE)
"#;

/// Built tests in the cache.
#[derive(Clone, Debug)]
pub struct Selftests {
    /// Files to add to a guest's root, under their paths there.
    pub root: PathBuf,
    pub record: Record,
    /// Tests that the tree denies.
    pub denied: DenyList,
}

#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Record {
    pub key: String,
    pub seconds: f64,
    /// The tests of `test_progs`, each with its file.
    pub tests: BTreeMap<Name, String>,
    /// Programs of other folders.
    pub programs: BTreeSet<Program>,
    /// Targets that the tree has but that do not build: `bench`, `test_progs/TEST`,
    /// `kselftest/PROGRAM`.
    pub broken: BTreeMap<String, Broken>,
    pub clang: Option<String>,
    /// SHA-256 of the files for a guest's root. The same key may have other contents on a host with
    /// other libraries.
    pub contents: String,
}

/// Why something does not build.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Broken {
    pub reason: String,
    /// True if the same sources always fail like this. Otherwise the next run tries again: a tool
    /// was missing, or a compiler was killed.
    pub lasts: bool,
}

impl Record {
    /// Returns why one of the tree's tests is not built.
    pub fn broken(&self, test: &Test) -> Option<&str> {
        let error = match test {
            Test::Bench { .. } => self.broken.get(BENCH),
            test => self.broken.get(&test.name()),
        };
        error.map(|broken| broken.reason.as_str())
    }

    /// True if another run would give the same result.
    fn lasts(&self) -> bool {
        self.broken.values().all(|broken| broken.lasts)
    }
}

impl<C, A, CE, AE> Builder<'_, C, A>
where
    C: Fn(&Path) -> Result<(), CE>,
    A: Fn(&Patch, &Path) -> Result<(), AE>,
    CE: Into<Reason>,
    AE: Into<Reason>,
{
    /// Builds the tests of the tree with `count` patches.
    pub fn build_selftests(
        &mut self,
        count: usize,
        wanted: &Wanted,
        log: &Path,
        events: &mut Events,
    ) -> Result<Selftests, BuildError> {
        let count = count.min(self.order.patches.len());
        let clang = match wanted.bpf() {
            true => Some(toolchain::find_bpf(&self.order.toolchain, self.order.arch, wanted.test_progs())?),
            false => None,
        };
        let key = {
            let mut words = vec![RECIPE.to_owned(), self.key(count), format!("{wanted:?}")];
            words.extend(clang.iter().map(|clang| clang.version.clone()));
            super::digest(words.iter().map(String::as_str))
        };
        let arch = self.order.arch;
        // Each attempt has an entry. Users of an unlasting result keep its entry; later runs skip
        // it.
        let mut place = key.clone();
        for attempt in 2.. {
            let Some(entry) = self.cache.get(KIND, &place) else { break };
            let found = built(&entry, arch)?;
            if found.record.lasts() || self.tried.contains(&place) {
                return Ok(found);
            }
            place = format!("{key}-{attempt}");
        }
        // Opens the workspace first, as in `build`.
        self.open(events)?;
        let cache = self.cache;
        let entry = cache.entry(KIND, &place, |folder| {
            self.make_selftests(count, wanted, clang.as_ref(), &key, folder, log, events)
        });
        let entry = entry.inspect_err(|error| self.give_back(error))?;
        self.tried.insert(place);
        built(&entry, arch)
    }

    #[allow(clippy::too_many_arguments)]
    fn make_selftests(
        &mut self,
        count: usize,
        wanted: &Wanted,
        clang: Option<&toolchain::BpfTools>,
        key: &str,
        folder: &Path,
        log: &Path,
        events: &mut Events,
    ) -> Result<(), BuildError> {
        let start = Instant::now();
        // `build/` must hold the kernel. If the kernel came from the cache, it does not.
        let (holds, applied) = (self.opened().build, self.opened().applied);
        if holds == Holds::Unknown || applied != count {
            self.require_base(log, events)?;
            if count == 0 {
                self.take_out()?;
                self.order.stage(events, "copying the base")?;
                self.opened().workspace.begin_series()?;
                self.opened().build = Holds::Series;
            } else {
                self.with_patches(count, log, events)?;
            }
        }
        let order = self.order;
        let ccache = self.ccache(count == 0, log)?;
        let mut tools = self.tools.clone();
        tools.programs.extend(clang.iter().flat_map(|clang| clang.programs.iter().cloned()));
        let open = self.open.as_mut().expect("opened before");
        let (source, build) = (open.workspace.source(), open.workspace.build());
        let sources = read_sources(&source.join(FOLDER))?;
        let place = build.join("selftests");
        let (tree, out) = (place.join("tree"), place.join("out"));
        // Each run of make has its own log, so that the first error belongs to that run.
        let make = Make {
            tools: &tools,
            confinement: order.confinement.as_ref(),
            source: &source,
            build: &build,
            ccache,
            log,
        };
        let mut logs = 0;
        let mut run = |words: &[OsString], events: &mut Events| {
            logs += 1;
            let log = log.with_extension(format!("{logs}.log"));
            // Discards the log of another kernel's tests.
            fs::write(&log, "").map_err(io_error("write", &log))?;
            let ended = Make { log: &log, ..make.clone() }.run_words(words, &mut |_| events(Event::Waiting));
            ended.map(drop).map_err(|error| {
                if !matches!(error, MakeError::Failed(_)) {
                    open.build = Holds::Unknown;
                }
                build_error(order, error, &tree, &log)
            })
        };
        // A target that does not build is reported in its cells. Errors that are not the sources'
        // fault end the build.
        let of_sources = |result: Result<(), BuildError>| match result {
            Ok(()) => Ok(None),
            Err(error) if error.is_of_sources() => Ok(Some(error)),
            Err(error) => Err(error),
        };
        let mut made = Made::default();

        let mut modules = None;
        if wanted.test_progs() {
            order.stage(events, "building modules")?;
            // Modules of the tests need the kernel's modules.
            modules = of_sources(run(&make.words(&["modules"]), events))?;
        }
        let mut headers = None;
        if !wanted.programs.is_empty() {
            headers = of_sources(run(&make.words(&["headers"]), events))?;
        }
        let keep = build.join(".tramplab-selftests");
        let folders: BTreeSet<PathBuf> =
            wanted.programs.iter().map(|program| out.join(PROGRAMS).join(program.folder())).collect();
        let rules = |targets: &[&str]| {
            let mut made_there = OsString::from("FOLDERS=");
            folders.iter().for_each(|folder| {
                made_there.push(folder);
                made_there.push(" ");
            });
            let mut words: Vec<OsString> = vec![
                "-f".into(),
                build.join(MAKEFILE).into(),
                variable("SOURCE", &source),
                variable("TREE", &tree),
                variable("OUT", &out),
                variable("KEEP", &keep),
                variable("FOLDER", Path::new(FOLDER)),
                made_there,
            ];
            words.extend(targets.iter().map(OsString::from));
            words
        };
        let prepare = |selection: &Selection, targets: &[&str]| {
            let list =
                |names: &BTreeSet<String>| names.iter().map(|name| format!("{name}\n")).collect::<String>();
            // The tree's rules need at least one test file, even if no test is built.
            let any = || sources.tests.keys().take(1).cloned().collect();
            let files = if selection.files.is_empty() { any() } else { selection.files.clone() };
            for (path, text) in [
                (build.join(MAKEFILE), PREPARE.to_owned()),
                (with_suffix(&keep, "-tests"), list(&files)),
                (with_suffix(&keep, "-programs"), list(&selection.programs)),
            ] {
                write_anew(&path, &text).map_err(io_error("write", &path))?;
            }
            Ok::<_, BuildError>(rules(targets))
        };
        let bpf = |clang: &toolchain::BpfTools, target: &str| {
            let mut words: Vec<OsString> = vec![
                "-C".into(),
                tree.join(FOLDER).into(),
                variable("O", &build),
                variable("KBUILD_OUTPUT", &build),
                variable("OUTPUT", &out),
                variable("VMLINUX_BTF", &build.join("vmlinux")),
                variable("KDIR", &build),
                // Ignore optional libraries of this host: libpcap, LLVM.
                "PKG_CONFIG=false".into(),
                "SKIP_LLVM=1".into(),
                "feature-llvm=0".into(),
                format!("CLANG={}", clang.name).into(),
                format!("LLVM_STRIP={}", clang.strip).into(),
            ];
            words.extend(make.tools.variables.iter().map(OsString::from));
            words.push(target.into());
            words
        };

        order.stage(events, "copying the tree's own tests")?;
        let mut left = wanted.clone();
        let mut selection = selection::select(&sources, &left);
        run(&prepare(&selection, &["fresh", "prepare"])?, events)?;
        // If the tree has none of the tests, there is nothing to build.
        while let Some(clang) = clang.filter(|_| !selection.tests.is_empty()) {
            let (tests, programs) = (selection.tests.len(), selection.programs.len());
            order.stage(
                events,
                &format!("building the tree's test_progs ({tests} tests, {programs} BPF programs)"),
            )?;
            let error = match modules.take() {
                Some(error) => Some(error),
                None => of_sources(run(&bpf(clang, TEST_PROGS), events))?,
            };
            let Some(error) = error else {
                made.add(TEST_PROGS, None);
                break;
            };
            // All tests are in one program. It is built again without the tests that the error
            // belongs to.
            let culprits = match &error {
                BuildError::Compile { error, .. } => {
                    selection::needing(&sources, &selection, error.file.as_deref(), &error.message)
                }
                _ => BTreeSet::new(),
            };
            let is_lost = |file: &String| culprits.is_empty() || culprits.contains(file);
            for (test, file) in selection.tests.iter().filter(|(_, file)| is_lost(file)) {
                made.broken.insert(format!("{TEST_PROGS}/{test}"), Broken::of(&error));
                made.tests.insert(*test, file.clone());
                left.tests.remove(test);
            }
            // Also drop wanted files, which may have no test.
            left.files.retain(|file| !culprits.contains(file));
            let rest = selection::select(&sources, &left);
            if culprits.is_empty() || rest == selection {
                selection = Selection::default();
                break;
            }
            selection = rest;
            run(&prepare(&selection, &["prepare"])?, events)?;
        }
        made.tests.extend(selection.tests);
        if let Some(clang) = clang.filter(|_| wanted.bench) {
            order.stage(events, "building the tree's bench")?;
            made.add(BENCH, of_sources(run(&bpf(clang, BENCH), events))?);
        }

        let headers = headers.as_ref().map(Broken::of);
        for program in &wanted.programs {
            let folder = tree.join(ROOT).join(program.folder());
            if !has_program(&source.join(ROOT), program)? {
                continue;
            }
            made.programs.insert(*program);
            let name = format!("{PROGRAMS}/{program}");
            if let Some(error) = &headers {
                made.broken.insert(name, error.clone());
                continue;
            }
            order.stage(events, &format!("building the tree's {program}"))?;
            let into = out.join(PROGRAMS).join(program.folder());
            let mut include = OsString::from("KHDR_INCLUDES=-D_GNU_SOURCE -isystem ");
            include.push(build.join("usr/include"));
            let mut words: Vec<OsString> =
                vec!["-C".into(), folder.into(), variable("OUTPUT", &into), include];
            words.extend(make.tools.variables.iter().map(OsString::from));
            words.push(into.join(program.name()).into());
            made.add(&name, of_sources(run(&words, events))?);
        }
        let collected = collect(&out, &source.join(FOLDER), folder, order.arch, &made.whole);
        // The copy would be scanned, and kept with the base.
        let gone = run(&rules(&["prepared"]), events);
        made.give_up(collected?);
        gone?;
        if count == 0 {
            order.stage(events, "keeping the base")?;
            let state = self.opened().workspace.base_state();
            if let Some(state) = state {
                self.opened().workspace.keep_base(&state)?;
            }
        }
        let record = Record {
            key: key.to_owned(),
            seconds: start.elapsed().as_secs_f64(),
            tests: made.tests,
            programs: made.programs,
            broken: made.broken,
            clang: clang.map(|clang| clang.version.clone()),
            contents: contents(&folder.join("root"))?,
        };
        let path = folder.join("record.json");
        let text = serde_json::to_vec_pretty(&record).expect("plain data");
        fs::write(&path, text).map_err(io_error("write", &path))
    }
}

/// The results of a build.
#[derive(Default)]
struct Made {
    tests: BTreeMap<Name, String>,
    programs: BTreeSet<Program>,
    broken: BTreeMap<String, Broken>,
    /// Files that must exist, relative to the output folder.
    whole: Vec<String>,
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
    fn give_up(&mut self, unfit: BTreeMap<String, String>) {
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

impl Broken {
    /// Omits the log's path: the record outlives the log, and may be reused for a kernel with
    /// another name.
    fn of(error: &BuildError) -> Broken {
        let reason = match error {
            BuildError::Compile { error, .. } => error.to_string(),
            error => error.to_string(),
        };
        Broken { reason, lasts: error.lasts() }
    }
}

fn variable(name: &str, value: &Path) -> OsString {
    let mut word = OsString::from(format!("{name}="));
    word.push(value);
    word
}

/// True if the tree has the program's source, or if the folder's Makefile declares the program.
fn has_program(root: &Path, program: &Program) -> Result<bool, BuildError> {
    let folder = root.join(program.folder());
    let makefile = folder.join("Makefile");
    if !makefile.is_file() {
        return Ok(false);
    }
    let is_source = folder.join(program.name()).with_extension("c").is_file();
    Ok(is_source || makefile::makes(&read_source(&makefile)?, program.name()))
}

fn with_suffix(path: &Path, suffix: &str) -> PathBuf {
    let mut path = path.to_owned().into_os_string();
    path.push(suffix);
    path.into()
}

fn read_source(path: &Path) -> Result<String, BuildError> {
    let mut bytes = Vec::new();
    let file = fs::File::open(path).map_err(io_error("read", path))?;
    file.take(SOURCE_LIMIT).read_to_end(&mut bytes).map_err(io_error("read", path))?;
    Ok(String::from_utf8_lossy(&bytes).into_owned())
}

fn read_sources(folder: &Path) -> Result<selection::Sources, BuildError> {
    let read = read_source;
    let files = |folder: &Path| -> Result<Vec<(String, PathBuf)>, BuildError> {
        let mut files = Vec::new();
        for entry in fs::read_dir(folder).map_err(io_error("list", folder))? {
            let entry = entry.map_err(io_error("list", folder))?;
            // A patch may have put a link there.
            if entry.file_type().is_ok_and(|kind| kind.is_file())
                && let Ok(name) = entry.file_name().into_string()
            {
                files.push((name, entry.path()));
            }
        }
        Ok(files)
    };
    let mut sources = selection::Sources { makefile: read(&folder.join("Makefile"))?, ..Default::default() };
    for (name, path) in files(folder)? {
        if name.ends_with(".c") || name.ends_with(".h") {
            sources.shared.insert(name, read(&path)?);
        }
    }
    for (name, path) in files(&folder.join("prog_tests"))? {
        if name.ends_with(".c") {
            sources.tests.insert(name, read(&path)?);
        } else if name.ends_with(".h") {
            sources.shared.insert(name, read(&path)?);
        }
    }
    let programs = files(&folder.join("progs"))?;
    sources.programs =
        programs.iter().filter_map(|(name, _)| Some(name.strip_suffix(".c")?.to_owned())).collect();
    Ok(sources)
}

/// Copies the files for a guest: the programs, the files they open, their libraries, and the tree's
/// deny lists. Returns the targets that a guest cannot use, each with the reason.
fn collect(
    out: &Path,
    sources: &Path,
    folder: &Path,
    arch: Arch,
    made: &[String],
) -> Result<BTreeMap<String, String>, BuildError> {
    let root = folder.join("root");
    let into = root.join(IN_GUEST);
    fs::create_dir_all(&into).map_err(io_error("make", &into))?;
    let mut left = LARGEST;
    let mut unfit = BTreeMap::new();
    for target in made {
        let mut files = vec![target.clone()];
        // The other files there belong to test_progs: objects that it opens, programs that it runs.
        if target == TEST_PROGS {
            files.extend(beside(out)?);
        }
        match fit(&files, out, arch, left)? {
            Err(reason) => {
                unfit.insert(target.clone(), reason);
            }
            Ok(Fit { bytes, libraries }) => {
                left -= bytes;
                let own = files.iter().map(|name| (out.join(name), into.join(name)));
                let given = libraries.into_iter().map(|library| {
                    let to = root.join(library.strip_prefix("/").unwrap_or(&library));
                    (library, to)
                });
                for (from, to) in own.chain(given).filter(|(_, to)| !to.exists()) {
                    let parent = to.parent().expect("below the root");
                    fs::create_dir_all(parent).map_err(io_error("make", parent))?;
                    fs::copy(&from, &to).map_err(io_error("copy", &from))?;
                }
            }
        }
    }
    let lists = folder.join("deny");
    fs::create_dir_all(&lists).map_err(io_error("make", &lists))?;
    for name in deny_lists(arch) {
        let path = sources.join(name);
        if path.symlink_metadata().is_ok_and(|meta| meta.is_file()) {
            fs::copy(&path, lists.join(name)).map_err(io_error("copy", &path))?;
        }
    }
    Ok(unfit)
}

/// The size and the libraries of a target.
struct Fit {
    bytes: u64,
    /// By their paths on this host.
    libraries: BTreeSet<PathBuf>,
}

/// Checks that a guest can use the files of one target. The inner error is the target's fault.
fn fit(files: &[String], out: &Path, arch: Arch, left: u64) -> Result<Result<Fit, String>, BuildError> {
    let mut fit = Fit { bytes: 0, libraries: BTreeSet::new() };
    for name in files {
        let path = out.join(name);
        match is_own(&path, out) {
            Ok(true) => {}
            Ok(false) => return Ok(Err(format!("{name} is not a regular file"))),
            Err(error) if error.kind() == io::ErrorKind::NotFound => {
                return Ok(Err(format!("make succeeded but did not make {name}")));
            }
            Err(error) => return Err(io_error("find", &path)(error)),
        }
        // Checked before reading: a hostile source can make a file of any size.
        fit.bytes += fs::metadata(&path).map_err(io_error("find", &path))?.len();
        if fit.bytes > left {
            let limit = LARGEST >> 20;
            return Ok(Err(format!("with {name} the programs exceed {limit} MiB")));
        }
        match linked::libraries(&path, arch) {
            Ok(libraries) => fit.libraries.extend(libraries),
            Err(LinkedError::Unfit(reason)) => return Ok(Err(format!("{name}: {reason}"))),
            Err(LinkedError::Io(error)) => return Err(io_error("read", &path)(error)),
        }
    }
    Ok(Ok(fit))
}

/// Returns the files in the folder that belong into a guest, except those of other targets.
fn beside(out: &Path) -> Result<BTreeSet<String>, BuildError> {
    let mut names = BTreeSet::new();
    for entry in fs::read_dir(out).map_err(io_error("list", out))? {
        let entry = entry.map_err(io_error("list", out))?;
        let name = entry.file_name().to_string_lossy().into_owned();
        let is_file = entry.file_type().is_ok_and(|kind| kind.is_file());
        if is_file && is_for_the_guest(&name) && name != TEST_PROGS && name != BENCH {
            names.insert(name);
        }
    }
    Ok(names)
}

/// Returns the SHA-256 of a folder's files, by name and content.
fn contents(root: &Path) -> Result<String, BuildError> {
    let mut hasher = Hasher::default();
    for entry in WalkDir::new(root).sort_by_file_name() {
        let entry = entry.map_err(|error| io_error("list", root)(error.into()))?;
        let (path, name) = (entry.path(), entry.path().strip_prefix(root).expect("found there"));
        if entry.file_type().is_file() {
            hasher.add(name.as_os_str().as_encoded_bytes());
            hasher.add(&fs::read(path).map_err(io_error("read", path))?);
        }
    }
    Ok(hasher.end())
}

fn deny_lists(arch: Arch) -> [&'static str; 2] {
    match arch {
        Arch::X86_64 => ["DENYLIST", "DENYLIST.x86_64"],
        Arch::Arm64 => ["DENYLIST", "DENYLIST.aarch64"],
    }
}

/// True if the file is not an intermediate product.
fn is_for_the_guest(name: &str) -> bool {
    let made_of = [".d", ".h", ".a", ".cmd", ".tmp"];
    let object = name.ends_with(".o") && !name.ends_with(".bpf.o");
    !object
        && !name.starts_with('.')
        && !made_of.iter().any(|ending| name.ends_with(ending))
        && !name.contains("FEATURE-DUMP")
}

fn built(entry: &Path, arch: Arch) -> Result<Selftests, BuildError> {
    let path = entry.join("record.json");
    let text = fs::read(&path).map_err(io_error("read", &path))?;
    let record =
        serde_json::from_slice(&text).map_err(|source| io_error("read", &path)(io::Error::other(source)))?;
    let mut denied = DenyList::default();
    for name in deny_lists(arch) {
        match fs::read_to_string(entry.join("deny").join(name)) {
            Ok(text) => denied = denied.and(DenyList::parse(&text, name)),
            Err(error) if error.kind() == io::ErrorKind::NotFound => {}
            Err(error) => return Err(io_error("read", &entry.join("deny").join(name))(error)),
        }
    }
    Ok(Selftests { root: entry.join("root"), record, denied })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{
        Compiler, Toolchain,
        compile::{Confinement, Order},
        kconfig::{Fragment, Fragments},
    };
    use std::{ops::ControlFlow, process::Command, time::Duration};
    use tramplab_host::cache::Cache;

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
$(OUTPUT)/bench: bench.c $(VMLINUX_BTF) prog_tests/*.c\n\t$(CC) -o $@ $<\n\tcp progs/always.c $(OUTPUT)/always.bpf.o
$(OUTPUT)/test_progs: test_progs.c
\tsed -n 's/^void test_\\([a-z_]*\\)(void).*/{ \"\\1\", test_\\1 },/p' prog_tests/*.c > prog_tests/tests.h
\tprintf '#include \"%s\"\\n' $(CURDIR)/prog_tests/*.c > $(OUTPUT)/all.h
\tls progs > $(OUTPUT)/programs.txt
\techo '$@: nowhere.lskel.h' > $(OUTPUT)/test.d
\tfor program in progs/w*.c; do if [ -e $$program ]; then $(CC) -c -o $(OUTPUT)/w.bpf.o $$program || exit 1; fi; done
\t$(CC) -I$(OUTPUT) -Iprog_tests -o $@ $<
words: always.skel.h
include $(wildcard $(OUTPUT)/test.d)
";

    /// Each program has its own result. `waits` needs a tool that is missing the first time.
    const OTHERS: &str = "\
TEST_GEN_PROGS := $(wildcard *.c) odd huge nothing waits
$(OUTPUT)/%: %.c\n\t$(CC) -o $@ $<
$(OUTPUT)/odd: says_ok.c\n\t$(CC) -Wl,--dynamic-linker=/etc/passwd -o $@ $<
$(OUTPUT)/huge: says_ok.c\n\ttruncate -s 600M $@
$(OUTPUT)/nothing: says_ok.c\n\t@:
$(OUTPUT)/waits: says_ok.c
\tif [ -e $(OUTPUT)/../../../../there ]; then $(CC) -o $@ $<; else touch $(OUTPUT)/../../../../there; no-such-tool; fi
";

    const MAIN: &str = "\
#include <stdio.h>
#include \"all.h\"
static struct { const char *name; void (*run)(void); } tests[] = {\n#include \"tests.h\"\n};
int main(void) { for (int i = 0; i < sizeof(tests) / sizeof(*tests); i++) { printf(\"%s \", tests[i].name); tests[i].run(); } return 0; }
";

    fn tree(folder: &Path) -> io::Result<()> {
        let own = folder.join(FOLDER);
        fs::create_dir_all(own.join("prog_tests"))?;
        fs::create_dir_all(own.join("progs"))?;
        let other = folder.join(ROOT).join("other");
        fs::create_dir_all(&other)?;
        let test =
            |name: &str, body: &str| format!("// \"{name}.skel.h\"\nvoid test_{name}(void)\n{{ {body} }}\n");
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

    #[test]
    fn builds_trees_tests_with_its_patches() {
        let folder = tempfile::tempdir().unwrap();
        let cache = Cache::at(folder.path().join("cache"), true);
        let log = folder.path().join("log");
        let patch = Patch {
            number: 1,
            subject: "selftests: a third test".into(),
            origin: "some.patch".into(),
            diff: format!(
                "--- /dev/null\n+++ b/{FOLDER}/prog_tests/third.c\n@@ -0,0 +1,2 @@\n+void test_third(void)\n+{{ puts(\"new\"); }}\n"
            )
            .into(),
            strip: 1,
            reversed: false,
            touched: vec![Path::new(FOLDER).join("prog_tests/third.c")],
        };
        let order = Order {
            name: "n".into(),
            arch: Arch::X86_64,
            digest: "d".into(),
            description: "x".into(),
            lineage: "l".into(),
            toolchain: Toolchain { compiler: Compiler::Gcc, version: None },
            config: Fragments::merge(Fragment::parse("CONFIG_A=y\n", Path::new("a.config")).unwrap()),
            patches: vec![patch],
            reverse: false,
            confinement: Confinement::probe().ok(),
        };
        let apply = |patch: &Patch, source: &Path| -> io::Result<()> {
            let file = folder.path().join("diff");
            fs::write(&file, &patch.diff)?;
            let mut command = Command::new("git");
            command.arg("apply").arg(&file).current_dir(source);
            tramplab_host::child::run(&mut command, Duration::from_secs(60))
                .map(drop)
                .map_err(io::Error::other)
        };
        let mut builder = match Builder::new(&order, &cache, tree, apply) {
            Ok(builder) => builder,
            Err(BuildError::Toolchain(error)) => return eprintln!("skipped: {error}"),
            Err(error) => panic!("{error}"),
        };
        let wanted = Wanted {
            bench: true,
            tests: ["first".parse().unwrap()].into(),
            files: ["third.c".to_owned()].into(),
            programs: ["other/says_ok", "other/missing", "other/broken", "other/wildcard"]
                .map(|name| name.parse().unwrap())
                .into(),
        };
        let mut stages = Vec::new();
        let mut build = |count: usize, stages: &mut Vec<String>| {
            let mut events = |event| {
                if let Event::Stage(text) = event {
                    stages.push(text);
                }
                ControlFlow::Continue(())
            };
            builder.build(count, &log, &mut events).unwrap();
            builder.build_selftests(count, &wanted, &log, &mut events)
        };
        let base = match build(0, &mut stages) {
            Ok(built) => built,
            Err(BuildError::Toolchain(error)) => return eprintln!("skipped: {error}"),
            Err(error) => panic!("{error}\n{}", fs::read_to_string(&log).unwrap()),
        };
        let names =
            |built: &Selftests| built.record.tests.keys().map(ToString::to_string).collect::<Vec<_>>();
        let said = |built: &Selftests| {
            let mut command = Command::new(built.root.join(IN_GUEST).join("test_progs"));
            tramplab_host::child::run(&mut command, Duration::from_secs(20)).unwrap().stdout
        };
        // `second` does not compile, but was not requested.
        assert_eq!((names(&base), said(&base).as_str()), (vec!["first".to_owned()], "first ok\n"));
        let own = base.root.join(IN_GUEST);
        assert_eq!(fs::read_to_string(own.join("programs.txt")).unwrap(), "always.c\nfirst.c\n");
        assert!(
            own.join("bench").is_file() && own.join("always.bpf.o").is_file() && !own.join("all.h").exists()
        );
        let linked = base.root.join("lib64/ld-linux-x86-64.so.2");
        assert!(std::env::consts::ARCH != "x86_64" || linked.is_file());
        assert!(base.denied.denies(&"second".parse().unwrap()).is_some());

        let head = build(1, &mut stages).unwrap();
        assert_eq!(names(&head), ["first", "third"]);
        assert_eq!(said(&head), "first ok\nthird new\n");
        // The base is cached, without the series' test.
        stages.clear();
        let again = build(0, &mut stages).unwrap();
        assert_eq!((&again.record, stages), (&base.record, Vec::new()));

        // A program of another folder has its own place. One that does not compile has an error. A
        // missing one has no result.
        let other = own.join("kselftest/other");
        let output =
            tramplab_host::child::run(&mut Command::new(other.join("says_ok")), Duration::from_secs(20));
        assert_eq!(output.unwrap().stdout, "ok\n");
        assert!(!other.join("broken").exists());
        let programs: Vec<String> = base.record.programs.iter().map(ToString::to_string).collect();
        assert_eq!(programs, ["other/broken", "other/says_ok"]);
        let broken: Vec<&str> = base.record.broken.keys().map(String::as_str).collect();
        assert_eq!(broken, ["kselftest/other/broken"]);

        // Broken tests do not affect others. One fails in its own file, one in its BPF program.
        let tests = ["first", "second", "worse"].map(|name| name.parse().unwrap());
        let broken = Wanted { tests: tests.into(), bench: true, ..Wanted::default() };
        let some = builder.build_selftests(0, &broken, &log, &mut |_| ControlFlow::Continue(())).unwrap();
        assert_eq!(
            (names(&some), said(&some).as_str()),
            (vec!["first".to_owned(), "second".to_owned(), "worse".to_owned()], "first ok\n")
        );
        for (test, place) in [("second", "prog_tests/second.c:3: "), ("worse", "progs/worse.c:1: ")] {
            let message = &some.record.broken[&format!("test_progs/{test}")].reason;
            assert!(
                message.starts_with(&format!("{FOLDER}/{place}")) || message.starts_with(place),
                "{message}"
            );
        }
        assert_eq!(some.record.broken.len(), 2);
        assert!(some.root.join(IN_GUEST).join("bench").is_file());
        // Without tests there is no program.
        let all = Wanted { tests: ["second".parse().unwrap()].into(), ..Wanted::default() };
        let all = builder.build_selftests(0, &all, &log, &mut |_| ControlFlow::Continue(())).unwrap();
        assert_eq!(all.record.broken.keys().collect::<Vec<_>>(), ["test_progs/second"]);
        assert!(!all.root.join(IN_GUEST).join("test_progs").exists());
        // The tree's rules need a test file for `bench` as well.
        let bench = Wanted { bench: true, ..Wanted::default() };
        let bench = builder.build_selftests(0, &bench, &log, &mut |_| ControlFlow::Continue(())).unwrap();
        assert!(bench.record.broken.is_empty() && bench.root.join(IN_GUEST).join("bench").is_file());
        // An unusable program does not affect the others or the run.
        let program = |name: &str| format!("other/{name}").parse().unwrap();
        let odd = Wanted {
            programs: ["says_ok", "odd", "huge", "nothing"].map(program).into(),
            ..Wanted::default()
        };
        let odd = builder.build_selftests(0, &odd, &log, &mut |_| ControlFlow::Continue(())).unwrap();
        let why: Vec<&str> = odd.record.broken.values().map(|broken| broken.reason.as_str()).collect();
        assert!(
            why.len() == 3
                && why[0].ends_with("exceed 512 MiB")
                && why[1].ends_with("did not make kselftest/other/nothing")
                && why[2].ends_with("its dynamic linker is /etc/passwd"),
            "{why:?}"
        );
        let made = |built: &Selftests, name: &str| {
            built.root.join(IN_GUEST).join("kselftest/other").join(name).is_file()
        };
        assert!(made(&odd, "says_ok") && !made(&odd, "odd") && !made(&odd, "huge"));
        // A test that the tree lacks is not built.
        let none = Wanted { tests: ["fourth".parse().unwrap()].into(), ..Wanted::default() };
        let none = builder.build_selftests(0, &none, &log, &mut |_| ControlFlow::Continue(())).unwrap();
        assert!(none.record.tests.is_empty() && none.record.broken.is_empty());

        // The next run retries errors that may be this host's, but not those of the sources.
        let late = Wanted { programs: ["broken", "waits"].map(program).into(), ..Wanted::default() };
        let first = builder.build_selftests(0, &late, &log, &mut |_| ControlFlow::Continue(())).unwrap();
        let said = |built: &Selftests, name: &str| {
            built.record.broken.get(&format!("kselftest/other/{name}")).map(|broken| broken.reason.clone())
        };
        assert!(said(&first, "waits").unwrap().contains("no-such-tool"), "{:?}", first.record);
        let again = builder.build_selftests(0, &late, &log, &mut |_| ControlFlow::Continue(())).unwrap();
        assert_eq!(again.root, first.root);
        drop(builder);
        let later = || {
            let mut stages = 0;
            let mut builder = Builder::new(&order, &cache, tree, apply).unwrap();
            let mut events = |event| {
                stages += u32::from(matches!(event, Event::Stage(_)));
                ControlFlow::Continue(())
            };
            let built = builder.build_selftests(0, &late, &log, &mut events).unwrap();
            (built, stages > 0)
        };
        let (second, was_made) = later();
        assert!(was_made && said(&second, "waits").is_none() && made(&second, "waits"));
        assert!(said(&second, "broken").unwrap().contains("broken.c"));
        // Another result for the same key has other contents, so guests do not mix them up.
        assert!(first.record.key == second.record.key && first.record.contents != second.record.contents);
        // The first result stays for its users.
        assert!(first.root.is_dir());
        let (third, was_made) = later();
        assert_eq!((third.root, was_made), (second.root, false));
    }
}
