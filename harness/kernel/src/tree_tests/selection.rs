// SPDX-License-Identifier: MIT OR Apache-2.0
//! Selects the sources of `test_progs` that some tests need, out of 800 BPF programs and 350 test
//! files. The Makefile builds everything in two folders, so the rest is removed from them.

use std::collections::{BTreeMap, BTreeSet};
use tramplab_model::tree_tests::{Name, WantedTests};

/// File contents by name.
pub type Texts = BTreeMap<String, String>;

/// The sources to select from.
#[derive(Clone, Debug, Default)]
pub struct Sources {
    pub makefile: String,
    /// `prog_tests/*.c`.
    pub tests: Texts,
    /// Headers beside the tests, and sources and headers in the parent folder, which every test may
    /// use.
    pub shared: Texts,
    /// The names of `progs/*.c`, without `.c`.
    pub programs: BTreeSet<String>,
}

#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Selection {
    /// The tests in the kept files, each with its file.
    pub tests: BTreeMap<Name, String>,
    /// File names of the kept tests, with `.c`.
    pub files: BTreeSet<String>,
    pub programs: BTreeSet<String>,
}

pub fn select(sources: &Sources, wanted: &WantedTests) -> Selection {
    let mut selection = Selection::default();
    for (file, text) in &sources.tests {
        let defined = tests_in(text);
        if wanted.files.contains(file) || defined.iter().any(|test| wanted.tests.contains(test)) {
            selection.files.insert(file.clone());
            selection.tests.extend(defined.into_iter().map(|test| (test, file.clone())));
        }
    }
    let mut stems = words_of(&sources.makefile);
    for (_, text) in with_headers(sources, &selection.files) {
        stems.extend(named_in(text));
    }
    let is_needed = |program: &&String| stems.iter().any(|stem| stem.names(program));
    selection.programs =
        sources.programs.iter().filter(is_needed).map(|program| format!("{program}.c")).collect();
    selection
}

/// Returns the test files that an error belongs to, judged by the error's file and by make's or the
/// tool's message. Empty if all tests need the failing part.
pub fn needing(
    sources: &Sources,
    selection: &Selection,
    file: Option<&str>,
    said: &str,
) -> BTreeSet<String> {
    // The message can name the target: `make gave up out/x.skel.h: Error 1`.
    let named = said.split([' ', '`', '\'', ':', ',']);
    let paths = file.into_iter().chain(named).map(|word| word.trim_end_matches(['.', ']', ')']));
    for path in paths {
        let name = path.rsplit('/').next().unwrap_or(path);
        if let Some(test) = name.strip_suffix(".test.o") {
            return [format!("{test}.c")]
                .into_iter()
                .filter(|file| selection.files.contains(file))
                .collect();
        }
        if path.contains("prog_tests/") && selection.files.contains(name) {
            return [name.to_owned()].into();
        }
        let Some(program) =
            stem(name).filter(|program| selection.programs.contains(&format!("{program}.c")))
        else {
            continue;
        };
        if name.ends_with(".c") && !path.contains("progs/") {
            continue;
        }
        if words_of(&sources.makefile).iter().any(|stem| stem.names(program)) {
            return BTreeSet::new();
        }
        let needs = |file: &&String| {
            let texts = with_headers(sources, &[(*file).clone()].into());
            let own = texts.iter().filter(|(file, _)| !is_of_all(sources, file));
            own.flat_map(|(_, text)| named_in(text)).any(|stem| stem.names(program))
        };
        return selection.files.iter().filter(needs).cloned().collect();
    }
    BTreeSet::new()
}

/// True if the file is linked with every test.
fn is_of_all(sources: &Sources, file: &str) -> bool {
    file.ends_with(".c") && sources.shared.contains_key(file)
}

/// Returns the tests in a file, by the Makefile's rule: `void test_NAME(void)` or `void
/// serial_test_NAME(void)` at the start of a line.
pub fn tests_in(text: &str) -> Vec<Name> {
    let name = |line: &str| {
        let rest = line.strip_prefix("void ")?;
        let rest = rest.strip_prefix("serial_").unwrap_or(rest).strip_prefix("test_")?;
        let (name, arguments) = rest.split_once('(')?;
        (arguments.starts_with(')') || arguments.starts_with("void)")).then(|| name.parse().ok())?
    };
    text.lines().filter_map(name).collect()
}

/// Returns these files and the shared ones, with the headers they include.
fn with_headers<'a>(sources: &'a Sources, files: &BTreeSet<String>) -> Vec<(&'a str, &'a str)> {
    let own = sources.tests.iter().filter(|(file, _)| files.contains(*file));
    // Some headers beside the tests name programs, so only included ones count.
    let mut texts: Vec<(&str, &str)> =
        own.map(|(file, text)| (file.as_str(), text.as_str())).collect();
    texts.extend(
        sources
            .shared
            .iter()
            .filter(|(file, _)| file.ends_with(".c"))
            .map(|(f, t)| (f.as_str(), t.as_str())),
    );
    let mut seen: BTreeSet<&str> = BTreeSet::new();
    let mut at = 0;
    while at < texts.len() {
        for included in texts[at].1.lines().filter_map(|line| {
            let rest =
                line.trim_start().strip_prefix("#include")?.trim_start().strip_prefix('"')?;
            rest.split('"').next()?.rsplit('/').next()
        }) {
            if let Some((file, text)) = sources.shared.get_key_value(included)
                && seen.insert(file)
            {
                texts.push((file, text));
            }
        }
        at += 1;
    }
    texts
}

/// A program's name, or a prefix of it.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum Stem {
    Whole(String),
    Begins(String),
}

impl Stem {
    fn names(&self, program: &str) -> bool {
        match self {
            Stem::Whole(stem) => stem == program,
            Stem::Begins(stem) => program.starts_with(stem.as_str()),
        }
    }
}

const ENDINGS: [&str; 5] = [".skel.h", ".lskel.h", ".subskel.h", ".bpf.o", ".c"];

/// Returns the programs that the Makefile's rules name: `fentry_test.c`, `linked_funcs1.bpf.o`,
/// `trigger_bench.skel.h`.
fn words_of(makefile: &str) -> BTreeSet<Stem> {
    let is_part = |c: char| c.is_ascii_alphanumeric() || c == '_' || c == '.' || c == '-';
    let words = makefile.split(|c| !is_part(c));
    words.filter_map(|word| Some(Stem::Whole(stem(word)?.to_owned()))).collect()
}

fn stem(word: &str) -> Option<&str> {
    let stem = ENDINGS.iter().find_map(|ending| word.strip_suffix(ending))?;
    (!stem.is_empty()).then_some(stem)
}

/// Returns the programs that a source names: by a skeleton that it includes, an object that it
/// opens, or the prefix of an object name that it puts together (`"btf_dump_test_case_%s.bpf.o"`,
/// `"btf__core_reloc_" #name ".bpf.o"`).
fn named_in(text: &str) -> BTreeSet<Stem> {
    let mut stems = BTreeSet::new();
    for line in text.lines() {
        for literal in line.split('"').skip(1).step_by(2) {
            let literal = literal.rsplit('/').next().unwrap_or(literal);
            match (stem(literal), literal.split_once('%')) {
                (_, Some((begin, rest))) if begin.len() > 3 && rest.ends_with(".bpf.o") => {
                    stems.insert(Stem::Begins(begin.to_owned()));
                }
                (Some(stem), _) => {
                    stems.insert(Stem::Whole(stem.to_owned()));
                }
                (None, _)
                    if literal.len() > 3 && literal.ends_with('_') && line.contains(".bpf.o") =>
                {
                    stems.insert(Stem::Begins(literal.to_owned()));
                }
                _ => {}
            }
        }
    }
    stems
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Shortened from the files of 6.12.
    fn sources() -> Sources {
        let texts = |files: &[(&str, &str)]| {
            files.iter().map(|(name, text)| ((*name).to_owned(), (*text).to_owned())).collect()
        };
        Sources {
            makefile: "LSKELS := fentry_test.c \\\n\tatomics.c\n\
                 linked_funcs.skel.h-deps := linked_funcs1.bpf.o\n\
                       $(OUTPUT)/bench_trigger.o: $(OUTPUT)/trigger_bench.skel.h\n"
                .to_owned(),
            tests: texts(&[
                (
                    "fexit_bpf2bpf.c",
                    "#include \"helpers.h\"\n\t\"./fexit_bpf2bpf.bpf.o\",\n\
                     void serial_test_fexit_bpf2bpf(void)\n{\n",
                ),
                (
                    "btf_dump.c",
                    "\tsnprintf(f, sizeof(f), \"btf_dump_test_case_%s.bpf.o\", n);\n\
                     void test_btf_dump() {\n",
                ),
                (
                    "core_reloc.c",
                    "\t.btf_src_file = \"btf__core_reloc_\" #name \".bpf.o\",\n\
                     void test_core_reloc(void)\nvoid test_core_reloc_btfgen(void)\n",
                ),
                (
                    "other.c",
                    "#include \"other.skel.h\"\nvoid test_other(void)\n\
                     static void test_inner(void)\nvoid test_arguments(int a)\n",
                ),
            ]),
            shared: texts(&[
                ("helpers.h", "#include \"used_by_helpers.skel.h\"\n"),
                ("unused.h", "#include \"unused.skel.h\"\n"),
                ("test_progs.c", "#include \"test_progs.h\"\n"),
            ]),
            programs: [
                "fentry_test",
                "atomics",
                "linked_funcs1",
                "linked_funcs2",
                "trigger_bench",
                "fexit_bpf2bpf",
                "other",
                "used_by_helpers",
                "unused",
                "btf_dump_test_case_bitfields",
                "btf__core_reloc_arrays",
            ]
            .map(str::to_owned)
            .into(),
        }
    }

    fn programs(tests: &[&str], files: &[&str]) -> Vec<String> {
        let wanted = WantedTests {
            bench: false,
            tests: tests.iter().map(|name| name.parse().unwrap()).collect(),
            files: files.iter().map(|&file| file.to_owned()).collect(),
            programs: BTreeSet::new(),
        };
        let always = ["atomics.c", "fentry_test.c", "linked_funcs1.c", "trigger_bench.c"];
        let mut found = select(&sources(), &wanted).programs;
        for program in always {
            assert!(found.remove(program), "{program}");
        }
        found.into_iter().collect()
    }

    #[test]
    fn keeps_only_what_tests_need() {
        assert_eq!(programs(&[], &[]), [""; 0]);
        assert_eq!(programs(&["fexit_bpf2bpf"], &[]), ["fexit_bpf2bpf.c", "used_by_helpers.c"]);
        assert_eq!(programs(&["btf_dump"], &[]), ["btf_dump_test_case_bitfields.c"]);
        assert_eq!(programs(&["core_reloc_btfgen"], &[]), ["btf__core_reloc_arrays.c"]);
        assert_eq!(programs(&[], &["other.c"]), ["other.c"]);
    }

    #[test]
    fn finds_tests_that_makefile_lists() {
        let names = |file: &str| -> Vec<String> {
            tests_in(&sources().tests[file]).iter().map(ToString::to_string).collect()
        };
        assert_eq!(names("fexit_bpf2bpf.c"), ["fexit_bpf2bpf"]);
        assert_eq!(names("btf_dump.c"), ["btf_dump"]);
        assert_eq!(names("core_reloc.c"), ["core_reloc", "core_reloc_btfgen"]);
        assert_eq!(names("other.c"), ["other"]);
        let wanted =
            WantedTests { tests: ["core_reloc".parse().unwrap()].into(), ..WantedTests::default() };
        let selection = select(&sources(), &wanted);
        assert_eq!(selection.files, ["core_reloc.c".to_owned()].into());
        assert_eq!(selection.tests.len(), 2);
    }
}
