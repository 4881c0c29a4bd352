//! The run: tasks on their own stacks, switched at each step of virtual time.
//!
//! [`run`] starts the tasks as coroutines on the calling thread, and always resumes the task that `world.rs`
//! names: the task on the processor with the lowest clock. A task calls [`step`] before each shared access.
//! That call charges the time, and first suspends the task if another task is due earlier ([`give_way`]).
//!
//! The state of the run is thread-local (`WORLD`); a thread has at most one run. No reference to the state
//! may be held across a switch. Each entry point sets the marks of `trace.rs` ([`Within`]) around the work of
//! the simulation itself. A new kind of operation of a task is a function of `task.rs` that calls [`step`]. A
//! task that panics ends the run; `run_after_a_panic_starts_clean` in `tests/main.rs` checks that the next
//! run is not affected.
#![expect(unsafe_code, reason = "a task reaches its scheduler through a pointer")]

pub(crate) use crate::line::Kind;

use crate::machine::Machine;
use crate::report::Report;
use crate::trace::Within;
use crate::world::{Next, World};
use corosensei::stack::DefaultStack;
use corosensei::{Coroutine, CoroutineResult, Yielder};
use std::cell::{Cell, RefCell};
use std::panic::{self, AssertUnwindSafe, Location};
use std::ptr;

/// Bytes of a task's stack. Untouched pages take no memory.
const STACK: usize = 256 << 10;

thread_local! {
    /// The run of this thread, if there is one.
    static WORLD: RefCell<Option<World>> = const { RefCell::new(None) };
    /// True while a task of the run executes: not before the run, not after it, not between two tasks.
    static ACTIVE: Cell<bool> = const { Cell::new(false) };
    /// Number of runs that this thread has begun.
    static RUNS: Cell<u64> = const { Cell::new(0) };
    /// The yielder of the current task.
    static YIELDER: Cell<*const Yielder<(), Next>> = const { Cell::new(ptr::null()) };
}

/// Runs every task to its end on the first `cpus` processors of a machine, in virtual time. Task *n* begins
/// on processor *n* modulo `cpus`.
///
/// Equal tasks on equal memory with the same seed take exactly the same time. The allocator determines which
/// words share a line; use alignment for words that must not share a line.
///
/// # Panics
/// Panics if a task panics, if tasks are left and none can run, if `cpus` is zero or exceeds the number of
/// processors of the machine, or if called inside another run.
pub fn run<'t, F>(machine: &Machine, cpus: usize, seed: u64, tasks: impl IntoIterator<Item = F>) -> Report
where
    F: FnOnce() + 't,
{
    assert!((1..=machine.cpus()).contains(&cpus), "{} has {} processors", machine.title, machine.cpus());
    let mut fibers: Vec<Fiber<'t>> = tasks.into_iter().map(Fiber::new).collect();
    let fresh = World::new(machine, cpus, seed, fibers.len());
    WORLD.with_borrow_mut(|place| {
        assert!(place.is_none(), "nested run");
        *place = Some(fresh);
    });
    RUNS.set(RUNS.get() + 1);
    // Clears the state also if a task panics.
    let end = End;
    while let Some(task) = world(World::next) {
        ACTIVE.set(true);
        let went_on = panic::catch_unwind(AssertUnwindSafe(|| fibers[task].resume()));
        ACTIVE.set(false);
        match went_on {
            Ok(Some(next)) => world(|world| world.pause(next)),
            Ok(None) => world(World::end),
            Err(why) => {
                // The other tasks are unwound from their current positions, outside any run.
                drop(end);
                drop(fibers);
                panic::resume_unwind(why);
            }
        }
    }
    WORLD.with_borrow_mut(|place| Report::of(place.take().expect("the run")))
}

/// A guard that clears the state of the run.
struct End;

impl Drop for End {
    fn drop(&mut self) {
        ACTIVE.set(false);
        WORLD.with_borrow_mut(|world| *world = None);
    }
}

/// A task with its stack.
struct Fiber<'t> {
    /// The suspended task; `None` after its end.
    coroutine: Option<Coroutine<(), Next, (), DefaultStack>>,
    /// Marks that the task may borrow data with this lifetime.
    borrows: std::marker::PhantomData<&'t ()>,
}

impl<'t> Fiber<'t> {
    /// Creates the task with a stack of its own.
    fn new(task: impl FnOnce() + 't) -> Fiber<'t> {
        let stack = DefaultStack::new(STACK).expect("address space for a task's stack");
        let begin = |yielder: &Yielder<(), Next>, ()| {
            YIELDER.set(yielder);
            task();
        };
        // SAFETY: everything that the task borrows outlives the fiber. The fiber never leaves `run` and is
        // dropped there. A task that has not ended by that time is unwound.
        let coroutine = unsafe { Coroutine::with_stack_unchecked(stack, begin) };
        Fiber { coroutine: Some(coroutine), borrows: std::marker::PhantomData }
    }

    /// Resumes the task. Returns the condition under which the task continues, or `None` if it has ended.
    fn resume(&mut self) -> Option<Next> {
        match self.coroutine.as_mut().expect("the task has not ended").resume(()) {
            CoroutineResult::Yield(next) => Some(next),
            CoroutineResult::Return(()) => {
                self.coroutine = None;
                None
            }
        }
    }
}

/// Calls `f` with the state of the run. `f` must not switch tasks.
fn world<R>(f: impl FnOnce(&mut World) -> R) -> R {
    WORLD.with_borrow_mut(|world| f(world.as_mut().expect("inside a run")))
}

/// Returns the number of runs that this thread has begun.
pub(crate) fn runs() -> u64 {
    RUNS.get()
}

/// Returns true if the caller is a task of a run.
#[inline(always)]
pub(crate) fn is_active() -> bool {
    // A task that panics unwinds at once.
    ACTIVE.get() && !std::thread::panicking()
}

/// Calls `f` for the task's next step, after all steps with an earlier virtual time. Does nothing outside a
/// run.
#[inline]
pub(crate) fn step<R>(f: impl FnOnce(&mut World) -> R) -> Option<R> {
    let _own = Within::simulation();
    if !is_active() {
        return None;
    }
    if let Some(next) = world(|world| world.must_pause()) {
        give_way(next);
    }
    Some(world(f))
}

/// Calls `f` with the state immediately. Does nothing outside a run.
#[inline]
pub(crate) fn look<R>(f: impl FnOnce(&mut World) -> R) -> Option<R> {
    let _own = Within::simulation();
    is_active().then(|| world(f))
}

/// Switches to other tasks. The condition `next` decides when this task continues.
pub(crate) fn give_way(next: Next) {
    let own = YIELDER.get();
    // SAFETY: this is the yielder of the current task, which set the pointer when it began or resumed. The
    // yielder lives as long as the task's stack, and this call is on that stack.
    unsafe { &*own }.suspend(next);
    YIELDER.set(own);
}

/// Makes an atomic access: charges its time, and switches if another task is due.
#[inline]
pub(crate) fn access(address: usize, kind: Kind, place: &'static Location<'static>) {
    let _own = Within::simulation();
    if let Some(Some(next)) = step(|world| world.access_begins(address, kind, place)) {
        give_way(next);
        world(|world| world.access_ends(address, kind));
    }
}

/// Makes an access to a field that is not atomic. If the processor does not have the line, the access takes
/// as long as an atomic access. Otherwise the access takes no time.
pub(crate) fn plain(address: usize, kind: Kind, place: &'static Location<'static>) {
    let _own = Within::simulation();
    if look(|world| world.has(address, kind)) == Some(false) {
        access(address, kind, place);
    }
}

/// Makes a full fence.
pub(crate) fn fence() {
    step(World::fence);
}
