//! Tests the reader of `/proc` (`proc.rs`): smaps, limits, status and pagemap.
//!
//! Most tests parse the text of a file of `/proc` and compare the fields. Two tests read this process itself;
//! they pass without a check on kernels before 6.7, which lack the ioctl of pagemap.

#![expect(unsafe_code, reason = "no library maps memory with many runs of pages")]

use super::*;

const SMAPS: &str = "\
55d4c8a00000-55d4c8a02000 r-xp 00001000 fe:00 247493                     /tmp/a name  with blanks
Size:                  8 kB
KernelPageSize:        4 kB
Rss:                   4 kB
Pss:                   4 kB
Shared_Clean:          0 kB
Private_Dirty:         4 kB
Anonymous:             4 kB
THPeligible:           1
ProtectionKey:         0
VmFlags: rd ex mr mw me sd \n\
7ffd53031000-7ffd53052000 rw-s 00000000 00:00 0 \n\
Rss:                  12 kB
VmFlags: rd wr mr mw me gd ac \n";

#[test]
fn areas_have_sizes_and_flags() {
    let areas = areas(SMAPS).unwrap();
    let [code, shared] = areas.as_slice() else { panic!("{areas:?}") };
    assert_eq!((code.start, code.end, code.offset), (0x55d4_c8a0_0000, 0x55d4_c8a0_2000, 0x1000));
    assert_eq!((code.prot, code.shared, code.thp_eligible), (5, false, true));
    assert_eq!(code.name, "/tmp/a name  with blanks");
    assert_eq!(code.sizes, Some([4, 0, 0, 0, 4, 0, 4, 0, 0]));
    assert_eq!(code.flags.as_ref().unwrap().len(), 6);
    assert_eq!((shared.prot, shared.shared, shared.name.as_str()), (3, true, ""));
    assert_eq!(shared.sizes.unwrap()[0], 12);
}

#[test]
fn soft_limits_are_read_and_the_hard_limit_of_data() {
    let text = "\
Limit                     Soft Limit           Hard Limit           Units     
Max cpu time              unlimited            unlimited            seconds
Max data size             0                    unlimited            bytes
Max stack size            8388608              unlimited            bytes
Max locked memory         4096                 8192                 bytes
Max address space         1073741824           unlimited            bytes
";
    let limits = |set: &str| limits(text, &format!("Name:\tx\nCapEff:\t{set}\n"));
    let expected = Limits {
        address_space: 1 << 30,
        data: 0,
        data_hard: u64::MAX,
        stack: 8 << 20,
        memlock: 4096,
        may_lock: true,
    };
    assert_eq!(limits("0000000000004000").unwrap(), expected);
    assert!(!limits("ffffffffffffbfff").unwrap().may_lock);
    assert!(super::limits("Max data size 0 0 bytes", "CapEff:\t0\n").is_err());
    assert!(limits_of(std::process::id() as i32).is_ok());
}

#[test]
fn text_other_than_smaps_is_refused() {
    for text in ["Rss: 4 kB\n", "nonsense\n", "1000-2000 rw-p 0 00:00 0 \nRss: many kB\n"] {
        assert!(areas(text).is_err(), "{text}");
    }
}

/// A reader gets smaps in parts, and another process may change the address space between two parts.
#[test]
fn inconsistent_smaps_is_refused() {
    let lines = |ranges: &[&str]| {
        let lines: String =
            ranges.iter().map(|range| format!("{range} rw-p 0 00:00 0 \nRss: 4 kB\n")).collect();
        areas(&lines).map(|areas| areas.len()).map_err(|error| error.to_string())
    };
    assert_eq!(lines(&["1000-2000", "2000-5000", "ffffffffff600000-ffffffffff601000"]), Ok(3));
    for ranges in [["1000-4000", "3000-5000"], ["3000-4000", "1000-2000"], ["1000-2000", "1000-2000"]] {
        let error = lines(&ranges).unwrap_err();
        assert!(error.contains("changes while it is read"), "{error}");
    }
}

#[test]
fn status_contains_only_sizes() {
    let text =
        "Name:\tls\nVmPeak:\t    5000 kB\nVmRSS:\t 12 kB\nRssAnon:\t 4 kB\nVmSwap:\t 0 kB\nThreads:\t1\n";
    let expected = [("VmPeak", 5000), ("VmRSS", 12), ("RssAnon", 4)];
    assert_eq!(status(text), expected.map(|(name, size)| (name.to_owned(), size)));
}

#[test]
fn snapshot_of_this_process_is_complete() {
    let own = std::process::id() as i32;
    let snapshot = loop {
        match snapshot(own, own, Why::Freeze) {
            Ok(snapshot) => break snapshot,
            // This process is not stopped: a concurrent test may map something between two lines.
            Err(error) if format!("{error:#}").contains("changes while it is read") => {}
            // Linux before 6.7 does not have the ioctl.
            Err(error) if format!("{error:#}").contains("os error 25") => return,
            Err(error) => panic!("{error:#}"),
        }
    };
    let here = &raw const snapshot as u64;
    assert!(snapshot.areas.iter().any(|area| (area.start..area.end).contains(&here)));
    assert!(snapshot.areas.is_sorted_by_key(|area| area.start));
    assert!(snapshot.pages.is_sorted_by_key(|run| run.first));
    let page = here >> 12;
    assert!(snapshot.pages.iter().any(|run| (run.first..run.first + run.count).contains(&page)));
}

/// The mapping has more runs of pages than the kernel returns in one call.
#[test]
fn many_runs_of_pages_are_complete_and_ascending() {
    const RUNS: usize = 10_000;
    let len = 2 * RUNS * 4096;
    let (rights, kind) = (libc::PROT_READ | libc::PROT_WRITE, libc::MAP_PRIVATE | libc::MAP_ANONYMOUS);
    // SAFETY: the call creates a new mapping, which no other code uses.
    let at = unsafe { libc::mmap(std::ptr::null_mut(), len, rights, kind, -1, 0) };
    assert_ne!(at, libc::MAP_FAILED);
    // SAFETY: the range is the mapping created above. Huge pages would merge all runs into one.
    unsafe { libc::madvise(at, len, libc::MADV_NOHUGEPAGE) };
    for run in 0..RUNS {
        // SAFETY: the address is inside the mapping.
        unsafe { at.cast::<u8>().add(run * 8192).write(1) };
    }
    let pagemap = File::open("/proc/self/pagemap").unwrap();
    let found = match pages(&pagemap) {
        Ok(found) => found,
        // Linux before 6.7 does not have the ioctl.
        Err(error) if error.raw_os_error() == Some(libc::ENOTTY) => return,
        Err(error) => panic!("{error}"),
    };
    let first = at as u64 >> 12;
    let own: Vec<_> =
        found.iter().filter(|run| (first..first + 2 * RUNS as u64).contains(&run.first)).collect();
    assert_eq!(own.len(), RUNS);
    for (number, run) in own.iter().enumerate() {
        assert_eq!((run.first, run.count), (first + 2 * number as u64, 1));
    }
    // SAFETY: the range was mapped above, and no reference to it exists.
    unsafe { libc::munmap(at, len) };
}
