// SPDX-License-Identifier: MIT OR Apache-2.0
//! The kernel of the outer guest. Debian's cloud kernels, which other tests boot, have no KVM.

use std::{
    fs,
    path::{Path, PathBuf},
    process::Command,
    time::Duration,
};
use tramplab_host::{
    Cache, child,
    debian::{Debian, DebianError, Package, compare_versions},
};
use tramplab_model::run::Arch;

const UNPACKING: Duration = Duration::from_secs(60);
const KIND: &str = "test-kernel";

/// In load order, below the kernel's folder of modules.
const FILES: [&str; 5] = [
    "fs/netfs/netfs.ko",
    "net/9p/9pnet.ko",
    "net/9p/9pnet_virtio.ko",
    "fs/9p/9p.ko",
    "fs/overlayfs/overlay.ko",
];
/// On arm64 KVM is a part of the kernel.
const KVM_AMD: [&str; 4] = [
    "virt/lib/irqbypass.ko",
    "arch/x86/kvm/kvm.ko",
    "drivers/crypto/ccp/ccp.ko",
    "arch/x86/kvm/kvm-amd.ko",
];

pub struct Kernel {
    pub arch: Arch,
    /// The folder of its package.
    installed: PathBuf,
    pub image: PathBuf,
    /// Uncompressed.
    pub modules: Vec<PathBuf>,
}

/// Fetches the kernel once. The cache keeps it.
pub fn kernel(arch: Arch) -> Kernel {
    let cache = Cache::open(true).unwrap();
    let part = format!("-{}=", arch.platform().debian);
    let is_ours = |entry: &PathBuf| entry.to_string_lossy().contains(&part);
    let entry = cache.list(KIND).into_iter().rfind(is_ours);
    let entry = entry.unwrap_or_else(|| fetched(&cache, arch));
    Kernel {
        arch,
        installed: entry.clone(),
        image: entry.join("vmlinuz"),
        modules: modules(arch).map(|module| entry.join(name(module))).collect(),
    }
}

impl Kernel {
    /// Lines for a script: where a distribution installs the kernel that runs.
    pub fn install(&self) -> String {
        let Kernel { installed, .. } = self;
        let link = |name: &str, place: &str| {
            let from = installed.join(name);
            format!("ln -sfn {} \"/whole/{place}$(uname -r)\"\n", from.display())
        };
        link("vmlinuz", "boot/vmlinuz-")
            + &link("config", "boot/config-")
            + "mkdir -p /whole/usr/lib/modules\n"
            + &link("modules", "usr/lib/modules/")
    }
}

fn modules(arch: Arch) -> impl Iterator<Item = &'static str> {
    let kvm: &[&str] = if arch == Arch::X86_64 { &KVM_AMD } else { &[] };
    FILES.iter().chain(kvm).copied()
}

fn name(module: &str) -> &str {
    module.rsplit('/').next().unwrap()
}

fn fetched(cache: &Cache, arch: Arch) -> PathBuf {
    let debian = arch.platform().debian;
    let packages = Debian::open(cache, debian, &mut |_| ()).unwrap();
    let end = format!("+deb13-{debian}");
    let is_ours = |name: &str| {
        let rest = name.strip_prefix("linux-image-6.12.");
        let number = rest.and_then(|rest| rest.strip_suffix(&end));
        number.is_some_and(|number| number.bytes().all(|byte| byte.is_ascii_digit()))
    };
    let versions = packages.search(is_ours).unwrap().into_iter();
    let newest = |a: &Package, b: &Package| compare_versions(&a.version, &b.version);
    let package = versions.max_by(newest).expect("Debian has this kernel");
    let key = format!("{}={}", package.name, package.version);
    cache.entry(KIND, &key, |folder| fill(&packages, package, arch, folder)).unwrap()
}

fn fill(packages: &Debian, package: Package, arch: Arch, folder: &Path) -> Result<(), DebianError> {
    let release = package.name.trim_start_matches("linux-image-").to_owned();
    let unpacked = folder.join("unpacked");
    packages.unpack(&[package], &unpacked, &|_, _| true, &mut |_| ())?;
    for (file, name) in [
        (format!("boot/vmlinuz-{release}"), "vmlinuz"),
        (format!("boot/config-{release}"), "config"),
        (format!("usr/lib/modules/{release}"), "modules"),
    ] {
        fs::rename(unpacked.join(file), folder.join(name)).unwrap();
    }
    for module in modules(arch) {
        let to = folder.join(name(module));
        let from = to.with_extension("ko.xz");
        fs::copy(folder.join(format!("modules/kernel/{module}.xz")), &from).unwrap();
        child::run(Command::new("xz").arg("-d").arg(&from), UNPACKING).unwrap();
    }
    fs::remove_dir_all(unpacked).unwrap();
    Ok(())
}
