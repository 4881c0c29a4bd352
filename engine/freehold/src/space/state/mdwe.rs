//! The values of prctl's `PR_SET_MDWE`: restrictions that a program sets for itself with
//! [`set_mdwe`](crate::space::AddressSpace::set_mdwe). `space/mdwe.rs` stores and enforces them. This file
//! decides which combinations are valid, and which restrictions a child and an exec inherit.

use bitflags::bitflags;

bitflags! {
    /// Restrictions that a program sets for itself permanently, with Linux's numbers.
    #[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
    pub struct Mdwe: u32 {
        /// PR_MDWE_REFUSE_EXEC_GAIN: memory is never writable and executable at once, and never becomes
        /// executable later.
        const REFUSE_EXEC_GAIN = 1;
        /// PR_MDWE_NO_INHERIT: forked children do not inherit the restriction, and an exec removes it. Valid
        /// only together with `REFUSE_EXEC_GAIN`.
        const NO_INHERIT = 2;
    }
}

impl Mdwe {
    /// Returns the restrictions of a forked child, and of an address space that an exec creates.
    ///
    /// # Examples
    ///
    /// ```
    /// # use freehold::space::Mdwe;
    /// assert_eq!(Mdwe::REFUSE_EXEC_GAIN.inherited(), Mdwe::REFUSE_EXEC_GAIN);
    /// assert_eq!((Mdwe::REFUSE_EXEC_GAIN | Mdwe::NO_INHERIT).inherited(), Mdwe::empty());
    /// ```
    #[must_use]
    pub fn inherited(self) -> Self {
        if self.contains(Self::NO_INHERIT) { Self::empty() } else { self }
    }

    /// Returns true if the combination of bits is valid.
    pub(crate) fn is_sound(self) -> bool {
        Self::all().contains(self) && self != Self::NO_INHERIT
    }
}
