// SPDX-License-Identifier: MIT OR Apache-2.0
//! Serves branch records to every program in the guest. The plugin fills their snapshots. Events of
//! branches can be opened, and their filter applies to the snapshots.

use crate::delivering::Delivering;
use crate::kallsyms::Kallsyms;
use crate::libbpf_log;
use libbpf_rs::{Link, MapCore, MapFlags, Object, ObjectBuilder, ProgramInput};
use tramplab_protocol::delivery::{Cpu, Filters};
use tramplab_protocol::magic::Magic;
use tramplab_protocol::message::GuestError;
use zerocopy::IntoBytes;

const POSING: &[u8] = include_bytes!(concat!(env!("OUT_DIR"), "/posing.bpf.o"));
#[cfg(target_arch = "x86_64")]
const OPENS: &str = "x86_64";
#[cfg(target_arch = "aarch64")]
const OPENS: &str = "arm64";
const PROBE: &str = "probe";

// `struct state` of posing.bpf.c: the CPU, its address, the probe's result, the CPU of each bit.
const CPU_BYTES: usize = size_of::<Cpu>();
const CPU_AT: usize = CPU_BYTES;
const GOT: usize = CPU_AT + 8;
const OF_BIT: usize = GOT + 8;
const BITS: usize = 32;
const STATE_BYTES: usize = OF_BIT + BITS * CPU_BYTES;
const KEY: [u8; 4] = [0; 4];

/// While it lives, programs get the branch records that they ask for.
pub struct Serving {
    // Dropped after `drop` has disarmed the plugin.
    _setup: Delivering,
    _link: Link,
    object: Object,
}

impl Serving {
    pub fn begin(filters: &Filters, kallsyms: &Kallsyms) -> Result<Serving, GuestError> {
        libbpf_log::clear();
        let failed = |error: libbpf_rs::Error| {
            let log = libbpf_log::take();
            GuestError::Failed(format!(
                "failed to serve branch records: {error}; {}",
                log.trim_end()
            ))
        };
        let object = load(filters).map_err(failed)?;
        let cpu_at = probe(&object).map_err(failed)?.cpu_at;
        let setup = Delivering::new(kallsyms, filters.initial, cpu_at)?;
        let link = attach(&object).map_err(failed)?;
        Magic::Deliver.execute_with(setup.setup());
        let serving = Serving { _setup: setup, _link: link, object };
        match probe(&serving.object).map_err(failed)?.got {
            1.. => Ok(serving),
            got => Err(GuestError::Unsupported(format!(
                "bpf_get_branch_snapshot() got no records ({got}): they can be handed to kernels \
                 from 6.10 on, in a guest with the TCG plugin"
            ))),
        }
    }

    /// Fails if programs could get no records in the end: one of them may have stopped the
    /// recording. The filter is the command's last one, which may match no branch.
    pub fn end(self) -> Result<(), GuestError> {
        match probe(&self.object).map_err(GuestError::failed)?.got {
            0.. => Ok(()),
            got => Err(GuestError::Failed(format!(
                "bpf_get_branch_snapshot() got no more records ({got}) when the command had ended: \
                 a program of the guest stopped the plugin, or there was too much code to record"
            ))),
        }
    }
}

impl Drop for Serving {
    fn drop(&mut self) {
        Magic::Disarm.execute();
    }
}

/// The result of a snapshot, and the address of the CPU's settings in the kernel.
struct Probed {
    cpu_at: u64,
    got: i64,
}

fn load(filters: &Filters) -> Result<Object, libbpf_rs::Error> {
    let mut open = ObjectBuilder::default().open_memory(POSING)?;
    open.progs_mut()
        .filter(|program| program.name() == OPENS || program.name() == PROBE)
        .for_each(|mut program| program.set_autoload(true));
    let object = open.load()?;
    variables(&object)?.update(&KEY, &state(filters), MapFlags::ANY)?;
    Ok(object)
}

fn state(filters: &Filters) -> [u8; STATE_BYTES] {
    let mut bytes = [0; STATE_BYTES];
    let mut put = |at: usize, cpu: Cpu| bytes[at..at + CPU_BYTES].copy_from_slice(cpu.as_bytes());
    put(0, filters.initial);
    for &(bit, cpu) in filters.bits.iter().filter(|(bit, _)| usize::from(*bit) < BITS) {
        put(OF_BIT + usize::from(bit) * CPU_BYTES, cpu);
    }
    bytes
}

/// Runs the probing program.
fn probe(object: &Object) -> Result<Probed, libbpf_rs::Error> {
    let probe = object.progs_mut().find(|program| program.name() == PROBE).expect("compiled in");
    probe.test_run(ProgramInput::default())?;
    let state = variables(object)?.lookup(&KEY, MapFlags::ANY)?.unwrap_or_default();
    let word = |at: usize| state.get(at..at + 8).and_then(|bytes| bytes.try_into().ok());
    let word = |at: usize| u64::from_le_bytes(word(at).unwrap_or_default());
    Ok(Probed { cpu_at: word(CPU_AT), got: word(GOT) as i64 })
}

fn attach(object: &Object) -> Result<Link, libbpf_rs::Error> {
    let opens = object.progs_mut().find(|program| program.name() == OPENS).expect("compiled in");
    opens.attach_trace()
}

fn variables(object: &Object) -> Result<libbpf_rs::Map<'_>, libbpf_rs::Error> {
    object.maps().find(|map| map.name().to_string_lossy().ends_with(".bss")).ok_or_else(|| {
        libbpf_rs::ErrorExt::context(
            libbpf_rs::Error::from_raw_os_error(libc::ENOENT),
            "the object has no variables",
        )
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use tramplab_protocol::delivery::Kinds;
    use tramplab_protocol::trace::Kind;

    #[test]
    fn state_fits_the_programs_variables() {
        let object = ObjectBuilder::default().open_memory(POSING).unwrap();
        let bss = object.maps().find(|m| m.name().to_string_lossy().ends_with(".bss")).unwrap();
        assert_eq!(bss.value_size() as usize, STATE_BYTES);
        let cpu = |kind| Cpu { depth: 32, ring: Kinds::of(&[kind]), kept: Kinds::of(&[kind]) };
        let (initial, returns) = (cpu(Kind::Cond), cpu(Kind::Ret));
        let bytes = state(&Filters { initial, bits: vec![(5, returns), (200, returns)] });
        assert_eq!(&bytes[..CPU_BYTES], initial.as_bytes());
        assert_eq!(&bytes[OF_BIT + 40..OF_BIT + 48], returns.as_bytes());
        assert!(bytes[OF_BIT + 48..].iter().all(|&byte| byte == 0));
    }
}
