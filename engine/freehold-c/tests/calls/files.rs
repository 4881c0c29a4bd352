//! Tests of files and their pagers.

use super::kernel::*;
use freehold_c::FileHandle;
use freehold_c::call::{engine::*, file::*, mapping::*};
use std::ffi::{CStr, c_int, c_void};
use std::ptr::null_mut;
use std::sync::Mutex;

/// A disk, and what its functions were called for.
#[derive(Default)]
struct Disk {
    pages: Mutex<Vec<[u8; 4096]>>,
    events: Mutex<Vec<String>>,
    fails: Mutex<bool>,
}

unsafe fn disk<'d>(data: *mut c_void) -> &'d Disk {
    unsafe { &*data.cast() }
}

unsafe extern "C" fn read_page(data: *mut c_void, index: u64, page: *mut c_void) -> c_int {
    let disk = unsafe { disk(data) };
    disk.events.lock().unwrap().push(format!("read {index}"));
    let bytes = disk.pages.lock().unwrap()[index as usize];
    unsafe { page.cast::<[u8; 4096]>().write(bytes) };
    (*disk.fails.lock().unwrap()).into()
}

unsafe extern "C" fn write_page(data: *mut c_void, index: u64, page: *const c_void) -> c_int {
    let disk = unsafe { disk(data) };
    disk.events.lock().unwrap().push(format!("write {index}"));
    disk.pages.lock().unwrap()[index as usize] = unsafe { page.cast::<[u8; 4096]>().read() };
    (*disk.fails.lock().unwrap()).into()
}

unsafe extern "C" fn resized(data: *mut c_void, size: u64) {
    unsafe { disk(data) }.events.lock().unwrap().push(format!("size {size}"));
}

unsafe extern "C" fn discard(data: *mut c_void, first: u64, count: u64) {
    unsafe { disk(data) }.events.lock().unwrap().push(format!("discard {first}, {count}"));
}

unsafe extern "C" fn release(data: *mut c_void) {
    unsafe { disk(data) }.events.lock().unwrap().push("release".into());
}

const OPS: PagerOps = PagerOps {
    size: size_of::<PagerOps>(),
    read_page: Some(read_page),
    write_page: Some(write_page),
    resized: Some(resized),
    discard: Some(discard),
    release: Some(release),
};

impl Disk {
    fn new(pages: usize) -> Self {
        let pages = (0..pages).map(|index| [index as u8 + 1; 4096]).collect();
        Disk { pages: Mutex::new(pages), ..Disk::default() }
    }

    fn open(
        &self,
        engine: &Engine,
        ops: &PagerOps,
        name: &CStr,
        access: u32,
    ) -> Result<*mut FileHandle, i64> {
        let (data, size) =
            ((&raw const *self).cast_mut().cast(), self.pages.lock().unwrap().len() as u64 * PAGE);
        let mut file = null_mut();
        match unsafe { fh_file_new(engine.0, ops, data, size, name.as_ptr(), access, &mut file) } {
            0 => Ok(file),
            error => Err(error.into()),
        }
    }

    fn events(&self) -> Vec<String> {
        std::mem::take(&mut self.events.lock().unwrap())
    }
}

#[test]
fn file_is_read_written_and_released() {
    let (engine, disk) = (Engine::new(), Disk::new(3));
    let file = disk.open(&engine, &OPS, c"/disk", FILE_READ | FILE_WRITE).unwrap();
    let space = Space::new(&engine);
    let at = unsafe { fh_mmap(space.0, 0, 3 * PAGE, RW, SHARED, file, 0) } as u64;
    assert_eq!(space.load(at + PAGE).unwrap(), u64::from_ne_bytes([2; 8]));
    assert_eq!(disk.events(), ["read 1"]);
    space.store(at + PAGE, 7).unwrap();
    assert_eq!(unsafe { (fh_file_sync(file), fh_file_size(file)) }, (0, 3 * PAGE));
    assert_eq!(disk.events(), ["write 1"]);
    assert_eq!(disk.pages.lock().unwrap()[1][0], 7);
    let mut out = [0_u8; 4];
    assert_eq!(unsafe { fh_file_write(file, 2, b"ab".as_ptr().cast(), 2) }, 2);
    assert_eq!(unsafe { fh_file_read(file, 0, out.as_mut_ptr().cast(), 4) }, 4);
    assert_eq!(&out, b"\x01\x01ab");
    disk.events();
    assert_eq!(unsafe { fh_file_truncate(file, PAGE) }, 0);
    assert_eq!(disk.events(), ["size 4096", "discard 1, 2"].map(str::to_owned));
    assert_eq!(space.load(at + PAGE).unwrap_err().number, 7);
    let copy = unsafe { fh_file_get(file) };
    unsafe { fh_file_put(file) };
    unsafe { fh_file_put(copy) };
    assert_eq!(disk.events(), [""; 0], "the mapping keeps the file");
    assert_eq!(unsafe { fh_munmap(space.0, at, 3 * PAGE) }, 0);
    assert_eq!(disk.events(), ["release"]);
}

#[test]
fn failing_disk_raises_signals_and_errors() {
    let (engine, disk) = (Engine::new(), Disk::new(2));
    let file = disk.open(&engine, &OPS, c"/disk", FILE_READ | FILE_WRITE).unwrap();
    let space = Space::new(&engine);
    let at = unsafe { fh_mmap(space.0, 0, 2 * PAGE, RW, SHARED, file, 0) } as u64;
    space.store(at, 1).unwrap();
    *disk.fails.lock().unwrap() = true;
    assert_eq!(space.load(at + PAGE).unwrap_err().number, 7, "SIGBUS");
    assert_eq!(unsafe { fh_file_sync(file) }, -5, "EIO");
    *disk.fails.lock().unwrap() = false;
    unsafe { fh_file_put(file) };
}

#[test]
fn wrong_files_are_refused_and_keep_their_data() {
    let (engine, disk) = (Engine::new(), Disk::new(1));
    let wrong = [
        disk.open(&engine, &PagerOps { read_page: None, ..OPS }, c"/disk", 3),
        disk.open(&engine, &PagerOps { size: 8, ..OPS }, c"/disk", 3),
        disk.open(&engine, &OPS, c"\xff", 3),
    ];
    assert_eq!(wrong, [Err(-EINVAL); 3]);
    assert_eq!(disk.events(), [""; 0], "data was not released");
    let file = disk.open(&engine, &OPS, c"/disk", FILE_READ).unwrap();
    let space = Space::new(&engine);
    assert_eq!(unsafe { fh_mmap(space.0, 0, PAGE, RW, SHARED, file, 0) }, -13, "EACCES: open for reading");
    unsafe { fh_file_put(file) };
    assert_eq!(disk.events(), ["release"]);
}

#[test]
fn reclaim_takes_clean_pages() {
    let (engine, disk) = (Engine::new(), Disk::new(4));
    let file = disk.open(&engine, &OPS, c"/disk", FILE_READ).unwrap();
    let mut out = [0_u8; 4 * 4096];
    assert_eq!(unsafe { fh_file_read(file, 0, out.as_mut_ptr().cast(), out.len()) }, out.len() as i64);
    assert_eq!(unsafe { fh_reclaim(engine.0, 3) }, 3);
    unsafe { fh_trim(engine.0) };
    disk.events();
    assert_eq!(unsafe { fh_file_read(file, 0, out.as_mut_ptr().cast(), out.len()) }, out.len() as i64);
    assert_eq!(disk.events().len(), 3, "three pages are read again");
    unsafe { fh_file_put(file) };
}
