//! The effect of each call on the descriptors of its process: opened, copied or closed.
//!
//! The effect depends only on the call, not on the state of the process. The planner (`plan/descriptors.rs`,
//! `plan/file_calls.rs`) and the reader of strace output (`strace/mapped.rs`) apply the effect to their
//! tables. A new call on descriptors needs an arm in [`done`] and a name in `CallName::is_of_descriptors`.

use crate::CallName;
use crate::operation::{fcntl, open};

/// The effect of a successful call on descriptors. The kernel reads the lower 32 bits of a descriptor's
/// number.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Descriptor {
    /// The descriptor refers to a newly opened file, with these flags of open. If the program passed the
    /// flags in memory (openat2), the flags are not recorded and are `None` here.
    Opened(u32, Option<u64>),
    /// The second descriptor becomes a copy of the first.
    Copied(u32, u32),
    /// The descriptor is closed.
    Closed(u32),
    /// The descriptors in the range `closed`, first and last included, are closed. `closed` is `None` if the
    /// call only marks the descriptors, so that a later execve closes them. If `unshares` is true, the task
    /// first gets a table of its own.
    ClosedRange { closed: Option<(u32, u32)>, unshares: bool },
}

/// Returns the effect on descriptors of the call `name`, which returned `value`. Returns `None` if the call
/// neither opens, copies nor closes a descriptor.
pub(crate) fn done(name: CallName, args: &[u64; 6], value: u64) -> Option<Descriptor> {
    const CLOSE_RANGE_UNSHARE: u64 = 2;
    const CLOSE_RANGE_CLOEXEC: u64 = 4;
    let (first, second, new) = (args[0] as u32, args[1] as u32, value as u32);
    Some(match name {
        CallName::Open => Descriptor::Opened(new, Some(args[1])),
        CallName::Openat => Descriptor::Opened(new, Some(args[2])),
        CallName::Creat => Descriptor::Opened(new, Some(open::CREAT_FLAGS)),
        CallName::Openat2 => Descriptor::Opened(new, None),
        CallName::Dup | CallName::Dup2 | CallName::Dup3 => Descriptor::Copied(first, new),
        CallName::Fcntl if fcntl::copies(args[1]) => Descriptor::Copied(first, new),
        CallName::Close => Descriptor::Closed(first),
        CallName::CloseRange => Descriptor::ClosedRange {
            closed: (args[2] & CLOSE_RANGE_CLOEXEC == 0).then_some((first, second)),
            unshares: args[2] & CLOSE_RANGE_UNSHARE != 0,
        },
        _ => return None,
    })
}
