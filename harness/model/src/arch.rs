// SPDX-License-Identifier: MIT OR Apache-2.0
//! The architectures of guests, and the names by which other programs know each.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use strum::{Display, EnumString, IntoStaticStr};

#[derive(
    Clone,
    Copy,
    Debug,
    PartialEq,
    Eq,
    PartialOrd,
    Ord,
    Hash,
    Serialize,
    Deserialize,
    JsonSchema,
    Display,
    EnumString,
    IntoStaticStr,
)]
#[serde(rename_all = "snake_case")]
#[strum(serialize_all = "snake_case", parse_err_ty = UnknownArch, parse_err_fn = UnknownArch::new)]
pub enum Arch {
    X86_64,
    Arm64,
}

impl Arch {
    pub const ALL: [Arch; 2] = [Arch::X86_64, Arch::Arm64];

    /// The host's architecture, if guests can have it.
    pub fn host() -> Option<Arch> {
        Arch::ALL.into_iter().find(|arch| arch.platform().machine == std::env::consts::ARCH)
    }

    pub fn name(self) -> &'static str {
        self.into()
    }

    pub fn platform(self) -> &'static Platform {
        match self {
            Arch::X86_64 => &X86_64,
            Arch::Arm64 => &ARM64,
        }
    }
}

#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("unknown architecture `{0}`, expected one of: \
         {names}", names = Arch::ALL.map(Arch::name).join(", "))]
pub struct UnknownArch(String);

impl UnknownArch {
    fn new(name: &str) -> UnknownArch {
        UnknownArch(name.to_owned())
    }
}

/// An architecture as others name it.
#[derive(Debug)]
pub struct Platform {
    /// In prose.
    pub spoken: &'static str,
    /// `uname -m`. It is Rust's and GNU's name, and that of files of the kernel's own BPF tests.
    pub machine: &'static str,
    /// GNU's triplet without a vendor: the prefix of cross compilers.
    pub triplet: &'static str,
    /// Debian's architecture.
    pub debian: &'static str,
    pub qemu: Emulator,
    /// The dynamic linker of its programs.
    pub linker: &'static str,
    pub console: Console,
    /// The clock sources of a good boot.
    pub clocks: &'static [&'static str],
    pub tree: KernelTree,
    /// BFD's name, for `objdump --architecture`.
    pub bfd: &'static str,
}

/// The QEMU of an architecture.
#[derive(Debug)]
pub struct Emulator {
    pub program: &'static str,
    /// Debian's package with it.
    pub package: &'static str,
    /// The environment variable that names another program.
    pub variable: &'static str,
    /// A machine that no other architecture's QEMU has.
    pub machine: &'static str,
}

/// The guests' serial console.
#[derive(Debug)]
pub struct Console {
    /// The kernel's name of it.
    pub name: &'static str,
    /// The kernel's option of its driver, and that of a console on it.
    pub options: [&'static str; 2],
}

/// An architecture in the kernel's tree.
#[derive(Debug)]
pub struct KernelTree {
    /// `ARCH=` of make.
    pub arch: &'static str,
    /// The folder below `arch/`, which is `SRCARCH` of make.
    pub folder: &'static str,
    /// make's target of the image, whose file is in `arch/FOLDER/boot/`.
    pub image: &'static str,
}

static X86_64: Platform = Platform {
    spoken: "x86-64",
    machine: "x86_64",
    triplet: "x86_64-linux-gnu",
    debian: "amd64",
    qemu: Emulator {
        program: "qemu-system-x86_64",
        package: "qemu-system-x86",
        variable: "TRAMPLAB_QEMU_X86_64",
        machine: "q35",
    },
    linker: "/lib64/ld-linux-x86-64.so.2",
    console: Console { name: "ttyS0", options: ["SERIAL_8250", "SERIAL_8250_CONSOLE"] },
    // `tsc-early` is the same counter, before the kernel measures its speed a second time.
    clocks: &["tsc", "tsc-early"],
    tree: KernelTree { arch: "x86_64", folder: "x86", image: "bzImage" },
    bfd: "i386:x86-64",
};

static ARM64: Platform = Platform {
    spoken: "arm64",
    machine: "aarch64",
    triplet: "aarch64-linux-gnu",
    debian: "arm64",
    qemu: Emulator {
        program: "qemu-system-aarch64",
        package: "qemu-system-arm",
        variable: "TRAMPLAB_QEMU_ARM64",
        machine: "virt",
    },
    linker: "/lib/ld-linux-aarch64.so.1",
    console: Console {
        name: "ttyAMA0",
        options: ["SERIAL_AMBA_PL011", "SERIAL_AMBA_PL011_CONSOLE"],
    },
    clocks: &["arch_sys_counter"],
    tree: KernelTree { arch: "arm64", folder: "arm64", image: "Image" },
    bfd: "aarch64",
};
