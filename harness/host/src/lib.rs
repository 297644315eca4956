// SPDX-License-Identifier: MIT OR Apache-2.0
//! The machine that tramplab runs on: its cache, child processes, Debian packages without root,
//! QEMU and other private programs, KVM and LBR, and run folders.

pub mod busybox;
pub mod cache;
pub mod child;
pub mod config;
pub mod debian;
pub mod given;
pub mod kvm;
pub mod lbr;
pub mod packages;
mod private;
pub mod process_tree;
pub mod program;
pub mod prune;
pub mod qemu;
pub mod regular;
pub mod runs;
pub mod rust;
pub mod virtme;

pub use cache::{Cache, CacheError};
pub use child::ChildError;
pub use private::PrivateError;
pub use qemu::{Purpose, Qemu, QemuError, QemuProgram};
pub use rust::Rustc;
pub use tramplab_archive::sha256;
pub use virtme::{VirtmeError, VirtmeNg, Vng};
