//! The kernel's options, from its command line.

use core::sync::atomic::{AtomicBool, AtomicU64, Ordering::Relaxed};

/// Says what it does on the console. Written once, at the start.
static VERBOSE: AtomicBool = AtomicBool::new(false);

pub fn is_verbose() -> bool {
    VERBOSE.load(Relaxed)
}

/// Says every system call. Written once, as above.
static TRACE: AtomicBool = AtomicBool::new(false);

pub fn is_tracing() -> bool {
    TRACE.load(Relaxed)
}

/// Writes a recording. Written once, as above.
static RECORDS: AtomicBool = AtomicBool::new(false);

pub fn records() -> bool {
    RECORDS.load(Relaxed)
}

/// One of the options that look at every call. Written once, as above.
static WATCHES: AtomicBool = AtomicBool::new(false);

#[inline(always)]
pub fn watches_calls() -> bool {
    WATCHES.load(Relaxed)
}

/// Measures how long interrupts are off. Written once, as above.
static STRETCHES: AtomicBool = AtomicBool::new(false);

#[inline(always)]
pub fn measures_irq_off() -> bool {
    STRETCHES.load(Relaxed)
}

/// Gives way wherever a call may. Written once, as above, before there are other processors.
static GIVES_WAY: AtomicBool = AtomicBool::new(false);

pub fn gives_way() -> bool {
    GIVES_WAY.load(Relaxed)
}

/// Overflows the first thread's kernel stack, to see what happens. Written once, as above.
static CRASH_STACK: AtomicBool = AtomicBool::new(false);

/// Ends the machine by an overflow of a kernel stack, if an option says so.
pub fn crash_if_asked() {
    if CRASH_STACK.load(Relaxed) {
        crash::stack(0);
    }
}

/// Huge pages that the pool has at the start. Written once, as above.
static HUGE_PAGES: AtomicU64 = AtomicU64::new(0);

pub fn huge_pages() -> u64 {
    HUGE_PAGES.load(Relaxed)
}

/// Ways to end badly.
mod crash {
    /// Touches what is not there.
    #[inline(never)]
    pub fn page() {
        // SAFETY: none: it is to fail.
        unsafe { (0xffff_9000_dead_0000 as *const u8).read_volatile() };
    }

    /// Needs more and more stack.
    pub fn stack(depth: u64) -> u64 {
        let room = core::hint::black_box([depth; 64]);
        if room[63] == u64::MAX { 0 } else { stack(depth + 1) + room[0] }
    }
}

/// The first random number of `jitter`; 0: it does not stall. Written once, as above.
static JITTER: AtomicU64 = AtomicU64::new(0);

pub fn jitter() -> u64 {
    JITTER.load(Relaxed)
}

/// Input comes from keys. Written once, as above.
static TERMINAL: AtomicBool = AtomicBool::new(false);

pub fn is_terminal() -> bool {
    TERMINAL.load(Relaxed)
}

/// Takes the options of a command line over; reports those that there are not.
pub fn init(line: &str, report_unknown: impl Fn(&str)) {
    for option in line.split_ascii_whitespace() {
        match option {
            "trace" => TRACE.store(true, Relaxed),
            "record" => RECORDS.store(true, Relaxed),
            "giveway" => GIVES_WAY.store(true, Relaxed),
            "irqoff" => STRETCHES.store(true, Relaxed),
            "crash=panic" => panic!("as asked for"),
            "crash=page" => crash::page(),
            "crash=stack" => CRASH_STACK.store(true, Relaxed),
            "console=terminal" => TERMINAL.store(true, Relaxed),
            "console=pipe" | "log=0" | "log=1" => {}
            "log=2" | "verbose" => VERBOSE.store(true, Relaxed),
            _ => match option.split_once('=').map(|(name, value)| (name, value.parse().unwrap_or(0))) {
                Some(("jitter", seed)) => JITTER.store(seed, Relaxed),
                Some(("hugepages", pages)) => HUGE_PAGES.store(pages, Relaxed),
                _ => report_unknown(option),
            },
        }
    }
    let crashes = CRASH_STACK.load(Relaxed);
    WATCHES.store(is_tracing() || measures_irq_off() || records() || crashes, Relaxed);
}

/// From now on calls are looked at: a tracer wants its tracee to stop there.
pub fn watch_calls() {
    WATCHES.store(true, Relaxed);
}
