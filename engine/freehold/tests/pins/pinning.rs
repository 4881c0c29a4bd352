//! Which pages can be pinned: missing pages are faulted in, the range ends at the first inaccessible page, a
//! forced pin ignores rights, and frames that the engine does not own are refused. One test holds the mmap
//! lock to check that the fast call takes no lock.

use super::*;
use freehold::{
    call::Advice,
    error::Errno,
    file::{Frames, Special},
    platform::{FramePurpose, FrameRequest},
    space::Prot,
    vma::flags::VmFlags,
};

#[test]
fn missing_pages_are_faulted_in() {
    everywhere(|world, process, cpu| {
        anon(process, BASE, 600);
        let pins = process.pin_user_pages(BASE + 5, 600, WRITE).unwrap();
        assert_eq!((pins.len(), process.rss().anon), (600, 600));
        put(&pins, 599, 7);
        assert_eq!(process.load(cpu, BASE + 599 * PAGE), Ok(7u64));
        process.store(cpu, BASE, 8u64).unwrap();
        assert_eq!(word(&pins, 0), 8);
        assert_eq!(pins.frames()[0], process.frame_at(BASE).unwrap());
        drop(pins);
        process.munmap(BASE, 600 * PAGE).unwrap();
        assert_eq!(world.machine.accounting().tables, world.machine.accounting().spaces);
    });
}

#[test]
fn short_read_pin_gets_the_zero_page_and_long_term_pin_a_copy() {
    everywhere(|_, process, cpu| {
        anon(process, BASE, 4);
        let short = process.pin_user_pages(BASE, 2, READ).unwrap();
        assert_eq!((process.rss().anon, word(&short, 1)), (0, 0));
        assert_eq!(short.write(0, &[1]), Err(PinError::BadAddress));
        // A store by the program separates the mapping from the pinned zero page. A long-term pin therefore
        // never gets the zero page.
        process.store(cpu, BASE, 3u64).unwrap();
        assert_eq!(word(&short, 0), 0);
        let long = process.pin_user_pages(BASE, 2, LONG).unwrap();
        assert_eq!((process.rss().anon, word(&long, 0)), (2, 3));
        process.store(cpu, BASE + PAGE, 4u64).unwrap();
        assert_eq!(word(&long, 1), 4);
    });
}

#[test]
fn pin_ends_at_the_first_inaccessible_page() {
    everywhere(|_, process, cpu| {
        anon(process, BASE, 4);
        process.mmap(BASE + 4 * PAGE, PAGE, R, ANON | MapFlags::FIXED, None, 0).unwrap();
        assert_eq!(process.pin_user_pages(BASE, 9, READ).unwrap().len(), 5);
        assert_eq!(process.pin_user_pages(BASE, 9, WRITE).unwrap().len(), 4);
        assert_eq!(refused(process, cpu, BASE + 4 * PAGE, WRITE), PinError::BadAddress);
        assert_eq!(refused(process, cpu, BASE + 5 * PAGE, READ), PinError::BadAddress);
        assert_eq!(refused(process, cpu, u64::MAX - 5 * PAGE, READ).errno(), Errno::EFAULT);
        for pages in [1 << 53, usize::MAX] {
            assert!(process.pin_user_pages(BASE, pages, READ).is_err());
        }
        assert!(process.pin_user_pages(BASE, 0, READ).unwrap().is_empty());
        process.madvise(BASE + PAGE, PAGE, Advice::GuardInstall).unwrap();
        assert_eq!(process.pin_user_pages(BASE, 4, WRITE).unwrap().len(), 1);
        assert_eq!(refused(process, cpu, BASE + PAGE, PinFlags::FORCE), PinError::BadAddress);
    });
}

#[test]
fn forced_pin_ignores_rights() {
    everywhere(|_, process, cpu| {
        anon(process, BASE, 2);
        fill(process, cpu, BASE, 2, 10);
        process.mprotect(BASE, PAGE, Prot::empty()).unwrap();
        process.mprotect(BASE + PAGE, PAGE, R).unwrap();
        assert_eq!(refused(process, cpu, BASE, READ), PinError::BadAddress);
        assert_eq!(fast(process, cpu, BASE, 2, READ).len(), 0);
        assert_eq!(word(&process.pin_user_pages(BASE, 1, PinFlags::FORCE).unwrap(), 0), 10);
        assert_eq!(fast(process, cpu, BASE + PAGE, 1, WRITE).len(), 0);
        let pins = process.pin_user_pages(BASE + PAGE, 1, WRITE | PinFlags::FORCE).unwrap();
        put(&pins, 0, 12);
        assert_eq!(process.load(cpu, BASE + PAGE), Ok(12u64));
        assert!(process.store(cpu, BASE + PAGE, 13u64).is_err(), "the program gained the right to write");
    });
}

/// Pinning without a lock works while another task holds the mmap lock for writing.
#[test]
fn fast_pin_takes_no_lock() {
    everywhere(|_, process, cpu| {
        anon(process, BASE, 520);
        fill(process, cpu, BASE, 520, 1);
        let guard = process.space().write();
        let pins = fast(process, cpu, BASE, 520, WRITE);
        assert_eq!((pins.len(), word(&pins, 519)), (520, 520));
        drop(guard);
        // The fast path stops at a missing page.
        process.madvise(BASE + 3 * PAGE, PAGE, Advice::DontNeed).unwrap();
        assert_eq!(fast(process, cpu, BASE, 520, READ).len(), 3);
        assert_eq!(cpu.call(|| process.pin_user_pages_fast(BASE, 520, WRITE)).unwrap().len(), 520);
        // A task on a CPU that does not run the space cannot use the fast path.
        assert_eq!(process.pin_user_pages_fast_only(BASE, 520, WRITE).unwrap().len(), 0);
        assert_eq!(process.pin_user_pages_fast(BASE, 520, WRITE).unwrap().len(), 520);
        cpu.idle();
        assert_eq!(cpu.call(|| process.pin_user_pages_fast_only(BASE, 520, WRITE)).unwrap().len(), 0);
    });
}

/// Frames that the engine does not own cannot be pinned, because they are freed with their VMA.
#[test]
fn foreign_frames_cannot_be_pinned() {
    everywhere(|world, process, cpu| {
        let mut frame = [Pfn::new(0)];
        assert_eq!(world.machine.alloc_frames(&FrameRequest::pages(FramePurpose::File), &mut frame), 1);
        let special =
            Special::new(world.engine(), Frames::new("[device]", &support::foreign_each(&frame)).unwrap())
                .unwrap();
        let at = process.install_special(0, PAGE, VmFlags::READ | VmFlags::MAYREAD, &special).unwrap();
        assert!(process.load::<u64>(cpu, at).is_ok());
        assert_eq!(fast(process, cpu, at, 1, READ).len(), 0);
        assert_eq!(refused(process, cpu, at, READ), PinError::BadAddress);
        process.munmap(at, PAGE).unwrap();
        drop(special);
        // SAFETY: the frame was allocated above, and it is unmapped.
        unsafe { world.machine.free_frames(&frame) };
    });
}
