//! Calls with their expected results, as text: the files in `cases/`, which every subject must pass
//! (`tests/cases.rs`).
//!
//! A case file contains lines of calls, each followed by ` -> ` and its result. A line `maps p0:` is followed
//! by the expected lines of that process's arena, each of which begins with two blanks. `#` starts a comment.
//! A line `quirks kept` or `quirks cured` restricts the rest of the case to worlds that treat the kernel's
//! quirks in that way. A line `needs seals` restricts the rest of the case to kernels that have mseal.
//! `text.rs` defines the form of calls and results. The example `record` writes a case with the results of
//! the running kernel, so a new case needs no result by hand. A new kind of line is a branch in [`run`].

use crate::compare::visible;
use crate::op::{Subject, vmflag};
use crate::text;
use crate::world::{GuardMark, Quirks};

/// Runs a case. Fails with a description of the first difference.
pub fn run(subject: &mut dyn Subject, case: &str) -> Result<(), String> {
    let w = subject.world();
    subject.reset();
    let mut lines = case.lines().enumerate().peekable();
    while let Some((n, line)) = lines.next() {
        let line = line.split('#').next().unwrap_or("").trim_end();
        if line.is_empty() {
            continue;
        }
        if let Some(treated) = line.strip_prefix("quirks ") {
            let kept = w.quirks != Quirks::Cured;
            match treated {
                "kept" if !kept => return Ok(()),
                "cured" if kept => return Ok(()),
                "kept" | "cured" => continue,
                other => return Err(format!("line {}: unknown treatment of quirks: {other}", n + 1)),
            }
        }
        if line == "needs seals" {
            if !w.seals {
                return Ok(());
            }
            continue;
        }
        let at = |what: String| format!("line {}: {what}", n + 1);
        if let Some(proc) = line.strip_prefix("maps p").and_then(|s| s.strip_suffix(':')) {
            let proc = proc.parse().map_err(|_| at("process number".into()))?;
            let mut known = subject.known_flags();
            if w.guards != GuardMark::Flag {
                known &= !vmflag::MAYBE_GUARD;
            }
            let got: Vec<String> =
                visible(subject.maps(proc), known).iter().map(|m| text::map_line(&w, m)).collect();
            let mut want = Vec::new();
            while let Some((_, next)) = lines.next_if(|(_, l)| l.starts_with("  ")) {
                want.push(mask(next.trim(), known));
            }
            if got != want {
                return Err(at(format!("expected\n{}\ngot\n{}", want.join("\n"), got.join("\n"))));
            }
            continue;
        }
        let (call, want) = line.split_once(" -> ").ok_or_else(|| at("the call has no result".into()))?;
        let op = text::parse_op(&w, call).ok_or_else(|| at(format!("cannot read {call:?}")))?;
        let got = text::outcome(&w, &subject.apply(&op));
        if got != want.trim() {
            return Err(at(format!("{call}: expected {want}, got {got}")));
        }
    }
    Ok(())
}

/// Returns a line of `maps` with only the flags in `known`, because some subjects do not report all flags.
fn mask(line: &str, known: u32) -> String {
    let keep = |names: &str| {
        let known = names.split(',').filter(|n| vmflag::parse(n).is_none_or(|bit| bit & known != 0));
        known.collect::<Vec<_>>().join(",")
    };
    let words = line.split(' ').enumerate();
    words.map(|(n, word)| if n == 2 { keep(word) } else { word.to_string() }).collect::<Vec<_>>().join(" ")
}

/// Records the calls and the subject's results as a case.
pub fn record(subject: &mut dyn Subject, ops: &[crate::Op]) -> String {
    let w = subject.world();
    subject.reset();
    let mut out = String::new();
    for op in ops {
        let got = subject.apply(op);
        out += &format!("{} -> {}\n", text::op(&w, op), text::outcome(&w, &got));
    }
    let known = subject.known_flags();
    for proc in 0..crate::model::MAX_PROCS as u8 {
        let maps = visible(subject.maps(proc), known);
        if !maps.is_empty() {
            out += &format!("maps p{proc}:\n");
            for m in &maps {
                out += &format!("  {}\n", text::map_line(&w, m));
            }
        }
    }
    out
}
