//! Options of prctl for a process's memory: the engine's options, and the fields of PR_SET_MM. `identity.rs`
//! has the call and passes every option here first. The engine stores all values in the address space, under
//! its own locks. Arguments that an option does not use must be 0, as on Linux. A new option needs an arm in
//! [`answer`], and its number in the last pattern, which refuses wrong arguments. The program `corners.c`
//! tests the options.

use crate::arch::frame::UserAddr;
use crate::calls::answer::Answer;
use crate::files::{access::Running, node::node_of};
use crate::platform::user::{self, UserPtr};
use crate::sched::{checkpoint, current};
use alloc::sync::Arc;
use alloc::vec::Vec;
use core::sync::atomic::Ordering::Relaxed;
use freehold::counted::Counted;
use freehold::error::Errno;
use freehold::report::maps::MapName;
use freehold::space::{Arguments, Mdwe, ThpDisable};
use linux_raw_sys::general::{CAP_CHECKPOINT_RESTORE, CAP_SYS_ADMIN, CAP_SYS_RESOURCE, RLIMIT_DATA};

const PR_SET_MM: u64 = 35;
const PR_SET_MM_START_CODE: u64 = 1;
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

/// The addresses that PR_SET_MM sets, in the order of the options and of `struct prctl_mm_map`.
type Addresses = [u64; 11];
/// Indices in [`Addresses`].
const START_CODE: usize = 0;
const START_DATA: usize = 2;
const START_BRK: usize = 4;
const BRK: usize = 5;
const START_STACK: usize = 6;
const ARGUMENTS: usize = 7;
const ENVIRONMENT: usize = 9;
/// Index of the address of the auxiliary vector in `struct prctl_mm_map`.
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

/// Performs PR_SET_MM: changes the places of the program's parts, its heap, its auxiliary vector and its
/// executable.
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
        PR_SET_MM_AUXV => {
            let vector = read_vector(first, second)?;
            current().process().layout.lock().vector = vector;
            Ok(0)
        }
        _ => set_field(option, first),
    }
}

/// Performs PR_SET_MM_MAP: sets all fields. The executable changes last but one, as it may fail.
fn set_map(at: u64, size: u64) -> Answer {
    if size != size_of::<[u64; WORDS]>() as u64 {
        return Err(Errno::EINVAL);
    }
    let map = UserPtr::<[u64; WORDS]>::new(at).read()?;
    let addresses: Addresses = core::array::from_fn(|n| map[n]);
    check(&addresses)?;
    let (length, executable) = (map[LENGTH_AND_EXECUTABLE] as u32, map[LENGTH_AND_EXECUTABLE] >> 32);
    let vector = match length {
        0 => None,
        _ if map[VECTOR] == 0 => return Err(Errno::EINVAL),
        _ => Some(read_vector(map[VECTOR], length.into())?),
    };
    if executable as i32 != -1 {
        let ids = *current().process().ids.lock();
        if !ids.may(CAP_SYS_ADMIN) && !ids.may(CAP_CHECKPOINT_RESTORE) {
            return Err(Errno::EPERM);
        }
        set_executable(executable)?;
    }
    if let Some(vector) = vector {
        current().process().layout.lock().vector = vector;
    }
    store(&addresses)
}

/// Sets one field.
fn set_field(option: u64, to: u64) -> Answer {
    let field = option.wrapping_sub(PR_SET_MM_START_CODE) as usize;
    let index = *ORDER.get(field).filter(|_| is_address(to)).ok_or(Errno::EINVAL)?;
    let mut addresses = addresses();
    addresses[index] = to;
    check(&addresses)?;
    // As on Linux, a place on the stack must have mapped memory at or above it.
    if index >= START_STACK && current().space().maps(to).next().is_none() {
        return Err(Errno::EFAULT);
    }
    store(&addresses)
}

/// The indices of the fields, in the order of the options from PR_SET_MM_START_CODE to PR_SET_MM_ENV_END.
const ORDER: [usize; 11] = [
    START_CODE,
    START_CODE + 1,
    START_DATA,
    START_DATA + 1,
    START_STACK,
    START_BRK,
    BRK,
    ARGUMENTS,
    ARGUMENTS + 1,
    ENVIRONMENT,
    ENVIRONMENT + 1,
];

fn is_address(at: u64) -> bool {
    (MIN_ADDRESS..UserAddr::END).contains(&at)
}

/// Checks that all addresses are those of a program, that no range ends before it begins, and that the data and
/// the heap respect their limit (RLIMIT_DATA).
///
/// # Errors
///
/// EINVAL.
fn check(addresses: &Addresses) -> Result<(), Errno> {
    let len = |first: usize| addresses[first + 1].checked_sub(addresses[first]);
    let are_ordered = len(START_CODE) > Some(0) && len(ARGUMENTS).and(len(ENVIRONMENT)).is_some();
    let bytes = len(START_DATA).zip(len(START_BRK)).map(|(data, heap)| data + heap);
    let most = current().process().limits.lock().soft(RLIMIT_DATA);
    let fits = are_ordered && addresses.iter().all(|at| is_address(*at));
    if fits && bytes.is_some_and(|bytes| bytes <= most) { Ok(()) } else { Err(Errno::EINVAL) }
}

/// Returns the current addresses.
fn addresses() -> Addresses {
    let (heap, Arguments { args, env }) = (current().space().heap(), current().space().arguments());
    let layout = current().process().layout.lock();
    let [code, data] = [&layout.code, &layout.data].map(|range| [range.start, range.end]);
    let [[a, b], [c, d]] = [code, data];
    [a, b, c, d, heap.start, heap.end, layout.stack, args.start, args.end, env.start, env.end]
}

/// Sets the addresses, which the caller has checked.
fn store(addresses: &Addresses) -> Answer {
    let range = |first: usize| addresses[first]..addresses[first + 1];
    let space = current().space();
    if space.heap() != range(START_BRK) {
        space.set_heap(range(START_BRK)).map_err(|error| error.errno())?;
    }
    let arguments = Arguments { args: range(ARGUMENTS), env: range(ENVIRONMENT) };
    space.set_arguments(&arguments).map_err(|error| error.errno())?;
    let mut layout = current().process().layout.lock();
    (layout.code, layout.data) = (range(START_CODE), range(START_DATA));
    layout.stack = addresses[START_STACK];
    Ok(0)
}

/// Reads an auxiliary vector from the program. The rest of the result, at least one entry, is zero.
fn read_vector(at: u64, bytes: u64) -> Result<Vec<u8>, Errno> {
    if bytes > LONGEST_VECTOR {
        return Err(Errno::EINVAL);
    }
    let mut vector = alloc::vec![0; LONGEST_VECTOR as usize];
    user::copy_in(at, &mut vector[..bytes as usize])?;
    vector[LONGEST_VECTOR as usize - 16..].fill(0);
    Ok(vector)
}

/// Sets the executable, to which /proc/PID/exe leads.
///
/// # Errors
///
/// EBADF; EACCES if the file is no regular file, is not executable, or is open for writing; EBUSY if the program
/// still maps its executable.
fn set_executable(descriptor: u64) -> Answer {
    let process = current().process();
    let open = current().files.get(descriptor)?;
    let node = node_of(&*open.file).filter(|node| node.mapping().is_some()).ok_or(Errno::EACCES)?;
    if node.mode.load(Relaxed) & 0o111 == 0 {
        return Err(Errno::EACCES);
    }
    let old = process.exe.lock().clone();
    if let Some(old) = old.as_ref().and_then(|old| old.mapping()) {
        for line in current().space().maps(0) {
            checkpoint()?;
            let MapName::Object(object) = &line.name else { continue };
            if object.open_file().is_some_and(|file| Counted::ptr_eq(file.mapping(), old)) {
                return Err(Errno::EBUSY);
            }
        }
    }
    let new = Running::begin(node.clone()).map_err(|_| Errno::EACCES)?;
    let before = process.exe.lock().replace(Arc::new(new));
    drop(before);
    Ok(0)
}
