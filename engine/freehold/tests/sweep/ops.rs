//! The operations: every public call that may need memory, in the ways in which it is made.

mod advice;
mod files;
mod memory;
mod reports;
mod userfaults;

use super::{scene::Scene, *};
use freehold::{fault::FaultError, file::FillError};

/// What a call that failed, or did with less, may leave behind, besides what it would have done. As Linux
/// does: a call that works its way from left to right does not undo what it has done when memory runs out.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Left {
    /// Nothing but where VMAs are cut.
    Nothing,
    /// VMAs to the left of the failure have changed; no page has.
    Layout,
    /// Pages have changed or gone; no VMA has.
    Pages,
    /// Both.
    Anything,
    /// Pages are lost to all spaces that share them; no VMA has changed.
    Losses,
}

pub struct Op {
    /// The public call, as the completeness test finds it.
    pub call: &'static str,
    pub name: &'static str,
    pub run: fn(&mut Scene) -> Result<u64, Errno>,
    pub left: Left,
    /// It may do a part, and say so.
    pub partial: bool,
    /// Made again after a failure it finds a part done, and ends in another way.
    pub once: bool,
    /// It asks for no memory in any state.
    pub needs_nothing: bool,
}

const fn op(call: &'static str, name: &'static str, run: fn(&mut Scene) -> Result<u64, Errno>) -> Op {
    Op { call, name, run, left: Left::Nothing, partial: false, once: false, needs_nothing: false }
}

impl Op {
    const fn leaves(self, left: Left) -> Self {
        Op { left, ..self }
    }

    const fn partial(self) -> Self {
        Op { partial: true, once: true, left: Left::Pages, ..self }
    }

    const fn once(self) -> Self {
        Op { once: true, ..self }
    }

    const fn needs_nothing(self) -> Self {
        Op { needs_nothing: true, ..self }
    }
}

/// All of them.
pub fn each_op() -> impl Iterator<Item = &'static Op> {
    [memory::OPS, advice::OPS, reports::OPS, userfaults::OPS, files::OPS].into_iter().flatten()
}

/// A result with a number for what was returned.
macro_rules! told {
    ($result:expr) => {
        $result.map(|_| 0).map_err(|error| error.errno())
    };
}
pub(crate) use told;

/// The same, of calls that can only run out of memory.
fn made<T, E>(result: Result<T, E>) -> Result<u64, Errno> {
    result.map(|_| 0).map_err(|_| Errno::ENOMEM)
}

/// The same, of calls that cannot fail.
fn done(call: impl FnOnce()) -> Result<u64, Errno> {
    call();
    Ok(0)
}

fn signal<T>(result: Result<T, FaultError>) -> Result<u64, Errno> {
    result.map(|_| 0).map_err(|error| match error {
        FaultError::OutOfMemory => Errno::ENOMEM,
        FaultError::Killed => Errno::EINTR,
        FaultError::MemoryFailed { .. } => Errno::EHWPOISON,
        _ => Errno::EFAULT,
    })
}

fn filled<T>(result: Result<T, FillError>) -> Result<u64, Errno> {
    result.map(|_| 0).map_err(FillError::errno)
}
