//! Finds the operation that held an mmap lock while another operation waited for it.
//!
//! An acquisition for writing waits for every holder, and one for reading only for writers. The holder of a
//! wait is the conflicting hold of another task in the same address space that overlaps the wait most; of
//! equal overlaps the later hold counts. The time of a read is known only within the operation, so its
//! overlap is at most its length.
//!
//! [`Holds::holder_of`] must be called in the order of `Acquisition::space` and `Acquisition::from`: the
//! search drops holds that ended before. `waits.rs` calls it, and `lock_waits.rs` for replays; `mod_tests.rs`
//! has the tests.

/// The first acquisition of an mmap lock by an operation, or an acquisition in a replay. Times are those of
/// the recording, or of the replay.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Acquisition {
    /// Number of the address space whose lock it is. `None` if it is not known.
    pub space: Option<usize>,
    /// Index of the task's process.
    pub process: usize,
    pub task: u32,
    pub line: u32,
    /// Number of the operation's name.
    pub operation: u16,
    pub write: bool,
    /// Earliest time at which the wait began.
    pub from: u64,
    /// Length of the wait.
    pub wait: u64,
    /// Latest time at which the lock was acquired.
    pub until: u64,
    /// Time for which the program had been frozen before.
    pub frozen: u64,
}

/// A period in which an operation held an mmap lock.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Hold {
    pub space: usize,
    pub task: u32,
    pub line: u32,
    pub operation: u16,
    pub write: bool,
    /// Earliest time of the beginning.
    pub from: u64,
    /// Latest time of the end.
    pub until: u64,
    /// Length.
    pub ns: u64,
    pub frozen: u64,
}

/// All holds, in the order of address space and time.
#[derive(Debug)]
pub(crate) struct Holds {
    all: Vec<Hold>,
    /// Index of the first hold that began after the last wait did.
    next: usize,
    /// Holds that began before the last wait did, and had not ended then.
    open: Vec<usize>,
}

impl Holds {
    pub(crate) fn new(mut all: Vec<Hold>) -> Holds {
        all.sort_by_key(|hold| (hold.space, hold.from, hold.line));
        Holds { all, next: 0, open: Vec::new() }
    }

    pub(crate) fn get(&self, index: usize) -> &Hold {
        &self.all[index]
    }

    /// Returns the index of the hold that an acquisition waited for.
    pub(crate) fn holder_of(&mut self, by: &Acquisition) -> Option<usize> {
        let space = by.space?;
        while self.all.get(self.next).is_some_and(|hold| (hold.space, hold.from) <= (space, by.from)) {
            self.open.push(self.next);
            self.next += 1;
        }
        self.open.retain(|index| {
            let hold = &self.all[*index];
            hold.space == space && hold.until > by.from
        });
        let within = |index: &usize| {
            let hold = &self.all[*index];
            hold.space == space && hold.from < by.until
        };
        let later = (self.next..self.all.len()).take_while(within);
        let candidates = self.open.iter().copied().chain(later);
        let overlaps = candidates.map(|index| (overlap(by, &self.all[index]), index));
        overlaps.filter(|(overlap, _)| *overlap > 0).max().map(|(_, index)| index)
    }
}

/// Returns for how long a hold may have kept an acquisition waiting, in nanoseconds.
fn overlap(by: &Acquisition, hold: &Hold) -> u64 {
    if by.task == hold.task || !(by.write || hold.write) {
        return 0;
    }
    let both = by.until.min(hold.until).saturating_sub(by.from.max(hold.from));
    both.min(by.wait).min(hold.ns)
}
