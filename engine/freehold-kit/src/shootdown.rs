//! Flushes of other processors' TLBs over sets of processors, with lazy switching, and with contexts in which
//! a processor keeps translations of spaces that it does not run.
//!
//! Each space has a set of the processors that may have translations of it ([`SpaceCpus`]): a processor puts
//! itself in before it loads the root, and takes itself out after it has loaded another. A processor that
//! goes on with a task of the kernel alone keeps the root (*lazy*), so that coming back costs nothing; the
//! first flush that meets it makes it leave.
//!
//! A flush does its own processor's part, writes down what to flush in the one slot of its processor, puts
//! its number into the inbox of each processor of the set, interrupts those whose inbox was empty (several
//! flushes share an interrupt), and waits until each has answered. Meanwhile it answers others itself. A
//! processor answers in the interrupt, and wherever it waits with interrupts off:
//! [`answer`](Shootdown::answer) belongs into `Host::relax`. So it does no harm that a flush comes with spin
//! locks held that the others spin for.
//!
//! Processors whose translations are marked with a *context* (x86: PCID) keep those of a few spaces: a
//! processor that comes back to one finds what it knew. It is not told of flushes meanwhile; instead every
//! flush of a space has a number, and a processor remembers up to which number its context has done them all.
//! If there have been more, what it knew is dropped when the root is loaded. (As Linux does since 2017, with
//! its `tlb_gen` and dynamic ASIDs.)
//!
//! # States
//!
//! | word | value | meaning | written by |
//! | --- | --- | --- | --- |
//! | set of a space | bit of a processor | it may have translations of the space | itself: set by `enter`, cleared by `leave`, or while it answers |
//! | `current` of a processor | 0 | its register has no space's root | itself alone, interrupts off |
//! | | number of a space, perhaps with `LAZY` | its register has the root of that space; with `LAZY` no program runs | |
//! | `flushes` of a space | n | so many flushes have begun | each adds one, before it looks at the set |
//! | context of a processor | space, n | it knows of this space what the first n flushes left | itself alone: `enter`, and where it does the flush n + 1 |
//! | inbox of a processor | bit of a sender | the sender's slot has a request that this processor has not answered | set by the sender, taken by the receiver |
//! | `pending` of a processor | n | its request has to be answered by so many; 0: the slot is its own | set by itself, counted down by processors that answer |
//!
//! # Why no translation survives
//!
//! A flush comes after a change of the tables. `enter` sets the bit, the flush has changed an entry, each
//! then looks at what the other wrote, with a fence in between: either the flush finds the bit and waits for
//! an answer, or the walks of the processor find the change. A cleared bit was released after the last use of
//! a translation, and the flush acquires the set. A request found in the inbox was posted by a release after
//! the change, so walks after the answer find the change, and the answer is counted by a release that the
//! flush acquires: what used the old translation is over.
//!
//! What a context keeps is right by the same fences. `enter` sets the bit and then reads the number of
//! flushes, a flush adds to the number and then reads the set: either the flush finds the bit, or `enter`
//! finds that there have been more, drops all, and walks find the change, since the number was released after
//! it. Flushes may be answered in another order than they were numbered: one that is not the next is done,
//! and not counted, so that the number stays behind until all is dropped. A space's own number is never given
//! to another.
#![expect(unsafe_code, reason = "a request refers to the set of its sender's space, which the sender keeps")]

use crate::mask::{CpuMask, MAX_CPUS};
use core::ptr;
use freehold_pagetable::{Flush, Pfn, VirtAddr};
use freehold_sync::atomic::{
    AtomicPtr, AtomicU32, AtomicU64, AtomicUsize,
    Ordering::{Acquire, Relaxed, Release, SeqCst},
    const_unless_loom, fence,
};

/// Set in `current`: no program runs on this root.
const LAZY: u64 = 1 << 63;
/// Everything is flushed.
const ALL: u32 = 1 << 0;
/// Tables were freed.
const TABLES: u32 = 1 << 1;
/// Spaces of which a processor keeps translations.
pub const CONTEXTS: usize = 6;

/// What the flusher asks of a kernel. None of it may wait or take a lock that is held around a flush.
pub trait Processors {
    /// Makes `cpu` call [`Shootdown::answer`] soon, by an interrupt. Called with the request posted.
    fn interrupt(&self, cpu: usize);

    /// Removes what `what` covers from the TLB of the calling processor `cpu`, for the space with this root,
    /// which is in the register, and where it says that tables were freed, what the processor remembers of
    /// tables.
    fn flush_here(&self, cpu: usize, root: Pfn, what: &Flush);

    /// The calling processor `cpu` is lazy: loads the kernel's own root in place of this one. Translations of
    /// it may stay if they belong to a context.
    fn switch_away(&self, cpu: usize, root: Pfn);

    /// A turn of a loop that waits.
    fn relax(&self);
}

/// Which processors may have translations of a space: part of the kernel's record of the space,
/// `Platform::Mmu`.
#[derive(Debug)]
pub struct SpaceCpus {
    root: Pfn,
    /// From 1, and never given again.
    id: u64,
    cpus: CpuMask,
    flushes: Line<AtomicU64>,
}

/// What every flush writes, apart from what every walk without locks reads.
#[derive(Debug)]
#[repr(align(128))]
struct Line<T>(T);

impl SpaceCpus {
    /// The root table.
    pub fn root(&self) -> Pfn {
        self.root
    }

    /// Those that may have translations.
    pub fn cpus(&self) -> &CpuMask {
        &self.cpus
    }
}

/// How a processor loads the root of a space.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Load {
    /// In which context, of [`CONTEXTS`].
    pub context: usize,
    /// What the context has may stay. A processor without contexts drops all in any case.
    pub keeps: bool,
}

/// What a processor keeps in one context. Its own, so relaxed throughout.
#[derive(Debug)]
struct Context {
    /// The number of a space; 0: none.
    space: AtomicU64,
    flushes: AtomicU64,
}

impl Context {
    const_unless_loom! {
        fn none() -> Self {
            Context { space: AtomicU64::new(0), flushes: AtomicU64::new(0) }
        }
    }
}

/// What is kept for one processor.
#[derive(Debug)]
#[repr(align(128))]
pub struct ShootCpu {
    current: AtomicU64,
    inbox: CpuMask,
    pending: AtomicU32,
    /// The request; stable from when it is posted until all have answered. Written and read relaxed: posts
    /// and answers order.
    space: AtomicPtr<SpaceCpus>,
    start: AtomicU64,
    end: AtomicU64,
    flags: AtomicU32,
    number: AtomicU64,
    contexts: [Context; CONTEXTS],
    /// The context that was loaded last, and the one that the next space gets which has none.
    context: AtomicUsize,
    next: AtomicUsize,
}

impl ShootCpu {
    const_unless_loom! {
        /// Of a processor that runs no space.
        pub fn new() -> Self {
            ShootCpu {
                current: AtomicU64::new(0),
                inbox: CpuMask::new(),
                pending: AtomicU32::new(0),
                space: AtomicPtr::new(ptr::null_mut()),
                start: AtomicU64::new(0),
                end: AtomicU64::new(0),
                flags: AtomicU32::new(0),
                number: AtomicU64::new(0),
                contexts: [Context::none(), Context::none(), Context::none(), Context::none(), Context::none(), Context::none()],
                context: AtomicUsize::new(0),
                next: AtomicUsize::new(0),
            }
        }
    }

    /// How the root of a space is loaded of which so many flushes have begun: in the context that has it, or
    /// in that of the space that has had one longest.
    fn load(&self, space: &SpaceCpus, flushes: u64) -> Load {
        let has = |context: &Context| context.space.load(Relaxed) == space.id;
        let found = self.contexts.iter().position(has);
        let at = found.unwrap_or_else(|| {
            let next = self.next.load(Relaxed);
            self.next.store((next + 1) % CONTEXTS, Relaxed);
            next
        });
        let context = &self.contexts[at];
        let keeps = found.is_some() && context.flushes.load(Relaxed) == flushes;
        context.space.store(space.id, Relaxed);
        context.flushes.store(flushes, Relaxed);
        self.context.store(at, Relaxed);
        Load { context: at, keeps }
    }

    /// The flush of that number was done in the context that is loaded.
    fn done(&self, space: &SpaceCpus, number: u64) {
        let context = &self.contexts[self.context.load(Relaxed)];
        debug_assert_eq!(context.space.load(Relaxed), space.id, "a flush in another space's context");
        if context.flushes.load(Relaxed) + 1 == number {
            context.flushes.store(number, Relaxed);
        }
    }

    fn write(&self, space: &SpaceCpus, what: &Flush, number: u64) {
        let flags = if what.all { ALL } else { 0 } | if what.tables_freed { TABLES } else { 0 };
        self.space.store(ptr::from_ref(space).cast_mut(), Relaxed);
        self.start.store(what.start.get(), Relaxed);
        self.end.store(what.end.get(), Relaxed);
        self.flags.store(flags, Relaxed);
        self.number.store(number, Relaxed);
    }

    fn read(&self) -> (Flush, u64) {
        let flags = self.flags.load(Relaxed);
        let (start, end) = (VirtAddr::new(self.start.load(Relaxed)), VirtAddr::new(self.end.load(Relaxed)));
        let what = Flush { start, end, all: flags & ALL != 0, tables_freed: flags & TABLES != 0 };
        (what, self.number.load(Relaxed))
    }
}

impl Default for ShootCpu {
    fn default() -> Self {
        Self::new()
    }
}

/// The flusher of a kernel with so many processors; see the [module](self).
///
/// ```
/// use freehold_kit::{ShootCpu, Shootdown};
///
/// static TLBS: Shootdown<64> = Shootdown::new([const { ShootCpu::new() }; 64]);
/// ```
#[derive(Debug)]
pub struct Shootdown<const CPUS: usize> {
    cpus: [ShootCpu; CPUS],
    /// Spaces that there have been.
    spaces: AtomicU64,
}

impl<const CPUS: usize> Shootdown<CPUS> {
    const_unless_loom! {
        /// No processor runs a space.
        pub fn new(cpus: [ShootCpu; CPUS]) -> Self {
            assert!(CPUS <= MAX_CPUS, "more processors than a set has room for");
            Shootdown { cpus, spaces: AtomicU64::new(0) }
        }
    }

    /// A new space with this root, of which nobody has translations.
    pub fn space(&self, root: Pfn) -> SpaceCpus {
        // Relaxed: nothing but another number each time.
        let id = self.spaces.fetch_add(1, Relaxed) + 1;
        SpaceCpus { root, id, cpus: CpuMask::new(), flushes: Line(AtomicU64::new(0)) }
    }

    /// The calling processor is about to load the root of `space`, interrupts off, in the way that this
    /// returns; it answers nobody before it has. What it ran before it [leaves](Self::leave) after the load,
    /// unless that is the same space: a lazy processor comes back by this call alone. `None`: the root is in
    /// the register.
    pub fn enter(&self, cpu: usize, space: &SpaceCpus) -> Option<Load> {
        let own = &self.cpus[cpu];
        let before = own.current.load(Relaxed);
        own.current.store(space.id, Relaxed);
        if before == space.id | LAZY {
            // In the set all the time, and told of every change.
            return None;
        }
        space.cpus.add(cpu);
        // Pairs with the fence of `flush`: the flush finds the bit, or what follows finds the flush's number,
        // and the walks find the change.
        fence(SeqCst);
        // Acquire pairs with the release of `flush`: where the number has risen, walks find the change.
        Some(own.load(space, space.flushes.0.load(Acquire)))
    }

    /// The calling processor goes on without a program and keeps the root of `space` in its register.
    pub fn idle(&self, cpu: usize, space: &SpaceCpus) {
        debug_assert_eq!(
            self.cpus[cpu].current.load(Relaxed),
            space.id,
            "lazy in a space that it does not run"
        );
        self.cpus[cpu].current.store(space.id | LAZY, Relaxed);
    }

    /// The calling processor has loaded another root, or the kernel's: it uses no translation of `space` any
    /// more before it [enters](Self::enter) it again. Interrupts off.
    pub fn leave(&self, cpu: usize, space: &SpaceCpus) {
        let own = &self.cpus[cpu];
        if own.current.load(Relaxed) & !LAZY == space.id {
            own.current.store(0, Relaxed);
        }
        space.cpus.remove(cpu);
    }

    /// Whether the calling processor runs a program in `space`. With interrupts off it stays so: where this
    /// is true `Platform::walk_tables` may walk, for no flush is over before this processor answers.
    pub fn runs(&self, cpu: usize, space: &SpaceCpus) -> bool {
        self.cpus[cpu].current.load(Relaxed) == space.id
    }

    /// Whether a processor other than the calling one may have translations of `space`, of entries that were
    /// changed before.
    pub fn runs_elsewhere(&self, cpu: usize, space: &SpaceCpus) -> bool {
        // Pairs with the fence of `enter`, as in `flush`.
        fence(SeqCst);
        space.cpus.numbers(CPUS).any(|other| other != cpu)
    }

    /// Removes what `what` covers from every processor: `Platform::flush`. The caller stays on its processor
    /// and makes no second flush meanwhile, from an interrupt say.
    pub fn flush(&self, cpu: usize, space: &SpaceCpus, what: &Flush, kernel: &impl Processors) {
        let own = &self.cpus[cpu];
        debug_assert_eq!(own.pending.load(Relaxed), 0, "a flush inside a flush");
        // Release pairs with the acquire of `enter`: the change came before.
        let number = space.flushes.0.fetch_add(1, Release) + 1;
        // Pairs with the fence of `enter`.
        fence(SeqCst);
        let mut others = CpuSet::default();
        let mut count = 0;
        for other in space.cpus.numbers(CPUS).filter(|other| *other != cpu) {
            others.add(other);
            count += 1;
        }
        if count > 0 {
            own.write(space, what, number);
            // Relaxed, as the request: the posts below order it.
            own.pending.store(count, Relaxed);
            for other in others.numbers() {
                // A release, which pairs with the acquire of `answer`. Where the inbox was not empty an
                // interrupt is on its way.
                if self.cpus[other].inbox.add(cpu) {
                    kernel.interrupt(other);
                }
            }
        }
        if space.cpus.contains(cpu) {
            self.apply(cpu, space, what, number, kernel);
        }
        // Acquire pairs with the releases of `answer`: uses of old translations are over.
        while own.pending.load(Acquire) != 0 {
            self.answer(cpu, kernel);
            kernel.relax();
        }
    }

    /// Answers every request that was posted to the calling processor: the handler of the interrupt, and part
    /// of every loop that waits with interrupts off. Interrupts off.
    pub fn answer(&self, cpu: usize, kernel: &impl Processors) {
        for sender in self.cpus[cpu].inbox.take(CPUS) {
            let request = &self.cpus[sender];
            // SAFETY: the sender borrows it until all have answered, and we have not.
            let space = unsafe { &*request.space.load(Relaxed) };
            let (what, number) = request.read();
            self.apply(cpu, space, &what, number, kernel);
            // Release pairs with the acquire of `flush`. The slot is the sender's from here on.
            request.pending.fetch_sub(1, Release);
        }
    }

    /// `space` is about to go, and runs nowhere: lazy processors leave it. `Platform::space_ending`.
    pub fn end(&self, cpu: usize, space: &SpaceCpus, kernel: &impl Processors) {
        let (start, end) = (VirtAddr::new(0), VirtAddr::new(u64::MAX));
        self.flush(cpu, space, &Flush { start, end, all: true, tables_freed: true }, kernel);
        debug_assert_eq!(space.cpus.numbers(CPUS).next(), None, "a space ends while a processor runs it");
    }

    /// What a flush does to the calling processor.
    fn apply(&self, cpu: usize, space: &SpaceCpus, what: &Flush, number: u64, kernel: &impl Processors) {
        let own = &self.cpus[cpu];
        let current = own.current.load(Relaxed);
        if current == space.id | LAZY {
            kernel.switch_away(cpu, space.root);
            own.current.store(0, Relaxed);
            space.cpus.remove(cpu);
        } else if current == space.id {
            kernel.flush_here(cpu, space.root, what);
            own.done(space, number);
        }
        // Else it has left the space but for the bit: its context is behind from now on.
    }
}

/// Processors that a flush waits for.
#[derive(Default)]
struct CpuSet([u64; MAX_CPUS / 64]);

impl CpuSet {
    fn add(&mut self, cpu: usize) {
        self.0[cpu / 64] |= 1 << (cpu % 64);
    }

    fn numbers(&self) -> impl Iterator<Item = usize> {
        (0..MAX_CPUS).filter(|cpu| self.0[cpu / 64] >> (cpu % 64) & 1 != 0)
    }
}
