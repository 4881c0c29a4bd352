//! The values of an address space's resource limits and privileges: as plain values, and as the words in use.
//! `space/limits.rs` checks them.
//!
//! Each word is independent, and no lock guards it. A new value applies from the next check on. Memory that
//! exceeds a lowered limit stays mapped.

use crate::PAGE_SHIFT;
use freehold_sync::atomic::{AtomicBool, AtomicU64, Ordering::Relaxed};
use freehold_vmspace::PageCount;

/// The value of a limit that does not apply.
pub const UNLIMITED: u64 = u64::MAX;

settings! {
    /// Limits and privileges, as plain values. All limits are in bytes, as setrlimit takes them.
    #[derive(Clone, Debug)]
    pub struct Limits {
        /// RLIMIT_AS: all mapped memory.
        pub address_space: u64,
        /// RLIMIT_DATA: private writable memory except stacks, and the heap together with the program's data.
        pub data: u64,
        /// The hard limit of RLIMIT_DATA. Applies if the soft limit is zero.
        pub data_hard: u64,
        /// RLIMIT_MEMLOCK: locked memory.
        pub memlock: u64,
        /// RLIMIT_STACK: the size up to which a fault grows a stack.
        pub stack: u64,
        /// Privilege to lock memory beyond the limit (CAP_IPC_LOCK).
        pub may_lock: bool,
        /// Privilege to map below the minimum address (CAP_SYS_RAWIO).
        pub may_map_low: bool,
        /// Privilege to inject memory failures (CAP_SYS_ADMIN).
        pub may_inject_failure: bool,
    }
}

impl Default for Limits {
    fn default() -> Self {
        Limits {
            address_space: UNLIMITED,
            data: UNLIMITED,
            data_hard: UNLIMITED,
            memlock: 8 << 20,
            stack: 8 << 20,
            may_lock: false,
            may_map_low: false,
            may_inject_failure: false,
        }
    }
}

impl Limits {
    /// Returns the default limits, without privileges.
    ///
    /// # Examples
    ///
    /// ```
    /// # use freehold::space::{Limits, limits::UNLIMITED};
    /// let limits = Limits::new().stack(1 << 20);
    /// assert_eq!((limits.stack, limits.data, limits.may_lock), (1 << 20, UNLIMITED, false));
    /// ```
    pub fn new() -> Self {
        Self::default()
    }
}

/// The limits in use. Each may be set and read at any time, independently of the others. All accesses are
/// Relaxed.
#[derive(Debug)]
pub struct LiveLimits {
    pub(in crate::space) address_space: AtomicU64,
    pub(in crate::space) data: AtomicU64,
    pub(in crate::space) data_hard: AtomicU64,
    pub(in crate::space) memlock: AtomicU64,
    stack: AtomicU64,
    pub(in crate::space) may_lock: AtomicBool,
    pub(in crate::space) may_map_low: AtomicBool,
    pub(in crate::space) may_inject_failure: AtomicBool,
}

impl LiveLimits {
    pub(crate) fn new(limits: &Limits) -> Self {
        LiveLimits {
            address_space: AtomicU64::new(limits.address_space),
            data: AtomicU64::new(limits.data),
            data_hard: AtomicU64::new(limits.data_hard),
            memlock: AtomicU64::new(limits.memlock),
            stack: AtomicU64::new(limits.stack),
            may_lock: AtomicBool::new(limits.may_lock),
            may_map_low: AtomicBool::new(limits.may_map_low),
            may_inject_failure: AtomicBool::new(limits.may_inject_failure),
        }
    }

    /// Replaces all limits and privileges.
    ///
    /// # Examples
    ///
    /// ```
    /// # use freehold::{PAGE_SIZE, error::MlockError, space::*};
    /// # let engine = freehold_machine::example_engine(1 << 20);
    /// # let space = AddressSpace::new(&engine, &SpaceConfig::default()).unwrap();
    /// # let (rw, private) = (Prot::READ | Prot::WRITE, MapFlags::PRIVATE | MapFlags::ANONYMOUS);
    /// # let at = space.mmap(0, 4 * PAGE_SIZE, rw, private, None, 0).unwrap();
    /// space.limits().set(&Limits::new().memlock(PAGE_SIZE));
    /// assert_eq!(space.mlock(at, 2 * PAGE_SIZE), Err(MlockError::LockLimit));
    /// space.limits().set(&Limits::new().memlock(PAGE_SIZE).may_lock(true));
    /// assert_eq!(space.mlock(at, 2 * PAGE_SIZE), Ok(()));
    /// ```
    pub fn set(&self, limits: &Limits) {
        self.address_space.store(limits.address_space, Relaxed);
        self.data.store(limits.data, Relaxed);
        self.data_hard.store(limits.data_hard, Relaxed);
        self.memlock.store(limits.memlock, Relaxed);
        self.stack.store(limits.stack, Relaxed);
        self.may_lock.store(limits.may_lock, Relaxed);
        self.may_map_low.store(limits.may_map_low, Relaxed);
        self.may_inject_failure.store(limits.may_inject_failure, Relaxed);
    }

    /// Returns all limits and privileges.
    ///
    /// # Examples
    ///
    /// ```
    /// # use freehold::{PAGE_SIZE, space::*};
    /// # let engine = freehold_machine::example_engine(1 << 20);
    /// # let space = AddressSpace::new(&engine, &SpaceConfig::default()).unwrap();
    /// let limits = space.limits();
    /// limits.set(&limits.get().memlock(PAGE_SIZE));
    /// assert_eq!((limits.get().memlock, limits.get().stack), (PAGE_SIZE, Limits::new().stack));
    /// ```
    pub fn get(&self) -> Limits {
        Limits {
            address_space: self.address_space.load(Relaxed),
            data: self.data.load(Relaxed),
            data_hard: self.data_hard.load(Relaxed),
            memlock: self.memlock.load(Relaxed),
            stack: self.stack.load(Relaxed),
            may_lock: self.may_lock.load(Relaxed),
            may_map_low: self.may_map_low.load(Relaxed),
            may_inject_failure: self.may_inject_failure.load(Relaxed),
        }
    }
}

/// Returns a limit in bytes as a number of whole pages.
pub(in crate::space) fn pages(bytes: &AtomicU64) -> PageCount {
    PageCount::new(bytes.load(Relaxed) >> PAGE_SHIFT)
}
