//! Mappings by an embedder's own rules: device memory, a crash dump, the vdso.
//!
//! What such a VMA maps is a [`Special`]: hooks, whose fields are the mapping's private data, and perhaps a
//! file, whose reverse map then lists the VMA. All VMAs that come of one mapping (by split, fork, mremap)
//! share the `Special` and count it: it is dropped once, after the last of them (hazard C-30). Its frames are
//! the embedder's: the engine neither counts nor frees them.
//!
//! A hook is shown a [description](VmaInfo) of a VMA, never a VMA, and gets no handle to an address space.
//! Should it have one of its own, it may not use it: most hooks run with locks of the address space held, and
//! the checker of lock orders reports a hook that waits for them (hazards C-6, C-31). Its own locks a hook
//! may take, if nobody calls the engine with them held; [`Mapping::revoke`] alone may be called so. Which
//! hook runs when: [`VmOps`].
//!
//! # Taking frames back
//!
//! A device that loses its frames revokes them: `file/change/revoke.rs`. An entry from what a hook said
//! ([`Asked`]) is made in a read section in which no revocation has come since the hook was asked, and
//! otherwise the hook is asked again.

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
use freehold_sync::atomic::Ordering::Acquire;
use freehold_vmspace::{PageIndex, UserRange};

freehold_sync::error_enum! {
    /// Answers of a hook about a page that it cannot supply.
    #[non_exhaustive]
    pub enum HookFault {
        /// There is nothing behind this address, or not any more.
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

/// How processors may keep what they read and write.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default)]
pub enum Caching {
    /// As ordinary memory.
    #[default]
    WriteBack,
    /// Reads are kept; writes go through at once.
    WriteThrough,
    /// Nothing is kept: registers of a device.
    Uncached,
}

/// The hooks of a mapping, and in its fields the mapping's private data (Linux's `vm_operations_struct` and
/// `vm_private_data`). `mmu` is the platform's own record of the address space.
///
/// | hook | called when | under | may fail |
/// | --- | --- | --- | --- |
/// | [`Driver::mmap`](crate::file::Driver::mmap) | before anything is published | mmap W | yes: nothing was mapped |
/// | [`open`](Self::open) | a VMA maps this that did not before: mmap, split, fork, mremap | mmap W, in fork of both spaces | no |
/// | [`close`](Self::close) | that VMA is over; once for each `open` | no lock of an address space | no |
/// | [`may_split`](Self::may_split) | before a cut | mmap W | it answers |
/// | [`mremap`](Self::mremap) | last before a move, which then cannot fail any more | mmap W, the VMA's W | yes: nothing has moved |
/// | [`fault`](Self::fault), [`mkwrite`](Self::mkwrite) | an access finds no entry, or none that may be written | the VMA's R or mmap R | yes: no entry was made |
pub trait VmOps<P: Platform>: Send + Sync + 'static {
    /// How reports call it.
    fn name(&self) -> &str {
        ""
    }

    /// A VMA maps this that did not before; the first one included.
    fn open(&self, mmu: &P::Mmu, vma: &VmaInfo) {
        let _ = (mmu, vma);
    }

    /// A VMA that was opened is over; its pages are gone, and its addresses may be somebody else's. `vma` is
    /// as it was last, which after splits and merges is not what it was opened as.
    fn close(&self, mmu: &P::Mmu, vma: &VmaInfo) {
        let _ = (mmu, vma);
    }

    /// Whether the VMA may be cut at `at`, strictly inside it.
    fn may_split(&self, vma: &VmaInfo, at: u64) -> bool {
        let _ = (vma, at);
        false
    }

    /// Whether `vma`, a VMA or a part of one, may move to `to`, which is longer if it grows. After `Ok` it
    /// moves. Where it is only to be mapped there as well, the range of `vma` is empty.
    ///
    /// # Errors
    ///
    /// What the call shall say; nothing moves.
    fn mremap(&self, mmu: &P::Mmu, vma: &VmaInfo, to: UserRange) -> Result<(), MremapError> {
        let _ = (mmu, vma, to);
        Ok(())
    }

    /// The frame of the page with this offset, for an access that finds none: the first of those named. It
    /// stays what it is until it is revoked, or for as long as this lives.
    ///
    /// # Errors
    ///
    /// How the access ends.
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

    /// Whether [`mkwrite`](Self::mkwrite) wants to hear of the first write to each page of a shared mapping.
    /// Always the same.
    fn notifies_writes(&self) -> bool {
        false
    }

    /// The page with this offset is about to be written for the first time since it was mapped: Linux's
    /// `pfn_mkwrite`.
    ///
    /// # Errors
    ///
    /// How the access ends.
    fn mkwrite(&self, mmu: &P::Mmu, vma: &VmaInfo, pgoff: PageIndex) -> Result<(), HookFault> {
        let _ = (mmu, vma, pgoff);
        Ok(())
    }

    /// How processors may cache it. Always the same.
    fn caching(&self) -> Caching {
        Caching::WriteBack
    }
}

/// What a VMA of an embedder's own maps.
pub struct Special<P: Platform> {
    /// Whose address spaces may map it.
    files: Counted<Files<P>>,
    ops: Box<dyn VmOps<P>>,
    /// Whose reverse map lists its VMAs, so that its frames can be revoked.
    mapping: Option<Counted<Mapping<P>>>,
}

impl<P: Platform> Shared for Special<P> {}

impl<P: Platform> Special<P> {
    /// With these hooks, for address spaces of `engine`, and frames that are never revoked.
    ///
    /// # Errors
    ///
    /// No memory.
    pub fn new(files: &impl HasFiles<P>, ops: impl VmOps<P>) -> Result<Counted<Self>, NoMemory> {
        let ops: Box<dyn VmOps<P>> = unsize_box!(Box::try_new(ops)?);
        Ok(Counted::try_new(Special { files: files.files().clone(), ops, mapping: None })?)
    }

    /// With these hooks, of a file whose frames can be [revoked](Mapping::revoke).
    ///
    /// # Errors
    ///
    /// No memory.
    pub fn of_file(ops: impl VmOps<P>, mapping: &Counted<Mapping<P>>) -> Result<Counted<Self>, NoMemory> {
        let ops: Box<dyn VmOps<P>> = unsize_box!(Box::try_new(ops)?);
        let files = mapping.files().clone();
        Ok(Counted::try_new(Special { files, ops, mapping: Some(mapping.clone()) })?)
    }

    /// The engine whose address spaces may map it.
    pub fn files(&self) -> &Counted<Files<P>> {
        &self.files
    }

    /// Its hooks.
    pub fn ops(&self) -> &dyn VmOps<P> {
        &*self.ops
    }

    /// The file whose reverse map lists its VMAs.
    pub fn mapping(&self) -> Option<&Counted<Mapping<P>>> {
        self.mapping.as_ref()
    }

    /// To be called before a hook is asked for frames.
    pub(crate) fn ask(&self) -> Asked<'_, P> {
        self.mapping().map_or(Asked { of: None }, |mapping| mapping.asking())
    }

    /// What an entry of it has besides what its VMA's flags give every entry.
    pub(crate) fn entry_flags(&self, flags: VmFlags) -> PteFlags {
        let mut entry = PteFlags::SPECIAL;
        match self.ops.caching() {
            Caching::WriteBack => {}
            Caching::WriteThrough => entry |= PteFlags::WRITE_THROUGH,
            Caching::Uncached => entry |= PteFlags::NO_CACHE | PteFlags::WRITE_THROUGH,
        }
        let direct = flags.contains(VmFlags::SHARED | VmFlags::WRITE);
        entry.set(PteFlags::WRITE, direct && !self.ops.notifies_writes());
        entry
    }
}

/// A moment before a hook was asked for frames. What it said holds as long as nothing was revoked since.
#[derive(Clone, Copy)]
pub(crate) struct Asked<'m, P: Platform> {
    pub(in crate::file) of: Option<(&'m Mapping<P>, u64)>,
}

impl<P: Platform> Asked<'_, P> {
    /// Whether an entry may be made, within this read section, from what the hook said.
    pub fn holds(&self, _: &P::RcuGuard) -> bool {
        self.of.is_none_or(|(mapping, seen)| mapping.revocations() == seen)
    }
}

/// A fixed list of frames under a name: the vdso. Its maker keeps the frames alive as long as it exists. A
/// private store copies a page as it would a file's; what lies behind the last frame is a bus error.
#[derive(Debug)]
pub struct Frames {
    name: &'static str,
    /// One each.
    frames: Box<[ForeignFrames]>,
}

impl Frames {
    /// The mapping called `name`, for instance `[vdso]`, of these frames in this order.
    ///
    /// # Errors
    ///
    /// No memory for the list.
    pub fn new(name: &'static str, frames: &[ForeignFrames]) -> Result<Self, NoMemory> {
        let mut list = Vec::new();
        for run in frames {
            list.try_reserve_exact(usize::try_from(run.count()).map_err(|_| NoMemory)?)
                .map_err(|_| NoMemory)?;
            list.extend((0..run.count()).filter_map(|n| run.get(n)));
        }
        Ok(Frames { name, frames: list.into_boxed_slice() })
    }

    /// The frame of the page with this offset, if there is one.
    pub fn frame(&self, pgoff: PageIndex) -> Option<Pfn> {
        self.one(pgoff).map(ForeignFrames::first)
    }

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
    /// To be called before a hook is asked for frames.
    pub(crate) fn asking(&self) -> Asked<'_, P> {
        Asked { of: Some((self, self.revocations())) }
    }

    /// How often something was revoked.
    pub(in crate::file) fn revocations(&self) -> u64 {
        self.revoked.load(Acquire)
    }
}
