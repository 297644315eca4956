// SPDX-License-Identifier: MIT OR Apache-2.0
//! The guest's first process, or a program of a guest whose init is another: makes the machine ready, then does what the host asks, one request at a time.

mod attach;
mod awake;
mod beside;
mod bpf;
mod budget;
mod calls;
mod capture;
mod counting;
mod delivering;
mod exec;
mod explain;
mod facts;
mod functions;
mod init;
mod inject;
mod kallsyms;
mod kernel_btf;
mod known;
mod libbpf_log;
mod link;
mod mapping;
mod method;
mod orders;
mod posing;
mod ring;
mod rounds;
mod sampling;
mod stat;
mod targets;
mod trigger;
mod trigger_cost;
mod userspace;
mod waiting;
mod waste;

use kallsyms::Kallsyms;
use known::Known;
use link::{Events, Heartbeat, LinkError, Requests};
use orders::{Answer, Answers};
use rounds::Prepared;
use std::any::Any;
use std::panic::{AssertUnwindSafe, catch_unwind};
use tramplab_protocol::message::{
    AGENT_NAME, AttachRequest, Command, Event, GAVE_UP, GuestError, PROGRAM_WORD, Request, Response, Symbol,
    UP, VERSION,
};

/// The vCPU that measures: it is where the recorder looks and the snapshot is taken.
const MEASURING_CPU: usize = 0;

#[derive(Debug, thiserror::Error)]
enum AgentError {
    #[error(
        "the agent mounts, powers off and measures a whole machine, so it runs as process 1 only, or where the kernel's command \
         line has {PROGRAM_WORD}"
    )]
    NotInit,
    #[error(transparent)]
    Init(#[from] init::InitError),
    #[error(transparent)]
    Orders(#[from] orders::OrdersError),
    #[error(transparent)]
    Link(#[from] LinkError),
    #[error("failed to start the heartbeat: {0}")]
    Heartbeat(std::io::Error),
}

fn main() {
    let Some(role) = Role::of_this_process() else {
        eprintln!("tramplab-agent: {}", AgentError::NotInit);
        std::process::exit(2);
    };
    let Err(error) = run(role);
    // The console is all that is left to speak through; the host reads its end when QEMU has gone.
    eprintln!("{GAVE_UP}{error}");
    init::power_off();
}

/// What the agent is in its guest.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Role {
    /// The first process: the whole root is the host's making.
    Init,
    /// Started by another init, on a root that has files of its own.
    Program,
}

impl Role {
    fn of_this_process() -> Option<Role> {
        if std::process::id() == 1 {
            return Some(Role::Init);
        }
        let line = std::fs::read_to_string("/proc/cmdline").unwrap_or_default();
        line.split_ascii_whitespace().any(|word| word == PROGRAM_WORD).then_some(Role::Program)
    }
}

/// Never returns but for an error.
fn run(role: Role) -> Result<std::convert::Infallible, AgentError> {
    init::prepare(role)?;
    libbpf_log::install();
    // The kernel named it after its file, `init`.
    if let Err(error) = std::fs::write("/proc/self/comm", AGENT_NAME) {
        eprintln!("tramplab-agent: failed to name itself: {error}");
    }
    if role == Role::Init {
        eprintln!("{UP}");
    }
    let mut agent =
        Agent { known: Known::default(), attached: None, prepared: None, names: None, left: 0, line: None };
    let mut answers = Answers::default();
    let orders = match role {
        Role::Init => orders::read()?,
        // What lies in such a root is not for us.
        Role::Program => Vec::new(),
    };
    for command in orders {
        pin_or_say();
        let result = guarded(|| agent.execute(0, command.clone())).and_then(|outcome| match outcome {
            Outcome::Reply(response) => Ok(*response),
            Outcome::Silence => Err(GuestError::Failed("falling silent is nothing to order".to_owned())),
        });
        answers.add(command, Answer { result, names: agent.names.take() });
    }
    let (mut requests, events) = link::open()?;
    let ready = Event::Ready { version: VERSION, release: facts::release(), uptime_ns: link::uptime_ns() };
    events.send(&ready).map_err(LinkError::Frame)?;
    let heartbeat = Heartbeat::start(events.clone()).map_err(AgentError::Heartbeat)?;
    // After the heartbeat's thread has begun, which would inherit it.
    pin_or_say();
    agent.line = Some(Line { heartbeat: heartbeat.clone(), events: events.clone() });
    loop {
        let Request { id, command } = requests.next()?;
        let power_off = command == Command::PowerOff;
        if let Some(Answer { result, names }) = answers.take(&command) {
            agent.names = names;
            events.send(&Event::Reply { id, result }).map_err(LinkError::Frame)?;
            continue;
        }
        let result = match guarded(|| agent.execute(id, command)) {
            Ok(Outcome::Silence) => fall_silent(&heartbeat, requests),
            Ok(Outcome::Reply(response)) => Ok(*response),
            Err(error) => Err(error),
        };
        events.send(&Event::Reply { id, result }).map_err(LinkError::Frame)?;
        if power_off {
            init::power_off();
        }
    }
}

fn pin_or_say() {
    if let Err(errno) = pin() {
        eprintln!("tramplab-agent: failed to stay on CPU {MEASURING_CPU}: {errno}");
    }
}

fn pin() -> nix::Result<()> {
    let mut cpus = nix::sched::CpuSet::new();
    cpus.set(MEASURING_CPU)?;
    nix::sched::sched_setaffinity(nix::unistd::Pid::from_raw(0), &cpus)
}

fn fall_silent(heartbeat: &Heartbeat, requests: Requests) -> ! {
    let _held = heartbeat.hold();
    requests.ignore()
}

/// Runs a command; a panic in it is its failure, not the machine's.
fn guarded<T>(execute: impl FnOnce() -> Result<T, GuestError>) -> Result<T, GuestError> {
    catch_unwind(AssertUnwindSafe(execute)).unwrap_or_else(|panic| {
        let text = panic.downcast_ref::<String>().map(String::as_str);
        let text = text.or_else(|| panic.downcast_ref::<&str>().copied()).unwrap_or("no message");
        Err(GuestError::Failed(format!("the agent panicked: {text}")))
    })
}

enum Outcome {
    Reply(Box<Response>),
    Silence,
}

/// What lives from one request to the next.
struct Agent {
    known: Known,
    /// What the last measurement left attached, so that its addresses resolve; dropped, it is detached.
    attached: Option<Box<dyn Any>>,
    /// What the last request for rounds attached to.
    prepared: Option<Prepared>,
    /// The names of the moment when everything of the last measurement was attached, if it read them.
    names: Option<Kallsyms>,
    /// Links of ended measurements that are still attached.
    left: usize,
    /// None while it executes orders.
    line: Option<Line>,
}

/// What is open to the host.
struct Line {
    heartbeat: Heartbeat,
    events: Events,
}

impl Agent {
    /// `id` is the request's.
    fn execute(&mut self, id: u64, command: Command) -> Result<Outcome, GuestError> {
        let response = match command {
            Command::Facts => Response::Facts(facts::gather(self.known.btf().ok())?),
            Command::Prepare => {
                self.known.prepare()?;
                Response::Done
            }
            Command::LbrWaste(request) => {
                self.release();
                let heartbeat = self.line.as_ref().map(|line| &line.heartbeat);
                let (reply, attached) = waste::measure(&request, &self.known, heartbeat)?;
                self.attached = Some(Box::new(attached));
                Response::LbrWaste(reply)
            }
            Command::Resolve { addresses } => {
                let fresh = match self.names {
                    Some(_) => None,
                    None => Some(self.known.names()?),
                };
                let names = self.names.as_ref().or(fresh.as_ref()).expect("one of the two");
                let mut symbols: Vec<Symbol> =
                    addresses.iter().filter_map(|address| names.resolve(*address)).collect();
                symbols.sort_unstable_by_key(|symbol| symbol.start);
                symbols.dedup();
                Response::Resolve { symbols }
            }
            Command::Release => {
                self.release();
                Response::Done
            }
            Command::Attach(request) => {
                let reply = self.rounds(&request, |prepared, _| attach::measure(&request, prepared))?;
                Response::Attach(reply)
            }
            Command::Explain(request) => {
                let explained =
                    |prepared: &mut Prepared, known: &Known| explain::explain(&request, prepared, known);
                let (reply, names) = self.rounds(&request.attach, explained)?;
                self.names = Some(names);
                Response::Explain(Box::new(reply))
            }
            Command::Trigger(request) => {
                self.release();
                let heartbeat = self.line.as_ref().map(|line| &line.heartbeat);
                let (reply, attached, names) = trigger_cost::measure(&request, &self.known, heartbeat)?;
                self.attached = Some(Box::new(attached));
                self.names = Some(names);
                Response::Trigger(reply)
            }
            Command::Calls(request) => {
                self.release();
                Response::Calls(calls::compare(&request, &self.known)?)
            }
            Command::Exec(request) => {
                let line = self.line.as_ref();
                let line =
                    line.ok_or_else(|| GuestError::Failed("a program is nothing to order".to_owned()))?;
                let mut say = |text| {
                    let said = line.events.send(&Event::Output { id, text });
                    said.map_err(|error| GuestError::Failed(format!("failed to talk to the host: {error}")))
                };
                let _posing =
                    request.deliver.map(|cpu| posing::Posing::begin(cpu, &self.known)).transpose()?;
                Response::Exec(exec::run(&request, &mut say)?)
            }
            Command::Inject(fault) => {
                let line = self.line.as_ref();
                let line =
                    line.ok_or_else(|| GuestError::Failed("a fault is nothing to order".to_owned()))?;
                match inject::inject(fault, &line.events)? {
                    inject::After::Answer => Response::Done,
                    inject::After::FallSilent => return Ok(Outcome::Silence),
                }
            }
            Command::Awake { realtime_ns, seed } => {
                awake::set_clock(realtime_ns)?;
                awake::seed(&seed)?;
                Response::Done
            }
            Command::Moment => Response::Moment(awake::moment()?),
            Command::PowerOff => Response::Done,
        };
        Ok(Outcome::Reply(Box::new(response)))
    }

    fn release(&mut self) {
        self.attached = None;
        self.names = None;
    }

    /// Does rounds of a request, on the targets of the last one where it is of the same.
    fn rounds<T>(
        &mut self,
        request: &AttachRequest,
        work: impl FnOnce(&mut Prepared, &Known) -> Result<T, GuestError>,
    ) -> Result<T, GuestError> {
        self.release();
        if self.left > 0 {
            return Err(GuestError::Failed(format!(
                "{} links of a measurement that its time budget ended are still attached and would be measured along: \
                 start another guest",
                self.left
            )));
        }
        let earlier = self.prepared.take();
        let mut prepared = Prepared::of(request, &self.known, earlier)?;
        let result = work(&mut prepared, &self.known);
        self.left = prepared.left;
        self.prepared = Some(prepared);
        result
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_panic_is_a_failed_command() {
        let index = 3;
        let result: Result<(), _> = guarded(|| panic!("index {index} is out of range"));
        assert_eq!(result, Err(GuestError::Failed("the agent panicked: index 3 is out of range".to_owned())));
    }
}
