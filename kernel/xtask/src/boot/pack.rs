//! What a run needs: the file tree, the arguments and the environment of the first program.

use std::{
    collections::BTreeMap,
    env, fs,
    io::IsTerminal,
    path::{Path, PathBuf},
    process::Command,
};

use super::{
    links,
    options::Options,
    tree::{Content, Node, Tree},
};

/// Where the shell of scripts is on this machine.
const BUSYBOX: &str = "/bin/busybox";

/// What is known to be no file of this machine, but of the kernel that runs.
const KERNELS: [&str; 3] = ["/dev", "/proc", "/sys"];

/// The first program, and all that it finds.
#[derive(Debug, Clone)]
pub struct Program {
    /// The root of its file system.
    pub tree: Tree,
    /// Its arguments; the first is its path.
    pub args: Vec<String>,
    /// Its environment.
    pub env: BTreeMap<String, String>,
}

impl Program {
    /// What the command's arguments ask for.
    ///
    /// # Errors
    ///
    /// A file is missing or cannot be read.
    pub fn of(options: &Options) -> Result<Self, String> {
        let mut program = Self { tree: Tree::with_skeleton(), args: Vec::new(), env: surroundings() };
        if let Some(root) = &options.root {
            program.tree.take_all(root, Path::new("/"))?;
        }
        for path in &options.with {
            program.add(path)?;
        }
        match &options.script {
            Some(script) => program.shell(script)?,
            None => program.command(&options.program)?,
        }
        program.env.extend(options.env.iter().cloned());
        program.finish()?;
        Ok(program)
    }

    /// Takes a file or folder of this machine, and what it links to if it is a program.
    ///
    /// # Errors
    ///
    /// It is missing, or what it links to.
    pub fn add(&mut self, path: &Path) -> Result<(), String> {
        let taken = self.tree.take(path)?;
        let mut programs = Vec::new();
        collect_programs(&taken, &mut programs);
        programs.iter().try_for_each(|program| self.add_links(program, &programs))
    }

    /// Takes a program of this machine to another path, and what it links to.
    ///
    /// # Errors
    ///
    /// It is missing, or what it links to.
    pub fn add_as(&mut self, program: &Path, at: &Path) -> Result<(), String> {
        self.tree.put(at, Node::File(0o755, 0, Content::Host(program.into())))?;
        self.add_links(program, &[])
    }

    fn add_links(&mut self, program: &Path, beside: &[PathBuf]) -> Result<(), String> {
        let files = links::closure(program, beside)?;
        for file in &files {
            self.tree.take(file)?;
        }
        if !files.is_empty() {
            self.linker_lists();
        }
        Ok(())
    }

    /// Lists by which the dynamic linkers find libraries in other folders than their own.
    fn linker_lists(&mut self) {
        for list in ["/etc/ld.so.cache", "/etc/ld-musl-x86_64.path"] {
            // Where there is none, the linkers do without.
            let _ = self.tree.take(Path::new(list));
        }
    }

    /// Makes a program with its arguments the first.
    ///
    /// # Errors
    ///
    /// It is neither in the tree nor on this machine.
    pub fn command(&mut self, words: &[String]) -> Result<(), String> {
        let [name, rest @ ..] = words else { return Err("there is no program to run".into()) };
        let path = if self.tree.look(Path::new(name)).is_some() && name.starts_with('/') {
            PathBuf::from(name)
        } else {
            let path = find(name).ok_or_else(|| format!("{name}: there is no such program"))?;
            self.add(&path)?;
            path
        };
        self.take_named(rest)?;
        self.args = vec![path.to_string_lossy().into_owned()];
        self.args.extend(rest.iter().cloned());
        Ok(())
    }

    /// Makes busybox's shell the first program, with a script, and each tool of busybox a command.
    ///
    /// # Errors
    ///
    /// This machine has no busybox.
    pub fn shell(&mut self, script: &str) -> Result<(), String> {
        self.add_busybox()?;
        self.take_named(&script.split([' ', '\t', '\n', ';', '|', '<', '(', ')', '"']).collect::<Vec<_>>())?;
        self.args = ["/bin/sh", "-c", script].map(str::to_owned).into();
        Ok(())
    }

    /// Takes busybox and makes links for its tools where the tree has no program of that name.
    ///
    /// # Errors
    ///
    /// This machine has none.
    pub fn add_busybox(&mut self) -> Result<(), String> {
        let missing = |_| format!("{BUSYBOX} is missing: apt-get install busybox-static");
        let listed = Command::new(BUSYBOX).arg("--list").output().map_err(missing)?;
        self.add(Path::new(BUSYBOX))?;
        for name in String::from_utf8_lossy(&listed.stdout).lines().filter(|name| *name != "busybox") {
            let path = Path::new("/bin").join(name);
            if self.tree.look(&path).is_none() {
                self.tree.put(&path, Node::Link("busybox".into()))?;
            }
        }
        Ok(())
    }

    /// Takes the files of this machine that words name by an absolute path.
    fn take_named(&mut self, words: &[impl AsRef<str>]) -> Result<(), String> {
        for path in words.iter().map(|word| Path::new(word.as_ref())) {
            let own = KERNELS.iter().any(|folder| path.starts_with(folder));
            if path.is_absolute() && !own && path.is_file() && self.tree.look(path).is_none() {
                self.add(path)?;
            }
        }
        Ok(())
    }

    /// Writes arguments and environment where the kernel looks for them.
    ///
    /// # Errors
    ///
    /// Something is in the way.
    pub fn finish(&mut self) -> Result<(), String> {
        let ended = |text: &str| [text.as_bytes(), &[0]].concat();
        let args: Vec<u8> = self.args.iter().flat_map(|arg| ended(arg)).collect();
        let env = self.env.iter().flat_map(|(name, value)| ended(&format!("{name}={value}")));
        let env: Vec<u8> = env.collect();
        self.tree.write("/.boot/args", 0o644, args)?;
        self.tree.write("/.boot/env", 0o644, env)
    }
}

/// The path itself, or the programs and libraries in a folder. Scripts in a folder are no programs that must
/// run: some are for interpreters of other machines.
fn collect_programs(path: &Path, into: &mut Vec<PathBuf>) {
    if path.is_file() {
        into.push(path.into());
        return;
    }
    for entry in fs::read_dir(path).into_iter().flatten().flatten() {
        let path = entry.path();
        match entry.file_type() {
            Ok(kind) if kind.is_dir() => collect_programs(&path, into),
            Ok(kind) if kind.is_file() && links::is_elf(&path) => into.push(path),
            _ => {}
        }
    }
}

/// The environment that a program has unless it is told otherwise.
#[must_use]
pub fn surroundings() -> BTreeMap<String, String> {
    let terminal = if std::io::stdin().is_terminal() { env::var("TERM").ok() } else { None };
    let pairs = [
        ("PATH", "/usr/bin:/bin:/usr/sbin:/sbin".to_owned()),
        ("HOME", "/root".to_owned()),
        ("TERM", terminal.unwrap_or_else(|| "dumb".to_owned())),
    ];
    pairs.map(|(name, value)| (name.to_owned(), value)).into()
}

/// A program as a shell finds it: by its path, or by its name in `PATH`.
fn find(name: &str) -> Option<PathBuf> {
    if name.contains('/') {
        return std::path::absolute(name).ok().filter(|path| path.is_file());
    }
    let folders = env::var_os("PATH")?;
    env::split_paths(&folders).map(|folder| folder.join(name)).find(|path| path.is_file())
}

#[cfg(test)]
mod tests {
    use super::*;
    use clap::Parser;

    fn program(words: &[&str]) -> Result<Program, String> {
        let options = Options::try_parse_from([&["boot"], words].concat()).expect("they are right");
        Program::of(&options)
    }

    fn text(program: &Program, path: &str) -> String {
        match program.tree.look(Path::new(path)) {
            Some(Node::File(_, _, Content::Bytes(bytes))) => String::from_utf8_lossy(bytes).into_owned(),
            other => panic!("{path}: {other:?}"),
        }
    }

    #[test]
    fn a_dynamic_program_comes_with_what_it_links_to() {
        let packed = program(&["--env", "A=b", "--", "/bin/sh", "-c", "cat < /etc/passwd"]).expect("there");
        let there = |path: &str| packed.tree.look(Path::new(path)).is_some();
        assert!(there("/bin/sh") && there("/lib64/ld-linux-x86-64.so.2"));
        assert_eq!(text(&packed, "/.boot/args"), "/bin/sh\0-c\0cat < /etc/passwd\0");
        assert!(text(&packed, "/.boot/env").split('\0').any(|pair| pair == "A=b"));
    }

    #[test]
    fn files_that_arguments_name_come_too() {
        let packed =
            program(&["--", "/bin/sh", "/etc/os-release", "/proc/self/maps", "/etc"]).expect("there");
        let there = |path: &str| packed.tree.look(Path::new(path)).is_some();
        assert!(there("/etc/os-release") && !there("/proc/self/maps"));
        assert!(!there("/etc/ld.so.conf"), "a folder is not taken whole");
    }

    #[test]
    fn a_program_that_is_nowhere_is_named() {
        assert_eq!(program(&["--", "./none"]).err(), Some("./none: there is no such program".into()));
        assert_eq!(
            program(&["--", "no-such-name"]).err(),
            Some("no-such-name: there is no such program".into())
        );
        let why = program(&["--root", "/no/such", "--", "x"]).expect_err("no such folder");
        assert!(why.starts_with("/no/such: "), "{why}");
    }
}
