//! Tests of the contents of frames, against an array of bytes.

use super::kernel;
use freehold_c::Kernel;
use freehold_vmspace::platform::{Pfn, Platform};
use std::mem::ManuallyDrop;

#[test]
fn frames_keep_bytes_at_every_offset() {
    kernel::boot();
    // The drop of the kernel would wait for a grace period, which the test does not need.
    let (kernel, mut frames) = (ManuallyDrop::new(Kernel), [0_u64; 2]);
    let request =
        freehold_c::FrameRequest { order: 0, purpose: 3, space: std::ptr::null_mut(), opportunistic: false };
    let alloc = kernel::ops().alloc_frames.unwrap();
    assert_eq!(unsafe { alloc(&request, frames.as_mut_ptr(), 2) }, 2);
    let [frame, other] = frames.map(Pfn::new);
    kernel.zero_frame(frame);
    let mut model = [0_u8; 4096];
    for (offset, len) in (0..24).flat_map(|offset| (0..24).map(move |len| (offset, len))) {
        for start in [offset, 4096 - offset - len] {
            let data: Vec<u8> = (0..len).map(|at| (offset * 31 + at * 7 + len + 1) as u8).collect();
            kernel.write_frame(frame, start, &data);
            model[start..start + len].copy_from_slice(&data);
            let mut read = vec![0xee; len + 1];
            kernel.read_frame(frame, start, &mut read[..len]);
            assert_eq!((&read[..len], read[len]), (&data[..], 0xee), "{len} bytes at {start}");
        }
    }
    kernel.copy_frame(other, frame);
    let mut all = [0; 4096];
    kernel.read_frame(other, 0, &mut all);
    assert!(all == model, "other bytes have changed");
    unsafe { kernel::ops().free_frames.unwrap()(frames.as_ptr(), 2) };
}

#[test]
fn concurrent_writes_of_one_word_keep_both_bytes() {
    kernel::boot();
    let mut number = 0;
    let request =
        freehold_c::FrameRequest { order: 0, purpose: 3, space: std::ptr::null_mut(), opportunistic: false };
    assert_eq!(unsafe { kernel::ops().alloc_frames.unwrap()(&request, &mut number, 1) }, 1);
    let start = std::sync::Barrier::new(2);
    let write = |offset: usize| {
        let (kernel, frame) = (ManuallyDrop::new(Kernel), Pfn::new(number));
        kernel.write_frame(frame, offset, &[0]);
        start.wait();
        for turn in 1..1_000_000_u32 {
            let mut read = [0];
            kernel.read_frame(frame, offset, &mut read);
            assert_eq!(read, [(turn - 1) as u8], "another thread has written back an old byte");
            kernel.write_frame(frame, offset, &[turn as u8]);
        }
    };
    std::thread::scope(|scope| {
        scope.spawn(|| write(0));
        write(1);
    });
    unsafe { kernel::ops().free_frames.unwrap()(&number, 1) };
}

#[test]
fn numbers_outside_of_the_memory_are_no_frames() {
    kernel::boot();
    let (kernel, machine) = (ManuallyDrop::new(Kernel), kernel::machine());
    let end = machine.first_frame + machine.frames;
    let is_frame = [machine.first_frame - 1, machine.first_frame, end - 1, end, u64::MAX]
        .map(|number| kernel.has_frame(Pfn::new(number)));
    assert_eq!(is_frame, [false, true, true, false, false]);
    let outside =
        std::panic::catch_unwind(|| ManuallyDrop::new(Kernel).frame(Pfn::new(end)) as *const _ as usize);
    assert!(outside.is_err(), "a wrong number panics");
}
