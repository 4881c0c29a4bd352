//! The platform, whose services are external functions, and the 16 operations.
//!
//! A kernel that links this library supplies the functions `k_*` (waiting, memory, flushes) and calls the
//! operations `fh_*`. Link-time optimisation drops every function of the engine that no operation reaches, so
//! a new operation changes all sizes that `cargo xtask size` prints. The number 16 is also in `lib.rs`,
//! `xtask/src/size.rs`, `docs/performance.md` and the README of `freehold`.
#![expect(unsafe_code, reason = "an interface in C's calling convention")]

use core::{
    alloc::{GlobalAlloc, Layout},
    ffi::c_void,
    mem::ManuallyDrop,
    ptr::NonNull,
};
use freehold::{
    file::IoError,
    platform::{atomic::AtomicU32, *},
    prelude::*,
};

unsafe extern "C" {
    safe fn k_wait(word: *const u32, expected: u32) -> bool;
    safe fn k_wake(word: *const u32, all: bool);
    safe fn k_cpu() -> u32;
    safe fn k_now() -> u64;
    safe fn k_relax();
    safe fn k_rcu(enter: bool);
    safe fn k_rcu_defer(head: *mut c_void);
    safe fn k_rcu_barrier();
    safe fn k_alloc(size: usize, align: usize) -> *mut u8;
    safe fn k_free(memory: *mut u8, size: usize);
    safe fn k_table(pfn: u64, free: bool) -> u64;
    safe fn k_frames(out: *mut u64, count: usize, order: u32) -> usize;
    safe fn k_frames_free(frames: *const u64, count: usize);
    safe fn k_direct(pfn: u64) -> *mut u8;
    safe fn k_record(pfn: u64) -> *const Frame;
    safe fn k_meta(pfn: u64) -> *const TableMeta;
    safe fn k_zero(pfn: u64);
    safe fn k_copy(to: *mut u8, from: *const u8, count: usize);
    safe fn k_flush(root: u64, start: u64, end: u64, all: bool, tables: bool);
    safe fn k_runs(root: u64) -> bool;
    safe fn k_read_page(file: u64, index: u64, pfn: u64) -> bool;
    safe fn k_panic() -> !;
}

struct Heap;

// SAFETY: the kernel that links this library keeps the contract.
unsafe impl GlobalAlloc for Heap {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        k_alloc(layout.size(), layout.align())
    }

    unsafe fn dealloc(&self, memory: *mut u8, layout: Layout) {
        k_free(memory, layout.size());
    }
}

#[global_allocator]
static HEAP: Heap = Heap;

#[panic_handler]
fn panic(_: &core::panic::PanicInfo<'_>) -> ! {
    k_panic()
}

pub struct Kernel;

pub struct Reading(core::marker::PhantomData<*const ()>);

impl Drop for Reading {
    fn drop(&mut self) {
        k_rcu(false);
    }
}

// SAFETY: the kernel that links this library keeps the contract.
unsafe impl Host for Kernel {
    const MAX_CPUS: usize = 64;
    type RcuGuard = Reading;

    fn wait(word: &AtomicU32, expected: u32) {
        k_wait(word.as_ptr(), expected);
    }

    fn wait_killable(word: &AtomicU32, expected: u32) -> Result<(), Killed> {
        if k_wait(word.as_ptr(), expected) { Ok(()) } else { Err(Killed) }
    }

    fn wake_one(word: &AtomicU32) {
        k_wake(word.as_ptr(), false);
    }

    fn wake_all(word: &AtomicU32) {
        k_wake(word.as_ptr(), true);
    }

    fn with_cpu<R>(f: impl FnOnce(usize) -> R) -> R {
        f(k_cpu() as usize)
    }

    fn now_ns() -> u64 {
        k_now()
    }

    fn relax() {
        k_relax();
    }

    fn lock_context<R>(_: impl FnOnce(&LockContext) -> R) -> Option<R> {
        None
    }

    fn rcu_read() -> Reading {
        k_rcu(true);
        Reading(core::marker::PhantomData)
    }

    unsafe fn rcu_defer(head: NonNull<RcuHead>, f: unsafe fn(NonNull<RcuHead>)) {
        // SAFETY: the caller keeps the contract.
        unsafe { RcuHead::set(head, None, f) };
        k_rcu_defer(head.as_ptr().cast());
    }

    fn rcu_barrier() {
        k_rcu_barrier();
    }
}

// SAFETY: the kernel that links this library keeps the contract.
unsafe impl TableMemory for Kernel {
    fn alloc_table(&self, _: Option<Pfn>) -> Result<Pfn, OutOfTables> {
        match k_table(0, false) {
            0 => Err(OutOfTables),
            pfn => Ok(Pfn::new(pfn)),
        }
    }

    unsafe fn free_table(&self, table: Pfn) {
        self.table_meta(table).reset();
        k_table(table.get(), true);
    }

    fn table(&self, pfn: Pfn) -> &Table {
        // SAFETY: the kernel's direct map has every table.
        unsafe { &*k_direct(pfn.get()).cast() }
    }

    fn table_meta(&self, pfn: Pfn) -> &TableMeta {
        // SAFETY: the kernel has a record of every table.
        unsafe { &*k_meta(pfn.get()) }
    }
}

// SAFETY: the kernel that links this library keeps the contract.
unsafe impl Platform for Kernel {
    type Format = X86_4;
    type Mmu = Pfn;

    fn alloc_frames(&self, request: &FrameRequest<'_, Pfn>, out: &mut [Pfn]) -> usize {
        k_frames(out.as_mut_ptr().cast(), out.len(), request.order)
    }

    unsafe fn free_frames(&self, frames: &[Pfn]) {
        k_frames_free(frames.as_ptr().cast(), frames.len());
    }

    fn has_frame(&self, pfn: Pfn) -> bool {
        !k_record(pfn.get()).is_null()
    }

    fn frame(&self, pfn: Pfn) -> &Frame {
        // SAFETY: the kernel has a record of every frame.
        unsafe { &*k_record(pfn.get()) }
    }

    fn zero_frame(&self, pfn: Pfn) {
        k_zero(pfn.get());
    }

    fn copy_frame(&self, to: Pfn, from: Pfn) {
        k_copy(k_direct(to.get()), k_direct(from.get()), PAGE_SIZE as usize);
    }

    fn read_frame(&self, pfn: Pfn, offset: usize, out: &mut [u8]) {
        k_copy(out.as_mut_ptr(), k_direct(pfn.get()).wrapping_add(offset), out.len());
    }

    fn write_frame(&self, pfn: Pfn, offset: usize, data: &[u8]) {
        k_copy(k_direct(pfn.get()).wrapping_add(offset), data.as_ptr(), data.len());
    }

    fn space_created(&self, root: Pfn) -> Option<Pfn> {
        Some(root)
    }

    fn space_ending(&self, _: &Pfn, root: Pfn) {
        k_flush(root.get(), 0, u64::MAX, true, true);
    }

    fn flush(&self, root: &Pfn, what: &Flush) {
        k_flush(root.get(), what.start.get(), what.end.get(), what.all, what.tables_freed);
    }

    fn runs_elsewhere(&self, root: &Pfn) -> bool {
        k_runs(root.get())
    }
}

/// A file of the kernel, by its number.
struct Store(u64);

impl Pager<Kernel> for Store {
    fn read_page(&self, _: &Kernel, index: PageIndex, frame: Pfn) -> Result<(), IoError> {
        if k_read_page(self.0, index.get(), frame.get()) { Ok(()) } else { Err(IoError) }
    }
}

type Space = AddressSpace<Kernel>;

fn number(result: Result<u64, impl ToErrno>) -> i64 {
    result.map_or_else(|error| -i64::from(error.to_errno().0), |value| value as i64)
}

/// Lends the object behind a pointer that the kernel owns.
unsafe fn lent<T: freehold::counted::Shared>(pointer: *mut T) -> ManuallyDrop<Counted<T>> {
    // SAFETY: the caller passes a pointer that `into_raw` returned and that is still owned.
    ManuallyDrop::new(unsafe { Counted::from_raw(NonNull::new_unchecked(pointer)) })
}

#[unsafe(no_mangle)]
pub extern "C" fn fh_engine() -> *mut Engine<Kernel> {
    Engine::new(Kernel, Config::new()).map_or(core::ptr::null_mut(), |new| Counted::into_raw(new).as_ptr())
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn fh_space(engine: *mut Engine<Kernel>) -> *mut Space {
    // SAFETY: the caller passes an engine that `fh_engine` returned and that has not ended.
    let engine = unsafe { lent(engine) };
    Space::new(&engine, &SpaceConfig::new())
        .map_or(core::ptr::null_mut(), |new| Counted::into_raw(new).as_ptr())
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn fh_space_end(space: *mut Space) {
    // SAFETY: the caller passes a space that `fh_space` or `fh_fork` returned and that has not ended.
    drop(ManuallyDrop::into_inner(unsafe { lent(space) }));
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn fh_file(engine: *mut Engine<Kernel>, store: u64, bytes: u64) -> *mut File<Kernel> {
    // SAFETY: the caller passes an engine that `fh_engine` returned and that has not ended.
    let engine = unsafe { lent(engine) };
    let file = Mapping::new(&*engine, Store(store), bytes, false)
        .and_then(|mapping| File::new(&mapping, FileAccess::READ_WRITE, "file"));
    file.map_or(core::ptr::null_mut(), |new| Counted::into_raw(new).as_ptr())
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn fh_file_end(file: *mut File<Kernel>) {
    // SAFETY: the caller passes a file that `fh_file` returned and that has not ended.
    drop(ManuallyDrop::into_inner(unsafe { lent(file) }));
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn fh_mmap(
    space: &Space,
    at: u64,
    len: u64,
    rights: u64,
    file: *mut File<Kernel>,
    offset: u64,
) -> i64 {
    let (rights, flags) = (Prot::from_bits_retain(rights & 7), MapFlags::from_bits_retain(rights >> 3));
    // SAFETY: the caller passes null or a file that `fh_file` returned and that has not ended.
    let file = (!file.is_null()).then(|| unsafe { lent(file) });
    number(space.mmap(at, len, rights, flags, file.as_deref(), offset))
}

#[unsafe(no_mangle)]
pub extern "C" fn fh_munmap(space: &Space, at: u64, len: u64) -> i64 {
    number(space.munmap(at, len).map(|()| 0))
}

#[unsafe(no_mangle)]
pub extern "C" fn fh_mprotect(space: &Space, at: u64, len: u64, rights: u64) -> i64 {
    number(space.mprotect(at, len, Prot::from_bits_retain(rights)).map(|()| 0))
}

#[unsafe(no_mangle)]
pub extern "C" fn fh_mremap(space: &Space, at: u64, old: u64, new: u64, flags: u64, to: u64) -> i64 {
    number(space.mremap(at, old, new, RemapFlags::from_bits_retain(flags), to))
}

#[unsafe(no_mangle)]
pub extern "C" fn fh_brk(space: &Space, to: u64) -> i64 {
    number(space.brk(to))
}

#[unsafe(no_mangle)]
pub extern "C" fn fh_dontneed(space: &Space, at: u64, len: u64) -> i64 {
    number(space.madvise(at, len, Advice::DontNeed).map(|()| 0))
}

#[unsafe(no_mangle)]
pub extern "C" fn fh_mlock(space: &Space, at: u64, len: u64) -> i64 {
    number(space.mlock(at, len).map(|()| 0))
}

#[unsafe(no_mangle)]
pub extern "C" fn fh_msync(space: &Space, at: u64, len: u64) -> i64 {
    number(space.msync(at, len, freehold::call::SyncFlags::SYNC).map(|()| 0))
}

#[unsafe(no_mangle)]
pub extern "C" fn fh_fork(space: &Space) -> *mut Space {
    space.fork().map_or(core::ptr::null_mut(), |new| Counted::into_raw(new).as_ptr())
}

#[unsafe(no_mangle)]
pub extern "C" fn fh_fault(space: &Space, at: u64, write: bool, exec: bool) -> i32 {
    let access = if write {
        Access::WRITE
    } else if exec {
        Access::EXEC
    } else {
        Access::READ
    };
    match space.handle_fault(at, access) {
        Ok(_) => 0,
        Err(error) => error.signal().map_or(9, |signal| signal.number),
    }
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn fh_trim(engine: *mut Engine<Kernel>, pages: u64) -> u64 {
    // SAFETY: the caller passes an engine that `fh_engine` returned and that has not ended.
    let engine = unsafe { lent(engine) };
    let dropped = engine.drop_clean(pages);
    engine.trim();
    dropped
}
