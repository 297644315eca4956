// SPDX-License-Identifier: MIT OR Apache-2.0
//! Commands of the user's that hit a function.

use super::{
    functions::{Guest, any},
    trigger,
};
use tramplab_host::{Cache, busybox};
use tramplab_model::run::Arch;
use tramplab_protocol::{
    Mechanism::{Fentry, Fexit},
    message::GuestError,
};
use tramplab_vm::{Spec, initramfs};

const FUNCTION: &str = "do_truncate";
const ONCE: &str = ": >/tmp/one";
const THRICE: &str = "for name in a b c; do : >/tmp/$name; done";

pub fn boot(arch: Arch) -> Guest {
    Guest::boot_with(arch, |spec| add_shell(arch, spec))
}

pub fn add_shell(arch: Arch, spec: &mut Spec) {
    let shell = busybox::provision(&Cache::open(true).unwrap(), arch, &mut |_| ()).unwrap();
    let root = spec.initrd.with_file_name("shell.cpio");
    initramfs::with_additions(&spec.initrd, [].into_iter(), Some(&shell), &root).unwrap();
    spec.initrd = root;
}

on_each_arch!(
    hits_functions_by_a_command,
    ignore = "full: several guests; a function that the user names runs in every change"
);

fn hits_functions_by_a_command(arch: Arch) {
    let measured = [(); 2].map(|()| {
        let mut guest = boot(arch);
        let numbers = [(ONCE, 1), (THRICE, 3)].map(|(command, hits)| {
            guest.command = Some(command.to_owned());
            let waste = guest.waste(Fentry, FUNCTION).unwrap_or_else(|why| panic!("{why}"));
            let found = waste.trigger.clone().unwrap();
            assert_eq!((found.workload.as_str(), found.hits), (command, hits));
            let cost = guest.cost(Fexit, FUNCTION).unwrap_or_else(|why| panic!("{why}"));
            // The digest of waste has the shell's way to the function too, which chance varies.
            (any(&waste), trigger::of_any_boot(arch, &cost))
        });
        (guest, numbers)
    });
    let [(mut guest, numbers), (other, again)] = measured;
    other.vm.power_off(super::LIMIT).unwrap();
    assert_eq!(numbers, again);
    let many = "n=0; while [ $n -lt 65 ]; do echo >/tmp/one; n=$((n + 1)); done";
    for (command, is_skip, words) in [
        ("true", true, "nothing hits do_truncate; tried: true"),
        (many, true, "at most 64 times"),
        ("echo no >&2; exit 3", false, "`echo no >&2; exit 3` failed (exit status 3): no"),
        ("no-such-program", false, "was not found (exit status 127): sh: no-such-program"),
        ("sleep 1000", false, "did not end within 3 s and was killed"),
    ] {
        guest.command = Some(command.to_owned());
        let error = match guest.waste(Fentry, FUNCTION) {
            Err(error) => error,
            Ok(_) => panic!("{command} was measured"),
        };
        assert_eq!(matches!(error, GuestError::Unsupported(_)), is_skip, "{command}: {error}");
        assert!(error.to_string().contains(words), "{command}: {error}");
    }
    guest.vm.power_off(super::LIMIT).unwrap();
}
