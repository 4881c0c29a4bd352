//! Memory runs out in the middle of every operation that asks the platform for memory, at every allocation,
//! and the platform makes memory free (`src/shortage.rs`). The operation must end as if memory had
//! never run out.
//!
//! `RETRIED` lists the calls, and `NOT_RETRIED` the operations of these calls that keep their error, with the
//! reason. A call that becomes one that asks the platform needs a line in `RETRIED`.

use super::{
    design, is_in_quick_run,
    ops::{Op, each_op},
    scene::Scene,
    stage::Stage,
    states::STATES,
    support::{
        failure::{Failure, Point, try_at_every_allocation},
        oom::{Left, Scene as _, Undisturbed, undisturbed},
        *,
    },
    write_of,
};
use freehold::{platform::ShortageAnswer, space::Write};
use std::sync::{
    Arc,
    atomic::{AtomicU64, Ordering::SeqCst},
};

/// Calls that ask the platform for memory and are tried again.
const RETRIED: &[&str] = &[
    "AddressSpace::handle_fault",
    "AddressSpace::mmap",
    "AddressSpace::munmap",
    "AddressSpace::munmap_atomic",
    "AddressSpace::mprotect",
    "AddressSpace::mremap",
    "AddressSpace::brk",
    "AddressSpace::mlock",
    "AddressSpace::mlock2",
    "AddressSpace::munlock",
    "AddressSpace::set_policy",
    "AddressSpace::mseal",
    "AddressSpace::fork",
    "AddressSpace::pin_user_pages",
    "AddressSpace::pin_user_pages_fast",
    "AddressSpace::device_page",
    "AddressSpace::read_memory",
    "AddressSpace::write_memory",
    "Mapping::fill",
    "Mapping::reserve",
    "Mapping::read_at",
    "Mapping::write_at",
    "Mapping::truncate",
    "Mapping::punch",
    "Mapping::allocate",
    "Mapping::lay_out",
    "Userfaultfd::register",
    "Userfaultfd::unregister",
    "Userfaultfd::copy",
    "Userfaultfd::zeropage",
    "Userfaultfd::continue_with",
    "Userfaultfd::poison",
    "Userfaultfd::move_pages",
    "AddressSpace::new",
    "Mapping::new",
    "Mapping::memfd",
    "Mapping::zeroes",
    "Mapping::secret",
    "Mapping::direct",
    "Mapping::of_huge_pages",
    "Mapping::add_probe",
    "Mapping::remove_probe",
    "File::new",
    "File::with_owned",
    "File::with_driver",
    "File::shared_memory",
    "Segment::new",
    "Segment::noreserve",
    "Segment::of_huge_pages",
    "Engine::migrate",
    "Engine::resize_huge_pool",
];

/// Operations of madvise that ask the platform for memory.
const RETRIED_ADVICE: &[&str] = &[
    "madvise PopulateRead",
    "madvise PopulateWrite",
    "madvise Collapse",
    "madvise Sequential",
    "madvise DontFork",
    "madvise WipeOnFork",
    "madvise DontDump",
    "madvise HugePage",
];

/// Operations of these calls that may keep their error, with the reason.
const NOT_RETRIED: &[(&str, &str)] = &[
    ("mmap of a device", "a failed attempt may have unmapped the range"),
    ("mmap of a device, whole, inside", "a failed attempt may have unmapped the range"),
    ("mremap within the range", "the target is unmapped before the preparation"),
    ("mremap that moves and shrinks", "the end of the source is unmapped before the preparation"),
];

fn is_retried(op: &Op) -> bool {
    let named = RETRIED.contains(&op.call) || RETRIED_ADVICE.contains(&op.name);
    named && NOT_RETRIED.iter().all(|(name, _)| *name != op.name)
}

/// Makes the operation with memory running out at `point`, until the platform is asked. Returns the number of
/// times that the platform was asked.
fn with_shortage(op: &Op, scene: &mut Scene, point: &Point, good: &Undisturbed) -> Result<u64, String> {
    let machine = scene.world.machine.clone();
    let (asked, failure) = (Arc::new(AtomicU64::new(0)), point.failure);
    let counted = asked.clone();
    machine.set_memory_short(Some(Arc::new(move |_| {
        failure.stop();
        counted.fetch_add(1, SeqCst);
        ShortageAnswer::Retry
    })));
    let result = scene.run(op, Some(point));
    machine.set_memory_short(None);
    scene.check();
    if result != good.result {
        return Err(format!("ends with {result:?}, not {:?}", good.result));
    }
    let view = scene.view();
    if view != good.after && !op.left_by_success.allows(&view, &good.after) {
        return Err(format!("leaves an unexpected state: {}", view.differences(&good.after)));
    }
    Ok(asked.load(SeqCst))
}

/// Makes the operation with memory running out at every allocation. Returns the number of times that the
/// platform was asked.
fn every_shortage(op: &Op, stage: &mut Option<Stage>, write: Write) -> Result<u64, String> {
    let (good, same) = undisturbed(op, stage.take().expect("a stage"), design(0, write));
    *stage = Some(same);
    let mut all = 0;
    for failure in [Failure::MemoryFromThere, Failure::HeapFromThere] {
        try_at_every_allocation(&[failure], |point| {
            let mut scene = Scene::new(stage.take().expect("a stage"), op, design(point.nth, write));
            match with_shortage(op, &mut scene, point, &good) {
                Ok(asked) => {
                    // The stop of the failures in the hook has reset the count of failures.
                    point.note(asked);
                    all += asked;
                    *stage = Some(scene.end());
                    Ok(())
                }
                Err(how) => {
                    // Dropping the scene could fail again.
                    core::mem::forget(scene);
                    Err(format!("{}, {point}: {how}", op.name))
                }
            }
        })?;
    }
    Ok(all)
}

#[test]
fn operations_that_ask_for_memory_end_as_if_memory_had_not_run_out() {
    let quick = Effort::asked() == Effort::Quick;
    let only = std::env::var("SWEEP_OP").ok();
    let ops: Vec<&Op> =
        each_op().filter(|op| is_retried(op) && only.as_ref().is_none_or(|only| only == op.name)).collect();
    let (mut wrong, mut asked) = (Vec::new(), vec![0; ops.len()]);
    for (number, state) in STATES.iter().enumerate() {
        let mut stage = Some(Stage::new(state));
        let write = write_of(number);
        for (nth, op) in ops.iter().enumerate() {
            if (quick || state.is_slow) && !is_in_quick_run(nth, number) {
                continue;
            }
            match every_shortage(op, &mut stage, write) {
                Ok(times) => asked[nth] += times,
                Err(how) => {
                    wrong.push(format!("{} of {}: {how}", op.call, state.name));
                    stage = Some(Stage::new(state));
                }
            }
        }
        stage.expect("a stage").end();
    }
    for (op, times) in ops.iter().zip(asked) {
        if times == 0 && !quick && op.left_by_success != Left::Anything && op.needs == oom::Needs::Memory {
            wrong.push(format!("{}: the platform was not asked", op.name));
        }
    }
    assert!(wrong.is_empty(), "{} wrong:\n{}", wrong.len(), wrong.join("\n"));
}
