// SPDX-License-Identifier: MIT OR Apache-2.0
//! The plugin and the static guest agents: built by cargo in the repository, else as installed.

use crate::{
    error::{Context, Error, Result},
    event::{Event, Tell},
    interrupt::Interrupt,
    place::{self, Place, place},
};
use std::{
    collections::BTreeMap,
    io::{self, BufRead, BufReader},
    path::{Path, PathBuf},
    process::{Command, ExitStatus, Stdio},
    thread,
    time::Duration,
};
use tramplab_host::{
    Cache, Rustc,
    cache::holder::{self, Holder},
    child::Group,
    rust::{cross_compiler, target},
};
use tramplab_model::{called::called, run::Arch};
use walkdir::WalkDir;
use xshell::{Shell, cmd};

pub struct Artifacts {
    pub plugin: PathBuf,
    /// For each architecture that was asked for.
    pub agents: BTreeMap<Arch, PathBuf>,
}

/// Where the agents are built: their own folder, since their flags differ from everything else's.
pub const GUEST_TARGET: &str = "target/guest";
/// Static: `/init` has no loader and no libraries beside it. cargo prefers this variable to all
/// others.
pub const GUEST_RUSTFLAGS: (&str, &str) =
    ("CARGO_ENCODED_RUSTFLAGS", "-C\u{1f}target-feature=+crt-static");

/// Below cargo's folder.
const PLUGIN: &str = "release/libtramplab_plugin.so";
/// Below the folder of its target.
const AGENT: &str = "release/tramplab-agent";

const RUSTC: &str = "RUSTC";

pub fn provide(cache: &Cache, arches: &[Arch], tell: Tell) -> Result<Artifacts> {
    match place() {
        Place::Checkout(root) => build(root, cache, arches, tell),
        Place::Installed(prefix) => installed(prefix, arches),
    }
}

/// Only the agents, for this machine.
pub fn agents(cache: &Cache, arches: &[Arch], tell: Tell) -> Result<Artifacts> {
    let root = match place() {
        Place::Checkout(root) => root,
        Place::Installed(prefix) => return installed(prefix, arches),
    };
    tell(Event::Step("building the agent"));
    let sh = Shell::new()?;
    sh.change_dir(root);
    let agents = arches.iter().map(|&arch| Ok((arch, agent(&sh, root, cache, arch, tell)?)));
    Ok(Artifacts { plugin: PathBuf::new(), agents: agents.collect::<Result<_>>()? })
}

/// Those that were built before; the plugin only for guests.
pub fn built_before(arches: &[Arch], for_guests: bool) -> Result<Artifacts> {
    let root = match place() {
        Place::Checkout(root) => root,
        Place::Installed(prefix) => return installed(prefix, arches),
    };
    let there = |path: PathBuf| match path.is_file() {
        true => Ok(path),
        false => Err(Error::Usage(format!(
            "there is no {}, and root builds nothing in your repository: run `cargo xtask vm-test \
             --vm {} --no-run` as yourself first",
            path.display(),
            if for_guests { "none,qemu" } else { "none" }
        ))),
    };
    let agent = |&arch: &Arch| {
        let path = root.join(GUEST_TARGET).join(target(arch)).join(AGENT);
        Ok((arch, there(path)?))
    };
    let agents = arches.iter().map(agent).collect::<Result<_>>()?;
    let plugin = built_in(root).join(PLUGIN);
    Ok(Artifacts { plugin: if for_guests { there(plugin)? } else { plugin }, agents })
}

fn installed(prefix: &Path, arches: &[Arch]) -> Result<Artifacts> {
    let agent = |&arch: &Arch| Ok((arch, place::installed(prefix, &place::agent_name(arch))?));
    Ok(Artifacts {
        plugin: place::installed(prefix, place::PLUGIN)?,
        agents: arches.iter().map(agent).collect::<Result<_>>()?,
    })
}

pub fn build(root: &Path, cache: &Cache, arches: &[Arch], tell: Tell) -> Result<Artifacts> {
    tell(Event::Step("building the plugin and the guest agent"));
    let sh = Shell::new()?;
    sh.change_dir(root);
    let cargo = cargo();
    let plugin = cmd!(sh, "{cargo} build --release --package tramplab-plugin");
    run(plugin.into(), tell).context("failed to build the TCG plugin")?;
    let agents = arches.iter().map(|&arch| Ok((arch, agent(&sh, root, cache, arch, tell)?)));
    let agents = agents.collect::<Result<_>>()?;
    Ok(Artifacts { plugin: built_in(root).join(PLUGIN), agents })
}

/// Where cargo builds what runs on this machine.
fn built_in(root: &Path) -> PathBuf {
    root.join(std::env::var_os("CARGO_TARGET_DIR").unwrap_or_else(|| "target".into()))
}

fn agent(sh: &Shell, root: &Path, cache: &Cache, arch: Arch, tell: Tell) -> Result<PathBuf> {
    // Named even where it is the host's own, so that the flags stay away from build scripts.
    let (cargo, target) = (cargo(), target(arch));
    let _flags = sh.push_env(GUEST_RUSTFLAGS.0, GUEST_RUSTFLAGS.1);
    let mut folder = GUEST_TARGET.to_owned();
    let variables = variables(cache, arch)?;
    if variables.contains_key(RUSTC) {
        // Build scripts are compiled by another rustc there, too.
        folder += &format!("-{arch}");
    }
    let _pushed = Vec::from_iter(variables.iter().map(|(name, value)| sh.push_env(name, value)));
    let build = cmd!(
        sh,
        "{cargo} build --release --package tramplab-agent --target {target} --target-dir {folder}"
    );
    run(build.into(), tell).with_context(|| {
        format!("failed to build the guest agent; `{} doctor` says what it needs", called())
    })?;
    Ok(root.join(folder).join(target).join(AGENT))
}

/// Variables for cargo to build for an architecture.
pub fn variables(cache: &Cache, arch: Arch) -> Result<BTreeMap<String, PathBuf>> {
    let mut variables = BTreeMap::new();
    if Arch::host() != Some(arch) {
        let underscored = target(arch).replace('-', "_");
        let linker = format!("CARGO_TARGET_{}_LINKER", underscored.to_uppercase());
        // The user's own CC is for this machine.
        for variable in [linker, format!("CC_{underscored}")] {
            variables.insert(variable, cross_compiler(arch).into());
        }
    }
    if let Rustc::Private(rustc) = Rustc::find(cache, arch)? {
        variables.insert(RUSTC.to_owned(), rustc);
        // The user's wrapper, such as clippy-driver, brings a compiler of another version.
        for wrapper in ["RUSTC_WRAPPER", "RUSTC_WORKSPACE_WRAPPER"] {
            variables.insert(wrapper.to_owned(), PathBuf::new());
        }
    }
    Ok(variables)
}

/// Runs cargo, and tells each line of its standard error. A signal stops it.
fn run(mut cargo: Command, tell: Tell) -> Result<()> {
    cargo.env("CARGO_TERM_QUIET", "false").env("CARGO_TERM_COLOR", "always");
    // In a group of its own it must not read the terminal.
    cargo.stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::piped());
    let folder = built_in(cargo.get_current_dir().unwrap_or(Path::new(".")));
    let interrupt = Interrupt::watch()?;
    let mut group = Group::spawn(&mut cargo).context("failed to run cargo")?;
    let stderr = group.stderr().expect("piped");
    let ours = group.id().as_raw().cast_unsigned();
    let status = thread::scope(|scope| {
        scope.spawn(|| {
            // Compilers quote sources, which need not be UTF-8.
            let lines = BufReader::new(stderr).split(b'\n').map_while(io::Result::ok);
            lines.for_each(|line| {
                let line = String::from_utf8_lossy(&line);
                tell(Event::Cargo(&line));
                if let Some((_, lock)) = line.split_once(WAITING) {
                    tell(Event::Line(&waiting(lock, &folder, ours)));
                }
            });
        });
        ended(group, &interrupt)
    })?;
    match status.success() {
        true => Ok(()),
        false => Err(Error::failed(format!("cargo ended with {status}"))),
    }
}

/// Waits for a program. A signal to this one alone ends the program, too.
pub fn ended(mut group: Group, interrupt: &Interrupt) -> Result<ExitStatus> {
    loop {
        if interrupt.came() {
            return Err(Error::Interrupted);
        }
        match group.try_wait()? {
            Some(status) => return Ok(status),
            None => thread::sleep(Duration::from_millis(50)),
        }
    }
}

/// Cargo's words before the lock that another cargo holds.
const WAITING: &str = "waiting for file lock on ";

/// Names the cargo that holds a lock: of the downloaded packages, or of builds in a folder.
fn waiting(lock: &str, target: &Path, ours: u32) -> String {
    if lock.trim_end() == "package cache" {
        return "waiting for another cargo: it holds the lock of the downloaded packages"
            .to_owned();
    }
    let folders = WalkDir::new(target).max_depth(3).into_iter().flatten();
    let mut locks = folders.filter(|entry| entry.file_name() == ".cargo-lock");
    let is_other = |holder: &Holder| holder.process.as_raw().cast_unsigned() != ours;
    let holder = locks.find_map(|lock| holder::of(lock.path()).filter(is_other));
    let holder = holder.map_or("another cargo".to_owned(), |holder| holder.to_string());
    format!("waiting for {holder}: it holds a lock in {}", target.display())
}

/// The cargo that runs us, or the one in the path.
pub fn cargo() -> String {
    std::env::var("CARGO").unwrap_or_else(|_| "cargo".to_owned())
}
