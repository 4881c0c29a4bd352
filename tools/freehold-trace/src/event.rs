//! Events: what a task did, when the task did it, and the cost on the recorded machine. A recording has one
//! line for each event.
//!
//! This file has only the data types. `trace.rs` reads events from a `NAME.trace`, `strace/` from strace
//! output, and `write.rs` writes them; `plan/` and `freehold-replay` use them. A letter in parentheses, such
//! as (`e`), is the key of the field in a line of the recording (`docs/reference/trace-format.md`).
//!
//! A new call needs a line in `calls!`, its addresses in `addresses.rs`, names of its flags in
//! `strace/symbols.rs`, and an arm in `plan/calls.rs` if it changes VMAs. It also needs a higher version of
//! `NAME.trace` (`trace.rs`), because older readers cannot read its lines. To be recorded and replayed, the
//! call also needs an entry in `CALLS` of `freehold-record/src/strace.rs` and an arm in
//! `freehold-replay/src/calls.rs`.

use crate::{Limits, TmpfsHuge};
use std::ops::Range;

/// An event of a recording. Events are in the order in which they took effect in the kernel.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Event {
    /// Number of the line in the file, from 1.
    pub line: u32,
    /// The time at which the event took effect, in nanoseconds since the first event.
    pub time: u64,
    /// The number of the processor on which the task ran, if known.
    pub cpu: Option<u16>,
    /// Serial number of the thread. A process has the number of its first thread.
    pub task: u32,
    /// The kind of event.
    pub kind: Kind,
    /// The cost on the recorded machine.
    pub cost: Cost,
}

/// The kinds of event.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Kind {
    /// A page fault.
    Fault {
        /// The address that was accessed.
        address: u64,
        /// The processor's error code.
        code: FaultCode,
        /// True if the kernel took the fault inside execve, for the new image. The snapshot of the exec then
        /// already shows the page.
        in_exec: bool,
    },
    /// A system call.
    Call(Box<Call>),
    /// Creation of a task.
    Clone {
        /// Serial number of the new task.
        child: u32,
        /// The process of the new task. The first thread of a new process has its own number here.
        process: u32,
        /// The flags of clone(2). With `CLONE_VM` the address space is shared, otherwise it is copied at this
        /// time.
        flags: u64,
    },
    /// The resource limits of the task's process, valid from this event on.
    Limits(Box<Limits>),
    /// A successful execve: the process has a new address space.
    Exec {
        /// The snapshot of the new address space, if one was taken.
        snapshot: Option<u32>,
    },
    /// Exit of the task.
    Exit {
        /// True if the task was the last of its process.
        last: bool,
    },
    /// The kernel has torn down an address space of a process: all its memory is unmapped.
    TornDown {
        /// The process.
        process: u32,
    },
    /// A SIGSEGV or SIGBUS that this task raised or received.
    Signal {
        /// The signal: 11 or 7.
        signal: u8,
        /// `si_code`: 1 is SEGV_MAPERR, 2 is SEGV_ACCERR. Values of 0 and below mean that a process sent the
        /// signal.
        code: i32,
    },
    /// A snapshot.
    Snapshot {
        /// The number of the snapshot.
        id: u32,
        /// The reason for the snapshot.
        why: Why,
        /// The process that the snapshot shows.
        process: u32,
    },
    /// The whole process tree is frozen from this event on.
    Frozen {
        /// Duration of the freeze in nanoseconds.
        ns: u64,
    },
    /// A loss: from here on, events did not fit into the recorder's buffers, or a line cannot be read.
    ///
    /// The lost events belong to the event's task. If the task is 0, their tasks are unknown; the loss then
    /// lasts until an event with 0 lost events.
    Lost {
        /// Number of lost events. 0: an earlier loss ends here.
        events: u64,
    },
}

/// Reasons for a snapshot.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Why {
    /// The end of an execve: the image is mapped, and no instruction of the image has run.
    Exec,
    /// A freeze of the whole tree, with no call in progress.
    Freeze,
    /// The exit of the last thread of a process.
    Exit,
    /// A freeze during an execve. The contents of the snapshot are not reliable.
    MidExec,
}

impl Why {
    /// Returns the reason that a recording denotes by this word.
    pub(crate) fn of_word(word: &[u8]) -> Option<Why> {
        match word {
            b"exec" => Some(Why::Exec),
            b"freeze" => Some(Why::Freeze),
            b"exit" => Some(Why::Exit),
            b"midexec" => Some(Why::MidExec),
            _ => None,
        }
    }
}

/// The error code that the processor pushes on a page fault.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Default)]
pub struct FaultCode(pub u8);

impl FaultCode {
    /// Returns true if the page was present. The access then violated the page's rights.
    pub fn present(self) -> bool {
        self.0 & 1 != 0
    }

    /// Returns true if the access was a write.
    pub fn write(self) -> bool {
        self.0 & 2 != 0
    }

    /// Returns true if the fault was taken in user mode.
    pub fn user(self) -> bool {
        self.0 & 4 != 0
    }

    /// Returns true if the access was an instruction fetch.
    pub fn exec(self) -> bool {
        self.0 & 16 != 0
    }
}

/// A system call with its arguments and its result.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Call {
    /// The name of the call.
    pub name: CallName,
    /// The arguments as passed. Arguments beyond the last are zero, and negative numbers are in two's
    /// complement. Some calls have recorded values in place of pointers:
    ///
    /// - ioctl: the descriptor, the operation, and the fields of the structure. For UFFDIO_REGISTER and
    ///   UFFDIO_UNREGISTER the fields are the start, the length and the mode (0 for UFFDIO_UNREGISTER), for
    ///   UFFDIO_API the number of the interface and the features. For
    ///   USERFAULTFD_IOC_NEW the field is the flags.
    /// - prlimit64 and setrlimit: the new soft and hard limit in place of the addresses. prlimit64 has a
    ///   process's serial number in place of a PID (0: the caller's process).
    /// - capset: the lower half of the effective set.
    pub args: [u64; 6],
    /// The result.
    pub returned: Returned,
    /// The file that the call mapped, by its number in the recording.
    pub file: Option<u32>,
    /// The bytes that process_vm_readv or process_vm_writev moved, or the ranges that process_madvise named,
    /// if the recording contains them.
    pub transfer: Option<Box<Transfer>>,
    /// Ranges that calls of other tasks *beside* this call also concern. Only strace output has such ranges:
    /// if two calls overlap in time, strace output does not show which call took effect first.
    pub beside: Vec<Beside>,
}

/// A range that a call has in common with a call *beside* it: the times of the two calls overlap, and at
/// least one of them changes mappings or locks there. Which of the two took effect first is unknown.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Beside {
    /// The range.
    pub range: Range<u64>,
    /// True if the other call is later in the recording.
    pub later: bool,
    /// True if only the locks on the memory of the range (mlock) are unknown, and its mappings are known.
    pub locks: bool,
}

/// The bytes that process_vm_readv or process_vm_writev moved, or the ranges that process_madvise named.
#[derive(Clone, Debug, PartialEq, Eq, Default)]
pub struct Transfer {
    /// The other process, by its serial number or the serial number of one of its threads. `None` if the
    /// recording does not contain the process.
    pub process: Option<u32>,
    /// The ranges in the caller's memory: address and length.
    pub local: Vec<(u64, u64)>,
    /// The ranges in the other process's memory.
    pub remote: Vec<(u64, u64)>,
    /// The moved bytes, as far as the recording shows them: one entry for each local range, with the first
    /// bytes of the range that are known.
    pub shown: Vec<Vec<u8>>,
}

/// The result of a call.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Returned {
    /// The call returned this value.
    Value(u64),
    /// The call failed with this errno, a positive number. An errno of 512 to 516 means that a signal
    /// interrupted the call and the kernel restarts it.
    Error(u16),
    /// The call did not return.
    Never,
}

impl Returned {
    /// Returns the value of a call that succeeded.
    pub fn value(self) -> Option<u64> {
        match self {
            Returned::Value(value) => Some(value),
            _ => None,
        }
    }
}

macro_rules! calls {
    ($($variant:ident $name:literal $args:literal,)*) => {
        /// The calls that recordings contain.
        #[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
        #[repr(u8)]
        pub enum CallName {
            $(#[doc = concat!("`", $name, "`")] $variant,)*
        }

        impl CallName {
            /// All calls.
            pub const ALL: &[CallName] = &[$(CallName::$variant),*];

            /// Returns the name of the call.
            pub fn as_str(self) -> &'static str {
                match self {
                    $(CallName::$variant => $name,)*
                }
            }

            /// Returns the call with this name.
            pub fn parse(name: &str) -> Option<CallName> {
                match name {
                    $($name => Some(CallName::$variant),)*
                    _ => None,
                }
            }

            /// Returns the number of arguments of the call.
            pub fn arity(self) -> usize {
                match self {
                    $(CallName::$variant => $args,)*
                }
            }
        }
    };
}

calls! {
    Brk "brk" 1,
    Capset "capset" 1,
    Clone "clone" 5,
    Clone3 "clone3" 2,
    Close "close" 1,
    CloseRange "close_range" 3,
    Creat "creat" 2,
    Dup "dup" 1,
    Dup2 "dup2" 2,
    Dup3 "dup3" 3,
    Execve "execve" 3,
    Execveat "execveat" 5,
    Exit "exit" 1,
    ExitGroup "exit_group" 1,
    Fallocate "fallocate" 4,
    Fcntl "fcntl" 3,
    Fork "fork" 0,
    Ftruncate "ftruncate" 2,
    Ioctl "ioctl" 5,
    Madvise "madvise" 3,
    Mbind "mbind" 6,
    MemfdCreate "memfd_create" 2,
    MemfdSecret "memfd_secret" 1,
    MigratePages "migrate_pages" 4,
    Mincore "mincore" 3,
    Mlock "mlock" 2,
    Mlock2 "mlock2" 3,
    Mlockall "mlockall" 1,
    Mmap "mmap" 6,
    MovePages "move_pages" 6,
    Mprotect "mprotect" 3,
    Mremap "mremap" 5,
    Mseal "mseal" 3,
    Msync "msync" 3,
    Munlock "munlock" 2,
    Munlockall "munlockall" 0,
    Munmap "munmap" 2,
    Open "open" 3,
    Openat "openat" 4,
    Openat2 "openat2" 4,
    Personality "personality" 1,
    PkeyAlloc "pkey_alloc" 2,
    PkeyFree "pkey_free" 1,
    PkeyMprotect "pkey_mprotect" 4,
    Prctl "prctl" 5,
    Prlimit64 "prlimit64" 4,
    ProcessMadvise "process_madvise" 5,
    ProcessMrelease "process_mrelease" 2,
    ProcessVmReadv "process_vm_readv" 6,
    ProcessVmWritev "process_vm_writev" 6,
    RemapFilePages "remap_file_pages" 5,
    SetMempolicy "set_mempolicy" 3,
    Setrlimit "setrlimit" 3,
    Shmat "shmat" 3,
    Shmctl "shmctl" 3,
    Shmdt "shmdt" 1,
    Shmget "shmget" 3,
    Truncate "truncate" 2,
    Userfaultfd "userfaultfd" 1,
    Vfork "vfork" 0,
}

impl Call {
    /// Returns true if the call is a process_madvise, and the recording proves that it concerns the caller's
    /// own memory.
    ///
    /// The proof is a descriptor that denotes the caller (`PIDFD_SELF_THREAD`, `PIDFD_SELF`), or a success
    /// with advice that the kernel does not accept for another process. Recordings do not show which process
    /// other descriptors denote.
    pub fn advises_itself(&self) -> bool {
        let for_others = matches!(self.args[3], 3 | 20 | 21 | 25);
        self.name == CallName::ProcessMadvise
            && (matches!(self.args[0] as i32, -10_001 | -10_000)
                || !for_others && self.returned.value().is_some_and(|bytes| bytes > 0))
    }
}

/// The cost of an event on the recorded machine, in nanoseconds, as far as the recording contains it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default)]
pub struct Cost {
    /// Time from the entry of the call to the event's time (`e`).
    pub before: Option<u64>,
    /// Time from the event's time to the return (`x`). A fault without this value was not resolved, or ended
    /// in a signal.
    pub after: Option<u64>,
    /// Wait for the mmap lock for writing (`w`).
    pub write_wait: Option<u64>,
    /// Wait for the mmap lock for reading (`r`). A fault without a recorded wait (`w` or `r`) ran under its
    /// VMA's lock.
    pub read_wait: Option<u64>,
    /// Hold time of the mmap lock (`h`): for writing if `write_wait` is present, otherwise for reading.
    pub held: Option<u64>,
    /// Hold time of the mmap lock for reading after a downgrade (`d`).
    pub downgraded: Option<u64>,
    /// Number of further acquisitions of the mmap lock within the call (`l`).
    pub more_locks: u32,
    /// Number of TLB-flush interrupts sent to other processors (`i`).
    pub interrupts: u32,
    /// True for a major fault (`M`).
    pub major: bool,
}

impl CallName {
    /// Returns true if the call sets resource limits, or capabilities that lift them.
    pub fn is_of_limits(self) -> bool {
        matches!(self, CallName::Capset | CallName::Prlimit64 | CallName::Setrlimit)
    }

    /// Returns true if the call creates, copies or closes descriptors of files, or queries a descriptor.
    pub fn is_of_descriptors(self) -> bool {
        use CallName::{Close, CloseRange, Creat, Dup, Dup2, Dup3, Fcntl, Open, Openat, Openat2};
        matches!(self, Close | CloseRange | Creat | Dup | Dup2 | Dup3 | Fcntl | Open | Openat | Openat2)
    }
}

/// A file that a recorded call maps.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct FileInfo {
    /// The number of the file.
    pub id: u32,
    /// The size in bytes, read after the run. `None` if the file did not exist then, or is no regular file.
    pub size: Option<u64>,
    /// Size in bytes of the file's huge pages, if the file is on a hugetlbfs.
    pub huge: Option<u64>,
    /// The huge-page policy of the file's file system, if the file is on a mounted tmpfs.
    pub tmpfs: Option<TmpfsHuge>,
    /// The path.
    pub path: String,
}
