//! process_vm_readv and process_vm_writev: compares the results and the bytes with the recording. Differences
//! that the program itself may have caused, by stores that no recording shows, do not count.
//!
//! `perform.rs` calls [`transfer`] with the caller's process and the other process, both of the engine. The
//! plan says which bytes recorded calls had written (`PlannedCall::written`); only these bytes must be equal.
//! [`Moved`] holds the result and the first byte that differs. `contents.rs` is not involved: it checks only
//! words that the replay itself stores. `wrong_bytes_are_reported_with_their_address` (`tests/strace.rs`)
//! checks the comparison.

use super::answers::returned;
use super::calls::may_use;
use super::refused::rests_on_length;
use freehold::error::Errno;
use freehold::remote::IoVec;
use freehold::vma::flags::VmFlags;
use freehold_machine::Process;
use freehold_trace::plan::PlannedCall;
use freehold_trace::{CallName, Returned, Transfer};
use std::ops::Range;

/// Largest number of bytes in a transfer that is replayed.
const MAX_BYTES: u64 = 1 << 26;
const EFAULT: u16 = 14;
const PAGE: u64 = 4096;

/// Result of a transfer.
#[derive(Debug)]
pub(super) struct Moved {
    /// The result of the call on the engine.
    pub(super) returned: Returned,
    /// The first byte that a recorded call wrote and that differs from the recording: its address, Linux's
    /// byte, the engine's byte.
    pub(super) other: Option<(u64, u8, u8)>,
    /// Some bytes differ from the recording, but the program itself may have stored them.
    pub(super) strange: bool,
    /// Some of the other process's memory is a mapping of a file of unknown length.
    pub(super) rests_on_length: bool,
}

impl Moved {
    /// Returns the result of a call that moved no bytes.
    pub(super) fn nothing(returned: Returned) -> Moved {
        Moved { returned, other: None, strange: false, rests_on_length: false }
    }
}

/// Makes the call of `own` that reads or writes the memory of `other`. Returns `None` if the call moves too
/// many bytes.
pub(super) fn transfer(
    planned: &PlannedCall,
    transfer: &Transfer,
    own: &Process,
    other: &Process,
) -> Option<Moved> {
    if planned.call.args[5] != 0 {
        return Some(Moved::nothing(returned(Err(Errno::EINVAL))));
    }
    let refused = Returned::Error(Errno::EFAULT.0 as u16);
    if planned.call.returned == refused && !may_move(planned, transfer, own) {
        return Some(Moved::nothing(refused));
    }
    let total = transfer.local.iter().try_fold(0u64, |sum, (_, len)| sum.checked_add(*len))?;
    if total > MAX_BYTES {
        return None;
    }
    let remote: Vec<IoVec> = transfer.remote.iter().map(|&(base, len)| IoVec { base, len }).collect();
    let mut bytes = vec![0; total as usize];
    let mut moved = Moved::nothing(Returned::Never);
    let lies = |&(at, len): &(u64, u64)| rests_on_length(other, at..at.saturating_add(len));
    moved.rests_on_length = transfer.remote.iter().any(lies);
    let result = if planned.call.name == CallName::ProcessVmWritev {
        for (at, text) in shown(transfer) {
            bytes[at..at + text.len()].copy_from_slice(text);
        }
        other.write_vectored(&remote, &bytes)
    } else {
        let result = other.read_vectored(&remote, &mut bytes);
        if let Ok(count) = result {
            moved.compare(transfer, &planned.written, &bytes[..count.min(total as usize)]);
        }
        result
    };
    moved.returned = returned(result.map(|count| count as u64).map_err(|error| error.errno()));
    Some(moved)
}

/// Returns true if the kernel could begin to access the caller's own memory. If the kernel could not access
/// this memory, the recording shows its address.
fn may_move(planned: &PlannedCall, transfer: &Transfer, own: &Process) -> bool {
    let fills = planned.call.name == CallName::ProcessVmReadv;
    let rights = if fills { VmFlags::WRITE } else { VmFlags::READ };
    let first = transfer.local.iter().find(|(_, len)| *len > 0);
    first.is_none_or(|(at, _)| *at == 0 || may_use(own, *at, 1, rights).is_ok())
}

impl Moved {
    /// Handles a transfer that moved less on Linux than in the replay: checks if the caller's own memory in
    /// `process` may be the reason. Returns `None` if the recording does not show the address of this memory.
    pub(super) fn falls_short(&mut self, planned: &PlannedCall, process: &Process) -> Option<()> {
        let moves = matches!(planned.call.name, CallName::ProcessVmReadv | CallName::ProcessVmWritev);
        let Some(transfer) = planned.call.transfer.as_ref().filter(|_| moves) else { return Some(()) };
        let Returned::Value(ours) = self.returned else { return Some(()) };
        let linux = match planned.call.returned {
            Returned::Value(linux) if linux < ours => linux,
            Returned::Error(EFAULT) => 0,
            _ => return Some(()),
        };
        // The length of a file is not always known, and memory behind its end is inaccessible.
        let hidden =
            |&(at, len): &(u64, u64)| at == 0 || rests_on_length(process, at..at.saturating_add(len));
        if self.rests_on_length || transfer.local.iter().any(hidden) {
            return None;
        }
        let needs = match planned.call.name {
            CallName::ProcessVmReadv => VmFlags::WRITE,
            _ => VmFlags::READ,
        };
        if within_reach(process, &transfer.local, needs) <= linux {
            self.returned = planned.call.returned;
        }
        Some(())
    }
}

/// Returns the number of bytes in the pieces before the first byte that the kernel cannot access for the
/// program. Memory that was mapped before the recording began does not count.
fn within_reach(process: &Process, pieces: &[(u64, u64)], needs: VmFlags) -> u64 {
    let mut sum = 0;
    for &(at, len) in pieces {
        let end = at.saturating_add(len);
        let mut reached = at;
        while reached < end {
            let Some(vma) = process.find_vma(reached).filter(|vma| vma.flags().contains(needs)) else {
                return sum + (reached - at);
            };
            // Memory behind the end of a file is inaccessible.
            let bytes = vma.object().file().map(|file| file.mapping().size().next_multiple_of(PAGE));
            let there = bytes.map_or(u64::MAX, |bytes| bytes.saturating_sub(vma.pgoff().byte()));
            let there = vma.start().saturating_add(there);
            if there < vma.end().min(end) {
                return sum + there.max(reached) - at;
            }
            reached = vma.end().min(end);
        }
        sum += len;
    }
    sum
}

/// Returns the recorded bytes of each piece, with their position among all bytes.
fn shown(transfer: &Transfer) -> impl Iterator<Item = (usize, &[u8])> {
    let mut at = 0;
    transfer.local.iter().zip(&transfer.shown).map(move |((_, len), text)| {
        let from = at;
        at += *len as usize;
        (from, &text[..text.len().min(*len as usize)])
    })
}

impl Moved {
    /// Compares the bytes read. A byte that differs is an error if a recorded call wrote it. A call wrote it
    /// if the byte is not zero in the replay, or if its address is in `written`. The program itself may have
    /// stored any other byte.
    fn compare(&mut self, transfer: &Transfer, written: &[Range<u64>], bytes: &[u8]) {
        for (from, text) in shown(transfer) {
            for (place, (linux, ours)) in (from..).zip(text.iter().zip(&bytes[from.min(bytes.len())..])) {
                if linux == ours {
                    continue;
                }
                let address = address_of(transfer, place as u64);
                if *ours != 0 || written.iter().any(|range| range.contains(&address)) {
                    self.other = Some((address, *linux, *ours));
                    return;
                }
                self.strange = true;
            }
        }
    }
}

/// Returns the address from which byte number `place` was read.
fn address_of(transfer: &Transfer, mut place: u64) -> u64 {
    for &(at, len) in &transfer.remote {
        if place < len {
            return at.wrapping_add(place);
        }
        place -= len;
    }
    0
}
