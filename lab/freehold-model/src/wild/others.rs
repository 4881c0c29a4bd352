//! Wild calls on files, segments and pools, and on pages that are named by frame number; also changes of the
//! engine's settings.
//!
//! `changed` and `made` use files, `pooled` uses pools, and `segment` uses segments. `by_frame` uses frame
//! numbers, some of which belong to no frame. Settings are read back and must have the value that was set. A
//! new public function gets an arm in the function of its object. A limit of the whole system is set only for
//! a moment (`limits`), because few later calls of the life would succeed with such a limit.

use super::{stage::Stage, values::Values};
use freehold::{
    PageCount, PageIndex, PageRange, Pfn,
    call::RemapFlags,
    engine::{Blocks, Engine, HugePages, Overcommit, SharedBlocks},
    file::{
        File, FileAccess, FileAdvice, Frames, Mapping, Pager, ReadRequest, Seals, Segment, Special, Zeroes,
    },
    hugetlb::HugePageSize,
    platform::Platform,
    reclaim::ReclaimRequest,
    space::{AddressSpace, Prot},
};
use freehold_machine::Machine;

/// Makes a call. Returns true if the call succeeded.
pub(super) fn call(stage: &mut Stage, v: &mut Values<'_>) -> bool {
    match v.below(8) {
        0..=3 => changed(stage, v),
        4 => made(stage, v),
        5 => by_frame(stage, v),
        6 => pooled(stage, v),
        _ => segment(stage, v),
    }
}

/// Changes a file (length, holes, seals, write-back), or queries it.
fn changed(stage: &mut Stage, v: &mut Values<'_>) -> bool {
    let file = stage.file(v);
    let mapping = file.mapping();
    let (start, end) = (v.offset(), v.offset());
    let mut bytes = vec![9; v.size()];
    match v.below(18) {
        16 => advised(&file, v, start, end),
        0 => match v.bit() {
            true => mapping.fill(PageIndex::new(v.pages())).is_ok(),
            false => mapping.reserve(PageIndex::new(v.pages())).is_ok(),
        },
        1 => match v.bit() {
            true => mapping.read_at(start, &mut bytes).is_ok(),
            false => file.read_at(start, &mut bytes).is_ok(),
        },
        2 | 3 => mapping.write_at(start, &bytes).is_ok(),
        4 if v.bit() => file.sync((v.pages()..v.pages()).into()).is_ok(),
        4 => mapping.write_back((v.pages()..v.pages()).into()).is_ok(),
        5 => mapping.truncate(if v.bit() { start } else { v.wild() }).is_ok(),
        6 => mapping.adopt_size(if v.bit() { start } else { v.wild() }).is_ok(),
        7 | 8 => mapping.punch(start..end).is_ok(),
        9 => mapping.allocate(start..end).is_ok(),
        10 => mapping.lay_out().is_ok(),
        11 => {
            mapping.revoke((v.pages()..v.pages()).into(), v.bit());
            true
        }
        15 => {
            file.drop_clean((v.pages()..v.pages()).into()) > 0
                && mapping.drop_clean((0..v.pages()).into()) > 0
        }
        12 => mapping.add_probe(start, &bytes[..bytes.len().min(20)]).is_ok(),
        13 => mapping.remove_probe(start).is_ok(),
        14 if v.below(4) == 0 => mapping.add_seals(Seals::from_bits_retain(v.flags(63) as u32)).is_ok(),
        _ => {
            mapping.align_to_huge_pages(v.bit());
            let mount = v.bit().then(|| super::stage::shared_blocks(v).all);
            mapping.set_mount_huge(mount);
            assert_eq!(mapping.mount_huge(), mount);
            let pages = (mapping.pages(), mapping.present_pages());
            let looked = (mapping.size(), pages, mapping.page_bytes(), mapping.seals());
            let _ = (
                looked,
                mapping.is_direct(),
                mapping.is_shmem(),
                mapping.is_secret(),
                mapping.is_zeroes(),
                mapping.aligns_to_huge_pages(),
                mapping.huge_page_size(),
            );
            let range: PageRange = (v.pages()..v.pages()).into();
            let (run, is_cached) = mapping.page_run(range);
            assert!(
                run.start == range.start && (range.is_empty() || !run.is_empty()),
                "{run:?} of {range:?}"
            );
            let fits = file.fits(PageIndex::new(v.pages()), v.pages());
            let index = PageIndex::new(v.pages());
            assert!(mapping.swapped_pages(range) <= range.len().get(), "{range:?}");
            fits && (is_cached || mapping.has_page(index) || mapping.has_data(index))
        }
    }
}

/// Gives an advice about an open file, or changes its readahead.
fn advised(file: &File<Machine>, v: &mut Values<'_>, start: u64, end: u64) -> bool {
    let mapping = file.mapping();
    match v.below(4) {
        0 => {
            let pages = v.wild() as u32;
            mapping.set_readahead(pages);
            mapping.readahead() == pages
        }
        1 => {
            file.readahead(start..if v.bit() { end } else { v.wild() });
            true
        }
        _ => {
            let advice = FileAdvice::from_raw(v.below(7) as u32);
            advice.map(|advice| file.advise(advice, start..if v.bit() { end } else { v.wild() })).is_some()
        }
    }
}

/// A pager that completes requests of several pages at once.
struct Several;

impl Pager<Machine> for Several {
    fn read(&self, mut request: ReadRequest<Machine>) {
        while let Some((index, frame)) = request.next_page() {
            request.platform().zero_frame(frame);
            request.complete(index, Ok(()));
        }
    }

    fn read_pages(&self) -> u64 {
        8
    }
}

/// Creates a file or mapping object.
fn made(stage: &mut Stage, v: &mut Values<'_>) -> bool {
    let engine = stage.engine.clone();
    let size = v.offset();
    let page = v.of(&HugePageSize::ALL);
    let mapping = match v.below(8) {
        0 => Mapping::new(&engine, Zeroes, size, v.bit()).ok(),
        6 => Mapping::new(&engine, Several, size, false).ok(),
        1 => Mapping::memfd(&engine, size).ok(),
        2 => Mapping::of_huge_pages(&engine, page, size, v.bit()).ok(),
        3 => Mapping::direct(&engine, Zeroes, size).ok(),
        4 => Mapping::secret(&engine).ok(),
        5 => Mapping::zeroes(&engine).ok(),
        _ => {
            let made = File::shared_memory(&engine, size, v.bit());
            return made.map(|file| stage.add_file(file)).is_ok();
        }
    };
    let Some(mapping) = mapping else { return false };
    let access = FileAccess::READ
        .read(v.bit())
        .write(v.bit())
        .append(v.bit())
        .noexec(v.bit())
        .mappable(v.bit())
        .shows_cache(v.bit());
    let frames =
        Frames::new("[frames]", &[]).and_then(|frames| Special::<Machine>::of_file(frames, &mapping));
    let file = match v.bit() {
        true => File::new(&mapping, access, "/made"),
        false => File::with_owned(&mapping, 1u64, access, "/made"),
    };
    file.map(|file| stage.add_file(file)).is_ok() && frames.is_ok()
}

/// Calls with frame numbers, some of which belong to no frame.
fn by_frame(stage: &mut Stage, v: &mut Values<'_>) -> bool {
    let space = stage.space(v);
    let engine = &stage.engine;
    let known = space.frame_at(v.addr()).filter(|_| v.below(4) != 0);
    let pfn = known.unwrap_or_else(|| Pfn::new(if v.bit() { v.wild() } else { v.word() % 8192 }));
    match v.below(10) {
        9 => engine.reclaim(&ReclaimRequest::pages(v.pages()).visits(v.word())).freed > 0,
        7 => engine.drop_clean(v.pages()) > 0,
        8 => {
            engine.trim();
            let setting = v.of(&[HugePages::Never, HugePages::Madvise, HugePages::Always]);
            engine.set_huge_pages(setting);
            assert_eq!(engine.huge_pages(), setting);
            let few = |v: &mut Values<'_>| if v.bit() { 0 } else { v.wild() };
            let blocks = Blocks::new().always(few(v)).advised(few(v));
            engine.set_blocks(blocks);
            let sizes = |bytes: u64| bytes & Blocks::SIZES;
            let known = Blocks::new().always(sizes(blocks.always)).advised(sizes(blocks.advised));
            assert_eq!(engine.blocks(), known);
            let blocks = super::stage::shared_blocks(v);
            engine.set_shared_blocks(blocks);
            let known = blocks.always(blocks.always & SharedBlocks::SIZES);
            assert_eq!(engine.shared_blocks(), known);
            let reclaims = v.bit();
            engine.set_reclaims_tables(reclaims);
            assert_eq!(engine.reclaims_tables(), reclaims);
            limits(engine, &space, v);
            engine.failed_frames() > 0
        }
        0 if v.below(2) == 0 => engine.migrate_to(pfn, v.below(2) as usize).is_ok(),
        0 => engine.migrate(pfn).is_ok(),
        1 if v.below(4) == 0 => engine.memory_failure(pfn).is_ok(),
        2 => engine.soft_offline(pfn).is_ok(),
        3 => engine.entries_of(pfn) > 0,
        4 => engine.try_to_unmap(pfn).is_ok(),
        5 => engine.mkclean(pfn).is_ok(),
        _ => engine.referenced(pfn).is_ok(),
    }
}

/// Returns any policy for committed memory.
pub(super) fn overcommit(v: &mut Values<'_>) -> Overcommit {
    let pages = PageCount::new(v.wild() >> 2);
    v.of(&[Overcommit::Always, Overcommit::Heuristic(pages), Overcommit::Never(pages)])
}

/// Sets any limits of the whole system, makes two calls, and restores the limits. With most limits, few later
/// calls of the life would succeed.
fn limits(engine: &Engine<Machine>, space: &AddressSpace<Machine>, v: &mut Values<'_>) {
    let (count, policy) = (v.wild(), overcommit(v));
    engine.set_max_map_count(count);
    engine.set_overcommit(policy);
    assert_eq!((engine.max_map_count(), engine.overcommit()), (count, policy));
    let _ = (engine.committed_pages(), space.mprotect(v.addr(), v.len(), Prot::READ));
    let _ = space.mremap(v.addr(), v.len(), v.len(), RemapFlags::MAYMOVE, 0);
    engine.set_max_map_count(engine.config().max_map_count);
    engine.set_overcommit(engine.config().overcommit);
}

/// Makes a call on a pool of huge pages.
fn pooled(stage: &mut Stage, v: &mut Values<'_>) -> bool {
    let size = v.of(&HugePageSize::ALL);
    let node = match v.below(4) {
        0 => Some(v.wild() as usize),
        1 => Some(v.below(3) as usize),
        _ => None,
    };
    let pool = stage.engine.huge_pool(size);
    match v.below(4) {
        0 => stage.engine.resize_huge_pool(size, v.pages(), node) > 0,
        1 => {
            pool.set_overcommit(if v.bit() { v.wild() } else { 2 });
            true
        }
        _ => pool.counts(node).total > 0 && pool.page_bytes() > 0,
    }
}

/// Makes a call on a segment of shared memory.
fn segment(stage: &mut Stage, v: &mut Values<'_>) -> bool {
    if v.bit() {
        let (key, size, page) = (v.wild() as u32, v.offset(), v.of(&HugePageSize::ALL));
        let made = match v.below(3) {
            0 => Segment::new(&stage.engine, key, size).ok(),
            1 => Segment::noreserve(&stage.engine, key, size).ok(),
            _ => Segment::of_huge_pages(&stage.engine, key, page, size, v.bit()).ok(),
        };
        return made.map(|made| stage.segments = vec![made]).is_some();
    }
    let Some(segment) = stage.segments.first() else { return false };
    if v.bit() {
        segment.remove();
    }
    let _ = (segment.key(), segment.attached(), segment.mapping().size());
    segment.is_removed() && segment.is_destroyed()
}
