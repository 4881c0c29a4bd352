//! The model of huge pages of pools: the explicit state of each page of each mapping.
//!
//! The mappings are those of `mod.rs`: four pages each of anonymous and of file memory. The model is a
//! [`Subject`], and is compared call by call with the engine (`engine.rs`) and with the kernel (`linux.rs`).
//! The code is written only for clarity: each page of each mapping has its own [`Entry`], and every call
//! loops over the pages of its part. Where engine and kernel differ, [`Like`] selects the rule; each such
//! difference is in `docs/reference/differences-from-linux.md`.

use super::{Answer, Area, Op, PAGES, Part, Subject};
use std::collections::BTreeSet;

const ENOENT: i32 = 2;
const EFAULT: i32 = 14;
const EEXIST: i32 = 17;
const EINVAL: i32 = 22;
const MISSING: u64 = 1;
const WP: u64 = 2;
const MINOR: u64 = 4;

/// The subject whose rules the model follows where the kernel and the engine differ.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Like {
    /// The kernel. A store to a write-protected empty entry first faults the page in, and then notifies the
    /// pager. If the page is not in the file yet, the access is not a minor fault. A hole or a truncation
    /// unmaps private pages, too.
    Linux,
    /// The engine.
    Engine,
}

/// The state of an entry.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Entry {
    /// Empty.
    None,
    /// Empty, but write-protected: the page will be protected when it is filled.
    Mark,
    /// Marked as poisoned: an access raises SIGBUS.
    Poison,
    /// Maps the file's page.
    File { wp: bool },
    /// Maps a private page.
    Own { wp: bool, value: u64 },
}

impl Entry {
    /// Returns true if the entry is write-protected.
    fn wp(self) -> bool {
        matches!(self, Entry::Mark | Entry::File { wp: true } | Entry::Own { wp: true, .. })
    }

    /// Returns the entry after its page is unmapped.
    fn zapped(self) -> Self {
        if self.wp() { Entry::Mark } else { Entry::None }
    }

    /// Returns the entry with the write protection set or removed.
    fn with_wp(self, on: bool) -> Self {
        match self {
            Entry::None | Entry::Mark => [Entry::None, Entry::Mark][usize::from(on)],
            Entry::Poison => Entry::Poison,
            Entry::File { .. } => Entry::File { wp: on },
            Entry::Own { value, .. } => Entry::Own { wp: on, value },
        }
    }
}

/// A page of a mapping.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Page {
    /// The page table entry.
    entry: Entry,
    /// The modes with which the page is registered.
    mode: u64,
    /// True if the rights of the VMA permit stores.
    writable: bool,
}

/// The model of the mappings.
#[derive(Clone, Debug)]
pub struct Model {
    /// The subject whose rules the model follows.
    like: Like,
    /// The value of each page of the file, if the page exists.
    file: [Option<u64>; PAGES as usize],
    /// The pages of each mapping.
    pages: [[Page; PAGES as usize]; 4],
    /// The addresses at which VMAs were split. The VMAs never merge.
    cuts: [BTreeSet<u64>; 4],
}

impl Model {
    /// Creates mappings without pages.
    pub fn new(like: Like) -> Self {
        let page = Page { entry: Entry::None, mode: 0, writable: true };
        Model { like, file: Default::default(), pages: [[page; PAGES as usize]; 4], cuts: Default::default() }
    }

    /// Number of pages of the pool that are in use.
    pub fn in_use(&self) -> u64 {
        let own = self.pages.iter().flatten().filter(|page| matches!(page.entry, Entry::Own { .. }));
        (self.file.iter().flatten().count() + own.count()) as u64
    }

    /// Returns a page of a mapping.
    fn page(&mut self, area: Area, page: u64) -> &mut Page {
        &mut self.pages[area as usize][page as usize]
    }

    /// Returns the value of the file's page behind a page of a mapping.
    fn of_file(&self, area: Area, page: u64) -> Option<u64> {
        self.file[page as usize].filter(|_| area != Area::Anonymous)
    }

    /// Returns the pages of a part that exist.
    fn of(part: Part) -> std::ops::Range<u64> {
        part.page..PAGES.min(part.page + part.pages)
    }

    /// Fails if the pager may not supply these pages: the whole part must be in one registered VMA.
    fn may_supply(&mut self, part: Part, wp: bool) -> Result<(), i32> {
        let end = part.page + part.pages;
        let cut = self.cuts[part.area as usize].range(part.page + 1..end).next().is_some();
        let mode = self.page(part.area, part.page).mode;
        if mode == 0 || end > PAGES || cut {
            return Err(ENOENT);
        }
        if wp && mode & WP == 0 { Err(EINVAL) } else { Ok(()) }
    }

    /// Supplies page after page until one fails. Returns the number of supplied pages, or the error if the
    /// first page fails.
    fn supply(
        &mut self,
        part: Part,
        wp: bool,
        mut one: impl FnMut(&mut Self, u64) -> Result<Entry, i32>,
    ) -> Answer {
        if let Err(errno) = self.may_supply(part, wp) {
            return Answer::Failed(errno);
        }
        for page in Self::of(part) {
            match one(self, page) {
                Ok(entry) => self.page(part.area, page).entry = entry,
                Err(errno) if page == part.page => return Answer::Failed(errno),
                Err(_) => return Answer::Done(page - part.page),
            }
        }
        Answer::Done(part.pages)
    }

    /// Fails with EEXIST if the page has an entry.
    fn is_vacant(&mut self, area: Area, page: u64) -> Result<(), i32> {
        match self.page(area, page).entry {
            Entry::None | Entry::Mark | Entry::Poison => Ok(()),
            Entry::File { .. } | Entry::Own { .. } => Err(EEXIST),
        }
    }

    /// UFFDIO_COPY.
    fn copy(&mut self, part: Part, wp: bool, number: u64) -> Answer {
        self.supply(part, wp, |model, page| {
            model.is_vacant(part.area, page)?;
            let value = number + (page - part.page);
            if part.area.is_private() {
                return Ok(Entry::Own { wp, value });
            }
            if model.file[page as usize].is_some() {
                return Err(EEXIST);
            }
            model.file[page as usize] = Some(value);
            Ok(Entry::File { wp })
        })
    }

    /// UFFDIO_CONTINUE.
    fn map_from_file(&mut self, part: Part, wp: bool) -> Answer {
        self.supply(part, wp, |model, page| {
            model.of_file(part.area, page).ok_or(EFAULT)?;
            model.is_vacant(part.area, page)?;
            Ok(Entry::File { wp })
        })
    }

    /// UFFDIO_POISON.
    fn poison(&mut self, part: Part) -> Answer {
        self.supply(part, false, |model, page| match model.page(part.area, page).entry {
            Entry::None => Ok(Entry::Poison),
            _ => Err(EEXIST),
        })
    }

    /// UFFDIO_WRITEPROTECT.
    fn protect(&mut self, part: Part, on: bool) -> Answer {
        for page in Self::of(part) {
            let found = self.page(part.area, page);
            if found.mode & WP == 0 {
                return Answer::Failed(ENOENT);
            }
            found.entry = found.entry.with_wp(on);
        }
        Answer::Done(0)
    }

    /// Changes the VMAs of a part. Splits a VMA at an edge of the part, unless the VMA already has the new
    /// property.
    fn change(&mut self, part: Part, is_new: impl Fn(&Page) -> bool, change: impl Fn(&mut Page)) -> Answer {
        let range = Self::of(part);
        for at in [range.start, range.end] {
            let inside = if at == range.start { at } else { at - 1 };
            if (1..PAGES).contains(&at) && is_new(self.page(part.area, inside)) {
                self.cuts[part.area as usize].insert(at);
            }
        }
        for page in range {
            let page = self.page(part.area, page);
            if is_new(page) {
                change(page);
            }
        }
        Answer::Done(0)
    }

    /// UFFDIO_REGISTER.
    fn register(&mut self, part: Part, mode: u64) -> Answer {
        if mode == 0 {
            return Answer::Failed(EINVAL);
        }
        self.change(part, |page| page.mode & mode != mode, |page| page.set_mode(mode))
    }

    /// A load or a store.
    fn access(&mut self, area: Area, number: u64, store: Option<u64>) -> Answer {
        let Page { entry, mode, writable } = *self.page(area, number);
        if store.is_some() && !writable {
            return Answer::Fault;
        }
        let absent = matches!(entry, Entry::None | Entry::Mark);
        let cached = self.of_file(area, number).is_some();
        let asks = absent && mode & if cached { MINOR } else { MISSING } != 0;
        if entry == Entry::Poison || asks {
            return Answer::Fault;
        }
        let engine = self.like == Like::Engine;
        let refused = store.is_some() && entry.wp();
        if refused && engine {
            return Answer::Fault;
        }
        let mut entry = entry;
        if absent {
            let wp = entry == Entry::Mark;
            if !area.is_private() {
                self.file[number as usize].get_or_insert(0);
            }
            if engine && !cached && !area.is_private() && mode & MINOR != 0 {
                return Answer::Fault;
            }
            entry = match self.of_file(area, number) {
                Some(_) => Entry::File { wp },
                None => Entry::Own { wp, value: 0 },
            };
            self.page(area, number).entry = entry;
        }
        if refused {
            return Answer::Fault;
        }
        let file = self.of_file(area, number).unwrap_or_default();
        match (store, entry) {
            (None, Entry::Own { value, .. }) => return Answer::Value(value),
            (None, _) => return Answer::Value(file),
            (Some(value), Entry::File { .. }) if !area.is_private() => {
                self.file[number as usize] = Some(value);
            }
            (Some(value), entry) => {
                self.page(area, number).entry = Entry::Own { wp: entry.wp(), value };
            }
        }
        Answer::Done(0)
    }

    /// Removes pages from the file.
    fn cut(&mut self, range: std::ops::Range<u64>, truncated: bool) -> Answer {
        for page in range {
            self.file[page as usize] = None;
            for area in [Area::Shared, Area::Plain, Area::Private] {
                let spared = self.like == Like::Engine && !truncated;
                let page = self.page(area, page);
                page.entry = match page.entry {
                    Entry::Own { .. } | Entry::Poison if spared => page.entry,
                    _ if truncated => Entry::None,
                    entry => entry.zapped(),
                };
            }
        }
        Answer::Done(0)
    }
}

impl Page {
    /// Sets the modes of the registration. If the modes do not include write protection, removes the write
    /// protection of the page.
    fn set_mode(&mut self, mode: u64) {
        self.mode = mode;
        if mode & WP == 0 {
            self.entry = self.entry.with_wp(false);
        }
    }
}

impl Subject for Model {
    fn call(&mut self, op: Op) -> Answer {
        match op {
            Op::Register(part, mode) => self.register(part, mode),
            Op::Unregister(part) => self.change(part, |page| page.mode != 0, |page| page.set_mode(0)),
            Op::Copy(part, wp, number) => self.copy(part, wp, number),
            Op::Zeropage(part) => match self.may_supply(part, false) {
                Ok(()) => Answer::Failed(EINVAL),
                Err(errno) => Answer::Failed(errno),
            },
            Op::Continue(part, wp) => self.map_from_file(part, wp),
            Op::Poison(part) => self.poison(part),
            Op::Protect(part, on) => self.protect(part, on),
            Op::Load(area, page) => self.access(area, page, None),
            Op::Store(area, page, value) => self.access(area, page, Some(value)),
            Op::DontNeed(part) => {
                for page in Self::of(part) {
                    let page = self.page(part.area, page);
                    page.entry = page.entry.zapped();
                }
                Answer::Done(0)
            }
            Op::Punch(page, pages) => self.cut(page..PAGES.min(page + pages), false),
            Op::Truncate(page) => self.cut(page..PAGES, true),
            Op::Mprotect(part, writable) => {
                self.change(part, |page| page.writable != writable, |page| page.writable = writable)
            }
        }
    }
}
