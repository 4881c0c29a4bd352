//! The calls for memory policies. The calls check their arguments as Linux does, and store the policy of a
//! VMA in the engine and the policy of a thread in the thread (`Thread::policy`). `platform/policy.rs` has
//! the encoding of policies and selects the nodes of pages. `page_moves.rs` moves pages that exist. The
//! engine merges only VMAs whose policies are equal. The programs `corners.c` (one node) and `nodes.c`
//! (several nodes) test the calls.

use crate::arch::frame::Frame;
use crate::calls::answer::{Answer, Calls};
use crate::calls::page_moves::{self, Target, node_at};
use crate::memory::frames;
use crate::platform::policy::{
    BALANCING, BIND, DEFAULT, INTERLEAVE, LOCAL_NODE, MODE_FLAGS, PREFERRED, PREFERRED_MANY, RELATIVE,
    STATIC, WEIGHTED, existing_nodes, mode, next_node, tag,
};
use crate::platform::user::UserPtr;
use crate::sched::{checkpoint, current};
use freehold::UserRange;
use freehold::error::Errno;
use freehold::fault::Access;
use linux_raw_sys::general::*;

pub const CALLS: Calls = &[
    (__NR_mbind, mbind),
    (__NR_set_mempolicy, set_mempolicy),
    (__NR_get_mempolicy, get_mempolicy),
    (__NR_set_mempolicy_home_node, set_home_node),
];

/// Maximum number of nodes in a mask.
const MAX_NODES: u64 = 1024 * 32;

/// Returns the set of nodes in a mask, which may contain nodes that do not exist.
///
/// # Errors
///
/// EINVAL if the mask contains a node above 31 or is too long; EFAULT if it cannot be read.
pub fn nodes(at: u64, bits: u64) -> Result<u64, Errno> {
    // As on Linux, the last of the bits does not count.
    let bits = bits.wrapping_sub(1);
    if at == 0 || bits == 0 {
        return Ok(0);
    }
    if bits > MAX_NODES {
        return Err(Errno::EINVAL);
    }
    let mut all = 0;
    for word in 0..bits.div_ceil(64) {
        let mut value = UserPtr::<u64>::new(at).add(word).read()?;
        if word == bits / 64 {
            value &= (1 << (bits % 64)) - 1;
        }
        if word > 0 && value != 0 {
            return Err(Errno::EINVAL);
        }
        all |= value;
    }
    if all >> 32 != 0 { Err(Errno::EINVAL) } else { Ok(all) }
}

/// Fails with EINVAL if the mode does not exist or if it is combined with flags that it does not support.
fn check_mode(mode: u64) -> Result<(), Errno> {
    let flags = mode & MODE_FLAGS;
    let fits = match mode & 0xffff_ffff & !MODE_FLAGS {
        _ if flags & STATIC != 0 && flags & RELATIVE != 0 => false,
        BIND | PREFERRED_MANY => true,
        mode => mode <= WEIGHTED && flags & BALANCING == 0,
    };
    if fits { Ok(()) } else { Err(Errno::EINVAL) }
}

/// Returns the tag of a policy that a program requests, after `check_mode` accepted its mode.
fn policy(mode: u64, nodes: u64) -> Result<u64, Errno> {
    let flags = mode & 0xffff_ffff & MODE_FLAGS;
    let existing = nodes & u64::from(frames::all_nodes());
    // Relative nodes are counted among those that exist, so every set of them contains one.
    if nodes != 0 && existing == 0 && flags & RELATIVE == 0 {
        return Err(Errno::EINVAL);
    }
    // Without a flag, the policy has only nodes that exist.
    let nodes = if flags & (RELATIVE | STATIC) == 0 { existing } else { nodes };
    match mode & 0xffff_ffff & !MODE_FLAGS {
        DEFAULT if nodes == 0 => Ok(0),
        LOCAL_NODE if nodes == 0 && flags == 0 => Ok(tag(LOCAL_NODE, 0)),
        PREFERRED if nodes == 0 && flags != 0 => Err(Errno::EINVAL),
        // As on Linux, PREFERRED without a node means the node on which the thread runs.
        PREFERRED if nodes == 0 => Ok(tag(LOCAL_NODE, 0)),
        // Only the lowest node counts.
        PREFERRED if flags == 0 => Ok(tag(PREFERRED, nodes & nodes.wrapping_neg())),
        PREFERRED => Ok(tag(PREFERRED | flags, nodes)),
        BIND | INTERLEAVE | PREFERRED_MANY | WEIGHTED if nodes != 0 => Ok(tag(mode & 0xffff_ffff, nodes)),
        _ => Err(Errno::EINVAL),
    }
}

/// Flag of mbind: fail if a page is on another node.
const MF_STRICT: u64 = 1;
/// Flag of mbind: move pages that only this process maps.
const MF_MOVE: u64 = 2;
/// Flag of mbind: move all pages.
const MF_MOVE_ALL: u64 = 4;

fn mbind(frame: &mut Frame) -> Answer {
    let [at, len, mode, mask, bits, flags] = frame.args();
    check_mode(mode)?;
    let nodes = nodes(mask, bits)?;
    if flags & !(MF_STRICT | MF_MOVE | MF_MOVE_ALL) != 0 {
        return Err(Errno::EINVAL);
    }
    let range = UserRange::decode_wrapping(at, len).ok_or(Errno::EINVAL)?;
    if range.is_empty() {
        return Ok(0);
    }
    let tag = policy(mode, nodes)?;
    let space = current().space();
    // As on Linux, the default policy permits all nodes.
    let is_strict = flags & MF_STRICT != 0 && tag != 0;
    let moves = flags & (MF_MOVE | MF_MOVE_ALL) != 0;
    let target = Target::Policy(tag);
    if is_strict && !moves && page_moves::misplaced(space, range, target)? > 0 {
        return Err(Errno::EIO);
    }
    space.set_policy(at, len, tag).map_err(|error| error.errno())?;
    if moves && tag != 0 {
        let left = page_moves::move_range(space, range, target, flags & MF_MOVE_ALL != 0)?;
        if is_strict && left > 0 {
            return Err(Errno::EIO);
        }
    }
    Ok(0)
}

/// Sets the home node of policies that have several nodes to choose from. A home node has no effect, because
/// all nodes have the same distance.
fn set_home_node(frame: &mut Frame) -> Answer {
    let [at, len, node, flags, ..] = frame.args();
    let range = UserRange::decode_wrapping(at, len).ok_or(Errno::EINVAL)?;
    if node >= frames::nodes() as u64 || flags != 0 {
        return Err(Errno::EINVAL);
    }
    let space = current().space();
    let mut answer = if range.is_empty() { Ok(0) } else { Err(Errno::ENOENT) };
    for line in space.maps(at).take_while(|line| line.start < range.end()) {
        checkpoint()?;
        match mode(space.find_vma(line.start).map_or(0, |vma| vma.policy())) {
            DEFAULT => {}
            BIND | PREFERRED_MANY => answer = Ok(0),
            _ => return Err(Errno::EOPNOTSUPP),
        }
    }
    answer
}

fn set_mempolicy(frame: &mut Frame) -> Answer {
    let [mode, mask, bits, ..] = frame.args();
    check_mode(mode)?;
    let tag = policy(mode, nodes(mask, bits)?)?;
    current().policy.set(tag);
    current().last_node.set(usize::MAX);
    Ok(0)
}

/// Flag: the policy of the VMA at an address (MPOL_F_ADDR).
const OF_ADDRESS: u64 = 2;
/// Flag: the node instead of the mode (MPOL_F_NODE).
const NODE: u64 = 1;
/// Flag: the set of allowed nodes (MPOL_F_MEMS_ALLOWED).
const ALLOWED: u64 = 4;

fn get_mempolicy(frame: &mut Frame) -> Answer {
    let [mode, mask, bits, at, flags, _] = frame.args();
    if flags & !(OF_ADDRESS | NODE | ALLOWED) != 0 || mask != 0 && bits < 1 {
        return Err(Errno::EINVAL);
    }
    let tag = match flags {
        ALLOWED => tag(0, frames::all_nodes().into()),
        _ if flags & ALLOWED != 0 => return Err(Errno::EINVAL),
        _ if flags & OF_ADDRESS != 0 => {
            let vma = current().space().find_vma(at).ok_or(Errno::EFAULT)?;
            let policy = vma.policy();
            drop(vma);
            policy
        }
        _ if at != 0 => return Err(Errno::EINVAL),
        _ => current().policy.get(),
    };
    let (answer, nodes) = (tag & 0xffff_ffff, tag >> 32);
    if let Some(place) = UserPtr::<u32>::optional(mode) {
        let word = match (flags & NODE != 0, flags & OF_ADDRESS != 0) {
            (false, _) => answer as u32,
            (true, true) => node_of_page(at)?,
            // The node of the next page.
            (true, false) if matches!(self::mode(tag), INTERLEAVE | WEIGHTED) => {
                next_node(existing_nodes(tag), current().last_node.get()) as u32
            }
            (true, false) => return Err(Errno::EINVAL),
        };
        place.write(&word)?;
    }
    if mask != 0 {
        for word in 0..bits.min(MAX_NODES).div_ceil(64) {
            UserPtr::<u64>::new(mask).add(word).write(&(if word == 0 { nodes } else { 0 }))?;
        }
    }
    Ok(0)
}

/// Returns the node of the page at an address. Brings the page into memory if necessary.
fn node_of_page(at: u64) -> Result<u32, Errno> {
    let space = current().space();
    loop {
        checkpoint()?;
        if let Some(node) = node_at(space, at) {
            return Ok(node as u32);
        }
        space.handle_fault(at, Access::READ).map_err(|_| Errno::EFAULT)?;
    }
}
