// SPDX-License-Identifier: MIT OR Apache-2.0
//! Sets up the folders, mounts and the network interface `lo` that programs expect of a machine,
//! and that the kernel's own tests take for granted.

use crate::changes;
use nix::errno::Errno;
use nix::sys::socket::{AddressFamily, SockFlag, SockType, socket};
use std::os::fd::AsRawFd;
use std::path::Path;
use std::sync::Once;

const FOLDERS: [&str; 6] = ["/etc", "/mnt", "/root", "/var/tmp", "/dev/shm", "/dev/pts"];

/// Groups that a test can give a file to.
const FILES: [(&str, &str); 2] = [
    ("/etc/passwd", "root:x:0:0::/root:/bin/sh\nnobody:x:65534:65534::/:/bin/false\n"),
    ("/etc/group", "root:x:0:\nnogroup:x:65534:\n"),
];

const MOUNTS: [(&str, &str); 4] = [
    ("cgroup2", "/sys/fs/cgroup"),
    ("tmpfs", "/dev/shm"),
    ("devpts", "/dev/pts"),
    ("tmpfs", "/tmp"),
];

/// Runs once per guest. Prints the parts that a kernel lacks; programs that need them fail.
pub fn prepare() {
    static ONCE: Once = Once::new();
    ONCE.call_once(|| {
        for folder in FOLDERS {
            if let Err(error) = changes::make_folders(folder) {
                eprintln!("tramplab-agent: failed to make {folder}: {error}");
            }
        }
        for (path, text) in FILES.into_iter().filter(|(path, _)| !Path::new(path).exists()) {
            if let Err(error) = changes::write(path, text) {
                eprintln!("tramplab-agent: failed to write {path}: {error}");
            }
        }
        for (kind, target) in MOUNTS {
            match changes::mount(kind, target, kind) {
                Ok(()) | Err(Errno::EBUSY) => {}
                Err(errno) => eprintln!("tramplab-agent: no {kind} on {target}: {errno}"),
            }
        }
        if let Err(errno) = loopback_up() {
            eprintln!("tramplab-agent: failed to bring lo up: {errno}");
        }
    });
}

fn loopback_up() -> nix::Result<()> {
    let socket = socket(AddressFamily::Inet, SockType::Datagram, SockFlag::SOCK_CLOEXEC, None)?;
    // SAFETY: plain data, for which all zeros are valid.
    let mut request: libc::ifreq = unsafe { std::mem::zeroed() };
    for (to, from) in request.ifr_name.iter_mut().zip(b"lo") {
        *to = *from as libc::c_char;
    }
    request.ifr_ifru.ifru_flags = (libc::IFF_UP | libc::IFF_RUNNING) as libc::c_short;
    // SAFETY: the request outlives the call, which reads it.
    Errno::result(unsafe {
        libc::ioctl(socket.as_raw_fd(), libc::SIOCSIFFLAGS as _, &raw const request)
    })
    .map(drop)
}
