//! /proc/sys/freehold/conformance: a read runs the conformance suite of `freehold-kit` on the kernel's platform,
//! and the text is its report. The checks of formats run on the host, and are left out here.
//!
//! The suite needs a second task. A write of `lend` lends the writing thread to the suite: the thread runs the
//! jobs of [`run_two`](Kernel::run_two) until a signal ends it. One check kills the thread that runs its job,
//! so a read fails with EAGAIN unless two threads are lent. The program `conformance.c` of the tests
//! does this on two CPUs, and ends afterwards.
//!
//! An access of the suite to a space runs on the calling thread, which becomes a thread of that space until
//! [`leave_space`](Kernel::leave_space). A fault of the access is served by the thread's own space, which has no memory at
//! the suite's addresses, so the access fails.
#![expect(unsafe_code, reason = "passes a function to another thread, and runs spaces of the suite")]

use crate::arch::lock::SpinLock;
use crate::files::tree::Node;
use crate::memory::tlb;
use crate::platform::{Machine, engine, swap, user};
use crate::proc::text::setting;
use crate::sched::thread::{Thread, current, work};
use alloc::format;
use alloc::sync::Arc;
use alloc::vec::Vec;
use core::mem::transmute;
use core::ptr;
use freehold::error::Errno;
use freehold::platform::Host;
use freehold::platform::atomic::{AtomicBool, AtomicU32, Ordering::SeqCst};
use freehold_kit::SpaceCpus;
use freehold_kit::conformance::{self, Kernel, NotRun};

/// Number of slots of the swap device that the suite checks.
const SLOTS: u64 = 256;

/// True while a read runs the suite.
static RUNNING: AtomicBool = AtomicBool::new(false);
/// Number of threads that are lent.
static LENT: AtomicU32 = AtomicU32::new(0);
/// The job that no lent thread has taken.
static JOB: SpinLock<Option<Job>> = SpinLock::new(None);
/// The thread that runs the job, or has run the last one.
static SECOND: SpinLock<Option<Arc<Thread>>> = SpinLock::new(None);
/// Number of the last job. Lent threads sleep on this word.
static POSTED: AtomicU32 = AtomicU32::new(0);
/// Numbers of the last job that was taken, and of the last job that has ended.
static TAKEN: AtomicU32 = AtomicU32::new(0);
static ENDED: AtomicU32 = AtomicU32::new(0);

/// The second function of [`run_two`](Kernel::run_two), and the number of the job.
struct Job(*mut (dyn FnMut() + Send), u32);

// SAFETY: the function may be sent to another thread, and only the thread that takes the job uses the pointer.
unsafe impl Send for Job {}

/// The kernel as the suite sees it.
struct Suite;

impl Kernel<Machine> for Suite {
    fn run_two(&self, first: &mut dyn FnMut(), second: &mut (dyn FnMut() + Send)) -> Result<(), NotRun> {
        // SAFETY: changes only the lifetime. This function returns after the job has ended, or after it has
        // taken the job back.
        let job =
            unsafe { transmute::<&mut (dyn FnMut() + Send), &'static mut (dyn FnMut() + Send)>(second) };
        // Only the thread that runs the suite changes the number. A lent thread may take the job before the
        // number is stored.
        let number = POSTED.load(SeqCst).wrapping_add(1);
        *JOB.lock() = Some(Job(job, number));
        POSTED.store(number, SeqCst);
        Machine::wake_all(&POSTED);
        while TAKEN.load(SeqCst) != number {
            if current().is_killed() && JOB.lock().take().is_some() {
                TAKEN.store(number, SeqCst);
                ENDED.store(number, SeqCst);
                return Err(NotRun::because("the thread that reads the report is killed"));
            }
            Machine::relax();
        }
        first();
        while ENDED.load(SeqCst) != number {
            Machine::relax();
        }
        Ok(())
    }

    fn load(&self, _: &Machine, mmu: &SpaceCpus, address: u64) -> Result<Option<u64>, NotRun> {
        // The suite keeps the space alive until `leave_space`.
        current().mmu.set(ptr::from_ref(mmu));
        tlb::enter(mmu);
        let mut bytes = [0; 8];
        Ok(user::copy_in(address, &mut bytes).ok().map(|()| u64::from_ne_bytes(bytes)))
    }

    fn leave_space(&self, _: &SpaceCpus) {
        return_to_own_space();
    }

    fn is_asleep(&self) -> Option<bool> {
        Some(SECOND.lock().as_ref().is_some_and(|thread| thread.is_parked()))
    }

    fn may_use_all_memory(&self) -> bool {
        true
    }

    fn kill_second(&self) -> Result<(), NotRun> {
        let second = SECOND.lock().clone();
        second.expect("a lent thread runs the job").give_work(work::KILL);
        Ok(())
    }
}

/// Makes the calling thread run its own space again.
fn return_to_own_space() {
    let own = current().space().mmu();
    current().mmu.set(ptr::from_ref(own));
    tlb::enter(own);
}

/// Lends the calling thread to the suite until a fatal signal arrives.
fn lend() -> Errno {
    LENT.fetch_add(1, SeqCst);
    run_jobs();
    LENT.fetch_sub(1, SeqCst);
    Errno::EINTR
}

/// Runs jobs of the suite until a fatal signal arrives.
fn run_jobs() {
    loop {
        let seen = POSTED.load(SeqCst);
        let job = JOB.lock().take();
        if let Some(Job(job, number)) = job {
            *SECOND.lock() = Some(Thread::hold_current());
            TAKEN.store(number, SeqCst);
            // SAFETY: `run_two` waits for the end of the job, and no other thread has the pointer.
            unsafe { (*job)() };
            return_to_own_space();
            ENDED.store(number, SeqCst);
        } else if Machine::wait_killable(&POSTED, seen).is_err() {
            return;
        }
        if current().is_killed() {
            return;
        }
    }
}

/// Runs the suite.
fn run() -> Result<Vec<u8>, Errno> {
    if LENT.load(SeqCst) < 2 {
        return Err(Errno::EAGAIN);
    }
    if RUNNING.swap(true, SeqCst) {
        return Err(Errno::EBUSY);
    }
    let reports = swap::another(SLOTS).map(|device| {
        [
            conformance::platform(engine().platform(), &Suite),
            conformance::engine(engine(), &Suite),
            conformance::swap(engine(), device, &Suite),
        ]
    });
    return_to_own_space();
    // The suite has used up the memory, and made it free again. No process has to end because of that.
    current().wants_memory.set(false);
    current().lacks_node.set(false);
    *SECOND.lock() = None;
    RUNNING.store(false, SeqCst);
    Ok(reports?.map(|report| format!("{report}\n")).concat().into_bytes())
}

/// Makes the file.
pub fn file() -> Arc<Node> {
    setting(run, |text| if text == b"lend" { Err(lend()) } else { Err(Errno::EINVAL) })
}
