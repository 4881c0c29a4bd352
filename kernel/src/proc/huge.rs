//! The settings of huge pages in /sys/kernel/mm/transparent_hugepage.
//!
//! | files | setting |
//! | --- | --- |
//! | `enabled`, `hugepages-*kB/enabled` | where anonymous memory gets huge pages, and blocks of other sizes |
//! | `shmem_enabled`, `hugepages-*kB/shmem_enabled` | the same for shared memory |
//! | the numbers of [`KEPT`], `defrag` | kept, without an effect: no task collapses pages in the background |
//!
//! `sys.rs` calls [`insert_all`] at boot. The engine has the settings of shared memory as they are written.
//! For anonymous memory it has the result of [`Anonymous`]. The program `huge.c` of the tests checks the
//! files.

use crate::arch::lock::SpinLock;
use crate::files::tree::Node;
use crate::platform::engine;
use crate::proc::settings::{insert, number_file};
use crate::proc::text::{setting, text};
use alloc::format;
use alloc::string::String;
use alloc::sync::Arc;
use core::sync::atomic::{AtomicU64, AtomicUsize, Ordering::Relaxed};
use freehold::engine::{Blocks, HugePages, SharedBlocks, SharedHuge};
use freehold::error::Errno;

/// The folder of the files, from /sys.
const FOLDER: &str = "kernel/mm/transparent_hugepage";

/// Size of a huge page.
const HUGE: u64 = 2 << 20;

/// The policies of anonymous memory, in the order of Linux's list.
const POLICIES: [(&str, HugePages); 3] =
    [("always", HugePages::Always), ("madvise", HugePages::Madvise), ("never", HugePages::Never)];

/// The policies of one size of anonymous memory. `None` inherits the policy of `enabled`.
const SIZE_POLICIES: [(&str, Option<HugePages>); 4] = [
    ("always", Some(HugePages::Always)),
    ("inherit", None),
    ("madvise", Some(HugePages::Madvise)),
    ("never", Some(HugePages::Never)),
];

/// The policies of shared memory.
const SHARED_POLICIES: [(&str, SharedHuge); 6] = [
    ("always", SharedHuge::Always),
    ("within_size", SharedHuge::WithinSize),
    ("advise", SharedHuge::Advise),
    ("never", SharedHuge::Never),
    ("deny", SharedHuge::Deny),
    ("force", SharedHuge::Force),
];

/// A function that selects the set of sizes with a policy.
type Sizes = fn(&mut SharedBlocks) -> &mut u64;

/// The policies of one size of shared memory, with their sets. A size with the policy `never` is in no set.
const SHARED_SIZE_POLICIES: [(&str, Option<Sizes>); 5] = [
    ("always", Some(|blocks| &mut blocks.always)),
    ("inherit", Some(|blocks| &mut blocks.inherit)),
    ("within_size", Some(|blocks| &mut blocks.within_size)),
    ("advise", Some(|blocks| &mut blocks.advised)),
    ("never", None),
];

/// Words of `defrag`.
const DEFRAG: [(&str, usize); 5] =
    [("always", 0), ("defer", 1), ("defer+madvise", 2), ("madvise", 3), ("never", 4)];
static DEFRAG_NOW: AtomicUsize = AtomicUsize::new(3);

/// Numbers that are kept, with their values at boot.
static KEPT: [(&str, AtomicU64); 8] = [
    ("use_zero_page", AtomicU64::new(0)),
    ("khugepaged/defrag", AtomicU64::new(1)),
    ("khugepaged/alloc_sleep_millisecs", AtomicU64::new(60_000)),
    ("khugepaged/scan_sleep_millisecs", AtomicU64::new(10_000)),
    ("khugepaged/max_ptes_none", AtomicU64::new(511)),
    ("khugepaged/max_ptes_swap", AtomicU64::new(64)),
    ("khugepaged/max_ptes_shared", AtomicU64::new(256)),
    ("khugepaged/pages_to_scan", AtomicU64::new(4096)),
];

/// The written settings of anonymous memory.
struct Anonymous {
    /// The policy of `enabled`.
    all: HugePages,
    /// The policies of the sizes from 4 KiB upward, each twice the one before.
    sizes: [Option<HugePages>; 10],
}

static ANONYMOUS: SpinLock<Anonymous> = SpinLock::new(Anonymous {
    all: HugePages::Madvise,
    sizes: {
        let mut sizes = [Some(HugePages::Never); 10];
        sizes[index(HUGE)] = None;
        sizes
    },
});

/// Returns the index of a size in `Anonymous::sizes`.
const fn index(size: u64) -> usize {
    (size / freehold::PAGE_SIZE).ilog2() as usize
}

impl Anonymous {
    /// Passes the settings to the engine.
    fn apply(&self) {
        let policy = |size| self.sizes[index(size)].unwrap_or(self.all);
        let sum = |wanted| sizes(Blocks::SIZES).filter(|size| policy(*size) == wanted).sum();
        let mut blocks = Blocks::new();
        (blocks.always, blocks.advised) = (sum(HugePages::Always), sum(HugePages::Madvise));
        engine().set_blocks(blocks);
        engine().set_huge_pages(policy(HUGE));
    }

    /// Changes a setting and passes all to the engine.
    fn change(change: impl FnOnce(&mut Self)) {
        let mut settings = ANONYMOUS.lock();
        change(&mut settings);
        settings.apply();
    }
}

/// Returns the sizes in a sum of powers of two.
fn sizes(sum: u64) -> impl Iterator<Item = u64> {
    (0..u64::BITS).map(|n| 1 << n).filter(move |size| sum & size != 0)
}

/// Returns the word for the use of huge pages by anonymous memory.
pub fn mode() -> &'static str {
    let now = engine().huge_pages();
    POLICIES.iter().find(|(_, policy)| *policy == now).map_or("never", |(word, _)| word)
}

/// Makes a file whose text lists the words and marks the selected one. A program selects a word by writing
/// it.
fn choice<T: Copy + Send + Sync + 'static, const N: usize>(
    words: [(&'static str, T); N],
    is_selected: impl Fn(&(&str, T)) -> bool + Send + Sync + 'static,
    select: impl Fn(T) + Send + Sync + 'static,
) -> Arc<Node> {
    setting(
        move || {
            let words = words.map(|word| match is_selected(&word) {
                true => format!("[{}]", word.0),
                false => String::from(word.0),
            });
            Ok(format!("{}\n", words.join(" ")).into_bytes())
        },
        move |text| {
            let text = text.trim_ascii();
            let (_, value) = words.iter().find(|(word, _)| word.as_bytes() == text).ok_or(Errno::EINVAL)?;
            select(*value);
            Ok(())
        },
    )
}

/// Makes the file `shmem_enabled` of a size.
fn shared_size(size: u64) -> Arc<Node> {
    choice(
        SHARED_SIZE_POLICIES,
        move |(_, set)| {
            let mut blocks = engine().shared_blocks();
            match set {
                Some(set) => *set(&mut blocks) & size != 0,
                None => SHARED_SIZE_POLICIES
                    .iter()
                    .all(|(_, set)| set.is_none_or(|set| *set(&mut blocks) & size == 0)),
            }
        },
        move |selected| {
            let mut blocks = engine().shared_blocks();
            SHARED_SIZE_POLICIES
                .iter()
                .filter_map(|(_, set)| *set)
                .for_each(|set| *set(&mut blocks) &= !size);
            if let Some(set) = selected {
                *set(&mut blocks) |= size;
            }
            engine().set_shared_blocks(blocks);
        },
    )
}

/// Makes all files. Huge pages of shared memory inherit the policy of `shmem_enabled`, as on Linux.
pub fn insert_all(root: &Arc<Node>) {
    let mut blocks = engine().shared_blocks();
    blocks.inherit |= HUGE;
    engine().set_shared_blocks(blocks);
    let put = |name: &str, node| insert(root, &format!("{FOLDER}/{name}"), node);
    put("hpage_pmd_size", text(|| Ok(format!("{HUGE}\n").into_bytes())));
    put(
        "enabled",
        choice(
            POLICIES,
            |(_, policy)| ANONYMOUS.lock().all == *policy,
            |policy| Anonymous::change(|settings| settings.all = policy),
        ),
    );
    put(
        "shmem_enabled",
        choice(
            SHARED_POLICIES,
            |(_, policy)| engine().shared_blocks().all == *policy,
            |policy| {
                let mut blocks = engine().shared_blocks();
                blocks.all = policy;
                engine().set_shared_blocks(blocks);
            },
        ),
    );
    let is_selected = |(_, number): &(&str, usize)| DEFRAG_NOW.load(Relaxed) == *number;
    put("defrag", choice(DEFRAG, is_selected, |number| DEFRAG_NOW.store(number, Relaxed)));
    for (name, kept) in &KEPT {
        put(name, number_file(|| kept.load(Relaxed) as i64, Some(|number| kept.store(number, Relaxed))));
    }
    for size in sizes(Blocks::SIZES | HUGE) {
        let file = choice(
            SIZE_POLICIES,
            move |(_, policy)| ANONYMOUS.lock().sizes[index(size)] == *policy,
            move |policy| Anonymous::change(|settings| settings.sizes[index(size)] = policy),
        );
        put(&format!("hugepages-{}kB/enabled", size >> 10), file);
    }
    for size in sizes(SharedBlocks::SIZES) {
        put(&format!("hugepages-{}kB/shmem_enabled", size >> 10), shared_size(size));
    }
}
