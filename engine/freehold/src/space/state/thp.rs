//! The values of prctl's `PR_SET_THP_DISABLE`, with the conversions from and to Linux's numbers.
//! `space/thp.rs` stores the setting in a word of the address space, and applies it to faults. A new value
//! needs its number in `from_raw` and `of`, and its rule in `disables_thp` (`space/thp.rs`). The test
//! `huge::fill::thp_disable_applies_to_the_process_and_its_children` (`engine/freehold/tests`) lists the
//! numbers and checks the faults.

/// The part of a program's memory in which transparent huge pages are disabled. The numbers are those that
/// `PR_GET_THP_DISABLE` returns. A forked child inherits the setting, and so does the address space that an
/// exec creates.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum ThpDisable {
    /// No part: only the flags of each VMA apply.
    #[default]
    Nowhere = 0,
    /// All memory of the program.
    Everywhere = 1,
    /// All memory except where MADV_HUGEPAGE or MADV_COLLAPSE requested huge pages
    /// (`PR_THP_DISABLE_EXCEPT_ADVISED`, Linux 6.18).
    UnlessAdvised = 3,
}

impl ThpDisable {
    /// Decodes the second and third arguments of `PR_SET_THP_DISABLE`. Returns `None` if they are invalid.
    ///
    /// # Examples
    ///
    /// ```
    /// # use freehold::space::ThpDisable;
    /// assert_eq!(ThpDisable::from_raw(1, 2), Some(ThpDisable::UnlessAdvised));
    /// assert_eq!(ThpDisable::from_raw(0, 2), None);
    /// ```
    pub fn from_raw(on: u64, flags: u64) -> Option<Self> {
        match (on, flags) {
            (0, 0) => Some(ThpDisable::Nowhere),
            (1.., 0) => Some(ThpDisable::Everywhere),
            (1.., 2) => Some(ThpDisable::UnlessAdvised),
            _ => None,
        }
    }

    /// Decodes the word that [`AddressSpace::set_thp_disable`](crate::space::AddressSpace::set_thp_disable)
    /// stores.
    pub(in crate::space) fn of(word: u32) -> Self {
        match word {
            0 => ThpDisable::Nowhere,
            3 => ThpDisable::UnlessAdvised,
            _ => ThpDisable::Everywhere,
        }
    }
}
