//! Step 2: the lock of a file's reverse map, with exclusive and with shared readers.
//!
//! Measures the three lock designs of [`FileRmap`]. For each number of tasks, `tasks.rs` builds one set of
//! tasks per design and runs each load in turns. The findings compare the rates with the figures that were
//! published for Linux (`published.rs`), and list the waits for the lock. A new load is a variant of [`Load`]
//! (`tasks.rs`), and needs an entry in [`LOADS`] and a title in `findings`.

use super::tasks::{Load, Tasks};
use super::{Experiment, published};
use crate::findings::{Axis, Cell, Findings, Line, Plot, Point, Row, Table};
use crate::measure::{Figure, figures, in_turns};
use crate::unit::Unit;
use crate::{scale::Scale, steps::Steps};
use freehold::rmap::FileRmap;

/// See the [module](self).
pub struct IMmap;

/// Numbers of tasks of a full run.
const FULL: [usize; 6] = [100, 200, 500, 1000, 1600, 2000];
/// Numbers of tasks of a quick run.
const QUICK: [usize; 3] = [100, 300, 600];
/// Names of the values of [`FileRmap::ALL`], in order.
const DESIGNS: &[&str] = &["Mutex", "Exclusive", "Shared"];
/// Loads that are measured with each number of tasks.
const LOADS: [Load; 4] = [Load::AllTests, Load::Disk, Load::Migration, Load::Punch];

impl IMmap {
    /// Returns the numbers of tasks to measure.
    fn tasks(scale: &Scale) -> &'static [usize] {
        scale.choose(&FULL[..], &QUICK[..])
    }
}

/// Results of the turns with one number of tasks: by load, then by design.
struct OfTasks {
    /// Number of tasks.
    tasks: usize,
    /// Jobs per minute or pages per second.
    rates: Vec<Vec<Figure>>,
    /// Number of waits for the lock of the reverse map.
    waits: Vec<Vec<Figure>>,
    /// Total time of the waits for the lock, in nanoseconds.
    waited: Vec<Vec<Figure>>,
}

impl Experiment for IMmap {
    fn name(&self) -> &'static str {
        "i-mmap"
    }

    fn title(&self) -> &'static str {
        "the lock of a file's reverse map, with exclusive and with shared readers (step 2)"
    }

    fn sides(&self) -> Vec<String> {
        DESIGNS.iter().map(|design| (*design).to_owned()).collect()
    }

    fn memory(&self, scale: &Scale) -> u64 {
        // Memory for tables, VMAs and other data of the address spaces, with one set of tasks per design.
        (Self::tasks(scale).iter().max().copied().unwrap_or(0) as u64 * DESIGNS.len() as u64) * (128 << 10)
            + (512 << 20)
    }

    fn seconds(&self, scale: &Scale) -> f64 {
        Self::tasks(scale).len() as f64 * scale.seconds(LOADS.len() * DESIGNS.len())
    }

    fn run(&self, scale: &Scale, steps: &Steps) -> anyhow::Result<Findings> {
        let mut all = Vec::new();
        for &tasks in Self::tasks(scale) {
            let sides = FileRmap::ALL.map(|design| Tasks::new(design, tasks, scale));
            let mut sides: Vec<Tasks> = sides.into_iter().collect::<anyhow::Result<_>>()?;
            let mut of_tasks = OfTasks { tasks, rates: Vec::new(), waits: Vec::new(), waited: Vec::new() };
            for load in LOADS {
                let found = in_turns(scale.turns(), &mut sides, |side, turn| {
                    let what = format!("{}-{tasks}, turn {}", load.name(), turn + 1);
                    steps.step(what, scale.turn.as_secs_f64(), || side.turn(load, scale))
                })?;
                of_tasks.rates.push(figures(&found, |turn| turn.rate));
                of_tasks.waits.push(figures(&found, |turn| turn.waits));
                of_tasks.waited.push(figures(&found, |turn| turn.waited));
            }
            all.push(of_tasks);
        }
        Ok(findings(&all))
    }
}

/// Returns the unit of a load: jobs per minute, or pages per second.
fn unit(load: Load) -> Unit {
    if load == Load::Migration { Unit::PerSecond } else { Unit::PerMinute }
}

/// Returns the findings from the results for all numbers of tasks.
fn findings(all: &[OfTasks]) -> Findings {
    let titles = [
        "alltests-like, jobs per minute",
        "disk-like, jobs per minute",
        "pages migrated per second, during the first load",
        "alltests-like with punched pages that all tasks map, jobs per minute",
    ];
    let tables = LOADS.iter().enumerate().map(|(number, load)| {
        let columns = ["load"].iter().chain(DESIGNS);
        let columns = columns.chain(&["change from the first", "step 2: before", "after", "change"]);
        let rows = all.iter().map(|of_tasks| row(of_tasks, number, *load)).collect();
        Table {
            title: titles[number].to_owned(),
            columns: columns.map(|name| (*name).to_owned()).collect(),
            rows,
        }
    });
    let mut tables: Vec<Table> = tables.collect();
    let found = tables.iter().filter_map(|table| {
        let row = table.last_row();
        table.row_says(&format!("{}, {row}", capitalized(&table.title)), row, DESIGNS)
    });
    let found = found.collect();
    tables.push(waits(all));
    let plots = LOADS.iter().enumerate().map(|(number, load)| {
        let line = |(side, name): (usize, &str)| {
            let points = all.iter().map(|of| Point { x: of.tasks as f64, y: of.rates[number][side].clone() });
            Line { name: name.to_owned(), points: points.collect() }
        };
        Plot {
            title: titles[number].to_owned(),
            x: Axis::linear("tasks", Unit::Count),
            y: Axis::linear(if *load == Load::Migration { "pages" } else { "jobs" }, unit(*load)),
            lines: DESIGNS.iter().copied().enumerate().map(line).collect(),
        }
    });
    Findings {
        experiment: IMmap.name(),
        title: IMmap.title(),
        found,
        work: "Tasks map the same libraries and data. A job forks a task, maps, faults, writes pages back, unmaps and exits (alltests), or maps, writes and writes back \
               files of its own in addition to the shared data (disk). One job of 16 writes back a page that all tasks map, and one of 64 truncates its file. For the last two loads, one of 16 of the first load's jobs tries to move a page that \
               all tasks map to another frame, or punches the page out of the file."
            .to_owned(),
        tables,
        plots: plots.collect(),
        notes: vec![
            "Published: aim7 on 4 sockets, 60 cores. The loads here are similar, but run on phantom memory without system calls and contents, so a job takes a few microseconds.".to_owned(),
            "The published result is 67.5 % more migrated pages; the number of tasks was not published.".to_owned(),
            "Readers of one lock run concurrently only if each reader has a processor.".to_owned(),
        ],
        seconds: 0.0,
    }
}

/// Returns the text with a capital first letter, if that letter is ASCII.
fn capitalized(text: &str) -> String {
    let mut text = text.to_owned();
    if let Some(first) = text.get_mut(..1) {
        first.make_ascii_uppercase();
    }
    text
}

/// Returns the row of a load and a number of tasks.
fn row(of_tasks: &OfTasks, number: usize, load: Load) -> Row {
    let rates = &of_tasks.rates[number];
    let change = rates.last().zip(rates.first()).and_then(|(after, before)| after.change(before));
    let published = published::JOBS.iter().find(|(tasks, ..)| *tasks == of_tasks.tasks);
    let jobs = published.and_then(|(_, all, disk)| match load {
        Load::AllTests => Some(*all),
        Load::Disk => Some(*disk),
        Load::Migration | Load::Punch => None,
    });
    let mut cells: Vec<Cell> = rates.iter().map(|rate| Cell::measured(unit(load), rate.clone())).collect();
    cells.extend([
        Cell::measured(Unit::Change, change),
        Cell::published(Unit::PerMinute, jobs.map(|[before, _]| before)),
        Cell::published(Unit::PerMinute, jobs.map(|[_, after]| after)),
        Cell::published(Unit::Change, jobs.map(|[before, after]| after / before - 1.0)),
    ]);
    Row { name: format!("{}-{}", load.name(), of_tasks.tasks), cells }
}

/// Returns the table of waits.
fn waits(all: &[OfTasks]) -> Table {
    let columns = DESIGNS.iter().flat_map(|design| [format!("{design}: waits"), "total".to_owned()]);
    let columns = ["load".to_owned()].into_iter().chain(columns).collect();
    let rows = all.iter().flat_map(|of_tasks| {
        LOADS.iter().enumerate().map(|(number, load)| {
            let cells = (0..DESIGNS.len()).flat_map(|side| {
                [
                    Cell::measured(Unit::PerSecond, of_tasks.waits[number][side].clone()),
                    Cell::measured(Unit::Nanoseconds, of_tasks.waited[number][side].clone()),
                ]
            });
            Row { name: format!("{}-{}", load.name(), of_tasks.tasks), cells: cells.collect() }
        })
    });
    let title = "waits for the locks of all files, per second".to_owned();
    Table { title, columns, rows: rows.collect() }
}
