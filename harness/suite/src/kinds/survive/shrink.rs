// SPDX-License-Identifier: MIT OR Apache-2.0
//! Delta debugging: removes steps as long as what remains still fails.

/// Removes ever smaller runs of steps. `fails` runs the rest; None ends the search. Returns the
/// smallest list that failed.
pub fn smallest<T: Clone>(
    mut steps: Vec<T>,
    mut fails: impl FnMut(&[T]) -> Option<bool>,
) -> Vec<T> {
    let mut parts = 2;
    while steps.len() > 1 {
        let size = steps.len().div_ceil(parts);
        let mut removed = false;
        let mut start = 0;
        while start < steps.len() && steps.len() > 1 {
            let end = (start + size).min(steps.len());
            let rest: Vec<T> = steps[..start].iter().chain(&steps[end..]).cloned().collect();
            match fails(&rest) {
                None => return steps,
                // The steps after the removed part are at `start` now.
                Some(true) => {
                    steps = rest;
                    removed = true;
                }
                Some(false) => start = end,
            }
        }
        if size == 1 && !removed {
            break;
        }
        parts = if size == 1 { steps.len() } else { (2 * parts).min(steps.len()) };
    }
    steps
}

#[cfg(test)]
mod tests {
    use super::*;

    fn shrunk(count: u32, needed: &[u32]) -> (Vec<u32>, u32) {
        let mut runs = 0;
        let found = smallest((0..count).collect(), |steps| {
            runs += 1;
            Some(needed.iter().all(|step| steps.contains(step)))
        });
        (found, runs)
    }

    #[test]
    fn finds_exactly_the_steps_that_are_needed() {
        for needed in [&[7][..], &[0, 399], &[3, 4, 5], &[10, 200, 201, 390]] {
            let (found, runs) = shrunk(400, needed);
            assert_eq!(found, needed);
            assert!(runs < 120, "{runs} runs for {needed:?}");
        }
        assert_eq!(shrunk(1, &[0]), (vec![0], 0));
        // Nothing can be removed.
        assert_eq!(shrunk(4, &[0, 1, 2, 3]).0, [0, 1, 2, 3]);
    }

    #[test]
    fn ends_when_the_runs_are_used_up() {
        let mut left = 4;
        let found = smallest((0..400).collect(), |steps: &[u32]| {
            left -= 1;
            (left > 0).then(|| steps.contains(&0))
        });
        assert_eq!(found.len(), 200);
        assert!(found.contains(&0));
    }

    /// A storm that fails only sometimes stays one that did fail.
    #[test]
    fn keeps_the_last_list_that_failed() {
        let mut run = 0;
        let mut failed: Vec<u32> = (0..64).collect();
        let found = smallest(failed.clone(), |steps| {
            run += 1;
            let fails = run % 3 == 0;
            if fails {
                failed = steps.to_vec();
            }
            (run < 40).then_some(fails)
        });
        assert_eq!(found, failed);
    }
}
