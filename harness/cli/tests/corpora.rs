// SPDX-License-Identifier: MIT OR Apache-2.0
//! Every input that was kept, once more: what the fuzzer found interesting (`fuzz/corpus`), and what once broke something
//! (`fuzz/regressions`). Needs no fuzzer.

#[path = "../../fuzz/src/lib.rs"]
mod targets;

use std::{fs, path::Path};

type Target = (&'static str, fn(&[u8]));

const TARGETS: [Target; 8] = [
    ("counts", targets::counts::run),
    ("frames", targets::frames::run),
    ("kallsyms", targets::kallsyms::run),
    ("ktap", targets::ktap::run),
    ("mbox", targets::mbox::run),
    ("perf", targets::perf::run),
    ("trace", targets::trace::run),
    ("yaml", targets::yaml::run),
];

#[test]
fn every_kept_input_is_read_as_it_should() {
    let fuzz = Path::new(env!("CARGO_MANIFEST_DIR")).join("../fuzz");
    let mut broken = Vec::new();
    for (name, run) in TARGETS {
        let mut read = 0;
        for kept in ["corpus", "regressions"] {
            // Not every target has broken something.
            let Ok(files) = fs::read_dir(fuzz.join(kept).join(name)) else { continue };
            for path in files.map(|file| file.unwrap().path()) {
                let data = fs::read(&path).unwrap();
                if std::panic::catch_unwind(|| run(&data)).is_err() {
                    broken.push(path);
                }
                read += 1;
            }
        }
        assert!(read > 0, "{name} has no corpus");
    }
    assert!(broken.is_empty(), "what they break is printed above: {broken:#?}");
}

/// `cargo xtask fuzz` runs what the folder has; here it stands in a list.
#[test]
fn the_list_has_every_target() {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("../fuzz/fuzz_targets");
    let mut files: Vec<String> = fs::read_dir(folder)
        .unwrap()
        .map(|file| file.unwrap().path().file_stem().unwrap().to_str().unwrap().to_owned())
        .collect();
    files.sort();
    assert_eq!(files, TARGETS.map(|(name, _)| name));
}
