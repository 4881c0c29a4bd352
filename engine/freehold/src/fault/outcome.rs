//! The result of a fault ([`Resolved`], [`FaultError`]), and the result of one attempt ([`FaultOutcome`]).
//!
//! An attempt runs under one lock that keeps the VMA unchanged, and does not wait for a page, a frame or a
//! pager. If the fault must wait, the attempt returns an outcome that names the event. `fault/mod.rs` then
//! drops all locks, waits, and makes the next attempt. This file also has the check of access rights that all
//! faults share ([`check_access`]).
//!
//! `populate.rs`, `remote/page.rs` and the faults on huge pages of pools (`hugetlb/fault/`) use the same
//! outcomes. A new outcome needs an arm in `continue_fault`, in `populate_part` (`populate.rs`) and in
//! `remote/page.rs`.

use crate::{
    PAGE_SHIFT, Pfn,
    counted::Counted,
    engine::Engine,
    error::{Errno, LacksMemory, ToErrno},
    file::{File, Wanted},
    platform::Platform,
    space::change::anon::AnonVmaError,
    swap::SwapEntry,
    uffd::state::Userfault,
    vma::flags::VmFlags,
};
use core::fmt;
use freehold_pagetable::Access;
use freehold_sync::Killed;
use freehold_vmspace::HugePageSize;

/// The `si_code` of a SIGSEGV.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum SegvCode {
    /// SEGV_MAPERR: the address is not mapped.
    Maperr,
    /// SEGV_ACCERR: the mapping does not allow the access.
    Accerr,
    /// SEGV_PKUERR: the thread's rights do not allow the access to pages with this protection key.
    Pkuerr(u8),
}

/// Errors of a fault that cannot be resolved.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum FaultError {
    /// SIGSEGV.
    Segv {
        /// The address of the access.
        addr: u64,
        /// The reason for the signal.
        code: SegvCode,
    },
    /// SIGBUS: the address lies beyond the end of the file, or the file could not be read.
    Bus {
        /// The address of the access.
        addr: u64,
    },
    /// SIGBUS with BUS_MCEERR_AR: the memory of a page failed, and its contents are lost.
    MemoryFailed {
        /// The address of the access.
        addr: u64,
    },
    /// No memory for a page or page table, although
    /// [`memory_short`](crate::platform::Platform::memory_short) was asked. The caches of other CPUs may
    /// still contain free frames. The caller frees memory and tries again, or decides which process to kill.
    OutOfMemory,
    /// A fatal signal arrived while waiting for a lock.
    Killed,
    /// A signal arrived while an access of the program itself waited for a userfaultfd's pager. The access
    /// must be retried after the signal was handled.
    Interrupted,
}

impl fmt::Display for FaultError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match *self {
            FaultError::Segv { addr, code } => {
                write!(f, "segmentation fault at {addr:#x}: ")?;
                match code {
                    SegvCode::Maperr => f.write_str("nothing is mapped there"),
                    SegvCode::Accerr => f.write_str("the mapping does not allow the access"),
                    SegvCode::Pkuerr(key) => write!(f, "protection key {key} does not allow the access"),
                }
            }
            FaultError::Bus { addr } => write!(
                f,
                "bus error at {addr:#x}: the address lies beyond the end of the file, or the file could not be read"
            ),
            FaultError::MemoryFailed { addr } => write!(f, "the memory behind {addr:#x} has failed"),
            FaultError::OutOfMemory => f.write_str("there is no memory for a page or page table"),
            FaultError::Killed => f.write_str("a fatal signal arrived while waiting for a lock"),
            FaultError::Interrupted => {
                f.write_str("a signal arrived while waiting for a userfaultfd's pager")
            }
        }
    }
}

impl core::error::Error for FaultError {}

impl LacksMemory for FaultError {
    fn lacks_memory(&self) -> bool {
        *self == FaultError::OutOfMemory
    }
}

impl ToErrno for FaultError {
    /// Returns the errno number of a system call whose access to the program's memory fails with this error:
    /// EINTR if a signal arrived, otherwise EFAULT.
    fn to_errno(&self) -> Errno {
        match self {
            FaultError::Killed | FaultError::Interrupted => Errno::EINTR,
            _ => Errno::EFAULT,
        }
    }
}

/// The signal that a program gets if a fault fails. The numbers are those of Linux.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Signal {
    /// The number of the signal (`si_signo`): [`Signal::SIGBUS`] or [`Signal::SIGSEGV`].
    pub number: i32,
    /// The reason (`si_code`).
    pub code: i32,
    /// The address of the access (`si_addr`).
    pub addr: u64,
    /// The protection key that denied the access (`si_pkey`), for the code SEGV_PKUERR.
    pub pkey: Option<u8>,
    /// The size of the failed memory in bytes, as a power of two (`si_addr_lsb`), for the code BUS_MCEERR_AR.
    /// 0 for other codes.
    pub addr_lsb: u8,
}

impl Signal {
    /// The number of SIGBUS.
    pub const SIGBUS: i32 = 7;
    /// The number of SIGSEGV.
    pub const SIGSEGV: i32 = 11;
}

impl FaultError {
    /// Returns the signal for the program. Returns `None` if the program gets no signal for the access: it is
    /// being killed, it repeats the access, or there is no memory and the caller decides which process to
    /// kill.
    ///
    /// # Examples
    ///
    /// ```
    /// use freehold::fault::{FaultError, SegvCode, Signal};
    ///
    /// let error = FaultError::Segv { addr: 0x1000, code: SegvCode::Accerr };
    /// let signal = error.signal().unwrap();
    /// assert_eq!((signal.number, signal.code, signal.addr), (Signal::SIGSEGV, 2, 0x1000));
    /// assert_eq!(FaultError::Killed.signal(), None);
    /// ```
    pub fn signal(self) -> Option<Signal> {
        let signal = |number, code, addr| Signal { number, code, addr, pkey: None, addr_lsb: 0 };
        Some(match self {
            FaultError::Segv { addr, code: SegvCode::Maperr } => signal(Signal::SIGSEGV, 1, addr),
            FaultError::Segv { addr, code: SegvCode::Accerr } => signal(Signal::SIGSEGV, 2, addr),
            FaultError::Segv { addr, code: SegvCode::Pkuerr(key) } => {
                Signal { pkey: Some(key), ..signal(Signal::SIGSEGV, 4, addr) }
            }
            FaultError::Bus { addr } => signal(Signal::SIGBUS, 2, addr),
            FaultError::MemoryFailed { addr } => {
                Signal { addr_lsb: PAGE_SHIFT as u8, ..signal(Signal::SIGBUS, 4, addr) }
            }
            FaultError::OutOfMemory | FaultError::Killed | FaultError::Interrupted => return None,
        })
    }
}

impl From<Killed> for FaultError {
    fn from(_: Killed) -> Self {
        FaultError::Killed
    }
}

/// Effects of a resolved fault, which kernels count per task (getrusage's minor and major faults).
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default)]
#[non_exhaustive]
pub struct Resolved {
    /// A page was read from the backing store of its file, or from a swap device: a *major* fault. All other
    /// faults are minor.
    pub major: bool,
    /// The fault waited with no lock held: for a page of a file, of a pool or of a swap device, for a page
    /// that moves, or for a userfaultfd's pager.
    pub waited: bool,
}

/// Result of one attempt at a fault.
pub(crate) enum FaultOutcome<P: Platform> {
    /// The entry is installed.
    Done,
    /// Another task has changed something: start over.
    Retry,
    /// The fault needs the mmap lock.
    NeedMmapLock,
    /// The page is not in the file's cache, has the mark of readahead, or may not be changed yet: drop all
    /// locks, bring the page into the cache, start the reads of the next window or ask the pager, start over.
    Fill(Counted<File<P>>, Wanted),
    /// Another task must finish first: drop all locks, wait, start over.
    Wait(WaitFor),
    /// The page is on a swap device: drop all locks, bring the page into the swap cache, start over.
    SwapIn(SwapEntry),
    /// A userfaultfd's pager must serve the fault: drop all locks, wait for the pager, start over.
    Userfault(Userfault<P>),
    /// The fault cannot be resolved.
    Failed(FaultError),
}

/// An event that a fault waits for with no lock held.
#[derive(Clone, Copy, Debug)]
pub(crate) enum WaitFor {
    /// The unlock of a frame from which a page is being moved, or whose memory is failing.
    Frame(Pfn),
    /// The return of a reserved huge page to its pool. Another task still has a reference to the page.
    HugePage(HugePageSize, u32),
}

impl<P: Platform> Engine<P> {
    /// Waits for the event. The caller must then check again, because the wait may end without the event.
    ///
    /// # Errors
    ///
    /// Fails with `Killed` if a fatal signal ends the wait.
    pub(crate) fn wait_for(&self, what: WaitFor) -> Result<(), Killed> {
        match what {
            WaitFor::Frame(pfn) => self.memory().wait_for_frame(pfn),
            WaitFor::HugePage(size, seen) => self.huge_pool(size).wait(seen),
        }
    }
}

impl<P: Platform> From<AnonVmaError> for FaultOutcome<P> {
    fn from(why: AnonVmaError) -> Self {
        match why {
            AnonVmaError::NoMemory => FaultOutcome::OUT_OF_MEMORY,
            AnonVmaError::NeedMmapLock => FaultOutcome::NeedMmapLock,
        }
    }
}

impl<P: Platform> FaultOutcome<P> {
    /// Failure because there is no memory.
    pub const OUT_OF_MEMORY: Self = FaultOutcome::Failed(FaultError::OutOfMemory);
}

impl FaultError {
    /// Replaces the address of the page with the address of the access, which signals report.
    pub(super) fn at(self, addr: u64) -> Self {
        match self {
            FaultError::Segv { code, .. } => FaultError::Segv { addr, code },
            FaultError::Bus { .. } => FaultError::Bus { addr },
            FaultError::MemoryFailed { .. } => FaultError::MemoryFailed { addr },
            other => other,
        }
    }
}

/// Checks that the VMA and its protection key allow the access. The key is checked first, as on Linux, but
/// not for instruction fetches. An access to the memory of another process has no rights register and
/// therefore all rights ([`Access::pkru`] is zero).
pub(crate) fn check_access(flags: VmFlags, access: Access) -> Result<(), SegvCode> {
    let pkey = flags.pkey();
    if !access.exec && access.key_denies(pkey) {
        return Err(SegvCode::Pkuerr(pkey));
    }
    if permits(flags, access) { Ok(()) } else { Err(SegvCode::Accerr) }
}

/// Returns true if a VMA's flags allow the access. A VMA that allows any access also allows reads, because a
/// page-table entry that permits writes or execution also permits reads.
pub(crate) fn permits(flags: VmFlags, access: Access) -> bool {
    if access.write {
        flags.contains(VmFlags::WRITE)
    } else if access.exec {
        flags.contains(VmFlags::EXEC)
    } else {
        flags.intersects(VmFlags::ACCESS)
    }
}
