//! Operations of the sweep on a userfaultfd: creation, registration, fills, write protection and moves. They
//! use the userfaultfd of the scene. The range is registered with it only in the states that `watched`
//! creates; in the other states fills fail with an error, with and without memory. `memory.rs` describes the
//! entries.

use super::{Left, Op, done, errno, made, op};
use crate::sweep::{scene::Scene, *};
use freehold::{
    UserRange,
    error::{Errno, UffdError},
    report::pagemap::{EntryRun, PageEntry, PageKind},
    uffd::{FillMode, MoveMode, ProtectMode, RegisterMode, UffdConfig, Userfaultfd},
};

static SMALL: [u8; 2 * PAGE as usize] = [7; 2 * PAGE as usize];
/// Memory of huge pages has no contents in these tests.
static HUGE: [u8; 4 << 20] = [0; 4 << 20];

/// Returns contents for `units` units of at most a huge page.
fn contents(s: &Scene, units: u64) -> &'static [u8] {
    let all: &[u8] = if s.unit == PAGE { &SMALL } else { &HUGE };
    &all[..(units * s.unit) as usize]
}

/// Converts the result of a fill. Returns an error unless all bytes were filled.
fn all(done: Result<u64, UffdError>, bytes: u64) -> Result<u64, Errno> {
    match done {
        Ok(done) if done == bytes => Ok(done),
        Ok(_) => Err(Errno::ENOMEM),
        Err(error) => Err(error.errno()),
    }
}

fn register(s: &Scene, mode: RegisterMode) -> Result<u64, Errno> {
    errno!(s.uffd.register(s.at(1), 4 * s.unit, mode))
}

pub const OPS: &[Op] = &[
    op("Userfaultfd::new", "a userfaultfd", |s| {
        made(Userfaultfd::new(s.process.space(), UffdConfig::default()))
    }),
    op("Userfaultfd::register", "register, missing", |s| register(s, RegisterMode::MISSING))
        .leaves(Left::Layout),
    op("Userfaultfd::register", "register, write-protected", |s| register(s, RegisterMode::WP))
        .leaves(Left::Layout),
    op("Userfaultfd::register", "register, minor", |s| register(s, RegisterMode::MINOR)).leaves(Left::Layout),
    op("Userfaultfd::unregister", "unregister", |s| errno!(s.uffd.unregister(s.at(2), 2 * s.unit)))
        .leaves(Left::Layout),
    op("Userfaultfd::copy", "copy", |s| all(s.uffd.copy(s.at(7), contents(s, 1), FillMode::empty()), s.unit)),
    op("Userfaultfd::copy", "copy, protected", |s| {
        all(s.uffd.copy(s.at(7), contents(s, 1), FillMode::WP), s.unit)
    }),
    op("Userfaultfd::copy", "copy of two pages", |s| {
        all(s.uffd.copy(s.at(2), contents(s, 2), FillMode::empty()), 2 * s.unit)
    })
    .leaves(Left::Pages)
    .once(),
    op("Userfaultfd::zeropage", "zeropage", |s| {
        all(s.uffd.zeropage(s.at(7), s.unit, FillMode::empty()), s.unit)
    }),
    op("Userfaultfd::continue_with", "continue", |s| {
        all(s.uffd.continue_with(s.at(5), s.unit, FillMode::empty()), s.unit)
    })
    .needs_nothing(),
    op("Userfaultfd::poison", "poison", |s| all(s.uffd.poison(s.at(7), s.unit, FillMode::empty()), s.unit))
        .needs_nothing(),
    op("Userfaultfd::write_protect", "write_protect", |s| {
        errno!(s.uffd.write_protect(s.at(0), 4 * s.unit, ProtectMode::WP))
    })
    .needs_nothing()
    .leaves(Left::Pages),
    op("Userfaultfd::write_protect", "write_protect, off", |s| {
        errno!(s.uffd.write_protect(s.at(0), 8 * s.unit, ProtectMode::empty()))
    })
    .needs_nothing(),
    op("AddressSpace::protect_entries", "protect_entries", |s| {
        let empty = EntryRun {
            range: UserRange::new(s.at(0), s.at(4)),
            entry: PageEntry::Empty,
            write_protected: false,
            soft_dirty: false,
            huge: false,
        };
        let page = PageEntry::Page { kind: PageKind::Anon, exclusive: true };
        errno!(s.process.protect_entries(&[EntryRun { entry: page, ..empty.clone() }, empty]))
    })
    .needs_nothing()
    .leaves(Left::Pages),
    op("Userfaultfd::move_pages", "move_pages", |s| {
        all(s.uffd.move_pages(s.at(7), s.at(1), s.unit, MoveMode::empty()), s.unit)
    })
    .needs_nothing()
    .leaves(Left::Pages),
    op("Userfaultfd::wake", "wake", |s| errno!(s.uffd.wake(s.at(0), s.unit))).needs_nothing(),
    op("Userfaultfd::try_read", "try_read", |s| Ok(u64::from(s.uffd.try_read().is_some()))).needs_nothing(),
    // If there is no memory, the call does not merge VMAs, because it cannot report an error.
    op("Userfaultfd::close", "close", |s| done(|| s.uffd.close())).needs_nothing(),
];
