//! NUMA policies of mappings and of threads: their encoding, and the nodes that they select for a page.
//!
//! `calls/policies.rs` makes policies and checks the arguments of programs. The engine stores the policy of a
//! mapping, and passes it with each request for a frame (`NodeChoice::Policy`); it does not interpret
//! policies. A request of a thread with a policy of its own arrives as `NodeChoice::Task`. All nodes have the
//! same distance, so "near" means "with a small number". The program `nodes.c` of the tests checks each mode.

use crate::memory::frames::{self, LOCAL, Nodes};
use crate::sched::current;
use freehold::platform::NodeChoice;

/// The modes, with Linux's numbers.
pub const DEFAULT: u64 = 0;
pub const PREFERRED: u64 = 1;
pub const BIND: u64 = 2;
pub const INTERLEAVE: u64 = 3;
pub const LOCAL_NODE: u64 = 4;
pub const PREFERRED_MANY: u64 = 5;
pub const WEIGHTED: u64 = 6;
/// Flags that are combined with the mode.
pub const MODE_FLAGS: u64 = BALANCING | RELATIVE | STATIC;
pub const BALANCING: u64 = 1 << 13;
/// Flag: the set of nodes is counted among the nodes that exist.
pub const RELATIVE: u64 = 1 << 14;
pub const STATIC: u64 = 1 << 15;

/// Encodes a policy in a word: the mode and its flags in the lower half, and the set of nodes in the upper
/// half. The default policy is 0.
pub fn tag(mode: u64, nodes: u64) -> u64 {
    mode | nodes << 32
}

/// Returns the mode of a policy, without flags.
pub fn mode(tag: u64) -> u64 {
    tag & 0xffff_ffff & !MODE_FLAGS
}

/// Returns the nodes of a policy that exist.
pub fn existing_nodes(tag: u64) -> u32 {
    let (nodes, all) = ((tag >> 32) as u32, frames::all_nodes());
    if tag & RELATIVE == 0 {
        return nodes & all;
    }
    (0..32).filter(|node| nodes >> node & 1 != 0).fold(0, |set, node| set | 1 << (node % frames::nodes()))
}

/// Returns the node with this place in a set, counted in a circle.
fn nth(set: u32, place: u64) -> usize {
    let place = (place % u64::from(set.count_ones().max(1))) as usize;
    (0..32).filter(|node| set >> node & 1 != 0).nth(place).unwrap_or(LOCAL)
}

/// Returns the node after `last` in a set, counted in a circle.
pub fn next_node(set: u32, last: usize) -> usize {
    let is_in = |node: &usize| set >> node & 1 != 0;
    let above = (last.wrapping_add(1)..32).find(is_in);
    above.or_else(|| (0..32).find(is_in)).unwrap_or(LOCAL)
}

/// Returns the nodes of a policy for a page. `distributed` returns the node for a policy that distributes
/// pages over a set of nodes.
fn nodes_of(tag: u64, distributed: impl FnOnce(u32) -> usize) -> Nodes {
    let set = existing_nodes(tag);
    match mode(tag) {
        BIND => Nodes { first: set & 1 << LOCAL, then: set },
        PREFERRED | PREFERRED_MANY if set != 0 => Nodes { first: set, then: u32::MAX },
        INTERLEAVE | WEIGHTED if set != 0 => Nodes { first: 1 << distributed(set), then: u32::MAX },
        _ => Nodes::ANY,
    }
}

/// Returns the nodes for a page of a mapping with this policy. `page` is its offset in the mapped object.
pub fn nodes_of_mapping(tag: u64, page: u64) -> Nodes {
    nodes_of(tag, |set| nth(set, page))
}

/// Returns the nodes for a request.
pub fn nodes(choice: NodeChoice) -> Nodes {
    nodes_at(choice, 0)
}

/// Returns the `n`-th best node for a request.
pub fn nth_node(choice: NodeChoice, n: usize) -> Option<usize> {
    let Nodes { first, then } = nodes_at(choice, n);
    let of = |set: u32| (0..frames::nodes()).filter(move |node| set >> node & 1 != 0);
    of(first).chain(of(then & !first)).nth(n)
}

/// Returns the nodes for the question about the `n`-th best node. The first question about a request of a
/// thread whose pages are distributed goes on to its next node.
fn nodes_at(choice: NodeChoice, n: usize) -> Nodes {
    match choice {
        NodeChoice::Any => Nodes::ANY,
        NodeChoice::Only(node) => Nodes { first: 1 << node, then: 0 },
        NodeChoice::Policy { tag, place } => nodes_of_mapping(tag, place),
        NodeChoice::Task => {
            let here = current();
            nodes_of(here.policy.get(), |set| {
                if n == 0 {
                    here.last_node.set(next_node(set, here.last_node.get()));
                }
                here.last_node.get()
            })
        }
    }
}
