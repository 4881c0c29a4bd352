//! Grace periods by quiescent states (McKenney and Slingwine 1998; QSBR).
//!
//! A read section costs nothing but that the processor passes no *quiescent state* inside it: sections run
//! with preemption off, and the kernel says so where none can be open, at context switches and ticks that
//! interrupt programs. A processor that idles, or runs a program for long without ticks, is *offline*, and
//! nobody waits for it.
//!
//! Requests are pushed to a list of the processor they are made on, without a lock, from interrupts too. One
//! *driver* at a time, the first caller of [`advance`](Qsbr::advance), takes the lists whole, begins a grace
//! period for them, and, when every processor has passed it, runs them.
//!
//! # States
//!
//! | word | value | meaning | written by |
//! | --- | --- | --- | --- |
//! | `period` | n | the grace period n is under way, or the last | the driver: n to n + 1 when it has taken requests |
//! | `seen` of a processor | 0 | offline: reads nothing | itself: from n by `offline`, to n by `online` |
//! | | n | was quiescent since grace period n began | itself, to a higher n by `quiescent` |
//! | `next` of a processor | list | requests of which no grace period is under way | pushed by the requester, taken whole by the driver |
//! | `waiting` of a processor | list | requests that wait for `period` | the driver |
//! | `pushed`, `done` of a processor | counts | requests asked for on it, and run | the requester; the driver |
//! | `driver` | 0, 1 | nobody drives, somebody does | exchanged from 0 to 1 by a driver, stored to 0 by the same |
//!
//! # Why a request waits for every reader
//!
//! The driver takes a request (acquire of `next`), so it knows what was done before the request, then stores
//! `period` = n. A section that is open then belongs to a processor whose `seen` is below n and not 0, unless
//! the processor came online unseen; it ends before that processor stores n or 0, by a release that the
//! driver acquires before it runs the request. A section that begins later begins after its processor has
//! read `period` = n (acquire), and finds what the request was made for undone. *Unseen*: `online` stores
//! `seen`, the driver stores `period`, each then looks at the other's word, with a fence in between: either
//! the driver waits for the processor, or the processor knows of n.
#![expect(unsafe_code, reason = "owns and runs requests that lie in their objects")]

use core::ptr::{self, NonNull};
use freehold_sync::RcuHead;
use freehold_sync::atomic::{
    AtomicPtr, AtomicU32, AtomicU64,
    Ordering::{Acquire, Relaxed, Release, SeqCst},
    const_unless_loom, fence,
};

/// `seen` of a processor that reads nothing.
const OFFLINE: u64 = 0;

/// What is kept for one processor.
#[derive(Debug)]
#[repr(align(128))]
pub struct QsbrCpu {
    seen: AtomicU64,
    next: AtomicPtr<RcuHead>,
    pushed: AtomicU64,
    waiting: AtomicPtr<RcuHead>,
    done: AtomicU64,
}

impl QsbrCpu {
    const_unless_loom! {
        /// Of a processor that is offline and has asked for nothing.
        pub fn new() -> Self {
            QsbrCpu {
                seen: AtomicU64::new(OFFLINE),
                next: AtomicPtr::new(ptr::null_mut()),
                pushed: AtomicU64::new(0),
                waiting: AtomicPtr::new(ptr::null_mut()),
                done: AtomicU64::new(0),
            }
        }
    }
}

impl Default for QsbrCpu {
    fn default() -> Self {
        Self::new()
    }
}

/// Grace periods of a kernel with so many processors; see the [module](self).
///
/// ```
/// use freehold_kit::{Qsbr, QsbrCpu};
///
/// static RCU: Qsbr<64> = Qsbr::new([const { QsbrCpu::new() }; 64]);
/// ```
#[derive(Debug)]
pub struct Qsbr<const CPUS: usize> {
    period: AtomicU64,
    driver: AtomicU32,
    cpus: [QsbrCpu; CPUS],
}

impl<const CPUS: usize> Qsbr<CPUS> {
    const_unless_loom! {
        /// All processors are offline.
        pub fn new(cpus: [QsbrCpu; CPUS]) -> Self {
            Qsbr { period: AtomicU64::new(1), driver: AtomicU32::new(0), cpus }
        }
    }

    /// The calling processor may open read sections from now on.
    ///
    /// # Panics
    ///
    /// With debug assertions, when it is online already.
    pub fn online(&self, cpu: usize) {
        let own = &self.cpus[cpu];
        debug_assert_eq!(own.seen.load(Relaxed), OFFLINE, "a processor comes online twice");
        // Release, here and below: pairs with the acquire of `passed`, which may find this value in place of
        // that of `offline`. Relaxed load: an older number makes the driver wait for the next
        // quiescent state, and no more.
        own.seen.store(self.period.load(Relaxed), Release);
        // Pairs with the fence of `begin`: the driver sees the store above, or the load below sees the
        // driver's.
        fence(SeqCst);
        // Acquire pairs with the release of `begin`: what was done before a request that does not wait for us
        // is seen.
        own.seen.store(self.period.load(Acquire), Release);
    }

    /// The calling processor has no read section open, and opens none before it is [`online`](Self::online)
    /// again.
    pub fn offline(&self, cpu: usize) {
        // Release pairs with the acquire of `passed`: sections end before what waits for them.
        self.cpus[cpu].seen.store(OFFLINE, Release);
    }

    /// Whether a processor is online; exact for itself.
    pub fn is_online(&self, cpu: usize) -> bool {
        self.cpus[cpu].seen.load(Relaxed) != OFFLINE
    }

    /// The calling processor, which is online, has no read section open at this moment. Cheap: nothing is
    /// written but at the first call of a grace period.
    pub fn quiescent(&self, cpu: usize) {
        let own = &self.cpus[cpu];
        // Acquire pairs with the release of `begin`: what was done before the requests is seen by sections
        // from now on.
        let now = self.period.load(Acquire);
        if own.seen.load(Relaxed) != now {
            debug_assert!(self.is_online(cpu), "a processor that is offline has nothing to report");
            // Release pairs with the acquire of `passed`: sections before this end before what waits for
            // them.
            own.seen.store(now, Release);
        }
    }

    /// Asks for `f(head)` after a grace period: [`Host::rcu_defer`](freehold_sync::Host::rcu_defer). `cpu` is
    /// the calling one, or any where the kernel cannot tell. May be called from interrupts, inside a read
    /// section, and from what was deferred.
    ///
    /// # Safety
    ///
    /// As for `rcu_defer`.
    pub unsafe fn defer(&self, cpu: usize, head: NonNull<RcuHead>, f: unsafe fn(NonNull<RcuHead>)) {
        let own = &self.cpus[cpu];
        // Relaxed: a task that waits for this request knows that this call has returned. Before the push: see
        // `barrier`.
        own.pushed.fetch_add(1, Relaxed);
        // Relaxed: the list is only put behind the head.
        let mut first = own.next.load(Relaxed);
        loop {
            // SAFETY: ours, by the caller's promise, until it is pushed.
            unsafe { RcuHead::set(head, NonNull::new(first), f) };
            // Release pairs with the acquire of `begin`: the request, and what was done before it.
            match own.next.compare_exchange_weak(first, head.as_ptr(), Release, Relaxed) {
                Ok(_) => return,
                Err(now) => first = now,
            }
        }
    }

    /// Runs what every processor has passed a grace period for, and begins another if something was asked for
    /// since; nothing if somebody else is at it. To be called now and then by every processor that is not
    /// offline, outside read sections and with no lock held that a deferred function takes: at a tick,
    /// when idling begins, or by a thread of its own.
    pub fn advance(&self) {
        // Acquire pairs with the release below: lists and `period` are as the driver before has left them.
        if self.driver.compare_exchange(0, 1, Acquire, Relaxed).is_err() {
            return;
        }
        // Twice: if all are quiescent, what was asked for now runs now; but what runs may go on asking.
        for _ in 0..2 {
            if self.has_waiting() {
                if !self.passed() {
                    break;
                }
                self.run();
            }
            if !self.begin() {
                break;
            }
        }
        // Release pairs with the acquire above.
        self.driver.store(0, Release);
    }

    /// Waits until everything has run that was asked for before this call. `pass` makes the calling task wait
    /// a little, through a quiescent state of its processor: it yields the processor, say. Not inside a
    /// read section, nor from what was deferred.
    pub fn barrier(&self, mut pass: impl FnMut()) {
        for cpu in &self.cpus {
            // A request that is known to have been made was counted before it was pushed, and so was every
            // one pushed before it. So when as many have run, of which lists are taken whole, it
            // is among them.
            let wanted = cpu.pushed.load(Relaxed);
            // Acquire pairs with the release of `run`: what the functions did is seen.
            while cpu.done.load(Acquire) < wanted {
                self.advance();
                pass();
            }
        }
    }

    fn has_waiting(&self) -> bool {
        // Relaxed: the driver's own.
        self.cpus.iter().any(|cpu| !cpu.waiting.load(Relaxed).is_null())
    }

    /// Whether every processor was quiescent, or offline, since the grace period began.
    fn passed(&self) -> bool {
        // Relaxed: the driver's own.
        let period = self.period.load(Relaxed);
        self.cpus.iter().all(|cpu| {
            // Acquire pairs with the releases of `online`, `offline` and `quiescent`.
            let seen = cpu.seen.load(Acquire);
            seen == OFFLINE || seen >= period
        })
    }

    /// Runs what waits. Every processor has passed.
    fn run(&self) {
        for cpu in &self.cpus {
            // Relaxed, here and below: the driver's own.
            let mut at = NonNull::new(cpu.waiting.load(Relaxed));
            cpu.waiting.store(ptr::null_mut(), Relaxed);
            let mut count = 0;
            while let Some(head) = at {
                // SAFETY: given to us by `defer`, and read before the function ends its life.
                at = unsafe { RcuHead::next(head) };
                // SAFETY: as above; its grace period is over, and it hangs in no list any more.
                unsafe { RcuHead::run(head) };
                count += 1;
            }
            if count > 0 {
                // Release pairs with the acquire of `barrier`.
                cpu.done.store(cpu.done.load(Relaxed) + count, Release);
            }
        }
    }

    /// Begins a grace period for all that was asked for, if anything was. Nothing waits.
    fn begin(&self) -> bool {
        let mut any = false;
        for cpu in &self.cpus {
            // Relaxed: what is missed now is taken by the next call.
            if !cpu.next.load(Relaxed).is_null() {
                // Acquire pairs with the release of `defer`.
                cpu.waiting.store(cpu.next.swap(ptr::null_mut(), Acquire), Relaxed);
                any = true;
            }
        }
        if any {
            // Release pairs with the acquires of `quiescent` and `online`: a processor that sees the grace
            // period sees what was done before the requests. Relaxed load: the driver's own.
            self.period.store(self.period.load(Relaxed) + 1, Release);
            // Pairs with the fence of `online`.
            fence(SeqCst);
        }
        any
    }
}
