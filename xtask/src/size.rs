//! Measures the size of the engine's code: builds the library in `lab/size` with each optimisation level of
//! `LEVELS` and each set of cargo features in `FEATURES`, and prints the bytes of its section `.text`.
//!
//! The library has 16 operations in C's calling convention and is linked as a whole ("fat" link-time
//! optimisation), so it contains only code that these operations can reach. Needs `size` of binutils. A new
//! cargo feature of `freehold` needs a row in `FEATURES` and a line in `lab/size/Cargo.toml`. A new operation
//! belongs in `lab/size/src/kernel.rs`.

use std::process::Command;

use crate::suite::Build;

/// The optimisation levels of the columns, as cargo names them.
const LEVELS: [&str; 4] = ["3", "2", "s", "z"];

/// The names and the cargo features of the rows. No operation of the library uses the feature `nommu`.
const FEATURES: [(&str, &str); 8] = [
    ("none", ""),
    ("`hugetlb`", "hugetlb"),
    ("`inline`", "inline"),
    ("`range_writers`", "range_writers"),
    ("`stats`", "stats"),
    ("`uffd`", "uffd"),
    ("`uprobe`", "uprobe"),
    ("all of these (default)", "hugetlb,inline,range_writers,stats,uffd,uprobe"),
];

/// Builds the library and prints a table of sizes in KB.
///
/// # Errors
///
/// Fails if a build fails, or if `size` is missing.
pub fn run() -> Result<(), String> {
    println!("| features | section .text in KB at level 3 | 2 | s | z |\n| --- | --- | --- | --- | --- |");
    for (name, features) in FEATURES {
        print!("| {name} |");
        for level in LEVELS {
            print!(" {} |", built_bytes(level, features)?.div_ceil(1000));
        }
        println!();
    }
    Ok(())
}

/// Builds the library. Returns the bytes of its section `.text`.
fn built_bytes(level: &str, features: &str) -> Result<u64, String> {
    let target = crate::root().join("target/size");
    let built = Build::Plain
        .cargo(&["build", "--release", "--quiet", "--features", features, "--target-dir"], None)
        .arg(&target)
        .env("CARGO_PROFILE_RELEASE_OPT_LEVEL", level)
        .current_dir(crate::root().join("lab/size"))
        .status()
        .map_err(|error| format!("cannot start cargo: {error}"))?;
    if !built.success() {
        return Err(format!("cannot build lab/size ({built})"));
    }
    text_bytes(&target.join("release/libfreehold_size.so"))
}

/// Returns the bytes of the section `.text` of a program or library.
fn text_bytes(path: &std::path::Path) -> Result<u64, String> {
    let output = Command::new("size")
        .arg("-A")
        .arg(path)
        .output()
        .map_err(|error| format!("cannot start `size` of binutils: {error}"))?;
    let table = String::from_utf8_lossy(&output.stdout);
    let text = table.lines().find_map(|line| line.strip_prefix(".text "));
    let bytes = text.and_then(|rest| rest.split_whitespace().next()?.parse().ok());
    bytes.ok_or_else(|| format!("`size` found no section .text in {}", path.display()))
}
