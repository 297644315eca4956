// SPDX-License-Identifier: MIT OR Apache-2.0
//! Reads the programs of a BPF object file: names, sections, sizes. libbpf reads the rest in the
//! guest.

use super::{
    header::{self, HeaderError},
    listed,
};
use crate::symbols::named;
use object::{
    Endianness, Object as _, ObjectSection as _, ObjectSymbol as _, SectionKind, SymbolKind,
    read::elf::{ElfFile64, ElfSymbol64},
};
use tramplab_model::{
    function::{FunctionName, NotAFunction},
    program::{NotAProgram, ProgramName},
};
use tramplab_protocol::{Mechanism, mechanism::Site};

/// Bytes of an instruction.
const INSTRUCTION: u64 = 8;
/// The section of functions that programs call.
pub const FUNCTIONS: &str = ".text";
/// The sections of extensions.
const EXTENSION: &str = "freplace";

/// A program of an object.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Found {
    pub name: ProgramName,
    pub hook: Hook,
    pub license: String,
    pub instructions: u32,
}

/// The meaning of a section's name.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Hook {
    pub mechanism: Mechanism,
    /// The function or tracepoint. None for a pattern or no name.
    pub target: Option<String>,
    /// The section, if its word is no name: the program's own loader knows the function.
    pub placeholder: Option<String>,
}

#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum ObjectError {
    #[error("it is no BPF object: {0}")]
    Header(#[from] HeaderError),
    #[error("it is no BPF object: {0}; expected the output of `clang -target bpf -c`")]
    NotBpf(String),
    #[error("it has no BTF (section .BTF): compile it with `clang -g -target bpf`")]
    NoBtf,
    #[error("it has no program: expected a function with SEC(\"fentry/…\") or the like")]
    Empty,
    #[error("it has no program `{name}`; there are: {known}")]
    Unknown { name: String, known: String },
    #[error(
        "it has several programs: name one behind the file, as in FILE:{first}; there are: {known}"
    )]
    Several { first: String, known: String },
    #[error(transparent)]
    Name(#[from] NotAProgram),
    #[error(
        "the program {program} is for SEC(\"{section}\"), which is not measured; expected one of: \
         {known}",
        known = Mechanism::ALL.map(Mechanism::name).join(", ")
    )]
    Section { program: String, section: String },
}

/// Finds a program by its name; without a name, the only one.
pub fn find(bytes: &[u8], name: Option<&str>) -> Result<Found, ObjectError> {
    header::check(bytes)?;
    let not_bpf = |why: &dyn std::fmt::Display| ObjectError::NotBpf(why.to_string());
    let file = ElfFile64::<Endianness>::parse(bytes).map_err(|error| not_bpf(&error))?;
    if file.section_by_name(".BTF").is_none() {
        return Err(ObjectError::NoBtf);
    }
    let mut programs = Vec::new();
    for (symbol, name) in named(file.symbols(), bytes.len()) {
        if let Some(section) = section(&file, &symbol).map_err(|error| not_bpf(&error))? {
            programs.push((name, section, symbol.size()));
        }
    }
    let known = || listed(programs.iter().map(|(name, ..)| *name));
    // Extensions are attached to programs, never measured themselves.
    let is_measured = |(_, section, _): &&(&str, &str, u64)| extended(section).is_none();
    let measured: Vec<_> = programs.iter().filter(is_measured).copied().collect();
    let (name, section, size) = match (name, &measured[..]) {
        (None, []) => return Err(ObjectError::Empty),
        (Some(_), _) if programs.is_empty() => return Err(ObjectError::Empty),
        (None, [only]) => *only,
        (None, [(first, ..), ..]) => {
            return Err(ObjectError::Several { first: (*first).to_owned(), known: known() });
        }
        (Some(name), _) => {
            let found = programs.iter().find(|(known, ..)| *known == name);
            *found.ok_or_else(|| ObjectError::Unknown { name: name.to_owned(), known: known() })?
        }
    };
    let license = file.section_by_name("license").and_then(|section| section.data().ok());
    let license = license.and_then(|bytes| bytes.split(|byte| *byte == 0).next());
    Ok(Found {
        name: name.parse()?,
        hook: Hook::of(name, section)?,
        license: String::from_utf8_lossy(license.unwrap_or_default()).into_owned(),
        instructions: u32::try_from(size / INSTRUCTION).unwrap_or(u32::MAX),
    })
}

pub type File<'a> = ElfFile64<'a, Endianness>;

/// Returns true if a symbol is a program.
pub fn is_program(file: &File<'_>, symbol: &ElfSymbol64<'_, '_, Endianness>) -> bool {
    section(file, symbol).is_ok_and(|section| section.is_some())
}

/// The function in the name of an extension's section, perhaps empty. None for another section.
pub fn extended(section: &str) -> Option<&str> {
    let words = section.strip_prefix('?').unwrap_or(section);
    let (kind, function) = words.split_once('/').unwrap_or((words, ""));
    (kind == EXTENSION).then_some(function)
}

/// The name of a program's section. None if the symbol is none.
fn section<'a>(
    file: &File<'a>,
    symbol: &ElfSymbol64<'a, '_, Endianness>,
) -> object::Result<Option<&'a str>> {
    Ok(code(file, symbol)?.filter(|&name| name != FUNCTIONS))
}

/// The name of the section of a program or function. None if the symbol is neither.
pub fn code<'a>(
    file: &File<'a>,
    symbol: &ElfSymbol64<'a, '_, Endianness>,
) -> object::Result<Option<&'a str>> {
    let index = symbol.section_index().filter(|_| symbol.kind() == SymbolKind::Text);
    let Some(index) = index else { return Ok(None) };
    let section = file.section_by_index(index)?;
    let name = section.name()?;
    let is_code = section.kind() == SectionKind::Text;
    Ok((is_code && symbol.size() > 0).then_some(name))
}

/// The tracepoints of all system calls. Programs of no other one may sleep.
const SYSCALLS: [&str; 2] = ["sys_enter", "sys_exit"];

impl Hook {
    /// Reads a section's name, as libbpf does.
    fn of(program: &str, section: &str) -> Result<Hook, ObjectError> {
        // A program that is not loaded by default.
        let words = section.strip_prefix('?').unwrap_or(section);
        let (kind, target) = words.split_once('/').map_or((words, None), |(kind, target)| {
            (kind, Some(target).filter(|target| !target.is_empty()))
        });
        let of_syscalls = |mechanism: &Mechanism| match mechanism.site() {
            Site::SyscallTracepoint => target.is_none_or(|name| SYSCALLS.contains(&name)),
            Site::SyscallEvent => target.is_none_or(|name| name.starts_with("syscalls/sys_")),
            _ => true,
        };
        let mechanism = Mechanism::of_section(kind).filter(of_syscalls);
        let mechanism = mechanism.ok_or_else(|| ObjectError::Section {
            program: program.to_owned(),
            section: section.to_owned(),
        })?;
        let (target, placeholder) = match target {
            // The agent's own binary is traced, not that of the section.
            Some(_) if mechanism.is_user() => (None, None),
            Some(target) if !mechanism.is_tracepoint() => match target.parse::<FunctionName>() {
                Ok(_) => (Some(target), None),
                Err(NotAFunction::Pattern(_)) => (None, None),
                Err(NotAFunction::Malformed(_)) => (None, Some(words)),
            },
            target => (target, None),
        };
        let (target, placeholder) = (target.map(str::to_owned), placeholder.map(str::to_owned));
        Ok(Hook { mechanism, target, placeholder })
    }
}

#[cfg(test)]
pub(super) mod tests {
    use super::*;

    const BPF: u16 = 247;

    /// An object file with these sections and, in each, a function of the same index.
    pub struct Elf {
        btf: bool,
        /// Section, function, instructions.
        programs: Vec<(&'static str, &'static str, u64)>,
        maps: Option<Maps>,
    }

    /// A section with one map.
    #[derive(Clone)]
    pub struct Maps {
        pub btf: Vec<u8>,
        pub name: &'static str,
        pub bytes: u64,
        /// Places in the section, and symbols: the programs' are numbered from 1.
        pub relocations: Vec<(u64, u32)>,
    }

    impl Elf {
        pub fn with(self, maps: Maps) -> Elf {
            Elf { maps: Some(maps), ..self }
        }

        /// Lays out: header, contents, names, symbols, section headers.
        pub fn bytes(&self) -> Vec<u8> {
            let mut sections: Vec<(&str, u32, u64, Vec<u8>)> = vec![("", 0, 0, vec![])];
            for (section, _, instructions) in &self.programs {
                let code = vec![0x95; (instructions * INSTRUCTION) as usize];
                sections.push((section, 1, 6, code));
            }
            sections.push(("license", 1, 3, b"GPL\0".to_vec()));
            if self.btf {
                let btf = self.maps.as_ref().map_or_else(|| vec![0; 8], |maps| maps.btf.clone());
                sections.push((".BTF", 1, 0, btf));
            }
            let (mut symbols, mut names) = (vec![0; 24], vec![0]);
            // Global, a function or a variable.
            let mut symbol = |kind: u8, section: usize, name: &str, bytes: u64| {
                symbols.extend((names.len() as u32).to_le_bytes());
                symbols.extend([0x10 | kind, 0]);
                symbols.extend((section as u16).to_le_bytes());
                symbols.extend(0_u64.to_le_bytes());
                symbols.extend(bytes.to_le_bytes());
                names.extend(name.bytes().chain([0]));
            };
            for (index, (_, function, instructions)) in self.programs.iter().enumerate() {
                symbol(2, index + 1, function, instructions * INSTRUCTION);
            }
            if let Some(maps) = &self.maps {
                symbol(1, sections.len(), maps.name, maps.bytes);
                sections.push((".maps", 1, 3, vec![0; maps.bytes as usize]));
                let word = |&(place, symbol): &(u64, u32)| [place, u64::from(symbol) << 32 | 1];
                let words = maps.relocations.iter().flat_map(word);
                let relocations = words.flat_map(u64::to_le_bytes).collect();
                sections.push((".rel.maps", 9, 0, relocations));
            }
            let strings = sections.len() as u32;
            sections.push((".strtab", 3, 0, names));
            sections.push((".symtab", 2, 0, symbols));
            self.laid_out(&sections, strings)
        }

        fn laid_out(&self, sections: &[(&str, u32, u64, Vec<u8>)], strings: u32) -> Vec<u8> {
            let (mut body, mut names, mut headers) = (Vec::new(), vec![0], Vec::new());
            for (index, (name, kind, flags, contents)) in sections.iter().enumerate() {
                let [link, info, size] = match kind {
                    2 => [strings, 1, 24],
                    9 => [strings + 1, index as u32 - 1, 16],
                    _ => [0, 1, 0],
                };
                headers.extend((names.len() as u32).to_le_bytes());
                headers.extend(kind.to_le_bytes());
                let place = 64 + body.len() as u64;
                let numbers = [*flags, 0, place, contents.len() as u64];
                headers.extend(numbers.iter().flat_map(|number| number.to_le_bytes()));
                headers.extend([link, info].iter().flat_map(|number| number.to_le_bytes()));
                headers.extend([1, u64::from(size)].iter().flat_map(|number| number.to_le_bytes()));
                names.extend(name.bytes().chain([0]));
                body.extend(contents);
            }
            let place = 64 + body.len() as u64;
            headers.extend([0; 4]);
            headers.extend(3_u32.to_le_bytes());
            let numbers = [0, 0, place, names.len() as u64, 0, 1, 0];
            headers.extend(numbers.iter().flat_map(|number: &u64| number.to_le_bytes()));
            body.extend(names);
            let mut file = vec![0x7f, b'E', b'L', b'F', 2, 1, 1];
            file.resize(16, 0);
            file.extend([1, BPF].iter().flat_map(|number| number.to_le_bytes()));
            file.extend(1_u32.to_le_bytes());
            let table = 64 + body.len() as u64;
            file.extend([0, 0, table].iter().flat_map(|number: &u64| number.to_le_bytes()));
            file.extend(0_u32.to_le_bytes());
            let count = sections.len() as u16 + 1;
            file.extend(
                [64, 0, 0, 64, count, count - 1].iter().flat_map(|n: &u16| n.to_le_bytes()),
            );
            [file, body, headers].concat()
        }
    }

    pub fn elf(programs: &[(&'static str, &'static str, u64)]) -> Elf {
        Elf { btf: true, programs: programs.to_vec(), maps: None }
    }

    #[test]
    fn finds_a_program_with_its_size_and_licence() {
        let programs = [(".text", "helper", 4), ("?fentry.s/do_open", "on_open", 3)];
        let one = elf(&programs).bytes();
        let target = Some("do_open".to_owned());
        let hook = Hook { mechanism: Mechanism::FentrySleepable, target, placeholder: None };
        let name = "on_open".parse().unwrap();
        let found = Found { name, hook, license: "GPL".to_owned(), instructions: 3 };
        assert_eq!(find(&one, None), Ok(found.clone()));
        assert_eq!(find(&one, Some("on_open")), Ok(found));
    }

    #[test]
    fn rejects_what_it_cannot_measure() {
        let (a, b) = (("fentry/f", "a", 2), ("kprobe", "b", 2));
        let known = "a, b".to_owned();
        let table = [
            (
                elf(&[a, b]),
                None,
                Some(ObjectError::Several { first: "a".to_owned(), known: known.clone() }),
            ),
            (elf(&[a, b]), Some("b"), None),
            (elf(&[a, b]), Some("c"), Some(ObjectError::Unknown { name: "c".to_owned(), known })),
            (elf(&[]), None, Some(ObjectError::Empty)),
            (elf(&[(".text", "helper", 1)]), Some("helper"), Some(ObjectError::Empty)),
            (Elf { btf: false, ..elf(&[a]) }, None, Some(ObjectError::NoBtf)),
            (
                elf(&[("xdp", "a", 2)]),
                None,
                Some(ObjectError::Section { program: "a".to_owned(), section: "xdp".to_owned() }),
            ),
            (
                elf(&[("fentry", "a.cold", 2)]),
                None,
                Some(ObjectError::Name("a.cold".parse::<ProgramName>().unwrap_err())),
            ),
        ];
        for (elf, name, expected) in table {
            assert_eq!(find(&elf.bytes(), name).err(), expected, "{:?} {name:?}", elf.programs);
        }
        let whole = elf(&[a]).bytes();
        let error = find(&whole[..whole.len() - 1], None);
        assert!(matches!(error, Err(ObjectError::NotBpf(_))), "{error:?}");
    }

    #[test]
    fn reads_sections_as_libbpf_does() {
        for (section, mechanism, target) in [
            ("fentry/tcp_connect", Mechanism::Fentry, Some("tcp_connect")),
            ("?fexit.s", Mechanism::FexitSleepable, None),
            ("fentry/", Mechanism::Fentry, None),
            ("fentry/xfs:xfs_fs_free", Mechanism::Fentry, Some("xfs:xfs_fs_free")),
            ("kprobe.multi/tcp_*", Mechanism::KprobeMulti, None),
            ("kprobe.session", Mechanism::KprobeSession, None),
            ("fsession.multi.s", Mechanism::FsessionMulti, None),
            ("raw_tracepoint/sched_switch", Mechanism::RawTp, Some("sched_switch")),
            ("tp/task/task_rename", Mechanism::Tp, Some("task/task_rename")),
            ("tracepoint/syscalls/sys_enter_open", Mechanism::Tp, Some("syscalls/sys_enter_open")),
            ("ksyscall/getppid", Mechanism::Ksyscall, Some("getppid")),
            ("lsm/file_open", Mechanism::Lsm, Some("file_open")),
            ("lsm.s/bpf", Mechanism::LsmSleepable, Some("bpf")),
            ("kretsyscall/getppid", Mechanism::Kretsyscall, Some("getppid")),
            ("tp_btf/sched_switch", Mechanism::TpBtf, Some("sched_switch")),
            // The agent's binary is probed, whatever the section names.
            ("uprobe.s//bin/sh:main+0x4", Mechanism::UprobeSleepable, None),
            ("uretprobe.multi//bin/sh:*", Mechanism::UretprobeMulti, None),
            ("usdt/libc.so.6:libc:setjmp", Mechanism::Usdt, None),
            ("tp_btf.s/sys_exit", Mechanism::TpBtfSleepable, Some("sys_exit")),
            (
                "tp.s/syscalls/sys_enter_open",
                Mechanism::TpSleepable,
                Some("syscalls/sys_enter_open"),
            ),
        ] {
            let target = target.map(str::to_owned);
            let hook = Hook { mechanism, target, placeholder: None };
            assert_eq!(Hook::of("p", section), Ok(hook));
        }
        for section in
            ["perf_event", "kprobe.s", "tp.s/a/b", "lsm_cgroup/f", "fentryx", "tp_btf.s/a"]
        {
            let error = Hook::of("p", section);
            assert!(matches!(error, Err(ObjectError::Section { .. })), "{section}: {error:?}");
        }
        for section in ["kprobe/do_open+0x10", "kprobe/skb-1", "fentry/xfs:a:b"] {
            let Hook { target, placeholder, .. } = Hook::of("p", section).unwrap();
            assert_eq!((target, placeholder.as_deref()), (None, Some(section)));
        }
    }
}
