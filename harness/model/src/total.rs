// SPDX-License-Identifier: MIT OR Apache-2.0
//! Sums of numbers of a stored run. It may be a stranger's: a sum that does not fit ends no report.

/// The sum, or the largest number.
pub fn total(numbers: impl IntoIterator<Item = u64>) -> u64 {
    numbers.into_iter().fold(0, u64::saturating_add)
}

/// The same with 32 bits.
pub fn total_u32(numbers: impl IntoIterator<Item = u32>) -> u32 {
    numbers.into_iter().fold(0, u32::saturating_add)
}
