//! A device for the tests of reads: a pager that only queues its requests. A test takes a request from the
//! queue and completes its pages, while other threads wait for them.

use crate::support::*;
use freehold::{PageIndex, PageRange, file::ReadRequest};
use std::{
    collections::VecDeque,
    sync::{
        Arc, Mutex,
        atomic::{AtomicBool, Ordering::SeqCst},
    },
};

pub type Request = ReadRequest<Machine>;

/// A device whose requests wait in a queue. Page `n` of the device begins with the number of [`Disk`].
#[derive(Clone, Default)]
pub struct Device {
    /// Value of `read_pages`.
    window: u64,
    queue: Arc<Mutex<VecDeque<Request>>>,
    /// True if the device fails all requests.
    closed: Arc<AtomicBool>,
}

impl Pager<Machine> for Device {
    fn read(&self, request: Request) {
        let mut queue = self.queue.lock().unwrap();
        if !self.closed.load(SeqCst) {
            queue.push_back(request);
        }
    }

    fn read_pages(&self) -> u64 {
        self.window
    }
}

impl Device {
    pub fn new(window: u64) -> Self {
        Device { window, ..Device::default() }
    }

    /// Returns a file of `bytes` bytes on this device.
    pub fn file(&self, world: &World, bytes: u64) -> Counted<File<Machine>> {
        let mapping = Mapping::new(world.engine(), self.clone(), bytes, false).unwrap();
        File::new(&mapping, FileAccess::READ_WRITE, "/device").unwrap()
    }

    /// Returns the oldest request, and waits for it.
    pub fn next(&self) -> Request {
        loop {
            if let Some(request) = self.queue.lock().unwrap().pop_front() {
                return request;
            }
            std::thread::yield_now();
        }
    }

    /// Returns all requests in the queue.
    pub fn take_all(&self) -> Vec<Request> {
        self.queue.lock().unwrap().drain(..).collect()
    }

    /// Returns a guard. If the test panics while the guard lives, the drop of the guard fails all requests,
    /// so that no thread of the test waits for ever.
    pub fn closes_on_panic(&self) -> Closes<'_> {
        Closes(self)
    }

    /// Returns the number of requests in the queue.
    pub fn asked(&self) -> usize {
        self.queue.lock().unwrap().len()
    }
}

/// See [`Device::closes_on_panic`].
pub struct Closes<'d>(&'d Device);

impl Drop for Closes<'_> {
    fn drop(&mut self) {
        if std::thread::panicking() {
            self.0.closed.store(true, SeqCst);
            self.0.queue.lock().unwrap().clear();
        }
    }
}

/// Fills the frame of a page and completes the page.
pub fn complete(request: &mut Request, index: u64) {
    let index = PageIndex::new(index);
    let frame = request.frame(index).unwrap();
    request.platform().zero_frame(frame);
    request.platform().write_frame(frame, 0, &Disk::number(index.get()).to_le_bytes());
    request.complete(index, Ok(()));
}

/// Completes all pages of a request.
pub fn complete_all(mut request: Request) {
    while let Some((index, _)) = request.next_page() {
        complete(&mut request, index.get());
    }
}

/// Returns the pages of `0..pages` that are in the cache.
pub fn cached(mapping: &Mapping<Machine>, pages: u64) -> Vec<u64> {
    (0..pages).filter(|&page| mapping.has_page(PageIndex::new(page))).collect()
}

pub fn pages(start: u64, end: u64) -> PageRange {
    PageRange::new(PageIndex::new(start), PageIndex::new(end))
}

/// Maps the pages `range` of the file at `BASE`.
pub fn map(process: &Process, file: &Counted<File<Machine>>, range: PageRange, flags: MapFlags) {
    let bytes = range.len().bytes();
    process.mmap(BASE, bytes, RW, flags | MapFlags::FIXED, Some(file), range.start.byte()).unwrap();
}
