// Files that are open with O_PATH: calls that use the file fail with EBADF, and calls that use the descriptor or the
// place of the file succeed. Checks the two lookups in `kernel/src/files/table.rs`, and the callers of `get_any`.
#define _GNU_SOURCE
#include "check.h"
#include <fcntl.h>
#include <poll.h>
#include <sys/epoll.h>
#include <sys/file.h>
#include <sys/ioctl.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/select.h>
#include <sys/sendfile.h>
#include <sys/signalfd.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/statfs.h>
#include <sys/syscall.h>
#include <sys/time.h>
#include <sys/timerfd.h>
#include <sys/uio.h>
#include <sys/wait.h>
#include <sys/xattr.h>

#define FAILS(call, error) CHECK((call) == -1 && errno == (error))
#define REFUSED(call) FAILS(call, EBADF)
enum { DUPFD_QUERY = 1027, FCHMODAT2 = 452, CACHESTAT = 451 };

static const char *const file = "/tmp/paths-file", *const folder = "/tmp/paths-folder";
static const char *const symbolic = "/tmp/paths-link";
static int other, ends[2];

static void contents_are_refused(int path) {
    char bytes[64];
    struct iovec part = {bytes, 8};
    long offset = 0, range[2] = {0, 4096};
    for (size_t count = 0; count < 2; count++) REFUSED(read(path, bytes, count));
    for (size_t count = 0; count < 2; count++) REFUSED(write(path, bytes, count));
    REFUSED(pread(path, bytes, 1, 0));
    REFUSED(pwrite(path, bytes, 1, 0));
    REFUSED(readv(path, &part, 1));
    REFUSED(writev(path, &part, 1));
    REFUSED(preadv(path, &part, 1, 0));
    REFUSED(pwritev(path, &part, 1, 0));
    REFUSED(lseek(path, 0, SEEK_SET));
    REFUSED(ftruncate(path, 0));
    REFUSED(fallocate(path, 0, 0, 4096));
    REFUSED(fsync(path));
    REFUSED(fdatasync(path));
    REFUSED(syncfs(path));
    REFUSED(sync_file_range(path, 0, 0, 0));
    REFUSED(readahead(path, 0, 4096));
    CHECK(posix_fadvise(path, 0, 0, 0) == EBADF);
    REFUSED(syscall(CACHESTAT, path, range, bytes, 0));
    REFUSED(syscall(SYS_getdents64, path, bytes, sizeof bytes));
    CHECK(mmap(0, 4096, PROT_READ, MAP_PRIVATE, path, 0) == MAP_FAILED && errno == EBADF);
    REFUSED(sendfile(ends[1], path, &offset, 1));
    REFUSED(sendfile(path, other, &offset, 1));
    REFUSED(splice(path, NULL, ends[1], NULL, 1, 0));
    REFUSED(splice(ends[0], NULL, path, NULL, 1, 0));
    REFUSED(tee(path, ends[1], 1, 0));
    REFUSED(vmsplice(path, &part, 1, 0));
    REFUSED(copy_file_range(path, NULL, other, NULL, 1, 0));
    REFUSED(copy_file_range(other, NULL, path, NULL, 1, 0));
}

static void attributes_are_refused(int path) {
    char bytes[8];
    struct timespec times[2] = {{0, UTIME_NOW}, {0, UTIME_NOW}};
    REFUSED(fchmod(path, 0700));
    REFUSED(fchown(path, 0, 0));
    REFUSED(futimens(path, times));
    REFUSED(fsetxattr(path, "user.a", "x", 1, 0));
    REFUSED(fgetxattr(path, "user.a", bytes, sizeof bytes));
    REFUSED(flistxattr(path, bytes, sizeof bytes));
    REFUSED(fremovexattr(path, "user.a"));
    REFUSED(flock(path, LOCK_SH));
    REFUSED(flock(path, LOCK_UN));
    REFUSED(ioctl(path, FIONREAD, bytes));
    REFUSED(ioctl(path, FIOCLEX));
    REFUSED(ioctl(path, FIONBIO, bytes));
    const int commands[] = {F_SETFL, F_GETLK, F_SETLK, F_OFD_SETLK, F_GETOWN, F_SETOWN, F_GETSIG, F_SETSIG, F_GETLEASE,
                            F_GETPIPE_SZ, F_SETPIPE_SZ, F_GET_SEALS, F_ADD_SEALS, F_NOTIFY, 12345};
    for (unsigned n = 0; n < sizeof commands / sizeof *commands; n++) REFUSED(fcntl(path, commands[n], NULL));
}

static void other_kinds_are_refused(int path) {
    char bytes[64] = {0};
    socklen_t length = sizeof bytes;
    struct iovec part = {bytes, 8};
    struct itimerspec times = {0};
    sigset_t none;
    sigemptyset(&none);
    REFUSED(signalfd(path, &none, 0));
    REFUSED(timerfd_settime(path, 0, &times, NULL));
    REFUSED(timerfd_gettime(path, &times));
    REFUSED(getsockopt(path, SOL_SOCKET, SO_TYPE, bytes, &length));
    REFUSED(send(path, bytes, 1, 0));
    REFUSED(recv(path, bytes, 1, 0));
    REFUSED(shutdown(path, SHUT_RDWR));
    REFUSED(listen(path, 1));
    REFUSED(syscall(SYS_pidfd_send_signal, path, 0, NULL, 0));
    REFUSED(syscall(SYS_pidfd_getfd, path, 0, 0));
    REFUSED(syscall(SYS_process_mrelease, path, 0));
    REFUSED(syscall(SYS_process_madvise, path, &part, 1, MADV_COLD, 0));
    REFUSED(waitid(P_PIDFD, path, NULL, WEXITED));
}

static void polls_report_it(int path) {
    struct pollfd entry = {path, POLLIN | POLLOUT, 0};
    struct epoll_event event = {.events = EPOLLIN};
    struct timeval now = {0, 0};
    int set = epoll_create1(0);
    fd_set asked;
    FD_ZERO(&asked);
    FD_SET(path, &asked);
    CHECK(poll(&entry, 1, 0) == 1 && entry.revents == POLLNVAL);
    CHECK(select(path + 1, &asked, NULL, NULL, &now) == 1 && FD_ISSET(path, &asked));
    REFUSED(epoll_ctl(set, EPOLL_CTL_ADD, path, &event));
    REFUSED(epoll_ctl(set, EPOLL_CTL_DEL, path, &event));
    REFUSED(epoll_ctl(path, EPOLL_CTL_ADD, set, &event));
    REFUSED(epoll_wait(path, &event, 1, 0));
    close(set);
}

static void descriptor_can_be_used(int path, int flags) {
    struct stat one, two;
    int self = syscall(SYS_pidfd_open, getpid(), 0), copy;
    CHECK(fcntl(path, F_GETFL) == flags && fcntl(path, F_GETFD) == 0);
    CHECK(!fcntl(path, F_SETFD, FD_CLOEXEC) && fcntl(path, F_GETFD) == FD_CLOEXEC && !fcntl(path, F_SETFD, 0));
    CHECK((copy = fcntl(path, F_DUPFD, 100)) >= 100);
    // Linux has the query since 6.10.
    int same = fcntl(path, DUPFD_QUERY, copy);
    CHECK(same == 1 || same == -1);
    CHECK(!close(copy) && (copy = fcntl(path, F_DUPFD_CLOEXEC, 100)) >= 100 && !close(copy));
    CHECK((copy = dup(path)) >= 0 && dup2(path, 200) == 200 && dup3(path, 201, O_CLOEXEC) == 201);
    CHECK(!fstat(path, &one) && !fstat(201, &two) && one.st_ino == two.st_ino);
    REFUSED(lseek(200, 0, SEEK_CUR));
    CHECK(!close(copy) && !close(200) && !close(201));
    CHECK((copy = syscall(SYS_pidfd_getfd, self, path, 0)) >= 0 && fcntl(copy, F_GETFL) == flags && !close(copy));
    CHECK(syscall(SYS_kcmp, getpid(), getpid(), 0, path, path) == 0);
    close(self);
    // A message passes the descriptor on.
    int pair[2], got;
    char byte = 1, control[CMSG_SPACE(sizeof(int))] = {0};
    struct iovec part = {&byte, 1};
    struct msghdr message = {.msg_iov = &part, .msg_iovlen = 1, .msg_control = control, .msg_controllen = sizeof control};
    struct cmsghdr *header = CMSG_FIRSTHDR(&message);
    *header = (struct cmsghdr){.cmsg_level = SOL_SOCKET, .cmsg_type = SCM_RIGHTS, .cmsg_len = CMSG_LEN(sizeof(int))};
    memcpy(CMSG_DATA(header), &path, sizeof path);
    CHECK(!socketpair(AF_UNIX, SOCK_STREAM, 0, pair));
    CHECK(sendmsg(pair[0], &message, 0) == 1 && recvmsg(pair[1], &message, 0) == 1);
    memcpy(&got, CMSG_DATA(header), sizeof got);
    CHECK(fcntl(got, F_GETFL) == flags && !fstat(got, &two) && one.st_ino == two.st_ino);
    REFUSED(read(got, &byte, 1));
    close(got), close(pair[0]), close(pair[1]);
}

static void place_can_be_used(int path) {
    struct stat status;
    struct statfs system;
    struct timespec times[2] = {{5, 0}, {6, 0}};
    char link[40], text[64];
    CHECK(!fstat(path, &status) && !fstatfs(path, &system));
    CHECK(!fstatat(path, "", &status, AT_EMPTY_PATH) && !fchownat(path, "", -1, -1, AT_EMPTY_PATH));
    CHECK(!utimensat(path, "", times, AT_EMPTY_PATH) && !fstat(path, &status) && status.st_mtime == 6);
    if (!S_ISLNK(status.st_mode)) FAILS(readlinkat(path, "", text, sizeof text), ENOENT);
    if (!S_ISDIR(status.st_mode)) {
        FAILS(fchdir(path), ENOTDIR);
        FAILS(openat(path, ".", O_RDONLY), ENOTDIR);
        CHECK(!linkat(path, "", AT_FDCWD, "/tmp/paths-second", AT_EMPTY_PATH) && !unlink("/tmp/paths-second"));
    }
    sprintf(link, "/proc/self/fd/%d", path);
    CHECK(readlink(link, text, sizeof text) > 0 && !stat(link, &status));
}

static void every_use(int path, int flags) {
    CHECK(path >= 0);
    contents_are_refused(path);
    attributes_are_refused(path);
    other_kinds_are_refused(path);
    polls_report_it(path);
    descriptor_can_be_used(path, flags);
    place_can_be_used(path);
    CHECK(!close(path));
    REFUSED(close(path));
}

static void files(void) {
    every_use(open(file, O_PATH), O_PATH);
    // Other flags have no effect.
    every_use(open(file, O_PATH | O_RDWR | O_APPEND | O_NONBLOCK | O_CREAT | O_EXCL | O_TRUNC, 0600), O_PATH);
    struct stat status;
    CHECK(!stat(file, &status) && status.st_size == 4);
    FAILS(open(file, O_PATH | O_DIRECTORY), ENOTDIR);
    FAILS(open("/tmp/paths-none", O_PATH | O_CREAT, 0600), ENOENT);
    int path = open(file, O_PATH), again, result = syscall(FCHMODAT2, path, "", 0640, AT_EMPTY_PATH);
    // Linux has the call since 6.6.
    CHECK(result == 0 ? !fstat(path, &status) && (status.st_mode & 0777) == 0640 : errno == ENOSYS);
    char link[40], text[8];
    sprintf(link, "/proc/self/fd/%d", path);
    CHECK((again = open(link, O_RDWR)) >= 0 && read(again, text, sizeof text) == 4 && !close(again) && !close(path));
}

static void folders(void) {
    struct stat status;
    every_use(open(folder, O_PATH | O_DIRECTORY), O_PATH | O_DIRECTORY);
    int path = open(folder, O_PATH), made;
    CHECK((made = openat(path, "made", O_CREAT | O_RDWR, 0600)) >= 0 && !close(made));
    CHECK(!fstatat(path, "made", &status, 0) && !unlinkat(path, "made", 0));
    CHECK(!mkdirat(path, "made", 0700) && !unlinkat(path, "made", AT_REMOVEDIR));
    CHECK(!fchdir(path) && !chdir("/") && !close(path));
}

static void links(void) {
    char text[40];
    every_use(open(symbolic, O_PATH | O_NOFOLLOW), O_PATH | O_NOFOLLOW);
    int path = open(symbolic, O_PATH | O_NOFOLLOW);
    CHECK(readlinkat(path, "", text, sizeof text) == (int)strlen(file) && !memcmp(text, file, strlen(file)));
    char *none[] = {0};
    FAILS(execveat(path, "", none, none, AT_EMPTY_PATH), ELOOP);
    close(path);
}

static void devices(void) {
    int path = open("/dev/zero", O_PATH);
    contents_are_refused(path);
    polls_report_it(path);
    close(path);
    // A pipe has no name, and can be opened by its link.
    char link[40];
    sprintf(link, "/proc/self/fd/%d", ends[0]);
    path = open(link, O_PATH);
    CHECK(path >= 0);
    contents_are_refused(path);
    descriptor_can_be_used(path, O_PATH);
    close(path);
}

int main(void) {
    CHECK((other = open(file, O_CREAT | O_RDWR | O_TRUNC, 0600)) >= 0 && write(other, "text", 4) == 4);
    CHECK(!mkdir(folder, 0700) && !symlink(file, symbolic) && !pipe(ends) && write(ends[1], "text", 4) == 4);
    PART(files);
    PART(folders);
    PART(links);
    PART(devices);
    CHECK(!unlink(file) && !rmdir(folder) && !unlink(symbolic));
    return 0;
}
