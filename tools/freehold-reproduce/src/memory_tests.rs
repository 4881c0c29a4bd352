use super::*;

#[test]
fn meminfo_says_what_is_free() {
    let text = "MemTotal:  100 kB\nMemFree: 10 kB\nMemAvailable:    24000 kB\n";
    assert_eq!(of_meminfo(text), Some(24_576_000));
    assert_eq!(of_meminfo("MemTotal: 100 kB\n"), None);
    assert_eq!(of_meminfo("MemAvailable: many\n"), None);
    assert!(available().is_some_and(|bytes| bytes > 0), "Linux says so");
}

#[test]
fn too_little_memory_is_said_with_what_to_do() {
    assert_eq!(check("hugetlb", 10, Some(10)), Ok(()));
    assert_eq!(check("hugetlb", 10, None), Ok(()), "where nothing is known, it is tried");
    let error = check("munmap-hold", 5 << 30, Some(3 << 30)).expect_err("too little");
    assert_eq!(
        error,
        "munmap-hold needs 5 GiB of memory at this size, and 3 GiB are free: give it more, name other experiments, or \
         choose smaller sizes (--quick, or --at-most 16GiB)"
    );
}
