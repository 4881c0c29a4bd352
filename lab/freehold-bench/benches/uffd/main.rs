//! userfaultfd: the cost of a pager's calls, per page, compared with the same calls of the host kernel in the
//! same run.
//!
//! `cargo bench --bench uffd`. Both sides implement [`Side`]: `engine.rs` with the engine, `host.rs` with
//! system calls. The engine runs on a machine whose memory has contents, so COPY really copies. No call of
//! the engine enters a kernel, so only the host's figures include system calls. Each figure is the median of
//! several rounds; rounds of both sides alternate. A new call is a variant of [`Call`] that both sides must
//! perform. `docs/performance.md` has the recorded table.

mod engine;
mod host;

use std::sync::atomic::{AtomicBool, Ordering::Relaxed};
use std::time::{Duration, Instant};

/// Bytes of a page.
const PAGE: u64 = 4096;
/// Number of pages that a thread fills in a round.
const PAGES: u64 = 512;
/// Number of rounds for each figure.
const ROUNDS: usize = 15;
/// Number of threads that fault.
const FAULTING: u64 = 16;
/// Number of pages on which each of the [`FAULTING`] threads faults.
const FAULTS: u64 = 128;

/// The measured call.
#[derive(Clone, Copy, Debug, PartialEq)]
enum Call {
    Copy,
    ZeroPage,
    Move,
}

/// A pager and its memory. Each thread has an empty registered area of [`PAGES`], and a full area to move
/// pages from.
trait Side: Sync {
    /// The name in reports.
    const NAME: &'static str;
    /// Makes a call for `pages` pages of a thread's area, from page `first` on.
    fn call(&self, call: Call, thread: u64, first: u64, pages: u64);
    /// Empties the thread's registered area, and fills the area from which the thread moves pages.
    fn reset(&self, call: Call, thread: u64);
    /// Maps a page elsewhere, and unmaps it.
    fn map_unmap(&self);
    /// Makes [`FAULTING`] threads fault [`FAULTS`] pages each. One pager serves the faults with COPY.
    fn faults(&self) -> Duration;
}

fn main() {
    let engine = engine::Engine::new();
    let host = host::Host::new();
    if let Err(why) = &host {
        println!("cannot use userfaultfd on the host: {why}\n");
    }
    let host = host.ok();
    println!(
        "nanoseconds per page; other: another thread maps and unmaps a page in the same address space\n"
    );
    println!(
        "{:<9} {:>8} {:>7} {:>7} {:>10} {:>10} {:>7}",
        "call", "pages", "threads", "other", "freehold", "host", "ratio"
    );
    for call in [Call::Copy, Call::ZeroPage, Call::Move] {
        for pages in [1, PAGES] {
            for (threads, beside) in [(1, false), (1, true), (2, false), (2, true)] {
                let (mut ours, mut theirs) = (Vec::new(), Vec::new());
                for _ in 0..ROUNDS {
                    ours.push(round(&engine, call, pages, threads, beside));
                    theirs.extend(host.as_ref().map(|host| round(host, call, pages, threads, beside)));
                }
                report(&format!("{call:?}"), pages, threads, beside, ours, theirs);
            }
        }
    }
    let (mut ours, mut theirs) = (Vec::new(), Vec::new());
    let each = |time: Duration| time.as_nanos() as f64 / (FAULTING * FAULTS) as f64;
    for _ in 0..5 {
        ours.push(each(engine.faults()));
        theirs.extend(host.as_ref().map(|host| each(host.faults())));
    }
    println!(
        "\nfaults of {FAULTING} threads, one pager, nanoseconds each: {} {:.0}",
        engine::Engine::NAME,
        median(ours)
    );
    if !theirs.is_empty() {
        println!("{:>62} {:.0}", host::Host::NAME, median(theirs));
    }
}

/// Returns the median.
fn median(mut figures: Vec<f64>) -> f64 {
    figures.sort_by(f64::total_cmp);
    figures[figures.len() / 2]
}

/// Prints a row. `theirs` is empty if the host has no userfaultfd.
fn report(call: &str, pages: u64, threads: u64, beside: bool, ours: Vec<f64>, theirs: Vec<f64>) {
    let ours = median(ours);
    let (host, ratio) = match theirs.is_empty() {
        true => ("-".to_owned(), "-".to_owned()),
        false => {
            let theirs = median(theirs);
            (format!("{theirs:.0}"), format!("{:.2}", ours / theirs))
        }
    };
    println!("{call:<9} {pages:>8} {threads:>7} {beside:>7} {ours:>10.0} {host:>10} {ratio:>7}");
}

/// Lets `threads` threads fill their areas, with `pages` pages per call. Returns the mean time of a page for
/// one thread, in nanoseconds. If `beside` is true, another thread maps and unmaps a page during the calls.
fn round<S: Side>(side: &S, call: Call, pages: u64, threads: u64, beside: bool) -> f64 {
    (0..threads).for_each(|thread| side.reset(call, thread));
    let (stop, started) = (AtomicBool::new(false), AtomicBool::new(!beside));
    std::thread::scope(|scope| {
        if beside {
            scope.spawn(|| {
                while !stop.load(Relaxed) {
                    side.map_unmap();
                    started.store(true, Relaxed);
                }
            });
        }
        while !started.load(Relaxed) {
            std::thread::yield_now();
        }
        let fillers: Vec<_> = (0..threads)
            .map(|thread| {
                scope.spawn(move || {
                    let began = Instant::now();
                    for first in (0..PAGES).step_by(pages as usize) {
                        side.call(call, thread, first, pages);
                    }
                    began.elapsed()
                })
            })
            .collect();
        let total: Duration = fillers.into_iter().map(|filler| filler.join().expect("no call fails")).sum();
        stop.store(true, Relaxed);
        total.as_nanos() as f64 / (threads * PAGES) as f64
    })
}
