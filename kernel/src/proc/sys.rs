//! The parts of /sys that programs read: CPUs, the memory node, huge pages.
//!
//! | files | to add one |
//! | --- | --- |
//! | texts made when they are read | a line of [`TEXTS`] |
//! | numbers of each pool of huge pages, for each page size | a line of [`NUMBERS`]; without a function that sets the number, the file cannot be written |
//! | other files that programs write | code in [`root`]; `huge.rs` has the settings of huge pages |
//!
//! `start.rs` calls [`root`] once at boot, after all CPUs have started and before programs run. From then on
//! the folder has all its files. Each text is made later, by the thread that reads it (`text.rs`). The
//! functions take no lock: the engine and the other modules guard their counters. `insert` (`settings.rs`)
//! makes the folders of a path, and stops the boot with a panic if a path occurs twice.
//!
//! The machine has one memory node, so the files of node 0 repeat those of the machine. Programs parse the
//! texts, so their form is Linux's. Values that the kernel does not count are constants. The programs
//! `corners.c` and `names.c` (`kernel/tests/programs`) test the files of the pools of huge pages.

use crate::arch::cpu;
use crate::files::tree::Node;
use crate::memory::{self, frames};
use crate::platform::engine;
use crate::proc::huge;
use crate::proc::settings::{huge_pages, insert, number_file, overcommit, set_huge_pages, set_overcommit};
use crate::proc::system::Text;
use crate::proc::text::text;
use alloc::format;
use alloc::string::String;
use alloc::sync::Arc;
use freehold::PAGE_SIZE;
use freehold::hugetlb::HugePageSize;

/// Returns the list of all CPUs.
fn cpus() -> String {
    match cpu::count() {
        1 => "0\n".into(),
        count => format!("0-{}\n", count - 1),
    }
}

/// Returns the text of meminfo of the memory node.
fn node_memory() -> String {
    let (all, free) = (memory::total_bytes() >> 10, (frames::free_count() * PAGE_SIZE) >> 10);
    format!("Node 0 MemTotal: {all} kB\nNode 0 MemFree: {free} kB\nNode 0 MemUsed: {} kB\n", all - free)
}

/// Paths and functions that make the texts.
const TEXTS: &[Text] = &[
    ("devices/system/cpu/online", cpus),
    ("devices/system/cpu/possible", cpus),
    ("devices/system/cpu/present", cpus),
    ("devices/system/cpu/offline", || "\n".into()),
    ("devices/system/cpu/kernel_max", || "63\n".into()),
    ("devices/system/node/online", || "0\n".into()),
    ("devices/system/node/possible", || "0\n".into()),
    ("devices/system/node/has_cpu", || "0\n".into()),
    ("devices/system/node/has_memory", || "0\n".into()),
    ("devices/system/node/has_normal_memory", || "0\n".into()),
    ("devices/system/node/node0/cpulist", cpus),
    ("devices/system/node/node0/cpumap", || format!("{:x}\n", u64::MAX >> (64 - cpu::count()))),
    ("devices/system/node/node0/distance", || "10\n".into()),
    ("devices/system/node/node0/meminfo", node_memory),
    ("devices/system/node/node0/numastat", || "numa_hit 0\nnuma_miss 0\nnuma_foreign 0\n".into()),
];

/// The name of a file, a function that returns the number for a page size, and a function that sets the
/// number, if programs may set it.
type Number = (&'static str, fn(HugePageSize) -> i64, Option<fn(HugePageSize, u64)>);

/// The files of a pool of huge pages.
const NUMBERS: &[Number] = &[
    ("nr_hugepages", huge_pages, Some(set_huge_pages)),
    ("nr_overcommit_hugepages", overcommit, Some(set_overcommit)),
    ("free_hugepages", |size| pool(size).free as i64, None),
    ("resv_hugepages", |size| pool(size).reserved as i64, None),
    ("surplus_hugepages", |size| pool(size).surplus as i64, None),
];

/// Returns the counts of the pool of this page size.
fn pool(size: HugePageSize) -> freehold::hugetlb::HugePoolCounts {
    engine().huge_pool(size).counts(None)
}

/// Makes the folder /sys.
pub fn root() -> Arc<Node> {
    let root = Node::directory(0o555);
    for (path, make) in TEXTS {
        insert(&root, path, text(|| Ok(make().into_bytes())));
    }
    for size in HugePageSize::ALL {
        for (name, get, set) in NUMBERS {
            let (kib, set) = (size.bytes() >> 10, set.map(|set| move |pages| set(size, pages)));
            for folder in ["kernel/mm/hugepages", "devices/system/node/node0/hugepages"] {
                let file = number_file(move || get(size), set);
                insert(&root, &format!("{folder}/hugepages-{kib}kB/{name}"), file);
            }
        }
    }
    for number in 0..cpu::count() {
        insert(&root, &format!("devices/system/cpu/cpu{number}/online"), text(|| Ok(b"1\n".to_vec())));
    }
    for name in ["run", "pages_shared", "pages_sharing", "full_scans", "max_page_sharing"] {
        // No page merging is implemented, so the counts are zero.
        insert(&root, &format!("kernel/mm/ksm/{name}"), text(|| Ok(b"0\n".to_vec())));
    }
    huge::insert_all(&root);
    root
}
