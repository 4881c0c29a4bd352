//! Tests the findings as text, as a Markdown document and as a page (`text.rs`, `page.rs`). The findings are
//! built here (`found`), and the stored texts are in `snapshots/` (crate insta). After an intended change of
//! the form, accept the new text with `cargo insta review`.

use super::*;
use crate::findings::Row;
use crate::machine::Facts;

fn found() -> Findings {
    let turns = |turns: [f64; 3]| Figure::of(turns);
    let cells = vec![
        Cell::measured(Unit::Nanoseconds, turns([900.0, 1000.0, 1100.0])),
        Cell::measured(Unit::Change, turns([-0.01, 0.05, 0.02])),
        Cell::published(Unit::PerSecond, 554_894.0),
        Cell::Nothing,
    ];
    let columns = ["size", "Exclusive", "change", "step 0: before", "after"].map(str::to_owned).into();
    Findings {
        experiment: "munmap-hold",
        title: "munmap of populated memory",
        found: vec!["The longest hold of 80 GiB: Exclusive 1 us.".to_owned()],
        work: "One thread unmaps.".to_owned(),
        tables: vec![Table {
            title: "time of the call".to_owned(),
            columns,
            rows: vec![Row { name: "80 GiB".to_owned(), cells }],
        }],
        plots: Vec::new(),
        notes: vec!["Machines differ.".to_owned()],
        seconds: 1.5,
    }
}

#[test]
fn text_contains_tables_and_notes() {
    insta::assert_snapshot!("terminal", of(&found()));
}

#[test]
fn document_states_command_and_machine() {
    let report = Report {
        version: "0.1.0",
        machine: Facts {
            processor: "EPYC".to_owned(),
            cpus: 2,
            memory: 23 << 30,
            kernel: "Linux 6.1".to_owned(),
        },
        command: "freehold reproduce --markdown docs/results/measured.md".to_owned(),
        virtual_time: false,
        quick: false,
        at_most: None,
        cpus: 2,
        failed: Vec::new(),
        interrupted: None,
        experiments: vec![found()],
        seconds: 61.0,
    };
    insta::assert_snapshot!("document", markdown(&report));
    let page = crate::page::html(&report).expect("a page");
    for words in [
        "<code>munmap-hold</code>",
        "<small>±10 %</small>",
        "class=\"published\">554,894",
        "Machines differ.",
    ] {
        assert!(page.contains(words), "{words} is missing in {page}");
    }
    // The page begins with the five steps, and refers to no other page.
    let steps = page.find("<section id=\"steps\">").expect("the five steps");
    assert!(steps < page.find("<details id=\"all\">").expect("the folded results"));
    assert_eq!(page.matches("<th scope=\"row\">").count(), 5 + 1, "a row for each step, and one of the run");
    let linked = page.replace("http-equiv", "").replace("http://www.w3.org/2000/svg", "");
    assert!(!linked.contains("http"), "the page refers to another");
}
