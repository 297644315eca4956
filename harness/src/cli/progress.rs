// SPDX-License-Identifier: MIT OR Apache-2.0
//! Progress on standard error: a bar on a terminal, plain lines elsewhere. Results go to standard output.

use indicatif::{ProgressBar, ProgressDrawTarget, ProgressStyle};
use std::{collections::BTreeSet, io::IsTerminal, time::Duration};
use tramplab::text::line;

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
