//! What is known of memory: VMAs, the files that they map, and the trees that lead from a page to its VMAs.
//!
//! These records truly point at each other, so they are one room: a VMA knows what it maps, and what it maps
//! knows its VMAs. Nothing here knows an [`AddressSpace`](crate::space::AddressSpace), but for the
//! [context](uffd) of a userfaultfd, which has to find the space that its pager fills: a VMA, and a walk that
//! comes to it from a page, knows the [`VmSpace`](freehold_vmspace::VmSpace) that its entries are in.
//!
//! | record | one for each |
//! | --- | --- |
//! | [`vma`] | mapped area |
//! | [`object`] | what an area maps: a file and its page cache, frames of somebody else |
//! | [`reverse`] | tree of the VMAs that may map a page: of a file, of anonymous memory |
//! | [`hugetlb`] | file of huge pages, and what its VMAs have besides |
//! | [`probes`] | file with breakpoints in it |
//! | [`uffd`] | userfaultfd |
//! | [`nommu`] | region of a machine without an MMU |
//! | [`files`] | file that may have memory to spare |
//! | [`engine`] | engine: what all address spaces share |

pub mod engine;
pub(crate) mod files;
pub(crate) mod hugetlb;
pub(crate) mod nommu;
pub mod object;
pub(crate) mod probes;
pub(crate) mod reverse;
pub(crate) mod uffd;
pub mod vma;
