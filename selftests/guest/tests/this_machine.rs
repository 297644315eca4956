// SPDX-License-Identifier: MIT OR Apache-2.0
//! The agent on the user's own machine: it talks over the socket that it inherits, refuses to
//! change the machine, and ends with its host. Nothing here attaches a program.

use std::os::fd::{AsRawFd, OwnedFd};
use std::os::unix::net::UnixStream;
use std::process::{Child, Command, Stdio};
use std::time::Duration;
use tramplab_protocol::frame;
use tramplab_protocol::message::{
    Command as Asked, Event, Fault, GuestError, ON_THIS_MACHINE, Request, Response, VERSION,
};

struct Agent {
    link: UnixStream,
    process: Child,
}

impl Agent {
    fn start() -> Agent {
        let agent = Agent::begin();
        agent.greet();
        agent
    }

    /// Starts one that may have to wait for the end of another.
    fn begin() -> Agent {
        let (link, theirs) = UnixStream::pair().unwrap();
        let theirs = OwnedFd::from(theirs);
        // SAFETY: takes no memory.
        unsafe { libc::fcntl(theirs.as_raw_fd(), libc::F_SETFD, 0) };
        let process = Command::new(env!("CARGO_BIN_EXE_tramplab-agent"))
            .args([ON_THIS_MACHINE, &theirs.as_raw_fd().to_string(), "100"])
            .stdin(Stdio::null())
            .spawn()
            .unwrap();
        Agent { link, process }
    }

    fn greet(&self) {
        let ready = self.event();
        assert!(matches!(ready, Event::Ready { version: VERSION, .. }), "{ready:?}");
    }

    fn event(&self) -> Event {
        frame::read(&mut &self.link).unwrap().expect("it lives")
    }

    fn ask(&self, command: Asked) -> Result<Response, GuestError> {
        frame::write(&mut &self.link, &Request { id: 7, command }).unwrap();
        loop {
            if let Event::Reply { id: 7, result } = self.event() {
                return result;
            }
        }
    }

    fn code(mut self) -> Option<i32> {
        drop(self.link);
        self.process.wait().unwrap().code()
    }
}

#[test]
fn refuses_to_change_the_machine() {
    let mut agent = Agent::start();
    for command in [Asked::Inject(Fault::Panic), Asked::Awake { realtime_ns: 1, seed: [0; 32] }] {
        let refused = agent.ask(command);
        assert!(matches!(refused, Err(GuestError::Unsupported(_))), "{refused:?}");
    }
    assert_eq!(agent.ask(Asked::PowerOff), Ok(Response::Done));
    // Of its own accord, with the link open.
    assert_eq!(agent.process.wait().unwrap().code(), Some(0));
}

#[test]
fn ends_with_its_host() {
    assert_eq!(Agent::start().code(), Some(0));
}

#[test]
fn waits_for_the_end_of_another_agent() {
    let first = Agent::start();
    let second = Agent::begin();
    let wait = |limit| second.link.set_read_timeout(limit).unwrap();
    wait(Some(Duration::from_millis(300)));
    let said: Result<Option<Event>, _> = frame::read(&mut &second.link);
    assert!(said.is_err(), "{said:?}");
    wait(None);
    assert_eq!(first.code(), Some(0));
    second.greet();
    assert_eq!(second.code(), Some(0));
}

#[test]
fn names_a_descriptor_that_is_no_socket() {
    let output = Command::new(env!("CARGO_BIN_EXE_tramplab-agent"))
        .args([ON_THIS_MACHINE, "99", "100"])
        .output()
        .unwrap();
    assert_eq!(output.status.code(), Some(1));
    let text = String::from_utf8_lossy(&output.stderr);
    assert!(text.contains("99 is no inherited socket"), "{text}");
}
