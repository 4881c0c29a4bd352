//! Mappings with an embedder's own rules: device memory, a crash dump, the vdso.
//!
//! Such a VMA maps a [`Special`]. A `Special` consists of hooks and optionally of a file. The fields of the
//! hooks' type are the mapping's private data. If there is a file, the reverse map of the file lists the VMA.
//! All VMAs that come from one mapping (by split, fork, mremap) share the `Special` by counted references.
//! The last reference drops the `Special`, exactly once (hazard C-30). The embedder owns the frames: the
//! engine neither counts nor frees them.
//!
//! A hook gets a [description](VmaInfo) of a VMA, never a VMA, and gets no handle to an address space. A
//! driver that has a handle of its own must not use the handle in a hook, because most hooks run with locks
//! of the address space held. The lock-order checker reports a hook that waits for those locks (hazards C-6,
//! C-31). A hook may take locks of the driver. The driver must not call the engine with such a lock held,
//! except to call [`Mapping::revoke`]. [`VmOps`] lists when each hook runs.
//!
//! # Revoking frames
//!
//! The driver of a device that loses its frames revokes the frames (`file/change/revoke.rs`). A hook answers
//! with a frame. In a read section, the engine checks whether a revocation has occurred since the hook was
//! called ([`Asked`]). If none has occurred, the engine makes the entry, and otherwise calls the hook again.
//!
//! A new hook needs a row in the table of [`VmOps`], and a default body, because embedders implement the
//! trait. `fault/special.rs` and `call/mmap/driver.rs` make entries. `call/special.rs` installs special
//! mappings without a device. `tests/special` has the tests: `hooks.rs` for the rules of hooks, `random.rs`
//! for the balance of `open` and `close`.

use crate::{
    Pfn,
    counted::{Counted, Shared},
    error::{MremapError, NoMemory},
    file::{Files, ForeignFrames, HasFiles, Mapping},
    platform::Platform,
    vma::{flags::VmFlags, info::VmaInfo},
};
use allocator_api2::{boxed::Box, unsize_box, vec::Vec};
use freehold_pagetable::PteFlags;
use freehold_vmspace::{PageIndex, UserRange};

freehold_sync::error_enum! {
    /// Errors of a hook that cannot supply a page.
    #[non_exhaustive]
    pub enum HookFault {
        /// There is no frame at this address, or the driver has removed the frame.
        ///
        /// The program gets SIGBUS.
        Bus,
        /// The driver does not allow this access.
        ///
        /// The program gets SIGSEGV.
        Segv,
        /// There is no memory left.
        OutOfMemory,
    }
}

/// Kinds of caching that CPUs may use for a mapping.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default)]
pub enum Caching {
    /// The caching of ordinary memory.
    #[default]
    WriteBack,
    /// Reads are cached; writes go to memory at once.
    WriteThrough,
    /// Nothing is cached: registers of a device.
    Uncached,
}

/// The hooks of a mapping. The fields of the implementing type are the mapping's private data (Linux's
/// `vm_operations_struct` and `vm_private_data`). The argument `mmu` is the platform's own record of the
/// address space.
///
/// | hook | called when | locks held | can fail |
/// | --- | --- | --- | --- |
/// | [`Driver::mmap`](crate::file::Driver::mmap) | before anything is published | mmap W | yes: nothing is mapped |
/// | [`open`](Self::open) | a new VMA maps the object: mmap, split, fork, mremap | mmap W, in fork of both spaces | no |
/// | [`close`](Self::close) | a VMA is unmapped or merged into another VMA; once for each `open` | no lock of an address space | no |
/// | [`may_split`](Self::may_split) | before a split | mmap W | returns whether the split is allowed |
/// | [`mremap`](Self::mremap) | as the last step before a move that cannot fail any more | mmap W, the VMA's W | yes: nothing is moved |
/// | [`fault`](Self::fault), [`mkwrite`](Self::mkwrite) | an access finds no entry, or a read-only one | the VMA's R or mmap R | yes: no entry is made |
///
/// # Examples
///
/// ```
/// # use freehold::{PAGE_SIZE, file::{Special, VmOps}, platform::Platform, space::*};
/// # use freehold::vma::flags::VmFlags;
/// # use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
/// # let engine = freehold_machine::example_engine(1 << 20);
/// # let space = AddressSpace::new(&engine, &SpaceConfig::default()).unwrap();
/// /// The number of VMAs that map the device.
/// static VMAS: AtomicU64 = AtomicU64::new(0);
/// struct Device;
/// impl<P: Platform> VmOps<P> for Device {
///     fn open(&self, _: &P::Mmu, _: &VmaInfo) {
///         VMAS.fetch_add(1, Relaxed);
///     }
///     fn close(&self, _: &P::Mmu, _: &VmaInfo) {
///         VMAS.fetch_sub(1, Relaxed);
///     }
///     fn may_split(&self, _: &VmaInfo, _: u64) -> bool {
///         true
///     }
/// }
/// let device = Special::new(&engine, Device).unwrap();
/// let at = space.install_special(0, 3 * PAGE_SIZE, VmFlags::READ, &device).unwrap();
/// space.munmap(at + PAGE_SIZE, PAGE_SIZE).unwrap();
/// assert_eq!(VMAS.load(Relaxed), 2);
/// space.clear();
/// assert_eq!(VMAS.load(Relaxed), 0);
/// ```
pub trait VmOps<P: Platform>: Send + Sync + 'static {
    /// Returns the name that reports show.
    fn name(&self) -> &str {
        ""
    }

    /// Notifies the driver of a new VMA, including the first one.
    fn open(&self, mmu: &P::Mmu, vma: &VmaInfo) {
        let _ = (mmu, vma);
    }

    /// Notifies the driver of the end of a VMA that was opened. The VMA's pages are unmapped, and another VMA
    /// may already use the addresses. `vma` describes the VMA's last state, which splits and merges may have
    /// changed since `open`.
    fn close(&self, mmu: &P::Mmu, vma: &VmaInfo) {
        let _ = (mmu, vma);
    }

    /// Returns true if the VMA may be split at the address `at`, which lies strictly inside the VMA.
    fn may_split(&self, vma: &VmaInfo, at: u64) -> bool {
        let _ = (vma, at);
        false
    }

    /// Permits a move of `vma` to `to`. `vma` describes a VMA or a part of one. `to` is longer than `vma` if
    /// the mapping grows. After `Ok` the move takes place. If mremap maps the pages a second time and unmaps
    /// nothing (an old length of 0), the range of `vma` is empty.
    ///
    /// # Errors
    ///
    /// The error that the call returns; nothing is then moved.
    fn mremap(&self, mmu: &P::Mmu, vma: &VmaInfo, to: UserRange) -> Result<(), MremapError> {
        let _ = (mmu, vma, to);
        Ok(())
    }

    /// Returns the frame of the page at offset `pgoff`, for an access that finds no entry. Only the first of
    /// the returned frames is used. The frame must remain the page's frame until the frame is revoked or this
    /// object is dropped.
    ///
    /// # Errors
    ///
    /// The fault with which the access ends.
    fn fault(
        &self,
        mmu: &P::Mmu,
        vma: &VmaInfo,
        pgoff: PageIndex,
        write: bool,
    ) -> Result<ForeignFrames, HookFault> {
        let _ = (mmu, vma, pgoff, write);
        Err(HookFault::Bus)
    }

    /// Returns true if [`mkwrite`](Self::mkwrite) must be called before the first write to each page of a
    /// shared mapping. Must always return the same value.
    fn notifies_writes(&self) -> bool {
        false
    }

    /// Permits the first write to the page at offset `pgoff` since the page was mapped: Linux's
    /// `pfn_mkwrite`.
    ///
    /// # Errors
    ///
    /// The fault with which the access ends.
    fn mkwrite(&self, mmu: &P::Mmu, vma: &VmaInfo, pgoff: PageIndex) -> Result<(), HookFault> {
        let _ = (mmu, vma, pgoff);
        Ok(())
    }

    /// Returns how CPUs may cache the mapping. Must always return the same value.
    fn caching(&self) -> Caching {
        Caching::WriteBack
    }
}

/// The object of a VMA with an embedder's own rules.
pub struct Special<P: Platform> {
    /// State of the engine whose address spaces may map the object.
    files: Counted<Files<P>>,
    /// The hooks.
    ops: Box<dyn VmOps<P>>,
    /// The file whose reverse map lists the VMAs, so that the frames can be revoked.
    mapping: Option<Counted<Mapping<P>>>,
}

impl<P: Platform> Shared for Special<P> {}

impl<P: Platform> Special<P> {
    /// Creates an object with these hooks, for address spaces of the engine that `files` belongs to. The
    /// frames of this object are never revoked.
    ///
    /// # Errors
    ///
    /// Fails if there is no memory.
    ///
    /// # Examples
    ///
    /// ```
    /// # use freehold::{PAGE_SIZE, fault::{Access, FaultError}, file::{Special, VmOps}};
    /// # use freehold::{platform::Platform, space::*, vma::flags::VmFlags};
    /// # let engine = freehold_machine::example_engine(1 << 20);
    /// # let space = AddressSpace::new(&engine, &SpaceConfig::default()).unwrap();
    /// struct Trap;
    /// impl<P: Platform> VmOps<P> for Trap {
    ///     fn name(&self) -> &str {
    ///         "[trap]"
    ///     }
    /// }
    /// let trap = Special::new(&engine, Trap).unwrap();
    /// let at = space.install_special(0, PAGE_SIZE, VmFlags::READ, &trap).unwrap();
    /// // The default fault hook has no frames.
    /// assert_eq!(space.handle_fault(at, Access::READ), Err(FaultError::Bus { addr: at }));
    /// ```
    pub fn new(files: &impl HasFiles<P>, ops: impl VmOps<P>) -> Result<Counted<Self>, NoMemory> {
        let ops: Box<dyn VmOps<P>> = unsize_box!(Box::try_new(ops)?);
        Ok(Counted::try_new(Special { files: files.files().clone(), ops, mapping: None })?)
    }

    /// Creates an object with these hooks, for a file whose frames can be [revoked](Mapping::revoke).
    ///
    /// # Errors
    ///
    /// Fails if there is no memory.
    ///
    /// # Examples
    ///
    /// ```
    /// # use freehold::{PAGE_SIZE, counted::Counted, file::{Frames, Mapping, Special, Zeroes}};
    /// # let engine = freehold_machine::example_engine(1 << 20);
    /// let device = Mapping::new(&engine, Zeroes, 0, true).unwrap();
    /// let special = Special::of_file(Frames::new("/dev/it", &[]).unwrap(), &device).unwrap();
    /// assert!(Counted::ptr_eq(special.mapping().unwrap(), &device));
    /// assert_eq!(special.ops().name(), "/dev/it");
    /// ```
    pub fn of_file(ops: impl VmOps<P>, mapping: &Counted<Mapping<P>>) -> Result<Counted<Self>, NoMemory> {
        let ops: Box<dyn VmOps<P>> = unsize_box!(Box::try_new(ops)?);
        let files = mapping.files().clone();
        Ok(Counted::try_new(Special { files, ops, mapping: Some(mapping.clone()) })?)
    }

    /// Returns the state of the engine whose address spaces may map the object.
    ///
    /// # Examples
    ///
    /// ```
    /// # use freehold::{counted::Counted, file::{Frames, Special}};
    /// # let engine = freehold_machine::example_engine(1 << 20);
    /// let vdso = Special::new(&engine, Frames::new("[vdso]", &[]).unwrap()).unwrap();
    /// assert!(Counted::ptr_eq(vdso.files(), engine.files()));
    /// ```
    pub fn files(&self) -> &Counted<Files<P>> {
        &self.files
    }

    /// Returns the hooks.
    ///
    /// # Examples
    ///
    /// ```
    /// # use freehold::file::{Caching, Frames, Special};
    /// # let engine = freehold_machine::example_engine(1 << 20);
    /// let vdso = Special::new(&engine, Frames::new("[vdso]", &[]).unwrap()).unwrap();
    /// assert_eq!((vdso.ops().name(), vdso.ops().caching()), ("[vdso]", Caching::WriteBack));
    /// ```
    pub fn ops(&self) -> &dyn VmOps<P> {
        &*self.ops
    }

    /// Returns the file whose reverse map lists the VMAs of this object, if there is one.
    ///
    /// # Examples
    ///
    /// ```
    /// # use freehold::{counted::Counted, file::{Frames, Mapping, Special, Zeroes}};
    /// # let engine = freehold_machine::example_engine(1 << 20);
    /// # let frames = || Frames::new("/dev/it", &[]).unwrap();
    /// let device = Mapping::new(&engine, Zeroes, 0, true).unwrap();
    /// let special = Special::of_file(frames(), &device).unwrap();
    /// assert!(Counted::ptr_eq(special.mapping().unwrap(), &device));
    /// assert!(Special::new(&engine, frames()).unwrap().mapping().is_none());
    /// ```
    pub fn mapping(&self) -> Option<&Counted<Mapping<P>>> {
        self.mapping.as_ref()
    }

    /// Reads the number of revocations. Must be called before a hook is called for frames.
    pub(crate) fn ask(&self) -> Asked<'_, P> {
        self.mapping().map_or(Asked { of: None }, |mapping| mapping.asking())
    }

    /// Returns the flags that the object adds to an entry, besides the flags that follow from the VMA's
    /// flags.
    pub(crate) fn entry_flags(&self, flags: VmFlags) -> PteFlags {
        let mut entry = PteFlags::SPECIAL;
        match self.ops.caching() {
            Caching::WriteBack => {}
            Caching::WriteThrough => entry |= PteFlags::WRITE_THROUGH,
            Caching::Uncached => entry |= PteFlags::NO_CACHE | PteFlags::WRITE_THROUGH,
        }
        // Without the flag `SOFTDIRTY`, the first store faults and makes the entry soft-dirty.
        let direct = flags.contains(VmFlags::SHARED | VmFlags::WRITE | VmFlags::SOFTDIRTY);
        entry.set(PteFlags::WRITE, direct && !self.ops.notifies_writes());
        entry
    }
}

/// The number of revocations before a hook was called for frames. The hook's answer is valid as long as the
/// number is unchanged.
#[derive(Clone, Copy)]
pub(crate) struct Asked<'m, P: Platform> {
    /// The file, and the number that was read. `None` if the frames are never revoked.
    pub(in crate::file) of: Option<(&'m Mapping<P>, u64)>,
}

impl<P: Platform> Asked<'_, P> {
    /// Returns true if an entry may be made from the hook's answer within this read section.
    pub fn holds(&self, _: &P::RcuGuard) -> bool {
        self.of.is_none_or(|(mapping, seen)| mapping.revocations() == seen)
    }
}

/// A fixed list of frames with a name: the vdso. The creator keeps the frames alive as long as the list
/// exists. A private store copies a page, as for a file. An access beyond the last frame fails with SIGBUS.
#[derive(Debug)]
pub struct Frames {
    name: &'static str,
    /// One element per frame.
    frames: Box<[ForeignFrames]>,
}

impl Frames {
    /// Creates the mapping called `name`, for instance `[vdso]`, of these frames in this order.
    ///
    /// # Errors
    ///
    /// Fails if there is no memory for the list.
    ///
    /// # Examples
    ///
    /// ```
    /// # use freehold::{file::{ForeignFrames, Frames}, PageIndex, Pfn};
    /// // SAFETY: no program maps these frames.
    /// let code = unsafe { ForeignFrames::new(Pfn::new(0x1000), 2) };
    /// let vdso = Frames::new("[vdso]", &[code]).unwrap();
    /// assert_eq!(vdso.frame(PageIndex::new(1)), Some(Pfn::new(0x1001)));
    /// ```
    pub fn new(name: &'static str, frames: &[ForeignFrames]) -> Result<Self, NoMemory> {
        let mut list = Vec::new();
        for run in frames {
            list.try_reserve_exact(usize::try_from(run.count()).map_err(|_| NoMemory)?)
                .map_err(|_| NoMemory)?;
            list.extend((0..run.count()).filter_map(|n| run.get(n)));
        }
        Ok(Frames { name, frames: list.into_boxed_slice() })
    }

    /// Returns the frame of the page at offset `pgoff`, if there is one.
    ///
    /// # Examples
    ///
    /// ```
    /// # use freehold::{file::{ForeignFrames, Frames}, PageIndex, Pfn};
    /// // SAFETY: no program maps these frames.
    /// let parts = [3, 9].map(|first| unsafe { ForeignFrames::new(Pfn::new(first), 2) });
    /// let frames = Frames::new("[vdso]", &parts).unwrap();
    /// assert_eq!(frames.frame(PageIndex::new(2)), Some(Pfn::new(9)));
    /// assert_eq!(frames.frame(PageIndex::new(4)), None);
    /// ```
    pub fn frame(&self, pgoff: PageIndex) -> Option<Pfn> {
        self.one(pgoff).map(ForeignFrames::first)
    }

    /// Returns the frame of the page at offset `pgoff`, if there is one.
    fn one(&self, pgoff: PageIndex) -> Option<ForeignFrames> {
        self.frames.get(usize::try_from(pgoff.get()).ok()?).copied()
    }
}

impl<P: Platform> VmOps<P> for Frames {
    fn name(&self) -> &str {
        self.name
    }

    fn fault(&self, _: &P::Mmu, _: &VmaInfo, pgoff: PageIndex, _: bool) -> Result<ForeignFrames, HookFault> {
        self.one(pgoff).ok_or(HookFault::Bus)
    }
}

impl<P: Platform> Mapping<P> {
    /// Reads the number of revocations. Must be called before a hook is called for frames.
    pub(crate) fn asking(&self) -> Asked<'_, P> {
        Asked { of: Some((self, self.revocations())) }
    }

    /// Returns the number of revocations.
    pub(in crate::file) fn revocations(&self) -> u64 {
        self.revoked.count()
    }
}
