//! Tests the check of available memory (`memory.rs`): the value read from /proc/meminfo, and the message if
//! an experiment needs more.

use super::*;

#[test]
fn available_memory_is_read_from_meminfo() {
    let text = "MemTotal:  100 kB\nMemFree: 10 kB\nMemAvailable:    24000 kB\n";
    assert_eq!(of_meminfo(text), Some(24_576_000));
    assert_eq!(of_meminfo("MemTotal: 100 kB\n"), None);
    assert_eq!(of_meminfo("MemAvailable: many\n"), None);
    assert!(available().is_some_and(|bytes| bytes > 0), "no available memory was read");
}

#[test]
fn error_of_too_little_memory_suggests_changes() {
    assert_eq!(check("hugetlb", 10, Some(10)), Ok(()));
    assert_eq!(check("hugetlb", 10, None), Ok(()), "unknown memory is not an error");
    let error = check("munmap-hold", 5 << 30, Some(3 << 30)).expect_err("too little");
    assert_eq!(
        error,
        "munmap-hold needs 5 GiB of memory at this size, but only 3 GiB are free: free some memory, choose other experiments, or \
         choose smaller sizes (--quick, or --at-most 16GiB)"
    );
}
