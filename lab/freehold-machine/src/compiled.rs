//! Instantiates the engine for this machine in this crate, once for all programs that use it.
//!
//! Crates that are compiled with `opt-level` 1 or less share the code of generic functions: a crate uses the
//! code of a function that one of its dependencies has already compiled. Without the list in [`compiled`],
//! each test program would compile the engine again. Nothing calls [`compiled`]; add a call of the engine to
//! the list if many test programs use it. A call that is missing from the list is compiled in each program
//! that uses it, so an omission costs only time. `lib.rs` includes this file only in builds with debug
//! assertions.

use crate::DefaultFormat;
use crate::{Machine, Process};
use freehold::{
    counted::Counted,
    file::{File, Mapping, Segment},
    hugetlb::HugePageSize,
    nommu::NoMmuSpace,
    remote::Pins,
    uffd::Userfaultfd,
};

type Space = freehold::space::AddressSpace<Machine>;
type Engine = freehold::engine::Engine<Machine>;
type Uffd = Userfaultfd<Machine>;
type NoMmu = NoMmuSpace<Machine>;

macro_rules! addresses {
    ($($of:ty: $($call:ident)*;)*) => { vec![$($(<$of>::$call as *const ()),*),*] };
}

/// Returns the addresses of the engine's calls.
#[doc(hidden)]
#[must_use]
pub fn compiled() -> Vec<*const ()> {
    let mut all = addresses! {
        Space: brk set_heap clear trim fork set_memory_merge madvise process_madvise set_policy mlock mlock2 munlock
            mlockall munlockall mmap mprotect pkey_mprotect mremap mseal msync munmap munmap_atomic pkey_alloc
            pkey_free remap_file_pages shmat shmdt install_special install_specials move_stack handle_fault
            read_cmdline read_environ read_memory write_memory read_vectored write_vectored pin_user_pages
            pin_user_pages_fast pin_user_pages_fast_only process_vm_readv process_vm_writev check clear_refs
            clear_soft_dirty protect_entries maps mincore frame_at query_vma smaps smaps_rollup page_table_bytes set_arguments arguments read
            read_killable try_read write write_killable write_exclusive_range set_mdwe new counts rss faults
            vma_info set_thp_disable find_vma probe_at;
        Engine: new failed_frames trim drop_clean huge_pool resize_huge_pool try_to_unmap mkclean referenced
            memory_failure soft_offline migrate entries_of;
        Mapping<Machine>: has_page drop_clean revoke truncate punch read_at write_at write_back
            allocate present_pages fill check add_seals add_probe remove_probe;
        Segment<Machine>: mapping attached remove;
        File<Machine>: new drop_clean segment;
        Uffd: copy zeropage continue_with poison close move_pages write_protect register unregister new read poll
            try_read wake;
        NoMmu: new mmap find clear check munmap;
        Pins<Machine>: frames read write unpin_dirty;
        Process<DefaultFormat>: new touch read write;
    };
    all.extend([
        make_files as *const (),
        drop::<Counted<Space>> as *const (),
        drop::<Counted<Engine>> as *const (),
        drop::<Counted<Mapping<Machine>>> as *const (),
        Process::<DefaultFormat>::load::<u64> as *const (),
        Process::<DefaultFormat>::store::<u64> as *const (),
    ]);
    all
}

/// Calls the constructors of files, which are generic over their owner.
fn make_files(engine: &Counted<Engine>) {
    let huge = HugePageSize::Mib2;
    drop((Mapping::memfd(engine, 0), Mapping::secret(engine), Mapping::zeroes(engine)));
    drop((Mapping::of_huge_pages(engine, huge, 0, false), File::shared_memory(engine, 0, false)));
    drop((Segment::new(engine, 0, 0), Segment::of_huge_pages(engine, 0, huge, 0, false)));
}
