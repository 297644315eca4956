// SPDX-License-Identifier: MIT OR Apache-2.0
//! The outer guest: a machine with AMD's virtualization, emulated by TCG. Its root is this
//! machine's, read-only by 9p below an overlay in memory. So it has the program, the caches and
//! QEMU, and its changes are gone with it.

use super::kernel::Kernel;
use std::{
    collections::BTreeMap,
    env,
    ffi::{OsStr, OsString},
    fs,
    path::{Path, PathBuf},
    time::Duration,
};
use tempfile::TempDir;
use tramplab_host::{Cache, QemuProgram, busybox};
use tramplab_model::run::{Accel, Arch, Clock};
use tramplab_vm::{
    Deadlines, Spec,
    shell::{End, Root, Session, Shell},
};

/// The outer guest and two inner ones of 1 GiB, beside the overlay.
const MEMORY_MIB: u32 = 5 * 1024;
/// In the outer guest: the folder that this machine reads afterwards.
pub const SHARED: &str = "/out";

pub struct Machine {
    shared: TempDir,
    /// Comes first on QEMU's command line.
    qemu: Vec<OsString>,
}

/// How one command of a script ended.
#[derive(Debug)]
pub struct Step {
    /// None if the command did not end.
    pub code: Option<i32>,
    pub out: String,
    pub err: String,
}

impl Machine {
    pub fn new() -> Machine {
        Machine { shared: tempfile::tempdir().unwrap(), qemu: Vec::new() }
    }

    /// A CPU without virtualization.
    pub fn without_svm() -> Machine {
        let qemu = ["-global", "max-x86_64-cpu.svm=off"].map(OsString::from).to_vec();
        Machine { qemu, ..Machine::new() }
    }

    /// The folder that the guest sees as [`SHARED`].
    pub fn shared(&self) -> &Path {
        self.shared.path()
    }

    /// Boots, runs a script as root, and returns its steps. In the script, `step NAME COMMAND...`
    /// runs a command on this machine's files in the repository's folder, and `/modules` has the
    /// modules of KVM.
    pub fn run(&self, kernel: &Kernel, script: &str, within: Duration) -> BTreeMap<String, Step> {
        fs::write(self.shared().join("script"), script).unwrap();
        let dir = tempfile::tempdir().unwrap();
        let cache = Cache::open(true).unwrap();
        let busybox = busybox::provision(&cache, Arch::X86_64, &mut |_| ()).unwrap();
        let spec = self.spec(kernel, dir.path());
        let root = Root::Busybox { busybox, modules: kernel.modules.clone() };
        let shell = Shell { spec: &spec, root, gdb: false };
        let session = Session::Command { line: &prelude(), within };
        let end = shell.run(&session, &mut |_| (), &|| false);
        let log = fs::read_to_string(self.shared().join("log")).unwrap_or_default();
        let steps = self.steps();
        match end {
            Ok(End::Exited(0)) => steps,
            Ok(end) => panic!("{end:?}\n{log}\n{steps:#?}"),
            Err(error) => panic!("{error}\n{:#?}\n{log}\n{steps:#?}", error.console_tail),
        }
    }

    fn spec(&self, kernel: &Kernel, dir: &Path) -> Spec {
        let mut arguments = self.qemu.clone();
        for (tag, path, options) in [
            ("root", Path::new("/"), "readonly=on,multidevs=remap"),
            ("out", self.shared(), "multidevs=remap"),
        ] {
            let path = path.display();
            let share = format!("local,mount_tag={tag},path={path},security_model=none,{options}");
            arguments.extend(["-virtfs".into(), share.into()]);
        }
        Spec {
            qemu: QemuProgram { program: qemu(), arguments, environment: vec![] },
            arch: Arch::X86_64,
            accel: Accel::Tcg,
            clock: Clock::Free,
            kernel: kernel.image.clone(),
            initrd: "none".into(),
            virtme: None,
            cpus: 2,
            memory_mib: MEMORY_MIB,
            append: vec!["quiet".to_owned()],
            plugin: None,
            snapshots: None,
            lbr: None,
            cpu: None,
            allow: vec![],
            dir: dir.to_owned(),
            deadlines: Deadlines::default(),
        }
    }

    fn steps(&self) -> BTreeMap<String, Step> {
        let mut steps = BTreeMap::new();
        for entry in fs::read_dir(self.shared().join("steps")).into_iter().flatten() {
            let dir = entry.unwrap();
            let read = |name: &str| {
                let bytes = fs::read(dir.path().join(name)).unwrap_or_default();
                String::from_utf8_lossy(&bytes).into_owned()
            };
            let step = Step {
                code: read("code").trim().parse().ok(),
                out: read("stdout"),
                err: read("stderr"),
            };
            steps.insert(dir.file_name().into_string().unwrap(), step);
        }
        steps
    }
}

fn qemu() -> PathBuf {
    env::var_os("TRAMPLAB_QEMU_X86_64").expect("run `cargo xtask test`").into()
}

/// Mounts everything and runs the script.
fn prelude() -> String {
    let repository = Path::new(env!("CARGO_MANIFEST_DIR")).ancestors().nth(2).unwrap();
    // Cargo finds its toolchain by these, and `cargo xtask test` its files.
    let is_kept = |name: &OsStr| {
        let name = name.to_string_lossy();
        ["PATH", "HOME", "RUSTUP_HOME", "RUSTUP_TOOLCHAIN", "CARGO", "CARGO_HOME"].contains(&&*name)
            || name.starts_with("TRAMPLAB_")
    };
    let variables = env::vars_os().filter(|(name, _)| is_kept(name)).map(|(name, value)| {
        let both = format!("{}={}", name.to_str().unwrap(), value.to_str().unwrap());
        shell_words::quote(&both).into_owned()
    });
    let variables: Vec<String> = variables.collect();
    let mount = "mount -t 9p -o trans=virtio,version=9p2000.L,msize=524288";
    format!(
        "set -e\n\
         mkdir /low /changes /whole {SHARED}\n\
         {mount},ro,cache=loose root /low\n\
         {mount} out {SHARED}\n\
         exec > {SHARED}/log 2>&1\n\
         mount -t tmpfs -o size=3g tmpfs /changes\n\
         mkdir /changes/upper /changes/work {SHARED}/steps\n\
         mount -t overlay -o lowerdir=/low,upperdir=/changes/upper,workdir=/changes/work \
         overlay /whole\n\
         mkdir -p /whole{SHARED}\n\
         for folder in /proc /sys /dev {SHARED}; do mount --rbind $folder /whole$folder; done\n\
         ln -s /proc/self/fd /dev/fd\n\
         mkdir -p /whole/dev/shm /whole/dev/pts\n\
         mount -t tmpfs tmpfs /whole/dev/shm; mount -t devpts devpts /whole/dev/pts\n\
         set +e\n\
         step() {{\n\
         name=$1; shift; dir={SHARED}/steps/$name; mkdir $dir /whole/tmp/$name\n\
         chmod 1777 /whole/tmp/$name\n\
         echo \"$(cut -d' ' -f1 /proc/uptime) $name\"\n\
         chroot /whole /usr/bin/env -i -C {repository} {variables} TMPDIR=/tmp/$name \"$@\" \
         </dev/null >$dir/stdout 2>$dir/stderr\n\
         echo $? >$dir/code\n\
         }}\n\
         . {SHARED}/script\n\
         echo \"$(cut -d' ' -f1 /proc/uptime) end\"\n\
         exit 0\n",
        repository = shell_words::quote(repository.to_str().unwrap()),
        variables = variables.join(" "),
    )
}
