//! Runs the example for bare metal on emulated machines: `cargo xtask bare`.
//!
//! The example (`examples/bare`) is a kernel for riscv64 and aarch64 with a program of its own. The program
//! checks faults, copies and flushes on two CPUs; the kernel counts the frames that are missing at the end.
//! The build uses the compiler of `cross.rs`, and the linker of the toolchain that runs this command.
//!
//! A new machine is a line of `MACHINES`. A machine without its emulator is left out.

use std::{
    env,
    path::Path,
    process::{Command, Stdio},
};

use crate::cross::{self, Compiler};

/// An emulated machine.
struct Machine {
    name: &'static str,
    target: &'static str,
    /// Features of the example.
    features: &'static str,
    qemu: &'static str,
    /// The package of Debian that has the emulator.
    debian: &'static str,
    cpu: &'static str,
}

const RISCV64: Machine = Machine {
    name: "sv39",
    target: "riscv64gc-unknown-none-elf",
    features: "",
    qemu: "qemu-system-riscv64",
    debian: "qemu-system-misc",
    cpu: "rv64",
};
const AARCH64: Machine = Machine {
    name: "aarch64",
    target: "aarch64-unknown-none-softfloat",
    features: "",
    qemu: "qemu-system-aarch64",
    debian: "qemu-system-arm",
    // A processor without hardware management of accessed and dirty bits.
    cpu: "cortex-a57",
};

/// The machines.
const MACHINES: [Machine; 5] = [
    RISCV64,
    Machine { name: "sv48", features: "sv48", ..RISCV64 },
    Machine { name: "sv57", features: "sv57", ..RISCV64 },
    AARCH64,
    Machine { name: "aarch64-hafdbs", features: "hafdbs", cpu: "max", ..AARCH64 },
];

/// A run that takes longer has failed. A run takes about two seconds.
const SECONDS: &str = "30";

/// Runs the example on every machine, or on the named machines. With `--install`, first downloads the
/// compiler if it is missing. If the download fails, prints the reason and runs nothing.
///
/// # Errors
///
/// Fails if there is no compiler and the download was not asked for, if no machine has the name, or if a
/// build or a run fails.
pub fn run(args: &[&str]) -> Result<(), String> {
    let (installs, names) = match args {
        ["--install", names @ ..] => (true, names),
        names => (false, names),
    };
    if let Some(name) = names.iter().find(|name| MACHINES.iter().all(|machine| machine.name != **name)) {
        let all = MACHINES.map(|machine| machine.name).join(", ");
        return Err(format!("there is no machine {name}; the machines are {all}"));
    }
    let Some(compiler) = cross::find(installs)? else {
        return Ok(());
    };
    let chosen = |machine: &&Machine| names.is_empty() || names.contains(&machine.name);
    MACHINES.iter().filter(chosen).try_for_each(|machine| machine.build_and_run(&compiler))
}

impl Machine {
    fn build_and_run(&self, compiler: &Compiler) -> Result<(), String> {
        let Machine { name, qemu, debian, .. } = self;
        if Command::new(qemu).arg("--version").stdout(Stdio::null()).status().is_err() {
            println!(
                "== left out: the bare example on {name}: there is no {qemu} (Debian's package {debian})"
            );
            return Ok(());
        }
        println!("== the bare example on {name}");
        let images = compiler.folder.join("build").join(self.target).join("debug");
        self.build(compiler, "bare-program", None)?;
        self.build(compiler, "freehold-example-bare", Some(&images.join("bare-program")))?;
        self.boot(&images.join("freehold-example-bare"))
    }

    /// Builds a binary of the example. The kernel contains the image `program`.
    fn build(&self, compiler: &Compiler, binary: &str, program: Option<&Path>) -> Result<(), String> {
        let mut cargo = compiler.cargo("build", self.target);
        cargo.args(["--package", "freehold-example-bare", "--bin", binary]);
        if let Some(program) = program {
            cargo.args(["--features", self.features]).env("BARE_PROGRAM", program);
        }
        let linker = format!("CARGO_TARGET_{}_LINKER", self.target.to_uppercase().replace('-', "_"));
        cargo.env(linker, linker_of_toolchain()?);
        cross::status(&mut cargo, &format!("build {binary} for {}", self.target))
    }

    /// Runs the kernel and checks its output.
    fn boot(&self, kernel: &Path) -> Result<(), String> {
        let machine = ["-machine", "virt", "-cpu", self.cpu, "-smp", "2", "-m", "128M", "-no-reboot"];
        let mut command = Command::new("timeout");
        command.args(["--kill-after=5", SECONDS, self.qemu]).args(machine);
        command.args(["-display", "none", "-monitor", "none", "-serial", "stdio", "-kernel"]).arg(kernel);
        let output = command.stdin(Stdio::null()).output().map_err(|error| format!("timeout: {error}"))?;
        let text = String::from_utf8_lossy(&output.stdout);
        // The first lines are those of the firmware.
        let own: Vec<&str> = text.lines().skip_while(|line| !line.ends_with(" frames")).collect();
        if output.status.success() && own.contains(&"0 frames leaked") && own.last() == Some(&"passed") {
            own.iter().for_each(|line| println!("   {line}"));
            return Ok(());
        }
        let errors = String::from_utf8_lossy(&output.stderr);
        let why = if output.status.code() == Some(124) { "it did not end in time" } else { "it failed" };
        Err(format!("the bare example on {}: {why} ({})\n{text}{errors}", self.name, output.status))
    }
}

/// Returns the path of `rust-lld`, which every toolchain of rustup contains.
fn linker_of_toolchain() -> Result<String, String> {
    let rustc = env::var("RUSTC").unwrap_or_else(|_| "rustc".to_owned());
    let sysroot = cross::output(Command::new(rustc).args(["--print", "sysroot"]))?;
    Ok(format!("{}/lib/rustlib/x86_64-unknown-linux-gnu/bin/rust-lld", sysroot.trim()))
}
