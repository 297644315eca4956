// SPDX-License-Identifier: MIT OR Apache-2.0
//! The targets of a measurement: chosen by seed, without those the kernel refuses.
//!
//! If a number of functions was asked for, the next one of the seeded list replaces a refused one.
//! If all were asked for, a refused one is dropped.

use crate::binary::Binary;
use crate::bpf::BpfError;
use crate::functions::{self, Choice};
use crate::known::Known;
use crate::method::{Method, SLEEPS};
use crate::modules::Modules;
use crate::names;
use crate::target::{List, Target};
use std::collections::HashSet;
use std::os::fd::BorrowedFd;
use tramplab_protocol::mechanism::Site;
use tramplab_protocol::message::{GuestError, Refusal};
use tramplab_protocol::pattern::{Pattern, Patterns};
use tramplab_protocol::{Functions, Mechanism};

/// Targets in use, and replacements for refused ones.
#[derive(Debug)]
pub struct Targets {
    pub chosen: Vec<Target>,
    /// In reverse: the next one is the last. None if all are in use and refused ones are dropped.
    spare: Option<Vec<Target>>,
    pub refused: Vec<Refusal>,
}

impl Targets {
    /// Chooses by seed. If the function `first` is a candidate, it is the first.
    pub fn choose(
        mut candidates: Vec<Target>,
        wanted: Functions,
        seed: u64,
        first: Option<&str>,
    ) -> Result<Targets, GuestError> {
        functions::order(&mut candidates, seed);
        if let Some(at) = candidates.iter().position(|target| Some(&*target.name) == first) {
            candidates[..=at].rotate_right(1);
        }
        let spare = match wanted.count() {
            None if candidates.is_empty() => return Err(too_few(0, 1)),
            None => None,
            Some(count) => {
                let wanted = count.get() as usize;
                if candidates.len() < wanted {
                    return Err(too_few(candidates.len(), wanted));
                }
                let mut spare = candidates.split_off(wanted);
                spare.reverse();
                Some(spare)
            }
        };
        Ok(Targets { chosen: candidates, spare, refused: Vec::new() })
    }

    /// Replaces a refused target with the next one, or removes it. Returns true if it was replaced.
    pub fn refuse(&mut self, index: usize, reason: &BpfError) -> Result<bool, GuestError> {
        let wanted = self.chosen.len();
        let next = match &mut self.spare {
            Some(spare) => Some(spare.pop().ok_or_else(|| too_few(wanted - 1, wanted))?),
            // The last target's refusal explains why nothing can be measured.
            None if wanted == 1 => return Err(GuestError::from(reason.clone())),
            None => None,
        };
        let replaced = next.is_some();
        let refused = match next {
            Some(next) => std::mem::replace(&mut self.chosen[index], next),
            None => self.chosen.remove(index),
        };
        self.refused.push(Refusal { function: refused.name, reason: reason.to_string() });
        Ok(replaced)
    }

    /// Truncates the list to the first `count`.
    pub fn keep(&mut self, count: usize) {
        self.chosen.truncate(count);
    }

    /// Refuses the targets for which the kernel refuses the whole list, until it accepts the list.
    pub fn remove_offenders(
        &mut self,
        method: Method,
        program: BorrowedFd<'_>,
    ) -> Result<(), GuestError> {
        let attach = |some: &[usize], targets: &Targets| {
            let some: Vec<Target> = some.iter().map(|i| targets.chosen[*i].clone()).collect();
            let link = match &some[..] {
                [one] => method.link(program, one),
                _ => method.link_list(program, &List::of(&some)),
            };
            link.map(drop)
        };
        let mut suspects: Vec<usize> = (0..self.chosen.len()).collect();
        while !suspects.is_empty() {
            let found = offenders(&suspects, &mut |some| attach(some, self));
            suspects.clear();
            // From the end, as dropping one moves those after it.
            for (index, error) in found.iter().rev() {
                if self.refuse(*index, error)? {
                    // Only replacements are still unknown.
                    suspects.push(*index);
                }
            }
        }
        Ok(())
    }
}

/// The program's section names a target that is not among those to choose from.
pub fn not_listed(mechanism: Mechanism, name: &str, known: &Known) -> GuestError {
    let reason = match mechanism.is_tracepoint() {
        true => None,
        false => names::reason_of_one(mechanism, name, known).ok().flatten(),
    };
    reason.map_or_else(
        || {
            GuestError::Unsupported(format!(
                "{name}, which the program's section names, is not among the functions or \
                 tracepoints that attach tests choose from; name some in `targets`"
            ))
        },
        GuestError::from,
    )
}

fn too_few(available: usize, wanted: usize) -> GuestError {
    GuestError::Unsupported(format!("{available} targets are available, {wanted} were asked for"))
}

/// The targets that a mechanism can be asked to attach to: every one among those that the user
/// names. Otherwise, for a number of functions only plain ones, so that all mechanisms but fmod_ret
/// choose from the same list; for all functions every one that the kernel may accept.
pub fn candidates(
    mechanism: Mechanism,
    wanted: Functions,
    among: &[Pattern],
    known: &Known,
) -> Result<Vec<Target>, GuestError> {
    if mechanism.is_user() {
        return match among {
            [] => Ok(Binary::functions(mechanism)),
            _ => Err(GuestError::failed(format!("{mechanism} attaches to no kernel function"))),
        };
    }
    let (btf, symbols) = (known.btf()?, known.symbols()?);
    if mechanism.is_tracepoint() {
        let mut found = functions::tracepoints(btf);
        let of_all = |target: &Target| ["sys_enter", "sys_exit"].contains(&&*target.name);
        match mechanism.site() {
            Site::SyscallTracepoint => found.retain(of_all),
            Site::SyscallEvent => found = functions::syscall_events(),
            _ => {}
        }
        return Ok(found);
    }
    let named = Patterns::new(among);
    let choice = if among.is_empty() { Choice::Safe } else { Choice::Among(&named) };
    let available = || Ok::<_, GuestError>(functions::available()?);
    let mut found = match (choice, wanted) {
        (Choice::Safe, Functions::Count(_) | Functions::Links { .. }) => known.plain()?.to_vec(),
        _ if Method::attaches_by_address(mechanism) => {
            let addresses = functions::available_addresses();
            functions::by_address(&available()?, addresses.as_deref(), choice, symbols)
        }
        (Choice::Among(_), _) if Method::attaches_by_name(mechanism) => {
            functions::by_name(&available()?, choice)
        }
        _ => {
            let (available, btf_id) = (available()?, |name: &str| btf.traceable_function(name));
            let mut found = functions::candidates(&available, choice, btf_id, symbols);
            let lookup = |module: &str, name: &str| known.modules.one_of_many(module, name);
            found.extend(functions::of_modules(&available, choice, lookup)?);
            found
        }
    };
    // A hit of such a function would be refused as well.
    let exact: HashSet<String> = among.iter().filter_map(Pattern::exact).collect();
    if !exact.is_empty() {
        functions::drop_namesakes(&mut found, &exact, &available()?);
    }
    // The kernel's own lists of those that may sleep are not to be read, but for this one. It
    // judges what the user names.
    let sleeps = mechanism.sleeps() && mechanism.site() == Site::Function && among.is_empty();
    if sleeps || mechanism.site() == Site::Modifiable {
        functions::keep_injectable(&mut found, &functions::injectable(), sleeps);
    }
    if sleeps && found.is_empty() {
        let text = format!("no function is known to be allowed to sleep: {SLEEPS}");
        return Err(GuestError::Unsupported(text));
    }
    if found.is_empty() && !among.is_empty() {
        // A module that is not there is the better reason.
        let mut modules = among.iter().filter_map(Pattern::module);
        modules.try_for_each(|module| require(mechanism, module, &known.modules))?;
        return Err(GuestError::Unsupported(shown(&unmatched(mechanism, among, &found, known)?)));
    }
    Ok(found)
}

/// The first reasons, for a message.
fn shown(refused: &[Refusal]) -> String {
    const SHOWN: usize = 20;
    let mut reasons: Vec<&str> =
        refused.iter().take(SHOWN).map(|refusal| &*refusal.reason).collect();
    if refused.len() > SHOWN {
        reasons.push("…");
    }
    reasons.join("; ")
}

fn attaches_by_id(mechanism: Mechanism) -> bool {
    !Method::attaches_by_address(mechanism) && !Method::attaches_by_name(mechanism)
}

/// Tells why a mechanism cannot attach to a module's functions, if it cannot.
fn require(mechanism: Mechanism, module: &str, modules: &Modules) -> Result<(), GuestError> {
    match attaches_by_id(mechanism) {
        true => modules.require_btf(module),
        false => modules.require(module),
    }
}

/// The lists that a function must be in.
fn lists(mechanism: Mechanism) -> &'static str {
    match attaches_by_id(mechanism) {
        true if mechanism.site() == Site::Modifiable => {
            "ftrace, BTF and the list of functions whose result may be changed have"
        }
        true => "ftrace and BTF list",
        false => "ftrace lists",
    }
}

/// The patterns that match none of the candidates. The user may have mistyped them.
pub fn unmatched(
    mechanism: Mechanism,
    among: &[Pattern],
    candidates: &[Target],
    known: &Known,
) -> Result<Vec<Refusal>, GuestError> {
    let names: HashSet<&str> = candidates.iter().map(|target| &*target.name).collect();
    let is_there = |pattern: &Pattern| match pattern.exact() {
        Some(name) => names.contains(&*name),
        None => candidates.iter().any(|target| match target.name.split_once(':') {
            Some((module, name)) => pattern.matches(name, Some(module)),
            None => pattern.matches(&target.name, None),
        }),
    };
    let missing: Vec<&Pattern> = among.iter().filter(|pattern| !is_there(pattern)).collect();
    let exact: Vec<String> = missing.iter().filter_map(|pattern| pattern.exact()).collect();
    let read = names::Lists::default();
    let tables = match exact.is_empty() {
        true => None,
        false => Some(names::Tables::of(&exact, known, &read)?),
    };
    let reason = |pattern: &Pattern| {
        let require = |module| require(mechanism, module, &known.modules).err();
        if let Some(absent) = pattern.module().and_then(require) {
            return absent.to_string();
        }
        let of_name = |name: String| names::reason_in_lists(mechanism, &name, tables.as_ref()?);
        match pattern.exact().and_then(of_name) {
            Some(reason) => reason.to_string(),
            None => format!("{} no function that matches {pattern}", lists(mechanism)),
        }
    };
    let refusal =
        |pattern: &&Pattern| Refusal { function: pattern.to_string(), reason: reason(pattern) };
    Ok(missing.iter().map(refusal).collect())
}

/// Keeps the targets of one BTF for a mechanism whose program is loaded for one: those of the
/// kernel image if there are any. The others are refused.
pub fn keep_one_btf(mechanism: Mechanism, candidates: &mut Vec<Target>) -> Vec<Refusal> {
    if !(mechanism.is_multi() && attaches_by_id(mechanism)) {
        return Vec::new();
    }
    let Some(kept) = candidates.iter().map(|target| target.btf).min() else { return Vec::new() };
    let reason = format!("one program of {mechanism} attaches to the image or to one module");
    let others = candidates.extract_if(.., |target| target.btf != kept);
    others.map(|other| Refusal { function: other.name, reason: reason.clone() }).collect()
}

/// The items of a list that are refused by themselves, found by bisection.
fn offenders<T: Copy, E>(
    items: &[T],
    accept: &mut impl FnMut(&[T]) -> Result<(), E>,
) -> Vec<(T, E)> {
    match (accept(items), items) {
        (Ok(()), _) | (Err(_), []) => Vec::new(),
        (Err(error), [item]) => vec![(*item, error)],
        (Err(_), _) => {
            let (left, right) = items.split_at(items.len() / 2);
            let mut found = offenders(left, accept);
            found.extend(offenders(right, accept));
            found
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::num::NonZeroU32;

    #[test]
    fn bisection_finds_exactly_the_offenders_in_few_tries() {
        let items: Vec<u32> = (0..1000).collect();
        for bad in
            [vec![], vec![0], vec![999], vec![17, 18], (0..1000).step_by(100).collect::<Vec<_>>()]
        {
            let mut tries = 0;
            let found = offenders(&items, &mut |some| {
                tries += 1;
                if some.iter().any(|i| bad.contains(i)) { Err(()) } else { Ok(()) }
            });
            assert_eq!(found.iter().map(|(i, ())| *i).collect::<Vec<_>>(), bad);
            assert!(tries <= 1 + bad.len() * 21, "{tries} tries for {} offenders", bad.len());
        }
        // A refused list of one ends the search.
        assert_eq!(offenders(&[8], &mut |_| Err("no")), [(8, "no")]);
    }

    fn named(names: &[&str]) -> Vec<Target> {
        names
            .iter()
            .map(|name| Target { name: (*name).to_owned(), btf_id: 1, btf: 0, address: 1 })
            .collect()
    }

    fn count(count: u32) -> Functions {
        Functions::Count(NonZeroU32::new(count).unwrap())
    }

    #[test]
    fn one_list_has_functions_of_one_btf() {
        let target = |name: &str, btf| Target { name: name.to_owned(), btf_id: 1, btf, address: 0 };
        let all = || vec![target("xfs:a", 9), target("vfs_read", 0), target("fuse:b", 7)];
        for (mechanism, expected) in [
            (Mechanism::FentryMulti, &["vfs_read"][..]),
            (Mechanism::Fentry, &["xfs:a", "vfs_read", "fuse:b"]),
            (Mechanism::KprobeMulti, &["xfs:a", "vfs_read", "fuse:b"]),
        ] {
            let mut kept = all();
            let refused = keep_one_btf(mechanism, &mut kept);
            assert_eq!(kept.iter().map(|target| &*target.name).collect::<Vec<_>>(), expected);
            assert_eq!(refused.len(), 3 - expected.len());
        }
        let mut modules = all().split_off(2);
        modules.push(target("xfs:a", 9));
        assert_eq!(keep_one_btf(Mechanism::FexitMulti, &mut modules)[0].function, "xfs:a");
    }

    fn names(targets: &Targets) -> Vec<&str> {
        targets.chosen.iter().map(|t| t.name.as_str()).collect()
    }

    #[test]
    fn reports_the_number_of_available_targets() {
        let Err(GuestError::Unsupported(reason)) =
            Targets::choose(named(&["a", "b"]), count(3), 1, None)
        else {
            panic!("three out of two");
        };
        assert_eq!(reason, "2 targets are available, 3 were asked for");
        assert!(Targets::choose(vec![], Functions::All, 1, None).is_err(), "nothing is not all");
    }

    #[test]
    fn a_short_list_is_the_head_of_a_long_one() {
        let all: Vec<String> = (0..100).map(|i| format!("f{i:03}")).collect();
        let all: Vec<&str> = all.iter().map(String::as_str).collect();
        let choose = |wanted, seed| Targets::choose(named(&all), wanted, seed, None).unwrap();
        assert_eq!(names(&choose(count(10), 3)), names(&choose(count(50), 3))[..10]);
        assert_eq!(names(&choose(count(100), 3)), names(&choose(Functions::All, 3)));
        assert_ne!(names(&choose(count(10), 3)), names(&choose(count(10), 4)));
        let own = Targets::choose(named(&all), count(10), 3, Some("f042")).unwrap();
        let others: Vec<&str> = names(&own).into_iter().filter(|name| *name != "f042").collect();
        assert_eq!(names(&own)[0], "f042");
        assert_eq!(
            others,
            names(&choose(count(100), 3))
                .into_iter()
                .filter(|name| *name != "f042")
                .take(9)
                .collect::<Vec<_>>()
        );
    }

    #[test]
    fn replaces_refused_targets_of_a_number_and_drops_those_of_all() {
        let refusal = BpfError::new("make a link", libc::EINVAL, "");
        let mut some = Targets::choose(named(&["a", "b", "c"]), count(2), 1, None).unwrap();
        let mut all = Targets::choose(named(&["a", "b", "c"]), Functions::All, 1, None).unwrap();
        let order: Vec<String> = names(&all).into_iter().map(str::to_owned).collect();
        assert!(some.refuse(0, &refusal).unwrap());
        assert_eq!(names(&some), [&order[2], &order[1]]);
        assert!(some.refuse(0, &refusal).is_err(), "no third one is left");
        assert!(!all.refuse(0, &refusal).unwrap());
        assert_eq!(names(&all), order[1..]);
        assert_eq!((all.refused[0].function.as_str(), all.refused.len()), (order[0].as_str(), 1));
        assert!(!all.refuse(0, &refusal).unwrap());
        assert!(matches!(all.refuse(0, &refusal), Err(GuestError::Failed(_))), "a list of none");
    }
}
