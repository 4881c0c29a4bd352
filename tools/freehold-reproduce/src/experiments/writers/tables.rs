//! What was found, as tables and plots.

use super::loads::{Areas, Load};
use super::{RANGES, Rate, SIDES, Times, WATCHED_SIDES, Writers, areas, cpus, of_cpus, others};
use crate::executor::hottest_of_each;
use crate::experiments::Experiment;
use crate::findings::{Axis, Cell, Findings, Line, Plot, Point, Row, Table};
use crate::measure::Figure;
use crate::scale::Scale;
use crate::unit::Unit;

pub fn findings(rates: &[Rate], times: &[Times], scale: &Scale) -> Findings {
    let most = |areas| cpus(scale, areas).last().copied().unwrap_or(1);
    let mut tables = Vec::new();
    for &areas in areas(scale) {
        tables.push(rate_table(rates, areas));
        tables.extend(hottest_of_each(RANGES, &of_cpus(areas, most(areas))));
        tables.extend(time_table(times, areas, others(scale)));
    }
    let columns = SIDES.map(|(side, _)| of_linear(side));
    let columns = columns.each_ref().map(String::as_str);
    let most = most(Areas::Many);
    let found = Load::ALL.iter().filter_map(|load| {
        let what = format!("{} by {most} CPUs, as a part of {most} times one", load.name());
        tables[0].row_says(&what, &row_name(*load, most), &columns)
    });
    Findings {
        experiment: Writers.name(),
        title: Writers.title(),
        found: found.collect(),
        work: "CPUs of one process change its address space, each a part of its own, again and again; linear is as many times what one CPU does without others. Then one of \
               them is timed, without others and beside others, each of which changes its own part. With many areas each CPU has 48 before each place that it works at, so \
               it shares no leaf of the tree with others; with two it does."
            .to_owned(),
        tables,
        plots: areas(scale).iter().map(|areas| plot(rates, *areas)).collect(),
        notes: vec![
            "Places are chosen per CPU (Placement::PerCpu). With Ranges one CPU without others works on the whole space, several on parts of it: linear compares the two. \
             With RangesOnly one CPU, too, works on parts, so that column says what CPUs cost each other."
                .to_owned(),
            "Simulated processors have a core each here, flush each other's TLBs by broadcast, and have frames and bandwidth of memory enough. With interrupts, each \
             unmapping of a page that was touched interrupts all CPUs of the process, which costs more than the rest of the call."
                .to_owned(),
            "One CPU without others flushes no TLB but its own. Beside others it waits until theirs are flushed, where a page was touched: that is most of what is missing from \
             linear there (RangesOnly)."
                .to_owned(),
            "Nothing is counted before each CPU has worked for a while, longer the more there are: 4 us for each. So what it takes until all have seen what is shared, and until \
             leaves in which CPUs meet are split, is not in these figures."
                .to_owned(),
            "Pages that mprotect changes are not in memory.".to_owned(),
        ],
        seconds: 0.0,
    }
}

fn of_linear(side: &str) -> String {
    format!("{side}: of linear")
}

fn row_name(load: Load, cpus: usize) -> String {
    format!("{}, {cpus}", load.name())
}

/// What each side of `rate` did, as a part of linear.
fn linear(rates: &[Rate], rate: &Rate) -> Vec<Option<Figure>> {
    let one = rates.iter().find(|one| one.areas == rate.areas && one.load == rate.load && one.cpus == 1);
    let side = |side: usize| {
        let ratio = rate.rates[side].ratio(&one?.rates[side])?;
        Some(Figure::of(ratio.turns.iter().map(|turn| turn / rate.cpus as f64)))
    };
    (0..SIDES.len()).map(side).collect()
}

fn rate_table(rates: &[Rate], areas: Areas) -> Table {
    let names = SIDES.map(|(name, _)| name);
    let columns = ["load, CPUs"].iter().chain(&names).map(|name| (*name).to_owned());
    let rows = rates.iter().filter(|rate| rate.areas == areas).map(|rate| {
        let each = rate.rates.iter().map(|figure| Cell::measured(Unit::PerSecond, figure.clone()));
        let linear = linear(rates, rate).into_iter().map(|figure| Cell::measured(Unit::Share, figure));
        Row { name: row_name(rate.load, rate.cpus), cells: each.chain(linear).collect() }
    });
    Table {
        title: format!("operations a second of all CPUs together, {}", areas.name()),
        columns: columns.chain(names.map(of_linear)).collect(),
        rows: rows.collect(),
    }
}

fn time_table(times: &[Times], areas: Areas, others: usize) -> Option<Table> {
    let figures = ["median", "99 %", "99 %, times alone", "mean, times alone"];
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
        let beside = of.beside.map_or_else(|| "alone".to_owned(), |load| format!("beside {}", load.name()));
        Row { name: format!("{}, {beside}", of.watched.name()), cells: cells.collect() }
    });
    let rows: Vec<Row> = rows.collect();
    let title = format!("one CPU's operations beside {others} CPUs that change others, {}", areas.name());
    (!rows.is_empty()).then_some(Table { title, columns, rows })
}

fn plot(rates: &[Rate], areas: Areas) -> Plot {
    let lines = Load::ALL.iter().map(|load| {
        let of = rates.iter().filter(|rate| rate.areas == areas && rate.load == *load);
        let points = of.filter_map(|rate| {
            Some(Point { x: rate.cpus as f64, y: linear(rates, rate).swap_remove(RANGES)? })
        });
        Line { name: load.name().to_owned(), points: points.collect() }
    });
    Plot {
        title: format!("Ranges: operations as a part of linear, {}", areas.name()),
        x: Axis::logarithmic("CPUs", Unit::Count),
        y: Axis::linear("of linear", Unit::Share),
        lines: lines.collect(),
    }
}
