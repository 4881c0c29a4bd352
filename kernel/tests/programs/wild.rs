//! Makes random system calls: every number, with arguments that ordinary programs do not pass. The kernel may
//! refuse the calls or end the process; the machine must continue to run. The test `wild` expects the last
//! line that this program prints, `the machine survived`.
//!
//!     wild [--calls N] [--seed N] [--batch N] [--from N --to N] [--drop] [--verbose]
//!
//! A child makes each batch of calls and may destroy itself. An interval timer ends calls that wait, and the
//! parent kills a child that does not end in time. Calls that could reach other processes or the whole
//! machine are left out ([`LEFT_OUT`]), such as advice that poisons frames. The calls of a batch depend only
//! on the seed and the number of the batch, so a failure can be repeated. `--drop` drops the superuser's
//! rights first, for runs on a machine in use. `--verbose` prints each call before it is made.
//!
//! `--from` and `--to` limit the numbers of the calls. A new kind of argument belongs in `argument`.

use std::{
    arch::asm,
    ffi::c_void,
    process::exit,
    ptr, thread,
    time::{Duration, Instant},
};

unsafe extern "C" {
    fn fork() -> i32;
    fn _exit(status: i32) -> !;
    fn waitpid(pid: i32, status: *mut i32, options: i32) -> i32;
    fn kill(pid: i32, signal: i32) -> i32;
    fn mmap(at: *mut c_void, len: usize, prot: i32, flags: i32, file: i32, offset: i64) -> *mut c_void;
    fn memfd_create(name: *const i8, flags: u32) -> i32;
    fn ftruncate(file: i32, len: i64) -> i32;
    fn dup2(from: i32, to: i32) -> i32;
    fn open(path: *const i8, flags: i32) -> i32;
    fn pipe(ends: *mut i32) -> i32;
    fn chdir(path: *const i8) -> i32;
    fn setgid(id: u32) -> i32;
    fn setuid(id: u32) -> i32;
    fn setrlimit(what: i32, limit: *const [u64; 2]) -> i32;
    fn signal(number: i32, handler: usize) -> usize;
    fn siginterrupt(number: i32, flag: i32) -> i32;
    fn setitimer(which: i32, new: *const [u64; 4], old: *mut c_void) -> i32;
}

const SIGKILL: i32 = 9;
const SIGALRM: i32 = 14;
const WNOHANG: i32 = 1;
/// Time after which a child is killed.
const PATIENCE: Duration = Duration::from_millis(500);
/// Upper limit of the call numbers that are tried: all calls of this architecture, and some numbers without a
/// call.
const NUMBERS: u64 = 480;

/// Calls that are never made. They would make processes that continue this program, send signals to other
/// processes or stop them, end the child at once, or change the machine: clocks, names, modules, mounts,
/// swap, restarts.
const LEFT_OUT: &[u64] = &[
    56, 57, 58, 435, // clone, fork, vfork, clone3
    62, 129, 200, 234, 297, 424, 101, // kill, *sigqueueinfo, tkill, tgkill, pidfd_send_signal, ptrace
    60, 231, // exit, exit_group
    164, 227, 305, 159, 153, 169, 170, 171, 172, 173, 246,
    320, // clocks, vhangup, reboot, names, ports, kexec
    165, 166, 155, 161, 167, 168, 428, 429, 430, 431, 432, 433, 442, // mounts, roots, swap
    175, 176, 313, 163, 179, 180, 321, // modules, accounting, quotas, bpf
    310, 311, 440, 448, // memory of others: process_vm_*, process_madvise, process_mrelease
    302, 141, 144, 142, 314, 251, 203, 109, // limits, priorities, schedulers and groups of others
];

/// The number of madvise(2).
const MADVISE: u64 = 28;
/// MADV_HWPOISON and MADV_SOFT_OFFLINE, which take a frame away from all processes that use it, including the
/// parent of a child. The superuser may use them.
const POISON: [u64; 2] = [100, 101];

/// Counts of results. The counts of a batch are in memory that the child shares with its parent. The sums of
/// all batches are in memory of the parent that no child can change.
#[repr(C)]
#[derive(Clone)]
struct Counts {
    calls: u64,
    succeeded: u64,
    /// Number of calls by error number.
    failed: [u64; 134],
    /// Number of calls whose error number does not exist in Linux.
    odd: u64,
    /// Number of calls that answered ENOSYS, by number of the call.
    absent: [u64; NUMBERS as usize],
}

impl Counts {
    /// Adds the counts of a batch, if at most `most` calls can have produced them. Returns false if it adds
    /// nothing.
    fn add(&mut self, batch: &Counts, most: u64) -> bool {
        let sum = batch.succeeded.checked_add(batch.odd).and_then(|sum| {
            batch.failed.iter().try_fold(sum, |sum, many| sum.checked_add(*many))
        });
        let absent = batch.absent.iter().all(|many| *many <= most);
        if batch.calls > most || !absent || sum.is_none_or(|sum| sum > batch.calls) {
            return false;
        }
        self.calls += batch.calls;
        self.succeeded += batch.succeeded;
        self.odd += batch.odd;
        self.failed.iter_mut().zip(batch.failed).for_each(|(all, many)| *all += many);
        self.absent.iter_mut().zip(batch.absent).for_each(|(all, many)| *all += many);
        true
    }
}

/// The options of the command line.
struct Options {
    calls: u64,
    seed: u64,
    batch: u64,
    from: u64,
    to: u64,
    drop: bool,
    verbose: bool,
}

/// Parses the command line. Ends the program if it is invalid.
fn options() -> Options {
    let mut options =
        Options { calls: 100_000, seed: 1, batch: 50, from: 0, to: NUMBERS, drop: false, verbose: false };
    let mut args = std::env::args().skip(1);
    while let Some(arg) = args.next() {
        let mut number = || {
            args.next().and_then(|text| text.parse().ok()).unwrap_or_else(|| {
                eprintln!("{arg} expects a number");
                exit(2)
            })
        };
        match arg.as_str() {
            "--calls" => options.calls = number(),
            "--seed" => options.seed = number(),
            "--batch" => options.batch = number(),
            "--from" => options.from = number(),
            "--to" => options.to = number(),
            "--drop" => options.drop = true,
            "--verbose" => options.verbose = true,
            _ => {
                eprintln!("unknown option {arg}");
                exit(2);
            }
        }
    }
    options
}

/// The SplitMix64 generator.
struct Random(u64);

impl Random {
    fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let x = (self.0 ^ (self.0 >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        let x = (x ^ (x >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        x ^ (x >> 31)
    }

    /// Returns a number below `most`.
    fn below(&mut self, most: u64) -> u64 {
        ((u128::from(self.next()) * u128::from(most)) >> 64) as u64
    }

    /// Returns one of these values.
    fn pick(&mut self, of: &[u64]) -> u64 {
        of[self.below(of.len() as u64) as usize]
    }
}

/// The targets of a child's wild pointers: writable, read-only and inaccessible pages, the end of a file, and
/// edges of pages.
struct Stage {
    pointers: Vec<u64>,
}

/// Flags of mmap: private and anonymous; at the given address.
const MAP: i32 = 0x22;
const FIXED: i32 = 0x10;

/// Maps memory with a gap of a MiB on either side, so that writes beyond its ends hit nothing else.
fn alone(bytes: usize, prot: i32, flags: i32, file: i32) -> u64 {
    const GAP: usize = 1 << 20;
    // SAFETY: the mappings are new.
    unsafe {
        let room = mmap(ptr::null_mut(), bytes + 2 * GAP, 0, MAP, -1, 0);
        mmap(room.add(GAP), bytes, prot, flags | FIXED, file, 0) as u64
    }
}

impl Stage {
    fn new() -> Self {
        // SAFETY: the mappings and files are new, and the name is a string.
        unsafe {
            let pages = alone(16 << 12, 3, MAP, -1);
            let none = alone(4 << 12, 0, MAP, -1);
            let read = alone(4 << 12, 1, MAP, -1);
            let file = memfd_create(c"stage".as_ptr(), 0);
            ftruncate(file, 4096 + 100);
            let behind = alone(4 << 12, 3, 1, file);
            let text = b"/tmp/wild\0/proc/self/maps\0.\0";
            ptr::copy_nonoverlapping(text.as_ptr(), pages as *mut u8, text.len());
            ptr::copy_nonoverlapping(b"/tmp/cut".as_ptr(), (pages + (16 << 12) - 8) as *mut u8, 8);
            let own = Stage::new as fn() -> Stage as usize as u64;
            let pointers = vec![
                pages,
                pages + 10,
                pages + 26,
                pages + 1,
                pages + 4096,
                pages + 4090,
                pages + (16 << 12) - 8,
                pages + (16 << 12) - 1,
                none,
                none + 4095,
                read,
                read + 4092,
                behind,
                behind + 4090,
                behind + 8192,
                own,
                own & !0xfff,
            ];
            Stage { pointers }
        }
    }

    /// Returns a random argument: a pointer, a small number, or an edge case.
    fn argument(&self, random: &mut Random) -> u64 {
        const NUMBERS: &[u64] = &[
            0,
            1,
            2,
            3,
            4,
            5,
            6,
            7,
            8,
            9,
            10,
            16,
            32,
            64,
            100,
            255,
            256,
            511,
            4095,
            4096,
            4097,
            8192,
            1 << 16,
            1 << 20,
            2 << 20,
            1 << 30,
        ];
        const EDGES: &[u64] = &[
            1 << 31,
            (1 << 31) - 1,
            1 << 32,
            (1 << 32) - 1,
            1 << 46,
            1 << 47,
            (1 << 47) - 1,
            (1 << 47) - 4096,
            (1 << 47) - 4097,
            0x8000_0000_0000,
            0xffff_7fff_ffff_ffff,
            0xffff_8000_0000_0000,
            0xffff_8880_0000_0000,
            0xffff_ffff_8000_0000,
            0xffff_ffff_8010_0000,
            0xffff_ffff_ff60_0000,
            1 << 63,
            (1 << 63) - 1,
            u64::MAX,
            u64::MAX - 1,
            u64::MAX - 7,
            u64::MAX - 4095,
            u64::MAX - 99,
            0xdead_beef_0000,
        ];
        match random.below(16) {
            0..=4 => random.pick(&self.pointers),
            5..=9 => random.pick(NUMBERS),
            10..=12 => random.pick(EDGES),
            13 => 1 << random.below(64),
            14 => random.next() >> random.below(64),
            _ => random.pick(&self.pointers).wrapping_add(random.below(64)).wrapping_sub(32),
        }
    }
}

/// Makes a system call. Returns its answer.
fn call(number: u64, a: &[u64; 6]) -> i64 {
    let value: i64;
    // SAFETY: the call may do anything to this process, which is prepared for that.
    unsafe {
        asm!("syscall", inlateout("rax") number as i64 => value, in("rdi") a[0], in("rsi") a[1], in("rdx") a[2],
            in("r10") a[3], in("r8") a[4], in("r9") a[5], out("rcx") _, out("r11") _);
    }
    value
}

/// Returns a random number of a call that is not left out.
fn number(random: &mut Random, options: &Options) -> u64 {
    loop {
        let number = match random.below(64) {
            0 if options.to == NUMBERS => {
                random.pick(&[500, 1000, 1 << 30, 1 << 31, 1 << 32, u64::MAX, 1 << 63])
            }
            _ => options.from + random.below(options.to - options.from),
        };
        if !LEFT_OUT.contains(&number) {
            return number;
        }
    }
}

/// Does nothing. The timer's signal only ends calls that wait.
extern "C" fn rung(_: i32) {}

/// Prepares a child.
fn prepare(options: &Options) {
    // SAFETY: plain calls, with pointers to values that live longer than the call.
    unsafe {
        let null = open(c"/dev/null".as_ptr(), 2);
        for file in 0..if options.verbose { 1 } else { 3 } {
            dup2(null, file);
        }
        pipe([0; 2].as_mut_ptr());
        chdir(c"/tmp".as_ptr());
        // Limits of the address space, of data, and of the size of files.
        for (limit, bytes) in [(9, 1 << 29), (2, 1 << 28), (1, 1 << 20)] {
            setrlimit(limit, &[bytes, bytes]);
        }
        if options.drop {
            setgid(65534);
            setuid(65534);
        }
        signal(SIGALRM, rung as extern "C" fn(i32) as usize);
        siginterrupt(SIGALRM, 1);
        setitimer(0, &[0, 2000, 0, 2000], ptr::null_mut());
    }
}

/// Makes a batch of calls in a child, and counts the results.
fn child(seed: u64, options: &Options, counts: *mut Counts) -> ! {
    prepare(options);
    let mut random = Random(seed);
    let stage = Stage::new();
    for _ in 0..options.batch {
        let number = number(&mut random, options);
        let mut args = [(); 6].map(|()| stage.argument(&mut random));
        if number == MADVISE && POISON.contains(&(args[2] & 0xffff_ffff)) {
            args[2] = 0;
        }
        if options.verbose {
            println!("{number} {:#x?}", args);
        }
        // SAFETY: the memory belongs to the parent and stays mapped as long as its children live.
        let counts = unsafe { &mut *counts };
        counts.calls += 1;
        match call(number, &args) {
            -38 => {
                counts.failed[38] += 1;
                if let Some(absent) = counts.absent.get_mut(number as usize) {
                    *absent += 1;
                }
            }
            error @ -133..0 => counts.failed[-error as usize] += 1,
            -4095..0 => counts.odd += 1,
            _ => counts.succeeded += 1,
        }
    }
    // SAFETY: ends the process.
    unsafe { _exit(0) }
}

/// Waits for a child. Returns its status like waitpid, or `None` if the child had to be killed.
fn follow(pid: i32) -> Option<i32> {
    let started = Instant::now();
    let mut status = 0;
    let mut pause = 100;
    // SAFETY: `pid` is a child for which no other code waits.
    unsafe {
        loop {
            if waitpid(pid, &mut status, WNOHANG) == pid {
                return Some(status);
            }
            if started.elapsed() > PATIENCE {
                kill(pid, SIGKILL);
                waitpid(pid, &mut status, 0);
                return None;
            }
            thread::sleep(Duration::from_micros(pause));
            pause = (pause * 2).min(2000);
        }
    }
}

fn main() {
    let options = options();
    // The counts are in a shared anonymous mapping, whose zeros are valid counts. Its address is terabytes
    // away from the targets of wild pointers.
    const FAR: *mut c_void = 0x1357_9000_0000 as *mut c_void;
    // SAFETY: a new mapping, at an address where nothing is mapped.
    let counts = unsafe { mmap(FAR, size_of::<Counts>(), 3, 0x21, -1, 0) } as *mut Counts;
    assert_eq!(counts.cast(), FAR, "the address is free");
    // SAFETY: as above; no child uses the memory yet.
    let nothing = unsafe { (*counts).clone() };
    let mut all = nothing.clone();
    let (mut batches, mut ended, mut slow, mut lost) = (0_u64, [0_u64; 128], 0_u64, 0_u64);
    // A batch may end with its first call, so the number of batches is also limited.
    while all.calls < options.calls && batches < options.calls {
        let seed = options.seed.wrapping_mul(1 << 32).wrapping_add(batches);
        batches += 1;
        // SAFETY: this process has one thread.
        match unsafe { fork() } {
            0 => child(seed, &options, counts),
            pid if pid < 0 => {
                println!("cannot fork after {batches} batches");
                exit(1);
            }
            pid => match follow(pid) {
                Some(status) => ended[(status & 0x7f) as usize] += 1,
                None => slow += 1,
            },
        }
        // SAFETY: the child has ended, and only the child used the counts while it ran.
        let batch = unsafe { counts.replace(nothing.clone()) };
        lost += u64::from(!all.add(&batch, options.batch));
    }
    report(&all, batches, &ended, slow);
    println!("batches with corrupted counts: {lost}");
}

/// Prints the counts.
fn report(counts: &Counts, batches: u64, ended: &[u64; 128], slow: u64) {
    println!("{} calls in {batches} batches: {} succeeded", counts.calls, counts.succeeded);
    let failed = counts.failed.iter().enumerate().filter(|(_, many)| **many > 0);
    println!("errors: {}", failed.map(|(error, many)| format!("{error}: {many}, ")).collect::<String>());
    let signals = ended.iter().enumerate().filter(|(_, many)| **many > 0);
    println!("children by signal: {}", signals.map(|(n, many)| format!("{n}: {many}, ")).collect::<String>());
    println!("killed children: {slow}; errors unknown to Linux: {}", counts.odd);
    let absent = counts.absent.iter().filter(|many| **many > 0).count();
    println!("missing system calls: {absent}");
    println!("the machine survived");
}
