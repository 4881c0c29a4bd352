//! Transfers by the names that a program gave its records.
//!
//! A program announces the addresses of its records (`src/names.rs`), and the report sums the transfers of
//! their lines by field (`src/report/fields.rs`). Each test runs a small program on two or four processors
//! and checks the names and the counts of the report. A word without a name must appear under the place in
//! the program that used it.

use crate::machine;
use freehold_sim::atomic::{AtomicU64, Ordering};
use freehold_sim::{HotField, Report, names, run};

/// A record with two fields on one line and a third on another.
#[derive(Default)]
#[repr(C, align(64))]
struct Pair {
    one: AtomicU64,
    beside: AtomicU64,
    rest: [u64; 6],
    far: AtomicU64,
}

/// Announces the fields of these records. The name has a path and a parameter, which a report leaves out.
fn announce(pairs: &[Pair]) {
    let fields = &[
        ("one", std::mem::offset_of!(Pair, one)),
        ("beside", std::mem::offset_of!(Pair, beside)),
        ("far", std::mem::offset_of!(Pair, far)),
    ];
    names::announce("home::Pair<u8>", pairs.as_ptr().addr(), size_of::<Pair>(), pairs.len(), fields);
}

/// Returns `count` records.
fn pairs(count: usize) -> Vec<Pair> {
    (0..count).map(|_| Pair::default()).collect()
}

/// Runs `work` as a task on each of `cpus` processors.
fn on(cpus: usize, work: impl Fn(usize)) -> Report {
    let work = &work;
    run(&machine(), cpus, 1, (0..cpus).map(|cpu| move || work(cpu)))
}

/// Changes the word 100 times.
fn hundred(word: &AtomicU64) {
    for _ in 0..100 {
        word.fetch_add(1, Ordering::Relaxed);
    }
}

/// Returns the field of the report with this name.
fn field<'a>(report: &'a Report, name: &str) -> &'a HotField {
    report.fields.iter().find(|field| field.name == name).unwrap_or_else(|| panic!("{name}: {report:?}"))
}

#[test]
fn transfers_are_summed_by_field_over_all_records() {
    let pairs = pairs(3);
    announce(&pairs);
    let report = on(4, |_| {
        for pair in pairs.iter().cycle().take(300) {
            pair.one.fetch_add(1, Ordering::Relaxed);
            pair.far.fetch_add(1, Ordering::Relaxed);
        }
    });
    let (one, far) = (field(&report, "Pair.one"), field(&report, "Pair.far"));
    assert_eq!((one.lines, one.accesses, far.lines, far.accesses), (3, 1200, 3, 1200));
    assert_eq!(one.transfers + far.transfers, report.transfers);
    assert_eq!(report.fields.len(), 2, "{:?}", report.fields);
    for field in [one, far] {
        assert!(field.announced);
        assert!(field.transfers > 400, "{field:?}");
        assert_eq!(field.between.iter().sum::<u64>(), field.transfers);
        assert_eq!(field.pairs.iter().map(|pair| pair.2).sum::<u64>(), field.transfers);
    }
}

#[test]
fn fields_on_one_line_have_separate_transfers() {
    let pairs = pairs(1);
    announce(&pairs);
    let report = on(2, |cpu| {
        let word = if cpu == 0 { &pairs[0].one } else { &pairs[0].beside };
        hundred(word);
    });
    let (one, beside) = (field(&report, "Pair.one"), field(&report, "Pair.beside"));
    assert_eq!((one.accesses, beside.accesses), (100, 100));
    assert!(one.transfers > 10 && beside.transfers > 10, "{:?}", report.fields);
    assert_eq!(one.transfers + beside.transfers, report.lines[0].transfers);
}

#[test]
fn unannounced_word_is_named_by_its_place() {
    let word = Box::new(Pair::default());
    announce(std::slice::from_ref(&word));
    names::withdraw((&raw const *word).addr(), size_of::<Pair>());
    let report = on(2, |_| hundred(&word.one));
    let [field] = &report.fields[..] else { panic!("{:?}", report.fields) };
    assert!(!field.announced && field.name.contains("tests/names.rs:"), "{field:?}");
    assert!(report.hottest(1).contains(&field.name));
}

#[test]
fn later_announcement_replaces_earlier_for_the_same_bytes() {
    let pairs = pairs(4);
    announce(&pairs);
    names::announce("Other", (&raw const pairs[1]).addr(), size_of::<Pair>(), 2, &[]);
    let report = on(2, |_| {
        for pair in pairs.iter().cycle().take(400) {
            pair.one.fetch_add(1, Ordering::Relaxed);
        }
    });
    assert_eq!((field(&report, "Pair.one").lines, field(&report, "Other").lines), (2, 2));
}

#[test]
fn add_sums_the_fields_of_two_runs() {
    let pairs = pairs(1);
    announce(&pairs);
    let once = || on(2, |_| hundred(&pairs[0].one));
    let (mut sum, more) = (once(), once());
    let each = field(&sum, "Pair.one").clone();
    sum.add(more);
    let both = field(&sum, "Pair.one");
    assert_eq!((both.transfers, both.accesses), (2 * each.transfers, 2 * each.accesses));
}
