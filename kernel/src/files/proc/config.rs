//! /proc/config.gz: what of Linux's options there is here, in the form in which programs look for it. The
//! archive stores its text as it is.

use alloc::vec::Vec;

/// Options of Linux whose subjects this kernel has.
const THERE: &[&str] = &[
    "64BIT",
    "X86_64",
    "MMU",
    "SMP",
    "MULTIUSER",
    "POSIX_TIMERS",
    "HIGH_RES_TIMERS",
    "FUTEX",
    "EPOLL",
    "TIMERFD",
    "EVENTFD",
    "SHMEM",
    "TMPFS",
    "PROC_FS",
    "PROC_SYSCTL",
    "PROC_PAGE_MONITOR",
    "SYSFS",
    "SYSVIPC",
    "BINFMT_ELF",
    "BINFMT_SCRIPT",
    "ADVISE_SYSCALLS",
    "MEMBARRIER",
    "MEMFD_CREATE",
    "SECRETMEM",
    "USERFAULTFD",
    "HAVE_ARCH_USERFAULTFD_WP",
    "HAVE_ARCH_USERFAULTFD_MINOR",
    "HUGETLBFS",
    "HUGETLB_PAGE",
    "TRANSPARENT_HUGEPAGE",
    "MEMORY_FAILURE",
    "CROSS_MEMORY_ATTACH",
    "ANON_VMA_NAME",
    "KCMP",
    "CHECKPOINT_RESTORE",
    "COREDUMP",
    "ELF_CORE",
    "NUMA",
    "IKCONFIG",
    "IKCONFIG_PROC",
];

/// Others that programs ask for.
const ABSENT: &[&str] = &[
    "SWAP",
    "KSM",
    "MODULES",
    "NET",
    "CGROUPS",
    "MANDATORY_FILE_LOCKING",
    "EXT2_FS",
    "NAMESPACES",
    "USER_NS",
    "PID_NS",
    "BPF",
    "AIO",
];

fn text() -> Vec<u8> {
    let there = THERE.iter().flat_map(|option| ["CONFIG_", option, "=y\n"]);
    let absent = ABSENT.iter().flat_map(|option| ["# CONFIG_", option, " is not set\n"]);
    there.chain(absent).flat_map(str::bytes).collect()
}

/// The archive (RFC 1952), of one stored block (RFC 1951).
pub fn archive() -> Vec<u8> {
    let text = text();
    let bytes = u16::try_from(text.len()).expect("a text of one block");
    let mut out = Vec::from([0x1f, 0x8b, 8, 0, 0, 0, 0, 0, 0, 3, 1]);
    out.extend(bytes.to_le_bytes());
    out.extend((!bytes).to_le_bytes());
    out.extend(&text);
    out.extend(crc32(&text).to_le_bytes());
    out.extend(u32::from(bytes).to_le_bytes());
    out
}

fn crc32(data: &[u8]) -> u32 {
    let step = |crc: u32| if crc & 1 != 0 { crc >> 1 ^ 0xedb8_8320 } else { crc >> 1 };
    !data.iter().fold(u32::MAX, |crc, byte| (0..8).fold(crc ^ u32::from(*byte), |crc, _| step(crc)))
}
