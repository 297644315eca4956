// SPDX-License-Identifier: MIT OR Apache-2.0
//! Sets up the folders, mounts and the network interface `lo` that programs expect of a machine,
//! and that the kernel's own tests take for granted.

use crate::changes;
use nix::errno::Errno;
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
        if let Err(errno) = changes::raise_loopback() {
            eprintln!("tramplab-agent: failed to bring lo up: {errno}");
        }
    });
}
