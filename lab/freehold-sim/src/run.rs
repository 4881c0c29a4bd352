//! The run: tasks on stacks of their own, switched at each step of virtual time.
#![expect(unsafe_code, reason = "a task reaches the one that runs it by a pointer")]

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

/// A task's stack. What is never touched takes no memory.
const STACK: usize = 256 << 10;

thread_local! {
    /// The run of this thread, if there is one.
    static WORLD: RefCell<Option<World>> = const { RefCell::new(None) };
    /// Whether a task of it goes on: not before the run, not after, not between two tasks.
    static ACTIVE: Cell<bool> = const { Cell::new(false) };
    /// How many runs this thread has begun.
    static RUNS: Cell<u64> = const { Cell::new(0) };
    /// Where the task that goes on gives way.
    static YIELDER: Cell<*const Yielder<(), Next>> = const { Cell::new(ptr::null()) };
}

/// Runs every task to its end on the first `cpus` processors of a machine, in virtual time. Task *n* begins
/// on processor *n* modulo `cpus`.
///
/// The same tasks on the same memory with the same seed take the same time to the digit. Which words share a
/// line depends on where the allocator puts them: what should not, says so by its alignment.
///
/// # Panics
/// When a task does, or none can go on while some have not ended; with no processor, or more than the machine
/// has; inside of another run.
pub fn run<'t, F>(machine: &Machine, cpus: usize, seed: u64, tasks: impl IntoIterator<Item = F>) -> Report
where
    F: FnOnce() + 't,
{
    assert!((1..=machine.cpus()).contains(&cpus), "{} has {} processors", machine.title, machine.cpus());
    let mut fibers: Vec<Fiber<'t>> = tasks.into_iter().map(Fiber::new).collect();
    let fresh = World::new(machine, cpus, seed, fibers.len());
    WORLD.with_borrow_mut(|place| {
        assert!(place.is_none(), "a run inside of a run");
        *place = Some(fresh);
    });
    RUNS.set(RUNS.get() + 1);
    // Also when a task panics.
    let end = End;
    while let Some(task) = world(World::next) {
        ACTIVE.set(true);
        let went_on = panic::catch_unwind(AssertUnwindSafe(|| fibers[task].resume()));
        ACTIVE.set(false);
        match went_on {
            Ok(Some(next)) => world(|world| world.pause(next)),
            Ok(None) => world(World::end),
            Err(why) => {
                // The other tasks are unwound from where they stand, outside of any run.
                drop(end);
                drop(fibers);
                panic::resume_unwind(why);
            }
        }
    }
    WORLD.with_borrow_mut(|place| Report::of(place.take().expect("the run")))
}

/// Clears the place of the run.
struct End;

impl Drop for End {
    fn drop(&mut self) {
        ACTIVE.set(false);
        WORLD.with_borrow_mut(|world| *world = None);
    }
}

/// A task with its stack.
struct Fiber<'t> {
    coroutine: Option<Coroutine<(), Next, (), DefaultStack>>,
    /// What the task borrows.
    borrows: std::marker::PhantomData<&'t ()>,
}

impl<'t> Fiber<'t> {
    fn new(task: impl FnOnce() + 't) -> Fiber<'t> {
        let stack = DefaultStack::new(STACK).expect("address space for a task's stack");
        let begin = |yielder: &Yielder<(), Next>, ()| {
            YIELDER.set(yielder);
            task();
        };
        // SAFETY: what the task borrows outlives the fiber, which does not leave `run` and is dropped there:
        // a task that has not ended then is unwound.
        let coroutine = unsafe { Coroutine::with_stack_unchecked(stack, begin) };
        Fiber { coroutine: Some(coroutine), borrows: std::marker::PhantomData }
    }

    /// Lets the task go on. How it goes on after that; none where it has ended.
    fn resume(&mut self) -> Option<Next> {
        match self.coroutine.as_mut().expect("a task that has not ended").resume(()) {
            CoroutineResult::Yield(next) => Some(next),
            CoroutineResult::Return(()) => {
                self.coroutine = None;
                None
            }
        }
    }
}

/// Does something with the run's state, which must not switch tasks.
fn world<R>(f: impl FnOnce(&mut World) -> R) -> R {
    WORLD.with_borrow_mut(|world| f(world.as_mut().expect("inside of a run")))
}

/// How many runs this thread has begun.
pub(crate) fn runs() -> u64 {
    RUNS.get()
}

/// Whether the caller is a task of a run.
#[inline(always)]
pub(crate) fn is_active() -> bool {
    // A task that panics unwinds at once.
    ACTIVE.get() && !std::thread::panicking()
}

/// The task's next step, when it is its turn. Nothing outside of a run.
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

/// A look at the state, at any time. Nothing outside of a run.
#[inline]
pub(crate) fn look<R>(f: impl FnOnce(&mut World) -> R) -> Option<R> {
    let _own = Within::simulation();
    is_active().then(|| world(f))
}

/// Lets others go on.
pub(crate) fn give_way(next: Next) {
    let own = YIELDER.get();
    // SAFETY: the yielder of the task that goes on, which set it when it began or went on; it lives as long
    // as the task's stack, on which this call is.
    unsafe { &*own }.suspend(next);
    YIELDER.set(own);
}

#[inline]
pub(crate) fn access(address: usize, kind: Kind, place: &'static Location<'static>) {
    let _own = Within::simulation();
    if let Some(Some(next)) = step(|world| world.access_begins(address, kind, place)) {
        give_way(next);
        world(|world| world.access_ends(address, kind));
    }
}

/// An access to a field that is no atomic: as another, where the processor has not got the line.
pub(crate) fn plain(address: usize, kind: Kind, place: &'static Location<'static>) {
    let _own = Within::simulation();
    if look(|world| world.has(address, kind)) == Some(false) {
        access(address, kind, place);
    }
}

pub(crate) fn fence() {
    step(World::fence);
}
