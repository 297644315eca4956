// SPDX-License-Identifier: MIT OR Apache-2.0
//! The branch records of waste cells as `perf script -F brstacksym` prints samples: a line each,
//! below a comment that names the cell.

use crate::{content::groups, kinds::lbr_waste::rows, view::View};
use tramplab_analysis::branch::{Filter, brstack, driver};
use tramplab_model::{run::Run, text};

pub fn render(run: &Run, view: &View, filters: &[Filter]) -> String {
    let mut out = format!("# tramplab {}\n", text::line(&run.id));
    for group in groups(run, view) {
        let model = group.model(view);
        for row in rows(&group) {
            let Ok(measured) = row.measured else { continue };
            let model = driver::model(measured.waste, model);
            let (kernel, arch, accel) = (group.kernel, group.arch.name(), group.accel.name());
            let whose = driver::whose(group.of_driver(), model);
            for &filter in filters {
                let name = text::line(&format!("{arch}/{kernel}/{accel}/lbr_waste/{}", row.name));
                out += &format!("\n# {name}, {filter} ({whose})\n ");
                let point = &measured.waste.points[measured.point];
                out += brstack::line(point, model, filter).trim_end();
                out.push('\n');
            }
        }
    }
    out
}

#[cfg(test)]
mod tests {
    use super::*;
    use tramplab_analysis::branch::{Branch, Model, listing};
    use tramplab_model::run::Measurement;
    use tramplab_testdata::{series, two_architectures};

    /// The records of each sample, as scripts that read perf's text split them.
    fn read(text: &str) -> Vec<Vec<[String; 2]>> {
        let samples = text.lines().filter(|line| !line.starts_with('#') && !line.is_empty());
        let record = |record: &str| {
            let fields: Vec<&str> = record.split('/').collect();
            let [from, to, "-", "-", "-", "0", kind, "-"] = fields[..] else { panic!("{record}") };
            assert!(!kind.is_empty() && kind.chars().all(|c| c.is_ascii_uppercase() || c == '_'));
            [from, to].map(str::to_owned)
        };
        samples.map(|line| line.split_whitespace().map(record).collect()).collect()
    }

    #[test]
    fn a_sample_begins_with_the_records_of_the_listing() {
        let filters: Vec<Filter> = Branch::ALL.map(Filter::of).into();
        for run in [series(), two_architectures()] {
            for model in [Model::IntelLbr, Model::AmdLbrV2] {
                let view = View { model: Some(model), ..View::default() };
                let samples = read(&render(&run, &view, &filters));
                let mut expected = Vec::new();
                for group in groups(&run, &view) {
                    let model = group.model(&view);
                    for cell in &group.cells {
                        let Some(Measurement::LbrWaste(waste)) = &cell.measurement else {
                            continue;
                        };
                        for (point, &filter) in
                            waste.points.iter().flat_map(|p| filters.iter().map(move |f| (p, f)))
                        {
                            let lines = listing::lines(point, &waste.function, model, filter);
                            expected.push((lines, model.depth() as usize));
                        }
                    }
                }
                assert_eq!(samples.len(), expected.len());
                for (sample, (lines, depth)) in samples.iter().zip(expected) {
                    assert!(sample.len() <= depth);
                    for ([from, to], line) in sample.iter().zip(&lines) {
                        // The listing also names modules.
                        let module_less = |place: &str| place.split(' ').next().unwrap().to_owned();
                        let unknown = |place: &str, known: &str| {
                            place == "[unknown]" && known.starts_with("0x") || place == known
                        };
                        assert!(unknown(from, &module_less(&line.from)), "{from} {line:?}");
                        assert!(unknown(to, &module_less(&line.to)), "{to} {line:?}");
                    }
                    assert!(sample.len() >= lines.len().min(depth));
                }
            }
        }
    }
}
