//! Where a program has no huge pages.

/// Where a program has no huge pages, with the numbers that `PR_GET_THP_DISABLE` returns. A forked child has
/// it, too, and so has an address space that an exec makes.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum ThpDisable {
    /// As its VMAs say.
    #[default]
    Nowhere = 0,
    /// In all of its memory.
    Everywhere = 1,
    /// Where nobody asked for them, by MADV_HUGEPAGE or MADV_COLLAPSE (`PR_THP_DISABLE_EXCEPT_ADVISED`, Linux
    /// 6.18).
    UnlessAdvised = 3,
}

impl ThpDisable {
    /// What the second and third arguments of `PR_SET_THP_DISABLE` ask for. `None`: they make no sense.
    pub fn from_raw(on: u64, flags: u64) -> Option<Self> {
        match (on, flags) {
            (0, 0) => Some(ThpDisable::Nowhere),
            (1.., 0) => Some(ThpDisable::Everywhere),
            (1.., 2) => Some(ThpDisable::UnlessAdvised),
            _ => None,
        }
    }

    /// What [`AddressSpace::thp_disable`] has stored.
    pub(in crate::space) fn of(word: u32) -> Self {
        match word {
            0 => ThpDisable::Nowhere,
            3 => ThpDisable::UnlessAdvised,
            _ => ThpDisable::Everywhere,
        }
    }
}
