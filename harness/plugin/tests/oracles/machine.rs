// SPDX-License-Identifier: GPL-2.0-or-later
//! Assembles the bare-metal image, reads its symbols, and runs it in QEMU with the plugin.

use object::{Object, ObjectSection, ObjectSymbol};
use std::{
    collections::HashMap,
    fs,
    path::{Path, PathBuf},
    process::{Command, Output},
};
use tempfile::TempDir;
use tramplab_model::run::Arch;
use tramplab_protocol::{
    counts::{self, Counts},
    magic::{self, Magic},
    trace::{self, Accesses, Kind, Record, Trace},
};

/// QEMU's exit code after an image ran to its end.
const DONE: i32 = 1;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Guest {
    X86_64,
    /// Under a QEMU that reports interrupts and exceptions and has another plugin interface.
    X86_64Newer,
    Arm64,
}

/// The differences between the images.
struct Architecture {
    /// A folder in `tests/oracles`.
    source: &'static str,
    /// Set unless the compiler is `cc` or the one that the variable `CC` names.
    cross_compiler: Option<&'static str>,
    /// Options for the linker.
    link: &'static str,
    /// The environment variable that names QEMU.
    qemu: &'static str,
    /// QEMU's arguments, without the image.
    machine: &'static str,
    /// The address range of the image's instructions.
    code: &'static str,
}

const X86_64: Architecture = Architecture {
    source: "x86_64/image.S",
    cross_compiler: None,
    link: "-Wl,-Ttext=0x100000,--build-id=none,-e,start32",
    qemu: "TRAMPLAB_QEMU_X86_64",
    machine: "-M q35 -cpu max -device isa-debug-exit,iobase=0xf4",
    // Without the firmware, which runs before. Once more where kernels are.
    code: "0x100000..0x3fffff,0xffff800000100000..0xffff8000003fffff",
};

const X86_64_NEWER: Architecture =
    Architecture { qemu: "TRAMPLAB_QEMU_DELIVERING_X86_64", ..X86_64 };

const ARM64: Architecture = Architecture {
    source: "arm64/image.S",
    cross_compiler: Some("aarch64-linux-gnu-gcc"),
    link: "-Wl,-Ttext=0x40200000,--section-start=.user=0x40400000,-Tdata=0x40600000,\
           --build-id=none,-e,start",
    qemu: "TRAMPLAB_QEMU_ARM64",
    machine: "-M virt,gic-version=3 -cpu max,pauth-impdef=on -semihosting-config \
              enable=on,target=native",
    code: "0x40200000..0x405fffff",
};

impl Guest {
    pub fn arch(self) -> Arch {
        match self {
            Guest::X86_64 | Guest::X86_64Newer => Arch::X86_64,
            Guest::Arm64 => Arch::Arm64,
        }
    }

    fn architecture(self) -> &'static Architecture {
        match self {
            Guest::X86_64 => &X86_64,
            Guest::X86_64Newer => &X86_64_NEWER,
            Guest::Arm64 => &ARM64,
        }
    }
}

/// Runs the named tests, functions of the same module, on each architecture.
macro_rules! on_each_machine {
    ($($test:ident)+) => {
        mod x86_64 {
            $(#[test] fn $test() { super::$test($crate::machine::Guest::X86_64) })+
        }
        mod x86_64_newer {
            $(#[test] fn $test() { super::$test($crate::machine::Guest::X86_64Newer) })+
        }
        mod arm64 {
            $(#[test] fn $test() { super::$test($crate::machine::Guest::Arm64) })+
        }
    };
}
pub(crate) use on_each_machine;

pub struct Machine {
    pub guest: Guest,
    dir: TempDir,
    pub image: PathBuf,
}

pub fn from_env(name: &str) -> PathBuf {
    std::env::var_os(name)
        .unwrap_or_else(|| panic!("{name} is not set: run `cargo xtask test`"))
        .into()
}

/// Assembles and links one freestanding source.
fn link(cross_compiler: Option<&str>, source: &Path, program: &Path, arguments: &[&str]) {
    let own = || std::env::var_os("CC").unwrap_or_else(|| "cc".into());
    let compiler = cross_compiler.map_or_else(own, Into::into);
    let output = Command::new(&compiler)
        .args(["-nostdlib", "-static", "-no-pie"])
        .args(arguments)
        .arg("-o")
        .args([program, source])
        .output()
        .unwrap_or_else(|error| panic!("{}: {error}", compiler.display()));
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
}

/// The symbols of an object, with their addresses.
pub fn labels(program: &Path) -> HashMap<String, u64> {
    let bytes = fs::read(program).unwrap();
    let file = object::File::parse(&*bytes).unwrap();
    file.symbols().map(|symbol| (symbol.name().unwrap().to_owned(), symbol.address())).collect()
}

impl Machine {
    /// Assembles an image that records its windows.
    pub fn assemble(guest: Guest) -> Machine {
        Machine::assemble_with(guest, Magic::Arm)
    }

    /// Assembles an image whose windows start with this magic instruction.
    pub fn assemble_with(guest: Guest, magic: Magic) -> Machine {
        let dir = tempfile::tempdir().unwrap();
        let image = dir.path().join("image");
        let Architecture { source, cross_compiler, link: arguments, .. } = *guest.architecture();
        let source = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/oracles").join(source);
        let number = format!("-Wa,--defsym,ARM={}", magic as u8);
        link(cross_compiler, &source, &image, &[arguments, &number]);
        Machine { guest, dir, image }
    }

    /// The address range of the image's instructions.
    pub fn code(&self) -> &'static str {
        self.guest.architecture().code
    }

    pub fn path(&self) -> &Path {
        self.dir.path()
    }

    /// Runs QEMU to its end.
    pub fn qemu(&self, accel: &str, arguments: &[&str]) -> Output {
        Command::new("timeout")
            .arg("300")
            .arg(from_env(self.guest.architecture().qemu))
            .args(self.guest.architecture().machine.split(' '))
            .args("-m 64 -nodefaults -display none -no-reboot".split(' '))
            .args(["-accel", accel, "-kernel"])
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

    /// The files that the plugin wrote.
    fn written<T>(
        &self,
        accel: &str,
        arguments: &[&str],
        name: fn(&Path, u64) -> PathBuf,
        decode: fn(&[u8]) -> T,
    ) -> Vec<T> {
        let dir = tempfile::tempdir_in(self.path()).unwrap();
        let plugin =
            format!("{},dir={}", from_env("TRAMPLAB_PLUGIN").display(), dir.path().display());
        let mut all = vec!["-plugin", &plugin];
        all.extend(arguments);
        let output = self.qemu(accel, &all);
        assert_eq!(output.status.code(), Some(DONE), "{accel} {arguments:?}: {output:?}");
        let files = fs::read_dir(dir.path()).unwrap().count();
        // Only the image of x86-64 has a kernel.
        let told = magic::of_kernel(dir.path()).is_file();
        assert_eq!(told, self.guest != Guest::Arm64);
        let files = (files - usize::from(told)) as u64;
        (0..files).map(|n| decode(&fs::read(name(dir.path(), n)).unwrap())).collect()
    }

    /// The data accesses that the source expects up to branches, by the branch's address.
    pub fn accesses(&self) -> Vec<(u64, Accesses)> {
        let entry = |entry: &[u64]| {
            (entry[0], Accesses { reads: entry[1] as u32, writes: entry[2] as u32 })
        };
        self.words(".accesses").chunks_exact(3).map(entry).collect()
    }

    fn words(&self, section: &str) -> Vec<u64> {
        let bytes = fs::read(&self.image).unwrap();
        let file = object::File::parse(&*bytes).unwrap();
        let data = file.section_by_name(section).unwrap().data().unwrap();
        data.chunks_exact(8).map(|word| u64::from_le_bytes(word.try_into().unwrap())).collect()
    }

    /// The records that the source expects, for a QEMU that reports interrupts or one that does
    /// not.
    pub fn expected(&self, section: &str, told: bool) -> Vec<Transfer> {
        let words = self.words(section);
        let other = if told { 2 } else { 1 };
        let entries = words.chunks_exact(4).filter(|entry| entry[3] != other);
        entries.map(|entry| (entry[0], entry[1], kind(entry[2]))).collect()
    }
}

/// A record without its number of instructions, which the source does not give.
pub type Transfer = (u64, u64, Kind);

pub fn transfers<'a>(records: impl IntoIterator<Item = &'a Record>) -> Vec<Transfer> {
    records.into_iter().map(|record| (record.from, record.to, record.kind)).collect()
}

/// Converts the numbers of the images.
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
        _ => panic!("no image names a kind {number}"),
    }
}
