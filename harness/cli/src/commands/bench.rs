// SPDX-License-Identifier: MIT OR Apache-2.0
//! `cargo xtask bench`: the cost of tramplab itself, all variants interleaved in one run.

use super::{exit, output::print, progress::Progress};
use nix::{time::clock_getcpuclockid, unistd::Pid};
use std::{
    io,
    num::NonZeroU32,
    path::{Path, PathBuf},
    time::{Duration, Instant},
};
use tramplab_analysis::spread::Spread;
use tramplab_host::{Cache, Purpose, Qemu, busybox};
use tramplab_kernel::{self as kernel, Image};
use tramplab_lab::{
    artifacts,
    backend::Programs,
    error::{Context, Error, Result},
    guest_root::initramfs,
    kernels,
    scratch::Scratch,
};
use tramplab_model::run::Arch;
use tramplab_protocol::{
    BesideSet, Functions, Mechanism,
    message::{AttachRequest, Command, Explain, ExplainRequest, LbrWasteRequest, Response},
};
use tramplab_vm::{Root, Snapshots, Spec, Vm, WITH_HOST_FILES, yardstick};

/// Triggers of the armed and of the idle workload.
const HITS: u32 = 2_000_000;
const LIMIT: Duration = Duration::from_secs(120);
const ROUNDS: u32 = 7;
/// Functions that the profiled workload and the idle one attach to by one link.
const FUNCTIONS: NonZeroU32 = NonZeroU32::new(1000).unwrap();

#[derive(clap::Args)]
pub struct Args {
    #[arg(long, value_name = "KERNEL", default_value = "6.12")]
    kernel: String,
    /// The guests' architecture [default: this machine's]
    #[arg(long, value_name = "ARCH")]
    arch: Option<Arch>,
}

/// The guests of the bench.
struct Guests<'a> {
    qemu: &'a Qemu,
    image: &'a Image,
    initrd: &'a Path,
}

impl Guests<'_> {
    fn machine(&self, plugin: Option<&Path>) -> Result<(Spec, Scratch)> {
        let dir = Scratch::new()?;
        let Guests { qemu, image, initrd } = self;
        let spec = Spec {
            initrd: initrd.to_path_buf(),
            plugin: plugin.map(PathBuf::from),
            ..Spec::new(qemu.program.clone(), image.arch, &image.image, dir.path())
        };
        Ok((spec, dir))
    }

    fn boot(&self, plugin: Option<&Path>) -> Result<(Vm, Scratch)> {
        let (spec, dir) = self.machine(plugin)?;
        Ok((Vm::boot(&spec)?, dir))
    }

    /// From the start of a guest to its end, with one request.
    fn whole(&self, plugin: &Path, snapshots: Option<&Snapshots>) -> Result<Duration> {
        let (spec, _dir) = self.machine(Some(plugin))?;
        let started = Instant::now();
        let mut vm = match snapshots {
            None => Vm::boot(&spec)?,
            Some(snapshots) => {
                let (vm, _) = Vm::start(&Spec { snapshots: Some(snapshots.clone()), ..spec })?;
                if !vm.restored() {
                    return Err(Error::failed(
                        "the guest was not restored, as the bench is to measure",
                    ));
                }
                vm
            }
        };
        vm.request(Command::Release, LIMIT)??;
        vm.power_off(LIMIT)?;
        Ok(started.elapsed())
    }
}

/// Times of each variant, in the order of the rounds.
#[derive(Default)]
struct Times {
    floor: Vec<Duration>,
    cold: Vec<Duration>,
    restored: Vec<Duration>,
    other: Vec<Duration>,
    plain: Vec<Duration>,
    idle: Vec<Duration>,
    idle_work: Vec<Duration>,
    armed_work: Vec<Duration>,
    idle_rounds: Vec<Duration>,
    profiled_rounds: Vec<Duration>,
}

pub fn bench(args: &Args) -> Result<u8> {
    let progress = Progress::new();
    let cache = Cache::open(true)?;
    let arches: Vec<Arch> = args.arch.into_iter().collect();
    let manifest = kernels::find(&args.kernel, &arches)?.remove(0);
    let qemu = Qemu::find(&cache, manifest.arch, Purpose::Measuring)?;
    let image = kernel::fetch(&manifest, &cache, &mut |step| progress.step(step))?;
    let built = artifacts::provide(&cache, &[image.arch], &|event| progress.show(event))?;
    let initrd = initramfs(&cache, &built.agents[&image.arch], &image)?;
    let busybox = busybox::provision(&cache, image.arch, &mut |step| progress.step(step))?;
    let busybox = Root::Busybox { busybox, modules: Vec::new() };
    let other = match Arch::host() == Some(image.arch) {
        true => Programs::find(WITH_HOST_FILES, &cache).ok().flatten(),
        false => None,
    };
    let guests = Guests { qemu: &qemu, image: &image, initrd: &initrd };
    // An uncounted first guest keeps the snapshot.
    let kept = Scratch::new()?;
    let snapshots = Snapshots { cache: kept.path().to_owned(), contents: "this bench".to_owned() };
    guests
        .whole(&built.plugin, Some(&snapshots))
        .or_else(|_| guests.whole(&built.plugin, Some(&snapshots)))?;
    let mut times = Times::default();
    for round in 1..=ROUNDS {
        progress.step(&format!("round {round} of {ROUNDS}"));
        times.round(&guests, &built.plugin, &snapshots, &busybox, other.as_ref())?;
    }
    drop(progress);
    let text = format!(
        "kernel {} on {}, {}, {ROUNDS} rounds, interleaved; milliseconds\n\n{}",
        args.kernel,
        image.arch,
        qemu.version,
        times.table(other.as_ref())
    );
    print(text.as_bytes())?;
    Ok(exit::PASS)
}

impl Times {
    fn round(
        &mut self,
        guests: &Guests,
        plugin: &Path,
        snapshots: &Snapshots,
        busybox: &Root,
        other: Option<&Programs>,
    ) -> Result<()> {
        let (spec, _dir) = guests.machine(None)?;
        self.floor.push(yardstick::time(&spec, busybox, LIMIT).context("the bare guest")?);
        self.cold.push(guests.whole(plugin, None)?);
        self.restored.push(guests.whole(plugin, Some(snapshots))?);
        if let Some(root) = other.and_then(Programs::root) {
            let time = yardstick::time(&spec, &root, LIMIT);
            self.other.push(time.with_context(|| format!("{}'s guest", WITH_HOST_FILES.name()))?);
        }
        let (vm, _dir) = guests.boot(None)?;
        self.plain.push(vm.boot_time());
        drop(vm);
        let (mut vm, _dir) = guests.boot(Some(plugin))?;
        self.idle.push(vm.boot_time());
        // The same number of triggers, armed and idle, minus a measurement without any. The first
        // measurement is discarded: it translates the code.
        work(&mut vm, 1, 1)?;
        let rest = work(&mut vm, 1, 1)?;
        self.idle_work.push(work(&mut vm, 1, HITS)?.saturating_sub(rest));
        self.armed_work.push(work(&mut vm, HITS, 1)?.saturating_sub(rest));
        // The first round is discarded as well.
        attach(&mut vm, false)?;
        self.idle_rounds.push(attach(&mut vm, false)?);
        self.profiled_rounds.push(attach(&mut vm, true)?);
        Ok(())
    }

    fn table(&self, other: Option<&Programs>) -> String {
        let mut table =
            format!("{:<34}{:>9}{:>9}{:>9}{:>8}\n", "", "median", "min", "max", "ratio");
        let mut row = |name: &str, times: &[Duration], against: Option<&[Duration]>| {
            table += &row(name, times, against);
        };
        row("bare QEMU, to its end", &self.floor, None);
        row("a guest, a request, its end: cold", &self.cold, Some(&self.floor));
        row("the same, restored", &self.restored, Some(&self.floor));
        if let Some(version) = other.and_then(Programs::version) {
            let name = WITH_HOST_FILES.name();
            row(&format!("{name} {version}, `true`"), &self.other, Some(&self.floor));
            row(&format!("restored, against {name}"), &self.restored, Some(&self.other));
        }
        row("boot, no plugin", &self.plain, None);
        row("boot, plugin idle", &self.idle, Some(&self.plain));
        row(&format!("{HITS} fentry triggers, idle, CPU"), &self.idle_work, None);
        row(
            &format!("{HITS} fentry triggers, armed, CPU"),
            &self.armed_work,
            Some(&self.idle_work),
        );
        row(&format!("kprobe.multi of {FUNCTIONS}, idle"), &self.idle_rounds, None);
        let profiled = format!("kprobe.multi of {FUNCTIONS}, profiled");
        row(&profiled, &self.profiled_rounds, Some(&self.idle_rounds));
        table
    }
}

/// CPU time of QEMU, which a busy host disturbs less than wall time.
fn work(vm: &mut Vm, hits: u32, warmup: u32) -> Result<Duration> {
    let clock =
        clock_getcpuclockid(Pid::from_raw(vm.process_id() as i32)).map_err(io::Error::from)?;
    let started = Duration::from(clock.now().map_err(io::Error::from)?);
    let request = LbrWasteRequest {
        mechanism: Mechanism::Fentry,
        program: None,
        function: None,
        command: None,
        hits,
        warmup,
        deliver: None,
        events: Vec::new(),
    };
    match vm.request(Command::LbrWaste(request), Duration::from_secs(300))?? {
        Response::LbrWaste(_) => {
            Ok(Duration::from(clock.now().map_err(io::Error::from)?).saturating_sub(started))
        }
        other => Err(Error::failed(format!("the guest's answer does not fit: {other:?}"))),
    }
}

/// A round of attaching and detaching, by the guest's clock, which is the host's.
fn attach(vm: &mut Vm, profiled: bool) -> Result<Duration> {
    let attach = AttachRequest {
        mechanism: Mechanism::KprobeMulti,
        program: None,
        functions: Functions::Count(FUNCTIONS),
        among: Vec::new(),
        binary: None,
        beside: BesideSet::default(),
        rounds: 1,
        seed: 0,
        seconds: None,
    };
    let command = match profiled {
        true => {
            Command::Explain(ExplainRequest { attach, how: Explain::Exact, system_calls: false })
        }
        false => Command::Attach(attach),
    };
    let nanoseconds = match vm.request(command, Duration::from_secs(300))?? {
        Response::Attach(reply) => {
            reply.rounds.iter().map(|round| round.attach_ns + round.detach_ns).sum()
        }
        Response::Explain(reply) => reply.attach.wall_ns + reply.detach.wall_ns,
        other => return Err(Error::failed(format!("the guest's answer does not fit: {other:?}"))),
    };
    Ok(Duration::from_nanos(nanoseconds))
}

/// In milliseconds.
fn spread(times: &[Duration]) -> Spread {
    Spread::of(times.iter().map(|time| time.as_secs_f64() * 1e3)).expect("there is a round")
}

/// `against` is what the median is a multiple of.
fn row(name: &str, times: &[Duration], against: Option<&[Duration]>) -> String {
    let Spread { median, min, max, .. } = spread(times);
    let ratio =
        against.map_or_else(String::new, |base| format!("{:.3}", median / spread(base).median));
    format!("{name:<34}{median:>9.0}{min:>9.0}{max:>9.0}{ratio:>8}\n")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rows_have_the_median_and_its_ratio_to_another() {
        let times = |all: [u64; 3]| all.map(Duration::from_millis);
        let (bare, cold) = (times([200, 100, 400]), times([250, 300, 200]));
        let words = |row: String| row.split_whitespace().map(str::to_owned).collect::<Vec<_>>();
        assert_eq!(words(row("bare", &bare, None)), ["bare", "200", "100", "400"]);
        assert_eq!(words(row("cold", &cold, Some(&bare))), ["cold", "250", "200", "300", "1.250"]);
    }
}
