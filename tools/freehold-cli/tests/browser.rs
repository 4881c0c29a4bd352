//! Opens the page of `freehold replay --report` in headless Chromium, in a narrow and in a wide window.
//!
//! A script that the test appends to the page uses it like a person: it zooms, points at a chart, a wait and
//! a mapping, and types into a filter. The script notes errors and requests, and writes its findings into the
//! document, which `chromium --dump-dom` prints. Without Chromium the test prints why it is skipped.

use assert_cmd::Command;
use std::fs;
use std::path::Path;
use std::process;

/// Names of the browser.
const BROWSERS: [&str; 2] = ["chromium", "chromium-browser"];

/// Notes errors from the beginning. Stands before all other scripts.
const BEFORE: &str = include_str!("browser/before.html");

/// Uses the page, and writes the failures into the element `result`.
const AFTER: &str = include_str!("browser/after.html");

/// Returns the name of an installed browser.
fn browser() -> Option<&'static str> {
    let runs = |name: &&str| {
        process::Command::new(name).arg("--version").output().is_ok_and(|run| run.status.success())
    };
    BROWSERS.into_iter().find(runs)
}

/// Returns the findings of the script in a window of this width.
fn findings(browser: &str, page: &Path, profile: &Path, width: u32) -> String {
    let run = process::Command::new(browser)
        .args(["--headless", "--no-sandbox", "--disable-gpu", "--dump-dom", "--virtual-time-budget=5000"])
        .arg(format!("--window-size={width},1000"))
        .arg(format!("--user-data-dir={}", profile.display()))
        .arg(format!("file://{}", page.display()))
        .output()
        .expect("the browser runs");
    let document = String::from_utf8_lossy(&run.stdout);
    let found = document.rsplit_once("<pre id=\"result\">").and_then(|(_, rest)| rest.split_once("</pre>"));
    let errors = String::from_utf8_lossy(&run.stderr);
    found.unwrap_or_else(|| panic!("the script wrote nothing at {width}: {errors}")).0.to_owned()
}

#[test]
fn page_works_in_a_browser() {
    let folder = tempfile::tempdir().expect("a folder");
    let page = folder.path().join("git.html");
    let recording = concat!(env!("CARGO_MANIFEST_DIR"), "/../../recordings/git.trace.zst");
    let mut replay = Command::new(env!("CARGO_BIN_EXE_freehold"));
    replay.args(["replay", "--quiet", "--report"]).arg(&page).arg(recording).assert().success();
    let text = fs::read_to_string(&page).expect("the page");
    let Some(browser) = browser() else {
        println!("skipped: no Chromium is installed (Debian package chromium)");
        return;
    };
    let text = text.replacen("<style>", &format!("{BEFORE}<style>"), 1);
    let end = text.rfind("</body>").expect("the end of the page");
    fs::write(&page, format!("{}{AFTER}{}", &text[..end], &text[end..])).expect("the page");
    for width in [420, 1_400] {
        let found = findings(browser, &page, &folder.path().join(format!("profile-{width}")), width);
        assert_eq!(found, "no failures", "{width} px wide");
    }
}
