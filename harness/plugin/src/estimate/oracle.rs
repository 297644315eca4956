// SPDX-License-Identifier: GPL-2.0-or-later
//! Holds the caches against Cachegrind, fed with the accesses that lackey prints of the same
//! program. Both are tools of valgrind, whose sources have the files and functions below.
//!
//! Cachegrind's I1 and D1 are our first levels. Its LL is our second level. They work alike:
//! `cachesim_setref_is_miss` (`cachegrind/cg_sim.c`) sorts the lines of a set by their last use,
//! replaces the oldest, and counts writes like reads. A set's number is the lowest bits of the
//! line's number (`cachesim_ref_is_miss`). Only misses reach LL (`cachesim_I1_doref_NoX`,
//! `cachesim_D1_doref`).
//!
//! All numbers are equal while no access crosses lines. An access that does differs twice:
//!
//! - It misses a level at most once (`cachesim_ref_is_miss`). We count each line, since a CPU
//!   fetches each. [`Replay`] counts such an access once.
//! - If one of its lines misses, Cachegrind looks up both in LL: `cachesim_I1_doref_Gen` and
//!   `cachesim_D1_doref` pass on the whole access. We look up the line that misses, as a CPU does.
//!   From then on the second levels hold other lines. [`Crossing`] has Cachegrind's rule, and then
//!   all its numbers.
//!
//! Three differences change no number:
//!
//! - Cachegrind takes a load and a store by one instruction at one address for one read
//!   (`addEvent_Dw` and `flushEvents` in `cachegrind/cg_main.c`). They are lackey's `M`. QEMU
//!   reports both. The store hits, since the load was just before.
//! - Cachegrind cuts accesses that are larger than a line (`Ist_Dirty` in `cg_instrument`).
//!   [`Access::new`] does so too.
//! - Cachegrind looks up the line of code of each instruction. We skip the line of the instruction
//!   before, which hits and is the newest of its set.
//!
//! The order of QEMU is not tested here: it reports a block's code before the block's data.

use super::*;
use std::{
    collections::HashMap,
    fs,
    io::{BufRead, BufReader},
    path::Path,
    process::{Command, Stdio},
};
use tramplab_protocol::estimate::Shape;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Kind {
    Instruction,
    Data,
    Modify,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Access {
    kind: Kind,
    address: u64,
    size: u64,
}

impl Access {
    /// `letter` is lackey's.
    fn new(letter: &str, address: u64, size: u64) -> Access {
        let kind = match letter {
            "I" => Kind::Instruction,
            "L" | "S" => Kind::Data,
            "M" => Kind::Modify,
            _ => panic!("lackey has no access {letter:?}"),
        };
        Access { kind, address, size: size.min(LINE) }
    }

    fn lines(self) -> [u64; 2] {
        [self.address / LINE, (self.address + self.size - 1) / LINE]
    }

    fn crosses(self) -> bool {
        let [first, last] = self.lines();
        first != last
    }
}

/// Accesses, and those that missed a level.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
struct Count {
    all: u64,
    first: u64,
    last: u64,
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
struct Counted {
    code: Count,
    data: Count,
}

impl Counted {
    fn add(&mut self, access: Access, missed_first: bool, missed_last: bool) {
        let count = match access.kind {
            Kind::Instruction => &mut self.code,
            Kind::Data | Kind::Modify => &mut self.data,
        };
        count.all += 1;
        count.first += u64::from(missed_first);
        count.last += u64::from(missed_last);
    }

    fn without_last(mut self) -> Counted {
        (self.code.last, self.data.last) = (0, 0);
        self
    }
}

/// I1, D1 and LL.
type Caches = [Shape; 3];

/// The model, with misses counted as Cachegrind does.
struct Replay {
    model: Model,
    counted: Counted,
}

impl Replay {
    fn new([l1i, l1d, l2]: Caches) -> Replay {
        let any = Shape { entries: 64, ways: 4 };
        let (l3, itlb, dtlb, l2_tlb) = (any, any, any, any);
        let (returns, last_target, streams) = (16, false, false);
        let parts = Parts { l1i, l1d, l2, l3, itlb, dtlb, l2_tlb, returns, last_target, streams };
        Replay { model: Model::new(&parts, Pages::Small), counted: Counted::default() }
    }

    fn follow(&mut self, access: Access) {
        let Access { kind, address, size } = access;
        match kind {
            Kind::Instruction => self.model.code(address, address + size),
            Kind::Data => self.model.data(address, size, || None),
            Kind::Modify => (0..2).for_each(|_| self.model.data(address, size, || None)),
        }
        let counts = self.model.take();
        let any = |events: &[Event]| events.iter().any(|&event| counts[event as usize] > 0);
        let (l2, behind) = match kind {
            Kind::Instruction => (Event::CodeL2, [Event::CodeL3, Event::CodeMemory]),
            _ => (Event::DataL2, [Event::DataL3, Event::DataMemory]),
        };
        self.counted.add(access, any(&[l2]) || any(&behind), any(&behind));
    }
}

/// Our sets, with Cachegrind's rules for accesses that cross lines.
struct Crossing {
    caches: [Sets; 3],
    counted: Counted,
}

impl Crossing {
    fn new(caches: Caches) -> Crossing {
        Crossing { caches: caches.map(Sets::new), counted: Counted::default() }
    }

    fn follow(&mut self, access: Access) {
        let [i1, d1, ll] = &mut self.caches;
        // Both lines are touched, even if the first one missed.
        let misses = |sets: &mut Sets| access.lines().map(|line| !sets.touch(line)).contains(&true);
        let missed_first = misses(if access.kind == Kind::Instruction { i1 } else { d1 });
        let missed_last = missed_first && misses(ll);
        self.counted.add(access, missed_first, missed_last);
    }
}

/// A run of Cachegrind, and our numbers for the same accesses.
struct Comparison {
    caches: Caches,
    cachegrind: Counted,
    replay: Replay,
    crossing: Crossing,
    crossed: u64,
}

impl Comparison {
    /// `file` is Cachegrind's output.
    fn new(file: &str) -> Comparison {
        let after = |key: &str| {
            let line = file.lines().find_map(|line| line.strip_prefix(key));
            line.unwrap_or_else(|| panic!("Cachegrind wrote no {key:?}:\n{file}"))
        };
        // "1024 B, 64 B, 2-way associative"
        let caches = ["I1", "D1", "LL"].map(|name| {
            let numbers: Vec<u32> = after(&format!("desc: {name} cache:"))
                .split(|other: char| !other.is_ascii_digit())
                .filter_map(|number| number.parse().ok())
                .collect();
            let [size, line, ways] = numbers[..] else { panic!("{numbers:?}") };
            assert_eq!(u64::from(line), LINE);
            Shape { entries: size / line, ways }
        });
        assert_eq!(after("events: ").trim(), "Ir I1mr ILmr Dr D1mr DLmr Dw D1mw DLmw");
        let numbers = after("summary: ").split_whitespace().map(|number| number.parse().unwrap());
        let numbers: Vec<u64> = numbers.collect();
        let count =
            |at: usize| Count { all: numbers[at], first: numbers[at + 1], last: numbers[at + 2] };
        let (code, reads, writes) = (count(0), count(3), count(6));
        let data = Count {
            all: reads.all + writes.all,
            first: reads.first + writes.first,
            last: reads.last + writes.last,
        };
        Comparison {
            caches,
            cachegrind: Counted { code, data },
            replay: Replay::new(caches),
            crossing: Crossing::new(caches),
            crossed: 0,
        }
    }

    fn follow(&mut self, access: Access) {
        self.replay.follow(access);
        self.crossing.follow(access);
        self.crossed += u64::from(access.crosses());
    }

    fn judge(&self, crosses: bool) {
        let (cachegrind, ours) = (self.cachegrind, self.replay.counted);
        println!("{:?}: {} accesses cross lines", self.caches, self.crossed);
        assert_eq!(self.crossed > 0, crosses);
        assert_eq!(self.crossing.counted, cachegrind);
        if crosses {
            assert_eq!(ours.without_last(), cachegrind.without_last());
        } else {
            assert_eq!(ours, cachegrind);
        }
    }
}

/// A file of `testdata/record.sh`, which explains the format.
fn recorded(file: &str) -> (Vec<Comparison>, Vec<Access>) {
    let (head, tokens) = file.split_at(file.find("\nI").expect("no instruction"));
    // Three caches, the names of events, and their numbers.
    let runs = head.lines().collect::<Vec<_>>();
    let comparisons = runs.chunks(5).map(|run| Comparison::new(&run.join("\n"))).collect();
    let hex = |text: &str| u64::from_str_radix(text, 16).unwrap();
    let mut expected = HashMap::new();
    let mut trace = Vec::new();
    let mut rest = tokens.replace('\n', "");
    while !rest.is_empty() {
        let end = rest[1..].find(|other: char| other.is_ascii_uppercase());
        let token: String = rest.drain(..end.map_or(rest.len(), |end| end + 1)).collect();
        let (letter, numbers) = token.split_at(1);
        let expected = expected.entry(letter.to_owned()).or_insert(0_u64);
        let (size, address) = if let Some((size, distance)) = numbers.split_once('+') {
            (size, *expected + hex(distance))
        } else if let Some((size, distance)) = numbers.split_once('-') {
            (size, *expected - hex(distance))
        } else {
            (numbers, *expected)
        };
        let access = Access::new(letter, address, hex(size));
        *expected = address + if access.kind == Kind::Instruction { access.size } else { 0 };
        trace.push(access);
    }
    (comparisons, trace)
}

#[test]
fn recorded_misses_are_those_of_cachegrind() {
    for (file, crosses) in [
        (include_str!("testdata/aligned.txt"), false),
        (include_str!("testdata/crossing.txt"), true),
    ] {
        let (mut comparisons, trace) = recorded(file);
        for comparison in &mut comparisons {
            trace.iter().for_each(|&access| comparison.follow(access));
            comparison.judge(crosses);
            // The program tells right from wrong ways in each cache.
            for cache in 0..3 {
                let mut caches = comparison.caches;
                caches[cache].ways /= 2;
                let mut wrong = Replay::new(caches);
                trace.iter().for_each(|&access| wrong.follow(access));
                assert_ne!(wrong.counted, comparison.replay.counted, "{caches:?}");
            }
        }
        let [small, _] = &comparisons[..] else { panic!("not two runs of Cachegrind") };
        // The recording shows that the second levels differ.
        assert_eq!(small.replay.counted != small.cachegrind, crosses);
    }
}

const CACHES: [[&str; 3]; 2] = [
    ["--I1=1024,2,64", "--D1=1024,2,64", "--LL=8192,4,64"],
    ["--I1=32768,8,64", "--D1=32768,8,64", "--LL=1048576,16,64"],
];

/// The arguments and the environment move the stack: all runs get the same.
fn valgrind(options: &[&str], program: &Path) -> Command {
    let mut command = Command::new("valgrind");
    command.arg("-q").args(options).arg(program).env_clear();
    command.env("PATH", std::env::var_os("PATH").expect("no PATH"));
    command
}

fn run(mut command: Command) {
    let output = command.output().unwrap_or_else(|error| panic!("run {command:?}: {error}"));
    assert!(output.status.success(), "{command:?}: {}", String::from_utf8_lossy(&output.stderr));
}

#[test]
#[ignore = "full: runs valgrind"]
fn misses_are_those_of_cachegrind() {
    let found = Command::new("valgrind").arg("--version").output();
    let is_there = found.is_ok_and(|output| output.status.success());
    assert!(is_there, "install valgrind: this test compares the model with its Cachegrind");
    let dir = tempfile::tempdir().unwrap();
    let (program, out) = (dir.path().join("program"), dir.path().join("out"));
    let sources = Path::new(env!("CARGO_MANIFEST_DIR")).join("src/estimate/testdata");
    for (source, options, crosses) in [
        ("walk.c", &["-nostdlib"][..], false),
        ("walk.c", &["-nostdlib", "-DCROSSING"], true),
        ("sort.c", &[], true),
    ] {
        let mut compile = Command::new(std::env::var_os("CC").unwrap_or_else(|| "cc".into()));
        compile.args(["-O1", "-static", "-no-pie"]).args(options);
        compile.arg("-o").args([&program, &sources.join(source)]);
        run(compile);
        let mut comparisons = CACHES.map(|caches| {
            let to = format!("--cachegrind-out-file={}", out.display());
            let options = [&["--tool=cachegrind", "--cache-sim=yes", &to], &caches[..]].concat();
            run(valgrind(&options, &program));
            Comparison::new(&fs::read_to_string(&out).unwrap())
        });
        let lackey = ["--tool=lackey", "--basic-counts=no", "--trace-mem=yes", "--log-fd=1"];
        let mut lackey = valgrind(&lackey, &program).stdout(Stdio::piped()).spawn().unwrap();
        for line in BufReader::new(lackey.stdout.take().unwrap()).lines() {
            // "I  00401000,5" or " L 1ffefff8,8"
            let line = line.unwrap();
            let (letter, access) = line.trim().split_once(' ').expect(&line);
            let (address, size) = access.trim().split_once(',').expect(&line);
            let address = u64::from_str_radix(address, 16).expect(&line);
            let access = Access::new(letter, address, size.parse().expect(&line));
            comparisons.iter_mut().for_each(|comparison| comparison.follow(access));
        }
        assert!(lackey.wait().unwrap().success());
        println!("{source} {options:?}");
        comparisons.iter().for_each(|comparison| comparison.judge(crosses));
    }
}
