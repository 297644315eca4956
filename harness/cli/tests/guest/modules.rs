// SPDX-License-Identifier: MIT OR Apache-2.0
//! Functions of modules that the user names: the guest loads the modules from the kernel's package.

use super::{LIMIT, attach, functions::Guest, of_any_boot, trigger};
use std::{collections::BTreeSet, path::PathBuf};
use tramplab_host::Cache;
use tramplab_kernel::{self as kernel, Image, Module, Source};
use tramplab_model::run::Arch;
use tramplab_protocol::{
    Functions,
    Mechanism::{self, Fentry, Fexit, Kprobe, KprobeMulti},
    message::{AttachReply, AttachRequest, Command, GuestError, Response},
};
use tramplab_vm::{Spec, initramfs};

/// A module of all of Debian's cloud kernels, and a function of it that fsopen(2) hits.
const MODULE: &str = "xfs";
const FUNCTION: &str = "xfs:xfs_init_fs_context";

/// The tests' kernel with its package.
fn image(spec: &Spec, cache: &Cache) -> Image {
    let folder = PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("../../kernels");
    let manifests = ["6.12", "7.2"].map(|name| kernel::find(name, &folder).unwrap());
    let images = manifests.into_iter().flatten().filter_map(|manifest| {
        let fits = manifest.arch == spec.arch && matches!(manifest.source, Source::Debian { .. });
        fits.then(|| kernel::fetch(&manifest, cache, &mut |_| ()).unwrap())
    });
    images.into_iter().find(|image| image.image == spec.kernel).expect("a shipped kernel")
}

/// A guest with the module and what it depends on, and with a file that is no module.
fn boot(arch: Arch) -> Guest {
    Guest::boot_with(arch, |spec| {
        let cache = Cache::open(true).unwrap();
        let all = image(spec, &cache).loadable(&cache, &mut |_| ()).unwrap().unwrap();
        let wanted = BTreeSet::from([MODULE.to_owned()]);
        let mut modules = all.with_dependencies(&wanted).unwrap().unwrap();
        assert_eq!(modules.last().unwrap().name, MODULE);
        modules.push(Module { name: "junk".to_owned(), bytes: b"no module".to_vec() });
        let root = spec.initrd.with_file_name("modules.cpio");
        let files = modules.iter().map(|module| (&*module.name, &*module.bytes));
        initramfs::with_additions(&spec.initrd, files, None, &root).unwrap();
        spec.initrd = root;
        // As cells with modules.
        if arch == Arch::Arm64 {
            spec.append.push("nokaslr".to_owned());
        }
    })
}

fn attach(
    guest: &mut Guest,
    mechanism: Mechanism,
    among: &[&str],
) -> Result<AttachReply, GuestError> {
    let among = among.iter().map(|pattern| pattern.parse().unwrap()).collect();
    let request = AttachRequest { among, ..attach::rounds_of(mechanism, Functions::All, 1) };
    match guest.vm.request(Command::Attach(request), LIMIT).unwrap()? {
        Response::Attach(reply) => Ok(reply),
        other => panic!("{other:?}"),
    }
}

on_each_arch!(measures_functions_of_a_module, ignore = "full: boots kernels with modules");

fn measures_functions_of_a_module(arch: Arch) {
    let measured = [(); 2].map(|()| {
        let mut guest = boot(arch);
        let wastes = [Fexit, Kprobe, KprobeMulti].map(|mechanism| {
            guest.waste(mechanism, FUNCTION).unwrap_or_else(|why| panic!("{why}"))
        });
        for waste in &wastes {
            assert_eq!(waste.function.module.as_deref(), Some(MODULE));
            let trigger = waste.trigger.as_ref().unwrap();
            assert_eq!(trigger.workload, "fsopen(2) of the module's file system");
            // The listing's last row is in the function, and names its module.
            let mut places = waste.points[0].records.iter().flat_map(|one| [&one.from, &one.to]);
            let name = Some(&*waste.function.name);
            assert!(places.any(|place| {
                (place.module.as_deref(), place.symbol.as_deref()) == (Some(MODULE), name)
            }));
        }
        let costs = [Fentry, Fexit].map(|mechanism| guest.cost(mechanism, FUNCTION).unwrap());
        let costs = costs.map(|cost| trigger::of_any_boot(arch, &cost));
        (guest, of_any_boot(arch, &wastes), costs)
    });
    let [(mut guest, wastes, costs), (other, wastes_again, costs_again)] = measured;
    other.vm.power_off(LIMIT).unwrap();
    assert_eq!((wastes, costs), (wastes_again, costs_again));
    attaches_to_functions_of_a_module(&mut guest);
    for (mechanism, function, words) in [
        (Fentry, "xfs:no_such_function", "the kernel has no function xfs:no_such_function"),
        (Fentry, "no_such:f", "the module no_such is not loaded"),
        (Kprobe, "junk:f", "refuses to load the module junk: ENOEXEC"),
        (Kprobe, "xfs_init_fs_context", "name it xfs:xfs_init_fs_context"),
        // Kernels have it from the end of the initialisation on no more, or never.
        (Fentry, "xfs:init_xfs_fs", "an __init function of a module"),
    ] {
        match guest.waste(mechanism, function) {
            Err(GuestError::Unsupported(reason)) => assert!(reason.contains(words), "{reason}"),
            other => panic!("{mechanism} on {function}: {:?}", other.map(|waste| waste.function)),
        }
    }
    guest.vm.power_off(LIMIT).unwrap();
}

fn attaches_to_functions_of_a_module(guest: &mut Guest) {
    let patterns = ["xfs:xfs_*fs_context", "xfs:xfs_no_such_*", "junk:*"];
    for mechanism in [Fentry, Kprobe] {
        let reply = attach(guest, mechanism, &patterns).unwrap();
        assert!(reply.functions.iter().any(|name| name == FUNCTION), "{:?}", reply.functions);
        assert!(reply.functions.iter().all(|name| name.starts_with("xfs:")));
        let told: Vec<(&str, &str)> =
            reply.refused.iter().map(|one| (&*one.function, &*one.reason)).collect();
        assert_eq!((told[0].0, told[1].0, told.len()), (patterns[1], patterns[2], 2));
        assert!(told[1].1.contains("refuses to load the module junk"), "{told:?}");
    }
    let among = ["xfs:xfs_*fs_context", "vfs_read"];
    let mut both = attach(guest, Fentry, &among).unwrap().functions;
    both.sort();
    assert!(both.contains(&"vfs_read".to_owned()) && both.contains(&FUNCTION.to_owned()));
    // One program of tracing multi is for one BTF. Older kernels have no tracing multi.
    if let Ok(reply) = attach(guest, Mechanism::FentryMulti, &among) {
        assert_eq!(reply.functions, ["vfs_read"]);
        assert!(reply.refused.iter().any(|one| one.reason.contains("to one module")));
        let alone = attach(guest, Mechanism::FentryMulti, &among[..1]).unwrap();
        assert!(alone.functions.iter().any(|name| name == FUNCTION));
    }
    match attach(guest, Fentry, &["junk:*"]) {
        Err(GuestError::Unsupported(reason)) => {
            assert!(reason.contains("refuses to load the module junk"), "{reason}");
        }
        other => panic!("{other:?}"),
    }
}
