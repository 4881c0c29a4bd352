//! A set of taken numbers below N: one bit per number, and a tree of summaries above the bits.
//!
//! `pool.rs` uses one set for the frames of a machine and one set for its tables; `inner.rs` uses a set for
//! the slots of address spaces. The owner of a set guards the set with a short lock. The lowest free numbers
//! are taken first. Therefore a batch has ascending numbers, and a freed run of numbers is usually taken as a
//! run again. Taking 64 numbers costs about as much as taking one. Code that changes a word of level 0 must
//! keep the summaries correct: it calls `mark_full` when the word becomes full, and `mark_room` when a full
//! word gets a free number. `bitmap_tests.rs` compares the set with a naive implementation.

const BITS: usize = 64;
/// Maximum number of levels of words. 64^5 numbers are more than any machine here has.
const MAX_LEVELS: usize = 5;

/// The set of the numbers below `len` that are taken.
///
/// # Invariants
/// - `levels[0]` has bit `i` set exactly while number `i` is taken or does not exist (`i >= len`).
/// - Bit `i` of `levels[k + 1]` is set exactly while word `i` of `levels[k]` is all ones.
/// - The last level is a single word.
#[derive(Debug)]
pub(crate) struct Bitmap {
    levels: Vec<Vec<u64>>,
    len: usize,
    taken: usize,
    /// No free run of `RUN` numbers begins above this number, so a search for such a run begins here.
    highest_run: usize,
}

/// The error of freeing a number that is not taken. Contains the number.
#[derive(Debug, PartialEq, Eq, Clone, Copy)]
pub(crate) struct NotTaken(pub(crate) usize);

/// Length of the runs for which a search remembers its position: 512 numbers, which are 2 MiB of frames.
const RUN: usize = 512;

impl Bitmap {
    /// Creates a set in which all numbers below `len` are free. The host supplies zeroed words, and maps them
    /// when they are touched.
    pub(crate) fn new(len: usize) -> Self {
        assert!(len > 0, "an empty set of numbers");
        let mut levels = Vec::with_capacity(MAX_LEVELS);
        let mut bits = len;
        loop {
            let words = bits.div_ceil(BITS);
            let mut level = vec![0u64; words];
            if !bits.is_multiple_of(BITS) {
                level[words - 1] = !0 << (bits % BITS);
            }
            levels.push(level);
            if words == 1 {
                break;
            }
            bits = words;
        }
        Bitmap { levels, len, taken: 0, highest_run: len }
    }

    /// Returns how many numbers are taken.
    pub(crate) fn taken(&self) -> usize {
        self.taken
    }

    /// Returns true if `number` is taken.
    pub(crate) fn is_taken(&self, number: usize) -> bool {
        number < self.len && self.levels[0][number / BITS] >> (number % BITS) & 1 == 1
    }

    /// Takes the lowest free numbers, at most `want`, ascending. Passes each number to `out`. Returns the
    /// number of taken numbers.
    pub(crate) fn take(&mut self, want: usize, mut out: impl FnMut(usize)) -> usize {
        let mut got = 0;
        while got < want {
            let Some(index) = self.word_with_room() else { break };
            // The word is changed in a register. With a store to memory for each number, each store would
            // wait for the previous one.
            let mut word = self.levels[0][index];
            while got < want && word != !0 {
                let bit = (!word).trailing_zeros() as usize;
                word |= 1 << bit;
                out(index * BITS + bit);
                got += 1;
            }
            self.levels[0][index] = word;
            if word == !0 {
                self.mark_full(index);
            }
        }
        self.taken += got;
        got
    }

    /// Takes this number if it is free. Returns true if the number was free.
    pub(crate) fn take_this(&mut self, number: usize) -> bool {
        if number >= self.len || self.is_taken(number) {
            return false;
        }
        let word = &mut self.levels[0][number / BITS];
        *word |= 1 << (number % BITS);
        if *word == !0 {
            self.mark_full(number / BITS);
        }
        self.taken += 1;
        true
    }

    /// Takes `run` consecutive free numbers that begin at `first`, or at a multiple of `run` above `first`.
    /// Takes the highest such run, and returns its lowest number. `run` is a multiple of 64. Runs are taken
    /// from above and single numbers from below, so that they stay apart.
    ///
    /// A search looks at every run above the run that it finds. Later searches skip these runs until numbers
    /// in them are freed.
    pub(crate) fn take_run(&mut self, run: usize, first: usize) -> Option<usize> {
        let words = run / BITS;
        let mut at = first + self.highest_run.saturating_sub(first) / run * run;
        loop {
            if at + run <= self.len && at.is_multiple_of(BITS) {
                let index = at / BITS;
                if self.levels[0][index..index + words].iter().all(|word| *word == 0) {
                    self.levels[0][index..index + words].fill(!0);
                    (index..index + words).for_each(|index| self.mark_full(index));
                    self.taken += run;
                    self.note_highest(run, at);
                    return Some(at);
                }
            }
            at = at.checked_sub(run).filter(|at| *at >= first)?;
            self.note_highest(run, at);
        }
    }

    /// Records that no run of `run` numbers is free above the run at `at`. Only runs of `RUN` numbers are
    /// recorded: a place that is too small for a longer run may still fit a run of `RUN` numbers.
    fn note_highest(&mut self, run: usize, at: usize) {
        if run == RUN {
            self.highest_run = at;
        }
    }

    /// Takes the highest `run` consecutive free numbers. Returns the lowest of these numbers, or `None` if
    /// `run` is zero. Looks at every word above the result.
    pub(crate) fn take_run_anywhere(&mut self, run: usize) -> Option<usize> {
        let first = self.highest_run_of(run)?;
        for number in first..first + run {
            let word = &mut self.levels[0][number / BITS];
            *word |= 1 << (number % BITS);
            if *word == !0 {
                self.mark_full(number / BITS);
            }
        }
        self.taken += run;
        Some(first)
    }

    /// Returns the lowest of the highest `run` consecutive free numbers.
    fn highest_run_of(&self, run: usize) -> Option<usize> {
        if run == 0 {
            return None;
        }
        let mut free = 0;
        for (index, word) in self.levels[0].iter().enumerate().rev() {
            match *word {
                0 if free + BITS < run => free += BITS,
                word if word == !0 => free = 0,
                word => {
                    for bit in (0..BITS).rev() {
                        free = if word >> bit & 1 == 0 { free + 1 } else { 0 };
                        if free == run {
                            return Some(index * BITS + bit);
                        }
                    }
                }
            }
        }
        None
    }

    /// Frees `numbers`. Fails at the first number that is not taken; the numbers before it are freed.
    pub(crate) fn give(&mut self, numbers: impl Iterator<Item = usize>) -> Result<(), NotTaken> {
        let mut numbers = numbers.peekable();
        while let Some(&number) = numbers.peek() {
            let index = number / BITS;
            let Some(&before) = self.levels[0].get(index) else { return Err(NotTaken(number)) };
            // As in `take`, the word is changed in a register. Usually several of the numbers are in one
            // word.
            let mut word = before;
            let mut highest = number;
            while let Some(number) = numbers.next_if(|number| number / BITS == index) {
                let bit = 1 << (number % BITS);
                if word & bit == 0 || number >= self.len {
                    self.give_in_word(index, before, word, highest);
                    return Err(NotTaken(number));
                }
                word &= !bit;
                highest = highest.max(number);
            }
            self.give_in_word(index, before, word, highest);
        }
        Ok(())
    }

    /// Stores a word in which some bits were cleared because their numbers were freed. The word was `before`
    /// and is now `word`; `highest` is the highest of the freed numbers.
    fn give_in_word(&mut self, index: usize, before: u64, word: u64, highest: usize) {
        if word == before {
            return;
        }
        self.levels[0][index] = word;
        self.taken -= (before & !word).count_ones() as usize;
        self.highest_run = self.highest_run.max(highest);
        if before == !0 {
            self.mark_room(index);
        }
    }

    /// The taken numbers, ascending.
    pub(crate) fn iter_taken(&self) -> impl Iterator<Item = usize> + '_ {
        self.levels[0]
            .iter()
            .enumerate()
            .filter(|(_, word)| **word != 0)
            .flat_map(|(index, word)| {
                (0..BITS).filter(move |bit| word >> bit & 1 == 1).map(move |bit| index * BITS + bit)
            })
            .take_while(|number| *number < self.len)
    }

    /// Returns the index of the lowest word of level 0 that is not all ones, or `None` if all numbers are
    /// taken.
    fn word_with_room(&self) -> Option<usize> {
        let mut index = 0;
        for level in self.levels.iter().rev() {
            let word = level[index];
            if word == !0 {
                return None; // only possible in the topmost word
            }
            let bit = (!word).trailing_zeros() as usize;
            // The index at level 0 is the result. Above level 0 the bit selects the word one level down.
            if core::ptr::eq(level, &self.levels[0]) {
                return Some(index);
            }
            index = index * BITS + bit;
        }
        None
    }

    /// Records in the summaries that word `index` of level 0 is all ones now.
    fn mark_full(&mut self, mut index: usize) {
        for level in &mut self.levels[1..] {
            let word = &mut level[index / BITS];
            *word |= 1 << (index % BITS);
            if *word != !0 {
                return;
            }
            index /= BITS;
        }
    }

    /// Records in the summaries that word `index` of level 0 now has a zero bit.
    fn mark_room(&mut self, mut index: usize) {
        for level in &mut self.levels[1..] {
            let word = &mut level[index / BITS];
            let was_full = *word == !0;
            *word &= !(1 << (index % BITS));
            if !was_full {
                return;
            }
            index /= BITS;
        }
    }
}

#[cfg(test)]
#[path = "bitmap_tests.rs"]
mod tests;
