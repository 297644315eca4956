// SPDX-License-Identifier: MIT OR Apache-2.0
//! `cargo xtask bisect`: which commit, which patch of a series, or which
//! options of a configuration changed a metric.

use super::{
    code_of, complete, exit, link, output,
    progress::Progress,
    values::{ACCELS, Form, one_of},
};
use schemars::JsonSchema;
use serde::Serialize;
use std::path::PathBuf;
use tramplab_lab::{
    Error, Fault, Result,
    bisect::{
        self, Answer, BisectOptions, Configs, End, Found, Mark, Question, Range, Repository, State,
        TestedCommit, Verdict,
    },
    command::CommandLine,
};
use tramplab_model::run::Arch;
use tramplab_vm::accel;

#[derive(clap::Args)]
pub struct Args {
    /// Follow this metric (lbr_waste.kretprobe_multi.any, attach.fentry.1000.instructions), or the
    /// outcome of this test (boot, build, lbr_waste/fentry)
    #[arg(long, value_name = "METRIC")]
    metric: Question,
    /// Search the commits of this git repository of the kernel, which is only read
    #[arg(
        long,
        value_name = "LINUX",
        requires_all = ["good", "bad"],
        required_unless_present_any = ["series", "good_config"]
    )]
    tree: Option<PathBuf>,
    /// Start from this good commit
    #[arg(long, value_name = "COMMIT", requires = "tree")]
    good: Option<String>,
    /// Search up to this bad commit
    #[arg(long, value_name = "COMMIT", requires = "tree")]
    bad: Option<String>,
    /// Search the patches of a series instead: as for `vm-test`
    #[arg(long, value_name = "SERIES", conflicts_with = "tree")]
    series: Option<String>,
    /// Search the differences between this configuration and the one of --bad-config: whole
    /// .config files or fragments
    #[arg(
        long,
        value_name = "FILE",
        requires_all = ["bad_config", "kernel"],
        conflicts_with_all = ["tree", "series", "good", "bad"]
    )]
    good_config: Option<PathBuf>,
    /// Search up to this configuration, in which the metric differs
    #[arg(long, value_name = "FILE", requires = "good_config")]
    bad_config: Option<PathBuf>,
    /// Apply the series to this kernel, or configure it: as for `vm-test`
    #[arg(long, value_name = "KERNEL", conflicts_with = "tree")]
    kernel: Option<String>,
    /// Answer for the commit that `git bisect run` has checked out, by the exit code: 0 good, 1
    /// bad, 125 skip, 128 and more to stop
    #[arg(long, requires = "tree")]
    step: bool,
    /// Run guests of this architecture [default: this machine's]
    #[arg(long, value_name = "ARCH")]
    arch: Option<Arch>,
    /// Run guests under KVM or TCG; `auto` takes KVM if a guest has answered under it
    #[arg(long, value_parser = one_of(ACCELS), default_value = "auto")]
    accel: accel::Request,
    /// Boot guests as this CPU: as for `vm-test`
    #[arg(long, value_name = "CPU", add = complete::cpus())]
    model: Option<String>,
    /// Build kernels without confinement: builds run with your privileges
    #[arg(long)]
    unconfined: bool,
    /// Keep runs in this folder [default: as `vm-test`]
    #[arg(long, value_name = "DIR")]
    runs: Option<PathBuf>,
    #[arg(long, value_enum, default_value_t = Form::Terminal, conflicts_with = "step")]
    format: Form,
}

/// The output of `bisect --format json`.
#[derive(Serialize, JsonSchema)]
#[schemars(rename = "tramplab bisection")]
pub struct Document {
    /// The version of this format.
    #[schemars(extend("const" = SCHEMA))]
    schema: u32,
    /// The metric, or the test whose end was followed.
    metric: String,
    arch: Arch,
    /// Commits. For a series or two configurations, commits of a history made for the search.
    good: String,
    bad: String,
    /// The commit that changed the metric. Null if only skipped commits are left.
    first_bad: Option<String>,
    /// The last commit before it that was measured.
    before: Option<String>,
    /// If only skipped commits are left, one of these changed the metric.
    candidates: Vec<String>,
    /// In the order in which they were tested; the two ends come first.
    steps: Vec<Tested>,
    /// The bisection's folder, with its runs.
    folder: PathBuf,
}

const SCHEMA: u32 = 1;

#[derive(Serialize, JsonSchema)]
#[schemars(inline)]
struct Tested {
    commit: String,
    subject: String,
    verdict: Word,
    /// Why it was skipped.
    reason: Option<String>,
    /// As the report shows it.
    value: Option<String>,
    /// The commit whose kernel is the same image, so that nothing was booted.
    same_as: Option<String>,
    /// Its run, a folder in `folder`.
    run: Option<String>,
}

#[derive(Serialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
#[schemars(inline)]
enum Word {
    Good,
    Bad,
    Skip,
}

impl Document {
    fn new(state: State, folder: PathBuf) -> Document {
        let (first_bad, before, candidates) = match state.end {
            Some(End::Found(Found { commit, before })) => (Some(commit), before, Vec::new()),
            Some(End::OnlySkipped(candidates)) => (None, None, candidates),
            None => (None, None, Vec::new()),
        };
        let tested = |step: TestedCommit| {
            let (verdict, reason) = match step.verdict {
                Verdict::Good => (Word::Good, None),
                Verdict::Bad => (Word::Bad, None),
                Verdict::Skip(why) => (Word::Skip, Some(why)),
            };
            Tested {
                commit: step.commit,
                subject: step.subject,
                verdict,
                reason,
                value: step.reading.map(|reading| reading.to_string()),
                same_as: step.same_as,
                run: step.run,
            }
        };
        Document {
            schema: SCHEMA,
            metric: state.asked.question,
            arch: state.asked.arch,
            good: state.asked.good,
            bad: state.asked.bad,
            first_bad,
            before,
            candidates,
            steps: state.steps.into_iter().map(tested).collect(),
            folder,
        }
    }
}

/// The bisection of a folder.
fn document(folder: PathBuf) -> Result<Document> {
    let state = State::load(&folder).ok_or_else(|| {
        Error::failed(format!("failed to read {}", folder.join("state.json").display()))
    })?;
    Ok(Document::new(state, folder))
}

/// Exit codes for `git bisect run`. It takes 1 to 127 for "bad", except 125.
pub mod step {
    pub const GOOD: u8 = 0;
    pub const BAD: u8 = 1;
    pub const SKIP: u8 = 125;
    pub const NO_ANSWER: u8 = 128;
    pub const USAGE: u8 = 129;
}

/// The exit code of a step that failed: never one that git takes for an answer.
pub fn code_of_step(fault: Fault) -> u8 {
    match fault {
        Fault::Interrupt => code_of(fault),
        Fault::Users => step::USAGE,
        Fault::Machines => step::NO_ANSWER,
    }
}

impl Args {
    fn range(&self) -> Result<Range> {
        if let (Some(good), Some(bad), Some(kernel)) =
            (&self.good_config, &self.bad_config, &self.kernel)
        {
            let (kernel, good, bad) = (kernel.clone(), good.clone(), bad.clone());
            return Ok(Range::Configs(Configs { kernel, good, bad }));
        }
        match (&self.tree, &self.series) {
            (Some(tree), _) => {
                let end = |end: &Option<String>, option: &str| {
                    end.clone().ok_or_else(|| Error::Usage(format!("--tree needs {option}")))
                };
                let (good, bad) = (end(&self.good, "--good")?, end(&self.bad, "--bad")?);
                Ok(Range::Repository(Repository {
                    tree: tree.clone(),
                    good,
                    bad,
                    by_hand: self.step,
                }))
            }
            (None, Some(series)) => {
                Ok(Range::Series { series: series.clone(), kernel: self.kernel.clone() })
            }
            (None, None) => Err(Error::usage("bisect needs --tree, --series, or --good-config")),
        }
    }
}

pub fn bisect(args: &Args, command: CommandLine) -> Result<u8> {
    let options = BisectOptions {
        metric: args.metric.clone(),
        range: args.range()?,
        arch: args.arch,
        accel: args.accel,
        model: args.model.clone(),
        unconfined: args.unconfined,
        runs: args.runs.clone(),
        command,
    };
    let progress = Progress::new();
    let answer = bisect::bisect(&options, &|event| progress.show(event));
    drop(progress);
    let answer = answer.inspect_err(|error| {
        if error.is_interrupted() {
            eprintln!("all steps so far are kept; run the same command to continue");
        }
    })?;
    Ok(match answer {
        Answer::Step(Mark::Good) => step::GOOD,
        Answer::Step(Mark::Bad) => step::BAD,
        Answer::Step(Mark::Skip) => step::SKIP,
        Answer::Search { found, report, folder } => {
            let text = match args.format {
                Form::Terminal => report,
                Form::Json => tramplab_report::json::written(&document(folder.clone())?)?,
            };
            output::print(text.as_bytes())?;
            link::tell("bisection kept in", &folder);
            if found { exit::PASS } else { exit::NO_MEASUREMENT }
        }
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::{Value, json};
    use tramplab_testdata::schema::errors;

    const SCHEMA_TEXT: &str = include_str!("../../../../docs/bisection.schema.json");

    fn of_end(end: Value) -> Value {
        let step = |commit: &str, verdict: Value, number: Option<u32>| {
            let exact = |number| json!({"exact": {"number": number, "functions": null}});
            let reading = number.map(exact);
            json!({
                "commit": commit, "subject": "bpf: Jump", "kernel": "linux", "image_sha256": null,
                "verdict": verdict,
                "reading": reading,
                "said": null, "same_as": null, "run": null,
            })
        };
        let state = json!({
            "schema": 2,
            "asked": {
                "question": "lbr_waste.fexit.any", "sources": {"repository": "/linux"},
                "good": "g", "bad": "b", "arch": "x86_64", "accel": "tcg", "by_hand": false,
            },
            "machine": null, "means": null,
            "steps": [
                step("g", json!("good"), Some(9)),
                step("b", json!("bad"), Some(10)),
                step("s", json!({"skip": "panic: no init"}), None),
            ],
            "end": end,
        });
        let state: State = serde_json::from_value(state).unwrap();
        let document = serde_json::to_value(Document::new(state, "bisect-1".into())).unwrap();
        assert_eq!(errors(&serde_json::from_str(SCHEMA_TEXT).unwrap(), &document), [""; 0]);
        document
    }

    #[test]
    fn json_has_the_answer_and_the_steps() {
        let found = of_end(json!({"found": {"commit": "b", "before": "g"}}));
        assert_eq!((&found["first_bad"], &found["before"]), (&json!("b"), &json!("g")));
        let steps: Vec<_> = found["steps"].as_array().unwrap().iter().collect();
        assert_eq!((&steps[1]["verdict"], &steps[1]["value"]), (&json!("bad"), &json!("10")));
        assert_eq!(steps[2]["reason"], "panic: no init");
        let skipped = of_end(json!({"only_skipped": ["b", "s"]}));
        assert_eq!(
            (&skipped["first_bad"], &skipped["candidates"]),
            (&Value::Null, &json!(["b", "s"]))
        );
    }
}
