// SPDX-License-Identifier: MIT OR Apache-2.0
//! The kernel of the outer guest. Debian's cloud kernels, which other tests boot, have no KVM.

use std::{
    fs,
    path::{Path, PathBuf},
    process::Command,
    time::Duration,
};
use tramplab_host::{
    Cache,
    apt::{self, Apt, AptError, Package},
    child,
};

const UNPACKING: Duration = Duration::from_secs(60);
const KIND: &str = "test-kernel-kvm";
const NAMES: &str = "^linux-image-6[.]12[.][0-9]+[+]deb13-amd64$";

/// In load order, below the kernel's folder of modules.
const MODULES: [&str; 9] = [
    "fs/netfs/netfs.ko",
    "net/9p/9pnet.ko",
    "net/9p/9pnet_virtio.ko",
    "fs/9p/9p.ko",
    "fs/overlayfs/overlay.ko",
    "virt/lib/irqbypass.ko",
    "arch/x86/kvm/kvm.ko",
    "drivers/crypto/ccp/ccp.ko",
    "arch/x86/kvm/kvm-amd.ko",
];

pub struct Kernel {
    pub image: PathBuf,
    /// Uncompressed.
    pub modules: Vec<PathBuf>,
}

/// Fetches the kernel once. The cache keeps it.
pub fn kernel() -> Kernel {
    let cache = Cache::open(true).unwrap();
    let entry = cache.list(KIND).pop().unwrap_or_else(|| fetched(&cache));
    Kernel {
        image: entry.join("vmlinuz"),
        modules: MODULES.map(|module| entry.join(name(module))).to_vec(),
    }
}

fn name(module: &str) -> &str {
    module.rsplit('/').next().unwrap()
}

fn fetched(cache: &Cache) -> PathBuf {
    let apt = Apt::open(cache, "amd64", &mut |_| ()).unwrap();
    let versions = apt.search(NAMES).unwrap().into_iter();
    let newest = |a: &Package, b: &Package| apt::compare_versions(&a.version, &b.version).unwrap();
    let package = versions.max_by(newest).expect("Debian has this kernel");
    let key = format!("{}={}", package.name, package.version);
    cache.entry(KIND, &key, |folder| fill(&apt, package, folder)).unwrap()
}

fn fill(apt: &Apt, package: Package, folder: &Path) -> Result<(), AptError> {
    let release = package.name.trim_start_matches("linux-image-").to_owned();
    let unpacked = folder.join("unpacked");
    fs::create_dir(&unpacked).unwrap();
    for file in apt.download(&[package], folder)? {
        apt::unpack(&file, &unpacked)?;
        fs::remove_file(file).unwrap();
    }
    fs::rename(unpacked.join(format!("boot/vmlinuz-{release}")), folder.join("vmlinuz")).unwrap();
    for module in MODULES {
        let path = format!("usr/lib/modules/{release}/kernel/{module}.xz");
        let to = folder.join(name(module));
        let from = to.with_extension("ko.xz");
        fs::rename(unpacked.join(path), &from).unwrap();
        child::run(Command::new("xz").arg("-d").arg(&from), UNPACKING).unwrap();
    }
    fs::remove_dir_all(unpacked).unwrap();
    Ok(())
}
