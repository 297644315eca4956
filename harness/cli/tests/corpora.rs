// SPDX-License-Identifier: MIT OR Apache-2.0
//! Runs the fuzz targets without a fuzzer: over inputs that broke something once
//! (`fuzz/regressions`), over seeds made from recorded data (`fuzz/seed.py`), and over variants of
//! both. The variants are the same on every run.

#[path = "../../fuzz/src/lib.rs"]
mod targets;

use std::{
    fs,
    panic::catch_unwind,
    path::{Path, PathBuf},
    process::Command,
    thread,
};

type Target = (&'static str, fn(&[u8]) -> bool);

const TARGETS: [Target; 9] = [
    ("counts", targets::counts::run),
    ("frames", targets::frames::run),
    ("kallsyms", targets::kallsyms::run),
    ("ktap", targets::ktap::run),
    ("mbox", targets::mbox::run),
    ("object", targets::object::run),
    ("perf", targets::perf::run),
    ("trace", targets::trace::run),
    ("yaml", targets::yaml::run),
];

/// Variants of each input.
const VARIANTS: u64 = 100;

#[test]
fn targets_hold_for_seeds_and_regressions() {
    let fuzz = Path::new(env!("CARGO_MANIFEST_DIR")).join("../fuzz");
    let seeds = tempfile::tempdir().unwrap();
    let made = Command::new(fuzz.join("seed.py")).arg(seeds.path()).status();
    assert!(made.as_ref().is_ok_and(|status| status.success()), "seed.py needs python3: {made:?}");
    let ended: Vec<Ended> = thread::scope(|scope| {
        let run = |(name, run): Target| {
            let seeds = seeds.path().join(name);
            let regressions = fuzz.join("regressions").join(name);
            scope.spawn(move || {
                let mut ended = Ended::default();
                for (path, seed) in inputs(&seeds) {
                    match catch_unwind(|| run(&seed)) {
                        Ok(true) => {}
                        Ok(false) => ended.rejected.push(path),
                        Err(_) => ended.broken.push(kept(name, &seed)),
                    }
                    ended.broken.extend(broken_variant(name, run, &seed));
                }
                for (path, input) in inputs(&regressions) {
                    ended.broken.extend(catch_unwind(|| run(&input)).is_err().then_some(path));
                    ended.broken.extend(broken_variant(name, run, &input));
                }
                ended
            })
        };
        let threads: Vec<_> = TARGETS.into_iter().map(run).collect();
        threads.into_iter().map(|thread| thread.join().unwrap()).collect()
    });
    let all = |of: fn(&Ended) -> &[PathBuf]| ended.iter().flat_map(of).collect::<Vec<_>>();
    let (broken, rejected) = (all(|ended| &ended.broken), all(|ended| &ended.rejected));
    assert!(broken.is_empty(), "these inputs break their targets (panics above): {broken:#?}");
    // A rejected seed tests only the rejection: seed.py and the reader have drifted apart.
    assert!(rejected.is_empty(), "no reader accepts these seeds: {rejected:#?}");
}

#[derive(Default)]
struct Ended {
    broken: Vec<PathBuf>,
    rejected: Vec<PathBuf>,
}

/// The files of a folder, in the order of their names. Not every target has regressions.
fn inputs(folder: &Path) -> Vec<(PathBuf, Vec<u8>)> {
    let files = fs::read_dir(folder).into_iter().flatten().map(|file| file.unwrap().path());
    let mut inputs: Vec<_> = files.map(|path| (path.clone(), fs::read(path).unwrap())).collect();
    inputs.sort();
    inputs
}

/// The first variant that breaks the target, written to a file.
fn broken_variant(name: &str, run: fn(&[u8]) -> bool, input: &[u8]) -> Option<PathBuf> {
    let mut variants = (1..=VARIANTS).map(|number| variant(input, number));
    let broken = variants.find(|data| catch_unwind(|| run(data)).is_err())?;
    Some(kept(name, &broken))
}

/// Keeps an input that the test made.
fn kept(name: &str, data: &[u8]) -> PathBuf {
    let path = Path::new(env!("CARGO_TARGET_TMPDIR")).join(format!("breaks-{name}"));
    fs::write(&path, data).unwrap();
    path
}

/// Changes a few bytes of an input, repeats a part of it, or cuts it.
fn variant(input: &[u8], number: u64) -> Vec<u8> {
    // splitmix64: consecutive numbers give unrelated sequences.
    let mut state = number;
    let mut below = move |limit: usize| {
        state = state.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mixed = (state ^ (state >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        let mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        ((mixed ^ (mixed >> 31)) % limit.max(1) as u64) as usize
    };
    let mut data = input.to_vec();
    match number % 4 {
        0 => data.truncate(below(data.len())),
        1 => {
            let (from, at) = (below(data.len()), below(data.len()));
            let part = data[from..data.len().min(from + 1 + below(64))].to_vec();
            data.splice(at..at, part);
        }
        _ => {
            for _ in 0..1 + below(4) {
                let at = below(data.len());
                data[at] = [below(256) as u8, 0, 0xff, data[at] ^ 1][below(4)];
            }
        }
    }
    data
}

/// libFuzzer runs every file of `fuzz_targets`; the list above must name each.
#[test]
fn lists_every_target() {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("../fuzz/fuzz_targets");
    let mut files: Vec<String> = fs::read_dir(folder)
        .unwrap()
        .map(|file| file.unwrap().path().file_stem().unwrap().to_str().unwrap().to_owned())
        .collect();
    files.sort();
    assert_eq!(files, TARGETS.map(|(name, _)| name));
}
