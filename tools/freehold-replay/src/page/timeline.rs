//! The waits over time: a lane for each task, with its waits, and with the holds that others waited for.
//!
//! The lanes are those of the tasks in the longest waits. Each bar has the index of its wait in the analysis,
//! from which `templates/replay.js` makes the description under the pointer.

use super::Page;
use super::chart::WIDTH;
use std::collections::{BTreeMap, HashSet};
use std::fmt::Write;

/// Largest number of lanes.
const MAX_LANES: usize = 14;
/// Height of a lane, in units of the drawing and in pixels.
const LANE: f64 = 20.0;
/// Smallest width of a bar.
const LEAST: f64 = 0.8;

impl Page<'_> {
    /// Draws the longest waits with a known holder. Empty if there are none.
    pub(super) fn timeline(&self) -> String {
        let waits = self.analysis().waits.as_ref().map_or(&[][..], |waits| &waits.longest);
        let known = || {
            waits.iter().enumerate().filter_map(|(index, wait)| Some((index, wait, wait.holder.as_ref()?)))
        };
        let mut weights: BTreeMap<(u32, u32), u64> = BTreeMap::new();
        for (_, wait, holder) in known() {
            for task in [wait.task, holder.task] {
                let weight = weights.entry((wait.process, task)).or_default();
                *weight = weight.saturating_add(wait.ns);
            }
        }
        let mut order: Vec<_> = weights.into_iter().collect();
        order.sort_by_key(|(_, ns)| std::cmp::Reverse(*ns));
        order.truncate(MAX_LANES);
        let mut tasks: Vec<(u32, u32)> = order.into_iter().map(|(task, _)| task).collect();
        tasks.sort_unstable();
        if tasks.is_empty() {
            return String::new();
        }
        let lane = |process: u32, task: u32| {
            tasks.iter().position(|own| *own == (process, task)).map(|lane| lane as f64 * LANE)
        };
        let bar = |class: &str, index: usize, from: u64, ns: u64, y: f64| {
            let end = self.analysis().end_ns.max(1) as f64;
            let (x, width) = (from as f64 / end * WIDTH, (ns as f64 / end * WIDTH).max(LEAST));
            format!(
                "<rect class=\"{class}\" data-wait=\"{index}\" x=\"{x:.2}\" y=\"{y}\" width=\"{width:.2}\" height=\"8\"/>\n"
            )
        };
        let (mut text, mut seen) = (String::new(), HashSet::new());
        for (index, wait, holder) in known() {
            if let Some(y) = lane(wait.process, holder.task).filter(|_| seen.insert(holder.line)) {
                text += &bar("hold", index, holder.from_ns, holder.ns, y + 10.0);
            }
            if let Some(y) = lane(wait.process, wait.task) {
                text += &bar("wait", index, wait.from_ns, wait.ns, y + 2.0);
            }
        }
        let height = tasks.len() as f64 * LANE;
        let mut lanes = String::new();
        for (process, task) in &tasks {
            write!(lanes, "<span>task {task}, process {process}</span>")
                .expect("writing to a String cannot fail");
        }
        format!(
            "<div class=\"chart lanes\" style=\"height:{height}px\"><div class=\"names\">{lanes}</div>\
             <svg class=\"time\" viewBox=\"0 0 {WIDTH} {height}\" preserveAspectRatio=\"none\" role=\"img\" \
             aria-label=\"waits over time\">\n{text}</svg></div>\
             <ul class=\"legend\"><li><i class=\"wait\"></i>waits</li>\
             <li><i class=\"hold\"></i>holds a lock that others wait for</li></ul>"
        )
    }
}
