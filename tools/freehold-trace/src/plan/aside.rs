//! Texts for reports: the reasons why an event is not planned, or an answer or a snapshot is not compared.
//!
//! An event, an answer or a part of a snapshot that the recording does not determine is *set aside*: the plan
//! or the comparison leaves it out, and counts it under one of these reasons. The planner (`Planner::aside`)
//! and the replay count with the same texts, and a report prints each text with its count. A text names the
//! event or answer. If the reason does not follow from the name, a colon and the reason come after the name.
//!
//! Set an answer aside only if the recording cannot decide it: everything that is set aside is lost to the
//! comparison. Tests and `freehold-replay` use the constants, so a text may be reworded here.

#![expect(missing_docs, reason = "each text is its own documentation")]

pub const NO_SPACE: &str = "before the first exec: what was mapped is not recorded";
pub const LOSSES: &str = "places where events were lost, or a line could not be read";
pub const LOST: &str = "after events were lost, or a line could not be read: the mappings of the processes concerned are unknown until their next exec";
pub const IN_EXEC: &str = "faults of the kernel inside execve: part of the exec's snapshot";
pub const FIXED_UP: &str = "kernel-mode faults that were not handled: taken with page faults disabled";
pub const NO_END: &str = "interrupted faults: neither resolved nor ended by a signal";
pub const FILES: &str = "calls on files (ftruncate, fallocate, memfd_create): the file is not recorded";
pub const POOL: &str =
    "mmap of huge pages refused because the pool had too few: the size of the pool is not recorded";
pub const NAMES: &str = "prctl(PR_SET_VMA): the recorded kernel has no names for anonymous memory";
pub const FAILURE: &str =
    "madvise(MADV_HWPOISON, MADV_SOFT_OFFLINE): the recorded kernel does not handle failing memory";
pub const PRCTL: &str = "other prctl calls";
pub const NUMA: &str = "placement on NUMA nodes";
pub const KEYS: &str =
    "refused allocations of protection keys: whether the processor supports keys is not recorded";
pub const SHM: &str = "shmget and shmctl, which concern only the System V segments themselves";
pub const OUTSIDE: &str = "shmat of removed segments that only unrecorded processes have attached";
pub const IN_TWO: &str = "remap_file_pages refused with EIDRM because its System V segment was removed during the call: the replay makes the call in one step";
pub const TASKS: &str = "failed fork, clone and exec";
pub const OTHERS: &str = "calls on other processes, and userfaultfd";
pub const USERFAULTFD: &str =
    "moves refused in processes that have a userfaultfd: not all registrations are recorded";
pub const RESTARTED: &str = "calls that a signal interrupted and that the kernel restarted";
pub const MID_EXEC: &str = "snapshots that a freeze took inside an execve";
pub const DIES_IN_EXEC: &str = "snapshots of processes that end inside an execve: which part of the new image was mapped is not recorded";
pub const UNKNOWN_SPACE: &str = "snapshots of address spaces whose start is not recorded";
pub const UNSURE: &str = "answers that depend on memory mapped before the recording began";
pub const UNSHOWN: &str = "mremap refused, perhaps because of its new address, which strace does not show";
pub const POLICY: &str = "refused mbind: the available nodes and modes are not recorded";

// Contents of snapshots that are not compared. `RANGES` is also counted for calls.

pub const HOW_OPENED: &str =
    "flags sh and mw of shared VMAs that are not writable: how their files were opened is not recorded";
pub const EXECUTED: &str = "execute rights that personality(READ_IMPLIES_EXEC) may have added: recordings before version 3 do not contain the call";
pub const HUGE_SETTING: &str = "huge pages of anonymous memory, if the setting changed during the run: the time of the change is not recorded";
pub const DROPPED: &str =
    "missing pages of droppable or lazily freed memory: the kernel reclaims them when memory is short";
pub const RECLAIMED: &str = "missing pages of files: the replay has less memory than the recorded machine";
pub const WRITES: &str = "flag ac of private VMAs that process_vm_writev may have written to: the addresses are in the caller's memory, which is not recorded";
pub const CUT: &str = "private pages of files that may have been truncated, or may have been shorter: the file's length at that time is not recorded";
pub const BESIDE_FORK: &str =
    "pages that a thread mapped or unmapped while another thread forked: the order is not recorded";
pub const HUGE_STORES: &str =
    "huge pages written while another process that shared them exited: the order is not recorded";
pub const STOLEN: &str = "missing private huge pages: if a pool is empty, the kernel takes pages of a forked child, and the size of the pool is not recorded";
pub const RANGES: &str = "process_madvise, and pages that it may have removed: its ranges are not recorded";
pub const FILE_NAMES: &str = "names of mapped files that are not recorded";
pub const KERNEL: &str = "pages that no recorded event has touched: the kernel's own faults (O_DIRECT, futexes, vmsplice) are not recorded";

// Userfaultfds.

pub const REGISTRATIONS: &str = "registrations with a userfaultfd that Linux refused, perhaps because of missing features: the UFFDIO_API is not recorded";
pub const ELSEWHERE: &str = "registrations with a userfaultfd of ordinary files (UFFD_FEATURE_WP_ASYNC): the replay does not make them";
pub const COPIED: &str = "registrations that forked children inherit (UFFD_FEATURE_EVENT_FORK): the close of their descriptor is not recorded";
pub const UNSERVED: &str = "calls that did not get all pages from a userfaultfd: the pages that its program supplied are not recorded";

// Calls and faults that a replay does not make, or does not compare.

pub const NO_SUCH_CALL: &str =
    "calls that the engine does not implement, and transfers with processes that are not recorded";
pub const OWN_BYTES: &str =
    "bytes read by process_vm_readv that no recorded call wrote: a program's own stores are not recorded";
pub const OWN_MEMORY: &str = "transfers that moved fewer bytes than requested: strace does not show the mappings of the caller's own memory";
pub const GROWTH: &str = "faults below memory that grows downwards, refused by a limit that is not recorded";
pub const FILE_ENDS: &str =
    "SIGBUS and EFAULT in files: the file's length and the size of the pool at that time are not recorded";
pub const KEY_RIGHTS: &str =
    "faults that a protection key refused: a thread changes the rights of its keys without a call";

// Addresses that are not compared.

pub const SOMEWHERE: &str = "addresses of MAP_32BIT: Linux starts to search at a random address";
pub const SETTING: &str = "addresses of shared memory: Linux aligns long mappings for larger pages, and the length from which it does so is not recorded";

// Calls that Linux refused.

pub const UNTOLD: &str = "calls that Linux refused because of limits, credentials, overcommit or the mode in which a file was opened: these are not recorded";
pub const DRIVERS: &str = "mappings of drivers' files: the flags that a driver sets decide which VMAs may merge and grow, and are not recorded";
pub const APART: &str =
    "mremap of VMAs that page faults may have kept from merging: strace does not show page faults";
pub const SEALED: &str = "calls refused with EPERM in strace output without mseal, perhaps because of sealed memory: strace shows mseal since version 6.9";
pub const COLLAPSED: &str =
    "madvise(MADV_COLLAPSE): strace records neither the present pages nor the free memory at that time";
pub const GROWN: &str = "memory that grows downwards, if the kernel's own accesses (/proc/PID/mem, ptrace) made it grow: these accesses are not recorded";
pub const POPULATED: &str = "madvise(MADV_POPULATE_READ, MADV_POPULATE_WRITE) beyond the end of a file: the file's length at that time is not recorded";
pub const SYNC: &str =
    "mmap(MAP_SYNC) of files: the file system is not recorded, and decides which error the call returns";

// Resident pages of files.

pub const FEWER: &str = "VMAs of files that lack pages around those faulted in: which pages were in the page cache, unlocked and not marked for readahead, is not recorded";
pub const MORE: &str = "VMAs of files with more pages around those faulted in: which pages were parts of large folios, or came into shared memory by other means than recorded faults, is not recorded";
pub const HASTE: &str = "VMAs of files in snapshots taken in haste: their resident pages were not read";
pub const NO_LIST: &str = "VMAs of files in snapshots without a list of pages: the snapshot does not show whether they have more pages";
