// Names: renaming, links, removal, unnamed files, and their entries in /proc. Checks
// `kernel/src/files/names.rs`, holes of files, and a mount of files with huge pages. Parts about the
// contents of files belong in `files.c`.
#define _GNU_SOURCE
#include "check.h"
#include <ctype.h>
#include <dirent.h>
#include <fcntl.h>
#include <stdint.h>
#include <sys/mman.h>
#include <sys/epoll.h>
#include <sys/eventfd.h>
#include <sys/mount.h>
#include <sys/socket.h>
#include <sys/resource.h>
#include <signal.h>
#include <sys/stat.h>
#include <sys/statfs.h>
#include <sys/syscall.h>
#include <sys/xattr.h>

static void files_can_be_linked_renamed_and_removed(void) {
    struct stat a, b;
    CHECK(mkdir("/tmp/n", 0755) == 0 && chdir("/tmp/n") == 0);
    int file = open("one", O_CREAT | O_RDWR, 0600);
    CHECK(file >= 0 && write(file, "text", 4) == 4);
    CHECK(link("one", "two") == 0 && fstat(file, &a) == 0 && a.st_nlink == 2);
    CHECK(mkdir("inner", 0755) == 0 && rename("two", "inner/two") == 0);
    CHECK(stat("inner/two", &b) == 0 && a.st_ino == b.st_ino);
    CHECK(rename("inner", "inner/below") == -1 && errno == EINVAL);
    CHECK(rmdir("inner") == -1 && errno == ENOTEMPTY);
    CHECK(unlink("inner/two") == 0 && rmdir("inner") == 0);
    CHECK(unlink("one") == 0 && fstat(file, &a) == 0 && a.st_nlink == 0 && a.st_size == 4);
    char target[64] = "", path[64];
    snprintf(path, sizeof path, "/proc/self/fd/%d", file);
    CHECK(readlink(path, target, sizeof target - 1) > 0 && !strcmp(target, "/tmp/n/one (deleted)"));
    close(file);
    CHECK(chdir("/") == 0 && rmdir("/tmp/n") == 0);
}

static void holes_read_as_zeroes(void) {
    char page[4096];
    int file = open("/tmp", O_TMPFILE | O_RDWR, 0600);
    memset(page, 7, sizeof page);
    CHECK(file >= 0 && pwrite(file, page, 4096, 0) == 4096 && pwrite(file, page, 4096, 8192) == 4096);
    CHECK(lseek(file, 0, SEEK_HOLE) == 4096 && lseek(file, 4096, SEEK_DATA) == 8192);
    CHECK(fallocate(file, FALLOC_FL_PUNCH_HOLE | FALLOC_FL_KEEP_SIZE, 0, 4096) == 0);
    CHECK(pread(file, page, 1, 0) == 1 && page[0] == 0 && lseek(file, 0, SEEK_END) == 12288);
    close(file);
}

static long blocks(int file) {
    struct stat is;
    CHECK(!fstat(file, &is));
    return is.st_blocks * 512 / 4096;
}

static void blocks_beyond_the_end_are_allocated(void) {
    enum { PAGE = 4096, KEEP = FALLOC_FL_KEEP_SIZE, PUNCH = FALLOC_FL_PUNCH_HOLE | KEEP };
    char page[PAGE];
    int file = memfd_create("blocks", 0);
    CHECK(file >= 0 && write(file, "text", 4) == 4);
    CHECK(!fallocate(file, KEEP, PAGE, 4 * PAGE) && blocks(file) == 5);
    CHECK(lseek(file, 0, SEEK_END) == 4 && pread(file, page, 1, PAGE) == 0);
    // A hole frees whole pages, and so does a truncation to the same size.
    CHECK(!fallocate(file, PUNCH, PAGE + 1, 2 * PAGE) && blocks(file) == 4);
    CHECK(!ftruncate(file, 4) && blocks(file) == 1);
    // The file shows zeroes when it grows.
    CHECK(!fallocate(file, KEEP, 0, 3 * PAGE) && blocks(file) == 3);
    CHECK(!ftruncate(file, 2 * PAGE) && blocks(file) == 3);
    memset(page, 1, PAGE);
    CHECK(pread(file, page, PAGE, PAGE) == PAGE && !page[0] && !memcmp(page, page + 1, PAGE - 1));
    CHECK(pwrite(file, "x", 1, 2 * PAGE) == 1 && blocks(file) == 3);
    CHECK(!ftruncate(file, 0) && blocks(file) == 0);
    CHECK(!fallocate(file, 0, PAGE, PAGE) && blocks(file) == 1 && lseek(file, 0, SEEK_END) == 2 * PAGE);
    CHECK(fallocate(file, FALLOC_FL_ZERO_RANGE | KEEP, 0, PAGE) == -1 && errno == EOPNOTSUPP);
    close(file);
    // The mode is checked before the descriptor's access, and the limit of sizes applies to kept sizes too.
    file = open("/dev/null", O_RDONLY);
    CHECK(fallocate(file, FALLOC_FL_PUNCH_HOLE, 0, PAGE) == -1 && errno == EOPNOTSUPP);
    CHECK(fallocate(file, KEEP, 0, PAGE) == -1 && errno == EBADF);
    close(file);
    struct rlimit before, limit = {PAGE, RLIM_INFINITY};
    CHECK(!getrlimit(RLIMIT_FSIZE, &before));
    limit.rlim_max = before.rlim_max;
    file = memfd_create("blocks", 0);
    signal(SIGXFSZ, SIG_IGN);
    CHECK(!setrlimit(RLIMIT_FSIZE, &limit));
    CHECK(fallocate(file, KEEP, 0, PAGE + 1) == -1 && errno == EFBIG);
    CHECK(!fallocate(file, KEEP, 0, PAGE) && !setrlimit(RLIMIT_FSIZE, &before));
    close(file);
}

// Files of huge pages. Skipped if no huge pages are available.
static void hugetlbfs_can_be_mounted(void) {
    enum { HUGE = 2 << 20 };
    struct statfs system;
    struct stat of;
    int setting = open("/proc/sys/vm/nr_hugepages", O_WRONLY);
    if (setting < 0 || pwrite(setting, "4", 1, 0) != 1) return;
    CHECK(mkdir("/tmp/huge", 0755) == 0);
    if (mount("none", "/tmp/huge", "hugetlbfs", 0, "pagesize=2M") != 0) {
        CHECK(rmdir("/tmp/huge") == 0 && pwrite(setting, "0", 1, 0) == 1 && close(setting) == 0);
        return;
    }
    CHECK(statfs("/tmp/huge", &system) == 0 && system.f_type == 0x958458f6 && system.f_bsize == HUGE);
    CHECK(mkdir("/tmp/huge/inner", 0755) == 0);
    int file = open("/tmp/huge/inner/file", O_CREAT | O_RDWR, 0600);
    CHECK(file >= 0 && ftruncate(file, 4096) == -1 && errno == EINVAL && ftruncate(file, 2 * HUGE) == 0);
    char *at = mmap(NULL, 2 * HUGE, PROT_READ | PROT_WRITE, MAP_SHARED, file, 0);
    CHECK(at != MAP_FAILED && (unsigned long)at % HUGE == 0);
    at[HUGE] = 'x';
    CHECK(pread(file, at, 1, HUGE) == 1 && at[0] == 'x' && write(file, "y", 1) == -1 && errno == EINVAL);
    CHECK(fstat(file, &of) == 0 && of.st_size == 2 * HUGE);
    CHECK(munmap(at, 2 * HUGE) == 0 && close(file) == 0 && umount("/tmp/huge") == 0 && rmdir("/tmp/huge") == 0);
    CHECK(pwrite(setting, "0", 1, 0) == 1 && close(setting) == 0);
}

static ino_t inode_of(int file) {
    struct stat stat;
    CHECK(fstat(file, &stat) == 0);
    return stat.st_ino;
}

static void names_file(int file, const char *form) {
    char path[64], name[64], expected[64];
    snprintf(path, sizeof path, "/proc/self/fd/%d", file);
    snprintf(expected, sizeof expected, form, (unsigned long)inode_of(file));
    long bytes = readlink(path, name, sizeof name - 1);
    CHECK(bytes > 0 && !(name[bytes] = 0) && !strcmp(name, expected));
}

// Numbers of files are counted. They are no addresses of the kernel.
static void files_without_names_have_small_numbers(void) {
    int pipes[4], sockets[2];
    CHECK(!pipe(pipes) && !pipe(pipes + 2) && !socketpair(AF_UNIX, SOCK_STREAM, 0, sockets));
    int events[] = {eventfd(0, 0), epoll_create1(0)};
    CHECK(inode_of(pipes[0]) == inode_of(pipes[1]) && inode_of(pipes[0]) != inode_of(pipes[2]));
    CHECK(inode_of(sockets[0]) != inode_of(sockets[1]));
    CHECK(inode_of(events[0]) == inode_of(events[1]));
    names_file(pipes[0], "pipe:[%lu]");
    names_file(pipes[3], "pipe:[%lu]");
    names_file(sockets[0], "socket:[%lu]");
    int files[] = {pipes[0], pipes[2], sockets[0], sockets[1], events[0], events[1]};
    for (int n = 0; n < 6; n++) CHECK(inode_of(files[n]) < 1UL << 40);
    for (int n = 0; n < 4; n++) CHECK(!close(pipes[n]));
}

#define FAILS(what, number) CHECK((what) == -1 && errno == (number))

static void nodes_have_extended_attributes(void) {
    char value[64] = "", name[300], large[70000] = "";
    int file = open("/dev/shm/attributes", O_CREAT | O_RDWR, 0600);
    CHECK(file >= 0 && !symlink("attributes", "/dev/shm/link"));
    FAILS(getxattr("/dev/shm/attributes", "user.a", value, 64), ENODATA);
    CHECK(!setxattr("/dev/shm/link", "user.a", "one", 3, 0) && !fsetxattr(file, "user.b", "", 0, XATTR_CREATE));
    FAILS(setxattr("/dev/shm/attributes", "user.a", "x", 1, XATTR_CREATE), EEXIST);
    FAILS(setxattr("/dev/shm/attributes", "user.c", "x", 1, XATTR_REPLACE), ENODATA);
    FAILS(setxattr("/dev/shm/attributes", "user.a", "x", 1, 4), EINVAL);
    CHECK(fgetxattr(file, "user.a", 0, 0) == 3 && fgetxattr(file, "user.a", value, 3) == 3);
    CHECK(!memcmp(value, "one", 3) && fgetxattr(file, "user.b", value, 64) == 0);
    FAILS(fgetxattr(file, "user.a", value, 2), ERANGE);
    CHECK(!setxattr("/dev/shm/attributes", "user.a", "longer", 6, XATTR_REPLACE));
    CHECK(getxattr("/dev/shm/attributes", "user.a", value, 64) == 6 && !memcmp(value, "longer", 6));
    // A list may also contain names that a security module adds.
    CHECK(flistxattr(file, 0, 0) >= 14 && memmem(large, flistxattr(file, large, 1000), "user.b", 7));
    FAILS(flistxattr(file, value, 5), ERANGE);
    CHECK(!removexattr("/dev/shm/attributes", "user.b"));
    FAILS(fremovexattr(file, "user.b"), ENODATA);
    FAILS(fsetxattr(file, "user.", "x", 1, 0), EINVAL);
    FAILS(fsetxattr(file, "other.a", "x", 1, 0), EOPNOTSUPP);
    FAILS(fgetxattr(file, "a", value, 64), EOPNOTSUPP);
    FAILS(fsetxattr(file, "", "x", 1, 0), ERANGE);
    memset(name, 'n', sizeof name - 1), memcpy(name, "user.", 5), name[299] = 0;
    FAILS(fsetxattr(file, name, "x", 1, 0), ERANGE);
    name[255] = 0;
    CHECK(!fsetxattr(file, name, "x", 1, 0) && !fremovexattr(file, name));
    FAILS(fsetxattr(file, "user.a", large, 65537, 0), E2BIG);
    FAILS(syscall(SYS_fsetxattr, file, "user.a", 16, 5, 0), EFAULT);
    CHECK(!fsetxattr(file, "user.a", large, 65536, 0) && fgetxattr(file, "user.a", large, 65536) == 65536);
    // A link has no attributes of users.
    FAILS(lsetxattr("/dev/shm/link", "user.a", "x", 1, 0), EPERM);
    FAILS(lgetxattr("/dev/shm/link", "user.a", value, 64), ENODATA);
    int ends[2];
    CHECK(!pipe(ends));
    FAILS(fsetxattr(ends[0], "user.a", "x", 1, 0), EPERM);
    FAILS(fgetxattr(ends[0], "user.a", value, 64), ENODATA);
    FAILS(fgetxattr(1000, "user.a", value, 64), EBADF);
    FAILS(getxattr("/dev/shm/none", "user.a", value, 64), ENOENT);
    FAILS(setxattr("/proc/self/maps", "user.a", "x", 1, 0), EOPNOTSUPP);
    CHECK(!unlink("/dev/shm/link") && !unlink("/dev/shm/attributes") && !close(file));
    CHECK(!close(ends[0]) && !close(ends[1]));
}

// A search skips a hole, whatever its size.
static void searches_skip_holes(void) {
    enum { SYS_CACHESTAT = 451 };
    int file = memfd_create("sparse", 0);
    uint64_t all[2] = {0, 0}, counts[5];
    CHECK(file >= 0 && !ftruncate(file, 1L << 62));
    CHECK(lseek(file, 0, SEEK_DATA) == -1 && errno == ENXIO && lseek(file, 0, SEEK_HOLE) == 0);
    CHECK(pwrite(file, "x", 1, 1L << 50) == 1 && pwrite(file, "x", 1, (1L << 50) + 4096) == 1);
    CHECK(lseek(file, 5, SEEK_DATA) == 1L << 50 && lseek(file, 1L << 50, SEEK_HOLE) == (1L << 50) + 8192);
    CHECK(lseek(file, (1L << 50) + 5, SEEK_DATA) == (1L << 50) + 5);
    CHECK(lseek(file, (1L << 50) + 8192, SEEK_DATA) == -1 && errno == ENXIO);
    CHECK(!syscall(SYS_CACHESTAT, file, all, counts, 0) && counts[0] == 2);
    close(file);
}

// Looks up each name that the folder lists. Returns false if there is no such folder.
static int look_up_all(const char *folder) {
    DIR *dir = opendir(folder);
    if (!dir) return 0;
    for (struct dirent *entry; (entry = readdir(dir));) {
        struct stat got;
        errno = 0;
        // A process or a descriptor may be gone since it was listed.
        if (fstatat(dirfd(dir), entry->d_name, &got, AT_SYMLINK_NOFOLLOW) && !isdigit(entry->d_name[0])) {
            printf("%s/%s is listed and does not exist: %d\n", folder, entry->d_name, errno);
            CHECK(0);
        }
    }
    return !closedir(dir);
}

static void listed_names_exist(void) {
    const char *folders[] = {"/", "/dev", "/proc", "/proc/self", "/proc/self/fd", "/proc/self/task", "/proc/sys",
                             "/proc/sys/kernel", "/proc/sys/vm", "/proc/thread-self", "/proc/sysvipc", "/sys",
                             "/sys/kernel/mm/hugepages", "/sys/kernel/mm/transparent_hugepage"};
    int found = 0;
    for (unsigned n = 0; n < sizeof folders / sizeof *folders; n++) found += look_up_all(folders[n]);
    // Linux may be configured without some of them.
    CHECK(found >= 10);
    CHECK(access("/proc/self/coredump_filter", R_OK) == 0);
}

int main(void) {
    PART(hugetlbfs_can_be_mounted);
    PART(files_can_be_linked_renamed_and_removed);
    PART(holes_read_as_zeroes);
    PART(blocks_beyond_the_end_are_allocated);
    PART(files_without_names_have_small_numbers);
    PART(nodes_have_extended_attributes);
    PART(searches_skip_holes);
    PART(listed_names_exist);
    return 0;
}
