// SPDX-License-Identifier: MIT OR Apache-2.0
//! Measures attaching: rounds against the clock, without a watcher.

use crate::rounds::Prepared;
use tramplab_protocol::message::{AttachReply, AttachRequest, GuestError, Others};

/// Measures the rounds of a request, or as many as its budget allows. `others` are attached beside.
pub fn measure(
    request: &AttachRequest,
    prepared: &mut Prepared,
    others: &[Others],
) -> Result<AttachReply, GuestError> {
    let mut rounds = Vec::new();
    while rounds.len() < request.rounds as usize
        && (rounds.is_empty() || prepared.stopped.is_none())
    {
        // An only round keeps to its phases.
        prepared.asks_links = request.rounds > 1 && rounds.len() + 1 == request.rounds as usize;
        rounds.push(prepared.timed_round()?);
    }
    prepared.asks_links = false;
    let mechanism = request.mechanism;
    let count = prepared.targets.chosen.len() as u32;
    Ok(AttachReply {
        mechanism,
        functions: prepared.targets.chosen.iter().map(|target| target.name.clone()).collect(),
        refused: prepared.targets.refused.clone(),
        programs: if prepared.method.program_per_target() { count } else { 1 },
        links: if mechanism.is_multi() { request.functions.links() } else { count },
        others: others.to_vec(),
        rounds,
        stopped: prepared.stopped,
        remarks: prepared.remarks(),
    })
}
