// SPDX-License-Identifier: MIT OR Apache-2.0
//! Branch filters: the branches that a reader asks for, in perf's words.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use std::{fmt, str::FromStr};
use strum::{EnumString, IntoStaticStr};

/// One bit of perf's `branch_sample_type` that selects branches. The branches it selects depend on
/// the CPU: see `analysis::branch::Model`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, EnumString, IntoStaticStr)]
#[strum(serialize_all = "snake_case")]
pub enum Branch {
    Any,
    AnyCall,
    AnyReturn,
    IndCall,
    IndJump,
    Cond,
    Call,
}

impl Branch {
    pub const ALL: [Branch; 7] = [
        Branch::Any,
        Branch::AnyCall,
        Branch::AnyReturn,
        Branch::IndCall,
        Branch::IndJump,
        Branch::Cond,
        Branch::Call,
    ];

    pub fn name(self) -> &'static str {
        self.into()
    }

    /// The bit in the kernel's `enum perf_branch_sample_type`.
    pub fn perf_bit(self) -> u64 {
        1 << match self {
            Branch::Any => 3,
            Branch::AnyCall => 4,
            Branch::AnyReturn => 5,
            Branch::IndCall => 6,
            Branch::Cond => 10,
            Branch::IndJump => 12,
            Branch::Call => 13,
        }
    }
}

/// One or more [`Branch`]es. `any_call|cond` selects the branches that either of them selects.
#[derive(
    Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize, JsonSchema,
)]
#[serde(try_from = "String", into = "String")]
#[schemars(extend("pattern" = pattern()))]
pub struct Filter(u8);

impl Filter {
    pub const fn of(branch: Branch) -> Filter {
        Filter(1 << branch as u8)
    }

    pub const fn or(self, other: Filter) -> Filter {
        Filter(self.0 | other.0)
    }

    /// The unions that are metrics of their own: both are remedies for short rings, the second is
    /// retsnoop's `JCC|CALL|RETURN`.
    pub const UNIONS: [Filter; 2] = [
        Filter::of(Branch::AnyCall).or(Filter::of(Branch::Cond)),
        Filter::of(Branch::AnyReturn).or(Filter::of(Branch::Cond)).or(Filter::of(Branch::Call)),
    ];

    /// The filters that are measured without being named: the single ones, then the unions.
    pub fn measured() -> impl Iterator<Item = Filter> {
        Branch::ALL.into_iter().map(Filter::of).chain(Filter::UNIONS)
    }

    /// In the order of [`Branch::ALL`]; never empty.
    pub fn branches(self) -> impl Iterator<Item = Branch> {
        Branch::ALL.into_iter().filter(move |b| self.0 & (1 << *b as u8) != 0)
    }
}

/// A regular expression of the names that [`Filter`] parses.
fn pattern() -> String {
    let one = format!("\\s*({})\\s*", Branch::ALL.map(Branch::name).join("|"));
    format!("^{one}([|]{one})*$")
}

impl From<Branch> for Filter {
    fn from(branch: Branch) -> Filter {
        Filter::of(branch)
    }
}

impl fmt::Display for Filter {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(&self.branches().map(Branch::name).collect::<Vec<_>>().join("|"))
    }
}

#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error(
    "unknown branch filter `{0}`, expected one of: {names}; or several of them joined by `|`",
    names = Branch::ALL.map(Branch::name).join(", ")
)]
pub struct UnknownFilter(pub String);

impl FromStr for Filter {
    type Err = UnknownFilter;

    fn from_str(text: &str) -> Result<Filter, UnknownFilter> {
        text.split('|')
            .map(|name| name.trim().parse().ok().map(Filter::of))
            .reduce(|all, one| Some(all?.or(one?)))
            .flatten()
            .ok_or_else(|| UnknownFilter(text.to_owned()))
    }
}

tramplab_protocol::by_text!(Filter, UnknownFilter);

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_parse_back() {
        for branch in Branch::ALL {
            let filter = branch.name().parse::<Filter>().unwrap();
            assert_eq!(filter, Filter::of(branch));
            assert_eq!(filter.to_string(), branch.name());
        }
    }

    #[test]
    fn prints_unions_in_one_order() {
        let table = [
            ("any_call|cond", "any_call|cond"),
            ("cond|any_call", "any_call|cond"),
            (" cond | cond ", "cond"),
            ("call|ind_jump|any", "any|ind_jump|call"),
        ];
        for (text, printed) in table {
            assert_eq!(text.parse::<Filter>().unwrap().to_string(), printed, "{text}");
        }
    }

    #[test]
    fn rejects_unknown_filters() {
        for text in
            ["", "|", "any|", "|any", "Any", "any call", "any,cond", "any_call|conds", "abort_tx"]
        {
            let error = text.parse::<Filter>().unwrap_err().to_string();
            assert!(
                error.contains(&format!("`{text}`")) && error.contains("any_return"),
                "{error}"
            );
        }
    }
}
