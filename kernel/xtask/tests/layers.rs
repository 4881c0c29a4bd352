//! Tests the layers of the kernel: each file uses only files of its own layer and of the layers below. The
//! table in `kernel/README.md` describes the same layers, with the lowest one first.
//!
//! The tests read the sources as text: imports, paths and method calls. If a test fails, move the function or
//! pass it down (as `arch/handlers.rs` and `process/observer.rs` do), rather than add an exception. A method
//! is known only by its name, so a new name that the standard library also uses may need an entry in
//! `COMMON`.
//!
//! A new folder or file directly below `kernel/src` needs an entry in [`LAYERS`].
//! `cargo test --package kernel-xtask` runs the tests.

use std::{
    collections::{BTreeMap, BTreeSet},
    fs,
    path::Path,
};

/// The layers, the lowest one first. An entry is a folder or a file below `kernel/src`. The longest entry
/// that matches a file decides its layer.
const LAYERS: &[&[&str]] = &[
    &["options", "errno", "words", "cpio", "input"],
    &["arch"],
    &["start_info"],
    &["memory"],
    &["sched"],
    &["platform"],
    &["files"],
    &["process"],
    &["record"],
    &["proc"],
    &["calls"],
    &["boot", "start", "main"],
];

/// Exceptions: a file, a layer above its own that it uses, and the reason. The list may only get shorter.
const UPWARDS: &[(&str, &str, &str)] = &[];

/// Maximum number of files in one cycle of uses.
const LARGEST_CIRCLE: usize = 3;

/// Methods whose names are also used by types of the standard library or of the engine.
const COMMON: &[&str] = &[
    "add",
    "advance",
    "contains",
    "drain",
    "end",
    "errno",
    "find",
    "flush",
    "get",
    "insert",
    "is_movable",
    "iter",
    "len",
    "load",
    "lock",
    "new",
    "next",
    "pop",
    "position",
    "push",
    "read",
    "remove",
    "runs_elsewhere",
    "set",
    "space",
    "take",
    "write",
    "write_str",
];

/// A source file of the kernel.
struct File {
    /// Path below `kernel/src`, without `.rs`.
    path: String,
    /// The module's path.
    module: Vec<String>,
    /// The code.
    text: String,
}

/// Reads the sources, without comments and without the tests at their ends.
fn files() -> Vec<File> {
    fn collect(root: &Path, folder: &Path, out: &mut Vec<File>) {
        for entry in fs::read_dir(folder).expect("a folder of the kernel") {
            let path = entry.expect("an entry").path();
            if path.is_dir() {
                collect(root, &path, out);
            } else if path.extension().is_some_and(|ending| ending == "rs") {
                let text = fs::read_to_string(&path).expect("a source");
                let tests = text.find("#[cfg(test)]\nmod tests").unwrap_or(text.len());
                let code = text[..tests].lines().map(|line| line.split("//").next().unwrap_or_default());
                let name = path.strip_prefix(root).expect("below the root").with_extension("");
                let name = name.to_str().expect("a name in UTF-8").to_owned();
                let module =
                    name.strip_suffix("/mod").unwrap_or(&name).split('/').map(str::to_owned).collect();
                out.push(File { path: name, module, text: code.collect::<Vec<_>>().join("\n") });
            }
        }
    }
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("../src");
    let mut out = Vec::new();
    collect(&root, &root, &mut out);
    out.retain(|file| file.path != "lib");
    assert!(out.len() > 100, "the kernel's sources are found: {}", out.len());
    out
}

/// Returns the index of a file's layer, or `None` if no layer contains the file.
fn height(path: &str) -> Option<usize> {
    let fits =
        |layer: &&str| path.strip_prefix(*layer).is_some_and(|rest| rest.is_empty() || rest.starts_with('/'));
    let best = |at: &usize| LAYERS[*at].iter().filter(|layer| fits(layer)).map(|layer| layer.len()).max();
    (0..LAYERS.len()).filter(|at| best(at).is_some()).max_by_key(best)
}

/// Returns the identifier with which a text begins.
fn word(text: &str) -> &str {
    let is_word = |letter: char| letter.is_alphanumeric() || letter == '_';
    &text[..text.find(|letter| !is_word(letter)).unwrap_or(text.len())]
}

/// Adds the paths to which the beginning of a text expands, each with `before` in front. A path with a group
/// in braces expands to several paths.
fn paths(text: &str, before: &[String], out: &mut Vec<Vec<String>>) {
    let text = text.trim_start();
    if let Some(group) = text.strip_prefix('{') {
        let (mut depth, mut begin) = (0, 0);
        for (at, letter) in group.char_indices() {
            match letter {
                '{' => depth += 1,
                '}' | ',' if depth == 0 => {
                    paths(&group[begin..at], before, out);
                    begin = at + 1;
                    if letter == '}' {
                        break;
                    }
                }
                '}' => depth -= 1,
                _ => {}
            }
        }
        return;
    }
    let name = word(text);
    if name.is_empty() {
        return;
    }
    let mut path = before.to_vec();
    path.push(name.to_owned());
    match text[name.len()..].strip_prefix("::") {
        Some(rest) if rest.starts_with('{') || !word(rest).is_empty() => paths(rest, &path, out),
        _ => out.push(path),
    }
}

/// Returns the paths of the kernel's modules and items that a file uses, from the root of the crate.
fn used(file: &File) -> Vec<Vec<String>> {
    let mut out = Vec::new();
    for (at, _) in file.text.match_indices("crate::") {
        paths(&file.text[at + 7..], &[], &mut out);
    }
    let above = &file.module[..file.module.len() - 1];
    for (at, _) in file.text.match_indices("super::") {
        paths(&file.text[at + 7..], above, &mut out);
    }
    if file.path.ends_with("/mod") {
        for (at, _) in file.text.match_indices("use ") {
            paths(&file.text[at + 4..], &file.module, &mut out);
        }
    }
    out
}

/// Returns for each file the files that it uses, by imports and paths.
fn arrows(files: &[File]) -> BTreeMap<&str, BTreeSet<&str>> {
    let modules: BTreeMap<&[String], &str> = files.iter().map(|file| (&*file.module, &*file.path)).collect();
    let of = |path: &Vec<String>| (1..=path.len()).rev().find_map(|n| modules.get(&path[..n]).copied());
    let targets = |file: &File| -> BTreeSet<&str> {
        let all = used(file);
        all.iter().filter_map(of).filter(|other| *other != file.path).collect()
    };
    files.iter().map(|file| (&*file.path, targets(file))).collect()
}

/// Returns the names of the methods that a text defines: functions with a `self`.
fn methods(text: &str) -> impl Iterator<Item = &str> {
    text.split("fn ").skip(1).filter_map(|rest| {
        let name = word(rest);
        let first = rest.split_once('(')?.1.trim_start_matches(['&', ' ']).trim_start_matches("mut ");
        (word(first) == "self" && !name.is_empty()).then_some(name)
    })
}

/// Returns the names of the methods that a text calls.
fn calls(text: &str) -> impl Iterator<Item = &str> {
    text.split('.').skip(1).filter_map(|rest| {
        let name = word(rest);
        (!name.is_empty() && rest[name.len()..].starts_with('(')).then_some(name)
    })
}

/// Checks imports, paths and method calls. A method is resolved by its name. If several layers define a
/// method of that name, the lowest layer counts.
#[test]
fn each_layer_uses_only_layers_below_it() {
    let files = files();
    let of = |path: &str| height(path).unwrap_or_else(|| panic!("{path} is in no layer"));
    let mut defined: BTreeMap<&str, usize> = BTreeMap::new();
    for file in &files {
        for name in methods(&file.text) {
            let lowest = defined.entry(name).or_insert(usize::MAX);
            *lowest = (*lowest).min(of(&file.path));
        }
    }
    assert!(defined.len() > 150, "methods are found: {}", defined.len());
    let arrows = arrows(&files);
    let mut found: BTreeMap<(&str, &str), BTreeSet<&str>> = BTreeMap::new();
    for file in &files {
        let own = of(&file.path);
        for other in arrows[&*file.path].iter().filter(|other| of(other) > own) {
            found.entry((&file.path, LAYERS[of(other)][0])).or_default().insert(other);
        }
        for name in calls(&file.text).filter(|name| !COMMON.contains(name)) {
            if let Some(layer) = defined.get(name).filter(|layer| **layer > own) {
                found.entry((&file.path, LAYERS[*layer][0])).or_default().insert(name);
            }
        }
    }
    let listed = |arrow: &(&str, &str)| UPWARDS.iter().any(|(path, layer, _)| (*path, *layer) == *arrow);
    let new: Vec<_> = found.iter().filter(|(arrow, _)| !listed(arrow)).collect();
    assert!(new.is_empty(), "uses of a higher layer: {new:#?}");
    let gone: Vec<_> =
        UPWARDS.iter().filter(|(path, layer, _)| !found.contains_key(&(*path, *layer))).collect();
    assert!(gone.is_empty(), "exceptions that are no longer needed: {gone:#?}");
}

/// Returns the files that `from` uses, directly or indirectly.
fn reached<'a>(arrows: &BTreeMap<&'a str, BTreeSet<&'a str>>, from: &'a str) -> BTreeSet<&'a str> {
    let (mut seen, mut left) = (BTreeSet::new(), vec![from]);
    while let Some(path) = left.pop() {
        left.extend(arrows[path].iter().copied().filter(|other| seen.insert(*other)));
    }
    seen
}

/// Checks cycles of imports and paths.
#[test]
fn cycles_of_files_are_small() {
    let files = files();
    let arrows = arrows(&files);
    let all: BTreeMap<&str, BTreeSet<&str>> =
        arrows.keys().map(|path| (*path, reached(&arrows, path))).collect();
    let circles: BTreeSet<Vec<&str>> = all
        .iter()
        .map(|(path, reached)| reached.iter().copied().filter(|other| all[other].contains(path)).collect())
        .collect();
    let large: Vec<_> = circles.iter().filter(|circle| circle.len() > LARGEST_CIRCLE).collect();
    assert!(large.is_empty(), "cycles of more than {LARGEST_CIRCLE} files: {large:#?}");
}
