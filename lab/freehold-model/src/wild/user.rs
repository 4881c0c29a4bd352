//! Wild calls of userfaultfds and of pinned pages.
//!
//! `supplied` makes the calls of a pager on one of the userfaultfds of the [`Stage`], concurrently with the
//! stage's own pager thread (`Watcher`). `pins` uses and releases the pins that the calls in `space.rs` have
//! taken. A new public function of `Userfaultfd` gets an arm in `supplied`.

use super::{stage::Stage, values::Values};
use freehold::uffd::{Features, FillMode, MoveMode, ProtectMode, RegisterMode};

/// Makes a call. Returns true if the call succeeded.
pub(super) fn call(stage: &mut Stage, v: &mut Values<'_>) -> bool {
    match v.below(8) {
        0 => {
            let space = stage.space(v);
            let features = v.flags(Features::all().bits());
            stage.add_uffd(&space, features, v.bit())
        }
        1 => pins(stage, v),
        _ => supplied(stage, v),
    }
}

/// Makes a call of a pager: registers, fills, protects, wakes, or reads messages.
fn supplied(stage: &mut Stage, v: &mut Values<'_>) -> bool {
    if stage.uffds.is_empty() {
        return false;
    }
    let uffd = &stage.uffds[v.below(stage.uffds.len() as u64) as usize];
    let (start, len) = (v.addr(), v.len());
    let fill = FillMode::from_bits_retain(v.flags(3));
    match v.below(12) {
        0..=2 => uffd.register(start, len, RegisterMode::from_bits_retain(v.flags(7))).is_ok(),
        3 => uffd.unregister(start, len).is_ok(),
        4 => {
            let size = if v.bit() { v.size() } else { 2 << 20 };
            uffd.copy(start, &vec![7; size], fill).is_ok()
        }
        5 => uffd.zeropage(start, len, fill).is_ok(),
        6 => uffd.continue_with(start, len, fill).is_ok(),
        7 => uffd.poison(start, len, fill).is_ok(),
        8 => uffd.write_protect(start, len, ProtectMode::from_bits_retain(v.flags(3))).is_ok(),
        9 => uffd.move_pages(start, v.addr(), len, MoveMode::from_bits_retain(v.flags(3))).is_ok(),
        10 => uffd.wake(start, len).is_ok(),
        _ if v.below(8) == 0 => {
            uffd.close();
            uffd.read().is_err()
        }
        _ => {
            uffd.poll().readable
                && !uffd.is_changing()
                && uffd.try_read().is_some()
                && uffd.config().user_mode_only
        }
    }
}

/// Uses or releases the oldest pins.
fn pins(stage: &mut Stage, v: &mut Values<'_>) -> bool {
    let Some(pins) = stage.pins.first() else { return false };
    let mut bytes = vec![1; v.size()];
    match v.below(4) {
        0 => pins.read(v.offset(), &mut bytes).is_ok(),
        1 => pins.write(v.offset(), &bytes).is_ok(),
        2 => pins.frames().len() == pins.len() && !pins.is_empty(),
        _ => {
            let pins = stage.pins.remove(0);
            if v.bit() {
                pins.unpin_dirty();
            }
            true
        }
    }
}
