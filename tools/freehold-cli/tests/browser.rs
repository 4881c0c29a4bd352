//! Opens the pages of `freehold replay --report` and `freehold reproduce --report` in headless Chromium, in a
//! narrow and in a wide window.
//!
//! Scripts that the test adds to a copy of a page use it like a person: they zoom, point at a chart, a wait
//! and a mapping, type into a filter, and unfold results. They note errors and requests, and pass their
//! findings and an outline of the page to the document around it, which `chromium --dump-dom` prints. An
//! outline lists the visible blocks with their edges; `browser/snapshots` has the accepted ones (crate
//! insta). After an intended change of a page, accept its outlines with `cargo insta review`. Without
//! Chromium the tests print why they are skipped. The pages are made with one CPU, so that their blocks are
//! always the same.

use assert_cmd::Command;
use std::fs;
use std::process;
use tempfile::TempDir;

/// Names of the browser.
const BROWSERS: [&str; 2] = ["chromium", "chromium-browser"];

/// Notes errors from the beginning. Stands before all other scripts.
const BEFORE: &str = include_str!("browser/before.html");

/// Passes the failures and the outline to the frame. Stands after all other scripts.
const AFTER: &str = include_str!("browser/after.html");

/// Shows the page in a frame, because a window of the browser has a smallest width. Writes what the page
/// passes.
const FRAME: &str = include_str!("browser/frame.html");

/// Returns the name of an installed browser.
fn browser() -> Option<&'static str> {
    let runs = |name: &&str| {
        process::Command::new(name).arg("--version").output().is_ok_and(|run| run.status.success())
    };
    BROWSERS.into_iter().find(runs)
}

/// Runs the command with one CPU. Returns the page that it writes into the folder.
fn page(folder: &TempDir, arguments: &[&str]) -> String {
    let page = folder.path().join("page.html");
    let mut command = Command::new(env!("CARGO_BIN_EXE_freehold"));
    command.args(arguments).args(["--quiet", "--cpus", "1", "--report"]).arg(&page).assert().success();
    fs::read_to_string(page).expect("the page")
}

/// Shows `page.html` of the folder in a frame of this width. Returns the document of the frame.
fn document(browser: &str, folder: &TempDir, width: u32) -> String {
    let frame = folder.path().join("frame.html");
    fs::write(&frame, FRAME.replace("WIDTH", &width.to_string())).expect("the frame");
    let run = process::Command::new(browser)
        .args([
            "--headless",
            "--no-sandbox",
            "--disable-gpu",
            "--hide-scrollbars",
            "--dump-dom",
            "--virtual-time-budget=5000",
        ])
        .arg("--window-size=1500,1100")
        .arg(format!("--user-data-dir={}", folder.path().join(format!("profile-{width}")).display()))
        .arg(format!("file://{}", frame.display()))
        .output()
        .expect("the browser runs");
    let document = String::from_utf8_lossy(&run.stdout).into_owned();
    assert!(document.contains("<pre id=\"result\">"), "{width}: {}", String::from_utf8_lossy(&run.stderr));
    document
}

/// Returns the text that a script has written under this name.
fn written<'d>(document: &'d str, id: &str) -> &'d str {
    let from = document.rsplit_once(&format!("<pre id=\"{id}\">")).expect("written").1;
    from.split_once("</pre>").expect("an end").0
}

/// Opens a page in both widths with a script that uses it, and compares the outlines with the accepted ones.
fn opens_without_failures(name: &str, page: &str, script: &str) {
    let Some(browser) = browser() else {
        println!("skipped: no Chromium is installed (Debian package chromium)");
        return;
    };
    let folder = tempfile::tempdir().expect("a folder");
    let mut text = page.replacen("<style>", &format!("{BEFORE}<style>"), 1);
    if !text.contains("script-src") {
        // The page has no scripts of its own, and allows none.
        text = text.replacen("default-src 'none';", "default-src 'none'; script-src 'unsafe-inline';", 1);
    }
    let end = text.rfind("</body>").expect("the end of the page");
    fs::write(folder.path().join("page.html"), format!("{}{script}{AFTER}{}", &text[..end], &text[end..]))
        .expect("the page");
    for width in [420, 1_400] {
        let document = document(browser, &folder, width);
        assert_eq!(written(&document, "result"), "no failures", "{name}, {width} px wide");
        insta::with_settings!({ snapshot_path => "browser/snapshots", prepend_module_to_snapshot => false }, {
            insta::assert_snapshot!(format!("{name}-{width}"), written(&document, "outline"));
        });
    }
}

#[test]
fn page_of_a_replay_works_in_a_browser() {
    let folder = tempfile::tempdir().expect("a folder");
    let recording = concat!(env!("CARGO_MANIFEST_DIR"), "/../../recordings/git.trace.zst");
    let page = page(&folder, &["replay", recording]);
    opens_without_failures("replay", &page, include_str!("browser/replay.html"));
}

#[test]
fn page_of_experiments_works_in_a_browser() {
    let folder = tempfile::tempdir().expect("a folder");
    let page = page(&folder, &["reproduce", "mmap-churn", "--quick", "--turns", "1", "--no-host"]);
    opens_without_failures("reproduce", &page, include_str!("browser/reproduce.html"));
}
