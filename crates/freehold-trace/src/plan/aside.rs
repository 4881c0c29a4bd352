//! Why an event is not part of the plan, or its answer not compared.

pub(super) const NO_SPACE: &str = "before the first exec: what was mapped is not recorded";
pub(super) const LOSSES: &str = "places where events were lost, or a line could not be read";
pub(super) const LOST: &str = "after events were lost, or a line could not be read: what the processes concerned have mapped is not known until their next exec";
pub(super) const IN_EXEC: &str = "faults of the kernel inside execve: part of the exec's snapshot";
pub(super) const FIXED_UP: &str = "kernel-mode faults that were not handled: taken with page faults disabled";
pub(super) const NO_END: &str = "faults that were interrupted: neither resolved nor a signal";
pub(super) const FILES: &str =
    "calls on files (ftruncate, fallocate, memfd_create): the file is not recorded";
pub(super) const POOL: &str =
    "mmap of huge pages refused for want of them: how many the pool had is not recorded";
pub(super) const NAMES: &str = "prctl(PR_SET_VMA): the recorded kernel has no names for anonymous memory";
pub(super) const FAILURE: &str =
    "madvise(MADV_HWPOISON, MADV_SOFT_OFFLINE): the recorded kernel does not handle failing memory";
pub(super) const PRCTL: &str = "other prctl calls";
pub(super) const NUMA: &str = "placement on NUMA nodes";
pub(super) const KEYS: &str =
    "allocation of protection keys where nobody is given one: whether the processor has any is not recorded";
pub(super) const SHM: &str = "shmget and shmctl: System V segments themselves";
pub(super) const OUTSIDE: &str = "shmat of removed segments that somebody has attached who is not recorded";
pub(super) const IN_TWO: &str = "remap_file_pages that the removal of its System V segment fell into, refused with EIDRM: here it is one step";
pub(super) const TASKS: &str = "fork, clone and exec that failed";
pub(super) const OTHERS: &str = "calls on other processes, and userfaultfd";
pub(super) const USERFAULTFD: &str = "moves refused in processes that have a userfaultfd: what is registered with it is not recorded, or not all of it";
pub(super) const RESTARTED: &str = "calls interrupted by a signal and begun anew";
pub(super) const MID_EXEC: &str = "snapshots that a freeze took inside an execve";
pub(super) const UNKNOWN_SPACE: &str = "snapshots of address spaces whose start is not recorded";
pub(super) const UNSURE: &str = "answers that rest on memory mapped before the recording began";
pub(super) const UNSHOWN: &str = "mremap refused, perhaps for its new address, which the text does not show";
pub(super) const POLICY: &str = "mbind refused: which nodes and modes there are is not recorded";
