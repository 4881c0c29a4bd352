//! Atomics whose accesses take virtual time in a run. Outside a run, an access is only the access of the host
//! processor.
//!
//! Under `cfg(sim)`, `freehold-sync` uses these types as the atomics of all crates. Size, alignment and
//! representation are those of the types of `core`, so that a record has the same layout in every build. Each
//! operation first calls `access` of `run.rs`, which charges the time and lets tasks with an earlier clock
//! run, and then makes the real access. No other task runs between `access` and the real access, so an
//! operation stays atomic.
//!
//! A new read-modify-write is a name in a list of `@rmw` below. Any other new operation must call `access`
//! like the other operations, and needs `#[track_caller]`, because a report names the place of the caller.

pub use core::sync::atomic::Ordering;

use crate::run::{Kind, access, plain};
use core::fmt;
use core::panic::Location;
use core::sync::atomic as real;

/// A fence. Takes time if `order` is `SeqCst`.
#[inline]
pub fn fence(order: Ordering) {
    if order == Ordering::SeqCst {
        crate::run::fence();
    }
    real::fence(order);
}

// Defines the types. `@common` has the operations of all types, `@bits` those of integers and `bool`. `@rmw`
// defines the named read-modify-writes, each of which takes a value and returns the previous value.
macro_rules! atomic {
    ($($name:ident: $value:ty),* $(,)?) => {$(
        /// See [`core::sync::atomic`].
        #[repr(transparent)]
        #[derive(Default)]
        pub struct $name(real::$name);

        atomic!(@common [] $name, $value);
        atomic!(@bits $name, $value);

        impl From<$value> for $name {
            fn from(value: $value) -> Self {
                Self::new(value)
            }
        }
    )*};
    (@common [$($generic:tt)*] $name:ty, $value:ty) => {
        impl<$($generic)*> $name {
            /// See [`core::sync::atomic`].
            #[inline(always)]
            pub const fn into_inner(self) -> $value {
                self.0.into_inner()
            }

            /// Returns the address of the value.
            #[inline(always)]
            pub const fn as_ptr(&self) -> *mut $value {
                self.0.as_ptr()
            }

            /// Returns the value, to which the caller has exclusive access.
            #[inline(always)]
            pub fn get_mut(&mut self) -> &mut $value {
                self.0.get_mut()
            }

            #[inline(always)]
            fn address(&self) -> usize {
                self.0.as_ptr().addr()
            }

            /// See [`core::sync::atomic`].
            #[inline]
            #[track_caller]
            pub fn load(&self, order: Ordering) -> $value {
                access(self.address(), Kind::Load, Location::caller());
                self.0.load(order)
            }

            /// See [`core::sync::atomic`].
            #[inline]
            #[track_caller]
            pub fn store(&self, value: $value, order: Ordering) {
                // On x86, a sequentially consistent store is an exchange.
                let kind = if order == Ordering::SeqCst { Kind::Rmw } else { Kind::Store };
                access(self.address(), kind, Location::caller());
                self.0.store(value, order);
            }

            /// See [`core::sync::atomic`].
            #[inline]
            #[track_caller]
            pub fn swap(&self, value: $value, order: Ordering) -> $value {
                access(self.address(), Kind::Rmw, Location::caller());
                self.0.swap(value, order)
            }

            /// See [`core::sync::atomic`].
            ///
            /// # Errors
            /// Returns the current value if it differs from `from`.
            #[inline]
            #[track_caller]
            pub fn compare_exchange(
                &self,
                from: $value,
                to: $value,
                order: Ordering,
                failure: Ordering,
            ) -> Result<$value, $value> {
                access(self.address(), Kind::Rmw, Location::caller());
                self.0.compare_exchange(from, to, order, failure)
            }

            /// See [`core::sync::atomic`]. Fails only if the value differs from `from`.
            ///
            /// # Errors
            /// Returns the current value if it differs from `from`.
            #[inline]
            #[track_caller]
            pub fn compare_exchange_weak(
                &self,
                from: $value,
                to: $value,
                order: Ordering,
                failure: Ordering,
            ) -> Result<$value, $value> {
                self.compare_exchange(from, to, order, failure)
            }

            /// See [`core::sync::atomic`].
            ///
            /// # Errors
            /// Returns the value for which `next` returned `None`.
            #[inline]
            #[track_caller]
            pub fn fetch_update(
                &self,
                order: Ordering,
                failure: Ordering,
                mut next: impl FnMut($value) -> Option<$value>,
            ) -> Result<$value, $value> {
                let mut before = self.load(failure);
                while let Some(to) = next(before) {
                    match self.compare_exchange(before, to, order, failure) {
                        Ok(before) => return Ok(before),
                        Err(now) => before = now,
                    }
                }
                Err(before)
            }
        }

        impl<$($generic)*> fmt::Debug for $name {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                self.0.fmt(f)
            }
        }
    };
    (@bits $name:ident, $value:ty) => {
        impl $name {
            /// See [`core::sync::atomic`].
            #[inline(always)]
            pub const fn new(value: $value) -> Self {
                $name(real::$name::new(value))
            }
        }
        atomic!(@rmw $name, $value: fetch_and, fetch_nand, fetch_or, fetch_xor);
    };
    (@rmw $name:ident, $value:ty: $($rmw:ident),*) => {
        impl $name {$(
            /// See [`core::sync::atomic`].
            #[inline]
            #[track_caller]
            pub fn $rmw(&self, value: $value, order: Ordering) -> $value {
                access(self.address(), Kind::Rmw, Location::caller());
                self.0.$rmw(value, order)
            }
        )*}
    };
}

atomic!(
    AtomicBool: bool,
    AtomicU8: u8,
    AtomicU16: u16,
    AtomicU32: u32,
    AtomicU64: u64,
    AtomicUsize: usize,
    AtomicI64: i64,
);

atomic!(@rmw AtomicU8, u8: fetch_add, fetch_sub, fetch_max, fetch_min);
atomic!(@rmw AtomicU16, u16: fetch_add, fetch_sub, fetch_max, fetch_min);
atomic!(@rmw AtomicU32, u32: fetch_add, fetch_sub, fetch_max, fetch_min);
atomic!(@rmw AtomicU64, u64: fetch_add, fetch_sub, fetch_max, fetch_min);
atomic!(@rmw AtomicUsize, usize: fetch_add, fetch_sub, fetch_max, fetch_min);
atomic!(@rmw AtomicI64, i64: fetch_add, fetch_sub, fetch_max, fetch_min);

/// See [`core::sync::atomic`].
#[repr(transparent)]
pub struct AtomicPtr<T>(real::AtomicPtr<T>);

impl<T> AtomicPtr<T> {
    /// See [`core::sync::atomic`].
    #[inline(always)]
    pub const fn new(value: *mut T) -> Self {
        AtomicPtr(real::AtomicPtr::new(value))
    }
}

impl<T> Default for AtomicPtr<T> {
    fn default() -> Self {
        Self::new(core::ptr::null_mut())
    }
}

atomic!(@common [T] AtomicPtr<T>, *mut T);

/// A `Cell` that a lock guards. If the cache line has to come from another processor, an access takes as long
/// as an access to an atomic; otherwise it takes no virtual time.
#[repr(transparent)]
pub struct PlainCell<T>(core::cell::Cell<T>);

impl<T> PlainCell<T> {
    /// See [`Cell`](core::cell::Cell).
    pub const fn new(value: T) -> Self {
        PlainCell(core::cell::Cell::new(value))
    }

    /// See [`Cell`](core::cell::Cell).
    #[track_caller]
    pub fn get(&self) -> T
    where
        T: Copy,
    {
        plain(self.0.as_ptr().addr(), Kind::Load, Location::caller());
        self.0.get()
    }

    /// See [`Cell`](core::cell::Cell).
    #[track_caller]
    pub fn set(&self, value: T) {
        plain(self.0.as_ptr().addr(), Kind::Store, Location::caller());
        self.0.set(value);
    }

    /// See [`Cell`](core::cell::Cell).
    #[track_caller]
    pub fn replace(&self, value: T) -> T {
        plain(self.0.as_ptr().addr(), Kind::Store, Location::caller());
        self.0.replace(value)
    }
}
