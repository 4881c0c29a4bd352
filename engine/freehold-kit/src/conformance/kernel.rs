//! The services of the kernel around a platform that only its author can provide to the suite.

use alloc::string::String;
use core::fmt;
use freehold::platform::Platform;

/// The reason why a check cannot run on this kernel. The [`Report`](super::Report) contains the reason.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct NotRun(pub String);

impl NotRun {
    /// Returns the reason with this text.
    pub fn because(reason: &str) -> Self {
        NotRun(String::from(reason))
    }
}

impl fmt::Display for NotRun {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

/// The kernel around a platform: what the suite needs and the traits of the platform do not have.
///
/// Every function has a default, which says that the kernel cannot do it. The checks that need the function
/// are then reported as [`NotRun`](super::Outcome::NotRun). A kernel that provides [`run_two`](Self::run_two)
/// and [`load`](Self::load) runs nearly all checks.
///
/// # Examples
///
/// A kernel in a process, whose second task is a thread:
///
/// ```
/// use freehold::platform::Platform;
/// use freehold_kit::conformance::{Kernel, NotRun};
///
/// struct Threads;
///
/// impl<P: Platform> Kernel<P> for Threads {
///     fn run_two(&self, first: &mut dyn FnMut(), second: &mut (dyn FnMut() + Send)) -> Result<(), NotRun> {
///         std::thread::scope(|scope| {
///             scope.spawn(second);
///             first();
///         });
///         Ok(())
///     }
/// }
/// ```
pub trait Kernel<P: Platform>: Sync {
    /// Hears the name of each check before the check begins. If the platform panics or hangs in a check, this
    /// function is the only one that names the check. The default does nothing.
    fn begins(&self, check: &'static str) {
        let _ = check;
    }

    /// Runs `first` on the calling task and `second` on another task at the same time, and returns when both
    /// have returned. The second task is new, or has no pending signal.
    ///
    /// The tasks wait for each other in loops that call `Host::relax`, partly in read sections. So they must
    /// run on different CPUs. A kernel with one CPU keeps the default, unless its `relax` switches tasks even
    /// in read sections.
    ///
    /// # Errors
    /// Fails if there is no second task. Neither function has run then.
    fn run_two(&self, first: &mut dyn FnMut(), second: &mut (dyn FnMut() + Send)) -> Result<(), NotRun> {
        let _ = (first, second);
        Err(NotRun::because("the kernel runs no second task (`Kernel::run_two`)"))
    }

    /// Lets time pass for a task that waits for the other task of [`run_two`](Self::run_two). The suite calls
    /// the function in a loop, with nothing held and outside of read sections. The default calls
    /// `Host::relax`. A kernel without preemption whose grace periods wait for every CPU reports a quiescent
    /// state here.
    fn pause(&self) {
        P::relax();
    }

    /// Loads the aligned word at `address` as a program in this space does, on the CPU of the calling task.
    /// Returns `None` if the access faults; the fault is not handled.
    ///
    /// The CPU may keep the translation afterwards, and should continue to run the space if the kernel does
    /// so for programs. Both let the checks of flushes find more.
    ///
    /// # Errors
    /// Fails if the kernel cannot make such an access.
    fn load(&self, platform: &P, mmu: &P::Mmu, address: u64) -> Result<Option<u64>, NotRun> {
        let _ = (platform, mmu, address);
        Err(NotRun::because("the kernel makes no accesses of programs (`Kernel::load`)"))
    }

    /// Makes the calling task's CPU leave the space that it runs, before the space ends. The default does
    /// nothing, for platforms whose `space_ending` does this for all CPUs.
    fn leave_space(&self, mmu: &P::Mmu) {
        let _ = mmu;
    }

    /// Returns true if the second task of [`run_two`](Self::run_two) sleeps in a wait of `Host` and no
    /// wake-up or signal has reached it. Only an exact answer is of use: with it, the suite finds a lost
    /// wake-up without a clock. The default, `None`, means that the kernel has no exact answer; the suite
    /// then waits for [`patience_ns`](Self::patience_ns).
    fn is_asleep(&self) -> Option<bool> {
        None
    }

    /// Returns the time, in nanoseconds of `Host::now_ns`, after which the suite concludes that the second
    /// task sleeps and was not woken. Used only if [`is_asleep`](Self::is_asleep) returns `None`. The default
    /// is one minute. A right platform never uses this time, unless its machine stops a woken task for
    /// longer.
    fn patience_ns(&self) -> u64 {
        60_000_000_000
    }

    /// Sends a fatal signal to the second task of [`run_two`](Self::run_two), which is running.
    ///
    /// # Errors
    /// Fails if the kernel has no signals.
    fn kill_second(&self) -> Result<(), NotRun> {
        Err(NotRun::because("the kernel sends no fatal signals (`Kernel::kill_second`)"))
    }

    /// Returns the number of frames that are charged to all owners at this moment, page tables not included.
    /// No other task may change the number during the suite.
    ///
    /// # Errors
    /// Fails if the platform does not count charges.
    fn charged(&self, platform: &P) -> Result<u64, NotRun> {
        let _ = platform;
        Err(NotRun::because("the platform counts no charges (`Kernel::charged`)"))
    }

    /// Returns true if the suite may allocate all frames of the platform for a moment, to check a shortage of
    /// memory. The default is false.
    fn may_use_all_memory(&self) -> bool {
        false
    }
}
