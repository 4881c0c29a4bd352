//! Read sections, deferred functions and grace periods.
#![expect(unsafe_code, reason = "defers functions, and owns the requests")]

use crate::conformance::kernel::Kernel;
use crate::conformance::report::require;
use crate::conformance::suite::{Checked, Stage, run_two};
use alloc::boxed::Box;
use alloc::vec::Vec;
use core::ptr::NonNull;
use freehold::platform::atomic::{AtomicU32, Ordering::SeqCst};
use freehold::platform::{Platform, RcuHead};

/// Number of steps for which a check looks for a function that runs too early.
const STEPS: u32 = 1000;

/// A deferred function that counts its runs. The head is the first field.
#[repr(C)]
struct Deferred {
    head: RcuHead,
    runs: AtomicU32,
}

/// A request that was passed to the host. It is freed by [`free`](Request::free) only, so a host that runs it
/// at a wrong time finds valid memory.
struct Request(&'static Deferred);

/// # Safety
///
/// `head` is the head of a `Deferred` that is not freed.
unsafe fn count_run(head: NonNull<RcuHead>) {
    // SAFETY: the head is the first field, and the pointer was made from the whole `Deferred`.
    unsafe { head.cast::<Deferred>().as_ref() }.runs.fetch_add(1, SeqCst);
}

impl Request {
    /// Defers a function.
    fn defer<P: Platform>() -> Self {
        let deferred = Box::leak(Box::new(Deferred { head: RcuHead::new(), runs: AtomicU32::new(0) }));
        let all = NonNull::from(deferred);
        // SAFETY: the head stays valid, and only the host uses it.
        unsafe { P::rcu_defer(all.cast(), count_run) };
        // SAFETY: the memory is leaked, and shared accesses to `runs` are atomic.
        Request(unsafe { all.as_ref() })
    }

    /// Returns the number of runs.
    fn runs(&self) -> u32 {
        self.0.runs.load(SeqCst)
    }

    /// Frees a request whose function has run.
    fn free(self) {
        // SAFETY: the function has run, so the host does not use the head any more. The memory came from a
        // box, and no other reference to it exists.
        drop(unsafe { Box::from_raw(core::ptr::from_ref(self.0).cast_mut()) });
    }

    /// Checks that the function has run once, after a barrier.
    fn has_run(self) -> Checked {
        let runs = self.runs();
        require!(
            runs == 1,
            "rcu_barrier returned, but a function that was deferred before has run {runs} times"
        );
        self.free();
        Ok(())
    }
}

pub fn own_reader<P: Platform>() -> Checked {
    let outer = P::rcu_read();
    drop(P::rcu_read());
    let request = Request::defer::<P>();
    drop(P::rcu_read());
    for _ in 0..STEPS {
        require!(
            request.runs() == 0,
            "a grace period did not wait for a reader: a deferred function ran in the read section in which it was \
             deferred"
        );
        P::relax();
    }
    drop(outer);
    P::rcu_barrier();
    request.has_run()
}

pub fn once<P: Platform>() -> Checked {
    let requests: Vec<Request> = (0..100)
        .map(|n: u32| {
            let _reading = n.is_multiple_of(2).then(P::rcu_read);
            Request::defer::<P>()
        })
        .collect();
    P::rcu_barrier();
    let late = requests.iter().find(|request| request.runs() != 1);
    if let Some(request) = late {
        return Err(alloc::format!(
            "rcu_barrier returned, but a function that was deferred before has run {} times",
            request.runs()
        )
        .into());
    }
    P::rcu_barrier();
    requests.into_iter().try_for_each(Request::has_run)
}

pub fn other_reader<P: Platform, K: Kernel<P>>(kernel: &K) -> Checked {
    let stage = Stage::new();
    let first = || {
        stage.wait_for(kernel, 1);
        let request = Request::defer::<P>();
        let early = (0..STEPS).any(|_| {
            P::relax();
            request.runs() != 0
        });
        stage.reach(2);
        require!(
            !early,
            "a grace period did not wait for a reader: a deferred function ran while a read section of another CPU was \
             open that began before"
        );
        P::rcu_barrier();
        request.has_run()
    };
    let second = || {
        let reading = P::rcu_read();
        stage.reach(1);
        stage.wait_reading::<P>(2);
        drop(reading);
        Ok(())
    };
    run_two(kernel, first, second)
}

pub fn barrier<P: Platform, K: Kernel<P>>(kernel: &K) -> Checked {
    let (stage, left) = (Stage::new(), AtomicU32::new(0));
    const ROUNDS: u32 = 4;
    let first = || {
        let mut found = Ok(());
        for round in 0..ROUNDS {
            stage.wait_for(kernel, 3 * round + 1);
            let request = Request::defer::<P>();
            stage.reach(3 * round + 2);
            P::rcu_barrier();
            let ended = left.load(SeqCst) > round;
            if found.is_ok() && ended {
                found = request.has_run();
            } else if !ended {
                found = Err(alloc::string::String::from(
                    "rcu_barrier did not wait for a reader: it returned while a read section of another CPU was open \
                     that began before a deferred function",
                )
                .into());
            }
            // The next section begins after the barrier: a grace period may also wait for later readers.
            stage.reach(3 * round + 3);
        }
        found
    };
    let second = || {
        for round in 0..ROUNDS {
            let reading = P::rcu_read();
            stage.reach(3 * round + 1);
            stage.wait_reading::<P>(3 * round + 2);
            (0..STEPS).for_each(|_| P::relax());
            left.store(round + 1, SeqCst);
            drop(reading);
            stage.wait_for(kernel, 3 * round + 3);
        }
        Ok(())
    };
    run_two(kernel, first, second)
}
