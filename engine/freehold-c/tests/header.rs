//! Test of the header: it is the one that cbindgen generates from this crate.
//!
//! With `FREEHOLD_WRITE_HEADER=1` in the environment, the test writes the header.

use std::{env, fs, path::Path};

#[test]
fn header_matches_the_crate() {
    let root = Path::new(env!("CARGO_MANIFEST_DIR"));
    let config = cbindgen::Config::from_file(root.join("cbindgen.toml")).unwrap();
    let bindings = cbindgen::Builder::new().with_crate(root).with_config(config).generate().unwrap();
    let mut generated = Vec::new();
    bindings.write(&mut generated);
    let generated = String::from_utf8(generated).unwrap();
    let path = root.join("include/freehold.h");
    if env::var_os("FREEHOLD_WRITE_HEADER").is_some() {
        fs::write(&path, &generated).unwrap();
    }
    let header = fs::read_to_string(&path).unwrap_or_default();
    assert!(
        header == generated,
        "include/freehold.h differs from the crate. To write it: \
         FREEHOLD_WRITE_HEADER=1 cargo test --package freehold-c --test header"
    );
}
