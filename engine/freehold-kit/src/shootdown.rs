//! Flushes of the TLBs of other CPUs, over sets of CPUs. Supports lazy switching, and contexts in which a CPU
//! keeps translations of spaces that it does not run.
//!
//! | a kernel calls | when |
//! | --- | --- |
//! | [`space`](Shootdown::space), [`end`](Shootdown::end) | when a space is created, and in `Platform::space_ending` |
//! | [`enter`](Shootdown::enter), [`leave`](Shootdown::leave), [`idle`](Shootdown::idle) | at each switch of spaces, and when a CPU continues with a kernel task |
//! | [`flush`](Shootdown::flush), [`runs_elsewhere`](Shootdown::runs_elsewhere), [`runs`](Shootdown::runs) | in `Platform::flush`, `Platform::runs_elsewhere` and `Platform::walk_tables` |
//! | [`answer`](Shootdown::answer) | in the interrupt, and in `Host::relax` |
//!
//! The kernel implements [`Processors`]. `kernel/src/memory/tlb.rs` and `examples/embedding` use this file,
//! and `tests/loom_kit/shootdown.rs` tests it. A new field of a request is stored in `ShootCpu::write` and
//! loaded in `ShootCpu::read`; a new word also gets a row in the table of states.
//!
//! Each space has a set of the CPUs that may have translations of it ([`SpaceCpus`]). A CPU adds itself to
//! the set before it loads the root, and removes itself after it has loaded another root. A CPU that
//! continues with a kernel task keeps the root (it is *lazy*), so that a return to the space costs nothing.
//! The first flush that reaches a lazy CPU makes it leave the space.
//!
//! A flush works in these steps. It writes the request into the single slot of its CPU. It adds its CPU
//! number to the inbox of each other CPU of the set, and interrupts each of these CPUs whose inbox was empty;
//! several flushes share an interrupt. It flushes its own CPU. Then it waits until each of these other CPUs
//! has answered. During the wait, it answers the requests of other flushes. A CPU answers in the interrupt,
//! and wherever it waits with interrupts off: [`answer`](Shootdown::answer) belongs in `Host::relax`. So a
//! flush cannot deadlock even if its caller holds spin locks that the other CPUs spin for.
//!
//! CPUs that mark translations with a *context* (x86: PCID) keep the translations of a few spaces: a CPU that
//! returns to a space finds its old translations. Such a CPU gets no flushes for spaces that it does not run.
//! Instead, every flush of a space has a number, and for each context the CPU remembers the number up to
//! which it has done all flushes. If there have been more flushes, the CPU drops the old translations when it
//! loads the root. (Linux has done the same since 2017, with `tlb_gen` and dynamic ASIDs.)
//!
//! # States
//!
//! | word | value | meaning | written by |
//! | --- | --- | --- | --- |
//! | set of a space | bit of a CPU | the CPU may have translations of the space | that CPU: set by `enter`, cleared by `leave` or while it answers |
//! | `current` of a CPU | 0 | the register holds no space's root | that CPU only, interrupts off |
//! | | number of a space, perhaps with `LAZY` | the register holds the root of that space; with `LAZY` no program runs | |
//! | `flushes` of a space | n | n flushes have begun | each flush adds one, before it reads the set |
//! | context of a CPU | space, n | the context has only translations of this space that the first n flushes left | that CPU only: in `enter`, and when it does flush n + 1 |
//! | inbox of a CPU | bit of a sender | the sender's slot holds a request that this CPU has not answered | set by the sender, cleared by the receiver |
//! | `pending` of a CPU | n | n CPUs have not answered its request; 0: the slot is free for that CPU | set by that CPU, decremented by CPUs that answer |
//!
//! # Why no stale translation survives
//!
//! Before a flush, its caller changes an entry of the tables. `enter` sets the bit of its CPU. Each side then
//! reads what the other side wrote, with a fence between its write and its read. So either the flush finds
//! the bit and waits for an answer, or later table walks of the CPU see the change. A bit is cleared with a
//! release after the last use of a translation, and the flush acquires the set. A request in an inbox was
//! posted with a release after the change, so table walks after the answer see the change. The answer is
//! counted with a release that the flush acquires, so all uses of the old translation are over.
//!
//! The translations in a context are correct because of the same fences. `enter` sets the bit and then reads
//! the number of flushes; a flush increments the number and then reads the set. So either the flush finds the
//! bit, or `enter` finds that the number has risen. In the second case `enter` drops all translations, and
//! table walks see the change, because the number was released after the change. A CPU may answer flushes in
//! an order that differs from the order of their numbers. If a flush does not have the next number, the CPU
//! does the flush but does not count it. The context's number then stays behind until all translations of the
//! context are dropped. The number of a space is never reused.
#![expect(unsafe_code, reason = "a request borrows its sender's space, which the sender keeps alive")]

use crate::mask::{CpuMask, MAX_CPUS};
use core::ptr;
use freehold_pagetable::{Flush, Levels, Pfn, VirtAddr};
use freehold_sync::atomic::{
    AtomicPtr, AtomicU32, AtomicU64, AtomicUsize,
    Ordering::{Acquire, Relaxed, Release, SeqCst},
    const_unless_loom, fence,
};

/// Flag in `current`: no program runs on this root.
const LAZY: u64 = 1 << 63;
/// Flag of a request: flush everything.
const ALL: u32 = 1 << 0;
/// Flag of a request: page tables were freed.
const TABLES: u32 = 1 << 1;
/// Position of the levels of the entries, above the flags.
const LEVELS_SHIFT: u32 = 2;
/// Number of spaces of which a CPU keeps translations.
pub const CONTEXTS: usize = 6;

/// Operations that the flusher needs from the kernel. No operation may wait, or take a lock that is held
/// around a flush.
pub trait Processors {
    /// Makes `cpu` call [`Shootdown::answer`] soon, by an interrupt. The request is already posted. The
    /// flusher spins until `cpu` has answered, so a CPU must also answer while it idles, sleeps or is
    /// offline, or another CPU must answer for it.
    fn interrupt(&self, cpu: usize);

    /// Removes the translations that `what` covers from the TLB of the calling CPU `cpu`, for the space whose
    /// root is `root`; that root is in the register. If `what` says that tables were freed, also removes
    /// cached table entries.
    fn flush_here(&self, cpu: usize, root: Pfn, what: &Flush);

    /// Loads the kernel's own root instead of `root`. Called on the lazy CPU `cpu`. Translations of the space
    /// may stay if they belong to a context.
    fn switch_away(&self, cpu: usize, root: Pfn);

    /// Pauses briefly. Called in every iteration of a wait loop.
    fn relax(&self);
}

/// The CPUs that may have translations of a space. Part of the kernel's record of the space, `Platform::Mmu`.
#[derive(Debug)]
pub struct SpaceCpus {
    root: Pfn,
    /// Number of the space, from 1. Never reused.
    id: u64,
    cpus: CpuMask,
    flushes: Line<AtomicU64>,
}

/// A value on a cache line of its own. Every flush writes the value, so data that lockless table walks read
/// must not be on the same line.
#[derive(Debug)]
#[repr(align(128))]
struct Line<T>(T);

impl SpaceCpus {
    /// Returns the root table.
    pub fn root(&self) -> Pfn {
        self.root
    }

    /// Returns the CPUs that may have translations of the space.
    pub fn cpus(&self) -> &CpuMask {
        &self.cpus
    }
}

/// The way in which a CPU loads the root of a space.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Load {
    /// The context to use, below [`CONTEXTS`].
    pub context: usize,
    /// True if translations in the context may stay. A CPU without contexts drops all translations in any
    /// case.
    pub keeps: bool,
}

/// The state of one context of a CPU. Only that CPU accesses it, so all accesses are relaxed.
#[derive(Debug)]
struct Context {
    /// The number of a space, or 0 for none.
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

/// The state of one CPU. The table of the [module](self) explains the words.
#[derive(Debug)]
#[repr(align(128))]
pub struct ShootCpu {
    current: AtomicU64,
    inbox: CpuMask,
    pending: AtomicU32,
    /// The request. It does not change from the post until all CPUs have answered. Its fields are accessed
    /// relaxed, because the posts and answers order them.
    space: AtomicPtr<SpaceCpus>,
    start: AtomicU64,
    end: AtomicU64,
    flags: AtomicU32,
    number: AtomicU64,
    contexts: [Context; CONTEXTS],
    /// The context that was loaded last. `next` is the context for the next space that has no context.
    context: AtomicUsize,
    next: AtomicUsize,
}

impl ShootCpu {
    const_unless_loom! {
        /// Creates the state of a CPU that runs no space.
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

    /// Returns how the CPU must load the root of a space. `flushes` is the number of flushes of the space
    /// that have begun. Uses the context of the space, or takes the context that was assigned longest ago.
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

    /// Records that the flush with this number was done in the loaded context.
    fn done(&self, space: &SpaceCpus, number: u64) {
        let context = &self.contexts[self.context.load(Relaxed)];
        debug_assert_eq!(context.space.load(Relaxed), space.id, "a flush runs in another space's context");
        if context.flushes.load(Relaxed) + 1 == number {
            context.flushes.store(number, Relaxed);
        }
    }

    /// Writes the request into this slot. The slot is free, and the post of the request publishes it.
    fn write(&self, space: &SpaceCpus, what: &Flush, number: u64) {
        let flags = if what.all { ALL } else { 0 }
            | if what.tables_freed { TABLES } else { 0 }
            | u32::from(what.levels.bits()) << LEVELS_SHIFT;
        self.space.store(ptr::from_ref(space).cast_mut(), Relaxed);
        self.start.store(what.start.get(), Relaxed);
        self.end.store(what.end.get(), Relaxed);
        self.flags.store(flags, Relaxed);
        self.number.store(number, Relaxed);
    }

    /// Returns the request in this slot, and the number of the flush. The caller has not answered the request
    /// yet, so the request does not change.
    fn read(&self) -> (Flush, u64) {
        let flags = self.flags.load(Relaxed);
        let (start, end) = (VirtAddr::new(self.start.load(Relaxed)), VirtAddr::new(self.end.load(Relaxed)));
        let levels = Levels::from_bits((flags >> LEVELS_SHIFT) as u8);
        let what = Flush { start, end, all: flags & ALL != 0, levels, tables_freed: flags & TABLES != 0 };
        (what, self.number.load(Relaxed))
    }
}

impl Default for ShootCpu {
    fn default() -> Self {
        Self::new()
    }
}

/// The TLB flusher of a kernel with `CPUS` CPUs; see the [module](self).
///
/// ```
/// use freehold_kit::{ShootCpu, Shootdown};
///
/// static TLBS: Shootdown<64> = Shootdown::new([const { ShootCpu::new() }; 64]);
/// ```
#[derive(Debug)]
pub struct Shootdown<const CPUS: usize> {
    cpus: [ShootCpu; CPUS],
    /// Number of spaces created so far.
    spaces: AtomicU64,
}

impl<const CPUS: usize> Shootdown<CPUS> {
    const_unless_loom! {
        /// Creates a flusher whose CPUs run no space.
        pub fn new(cpus: [ShootCpu; CPUS]) -> Self {
            assert!(CPUS <= MAX_CPUS, "more CPUs than a set has room for");
            Shootdown { cpus, spaces: AtomicU64::new(0) }
        }
    }

    /// Creates a space with this root, of which no CPU has translations.
    pub fn space(&self, root: Pfn) -> SpaceCpus {
        // Relaxed: the numbers only have to differ.
        let id = self.spaces.fetch_add(1, Relaxed) + 1;
        SpaceCpus { root, id, cpus: CpuMask::new(), flushes: Line(AtomicU64::new(0)) }
    }

    /// Prepares the calling CPU to load the root of `space`; returns how to load it, or `None` if the root is
    /// still in the register. Interrupts are off, and the CPU answers no flush before it has loaded the root.
    ///
    /// After the load, the caller [leaves](Self::leave) the space that it ran before, unless it ran the same
    /// space. A lazy CPU returns to its space with this call only.
    pub fn enter(&self, cpu: usize, space: &SpaceCpus) -> Option<Load> {
        let own = &self.cpus[cpu];
        let before = own.current.load(Relaxed);
        own.current.store(space.id, Relaxed);
        if before == space.id | LAZY {
            // The CPU stayed in the set, so flushes reached it.
            return None;
        }
        space.cpus.add(cpu);
        // Pairs with the fence of `flush`: either the flush finds the bit, or this CPU finds the flush's
        // number and its table walks see the change.
        fence(SeqCst);
        // Acquire: pairs with the release in `flush`. If the number has risen, table walks see the change.
        Some(own.load(space, space.flushes.0.load(Acquire)))
    }

    /// Makes the calling CPU lazy: it runs no program and keeps the root of `space` in its register.
    pub fn idle(&self, cpu: usize, space: &SpaceCpus) {
        debug_assert_eq!(
            self.cpus[cpu].current.load(Relaxed),
            space.id,
            "a CPU becomes lazy in a space that it does not run"
        );
        self.cpus[cpu].current.store(space.id | LAZY, Relaxed);
    }

    /// Removes the calling CPU from `space`, after it has loaded another root or the kernel's root. The CPU
    /// uses no translation of `space` before it [enters](Self::enter) the space again. Interrupts are off.
    ///
    /// A flush that began before this call may still interrupt the CPU, which must answer, wherever it is.
    pub fn leave(&self, cpu: usize, space: &SpaceCpus) {
        let own = &self.cpus[cpu];
        if own.current.load(Relaxed) & !LAZY == space.id {
            own.current.store(0, Relaxed);
        }
        space.cpus.remove(cpu);
    }

    /// Returns true if the calling CPU runs a program in `space`. With interrupts off the result does not
    /// change. While the result is true, `Platform::walk_tables` may walk, because no flush ends before this
    /// CPU answers.
    pub fn runs(&self, cpu: usize, space: &SpaceCpus) -> bool {
        self.cpus[cpu].current.load(Relaxed) == space.id
    }

    /// Returns true if a CPU other than the calling one may have translations of `space` that are older than
    /// the caller's last changes of entries.
    pub fn runs_elsewhere(&self, cpu: usize, space: &SpaceCpus) -> bool {
        // Pairs with the fence of `enter`, as in `flush`.
        fence(SeqCst);
        space.cpus.numbers(CPUS).any(|other| other != cpu)
    }

    /// Removes from every CPU the translations that `what` covers. Implements `Platform::flush`. The caller
    /// stays on its CPU and begins no second flush during the call, not even from an interrupt.
    pub fn flush(&self, cpu: usize, space: &SpaceCpus, what: &Flush, kernel: &impl Processors) {
        let own = &self.cpus[cpu];
        debug_assert_eq!(own.pending.load(Relaxed), 0, "a flush begins inside another flush");
        // Release: pairs with the acquire in `enter`. The caller has changed the tables before this.
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
            // Relaxed, like the request: the posts below order it.
            own.pending.store(count, Relaxed);
            for other in others.numbers() {
                // Release: pairs with the acquire in `answer`. If the inbox was not empty, an interrupt is
                // already on its way.
                if self.cpus[other].inbox.add(cpu) {
                    kernel.interrupt(other);
                }
            }
        }
        if space.cpus.contains(cpu) {
            self.apply(cpu, space, what, number, kernel);
        }
        // Acquire: pairs with the releases in `answer`. All uses of old translations are over.
        while own.pending.load(Acquire) != 0 {
            self.answer(cpu, kernel);
            kernel.relax();
        }
    }

    /// Answers every request that was posted to the calling CPU. Called by the interrupt handler, and in
    /// every loop that waits with interrupts off. Interrupts are off.
    pub fn answer(&self, cpu: usize, kernel: &impl Processors) {
        for sender in self.cpus[cpu].inbox.take(CPUS) {
            let request = &self.cpus[sender];
            // SAFETY: the sender borrows the space until all CPUs have answered, and this CPU has not
            // answered yet.
            let space = unsafe { &*request.space.load(Relaxed) };
            let (what, number) = request.read();
            self.apply(cpu, space, &what, number, kernel);
            // Release: pairs with the acquire in `flush`. From here on, the slot belongs to the sender.
            request.pending.fetch_sub(1, Release);
        }
    }

    /// Makes lazy CPUs leave `space`, which is about to end and runs nowhere; implements
    /// `Platform::space_ending`.
    pub fn end(&self, cpu: usize, space: &SpaceCpus, kernel: &impl Processors) {
        self.flush(cpu, space, &Flush::EVERYTHING, kernel);
        debug_assert_eq!(space.cpus.numbers(CPUS).next(), None, "a space ends while a CPU runs it");
    }

    /// Does a flush on the calling CPU.
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
        // In the remaining case the CPU does not run the space, and has nothing to flush. It does not count
        // the flush, so the number of its context for the space stays behind.
    }
}

/// The CPUs that a flush waits for.
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
