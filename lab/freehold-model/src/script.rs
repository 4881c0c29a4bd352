//! Calls from bytes, for fuzzers and property tests.
//!
//! The fuzz target `engine` and `tests/properties.rs` decode calls with [`ops`]; `generate.rs` draws calls
//! for all other comparisons. Each call has eight bytes with fixed meanings. Removing a call, or decreasing
//! one of its bytes, therefore does not change the other calls. This property lets a fuzzer or proptest
//! shrink a finding byte by byte. `tests/properties.rs` checks that bytes decode to all kinds of calls. A new
//! kind of call is an arm of `Code::call`.
//!
//! | byte | meaning |
//! | --- | --- |
//! | 0 | kind of call |
//! | 1 | process, and rights of mmap |
//! | 2 | first page, or an odd address |
//! | 3 | length in pages, or an odd length |
//! | 4 | rights, advice or kind |
//! | 5, 6 | flags |
//! | 7 | page of a file, second address, second length |

use crate::escape::escapes;
use crate::op::*;
use crate::world::World;

/// Number of bytes of a call.
pub const CODE: usize = 8;

/// Number of pages that addresses fall into. The number is small, so that calls overlap.
const WINDOW: u64 = 24;
/// First page of the window.
const BASE: u64 = 64;

/// Decodes bytes as calls. Drops calls that would leave the arena, and an incomplete call at the end.
pub fn ops(world: &World, bytes: &[u8]) -> Vec<Op> {
    let codes = bytes.chunks_exact(CODE).map(|code| code.try_into().expect("exact"));
    let ops = codes.map(|code| op(world, code));
    ops.filter(|op| !escapes(world, &op.call)).collect()
}

/// Decodes eight bytes as a call.
pub fn op(world: &World, code: [u8; CODE]) -> Op {
    let reader = Code { world, code };
    Op { proc: code[1] % 4, call: reader.call() }
}

/// The bytes of one call.
struct Code<'w> {
    world: &'w World,
    code: [u8; CODE],
}

impl Code<'_> {
    /// Chooses one of the values by a byte.
    fn pick<T: Copy>(&self, byte: usize, of: &[T]) -> T {
        of[self.code[byte] as usize % of.len()]
    }

    /// Returns an address in the window, or sometimes an odd address.
    fn page(&self, byte: usize) -> u64 {
        let w = self.world;
        let odd =
            [0, 1, PAGE, w.start - PAGE, w.start, w.end - PAGE, w.end, w.start + 1, w.task_size, u64::MAX];
        match self.code[byte] {
            n if n < 240 => w.start + (BASE + u64::from(n) % WINDOW) * PAGE,
            n => odd[usize::from(n - 240) % odd.len()],
        }
    }

    /// Returns a length of a few pages, or sometimes an odd length.
    fn len(&self, byte: usize) -> u64 {
        const ODD: [u64; 8] = [0, 1, PAGE - 1, PAGE + 1, u64::MAX, 1 << 47, 2 << 20, u64::MAX - PAGE];
        match self.code[byte] {
            n if n < 240 => (1 + u64::from(n) % 8) * PAGE,
            n => ODD[usize::from(n) % ODD.len()],
        }
    }

    fn file(&self) -> FileId {
        self.code[5] % World::FILES.len() as u8
    }

    fn call(&self) -> Call {
        let (addr, len) = (self.page(2), self.len(3));
        match self.code[0] % 32 {
            0..=5 => self.mmap(),
            6 | 7 => Call::Munmap { addr, len },
            8..=11 => Call::Mprotect { addr, len, prot: self.pick(4, &[3, 1, 0, 7, 5, 2, 8]) },
            12..=15 => Call::Mremap {
                old: addr,
                old_len: len,
                new_len: if self.code[6] < 128 { len } else { self.len(6) },
                flags: self.pick(5, &[3, 1, 0, 5, 7, 2, 8]),
                new_addr: self.page(7),
            },
            16..=19 => self.advice(addr, len),
            20..=22 => Call::Write { addr: addr.wrapping_add(self.offset()), value: self.code[4] },
            23 => Call::Read { addr: addr.wrapping_add(self.offset()), len: u64::from(self.code[4]) },
            24 | 25 => self.lock(addr, len),
            26 => Call::Brk { addr: self.world.heap + u64::from(self.code[2]) * PAGE / 4 },
            27 => self.file_call(),
            28 => Call::Msync { addr, len, flags: u64::from(self.code[4] % 9) },
            29 => Call::Mincore { addr, len },
            30 => match self.code[4] % 8 {
                0 => Call::Exit,
                1..=4 => Call::Fork,
                _ => self.limit(),
            },
            _ => Call::Mprotect { addr, len, prot: self.pick(4, &[0x0100_0003, 0x0100_0000, 0x0200_0003]) },
        }
    }

    fn offset(&self) -> u64 {
        self.pick(3, &[0, 1, 8, 123, 4088, 4095])
    }

    fn mmap(&self) -> Call {
        let kind = self.pick(5, &[0x22, 0x22, 0x21, 0x28, 2, 1, 3]);
        let place = self.pick(4, &[0x10, 0x10, 0x10, 0, 0x10_0000]);
        let extra = [0x2000, 0x4000, 0x8000, 0x100, 0x2_0000, 0x1_0000];
        let extra = extra.iter().enumerate().filter(|(bit, _)| self.code[6] & 1 << bit != 0);
        let flags = extra.fold(kind | place, |flags, (_, bit)| flags | bit);
        let file = (kind & 0x20 == 0).then(|| self.code[7] % World::FILES.len() as u8);
        let prot = self.pick(1, &[3, 3, 3, 3, 3, 3, 3, 3, 1, 1, 1, 1, 5, 7, 0, 2]);
        let off = if file.is_some() { u64::from(self.code[7] / 8) * PAGE } else { 0 };
        Call::Mmap { addr: self.page(2), len: self.len(3), prot, flags, file, off }
    }

    fn advice(&self, addr: u64, len: u64) -> Call {
        const ADVICE: [u64; 22] =
            [4, 102, 103, 10, 11, 18, 19, 0, 1, 2, 16, 17, 14, 15, 8, 9, 22, 23, 24, 3, 20, 99];
        Call::Madvise { addr, len, advice: self.pick(4, &ADVICE) }
    }

    fn lock(&self, addr: u64, len: u64) -> Call {
        match self.code[4] % 8 {
            0..=2 => Call::Mlock { addr, len },
            3 => Call::Mlock2 { addr, len, flags: u64::from(self.code[5] % 3) },
            4 | 5 => Call::Munlock { addr, len },
            6 => Call::Mlockall { flags: u64::from(self.code[5] % 9) },
            _ => Call::Munlockall,
        }
    }

    fn file_call(&self) -> Call {
        let (file, off) = (self.file(), u64::from(self.code[2]) * PAGE / 8 + self.offset());
        match self.code[4] % 4 {
            0 => Call::Ftruncate { file, len: off },
            1 | 2 => Call::FileWrite { file, off, len: u64::from(self.code[6] % 48), seed: self.code[7] },
            _ => Call::FileRead { file, off, len: u64::from(self.code[6] % 48) },
        }
    }

    fn limit(&self) -> Call {
        let limit = self.pick(5, &[Limit::As, Limit::Data, Limit::Lock, Limit::Stack]);
        let none = if matches!(limit, Limit::Lock | Limit::Stack) { 2048 } else { u64::MAX };
        Call::Setrlimit { limit, pages: if self.code[6] < 128 { none } else { u64::from(self.code[7] % 80) } }
    }
}
