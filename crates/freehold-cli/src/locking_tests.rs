use super::*;

#[test]
fn every_design_reads_back() {
    for locking in Locking::ALL {
        assert_eq!(parse(&name(locking)), Ok(locking));
    }
    let sections = Locking { unmap: Unmap::Sectioned { bytes: 3 << 20 }, fault: FaultLock::VmaLock };
    assert_eq!(name(sections), "unmap=sectioned:3MiB,fault=vma-lock");
    assert_eq!(parse(&name(sections)), Ok(sections));
    let odd = Locking { unmap: Unmap::Sectioned { bytes: 4097 }, fault: FaultLock::VmaLock };
    assert_eq!(parse(&name(odd)), Ok(odd));
}

#[test]
fn what_is_not_named_is_the_default() {
    let downgraded = Locking { unmap: Unmap::Downgraded, ..Locking::default() };
    assert_eq!(parse("unmap=downgraded"), Ok(downgraded));
    let mmap_lock = Locking { fault: FaultLock::MmapLock, ..Locking::default() };
    assert_eq!(parse("fault=mmap-lock"), Ok(mmap_lock));
}

#[test]
fn what_is_wrong_is_said_with_what_there_is() {
    for (spec, said) in [
        ("", "unmap=(exclusive, sectioned[:BYTES], downgraded, released) and fault=(mmap-lock, vma-lock)"),
        ("mmap=released", "unmap=(exclusive"),
        ("unmap=quick", "there are exclusive, sectioned[:BYTES], downgraded, released"),
        ("unmap=released:4096", "takes no size"),
        ("unmap=sectioned:", "no size of a section"),
        ("unmap=sectioned:0", "no size of a section"),
        ("unmap=sectioned:-1", "no size of a section"),
        ("unmap=sectioned:99999999999GiB", "no size of a section"),
        ("unmap=sectioned:4 KiB", "no size of a section"),
        ("fault=page-lock", "there are mmap-lock, vma-lock"),
        ("fault=vma-lock,fault=mmap-lock", "chosen twice"),
        ("unmap=released,", "no choice of locking"),
    ] {
        let error = parse(spec).expect_err(spec);
        assert!(error.contains(said), "{spec}: {error}");
    }
}
