use super::*;
use crate::reproduce::findings::{Cell, Table};
use std::time::Duration;

/// Small enough for a test, the host's calls included.
fn tiny() -> Scale {
    Scale { turns: 2, turn: Duration::from_millis(3), at_most: 8 << 20, ..Scale::quick(2) }
}

/// Runs an experiment, and checks what all have in common.
fn run(name: &str) -> Findings {
    let experiment = find(name).expect("it exists");
    let steps = Steps::new(1.0, true);
    let found = experiment.run(&tiny(), &steps).expect("it runs");
    assert_eq!(found.experiment, name);
    let promised = experiment.seconds(&tiny());
    assert!((steps.done() - promised).abs() < promised / 20.0, "{name}: {} of {promised} s", steps.done());
    assert!(experiment.memory(&tiny()) > 0);
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
    found
}

fn table<'f>(found: &'f Findings, title: &str) -> &'f Table {
    found
        .tables
        .iter()
        .find(|table| table.title.contains(title))
        .unwrap_or_else(|| panic!("no table of {title}"))
}

/// The median in a place of a table.
fn median(table: &Table, row: &str, column: &str) -> f64 {
    let index = table.columns.iter().position(|name| name == column).expect("a column");
    let row = table.rows.iter().find(|found| found.name == row).expect("a row");
    match &row.cells[index - 1] {
        Cell::Measured { figure, .. } => figure.median,
        other => panic!("{column} of {}: {other:?}", row.name),
    }
}

#[test]
fn names_are_found_and_differ() {
    for experiment in ALL {
        assert_eq!(find(experiment.name()).map(Experiment::name), Some(experiment.name()));
    }
    assert!(find("munmap").is_none());
}

#[test]
fn munmap_hold() {
    let found = run("munmap-hold");
    assert_eq!(found.tables.len(), 6);
    let (holds, read) = (table(&found, "all holds of a call"), table(&found, "for reading"));
    for size in ["4 KiB", "1 MiB", "8 MiB"] {
        for design in ["Exclusive", "Sectioned", "Released"] {
            assert!(median(holds, size, design) > 0.0, "every munmap takes the lock");
            assert_eq!(median(read, size, design), 0.0, "{design} does not downgrade");
        }
        assert!(median(read, size, "Downgraded") > 0.0);
    }
}

#[test]
fn munmap_stall() {
    let found = run("munmap-stall");
    assert_eq!((found.tables.len(), found.plots.len()), (3, 3), "one a victim");
    for table in &found.tables {
        assert!(median(table, "Released", "the munmap") > 0.0);
        assert!(median(table, "Linux (host)", "99 %") > 0.0);
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
    assert!(median(table(&found, "pages migrated"), "migration-100", "Shared") > 0.0, "pages do move");
}

#[test]
fn hugetlb() {
    let found = run("hugetlb");
    let apart = table(&found, "16 processes, apart");
    assert!(median(apart, "faults a second", "VmaLock") > 0.0);
    let shared = table(&found, "16 processes");
    assert!(
        median(shared, "page tables", "VmaLock") < median(apart, "page tables", "VmaLock"),
        "tables are shared"
    );
}

#[test]
fn page_fault() {
    let found = run("page-fault");
    for place in ["one VMA", "a VMA each"] {
        assert!(median(table(&found, place), "faults/sec-2", "VmaLock") > 0.0);
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
