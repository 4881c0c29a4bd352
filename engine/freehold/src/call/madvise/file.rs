//! MADV_WILLNEED and MADV_REMOVE: advice that concerns the file of a mapping.
//!
//! WILLNEED reads pages into the cache (`file/readahead/mod.rs`), and REMOVE punches a hole into the file
//! (`file/change/truncate.rs`). Operations on a file may wait for its backing store (`file/pager.rs`), so no
//! lock of the address space may be held during such an operation. A userfaultfd that requested messages
//! about removed pages is notified first, also without a lock. After such an operation the VMA must be looked
//! up again (hazard C-69). `tests/files/advice.rs` has the tests.

use super::advice::{Advice, check_seal, fail_on_hole};
use crate::{
    counted::Counted,
    error::MadviseError,
    file::{File, FillError},
    platform::Platform,
    space::{AddressSpace, change::vma_ranges::VmaRanges},
    uffd::event::Notice,
    vma::{Vma, flags::VmFlags},
};
use freehold_vmspace::{PageRange, UserRange};

impl<P: Platform> AddressSpace<P> {
    /// Applies the advice to the files in `range`, one VMA after the other. The mmap lock is held only for
    /// the lookup of a VMA. Each lookup starts at the end of the previous part, and no earlier result is used
    /// again (hazard C-69).
    pub(super) fn advise_file(&self, mut range: UserRange, advice: Advice) -> Result<(), MadviseError> {
        let mut no_holes = true;
        while range.start() < range.end() {
            let guard = self.read_killable()?;
            let Some((vma, part)) = guard.first_range(range) else {
                no_holes = false;
                break;
            };
            no_holes &= part.start() == range.start();
            range = range.with_start(part.end());
            check_seal(self.platform(), vma, advice)?;
            let target = match advice {
                Advice::Remove => Some(removable(vma)?.clone()),
                _ => vma.object().file().cloned(),
            };
            let Some(file) = target else { continue };
            let notice = if advice == Advice::Remove { Notice::remove(vma, part) } else { None };
            let first = vma.pgoff_of(part.start());
            let pages = PageRange::at(first, part.pages());
            drop(guard);
            notice.into_iter().for_each(Notice::send);
            match advice {
                Advice::Remove => punch(&file, pages)?,
                _ => file.mapping().will_need(pages),
            }
        }
        fail_on_hole(no_holes)
    }
}

/// Returns the file of `vma` if a hole may be punched into it through this mapping.
fn removable<P: Platform>(vma: &Vma<P>) -> Result<&Counted<File<P>>, MadviseError> {
    let flags = vma.flags();
    let file =
        vma.object().open_file().filter(|_| !flags.contains(VmFlags::LOCKED)).ok_or(MadviseError::Invalid)?;
    let writes_reach_it = flags.contains(VmFlags::SHARED | VmFlags::MAYWRITE);
    if writes_reach_it { Ok(file) } else { Err(MadviseError::AccessDenied) }
}

/// Punches a hole over `pages` into the file.
fn punch<P: Platform>(file: &File<P>, pages: PageRange) -> Result<(), MadviseError> {
    let bytes = pages.start.byte()..pages.end.byte();
    file.mapping().punch(bytes).map_err(|error| match error {
        FillError::NoMemory => MadviseError::OutOfMemory,
        FillError::Sealed => MadviseError::Sealed,
        FillError::Invalid => MadviseError::Invalid,
        FillError::Unsupported => MadviseError::NotSupported,
        FillError::Killed => MadviseError::Killed,
        FillError::BeyondEnd
        | FillError::Io
        | FillError::Busy
        | FillError::Lost
        | FillError::NoSpace
        | FillError::NoHugePages => MadviseError::Io,
    })
}
