//! Types that have a value only if the crate is built with a certain cargo feature.
//!
//! A struct that is needed only with a feature has a field of such a type. Without the feature, no value of
//! the struct can exist, so the compiler removes the code that handles such a value. `VmFlags::POSSIBLE`
//! removes the code that depends on the flags of a VMA. A new feature also needs a row in `lib.rs` and an
//! entry in `Cargo.toml`; `.ci/run` runs clippy on the crate without features.

/// Defines a type that has a value only if the crate has a feature.
macro_rules! feature {
    ($(#[$about:meta])* $name:ident, $feature:literal) => {
        $(#[$about])*
        #[derive(Clone, Copy)]
        pub(crate) struct $name(#[cfg(not(feature = $feature))] core::convert::Infallible);

        impl $name {
            /// Returns the value, or `None` if the crate does not have the feature.
            // Always inlined, because the compiler removes the caller's code only if the constant is visible
            // in the caller.
            #[inline(always)]
            pub(crate) fn get() -> Option<Self> {
                #[cfg(feature = $feature)]
                return Some($name());
                #[cfg(not(feature = $feature))]
                return None;
            }
        }
    };
}

feature!(
    /// Exists with the feature `hugetlb`.
    Hugetlb, "hugetlb"
);
feature!(
    /// Exists with the feature `range_writers`.
    RangeWriters, "range_writers"
);
feature!(
    /// Exists with the feature `uffd`.
    Uffd, "uffd"
);
