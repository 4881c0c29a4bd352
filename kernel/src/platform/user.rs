//! Access to a program's memory by system calls. An address from a program may be wrong. Only this module
//! accesses such addresses, and it fails with EFAULT if the address space refuses the access.
//!
//! Callers hold no spin lock, because an access may wait for a page. The instructions that may fault are in
//! `arch/ucopy.s`; `arch/trap.rs` serves their faults. Files copy through `files/buffer.rs`, which uses this
//! module. An address for a register of the processor is a [`UserAddr`] instead. The program `wild.rs` of the
//! tests passes random addresses to all calls.
//!
//! The kernel reads a structure in a program's memory as an array of words, or as a type that implements
//! [`Plain`]. A new instruction sequence belongs in `ucopy.s`, and its caller in this file calls `touch`,
//! which checks the range and opens the access. The part `transfer_ends_at_unmapped_memory` of `files.c`
//! checks partial copies.

use crate::arch::{features, frame::UserAddr, preempt};
use crate::errno;
use core::marker::PhantomData;
use core::mem::MaybeUninit;
use freehold::PAGE_SIZE;
use freehold::error::Errno;

unsafe extern "C" {
    fn ucopy(to: *mut u8, from: *const u8, bytes: usize) -> usize;
    fn uload32(to: *mut u32, from: *const u32) -> usize;
    fn uexchange32(word: *mut u32, expected: u32, new: u32, old: *mut u32) -> usize;
}

/// A type whose values can be copied from and to programs as bytes.
///
/// # Safety
///
/// Any bytes are a valid value of the type, and the type has no padding.
pub unsafe trait Plain: Copy {}

macro_rules! plain {
    ($($of:ty),*) => { $(
        // SAFETY: an integer.
        unsafe impl Plain for $of {}
    )* };
}
plain!(u8, u16, u32, u64, i32, i64);
// SAFETY: an array of such values has no padding between them.
unsafe impl<T: Plain, const N: usize> Plain for [T; N] {}

/// Fails with EFAULT if a part of the range is outside of programs' address spaces. Does not check that
/// memory is mapped there.
pub fn check(at: u64, bytes: usize) -> Result<(), Errno> {
    match at.checked_add(bytes as u64) {
        Some(end) if end <= UserAddr::END => Ok(()),
        _ => Err(Errno::EFAULT),
    }
}

/// Calls `f` with access to programs' memory enabled. `f` returns the number of bytes that it did not
/// process; the call fails with EFAULT if the number is not 0.
fn touch(at: u64, bytes: usize, f: impl FnOnce() -> usize) -> Result<(), Errno> {
    check(at, bytes)?;
    features::allow_user();
    let left = f();
    features::forbid_user();
    if left == 0 { Ok(()) } else { Err(Errno::EFAULT) }
}

/// Maximum number of bytes that are copied between two preemption points.
const PART: usize = 1 << 14;

/// Copies from a program.
///
/// # Errors
///
/// EFAULT if a byte could not be read. `out` may then have changed in part.
pub fn copy_in(at: u64, out: &mut [u8]) -> Result<(), Errno> {
    check(at, out.len())?;
    let copy = |at, out: &mut [u8]| {
        // SAFETY: `out` is a unique reference. A fault on the program's side continues at the fix-up of `ucopy`.
        touch(at, out.len(), || unsafe { ucopy(out.as_mut_ptr(), at as *const u8, out.len()) })
    };
    if out.len() <= PART {
        return copy(at, out);
    }
    for (n, part) in out.chunks_mut(PART).enumerate() {
        preempt::preempt_point();
        copy(at + (n * PART) as u64, part)?;
    }
    Ok(())
}

/// Copies to a program.
///
/// # Errors
///
/// EFAULT if a byte could not be written. The bytes before it may have been written.
pub fn copy_out(at: u64, data: &[u8]) -> Result<(), Errno> {
    check(at, data.len())?;
    let copy = |at, data: &[u8]| {
        // SAFETY: as in `copy_in`.
        touch(at, data.len(), || unsafe { ucopy(at as *mut u8, data.as_ptr(), data.len()) })
    };
    if data.len() <= PART {
        return copy(at, data);
    }
    for (n, part) in data.chunks(PART).enumerate() {
        preempt::preempt_point();
        copy(at + (n * PART) as u64, part)?;
    }
    Ok(())
}

/// Copies from a program as much as can be read. Returns the number of bytes.
pub fn copy_in_some(at: u64, out: &mut [u8]) -> usize {
    some(out.len(), |from, to| copy_in(at.wrapping_add(from as u64), &mut out[from..to]))
}

/// Copies to a program as much as can be written. Returns the number of bytes.
pub fn copy_out_some(at: u64, data: &[u8]) -> usize {
    some(data.len(), |from, to| copy_out(at.wrapping_add(from as u64), &data[from..to]))
}

/// Copies `bytes` bytes with `copy`, as far as possible. Returns the number of copied bytes. The first
/// attempt copies all bytes. If it fails, the next attempts copy smaller and smaller parts, up to the first
/// byte that cannot be copied. `copy` gets the start and the end of a part.
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

/// Returns the aligned word of 4 bytes at an address, read in one access.
///
/// # Errors
///
/// EFAULT if it cannot be read, EINVAL if it is not aligned.
pub fn load(at: u64) -> Result<u32, Errno> {
    aligned(at)?;
    let mut word = 0;
    // SAFETY: as in `copy_in`.
    touch(at, 4, || unsafe { uload32(&raw mut word, at as *const u32) })?;
    Ok(word)
}

/// Atomically replaces the word of 4 bytes at an address by `new` if the word is `expected`. Returns the old
/// word.
///
/// # Errors
///
/// Fails like [`load`].
pub fn exchange(at: u64, expected: u32, new: u32) -> Result<u32, Errno> {
    aligned(at)?;
    let mut old = 0;
    // SAFETY: as in `copy_in`.
    touch(at, 4, || unsafe { uexchange32(at as *mut u32, expected, new, &raw mut old) })?;
    Ok(old)
}

/// Fails with EINVAL if the address is not a multiple of 4.
fn aligned(at: u64) -> Result<(), Errno> {
    if at.is_multiple_of(4) { Ok(()) } else { Err(Errno::EINVAL) }
}

/// An address, passed by a program, that should point to a `T` in the program's memory.
#[derive(Clone, Copy, Debug)]
pub struct UserPtr<T> {
    at: u64,
    of: PhantomData<T>,
}

impl<T: Plain> UserPtr<T> {
    /// Makes a pointer from an address, without a check.
    pub const fn new(at: u64) -> Self {
        UserPtr { at, of: PhantomData }
    }

    /// Returns `None` for a null pointer.
    pub fn optional(at: u64) -> Option<Self> {
        (at != 0).then_some(Self::new(at))
    }

    /// Returns the address.
    pub fn at(self) -> u64 {
        self.at
    }

    /// Returns the address of the `n`th value after this one.
    #[must_use]
    pub fn add(self, n: u64) -> Self {
        Self::new(self.at.wrapping_add(n.wrapping_mul(size_of::<T>() as u64)))
    }

    /// Reads the value.
    ///
    /// # Errors
    ///
    /// EFAULT if it cannot be read.
    pub fn read(self) -> Result<T, Errno> {
        let mut value = MaybeUninit::<T>::zeroed();
        // SAFETY: the bytes are initialised, and there are as many as a `T` has.
        let bytes = unsafe { core::slice::from_raw_parts_mut(value.as_mut_ptr().cast(), size_of::<T>()) };
        copy_in(self.at, bytes)?;
        // SAFETY: any bytes are a valid `T`.
        Ok(unsafe { value.assume_init() })
    }

    /// Writes the value.
    ///
    /// # Errors
    ///
    /// EFAULT if it cannot be written.
    pub fn write(self, value: &T) -> Result<(), Errno> {
        // SAFETY: a `T` has no padding, so all its bytes are initialised.
        let bytes = unsafe { core::slice::from_raw_parts(core::ptr::from_ref(value).cast(), size_of::<T>()) };
        copy_out(self.at, bytes)
    }
}

/// Reads a structure that grows with new versions of Linux. `bytes` is the size that the program passes, and
/// `least` is the size of the first version. Missing fields are zero.
///
/// # Errors
///
/// EINVAL if the structure is too short; E2BIG if it has more than a page, or has a byte that this kernel does
/// not know and that is not zero; EFAULT if it cannot be read.
pub fn read_sized<T: Plain>(at: u64, bytes: u64, least: usize) -> Result<T, Errno> {
    if bytes < least as u64 {
        return Err(Errno::EINVAL);
    }
    if bytes > PAGE_SIZE {
        return Err(errno::E2BIG);
    }
    for n in size_of::<T>() as u64..bytes {
        if UserPtr::<u8>::new(at).add(n).read()? != 0 {
            return Err(errno::E2BIG);
        }
    }
    let known = size_of::<T>().min(bytes as usize);
    let mut value = MaybeUninit::<T>::zeroed();
    // SAFETY: the bytes are initialised, and a `T` has at least this many.
    copy_in(at, unsafe { core::slice::from_raw_parts_mut(value.as_mut_ptr().cast(), known) })?;
    // SAFETY: any bytes are a valid `T`.
    Ok(unsafe { value.assume_init() })
}

/// Writes the first `bytes` bytes of a structure that grows with new versions of Linux.
///
/// # Errors
///
/// EFAULT if they cannot be written.
pub fn write_sized<T: Plain>(at: u64, bytes: u64, value: &T) -> Result<(), Errno> {
    let known = size_of::<T>().min(bytes as usize);
    // SAFETY: a `T` has no padding, so all its bytes are initialised.
    copy_out(at, unsafe { core::slice::from_raw_parts(core::ptr::from_ref(value).cast(), known) })
}

/// Reads a string that ends with a zero byte and has fewer than `most` bytes. Returns `None` if the string is
/// longer; the caller chooses between E2BIG and ENAMETOOLONG.
///
/// # Errors
///
/// EFAULT if it cannot be read.
pub fn read_string(at: u64, most: usize) -> Result<Option<alloc::vec::Vec<u8>>, Errno> {
    let mut text = alloc::vec::Vec::new();
    let mut chunk = [0; 256];
    while text.len() < most {
        // A chunk never crosses a page boundary, because the next page may not be mapped.
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
