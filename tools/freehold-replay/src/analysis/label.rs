//! Names of operations in an analysis: the call, with its advice for madvise; `fault`, `fork`, `exec`.
//!
//! `waits.rs` and `memory.rs` count by these names. `mod_tests.rs` tests them with the waits.

use freehold_trace::{Call, CallName, Kind};
use std::borrow::Cow;

/// `CLONE_VM`.
const SHARES_SPACE: u64 = 0x100;

/// Returns the name of an operation that may take an mmap lock.
pub(super) fn operation(kind: &Kind) -> Option<Cow<'static, str>> {
    Some(match kind {
        Kind::Fault { in_exec: false, .. } => "fault".into(),
        Kind::Fault { in_exec: true, .. } => "fault in execve".into(),
        Kind::Call(call) => self::call(call),
        Kind::Clone { flags, .. } if flags & SHARES_SPACE != 0 => "clone".into(),
        Kind::Clone { .. } => "fork".into(),
        Kind::Exec { .. } => "exec".into(),
        _ => return None,
    })
}

/// Returns the name of a call.
pub(crate) fn call(call: &Call) -> Cow<'static, str> {
    match call.name {
        CallName::Madvise => match advice(call.args[2]) {
            Some(advice) => format!("madvise({advice})").into(),
            None => "madvise".into(),
        },
        name => name.as_str().into(),
    }
}

/// Returns the name of an advice of madvise.
fn advice(number: u64) -> Option<&'static str> {
    Some(match number {
        0 => "NORMAL",
        1 => "RANDOM",
        2 => "SEQUENTIAL",
        3 => "WILLNEED",
        4 => "DONTNEED",
        8 => "FREE",
        9 => "REMOVE",
        10 => "DONTFORK",
        12 => "MERGEABLE",
        14 => "HUGEPAGE",
        15 => "NOHUGEPAGE",
        16 => "DONTDUMP",
        18 => "WIPEONFORK",
        20 => "COLD",
        21 => "PAGEOUT",
        22 => "POPULATE_READ",
        23 => "POPULATE_WRITE",
        25 => "COLLAPSE",
        102 => "GUARD_INSTALL",
        103 => "GUARD_REMOVE",
        _ => return None,
    })
}
