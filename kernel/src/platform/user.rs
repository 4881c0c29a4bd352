//! A program's memory, as system calls read and write it. An address from a program is an allegation: it is
//! reached through this module alone, which answers EFAULT where the address space refuses.
//!
//! Callers hold no spin lock: an access may wait for a page.
//!
//! An address that goes into a register of the processor instead is a [`UserAddr`].

use crate::arch::{features, frame::UserAddr};
use core::marker::PhantomData;
use core::mem::MaybeUninit;
use freehold::error::Errno;

unsafe extern "C" {
    fn ucopy(to: *mut u8, from: *const u8, bytes: usize) -> usize;
    fn uload32(to: *mut u32, from: *const u32) -> usize;
    fn uexchange32(word: *mut u32, expected: u32, new: u32, old: *mut u32) -> usize;
}

/// What any bytes are a value of, and whose bytes are all set.
///
/// # Safety
///
/// No invalid values, no padding.
pub unsafe trait Plain: Copy {}

macro_rules! plain {
    ($($of:ty),*) => { $(
        // SAFETY: an integer.
        unsafe impl Plain for $of {}
    )* };
}
plain!(u8, u16, u32, u64, i32, i64);
// SAFETY: made of such.
unsafe impl<T: Plain, const N: usize> Plain for [T; N] {}

/// EFAULT: no program's memory lies there.
pub fn check(at: u64, bytes: usize) -> Result<(), Errno> {
    match at.checked_add(bytes as u64) {
        Some(end) if end <= UserAddr::END => Ok(()),
        _ => Err(Errno::EFAULT),
    }
}

/// `f`, which returns how much it left undone, with the program's memory open to it.
fn touch(at: u64, bytes: usize, f: impl FnOnce() -> usize) -> Result<(), Errno> {
    check(at, bytes)?;
    features::allow_user();
    let left = f();
    features::forbid_user();
    if left == 0 { Ok(()) } else { Err(Errno::EFAULT) }
}

/// Copies from a program.
///
/// # Errors
///
/// EFAULT: not all of it could be read.
pub fn copy_in(at: u64, out: &mut [u8]) -> Result<(), Errno> {
    // SAFETY: `out` is ours, and the fix-up of `ucopy` answers for the rest.
    touch(at, out.len(), || unsafe { ucopy(out.as_mut_ptr(), at as *const u8, out.len()) })
}

/// Copies to a program.
///
/// # Errors
///
/// EFAULT: not all of it could be written.
pub fn copy_out(at: u64, data: &[u8]) -> Result<(), Errno> {
    // SAFETY: as in `copy_in`.
    touch(at, data.len(), || unsafe { ucopy(at as *mut u8, data.as_ptr(), data.len()) })
}

/// Copies from a program what can be read of it; returns how many bytes.
pub fn copy_in_some(at: u64, out: &mut [u8]) -> usize {
    some(out.len(), |from, to| copy_in(at.wrapping_add(from as u64), &mut out[from..to]))
}

/// Copies to a program what can be written of it; returns how many bytes.
pub fn copy_out_some(at: u64, data: &[u8]) -> usize {
    some(data.len(), |from, to| copy_out(at.wrapping_add(from as u64), &data[from..to]))
}

/// How many of so many bytes `copy` can copy, which is given the first and the end: all at once, or else those
/// up to one that cannot be.
fn some(bytes: usize, mut copy: impl FnMut(usize, usize) -> Result<(), Errno>) -> usize {
    if copy(0, bytes).is_ok() {
        return bytes;
    }
    let (mut done, mut part) = (0, bytes);
    while part > 0 {
        match copy(done, bytes.min(done + part)) {
            Ok(()) => done = bytes.min(done + part),
            Err(_) => part /= 2,
        }
    }
    done
}

/// The aligned word there, read at once.
///
/// # Errors
///
/// EFAULT, or EINVAL where it is not aligned.
pub fn load(at: u64) -> Result<u32, Errno> {
    aligned(at)?;
    let mut word = 0;
    // SAFETY: as in `copy_in`.
    touch(at, 4, || unsafe { uload32(&raw mut word, at as *const u32) })?;
    Ok(word)
}

/// Puts `new` where `expected` is, in one step; returns what was there.
///
/// # Errors
///
/// As [`load`].
pub fn exchange(at: u64, expected: u32, new: u32) -> Result<u32, Errno> {
    aligned(at)?;
    let mut old = 0;
    // SAFETY: as in `copy_in`.
    touch(at, 4, || unsafe { uexchange32(at as *mut u32, expected, new, &raw mut old) })?;
    Ok(old)
}

fn aligned(at: u64) -> Result<(), Errno> {
    if at.is_multiple_of(4) { Ok(()) } else { Err(Errno::EINVAL) }
}

/// An address in a program where it says that a `T` lies.
#[derive(Clone, Copy, Debug)]
pub struct UserPtr<T> {
    at: u64,
    of: PhantomData<T>,
}

impl<T: Plain> UserPtr<T> {
    pub const fn new(at: u64) -> Self {
        UserPtr { at, of: PhantomData }
    }

    /// None: the null pointer, by which programs say that there is nothing.
    pub fn optional(at: u64) -> Option<Self> {
        (at != 0).then_some(Self::new(at))
    }

    pub fn at(self) -> u64 {
        self.at
    }

    /// The `n`th behind it.
    #[must_use]
    pub fn add(self, n: u64) -> Self {
        Self::new(self.at.wrapping_add(n.wrapping_mul(size_of::<T>() as u64)))
    }

    /// # Errors
    ///
    /// EFAULT.
    pub fn read(self) -> Result<T, Errno> {
        let mut value = MaybeUninit::<T>::zeroed();
        // SAFETY: room for a `T`, initialised.
        let bytes = unsafe { core::slice::from_raw_parts_mut(value.as_mut_ptr().cast(), size_of::<T>()) };
        copy_in(self.at, bytes)?;
        // SAFETY: any bytes are a `T`.
        Ok(unsafe { value.assume_init() })
    }

    /// # Errors
    ///
    /// EFAULT.
    pub fn write(self, value: &T) -> Result<(), Errno> {
        // SAFETY: a `T` has no padding.
        let bytes = unsafe { core::slice::from_raw_parts(core::ptr::from_ref(value).cast(), size_of::<T>()) };
        copy_out(self.at, bytes)
    }
}

/// A string that ends with a zero, of fewer than `most` bytes.
///
/// # Errors
///
/// EFAULT; E2BIG or ENAMETOOLONG is the caller's to say where it is `Ok(None)`: no end within `most`.
pub fn read_string(at: u64, most: usize) -> Result<Option<alloc::vec::Vec<u8>>, Errno> {
    let mut text = alloc::vec::Vec::new();
    let mut chunk = [0; 256];
    while text.len() < most {
        // Never beyond the page, behind which there may be nothing.
        let from = at.wrapping_add(text.len() as u64);
        let room = (4096 - from as usize % 4096).min(chunk.len()).min(most - text.len());
        copy_in(from, &mut chunk[..room])?;
        text.try_reserve(room).map_err(|_| Errno::ENOMEM)?;
        match chunk[..room].iter().position(|byte| *byte == 0) {
            Some(end) => {
                text.extend_from_slice(&chunk[..end]);
                return Ok(Some(text));
            }
            None => text.extend_from_slice(&chunk[..room]),
        }
    }
    Ok(None)
}
