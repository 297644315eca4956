// SPDX-License-Identifier: GPL-2.0-or-later
//! Assembles the bare-metal image, runs it in QEMU with the plugin, and compares lists of records.

use object::{Object, ObjectSection};
use std::{
    fs,
    path::{Path, PathBuf},
    process::{Command, Output},
};
use tempfile::TempDir;
use tramplab_protocol::trace::{self, Kind, Record, Trace};

/// What the image leaves in QEMU's exit code when it came to its end.
const DONE: i32 = 1;

pub struct Machine {
    dir: TempDir,
    pub image: PathBuf,
}

pub fn from_env(name: &str) -> PathBuf {
    std::env::var_os(name).unwrap_or_else(|| panic!("{name} is not set: run `cargo xtask test`")).into()
}

impl Machine {
    pub fn assemble() -> Machine {
        let dir = tempfile::tempdir().unwrap();
        let image = dir.path().join("image");
        let source = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/bare_metal/image.S");
        let output = Command::new(std::env::var_os("CC").unwrap_or_else(|| "cc".into()))
            .args(["-nostdlib", "-static", "-no-pie", "-Wl,-Ttext=0x100000,--build-id=none,-e,start32", "-o"])
            .args([&image, &source])
            .output()
            .unwrap();
        assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
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

    /// The traces of the image's two windows.
    pub fn record(&self, accel: &str, arguments: &[&str]) -> [Trace; 2] {
        let dir = tempfile::tempdir_in(self.path()).unwrap();
        let plugin = format!("{},dir={}", from_env("TRAMPLAB_PLUGIN").display(), dir.path().display());
        let mut all = vec!["-plugin", &plugin];
        all.extend(arguments);
        let output = self.qemu(accel, &all);
        assert_eq!(output.status.code(), Some(DONE), "{accel} {arguments:?}: {output:?}");
        let files = fs::read_dir(dir.path()).unwrap().count();
        assert_eq!(files, 2, "two windows, two traces");
        [0, 1].map(|n| Trace::decode(&fs::read(trace::file_name(dir.path(), n)).unwrap()).unwrap())
    }

    /// What stands beside the branches in the source.
    pub fn expected(&self) -> Vec<Record> {
        let bytes = fs::read(&self.image).unwrap();
        let file = object::File::parse(&*bytes).unwrap();
        let data = file.section_by_name(".expected").unwrap().data().unwrap();
        let words: Vec<u64> =
            data.chunks_exact(8).map(|word| u64::from_le_bytes(word.try_into().unwrap())).collect();
        words.chunks_exact(3).map(|w| Record { from: w[0], to: w[1], kind: kind(w[2]) }).collect()
    }
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
        8 => Kind::Iret,
        9 => Kind::Int,
        10 => Kind::Interrupt,
        _ => panic!("image.S names no kind {number}"),
    }
}

/// The first difference, with its surroundings.
pub fn difference<T: PartialEq + std::fmt::Debug>(expected: &[T], found: &[T]) -> Option<String> {
    let at = expected.iter().zip(found).position(|(e, f)| e != f);
    let at = at.or_else(|| (expected.len() != found.len()).then(|| expected.len().min(found.len())))?;
    let around = |list: &[T]| format!("{:#x?}", &list[at.saturating_sub(2)..list.len().min(at + 3)]);
    Some(format!(
        "record {at} of {} expected and {} found differs\nexpected: {}\nfound: {}",
        expected.len(),
        found.len(),
        around(expected),
        around(found)
    ))
}

#[test]
fn a_dropped_an_invented_and_a_changed_record_are_seen() {
    let good = [1, 2, 3, 4];
    assert_eq!(difference(&good, &good), None);
    for (bad, at) in [
        (&[1, 2, 4][..], 2),
        (&[1, 2, 3], 3),
        (&[1, 9, 2, 3, 4], 1),
        (&[1, 2, 3, 4, 5], 4),
        (&[1, 2, 7, 4], 2),
    ] {
        assert!(difference(&good, bad).unwrap().starts_with(&format!("record {at} of")), "{bad:?}");
    }
}
