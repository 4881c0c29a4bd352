//! Finds the files that a program needs to start: its interpreter, and the shared libraries that it links to.
//!
//! Libraries are searched for in the order of the dynamic linker: `DT_RPATH` of the library and of those that
//! load it, unless there is `DT_RUNPATH`; the folders of `LD_LIBRARY_PATH`; `DT_RUNPATH`; the folders of
//! `/etc/ld.so.conf`; the linker's own folders (ld.so(8)). `$ORIGIN` is the folder of the file that names it. `pack.rs` packs
//! the files. The ELF headers are read directly, and no program is executed.

use std::{
    collections::BTreeSet,
    fs,
    io::Read,
    os::unix::ffi::OsStrExt,
    path::{Path, PathBuf},
};

use elf::{ElfBytes, abi, endian::LittleEndian};

/// Folders in which dynamic linkers search last. They differ between distributions.
const FOLDERS: [&str; 6] =
    ["/lib/x86_64-linux-gnu", "/usr/lib/x86_64-linux-gnu", "/lib64", "/usr/lib64", "/lib", "/usr/lib"];

/// The files that a program's headers name.
#[derive(Debug, Default, PartialEq, Eq)]
pub struct Needs {
    /// The interpreter: the dynamic linker of a program, or the program after `#!` of a script.
    pub interpreter: Option<PathBuf>,
    /// Names of libraries.
    pub libraries: Vec<String>,
    /// Folders of `DT_RPATH`, which are also searched for the libraries of libraries.
    pub inherited: Vec<PathBuf>,
    /// Folders of `DT_RUNPATH`.
    pub folders: Vec<PathBuf>,
}

/// Reads the interpreter and the libraries that the file at `path` names. Returns nothing for a file that is
/// neither a program nor a library. Also returns nothing for a program for another machine, because an
/// emulator runs such a program.
///
/// # Errors
///
/// Fails if the file cannot be read or is a damaged program.
pub fn needs(path: &Path) -> Result<Needs, String> {
    let said = |what: &str| format!("cannot read {}: {what}", path.display());
    let bytes = fs::read(path).map_err(|error| said(&error.to_string()))?;
    if let Some(line) = bytes.strip_prefix(b"#!") {
        let line = line.split(|byte| *byte == b'\n').next().unwrap_or_default();
        let line = String::from_utf8_lossy(line);
        let interpreter = line.split_whitespace().next().map(PathBuf::from);
        return Ok(Needs { interpreter, ..Needs::default() });
    }
    if !bytes.starts_with(b"\x7fELF") {
        return Ok(Needs::default());
    }
    let damaged = |error: elf::ParseError| said(&format!("damaged program ({error})"));
    let file = ElfBytes::<LittleEndian>::minimal_parse(&bytes).map_err(damaged)?;
    if file.ehdr.e_machine != abi::EM_X86_64 || file.ehdr.class != elf::file::Class::ELF64 {
        return Ok(Needs::default());
    }
    of_elf(&file, path.parent().unwrap_or(Path::new("/"))).map_err(damaged)
}

/// Reads the needs of an ELF file in the folder `origin`.
fn of_elf(file: &ElfBytes<LittleEndian>, origin: &Path) -> Result<Needs, elf::ParseError> {
    let mut needs = Needs::default();
    let Some(segments) = file.segments() else { return Ok(needs) };
    if let Some(interpreter) = segments.iter().find(|segment| segment.p_type == abi::PT_INTERP) {
        let bytes = file.segment_data(&interpreter)?;
        let bytes = bytes.split(|byte| *byte == 0).next().unwrap_or_default();
        // A separate file of debugging information has the program header of the interpreter, but not the
        // path in it.
        let named = Some(PathBuf::from(std::ffi::OsStr::from_bytes(bytes)));
        needs.interpreter = named.filter(|path| path.is_absolute());
    }
    let Some(dynamic) = file.dynamic()? else { return Ok(needs) };
    let entry = |tag: i64| dynamic.iter().find(|entry| entry.d_tag == tag).map(|entry| entry.d_val());
    // The table gives the address of the names. The names lie in the segment that contains this address.
    let Some(at) = entry(abi::DT_STRTAB) else { return Ok(needs) };
    let holds = |s: &elf::segment::ProgramHeader| {
        s.p_type == abi::PT_LOAD && (s.p_vaddr..s.p_vaddr.saturating_add(s.p_filesz)).contains(&at)
    };
    let Some(segment) = segments.iter().find(holds) else { return Ok(needs) };
    let names = &file.segment_data(&segment)?[(at - segment.p_vaddr) as usize..];
    let name = |offset: u64| {
        let bytes = names.get(offset as usize..).unwrap_or_default();
        String::from_utf8_lossy(bytes.split(|byte| *byte == 0).next().unwrap_or_default()).into_owned()
    };
    let wanted = dynamic.iter().filter(|entry| entry.d_tag == abi::DT_NEEDED);
    needs.libraries = wanted.map(|entry| name(entry.d_val())).collect();
    let folders = |list: u64| {
        let origin = origin.to_string_lossy();
        let folder = |part: &str| part.replace("${ORIGIN}", &origin).replace("$ORIGIN", &origin).into();
        name(list).split(':').filter(|part| !part.is_empty()).map(folder).collect()
    };
    match (entry(abi::DT_RUNPATH), entry(abi::DT_RPATH)) {
        (Some(list), _) => needs.folders = folders(list),
        (None, Some(list)) => needs.inherited = folders(list),
        (None, None) => {}
    }
    Ok(needs)
}

/// The kind of a file, by its first bytes.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Kind {
    /// A program or a shared library for x86-64.
    Ours,
    /// A program or a shared library for another machine.
    Foreign,
    /// Any other file.
    Other,
}

/// Returns the kind of a file.
#[must_use]
pub fn kind(path: &Path) -> Kind {
    let mut first = [0; 20];
    let read = fs::File::open(path).and_then(|mut file| file.read_exact(&mut first));
    // The sixth byte says whether the following numbers begin with their lowest byte.
    let number = if first[5] == 2 { u16::from_be_bytes } else { u16::from_le_bytes };
    let [kind, machine] = [16, 18].map(|at| number([first[at], first[at + 1]]));
    let is_program = first.starts_with(b"\x7fELF") && matches!(kind, abi::ET_EXEC | abi::ET_DYN);
    match read.is_ok() && is_program {
        false => Kind::Other,
        true if first[4] == 2 && machine == abi::EM_X86_64 => Kind::Ours,
        true => Kind::Foreign,
    }
}

/// Returns true if a file is a program or a shared library for x86-64.
#[must_use]
pub fn is_elf(path: &Path) -> bool {
    kind(path) == Kind::Ours
}

/// Returns the paths of all files that the program at `path` needs: interpreters, libraries, and the files
/// that these files need.
///
/// `beside` lists the programs and libraries of the folder that is being packed. A library that is in no
/// search folder is searched for in this list. For example, Java's libraries link to `libjvm.so`, which
/// Java's launcher loads by its path. `preferred` are the folders of `LD_LIBRARY_PATH`.
///
/// # Errors
///
/// Fails if a file cannot be read or a library cannot be found.
pub fn closure(path: &Path, beside: &[PathBuf], preferred: &[PathBuf]) -> Result<BTreeSet<PathBuf>, String> {
    let configured = configured();
    let mut found = BTreeSet::new();
    // Each file with the folders of `DT_RPATH` of the files that load it.
    let mut todo = vec![(path.to_path_buf(), Vec::new())];
    while let Some((path, mut inherited)) = todo.pop() {
        let needs = needs(&fs::canonicalize(&path).unwrap_or(path.clone()))?;
        // Without its interpreter the program is refused by the kernel.
        let mut files: Vec<PathBuf> = needs.interpreter.into_iter().filter(|path| path.exists()).collect();
        inherited.splice(0..0, needs.inherited);
        // With `DT_RUNPATH`, the linker ignores the inherited folders.
        let first: &[PathBuf] = if needs.folders.is_empty() { &inherited } else { &[] };
        for library in &needs.libraries {
            let folders = first.iter().chain(preferred).chain(&needs.folders).chain(&configured);
            let named = |file: &&PathBuf| file.file_name().is_some_and(|name| name == library.as_str());
            let file = find(library, folders).or_else(|| beside.iter().find(named).cloned());
            files.push(
                file.ok_or_else(|| format!("cannot find {library}, which {} links to", path.display()))?,
            );
        }
        let new = files.into_iter().filter(|file| found.insert(file.clone()));
        todo.extend(new.map(|file| (file, inherited.clone())));
    }
    Ok(found)
}

/// Returns the path of a library in the first of these folders that has it.
fn find<'a>(library: &str, mut folders: impl Iterator<Item = &'a PathBuf>) -> Option<PathBuf> {
    if library.contains('/') {
        return Some(library.into());
    }
    // Some folders also have libraries for other machines, which are skipped.
    folders.find_map(|folder| Some(folder.join(library)).filter(|file| is_elf(file)))
}

/// Returns the folders of `/etc/ld.so.conf`, then [`FOLDERS`].
fn configured() -> Vec<PathBuf> {
    let mut folders = Vec::new();
    read_configuration(Path::new("/etc/ld.so.conf"), &mut folders, 0);
    folders.extend(FOLDERS.map(PathBuf::from));
    folders
}

/// Adds the folders in a configuration file of the dynamic linker, and in the files that it includes.
fn read_configuration(file: &Path, folders: &mut Vec<PathBuf>, depth: u32) {
    let text = fs::read_to_string(file).unwrap_or_default();
    for line in text.lines().map(|line| line.split('#').next().unwrap_or_default().trim()) {
        if let Some(pattern) = line.strip_prefix("include").map(str::trim).filter(|_| depth < 4) {
            for file in matching(&file.with_file_name(pattern)) {
                read_configuration(&file, folders, depth + 1);
            }
        } else if line.starts_with('/') {
            folders.push(line.into());
        }
    }
}

/// Returns the files that match a pattern. A star in the last part matches any text, as in
/// `ld.so.conf.d/*.conf`.
fn matching(pattern: &Path) -> Vec<PathBuf> {
    let (Some(folder), Some(name)) = (pattern.parent(), pattern.file_name()) else { return Vec::new() };
    let name = name.to_string_lossy();
    let Some((front, back)) = name.split_once('*') else { return vec![pattern.into()] };
    let fits = |name: &str| {
        name.len() >= front.len() + back.len() && name.starts_with(front) && name.ends_with(back)
    };
    let files = fs::read_dir(folder).into_iter().flatten().flatten();
    let mut files: Vec<PathBuf> = files.map(|file| file.path()).collect();
    files.retain(|file| file.file_name().is_some_and(|name| fits(&name.to_string_lossy())));
    files.sort();
    files
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::boot::scratch::Scratch;
    use std::process::Command;

    /// The test program itself links to the C library.
    #[test]
    fn dynamic_program_needs_its_linker_and_library() {
        let itself = std::env::current_exe().expect("a test has an executable");
        let all = closure(&itself, &[], &[]).expect("all files of a running program exist");
        let names: Vec<_> = all.iter().filter_map(|file| file.file_name()?.to_str()).collect();
        assert!(names.iter().any(|name| name.starts_with("ld-linux")), "{names:?}");
        assert!(names.contains(&"libc.so.6"), "{names:?}");
    }

    #[test]
    fn script_needs_its_interpreter() {
        let folder = Scratch::new("script").expect("a folder");
        let script = folder.path().join("script");
        fs::write(&script, "#! /bin/sh -e\necho\n").expect("a file");
        assert_eq!(needs(&script).expect("readable").interpreter, Some("/bin/sh".into()));
        fs::write(&script, "text").expect("a file");
        assert_eq!(needs(&script), Ok(Needs::default()));
        fs::write(&script, b"\x7fELF").expect("a file");
        assert!(needs(&script).is_err_and(|why| why.contains("damaged program")));
    }

    /// Compiles C with these arguments of gcc. Returns false if this machine has no gcc.
    fn compiles(text: &str, folder: &Path, words: &[&str]) -> bool {
        fs::write(folder.join("source.c"), text).expect("a file");
        let run = Command::new("gcc").current_dir(folder).arg("source.c").args(words).status();
        run.is_ok_and(|status| status.success())
    }

    #[test]
    fn libraries_are_found_in_all_folders_of_the_linker() {
        let folder = Scratch::new("folders").expect("a folder");
        let at = |name: &str| folder.path().join(name);
        for name in ["own", "listed"] {
            fs::create_dir(at(name)).expect("a folder");
        }
        let shared = ["-shared", "-fPIC", "-o"];
        if !compiles(
            "int inner(void) { return 1; }",
            folder.path(),
            &[&shared[..], &["own/libinner.so"]].concat(),
        ) {
            return;
        }
        let outer = [&shared[..], &["own/libouter.so", "-Lown", "-linner"]].concat();
        assert!(compiles("int inner(void); int outer(void) { return inner(); }", folder.path(), &outer));
        let needs_outer = "int outer(void); int main(void) { return outer(); }";
        let with = |name: &'static str, tags: &'static str| {
            let path = "-Wl,-rpath,$ORIGIN/own,-rpath-link,own";
            assert!(compiles(needs_outer, folder.path(), &["-o", name, "-Lown", "-louter", path, tags]));
        };
        with("by-rpath", "-Wl,--disable-new-dtags");
        with("by-runpath", "-Wl,--enable-new-dtags");
        let found = closure(&at("by-rpath"), &[], &[]).expect("all libraries");
        assert!(found.contains(&at("own/libouter.so")) && found.contains(&at("own/libinner.so")));
        // DT_RUNPATH is not inherited, so the library of the library is not found.
        let why = closure(&at("by-runpath"), &[], &[]).expect_err("libinner.so is missing");
        assert!(why.contains("cannot find libinner.so"), "{why}");
        let found = closure(&at("by-runpath"), &[], &[at("own")]).expect("all libraries");
        assert!(found.contains(&at("own/libinner.so")));
        // LD_LIBRARY_PATH is searched before DT_RUNPATH and after DT_RPATH.
        fs::copy(at("own/libouter.so"), at("listed/libouter.so")).expect("a copy");
        let listed = [at("listed"), at("own")];
        let found = closure(&at("by-runpath"), &[], &listed).expect("all libraries");
        assert!(found.contains(&at("listed/libouter.so")));
        let found = closure(&at("by-rpath"), &[], &listed).expect("all libraries");
        assert!(found.contains(&at("own/libouter.so")));
    }

    #[test]
    fn kind_of_a_program_depends_on_its_machine() {
        let folder = Scratch::new("kinds").expect("a folder");
        let file = folder.path().join("file");
        let write = |machine: u16, big: bool| {
            let mut bytes = *b"\x7fELF\x02\x01\x01\0\0\0\0\0\0\0\0\0\x02\0\0\0";
            bytes[18..].copy_from_slice(&machine.to_le_bytes());
            if big {
                bytes[5] = 2;
                bytes[16..18].reverse();
                bytes[18..].reverse();
            }
            fs::write(&file, bytes).expect("a file");
            kind(&file)
        };
        assert_eq!(write(abi::EM_X86_64, false), Kind::Ours);
        assert_eq!(write(abi::EM_AARCH64, false), Kind::Foreign);
        assert_eq!(write(abi::EM_S390, true), Kind::Foreign);
        fs::write(&file, "text").expect("a file");
        assert_eq!(kind(&file), Kind::Other);
    }

    #[test]
    fn linker_configuration_includes_other_files() {
        let folder = Scratch::new("conf").expect("a folder");
        let at = |name: &str| folder.path().join(name);
        fs::create_dir(at("d")).expect("a folder");
        fs::write(at("main"), "# comment\n/first\ninclude d/*.conf\n").expect("a file");
        fs::write(at("d/b.conf"), "/third").expect("a file");
        fs::write(at("d/a.conf"), "/second # said\n").expect("a file");
        fs::write(at("d/other"), "/never").expect("a file");
        let mut folders = Vec::new();
        read_configuration(&at("main"), &mut folders, 0);
        assert_eq!(folders, ["/first", "/second", "/third"].map(PathBuf::from));
    }
}
