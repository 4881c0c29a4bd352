//! Physical addresses ([`PhysAddr`]), the arithmetic that they share with virtual addresses, and conversions
//! to the address types of other crates.
//!
//! The engine itself names physical memory only by frame numbers ([`Pfn`]). [`PhysAddr`] is for platforms,
//! because registers and devices take addresses. The features `x86_64` and `memory_addr` add conversions to
//! and from the types of the crates with these names. Conversions for another crate need a feature, a module
//! like `of_x86_64` under this feature, and a test in `tests/addresses.rs`.

use crate::addr::{PAGE_MASK, PAGE_SHIFT, Pfn, VirtAddr};
use core::{fmt, ops};

/// A physical address, in bytes.
///
/// # Examples
///
/// ```
/// use freehold_pagetable::{Pfn, PhysAddr};
///
/// let at = PhysAddr::new(0x1234);
/// assert_eq!((at.pfn(), at.page_offset()), (Pfn::new(1), 0x234));
/// assert_eq!(Pfn::new(2).start(), PhysAddr::new(0x2000));
/// assert_eq!(u64::from(at.align_down(0x1000)), 0x1000);
/// assert_eq!((Pfn::new(2) + 3, Pfn::new(5) - Pfn::new(2)), (Pfn::new(5), 3));
/// ```
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Default)]
#[repr(transparent)]
pub struct PhysAddr(u64);

impl PhysAddr {
    /// Returns the address with this number.
    #[inline]
    pub const fn new(address: u64) -> Self {
        PhysAddr(address)
    }

    /// Returns the address as a number.
    #[inline]
    pub const fn get(self) -> u64 {
        self.0
    }

    /// Returns the frame that contains the address.
    #[inline]
    pub const fn pfn(self) -> Pfn {
        Pfn::new(self.0 >> PAGE_SHIFT)
    }

    /// Returns the number of bytes from the start of the frame to the address.
    #[inline]
    pub const fn page_offset(self) -> u64 {
        self.0 & PAGE_MASK
    }
}

impl Pfn {
    /// Returns the address of the first byte of the frame. The frame must be below 2^52.
    #[inline]
    pub const fn start(self) -> PhysAddr {
        PhysAddr(self.get() << PAGE_SHIFT)
    }
}

/// Panics on overflow.
impl ops::Add<u64> for Pfn {
    type Output = Self;

    #[inline]
    fn add(self, frames: u64) -> Self {
        Pfn::new(self.get().checked_add(frames).expect("the sum exceeds the last frame"))
    }
}

/// Panics if the result would be negative.
impl ops::Sub<u64> for Pfn {
    type Output = Self;

    #[inline]
    fn sub(self, frames: u64) -> Self {
        Pfn::new(self.get().checked_sub(frames).expect("the difference is negative"))
    }
}

/// Returns the distance in frames. Panics if the right frame has the higher number.
impl ops::Sub for Pfn {
    type Output = u64;

    #[inline]
    fn sub(self, other: Self) -> u64 {
        self.get().checked_sub(other.get()).expect("the difference is negative")
    }
}

impl From<u64> for Pfn {
    fn from(number: u64) -> Self {
        Pfn::new(number)
    }
}

impl From<Pfn> for u64 {
    fn from(pfn: Pfn) -> u64 {
        pfn.get()
    }
}

macro_rules! arithmetic {
    ($($name:ident)*) => {$(
        impl $name {
            /// Returns the address `bytes` higher, or `None` on overflow.
            #[inline]
            pub const fn checked_add(self, bytes: u64) -> Option<Self> {
                match self.get().checked_add(bytes) {
                    Some(sum) => Some($name::new(sum)),
                    None => None,
                }
            }

            /// Returns the address `bytes` lower, or `None` if it would be negative.
            #[inline]
            pub const fn checked_sub(self, bytes: u64) -> Option<Self> {
                match self.get().checked_sub(bytes) {
                    Some(difference) => Some($name::new(difference)),
                    None => None,
                }
            }

            /// Returns true if the address is a multiple of `align`, a power of two.
            #[inline]
            pub const fn is_aligned(self, align: u64) -> bool {
                debug_assert!(align.is_power_of_two());
                self.get() & (align - 1) == 0
            }

            /// Returns the highest multiple of `align`, a power of two, that is not above the address.
            #[inline]
            pub const fn align_down(self, align: u64) -> Self {
                debug_assert!(align.is_power_of_two());
                $name::new(self.get() & !(align - 1))
            }

            /// Returns the lowest multiple of `align`, a power of two, that is not below the address. Returns
            /// `None` on overflow.
            #[inline]
            pub const fn align_up(self, align: u64) -> Option<Self> {
                debug_assert!(align.is_power_of_two());
                match self.checked_add(align - 1) {
                    Some(sum) => Some(sum.align_down(align)),
                    None => None,
                }
            }
        }

        impl fmt::Debug for $name {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                write!(f, "{:#x}", self.get())
            }
        }

        impl fmt::LowerHex for $name {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                fmt::LowerHex::fmt(&self.get(), f)
            }
        }

        impl From<u64> for $name {
            fn from(address: u64) -> Self {
                $name::new(address)
            }
        }

        impl From<$name> for u64 {
            fn from(address: $name) -> u64 {
                address.get()
            }
        }

        /// The operator for addresses that the caller has checked. It panics on overflow;
        /// `checked_add` does not.
        impl ops::Add<u64> for $name {
            type Output = Self;

            #[inline]
            fn add(self, bytes: u64) -> Self {
                self.checked_add(bytes).expect("the sum exceeds the last address")
            }
        }

        /// The operator for addresses that the caller has checked. It panics if the result would be negative;
        /// `checked_sub` does not.
        impl ops::Sub<u64> for $name {
            type Output = Self;

            #[inline]
            fn sub(self, bytes: u64) -> Self {
                self.checked_sub(bytes).expect("the difference is negative")
            }
        }

        /// The distance in bytes. Panics if the right address is higher.
        impl ops::Sub for $name {
            type Output = u64;

            #[inline]
            fn sub(self, other: Self) -> u64 {
                self.get().checked_sub(other.get()).expect("the difference is negative")
            }
        }
    )*};
}

arithmetic! { VirtAddr PhysAddr }

#[cfg(feature = "x86_64")]
mod of_x86_64 {
    use super::{PhysAddr, VirtAddr};

    impl From<x86_64::VirtAddr> for VirtAddr {
        fn from(address: x86_64::VirtAddr) -> Self {
            VirtAddr::new(address.as_u64())
        }
    }

    /// Fails for an address that is not canonical for four levels of tables.
    impl TryFrom<VirtAddr> for x86_64::VirtAddr {
        type Error = x86_64::addr::VirtAddrNotValid;

        fn try_from(address: VirtAddr) -> Result<Self, Self::Error> {
            Self::try_new(address.get())
        }
    }

    impl From<x86_64::PhysAddr> for PhysAddr {
        fn from(address: x86_64::PhysAddr) -> Self {
            PhysAddr::new(address.as_u64())
        }
    }

    /// Fails for an address of more than 52 bits.
    impl TryFrom<PhysAddr> for x86_64::PhysAddr {
        type Error = x86_64::addr::PhysAddrNotValid;

        fn try_from(address: PhysAddr) -> Result<Self, Self::Error> {
            Self::try_new(address.get())
        }
    }
}

#[cfg(all(feature = "memory_addr", target_pointer_width = "64"))]
mod of_memory_addr {
    use super::{PhysAddr, VirtAddr};

    macro_rules! conversions {
        ($($name:ident)*) => {$(
            impl From<memory_addr::$name> for $name {
                fn from(address: memory_addr::$name) -> Self {
                    $name::new(address.as_usize() as u64)
                }
            }

            impl From<$name> for memory_addr::$name {
                fn from(address: $name) -> Self {
                    Self::from_usize(address.get() as usize)
                }
            }
        )*};
    }

    conversions! { VirtAddr PhysAddr }
}
