// SPDX-License-Identifier: MIT OR Apache-2.0
//! Runs the steps of a job, as far as our files need it.

use super::{ACTION, expressions::Context, repository, text};
use serde_json::Value;
use std::{collections::BTreeMap, fs, path::Path, process::Command};

/// The result of a list of steps.
#[derive(Default)]
pub struct Done {
    pub failed: bool,
    pub said: String,
    pub summary: String,
    pub outputs: BTreeMap<String, String>,
    /// The actions that GitHub would run, each with its inputs.
    pub used: Vec<(String, BTreeMap<String, String>)>,
}

pub struct Runner<'a> {
    pub folder: &'a Path,
    pub values: BTreeMap<String, String>,
}

impl Runner<'_> {
    pub fn with(mut self, values: &[(&str, &str)]) -> Self {
        self.values
            .extend(values.iter().map(|(name, value)| ((*name).to_owned(), (*value).to_owned())));
        self
    }

    pub fn run(self, steps: &[Value]) -> Done {
        let mut context = Context { values: self.values, failed: false };
        let mut done = Done::default();
        for step in steps {
            // This step installs packages, which the machine of a test must not do.
            if !context.runs(step) || text(&step["name"]) == "Prepare the machine" {
                continue;
            }
            let of = |key: &str| -> BTreeMap<String, String> {
                let map = step[key].as_object().cloned().unwrap_or_default();
                map.iter().map(|(name, value)| (name.clone(), context.fill(&text(value)))).collect()
            };
            let id = text(&step["id"]);
            if step["run"].is_null() {
                done.used.push((text(&step["uses"]), of("with")));
                continue;
            }
            let [output, summary] = ["output", "summary"].map(|name| self.folder.join(name));
            for file in [&output, &summary] {
                fs::write(file, "").unwrap();
            }
            let ran = Command::new("bash")
                .args(["--noprofile", "--norc", "-eo", "pipefail", "-c"])
                .arg(text(&step["run"]))
                .current_dir(self.folder)
                .env("GITHUB_ACTIONS", "true")
                .env("GITHUB_ACTION_PATH", repository().join(ACTION).parent().unwrap())
                .env("GITHUB_OUTPUT", &output)
                .env("GITHUB_STEP_SUMMARY", &summary)
                .env("RUNNER_TEMP", self.folder.join("temp"))
                .env("TRAMPLAB_PROGRAM", env!("CARGO_BIN_EXE_tramplab"))
                .env("XDG_CONFIG_HOME", self.folder.join("none"))
                .envs(of("env"))
                .output()
                .unwrap();
            done.said += &String::from_utf8_lossy(&ran.stdout);
            done.said += &String::from_utf8_lossy(&ran.stderr);
            done.summary += &fs::read_to_string(&summary).unwrap();
            for line in fs::read_to_string(&output).unwrap().lines() {
                let (name, value) = line.split_once('=').unwrap();
                done.outputs.insert(format!("{id}.{name}"), value.to_owned());
                context.values.insert(format!("steps.{id}.outputs.{name}"), value.to_owned());
            }
            context.failed |= !ran.status.success();
        }
        done.failed = context.failed;
        done
    }
}

impl Done {
    pub fn used(&self, action: &str) -> Option<&BTreeMap<String, String>> {
        self.used.iter().find(|(used, _)| used.contains(action)).map(|(_, with)| with)
    }

    /// Returns the lines that GitHub's runner turns into annotations.
    pub fn annotations(&self, level: &str) -> Vec<&str> {
        let begin = format!("::{level} ");
        // The runner prints lines between these two as plain text.
        let mut token: Option<String> = None;
        self.said
            .lines()
            .filter(|line| {
                if let Some(new) = line.strip_prefix("::stop-commands::") {
                    token = Some(format!("::{new}::"));
                } else if token.as_deref() == Some(line) {
                    token = None;
                }
                token.is_none() && line.starts_with(&begin)
            })
            .collect()
    }
}
