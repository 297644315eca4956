// SPDX-License-Identifier: MIT OR Apache-2.0
//! A guest by virtme-ng: its root is the host's own file system, read-only, and the agent a program in it.
//!
//! `vng` starts virtiofsd and QEMU itself. It closes what it inherited and hands many of its options to a shell as they are, so
//! it is given nothing but plain words: the kernel is a link, QEMU a script of ours that adds what vng knows no option for, and
//! the agent's link a socket, all in a folder that is gone with the guest.

use super::{
    machine::{self, Spec},
    process::{Qemu, Streams},
};
use serde::{Deserialize, Serialize};
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
    path::{Path, PathBuf},
    thread,
    time::{Duration, Instant},
};
use tempfile::TempDir;
use tramplab_host::Vng;
use tramplab_model::run::Accel;
use tramplab_protocol::message::{PORT_NAME, PROGRAM_WORD};

/// The host's userspace as a guest's.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Virtme {
    pub vng: Vng,
    /// The same program as in the initramfs.
    pub agent: PathBuf,
}

const POLL: Duration = Duration::from_millis(20);
const SOCKET: &str = "agent";
/// Of a folder for sockets, whose paths may have 107 bytes.
const LONGEST: usize = 60;

/// Starts it, and waits for QEMU to take up the agent's link.
pub fn start(
    spec: &Spec,
    virtme: &Virtme,
    output: OwnedFd,
    deadline: Instant,
) -> io::Result<(Qemu, UnixStream)> {
    let home = home(&virtme.vng, &spec.kernel)?;
    write_script(home.path(), spec, &agent_link(home.path()))?;
    let listener = UnixListener::bind(home.path().join(SOCKET))?;
    listener.set_nonblocking(true)?;
    let mut command = virtme.vng.command(home.path());
    let agent = virtme
        .agent
        .canonicalize()
        .map_err(|error| io::Error::new(error.kind(), format!("{}: {error}", virtme.agent.display())))?;
    command.args(arguments(spec, home.path(), Some(quoted(agent.as_os_str())))).current_dir("/");
    let mut qemu = Qemu::start_group(&command, home, Streams::Output(output))?;
    loop {
        match listener.accept() {
            Ok((stream, _)) => {
                stream.set_nonblocking(false)?;
                return Ok((qemu, stream));
            }
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => {}
            Err(error) => return Err(error),
        }
        if let Some(status) = qemu.exited() {
            return Err(io::Error::other(format!("it ended with {status} before QEMU ran")));
        }
        if Instant::now() > deadline {
            return Err(io::Error::other("QEMU did not begin in time"));
        }
        thread::sleep(POLL);
    }
}

/// A folder of its own for a guest. Its path is short and plain: sockets are in it.
pub fn short_folder() -> io::Result<TempDir> {
    let temporary = env::temp_dir();
    let fits = temporary.as_os_str().len() < LONGEST && quoted(temporary.as_os_str()) == temporary;
    let temporary = if fits { temporary } else { "/tmp".into() };
    // Whoever can connect to its sockets has the guest.
    let ours_alone = fs::Permissions::from_mode(0o700);
    tempfile::Builder::new().prefix("tramplab-").permissions(ours_alone).tempdir_in(temporary)
}

/// The folder that virtme-ng has for its own, with all that is handed to it by name.
pub fn home(vng: &Vng, kernel: &Path) -> io::Result<TempDir> {
    let home = short_folder()?;
    let at = |name: &str| home.path().join(name);
    fs::create_dir_all(at("bin"))?;
    symlink(&vng.virtiofsd, at("bin/virtiofsd"))?;
    symlink(kernel.canonicalize()?, at("kernel"))?;
    // Before the system-wide one.
    fs::create_dir_all(at(".config/virtme-ng"))?;
    fs::write(at(".config/virtme-ng/virtme-ng.conf"), "{}\n")?;
    Ok(home)
}

/// `vng`'s arguments; `program` is run in the guest by a shell, and without one there is the terminal.
pub fn arguments(spec: &Spec, home: &Path, program: Option<OsString>) -> Vec<OsString> {
    let mut argv: Vec<OsString> = Vec::new();
    let mut add = |words: &[&str]| argv.extend(words.iter().map(OsString::from));
    // Not the kernel's modules: the root is a virtiofs of the host's, which has others.
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
    let own = machine::own_words(spec.arch);
    let asked = spec.append.iter().map(String::as_str);
    for word in own.into_iter().chain(asked).chain([PROGRAM_WORD]) {
        add(&["--append", &shell_words::quote(word)]);
    }
    argv.extend(["--run".into(), home.join("kernel").into(), "--qemu".into(), home.join("qemu").into()]);
    if let Some(program) = program {
        argv.extend(["--".into(), program]);
    }
    argv
}

/// The agent's port, at the other end of which we listen.
fn agent_link(home: &Path) -> Vec<OsString> {
    let mut words = vec!["-device".into(), "virtio-serial-pci,id=tramplab".into()];
    words.extend(port(home, SOCKET, PORT_NAME));
    words
}

/// A port of the guest's that is a socket in the home.
pub fn port(home: &Path, socket: &str, name: &str) -> [OsString; 4] {
    [
        "-chardev".into(),
        format!("socket,id={socket},path={}", home.join(socket).display()).into(),
        "-device".into(),
        format!("virtserialport,bus=tramplab.0,chardev={socket},name={name}").into(),
    ]
}

pub fn write_script(home: &Path, spec: &Spec, ports: &[OsString]) -> io::Result<()> {
    let path = home.join("qemu");
    fs::write(&path, script(spec, ports).as_bytes())?;
    fs::set_permissions(&path, fs::Permissions::from_mode(0o755))
}

/// The script that vng takes for QEMU: the same machine as without vng, behind all that vng asks for. QEMU takes the last of what
/// is said twice.
fn script(spec: &Spec, ports: &[OsString]) -> OsString {
    let Spec { qemu, arch, accel, plugin, lbr, dir, .. } = spec;
    let mut words: Vec<OsString> = vec![qemu.program.clone().into()];
    words.extend(qemu.arguments.iter().cloned());
    let program = joined(&words);
    let mut added: Vec<OsString> = Vec::new();
    let mut add = |words: &[&str]| added.extend(words.iter().map(OsString::from));
    add(&["-nodefaults", "-no-user-config", "-no-reboot", "-sandbox", machine::SANDBOX]);
    add(&["-machine", &format!("{},accel={}", machine::board(*arch, *accel), accel.name())]);
    add(&["-cpu", &machine::cpu_model(*accel, *arch, *lbr)]);
    added.extend(ports.iter().cloned());
    if let Some(plugin) = plugin {
        added.extend(["-plugin".into(), machine::plugin_option(plugin, dir)]);
    }
    let added = joined(&added);
    let mut text = b"#!/bin/sh\n".to_vec();
    for (name, value) in &qemu.environment {
        text.extend([b"export ", name.as_bytes(), b"=", quoted(value).as_bytes(), b"\n"].concat());
    }
    let parts = [
        // Asked before the guest runs.
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

/// One word for a shell. Paths need not be text.
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
    use crate::Deadlines;
    use std::process::Command;
    use tramplab_host::QemuProgram;
    use tramplab_model::run::{Arch, Clock};

    fn spec(accel: Accel, qemu: QemuProgram) -> Spec {
        Spec {
            qemu,
            arch: Arch::X86_64,
            accel,
            clock: Clock::Free,
            kernel: "k".into(),
            initrd: "i".into(),
            virtme: None,
            cpus: 2,
            memory_mib: 512,
            append: vec!["mitigations=auto".to_owned(), "dyndbg=a b".to_owned()],
            plugin: (accel == Accel::Tcg).then(|| "it's/x,y.so".into()),
            snapshots: None,
            lbr: None,
            dir: "runs/a b".into(),
            deadlines: Deadlines::default(),
        }
    }

    fn plain() -> QemuProgram {
        QemuProgram { program: "qemu".into(), arguments: vec![], environment: vec![] }
    }

    #[test]
    fn the_command_line_of_vng() {
        for (accel, kvm) in [(Accel::Tcg, " --disable-kvm"), (Accel::Kvm, "")] {
            let words = arguments(&spec(accel, plain()), Path::new("/tmp/home"), Some("/a/agent".into()));
            let text = words.iter().map(|word| word.to_string_lossy()).collect::<Vec<_>>().join(" ");
            assert_eq!(
                text,
                format!(
                    "--skip-modules --disable-microvm{kvm} --cpus 2 --memory 512M --verbose --append no_timer_check \
                     --append cryptomgr.notests --append 'panic=-1' --append 'mitigations=off' --append 'mitigations=auto' \
                     --append 'dyndbg=a b' --append 'tramplab.agent=program' --run /tmp/home/kernel \
                     --qemu /tmp/home/qemu -- /a/agent"
                )
            );
        }
    }

    /// Through the shell that will read it, with a program for QEMU that tells its arguments.
    #[test]
    fn the_script_adds_to_what_vng_asks_for_and_nothing_is_lost_in_quoting() {
        let folder = tempfile::tempdir().unwrap();
        let tell = "printf '%s|' \"$MODULES\" \"$@\"".into();
        let qemu = QemuProgram {
            program: "/bin/sh".into(),
            arguments: vec!["-c".into(), tell, "q e'mu".into(), "-L".into(), "da ta".into()],
            environment: vec![("MODULES".into(), "a b".into())],
        };
        let path = folder.path().join("qemu");
        fs::write(&path, script(&spec(Accel::Tcg, qemu), &agent_link(folder.path())).as_bytes()).unwrap();
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
