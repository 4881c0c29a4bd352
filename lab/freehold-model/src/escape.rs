//! Decides which calls may be executed on the running kernel: those that cannot reach memory outside the
//! arena.
//!
//! The child that makes the calls (`linux/child.rs`) is a part of this program, so a call outside the arena
//! could unmap its code or stack. `generate.rs` and `script.rs` drop every call that [`escapes`] reports. The
//! function uses only the arguments and not the state of memory, because calls are also dropped later
//! (`compare.rs`). [`escapes`] may report a harmless call, but must never miss a call that could reach memory
//! outside the arena. A new kind of call therefore needs an arm here before it is drawn: the last arm permits
//! every call that has no arm.

use crate::op::{Call, PAGE};
use crate::world::World;

/// Returns true if the call might act on memory outside the arena. Returns false for a call that fails
/// because of its arguments.
pub fn escapes(w: &World, call: &Call) -> bool {
    match *call {
        Call::Mmap { addr, len, flags, .. } => mmap_escapes(w, addr, len, flags),
        Call::Munmap { addr, len } => {
            let refused = odd(addr) || len == 0 || addr > w.task_size || len > w.task_size - addr;
            !refused && outside(w, addr, len)
        }
        Call::Mprotect { addr, len, prot } => {
            let both = prot & 0x0300_0000 == 0x0300_0000;
            let refused = odd(addr) || both || prot & !0x0300_000f != 0 || empty_or_wraps(addr, len);
            !refused && outside(w, addr, len)
        }
        Call::Madvise { addr, len, advice } => {
            let known = matches!(advice as u32, 0..=4 | 8..=25 | 100..=103);
            !(odd(addr) || !known || empty_or_wraps(addr, len)) && outside(w, addr, len)
        }
        Call::Mlock { addr, len } | Call::Munlock { addr, len } => lock_escapes(w, addr, len),
        Call::Mlock2 { addr, len, flags } => flags as u32 <= 1 && lock_escapes(w, addr, len),
        Call::Mseal { addr, len, flags } => {
            let refused = odd(addr) || flags != 0 || empty_or_wraps(addr, len);
            !refused && outside(w, addr, len)
        }
        Call::Msync { addr, len, flags } => {
            let flags = flags as u32;
            let refused = odd(addr) || flags > 7 || flags & 5 == 5 || empty_or_wraps(addr, len);
            !refused && outside(w, addr, len)
        }
        Call::Mincore { addr, len } => {
            let refused = odd(addr) || addr.checked_add(len).is_none_or(|end| end > w.task_size);
            !refused && len != 0 && outside(w, addr, len)
        }
        Call::Mremap { old, old_len, new_len, flags, new_addr } => {
            mremap_escapes(w, old, old_len, new_len, flags, new_addr)
        }
        Call::Read { addr, len } => len > PAGE || (addr >= PAGE && outside(w, addr, len)),
        Call::Write { addr, .. } => addr >= PAGE && outside(w, addr, 1),
        _ => false,
    }
}

/// Returns true if the address is not that of a page.
fn odd(addr: u64) -> bool {
    !addr.is_multiple_of(PAGE)
}

/// Rounds up to a page. Wraps to 0 at the top, as the kernel does.
fn page_up(x: u64) -> u64 {
    x.wrapping_add(PAGE - 1) & !(PAGE - 1)
}

/// Returns true if the range is empty or wraps around, so that the kernel refuses it or does nothing.
fn empty_or_wraps(addr: u64, len: u64) -> bool {
    addr.wrapping_add(page_up(len)) <= addr
}

/// Returns true if a part of the range is outside the arena.
fn outside(w: &World, addr: u64, len: u64) -> bool {
    let end = addr.checked_add(page_up(len));
    !end.is_some_and(|end| w.holds(addr, end))
}

/// Returns true if a call that locks whole pages might act outside the arena.
fn lock_escapes(w: &World, addr: u64, len: u64) -> bool {
    let start = addr & !(PAGE - 1);
    let len = page_up(len.wrapping_add(addr % PAGE));
    start.wrapping_add(len) > start && outside(w, start, len)
}

/// Returns true if an mmap might replace or add memory outside the arena.
fn mmap_escapes(w: &World, addr: u64, len: u64, flags: u64) -> bool {
    let size = page_up(len);
    // Calls with `MAP_32BIT` are left out, because such calls place memory in the low 2 GiB, which are
    // outside most arenas.
    if flags & 0x40 != 0 {
        return true;
    }
    if size == 0 || size > w.task_size {
        return false;
    }
    if flags & 0x10_0010 == 0 {
        // A hint outside the arena has no effect, because all addresses there are mapped.
        return false;
    }
    let refused = addr > w.task_size - size || odd(addr) || addr < w.min_addr || flags & 0x10_0000 != 0;
    !refused && outside(w, addr, size)
}

/// Returns true if an mremap might act on memory outside the arena.
fn mremap_escapes(w: &World, old: u64, old_len: u64, new_len: u64, flags: u64, new_addr: u64) -> bool {
    let (old_size, new_size) = (page_up(old_len), page_up(new_len));
    if flags & !7 != 0 || odd(old) || new_size == 0 || new_size > w.task_size {
        return false;
    }
    if flags & 6 != 0 {
        let refused = new_addr > w.task_size - new_size || odd(new_addr) || flags & 1 == 0;
        if refused {
            return false;
        }
        if flags & 2 != 0 && outside(w, new_addr, new_size) {
            return true;
        }
    }
    // If the source shrinks, the kept part and the part that is cut off must be inside the arena. If the
    // source grows, it moves to free addresses, which are always inside the arena.
    let kept = old_size.min(new_size).max(PAGE);
    outside(w, old, kept) || (old_size > new_size && {
        let cut = old_size - new_size;
        let at = old.wrapping_add(new_size);
        at <= w.task_size && cut <= w.task_size - at && outside(w, at, cut)
    })
    // A source that is longer than its VMA fails in most calls. But a move of several VMAs moves all VMAs in
    // the range.
    || (flags & 2 != 0 && old_size == new_size && outside(w, old, old_size))
}
