// SPDX-License-Identifier: MIT OR Apache-2.0
//! Rows of the waste table: a mechanism, and for one that runs at two points also the point.

use serde::{Deserialize, Serialize};
use std::{fmt, str::FromStr};
use tramplab_protocol::{Mechanism, Point};

/// `fexit`, `kprobe.session/exit`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(try_from = "String", into = "String")]
pub struct Row {
    pub mechanism: Mechanism,
    pub point: Point,
}

impl Row {
    pub fn all() -> impl Iterator<Item = Row> {
        Mechanism::ALL
            .into_iter()
            .flat_map(|mechanism| mechanism.points().iter().map(move |&point| Row { mechanism, point }))
    }
}

impl fmt::Display for Row {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.mechanism.points() {
            [_] => f.pad(self.mechanism.name()),
            _ => f.pad(&format!("{}/{}", self.mechanism, self.point)),
        }
    }
}

#[derive(Clone, Debug, thiserror::Error)]
#[error("unknown row `{0}`, expected one of: {names}", names = Row::all().map(|r| r.to_string()).collect::<Vec<_>>().join(", "))]
pub struct UnknownRow(pub String);

impl FromStr for Row {
    type Err = UnknownRow;

    fn from_str(name: &str) -> Result<Row, UnknownRow> {
        Row::all().find(|row| row.to_string() == name).ok_or_else(|| UnknownRow(name.to_owned()))
    }
}

impl TryFrom<String> for Row {
    type Error = UnknownRow;

    fn try_from(name: String) -> Result<Row, UnknownRow> {
        name.parse()
    }
}

impl From<Row> for String {
    fn from(row: Row) -> String {
        row.to_string()
    }
}
