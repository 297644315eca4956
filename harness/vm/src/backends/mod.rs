// SPDX-License-Identifier: MIT OR Apache-2.0
//! The backends: programs that start guests, each in its own way. A module knows one of them.
//!
//! One backend starts none: the agent measures this machine.
//!
//! [`Features`] are constants: callers decide by them before anything is found or started. A
//! [`Launcher`] starts a guest that has an agent, a [`Root`] one without.

mod qemu;
mod this_machine;
mod virtme;

pub use qemu::cpu_model;
pub(crate) use qemu::{
    machine::Start,
    monitor::Monitor,
    snapshot::{Kept, Saved},
};

use crate::{
    Spec, VmError,
    process::{Process, Program, Streams},
};
use serde::{Deserialize, Serialize};
use std::{
    env,
    ffi::OsString,
    fs, io,
    os::{
        fd::OwnedFd,
        unix::{fs::PermissionsExt, net::UnixStream},
    },
    path::{Path, PathBuf},
    time::Instant,
};
use tempfile::TempDir;
use tramplab_host::Vng;
use tramplab_model::run::Backend;

/// The backend whose guests have this machine's files.
pub const WITH_HOST_FILES: Backend = Backend::VirtmeNg;

/// The facts about a backend's guests.
pub struct Features {
    pub(crate) program: Program,
    /// A booted guest can be saved and restored.
    pub(crate) restores: bool,
    /// The agent reports on the console that it runs.
    pub(crate) agent_on_console: bool,
    /// Their files are this machine's, which fit its own architecture only.
    pub has_host_files: bool,
    /// The beginning of an error about the kernel.
    pub root: &'static str,
    /// The options for its root that a kernel must have built in.
    pub built_in: &'static [&'static str],
    /// The fragment of `configs/kconfig/` for kernels that it boots, without `.config`.
    pub fragment: Option<&'static str>,
    /// Bytes of a command line for its shell that surely pass.
    pub longest_line: Option<usize>,
    lacks: fn(Feature) -> Option<&'static str>,
}

/// A need of a cell that not every backend meets.
#[derive(Clone, Copy, Debug)]
pub enum Feature {
    /// Modules and commands in the guest's root.
    PackedFiles,
    /// The tree's own tests in the guest's root.
    PackedTests,
    /// `or_free`: the user may choose the free clock instead.
    ExactClock { or_free: bool },
}

impl Features {
    pub fn of(backend: Backend) -> &'static Features {
        match backend {
            Backend::Qemu => &qemu::FEATURES,
            Backend::VirtmeNg => &virtme::FEATURES,
            Backend::None => &this_machine::FEATURES,
        }
    }

    /// The reason why its guests lack it, and the way out. None if they have it.
    pub fn lacks(&self, feature: Feature) -> Option<&'static str> {
        (self.lacks)(feature)
    }

    pub fn has(&self, feature: Feature) -> bool {
        self.lacks(feature).is_none()
    }
}

/// Starts a guest that has an agent.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub enum Launcher {
    /// QEMU. The agent is in the initramfs.
    #[default]
    Qemu,
    /// virtme-ng. The agent is a program among the host's files.
    VirtmeNg { vng: Vng, agent: PathBuf },
    /// No guest: the agent is a program on this machine. It attaches `most` functions and programs
    /// at once, at most.
    ThisMachine { agent: PathBuf, most: u32 },
}

impl Launcher {
    pub(crate) fn features(&self) -> &'static Features {
        Features::of(match self {
            Launcher::Qemu => Backend::Qemu,
            Launcher::VirtmeNg { .. } => Backend::VirtmeNg,
            Launcher::ThisMachine { .. } => Backend::None,
        })
    }

    /// Returns the guest's process and the agent's link. `monitor` is for snapshots.
    pub(crate) fn launch(
        &self,
        spec: &Spec,
        start: Start,
        console: OwnedFd,
        monitor: Option<OwnedFd>,
    ) -> Result<(Process, UnixStream), VmError> {
        match self {
            Launcher::Qemu => qemu::launch(spec, start, console, monitor),
            Launcher::VirtmeNg { vng, agent } => virtme::launch(spec, vng, agent, console),
            Launcher::ThisMachine { agent, most } => this_machine::launch(agent, *most, console),
        }
    }
}

/// The root of a guest that runs a shell or nothing.
#[derive(Clone, Debug)]
pub enum Root {
    /// A static busybox, and modules in their load order.
    Busybox { busybox: PathBuf, modules: Vec<PathBuf> },
    /// The host's files, by virtme-ng.
    Host(Vng),
}

impl Root {
    /// Starts a guest for a line of its shell, or with the terminal. QEMU gets the words `added`.
    pub(crate) fn start(
        &self,
        spec: &Spec,
        line: Option<&str>,
        added: &[OsString],
        home: TempDir,
        streams: Streams,
    ) -> io::Result<Process> {
        let (command, program) = match self {
            Root::Busybox { busybox, modules } => {
                let files = (&**busybox, &**modules);
                let command = qemu::busybox::command(spec, files, line, home.path(), added)?;
                (command, &qemu::FEATURES.program)
            }
            Root::Host(vng) => {
                let command = virtme::shell(spec, vng, line, home.path(), added)?;
                (command, &virtme::FEATURES.program)
            }
        };
        Process::start_group(&command, home, streams, program)
    }

    /// Starts a guest that ends at once. Returns when that began.
    pub(crate) fn start_idle(&self, spec: &Spec) -> io::Result<(Process, Instant)> {
        match self {
            Root::Busybox { busybox, .. } => qemu::busybox::start_idle(spec, busybox),
            Root::Host(vng) => virtme::start_idle(spec, vng),
        }
    }
}

/// The longest path of a folder for sockets, in bytes. A socket's path may have 107.
const LONGEST: usize = 60;

/// Makes a folder for one guest. Its path is short and plain because it holds sockets.
pub(crate) fn short_folder() -> io::Result<TempDir> {
    let temporary = env::temp_dir();
    let path = temporary.as_os_str();
    let fits = path.len() < LONGEST && virtme::quoted(path) == path;
    let temporary = if fits { temporary } else { "/tmp".into() };
    // Only this user may connect to its sockets, which control the guest.
    let ours_alone = fs::Permissions::from_mode(0o700);
    tempfile::Builder::new().prefix("tramplab-").permissions(ours_alone).tempdir_in(temporary)
}

/// QEMU's device for the ports of [`port`].
pub(crate) const PORTS_DEVICE: [&str; 2] = ["-device", "virtio-serial-pci,id=tramplab"];

/// QEMU's options for a port of the guest that is connected to a socket in the home.
pub(crate) fn port(home: &Path, socket: &str, name: &str) -> [OsString; 4] {
    [
        "-chardev".into(),
        format!("socket,id={socket},path={}", home.join(socket).display()).into(),
        "-device".into(),
        format!("virtserialport,bus=tramplab.0,chardev={socket},name={name}").into(),
    ]
}
