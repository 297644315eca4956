// SPDX-License-Identifier: MIT OR Apache-2.0
//! A guest that has booted. The kinds of test measure in it.

use super::PlannedCell;
use std::{
    fs, io,
    path::{Path, PathBuf},
    time::Duration,
};
use tramplab_analysis::branch::{Symbols, symbols};
use tramplab_model::{
    function::FunctionName,
    run::{Clock, ErrorKind},
};
use tramplab_protocol::{
    Beside, BesideSet, Functions, Mechanism, Point, counts, magic,
    message::{By, Command, GuestError, LONGEST_LOG, Others, Remark, Response, Symbol, Triggered},
    trace::{self, Trace},
};
use tramplab_vm as vm;
use tramplab_vm::{Vm, VmError};

/// Triggers before the recorded ones.
pub const WARMUP: u32 = 3;
/// Time limit of an answer that needs no wait in the guest.
pub const QUICK: Duration = Duration::from_secs(60);

/// Time limit of an answer for which the user's command is run, a dozen times, each for at most
/// three seconds of the guest. The exact clock's seconds are long.
pub const WITH_COMMAND: Duration = Duration::from_secs(900);

/// Name of the file in a cell's folder with the log about a program that was rejected.
fn log_name(by: By) -> &'static str {
    match by {
        By::Libbpf => "libbpf.log",
        By::Verifier => "verifier.log",
    }
}

pub struct Booted<'a> {
    pub vm: &'a mut Vm,
    pub planned: &'a PlannedCell,
    pub clock: Clock,
    /// No later guest of the cell has the same clock.
    pub is_last: bool,
    /// The guest's folder: its console log and the plugin's files.
    pub folder: &'a Path,
    /// The cell's folder. A cell may have several guests.
    pub cell: &'a Path,
    /// Traces read from this guest.
    pub traces: u64,
    /// Counts asked of this guest.
    pub counts: u64,
    /// Remarks of the replies.
    pub remarks: Vec<Remark>,
}

/// Traces of a measurement, at most, if interrupts fall into all hits of each.
const ATTEMPTS: u64 = 3;

/// Addresses in one request. The answer has a name for each, and a message has a size limit.
const RESOLVED_AT_ONCE: usize = 1 << 14;

impl Booted<'_> {
    /// Returns the branches that the plugin recorded, and names of all addresses. Call it before
    /// anything is detached: the kernel drops the names with the programs.
    pub fn trace(&mut self) -> Result<(Trace, Symbols), Stop> {
        let path = trace::file_name(self.folder, self.traces);
        self.traces += 1;
        let trace = Trace::decode(&self.of_plugin(&path, "trace")?).map_err(|error| {
            Stop::Error { kind: ErrorKind::Trace, message: format!("{}: {error}", path.display()) }
        })?;
        let symbols = self.resolve(symbols::addresses(&trace))?;
        Ok((trace, symbols))
    }

    /// True if a measurement may be repeated whose hits were all interrupted. A busy host easily
    /// interrupts the two hits of a command. The exact clock's interrupts come again at the same
    /// instructions.
    pub fn may_repeat(&self) -> bool {
        self.clock == Clock::Free && self.traces < ATTEMPTS
    }

    /// Reads a file that the plugin wrote.
    pub fn of_plugin(&self, path: &Path, what: &str) -> Result<Vec<u8>, Stop> {
        fs::read(path).map_err(|error| {
            let message = match error.kind() {
                io::ErrorKind::NotFound => {
                    let words = vm::last_words(&self.folder.join("qemu.log"));
                    let words = words.as_deref().unwrap_or("none");
                    format!("the plugin left no {what}; QEMU's last words: {words}")
                }
                _ => format!("failed to read {}: {error}", path.display()),
            };
            Stop::Error { kind: ErrorKind::Trace, message }
        })
    }

    /// Rejects a guest that recorded more than it was asked for. Then the files that were read may
    /// not be the agent's.
    pub fn require_only_asked(&self) -> Result<(), Stop> {
        require_only_read(self.folder, self.traces, self.counts)
    }

    /// Sends a command and waits for its answer. If a user's program is rejected, keeps the log in
    /// the cell's folder.
    pub fn reply(
        &mut self,
        command: Command,
        within: Duration,
    ) -> Result<Result<Response, GuestError>, Stop> {
        let result = self.vm.request(command, within)?;
        self.remarks.extend(result.iter().flat_map(remarks).take(MOST_REMARKS).cloned());
        let Err(GuestError::Rejected { reason, by, mut log }) = result else { return Ok(result) };
        log.truncate(log.floor_char_boundary(LONGEST_LOG));
        let path = self.cell.join(log_name(by));
        fs::write(&path, log).map_err(|error| {
            Stop::harness(format!("failed to write {}: {error}", path.display()))
        })?;
        let (reason, name) = (vm::brief(reason), log_name(by));
        let reason = format!("{reason}\nAll of it: {name} in the cell's folder");
        Ok(Err(GuestError::Rejected { reason, by, log: String::new() }))
    }

    /// As [`Booted::reply`], for commands without which there is no measurement.
    pub fn ask(&mut self, command: Command, within: Duration) -> Result<Response, Stop> {
        Ok(self.reply(command, within)??)
    }

    /// Asks the guest for the names of addresses.
    pub fn resolve(&mut self, addresses: Vec<u64>) -> Result<Symbols, Stop> {
        let mut found = Vec::new();
        for some in addresses.chunks(RESOLVED_AT_ONCE) {
            match self.vm.request(Command::Resolve { addresses: some.to_vec() }, QUICK)?? {
                Response::Resolve { symbols } => found.extend(symbols),
                other => return Err(unexpected(&other)),
            }
        }
        Ok(found.into_iter().collect())
    }
}

/// The files that the plugin left in a guest's folder.
fn of_plugin_in(folder: &Path) -> impl Iterator<Item = PathBuf> {
    let is_of_plugin = |path: &PathBuf| {
        let name = path.file_name().unwrap_or_default().to_string_lossy();
        let recorded = ["trace-", "counts-"].iter().any(|start| name.starts_with(start));
        *path == magic::of_kernel(path.parent().unwrap_or(path))
            || recorded && path.extension().is_some_and(|extension| extension == "bin")
    };
    let entries = fs::read_dir(folder).into_iter().flatten().flatten();
    entries.map(|entry| entry.path()).filter(is_of_plugin)
}

/// Removes what the plugin of an earlier guest left in a folder: it must not pass for the next
/// guest's.
pub fn forget_earlier(folder: &Path) -> Result<(), Stop> {
    of_plugin_in(folder).try_for_each(|path| {
        fs::remove_file(&path)
            .map_err(|error| Stop::harness(format!("failed to remove {}: {error}", path.display())))
    })
}

/// Rejects a guest's folder in which the plugin left files that the measurement did not read, or
/// its word that the kernel gave it orders.
fn require_only_read(folder: &Path, traces: u64, counts: u64) -> Result<(), Stop> {
    let error = |message: String| Stop::Error { kind: ErrorKind::Trace, message };
    if let Ok(order) = fs::read_to_string(magic::of_kernel(folder)) {
        return Err(error(format!(
            "the kernel itself executed a magic instruction ({}): only the agent may start and \
             stop the recording",
            order.trim()
        )));
    }
    let read: Vec<PathBuf> = (0..traces)
        .map(|number| trace::file_name(folder, number))
        .chain((0..counts).map(|number| counts::file_name(folder, number)))
        .collect();
    match of_plugin_in(folder).find(|path| !read.contains(path)) {
        None => Ok(()),
        Some(path) => Err(error(format!(
            "{} was recorded, but not asked for: something in the guest besides the agent executed \
             magic instructions, so the numbers may be of other hits",
            path.display()
        ))),
    }
}

/// Remarks of one reply, at most: a guest may lie.
const MOST_REMARKS: usize = 100;

fn remarks(response: &Response) -> &[Remark] {
    match response {
        Response::LbrWaste(reply) => &reply.remarks,
        Response::Trigger(reply) => &reply.remarks,
        Response::Attach(reply) => &reply.remarks,
        _ => &[],
    }
}

/// Why a cell has no measurement.
pub enum Stop {
    Skip(String),
    Error { kind: ErrorKind, message: String },
}

impl Stop {
    pub fn harness(message: String) -> Stop {
        Stop::Error { kind: ErrorKind::Harness, message }
    }
}

impl From<VmError> for Stop {
    fn from(error: VmError) -> Stop {
        Stop::Error { kind: error.kind, message: error.message }
    }
}

impl From<GuestError> for Stop {
    fn from(error: GuestError) -> Stop {
        match error {
            GuestError::Unsupported(reason) => Stop::Skip(vm::brief(reason)),
            GuestError::Failed(message) => {
                Stop::Error { kind: ErrorKind::Guest, message: vm::brief(message) }
            }
            GuestError::Rejected { reason, .. } => {
                Stop::Error { kind: ErrorKind::Program, message: vm::brief(reason) }
            }
        }
    }
}

/// The hits of a reply.
pub struct Hits<'a> {
    pub mechanism: Mechanism,
    pub function: &'a Symbol,
    pub trigger: Option<&'a Triggered>,
    pub hits: u32,
    pub points: &'a [Point],
}

/// Rejects replies that do not match the request. More hits than requested would take too long to
/// read.
pub fn require_asked(
    mechanism: Mechanism,
    function: Option<FunctionName>,
    command: Option<&str>,
    triggers: u32,
    told: &Hits,
) -> Result<(), Stop> {
    let per_trigger = match (function, told.trigger) {
        (None, None) => Some(1),
        (Some(name), Some(found)) if name.is_for(mechanism, told.function) => {
            (1..=Triggered::MOST).contains(&found.hits).then_some(found.hits)
        }
        // A program's section names a tracepoint, which is in some function.
        (None, Some(found)) if mechanism.is_tracepoint() => {
            (1..=Triggered::MOST).contains(&found.hits).then_some(found.hits)
        }
        _ => None,
    };
    let workload = told.trigger.map(|found| found.workload.as_str());
    let hits = per_trigger.and_then(|hits| match command {
        None => triggers.checked_mul(hits),
        Some(_) if workload == command => Triggered::runs(hits, triggers).checked_mul(hits),
        Some(_) => None,
    });
    if hits == Some(told.hits) && told.mechanism == mechanism && told.points == mechanism.points() {
        return Ok(());
    }
    let asked = function.map_or_else(String::new, |name| format!(" on {name}"));
    let message = format!(
        "the guest was asked for {triggers} triggers of {mechanism}{asked}, and answers of {} hits \
         of {} on {} at {} points",
        told.hits,
        told.mechanism,
        told.function.name,
        told.points.len()
    );
    Err(Stop::Error { kind: ErrorKind::Protocol, message })
}

/// Rejects a reply about other functions than those of the set. `test` is its name for the error.
pub fn require_others(set: BesideSet, test: &str, told: &[Others]) -> Result<(), Stop> {
    let is_asked = |((mechanism, functions), told): ((Mechanism, Functions), &Others)| {
        let wanted = functions.count().is_none_or(|count| count.get() == told.functions);
        let links = if mechanism.is_multi() { functions.links() } else { told.functions };
        told.mechanism == mechanism && wanted && told.functions > 0 && told.links == links
    };
    if set.others().count() == told.len() && set.others().zip(told).all(is_asked) {
        return Ok(());
    }
    let message =
        format!("the guest was asked for {test}, and attached to other functions: {told:?}");
    Err(Stop::Error { kind: ErrorKind::Protocol, message })
}

/// Checks that the guest applied a live patch if it was asked to, and only then.
pub fn require_patched(set: BesideSet, test: &str, is_patched: bool) -> Result<(), Stop> {
    if is_patched == set.iter().any(|beside| beside == Beside::Livepatch) {
        return Ok(());
    }
    let told = if is_patched { "a" } else { "no" };
    let message =
        format!("the guest was asked for {test}, and {told} live patch replaced the function");
    Err(Stop::Error { kind: ErrorKind::Protocol, message })
}

pub fn unexpected(response: &Response) -> Stop {
    let message = format!("the guest's answer does not fit: {}", vm::shown(response));
    Stop::Error { kind: ErrorKind::Protocol, message }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rejects_recordings_that_nobody_asked_for() {
        let dir = tempfile::tempdir().unwrap();
        let folder = dir.path();
        fs::write(folder.join("console.log"), "").unwrap();
        let is_taken = |traces, counts| require_only_read(folder, traces, counts).is_ok();
        assert!(is_taken(0, 0));
        fs::write(trace::file_name(folder, 0), "").unwrap();
        assert!(is_taken(1, 0) && !is_taken(0, 0));
        // A kernel that recorded before the agent did: what was read is not the agent's.
        fs::write(trace::file_name(folder, 1), "").unwrap();
        assert!(is_taken(2, 0) && !is_taken(1, 0));
        fs::write(counts::file_name(folder, 7), "").unwrap();
        assert!(!is_taken(2, 2) && is_taken(2, 8));
        // Those that are read may be gone.
        fs::remove_file(trace::file_name(folder, 0)).unwrap();
        assert!(is_taken(2, 8));
        fs::write(magic::of_kernel(folder), "Arm\n").unwrap();
        let Err(Stop::Error { kind: ErrorKind::Trace, message }) = require_only_read(folder, 2, 8)
        else {
            panic!("it is taken")
        };
        assert!(message.contains("the kernel itself executed a magic instruction (Arm)"));
        assert!(forget_earlier(folder).is_ok() && is_taken(0, 0));
        assert_eq!(fs::read_dir(folder).unwrap().count(), 1);
    }

    /// A guest that lies about the function, the workload or the number of hits is not believed.
    #[test]
    fn rejects_hits_that_were_not_asked_for() {
        let symbol = |name: &str| Symbol { name: name.to_owned(), module: None, start: 1, end: 2 };
        let found = |hits| Triggered { workload: "bpf(2)".to_owned(), hits };
        let (named, other) = (Some("__sys_bpf".parse().unwrap()), symbol("bpf_fentry_test1"));
        let of_module = Some("xfs:__sys_bpf".parse().unwrap());
        let (asked, mechanism) = (symbol("__sys_bpf"), Mechanism::Fexit);
        let session = Mechanism::KprobeSession;
        let nop = Some("user_nop".parse().unwrap());
        let user = Symbol { module: Some("user".to_owned()), ..symbol("user_nop") };
        let table = [
            (true, None, mechanism, &other, None, 8, mechanism.points()),
            (true, named, mechanism, &asked, Some(found(1)), 8, mechanism.points()),
            (false, of_module, mechanism, &asked, Some(found(1)), 8, mechanism.points()),
            (true, named, mechanism, &asked, Some(found(64)), 512, mechanism.points()),
            (true, nop, mechanism, &user, Some(found(1)), 8, mechanism.points()),
            (false, None, mechanism, &other, Some(found(1)), 8, mechanism.points()),
            (false, None, mechanism, &other, None, 9, mechanism.points()),
            (false, None, session, &other, None, 8, mechanism.points()),
            (false, None, mechanism, &other, None, 8, session.points()),
            (false, named, mechanism, &other, Some(found(1)), 8, mechanism.points()),
            (false, named, mechanism, &asked, None, 8, mechanism.points()),
            (false, named, mechanism, &asked, Some(found(0)), 0, mechanism.points()),
            (false, named, mechanism, &asked, Some(found(2)), 8, mechanism.points()),
            (false, named, mechanism, &asked, Some(found(65)), 520, mechanism.points()),
            (false, named, mechanism, &asked, Some(found(1 << 30)), 0, mechanism.points()),
        ];
        for (believed, wanted, of, function, trigger, hits, points) in table {
            let told = Hits { mechanism: of, function, trigger: trigger.as_ref(), hits, points };
            let result = require_asked(mechanism, wanted, None, 8, &told);
            let what = format!("{} {trigger:?} {hits} {of}", function.name);
            match result {
                Ok(()) => assert!(believed, "{what}"),
                Err(Stop::Error { kind: ErrorKind::Protocol, .. }) => assert!(!believed, "{what}"),
                Err(_) => panic!("{what}"),
            }
        }
    }

    /// Nobody asks for the function that holds a tracepoint.
    #[test]
    fn limits_the_hits_of_tracepoints() {
        let mechanism = Mechanism::Tp;
        let function = Symbol { name: "copy_process".to_owned(), module: None, start: 1, end: 2 };
        for (believed, each, hits) in
            [(true, 1, 8), (true, 2, 16), (false, 2, 8), (false, 0, 0), (false, 65, 520)]
        {
            let trigger = Some(Triggered { workload: "pipe(2)".to_owned(), hits: each });
            let (trigger, points) = (trigger.as_ref(), mechanism.points());
            let told = Hits { mechanism, function: &function, trigger, hits, points };
            let result = require_asked(mechanism, None, None, 8, &told);
            assert_eq!(result.is_ok(), believed, "{each} {hits}");
        }
    }

    /// A command is run twice at most, and once if it hits as often as asked for.
    #[test]
    fn rejects_other_commands_and_other_numbers_of_runs() {
        let mechanism = Mechanism::Fexit;
        let function = Symbol { name: "vfs_read".to_owned(), module: None, start: 1, end: 2 };
        for (believed, workload, each, hits) in [
            (true, "cat x", 1, 2),
            (true, "cat x", 3, 6),
            (true, "cat x", 8, 8),
            (true, "cat x", 64, 64),
            (false, "cat x", 1, 8),
            (false, "cat x", 3, 24),
            (false, "cat y", 1, 2),
            (false, "bpf(2)", 1, 2),
        ] {
            let trigger = Some(Triggered { workload: workload.to_owned(), hits: each });
            let (trigger, points) = (trigger.as_ref(), mechanism.points());
            let told = Hits { mechanism, function: &function, trigger, hits, points };
            let name = Some("vfs_read".parse().unwrap());
            let result = require_asked(mechanism, name, Some("cat x"), 8, &told);
            assert_eq!(result.is_ok(), believed, "{workload} {each} {hits}");
        }
    }
}
