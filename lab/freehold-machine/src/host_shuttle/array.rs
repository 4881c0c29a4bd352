//! Arrays whose values are created on first access.
//!
//! `inner.rs` and `pool.rs` use them for frames, tables and records. `host_std/array.rs` has the same names,
//! but maps zeroed memory. Zeroed memory is not possible here, because the checker's atomics are not plain
//! bytes. Every schedule builds a machine, so creating and dropping an array must be cheap.

use crate::blank::Blank;
use std::array;
use std::io;
use std::sync::OnceLock;

/// Number of values whose places are allocated together. Most of an array is never used, so places are
/// allocated on first use.
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

    /// Returns the value at `index`, and creates the value at the first call. Returns `None` beyond the end.
    pub(crate) fn get(&self, index: usize) -> Option<&T> {
        if index >= self.len {
            return None;
        }
        let places =
            self.places[index / TOGETHER].get_or_init(|| Box::new(array::from_fn(|_| OnceLock::new())));
        Some(places[index % TOGETHER].get_or_init(T::boxed))
    }
}
