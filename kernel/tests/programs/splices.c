// Calls that move data through pipes within the kernel: splice, tee, vmsplice. Checks
// `kernel/src/calls/splices.rs` and `kernel/src/files/pipe_queue.rs`.
#define _GNU_SOURCE
#include "check.h"
#include <fcntl.h>
#include <poll.h>
#include <signal.h>
#include <sys/ioctl.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <sys/syscall.h>
#include <sys/uio.h>
#include <sys/wait.h>

#define FAILS(error, call) (errno = 0, (call) == -1 && errno == (error))

enum { PAGE = 4096 };
static char text[1 << 17];

static int new_file(const char *contents) {
    int file = memfd_create("file", 0);
    CHECK(file >= 0 && write(file, contents, strlen(contents)) == (ssize_t)strlen(contents) && !lseek(file, 0, SEEK_SET));
    return file;
}

static int bytes_in(int reader) {
    int bytes;
    CHECK(!ioctl(reader, FIONREAD, &bytes));
    return bytes;
}

static char *new_pages(int count) {
    char *at = mmap(0, count * PAGE, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    CHECK(at != MAP_FAILED);
    return at;
}

static ssize_t give(int writer, const void *at, size_t bytes) {
    struct iovec part = {(void *)at, bytes};
    return vmsplice(writer, &part, 1, SPLICE_F_NONBLOCK);
}

static void splice_moves_bytes(void) {
    int a[2], b[2], sockets[2], file = new_file("hello world");
    loff_t at = 20;
    CHECK(!pipe(a) && !pipe(b) && !socketpair(AF_UNIX, SOCK_STREAM, 0, sockets));
    CHECK(splice(file, 0, a[1], 0, 5, 0) == 5 && lseek(file, 0, SEEK_CUR) == 5 && bytes_in(a[0]) == 5);
    CHECK(splice(a[0], 0, b[1], 0, 100, 0) == 5 && read(b[0], text, 100) == 5 && !memcmp(text, "hello", 5));
    CHECK(write(a[1], "abc", 3) == 3 && splice(a[0], 0, file, &at, 100, 0) == 3 && at == 23);
    CHECK(lseek(file, 0, SEEK_CUR) == 5 && lseek(file, 0, SEEK_END) == 23);
    at = 2;
    CHECK(splice(file, &at, a[1], 0, 100, 0) == 21 && at == 23 && splice(file, &at, a[1], 0, 100, 0) == 0);
    CHECK(splice(a[0], 0, sockets[0], 0, 100, 0) == 21 && splice(sockets[1], 0, a[1], 0, 100, 0) == 21);
    CHECK(read(a[0], text, 100) == 21 && !memcmp(text, "llo world", 9) && !memcmp(text + 18, "abc", 3));
    // The end of a pipe, and a pipe without a reader.
    CHECK(write(b[1], "last", 4) == 4 && !close(b[1]));
    CHECK(splice(b[0], 0, file, 0, 100, 0) == 4 && splice(b[0], 0, file, 0, 100, 0) == 0);
    CHECK(!close(a[0]) && !lseek(file, 0, SEEK_SET) && FAILS(EPIPE, splice(file, 0, a[1], 0, 5, 0)));
    close(a[1]), close(b[0]), close(file), close(sockets[0]), close(sockets[1]);
}

static void splice_waits_for_bytes_and_room(void) {
    int a[2], b[2], file = new_file(""), status;
    CHECK(!pipe(a) && !pipe(b));
    CHECK(FAILS(EAGAIN, splice(a[0], 0, file, 0, 10, SPLICE_F_NONBLOCK)));
    CHECK(FAILS(EAGAIN, tee(a[0], b[1], 10, SPLICE_F_NONBLOCK)));
    pid_t child = fork();
    if (!child) {
        usleep(5000);
        CHECK(write(a[1], "late", 4) == 4);
        _exit(0);
    }
    CHECK(splice(a[0], 0, file, 0, 10, 0) == 4 && wait(&status) == child && status == 0);
    // The target is full until a child reads it.
    CHECK(write(b[1], text, 65536) == 65536 && write(a[1], "late", 4) == 4);
    CHECK(FAILS(EAGAIN, splice(a[0], 0, b[1], 0, 4, SPLICE_F_NONBLOCK)) && bytes_in(a[0]) == 4);
    CHECK(FAILS(EAGAIN, splice(file, 0, b[1], 0, 4, SPLICE_F_NONBLOCK)));
    child = fork();
    if (!child) {
        usleep(5000);
        CHECK(read(b[0], text, 65536) > 0);
        _exit(0);
    }
    CHECK(splice(a[0], 0, b[1], 0, 4, 0) == 4 && bytes_in(a[0]) == 0);
    CHECK(wait(&status) == child && status == 0);
    close(a[0]), close(a[1]), close(b[0]), close(b[1]), close(file);
}

static void tee_copies_bytes(void) {
    int a[2], b[2];
    CHECK(!pipe(a) && !pipe(b) && write(a[1], "first", 5) == 5);
    char *pages = new_pages(1);
    strcpy(pages, "page");
    CHECK(give(a[1], pages, 4) == 4 && write(a[1], "last", 4) == 4);
    CHECK(tee(a[0], b[1], 7, 0) == 7 && bytes_in(a[0]) == 13 && bytes_in(b[0]) == 7);
    CHECK(tee(a[0], b[1], 100, 0) == 13 && read(b[0], text, 100) == 20 && !memcmp(text, "firstpafirstpagelast", 20));
    CHECK(read(a[0], text, 100) == 13 && !close(a[1]) && tee(a[0], b[1], 10, 0) == 0);
    munmap(pages, PAGE);
    close(a[0]), close(b[0]), close(b[1]);
}

static void vmsplice_adds_the_pages_themselves(void) {
    int ends[2];
    CHECK(!pipe(ends));
    char *pages = new_pages(3);
    memset(pages, 'a', 3 * PAGE);
    CHECK(write(ends[1], "before", 6) == 6 && give(ends[1], pages + PAGE - 2, PAGE + 4) == PAGE + 4);
    CHECK(write(ends[1], "after", 5) == 5 && bytes_in(ends[0]) == 6 + PAGE + 4 + 5);
    // The pipe has the pages, and not a copy.
    pages[PAGE - 1] = 'b', pages[2 * PAGE + 1] = 'c', pages[2 * PAGE + 2] = 'd';
    CHECK(read(ends[0], text, 7) == 7 && !memcmp(text, "beforea", 7));
    CHECK(read(ends[0], text, sizeof text) == 1 + PAGE + 2 + 5 && text[0] == 'b' && text[1] == 'a');
    CHECK(text[PAGE + 1] == 'a' && text[PAGE + 2] == 'c' && !memcmp(text + PAGE + 3, "after", 5));
    // The pages stay in the pipe after an unmapping.
    strcpy(pages, "kept");
    CHECK(give(ends[1], pages, 4) == 4 && !munmap(pages, 3 * PAGE));
    pages = new_pages(3);
    memset(pages, 'x', 3 * PAGE);
    CHECK(read(ends[0], text, 100) == 4 && !memcmp(text, "kept", 4));
    munmap(pages, 3 * PAGE);
    close(ends[0]), close(ends[1]);
}

static void pages_in_a_pipe_are_not_shared_by_fork(void) {
    int ends[2], status;
    char *pages = new_pages(2), byte;
    CHECK(!pipe(ends));
    // The child's stores do not reach the pipe.
    memset(pages, 'p', PAGE);
    CHECK(give(ends[1], pages, 1) == 1);
    pid_t child = fork();
    if (!child) {
        pages[0] = 'c';
        _exit(0);
    }
    CHECK(wait(&status) == child && status == 0);
    CHECK(pages[0] == 'p' && read(ends[0], &byte, 1) == 1 && byte == 'p');
    // The same, and the parent stores to its page. On Linux the parent then gets a copy; this kernel gave the
    // child the copy.
    CHECK(give(ends[1], pages, 1) == 1 && (child = fork()) >= 0);
    if (!child) {
        pause();
        _exit(0);
    }
    pages[0] = 'q';
    CHECK(read(ends[0], &byte, 1) == 1 && (byte == 'p' || byte == 'q'));
    CHECK(!kill(child, SIGKILL) && wait(&status) == child);
    // A child pins a page that it shares, and drops its mapping. The parent's later secrets stay its own.
    int go[2];
    CHECK(!pipe(go) && (child = fork()) >= 0);
    if (!child) {
        CHECK(give(ends[1], pages, 1) == 1 && !munmap(pages, PAGE));
        CHECK(read(go[0], &byte, 1) == 1 && read(ends[0], &byte, 1) == 1);
        _exit(byte != 'q');
    }
    struct pollfd polled = {ends[0], POLLIN, 0};
    CHECK(poll(&polled, 1, 5000) == 1);
    pages[0] = 's';
    CHECK(write(go[1], "x", 1) == 1 && wait(&status) == child && status == 0);
    munmap(pages, 2 * PAGE);
    close(ends[0]), close(ends[1]), close(go[0]), close(go[1]);
}

static void pages_take_room(void) {
    int ends[2], count = 0;
    char *pages = new_pages(20);
    memset(pages, 'a', 20 * PAGE);
    CHECK(!pipe2(ends, O_NONBLOCK));
    while (give(ends[1], pages, 1) == 1) count++;
    CHECK(errno == EAGAIN && count == 16 && FAILS(EAGAIN, write(ends[1], text, 1)) && bytes_in(ends[0]) == 16);
    CHECK(FAILS(EBUSY, fcntl(ends[1], F_SETPIPE_SZ, PAGE)));
    CHECK(read(ends[0], text, 1) == 1 && write(ends[1], "b", 1) == 1 && read(ends[0], text, 100) == 16 && text[15] == 'b');
    CHECK(give(ends[1], pages, 20 * PAGE) == 16 * PAGE && read(ends[0], text, sizeof text) == 16 * PAGE);
    // A pipe that is closed with pages in it frees them.
    CHECK(give(ends[1], pages, 20 * PAGE) == 16 * PAGE);
    munmap(pages, 20 * PAGE);
    close(ends[0]), close(ends[1]);
}

static void vmsplice_reads_a_pipe(void) {
    int ends[2];
    char first[3], second[8];
    struct iovec parts[2] = {{first, 3}, {second, 8}};
    CHECK(!pipe(ends) && write(ends[1], "abcdef", 6) == 6 && vmsplice(ends[0], parts, 2, 0) == 6);
    CHECK(!memcmp(first, "abc", 3) && !memcmp(second, "def", 3));
    close(ends[0]), close(ends[1]);
}

static void wrong_arguments_are_refused(void) {
    int a[2], b[2], file = new_file("text"), appends = open("/tmp/appends", O_RDWR | O_CREAT | O_APPEND, 0600);
    loff_t at = 0;
    struct iovec part = {text, 4};
    CHECK(!pipe(a) && !pipe(b) && write(a[1], "abc", 3) == 3 && appends >= 0);
    CHECK(FAILS(EINVAL, splice(a[0], 0, appends, 0, 3, 0)) && FAILS(ESPIPE, splice(a[0], &at, file, 0, 3, 0)));
    CHECK(FAILS(EINVAL, splice(file, 0, appends, 0, 3, 0)) && FAILS(EINVAL, splice(a[0], 0, a[1], 0, 3, 0)));
    CHECK(FAILS(EBADF, splice(a[1], 0, file, 0, 3, 0)) && FAILS(EBADF, splice(file, 0, a[0], 0, 3, 0)));
    CHECK(FAILS(EINVAL, splice(a[0], 0, file, 0, 3, 16)) && FAILS(EBADF, splice(999, 0, a[1], 0, 3, 0)));
    at = -1;
    CHECK(splice(999, 0, a[1], 0, 0, 0) == 0 && FAILS(EINVAL, splice(file, &at, a[1], 0, 3, 0)));
    CHECK(FAILS(EINVAL, tee(a[0], a[1], 3, 0)) && FAILS(EINVAL, tee(a[0], file, 3, 0)) && FAILS(EBADF, tee(a[0], b[0], 3, 0)));
    CHECK(FAILS(EINVAL, tee(a[0], b[1], 3, 16)) && tee(a[0], b[1], 0, 0) == 0);
    CHECK(FAILS(EBADF, vmsplice(file, &part, 1, 0)) && FAILS(EINVAL, vmsplice(a[1], &part, 1, 16)));
    CHECK(FAILS(EINVAL, vmsplice(a[1], &part, 1025, 0)) && vmsplice(a[1], &part, 0, 0) == 0);
    CHECK(FAILS(EFAULT, give(a[1], (void *)8, 4)) && FAILS(EFAULT, give(a[1], (void *)-8L, 4)));
    // The pages before an unmapped one are added.
    char *pages = new_pages(2);
    CHECK(!munmap(pages + PAGE, PAGE) && give(a[1], pages, 2 * PAGE) == PAGE);
    // Secret memory cannot be pinned.
    int secret = syscall(SYS_memfd_secret, 0);
    if (secret >= 0) {
        CHECK(!ftruncate(secret, PAGE));
        char *hidden = mmap(0, PAGE, PROT_READ | PROT_WRITE, MAP_SHARED, secret, 0);
        CHECK(hidden != MAP_FAILED);
        hidden[0] = 1;
        CHECK(FAILS(EFAULT, give(a[1], hidden, 1)));
        munmap(hidden, PAGE), close(secret);
    }
    CHECK(!close(a[0]) && FAILS(EPIPE, give(a[1], pages, 1)));
    munmap(pages, PAGE), unlink("/tmp/appends");
    close(a[1]), close(b[0]), close(b[1]), close(file), close(appends);
}

int main(void) {
    signal(SIGPIPE, SIG_IGN);
    PART(splice_moves_bytes);
    PART(splice_waits_for_bytes_and_room);
    PART(tee_copies_bytes);
    PART(vmsplice_adds_the_pages_themselves);
    PART(pages_in_a_pipe_are_not_shared_by_fork);
    PART(pages_take_room);
    PART(vmsplice_reads_a_pipe);
    PART(wrong_arguments_are_refused);
    return 0;
}
