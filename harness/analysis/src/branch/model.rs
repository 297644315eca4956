// SPDX-License-Identifier: MIT OR Apache-2.0
//! The modelled CPUs: which branches enter the ring, and which of them the driver hands over.

use super::{Branch, Filter, symbols::is_kernel};
use std::{fmt, str::FromStr};
use tramplab_model::{
    cpu,
    run::{Arch, Kernel, NamedRecord, Place, Run},
};
use tramplab_protocol::{
    delivery::{self, Kinds},
    trace::Kind,
};

/// A CPU's branch record and the driver that reads it, restricted to kernel branches
/// (`PERF_SAMPLE_BRANCH_KERNEL`) as kernel tracers do it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Model {
    /// Haswell to Ice Lake: LBR_SELECT.
    IntelLbr,
    /// Alder Lake, Sapphire Rapids and later: LBR_CTL.
    ArchLbr,
    /// Zen 4 and later.
    AmdLbrV2,
    /// arm64, FEAT_BRBE.
    Brbe,
}

/// The kinds that the hardware calls "far" (Intel legacy, AMD) or "other" (Arch LBR). It selects
/// all of them or none.
const X86_FAR: Kinds =
    Kinds::of(&[Kind::Syscall, Kind::Sysret, Kind::Iret, Kind::Int, Kind::Interrupt]);
const CALLS: Kinds = Kinds::of(&[Kind::Call, Kind::IndCall]);
const NEAR: Kinds =
    Kinds::of(&[Kind::Cond, Kind::Jump, Kind::IndJump, Kind::Call, Kind::IndCall, Kind::Ret]);
/// Exceptions in BRBE's sense, which include `svc`. arm64 has no separate `int` and `sysret`.
const ARM_EXCEPTION: Kinds = Kinds::of(&[Kind::Syscall, Kind::Int, Kind::Interrupt]);
const ARM_ERET: Kinds = Kinds::of(&[Kind::Iret, Kind::Sysret]);

/// Kinds that enter the ring. LBR_SELECT, LBR_CTL and LbrExtV2 agree.
const fn x86_hardware(branch: Branch) -> Kinds {
    match branch {
        Branch::Any => NEAR.and(X86_FAR),
        Branch::AnyCall => CALLS.and(X86_FAR),
        Branch::AnyReturn => Kinds::of(&[Kind::Ret]).and(X86_FAR),
        Branch::IndCall => Kinds::of(&[Kind::IndCall]),
        Branch::IndJump => Kinds::of(&[Kind::IndJump]),
        Branch::Cond => Kinds::of(&[Kind::Cond]),
        Branch::Call => Kinds::of(&[Kind::Call]),
    }
}

/// Kinds that the kernel then keeps, by its `X86_BR_*` class. `Interrupt` is `X86_BR_IRQ`.
const fn x86_software(branch: Branch) -> Kinds {
    match branch {
        Branch::Any => NEAR.and(X86_FAR),
        Branch::AnyCall => CALLS.and(Kinds::of(&[Kind::Syscall, Kind::Int, Kind::Interrupt])),
        Branch::AnyReturn => Kinds::of(&[Kind::Ret, Kind::Iret, Kind::Sysret]),
        Branch::IndCall | Branch::IndJump | Branch::Cond | Branch::Call => x86_hardware(branch),
    }
}

/// The driver's own branches with PARAVIRT_XXL, where each MSR access is a call (patched to a
/// direct one) and a return. The drivers of legacy LBR and LbrExtV2 disable the counters, read the
/// MSR that controls the ring, and write it. The ring stops within the last call.
const LEGACY_DRIVER: &[Kind] = &[Kind::Call, Kind::Ret, Kind::Call, Kind::Ret, Kind::Call];
/// The same for Arch LBR, whose driver sets LBR_CTL to 0 without reading it.
const ARCH_LBR_DRIVER: &[Kind] = &[Kind::Call, Kind::Ret, Kind::Call];

/// BRBE selects exactly. For a single event, the driver drops nothing more.
const fn brbe_hardware(branch: Branch) -> Kinds {
    match branch {
        Branch::Any => NEAR.and(ARM_EXCEPTION).and(ARM_ERET),
        Branch::AnyCall => CALLS.and(ARM_EXCEPTION),
        Branch::AnyReturn => Kinds::of(&[Kind::Ret]).and(ARM_ERET),
        Branch::IndCall => Kinds::of(&[Kind::IndCall]),
        Branch::IndJump => Kinds::of(&[Kind::IndJump]),
        Branch::Cond => Kinds::of(&[Kind::Cond]),
        Branch::Call => Kinds::of(&[Kind::Call]),
    }
}

/// A record as the tracing program sees it. An end is `None` where the CPU hides it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Seen<'a> {
    pub from: Option<&'a Place>,
    pub to: Option<&'a Place>,
    pub record: &'a NamedRecord,
}

impl<'a> Seen<'a> {
    /// Shows both ends.
    pub fn whole(record: &'a NamedRecord) -> Seen<'a> {
        Seen { from: Some(&record.from), to: Some(&record.to), record }
    }
}

impl Model {
    pub const ALL: [Model; 4] = [Model::IntelLbr, Model::ArchLbr, Model::AmdLbrV2, Model::Brbe];

    pub fn name(self) -> &'static str {
        match self {
            Model::IntelLbr => "intel-lbr",
            Model::ArchLbr => "arch-lbr",
            Model::AmdLbrV2 => "amd-lbrv2",
            Model::Brbe => "brbe",
        }
    }

    pub fn arch(self) -> Arch {
        match self {
            Model::IntelLbr | Model::ArchLbr | Model::AmdLbrV2 => Arch::X86_64,
            Model::Brbe => Arch::Arm64,
        }
    }

    /// Returns the models of an architecture, the default first.
    pub fn of(arch: Arch) -> impl Iterator<Item = Model> {
        Model::ALL.into_iter().filter(move |model| model.arch() == arch)
    }

    /// Returns `asked` if it fits the architecture, else the architecture's default.
    pub fn choose(asked: Option<Model>, arch: Arch) -> Model {
        let fitting = asked.filter(|model| model.arch() == arch);
        fitting.or_else(|| Model::of(arch).next()).expect("every architecture has a model")
    }

    /// Returns `asked` if it fits the kernel's architecture, else the family of the run's CPU for
    /// the kernel, else the architecture's default.
    pub fn of_kernel(asked: Option<Model>, run: &Run, kernel: &Kernel) -> Model {
        let fitting = asked.filter(|model| model.arch() == kernel.arch);
        Model::choose(
            fitting.or_else(|| Model::of_branches(&run.cpu_of(kernel)?.cpu.branches)),
            kernel.arch,
        )
    }

    /// Returns the family of a CPU's records, if it has some.
    pub fn of_branches(branches: &cpu::Branches) -> Option<Model> {
        branches.family.as_ref()?.parse().ok()
    }

    /// Returns the depths that its CPUs have, in records. The last is the most common.
    pub fn depths(self) -> &'static [u32] {
        match self {
            Model::IntelLbr => &[16, 32],
            Model::ArchLbr => &[8, 16, 32],
            Model::AmdLbrV2 => &[16],
            Model::Brbe => &[8, 16, 32, 64],
        }
    }

    /// Returns the most common depth, in records.
    pub fn depth(self) -> u32 {
        *self.depths().last().expect("every model has a depth")
    }

    /// Finds the vendor's model by a CPU's name in `/proc/cpuinfo`. The CPU itself may lack branch
    /// records: AMD before Zen 4 has none of this kind.
    pub fn of_cpu(name: &str) -> Option<Model> {
        let mut words = name.split(|c: char| !c.is_ascii_alphanumeric());
        words.find_map(|word| match word {
            "AMD" => Some(Model::AmdLbrV2),
            "Intel" => Some(Model::IntelLbr),
            _ => None,
        })
    }

    /// Counts the records that the driver itself leaves in the ring, newer than `#00`, before it
    /// stops the ring. `None` if no kernel has a driver that takes snapshots. `paravirt_xxl` is
    /// the kernel's option of that name, `returns` the records of one of its returns.
    pub fn of_the_driver(
        self,
        filter: impl Into<Filter>,
        paravirt_xxl: bool,
        returns: &[Kind],
    ) -> Option<u32> {
        let filter = filter.into();
        let takes = |kind| filter.branches().any(|branch| x86_hardware(branch).contains(kind));
        let left = match (self, paravirt_xxl) {
            (Model::Brbe, _) => return None,
            (_, false) => &[],
            (Model::ArchLbr, true) => ARCH_LBR_DRIVER,
            (Model::IntelLbr | Model::AmdLbrV2, true) => LEGACY_DRIVER,
        };
        let records = left.iter().flat_map(|kind| match kind {
            Kind::Ret => returns,
            kind => std::slice::from_ref(kind),
        });
        let count = records.filter(|&&kind| takes(kind)).count();
        Some(u32::try_from(count).expect("a few"))
    }

    /// Returns tables for the plugin, which does in the guest what [`Model::snapshot`] does here.
    /// The plugin takes the rules about addresses from the guest's architecture.
    pub fn delivered(self, filter: Filter, depth: u32) -> delivery::Cpu {
        type Table = fn(Branch) -> Kinds;
        let (hardware, software): (Table, Table) = match self {
            Model::IntelLbr | Model::ArchLbr | Model::AmdLbrV2 => (x86_hardware, x86_software),
            Model::Brbe => (brbe_hardware, brbe_hardware),
        };
        let union = |table: Table| filter.branches().map(table).fold(Kinds::default(), Kinds::and);
        delivery::Cpu { depth, ring: union(hardware), kept: union(software) }
    }

    /// Returns tables for every filter that a program of the guest may choose by a perf event.
    pub fn deliverable(self) -> delivery::Filters {
        let of = |branch| self.delivered(Filter::of(branch), self.depth());
        let bit = |branch: Branch| branch.perf_bit().trailing_zeros() as u8;
        delivery::Filters {
            initial: of(Branch::Any),
            bits: Branch::ALL.map(|branch| (bit(branch), of(branch))).to_vec(),
        }
    }

    /// Returns the records that a snapshot of `records` hands over. Both are newest first.
    ///
    /// The ring selects first, then the driver: a record that the driver drops still uses one of
    /// the `depth` slots. Without a depth the ring never overwrites.
    pub fn snapshot<'a>(
        self,
        filter: Filter,
        depth: Option<u32>,
        records: &'a [NamedRecord],
    ) -> impl Iterator<Item = Seen<'a>> {
        let slots = depth.map_or(usize::MAX, |depth| depth as usize);
        records
            .iter()
            .filter(move |record| self.enters_ring(filter, record))
            .take(slots)
            .filter(move |record| self.driver_keeps(filter, record))
            .map(move |record| self.seen(record))
    }

    fn enters_ring(self, filter: Filter, record: &NamedRecord) -> bool {
        let (from, to) = privilege(record);
        let table = match self {
            Model::IntelLbr | Model::ArchLbr | Model::AmdLbrV2 => {
                // x86 filters privilege by the branch's target.
                if !to {
                    return false;
                }
                x86_hardware
            }
            Model::Brbe => {
                if !from && !to {
                    return false;
                }
                brbe_hardware
            }
        };
        filter.branches().any(|branch| table(branch).contains(record.kind))
    }

    fn driver_keeps(self, filter: Filter, record: &NamedRecord) -> bool {
        match self {
            Model::IntelLbr | Model::ArchLbr | Model::AmdLbrV2 => {
                let (from, _) = privilege(record);
                // The kernel decodes the instruction at `from`. An interrupted kernel instruction
                // is no branch, so the record has no class.
                let classless = record.kind == Kind::Interrupt && from;
                !classless
                    && filter.branches().any(|branch| x86_software(branch).contains(record.kind))
            }
            Model::Brbe => true,
        }
    }

    fn seen(self, record: &NamedRecord) -> Seen<'_> {
        let (from, to) = match self {
            Model::IntelLbr | Model::ArchLbr | Model::AmdLbrV2 => (true, true),
            // BRBE zeroes the end in user space.
            Model::Brbe => privilege(record),
        };
        Seen { from: from.then_some(&record.from), to: to.then_some(&record.to), record }
    }
}

/// Tells if `from` and `to` are in the kernel. Both ends of a modelled record are, although it has
/// no target address.
fn privilege(record: &NamedRecord) -> (bool, bool) {
    (
        record.modelled || is_kernel(record.from.address),
        record.modelled || is_kernel(record.to.address),
    )
}

impl fmt::Display for Model {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(self.name())
    }
}

#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error(
    "unknown CPU model `{0}`, expected one of: {names}",
    names = Model::ALL.map(Model::name).join(", ")
)]
pub struct UnknownModel(pub String);

impl FromStr for Model {
    type Err = UnknownModel;

    fn from_str(name: &str) -> Result<Model, UnknownModel> {
        Model::ALL
            .into_iter()
            .find(|m| m.name() == name)
            .ok_or_else(|| UnknownModel(name.to_owned()))
    }
}

#[cfg(test)]
pub(super) mod tests {
    use super::*;
    use proptest::prelude::*;

    pub const KERNEL: u64 = 0xffff_ffff_8100_0000;
    pub const USER: u64 = 0x40_1000;

    pub fn record(from: u64, to: u64, kind: Kind) -> NamedRecord {
        let place = |address| Place { address, symbol: None, module: None, offset: 0 };
        NamedRecord { from: place(from), to: place(to), kind, modelled: false }
    }

    fn filters() -> impl Strategy<Value = Filter> {
        proptest::sample::subsequence(&Branch::ALL, 1..=Branch::ALL.len()).prop_map(|branches| {
            branches.into_iter().map(Filter::of).reduce(Filter::or).expect("not empty")
        })
    }

    fn models() -> impl Strategy<Value = Model> {
        proptest::sample::select(&Model::ALL[..])
    }

    /// Gives every record a `from` of its own, which identifies its position.
    pub fn traces() -> impl Strategy<Value = Vec<NamedRecord>> {
        let one = (any::<bool>(), any::<bool>(), proptest::sample::select(&Kind::ALL[..]));
        proptest::collection::vec(one, 0..80).prop_map(|records| {
            let records = records.into_iter().enumerate();
            records
                .map(|(i, (from_kernel, to_kernel, kind))| {
                    let base = |kernel| if kernel { KERNEL } else { USER };
                    record(base(from_kernel) + 16 * (i as u64 + 1), base(to_kernel), kind)
                })
                .collect()
        })
    }

    fn froms(
        model: Model,
        filter: Filter,
        depth: Option<u32>,
        records: &[NamedRecord],
    ) -> Vec<u64> {
        model.snapshot(filter, depth, records).map(|seen| seen.record.from.address).collect()
    }

    /// For each kind, kernel to kernel: the filters that hand it over, and those that only use a
    /// slot for it. Copied from the kernel's tables, to check the sets above.
    #[test]
    fn kernel_records_pass_as_the_drivers_tables_say() {
        use Kind::*;
        const NONE: &str = "";
        const X86: [(Kind, &str, &str); 11] = [
            (Cond, "any cond", NONE),
            (Jump, "any", NONE),
            (IndJump, "any ind_jump", NONE),
            (Call, "any any_call call", NONE),
            (IndCall, "any any_call ind_call", NONE),
            (Ret, "any any_return", NONE),
            (Syscall, "any any_call", "any_return"),
            (Sysret, "any any_return", "any_call"),
            (Iret, "any any_return", "any_call"),
            (Int, "any any_call", "any_return"),
            (Interrupt, NONE, "any any_call any_return"),
        ];
        const ARM: [(Kind, &str, &str); 11] = [
            (Cond, "any cond", NONE),
            (Jump, "any", NONE),
            (IndJump, "any ind_jump", NONE),
            (Call, "any any_call call", NONE),
            (IndCall, "any any_call ind_call", NONE),
            (Ret, "any any_return", NONE),
            (Syscall, "any any_call", NONE),
            (Sysret, "any any_return", NONE),
            (Iret, "any any_return", NONE),
            (Int, "any any_call", NONE),
            (Interrupt, "any any_call", NONE),
        ];
        for model in Model::ALL {
            let table = if model == Model::Brbe { ARM } else { X86 };
            for (kind, handed_over, slot_only) in table {
                let records = [record(KERNEL, KERNEL + 64, kind)];
                for branch in Branch::ALL {
                    let what = format!("{model} {kind:?} {}", branch.name());
                    let filter = Filter::of(branch);
                    let kept = handed_over.split(' ').any(|name| name == branch.name());
                    let slot = kept || slot_only.split(' ').any(|name| name == branch.name());
                    assert_eq!(model.enters_ring(filter, &records[0]), slot, "{what}: ring");
                    assert_eq!(
                        model.snapshot(filter, None, &records).count(),
                        usize::from(kept),
                        "{what}"
                    );
                }
            }
        }
    }

    #[test]
    fn finds_the_vendor_in_a_cpus_name() {
        let table = [
            ("AMD EPYC 9654 96-Core Processor", Some(Model::AmdLbrV2)),
            ("AMD Ryzen 9 7950X 16-Core Processor", Some(Model::AmdLbrV2)),
            ("Intel(R) Xeon(R) Platinum 8370C CPU @ 2.80GHz", Some(Model::IntelLbr)),
            ("11th Gen Intel(R) Core(TM) i7-1185G7 @ 3.00GHz", Some(Model::IntelLbr)),
            ("Example CPU @ 2.00GHz", None),
            ("Neoverse-N1", None),
            ("", None),
        ];
        for (name, model) in table {
            assert_eq!(Model::of_cpu(name), model, "{name}");
        }
    }

    #[test]
    fn filters_privilege_by_target_on_x86_and_by_either_end_on_brbe() {
        let any = Filter::of(Branch::Any);
        // from, to, kind, kept on x86, (from known, to known) on BRBE
        let table = [
            (USER, KERNEL, Kind::Syscall, true, Some((false, true))),
            (USER, KERNEL, Kind::Interrupt, true, Some((false, true))),
            (KERNEL, USER, Kind::Iret, false, Some((true, false))),
            (USER, USER + 8, Kind::Jump, false, None),
            (KERNEL, KERNEL + 8, Kind::Jump, true, Some((true, true))),
        ];
        for (from, to, kind, x86, brbe) in table {
            let records = [record(from, to, kind)];
            for model in Model::of(Arch::X86_64) {
                let seen = model.snapshot(any, None, &records).next();
                assert_eq!(seen.is_some(), x86, "{model} {kind:?}");
                assert!(
                    seen.is_none_or(|s| s.from.is_some() && s.to.is_some()),
                    "{model} {kind:?}"
                );
            }
            let seen = Model::Brbe.snapshot(any, None, &records).next();
            assert_eq!(seen.map(|s| (s.from.is_some(), s.to.is_some())), brbe, "brbe {kind:?}");
        }
    }

    #[test]
    fn dropped_records_use_a_slot() {
        // Newest first: two system calls fill a ring of two although any_return hands over neither.
        let records = [
            record(USER, KERNEL, Kind::Syscall),
            record(USER, KERNEL, Kind::Syscall),
            record(KERNEL, KERNEL + 8, Kind::Ret),
        ];
        let any_return = Filter::of(Branch::AnyReturn);
        assert!(froms(Model::IntelLbr, any_return, Some(2), &records).is_empty());
        assert_eq!(froms(Model::IntelLbr, any_return, Some(3), &records), [KERNEL]);
        assert_eq!(froms(Model::Brbe, any_return, Some(2), &records), [KERNEL]);
    }

    #[test]
    fn keeps_modelled_records() {
        let mut modelled = record(KERNEL, 0, Kind::Call);
        modelled.modelled = true;
        for model in Model::ALL {
            assert_eq!(
                model
                    .snapshot("call".parse().unwrap(), None, std::slice::from_ref(&modelled))
                    .count(),
                1
            );
        }
    }

    #[test]
    fn parses_its_own_names() {
        for model in Model::ALL {
            assert_eq!(model.name().parse::<Model>().unwrap(), model);
            assert!(model.depths().contains(&model.depth()));
        }
        let error = "lbr".parse::<Model>().unwrap_err().to_string();
        assert!(error.contains("`lbr`") && error.contains("amd-lbrv2"), "{error}");
        assert_eq!(Model::ALL.map(Model::depth), [32, 32, 16, 64]);
    }

    proptest! {
        /// The default may therefore ignore the host's CPU: on x86 only the depth differs.
        #[test]
        fn x86_models_hand_over_the_same_records(filter in filters(), records in traces()) {
            let of = |model| froms(model, filter, None, &records);
            for model in Model::of(Arch::X86_64) {
                prop_assert_eq!(of(model), of(Model::IntelLbr), "{}", model);
            }
        }

        #[test]
        fn a_union_hands_over_the_records_of_both_in_order(
            model in models(), a in filters(), b in filters(), records in traces(),
        ) {
            let (one, two) = (froms(model, a, None, &records), froms(model, b, None, &records));
            let expected: Vec<u64> = records
                .iter()
                .map(|r| r.from.address)
                .filter(|from| one.contains(from) || two.contains(from))
                .collect();
            prop_assert_eq!(froms(model, a.or(b), None, &records), expected);
        }

        #[test]
        fn a_ring_keeps_the_newest_records(
            model in models(), filter in filters(), depth in 0u32..70, records in traces(),
        ) {
            let all = froms(model, filter, None, &records);
            let kept = froms(model, filter, Some(depth), &records);
            prop_assert!(kept.len() <= depth as usize);
            prop_assert_eq!(&all[..kept.len()], &kept[..]);
        }
    }
}
