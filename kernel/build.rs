//! Links the kernel with its linker script if it is built for bare metal: no libc, no start files, fixed
//! addresses. The arguments of the linker apply only to the binary of the kernel, not to tests.

fn main() {
    println!("cargo::rerun-if-changed=kernel.ld");
    if std::env::var_os("CARGO_CFG_BARE_METAL").is_none() {
        return;
    }
    let here = std::env::var("CARGO_MANIFEST_DIR").expect("cargo says where the package is");
    let script = format!("-Wl,-T{here}/kernel.ld,--build-id=none,-z,max-page-size=4096,-z,norelro");
    for argument in ["-nostartfiles", "-nostdlib", "-static", "-no-pie", &script, "-Wl,--no-eh-frame-hdr"] {
        println!("cargo::rustc-link-arg-bins={argument}");
    }
}
