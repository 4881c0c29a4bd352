//! Random calls that are independent of the model: every memory-management call, with sensible and absurd
//! arguments.
//!
//! The example `random` runs under the recorder; a replay of the recording must not differ from Linux. Calls
//! come from a seed and run in child processes of `per_run` calls each, with one or two threads. Every call
//! is checked against [`Own`] (`raw.rs`), so that it does not destroy this program. No call locks or touches
//! more than a few MiB. A new call needs an arm in `Walk::step` that makes the check and keeps to the limit.

use super::raw::{self, Own};
use freehold_model::draw::Draw;
use rand_pcg::Pcg64Mcg;
use rand_pcg::rand_core::Rng;
use std::sync::Barrier;

const PAGE: u64 = 4096;
/// Start of the window of the first thread. Most of a thread's calls use addresses in the thread's window.
/// The windows of the other threads follow.
const WINDOWS: u64 = 0x2000_0000_0000;
/// Distance in bytes between two windows.
const APART: u64 = 1 << 32;
/// Number of pages of a window.
const WINDOW: u64 = 32;
/// Number of mapped ranges that a thread keeps for later calls.
const KNOWN: usize = 16;
/// Maximum number of bytes that one call may lock or touch.
const MAX_BYTES: u64 = 8 << 20;
/// Values of advice for madvise. A value that is listed twice is drawn more often. The list omits the values
/// that mark memory as failing, and MADV_COLLAPSE, whose result depends on the free memory of the machine.
const ADVICE: [u64; 27] =
    [0, 1, 2, 3, 4, 4, 4, 8, 9, 10, 11, 12, 13, 14, 15, 16, 17, 18, 19, 20, 21, 22, 23, 24, 102, 103, 77];

/// Makes `calls` calls, in processes of `per_run` calls each.
pub fn run(seed: u64, calls: u64, per_run: u64, mseal: bool) {
    let mut left = calls;
    for run in 0.. {
        let now = per_run.min(left);
        if now == 0 {
            break;
        }
        let ended = raw::in_a_child(|| process(seed.wrapping_add(run), now, mseal));
        assert_eq!(ended, 0, "run {run} of seed {seed}");
        left -= now;
    }
}

/// Makes the calls of one process, in one or two threads.
fn process(seed: u64, calls: u64, mseal: bool) {
    let mut rng = Pcg64Mcg::new(u128::from(seed) << 64 | 0x9e37_79b9_7f4a_7c15_f39c_c060_5ced_c835);
    let threads = if rng.next_u64().is_multiple_of(4) { 2 } else { 1 };
    let segments = [0, 1].map(|n| raw::call(libc::SYS_shmget, [0, (1 + 4 * n) * PAGE, 0o1600, 0, 0, 0]));
    let files = files();
    let ready = Barrier::new(threads as usize);
    let walk = |number: u64| {
        let rng = Pcg64Mcg::new(u128::from(seed ^ number << 48) << 64 | 0x5851_f42d_4c95_7f2d);
        ready.wait();
        let own = Own::now();
        let heap = raw::call(libc::SYS_brk, [0; 6]) as u64;
        let window = WINDOWS + number * APART;
        // Unmap the window. From then on the recording shows the window as empty.
        raw::call(libc::SYS_munmap, [window, 4 * WINDOW * PAGE, 0, 0, 0, 0]);
        let known = [(window, WINDOW * PAGE); KNOWN];
        let alone = threads == 1;
        let mut walk = Walk { rng, own, known, window, heap, files, segments, mseal, alone, future: false };
        ready.wait();
        for _ in 0..calls / threads {
            walk.step();
        }
        ready.wait();
    };
    if threads == 1 {
        walk(0);
    } else {
        std::thread::scope(|scope| {
            (0..threads).for_each(|number| drop(scope.spawn(move || walk(number))));
        });
    }
    for segment in segments {
        raw::call(libc::SYS_shmctl, [segment as u64, libc::IPC_RMID as u64, 0, 0, 0, 0]);
    }
}

/// Returns descriptors of every kind, including an invalid one.
fn files() -> [u64; 12] {
    let open = |path: &std::ffi::CStr, flags: i32| {
        raw::call(libc::SYS_open, [path.as_ptr() as u64, flags as u64, 0o600, 0, 0, 0])
    };
    let memory = |name: &std::ffi::CStr, flags: u64, pages: u64| {
        let made = raw::call(libc::SYS_memfd_create, [name.as_ptr() as u64, flags, 0, 0, 0, 0]);
        raw::call(libc::SYS_ftruncate, [made as u64, pages * PAGE, 0, 0, 0, 0]);
        made
    };
    let first = memory(c"first", 2, 8);
    let sealed = memory(c"sealed", 2, 4);
    raw::call(libc::SYS_fcntl, [sealed as u64, libc::F_ADD_SEALS as u64, 0x8, 0, 0, 0]);
    let path = std::ffi::CString::new(format!("/proc/self/fd/{first}")).expect("no zero in it");
    [
        first,
        open(&path, libc::O_RDONLY),
        open(&path, libc::O_WRONLY),
        raw::call(libc::SYS_dup, [first as u64, 0, 0, 0, 0, 0]),
        sealed,
        memory(c"empty", 0, 0),
        open(c"/dev/zero", libc::O_RDWR),
        open(c"/dev/null", libc::O_RDWR),
        open(c"/proc/self/status", libc::O_RDONLY),
        open(c"/proc/self/exe", libc::O_RDONLY),
        open(c"/tmp", libc::O_RDONLY),
        99,
    ]
    .map(|descriptor| descriptor as u64)
}

/// The walk of one thread: its state, and one function for each kind of call.
struct Walk {
    rng: Pcg64Mcg,
    /// The program's own memory, which calls must not reach.
    own: Own,
    /// Ranges that calls have mapped: address and length. Later calls may have unmapped some of these ranges.
    known: [(u64, u64); KNOWN],
    /// Start of the thread's window.
    window: u64,
    /// End of the heap when the walk began.
    heap: u64,
    /// Descriptors of files.
    files: [u64; 12],
    /// Identifiers of two System V segments.
    segments: [i64; 2],
    /// False if mseal is left out.
    mseal: bool,
    /// True if the process has one thread.
    alone: bool,
    /// True if mlockall(MCL_FUTURE) locks future mappings.
    future: bool,
}

impl Draw for Walk {
    fn word(&mut self) -> u64 {
        self.rng.next_u64()
    }
}

impl Walk {
    /// Returns an address: in the window, in a mapped range, or an absurd address.
    fn addr(&mut self) -> u64 {
        match self.below(24) {
            0 => self.pick(&[
                0,
                1,
                PAGE,
                0x1_0000,
                (1 << 47) - PAGE,
                (1 << 47) - 2 * PAGE,
                1 << 47,
                1 << 63,
                u64::MAX,
                u64::MAX - PAGE + 1,
                0xffff_8000_0000_0000,
                0xffff_ffff_ff60_0000,
            ]),
            1 => self.window + self.below(WINDOW) * PAGE + self.word() % PAGE,
            2..=9 => self.window + self.below(WINDOW) * PAGE,
            10 => self.heap + self.below(16) * PAGE,
            _ => {
                let (start, len) = self.known[self.below(KNOWN as u64) as usize];
                let end = start.wrapping_add(len & !(PAGE - 1));
                match self.below(4) {
                    0 => end,
                    1 => start.wrapping_add(self.below(len / PAGE + 1) * PAGE),
                    2 => end.wrapping_sub(PAGE),
                    _ => start,
                }
            }
        }
    }

    /// Returns a length in bytes: mostly a few pages, sometimes an absurd length.
    fn len(&mut self) -> u64 {
        match self.below(20) {
            0 => self.pick(&[
                0,
                1,
                PAGE - 1,
                PAGE + 1,
                u64::MAX,
                u64::MAX - PAGE,
                u64::MAX - PAGE + 1,
                1 << 47,
                1 << 63,
            ]),
            1 => self.pick(&[2 << 20, 4 << 20, (2 << 20) + PAGE, 1 << 30]),
            2 => 1 + self.below(8 * PAGE),
            _ => (1 + self.below(6)) * PAGE,
        }
    }

    /// Returns access rights, which are mostly valid.
    fn prot(&mut self) -> u64 {
        match self.below(20) {
            0 => self.pick(&[8, 16, 0x100_0003, 0x200_0003, 0x300_0003, u64::MAX, 1 << 32]),
            _ => self.pick(&[3, 3, 3, 1, 0, 2, 5, 7]),
        }
    }

    /// Returns a pointer to which a call may write its results.
    fn pointer(&mut self) -> u64 {
        let at = self.addr();
        if self.own.meets(at, 16 * PAGE) { self.window } else { at }
    }

    /// Makes one call.
    fn step(&mut self) {
        let (addr, len, prot) = (self.addr(), self.len(), self.prot());
        match self.below(64) {
            0..=17 => self.mmap(),
            18..=22 => self.on(libc::SYS_munmap, addr, len, [0; 3]),
            23..=28 => self.on(libc::SYS_mprotect, addr, len, [prot, 0, 0]),
            29..=34 => self.mremap(),
            35..=40 => {
                let advice = self.pick(&ADVICE);
                self.on_few(libc::SYS_madvise, addr, len, [advice, 0, 0]);
            }
            41..=44 => self.lock(),
            45 => {
                let flags = self.below(9);
                self.on(libc::SYS_msync, addr, len, [flags, 0, 0]);
            }
            46 => self.mincore(),
            47 => self.brk(),
            48..=50 => self.shm(),
            51 | 52 => self.file(),
            53 => self.transfer(),
            54 => self.fork(),
            55 => {
                let key = self.pick(&[u64::MAX, 0, 1, 5, 16, 1 << 32]);
                self.on(libc::SYS_pkey_mprotect, addr, len, [prot, key, 0]);
            }
            56 => {
                let mode = self.pick(&[0, 1, 2, 3, 4, 9]);
                self.on(libc::SYS_mbind, addr, len, [mode, 0, 0]);
            }
            57 if self.mseal => self.on(462, addr, len, [0; 3]),
            _ => self.touch(),
        }
    }

    /// Makes a call on a range, unless the range overlaps the program's own memory.
    fn on(&mut self, number: i64, addr: u64, len: u64, rest: [u64; 3]) {
        if !self.own.meets(addr, len) {
            raw::call(number, [addr, len, rest[0], rest[1], rest[2], 0]);
        }
    }

    /// Makes a call that may allocate pages in a range, unless the range is too large.
    fn on_few(&mut self, number: i64, addr: u64, len: u64, rest: [u64; 3]) {
        if len <= MAX_BYTES || len >= 1 << 47 {
            self.on(number, addr, len, rest);
        }
    }

    /// Keeps the range that a call has mapped at `at`, unless the call failed.
    fn remember(&mut self, at: i64, len: u64) {
        if !(-4095..0).contains(&at) {
            let slot = self.below(KNOWN as u64) as usize;
            self.known[slot] = (at as u64, len.min(64 * PAGE));
        }
    }

    fn mmap(&mut self) {
        let mut flags = self.pick(&[0x22, 0x22, 0x22, 0x22, 0x21, 2, 1, 3]);
        for (bit, chance) in [
            (0x10, 3),
            (0x10_0000, 10),
            (0x40, 20),
            (0x100, 12),
            (0x2000, 16),
            (0x4000, 10),
            (0x8000, 10),
            (0x1_0000, 30),
            (0x2_0000, 16),
            (0x4_0000, 24),
            (0x800_0000, 60),
            (0x8_0000, 60),
            (0x20, 30),
        ] {
            if self.one_in(chance) {
                flags |= bit;
            }
        }
        if self.one_in(40) {
            flags = self.pick(&[0, 4, 8, 0x28, 0x20, 15, u64::MAX, 1 << 32 | 0x22]);
        }
        let addr = if flags & 0x10_0010 == 0 && !self.one_in(4) { 0 } else { self.addr() };
        let len = self.len();
        let brings = flags & 0xa000 != 0 || self.future;
        let reaches = flags & 0x10 != 0 && self.own.meets(addr, len);
        if reaches || brings && len > MAX_BYTES && len < 1 << 47 {
            return;
        }
        let mut file = self.pick(&self.files.clone());
        if self.one_in(6) {
            file |= self.pick(&[0xffff_ffff_0000_0000, 1 << 32, 0xdead_0000_0000_0000]);
        }
        if flags & 0x20 != 0 && !self.one_in(20) {
            file = u64::MAX;
        }
        let offset = match self.below(12) {
            0 => self.pick(&[1, PAGE - 1, 1 << 43, 1 << 63, (1 << 63) - PAGE, u64::MAX - PAGE + 1]),
            n => (n % 4) * PAGE,
        };
        let prot = self.prot();
        let at = raw::call(libc::SYS_mmap, [addr, len, prot, flags, file, offset]);
        self.remember(at, len);
        if !(-4095..0).contains(&at) && len > 64 * PAGE && !self.one_in(8) {
            // Unmap most large mappings immediately: they only test alignment, and would fill the address
            // space.
            raw::call(libc::SYS_munmap, [at as u64, len, 0, 0, 0, 0]);
        }
    }

    fn mremap(&mut self) {
        let (old, old_len) = (self.addr(), self.len());
        let len = if self.one_in(3) { old_len } else { self.len() };
        let old_len = if self.one_in(20) { 0 } else { old_len };
        let flags = match self.below(8) {
            0 => self.pick(&[2, 4, 6, 8, 15, u64::MAX, 1 << 32 | 1]),
            1..=4 => 1,
            5 => 3,
            6 => self.pick(&[5, 7]),
            _ => 0,
        };
        let to = self.addr();
        let reaches = self.own.meets(old, old_len.max(1))
            || self.own.meets(old, len)
            || flags & 2 != 0 && self.own.meets(to, len);
        if reaches || len > MAX_BYTES && len < 1 << 47 {
            return;
        }
        let at = raw::call(libc::SYS_mremap, [old, old_len, len, flags, to, 0]);
        self.remember(at, len);
    }

    fn lock(&mut self) {
        let (addr, len) = (self.addr(), self.len());
        match self.below(16) {
            // Lock everything only on fault (MCL_ONFAULT), because a large mapping may exist.
            0 => {
                let flags = self.pick(&[4, 5, 6, 7, 0, 8]);
                self.future |= flags == 6 || flags == 7;
                raw::call(libc::SYS_mlockall, [flags, 0, 0, 0, 0, 0]);
            }
            1 => {
                self.future = false;
                raw::call(libc::SYS_munlockall, [0; 6]);
            }
            2..=6 => self.on_few(libc::SYS_mlock, addr, len, [0; 3]),
            7..=9 => {
                let flags = self.pick(&[0, 1, 1, 2, 1 << 32]);
                self.on_few(libc::SYS_mlock2, addr, len, [flags, 0, 0]);
            }
            _ => self.on(libc::SYS_munlock, addr, len, [0; 3]),
        }
    }

    fn mincore(&mut self) {
        let (addr, len, vector) = (self.addr(), self.len(), self.pointer());
        if len <= 16 * PAGE || len >= 1 << 47 {
            raw::call(libc::SYS_mincore, [addr, len, vector, 0, 0, 0]);
        }
    }

    fn brk(&mut self) {
        if self.alone {
            let to = self.heap + self.below(24) * PAGE + self.below(2) * self.below(PAGE);
            raw::call(libc::SYS_brk, [to, 0, 0, 0, 0, 0]);
        }
    }

    fn shm(&mut self) {
        let id = match self.below(10) {
            0 => self.pick(&[u64::MAX, 12_345_678, 1 << 32]),
            n => self.segments[n as usize % 2] as u64,
        };
        if self.one_in(3) {
            let addr = self.addr();
            if !self.own.meets(addr, 8 * PAGE) {
                raw::call(libc::SYS_shmdt, [addr, 0, 0, 0, 0, 0]);
            }
            return;
        }
        let addr = if self.one_in(2) { 0 } else { self.addr() };
        let flags = self.pick(&[0, 0, 0o10000, 0o20000, 0o40000, 0o60000, 0o100000, 1 << 20]);
        if !self.own.meets(addr, 8 * PAGE) {
            let at = raw::call(libc::SYS_shmat, [id, addr, flags, 0, 0, 0]);
            self.remember(at, PAGE);
        }
    }

    fn file(&mut self) {
        let file = self.pick(&self.files.clone());
        let len = self.below(12) * PAGE + self.below(2) * self.below(PAGE);
        match self.below(4) {
            0 => drop(raw::call(libc::SYS_ftruncate, [file, len, 0, 0, 0, 0])),
            1 => {
                let mode = self.pick(&[0, 1, 3, 8, 0x10, u64::MAX]);
                raw::call(libc::SYS_fallocate, [file, mode, self.below(8) * PAGE, len, 0, 0]);
            }
            2 => {
                let flags = self.pick(&[0, 1, 2, 3, 4, 8, 0x10, 0x80, u64::MAX]);
                let name = self.pick(&[c"a".as_ptr() as u64, 0]);
                let made = raw::call(libc::SYS_memfd_create, [name, flags, 0, 0, 0, 0]);
                if made > 0 {
                    let slot = self.below(4) as usize + 8;
                    raw::call(libc::SYS_close, [self.files[slot], 0, 0, 0, 0, 0]);
                    self.files[slot] = made as u64;
                }
            }
            _ => {
                let to = self.pick(&self.files.clone());
                raw::call(libc::SYS_dup2, [file, to, 0, 0, 0, 0]);
            }
        }
    }

    fn transfer(&mut self) {
        let (near, far) = (self.pointer(), self.pointer());
        let len = self.below(3 * PAGE);
        let local = [near, len];
        let remote = [far, if self.one_in(4) { len / 2 } else { len }];
        let number = self.pick(&[libc::SYS_process_vm_readv, libc::SYS_process_vm_writev]);
        let pid = raw::call(libc::SYS_getpid, [0; 6]) as u64;
        let flags = u64::from(self.one_in(12));
        raw::call(number, [pid, local.as_ptr() as u64, 1, remote.as_ptr() as u64, 1, flags]);
    }

    fn fork(&mut self) {
        const SIGCHLD: u64 = libc::SIGCHLD as u64;
        let flags = self.pick(&[
            SIGCHLD,
            SIGCHLD,
            0x4000 | SIGCHLD,
            0x4100 | SIGCHLD,
            0x10000 | SIGCHLD,
            0x800 | SIGCHLD,
            1 << 33 | SIGCHLD,
        ]);
        let child = raw::clone_and_exit(flags);
        if child > 0 {
            raw::call(libc::SYS_wait4, [child as u64, 0, 0, 0, 0, 0]);
        }
    }

    /// Makes the kernel read or write one byte of memory.
    fn touch(&mut self) {
        let at = self.pointer();
        let (zero, memory) = (self.files[6], self.files[0]);
        match self.one_in(3) {
            true => raw::call(libc::SYS_pwrite64, [memory, at, 1, 0, 0, 0]),
            false => raw::call(libc::SYS_read, [zero, at, 1, 0, 0, 0]),
        };
    }
}
