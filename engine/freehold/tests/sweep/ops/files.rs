//! Operations of the sweep on files, segments, pools, and pages by frame number. They use the file, the
//! segment and the board of the scene, or the frame at unit 1 of the range. `memory.rs` describes the
//! entries.

use super::{Left, Op, done, errno, filled, made, op};
use crate::sweep::{board::OpenBoard, scene::Scene, *};
use freehold::{
    PageIndex, PageRange,
    error::Errno,
    file::{FileAdvice, Frames, Seals, Segment, Special},
    hugetlb::HugePageSize,
    reclaim::ReclaimRequest,
    rmap::{MigrateError, OfflineError},
};

fn frame(s: &Scene) -> Result<Pfn, Errno> {
    s.process.frame_at(s.at(1)).ok_or(Errno::ENOENT)
}

fn file(s: &Scene) -> &Mapping<Machine> {
    s.file.mapping()
}

pub const OPS: &[Op] = &[
    op("Mapping::new", "a file", |s| made(Mapping::new(s.world.engine(), Disk, PAGE, false))),
    op("Mapping::memfd", "a memfd", |s| made(Mapping::memfd(s.world.engine(), PAGE))),
    op("Mapping::zeroes", "a device of zeroes", |s| made(Mapping::zeroes(s.world.engine()))),
    op("Mapping::secret", "secret memory", |s| made(Mapping::secret(s.world.engine()))),
    op("Mapping::direct", "a direct file", |s| made(Mapping::direct(s.world.engine(), Disk, PAGE))),
    op("Mapping::of_huge_pages", "a file of huge pages", |s| {
        filled(Mapping::of_huge_pages(s.world.engine(), HugePageSize::Mib2, 2 << 20, true))
    }),
    op("File::new", "an open file", |s| made(File::new(s.file.mapping(), FileAccess::READ, "/a/file"))),
    op("File::with_owned", "an open file with a value", |s| {
        made(File::with_owned(s.file.mapping(), 1u64, FileAccess::READ, "/a/file"))
    }),
    op("File::with_driver", "an open device", |s| {
        made(File::with_driver(
            s.device.mapping(),
            OpenBoard(s.board.clone()),
            FileAccess::READ,
            "/dev/board",
        ))
    }),
    op("File::shared_memory", "shared memory", |s| made(File::shared_memory(s.world.engine(), PAGE, true))),
    op("Segment::new", "a segment", |s| made(Segment::new(s.world.engine(), 3, PAGE))),
    op("Segment::noreserve", "a segment without reservation", |s| {
        made(Segment::noreserve(s.world.engine(), 3, PAGE))
    }),
    op("Segment::of_huge_pages", "a segment of huge pages", |s| {
        filled(Segment::of_huge_pages(s.world.engine(), 3, HugePageSize::Mib2, 2 << 20, true))
    }),
    op("Segment::remove", "a segment removed", |s| done(|| s.segment.remove())).needs_nothing(),
    op("Special::new", "a special", |s| {
        let frames = Frames::new("[it]", &[foreign(Pfn::new(1), 1)]);
        made(frames.and_then(|frames| Special::new(s.world.engine(), frames)))
    }),
    op("Special::of_file", "a special of a file", |s| {
        made(Frames::new("[it]", &[]).and_then(|frames| Special::of_file(frames, s.file.mapping())))
    }),
    op("Mapping::fill", "fill", |s| filled(file(s).fill(PageIndex::new(9)))),
    op("Mapping::reserve", "reserve", |s| filled(file(s).reserve(PageIndex::new(9)))),
    op("Mapping::reserve", "reserve beyond the end", |s| {
        let file = Mapping::memfd(s.world.engine(), PAGE).map_err(freehold::error::FillError::from);
        filled(file.and_then(|file| file.reserve(PageIndex::new(4))))
    }),
    op("Mapping::read_at", "read_at", |s| {
        let at = 9 * s.unit + 5;
        filled(file(s).read_at(at, &mut [0; 8]))
    }),
    op("File::read_at", "read_at of an open file", |s| {
        let at = 9 * s.unit + 5;
        filled(s.file.read_at(at, &mut [0; 8]))
    }),
    op("File::readahead", "readahead", |s| done(|| s.file.readahead(8 * s.unit..10 * s.unit)))
        .leaves(Left::Pages),
    op("File::advise", "posix_fadvise", |s| {
        let advice = [FileAdvice::Sequential, FileAdvice::WillNeed, FileAdvice::DontNeed];
        done(|| advice.into_iter().for_each(|advice| s.file.advise(advice, 0..12 * s.unit)))
    })
    .leaves(Left::Pages),
    op("Mapping::write_at", "write_at", |s| filled(file(s).write_at(9 * s.unit + 16, &[1; 8]))),
    op("Mapping::write_at", "write_at beyond the end", |s| filled(file(s).write_at(30 * s.unit, &[1; 8]))),
    op("Mapping::write_back", "write_back", |s| made(file(s).write_back((0..4).into()).map_err(|_| ())))
        .needs_nothing(),
    op("File::sync", "sync", |s| made(s.file.sync((0..4).into()).map_err(|_| ()))).needs_nothing(),
    op("File::drop_clean", "drop_clean", |s| Ok(s.file.drop_clean(PageRange::ALL))).needs_nothing(),
    op("Engine::drop_clean", "drop_clean of any files", |s| Ok(s.world.engine().drop_clean(u64::MAX)))
        .needs_nothing(),
    op("AddressSpace::trim", "trim of a space", |s| done(|| s.process.trim())).needs_nothing(),
    op("Engine::reclaim", "reclaim", |s| {
        Ok(s.world.engine().reclaim(&ReclaimRequest::pages(u64::MAX)).freed)
    })
    .needs_nothing(),
    op("Engine::trim", "trim", |s| done(|| s.world.engine().trim())).needs_nothing(),
    op("Mapping::truncate", "truncate", |s| filled(file(s).truncate(3 * s.unit))).needs_nothing(),
    op("Mapping::truncate", "truncate inside a page", |s| filled(file(s).truncate(10 * s.unit + 8))),
    op("Mapping::truncate", "truncate to a larger size", |s| filled(file(s).truncate(20 * s.unit)))
        .needs_nothing(),
    op("Mapping::punch", "punch", |s| filled(file(s).punch(s.unit..4 * s.unit))).needs_nothing(),
    // A call that fails may have punched a part of the hole.
    op("Mapping::punch", "punch inside pages", |s| {
        let hole = s.unit + 8..11 * s.unit - 8;
        filled(file(s).punch(hole))
    })
    .leaves(Left::Pages),
    // Pages that were allocated before the failure stay.
    op("Mapping::allocate", "allocate", |s| filled(file(s).allocate(9 * s.unit..11 * s.unit)))
        .needs_nothing()
        .leaves(Left::Pages),
    op("Mapping::lay_out", "lay_out", |s| filled(file(s).lay_out())).needs_nothing(),
    op("Mapping::revoke", "revoke", |s| done(|| file(s).revoke((0..4).into(), false))).needs_nothing(),
    op("Mapping::revoke", "revoke of the device", |s| {
        done(|| s.device.mapping().revoke((0..4).into(), true))
    })
    .needs_nothing(),
    op("Mapping::add_probe", "add_probe", |s| errno!(file(s).add_probe(3 * PAGE + 32, &[0xcc, 0xcc]))),
    op("Mapping::remove_probe", "remove_probe", |s| errno!(file(s).remove_probe(PAGE + 100))),
    op("Mapping::add_seals", "add_seals", |s| errno!(file(s).add_seals(Seals::WRITE))).needs_nothing(),
    op("Engine::migrate", "migrate", |s| {
        let frame = frame(s)?;
        s.world.engine().migrate(frame).map(|_| 0).map_err(|error| match error {
            MigrateError::OutOfMemory => Errno::ENOMEM,
            _ => Errno::EBUSY,
        })
    }),
    op("Engine::migrate_to", "migrate_to", |s| {
        let frame = frame(s)?;
        s.world.engine().migrate_to(frame, 0).map(|_| 0).map_err(|error| match error {
            MigrateError::OutOfMemory => Errno::ENOMEM,
            _ => Errno::EBUSY,
        })
    }),
    op("Engine::memory_failure", "memory_failure", |s| {
        let frame = frame(s)?;
        errno!(s.world.engine().memory_failure(frame).map_err(|error: OfflineError| error))
    })
    .needs_nothing()
    .leaves(Left::Losses)
    .once(),
    op("Engine::soft_offline", "soft_offline", |s| {
        let frame = frame(s)?;
        errno!(s.world.engine().soft_offline(frame))
    }),
    op("Engine::entries_of", "entries_of", |s| Ok(s.world.engine().entries_of(frame(s)?))).needs_nothing(),
    op("Engine::try_to_unmap", "try_to_unmap", |s| {
        s.world.engine().try_to_unmap(frame(s)?).map_err(|_| Errno::EBUSY)
    })
    .needs_nothing(),
    op("Engine::mkclean", "mkclean", |s| s.world.engine().mkclean(frame(s)?).map_err(|_| Errno::EBUSY))
        .needs_nothing(),
    op("Engine::referenced", "referenced", |s| {
        s.world.engine().referenced(frame(s)?).map_err(|_| Errno::EBUSY)
    })
    .needs_nothing(),
    op("Engine::resize_huge_pool", "resize_huge_pool", |s| {
        let (engine, size) = (s.world.engine(), HugePageSize::Mib2);
        let before = engine.huge_pool(size).counts(None).total;
        let pages = engine.resize_huge_pool(size, before + 2, None);
        engine.huge_pool(size).set_overcommit(0);
        let _ = engine.resize_huge_pool(size, before, None);
        Ok(pages - before)
    })
    .partial(),
];
