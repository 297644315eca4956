// SPDX-License-Identifier: MIT OR Apache-2.0
//! Turns counts by address into a profile by function.

use super::{
    Function, Node, Phase, Profile, SCHEMA, Sampling, Space, Thread, Unit, Waited, estimate,
};
use crate::branch::{Symbols, is_asynchronous, symbols::is_kernel};
use std::collections::HashMap;
use tramplab_model::{profile::OfCpu, text::line};
use tramplab_protocol::{
    counts::{self, CallPath, Counts, Entered, VcpuCounts},
    estimate::Events,
    message::{Samples, Symbol, Wait},
};

/// Builds a tree call by call.
struct Tree<'a> {
    symbols: &'a Symbols,
    profile: Profile,
    functions: HashMap<Function, u32>,
    threads: HashMap<Thread, u32>,
    children: HashMap<(Option<u32>, u32, u32, bool), u32>,
}

impl<'a> Tree<'a> {
    fn new(
        cell: &str,
        phase: Phase,
        unit: Unit,
        sampling: Option<Sampling>,
        symbols: &'a Symbols,
    ) -> Tree<'a> {
        let (threads, functions, nodes) = (Vec::new(), Vec::new(), Vec::new());
        let profile = Profile {
            schema: SCHEMA,
            cell: cell.to_owned(),
            phase,
            unit,
            sampling,
            cpu: None,
            threads,
            functions,
            nodes,
        };
        Tree {
            symbols,
            profile,
            functions: HashMap::new(),
            threads: HashMap::new(),
            children: HashMap::new(),
        }
    }

    fn thread(&mut self, thread: Thread) -> u32 {
        let threads = &mut self.profile.threads;
        *self.threads.entry(thread).or_insert_with_key(|thread| {
            threads.push(thread.clone());
            threads.len() as u32 - 1
        })
    }

    fn function(&mut self, address: u64) -> u32 {
        let function = function(self.symbols.find(address), address);
        let functions = &mut self.profile.functions;
        *self.functions.entry(function).or_insert_with_key(|function| {
            functions.push(function.clone());
            functions.len() as u32 - 1
        })
    }

    /// Returns the node of a function called from `parent`.
    fn child(&mut self, parent: Option<u32>, thread: u32, function: u32, interrupt: bool) -> u32 {
        let nodes = &mut self.profile.nodes;
        *self.children.entry((parent, thread, function, interrupt)).or_insert_with(|| {
            nodes.push(Node {
                parent,
                thread,
                function,
                interrupt,
                own: 0,
                calls: 0,
                events: Events::new(),
            });
            nodes.len() as u32 - 1
        })
    }

    fn node(&mut self, index: u32) -> &mut Node {
        &mut self.profile.nodes[index as usize]
    }

    /// Adds an amount to a stack, whose innermost address comes first.
    fn add(&mut self, thread: u32, stack: &[u64], amount: u64) {
        let stack: &[u64] = if stack.is_empty() { &[0] } else { stack };
        let mut parent = None;
        let mut interrupt = false;
        for address in called_from(stack).rev() {
            interrupt |=
                self.symbols.find(address).is_some_and(|symbol| is_asynchronous(symbol, address));
            let function = self.function(address);
            parent = Some(self.child(parent, thread, function, interrupt));
        }
        let node = self.node(parent.expect("at least one frame"));
        node.own = node.own.saturating_add(amount);
    }
}

fn function(symbol: Option<&Symbol>, address: u64) -> Function {
    match symbol {
        Some(Symbol { name, module, .. }) => {
            let space = module.clone().map_or(Space::Kernel, Space::Module);
            Function { name: name.clone(), space }
        }
        None if is_kernel(address) => {
            Function { name: format!("{address:#x}"), space: Space::Kernel }
        }
        None => Function { name: "[user]".to_owned(), space: Space::User },
    }
}

/// Returns the kernel addresses to resolve, ascending, each once.
pub fn addresses(counts: &Counts) -> Vec<u64> {
    let paths =
        counts.vcpus.iter().flat_map(|vcpu| &vcpu.paths).flat_map(|path| [path.from, path.to]);
    let blocks = counts.vcpus.iter().flat_map(|vcpu| &vcpu.blocks).map(|block| block.start);
    kernel_addresses(paths.chain(blocks))
}

/// Returns the kernel addresses of stacks to resolve, ascending, each once.
pub fn stack_addresses<'a>(stacks: impl Iterator<Item = &'a Vec<u64>>) -> Vec<u64> {
    kernel_addresses(stacks.flat_map(|stack| called_from(stack)))
}

/// Returns the addresses of the calls on a stack. The stack has return addresses, which may lie
/// behind the end of a function whose last instruction is a call.
fn called_from(stack: &[u64]) -> impl DoubleEndedIterator<Item = u64> + '_ {
    stack.iter().enumerate().map(|(depth, &address)| address.saturating_sub(u64::from(depth > 0)))
}

fn kernel_addresses(addresses: impl Iterator<Item = u64>) -> Vec<u64> {
    let mut addresses: Vec<u64> = addresses.filter(|&address| is_kernel(address)).collect();
    addresses.sort_unstable();
    addresses.dedup();
    addresses
}

/// Makes a profile of the plugin's counts.
pub fn of_counts(cell: &str, phase: Phase, counts: &Counts, symbols: &Symbols) -> Profile {
    let mut tree = Tree::new(cell, phase, Unit::Instructions, None, symbols);
    for vcpu in &counts.vcpus {
        add_vcpu(&mut tree, vcpu);
    }
    tree.profile
}

/// Splits the sum of the plugin's counts by CPU. Empty if there is only one.
pub fn by_cpu(counts: &Counts, symbols: &Symbols) -> Vec<OfCpu> {
    let one = |vcpu: &VcpuCounts| {
        let mut tree = Tree::new("", Phase::Attach, Unit::Instructions, None, symbols);
        add_vcpu(&mut tree, vcpu);
        OfCpu { cpu: vcpu.index, totals: tree.profile.totals() }
    };
    match &counts.vcpus[..] {
        [_] => Vec::new(),
        several => several.iter().map(one).collect(),
    }
}

fn add_vcpu(tree: &mut Tree, vcpu: &VcpuCounts) {
    let threads: Vec<u32> = vcpu
        .threads
        .iter()
        .map(|counts::Thread { command, pid, measured }| match (command.as_str(), measured) {
            // The plugin reads names at thread switches. This thread ran all the time.
            ("", true) => tree.thread(Thread::agent()),
            ("", false) => {
                tree.thread(Thread { command: "unknown".to_owned(), pid: *pid, measured: false })
            }
            (command, &measured) => {
                tree.thread(Thread { command: line(command), pid: *pid, measured })
            }
        })
        .collect();
    // The node of each path; `None` without a known caller.
    let mut nodes: Vec<Option<u32>> = Vec::with_capacity(vcpu.paths.len());
    let mut interrupts: Vec<bool> = Vec::with_capacity(vcpu.paths.len());
    for path in &vcpu.paths {
        let thread = threads[path.thread as usize];
        let Some(parent) = path.parent else {
            nodes.push(None);
            interrupts.push(false);
            continue;
        };
        let above = interrupts[parent as usize];
        let interrupt = above || interrupts_thread(path, tree.symbols);
        // A jump has no path of its own. The caller is therefore the function that the call is in.
        let caller = match nodes[parent as usize] {
            caller if !is_kernel(path.from) => caller,
            caller => Some(within(tree, caller, thread, above, path.from)),
        };
        let function = tree.function(path.to);
        let node = tree.child(caller, thread, function, interrupt);
        let node_of = tree.node(node);
        node_of.calls = node_of.calls.saturating_add(path.calls);
        nodes.push(Some(node));
        interrupts.push(interrupt);
    }
    let mut events = vcpu.events.iter();
    for block in &vcpu.blocks {
        let path = block.path as usize;
        let thread = threads[vcpu.paths[path].thread as usize];
        let node = within(tree, nodes[path], thread, interrupts[path], block.start);
        let node_of = tree.node(node);
        node_of.own = node_of.own.saturating_add(block.instructions);
        if let Some(events) = events.next() {
            estimate::add(&mut node_of.events, events);
        }
        // A function reached by a jump counts as called.
        let begun =
            tree.symbols.find(block.start).is_some_and(|symbol| symbol.start == block.start);
        if begun && nodes[path] != Some(node) {
            let node_of = tree.node(node);
            node_of.calls = node_of.calls.saturating_add(block.times);
        }
    }
}

/// Tells if a path begins an interrupt of the thread. Exceptions are the thread's own work.
fn interrupts_thread(path: &CallPath, symbols: &Symbols) -> bool {
    path.kind == Entered::Interrupt
        && symbols.find(path.to).is_none_or(|symbol| is_asynchronous(symbol, path.to))
}

/// Returns the node of the function at `address`, reached from `node` without a call. Mostly it is
/// `node` itself.
fn within(tree: &mut Tree, node: Option<u32>, thread: u32, interrupt: bool, address: u64) -> u32 {
    let function = tree.function(address);
    match node {
        Some(node) if tree.node(node).function == function => node,
        _ => tree.child(node, thread, function, interrupt),
    }
}

/// Makes a profile of the samples of the guest's clock.
pub fn of_samples(cell: &str, phase: Phase, samples: &Samples, symbols: &Symbols) -> Profile {
    let Samples { event, period, lost, stacks } = samples;
    let sampling = Sampling { event: event.clone(), period: *period, lost: *lost };
    let mut tree = Tree::new(cell, phase, Unit::Samples, Some(sampling), symbols);
    for sample in stacks {
        let (command, pid, measured) = (sample.command.clone(), sample.pid, sample.measured);
        let thread = tree.thread(Thread { command, pid, measured });
        tree.add(thread, &sample.stack, sample.count);
    }
    tree.profile
}

/// Makes a profile of the attaching thread's waits.
pub fn of_waits(
    cell: &str,
    phase: Phase,
    waits: &[Wait],
    thread: Thread,
    symbols: &Symbols,
) -> Profile {
    let mut tree = Tree::new(cell, phase, Unit::Nanoseconds, None, symbols);
    let thread = tree.thread(thread);
    for wait in waits {
        tree.add(thread, &wait.stack, wait.ns);
    }
    tree.profile
}

/// Sums waits for `run.json` by the names on their stacks, the longest first.
pub fn waited(waits: &[Wait], symbols: &Symbols) -> Vec<Waited> {
    let mut by_stack: HashMap<Vec<String>, (u64, u64)> = HashMap::new();
    for wait in waits {
        let names = called_from(&wait.stack)
            .map(|address| function(symbols.find(address), address).name)
            .collect();
        let entry = by_stack.entry(names).or_default();
        *entry = (entry.0.saturating_add(wait.ns), entry.1.saturating_add(wait.count));
    }
    let mut waited: Vec<Waited> =
        by_stack.into_iter().map(|(stack, (ns, count))| Waited { stack, ns, count }).collect();
    waited.sort_by(|a, b| b.ns.cmp(&a.ns).then_with(|| a.stack.cmp(&b.stack)));
    waited
}

#[cfg(test)]
mod tests;
