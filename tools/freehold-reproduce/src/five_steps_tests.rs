//! Tests of the five steps: the stored documents have all rows, and the verdicts follow from the figures.

use super::*;

fn pair(before: f64, after: f64) -> Pair {
    let cell = |value: f64| (value.to_string(), value);
    Pair { row: "row".to_owned(), before: cell(before), after: cell(after) }
}

#[test]
fn stored_documents_have_the_figures_of_each_step() {
    for (name, document) in [("measured", MEASURED), ("simulated", SIMULATED)] {
        for step in &STEPS {
            let row = Results::of(document).row(step.experiment, step.is_row, step.columns);
            let row =
                row.unwrap_or_else(|| panic!("{name}.md has no {} of {}", step.figure, step.experiment));
            assert!(row.before.1 > 0.0 && row.after.1 > 0.0, "{name}: {row:?}");
        }
    }
    let step = &STEPS[3];
    let row = Results::of(MEASURED).row(step.experiment, step.is_row, step.columns).expect("a row");
    assert!(row.row.contains("waited in ten seconds"), "{row:?}");
}

fn text(step: &Step, measured: Option<&Pair>, simulated: Option<&Pair>) -> String {
    step.verdict(measured, simulated).1
}

#[test]
fn verdict_follows_from_both_changes() {
    // Published: 16,007 and 25,513 jobs per minute.
    let step = &STEPS[2];
    let (more, same) = (pair(100.0, 160.0), pair(100.0, 101.0));
    assert_eq!(text(step, Some(&more), Some(&more)), "reproduced");
    assert!(text(step, Some(&same), Some(&more)).starts_with("partly: only in the simulation"));
    assert!(text(step, Some(&more), Some(&same)).starts_with("partly: measured"));
    assert!(text(step, Some(&same), Some(&same)).starts_with("not on this machine"));
    assert_eq!(text(step, None, Some(&more)), "reproduced in the simulation; not measured in this run");
    assert_eq!(text(step, None, None), "neither measured nor simulated in this run");
    // A time improves if it falls.
    let step = &STEPS[3];
    assert!(text(step, Some(&pair(233e9, 18e9)), None).starts_with("reproduced"));
    assert!(text(step, Some(&pair(18e9, 233e9)), None).starts_with("not on this machine"));
}

#[test]
fn part_of_a_published_change_is_logarithmic() {
    let step = &STEPS[1];
    let [before, after] = step.published;
    assert!((step.part(&pair(before, after)) - 1.0).abs() < 1e-9);
    assert!((step.part(&pair(1.0, (after / before).sqrt())) - 0.5).abs() < 1e-9);
    assert_eq!(step.part(&pair(5.0, 5.0)), 0.0);
    assert!(step.part(&pair(5.0, 6.0)) < 0.0);
}

#[test]
fn each_step_is_counted_once() {
    let step = |outcome, measured: Option<Pair>| StepLine {
        name: "",
        figure: "",
        experiment: "",
        published: [String::new(), String::new()],
        measured,
        simulated: None,
        outcome,
        verdict: String::new(),
    };
    let measured = Some(pair(1.0, 2.0));
    let lines = [
        step(Outcome::Reproduced, measured.clone()),
        step(Outcome::Not, measured),
        step(Outcome::Reproduced, None),
        step(Outcome::Partly, None),
        step(Outcome::Unknown, None),
    ];
    let found = found(&lines, false);
    assert!(found.contains("2 are reproduced, 1 partly, 1 not, and 1 have no figures"), "{found}");
    assert!(found.ends_with("This run measured 2 of them."), "{found}");
}
