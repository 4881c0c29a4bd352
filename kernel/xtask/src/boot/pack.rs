//! Packs the files of a run: the file tree, the arguments and the environment of the first program.
//!
//! A program of this machine is packed with its interpreter and its shared libraries (`links.rs`), at the
//! same paths as on this machine. The kernel reads arguments and environment from the two files that
//! [`Program::finish`] writes (`kernel/PROTOCOL.md`), so `finish` must be called last. `kernel_tests` and
//! `kernel_bench` build their own trees with the functions here. A file that every program needs belongs in
//! `Tree::with_skeleton` (`tree.rs`).

use std::{
    collections::BTreeMap,
    env, fs,
    io::IsTerminal,
    path::{Path, PathBuf},
    process::Command,
};

use super::{
    Failure, links,
    options::Options,
    tree::{Content, Node, Tree},
};

/// Path of the shell for scripts on this machine.
const BUSYBOX: &str = "/bin/busybox";

/// The variable with further folders of libraries.
const LIBRARY_PATH: &str = "LD_LIBRARY_PATH";

/// Folders whose programs a shell finds by their names.
const COMMANDS: [&str; 6] = ["/bin", "/sbin", "/usr/bin", "/usr/sbin", "/usr/local/bin", "/usr/local/sbin"];

/// Folders whose files come from the booted kernel. They are never packed from this machine.
const KERNELS: [&str; 3] = ["/dev", "/proc", "/sys"];

/// The first program, and the file tree in which it runs.
#[derive(Debug, Clone)]
pub struct Program {
    /// The root of the file system.
    pub tree: Tree,
    /// The arguments; the first is the program's path.
    pub args: Vec<String>,
    /// The environment.
    pub env: BTreeMap<String, String>,
    /// Programs of this machine that were added. They come before tools of busybox.
    pub added: Vec<PathBuf>,
    /// Folders of `LD_LIBRARY_PATH`.
    pub libraries: Vec<PathBuf>,
}

impl Program {
    /// Packs the program or script in the command's arguments, and everything that the arguments add.
    ///
    /// # Errors
    ///
    /// Fails if a file is missing or cannot be read.
    pub fn of(options: &Options) -> Result<Self, Failure> {
        let mut program = Self::empty();
        program.find_libraries(options);
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

    /// Returns a program with the skeleton of a tree and the default environment.
    #[must_use]
    pub fn empty() -> Self {
        Self {
            tree: Tree::with_skeleton(),
            args: Vec::new(),
            env: surroundings(),
            added: Vec::new(),
            libraries: Vec::new(),
        }
    }

    /// Sets `LD_LIBRARY_PATH` from the command's arguments, or from this machine's environment.
    fn find_libraries(&mut self, options: &Options) {
        let given = options.env.iter().find(|(name, _)| name == LIBRARY_PATH).map(|(_, value)| value.clone());
        let Some(list) = given.or_else(|| env::var(LIBRARY_PATH).ok()).filter(|list| !list.is_empty()) else {
            return;
        };
        self.libraries = list.split([':', ';']).filter(|part| !part.is_empty()).map(PathBuf::from).collect();
        self.env.insert(LIBRARY_PATH.into(), list);
    }

    /// Packs a file or folder of this machine, with the interpreters and libraries of the programs in it.
    ///
    /// # Errors
    ///
    /// Fails if the file, or a file that it links to, is missing.
    pub fn add(&mut self, path: &Path) -> Result<(), String> {
        let taken = self.tree.take(path)?;
        let (mut programs, mut foreign) = (Vec::new(), Vec::new());
        collect_programs(&taken, &mut programs, &mut foreign);
        if let [first, rest @ ..] = &*foreign {
            let more =
                if rest.is_empty() { String::new() } else { format!(" and {} more files", rest.len()) };
            let first = first.display();
            eprintln!("xtask: {first}{more}: for another machine, packed without libraries");
        }
        programs.iter().try_for_each(|program| self.add_links(program, &programs))?;
        self.added.append(&mut programs);
        Ok(())
    }

    /// Packs a program of this machine at another path, with its interpreter and libraries.
    ///
    /// # Errors
    ///
    /// Fails if the program, or a file that it links to, is missing.
    pub fn add_as(&mut self, program: &Path, at: &Path) -> Result<(), String> {
        self.tree.put(at, Node::File(0o755, 0, Content::Host(program.into())))?;
        self.add_links(program, &[])
    }

    /// Packs the interpreter and the libraries of a program.
    fn add_links(&mut self, program: &Path, beside: &[PathBuf]) -> Result<(), String> {
        if let Err(why) = links::needs(program) {
            // The kernel says whether it runs the program.
            eprintln!("xtask: {why}, packed without libraries");
            return Ok(());
        }
        let files = links::closure(program, beside, &self.libraries)?;
        for file in &files {
            self.tree.take(file)?;
        }
        if !files.is_empty() {
            self.linker_lists();
        }
        Ok(())
    }

    /// Packs the dynamic linkers' configuration, which names further folders with libraries.
    fn linker_lists(&mut self) {
        for list in ["/etc/ld.so.cache", "/etc/ld-musl-x86_64.path"] {
            // The linkers work even if a list is missing.
            let _ = self.tree.take(Path::new(list));
        }
    }

    /// Makes a program the first program. The first word is its path or its name, the others are its
    /// arguments.
    ///
    /// # Errors
    ///
    /// Fails if the program is neither in the tree nor on this machine.
    pub fn command(&mut self, words: &[String]) -> Result<(), Failure> {
        let [name, rest @ ..] = words else { return Err("no program to run".to_owned().into()) };
        let path = if self.tree.look(Path::new(name)).is_some() && name.starts_with('/') {
            PathBuf::from(name)
        } else {
            let missing = || Failure { why: format!("cannot run {name}: no such program"), status: 127 };
            let path = find(name).ok_or_else(missing)?;
            self.add(&path)?;
            path
        };
        self.take_named(rest)?;
        self.args = vec![path.to_string_lossy().into_owned()];
        self.args.extend(rest.iter().cloned());
        Ok(())
    }

    /// Makes the shell of busybox the first program. The shell runs the script, in which each tool of busybox
    /// is a command, unless the command added a program of the same name.
    ///
    /// # Errors
    ///
    /// Fails if this machine has no busybox.
    pub fn shell(&mut self, script: &str) -> Result<(), String> {
        self.add_busybox()?;
        self.take_named(&script.split([' ', '\t', '\n', ';', '|', '<', '(', ')', '"']).collect::<Vec<_>>())?;
        let script = self.functions() + script;
        self.args = ["/bin/sh", "-c", &script].map(str::to_owned).into();
        Ok(())
    }

    /// Returns definitions of shell functions. The shell of busybox prefers its own tools to programs of the
    /// same name, so each program that was added gets a function of its name.
    fn functions(&self) -> String {
        let mut functions = BTreeMap::new();
        for path in &self.added {
            let (Some(folder), Some(name)) = (path.parent(), path.file_name().and_then(|name| name.to_str()))
            else {
                continue;
            };
            let is_name = name.chars().all(|letter| letter.is_ascii_alphanumeric() || letter == '_')
                && !name.starts_with(|letter: char| letter.is_ascii_digit());
            if COMMANDS.iter().any(|known| folder == Path::new(known)) && is_name && name != "busybox" {
                functions.insert(name.to_owned(), path.display().to_string());
            }
        }
        functions.iter().map(|(name, path)| format!("{name}() {{ {path} \"$@\"; }}\n")).collect()
    }

    /// Packs busybox, and a link for each of its tools unless the tree has a program of that name.
    ///
    /// # Errors
    ///
    /// Fails if this machine has no busybox.
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

    /// Packs each file of this machine whose absolute path is one of the words.
    fn take_named(&mut self, words: &[impl AsRef<str>]) -> Result<(), String> {
        for path in words.iter().map(|word| Path::new(word.as_ref())) {
            let own = KERNELS.iter().any(|folder| path.starts_with(folder));
            if path.is_absolute() && !own && path.is_file() && self.tree.look(path).is_none() {
                self.add(path)?;
            }
        }
        Ok(())
    }

    /// Writes arguments and environment to the files from which the kernel reads them.
    ///
    /// # Errors
    ///
    /// Fails if the tree has a folder or another kind of node at one of the two paths.
    pub fn finish(&mut self) -> Result<(), String> {
        let ended = |text: &str| [text.as_bytes(), &[0]].concat();
        let args: Vec<u8> = self.args.iter().flat_map(|arg| ended(arg)).collect();
        let env = self.env.iter().flat_map(|(name, value)| ended(&format!("{name}={value}")));
        let env: Vec<u8> = env.collect();
        self.tree.write("/.boot/args", 0o644, args)?;
        self.tree.write("/.boot/env", 0o644, env)
    }
}

/// Collects the path itself if it is a file, or the programs and libraries in a folder. Scripts in a folder
/// are not collected, because this machine may lack their interpreters. Collects programs for other machines
/// in `foreign`.
fn collect_programs(path: &Path, into: &mut Vec<PathBuf>, foreign: &mut Vec<PathBuf>) {
    if path.is_file() {
        let list = if links::kind(path) == links::Kind::Foreign { foreign } else { into };
        list.push(path.into());
        return;
    }
    for entry in fs::read_dir(path).into_iter().flatten().flatten() {
        let path = entry.path();
        match entry.file_type() {
            Ok(kind) if kind.is_dir() => collect_programs(&path, into, foreign),
            Ok(kind) if kind.is_file() => match links::kind(&path) {
                links::Kind::Ours => into.push(path),
                links::Kind::Foreign => foreign.push(path),
                links::Kind::Other => {}
            },
            _ => {}
        }
    }
}

/// Returns the default environment of a program.
fn surroundings() -> BTreeMap<String, String> {
    let terminal = if std::io::stdin().is_terminal() { env::var("TERM").ok() } else { None };
    let pairs = [
        ("PATH", "/usr/bin:/bin:/usr/sbin:/sbin".to_owned()),
        ("HOME", "/root".to_owned()),
        ("TERM", terminal.unwrap_or_else(|| "dumb".to_owned())),
    ];
    pairs.map(|(name, value)| (name.to_owned(), value)).into()
}

/// Finds a program as a shell does: by its path, or by its name in `PATH`.
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

    fn program(words: &[&str]) -> Result<Program, Failure> {
        let options = Options::try_parse_from([&["boot"], words].concat()).expect("valid options");
        Program::of(&options)
    }

    fn text(program: &Program, path: &str) -> String {
        match program.tree.look(Path::new(path)) {
            Some(Node::File(_, _, Content::Bytes(bytes))) => String::from_utf8_lossy(bytes).into_owned(),
            other => panic!("{path}: {other:?}"),
        }
    }

    #[test]
    fn dynamic_program_is_packed_with_its_libraries() {
        let packed = program(&["--env", "A=b", "--", "/bin/sh", "-c", "cat < /etc/passwd"]).expect("packed");
        let there = |path: &str| packed.tree.look(Path::new(path)).is_some();
        assert!(there("/bin/sh") && there("/lib64/ld-linux-x86-64.so.2"));
        assert_eq!(text(&packed, "/.boot/args"), "/bin/sh\0-c\0cat < /etc/passwd\0");
        assert!(text(&packed, "/.boot/env").split('\0').any(|pair| pair == "A=b"));
    }

    #[test]
    fn files_named_by_arguments_are_packed() {
        let packed =
            program(&["--", "/bin/sh", "/etc/os-release", "/proc/self/maps", "/etc"]).expect("packed");
        let there = |path: &str| packed.tree.look(Path::new(path)).is_some();
        assert!(there("/etc/os-release") && !there("/proc/self/maps"));
        assert!(!there("/etc/ld.so.conf"), "a named folder is not packed");
    }

    #[test]
    fn added_program_comes_before_the_tool_of_busybox() {
        let Ok(packed) = program(&["--with", "/bin/ls", "--script", "ls; cat /etc/passwd"]) else { return };
        let script = &packed.args[2];
        assert!(
            script.starts_with("ls() { /") && script.ends_with("/ls \"$@\"; }\nls; cat /etc/passwd"),
            "{script}"
        );
    }

    #[test]
    fn library_path_is_passed_to_the_program() {
        let packed = program(&["--env", "LD_LIBRARY_PATH=/a:/b", "--", "/bin/sh"]).expect("packed");
        assert_eq!(packed.libraries, ["/a", "/b"].map(PathBuf::from));
        assert!(text(&packed, "/.boot/env").split('\0').any(|pair| pair == "LD_LIBRARY_PATH=/a:/b"));
    }

    #[test]
    fn damaged_program_is_left_to_the_kernel() {
        let folder = super::super::scratch::Scratch::new("damaged").expect("a folder");
        let path = folder.path().join("program");
        // A file that ends early, and one with an unknown version.
        for bytes in [&b"\x7fELF\x02\x01\x01"[..], &[&b"\x7fELF\x01\x01"[..], &[0; 60]].concat()] {
            fs::write(&path, bytes).expect("written");
            let packed = program(&["--", &path.to_string_lossy()]).expect("packed");
            assert!(packed.tree.look(&path).is_some());
        }
    }

    #[test]
    fn missing_program_is_named_in_the_error() {
        for name in ["./none", "no-such-name"] {
            let failure = program(&["--", name]).expect_err("no such program");
            assert_eq!(failure, Failure { why: format!("cannot run {name}: no such program"), status: 127 });
        }
        let Failure { why, status } =
            program(&["--root", "/no/such", "--", "x"]).expect_err("no such folder");
        assert!(why.starts_with("cannot read /no/such: ") && status == 125, "{why}");
    }
}
