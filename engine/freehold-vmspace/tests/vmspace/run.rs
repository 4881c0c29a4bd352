//! Runs of frames: each call refuses a count that does not fit, before it has any effect.
//!
//! A run frees its frames when it is dropped, so a run with a wrong count would free frames of other owners.
//! The tests call `split_off`, `alloc` and `foreign` with counts around the limits, and check afterwards that
//! the run is unchanged and that no mapped frame is free.

use crate::{machine, refuses};
use freehold_vmspace::{PageCount, Pfn, Run, VmSpace, platform::PteFlags};

fn pages(count: u64) -> PageCount {
    PageCount::new(count)
}

/// A run of one page refuses a split at a later frame. Without this check, dropping the first part would free
/// the later frame, which a space maps here.
#[test]
fn split_off_beyond_the_run_frees_no_mapped_frame() {
    let (machine, memory) = machine();
    let mut space = VmSpace::new(&memory).unwrap();
    let above = Run::alloc(&memory, pages(8)).unwrap();
    let mut run = Run::alloc(&memory, pages(1)).unwrap();
    drop(above);
    let first = run.numbers().start;
    let mut end = 0x10_0000;
    while space.map(end..end + 0x1000, PteFlags::USER | PteFlags::WRITE).is_ok() {
        end += 0x1000;
    }
    let mapped = (0x10_0000..end).step_by(0x1000).map(|at| space.translate(at).unwrap().pfn.get());
    let victim = mapped.filter(|pfn| *pfn > first).min().unwrap();

    assert!(refuses(|| run.split_off(pages(victim - first + 1)), "a run of 1 pages"));
    assert_eq!(run.numbers(), first..first + 1, "the refused split changed the run");
    drop(run);
    let again = Run::alloc(&memory, pages(1)).unwrap();
    assert_eq!(again.numbers().start, first, "a frame outside the run was freed");
    assert!(Run::alloc(&memory, pages(1)).is_err());
    drop((again, space, memory));
    machine.accounting().assert_clean();
}

#[test]
fn split_off_panics_if_the_run_is_shorter() {
    for (kept, refused) in [
        (0, false),
        (1, false),
        (4, false),
        (5, true),
        (1 << 52, true),
        (u64::MAX - 3, true),
        (u64::MAX, true),
    ] {
        let (machine, memory) = machine();
        let mut run = Run::alloc(&memory, pages(4)).unwrap();
        let first = run.numbers().start;
        let mut rest = None;
        assert_eq!(
            refuses(|| rest = Some(run.split_off(pages(kept))), "a run of 4 pages"),
            refused,
            "{kept}"
        );
        let end = rest.as_ref().map_or(4, |_| kept);
        assert_eq!(run.numbers(), first..first + end, "{kept}");
        if let Some(rest) = rest {
            assert_eq!(rest.numbers(), first + kept..first + 4, "{kept}");
        }
        drop((run, memory));
        machine.accounting().assert_clean();
    }
}

#[test]
fn alloc_fails_if_the_machine_has_too_few_frames() {
    let (machine, memory) = machine();
    for count in [257, 1 << 32, 1 << 52, u64::MAX - 1, u64::MAX] {
        assert!(Run::alloc(&memory, pages(count)).is_err(), "{count}");
    }
    drop(memory);
    machine.accounting().assert_clean();
}

#[test]
fn alloc_of_zero_pages_returns_an_empty_run() {
    let (machine, memory) = machine();
    let run = Run::alloc(&memory, pages(0)).unwrap();
    assert_eq!((run.pages(), run.frames().count()), (pages(0), 0));
    drop((run, memory));
    machine.accounting().assert_clean();
}

#[test]
fn foreign_panics_beyond_the_last_frame_number() {
    let (machine, memory) = machine();
    for (first, count, refused) in
        [(8, 4, false), (u64::MAX - 4, 4, false), (u64::MAX - 3, 4, true), (1, u64::MAX, true)]
    {
        let message = format!("{count} frames from");
        let made = || Run::foreign(&memory, Pfn::new(first), pages(count));
        assert_eq!(refuses(made, &message), refused, "{first} {count}");
    }
    drop(memory);
    machine.accounting().assert_clean();
}
