//! Every public call of the engine with wild arguments: values that no sane program would pass. No call may
//! panic, with overflow checks and assertions on.
//!
//! `src/wild` makes the calls. A *life* is one sequence of calls on a machine of its own; the bytes that
//! determine its calls come from a seed here, and from a fuzzer in `lab/fuzz/fuzz_targets/wild.rs`. A failing
//! life prints its seed, and `FREEHOLD_SEED` runs the life with one seed. The last test reads the source of
//! the engine and fails if a public call is neither made by wild lives nor exempt. So a new public function
//! needs a call in `src/wild` or a line in [`EXEMPT`] with the reason.

#[path = "../../../engine/freehold/tests/support/public_calls.rs"]
mod public_calls;

use freehold_model::wild::{self, Life};
use rand_pcg::{
    Pcg64Mcg,
    rand_core::{Rng, SeedableRng},
};
use std::{fs, path::Path};

/// Number of bytes of a life. A call takes about twelve bytes.
const BYTES: usize = 3000;

/// Runs one life with bytes from the seed.
fn life(seed: u64) -> Life {
    // The test harness prints the seed if the life fails.
    println!("life {seed}");
    let mut bytes = vec![0; BYTES];
    Pcg64Mcg::seed_from_u64(seed).fill_bytes(&mut bytes);
    wild::run(&bytes)
}

/// Runs many lives. The seeds are even or odd, according to `share` (0 or 1), so that two tests share the
/// work.
fn lives(share: u64) {
    let number = |name: &str| std::env::var(name).ok().map(|text| text.parse::<u64>().unwrap_or(1));
    if let Some(seed) = number("FREEHOLD_SEED") {
        life(seed);
        return;
    }
    let count = freehold_machine::Effort::of(25, 100, 5000);
    let mut all = Life::default();
    for n in 0..count {
        let life = life(2 * n + share);
        all.calls += life.calls;
        all.done += life.done;
    }
    println!("{all:?}");
    // A life in which most calls fail would test little.
    assert!(all.calls > 100 * count && all.done > all.calls / 8, "{all:?}");
}

#[test]
fn wild_calls_do_not_panic() {
    lives(0);
}

#[test]
fn more_wild_calls_do_not_panic() {
    lives(1);
}

/// Calls that wild lives make under another name, or do not make at all, with the reason.
const EXEMPT: &[(&str, &str)] = &[
    ("Engine::swap", "for tests"),
    ("Engine::swap_on", "a device is part of a machine; tests/swapped"),
    ("Engine::swap_off", "tests/swapped"),
    ("Engine::reclaim_stats", "numbers"),
    ("Engine::swap_usage", "numbers"),
    ("AddressSpace::new", "by `Process::new`"),
    ("AddressSpace::register_listener", "by `Shadow::attach`"),
    ("AddressSpace::write", "shadowed by `Process::write`; called as `space().write()`"),
    ("Engine::files", "a reference"),
    ("Mapping::file_id", "a value"),
    ("Mapping::files", "a reference"),
    ("Special::files", "a reference"),
    ("Engine::platform", "a reference"),
    ("Engine::memory", "a reference"),
    ("Engine::file_lock_stats", "numbers"),
    ("Engine::hugetlb_fault_stats", "numbers"),
    ("Engine::hugetlb_lock_stats", "numbers"),
    ("File::access", "a value"),
    ("File::name", "a reference"),
    ("File::segment", "a reference"),
    ("File::with_driver", "the hooks belong to the embedder"),
    ("Frames::frame", "a value"),
    ("NoMmuSpace::regions", "a reference"),
    ("Special::ops", "a reference"),
];

/// Types whose public calls wild lives make.
const WILD: &[&str] = &[
    "AddressSpace",
    "Userfaultfd",
    "Mapping",
    "File",
    "Segment",
    "Special",
    "Frames",
    "Engine",
    "Pins",
    "NoMmuSpace",
    "Regions",
    "LiveLimits",
    "HugePool",
];

/// Types of `freehold-vmspace` whose calls wild lives do not make, with the reason.
const BELOW: &[(&str, &str)] = &[
    ("AnonPage", "a value of the engine"),
    ("CacheFill", "made by faults"),
    ("Frame", "the engine's record of a frame"),
    ("FileId", "a value"),
    ("FrameCache", "made by every call"),
    ("FramePurpose", "a value"),
    ("FrameRequest", "a request of the engine to a platform"),
    ("HugePage", "made by faults"),
    ("HugePageSize", "a value"),
    ("Interval", "a count that `Shadow` uses"),
    ("Listeners", "called by gathers"),
    ("Memory", "the engine's calls of the same names are made"),
    ("MigrationEntry", "a value of the engine"),
    ("NodeChoice", "a value"),
    ("PageCount", "a number"),
    ("PageIndex", "a number, which its owner keeps in bounds"),
    ("PageRange", "numbers, which their owner keeps in bounds"),
    ("Rss", "numbers"),
    ("RssCounters", "numbers"),
    ("Run", "memory of the engine"),
    ("SwapMark", "a value of the engine"),
    ("UsageSum", "numbers"),
    ("UserRange", "checked numbers"),
    ("VmSpace", "called by the address space above it"),
    ("Zap", "a value of the engine"),
];

#[test]
fn every_public_call_is_made() {
    let here = Path::new(env!("CARGO_MANIFEST_DIR")).join("..");
    let mut text = String::new();
    for entry in fs::read_dir(here.join("src/wild")).unwrap() {
        text += &fs::read_to_string(entry.unwrap().path()).unwrap();
    }
    let below = public_calls::public_calls(&here.join("../../engine/freehold-vmspace/src"));
    let is_known = |of: &str| WILD.contains(&of) || BELOW.iter().any(|(below, _)| *below == of);
    let unknown: Vec<_> = below.keys().filter(|call| !is_known(call.split("::").next().unwrap())).collect();
    assert!(unknown.is_empty(), "calls of types in neither WILD nor BELOW: {unknown:#?}");
    let mut found = public_calls::public_calls(&here.join("../../engine/freehold/src"));
    found.extend(below);
    found.retain(|call, _| {
        let (of, name) = call.split_once("::").unwrap();
        let made = text.contains(&format!(".{name}(")) || text.contains(&format!("{of}::{name}("));
        let generic = text.contains(&format!("{of}::<Machine>::{name}"));
        let exempt = EXEMPT.iter().any(|(exempt, _)| exempt == call);
        WILD.contains(&of) && !made && !generic && !exempt
    });
    assert!(found.is_empty(), "calls that no wild life makes: {found:#?}");
}
