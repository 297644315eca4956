// SPDX-License-Identifier: MIT OR Apache-2.0
//! The cost of a hit on a busy machine: more programs on its function, and on others.

use super::{
    LIMIT,
    trigger::{of_any_boot, set, try_hit},
};
use crate::machine::spec;
use std::{
    collections::BTreeSet,
    path::{Path, PathBuf},
};
use tramplab_host::Cache;
use tramplab_kernel as kernel;
use tramplab_model::run::{Arch, TriggerCost};
use tramplab_protocol::{
    BesideSet, Mechanism,
    message::{AttachReply, AttachRequest, Command, GuestError, LbrWasteRequest, Others, Response},
};
use tramplab_vm::{Spec, Vm};

/// The hits of one guest.
struct Guest<'a> {
    vm: &'a mut Vm,
    dir: &'a Path,
    hits: u64,
}

impl Guest<'_> {
    fn hit(
        &mut self,
        mechanism: Mechanism,
        beside: &[&str],
    ) -> Result<(TriggerCost, Vec<Others>), GuestError> {
        let hit = try_hit(self.vm, self.dir, self.hits, mechanism, set(beside))?;
        self.hits += 1;
        Ok(hit)
    }

    fn cost(&mut self, mechanism: Mechanism, beside: &[&str]) -> TriggerCost {
        self.hit(mechanism, beside).unwrap_or_else(|e| panic!("{mechanism} {beside:?}: {e}")).0
    }

    fn refusal(&mut self, mechanism: Mechanism, beside: &[&str]) -> String {
        match self.hit(mechanism, beside) {
            Err(GuestError::Unsupported(reason)) => reason,
            other => panic!("{mechanism} {beside:?}: {other:?}"),
        }
    }
}

on_each_arch!(
    more_programs_cost_a_hit_more,
    ignore = "full: several guests; the cost of a hit runs in every change"
);

/// The same in two boots. A function takes so many trampoline programs and no more.
fn more_programs_cost_a_hit_more(arch: Arch) {
    let mut seen = BTreeSet::new();
    for _boot in 0..2 {
        let dir = tempfile::tempdir().unwrap();
        let mut vm = Vm::boot(&spec(arch, dir.path())).unwrap();
        let mut guest = Guest { vm: &mut vm, dir: dir.path(), hits: 0 };
        for mechanism in [Mechanism::Fentry, Mechanism::KprobeMulti] {
            let name = mechanism.name();
            let [one, two, eight] = ["", name, &format!("7x{name}")].map(|beside| {
                let beside: Vec<&str> = [beside].into_iter().filter(|b| !b.is_empty()).collect();
                guest.cost(mechanism, &beside)
            });
            let counts = [&one, &two, &eight].map(TriggerCost::instructions);
            assert!(counts[0] < counts[1] && counts[1] < counts[2], "{name}: {counts:?}");
            let forms = [&one, &two, &eight].map(|cost| of_any_boot(arch, cost));
            seen.insert((name, forms));
        }
        // The kernel's own limit is 38 programs.
        let refusal = guest.refusal(Mechanism::Fexit, &["20xfentry", "18xfexit"]);
        assert!(refusal.contains("E2BIG") && refusal.contains("on bpf_fentry_test1"), "{refusal}");
        // The refused programs are gone.
        guest.cost(Mechanism::Fexit, &["fentry"]);
        vm.power_off(LIMIT).unwrap();
    }
    assert_eq!(seen.len(), 2, "{seen:#?}");
}

/// 7.2 is the first shipped kernel with `fentry.multi`.
const NEWER: &str = "7.2";

/// All programs of a trampoline share it, and each link has an fprobe of its own: the kernel
/// refuses no pair with `EEXIST` or `EBUSY`, only one program too many.
#[test]
#[ignore = "full: every pair of mechanisms"]
fn takes_every_mechanism_beside_every_other() {
    let dir = tempfile::tempdir().unwrap();
    let machine = Spec { kernel: shipped(NEWER), ..spec(Arch::X86_64, dir.path()) };
    let mut vm = Vm::boot(&machine).unwrap();
    let mut guest = Guest { vm: &mut vm, dir: dir.path(), hits: 0 };
    use Mechanism::{Fentry, FentryMulti, Fexit, FexitMulti, FsessionMulti, KprobeMulti};
    for measured in [Fentry, Fexit, FentryMulti, FexitMulti, FsessionMulti, KprobeMulti] {
        let alone = guest.cost(measured, &[]);
        for beside in ["fentry", "2xfentry.multi", "fexit.multi", "kprobe.multi"] {
            let cost = guest.cost(measured, &[beside]);
            assert!(cost.instructions() > alone.instructions(), "{measured} beside {beside}");
        }
    }
    // Each link with a list counts as a program of the function.
    for (measured, beside) in
        [(FentryMulti, ["20xfentry.multi", "18xfexit"]), (Fexit, ["37xfexit.multi", "fentry"])]
    {
        let refusal = guest.refusal(measured, &beside);
        assert!(refusal.contains("on bpf_fentry_test1, beside 3"), "{refusal}");
        assert!(refusal.contains("E2BIG"), "{refusal}");
    }
    // A list has no verifier's log, but the same reason.
    let reason = refused_function(guest.vm, FentryMulti, "current_time");
    assert!(reason.contains("return type STRUCT is unsupported"), "{reason}");
    vm.power_off(LIMIT).unwrap();
}

fn refused_function(vm: &mut Vm, mechanism: Mechanism, function: &str) -> String {
    let (program, command, deliver, events) = (None, None, None, Vec::new());
    let (function, hits, warmup) = (Some(function.to_owned()), 1, 0);
    let request =
        LbrWasteRequest { mechanism, program, function, command, hits, warmup, deliver, events };
    match vm.request(Command::LbrWaste(request), LIMIT).unwrap() {
        Err(GuestError::Unsupported(reason)) => reason,
        other => panic!("{other:?}"),
    }
}

/// The image of a shipped kernel for x86-64.
fn shipped(name: &str) -> PathBuf {
    let folder = PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("../../kernels");
    let mut manifests = kernel::find(name, &folder).unwrap().into_iter();
    let manifest = manifests.find(|manifest| manifest.arch == Arch::X86_64).unwrap();
    kernel::fetch(&manifest, &Cache::open(true).unwrap(), &mut |_| ()).unwrap().image
}

on_each_arch!(
    measures_beside_a_thousand_functions,
    ignore = "full: several guests; the cost of a hit runs in every change"
);

fn measures_beside_a_thousand_functions(arch: Arch) {
    let dir = tempfile::tempdir().unwrap();
    let mut vm = Vm::boot(&spec(arch, dir.path())).unwrap();
    let mut guest = Guest { vm: &mut vm, dir: dir.path(), hits: 0 };
    // A trampoline knows nothing of other functions.
    let alone = guest.cost(Mechanism::Fentry, &[]);
    for beside in ["kprobe.multi:1000", "kprobe.multi:4x250", "fentry:3"] {
        let (cost, others) = guest.hit(Mechanism::Fentry, &[beside]).unwrap();
        assert_eq!(of_any_boot(arch, &cost), of_any_boot(arch, &alone), "{beside}");
        let found: Vec<(u32, u32)> = others.iter().map(|o| (o.functions, o.links)).collect();
        let expected = match beside {
            "kprobe.multi:1000" => (1000, 1),
            "kprobe.multi:4x250" => (1000, 4),
            _ => (3, 3),
        };
        assert_eq!(found, [expected], "{beside}");
    }
    // It does find one on its own function.
    let both = guest.cost(Mechanism::Fentry, &["kprobe.multi", "kprobe.multi:1000"]);
    assert!(both.instructions() > alone.instructions());
    // More functions than there are.
    let refusal = guest.refusal(Mechanism::Fentry, &["kprobe.multi:1000000"]);
    assert!(refusal.contains("1000000 were asked for"), "{refusal}");

    let reply = attach(guest.vm, "4x50");
    let names: BTreeSet<&String> = reply.functions.iter().collect();
    assert_eq!((names.len(), reply.links, reply.programs), (200, 4, 1));
    assert_eq!(reply.functions, attach(guest.vm, "200").functions);
    vm.power_off(LIMIT).unwrap();
}

fn attach(vm: &mut Vm, functions: &str) -> AttachReply {
    let request = AttachRequest {
        mechanism: Mechanism::KprobeMulti,
        program: None,
        functions: functions.parse().unwrap(),
        among: Vec::new(),
        binary: None,
        beside: BesideSet::default(),
        rounds: 1,
        seed: 0,
        seconds: None,
    };
    match vm.request(Command::Attach(request), LIMIT).unwrap().unwrap() {
        Response::Attach(reply) => reply,
        other => panic!("{other:?}"),
    }
}
