//! The calls for memory policies, on a machine with one NUMA node. The calls check their arguments as Linux
//! does, and store the policy of a VMA in the engine and the policy of a thread in the thread
//! (`PosixThread::policy`). A policy never changes where a page is allocated. The engine merges only VMAs whose
//! policies are equal. The program `corners.c` tests the calls.

use crate::arch::frame::Frame;
use crate::calls::answer::{Answer, Calls};
use crate::errno;
use crate::platform::user::UserPtr;
use crate::process::{self, Process};
use crate::sched::{checkpoint, current};
use alloc::sync::Arc;
use freehold::UserRange;
use freehold::error::Errno;
use linux_raw_sys::general::*;

pub const CALLS: Calls = &[
    (__NR_mbind, mbind),
    (__NR_set_mempolicy, set_mempolicy),
    (__NR_get_mempolicy, get_mempolicy),
    (__NR_set_mempolicy_home_node, set_home_node),
    (__NR_migrate_pages, migrate_pages),
    (__NR_move_pages, move_pages),
];

const DEFAULT: u64 = 0;
const PREFERRED: u64 = 1;
const BIND: u64 = 2;
const INTERLEAVE: u64 = 3;
const LOCAL: u64 = 4;
const PREFERRED_MANY: u64 = 5;
const WEIGHTED: u64 = 6;
/// Flags that are combined with the mode.
const MODE_FLAGS: u64 = BALANCING | RELATIVE | STATIC;
const BALANCING: u64 = 1 << 13;
const RELATIVE: u64 = 1 << 14;
const STATIC: u64 = 1 << 15;
/// Maximum number of nodes in a mask.
const MAX_NODES: u64 = 1024 * 32;

/// Encodes a policy in a word: the mode in the lower half, and the set of nodes in the upper half. The engine
/// only compares the words of two VMAs. The default policy is 0.
fn tag(mode: u64, nodes: u64) -> u64 {
    mode | nodes << 32
}

/// Returns the set of nodes in a mask. Node 0 is the only node that exists.
///
/// # Errors
///
/// EINVAL if the mask contains a node above 31 or is too long; EFAULT if it cannot be read.
fn nodes(at: u64, bits: u64) -> Result<u64, Errno> {
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
    // Relative nodes are counted among those that exist, so every set of them contains node 0.
    if nodes != 0 && nodes & 1 == 0 && flags & RELATIVE == 0 {
        return Err(Errno::EINVAL);
    }
    // Without a flag, the policy has only nodes that exist.
    let nodes = if flags & (RELATIVE | STATIC) == 0 { nodes & 1 } else { nodes };
    match mode & 0xffff_ffff & !MODE_FLAGS {
        DEFAULT if nodes == 0 => Ok(0),
        LOCAL if nodes == 0 && flags == 0 => Ok(tag(LOCAL, 0)),
        PREFERRED if nodes == 0 && flags != 0 => Err(Errno::EINVAL),
        // As on Linux, PREFERRED without a node means the node on which the thread runs.
        PREFERRED if nodes == 0 => Ok(tag(LOCAL, 0)),
        PREFERRED => Ok(tag(PREFERRED | flags, nodes)),
        BIND | INTERLEAVE | PREFERRED_MANY | WEIGHTED if nodes != 0 => Ok(tag(mode & 0xffff_ffff, nodes)),
        _ => Err(Errno::EINVAL),
    }
}

fn mbind(frame: &mut Frame) -> Answer {
    let [at, len, mode, mask, bits, flags] = frame.args();
    check_mode(mode)?;
    let nodes = nodes(mask, bits)?;
    if flags & !7 != 0 {
        return Err(Errno::EINVAL);
    }
    let range = UserRange::decode_wrapping(at, len).ok_or(Errno::EINVAL)?;
    if range.is_empty() {
        return Ok(0);
    }
    let tag = policy(mode, nodes)?;
    current().space().set_policy(at, len, tag).map(|()| 0).map_err(|error| error.errno())
}

/// Sets the home node of policies that have several nodes to choose from. The only home node is 0.
fn set_home_node(frame: &mut Frame) -> Answer {
    let [at, len, node, flags, ..] = frame.args();
    let range = UserRange::decode_wrapping(at, len).ok_or(Errno::EINVAL)?;
    if node != 0 || flags != 0 {
        return Err(Errno::EINVAL);
    }
    let space = current().space();
    let mut answer = if range.is_empty() { Ok(0) } else { Err(Errno::ENOENT) };
    for line in space.maps(at).take_while(|line| line.start < range.end()) {
        checkpoint()?;
        match space.find_vma(line.start).map_or(0, |vma| vma.policy()) & 0xffff_ffff & !MODE_FLAGS {
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
        ALLOWED => tag(0, 1),
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
    if let Some(mode) = UserPtr::<u32>::optional(mode) {
        // Any page at the address is on node 0.
        let is_node = flags & NODE != 0;
        if is_node && flags & OF_ADDRESS == 0 && answer != INTERLEAVE {
            return Err(Errno::EINVAL);
        }
        mode.write(&(if is_node { 0 } else { answer as u32 }))?;
    }
    if mask != 0 {
        for word in 0..bits.min(MAX_NODES).div_ceil(64) {
            UserPtr::<u64>::new(mask).add(word).write(&(if word == 0 { nodes } else { 0 }))?;
        }
    }
    Ok(0)
}

/// Flag: move pages that only this process maps.
const MOVE: u64 = 2;
/// Flag: move all pages.
const MOVE_ALL: u64 = 4;

/// Returns the process of the thread with this number, or for 0 the calling process.
fn process_of(pid: u64) -> Result<Arc<Process>, Errno> {
    if pid as i32 == 0 {
        return Ok(current().process().clone());
    }
    process::of_thread(pid as u32).ok_or(Errno::ESRCH)
}

/// Performs migrate_pages. Only checks the arguments, because there is one node.
fn migrate_pages(frame: &mut Frame) -> Answer {
    let [pid, bits, from, to, ..] = frame.args();
    nodes(from, bits)?;
    let to = nodes(to, bits)?;
    let process = process_of(pid)?;
    if to & 1 == 0 {
        return Err(Errno::EINVAL);
    }
    drop(process);
    Ok(0)
}

/// Performs move_pages. Reports node 0 for each present page; no page has to move.
fn move_pages(frame: &mut Frame) -> Answer {
    let [pid, count, pages, nodes, status, flags] = frame.args();
    if flags & !(MOVE | MOVE_ALL) != 0 {
        return Err(Errno::EINVAL);
    }
    let process = process_of(pid)?;
    let space = process.space.lock().clone().ok_or(Errno::EINVAL)?;
    for n in 0..count {
        checkpoint()?;
        let at = UserPtr::<u64>::new(pages).add(n).read()?;
        if let Some(nodes) = UserPtr::<u32>::optional(nodes)
            && nodes.add(n).read()? != 0
        {
            return Err(errno::ENODEV);
        }
        let word = match space.frame_at(at) {
            Some(_) => 0,
            None if space.find_vma(at).is_some() => -Errno::ENOENT.0,
            None => -Errno::EFAULT.0,
        };
        UserPtr::<i32>::new(status).add(n).write(&word)?;
    }
    Ok(0)
}
