//! Reads the repository and checks the rules that a program can check. `cargo xtask plain` runs these tests.
//!
//! | subject | rules |
//! | --- | --- |
//! | sources | length of files, unsafe code, dependencies on a checker, layers of the engine, files without a module, text of one machine |
//! | prose | width of lines, words to avoid, beginnings of doc comments, names in backticks, names of tests |
//! | documents | hazards and their tests, order of locks, soundness, length of pages, links, examples |
//! | lists that must match | mutations and their table, test modules, budgets of suites, words for the effort of tests |
//!
//! Each test collects all violations and prints them at the end (`assert_none`). The tests search texts and
//! do not parse Rust, so a rule may reject a line that is correct. An exception with its reason is then added
//! to the list above the test. A new rule is a test with a doc comment that states the rule.

use std::fs;
use std::path::{Path, PathBuf};

use xtask::{
    WINGS,
    mutation::Mutation,
    package_folder,
    suite::{self, Effort, every},
    table,
};

/// Maximum length of a file of a crate's sources, in lines.
const MAX_LINES: usize = 600;

/// The only sources that may depend on the checker of the build (loom or shuttle): the atomics facade and the
/// files that depend on it, the hosts of tests, page-table formats, and the platform. Test modules may also
/// depend on the checker.
const MAY_ASK_FOR_CHECKERS: &[&str] = &[
    "engine/freehold-sync/src/atomic.rs",
    "engine/freehold-sync/src/lib.rs",
    "engine/freehold-sync/src/testing/",
    "engine/freehold-pagetable/src/format/",
    "lab/freehold-machine/src/lib.rs",
    "lab/freehold-machine/src/host_std/",
    "lab/freehold-machine/src/host_shuttle/",
];

/// Texts that belong to one machine or one mirror. Each text is split into parts here, so that this file does
/// not contain the text.
const FOREIGN: &[&[&str]] = &[
    &["/ho", "me/"],
    &["/ro", "ot/"],
    &["/Us", "ers/"],
    &["index.cra", "tes.io"],
    &["static.cra", "tes.io"],
    &["registry", "+http"],
    &["/wo", "rk/"],
];

fn root() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).parent().expect("xtask is in the repository").to_path_buf()
}

/// A file of the repository: its path from the root, with slashes, and its text.
struct Source {
    path: String,
    text: String,
}

/// Returns all text files below `folder`, except build directories.
fn sources(folder: &str) -> Vec<Source> {
    let mut found = Vec::new();
    let mut folders = vec![root().join(folder)];
    while let Some(folder) = folders.pop() {
        let entries = fs::read_dir(&folder).unwrap_or_else(|error| panic!("{}: {error}", folder.display()));
        for entry in entries {
            let path = entry.expect("a readable folder").path();
            let name = path.file_name().unwrap_or_default().to_string_lossy().into_owned();
            // In a second working tree, `.git` is a file that names the first working tree.
            if name == ".git" {
                continue;
            }
            if path.is_dir() {
                if !(name.starts_with("target") || name == "shared") {
                    folders.push(path);
                }
            } else if let Ok(text) = fs::read_to_string(&path) {
                let path =
                    path.strip_prefix(root()).expect("below the root").to_string_lossy().replace('\\', "/");
                found.push(Source { path, text });
            }
        }
    }
    found.sort_by(|a, b| a.path.cmp(&b.path));
    found
}

fn rust(folder: &str) -> impl Iterator<Item = Source> {
    sources(folder).into_iter().filter(|source| source.path.ends_with(".rs"))
}

/// Returns the Rust files of the crates.
fn crate_files() -> impl Iterator<Item = Source> {
    WINGS.into_iter().flat_map(rust)
}

/// Returns the Rust files of the crates' sources, without their tests, benches and examples.
fn crate_sources() -> impl Iterator<Item = Source> {
    crate_files().filter(|source| source.path.split('/').nth(2) == Some("src"))
}

#[track_caller]
fn assert_none(what: &str, found: Vec<String>) {
    assert!(found.is_empty(), "{what}:\n  {}", found.join("\n  "));
}

/// Returns the code of a line, without the comment.
fn code(line: &str) -> &str {
    line.split("//").next().unwrap_or_default()
}

#[test]
fn source_files_have_at_most_600_lines() {
    let long = crate_sources()
        .map(|source| (source.text.lines().count(), source.path))
        .filter(|(lines, _)| *lines > MAX_LINES)
        .map(|(lines, path)| format!("{path}: {lines} lines"));
    assert_none("files that are too long", long.collect());
}

#[test]
fn only_listed_files_depend_on_the_checker() {
    let mut found = Vec::new();
    for source in crate_sources() {
        if MAY_ASK_FOR_CHECKERS.iter().any(|allowed| source.path.starts_with(allowed)) {
            continue;
        }
        for (number, line) in source.text.lines().enumerate() {
            let code = code(line);
            if code.contains("cfg")
                && !code.contains("(test")
                && (code.contains("loom") || code.contains("shuttle"))
            {
                found.push(format!("{}:{}: {}", source.path, number + 1, line.trim()));
            }
        }
    }
    assert_none("depends on a checker outside the facade", found);
}

/// Checks that a file with unsafe code announces it, at the top of the file, at the item, or in its parent
/// module.
#[test]
fn unsafe_code_is_announced() {
    let words = ["unsafe {", "unsafe impl", "unsafe fn", "unsafe trait"];
    let announces = |text: &str| {
        let text: String = text.split_whitespace().collect();
        text.contains("expect(unsafe_code,reason=")
    };
    let parent_announces = |path: &str| {
        let parent = root().join(path).with_file_name("mod.rs");
        fs::read_to_string(parent).is_ok_and(|text| text.contains("#![expect(") && announces(&text))
    };
    let found = crate_sources()
        .chain(rust("examples"))
        .filter(|source| {
            source.text.lines().map(code).any(|line| words.iter().any(|word| line.contains(word)))
        })
        .filter(|source| !announces(&source.text) && !parent_announces(&source.path))
        .map(|source| source.path);
    assert_none(
        "has unsafe code and does not announce it with `expect(unsafe_code, reason = ...)`",
        found.collect(),
    );
}

#[test]
fn every_crate_denies_unsafe_code() {
    let mut found = Vec::new();
    for source in crate_sources().chain(rust("examples")) {
        let top = source.path.ends_with("src/lib.rs") || source.path.ends_with("src/main.rs");
        if top
            && !source.text.contains("#![deny(unsafe_code)]")
            && !source.text.contains("#![forbid(unsafe_code)]")
        {
            found.push(source.path);
        }
    }
    assert_none("does not deny unsafe code", found);
}

#[test]
fn no_file_contains_text_of_one_machine() {
    let mut found = Vec::new();
    for source in sources(".") {
        // Cargo writes lock files, which name the public registry on every machine.
        if source.path.ends_with("Cargo.lock") {
            continue;
        }
        for text in FOREIGN.iter().map(|parts| parts.concat()) {
            if let Some(at) = source.text.find(&text) {
                let line = source.text[..at].lines().count().max(1);
                found.push(format!("{}:{line}: {text}", source.path));
            }
        }
    }
    assert_none("belongs to one machine", found);
}

/// Returns the entries of docs/reference/hazards.md: number and text.
fn hazards() -> Vec<(u32, String)> {
    let text =
        fs::read_to_string(root().join("docs/reference/hazards.md")).expect("docs/reference/hazards.md");
    let entries = text.split("\n- **C-").skip(1).map(|entry| {
        let digits = entry.split(|letter: char| !letter.is_ascii_digit()).next().unwrap_or_default();
        (digits.parse().expect("a number"), entry.split("\n## ").next().unwrap_or_default().to_owned())
    });
    entries.collect()
}

#[test]
fn hazards_have_tests() {
    let functions: std::collections::HashSet<String> = crate_files()
        .flat_map(|source| {
            let names = source.text.split("fn ").skip(1).map(|rest| {
                rest.split(|letter: char| !letter.is_alphanumeric() && letter != '_')
                    .next()
                    .unwrap_or_default()
            });
            names.map(str::to_owned).collect::<Vec<_>>()
        })
        .collect();
    let mut wrong = Vec::new();
    for (number, entry) in hazards() {
        let tests = entry.split("Tests:").nth(1).unwrap_or_default();
        let named: Vec<&str> = tests.split('`').skip(1).step_by(2).collect();
        if named.is_empty() && !entry.contains("Cannot happen here:") {
            wrong.push(format!("C-{number}: no test, and no reason"));
        }
        let missing = named.iter().filter(|name| !functions.contains(**name));
        wrong.extend(missing.map(|name| format!("C-{number}: there is no `{name}`")));
    }
    assert_none("docs/reference/hazards.md", wrong);
}

#[test]
fn cited_hazards_are_listed() {
    let listed = hazards();
    let mut found = Vec::new();
    for source in sources(".") {
        for number in cited(&source.text) {
            if !listed.iter().any(|(known, _)| *known == number) {
                found.push(format!("{}: C-{number}", source.path));
            }
        }
    }
    found.sort();
    found.dedup();
    assert_none("hazards that docs/reference/hazards.md does not list", found);
}

/// Returns the numbers of the hazards that a text cites: 26 for `C-26` and for `c26_`.
fn cited(text: &str) -> Vec<u32> {
    let boundary = |at: usize| at == 0 || !text.as_bytes()[at - 1].is_ascii_alphanumeric();
    let number = |at: usize, ends: &str| {
        let rest = &text[at..];
        let digits: String = rest.chars().take_while(char::is_ascii_digit).collect();
        let ended = ends.is_empty() || rest[digits.len()..].starts_with(ends);
        digits.parse().ok().filter(|_| ended)
    };
    let upper = text.match_indices("C-").filter(|(at, _)| boundary(*at));
    let lower = text.match_indices(['c']).filter(|(at, _)| boundary(*at));
    upper
        .filter_map(|(at, _)| number(at + 2, ""))
        .chain(lower.filter_map(|(at, _)| number(at + 1, "_")))
        .collect()
}

/// Checks that the README's Rust example equals the engine's, which is compiled and run as a doc test.
#[test]
fn readme_shows_the_example_of_the_engine() {
    let front = fs::read_to_string(root().join("engine/freehold/src/lib.rs")).expect("the crate's lib.rs");
    let lines = front
        .lines()
        .filter_map(|line| line.strip_prefix("//!"))
        .map(|line| line.strip_prefix(' ').unwrap_or(line));
    let example: Vec<&str> =
        lines.skip_while(|line| *line != "```").skip(1).take_while(|line| *line != "```").collect();
    let shown: Vec<&str> = example.into_iter().filter(|line| !line.starts_with("# ")).collect();
    let shown = shown.join("\n");
    assert!(shown.contains("Engine::new"), "lib.rs has no example");
    let readme = fs::read_to_string(root().join("README.md")).expect("a README");
    let printed =
        readme.split("```rust\n").nth(1).and_then(|rest| rest.split("\n```").next()).expect("an example");
    assert_eq!(
        printed.trim_end(),
        shown.trim_end(),
        "README.md and engine/freehold/src/lib.rs show different examples"
    );
}

/// Checks that docs/guide/locking.md lists the ranks in the order of the code, and marks the first spin lock.
#[test]
fn locking_document_lists_the_ranks_in_order() {
    let code = fs::read_to_string(root().join("engine/freehold-sync/src/rank.rs")).expect("the ranks");
    let body =
        code.split("pub enum Rank {").nth(1).and_then(|rest| rest.split("\n}").next()).expect("the enum");
    let ranks: Vec<&str> = body
        .lines()
        .map(str::trim)
        .filter_map(|line| line.strip_suffix(','))
        .filter(|line| !line.starts_with('/'))
        .collect();
    assert!(ranks.len() > 10, "the ranks were not found");
    let spins = code.split("self as u8 >= Rank::").nth(1).and_then(|rest| rest.split(' ').next());
    let document = fs::read_to_string(root().join("docs/guide/locking.md")).expect("the document");
    let order = document.split("\n## 1. The order\n").nth(1).and_then(|rest| rest.split("```").nth(1));
    let lines =
        order.expect("the order").lines().skip(1).map(str::trim_start).filter(|line| !line.is_empty());
    let (listed, marks): (Vec<&str>, Vec<&str>) = lines.partition(|line| !line.starts_with("--"));
    let listed: Vec<&str> = listed.iter().filter_map(|line| line.split(' ').next()).collect();
    assert_eq!(listed, ranks, "docs/guide/locking.md and rank.rs differ");
    assert!(marks.len() == 1 && marks[0].contains("spin locks"), "one line marks the first spin lock");
    let first_spin = order.and_then(|order| order.split(marks[0]).nth(1)).map(str::trim_start);
    assert_eq!(first_spin.and_then(|rest| rest.split(' ').next()), spins, "the first spin lock");
}

/// Documents that describe the engine with names of its code.
const ABOUT_CODE: &[&str] = &[
    "guide/five-steps.md",
    "guide/locking.md",
    "guide/faults.md",
    "guide/files.md",
    "guide/write-back.md",
    "guide/exclusion.md",
    "guide/munmap.md",
    "guide/ranges.md",
    "guide/page-tables.md",
    "guide/hugetlb.md",
    "guide/reverse-map-and-pins.md",
    "guide/platform.md",
    "guide/tour.md",
    "reference/operations.md",
    "reference/differences-from-linux.md",
    "reference/words.md",
];

/// Names in these documents that are not in the code, with the reason.
const NOT_IN_THE_CODE: &[(&str, &str)] =
    &[("/proc/PID/maps", "a file of Linux"), ("page_table_lock", "a lock of Linux")];

/// Maximum length of a document that is to be read, in lines.
const MAX_LINES_TO_READ: usize = 200;

/// Maximum length of a line of prose, in characters.
const MAX_COLUMNS: usize = 110;

/// Returns the lines of a document without its fenced blocks, with their numbers from 1.
fn prose(text: &str) -> impl Iterator<Item = (usize, &str)> {
    let mut fenced = false;
    text.lines().enumerate().filter_map(move |(number, line)| {
        let fence = line.trim_start().starts_with("```");
        fenced ^= fence;
        (!fenced && !fence).then_some((number + 1, line))
    })
}

fn words(text: &str) -> impl Iterator<Item = &str> {
    let inside = |letter: char| letter.is_alphanumeric() || letter == '_';
    text.split(move |letter| !inside(letter)).filter(|word| !word.is_empty())
}

/// Checks that names in backticks are words of the code, and that paths and crates in backticks exist.
#[test]
fn names_in_documents_exist_in_the_code() {
    let sources: Vec<Source> = crate_files().collect();
    let known: std::collections::HashSet<&str> =
        sources.iter().flat_map(|source| source.text.lines().map(code).flat_map(words)).collect();
    let path_exists = |name: &str| {
        let name = name.trim_end_matches('/');
        let ends = |path: &str| {
            path.strip_suffix(name).is_some_and(|front| front.is_empty() || front.ends_with('/'))
        };
        let within = format!("/{name}/");
        root().join(name).exists()
            || sources.iter().any(|source| ends(&source.path) || source.path.contains(&within))
    };
    let mut wrong = Vec::new();
    for document in ABOUT_CODE {
        let text = fs::read_to_string(root().join("docs").join(document)).expect("the document");
        for (number, line) in prose(&text) {
            for name in line.split('`').skip(1).step_by(2) {
                if name.starts_with("cargo ") || NOT_IN_THE_CODE.iter().any(|(other, _)| *other == name) {
                    continue;
                }
                let there = if name.contains('/') || name.ends_with(".rs") {
                    path_exists(name)
                } else if name.contains('-') {
                    package_folder(&root(), name).exists()
                } else {
                    words(name).all(|word| known.contains(word))
                };
                if !there {
                    wrong.push(format!("docs/{document}:{number}: `{name}`"));
                }
            }
        }
    }
    assert_none("names that are not in the code", wrong);
}

#[test]
fn documents_have_at_most_200_lines() {
    let mut read: Vec<String> = ABOUT_CODE.iter().map(|document| format!("docs/{document}")).collect();
    read.extend(sources("docs/guide").into_iter().map(|source| source.path));
    read.extend(["README.md", "ARCHITECTURE.md", "CONTRIBUTING.md"].map(str::to_owned));
    let long = read.iter().filter(|path| path.ends_with(".md")).filter_map(|path| {
        let lines = fs::read_to_string(root().join(path)).expect("the document").lines().count();
        (lines > MAX_LINES_TO_READ).then(|| format!("{path}: {lines} lines"))
    });
    assert_none("documents that are too long", long.collect());
}

/// Checks the length of lines in documents. Tables and code are exempt, and so are files that `freehold
/// reproduce` writes.
#[test]
fn documents_have_at_most_110_columns() {
    let written = ["docs/results/measured.md", "docs/results/simulated.md"];
    let documents = sources("docs").into_iter().filter(|source| !written.contains(&source.path.as_str()));
    let at_the_top = ["README.md", "ARCHITECTURE.md", "CONTRIBUTING.md"].map(|name| Source {
        path: name.to_owned(),
        text: fs::read_to_string(root().join(name)).expect("the document"),
    });
    let mut wide = Vec::new();
    for source in documents.chain(at_the_top).filter(|source| source.path.ends_with(".md")) {
        for (number, line) in prose(&source.text) {
            let free = line.starts_with('|') || line.starts_with("    ");
            let columns = line.chars().count();
            if !free && columns > MAX_COLUMNS {
                wide.push(format!("{}:{number}: {columns} columns", source.path));
            }
        }
    }
    assert_none("prose wider than 110 columns", wide);
}

/// Checks the length of comment lines. Tables, drawings and examples are exempt.
#[test]
fn comments_have_at_most_110_columns() {
    let mut wide = Vec::new();
    for source in crate_sources() {
        let mut drawn = false;
        for (number, line) in (1..).zip(source.text.lines()) {
            let Some(text) = line.trim_start().strip_prefix("//") else {
                drawn = false;
                continue;
            };
            let text = text.trim_start_matches(['/', '!']).trim_start();
            drawn ^= text.starts_with("```");
            let free = drawn || text.starts_with(['|', '#']) || !text.contains(' ');
            let columns = line.chars().count();
            if !free && columns > MAX_COLUMNS {
                wide.push(format!("{}:{number}: {columns} columns", source.path));
            }
        }
    }
    assert_none("comments wider than 110 columns", wide);
}

/// Words that a sentence must not contain. A sentence names the task, thread, caller or CPU instead, or uses
/// an ordinary word.
const AVOIDED: &[&str] = &[
    "nobody",
    "somebody",
    "anybody",
    "whoever",
    "whom",
    "whomever",
    "he",
    "him",
    "his",
    "anew",
    "likewise",
    "hitherto",
    "therein",
    "whereupon",
];

/// Words with which a paragraph of a doc comment must not begin. A paragraph begins with a verb, or with the
/// noun that it describes.
const AVOIDED_STARTS: &[&str] = &[
    "What ",
    "Who ",
    "Whoever ",
    "As ",
    "The same ",
    "Same ",
    "Of ",
    "Whether ",
    "So ",
    "Likewise ",
    "Else ",
    "Where ",
];

/// Returns the comments of a Rust source, or the text of a document: lines with their numbers from 1. An
/// empty line separates two paragraphs.
fn written(source: &Source) -> Vec<(usize, &str)> {
    if source.path.ends_with(".md") {
        return prose(&source.text).collect();
    }
    let comment = |line| {
        let text =
            str::trim_start(line).strip_prefix("//").or_else(|| line.split_once(" // ").map(|parts| parts.1));
        text.unwrap_or_default().trim_start_matches(['/', '!'])
    };
    (1..).zip(source.text.lines().map(comment)).collect()
}

/// Returns the sources with prose: all Rust sources, and the documents that people write.
fn prose_sources() -> impl Iterator<Item = Source> {
    let by_people =
        |source: &Source| source.path.ends_with(".md") && !source.path.starts_with("docs/results/");
    sources(".").into_iter().filter(move |source| source.path.ends_with(".rs") || by_people(source))
}

/// Checks that sentences name the actor, and use ordinary words.
#[test]
fn sentences_contain_no_avoided_word() {
    let mut found = Vec::new();
    for source in prose_sources() {
        for (number, line) in written(&source) {
            for raw in line.split_whitespace().filter(|raw| !raw.contains('`')) {
                let word = raw.trim_matches(|letter: char| !letter.is_alphanumeric()).to_lowercase();
                if AVOIDED.contains(&&*word) {
                    found.push(format!("{}:{number}: {word}", source.path));
                }
            }
        }
    }
    assert_none("words to avoid", found);
}

/// Checks that each paragraph of a doc comment begins with a verb or with the noun that it describes.
#[test]
fn doc_comments_begin_with_a_verb_or_noun() {
    let mut found = Vec::new();
    for source in prose_sources().filter(|source| source.path.ends_with(".rs")) {
        let (mut first, mut fenced) = (true, false);
        for (number, line) in (1..).zip(source.text.lines()) {
            let line = line.trim_start();
            let Some(text) = line.strip_prefix("///").or_else(|| line.strip_prefix("//!")) else {
                (first, fenced) = (true, false);
                continue;
            };
            let text = text.trim_start();
            fenced ^= text.starts_with("```");
            if first && !fenced && AVOIDED_STARTS.iter().any(|start| text.starts_with(start)) {
                found.push(format!("{}:{number}: {text}", source.path));
            }
            first = text.is_empty() || text.starts_with(['#', '|', '`']);
        }
    }
    assert_none("doc comments that begin otherwise", found);
}

/// Names in comments that belong to Linux or to its interfaces, and to no code here.
const NAMES_OF_LINUX: &[&str] = &[
    "MAY",
    "PIDFD_SELF",
    "PIDFD_SELF_THREAD",
    "PR_THP_DISABLE_EXCEPT_ADVISED",
    "TASK_SIZE_MAX",
    "VM_MAYSHARE",
    "_WRITE",
    "c_iflag",
    "c_lflag",
    "d_type",
    "kstrtoint",
    "newc",
    "pfn_mkwrite",
    "remap_pfn_range",
    "rt_sigaction",
    "rt_sigreturn",
    "si_addr_lsb",
    "sigcontext",
    "st_rdev",
    "tlb_gen",
    "uc_flags",
    "unmap_mapping_range",
    "vm_operations_struct",
    "vm_private_data",
];

/// Checks that names in backticks in comments are words of the code.
#[test]
fn names_in_comments_exist_in_the_code() {
    // This file itself contains names that are not in the code.
    let sources: Vec<Source> =
        sources(".").into_iter().filter(|source| source.path != "xtask/tests/tidy.rs").collect();
    let of_code = |path: &str| [".rs", ".c", ".s", ".toml"].iter().any(|end| path.ends_with(end));
    let known: std::collections::HashSet<&str> = sources
        .iter()
        .filter(|source| of_code(&source.path))
        .flat_map(|source| source.text.lines().map(code).flat_map(words))
        .collect();
    let is_name = |name: &str| {
        name.starts_with(|first: char| first.is_alphabetic() || first == '_')
            && name
                .trim_end_matches("()")
                .chars()
                .all(|letter| letter.is_alphanumeric() || "_:".contains(letter))
    };
    let mut found = Vec::new();
    for source in sources.iter().filter(|source| source.path.ends_with(".rs")) {
        for (number, line) in written(source) {
            for name in line.split('`').skip(1).step_by(2).filter(|name| is_name(name)) {
                if !NAMES_OF_LINUX.contains(&name) && !words(name).all(|word| known.contains(word)) {
                    found.push(format!("{}:{number}: `{name}`", source.path));
                }
            }
        }
    }
    assert_none("names in comments that are not in the code", found);
}

/// Checks that the names of tests state facts, and contain no pronoun in place of a noun.
#[test]
fn test_names_state_facts() {
    let is_avoided = |part: &str| part == "what" || part == "who" || AVOIDED.contains(&part);
    let mut found = Vec::new();
    for source in prose_sources().filter(|source| source.path.ends_with(".rs")) {
        let mut lines = (1..).zip(source.text.lines());
        while lines.by_ref().any(|(_, line)| line.trim() == "#[test]") {
            let name =
                lines.by_ref().find_map(|(number, line)| Some((number, line.trim().strip_prefix("fn ")?)));
            let Some((number, rest)) = name else { break };
            let name = rest.split('(').next().unwrap_or_default();
            if name.split('_').any(is_avoided) {
                found.push(format!("{}:{number}: {name}", source.path));
            }
        }
    }
    assert_none("names of tests that state no fact", found);
}

/// Checks that docs/reference/soundness.md names every public module, every unsafe trait, and every unsafe
/// public call of public modules.
#[test]
fn soundness_document_is_complete() {
    /// Modules that are not public.
    const INSIDE: &[&str] = &["nommu/region.rs", "rmap/tree/root.rs", "vma/slab/mod.rs", "vma/owned.rs"];
    let document = fs::read_to_string(root().join("docs/reference/soundness.md")).expect("the document");
    let mut found = Vec::new();
    for source in crate_sources() {
        let ours = ["engine/freehold/src/", "engine/freehold-vmspace/src/"];
        let Some(path) = ours.iter().find_map(|folder| source.path.strip_prefix(folder)) else { continue };
        for line in source.text.lines().map(str::trim_start).filter(|line| line.starts_with("pub ")) {
            let word = |after: &str| {
                let name = line.split(after).nth(1)?;
                name.split(|c: char| !c.is_alphanumeric() && c != '_').next().map(str::to_owned)
            };
            let module = word("pub mod ").filter(|_| path == "lib.rs");
            let call = word("unsafe fn ").filter(|_| !INSIDE.contains(&path));
            for name in [module, word("unsafe trait "), call].into_iter().flatten() {
                if !document.contains(&format!("`{name}`")) && !document.contains(&format!("::{name}")) {
                    found.push(format!("{}: {name}", source.path));
                }
            }
        }
    }
    assert_none("is not in docs/reference/soundness.md", found);
}

/// Checks that the files that documents link to exist.
#[test]
fn links_in_documents_point_to_existing_files() {
    let mut found = Vec::new();
    for source in sources(".").into_iter().filter(|source| source.path.ends_with(".md")) {
        let folder = root().join(&source.path).parent().expect("a file is in a folder").to_path_buf();
        for link in source.text.split("](").skip(1).filter_map(|rest| rest.split(')').next()) {
            let path = link.split('#').next().unwrap_or_default();
            if !path.is_empty() && !path.contains("://") && !folder.join(path).exists() {
                found.push(format!("{}: {link}", source.path));
            }
        }
    }
    assert_none("links to files that do not exist", found);
}

/// Returns the sources of a test program: a package's library, or one of its test targets.
fn sources_of(package: &str, target: &str) -> Vec<Source> {
    let folder = package_folder(&root(), package);
    let tests = if package.ends_with("-tests") { folder.clone() } else { folder.join("tests") };
    let [package, tests] = [&folder, &tests]
        .map(|path| path.strip_prefix(root()).expect("below the root").to_string_lossy().into_owned());
    match target {
        "lib" => rust(&format!("{package}/src")).collect(),
        name if root().join(&tests).join(name).is_dir() => rust(&format!("{tests}/{name}")).collect(),
        name => {
            let path = format!("{tests}/{name}.rs");
            match fs::read_to_string(root().join(&path)) {
                Ok(text) => vec![Source { path, text }],
                // This program contains most of the package's tests, with a module for each file.
                Err(_) => rust(&tests).collect(),
            }
        }
    }
}

/// Checks that each mutation applies to the current sources, and that the test that must fail exists.
#[test]
fn mutations_apply_and_their_tests_exist() {
    let mutations = Mutation::all(&root()).unwrap_or_else(|why| panic!("{why}"));
    let mut found = Vec::new();
    for mutation in &mutations {
        let name = &mutation.name;
        for edit in &mutation.edit {
            let text = fs::read_to_string(root().join(&edit.file)).unwrap_or_default();
            if let Err(why) = edit.apply(&text) {
                found.push(format!("{name}: {why}"));
            }
        }
        let Some(test) = &mutation.caught else { continue };
        let head = format!("fn {}", test.function());
        if !sources_of(&test.package, &test.target).iter().any(|source| source.text.contains(&head)) {
            found.push(format!("{name}: no test {} in {} {}", test.test, test.package, test.target));
        }
    }
    assert_none("mutations that do not apply", found);
}

/// Checks that the table in `xtask/mutants/README.md` is the one that `cargo xtask mutants --table` writes.
#[test]
fn mutation_table_matches_the_files() {
    let document = fs::read_to_string(root().join(table::document())).expect("the document");
    let mutations = Mutation::all(&root()).unwrap_or_else(|why| panic!("{why}"));
    let written = table::put(&document, &table::of(&mutations)).expect("marks for the table");
    assert!(document == written, "{}: run `cargo xtask mutants --table`", table::document().display());
}

/// Checks that docs/reference/testing.md lists, by operation, exactly the modules that contain tests.
#[test]
fn operation_table_matches_the_test_modules() {
    let document = fs::read_to_string(root().join("docs/reference/testing.md")).expect("the document");
    let table = document.split("<!-- operations").nth(1).and_then(|rest| rest.split("<!-- end of").next());
    let rows = table.expect("the table").lines().filter(|line| line.starts_with('|')).skip(2);
    let cells: Vec<Vec<&str>> = rows.map(|row| row.split('|').collect()).collect();
    for (column, program, tools) in [
        (2, "engine/freehold/tests/main.rs", &["support"][..]),
        (3, "lab/freehold-machine/tests/shuttle_engine/main.rs", &["device", "explore", "scene", "thread"]),
    ] {
        let text = fs::read_to_string(root().join(program)).expect("the program");
        let modules = text.lines().filter_map(|line| line.strip_prefix("mod ")?.strip_suffix(';'));
        let modules: Vec<&str> = modules.filter(|name| !tools.contains(name)).collect();
        let named: Vec<&str> =
            cells.iter().flat_map(|row| row[column].split('`').skip(1).step_by(2)).collect();
        let missing =
            modules.iter().filter(|name| !named.contains(name)).map(|name| format!("missing: {name}"));
        let gone =
            named.iter().filter(|name| !modules.contains(name)).map(|name| format!("no module: {name}"));
        assert_none(&format!("docs/reference/testing.md, {program}"), missing.chain(gone).collect());
    }
}

/// Checks that docs/reference/testing.md lists the budgets of the suites, and that the README has their total
/// duration.
#[test]
fn documented_budgets_match_the_suites() {
    let read = |name: &str| fs::read_to_string(root().join(name)).expect("the document");
    let document = read("docs/reference/testing.md");
    let table = document.split("| suite | quick | full |").nth(1).expect("the table");
    let rows = table.lines().skip(2).take_while(|line| line.starts_with('|'));
    let written: Vec<[u32; 2]> = rows
        .map(|row| {
            let cells: Vec<&str> = row.split('|').map(str::trim).collect();
            [2, 3].map(|cell| if cells[cell] == "-" { 0 } else { cells[cell].parse().expect("seconds") })
        })
        .collect();
    let budgets: Vec<[u32; 2]> = every().iter().map(|suite| suite.budget).collect();
    assert_eq!(written, budgets, "docs/reference/testing.md, seconds of each suite");
    let [quick, full] = suite::WHOLE.map(|seconds| (seconds + 30) / 60);
    let readme = read("README.md").split_whitespace().collect::<Vec<_>>().join(" ");
    for said in [format!("two idle CPUs is {quick} minutes"), format!("or {full} with `--full`")] {
        assert!(readme.contains(&said), "README.md does not contain: {said}");
    }
}

/// Checks that xtask and `freehold_machine::Effort` use the same words for the time that tests may take.
/// xtask sets them in an environment variable, and the tests read them.
#[test]
fn effort_words_match_in_xtask_and_tests() {
    let reader = fs::read_to_string(root().join("lab/freehold-machine/src/effort.rs")).expect("the reader");
    for effort in Effort::ALL {
        let arm = format!("Ok(\"{}\") => Effort::{effort:?}", effort.name());
        assert!(reader.contains(&arm), "effort.rs: {arm}");
    }
    assert_eq!(reader.matches("Ok(\"").count(), Effort::ALL.len(), "a word that xtask does not set");
}

/// Checks that a module declares each file. A file without a module is never compiled.
#[test]
fn each_source_file_is_a_module() {
    let all: Vec<Source> = rust(".").collect();
    let is_declaration = |line: &&str| line.ends_with(';') || line.ends_with(']');
    let lines = |source| str::lines(source).map(str::trim).filter(is_declaration);
    let declarations: Vec<(&str, &str)> = all
        .iter()
        .flat_map(|source| lines(&source.text).map(|line| (&*source.path, line)))
        .filter(|(_, line)| line.contains("mod ") || line.contains("path = "))
        .collect();
    let mut found = Vec::new();
    for source in all.iter().filter(|source| source.path.contains("/src/")) {
        let (folder, file) = source.path.rsplit_once('/').expect("a path");
        let module = match file {
            "lib.rs" | "main.rs" => continue,
            "mod.rs" => folder.rsplit_once('/').expect("a module's folder").1,
            _ => file.strip_suffix(".rs").expect("a source"),
        };
        let (package, _) = source.path.split_once("/src/").expect("seen above");
        let by_path = if file == "mod.rs" { format!("{module}/mod.rs\"") } else { format!("{file}\"]") };
        let declares = format!("mod {module};");
        let is_named = |&(path, line): &(&str, &str)| {
            path.starts_with(package) && (line.contains(&declares) || line.contains(&by_path))
        };
        if !folder.ends_with("/bin") && !declarations.iter().any(is_named) {
            found.push(source.path.clone());
        }
    }
    assert_none("is not a module", found);
}

/// The layers of the engine, from the bottom up: a layer uses only layers before it. An entry is a folder or
/// a file. The longest entry that matches a file decides the file's layer. Files of one layer may use each
/// other.
const LAYERS: &[&[&str]] = &[
    &["features", "settings"],
    &["error"],
    &["committed"],
    &["wait", "shortage"],
    &["vma/flags", "vma/info"],
    &["uprobe/state"],
    &["rmap/tree"],
    &["hugetlb/state"],
    &["nommu/state"],
    &["uffd/state"],
    &["reclaim/state"],
    &["file/request"],
    &["swap"],
    &["file"],
    &["vma"],
    &["hugetlb/sharing", "hugetlb/unmap_file"],
    &["file/change"],
    &["engine"],
    &["rmap"],
    &["reclaim"],
    &["uffd/event"],
    &["space/state"],
    &["space"],
    &["hugetlb"],
    &["space/change"],
    &["uprobe"],
    &["fault/outcome"],
    &["fault/table", "fault/present"],
    &["uffd/fault"],
    &["hugetlb/fault"],
    &["fault"],
    &["remote"],
    &["uffd"],
    &["call"],
    &["report"],
    &["nommu"],
    &["prelude"],
];

/// Exceptions: references from a file to a layer above its own, with the reason. This list may only get
/// shorter.
const UPWARDS: &[(&str, &str, &str)] = &[
    ("uffd/state/mod.rs", "space", "a context names the address space whose memory its pager fills"),
    ("uffd/event.rs", "space", "the message of a fork carries a context, with its address space"),
    ("file/throttle.rs", "file/change", "a task that makes pages dirty writes some of them back"),
];

/// Methods whose names the standard library's types also use.
const STANDARD: &[&str] = &["chain", "extend", "for_each", "is_some", "iter", "map", "write_str"];

/// Returns the position in [`LAYERS`] of the layer of a file, or of a module named by its path.
fn height(path: &str) -> Option<usize> {
    let is_of = |layer: &str| {
        path.strip_prefix(layer).is_some_and(|rest| rest.is_empty() || rest == ".rs" || rest.starts_with('/'))
    };
    let fits = |at: &usize| LAYERS[*at].iter().filter(|name| is_of(name)).map(|name| name.len()).max();
    (0..LAYERS.len()).filter(|at| fits(at).is_some()).max_by_key(fits)
}

/// Returns the names of the methods that a text defines: functions with a `self`.
fn methods(text: &str) -> impl Iterator<Item = String> {
    text.split("fn ").skip(1).filter_map(|rest| {
        let (front, arguments) = rest.split_once('(')?;
        let name: String =
            front.chars().take_while(|letter| letter.is_alphanumeric() || *letter == '_').collect();
        let first = arguments.split([',', ')']).next()?.trim_start();
        let first = first.trim_start_matches(['&', ' ']).trim_start_matches("mut ");
        let first = match first.strip_prefix('\'') {
            Some(lifetime) => {
                lifetime.split_once(' ').map_or("", |(_, rest)| rest).trim_start_matches("mut ")
            }
            None => first,
        };
        let is_method =
            first.strip_prefix("self").is_some_and(|rest| !rest.starts_with(char::is_alphanumeric));
        (is_method && !name.is_empty()).then_some(name)
    })
}

/// Returns the names of the methods that a text calls.
fn calls(text: &str) -> impl Iterator<Item = String> {
    text.split('.').skip(1).filter_map(|rest| {
        let rest = rest.trim_start();
        let name: String =
            rest.chars().take_while(|letter| letter.is_alphanumeric() || *letter == '_').collect();
        let behind = &rest[name.len()..];
        (!name.is_empty() && (behind.starts_with('(') || behind.starts_with("::<"))).then_some(name)
    })
}

/// Returns a source without its comments and without the tests at its end.
fn bare(text: &str) -> String {
    let tests = text.find("#[cfg(test)]\nmod tests {").unwrap_or(text.len());
    text[..tests].lines().flat_map(|line| [code(line), "\n"]).collect()
}

/// Checks imports and method calls. A method is resolved by its name if no other crate of the engine defines
/// a method with that name. If several layers define the method, the lowest layer counts.
#[test]
fn each_layer_uses_only_layers_below_it() {
    use std::collections::{BTreeMap, BTreeSet};
    const ENGINE: &str = "engine/freehold/src/";
    let mut others = BTreeSet::new();
    let mut own = Vec::new();
    for source in rust("engine").filter(|source| source.path.contains("/src/")) {
        if source.path.contains("tests") || source.path.ends_with("/lib.rs") {
            continue;
        }
        match source.path.strip_prefix(ENGINE) {
            Some(path) => own.push((path.to_owned(), bare(&source.text))),
            None => others.extend(methods(&bare(&source.text))),
        }
    }
    let mut defined: BTreeMap<String, BTreeSet<usize>> = BTreeMap::new();
    for (path, text) in &own {
        let at = height(path).unwrap_or_else(|| panic!("a file without a layer: {path}"));
        methods(text).for_each(|name| _ = defined.entry(name).or_default().insert(at));
    }
    assert!(defined.len() > 500, "too few methods found: {}", defined.len());
    let mut found: BTreeMap<(String, &str), BTreeSet<String>> = BTreeMap::new();
    for (path, text) in &own {
        let at = height(path).expect("seen above");
        for name in calls(text).filter(|name| !others.contains(name) && !STANDARD.contains(&&**name)) {
            if let Some(lowest) = defined.get(&name).and_then(BTreeSet::first)
                && *lowest > at
            {
                found.entry((path.clone(), LAYERS[*lowest][0])).or_default().insert(name);
            }
        }
        for name in used(path, text) {
            if let Some(above) = height(&name).filter(|above| *above > at) {
                found.entry((path.clone(), LAYERS[above][0])).or_default().insert(name);
            }
        }
    }
    let is_allowed =
        |path: &str, layer: &str| UPWARDS.iter().any(|(from, to, _)| *from == path && *to == layer);
    let new = found.iter().filter(|((path, layer), _)| !is_allowed(path, layer));
    assert_none("upward references", new.map(|(arrow, names)| format!("{arrow:?}: {names:?}")).collect());
    let gone = UPWARDS.iter().filter(|(path, layer, _)| !found.contains_key(&((*path).to_owned(), *layer)));
    assert_none("exceptions that are not needed any more", gone.map(|arrow| format!("{arrow:?}")).collect());
}

/// Returns the names that a source uses with `crate::` or `super::`, singly or in groups, as paths below the
/// crate's folder.
fn used(path: &str, text: &str) -> Vec<String> {
    let module = path.strip_suffix("/mod.rs").or(path.strip_suffix(".rs")).expect("a source");
    let mut names = Vec::new();
    // The path in a visibility, as in `pub(in PATH)`, does not use the name.
    for (at, _) in text.match_indices("crate::").filter(|(at, _)| !text[..*at].ends_with("(in ")) {
        paths_of(&text[at + "crate::".len()..], "", &mut names);
    }
    for (at, _) in text.match_indices("super::").filter(|(at, _)| !text[..*at].ends_with("super::")) {
        let mut rest = &text[at..];
        let mut from = module;
        while let Some(inner) = rest.strip_prefix("super::") {
            rest = inner;
            from = from.rsplit_once('/').map_or("", |(parent, _)| parent);
        }
        let from = if from.is_empty() { String::new() } else { format!("{from}/") };
        paths_of(rest, &from, &mut names);
    }
    names
}

/// Adds the paths of the use tree at the start of `text` to `names`. Returns the text after the tree.
fn paths_of<'t>(text: &'t str, from: &str, names: &mut Vec<String>) -> &'t str {
    let text = text.trim_start();
    if let Some(mut rest) = text.strip_prefix('{') {
        loop {
            rest = rest.trim_start_matches(|letter: char| letter == ',' || letter.is_whitespace());
            if let Some(rest) = rest.strip_prefix('}') {
                return rest;
            }
            let next = paths_of(rest, from, names);
            // Skips an alias.
            rest = next.trim_start_matches(|letter: char| letter != ',' && letter != '}');
            assert!(!rest.is_empty(), "a group of names without an end");
        }
    }
    let end = text.find(|letter: char| !letter.is_alphanumeric() && letter != '_').unwrap_or(text.len());
    let (name, rest) = text.split_at(end);
    match rest.strip_prefix("::") {
        Some(inner) if !inner.starts_with('<') => paths_of(inner, &format!("{from}{name}/"), names),
        _ => {
            names.push(format!("{from}{name}"));
            rest
        }
    }
}
