//! Tests the page: it has all sections, its figures are those of the JSON document, and nothing in it can
//! break out of its place or reach the network.

use super::*;
use crate::analysis::waits::{Convoy, Group, Holder, Sum, Waits};
use crate::{Options, replay, report};
use serde_json::Value;
use std::fs;
use std::path::Path;

/// Returns the page about a recording, and its JSON document.
fn page_and_json(path: &Path) -> (String, Value) {
    let source = Source::from(path);
    let outcome = replay(&source, &Options { cpus: 2, ..Options::default() }, &()).expect("a recording");
    page_and_json_of(&source, &[outcome])
}

fn page_and_json_of(source: &Source, outcomes: &[Outcome]) -> (String, Value) {
    let page = html(source, outcomes, None).expect("a page");
    let analysis = crate::analysis::of_recording(source).expect("a recording");
    let json = report::json(outcomes, &[analysis], &[]);
    (page, serde_json::from_str(&json).expect("JSON"))
}

const GIT: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/../../recordings/git.trace.zst");

fn git() -> (String, Value) {
    page_and_json(Path::new(GIT))
}

/// Returns the data that the script of a page reads.
fn data(page: &str) -> Value {
    let begin = "<script type=\"application/json\" id=\"analysis\">";
    let from = page.find(begin).expect("the data") + begin.len();
    let length = page[from..].find("</script>").expect("the end of the data");
    serde_json::from_str(&page[from..][..length]).expect("JSON")
}

/// Returns the cells of a table, row by row.
fn table(page: &str, id: &str) -> Vec<Vec<String>> {
    let from = page.find(&format!("<table id=\"{id}\">")).unwrap_or_else(|| panic!("no table {id}"));
    let body = &page[from..][page[from..].find("<tbody>").expect("a body")..];
    let body = &body[..body.find("</tbody>").expect("the end of a body")];
    let cells = |row: &str| {
        let cells = row.split("<td").skip(1).map(|cell| {
            let cell = &cell[cell.find('>').expect("a tag") + 1..];
            cell[..cell.find("</td>").expect("the end of a cell")].to_owned()
        });
        cells.collect()
    };
    body.split("<tr>").skip(1).map(cells).collect()
}

#[test]
fn figures_of_the_page_are_those_of_the_json_document() {
    let (page, json) = git();
    let analysis = &json["analyses"][0];
    assert_eq!(&data(&page), analysis);
    let number = |value: &Value| value.as_u64().expect("a number");
    let groups = analysis["waits"]["groups"].as_array().expect("groups");
    let shown = table(&page, "groups");
    assert_eq!(shown.len(), groups.len());
    for (row, group) in shown.iter().zip(groups) {
        assert_eq!(row[2], units::nanoseconds(number(&group["total_ns"])));
        assert_eq!(row[3], units::count(number(&group["count"])));
        assert_eq!(row[4], units::nanoseconds(number(&group["longest_ns"])));
    }
    for (row, peak) in
        table(&page, "peak").iter().zip(analysis["resident"]["peak"]["mappings"].as_array().unwrap())
    {
        assert_eq!(row[1], units::bytes(number(&peak["bytes"])));
    }
    for (row, kind) in table(&page, "kinds").iter().zip(json["recordings"][0]["kinds"].as_array().unwrap()) {
        assert_eq!(row[0], kind["name"].as_str().unwrap());
        assert_eq!(row[1], units::count(number(&kind["count"])));
        let linux = kind["linux_ns"].as_u64().map_or_else(|| "-".to_owned(), units::nanoseconds);
        assert_eq!(row[2], linux);
    }
    let kinds = table(&page, "fault-kinds");
    let counts = ["first_touch", "copy_on_write", "file", "major", "spurious", "refused"];
    assert_eq!(kinds.len(), counts.len());
    for (row, kind) in kinds.iter().zip(counts) {
        assert_eq!(row[1], units::count(number(&analysis["faults"]["counts"][kind])), "{kind}");
    }
}

/// Returns waits of three tasks for a fork.
fn some_waits() -> Waits {
    let sum = Sum { count: 3, total_ns: 81_000, longest_ns: 40_000 };
    let group = Group {
        process: 1,
        command: "server".to_owned(),
        waiter: "mmap".to_owned(),
        waiter_tasks: vec![2, 3, 4],
        holder: "fork".to_owned(),
        holder_tasks: vec![1],
        sum,
    };
    let holder = Holder { line: 7, task: 1, operation: "fork".to_owned(), from_ns: 5, ns: 41_000 };
    let waiters = [("mmap".to_owned(), 3)].into();
    let convoy = Convoy { process: 1, command: "server".to_owned(), holder, waiters, sum };
    Waits { all: sum, groups: vec![group], convoys: vec![convoy], ..Waits::default() }
}

#[test]
fn waits_of_the_replay_are_those_of_the_json_document() {
    let source = Source::from(Path::new(GIT));
    let usual = replay(&source, &Options { cpus: 2, ..Options::default() }, &()).expect("a recording");
    let design = Design::from(freehold::space::Locking::ALL[0]);
    let other = Outcome { design, waits: Waits::default(), ..usual.clone() };
    let outcomes = [other, Outcome { waits: some_waits(), ..usual }];
    let (page, json) = page_and_json_of(&source, &outcomes);
    // The page is about the default design, and has a row for each design.
    let sentence = "In server (1), mmap of 3 tasks waited 81 us for fork of task 1: 3 times, longest 40 us.";
    assert!(page.contains(sentence), "{sentence}");
    let convoy = "fork of task 1 (line 7) held the lock for 41 us; 3 mmap waited behind it, 81 us in all";
    assert!(page.contains(convoy), "{convoy}");
    let number = |value: &Value| value.as_u64().expect("a number");
    let group = &json["recordings"][1]["waits"]["groups"][0];
    let row = &table(&page, "replay-groups")[0];
    assert_eq!((&row[0][..], &row[1][..]), ("mmap of 3 tasks", "fork of task 1"));
    assert_eq!(row[2], units::nanoseconds(number(&group["total_ns"])));
    assert_eq!(row[3], units::count(number(&group["count"])));
    assert_eq!(row[4], units::nanoseconds(number(&group["longest_ns"])));
    let rows = table(&page, "designs");
    assert_eq!(rows.len(), 2);
    for (row, recording) in rows.iter().zip(json["recordings"].as_array().expect("recordings")) {
        let all = &recording["waits"]["all"];
        assert_eq!(row[1], units::count(number(&all["count"])));
        assert_eq!(row[2], units::nanoseconds(number(&all["total_ns"])));
        assert_eq!(row[3], units::nanoseconds(number(&all["longest_ns"])));
    }
    assert_eq!((&rows[0][4][..], &rows[1][4][..]), ("-", "mmap for fork: 81 us"));
}

#[test]
fn simulated_replays_fill_the_last_section() {
    let point = |cpus, ns| Point { cpus, operations: 1_000, ns, waits: 7, waited_ns: 3_000, transfers: 21 };
    let curve = |locking, last| Curve { locking, points: vec![point(2, 1_000_000), point(64, last)] };
    let [before, .., usual] = WhatIf::designs();
    let what_if = WhatIf {
        machine: "64 processors".to_owned(),
        curves: vec![curve(before, 2_000_000), curve(usual, 100_000)],
        hottest: vec![HotLine { field: "Vma.count".to_owned(), transfers: 12, lost_ns: 5_000 }],
    };
    let source = Source::from(Path::new(GIT));
    let outcome = replay(&source, &Options::default(), &()).expect("a recording");
    let page = html(&source, &[outcome], Some(&what_if)).expect("a page");
    assert!(page.contains(
        "On 64 CPUs of a simulated machine (64 processors), Freehold&#39;s default did 10,000,000 calls and \
         faults per second, 20.0 times as many as locking of Linux before 4.20."
    ));
    let rows = table(&page, "what-if");
    assert_eq!(rows.len(), 4);
    assert_eq!(rows[1], ["locking of Linux before 4.20", "64", "2 ms", "500,000", "7", "3 us", "21"]);
    assert_eq!(table(&page, "hottest"), [["Vma.count", "12", "5 us"]]);
    assert_eq!(page.matches("<path class=\"curve c").count(), 2);
    assert!(!page.contains("cargo xtask simulate replay"), "the plain page's hint");
    let (plain, _) = git();
    assert!(plain.contains("cargo xtask simulate replay") && plain.contains("--report page.html"));
}

#[test]
fn page_has_its_sections_and_is_self_contained() {
    let (page, _) = git();
    for id in ["summary", "waits", "life", "resident", "faults", "whatif"] {
        assert!(page.contains(&format!("<section id=\"{id}\">")), "{id}");
    }
    // A sentence at the beginning of each section says what was found.
    assert_eq!(page.matches("<p class=\"found").count(), 6);
    let linked = page.replace("http://www.w3.org/2000/svg", "");
    for outside in ["http://", "https://", "src=", "@import", "url(//"] {
        assert!(!linked.contains(outside), "{outside}");
    }
    assert!(page.len() < 5 << 20, "{} bytes", page.len());
}

#[test]
fn names_cannot_break_the_page() {
    let folder = tempfile::tempdir().expect("a folder");
    let trace = folder.path().join("bad.trace");
    let name = "</script><script>alert(1)</script>&<b>";
    let snap = format!(
        "# fhsnap 1 {name}\n@ 0 exec 1 0 0 1 {name} | /bin/x | \n400000-404000 r-xp 0 /bin/{name}\n\
         7ffffff00000-7ffffff10000 rw-p 0 [stack]\n"
    );
    let events = format!(
        "# fhtrace 3 {name}\n0 0 1 E 0 x1\n# file 1 4096 /tmp/{name}\n\
         1000 0 1 mmap 0 1000 3 2 3 0 = 7f0000000000 f1 x1\n2000 0 1 F 7f0000000000 6 x1\n3000 0 1 X g\n"
    );
    fs::write(folder.path().join("bad.snap"), snap).expect("a file");
    fs::write(&trace, events).expect("a file");
    let (page, json) = page_and_json(&trace);
    assert_eq!(data(&page), json["analyses"][0]);
    assert!(!page.contains("<script>alert"), "{page}");
    assert!(!page.contains("<b>"));
}

#[test]
fn page_of_strace_output_names_unknown_facts() {
    let folder = tempfile::tempdir().expect("a folder");
    let path = folder.path().join("ls.strace");
    let line = "7 1700000000.000001 mmap(NULL, 4096, PROT_READ, MAP_PRIVATE|MAP_ANONYMOUS, -1, 0) = 0x7f0000000000 <0.000010>\n";
    fs::write(&path, line).expect("a file");
    let (page, json) = page_and_json(&path);
    for key in ["waits", "resident", "faults"] {
        assert_eq!(json["analyses"][0][key], Value::Null, "{key}");
    }
    assert!(page.contains("The recording has no times of locks"));
    assert!(page.contains("strace output has no page faults"));
}
