//! Random calls, biased towards collisions in a small window of pages and towards edges of the arguments.
//!
//! `compare.rs` creates a [`Generator`] for each run, with the number of the run as the seed, and applies
//! each call to both subjects. The mix of the run determines which kinds of calls are drawn. The arguments of
//! a call are odd values, or lie near existing mappings. The *shadow* knows the mappings: it is a model to
//! which the generator applies each call. A call that leaves the arena (`escape.rs`), or meets a quirk that
//! the world avoids, is drawn again. Equal seeds and worlds give equal calls, so any change here changes the
//! calls of all seeds. A new kind of call needs a line in `draw`. The numbers in the code are flags of
//! Linux's headers. Tests fail if too few calls succeed (`tests/support`).

use rand_pcg::Pcg64Mcg;
use rand_pcg::rand_core::Rng;

use crate::draw::Draw;
use crate::escape::escapes;
use crate::model::Model;
use crate::op::*;
use crate::world::{Quirks, World};

/// The mix of a run: which kinds of calls and arguments occur. The values are drawn for each run, so that
/// runs differ.
#[derive(Clone, Debug)]
struct Mix {
    /// Number of pages of the window that most addresses fall into.
    window: u64,
    /// First page of the window.
    base: u64,
    /// True if the run maps files and makes calls on them.
    files: bool,
    /// True if processes fork.
    forks: bool,
    /// True if resource limits are set.
    limits: bool,
    /// True if memory is locked.
    locks: bool,
    /// True if mappings grow downwards.
    stacks: bool,
    /// True if guard pages are installed.
    guards: bool,
    /// True if memory is sealed.
    seals: bool,
    /// True if brk is called.
    heap: bool,
    /// True if few calls unmap.
    dense: bool,
    /// Percentage of arguments that are odd: at an edge, unaligned, or out of range.
    odd: u64,
    /// True if the run uses MADV_FREE and droppable memory, false if it uses MADV_PAGEOUT. No run uses both,
    /// because MADV_PAGEOUT may drop freed and droppable memory.
    free: bool,
}

/// Draws random calls.
pub struct Generator {
    /// The source of all choices.
    rng: Pcg64Mcg,
    /// The kinds of calls of this run.
    mix: Mix,
    /// The model to which the drawn calls were applied, so that later calls can aim at existing mappings.
    shadow: Model,
    /// The limits and the layout that both subjects have.
    world: World,
}

/// Spreads a small number over all bits (the finalizer of SplitMix64), so that adjacent seeds give unrelated
/// runs.
fn scatter(seed: u64) -> u64 {
    let x = seed.wrapping_add(0x9e37_79b9_7f4a_7c15);
    let x = (x ^ (x >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    let x = (x ^ (x >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    x ^ (x >> 31)
}

impl Draw for Generator {
    fn word(&mut self) -> u64 {
        self.rng.next_u64()
    }
}

impl Generator {
    /// Creates the generator of the run with the number `seed`.
    pub fn new(world: World, seed: u64) -> Generator {
        let mut rng = Pcg64Mcg::new(u128::from(scatter(seed)) << 64 | u128::from(scatter(!seed)));
        let shadow = Model::new(world.clone());
        let mut coin = |n: u64| rng.next_u64().is_multiple_of(n);
        let small = coin(2);
        let mut mix = Mix {
            window: if small { 16 } else { 64 },
            base: 64,
            files: !coin(3),
            forks: coin(4),
            limits: coin(4),
            locks: coin(2),
            stacks: coin(3),
            guards: coin(2),
            seals: world.seals && coin(4),
            heap: coin(3),
            odd: if coin(2) { 2 } else { 10 },
            free: coin(2),
            dense: coin(2),
        };
        if coin(6) {
            mix.base = if coin(2) { 0 } else { World::PAGES - mix.window };
        }
        if mix.heap && coin(2) {
            mix.base = (world.heap - world.start) / PAGE - 4;
        }
        Generator { rng, mix, shadow, world }
    }

    /// Returns the next call that stays inside the arena, and applies it to the shadow.
    pub fn next_op(&mut self) -> Op {
        loop {
            let living = self.shadow.living();
            if living.is_empty() {
                return Op { proc: 0, call: Call::Fork };
            }
            let proc = living[self.below(living.len() as u64) as usize];
            let call = self.draw(proc);
            let last = living.len() == 1 && call == Call::Exit;
            if last || escapes(&self.world, &call) {
                continue;
            }
            let op = Op { proc, call };
            if self.may_meet_quirk(&op.call) {
                let before = self.shadow.clone();
                self.shadow.apply(&op);
                if self.shadow.met_quirk() {
                    self.shadow = before;
                    continue;
                }
            } else {
                self.shadow.apply(&op);
            }
            return op;
        }
    }

    /// Returns true if the call might meet a quirk of the kernel. The shadow is copied only before such a
    /// call, because a copy for every call would be expensive.
    fn may_meet_quirk(&self, call: &Call) -> bool {
        self.world.quirks == Quirks::Avoided
            && match call {
                Call::Mremap { flags, .. } => flags & 4 != 0,
                Call::Ftruncate { .. } | Call::FileWrite { .. } => true,
                // If there is little room for more mappings, any call may reach the limit.
                _ => self.world.max_map_count < self.world.outside.map_count as u64 + World::PAGES,
            }
    }

    /// Returns an address: an odd value, near a border of a mapping, or in the window.
    fn addr(&mut self, proc: Proc) -> u64 {
        let w = self.world.clone();
        if self.below(100) < self.mix.odd {
            let odd = [
                0,
                1,
                PAGE - 1,
                PAGE,
                w.start - PAGE,
                w.end,
                w.end - PAGE,
                w.layout.window_end,
                w.layout.window_end - PAGE,
                w.task_size,
                w.task_size - PAGE,
                w.task_size + PAGE,
                u64::MAX,
                u64::MAX - PAGE + 1,
                1 << 63,
                w.start + 1,
                w.start + 65 * PAGE + 7,
            ];
            return self.pick(&odd);
        }
        if self.one_in(3) {
            let maps = self.shadow.maps(proc);
            if !maps.is_empty() {
                let m = maps[self.below(maps.len() as u64) as usize];
                let at = if self.one_in(2) { m.start } else { m.end };
                return at
                    .wrapping_add((self.below(5).wrapping_sub(2)).wrapping_mul(PAGE * (self.below(4) / 3)));
            }
        }
        w.start + (self.mix.base + self.below(self.mix.window)) * PAGE
    }

    /// Returns a length, sometimes odd.
    fn len(&mut self) -> u64 {
        if self.below(100) < self.mix.odd {
            let odd = [
                0,
                1,
                PAGE - 1,
                PAGE + 1,
                u64::MAX,
                u64::MAX - PAGE + 1,
                u64::MAX - PAGE,
                1 << 47,
                (1 << 47) - PAGE,
                (1 << 47) - 2 * PAGE,
                1 << 63,
                2 << 20,
                256 * PAGE,
                300 * PAGE,
            ];
            return self.pick(&odd);
        }
        let pages = match self.below(8) {
            0..=2 => 1,
            3 | 4 => 1 + self.below(3),
            5 | 6 => 1 + self.below(8),
            _ => 1 + self.below(self.mix.window),
        };
        pages * PAGE - if self.one_in(16) { self.below(PAGE) } else { 0 }
    }

    /// Returns a short hole between two mappings: its first address and its length.
    fn hole(&mut self, proc: Proc) -> Option<(u64, u64)> {
        let maps = self.shadow.maps(proc);
        let pairs = maps.windows(2).map(|pair| (pair[0].end, pair[1].start - pair[0].end));
        let holes: Vec<(u64, u64)> = pairs.filter(|(_, len)| (PAGE..=16 * PAGE).contains(len)).collect();
        if holes.is_empty() { None } else { Some(self.pick(&holes)) }
    }

    /// Returns access rights.
    fn prot(&mut self) -> u64 {
        match self.below(64) {
            0 => self.pick(&[8, 16, 0x100, u64::MAX, 11]),
            n => self.pick(&[3, 3, 3, 1, 0, if n < 16 { 7 } else { 3 }, 2, 5]),
        }
    }

    /// Returns an mmap.
    fn mmap(&mut self, proc: Proc) -> Call {
        let file = (self.mix.files && self.one_in(3)).then(|| self.below(6) as FileId);
        let mut flags = self.pick(&[2u64, 2, 2, 2, 1, 1, 3]);
        if file.is_none() {
            flags |= 0x20;
        }
        if self.one_in(40) {
            flags = self.pick(&[0, 1, 2, 3, 4, 8, 0x20, 0x28, 15]);
        }
        flags |= match self.below(10) {
            0..=5 => 0x10,
            6 => 0x10_0000,
            _ => 0,
        };
        for (bit, chance) in [(0x4000, 12), (0x8000, 10), (0x1_0000, 30), (0x2_0000, 20), (0x80_0000, 200)] {
            if self.one_in(chance) {
                flags |= bit;
            }
        }
        if self.world.layout.fixed {
            flags |= self.pick(&[0, 0, 0, 0x40, 0x80, 0xc0]);
        }
        if self.mix.stacks && self.one_in(3) {
            flags |= 0x100;
        }
        if self.mix.locks && self.one_in(8) {
            flags |= 0x2000;
        }
        if self.one_in(40) {
            flags = flags & !0xf | 0x28;
        }
        if flags & 0xf == 8 && !self.mix.free {
            flags ^= 0xa;
        }
        let mut off = if file.is_some() { self.below(24) * PAGE } else { 0 };
        if self.below(100) < self.mix.odd {
            off =
                self.pick(&[1, PAGE - 1, 1 << 43, u64::MAX - PAGE + 1, 1 << 63, (1 << 63) - PAGE, 40 * PAGE]);
        }
        let addr = if flags & 0x10_0010 == 0 && self.one_in(2) { 0 } else { self.addr(proc) };
        let hole = if self.one_in(12) { self.hole(proc) } else { None };
        let (addr, len) = hole.unwrap_or_else(|| (addr, self.len()));
        Call::Mmap { addr, len, prot: self.prot(), flags, file, off }
    }

    /// Returns an advice for madvise.
    fn advice(&mut self) -> u64 {
        let mut set = vec![0, 1, 2, 3, 4, 4, 4, 10, 11, 16, 17, 18, 19, 14, 15, 12, 13, 20, 24, 22, 23, 25];
        set.push(if self.mix.free { 8 } else { 21 });
        if self.mix.files {
            set.push(9);
        }
        if self.mix.guards {
            set.extend([102, 102, 102, 103, 103]);
        }
        if self.one_in(50) {
            return self.pick(&[5, 6, 7, 26, 99, 104, u64::MAX, 1 << 32]);
        }
        self.pick(&set)
    }

    /// Returns a setrlimit.
    fn limit(&mut self) -> Call {
        let limit = self.pick(&[Limit::As, Limit::Data, Limit::Lock, Limit::Stack]);
        let pages = self.below(80);
        let none = if limit == Limit::Lock || limit == Limit::Stack { 2048 } else { u64::MAX };
        Call::Setrlimit { limit, pages: if self.one_in(2) { none } else { pages } }
    }

    /// Returns a call on a file.
    fn file_call(&mut self) -> Call {
        let file = self.below(6) as FileId;
        let mut off = self.below(24 * PAGE);
        if self.one_in(3) {
            off &= !(PAGE - 1);
        }
        if self.one_in(40) {
            off = self.pick(&[u64::MAX, 1 << 63]);
        }
        match self.below(4) {
            0 => Call::Ftruncate { file, len: if self.one_in(30) { u64::MAX } else { off } },
            1 | 2 => Call::FileWrite { file, off, len: self.below(48), seed: self.below(256) as u8 },
            _ => Call::FileRead { file, off, len: self.below(48) },
        }
    }

    /// Returns a brk.
    fn brk(&mut self, proc: Proc) -> Call {
        let heap = self.world.heap;
        Call::Brk {
            addr: match self.below(8) {
                0 => self.addr(proc),
                1 => heap - 1,
                2 => heap,
                3 => heap + self.below(20 * PAGE),
                _ => heap + self.below(24) * PAGE,
            },
        }
    }

    /// Returns a call that locks or unlocks memory.
    fn lock_call(&mut self, proc: Proc) -> Call {
        let (addr, len) = (self.addr(proc), self.len());
        match self.below(24) {
            0 => Call::Mlockall { flags: self.below(9) },
            1 => Call::Munlockall,
            2..=9 => Call::Mlock { addr, len },
            10..=14 => Call::Mlock2 { addr, len, flags: self.pick(&[0, 1, 1, 2]) },
            _ => Call::Munlock { addr: addr.wrapping_add(self.below(2) * self.below(PAGE)), len },
        }
    }

    /// Returns a load or a store.
    fn touch(&mut self, proc: Proc) -> Call {
        let mut addr = self.addr(proc);
        if !self.one_in(4) {
            let maps = self.shadow.maps(proc);
            if !maps.is_empty() {
                let m = maps[self.below(maps.len() as u64) as usize];
                addr = m.start + self.below((m.end - m.start) / PAGE) * PAGE;
            }
        }
        if self.mix.stacks && self.one_in(6) {
            addr = addr.wrapping_sub(self.below(12) * PAGE * self.pick(&[1, 1, 30]));
        }
        let at = addr.wrapping_add(self.pick(&[0, 0, 1, 8, 100, 123, 4088]));
        if self.one_in(3) {
            Call::Read { addr: at, len: self.pick(&[1, 8, 8, 16, 200]) }
        } else {
            Call::Write { addr: at, value: self.below(256) as u8 }
        }
    }

    /// Returns an mremap.
    fn mremap(&mut self, proc: Proc) -> Call {
        let flags = match self.below(16) {
            0 => self.pick(&[2, 4, 6, 8, u64::MAX]),
            1..=3 => 0,
            4..=7 => 1,
            8 | 9 => 5,
            10 => 7,
            _ => 3,
        };
        let hole = if self.one_in(8) { self.hole(proc) } else { None };
        if let Some((end, room)) = hole {
            // The mapping grows in place: to the end of the hole, or to one page less or more.
            let old_len = (1 + self.below(2)) * PAGE;
            let new_len = (old_len + room + self.below(3) * PAGE).saturating_sub(PAGE);
            return Call::Mremap { old: end - old_len, old_len, new_len, flags: self.below(2), new_addr: 0 };
        }
        let old_len = self.len();
        let new_len = if self.one_in(2) { old_len } else { self.len() };
        let old_len = if self.one_in(30) { 0 } else { old_len };
        Call::Mremap { old: self.addr(proc), old_len, new_len, flags, new_addr: self.addr(proc) }
    }

    /// Draws any call of the kinds that the mix contains.
    fn draw(&mut self, proc: Proc) -> Call {
        let (addr, len) = (self.addr(proc), self.len());
        match self.below(100) {
            0..=17 => self.mmap(proc),
            18..=24 if !self.mix.dense || self.one_in(4) => Call::Munmap { addr, len },
            18..=24 => self.mmap(proc),
            25..=37 => Call::Mprotect { addr, len, prot: self.prot() | self.grows() },
            38..=48 => self.mremap(proc),
            49..=64 => Call::Madvise { addr, len, advice: self.advice() },
            65..=70 if self.mix.locks => self.lock_call(proc),
            71..=73 if self.mix.heap => self.brk(proc),
            74 => Call::Msync { addr, len, flags: self.below(9) },
            75 => Call::Mincore { addr, len },
            76..=79 if self.mix.files => self.file_call(),
            80 if self.mix.limits => self.limit(),
            81 if self.mix.forks && self.one_in(2) => Call::Fork,
            81 if self.mix.forks && self.one_in(4) => Call::Exit,
            82 if self.mix.seals && self.one_in(3) => match self.below(12) {
                1 => Call::SetMerge { on: self.below(2) },
                0 => Call::SetMdwe { bits: self.pick(&[0, 1, 1, 1, 3, 3, 2, 5, 1 << 32]) },
                _ => Call::Mseal { addr, len, flags: u64::from(self.one_in(12)) },
            },
            _ => self.touch(proc),
        }
    }

    /// Returns 0 in most cases, otherwise PROT_GROWSDOWN, PROT_GROWSUP or both flags.
    fn grows(&mut self) -> u64 {
        if self.one_in(if self.mix.stacks { 12 } else { 60 }) {
            self.pick(&[0x100_0000, 0x100_0000, 0x200_0000, 0x300_0000])
        } else {
            0
        }
    }
}
