//! Checks that every fuzz target is declared for cargo-fuzz, so that the long run executes it. The targets
//! are the files that `xtask::fuzz::targets` finds; the declarations are in `lab/fuzz/Cargo.toml`.

use std::fs;

#[test]
fn every_target_is_declared() {
    let manifest =
        fs::read_to_string(xtask::root().join("lab/fuzz/Cargo.toml")).expect("the fuzzer's manifest");
    let targets = xtask::fuzz::targets().expect("the targets");
    assert!(targets.len() >= 4, "{targets:?}");
    for target in &targets {
        assert!(manifest.contains(&format!("path = \"fuzz_targets/{target}.rs\"")), "{target}");
    }
    assert_eq!(manifest.matches("[[bin]]").count(), targets.len());
}
