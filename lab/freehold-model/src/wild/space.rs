//! Wild calls of an address space: mapping, changing, advice, access by another process, reports, pins, and
//! the life of spaces. The head of `mod.rs` explains wild calls.
//!
//! [`call`] chooses a function, and each function has the calls of one kind. The function takes the arguments
//! from [`Values`], makes the call on a space of the [`Stage`], and returns true if the call succeeded. The
//! result is used only for the share of successful calls; the engine's assertions and [`Stage::check`] find
//! the errors. An arm that writes a setting reads it back where possible, and returns true only if the
//! setting has the written value.
//!
//! Rules:
//!
//! - For a new public function of `AddressSpace`, add an arm to the function of its kind, and increase the
//!   number in `below` there. `tests/wild.rs` looks for a call of each public function in the text of these
//!   files, and fails if one is missing.
//! - An arm with an `if` guard is chosen less often, because it may make many later calls fail: `mlockall`,
//!   `mseal` and `clear`, for example. If the guard is false, the last arm is chosen.
//! - A changed order of arms or arguments gives the seeds and the inputs of the fuzzer another meaning.
//! - Pins stay on the stage (`stage.rs`) for later calls, at most three sets. `lived` also takes the locks of
//!   the space in the ways that a kernel may, and holds none when it returns.

use super::{
    stage::{Stage, limits, space_config, thp_disable},
    values::Values,
};
use freehold::{
    call::{Advice, LockAllFlags, LockFlags, RemapFlags, ShmFlags, SpecialPart, SyncFlags},
    fault::Access,
    platform::PkeyRights,
    remote::{AccessMode, IoVec, PinFlags},
    report::{QueryFlags, clear_refs::ClearRefs},
    space::{Arguments, MapFlags, Mdwe, Prot},
    vma::flags::VmFlags,
};
use freehold_machine::{Process, Shadow};
use std::ops::ControlFlow;

/// Makes a call. Returns true if the call succeeded.
pub(super) fn call(stage: &mut Stage, v: &mut Values<'_>) -> bool {
    match v.below(8) {
        0 | 1 => mapped(stage, v),
        2 => changed(stage, v),
        3 => advised(stage, v),
        4 => accessed(stage, v),
        5 => reported(stage, v),
        6 => pinned(stage, v),
        _ => lived(stage, v),
    }
}

fn prot(v: &mut Values<'_>) -> Prot {
    Prot::from_bits_retain(if v.bit() { 3 } else { v.flags(0x0300_000f) })
}

fn map_flags(v: &mut Values<'_>) -> MapFlags {
    let kind = v.of(&[1, 2, 2, 2, 3, 8]);
    MapFlags::from_bits_retain(
        (v.flags(MapFlags::all().bits()) & !0xf) | kind | if v.bit() { 0x30 } else { 0 },
    )
}

fn vm_flags(v: &mut Values<'_>) -> VmFlags {
    VmFlags::from_bits_retain(if v.bit() { 0x11 } else { v.flags(u64::MAX) })
}

/// Maps, unmaps, moves or attaches memory.
fn mapped(stage: &mut Stage, v: &mut Values<'_>) -> bool {
    let space = stage.space(v);
    let (addr, len) = (v.addr(), v.len());
    match v.below(10) {
        0..=2 => {
            let file = stage.file(v);
            let file = v.bit().then_some(&file);
            space.mmap(addr, len, prot(v), map_flags(v), file, v.offset()).is_ok()
        }
        3 => space.munmap(addr, len).is_ok(),
        4 => space.munmap_atomic(addr, len).is_ok(),
        5 | 6 => {
            let flags = RemapFlags::from_bits_retain(v.flags(7));
            let new_len = if v.bit() { len } else { v.len() };
            space.mremap(addr, len, new_len, flags, v.addr()).is_ok()
        }
        7 => space.remap_file_pages(addr, len, prot(v), v.pages(), map_flags(v)).is_ok(),
        8 => {
            let special = &stage.special;
            let parts: Vec<_> = (0..v.below(6)).map(|_| (v.len(), vm_flags(v))).collect();
            let parts: Vec<_> =
                parts.iter().map(|&(len, flags)| SpecialPart { len, flags, special }).collect();
            match v.bit() {
                true => space.install_specials(addr, &parts).is_ok(),
                false => space.install_special(addr, len, vm_flags(v), special).is_ok(),
            }
        }
        _ => {
            let flags = ShmFlags::from_bits_retain(v.flags(0o170000) as u32);
            let segment = stage.segments.first();
            match v.bit() {
                true => segment.is_some_and(|segment| space.shmat(segment, addr, flags).is_ok()),
                false => space.shmdt(addr).is_ok(),
            }
        }
    }
}

/// Changes the rights, keys, locks, seals or policy of memory, the heap, or settings of the space.
fn changed(stage: &mut Stage, v: &mut Values<'_>) -> bool {
    let space = stage.space(v);
    let (addr, len) = (v.addr(), v.len());
    match v.below(17) {
        0 | 1 => space.mprotect(addr, len, prot(v)).is_ok(),
        2 => space.pkey_mprotect(addr, len, prot(v), v.below(256) as u8).is_ok(),
        3 => space.pkey_alloc(PkeyRights::from_bits_retain(v.flags(3) as u32)).is_ok(),
        4 => space.pkey_free(v.below(256) as u8).is_ok(),
        5 => space.mlock(addr, len).is_ok(),
        6 => space.mlock2(addr, len, LockFlags::from_bits_retain(v.flags(1) as u32)).is_ok(),
        7 => space.munlock(addr, len).is_ok(),
        8 if v.below(8) == 0 => space.mlockall(LockAllFlags::from_bits_retain(v.flags(7) as u32)).is_ok(),
        9 => space.munlockall().is_ok(),
        10 if v.bit() => space.mseal(addr, len, v.below(9).saturating_sub(7)).is_ok(),
        11 => space.set_policy(addr, len, v.wild()).is_ok(),
        12 => space.brk(if v.bit() { v.wild() } else { space.heap().end.wrapping_add(v.len()) }).is_ok(),
        14 => {
            let wanted = thp_disable(v);
            space.set_thp_disable(wanted);
            space.thp_disable() == wanted
        }
        15 => {
            let wanted = v.bit();
            space.set_memory_merge(wanted).is_ok() && space.memory_merge() == wanted
        }
        13 if v.bit() => {
            let wanted = Mdwe::from_bits_retain(v.below(5) as u32);
            space.set_mdwe(wanted).is_ok() && space.mdwe() == wanted
        }
        _ => space.move_stack(addr, len).is_ok(),
    }
}

/// Makes a madvise or a process_madvise.
fn advised(stage: &mut Stage, v: &mut Values<'_>) -> bool {
    let space = stage.space(v);
    let Ok(advice) = Advice::from_raw(v.below(110) as u32) else { return false };
    if v.below(4) == 0 {
        let own = v.bit();
        return space.process_madvise(&parts(v), advice, own).is_ok();
    }
    space.madvise(v.addr(), v.len(), advice).is_ok()
}

/// Returns a list of ranges.
fn parts(v: &mut Values<'_>) -> Vec<IoVec> {
    (0..v.below(4)).map(|_| IoVec { base: v.addr(), len: v.len() }).collect()
}

/// Makes an access: a fault, a store of a program, or a transfer by another process.
fn accessed(stage: &mut Stage, v: &mut Values<'_>) -> bool {
    let space = stage.space(v);
    let addr = v.addr();
    let manner = v.of(&[AccessMode::Plain, AccessMode::Forced, AccessMode::Report]);
    let mut bytes = vec![3; v.size()];
    match v.below(10) {
        0 | 1 => {
            let access = Access { write: v.bit(), exec: v.bit(), user: v.bit(), pkru: v.wild() as u32 };
            space.handle_fault(addr, access).is_ok()
        }
        2 => space.store(&mut stage.cpu, addr & !7 & ((1 << 46) - 1), 5u64).is_ok(),
        3 => space.read_memory(addr, &mut bytes, manner).is_ok(),
        4 => space.write_memory(addr, &bytes, manner).is_ok(),
        5 => space.read_vectored(&parts(v), &mut bytes).is_ok(),
        6 => space.write_vectored(&parts(v), &bytes).is_ok(),
        7 => {
            let range = v.range();
            let more = v.bit();
            let stop = |_: &[u8]| if more { ControlFlow::Continue(()) } else { ControlFlow::Break(()) };
            space.read_chunks(range, &mut bytes, stop).is_ok()
        }
        8 => {
            let Ok((device, id)) = Shadow::attach(&space) else { return false };
            let done = match v.bit() {
                true => device.load(&space, addr).is_ok(),
                false => space.device_page(addr, v.bit()).is_ok(),
            };
            // Otherwise the device stays attached until the space ends.
            if v.bit() {
                device.forget();
                space.unregister_listener(id);
            }
            done
        }
        _ => {
            let other = stage.space(v);
            match v.bit() {
                true => space.process_vm_readv(&parts(v), &other, &parts(v)).is_ok(),
                false => space.process_vm_writev(&parts(v), &other, &parts(v)).is_ok(),
            }
        }
    }
}

/// Accepts and discards any amount of text.
struct Sink;

impl core::fmt::Write for Sink {
    fn write_str(&mut self, _: &str) -> core::fmt::Result {
        Ok(())
    }
}

/// Makes a report or a query.
fn reported(stage: &mut Stage, v: &mut Values<'_>) -> bool {
    let space = stage.space(v);
    let (addr, len) = (v.addr(), v.len());
    let mut bytes = vec![0; v.size()];
    match v.below(16) {
        0 => space.maps(addr).next().is_some(),
        1 => space.smaps(addr).next().is_some(),
        2 => space.write_maps(&mut Sink).is_ok(),
        3 => {
            space.write_smaps(&mut Sink).is_ok()
                && space.smaps(addr).next().is_some_and(|smap| smap.write_details(&mut Sink).is_ok())
        }
        4 => {
            let mut any = false;
            space.pagemap(v.range(), |_| any = true);
            space.page_entries(v.range(), |run| match run.range.is_empty() {
                true => panic!("an empty run"),
                false => ControlFlow::Continue(()),
            });
            any
        }
        5 => space.frame_at(addr).is_some() || space.swap_slot_at(addr).is_some(),
        6 => space.find_vma(addr).is_some() && space.vma_info(addr).is_some(),
        7 => space.query_vma(addr, QueryFlags::from_bits_retain(v.flags(63))).is_ok(),
        8 => space.probe_at(addr).is_some(),
        9 => space.mincore(addr, len, &mut bytes).is_ok(),
        10 => space.msync(addr, len, SyncFlags::from_bits_retain(v.flags(7) as u32)).is_ok(),
        11 => space.set_arguments(&Arguments { args: v.range(), env: v.range() }).is_ok(),
        12 => match v.below(5) {
            0 => space.clear_soft_dirty().is_ok(),
            3 => {
                space.note_ran();
                space.age_pages(addr, v.pages()).accessed > 0 || space.drop_discardable() > 0
            }
            // A space whose pages were removed cannot be used any more.
            4 => space.fork().is_ok_and(|child| child.reap().is_ok()),
            1 => {
                let mut runs = Vec::new();
                space.page_entries(v.range(), |run| {
                    runs.push(run);
                    if runs.len() < 64 { ControlFlow::Continue(()) } else { ControlFlow::Break(()) }
                });
                space.protect_entries(&runs).is_ok()
            }
            _ => {
                space.clear_refs(v.of(&[ClearRefs::All, ClearRefs::Anonymous, ClearRefs::Mapped]));
                true
            }
        },
        13 => space.smaps_rollup().usage.rss > 0 && space.page_table_bytes() > 0,
        14 => space.read_cmdline(v.wild(), &mut bytes).is_ok(),
        _ => space.read_environ(v.wild(), &mut bytes).is_ok() && space.arguments() != Arguments::default(),
    }
}

/// Pins pages. Keeps at most three sets of pins.
fn pinned(stage: &mut Stage, v: &mut Values<'_>) -> bool {
    let space = stage.space(v);
    let flags = PinFlags::from_bits_retain(v.flags(7) as u32);
    let (addr, pages) = (v.addr(), v.pages() as usize);
    let pins = match v.below(3) {
        0 => space.pin_user_pages(addr, pages, flags),
        1 => space.pin_user_pages_fast(addr, pages, flags),
        _ => space.pin_user_pages_fast_only(addr, pages, flags),
    };
    let Ok(pins) = pins else { return false };
    if stage.pins.len() >= 3 {
        stage.pins.remove(0).unpin_dirty();
    }
    stage.pins.push(pins);
    true
}

/// Creates and drops spaces, and changes their settings.
fn lived(stage: &mut Stage, v: &mut Values<'_>) -> bool {
    let space = stage.space(v);
    match v.below(8) {
        0 | 1 => match space.fork() {
            Ok(child) => {
                stage.add_space(Process::of(child));
                true
            }
            Err(_) => false,
        },
        2 if v.below(4) == 0 => {
            space.clear();
            true
        }
        3 => match Process::new(&stage.engine, &space_config(v)) {
            Ok(space) => {
                stage.add_space(space);
                true
            }
            Err(_) => false,
        },
        4 => {
            space.limits().set(&limits(v));
            space.limits().get().may_lock
        }
        5 => {
            let start = v.wild();
            space.set_heap(start..v.wild()).is_ok() || space.set_heap(start..start).is_ok()
        }
        6 => {
            let range = v.user_range();
            let guarded = space.write_exclusive_range(range).map(|guard| guard.next(range.start()).is_some());
            let _ = space.space().write_killable().map(|guard| guard.vmas(range).count());
            let _ = space.space().read_killable().map(|guard| guard.vmas(range).count());
            let found = space.space().read().find(range.start()).is_some();
            let before = space.space().write().prev(range.end()).is_some();
            guarded == Ok(true) && found && before && space.try_read().is_some()
        }
        _ => {
            let counts = space.counts();
            let _ = (
                space.rss(),
                space.faults(),
                space.lock_stats(),
                space.locking(),
                space.mmu(),
                space.engine(),
            );
            counts.map_count > 0
        }
    }
}
