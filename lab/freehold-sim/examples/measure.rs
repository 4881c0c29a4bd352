//! Measures this computer, and prints the results as lines of a machine's file.
//!
//! ```sh
//! cargo run --release --package freehold-sim --example measure
//! ```
//!
//! The program needs processors 0 and 1. Most figures are the median of the fastest quarter of many rounds,
//! because other programs can only make a round slower. Figures that cannot be measured here are left out,
//! and must be added with their source before the file goes to `machines/` (`docs/reference/simulation.md`).
//! The fields of a machine are in `src/machine.rs`; the name of a printed line is that of its field. A new
//! figure is a call of `say` in `main`.
#![expect(unsafe_code, reason = "memory by the page, and lines out of caches")]

use rustix::mm::{Advice, MapFlags, ProtFlags, madvise, mmap_anonymous, munmap};
use rustix::thread::{CpuSet, sched_setaffinity};
use std::hint::{black_box, spin_loop};
use std::ptr;
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering, Ordering::Relaxed, fence};
use std::thread;
use std::time::Instant;

/// Number of rounds of most measurements. Other measurements use a fraction or a multiple of this number.
const ROUNDS: usize = 400;
/// Number of lines that pass together from one processor to the other. This number of lines fits into any
/// first-level cache.
const LINES: usize = 256;
/// Distance of two used lines, in lines. At this distance no prefetcher fetches two used lines together.
const APART: usize = 64;
/// Number of interrupts in a round.
const INTERRUPTS: usize = 20;
/// Bytes of a page.
const PAGE: usize = 4096;

/// The index of the next line, and a word to change.
#[repr(align(64))]
#[derive(Default)]
struct Line(AtomicUsize, AtomicU64);

fn main() {
    pin(0);
    let hit = per_access(&chain(LINES, 1), 64 * LINES, |line| line.0.load(Relaxed));
    let rmw = per_access(&chain(LINES, 1), 16 * LINES, change);
    println!("[line]");
    say("hit", hit);
    say("rmw", rmw - hit);
    let word = AtomicU64::new(0);
    say(
        "fence",
        times(1000, || {
            word.store(1, Relaxed);
            fence(Ordering::SeqCst);
        }),
    );
    let large = (256 << 20) / 64;
    say("memory", per_access(&chain(large, 1), 100_000, |line| line.0.load(Relaxed)));
    let [shared, transfer] = passed();
    say("shared", shared);
    say("transfer", transfer);
    say("upgrade", passed_on() - transfer - hit);
    println!("\n[cost]");
    say("pause", times(1000, spin_loop));
    let (interrupt, handle) = interrupts();
    println!("# An interrupt and its answer: {interrupt:.0} ns, the sum of send, each, latency and handle.");
    say("interrupt_handle", handle);
    let (wake, apart) = hand_over([0, 1]);
    let (wake_here, together) = hand_over([0, 0]);
    say("sleep", together - wake_here);
    say("wake", wake);
    say("wake_latency", apart - wake);
    println!("# First touch of anonymous memory, including zeroing its page: {:.0} ns", first_touch());
    println!("\n[memory]");
    let (mut from, mut to) = (vec![1u8; 64 << 20], vec![2u8; 64 << 20]);
    say("zero", rate(|page| to[page..page + PAGE].fill(black_box(0))));
    say("copy", rate(|page| to[page..page + PAGE].copy_from_slice(&from[page..page + PAGE])));
    let one = rate(|page| to[page..page + PAGE].fill(black_box(0)));
    let both = thread::scope(|scope| {
        let other = scope.spawn(|| {
            pin(1);
            rate(|page| from[page..page + PAGE].fill(black_box(0)))
        });
        rate(|page| to[page..page + PAGE].fill(black_box(0))) + other.join().expect("measured")
    });
    println!("# One processor zeroes {one:.1} bytes per nanosecond, two at the same time {both:.1}.");
}

/// Prints a figure as a line of the file.
fn say(name: &str, figure: f64) {
    println!("{name} = {figure:.1}");
}

/// Binds the calling thread to a processor.
fn pin(cpu: usize) {
    let mut only = CpuSet::new();
    only.set(cpu);
    sched_setaffinity(None, &only).expect("processors 0 and 1");
}

/// Returns the median of the fastest quarter.
fn fastest(mut rounds: Vec<f64>) -> f64 {
    rounds.sort_by(f64::total_cmp);
    rounds[rounds.len() / 8]
}

/// Returns the median, for operations that are fast only while the other processor does something else.
fn middle(mut rounds: Vec<f64>) -> f64 {
    rounds.sort_by(f64::total_cmp);
    rounds.get(rounds.len() / 2).copied().unwrap_or(f64::NAN)
}

/// Returns the nanoseconds of each of `count` calls in a row, for every round.
fn rounds(count: usize, mut f: impl FnMut()) -> Vec<f64> {
    let round = || {
        let begin = Instant::now();
        (0..count).for_each(|_| f());
        begin.elapsed().as_nanos() as f64 / count as f64
    };
    std::iter::repeat_with(round).take(ROUNDS).collect()
}

/// Returns the nanoseconds of a call, from rounds of `count` calls in a row.
fn times(count: usize, f: impl FnMut()) -> f64 {
    fastest(rounds(count, f))
}

/// Lines that form one ring, in an order that no processor predicts. If `apart` is more than 1, unused lines
/// lie between two used lines, so that no two used lines are fetched together.
struct Chain {
    /// The used and unused lines.
    all: Vec<Line>,
    /// The indices of the used lines, in the order of the ring.
    used: Vec<usize>,
}

/// Returns a chain of `lines` used lines, one in each group of `apart` lines.
fn chain(lines: usize, apart: usize) -> Chain {
    let mut all: Vec<Line> = Vec::with_capacity(lines * apart);
    // SAFETY: huge pages do not change the contents of the memory.
    let _ = unsafe {
        let bytes = lines * apart * size_of::<Line>();
        madvise(all.as_mut_ptr().cast(), bytes, Advice::LinuxHugepage)
    };
    all.resize_with(lines * apart, Line::default);
    let mut random = 1u64;
    let mut below = |end: usize| {
        random = random.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        (random >> 33) as usize % end
    };
    let mut used: Vec<usize> = (0..lines).map(|line| line * apart + below(apart)).collect();
    for last in (1..lines).rev() {
        used.swap(last, below(last + 1));
    }
    for (at, &line) in used.iter().enumerate() {
        all[line].0.store(used[(at + 1) % lines], Relaxed);
    }
    Chain { all, used }
}

/// Follows `count` links of the chain. Returns the nanoseconds for each.
fn follow(chain: &Chain, count: usize, next: impl Fn(&Line) -> usize) -> f64 {
    let begin = Instant::now();
    let end = (0..count).fold(chain.used[0], |line, _| next(&chain.all[line]));
    let took = begin.elapsed().as_nanos() as f64 / count as f64;
    black_box(end);
    took
}

/// Returns the nanoseconds of each of `count` accesses along a chain that was followed once before.
fn per_access(lines: &Chain, count: usize, next: impl Fn(&Line) -> usize) -> f64 {
    follow(lines, lines.used.len().min(count), &next);
    fastest((0..ROUNDS / 10).map(|_| follow(lines, count, &next)).collect())
}

/// Returns two times: to get a line that the other processor has only read, and to get a line that the other
/// processor has changed.
fn passed() -> [f64; 2] {
    let lines = chain(LINES, APART);
    let meet = Meeting::default();
    let looks = |line: &Line| line.0.load(Relaxed);
    let mut found = [Vec::new(), Vec::new()];
    thread::scope(|scope| {
        scope.spawn(|| {
            pin(1);
            for _ in 0..ROUNDS {
                lines.all.iter().for_each(to_memory);
                follow(&lines, LINES, looks);
                meet.wait();
                meet.wait();
                follow(&lines, LINES, change);
                meet.wait();
                meet.wait();
            }
        });
        for _ in 0..ROUNDS {
            meet.wait();
            found[0].push(follow(&lines, LINES, looks));
            meet.wait();
            meet.wait();
            found[1].push(follow(&lines, LINES, looks));
            meet.wait();
        }
    });
    found.map(fastest)
}

/// Changes the line and returns the index of the next line, which is known only after the change.
fn change(line: &Line) -> usize {
    line.0.load(Relaxed).wrapping_add(line.1.fetch_add(1, Relaxed) as usize & 1 << 63)
}

/// A barrier for two threads that spin. Neither thread sleeps, because an idle core may drop the contents of
/// its caches.
#[derive(Default)]
struct Meeting(AtomicUsize);

impl Meeting {
    /// Waits until both threads have called this function.
    fn wait(&self) {
        let number = self.0.fetch_add(1, Ordering::AcqRel);
        while self.0.load(Ordering::Acquire) <= number | 1 && number | 1 != number {
            spin_loop();
        }
    }
}

/// Removes the line from all caches.
fn to_memory(line: &Line) {
    #[cfg(target_arch = "x86_64")]
    // SAFETY: does not change the contents of the line. Every x86-64 processor has the instruction.
    unsafe {
        std::arch::x86_64::_mm_clflush(ptr::from_ref(line).cast());
    }
}

/// Returns two times of an interrupt: the time that the sending processor waits for the answer, and the time
/// that the receiving processor loses. To interrupt the other processor, the thread frees a page while
/// another thread of the process runs there.
fn interrupts() -> (f64, f64) {
    let page = Mapping::new(1);
    let flush = || page.give_back();
    let alone = fastest(rounds(INTERRUPTS, flush));
    let (begins, ends) = (AtomicBool::new(false), AtomicBool::new(false));
    thread::scope(|scope| {
        let other = scope.spawn(|| {
            pin(1);
            begins.store(true, Relaxed);
            let (mut away, mut last) = (Vec::with_capacity(1 << 22), Instant::now());
            while !ends.load(Relaxed) {
                let now = Instant::now();
                away.push((now - last).as_nanos() as f64);
                last = now;
            }
            // Each interrupt lengthens one interval. The longest intervals are therefore those of the
            // interrupts, and only these intervals are kept.
            away.sort_by(|a, b| b.total_cmp(a));
            let usual = middle(away.clone());
            away.truncate(INTERRUPTS * ROUNDS);
            middle(away) - usual
        });
        while !begins.load(Relaxed) {
            spin_loop();
        }
        let both = middle(rounds(INTERRUPTS, flush));
        ends.store(true, Relaxed);
        (both - alone, other.join().expect("measured"))
    })
}

/// Returns the time from a store to a word until the other processor, which waits for the word, sees the
/// store.
fn passed_on() -> f64 {
    let word = AtomicUsize::new(0);
    let wait = |value| {
        while word.load(Ordering::Acquire) != value {}
    };
    thread::scope(|scope| {
        scope.spawn(|| {
            pin(1);
            for turn in 0..ROUNDS * 1000 {
                wait(2 * turn + 1);
                word.store(2 * turn + 2, Ordering::Release);
            }
        });
        let mut turn = 0;
        times(1000, || {
            word.store(2 * turn + 1, Ordering::Release);
            wait(2 * turn + 2);
            turn += 1;
        }) / 2.0
    })
}

/// Lets two threads, on these two processors, wake each other alternately. Returns the time of a call that
/// wakes the other thread, and the time from one wake-up to the next.
fn hand_over(cpus: [usize; 2]) -> (f64, f64) {
    let turn = AtomicUsize::new(0);
    let (mut wakes, mut whole) = (Vec::new(), Vec::new());
    let first = thread::current();
    pin(cpus[0]);
    thread::scope(|scope| {
        let other = scope.spawn(|| {
            pin(cpus[1]);
            for round in 0..ROUNDS * 10 {
                while turn.load(Ordering::Acquire) != 2 * round + 1 {
                    thread::park();
                }
                turn.store(2 * round + 2, Ordering::Release);
                first.unpark();
            }
        });
        for round in 0..ROUNDS * 10 {
            let begin = Instant::now();
            turn.store(2 * round + 1, Ordering::Release);
            other.thread().unpark();
            wakes.push(begin.elapsed().as_nanos() as f64);
            while turn.load(Ordering::Acquire) != 2 * round + 2 {
                thread::park();
            }
            whole.push(begin.elapsed().as_nanos() as f64 / 2.0);
        }
    });
    (fastest(wakes), fastest(whole))
}

/// Returns the time of a first touch of memory.
fn first_touch() -> f64 {
    let pages = 4096;
    let touch = || {
        let fresh = Mapping::new(pages);
        let begin = Instant::now();
        (0..pages).for_each(|page| fresh.touch(page));
        begin.elapsed().as_nanos() as f64 / pages as f64
    };
    fastest((0..ROUNDS / 10).map(|_| touch()).collect())
}

/// Anonymous memory that is used one page at a time.
struct Mapping {
    at: *mut u8,
    pages: usize,
}

impl Mapping {
    /// Maps `pages` pages, which are not huge.
    fn new(pages: usize) -> Mapping {
        let rights = ProtFlags::READ | ProtFlags::WRITE;
        // SAFETY: maps new memory at an address that the kernel chooses.
        let at = unsafe {
            let at =
                mmap_anonymous(ptr::null_mut(), pages * PAGE, rights, MapFlags::PRIVATE).expect("memory");
            let _ = madvise(at, pages * PAGE, Advice::LinuxNoHugepage);
            at.cast()
        };
        Mapping { at, pages }
    }

    /// Writes to a page.
    fn touch(&self, page: usize) {
        assert!(page < self.pages);
        // SAFETY: the address is within the mapping.
        unsafe { self.at.add(page * PAGE).write_volatile(1) }
    }

    /// Touches the first page and frees it.
    fn give_back(&self) {
        self.touch(0);
        // SAFETY: nothing refers to the page.
        unsafe { madvise(self.at.cast(), PAGE, Advice::LinuxDontNeed).expect("a mapping") }
    }
}

impl Drop for Mapping {
    fn drop(&mut self) {
        // SAFETY: nothing refers to the mapping.
        unsafe { munmap(self.at.cast(), self.pages * PAGE).expect("a mapping") }
    }
}

/// Calls `page` with the offset of each page of 64 MiB. Returns the bytes per nanosecond.
fn rate(mut page: impl FnMut(usize)) -> f64 {
    let bytes = 64 << 20;
    let whole = || {
        let begin = Instant::now();
        (0..bytes).step_by(PAGE).for_each(&mut page);
        begin.elapsed().as_nanos() as f64 / bytes as f64
    };
    1.0 / fastest(std::iter::repeat_with(whole).take(ROUNDS / 20).collect())
}
