// SPDX-License-Identifier: MIT OR Apache-2.0
//! `cargo xtask shell`: a guest to look around in.

use super::{
    exit,
    progress::Progress,
    values::{ACCELS, BACKENDS, one_of},
};
use clap::value_parser;
use std::{
    io::{self, IsTerminal},
    path::{Path, PathBuf},
    process::Command,
    time::Duration,
};
use tramplab_analysis::branch::Model;
use tramplab_host::{Cache, Purpose, Qemu, busybox, lbr, runs::RunDir};
use tramplab_kernel::Image;
use tramplab_lab::{
    Event, Tell,
    artifacts::{self, Artifacts},
    backend::{self, Programs},
    cpus,
    error::{Context, Error, Result},
    interrupt::Interrupt,
    kernels::{Prepared, Preparing, SeriesOptions, WantedKernels},
    measure::suite_file,
    scratch::Scratch,
    setup,
};
use tramplab_model::called::called;
use tramplab_model::cpu::Named;
use tramplab_model::run::{Accel, Arch, Backend, Outcome, Run, Test, with_words};
use tramplab_protocol::{
    message::DELIVER,
    switches::{self, CGROUP_PROGRAM, Switches},
    trace,
};
use tramplab_suite as suite;
use tramplab_suite::{Plan, PlannedCell};
use tramplab_vm::{
    Features, Root, Spec, WITH_HOST_FILES,
    accel::{self, NoAnswer},
    branches,
    shell::{End, Session, Shell},
};

#[derive(clap::Args)]
pub struct Args {
    /// Boot this kernel: as for vm-test
    #[arg(long, value_name = "KERNEL", default_value = "7.2")]
    kernel: String,
    /// Boot a guest of this architecture, x86_64 or arm64 [default: this machine's]
    #[arg(long, value_name = "ARCH")]
    arch: Option<Arch>,
    /// Give the guest a busybox, or with virtme-ng this machine's files, read-only [default: qemu;
    /// with --deliver-records virtme-ng]
    #[arg(long, value_parser = one_of(BACKENDS))]
    vm: Option<Backend>,
    /// Run the guest under KVM or TCG; `auto` takes KVM if a guest has answered under it
    #[arg(long, value_parser = one_of(ACCELS), default_value = "auto")]
    accel: accel::Request,
    /// Give the guest this many CPUs
    #[arg(
        long,
        value_name = "NUMBER",
        default_value_t = 1,
        value_parser = value_parser!(u32).range(1..)
    )]
    cpus: u32,
    /// Give the guest this CPU under TCG: QEMU's `-cpu`
    #[arg(long, value_name = "CPU")]
    cpu: Option<String>,
    /// Boot under TCG as this CPU, with its mitigations: zen4, a file, or another of configs/cpus/
    #[arg(long, value_name = "CPU", conflicts_with_all = ["cpu", "deliver_records"])]
    model: Option<String>,
    /// Give the guest the CPU's own branch records if it can have them; `emulated` plays those of
    /// --model, which the kernel's own driver then reads
    #[arg(long, value_parser = one_of(BRANCHES), value_name = "WHOSE", default_value = "auto")]
    branches: branches::Request,
    /// Give the guest this much memory
    #[arg(
        long,
        value_name = "MIB",
        default_value_t = 1024,
        value_parser = value_parser!(u32).range(128..)
    )]
    memory: u32,
    /// Append a word to the kernel's command line; repeatable
    #[arg(long, value_name = "WORD", allow_hyphen_values = true)]
    append: Vec<String>,
    /// Wait for gdb before the kernel's first instruction, and print how to connect
    #[arg(long)]
    gdb: bool,
    /// While the command runs, give BPF programs in the guest the branch records of a modelled CPU,
    /// under TCG
    #[arg(long, conflicts_with = "gdb")]
    deliver_records: bool,
    /// Stop the command after this many seconds, boot included
    #[arg(
        long,
        value_name = "SECONDS",
        default_value_t = 600,
        value_parser = value_parser!(u64).range(1..=LONGEST)
    )]
    timeout: u64,
    /// Install what is missing, or print the install commands; then boot
    #[arg(long)]
    setup: bool,
    /// Run this command in the guest with an empty stdin and return its exit code; a single word is
    /// a line for the shell
    #[arg(last = true, value_name = "COMMAND")]
    command: Vec<String>,
}

const BRANCHES: &[(&str, branches::Request)] =
    &[("auto", branches::Request::Auto), ("emulated", branches::Request::Emulated)];

/// The exit code of a program that SIGPIPE ended, by convention.
const BROKEN_PIPE: u8 = 141;

/// A year: a clock may not have as many seconds as a number.
const LONGEST: u64 = 365 * 24 * 60 * 60;

pub fn shell(args: &Args) -> Result<u8> {
    let backend = args.backend()?;
    args.check_words()?;
    let model = args.model()?;
    let played = args.played(model.as_ref())?;
    let line = line(args)?;
    let cache = Cache::open(true)?;
    let progress = Progress::new();
    let interrupt = Interrupt::watch()?;
    let image = image(args, backend, &cache, &progress, &interrupt)?;
    if let Some(model) = model.as_ref().filter(|model| model.cpu.arch != image.arch) {
        let (name, of) = (&model.name, model.cpu.arch);
        return Err(Error::Usage(format!("--model {name} is a CPU of {of}; add --arch {of}")));
    }
    let qemu =
        Qemu::provision(&cache, image.arch, args.purpose(), &mut |step| progress.step(step))?;
    let tell = |event: Event| progress.show(event);
    let (line, delivery) = match line {
        Some(line) if args.deliver_records => {
            let (line, delivery) = Delivery::new(&cache, &qemu, image.arch, &line, &tell)?;
            (Some(line), Some(delivery))
        }
        line => (line, None),
    };
    let with_busybox = || -> Result<Root> {
        let busybox = busybox::provision(&cache, image.arch, &mut |step| progress.step(step))?;
        Ok(Root::Busybox { busybox, modules: image.modules.clone() })
    };
    let features = Features::of(backend);
    let bytes: usize = line.iter().chain(&args.append).map(String::len).sum();
    if let Some(most) = features.longest_line.filter(|&most| bytes > most) {
        return Err(Error::Usage(format!(
            "the command and its options have {bytes} bytes, and a guest of {} gets at most \
             {most}: put the command into a script",
            backend.name()
        )));
    }
    let missing = image.not_built_in(features.built_in).join(", ");
    if !missing.is_empty() {
        let root = features.root;
        return Err(Error::Usage(format!("{root}, and this kernel has not built in {missing}")));
    }
    let programs = Programs::find(backend, &cache)?;
    let root = programs.as_ref().and_then(Programs::root).map_or_else(with_busybox, Ok)?;
    let mut spec = Spec {
        cpus: args.cpus,
        memory_mib: args.memory,
        append: args.words(model.as_ref()),
        cpu: model.as_ref().map(|model| model.cpu.qemu.cpu.clone()).or(args.cpu.clone()),
        ..Spec::new(qemu.program.clone(), image.arch, &image.image, "none")
    };
    if let Some(delivery) = &delivery {
        spec.plugin = Some(delivery.plugin.clone());
        spec.dir = delivery.traces.path().to_owned();
    }
    // The plugin keeps the registers there.
    let registers = played.as_ref().map(|_| Scratch::new()).transpose()?;
    if let (Some(registers), Some(played), Some(model)) = (&registers, played, &model) {
        let limits = match model.cpu.arch {
            Arch::X86_64 => "the PMU counts no cycles and takes no samples",
            Arch::Arm64 => "events sample them, and BPF programs get none",
        };
        progress.show(Event::Line(&format!(
            "emulated branch records of {} ({played}), if the kernel has a driver for this CPU: \
             {limits}",
            model.name
        )));
        spec.plugin = Some(artifacts::provide(&cache, &[image.arch], &tell)?.plugin);
        spec.dir = registers.path().to_owned();
        spec.played = Some(played);
    }
    let nowhere = Path::new("none");
    let probe = || {
        accel::tried()?;
        progress.step("trying KVM with a guest");
        let spec = accel::probe(&qemu.program, image.arch, &image.image, nowhere, nowhere);
        // QEMU alone, whatever starts the guest that was asked for.
        let root = with_busybox().map_err(|error| NoAnswer::Undecided(error.told()))?;
        let shell = Shell { spec: &spec, root, gdb: false };
        let session = Session::Command { line: "true", within: spec.deadlines.boot };
        match shell.run(&session, &mut |_| (), &|| interrupt.came()) {
            Ok(End::Exited(0)) => Ok(()),
            Ok(End::Exited(code)) => Err(NoAnswer::Failed(format!("`true` ended with {code}"))),
            Ok(End::Stopped | End::Unread) => {
                Err(NoAnswer::Undecided("it was interrupted".to_owned()))
            }
            Err(error) => Err(error.into()),
        }
    };
    let foreign = Arch::host() != Some(image.arch);
    let memory = accel::memory(&cache);
    let circumstances = accel::Circumstances::of(&qemu.program);
    let choice = accel::choose(args.accel(), foreign, &memory, &circumstances, probe);
    if interrupt.came() {
        return Err(Error::Interrupted);
    }
    let choice = choice?;
    if let Some(reason) = &choice.fallback {
        progress.show(Event::Line(&accel::fallback_line(reason)));
    }
    spec.accel = choice.accel;
    if spec.accel == Accel::Kvm {
        spec.lbr = lbr::decide(&lbr::Facts::gather(None), spec.arch).ok();
    }
    if args.gdb {
        // A debugger knows symbols where they were linked to be.
        spec.append.insert(0, "nokaslr".to_owned());
    }
    drop(progress);
    let shell = Shell { spec: &spec, root, gdb: args.gdb };
    let session = match &line {
        None => Session::Terminal,
        Some(line) => Session::Command { line, within: Duration::from_secs(args.timeout) },
    };
    let mut tell = |socket: &Path| eprintln!("{}", gdb_line(&image, socket));
    match shell.run(&session, &mut tell, &|| interrupt.came()) {
        Ok(End::Exited(code)) => {
            if let Some(delivery) = &delivery {
                delivery.check(code)?;
            }
            Ok(code)
        }
        Ok(End::Unread) => Ok(BROKEN_PIPE),
        Ok(End::Stopped) => Err(Error::Interrupted),
        Err(error) => {
            error.console_tail.iter().for_each(|line| eprintln!("{line}"));
            Err(error.into())
        }
    }
}

impl Args {
    fn emulates(&self) -> bool {
        self.branches == branches::Request::Emulated
    }

    /// The CPU as which the guest boots, if one is named.
    fn model(&self) -> Result<Option<Named>> {
        let model = self.model.as_deref().map(cpus::load).transpose()?;
        if model.is_some() && self.accel == accel::Request::Only(Accel::Kvm) {
            return Err(Error::usage(
                "--model needs TCG: a guest under KVM has this machine's CPU; remove --accel kvm",
            ));
        }
        Ok(model)
    }

    /// The branch records that the plugin plays, if it is to play some.
    fn played(&self, model: Option<&Named>) -> Result<Option<String>> {
        if !self.emulates() {
            return Ok(None);
        }
        let model = model.ok_or_else(cpus::none_to_play)?;
        match model.recordless() {
            Some(why) => Err(Error::Usage(format!("--branches emulated: {why}"))),
            None => Ok(model.cpu.branches.played()),
        }
    }

    /// Words for the guest's command line. A CPU's own come first: the user's replace them.
    fn words(&self, model: Option<&Named>) -> Vec<String> {
        let of_model = model.map_or(&[][..], |model| &model.cpu.mitigations.append);
        with_words(of_model, &self.append)
    }

    /// How the guest boots. Rejects options that exclude branch records in the guest.
    fn backend(&self) -> Result<Backend> {
        if !self.deliver_records {
            return Ok(self.vm.unwrap_or(Backend::Qemu));
        }
        if self.command.is_empty() {
            return Err(Error::Usage(format!(
                "--deliver-records needs a command: `{} shell --deliver-records -- retsnoop …`",
                called()
            )));
        }
        if self.vm.is_some_and(|vm| !Features::of(vm).has_host_files) {
            let message = "--deliver-records needs this machine's files in the guest: remove --vm \
                           qemu, whose guest has only a busybox";
            return Err(Error::usage(message));
        }
        if self.accel == accel::Request::Only(Accel::Kvm) {
            let message = "--deliver-records needs TCG, whose plugin makes the records: remove \
                           --accel kvm";
            return Err(Error::usage(message));
        }
        Ok(self.vm.unwrap_or(WITH_HOST_FILES))
    }

    /// Rejects words that only guests with an agent obey, and for branch records those with which
    /// there are none.
    fn check_words(&self) -> Result<()> {
        let line = self.append.join(" ");
        let why = if Switches::of(&line).cgroup_program {
            Some(format!("`{CGROUP_PROGRAM}=1` is for the agent, and a shell's guest has none"))
        } else {
            switches::objection(&self.append).filter(|_| self.deliver_records)
        };
        why.map_or(Ok(()), |why| Err(Error::Usage(format!("--append: {why}"))))
    }

    fn accel(&self) -> accel::Request {
        match self.deliver_records || self.model.is_some() {
            true => accel::Request::Only(Accel::Tcg),
            false => self.accel,
        }
    }

    fn purpose(&self) -> Purpose {
        match self.deliver_records {
            true => Purpose::Delivering,
            false if self.emulates() => Purpose::Emulating,
            false => Purpose::Measuring,
        }
    }
}

/// Branch records for the command's guest.
struct Delivery {
    plugin: PathBuf,
    /// The folder of the plugin's trace.
    traces: Scratch,
}

impl Delivery {
    /// Also returns the line that runs the command under the agent, which tells the plugin when it
    /// begins and ends.
    fn new(
        cache: &Cache,
        qemu: &Qemu,
        arch: Arch,
        line: &str,
        tell: Tell,
    ) -> Result<(String, Delivery)> {
        if let Some(reason) = qemu.undeliverable() {
            return Err(Error::Usage(format!("--deliver-records needs another QEMU: {reason}")));
        }
        let Artifacts { plugin, agents } = artifacts::provide(cache, &[arch], tell)?;
        let agent = agents[&arch].display().to_string();
        let filters = Model::choose(None, arch).deliverable().to_string();
        let words = [&*agent, DELIVER, &*filters, "/bin/sh", "-c", line];
        Ok((shell_words::join(words), Delivery { plugin, traces: Scratch::new()? }))
    }

    /// The plugin writes its trace when the agent has seen the command's end, unless it had to stop
    /// recording. After exit code 2 or 3 the agent may not have begun.
    fn check(&self, code: u8) -> Result<()> {
        let trace = |number| trace::file_name(self.traces.path(), number).is_file();
        // A second one: a program of the guest stopped the recording, and began another.
        if trace(0) && !trace(1) || code == 2 || code == 3 {
            return Ok(());
        }
        Err(Error::failed(format!(
            "the plugin did not record until the command's end, which was with code {code}: the \
             branch records that it handed over may have holes"
        )))
    }
}

/// The command for the guest's shell; `None`: the terminal.
fn line(args: &Args) -> Result<Option<String>> {
    match &args.command[..] {
        [] if !io::stdin().is_terminal() => Err(Error::Usage(format!(
            "shell needs a terminal on stdin, or a command: `{} shell -- uname -a`",
            called()
        ))),
        [] => Ok(None),
        [line] => Ok(Some(line.clone())),
        words => Ok(Some(shell_words::join(words))),
    }
}

fn image(
    args: &Args,
    backend: Backend,
    cache: &Cache,
    progress: &Progress,
    interrupt: &Interrupt,
) -> Result<Image> {
    // Build the kernel as for this suite, so that it is cached if the suite has run.
    let mut suite = suite::load(&suite_file("quick")?, &|_| None)?;
    suite.models.clear();
    let arches: Vec<Arch> = args.arch.into_iter().collect();
    let kernels = std::slice::from_ref(&args.kernel);
    let series = SeriesOptions::default();
    let wanted = WantedKernels::new(kernels, &arches, &series, &[], &suite)?;
    backend::check(backend, &wanted.arches())?;
    if args.setup {
        let wanted = setup::Prerequisites { backend, ..wanted.of_the_host(args.purpose()) };
        setup::setup(cache, &wanted, &mut |step| progress.step(step))?;
    }
    let logs = Scratch::new()?;
    let preparing = Preparing {
        suite: &suite,
        each_patch: false,
        placebos: 0,
        unconfined: false,
        lines: false,
        backend,
        cache,
        run_dir: &RunDir::new(logs.path()),
        tell: &|event: Event| progress.show(event),
        interrupt,
    };
    let Prepared { mut kernels, .. } = preparing.prepare(&wanted)?;
    let ready = kernels.remove(0);
    match (ready.image, ready.build.map(|build| build.outcome)) {
        (Some(image), _) => Ok(image),
        (None, Some(Outcome::Error { message, .. })) => {
            Err(Error::failed(format!("the kernel {} does not build: {message}", args.kernel)))
        }
        (None, _) => Err(Error::failed(format!("the kernel {} does not build", args.kernel))),
    }
}

/// The command that connects gdb, for another terminal.
fn gdb_line(image: &Image, socket: &Path) -> String {
    let (vmlinux, note) = match &image.vmlinux {
        Some(path) => (path.display().to_string(), ""),
        None => (
            "vmlinux".to_owned(),
            "  # this kernel's, with debug information; its manifest names none\n",
        ),
    };
    let connect = format!("target remote {}", socket.display());
    format!("{note}gdb {} -ex '{connect}'", shell_words::quote(&vmlinux))
}

/// Prints how to boot the guests of failed cells again with a shell; with `keep`, boots the first.
/// The cell's own guest is gone: it runs only the agent, which has no shell.
pub fn look_into(run: &Run, run_dir: &RunDir, keep: bool) -> Result<()> {
    let plan = Plan::load(&Plan::path(run_dir.path()));
    let Ok(plan) = plan else { return Ok(()) };
    let is_bad =
        |outcome: &Outcome| matches!(outcome, Outcome::Fail { .. } | Outcome::Error { .. });
    let bad = run.cells.iter().filter(|cell| cell.id.test != Test::Build && is_bad(&cell.outcome));
    let mut lines: Vec<(&str, Vec<String>)> = Vec::new();
    for cell in bad {
        let is_it = |planned: &&PlannedCell| planned.id() == cell.id;
        let planned = plan.cells().find(is_it).filter(|cell| cell.backend != Backend::None);
        let Some(planned) = planned else { continue };
        let mut words = vec!["--kernel".to_owned(), planned.kernel_image.display().to_string()];
        words.extend(
            ["--arch", planned.arch.name(), "--vm", planned.backend.name()].map(str::to_owned),
        );
        words.extend(["--accel", planned.accel.name()].map(str::to_owned));
        let (cpus, memory) = (planned.cpus.to_string(), planned.memory_mib.to_string());
        words.extend(["--cpus".to_owned(), cpus, "--memory".to_owned(), memory]);
        words.extend(planned.cpu.iter().map(|cpu| format!("--cpu={cpu}")));
        let append = planned.append.iter().filter(|word| !word.starts_with(CGROUP_PROGRAM));
        words.extend(append.map(|word| format!("--append={word}")));
        if !lines.iter().any(|(_, known)| *known == words) {
            lines.push((&cell.id.kernel, words));
        }
    }
    for (kernel, words) in &lines {
        let words = shell_words::join(words);
        eprintln!("to look into the guest of {kernel}: {} shell {words}", called());
    }
    if let (true, Some((_, words))) = (keep, lines.first()) {
        let own = std::env::current_exe().context("failed to find this program")?;
        let status = Command::new(own)
            .arg("shell")
            .args(words)
            .status()
            .context("failed to start a shell")?;
        if status.code() == Some(i32::from(exit::INTERRUPTED)) {
            return Err(Error::Interrupted);
        }
    }
    Ok(())
}
