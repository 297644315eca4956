// SPDX-License-Identifier: MIT OR Apache-2.0
//! Progress on standard error: a bar on a terminal, plain lines elsewhere. Results go to standard
//! output.

use indicatif::{ProgressBar, ProgressDrawTarget, ProgressStyle};
use std::{collections::BTreeSet, io::IsTerminal, sync::Mutex, time::Duration};
use tramplab_lab::Event;
use tramplab_model::text::{self, line};

/// Shows the events of a run.
pub struct Progress {
    /// `None` off a terminal, where a bar would only fill the log.
    bar: Option<ProgressBar>,
    running: Mutex<BTreeSet<String>>,
}

impl Progress {
    pub fn new() -> Progress {
        let bar = std::io::stderr().is_terminal().then(|| {
            let bar = ProgressBar::new_spinner();
            bar.set_style(style(STEPS));
            bar.set_draw_target(ProgressDrawTarget::stderr());
            bar.enable_steady_tick(Duration::from_millis(200));
            bar
        });
        Progress { bar, running: Mutex::default() }
    }

    pub fn show(&self, event: Event) {
        match event {
            Event::Step(text) => self.step(text),
            Event::Line(text) => self.line(text),
            Event::Cargo(text) => self.cargo(&strip_ansi_escapes::strip_str(text)),
            Event::Build { kernel, done, total } => self.build(kernel, done, total),
            Event::BuildEnded | Event::CellsEnded => self.restyle(None, STEPS),
            Event::Selected { cells, .. } => self.restyle(Some(cells.len() as u64), CELLS),
            Event::Repeated(cells) => {
                if let Some(bar) = &self.bar {
                    bar.inc_length(cells.len() as u64);
                }
                let cells = text::counted(cells.len(), "cell");
                self.line(&format!("the host starved guests: repeating {cells}, one at a time"));
            }
            Event::Started { job, .. } => {
                self.set_running(|running| running.insert(job.to_owned()))
            }
            Event::Ended { job } => self.set_running(|running| running.remove(job)),
            Event::Slow { job, elapsed, will_terminate } => {
                let what = if will_terminate { "is terminated after" } else { "is slow:" };
                self.line(&format!("{job} {what} {} s", elapsed.as_secs()));
            }
            Event::Cancelled => {
                self.line("interrupted: stopping the guests; results so far are kept")
            }
            Event::CellEnded(cell) => self.count(&tramplab_report::cell_line(cell)),
            Event::CellStopped(id) => self.count(&format!("stop  {}", id.name())),
        }
    }

    /// The current step; a line of its own off a terminal.
    pub fn step(&self, text: &str) {
        match &self.bar {
            Some(bar) => bar.set_message(line(text)),
            None => eprintln!("{text}"),
        }
    }

    /// A line that stays.
    fn line(&self, text: &str) {
        match &self.bar {
            Some(bar) => bar.suspend(|| eprintln!("{text}")),
            None => eprintln!("{text}"),
        }
    }

    /// Steps of cargo are shown only on a terminal; its warnings and errors stay.
    fn cargo(&self, text: &str) {
        match (step_of_cargo(text), &self.bar) {
            (Some(step), Some(_)) => self.step(step),
            (Some(_), None) => {}
            (None, _) => self.line(text),
        }
    }

    fn build(&self, kernel: &str, done: u64, total: u64) {
        let Some(bar) = &self.bar else { return };
        if bar.length() != Some(total) {
            self.restyle(Some(total), BUILD);
            bar.set_message(line(&format!("building {kernel}")));
        }
        bar.set_position(done);
    }

    fn restyle(&self, length: Option<u64>, template: &str) {
        let Some(bar) = &self.bar else { return };
        match length {
            Some(length) => bar.set_length(length),
            None => bar.unset_length(),
        }
        bar.set_position(0);
        bar.set_message("");
        bar.reset_elapsed();
        bar.set_style(style(template));
    }

    /// A cell has its result.
    fn count(&self, text: &str) {
        self.line(text);
        if let Some(bar) = &self.bar {
            bar.inc(1);
        }
    }

    fn set_running(&self, change: impl FnOnce(&mut BTreeSet<String>) -> bool) {
        let mut running = self.running.lock().expect("no holder panics");
        change(&mut running);
        if let Some(bar) = &self.bar {
            let names: Vec<&str> = running.iter().map(String::as_str).collect();
            bar.set_message(line(&names.join(", ")));
        }
    }
}

const STEPS: &str = "{spinner} {wide_msg}";
const BUILD: &str = "{bar:30} {pos}/{len} steps  {elapsed}  {wide_msg}";
const CELLS: &str = "{bar:30} {pos}/{len} cells  {elapsed}  {wide_msg}";

fn style(template: &str) -> ProgressStyle {
    ProgressStyle::with_template(template).expect("a valid template")
}

/// Cargo aligns the verbs of its steps to the right, in twelve columns.
fn step_of_cargo(text: &str) -> Option<&str> {
    let (verb, rest) = text.split_at_checked(12)?;
    let word = verb.trim_start();
    let is_verb = word.starts_with(|c: char| c.is_ascii_uppercase())
        && word.chars().all(|c| c.is_ascii_alphabetic());
    (is_verb && rest.starts_with(' ')).then(|| text.trim_start())
}

impl Drop for Progress {
    fn drop(&mut self) {
        if let Some(bar) = &self.bar {
            bar.finish_and_clear();
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn tells_steps_of_cargo_from_what_it_warns_of() {
        for (text, expected) in [
            ("   Compiling serde v1.0.228", Some("Compiling serde v1.0.228")),
            (" Downloading crates ...", Some("Downloading crates ...")),
            (
                "    Finished `release` profile [optimized] target(s) in 0.14s",
                Some("Finished `release` profile [optimized] target(s) in 0.14s"),
            ),
            (
                "    Blocking waiting for file lock on build directory",
                Some("Blocking waiting for file lock on build directory"),
            ),
            ("  Downloaded anyhow v1.0.105", Some("Downloaded anyhow v1.0.105")),
            ("warning: unused variable: `x`", None),
            ("error[E0425]: cannot find value `y` in this scope", None),
            ("  --> src/lib.rs:1:1", None),
            ("   |", None),
            ("12 | let X = 1;", None),
            ("  = note: Compiling stops here", None),
            ("", None),
            ("ein Fülllwört", None),
        ] {
            assert_eq!(step_of_cargo(text), expected, "{text}");
        }
    }
}
