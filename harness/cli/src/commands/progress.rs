// SPDX-License-Identifier: MIT OR Apache-2.0
//! Progress on standard error: a bar on a terminal, plain lines elsewhere. Results go to standard output.

use indicatif::{ProgressBar, ProgressDrawTarget, ProgressStyle};
use std::{collections::BTreeSet, io::IsTerminal, time::Duration};
use tramplab_model::text::line;

pub struct Progress {
    /// None off a terminal, where a bar would only fill the log.
    bar: Option<ProgressBar>,
    running: BTreeSet<String>,
}

impl Progress {
    /// For steps whose number is not known: fetching, building.
    pub fn steps() -> Progress {
        Progress::new(|| {
            let bar = ProgressBar::new_spinner();
            bar.set_style(steps_style());
            bar
        })
    }

    pub fn cells(count: u64) -> Progress {
        Progress::new(|| {
            let bar = ProgressBar::new(count);
            let template = "{bar:30} {pos}/{len} cells  {elapsed}  {wide_msg}";
            bar.set_style(ProgressStyle::with_template(template).expect("a valid template"));
            bar
        })
    }

    fn new(bar: impl FnOnce() -> ProgressBar) -> Progress {
        let bar = std::io::stderr().is_terminal().then(|| {
            let bar = bar();
            bar.set_draw_target(ProgressDrawTarget::stderr());
            bar.enable_steady_tick(Duration::from_millis(200));
            bar
        });
        Progress { bar, running: BTreeSet::new() }
    }

    /// What is being done now; a line of its own off a terminal.
    pub fn step(&self, text: &str) {
        match &self.bar {
            Some(bar) => bar.set_message(line(text)),
            None => eprintln!("{text}"),
        }
    }

    /// Whether steps are shown as they come, and leave nothing behind.
    pub fn is_shown(&self) -> bool {
        self.bar.is_some()
    }

    /// A line of cargo's standard error: a step, or a warning or an error, which stays.
    pub fn of_cargo(&self, text: &str) {
        match step_of_cargo(&strip_ansi_escapes::strip_str(text)) {
            Some(step) => self.step(step),
            None => self.line(text),
        }
    }

    /// How far make is with a kernel.
    pub fn build(&self, name: &str, done: u64, total: u64) {
        let Some(bar) = &self.bar else { return };
        if bar.length() != Some(total) {
            let template = "{bar:30} {pos}/{len} steps  {elapsed}  {wide_msg}";
            bar.set_style(ProgressStyle::with_template(template).expect("a valid template"));
            bar.set_length(total);
            bar.set_message(line(&format!("building {name}")));
        }
        bar.set_position(done);
    }

    pub fn end_of_build(&self) {
        if let Some(bar) = &self.bar {
            bar.unset_length();
            bar.set_style(steps_style());
        }
    }

    /// Out of the way while something else draws.
    pub fn aside<T>(&self, run: impl FnOnce() -> T) -> T {
        match &self.bar {
            Some(bar) => bar.suspend(run),
            None => run(),
        }
    }

    /// A line that stays.
    pub fn line(&self, text: &str) {
        match &self.bar {
            Some(bar) => bar.suspend(|| eprintln!("{text}")),
            None => eprintln!("{text}"),
        }
    }

    pub fn started(&mut self, job: &str) {
        self.running.insert(job.to_owned());
        self.show_running();
    }

    pub fn ended(&mut self, job: &str) {
        self.running.remove(job);
        self.show_running();
    }

    /// A cell of a job has its result.
    pub fn finished(&self, line: &str) {
        self.line(line);
        if let Some(bar) = &self.bar {
            bar.inc(1);
        }
    }

    fn show_running(&self) {
        if let Some(bar) = &self.bar {
            let names: Vec<&str> = self.running.iter().map(String::as_str).collect();
            bar.set_message(line(&names.join(", ")));
        }
    }
}

/// Cargo aligns the verbs of its steps to the right, in twelve columns.
fn step_of_cargo(text: &str) -> Option<&str> {
    let (verb, rest) = text.split_at_checked(12)?;
    let word = verb.trim_start();
    let is_verb =
        word.starts_with(|c: char| c.is_ascii_uppercase()) && word.chars().all(|c| c.is_ascii_alphabetic());
    (is_verb && rest.starts_with(' ')).then(|| text.trim_start())
}

fn steps_style() -> ProgressStyle {
    ProgressStyle::with_template("{spinner} {wide_msg}").expect("a valid template")
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
