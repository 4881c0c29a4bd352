//! Moves of pages between NUMA nodes: move_pages, migrate_pages, and the moves that mbind requests. The
//! engine moves one page at a time (`Engine::migrate_to`) while programs use it; this file selects the pages.
//!
//! A page that cannot move, for example a pinned one, stays where it is and is counted. No lock is held
//! between two pages. The program `nodes.c` of the tests checks the calls.

use crate::arch::frame::Frame;
use crate::calls::answer::{Answer, Calls};
use crate::calls::policies::nodes;
use crate::errno;
use crate::memory::frames::{self, Nodes};
use crate::platform::policy::{existing_nodes, next_node, nodes_of_mapping};
use crate::platform::user::UserPtr;
use crate::platform::{Space, engine};
use crate::process::{self, Process};
use crate::sched::{checkpoint, current};
use alloc::sync::Arc;
use core::ops::ControlFlow;
use freehold::error::{Errno, MigrateError};
use freehold::report::pagemap::{EntryRun, PageEntry, PageKind};
use freehold::{PAGE_SIZE, Pfn, UserRange};
use linux_raw_sys::general::*;

pub const CALLS: Calls = &[(__NR_migrate_pages, migrate_pages), (__NR_move_pages, move_pages)];

/// Flag of move_pages: move pages that only this process maps.
const MOVE: u64 = 2;
/// Flag of move_pages: move all pages.
const MOVE_ALL: u64 = 4;

/// The nodes to which pages move.
#[derive(Clone, Copy)]
pub enum Target {
    /// The nodes of a policy. Pages on one of them stay.
    Policy(u64),
    /// From each node of the first set to the node with the same place in the second set.
    Sets { from: u32, to: u32 },
}

impl Target {
    /// Returns the node to which a page on `node` has to move. `page` is the number of the page. Returns
    /// `None` if the page may stay.
    fn of(self, node: usize, page: u64) -> Option<usize> {
        match self {
            Target::Policy(tag) if existing_nodes(tag) == 0 || existing_nodes(tag) >> node & 1 != 0 => None,
            Target::Policy(tag) => {
                let Nodes { first, then } = nodes_of_mapping(tag, page);
                Some(next_node(if first != 0 { first } else { then }, usize::MAX))
            }
            Target::Sets { from, .. } if from >> node & 1 == 0 => None,
            Target::Sets { from, to } => {
                // With sets of different sizes, a page that is on a wanted node stays.
                if from.count_ones() != to.count_ones() && to >> node & 1 != 0 {
                    return None;
                }
                let place = (from & ((1 << node) - 1)).count_ones() % to.count_ones().max(1);
                let target = (0..place).fold(next_node(to, usize::MAX), |node, _| next_node(to, node));
                Some(target).filter(|target| *target != node)
            }
        }
    }
}

/// The page at an address.
struct PageAt {
    pfn: Pfn,
    /// True if no other entry maps the page.
    is_exclusive: bool,
}

/// Returns the page at an address. Returns `None` if no page is present, or only the page of zeroes or a page
/// that the engine does not own.
fn page_at(space: &Space, at: u64) -> Option<PageAt> {
    let (at, mut found) = (at & !(PAGE_SIZE - 1), None);
    space.page_entries(at..at + PAGE_SIZE, |run| {
        if let PageEntry::Page { kind: PageKind::Anon | PageKind::File, exclusive } = run.entry {
            found = Some(exclusive);
        }
        ControlFlow::Break(())
    });
    let is_exclusive = found?;
    Some(PageAt { pfn: space.frame_at(at)?, is_exclusive })
}

/// Returns the node of the frame at an address, if a page is present there.
pub fn node_at(space: &Space, at: u64) -> Option<usize> {
    space.frame_at(at).map(|pfn| frames::node_of(pfn.get()))
}

/// Moves a page to a node. Returns an errno if the page stays.
fn move_page(page: &PageAt, node: usize, all: bool) -> Result<(), Errno> {
    if !page.is_exclusive && !all {
        return Err(Errno::EACCES);
    }
    match engine().migrate_to(page.pfn, node) {
        Ok(_) => Ok(()),
        Err(MigrateError::OutOfMemory) => Err(Errno::ENOMEM),
        Err(MigrateError::NoPage) => Err(Errno::ENOENT),
        Err(_) => Err(Errno::EBUSY),
    }
}

/// Calls `f` with each page of a range that has to move, and with its target. `f` also gets the number of
/// bytes that one entry maps.
fn each_misplaced(
    space: &Space,
    range: UserRange,
    target: Target,
    mut f: impl FnMut(u64, usize),
) -> Result<(), Errno> {
    let mut at = range.start();
    while at < range.end() {
        checkpoint()?;
        // One run at a time, because no lock is held while pages move.
        let mut found: Option<EntryRun> = None;
        space.page_entries(at..range.end(), |run| match run.entry {
            PageEntry::Page { kind: PageKind::Anon | PageKind::File, .. } => {
                found = Some(run);
                ControlFlow::Break(())
            }
            _ => ControlFlow::Continue(()),
        });
        let Some(run) = found else { break };
        let (start, end) = (run.range.start().max(at), run.range.end().min(range.end()));
        // All pages of a huge page move together.
        let step = if run.huge { end - start } else { PAGE_SIZE };
        at = start;
        while at < end {
            checkpoint()?;
            if let Some(node) = node_at(space, at)
                && let Some(to) = target.of(node, at / PAGE_SIZE)
            {
                f(at, to);
            }
            at += step;
        }
    }
    Ok(())
}

/// Returns the number of pages of a range that a policy does not permit where they are.
pub fn misplaced(space: &Space, range: UserRange, target: Target) -> Result<u64, Errno> {
    let mut count = 0;
    each_misplaced(space, range, target, |_, _| count += 1)?;
    Ok(count)
}

/// Moves the pages of a range to their targets. With `all`, also moves pages that other processes map.
/// Returns the number of pages that stay although they should move.
pub fn move_range(space: &Space, range: UserRange, target: Target, all: bool) -> Result<u64, Errno> {
    let mut left = 0;
    each_misplaced(space, range, target, |at, node| {
        let page = page_at(space, at);
        left += u64::from(page.is_some_and(|page| move_page(&page, node, all).is_err()));
    })?;
    Ok(left)
}

/// Returns the process of the thread with this number, or for 0 the calling process.
fn process_of(pid: u64) -> Result<Arc<Process>, Errno> {
    if pid as i32 == 0 {
        return Ok(current().process().clone());
    }
    process::of_thread(pid as u32).ok_or(Errno::ESRCH)
}

/// Moves all pages of a process from some nodes to others. Returns the number of pages that could not be
/// moved.
fn migrate_pages(frame: &mut Frame) -> Answer {
    let [pid, bits, from, to, ..] = frame.args();
    let from = nodes(from, bits)?;
    let to = nodes(to, bits)?;
    let process = process_of(pid)?;
    let to = to as u32 & frames::all_nodes();
    if to == 0 {
        return Err(Errno::EINVAL);
    }
    let from = from as u32 & frames::all_nodes();
    let space = process.space.lock().clone().ok_or(Errno::EINVAL)?;
    drop(process);
    move_range(&space, UserRange::clipped(0, u64::MAX), Target::Sets { from, to }, true)
}

/// Moves pages to nodes, or reports the nodes of pages. Returns the number of pages that were not moved.
fn move_pages(frame: &mut Frame) -> Answer {
    let [pid, count, pages, nodes, status, flags] = frame.args();
    if flags & !(MOVE | MOVE_ALL) != 0 {
        return Err(Errno::EINVAL);
    }
    let process = process_of(pid)?;
    let space = process.space.lock().clone().ok_or(Errno::EINVAL)?;
    let mut left = 0;
    for n in 0..count {
        checkpoint()?;
        let at = UserPtr::<u64>::new(pages).add(n).read()?;
        let to = match UserPtr::<i32>::optional(nodes) {
            Some(nodes) => Some(usize::try_from(nodes.add(n).read()?).map_err(|_| errno::ENODEV)?),
            None => None,
        };
        if to.is_some_and(|to| to >= frames::nodes()) {
            return Err(errno::ENODEV);
        }
        let word = match (page_at(&space, at), to) {
            (Some(page), to) => {
                let node = frames::node_of(page.pfn.get());
                match to.filter(|to| *to != node).map(|to| (to, move_page(&page, to, flags & MOVE_ALL != 0)))
                {
                    None => node as i32,
                    Some((to, Ok(()))) => to as i32,
                    Some((_, Err(error))) => {
                        left += u64::from(error != Errno::EACCES);
                        -error.0
                    }
                }
            }
            // The page of zeroes has no node.
            (None, _) if space.frame_at(at).is_some() => -Errno::EFAULT.0,
            (None, _) if space.find_vma(at).is_some() => -Errno::ENOENT.0,
            (None, _) => -Errno::EFAULT.0,
        };
        UserPtr::<i32>::new(status).add(n).write(&word)?;
    }
    Ok(left)
}
