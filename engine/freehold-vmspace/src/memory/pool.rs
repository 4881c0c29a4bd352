//! Pools of huge pages of one size, set aside for programs that request them explicitly (Linux: hstate).
//!
//! ```text
//! total = free + in use      free >= reserved      surplus = total - requested, at most the overcommit limit
//! ```
//!
//! A reservation keeps a page for a process that has mapped memory and not touched it yet: no other process
//! gets the page while the reservation exists. A reservation is only a number and names no page. Pages beyond
//! the requested number, the *surplus*, are allocated when a reservation or a fault needs them. They are
//! freed to the platform as soon as they are neither used nor reserved.
//!
//! | call | free | reserved | total | surplus |
//! | --- | --- | --- | --- | --- |
//! | [`reserve`](HugePool::reserve) n | missing pages are allocated | + n | + allocated | + allocated |
//! | [`unreserve`](HugePool::unreserve) n | unneeded surplus is freed | - n | - freed | - freed |
//! | [`take`](HugePool::take) with a reservation | - 1 | - 1 | | |
//! | `take` without | - 1, or one page is allocated | | + 1 if allocated | + 1 if allocated |
//! | [`put`](HugePool::put) | + 1, or the page is freed if there is surplus | | - 1 if freed | - 1 if freed |
//! | `put` of an unused page, with its reservation | + 1 | + 1 | | |
//!
//! A page may still have references after its mapping was removed, for example those of a transfer, a pin, or
//! a migration. If the page will come back together with the reservation that it was taken for, it is
//! *returning*. Before the page comes back, the holder of that reservation may need a page, or may cancel the
//! reservation. If `reserved` is 0 at that time, the pool *owes* one reservation, which the returning page
//! pays.
//!
//! ```text
//! existing reservations = reserved - owed + returning      owed <= returning
//! ```
//!
//! | call | reserved | returning | owed |
//! | --- | --- | --- | --- |
//! | [`will_return`](HugePool::will_return) | | + 1 | |
//! | [`put_returning`](HugePool::put_returning) | + 1, or none if one was owed | - 1 | - 1, if one was owed |
//! | `take` with a reservation, or `unreserve`, while `reserved` is 0 | | | + 1 |
//!
//! If a task has a reservation and there is no free page, `take` reports that a page is returning. The task
//! then sleeps until the pool changes. The sleep is killable, and the task holds no lock.
//!
//! A [`HugePool`] has one spin lock over all its counts ([`PoolCounts`]). No task allocates, frees to the
//! platform, or wakes a task under this lock, so a function that releases the lock for such a step reads the
//! counts again afterwards. Free pages are linked through the records of their first frames ([`PageList`]),
//! so this module allocates only the list of nodes, once.
//!
//! `hugetlb/state/reserves.rs` of `freehold` makes and cancels reservations. `huge.rs` takes pages for faults
//! and files, and returns a page when its last reference is dropped; `rmap/failure.rs` removes pages whose
//! memory failed. The tests are `hugetlb` (`engine/freehold/tests`) and `hugetlb` (`shuttle_engine`).
#![expect(unsafe_code, reason = "frees frames to the platform")]

use crate::{
    NoMemory, Pfn,
    platform::{FramePurpose, FrameRequest, NodeChoice, Platform},
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

/// Number of frames freed to the platform at a time.
const BATCH: usize = 64;

/// There are not enough huge pages.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct NoHugePages;

impl fmt::Display for NoHugePages {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("the pool does not have enough huge pages")
    }
}

impl core::error::Error for NoHugePages {}

/// The reason why a page could not be taken.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum TakeError {
    /// There is no free page that the caller may take.
    NoHugePage,
    /// The caller has a reservation, and its page is returning: see [`HugePool::wait`].
    Returning(u32),
    /// The owner of the page may not have more huge pages
    /// ([`charge_huge_page`](Platform::charge_huge_page)).
    Refused,
}

impl fmt::Display for TakeError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            TakeError::NoHugePage => "the pool has no free huge page",
            TakeError::Refused => "the owner of the huge page may not have more",
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
    /// Reserved and not yet in use (resv_hugepages). This count covers all nodes together.
    pub reserved: u64,
    /// Beyond the requested number (surplus_hugepages).
    pub surplus: u64,
}

/// The pool of huge pages of one size.
pub struct HugePool<P: Platform> {
    level: Level,
    counts: SpinLock<PoolCounts>,
    /// Incremented when pages or reservations return while a task waits for them. Waiting tasks sleep on this
    /// word.
    change_seq: AtomicU32,
    host: core::marker::PhantomData<fn(P)>,
}

/// The counts of a pool, guarded by the pool's lock.
struct PoolCounts {
    nodes: Vec<Node>,
    reserved: u64,
    /// See the module for `returning` and `owed`.
    returning: u64,
    owed: u64,
    /// A task sleeps until a page returns.
    awaited: bool,
    /// Maximum number of surplus pages (nr_overcommit_hugepages).
    overcommit: u64,
}

/// The pages of one NUMA node.
#[derive(Clone, Copy)]
struct Node {
    pages: PageList,
    /// Number of pages in the list.
    free: u64,
    total: u64,
    surplus: u64,
}

impl<P: Platform> HugePool<P> {
    /// Creates an empty pool of pages of the size that one entry of `level` maps.
    ///
    /// # Errors
    ///
    /// Fails if there is no memory.
    pub(crate) fn try_new(platform: &P, level: Level) -> Result<Self, NoMemory> {
        let mut nodes = Vec::new();
        nodes.try_reserve_exact(platform.nodes()).map_err(|_| NoMemory)?;
        nodes.extend((0..platform.nodes()).map(|_| Node {
            pages: PageList::EMPTY,
            free: 0,
            total: 0,
            surplus: 0,
        }));
        let counts = SpinLock::new(
            PoolCounts { nodes, reserved: 0, returning: 0, owed: 0, awaited: false, overcommit: 0 },
            Rank::Frames,
        );
        Ok(HugePool { level, counts, change_seq: AtomicU32::new(0), host: core::marker::PhantomData })
    }

    /// Returns the number of bytes of one page.
    pub fn page_bytes(&self) -> u64 {
        self.level.span()
    }

    /// Returns the numbers of pages of one node or of all nodes.
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

    /// Sets the maximum number of pages beyond the requested number. Existing surplus pages stay until they
    /// are unused.
    pub fn set_overcommit(&self, huge_pages: u64) {
        self.lock().overcommit = huge_pages;
    }

    fn lock(&self) -> SpinGuard<'_, PoolCounts, P> {
        self.counts.lock()
    }
}

/// Taking and returning pages and reservations, for the crate `freehold`. `platform` is that of the pool's
/// memory.
#[doc(hidden)]
impl<P: Platform> HugePool<P> {
    /// Sets the requested number of pages on `node`, or spread over all nodes. Returns the resulting number,
    /// without surplus. The result is smaller than `huge_pages` if there is no memory. If pages beyond that
    /// number are in use or reserved, they stay as surplus.
    ///
    /// # Locks
    ///
    /// Takes the pool's lock, but does not hold it while the platform allocates or frees.
    pub(crate) fn resize(&self, platform: &P, huge_pages: u64, node: Option<usize>) -> u64 {
        let nodes = match node {
            None => 0..platform.nodes(),
            Some(node) if node < platform.nodes() => node..node + 1,
            // There is no such node, so it has no pages.
            Some(_) => return 0,
        };
        // Takes surplus or new pages from the nodes in rotation, until there are enough or no node has any
        // more.
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

    /// Reserves `huge_pages` pages.
    ///
    /// # Errors
    ///
    /// Fails, and reserves nothing, if there are not enough pages and not enough may be allocated.
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
            if !possible || !self.alloc_surplus(platform, NodeChoice::of_task(platform)) {
                // Frees the pages that were allocated for this call.
                self.update(platform, |_| ());
                return Err(NoHugePages);
            }
        }
    }

    /// Cancels reservations.
    pub fn unreserve(&self, platform: &P, huge_pages: u64) {
        self.update(platform, |counts| counts.unreserve(huge_pages));
    }

    /// Takes a page with undefined contents, of the best node that has one. If `reserved` is set, the page
    /// uses up a reservation; otherwise the call takes no reserved page.
    ///
    /// # Errors
    ///
    /// Fails if no page is left on these nodes. With a reservation on any node, this happens only while a
    /// page is returning.
    pub fn take(&self, platform: &P, reserved: bool, nodes: NodeChoice) -> Result<Pfn, TakeError> {
        let mut can_allocate = true;
        loop {
            let mut counts = self.lock();
            let is_left = (reserved && counts.reserved > 0) || counts.available() > 0;
            if let Some(page) = is_left.then(|| counts.pop(platform, nodes)).flatten() {
                if reserved {
                    counts.unreserve(1);
                }
                return Ok(page);
            }
            if can_allocate && counts.surplus() < counts.overcommit {
                drop(counts);
                can_allocate = self.alloc_surplus(platform, nodes);
                continue;
            }
            // Each announced page that no other reservation waits for may be the page of this one.
            if reserved && counts.owed < counts.returning {
                counts.awaited = true;
                // Relaxed: changed under the lock.
                return Err(TakeError::Returning(self.change_seq.load(Relaxed)));
            }
            return Err(TakeError::NoHugePage);
        }
    }

    /// Sleeps until the pool has changed since [`TakeError::Returning`] was returned. The caller holds no
    /// lock.
    ///
    /// # Errors
    ///
    /// Fails with `Killed` if a fatal signal ends the wait.
    pub fn wait(&self, seen: u32) -> Result<(), Killed> {
        // Acquire is not required, and pairs with no store: the pool's lock orders the accesses that follow.
        while self.change_seq.load(Acquire) == seen {
            P::wait_killable(&self.change_seq, seen)?;
        }
        Ok(())
    }

    /// Announces a page that [`put_returning`](Self::put_returning) will return when its last reference is
    /// dropped.
    pub fn will_return(&self) {
        self.lock().returning += 1;
    }

    /// Returns a page that [`will_return`](Self::will_return) announced, with the reservation that it was
    /// taken for.
    pub fn put_returning(&self, platform: &P, page: Pfn) {
        self.update(platform, |counts| {
            counts.push(platform, page);
            counts.returned();
            counts.reserved += u64::from(!counts.repay());
        });
    }

    /// Returns an unused page to the pool. `restore` says that the reservation that the page was taken for
    /// exists again.
    pub fn put(&self, platform: &P, page: Pfn, restore: bool) {
        self.update(platform, |counts| {
            counts.push(platform, page);
            counts.reserved += u64::from(restore);
        });
    }

    /// Removes a page with a failed frame from the pool. `returning` says that
    /// [`will_return`](Self::will_return) announced the page. The caller owns the frames afterwards.
    pub fn remove_failed(&self, platform: &P, page: Pfn, returning: bool) {
        self.update(platform, |counts| {
            let node = &mut counts.nodes[platform.node_of(page)];
            node.total -= 1;
            // A node with surplus loses a surplus page.
            node.surplus -= u64::from(node.surplus > 0);
            if returning {
                counts.returned();
                // The reservation is kept if there is another page for the reservation.
                let stands = !counts.repay() && counts.available() > 0;
                counts.reserved += u64::from(stands);
            }
        });
    }

    /// Removes exactly this page from the pool because the memory of one of its frames failed. Returns false
    /// if the page is not free, or if all free pages are reserved.
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

    /// Changes the counts, and frees the surplus that is no longer needed.
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

    /// Notes a change that a task may wait for. The caller holds the lock, and calls [`wake`](Self::wake)
    /// after it has released the lock.
    fn note_change(&self, counts: &mut PoolCounts) -> bool {
        let awaited = core::mem::take(&mut counts.awaited);
        if awaited {
            // Relaxed: a task compares the word and goes to sleep in one step, and reads the counts under the
            // lock.
            self.change_seq.fetch_add(1, Relaxed);
        }
        awaited
    }

    /// Wakes the tasks that wait for a change, if [`note_change`](Self::note_change) returned true. The
    /// caller holds no spin lock.
    fn wake(&self, awaited: bool) {
        if awaited {
            P::wake_all(&self.change_seq);
        }
    }

    /// Allocates a page for the free list, as surplus, on the best node that has memory.
    fn alloc_surplus(&self, platform: &P, nodes: NodeChoice) -> bool {
        in_order(platform, nodes).any(|n| {
            self.alloc_page(platform, n, |counts| {
                let allowed = counts.surplus() < counts.overcommit;
                counts.nodes[n].surplus += u64::from(allowed);
                allowed
            })
        })
    }

    /// Allocates a page of node `n` for the free list. Keeps the page only if `allowed`, called after the
    /// allocation, returns true.
    fn alloc_page(&self, platform: &P, n: usize, allowed: impl FnOnce(&mut PoolCounts) -> bool) -> bool {
        let request = FrameRequest::blocks(FramePurpose::HugePool, self.level).on(NodeChoice::Only(n));
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

    /// Frees pages to the platform.
    fn free(&self, platform: &P, mut pages: PageList) {
        while let Some(page) = pages.pop(platform) {
            for batch in (0..self.level.frames()).step_by(BATCH) {
                let frames: [Pfn; BATCH] = core::array::from_fn(|n| page.add(batch + n as u64));
                // SAFETY: the page was free in the pool, or is new. No reference to its frames exists, and
                // every translation was flushed before the page became free.
                unsafe { platform.free_frames(&frames) };
            }
        }
    }
}

/// Iterates over the nodes for a page, the best first. There are at most as many as the platform has.
fn in_order<P: Platform>(platform: &P, nodes: NodeChoice) -> impl Iterator<Item = usize> {
    let exists = |node: &usize| *node < platform.nodes();
    (0..platform.nodes()).map_while(move |n| platform.nth_node(nodes, n)).filter(exists)
}

/// A list of free pages. The record of a page's first frame names the next page. Only the holder of the list
/// changes the links.
#[derive(Clone, Copy)]
struct PageList {
    /// The first page: its frame number plus one, or 0.
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

    /// Removes `page` if it is in the list. Returns true if `page` was in the list.
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

    /// Returns the number of free pages that are not reserved.
    fn available(&self) -> u64 {
        self.sum(|node| node.free) - self.reserved
    }

    /// Removes reservations that were used or cancelled. Reservations that are not in `reserved` belong to
    /// returning pages, and are added to `owed`.
    fn unreserve(&mut self, huge_pages: u64) {
        let there = huge_pages.min(self.reserved);
        self.reserved -= there;
        let owed = huge_pages - there;
        debug_assert!(self.owed + owed <= self.returning, "more reservations are cancelled than there are");
        // A page that was lost with its memory does not return.
        self.owed = (self.owed + owed).min(self.returning);
    }

    /// Subtracts one from the number of returning pages: the page has returned or is lost.
    fn returned(&mut self) {
        debug_assert!(self.returning > 0, "a page returned that was not announced");
        self.returning -= 1;
    }

    /// Pays a reservation that the pool owes. Returns false if the pool owes none.
    fn repay(&mut self) -> bool {
        let owed = self.owed > 0;
        self.owed -= u64::from(owed);
        owed
    }

    /// Returns the number of requested pages of these nodes.
    fn requested(&self, nodes: Range<usize>) -> u64 {
        self.nodes[nodes].iter().map(|node| node.total - node.surplus).sum()
    }

    /// Turns a surplus page of node `n` into a requested page. Returns true if there was one.
    fn adopt_surplus(&mut self, n: usize) -> bool {
        let surplus = &mut self.nodes[n].surplus;
        let any = *surplus > 0;
        *surplus -= u64::from(any);
        any
    }

    /// Reduces the requested number by one page, on the node that has most requested pages. Frees a page that
    /// is free and not reserved, if one of these nodes has such a page. Otherwise turns a page into surplus.
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

    /// Removes a free page of node `n` from the pool.
    fn drop_free<P: Platform>(&mut self, platform: &P, n: usize, freed: &mut PageList) {
        let node = &mut self.nodes[n];
        if let Some(page) = node.pages.pop(platform) {
            node.free -= 1;
            node.total -= 1;
            freed.push(platform, page);
        }
    }

    /// Removes from the pool the surplus pages that are free and not reserved.
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

    /// Takes a free page, of the best node that has one.
    fn pop<P: Platform>(&mut self, platform: &P, nodes: NodeChoice) -> Option<Pfn> {
        let n = in_order(platform, nodes).find(|n| self.nodes[*n].free > 0)?;
        self.nodes[n].free -= 1;
        self.nodes[n].pages.pop(platform)
    }
}
