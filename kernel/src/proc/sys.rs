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
//! Each memory node has a folder with the files of [`NODE_TEXTS`]. As with Linux's fake nodes, all CPUs
//! belong to all nodes. Programs parse the texts, so their form is Linux's. Values that the kernel does not
//! count are constants. The programs
//! `corners.c` and `names.c` (`kernel/tests/programs`) test the files of the pools of huge pages, and `nodes.c`
//! those of nodes.

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

/// Returns the list of all memory nodes.
fn nodes() -> String {
    match frames::nodes() {
        1 => "0\n".into(),
        count => format!("0-{}\n", count - 1),
    }
}

/// Returns the text of meminfo of a memory node.
fn node_memory(node: usize) -> String {
    let range = frames::frames_of(node);
    let all = match frames::nodes() {
        1 => memory::total_bytes() >> 10,
        _ => ((range.end - range.start) * PAGE_SIZE) >> 10,
    };
    let free = (frames::free_count_of(node) * PAGE_SIZE) >> 10;
    format!(
        "Node {node} MemTotal: {all} kB\nNode {node} MemFree: {free} kB\nNode {node} MemUsed: {} kB\n",
        all - free
    )
}

/// Returns the distances of a node to all nodes.
fn distances(_: usize) -> String {
    let mut text = alloc::vec!["10"; frames::nodes()].join(" ");
    text.push('\n');
    text
}

/// The name of a file of a memory node, and a function that makes the text.
type NodeText = (&'static str, fn(usize) -> String);

/// The files of each memory node.
const NODE_TEXTS: &[NodeText] = &[
    ("cpulist", |_| cpus()),
    ("cpumap", |_| format!("{:x}\n", u64::MAX >> (64 - cpu::count()))),
    ("distance", distances),
    ("meminfo", node_memory),
    ("numastat", |_| "numa_hit 0\nnuma_miss 0\nnuma_foreign 0\n".into()),
];

/// Paths and functions that make the texts.
const TEXTS: &[Text] = &[
    ("devices/system/cpu/online", cpus),
    ("devices/system/cpu/possible", cpus),
    ("devices/system/cpu/present", cpus),
    ("devices/system/cpu/offline", || "\n".into()),
    ("devices/system/cpu/kernel_max", || "63\n".into()),
    ("devices/system/node/online", nodes),
    ("devices/system/node/possible", nodes),
    ("devices/system/node/has_cpu", nodes),
    ("devices/system/node/has_memory", nodes),
    ("devices/system/node/has_normal_memory", nodes),
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

/// Makes the folder of a memory node.
fn insert_node(root: &Arc<Node>, node: usize) {
    let folder = format!("devices/system/node/node{node}");
    for (name, make) in NODE_TEXTS {
        insert(root, &format!("{folder}/{name}"), text(move || Ok(make(node).into_bytes())));
    }
    for size in HugePageSize::ALL {
        let counts = move || engine().huge_pool(size).counts(Some(node));
        let set = move |pages| _ = engine().resize_huge_pool(size, pages, Some(node));
        let folder = format!("{folder}/hugepages/hugepages-{}kB", size.bytes() >> 10);
        insert(
            root,
            &format!("{folder}/nr_hugepages"),
            number_file(move || counts().total as i64, Some(set)),
        );
        let free = number_file(move || counts().free as i64, None::<fn(u64)>);
        insert(root, &format!("{folder}/free_hugepages"), free);
        let surplus = number_file(move || counts().surplus as i64, None::<fn(u64)>);
        insert(root, &format!("{folder}/surplus_hugepages"), surplus);
    }
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
            let file = number_file(move || get(size), set);
            insert(&root, &format!("kernel/mm/hugepages/hugepages-{kib}kB/{name}"), file);
        }
    }
    for node in 0..frames::nodes() {
        insert_node(&root, node);
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
