// SPDX-License-Identifier: MIT OR Apache-2.0
//! `vm-test --message-format json`: the events of a run as lines of JSON on standard output.
//! docs/schemas.md documents them.

use super::output;
use schemars::JsonSchema;
use serde::Serialize;
use std::{
    collections::HashMap,
    path::{Path, PathBuf},
    sync::Mutex,
};
use tramplab_lab::{
    Event,
    error::{Error, Result},
};
use tramplab_model::{
    run::{Cell, CellId, Outcome, Run},
    text,
};

/// Raise it when a field changes its type or meaning, or is removed.
const VERSION: u32 = 1;

/// One line of `vm-test --message-format json`. Readers must ignore events and fields that they do
/// not know.
#[derive(Debug, Serialize, JsonSchema)]
#[serde(tag = "event", rename_all = "snake_case")]
#[schemars(rename = "tramplab event")]
pub enum Message {
    /// The first one. Kernels are fetched and built. No cell has started.
    RunStarted {
        /// The version of this format.
        #[schemars(extend("const" = VERSION))]
        version: u32,
        /// The run's folder.
        folder: PathBuf,
        /// The names of the selected cells.
        cells: Vec<String>,
    },
    CellStarted {
        name: String,
    },
    /// A cell has its result. Every cell of `run.json` has one such event. Builds, and results of
    /// the run that `--rerun` goes on with, have theirs at the end.
    CellFinished(Ended),
    /// The host starved a guest of the cell's job: the cell starts and finishes once more. The
    /// second `cell_finished` counts.
    CellRepeated {
        name: String,
    },
    /// The comparison of base and head changed the outcome of a cell that had finished.
    CellJudged(Ended),
    /// An interrupt stopped a cell. It has no result.
    CellStopped {
        name: String,
    },
    /// The last one of a run that has a `run.json`.
    RunEnded {
        folder: PathBuf,
        /// True if Ctrl-C or a signal ended it.
        interrupted: bool,
        counts: Counts,
        /// That of `vm-test`.
        exit_code: u8,
    },
    /// The last one of a run that could not go on.
    RunFailed {
        message: String,
        exit_code: u8,
    },
}

/// The result of a cell.
#[derive(Debug, Serialize, JsonSchema)]
pub struct Ended {
    name: String,
    /// As in `run.json`, where the cell has all else.
    id: CellId,
    outcome: Word,
    /// Why it did not pass. It may have several lines.
    reason: Option<String>,
    /// Wall time on the host, boot included.
    duration_ms: u64,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
#[schemars(inline)]
enum Word {
    Pass,
    Fail,
    Error,
    Skip,
}

/// Numbers of cells by outcome.
#[derive(Debug, Default, Serialize, JsonSchema)]
pub struct Counts {
    pass: usize,
    fail: usize,
    error: usize,
    skip: usize,
    /// Selected cells without a result.
    missing: usize,
}

impl Ended {
    fn of(cell: &Cell) -> Ended {
        Ended {
            name: cell.id.name(),
            id: cell.id.clone(),
            outcome: match cell.outcome {
                Outcome::Pass => Word::Pass,
                Outcome::Fail { .. } => Word::Fail,
                Outcome::Error { .. } => Word::Error,
                Outcome::Skip { .. } => Word::Skip,
            },
            reason: cell.outcome.reason(),
            duration_ms: cell.duration_ms,
        }
    }
}

/// Prints the events of a run.
#[derive(Default)]
pub struct Messages {
    /// The outcomes that were told, by the cell's name. None before the run started.
    told: Mutex<Option<HashMap<String, Outcome>>>,
    /// The first line that could not be written. None follows it: readers see the gap.
    unwritten: Mutex<Option<Error>>,
}

impl Messages {
    pub fn show(&self, event: Event) {
        let mut told = self.told.lock().expect("no holder panics");
        match event {
            Event::Selected { folder, cells, .. } => {
                *told = Some(HashMap::new());
                let (folder, cells) = (folder.to_owned(), cells.iter().map(CellId::name).collect());
                self.say(&Message::RunStarted { version: VERSION, folder, cells });
            }
            Event::Repeated(cells) => {
                cells.iter().for_each(|id| self.say(&Message::CellRepeated { name: id.name() }));
            }
            Event::Started { cells, .. } => {
                cells.iter().for_each(|id| self.say(&Message::CellStarted { name: id.name() }));
            }
            Event::CellEnded(cell) => {
                let told = told.get_or_insert_default();
                told.insert(cell.id.name(), cell.outcome.clone());
                self.say(&Message::CellFinished(Ended::of(cell)));
            }
            Event::CellStopped(id) => self.say(&Message::CellStopped { name: id.name() }),
            _ => {}
        }
    }

    /// The run has its `run.json`. Returns the error of a line that could not be written.
    pub fn end(&self, run: &Run, folder: &Path, exit_code: u8) -> Result<()> {
        let told = self.told.lock().expect("no holder panics").take().unwrap_or_default();
        let mut counts = Counts { missing: run.missing.len(), ..Counts::default() };
        for cell in &run.cells {
            let ended = Ended::of(cell);
            *match ended.outcome {
                Word::Pass => &mut counts.pass,
                Word::Fail => &mut counts.fail,
                Word::Error => &mut counts.error,
                Word::Skip => &mut counts.skip,
            } += 1;
            match told.get(&ended.name) {
                None => self.say(&Message::CellFinished(ended)),
                Some(outcome) if *outcome != cell.outcome => self.say(&Message::CellJudged(ended)),
                Some(_) => {}
            }
        }
        let (folder, interrupted) = (folder.to_owned(), run.interrupted);
        self.say(&Message::RunEnded { folder, interrupted, counts, exit_code });
        self.unwritten.lock().expect("no holder panics").take().map_or(Ok(()), Err)
    }

    /// Prints a line. An error does not end the run.
    fn say(&self, message: &Message) {
        let mut unwritten = self.unwritten.lock().expect("no holder panics");
        if unwritten.is_none() {
            let mut line = serde_json::to_vec(message).expect("plain data has a form in JSON");
            line.push(b'\n');
            *unwritten = output::print(&text::json(&line)).err();
        }
    }

    /// The run ended with an error. Nothing is printed if it never started.
    pub fn fail(&self, message: String, exit_code: u8) {
        if self.told.lock().expect("no holder panics").take().is_some() {
            self.say(&Message::RunFailed { message, exit_code });
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The form of the lines, which other programs read.
    #[test]
    fn lines_have_the_documented_form() {
        let run = tramplab_testdata::stored();
        let cell = &run.cells[0];
        let line = |message: &Message| serde_json::to_value(message).unwrap();
        let finished = line(&Message::CellFinished(Ended::of(cell)));
        assert_eq!(finished["event"], "cell_finished");
        assert_eq!(finished["name"], cell.id.name());
        assert_eq!(finished["outcome"], cell.outcome.name());
        assert_eq!(finished["id"], serde_json::to_value(&cell.id).unwrap());
        let stopped = line(&Message::CellStopped { name: "a".to_owned() });
        assert_eq!(stopped, serde_json::json!({ "event": "cell_stopped", "name": "a" }));
    }
}
