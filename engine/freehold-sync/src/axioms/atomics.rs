#![allow(missing_docs, reason = "as in the standard library")]
//! The atomics of the unit tests. `atomic.rs` imports these atomics in place of the atomics of `core`.
//!
//! While a thread of an [explored](super) program runs, each access goes to `perform` in `run.rs`, and the
//! word in memory keeps its initial value. At all other times, an access is an ordinary atomic access to the
//! word in memory. `AtomicBool`, `AtomicI64`, `AtomicPtr`, `AtomicU8` and `AtomicU16` are always atomics of
//! the CPU. The checker does not see accesses to them, so code that an explored program runs must not rely on
//! the order of these accesses.
//!
//! The types have the methods that this crate uses. A lock that needs another method adds it here.

pub use core::sync::atomic::{AtomicBool, AtomicI64, AtomicPtr, AtomicU8, AtomicU16, Ordering};

use super::graph::{Action, Op};
use super::run::perform;
use core::fmt;
use core::sync::atomic;

/// Replaces [`core::sync::atomic::fence`].
pub fn fence(order: Ordering) {
    let op = Op { word: 0, initial: 0, action: Action::Fence, order, plain: false };
    if perform(op).is_none() {
        atomic::fence(order);
    }
}

macro_rules! atomic_integer {
    ($name:ident, $int:ty) => {
        /// Replaces the type of the same name in [`core::sync::atomic`]. Has the methods that this crate
        /// uses.
        pub struct $name(atomic::$name);

        #[allow(dead_code, reason = "no integer type uses all methods")]
        impl $name {
            pub const fn new(value: $int) -> Self {
                $name(atomic::$name::new(value))
            }

            fn perform(&self, action: Action, order: Ordering) -> Option<$int> {
                // The accesses of an explored program do not change the word in memory, so the word still
                // has its initial value.
                let initial = self.0.load(Ordering::Relaxed) as u64;
                let word = core::ptr::from_ref(self).addr();
                perform(Op { word, initial, action, order, plain: false }).map(|read| read as $int)
            }

            #[track_caller]
            pub fn load(&self, order: Ordering) -> $int {
                self.perform(Action::Load, order).unwrap_or_else(|| self.0.load(order))
            }

            /// Waits until the word can be read with another value.
            pub fn wait_until_not(&self, value: $int) {
                self.perform(Action::LoadNot(value as u64), Ordering::Relaxed);
            }

            pub fn store(&self, value: $int, order: Ordering) {
                if self.perform(Action::Store(value as u64), order).is_none() {
                    self.0.store(value, order);
                }
            }

            pub fn swap(&self, value: $int, order: Ordering) -> $int {
                let read = self.perform(Action::Swap(value as u64), order);
                read.unwrap_or_else(|| self.0.swap(value, order))
            }

            pub fn fetch_add(&self, value: $int, order: Ordering) -> $int {
                let read = self.perform(Action::Add(value as u64, <$int>::MAX as u64), order);
                read.unwrap_or_else(|| self.0.fetch_add(value, order))
            }

            pub fn fetch_sub(&self, value: $int, order: Ordering) -> $int {
                let negative = (0 as $int).wrapping_sub(value) as u64;
                let read = self.perform(Action::Add(negative, <$int>::MAX as u64), order);
                read.unwrap_or_else(|| self.0.fetch_sub(value, order))
            }

            pub fn fetch_and(&self, value: $int, order: Ordering) -> $int {
                let read = self.perform(Action::And(value as u64), order);
                read.unwrap_or_else(|| self.0.fetch_and(value, order))
            }

            pub fn fetch_or(&self, value: $int, order: Ordering) -> $int {
                let read = self.perform(Action::Or(value as u64), order);
                read.unwrap_or_else(|| self.0.fetch_or(value, order))
            }

            pub fn compare_exchange(
                &self,
                from: $int,
                to: $int,
                order: Ordering,
                failure: Ordering,
            ) -> Result<$int, $int> {
                let action = Action::Exchange { from: from as u64, to: to as u64, failure };
                match self.perform(action, order) {
                    Some(read) if read == from => Ok(read),
                    Some(read) => Err(read),
                    None => self.0.compare_exchange(from, to, order, failure),
                }
            }

            pub fn compare_exchange_weak(
                &self,
                from: $int,
                to: $int,
                order: Ordering,
                failure: Ordering,
            ) -> Result<$int, $int> {
                self.compare_exchange(from, to, order, failure)
            }

            pub fn fetch_update(
                &self,
                order: Ordering,
                failure: Ordering,
                mut f: impl FnMut($int) -> Option<$int>,
            ) -> Result<$int, $int> {
                let mut read = self.load(failure);
                while let Some(new) = f(read) {
                    match self.compare_exchange(read, new, order, failure) {
                        Ok(old) => return Ok(old),
                        Err(now) => read = now,
                    }
                }
                Err(read)
            }
        }

        impl fmt::Debug for $name {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                self.0.fmt(f)
            }
        }
    };
}

atomic_integer!(AtomicU32, u32);
atomic_integer!(AtomicU64, u64);
atomic_integer!(AtomicUsize, usize);
