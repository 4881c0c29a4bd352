//! What VMAs, the pager and its waiters share of a userfaultfd: the context, its queue, and its messages. The
//! protocol: [`uffd`](crate::uffd).

pub(crate) mod queue;

use crate::{
    PAGE_SIZE,
    counted::{Counted, Shared, Weak},
    error::{NoMemory, UffdError, UffdReadError},
    platform::Platform,
    space::AddressSpace,
};
use bitflags::bitflags;
use freehold_sync::atomic::{
    AtomicU32,
    Ordering::{Acquire, Release},
};
use freehold_vmspace::{UserRange, VmSpace};
pub use queue::Poll;
use queue::Queue;

bitflags! {
    /// What a context does beyond serving faults, with Linux's numbers. Those that only say what there is are
    /// accepted and mean nothing.
    /// A program's word goes through `from_bits`, which refuses what has no name here (EINVAL).
    #[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Default)]
    pub struct Features: u64 {
        /// UFFD_FEATURE_PAGEFAULT_FLAG_WP: there is write protection.
        const PAGEFAULT_FLAG_WP = 1 << 0;
        /// UFFD_FEATURE_EVENT_FORK: a forked child's memory stays registered, with a context of its own.
        const EVENT_FORK = 1 << 1;
        /// UFFD_FEATURE_EVENT_REMAP: memory that mremap moves stays registered.
        const EVENT_REMAP = 1 << 2;
        /// UFFD_FEATURE_EVENT_REMOVE: word of MADV_DONTNEED, MADV_FREE and MADV_REMOVE.
        const EVENT_REMOVE = 1 << 3;
        /// UFFD_FEATURE_MISSING_HUGETLBFS: huge pages of pools can be registered.
        const MISSING_HUGETLBFS = 1 << 4;
        /// UFFD_FEATURE_MISSING_SHMEM: shared memory can be registered.
        const MISSING_SHMEM = 1 << 5;
        /// UFFD_FEATURE_EVENT_UNMAP: word of munmap.
        const EVENT_UNMAP = 1 << 6;
        /// UFFD_FEATURE_SIGBUS: nobody waits; a fault is a bus error.
        const SIGBUS = 1 << 7;
        /// UFFD_FEATURE_MINOR_HUGETLBFS: these have minor faults.
        const MINOR_HUGETLBFS = 1 << 9;
        /// UFFD_FEATURE_MINOR_SHMEM: there are minor faults.
        const MINOR_SHMEM = 1 << 10;
        /// UFFD_FEATURE_EXACT_ADDRESS: messages tell the address, and not only its page.
        const EXACT_ADDRESS = 1 << 11;
        /// UFFD_FEATURE_WP_HUGETLBFS_SHMEM: pages of shared memory and of pools can be write-protected.
        const WP_HUGETLBFS_SHMEM = 1 << 12;
        /// UFFD_FEATURE_WP_UNPOPULATED: so can anonymous pages that are not there.
        const WP_UNPOPULATED = 1 << 13;
        /// UFFD_FEATURE_POISON: pages can be declared lost.
        const POISON = 1 << 14;
        /// UFFD_FEATURE_MOVE: pages can be moved.
        const MOVE = 1 << 16;
    }
}

/// What a context is to be.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default)]
pub struct UffdConfig {
    /// What it does.
    pub features: Features,
    /// Only accesses by the program itself wait (UFFD_USER_MODE_ONLY); those on its behalf fail as on a bus
    /// error.
    pub user_mode_only: bool,
}

/// Why a fault is handed to the pager.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum FaultReason {
    /// Nothing is there.
    Missing,
    /// The page is in its file's cache, and not mapped (UFFD_PAGEFAULT_FLAG_MINOR).
    Minor,
    /// A store to a page that the pager has write-protected (UFFD_PAGEFAULT_FLAG_WP).
    WriteProtect,
}

/// What the pager reads.
#[derive(Debug)]
#[non_exhaustive]
pub enum Message<P: Platform> {
    /// UFFD_EVENT_PAGEFAULT: somebody waits for a page.
    Fault {
        /// The page, or the address with [`Features::EXACT_ADDRESS`].
        addr: u64,
        /// Why.
        reason: FaultReason,
        /// Whether the access was a store (UFFD_PAGEFAULT_FLAG_WRITE).
        write: bool,
    },
    /// UFFD_EVENT_FORK: a child has a copy of the registered memory; this is the child's context. If it is
    /// dropped the child's memory is registered no more.
    Fork(Userfaultfd<P>),
    /// UFFD_EVENT_REMAP: memory has moved.
    Remap {
        /// From there.
        from: u64,
        /// To there.
        to: u64,
        /// Bytes.
        len: u64,
    },
    /// UFFD_EVENT_REMOVE: these pages are about to go; the memory stays registered.
    Remove(UserRange),
    /// UFFD_EVENT_UNMAP: these addresses were unmapped.
    Unmap(UserRange),
}

/// What VMAs and the handle share; see the module.
pub(crate) struct Context<P: Platform> {
    pub(crate) space: Weak<AddressSpace<P>>,
    /// Fixed.
    pub(crate) config: UffdConfig,
    /// Changes of what is mapped that the pager has not read of. Raised under the write lock of the VMA
    /// concerned, or with a grace period behind it; read within an RCU guard, under that VMA's lock.
    changing: AtomicU32,
    pub(crate) queue: Queue<P>,
}

impl<P: Platform> Shared for Context<P> {}

impl<P: Platform> Context<P> {
    fn try_new(space: &Counted<AddressSpace<P>>, config: UffdConfig) -> Result<Counted<Self>, NoMemory> {
        Ok(Counted::try_new(Context {
            space: Counted::downgrade(space),
            config,
            changing: AtomicU32::new(0),
            queue: Queue::new(),
        })?)
    }

    /// Whether it was asked for one of these.
    pub fn wants(&self, features: Features) -> bool {
        self.config.features.intersects(features)
    }

    /// Whether fills are refused for now.
    pub(crate) fn is_changing(&self) -> bool {
        // Acquire pairs with the release of a sender's end: what follows sees the mapping as the message
        // said.
        self.changing.load(Acquire) != 0
    }

    fn begin_change(&self) {
        // Release is not needed to be seen in time: that is the locks' doing, or the grace period's.
        self.changing.fetch_add(1, Release);
    }

    fn end_change(&self) {
        self.changing.fetch_sub(1, Release);
    }

    /// All faults that wait for a page in `range` look again.
    pub(crate) fn wake(&self, range: UserRange) {
        self.queue.wake(range);
    }
}

/// One of a context's changes under way.
pub(crate) struct Change<P: Platform>(Counted<Context<P>>);

impl<P: Platform> Change<P> {
    /// Begins a change of what is mapped; it ends when this is dropped.
    pub(crate) fn begin(context: &Counted<Context<P>>) -> Self {
        context.begin_change();
        Change(context.clone())
    }

    /// Whose change it is.
    pub(crate) fn context(&self) -> &Counted<Context<P>> {
        &self.0
    }
}

impl<P: Platform> Drop for Change<P> {
    fn drop(&mut self) {
        self.0.end_change();
    }
}

/// A userfaultfd: the pager's handle, which several threads may use. Dropping it closes it.
pub struct Userfaultfd<P: Platform> {
    pub(crate) context: Counted<Context<P>>,
}

impl<P: Platform> core::fmt::Debug for Userfaultfd<P> {
    fn fmt(&self, f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
        f.debug_struct("Userfaultfd").field("config", &self.context.config).finish_non_exhaustive()
    }
}

/// Whole pages of user space; at least one.
pub(crate) fn decode<P: Platform>(start: u64, len: u64) -> Option<UserRange> {
    let aligned = start.is_multiple_of(PAGE_SIZE) && len.is_multiple_of(PAGE_SIZE) && len != 0;
    let end = start.checked_add(len).filter(|end| aligned && *end <= VmSpace::<P>::USER_END)?;
    Some(UserRange::new(start, end))
}

impl<P: Platform> Userfaultfd<P> {
    /// A context for the memory of `space`, of which nothing is registered yet.
    ///
    /// # Errors
    ///
    /// No memory.
    pub fn new(space: &Counted<AddressSpace<P>>, config: UffdConfig) -> Result<Self, NoMemory> {
        Ok(Userfaultfd { context: Context::try_new(space, config)? })
    }

    /// What it was made to be.
    pub fn config(&self) -> UffdConfig {
        self.context.config
    }

    /// The next message, waited for. Faults come before events.
    ///
    /// # Errors
    ///
    /// The context is closed, or a signal arrived.
    ///
    /// # Locks
    ///
    /// None; the caller holds none.
    pub fn read(&self) -> Result<Message<P>, UffdReadError> {
        self.context.queue.read()
    }

    /// What poll(2) asks: whether a message is there. It stays there, so a task that reads next may find that
    /// another has taken it. The [bell](Poll::bell) rings for the next message, and not for those after it
    /// unless this is asked again.
    ///
    /// # Examples
    ///
    /// ```
    /// # use freehold::{PAGE_SIZE, engine::{Config, Engine}, platform::Host, space::*, uffd::*};
    /// # use freehold_machine::{Machine, MachineConfig};
    /// # let engine = Engine::new(<Machine>::new(MachineConfig::backed(1 << 20)).unwrap(), Config::default()).unwrap();
    /// # let space = AddressSpace::new(&engine, &SpaceConfig::default()).unwrap();
    /// # let uffd = Userfaultfd::new(&space, UffdConfig::default()).unwrap();
    /// # std::thread::scope(|scope| { scope.spawn(|| uffd.close());
    /// let poll = loop {
    ///     let poll = uffd.poll();
    ///     if poll.readable || poll.closed || <Machine>::wait_interruptible(poll.bell, poll.seen).is_err() {
    ///         break poll;
    ///     }
    /// };
    /// assert!(poll.closed && uffd.try_read().is_none());
    /// # });
    /// ```
    pub fn poll(&self) -> Poll<'_> {
        self.context.queue.poll()
    }

    /// The next message, if there is one.
    pub fn try_read(&self) -> Option<Message<P>> {
        self.context.queue.take()
    }

    /// UFFDIO_WAKE: faults that wait for a page in this range look again.
    ///
    /// # Errors
    ///
    /// [`UffdError::Invalid`]: not whole pages of user space.
    pub fn wake(&self, start: u64, len: u64) -> Result<(), UffdError> {
        let range = decode::<P>(start, len).ok_or(UffdError::Invalid)?;
        self.context.wake(range);
        Ok(())
    }

    /// The address space, if it still lives.
    pub(crate) fn space(&self) -> Result<Counted<AddressSpace<P>>, UffdError> {
        self.context.space.upgrade().ok_or(UffdError::SpaceGone)
    }
}

/// A fault that has to wait, with no lock held and nothing borrowed.
pub(crate) struct Userfault<P: Platform> {
    pub context: Counted<Context<P>>,
    pub page: u64,
    pub write: bool,
    pub reason: FaultReason,
}
