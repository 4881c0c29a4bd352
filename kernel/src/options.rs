//! The kernel's options, from its command line. `README.md` has the table of options.
//!
//! Each option has a static, a function that returns its value, and an arm in [`init`]. A new option needs
//! these three and a line in the table. `start.rs` calls [`init`] before the other CPUs start, so all statics
//! are read without a lock. An option that observes traps or system calls also belongs in [`watches`].
//!
//! The tests `end-panic`, `end-page-fault` and `end-stack-overflow` use the options `crash`.

use core::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering::Relaxed};

/// Logs what the kernel does. Options `verbose` and `log=2`.
static VERBOSE: AtomicBool = AtomicBool::new(false);

pub fn is_verbose() -> bool {
    VERBOSE.load(Relaxed)
}

/// Logs every system call. Option `trace`.
static TRACE: AtomicBool = AtomicBool::new(false);

pub fn is_tracing() -> bool {
    TRACE.load(Relaxed)
}

/// Writes a recording. Option `record`.
static RECORDS: AtomicBool = AtomicBool::new(false);

pub fn records() -> bool {
    RECORDS.load(Relaxed)
}

/// Returns true if an option observes traps and system calls.
pub fn watches() -> bool {
    is_tracing() || measures_irq_off() || records() || CRASH_STACK.load(Relaxed)
}

/// Measures how long interrupts are off. Option `irqoff`.
static STRETCHES: AtomicBool = AtomicBool::new(false);

#[inline(always)]
pub fn measures_irq_off() -> bool {
    STRETCHES.load(Relaxed)
}

/// Yields at every preemption point. Option `giveway`.
static GIVES_WAY: AtomicBool = AtomicBool::new(false);

pub fn gives_way() -> bool {
    GIVES_WAY.load(Relaxed)
}

/// Overflows the first thread's kernel stack, for a test. Option `crash=stack`.
static CRASH_STACK: AtomicBool = AtomicBool::new(false);

/// Overflows a kernel stack, if `crash=stack` is set.
pub fn crash_if_asked() {
    if CRASH_STACK.load(Relaxed) {
        crash::stack(0);
    }
}

/// Number of huge pages in the pool at the start. Option `hugepages`.
static HUGE_PAGES: AtomicU64 = AtomicU64::new(0);

pub fn huge_pages() -> u64 {
    HUGE_PAGES.load(Relaxed)
}

/// Number of memory nodes. Option `nodes`.
static NODES: AtomicUsize = AtomicUsize::new(1);

pub fn nodes() -> usize {
    NODES.load(Relaxed)
}

/// Size of the swap device in MiB; 0 if there is none. Option `swap`.
static SWAP_MIB: AtomicU64 = AtomicU64::new(0);

pub fn swap_mib() -> u64 {
    SWAP_MIB.load(Relaxed)
}

/// Reclaims memory by generations, and ages address spaces that ran. Option `generations`.
static GENERATIONS: AtomicBool = AtomicBool::new(false);

#[inline(always)]
pub fn has_generations() -> bool {
    GENERATIONS.load(Relaxed)
}

/// Deliberate crashes.
mod crash {
    /// Reads an address where nothing is mapped.
    #[inline(never)]
    pub fn page() {
        // SAFETY: none. The access must fault.
        unsafe { (0xffff_9000_dead_0000 as *const u8).read_volatile() };
    }

    /// Recurses until the stack overflows.
    pub fn stack(depth: u64) -> u64 {
        let room = core::hint::black_box([depth; 64]);
        if room[63] == u64::MAX { 0 } else { stack(depth + 1) + room[0] }
    }
}

/// The seed of `jitter`; 0 if there are no delays.
static JITTER: AtomicU64 = AtomicU64::new(0);

pub fn jitter() -> u64 {
    JITTER.load(Relaxed)
}

/// The seed of the random bytes; 0 if their key is unpredictable. Option `seed`.
static SEED: AtomicU64 = AtomicU64::new(0);

pub fn seed() -> u64 {
    SEED.load(Relaxed)
}

/// Standard input is a terminal. Option `console=terminal`.
static TERMINAL: AtomicBool = AtomicBool::new(false);

pub fn is_terminal() -> bool {
    TERMINAL.load(Relaxed)
}

/// Applies the options of a command line. Calls `report_unknown` with each unknown option.
pub fn init(line: &str, report_unknown: impl Fn(&str)) {
    for option in line.split_ascii_whitespace() {
        match option {
            "trace" => TRACE.store(true, Relaxed),
            "record" => RECORDS.store(true, Relaxed),
            "giveway" => GIVES_WAY.store(true, Relaxed),
            "generations" => GENERATIONS.store(true, Relaxed),
            "irqoff" => STRETCHES.store(true, Relaxed),
            "crash=panic" => panic!("as asked for"),
            "crash=page" => crash::page(),
            "crash=stack" => CRASH_STACK.store(true, Relaxed),
            "console=terminal" => TERMINAL.store(true, Relaxed),
            "console=pipe" | "log=0" | "log=1" => {}
            "log=2" | "verbose" => VERBOSE.store(true, Relaxed),
            _ => match option.split_once('=').map(|(name, value)| (name, value.parse().unwrap_or(0))) {
                Some(("jitter", seed)) => JITTER.store(seed, Relaxed),
                Some(("seed", seed)) => SEED.store(seed, Relaxed),
                Some(("hugepages", pages)) => HUGE_PAGES.store(pages, Relaxed),
                Some(("swap", mib)) => SWAP_MIB.store(mib.min(1 << 20), Relaxed),
                Some(("nodes", nodes)) => NODES.store(nodes as usize, Relaxed),
                _ => report_unknown(option),
            },
        }
    }
}
