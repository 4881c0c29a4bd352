//! Address-space identifiers (ASIDs) that all CPUs share, for processors whose flushes are broadcast
//! instructions (Arm).
//!
//! | a kernel calls | when |
//! | --- | --- |
//! | [`SpaceAsid::new`] | when a space is created |
//! | [`enter`](Asids::enter) | before it loads the root of a space |
//! | [`to_flush`](Asids::to_flush) | in `Platform::flush`, before the instructions that remove translations |
//!
//! `examples/bare/src/aarch64` of the repository uses this file, and `tests/loom_kit/asid.rs` tests it.
//!
//! A TLB marks each translation with the ASID that was loaded with the root. So a CPU that switches between
//! spaces keeps the translations of both, and a flush removes the translations of one space from all CPUs. A
//! processor has few ASIDs (2^8 or 2^16). A kernel may have more spaces over time, so ASIDs are assigned
//! again: when all ASIDs of a *generation* are in use, a new generation begins (*rollover*). Every space then
//! gets an ASID of the new generation when it is entered next, and every CPU drops all translations before it
//! uses an ASID of the new generation.
//!
//! A space that a CPU runs during a rollover keeps its ASID in the new generation, because the CPU continues
//! to use this ASID. (`shootdown.rs` has the other design: each CPU has ASIDs of its own, and a flush
//! interrupts the CPUs that run the space.)
//!
//! # States
//!
//! | word | value | meaning | written by |
//! | --- | --- | --- | --- |
//! | id of a space | 0 | the space never ran | |
//! | | generation, ASID | the space has the ASID in this generation | `enter`, with the lock held |
//! | `active` of a CPU | 0 | a rollover has begun since the CPU last entered a space | a rollover, with the lock held |
//! | | id | the CPU entered the space with this id last | that CPU: with the lock held if the value was 0 |
//! | `reserved` of a CPU | id | the space that the CPU ran at the last rollover, in the current generation once the space was entered | with the lock held |
//! | `stale` of a CPU | true | the CPU drops all translations when it enters a space next | with the lock held |
//! | bit of an ASID | set | the ASID has a space in the current generation, or is reserved | with the lock held |
//!
//! # Why no translation of another space is used
//!
//! In one generation, an ASID is assigned to one space. Translations of earlier generations stay in the TLB
//! of a CPU until it enters a space and finds `stale` set. Until then it runs the space that it ran at the
//! rollover, whose ASID is reserved. A CPU takes the fast path of `enter` only if it exchanges its `active`,
//! which is not 0. A rollover exchanges the same word for 0. So either the rollover finds the new space and
//! reserves its ASID, or the CPU takes the lock and finds `stale`.
//!
//! # Why no stale translation survives
//!
//! Before `to_flush`, its caller changes an entry of the tables. `enter` stores or reads the id of the space
//! before the CPU walks the tables. Each side has a fence in between. So either `to_flush` returns the ASID
//! with which the CPU walks, or the walks of the CPU see the change.

use freehold_sync::atomic::{
    AtomicBool, AtomicU32, AtomicU64, CHECKED,
    Ordering::{Acquire, Relaxed, Release, SeqCst},
    const_unless_loom, fence,
};

/// Number of bits of an ASID in an id.
const ASID_BITS: u32 = 16;
/// Number of ASIDs in a word of the set.
const WORD: usize = u64::BITS as usize;

/// The ASID of a space. Part of the kernel's record of the space, `Platform::Mmu`.
#[derive(Debug, Default)]
pub struct SpaceAsid {
    id: AtomicU64,
}

impl SpaceAsid {
    /// Creates the ASID of a space that never ran.
    pub fn new() -> Self {
        Self::default()
    }
}

/// The way in which a CPU loads the root of a space.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct AsidLoad {
    /// The ASID to load with the root. Never 0.
    pub asid: u16,
    /// True if the CPU must remove the translations of all ASIDs from its own TLB before it loads the root.
    pub flushes: bool,
}

/// The state of one CPU. The table of the [module](self) explains the words.
#[derive(Debug)]
#[repr(align(128))]
pub struct AsidCpu {
    active: AtomicU64,
    reserved: AtomicU64,
    stale: AtomicBool,
}

impl AsidCpu {
    const_unless_loom! {
        /// Creates the state of a CPU that entered no space.
        pub fn new() -> Self {
            AsidCpu { active: AtomicU64::new(0), reserved: AtomicU64::new(0), stale: AtomicBool::new(true) }
        }
    }
}

impl Default for AsidCpu {
    fn default() -> Self {
        Self::new()
    }
}

/// The ASIDs of a kernel with `CPUS` CPUs: numbers below 64 times `WORDS`. The ASID 0 is never assigned; a
/// kernel uses it while no space is loaded.
///
/// ```
/// use freehold_kit::{AsidCpu, Asids, SpaceAsid};
/// use freehold_kit::asid::set;
///
/// // 256 ASIDs of 8 bits, which every processor of Arm has.
/// static ASIDS: Asids<4, 4> = Asids::new([const { AsidCpu::new() }; 4], [const { set() }; 4]);
///
/// let space = SpaceAsid::new();
/// let load = ASIDS.enter(0, &space, || {});
/// assert!(load.asid != 0 && load.flushes, "the first use of a CPU drops what the firmware left");
/// assert_eq!(ASIDS.to_flush(&space), Some(load.asid));
/// assert!(!ASIDS.enter(0, &space, || {}).flushes);
/// ```
#[derive(Debug)]
pub struct Asids<const CPUS: usize, const WORDS: usize> {
    cpus: [AsidCpu; CPUS],
    /// The ASIDs of the current generation that are in use.
    used: [AtomicU64; WORDS],
    /// The current generation, from 1, shifted left by [`ASID_BITS`]. Changed with the lock held.
    generation: AtomicU64,
    /// The ASID after the one that was assigned last. Guarded by the lock.
    next: AtomicU32,
    /// 1 while a CPU holds the lock.
    lock: AtomicU32,
}

const_unless_loom! {
    /// Creates 64 ASIDs that are not in use, for [`Asids::new`].
    pub fn set() -> AtomicU64 {
        AtomicU64::new(0)
    }
}

impl<const CPUS: usize, const WORDS: usize> Asids<CPUS, WORDS> {
    const_unless_loom! {
        /// Creates the ASIDs of CPUs that entered no space.
        ///
        /// # Panics
        ///
        /// Panics if there are not at least two more ASIDs than CPUs: every CPU may keep one over a rollover,
        /// and 0 is not assigned. Panics if there are more than 2^16.
        pub fn new(cpus: [AsidCpu; CPUS], used: [AtomicU64; WORDS]) -> Self {
            assert!(WORDS * WORD >= CPUS + 2, "fewer ASIDs than CPUs");
            assert!(WORDS * WORD <= 1 << ASID_BITS, "an ASID has at most 16 bits");
            Asids {
                cpus,
                used,
                generation: AtomicU64::new(1 << ASID_BITS),
                next: AtomicU32::new(1),
                lock: AtomicU32::new(0),
            }
        }
    }

    /// Number of ASIDs. Under a checker of schedules as few as possible, so that few spaces cause a rollover.
    const NUMBER: usize = if CHECKED { CPUS + 2 } else { WORDS * WORD };

    /// Prepares the calling CPU to load the root of `space`, and returns how to load it. Interrupts are off,
    /// and the CPU stays the same until it has loaded the root. `relax` pauses briefly while another CPU
    /// holds the lock, which it does for a time in proportion to the number of ASIDs.
    ///
    /// The CPU loads no root of another space without this call. It may load a root that translates no
    /// address of user space, with the ASID 0, at any time.
    #[inline]
    pub fn enter(&self, cpu: usize, space: &SpaceAsid, relax: impl Fn()) -> AsidLoad {
        let active = &self.cpus[cpu].active;
        // Relaxed, here and below: the exchange decides, and the fence orders.
        let (id, before) = (space.id.load(Relaxed), active.load(Relaxed));
        let current = id >> ASID_BITS == self.generation.load(Relaxed) >> ASID_BITS;
        // The exchange fails if a rollover has begun since this CPU entered a space; see the module.
        if current && before != 0 && active.compare_exchange(before, id, Relaxed, Relaxed).is_ok() {
            // Pairs with the fence in `to_flush`.
            fence(SeqCst);
            return AsidLoad { asid: asid_of(id), flushes: false };
        }
        self.enter_slowly(cpu, space, relax)
    }

    #[cold]
    fn enter_slowly(&self, cpu: usize, space: &SpaceAsid, relax: impl Fn()) -> AsidLoad {
        // Acquire: pairs with the release at the end. All accesses to the guarded words are relaxed.
        while self.lock.compare_exchange(0, 1, Acquire, Relaxed).is_err() {
            while self.lock.load(Relaxed) != 0 {
                relax();
            }
        }
        let mut id = space.id.load(Relaxed);
        if id >> ASID_BITS != self.generation.load(Relaxed) >> ASID_BITS {
            id = self.assign(id);
            space.id.store(id, Relaxed);
        }
        let own = &self.cpus[cpu];
        let flushes = own.stale.load(Relaxed);
        own.stale.store(false, Relaxed);
        own.active.store(id, Relaxed);
        // Release: pairs with the acquire above.
        self.lock.store(0, Release);
        // Pairs with the fence in `to_flush`.
        fence(SeqCst);
        AsidLoad { asid: asid_of(id), flushes }
    }

    /// Returns the ASID whose translations a flush of `space` must remove from the TLBs of all CPUs, or
    /// `None` if the space never ran. The caller has changed the tables before this call.
    pub fn to_flush(&self, space: &SpaceAsid) -> Option<u16> {
        // Pairs with the fences in `enter`: either this CPU finds the ASID with which another CPU walks the
        // tables, or the walks of that CPU see the change of the tables.
        fence(SeqCst);
        let id = space.id.load(Relaxed);
        (id != 0).then(|| asid_of(id))
    }

    /// Returns a new id, in the current generation, for a space with this old id. The caller holds the lock.
    fn assign(&self, old: u64) -> u64 {
        let asid = usize::from(asid_of(old));
        let renewed = self.generation.load(Relaxed) | asid as u64;
        if old != 0 {
            // A CPU that runs the space since before the rollover continues to use the ASID.
            if self.renew_reserved(old, renewed) {
                return renewed;
            }
            // The ASID is kept if no other space has got it in this generation.
            if self.take(asid) {
                return renewed;
            }
        }
        let free = self.find_free().unwrap_or_else(|| {
            self.roll_over();
            match self.find_free() {
                Some(free) => free,
                None => unreachable!("there are more ASIDs than CPUs"),
            }
        });
        self.generation.load(Relaxed) | free as u64
    }

    /// Replaces the id `old` by `renewed` in the reserved ids of all CPUs. Returns true if there was one.
    fn renew_reserved(&self, old: u64, renewed: u64) -> bool {
        let holders = self.cpus.iter().filter(|cpu| cpu.reserved.load(Relaxed) == old);
        holders.map(|cpu| cpu.reserved.store(renewed, Relaxed)).count() > 0
    }

    /// Marks an ASID as used. Returns false if it was used already.
    fn take(&self, asid: usize) -> bool {
        let (word, bit) = (&self.used[asid / WORD], 1 << (asid % WORD));
        let before = word.load(Relaxed);
        word.store(before | bit, Relaxed);
        before & bit == 0
    }

    /// Finds an ASID that is not in use, and marks it as used. Searches from the last one on, so that the
    /// ASIDs of a space that ends are not assigned again soon.
    fn find_free(&self) -> Option<usize> {
        let next = self.next.load(Relaxed) as usize;
        let free = (next..Self::NUMBER).chain(1..next).find(|asid| self.take(*asid))?;
        self.next.store((free + 1) as u32, Relaxed);
        Some(free)
    }

    /// Begins a generation, in which only the ASIDs of spaces that CPUs run are in use.
    fn roll_over(&self) {
        self.generation.store(self.generation.load(Relaxed) + (1 << ASID_BITS), Relaxed);
        self.used.iter().for_each(|word| word.store(0, Relaxed));
        self.next.store(1, Relaxed);
        for cpu in &self.cpus {
            // The exchange decides between this rollover and the fast path of `enter`. With 0, the CPU has
            // not entered a space since the last rollover, and still runs the reserved space.
            let active = cpu.active.swap(0, Relaxed);
            if active != 0 {
                cpu.reserved.store(active, Relaxed);
            }
            self.take(usize::from(asid_of(cpu.reserved.load(Relaxed))));
            cpu.stale.store(true, Relaxed);
        }
    }
}

/// Returns the ASID of an id.
fn asid_of(id: u64) -> u16 {
    id as u16
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;
    use std::vec::Vec;

    type Small = Asids<2, 1>;

    fn asids() -> Small {
        Asids::new([AsidCpu::new(), AsidCpu::new()], [set()])
    }

    #[test]
    fn every_space_of_a_generation_has_an_asid_of_its_own() {
        let asids = asids();
        let spaces: Vec<SpaceAsid> = (0..63).map(|_| SpaceAsid::new()).collect();
        for (at, space) in spaces.iter().enumerate() {
            assert_eq!(asids.to_flush(space), None);
            let load = asids.enter(0, space, || {});
            assert_eq!((load.asid, load.flushes), (at as u16 + 1, at == 0));
            assert_eq!(asids.enter(0, space, || {}), AsidLoad { flushes: false, ..load });
        }
        assert!(spaces.iter().zip(1..).all(|(space, asid)| asids.to_flush(space) == Some(asid)));
    }

    #[test]
    fn rollover_keeps_the_asids_of_running_spaces_and_flushes_each_cpu_once() {
        let asids = asids();
        let (runs, stops) = (SpaceAsid::new(), SpaceAsid::new());
        let kept = asids.enter(1, &runs, || {}).asid;
        asids.enter(0, &stops, || {});
        let others: Vec<SpaceAsid> = (0..62).map(|_| SpaceAsid::new()).collect();
        let flushes: Vec<bool> = others.iter().map(|space| asids.enter(0, space, || {}).flushes).collect();
        assert!(flushes.iter().position(|flushes| *flushes) == Some(61), "the last one finds no ASID");
        let last = asids.enter(0, &others[61], || {});
        assert!(last.asid != kept && !last.flushes);
        // CPU 1 has run the space all the time: it keeps the ASID, and drops older translations.
        assert_eq!(asids.enter(1, &runs, || {}), AsidLoad { asid: kept, flushes: true });
        assert_eq!(asids.enter(1, &runs, || {}), AsidLoad { asid: kept, flushes: false });
        // The ASID of a space that did not run may belong to another space now.
        let again = asids.enter(1, &stops, || {});
        assert!(again.asid != kept && again.asid != last.asid && !again.flushes);
    }

    #[test]
    fn space_that_runs_over_two_rollovers_keeps_its_asid() {
        let asids = asids();
        let runs = SpaceAsid::new();
        let kept = asids.enter(1, &runs, || {}).asid;
        let mut rollovers = 0;
        for _ in 0..200 {
            let load = asids.enter(0, &SpaceAsid::new(), || {});
            assert_ne!(load.asid, kept);
            rollovers += u32::from(load.flushes);
        }
        assert!(rollovers >= 3, "the first use of the CPU, and two rollovers");
        assert_eq!(asids.enter(1, &runs, || {}), AsidLoad { asid: kept, flushes: true });
    }
}
