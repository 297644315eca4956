// SPDX-License-Identifier: MIT OR Apache-2.0
//! `cargo xtask fuzz`: what tramplab reads that others wrote, with inputs that nobody wrote. What the targets are stands in `docs/fuzzing.md`.

use super::{exit, progress::Progress, report};
use std::{
    fs::{self, File},
    num::NonZeroU32,
    path::{Path, PathBuf},
    process::{Command, ExitStatus},
    sync::Mutex,
    thread,
    time::Duration,
};
use tramplab_host::{Cache, child, fuzzer, rust::target};
use tramplab_lab::error::{Context, Error, Result};
use tramplab_lab::{artifacts, interrupt::Interrupt, repository};
use tramplab_model::run::Arch;

/// What all targets take together, where nothing else is said.
const TOGETHER: u64 = 3600;
/// Of one input. Most take a thousandth of it.
const INPUT_SECONDS: u32 = 20;
const MEMORY_MIB: u32 = 1024;
/// As long as an input may get.
const LONGEST: u32 = 4 << 10;
/// Beyond its time, to read its corpus and to end.
const GRACE: Duration = Duration::from_secs(180);
/// For making a corpus small.
const MERGE_LIMIT: Duration = Duration::from_secs(1800);
/// Lines of what a target said when it broke.
const LAST_LINES: usize = 12;

#[derive(clap::Args)]
pub struct Args {
    /// The targets [default: all]
    #[arg(value_name = "TARGET")]
    targets: Vec<String>,
    /// For each of them [default: so long that all together take an hour]
    #[arg(long, value_name = "SECONDS")]
    seconds: Option<NonZeroU32>,
    /// What the inputs are drawn by, so that another run tries nearly the same [default: others each time]
    #[arg(long, value_name = "NUMBER")]
    seed: Option<NonZeroU32>,
    /// Build cargo-fuzz, if it is not there
    #[arg(long)]
    setup: bool,
    /// Put what was found into the repository's corpora, made small
    #[arg(long)]
    keep: bool,
}

pub fn fuzz(args: &Args) -> Result<u8> {
    let folders = Folders::new();
    let targets = chosen(&folders.names()?, &args.targets)?;
    let cache = Cache::open(true)?;
    let progress = Progress::new();
    let cargo = artifacts::cargo();
    let program = if args.setup {
        fuzzer::provision(&cache, &cargo, &mut |step| progress.step(step))
            .map_err(|error| Error::Usage(error.to_string()))?
    } else {
        fuzzer::find(&cache).map_err(|error| Error::Usage(error.to_string()))?
    };
    progress.step("building the fuzz targets");
    folders.build(&program)?;
    let jobs = thread::available_parallelism().map_or(1, usize::from);
    let seconds = args
        .seconds
        .map_or(TOGETHER * jobs.min(targets.len()) as u64 / targets.len() as u64, |s| u64::from(s.get()));
    progress.step(&format!("fuzzing {}, {jobs} at once, {seconds} s each", targets.join(", ")));
    let interrupt = Interrupt::watch()?;
    let (queue, ended) = (Mutex::new(targets.iter()), Mutex::new(Vec::new()));
    thread::scope(|scope| {
        for _ in 0..jobs {
            scope.spawn(|| {
                loop {
                    let next = queue.lock().expect("nobody panics with it").next();
                    let Some(name) = next.filter(|_| !interrupt.came()) else { return };
                    let end = folders.run(name, seconds, args.seed);
                    ended.lock().expect("nobody panics with it").push((name, end));
                }
            });
        }
    });
    drop(progress);
    let mut ended = ended.into_inner().expect("nobody panics with it");
    ended.sort_by_key(|(name, _)| *name);
    let mut text = String::new();
    let mut code = exit::PASS;
    for (name, end) in ended {
        let end = end?;
        // The terminal interrupts the targets as well, which is no finding.
        let broken = end.broken.filter(|_| !interrupt.came());
        let verdict = if broken.is_some() { "BROKEN" } else { "nothing found" };
        text += &format!(
            "{name:10} {:>10} executions, {:>6} inputs kept, {}\n",
            end.executions, end.kept, verdict
        );
        if let Some(broken) = broken {
            code = exit::FAIL;
            text += &broken.shown(&folders.target(name));
        }
    }
    report::print(text.as_bytes())?;
    if interrupt.came() {
        return Ok(exit::INTERRUPTED);
    }
    if args.keep && code == exit::PASS {
        targets.iter().try_for_each(|name| folders.keep(name))?;
    }
    Ok(code)
}

/// Those that are asked for; all where none is.
fn chosen(all: &[String], asked: &[String]) -> Result<Vec<String>> {
    if let Some(unknown) = asked.iter().find(|name| !all.contains(name)) {
        return Err(Error::Usage(format!("no target `{unknown}`; expected some of {}", all.join(", "))));
    }
    Ok(all.iter().filter(|name| asked.is_empty() || asked.contains(name)).cloned().collect())
}

struct Folders {
    /// The crate.
    fuzz: PathBuf,
    /// Where it is built, and all that is not kept.
    built: PathBuf,
}

/// How a target ended.
struct End {
    executions: u64,
    /// Beyond the repository's.
    kept: usize,
    broken: Option<Broken>,
}

struct Broken {
    status: ExitStatus,
    /// The inputs that it broke at.
    inputs: Vec<PathBuf>,
    said: String,
}

impl Folders {
    fn new() -> Folders {
        let root = repository();
        Folders { fuzz: root.join("harness/fuzz"), built: root.join("target/fuzz") }
    }

    fn names(&self) -> Result<Vec<String>> {
        let folder = self.fuzz.join("fuzz_targets");
        let files = fs::read_dir(&folder).with_context(|| format!("failed to read {}", folder.display()))?;
        let name = |path: PathBuf| Some(path.file_stem()?.to_str()?.to_owned());
        let mut names: Vec<String> = files.flatten().filter_map(|file| name(file.path())).collect();
        names.sort();
        Ok(names)
    }

    fn build(&self, program: &Path) -> Result<()> {
        let mut build = Command::new(program);
        // Instrumentation is not stable; the compiler is the one that builds all else. cargo-fuzz has it use one CPU for a crate.
        build.env("RUSTC_BOOTSTRAP", "1").env("RUSTFLAGS", "-Ccodegen-units=16");
        // What is read is read without `unsafe`: a sanitizer would find nothing, and triples the time of the build.
        build.args(["fuzz", "build", "--sanitizer", "none", "--fuzz-dir"]).arg(&self.fuzz);
        build.arg("--target-dir").arg(&self.built);
        let status = build.status().with_context(|| format!("failed to run {}", program.display()))?;
        if status.success() { Ok(()) } else { Err(Error::failed("failed to build the fuzz targets")) }
    }

    fn target(&self, name: &str) -> PathBuf {
        self.built.join(target(Arch::host().unwrap_or(Arch::X86_64))).join("release").join(name)
    }

    /// In the repository.
    fn corpus(&self, name: &str) -> PathBuf {
        self.fuzz.join("corpus").join(name)
    }

    /// Found here, and used the next time.
    fn found(&self, name: &str) -> PathBuf {
        self.built.join("found").join(name)
    }

    fn made(&self, folder: PathBuf) -> Result<PathBuf> {
        fs::create_dir_all(&folder).with_context(|| format!("failed to make {}", folder.display()))?;
        Ok(folder)
    }

    fn run(&self, name: &str, seconds: u64, seed: Option<NonZeroU32>) -> Result<End> {
        let found = self.made(self.found(name))?;
        let broken = self.made(self.built.join("broken").join(name))?;
        let before = files(&broken);
        let path = self.built.join(format!("{name}.log"));
        let log = File::create(&path).with_context(|| format!("failed to write {}", path.display()))?;
        let mut run = Command::new(self.target(name));
        run.arg(&found).arg(self.corpus(name));
        let regressions = self.fuzz.join("regressions").join(name);
        run.args(regressions.is_dir().then_some(regressions));
        run.arg(format!("-max_total_time={seconds}"))
            .arg(format!("-artifact_prefix={}/", broken.display()))
            .args([
                format!("-timeout={INPUT_SECONDS}"),
                // One that is only slow is no failure, and would be written beside those that are.
                format!("-report_slow_units={INPUT_SECONDS}"),
                format!("-rss_limit_mb={MEMORY_MIB}"),
                format!("-max_len={LONGEST}"),
                "-print_final_stats=1".to_owned(),
            ]);
        run.args(seed.map(|seed| format!("-seed={seed}")));
        run.stdout(log.try_clone()?).stderr(log);
        let status = child::wait(&mut run, Duration::from_secs(seconds) + GRACE)?;
        let said = String::from_utf8_lossy(&fs::read(&path)?).into_owned();
        let inputs: Vec<PathBuf> = files(&broken).into_iter().filter(|file| !before.contains(file)).collect();
        let fine = status.success() && inputs.is_empty();
        Ok(End {
            executions: statistic(&said, "number_of_executed_units").unwrap_or(0),
            kept: files(&found).len(),
            broken: (!fine).then(|| Broken { status, inputs, said: last_words(&said) }),
        })
    }

    /// The fewest inputs that reach all that those of the repository and those that were found do.
    fn keep(&self, name: &str) -> Result<()> {
        let (corpus, small) = (self.corpus(name), self.built.join("small").join(name));
        if small.exists() {
            fs::remove_dir_all(&small)?;
        }
        let mut merge = Command::new(self.target(name));
        merge.args(["-set_cover_merge=1", &format!("-max_len={LONGEST}")]);
        merge.arg(self.made(small.clone())?).arg(&corpus).arg(self.found(name));
        child::run(&mut merge, MERGE_LIMIT)?;
        if files(&small).is_empty() {
            return Err(Error::failed(format!(
                "failed to make the corpus of {name} small: nothing is left of it"
            )));
        }
        fs::remove_dir_all(&corpus)?;
        fs::create_dir(&corpus)?;
        for file in files(&small) {
            fs::copy(&file, corpus.join(file.file_name().expect("a file has a name")))?;
        }
        Ok(())
    }
}

impl Broken {
    fn shown(&self, target: &Path) -> String {
        let mut text = format!("  it ended with {}:\n", self.status);
        self.said.lines().for_each(|line| text += &format!("    {line}\n"));
        for input in &self.inputs {
            text += &format!("  again: {} {}\n", target.display(), input.display());
        }
        text
    }
}

fn files(folder: &Path) -> Vec<PathBuf> {
    fs::read_dir(folder).into_iter().flatten().flatten().map(|file| file.path()).collect()
}

/// `stat::NAME: 7`
fn statistic(said: &str, name: &str) -> Option<u64> {
    let line = said.lines().rev().find_map(|line| line.strip_prefix("stat::")?.strip_prefix(name))?;
    line.trim_start_matches(':').trim().parse().ok()
}

/// From the panic, or the sanitizer's word, on.
fn last_words(said: &str) -> String {
    let lines: Vec<&str> = said.lines().filter(|line| !line.starts_with("stat::")).collect();
    let begins = |line: &&str| line.contains("panicked at") || line.contains("ERROR: ");
    let first = lines.iter().position(begins).unwrap_or(lines.len().saturating_sub(LAST_LINES));
    lines[first..].iter().take(LAST_LINES).copied().collect::<Vec<_>>().join("\n")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_libfuzzer_says_is_read() {
        let said = "#8 NEW cov: 3\n\nthread '<unnamed>' panicked at src/x.rs:1:2:\nindex out of bounds\n\
                    ==7== ERROR: libFuzzer: deadly signal\nstat::number_of_executed_units: 4181\nstat::peak_rss_mb: 9\n";
        assert_eq!(statistic(said, "number_of_executed_units"), Some(4181));
        assert_eq!(statistic("", "number_of_executed_units"), None);
        assert_eq!(
            last_words(said),
            "thread '<unnamed>' panicked at src/x.rs:1:2:\nindex out of bounds\n==7== ERROR: libFuzzer: deadly signal"
        );
    }

    #[test]
    fn only_targets_that_there_are() {
        let all = ["mbox", "yaml"].map(str::to_owned);
        assert_eq!(chosen(&all, &[]).unwrap(), all);
        assert_eq!(chosen(&all, &all[1..]).unwrap(), ["yaml"]);
        let error = chosen(&all, &["trace".to_owned()]).unwrap_err();
        assert!(matches!(error, Error::Usage(_)) && error.to_string().contains("mbox, yaml"), "{error}");
    }
}
