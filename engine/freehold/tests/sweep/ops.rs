//! Operations of the sweep: every public call that may need memory, with different arguments. The files of
//! the folder `ops` each have a list `OPS`; [`each_op`] joins the lists. This file has the helpers by which
//! an operation converts its result to a value or an [`Errno`].
//!
//! A new operation is one entry of a list. The methods of an entry state what differs from the rule that the
//! call fails with ENOMEM or EAGAIN and changes nothing; `Call` in `support/oom.rs` explains the methods.

mod advice;
mod files;
mod memory;
mod reports;
mod userfaults;

use super::{scene::Scene, *};
use freehold::{fault::FaultError, file::FillError};

/// An operation of the sweep.
pub type Op = Call<Scene>;

const fn op(call: &'static str, name: &'static str, run: fn(&mut Scene) -> Result<u64, Errno>) -> Op {
    Call::new(call, name, run, EITHER)
}

/// Returns all operations.
pub fn each_op() -> impl Iterator<Item = &'static Op> {
    [memory::OPS, advice::OPS, reports::OPS, userfaults::OPS, files::OPS].into_iter().flatten()
}

/// Converts the result of a call that can only run out of memory. The number 0 stands for any value.
fn made<T, E>(result: Result<T, E>) -> Result<u64, Errno> {
    result.map(|_| 0).map_err(|_| Errno::ENOMEM)
}

/// Converts the result of a call that cannot fail.
fn done(call: impl FnOnce()) -> Result<u64, Errno> {
    call();
    Ok(0)
}

/// Converts the result of an access: the value becomes 0, and the fault becomes the errno of a call.
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
