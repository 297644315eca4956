// SPDX-License-Identifier: MIT OR Apache-2.0
//! The functions that `lbr_waste` and `trigger` groups trace.

use crate::yaml::Mechanisms;
use tramplab_model::function::FunctionName;
use tramplab_protocol::Mechanism;

/// Each mechanism with each function that it can attach to. Tracepoints are none.
pub(super) fn pairs<'a>(
    mechanisms: &'a Mechanisms,
    targets: &'a [FunctionName],
) -> impl Iterator<Item = (Mechanism, Option<FunctionName>)> + 'a {
    let functions: Vec<Option<FunctionName>> = match targets {
        [] => vec![None],
        _ => targets.iter().copied().map(Some).collect(),
    };
    functions.into_iter().flat_map(|function| {
        let fits = move |mechanism: &&Mechanism| function.is_none() || !mechanism.is_tracepoint();
        mechanisms.0.iter().filter(fits).map(move |&mechanism| (mechanism, function))
    })
}

/// The reason why a group has no cells.
pub(super) fn misfit(mechanisms: &Mechanisms, targets: &[FunctionName]) -> Option<String> {
    let function = targets.first()?;
    let none = mechanisms.0.iter().all(|mechanism| mechanism.is_tracepoint());
    none.then(|| {
        format!(
            "no mechanism of the group attaches to functions such as {function}; name another \
             mechanism, or remove `targets`"
        )
    })
}
