// SPDX-License-Identifier: MIT OR Apache-2.0
//! Guests of QEMU with a busybox instead of the agent.

use super::{
    FEATURES,
    machine::{bare, boot, command_line, plugin},
};
use crate::{Spec, initramfs::build_shell, process::Process};
use std::{
    env,
    ffi::OsString,
    fs, io,
    path::{Path, PathBuf},
    process::Command,
    time::Instant,
};
use tramplab_model::run::Arch;

/// A guest for a line of its shell, or with the terminal.
pub fn command(
    spec: &Spec,
    (busybox, modules): (&Path, &[PathBuf]),
    line: Option<&str>,
    home: &Path,
    added: &[OsString],
) -> io::Result<Command> {
    let initrd = home.join("initramfs.cpio");
    build_shell(&init(spec.arch, line), busybox, modules, &initrd)?;
    let mut argv = bare(spec);
    let mut add = |words: &[&str]| argv.extend(words.iter().map(OsString::from));
    let mut kernel_line = command_line(spec.arch, &spec.append);
    match line {
        None => {
            // Ctrl-A X ends QEMU, Ctrl-A C opens its monitor, Ctrl-C goes to the guest.
            add(&["-chardev", "stdio,id=console,mux=on,signal=off", "-mon", "chardev=console"]);
            kernel_line.push_str(" quiet");
        }
        Some(_) => add(&["-chardev", "file,id=console,path=/dev/fd/1"]),
    }
    add(&["-serial", "chardev:console"]);
    argv.extend(plugin(spec).into_iter().flatten());
    argv.extend(added.iter().cloned());
    argv.extend(boot(spec, &initrd, &kernel_line));
    let mut command = Command::new(&spec.qemu.program);
    command.args(&spec.qemu.arguments).args(argv).envs(spec.qemu.environment.iter().cloned());
    Ok(command)
}

/// Starts a guest that only powers off. Its console goes to a file, like that of guests with an
/// agent.
pub fn start_idle(spec: &Spec, busybox: &Path) -> io::Result<(Process, Instant)> {
    let initrd = spec.dir.join("bare.cpio");
    build_shell("#!/bin/busybox sh\n/bin/busybox poweroff -f\n", busybox, &[], &initrd)?;
    let mut argv = bare(spec);
    argv.extend(["-serial", "stdio"].map(OsString::from));
    argv.extend(boot(spec, &initrd, &command_line(spec.arch, &spec.append)));
    let log = spec.dir.join("bare.log");
    let output = fs::File::create(&log)?;
    let started = Instant::now();
    let process = Process::start(spec, &argv, (log, output), Vec::new(), &FEATURES.program)?;
    Ok((process, started))
}

/// The first process of a guest without an agent.
fn init(arch: Arch, line: Option<&str>) -> String {
    let console = arch.platform().console.name;
    let session = match line {
        Some(line) => line.to_owned(),
        None => {
            let (rows, columns) = window();
            format!(
                "echo; echo \"tramplab: $(uname -r); exit, or Ctrl-A X, ends it\"\n\
                 setsid sh -c 'exec </dev/{console} >/dev/{console} 2>&1; \
                 stty rows {rows} cols {columns}; exec sh'\n"
            )
        }
    };
    format!(
        "#!/bin/busybox sh\n\
         /bin/busybox --install -s /bin\n\
         export PATH=/bin HOME=/ TERM={term}\n\
         mount -t proc proc /proc; mount -t sysfs sysfs /sys\n\
         mount -t devtmpfs devtmpfs /dev 2>/dev/null\n\
         for kind in tracefs:tracing debugfs:debug; do \
         mount -t ${{kind%:*}} none /sys/kernel/${{kind#*:}} 2>/dev/null; done\n\
         mount -t bpf bpf /sys/fs/bpf 2>/dev/null\n\
         for module in /modules/*; do [ -e \"$module\" ] && insmod \"$module\"; done\n\
         hostname tramplab\n\
         {session}\
         poweroff -f\n",
        term = shell_words::quote(&env::var("TERM").unwrap_or_else(|_| "vt100".to_owned()))
    )
}

/// The terminal's rows and columns.
fn window() -> (u16, u16) {
    // SAFETY: a structure of plain numbers may be zero.
    let mut size: libc::winsize = unsafe { std::mem::zeroed() };
    // SAFETY: the pointer is valid, and the call fills in that structure.
    let asked = unsafe { libc::ioctl(0, libc::TIOCGWINSZ, &mut size) };
    if asked == 0 && size.ws_row > 0 { (size.ws_row, size.ws_col) } else { (24, 80) }
}
