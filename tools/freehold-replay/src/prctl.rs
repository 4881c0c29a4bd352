//! prctl operations that apply to the whole memory of a program.
//!
//! Operations: PR_SET_MDWE, PR_SET_THP_DISABLE and PR_SET_MEMORY_MERGE, and their queries. `calls.rs` makes
//! these calls on the process ([`answer`]); `perform.rs` carries the attributes over an exec with
//! [`Inherited`]. prctl operations on single ranges (PR_SET_VMA) are not replayed. A new attribute that an
//! exec inherits needs a field in [`Inherited`]. A new operation needs an arm in [`answer`].

use super::answers::returned;
use super::start;
use freehold::error::Errno;
use freehold::space::{Mdwe, ThpDisable};
use freehold_machine::Process;
use freehold_trace::Returned;
use freehold_trace::operation::prctl::{
    GET_MDWE, GET_MEMORY_MERGE, GET_THP_DISABLE, SET_MDWE, SET_MEMORY_MERGE, SET_THP_DISABLE,
};
use freehold_trace::plan::Start;

/// Attributes set by prctl that an exec inherits.
pub(super) struct Inherited {
    /// Rules of PR_SET_MDWE.
    mdwe: Mdwe,
    /// Value of PR_SET_THP_DISABLE.
    thp: ThpDisable,
    /// True if PR_SET_MEMORY_MERGE is on.
    merge: bool,
}

impl Inherited {
    /// Reads the attributes of the old address space, if it is known.
    pub(super) fn of(old: Option<&Process>) -> Inherited {
        Inherited {
            mdwe: old.map_or(Mdwe::empty(), |old| old.mdwe().inherited()),
            thp: old.map_or(ThpDisable::default(), |old| old.thp_disable()),
            merge: old.is_some_and(|old| old.memory_merge()),
        }
    }

    /// Sets the attributes of the new address space, whose image is mapped as in `start`. Existing mappings
    /// keep their attributes, except that their equal pages may be merged.
    ///
    /// # Errors
    /// Fails if the engine refuses.
    pub(super) fn give(self, new: &Process, start: &Start) -> anyhow::Result<()> {
        new.set_mdwe(self.mdwe)?;
        new.set_thp_disable(self.thp);
        if self.merge || start::shows_merging(start) { start::merge(new, start) } else { Ok(()) }
    }
}

/// Makes the call on `process`. Returns `None` if the engine does not implement the operation.
pub(super) fn answer(process: &Process, args: &[u64; 6]) -> Option<Returned> {
    let [operation, first, second, third, fourth, _] = *args;
    Some(returned(match (operation, [first, second, third, fourth]) {
        (SET_MDWE, [bits, 0, 0, 0]) => set_mdwe(process, bits),
        (GET_MDWE, [0, 0, 0, 0]) => Ok(process.mdwe().bits().into()),
        (SET_THP_DISABLE, [on, flags, 0, 0]) => set_thp_disable(process, on, flags),
        (GET_THP_DISABLE, [0, 0, 0, 0]) => Ok(process.thp_disable() as u64),
        (SET_MEMORY_MERGE, [on, 0, 0, 0]) => {
            process.set_memory_merge(on != 0).map(|()| 0).map_err(|error| error.errno())
        }
        (GET_MEMORY_MERGE, [0, 0, 0, 0]) => Ok(process.memory_merge().into()),
        (SET_MDWE..=GET_MEMORY_MERGE | SET_THP_DISABLE | GET_THP_DISABLE, _) => Err(Errno::EINVAL),
        _ => return None,
    }))
}

/// Makes a PR_SET_MDWE.
fn set_mdwe(process: &Process, bits: u64) -> Result<u64, Errno> {
    let bits = u32::try_from(bits).map_err(|_| Errno::EINVAL)?;
    process.set_mdwe(Mdwe::from_bits_retain(bits)).map(|()| 0).map_err(|error| error.errno())
}

/// Makes a PR_SET_THP_DISABLE.
fn set_thp_disable(process: &Process, on: u64, flags: u64) -> Result<u64, Errno> {
    process.set_thp_disable(ThpDisable::from_raw(on, flags).ok_or(Errno::EINVAL)?);
    Ok(0)
}
