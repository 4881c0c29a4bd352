//! Links the kernel and its program with their linker scripts if they are built for bare metal.

use std::env::var;

fn main() {
    println!("cargo::rerun-if-changed=src");
    let found = |name: &str| var(name).expect("cargo sets the variable");
    if found("CARGO_CFG_TARGET_OS") != "none" {
        return;
    }
    let folder = found("CARGO_MANIFEST_DIR");
    let machine = found("CARGO_CFG_TARGET_ARCH");
    println!("cargo::rustc-link-arg-bin=freehold-example-bare=-T{folder}/src/{machine}/kernel.ld");
    println!("cargo::rustc-link-arg-bin=bare-program=-T{folder}/src/program.ld");
    println!("cargo::rustc-link-arg-bin=bare-program=--oformat=binary");
}
