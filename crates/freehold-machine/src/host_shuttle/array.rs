//! Arrays whose values are made when first asked for: the checker's atomics are not their bytes.

use crate::blank::Blank;
use std::io;
use std::sync::OnceLock;

/// `len` blank values of `T`, each made on first use. Making one is no switch of threads.
#[derive(Debug)]
pub(crate) struct LazyArray<T>(Box<[OnceLock<Box<T>>]>);

impl<T: Blank> LazyArray<T> {
    /// No value yet.
    pub(crate) fn new(len: usize, _dense: bool) -> io::Result<Self> {
        Ok(LazyArray((0..len).map(|_| OnceLock::new()).collect()))
    }

    pub(crate) fn get(&self, index: usize) -> Option<&T> {
        Some(self.0.get(index)?.get_or_init(T::boxed))
    }
}
