//! Parses the text of a system call: name, arguments, result and duration, as the numbers that a recording
//! contains.
//!
//! `text.rs` splits the text into arguments, and `value.rs` reads one argument. The meaning of the call for
//! tasks, files and memory is decided in `mod.rs`. A call that is new in recordings needs an entry in
//! [`needed`] if strace may omit arguments, and code in [`values`] if an argument is a structure. A call of
//! which only some operations are read also needs a case in [`which`]. The tests are in `tests.rs`.

use super::head::{find, name};
use super::text::{Arg, End, args, end};
use super::value::{known_part, members, named, number};
use super::vectors::{Pieces, pieces};
use crate::addresses::{MAP_FIXED, MREMAP_FIXED, PAGE, addresses};
use crate::error::{Bad, ReadError};
use crate::operation::{capability, fcntl, prctl, rlimit, uffdio};
use crate::{CallName, Returned};

/// The name of mseal in the output of a strace that does not know the call. Such a strace always prints six
/// arguments.
const MSEAL: &str = "syscall_0x1ce";
/// `CLONE_VM | CLONE_VFORK`, the flags that vfork implies.
const VFORK: u64 = 0x4100;
/// The bits of clone's flags that select the signal at the child's end.
const EXIT_SIGNAL: u64 = 0xff;

/// The assumed size of a System V segment, which strace does not show in a shmat.
const SOME: u64 = PAGE;

/// A parsed call.
#[derive(Debug)]
pub(super) struct Made<'a> {
    /// The name.
    pub(super) name: CallName,
    /// The arguments.
    pub(super) args: [u64; 6],
    /// The result and the duration.
    pub(super) end: End<'a>,
    /// The path of the descriptor among the arguments, if strace shows it (option -y), or the path that the
    /// call opens.
    pub(super) note: Option<&'a [u8]>,
    /// The error in an argument that could be read only in part.
    pub(super) odd: Option<Bad>,
    /// The ranges of memory in the caller and in the other process.
    pub(super) vectors: Option<(Pieces, Pieces)>,
}

/// Returns true for the calls that create a task.
pub(super) fn clones(name: CallName) -> bool {
    matches!(name, CallName::Clone | CallName::Clone3 | CallName::Fork | CallName::Vfork)
}

/// Returns the index of the argument that is the descriptor of a mapped or changed file.
fn descriptor(name: CallName) -> Option<usize> {
    match name {
        CallName::Mmap => Some(4),
        CallName::Ftruncate | CallName::Fallocate => Some(0),
        _ => None,
    }
}

/// Parses the complete text of a call whose name is `known`.
pub(super) fn read(text: &[u8], known: CallName) -> Result<Made<'_>, Bad> {
    let begin = find(text, b"(").map_or(0, |at| at + 1);
    let (found, closed) = args(text, begin)?;
    let closed = closed.ok_or(Bad::Expected("`)` after the arguments", text.len()))?;
    let mut end = end(text, closed + 1)?;
    let note = match known {
        CallName::Open => found.first().and_then(path),
        CallName::Openat => found.get(1).and_then(path),
        _ => descriptor(known).and_then(|index| found.get(index)).and_then(note),
    };
    let vectors = match known {
        CallName::ProcessVmReadv | CallName::ProcessVmWritev if found.len() == 6 => {
            Some((pieces(found[1])?, pieces(found[3])?))
        }
        CallName::ProcessMadvise if found.len() == 5 => {
            Some((Pieces { complete: true, ..Pieces::default() }, pieces(found[1])?))
        }
        _ => None,
    };
    let complete = found.len() >= needed(known) || end.returned.value().is_none();
    if !complete {
        return Err(Bad::Expected("another argument", closed));
    }
    if let Some(extra) = found.get(most(known)).filter(|_| !text.starts_with(MSEAL.as_bytes())) {
        return Err(Bad::Expected("no further argument", extra.at));
    }
    let mut odd = None;
    let args = values(known, &found, &mut odd)?;
    if end.returned.value().is_some_and(|value| value != 0) && returns_nothing(known, &args) {
        // The call returns only 0 or an error. Any other number is not a result: a signal killed the task
        // during the call.
        end.returned = Returned::Never;
    }
    Ok(Made { name: known, args, end, note, odd, vectors })
}

/// Returns the call with this name.
pub(super) fn parse(name: &str) -> Option<CallName> {
    if name == MSEAL { Some(CallName::Mseal) } else { CallName::parse(name) }
}

/// Returns the name of the call at the beginning of `text`, and the call if recordings contain it.
pub(super) fn which(text: &[u8]) -> Result<(&str, Option<CallName>), Bad> {
    let (name, rest) = name(text).ok_or(Bad::Expected("a call: NAME(ARGUMENTS) = RESULT", 0))?;
    let known = parse(name).filter(|known| match known {
        // personality(2) is skipped: only snapshots show its effects, and strace output has no snapshots.
        CallName::Personality => false,
        CallName::Prctl => concerns_memory(rest),
        CallName::Fcntl => concerns_files(rest),
        CallName::Ioctl => concerns_userfaultfd(rest),
        CallName::Capset | CallName::Prlimit64 | CallName::Setrlimit => limits(*known, rest),
        _ => true,
    });
    Ok((name, known))
}

/// Returns the flags of the clone in `text`, which may be incomplete.
pub(super) fn clone_flags(text: &[u8], known: CallName) -> Result<u64, Bad> {
    if known == CallName::Vfork {
        return Ok(VFORK);
    }
    let (found, _) = args(text, known.as_str().len() + 1)?;
    Ok(values(known, &found, &mut None)?[0] & !EXIT_SIGNAL)
}

/// Returns the range that the call in `text` may unmap: its start and end. The text may be incomplete.
pub(super) fn frees(text: &[u8], known: CallName) -> Option<(u64, u64)> {
    if !matches!(known, CallName::Munmap | CallName::Mremap | CallName::Shmdt) {
        return None;
    }
    let (found, _) = args(text, known.as_str().len() + 1).ok()?;
    let start = number(*found.first()?).ok()?;
    let length = if known == CallName::Shmdt { 0 } else { number(*found.get(1)?).ok()? };
    let [at, _] = addresses(known, &[start, length, 0, 0, 0, 0], None, SOME)?;
    Some((at.start, at.end))
}

/// Returns true if the call returns only 0 or an error.
fn returns_nothing(name: CallName, args: &[u64; 6]) -> bool {
    use CallName::{Madvise, Mbind, Mlock, Mlock2, Mlockall};
    use CallName::{Mprotect, Msync, Munlock, Munlockall, Munmap};
    matches!(name, Madvise | Mbind | Mlock | Mlock2 | Mlockall)
        || name == CallName::Ioctl && args[1] != uffdio::NEW
        || matches!(name, Mprotect | Msync | Munlock | Munlockall | Munmap)
}

/// Returns the minimum number of arguments of a call that succeeded. strace omits arguments that have no
/// meaning.
fn needed(name: CallName) -> usize {
    match name {
        CallName::Mremap => 4,
        CallName::Prctl | CallName::Clone | CallName::Fcntl | CallName::Open => 2,
        CallName::Setrlimit | CallName::Capset => 2,
        CallName::Openat | CallName::Ioctl => 3,
        CallName::Clone3 => 1,
        CallName::Execve | CallName::Execveat => 0,
        name => name.arity(),
    }
}

/// Returns the maximum number of arguments that strace shows for a call.
fn most(name: CallName) -> usize {
    match name {
        CallName::Execve | CallName::Execveat => usize::MAX,
        CallName::Ioctl => 3,
        CallName::Setrlimit | CallName::Capset => 2,
        name => name.arity(),
    }
}

/// Returns the arguments as numbers, in the form of [`crate::Call::args`]. Sets `odd` if flags contain an
/// unknown name.
fn values(name: CallName, found: &[Arg<'_>], odd: &mut Option<Bad>) -> Result<[u64; 6], Bad> {
    // If flags contain an unknown name, only the other names are used.
    let mut number = |arg: Arg<'_>| match number(arg) {
        Err(bad) => known_part(arg).inspect(|_| *odd = Some(bad)).ok_or(bad),
        value => value,
    };
    let mut values = [0; 6];
    match name {
        CallName::Clone => {
            for (value, name) in
                values.iter_mut().zip(["flags", "child_stack", "parent_tid", "child_tidptr", "tls"])
            {
                *value = named(found, name).map_or(Ok(0), &mut number)?;
            }
        }
        CallName::Clone3 => values[..2].copy_from_slice(&[clone3_flags(found)?, 0]),
        CallName::Execve | CallName::Execveat => {}
        CallName::Ioctl => {
            let &[descriptor, operation, what] = found else {
                return Err(Bad::Expected("another argument", 0));
            };
            values[0] = number(descriptor)?;
            values[1] = number(operation)?;
            let inside = members(what)?;
            let (inside, names, missing) = match values[1] {
                uffdio::NEW => {
                    values[2] = number(what)?;
                    return Ok(values);
                }
                uffdio::API => (inside, ["api", "features"], "the features"),
                _ => {
                    values[4] = named(&inside, "mode").map_or(Ok(0), &mut number)?;
                    let range = named(&inside, "range").map(members).transpose()?;
                    (range.unwrap_or(inside), ["start", "len"], "the range")
                }
            };
            for (value, name) in values[2..4].iter_mut().zip(names) {
                let shown = named(&inside, name).ok_or(Bad::Expected(missing, what.at))?;
                *value = number(as_passed(shown))?;
            }
        }
        CallName::Capset => values[0] = if lifts_limits(found) { capability::IPC_LOCK } else { 0 },
        CallName::Prlimit64 | CallName::Setrlimit => {
            let before = name.arity() - 2;
            for (value, arg) in values[..before].iter_mut().zip(found) {
                *value = number(*arg)?;
            }
            let what = *found.get(before).ok_or(Bad::Expected("another argument", 0))?;
            let inside = members(what)?;
            for (value, name) in values[before..].iter_mut().zip(["rlim_cur", "rlim_max"]) {
                *value = number(named(&inside, name).ok_or(Bad::Expected("a limit", what.at))?)?;
            }
        }
        _ => {
            for (value, arg) in values.iter_mut().zip(found) {
                *value = number(*arg)?;
            }
        }
    }
    if name == CallName::Mmap {
        // A descriptor is an int.
        values[4] = values[4] as i32 as u64;
    }
    Ok(values)
}

/// Returns the flags in `{flags=CLONE_VM|..., exit_signal=SIGCHLD, ...}`.
fn clone3_flags(found: &[Arg<'_>]) -> Result<u64, Bad> {
    let Some(arg) = found.first() else { return Ok(0) };
    named(&members(*arg)?, "flags").map_or(Ok(0), number)
}

/// Returns the text between `<` and `>` after a descriptor.
fn note<'a>(arg: &Arg<'a>) -> Option<&'a [u8]> {
    let at = arg.text.iter().position(|byte| *byte == b'<')?;
    let end = arg.text.iter().rposition(|byte| *byte == b'>')?;
    arg.text.get(at + 1..end)
}

/// Returns a path that is written between quotation marks.
fn path<'a>(arg: &Arg<'a>) -> Option<&'a [u8]> {
    arg.text.strip_prefix(b"\"")?.strip_suffix(b"\"")
}

/// Returns true if recordings contain the operation of an fcntl.
fn concerns_files(args_text: &[u8]) -> bool {
    let second = args(args_text, 0).ok().and_then(|(found, _)| found.get(1).copied());
    second.and_then(|arg| number(arg).ok()).is_some_and(|operation| fcntl::KEPT.contains(&(operation as u32)))
}

/// Returns true if the call sets a limit on memory or capabilities, and strace shows the new values.
fn limits(name: CallName, args_text: &[u8]) -> bool {
    let found = args(args_text, 0).map(|(found, _)| found).unwrap_or_default();
    let shown = |index: usize| found.get(index).is_some_and(|arg| arg.text.starts_with(b"{"));
    if name == CallName::Capset {
        return shown(1);
    }
    let at = name.arity() - 3;
    let resource = found.get(at).and_then(|arg| number(*arg).ok());
    resource.is_some_and(|resource| rlimit::KEPT.contains(&resource)) && shown(at + 1)
}

/// Returns true if the effective set in the arguments of capset contains CAP_IPC_LOCK.
fn lifts_limits(found: &[Arg<'_>]) -> bool {
    let inside = found.get(1).and_then(|arg| members(*arg).ok()).unwrap_or_default();
    named(&inside, "effective").is_some_and(|set| find(set.text, b"CAP_IPC_LOCK").is_some())
}

/// Returns the value before a change, as in `features=0 => features=0x80`.
fn as_passed(arg: Arg<'_>) -> Arg<'_> {
    let end = find(arg.text, b" => ").unwrap_or(arg.text.len());
    Arg { text: &arg.text[..end], ..arg }
}

/// Returns true if the ioctl is an operation on a userfaultfd that recordings contain, and strace shows its
/// structure. strace shows the structure only if the memory is readable, so the kernel could also read the
/// structure.
fn concerns_userfaultfd(args_text: &[u8]) -> bool {
    let found = args(args_text, 0).map(|(found, _)| found).unwrap_or_default();
    let operation = found.get(1).and_then(|arg| number(*arg).ok());
    operation.is_some_and(|operation| uffdio::KEPT.contains(&operation))
        && found.get(2).is_some_and(|arg| arg.text.starts_with(b"{") || operation == Some(uffdio::NEW))
}

/// Returns true if recordings contain the operation of a prctl.
fn concerns_memory(args_text: &[u8]) -> bool {
    let first = args(args_text, 0).ok().and_then(|(found, _)| found.first().copied());
    first.and_then(|arg| number(arg).ok()).is_some_and(|operation| prctl::KEPT.contains(&operation))
}

impl Made<'_> {
    /// Returns the flags of a clone, without the signal at the child's end.
    pub(super) fn flags(&self) -> u64 {
        if self.name == CallName::Vfork { VFORK } else { self.args[0] & !EXIT_SIGNAL }
    }

    /// Returns the result of a call that succeeded.
    pub(super) fn value(&self) -> Option<u64> {
        self.end.returned.value()
    }

    /// Returns the range, as start and end, that the kernel gave to the call and that must have been free
    /// before. Returns `None` if there is no such range.
    pub(super) fn took(&self) -> Option<(u64, u64)> {
        let [at, to] = addresses(self.name, &self.args, Some(self.value()?), SOME)?;
        let flags = self.args[3];
        let taken = match self.name {
            CallName::Mmap if flags & MAP_FIXED == 0 => at,
            CallName::Mremap if flags & MREMAP_FIXED == 0 && to.start != at.start => to,
            CallName::Mremap if flags & MREMAP_FIXED == 0 && to.end > at.end => at.end..to.end,
            CallName::Shmat => at,
            _ => return None,
        };
        Some((taken.start, taken.end))
    }
}

/// The reason why a call could not be reported.
pub(super) enum MadeError {
    /// The call's own text is invalid. The caller adds the place of the text.
    Text(Bad),
    /// Another line could not be read.
    Read(ReadError),
}

impl MadeError {
    /// Returns the error with its place. `in_text` adds the place if the call's own text is invalid.
    pub(super) fn in_text(self, in_text: impl FnOnce(Bad) -> ReadError) -> ReadError {
        match self {
            MadeError::Text(bad) => in_text(bad),
            MadeError::Read(error) => error,
        }
    }
}

impl From<Bad> for MadeError {
    fn from(bad: Bad) -> Self {
        MadeError::Text(bad)
    }
}

impl From<ReadError> for MadeError {
    fn from(error: ReadError) -> Self {
        MadeError::Read(error)
    }
}
