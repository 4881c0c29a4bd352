//! Grace periods with quiescent states (McKenney and Slingwine 1998; QSBR).
//!
//! A read section costs nothing, except that its CPU passes no *quiescent state* inside the section. Sections
//! run with preemption off. The kernel reports a quiescent state where no section can be open: at context
//! switches, and at ticks that interrupt programs. A CPU that idles, or that runs a program for long without
//! ticks, is *offline*, and no grace period waits for it. If threads of a process act as CPUs, a thread that
//! sleeps, in `Host::wait` for example, must also be offline. The thread must still answer interrupts, such
//! as those of [`shootdown`](crate::shootdown). `tests/loom_kit/qsbr.rs` tests this file.
//!
//! | a kernel calls | when |
//! | --- | --- |
//! | [`online`](Qsbr::online), [`offline`](Qsbr::offline) | before the first section of a CPU, and while the CPU idles or runs a program without ticks |
//! | [`quiescent`](Qsbr::quiescent) | at each context switch, and at a tick that interrupts a program |
//! | [`advance`](Qsbr::advance) | from time to time on every CPU that is online; runs the requests |
//! | [`defer`](Qsbr::defer), [`barrier`](Qsbr::barrier) | in `Host::rcu_defer` and `Host::rcu_barrier` |
//!
//! A CPU is offline until it calls [`online`](Qsbr::online). No grace period waits for a read section of a
//! CPU that is offline, so such a section is a use after free. [`is_online`](Qsbr::is_online) lets
//! `Host::rcu_read` check this in a build with debug assertions.
//!
//! A read section itself needs no call: it only keeps preemption off. `kernel/src/memory/rcu.rs` and
//! `examples/embedding` use this file.
//!
//! A request is pushed to a list of the CPU on which it is made, without a lock; interrupts may make requests
//! too. One *driver* runs at a time: the first caller of [`advance`](Qsbr::advance). The driver takes the
//! whole lists, begins a grace period for them, and runs the requests when every CPU has been quiescent or
//! offline since the period began. A new word gets a row in the table below. A change of an order or a fence
//! needs `cargo xtask loom`. The mutations `kit-*` in `xtask/mutants` remove single orders and fences, and
//! name the tests that then fail.
//!
//! # States
//!
//! | word | value | meaning | written by |
//! | --- | --- | --- | --- |
//! | `period` | n | grace period n is in progress, or was the last one | the driver: n to n + 1 after it has taken requests |
//! | `seen` of a CPU | 0 | offline: the CPU has no read section | that CPU: from n by `offline`, to n by `online` |
//! | | n | the CPU was quiescent after grace period n began | that CPU, to a higher n by `quiescent` |
//! | `next` of a CPU | list | requests for which no grace period has begun | pushed by the requester, taken whole by the driver |
//! | `waiting` of a CPU | list | requests that wait for `period` | the driver |
//! | `pushed`, `done` of a CPU | counts | requests made on the CPU; requests of the CPU that have run | the requester; the driver |
//! | `driver` | 0, 1 | there is no driver; a task is the driver | exchanged from 0 to 1 by a driver, stored to 0 by the same driver |
//!
//! # Why a request waits for every reader
//!
//! The driver takes a request (acquire of `next`), so it sees everything done before the request. Then it
//! stores `period` = n.
//!
//! - *A section that is open at this store* belongs to a CPU whose `seen` is below n and not 0, or to a CPU
//!   that has just come online. In the first case, the section ends before that CPU stores n or 0 with a
//!   release. The driver acquires that value before it runs the request.
//! - *A section that begins later* begins after its CPU has read `period` = n (acquire). So the section sees
//!   everything done before the request, and cannot find the object that was unlinked.
//! - *A CPU that has just come online*: `online` stores `seen`, the driver stores `period`, and each then
//!   reads the other's word, with a fence in between. So either the driver waits for the CPU, or the CPU sees
//!   n.
#![expect(unsafe_code, reason = "owns and runs requests that are stored inside their objects")]

use core::ptr::{self, NonNull};
use freehold_sync::RcuHead;
use freehold_sync::atomic::{
    AtomicPtr, AtomicU32, AtomicU64,
    Ordering::{Acquire, Relaxed, Release, SeqCst},
    const_unless_loom, fence,
};

/// Value of `seen` for a CPU without read sections.
const OFFLINE: u64 = 0;

/// The state of one CPU. The table of the [module](self) explains the words.
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
        /// Creates the state of a CPU that is offline and has made no requests.
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

/// Grace periods of a kernel with `CPUS` CPUs; see the [module](self).
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
        /// Creates the state of a kernel whose CPUs are all offline.
        pub fn new(cpus: [QsbrCpu; CPUS]) -> Self {
            Qsbr { period: AtomicU64::new(1), driver: AtomicU32::new(0), cpus }
        }
    }

    /// Declares that the calling CPU may open read sections from now on.
    ///
    /// # Panics
    ///
    /// With debug assertions, panics if the CPU is already online.
    pub fn online(&self, cpu: usize) {
        let own = &self.cpus[cpu];
        debug_assert_eq!(own.seen.load(Relaxed), OFFLINE, "a CPU comes online twice");
        // Release, here and below: pairs with the acquire in `passed`, which may read this value instead of
        // the value that `offline` stored. Relaxed load: an old number only makes the driver wait for the
        // next quiescent state.
        own.seen.store(self.period.load(Relaxed), Release);
        // Pairs with the fence of `begin`: the driver sees the store above, or the load below sees the
        // driver's store.
        fence(SeqCst);
        // Acquire: pairs with the release in `begin`. If a request does not wait for this CPU, this CPU sees
        // everything done before the request.
        own.seen.store(self.period.load(Acquire), Release);
    }

    /// Declares that the calling CPU has no read section open, and opens none before the next
    /// [`online`](Self::online).
    pub fn offline(&self, cpu: usize) {
        // Release: pairs with the acquire in `passed`. A request that waits for earlier sections of this CPU
        // runs after these sections have ended.
        self.cpus[cpu].seen.store(OFFLINE, Release);
    }

    /// Returns true if a CPU is online. The result is exact for the calling CPU.
    pub fn is_online(&self, cpu: usize) -> bool {
        self.cpus[cpu].seen.load(Relaxed) != OFFLINE
    }

    /// Declares that the calling CPU, which is online, has no read section open at this moment. Cheap: writes
    /// only at the first call in each grace period.
    pub fn quiescent(&self, cpu: usize) {
        let own = &self.cpus[cpu];
        // Acquire: pairs with the release in `begin`. Later sections see everything done before the requests.
        let now = self.period.load(Acquire);
        if own.seen.load(Relaxed) != now {
            debug_assert!(self.is_online(cpu), "an offline CPU reports a quiescent state");
            // Release: pairs with the acquire in `passed`. A request that waits for earlier sections of this
            // CPU runs after these sections have ended.
            own.seen.store(now, Release);
        }
    }

    /// Requests that `f(head)` runs after a grace period; implements
    /// [`Host::rcu_defer`](freehold_sync::Host::rcu_defer). `cpu` is the calling CPU, or any CPU if the
    /// kernel does not know which CPU calls. May be called from an interrupt, inside a read section, and from
    /// a deferred function.
    ///
    /// # Safety
    ///
    /// The requirements of `rcu_defer`.
    pub unsafe fn defer(&self, cpu: usize, head: NonNull<RcuHead>, f: unsafe fn(NonNull<RcuHead>)) {
        let own = &self.cpus[cpu];
        // Relaxed: a task that waits for this request knows that this call has returned. The count is raised
        // before the push; `barrier` relies on that.
        own.pushed.fetch_add(1, Relaxed);
        // Relaxed: the list is only linked behind the head, not read.
        let mut first = own.next.load(Relaxed);
        loop {
            // SAFETY: until the push, this function owns the head, by the caller's promise.
            unsafe { RcuHead::set(head, NonNull::new(first), f) };
            // Release: pairs with the acquire in `begin`. The driver sees the request and everything done
            // before the request.
            match own.next.compare_exchange_weak(first, head.as_ptr(), Release, Relaxed) {
                Ok(_) => return,
                Err(now) => first = now,
            }
        }
    }

    /// Runs the requests whose grace period is over, and begins another grace period if there are new
    /// requests. Does nothing if another task is the driver.
    ///
    /// Every CPU that is not offline must call this function from time to time: at a tick, when it begins to
    /// idle, or from a dedicated thread. The caller must be outside read sections, and must hold no lock that
    /// a deferred function takes.
    pub fn advance(&self) {
        // Acquire: pairs with the release below. The lists and `period` are as the previous driver left them.
        if self.driver.compare_exchange(0, 1, Acquire, Relaxed).is_err() {
            return;
        }
        // Two rounds: if all CPUs are quiescent, requests made now run in the same call. More rounds might
        // never end, because deferred functions may make new requests.
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
        // Release: pairs with the acquire above.
        self.driver.store(0, Release);
    }

    /// Waits until every request made before this call has run. Calls `pass` again and again until then.
    /// `pass` waits for a short time, for example by a yield. If the CPU of the caller is online, `pass` must
    /// also report a quiescent state of this CPU, because the requests wait for it. Must not be called inside
    /// a read section or from a deferred function.
    pub fn barrier(&self, mut pass: impl FnMut()) {
        for cpu in &self.cpus {
            // A request is counted before it is pushed. Let R be a request made before this call: `wanted`
            // counts R and every request that was pushed before R. The driver takes whole lists, so R is
            // among the first `wanted` requests that run.
            let wanted = cpu.pushed.load(Relaxed);
            // Acquire: pairs with the release in `run`. The caller sees what the functions did.
            while cpu.done.load(Acquire) < wanted {
                self.advance();
                pass();
            }
        }
    }

    /// Returns true if requests wait for the current grace period.
    fn has_waiting(&self) -> bool {
        // Relaxed: only the driver accesses the list.
        self.cpus.iter().any(|cpu| !cpu.waiting.load(Relaxed).is_null())
    }

    /// Returns true if every CPU has been quiescent or offline since the grace period began.
    fn passed(&self) -> bool {
        // Relaxed: only the driver writes the number.
        let period = self.period.load(Relaxed);
        self.cpus.iter().all(|cpu| {
            // Acquire: pairs with the releases in `online`, `offline` and `quiescent`.
            let seen = cpu.seen.load(Acquire);
            seen == OFFLINE || seen >= period
        })
    }

    /// Runs the waiting requests. Their grace period is over.
    fn run(&self) {
        for cpu in &self.cpus {
            // Relaxed, here and below: only the driver accesses the list.
            let mut at = NonNull::new(cpu.waiting.load(Relaxed));
            cpu.waiting.store(ptr::null_mut(), Relaxed);
            let mut count = 0;
            while let Some(head) = at {
                // SAFETY: `defer` passed the head to this list, and the link is read before the function ends
                // the head's life.
                at = unsafe { RcuHead::next(head) };
                // SAFETY: as above. The grace period is over, and the head is in no list any more.
                unsafe { RcuHead::run(head) };
                count += 1;
            }
            if count > 0 {
                // Release: pairs with the acquire in `barrier`.
                cpu.done.store(cpu.done.load(Relaxed) + count, Release);
            }
        }
    }

    /// Begins a grace period for all new requests. Returns false if there are none. Called when no request
    /// waits.
    fn begin(&self) -> bool {
        let mut any = false;
        for cpu in &self.cpus {
            // Relaxed: the next call takes a request that this load misses.
            if !cpu.next.load(Relaxed).is_null() {
                // Acquire: pairs with the release in `defer`.
                cpu.waiting.store(cpu.next.swap(ptr::null_mut(), Acquire), Relaxed);
                any = true;
            }
        }
        if any {
            // Release: pairs with the acquires in `quiescent` and `online`. A CPU that sees the grace period
            // sees everything done before the requests. Relaxed load: only the driver writes the number.
            self.period.store(self.period.load(Relaxed) + 1, Release);
            // Pairs with the fence of `online`.
            fence(SeqCst);
        }
        any
    }
}
