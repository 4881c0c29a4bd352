//! Checks that the sweep leaves out no public call. Each public method in the sources of the engine must be
//! named by an operation or by a row of `EXEMPT`, which gives the reason. Only types in `SWEPT` count; types
//! of `freehold-vmspace` that the sweep leaves out are in `BELOW`. A new method makes one of these tests fail
//! until it has an operation in `ops/` or such a row. A row whose method no longer exists also makes one of
//! these tests fail.

use super::{ops::each_op, support::public_calls::public_calls};
use freehold::call::Advice;
use std::{
    collections::{BTreeMap, BTreeSet},
    path::Path,
};

/// Sources with the public calls, relative to this package.
const SOURCES: &[&str] = &["../src", "../../freehold-vmspace/src"];

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
    "VmSpace",
    "Memory",
    "Frame",
];

/// Types of `freehold-vmspace` whose calls the sweep does not make individually, with the reason.
const BELOW: &[(&str, &str)] = &[
    ("AnonPage", "a value"),
    ("CacheFill", "used by faults around a page"),
    ("FileId", "a value"),
    ("FrameCache", "the cache of frames, which every call uses"),
    ("FramePurpose", "a value"),
    ("FrameRequest", "a value"),
    ("HugePage", "used by faults and collapsing"),
    ("HugePageSize", "a value"),
    ("Interval", "two counts, which need no memory"),
    ("Listeners", "called by gathers"),
    ("MigrationEntry", "a value"),
    ("NodeChoice", "a value"),
    ("PageCount", "a value"),
    ("PageIndex", "a value"),
    ("PageRange", "a value"),
    ("Rss", "numbers"),
    ("SwapMark", "a value"),
    ("RssCounters", "numbers; created with their space"),
    ("Run", "used by regions without an MMU: tests/nommu"),
    ("UsageSum", "numbers"),
    ("UserRange", "a value"),
    ("Zap", "a value"),
];

/// Calls that are not in the sweep, with the reason.
const EXEMPT: &[(&str, &str)] = &[
    ("AddressSpace::note_ran", "a word, which needs no memory"),
    ("AddressSpace::heap", "numbers"),
    ("AddressSpace::new", "every_call/oom.rs: no space exists yet"),
    ("Engine::new", "every_call/oom.rs: no space exists yet"),
    ("AddressSpace::engine", "a reference"),
    ("AddressSpace::mmu", "a reference"),
    ("AddressSpace::locking", "a value"),
    ("AddressSpace::limits", "a reference"),
    ("AddressSpace::mdwe", "a value"),
    ("AddressSpace::set_mdwe", "a word, which needs no memory"),
    ("AddressSpace::thp_disable", "a value"),
    ("AddressSpace::set_thp_disable", "a word, which needs no memory"),
    ("AddressSpace::memory_merge", "a value"),
    ("AddressSpace::set_memory_merge", "changes flags of VMAs in place, which needs no memory"),
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
    ("AddressSpace::swap_slot_at", "only reads"),
    ("AddressSpace::write_exclusive_range", "a lock; with `write`"),
    ("AddressSpace::register_listener", "needs no memory; `heard.rs`"),
    ("AddressSpace::unregister_listener", "needs no memory; `heard.rs`"),
    ("Userfaultfd::config", "a value"),
    ("Userfaultfd::is_changing", "only reads"),
    ("Userfaultfd::poll", "only reads"),
    ("Userfaultfd::read", "waits; `try_read` is swept instead"),
    ("Mapping::files", "a reference"),
    ("Mapping::file_id", "a value"),
    ("Mapping::is_shmem", "a value"),
    ("Mapping::is_direct", "a value"),
    ("Mapping::is_secret", "a value"),
    ("Mapping::is_zeroes", "a value"),
    ("Mapping::aligns_to_huge_pages", "a value"),
    ("Mapping::align_to_huge_pages", "a word, which needs no memory"),
    ("Mapping::size", "a number"),
    ("Mapping::pages", "a number"),
    ("Mapping::present_pages", "a number"),
    ("Mapping::page_bytes", "a number"),
    ("Mapping::has_data", "only reads"),
    ("Mapping::has_page", "only reads"),
    ("Mapping::page_run", "only reads"),
    ("Mapping::swapped_pages", "a number"),
    ("Mapping::adopt_size", "removes pages, which needs no memory"),
    ("Mapping::readahead", "a number"),
    ("Mapping::set_readahead", "a word, which needs no memory"),
    ("Mapping::drop_clean", "with `File::drop_clean`"),
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
    ("Special::files", "a reference"),
    ("Special::ops", "a reference"),
    ("Special::mapping", "a reference"),
    ("Frames::new", "with `Special::new`"),
    ("Frames::frame", "a value"),
    ("Engine::files", "a reference"),
    ("Engine::platform", "a reference"),
    ("Engine::memory", "a reference"),
    ("Engine::config", "a reference"),
    ("Engine::huge_pages", "a value"),
    ("Engine::set_huge_pages", "a word, which needs no memory"),
    ("Engine::blocks", "a value"),
    ("Engine::set_blocks", "a word, which needs no memory"),
    ("Engine::shared_blocks", "a value"),
    ("Engine::set_shared_blocks", "a word, which needs no memory"),
    ("Engine::reclaims_tables", "a value"),
    ("Engine::set_reclaims_tables", "a word, which needs no memory"),
    ("Mapping::mount_huge", "a value"),
    ("Mapping::set_mount_huge", "a word, which needs no memory"),
    ("Engine::max_map_count", "a number"),
    ("Engine::set_max_map_count", "a word, which needs no memory"),
    ("Engine::overcommit", "a value"),
    ("Engine::committed_pages", "a number"),
    ("Engine::set_overcommit", "a word, which needs no memory"),
    ("Engine::lock_stats", "numbers"),
    ("Engine::file_lock_stats", "numbers"),
    ("Engine::hugetlb_fault_stats", "numbers"),
    ("Engine::hugetlb_lock_stats", "numbers"),
    ("Engine::failed_frames", "a number"),
    ("Engine::huge_pool", "a reference"),
    ("Engine::swap", "a reference"),
    ("Engine::swap_on", "tests/swap.rs lets every allocation fail in turn"),
    ("Engine::swap_off", "tests/swapped lets every allocation fail in turn"),
    ("Engine::reclaim_stats", "numbers"),
    ("Engine::swap_usage", "numbers"),
    ("Pins::len", "with `AddressSpace::pin_user_pages`"),
    ("Pins::is_empty", "with `AddressSpace::pin_user_pages`"),
    ("Pins::frames", "with `AddressSpace::pin_user_pages`"),
    ("Pins::read", "with `AddressSpace::pin_user_pages`"),
    ("Pins::write", "with `AddressSpace::pin_user_pages`"),
    ("Pins::unpin_dirty", "with `AddressSpace::pin_user_pages`"),
    ("VmSpace::new", "every_call/oom.rs: with `AddressSpace::new`"),
    ("VmSpace::map", "own.rs: without an address space"),
    ("VmSpace::set_rights", "as `map`"),
    ("VmSpace::unmap", "as `map`"),
    ("VmSpace::translate", "as `map`"),
    ("VmSpace::memory", "a reference"),
    ("VmSpace::platform", "a reference"),
    ("VmSpace::mmu", "a reference"),
    ("VmSpace::root", "a number"),
    ("VmSpace::rss", "numbers"),
    ("VmSpace::recount", "with `AddressSpace::check`"),
    ("VmSpace::frame_at", "only reads"),
    ("VmSpace::entries", "only reads"),
    ("VmSpace::mark_present", "only reads"),
    ("VmSpace::add_usage", "only reads"),
    ("VmSpace::is_settled", "only reads"),
    ("VmSpace::is_unmapped", "only reads"),
    ("Memory::with_slots", "every_call/oom.rs: with `Engine::new`"),
    ("Memory::new", "every_call/oom.rs: with `Engine::new`"),
    ("Memory::platform", "a reference"),
    ("Memory::failed_frames", "a number"),
    ("Memory::trim", "with `Engine::trim`"),
    ("Memory::huge_pool", "a reference"),
    ("Memory::resize_huge_pool", "with `Engine::resize_huge_pool`"),
    ("HugePool::page_bytes", "a number"),
    ("HugePool::counts", "numbers"),
    ("HugePool::set_overcommit", "a word, which needs no memory"),
    ("Frame::is_free", "a value"),
    ("Frame::announce", "used only by the simulation"),
];

/// Returns the public calls in these sources.
fn calls_in(sources: &str) -> BTreeMap<String, String> {
    public_calls(&Path::new(env!("CARGO_MANIFEST_DIR")).join(sources))
}

#[test]
fn every_type_below_is_swept_or_exempt_for_a_reason() {
    let found = calls_in("../../freehold-vmspace/src");
    let types: BTreeSet<&str> = found.keys().filter_map(|call| call.split("::").next()).collect();
    let is_below = |of: &str| BELOW.iter().any(|(below, _)| *below == of);
    let forgotten: Vec<_> = types.iter().filter(|of| !SWEPT.contains(of) && !is_below(of)).collect();
    assert!(forgotten.is_empty(), "neither swept nor exempt: {forgotten:?}");
    let stale: Vec<_> = BELOW.iter().filter(|(of, _)| !types.contains(of) || SWEPT.contains(of)).collect();
    assert!(stale.is_empty(), "unknown or swept types: {stale:?}");
}

#[test]
fn every_public_call_is_swept_or_exempt_for_a_reason() {
    let mut found: BTreeMap<_, _> = SOURCES.iter().flat_map(|sources| calls_in(sources)).collect();
    found.retain(|call, _| SWEPT.contains(&call.split("::").next().unwrap()));
    let swept: BTreeSet<&str> = each_op().map(|op| op.call).collect();
    let exempt: BTreeSet<&str> = EXEMPT.iter().map(|(call, _)| *call).collect();
    let known = |call: &str| swept.contains(call) || exempt.contains(call);
    let forgotten: Vec<_> = found.iter().filter(|(call, _)| !known(call)).collect();
    assert!(forgotten.is_empty(), "neither swept nor exempt: {forgotten:#?}");
    let stale: Vec<_> = swept.union(&exempt).filter(|call| !found.contains_key(**call)).collect();
    assert!(stale.is_empty(), "unknown calls: {stale:?}");
    let both: Vec<_> = swept.intersection(&exempt).collect();
    assert!(both.is_empty(), "swept and exempt: {both:?}");
    let mut names: Vec<&str> = each_op().map(|op| op.name).collect();
    let count = names.len();
    names.sort_unstable();
    names.dedup();
    assert_eq!(names.len(), count, "two operations have one name");
}

#[test]
fn every_advice_is_swept() {
    let names: BTreeSet<&str> = each_op().map(|op| op.name).collect();
    let is_forgotten = |advice: &&Advice| !names.contains(&*format!("madvise {advice:?}"));
    let forgotten: Vec<_> = Advice::ALL.iter().filter(is_forgotten).collect();
    assert!(forgotten.is_empty(), "not swept: {forgotten:?}");
}
