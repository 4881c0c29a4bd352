//! Readers that make no other task wait (`src/report/query.rs`, `src/space/speculate.rs`,
//! `src/space/arguments.rs`): queries for one VMA by address and properties, lookups without a lock, and the
//! arguments of a program. The answers are compared with the list of VMAs that `maps` returns.
//! `lab/freehold-machine/tests/shuttle_engine/speculative_lookup.rs` explores lookups during changes.

use crate::support::*;
use freehold::{
    error::{AccessError, ArgumentsError, QueryError},
    remote::AccessMode,
    report::QueryFlags,
    space::{Arguments, VmaInfo},
    vma::flags::VmFlags,
};

const RX: Prot = Prot::READ.union(Prot::EXEC);
const NEXT: QueryFlags = QueryFlags::COVERING_OR_NEXT;

fn at(page: u64) -> u64 {
    BASE + page * PAGE
}

fn map(
    process: &Process,
    page: u64,
    pages: u64,
    prot: Prot,
    flags: MapFlags,
    file: Option<&Counted<File<Machine>>>,
) {
    process.mmap(at(page), pages * PAGE, prot, flags | MapFlags::FIXED, file, PAGE).unwrap();
}

/// Maps pages 0..2 as anonymous memory, 4..6 as text of a file, 6..7 as its data, and 10..12 as shared
/// read-only memory.
fn program(world: &World, process: &Process) {
    let file = world.file(4);
    process.mmap(at(0), 2 * PAGE, RW, ANON | MapFlags::FIXED, None, 0).unwrap();
    map(process, 4, 2, RX, MapFlags::PRIVATE, Some(&file));
    map(process, 6, 1, RW, MapFlags::PRIVATE, Some(&file));
    map(process, 10, 2, R, MapFlags::SHARED, Some(&file));
}

/// Queries every address with every set of flags, and compares the answers with the list of VMAs.
#[test]
fn query_matches_the_list_of_vmas() {
    everywhere(|world, process, _| {
        program(world, process);
        let lines: Vec<_> = process.maps(0).collect();
        let kinds = [
            (QueryFlags::READABLE, VmFlags::READ),
            (QueryFlags::WRITABLE, VmFlags::WRITE),
            (QueryFlags::EXECUTABLE, VmFlags::EXEC),
            (QueryFlags::SHARED, VmFlags::MAYSHARE),
        ];
        for bits in 0..64 {
            let flags = QueryFlags::from_bits(bits).unwrap();
            for addr in (0..14).flat_map(|page| [at(page), at(page) + 1]).chain([0, u64::MAX]) {
                let fits = |line: &&freehold::report::maps::MapLine<Machine>| {
                    let file = !flags.contains(QueryFlags::FILE_BACKED) || !line.name.as_str().is_empty();
                    let rights = |(query, flag): &(QueryFlags, VmFlags)| {
                        !flags.contains(*query) || line.flags.contains(*flag)
                    };
                    file && kinds.iter().all(rights)
                };
                let covers = |line: &&freehold::report::maps::MapLine<Machine>| {
                    line.end > addr && (flags.contains(NEXT) || line.start <= addr)
                };
                let expected =
                    lines.iter().filter(covers).find(fits).map(|line| (line.start, line.end, line.offset));
                let found = process.query_vma(addr, flags);
                let found = found.map(|line| (line.start, line.end, line.offset));
                assert_eq!(found, expected.ok_or(QueryError::NotFound), "{addr:#x} {flags:?}");
            }
        }
        assert_eq!(process.query_vma(0, QueryFlags::from_bits_retain(64)).err(), Some(QueryError::Invalid));
        let line = process.query_vma(at(5), QueryFlags::empty()).unwrap();
        assert_eq!((line.start, line.end, line.offset, line.name.as_str()), (at(4), at(6), PAGE, "/a/file"));
    });
}

#[test]
fn lock_free_lookup_matches_locked_lookup() {
    everywhere(|world, process, _| {
        program(world, process);
        for addr in (0..14).flat_map(|page| [at(page), at(page) + 9]) {
            let locked = process.find_vma(addr).map(|vma| VmaInfo {
                range: vma.range(),
                flags: vma.flags(),
                pgoff: vma.pgoff(),
            });
            let info = process.vma_info(addr);
            assert_eq!(info, locked);
            if let Some(info) = info.filter(|_| addr >= at(4)) {
                assert_eq!(info.offset_of(addr), PAGE + addr - info.range.start());
            }
        }
    });
}

fn cmdline(process: &Process) -> Result<Vec<u8>, AccessError> {
    read(|offset, out| process.read_cmdline(offset, out))
}

/// Reads everything in pieces of a few bytes.
fn read(f: impl Fn(u64, &mut [u8]) -> Result<usize, AccessError>) -> Result<Vec<u8>, AccessError> {
    let (mut all, mut piece) = (Vec::new(), [0; 7]);
    loop {
        match f(all.len() as u64, &mut piece)? {
            0 => return Ok(all),
            got => all.extend(&piece[..got]),
        }
    }
}

fn put(process: &Process, at: u64, bytes: &[u8]) {
    assert_eq!(process.write_memory(at, bytes, AccessMode::Plain), Ok(bytes.len()));
}

#[test]
fn cmdline_and_environ_return_the_argument_ranges() {
    everywhere(|world, process, _| {
        anon(process, BASE, 3);
        assert_eq!(cmdline(process), Ok(vec![]));
        let start = BASE + PAGE - 20;
        let (args, env) = (b"cat\0a/file\0", b"HOME=/root\0PATH=/bin\0");
        let middle = start + args.len() as u64;
        let arguments = Arguments { args: start..middle, env: middle..middle + env.len() as u64 };
        put(process, start, args);
        put(process, middle, env);
        process.set_arguments(&arguments).unwrap();
        assert_eq!(cmdline(process).unwrap(), args);
        assert_eq!(read(|offset, out| process.read_environ(offset, out)).unwrap(), env);
        assert_eq!(process.read_cmdline(u64::MAX, &mut [0; 9]), Ok(0));
        // A child inherits the ranges.
        let child = Process::of(process.fork().unwrap());
        assert_eq!((child.arguments(), cmdline(&child).unwrap()), (arguments.clone(), args.to_vec()));
        // A program title without a zero byte at the end of the arguments extends to the first zero byte.
        put(process, start, b"cat: a long tit\0");
        assert_eq!(cmdline(process).unwrap(), b"cat: a long tit\0");
        assert_eq!(cmdline(&child).unwrap(), args);
        // The title does not extend into an environment that does not directly follow.
        let apart = Arguments { env: middle + 8..middle + 20, ..arguments.clone() };
        process.set_arguments(&apart).unwrap();
        assert_eq!(cmdline(process).unwrap(), b"cat: a long");
        // A title is cut off after one page.
        put(process, start, &vec![b'x'; PAGE as usize + 40]);
        process.set_arguments(&Arguments { env: middle..middle + 2 * PAGE, ..arguments.clone() }).unwrap();
        assert_eq!(cmdline(process).unwrap(), vec![b'x'; PAGE as usize]);
        // Invalid ranges are refused and change nothing.
        let before = process.arguments();
        for (start, end) in [(2, 1), (0, TASK_SIZE + 1), (u64::MAX, 0)] {
            let bad = Arguments { args: start..end, env: 0..0 };
            assert_eq!(process.set_arguments(&bad), Err(ArgumentsError::Invalid));
            let bad = Arguments { args: 0..0, env: start..end };
            assert_eq!(process.set_arguments(&bad), Err(ArgumentsError::Invalid));
        }
        assert_eq!(process.arguments(), before);
        process.munmap(BASE, 3 * PAGE).unwrap();
        assert_eq!(cmdline(process), Err(AccessError::BadAddress));
        // A report does not wait for pages of a file.
        let file = world.file(4);
        process.mmap(BASE, 2 * PAGE, RW, MapFlags::PRIVATE | MapFlags::FIXED, Some(&file), 0).unwrap();
        process.set_arguments(&arguments).unwrap();
        assert_eq!(cmdline(process), Err(AccessError::BadAddress));
        child.check();
    });
}
