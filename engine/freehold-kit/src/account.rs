//! Counts of charged pages with a limit, for `Platform::charge` and `uncharge`.
//!
//! An [`Account`] belongs to what a kernel limits: a space, a group of tasks, or a file system. Each CPU
//! has a *stock* of pages that were taken from the limit in advance, so most charges change a cache line of
//! their own CPU only. At most one charge in [`BATCH`] changes the line that all CPUs share, and so does at
//! most one uncharged page in [`BATCH`].
//!
//! ```text
//! charged + all stocks + pages in transit = taken <= limit
//!
//! charge     1. takes the pages from the CPU's stock
//!            2. or takes them from the limit, with a batch for the stock if there is room
//!            3. or empties all stocks into the limit, and begins again at 2
//! uncharge   adds the pages to the CPU's stock, and returns what exceeds two batches to the limit
//! ```
//!
//! Every change is one atomic step on one word, so no page is counted twice, and no charge makes `taken`
//! exceed the limit. Step 3 finds the pages in the stocks of other CPUs, and the charge is refused if it
//! finds none. Pages in transit are in no stock: while another CPU is in step 3, a charge may be refused
//! although these pages would suffice. Under pressure, step 3 costs an access to each CPU's stock. All
//! orders are relaxed, because the counts publish no other memory. The calling task may move to another CPU
//! at any time: the CPU's number only chooses a stock.
//!
//! A platform keeps the account of each charged frame by its number, because the engine names the owner
//! only in
//! `charge`. `tests/loom_kit/account.rs` tests this file, and the mutations `kit-account-*` name its tests.

use freehold_sync::atomic::{AtomicU64, CHECKED, Ordering::Relaxed, const_unless_loom};

/// Number of pages that a CPU takes from the limit in advance. Taking a batch transfers the shared line
/// twice: for the load and for the exchange.
pub const BATCH: u64 = if CHECKED { 1 } else { 256 };

/// The stock of a CPU: pages that are taken from the limit and not charged.
#[derive(Debug)]
#[repr(align(64))]
pub struct Stock(AtomicU64);

impl Stock {
    const_unless_loom! {
        /// Creates an empty stock.
        pub fn new() -> Self {
            Stock(AtomicU64::new(0))
        }
    }

    /// Takes pages, if there are enough.
    #[inline]
    fn take(&self, pages: u64) -> bool {
        self.0.fetch_update(Relaxed, Relaxed, |stock| stock.checked_sub(pages)).is_ok()
    }

    /// Takes what exceeds a batch, if there are more than two batches. Returns the number of pages.
    fn take_surplus(&self) -> u64 {
        let surplus = |stock| if stock > 2 * BATCH { Some(BATCH) } else { None };
        self.0.fetch_update(Relaxed, Relaxed, surplus).map_or(0, |stock| stock - BATCH)
    }
}

impl Default for Stock {
    fn default() -> Self {
        Self::new()
    }
}

/// The number of charged pages of an owner, and its limit; see the [module](self).
///
/// # Examples
///
/// ```
/// use freehold_kit::account::{Account, Stock};
/// static GROUP: Account<2> = Account::new(1000, [Stock::new(), Stock::new()]);
///
/// assert!(GROUP.charge(0, 999));
/// assert!(!GROUP.charge(1, 2));
/// GROUP.uncharge(0, 1);
/// // The page is in the stock of CPU 0, where CPU 1 finds it.
/// assert!(GROUP.charge(1, 2));
/// assert_eq!(GROUP.pages(), 1000);
/// ```
#[derive(Debug)]
pub struct Account<const CPUS: usize> {
    /// Maximum value of `taken`.
    limit: AtomicU64,
    /// Pages that are charged or in a stock.
    taken: AtomicU64,
    stocks: [Stock; CPUS],
}

impl<const CPUS: usize> Account<CPUS> {
    const_unless_loom! {
        /// Creates an account without pages. `stocks` are those of the CPUs.
        pub fn new(limit: u64, stocks: [Stock; CPUS]) -> Self {
            Account { limit: AtomicU64::new(limit), taken: AtomicU64::new(0), stocks }
        }
    }

    /// Charges pages on a CPU. Returns false, and charges nothing, if the limit does not allow the pages.
    ///
    /// # Panics
    ///
    /// Panics if there is no such CPU.
    #[inline]
    pub fn charge(&self, cpu: usize, pages: u64) -> bool {
        self.stocks[cpu].take(pages) || self.charge_from_limit(cpu, pages)
    }

    #[cold]
    fn charge_from_limit(&self, cpu: usize, pages: u64) -> bool {
        // The number of rounds is bounded, because other CPUs may fill their stocks again and again.
        for _ in 0..=CPUS {
            if self.take(pages.saturating_add(BATCH)) {
                self.stocks[cpu].0.fetch_add(BATCH, Relaxed);
                return true;
            }
            if self.take(pages) {
                return true;
            }
            if !self.empty_stocks() {
                break;
            }
        }
        false
    }

    /// Takes pages from the limit.
    fn take(&self, pages: u64) -> bool {
        let limit = self.limit.load(Relaxed);
        let sum = |taken: u64| taken.checked_add(pages).filter(|sum| *sum <= limit);
        self.taken.fetch_update(Relaxed, Relaxed, sum).is_ok()
    }

    /// Returns the pages of all stocks to the limit. Returns true if there were any.
    fn empty_stocks(&self) -> bool {
        let found: u64 = self.stocks.iter().map(|stock| stock.0.swap(0, Relaxed)).sum();
        self.taken.fetch_sub(found, Relaxed);
        found > 0
    }

    /// Ends the charge of pages, on any CPU.
    ///
    /// # Panics
    ///
    /// Panics if there is no such CPU.
    #[inline]
    pub fn uncharge(&self, cpu: usize, pages: u64) {
        let stock = &self.stocks[cpu];
        if stock.0.fetch_add(pages, Relaxed) + pages > 2 * BATCH {
            self.taken.fetch_sub(stock.take_surplus(), Relaxed);
        }
    }

    /// Returns the number of charged pages. The number is exact if no CPU charges or uncharges pages at the
    /// same time.
    pub fn pages(&self) -> u64 {
        let stocks: u64 = self.stocks.iter().map(|stock| stock.0.load(Relaxed)).sum();
        self.taken.load(Relaxed).saturating_sub(stocks)
    }

    /// Returns the limit.
    pub fn limit(&self) -> u64 {
        self.limit.load(Relaxed)
    }

    /// Sets the limit. If more pages are charged, they stay charged, and the account refuses further pages
    /// until enough charges have ended. Charges that have begun before may still use the old limit.
    pub fn set_limit(&self, limit: u64) {
        self.limit.store(limit, Relaxed);
        // Pages in stocks were taken under the old limit.
        self.empty_stocks();
    }
}
