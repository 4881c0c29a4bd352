//! The kernel in C as a [`Platform`]: frames, page tables, TLBs, address spaces.
#![expect(unsafe_code, reason = "implements the engine's unsafe traits with functions of the kernel")]

use crate::{
    call::boot::NO_FRAME,
    contents,
    host::Kernel,
    ops::{FlushRequest, FrameRequest},
    setup::{call, call_if_present, machine},
};
use core::{ffi::c_void, ops::Range, ptr};
use freehold::PAGE_SIZE;
use freehold::platform::{
    AllocEffort, Flush, Format, Frame, FramePurpose, MemoryShortage, OutOfTables, PageOwner, Pfn, Platform,
    ShortageAnswer, Table, TableMemory, TableMeta,
};

/// The format of page tables, which the processor determines.
#[cfg(target_arch = "x86_64")]
pub(crate) type PageFormat = freehold::platform::X86_4;
/// The format of page tables, which the processor determines.
#[cfg(target_arch = "aarch64")]
pub(crate) type PageFormat = freehold::platform::Aarch64;
/// The format of page tables, which the processor determines.
#[cfg(target_arch = "riscv64")]
pub(crate) type PageFormat = freehold::platform::Sv48;

/// True if the kernel must provide `publish_code`.
pub(crate) const NEEDS_PUBLISH_CODE: bool = !PageFormat::COHERENT_FETCH;

/// The use of frames: private memory of programs.
pub const FRAMES_ANONYMOUS: u32 = 0;
/// The use of frames: files and shared memory.
pub const FRAMES_FILE: u32 = 1;
/// The use of frames: page tables.
pub const FRAMES_TABLE: u32 = 2;
/// The use of frames: any other.
pub const FRAMES_OTHER: u32 = 3;

/// The kernel's record of an address space.
#[derive(Debug)]
pub struct SpaceRecord {
    /// The root table.
    pub root: Pfn,
    /// The pointer that `space_created` has stored.
    pub record: *mut c_void,
}

// SAFETY: the library does not access the record, and passes the pointer only to functions of the kernel,
// which may be called on any thread.
unsafe impl Send for SpaceRecord {}
// SAFETY: as above.
unsafe impl Sync for SpaceRecord {}

impl Kernel {
    /// Returns the position of a frame in the kernel's arrays.
    ///
    /// # Panics
    ///
    /// Panics for a number outside of the kernel's memory.
    #[inline]
    fn index(pfn: Pfn) -> usize {
        let index = pfn.get().wrapping_sub(machine().first_frame);
        assert!(index < machine().frames, "there is no such frame");
        index as usize
    }

    /// Returns the address of a frame in the direct map.
    pub(crate) fn address(pfn: Pfn) -> *mut c_void {
        machine().direct_map.wrapping_byte_add(Self::index(pfn) * PAGE_SIZE as usize)
    }
}

// SAFETY: the caller of `fh_init` promises that the arrays exist as long as the kernel, that only the library
// writes to records, and that the functions keep their contracts. Wrong numbers panic.
unsafe impl TableMemory for Kernel {
    fn alloc_table(&self, root: Option<Pfn>) -> Result<Pfn, OutOfTables> {
        let mut table = NO_FRAME;
        let root = root.map_or(NO_FRAME, Pfn::get);
        if let Some(found) = call_if_present!(alloc_table(root, &raw mut table)) {
            return if found { Ok(Pfn::new(table)) } else { Err(OutOfTables) };
        }
        let request =
            FrameRequest { order: 0, purpose: FRAMES_TABLE, space: ptr::null_mut(), opportunistic: false };
        if call!(alloc_frames(&raw const request, &raw mut table, 1)) == 0 {
            return Err(OutOfTables);
        }
        contents::zero(self.table(Pfn::new(table)));
        Ok(Pfn::new(table))
    }

    unsafe fn free_table(&self, table: Pfn) {
        self.table_meta(table).reset();
        let number = table.get();
        if call_if_present!(free_table(number)).is_none() {
            call!(free_frames(&raw const number, 1));
        }
    }

    #[inline]
    fn table(&self, pfn: Pfn) -> &Table {
        // SAFETY: the direct map has this frame, and every access of the library to it is atomic.
        unsafe { &*Self::address(pfn).cast() }
    }

    #[inline]
    fn table_meta(&self, pfn: Pfn) -> &TableMeta {
        // SAFETY: the array of records is as long as the memory, and began as zeroes.
        unsafe { &*machine().table_records.cast::<TableMeta>().add(Self::index(pfn)) }
    }

    fn publish_code(&self, first: Pfn, frames: u64) {
        call_if_present!(publish_code(first.get(), frames));
    }
}

// SAFETY: as above.
unsafe impl Platform for Kernel {
    type Format = PageFormat;
    type Mmu = SpaceRecord;

    fn alloc_frames(
        &self,
        request: &freehold::platform::FrameRequest<'_, SpaceRecord>,
        out: &mut [Pfn],
    ) -> usize {
        let request = FrameRequest {
            order: request.order,
            purpose: match request.purpose {
                FramePurpose::Anonymous => FRAMES_ANONYMOUS,
                FramePurpose::File => FRAMES_FILE,
                _ => FRAMES_OTHER,
            },
            space: match request.owner {
                Some(PageOwner::Space(space)) => space.record,
                _ => ptr::null_mut(),
            },
            opportunistic: request.effort == AllocEffort::Opportunistic,
        };
        // `Pfn` is a transparent wrapper of the number.
        let blocks = call!(alloc_frames(&raw const request, out.as_mut_ptr().cast(), out.len()));
        assert!(blocks <= out.len(), "alloc_frames returns more blocks than requested");
        blocks
    }

    unsafe fn free_frames(&self, frames: &[Pfn]) {
        call!(free_frames(frames.as_ptr().cast(), frames.len()));
    }

    fn alloc_run(&self, _: &freehold::platform::FrameRequest<'_, SpaceRecord>, frames: u64) -> Option<Pfn> {
        let mut first = NO_FRAME;
        let found = call_if_present!(alloc_run(frames, &raw mut first)).unwrap_or(false);
        found.then(|| Pfn::new(first))
    }

    fn memory_short(&self, shortage: &MemoryShortage<'_, SpaceRecord>) -> ShortageAnswer {
        match call_if_present!(memory_short(shortage.order, shortage.round)) {
            Some(true) => ShortageAnswer::Retry,
            _ => ShortageAnswer::Fail,
        }
    }

    fn has_frame(&self, pfn: Pfn) -> bool {
        pfn.get().wrapping_sub(machine().first_frame) < machine().frames
            && call_if_present!(has_frame(pfn.get())).unwrap_or(true)
    }

    fn frames(&self) -> Range<Pfn> {
        let first = machine().first_frame;
        Pfn::new(first)..Pfn::new(first + machine().frames)
    }

    #[inline]
    fn frame(&self, pfn: Pfn) -> &Frame {
        // SAFETY: the array of records is as long as the memory, and began as zeroes.
        unsafe { &*machine().frame_records.cast::<Frame>().add(Self::index(pfn)) }
    }

    fn zero_frame(&self, pfn: Pfn) {
        if call_if_present!(zero_frame(pfn.get())).is_none() {
            contents::zero(self.table(pfn));
        }
    }

    fn copy_frame(&self, to: Pfn, from: Pfn) {
        if call_if_present!(copy_frame(to.get(), from.get())).is_none() {
            contents::copy(self.table(to), self.table(from));
        }
    }

    fn read_frame(&self, pfn: Pfn, offset: usize, out: &mut [u8]) {
        contents::read(self.table(pfn), offset, out);
    }

    fn write_frame(&self, pfn: Pfn, offset: usize, data: &[u8]) {
        contents::write(self.table(pfn), offset, data);
    }

    fn space_created(&self, root: Pfn) -> Option<SpaceRecord> {
        let mut record = ptr::null_mut();
        let created = call_if_present!(space_created(root.get(), &raw mut record)).unwrap_or(true);
        created.then_some(SpaceRecord { root, record })
    }

    fn space_ending(&self, mmu: &SpaceRecord, root: Pfn) {
        call_if_present!(space_ending(mmu.record, root.get()));
    }

    fn flush(&self, mmu: &SpaceRecord, what: &Flush) {
        let request = FlushRequest {
            root: mmu.root.get(),
            start: what.start.get(),
            end: what.end.get(),
            all: what.all,
            tables_freed: what.tables_freed,
        };
        call!(flush(mmu.record, &raw const request));
    }

    fn runs_elsewhere(&self, mmu: &SpaceRecord) -> bool {
        call_if_present!(runs_elsewhere(mmu.record)).unwrap_or(true)
    }
}
