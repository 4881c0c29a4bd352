//! The error numbers that system calls return and `freehold::error::Errno` lacks, because the engine does not
//! use them. The values are Linux's. If a call needs a further number, add the number here.

use freehold::error::Errno;

pub const ENXIO: Errno = Errno(6);
pub const E2BIG: Errno = Errno(7);
pub const ENOEXEC: Errno = Errno(8);
pub const ECHILD: Errno = Errno(10);
pub const ENODEV: Errno = Errno(19);
pub const ENOTDIR: Errno = Errno(20);
pub const EISDIR: Errno = Errno(21);
pub const EMFILE: Errno = Errno(24);
pub const EXDEV: Errno = Errno(18);
pub const ENOTTY: Errno = Errno(25);
pub const ETXTBSY: Errno = Errno(26);
pub const EFBIG: Errno = Errno(27);
pub const ESPIPE: Errno = Errno(29);
pub const EPIPE: Errno = Errno(32);
pub const EDOM: Errno = Errno(33);
pub const ERANGE: Errno = Errno(34);
pub const ENAMETOOLONG: Errno = Errno(36);
pub const ENOSYS: Errno = Errno(38);
pub const ENOTEMPTY: Errno = Errno(39);
pub const ELOOP: Errno = Errno(40);
pub const EIDRM: Errno = Errno(43);
pub const ENODATA: Errno = Errno(61);
pub const ELIBBAD: Errno = Errno(80);
pub const ENOTSOCK: Errno = Errno(88);
pub const EMSGSIZE: Errno = Errno(90);
pub const ENOPROTOOPT: Errno = Errno(92);
pub const EPROTONOSUPPORT: Errno = Errno(93);
pub const ESOCKTNOSUPPORT: Errno = Errno(94);
pub const EAFNOSUPPORT: Errno = Errno(97);
pub const ECONNRESET: Errno = Errno(104);
pub const ENOBUFS: Errno = Errno(105);
pub const EISCONN: Errno = Errno(106);
pub const ENOTCONN: Errno = Errno(107);
pub const ETOOMANYREFS: Errno = Errno(109);
pub const ETIMEDOUT: Errno = Errno(110);
pub const ECONNREFUSED: Errno = Errno(111);
