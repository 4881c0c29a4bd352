//! Options of prctl for a process's memory: the engine's options, and the fields of PR_SET_MM. `identity.rs`
//! has the call and passes every option here first. The engine stores all values in the address space, under
//! its own locks. Arguments that an option does not use must be 0, as on Linux. A new option needs an arm in
//! [`answer`], and its number in the last pattern, which refuses wrong arguments. The program `corners.c`
//! tests the options.

use crate::arch::frame::UserAddr;
use crate::calls::answer::Answer;
use crate::files::{access::Running, node::node_of};
use crate::platform::user::{self, UserPtr};
use crate::sched::current;
use alloc::sync::Arc;
use core::ops::Range;
use core::sync::atomic::Ordering::Relaxed;
use freehold::error::Errno;
use freehold::space::{Arguments, Mdwe, ThpDisable};
use linux_raw_sys::general::CAP_SYS_RESOURCE;

const PR_SET_MM: u64 = 35;
const PR_SET_MM_START_CODE: u64 = 1;
const PR_SET_MM_BRK: u64 = 7;
const PR_SET_MM_ARG_START: u64 = 8;
const PR_SET_MM_ARG_END: u64 = 9;
const PR_SET_MM_ENV_START: u64 = 10;
const PR_SET_MM_ENV_END: u64 = 11;
const PR_SET_MM_AUXV: u64 = 12;
const PR_SET_MM_EXE_FILE: u64 = 13;
const PR_SET_MM_MAP: u64 = 14;
const PR_SET_MM_MAP_SIZE: u64 = 15;
/// The lowest address that PR_SET_MM accepts.
const MIN_ADDRESS: u64 = 0x10000;
/// Maximum size of the auxiliary vector, in bytes.
const LONGEST_VECTOR: u64 = 416;
const PR_SET_THP_DISABLE: u64 = 41;
const PR_GET_THP_DISABLE: u64 = 42;
const PR_SET_MDWE: u64 = 65;
const PR_GET_MDWE: u64 = 66;
const PR_SET_MEMORY_MERGE: u64 = 67;
const PR_GET_MEMORY_MERGE: u64 = 68;

/// Fields of a process's memory that PR_SET_MM sets, in the order of `struct prctl_mm_map`.
const START_CODE: usize = 0;
const START_DATA: usize = 2;
const START_BRK: usize = 4;
const BRK: usize = 5;
const ARGUMENTS: usize = 7;
const ENVIRONMENT: usize = 9;
/// Number of fields with an address.
const ADDRESSES: usize = 11;
/// Index of the address of the auxiliary vector.
const VECTOR: usize = 11;
/// Index of the word with the length of the auxiliary vector and, in its upper half, the descriptor of the
/// executable.
const LENGTH_AND_EXECUTABLE: usize = 12;
/// Number of words in `struct prctl_mm_map`.
const WORDS: usize = 13;

/// Performs an option of prctl that concerns memory. Returns `None` for any other option.
pub fn answer([what, first, second, third, fourth]: [u64; 5]) -> Option<Answer> {
    let thread = current();
    let space = thread.space();
    Some(match (what, [first, second, third, fourth]) {
        (PR_SET_MM, [option, first, second, third]) => set_mm(option, first, second, third),
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
        (PR_SET_THP_DISABLE..=PR_GET_THP_DISABLE | PR_SET_MDWE..=PR_GET_MEMORY_MERGE, _) => {
            Err(Errno::EINVAL)
        }
        _ => return None,
    })
}

/// Performs PR_SET_MM. The program's arguments, environment, auxiliary vector, executable and heap change.
/// Other fields are checked and have no effect, because the kernel does not report them.
fn set_mm(option: u64, first: u64, second: u64, third: u64) -> Answer {
    let takes_size = matches!(option, PR_SET_MM_AUXV | PR_SET_MM_MAP | PR_SET_MM_MAP_SIZE);
    if third != 0 || second != 0 && !takes_size {
        return Err(Errno::EINVAL);
    }
    match option {
        PR_SET_MM_MAP_SIZE => {
            UserPtr::<u32>::new(first).write(&(size_of::<[u64; WORDS]>() as u32)).map(|()| 0)
        }
        PR_SET_MM_MAP => set_map(first, second),
        _ if !current().process().ids.lock().may(CAP_SYS_RESOURCE) => Err(Errno::EPERM),
        PR_SET_MM_EXE_FILE => set_executable(first),
        PR_SET_MM_AUXV => set_vector(first, second),
        _ => set_field(option, first),
    }
}

/// Performs PR_SET_MM_MAP: sets all fields. Fails with EINVAL if a range ends before it begins.
fn set_map(at: u64, size: u64) -> Answer {
    let map = UserPtr::<[u64; WORDS]>::new(at);
    if size != size_of::<[u64; WORDS]>() as u64 {
        return Err(Errno::EINVAL);
    }
    let map = map.read()?;
    let is_address = |at: &u64| (MIN_ADDRESS..UserAddr::END).contains(at);
    let is_ordered = |first: usize| map[first] <= map[first + 1];
    let ranges = [START_DATA, START_BRK, ARGUMENTS, ENVIRONMENT];
    if !map[..ADDRESSES].iter().all(is_address) || !ranges.into_iter().all(is_ordered) {
        return Err(Errno::EINVAL);
    }
    if map[START_CODE] >= map[START_CODE + 1] {
        return Err(Errno::EINVAL);
    }
    // The engine can begin a new heap, but it cannot move a heap that has memory.
    let begins_heap = map[START_BRK] == map[BRK];
    if !begins_heap && current().space().brk(0) != Ok(map[BRK]) {
        return Err(Errno::EINVAL);
    }
    let (length, executable) = (map[LENGTH_AND_EXECUTABLE] as u32, map[LENGTH_AND_EXECUTABLE] >> 32);
    if (length == 0) != (map[VECTOR] == 0) {
        return Err(Errno::EINVAL);
    }
    if executable as i32 != -1 {
        set_executable(executable)?;
    }
    if length != 0 {
        set_vector(map[VECTOR], length.into())?;
    }
    if begins_heap {
        current().space().set_heap(map[BRK]).map_err(|error| error.errno())?;
    }
    set_arguments(map[ARGUMENTS]..map[ARGUMENTS + 1], map[ENVIRONMENT]..map[ENVIRONMENT + 1])
}

/// Sets one field.
fn set_field(option: u64, to: u64) -> Answer {
    if !(MIN_ADDRESS..UserAddr::END).contains(&to) {
        return Err(Errno::EINVAL);
    }
    let space = current().space();
    let Arguments { mut args, mut env } = space.arguments();
    match option {
        PR_SET_MM_ARG_START => args.start = to,
        PR_SET_MM_ARG_END => args.end = to,
        PR_SET_MM_ENV_START => env.start = to,
        PR_SET_MM_ENV_END => env.end = to,
        PR_SET_MM_START_CODE..=PR_SET_MM_BRK => return Ok(0),
        _ => return Err(Errno::EINVAL),
    }
    // As on Linux, the arguments must be in memory that is mapped.
    space.find_vma(to).ok_or(Errno::EFAULT)?;
    set_arguments(args, env)
}

/// Sets the places of the arguments and of the environment, which /proc/PID/cmdline and /proc/PID/environ
/// show.
fn set_arguments(args: Range<u64>, env: Range<u64>) -> Answer {
    let set = current().space().set_arguments(&Arguments { args, env });
    set.map(|()| 0).map_err(|error| error.errno())
}

/// Sets the place of the auxiliary vector, which /proc/PID/auxv shows.
fn set_vector(at: u64, bytes: u64) -> Answer {
    if bytes > LONGEST_VECTOR {
        return Err(Errno::EINVAL);
    }
    user::copy_in(at, &mut [0; LONGEST_VECTOR as usize][..bytes as usize])?;
    current().process().auxv_at.store(at, Relaxed);
    Ok(0)
}

/// Sets the executable, to which /proc/PID/exe leads.
fn set_executable(descriptor: u64) -> Answer {
    let process = current().process();
    let open = current().files.get(descriptor)?;
    let node = node_of(&*open.file).filter(|node| node.mapping().is_some()).ok_or(Errno::EACCES)?;
    let before = process.exe.lock().replace(Arc::new(Running::begin(node.clone())?));
    drop(before);
    Ok(0)
}
