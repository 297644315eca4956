// SPDX-License-Identifier: MIT OR Apache-2.0
//! Programs that the user brings: named in a suite or on the command line, read from object files
//! before anything boots.

mod arrays;
mod btf;
mod extensions;
mod globals;
mod header;
mod object;
mod shipped;

pub use arrays::ArrayError;
pub use globals::GlobalError;
pub use object::ObjectError;
pub use shipped::Shipped;

use object::Found;
use schemars::{JsonSchema, Schema, SchemaGenerator, json_schema};
use serde::{Deserialize, Deserializer, Serialize, Serializer};
use sha2::{Digest, Sha256};
use std::{
    borrow::Cow,
    fs, io,
    path::{Path, PathBuf},
};
use tramplab_host::{
    config::{self, ConfigError, Spanned},
    regular,
};
use tramplab_model::{
    function::FunctionName,
    name::hex,
    program::{self, ProgramName},
};
use tramplab_protocol::{Mechanism, program as protocol};

/// Returns the copy of an object file that an earlier run kept, if there is one to read instead.
pub type Kept<'a> = dyn Fn(&Path) -> Option<PathBuf> + 'a;

/// A program that was read.
#[derive(Clone, Debug, PartialEq)]
pub struct Program {
    pub facts: program::Program,
    /// The function in its section's name. None for a tracepoint, a pattern or no name.
    pub function: Option<FunctionName>,
    /// Its section, if the word there is no name of a function.
    pub placeholder: Option<String>,
    /// The form in which the guest gets it.
    pub sent: protocol::Program,
}

#[derive(Debug, thiserror::Error)]
pub enum ProgramError {
    #[error("failed to read {file}: {source}", file = file.display())]
    Read { file: PathBuf, source: io::Error },
    #[error(
        "{file} has {bytes} bytes, {most} at most fit into a message to a guest: remove its DWARF \
         with `llvm-strip -g`, which keeps its BTF",
        file = file.display(),
        most = protocol::LARGEST
    )]
    TooLarge { file: PathBuf, bytes: u64 },
    #[error("{file}: {source}", file = file.display())]
    Object { file: PathBuf, source: ObjectError },
    #[error("{file}: {source}", file = file.display())]
    Global { file: PathBuf, source: GlobalError },
    #[error("{file}: {source}", file = file.display())]
    Array { file: PathBuf, source: ArrayError },
}

impl Program {
    /// Reads `FILE[:PROGRAM[,NAME=VALUE…]]`. Relative to `folder`.
    pub fn read(given: &str, folder: &Path, kept: &Kept) -> Result<Program, ProgramError> {
        let (file, name, values) = split(given);
        let file = std::path::absolute(folder.join(file))
            .map_err(|source| ProgramError::Read { file: file.into(), source })?;
        let bytes = match kept(&file) {
            // The run may be a stranger's, and its copy a link to any file.
            Some(copy) => regular::read(&copy, protocol::LARGEST as u64)
                .map_err(|source| ProgramError::Read { file: copy, source })?,
            None => own_file(&file)?,
        };
        Program::parse(&file, bytes, name, &values)
    }

    /// Parses an object. Without a name it has only one program.
    pub fn parse(
        file: &Path,
        bytes: Vec<u8>,
        name: Option<&str>,
        values: &[&str],
    ) -> Result<Program, ProgramError> {
        let file = || file.to_owned();
        let found = object::find(&bytes, name)
            .map_err(|source| ProgramError::Object { file: file(), source })?;
        let globals = globals::read(values, &bytes)
            .map_err(|source| ProgramError::Global { file: file(), source })?;
        let slots =
            arrays::slots(&bytes).map_err(|source| ProgramError::Array { file: file(), source })?;
        Ok(Program::of(found, file().display().to_string(), bytes, globals, slots))
    }

    fn of(
        found: Found,
        file: String,
        bytes: Vec<u8>,
        given: globals::Given,
        slots: Vec<protocol::Slot>,
    ) -> Program {
        let Found { name, hook, license, instructions } = found;
        let facts = program::Program {
            name,
            mechanism: hook.mechanism,
            file,
            sha256: hex(&Sha256::digest(&bytes)),
            instructions,
            globals: given.text,
        };
        let function = hook.target.as_deref().and_then(|target| target.parse().ok());
        let sent = protocol::Program {
            name: name.as_str().to_owned(),
            target: hook.target,
            license,
            object: protocol::Object(bytes.into()),
            globals: given.globals,
            slots,
            extensions: given.extensions,
        };
        let function = function.filter(|_| !facts.mechanism.is_tracepoint());
        Program { facts, function, placeholder: hook.placeholder, sent }
    }

    pub fn name(&self) -> ProgramName {
        self.facts.name
    }

    pub fn mechanism(&self) -> Mechanism {
        self.facts.mechanism
    }

    /// True if its section names a tracepoint.
    pub fn has_tracepoint(&self) -> bool {
        self.mechanism().is_tracepoint() && self.sent.target.is_some()
    }

    /// True if a group of these mechanisms measures it.
    pub fn fits(&self, mechanisms: &[Mechanism]) -> bool {
        let own = std::iter::successors(Some(self.mechanism()), |own| own.stands_for());
        own.into_iter().any(|own| mechanisms.contains(&own))
    }
}

/// The first names, for a message. A stranger's object may have any number of any length.
fn listed<'a>(names: impl Iterator<Item = &'a str>) -> String {
    const SHOWN: usize = 40;
    const LONGEST: usize = 128;
    let mut names = names.map(|name| name.chars().take(LONGEST).collect::<String>()).fuse();
    let mut shown: Vec<String> = names.by_ref().take(SHOWN).collect();
    if names.next().is_some() {
        shown.push("…".to_owned());
    }
    if shown.is_empty() { "none".to_owned() } else { shown.join(", ") }
}

/// Splits `FILE[:PROGRAM[,NAME=VALUE…]]`. Other colons are part of the file's name, or of a
/// value.
fn split(given: &str) -> (&str, Option<&str>, Vec<&str>) {
    for (at, _) in given.match_indices(':') {
        let mut words = given[at + 1..].split(',');
        let name = words.next().unwrap_or_default();
        if !name.contains(['/', ':']) {
            return (&given[..at], Some(name), words.collect());
        }
    }
    (given, None, Vec::new())
}

/// The programs of a group, which its tests measure instead of the harness' own. Suites are parsed
/// without reading object files.
#[derive(Clone, Debug, Default)]
pub struct Programs {
    given: Vec<Given>,
    read: Vec<Program>,
}

#[derive(Clone, Debug)]
struct Given {
    text: String,
    line: u64,
    column: u64,
}

impl Programs {
    /// True if the tests measure the harness' own.
    pub fn is_empty(&self) -> bool {
        self.given.is_empty() && self.read.is_empty()
    }

    /// The programs, once they were read.
    pub fn all(&self) -> &[Program] {
        &self.read
    }

    /// Those of some mechanisms.
    pub fn of(programs: &[Program], mechanisms: &[Mechanism]) -> Programs {
        let fits = |program: &&Program| program.fits(mechanisms);
        Programs { given: Vec::new(), read: programs.iter().filter(fits).cloned().collect() }
    }

    /// Reads the object files. `suite` is the file that names them, relative to its folder.
    pub fn read(&mut self, suite: &Path, kept: &Kept) -> Result<(), ConfigError> {
        let folder = suite.parent().unwrap_or(Path::new(""));
        let read = |given: &Given| {
            Program::read(&given.text, folder, kept).map_err(|error| ConfigError::Invalid {
                path: suite.to_owned(),
                line: given.line,
                column: given.column,
                message: error.to_string(),
                snippet: String::new(),
            })
        };
        self.read = self.given.iter().map(read).collect::<Result<_, _>>()?;
        Ok(())
    }
}

/// Reads the user's file, which may be a link.
fn own_file(file: &Path) -> Result<Vec<u8>, ProgramError> {
    let read = |source| ProgramError::Read { file: file.to_owned(), source };
    // A device or a pipe could be without end.
    let facts = fs::metadata(file).map_err(read)?;
    if !facts.is_file() {
        return Err(read(io::Error::other("it is no regular file")));
    }
    if facts.len() > protocol::LARGEST as u64 {
        return Err(ProgramError::TooLarge { file: file.to_owned(), bytes: facts.len() });
    }
    fs::read(file).map_err(read)
}

impl JsonSchema for Programs {
    fn schema_name() -> Cow<'static, str> {
        "Programs".into()
    }

    fn json_schema(_: &mut SchemaGenerator) -> Schema {
        json_schema!({
            "description": "BPF programs, as `FILE[:PROGRAM[,NAME=VALUE…]]`. Files are relative \
                            to this one.",
            "type": "array",
            "items": { "type": "string" },
        })
    }
}

impl Serialize for Programs {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_seq(self.given.iter().map(|given| &given.text))
    }
}

impl<'de> Deserialize<'de> for Programs {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Programs, D::Error> {
        let given = |at: Spanned<String>| {
            let (line, column) = config::place(&at);
            Given { text: at.value, line, column }
        };
        let all = Vec::<Spanned<String>>::deserialize(deserializer)?;
        Ok(Programs { given: all.into_iter().map(given).collect(), read: Vec::new() })
    }
}

#[cfg(test)]
mod tests {
    use super::{object::tests::elf, *};
    use crate::{
        Guest, Suite, kinds,
        plan::{
            self,
            tests::{guests, image},
        },
    };
    use tramplab_model::run::Accel;
    use tramplab_vm::branches::Source;

    #[test]
    fn splits_the_program_from_its_file() {
        for (given, file, program, values) in [
            ("a.bpf.o", "a.bpf.o", None, &[][..]),
            ("a,b.bpf.o", "a,b.bpf.o", None, &[]),
            ("a.bpf.o:on_connect", "a.bpf.o", Some("on_connect"), &[]),
            ("/d:e/a.bpf.o", "/d:e/a.bpf.o", None, &[]),
            ("/d:e/a.bpf.o:p", "/d:e/a.bpf.o", Some("p"), &[]),
            ("a.bpf.o:", "a.bpf.o", Some(""), &[]),
            ("a.bpf.o:p,ms=5,path=/a:b", "a.bpf.o", Some("p"), &["ms=5", "path=/a:b"]),
            ("/d:e/a.bpf.o:p,ms=5", "/d:e/a.bpf.o", Some("p"), &["ms=5"]),
            ("a.bpf.o:p,", "a.bpf.o", Some("p"), &[""]),
        ] {
            assert_eq!(split(given), (file, program, values.to_vec()), "{given}");
        }
    }

    #[test]
    fn reads_only_files_that_fit() {
        let folder = tempfile::tempdir().unwrap();
        let read = |name: &str| Program::read(name, folder.path(), &|_| None).unwrap_err();
        assert!(matches!(read("absent.bpf.o"), ProgramError::Read { .. }));
        assert!(matches!(read("."), ProgramError::Read { .. }));
        let large = fs::File::create(folder.path().join("large.bpf.o")).unwrap();
        large.set_len(protocol::LARGEST as u64 + 1).unwrap();
        assert!(matches!(read("large.bpf.o:p"), ProgramError::TooLarge { .. }));
        fs::write(folder.path().join("text.bpf.o"), "text").unwrap();
        assert!(matches!(read("text.bpf.o"), ProgramError::Object { .. }));
    }

    const SUITE: &str = "name: t\ndescription: d\nkernels: [a]\ntests:\n";

    /// Writes an object and a suite with these groups into a folder.
    fn load(folder: &Path, groups: &str) -> Result<Suite, ConfigError> {
        let programs = [
            ("fentry/vfs_read", "on_read", 2),
            ("kprobe.multi/tcp_*", "on_tcp", 2),
            ("tp_btf/x", "on_x", 2),
            ("tp/task/x", "on_classic", 2),
            ("ksyscall/getppid", "on_call", 2),
            ("lsm.s/file_open", "on_open", 2),
        ];
        fs::write(folder.join("a.bpf.o"), elf(&programs).bytes()).unwrap();
        let path = folder.join("s.yaml");
        fs::write(&path, format!("{SUITE}{groups}")).unwrap();
        crate::load(&path, &|_| None)
    }

    fn names(suite: &Suite) -> Vec<String> {
        suite.work(false).map(|work| work.test().name()).collect()
    }

    #[test]
    fn a_suites_programs_stand_for_their_mechanisms() {
        let folder = tempfile::tempdir().unwrap();
        let all = "programs: [a.bpf.o:on_read, a.bpf.o:on_tcp, a.bpf.o:on_x]";
        for (group, expected) in [
            (
                format!("lbr_waste: {{ mechanisms: all, {all} }}"),
                vec![
                    "lbr_waste/fentry=on_read@vfs_read",
                    "lbr_waste/kprobe.multi=on_tcp",
                    "lbr_waste/tp_btf=on_x",
                ],
            ),
            (
                "trigger: { mechanisms: [raw_tp, kprobe], programs: [a.bpf.o:on_classic, \
                 a.bpf.o:on_call] }"
                    .to_owned(),
                vec!["trigger/tp=on_classic", "trigger/ksyscall=on_call@getppid"],
            ),
            (
                "trigger: { mechanisms: [fmod_ret], programs: [a.bpf.o:on_open] }".to_owned(),
                vec!["trigger/lsm.s=on_open@file_open"],
            ),
            (
                format!("trigger: {{ mechanisms: [fentry], {all} }}"),
                vec!["trigger/fentry=on_read@vfs_read"],
            ),
            (
                format!("trigger: {{ mechanisms: all, {all}, targets: [vfs_open, f] }}"),
                vec![
                    "trigger/fentry=on_read@vfs_open",
                    "trigger/kprobe.multi=on_tcp@vfs_open",
                    "trigger/fentry=on_read@f",
                    "trigger/kprobe.multi=on_tcp@f",
                ],
            ),
            (
                format!("attach: {{ mechanisms: all, {all}, functions: [1, all], rounds: 1 }}"),
                vec![
                    "attach/fentry=on_read/1",
                    "attach/fentry=on_read/all",
                    "attach/kprobe.multi=on_tcp/1",
                    "attach/kprobe.multi=on_tcp/all",
                    "attach/tp_btf=on_x/1",
                    "attach/tp_btf=on_x/all",
                ],
            ),
        ] {
            let suite = load(folder.path(), &format!("  - {group}\n")).unwrap();
            assert_eq!(names(&suite), expected, "{group}");
            assert_eq!(plan::misfit(&suite), None);
        }
        let suite = load(
            folder.path(),
            "  - trigger: { mechanisms: [fexit], programs: [a.bpf.o:on_read] }\n",
        );
        assert!(plan::misfit(&suite.unwrap()).is_some());
    }

    #[test]
    fn shipped_programs_are_measured_by_each_mechanism() {
        let folder = tempfile::tempdir().unwrap();
        let group = "trigger: { mechanisms: [fentry, tp], shipped: [empty, arr_inc], hits: 2 }";
        let suite = load(folder.path(), &format!("  - {group}\n")).unwrap();
        let cells = ["fentry", "fentry=arr_inc", "tp", "tp=arr_inc"];
        assert_eq!(names(&suite), cells.map(|cell| format!("trigger/{cell}")));
        assert_eq!(plan::misfit(&suite), None);
        let sent = suite.work(false).map(|work| match work {
            kinds::Work::Trigger(work) => work.program.map(|sent| (sent.name, sent.object)),
            _ => None,
        });
        let arr_inc = Some(("arr_inc".to_owned(), protocol::Object::default()));
        assert_eq!(sent.collect::<Vec<_>>(), [None, arr_inc.clone(), None, arr_inc]);
        // The user's programs are measured alone.
        let read = Program::read("a.bpf.o:on_read", folder.path(), &|_| None).unwrap();
        assert!(suite.attaching(&[read]).is_none());
        let both = group.replace("hits: 2", "programs: [a.bpf.o:on_read]");
        let misfit = plan::misfit(&load(folder.path(), &format!("  - {both}\n")).unwrap());
        assert!(misfit.is_some_and(|why| why.contains("`shipped` or `programs`")));
    }

    /// The word only groups programs: their loader knows the function.
    #[test]
    fn programs_for_no_name_need_a_function() {
        let folder = tempfile::tempdir().unwrap();
        for (group, fits) in [
            ("trigger: { mechanisms: all, programs: [b.bpf.o] }", false),
            ("lbr_waste: { mechanisms: all, programs: [b.bpf.o] }", false),
            ("trigger: { mechanisms: all, programs: [b.bpf.o], targets: [vfs_open] }", true),
            ("lbr_waste: { mechanisms: all, programs: [b.bpf.o], targets: [vfs_open] }", true),
            // It chooses functions by itself.
            ("attach: { mechanisms: all, programs: [b.bpf.o], functions: [1], rounds: 1 }", true),
        ] {
            let object = elf(&[("kprobe/skb-1", "on_skb", 2)]).bytes();
            fs::write(folder.path().join("b.bpf.o"), object).unwrap();
            let misfit = plan::misfit(&load(folder.path(), &format!("  - {group}\n")).unwrap());
            assert_eq!(misfit.is_none(), fits, "{group}: {misfit:?}");
        }
    }

    /// A command that is not run must not look as if it hit the function.
    #[test]
    fn commands_hit_only_functions_of_programs() {
        let folder = tempfile::tempdir().unwrap();
        for (mechanisms, programs, fits) in [
            ("all", "[a.bpf.o:on_read]", true),
            ("all", "[a.bpf.o:on_x]", true),
            ("all", "[a.bpf.o:on_read, a.bpf.o:on_x]", true),
            ("all", "[a.bpf.o:on_tcp]", false),
            // The group does not measure the other one.
            ("[fentry]", "[a.bpf.o:on_read, a.bpf.o:on_tcp]", true),
        ] {
            for test in ["trigger", "lbr_waste"] {
                let group = format!(
                    "  - {test}: {{ mechanisms: {mechanisms}, programs: {programs}, trigger: sync }}\n"
                );
                let misfit = plan::misfit(&load(folder.path(), &group).unwrap());
                assert_eq!(misfit.is_none(), fits, "{test} {mechanisms} {programs}: {misfit:?}");
            }
        }
    }

    #[test]
    fn names_the_line_of_a_program_that_cannot_be_read() {
        let folder = tempfile::tempdir().unwrap();
        for bad in ["a.bpf.o", "a.bpf.o:no", "b.bpf.o"] {
            let groups = format!(
                "  - trigger:\n      mechanisms: all\n      programs:\n        - a.bpf.o:on_tcp\n\
                 \x20       - {bad}\n"
            );
            match load(folder.path(), &groups) {
                Err(ConfigError::Invalid { line: 9, .. }) => {}
                other => panic!("{bad}: {other:?}"),
            }
        }
    }

    #[test]
    fn replaces_a_suites_programs_and_drops_other_tests() {
        let folder = tempfile::tempdir().unwrap();
        let groups = "  - boot: {}\n  - trigger: { mechanisms: [fentry, fexit] }\n  - attach: { \
                      mechanisms: [kprobe], functions: [1], rounds: 1 }\nbudgets:\n  - most: { \
                      trigger.fexit.branches: 9 }\n";
        let suite = load(folder.path(), groups).unwrap();
        let read = |name: &str| {
            Program::read(&format!("a.bpf.o:{name}"), folder.path(), &|_| None).unwrap()
        };
        let attaching = suite.clone().attaching(&[read("on_read")]).unwrap();
        assert_eq!(names(&attaching), ["trigger/fentry=on_read@vfs_read"]);
        assert!(attaching.budgets.is_empty());
        assert_eq!(attaching.programs(), [&read("on_read")]);
        assert!(suite.attaching(&[read("on_tcp")]).is_none());
    }

    /// The CPU's own records are of the capturing program, and so is their delivery.
    #[test]
    fn counts_the_records_of_programs_under_tcg() {
        let folder = tempfile::tempdir().unwrap();
        let group = "lbr_waste: { mechanisms: [fentry], programs: [a.bpf.o:on_read] }";
        let suite = load(folder.path(), &format!("  - {group}\nexperiments: [deliver_records]\n"));
        let images = [image("a", None)];
        let with = |accel_named| {
            let branches = Source::Hardware(serde_json::from_str("5").unwrap());
            let guest = guests(&images, Accel::Kvm).remove(0);
            let guest = Guest { branches, accel_named, ..guest };
            plan::cells(suite.as_ref().unwrap(), &[guest], false).remove(0)
        };
        let cell = with(false);
        assert_eq!(
            (cell.accel, cell.of_driver().is_some(), cell.deliver),
            (Accel::Tcg, false, false)
        );
        assert_eq!(cell.skip, None);
        assert!(with(true).skip.is_some());
    }

    #[test]
    fn reads_the_copy_that_a_run_kept() {
        let folder = tempfile::tempdir().unwrap();
        let (file, copy) = (folder.path().join("a.bpf.o"), folder.path().join("copy"));
        fs::write(&copy, elf(&[("fexit", "a", 3)]).bytes()).unwrap();
        fs::write(&file, elf(&[("fexit", "a", 4)]).bytes()).unwrap();
        let kept = |asked: &Path| (asked == file).then(|| copy.clone());
        let program = Program::read("a.bpf.o", folder.path(), &kept).unwrap();
        assert_eq!(program.facts.instructions, 3);
        assert_eq!(Path::new(&program.facts.file), file);
        // A stranger's copy may be a link to any file.
        fs::remove_file(&copy).unwrap();
        std::os::unix::fs::symlink(&file, &copy).unwrap();
        let linked = Program::read("a.bpf.o", folder.path(), &kept).unwrap_err();
        assert!(matches!(&linked, ProgramError::Read { file, .. } if *file == copy), "{linked}");
    }
}
