// SPDX-License-Identifier: MIT OR Apache-2.0
//! Builds kernels out of tree. The caller provides the sources and applies the patches.
//!
//! A [`Builder`] builds one order: the kernel without its patches, with the first, with the first
//! two, and so on. Each build continues from the previous one. Finished kernels are cached under a
//! key of all inputs.

pub mod compiler_error;
pub mod confine;
mod journal;
mod make;
mod selftests;
pub mod toolchain;
mod workspace;

pub use compiler_error::{FirstError, Kind};
pub use confine::{Confinement, Unconfined};
pub use selftests::{IN_GUEST, PROGRAMS, Record as SelftestsRecord, Selftests};
pub use toolchain::{ToolchainError, Tools};
use tramplab_model::name::hex;
pub use workspace::WorkspaceError;

use super::Toolchain;
use crate::{
    kconfig::{self, Fragments, Kconfig, Unmet},
    series::Patch,
};
use make::{Ccache, Make, MakeError};
use serde::{Deserialize, Serialize};
use sha2::{Digest, Sha256};
use std::{
    collections::BTreeSet,
    error::Error,
    fmt::{self, Display},
    fs, io,
    ops::ControlFlow,
    path::{Path, PathBuf},
    time::Instant,
};
use tramplab_host::cache::{Cache, CacheError};
use tramplab_model::run::Arch;
use workspace::{BaseState, Workspace};

/// Version of the build procedure. Raised when the same order would give another kernel.
const RECIPE: &str = "1";

const KIND: &str = "kernel-built";

/// Steps that link vmlinux and pack the image; used until a build has counted them.
const TAIL: u64 = 60;

/// The same for a series' build: the link, and the steps that kbuild always repeats.
const SERIES_TAIL: u64 = 42;

/// A kernel to build.
#[derive(Clone, Debug)]
pub struct Order {
    /// For messages.
    pub name: String,
    pub arch: Arch,
    /// Identifies the sources without patches: a commit, a tarball's SHA-256.
    pub digest: String,
    /// For messages and reports: `git v6.12-rc1 (0123456789ab)`.
    pub description: String,
    /// Kernels of one lineage are built in one folder, each on top of the previous one.
    pub lineage: String,
    pub toolchain: Toolchain,
    /// Options that it does not set are as in `allnoconfig`.
    pub config: Fragments,
    /// In the order of their application or reversal.
    pub patches: Vec<Patch>,
    /// The patches are reverted, not applied.
    pub reverse: bool,
    /// None: the build runs with the user's privileges.
    pub confinement: Option<Confinement>,
}

impl Order {
    fn stage(&self, events: &mut Events, text: &str) -> Result<(), BuildError> {
        match events(Event::Stage(text.to_owned())) {
            ControlFlow::Continue(()) => Ok(()),
            ControlFlow::Break(()) => Err(BuildError::Interrupted { name: self.name.clone() }),
        }
    }
}

/// A built kernel in the cache.
#[derive(Clone, Debug)]
pub struct Built {
    pub image: PathBuf,
    pub config: PathBuf,
    pub log: PathBuf,
    pub record: Record,
    /// The kernel was in the cache already.
    pub cached: bool,
}

/// How a kernel was built.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Record {
    pub key: String,
    pub description: String,
    pub seconds: f64,
    /// Number of kbuild steps, one for each file that it made.
    pub steps: u64,
    pub confined: bool,
    pub toolchain: Vec<String>,
    /// SHA-256 of the image. Equal images are the same kernel, whatever the patches.
    pub sha256: String,
}

/// The inputs of a kernel besides its sources.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Means {
    /// Versions of compiler, linker and pahole, as they print them.
    pub toolchain: String,
    /// SHA-256 of the wanted options. The resulting configuration varies from commit to commit.
    pub config_sha256: String,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Event {
    /// The current step: `checking out …`.
    Stage(String),
    Progress {
        done: u64,
        total: u64,
    },
    /// A step of unknown length is running.
    Waiting,
}

/// Receives events. `Break` ends the build. Called at least every second while make runs.
pub type Events<'a> = dyn FnMut(Event) -> ControlFlow<()> + 'a;

/// An error of the caller's closures.
pub type Reason = Box<dyn Error + Send + Sync>;

#[derive(Debug, thiserror::Error)]
pub enum BuildError {
    #[error(transparent)]
    Toolchain(#[from] ToolchainError),
    #[error(
        "failed to configure {name} from {description}:\n{}",
        .unmet.iter().map(ToString::to_string).collect::<Vec<_>>().join("\n")
    )]
    Config { name: String, description: String, unmet: Vec<Unmet> },
    #[error("failed to build {name}: {error}\nthe full log is {log}", log = .log.display())]
    Compile { name: String, error: Box<FirstError>, log: PathBuf },
    #[error("failed to apply `{subject}` ({origin}) to {description}: {reason}")]
    Apply { subject: String, origin: String, description: String, reason: String },
    #[error("failed to build {name}: interrupted")]
    Interrupted { name: String },
    #[error("failed to build {name}: {reason}; the full log is {log}", log = .log.display())]
    Endless { name: String, reason: String, log: PathBuf },
    /// The base failed while a patched kernel was built.
    #[error("failed to build the base of the patches: {0}")]
    Base(Box<BuildError>),
    #[error(transparent)]
    NoRoom(CacheError),
    #[error(transparent)]
    Cache(CacheError),
    #[error(transparent)]
    Workspace(WorkspaceError),
    #[error("failed to {action} {path}: {source}")]
    Io { action: &'static str, path: PathBuf, source: io::Error },
}

impl BuildError {
    /// Renames the kernel in the error: each kernel of an order has its own name.
    pub fn of_kernel(mut self, kernel: &str) -> BuildError {
        if let BuildError::Compile { name, .. }
        | BuildError::Config { name, .. }
        | BuildError::Endless { name, .. } = &mut self
        {
            kernel.clone_into(name);
        }
        self
    }

    /// True if the user can fix it by asking for something else or by installing what is missing.
    pub fn is_usage(&self) -> bool {
        matches!(self, BuildError::Toolchain(_) | BuildError::Config { .. } | BuildError::Apply { .. })
    }

    /// True if the sources are at fault, not this host or the order.
    pub fn is_of_sources(&self) -> bool {
        match self {
            BuildError::Compile { error, .. } => !matches!(error.kind, Kind::Killed | Kind::DiskFull),
            BuildError::Config { .. } | BuildError::Endless { .. } => true,
            _ => false,
        }
    }

    /// True if the same sources always fail like this: a tool named a place in them. Missing files,
    /// killed programs and timeouts may depend on this host.
    pub fn lasts(&self) -> bool {
        match self {
            BuildError::Compile { error, .. } => error.is_in_a_source(),
            BuildError::Config { .. } => true,
            _ => false,
        }
    }
}

/// A build error whose text omits the log. The cache takes "No space left on device" in the text
/// for a full disk, and a hostile build may print that.
#[derive(Debug)]
struct Unquoted(BuildError);

impl fmt::Display for Unquoted {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut error = &self.0;
        while let BuildError::Base(base) = error {
            error = base;
        }
        match error {
            BuildError::Compile { name, .. } => write!(f, "failed to build {name}"),
            _ => self.0.fmt(f),
        }
    }
}

impl Error for Unquoted {
    fn source(&self) -> Option<&(dyn Error + 'static)> {
        self.0.source()
    }
}

impl From<CacheError> for Unquoted {
    fn from(error: CacheError) -> Unquoted {
        Unquoted(error.into())
    }
}

impl From<CacheError> for BuildError {
    fn from(error: CacheError) -> BuildError {
        match error {
            CacheError::NoRoom { .. } | CacheError::Full { .. } => BuildError::NoRoom(error),
            _ => BuildError::Cache(error),
        }
    }
}

impl From<WorkspaceError> for BuildError {
    fn from(error: WorkspaceError) -> BuildError {
        match error {
            WorkspaceError::Cache(error) => error.into(),
            error => BuildError::Workspace(error),
        }
    }
}

/// Builds the base of a series, the base with the first patch, with the first two, and so on.
pub struct Builder<'a, C, A> {
    order: &'a Order,
    cache: &'a Cache,
    tools: Tools,
    checkout: C,
    apply: A,
    open: Option<Open>,
    /// Cache entries of selftests that this builder has built, successfully or not.
    tried: BTreeSet<String>,
}

/// The workspace. It is opened for the first build.
struct Open {
    workspace: Workspace,
    /// Number of patches applied to `src/`.
    applied: usize,
    build: Holds,
    /// Steps of the series' last build that did not compile an object.
    series_tail: u64,
}

/// The state of `build/`.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Holds {
    Unknown,
    /// The base, perhaps with patches on top. make can continue there.
    Series,
}

impl<'a, C, A, CE, AE> Builder<'a, C, A>
where
    C: Fn(&Path) -> Result<(), CE>,
    A: Fn(&Patch, &Path) -> Result<(), AE>,
    CE: Into<Reason>,
    AE: Into<Reason>,
{
    /// Finds the toolchain. Builds nothing.
    pub fn new(
        order: &'a Order,
        cache: &'a Cache,
        checkout: C,
        apply: A,
    ) -> Result<Builder<'a, C, A>, BuildError> {
        let tools = toolchain::find(&order.toolchain, order.arch)?;
        Ok(Builder { order, cache, tools, checkout, apply, open: None, tried: BTreeSet::new() })
    }

    /// A series' build reads the cache entries of base builds but writes none that a base would
    /// read.
    fn ccache(&self, is_base: bool, log: &Path) -> Result<Option<Ccache>, BuildError> {
        if !self.tools.ccache {
            return Ok(None);
        }
        let folder = fs::canonicalize(self.cache.folder("ccache")?).map_err(io_error("find", log))?;
        Ok(Some(Ccache { folder, write: is_base }))
    }

    pub fn means(&self) -> Means {
        let config_sha256 = hex(&Sha256::digest(self.order.config.text()));
        Means { toolchain: self.tools.identity.join("; "), config_sha256 }
    }

    /// The cache key of a kernel: a hash of everything that affects the result.
    pub fn key(&self, count: usize) -> String {
        let Order { arch, digest, config, reverse, .. } = self.order;
        let toolchain = self.tools.identity.join("\n");
        let variables = self.tools.variables.join("\n").replace("ccache ", "");
        let config = config.text();
        let mut words = vec![RECIPE, arch.name(), digest, &config, &toolchain, &variables];
        // Without patches both directions are the same kernel.
        words.push(if *reverse && count > 0 { "reverse" } else { "forward" });
        let mut hasher = Hasher::default();
        words.into_iter().for_each(|word| hasher.add(word.as_bytes()));
        for patch in self.order.patches.iter().take(count) {
            hasher.add(&[u8::from(patch.reversed), patch.strip.min(255) as u8]);
            hasher.add(&patch.diff);
        }
        hasher.end()
    }

    /// Builds the kernel with `count` patches; 0 is the base.
    pub fn build(&mut self, count: usize, log: &Path, events: &mut Events) -> Result<Built, BuildError> {
        let count = count.min(self.order.patches.len());
        let key = self.key(count);
        if let Some(entry) = self.cache.get(KIND, &key) {
            return built(&entry, true);
        }
        // Opens the workspace before locking the entry, always in this order, so that two runs
        // cannot deadlock.
        self.open(events)?;
        let cache = self.cache;
        let mut made = false;
        let entry = cache.entry(KIND, &key, |folder| {
            made = true;
            self.product(count, &key, folder, log, events).map_err(Unquoted)
        });
        let entry = entry.map_err(|Unquoted(error)| error);
        built(&entry.inspect_err(|error| self.give_back(error))?, !made)
    }

    /// Frees the space of a build that filled the disk.
    fn give_back(&mut self, error: &BuildError) {
        let error = if let BuildError::Base(base) = error { base } else { error };
        if let (BuildError::NoRoom(_), Some(open)) = (error, &mut self.open) {
            open.build = Holds::Unknown;
            // If this fails, the next build reports it.
            let _ = open.workspace.discard_build();
        }
    }

    /// Builds the kernel and copies it into the cache entry's folder.
    fn product(
        &mut self,
        count: usize,
        key: &str,
        folder: &Path,
        log: &Path,
        events: &mut Events,
    ) -> Result<(), BuildError> {
        let start = Instant::now();
        fs::write(log, "").map_err(io_error("write", log))?;
        self.open(events)?;
        let steps = if count == 0 {
            self.base(log, events)?
        } else {
            self.require_base(log, events)?;
            self.with_patches(count, log, events)?
        };
        let build = self.opened().workspace.build();
        let image = image_path(&build, self.order.arch);
        let config = build.join(".config");
        for path in [&image, &config] {
            require_own(path, &build)?;
        }
        for (from, name) in [(image.as_path(), "image"), (&config, "config"), (log, "log")] {
            fs::copy(from, folder.join(name)).map_err(io_error("copy", from))?;
        }
        let bytes = fs::read(folder.join("image")).map_err(io_error("read", &image))?;
        let record = Record {
            key: key.to_owned(),
            description: self.order.description.clone(),
            seconds: start.elapsed().as_secs_f64(),
            steps,
            confined: self.order.confinement.is_some(),
            toolchain: self.tools.identity.clone(),
            sha256: hex(&Sha256::digest(&bytes)),
        };
        let text = serde_json::to_vec_pretty(&record).expect("plain data");
        let path = folder.join("record.json");
        fs::write(&path, text).map_err(io_error("write", &path))
    }

    fn opened(&mut self) -> &mut Open {
        self.open.as_mut().expect("opened before")
    }

    fn open(&mut self, events: &mut Events) -> Result<(), BuildError> {
        if self.open.is_some() {
            return Ok(());
        }
        let Order { lineage, arch, description, .. } = self.order;
        let toolchain = self.tools.identity.join("\n");
        let name = workspace::name(lineage, &[arch.name(), &toolchain]);
        let stage = match workspace::user(self.cache, &name) {
            Some(process) => format!("waiting for process {process}, which builds in the folder {name}"),
            None => format!("opening the build folder {name}"),
        };
        self.order.stage(events, &stage)?;
        let workspace = Workspace::open(self.cache, &name)?;
        self.order.stage(events, &format!("checking out {description}"))?;
        self.check_out(&workspace)?;
        if !self.cache.reuses() {
            workspace.forget_base()?;
        }
        self.open = Some(Open { workspace, applied: 0, build: Holds::Unknown, series_tail: SERIES_TAIL });
        Ok(())
    }

    /// Checks out the sources without patches.
    fn check_out(&self, workspace: &Workspace) -> Result<(), BuildError> {
        let Order { digest, description, .. } = self.order;
        let checkout = |folder: &Path| (self.checkout)(folder).map_err(Into::into);
        Ok(workspace.check_out::<Reason>(digest, description, checkout)?)
    }

    /// Removes all patches. Sources that cannot be restored are checked out again, so that no build
    /// uses a wrong tree.
    fn take_out(&mut self) -> Result<(), BuildError> {
        let open = self.opened();
        open.applied = 0;
        open.build = Holds::Unknown;
        let open = self.open.as_ref().expect("opened before");
        self.check_out(&open.workspace)
    }

    /// Ensures that the base's build folder exists. It may be gone although the base's kernel is
    /// cached.
    fn require_base(&mut self, log: &Path, events: &mut Events) -> Result<(), BuildError> {
        let key = self.key(0);
        if self.opened().workspace.base_state().is_some_and(|state| state.key == key) {
            return Ok(());
        }
        match self.base(log, events) {
            Ok(_) => Ok(()),
            Err(error @ BuildError::Interrupted { .. }) => Err(error),
            Err(error) => Err(BuildError::Base(Box::new(error))),
        }
    }

    fn base(&mut self, log: &Path, events: &mut Events) -> Result<u64, BuildError> {
        let key = self.key(0);
        self.take_out()?;
        self.opened().workspace.begin_base()?;
        let (steps, tail) = self.make(None, true, log, events)?;
        self.order.stage(events, "keeping the base")?;
        let open = self.opened();
        open.workspace.keep_base(&BaseState { key, tail })?;
        open.build = Holds::Series;
        Ok(steps)
    }

    fn with_patches(&mut self, count: usize, log: &Path, events: &mut Events) -> Result<u64, BuildError> {
        if self.opened().applied > count {
            self.take_out()?;
        }
        if self.opened().build == Holds::Unknown {
            self.order.stage(events, "copying the base")?;
            let open = self.opened();
            open.workspace.begin_series()?;
            open.build = Holds::Series;
        }
        let (touched, configure) = self.apply_up_to(count, events)?;
        Ok(self.make(Some(&touched), configure, log, events)?.0)
    }

    /// Checks that every patch applies, before anything is built. A cached kernel proves it.
    pub fn try_patches(&mut self, events: &mut Events) -> Result<(), BuildError> {
        let all = self.order.patches.len();
        if self.cache.get(KIND, &self.key(all)).is_some() {
            return Ok(());
        }
        self.open(events)?;
        self.apply_up_to(all, events)?;
        self.take_out()
    }

    /// Returns the patch that follows `before` others.
    pub fn patch(&self, before: usize) -> Option<&'a Patch> {
        self.order.patches.get(before)
    }

    /// Applies the missing patches. Returns the files they touched, and true if the configuration
    /// may have changed.
    fn apply_up_to(
        &mut self,
        count: usize,
        events: &mut Events,
    ) -> Result<(BTreeSet<PathBuf>, bool), BuildError> {
        let applied = self.opened().applied;
        let mut configure = false;
        let mut touched = BTreeSet::new();
        for patch in &self.order.patches[applied..count] {
            self.order.stage(events, &format!("applying {}", patch.subject))?;
            let apply = &self.apply;
            let open = self.open.as_mut().expect("opened before");
            let error = |reason: &dyn Display| BuildError::Apply {
                subject: patch.subject.clone(),
                origin: patch.origin.clone(),
                description: self.order.description.clone(),
                reason: reason.to_string(),
            };
            let outcome =
                open.workspace.patch(&patch.touched.iter().cloned().collect(), |source| apply(patch, source));
            // A patch may be half applied, so all are removed.
            let failed = match outcome {
                Ok(Ok(())) => None,
                Ok(Err(reason)) => Some(error(&reason.into())),
                Err(WorkspaceError::Journal(reason)) => Some(error(&reason)),
                Err(other) => Some(other.into()),
            };
            if let Some(failed) = failed {
                self.take_out()?;
                return Err(failed);
            }
            open.applied += 1;
            touched.extend(patch.touched.iter().cloned());
            configure |= contains(&patch.diff, b"Kconfig") || contains(&patch.diff, b"scripts/");
        }
        Ok((touched, configure))
    }

    /// Runs make in `build/`. Returns the number of its steps, and how many of them were not
    /// predicted. `touched` are the files that patches changed since the last build; None for the
    /// base.
    fn make(
        &mut self,
        touched: Option<&BTreeSet<PathBuf>>,
        configure: bool,
        log: &Path,
        events: &mut Events,
    ) -> Result<(u64, u64), BuildError> {
        let is_base = touched.is_none();
        let ccache = self.ccache(is_base, log)?;
        let order = self.order;
        let open = self.open.as_mut().expect("opened before");
        let (source, build) = (open.workspace.source(), open.workspace.build());
        let base_tail = open.workspace.base_state().map_or(TAIL, |state| state.tail);
        // For a few files a dry run takes as long as for all, and counts targets that turn out to
        // be up to date.
        let affected = touched.map(|touched| open.workspace.affected(touched));
        let tail = if is_base { base_tail } else { open.series_tail };
        let make = Make {
            tools: &self.tools,
            confinement: order.confinement.as_ref(),
            source: &source,
            build: &build,
            ccache,
            log,
        };
        let mut run = |targets: &[&str], step: &mut dyn FnMut(u64) -> ControlFlow<()>| {
            make.run(targets, step).map_err(|error| {
                // After a forced end, files may be incomplete. After an error, make knows which are
                // complete.
                if !matches!(error, MakeError::Failed(status) if !make::was_interrupted(status)) {
                    open.build = Holds::Unknown;
                }
                build_error(order, error, &source, log)
            })
        };
        let mut before = 0;
        if configure {
            order.stage(events, "configuring")?;
            let fragment = build.join(make::CONFIG_FRAGMENT);
            write_anew(&fragment, &order.config.text()).map_err(io_error("write", &fragment))?;
            run(&["allnoconfig"], &mut |_| events(Event::Waiting))?;
            let config = build.join(".config");
            // A hostile Makefile may have put a FIFO there, and reading would block.
            require_own(&config, &build)?;
            let text = fs::read_to_string(&config).map_err(io_error("read", &config))?;
            let result =
                Kconfig::parse(&text).map_err(|error| io_error("read", &config)(io::Error::other(error)))?;
            let unmet = kconfig::unmet(&order.config.wanted, &result, &source, order.arch);
            if !unmet.is_empty() {
                let Order { name, description, .. } = order.clone();
                return Err(BuildError::Config { name, description, unmet });
            }
        }
        if is_base {
            order.stage(events, "preparing")?;
            before = run(&["prepare"], &mut |_| events(Event::Waiting))?;
        }
        let target = image_target(order.arch);
        let foreseen =
            affected.unwrap_or_else(|| make.count(&[target], &mut || events(Event::Waiting)).unwrap_or(0));
        let total = before + foreseen + tail;
        order.stage(events, "building")?;
        let steps =
            run(&[target], &mut |done| events(Event::Progress { done: (before + done).min(total), total }))?;
        // make may have had nothing to do; then complete the progress bar.
        let _ = events(Event::Progress { done: total, total });
        let unforeseen = steps.saturating_sub(foreseen);
        if !is_base {
            self.opened().series_tail = unforeseen;
        }
        Ok((before + steps, unforeseen))
    }
}

/// Restores the sources when the builder is done. If that fails, the next run does it.
impl<C, A> Drop for Builder<'_, C, A> {
    fn drop(&mut self) {
        if let Some(open) = &self.open {
            let _ = open.workspace.restore();
        }
    }
}

fn build_error(order: &Order, error: MakeError, source: &Path, log: &Path) -> BuildError {
    let name = order.name.clone();
    match error {
        MakeError::Interrupted => BuildError::Interrupted { name },
        MakeError::NoRoom(error) => error.into(),
        MakeError::Failed(status) if make::was_interrupted(status) => BuildError::Interrupted { name },
        MakeError::Failed(_) => match compiler_error::read(log, source) {
            // A build may print this about its own /tmp, or to hide an error. Only the disk itself
            // is believed.
            Ok(error) if error.kind == Kind::DiskFull => match make::require_reserve(source, log) {
                Err(full) => full.into(),
                Ok(()) => {
                    let error = FirstError { kind: Kind::Make, ..error };
                    BuildError::Compile { name, error: Box::new(error), log: log.to_owned() }
                }
            },
            Ok(error) => BuildError::Compile { name, error: Box::new(error), log: log.to_owned() },
            Err(source) => io_error("read", log)(source),
        },
        MakeError::Deadline | MakeError::LogTooLong => {
            BuildError::Endless { name, reason: error.to_string(), log: log.to_owned() }
        }
        MakeError::Io(source) => io_error("run make with its log in", log)(source),
    }
}

fn built(entry: &Path, cached: bool) -> Result<Built, BuildError> {
    let path = entry.join("record.json");
    let text = fs::read(&path).map_err(io_error("read", &path))?;
    let record =
        serde_json::from_slice(&text).map_err(|source| io_error("read", &path)(io::Error::other(source)))?;
    let file = |name| entry.join(name);
    Ok(Built { image: file("image"), config: file("config"), log: file("log"), record, cached })
}

fn image_target(arch: Arch) -> &'static str {
    match arch {
        Arch::X86_64 => "bzImage",
        Arch::Arm64 => "Image",
    }
}

fn image_path(build: &Path, arch: Arch) -> PathBuf {
    match arch {
        Arch::X86_64 => build.join("arch/x86/boot/bzImage"),
        Arch::Arm64 => build.join("arch/arm64/boot/Image"),
    }
}

/// Writes a file. Replaces a link that a hostile Makefile may have planted to make us write
/// outside.
fn write_anew(path: &Path, text: &str) -> io::Result<()> {
    match fs::remove_file(path) {
        Err(error) if error.kind() != io::ErrorKind::NotFound => return Err(error),
        _ => {}
    }
    io::Write::write_all(&mut fs::File::create_new(path)?, text.as_bytes())
}

/// Larger than any kernel image or configuration. A hostile Makefile can make a larger file.
const LARGEST: u64 = 512 << 20;

fn require_own(path: &Path, build: &Path) -> Result<(), BuildError> {
    let error = |why: &str| io_error("use", path)(io::Error::other(why.to_owned()));
    if !is_own(path, build).map_err(io_error("find", path))? {
        return Err(error("not a regular file"));
    }
    let length = fs::metadata(path).map_err(io_error("find", path))?.len();
    if length > LARGEST { Err(error("it is larger than any kernel")) } else { Ok(()) }
}

/// True if the path is a regular file inside `build`, not a link.
fn is_own(path: &Path, build: &Path) -> io::Result<bool> {
    Ok(fs::symlink_metadata(path)?.is_file() && fs::canonicalize(path)?.starts_with(fs::canonicalize(build)?))
}

fn contains(text: &[u8], word: &[u8]) -> bool {
    text.windows(word.len()).any(|window| window == word)
}

fn io_error(action: &'static str, path: &Path) -> impl FnOnce(io::Error) -> BuildError {
    move |source| BuildError::Io { action, path: path.to_owned(), source }
}

/// Hashes words with their lengths, so that different lists have different input.
#[derive(Default)]
struct Hasher(Sha256);

impl Hasher {
    fn add(&mut self, bytes: &[u8]) {
        self.0.update((bytes.len() as u64).to_le_bytes());
        self.0.update(bytes);
    }

    fn end(self) -> String {
        hex(&self.0.finalize())
    }
}

fn digest<'a>(words: impl IntoIterator<Item = &'a str>) -> String {
    let mut hasher = Hasher::default();
    words.into_iter().for_each(|word| hasher.add(word.as_bytes()));
    hasher.end()
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A patch to the only line of `one.c`.
    fn patch(from: &str, to: &str) -> Patch {
        Patch {
            number: 1,
            subject: format!("one: {to}"),
            origin: "some.patch".into(),
            diff: format!("--- a/one.c\n+++ b/one.c\n@@ -1 +1 @@\n-{from}\n+{to}\n").into(),
            strip: 1,
            reversed: false,
            touched: vec!["one.c".into()],
        }
    }

    fn order(patches: Vec<Patch>) -> Order {
        Order {
            name: "n".into(),
            arch: Arch::X86_64,
            digest: "d".into(),
            description: "x".into(),
            lineage: "l".into(),
            toolchain: Toolchain { compiler: crate::Compiler::Gcc, version: None },
            config: config("CONFIG_A=y\n"),
            patches,
            reverse: false,
            confinement: None,
        }
    }

    fn config(text: &str) -> Fragments {
        Fragments::merge(kconfig::Fragment::parse(text, Path::new("a.config")).unwrap())
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
            let nothing = |_: &Path| Ok::<_, io::Error>(());
            match Builder::new(order, &cache, nothing, |_: &Patch, _: &Path| Ok::<_, io::Error>(())) {
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
        let named = Order { name: "m".into(), description: "y".into(), lineage: "k".into(), ..order.clone() };
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
$(O)/arch/x86/boot/bzImage: $(O)/one.o\n\t@echo '  BUILD   bzImage'; mkdir -p $(@D); cp $< $@
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
            ..order(vec![patch(one, two), patch(two, one), patch(one, three), patch("no such line", two)])
        };
        let checkout = |folder: &Path| -> io::Result<()> {
            fs::write(folder.join("Makefile"), MAKEFILE)?;
            fs::write(folder.join("one.c"), format!("{one}\n"))
        };
        let apply = |patch: &Patch, source: &Path| -> io::Result<()> {
            let file = folder.path().join("diff");
            fs::write(&file, &patch.diff)?;
            let mut command = std::process::Command::new("git");
            command.arg("apply").arg(&file).current_dir(source);
            let done = tramplab_host::child::run(&mut command, std::time::Duration::from_secs(60));
            done.map(drop).map_err(io::Error::other)
        };
        let mut builder = match Builder::new(&order, &cache, checkout, apply) {
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
        let mut builder = Builder::new(&order, &cache, checkout, apply).unwrap();
        let stop = builder.build(order.patches.len(), &log, &mut |_| ControlFlow::Break(()));
        assert!(matches!(stop, Err(BuildError::Interrupted { .. })), "{stop:?}");
    }
}
