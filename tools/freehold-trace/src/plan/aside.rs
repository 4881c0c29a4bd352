//! Why something is not checked, in the words of reports: an event that is not part of the plan, an answer or
//! a snapshot that a replay does not compare.
#![expect(missing_docs, reason = "each is a text that says what it is of")]

pub const NO_SPACE: &str = "before the first exec: what was mapped is not recorded";
pub const LOSSES: &str = "places where events were lost, or a line could not be read";
pub const LOST: &str = "after events were lost, or a line could not be read: what the processes concerned have mapped is not known until their next exec";
pub const IN_EXEC: &str = "faults of the kernel inside execve: part of the exec's snapshot";
pub const FIXED_UP: &str = "kernel-mode faults that were not handled: taken with page faults disabled";
pub const NO_END: &str = "faults that were interrupted: neither resolved nor a signal";
pub const FILES: &str = "calls on files (ftruncate, fallocate, memfd_create): the file is not recorded";
pub const POOL: &str = "mmap of huge pages refused for want of them: how many the pool had is not recorded";
pub const NAMES: &str = "prctl(PR_SET_VMA): the recorded kernel has no names for anonymous memory";
pub const FAILURE: &str =
    "madvise(MADV_HWPOISON, MADV_SOFT_OFFLINE): the recorded kernel does not handle failing memory";
pub const PRCTL: &str = "other prctl calls";
pub const NUMA: &str = "placement on NUMA nodes";
pub const KEYS: &str =
    "allocation of protection keys where nobody is given one: whether the processor has any is not recorded";
pub const SHM: &str = "shmget and shmctl: System V segments themselves";
pub const OUTSIDE: &str = "shmat of removed segments that somebody has attached who is not recorded";
pub const IN_TWO: &str = "remap_file_pages that the removal of its System V segment fell into, refused with EIDRM: here it is one step";
pub const TASKS: &str = "fork, clone and exec that failed";
pub const OTHERS: &str = "calls on other processes, and userfaultfd";
pub const USERFAULTFD: &str = "moves refused in processes that have a userfaultfd: what is registered with it is not recorded, or not all of it";
pub const RESTARTED: &str = "calls interrupted by a signal and begun anew";
pub const MID_EXEC: &str = "snapshots that a freeze took inside an execve";
pub const DIES_IN_EXEC: &str = "snapshots of processes that end inside an execve: how much of the new image the kernel had mapped is not recorded";
pub const UNKNOWN_SPACE: &str = "snapshots of address spaces whose start is not recorded";
pub const UNSURE: &str = "answers that rest on memory mapped before the recording began";
pub const UNSHOWN: &str = "mremap refused, perhaps for its new address, which the text does not show";
pub const POLICY: &str = "mbind refused: which nodes and modes there are is not recorded";

// What snapshots say that is not compared; `RANGES` are also calls.

pub const HOW_OPENED: &str =
    "flags sh and mw of shared VMAs that do not write: how their files were opened is not recorded";
pub const EXECUTED: &str = "rights to execute what may be read, where personality(READ_IMPLIES_EXEC) may have given them: recordings before version 3 do not tell of it";
pub const HUGE_SETTING: &str =
    "huge pages of anonymous memory, where the setting was changed during the run: when, is not recorded";
pub const DROPPED: &str =
    "pages of droppable memory, or freed lazily, that are gone: the kernel takes them when it wants memory";
pub const WRITES: &str = "flag ac of private VMAs that process_vm_writev may have written to: where, lies in the caller's memory, which is not recorded";
pub const CUT: &str = "private pages in files that may have lost them, or been shorter: how long a file was at the time is not recorded";
pub const BESIDE_FORK: &str =
    "pages that a thread brought or took while another one forked: which came first is not recorded";
pub const HUGE_STORES: &str =
    "huge pages stored to while another process that shared them exited: which came first is not recorded";
pub const STOLEN: &str = "private huge pages that are gone: where a pool has none left, the kernel takes those of a forked child, and how many it had is not recorded";
pub const RANGES: &str = "process_madvise, and pages that it may have taken: its ranges are not recorded";
pub const FILE_NAMES: &str = "names of mapped files that are not recorded";
pub const KERNEL: &str = "pages that nothing recorded has touched: the kernel's own faults (O_DIRECT, futexes, vmsplice) are not recorded";

// Userfaultfds.

pub const REGISTRATIONS: &str = "registrations with a userfaultfd that Linux refused, perhaps for what UFFDIO_API said, which is not recorded";
pub const ELSEWHERE: &str =
    "registrations with a userfaultfd of ordinary files (UFFD_FEATURE_WP_ASYNC): the engine has none";
pub const COPIED: &str = "registrations of a userfaultfd with UFFD_FEATURE_EVENT_FORK in forked children: the event hands out their descriptor, and when it is closed is not recorded";
pub const UNSERVED: &str = "calls that wanted pages of a userfaultfd and did not get all of them: what its program supplied is not recorded";

// Calls and faults that a replay does not make, or does not compare.

pub const NO_SUCH_CALL: &str =
    "calls that the engine does not have, and transfers to processes that are not recorded";
pub const OWN_BYTES: &str =
    "bytes read by process_vm_readv that no recorded call wrote: a program's own stores are not recorded";
pub const OWN_MEMORY: &str =
    "transfers that moved less than asked for: where the caller's own memory is, a text does not show";
pub const GROWTH: &str = "faults below memory that grows downwards, refused by a limit that is not recorded";
pub const FILE_ENDS: &str = "SIGBUS and EFAULT in files: how long they were at the time, and how many pages a pool had, is not recorded";
pub const KEY_RIGHTS: &str =
    "faults for want of a protection key's rights, which a thread changes without a call";

// Addresses that are not compared.

pub const SOMEWHERE: &str = "places of MAP_32BIT: Linux begins to look at a random one";
pub const SETTING: &str = "places of shared memory: from what length on it is aligned for larger pages is a setting that is not recorded";

// Calls that Linux refused.

pub const UNTOLD: &str = "calls that Linux refused for limits, credentials, overcommit or how a file was opened, which are not recorded";
pub const DRIVERS: &str = "mappings of drivers' files: which flags a driver gives them, and so what merges and what may grow, is not recorded";
pub const APART: &str =
    "mremap of memory that page faults, which no text shows, may have kept apart from what is beside it";
pub const SEALED: &str = "calls refused with EPERM in a text that shows no mseal, perhaps for memory that is sealed: strace shows mseal since version 6.9";
pub const COLLAPSED: &str = "madvise(MADV_COLLAPSE): which pages were there, which a text does not show, or could be taken at the time, is not recorded";
pub const GROWN: &str = "memory that grows downwards, where the kernel's own accesses (/proc/PID/mem, ptrace) have made it grow: they are not recorded";
pub const POPULATED: &str = "madvise(MADV_POPULATE_READ, MADV_POPULATE_WRITE) behind the end of a file: how long it was at the time, is not recorded";
pub const SYNC: &str = "mmap(MAP_SYNC) of files whose file system may know it: which, is not recorded, and decides which error it is";

// Resident pages of files.

pub const FEWER: &str = "VMAs of files that lack pages around those faulted in: which pages were in the page cache, unlocked and not marked for readahead, is not recorded";
pub const MORE: &str = "VMAs of files with more pages around those faulted in: which pages were parts of large folios, or came into shared memory by other means than recorded faults, is not recorded";
pub const HASTE: &str = "VMAs of files in snapshots taken in haste: their resident pages were not looked at";
pub const NO_LIST: &str =
    "VMAs of files in snapshots that list no pages: whether they may have more is not known";
