//! The VMA: a range of addresses with the same rights on the same object.
//!
//! A VMA lives in a [slab]. Its memory stays a `Vma` until all read sections (RCU) that could find it have
//! ended, so a reader that loses a race against an unmap may still access the memory there, and notices the
//! race. Only the guards of [`space::locking`](crate::space::locking) keep the *content* of a VMA unchanged.
//! Only these guards return a `&Vma`, and only for their own lifetime. A reader without a guard
//! (`space/speculate.rs`) reads the words of a VMA and uses them only if no writer was active during the
//! read.
//!
//! The slab reuses a freed VMA at once, perhaps for another address space. A reader that found the address in
//! a read section cannot lock a free VMA, because its count is 0. The reader may lock the next VMA in the
//! same memory. The reader then checks the owner, the sequence number and the bounds, in this order. One of
//! these checks fails before the reader reads anything else (hazard C-22).
//!
//! | holder of a VMA's address | during | kept valid by |
//! | --- | --- | --- |
//! | a lookup, a read without a lock | `lock_vma`, `speculate` | a read section |
//! | a reader of the VMA | until it decrements the count | the count: the VMA is attached. If a writer waits for the reader, a read section until the wake-up |
//! | a holder of the mmap lock | the guard | the lock, because freeing a VMA of the space requires it for writing. A merge that frees a VMA does not use the VMA afterwards |
//! | a walk of the reverse map | `RmapReadGuard`, `RmapWriteGuard` | the lock: a VMA is unlinked before it is freed |
//! | a munmap's list, `OwnedVma` | until retired | ownership |
//! | a slot of readers | | nothing: the slot holds a number that is compared and never dereferenced |
//!
//! `space/change/split_merge.rs` changes VMAs through the write guards. A new field needs a place in one of
//! the cache lines of `Vma`, a line in the list of locks above `Vma`, its initial value and its `announce!`
//! line in `owned.rs`, and a decision in `merge.rs`. The tests of races are `loom_tests.rs`, and `reuse`
//! (`shuttle_engine`).

#![expect(
    unsafe_code,
    reason = "lookups read the object and faults read the tree without counting references"
)]

mod anon_vma;
pub mod flags;
pub(crate) mod info;
pub(crate) mod locked_list;
#[cfg(all(test, loom))]
mod loom_tests;
pub mod merge;
pub mod owned;
mod rmap_node;
pub mod slab;

pub use anon_vma::AnonId;
pub(crate) use anon_vma::AnonVma;
pub use info::VmaInfo;

use crate::{
    counted::Counted,
    file::Object,
    hugetlb::state::vma_lock::HugetlbVma,
    platform::Platform,
    rmap::tree::{
        AnonPages, IMmap,
        root::{RmapRoot, RmapRootRef},
    },
    uffd::state::{Context, Features},
};
use anon_vma::AnonVmaWords;
use core::{
    cell::UnsafeCell,
    ptr::{NonNull, null_mut},
};
use flags::VmFlags;
use freehold_range::IntervalLink;
use freehold_sync::{
    VmaCount, VmaLock, VmaSeq,
    atomic::{AtomicPtr, AtomicU64, AtomicUsize, Ordering::Relaxed},
    publish::Published,
};
use freehold_vmspace::{AnonPage, PageCount, PageIndex, UserRange, VmSpace, Zap};
use locked_list::LockedLinks;

/// One mapped area of an address space.
///
/// Locks that guard the fields:
///
/// - `start`, `end`, `pgoff`: the mmap lock for writing, the VMA's write lock, and the locks of the trees
///   that the VMA is linked in (of its file, of its anonymous pages) for writing.
/// - `flags`, `policy`, `uffd`: the mmap lock for writing and the VMA's write lock.
/// - `anon`, `tree`: to set the first value, the tree's lock for writing, and the mmap lock or the VMA's lock
///   for reading; to reset the value, the mmap lock for writing and the VMA's write lock, while the VMA is
///   not linked in the tree.
/// - `object`, `hugetlb`, `owner`: written only while the VMA is detached.
///
/// A claim of the VMA's entry counts as the mmap lock held for writing. Every field may be *read* under any
/// one of the locks listed for it.
#[repr(C, align(64))]
pub struct Vma<P: Platform> {
    // First cache line: fields that a lookup reads.
    start: AtomicU64,
    end: AtomicU64,
    /// Address of the owning space's [`VmSpace`]; zero if the VMA never had an owner.
    owner: AtomicUsize,
    flags: AtomicU64,
    pgoff: AtomicU64,
    anon: AtomicU64,
    /// The home of the mapped file, for readers without a lock; null if there is no file. Written together
    /// with `object`, which owns the file.
    file_home: Published<RmapRoot<P, IMmap>>,
    pub(crate) seq: VmaSeq,
    // Second cache line: fields that are read by faults on files, first writes of pages, and the reverse map.
    object: UnsafeCell<Object<P>>,
    /// Additional state of a VMA of huge pages. Written under the same conditions as `object`.
    hugetlb: UnsafeCell<Option<Counted<HugetlbVma<P>>>>,
    /// The rmap tree of anonymous pages made in this VMA. The VMA holds a reference.
    tree: AtomicPtr<RmapRoot<P, AnonPages>>,
    policy: AtomicU64,
    /// The link in the interval tree of the mapped file. Guarded by the file's i_mmap lock.
    pub(crate) link: IntervalLink,
    /// The link in the rmap tree `tree`. Guarded by that tree's lock.
    pub(crate) anon_link: IntervalLink,
    // Last cache line. Every locked reader writes this line. Fields that lookups only read, and fields that
    // faults without a wait only read, are therefore in the other lines.
    state: LastLine<P>,
}

#[repr(C, align(64))]
struct LastLine<P: Platform> {
    count: VmaCount,
    /// The userfaultfd that the VMA is registered with, if a flag says so. Read by faults that wait.
    uffd: UnsafeCell<Option<Counted<Context<P>>>>,
    /// The link in the list of gathered VMAs or of free VMAs, and a word that only the slab uses. The link
    /// belongs to the owner of the detached VMA.
    links: slab::Links<Vma<P>>,
    /// Place in the list of VMAs that a task has write-locked. Only that task uses the links.
    locked: LockedLinks<Vma<P>>,
}

// SAFETY: every field except `object`, `hugetlb` and `uffd` is atomic. `object` and `hugetlb` are written
// only while one thread owns the detached VMA. `uffd` is also written under the mmap lock for writing or a
// claim, and the VMA's lock for writing. These locks exclude all readers.
unsafe impl<P: Platform> Sync for Vma<P> {}

// SAFETY: the conditions of `Sync` above also make sending sound.
unsafe impl<P: Platform> Send for Vma<P> {}

impl<P: Platform> Vma<P> {
    /// Returns the first address.
    ///
    /// # Examples
    ///
    /// ```
    /// # use freehold::{PAGE_SIZE, space::*};
    /// # let engine = freehold_machine::example_engine(1 << 20);
    /// # let space = AddressSpace::new(&engine, &SpaceConfig::default()).unwrap();
    /// # let (rw, private) = (Prot::READ | Prot::WRITE, MapFlags::PRIVATE | MapFlags::ANONYMOUS);
    /// # let at = space.mmap(0, 4 * PAGE_SIZE, rw, private, None, 0).unwrap();
    /// let vma = space.find_vma(at).unwrap();
    /// assert_eq!(vma.start(), at);
    /// ```
    pub fn start(&self) -> u64 {
        // Relaxed throughout: the lock whose guard returned the reference orders the accesses. A reader
        // without a lock (`space/speculate.rs`) uses no value before it has read the sequence number again.
        self.start.load(Relaxed)
    }

    /// Returns the first address behind the VMA.
    ///
    /// # Examples
    ///
    /// ```
    /// # use freehold::{PAGE_SIZE, space::*};
    /// # let engine = freehold_machine::example_engine(1 << 20);
    /// # let space = AddressSpace::new(&engine, &SpaceConfig::default()).unwrap();
    /// # let (rw, private) = (Prot::READ | Prot::WRITE, MapFlags::PRIVATE | MapFlags::ANONYMOUS);
    /// # let at = space.mmap(0, 4 * PAGE_SIZE, rw, private, None, 0).unwrap();
    /// let vma = space.find_vma(at).unwrap();
    /// assert_eq!(vma.end(), at + 4 * PAGE_SIZE);
    /// ```
    pub fn end(&self) -> u64 {
        self.end.load(Relaxed)
    }

    /// Returns the addresses `start..end`.
    ///
    /// # Examples
    ///
    /// ```
    /// # use freehold::{PAGE_SIZE, space::*};
    /// # let engine = freehold_machine::example_engine(1 << 20);
    /// # let space = AddressSpace::new(&engine, &SpaceConfig::default()).unwrap();
    /// # let (rw, private) = (Prot::READ | Prot::WRITE, MapFlags::PRIVATE | MapFlags::ANONYMOUS);
    /// # let at = space.mmap(0, 4 * PAGE_SIZE, rw, private, None, 0).unwrap();
    /// let vma = space.find_vma(at).unwrap();
    /// assert_eq!(vma.range(), at..at + 4 * PAGE_SIZE);
    /// ```
    pub fn range(&self) -> UserRange {
        UserRange::new(self.start(), self.end())
    }

    /// Returns the length in bytes.
    ///
    /// # Examples
    ///
    /// ```
    /// # use freehold::{PAGE_SIZE, space::*};
    /// # let engine = freehold_machine::example_engine(1 << 20);
    /// # let space = AddressSpace::new(&engine, &SpaceConfig::default()).unwrap();
    /// # let (rw, private) = (Prot::READ | Prot::WRITE, MapFlags::PRIVATE | MapFlags::ANONYMOUS);
    /// # let at = space.mmap(0, 4 * PAGE_SIZE, rw, private, None, 0).unwrap();
    /// let vma = space.find_vma(at).unwrap();
    /// assert_eq!(vma.bytes(), 4 * PAGE_SIZE);
    /// ```
    pub fn bytes(&self) -> u64 {
        self.end() - self.start()
    }

    /// Returns the length in pages.
    ///
    /// # Examples
    ///
    /// ```
    /// # use freehold::{PAGE_SIZE, PageCount, space::*};
    /// # let engine = freehold_machine::example_engine(1 << 20);
    /// # let space = AddressSpace::new(&engine, &SpaceConfig::default()).unwrap();
    /// # let (rw, private) = (Prot::READ | Prot::WRITE, MapFlags::PRIVATE | MapFlags::ANONYMOUS);
    /// # let at = space.mmap(0, 4 * PAGE_SIZE, rw, private, None, 0).unwrap();
    /// let vma = space.find_vma(at).unwrap();
    /// assert_eq!(vma.pages(), PageCount::new(4));
    /// ```
    pub fn pages(&self) -> PageCount {
        PageCount::of_bytes(self.bytes())
    }

    /// Returns the access rights and properties.
    ///
    /// # Examples
    ///
    /// ```
    /// # use freehold::{PAGE_SIZE, space::*, vma::flags::VmFlags};
    /// # let engine = freehold_machine::example_engine(1 << 20);
    /// # let space = AddressSpace::new(&engine, &SpaceConfig::default()).unwrap();
    /// # let (rw, private) = (Prot::READ | Prot::WRITE, MapFlags::PRIVATE | MapFlags::ANONYMOUS);
    /// # let at = space.mmap(0, 4 * PAGE_SIZE, rw, private, None, 0).unwrap();
    /// let vma = space.find_vma(at).unwrap();
    /// assert!(vma.flags().contains(VmFlags::READ | VmFlags::WRITE) && !vma.flags().contains(VmFlags::EXEC));
    /// ```
    pub fn flags(&self) -> VmFlags {
        VmFlags::from_bits_retain(self.flags.load(Relaxed)) & VmFlags::POSSIBLE
    }

    /// Returns the page offset of `start` in the mapped object. For private anonymous memory without a file
    /// this is the page number of the address at which the VMA was created.
    ///
    /// # Examples
    ///
    /// ```
    /// # use freehold::{PAGE_SIZE, PageIndex, file::{File, FileAccess, Mapping}, space::*};
    /// # let engine = freehold_machine::example_engine(1 << 20);
    /// # let space = AddressSpace::new(&engine, &SpaceConfig::default()).unwrap();
    /// # let memory = Mapping::memfd(&engine, 8 * PAGE_SIZE).unwrap();
    /// # let file = File::new(&memory, FileAccess::READ, "/it").unwrap();
    /// let offset = 2 * PAGE_SIZE;
    /// let at = space.mmap(0, 4 * PAGE_SIZE, Prot::READ, MapFlags::SHARED, Some(&file), offset).unwrap();
    /// assert_eq!(space.find_vma(at).unwrap().pgoff(), PageIndex::new(2));
    /// ```
    pub fn pgoff(&self) -> PageIndex {
        PageIndex::new(self.pgoff.load(Relaxed))
    }

    /// Returns the page offset in the object of the page at `addr`.
    ///
    /// # Examples
    ///
    /// ```
    /// # use freehold::{PAGE_SIZE, PageIndex, file::{File, FileAccess, Mapping}, space::*};
    /// # let engine = freehold_machine::example_engine(1 << 20);
    /// # let space = AddressSpace::new(&engine, &SpaceConfig::default()).unwrap();
    /// # let memory = Mapping::memfd(&engine, 8 * PAGE_SIZE).unwrap();
    /// # let file = File::new(&memory, FileAccess::READ, "/it").unwrap();
    /// let offset = 2 * PAGE_SIZE;
    /// let at = space.mmap(0, 4 * PAGE_SIZE, Prot::READ, MapFlags::SHARED, Some(&file), offset).unwrap();
    /// let vma = space.find_vma(at).unwrap();
    /// assert_eq!(vma.pgoff_of(at + PAGE_SIZE), PageIndex::new(3));
    /// ```
    pub fn pgoff_of(&self, addr: u64) -> PageIndex {
        self.pgoff() + ((addr - self.start()) >> crate::PAGE_SHIFT)
    }

    /// Returns the identity of the anon_vma of the VMA's anonymous pages.
    ///
    /// # Examples
    ///
    /// ```
    /// # use freehold::{PAGE_SIZE, fault::Access, space::*, vma::AnonId};
    /// # let engine = freehold_machine::example_engine(1 << 20);
    /// # let space = AddressSpace::new(&engine, &SpaceConfig::default()).unwrap();
    /// # let (rw, private) = (Prot::READ | Prot::WRITE, MapFlags::PRIVATE | MapFlags::ANONYMOUS);
    /// # let at = space.mmap(0, 4 * PAGE_SIZE, rw, private, None, 0).unwrap();
    /// assert_eq!(space.find_vma(at).unwrap().anon(), AnonId::NONE);
    /// space.handle_fault(at, Access::WRITE).unwrap();
    /// assert!(space.find_vma(at).unwrap().anon().is_some());
    /// ```
    pub fn anon(&self) -> AnonId {
        self.anon_vma_words().id()
    }

    /// Returns the NUMA policy tag. VMAs with different tags do not merge.
    ///
    /// # Examples
    ///
    /// ```
    /// # use freehold::{PAGE_SIZE, space::*};
    /// # let engine = freehold_machine::example_engine(1 << 20);
    /// # let space = AddressSpace::new(&engine, &SpaceConfig::default()).unwrap();
    /// # let (rw, private) = (Prot::READ | Prot::WRITE, MapFlags::PRIVATE | MapFlags::ANONYMOUS);
    /// # let at = space.mmap(0, 4 * PAGE_SIZE, rw, private, None, 0).unwrap();
    /// space.set_policy(at, PAGE_SIZE, 7).unwrap();
    /// let policy = |addr| space.find_vma(addr).unwrap().policy();
    /// assert_eq!((policy(at), policy(at + PAGE_SIZE)), (7, 0));
    /// ```
    pub fn policy(&self) -> u64 {
        self.policy.load(Relaxed)
    }

    /// Returns the mapped object.
    ///
    /// # Examples
    ///
    /// ```
    /// # use freehold::{PAGE_SIZE, file::Object, space::*};
    /// # let engine = freehold_machine::example_engine(1 << 20);
    /// # let space = AddressSpace::new(&engine, &SpaceConfig::default()).unwrap();
    /// # let (rw, private) = (Prot::READ | Prot::WRITE, MapFlags::PRIVATE | MapFlags::ANONYMOUS);
    /// # let at = space.mmap(0, 4 * PAGE_SIZE, rw, private, None, 0).unwrap();
    /// let vma = space.find_vma(at).unwrap();
    /// assert!(matches!(vma.object(), Object::Anonymous));
    /// ```
    pub fn object(&self) -> &Object<P> {
        // SAFETY: a guard keeps the VMA of every `&Vma` outside this module attached, or the VMA is detached
        // and owned. The object is written only before the first such reference exists or after the last such
        // reference has ended.
        unsafe { &*self.object.get() }
    }

    /// Returns the lock over the page tables and the reservations, if this is a VMA of huge pages.
    pub(crate) fn hugetlb(&self) -> Option<&Counted<HugetlbVma<P>>> {
        if !cfg!(feature = "hugetlb") {
            return None;
        }
        // SAFETY: written under the same conditions as `object`; see there.
        unsafe { &*self.hugetlb.get() }.as_ref()
    }

    /// Returns the home of the mapped file, for readers without a lock. The caller may use the pointer only
    /// if the VMA is known to have been attached during the read.
    pub(crate) fn file_home(&self) -> *const RmapRoot<P, IMmap> {
        self.file_home.get()
    }

    /// Sets the mapped object, and the additional state of a VMA of huge pages. The object and this state
    /// stay unchanged until the VMA is freed.
    ///
    /// # Safety
    ///
    /// The VMA is detached and the caller is its only owner.
    // Inlined, because hardly any code remains for an anonymous VMA.
    #[cfg_attr(feature = "inline", inline(always))]
    unsafe fn set_object(&self, object: Object<P>, hugetlb: Option<Counted<HugetlbVma<P>>>) {
        let home =
            object.file().map_or(null_mut(), |file| core::ptr::from_ref(file.mapping().home()).cast_mut());
        self.file_home.publish(home);
        // SAFETY: by the caller's promise no other task reads the fields.
        unsafe {
            *self.object.get() = object;
            *self.hugetlb.get() = hugetlb;
        }
    }

    /// Returns true if stores to write-protected pages end the protection ([`Features::WP_ASYNC`]). The
    /// caller keeps the VMA unchanged.
    pub(crate) fn is_wp_async(&self) -> bool {
        self.flags().contains(VmFlags::UFFD_WP)
            && self.uffd().is_some_and(|context| context.wants(Features::WP_ASYNC))
    }

    /// Returns the userfaultfd that the VMA is registered with.
    pub(crate) fn uffd(&self) -> Option<&Counted<Context<P>>> {
        if !cfg!(feature = "uffd") {
            return None;
        }
        // SAFETY: a reader holds the mmap lock or the VMA's lock, or owns the VMA. A writer excludes such
        // readers, and has dropped any reference that this function returned to it (see `set_uffd`).
        unsafe { &*self.state.uffd.get() }.as_ref()
    }

    /// Returns true if this is anonymous memory, including memory of a device of zeroes.
    ///
    /// # Examples
    ///
    /// ```
    /// # use freehold::{PAGE_SIZE, space::*};
    /// # let engine = freehold_machine::example_engine(1 << 20);
    /// # let space = AddressSpace::new(&engine, &SpaceConfig::default()).unwrap();
    /// # let (rw, private) = (Prot::READ | Prot::WRITE, MapFlags::PRIVATE | MapFlags::ANONYMOUS);
    /// # let at = space.mmap(0, 4 * PAGE_SIZE, rw, private, None, 0).unwrap();
    /// let vma = space.find_vma(at).unwrap();
    /// assert!(vma.is_anonymous());
    /// ```
    pub fn is_anonymous(&self) -> bool {
        self.object().is_anonymous()
    }

    /// Returns the VMA's lock, which consists of two words.
    pub(crate) fn lock(&self) -> VmaLock<'_> {
        VmaLock { count: &self.state.count, seq: &self.seq }
    }

    /// Returns true if the VMA belongs to `space` now. For a reader that has raised the count and has checked
    /// nothing else yet.
    pub(crate) fn is_owned_by(&self, space: &VmSpace<P>) -> bool {
        // Relaxed: written while the VMA is detached. The release order in `attach` makes the new owner
        // visible to the reader that raises the count.
        self.owner.load(Relaxed) == core::ptr::from_ref(space).addr()
    }

    /// Returns the address of the space's [`VmSpace`], for walks of the reverse map.
    pub(crate) fn owner_addr(&self) -> usize {
        // Relaxed: written before the VMA was linked, under the lock that the walker holds.
        self.owner.load(Relaxed)
    }

    /// Returns the rmap tree of the VMA's anonymous pages.
    pub(crate) fn tree(&self) -> Option<&RmapRoot<P, AnonPages>> {
        // SAFETY: null, or a reference that the VMA owns. Once set, the pointer changes only under the write
        // locks that the documentation of [`Vma`] names for a reset. These locks exclude the holder of this
        // `&Vma`.
        unsafe { self.anon_vma_words().tree().as_ref() }
    }

    /// Returns the place of an anonymous page at `addr` in the reverse map: its rmap tree, encoded as in the
    /// record of a frame, and its index there. Also returns the policy by which its frame is allocated.
    pub(crate) fn anon_page(&self, addr: u64) -> AnonPage {
        debug_assert!(self.tree().is_some(), "anonymous page in a VMA without an anon_vma");
        let home = self.tree().map_or(0, |tree| core::ptr::from_ref(tree).expose_provenance());
        AnonPage { rmap: home, index: self.pgoff_of(addr), policy: self.policy() }
    }

    /// Returns the parameters of a zap that removes everything.
    pub(crate) fn zap(&self) -> Zap {
        Zap::new(self.flags().contains(VmFlags::MAYSHARE))
    }

    /// Returns true if a page keeps a userfaultfd's write protection while the page is not mapped. For a page
    /// of a file, a marker keeps the protection. An anonymous page loses the protection.
    pub(crate) fn keeps_wp(&self) -> bool {
        self.flags().contains(VmFlags::UFFD_WP) && !self.is_anonymous()
    }

    /// Returns the anon_vma and its tree. The identity is read first: if there is one, there is a tree.
    pub(crate) fn anon_vma(&self) -> AnonVma<'_, P> {
        AnonVma { id: self.anon(), tree: self.tree() }
    }

    /// Returns the two words of the anon_vma.
    fn anon_vma_words(&self) -> AnonVmaWords<'_, RmapRoot<P, AnonPages>> {
        AnonVmaWords { id: &self.anon, tree: &self.tree }
    }

    /// Returns true if the VMA is linked in the tree of a file or of its anonymous pages while it is mapped.
    pub(crate) fn is_listed(&self) -> bool {
        self.object().listed_by().is_some() || self.tree().is_some()
    }

    /// Attaches an anon_vma if there is none yet, and links the VMA in the anon_vma's tree. If two faults
    /// attach an anon_vma concurrently, the first fault wins. The caller holds the mmap lock, at least for
    /// reading, or the VMA's lock.
    ///
    /// # Locks
    ///
    /// The tree's lock for writing.
    pub(crate) fn attach_anon_vma(&self, anon_vma: AnonVma<'_, P>) {
        let Some(tree) = anon_vma.tree else { return };
        let mut edit = tree.edit();
        let raw = tree.hold().into_raw();
        if let Err(winner) = self.anon_vma_words().attach_anon_vma(anon_vma.id, raw, || edit.insert(self)) {
            drop(edit);
            // SAFETY: `raw` was made above and is stored nowhere.
            drop(unsafe { RmapRootRef::<P, AnonPages>::from_raw(raw) });
            // Waits for the other fault, which holds its tree's lock until it has finished.
            //
            // SAFETY: the VMA owns this reference, as in `tree`.
            drop(unsafe { NonNull::as_ref(&winner) }.read());
        }
    }

    /// Records that page table entries may be guard markers. Only this flag may be set under a lock for
    /// reading, because it is never cleared and a single instruction sets it.
    pub(crate) fn note_guards(&self) {
        // Relaxed: ordered by the locks. A writer, which stores the whole word, excludes the holders of those
        // locks.
        self.flags.fetch_or(VmFlags::MAYBE_GUARD.bits(), Relaxed);
    }

    /// Returns the attributes that a merge compares, for the part that begins at `start`.
    pub(crate) fn attrs(&self) -> merge::Attrs<'_, P> {
        merge::Attrs {
            flags: self.flags(),
            object: self.object(),
            pgoff: self.pgoff(),
            anon: self.anon_vma(),
            policy: self.policy(),
            reserves: self.hugetlb().and_then(|own| own.reserves()),
            uffd: self.uffd(),
        }
    }

    // Only the write token (`VmaWrite`) and the owner of a detached VMA may call the setters.

    pub(crate) fn set_bounds(&self, range: UserRange, pgoff: PageIndex) {
        self.start.store(range.start(), Relaxed);
        self.end.store(range.end(), Relaxed);
        self.pgoff.store(pgoff.get(), Relaxed);
    }

    pub(crate) fn set_flags(&self, flags: VmFlags) {
        self.flags.store(flags.bits(), Relaxed);
    }

    /// Sets the anon_vma. The VMA must be linked neither in the old tree nor in the new one.
    pub(crate) fn set_anon_vma(&self, anon_vma: AnonVma<'_, P>) {
        let tree = anon_vma.tree.map_or(null_mut(), |tree| tree.hold().into_raw());
        let old = self.anon_vma_words().set(anon_vma.id, tree);
        // SAFETY: the VMA owned this reference.
        drop(unsafe { RmapRootRef::<P, AnonPages>::from_raw(old) });
    }

    /// Registers the VMA with a userfaultfd, or with none. The caller keeps no reference that
    /// [`uffd`](Self::uffd) has returned.
    pub(crate) fn set_uffd(&self, uffd: Option<Counted<Context<P>>>) {
        // SAFETY: the caller is the only user of the field, by the conditions in `uffd`.
        let old = unsafe { core::mem::replace(&mut *self.state.uffd.get(), uffd) };
        drop(old);
    }

    pub(crate) fn set_policy(&self, policy: u64) {
        self.policy.store(policy, Relaxed);
    }

    /// Returns a description of the VMA, for hooks and for callers without a lock.
    pub(crate) fn info(&self) -> VmaInfo {
        VmaInfo { range: self.range(), pgoff: self.pgoff(), flags: self.flags() }
    }

    /// Returns a description of the VMA while another task may be changing it. Returns `None` if the bounds
    /// obviously belong to different moments.
    pub(crate) fn info_unlocked(&self) -> Option<VmaInfo> {
        let range = UserRange::try_new(self.start(), self.end())?;
        Some(VmaInfo { range, pgoff: self.pgoff(), flags: self.flags() })
    }

    /// Returns true if the VMA may be split at `at`. At the ends of the VMA there is nothing to split.
    pub(crate) fn may_split(&self, at: u64) -> bool {
        match self.object() {
            Object::Anonymous | Object::Zeroes(_) => true,
            Object::File(file) => at.is_multiple_of(file.mapping().page_bytes()),
            Object::Special(special) => {
                at <= self.start() || self.end() <= at || special.ops().may_split(&self.info(), at)
            }
        }
    }

    /// Notifies the hooks of a special mapping that this VMA maps it from now on.
    pub(crate) fn open_hook(&self, vm: &VmSpace<P>) {
        if let Object::Special(special) = self.object() {
            special.ops().open(vm.mmu(), &self.info());
        }
    }

    /// Notifies the hooks of a special mapping that this VMA no longer maps it.
    pub(crate) fn close_hook(&self, vm: &VmSpace<P>) {
        if let Object::Special(special) = self.object() {
            special.ops().close(vm.mmu(), &self.info());
        }
    }
}
