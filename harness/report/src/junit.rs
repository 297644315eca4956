// SPDX-License-Identifier: MIT OR Apache-2.0
//! The report as JUnit XML: a suite per kernel, a case per cell.

use crate::{
    comparison,
    findings::{OfSeries, Told, telling, with_the_dearest},
};
use junit_report::{
    Duration, OffsetDateTime, ReportBuilder, TestCase, TestCaseBuilder, TestSuiteBuilder,
};
use std::collections::BTreeSet;
use time::format_description::well_known::Rfc3339;
use tramplab_analysis::compare;
use tramplab_model::{
    run::{Accel, Arch, BranchSource, Cell, ErrorKind, Outcome, Run},
    text::{cdata, plain},
};

#[derive(Debug, thiserror::Error)]
pub enum JunitError {
    #[error("failed to read the run's start `{0}` as an RFC 3339 time")]
    Started(String),
    #[error("failed to write JUnit XML: {0}")]
    Write(junit_report::Error),
}

pub fn render(run: &Run) -> Result<Vec<u8>, JunitError> {
    let started = OffsetDateTime::parse(&run.started, &Rfc3339)
        .map_err(|_| JunitError::Started(run.started.clone()))?;
    // Cells that did not run must not look as if they had passed.
    let missing = run.missing_cells();
    let all = || run.cells.iter().chain(&missing);
    // GitLab keeps only one of the cases that share a class and a name.
    let accels: BTreeSet<Accel> = all().map(|cell| cell.id.accel).collect();
    let class = |cell: &Cell| {
        let id = &cell.id;
        let class = format!("{}/{}", id.arch.name(), id.kernel);
        if accels.len() > 1 { format!("{class}/{}", id.accel.name()) } else { class }
    };
    let kernels: BTreeSet<(Arch, &str, Accel)> =
        all().map(|cell| (cell.id.arch, cell.id.kernel.as_str(), cell.id.accel)).collect();
    let findings = comparison::findings_of(run);
    let mut report = ReportBuilder::new();
    for kernel in kernels {
        let is_this =
            |cell: &&Cell| (cell.id.arch, cell.id.kernel.as_str(), cell.id.accel) == kernel;
        let cells: Vec<&Cell> = all().filter(is_this).collect();
        let mut suite = TestSuiteBuilder::new(&plain(&class(cells[0])));
        suite.set_timestamp(started);
        for cell in cells {
            suite.add_testcase(case(cell, &class(cell), &findings));
        }
        report.add_testsuite(suite.build());
    }
    // Missing shards get a case too, and missing cells whose names the run does not know.
    let unnamed =
        run.interruption().filter(|_| run.missing.is_empty()).into_iter().chain(run.shortage());
    let cases = unnamed.map(|said| {
        TestCaseBuilder::error("run", Duration::ZERO, ErrorKind::Harness.name(), &plain(&said))
            .set_classname("tramplab")
            .set_trace(&cdata(&said))
            .build()
    });
    let cases: Vec<TestCase> = cases.chain(agreements(run)).collect();
    if !cases.is_empty() {
        let mut suite = TestSuiteBuilder::new("tramplab");
        suite.set_timestamp(started).add_testcases(cases);
        report.add_testsuite(suite.build());
    }
    let mut xml = Vec::new();
    report.build().write_xml(&mut xml).map_err(JunitError::Write)?;
    xml.push(b'\n');
    let xml = String::from_utf8(xml).expect("it was made of strings");
    Ok(in_milliseconds(&xml).into_bytes())
}

/// A case for each series that was compared in several configurations: their verdicts in a line.
fn agreements(run: &Run) -> impl Iterator<Item = TestCase> {
    compare::agreements(run, None).into_iter().map(|agreement| {
        let name = format!("verdict on {} ({})", agreement.series, agreement.arch);
        let sentence = plain(&agreement.sentence());
        let mut case = match agreement.is_worse() {
            true => TestCaseBuilder::failure(&plain(&name), Duration::ZERO, "worse", &sentence),
            false => TestCaseBuilder::success(&plain(&name), Duration::ZERO),
        };
        case.set_classname("tramplab").set_system_out(&cdata(&sentence)).build()
    })
}

/// Rounds times, which the library writes as `1.9689999999999999`. Foreign text is safe: CDATA is
/// left alone, and in attributes its quotes are escaped.
fn in_milliseconds(xml: &str) -> String {
    const TIME: &str = " time=\"";
    let mut out = String::with_capacity(xml.len());
    let mut rest = xml;
    while let Some(at) = [rest.find(TIME), rest.find("<![CDATA[")].into_iter().flatten().min() {
        let is_time = rest[at..].starts_with(TIME);
        let (before, after) = rest.split_at(if is_time { at + TIME.len() } else { at });
        let end = after.find(if is_time { "\"" } else { "]]>" }).unwrap_or(after.len());
        out += before;
        match after[..end].parse::<f64>() {
            Ok(seconds) if is_time => out += &format!("{seconds:.3}"),
            _ => out += &after[..end],
        }
        rest = &after[end..];
    }
    out + rest
}

/// Marks a driver's records, to tell them from the virtual ones of other runs.
fn mark(source: BranchSource) -> Option<String> {
    let whose = match source {
        BranchSource::Virtual => return None,
        BranchSource::Hardware => "the CPU's own LBR",
        BranchSource::Emulated => "a CPU's LBR that the plugin plays",
    };
    Some(format!("branch records: {} ({whose})", source.name()))
}

/// The library adds the times of all cells and panics if the sum overflows. This is a century.
const LONGEST_MS: u64 = 100 * 365 * 24 * 3600 * 1000;

fn case(cell: &Cell, class: &str, findings: &[OfSeries]) -> TestCase {
    let name = plain(&cell.id.test.name());
    let time = Duration::milliseconds(cell.duration_ms.min(LONGEST_MS) as i64);
    // GitLab shows the element's content, other tools its message.
    let mut case = match &cell.outcome {
        Outcome::Pass => TestCaseBuilder::success(&name, time),
        Outcome::Fail { reasons } => {
            let mut told: Vec<String> = Vec::new();
            let telling = reasons.iter().flat_map(|one| telling(findings, &cell.id, one));
            for sentence in telling.map(Told::sentence) {
                if !told.contains(&sentence) {
                    told.push(sentence);
                }
            }
            told.extend(with_the_dearest(cell, reasons.clone()));
            let reasons = told.join("\n");
            let mut case = TestCaseBuilder::failure(&name, time, "budget", &plain(&reasons));
            case.set_trace(&cdata(&reasons));
            case
        }
        Outcome::Error { kind, message } => {
            let mut case = TestCaseBuilder::error(&name, time, kind.name(), &plain(message));
            case.set_trace(&cdata(&format!("{kind}: {message}")));
            case
        }
        Outcome::Skip { reason } => {
            TestCaseBuilder::skipped_with_cause(&name, "unsupported", &plain(reason))
        }
    };
    case.set_classname(&plain(class));
    let mark = cell.branch_source().and_then(mark);
    let out: Vec<String> = mark.into_iter().chain(cell.console_tail.iter().cloned()).collect();
    if !out.is_empty() {
        case.set_system_out(&cdata(&out.join("\n")));
    }
    case.build()
}

#[cfg(test)]
mod tests {
    use super::{in_milliseconds, render};

    #[test]
    fn rounds_times_to_milliseconds_and_leaves_text_alone() {
        for (written, expected) in [
            (
                "<testcase name=\"a\" time=\"1.9689999999999999\"/>",
                "<testcase name=\"a\" time=\"1.969\"/>",
            ),
            ("<a time=\"0\"/><b time=\"61.5\">", "<a time=\"0.000\"/><b time=\"61.500\">"),
            ("<a time=\"now\"/>", "<a time=\"now\"/>"),
            (
                "<![CDATA[ time=\"1.0000001\"]]><b time=\"1.0000001\"/>",
                "<![CDATA[ time=\"1.0000001\"]]><b time=\"1.000\"/>",
            ),
            ("<![CDATA[ time=\"1.0000001\"", "<![CDATA[ time=\"1.0000001\""),
            ("<a time=\"1.0000001", "<a time=\"1.000"),
        ] {
            assert_eq!(in_milliseconds(written), expected);
        }
    }

    #[test]
    fn takes_every_duration_of_many_cells() {
        let mut run = tramplab_testdata::two_architectures();
        let cell = &run.cells[0];
        run.cells = vec![cell.clone(); 1100];
        run.cells.iter_mut().for_each(|cell| cell.duration_ms = u64::MAX);
        let xml = String::from_utf8(render(&run).unwrap()).unwrap();
        assert_eq!(xml.matches("time=\"3153600000.000\"").count(), 1100);
        assert_eq!(xml.matches("time=\"3468960000000.000\"").count(), 1);
    }
}
