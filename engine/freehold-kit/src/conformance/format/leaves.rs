//! Leaves: their flags, their frames, and the functions that change flags.

use super::{KEYS, all_flags, kept, leaf_levels, levels, pfn_bits};
use crate::conformance::report::{Found, require};
use freehold_pagetable::{Format, Kind, Level, Pfn, PteFlags};

/// Returns some frames at which a leaf of `level` may start: the first, one in the middle, and the last.
fn some_frames<F: Format>(level: Level) -> [Pfn; 3] {
    let last = (1u64 << pfn_bits::<F>()) - level.frames();
    [Pfn::new(0), Pfn::new(level.frames() * 5), Pfn::new(last)]
}

/// Checks one leaf: every function must read from it what was written.
fn leaf_is<F: Format>(raw: u64, level: Level, pfn: Pfn, flags: PteFlags) -> Found {
    let wanted = kept::<F>(flags, level);
    let what = |problem: &str| {
        alloc::format!("a leaf of {level:?} at {pfn:?} with {flags:?} is {raw:#x}, {problem}")
    };
    require!(raw != 0, "{}", what("the empty slot"));
    match F::kind(raw, level) {
        Kind::Leaf { pfn: found, .. } if found != pfn => {
            return Err(what(&alloc::format!("which kind() decodes as a leaf at {found:?}")));
        }
        Kind::Leaf { flags: found, .. } if found != wanted => {
            let (lost, added) = (wanted - found, found - wanted);
            return Err(what(&alloc::format!(
                "from which kind() reads {found:?}: lost {lost:?}, added {added:?}"
            )));
        }
        Kind::Leaf { .. } => {}
        other => return Err(what(&alloc::format!("which kind() decodes as {other:?}"))),
    }
    let found = F::flags(raw);
    require!(
        found | PteFlags::HUGE == wanted | PteFlags::HUGE,
        "{}",
        what(&alloc::format!("from which flags() reads {found:?}, and kind() reads {wanted:?}"))
    );
    let found = F::pfn(raw);
    require!(found == pfn, "{}", what(&alloc::format!("from which pfn() reads {found:?}")));
    let found = F::pkey(raw);
    require!(found == wanted.pkey(), "{}", what(&alloc::format!("from which pkey() reads {found}")));
    require!(F::is_leaf(raw, level), "{}", what("for which is_leaf() is false"));
    let open = !flags.contains(PteFlags::NO_ACCESS);
    require!(F::is_cached(raw) == open, "{}", what(&alloc::format!("for which is_cached() is {}", !open)));
    Ok(())
}

/// Writes and reads leaves of each level, with every combination of flags.
pub fn leaves<F: Format>() -> Found {
    for level in leaf_levels::<F>() {
        for pfn in some_frames::<F>(level) {
            for flags in all_flags::<F>() {
                leaf_is::<F>(F::leaf(level, pfn, flags), level, pfn, flags)?;
            }
        }
    }
    Ok(())
}

/// Writes and reads leaves and table entries with each bit of a frame number.
pub fn frames<F: Format>() -> Found {
    let open = PteFlags::USER | PteFlags::WRITE | PteFlags::ACCESSED | PteFlags::DIRTY;
    for level in leaf_levels::<F>() {
        for bit in level.frames().trailing_zeros()..pfn_bits::<F>() {
            let pfn = Pfn::new(1 << bit);
            for flags in [PteFlags::empty(), open, open | PteFlags::NO_ACCESS, open | PteFlags::EXEC] {
                leaf_is::<F>(F::leaf(level, pfn, flags), level, pfn, flags)?;
            }
        }
    }
    for level in levels::<F>().skip(1) {
        for bit in 0..pfn_bits::<F>() {
            let (pfn, raw) = (Pfn::new(1 << bit), F::table(Pfn::new(1 << bit)));
            let found = F::kind(raw, level);
            require!(
                found == Kind::Table { pfn } && F::pfn(raw) == pfn,
                "the entry of a table at {pfn:?} is {raw:#x}, which kind() decodes as {found:?} at {level:?}, and \
                 from which pfn() reads {:?}",
                F::pfn(raw)
            );
        }
    }
    Ok(())
}

/// Changes flags of leaves by each function.
pub fn edits<F: Format>() -> Found {
    let all = F::FLAGS - PteFlags::HUGE - PteFlags::PKEY - PteFlags::NO_ACCESS;
    for level in leaf_levels::<F>() {
        let pfn = some_frames::<F>(level)[1];
        for flags in all_flags::<F>() {
            let raw = F::leaf(level, pfn, flags);
            let from = |error| alloc::format!("from a leaf of {level:?} with {flags:?}: {error}");
            let revocable = PteFlags::REVOCABLE.iter().chain([PteFlags::empty(), PteFlags::REVOCABLE]);
            for lost in revocable {
                let left = flags - lost;
                leaf_is::<F>(F::without(raw, lost), level, pfn, left)
                    .map_err(|error| from(alloc::format!("without({lost:?}) gives a wrong leaf: {error}")))?;
            }
            for other in [PteFlags::USER, all - flags, flags | PteFlags::ACCESSED] {
                let other = other - PteFlags::NO_ACCESS;
                leaf_is::<F>(F::with_flags(raw, level, other), level, pfn, other).map_err(|error| {
                    from(alloc::format!("with_flags({other:?}) gives a wrong leaf: {error}"))
                })?;
            }
            let closed = (flags - PteFlags::GLOBAL) | PteFlags::NO_ACCESS;
            leaf_is::<F>(F::with_flags(raw, level, closed), level, pfn, closed)
                .map_err(|error| from(alloc::format!("closing gives a wrong leaf: {error}")))?;
            for key in KEYS {
                leaf_is::<F>(F::with_pkey(raw, key), level, pfn, flags.with_pkey(key))
                    .map_err(|error| from(alloc::format!("with_pkey({key}) gives a wrong leaf: {error}")))?;
            }
        }
    }
    Ok(())
}

/// Writes flags that the format does not have.
pub fn absent_flags<F: Format>() -> Found {
    let keys = if F::FLAGS.contains(PteFlags::PKEY) { &[][..] } else { &KEYS[..] };
    let absent = (PteFlags::all() - F::FLAGS - PteFlags::PKEY).iter().filter(|flag| *flag != PteFlags::HUGE);
    let absent = absent.chain(keys.iter().map(|key| PteFlags::empty().with_pkey(*key)));
    for flag in absent {
        for level in leaf_levels::<F>() {
            let pfn = Pfn::new(level.frames());
            let (with, without) =
                (F::leaf(level, pfn, PteFlags::USER | flag), F::leaf(level, pfn, PteFlags::USER));
            require!(
                with == without,
                "FLAGS does not contain {flag:?}, but a leaf of {level:?} with the flag is {with:#x} instead of \
                 {without:#x}"
            );
            let (found, soft_dirty) = (F::flags(with), flag == PteFlags::SOFT_DIRTY);
            require!(
                found.intersects(flag) == soft_dirty,
                "FLAGS does not contain {flag:?}, so flags() must {}report it, but it reads {found:?}",
                if soft_dirty { "always " } else { "never " }
            );
        }
    }
    Ok(())
}
