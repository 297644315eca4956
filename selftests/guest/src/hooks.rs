// SPDX-License-Identifier: MIT OR Apache-2.0
//! Hooks of security modules, as far as BPF programs can be hit there (`SEC("lsm/…")`).

use crate::found;
use crate::known::Known;
use crate::names::{self, NameError};
use crate::role;
use crate::switches;
use tramplab_protocol::Mechanism;
use tramplab_protocol::mechanism::{HOOK_PREFIX, Site};
use tramplab_protocol::message::GuestError;
use tramplab_protocol::pattern::Pattern;

/// The security module that calls the programs.
const MODULE: &str = "bpf";

/// Rejects hits of a hook that no program can have. `function` is the kernel's, for the hook. Other
/// mechanisms may have any.
pub fn check(mechanism: Mechanism, function: &str, known: &Known) -> Result<(), GuestError> {
    if mechanism.site() != Site::Hook {
        return Ok(());
    }
    // Without CONFIG_SECURITYFS nobody lists them. Then hits tell.
    if let Ok(active) = switches::security_modules() {
        is_active(&active, role::is_own_machine())?;
    }
    let btf = known.btf()?;
    if btf.function(function).is_none() {
        return Err(absent(function, known)?.into());
    }
    match btf.returns_value(function) {
        true => Ok(()),
        false => Err(GuestError::Unsupported(format!(
            "the hook {} returns nothing, so its programs run at the exit of {function}: measure \
             SEC(\"fexit/{function}\")",
            short(function)
        ))),
    }
}

fn is_active(modules: &str, own_machine: bool) -> Result<(), GuestError> {
    let modules = modules.trim();
    if modules.split(',').any(|module| module == MODULE) {
        return Ok(());
    }
    let way = match own_machine {
        true if modules.is_empty() => format!("boot this machine with lsm={MODULE}"),
        true => format!("boot this machine with lsm={modules},{MODULE}"),
        false => format!(
            "activate it with --config-axis lsm={MODULE}, or with `append: [lsm={MODULE}]` in the \
             manifest"
        ),
    };
    Err(GuestError::Unsupported(format!(
        "no hook calls BPF programs: the security module {MODULE} is not active, but {modules}; \
         {way} (requires the option BPF_LSM)"
    )))
}

fn absent(function: &str, known: &Known) -> Result<NameError, GuestError> {
    let suggestion = match names::reason_of_one(Mechanism::Lsm, function, known)? {
        Some(NameError::Unknown { suggestion, .. }) => suggestion,
        _ => None,
    };
    let suggestion = suggestion.and_then(|name| Some(name.strip_prefix(HOOK_PREFIX)?.to_owned()));
    Ok(NameError::NoHook { name: short(function).to_owned(), suggestion })
}

/// The hook of a function, as users name it.
fn short(function: &str) -> &str {
    function.strip_prefix(HOOK_PREFIX).unwrap_or(function)
}

/// The functions among which an attach test chooses: those of hooks or of system calls, as the
/// kernel names them.
pub fn among(mechanism: Mechanism, given: Vec<Pattern>) -> Result<Vec<Pattern>, GuestError> {
    if !matches!(mechanism.site(), Site::Hook | Site::Syscall) {
        return Ok(given);
    }
    let given = given.iter().map(|pattern| found::kernel_name(mechanism, &pattern.to_string()));
    let names: Vec<String> = given.collect();
    let all = [found::kernel_name(mechanism, "*")];
    let names = if names.is_empty() { &all[..] } else { &names };
    names.iter().map(|name| name.parse().map_err(GuestError::failed)).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::test_functions::{SYSCALL_FUNCTION, SYSCALL_PREFIX};

    #[test]
    fn names_the_way_to_activate_the_module() {
        for own_machine in [false, true] {
            assert_eq!(is_active("lockdown,capability,bpf\n", own_machine), Ok(()));
        }
        for (modules, own_machine, way) in [
            ("", false, "; activate it with --config-axis lsm=bpf, or"),
            ("capability,bpfx", false, "; activate it with --config-axis lsm=bpf, or"),
            ("", true, "; boot this machine with lsm=bpf ("),
            ("capability,yama\n", true, "; boot this machine with lsm=capability,yama,bpf ("),
        ] {
            match is_active(modules, own_machine) {
                Err(GuestError::Unsupported(why)) => assert!(why.contains(way), "{why}"),
                other => panic!("{modules}: {other:?}"),
            }
        }
    }

    #[test]
    fn attach_tests_choose_among_hooks() {
        let among = |mechanism, given: &[&str]| -> Vec<String> {
            let given = given.iter().map(|name| name.parse().unwrap()).collect();
            among(mechanism, given).unwrap().iter().map(ToString::to_string).collect()
        };
        assert_eq!(among(Mechanism::Lsm, &[]), ["bpf_lsm_*"]);
        let files = ["file_*", "bpf_lsm_bpf"];
        assert_eq!(among(Mechanism::Lsm, &files), ["bpf_lsm_file_*", "bpf_lsm_bpf"]);
        assert_eq!(among(Mechanism::Fentry, &files), files);
        assert_eq!(among(Mechanism::Ksyscall, &[]), [format!("{SYSCALL_PREFIX}*")]);
        let calls = ["get*".to_owned(), SYSCALL_FUNCTION.to_owned()];
        let expected = [format!("{SYSCALL_PREFIX}get*"), SYSCALL_FUNCTION.to_owned()];
        assert_eq!(among(Mechanism::Kretsyscall, &calls.each_ref().map(|c| &**c)), expected);
        assert!(among(Mechanism::Fentry, &[]).is_empty());
    }
}
