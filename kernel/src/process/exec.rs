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
use crate::arch::preempt::preempt_point;
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
#[derive(Default)]
pub struct Strings {
    pub arguments: Texts,
    pub environment: Texts,
}

/// A list of strings, which may be hundreds of thousands.
#[derive(Default)]
pub struct Texts(pub Vec<Vec<u8>>);

impl Drop for Texts {
    // The drop of a plain list would let in no interrupts.
    fn drop(&mut self) {
        while self.0.pop().is_some() {
            preempt_point();
        }
    }
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

    /// Returns the range of the pages of all loaded segments, with the addresses of the file. The range is empty
    /// if there are none.
    ///
    /// # Errors
    ///
    /// EINVAL if the range has no end.
    fn span(&self) -> Result<Range<u64>, Errno> {
        let parts = || self.headers.iter().filter(|part| part.p_type == PT_LOAD);
        let start = parts().map(|part| part.p_vaddr).min().unwrap_or_default();
        let end = parts().map(|part| part.p_vaddr.saturating_add(part.p_memsz)).max().unwrap_or_default();
        let end = end.checked_next_multiple_of(PAGE_SIZE).ok_or(Errno::EINVAL)?;
        Ok(start & !(PAGE_SIZE - 1)..end)
    }

    /// Returns true if the file may be loaded at any address.
    fn is_movable(&self) -> bool {
        self.header.e_type == ET_DYN
    }

    /// Returns the number to add to the addresses of the file so that its pages begin at `at`; 0 for a file with
    /// fixed addresses.
    fn base(&self, at: u64) -> Result<u64, Errno> {
        if self.is_movable() { Ok(at.wrapping_sub(self.span()?.start)) } else { Ok(0) }
    }

    /// Returns the end of the last segment of a program that is loaded at `base`. The heap begins there.
    fn end(&self, base: u64) -> u64 {
        let end = self.span().map_or(u64::MAX, |span| span.end);
        base.wrapping_add(end).min(UserAddr::END)
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
    let config = SpaceConfig::new().brk(Some(own.end(base)));
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
    let begin = UserAddr::new(entry).ok_or(Errno::EINVAL)?;
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
/// ENOEXEC if the first line names no program, ELOOP if scripts are nested too deeply, ENOMEM; fails also like
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
        let all = &mut strings.arguments.0;
        charge::reserve(all, arguments.len())?;
        all.splice(..all.len().min(1), arguments);
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
    let is_offset = header.e_phoff <= i64::MAX as u64;
    if !fits || !counts || !is_offset || !matches!(header.e_type, ET_EXEC | ET_DYN) {
        return Err(errno::ENOEXEC);
    }
    let mut table = alloc::vec![0; usize::from(header.e_phnum) * PROGRAM_HEADER];
    read_exact(file, header.e_phoff, &mut table)?;
    let mut at = 0;
    let parse = |_| ProgramHeader::parse_at(LittleEndian, Class::ELF64, &mut at, &table);
    let headers: Result<Headers, _> = (0..header.e_phnum).map(parse).collect();
    Ok((header, headers.map_err(|_| errno::ENOEXEC)?))
}

/// Reads until `out` is full. Fails with ENOEXEC at the end of the file, and with EINVAL if `at` is no offset.
fn read_exact(file: &Counted<Mapping<Machine>>, at: u64, out: &mut [u8]) -> Result<(), Errno> {
    if at > i64::MAX as u64 {
        return Err(Errno::EINVAL);
    }
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
    let read = read_exact(file.mapping().ok_or(Errno::EACCES)?, part.p_offset, &mut path);
    read.map_err(|error| if error == errno::ENOEXEC { Errno::EIO } else { error })?;
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
///
/// # Errors
///
/// EINVAL if the offset and the address differ within a page or overflow, or if the file's contents are larger than
/// the segment. EINVAL also if the file has addresses that no program has, even if the segment is moved. EFAULT if
/// the file's last page cannot be written. ENOMEM and EOVERFLOW like mmap.
fn map_part(
    space: &Space,
    file: &Counted<File<Machine>>,
    part: &ProgramHeader,
    base: u64,
) -> Result<u64, Errno> {
    let at = base.wrapping_add(part.p_vaddr);
    if part.p_filesz != 0 {
        map_contents(space, file, part, at)?;
    }
    if part.p_memsz > part.p_filesz {
        map_zeroes(space, part, at)?;
    }
    let end = part.p_vaddr.checked_add(part.p_memsz).filter(|end| *end <= UserAddr::END);
    match end {
        Some(_) if part.p_vaddr < UserAddr::END && part.p_filesz <= part.p_memsz => Ok(at + part.p_memsz),
        _ => Err(Errno::EINVAL),
    }
}

/// Maps the file's contents of a segment that begins at address `at`.
fn map_contents(
    space: &Space,
    file: &Counted<File<Machine>>,
    part: &ProgramHeader,
    at: u64,
) -> Result<(), Errno> {
    let within = at % PAGE_SIZE;
    let bytes = part.p_filesz.checked_add(within).and_then(|bytes| bytes.checked_next_multiple_of(PAGE_SIZE));
    let (bytes, offset) = (bytes.ok_or(Errno::EINVAL)?, part.p_offset.wrapping_sub(within));
    if !offset.is_multiple_of(PAGE_SIZE) || offset.checked_add(bytes).is_none() {
        return Err(Errno::EINVAL);
    }
    let mut prot = Prot::empty();
    prot.set(Prot::READ, part.p_flags & PF_R != 0);
    prot.set(Prot::WRITE, part.p_flags & PF_W != 0);
    prot.set(Prot::EXEC, part.p_flags & PF_X != 0);
    let flags = MapFlags::PRIVATE | MapFlags::FIXED;
    space.mmap(at - within, bytes, prot, flags, Some(file), offset).map_err(|error| error.errno())?;
    Ok(())
}

/// Makes the part of a segment behind the file's contents zero: the rest of the last page of the contents, and the
/// pages behind it. The segment begins at address `at`. The pages are writable whatever the segment's rights are.
fn map_zeroes(space: &Space, part: &ProgramHeader, at: u64) -> Result<(), Errno> {
    let up = |at: u64| at.wrapping_add(PAGE_SIZE - 1) & !(PAGE_SIZE - 1);
    let (from, end) = (at.wrapping_add(part.p_filesz), at.wrapping_add(part.p_memsz));
    let pages_from = if part.p_filesz == 0 { at & !(PAGE_SIZE - 1) } else { up(from) };
    // ld.so uses the rest of the page for its own data. A page that the program cannot write keeps its contents.
    if part.p_filesz != 0 && part.p_flags & PF_W != 0 {
        let (rest, zeroes) = (pages_from.wrapping_sub(from) as usize, [0; PAGE_SIZE as usize / 4]);
        for done in (0..rest).step_by(zeroes.len()) {
            let bytes = &zeroes[..zeroes.len().min(rest - done)];
            let written = space.write_memory(from + done as u64, bytes, AccessMode::Forced);
            written.map_err(|error| error.errno())?;
        }
    }
    let bytes = up(end).wrapping_sub(pages_from);
    if bytes != 0 {
        let mut prot = Prot::READ | Prot::WRITE;
        prot.set(Prot::EXEC, part.p_flags & PF_X != 0);
        let flags = MapFlags::PRIVATE | MapFlags::FIXED | MapFlags::ANONYMOUS;
        space.mmap(pages_from, bytes, prot, flags, None, 0).map_err(|error| error.errno())?;
    }
    Ok(())
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
    let (environment, env) = put_all(&strings.environment.0)?;
    let (arguments, args) = put_all(&strings.arguments.0)?;
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
