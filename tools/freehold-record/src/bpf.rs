//! Small programs that the kernel runs at tracepoints (BPF), and the maps in which they store their results.
//!
//! The functions below assemble single instructions; `pointed.rs` and `credentials.rs` write programs with
//! them, and load them with [`program`]. The kernel's verifier checks every load, store and loop of a
//! program. If a program has a mistake, the kernel refuses the program, and the recorder continues without
//! the program's reports. A [`Map`] is shared with the kernel: `pointed.rs` reads it while programs write to
//! it. The instructions and calls are those of `linux/bpf.h` and bpf(2). No unit test loads a program;
//! `record.rs` and `structures.rs` in `freehold-cli/tests` run the programs as root.
#![expect(unsafe_code, reason = "every library for bpf(2) needs a compiler")]

use std::io;
use std::os::fd::{AsRawFd, FromRawFd, OwnedFd};

/// One instruction: operation, registers, offset, constant.
pub type Instruction = u64;

/// The registers. Register 0 is the result of a call, 1 to 5 are its arguments, 6 to 9 are preserved by
/// calls, and 10 is the end of the stack, which grows downwards from there.
pub const R: [u8; 11] = [0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10];

/// The size of a load or store: `HALF` has 4 bytes, `WORD` has 8 bytes.
pub const HALF: u8 = 0x00;
pub const WORD: u8 = 0x18;

/// Kinds of map.
pub const HASH: u32 = 1;
pub const ARRAY: u32 = 2;
pub const QUEUE: u32 = 22;

const MAP_CREATE: i64 = 0;
const MAP_LOOKUP: i64 = 1;
const PROG_LOAD: i64 = 5;
const MAP_TAKE: i64 = 21;
const TRACEPOINT: u64 = 5;

const fn instruction(operation: u8, to: u8, from: u8, offset: i16, constant: i32) -> Instruction {
    operation as u64
        | (to as u64) << 8
        | (from as u64) << 12
        | (offset as u16 as u64) << 16
        | (constant as u32 as u64) << 32
}

/// `to = *(from + offset)`.
pub const fn load(size: u8, to: u8, from: u8, offset: i16) -> Instruction {
    instruction(0x61 | size, to, from, offset, 0)
}

/// `*(to + offset) = from`.
pub const fn store(size: u8, to: u8, offset: i16, from: u8) -> Instruction {
    instruction(0x63 | size, to, from, offset, 0)
}

/// `*(to + offset) = constant`, with 8 bytes.
pub const fn store_constant(to: u8, offset: i16, constant: i32) -> Instruction {
    instruction(0x7a, to, 0, offset, constant)
}

/// `*(to + offset) += from`, with 8 bytes, atomically with respect to other processors.
pub const fn count(to: u8, offset: i16, from: u8) -> Instruction {
    instruction(0xdb, to, from, offset, 0)
}

/// `to = from`.
pub const fn copy(to: u8, from: u8) -> Instruction {
    instruction(0xbf, to, from, 0, 0)
}

/// `to = constant`.
pub const fn set(to: u8, constant: i32) -> Instruction {
    instruction(0xb7, to, 0, 0, constant)
}

/// `to += constant`.
pub const fn add(to: u8, constant: i32) -> Instruction {
    instruction(0x07, to, 0, 0, constant)
}

/// `to -= from`.
pub const fn subtract(to: u8, from: u8) -> Instruction {
    instruction(0x1f, to, from, 0, 0)
}

/// `to <<= constant`.
pub const fn shift_left(to: u8, constant: i32) -> Instruction {
    instruction(0x67, to, 0, 0, constant)
}

/// `to >>= constant`, without a sign.
pub const fn shift_right(to: u8, constant: i32) -> Instruction {
    instruction(0x77, to, 0, 0, constant)
}

/// `to &= constant`.
pub const fn and(to: u8, constant: i32) -> Instruction {
    instruction(0x57, to, 0, 0, constant)
}

/// Skips `over` instructions.
pub const fn skip(over: i16) -> Instruction {
    instruction(0x05, 0, 0, over, 0)
}

/// Skips `over` instructions if the register is `constant` or less.
pub const fn skip_if_at_most(register: u8, constant: i32, over: i16) -> Instruction {
    instruction(0xb5, register, 0, over, constant)
}

/// Skips `over` instructions if the register is greater than `constant`.
pub const fn skip_if_more(register: u8, constant: i32, over: i16) -> Instruction {
    instruction(0x25, register, 0, over, constant)
}

/// Skips `over` instructions if the low half of the register is `constant`.
pub const fn skip_if(register: u8, constant: u32, over: i16) -> Instruction {
    instruction(0x16, register, 0, over, constant as i32)
}

/// Skips `over` instructions if the whole register is 0.
pub const fn skip_if_null(register: u8, over: i16) -> Instruction {
    instruction(0x15, register, 0, over, 0)
}

/// Skips `over` instructions if the register is not 0.
pub const fn skip_unless_null(register: u8, over: i16) -> Instruction {
    instruction(0x55, register, 0, over, 0)
}

/// Calls the kernel's function with this number.
pub const fn call(function: i32) -> Instruction {
    instruction(0x85, 0, 0, 0, function)
}

/// Ends the program, which returns register 0.
pub const END: Instruction = instruction(0x95, 0, 0, 0, 0);

/// A map: a table that programs in the kernel share with this process. The kernel frees the map when its last
/// user is gone.
pub struct Map {
    /// The descriptor of the map.
    descriptor: OwnedFd,
    /// Size of a key in bytes, 0 for a queue.
    key: u32,
    /// Size of a value in bytes.
    value: u32,
}

impl Map {
    /// Creates a map with keys and values of these sizes in bytes.
    ///
    /// # Errors
    ///
    /// Fails with the errors of bpf(2).
    pub fn new(kind: u32, key: u32, value: u32, entries: u32) -> io::Result<Map> {
        let mut attributes =
            [u64::from(kind) | u64::from(key) << 32, u64::from(value) | u64::from(entries) << 32];
        // SAFETY: these attributes contain no addresses.
        let descriptor = unsafe { bpf(MAP_CREATE, &mut attributes) }?;
        Ok(Map { descriptor: owned(descriptor), key, value })
    }

    /// `to = the address of this map`, which takes two instructions.
    pub fn address(&self, to: u8) -> [Instruction; 2] {
        const MAP_BY_DESCRIPTOR: u8 = 1;
        [instruction(0x18, to, MAP_BY_DESCRIPTOR, 0, self.descriptor.as_raw_fd()), 0]
    }

    /// Returns the value of the first entry of an array.
    ///
    /// # Errors
    ///
    /// Fails with the errors of bpf(2).
    pub fn first<const WORDS: usize>(&self) -> io::Result<[u64; WORDS]> {
        self.get(MAP_LOOKUP, Some(&0))
    }

    /// Removes and returns the oldest entry of a queue, if there is one.
    ///
    /// # Errors
    ///
    /// Fails with the errors of bpf(2).
    pub fn take<const WORDS: usize>(&self) -> io::Result<Option<[u64; WORDS]>> {
        match self.get(MAP_TAKE, None) {
            Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(None),
            other => other.map(Some),
        }
    }

    /// Reads a value with this command of bpf(2). Panics if the map has keys or values of other sizes.
    fn get<const WORDS: usize>(&self, command: i64, key: Option<&u32>) -> io::Result<[u64; WORDS]> {
        let mut value = [0; WORDS];
        assert_eq!(size_of_val(&value), self.value as usize, "the values have a different size");
        assert_eq!(key.map_or(0, size_of_val), self.key as usize, "the keys have a different size");
        let key = key.map_or(std::ptr::null(), std::ptr::from_ref);
        let map = self.descriptor.as_raw_fd() as u64;
        let mut attributes =
            [map, key.expose_provenance() as u64, value.as_mut_ptr().expose_provenance() as u64, 0];
        // SAFETY: the kernel reads a key of the map's size, if a key is given, and writes a value of the
        // map's size. The assertions above check both sizes.
        unsafe { bpf(command, &mut attributes) }?;
        Ok(value)
    }
}

/// Loads a program for tracepoints. The kernel checks the program and keeps it until its descriptor and all
/// events to which it is attached are closed.
///
/// # Errors
///
/// Fails with the errors of bpf(2).
pub fn program(instructions: &[Instruction]) -> io::Result<OwnedFd> {
    // Only programs with a license compatible with the GPL may call the functions that read a process's
    // memory.
    const LICENSE: &std::ffi::CStr = c"Dual MIT/GPL";
    let mut attributes = [
        TRACEPOINT | (instructions.len() as u64) << 32,
        instructions.as_ptr().expose_provenance() as u64,
        LICENSE.as_ptr().expose_provenance() as u64,
        0,
        0,
        0,
    ];
    // SAFETY: the kernel reads `instructions.len()` instructions, and a text that ends with a zero byte.
    unsafe { bpf(PROG_LOAD, &mut attributes) }.map(owned)
}

fn owned(descriptor: i32) -> OwnedFd {
    // SAFETY: bpf(2) has just created the descriptor, and no other code uses it.
    unsafe { OwnedFd::from_raw_fd(descriptor) }
}

/// Calls bpf(2).
///
/// # Safety
///
/// The addresses in the attributes must point to memory that the command may read or write.
unsafe fn bpf(command: i64, attributes: &mut [u64]) -> io::Result<i32> {
    // SAFETY: the length of the attributes is passed. The caller promises the rest.
    let done =
        unsafe { libc::syscall(libc::SYS_bpf, command, attributes.as_mut_ptr(), size_of_val(attributes)) };
    if done < 0 { Err(io::Error::last_os_error()) } else { Ok(done as i32) }
}
