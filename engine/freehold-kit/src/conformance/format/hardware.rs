//! The step of the processor at an entry, and the constants of a format.

use super::{entries, leaf_levels, levels};
use crate::conformance::report::{Found, require};
use freehold_pagetable::{Access, Format, Level, PAGE_SHIFT, Pfn, PteFlags, Rights};

const ACCESSED: PteFlags = PteFlags::ACCESSED;
const DIRTY: PteFlags = PteFlags::DIRTY;
const OPEN: PteFlags = PteFlags::USER.union(PteFlags::WRITE).union(PteFlags::EXEC);
/// The flags that every format stores.
const NEEDED: PteFlags =
    OPEN.union(ACCESSED).union(DIRTY).union(PteFlags::NO_ACCESS).union(PteFlags::SPECIAL);

const fn all_rights() -> Rights {
    Rights { write: true, user: true, exec: true }
}

/// Checks the constants.
pub fn constants<F: Format>() -> Found {
    require!((3..=5).contains(&F::LEVELS), "LEVELS is {}, but must be 3, 4 or 5", F::LEVELS);
    require!(
        F::PAGE_SHIFTS.contains(&PAGE_SHIFT),
        "PAGE_SHIFTS is {:?}, but this build has pages of 2^{PAGE_SHIFT} bytes",
        F::PAGE_SHIFTS
    );
    require!(F::ROOT.number() + 1 == F::LEVELS, "ROOT is {:?}, but there are {} levels", F::ROOT, F::LEVELS);
    require!(F::MAX_LEAF <= Level::Pud, "MAX_LEAF is {:?}, but must be at most Pud", F::MAX_LEAF);
    require!(F::MAX_LEAF <= F::ROOT, "MAX_LEAF is {:?}, above ROOT, {:?}", F::MAX_LEAF, F::ROOT);
    let pfn_bits = F::PFN_BITS;
    let least = F::MAX_LEAF.frames().trailing_zeros() + 3;
    require!(
        (least..=64 - PAGE_SHIFT).contains(&pfn_bits),
        "PFN_BITS is {pfn_bits}, but must be {least} to {}",
        64 - PAGE_SHIFT
    );
    let absent = NEEDED - F::FLAGS;
    require!(absent.is_empty(), "FLAGS must contain {absent:?}");
    let key = F::FLAGS & PteFlags::PKEY;
    require!(
        key.is_empty() || key == PteFlags::PKEY,
        "FLAGS contains only a part of the protection key: {key:?}"
    );
    let wrong = F::HARDWARE_FLAGS - ACCESSED - DIRTY;
    require!(wrong.is_empty(), "HARDWARE_FLAGS contains {wrong:?}, but may contain only ACCESSED and DIRTY");
    require!(
        F::MAP_WINDOW_END <= F::USER_END,
        "MAP_WINDOW_END, {:#x}, is above USER_END, {:#x}",
        F::MAP_WINDOW_END,
        F::USER_END
    );
    let covered = (F::USER_ENTRIES as u64).checked_mul(F::ROOT.span());
    require!(
        covered == Some(F::USER_END),
        "the {} USER_ENTRIES of a root table of {:?} translate {covered:x?} bytes, but USER_END is {:#x}",
        F::USER_ENTRIES,
        F::ROOT,
        F::USER_END
    );
    let (entries, most) = (F::USER_ENTRIES, freehold_pagetable::ENTRIES);
    require!(entries <= most, "USER_ENTRIES is {entries}, but a table has {most} entries");
    Ok(())
}

/// Checks which addresses exist.
pub fn addresses<F: Format>() -> Found {
    let page = 1 << PAGE_SHIFT;
    let bits = (PAGE_SHIFT..64).map(|bit| 1 << bit).filter(|address| *address < F::USER_END);
    for address in bits.chain([0, F::USER_END - page, F::USER_END - 1]) {
        for access in [Access::READ, Access::WRITE, Access::EXEC] {
            let found = F::hardware_address(address, access);
            require!(
                found.is_ok(),
                "{address:#x} is below USER_END, but hardware_address() fails: {found:?}"
            );
        }
    }
    for address in [F::USER_END, F::USER_END + page - 1] {
        let found = F::hardware_address(address, Access::READ);
        require!(found.is_err(), "{address:#x} is not below USER_END, but hardware_address() accepts it");
    }
    Ok(())
}

/// Executes the processor's step at entries of each kind.
pub fn steps<F: Format>() -> Found {
    for level in leaf_levels::<F>() {
        for access in [Access::READ, Access::WRITE, Access::EXEC] {
            for bits in [PteFlags::empty(), ACCESSED, DIRTY, ACCESSED | DIRTY] {
                marks::<F>(level, access, bits)?;
            }
            rights::<F>(level, access)?;
        }
    }
    for level in levels::<F>() {
        let step = F::hardware_step(0, level, Access::READ, &mut all_rights());
        require!(step.is_err(), "the hardware translates through an empty slot of {level:?}");
        for kind in entries::MARKERS {
            for payload in entries::payloads() {
                let raw = F::marker(kind, payload);
                let step = F::hardware_step(raw, level, Access::READ, &mut all_rights());
                require!(
                    step.is_err(),
                    "the hardware translates through the marker {kind:?} {payload:#x} of {level:?}"
                );
            }
        }
    }
    for level in levels::<F>().skip(1) {
        for access in [Access::READ, Access::WRITE, Access::EXEC] {
            let (raw, mut rights) = (F::table(Pfn::new(5)), all_rights());
            let step = F::hardware_step(raw, level, access, &mut rights);
            require!(
                step == Ok(raw) && rights == all_rights(),
                "the step at the table entry {raw:#x} of {level:?} must permit everything and change nothing, but the \
                 result of {access:?} is {step:?} with {rights:?}"
            );
        }
    }
    Ok(())
}

/// Checks the accessed and dirty bits that a step sets in an open leaf with `bits`.
fn marks<F: Format>(level: Level, access: Access, bits: PteFlags) -> Found {
    let pfn = Pfn::new(level.frames());
    let raw = F::leaf(level, pfn, OPEN | bits);
    let set = if access.write { ACCESSED | DIRTY } else { ACCESSED };
    let missing = set - bits;
    let by_software = missing - F::HARDWARE_FLAGS;
    match F::hardware_step(raw, level, access, &mut all_rights()) {
        Ok(marked) => {
            require!(
                by_software.is_empty(),
                "HARDWARE_FLAGS does not contain {by_software:?}, but {access:?} through a leaf of {level:?} without it \
                 succeeds"
            );
            let (before, after) = (F::flags(raw), F::flags(marked));
            require!(
                after == before | set,
                "{access:?} through a leaf of {level:?} with {before:?} must set {set:?}, but leaves {after:?}"
            );
            require!(
                F::pfn(marked) == pfn && F::is_leaf(marked, level),
                "{access:?} through a leaf of {level:?} at {pfn:?} changes it to {:?}",
                F::kind(marked, level)
            );
            let again = F::hardware_step(marked, level, access, &mut all_rights());
            require!(
                again == Ok(marked),
                "a second {access:?} through a leaf of {level:?} must change nothing, but gives {again:?}"
            );
        }
        Err(fault) => require!(
            !by_software.is_empty(),
            "HARDWARE_FLAGS contains {missing:?}, but {access:?} through an open leaf of {level:?} with {bits:?} fails: \
             {fault:?}"
        ),
    }
    Ok(())
}

/// Checks that a step demands each right, and no right that the access does not use.
fn rights<F: Format>(level: Level, access: Access) -> Found {
    let pfn = Pfn::new(level.frames());
    for right in [PteFlags::USER, PteFlags::WRITE, PteFlags::EXEC] {
        let used = right == PteFlags::USER
            || access.write && right == PteFlags::WRITE
            || access.exec && right == PteFlags::EXEC;
        // A leaf without the right to write that is dirty: a copy-on-write page.
        let raw = F::leaf(level, pfn, (OPEN | ACCESSED | DIRTY) - right);
        let step = F::hardware_step(raw, level, access, &mut all_rights());
        require!(
            step.is_err() == used,
            "{access:?} through a leaf of {level:?} without {right:?} must {}, but gives {step:?}",
            if used { "fail" } else { "succeed" }
        );
    }
    let raw = F::leaf(level, pfn, OPEN | ACCESSED | DIRTY | PteFlags::NO_ACCESS);
    let step = F::hardware_step(raw, level, access, &mut all_rights());
    require!(step.is_err(), "{access:?} through a leaf of {level:?} with NO_ACCESS succeeds");
    Ok(())
}
