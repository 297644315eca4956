// SPDX-License-Identifier: MIT OR Apache-2.0
//! The attach measurement: rounds of load, attach and detach, each round from nothing to nothing.
//!
//! A target the kernel refuses is replaced by the next one of the seeded list. Where every target has a link of its
//! own, refusals show in the rounds, and a round with one is done again; a list that is refused as a whole is
//! searched for its offenders first.

use crate::bpf::{BpfError, Link};
use crate::functions;
use crate::kallsyms::Kallsyms;
use crate::kernel_btf::KernelBtf;
use crate::method::{List, Method, Target};
use crate::waste;
use nix::time::{ClockId, clock_gettime};
use std::os::fd::{AsFd, OwnedFd};
use tramplab_protocol::Functions;
use tramplab_protocol::message::{AttachReply, AttachRequest, AttachRound, GuestError, Refusal};

/// Targets in use, and those that replace refused ones.
struct Targets {
    chosen: Vec<Target>,
    /// In reverse: the next one is the last.
    spare: Vec<Target>,
    refused: Vec<Refusal>,
}

impl Targets {
    fn choose(mut candidates: Vec<Target>, wanted: usize, seed: u64) -> Result<Targets, GuestError> {
        functions::shuffle(&mut candidates, seed);
        if candidates.len() < wanted {
            return Err(too_few(candidates.len(), wanted));
        }
        let mut spare = candidates.split_off(wanted);
        spare.reverse();
        Ok(Targets { chosen: candidates, spare, refused: Vec::new() })
    }

    /// Puts the next target in the place of a refused one.
    fn replace(&mut self, index: usize, reason: &BpfError) -> Result<(), GuestError> {
        let wanted = self.chosen.len();
        let next = self.spare.pop().ok_or_else(|| too_few(wanted - 1, wanted))?;
        let refused = std::mem::replace(&mut self.chosen[index], next);
        self.refused.push(Refusal { function: refused.name, reason: reason.to_string() });
        Ok(())
    }
}

fn too_few(available: usize, wanted: usize) -> GuestError {
    GuestError::Unsupported(format!("{available} targets are available, {wanted} were asked for"))
}

fn failed(what: impl std::fmt::Display) -> GuestError {
    GuestError::Failed(what.to_string())
}

fn now_ns() -> u64 {
    clock_gettime(ClockId::CLOCK_MONOTONIC)
        .map_or(0, |t| t.tv_sec() as u64 * 1_000_000_000 + t.tv_nsec() as u64)
}

pub fn measure(request: &AttachRequest, btf: &KernelBtf) -> Result<AttachReply, GuestError> {
    if request.rounds == 0 {
        return Err(failed("an attach request needs at least one round"));
    }
    let mechanism = request.mechanism;
    let method = Method::new(mechanism, btf)?;
    let kallsyms = Kallsyms::read().map_err(failed)?;
    // A target that must work tells a kernel that cannot from a function that must not.
    method.probe(&waste::reference(mechanism, btf, &kallsyms)?)?;
    let candidates = if mechanism.is_tracepoint() {
        functions::tracepoints(btf)
    } else {
        let available = functions::available().map_err(failed)?;
        functions::candidates(mechanism, &available, &functions::injectable(), btf, &kallsyms)
    };
    let wanted = match request.functions {
        Functions::Count(count) => count.get() as usize,
        Functions::All => candidates.len(),
    };
    let mut targets = Targets::choose(candidates, wanted, request.seed)?;
    let mut rounds = Vec::new();
    if mechanism.is_multi() {
        remove_offenders(method, &mut targets)?;
        let list = List::of(&targets.chosen);
        for _ in 0..request.rounds {
            rounds.push(list_round(method, &targets.chosen[0], &list)?);
        }
    } else {
        while rounds.len() < request.rounds as usize {
            rounds.extend(single_round(method, &mut targets)?);
        }
    }
    let count = targets.chosen.len() as u32;
    Ok(AttachReply {
        mechanism,
        functions: targets.chosen.into_iter().map(|t| t.name).collect(),
        refused: targets.refused,
        programs: if method.program_per_target() { count } else { 1 },
        links: if mechanism.is_multi() { 1 } else { count },
        rounds,
        stopped: None,
    })
}

/// One program, one link, all targets.
fn list_round(method: Method, any: &Target, list: &List) -> Result<AttachRound, GuestError> {
    let start = now_ns();
    let program = method.load_empty(any)?;
    let loaded = now_ns();
    let link = method.link_list(program.as_fd(), list)?;
    let attached = now_ns();
    drop(link);
    Ok(AttachRound {
        load_ns: loaded - start,
        attach_ns: attached - loaded,
        detach_ns: now_ns() - attached,
        memory_kib: 0,
    })
}

/// A link for every target. None when the kernel refused one: the times are then not those of the final list.
fn single_round(method: Method, targets: &mut Targets) -> Result<Option<AttachRound>, GuestError> {
    let mut clean = true;
    let mut programs: Vec<OwnedFd> = Vec::with_capacity(targets.chosen.len());
    let wanted = if method.program_per_target() { targets.chosen.len() } else { 1 };
    let start = now_ns();
    while programs.len() < wanted {
        let index = programs.len();
        match method.load_empty(&targets.chosen[index]) {
            Ok(program) => programs.push(program),
            Err(error) => {
                targets.replace(index, &error)?;
                clean = false;
            }
        }
    }
    let loaded = now_ns();
    let mut links: Vec<Link> = Vec::with_capacity(targets.chosen.len());
    let before = now_ns();
    while links.len() < targets.chosen.len() {
        let index = links.len();
        let program = &programs[if wanted == 1 { 0 } else { index }];
        match method.link(program.as_fd(), &targets.chosen[index]) {
            Ok(link) => links.push(link),
            Err(error) => {
                clean = false;
                replace_and_load(method, targets, index, &error, &mut programs)?;
            }
        }
    }
    let attached = now_ns();
    drop(links);
    let detached = now_ns();
    let round = AttachRound {
        load_ns: loaded - start,
        attach_ns: attached - before,
        detach_ns: detached - attached,
        memory_kib: 0,
    };
    Ok(clean.then_some(round))
}

/// Replaces a target whose link was refused, with a program for the new one where each needs its own.
fn replace_and_load(
    method: Method,
    targets: &mut Targets,
    index: usize,
    refusal: &BpfError,
    programs: &mut [OwnedFd],
) -> Result<(), GuestError> {
    targets.replace(index, refusal)?;
    while method.program_per_target() {
        match method.load_empty(&targets.chosen[index]) {
            Ok(program) => {
                programs[index] = program;
                break;
            }
            Err(error) => targets.replace(index, &error)?,
        }
    }
    Ok(())
}

/// Replaces what makes the kernel refuse the list, until it takes it.
fn remove_offenders(method: Method, targets: &mut Targets) -> Result<(), GuestError> {
    let program = method.load_empty(&targets.chosen[0])?;
    let attach = |some: &[usize], targets: &Targets| {
        let some: Vec<Target> = some.iter().map(|i| targets.chosen[*i].clone()).collect();
        method.link_list(program.as_fd(), &List::of(&some)).map(drop)
    };
    let mut suspects: Vec<usize> = (0..targets.chosen.len()).collect();
    while !suspects.is_empty() {
        let found = offenders(&suspects, &mut |some| attach(some, targets));
        for (index, error) in &found {
            targets.replace(*index, error)?;
        }
        // Only the newcomers are still unknown.
        suspects = found.into_iter().map(|(index, _)| index).collect();
    }
    Ok(())
}

/// Those items of a list that are refused by themselves, found by halving what is refused.
fn offenders<T: Copy, E>(items: &[T], accept: &mut impl FnMut(&[T]) -> Result<(), E>) -> Vec<(T, E)> {
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

    #[test]
    fn halving_finds_exactly_the_offenders_in_few_tries() {
        let items: Vec<u32> = (0..1000).collect();
        for bad in [vec![], vec![0], vec![999], vec![17, 18], (0..1000).step_by(100).collect::<Vec<_>>()] {
            let mut tries = 0;
            let found = offenders(&items, &mut |some| {
                tries += 1;
                if some.iter().any(|i| bad.contains(i)) { Err(()) } else { Ok(()) }
            });
            assert_eq!(found.iter().map(|(i, ())| *i).collect::<Vec<_>>(), bad);
            assert!(tries <= 1 + bad.len() * 21, "{tries} tries for {} offenders", bad.len());
        }
        // 8 refused, as a list of one, ends.
        assert_eq!(offenders(&[8], &mut |_| Err("no")), [(8, "no")]);
    }

    fn named(names: &[&str]) -> Vec<Target> {
        names.iter().map(|name| Target { name: (*name).to_owned(), btf_id: 1, address: 1 }).collect()
    }

    #[test]
    fn too_few_targets_say_how_many_there_are() {
        let Err(GuestError::Unsupported(reason)) = Targets::choose(named(&["a", "b"]), 3, 1) else {
            panic!("three out of two");
        };
        assert_eq!(reason, "2 targets are available, 3 were asked for");
    }

    #[test]
    fn a_short_list_begins_a_long_one() {
        let names: Vec<String> = (0..100).map(|i| format!("f{i:03}")).collect();
        let names: Vec<&str> = names.iter().map(String::as_str).collect();
        let choose = |wanted, seed| {
            let targets = Targets::choose(named(&names), wanted, seed).unwrap();
            targets.chosen.into_iter().map(|t| t.name).collect::<Vec<_>>()
        };
        assert_eq!(choose(10, 3), choose(50, 3)[..10]);
        assert_ne!(choose(10, 3), choose(10, 4));
    }
}
