//! Makes the tables and plots of the experiment `writers`: concurrent changes of one address space.
//!
//! Input: the measured rates ([`Rate`]: operations per second for each load, number of CPUs and lock design)
//! and times ([`Times`]: duration of one CPU's operations, alone and while other CPUs make changes). Output:
//! the [`Findings`], with one table of rates and one table of times for each arrangement of areas.
//!
//! `mod.rs` measures, `loads.rs` has the loads. This file only computes and formats; it measures nothing. A
//! *side* is one of the compared lock designs (`SIDES`). *Linear* scaling means the rate of one CPU times
//! the number of CPUs; a share of 1 is linear.

use super::loads::{Areas, Load};
use super::{RANGES, Rate, SIDES, Times, WATCHED_SIDES, Writers, areas, cpus, of_cpus, others};
use crate::executor::hottest_of_each;
use crate::experiments::Experiment;
use crate::findings::{Axis, Cell, Findings, Line, Plot, Point, Row, Table};
use crate::measure::Figure;
use crate::scale::Scale;
use crate::unit::Unit;

/// Returns the findings of the experiment from its measured rates and times.
pub fn findings(rates: &[Rate], times: &[Times], scale: &Scale) -> Findings {
    let most = |areas| cpus(scale, areas).last().copied().unwrap_or(1);
    let mut tables = Vec::new();
    for &areas in areas(scale) {
        tables.push(rate_table(rates, areas));
        tables.extend(hottest_of_each(RANGES, &of_cpus(areas, most(areas))));
        tables.extend(time_table(times, areas, others(scale)));
    }
    let columns = SIDES.map(|(side, _)| linear_column(side));
    let columns = columns.each_ref().map(String::as_str);
    let most = most(Areas::Many);
    let found = Load::ALL.iter().filter_map(|load| {
        let what = format!("{} by {most} CPUs, as a share of linear scaling", load.name());
        tables[0].row_says(&what, &row_name(*load, most), &columns)
    });
    Findings {
        experiment: Writers.name(),
        title: Writers.title(),
        found: found.collect(),
        work: "CPUs of one process repeatedly change its address space, each its own part; linear means this number of times the rate of one CPU. Then one CPU \
               is timed, first without others and then while the others change their own parts. With many areas each CPU has 48 areas before each place that it changes, so \
               it shares no leaf of the tree with other CPUs; with two areas it does."
            .to_owned(),
        tables,
        plots: areas(scale).iter().map(|areas| plot(rates, *areas)).collect(),
        notes: vec![
            "Addresses are chosen per CPU (Placement::PerCpu). With Ranges a single CPU is an exclusive writer, and several CPUs are range writers: linear compares the two. \
             With RangesOnly a single CPU is a range writer too, so that column shows what CPUs cost each other."
                .to_owned(),
            "Simulated processors here have a core each, flush each other's TLBs by broadcast, and have enough frames and memory bandwidth. With interrupts, each \
             unmapping of a touched page interrupts all CPUs of the process, which costs more than the rest of the call."
                .to_owned(),
            "A single CPU flushes only its own TLB. With several CPUs, unmapping a touched page waits until the other TLBs are flushed, which is most of the loss against \
             linear there (RangesOnly)."
                .to_owned(),
            "Each run begins with a warm-up of 4 us per CPU that is not counted. The figures therefore exclude the time until all CPUs have read the shared words, and until \
             leaves in which CPUs conflict are split."
                .to_owned(),
            "The pages that mprotect changes are not present.".to_owned(),
        ],
        seconds: 0.0,
    }
}

/// Returns the heading of the column with the share of linear scaling of a side.
fn linear_column(side: &str) -> String {
    format!("{side}: share of linear")
}

/// Returns the name of the row for a load and a number of CPUs.
fn row_name(load: Load, cpus: usize) -> String {
    format!("{}, {cpus}", load.name())
}

/// Returns the rates of each side as a share of linear scaling.
fn linear(rates: &[Rate], rate: &Rate) -> Vec<Option<Figure>> {
    let one = rates.iter().find(|one| one.areas == rate.areas && one.load == rate.load && one.cpus == 1);
    let side = |side: usize| {
        let ratio = rate.rates[side].ratio(&one?.rates[side])?;
        Some(Figure::of(ratio.turns.iter().map(|turn| turn / rate.cpus as f64)))
    };
    (0..SIDES.len()).map(side).collect()
}

/// Returns the table of rates: one row per load and number of CPUs, with the rate of each side and its share
/// of linear scaling.
fn rate_table(rates: &[Rate], areas: Areas) -> Table {
    let names = SIDES.map(|(name, _)| name);
    let columns = ["load, CPUs"].iter().chain(&names).map(|name| (*name).to_owned());
    let rows = rates.iter().filter(|rate| rate.areas == areas).map(|rate| {
        let each = rate.rates.iter().map(|figure| Cell::measured(Unit::PerSecond, figure.clone()));
        let linear = linear(rates, rate).into_iter().map(|figure| Cell::measured(Unit::Share, figure));
        Row { name: row_name(rate.load, rate.cpus), cells: each.chain(linear).collect() }
    });
    Table {
        title: format!("operations per second of all CPUs together, {}", areas.name()),
        columns: columns.chain(names.map(linear_column)).collect(),
        rows: rows.collect(),
    }
}

/// Returns the table of times: one row per timed operation and load of the other CPUs, with the median, the
/// 99th percentile, and the ratios to the times without other load. Returns `None` if nothing was timed with
/// these areas.
fn time_table(times: &[Times], areas: Areas, others: usize) -> Option<Table> {
    let figures = ["median", "99 %", "99 %, ratio to alone", "mean, ratio to alone"];
    let columns =
        SIDES[..WATCHED_SIDES].iter().flat_map(|(side, _)| figures.map(|figure| format!("{side}: {figure}")));
    let columns = std::iter::once("operation".to_owned()).chain(columns).collect();
    let of_areas = || times.iter().filter(|of| of.areas == areas);
    let rows = of_areas().map(|of| {
        let alone = of_areas().find(|alone| alone.watched == of.watched && alone.beside.is_none());
        let cells = (0..WATCHED_SIDES).flat_map(|side| {
            let times_alone = |value: fn(&Times) -> &Vec<Figure>| {
                let alone = alone.filter(|_| of.beside.is_some());
                let ratio = alone.and_then(|alone| value(of)[side].ratio(&value(alone)[side]));
                Cell::measured(Unit::Times, ratio)
            };
            [
                Cell::measured(Unit::Nanoseconds, of.median[side].clone()),
                Cell::measured(Unit::Nanoseconds, of.most[side].clone()),
                times_alone(|of| &of.most),
                times_alone(|of| &of.mean),
            ]
        });
        let beside = of.beside.map_or_else(|| "alone".to_owned(), |load| format!("during {}", load.name()));
        Row { name: format!("{}, {beside}", of.watched.name()), cells: cells.collect() }
    });
    let rows: Vec<Row> = rows.collect();
    let title = format!("one CPU's operations while {others} CPUs change their own parts, {}", areas.name());
    (!rows.is_empty()).then_some(Table { title, columns, rows })
}

/// Returns the plot of the share of linear scaling over the number of CPUs, one line per load, for the side
/// `Ranges`.
fn plot(rates: &[Rate], areas: Areas) -> Plot {
    let lines = Load::ALL.iter().map(|load| {
        let of = rates.iter().filter(|rate| rate.areas == areas && rate.load == *load);
        let points = of.filter_map(|rate| {
            Some(Point { x: rate.cpus as f64, y: linear(rates, rate).swap_remove(RANGES)? })
        });
        Line { name: load.name().to_owned(), points: points.collect() }
    });
    Plot {
        title: format!("Ranges: operations as a share of linear, {}", areas.name()),
        x: Axis::logarithmic("CPUs", Unit::Count),
        y: Axis::linear("share of linear", Unit::Share),
        lines: lines.collect(),
    }
}
