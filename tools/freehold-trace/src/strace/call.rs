//! What the text of a call means.

use super::head::{find, name};
use super::text::{Arg, End, args, end};
use super::value::{known_part, members, named, number};
use super::vectors::{Pieces, pieces};
use crate::addresses::{MAP_FIXED, MREMAP_FIXED, PAGE, addresses};
use crate::error::Bad;
use crate::operation::{capability, fcntl, prctl, rlimit, uffdio};
use crate::{CallName, Returned};

/// The name of mseal in texts by versions of strace that do not know it. They show six arguments.
const MSEAL: &str = "syscall_0x1ce";
/// `CLONE_VM | CLONE_VFORK`, what vfork stands for.
const VFORK: u64 = 0x4100;
/// The bits of clone's flags that are the signal sent at the child's end.
const EXIT_SIGNAL: u64 = 0xff;

/// What a text, which does not tell how long it is, shows of a System V segment.
const SOME: u64 = PAGE;

/// A call, read.
#[derive(Debug)]
pub(super) struct Made<'a> {
    /// Which.
    pub(super) name: CallName,
    /// Its arguments.
    pub(super) args: [u64; 6],
    /// How it ended.
    pub(super) end: End<'a>,
    /// The path of the descriptor among its arguments, where the text says so; or the path that it opens.
    pub(super) note: Option<&'a [u8]>,
    /// What is wrong with an argument that was read as far as possible.
    pub(super) odd: Option<Bad>,
    /// The caller's and the other side's pieces of memory.
    pub(super) vectors: Option<(Pieces, Pieces)>,
}

/// The calls that make a task.
pub(super) fn clones(name: CallName) -> bool {
    matches!(name, CallName::Clone | CallName::Clone3 | CallName::Fork | CallName::Vfork)
}

/// The argument that is a descriptor.
fn descriptor(name: CallName) -> Option<usize> {
    match name {
        CallName::Mmap => Some(4),
        CallName::Ftruncate | CallName::Fallocate => Some(0),
        _ => None,
    }
}

/// Reads the text of a call of which it is known that `name` is its name.
pub(super) fn read(text: &[u8], known: CallName) -> Result<Made<'_>, Bad> {
    let begin = find(text, b"(").map_or(0, |at| at + 1);
    let (found, closed) = args(text, begin)?;
    let closed = closed.ok_or(Bad::Expected("`)` behind the arguments", text.len()))?;
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
        // Its task was killed in it: what stands there is not its answer.
        end.returned = Returned::Never;
    }
    Ok(Made { name: known, args, end, note, odd, vectors })
}

/// The call of this name.
pub(super) fn parse(name: &str) -> Option<CallName> {
    if name == MSEAL { Some(CallName::Mseal) } else { CallName::parse(name) }
}

/// The name of the call that `text` begins with, and whether that is one that recordings hold.
pub(super) fn which(text: &[u8]) -> Result<(&str, Option<CallName>), Bad> {
    let (name, rest) = name(text).ok_or(Bad::Expected("a call: NAME(ARGUMENTS) = RESULT", 0))?;
    let known = parse(name).filter(|known| match known {
        // What it changes only snapshots show.
        CallName::Personality => false,
        CallName::Prctl => concerns_memory(rest),
        CallName::Fcntl => concerns_files(rest),
        CallName::Ioctl => concerns_userfaultfd(rest),
        CallName::Capset | CallName::Prlimit64 | CallName::Setrlimit => limits(*known, rest),
        _ => true,
    });
    Ok((name, known))
}

/// The flags of the clone in `text`, which need not be complete.
pub(super) fn clone_flags(text: &[u8], known: CallName) -> Result<u64, Bad> {
    if known == CallName::Vfork {
        return Ok(VFORK);
    }
    let (found, _) = args(text, known.as_str().len() + 1)?;
    Ok(values(known, &found, &mut None)?[0] & !EXIT_SIGNAL)
}

/// What the call in `text`, which need not be complete, may make free.
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

/// The call returns 0 or an error.
fn returns_nothing(name: CallName, args: &[u64; 6]) -> bool {
    use CallName::{Madvise, Mbind, Mlock, Mlock2, Mlockall};
    use CallName::{Mprotect, Msync, Munlock, Munlockall, Munmap};
    matches!(name, Madvise | Mbind | Mlock | Mlock2 | Mlockall)
        || name == CallName::Ioctl && args[1] != uffdio::NEW
        || matches!(name, Mprotect | Msync | Munlock | Munlockall | Munmap)
}

/// How many arguments there are at least when the call has returned: strace leaves out those that mean
/// nothing.
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

/// How many there are at most.
fn most(name: CallName) -> usize {
    match name {
        CallName::Execve | CallName::Execveat => usize::MAX,
        CallName::Ioctl => 3,
        CallName::Setrlimit | CallName::Capset => 2,
        name => name.arity(),
    }
}

/// The arguments as numbers.
fn values(name: CallName, found: &[Arg<'_>], odd: &mut Option<Bad>) -> Result<[u64; 6], Bad> {
    // Of flags with an unknown name among them, the others count.
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

/// The flags in `{flags=CLONE_VM|..., exit_signal=SIGCHLD, ...}`.
fn clone3_flags(found: &[Arg<'_>]) -> Result<u64, Bad> {
    let Some(arg) = found.first() else { return Ok(0) };
    named(&members(*arg)?, "flags").map_or(Ok(0), number)
}

/// What follows a descriptor between `<` and `>`.
fn note<'a>(arg: &Arg<'a>) -> Option<&'a [u8]> {
    let at = arg.text.iter().position(|byte| *byte == b'<')?;
    let end = arg.text.iter().rposition(|byte| *byte == b'>')?;
    arg.text.get(at + 1..end)
}

/// A path, as it is written between quotation marks.
fn path<'a>(arg: &Arg<'a>) -> Option<&'a [u8]> {
    arg.text.strip_prefix(b"\"")?.strip_suffix(b"\"")
}

fn concerns_files(args_text: &[u8]) -> bool {
    let second = args(args_text, 0).ok().and_then(|(found, _)| found.get(1).copied());
    second.and_then(|arg| number(arg).ok()).is_some_and(|operation| fcntl::KEPT.contains(&(operation as u32)))
}

/// It sets a limit on memory, and the text shows which; or it sets capabilities.
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

/// The effective set among the arguments of capset has CAP_IPC_LOCK.
fn lifts_limits(found: &[Arg<'_>]) -> bool {
    let inside = found.get(1).and_then(|arg| members(*arg).ok()).unwrap_or_default();
    named(&inside, "effective").is_some_and(|set| find(set.text, b"CAP_IPC_LOCK").is_some())
}

/// Of what a call changes, as in `features=0 => features=0x80`, what it was.
fn as_passed(arg: Arg<'_>) -> Arg<'_> {
    let end = find(arg.text, b" => ").unwrap_or(arg.text.len());
    Arg { text: &arg.text[..end], ..arg }
}

/// It is about a userfaultfd, and the text shows what it says: strace does where the kernel, too, can read
/// it.
fn concerns_userfaultfd(args_text: &[u8]) -> bool {
    let found = args(args_text, 0).map(|(found, _)| found).unwrap_or_default();
    let operation = found.get(1).and_then(|arg| number(*arg).ok());
    operation.is_some_and(|operation| uffdio::KEPT.contains(&operation))
        && found.get(2).is_some_and(|arg| arg.text.starts_with(b"{") || operation == Some(uffdio::NEW))
}

fn concerns_memory(args_text: &[u8]) -> bool {
    let first = args(args_text, 0).ok().and_then(|(found, _)| found.first().copied());
    first.and_then(|arg| number(arg).ok()).is_some_and(|operation| prctl::KEPT.contains(&operation))
}

impl Made<'_> {
    /// The flags of a clone, without the signal at the child's end.
    pub(super) fn flags(&self) -> u64 {
        if self.name == CallName::Vfork { VFORK } else { self.args[0] & !EXIT_SIGNAL }
    }

    /// What it returned if it succeeded.
    pub(super) fn value(&self) -> Option<u64> {
        self.end.returned.value()
    }

    /// The range at which it has mapped something where nothing was before; none if it has not, or need not
    /// have found the place free.
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
