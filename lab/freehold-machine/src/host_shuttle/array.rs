//! Arrays whose values are created on first access. The checker's atomics are not plain bytes, so zeroed
//! memory is no valid value.

use crate::blank::Blank;
use std::array;
use std::io;
use std::sync::OnceLock;

/// Number of values whose places are allocated together. An array is created and dropped in every schedule,
/// and most of it is never used.
const TOGETHER: usize = 64;

type Places<T> = Box<[OnceLock<Box<T>>; TOGETHER]>;

/// `len` blank values of `T`, each created on first use. Creating a value does not switch threads.
#[derive(Debug)]
pub(crate) struct LazyArray<T> {
    len: usize,
    places: Box<[OnceLock<Places<T>>]>,
}

impl<T: Blank> LazyArray<T> {
    /// Creates the array without any values.
    pub(crate) fn new(len: usize, _dense: bool) -> io::Result<Self> {
        let places = (0..len.div_ceil(TOGETHER)).map(|_| OnceLock::new()).collect();
        Ok(LazyArray { len, places })
    }

    pub(crate) fn get(&self, index: usize) -> Option<&T> {
        if index >= self.len {
            return None;
        }
        let places =
            self.places[index / TOGETHER].get_or_init(|| Box::new(array::from_fn(|_| OnceLock::new())));
        Some(places[index % TOGETHER].get_or_init(T::boxed))
    }
}
