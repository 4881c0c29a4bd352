// Files and memory: mappings of files, truncation, seals, messages between processes, reports in /proc.
// Checks files of `kernel/src/files` and of `kernel/src/calls`. Each part makes its files below /tmp and
// removes them.
#define _GNU_SOURCE
#include "check.h"
#include <fcntl.h>
#include <poll.h>
#include <signal.h>
#include <stdint.h>
#include <sys/epoll.h>
#include <sys/eventfd.h>
#include <sys/mman.h>
#include <sys/resource.h>
#include <sys/select.h>
#include <sys/shm.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/timerfd.h>
#include <sys/uio.h>
#include <sys/wait.h>

static int new_file(const char *path, const char *text) {
    int file = open(path, O_RDWR | O_CREAT | O_TRUNC, 0644);
    CHECK(file >= 0);
    CHECK(write(file, text, strlen(text)) == (ssize_t)strlen(text));
    return file;
}

static void mapping_and_file_have_the_same_contents(void) {
    int file = new_file("/tmp/mapped", "first");
    char *shared = mmap(0, 4096, PROT_READ | PROT_WRITE, MAP_SHARED, file, 0);
    char *own = mmap(0, 4096, PROT_READ | PROT_WRITE, MAP_PRIVATE, file, 0), text[6] = "";
    CHECK(shared != MAP_FAILED && own != MAP_FAILED);
    CHECK(!strcmp(own, "first"));
    memcpy(shared, "other", 5);
    CHECK(pread(file, text, 5, 0) == 5 && !strcmp(text, "other") && !strcmp(own, "other"));
    memcpy(own, "never", 5);
    CHECK(pwrite(file, "third", 5, 0) == 5);
    CHECK(!strcmp(shared, "third") && !strcmp(own, "never"));
    CHECK(!msync(shared, 4096, MS_SYNC));
    CHECK(!unlink("/tmp/mapped") && !strcmp(shared, "third"));
    struct stat about;
    CHECK(!fstat(file, &about) && about.st_nlink == 0 && about.st_size == 5);
    munmap(shared, 4096);
    munmap(own, 4096);
    close(file);
}

static void truncated_file_loses_its_pages(void) {
    int file = new_file("/tmp/shrunk", "x");
    CHECK(!ftruncate(file, 3 * 4096));
    char *at = mmap(0, 3 * 4096, PROT_READ | PROT_WRITE, MAP_SHARED, file, 0);
    CHECK(at != MAP_FAILED);
    memset(at, 7, 3 * 4096);
    CHECK(!ftruncate(file, 4096 + 10));
    CHECK(!ftruncate(file, 3 * 4096));
    CHECK(at[4096 + 9] == 7 && at[4096 + 10] == 0 && at[2 * 4096] == 0);
    munmap(at, 3 * 4096);
    close(file);
    CHECK(!unlink("/tmp/shrunk"));
}

static void seals_forbid_changes(void) {
    int file = memfd_create("sealed", MFD_ALLOW_SEALING);
    CHECK(file >= 0 && !ftruncate(file, 4096));
    CHECK(!fcntl(file, F_ADD_SEALS, F_SEAL_SHRINK | F_SEAL_WRITE));
    CHECK(ftruncate(file, 0) == -1);
    CHECK((ftruncate(file, 0), errno == EPERM));
    CHECK(write(file, "x", 1) == -1);
    CHECK(mmap(0, 4096, PROT_WRITE, MAP_SHARED, file, 0) == MAP_FAILED);
    void *at = mmap(0, 4096, PROT_READ, MAP_SHARED, file, 0);
    CHECK(at != MAP_FAILED);
    munmap(at, 4096);
    close(file);
}

static void exec_seal_protects_mode_and_contents(void) {
    enum { NOEXEC_SEAL = 8, EXEC = 16, SEAL_EXEC = 0x20, WRITES = F_SEAL_SHRINK | F_SEAL_GROW | F_SEAL_WRITE };
    struct stat found;
    CHECK(memfd_create("both", NOEXEC_SEAL | EXEC) == -1 && errno == EINVAL);
    int file = memfd_create("data", NOEXEC_SEAL);
    CHECK(file >= 0 && fcntl(file, F_GET_SEALS) == SEAL_EXEC);
    CHECK(!fstat(file, &found) && (found.st_mode & 0777) == 0666);
    CHECK(fchmod(file, 0766) == -1 && errno == EPERM);
    CHECK(!fchmod(file, 0644) && !ftruncate(file, 4096) && !close(file));
    file = memfd_create("program", EXEC | MFD_ALLOW_SEALING);
    CHECK(file >= 0 && !fcntl(file, F_GET_SEALS) && !fcntl(file, F_ADD_SEALS, SEAL_EXEC));
    CHECK(fcntl(file, F_GET_SEALS) == (SEAL_EXEC | WRITES | F_SEAL_FUTURE_WRITE));
    CHECK(fchmod(file, 0666) == -1 && errno == EPERM);
    CHECK(!fchmod(file, 01777) && write(file, "x", 1) == -1 && errno == EPERM);
    close(file);
}

static void pipe_keeps_the_bytes_of_a_failed_read(void) {
    int ends[2];
    char got[8] = "";
    char *page = mmap(0, 8192, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    CHECK(page != MAP_FAILED && !munmap(page + 4096, 4096));
    CHECK(!pipe(ends) && write(ends[1], "abcdef", 6) == 6);
    CHECK(read(ends[0], page + 4096, 6) == -1 && errno == EFAULT);
    CHECK(read(ends[0], got, 2) == 2 && !memcmp(got, "ab", 2));
    CHECK(read(ends[0], got, 8) == 4 && !memcmp(got, "cdef", 4));
    close(ends[0]), close(ends[1]), munmap(page, 4096);
}

static void transfer_ends_at_unmapped_memory(void) {
    static unsigned char bytes[8192];
    int file = memfd_create("short", 0);
    char *page = mmap(0, 8192, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    CHECK(page != MAP_FAILED && !munmap(page + 4096, 4096) && write(file, bytes, 8192) == 8192);
    for (long room = 1; room < 4096; room += 211) {
        for (long at = 0; at < 8192; at++)
            bytes[at] = at * 7 % 251;
        CHECK(pwrite(file, bytes, 8192, 0) == 8192);
        char *end = page + 4096;
        CHECK(pread(file, end - room, 8192, 0) == room && !memcmp(end - room, bytes, room));
        // A write also ends at the end of the mapped page.
        memset(end - room, 'w', room);
        CHECK(pwrite(file, end - room, 8192, 0) == room && pread(file, bytes, 8192, 0) == 8192);
        CHECK(bytes[room - 1] == 'w' && bytes[room] == room * 7 % 251);
    }
    int event = eventfd(5, 0);
    char *last = page + 4092;
    CHECK(read(event, last, 8) == -1 && errno == EFAULT && write(event, last, 8) == -1 && errno == EFAULT);
    close(event);
    int map = open("/proc/self/pagemap", O_RDONLY);
    CHECK(map >= 0);
    CHECK(read(map, page, 8192) == -1 && errno == EFAULT);
    close(map), close(file), munmap(page, 4096);
}

static void pipe_transfers_bytes_and_blocks(void) {
    int ends[2], status;
    CHECK(!pipe2(ends, O_NONBLOCK));
    static char much[1 << 17];
    ssize_t took = write(ends[1], much, sizeof much);
    CHECK(took == 65536);
    CHECK(write(ends[1], much, 1) == -1);
    CHECK(read(ends[0], much, sizeof much) == took);
    CHECK(!fcntl(ends[0], F_SETFL, 0) && !fcntl(ends[1], F_SETFL, 0));
    pid_t child = fork();
    if (!child) {
        close(ends[0]);
        for (int n = 0; n < 1000; n++) CHECK(write(ends[1], much, 1000) == 1000);
        _exit(0);
    }
    close(ends[1]);
    long all = 0;
    for (ssize_t got; (got = read(ends[0], much, sizeof much)) > 0;) all += got;
    CHECK(all == 1000000);
    CHECK(wait(&status) == child && status == 0);
    close(ends[0]);
}

static void named_pipe_connects_its_openers(void) {
    const char *name = "/tmp/named-pipe";
    char text[8];
    int status;
    CHECK(!mkfifo(name, 0600) && mkfifo(name, 0600) == -1 && errno == EEXIST);
    CHECK(open(name, O_WRONLY | O_NONBLOCK) == -1 && errno == ENXIO);
    int reader = open(name, O_RDONLY | O_NONBLOCK);
    CHECK(reader >= 0 && read(reader, text, sizeof text) == 0);
    int writer = open(name, O_WRONLY);
    CHECK(writer >= 0 && read(reader, text, sizeof text) == -1 && errno == EAGAIN);
    CHECK(write(writer, "kept", 4) == 4 && !close(writer));
    CHECK(read(reader, text, sizeof text) == 4 && read(reader, text, sizeof text) == 0 && !close(reader));
    // An open waits for the other end. The other end may already be closed again when the open returns.
    for (int n = 0; n < 100; n++) {
        pid_t child = fork();
        if (!child) _exit((writer = open(name, O_WRONLY)) < 0 || write(writer, "a", 1) != 1);
        CHECK((reader = open(name, O_RDONLY)) >= 0);
        CHECK(wait(&status) == child && status == 0);
        CHECK(read(reader, text, sizeof text) == 1 && read(reader, text, sizeof text) == 0 && !close(reader));
    }
    int both = open(name, O_RDWR);
    CHECK(both >= 0 && write(both, "both", 4) == 4 && read(both, text, sizeof text) == 4);
    CHECK(!close(both) && !unlink(name));
}

static void socket_can_shut_down_one_direction(void) {
    int ends[2], kind;
    char text[8];
    struct sockaddr_storage name;
    socklen_t bytes = sizeof name;
    signal(SIGPIPE, SIG_IGN);
    CHECK(!socketpair(AF_UNIX, SOCK_STREAM, 0, ends));
    CHECK(!getsockname(ends[0], (struct sockaddr *)&name, &bytes) && bytes == 2 && name.ss_family == AF_UNIX);
    bytes = sizeof kind;
    CHECK(!getsockopt(ends[0], SOL_SOCKET, SO_TYPE, &kind, &bytes) && bytes == sizeof kind && kind == SOCK_STREAM);
    CHECK(getsockname(1, (struct sockaddr *)&name, &bytes) == -1 && errno == ENOTSOCK);
    CHECK(shutdown(ends[0], 3) == -1 && errno == EINVAL);
    CHECK(write(ends[0], "last", 4) == 4 && !shutdown(ends[0], SHUT_WR));
    CHECK(write(ends[0], "more", 4) == -1 && errno == EPIPE);
    CHECK(read(ends[1], text, sizeof text) == 4 && read(ends[1], text, sizeof text) == 0);
    CHECK(write(ends[1], "back", 4) == 4 && read(ends[0], text, sizeof text) == 4);
    struct pollfd ready[2] = {{ends[0], POLLIN, 0}, {ends[1], POLLIN, 0}};
    CHECK(poll(ready, 2, 0) == 1 && ready[1].revents == POLLIN);
    CHECK(!shutdown(ends[1], SHUT_WR) && poll(ready, 2, 0) == 2);
    CHECK(ready[0].revents == (POLLIN | POLLHUP) && ready[1].revents == (POLLIN | POLLHUP));
    close(ends[0]);
    close(ends[1]);
}

// A set may be larger than `fd_set`. Bits beyond the descriptor table are ignored.
static void select_ignores_bits_beyond_the_table(void) {
    static unsigned long sets[1024];
    struct timeval none = {0, 0};
    struct rlimit most;
    int ends[2];
    CHECK(!getrlimit(RLIMIT_NOFILE, &most) && most.rlim_max >= 2000);
    most.rlim_cur = 2000;
    CHECK(!setrlimit(RLIMIT_NOFILE, &most) && !pipe(ends) && write(ends[1], "x", 1) == 1);
    sets[50000 / 64] = 1UL << 50000 % 64;
    CHECK(syscall(SYS_select, 65536, sets, 0, 0, &none) == 0);
    CHECK(dup2(ends[0], 1500) == 1500);
    sets[1500 / 64] = 1UL << 1500 % 64;
    CHECK(syscall(SYS_select, 65536, sets, 0, 0, &none) == 1 && sets[1500 / 64] == 1UL << 1500 % 64);
    CHECK(syscall(SYS_select, 1501, sets, 0, 0, &none) == 1 && !close(1500));
    CHECK(syscall(SYS_select, 1501, sets, 0, 0, &none) == -1 && errno == EBADF);
    static struct pollfd many[2001];
    many[0] = (struct pollfd){ends[0], POLLIN, 0};
    CHECK(poll(many, 1, 0) == 1 && poll(many, 2001, 0) == -1 && errno == EINVAL);
    close(ends[0]);
    close(ends[1]);
}

static void epoll_waits_for_events(void) {
    int bell = eventfd(0, 0), timer = timerfd_create(CLOCK_MONOTONIC, 0), both = epoll_create1(0);
    CHECK(bell >= 0 && timer >= 0 && both >= 0);
    struct epoll_event first = {EPOLLIN, {.u32 = 1}}, second = {EPOLLIN, {.u32 = 2}}, got[2];
    CHECK(!epoll_ctl(both, EPOLL_CTL_ADD, bell, &first) && !epoll_ctl(both, EPOLL_CTL_ADD, timer, &second));
    CHECK(epoll_wait(both, got, 2, 0) == 0);
    uint64_t number = 5;
    CHECK(write(bell, &number, 8) == 8);
    CHECK(epoll_wait(both, got, 2, -1) == 1 && got[0].data.u32 == 1);
    CHECK(read(bell, &number, 8) == 8 && number == 5);
    struct itimerspec soon = {{0, 0}, {0, 10000000}};
    CHECK(!timerfd_settime(timer, 0, &soon, 0));
    CHECK(epoll_wait(both, got, 2, 5000) == 1 && got[0].data.u32 == 2);
    struct pollfd poller = {timer, POLLIN, 0};
    CHECK(poll(&poller, 1, 0) == 1 && poller.revents == POLLIN);
    CHECK(read(timer, &number, 8) == 8 && number == 1);
    close(bell), close(timer), close(both);
}

static void segment_is_shared_with_a_child(void) {
    int segment = shmget(IPC_PRIVATE, 8192, IPC_CREAT | 0600), status;
    CHECK(segment >= 0);
    char *at = shmat(segment, 0, 0);
    CHECK(at != (char *)-1);
    if (!fork()) {
        at[5000] = 9;
        _exit(0);
    }
    CHECK(wait(&status) > 0 && status == 0 && at[5000] == 9);
    struct shmid_ds about;
    CHECK(!shmctl(segment, IPC_STAT, &about) && about.shm_nattch == 1 && about.shm_segsz == 8192);
    CHECK(!shmctl(segment, IPC_RMID, 0) && !shmdt(at));
}

static void process_vm_readv_reads_a_child(void) {
    static volatile char here[100] = "before";
    int ends[2];
    char byte, got[100];
    CHECK(!pipe(ends));
    pid_t child = fork();
    if (!child) {
        strcpy((char *)here, "behind");
        CHECK(write(ends[1], "x", 1) == 1);
        pause();
    }
    CHECK(read(ends[0], &byte, 1) == 1);
    struct iovec to = {got, 100}, from = {(void *)here, 100};
    CHECK(process_vm_readv(child, &to, 1, &from, 1, 0) == 100 && !strcmp(got, "behind"));
    CHECK(!kill(child, 9) && wait(0) == child);
}

static void maps_lists_vmas_stack_and_heap(void) {
    char *at = mmap(0, 3 * 4096, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0), line[512];
    CHECK(at != MAP_FAILED && !mprotect(at + 4096, 4096, PROT_READ));
    FILE *maps = fopen("/proc/self/maps", "r");
    CHECK(maps);
    int found = 0;
    while (fgets(line, sizeof line, maps)) {
        char *start, *end, rights[5];
        CHECK(sscanf(line, "%p-%p %4s", (void **)&start, (void **)&end, rights) == 3);
        if (start == at + 4096) found += end == at + 8192 && !strcmp(rights, "r--p");
        if (strstr(line, "[stack]") || strstr(line, "[heap]")) found += 10;
    }
    CHECK(found == 21);
    fclose(maps);
    munmap(at, 3 * 4096);
}

static void folder_entries_can_be_linked_and_renamed(void) {
    CHECK(!mkdir("/tmp/folder", 0755));
    close(new_file("/tmp/folder/a", "1"));
    CHECK(!symlink("a", "/tmp/folder/b") && !link("/tmp/folder/a", "/tmp/folder/c"));
    char to[10] = "";
    CHECK(readlink("/tmp/folder/b", to, 9) == 1 && to[0] == 'a');
    struct stat about;
    CHECK(!stat("/tmp/folder/b", &about) && about.st_nlink == 2 && S_ISREG(about.st_mode));
    CHECK(!lstat("/tmp/folder/b", &about) && S_ISLNK(about.st_mode));
    CHECK(!rename("/tmp/folder/c", "/tmp/folder/d") && access("/tmp/folder/c", F_OK) == -1);
    CHECK(rmdir("/tmp/folder") == -1);
    CHECK((rmdir("/tmp/folder"), errno == ENOTEMPTY));
    CHECK(!unlink("/tmp/folder/a") && !unlink("/tmp/folder/b") && !unlink("/tmp/folder/d"));
    CHECK(!rmdir("/tmp/folder"));
}

static int watch(int set, int other) {
    struct epoll_event event = {.events = EPOLLIN};
    return epoll_ctl(set, EPOLL_CTL_ADD, other, &event) ? errno : 0;
}

static void epolls_cannot_form_cycles(void) {
    enum { MOST = 5 };
    int all[MOST + 1], bell = eventfd(1, 0);
    struct epoll_event got;
    for (int n = 0; n <= MOST; n++) CHECK((all[n] = epoll_create1(0)) >= 0);
    CHECK(watch(all[0], all[0]) == EINVAL);
    CHECK(watch(all[0], all[1]) == 0 && watch(all[1], all[0]) == ELOOP);
    CHECK(watch(all[1], all[2]) == 0 && watch(all[2], all[0]) == ELOOP);
    CHECK(watch(all[2], bell) == 0 && epoll_wait(all[0], &got, 1, 0) == 1);
    // A chain may have at most five epolls, and may be extended at either end.
    CHECK(watch(all[4], all[5]) == 0 && watch(all[3], all[4]) == 0 && watch(all[2], all[3]) == ELOOP);
    CHECK(epoll_ctl(all[4], EPOLL_CTL_DEL, all[5], 0) == 0 && watch(all[2], all[3]) == 0);
    CHECK(watch(all[4], all[5]) == ELOOP && watch(all[5], all[0]) == ELOOP);
    CHECK(epoll_ctl(all[0], EPOLL_CTL_DEL, all[1], 0) == 0 && watch(all[4], all[5]) == 0);
    CHECK(watch(all[5], all[1]) == ELOOP && watch(all[0], all[5]) == 0);
    for (int n = 0; n <= MOST; n++) close(all[n]);
    close(bell);
}

// A file of a folder in memory cannot be sealed. Only memfd_create makes files that can.
static void only_memfds_can_be_sealed(void) {
    int file = open("/dev/shm/sealed", O_RDWR | O_CREAT, 0600), reader = open("/dev/shm/sealed", O_RDONLY);
    CHECK(fcntl(file, F_GET_SEALS) == F_SEAL_SEAL && fcntl(reader, F_GET_SEALS) == F_SEAL_SEAL);
    CHECK(fcntl(file, F_ADD_SEALS, F_SEAL_GROW) == -1 && errno == EPERM);
    CHECK(fcntl(file, F_ADD_SEALS, 0x100) == -1 && errno == EINVAL);
    int folder = open("/dev/shm", O_RDONLY);
    CHECK(fcntl(folder, F_GET_SEALS) == -1 && errno == EINVAL);
    CHECK(!unlink("/dev/shm/sealed") && !close(file) && !close(reader) && !close(folder));
}

// Rights are checked before the file is found to have no pages.
static void file_without_pages_cannot_be_mapped(void) {
    static const struct { int end, bytes, rights, flags, error; } cases[] = {
        {0, 4096, PROT_READ, MAP_SHARED, ENODEV},
        {0, 4096, PROT_READ | PROT_WRITE, MAP_PRIVATE, ENODEV},
        {0, 4096, PROT_WRITE, MAP_SHARED, EACCES},
        {0, 4096, PROT_WRITE, MAP_SHARED_VALIDATE, EACCES},
        {1, 4096, PROT_NONE, MAP_SHARED, EACCES},
        {1, 4096, PROT_READ, MAP_PRIVATE, EACCES},
        {0, 0, PROT_READ, MAP_PRIVATE, EINVAL},
        {0, 4096, PROT_READ, 0, EINVAL},
    };
    int ends[2];
    CHECK(!pipe(ends));
    for (unsigned n = 0; n < sizeof cases / sizeof *cases; n++) {
        errno = 0;
        CHECK(mmap(0, cases[n].bytes, cases[n].rights, cases[n].flags, ends[cases[n].end], 0) == MAP_FAILED);
        CHECK(errno == cases[n].error);
    }
    int folder = open("/tmp", O_RDONLY);
    CHECK(mmap(0, 4096, PROT_READ, MAP_SHARED, folder, 0) == MAP_FAILED && errno == ENODEV);
    CHECK(mmap(0, 4096, PROT_WRITE, MAP_SHARED, folder, 0) == MAP_FAILED && errno == EACCES);
    CHECK(!close(folder) && !close(ends[0]) && !close(ends[1]));
}

// Five levels of epolls, each of which watches the next by many descriptors. A look at the first examines each
// of the others once, and does not follow each of the 190^4 chains.
static void nested_epolls_are_examined_once(void) {
    enum { LEVELS = 5, WIDE = 190 };
    int all[LEVELS], copies[LEVELS][WIDE], bell = eventfd(1, 0);
    struct epoll_event got;
    for (int n = 0; n < LEVELS; n++) CHECK((all[n] = epoll_create1(0)) >= 0);
    for (int n = 1; n < LEVELS; n++)
        for (int i = 0; i < WIDE; i++) {
            CHECK((copies[n][i] = dup(all[n])) >= 0 && watch(all[n - 1], copies[n][i]) == 0);
        }
    struct pollfd first = {.fd = all[0], .events = POLLIN};
    CHECK(epoll_wait(all[0], &got, 1, 0) == 0 && poll(&first, 1, 0) == 0);
    CHECK(watch(all[4], bell) == EINVAL && epoll_wait(all[0], &got, 1, 0) == 0);
    for (int n = 1; n < LEVELS; n++)
        for (int i = 0; i < WIDE; i++) close(copies[n][i]);
    CHECK(watch(all[0], bell) == 0 && poll(&first, 1, 0) == 1);
    for (int n = 0; n < LEVELS; n++) close(all[n]);
    close(bell);
}

// Only a limited number of chains of epolls may lead from a file to epolls that no epoll watches.
static void chains_from_a_file_are_limited(void) {
    enum { MOST = 500 };
    int first = epoll_create1(0), second = epoll_create1(0), bell = eventfd(1, 0), copies[MOST + 1];
    struct epoll_event got;
    CHECK(watch(first, second) == 0);
    for (int n = 0; n <= MOST; n++) {
        CHECK((copies[n] = dup(bell)) >= 0 && watch(second, copies[n]) == (n < MOST ? 0 : EINVAL));
    }
    CHECK(epoll_wait(first, &got, 1, 0) == 1);
    CHECK(epoll_ctl(second, EPOLL_CTL_DEL, copies[0], 0) == 0 && watch(second, copies[MOST]) == 0);
    for (int n = 0; n <= MOST; n++) close(copies[n]);
    close(second);
    // Without the second epoll, no limit applies.
    CHECK(watch(first, bell) == 0);
    close(first), close(bell);
}

int main(void) {
    PART(mapping_and_file_have_the_same_contents);
    PART(truncated_file_loses_its_pages);
    PART(seals_forbid_changes);
    PART(exec_seal_protects_mode_and_contents);
    PART(pipe_keeps_the_bytes_of_a_failed_read);
    PART(transfer_ends_at_unmapped_memory);
    PART(pipe_transfers_bytes_and_blocks);
    PART(named_pipe_connects_its_openers);
    PART(socket_can_shut_down_one_direction);
    PART(select_ignores_bits_beyond_the_table);
    PART(epoll_waits_for_events);
    PART(segment_is_shared_with_a_child);
    PART(process_vm_readv_reads_a_child);
    PART(maps_lists_vmas_stack_and_heap);
    PART(folder_entries_can_be_linked_and_renamed);
    PART(epolls_cannot_form_cycles);
    PART(only_memfds_can_be_sealed);
    PART(file_without_pages_cannot_be_mapped);
    PART(nested_epolls_are_examined_once);
    PART(chains_from_a_file_are_limited);
    return 0;
}
