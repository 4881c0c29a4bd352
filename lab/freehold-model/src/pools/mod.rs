//! Huge pages of pools with a userfaultfd: calls on a few mappings, what they answer by a naive model, by the
//! engine, and by the running kernel.
//!
//! Nobody waits: the userfaultfd says SIGBUS, so an access for which its pager would be asked fails. Mappings
//! do not come or go; they are
//!
//! ```text
//! Anonymous   private, MAP_HUGETLB          Shared   of a file
//! Plain       the same file, shared         Private  the same file, private
//! ```

mod engine;
mod linux;
mod model;

pub use engine::Engine;
pub use linux::Linux;
pub use model::{Like, Model};

use crate::draw::Draw;

/// Pages of each mapping, and of the file.
pub const PAGES: u64 = 4;
/// Bytes of a page.
pub const HUGE: u64 = 2 << 20;
/// Bytes from one mapping to the next.
const APART: u64 = 64 * HUGE;

/// The mappings.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Area {
    /// Private, of no file that has a name.
    Anonymous,
    /// Of the file.
    Shared,
    /// Of the file once more.
    Plain,
    /// Of the file, private.
    Private,
}

impl Area {
    /// All of them.
    pub const ALL: [Area; 4] = [Area::Anonymous, Area::Shared, Area::Plain, Area::Private];

    /// Where it starts, from where the first does.
    fn offset(self) -> u64 {
        self as u64 * APART
    }

    /// Whether stores are to copies.
    fn is_private(self) -> bool {
        matches!(self, Area::Anonymous | Area::Private)
    }
}

/// Some pages of a mapping; there may be fewer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Part {
    /// The mapping.
    pub area: Area,
    /// The first page.
    pub page: u64,
    /// How many.
    pub pages: u64,
}

/// A call; the names are those of userfaultfd.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[expect(missing_docs, reason = "as they are called")]
pub enum Op {
    Register(Part, u64),
    Unregister(Part),
    /// The first word of the pages is this number, and those that follow it.
    Copy(Part, bool, u64),
    Zeropage(Part),
    Continue(Part, bool),
    Poison(Part),
    Protect(Part, bool),
    Load(Area, u64),
    Store(Area, u64, u64),
    DontNeed(Part),
    /// A hole in the file.
    Punch(u64, u64),
    /// The new length of the file, for a moment.
    Truncate(u64),
    /// Whether it may be written.
    Mprotect(Part, bool),
}

/// What a call answers.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Answer {
    /// Pages, or 0.
    Done(u64),
    /// An errno.
    Failed(i32),
    /// What was loaded.
    Value(u64),
    /// An access failed.
    Fault,
}

/// One that answers calls: the model, the engine, or the kernel.
pub trait Subject {
    /// Makes one.
    fn call(&mut self, op: Op) -> Answer;
}

/// A random call. The mappings that `protected` has a bit for are registered for write protection whenever
/// they are, the others never: of one that is registered again without it, Linux forgets that pages were
/// protected at some later time.
pub fn draw(random: &mut impl Draw, protected: u64) -> Op {
    let area = random.pick(&Area::ALL);
    let page = random.below(PAGES);
    let more = if random.one_in(3) { random.below(PAGES) } else { 0 };
    let part = Part { area, page, pages: 1 + more };
    let number = 1 + random.below(1 << 30);
    match random.below(26) {
        0..=2 => {
            const WP: u64 = 2;
            let mode = random.below(8) & !WP;
            Op::Register(part, mode | if protected >> area as u64 & 1 != 0 { WP } else { 0 })
        }
        3 => Op::Unregister(part),
        4..=6 => Op::Copy(part, random.one_in(3), number),
        7 => Op::Zeropage(part),
        8..=9 => Op::Continue(part, random.one_in(3)),
        10 => Op::Poison(part),
        11..=13 => Op::Protect(part, !random.one_in(3)),
        14..=17 => Op::Load(area, page),
        18..=20 => Op::Store(area, page, number),
        21..=22 => Op::DontNeed(part),
        23 => Op::Punch(page, part.pages),
        24 => Op::Truncate(page),
        _ => Op::Mprotect(part, random.one_in(2)),
    }
}

/// Pages whose first words are this number, and those that follow it.
fn contents(pages: u64, number: u64) -> Vec<u8> {
    let mut bytes = vec![0; (pages * HUGE) as usize];
    for (page, number) in bytes.chunks_exact_mut(HUGE as usize).zip(number..) {
        page[..8].copy_from_slice(&number.to_le_bytes());
    }
    bytes
}
