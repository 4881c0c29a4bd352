//! Tests the page: it has all sections, its figures are those of the JSON document, and nothing in it can
//! break out of its place or reach the network.

use super::*;
use crate::{Options, replay, report};
use serde_json::Value;
use std::fs;
use std::path::Path;

/// Returns the page about a recording, and its JSON document.
fn page_and_json(path: &Path) -> (String, Value) {
    let source = Source::from(path);
    let outcomes = [replay(&source, &Options { cpus: 2, ..Options::default() }, &()).expect("a recording")];
    let page = html(&source, &outcomes).expect("a page");
    let analysis = crate::analysis::of_recording(&source).expect("a recording");
    let json = report::json(&outcomes, &[analysis], &[]);
    (page, serde_json::from_str(&json).expect("JSON"))
}

fn git() -> (String, Value) {
    page_and_json(Path::new(concat!(env!("CARGO_MANIFEST_DIR"), "/../../recordings/git.trace.zst")))
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
