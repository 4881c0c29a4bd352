//! Checks that the test machine forbids certain calls of the platform in certain contexts. Contexts are, for
//! example, a spin lock, a read section or `with_cpu`. The documentation of `freehold::platform` has a table
//! of the calls that each context allows. The machine panics at a forbidden call in builds with debug
//! assertions, and all other tests rely on these panics.
//!
//! Each test makes every call of `calls` in one context and compares the names of the calls that panicked
//! with the expected list. A change of the table in `freehold-vmspace/src/platform.rs` needs a change of the
//! machine (`context`) and of the list here. A new method of the platform is one more entry of `calls`, and
//! its name belongs in the list of each context that forbids it.
#![expect(unsafe_code, reason = "calls the platform as the engine does")]

use crate::support::*;
use freehold::platform::{FramePurpose, FrameRequest};
use freehold_pagetable::{Access, Flush, Levels, TableMemory, VirtAddr};
use freehold_sync::{Host, Rank, RawSpin, RcuHead, RwSem, WordLock, atomic::AtomicU32};
use std::{
    panic::{AssertUnwindSafe, catch_unwind},
    ptr::NonNull,
    sync::atomic::{AtomicUsize, Ordering::SeqCst},
};

static WORD: AtomicU32 = AtomicU32::new(0);

fn machine() -> Machine {
    Machine::new(MachineConfig::backed(1 << 20)).unwrap()
}

/// Uses a result whose value does not matter.
fn done<T>(result: T) {
    std::hint::black_box(result);
}

/// Returns the panic message of the machine for a call, or an empty text if the call is allowed.
fn complaint(call: impl FnOnce()) -> String {
    match catch_unwind(AssertUnwindSafe(call)) {
        Ok(()) => String::new(),
        Err(panic) => match panic.downcast::<String>() {
            Ok(text) => *text,
            Err(panic) => panic.downcast::<&str>().map(|text| text.to_string()).unwrap(),
        },
    }
}

/// Name and code of a call.
type Call<'m> = (&'static str, Box<dyn Fn() + 'm>);

/// Calls of every kind.
fn calls(machine: &Machine) -> Vec<Call<'_>> {
    let frame = || {
        let mut out = [Pfn::new(0)];
        (machine.alloc_frames(&FrameRequest::pages(FramePurpose::File), &mut out) == 1).then_some(out[0])
    };
    let (one, other) = (frame().unwrap(), frame().unwrap());
    vec![
        ("wait", Box::new(|| <Machine>::wait(&WORD, 1))),
        ("wait_killable", Box::new(|| <Machine>::wait_killable(&WORD, 1).unwrap())),
        ("wait_interruptible", Box::new(|| <Machine>::wait_interruptible(&WORD, 1).unwrap())),
        ("wake_one", Box::new(|| <Machine>::wake_one(&WORD))),
        ("wake_all", Box::new(|| <Machine>::wake_all(&WORD))),
        ("with_cpu", Box::new(|| <Machine>::with_cpu(|_| ()))),
        ("rcu_read", Box::new(|| drop(<Machine>::rcu_read()))),
        ("rcu_barrier", Box::new(<Machine>::rcu_barrier)),
        ("alloc_table", Box::new(|| done(machine.alloc_table(None)))),
        ("alloc_frames", Box::new(move || done(frame()))),
        ("alloc_run", Box::new(|| done(machine.alloc_run(&FrameRequest::pages(FramePurpose::NoMmu), 1)))),
        // SAFETY: the list is empty, so no frame is freed.
        ("free_frames", Box::new(|| unsafe { machine.free_frames(&[]) })),
        ("zero_frame", Box::new(move || machine.zero_frame(one))),
        ("copy_frame", Box::new(move || machine.copy_frame(one, other))),
        ("read_frame", Box::new(move || machine.read_frame(one, 0, &mut [0; 8]))),
        ("write_frame", Box::new(move || machine.write_frame(one, 0, &[0; 8]))),
        ("relax", Box::new(<Machine>::relax)),
        ("frame", Box::new(move || done(machine.frame(one).is_free()))),
        ("spin_enter", Box::new(|| drop(RawSpin::new().lock::<Machine>(Rank::Leaf)))),
        ("heap", Box::new(|| done(Box::new([0; 100])))),
    ]
}

/// Returns the names of the calls at which the machine panics in the context `place`.
fn forbidden(place: impl Fn(&dyn Fn())) -> String {
    let machine = machine();
    let calls = calls(&machine);
    let wrong = calls.iter().filter(|(name, call)| {
        let text = complaint(|| place(call));
        let named = text.starts_with(name) || text.starts_with(&format!("the {name} was used"));
        assert!(text.is_empty() || named, "{name}: {text}");
        !text.is_empty()
    });
    wrong.map(|(name, _)| *name).collect::<Vec<_>>().join(" ")
}

/// Forbidden calls in contexts that permit access to the contents of frames.
const CLOSED: &str = "wait wait_killable wait_interruptible wake_one wake_all rcu_read rcu_barrier alloc_table \
                      alloc_frames alloc_run free_frames";
const SHORT: &str = "wait wait_killable wait_interruptible wake_one wake_all rcu_read rcu_barrier alloc_table \
                     alloc_frames alloc_run free_frames \
                     zero_frame copy_frame read_frame write_frame";

#[test]
fn every_call_is_allowed_outside_of_contexts() {
    assert_eq!(forbidden(|call| call()), "");
}

#[test]
fn calls_are_restricted_under_a_page_table_lock() {
    let lock = RawSpin::new();
    let found = forbidden(|call| {
        let _guard = lock.lock::<Machine>(Rank::PageTable);
        call();
    });
    assert_eq!(found, format!("{} heap", CLOSED.replace("rcu_read ", "")));
}

#[test]
fn calls_are_restricted_under_other_spin_locks() {
    let lock = RawSpin::new();
    let found = forbidden(|call| {
        let _guard = lock.lock::<Machine>(Rank::Frames);
        call();
    });
    assert_eq!(found, format!("{SHORT} heap"));
}

#[test]
fn calls_are_restricted_inside_with_cpu() {
    let found = forbidden(|call| <Machine>::with_cpu(|_| call()));
    assert_eq!(found, format!("{} spin_enter heap", SHORT.replace("wake_all", "wake_all with_cpu")));
}

#[test]
fn calls_are_restricted_inside_a_table_walk() {
    let machine = machine();
    let root = machine.alloc_table(None).unwrap();
    let mmu = machine.space_created(root).unwrap();
    let mut cpu = machine.cpu(0);
    // The CPU runs this address space from here on.
    assert_eq!(cpu.touch(&mmu, 0x7000, Access::READ, |_, _| Err(())), Err(()));
    let found = forbidden(|call| cpu.call(|| machine.walk_tables(&mmu, call).unwrap()));
    assert_eq!(found, format!("{} heap", SHORT.replace("wake_all", "wake_all with_cpu")));
}

#[test]
fn calls_are_restricted_inside_an_rcu_read_section() {
    let found = forbidden(|call| {
        let _reading = <Machine>::rcu_read();
        call();
    });
    assert_eq!(
        found,
        "wait wait_killable wait_interruptible rcu_barrier alloc_table alloc_frames alloc_run free_frames heap"
    );
}

/// A deferred function may run anywhere, so it may not sleep.
#[test]
fn deferred_functions_may_not_sleep() {
    static WRONG: AtomicUsize = AtomicUsize::new(0);
    unsafe fn deferred(_: NonNull<RcuHead>) {
        for call in [|| <Machine>::rcu_barrier(), || <Machine>::wait(&WORD, 1)] {
            WRONG.fetch_add(usize::from(!complaint(call).is_empty()), SeqCst);
        }
    }
    let head = RcuHead::new();
    // SAFETY: `head` lives until `rcu_barrier` has returned.
    unsafe { <Machine>::rcu_defer(NonNull::from(&head), deferred) };
    <Machine>::rcu_barrier();
    assert_eq!(WRONG.load(SeqCst), 2);
}

/// A flush waits for CPUs, which may be waiting for the lock of the page table.
#[test]
fn flush_is_allowed_only_under_page_table_locks() {
    let machine = machine();
    let mmu = machine.space_created(machine.alloc_table(None).unwrap()).unwrap();
    let at = VirtAddr::new(0);
    let flush = |rank| {
        let lock = RawSpin::new();
        complaint(|| {
            let _guard = lock.lock::<Machine>(rank);
            machine.flush(
                &mmu,
                &Flush { start: at, end: at, all: true, levels: Levels::ALL, tables_freed: false },
            );
        })
    };
    assert_eq!(flush(Rank::PageTable), "");
    assert!(flush(Rank::Frames).starts_with("flush inside of SpinLock"));
}

/// Releasing a sleeping lock would wake a task while the spin lock is held.
#[test]
fn sleeping_lock_may_not_be_released_under_a_spin_lock() {
    let (spin, sleeping, word) = (RawSpin::new(), RwSem::<Machine>::new(Rank::IMmap), WordLock::new());
    let text = complaint(|| {
        let guard = sleeping.read();
        let _spin = spin.lock::<Machine>(Rank::PageTable);
        drop(guard);
    });
    assert!(text.contains("IMmap is released"), "{text}");
    let text = complaint(|| {
        let guard = word.lock::<Machine>(Rank::Folio);
        let spin = spin.lock::<Machine>(Rank::PageTable);
        let sleepers = guard.release_quietly();
        drop(spin);
        drop(sleepers);
    });
    assert_eq!(text, "");
}

#[test]
fn spin_lock_may_not_have_the_rank_of_a_sleeping_lock() {
    let text = complaint(|| drop(RawSpin::new().lock::<Machine>(Rank::Mmap)));
    assert!(text.contains("no rank of spin locks"), "{text}");
}

/// A failed try_lock ends its section at once, and sections may end in any order.
#[test]
fn spin_lock_sections_end_with_the_last_lock() {
    let (first, second) = (RawSpin::new(), RawSpin::new());
    let text = complaint(|| {
        let outer = first.lock::<Machine>(Rank::PageTable);
        let inner = second.lock::<Machine>(Rank::PageTableNested);
        drop(outer);
        <Machine>::wake_all(&WORD);
        drop(inner);
    });
    assert!(text.starts_with("wake_all inside of TableLock"), "{text}");
    let text = complaint(|| {
        let outer = first.lock::<Machine>(Rank::PageTable);
        let inner = second.lock::<Machine>(Rank::PageTableNested);
        assert!(first.try_lock::<Machine>(Rank::PageTable).is_none());
        drop(outer);
        drop(inner);
        <Machine>::wake_all(&WORD);
    });
    assert_eq!(text, "");
}
