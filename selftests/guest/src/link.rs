// SPDX-License-Identifier: MIT OR Apache-2.0
//! The agent's end of the link, a virtio-serial port or a socket: requests, events, and a heartbeat
//! that can be held.

use crate::changes;
use nix::time::{ClockId, clock_gettime};
use std::fs::{self, File};
use std::io::{self, ErrorKind, Read, Write};
use std::os::fd::{FromRawFd, RawFd};
use std::os::unix::fs::FileTypeExt;
use std::path::PathBuf;
use std::sync::{Arc, Condvar, Mutex, MutexGuard};
use std::thread;
use std::time::{Duration, Instant};
use tramplab_protocol::frame::{self, FrameError};
use tramplab_protocol::message::{Event, HEARTBEAT_MS, PORT_NAME, Request};

const PORTS: &str = "/sys/class/virtio-ports";
/// How long the port may take to appear. Its driver probes in parallel with the first process.
const PORT_DEADLINE: Duration = Duration::from_secs(20);
const POLL: Duration = Duration::from_millis(20);
/// Slightly shorter than the promised period, to allow for a late timer.
const BEAT: Duration = Duration::from_millis(HEARTBEAT_MS * 3 / 4);

#[derive(Debug, thiserror::Error)]
pub enum LinkError {
    #[error(
        "no virtio-serial port named {PORT_NAME} appeared within {} s (found: {found}); \
         expected the device in QEMU, and CONFIG_VIRTIO_PCI and CONFIG_VIRTIO_CONSOLE built in \
         (modules work only with the kernel's own package)",
        PORT_DEADLINE.as_secs()
    )]
    NoPort { found: String },
    #[error("failed to open {}: {error}", path.display())]
    Open { path: PathBuf, error: io::Error },
    #[error("the descriptor {0} is no inherited socket")]
    NoSocket(RawFd),
    #[error("the host has closed the link")]
    Closed,
    #[error("failed to talk to the host: {0}")]
    Frame(#[from] FrameError),
}

/// Time since boot, including suspension, in nanoseconds.
pub fn uptime_ns() -> u64 {
    clock_gettime(ClockId::CLOCK_BOOTTIME)
        .map_or(0, |t| t.tv_sec() as u64 * 1_000_000_000 + t.tv_nsec() as u64)
}

/// The end of an agent that has lost its host.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Alone {
    /// Keep waiting: whoever started the machine also ends it.
    Wait,
    /// End, and so detach all.
    End,
}

/// The host's requests.
pub struct Requests {
    port: File,
    alone: Alone,
}

impl Requests {
    /// Waits for the next request.
    pub fn next(&mut self) -> Result<Request, LinkError> {
        loop {
            match frame::read(&mut self.port) {
                Ok(Some(request)) => return Ok(request),
                Ok(None) if self.alone == Alone::Wait => thread::sleep(POLL),
                Ok(None) => return Err(LinkError::Closed),
                // The host has not read all that was sent.
                Err(FrameError::Io(error)) if error.kind() == ErrorKind::ConnectionReset => {
                    return Err(LinkError::Closed);
                }
                Err(error) => return Err(error.into()),
            }
        }
    }

    /// Reads and drops the host's messages forever.
    pub fn ignore(mut self) -> ! {
        loop {
            let _ = self.port.read(&mut [0; 4096]);
            thread::sleep(POLL);
        }
    }
}

/// The sending side of the link, shared with the heartbeat.
#[derive(Clone)]
pub struct Events {
    port: Arc<Mutex<File>>,
    alone: Alone,
}

impl Events {
    pub fn send(&self, event: &Event) -> Result<(), FrameError> {
        frame::write(&mut *lock(&self.port), event)
    }

    /// Sends raw bytes.
    pub fn send_raw(&self, bytes: &[u8]) -> io::Result<()> {
        lock(&self.port).write_all(bytes)
    }
}

/// Locks a mutex. A poisoned lock's data stays valid, so keep talking.
fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(|poisoned| poisoned.into_inner())
}

/// Opens the agent's port.
pub fn open() -> Result<(Requests, Events), LinkError> {
    let path = find_port()?;
    let open = || changes::open(&path);
    // The driver lets a port be opened once only, so both ends share one description.
    let port = open().map_err(|error| LinkError::Open { path: path.clone(), error })?;
    let clone = port.try_clone().map_err(|error| LinkError::Open { path, error })?;
    Ok(ends(port, clone, Alone::Wait))
}

/// Takes the socket that the host left to this process. Children do not inherit it.
pub fn inherited(fd: RawFd) -> Result<(Requests, Events), LinkError> {
    let file = fs::metadata(format!("/proc/self/fd/{fd}"));
    if !file.is_ok_and(|file| file.file_type().is_socket()) {
        return Err(LinkError::NoSocket(fd));
    }
    // SAFETY: takes no memory.
    unsafe { libc::fcntl(fd, libc::F_SETFD, libc::FD_CLOEXEC) };
    // SAFETY: it is open, and nothing else in this process owns it.
    let port = unsafe { File::from_raw_fd(fd) };
    let clone = port.try_clone().map_err(FrameError::Io)?;
    Ok(ends(port, clone, Alone::End))
}

fn ends(port: File, clone: File, alone: Alone) -> (Requests, Events) {
    (Requests { port, alone }, Events { port: Arc::new(Mutex::new(clone)), alone })
}

fn find_port() -> Result<PathBuf, LinkError> {
    let start = Instant::now();
    loop {
        let mut found = Vec::new();
        for entry in fs::read_dir(PORTS).into_iter().flatten().flatten() {
            let Ok(name) = fs::read_to_string(entry.path().join("name")) else { continue };
            let device = PathBuf::from("/dev").join(entry.file_name());
            if name.trim_end() == PORT_NAME && device.exists() {
                return Ok(device);
            }
            found.push(name.trim_end().to_owned());
        }
        if start.elapsed() > PORT_DEADLINE {
            let found =
                if found.is_empty() { "no port at all".to_owned() } else { found.join(", ") };
            return Err(LinkError::NoPort { found });
        }
        thread::sleep(POLL);
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Beating {
    On,
    /// Asked to stop; the heartbeat's thread has not seen it.
    Holding,
    /// The thread sleeps without a timer.
    Held,
}

/// Tells the host from a thread of its own that the agent lives.
#[derive(Clone)]
pub struct Heartbeat(Arc<(Mutex<Beating>, Condvar)>);

impl Heartbeat {
    pub fn start(events: Events) -> io::Result<Heartbeat> {
        let state = Arc::new((Mutex::new(Beating::On), Condvar::new()));
        let heartbeat = Heartbeat(Arc::clone(&state));
        thread::Builder::new().name("heartbeat".to_owned()).spawn(move || beat(&state, &events))?;
        Ok(heartbeat)
    }

    /// Stops beating until the guard is dropped. The thread then waits without a timer, so that no
    /// thread of the agent runs or wakes up in an armed window. Use it for short windows only.
    pub fn hold(&self) -> Held<'_> {
        let (state, changed) = &*self.0;
        let mut beating = lock(state);
        *beating = Beating::Holding;
        changed.notify_all();
        while *beating != Beating::Held {
            beating = changed.wait(beating).unwrap_or_else(|poisoned| poisoned.into_inner());
        }
        Held(self)
    }
}

/// Holds the heartbeat while it lives.
pub struct Held<'a>(&'a Heartbeat);

impl Drop for Held<'_> {
    fn drop(&mut self) {
        let (state, changed) = &*self.0.0;
        *lock(state) = Beating::On;
        changed.notify_all();
    }
}

fn beat(state: &(Mutex<Beating>, Condvar), events: &Events) {
    let (state, changed) = state;
    let mut beating = lock(state);
    loop {
        beating = match *beating {
            Beating::On => {
                drop(beating);
                if let Err(error) = events.send(&Event::Heartbeat { uptime_ns: uptime_ns() }) {
                    if events.alone == Alone::End {
                        // The main thread may be measuring.
                        std::process::exit(0);
                    }
                    eprintln!("tramplab-agent: failed to send a heartbeat: {error}");
                }
                let wait = changed
                    .wait_timeout_while(lock(state), BEAT, |beating| *beating == Beating::On);
                wait.unwrap_or_else(|poisoned| poisoned.into_inner()).0
            }
            Beating::Holding => {
                *beating = Beating::Held;
                changed.notify_all();
                beating
            }
            Beating::Held => changed.wait(beating).unwrap_or_else(|poisoned| poisoned.into_inner()),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::unix::net::UnixStream;

    #[test]
    fn a_socket_ends_with_its_host() {
        let (host, guest) = UnixStream::pair().unwrap();
        let fd = std::os::fd::IntoRawFd::into_raw_fd(guest);
        let (mut requests, events) = inherited(fd).unwrap();
        // SAFETY: takes no memory.
        assert_eq!(unsafe { libc::fcntl(fd, libc::F_GETFD) }, libc::FD_CLOEXEC);
        let request = Request { id: 1, command: tramplab_protocol::message::Command::Facts };
        frame::write(&mut &host, &request).unwrap();
        assert_eq!(requests.next().unwrap(), request);
        events.send(&Event::Heartbeat { uptime_ns: 1 }).unwrap();
        // With the heartbeat unread.
        drop(host);
        assert!(matches!(requests.next(), Err(LinkError::Closed)));
        let (host, guest) = UnixStream::pair().unwrap();
        let fd = std::os::fd::IntoRawFd::into_raw_fd(guest);
        let (mut requests, _events) = inherited(fd).unwrap();
        drop(host);
        assert!(matches!(requests.next(), Err(LinkError::Closed)));
        assert!(matches!(inherited(-1), Err(LinkError::NoSocket(-1))));
        let file = std::os::fd::IntoRawFd::into_raw_fd(File::open("/dev/null").unwrap());
        assert!(matches!(inherited(file), Err(LinkError::NoSocket(_))));
    }

    #[test]
    fn holds_the_heartbeat_and_resumes_it() {
        let (host, guest) = UnixStream::pair().unwrap();
        let guest = File::from(std::os::fd::OwnedFd::from(guest));
        let heartbeat = {
            let clone = guest.try_clone().unwrap();
            Heartbeat::start(ends(guest, clone, Alone::Wait).1).unwrap()
        };
        let mut host = host;
        let next = |host: &mut UnixStream| frame::read::<Event>(host);
        assert!(matches!(next(&mut host), Ok(Some(Event::Heartbeat { .. }))));

        let held = heartbeat.hold();
        host.set_nonblocking(true).unwrap();
        while next(&mut host).is_ok() {}
        thread::sleep(BEAT * 2);
        assert!(
            matches!(next(&mut host), Err(FrameError::Io(e)) if e.kind() == ErrorKind::WouldBlock),
            "beats while held"
        );
        host.set_nonblocking(false).unwrap();
        drop(held);
        assert!(matches!(next(&mut host), Ok(Some(Event::Heartbeat { .. }))));
    }
}
