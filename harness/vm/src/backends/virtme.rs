// SPDX-License-Identifier: MIT OR Apache-2.0
//! Starts a guest with virtme-ng: its root is the host's file system, read-only, and the agent is a
//! program in it.
//!
//! `vng` starts virtiofsd and QEMU itself. It closes inherited descriptors and passes many options
//! to a shell unquoted, so it gets only plain words. The kernel is a link, QEMU is a script that
//! adds the options that vng lacks, and the agent's link is a socket. All are in a folder that is
//! removed with the guest.

use super::{Feature, Features, PORTS_DEVICE, port, qemu::machine, short_folder};
use crate::{
    VmError,
    process::{Process, Program, Streams},
    spec::Spec,
    time::{GuestTime, Over},
};
use std::{
    env,
    ffi::{OsStr, OsString},
    fs, io,
    os::{
        fd::OwnedFd,
        unix::{
            ffi::{OsStrExt, OsStringExt},
            fs::{PermissionsExt, symlink},
            net::{UnixListener, UnixStream},
        },
    },
    path::Path,
    process::Command,
    thread,
    time::{Duration, Instant},
};
use tramplab_host::Vng;
use tramplab_model::run::{Accel, ErrorKind};
use tramplab_protocol::message::{PORT_NAME, PROGRAM_WORD};

pub static FEATURES: Features = Features {
    // 255: the guest ended before its script did.
    program: Program { name: "virtme-ng", powered_off: &[0, 255] },
    // Its init is not under our control.
    restores: false,
    agent_on_console: false,
    has_host_files: true,
    root: "virtme-ng's root is a virtiofs",
    // No initramfs loads modules.
    built_in: &["FUSE_FS", "VIRTIO_FS", "VIRTIO_CONSOLE"],
    fragment: Some("virtme-ng"),
    // virtme-ng puts the line, in base64, on the kernel's command line, which the kernel cuts at
    // 2048 bytes (K `COMMAND_LINE_SIZE`).
    longest_line: Some(650),
    lacks,
};

fn lacks(feature: Feature) -> Option<&'static str> {
    Some(match feature {
        Feature::PackedFiles => {
            "modules and commands are packed into the guest's root, and virtme-ng's is the host's; \
             use --vm qemu"
        }
        Feature::PackedTests => {
            "the tree's own tests are packed into the guest's root, and virtme-ng's is the host's; \
             use --vm qemu"
        }
        Feature::ExactClock { or_free: true } => {
            "the exact clock needs a guest that does not wait for the host, and virtme-ng's guests \
             read the host's files while they measure; use --clock free, or --vm qemu"
        }
        Feature::ExactClock { or_free: false } => "virtme-ng has no exact clock: use --vm qemu",
    })
}

const POLL: Duration = Duration::from_millis(20);
const SOCKET: &str = "agent";

/// Starts virtme-ng and waits until QEMU connects to the agent's socket.
pub fn launch(
    spec: &Spec,
    vng: &Vng,
    agent: &Path,
    output: OwnedFd,
) -> Result<(Process, UnixStream), VmError> {
    try_launch(spec, vng, agent, output).map_err(|error| {
        let kind = match error.kind() {
            io::ErrorKind::TimedOut => ErrorKind::Starved,
            _ => ErrorKind::QemuStart,
        };
        VmError::new(kind, format!("failed to start {}: {error}", vng.program.display()))
    })
}

fn try_launch(
    spec: &Spec,
    vng: &Vng,
    agent: &Path,
    output: OwnedFd,
) -> io::Result<(Process, UnixStream)> {
    let home = short_folder()?;
    let agent = agent
        .canonicalize()
        .map_err(|error| io::Error::new(error.kind(), format!("{}: {error}", agent.display())))?;
    let program = Some(quoted(agent.as_os_str()));
    let mut command = command(spec, vng, program, home.path(), &agent_link(home.path()))?;
    let listener = UnixListener::bind(home.path().join(SOCKET))?;
    listener.set_nonblocking(true)?;
    command.current_dir("/");
    let streams = Streams::Output(output);
    let mut process = Process::start_group(&command, home, streams, &FEATURES.program)?;
    let mut time = GuestTime::of(process.id());
    let began = time.now();
    loop {
        match listener.accept() {
            Ok((stream, _)) => {
                stream.set_nonblocking(false)?;
                return Ok((process, stream));
            }
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => {}
            Err(error) => return Err(error),
        }
        if let Some(status) = process.exited() {
            return Err(io::Error::other(format!("it ended with {status} before QEMU ran")));
        }
        match began.over(time.now(), spec.deadlines.boot) {
            None => {}
            Some(Over::Late) => return Err(io::Error::other("QEMU did not start in time")),
            Some(Over::Starved) => return Err(io::ErrorKind::TimedOut.into()),
        }
        thread::sleep(POLL);
    }
}

/// A guest for a line of its shell, or with the terminal.
pub fn shell(
    spec: &Spec,
    vng: &Vng,
    line: Option<&str>,
    home: &Path,
    added: &[OsString],
) -> io::Result<Command> {
    let mut command = command(spec, vng, line.map(OsString::from), home, added)?;
    command.current_dir(env::current_dir()?);
    Ok(command)
}

/// Starts a guest that runs `true`. Prints no kernel log, as in its usual use.
pub fn start_idle(spec: &Spec, vng: &Vng) -> io::Result<(Process, Instant)> {
    let started = Instant::now();
    let home = short_folder()?;
    prepare(home.path(), spec, vng, &[])?;
    let arguments = arguments(spec, home.path(), Some("true".into()));
    let mut command = vng.command(home.path());
    command.args(arguments.into_iter().filter(|word| word != "--verbose")).current_dir("/");
    let output = fs::File::create(spec.dir.join("virtme-ng.log"))?;
    let streams = Streams::Output(output.into());
    Ok((Process::start_group(&command, home, streams, &FEATURES.program)?, started))
}

fn command(
    spec: &Spec,
    vng: &Vng,
    program: Option<OsString>,
    home: &Path,
    added: &[OsString],
) -> io::Result<Command> {
    prepare(home, spec, vng, added)?;
    let mut command = vng.command(home);
    command.args(arguments(spec, home, program));
    Ok(command)
}

/// Makes the files that virtme-ng gets by name.
fn prepare(home: &Path, spec: &Spec, vng: &Vng, added: &[OsString]) -> io::Result<()> {
    let at = |name: &str| home.join(name);
    fs::create_dir_all(at("bin"))?;
    symlink(&vng.virtiofsd, at("bin/virtiofsd"))?;
    symlink(spec.kernel.canonicalize()?, at("kernel"))?;
    // virtme-ng prefers it to the system-wide configuration.
    fs::create_dir_all(at(".config/virtme-ng"))?;
    fs::write(at(".config/virtme-ng/virtme-ng.conf"), "{}\n")?;
    fs::write(at("qemu"), script(spec, added).as_bytes())?;
    fs::set_permissions(at("qemu"), fs::Permissions::from_mode(0o755))
}

/// `vng`'s arguments. A shell in the guest runs `program`; without one the guest gets the terminal.
fn arguments(spec: &Spec, home: &Path, program: Option<OsString>) -> Vec<OsString> {
    let mut argv: Vec<OsString> = Vec::new();
    let mut add = |words: &[&str]| argv.extend(words.iter().map(OsString::from));
    // The root is the host's file system, which lacks this kernel's modules.
    add(&["--skip-modules", "--disable-microvm"]);
    if spec.accel == Accel::Tcg {
        add(&["--disable-kvm"]);
    }
    add(&["--cpus", &spec.cpus.to_string(), "--memory", &format!("{}M", spec.memory_mib)]);
    match program {
        // Without it the console goes nowhere.
        Some(_) => add(&["--verbose"]),
        None => add(&["--user", "root"]),
    }
    let words = machine::words(spec.arch, &spec.append);
    for word in words.iter().map(String::as_str).chain([PROGRAM_WORD]) {
        add(&["--append", &shell_words::quote(word)]);
    }
    argv.extend([
        "--run".into(),
        home.join("kernel").into(),
        "--qemu".into(),
        home.join("qemu").into(),
    ]);
    if let Some(program) = program {
        argv.extend(["--".into(), program]);
    }
    argv
}

/// QEMU's options for the agent's port. We listen on its socket.
fn agent_link(home: &Path) -> Vec<OsString> {
    let mut words = PORTS_DEVICE.map(OsString::from).to_vec();
    words.extend(port(home, SOCKET, PORT_NAME));
    words
}

/// The script's text. It appends the options of the machine without vng to those of vng: QEMU uses
/// the last of repeated options.
fn script(spec: &Spec, ports: &[OsString]) -> OsString {
    let Spec { qemu, arch, accel, .. } = spec;
    let mut words: Vec<OsString> = vec![qemu.program.clone().into()];
    words.extend(qemu.arguments.iter().cloned());
    let program = joined(&words);
    let mut added: Vec<OsString> = Vec::new();
    let mut add = |words: &[&str]| added.extend(words.iter().map(OsString::from));
    add(&["-nodefaults", "-no-user-config", "-no-reboot", "-sandbox", machine::SANDBOX]);
    add(&["-machine", &format!("{},accel={}", machine::board(*arch, *accel), accel.name())]);
    add(&["-cpu", &spec.cpu_model()]);
    added.extend(ports.iter().cloned());
    added.extend(machine::plugin(spec).into_iter().flatten());
    let added = joined(&added);
    let mut text = b"#!/bin/sh\n".to_vec();
    for (name, value) in &qemu.environment {
        text.extend([b"export ", name.as_bytes(), b"=", quoted(value).as_bytes(), b"\n"].concat());
    }
    let parts = [
        // vng asks for the version first.
        b"[ \"$1\" = --version ] && exec ".as_slice(),
        program.as_bytes(),
        b" --version\nexec ",
        program.as_bytes(),
        b" \"$@\" ",
        added.as_bytes(),
        b"\n",
    ];
    text.extend(parts.concat());
    OsString::from_vec(text)
}

fn joined(words: &[OsString]) -> OsString {
    let words: Vec<OsString> = words.iter().map(|word| quoted(word)).collect();
    words.join(OsStr::new(" "))
}

/// Quotes one word for a shell. It need not be UTF-8.
pub fn quoted(word: &OsStr) -> OsString {
    let plain = |byte: &u8| byte.is_ascii_alphanumeric() || b"-_./,=+:@%".contains(byte);
    if !word.is_empty() && word.as_bytes().iter().all(plain) {
        return word.to_owned();
    }
    let mut bytes = vec![b'\''];
    for &byte in word.as_bytes() {
        match byte {
            b'\'' => bytes.extend(b"'\\''"),
            _ => bytes.push(byte),
        }
    }
    bytes.push(b'\'');
    OsString::from_vec(bytes)
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::process::Command;
    use tramplab_host::QemuProgram;
    use tramplab_model::run::Arch;

    #[test]
    fn writes_the_command_line_of_vng() {
        for (accel, kvm) in [(Accel::Tcg, " --disable-kvm"), (Accel::Kvm, "")] {
            let spec = Spec::example(Arch::X86_64, accel);
            let words = arguments(&spec, Path::new("/tmp/home"), Some("/a/agent".into()));
            let text =
                words.iter().map(|word| word.to_string_lossy()).collect::<Vec<_>>().join(" ");
            assert_eq!(
                text,
                format!(
                    "--skip-modules --disable-microvm{kvm} --cpus 2 --memory 512M --verbose \
                     --append no_timer_check --append cryptomgr.notests --append 'panic=-1' \
                     --append 'mitigations=auto' --append 'dyndbg=a b' \
                     --append 'tramplab.agent=program' --run /tmp/home/kernel \
                     --qemu /tmp/home/qemu -- /a/agent"
                )
            );
        }
    }

    /// Runs the script with a real shell, and with a program that prints its arguments as QEMU.
    #[test]
    fn appends_to_vngs_options_and_quotes_all_words() {
        let folder = tempfile::tempdir().unwrap();
        let tell = "printf '%s|' \"$MODULES\" \"$@\"".into();
        let qemu = QemuProgram {
            program: "/bin/sh".into(),
            arguments: vec!["-c".into(), tell, "q e'mu".into(), "-L".into(), "da ta".into()],
            environment: vec![("MODULES".into(), "a b".into())],
        };
        let path = folder.path().join("qemu");
        let plugin = Some("it's/x,y.so".into());
        let spec = Spec { qemu, plugin, ..Spec::example(Arch::X86_64, Accel::Tcg) };
        fs::write(&path, script(&spec, &agent_link(folder.path())).as_bytes()).unwrap();
        let told = |arguments: &[&str]| {
            let output = Command::new("/bin/sh").arg(&path).args(arguments).output().unwrap();
            String::from_utf8(output.stdout).unwrap()
        };
        assert_eq!(told(&["--version"]), "a b|-L|da ta|--version|");
        let ran = told(&["-m", "1 G"]);
        assert!(ran.starts_with("a b|-L|da ta|-m|1 G|-nodefaults|"), "{ran}");
        for part in [
            "|-machine|q35,usb=off,vmport=off,sata=off,smbus=off,accel=tcg|-cpu|max|",
            &format!(
                "|-chardev|socket,id=agent,path={}/agent|-device|virtserialport,",
                folder.path().display()
            ),
            "|-device|virtserialport,bus=tramplab.0,chardev=agent,name=tramplab.agent|",
        ] {
            assert!(ran.contains(part), "{part:?} is missing in {ran}");
        }
        assert!(ran.ends_with("|-plugin|file=it's/x,,y.so,dir=runs/a b|"), "{ran}");
    }
}
