//! The visit of memory: tests the pages that the policy chooses, and evicts those that it gives up.

use super::{
    evict::{Evicted, Evictor, GivenUp},
    state::{
        ChunkPages, Found,
        policy::{Accessed, Age, PageKind, Step, Tested, Verdict},
        stats::{ReclaimStats, Reclaimed},
    },
};
use crate::{Pfn, engine::Engine, platform::Platform};
use core::{fmt, ops::Range};
use freehold_vmspace::{UserRange, VmSpace, frame::age::Glance};

/// Default of [`ReclaimRequest::visits`], as a multiple of the frames of memory. A call with a larger limit
/// also ends if it has visited so many frames since the last page that became free.
const MOST_VISITS: u64 = 12;
/// A call ends if it has visited memory this many times without finding a page that may go. Between two
/// visits of a frame, all frames may be visited twice (`state/visits.rs`).
const FIND_VISITS: u64 = 2;
/// A call ends if it has visited memory this many times without a test of a page. A policy may need a few
/// visits to find the pages to test.
const IDLE_VISITS: u64 = 3;

/// A request to reclaim memory; see [`Engine::reclaim`].
///
/// # Examples
///
/// ```
/// use freehold::reclaim::ReclaimRequest;
///
/// let request = ReclaimRequest::pages(32);
/// assert_eq!(request.target, 32);
/// ```
#[derive(Clone, Copy)]
#[non_exhaustive]
pub struct ReclaimRequest<'r> {
    /// The number of pages after which the call ends.
    pub target: u64,
    /// Maximum number of frames that the call visits. By default twelve times the frames of memory, because a
    /// policy may need several visits of a page before it evicts the page. A call also ends when it has
    /// visited memory twice without finding a page, three times without finding a page to test, or twelve
    /// times without a page that goes.
    pub visits: Option<u64>,
    /// Chooses the frames to consider, for example those of a group that has reached its limit. All by
    /// default. Called with the number of a frame that holds a page, in context L of the
    /// [platform](crate::platform#contexts) without locks.
    pub only: Option<&'r dyn Fn(Pfn) -> bool>,
    /// True if the call may begin writes: of dirty pages to their files, and of anonymous pages and shared
    /// memory to swap devices. True by default.
    pub writes: bool,
}

impl<'r> ReclaimRequest<'r> {
    /// Returns a request for this number of pages of any owner.
    pub fn pages(target: u64) -> Self {
        ReclaimRequest { target, visits: None, only: None, writes: true }
    }

    /// Sets the maximum number of visited frames.
    #[must_use]
    pub fn visits(self, visits: u64) -> Self {
        ReclaimRequest { visits: Some(visits), ..self }
    }

    /// Restricts the request to frames for which `only` returns true.
    #[must_use]
    pub fn only(self, only: &'r dyn Fn(Pfn) -> bool) -> Self {
        ReclaimRequest { only: Some(only), ..self }
    }

    /// Restricts the request to pages that go without a write: clean pages of files, lazily freed pages and
    /// droppable memory. For calls of little urgency, and for tasks that must not use a device, such as the
    /// task that serves a swap device.
    #[must_use]
    pub fn without_writes(self) -> Self {
        ReclaimRequest { writes: false, ..self }
    }
}

impl fmt::Debug for ReclaimRequest<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("ReclaimRequest")
            .field("target", &self.target)
            .field("visits", &self.visits)
            .field("only", &self.only.is_some())
            .field("writes", &self.writes)
            .finish()
    }
}

impl<P: Platform> Engine<P> {
    /// Takes pages away from programs and files until `request.target` pages are free. The engine's
    /// [policy](crate::engine::Config::reclaim) chooses the pages. Pages that are locked (mlock), pinned,
    /// secret, or in a pool of huge pages stay. Without a swap device with free slots
    /// ([`swap_on`](Self::swap_on)), anonymous pages stay unless they were freed lazily or are droppable.
    ///
    /// For an embedder that is short of memory: it calls this function in
    /// [`Platform::memory_short`], and from a task of its own when
    /// little memory is free. Several CPUs may reclaim at a time. Some of the freed frames may stay on the
    /// free list of the calling CPU; see [`trim`](Self::trim).
    ///
    /// The call visits the frames of [`Platform::frames`] in a cycle that
    /// all calls share. It ends early when it has visited `request.visits` frames, and returns what it has
    /// reclaimed.
    ///
    /// # Locks
    ///
    /// Locks of the reverse map for reading, locks of frames, the invalidate locks of files, each only if it
    /// is free; locks of page tables. No lock is held while a pager or a swap device is called. The caller
    /// holds no lock of the engine and is in no read section.
    ///
    /// # Examples
    ///
    /// ```
    /// # use freehold::{PAGE_SIZE, file::{Mapping, Zeroes}, reclaim::ReclaimRequest};
    /// # let engine = freehold_machine::example_engine(1 << 20);
    /// let file = Mapping::new(&engine, Zeroes, 8 * PAGE_SIZE, false).unwrap();
    /// file.read_at(0, &mut [0; 8 * PAGE_SIZE as usize]).unwrap();
    /// assert_eq!(engine.reclaim(&ReclaimRequest::pages(5)).freed, 5);
    /// assert_eq!(file.present_pages(), 3);
    /// ```
    pub fn reclaim(&self, request: &ReclaimRequest<'_>) -> Reclaimed {
        let memory = self.platform().frames();
        let all = memory.end.get().saturating_sub(memory.start.get());
        let most = request.visits.unwrap_or(MOST_VISITS * all);
        let mut evictor = Evictor::new(self);
        evictor.set_writes(request.writes);
        let mut sweep = Sweep {
            engine: self,
            request,
            reclaimed: Reclaimed::default(),
            tested: Tested::default(),
            most,
            last_found: 0,
            last_test: 0,
            last_gone: (0, 0),
            found: Found::default(),
            evictor: &mut evictor,
        };
        sweep.reclaimed.freed += self.drop_clean_swapped(request.target);
        while !sweep.is_done() && !sweep.is_idle(all) {
            let Some(chunk) = self.files().reclaim.next_chunk() else { break };
            let rest = sweep.chunk(chunk);
            self.files().reclaim.put_back(rest);
            P::cond_resched();
        }
        self.files().reclaim.add_call(&sweep.reclaimed);
        sweep.reclaimed
    }

    /// Returns the sums of what reclaim has done so far, for statistics. Reads a counter of each CPU, and
    /// takes no lock.
    ///
    /// # Examples
    ///
    /// ```
    /// # use freehold::{PAGE_SIZE, file::{Mapping, Zeroes}, reclaim::ReclaimRequest};
    /// # let engine = freehold_machine::example_engine(1 << 20);
    /// let file = Mapping::new(&engine, Zeroes, 8 * PAGE_SIZE, false).unwrap();
    /// file.read_at(0, &mut [0; 8 * PAGE_SIZE as usize]).unwrap();
    /// engine.reclaim(&ReclaimRequest::pages(5));
    /// let stats = engine.reclaim_stats();
    /// assert_eq!((stats.calls, stats.reclaimed.freed), (1, 5));
    /// ```
    pub fn reclaim_stats(&self) -> ReclaimStats {
        self.files().reclaim.stats()
    }
}

/// One call of [`Engine::reclaim`].
struct Sweep<'s, 'e, P: Platform> {
    engine: &'s Engine<P>,
    request: &'s ReclaimRequest<'s>,
    reclaimed: Reclaimed,
    tested: Tested,
    /// Maximum number of visited frames.
    most: u64,
    /// Number of visited frames at the last page that may go.
    last_found: u64,
    /// Number of visited frames at the last test of a page.
    last_test: u64,
    /// Number of pages that are free or about to be free, and the number of visited frames when it became so
    /// large.
    last_gone: (u64, u64),
    /// The pages of the chunk that stay.
    found: Found,
    evictor: &'s mut Evictor<'e, P>,
}

impl<P: Platform> Sweep<'_, '_, P> {
    /// Returns true if enough pages are free or about to be freed, or enough frames were visited.
    fn is_done(&self) -> bool {
        self.reclaimed.freed + self.evictor.pending() >= self.request.target
            || self.reclaimed.visited >= self.most
    }

    /// Returns true if more visits are useless: two visits of `all` frames have found no page, some visits
    /// have found no page to test, or many visits have tested pages of which none can go.
    fn is_idle(&mut self, all: u64) -> bool {
        let visited = self.reclaimed.visited;
        let gone = self.reclaimed.freed + self.reclaimed.writing + self.evictor.pending();
        if gone > self.last_gone.0 {
            self.last_gone = (gone, visited);
        }
        visited - self.last_found > FIND_VISITS * all
            || visited - self.last_test > IDLE_VISITS * all
            || visited - self.last_gone.1 > MOST_VISITS * all
    }

    /// Visits frames until the request is fulfilled. Returns the rest of the frames.
    fn chunk(&mut self, mut chunk: Range<u64>) -> Range<u64> {
        while !self.is_done()
            && let Some(pfn) = chunk.next().map(Pfn::new)
        {
            self.reclaimed.visited += 1;
            if !self.engine.platform().has_frame(pfn) {
                continue;
            }
            let Some(glance) = self.engine.platform().frame(pfn).glance() else { continue };
            let kind = PageKind::of(glance.kind);
            if !self.may_go(kind, glance) || self.request.only.is_some_and(|only| !only(pfn)) {
                continue;
            }
            self.last_found = self.reclaimed.visited;
            if let Some(age) = self.page(pfn, kind, glance) {
                *number(&mut self.found.pages, kind, age) += 1;
            }
        }
        self.finish_batch();
        self.evictor.flush_swapped(&mut self.reclaimed);
        self.engine.files().reclaim.add_found(&core::mem::take(&mut self.found));
        chunk
    }

    /// Returns true if pages like this one may go. Without room on a swap device, shared memory and most
    /// anonymous pages have no place to go, and their tests would only take time.
    fn may_go(&self, kind: PageKind, glance: Glance) -> bool {
        match kind {
            PageKind::File => true,
            PageKind::Anonymous => {
                glance.lazy || self.evictor.swaps() || self.engine.files().reclaim.has_droppable()
            }
            PageKind::Shared => self.evictor.swaps(),
        }
    }

    /// Decides about a page. Returns its age if the page stays.
    fn page(&mut self, pfn: Pfn, kind: PageKind, glance: Glance) -> Option<Age> {
        let state = &self.engine.files().reclaim;
        let age = Age::of(glance.age);
        match state.policy().step(kind, age, &self.tested) {
            Step::Skip => return Some(age),
            Step::Keep(new) => return Some(set_age(self.engine, pfn, new)),
            Step::Test => {}
        }
        self.tested.pages[kind as usize] += 1;
        self.reclaimed.tested += 1;
        self.last_test = self.reclaimed.visited;
        match state.policy().tested(kind, age, self.test(pfn)) {
            Verdict::Keep(new) => Some(set_age(self.engine, pfn, new)),
            Verdict::Evict(age) => self.evict(GivenUp { pfn, kind, age }),
        }
    }

    /// Tests whether the page was accessed since its last test.
    fn test(&self, pfn: Pfn) -> Accessed {
        let entries = self.engine.referenced_around(pfn, |vm, around| self.look_around(vm, around));
        // A page whose locks are taken counts as accessed.
        let Ok(entries) = entries else { return Accessed::ByEntry };
        let is_marked = self.engine.platform().frame(pfn).take_mark();
        match (entries, is_marked) {
            (0, false) => Accessed::No,
            (0, true) => Accessed::ByCall,
            _ => Accessed::ByEntry,
        }
    }

    /// Ages the pages near a page that was accessed, if the policy uses walks.
    fn look_around(&self, vm: &VmSpace<P>, around: UserRange) {
        let policy = self.engine.files().reclaim.policy();
        if policy.walks() {
            vm.age_young(around, |kind, age| policy.walked(PageKind::of(kind), Age::of(age)).byte());
        }
    }

    /// Evicts a page that the policy gave up. Returns its age if the page stays.
    fn evict(&mut self, page: GivenUp) -> Option<Age> {
        if self.evictor.is_full() {
            self.finish_batch();
        }
        match self.evictor.evict(page, &mut self.reclaimed) {
            Evicted::Gone | Evicted::Collected => {
                *number(&mut self.found.evicted, page.kind, page.age) += 1;
                None
            }
            stayed => Some(settle(self.engine, page, stayed)),
        }
    }

    /// Takes the collected pages away.
    fn finish_batch(&mut self) {
        let (engine, found) = (self.engine, &mut self.found);
        self.evictor.finish_batch(&mut self.reclaimed, |page, stayed| {
            // Counted when the page was collected, in the same chunk.
            *number(&mut found.evicted, page.kind, page.age) -= 1;
            *number(&mut found.pages, page.kind, settle(engine, page, stayed)) += 1;
        });
    }
}

/// Returns the number of pages with this kind and age.
fn number(pages: &mut ChunkPages, kind: PageKind, age: Age) -> &mut u16 {
    &mut pages[kind as usize][usize::from(age.number())]
}

/// Gives a page that could not go an age. Returns the age.
fn settle<P: Platform>(engine: &Engine<P>, page: GivenUp, stayed: Evicted) -> Age {
    let policy = engine.files().reclaim.policy();
    let age = match stayed {
        Evicted::Writing => policy.old(page.kind),
        _ => policy.kept(page.kind, page.age),
    };
    set_age(engine, page.pfn, age)
}

/// Sets the age of the page in a frame. Returns the age. Reads the record again, because the test of a page
/// changes it.
fn set_age<P: Platform>(engine: &Engine<P>, pfn: Pfn, age: Age) -> Age {
    let frame = engine.platform().frame(pfn);
    if let Some(glance) = frame.glance() {
        frame.set_age(glance, age.byte());
    }
    age
}
