//! /proc/sys: settings that programs read and write.
//!
//! | setting | to add one |
//! | --- | --- |
//! | a constant text | a line of [`TEXTS`] |
//! | a number that another module owns, such as the engine | a line of [`ASKED`]; a number above `i64::MAX` or below 0 also needs a case in [`root`] |
//! | a number that the kernel only stores | a line of `process::settings::KEPT` |
//! | the run of the conformance suite | `conformance.rs` |
//! | another text | code in [`root`], such as that of kernel/core_pattern |
//!
//! `proc::root` calls [`root`] once at boot; [`insert`] panics if a path occurs twice. A text is made when it
//! is read. A written text is parsed before anything changes, and a number outside of its limits fails with
//! EINVAL. Numbers need no lock: they are atomic, or the engine guards them. A change of a stored number also
//! renews the engine's limit on committed memory ([`commit`]).
//!
//! `sys.rs` uses the functions here for /sys. `corners.c`, `cores.c` and `names.c` (`kernel/tests/programs`)
//! write settings and check their effects.

use crate::files::tree::Node;
use crate::memory;
use crate::platform::engine;
use crate::proc::conformance;
use crate::proc::text::{number, setting, text};
use crate::process::settings::{CORE_PATTERN, KEPT, SHM, kept};
use alloc::format;
use alloc::string::String;
use alloc::sync::Arc;
use core::sync::atomic::{AtomicU64, Ordering::Relaxed};
use freehold::engine::Overcommit;
use freehold::error::Errno;
use freehold::hugetlb::HugePageSize::{self, Mib2};
use freehold::{PAGE_SIZE, PageCount};

/// Texts that do not change. A write succeeds and has no effect.
const TEXTS: &[(&str, &str)] = &[
    ("kernel/osrelease", "6.12.0\n"),
    ("kernel/ostype", "Linux\n"),
    ("kernel/hostname", "freehold\n"),
    ("kernel/sem", "32000\t1024000000\t500\t32000\n"),
    ("kernel/version", "#1 SMP Freehold\n"),
    ("kernel/random/boot_id", "46726565-686f-4c64-8000-000000000001\n"),
];

/// A path, a function that returns the number, and a function that sets the number, if programs may set it.
type Asked = (&'static str, fn() -> i64, Option<fn(u64)>);

/// Numbers that another module owns.
const ASKED: &[Asked] = &[
    ("kernel/shmmax", || SHM.most_bytes.load(Relaxed) as i64, Some(|n| SHM.most_bytes.store(n, Relaxed))),
    (
        "kernel/shmmni",
        || SHM.most_segments.load(Relaxed) as i64,
        Some(|n| SHM.most_segments.store(n, Relaxed)),
    ),
    ("kernel/shmall", || SHM.most_pages.load(Relaxed) as i64, Some(|n| SHM.most_pages.store(n, Relaxed))),
    ("kernel/shm_next_id", || SHM.next_id.load(Relaxed) as i64, Some(|n| SHM.next_id.store(n, Relaxed))),
    ("vm/nr_hugepages", || huge_pages(Mib2), Some(|n| set_huge_pages(Mib2, n))),
    ("vm/nr_hugepages_mempolicy", || huge_pages(Mib2), Some(|n| set_huge_pages(Mib2, n))),
    ("vm/nr_overcommit_hugepages", || overcommit(Mib2), Some(|n| set_overcommit(Mib2, n))),
    ("vm/max_map_count", || engine().max_map_count() as i64, Some(|n| engine().set_max_map_count(n))),
    ("vm/mmap_min_addr", || engine().config().mmap_min_addr as i64, None),
];

/// The limits on overcommitted huge pages, as programs set them, in the order of `HugePageSize::ALL`.
static OVERCOMMIT: [AtomicU64; HugePageSize::ALL.len()] =
    [const { AtomicU64::new(0) }; HugePageSize::ALL.len()];

/// Returns the number of huge pages in the pool of this size.
pub fn huge_pages(size: HugePageSize) -> i64 {
    engine().huge_pool(size).counts(None).total as i64
}

/// Resizes the pool of this size to `pages` pages, as far as memory allows.
pub fn set_huge_pages(size: HugePageSize, pages: u64) {
    engine().resize_huge_pool(size, pages, None);
}

/// Returns the limit on overcommitted huge pages of this size.
pub fn overcommit(size: HugePageSize) -> i64 {
    OVERCOMMIT[size as usize].load(Relaxed) as i64
}

/// Sets the limit on overcommitted huge pages of this size.
pub fn set_overcommit(size: HugePageSize, pages: u64) {
    OVERCOMMIT[size as usize].store(pages, Relaxed);
    engine().huge_pool(size).set_overcommit(pages);
}

/// Returns the limit on committed memory for vm.overcommit_memory = 2, in pages.
pub fn commit_limit() -> u64 {
    match kept("vm/overcommit_kbytes") {
        0 => memory::total_bytes() / PAGE_SIZE * kept("vm/overcommit_ratio") / 100,
        kib => kib / 4,
    }
}

/// Sets the engine's limit on committed memory, from the settings vm.overcommit_memory, vm.overcommit_ratio
/// and vm.overcommit_kbytes.
pub fn commit() {
    engine().set_overcommit(match kept("vm/overcommit_memory") {
        0 => Overcommit::Heuristic(PageCount::new(memory::total_bytes() / PAGE_SIZE)),
        1 => Overcommit::Always,
        _ => Overcommit::Never(PageCount::new(commit_limit())),
    });
}

/// Adds a node at a path below a folder. Makes the folders on the path as needed.
pub fn insert(root: &Arc<Node>, path: &str, node: Arc<Node>) {
    let (mut here, mut path) = (root.clone(), path);
    while let Some((folder, rest)) = path.split_once('/') {
        let name = folder.as_bytes();
        let next = here.child(name).unwrap_or_else(|_| {
            let folder = Node::directory(0o555);
            here.insert(name, folder.clone()).expect("a name that is free");
            folder
        });
        (here, path) = (next, rest);
    }
    here.insert(path.as_bytes(), node).expect("names that differ");
}

/// Makes a file with a nonnegative number, which `set` may change.
pub fn number_file(
    get: impl Fn() -> i64 + Send + Sync + 'static,
    set: Option<impl Fn(u64) + Send + Sync + 'static>,
) -> Arc<Node> {
    let make = move || Ok(format!("{}\n", get()).into_bytes());
    match set {
        None => text(make),
        Some(set) => setting(make, move |text| {
            set(u64::try_from(number(text)?).map_err(|_| Errno::EINVAL)?);
            Ok(())
        }),
    }
}

/// Makes the folder /proc/sys.
pub fn root() -> Arc<Node> {
    let root = Node::directory(0o555);
    for kept in KEPT {
        let (value, most) = (kept.value, kept.most);
        let node = setting(
            move || Ok(format!("{}\n", value.load(Relaxed)).into_bytes()),
            move |text| {
                let number = number(text)?;
                if !(0..=most).contains(&number) {
                    return Err(Errno::EINVAL);
                }
                value.store(number as u64, Relaxed);
                commit();
                Ok(())
            },
        );
        insert(&root, kept.path, node);
    }
    for (path, contents) in TEXTS {
        insert(&root, path, setting(|| Ok(String::from(*contents).into_bytes()), |_| Ok(())));
    }
    *CORE_PATTERN.lock() = "core".into();
    let pattern = setting(
        || Ok(format!("{}\n", *CORE_PATTERN.lock()).into_bytes()),
        |text| {
            let pattern = String::from_utf8_lossy(text).trim_end().into();
            let before = core::mem::replace(&mut *CORE_PATTERN.lock(), pattern);
            drop(before);
            Ok(())
        },
    );
    insert(&root, "kernel/core_pattern", pattern);
    insert(&root, "freehold/conformance", conformance::file());
    for (path, get, set) in ASKED {
        let node = match *path {
            // These settings are larger than any signed number.
            "kernel/shmmax" | "kernel/shmall" => large(*get, *set),
            // This setting also accepts -1, which is stored as all ones.
            "kernel/shm_next_id" => setting(
                || Ok(format!("{}\n", SHM.next_id.load(Relaxed) as i64).into_bytes()),
                |text| number(text).map(|id| SHM.next_id.store(id as u64, Relaxed)),
            ),
            _ => number_file(*get, *set),
        };
        insert(&root, path, node);
    }
    root
}

/// Makes a file that contains an unsigned number of 64 bits.
fn large(get: fn() -> i64, set: Option<fn(u64)>) -> Arc<Node> {
    setting(
        move || Ok(format!("{}\n", get() as u64).into_bytes()),
        move |text| {
            let text = core::str::from_utf8(text).map_err(|_| Errno::EINVAL)?;
            let number = text.trim_matches(|c: char| c.is_whitespace() || c == '\0').parse();
            let set = set.ok_or(Errno::EACCES)?;
            number.map(set).map_err(|_| Errno::EINVAL)
        },
    )
}
