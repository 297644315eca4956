// SPDX-License-Identifier: MIT OR Apache-2.0
//! Tracers beside a measured program, on its function or on others. With several tracers on a
//! function ftrace takes another path than with one.

use crate::functions::number;
use crate::{Functions, Mechanism, mechanism::Site};
use serde::{Deserialize, Serialize};
use std::{
    fmt,
    num::{NonZeroU8, NonZeroU32},
    str::FromStr,
};

/// Empty programs of one mechanism, ftrace's own tracer, or a live patch.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(try_from = "String", into = "String")]
#[cfg_attr(feature = "schema", schemars(extend("pattern" = crate::schema::beside())))]
pub enum Beside {
    /// So many programs on the measured function: `kprobe.multi`, `7xfentry`.
    Programs(Mechanism, NonZeroU8),
    /// A program on other functions: `kprobe.multi:1000`, `fentry.multi:12x1000`. The measured
    /// function is never among them.
    Others(Mechanism, Functions),
    /// ftrace's tracer `function` on the measured function. Every kernel with ftrace has it.
    FunctionTracer,
    /// The same on so many other functions: `function_tracer:1`. ftrace walks all functions for
    /// each name in its filter, so there are few.
    FunctionTracerOthers(NonZeroU8),
    /// A live patch of the measured function: the tree's sample, which replaces
    /// `cmdline_proc_show`.
    Livepatch,
}

const FUNCTION_TRACER: &str = "function_tracer";
const LIVEPATCH: &str = "livepatch";
/// The module of the tree's sample of a live patch (K `samples/livepatch/livepatch-sample.c`).
pub const LIVEPATCH_MODULE: &str = "livepatch_sample";
/// The name of `function_tracer:1` in old runs. Its function was always `kernel_restart`.
const FUNCTION_TRACER_ELSEWHERE: &str = "function_tracer_elsewhere";
/// Stands before the number of other functions. No mechanism's name has it.
const MARK: char = ':';

impl Beside {
    /// One program on the measured function.
    pub fn program(mechanism: Mechanism) -> Beside {
        Beside::Programs(mechanism, NonZeroU8::MIN)
    }

    /// None if it is no program.
    pub fn mechanism(self) -> Option<Mechanism> {
        match self {
            Beside::Programs(mechanism, _) | Beside::Others(mechanism, _) => Some(mechanism),
            Beside::FunctionTracer | Beside::FunctionTracerOthers(_) | Beside::Livepatch => None,
        }
    }

    /// Returns true if it attaches to other functions than the measured ones.
    pub fn is_of_others(self) -> bool {
        matches!(self, Beside::Others(..) | Beside::FunctionTracerOthers(_))
    }

    /// Returns true if it can attach beside a program of a mechanism.
    pub fn fits(self, measured: Mechanism) -> bool {
        match self {
            // `fmod_ret` attaches to few functions, so it is measured on one of its own. So are
            // those of hooks and system calls. Of a site, any code may sleep or none.
            Beside::Programs(beside, _) => {
                let is_of_any = beside.is_tracepoint() || beside.site() == Site::Function;
                measured.is_tracepoint() == beside.is_tracepoint()
                    && !measured.is_user()
                    && (measured.site() == beside.site() || is_of_any && !beside.sleeps())
            }
            Beside::Others(..) => !measured.is_user(),
            Beside::Livepatch => measured.site() == Site::Function,
            Beside::FunctionTracer | Beside::FunctionTracerOthers(_) => {
                !measured.is_tracepoint() && !measured.is_user()
            }
        }
    }

    /// Parses a name. `find` finds a mechanism by its name, which metrics spell in another way.
    pub fn parse(
        text: &str,
        find: impl Fn(&str) -> Option<Mechanism>,
    ) -> Result<Beside, NotBeside> {
        let shown = || text.chars().take(80).collect::<String>();
        match text {
            FUNCTION_TRACER => return Ok(Beside::FunctionTracer),
            LIVEPATCH => return Ok(Beside::Livepatch),
            FUNCTION_TRACER_ELSEWHERE => {
                return Ok(Beside::FunctionTracerOthers(NonZeroU8::MIN));
            }
            _ => {}
        }
        if let Some((FUNCTION_TRACER, functions)) = text.split_once(MARK) {
            let functions = number(functions).and_then(|functions| functions.try_into().ok());
            let functions = functions.ok_or_else(|| NotBeside::Traced(shown()))?;
            return Ok(Beside::FunctionTracerOthers(functions));
        }
        let kernel = |name: &str| find(name).filter(|found| Mechanism::KERNEL.contains(found));
        let found = |name: &str| kernel(name).ok_or_else(|| NotBeside::Unknown(shown()));
        if let Some((name, functions)) = text.split_once(MARK) {
            let mechanism = found(name)?;
            let functions: Functions =
                functions.parse().map_err(|_| NotBeside::Functions(shown()))?;
            if let Functions::Links { .. } = functions
                && !mechanism.is_multi()
            {
                return Err(NotBeside::LinkEach(shown(), mechanism));
            }
            return Ok(Beside::Others(mechanism, functions));
        }
        let is_numbered = text.starts_with(|c: char| c.is_ascii_digit());
        let Some((programs, name)) = text.split_once('x').filter(|_| is_numbered) else {
            return Ok(Beside::program(found(text)?));
        };
        let programs = number(programs).and_then(|programs| programs.try_into().ok());
        let programs = programs.ok_or_else(|| NotBeside::Programs(shown()))?;
        Ok(Beside::Programs(found(name)?, programs))
    }

    /// The part that a set has only once.
    fn key(self) -> Beside {
        match self {
            Beside::Programs(mechanism, _) => Beside::program(mechanism),
            Beside::Others(mechanism, _) => Beside::Others(mechanism, Functions::All),
            Beside::FunctionTracerOthers(_) => Beside::FunctionTracerOthers(NonZeroU8::MIN),
            Beside::FunctionTracer | Beside::Livepatch => self,
        }
    }

    /// The module that the guest has to load.
    pub fn module(self) -> Option<&'static str> {
        (self == Beside::Livepatch).then_some(LIVEPATCH_MODULE)
    }
}

impl fmt::Display for Beside {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Beside::Programs(mechanism, NonZeroU8::MIN) => f.pad(mechanism.name()),
            Beside::Programs(mechanism, programs) => f.pad(&format!("{programs}x{mechanism}")),
            Beside::Others(mechanism, functions) => f.pad(&format!("{mechanism}{MARK}{functions}")),
            Beside::FunctionTracer => f.pad(FUNCTION_TRACER),
            Beside::FunctionTracerOthers(functions) => {
                f.pad(&format!("{FUNCTION_TRACER}{MARK}{functions}"))
            }
            Beside::Livepatch => f.pad(LIVEPATCH),
        }
    }
}

#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum NotBeside {
    #[error(
        "unknown tracer `{0}`, expected TRACER, PROGRAMSxTRACER (7xfentry) or TRACER:FUNCTIONS \
         (kprobe.multi:1000) of one of: {names}; {FUNCTION_TRACER}, \
         {FUNCTION_TRACER}{MARK}FUNCTIONS or {LIVEPATCH}",
        names = Mechanism::KERNEL.map(Mechanism::name).join(", ")
    )]
    Unknown(String),
    #[error("`{0}`: expected a number of programs from 1 to 255 before the `x`, as in 7xfentry")]
    Programs(String),
    #[error(
        "`{0}`: expected a number of other functions behind the `{MARK}`, LINKSxFUNCTIONS or \
         `all`, as in kprobe.multi:1000"
    )]
    Functions(String),
    #[error(
        "`{0}`: expected 1 to 255 other functions behind the `{MARK}`, as in function_tracer:1"
    )]
    Traced(String),
    #[error("`{0}`: {1} has a link for each function; give only the number of functions")]
    LinkEach(String, Mechanism),
    #[error("`{0}` and `{1}`: name each once; two programs of a tracer are 2xfentry")]
    Twice(Beside, Beside),
    #[error("tracers of other functions are limited to {MOST}; leave out some")]
    TooMany,
}

impl FromStr for Beside {
    type Err = NotBeside;

    fn from_str(name: &str) -> Result<Beside, NotBeside> {
        Beside::parse(name, |name| name.parse().ok())
    }
}

crate::by_text!(Beside, NotBeside);

/// Functions that a mechanism was attached to beside the measured one.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(deny_unknown_fields)]
pub struct Others {
    pub mechanism: Mechanism,
    /// Functions attached to.
    pub functions: u32,
    /// Links made.
    pub links: u32,
    /// Functions that the kernel refused. Others replace them, unless all were asked for.
    pub refused: u32,
}

/// A set of tracers; empty for most measurements.
#[derive(
    Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize,
)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(try_from = "Vec<Beside>", into = "Vec<Beside>")]
#[cfg_attr(feature = "schema", schemars(extend("uniqueItems" = true)))]
pub struct BesideSet {
    /// By mechanism.
    programs: [u8; Mechanism::KERNEL.len()],
    others: [Option<(Mechanism, Functions)>; MOST],
    function_tracer: bool,
    /// The number of other functions that ftrace's tracer traces.
    traced_others: Option<NonZeroU8>,
    livepatch: bool,
}

/// The most groups of other functions.
const MOST: usize = 4;

impl BesideSet {
    /// The order of the list does not matter.
    pub fn of(list: impl IntoIterator<Item = Beside>) -> Result<BesideSet, NotBeside> {
        let mut list: Vec<Beside> = list.into_iter().collect();
        list.sort_unstable();
        // Numbers do not change the order of the keys.
        if let Some(pair) = list.windows(2).find(|pair| pair[0].key() == pair[1].key()) {
            return Err(NotBeside::Twice(pair[0], pair[1]));
        }
        let mut set = BesideSet::default();
        for beside in list {
            match beside {
                Beside::Programs(mechanism, programs) => {
                    let place = Mechanism::KERNEL.iter().position(|known| *known == mechanism);
                    set.programs[place.expect("one of all")] = programs.get();
                }
                Beside::Others(mechanism, functions) => {
                    let place = set.others.iter_mut().find(|place| place.is_none());
                    *place.ok_or(NotBeside::TooMany)? = Some((mechanism, functions));
                }
                Beside::FunctionTracer => set.function_tracer = true,
                Beside::FunctionTracerOthers(functions) => set.traced_others = Some(functions),
                Beside::Livepatch => set.livepatch = true,
            }
        }
        Ok(set)
    }

    pub fn is_empty(&self) -> bool {
        *self == BesideSet::default()
    }

    /// In the order of the name.
    pub fn iter(self) -> impl Iterator<Item = Beside> {
        let programs = Mechanism::KERNEL.into_iter().zip(self.programs);
        let programs =
            programs.filter_map(|(of, number)| Some(Beside::Programs(of, NonZeroU8::new(number)?)));
        let others = self.others().map(|(of, functions)| Beside::Others(of, functions));
        programs
            .chain(others)
            .chain(self.function_tracer.then_some(Beside::FunctionTracer))
            .chain(self.traced_others.map(Beside::FunctionTracerOthers))
            .chain(self.livepatch.then_some(Beside::Livepatch))
    }

    /// Returns true if something is attached to other functions than the measured one.
    pub fn has_others(self) -> bool {
        self.others().next().is_some() || self.traced_others.is_some()
    }

    /// The programs on other functions.
    pub fn others(self) -> impl Iterator<Item = (Mechanism, Functions)> {
        self.others.into_iter().flatten()
    }

    /// The number of tracers that are attached at once: one for each of the measured functions, if
    /// there are many, one for each of the other functions, and those on the measured function.
    /// All functions are `u32::MAX`.
    pub fn attached_with(self, functions: Option<Functions>) -> u32 {
        let of = |functions: Functions| functions.count().map_or(u32::MAX, NonZeroU32::get);
        let number = |beside| match beside {
            Beside::Programs(_, programs) => programs.get().into(),
            Beside::Others(_, functions) => of(functions),
            Beside::FunctionTracer | Beside::Livepatch => 1,
            Beside::FunctionTracerOthers(functions) => functions.get().into(),
        };
        let measured = functions.map_or(0, of);
        self.iter().fold(measured, |sum, beside| sum.saturating_add(number(beside)))
    }

    /// The name of a measurement with its tracers: `fentry`, `fentry+kprobe.multi+function_tracer`.
    pub fn with(self, measured: impl fmt::Display) -> String {
        self.iter().fold(measured.to_string(), |name, beside| format!("{name}+{beside}"))
    }
}

impl TryFrom<Vec<Beside>> for BesideSet {
    type Error = NotBeside;

    fn try_from(list: Vec<Beside>) -> Result<BesideSet, NotBeside> {
        BesideSet::of(list)
    }
}

impl From<BesideSet> for Vec<Beside> {
    fn from(set: BesideSet) -> Vec<Beside> {
        set.iter().collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The names of all tracers with one program are those of earlier versions, in their order.
    #[test]
    fn names_tracers_as_before() {
        let names = Mechanism::KERNEL.map(Mechanism::name).into_iter();
        let names: Vec<&str> =
            names.chain([FUNCTION_TRACER, "function_tracer:1", LIVEPATCH]).collect();
        let text = serde_json::to_string(&names).unwrap();
        let set: BesideSet = serde_json::from_str(&text).unwrap();
        assert_eq!(set.with("fentry"), format!("fentry+{}", names.join("+")));
        assert_eq!(serde_json::to_string(&set).unwrap(), text);
        // The order of the list does not matter.
        let mut list = Vec::from(set);
        list.reverse();
        assert_eq!(BesideSet::of(list), Ok(set));
        assert_eq!(BesideSet::default().with(Mechanism::KprobeMulti), "kprobe.multi");
    }

    #[test]
    fn parses_numbers_of_programs_and_of_other_functions() {
        let some = |number: u32| number.try_into().unwrap();
        let few = |number: u8| number.try_into().unwrap();
        let links = Functions::Links { links: some(12), each: some(1000) };
        for (name, beside) in [
            ("37xfentry", Beside::Programs(Mechanism::Fentry, few(37))),
            ("2xkprobe.multi", Beside::Programs(Mechanism::KprobeMulti, few(2))),
            ("fentry:1000", Beside::Others(Mechanism::Fentry, Functions::Count(some(1000)))),
            ("fentry.multi:all", Beside::Others(Mechanism::FentryMulti, Functions::All)),
            ("kprobe.multi:12x1000", Beside::Others(Mechanism::KprobeMulti, links)),
            ("function_tracer:30", Beside::FunctionTracerOthers(NonZeroU8::new(30).unwrap())),
        ] {
            assert_eq!(name.parse(), Ok(beside), "{name}");
            assert_eq!(beside.to_string(), name);
        }
        assert_eq!("1xfexit".parse(), Ok(Beside::program(Mechanism::Fexit)));
        let set = ["fentry.multi:1", "2xfexit", "fentry.multi"].map(|name| name.parse().unwrap());
        let set = BesideSet::of(set).unwrap();
        assert_eq!(set.with("fentry"), "fentry+2xfexit+fentry.multi+fentry.multi:1");
        assert_eq!(set.others().collect::<Vec<_>>().len(), 1);
    }

    #[test]
    fn counts_all_that_is_attached_at_once() {
        let set = |names: &[&str]| BesideSet::of(names.iter().map(|name| name.parse().unwrap()));
        for (names, functions, expected) in [
            (&[][..], None, 0),
            (&[], Some("100"), 100),
            (&[], Some("2x50"), 100),
            (&[], Some("all"), u32::MAX),
            (&["fentry:60"], Some("60"), 120),
            (&["fentry:all"], Some("1"), u32::MAX),
            (&["60xfentry", "60xfexit"], None, 120),
            (&["60xfentry", "kprobe.multi:12x10"], None, 180),
            (&["function_tracer", "function_tracer:3"], None, 4),
            (&["fentry.multi:4294967295", "fexit"], Some("9"), u32::MAX),
        ] {
            let functions = functions.map(|text| text.parse().unwrap());
            let number = set(names).unwrap().attached_with(functions);
            assert_eq!(number, expected, "{names:?} {functions:?}");
        }
    }

    /// Stored runs have the old name.
    #[test]
    fn reads_the_former_name_of_a_tracer_of_another_function() {
        let old = BesideSet::of([FUNCTION_TRACER_ELSEWHERE.parse().unwrap()]).unwrap();
        assert_eq!(old.with("fentry"), "fentry+function_tracer:1");
        assert!(old.has_others());
        assert!(!BesideSet::of([Beside::FunctionTracer]).unwrap().has_others());
    }

    #[test]
    fn rejects_what_is_no_tracer_and_says_what_is() {
        for (text, words) in [
            (r#"["function"]"#, &["`function`", "function_tracer:FUNCTIONS", "7xfentry"][..]),
            (r#"["2x"]"#, &["`2x`", "raw_tp"]),
            (r#"["xfentry"]"#, &["`xfentry`"]),
            (r#"["2xfunction_tracer"]"#, &["`2xfunction_tracer`"]),
            (r#"["2xlivepatch"]"#, &["`2xlivepatch`"]),
            (r#"["livepatch:1"]"#, &["`livepatch:1`"]),
            (r#"["livepatch", "livepatch"]"#, &["`livepatch` and `livepatch`: name each once"]),
            (r#"["2xfunction_tracer:10"]"#, &["`2xfunction_tracer:10`"]),
            (r#"["function_tracer:0"]"#, &["`function_tracer:0`", "as in function_tracer:1"]),
            (r#"["function_tracer:2x3"]"#, &["`function_tracer:2x3`", "1 to 255 other"]),
            (r#"["function_tracer:256"]"#, &["`function_tracer:256`", "1 to 255 other"]),
            (r#"["function_tracer:all"]"#, &["`function_tracer:all`", "1 to 255 other"]),
            (
                r#"["function_tracer_elsewhere", "function_tracer:2"]"#,
                &["`function_tracer:1` and `function_tracer:2`: name each once"],
            ),
            (r#"["uprobe"]"#, &["`uprobe`", "raw_tp"]),
            (r#"["0xfentry"]"#, &["`0xfentry`", "from 1 to 255", "7xfentry"]),
            (r#"["256xfentry"]"#, &["from 1 to 255"]),
            (r#"["2x3xfentry"]"#, &["`2x3xfentry`"]),
            (r#"["2xfentry:10"]"#, &["`2xfentry:10`"]),
            (r#"["fentry:"]"#, &["`fentry:`", "LINKSxFUNCTIONS", "kprobe.multi:1000"]),
            (r#"["fentry:0"]"#, &["`fentry:0`"]),
            (r#"["fentry:+1"]"#, &["`fentry:+1`"]),
            (r#"["fentry:12x10"]"#, &["fentry has a link for each function"]),
            (r#"["fentry", "2xfentry"]"#, &["`fentry` and `2xfentry`: name each once"]),
            (r#"["fentry:1", "fentry:all"]"#, &["`fentry:1` and `fentry:all`"]),
        ] {
            let error = serde_json::from_str::<BesideSet>(text).unwrap_err().to_string();
            assert!(words.iter().all(|word| error.contains(word)), "{text}: {error}");
        }
        let many = |number| {
            let others = Mechanism::KERNEL.into_iter().take(number);
            BesideSet::of(others.map(|mechanism| Beside::Others(mechanism, Functions::All)))
        };
        assert_eq!(many(MOST).unwrap().others().count(), MOST);
        assert_eq!(many(MOST + 1), Err(NotBeside::TooMany));
    }

    #[test]
    fn fits_only_tracers_of_the_same_target() {
        use Mechanism::{
            Fentry, FentrySleepable, FmodRet, Kprobe, KprobeMulti, Kretsyscall, Ksyscall, Lsm,
            RawTp, RawTpSleepable, Tp, TpBtf, TpBtfSleepable, TpSleepable, Uprobe,
        };
        for (measured, beside, fits) in [
            (Fentry, KprobeMulti, true),
            (Fentry, Fentry, true),
            (FmodRet, Fentry, true),
            (FmodRet, FmodRet, true),
            (TpBtf, RawTp, true),
            (TpBtf, Tp, true),
            (Ksyscall, Kretsyscall, true),
            (Ksyscall, Kprobe, true),
            (Lsm, Fentry, true),
            (Fentry, FentrySleepable, true),
            (FentrySleepable, Fentry, true),
            (FmodRet, FentrySleepable, false),
            (Lsm, FentrySleepable, false),
            (TpSleepable, RawTp, true),
            (TpBtfSleepable, Tp, true),
            (TpBtfSleepable, RawTpSleepable, true),
            (Tp, TpSleepable, false),
            (Fentry, FmodRet, false),
            (Kprobe, Ksyscall, false),
            (Fentry, Lsm, false),
            (Lsm, Ksyscall, false),
            (Fentry, RawTp, false),
            (TpBtf, Fentry, false),
            (Uprobe, Fentry, false),
        ] {
            let program = Beside::program(beside);
            assert_eq!(program.fits(measured), fits, "{beside} beside {measured}");
            let others = Beside::Others(beside, Functions::All);
            assert_eq!(others.fits(measured), !measured.is_user());
            for tracer in [Beside::FunctionTracer, Beside::FunctionTracerOthers(NonZeroU8::MIN)] {
                let on_function = !measured.is_tracepoint() && !measured.is_user();
                assert_eq!(tracer.fits(measured), on_function);
            }
        }
        for (measured, fits) in [
            (Fentry, true),
            (KprobeMulti, true),
            (FmodRet, false),
            (Ksyscall, false),
            (Lsm, false),
            (Tp, false),
            (Uprobe, false),
        ] {
            assert_eq!(Beside::Livepatch.fits(measured), fits, "{measured}");
        }
    }
}
