// SPDX-License-Identifier: MIT OR Apache-2.0
//! Times guests without tramplab, for `cargo xtask bench`: bare QEMU with a kernel, and virtme-ng.

use super::{
    Spec,
    initramfs::build_shell,
    machine,
    process::{Qemu, Streams},
    virtme,
};
use std::{
    ffi::OsString,
    fs, io,
    path::Path,
    thread,
    time::{Duration, Instant},
};
use tramplab_host::Vng;

const POLL: Duration = Duration::from_millis(2);

/// The time from QEMU's start to its end, for a guest that only powers off. Its console goes to a
/// file, like ours.
pub fn bare(spec: &Spec, busybox: &Path, limit: Duration) -> io::Result<Duration> {
    let initrd = spec.dir.join("bare.cpio");
    build_shell("#!/bin/busybox sh\n/bin/busybox poweroff -f\n", busybox, &[], &initrd)?;
    let mut argv = machine::bare(spec);
    argv.extend(["-serial", "stdio"].map(OsString::from));
    argv.extend(machine::boot(spec, &initrd, &machine::command_line(spec.arch, &spec.append)));
    let log = spec.dir.join("bare.log");
    let output = fs::File::create(&log)?;
    let started = Instant::now();
    let mut qemu =
        Qemu::start(&spec.qemu, &argv, (log, output), Vec::new(), (spec.memory_mib, spec.cpus))?;
    ended(&mut qemu, started, limit)
}

/// The same for a guest of virtme-ng that runs `true`. Prints no kernel log, as in its usual use.
pub fn virtme_ng(spec: &Spec, vng: &Vng, limit: Duration) -> io::Result<Duration> {
    let started = Instant::now();
    let home = virtme::home(vng, &spec.kernel)?;
    virtme::write_script(home.path(), spec, &[])?;
    let mut command = vng.command(home.path());
    let arguments = virtme::arguments(spec, home.path(), Some("true".into()));
    command.args(arguments.into_iter().filter(|word| word != "--verbose")).current_dir("/");
    let output = fs::File::create(spec.dir.join("virtme-ng.log"))?;
    let mut qemu = Qemu::start_group(&command, home, Streams::Output(output.into()))?;
    ended(&mut qemu, started, limit)
}

fn ended(qemu: &mut Qemu, started: Instant, limit: Duration) -> io::Result<Duration> {
    loop {
        match qemu.exited() {
            Some(status) if qemu.is_good_end(&status) => return Ok(started.elapsed()),
            Some(status) => {
                return Err(io::Error::other(format!("{} ended with {status}", qemu.name())));
            }
            None if started.elapsed() > limit => {
                let message = format!("{} did not end within {} s", qemu.name(), limit.as_secs());
                return Err(io::Error::other(message));
            }
            None => thread::sleep(POLL),
        }
    }
}
