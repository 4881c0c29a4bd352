//! Tests the picture of a run: the blocks that `life.rs` collects from events, and the SVG text that is drawn
//! from them.
//!
//! A test builds a history event by event with `Told`, without a recording file. It compares the blocks of an
//! address space (`blocks`), the chosen lanes, or properties of the SVG text: well formed
//! (`assert_well_formed`), equal in two drawings, limited in size. No test checks colours or positions.

use super::*;
use crate::picture::kind::Kind as Memory;
use freehold_trace::{Area, Call, CallName, Cost, Event, FaultCode, Returned, Snapshot, Why};

const HEAP: u64 = 0x5555_0000_0000;
const MAPPED: u64 = 0x7f00_0000_0000;
const STACK: u64 = 0x7fff_0000_0000;
const MIB: u64 = 1 << 20;

/// A history that is built event by event.
#[derive(Default)]
struct Told {
    life: Life,
}

impl Told {
    fn event(&mut self, time: u64, task: u32, kind: Kind, snapshot: Option<&Snapshot>) {
        let event = Event { line: 1, time, cpu: None, task, kind, cost: Cost::default() };
        self.life.event(&event, snapshot);
    }

    fn exec(&mut self, time: u64, task: u32, name: &str) {
        let snapshot =
            snapshot(name, Why::Exec, &[(HEAP, HEAP + MIB, "/bin/x"), (STACK - MIB, STACK, "[stack]")]);
        self.event(time, task, Kind::Exec { snapshot: Some(0) }, Some(&snapshot));
    }

    fn call(&mut self, time: u64, task: u32, name: CallName, args: &[u64], returned: u64) {
        let mut all = [0; 6];
        all[..args.len()].copy_from_slice(args);
        let returned = Returned::Value(returned);
        let call = Call { name, args: all, returned, file: None, transfer: None, beside: Vec::new() };
        self.event(time, task, Kind::Call(Box::new(call)), None);
    }

    fn fault(&mut self, time: u64, task: u32, address: u64) {
        self.event(time, task, Kind::Fault { address, code: FaultCode(6), in_exec: false }, None);
    }

    fn fork(&mut self, time: u64, task: u32, child: u32, flags: u64) {
        self.event(time, task, Kind::Clone { child, process: child, flags }, None);
    }

    fn exit(&mut self, time: u64, task: u32) {
        self.event(time, task, Kind::Exit { last: true }, None);
    }

    fn finish(mut self) -> Life {
        self.life.finish();
        self.life
    }
}

fn snapshot(comm: &str, why: Why, areas: &[(u64, u64, &str)]) -> Snapshot {
    let area = |(start, end, name): &(u64, u64, &str)| Area {
        start: *start,
        end: *end,
        prot: 3,
        shared: false,
        offset: 0,
        name: (*name).to_owned(),
        sizes: None,
        flags: None,
        thp_eligible: false,
    };
    Snapshot {
        id: 0,
        line: 1,
        why,
        process: 1,
        taken: (0, 0),
        threads: 1,
        comm: comm.to_owned(),
        exe: String::new(),
        status: Vec::new(),
        areas: areas.iter().map(area).collect(),
        pages: Vec::new(),
    }
}

/// Returns the blocks of an address space as kind, start, end, from, to, sorted by start and time.
fn blocks(life: &Life, space: usize) -> Vec<(Memory, u64, u64, u64, u64)> {
    let blocks = life.spaces[space].blocks.iter();
    let mut blocks: Vec<_> =
        blocks.map(|block| (block.memory.shown(), block.start, block.end, block.from, block.to)).collect();
    blocks.sort_unstable_by_key(|(_, start, _, from, _)| (*start, *from));
    blocks
}

/// Returns the history of a process that maps and forks, and whose child execs.
fn family() -> Life {
    let mut told = Told::default();
    told.exec(0, 1, "parent");
    told.call(10, 1, CallName::Mmap, &[0, 4 * MIB, 3, 0x22], MAPPED);
    told.call(20, 1, CallName::Brk, &[0], HEAP + MIB);
    told.call(30, 1, CallName::Brk, &[HEAP + 2 * MIB], HEAP + 2 * MIB);
    told.fault(35, 1, MAPPED);
    told.fork(40, 1, 2, 0);
    told.fault(45, 2, MAPPED + 4096);
    told.exec(60, 2, "child");
    told.call(70, 1, CallName::Munmap, &[MAPPED, MIB], 0);
    told.exit(80, 2);
    told.exit(100, 1);
    told.finish()
}

#[test]
fn blocks_follow_mmap_brk_fork_exec_and_munmap() {
    let life = family();
    let image = |from, to| [(Memory::PrivateFile, HEAP, HEAP + MIB, from, to)];
    let stack = |from, to| [(Memory::Stack, STACK - MIB, STACK, from, to)];
    let heap = |from, to| [(Memory::Heap, HEAP + MIB, HEAP + 2 * MIB, from, to)];
    let mapped = |start, end, from, to| [(Memory::Anonymous, MAPPED + start, MAPPED + end, from, to)];
    let (low, high) = (mapped(0, MIB, 10, 70), mapped(MIB, 4 * MIB, 10, 100));
    assert_eq!(blocks(&life, 0), [image(0, 100), heap(30, 100), low, high, stack(0, 100)].concat());
    let copied = [image(40, 60), heap(40, 60), mapped(0, 4 * MIB, 40, 60), stack(40, 60)].concat();
    assert_eq!(blocks(&life, 1), copied);
    assert_eq!(blocks(&life, 2), [image(60, 80), stack(60, 80)].concat());
    let names: Vec<&str> = life.processes.iter().map(|process| process.name.as_str()).collect();
    assert_eq!(names, ["parent", "child"]);
    assert_eq!((life.processes[1].from, life.processes[1].to, life.processes[1].own.len()), (40, 80, 2));
    assert_eq!(life.faults, 2);
}

#[test]
fn time_of_freezes_is_left_out() {
    let mut told = Told::default();
    told.exec(0, 1, "x");
    told.event(50, 1, Kind::Frozen { ns: 900 }, None);
    told.fault(960, 1, HEAP);
    told.exit(1_000, 1);
    let life = told.finish();
    assert_eq!((life.end, life.spaces[0].faults[0].0), (100, 60));
}

#[test]
fn child_that_shares_the_address_space_begins_none() {
    let mut told = Told::default();
    told.exec(0, 1, "x");
    told.fork(10, 1, 2, 0x4100);
    told.fault(15, 2, HEAP);
    told.exec(20, 2, "y");
    told.fault(25, 2, HEAP);
    told.exit(30, 2);
    told.exit(40, 1);
    let life = told.finish();
    assert_eq!((life.processes[0].own.as_slice(), life.processes[1].own.as_slice()), (&[0][..], &[1][..]));
    assert_eq!([0, 1].map(|space| life.spaces[space].faults.len()), [1, 1]);
    assert_eq!((life.spaces[1].from, life.spaces[0].to), (20, 40));
}

#[test]
fn blocks_follow_mprotect_mremap_and_stack_growth() {
    let mut told = Told::default();
    told.exec(0, 1, "x");
    told.call(10, 1, CallName::Mmap, &[0, 4 * MIB, 0, 0x2_0022], MAPPED);
    told.call(20, 1, CallName::Mprotect, &[MAPPED, 4 * MIB, 3], 0);
    told.call(30, 1, CallName::Mremap, &[MAPPED, 4 * MIB, 2 * MIB, 1], MAPPED + 16 * MIB);
    told.fault(40, 1, STACK - MIB - 4096);
    // The kernel's list does not name the stack of a thread.
    let areas = [(HEAP, HEAP + MIB, "/bin/x"), (MAPPED + 16 * MIB, MAPPED + 18 * MIB, "")];
    let listed = snapshot("thread", Why::Freeze, &areas);
    told.event(50, 1, Kind::Snapshot { id: 1, why: Why::Freeze, process: 1 }, Some(&listed));
    told.exit(60, 1);
    let life = told.finish();
    assert_eq!(
        blocks(&life, 0)[1..],
        [
            (Memory::Reserved, MAPPED, MAPPED + 4 * MIB, 10, 20),
            (Memory::Stack, MAPPED, MAPPED + 4 * MIB, 20, 30),
            (Memory::Stack, MAPPED + 16 * MIB, MAPPED + 18 * MIB, 30, 60),
            (Memory::Stack, STACK - MIB - 4096, STACK - MIB, 40, 50),
            (Memory::Stack, STACK - MIB, STACK, 0, 50),
        ]
    );
    assert_eq!(life.processes[0].name, "x");
}

/// Values that no recorder writes, but that a reader may accept.
#[test]
fn extreme_values_give_a_well_formed_picture() {
    let mut told = Told::default();
    told.exec(0, 1, "x");
    let wild = [0, 1, 4095, HEAP, 1 << 47, 1 << 63, u64::MAX - 4095, u64::MAX];
    for name in CallName::ALL {
        for first in wild {
            for second in wild {
                told.call(5, 1, *name, &[first, second, second, first, second, first], first);
                told.call(6, 7, *name, &[first, second, second, first, second, first], second);
            }
        }
    }
    for address in wild {
        told.fault(7, 1, address);
    }
    told.event(8, 1, Kind::Frozen { ns: u64::MAX }, None);
    told.fork(9, 1, 1, 0);
    told.fork(9, 3, 3, 0x100);
    told.event(9, 4, Kind::Clone { child: 5, process: 99, flags: 0x100 }, None);
    told.exit(u64::MAX, 5);
    told.exit(u64::MAX, 5);
    told.exec(u64::MAX, 5, "again");
    assert_well_formed(&draw("wild", &told.finish()));
}

/// Checks that elements nest correctly and that special characters are escaped. Covers the part of XML that
/// the writer uses.
fn assert_well_formed(svg: &str) {
    let mut open: Vec<&str> = Vec::new();
    let mut rest = svg;
    while let Some(at) = rest.find('<') {
        assert!(!rest[..at].contains('>'), "a stray `>`: {}", &rest[..at]);
        for entity in rest[..at].split('&').skip(1) {
            assert!(
                ["lt;", "gt;", "amp;", "quot;"].iter().any(|known| entity.starts_with(known)),
                "&{entity}"
            );
        }
        let end = rest[at..].find('>').expect("every `<` has a `>`") + at;
        let element = &rest[at + 1..end];
        assert!(!element.contains('<') && element.matches('"').count().is_multiple_of(2), "<{element}>");
        let name = element.trim_start_matches('/').split([' ', '/']).next().expect("a name");
        if element.starts_with('/') {
            assert_eq!(open.pop(), Some(name));
        } else if !element.ends_with('/') {
            open.push(name);
        }
        rest = &rest[end + 1..];
    }
    assert!(open.is_empty() && rest.trim().is_empty(), "{open:?} are not closed");
    assert!(!svg.contains("NaN") && !svg.contains("inf"), "a coordinate is not a number");
}

#[test]
fn picture_is_well_formed_and_deterministic() {
    let picture = draw("a <b> & \"c\"\u{1}", &family());
    assert_well_formed(&picture);
    assert!(picture.contains("a &lt;b&gt; &amp; &quot;c&quot;\u{fffd}"));
    assert!(
        picture.contains(">child (2)<") && picture.contains("2 processes, about 2 page faults in 100 ns")
    );
    assert_eq!(picture, draw("a <b> & \"c\"\u{1}", &family()));
}

#[test]
fn empty_recording_gives_a_well_formed_picture() {
    assert_well_formed(&draw("", &Told::default().finish()));
    let mut told = Told::default();
    told.exec(0, 1, "x");
    assert_well_formed(&draw("x", &told.finish()));
}

/// Faults everywhere, and mappings in random order. The picture becomes coarser instead of larger.
#[test]
fn picture_size_is_limited() {
    let mut told = Told::default();
    told.exec(0, 1, "busy");
    let mut random = 1u64;
    for time in 0..60_000u64 {
        random = random.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        let at = MAPPED + (random >> 40) % 2_048 * 4096;
        match random >> 33 & 3 {
            0 => told.call(time, 1, CallName::Munmap, &[at, 4096], 0),
            1 => told.call(time, 1, CallName::Mmap, &[at, 4096, 3, 0x21], at),
            2 => told.call(time, 1, CallName::Mmap, &[at, 4096, 3, 0x22], at),
            _ => told.fault(time, 1, at),
        }
    }
    let picture = draw("busy", &told.finish());
    assert_well_formed(&picture);
    assert!(picture.len() < 1_000_000, "{} bytes", picture.len());
    assert!(picture.len() > 100_000, "only {} bytes: the test does not reach the limit", picture.len());
}

#[test]
fn processes_beyond_the_row_limit_are_left_out() {
    let mut told = Told::default();
    told.exec(0, 1, "many");
    for child in 2..1_500 {
        told.fork(u64::from(child) * 10, 1, child, 0);
    }
    for child in 2..1_500 {
        told.exit(20_000 + u64::from(child) * 10, child);
    }
    let life = told.finish();
    let lanes = lanes::lanes(&life);
    assert_eq!((lanes.rows.len(), lanes.rows[0].as_slice()), (7, &[0][..]));
    let shown: usize = lanes.rows.iter().map(Vec::len).sum();
    assert_eq!(shown + lanes.left_out.len(), 1_499);
    let picture = draw("many", &life);
    assert_well_formed(&picture);
    let said = format!("{} processes without a lane", crate::units::count(lanes.left_out.len() as u64));
    assert!(picture.contains(&said), "{said}");
}

#[test]
fn consecutive_processes_share_a_row() {
    let mut told = Told::default();
    told.exec(0, 1, "shell");
    for child in 2..22u32 {
        told.fork(u64::from(child) * 100, 1, child, 0);
        told.exit(u64::from(child) * 100 + 90, child);
    }
    let lanes = lanes::lanes(&told.finish());
    assert_eq!(lanes.rows, [vec![0], (1..21).collect()]);
    assert!(lanes.left_out.is_empty());
}
