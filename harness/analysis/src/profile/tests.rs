// SPDX-License-Identifier: MIT OR Apache-2.0
//! Every form of a profile that can be added up by hand, and invariants of any profile.

use super::*;
use proptest::prelude::*;
use std::collections::{BTreeMap, BTreeSet};
use tramplab_model::code::{self, SourceLine, SourceLines};
use tramplab_protocol::estimate::Events;

pub mod estimates;
mod firefox;
#[cfg(feature = "flamegraph")]
mod picture;

const AGENT: u32 = 0;
const WORKER: u32 = 1;

/// Depth, thread, function, own. Functions of interrupts begin with `!`.
type Line = (usize, u32, &'static str, u64);

/// The attaching thread has 900, interrupts 60, others 75.
const BASE: [Line; 17] = [
    (0, AGENT, "main", 20),
    (1, AGENT, "do_syscall_64", 79),
    (2, AGENT, "ftrace_replace_code", 300),
    (3, AGENT, "text_poke_bp", 200),
    (4, AGENT, "!asm_sysvec_apic_timer_interrupt", 30),
    (5, AGENT, "!ktime_get", 10),
    (2, AGENT, "text_poke_bp", 100),
    // Calls itself.
    (2, AGENT, "walk", 50),
    (3, AGENT, "walk", 40),
    (4, AGENT, "text_poke_bp", 10),
    (2, AGENT, "bpf_trampoline_6442508829", 60),
    (3, AGENT, "bpf_prog_6deef7357e7b4530_capture", 40),
    // Below half a percent.
    (4, AGENT, "ktime_get", 1),
    (0, WORKER, "process_one_work", 50),
    (1, WORKER, "text_poke_bp", 25),
    (1, WORKER, "!asm_sysvec_apic_timer_interrupt", 15),
    (2, WORKER, "!ktime_get", 5),
];

/// Another build: `ftrace_replace_code` does less, `text_poke_batch` is new, `walk` is gone, and
/// names with BTF ids changed.
const HEAD: [Line; 8] = [
    (0, AGENT, "main", 20),
    (1, AGENT, "do_syscall_64", 79),
    (2, AGENT, "ftrace_replace_code", 120),
    (3, AGENT, "text_poke_batch", 90),
    (2, AGENT, "text_poke_bp", 110),
    (2, AGENT, "bpf_trampoline_6442500000", 60),
    (3, AGENT, "bpf_prog_0123456789abcdef_capture", 40),
    (4, AGENT, "ktime_get", 1),
];

fn space(name: &str) -> Space {
    match name {
        "main" => Space::User,
        name if name.starts_with("bpf_") => Space::Module("bpf".to_owned()),
        _ => Space::Kernel,
    }
}

fn profile(lines: &[Line], phase: Phase, unit: Unit) -> Profile {
    let thread =
        |command: &str, pid, measured| Thread { command: command.to_owned(), pid, measured };
    let mut functions: Vec<Function> = Vec::new();
    let mut nodes: Vec<Node> = Vec::new();
    let mut stack: Vec<u32> = Vec::new();
    for &(depth, thread, name, own) in lines {
        let (name, interrupt) = name.strip_prefix('!').map_or((name, false), |name| (name, true));
        let function = functions.iter().position(|f| f.name == name).unwrap_or_else(|| {
            functions.push(Function { name: name.to_owned(), space: space(name) });
            functions.len() - 1
        });
        stack.truncate(depth);
        let parent = stack.last().copied();
        stack.push(nodes.len() as u32);
        nodes.push(Node {
            parent,
            thread,
            function: function as u32,
            interrupt,
            own,
            calls: 1,
            events: Events::new(),
        });
    }
    Profile {
        schema: SCHEMA,
        cell: "x86_64/6.12/tcg/attach/fentry/100".to_owned(),
        phase,
        unit,
        sampling: None,
        cpu: None,
        threads: vec![thread("tramplab-agent", 1, true), thread("kworker/0:1", 12, false)],
        functions,
        nodes,
    }
}

pub fn base() -> Profile {
    profile(&BASE, Phase::Attach, Unit::Instructions)
}

fn tree(profiles: &[Profile], of: Of) -> Tree<1> {
    let mut tree = Tree::new(Names::AsTheyWere);
    profiles.iter().for_each(|profile| tree.add(profile, of, 0));
    tree
}

fn pair(unit: Unit) -> ([Subject; 2], Tree<2>) {
    let sides = [profile(&BASE, Phase::Attach, unit), profile(&HEAD, Phase::Attach, unit)];
    let mut tree = Tree::new(Names::Stable);
    (0..2).for_each(|side| tree.add(&sides[side], Of::Task, side));
    let mut subjects = sides.map(|side| Subject::new(&[side], Of::Task));
    subjects[1].cell = "x86_64/6.12+series/tcg/attach/fentry/100".to_owned();
    (subjects, tree)
}

fn text_of(profiles: &[Profile], of: Of, limit: f64) -> String {
    let mut out = Vec::new();
    text::render(&Subject::new(profiles, of), &tree(profiles, of), limit, &mut out).unwrap();
    String::from_utf8(out).unwrap()
}

/// The second table of a text.
fn own_parts(text: &str) -> &str {
    &text[text.find("# Overhead").unwrap()..]
}

/// The first table's rows: symbol, its share with everything it called, its own share.
fn inclusive_parts(text: &str) -> Vec<(&str, &str, &str)> {
    let table = text.split_once("# Children").unwrap().1.split_once("# Overhead").unwrap().0;
    let rows = table.lines().skip(1).filter(|line| line.contains('%'));
    rows.map(|row| {
        let words: Vec<&str> = row.split_whitespace().collect();
        (*words.last().unwrap(), words[0], words[1])
    })
    .collect()
}

fn folded_of<const SIDES: usize>(tree: &Tree<SIDES>) -> String {
    let mut out = Vec::new();
    folded::write(tree, &mut out).unwrap();
    String::from_utf8(out).unwrap()
}

/// `synchronize_net` and the expedited form are nested, `rude` does nothing here, and a worker and
/// an interrupt wait for themselves.
#[test]
fn counts_the_grace_periods_that_the_attaching_thread_waits_for() {
    let mut waiting = profile(
        &[
            (0, AGENT, "do_syscall_64", 1),
            (1, AGENT, "synchronize_net", 1),
            (2, AGENT, "synchronize_rcu_expedited", 1),
            (3, AGENT, "schedule", 1),
            (1, AGENT, "ftrace_shutdown.part.0", 1),
            (2, AGENT, "synchronize_rcu_tasks_rude", 1),
            (2, AGENT, "synchronize_rcu_tasks", 1),
            (3, AGENT, "synchronize_rcu_tasks_generic.constprop.0", 1),
            (4, AGENT, "__wait_rcu_gp", 1),
            (5, AGENT, "wait_for_completion_state", 1),
            (6, AGENT, "schedule", 1),
            // The grace period ended before the thread slept.
            (1, AGENT, "synchronize_srcu", 1),
            (2, AGENT, "wait_for_completion", 1),
            (1, AGENT, "schedule", 1),
            (1, AGENT, "!synchronize_rcu", 1),
            (2, AGENT, "!schedule", 1),
            (0, WORKER, "synchronize_rcu", 1),
            (1, WORKER, "schedule", 1),
        ],
        Phase::Detach,
        Unit::Instructions,
    );
    assert_eq!(waiting.grace_periods(), 3);
    // Of 100 calls each waits once, however often it is switched away.
    for node in &mut waiting.nodes[6..=10] {
        node.calls = 100;
    }
    waiting.nodes[10].calls = 193;
    assert_eq!(waiting.grace_periods(), 102);
    assert_eq!(base().grace_periods(), 0);
}

#[test]
fn text_of_the_task() {
    insta::assert_snapshot!(text_of(&[base()], Of::Task, 0.5));
}

/// perf 6.1 printed one file (`perf report --stdio --no-children --percent-limit 0.5`); the other
/// has the stacks of `perf script`. Only the heading and the shared object's name differ from ours.
#[test]
fn prints_text_as_perf_does() {
    let stacks = include_str!("testdata/perf-report.folded");
    let mut perf = Profile { nodes: Vec::new(), functions: Vec::new(), ..base() };
    perf.threads[0].command = "t".to_owned();
    for line in stacks.lines() {
        let (stack, count) = line.rsplit_once(' ').unwrap();
        let mut parent = None;
        for name in stack.split(';').skip(1) {
            let function = perf.functions.len() as u32;
            perf.functions.push(Function { name: name.to_owned(), space: Space::User });
            perf.nodes.push(Node {
                parent,
                thread: AGENT,
                function,
                interrupt: false,
                own: 0,
                calls: 0,
                events: Events::new(),
            });
            parent = Some(function);
        }
        perf.nodes.last_mut().unwrap().own = count.parse().unwrap();
    }
    let lines = |text: &str, object: &str| -> Vec<String> {
        let without = |line: &str| match line.split_once(&format!("  t        {object} ")) {
            Some((share, symbol)) => format!("{share} {}", symbol.trim_start()),
            None => line.to_owned(),
        };
        text.lines()
            .filter(|line| !line.is_empty() && !line.starts_with('#'))
            .map(without)
            .collect()
    };
    let ours = text_of(&[perf], Of::Task, 0.5);
    let ours = own_parts(&ours);
    assert_eq!(lines(ours, "[user]"), lines(include_str!("testdata/perf-report.txt"), "t"));
}

/// Only this table has functions that only call others. A function that calls itself counts once.
#[test]
fn text_shows_functions_with_everything_they_call() {
    let parts = [
        ("main", "100.00%", "2.22%"),
        ("do_syscall_64", "97.78%", "8.78%"),
        ("ftrace_replace_code", "55.56%", "33.33%"),
        ("text_poke_bp", "34.44%", "34.44%"),
        ("bpf_trampoline_6442508829", "11.22%", "6.67%"),
        ("walk", "11.11%", "10.00%"),
    ];
    assert_eq!(inclusive_parts(&text_of(&[base()], Of::Task, 5.0)), parts);
    let caller = [(0, AGENT, "caller", 0), (1, AGENT, "callee", 9)];
    let caller = profile(&caller, Phase::Attach, Unit::Instructions);
    let text = text_of(&[caller], Of::Task, 0.5);
    assert_eq!(
        inclusive_parts(&text),
        [("callee", "100.00%", "100.00%"), ("caller", "100.00%", "0.00%")]
    );
}

/// The two disagree, so each says what it is reliable for. A single profile says nothing.
#[test]
fn tells_which_of_exact_and_sampled_to_believe() {
    let said = |beside: Option<How>| {
        let subject = Subject { beside, ..Subject::new(&[base()], Of::Task) };
        let mut out = Vec::new();
        text::render(&subject, &tree(&[base()], Of::Task), 0.5, &mut out).unwrap();
        let head = Subject { beside, ..pair(Unit::Instructions).0[1].clone() };
        let table = diff::table(&head, &head, &pair(Unit::Instructions).1);
        let text = String::from_utf8(out).unwrap();
        [How::Exact, How::Sampled].map(|how| {
            let words = how.believed_for();
            (text.contains(words), table.notes.iter().any(|note| note.contains(words)))
        })
    };
    assert_eq!(said(Some(How::Sampled)), [(true, true); 2]);
    assert_eq!(said(None), [(false, false); 2]);
}

#[test]
fn text_of_interrupts() {
    insta::assert_snapshot!(text_of(&[base()], Of::Interrupts, 0.0));
}

/// Two sampled phases as one, without ways below 15 percent.
#[test]
fn text_of_everything() {
    let sampled = [Phase::Attach, Phase::Detach].map(|phase| {
        let sampling = Sampling { event: "cpu-clock".to_owned(), period: 1_000_000, lost: 2 };
        Profile { sampling: Some(sampling), ..profile(&BASE, phase, Unit::Samples) }
    });
    insta::assert_snapshot!(text_of(&sampled, Of::All, 15.0));
}

#[test]
fn text_of_waiting() {
    let waiting = profile(
        &[(0, AGENT, "schedule", 4_000), (1, AGENT, "synchronize_rcu_tasks", 0)],
        Phase::Detach,
        Unit::Nanoseconds,
    );
    let text = text_of(&[waiting], Of::Task, 0.5);
    assert!(
        text.contains("# Shown:     the attaching thread: 4000 nanoseconds off the CPU\n"),
        "{text}"
    );
}

#[test]
fn text_of_nothing() {
    let nothing = Profile { nodes: Vec::new(), ..base() };
    let text = text_of(&[nothing], Of::Task, 0.5);
    assert!(text.contains("Nothing was counted") && !text.contains("NaN"), "{text}");
}

/// The table shows where a function begins. A program's function has no line, whatever its name.
#[test]
fn text_shows_where_functions_begin() {
    let profile = base();
    let function = profile.functions.iter().find(|one| one.space == Space::Kernel).unwrap();
    let own = SourceLine { function: "f".to_owned(), file: "kernel/f.c".to_owned(), line: 7 };
    let lines = SourceLines::from([(code::place(&function.name, 0), vec![own])]);
    let subject = Subject { lines, ..Subject::new(&[base()], Of::All) };
    let mut out = Vec::new();
    text::render(&subject, &tree(&[base()], Of::All), 0.0, &mut out).unwrap();
    let text = String::from_utf8(out).unwrap();
    let with_line: Vec<&str> =
        text.lines().filter(|line| line.ends_with("(kernel/f.c:7)")).collect();
    assert!(!with_line.is_empty(), "{text}");
    let is_its = |line: &&&str| line.contains(&format!("[k] {} ", function.name));
    assert_eq!(with_line.iter().filter(is_its).count(), with_line.len(), "{text}");
}

#[test]
fn folded_stacks() {
    insta::assert_snapshot!(folded_of(&tree(&[base()], Of::All)));
}

#[test]
fn folded_stacks_of_two() {
    insta::assert_snapshot!(folded_of(&pair(Unit::Instructions).1));
}

#[test]
fn sums_the_rest_of_a_long_table() {
    let names: Vec<&'static str> = (0..40_u64).map(|n| &*format!("f{n:02}").leak()).collect();
    let lines = |own: fn(u64) -> u64| -> Vec<Line> {
        names.iter().zip(0..).map(|(name, n)| (0, AGENT, *name, own(n))).collect()
    };
    let mut tree = Tree::new(Names::Stable);
    let sides = [lines(|_| 100), lines(|n| 101 + n)]
        .map(|l| profile(&l, Phase::Detach, Unit::Instructions));
    (0..2).for_each(|side| tree.add(&sides[side], Of::Task, side));
    let [base, head] = sides.map(|side| Subject::new(&[side], Of::Task));
    let rows = diff::table(&base, &head, &tree).rows;
    assert_eq!(rows.len(), 32);
    assert_eq!(rows[0], ["f39", "100", "140", "+40", "+1.00 %"]);
    // f00 to f09: 1 + 2 + … + 10.
    assert_eq!(rows[30], ["10 more that changed", "1000", "1055", "+55", "+1.38 %"]);
    assert_eq!(rows[31], ["all", "4000", "4820", "+820", "+20.50 %"]);
}

#[test]
fn reports_profiles_that_cannot_be_drawn() {
    let drawn =
        flame::render(&Subject::new(&[base()], Of::All), &tree(&[], Of::All), &mut Vec::new());
    assert_eq!(
        drawn.unwrap_err().to_string(),
        format!("nothing to draw: the profile has nothing of {}", Of::All.name())
    );
    #[cfg(not(feature = "flamegraph"))]
    {
        let drawn = flame::render(
            &Subject::new(&[base()], Of::All),
            &tree(&[base()], Of::All),
            &mut Vec::new(),
        );
        assert!(drawn.unwrap_err().to_string().contains("--features flamegraph"));
    }
}

/// Callers take the amounts of pruned places, so nothing is lost. Roots stay.
#[test]
fn pruned_places_become_part_of_their_callers() {
    let whole = tree(&[base()], Of::Task);
    let pruned = whole.pruned(0.1);
    assert_eq!(pruned.total(0), whole.total(0));
    insta::assert_snapshot!(folded_of(&pruned));
    assert_eq!(folded_of(&whole.pruned(2.0)), "tramplab-agent;main 900\n");
}

#[test]
fn sums_totals_and_costs() {
    let base = base();
    assert_eq!(base.totals(), Totals { task: 900, interrupts: 60, others: 75 });
    let costs: Vec<(String, u64, u64)> =
        base.costs().into_iter().map(|cost| (cost.function.name, cost.own, cost.total)).collect();
    let expected = [
        ("text_poke_bp", 310, 310),
        ("ftrace_replace_code", 300, 500),
        ("walk", 90, 100),
        ("do_syscall_64", 79, 880),
        ("bpf_trampoline_6442508829", 60, 101),
        ("bpf_prog_6deef7357e7b4530_capture", 40, 41),
        ("main", 20, 900),
        ("ktime_get", 1, 1),
    ];
    assert_eq!(costs, expected.map(|(name, own, total)| (name.to_owned(), own, total)));
}

#[test]
fn names_do_not_break_a_line() {
    let mut odd = base();
    odd.threads[0].command = "a b;c\n\u{1b}[31md".to_owned();
    odd.functions[0].name = "x; y 7".to_owned();
    let folded = folded_of(&tree(&[odd], Of::Task));
    assert!(folded.starts_with("a_b:c_d;x:_y_7 20\n"), "{folded}");
}

#[test]
fn reads_back_a_written_file() {
    let file = tempfile::NamedTempFile::new().unwrap();
    serde_json::to_writer(&file, &base()).unwrap();
    assert_eq!(load(file.path()).unwrap(), base());
}

#[test]
fn rejects_bad_files_with_name_and_reason() {
    let text = serde_json::to_string(&base()).unwrap();
    let with = |change: fn(&mut Profile)| {
        let mut profile = base();
        change(&mut profile);
        serde_json::to_string(&profile).unwrap()
    };
    let table = [
        ("cut", text[..text.len() / 2].to_owned(), "EOF while parsing"),
        ("no JSON", "profile".to_owned(), "expected value"),
        ("no schema", "{}".to_owned(), "missing field"),
        (
            "another schema",
            "{\"schema\": 7, \"new\": 1}".to_owned(),
            "schema 7; this tramplab reads schema 1",
        ),
        ("another schema, same fields", with(|p| p.schema = 2), "schema 2;"),
        ("unknown field", text.replacen("\"cell\"", "\"sell\"", 1), "sell"),
        ("negative", text.replacen("\"own\":20", "\"own\":-20", 1), "-20"),
        ("thread", with(|p| p.nodes[3].thread = 2), "node 3 names thread 2, but there are 2"),
        (
            "function",
            with(|p| p.nodes[3].function = 99),
            "node 3 names function 99, but there are 10",
        ),
        ("itself", with(|p| p.nodes[3].parent = Some(3)), "node 3 comes before its parent 3"),
        ("order", with(|p| p.nodes[3].parent = Some(9)), "node 3 comes before its parent 9"),
        (
            "other thread",
            with(|p| p.nodes[13].parent = Some(0)),
            "node 13 has another thread than its parent 0",
        ),
        ("sum", with(|p| p.nodes[3].own = u64::MAX), "exceeds 64 bits"),
    ];
    for (name, text, words) in table {
        let file = tempfile::NamedTempFile::new().unwrap();
        std::fs::write(file.path(), text).unwrap();
        let error = load(file.path()).unwrap_err().to_string();
        assert!(error.contains(words), "{name}: {error}");
        assert!(error.contains(file.path().to_str().unwrap()), "{name}: {error}");
    }
    let missing = load("/nonexistent/profile.json".as_ref()).unwrap_err();
    assert!(matches!(missing, ProfileError::NotFound(_)));
}

/// Text of a few MiB of nodes would fill a disk: it has the names of all callers for each.
#[test]
fn rejects_trees_whose_text_is_too_long() {
    let function = |length| Function { name: "f".repeat(length), space: Space::Kernel };
    let chain = |depth: u32, name, own| Profile {
        functions: vec![function(name)],
        nodes: (0..depth)
            .map(|node| Node {
                parent: node.checked_sub(1),
                thread: AGENT,
                function: 0,
                interrupt: false,
                own,
                calls: 1,
                events: Events::new(),
            })
            .collect(),
        ..base()
    };
    let check = |profile: Profile| profile.check().map_err(|wrong| wrong.to_string());
    assert_eq!(check(chain(2048, 512, 1)), Ok(()));
    assert_eq!(check(chain(2049, 1, 1)), Err("node 2048 is deeper than 2048 calls".to_owned()));
    assert_eq!(check(chain(1, 513, 1)), Err("a name has more than 512 bytes".to_owned()));
    let mut wide = chain(2048, 512, 0);
    let leaf = Node { parent: Some(2046), own: 1, ..wide.nodes[2047].clone() };
    wide.nodes.extend(vec![leaf; 2100]);
    assert_eq!(check(wide), Err("its stacks have more than 2048 MiB of names".to_owned()));
}

/// Any tree: each node is below an earlier one of its thread, or at the bottom.
fn any_profile() -> impl Strategy<Value = Profile> {
    let node = (
        any::<prop::sample::Index>(),
        prop::bool::weighted(0.9),
        0..2_u32,
        0..10_u32,
        prop::bool::weighted(0.1),
        0..50_u64,
    );
    proptest::collection::vec(node, 0..80).prop_map(|drawn| {
        let mut nodes: Vec<Node> = Vec::new();
        for (above, has, thread, function, interrupt, own) in drawn {
            let parent = (has && !nodes.is_empty()).then(|| above.index(nodes.len()) as u32);
            let thread = parent.map_or(thread, |parent| nodes[parent as usize].thread);
            nodes.push(Node {
                parent,
                thread,
                function,
                interrupt,
                own,
                calls: 0,
                events: Events::new(),
            });
        }
        Profile { nodes, ..base() }
    })
}

proptest! {
    #[test]
    fn loses_nothing_and_counts_nothing_twice(profile in any_profile()) {
        profile.check().unwrap();
        let totals = profile.totals();
        let all: u64 = profile.nodes.iter().map(|node| node.own).sum();
        for of in [Of::Task, Of::Interrupts, Of::Others, Of::All] {
            let tree = tree(std::slice::from_ref(&profile), of);
            prop_assert_eq!(tree.total(0), of.part(totals));
            let folded = folded_of(&tree);
            let lines = folded.lines().map(|line| line.rsplit_once(' ').unwrap());
            let counts = lines.clone().map(|(_, count)| count.parse::<u64>().unwrap());
            prop_assert_eq!(counts.sum::<u64>(), of.part(totals));
            let stacks: BTreeSet<&str> = lines.map(|(stack, _)| stack).collect();
            prop_assert_eq!(stacks.len(), folded.lines().count(), "a stack stands twice");
            prop_assert_eq!(tree.pruned(0.05).total(0), of.part(totals));
            let text = text_of(std::slice::from_ref(&profile), of, 0.0);
            let is_row = |line: &&str| !line.starts_with('#') && line.contains("%  ");
            let share = |row: &str| row.trim().split_once('%').unwrap().0.parse::<f64>().unwrap();
            let percents: f64 = own_parts(&text).lines().filter(is_row).map(share).sum();
            if of.part(totals) > 0 {
                prop_assert!((percents - 100.0).abs() < 1.0, "{}: {}", percents, text);
            }
        }
        prop_assert_eq!(Of::All.part(totals), all);

        // The slow way to find costs: a node counts once for every function on its stack.
        let mut slow: BTreeMap<&Function, (u64, u64)> = BTreeMap::new();
        for node in &profile.nodes {
            if !Of::Task.holds(node, &profile.threads[node.thread as usize]) {
                continue;
            }
            let function = |node: &Node| &profile.functions[node.function as usize];
            slow.entry(function(node)).or_default().0 += node.own;
            let mut on_stack = BTreeSet::new();
            let mut at = Some(node);
            while let Some(node_at) = at {
                if !node_at.interrupt {
                    on_stack.insert(function(node_at));
                }
                at = node_at.parent.map(|parent| &profile.nodes[parent as usize]);
            }
            for function in on_stack {
                slow.entry(function).or_default().1 += node.own;
            }
        }
        let costs = profile.costs();
        prop_assert_eq!(costs.iter().map(|cost| cost.own).sum::<u64>(), totals.task);
        let costs: BTreeMap<&Function, (u64, u64)> =
            costs.iter().map(|cost| (&cost.function, (cost.own, cost.total))).collect();
        prop_assert_eq!(costs, slow);
    }
}

fn load(path: &std::path::Path) -> Result<Profile, ProfileError> {
    Profile::read(std::fs::read(path), path)
}
