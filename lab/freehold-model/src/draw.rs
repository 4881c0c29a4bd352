//! Small numbers and choices from random words.
//!
//! All generators of calls (`generate.rs`, `history.rs`, `pools/mod.rs`) use [`Draw`]. Seeds are part of
//! tests: a seed that found a difference must give the same calls again. A change of these functions, or of
//! the number of words that they take, changes the calls of every seed.

/// Draws from a source of random words; each draw takes one word.
///
/// ```
/// use freehold_model::draw::Draw;
///
/// struct Words(std::vec::IntoIter<u64>);
///
/// impl Draw for Words {
///     fn word(&mut self) -> u64 {
///         self.0.next().unwrap()
///     }
/// }
///
/// let mut words = Words(vec![0, u64::MAX, 1 << 63].into_iter());
/// assert!(words.one_in(6));
/// assert_eq!(words.below(6), 5);
/// assert_eq!(words.pick(&["a", "b", "c", "d"]), "c");
/// ```
pub trait Draw {
    /// Returns the next random word.
    fn word(&mut self) -> u64;

    /// Returns a number less than `n`, or 0 if `n` is 0.
    fn below(&mut self, n: u64) -> u64 {
        ((u128::from(self.word()) * u128::from(n)) >> 64) as u64
    }

    /// Returns true with probability 1 in `n`.
    fn one_in(&mut self, n: u64) -> bool {
        self.below(n) == 0
    }

    /// Returns one of these values.
    ///
    /// # Panics
    ///
    /// Panics if `of` is empty.
    fn pick<T: Copy>(&mut self, of: &[T]) -> T {
        of[self.below(of.len() as u64) as usize]
    }
}
