//! Merges and splits, drawn as address lines in `lines.txt`, on the model, on the engine in every design, and
//! on the kernel.
//!
//! Use a drawing for a rule about the borders of VMAs, and a case (`cases.rs`) for a rule about the results
//! of calls. The head of `lines.txt` explains the drawings: a line `is` has the mappings before, the next
//! lines are calls, and a line `gives` has the mappings afterwards. This file parses the drawings, makes the
//! calls through [`Subject`], and compares maps with the line `gives`. A new kind of call gets an arm in
//! `Stage::act`.

use crate::support::{linux, lockings};
use freehold_model::linux::Options;
use freehold_model::op::{Proc, vmflag};
use freehold_model::{Call, Engine, MapLine, Model, Op, Outcome, PAGE, Subject, World};
use std::ops::Range;

/// Column of the bar of the first page in a line.
const MARGIN: usize = 10;
/// Page of the arena that the first column of a line stands for.
const FIRST: u64 = 16;

const SEQUENTIAL: u64 = 2;

/// One VMA: the pages between two bars of a line.
#[derive(Clone, Debug, PartialEq, Eq)]
struct Stretch {
    pages: Range<u64>,
    /// The letter of the pages, in lower case.
    kind: char,
    /// The pages that were written. Their letters are in upper case.
    written: Vec<u64>,
}

/// Parses a line. Holes are left out.
fn stretches(line: &str) -> Vec<Stretch> {
    let mut out = Vec::<Stretch>::new();
    let columns: Vec<char> = line.chars().skip(MARGIN).collect();
    for (n, column) in columns.chunks(2).enumerate() {
        let (bar, letter) = (column[0], *column.get(1).expect("a bar has a page"));
        let (page, kind) = (n as u64, letter.to_ascii_lowercase());
        match out.last_mut().filter(|_| bar != '|') {
            Some(last) => {
                assert_eq!(last.kind, kind, "a bar is missing in {line}");
                last.pages.end = page + 1;
            }
            None => out.push(Stretch { pages: page..page + 1, kind, written: Vec::new() }),
        }
        if letter != kind {
            out.last_mut().expect("the line has a stretch").written.push(page);
        }
    }
    out.retain(|stretch| stretch.kind != '.');
    out
}

/// Returns the pages from the first to the last with this mark below them.
fn marked(line: &str, mark: char) -> Range<u64> {
    let at: Vec<usize> = line.char_indices().filter(|(_, c)| *c == mark).map(|(n, _)| n).collect();
    let page = |column: usize| ((column - MARGIN - 1) / 2) as u64;
    page(at[0])..page(at[at.len() - 1]) + 1
}

/// Returns the rights that a letter stands for.
fn prot(kind: char) -> u64 {
    match kind {
        '-' => 0,
        'r' => 1,
        'x' => 5,
        'w' | 's' | 'l' => 3,
        other => panic!("unknown letter of a page: {other}"),
    }
}

/// The state of one drawing on one subject.
struct Stage<'s> {
    subject: &'s mut dyn Subject,
    world: World,
    proc: Proc,
}

impl Stage<'_> {
    fn addr(&self, page: u64) -> u64 {
        self.world.start + (FIRST + page) * PAGE
    }

    fn span(&self, pages: &Range<u64>) -> (u64, u64) {
        (self.addr(pages.start), (pages.end - pages.start) * PAGE)
    }

    fn call(&mut self, call: Call) -> Outcome {
        self.subject.apply(&Op { proc: self.proc, call })
    }

    /// Makes a call that must succeed.
    fn must(&mut self, call: Call) {
        let outcome = self.call(call.clone());
        assert!(matches!(outcome, Outcome::Ok(_)), "{call:x?}: {outcome:?}");
    }

    fn map(&mut self, pages: &Range<u64>, prot: u64) {
        let (addr, len) = self.span(pages);
        self.must(Call::Mmap { addr, len, prot, flags: 0x32, file: None, off: 0 });
    }

    /// Creates the mappings of a line. Maps and writes one VMA after the other, so that a VMA has no equal
    /// neighbour when it is written.
    fn build(&mut self, stretches: &[Stretch]) {
        for stretch in stretches {
            self.map(&stretch.pages, 3);
            for page in &stretch.written {
                let addr = self.addr(*page);
                self.must(Call::Write { addr, value: 1 });
            }
            let (addr, len) = self.span(&stretch.pages);
            self.must(Call::Mprotect { addr, len, prot: prot(stretch.kind) });
            match stretch.kind {
                's' => self.must(Call::Madvise { addr, len, advice: SEQUENTIAL }),
                'l' => self.must(Call::Mlock { addr, len }),
                _ => {}
            }
        }
        self.assert_shows(stretches);
    }

    /// Compares VMAs and their protection. Does not compare which pages were written.
    fn assert_shows(&mut self, stretches: &[Stretch]) {
        let known = self.subject.known_flags();
        let shown = |flags: u32| flags & known & (vmflag::ACCESS | vmflag::SEQUENTIAL | vmflag::LOCKED);
        let maps = self.subject.maps(self.proc);
        let got: Vec<_> = maps.iter().map(|m: &MapLine| (m.start, m.end, shown(m.flags))).collect();
        let want: Vec<_> = stretches
            .iter()
            .map(|stretch| {
                let extra = match stretch.kind {
                    's' => vmflag::SEQUENTIAL,
                    'l' => vmflag::LOCKED,
                    _ => 0,
                };
                let (start, len) = self.span(&stretch.pages);
                (start, start + len, shown(prot(stretch.kind) as u32 | extra))
            })
            .collect();
        assert_eq!(got, want, "the maps (left) differ from the drawing (right)");
    }

    /// Makes a call that is drawn below a line. The call may fail: the following line shows the effect.
    fn act(&mut self, line: &str, target: Option<Range<u64>>) {
        let words: Vec<&str> = line.split(['^', ' ']).filter(|word| !word.is_empty()).collect();
        if words == ["fork"] {
            let Outcome::Ok(child) = self.call(Call::Fork) else { panic!("no child") };
            self.proc = child as Proc;
            return;
        }
        let pages = marked(line, '^');
        let (addr, len) = self.span(&pages);
        let kind = |word: &str| prot(word.chars().next().expect("a letter"));
        let call = match words[..] {
            ["mmap", letter] => return self.map(&pages, kind(letter)),
            ["munmap"] => Call::Munmap { addr, len },
            ["mprotect", letter] => Call::Mprotect { addr, len, prot: kind(letter) },
            ["normal"] => Call::Madvise { addr, len, advice: 0 },
            ["mlock"] => Call::Mlock { addr, len },
            ["munlock"] => Call::Munlock { addr, len },
            ["mremap"] => {
                let new_addr = self.addr(target.expect("a line `to`").start);
                Call::Mremap { old: addr, old_len: len, new_len: len, flags: 3, new_addr }
            }
            _ => panic!("cannot read {line:?}"),
        };
        self.call(call);
    }
}

/// Runs all drawings on the subject. A drawing begins at each `is`. Returns the number of drawings.
fn run_all(subject: &mut dyn Subject, what: &str) -> usize {
    let mut pictures = 0;
    let mut stage = Stage { world: subject.world(), subject, proc: 0 };
    let lines: Vec<&str> = include_str!("lines.txt").lines().map(str::trim_end).collect();
    for (n, line) in lines.iter().enumerate() {
        if line.is_empty() || line.starts_with('#') || line.starts_with("to ") {
            continue;
        }
        let at = std::panic::AssertUnwindSafe(|| match line.split(' ').next() {
            Some("is") => {
                stage.subject.reset();
                stage.proc = 0;
                stage.build(&stretches(line));
            }
            Some("gives") => stage.assert_shows(&stretches(line)),
            _ => {
                let target = lines.get(n + 1).filter(|next| next.starts_with("to "));
                stage.act(line, target.map(|line| marked(line, 'v')));
            }
        });
        if std::panic::catch_unwind(at).is_err() {
            panic!("lines.txt, line {}, on {what}: {line}", n + 1);
        }
        pictures += usize::from(line.starts_with("is"));
    }
    pictures
}

#[test]
fn model_matches_every_line() {
    assert!(run_all(&mut Model::new(World::bare()), "the model") >= 30);
}

#[test]
fn engine_matches_every_line_in_every_design() {
    for locking in lockings() {
        let mut engine = Engine::new(Engine::world_for(false), locking);
        run_all(&mut engine, &format!("the engine, {locking:?}"));
    }
}

#[test]
fn kernel_matches_every_line() {
    if let Some(mut linux) = linux(Options::default()) {
        run_all(&mut linux, "the kernel");
    }
}
