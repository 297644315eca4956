// SPDX-License-Identifier: MIT OR Apache-2.0
//! Builds a series patch by patch.

use super::{
    BuildError, BuildRecord, Built, Completion, Configured, Event, Events, Hasher, Means, Order,
    Reason, Tools, debug,
    error::{Unquoted, build_error, io_error},
    make::{self, CONFIG_FRAGMENT, Ccache, Make, MakeError},
    modules,
    output::{KIND, image_path, read_record, require_own, write_anew, write_record},
    toolchain,
    workspace::{self, BaseState, Workspace, WorkspaceError},
};
use crate::{
    kconfig::{self, Kconfig, Unmet, WantedOption},
    series::Patch,
};
use sha2::{Digest, Sha256};
use std::{
    collections::BTreeSet,
    fmt::Display,
    fs::{self, OpenOptions},
    io::{self, Write},
    ops::ControlFlow,
    path::{Path, PathBuf},
    time::Instant,
};
use tramplab_host::cache::Cache;
use tramplab_model::name::{hex, short};

/// Version of the build procedure. Raised when the same order would give another kernel.
const RECIPE: &str = "1";

/// Steps that link vmlinux and pack the image; used until a build has counted them.
const TAIL: u64 = 60;

/// The same for a series' build: the link, and the steps that kbuild always repeats.
const SERIES_TAIL: u64 = 42;

/// Builds the base of a series, the base with the first patch, with the first two, and so on.
pub struct Builder<'a> {
    pub(super) order: &'a Order,
    pub(super) cache: &'a Cache,
    pub(super) tools: Tools,
    checkout: Checkout<'a>,
    apply: Apply<'a>,
    pub(super) open: Option<Open>,
    /// Cache entries of selftests that this builder has built, successfully or not.
    pub(super) tried: BTreeSet<String>,
}

/// Checks out the sources without patches into a folder.
pub type Checkout<'a> = &'a dyn Fn(&Path) -> Result<(), Reason>;

/// Applies a patch to the sources in a folder, or reverts it.
pub type Apply<'a> = &'a dyn Fn(&Patch, &Path) -> Result<(), Reason>;

/// The workspace. It is opened for the first build.
pub(super) struct Open {
    pub(super) workspace: Workspace,
    /// Number of patches applied to `src/`.
    pub(super) applied: usize,
    pub(super) build: Holds,
    /// Steps of the series' last build that did not compile an object.
    series_tail: u64,
    /// The key of the base in `build/`, if the folder keeps another.
    pub(super) aside: Option<String>,
    /// The configuration of the base, and of `build/`.
    base_configured: Configured,
    configured: Configured,
}

/// The state of `build/`.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum Holds {
    Unknown,
    /// The base, perhaps with patches on top. make can continue there.
    Series,
}

impl<'a> Builder<'a> {
    /// Finds the toolchain. Builds nothing.
    pub fn new(
        order: &'a Order,
        cache: &'a Cache,
        checkout: Checkout<'a>,
        apply: Apply<'a>,
    ) -> Result<Builder<'a>, BuildError> {
        let tools = toolchain::find(&order.toolchain, order.arch, order.system())?;
        Ok(Builder { order, cache, tools, checkout, apply, open: None, tried: BTreeSet::new() })
    }

    /// A series' build reads the cache entries of base builds but writes none that a base would
    /// read.
    pub(super) fn ccache(&self, is_base: bool, log: &Path) -> Result<Option<Ccache>, BuildError> {
        let Some(open) = self.open.as_ref().filter(|_| self.tools.ccache) else { return Ok(None) };
        let name = open.workspace.name();
        let Some(own) = ccache_name(&name, self.order) else { return Ok(None) };
        let all = self.cache.folder("ccache")?;
        for entry in fs::read_dir(&all).into_iter().flatten().flatten() {
            // Those of other commits. The workspace is locked.
            let other = entry.file_name().to_string_lossy().into_owned();
            if other != own && (other == name || other.starts_with(&format!("{name}-"))) {
                workspace::remove(&entry.path())?;
            }
        }
        let folder = self.cache.folder(&format!("ccache/{own}"))?;
        let folder = fs::canonicalize(folder).map_err(io_error("find", log))?;
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
        // Entries of other builds have no modules.
        if self.order.modules && modules::has_any(&config) {
            words.push(modules::TARGET);
        }
        // Objects of another commit may be part of the kernel.
        if let Some(from) = self.order.starts_from.as_deref().filter(|from| from != digest) {
            words.extend(["from", from]);
        }
        if self.order.completes {
            words.push("completes");
        }
        // A kernel without an option that is wanted is another one than where that is an error.
        let is_introduced =
            |wanted: &&kconfig::WantedOption| self.order.introduced.contains(&wanted.option);
        let introduced = self.order.config.wanted.iter().filter(is_introduced);
        words.extend(introduced.flat_map(|wanted| ["introduced", &wanted.option]));
        let mut hasher = Hasher::default();
        words.into_iter().for_each(|word| hasher.add(word.as_bytes()));
        for patch in self.order.patches.iter().take(count) {
            hasher.add(&[u8::from(patch.reversed), patch.strip.min(255) as u8]);
            hasher.add(&patch.diff);
        }
        hasher.end()
    }

    /// Builds the kernel with `count` patches; 0 is the base.
    pub fn build(
        &mut self,
        count: usize,
        log: &Path,
        events: &mut Events,
    ) -> Result<Built, BuildError> {
        let count = count.min(self.order.patches.len());
        let key = self.key(count);
        if let Some(entry) = self.cache.get(KIND, &key) {
            self.require_lines(count, &entry, log, events)?;
            return self.built(&entry, true);
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
        let entry = entry.inspect_err(|error| self.give_back(error))?;
        self.built(&entry, !made)
    }

    fn built(&self, entry: &Path, cached: bool) -> Result<Built, BuildError> {
        let record: BuildRecord = read_record(entry)?;
        let file = |name| entry.join(name);
        Ok(Built {
            image: file("image"),
            config: file("config"),
            log: file("log"),
            functions: debug::functions(entry),
            modules: Some(file(modules::FOLDER)).filter(|folder| folder.is_dir()),
            vmlinux: self.vmlinux(&record.key),
            record,
            cached,
        })
    }

    /// Frees the space of a build that filled the disk.
    pub(super) fn give_back(&mut self, error: &BuildError) {
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
            self.keep_lines_of_base();
            self.with_patches(count, log, events)?
        };
        let build = self.opened().workspace.build();
        let image = image_path(&build, self.order.arch);
        let config = build.join(".config");
        for path in [&image, &config] {
            require_own(path, &build)?;
        }
        if let Err(error) = self.keep_code(&build, key, folder) {
            // Reports can do without it. The log says why they must.
            let line = format!("tramplab: kept no source lines: {error}\n");
            let append = || OpenOptions::new().append(true).open(log)?.write_all(line.as_bytes());
            append().map_err(io_error("write", log))?;
        }
        for (from, name) in [(image.as_path(), "image"), (&config, "config"), (log, "log")] {
            fs::copy(from, folder.join(name)).map_err(io_error("copy", from))?;
        }
        modules::keep(&build, makes_modules(self.order, &config)?, folder)?;
        let bytes = fs::read(folder.join("image")).map_err(io_error("read", &image))?;
        let record = BuildRecord {
            key: key.to_owned(),
            description: self.order.description.clone(),
            seconds: start.elapsed().as_secs_f64(),
            steps,
            confined: self.order.confinement.is_some(),
            toolchain: self.tools.identity.clone(),
            configured: self.opened().configured.clone(),
            sha256: hex(&Sha256::digest(&bytes)),
        };
        write_record(folder, &record)
    }

    pub(super) fn opened(&mut self) -> &mut Open {
        self.open.as_mut().expect("opened before")
    }

    pub(super) fn open(&mut self, events: &mut Events) -> Result<(), BuildError> {
        if self.open.is_some() {
            return Ok(());
        }
        let Order { lineage, arch, description, .. } = self.order;
        let toolchain = self.tools.identity.join("\n");
        let name = workspace::name(lineage, &[arch.name(), &toolchain]);
        let stage = match workspace::user(self.cache, &name) {
            Some(process) => {
                format!("waiting for process {process}, which builds in the folder {name}")
            }
            None => format!("opening the build folder {name}"),
        };
        self.order.stage(events, &stage)?;
        let workspace = Workspace::open(self.cache, &name)?;
        self.order.stage(events, &format!("checking out {description}"))?;
        self.check_out(&workspace)?;
        if !self.cache.reuses() {
            workspace.forget_base()?;
        }
        self.open = Some(Open {
            workspace,
            applied: 0,
            build: Holds::Unknown,
            series_tail: SERIES_TAIL,
            aside: None,
            base_configured: Configured::default(),
            configured: Configured::default(),
        });
        Ok(())
    }

    /// Checks out the sources without patches.
    fn check_out(&self, workspace: &Workspace) -> Result<(), BuildError> {
        let Order { digest, description, .. } = self.order;
        Ok(workspace.check_out(digest, description, self.checkout)?)
    }

    /// Removes all patches. Sources that cannot be restored are checked out again, so that no build
    /// uses a wrong tree.
    pub(super) fn take_out(&mut self) -> Result<(), BuildError> {
        let open = self.opened();
        open.applied = 0;
        open.build = Holds::Unknown;
        let open = self.open.as_ref().expect("opened before");
        self.check_out(&open.workspace)
    }

    /// Ensures that the base's build folder exists. It may be gone although the base's kernel is
    /// cached.
    pub(super) fn require_base(
        &mut self,
        log: &Path,
        events: &mut Events,
    ) -> Result<(), BuildError> {
        let key = self.key(0);
        let open = self.opened();
        if open.build == Holds::Series && open.aside.as_ref() == Some(&key) {
            return Ok(());
        }
        if let Some(state) = open.workspace.base_state().filter(|state| state.key == key) {
            open.base_configured = state.configured;
            return Ok(());
        }
        match self.base(log, events) {
            Ok(_) => Ok(()),
            Err(error @ BuildError::Interrupted { .. }) => Err(error),
            Err(error) => Err(BuildError::Base(Box::new(error))),
        }
    }

    pub(super) fn base(&mut self, log: &Path, events: &mut Events) -> Result<u64, BuildError> {
        let key = self.key(0);
        self.take_out()?;
        let Order { aside, digest, starts_from, .. } = self.order;
        self.opened().workspace.begin_base(starts_from.as_deref())?;
        let (steps, tail) = self.make(None, true, log, events)?;
        let is_guest = starts_from.as_ref().is_some_and(|from| from != digest);
        let aside = *aside || is_guest;
        let configured = self.opened().configured.clone();
        self.opened().base_configured = configured.clone();
        if !aside || self.opened().workspace.base_state().is_none() {
            self.order.stage(events, "keeping the base")?;
            self.opened().workspace.keep_base(&BaseState {
                key,
                digest: Some(digest.clone()),
                tail,
                configured,
            })?;
        } else {
            self.opened().aside = Some(key);
        }
        self.opened().build = Holds::Series;
        Ok(steps)
    }

    /// Makes the configuration of the base and nothing else. Returns the `.config`, and the folder
    /// of the sources.
    pub fn configure(
        &mut self,
        log: &Path,
        events: &mut Events,
    ) -> Result<(String, PathBuf), BuildError> {
        self.open(events)?;
        // A series may have left programs of its own in `build/`, which make would run.
        let empty = self.opened().workspace.begin_configuration()?;
        let config = &self.order.config.wanted;
        let text = self.configured(&empty, config, Completion::default(), log, events)?;
        Ok((text, self.opened().workspace.source()))
    }

    /// Configures a folder of objects so that every wanted option survives. A base may be completed
    /// in several ways; its patched kernels are completed like it.
    fn configure_wholly(
        &mut self,
        is_base: bool,
        log: &Path,
        events: &mut Events,
    ) -> Result<(), BuildError> {
        let order = self.order;
        let build = self.opened().workspace.build();
        let source = self.opened().workspace.source();
        let of_base = self.opened().base_configured.completion;
        let is_tried = |way: &Completion| match is_base {
            true => order.completes || !way.defaults,
            false => *way == of_base,
        };
        let mut fewest: Option<Vec<Unmet>> = None;
        let mut tried: Option<Vec<WantedOption>> = None;
        for completion in Completion::ALL.into_iter().filter(is_tried) {
            let mut wanted = order.config.wanted.clone();
            if completion.last_of_choice {
                // A tree that cannot be read is reported with what is unmet.
                let kept = kconfig::without_replaced(&wanted, &source, order.arch);
                wanted = kept.unwrap_or(wanted);
                if !completion.defaults && tried.as_ref() == Some(&wanted) {
                    continue;
                }
            }
            let text = self.configured(&build, &wanted, completion, log, events)?;
            let config = build.join(".config");
            let result = Kconfig::parse(&text)
                .map_err(|error| io_error("read", &config)(io::Error::other(error)))?;
            let unmet = kconfig::unmet(&wanted, &result, &source, order.arch);
            let is_introduced =
                |unmet: &Unmet| unmet.is_unknown && order.introduced.contains(&unmet.wanted.option);
            let (left_out, unmet): (Vec<_>, Vec<_>) = unmet.into_iter().partition(is_introduced);
            if unmet.is_empty() {
                let left_out = left_out.iter().map(|unmet| unmet.wanted.to_string()).collect();
                let all = order.config.wanted.iter().filter(|option| !wanted.contains(option));
                let replaced = all.map(|option| format!("{option} ({})", option.place())).collect();
                self.opened().configured = Configured { completion, left_out, replaced };
                return Ok(());
            }
            if fewest.as_ref().is_none_or(|fewest| unmet.len() < fewest.len()) {
                fewest = Some(unmet);
            }
            tried = Some(wanted);
        }
        let unmet = fewest.unwrap_or_default();
        let lines: String = unmet.iter().map(|unmet| format!("tramplab: {unmet}\n")).collect();
        let append = || OpenOptions::new().append(true).open(log)?.write_all(lines.as_bytes());
        append().map_err(io_error("write", log))?;
        let Order { name, description, .. } = order.clone();
        Err(BuildError::Config { name, description, unmet, log: log.to_owned() })
    }

    /// Runs a target that makes a configuration. Returns the resulting `.config`.
    fn configured(
        &mut self,
        build: &Path,
        wanted: &[WantedOption],
        completion: Completion,
        log: &Path,
        events: &mut Events,
    ) -> Result<String, BuildError> {
        let order = self.order;
        let open = self.open.as_mut().expect("opened before");
        let source = open.workspace.source();
        let make = Make {
            tools: &self.tools,
            confinement: order.confinement.as_ref(),
            source: &source,
            build,
            ccache: None,
            log,
        };
        order.stage(events, "configuring")?;
        let fragment = build.join(CONFIG_FRAGMENT);
        write_anew(&fragment, &kconfig::text(wanted)).map_err(io_error("write", &fragment))?;
        make.run(&[completion.target()], &mut |_| events(Event::Waiting)).map_err(|error| {
            open.build = Holds::Unknown;
            build_error(order, error, &source, log)
        })?;
        let config = build.join(".config");
        // A hostile Makefile may have put a FIFO there, and reading would block.
        require_own(&config, build)?;
        fs::read_to_string(&config).map_err(io_error("read", &config))
    }

    pub(super) fn with_patches(
        &mut self,
        count: usize,
        log: &Path,
        events: &mut Events,
    ) -> Result<u64, BuildError> {
        if self.opened().applied > count {
            self.take_out()?;
        }
        if self.opened().build == Holds::Unknown {
            self.order.stage(events, "copying the base")?;
            let open = self.opened();
            open.workspace.begin_series()?;
            open.build = Holds::Series;
            open.configured = open.base_configured.clone();
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
            let outcome = open
                .workspace
                .patch(&patch.touched.iter().cloned().collect(), |source| apply(patch, source));
            // A patch may be half applied, so all are removed.
            let failed = match outcome {
                Ok(Ok(())) => None,
                Ok(Err(reason)) => Some(error(&reason)),
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
        if configure {
            self.configure_wholly(is_base, log, events)?;
        }
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
        if is_base {
            order.stage(events, "preparing")?;
            before = run(&["prepare"], &mut |_| events(Event::Waiting))?;
        }
        let target = order.arch.platform().tree.image;
        let foreseen = affected
            .unwrap_or_else(|| make.count(&[target], &mut || events(Event::Waiting)).unwrap_or(0));
        let total = before + foreseen + tail;
        order.stage(events, "building")?;
        let steps = run(&[target], &mut |done| {
            events(Event::Progress { done: (before + done).min(total), total })
        })?;
        let config = build.join(".config");
        // A hostile Makefile may have put a FIFO there, and reading would block.
        require_own(&config, &build)?;
        if makes_modules(order, &config)? {
            order.stage(events, "building modules")?;
            run(&[modules::TARGET], &mut |_| events(Event::Waiting))?;
        }
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
impl Drop for Builder<'_> {
    fn drop(&mut self) {
        if let Some(open) = &self.open {
            let _ = open.workspace.restore();
        }
    }
}

/// True if a build with this configuration makes modules.
fn makes_modules(order: &Order, config: &Path) -> Result<bool, BuildError> {
    let text = || fs::read_to_string(config).map_err(io_error("read", config));
    Ok(order.modules && modules::has_any(&text()?))
}

/// The name of the folder with the objects that a kernel may take from earlier builds. A build can
/// store any object for any source there.
fn ccache_name(workspace: &str, order: &Order) -> Option<String> {
    // A build with the user's privileges uses nothing that a confined one stored.
    order.confinement.as_ref()?;
    match &order.starts_from {
        None => Some(workspace.to_owned()),
        Some(from) if *from == order.digest => Some(format!("{workspace}-{}", short(from))),
        // Another commit stands in.
        Some(_) => None,
    }
}

fn contains(text: &[u8], word: &[u8]) -> bool {
    text.windows(word.len()).any(|window| window == word)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::compile::{Confinement, tests::order};

    #[test]
    fn commits_share_no_objects() {
        let Ok(confinement) = Confinement::probe() else {
            eprintln!("skipped: builds cannot be confined here");
            return;
        };
        let mut order = order(Vec::new());
        assert_eq!(ccache_name("w", &order), None, "unconfined");
        order.confinement = Some(confinement);
        for (digest, starts_from, expected) in [
            ("d", None, Some("w")),
            ("0123456789abcdef", Some("0123456789abcdef"), Some("w-0123456789ab")),
            ("0123456789abcdef", Some("another"), None),
        ] {
            order.digest = digest.to_owned();
            order.starts_from = starts_from.map(str::to_owned);
            assert_eq!(ccache_name("w", &order).as_deref(), expected);
        }
    }
}
