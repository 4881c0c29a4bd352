//! The walk of the memory-management unit through the tables, without any lock.
//!
//! Simulated processors and tests use this walk. It obeys the rules of the hardware: it sets only accessed
//! and dirty bits, and only by a compare-and-swap of the whole entry. Code that manages mappings uses
//! `table.rs` or `walk.rs` instead. The checks at one entry belong to the format (`Format::hardware_step`).
//! `tests/tables.rs` tests the faults of the walk, and `tests/hardware.rs` runs the walk during stores of
//! software.

use crate::addr::{Level, Pfn, VirtAddr};
use crate::format::Format;
use crate::memory::TableMemory;
use bitflags::bitflags;
use core::fmt;
use freehold_sync::atomic::Ordering;

/// The access that a processor makes at an address.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default)]
pub struct Access {
    /// Set for a write.
    pub write: bool,
    /// Set for an instruction fetch.
    pub exec: bool,
    /// Set if the processor is in the unprivileged mode. If programs run in the privileged mode, as in a
    /// unikernel, the embedder sets the field for faults of programs, whatever the processor reports.
    pub user: bool,
    /// The protection-key rights (PKRU): bit 2k denies access by key k, bit 2k+1 denies writes.
    pub pkru: u32,
}

impl Access {
    /// A read in user mode.
    pub const READ: Access = Access { write: false, exec: false, user: true, pkru: 0 };
    /// A write in user mode.
    pub const WRITE: Access = Access { write: true, ..Access::READ };
    /// An instruction fetch in user mode.
    pub const EXEC: Access = Access { exec: true, ..Access::READ };

    /// Returns the access that caused a page fault with this error code on x86. `pkru` is the register of
    /// protection-key rights, or 0 if the processor has no protection keys.
    ///
    /// # Examples
    ///
    /// ```
    /// use freehold_pagetable::{Access, FaultCode};
    ///
    /// // The error code of a store in user mode to an address without a translation.
    /// let code = FaultCode::from_bits_truncate(6);
    /// assert_eq!(Access::of_fault(code, 0), Access::WRITE);
    /// ```
    pub const fn of_fault(code: FaultCode, pkru: u32) -> Self {
        Access {
            write: code.contains(FaultCode::WRITE),
            exec: code.contains(FaultCode::FETCH),
            user: code.contains(FaultCode::USER),
            pkru,
        }
    }

    pub(crate) fn code(self) -> FaultCode {
        let mut code = FaultCode::empty();
        code.set(FaultCode::WRITE, self.write);
        code.set(FaultCode::USER, self.user);
        code.set(FaultCode::FETCH, self.exec);
        code
    }

    /// Returns true if the rights in `pkru` deny this access to data with the protection key `key`.
    pub fn key_denies(self, key: u8) -> bool {
        let rights = self.pkru >> (2 * u32::from(key)) & 3;
        rights & 1 != 0 || self.write && rights & 2 != 0
    }
}

bitflags! {
    /// The error code of a page fault on x86.
    #[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
    pub struct FaultCode: u32 {
        /// A translation was there and did not permit the access.
        const PRESENT = 1 << 0;
        /// The access was a write.
        const WRITE = 1 << 1;
        /// The access was made in user mode.
        const USER = 1 << 2;
        /// A reserved bit was set in an entry.
        const RESERVED = 1 << 3;
        /// The access was an instruction fetch.
        const FETCH = 1 << 4;
        /// The protection key denied the access.
        const KEY = 1 << 5;
    }
}

/// Reasons why the hardware does not translate an address.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum WalkFault {
    /// A page fault with this error code.
    Page(FaultCode),
    /// The address does not exist in this format, and the processor raises another fault than a page fault
    /// (x86: a general-protection fault).
    NonCanonical,
}

impl fmt::Display for WalkFault {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            WalkFault::Page(code) => write!(f, "page fault, error code {:#x}", code.bits()),
            WalkFault::NonCanonical => f.write_str("the address is not canonical"),
        }
    }
}

impl core::error::Error for WalkFault {}

/// The rights that all levels of a walk permit together.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Rights {
    /// Writes are permitted.
    pub write: bool,
    /// Use in user mode is permitted.
    pub user: bool,
    /// Instruction fetches are permitted.
    pub exec: bool,
}

/// A translation as a TLB would store it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Translation {
    /// The 4 KiB frame of the address itself, even inside a larger leaf.
    pub pfn: Pfn,
    /// The level of the leaf.
    pub level: Level,
    /// The rights that the translation permits.
    pub rights: Rights,
    /// Set if the dirty bit is set in memory. A TLB may serve a write only from such a translation.
    pub dirty: bool,
    /// The leaf's protection key.
    pub pkey: u8,
}

/// Translates `address` through the tables below `root` as the hardware does. Sets accessed and dirty bits by
/// compare-and-swap.
///
/// For platforms without hardware that walks tables. Such a platform walks, calls
/// `AddressSpace::handle_fault` of the crate `freehold` after [`WalkFault::Page`], and walks again. An
/// address that is not canonical raises no page fault on x86: the kernel raises SIGSEGV, with the code
/// SI_KERNEL and without an address. The root table is an argument of `Platform::space_created`.
///
/// Takes no lock. The caller keeps the tables from being freed: no flush may return before both the walk and
/// the access to the frame that the walk found have ended. Processors guarantee this because they answer a
/// flush only between two instructions.
///
/// # Errors
/// Returns the fault that the processor would raise.
pub fn hw_walk<F: Format, M: TableMemory>(
    memory: &M,
    root: Pfn,
    address: VirtAddr,
    access: Access,
) -> Result<Translation, WalkFault> {
    F::hardware_address(address.get(), access)?;
    let mut rights = Rights { write: true, user: true, exec: true };
    let mut table = root;
    let mut level = F::ROOT;
    loop {
        let entry = memory.table(table).entry(address.index(level));
        let raw = step::<F>(entry, level, access, &mut rights)?;
        if F::is_leaf(raw, level) {
            return Ok(Translation {
                pfn: F::pfn(raw).add(address.frame_in_leaf(level)),
                level,
                rights,
                dirty: F::flags(raw).contains(crate::PteFlags::DIRTY),
                pkey: F::pkey(raw),
            });
        }
        table = F::pfn(raw);
        level = level.below();
    }
}

/// Checks one entry and sets its accessed and dirty bits. If the entry changed during the call, checks it
/// again, as the hardware's locked update does.
fn step<F: Format>(
    entry: &freehold_sync::atomic::AtomicU64,
    level: Level,
    access: Access,
    rights: &mut Rights,
) -> Result<u64, WalkFault> {
    let above = *rights;
    // Acquire: pairs with the release store or swap that installed the entry, so the table or page behind the
    // entry is seen initialised.
    let mut raw = entry.load(Ordering::Acquire);
    loop {
        *rights = above;
        let marked = F::hardware_step(raw, level, access, rights)?;
        if marked == raw {
            return Ok(raw);
        }
        // Relaxed on success: the bits carry no data, and the load above already ordered the entry. Acquire
        // on failure: the new entry is checked like the old entry.
        match entry.compare_exchange(raw, marked, Ordering::Relaxed, Ordering::Acquire) {
            Ok(_) => return Ok(marked),
            Err(now) => raw = now,
        }
    }
}

bitflags! {
    /// The rights that a thread denies itself for the pages of a protection key. The bit numbers are those of
    /// Linux.
    #[derive(Clone, Copy, Debug, PartialEq, Eq)]
    pub struct PkeyRights: u32 {
        /// PKEY_DISABLE_ACCESS: loads and stores.
        const DISABLE_ACCESS = 1;
        /// PKEY_DISABLE_WRITE: stores.
        const DISABLE_WRITE = 2;
    }
}
