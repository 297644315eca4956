// SPDX-License-Identifier: MIT OR Apache-2.0
//! The guest's first process, a program under another init, or one on the user's own machine. It
//! prepares the machine, if it is the guest's, then serves the host's requests one at a time.

#![cfg_attr(not(test), warn(clippy::disallowed_methods))]

mod attach;
mod awake;
mod beside;
mod binary;
mod boot_words;
mod bpf;
mod budget;
mod buffers;
mod calls;
mod capture;
mod changes;
mod children;
mod command;
mod conditions;
mod counting;
mod delivering;
mod exec;
mod explain;
mod facts;
mod found;
mod functions;
mod hit_counters;
mod hits;
mod holder;
mod hooked;
mod hooks;
mod init;
mod inject;
mod kallsyms;
mod kernel_btf;
mod known;
mod libbpf_log;
mod link;
mod livepatch;
mod loaded;
mod lockdown;
mod machine;
mod mapping;
mod measuring_cpu;
mod method;
mod missing;
mod modules;
mod names;
mod object;
mod orders;
mod own;
mod posing;
mod ring;
mod role;
mod rounds;
mod sampling;
mod serving;
mod sole;
mod stat;
mod storm;
mod switches;
mod tail_calls;
mod target;
mod targets;
mod test_functions;
mod tracefs_events;
mod tracepoints;
mod tracers;
mod trigger;
mod trigger_cost;
mod userspace;
mod waiting;
mod waste;
mod workload;
mod wrapper;

use beside::Attached;
use kallsyms::Kallsyms;
use known::Known;
use link::{Events, Heartbeat, LinkError, Requests};
use modules::Modules;
use orders::{Answer, Answers};
use role::Role;
use rounds::Prepared;
use std::any::Any;
use std::panic::{AssertUnwindSafe, catch_unwind};
use switches::InForce;
use tramplab_protocol::BesideSet;
use tramplab_protocol::message::{
    AGENT_NAME, AttachRequest, Command, DELIVER, Event, GAVE_UP, GuestError, ON_THIS_MACHINE,
    PROGRAM_WORD, Request, Response, Symbol, UP, VERSION,
};

#[derive(Debug, thiserror::Error)]
enum AgentError {
    #[error(
        "the agent takes over the whole machine: it runs only as process 1, or with {PROGRAM_WORD} \
         on the kernel's command line; with the arguments {ON_THIS_MACHINE} SOCKET MOST it leaves \
         the machine as it is"
    )]
    NotInit,
    #[error(transparent)]
    Sole(#[from] sole::SoleError),
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
    if let (Role::Program, [_, word, arguments @ ..]) =
        (role, &*std::env::args().collect::<Vec<_>>())
        && word == DELIVER
    {
        std::process::exit(wrapper::run(arguments).into());
    }
    role.begin();
    let Err(error) = run(role);
    if let (Role::Machine { .. }, AgentError::Link(LinkError::Closed)) = (role, &error) {
        init::end(role, 0);
    }
    // In a guest, only the console is left for a message. The host reads its end after QEMU exits.
    eprintln!("{GAVE_UP}{error}");
    init::end(role, 1);
}

/// Returns only errors.
fn run(role: Role) -> Result<std::convert::Infallible, AgentError> {
    let _sole = match role {
        Role::Machine { .. } => Some(sole::claim()?),
        Role::Init | Role::Program => None,
    };
    init::prepare(role)?;
    libbpf_log::install();
    if let Role::Machine { .. } = role {
        workload::rename();
        measuring_cpu::choose();
    // The kernel named the process after its file, `init`.
    } else if let Err(error) = changes::write("/proc/self/comm", AGENT_NAME) {
        eprintln!("tramplab-agent: failed to name itself: {error}");
    }
    if role == Role::Init {
        eprintln!("{UP}");
    }
    // Before the sample of a live patch is loaded, which replaces the line.
    let switches = switches::of_this_boot();
    // A module that kills the kernel is no reason to think that it does not boot.
    let modules = Modules::new(init::load_wanted(role)?);
    let mut agent = Agent {
        known: Known::of(modules),
        switches: match role {
            Role::Init | Role::Program => InForce::begin(&switches),
            Role::Machine { .. } => InForce::default(),
        },
        attached: None,
        prepared: None,
        names: None,
        left: 0,
        line: None,
    };
    let mut answers = Answers::default();
    let orders = match role {
        Role::Init => orders::read()?,
        // The orders in such a root are not for the agent.
        Role::Program | Role::Machine { .. } => Vec::new(),
    };
    for command in orders {
        measuring_cpu::pin_or_say();
        let result =
            guarded(|| agent.execute(0, command.clone())).and_then(|outcome| match outcome {
                Outcome::Reply(response) => Ok(*response),
                Outcome::Silence => {
                    Err(GuestError::Failed("a silence cannot be an order".to_owned()))
                }
            });
        answers.add(command, Answer { result, names: agent.names.take() });
    }
    let (mut requests, events) = match role {
        Role::Machine { link, .. } => link::inherited(link)?,
        Role::Init | Role::Program => link::open()?,
    };
    let ready =
        Event::Ready { version: VERSION, release: facts::release(), uptime_ns: link::uptime_ns() };
    events.send(&ready).map_err(LinkError::Frame)?;
    let heartbeat = Heartbeat::start(events.clone()).map_err(AgentError::Heartbeat)?;
    // After the heartbeat's thread has started, which would inherit it.
    measuring_cpu::pin_or_say();
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
            init::end(role, 0);
        }
    }
}

fn fall_silent(heartbeat: &Heartbeat, requests: Requests) -> ! {
    let _held = heartbeat.hold();
    requests.ignore()
}

/// Runs a command. A panic fails the command, not the machine.
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

/// State that outlives a request.
struct Agent {
    known: Known,
    switches: InForce,
    /// The attachments of the last measurement, kept so that their addresses resolve. Dropping them
    /// detaches.
    attached: Option<Box<dyn Any>>,
    /// The targets of the last request for rounds.
    prepared: Option<Prepared>,
    /// The names at the moment when the last measurement was attached, if it read them.
    names: Option<Kallsyms>,
    /// Links of ended measurements that are still attached.
    left: usize,
    /// None while it executes orders.
    line: Option<Line>,
}

/// The open link to the host.
struct Line {
    heartbeat: Heartbeat,
    events: Events,
}

impl Agent {
    /// Executes a command. `id` is the request's.
    fn execute(&mut self, id: u64, command: Command) -> Result<Outcome, GuestError> {
        if let Some(most) = role::most_here() {
            machine::check(&command, most)?;
        }
        let response = match command {
            Command::Facts => {
                let not_taken = self.switches.not_taken.clone();
                let mut facts = facts::gather(self.known.btf().ok(), not_taken)?;
                if role::is_own_machine() {
                    facts.missing = missing::here();
                    facts.conditions = conditions::here(facts.cpus);
                }
                Response::Facts(Box::new(facts))
            }
            Command::Prepare => {
                self.known.prepare()?;
                Response::Done
            }
            Command::LbrWaste(request) => {
                self.release();
                let heartbeat = self.line.as_ref().map(|line| &line.heartbeat);
                let (reply, attached) = waste::measure(&request, &self.known, heartbeat)?;
                self.attached = Some(Box::new(attached));
                Response::LbrWaste(Box::new(reply))
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
                let reply = self.rounds(&request, |prepared, beside, _| {
                    attach::measure(&request, prepared, &beside.others)
                })?;
                Response::Attach(reply)
            }
            Command::Explain(request) => {
                let explained = |prepared: &mut Prepared, _: &Attached, known: &Known| {
                    explain::explain(&request, prepared, known)
                };
                let (reply, names) = self.rounds(&request.attach, explained)?;
                self.names = Some(names);
                Response::Explain(Box::new(reply))
            }
            Command::Trigger(request) => {
                self.release();
                let heartbeat = self.line.as_ref().map(|line| &line.heartbeat);
                let (reply, attached, names) =
                    trigger_cost::measure(&request, &self.known, heartbeat)?;
                self.attached = Some(Box::new(attached));
                self.names = Some(names);
                Response::Trigger(Box::new(reply))
            }
            Command::Survive(request) => {
                self.release();
                Response::Survive(Box::new(storm::run(&request, &self.known)?))
            }
            Command::Calls(request) => {
                self.release();
                Response::Calls(calls::compare(&request, &self.known)?)
            }
            Command::Exec(request) => {
                let line = self.line("a program")?;
                let mut say = |text| {
                    let said = line.events.send(&Event::Output { id, text });
                    said.map_err(|error| {
                        GuestError::Failed(format!("failed to talk to the host: {error}"))
                    })
                };
                let _serving = request
                    .deliver
                    .as_ref()
                    .map(|filters| posing::begin(filters, &self.known))
                    .transpose()?;
                Response::Exec(exec::run(&request, &mut say)?)
            }
            Command::Inject(fault) => {
                let line = self.line("a fault")?;
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
            Command::PowerOff => Response::Done,
        };
        Ok(Outcome::Reply(Box::new(response)))
    }

    /// The link to the host. `what` names a command that cannot be an order.
    fn line(&self, what: &str) -> Result<&Line, GuestError> {
        self.line.as_ref().ok_or_else(|| GuestError::Failed(format!("{what} cannot be an order")))
    }

    fn release(&mut self) {
        self.attached = None;
        self.names = None;
    }

    /// Runs the rounds of a request, on the targets of the last one if they are the same.
    fn rounds<T>(
        &mut self,
        request: &AttachRequest,
        work: impl FnOnce(&mut Prepared, &Attached, &Known) -> Result<T, GuestError>,
    ) -> Result<T, GuestError> {
        self.release();
        if self.left > 0 {
            return Err(GuestError::Failed(format!(
                "{} links of an earlier measurement are still attached, as its time budget ended: \
                 start another guest",
                self.left
            )));
        }
        let earlier = self.prepared.take();
        let mut prepared = Prepared::of(request, &self.known, earlier)?;
        let result = beside_others(request.beside, &mut prepared, &self.known, work);
        self.left = prepared.left;
        self.prepared = Some(prepared);
        result
    }
}

/// Works on prepared rounds with tracers of other functions beside them, which it detaches.
fn beside_others<T>(
    set: BesideSet,
    prepared: &mut Prepared,
    known: &Known,
    work: impl FnOnce(&mut Prepared, &Attached, &Known) -> Result<T, GuestError>,
) -> Result<T, GuestError> {
    if set.is_empty() {
        return work(prepared, &Attached::default(), known);
    }
    // A function that the kernel refuses is replaced, maybe by one of the others.
    prepared.settle()?;
    let beside = beside::attach_to_others(set, &prepared.targets.chosen, known)?;
    let refused = prepared.targets.refused.len();
    let result = work(prepared, &beside, known)?;
    match prepared.targets.refused.get(refused) {
        None => Ok(result),
        Some(refusal) => Err(GuestError::Failed(format!(
            "the kernel refused {} beside others, which it had taken alone: {}",
            refusal.function, refusal.reason
        ))),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn reports_a_panic_as_a_failed_command() {
        let index = 3;
        let result: Result<(), _> = guarded(|| panic!("index {index} is out of range"));
        assert_eq!(
            result,
            Err(GuestError::Failed("the agent panicked: index 3 is out of range".to_owned()))
        );
    }
}
