//! Options of prctl for a process's memory: the engine's options, and the bounds of the heap. `identity.rs`
//! has the call and passes every option here first. The engine stores all values in the address space, under
//! its own locks. Arguments that an option does not use must be 0, as on Linux. A new option needs an arm in
//! [`answer`], and its number in the last pattern, which refuses wrong arguments.

use crate::calls::answer::Answer;
use crate::platform::user::UserPtr;
use crate::sched::current;
use freehold::error::Errno;
use freehold::space::{Mdwe, ThpDisable};

const PR_SET_MM: u64 = 35;
const PR_SET_MM_MAP: u64 = 14;
const PR_SET_THP_DISABLE: u64 = 41;
const PR_GET_THP_DISABLE: u64 = 42;
const PR_SET_MDWE: u64 = 65;
const PR_GET_MDWE: u64 = 66;
const PR_SET_MEMORY_MERGE: u64 = 67;
const PR_GET_MEMORY_MERGE: u64 = 68;

/// Number of words in `struct prctl_mm_map`.
const WORDS: usize = 13;
/// Index of the start of the heap.
const START_BRK: usize = 4;
/// Index of the end of the heap.
const BRK: usize = 5;
/// Index of the word with the length of the auxiliary vector and, in its upper half, the descriptor of the
/// executable.
const LENGTH_AND_EXECUTABLE: usize = 12;

/// The value of the word `LENGTH_AND_EXECUTABLE` if the map has neither an auxiliary vector nor an
/// executable.
const NO_VECTOR_NO_EXECUTABLE: u64 = (u32::MAX as u64) << 32;

/// Performs an option of prctl that concerns memory. Returns `None` for any other option.
pub fn answer([what, first, second, third, fourth]: [u64; 5]) -> Option<Answer> {
    let thread = current();
    let space = thread.space();
    Some(match (what, [first, second, third, fourth]) {
        (PR_SET_MM, [PR_SET_MM_MAP, at, size, 0]) => set_map(at, size),
        (PR_SET_MDWE, [bits, 0, 0, 0]) => match u32::try_from(bits) {
            Ok(bits) => {
                let set = space.set_mdwe(Mdwe::from_bits_retain(bits));
                set.map(|()| 0).map_err(|error| error.errno())
            }
            Err(_) => Err(Errno::EINVAL),
        },
        (PR_GET_MDWE, [0, 0, 0, 0]) => Ok(space.mdwe().bits().into()),
        (PR_SET_THP_DISABLE, [on, flags, 0, 0]) => {
            let disable = ThpDisable::from_raw(on, flags).ok_or(Errno::EINVAL);
            disable.map(|disable| space.set_thp_disable(disable)).map(|()| 0)
        }
        (PR_GET_THP_DISABLE, [0, 0, 0, 0]) => Ok(space.thp_disable() as u64),
        (PR_SET_MEMORY_MERGE, [on, 0, 0, 0]) => {
            space.set_memory_merge(on != 0).map(|()| 0).map_err(|error| error.errno())
        }
        (PR_GET_MEMORY_MERGE, [0, 0, 0, 0]) => Ok(space.memory_merge().into()),
        (PR_SET_MM | PR_SET_THP_DISABLE..=PR_GET_THP_DISABLE | PR_SET_MDWE..=PR_GET_MEMORY_MERGE, _) => {
            Err(Errno::EINVAL)
        }
        _ => return None,
    })
}

/// Performs PR_SET_MM_MAP: sets the bounds of the heap, which must be empty. Fails with EINVAL if the map
/// also has an executable or an auxiliary vector.
fn set_map(at: u64, size: u64) -> Answer {
    let map = UserPtr::<[u64; WORDS]>::new(at).read()?;
    let plain = map[LENGTH_AND_EXECUTABLE] == NO_VECTOR_NO_EXECUTABLE;
    if size != size_of_val(&map) as u64 || map[START_BRK] != map[BRK] || !plain {
        return Err(Errno::EINVAL);
    }
    current().space().set_heap(map[BRK]).map(|()| 0).map_err(|error| error.errno())
}
