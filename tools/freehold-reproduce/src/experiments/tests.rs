//! Runs every experiment once with a tiny scale, including the host, and tests that its findings have the
//! expected tables and directions of change.
//!
//! `run` checks the properties that all experiments share: figures are finite, rows have a cell for each
//! column, lines of text have at most 100 columns, and the expected seconds of the steps add up to those of
//! the experiment. The tests of the experiments check single medians (`median`). A test must not compare
//! speeds, because a turn lasts only 3 ms. A new experiment needs a test here that calls `run` with its name.
//! `tests/sim_experiments.rs` tests virtual time.

use super::*;
use crate::findings::{Cell, Table};
use crate::text;
use std::time::Duration;

/// A scale that is small enough for a test, including the host's calls.
fn tiny() -> Scale {
    Scale { turns: Some(2), turn: Duration::from_millis(3), at_most: 8 << 20, ..Scale::quick(2) }
}

fn find(name: &str) -> Option<&'static dyn Experiment> {
    ALL.into_iter().find(|experiment| experiment.name() == name)
}

/// Runs an experiment, and checks the properties that all experiments share.
fn run(name: &str) -> Findings {
    run_at(name, &tiny())
}

fn run_at(name: &str, scale: &Scale) -> Findings {
    let experiment = find(name).expect("a known experiment");
    let steps = Steps::new(&[(experiment, scale.clone())], true);
    let found = experiment.run(scale, &steps).expect("the experiment runs");
    assert_eq!(found.experiment, name);
    let promised = experiment.seconds(scale);
    assert!((steps.done() - promised).abs() < promised / 20.0, "{name}: {} of {promised} s", steps.done());
    assert!(experiment.memory(scale) > 0);
    for table in &found.tables {
        assert!(!table.rows.is_empty(), "{}: no rows", table.title);
        for row in &table.rows {
            assert_eq!(row.cells.len() + 1, table.columns.len(), "{}: {}", table.title, row.name);
            for cell in &row.cells {
                if let Cell::Measured { figure, .. } = cell {
                    assert!(figure.median.is_finite(), "{}: {}: {figure:?}", table.title, row.name);
                    assert!(figure.low <= figure.median && figure.median <= figure.high);
                }
            }
        }
    }
    for plot in &found.plots {
        assert!(plot.lines.iter().any(|line| !line.points.is_empty()), "{}: no lines", plot.title);
    }
    assert!(!found.notes.is_empty() && !found.work.is_empty());
    for sentence in &found.found {
        assert!(sentence.ends_with('.') && sentence.contains(": "), "{sentence}");
    }
    assert!(!found.found.is_empty(), "{name} has no sentence of findings");
    for line in text::of(&found).lines() {
        assert!(line.chars().count() <= 100, "{line}");
    }
    found
}

fn table<'f>(found: &'f Findings, title: &str) -> &'f Table {
    found
        .tables
        .iter()
        .find(|table| table.title.contains(title))
        .unwrap_or_else(|| panic!("no table of {title}"))
}

/// Returns the median in a cell of a table.
fn median(table: &Table, row: &str, column: &str) -> f64 {
    let index = table.columns.iter().position(|name| name == column).expect("a column");
    let row = table.rows.iter().find(|found| found.name == row).expect("a row");
    match &row.cells[index - 1] {
        Cell::Measured { figure, .. } => figure.median,
        other => panic!("{column} of {}: {other:?}", row.name),
    }
}

#[test]
fn munmap_hold() {
    let found = run("munmap-hold");
    assert_eq!((found.tables.len(), found.plots.len()), (8, 3));
    let (holds, read) = (table(&found, "sum of all holds"), table(&found, "for reading"));
    for size in ["4 KiB", "1 MiB", "8 MiB"] {
        for design in ["Exclusive", "Sectioned", "Released"] {
            assert!(median(holds, size, design) > 0.0, "munmap does not take the lock");
            assert_eq!(median(read, size, design), 0.0, "{design} holds the lock for reading");
        }
        assert!(median(read, size, "Downgraded") > 0.0);
    }
    let sections = table(&found, "by sections");
    assert_eq!(sections.rows.len(), 1, "sections are larger than the unmapped memory");
    assert!(median(sections, "4 MiB", "holds") >= 2.0, "fewer holds than sections");
}

#[test]
fn munmap_stall() {
    let found = run("munmap-stall");
    assert_eq!((found.tables.len(), found.plots.len()), (6, 3), "expected tables for each victim");
    for tables in found.tables.chunks(2) {
        assert!(median(&tables[0], "Released", "munmap time") > 0.0);
        assert!(median(&tables[0], "Linux (host), 8 MiB", "99 %") > 0.0);
        let counts = &tables[1].columns[1..];
        let operations: f64 = counts.iter().map(|column| median(&tables[1], "Released", column)).sum();
        assert!(operations >= 1.0, "no victim did an operation");
    }
}

#[test]
fn fault_throughput() {
    let found = run("fault-throughput");
    for load in ["mmap-pread-seq", "mmap-pread-seq-mt", "mmap-xread-seq-mt", "mmap-file"] {
        assert!(median(&found.tables[0], load, "Released") > 0.0);
    }
}

#[test]
fn i_mmap() {
    let found = run("i-mmap");
    assert!(median(table(&found, "alltests-like"), "alltests-100", "Shared") > 0.0);
    assert!(median(table(&found, "disk-like"), "disk-300", "Exclusive") > 0.0);
    assert!(median(table(&found, "pages migrated"), "migration-100", "Shared") > 0.0, "no page moved");
}

#[test]
fn hugetlb() {
    // Processes share page tables only for whole GiB.
    let found = run_at("hugetlb", &Scale { at_most: 1 << 30, ..tiny() });
    let apart = table(&found, "16 processes, apart");
    assert!(median(apart, "faults per second", "VmaLock") > 0.0);
    let shared = table(&found, "16 processes");
    assert!(
        median(shared, "page tables", "VmaLock") < median(apart, "page tables", "VmaLock"),
        "no table is shared"
    );
    let taken = |title| median(table(&found, title), "fault mutexes taken per second", "VmaLock");
    assert_eq!((taken("16 processes"), taken("16 processes, apart")), (0.0, 0.0), "a fault created a page");
    assert!(taken("16 processes, punched") > 0.0, "no page was created again");
}

#[test]
fn page_fault() {
    let found = run("page-fault");
    for place in ["one VMA", "a VMA each"] {
        assert!(median(table(&found, place), "faults/sec-2", "VmaPerCpu") > 0.0);
        assert!(median(table(&found, place), "faults/sec-1", "Linux (host)") > 0.0);
    }
}

#[test]
fn mmap_churn() {
    let found = run("mmap-churn");
    for threads in ["1", "2"] {
        assert!(median(table(&found, "areas mapped"), threads, "Released") > 0.0);
        assert!(median(table(&found, "areas mapped"), threads, "Linux (host)") > 0.0);
    }
    assert!(median(table(&found, "by itself"), "fork with 128 MiB, per page", "Freehold") > 0.0);
}

#[test]
fn file_reads() {
    let found = run("file-reads");
    for load in ["read calls", "faults in order"] {
        let table = table(&found, load);
        for side in ["no readahead", "windows of 32 pages", "windows of 128 pages"] {
            assert!(median(table, side, "device busy") > 0.0);
        }
    }
    let faults = table(&found, "faults in order");
    let waits = |side| median(faults, side, "pages waited for");
    assert!(waits("no readahead") >= 1.0 / 32.0 && waits("windows of 32 pages") > 0.0);
    let beside = table(&found, "beside 4 threads");
    assert_eq!(median(beside, "windows of 32 pages", "reads per page"), 1.0, "a page was read twice");
    let dirtying = table(&found, "that make pages dirty");
    for limit in ["at most 256 dirty pages", "at most 4096 dirty pages", "no limit"] {
        assert!(median(dirtying, limit, "writes per page") >= 1.0, "a page was not written");
        assert!(median(dirtying, limit, "device busy") > 0.0);
    }
}

#[test]
fn reclaim() {
    let found = run("reclaim");
    let [beside, cost] = ["beside 4 threads", "cost of taking"].map(|title| table(&found, title));
    for policy in ["clock", "two lists", "generations"] {
        assert!(median(beside, policy, "pages visited/s") > 0.0);
        assert!(median(beside, policy, "device busy") > 0.0);
        assert!(median(cost, policy, "frames visited/page") >= 1.0);
        assert!(median(cost, policy, "by 8 spaces") > 0.0);
    }
}

#[test]
fn writers() {
    let found = run("writers");
    assert_eq!((found.tables.len(), found.plots.len()), (1, 1), "there is more than the table of rates");
    for side in ["Whole", "Ranges", "RangesOnly"] {
        for load in ["map + unmap", "map + touch + unmap", "mprotect", "grow in place", "thread stack"] {
            // A busy host may finish no operation in such a short time.
            assert!(median(&found.tables[0], &format!("{load}, 1"), side) >= 0.0);
        }
    }
}
