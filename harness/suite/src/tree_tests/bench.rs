// SPDX-License-Identifier: MIT OR Apache-2.0
//! Parses the output of the tree's `bench`: a line for every second, and a summary of the seconds
//! after the warm-up.
//!
//! ```text
//! Iter   1 ( 87.532us): hits    0.412M/s (  0.412M/prod), drops    0.000M/s, …
//! Summary: hits    0.409 ± 0.004M/s (  0.409M/prod), drops    0.000 ± 0.000M/s, …
//! ```

/// The rates of a run that ended well.
#[derive(Clone, Debug, PartialEq)]
pub struct Measured {
    /// Million hits per second, one value for each second after the warm-up.
    pub hits: Vec<f64>,
}

#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Unreadable {
    #[error("bench printed no summary; its last line is `{0}`")]
    NoSummary(String),
    #[error("bench printed {found} seconds, expected {expected}")]
    Seconds { expected: usize, found: usize },
    #[error("bench's line is not as expected: `{0}`")]
    Line(String),
    #[error("bench counted no hit: the program that it triggers did not run")]
    NoHit,
}

/// Returns true if this tree does not have the benchmark.
pub fn is_unknown(output: &str) -> bool {
    output.lines().any(|line| line.starts_with("benchmark '") && line.ends_with("' not found"))
}

/// Reads the output of a run with these `warmup` and `seconds`.
pub fn read(output: &str, warmup: u32, seconds: u32) -> Result<Measured, Unreadable> {
    let short = |line: &str| line.chars().take(120).collect::<String>();
    let mut iterations = Vec::new();
    let mut summary = false;
    for line in output.lines() {
        if line.starts_with("Iter ") {
            iterations.push(hits(line).ok_or_else(|| Unreadable::Line(short(line)))?);
        }
        summary |= line.starts_with("Summary: hits");
    }
    if !summary {
        return Err(Unreadable::NoSummary(short(
            output.trim_end().lines().next_back().unwrap_or_default(),
        )));
    }
    let hits = iterations.split_off((warmup as usize).min(iterations.len()));
    if hits.len() < seconds as usize {
        return Err(Unreadable::Seconds { expected: seconds as usize, found: hits.len() });
    }
    if hits.iter().all(|&rate| rate == 0.0) {
        return Err(Unreadable::NoHit);
    }
    Ok(Measured { hits })
}

/// The rate in `… hits    0.412M/s (…`.
fn hits(line: &str) -> Option<f64> {
    let (_, rest) = line.split_once(": hits ")?;
    let (rate, _) = rest.split_once("M/s")?;
    rate.trim().parse().ok().filter(|rate: &f64| rate.is_finite() && *rate >= 0.0)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Recorded under TCG on a busy host, with one second of warm-up and three that count. Bench
    /// adds one second.
    const FENTRY: &str = include_str!("testdata/6.12-bench-trig-fentry.txt");
    const KPROBE_MULTI: &str = include_str!("testdata/6.12-bench-trig-kprobe-multi.txt");
    const UNKNOWN: &str = include_str!("testdata/6.12-bench-unknown.txt");

    #[test]
    fn reads_recorded_runs() {
        assert_eq!(read(FENTRY, 1, 3).unwrap().hits, [0.413, 0.159, 0.544, 0.093]);
        assert_eq!(read(KPROBE_MULTI, 1, 3).unwrap().hits, [0.164, 0.178, 0.119, 0.155]);
        assert!(is_unknown(UNKNOWN) && !is_unknown(FENTRY));
    }

    #[test]
    fn rejects_incomplete_runs() {
        let before = |end: &str| &FENTRY[..FENTRY.find(end).unwrap()];
        assert_eq!(
            read(before("Summary"), 1, 3).unwrap_err().to_string(),
            "bench printed no summary; its last line is `Iter   4 (61514.181us): hits    0.093M/s \
             (  0.093M/prod), drops    0.000M/s, \
             total operations    0.093M/s`"
        );
        assert_eq!(read("", 1, 3), Err(Unreadable::NoSummary(String::new())));
        assert_eq!(read(FENTRY, 1, 5), Err(Unreadable::Seconds { expected: 5, found: 4 }));
        assert_eq!(read(FENTRY, 9, 1), Err(Unreadable::Seconds { expected: 1, found: 0 }));
        let changed = |from: &str, to: &str| read(&FENTRY.replace(from, to), 1, 3);
        assert!(matches!(changed("hits    0.413M/s", "hits    nanM/s"), Err(Unreadable::Line(_))));
        assert!(matches!(changed("): hits ", "): ops "), Err(Unreadable::Line(_))));
        // The program was attached but never ran.
        let idle: String = FENTRY
            .lines()
            .map(|line| match line.split_once("hits ") {
                Some((head, rest)) => {
                    format!("{head}hits    0.000{}\n", &rest[rest.find("M/s").unwrap_or(0)..])
                }
                None => format!("{line}\n"),
            })
            .collect();
        assert_eq!(read(&idle, 1, 3), Err(Unreadable::NoHit));
    }
}
