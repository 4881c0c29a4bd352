//! What calls do to the descriptors of their process.

use crate::CallName;
use crate::operation::{fcntl, open};

/// What a call that has succeeded did to descriptors. The kernel reads the lower half of a number.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Descriptor {
    /// It is a file that was opened, with these flags; none: how, stands in memory that is not recorded.
    Opened(u32, Option<u64>),
    /// The second is a copy of the first.
    Copied(u32, u32),
    /// It is closed.
    Closed(u32),
    /// Those from the first to the last are closed, if any are; the process has a table of its own from now
    /// on, or it may still share one.
    ClosedRange { closed: Option<(u32, u32)>, unshares: bool },
}

/// What the call `name` did that returned `value`; none if it neither opens, copies nor closes.
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
