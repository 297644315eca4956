// SPDX-License-Identifier: MIT OR Apache-2.0
//! Merges profiles: equal stacks become one, with a count for each side.

use super::{Cost, Function, Of, Profile, Space, Totals};
use crate::branch::stable_name;
use std::{cmp::Reverse, collections::HashMap};
use tramplab_model::text::plain;

/// A tree of stacks. One side shows a profile; two sides compare profiles, the base first.
#[derive(Clone, Debug)]
pub struct Tree<const SIDES: usize> {
    names: Names,
    pub frames: Vec<Frame>,
    /// Parents before their children; no two with the same parent and frame.
    pub places: Vec<Place<SIDES>>,
    ids: HashMap<Frame, u32>,
    /// Places by parent and frame. The parent is its index plus one; 0 is none.
    index: HashMap<(u32, u32), u32>,
}

/// How to name BPF programs and trampolines.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Names {
    AsTheyWere,
    /// Without the parts that change with every build.
    Stable,
}

/// A function, with the thread or interrupt that ran it.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Frame {
    pub command: String,
    pub function: Function,
    pub interrupt: bool,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Place<const SIDES: usize> {
    pub parent: Option<u32>,
    /// Index into `frames`.
    pub frame: u32,
    pub own: [u64; SIDES],
}

/// The amounts of a function.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Spent {
    /// Spent in the function itself.
    pub own: u64,
    /// Spent in it and in everything it called. A function that calls itself counts once.
    pub total: u64,
}

impl Frame {
    /// Returns the function's name, marked if it ran in an interrupt.
    pub fn label(&self) -> String {
        format!("{}{}", self.function.name, if self.interrupt { "_[i]" } else { "" })
    }
}

/// Names of functions that wait for grace periods begin so (`kernel/rcu/`). A barrier waits for
/// callbacks, which wait for one.
const GRACE_PERIODS: [&str; 6] = [
    "synchronize_rcu",
    "synchronize_srcu",
    "__synchronize_srcu",
    "__wait_rcu_gp",
    "rcu_barrier",
    "srcu_barrier",
];

impl<const SIDES: usize> Tree<SIDES> {
    pub fn new(names: Names) -> Tree<SIDES> {
        Tree {
            names,
            frames: Vec::new(),
            places: Vec::new(),
            ids: HashMap::new(),
            index: HashMap::new(),
        }
    }

    /// Adds the nodes that `of` selects. A stack may be selected in part: an interrupt's begins at
    /// its entry.
    pub fn add(&mut self, profile: &Profile, of: Of, side: usize) {
        let mut frames: HashMap<(u32, u32, bool), u32> = HashMap::new();
        // The place of each node. A node left out has the place of the nearest node above it.
        let mut places: Vec<Option<u32>> = Vec::with_capacity(profile.nodes.len());
        for node in &profile.nodes {
            let above = node.parent.and_then(|parent| places[parent as usize]);
            let thread = &profile.threads[node.thread as usize];
            if !of.holds(node, thread) {
                places.push(above);
                continue;
            }
            let frame =
                *frames.entry((node.thread, node.function, node.interrupt)).or_insert_with(|| {
                    let function = &profile.functions[node.function as usize];
                    let name = match (self.names, &function.space) {
                        (Names::Stable, Space::Module(_)) => {
                            stable_name(&function.name).into_owned()
                        }
                        _ => function.name.clone(),
                    };
                    let space = match &function.space {
                        Space::Module(module) => Space::Module(name_of(module)),
                        other => other.clone(),
                    };
                    let function = Function { name: name_of(&name), space };
                    let frame = Frame {
                        command: name_of(&thread.command),
                        function,
                        interrupt: node.interrupt,
                    };
                    *self.ids.entry(frame).or_insert_with_key(|frame| {
                        self.frames.push(frame.clone());
                        index(self.frames.len() - 1)
                    })
                });
            let place = *self
                .index
                .entry((above.map_or(0, |above| above + 1), frame))
                .or_insert_with(|| {
                    self.places.push(Place { parent: above, frame, own: [0; SIDES] });
                    index(self.places.len() - 1)
                });
            let own = &mut self.places[place as usize].own[side];
            *own = own.saturating_add(node.own);
            places.push(Some(place));
        }
    }

    pub fn total(&self, side: usize) -> u64 {
        self.places.iter().fold(0, |sum, place| sum.saturating_add(place.own[side]))
    }

    /// Returns for each place the amount spent there and in everything it called.
    pub fn totals(&self) -> Vec<[u64; SIDES]> {
        let mut totals: Vec<[u64; SIDES]> = self.places.iter().map(|place| place.own).collect();
        for (at, place) in self.places.iter().enumerate().rev() {
            if let Some(parent) = place.parent {
                let below = totals[at];
                add(&mut totals[parent as usize], below);
            }
        }
        totals
    }

    /// Yields every place with its depth, followed by those below it; siblings are sorted by name.
    pub fn walk(&self) -> impl Iterator<Item = (usize, u32)> {
        let mut by_name: Vec<u32> = (0..index(self.frames.len())).collect();
        by_name.sort_unstable_by_key(|&frame| &self.frames[frame as usize]);
        let mut rank = vec![0; self.frames.len()];
        for (at, frame) in by_name.into_iter().enumerate() {
            rank[frame as usize] = at;
        }
        let mut places: Vec<u32> = (0..index(self.places.len())).collect();
        places.sort_unstable_by_key(|&place| {
            Reverse(rank[self.places[place as usize].frame as usize])
        });
        // Linked lists in two vectors. The last place put in front is the first by name.
        let (mut roots, mut first) = (None, vec![None; self.places.len()]);
        let mut next = vec![None; self.places.len()];
        for place in places {
            let list = match self.places[place as usize].parent {
                None => &mut roots,
                Some(parent) => &mut first[parent as usize],
            };
            next[place as usize] = list.replace(place);
        }
        let mut to_do: Vec<(usize, u32)> = roots.map(|root| (0, root)).into_iter().collect();
        std::iter::from_fn(move || {
            let (depth, place) = to_do.pop()?;
            to_do.extend(next[place as usize].map(|sibling| (depth, sibling)));
            to_do.extend(first[place as usize].map(|child| (depth + 1, child)));
            Some((depth, place))
        })
    }

    /// Removes places below `share` of the total on every side and adds their amounts to their
    /// callers' own. Roots stay.
    pub fn pruned(&self, share: f64) -> Tree<SIDES> {
        let least: [f64; SIDES] = std::array::from_fn(|side| self.total(side) as f64 * share);
        let totals = self.totals();
        let mut kept = Tree { frames: self.frames.clone(), ..Tree::new(self.names) };
        let mut places: Vec<u32> = Vec::with_capacity(self.places.len());
        for (place, total) in self.places.iter().zip(totals) {
            let parent = place.parent.map(|parent| places[parent as usize]);
            let small = (0..SIDES).all(|side| (total[side] as f64) < least[side]);
            match parent {
                Some(parent) if small => {
                    add(&mut kept.places[parent as usize].own, place.own);
                    places.push(parent);
                }
                _ => {
                    kept.places.push(Place { parent, ..*place });
                    places.push(index(kept.places.len() - 1));
                }
            }
        }
        kept
    }
}

impl Tree<1> {
    /// Returns the amounts of each frame over all its places.
    pub fn spent(&self) -> Vec<Spent> {
        let totals = self.totals();
        let mut spent = vec![Spent::default(); self.frames.len()];
        // The stack that leads to the place, and how often each frame is on it.
        let mut stack: Vec<usize> = Vec::new();
        let mut on_stack = vec![0_u32; spent.len()];
        for (depth, place) in self.walk() {
            for frame in stack.drain(depth..) {
                on_stack[frame] -= 1;
            }
            let Place { frame, own: [own], .. } = self.places[place as usize];
            let of_frame = &mut spent[frame as usize];
            of_frame.own = of_frame.own.saturating_add(own);
            if on_stack[frame as usize] == 0 {
                of_frame.total = of_frame.total.saturating_add(totals[place as usize][0]);
            }
            on_stack[frame as usize] += 1;
            stack.push(frame as usize);
        }
        spent
    }
}

impl Profile {
    pub fn totals(&self) -> Totals {
        let mut totals = Totals::default();
        for node in &self.nodes {
            let part = match (node.interrupt, self.threads[node.thread as usize].measured) {
                (true, _) => &mut totals.interrupts,
                (false, true) => &mut totals.task,
                (false, false) => &mut totals.others,
            };
            *part = part.saturating_add(node.own);
        }
        totals
    }

    /// Counts how often the attaching thread waited for an RCU grace period: calls of the functions
    /// that wait for one, of nested ones only the outermost. A call counts if it asks a completion
    /// or the scheduler to wait: on some kernels `synchronize_rcu_tasks_rude` does nothing.
    pub fn grace_periods(&self) -> u64 {
        // For each node the outermost waiting call on its stack, and the waits below that call.
        let mut outermost: Vec<Option<usize>> = Vec::with_capacity(self.nodes.len());
        let mut waits: HashMap<usize, [u64; 2]> = HashMap::new();
        for (at, node) in self.nodes.iter().enumerate() {
            let name = self.functions[node.function as usize].name.as_str();
            let is_own = !node.interrupt && self.threads[node.thread as usize].measured;
            let above = node.parent.and_then(|parent| outermost[parent as usize]);
            let call = above.or(GRACE_PERIODS.iter().any(|of| name.starts_with(of)).then_some(at));
            let call = call.filter(|_| is_own);
            outermost.push(call);
            let Some(call) = call else { continue };
            let [completions, switches] = waits.entry(call).or_default();
            if name.starts_with("wait_for_completion") {
                *completions = completions.saturating_add(node.calls);
            } else if name == "schedule" {
                *switches = switches.saturating_add(node.calls);
            }
        }
        waits.into_iter().fold(0_u64, |sum, (call, [completions, switches])| {
            sum.saturating_add(self.nodes[call].calls.min(completions.max(switches)))
        })
    }

    /// Returns what each function cost the attaching thread, without interrupts: the largest `own`
    /// first, then by name.
    pub fn costs(&self) -> Vec<Cost> {
        let mut tree: Tree<1> = Tree::new(Names::AsTheyWere);
        tree.add(self, Of::Task, 0);
        let cost = |(frame, spent): (&Frame, Spent)| Cost {
            function: frame.function.clone(),
            own: spent.own,
            total: spent.total,
        };
        let mut costs: Vec<Cost> = tree.frames.iter().zip(tree.spent()).map(cost).collect();
        costs.sort_by(|a, b| b.own.cmp(&a.own).then_with(|| a.function.cmp(&b.function)));
        costs
    }
}

/// Adds the sides. The sum of one profile fits ([`Profile::check`]); that of several may not and
/// then stays at the maximum.
pub fn add<const SIDES: usize>(sum: &mut [u64; SIDES], more: [u64; SIDES]) {
    sum.iter_mut().zip(more).for_each(|(sum, more)| *sum = sum.saturating_add(more));
}

/// Makes a name one printable word without separators of any output format.
fn name_of(name: &str) -> String {
    plain(name).replace(';', ":").split_whitespace().collect::<Vec<_>>().join("_")
}

fn index(index: usize) -> u32 {
    u32::try_from(index).expect("nodes are counted in 32 bits")
}
