//! The VMA: one run of addresses with the same rights on the same object.
//!
//! A VMA lives in a [slab]: its memory stays a `Vma` as long as any read section (RCU) in which it could be
//! found, so a reader that lost a race may still touch it there and find out. What a VMA *means* is kept
//! still only by the guards of [`space::locking`](crate::space::locking): they alone hand out a `&Vma`, and
//! only for as long as they live. A reader without any (`space/speculate.rs`) reads words and believes them
//! if nothing was written meanwhile.
//!
//! The slab hands a freed VMA out again at once, perhaps to another address space. A reader that found the
//! address in a read section cannot lock a free VMA (its count is 0). It may lock the VMA's next life, and
//! then sees that the owner, the sequence number or the bounds do not fit, in this order, before it reads
//! anything else (hazard C-22).
//!
//! | has a VMA's address | as long as | keeps the memory by |
//! | --- | --- | --- |
//! | a lookup, a look without a lock | `lock_vma`, `speculate` | a read section |
//! | a reader of the VMA | until its decrement | its count: the VMA is attached. If somebody waits for it, until its wake-up: a read section |
//! | a holder of the mmap lock | the guard | the lock: to end a VMA of the space takes it for writing. A merge that ends one does not use it afterwards |
//! | a walker of the reverse map | `RmapReadGuard`, `RmapWriteGuard` | the lock: a VMA is unlinked before it goes back |
//! | a munmap's list, `OwnedVma` | until retired | they own it |
//! | a slot of readers | | nothing: what stands there is a number, compared and never followed |

#![expect(unsafe_code, reason = "lookups read the object, and faults the tree, without counting references")]

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
    uffd::state::Context,
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
    atomic::{
        AtomicPtr, AtomicU64, AtomicUsize,
        Ordering::{Acquire, Relaxed, Release},
    },
};
use freehold_vmspace::{AnonPage, PageCount, PageIndex, UserRange, VmSpace, Zap};
use locked_list::LockedLinks;

/// One mapped area of an address space.
///
/// Guards, by field: `start`, `end`, `pgoff` need the mmap lock for writing, the VMA's write lock and the
/// locks of the trees that it is linked in (its file's, its pages'), for writing; `flags`, `policy`, `uffd`
/// need the first two; `anon` and `tree` go from none to some under the mmap lock for reading and the tree's
/// lock for writing, and back under all write locks; `object`, `hugetlb` and `owner` are written only while
/// detached. Any of them may be *read* with one of the locks held.
#[repr(C, align(64))]
pub struct Vma<P: Platform> {
    // First line: what a lookup reads.
    start: AtomicU64,
    end: AtomicU64,
    /// Address of the owning space, of the half of it that has the tables ([`VmSpace`]); zero when it never
    /// had one.
    owner: AtomicUsize,
    flags: AtomicU64,
    pgoff: AtomicU64,
    anon: AtomicU64,
    /// The home of the file that it maps, for readers without a lock; null: no file. Written with `object`,
    /// which owns the file.
    file_home: AtomicPtr<RmapRoot<P, IMmap>>,
    pub(crate) seq: VmaSeq,
    // Second line: what faults on files, first writes of pages, and the reverse map read.
    object: UnsafeCell<Object<P>>,
    /// What a VMA of huge pages has besides; written as `object` is.
    hugetlb: UnsafeCell<Option<Counted<HugetlbVma<P>>>>,
    /// Where anonymous pages made here are found; holds a reference.
    tree: AtomicPtr<RmapRoot<P, AnonPages>>,
    policy: AtomicU64,
    /// Place in the interval tree of the mapped file; guarded by its i_mmap lock.
    pub(crate) link: IntervalLink,
    /// Place in the tree of `tree`; guarded by its lock.
    pub(crate) anon_link: IntervalLink,
    // Last line: written by every locked reader, so nothing lies here that a lookup reads, or a fault.
    state: LastLine<P>,
}

#[repr(C, align(64))]
struct LastLine<P: Platform> {
    count: VmaCount,
    /// The userfaultfd that it is registered with, as a flag says; needed by faults that wait.
    uffd: UnsafeCell<Option<Counted<Context<P>>>>,
    /// Next in the list of gathered VMAs, or of free ones, and the slab's own word; the former belongs to the
    /// owner of the detached VMA.
    links: slab::Links<Vma<P>>,
    /// Place in the list of VMAs that a task has write-locked; that task's.
    locked: LockedLinks<Vma<P>>,
}

// SAFETY: every field but `object`, `hugetlb` and `uffd` is atomic; the first two are written only while the
// VMA is detached and owned by one thread, `uffd` also under the mmap lock and the VMA's, for writing, which
// keep all readers out.
unsafe impl<P: Platform> Sync for Vma<P> {}

// SAFETY: as above.
unsafe impl<P: Platform> Send for Vma<P> {}

impl<P: Platform> Vma<P> {
    /// First address.
    pub fn start(&self) -> u64 {
        // Relaxed throughout: ordered by the lock whose guard handed out the reference. A reader without one
        // (`space/speculate.rs`) believes nothing before the sequence number was read again.
        self.start.load(Relaxed)
    }

    /// First address behind it.
    pub fn end(&self) -> u64 {
        self.end.load(Relaxed)
    }

    /// `start..end`.
    pub fn range(&self) -> UserRange {
        UserRange::new(self.start(), self.end())
    }

    /// Length in bytes.
    pub fn bytes(&self) -> u64 {
        self.end() - self.start()
    }

    /// Length in pages.
    pub fn pages(&self) -> PageCount {
        PageCount::of_bytes(self.bytes())
    }

    /// Rights and properties.
    pub fn flags(&self) -> VmFlags {
        VmFlags::from_bits_retain(self.flags.load(Relaxed))
    }

    /// Page offset of `start` in the mapped object; for private anonymous memory the page number it was made
    /// at, if it is of no file.
    pub fn pgoff(&self) -> PageIndex {
        PageIndex::new(self.pgoff.load(Relaxed))
    }

    /// Page offset in the object of the page at `addr`.
    pub fn pgoff_of(&self, addr: u64) -> PageIndex {
        self.pgoff() + ((addr - self.start()) >> crate::PAGE_SHIFT)
    }

    /// AnonVma of anonymous pages.
    pub fn anon(&self) -> AnonId {
        self.anon_vma_words().id()
    }

    /// NUMA policy tag; VMAs with different tags do not merge.
    pub fn policy(&self) -> u64 {
        self.policy.load(Relaxed)
    }

    /// What it maps.
    pub fn object(&self) -> &Object<P> {
        // SAFETY: a `&Vma` outside this module is kept attached by a guard or owned while detached; the
        // object is written only before the first or after the last such reference.
        unsafe { &*self.object.get() }
    }

    /// The lock over its tables, and its reservations, if it is one of huge pages.
    pub(crate) fn hugetlb(&self) -> Option<&Counted<HugetlbVma<P>>> {
        // SAFETY: as in `object`.
        unsafe { &*self.hugetlb.get() }.as_ref()
    }

    /// Where the file that it maps is known, as it is read without a lock: to be used only if the VMA is
    /// known to have been attached while it was read.
    pub(crate) fn file_home(&self) -> *const RmapRoot<P, IMmap> {
        // Acquire pairs with the release in `set_object`: the home is seen as it was made.
        self.file_home.load(Acquire)
    }

    /// What it maps, and what it has besides if that is huge pages, from now until it is free again.
    ///
    /// # Safety
    ///
    /// The VMA is detached and the caller's alone.
    // Inlined: for an anonymous VMA hardly anything of it is left.
    #[inline(always)]
    unsafe fn set_object(&self, object: Object<P>, hugetlb: Option<Counted<HugetlbVma<P>>>) {
        let home =
            object.file().map_or(null_mut(), |file| core::ptr::from_ref(file.mapping().home()).cast_mut());
        self.file_home.store(home, Release);
        // SAFETY: the caller's promise: nobody reads the fields.
        unsafe {
            *self.object.get() = object;
            *self.hugetlb.get() = hugetlb;
        }
    }

    /// The userfaultfd that it is registered with.
    pub(crate) fn uffd(&self) -> Option<&Counted<Context<P>>> {
        // SAFETY: a reader holds the mmap lock or the VMA's, or owns the VMA. A writer keeps those out, and
        // has dropped the reference it read here before (see `set_uffd`).
        unsafe { &*self.state.uffd.get() }.as_ref()
    }

    /// Anonymous memory, of a device of zeroes or not.
    pub fn is_anonymous(&self) -> bool {
        self.object().is_anonymous()
    }

    /// The lock over both words.
    pub(crate) fn lock(&self) -> VmaLock<'_> {
        VmaLock { count: &self.state.count, seq: &self.seq }
    }

    /// Whether this object now belongs to `space`; asked by a reader that has raised the count but trusts
    /// nothing yet.
    pub(crate) fn is_owned_by(&self, space: &VmSpace<P>) -> bool {
        // Relaxed: written while detached; `attach` releases it to the reader that raises the count.
        self.owner.load(Relaxed) == core::ptr::from_ref(space).addr()
    }

    /// The space it belongs to, for walks of the reverse map.
    pub(crate) fn owner_addr(&self) -> usize {
        // Relaxed: written before the VMA was linked, under the lock that the walker holds.
        self.owner.load(Relaxed)
    }

    /// The tree by which its anonymous pages are found.
    pub(crate) fn tree(&self) -> Option<&RmapRoot<P, AnonPages>> {
        // SAFETY: null, or a reference that the VMA owns; it changes only as said above, with the VMA kept
        // still.
        unsafe { self.anon_vma_words().tree().as_ref() }
    }

    /// Where an anonymous page that is made at `addr` in it is found: its tree, as frames' records name it,
    /// and the page's place there.
    pub(crate) fn anon_page(&self, addr: u64) -> AnonPage {
        debug_assert!(self.tree().is_some(), "a page is made in a VMA without an anon_vma");
        let home = self.tree().map_or(0, |tree| core::ptr::from_ref(tree).expose_provenance());
        AnonPage { rmap: home, index: self.pgoff_of(addr) }
    }

    /// What a zap of it takes: everything.
    pub(crate) fn zap(&self) -> Zap {
        Zap::new(self.flags().contains(VmFlags::MAYSHARE))
    }

    /// Whether a page that was write-protected by a userfaultfd stays so when it comes again: one of a file
    /// does.
    pub(crate) fn keeps_wp(&self) -> bool {
        self.flags().contains(VmFlags::UFFD_WP) && !self.is_anonymous()
    }

    /// AnonVma and tree. The anon_vma first: if there is one, so is the tree.
    pub(crate) fn anon_vma(&self) -> AnonVma<'_, P> {
        AnonVma { id: self.anon(), tree: self.tree() }
    }

    /// The two words of the anon_vma.
    fn anon_vma_words(&self) -> AnonVmaWords<'_, RmapRoot<P, AnonPages>> {
        AnonVmaWords { id: &self.anon, tree: &self.tree }
    }

    /// Whether it is linked in the tree of a file, or in that of its pages, while it is mapped.
    pub(crate) fn is_listed(&self) -> bool {
        self.object().listed_by().is_some() || self.tree().is_some()
    }

    /// Takes over an anon_vma if there is none yet, and links the VMA in its tree; whichever of two faults
    /// comes first wins. With the mmap lock held, at least for reading.
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
            // SAFETY: made above, and given to nobody.
            drop(unsafe { RmapRootRef::<P, AnonPages>::from_raw(raw) });
            // The faster fault holds its tree's lock until all is done.
            // SAFETY: the VMA's own reference, as in `tree`.
            drop(unsafe { NonNull::as_ref(&winner) }.read());
        }
    }

    /// Notes that entries may be guard markers. Allowed under a lock for reading, the one flag that is: it is
    /// only ever added, and by one instruction.
    pub(crate) fn note_guards(&self) {
        // Relaxed: ordered by the locks; a writer, which stores the whole word, keeps the holders of those
        // locks out.
        self.flags.fetch_or(VmFlags::MAYBE_GUARD.bits(), Relaxed);
    }

    /// Everything a merge compares, for the part that begins at `start`.
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

    // The setters are for the write token (`VmaWrite`) and for the owner of a detached VMA.

    pub(crate) fn set_bounds(&self, range: UserRange, pgoff: PageIndex) {
        self.start.store(range.start(), Relaxed);
        self.end.store(range.end(), Relaxed);
        self.pgoff.store(pgoff.get(), Relaxed);
    }

    pub(crate) fn set_flags(&self, flags: VmFlags) {
        self.flags.store(flags.bits(), Relaxed);
    }

    /// The VMA is linked in neither the old tree nor the new one.
    pub(crate) fn set_anon_vma(&self, anon_vma: AnonVma<'_, P>) {
        let tree = anon_vma.tree.map_or(null_mut(), |tree| tree.hold().into_raw());
        let old = self.anon_vma_words().set(anon_vma.id, tree);
        // SAFETY: the reference that the VMA owned.
        drop(unsafe { RmapRootRef::<P, AnonPages>::from_raw(old) });
    }

    /// Registers the VMA with a userfaultfd, or with none. The caller keeps nothing that [`uffd`](Self::uffd)
    /// has returned.
    pub(crate) fn set_uffd(&self, uffd: Option<Counted<Context<P>>>) {
        // SAFETY: as said in `uffd`.
        let old = unsafe { core::mem::replace(&mut *self.state.uffd.get(), uffd) };
        drop(old);
    }

    pub(crate) fn set_policy(&self, policy: u64) {
        self.policy.store(policy, Relaxed);
    }

    /// Returns a description of it, for hooks and for callers without a lock.
    pub(crate) fn info(&self) -> VmaInfo {
        VmaInfo { range: self.range(), pgoff: self.pgoff(), flags: self.flags() }
    }

    /// Returns a description of it while it may be changing; none where its bounds are not of one moment, as
    /// far as can be seen.
    pub(crate) fn info_unlocked(&self) -> Option<VmaInfo> {
        let range = UserRange::try_new(self.start(), self.end())?;
        Some(VmaInfo { range, pgoff: self.pgoff(), flags: self.flags() })
    }

    /// Returns true if it may be cut at `at`. At its ends there is nothing to cut.
    pub(crate) fn may_split(&self, at: u64) -> bool {
        match self.object() {
            Object::Anonymous | Object::Zeroes(_) => true,
            Object::File(file) => at.is_multiple_of(file.mapping().page_bytes()),
            Object::Special(special) => {
                at <= self.start() || self.end() <= at || special.ops().may_split(&self.info(), at)
            }
        }
    }

    /// Tells the hooks of a special mapping that this VMA maps it from now on.
    pub(crate) fn open_hook(&self, vm: &VmSpace<P>) {
        if let Object::Special(special) = self.object() {
            special.ops().open(vm.mmu(), &self.info());
        }
    }

    /// Tells the hooks of a special mapping that this VMA is over.
    pub(crate) fn close_hook(&self, vm: &VmSpace<P>) {
        if let Object::Special(special) = self.object() {
            special.ops().close(vm.mmu(), &self.info());
        }
    }
}
