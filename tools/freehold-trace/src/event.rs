//! One line of a recording: what a task did, when, and what it cost there.

use crate::{Limits, TmpfsHuge};
use std::ops::Range;

/// What happened, in the order in which the kernel applied it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Event {
    /// Line of the file that says so, from 1.
    pub line: u32,
    /// When it took effect, in nanoseconds since the first event.
    pub time: u64,
    /// Processor it ran on, where that is known.
    pub cpu: Option<u16>,
    /// Serial number of the thread; a process goes by that of its first thread.
    pub task: u32,
    /// What it was.
    pub kind: Kind,
    /// What it cost on the recorded machine.
    pub cost: Cost,
}

/// Kinds of event.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Kind {
    /// A page fault.
    Fault {
        /// The address touched.
        address: u64,
        /// What the processor said of it.
        code: FaultCode,
        /// Taken by the kernel inside execve, for the new image: already in the snapshot of the exec.
        in_exec: bool,
    },
    /// A system call.
    Call(Box<Call>),
    /// A new task.
    Clone {
        /// Its serial number.
        child: u32,
        /// The process it belongs to; its own number for the first thread of a new process.
        process: u32,
        /// As of clone(2): `CLONE_VM` shares the address space, else it is copied now.
        flags: u64,
    },
    /// The process of the task has these resource limits from now on.
    Limits(Box<Limits>),
    /// execve succeeded: the process has a new address space.
    Exec {
        /// The snapshot that shows it, where one was taken.
        snapshot: Option<u32>,
    },
    /// The task exits.
    Exit {
        /// It was the last of its process.
        last: bool,
    },
    /// An address space of this process has been torn down.
    TornDown {
        /// The process.
        process: u32,
    },
    /// A SIGSEGV or SIGBUS was raised by this task or sent to it.
    Signal {
        /// 11 or 7.
        signal: u8,
        /// `si_code`: 1 SEGV_MAPERR, 2 SEGV_ACCERR; 0 and below: sent by a process.
        code: i32,
    },
    /// A snapshot was taken here.
    Snapshot {
        /// Its number.
        id: u32,
        /// Why.
        why: Why,
        /// Of which process.
        process: u32,
    },
    /// The whole process tree was frozen from now on.
    Frozen {
        /// For so long.
        ns: u64,
    },
    /// Events from here on found no room in the recorder's buffers, or a line cannot be read. They were the
    /// task's, or if that is 0, nobody knows whose: then the loss goes on until an event with 0 events lost.
    Lost {
        /// How many. 0: a loss that began before is over.
        events: u64,
    },
}

/// What led to a snapshot.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Why {
    /// The end of an execve: the image is mapped, no instruction of it has run.
    Exec,
    /// The whole tree was frozen, no call half done.
    Freeze,
    /// The last thread of a process exits.
    Exit,
    /// A freeze that met an execve half done. Says nothing certain.
    MidExec,
}

impl Why {
    /// Returns the reason that has this word in a recording.
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

/// What the processor pushes when a page fault is taken.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Default)]
pub struct FaultCode(pub u8);

impl FaultCode {
    /// The page was present: a violation of rights.
    pub fn present(self) -> bool {
        self.0 & 1 != 0
    }

    /// It was a write.
    pub fn write(self) -> bool {
        self.0 & 2 != 0
    }

    /// Taken in user mode.
    pub fn user(self) -> bool {
        self.0 & 4 != 0
    }

    /// An instruction was fetched.
    pub fn exec(self) -> bool {
        self.0 & 16 != 0
    }
}

/// A system call with its arguments as passed and what it returned.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Call {
    /// Which.
    pub name: CallName,
    /// Its arguments; those beyond the last are zero. A negative number is in two's complement. Those of an
    /// ioctl are the descriptor, the operation, and what the structure says: where, how long, and the
    /// mode (0 for UFFDIO_UNREGISTER); for UFFDIO_API the number of the interface and the features; for
    /// USERFAULTFD_IOC_NEW the flags. Of prlimit64 and setrlimit, the new limits, soft and hard, stand
    /// in place of the addresses, and a process's serial number in place of a PID (0: the caller's). That of
    /// capset is the lower half of the effective set.
    pub args: [u64; 6],
    /// What came back.
    pub returned: Returned,
    /// The file that it mapped, by its number in the recording.
    pub file: Option<u32>,
    /// What it moved, where the recording shows it (process_vm_readv, process_vm_writev), or the ranges that
    /// it was about (process_madvise).
    pub transfer: Option<Box<Transfer>>,
    /// Where calls of other tasks were under way at the same time, of which one changes what is mapped: a
    /// text by strace does not tell which came first.
    pub beside: Vec<Beside>,
}

/// Addresses that two calls concern which were under way at once.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Beside {
    /// The addresses.
    pub range: Range<u64>,
    /// The other call comes later among the events.
    pub later: bool,
    /// What is mapped there stays; but which of it is locked changes.
    pub locks: bool,
}

/// What process_vm_readv or process_vm_writev moved, or what process_madvise was about.
#[derive(Clone, Debug, PartialEq, Eq, Default)]
pub struct Transfer {
    /// The process on the other side, by its serial number or that of a thread of it; none when the
    /// recording does not know it.
    pub process: Option<u32>,
    /// The caller's own pieces: address and length.
    pub local: Vec<(u64, u64)>,
    /// The other side's.
    pub remote: Vec<(u64, u64)>,
    /// The bytes moved, from the first on, as far as they are shown: for each local piece the beginning of
    /// it.
    pub shown: Vec<Vec<u8>>,
}

/// How a call came back.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Returned {
    /// With this value.
    Value(u64),
    /// With this errno, positive. 512 to 516: interrupted, and begun anew by the kernel.
    Error(u16),
    /// Never.
    Never,
}

impl Returned {
    /// The value of a call that succeeded.
    pub fn value(self) -> Option<u64> {
        match self {
            Returned::Value(value) => Some(value),
            _ => None,
        }
    }
}

macro_rules! calls {
    ($($variant:ident $name:literal $args:literal,)*) => {
        /// The calls that recordings hold.
        #[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
        #[repr(u8)]
        pub enum CallName {
            $(#[doc = concat!("`", $name, "`")] $variant,)*
        }

        impl CallName {
            /// All of them.
            pub const ALL: &[CallName] = &[$(CallName::$variant),*];

            /// Its name.
            pub fn as_str(self) -> &'static str {
                match self {
                    $(CallName::$variant => $name,)*
                }
            }

            /// The call of this name.
            pub fn parse(name: &str) -> Option<CallName> {
                match name {
                    $($name => Some(CallName::$variant),)*
                    _ => None,
                }
            }

            /// How many arguments it takes.
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
    /// Whether it is a process_madvise that can be known to be about the caller: by a descriptor that says so
    /// (`PIDFD_SELF_THREAD`, `PIDFD_SELF`), or because the advice was taken, and is none that is taken
    /// from others. Which process other descriptors mean is not recorded.
    pub fn advises_itself(&self) -> bool {
        let for_others = matches!(self.args[3], 3 | 20 | 21 | 25);
        self.name == CallName::ProcessMadvise
            && (matches!(self.args[0] as i32, -10_001 | -10_000)
                || !for_others && self.returned.value().is_some_and(|bytes| bytes > 0))
    }
}

/// What an event cost on the recorded machine, in nanoseconds, as far as the recording says so.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default)]
pub struct Cost {
    /// From the entry of the call to the event's time (`e`).
    pub before: Option<u64>,
    /// From the event's time to the return (`x`); a fault without it was not resolved, or ended in a signal.
    pub after: Option<u64>,
    /// Waited for the mmap lock for writing (`w`).
    pub write_wait: Option<u64>,
    /// Waited for the mmap lock for reading (`r`). A fault that waited for neither ran under its VMA's lock
    /// alone.
    pub read_wait: Option<u64>,
    /// Held the mmap lock (`h`): for writing when there is a `write_wait`, else for reading.
    pub held: Option<u64>,
    /// Held it for reading after a downgrade (`d`).
    pub downgraded: Option<u64>,
    /// Further acquisitions of it within the call (`l`).
    pub more_locks: u32,
    /// TLB-flush interrupts sent to other processors (`i`).
    pub interrupts: u32,
    /// A major fault (`M`).
    pub major: bool,
}

impl CallName {
    /// It sets resource limits, or the capabilities that lift them.
    pub fn is_of_limits(self) -> bool {
        matches!(self, CallName::Capset | CallName::Prlimit64 | CallName::Setrlimit)
    }

    /// It makes, copies or closes descriptors of open files, or asks something of one.
    pub fn is_of_descriptors(self) -> bool {
        use CallName::{Close, CloseRange, Creat, Dup, Dup2, Dup3, Fcntl, Open, Openat, Openat2};
        matches!(self, Close | CloseRange | Creat | Dup | Dup2 | Dup3 | Fcntl | Open | Openat | Openat2)
    }
}

/// A file that the recording maps.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct FileInfo {
    /// Its number.
    pub id: u32,
    /// Its size in bytes, as found after the run; unknown when it was gone by then or is no file.
    pub size: Option<u64>,
    /// Bytes of its pages, if those are huge ones from a pool.
    pub huge: Option<u64>,
    /// Where it has huge pages, if it lies in a mounted tmpfs.
    pub tmpfs: Option<TmpfsHuge>,
    /// Its path.
    pub path: String,
}
