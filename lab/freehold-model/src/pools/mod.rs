//! Huge pages of pools with a userfaultfd: calls on a few mappings, with their results in a naive model, in
//! the engine and in the running kernel.
//!
//! This comparison has its own calls ([`Op`]) and subjects (`model.rs`, `engine.rs`, `linux.rs`), because the
//! calls of `crate::op` have no huge pages. `tests/pools.rs` draws calls, and compares the model with each of
//! the other subjects after every call. A new call is a variant of [`Op`], a line in [`draw`], and an arm in
//! each subject. No call waits: the userfaultfd has the feature SIGBUS, so an access that needs the pager
//! fails. No mapping is created or unmapped during a run. The mappings are
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

/// Number of pages of each mapping, and of the file.
pub const PAGES: u64 = 4;
/// Number of bytes of a page.
pub const HUGE: u64 = 2 << 20;
/// Number of bytes from one mapping to the next.
const APART: u64 = 64 * HUGE;

/// The mappings.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Area {
    /// Private, without a named file.
    Anonymous,
    /// A shared mapping of the file.
    Shared,
    /// A second shared mapping of the file.
    Plain,
    /// A private mapping of the file.
    Private,
}

impl Area {
    /// All mappings.
    pub const ALL: [Area; 4] = [Area::Anonymous, Area::Shared, Area::Plain, Area::Private];

    /// Returns the offset from the start of the first mapping.
    fn offset(self) -> u64 {
        self as u64 * APART
    }

    /// Returns true if stores change private copies.
    fn is_private(self) -> bool {
        matches!(self, Area::Anonymous | Area::Private)
    }
}

/// Some pages of a mapping. The part may extend beyond the mapping.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Part {
    /// The mapping.
    pub area: Area,
    /// The first page.
    pub page: u64,
    /// Number of pages.
    pub pages: u64,
}

/// A call: an operation of userfaultfd, an access (`Load`, `Store`), or a change of the memory or of the
/// file. The bool of `Copy` and `Continue` requests write protection of the filled pages; the bool of
/// `Protect` and `Mprotect` is the new state.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[expect(missing_docs, reason = "the names of the calls")]
pub enum Op {
    Register(Part, u64),
    Unregister(Part),
    /// Copies pages. The number is the first word of the first page. The first word of each following page is
    /// one larger.
    Copy(Part, bool, u64),
    Zeropage(Part),
    Continue(Part, bool),
    Poison(Part),
    Protect(Part, bool),
    Load(Area, u64),
    Store(Area, u64, u64),
    DontNeed(Part),
    /// Punches a hole into the file.
    Punch(u64, u64),
    /// Truncates the file to this length and then restores its length.
    Truncate(u64),
    /// Changes whether the part is writable.
    Mprotect(Part, bool),
}

/// The result of a call.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Answer {
    /// The call succeeded. Contains the number of pages that it filled, or 0.
    Done(u64),
    /// An errno.
    Failed(i32),
    /// The value that was loaded.
    Value(u64),
    /// An access failed.
    Fault,
}

/// An executor of calls: the model, the engine or the kernel.
pub trait Subject {
    /// Makes a call.
    fn call(&mut self, op: Op) -> Answer;
}

/// Draws a random call. A mapping whose bit is set in `protected` is always registered with write protection,
/// and the other mappings never are. The reason: if a mapping is registered again without write protection,
/// Linux removes the protection of its pages only at some later time.
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

/// Returns the contents of `pages` pages. The first word of the first page is `number`, and that of each
/// following page is one larger.
fn contents(pages: u64, number: u64) -> Vec<u8> {
    let mut bytes = vec![0; (pages * HUGE) as usize];
    for (page, number) in bytes.chunks_exact_mut(HUGE as usize).zip(number..) {
        page[..8].copy_from_slice(&number.to_le_bytes());
    }
    bytes
}
