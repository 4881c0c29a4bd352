//! A pager: serves the faults of a process from a compressed snapshot, and tracks the changes of the
//! process's mappings.
//!
//! `main.rs` and the test `tests/snapshot_pager.rs` use it. [`Pager::pages`] maps an address to a page of the
//! snapshot. The pager applies messages about mremap, discards and munmap to this map before it fills a page
//! of a changed range. If a fill fails with `Changing`, the pager first reads the message about the change,
//! and then repeats the fill. A forked child gets a pager of its own, on a thread of its own, with a copy of
//! the map.

use freehold::PAGE_SIZE;
use freehold::counted::Counted;
use freehold::error::UffdError;
use freehold::remote::AccessMode;
use freehold::space::AddressSpace;
use freehold::uffd::{FillMode, Message, Userfaultfd};
use freehold_machine::Machine;
use std::collections::BTreeMap;
use std::error::Error;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::sync::{Arc, Mutex};
use std::thread::Scope;

type Space = Counted<AddressSpace<Machine>>;
/// A userfaultfd of the machine.
pub type Uffd = Userfaultfd<Machine>;

/// The contents of memory. Each page is compressed separately, and a page of zeroes has no data.
pub struct Snapshot {
    pages: Vec<Option<Vec<u8>>>,
}

impl Snapshot {
    /// Takes a snapshot of `pages` pages from `start` on.
    pub fn take(space: &Space, start: u64, pages: u64) -> Result<Self, Box<dyn Error + Send + Sync>> {
        let mut page = [0; PAGE_SIZE as usize];
        let compressed = (0..pages).map(|number| {
            space.read_memory(start + number * PAGE_SIZE, &mut page, AccessMode::Plain)?;
            Ok(if page.iter().all(|byte| *byte == 0) { None } else { Some(zstd::bulk::compress(&page, 1)?) })
        });
        Ok(Snapshot { pages: compressed.collect::<Result<_, Box<dyn Error + Send + Sync>>>()? })
    }

    /// Returns the size of the compressed pages in bytes.
    pub fn bytes(&self) -> usize {
        self.pages.iter().flatten().map(Vec::len).sum()
    }
}

/// State that all pagers of a snapshot share: the userfaultfds of children, and counts of their work.
#[derive(Default)]
pub struct Work {
    /// The userfaultfds of forked children. No message reports the end of a child, so the program closes the
    /// userfaultfd when it knows that the child has ended.
    pub children: Mutex<Vec<Arc<Uffd>>>,
    /// Pages that were decompressed and copied.
    pub copied: AtomicU64,
    /// Number of pages of zeroes.
    pub zeroes: AtomicU64,
    /// Number of messages that were not faults.
    pub events: AtomicU64,
}

/// The pager of one process.
#[derive(Clone)]
pub struct Pager<'s> {
    snapshot: &'s Snapshot,
    work: &'s Work,
    /// The page of the snapshot for each address. An address without an entry reads as zeroes.
    pages: BTreeMap<u64, usize>,
    /// Faults that could not be served because the mappings were changing. The message about that change must
    /// be read first.
    later: Vec<u64>,
}

impl<'s> Pager<'s> {
    /// Creates a pager for memory that begins at `start` and has the contents of the snapshot.
    pub fn new(snapshot: &'s Snapshot, work: &'s Work, start: u64) -> Self {
        let pages =
            (0..snapshot.pages.len()).map(|number| (start + number as u64 * PAGE_SIZE, number)).collect();
        Pager { snapshot, work, pages, later: Vec::new() }
    }

    /// Serves faults until the userfaultfd is closed. Each child gets a pager of its own, which starts with a
    /// copy of this pager's map.
    pub fn serve<'scope>(mut self, uffd: &Uffd, scope: &'scope Scope<'scope, '_>)
    where
        's: 'scope,
    {
        while let Ok(message) = uffd.read() {
            match message {
                Message::Fault { addr, .. } => {
                    self.fill(uffd, addr);
                    continue;
                }
                Message::Fork(child) => {
                    self.work.events.fetch_add(1, Relaxed);
                    let (own, child) = (Pager { later: Vec::new(), ..self.clone() }, Arc::new(child));
                    self.work.children.lock().expect("no pager panics").push(child.clone());
                    scope.spawn(move || own.serve(&child, scope));
                }
                Message::Remap { from, to, len } => {
                    let tail = self.cut(from, len);
                    self.pages.extend(tail.into_iter().map(|(at, number)| (at - from + to, number)));
                }
                Message::Remove(range) | Message::Unmap(range) => {
                    self.cut(range.start(), range.end() - range.start());
                }
                _ => {}
            }
            for addr in std::mem::take(&mut self.later) {
                self.fill(uffd, addr);
            }
        }
    }

    /// Removes a range from the map and returns the removed entries.
    fn cut(&mut self, start: u64, len: u64) -> BTreeMap<u64, usize> {
        self.work.events.fetch_add(1, Relaxed);
        let mut cut = self.pages.split_off(&start);
        self.pages.append(&mut cut.split_off(&(start + len)));
        cut
    }

    /// Fills the page at `addr` from the snapshot or with zeroes. The fill wakes the faults on the page.
    fn fill(&mut self, uffd: &Uffd, addr: u64) {
        let page = self.pages.get(&addr).and_then(|number| self.snapshot.pages[*number].as_ref());
        let filled = match page {
            Some(compressed) => {
                let page = zstd::bulk::decompress(compressed, PAGE_SIZE as usize).expect("own data");
                uffd.copy(addr, &page, FillMode::empty())
            }
            None => uffd.zeropage(addr, PAGE_SIZE, FillMode::empty()),
        };
        match filled {
            Ok(_) if page.is_some() => drop(self.work.copied.fetch_add(1, Relaxed)),
            Ok(_) => drop(self.work.zeroes.fetch_add(1, Relaxed)),
            Err(UffdError::Changing) => self.later.push(addr),
            // Another pager has filled the page, or the page is not mapped any more. The waiting faults wake
            // up and check again.
            Err(_) => uffd.wake(addr, PAGE_SIZE).expect("a page"),
        }
    }
}
