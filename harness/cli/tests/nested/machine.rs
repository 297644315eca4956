// SPDX-License-Identifier: MIT OR Apache-2.0
//! The outer guest: a machine with AMD's virtualization or with arm64's EL2, emulated by TCG. Its
//! root is read-only by 9p below an overlay in memory: its changes are gone with it. On x86-64 it
//! is this machine's, so it has the program, the caches and QEMU.

use super::kernel::Kernel;
use crate::{command::repository, machine};
use std::{
    collections::BTreeMap,
    env,
    ffi::OsString,
    fs,
    path::{Path, PathBuf},
    time::Duration,
};
use tempfile::TempDir;
use tramplab_host::{Cache, QemuProgram, busybox, config};
use tramplab_model::{cpu::Cpu, run::Arch};
use tramplab_vm::{
    Root, Spec,
    shell::{End, Session, Shell},
};

/// The outer guest and two inner ones of 1 GiB, beside the overlay.
const MEMORY_MIB: u32 = 5 * 1024;
/// In the outer guest: the folder that this machine reads afterwards.
pub const SHARED: &str = "/out";

pub struct Machine {
    shared: TempDir,
    /// On this machine.
    root: PathBuf,
    /// The folder of the script's commands, and their environment.
    here: PathBuf,
    variables: Vec<(String, String)>,
    /// Come first on QEMU's command line.
    qemu: Vec<&'static str>,
    /// The CPU whose branch records the plugin plays.
    played: Option<&'static str>,
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
    pub fn x86() -> Machine {
        let repository = repository();
        // Cargo finds its toolchain by these, and `cargo xtask test` its files.
        let is_kept = |name: &str| {
            ["PATH", "HOME", "CARGO", "CLIPPY_ARGS"].contains(&name)
                || ["RUSTUP_", "CARGO_HOME", "RUSTC_", "TRAMPLAB_"]
                    .iter()
                    .any(|start| name.starts_with(start))
        };
        Machine {
            shared: tempfile::tempdir().unwrap(),
            root: "/".into(),
            here: repository.to_owned(),
            variables: env::vars_os()
                .filter_map(|(name, value)| Some((name.into_string().ok()?, value)))
                .filter(|(name, _)| is_kept(name))
                .map(|(name, value)| (name, value.into_string().unwrap()))
                .collect(),
            qemu: Vec::new(),
            played: None,
        }
    }

    /// A CPU of `configs/cpus/` with its branch records.
    pub fn with_branch_records(cpu: &'static str) -> Machine {
        Machine { played: Some(cpu), ..Machine::x86() }
    }

    /// A CPU without virtualization.
    pub fn without_svm() -> Machine {
        Machine { qemu: vec!["-global", "max-x86_64-cpu.svm=off"], ..Machine::x86() }
    }

    /// `root` has a system.
    pub fn arm64(root: PathBuf) -> Machine {
        let variables = [("PATH", "/usr/sbin:/usr/bin"), ("HOME", "/root")];
        Machine {
            shared: tempfile::tempdir().unwrap(),
            root,
            here: "/root".into(),
            variables: variables.map(|(name, value)| (name.to_owned(), value.to_owned())).to_vec(),
            // QEMU adds it to the options of the machine that it gets later.
            qemu: vec!["-machine", "virtualization=on"],
            played: None,
        }
    }

    /// The folder that the guest sees as [`SHARED`].
    pub fn shared(&self) -> &Path {
        self.shared.path()
    }

    /// Boots, runs a script as root, and returns its steps. In the script, `step NAME COMMAND...`
    /// runs a command on the files of the root, and `/modules` has the modules of KVM.
    pub fn run(&self, kernel: &Kernel, script: &str, within: Duration) -> BTreeMap<String, Step> {
        fs::write(self.shared().join("script"), script).unwrap();
        let dir = tempfile::tempdir().unwrap();
        let cache = Cache::open(true).unwrap();
        let busybox = busybox::provision(&cache, kernel.arch, &mut |_| ()).unwrap();
        let spec = self.spec(kernel, dir.path());
        let root = Root::Busybox { busybox, modules: kernel.modules.clone() };
        let shell = Shell { spec: &spec, root, gdb: false };
        let session = Session::Command { line: &self.prelude(), within };
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
        let mut arguments: Vec<OsString> = self.qemu.iter().map(OsString::from).collect();
        for (tag, path, options) in [
            ("root", &*self.root, "readonly=on,multidevs=remap"),
            ("out", self.shared(), "multidevs=remap"),
        ] {
            let path = path.display();
            let share = format!("local,mount_tag={tag},path={path},security_model=none,{options}");
            arguments.extend(["-virtfs".into(), share.into()]);
        }
        let qemu = QemuProgram { program: qemu(kernel.arch), arguments, environment: vec![] };
        let spec = Spec {
            cpus: 2,
            memory_mib: MEMORY_MIB,
            append: vec!["quiet".to_owned()],
            ..Spec::new(qemu, kernel.arch, &kernel.image, dir)
        };
        let Some(name) = self.played else { return spec };
        let file = repository().join(format!("configs/cpus/{name}.yaml"));
        let cpu: Cpu = config::load(&file).unwrap();
        let playing = machine::delivering(kernel.arch, dir);
        Spec {
            qemu: QemuProgram { program: playing.qemu.program, ..spec.qemu },
            plugin: playing.plugin,
            played: cpu.branches.played(),
            cpu: Some(cpu.qemu.cpu),
            append: [spec.append, cpu.mitigations.append].concat(),
            ..spec
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

    /// Mounts everything and runs the script.
    fn prelude(&self) -> String {
        let quoted = |text: &str| shell_words::quote(text).into_owned();
        let variables = self.variables.iter();
        let variables: Vec<String> =
            variables.map(|(name, value)| quoted(&format!("{name}={value}"))).collect();
        let mount = "mount -t 9p -o trans=virtio,version=9p2000.L,msize=524288";
        format!(
            "set -e\n\
             mkdir /low /changes /whole {SHARED}\n\
             {mount},ro,cache=loose root /low\n\
             {mount},cache=readahead out {SHARED}\n\
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
             chroot /whole /usr/bin/env -i -C {here} {variables} TMPDIR=/tmp/$name \"$@\" \
             </dev/null >$dir/stdout 2>$dir/stderr\n\
             echo $? >$dir/code\n\
             }}\n\
             . {SHARED}/script\n\
             echo \"$(cut -d' ' -f1 /proc/uptime) end\"\n\
             exit 0\n",
            here = quoted(self.here.to_str().unwrap()),
            variables = variables.join(" "),
        )
    }
}

fn qemu(arch: Arch) -> PathBuf {
    env::var_os(arch.platform().qemu.variable).expect("run `cargo xtask test`").into()
}
