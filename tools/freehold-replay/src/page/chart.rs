//! Charts over time: stacked areas for resident memory, stacked bars for faults.
//!
//! A chart is an SVG whose x runs from 0 to [`WIDTH`] over the whole recording, stretched to the width of the
//! page. Labels are HTML beside it, so that they keep their size. `templates/replay.js` zooms by the viewBox
//! and shows the values under the pointer from the page's data; the attribute `data-chart` names the data.

use super::Page;
use crate::analysis::faults::FaultKind;
use crate::analysis::mappings::Kind;
use crate::units;
use std::fmt::Write;

/// Width of a chart in its own units.
pub(super) const WIDTH: f64 = 1000.0;
/// Height of a chart in its own units.
const HEIGHT: f64 = 100.0;

/// One series of a chart: its CSS class, its name and its values.
struct Series {
    class: String,
    name: &'static str,
    values: Vec<u64>,
}

impl Page<'_> {
    /// Draws resident memory by kind.
    pub(super) fn resident_chart(&self) -> String {
        let Some(resident) = &self.analysis().resident else { return String::new() };
        let series = Kind::ALL.into_iter().filter_map(|kind| {
            let values = resident.by_kind.get(&kind)?.clone();
            Some(Series { class: format!("k{}", kind as u8), name: kind.name(), values })
        });
        let width = resident.step_ns as f64 / self.analysis().end_ns.max(1) as f64 * WIDTH;
        stacked("resident", &series.collect::<Vec<_>>(), width, units::bytes)
    }

    /// Draws faults by kind.
    pub(super) fn fault_chart(&self) -> String {
        let Some(faults) = &self.analysis().faults else { return String::new() };
        let series = FaultKind::ALL.into_iter().map(|kind| {
            let values = faults.over_time.iter().map(|counts| counts.by_kind()[kind as usize]).collect();
            Series { class: format!("f{}", kind as u8), name: kind.name(), values }
        });
        let series: Vec<Series> =
            series.filter(|series: &Series| series.values.iter().any(|value| *value > 0)).collect();
        let width = faults.step_ns as f64 / self.analysis().end_ns.max(1) as f64 * WIDTH;
        stacked("faults", &series, width, units::count)
    }

    /// Returns the marks of the time axis: positions in percent and times.
    pub(super) fn ticks(&self) -> String {
        let mut text = String::from("<div class=\"ticks\" aria-hidden=\"true\">");
        for index in 0..=4u64 {
            let at = self.analysis().end_ns / 4 * index;
            write!(text, "<span>{}</span>", units::nanoseconds(at)).expect("writing to a String cannot fail");
        }
        text + "</div>"
    }
}

/// Draws series on top of each other. `width` is that of a bin.
fn stacked(name: &str, series: &[Series], width: f64, format: fn(u64) -> String) -> String {
    let bins = series.iter().map(|series| series.values.len()).max().unwrap_or(0);
    let mut below = vec![0u64; bins];
    let sum = |bin: usize| -> u64 { series.iter().filter_map(|series| series.values.get(bin)).sum() };
    let most = (0..bins).map(sum).max().unwrap_or(0);
    let y = |value: u64| HEIGHT - value as f64 / most.max(1) as f64 * HEIGHT;
    let mut text = format!(
        "<div class=\"chart\" data-chart=\"{name}\"><span class=\"top\">{}</span>\
         <svg class=\"time\" viewBox=\"0 0 {WIDTH} {HEIGHT}\" preserveAspectRatio=\"none\" role=\"img\" \
         aria-label=\"{name} over time\">",
        format(most)
    );
    for Series { class, values, .. } in series {
        let (mut up, mut down) = (String::new(), String::new());
        for (bin, value) in values.iter().enumerate() {
            let (left, right) = (bin as f64 * width, (bin + 1) as f64 * width);
            let low = below[bin];
            below[bin] += value;
            write!(up, "L{left:.1} {:.2}H{right:.1}", y(below[bin]))
                .expect("writing to a String cannot fail");
            // The way back is written in reverse order.
            down.insert_str(0, &format!("L{right:.1} {:.2}H{left:.1}", y(low)));
        }
        let up = up.replacen('L', "M", 1);
        writeln!(text, "<path class=\"{class}\" d=\"{up}{down}z\"/>")
            .expect("writing to a String cannot fail");
    }
    text += "</svg></div><ul class=\"legend\">";
    for Series { class, name, .. } in series {
        write!(text, "<li><i class=\"{class}\"></i>{name}</li>").expect("writing to a String cannot fail");
    }
    text + "</ul>"
}
