//! The state of a userfaultfd that VMAs, the pager and its waiters share: the context, its messages, and the
//! handle of the pager. `queue.rs` has the waiters and the readers. [`uffd`](crate::uffd) describes the
//! protocol.
//!
//! This folder is a layer below files and VMAs, because a VMA holds a reference to its context. The
//! operations of the pager, which need an address space, are therefore one folder up. A new kind of message
//! needs a variant of [`Message`] and its feature in [`Features`]; the embedder, such as
//! `kernel/src/process/userfault.rs`, encodes messages for programs. The queue's lock guards the waiters and
//! messages. `Context::changing` is a word without a lock; the comment of that field says when the word may
//! be read and written. The tests are `uffd` (`engine/freehold/tests`) and `uffd` (`shuttle_engine`).

pub(crate) mod queue;

use crate::{
    PAGE_SIZE,
    counted::{Counted, Shared, Weak},
    error::{NoMemory, UffdError, UffdReadError},
    features,
    platform::Platform,
    space::AddressSpace,
};
use bitflags::bitflags;
use freehold_sync::publish::ActiveCount;
use freehold_vmspace::{UserRange, VmSpace};
pub use queue::Poll;
use queue::Queue;

bitflags! {
    /// Optional behaviour of a context, with Linux's numbers. Flags that only announce a capability are
    /// accepted and have no effect. To convert a program's word, use `from_bits`, which refuses unknown flags
    /// (EINVAL).
    #[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Default)]
    pub struct Features: u64 {
        /// UFFD_FEATURE_PAGEFAULT_FLAG_WP: announces write protection.
        const PAGEFAULT_FLAG_WP = 1 << 0;
        /// UFFD_FEATURE_EVENT_FORK: the memory of a forked child stays registered, with its own context.
        const EVENT_FORK = 1 << 1;
        /// UFFD_FEATURE_EVENT_REMAP: memory that mremap moves stays registered.
        const EVENT_REMAP = 1 << 2;
        /// UFFD_FEATURE_EVENT_REMOVE: messages about MADV_DONTNEED, MADV_FREE and MADV_REMOVE.
        const EVENT_REMOVE = 1 << 3;
        /// UFFD_FEATURE_MISSING_HUGETLBFS: announces that huge pages of pools can be registered.
        const MISSING_HUGETLBFS = 1 << 4;
        /// UFFD_FEATURE_MISSING_SHMEM: announces that shared memory can be registered.
        const MISSING_SHMEM = 1 << 5;
        /// UFFD_FEATURE_EVENT_UNMAP: messages about munmap.
        const EVENT_UNMAP = 1 << 6;
        /// UFFD_FEATURE_SIGBUS: a fault fails with SIGBUS instead of waiting.
        const SIGBUS = 1 << 7;
        /// UFFD_FEATURE_THREAD_ID: messages about faults contain the number of the faulting thread
        /// ([`Platform::thread_id`]).
        const THREAD_ID = 1 << 8;
        /// UFFD_FEATURE_MINOR_HUGETLBFS: announces minor faults of huge pages of pools.
        const MINOR_HUGETLBFS = 1 << 9;
        /// UFFD_FEATURE_MINOR_SHMEM: announces minor faults of shared memory.
        const MINOR_SHMEM = 1 << 10;
        /// UFFD_FEATURE_EXACT_ADDRESS: messages contain the exact address instead of the address of the page.
        const EXACT_ADDRESS = 1 << 11;
        /// UFFD_FEATURE_WP_HUGETLBFS_SHMEM: announces write protection of shared memory and of huge pages of
        /// pools.
        const WP_HUGETLBFS_SHMEM = 1 << 12;
        /// UFFD_FEATURE_WP_UNPOPULATED: write protection also applies to absent anonymous pages.
        const WP_UNPOPULATED = 1 << 13;
        /// UFFD_FEATURE_POISON: announces that pages can be declared lost.
        const POISON = 1 << 14;
        /// UFFD_FEATURE_WP_ASYNC: a store to a write-protected page ends the protection and does not wait.
        /// The pager later finds the pages that were written ([`AddressSpace::page_entries`]). Implies
        /// `WP_UNPOPULATED`. Mappings of any file can then be registered for write protection.
        const WP_ASYNC = 1 << 15;
        /// UFFD_FEATURE_MOVE: announces that pages can be moved.
        const MOVE = 1 << 16;
    }
}

settings! {
    /// Settings of a context.
    #[derive(Clone, Copy, Debug, PartialEq, Eq, Default)]
    pub struct UffdConfig {
        /// The features.
        pub features: Features,
        /// True if only accesses by the program itself wait (UFFD_USER_MODE_ONLY). An access that the kernel
        /// makes for the program then fails as if the fault raised SIGBUS.
        pub user_mode_only: bool,
    }
}

impl UffdConfig {
    /// Returns settings without features. Accesses of the program and accesses of the kernel wait.
    #[must_use]
    pub const fn new() -> Self {
        UffdConfig { features: Features::empty(), user_mode_only: false }
    }
}

/// Reasons for which a fault waits for the pager.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum FaultReason {
    /// The page is absent.
    Missing,
    /// The page is in its file's cache but not mapped (UFFD_PAGEFAULT_FLAG_MINOR).
    Minor,
    /// A store to a page that the pager has write-protected (UFFD_PAGEFAULT_FLAG_WP).
    WriteProtect,
}

/// A message to the pager.
#[derive(Debug)]
#[non_exhaustive]
pub enum Message<P: Platform> {
    /// UFFD_EVENT_PAGEFAULT: a fault waits for a page.
    Fault {
        /// The address of the page, or of the access with [`Features::EXACT_ADDRESS`].
        addr: u64,
        /// The reason for the fault.
        reason: FaultReason,
        /// True if the access was a store (UFFD_PAGEFAULT_FLAG_WRITE).
        write: bool,
        /// The number of the thread that made the access, with [`Features::THREAD_ID`]; otherwise 0.
        thread: u32,
    },
    /// UFFD_EVENT_FORK: a child has a copy of the registered memory. The value is the child's context;
    /// dropping it unregisters the child's memory.
    Fork(Userfaultfd<P>),
    /// UFFD_EVENT_REMAP: mremap moved memory.
    Remap {
        /// The old address.
        from: u64,
        /// The new address.
        to: u64,
        /// The length in bytes.
        len: u64,
    },
    /// UFFD_EVENT_REMOVE: these pages are about to be removed. The memory stays registered.
    Remove(UserRange),
    /// UFFD_EVENT_UNMAP: these addresses were unmapped.
    Unmap(UserRange),
}

/// State that VMAs and the handle share. The head of [`uffd`](crate::uffd) has an overview.
pub(crate) struct Context<P: Platform> {
    /// The address space whose memory the pager serves. Never changes.
    pub(crate) space: Weak<AddressSpace<P>>,
    /// Settings. Never change.
    pub(crate) config: UffdConfig,
    /// Number of changes of the mappings whose message the pager has not read. Incremented under the write
    /// lock of the VMA concerned, or followed by a grace period. Read within an RCU read section, under that
    /// VMA's lock.
    changing: ActiveCount,
    /// The waiters and the unread messages, under a spin lock.
    pub(crate) queue: Queue<P>,
    pub(super) feature: features::Uffd,
}

impl<P: Platform> Shared for Context<P> {}

impl<P: Platform> Context<P> {
    fn try_new(space: &Counted<AddressSpace<P>>, mut config: UffdConfig) -> Result<Counted<Self>, NoMemory> {
        if config.features.contains(Features::WP_ASYNC) {
            config.features |= Features::WP_UNPOPULATED;
        }
        Ok(Counted::try_new(Context {
            space: Counted::downgrade(space),
            config,
            changing: ActiveCount::new(),
            queue: Queue::new(),
            feature: features::Uffd::get().ok_or(NoMemory)?,
        })?)
    }

    /// Returns true if one of these features is enabled.
    pub fn wants(&self, features: Features) -> bool {
        self.config.features.intersects(features)
    }

    /// Returns true if a change is in progress whose message the pager has not read. Fills are then refused.
    pub(crate) fn is_changing(&self) -> bool {
        // A fill that finds the change ended sees the mappings as the message describes them.
        self.changing.any()
    }

    fn begin_change(&self) {
        // The VMA's lock or the grace period makes the new count visible to fills.
        self.changing.begin();
    }

    fn end_change(&self) {
        self.changing.end();
    }

    /// Wakes all faults that wait for a page in `range`, so that they check again.
    pub(crate) fn wake(&self, range: UserRange) {
        self.queue.wake(range);
    }
}

/// A change in progress, which a context counts.
pub(crate) struct Change<P: Platform>(Counted<Context<P>>);

impl<P: Platform> Change<P> {
    /// Begins a change of the mappings. The change ends when the value is dropped.
    pub(crate) fn begin(context: &Counted<Context<P>>) -> Self {
        context.begin_change();
        Change(context.clone())
    }

    /// Returns the context that counts the change.
    pub(crate) fn context(&self) -> &Counted<Context<P>> {
        &self.0
    }
}

impl<P: Platform> Drop for Change<P> {
    fn drop(&mut self) {
        self.0.end_change();
    }
}

/// A userfaultfd: the pager's handle, which several threads may use. Dropping the handle closes the
/// userfaultfd.
pub struct Userfaultfd<P: Platform> {
    pub(crate) context: Counted<Context<P>>,
}

impl<P: Platform> core::fmt::Debug for Userfaultfd<P> {
    fn fmt(&self, f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
        f.debug_struct("Userfaultfd").field("config", &self.context.config).finish_non_exhaustive()
    }
}

/// Converts arguments to a non-empty range of whole pages of user space.
pub(crate) fn decode<P: Platform>(start: u64, len: u64) -> Option<UserRange> {
    let aligned = start.is_multiple_of(PAGE_SIZE) && len.is_multiple_of(PAGE_SIZE) && len != 0;
    let end = start.checked_add(len).filter(|end| aligned && *end <= VmSpace::<P>::USER_END)?;
    Some(UserRange::new(start, end))
}

impl<P: Platform> Userfaultfd<P> {
    /// Creates a context for the memory of `space`. Nothing is registered yet.
    ///
    /// # Errors
    ///
    /// Fails if there is no memory.
    ///
    /// # Examples
    ///
    /// ```
    /// # use freehold::{PAGE_SIZE, space::*, uffd::*};
    /// # let engine = freehold_machine::example_engine(1 << 20);
    /// # let space = AddressSpace::new(&engine, &SpaceConfig::default()).unwrap();
    /// let uffd = Userfaultfd::new(&space, UffdConfig::default()).unwrap();
    /// assert!(uffd.try_read().is_none() && !uffd.poll().closed);
    /// ```
    pub fn new(space: &Counted<AddressSpace<P>>, config: UffdConfig) -> Result<Self, NoMemory> {
        Ok(Userfaultfd { context: Context::try_new(space, config)? })
    }

    /// Returns the settings.
    ///
    /// # Examples
    ///
    /// ```
    /// # use freehold::{PAGE_SIZE, space::*, uffd::{Features, UffdConfig, Userfaultfd}};
    /// # let engine = freehold_machine::example_engine(1 << 20);
    /// # let space = AddressSpace::new(&engine, &SpaceConfig::default()).unwrap();
    /// let config = UffdConfig::new().features(Features::EXACT_ADDRESS).user_mode_only(true);
    /// assert_eq!(Userfaultfd::new(&space, config).unwrap().config(), config);
    /// ```
    pub fn config(&self) -> UffdConfig {
        self.context.config
    }

    /// Returns true from the start of a change of the mappings until the message about it is read. During
    /// this time, requests that change pages fail with [`UffdError::Changing`].
    ///
    /// # Examples
    ///
    /// ```
    /// # use freehold::{PAGE_SIZE, call::Advice, space::*, uffd::*};
    /// # let engine = freehold_machine::example_engine(1 << 20);
    /// # let space = AddressSpace::new(&engine, &SpaceConfig::default()).unwrap();
    /// # let (rw, private) = (Prot::READ | Prot::WRITE, MapFlags::PRIVATE | MapFlags::ANONYMOUS);
    /// # let at = space.mmap(0, 4 * PAGE_SIZE, rw, private, None, 0).unwrap();
    /// let config = UffdConfig::new().features(Features::EVENT_REMOVE);
    /// let uffd = Userfaultfd::new(&space, config).unwrap();
    /// uffd.register(at, PAGE_SIZE, RegisterMode::MISSING).unwrap();
    /// std::thread::scope(|scope| {
    ///     scope.spawn(|| space.madvise(at, PAGE_SIZE, Advice::DontNeed).unwrap());
    ///     while !uffd.is_changing() {}
    ///     assert!(matches!(uffd.read().unwrap(), Message::Remove(_)));
    /// });
    /// assert!(!uffd.is_changing());
    /// ```
    pub fn is_changing(&self) -> bool {
        self.context.is_changing()
    }

    /// Waits for the next message and returns it. Faults come before events.
    ///
    /// # Errors
    ///
    /// Fails if the context is closed or a signal arrives.
    ///
    /// # Locks
    ///
    /// The caller holds no lock.
    ///
    /// # Examples
    ///
    /// ```
    /// # use freehold::{PAGE_SIZE, fault::Access, space::*, uffd::*};
    /// # let engine = freehold_machine::example_engine(1 << 20);
    /// # let space = AddressSpace::new(&engine, &SpaceConfig::default()).unwrap();
    /// # let (rw, private) = (Prot::READ | Prot::WRITE, MapFlags::PRIVATE | MapFlags::ANONYMOUS);
    /// # let at = space.mmap(0, 4 * PAGE_SIZE, rw, private, None, 0).unwrap();
    /// # let uffd = Userfaultfd::new(&space, UffdConfig::default()).unwrap();
    /// # uffd.register(at, 4 * PAGE_SIZE, RegisterMode::MISSING).unwrap();
    /// std::thread::scope(|scope| {
    ///     let program = scope.spawn(|| space.handle_fault(at, Access::WRITE));
    ///     let message = uffd.read().unwrap();
    ///     assert!(matches!(message, Message::Fault { addr, write: true, .. } if addr == at));
    ///     uffd.copy(at, &[7; PAGE_SIZE as usize], FillMode::empty()).unwrap();
    ///     assert!(program.join().unwrap().unwrap().waited);
    /// });
    /// ```
    pub fn read(&self) -> Result<Message<P>, UffdReadError> {
        self.context.queue.read()
    }

    /// Returns the state for poll(2), which says whether a message can be read. The message stays in the
    /// queue, so another task may read it first. The [bell](Poll::bell) rings once, for the next message. A
    /// caller that waits for another message must call this function again.
    ///
    /// # Examples
    ///
    /// ```
    /// # use freehold::{PAGE_SIZE, platform::Host, space::*, uffd::*};
    /// # use freehold_machine::{Machine, MachineConfig};
    /// # let engine = freehold_machine::example_engine(1 << 20);
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

    /// Returns the next message, if there is one.
    ///
    /// # Examples
    ///
    /// ```
    /// # use freehold::{PAGE_SIZE, space::*, uffd::*};
    /// # let engine = freehold_machine::example_engine(1 << 20);
    /// # let space = AddressSpace::new(&engine, &SpaceConfig::default()).unwrap();
    /// # let (rw, private) = (Prot::READ | Prot::WRITE, MapFlags::PRIVATE | MapFlags::ANONYMOUS);
    /// # let at = space.mmap(0, 4 * PAGE_SIZE, rw, private, None, 0).unwrap();
    /// # let uffd = Userfaultfd::new(&space, UffdConfig::new().features(Features::EVENT_UNMAP)).unwrap();
    /// # uffd.register(at, 4 * PAGE_SIZE, RegisterMode::MISSING).unwrap();
    /// std::thread::scope(|scope| {
    ///     scope.spawn(|| space.munmap(at, PAGE_SIZE));
    ///     let message = loop {
    ///         let Some(message) = uffd.try_read() else { continue };
    ///         break message;
    ///     };
    ///     assert!(matches!(message, Message::Unmap(range) if range.start() == at));
    /// });
    /// ```
    pub fn try_read(&self) -> Option<Message<P>> {
        self.context.queue.take()
    }

    /// Wakes the faults that wait for a page in this range, so that they check again (UFFDIO_WAKE).
    ///
    /// # Errors
    ///
    /// Fails with [`UffdError::Invalid`] if the range does not consist of whole pages of user space.
    ///
    /// # Examples
    ///
    /// ```
    /// # use freehold::{PAGE_SIZE, fault::Access, space::*, uffd::*};
    /// # let engine = freehold_machine::example_engine(1 << 20);
    /// # let space = AddressSpace::new(&engine, &SpaceConfig::default()).unwrap();
    /// # let (rw, private) = (Prot::READ | Prot::WRITE, MapFlags::PRIVATE | MapFlags::ANONYMOUS);
    /// # let at = space.mmap(0, 4 * PAGE_SIZE, rw, private, None, 0).unwrap();
    /// # let uffd = Userfaultfd::new(&space, UffdConfig::default()).unwrap();
    /// # uffd.register(at, 4 * PAGE_SIZE, RegisterMode::MISSING).unwrap();
    /// std::thread::scope(|scope| {
    ///     let program = scope.spawn(|| space.handle_fault(at, Access::READ));
    ///     uffd.read().unwrap();
    ///     uffd.zeropage(at, PAGE_SIZE, FillMode::DONTWAKE).unwrap();
    ///     uffd.wake(at, PAGE_SIZE).unwrap();
    ///     assert!(program.join().unwrap().is_ok());
    /// });
    /// ```
    pub fn wake(&self, start: u64, len: u64) -> Result<(), UffdError> {
        let range = decode::<P>(start, len).ok_or(UffdError::Invalid)?;
        self.context.wake(range);
        Ok(())
    }

    /// Returns the address space, if it still exists.
    pub(crate) fn space(&self) -> Result<Counted<AddressSpace<P>>, UffdError> {
        self.context.space.upgrade().ok_or(UffdError::SpaceGone)
    }
}

/// A fault that must wait for the pager. Holds no lock and borrows nothing from the address space.
pub(crate) struct Userfault<P: Platform> {
    /// The context whose pager must serve the fault.
    pub context: Counted<Context<P>>,
    /// The address of the page.
    pub page: u64,
    /// True if the access was a store.
    pub write: bool,
    /// The reason for which the fault waits.
    pub reason: FaultReason,
    /// Makes the compiler remove the code of such faults if the crate is built without userfaultfd.
    pub _feature: features::Uffd,
}
