//! How a fault ends, and how far one attempt at it comes.

use crate::{
    Pfn,
    counted::Counted,
    engine::Engine,
    file::{File, Wanted},
    platform::Platform,
    space::change::anon::AnonVmaError,
    uffd::state::Userfault,
    vma::flags::VmFlags,
};
use core::fmt;
use freehold_pagetable::Access;
use freehold_sync::Killed;
use freehold_vmspace::HugePageSize;

/// What a SIGSEGV says.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum SegvCode {
    /// SEGV_MAPERR: nothing is mapped there.
    Maperr,
    /// SEGV_ACCERR: what is mapped there does not allow this.
    Accerr,
    /// SEGV_PKUERR: the thread's rights for this protection key, which the pages there have, do not allow
    /// this.
    Pkuerr(u8),
}

/// How a fault ends that cannot be resolved.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum FaultError {
    /// SIGSEGV.
    Segv {
        /// The address.
        addr: u64,
        /// Why.
        code: SegvCode,
    },
    /// SIGBUS: beyond the end of the file, or the file could not be read.
    Bus {
        /// The address.
        addr: u64,
    },
    /// SIGBUS with BUS_MCEERR_AR, of a page: the memory failed, and what was there is lost.
    MemoryFailed {
        /// The address.
        addr: u64,
    },
    /// No frame, no table: the caller decides which process has to go.
    OutOfMemory,
    /// A fatal signal arrived while waiting for a lock.
    Killed,
    /// A signal arrived while a userfaultfd's pager was waited for, of an access by the program itself: it is
    /// to be tried again once the signal was handled.
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

impl From<Killed> for FaultError {
    fn from(_: Killed) -> Self {
        FaultError::Killed
    }
}

/// What a fault did that was resolved: what kernels count by task (getrusage's minor and major faults).
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default)]
#[non_exhaustive]
pub struct Resolved {
    /// A page came from the store behind its file: a *major* fault. All others are minor.
    pub major: bool,
    /// It waited with no lock held: for a page of a file or of a pool, for a page that moves, or for a
    /// userfaultfd's monitor.
    pub waited: bool,
}

/// How far one attempt came.
pub(crate) enum FaultOutcome<P: Platform> {
    /// The entry is there.
    Done,
    /// Something changed meanwhile: start over.
    Retry,
    /// This needs the mmap lock.
    NeedMmapLock,
    /// The page is not in the file's cache: drop every lock, fill it, start over.
    Fill(Counted<File<P>>, Wanted),
    /// Somebody else has to get on first: drop every lock, wait for it, start over.
    Wait(WaitFor),
    /// It is for a userfaultfd's pager to serve: drop every lock, wait for it, start over.
    Userfault(Userfault<P>),
    /// It cannot be resolved.
    Failed(FaultError),
}

/// What a fault waits for, with no lock held.
#[derive(Clone, Copy, Debug)]
pub(crate) enum WaitFor {
    /// The page is being moved out of this frame, or its memory is failing.
    Frame(Pfn),
    /// A huge page of a pool that was reserved, and that somebody still looks at.
    HugePage(HugePageSize, u32),
}

impl<P: Platform> Engine<P> {
    /// Waits for it, perhaps in vain.
    ///
    /// # Errors
    ///
    /// A fatal signal ended the wait.
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
    /// No memory.
    pub const OUT_OF_MEMORY: Self = FaultOutcome::Failed(FaultError::OutOfMemory);
}

impl FaultError {
    /// Signals report the address of the access, not of its page.
    pub(super) fn at(self, addr: u64) -> Self {
        match self {
            FaultError::Segv { code, .. } => FaultError::Segv { addr, code },
            FaultError::Bus { .. } => FaultError::Bus { addr },
            FaultError::MemoryFailed { .. } => FaultError::MemoryFailed { addr },
            other => other,
        }
    }
}

/// Whether VMA and protection key allow the access; the key is asked first, as on Linux, and not about
/// fetches. An access to the memory of another process has no register of rights, and so all rights
/// ([`Access::pkru`] is zero).
pub(crate) fn check_access(flags: VmFlags, access: Access) -> Result<(), SegvCode> {
    let pkey = flags.pkey();
    if !access.exec && access.key_denies(pkey) {
        return Err(SegvCode::Pkuerr(pkey));
    }
    if permits(flags, access) { Ok(()) } else { Err(SegvCode::Accerr) }
}

/// Whether a VMA's flags allow the access. Reading is allowed where anything is: the hardware cannot tell.
pub(crate) fn permits(flags: VmFlags, access: Access) -> bool {
    if access.write {
        flags.contains(VmFlags::WRITE)
    } else if access.exec {
        flags.contains(VmFlags::EXEC)
    } else {
        flags.intersects(VmFlags::ACCESS)
    }
}
