//! What a program denies itself: [`mdwe`](crate::space::AddressSpace::set_mdwe).

use bitflags::bitflags;

bitflags! {
    /// What a program denies itself for good, with Linux's numbers.
    #[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
    pub struct Mdwe: u32 {
        /// PR_MDWE_REFUSE_EXEC_GAIN: nothing becomes executable that could be written.
        const REFUSE_EXEC_GAIN = 1;
        /// PR_MDWE_NO_INHERIT: not so in forked children, nor after an exec. Only with the other.
        const NO_INHERIT = 2;
    }
}

impl Mdwe {
    /// What a forked child has, and an address space that an exec makes.
    #[must_use]
    pub fn inherited(self) -> Self {
        if self.contains(Self::NO_INHERIT) { Self::empty() } else { self }
    }

    /// Whether it can be asked for.
    pub(crate) fn is_sound(self) -> bool {
        Self::all().contains(self) && self != Self::NO_INHERIT
    }
}
