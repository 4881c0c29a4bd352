//! Lists of memory ranges: `[{iov_base=0x7f0000001000, iov_len=16}, {iov_base="text", iov_len=4}]`.
//!
//! `call.rs` reads the lists of process_vm_readv, process_vm_writev and process_madvise with [`pieces`].
//! strace shows the bytes of the caller's ranges instead of their addresses, and may show only a part of a
//! list ([`Pieces::complete`]). `mod.rs` uses only complete lists. The test is
//! `bytes_of_process_vm_calls_are_read` (`tests.rs`).

use super::text::{Arg, args};
use super::value::{named, number, string};
use crate::error::Bad;

/// A list of ranges, as far as strace shows them.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct Pieces {
    /// Address and length of each range. The address is 0 if strace shows the bytes instead.
    pub(super) pieces: Vec<(u64, u64)>,
    /// The first bytes of each range, as many as strace shows.
    pub(super) shown: Vec<Vec<u8>>,
    /// True if strace shows all ranges.
    pub(super) complete: bool,
}

/// Parses `arg` as a list of ranges.
pub(super) fn pieces(arg: Arg<'_>) -> Result<Pieces, Bad> {
    let Some(inside) = arg.text.strip_prefix(b"[").and_then(|text| text.strip_suffix(b"]")) else {
        // The argument is `NULL`, or an address that could not be read.
        return Ok(Pieces { complete: number(arg)? == 0, ..Pieces::default() });
    };
    let mut found = Pieces { complete: true, ..Pieces::default() };
    for element in elements(Arg { text: inside, at: arg.at + 1 })? {
        let Some(members) = element.text.strip_prefix(b"{").and_then(|text| text.strip_suffix(b"}")) else {
            found.complete = false;
            continue;
        };
        let members = elements(Arg { text: members, at: element.at + 1 })?;
        let missing = Bad::Expected("iov_base and iov_len", element.at);
        let base = named(&members, "iov_base").ok_or(missing)?;
        let length = number(named(&members, "iov_len").ok_or(missing)?)?;
        let shown = string(base.text);
        found.pieces.push((if shown.is_some() { 0 } else { number(base)? }, length));
        found.shown.push(shown.unwrap_or_default());
    }
    Ok(found)
}

/// Returns the comma-separated elements of `list`.
fn elements(list: Arg<'_>) -> Result<Vec<Arg<'_>>, Bad> {
    let (mut found, _) = args(list.text, 0)?;
    for element in &mut found {
        element.at += list.at;
    }
    Ok(found)
}
