//! Huge pages of one size, set aside for programs that ask for them by name (Linux: hstate).
//!
//! ```text
//! total = free + in use      free >= reserved      surplus = total - what was asked for, at most the overcommit limit
//! ```
//!
//! A reservation keeps a page for a process that has mapped memory and not touched it yet: as long as it
//! stands, nobody else gets the page. It names no page, only a number. Pages beyond what was asked for, the
//! *surplus*, are made when a reservation or a fault needs them, and go back to the platform as soon as
//! nobody does.
//!
//! | call | free | reserved | total | surplus |
//! | --- | --- | --- | --- | --- |
//! | [`reserve`](HugePool::reserve) n | those missing are made | + n | + those | + those |
//! | [`unreserve`](HugePool::unreserve) n | surplus that nobody needs goes | - n | - those | - those |
//! | [`take`](HugePool::take) with a reservation | - 1 | - 1 | | |
//! | `take` without | - 1, or one is made | | + 1 if made | + 1 if made |
//! | [`put`](HugePool::put) | + 1, or it goes if there is surplus | | - 1 if it goes | - 1 if it goes |
//! | `put` back unused, with its reservation | + 1 | + 1 | | |
//!
//! A page whose mapping is gone while somebody still looks at it (a transfer, a pin, a migration) may be
//! about to come back with the reservation that it came in place of: it is *returning*. Until it is there the
//! holder of that reservation may need it, or give it up: then the pool *owes* one, which the returning page
//! pays.
//!
//! ```text
//! reservations that stand = reserved - owed + returning      owed <= returning
//! ```
//!
//! | call | reserved | returning | owed |
//! | --- | --- | --- | --- |
//! | [`will_return`](HugePool::will_return) | | + 1 | |
//! | [`put_returning`](HugePool::put_returning) | + 1, or none if one was owed | - 1 | - 1, if one was |
//! | `take` with a reservation, `unreserve`; none is there | | | + 1 |
//!
//! With a reservation and no free page, `take` says that a page is returning, which the taker may get: it
//! sleeps until something changes, killably, with no lock held.
//!
//! Free pages are listed through the records of their first frames, so nothing here allocates but the list of
//! nodes, once.
#![expect(unsafe_code, reason = "gives frames back to the platform")]

use crate::{
    NoMemory, Pfn,
    platform::{FramePurpose, FrameRequest, Platform},
};
use allocator_api2::vec::Vec;
use core::{fmt, ops::Range};
use freehold_pagetable::Level;
use freehold_sync::{
    Killed, Rank, SpinGuard, SpinLock,
    atomic::{
        AtomicU32,
        Ordering::{Acquire, Relaxed},
    },
};

/// Frames given back to the platform at a time.
const BATCH: usize = 64;

/// There are not enough huge pages.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct NoHugePages;

impl fmt::Display for NoHugePages {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("the pool has not enough huge pages")
    }
}

impl core::error::Error for NoHugePages {}

/// Why a page could not be taken.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum TakeError {
    /// There is none.
    NoHugePage,
    /// There is a reservation, and its page is returning: see [`HugePool::wait`].
    Returning(u32),
}

impl fmt::Display for TakeError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            TakeError::NoHugePage => "the pool has no free huge page",
            TakeError::Returning(_) => "the reserved huge page is returning to the pool",
        })
    }
}

impl core::error::Error for TakeError {}

/// Numbers of huge pages, as /sys/kernel/mm/hugepages shows them.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default)]
pub struct HugePoolCounts {
    /// In the pool or in use (nr_hugepages).
    pub total: u64,
    /// Not in use (free_hugepages).
    pub free: u64,
    /// Reserved and not yet in use (resv_hugepages); of all nodes together.
    pub reserved: u64,
    /// Beyond what was asked for (surplus_hugepages).
    pub surplus: u64,
}

/// The pool of one size.
pub struct HugePool<P: Platform> {
    level: Level,
    counts: SpinLock<PoolCounts>,
    /// Changed whenever pages or reservations come back while somebody waits for that; slept upon.
    change_seq: AtomicU32,
    host: core::marker::PhantomData<fn(P)>,
}

/// Guarded by the pool's lock.
struct PoolCounts {
    nodes: Vec<Node>,
    reserved: u64,
    /// See the module.
    returning: u64,
    owed: u64,
    /// Somebody sleeps until a page comes back.
    awaited: bool,
    /// Most surplus pages there may be (nr_overcommit_hugepages).
    overcommit: u64,
}

/// What a NUMA node has.
#[derive(Clone, Copy)]
struct Node {
    pages: PageList,
    /// Pages in the chain.
    free: u64,
    total: u64,
    surplus: u64,
}

impl<P: Platform> HugePool<P> {
    /// An empty pool of pages as one entry of `level` maps.
    ///
    /// # Errors
    ///
    /// No memory.
    pub(crate) fn try_new(level: Level) -> Result<Self, NoMemory> {
        let mut nodes = Vec::new();
        nodes.try_reserve_exact(P::NODES).map_err(|_| NoMemory)?;
        nodes.extend((0..P::NODES).map(|_| Node { pages: PageList::EMPTY, free: 0, total: 0, surplus: 0 }));
        let counts = SpinLock::new(
            PoolCounts { nodes, reserved: 0, returning: 0, owed: 0, awaited: false, overcommit: 0 },
            Rank::Frames,
        );
        Ok(HugePool { level, counts, change_seq: AtomicU32::new(0), host: core::marker::PhantomData })
    }

    /// Bytes of one page.
    pub fn page_bytes(&self) -> u64 {
        self.level.span()
    }

    /// How many pages there are, of a node or of all.
    pub fn counts(&self, node: Option<usize>) -> HugePoolCounts {
        let counts = self.lock();
        let sum = |count: fn(&Node) -> u64| match node {
            Some(node) => counts.nodes.get(node).map_or(0, count),
            None => counts.nodes.iter().map(count).sum(),
        };
        HugePoolCounts {
            total: sum(|node| node.total),
            free: sum(|node| node.free),
            reserved: counts.reserved,
            surplus: sum(|node| node.surplus),
        }
    }

    /// Allows so many pages beyond those asked for. Those that are there stay until they are given back.
    pub fn set_overcommit(&self, huge_pages: u64) {
        self.lock().overcommit = huge_pages;
    }

    fn lock(&self) -> SpinGuard<'_, PoolCounts, P> {
        self.counts.lock()
    }
}

/// For the crate `freehold`, which takes pages and reservations, and gives them back. The platform is that of
/// the pool's memory.
#[doc(hidden)]
impl<P: Platform> HugePool<P> {
    /// Asks for `huge_pages` of them, on `node` or spread over all; returns how many there then are, surplus
    /// excepted. Fewer: no memory. What is in use or reserved stays beyond that, as surplus.
    ///
    /// # Locks
    ///
    /// The pool's, not held while the platform allocates or takes back.
    pub(crate) fn resize(&self, platform: &P, huge_pages: u64, node: Option<usize>) -> u64 {
        let nodes = match node {
            None => 0..P::NODES,
            Some(node) if node < P::NODES => node..node + 1,
            // There is no such node, and nothing on it.
            Some(_) => return 0,
        };
        // From surplus or fresh, a node after the other, until all in turn had none.
        let (mut turns, mut failed) = (nodes.clone().cycle(), 0);
        while failed < nodes.len() && self.lock().requested(nodes.clone()) < huge_pages {
            let n = turns.next().unwrap_or_default();
            let more = self.lock().adopt_surplus(n) || self.alloc_page(platform, n, |_| true);
            failed = if more { 0 } else { failed + 1 };
        }
        let mut counts = self.lock();
        let mut freed = PageList::EMPTY;
        while counts.requested(nodes.clone()) > huge_pages {
            counts.reduce_requested(platform, nodes.clone(), &mut freed);
        }
        let requested = counts.requested(nodes);
        drop(counts);
        self.free(platform, freed);
        requested
    }

    /// Reserves so many.
    ///
    /// # Errors
    ///
    /// There are not so many, nor may so many be made; nothing is reserved.
    pub fn reserve(&self, platform: &P, huge_pages: u64) -> Result<(), NoHugePages> {
        loop {
            let mut counts = self.lock();
            if counts.available() >= huge_pages {
                counts.reserved += huge_pages;
                return Ok(());
            }
            let missing = huge_pages - counts.available();
            let possible = counts.surplus() + missing <= counts.overcommit;
            drop(counts);
            if !possible || !self.alloc_surplus(platform) {
                // Those that were made in vain.
                self.update(platform, |_| ());
                return Err(NoHugePages);
            }
        }
    }

    /// Takes reservations back.
    pub fn unreserve(&self, platform: &P, huge_pages: u64) {
        self.update(platform, |counts| counts.unreserve(huge_pages));
    }

    /// A page, from `node` if it has one, contents undefined; in place of a reservation, or one that nobody
    /// has reserved.
    ///
    /// # Errors
    ///
    /// None is left. With a reservation only as long as a page is returning.
    pub fn take(&self, platform: &P, reserved: bool, node: Option<usize>) -> Result<Pfn, TakeError> {
        loop {
            let mut counts = self.lock();
            if (reserved && counts.reserved > 0) || counts.available() > 0 {
                let page = counts.pop(platform, node).ok_or(TakeError::NoHugePage)?;
                if reserved {
                    counts.unreserve(1);
                }
                return Ok(page);
            }
            let possible = counts.surplus() < counts.overcommit;
            drop(counts);
            if !possible || !self.alloc_surplus(platform) {
                return Err(if reserved { self.returning_or_none() } else { TakeError::NoHugePage });
            }
        }
    }

    /// Whether it is worth to wait for a page that a reservation stands for.
    fn returning_or_none(&self) -> TakeError {
        let mut counts = self.lock();
        if counts.reserved == 0 && counts.available() == 0 && counts.owed == counts.returning {
            return TakeError::NoHugePage;
        }
        counts.awaited = true;
        // Relaxed: changed under the lock.
        TakeError::Returning(self.change_seq.load(Relaxed))
    }

    /// Sleeps until something has changed since [`TakeError::Returning`] was said. The caller holds no lock.
    ///
    /// # Errors
    ///
    /// A fatal signal ended the wait.
    pub fn wait(&self, seen: u32) -> Result<(), Killed> {
        // Acquire pairs with nothing: the pool's lock orders what follows.
        while self.change_seq.load(Acquire) == seen {
            P::wait_killable(&self.change_seq, seen)?;
        }
        Ok(())
    }

    /// A page is about to come back by [`put_returning`](Self::put_returning), when its last reference
    /// goes.
    pub fn will_return(&self) {
        self.lock().returning += 1;
    }

    /// Takes a page back, of which [`will_return`](Self::will_return) told, with the reservation that it came
    /// in place of.
    pub fn put_returning(&self, platform: &P, page: Pfn) {
        self.update(platform, |counts| {
            counts.push(platform, page);
            counts.returned();
            counts.reserved += u64::from(!counts.repay());
        });
    }

    /// Takes a page back that nobody uses any more; `restore`: it came in place of a reservation that stands
    /// again.
    pub fn put(&self, platform: &P, page: Pfn, restore: bool) {
        self.update(platform, |counts| {
            counts.push(platform, page);
            counts.reserved += u64::from(restore);
        });
    }

    /// A page of which a frame failed is not the pool's any more; `returning`:
    /// [`will_return`](Self::will_return) told of it. Its frames are the caller's.
    pub fn remove_failed(&self, platform: &P, page: Pfn, returning: bool) {
        self.update(platform, |counts| {
            let node = &mut counts.nodes[platform.node_of(page)];
            node.total -= 1;
            // If there were more than asked for, it was one of those.
            node.surplus -= u64::from(node.surplus > 0);
            if returning {
                counts.returned();
                // The reservation stands as far as there is another page for it.
                let stands = !counts.repay() && counts.available() > 0;
                counts.reserved += u64::from(stands);
            }
        });
    }

    /// Takes this very page out of the pool, because the memory of a frame of it failed. False: it is not
    /// free, or reserved.
    pub fn remove_free(&self, platform: &P, page: Pfn) -> bool {
        let mut counts = self.lock();
        let node = platform.node_of(page);
        if counts.available() == 0 || !counts.nodes[node].pages.remove(platform, page) {
            return false;
        }
        counts.nodes[node].free -= 1;
        counts.nodes[node].total -= 1;
        true
    }

    /// Changes the counts, and gives back what surplus nobody needs then.
    fn update(&self, platform: &P, change: impl FnOnce(&mut PoolCounts)) {
        let mut counts = self.lock();
        change(&mut counts);
        let mut freed = PageList::EMPTY;
        counts.drop_unused_surplus(platform, &mut freed);
        let awaited = self.note_change(&mut counts);
        drop(counts);
        self.wake(awaited);
        self.free(platform, freed);
    }

    /// What somebody may wait for may have come. Under the lock; [`wake`](Self::wake) follows without it.
    fn note_change(&self, counts: &mut PoolCounts) -> bool {
        let awaited = core::mem::take(&mut counts.awaited);
        if awaited {
            // Relaxed: sleepers compare it in one step with going to sleep, and look at the counts under the
            // lock.
            self.change_seq.fetch_add(1, Relaxed);
        }
        awaited
    }

    fn wake(&self, awaited: bool) {
        if awaited {
            P::wake_all(&self.change_seq);
        }
    }

    /// A fresh page for the free list, as surplus, on whatever node has memory.
    fn alloc_surplus(&self, platform: &P) -> bool {
        (0..P::NODES).any(|n| {
            self.alloc_page(platform, n, |counts| {
                let allowed = counts.surplus() < counts.overcommit;
                counts.nodes[n].surplus += u64::from(allowed);
                allowed
            })
        })
    }

    /// A fresh page of node `n` for the free list, if `allowed` says so when it is there.
    fn alloc_page(&self, platform: &P, n: usize, allowed: impl FnOnce(&mut PoolCounts) -> bool) -> bool {
        let request = FrameRequest::blocks(FramePurpose::HugePool, self.level).on(n);
        let mut page = [Pfn::new(0)];
        if platform.alloc_frames(&request, &mut page) == 0 {
            return false;
        }
        let [page] = page;
        let mut counts = self.lock();
        if !allowed(&mut counts) {
            drop(counts);
            let mut freed = PageList::EMPTY;
            freed.push(platform, page);
            self.free(platform, freed);
            return false;
        }
        counts.nodes[n].total += 1;
        counts.push(platform, page);
        let awaited = self.note_change(&mut counts);
        drop(counts);
        self.wake(awaited);
        true
    }

    /// Gives pages back to the platform.
    fn free(&self, platform: &P, mut pages: PageList) {
        while let Some(page) = pages.pop(platform) {
            for batch in (0..self.level.frames()).step_by(BATCH) {
                let frames: [Pfn; BATCH] = core::array::from_fn(|n| page.add(batch + n as u64));
                // SAFETY: the page was free in the pool, or is fresh: nobody refers to its frames, and every
                // translation was flushed before it became free.
                unsafe { platform.free_frames(&frames) };
            }
        }
    }
}

/// Free pages, each naming the next in the record of its first frame; changed by the holder of the list
/// alone.
#[derive(Clone, Copy)]
struct PageList {
    /// The first by its number plus one, or 0.
    first: u64,
}

impl PageList {
    const EMPTY: PageList = PageList { first: 0 };

    fn push<P: Platform>(&mut self, platform: &P, page: Pfn) {
        platform.frame(page).set_next(self.first);
        self.first = page.get() + 1;
    }

    fn pop<P: Platform>(&mut self, platform: &P) -> Option<Pfn> {
        let page = Pfn::new(self.first.checked_sub(1)?);
        self.first = platform.frame(page).next();
        platform.frame(page).set_next(0);
        Some(page)
    }

    /// Takes `page` out if it is in the list.
    fn remove<P: Platform>(&mut self, platform: &P, page: Pfn) -> bool {
        let wanted = page.get() + 1;
        let rest = platform.frame(page).next();
        if self.first == wanted {
            self.first = rest;
        } else {
            let mut at = self.first;
            loop {
                let Some(number) = at.checked_sub(1) else { return false };
                let frame = platform.frame(Pfn::new(number));
                if frame.next() == wanted {
                    frame.set_next(rest);
                    break;
                }
                at = frame.next();
            }
        }
        platform.frame(page).set_next(0);
        true
    }
}

impl PoolCounts {
    fn sum(&self, count: impl Fn(&Node) -> u64) -> u64 {
        self.nodes.iter().map(count).sum()
    }

    fn surplus(&self) -> u64 {
        self.sum(|node| node.surplus)
    }

    /// Free pages that nobody has reserved.
    fn available(&self) -> u64 {
        self.sum(|node| node.free) - self.reserved
    }

    /// So many reservations were used, or given back. Those that are not there yet come with pages that are
    /// returning.
    fn unreserve(&mut self, huge_pages: u64) {
        let there = huge_pages.min(self.reserved);
        self.reserved -= there;
        let owed = huge_pages - there;
        debug_assert!(self.owed + owed <= self.returning, "more reservations are given back than there are");
        // Of a page that was lost with its memory nothing comes back.
        self.owed = (self.owed + owed).min(self.returning);
    }

    /// A page that was returning is there.
    fn returned(&mut self) {
        debug_assert!(self.returning > 0, "a page came back that nobody was told of");
        self.returning -= 1;
    }

    /// Whether the reservation that comes with a page was owed.
    fn repay(&mut self) -> bool {
        let owed = self.owed > 0;
        self.owed -= u64::from(owed);
        owed
    }

    /// Pages of these nodes that were asked for.
    fn requested(&self, nodes: Range<usize>) -> u64 {
        self.nodes[nodes].iter().map(|node| node.total - node.surplus).sum()
    }

    /// Whether a surplus page of node `n` became one that was asked for.
    fn adopt_surplus(&mut self, n: usize) -> bool {
        let surplus = &mut self.nodes[n].surplus;
        let any = *surplus > 0;
        *surplus -= u64::from(any);
        any
    }

    /// One page less is asked for of these nodes, of the one that has most. It goes if it is free and not
    /// reserved.
    fn reduce_requested<P: Platform>(&mut self, platform: &P, nodes: Range<usize>, freed: &mut PageList) {
        let spare = self.available() > 0;
        let requested = |n: &usize| self.nodes[*n].total - self.nodes[*n].surplus;
        let with_free = |n: &usize| spare && self.nodes[*n].free > 0 && requested(n) > 0;
        if let Some(n) = nodes.clone().filter(with_free).max_by_key(requested) {
            self.drop_free(platform, n, freed);
        } else if let Some(n) = nodes.max_by_key(requested) {
            self.nodes[n].surplus += 1;
        }
    }

    /// A free page of node `n`, which has one, leaves the pool.
    fn drop_free<P: Platform>(&mut self, platform: &P, n: usize, freed: &mut PageList) {
        let node = &mut self.nodes[n];
        if let Some(page) = node.pages.pop(platform) {
            node.free -= 1;
            node.total -= 1;
            freed.push(platform, page);
        }
    }

    /// Surplus that is free and not reserved leaves the pool.
    fn drop_unused_surplus<P: Platform>(&mut self, platform: &P, freed: &mut PageList) {
        while self.available() > 0 {
            let Some(n) = self.nodes.iter().position(|node| node.surplus > 0 && node.free > 0) else { break };
            self.nodes[n].surplus -= 1;
            self.drop_free(platform, n, freed);
        }
    }

    fn push<P: Platform>(&mut self, platform: &P, page: Pfn) {
        let node = &mut self.nodes[platform.node_of(page)];
        node.pages.push(platform, page);
        node.free += 1;
    }

    /// A free page, of `node` if it has one.
    fn pop<P: Platform>(&mut self, platform: &P, node: Option<usize>) -> Option<Pfn> {
        let preferred = node.filter(|n| self.nodes.get(*n).is_some_and(|node| node.free > 0));
        let n = preferred.or_else(|| self.nodes.iter().position(|node| node.free > 0))?;
        self.nodes[n].free -= 1;
        self.nodes[n].pages.pop(platform)
    }
}
