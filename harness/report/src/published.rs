// SPDX-License-Identifier: MIT OR Apache-2.0
//! Published numbers of a series beside those of a run: lines of a report, and the page
//! `docs/published.md`.

use crate::{findings::parted, markdown};
use std::collections::BTreeMap;
use tramplab_analysis::{
    compare::{Compared, Direction, Verdict},
    published::{Answer, Held, HeldRow, LEAST_PERCENT, SAME_PERCENT, held},
};
use tramplab_model::{
    kinds::trigger::Cost, published::Published, run::Run, table::Table, text::counted,
};

/// A line for each number that hardware moved or that is another one here, and the score; or the
/// way to what was published.
pub(crate) fn lines(run: &Run) -> Vec<String> {
    if run.interrupted {
        return Vec::new();
    }
    let all = held(run);
    let all_published = run.series.iter().flat_map(|series| &series.published);
    let mut others: Vec<String> = Vec::new();
    for published in all_published.filter(|one| all.iter().all(|held| held.published != *one)) {
        let way = way(published);
        if !others.contains(&way) {
            others.push(way);
        }
    }
    all.iter().flat_map(of_publication).chain(others).collect()
}

/// `9 numbers of zen4 with mitigations=off: add --model zen4 --config-axis mitigations=off …`
fn way(Published { arch, model, axes, rows, source, .. }: &Published) -> String {
    let model = model.iter().map(|model| format!(" --model {model} --explain estimated"));
    let axes = axes.iter().map(|(axis, value)| format!(" --config-axis {axis}={value}"));
    let options = model.chain(axes).collect::<String>();
    format!(
        "{} of {source} can be held against a run with --arch {arch}{options}",
        counted(rows.len(), "number")
    )
}

fn of_publication(held: &Held) -> Vec<String> {
    let Held { published, point, rows, .. } = held;
    let is_told =
        |row: &&HeldRow| row.published != Direction::Same || row.answer == Answer::Disagrees;
    let line = |row: &HeldRow| {
        let unit = published.unit.name();
        let HeldRow { row, published: direction, ours, answer } = row;
        let here = if ours.is_empty() { String::new() } else { format!("{}: ", numbers(ours)) };
        format!(
            "{} {} on hardware ({} -> {} {unit}{}, {}); here, {point}, {here}{}",
            row.of,
            direction.name(),
            row.before,
            row.after,
            percent(row.before, row.after),
            published.machine,
            reply(*answer, row.why.as_deref()),
        )
    };
    let score = format!(
        "{} agree, {} disagree, of {} nothing can be told: {}",
        held.count(|answer| answer == Answer::Agrees),
        held.count(|answer| answer == Answer::Disagrees),
        held.count(|answer| matches!(answer, Answer::CannotTell(_))),
        published.source
    );
    rows.iter().filter(is_told).map(line).chain([score]).collect()
}

/// `estimated_cycles 135 -> 39, mispredicted_returns 8 -> 0`: the first, and those that changed.
fn numbers(ours: &[Compared]) -> String {
    let is_told = |(at, one): &(usize, &Compared)| {
        *at == 0 || matches!(one.verdict, Verdict::Better | Verdict::Worse)
    };
    let all = ours.iter().enumerate().filter(is_told).map(|(_, one)| number(one));
    all.collect::<Vec<_>>().join(", ")
}

/// `estimated_cycles 135 -> 39 (-71 %)`
fn number(Compared { metric, base, head, .. }: &Compared) -> String {
    let change = base.number().zip(head.number()).map(|(base, head)| percent(base, head));
    let name = metric.to_string();
    format!("{} {base} -> {head}{}", parted(*metric, &name).1, change.unwrap_or_default())
}

/// ` (-71 %)`. Empty without a change, and if there was nothing before.
fn percent(before: f64, after: f64) -> String {
    let change = 100.0 * (after / before - 1.0);
    if change != 0.0 && change.is_finite() { format!(" ({change:+.0} %)") } else { String::new() }
}

fn reply(answer: Answer, why: Option<&str>) -> String {
    match (answer, why) {
        (Answer::CannotTell(reason), _) => format!("{}: {reason}", answer.name()),
        (Answer::Disagrees, Some(why)) => format!("{}: {why}", answer.name()),
        (answer, _) => answer.name().to_owned(),
    }
}

/// The page's text before the numbers.
const HEAD: &str = "\
# What was published, and what is measured here

`cargo xtask published` writes this page: for each shipped series whose `series.yaml` has a key
`published`, it measures the series on the modelled CPU and in the configuration of the
publication.

A row *agrees* if both numbers are better, both worse or both the same; sizes are not compared. On
hardware a difference of less than SAME % is the same, and as much is allowed here beside it. Where
hardware differs, so must the number here, by LEAST % or more. Differences that hang on the addresses
of code are none, as in every comparison. Branch records are exact. A row of a hit is judged by its
[estimated cycles](estimated-cycles.md), or by instructions where none are estimated. Rows that
disagree stay. No number of a CPU was chosen by this page.

Not here: series that no tree to be had is older than. The oldest sources are 6.1, so \"Introduce
bpf_get_branch_snapshot\" (S. Liu, September 2021, 11 to 7 records) and the listing in retsnoop's
README have no kernel of their age. \"fprobe on fgraph\" (6.9) is no switch in 6.12 or 7.2. The
listings of \"Inline two LBR-related helpers\" stand [row by row](shipped-series.md#the-letter-row-by-row), the
profile of \"Use single direct ops for bpf trampolines\" [symbol by
symbol](estimated-cycles.md#against-hardware-and-against-cachegrind).
";

/// Says what a page of these runs would lack. None if it is complete.
pub fn gap(runs: &[Run]) -> Option<String> {
    let mut lacks: usize = 0;
    for run in runs {
        let all = held(run);
        if all.is_empty() {
            return Some(format!(
                "nothing was published of what {} measured, on its CPU and in its configuration",
                run.id
            ));
        }
        let rows = all.iter().flat_map(|held| &held.rows);
        lacks = lacks.saturating_add(rows.filter(|row| row.ours.is_empty()).count());
    }
    (lacks > 0).then(|| format!("{} could not be measured", counted(lacks, "number")))
}

/// The page: the text about each series, by its name.
#[derive(Debug, Default, PartialEq, Eq)]
pub struct Page(BTreeMap<String, String>);

impl Page {
    /// Makes the page of runs, each of a series.
    pub fn of(runs: &[Run]) -> Page {
        let mut page = Page::default();
        for run in runs {
            for held in held(run) {
                page.add(&held.series.name, &section(run, &held));
            }
        }
        page
    }

    /// Reads what [`Page::render`] wrote.
    pub fn read(text: &str) -> Page {
        let mut page = Page::default();
        for section in text.split(SERIES).skip(1) {
            page.add(section.lines().next().unwrap_or_default(), &format!("{SERIES}{section}"));
        }
        page
    }

    /// A series has a section for each publication.
    fn add(&mut self, series: &str, section: &str) {
        *self.0.entry(series.to_owned()).or_default() += section;
    }

    /// Puts newer sections in the place of older ones of the same series.
    pub fn update(&mut self, newer: Page) {
        self.0.extend(newer.0);
    }

    /// Leaves out all other series.
    pub fn keep(&mut self, series: &[String]) {
        self.0.retain(|name, _| series.contains(name));
    }

    /// The publications of a series that it shows.
    pub fn count(&self, series: &str) -> usize {
        self.0.get(series).map_or(0, |sections| sections.matches(SERIES).count())
    }

    pub fn render(&self) -> String {
        let answers: Vec<&str> = self.0.values().flat_map(|section| answers(section)).collect();
        let [agree, disagree] = [Answer::Agrees, Answer::Disagrees].map(Answer::name);
        let count = |is: &dyn Fn(&str) -> bool| answers.iter().filter(|reply| is(reply)).count();
        let head = HEAD
            .replace("SAME", &SAME_PERCENT.to_string())
            .replace("LEAST", &LEAST_PERCENT.to_string());
        let score = format!(
            "\n**Of {} numbers {} agree, {} disagree, of {} nothing can be told.**\n",
            answers.len(),
            count(&|reply| reply.starts_with(agree)),
            count(&|reply| reply.starts_with(disagree)),
            count(&|reply| !reply.starts_with(agree) && !reply.starts_with(disagree)),
        );
        head + &score + &self.0.values().map(String::as_str).collect::<String>()
    }
}

/// Stands before the name of a series.
const SERIES: &str = "\n### ";

/// The last fields of a table's rows: `agrees`, `disagrees: why`.
fn answers(sections: &str) -> impl Iterator<Item = &str> {
    let lines = sections.split(SERIES).map(str::lines);
    let rows = lines.flat_map(|lines| lines.filter(|line| line.starts_with("| ")).skip(2));
    rows.filter_map(|row| row.strip_suffix(" |")?.rsplit(" | ").next())
}

fn section(run: &Run, held: &Held) -> String {
    let Held { published, series, point, rows } = held;
    let base = run.kernel(series.arch, &series.base().kernel);
    let source = base.map(|kernel| kernel.source.clone()).unwrap_or_default();
    let about = format!(
        "{}. Hardware: {}. Here: {point}, {}, {source}; measured {}.",
        published.source, published.machine, series.arch, run.started
    );
    let unit = published.unit.name();
    let row = |held: &HeldRow| {
        let (before, after) = (held.row.before, held.row.after);
        let hardware = format!("{before} -> {after} {unit}{}", percent(before, after));
        let is_estimate = |one: &&Compared| one.metric.is_estimate();
        let (estimated, exact): (Vec<&Compared>, Vec<&Compared>) =
            held.ours.iter().partition(is_estimate);
        let list = |all: Vec<&Compared>| all.into_iter().map(number).collect::<Vec<_>>().join(", ");
        vec![
            held.row.of.clone(),
            hardware,
            held.published.name().to_owned(),
            list(exact),
            list(estimated),
            reply(held.answer, held.row.why.as_deref()),
        ]
    };
    let correlation = |cost: Cost| {
        let found = held.rank_correlation(cost)?;
        Some(format!("{found:.2} by {}", cost.definition().title))
    };
    let correlations: Vec<String> =
        [Cost::EstimatedCycles, Cost::Instructions].into_iter().filter_map(correlation).collect();
    let order = (!correlations.is_empty()).then(|| {
        format!("Rank correlation of the hits after the series: {}.", correlations.join(", "))
    });
    let header = ["row", "hardware", "which is", "exact", "estimated", "answer"];
    let table = Table::new(series.name.clone(), header, rows.iter().map(row)).noted(order);
    format!("\n{}\n{}\n", markdown::table(&table), markdown::text(&about))
}

#[cfg(test)]
mod tests {
    use super::*;
    use tramplab_model::published::{Row, Unit};
    use tramplab_testdata::series as recorded;

    fn with_published() -> Run {
        let row = |(of, before, after, why): (&str, f64, f64, Option<&str>)| Row {
            of: of.to_owned(),
            before,
            after,
            why: why.map(str::to_owned),
        };
        let rows = [
            ("lbr_waste.fexit.any", 9.0, 6.0, None),
            ("lbr_waste.fexit.any_return", 3.0, 3.0, Some("a newer kernel")),
            ("lbr_waste.fexit.ind_call", 2.0, 2.0, None),
            ("trigger.fexit", 2.0, 1.0, Some("unused")),
        ];
        let mut run = recorded();
        run.series[0].published = vec![Published {
            source: "\"Inline\", A. Author".to_owned(),
            machine: "Intel".to_owned(),
            arch: run.series[0].arch,
            model: None,
            axes: BTreeMap::new(),
            unit: Unit::Records,
            rows: rows.map(row).into(),
        }];
        run
    }

    #[test]
    fn tells_what_moved_or_disagrees_and_the_score() {
        let hardware = |numbers: &str| format!("on hardware ({numbers}, Intel)");
        assert_eq!(
            lines(&with_published()),
            [
                format!(
                    "lbr_waste.fexit.any better {}; here, as usual, any 12 -> 9 (-25 %): agrees",
                    hardware("9 -> 6 records (-33 %)")
                ),
                format!(
                    "lbr_waste.fexit.any_return same {}; here, as usual, any_return 4 -> 3 (-25 %): \
                     disagrees: a newer kernel",
                    hardware("3 -> 3 records")
                ),
                format!(
                    "trigger.fexit better {}; here, as usual, cannot tell: not measured here",
                    hardware("2 -> 1 records (-50 %)")
                ),
                "1 agree, 1 disagree, of 2 nothing can be told: \"Inline\", A. Author".to_owned(),
            ]
        );
        assert_eq!(lines(&recorded()), Vec::<String>::new());
        let mut other = with_published();
        let published = &mut other.series[0].published[0];
        published.model = Some("zen4".to_owned());
        published.axes.insert("mitigations".to_owned(), "off".to_owned());
        assert_eq!(
            lines(&other),
            ["4 numbers of \"Inline\", A. Author can be held against a run with --arch x86_64 \
              --model zen4 --explain estimated --config-axis mitigations=off"]
        );
        other.interrupted = true;
        assert_eq!(lines(&other), Vec::<String>::new());
    }

    #[test]
    fn tells_what_a_page_lacks() {
        let mut whole = with_published();
        let lacks = gap(&[whole.clone()]);
        assert_eq!(lacks.as_deref(), Some("1 number could not be measured"));
        whole.series[0].published[0].rows.pop();
        assert_eq!(gap(&[whole.clone()]), None);
        assert!(gap(&[whole, recorded()]).unwrap().starts_with("nothing was published"));
    }

    #[test]
    fn the_page_has_every_row_and_the_score() {
        let page = Page::of(&[with_published(), recorded()]);
        let text = page.render();
        for words in [
            "**Of 4 numbers 1 agree, 1 disagree, of 2 nothing can be told.**",
            "| lbr_waste.fexit.any | 9 -&gt; 6 records (-33 %) | better | any 12 -&gt; 9 (-25 %) |  | agrees |",
            "| trigger.fexit | 2 -&gt; 1 records (-50 %) | better |  |  | cannot tell: not measured here |",
            "| ind_call - -&gt; - |  | cannot tell: no number on one side |",
            "\"Inline\", A. Author. Hardware: Intel. Here: as usual, x86_64, ",
        ] {
            assert!(text.contains(words), "{words} is missing in: {text}");
        }
        assert_eq!(Page::read(&text), page);
    }

    #[test]
    fn a_part_replaces_its_own_series_and_no_other() {
        let named = |name: &str, after: f64| {
            let mut run = with_published();
            run.series[0].name = name.to_owned();
            run.series[0].published[0].rows[0].after = after;
            run
        };
        let series = ["a".to_owned(), "b".to_owned()];
        let mut page = Page::of(&[named("b", 6.0), named("dropped", 6.0)]);
        page.update(Page::of(&[named("a", 6.0)]));
        page.keep(&series);
        assert_eq!(page, Page::of(&[named("a", 6.0), named("b", 6.0)]));
        let score = "**Of 8 numbers 2 agree, 2 disagree, of 4 nothing can be told.**";
        assert!(page.render().contains(score), "{}", page.render());
        page.update(Page::of(&[named("b", 60.0)]));
        let score = "**Of 8 numbers 1 agree, 3 disagree, of 4 nothing can be told.**";
        assert!(page.render().contains(score), "{}", page.render());
        assert_eq!(["a", "dropped"].map(|series| page.count(series)), [1, 0]);
        let mut two = named("c", 6.0);
        let other = two.series[0].published[0].clone();
        two.series[0].published.push(other);
        let page = Page::of(&[two]);
        assert_eq!(page.count("c"), 2);
        assert!(page.render().contains("**Of 8 numbers 2 agree"), "{}", page.render());
        assert_eq!(Page::read(&page.render()), page);
    }
}
