//! Reads that end on another CPU: requests that a device completes, fails, or drops while faults wait for the
//! pages and a truncation or a hole removes them.
//!
//! The code under test is `file/read.rs` and `file/cache/reading.rs`. The device ([`Device`]) only queues its
//! requests; a thread of the scenario serves them. A fault that is never woken is a deadlock, which the
//! checker reports. The end of the scene detects a frame that was freed twice or never, and `Mapping::check`
//! recounts the pages.

use crate::{
    device::{self, PAGES, Queue, mapped, unmap_file},
    explore::{explore, thread},
    files::Opened,
    scene::{PAGE, Scene, beyond, page},
};
use freehold::{
    PageIndex,
    fault::FaultError,
    file::{IoError, Pager, ReadRequest},
    platform::Platform,
};
use freehold_machine::Machine;
use freehold_sync::atomic::{AtomicU64, Ordering::SeqCst};
use std::sync::Arc;

/// A device whose requests wait in a queue. The first word of page `n` is `7 + n`.
#[derive(Clone, Default)]
struct Device {
    queue: Queue<ReadRequest<Machine>>,
    /// Number of pages in all requests so far.
    asked: Arc<AtomicU64>,
}

impl Pager<Machine> for Device {
    fn read(&self, request: ReadRequest<Machine>) {
        self.asked.fetch_add(request.len().get(), SeqCst);
        self.queue.push(request);
    }

    fn read_pages(&self) -> u64 {
        PAGES
    }
}

/// Fills the frame of a page and completes the page.
fn complete(request: &mut ReadRequest<Machine>, index: PageIndex) {
    if let Some(frame) = request.frame(index) {
        request.platform().zero_frame(frame);
        request.platform().write_frame(frame, 0, &[7 + index.get() as u8]);
        request.complete(index, Ok(()));
    }
}

/// Completes the pages of a request, the last first.
fn complete_all(mut request: ReadRequest<Machine>) {
    request.pages().numbers().rev().for_each(|index| complete(&mut request, PageIndex::new(index)));
}

/// Ends a scene after its threads.
fn end(scene: Scene, device: &Device, file: Opened) {
    unmap_file(&scene, &file);
    device.queue.assert_empty();
    device::end(scene, file);
}

/// Three faults on two pages of one window read each page once, by one request or by two.
#[test]
fn faults_read_each_cold_page_once() {
    explore("faults that wait for reads of two pages", 30, |locking| {
        let device = Device::default();
        let (scene, file) = mapped(locking, device.clone());
        let left = AtomicU64::new(3);
        thread::scope(|scope| {
            for (number, index) in [0, 1, 1].into_iter().enumerate() {
                let (scene, left) = (&scene, &left);
                scope.spawn(move || {
                    let found = scene.process.load::<u64>(&mut scene.machine.cpu(number), page(index));
                    assert_eq!(found, Ok(7 + index));
                    left.fetch_sub(1, SeqCst);
                });
            }
            scope.spawn(|| device.queue.serve_tasks(&left, complete_all));
        });
        assert_eq!(device.asked.load(SeqCst), PAGES);
        end(scene, &device, file);
    });
}

/// Two tasks read windows in order. Both may find the mark of a window, while its page is being read or when it
/// is visible, and a truncation removes pages that are read ahead. No page that stays is read twice.
#[test]
fn readahead_of_two_readers_concurrent_with_a_truncation() {
    explore("two readers of windows, and a truncation", 30, |locking| {
        let device = Device::default();
        let (scene, file) = mapped(locking, device.clone());
        file.mapping().truncate(2 * PAGES * PAGE).unwrap();
        file.mapping().set_readahead(PAGES as u32);
        let left = AtomicU64::new(2);
        thread::scope(|scope| {
            for _ in 0..2 {
                let (file, left) = (&file, &left);
                scope.spawn(move || {
                    for index in 0..=PAGES {
                        let mut found = [0];
                        let bytes = file.read_at(index * PAGE, &mut found).unwrap();
                        assert!(bytes == 1 && found == [7 + index as u8] || index >= PAGES);
                    }
                    left.fetch_sub(1, SeqCst);
                });
            }
            scope.spawn(|| device.queue.serve_tasks(&left, complete_all));
            scope.spawn(|| file.mapping().truncate(PAGES * PAGE).unwrap());
        });
        device.queue.serve_rest(complete_all);
        assert!(device.asked.load(SeqCst) <= 2 * PAGES, "a page was read twice");
        assert_eq!(file.mapping().present_pages(), PAGES);
        end(scene, &device, file);
    });
}

/// A truncation comes before, during or after a read. Neither waits for the other, the fault ends in every
/// case, and the page is not seen after the truncation.
#[test]
fn truncation_wins_over_a_read_that_another_cpu_ends() {
    explore("a truncation concurrent with the end of a read", 40, |locking| {
        let device = Device::default();
        let (scene, file) = mapped(locking, device.clone());
        let (left, cut) = (AtomicU64::new(1), AtomicU64::new(0));
        thread::scope(|scope| {
            scope.spawn(|| {
                let late = cut.load(SeqCst) != 0;
                let found = scene.process.load::<u64>(&mut scene.machine.cpu(0), page(1));
                assert!(found == beyond(page(1)) || !late && found == Ok(8), "{found:?}");
                left.fetch_sub(1, SeqCst);
            });
            scope.spawn(|| {
                file.mapping().truncate(PAGE).unwrap();
                cut.store(1, SeqCst);
            });
            scope.spawn(|| device.queue.serve_tasks(&left, complete_all));
        });
        device.queue.serve_rest(complete_all);
        assert!(!file.mapping().has_page(PageIndex::new(1)) && file.mapping().present_pages() <= 1);
        end(scene, &device, file);
    });
}

/// A hole is punched while a page is being read. The fault then reads the page again, and the end of the
/// first read does not end the second.
#[test]
fn hole_makes_a_fault_read_the_page_again() {
    explore("a hole concurrent with a read", 40, |locking| {
        let device = Device::default();
        let (scene, file) = mapped(locking, device.clone());
        let left = AtomicU64::new(2);
        thread::scope(|scope| {
            for number in 0..2 {
                let (scene, left) = (&scene, &left);
                scope.spawn(move || {
                    let found = scene.process.load::<u64>(&mut scene.machine.cpu(number), page(1));
                    assert_eq!(found, Ok(8));
                    left.fetch_sub(1, SeqCst);
                });
            }
            scope.spawn(|| file.mapping().punch(PAGE..2 * PAGE).unwrap());
            scope.spawn(|| device.queue.serve_tasks(&left, complete_all));
        });
        device.queue.serve_rest(complete_all);
        end(scene, &device, file);
    });
}

/// A page fails, and the other page fails because its request is dropped, on two CPUs. Every fault ends with
/// SIGBUS.
#[test]
fn failures_wake_every_fault() {
    explore("reads that fail while faults wait", 30, |locking| {
        let device = Device::default();
        let (scene, file) = mapped(locking, device.clone());
        let left = AtomicU64::new(3);
        thread::scope(|scope| {
            for (number, index) in [0, 1, 1].into_iter().enumerate() {
                let (scene, left) = (&scene, &left);
                scope.spawn(move || {
                    let found = scene.process.load::<u64>(&mut scene.machine.cpu(number), page(index));
                    assert_eq!(found, Err(FaultError::Bus { addr: page(index) }));
                    left.fetch_sub(1, SeqCst);
                });
            }
            scope.spawn(|| {
                device.queue.serve_tasks(&left, |mut request| {
                    let rest = request.split_off(PageIndex::new(1));
                    thread::scope(|scope| {
                        scope.spawn(|| drop(rest));
                        request.complete(PageIndex::new(0), Err(IoError));
                    });
                });
            });
        });
        // A page that is read ahead may be left, although no fault waits for it.
        device.queue.serve_rest(drop);
        assert_eq!(file.mapping().present_pages(), 0);
        end(scene, &device, file);
    });
}

/// A write of a whole page replaces a read. The fault sees the written page, or the page that was read
/// before.
#[test]
fn write_of_a_whole_page_concurrent_with_its_read() {
    explore("a write of a page that is being read", 30, |locking| {
        let device = Device::default();
        let (scene, file) = mapped(locking, device.clone());
        let left = AtomicU64::new(1);
        thread::scope(|scope| {
            scope.spawn(|| {
                let found = scene.process.load::<u64>(&mut scene.machine.cpu(0), page(1));
                assert!([Ok(8), Ok(5)].contains(&found), "{found:?}");
                left.fetch_sub(1, SeqCst);
            });
            scope.spawn(|| {
                let mut bytes = [0; PAGE as usize];
                bytes[0] = 5;
                assert_eq!(file.mapping().write_at(PAGE, &bytes), Ok(PAGE as usize));
            });
            scope.spawn(|| device.queue.serve_tasks(&left, complete_all));
        });
        device.queue.serve_rest(complete_all);
        assert_eq!(scene.process.load::<u64>(&mut scene.machine.cpu(0), page(1)), Ok(5));
        end(scene, &device, file);
    });
}
