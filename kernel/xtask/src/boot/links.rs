//! What a program needs to start: its interpreter, and the shared libraries that it links to.
//!
//! Libraries are looked for as the dynamic linker looks: `DT_RUNPATH`, or `DT_RPATH` where there is none, then
//! the folders of `/etc/ld.so.conf`, then its own (ld.so(8)).

use std::{
    collections::BTreeSet,
    fs,
    io::Read,
    os::unix::ffi::OsStrExt,
    path::{Path, PathBuf},
};

use elf::{ElfBytes, abi, endian::LittleEndian};

/// Where the dynamic linkers of distributions look at last.
const FOLDERS: [&str; 6] =
    ["/lib/x86_64-linux-gnu", "/usr/lib/x86_64-linux-gnu", "/lib64", "/usr/lib64", "/lib", "/usr/lib"];

/// What a program's file says of what it needs.
#[derive(Debug, Default, PartialEq, Eq)]
pub struct Needs {
    /// The interpreter: the dynamic linker, or of a script the program after `#!`.
    pub interpreter: Option<PathBuf>,
    /// Names of libraries.
    pub libraries: Vec<String>,
    /// Where to look first.
    pub folders: Vec<PathBuf>,
}

/// Reads what the file at `path` needs. A file that is neither a program nor a library needs nothing, and nor
/// does a program for another machine, which an emulator runs.
///
/// # Errors
///
/// It cannot be read, or it is a damaged program.
pub fn needs(path: &Path) -> Result<Needs, String> {
    let said = |what: &str| format!("{}: {what}", path.display());
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
    let damaged = |error: elf::ParseError| said(&format!("a damaged program ({error})"));
    let file = ElfBytes::<LittleEndian>::minimal_parse(&bytes).map_err(damaged)?;
    if file.ehdr.e_machine != abi::EM_X86_64 || file.ehdr.class != elf::file::Class::ELF64 {
        return Ok(Needs::default());
    }
    of_elf(&file, path.parent().unwrap_or(Path::new("/"))).map_err(damaged)
}

fn of_elf(file: &ElfBytes<LittleEndian>, origin: &Path) -> Result<Needs, elf::ParseError> {
    let mut needs = Needs::default();
    let Some(segments) = file.segments() else { return Ok(needs) };
    if let Some(interpreter) = segments.iter().find(|segment| segment.p_type == abi::PT_INTERP) {
        let bytes = file.segment_data(&interpreter)?;
        let bytes = bytes.split(|byte| *byte == 0).next().unwrap_or_default();
        // A file of debugging information has the header, and not what it tells of.
        let named = Some(PathBuf::from(std::ffi::OsStr::from_bytes(bytes)));
        needs.interpreter = named.filter(|path| path.is_absolute());
    }
    let Some(dynamic) = file.dynamic()? else { return Ok(needs) };
    let entry = |tag: i64| dynamic.iter().find(|entry| entry.d_tag == tag).map(|entry| entry.d_val());
    // The table of names is at an address; the segment that is loaded there has it.
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
    if let Some(list) = entry(abi::DT_RUNPATH).or(entry(abi::DT_RPATH)) {
        let origin = origin.to_string_lossy();
        let folder = |part: &str| part.replace("${ORIGIN}", &origin).replace("$ORIGIN", &origin).into();
        needs.folders = name(list).split(':').filter(|part| !part.is_empty()).map(folder).collect();
    }
    Ok(needs)
}

/// Returns whether a file is a program, or a library that can be linked to, for x86-64.
#[must_use]
pub fn is_elf(path: &Path) -> bool {
    let mut first = [0; 20];
    let read = fs::File::open(path).and_then(|mut file| file.read_exact(&mut first));
    let [kind, machine] = [16, 18].map(|at| u16::from_le_bytes([first[at], first[at + 1]]));
    let is_ours = first.starts_with(b"\x7fELF\x02") && machine == abi::EM_X86_64;
    read.is_ok() && is_ours && matches!(kind, abi::ET_EXEC | abi::ET_DYN)
}

/// Returns every file that the program at `path` needs, as the path by which it is found: interpreters,
/// libraries, and the files that those need.
///
/// `beside` are the programs and libraries of the folder that is taken along. A library that no search folder
/// has is looked for there: Java's libraries link to `libjvm.so`, which its launcher loads by its path.
///
/// # Errors
///
/// Fails if a file cannot be read, or if a library is nowhere.
pub fn closure(path: &Path, beside: &[PathBuf]) -> Result<BTreeSet<PathBuf>, String> {
    let configured = configured();
    let mut found = BTreeSet::new();
    let mut todo = vec![path.to_path_buf()];
    while let Some(path) = todo.pop() {
        let needs = needs(&fs::canonicalize(&path).unwrap_or(path.clone()))?;
        let mut files: Vec<PathBuf> = needs.interpreter.iter().cloned().collect();
        for library in &needs.libraries {
            let folders = needs.folders.iter().chain(&configured);
            let named = |file: &&PathBuf| file.file_name().is_some_and(|name| name == library.as_str());
            let file = find(library, folders).or_else(|| beside.iter().find(named).cloned());
            files.push(file.ok_or_else(|| {
                format!("{}: links to {library}, which is nowhere on this machine", path.display())
            })?);
        }
        todo.extend(files.into_iter().filter(|file| found.insert(file.clone())));
    }
    Ok(found)
}

fn find<'a>(library: &str, mut folders: impl Iterator<Item = &'a PathBuf>) -> Option<PathBuf> {
    if library.contains('/') {
        return Some(library.into());
    }
    // A library of another machine, as beside ours in some folders, is passed by.
    folders.find_map(|folder| Some(folder.join(library)).filter(|file| is_elf(file)))
}

/// The folders of `/etc/ld.so.conf`, then the linker's own.
fn configured() -> Vec<PathBuf> {
    let mut folders = Vec::new();
    read_configuration(Path::new("/etc/ld.so.conf"), &mut folders, 0);
    folders.extend(FOLDERS.map(PathBuf::from));
    folders
}

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

/// Files that a pattern means: a star in its last part stands for anything, as in `ld.so.conf.d/*.conf`.
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

    /// This very program links to the C library.
    #[test]
    fn a_dynamic_program_needs_its_linker_and_library() {
        let itself = std::env::current_exe().expect("a test has a program");
        let all = closure(&itself, &[]).expect("it runs, so all is there");
        let names: Vec<_> = all.iter().filter_map(|file| file.file_name()?.to_str()).collect();
        assert!(names.iter().any(|name| name.starts_with("ld-linux")), "{names:?}");
        assert!(names.contains(&"libc.so.6"), "{names:?}");
    }

    #[test]
    fn a_script_needs_its_interpreter() {
        let folder = Scratch::new("script").expect("a folder");
        let script = folder.path().join("script");
        fs::write(&script, "#! /bin/sh -e\necho\n").expect("a file");
        assert_eq!(needs(&script).expect("readable").interpreter, Some("/bin/sh".into()));
        fs::write(&script, "text").expect("a file");
        assert_eq!(needs(&script), Ok(Needs::default()));
        fs::write(&script, b"\x7fELF").expect("a file");
        assert!(needs(&script).is_err_and(|why| why.contains("damaged program")));
    }

    #[test]
    fn configurations_include_others() {
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
