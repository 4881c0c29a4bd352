//! The functions and the machine in use, from [`fh_init`](crate::call::boot::fh_init) on.
//!
//! Both are values for the whole kernel, because the engine's trait `Host` has no `self`. They are copied, so
//! the kernel may pass temporary structures, and a shorter table of an older header is extended by zeroes:
//! the missing functions are then absent.
//!
//! | `state` | meaning | written by |
//! | --- | --- | --- |
//! | [`NONE`] | `fh_init` has not succeeded | |
//! | [`COPYING`] | a call of `fh_init` copies the structures | that call, by an exchange |
//! | [`READY`] | the copies are complete and never change again | the same call |
//!
//! `tests/setup.rs` tests this file.
#![expect(unsafe_code, reason = "copies structures of the kernel, and publishes the copies")]

use crate::{machine::Machine, ops::PlatformOps};
use core::{cell::UnsafeCell, mem::MaybeUninit, ptr};
use freehold::platform::atomic::{
    AtomicU32,
    Ordering::{Acquire, Relaxed, Release},
};

const NONE: u32 = 0;
const COPYING: u32 = 1;
const READY: u32 = 2;

/// The copies.
struct Setup {
    state: AtomicU32,
    /// Written once, by the call that has set `state` to `COPYING`. Only read when `state` is `READY`.
    ops: UnsafeCell<MaybeUninit<PlatformOps>>,
    /// Written and read like `ops`.
    machine: UnsafeCell<MaybeUninit<Machine>>,
}

// SAFETY: one thread writes the cells before `state` becomes `READY`, and no thread writes them later.
unsafe impl Sync for Setup {}

static SETUP: Setup = Setup {
    state: AtomicU32::new(NONE),
    ops: UnsafeCell::new(MaybeUninit::uninit()),
    machine: UnsafeCell::new(MaybeUninit::uninit()),
};

impl Setup {
    #[inline]
    fn is_ready(&self) -> bool {
        // Acquire: pairs with the release in `install`, so the copies are complete.
        self.state.load(Acquire) == READY
    }
}

/// Returns the functions of the kernel, or `None` before `fh_init` has succeeded.
#[inline]
pub(crate) fn ops_if_ready() -> Option<&'static PlatformOps> {
    // SAFETY: the copy is complete and does not change any more.
    SETUP.is_ready().then(|| unsafe { (*SETUP.ops.get()).assume_init_ref() })
}

/// Returns the functions of the kernel.
///
/// # Panics
///
/// Panics before `fh_init` has succeeded.
#[inline]
pub(crate) fn ops() -> &'static PlatformOps {
    ops_if_ready().expect("fh_init was not called")
}

/// Returns the mandatory functions of the kernel: those of the table, or those that the linker has found.
///
/// # Panics
///
/// Panics before `fh_init` has succeeded, if the functions come from the table.
#[inline]
pub(crate) fn mandatory() -> &'static PlatformOps {
    #[cfg(feature = "link-time")]
    return &crate::link_time::OPS;
    #[cfg(not(feature = "link-time"))]
    return ops();
}

/// Returns the memory and the CPUs of the kernel.
///
/// # Panics
///
/// Panics before `fh_init` has succeeded.
#[inline]
pub(crate) fn machine() -> &'static Machine {
    assert!(SETUP.is_ready(), "fh_init was not called");
    // SAFETY: the copy is complete and does not change any more.
    unsafe { (*SETUP.machine.get()).assume_init_ref() }
}

/// Returns true after `fh_init` has succeeded.
pub(crate) fn is_ready() -> bool {
    SETUP.is_ready()
}

/// Calls a mandatory function of the kernel.
macro_rules! call {
    ($name:ident($($argument:expr),*)) => {{
        let function = $crate::setup::mandatory().$name.expect("fh_init checks the function");
        // SAFETY: the caller of `fh_init` promises that the function keeps its contract. The arguments are
        // those that the engine passes to the platform.
        unsafe { function($($argument),*) }
    }};
}

/// Calls an optional function of the kernel. Returns `None` if the function is absent.
macro_rules! call_if_present {
    ($name:ident($($argument:expr),*)) => {
        $crate::setup::ops().$name.map(|function| {
            // SAFETY: as in `call`.
            unsafe { function($($argument),*) }
        })
    };
}

pub(crate) use {call, call_if_present};

/// A structure of the kernel that begins with its own size.
///
/// # Safety
///
/// The first field is the size as a `usize`, and all bytes zero is a value of the type.
pub(crate) unsafe trait WithSize: Copy {
    /// Copies the structure at `from`, extended by zeroes. Returns `None` for null, and for a size that no
    /// header has had.
    ///
    /// # Safety
    ///
    /// `from` is null or leads to as many bytes as its first word says.
    unsafe fn copy(from: *const Self) -> Option<Self> {
        if from.is_null() {
            return None;
        }
        // SAFETY: the structure begins with its size.
        let size = unsafe { from.cast::<usize>().read() };
        if !(Self::SMALLEST..=size_of::<Self>()).contains(&size) {
            return None;
        }
        let mut copy = MaybeUninit::<Self>::zeroed();
        // SAFETY: both sides have `size` bytes, and all bytes zero is a value of the type.
        unsafe {
            ptr::copy_nonoverlapping(from.cast::<u8>(), copy.as_mut_ptr().cast::<u8>(), size);
            Some(copy.assume_init())
        }
    }

    /// The size of the structure in the first version of the header.
    const SMALLEST: usize;
}

// SAFETY: the first field is `size`, and zeroes are absent functions.
unsafe impl WithSize for PlatformOps {
    const SMALLEST: usize = size_of::<PlatformOps>();
}

// SAFETY: the first field is `size`, and zeroes are numbers and null pointers.
unsafe impl WithSize for Machine {
    const SMALLEST: usize = size_of::<Machine>();
}

/// Copies the functions and the machine. Returns false if an earlier call has done it, or does it now.
pub(crate) fn install(ops: PlatformOps, machine: Machine) -> bool {
    // Relaxed: pairs with nothing, because the call that makes the exchange is the only one that goes on.
    if SETUP.state.compare_exchange(NONE, COPYING, Relaxed, Relaxed).is_err() {
        return false;
    }
    // SAFETY: only this call writes, and no thread reads before the state is `READY`.
    unsafe {
        (*SETUP.ops.get()).write(ops);
        (*SETUP.machine.get()).write(machine);
    }
    // Release: pairs with the acquire in `is_ready`.
    SETUP.state.store(READY, Release);
    true
}
