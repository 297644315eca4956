// SPDX-License-Identifier: GPL-2.0-or-later
//! The bare-metal image: assembled, read, and run in QEMU with the plugin.

use object::{Object, ObjectSection, ObjectSymbol};
use std::{
    collections::HashMap,
    fs,
    path::{Path, PathBuf},
    process::{Command, Output},
};
use tempfile::TempDir;
use tramplab_protocol::{
    counts::{self, Counts},
    magic::Magic,
    trace::{self, Kind, Record, Trace},
};

/// What the image leaves in QEMU's exit code when it came to its end.
const DONE: i32 = 1;

pub struct Machine {
    dir: TempDir,
    pub image: PathBuf,
}

pub fn from_env(name: &str) -> PathBuf {
    std::env::var_os(name).unwrap_or_else(|| panic!("{name} is not set: run `cargo xtask test`")).into()
}

/// Assembles and links one freestanding source.
fn link(source: &Path, program: &Path, arguments: &[&str]) {
    let output = Command::new(std::env::var_os("CC").unwrap_or_else(|| "cc".into()))
        .args(["-nostdlib", "-static", "-no-pie"])
        .args(arguments)
        .arg("-o")
        .args([program, source])
        .output()
        .unwrap();
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
}

/// The symbols of an object and their addresses.
pub fn labels(program: &Path) -> HashMap<String, u64> {
    let bytes = fs::read(program).unwrap();
    let file = object::File::parse(&*bytes).unwrap();
    file.symbols().map(|symbol| (symbol.name().unwrap().to_owned(), symbol.address())).collect()
}

impl Machine {
    /// Its windows are recorded.
    pub fn assemble() -> Machine {
        Machine::assemble_with(Magic::Arm)
    }

    /// Its windows are what this asks for.
    pub fn assemble_with(magic: Magic) -> Machine {
        let dir = tempfile::tempdir().unwrap();
        let image = dir.path().join("image");
        let source = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/oracles/image.S");
        let number = format!("-Wa,--defsym,ARM={}", magic as u8);
        link(&source, &image, &["-Wl,-Ttext=0x100000,--build-id=none,-e,start32", &number]);
        Machine { dir, image }
    }

    pub fn path(&self) -> &Path {
        self.dir.path()
    }

    /// Runs QEMU to its end.
    pub fn qemu(&self, accel: &str, arguments: &[&str]) -> Output {
        Command::new("timeout")
            .arg("60")
            .arg(from_env("TRAMPLAB_QEMU"))
            .args("-M q35 -cpu max -m 64 -nodefaults -display none -no-reboot".split(' '))
            .args(["-device", "isa-debug-exit,iobase=0xf4", "-accel", accel, "-kernel"])
            .arg(&self.image)
            .args(arguments)
            .output()
            .unwrap()
    }

    /// The traces of the image's windows, in order.
    pub fn record(&self, accel: &str, arguments: &[&str]) -> Vec<Trace> {
        self.written(accel, arguments, trace::file_name, |bytes| Trace::decode(bytes).unwrap())
    }

    /// The counts of the image's windows, in order.
    pub fn profile(&self, accel: &str, arguments: &[&str]) -> Vec<Counts> {
        self.written(accel, arguments, counts::file_name, |bytes| Counts::decode(bytes).unwrap())
    }

    /// What the plugin wrote.
    fn written<T>(
        &self,
        accel: &str,
        arguments: &[&str],
        name: fn(&Path, u64) -> PathBuf,
        decode: fn(&[u8]) -> T,
    ) -> Vec<T> {
        let dir = tempfile::tempdir_in(self.path()).unwrap();
        let plugin = format!("{},dir={}", from_env("TRAMPLAB_PLUGIN").display(), dir.path().display());
        let mut all = vec!["-plugin", &plugin];
        all.extend(arguments);
        let output = self.qemu(accel, &all);
        assert_eq!(output.status.code(), Some(DONE), "{accel} {arguments:?}: {output:?}");
        let files = fs::read_dir(dir.path()).unwrap().count() as u64;
        (0..files).map(|n| decode(&fs::read(name(dir.path(), n)).unwrap())).collect()
    }

    /// What stands beside the branches in the source, for a QEMU that tells of interrupts or one that does not.
    pub fn expected(&self, section: &str, told: bool) -> Vec<Transfer> {
        let bytes = fs::read(&self.image).unwrap();
        let file = object::File::parse(&*bytes).unwrap();
        let data = file.section_by_name(section).unwrap().data().unwrap();
        let words: Vec<u64> =
            data.chunks_exact(8).map(|word| u64::from_le_bytes(word.try_into().unwrap())).collect();
        let other = if told { 2 } else { 1 };
        let entries = words.chunks_exact(4).filter(|entry| entry[3] != other);
        entries.map(|entry| (entry[0], entry[1], kind(entry[2]))).collect()
    }
}

/// A record without its count of instructions, which the source does not say.
pub type Transfer = (u64, u64, Kind);

pub fn transfers<'a>(records: impl IntoIterator<Item = &'a Record>) -> Vec<Transfer> {
    records.into_iter().map(|record| (record.from, record.to, record.kind)).collect()
}

/// The numbers of image.S.
fn kind(number: u64) -> Kind {
    match number {
        0 => Kind::Cond,
        1 => Kind::Jump,
        2 => Kind::IndJump,
        3 => Kind::Call,
        4 => Kind::IndCall,
        5 => Kind::Ret,
        6 => Kind::Syscall,
        7 => Kind::Sysret,
        8 => Kind::Iret,
        9 => Kind::Int,
        10 => Kind::Interrupt,
        _ => panic!("image.S names no kind {number}"),
    }
}
