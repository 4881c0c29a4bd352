//! mseal, and prctl's PR_SET_MDWE.
//!
//! mseal forbids later changes of a VMA. The other files of the model test the flag SEALED before they change
//! or remove a VMA, and `madvise.rs` calls [`Vma::resists`] before it discards; a new operation on VMAs needs
//! such a test. MDWE forbids memory that is writable and executable, and memory that becomes executable
//! ([`Process::denies_exec`]). A process can undo neither mseal nor MDWE. `cases/seal.txt`, `cases/mdwe.txt`
//! and `cases/mdwe-alone.txt` have the rules.

use super::madvise::DONTNEED_LOCKED;
use super::*;

const REFUSE_EXEC_GAIN: u64 = 1;
const NO_INHERIT: u64 = 2;

impl Model {
    /// Makes the call in process `p`.
    pub(super) fn mseal(&mut self, p: usize, addr: u64, len: u64, flags: u64) -> Res {
        let end = addr.wrapping_add(page_up(len));
        if flags != 0 || !aligned(addr) || (len != 0 && page_up(len) == 0) || end < addr {
            return Err(libc::EINVAL);
        }
        let max = self.world.max_map_count;
        let pr = self.proc(p);
        // If the range has a hole, no part of it is sealed.
        if pr.pages_in(addr, end) != (end - addr) / PAGE {
            return Err(libc::ENOMEM);
        }
        let mut pos = addr;
        while pos < end {
            let i = pr.at(pos).expect("without holes");
            let (stop, flags) = (pr.vmas[i].end.min(end), pr.vmas[i].flags);
            if flags & vmflag::SEALED == 0 {
                pr.modify(i, pos, stop, flags | vmflag::SEALED, max)?;
            }
            pos = stop;
        }
        Ok(0)
    }

    /// Sets the bits of PR_SET_MDWE. After any bit is set, the bits cannot be changed.
    pub(super) fn set_mdwe(&mut self, p: usize, bits: u64) -> Res {
        let known = REFUSE_EXEC_GAIN | NO_INHERIT;
        if bits & !known != 0 || bits == NO_INHERIT {
            return Err(libc::EINVAL);
        }
        let mdwe = &mut self.proc(p).mdwe;
        if *mdwe != 0 && *mdwe != bits {
            return Err(libc::EPERM);
        }
        *mdwe = bits;
        Ok(0)
    }
}

impl Process {
    /// Returns true if memory with the flags `old` may not get the flags `new`. For a new mapping, both
    /// arguments are its flags.
    pub(super) fn denies_exec(&self, old: u32, new: u32) -> bool {
        let gains = new & vmflag::WRITE != 0 || old & vmflag::EXEC == 0;
        self.mdwe & REFUSE_EXEC_GAIN != 0 && new & vmflag::EXEC != 0 && gains
    }

    /// Returns the bits that a fork's child inherits.
    pub(super) fn inherited_mdwe(&self) -> u64 {
        if self.mdwe & NO_INHERIT != 0 { 0 } else { self.mdwe }
    }
}

impl Vma {
    /// Returns true if the VMA is sealed, and the advice would discard anonymous memory that the program
    /// cannot write.
    pub(super) fn resists(&self, advice: u64) -> bool {
        let discards = matches!(advice, 4 | 8 | 9 | 10 | 18 | DONTNEED_LOCKED | 102);
        discards && self.has(vmflag::SEALED) && !self.has(vmflag::WRITE) && self.back == Backing::Anon
    }
}
