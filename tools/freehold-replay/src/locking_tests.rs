//! Tests the text form of lock designs (`locking.rs`): `parse` reads what `name` writes, a value that is not
//! given is the default, and each error lists the valid values. `every_design_reads_back` takes the designs
//! from `Locking::ALL` and similar lists, so it includes new values; the expected errors list the values
//! literally.

use super::*;
use freehold::space::HugetlbLock;

#[test]
fn every_design_reads_back() {
    for space in Locking::ALL {
        for (fault, file_rmap) in FaultLock::ALL.into_iter().zip(FileRmap::ALL.into_iter().cycle()) {
            let design = Design { space: space.fault(fault), file_rmap };
            assert_eq!(parse(&name(design)), Ok(design));
        }
    }
    let sections = Locking::default()
        .unmap(Unmap::Sectioned { bytes: 3 << 20 })
        .fault(FaultLock::VmaPerCpu)
        .write(Write::Whole)
        .into();
    assert_eq!(name(sections), "unmap=sectioned:3MiB,fault=per-cpu,write=whole");
    assert_eq!(parse(&name(sections)), Ok(sections));
    let odd = Locking::default().unmap(Unmap::Sectioned { bytes: 4097 }).fault(FaultLock::VmaPerCpu).into();
    assert_eq!(parse(&name(odd)), Ok(odd));
}

#[test]
fn values_that_are_not_given_are_the_defaults() {
    let downgraded = Locking::default().unmap(Unmap::Downgraded);
    assert_eq!(parse("unmap=downgraded"), Ok(downgraded.into()));
    let mmap_lock = Locking::default().fault(FaultLock::MmapLock);
    assert_eq!(parse("fault=mmap-lock"), Ok(mmap_lock.into()));
    for (text, write) in [
        ("write=whole", Write::Whole),
        ("write=ranges", Write::Ranges),
        ("write=ranges-only", Write::RangesOnly),
    ] {
        assert_eq!(parse(text), Ok(Locking::default().write(write).into()));
    }
    let alone = Design { file_rmap: FileRmap::Exclusive, ..Design::default() };
    assert_eq!(parse("file-rmap=exclusive"), Ok(alone));
    assert_eq!(name(alone), "unmap=released,fault=per-cpu,write=ranges,file-rmap=exclusive");
    let of_files = Locking::default().hugetlb(HugetlbLock::FileLock);
    assert_eq!(parse("hugetlb=file-lock"), Ok(of_files.into()));
    assert_eq!(name(of_files.into()), "unmap=released,fault=per-cpu,write=ranges,hugetlb=file-lock");
}

#[test]
fn errors_name_the_fault_and_the_valid_values() {
    for (spec, said) in [
        (
            "",
            "unmap=(exclusive, sectioned[:BYTES], downgraded, released), fault=(mmap-lock, vma-rwsem, vma-count, per-cpu), write=(whole, ranges, ranges-only), hugetlb=(file-lock, vma-lock) or file-rmap=",
        ),
        ("mmap=released", "unmap=(exclusive"),
        ("unmap=quick", "expected exclusive, sectioned[:BYTES], downgraded, released"),
        ("unmap=released:4096", "takes no size"),
        ("unmap=sectioned:", "not a section size"),
        ("unmap=sectioned:0", "not a section size"),
        ("unmap=sectioned:-1", "not a section size"),
        ("unmap=sectioned:99999999999GiB", "not a section size"),
        ("unmap=sectioned:4 KiB", "not a section size"),
        ("fault=page-lock", "expected mmap-lock, vma-rwsem, vma-count, per-cpu"),
        ("write=parts", "expected whole, ranges, ranges-only"),
        ("write=whole,write=whole", "given twice"),
        ("fault=vma-count,fault=mmap-lock", "given twice"),
        ("file-rmap=none", "expected mutex, exclusive, shared"),
        ("unmap=released,", "not a locking choice"),
    ] {
        let error = parse(spec).expect_err(spec);
        assert!(error.contains(said), "{spec}: {error}");
    }
}
