//! No public call is forgotten: the sources' `pub fn` against the list of operations.

use super::ops::each_op;
use std::{
    collections::{BTreeMap, BTreeSet},
    fs,
    path::Path,
};

/// Types whose public calls the sweep makes.
const SWEPT: &[&str] = &[
    "AddressSpace",
    "Userfaultfd",
    "Mapping",
    "File",
    "Segment",
    "Special",
    "Engine",
    "HugePool",
    "Pins",
    "Frames",
];

/// Calls that are not in the sweep, and why.
const EXEMPT: &[(&str, &str)] = &[
    ("AddressSpace::new", "disasters/memory_ends.rs: there is no space yet whose state could matter"),
    ("Engine::new", "disasters/memory_ends.rs: there is no space yet"),
    ("AddressSpace::engine", "a reference"),
    ("AddressSpace::mmu", "a reference"),
    ("AddressSpace::locking", "a value"),
    ("AddressSpace::limits", "a reference"),
    ("AddressSpace::counts", "numbers"),
    ("AddressSpace::rss", "numbers"),
    ("AddressSpace::faults", "numbers"),
    ("AddressSpace::lock_stats", "numbers"),
    ("AddressSpace::arguments", "a value"),
    ("AddressSpace::check", "made after every call of the sweep"),
    ("AddressSpace::read", "a lock; with `write`"),
    ("AddressSpace::read_killable", "a lock; with `write`"),
    ("AddressSpace::try_read", "a lock; made after every call of the sweep"),
    ("AddressSpace::write_killable", "a lock; with `write`"),
    ("AddressSpace::write_range", "a lock; with `write`"),
    ("Userfaultfd::config", "a value"),
    ("Userfaultfd::read", "it waits; `try_read` otherwise"),
    ("Mapping::engine", "a reference"),
    ("Mapping::is_shmem", "a value"),
    ("Mapping::is_direct", "a value"),
    ("Mapping::size", "a number"),
    ("Mapping::pages", "a number"),
    ("Mapping::page_bytes", "a number"),
    ("Mapping::has_page", "looks"),
    ("Mapping::check", "made after every call of the sweep"),
    ("Mapping::seals", "a value"),
    ("Mapping::huge_page_size", "a value"),
    ("File::mapping", "a reference"),
    ("File::segment", "a reference"),
    ("File::access", "a value"),
    ("File::name", "a reference"),
    ("File::fits", "a computation"),
    ("Segment::mapping", "a reference"),
    ("Segment::key", "a number"),
    ("Segment::attached", "a number"),
    ("Segment::is_removed", "a value"),
    ("Segment::is_destroyed", "a value"),
    ("Special::engine", "a reference"),
    ("Special::ops", "a reference"),
    ("Special::mapping", "a reference"),
    ("Frames::new", "with `Special::new`"),
    ("Frames::frame", "a value"),
    ("Engine::platform", "a reference"),
    ("Engine::config", "a reference"),
    ("Engine::lock_stats", "numbers"),
    ("Engine::file_lock_stats", "numbers"),
    ("Engine::hugetlb_lock_stats", "numbers"),
    ("Engine::failed_frames", "a number"),
    ("Engine::huge_pool", "a reference"),
    ("HugePool::page_bytes", "a number"),
    ("HugePool::counts", "numbers"),
    ("HugePool::set_overcommit", "a number; with `Engine::resize_huge_pool`"),
    ("Pins::len", "with `AddressSpace::pin_user_pages`"),
    ("Pins::is_empty", "with `AddressSpace::pin_user_pages`"),
    ("Pins::frames", "with `AddressSpace::pin_user_pages`"),
    ("Pins::read", "with `AddressSpace::pin_user_pages`"),
    ("Pins::write", "with `AddressSpace::pin_user_pages`"),
    ("Pins::unpin_dirty", "with `AddressSpace::pin_user_pages`"),
];

/// `Type::call` of every public method in the sources, and the file.
fn public_calls(folder: &Path, found: &mut BTreeMap<String, String>) {
    for entry in fs::read_dir(folder).unwrap() {
        let path = entry.unwrap().path();
        if path.is_dir() {
            public_calls(&path, found);
            continue;
        }
        let text = fs::read_to_string(&path).unwrap();
        let mut of = None;
        for line in text.lines() {
            if line.starts_with("impl") {
                of = implemented(line);
            } else if line.starts_with('}') {
                of = None;
            } else if let (Some(of), Some(name)) = (&of, public_name(line)) {
                found.insert(format!("{of}::{name}"), path.display().to_string());
            }
        }
    }
}

/// The type that a line such as `impl<P: Platform> AddressSpace<P> {` opens, unless it implements a trait.
fn implemented(line: &str) -> Option<String> {
    let mut depth = 0;
    let rest = line.strip_prefix("impl")?;
    let start = rest.find(|c| {
        depth += i32::from(c == '<') - i32::from(c == '>');
        depth == 0 && c == ' '
    })?;
    let rest = &rest[start + 1..];
    if rest.contains(" for ") {
        return None;
    }
    Some(rest.split(['<', ' ']).next()?.to_owned())
}

fn public_name(line: &str) -> Option<&str> {
    let rest = line.strip_prefix("    pub ")?;
    let rest = rest.strip_prefix("const ").unwrap_or(rest);
    let rest = rest.strip_prefix("unsafe ").unwrap_or(rest).strip_prefix("fn ")?;
    rest.split(['(', '<']).next()
}

#[test]
fn every_public_call_is_swept_or_exempt_for_a_reason() {
    let mut found = BTreeMap::new();
    public_calls(&Path::new(env!("CARGO_MANIFEST_DIR")).join("src"), &mut found);
    found.retain(|call, _| SWEPT.contains(&call.split("::").next().unwrap()));
    let swept: BTreeSet<&str> = each_op().map(|op| op.call).collect();
    let exempt: BTreeSet<&str> = EXEMPT.iter().map(|(call, _)| *call).collect();
    let known = |call: &str| swept.contains(call) || exempt.contains(call);
    let forgotten: Vec<_> = found.iter().filter(|(call, _)| !known(call)).collect();
    assert!(forgotten.is_empty(), "neither swept nor exempt: {forgotten:#?}");
    let stale: Vec<_> = swept.union(&exempt).filter(|call| !found.contains_key(**call)).collect();
    assert!(stale.is_empty(), "no such calls: {stale:?}");
    let both: Vec<_> = swept.intersection(&exempt).collect();
    assert!(both.is_empty(), "swept and exempt: {both:?}");
    let mut names: Vec<&str> = each_op().map(|op| op.name).collect();
    let count = names.len();
    names.sort_unstable();
    names.dedup();
    assert_eq!(names.len(), count, "two operations have one name");
}
