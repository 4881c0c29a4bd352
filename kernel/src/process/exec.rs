//! Loads a program: makes a new address space, maps the segments of the ELF file, and writes the first stack.
//! Nothing here changes the calling process; `calls/processes.rs` replaces the old space once the new one is
//! complete, and `start.rs` loads the first program.
//!
//! The files of programs may contain anything, so every address and size of a header is checked or computed
//! without overflow. Memory of the new space is written by the engine (`write_memory`), not through page
//! faults. The program `processes.c` of the tests executes programs, and `canonical.c` checks entry points. A
//! new entry of the auxiliary vector belongs in `write_stack`.

use crate::arch::clock;
use crate::arch::frame::{Frame, UserAddr};
use crate::errno;
use crate::files::access::Running;
use crate::files::tree::{self, Node};
use crate::platform::{Machine, Space, engine};
use crate::process::{
    ids::Ids, layout::Layout, limits::Limits, names::up_to_zero, signal::frame::most_bytes,
};
use crate::sched::{charge, checkpoint};
use alloc::sync::Arc;
use alloc::vec::Vec;
use core::ops::Range;
use core::sync::atomic::Ordering::Relaxed;
use elf::abi::{EM_X86_64, ET_DYN, ET_EXEC, PF_R, PF_W, PF_X, PT_GNU_STACK, PT_INTERP, PT_LOAD, PT_PHDR};
use elf::endian::LittleEndian;
use elf::file::{Class, FileHeader};
use elf::parse::ParseAt;
use elf::segment::ProgramHeader;
use freehold::PAGE_SIZE;
use freehold::counted::Counted;
use freehold::error::Errno;
use freehold::file::{File, FileAccess, Mapping};
use freehold::remote::AccessMode;
use freehold::space::{AddressSpace, Arguments, MapFlags, Prot, SpaceConfig};
use linux_raw_sys::auxvec::{
    AT_BASE, AT_CLKTCK, AT_EGID, AT_ENTRY, AT_EUID, AT_EXECFN, AT_FLAGS, AT_GID, AT_HWCAP, AT_MINSIGSTKSZ,
    AT_NULL, AT_PAGESZ, AT_PHDR, AT_PHENT, AT_PHNUM, AT_RANDOM, AT_SECURE, AT_UID,
};

/// Base address of position-independent programs.
const PIE_BASE: u64 = 0x5555_5555_4000;
/// End of the stack.
const STACK_TOP: u64 = 0x7fff_ffff_f000;
/// Initial size of the stack, which grows.
const STACK_BYTES: u64 = 132 << 10;
/// Size of a program header, in bytes.
const PROGRAM_HEADER: usize = 56;
/// Maximum number of program headers: those that fit into 64 KiB.
const MAX_HEADERS: u16 = (65536 / PROGRAM_HEADER) as u16;
/// Maximum size of all arguments and the environment, in bytes, whatever the limit of the stack is.
const MAX_ARGUMENTS: u64 = 6 << 20;
/// Size that arguments and the environment may have with any limit of the stack (ARG_MAX).
const MIN_ARGUMENTS: u64 = 128 << 10;
/// Maximum size of one argument or environment string, with its terminating zero byte.
pub const MAX_ARGUMENT: usize = 128 << 10;

/// Returns the number of bytes that the path of a program, its arguments and its environment may have together,
/// with their terminating zero bytes and with a pointer for each string. `stack` is the limit of the stack: the
/// strings may have a quarter of it.
pub fn room_for_strings(stack: u64) -> usize {
    let room = (stack / 4).clamp(MIN_ARGUMENTS, MAX_ARGUMENTS);
    room.min(stack.max(PAGE_SIZE)) as usize
}

/// The program headers of an ELF file.
type Headers = Vec<ProgramHeader>;

/// Arguments and environment of a program, without the terminating zero bytes.
#[derive(Default, Clone)]
pub struct Strings {
    pub arguments: Vec<Vec<u8>>,
    pub environment: Vec<Vec<u8>>,
}

/// A program that is loaded into a new address space.
pub struct Loaded {
    pub space: Space,
    /// The registers with which the program begins.
    pub frame: Frame,
    pub layout: Layout,
}

/// Returns the name of a thread that executes this path.
pub fn short_name(path: &[u8]) -> [u8; 16] {
    let last = path.rsplit(|byte| *byte == b'/').next().unwrap_or_default();
    let (mut name, kept) = ([0; 16], last.len().min(15));
    name[..kept].copy_from_slice(&last[..kept]);
    name
}

/// A mapped ELF file.
struct Image {
    /// Address of the first instruction.
    entry: u64,
    /// Address of the program headers in memory; 0 if no segment contains them.
    headers: u64,
    /// Number of program headers.
    header_count: usize,
    code: Range<u64>,
    data: Range<u64>,
    /// End of the last segment.
    end: u64,
    /// True if the headers ask for an executable stack (`PT_GNU_STACK`).
    stack_runs: bool,
}

/// The file of a program or an interpreter, and its headers.
struct Elf {
    node: Running,
    header: FileHeader<LittleEndian>,
    headers: Headers,
}

impl Elf {
    /// Reads the headers of a file.
    fn open(node: Running) -> Result<Self, Errno> {
        let (header, headers) = read_headers(node.mapping().ok_or(Errno::EACCES)?)?;
        Ok(Elf { node, header, headers })
    }

    /// Returns the range of the pages of all loaded segments, with the addresses of the file.
    fn span(&self) -> Result<Range<u64>, Errno> {
        let parts = || self.headers.iter().filter(|part| part.p_type == PT_LOAD);
        let start = parts().map(|part| part.p_vaddr).min().ok_or(errno::ENOEXEC)?;
        let ends = parts().map(|part| part.p_vaddr.saturating_add(part.p_memsz).min(UserAddr::END));
        let end = ends.max().unwrap_or_default().next_multiple_of(PAGE_SIZE);
        Ok(start & !(PAGE_SIZE - 1)..end)
    }

    /// Returns the number to add to the addresses of the file so that its pages begin at `at`; 0 for a file with
    /// fixed addresses.
    fn base(&self, at: u64) -> Result<u64, Errno> {
        if self.header.e_type == ET_EXEC { Ok(0) } else { Ok(at.wrapping_sub(self.span()?.start)) }
    }
}

/// A program that can be loaded.
pub struct Program {
    /// The file of the program itself.
    own: Elf,
    /// The interpreter (the dynamic linker), if the headers name one. The program starts there.
    interpreter: Option<Elf>,
}

impl Program {
    /// Returns the file of the program.
    pub fn into_file(self) -> Running {
        self.own.node
    }
}

/// Checks that a file can be executed, and excludes writers from the file.
///
/// # Errors
///
/// EACCES if the node is no regular file or is not executable; ETXTBSY if it is open for writing.
pub fn begin(node: Arc<Node>) -> Result<Running, Errno> {
    if node.mapping().is_none() || node.mode.load(Relaxed) & 0o111 == 0 {
        return Err(Errno::EACCES);
    }
    Running::begin(node)
}

/// Reads the headers of a program and of its interpreter. A relative path of the interpreter begins at `here`.
///
/// # Errors
///
/// ENOEXEC if the file is no program for this machine; ELIBBAD or EIO if its interpreter is none; fails also like
/// [`tree::lookup`] and [`begin`].
pub fn open(node: Running, here: &Arc<Node>) -> Result<Program, Errno> {
    let own = Elf::open(node)?;
    let interpreter = match interpreter(&own.node, &own.headers)? {
        // An empty name is that of the working directory.
        Some(path) if path.is_empty() => return Err(Errno::EACCES),
        Some(path) => Some(open_interpreter(tree::lookup(here, &path, true)?)?),
        None => None,
    };
    Ok(Program { own, interpreter })
}

/// Reads the headers of an interpreter.
fn open_interpreter(node: Arc<Node>) -> Result<Elf, Errno> {
    let node = begin(node)?;
    read_exact(node.mapping().ok_or(Errno::EACCES)?, 0, &mut [0; 64]).map_err(|_| Errno::EIO)?;
    Elf::open(node).map_err(|error| if error == errno::ENOEXEC { errno::ELIBBAD } else { error })
}

/// Makes a new address space with the program, and the frame with which the program begins. The space has the
/// limits and the privileges of a process with these `limits` and `ids`.
///
/// # Errors
///
/// Fails if the headers request addresses that no program can have, or if memory runs out. On Linux the old
/// program is already gone when such a failure occurs, so the caller must end the process by SIGSEGV.
pub fn load(
    program: &Program,
    path: &[u8],
    strings: &Strings,
    limits: &Limits,
    ids: &Ids,
) -> Result<Loaded, Errno> {
    let Program { own, interpreter } = program;
    let base = own.base(PIE_BASE)?;
    let end = base.wrapping_add(own.span()?.end).min(UserAddr::END);
    let config = SpaceConfig::new().brk(end.next_multiple_of(PAGE_SIZE));
    let space = AddressSpace::new(engine(), &config).map_err(|_| Errno::ENOMEM)?;
    limits.apply(&space, ids);
    let image = map(&space, own, base)?;
    let (mut entry, mut interpreter_base) = (image.entry, 0);
    if let Some(interpreter) = interpreter {
        let flags = MapFlags::PRIVATE | MapFlags::ANONYMOUS;
        let span = interpreter.span()?;
        let room = span.end.saturating_sub(span.start);
        let at = space.mmap(0, room, Prot::empty(), flags, None, 0).map_err(|error| error.errno())?;
        space.munmap(at, room).map_err(|error| error.errno())?;
        interpreter_base = interpreter.base(at)?;
        entry = map(&space, interpreter, interpreter_base)?.entry;
    }
    let begin = UserAddr::new(entry).ok_or(errno::ENOEXEC)?;
    let (stack, vector) = write_stack(&space, path, strings, &image, interpreter_base)?;
    let layout = Layout { code: image.code, data: image.data, stack, vector };
    Ok(Loaded { space, frame: Frame::of_program(begin, stack), layout })
}

/// Maximum length of a chain of scripts in which each script is run by the next.
const MAX_SCRIPTS: usize = 5;
/// Bytes of a script's first line that are read.
const FIRST_LINE: usize = 256;

/// Returns the program that runs a file: the file itself or, for a script, the program that its first line
/// names (`#!`). For a script, inserts the argument of that line and the script's path before the other
/// arguments. Relative paths begin at `here`.
///
/// # Errors
///
/// ENOEXEC if the first line names no program, ELOOP if scripts are nested too deeply; fails also like
/// [`tree::lookup`] and [`begin`].
pub fn interpret(
    mut node: Running,
    path: &[u8],
    here: &Arc<Node>,
    strings: &mut Strings,
) -> Result<Running, Errno> {
    let mut path = path.to_vec();
    for _ in 0..=MAX_SCRIPTS {
        let mut bytes = [0; FIRST_LINE];
        let read = match node.mapping() {
            Some(file) => file.read_at(0, &mut bytes).map_err(|error| error.errno())?,
            None => return Err(Errno::EACCES),
        };
        let Some(rest) = bytes[..read].strip_prefix(b"#!") else { return Ok(node) };
        let line = rest.split(|byte| *byte == b'\n').next().unwrap_or_default().trim_ascii();
        let end = line.iter().position(u8::is_ascii_whitespace).unwrap_or(line.len());
        let (program, argument) = (&line[..end], line[end..].trim_ascii());
        if program.is_empty() {
            return Err(errno::ENOEXEC);
        }
        let mut arguments = alloc::vec![program.to_vec()];
        if !argument.is_empty() {
            arguments.push(argument.to_vec());
        }
        arguments.push(core::mem::replace(&mut path, program.to_vec()));
        arguments.extend(strings.arguments.drain(..).skip(1));
        strings.arguments = arguments;
        node = begin(tree::lookup(here, program, true)?)?;
    }
    Err(errno::ELOOP)
}

/// Reads and checks the ELF header and the program headers.
fn read_headers(file: &Counted<Mapping<Machine>>) -> Result<(FileHeader<LittleEndian>, Headers), Errno> {
    let mut bytes = [0; 64];
    read_exact(file, 0, &mut bytes)?;
    let ident = elf::file::parse_ident::<LittleEndian>(&bytes[..16]).map_err(|_| errno::ENOEXEC)?;
    let header = FileHeader::parse_tail(ident, &bytes[16..]).map_err(|_| errno::ENOEXEC)?;
    let fits = header.class == Class::ELF64 && header.e_machine == EM_X86_64;
    let counts =
        (1..=MAX_HEADERS).contains(&header.e_phnum) && usize::from(header.e_phentsize) == PROGRAM_HEADER;
    if !fits || !counts || !matches!(header.e_type, ET_EXEC | ET_DYN) {
        return Err(errno::ENOEXEC);
    }
    let mut table = alloc::vec![0; usize::from(header.e_phnum) * PROGRAM_HEADER];
    read_exact(file, header.e_phoff, &mut table)?;
    let mut at = 0;
    let parse = |_| ProgramHeader::parse_at(LittleEndian, Class::ELF64, &mut at, &table);
    let headers: Result<Headers, _> = (0..header.e_phnum).map(parse).collect();
    Ok((header, headers.map_err(|_| errno::ENOEXEC)?))
}

/// Reads until `out` is full. Fails with ENOEXEC at the end of the file.
fn read_exact(file: &Counted<Mapping<Machine>>, at: u64, out: &mut [u8]) -> Result<(), Errno> {
    match file.read_at(at, out) {
        Ok(read) if read == out.len() => Ok(()),
        Ok(_) => Err(errno::ENOEXEC),
        Err(error) => Err(error.errno()),
    }
}

/// Returns the path of the interpreter that the headers name (`PT_INTERP`).
fn interpreter(file: &Arc<Node>, headers: &Headers) -> Result<Option<Vec<u8>>, Errno> {
    let Some(part) = headers.iter().find(|part| part.p_type == PT_INTERP) else { return Ok(None) };
    if part.p_filesz < 2 || part.p_filesz > 4096 {
        return Err(errno::ENOEXEC);
    }
    let mut path = alloc::vec![0; part.p_filesz as usize];
    read_exact(file.mapping().ok_or(Errno::EACCES)?, part.p_offset, &mut path).map_err(|_| Errno::EIO)?;
    if path.last() != Some(&0) {
        return Err(errno::ENOEXEC);
    }
    path.truncate(up_to_zero(&path).len());
    Ok(Some(path))
}

/// Maps the segments of an ELF file that have type `PT_LOAD`. `base` is added to their addresses.
fn map(space: &Space, elf: &Elf, base: u64) -> Result<Image, Errno> {
    let Elf { node, header, headers } = elf;
    let mapping = node.mapping().ok_or(Errno::EACCES)?;
    let path = tree::path_of(node);
    let name = core::str::from_utf8(&path).unwrap_or_default();
    let file = File::new(mapping, FileAccess::READ.shows_cache(true), name).map_err(|_| Errno::ENOMEM)?;
    let (mut end, mut table) = (0, 0);
    let (mut code, mut data) = (None::<Range<u64>>, 0..0);
    for part in headers {
        let (at, file_end) = (base.wrapping_add(part.p_vaddr), part.p_vaddr.wrapping_add(part.p_filesz));
        match part.p_type {
            PT_LOAD => {
                end = end.max(map_part(space, &file, part, base)?);
                data = data.start.max(at)..data.end.max(base.wrapping_add(file_end));
                if part.p_flags & PF_X != 0 {
                    let of_part = at..base.wrapping_add(file_end);
                    let joined = |code: Range<u64>| code.start.min(at)..code.end.max(of_part.end);
                    code = Some(code.map_or(of_part.clone(), joined));
                }
            }
            PT_PHDR => table = base.wrapping_add(part.p_vaddr),
            _ => {}
        }
        let inside = part.p_offset..part.p_offset.saturating_add(part.p_filesz);
        if part.p_type == PT_LOAD && table == 0 && inside.contains(&header.e_phoff) {
            table = base.wrapping_add(part.p_vaddr).wrapping_add(header.e_phoff - part.p_offset);
        }
    }
    let entry = base.wrapping_add(header.e_entry);
    let stack_runs = headers.iter().any(|part| part.p_type == PT_GNU_STACK && part.p_flags & PF_X != 0);
    Ok(Image {
        entry,
        headers: table,
        header_count: headers.len(),
        code: code.unwrap_or_default(),
        data,
        end,
        stack_runs,
    })
}

/// Maps one segment. Returns its end address. The part of the segment behind the file's contents is zero.
fn map_part(
    space: &Space,
    file: &Counted<File<Machine>>,
    part: &ProgramHeader,
    base: u64,
) -> Result<u64, Errno> {
    let within = part.p_vaddr % PAGE_SIZE;
    // As on Linux, the addresses of the file must be those of a program even if the segment is moved.
    let fits = part.p_vaddr.checked_add(part.p_memsz).is_some_and(|end| end <= UserAddr::END);
    let valid = fits && part.p_offset % PAGE_SIZE == within && part.p_filesz <= part.p_memsz;
    if !valid {
        return Err(errno::ENOEXEC);
    }
    let at = base.wrapping_add(part.p_vaddr);
    let start = at - within;
    let end = at.checked_add(part.p_memsz).filter(|end| *end <= UserAddr::END).ok_or(errno::ENOEXEC)?;
    let file_end = at + part.p_filesz;
    let mut prot = Prot::empty();
    prot.set(Prot::READ, part.p_flags & PF_R != 0);
    prot.set(Prot::WRITE, part.p_flags & PF_W != 0);
    prot.set(Prot::EXEC, part.p_flags & PF_X != 0);
    let private = MapFlags::PRIVATE | MapFlags::FIXED;
    let zeroes_from = match part.p_filesz {
        0 => start,
        bytes => {
            space
                .mmap(start, bytes + within, prot, private, Some(file), part.p_offset - within)
                .map_err(|error| error.errno())?;
            file_end.next_multiple_of(PAGE_SIZE)
        }
    };
    if end > file_end {
        // The part of the last page behind the file's contents must be zero, because ld.so uses this part for
        // its own data.
        let rest = zeroes_from.saturating_sub(file_end) as usize;
        if part.p_filesz != 0 && rest > 0 {
            let zeroes = [0; PAGE_SIZE as usize / 4];
            for done in (0..rest).step_by(zeroes.len()) {
                let bytes = &zeroes[..zeroes.len().min(rest - done)];
                space
                    .write_memory(file_end + done as u64, bytes, AccessMode::Forced)
                    .map_err(|error| error.errno())?;
            }
        }
        if end > zeroes_from {
            space
                .mmap(zeroes_from, end - zeroes_from, prot, private | MapFlags::ANONYMOUS, None, 0)
                .map_err(|error| error.errno())?;
        }
    }
    Ok(end)
}

/// Maps the stack and writes its initial contents. Returns the stack pointer and the auxiliary vector.
fn write_stack(
    space: &Space,
    path: &[u8],
    strings: &Strings,
    image: &Image,
    interpreter_base: u64,
) -> Result<(u64, Vec<u8>), Errno> {
    let flags = MapFlags::PRIVATE | MapFlags::ANONYMOUS | MapFlags::FIXED | MapFlags::GROWSDOWN;
    let mut prot = Prot::READ | Prot::WRITE;
    prot.set(Prot::EXEC, image.stack_runs);
    space.mmap(STACK_TOP - STACK_BYTES, STACK_BYTES, prot, flags, None, 0).map_err(|error| error.errno())?;
    let mut at = STACK_TOP - 8;
    let mut put = |bytes: &[u8]| -> Result<u64, Errno> {
        at -= bytes.len() as u64;
        space.write_memory(at, bytes, AccessMode::Forced).map_err(|error| error.errno())?;
        Ok(at)
    };
    put(&[0])?;
    let name = put(path)?;
    let mut put_all = |strings: &[Vec<u8>]| -> Result<(Vec<u64>, Range<u64>), Errno> {
        let mut places = Vec::new();
        let (mut end, mut start) = (None, 0);
        charge::reserve(&mut places, strings.len())?;
        for text in strings.iter().rev() {
            checkpoint()?;
            let zero = put(&[0])?;
            start = put(text)?;
            end.get_or_insert(zero + 1);
            places.push(start);
        }
        places.reverse();
        Ok((places, end.map_or(0..0, |end| start..end)))
    };
    let (environment, env) = put_all(&strings.environment)?;
    let (arguments, args) = put_all(&strings.arguments)?;
    let mut random = [0; 16];
    crate::arch::random::fill(&mut random);
    let random = put(&random)?;
    let auxiliary = [
        (AT_PHDR, image.headers),
        (AT_PHENT, PROGRAM_HEADER as u64),
        (AT_PHNUM, image.header_count as u64),
        (AT_PAGESZ, PAGE_SIZE),
        (AT_BASE, interpreter_base),
        (AT_FLAGS, 0),
        (AT_ENTRY, image.entry),
        (AT_UID, 0),
        (AT_EUID, 0),
        (AT_GID, 0),
        (AT_EGID, 0),
        (AT_SECURE, 0),
        (AT_MINSIGSTKSZ, most_bytes()),
        (AT_CLKTCK, 100),
        (AT_HWCAP, core::arch::x86_64::__cpuid(1).edx.into()),
        (AT_RANDOM, random),
        (AT_EXECFN, name),
        (AT_NULL, 0),
    ];
    let mut words = Vec::new();
    charge::reserve(&mut words, arguments.len() + environment.len() + 2 * auxiliary.len() + 3)?;
    words.push(arguments.len() as u64);
    words.extend(&arguments);
    words.push(0);
    words.extend(&environment);
    words.push(0);
    words.extend(auxiliary.iter().flat_map(|(kind, value)| [u64::from(*kind), *value]));
    let mut bytes = Vec::new();
    charge::reserve(&mut bytes, words.len() * 8)?;
    bytes.extend(words.iter().flat_map(|word: &u64| word.to_ne_bytes()));
    let stack = (random - bytes.len() as u64) & !15;
    space.write_memory(stack, &bytes, AccessMode::Forced).map_err(|error| error.errno())?;
    let _ = (space.set_arguments(&Arguments { args, env }), image.end, clock::now_ns());
    let vector = bytes.split_off(bytes.len() - auxiliary.len() * 16);
    Ok((stack, vector))
}
