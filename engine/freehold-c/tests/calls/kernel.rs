//! A kernel whose CPUs are threads, behind the table of functions, and objects that are put at their end.

use freehold_c::call::{boot::*, engine::*, fault::*, space::*};
use freehold_c::{EngineHandle, SpaceHandle};
use freehold_c::{FRAME_RECORD_SIZE, FlushRequest, FrameRequest, Machine, PlatformOps, TABLE_RECORD_SIZE};
use std::alloc::{Layout, alloc_zeroed};
use std::cell::Cell;
use std::ffi::{CStr, c_char, c_void};
use std::ptr::null_mut;
use std::sync::atomic::{AtomicU32, AtomicU64, Ordering::SeqCst};
use std::sync::{Condvar, LazyLock, Mutex, MutexGuard, PoisonError, RwLock};

pub const PAGE: u64 = 4096;
pub const RW: u64 = 3;
pub const PRIVATE: u64 = 0x22;
pub const SHARED: u64 = 1;
pub const ENOMEM: i64 = 12;
pub const EFAULT: i64 = 14;
pub const EBUSY: i64 = 16;
pub const EEXIST: i64 = 17;
pub const EINVAL: i64 = 22;

/// The first frame is not 0, so that tests notice numbers that are taken for positions.
const FIRST: u64 = 100;
const FRAMES: u64 = 4096;
const CPUS: u32 = 64;

static FREE: Mutex<Vec<u64>> = Mutex::new(Vec::new());
static SLEEP: (Mutex<()>, Condvar) = (Mutex::new(()), Condvar::new());
static TAKEN: AtomicU64 = AtomicU64::new(0);
/// Held for reading during an instruction of a program, and for writing by a flush.
static INSTRUCTION: RwLock<()> = RwLock::new(());

thread_local! {
    static CPU: Cpu = Cpu::claim();
    /// The number of frames that this thread may still take, in calls of `with_frames`.
    static LEFT: Cell<u64> = const { Cell::new(u64::MAX) };
    /// True if a fatal signal is pending for this thread.
    pub static KILLED: Cell<bool> = const { Cell::new(false) };
}

struct Cpu(u32);

impl Cpu {
    fn claim() -> Self {
        let before = TAKEN.fetch_update(SeqCst, SeqCst, |taken| Some(taken | (taken + 1)));
        Cpu(before.unwrap().trailing_ones())
    }
}

impl Drop for Cpu {
    fn drop(&mut self) {
        TAKEN.fetch_and(!(1 << self.0), SeqCst);
    }
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

unsafe extern "C" fn alloc(size: usize, align: usize) -> *mut c_void {
    unsafe { std::alloc::alloc(Layout::from_size_align(size, align).unwrap()).cast() }
}

unsafe extern "C" fn free(memory: *mut c_void, size: usize, align: usize) {
    unsafe { std::alloc::dealloc(memory.cast(), Layout::from_size_align(size, align).unwrap()) }
}

unsafe extern "C" fn panic(message: *const c_char) {
    panic!("{:?}", unsafe { CStr::from_ptr(message) });
}

unsafe extern "C" fn wait(word: *const u32, expected: u32) {
    let guard = lock(&SLEEP.0);
    if unsafe { &*word.cast::<AtomicU32>() }.load(SeqCst) == expected {
        drop(SLEEP.1.wait(guard));
    }
}

unsafe extern "C" fn wait_killable(word: *const u32, expected: u32) -> bool {
    if !KILLED.get() {
        unsafe { wait(word, expected) };
    }
    KILLED.get()
}

unsafe extern "C" fn wake(_: *const u32, _: bool) {
    let _guard = lock(&SLEEP.0);
    SLEEP.1.notify_all();
}

unsafe extern "C" fn cpu_enter() -> u32 {
    CPU.with(|cpu| cpu.0)
}

unsafe extern "C" fn cpu_exit() {}

unsafe extern "C" fn alloc_frames(request: *const FrameRequest, frames: *mut u64, count: usize) -> usize {
    if unsafe { (*request).order } != 0 {
        return 0;
    }
    let mut free = lock(&FREE);
    let count = count.min(free.len()).min(LEFT.get() as usize);
    LEFT.set(LEFT.get().saturating_sub(if LEFT.get() == u64::MAX { 0 } else { count as u64 }));
    for at in 0..count {
        unsafe { frames.add(at).write(free.pop().unwrap()) };
    }
    count
}

unsafe extern "C" fn free_frames(frames: *const u64, count: usize) {
    lock(&FREE).extend(unsafe { std::slice::from_raw_parts(frames, count) });
}

unsafe extern "C" fn flush(_: *mut c_void, _: *const FlushRequest) {
    drop(INSTRUCTION.write());
}

/// Returns the table of this kernel.
pub fn ops() -> PlatformOps {
    PlatformOps {
        alloc: Some(alloc),
        free: Some(free),
        panic: Some(panic),
        wait: Some(wait),
        wake: Some(wake),
        cpu_enter: Some(cpu_enter),
        cpu_exit: Some(cpu_exit),
        alloc_frames: Some(alloc_frames),
        free_frames: Some(free_frames),
        flush: Some(flush),
        wait_killable: Some(wait_killable),
        ..PlatformOps::none()
    }
}

/// Returns the machine of this kernel.
pub fn machine() -> Machine {
    static MEMORY: LazyLock<[usize; 3]> = LazyLock::new(|| {
        let zeroes = |size, align| unsafe {
            alloc_zeroed(Layout::from_size_align(FRAMES as usize * size, align).unwrap()) as usize
        };
        lock(&FREE).extend(FIRST..FIRST + FRAMES);
        [zeroes(4096, 4096), zeroes(FRAME_RECORD_SIZE, 8), zeroes(TABLE_RECORD_SIZE, 64)]
    });
    let [direct_map, frame_records, table_records] = MEMORY.map(|at| at as *mut c_void);
    Machine {
        size: size_of::<Machine>(),
        cpus: CPUS,
        first_frame: FIRST,
        frames: FRAMES,
        direct_map,
        frame_records,
        table_records,
    }
}

/// Boots the kernel.
pub fn boot() {
    static BOOT: LazyLock<()> = LazyLock::new(|| assert_eq!(unsafe { fh_init(&ops(), &machine()) }, 0));
    LazyLock::force(&BOOT);
}

/// Returns the address of a frame.
pub fn page(frame: u64) -> *mut u8 {
    machine().direct_map.wrapping_byte_add(((frame - FIRST) * PAGE) as usize).cast()
}

/// Runs one instruction of a program: walks the tables, and accesses a word. Returns `None` if it faults.
pub fn try_access<R>(root: u64, address: u64, bits: u32, f: impl Fn(&AtomicU64) -> R) -> Option<R> {
    let _instruction = INSTRUCTION.read();
    let mut frame = 0;
    (unsafe { fh_walk(root, address, bits, &mut frame) } == 0).then(|| {
        let word = page(frame).wrapping_add((address % PAGE) as usize);
        f(unsafe { &*word.cast::<AtomicU64>() })
    })
}

/// Returns the number of free frames.
pub fn frames_free() -> usize {
    lock(&FREE).len()
}

/// Runs `f` on a thread that can take only this many frames.
pub fn with_frames<R>(frames: u64, f: impl FnOnce() -> R) -> R {
    LEFT.set(frames);
    let result = f();
    LEFT.set(u64::MAX);
    result
}

/// An engine.
pub struct Engine(pub *mut EngineHandle);

impl Engine {
    pub fn new() -> Self {
        boot();
        Self::booted()
    }

    /// Creates an engine of a test that has called `fh_init` by itself.
    pub fn booted() -> Self {
        let mut engine = null_mut();
        assert_eq!(unsafe { fh_engine_new(&mut engine) }, 0);
        Engine(engine)
    }
}

impl Drop for Engine {
    fn drop(&mut self) {
        unsafe { fh_engine_put(self.0) };
    }
}

/// An address space, and the CPU that runs its program.
pub struct Space(pub *mut SpaceHandle);

unsafe impl Sync for Space {}

impl Space {
    pub fn new(engine: &Engine) -> Self {
        let mut space = null_mut();
        assert_eq!(unsafe { fh_space_new(engine.0, &mut space) }, 0);
        Space(space)
    }

    /// Copies the space.
    pub fn fork(&self) -> Self {
        let mut child = null_mut();
        assert_eq!(unsafe { fh_fork(self.0, &mut child) }, 0);
        Space(child)
    }

    /// Maps private memory, or fails with an errno number.
    pub fn map(&self, pages: u64) -> u64 {
        let at = unsafe { fh_mmap_private(self.0, pages * PAGE) };
        u64::try_from(at).unwrap()
    }

    /// Accesses a word of the program: walks the tables, and handles faults.
    pub fn access(&self, address: u64, bits: u32, f: impl Fn(&AtomicU64)) -> Result<(), SignalInfo> {
        loop {
            if try_access(unsafe { fh_space_root(self.0) }, address, bits, &f).is_some() {
                return Ok(());
            }
            let mut signal = SignalInfo { number: 0, code: 0, address: 0, address_lsb: 0 };
            match i64::from(unsafe { fh_fault(self.0, address, bits, &mut signal) }) {
                0 | 1 => freehold_c::fh_tick(),
                error => {
                    assert_eq!(error, -EFAULT);
                    return Err(signal);
                }
            }
        }
    }

    pub fn load(&self, address: u64) -> Result<u64, SignalInfo> {
        let loaded = AtomicU64::new(0);
        self.access(address, 0, |word| loaded.store(word.load(SeqCst), SeqCst))?;
        Ok(loaded.into_inner())
    }

    pub fn store(&self, address: u64, value: u64) -> Result<(), SignalInfo> {
        self.access(address, ACCESS_WRITE, |word| word.store(value, SeqCst))
    }
}

impl Drop for Space {
    fn drop(&mut self) {
        unsafe { fh_space_put(self.0) };
    }
}

unsafe fn fh_mmap_private(space: *const SpaceHandle, length: u64) -> i64 {
    unsafe { freehold_c::call::mapping::fh_mmap(space, 0, length, RW, PRIVATE, null_mut(), 0) }
}
