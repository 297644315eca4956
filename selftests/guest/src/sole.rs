// SPDX-License-Identifier: MIT OR Apache-2.0
//! Only one agent at a time measures the user's own machine: two would record each other's
//! programs.

use nix::errno::Errno;
use nix::sys::socket::{AddressFamily, SockFlag, SockType, UnixAddr, bind, socket};
use std::os::fd::{AsRawFd, OwnedFd};
use std::thread;
use std::time::{Duration, Instant};

/// The name of an abstract socket, which leaves no file. The network namespace has it once.
const NAME: &[u8] = b"tramplab-this-machine";
/// The run's previous agent may still detach hundreds of links. The host waits longer.
const PATIENCE: Duration = Duration::from_secs(60);
const POLL: Duration = Duration::from_millis(50);

#[derive(Debug, PartialEq, Eq, thiserror::Error)]
pub enum SoleError {
    #[error("another run of tramplab measures this machine: wait for its end")]
    Another,
    #[error("failed to claim this machine by an abstract Unix socket: {0}")]
    Socket(#[from] Errno),
}

/// Keeps other agents waiting while it lives. Claim the machine before anything else: the kernel
/// releases the files of an ending process from the highest descriptor to the lowest, so the links
/// are detached first.
#[derive(Debug)]
pub struct Sole(#[expect(dead_code, reason = "it is held")] OwnedFd);

pub fn claim() -> Result<Sole, SoleError> {
    claim_name(NAME, PATIENCE)
}

fn claim_name(name: &[u8], patience: Duration) -> Result<Sole, SoleError> {
    let address = UnixAddr::new_abstract(name)?;
    // Never listens, so nobody can connect.
    let socket = socket(AddressFamily::Unix, SockType::Stream, SockFlag::SOCK_CLOEXEC, None)?;
    let start = Instant::now();
    loop {
        match bind(socket.as_raw_fd(), &address) {
            Ok(()) => return Ok(Sole(socket)),
            Err(Errno::EADDRINUSE) if start.elapsed() >= patience => {
                return Err(SoleError::Another);
            }
            Err(Errno::EADDRINUSE) => thread::sleep(POLL),
            Err(errno) => return Err(errno.into()),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn second_claim_waits_for_the_end_of_the_first() {
        let name = format!("tramplab-test-{}", std::process::id());
        let claim = |patience| claim_name(name.as_bytes(), patience);
        let first = claim(Duration::ZERO).unwrap();
        assert_eq!(claim(POLL * 2).unwrap_err(), SoleError::Another);
        let ends = thread::spawn(move || {
            thread::sleep(POLL * 2);
            drop(first);
        });
        assert!(claim(Duration::from_secs(30)).is_ok());
        ends.join().unwrap();
    }
}
