//! Chooses the processes that are drawn, and their rows.
//!
//! A run may have thousands of short processes, and the picture has room for seven rows. [`lanes`] scores
//! each process by lifetime and faults, chooses the best, and places them in rows, children below their
//! parents. `draw.rs` draws the rows, and `strips.rs` counts the processes that are left out. The limits are
//! the constants below. `mod_tests.rs` tests which processes are drawn.

use super::life::{Life, Process};

/// Largest number of rows.
const MAX_ROWS: usize = 7;
/// Largest number of processes in the rows.
const MAX_PROCESSES: usize = 160;
/// Smallest share of the total time that a process must live to be drawn.
const SHORTEST: f64 = 0.003;

/// Processes in rows. The processes of one row do not overlap in time, and each process is below its parent.
#[derive(Debug, Default)]
pub struct Lanes {
    /// Indices of processes, ordered by time.
    pub rows: Vec<Vec<usize>>,
    /// Processes that are not drawn.
    pub left_out: Vec<usize>,
}

/// Distributes the processes. Chooses as many processes as fit, and prefers processes that lived long or
/// faulted often.
pub fn lanes(life: &Life) -> Lanes {
    let mut candidates: Vec<usize> = (0..life.processes.len()).filter(|index| worth(life, *index)).collect();
    candidates.sort_by(|a, b| score(life, *b).total_cmp(&score(life, *a)).then(a.cmp(b)));
    candidates.truncate(MAX_PROCESSES);
    let mut rows = rows(life, &candidates);
    while rows.len() > MAX_ROWS {
        // Removes several processes at once, because removing one process per round would take too many
        // rounds.
        candidates.truncate((candidates.len() - 1).min(candidates.len() * 15 / 16));
        rows = self::rows(life, &candidates);
    }
    let drawn: Vec<usize> = rows.iter().flatten().copied().collect();
    let mut is_drawn = vec![false; life.processes.len()];
    drawn.iter().for_each(|index| is_drawn[*index] = true);
    let left_out = (0..life.processes.len()).filter(|index| !is_drawn[*index]).collect();
    Lanes { rows, left_out }
}

/// Returns the lifetime in nanoseconds.
fn lived(process: &Process) -> u64 {
    process.to - process.from
}

/// Returns true if a process began an address space and lived long enough to be drawn.
fn worth(life: &Life, index: usize) -> bool {
    let process = &life.processes[index];
    !process.own.is_empty() && (index == 0 || lived(process) as f64 >= SHORTEST * life.end as f64)
}

/// Returns the importance of a process: its lifetime and its faults, as shares of the whole. The first
/// process is the most important, because all other processes descend from it.
fn score(life: &Life, index: usize) -> f64 {
    let process = &life.processes[index];
    let faults: usize = process.own.iter().map(|space| life.spaces[*space].faults.len()).sum();
    let first = if index == 0 { 2.0 } else { 0.0 };
    first + lived(process) as f64 / life.end.max(1) as f64 + faults as f64 / life.faults.max(1) as f64
}

/// Distributes the chosen processes to rows.
fn rows(life: &Life, chosen: &[usize]) -> Vec<Vec<usize>> {
    let mut chosen = chosen.to_vec();
    // Indices are in order of creation.
    chosen.sort_unstable();
    let mut rows: Vec<Vec<usize>> = Vec::new();
    let mut row_of = vec![None; life.processes.len()];
    for index in chosen {
        let process = &life.processes[index];
        let below = process.parent.and_then(|parent| row_of[parent]).map_or(0, |row: usize| row + 1);
        let free = |row: &Vec<usize>| row.last().is_none_or(|last| life.processes[*last].to <= process.from);
        let row = (below..rows.len()).find(|row| free(&rows[*row])).unwrap_or(rows.len());
        if row == rows.len() {
            rows.push(Vec::new());
        }
        rows[row].push(index);
        row_of[index] = Some(row);
    }
    rows
}
