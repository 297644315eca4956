// SPDX-License-Identifier: MIT OR Apache-2.0
//! Fuzz profiles: stored files, and trees of any shape, merged and printed in every format.

use super::bytes::Bytes;
use tramplab_analysis::profile::{
    Function, Names, Node, Of, Phase, Profile, SCHEMA, Sampling, Space, Subject, Thread, Tree,
    Unit, diff, folded, text,
};
use tramplab_protocol::{
    counts::{Counts, CountsError},
    estimate::Events,
};

pub fn run(data: &[u8]) -> bool {
    // An input that is no JSON describes the shape of a tree.
    match serde_json::from_slice::<Profile>(data) {
        Ok(profile) => {
            let text = serde_json::to_vec(&profile).expect("a profile has a form in JSON");
            assert_eq!(
                serde_json::from_slice::<Profile>(&text).expect("what was written can be read"),
                profile
            );
            look_at(std::slice::from_ref(&profile));
        }
        Err(_) => {
            let mut bytes = Bytes::new(data);
            let (phases, first) = (bytes.byte() % 2, drawn(&mut bytes, Phase::Attach));
            look_at(std::slice::from_ref(&first));
            if phases == 1 {
                look_at(&[first, drawn(&mut bytes, Phase::Detach)]);
            }
        }
    }
    true
}

/// Decodes the body of a counts file; adds the header and the checksum.
pub fn decode_counts(data: &[u8]) -> Result<Counts, CountsError> {
    let empty = Counts::default().encode().expect("it is empty");
    let mut file = Vec::from(&empty[..8]);
    file.extend(data);
    file.extend(super::frames::crc(&file).to_le_bytes());
    Counts::decode(&file)
}

const COMMANDS: [&str; 4] = ["tramplab-agent", "swapper/0", "a b;c", "\u{1b}[31m"];
const NAMES: [&str; 6] = [
    "vfs_read",
    "bpf_prog_6deef7357e7b4530_empty",
    "a;b",
    "",
    "\u{1b}]0;x\u{7}",
    "bpf_trampoline_6442508829",
];

fn drawn(bytes: &mut Bytes, phase: Phase) -> Profile {
    let unit = bytes.one_of(&[
        Unit::Instructions,
        Unit::Samples,
        Unit::Nanoseconds,
        Unit::EstimatedCycles,
    ]);
    let sampling = (bytes.byte() % 2 == 1).then(|| Sampling {
        event: bytes.one_of(&NAMES).to_owned(),
        period: bytes.number(),
        lost: bytes.number(),
    });
    let mut threads = Vec::new();
    for _ in 0..1 + bytes.byte() % 3 {
        let (command, measured) =
            (bytes.one_of(&COMMANDS).to_owned(), bytes.byte().is_multiple_of(2));
        threads.push(Thread { command, pid: bytes.number() as u32, measured });
    }
    let mut functions = Vec::new();
    for _ in 0..1 + bytes.byte() % 5 {
        let space = match bytes.byte() % 3 {
            0 => Space::Kernel,
            1 => Space::Module(bytes.one_of(&["bpf", "b;pf", ""]).to_owned()),
            _ => Space::User,
        };
        functions.push(Function { name: bytes.one_of(&NAMES).to_owned(), space });
    }
    let mut nodes: Vec<Node> = Vec::new();
    for _ in 0..bytes.byte() {
        // One of the last eight nodes, else a new root: deep trees rather than wide ones.
        let parent = (nodes.len() as u32).checked_sub(1 + u32::from(bytes.byte() % 8));
        let above = parent.map(|parent| &nodes[parent as usize]);
        let drawn = bytes.byte();
        let thread =
            above.map_or(u32::from(drawn & 3) % threads.len() as u32, |above| above.thread);
        nodes.push(Node {
            parent,
            thread,
            function: u32::from(drawn >> 3) % functions.len() as u32,
            interrupt: drawn & 4 != 0,
            own: bytes.number(),
            calls: 0,
            events: Events::new(),
        });
        if bytes.is_empty() {
            break;
        }
    }
    Profile {
        schema: SCHEMA,
        cell: "cell".to_owned(),
        phase,
        unit,
        sampling,
        cpu: None,
        threads,
        functions,
        nodes,
    }
}

/// Checks the invariants of everything made of valid profiles.
pub fn look_at(profiles: &[Profile]) {
    if profiles.iter().any(|profile| profile.check().is_err()) {
        return;
    }
    let all = profiles.iter().flat_map(|profile| &profile.nodes);
    let sum = all.fold(0_u64, |sum, node| sum.saturating_add(node.own));
    let overflows = sum == u64::MAX;
    for names in [Names::AsTheyWere, Names::Stable] {
        for of in [Of::Task, Of::Interrupts, Of::Others, Of::All] {
            let subject = Subject::new(profiles, of);
            let mut tree: Tree<1> = Tree::new(names);
            let mut sides: Tree<2> = Tree::new(names);
            for (number, profile) in profiles.iter().enumerate() {
                tree.add(profile, of, 0);
                sides.add(profile, of, number % 2);
            }
            if !overflows {
                assert_eq!(tree.total(0), subject.total());
                assert_eq!(tree.pruned(0.05).total(0), subject.total());
            }
            let mut lines = Vec::new();
            folded::write(&tree, &mut lines).expect("memory takes it");
            let lines = String::from_utf8(lines).expect("it is text");
            let mut folded = 0_u64;
            for line in lines.lines() {
                let (_, count) = line.rsplit_once(' ').expect("a stack and its count");
                folded = folded.saturating_add(count.parse().expect("a number"));
            }
            if !overflows {
                assert_eq!(folded, subject.total());
            }
            assert!(
                !lines.contains(|c: char| c.is_control() && c != '\n'),
                "a control character in {lines:?}"
            );
            let mut printed = Vec::new();
            text::render(&subject, &tree, 0.5, &mut printed).expect("memory takes it");
            for change in diff::changes(&sides, diff::Scale::new(subject.unit, &sides)) {
                change.difference();
            }
            diff::table(&subject, &subject, &sides);
        }
    }
    for profile in profiles {
        let own = profile.costs().iter().fold(0_u64, |sum, cost| sum.saturating_add(cost.own));
        assert_eq!(own, profile.totals().task);
    }
}
