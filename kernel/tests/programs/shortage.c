// Programs that make as many objects of the kernel as they can, until memory is used up: pipes, names, timers,
// watched files, processes, mappings and others. The machine must survive each flood, another program must be
// able to work during the flood, and all memory must be free afterwards. Checks `sched/charge.rs` and
// `process/shortage.rs`. On a larger machine, the argument limits the number of objects.
#define _GNU_SOURCE
#include "check.h"
#include <fcntl.h>
#include <limits.h>
#include <poll.h>
#include <pthread.h>
#include <sched.h>
#include <signal.h>
#include <stdint.h>
#include <sys/epoll.h>
#include <sys/eventfd.h>
#include <sys/mman.h>
#include <sys/mount.h>
#include <sys/prctl.h>
#include <sys/resource.h>
#include <sys/sem.h>
#include <sys/shm.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/sysinfo.h>
#include <sys/uio.h>
#include <sys/wait.h>
#include <sys/xattr.h>
#include <time.h>

// The maximum number of objects of one process.
static long most = LONG_MAX;
// True once the stacks of threads, which the kernel keeps for further threads, have been made.
static int has_stacks;
// The eventfd of which a flood increments the number when memory is used up.
static int report;
static char buffer[1 << 20];

static long free_bytes(void) {
    struct sysinfo info;
    CHECK(!sysinfo(&info));
    return info.freeram * info.mem_unit;
}

// Makes objects with `one`, which gets the number of the object, until memory is used up. If `one` meets a limit of
// the process, another process continues with the following numbers.
static void flood(int (*one)(long)) {
    for (long i = 0; i < most; i++) {
        if (one(i) >= 0) continue;
        if (errno == ENOMEM || errno == ENOSPC) break;
        CHECK(errno == EMFILE || errno == EAGAIN);
        pid_t child = fork();
        if (child < 0) break;
        // If the other process is killed, memory was used up, too.
        if (child > 0) {
            waitpid(child, 0, 0);
            break;
        }
    }
    uint64_t one_more = 1;
    CHECK(write(report, &one_more, 8) == 8);
    for (;;) pause();
}

// Does what any program may do, with little memory.
static void work(void) {
    int ends[2];
    CHECK(!pipe(ends));
    CHECK(write(ends[1], "text", 4) == 4 && read(ends[0], buffer, 4) == 4);
    CHECK(!close(ends[0]) && !close(ends[1]));
    int file = open("/tmp/work", O_CREAT | O_RDWR, 0600);
    // A flood of names or of contents leaves no room for further ones.
    CHECK(file >= 0 || errno == ENOSPC);
    if (file >= 0) {
        CHECK(write(file, "text", 4) == 4 || errno == ENOSPC);
        CHECK(!close(file) && !unlink("/tmp/work"));
    }
    char *memory = mmap(0, 1 << 20, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    CHECK(memory != MAP_FAILED);
    for (long at = 0; at < 1 << 20; at += 4096) memory[at] = 1;
    CHECK(!munmap(memory, 1 << 20));
    // The number of threads is limited.
    pid_t child = fork();
    CHECK(child >= 0 || errno == EAGAIN);
    if (child == 0) _exit(7);
    int status;
    if (child > 0) CHECK(waitpid(child, &status, 0) == child && WEXITSTATUS(status) == 7);
}

// Runs a flood in a child until memory is used up, works beside it, and ends it. `clean` then removes what a flood
// leaves behind. All memory must then be free.
static void survive(int (*one)(long), void (*clean)(void)) {
    work();
    long before = free_bytes();
    report = eventfd(0, 0);
    CHECK(report >= 0);
    pid_t child = fork();
    CHECK(child >= 0);
    if (child == 0) {
        setpgid(0, 0);
        flood(one);
    }
    setpgid(child, child);
    // The flood ends itself, or is killed because it is the largest process.
    struct pollfd polled = {report, POLLIN, 0};
    while (poll(&polled, 1, 10) == 0 && waitpid(child, 0, WNOHANG) == 0) continue;
    work();
    kill(-child, SIGKILL);
    // Also waits for the flood's other processes, which this process inherits.
    while (waitpid(-1, 0, 0) > 0) continue;
    CHECK(errno == ECHILD);
    close(report);
    if (clean) clean();
    if (!has_stacks) return;
    // The heap of the kernel keeps a little. Some memory is free only after a grace period.
    long after = free_bytes();
    for (int tries = 0; before - after > before / 16; tries++) {
        usleep(10000);
        after = free_bytes();
        if (tries < 100) continue;
        dprintf(1, "%ld KiB were free before the flood, %ld KiB are free after it\n", before >> 10, after >> 10);
        _exit(1);
    }
}

static int full_pipe(long i) {
    int ends[2];
    (void)i;
    if (pipe2(ends, O_NONBLOCK)) return -1;
    fcntl(ends[1], F_SETPIPE_SZ, sizeof buffer);
    ssize_t written = write(ends[1], buffer, sizeof buffer);
    if (written < 0) return -1;
    if (written < (ssize_t)sizeof buffer) errno = ENOMEM;
    return written < (ssize_t)sizeof buffer && errno == ENOMEM && most == LONG_MAX ? -1 : 0;
}

static void pipes_full_of_bytes(void) { survive(full_pipe, 0); }

// Pages in pipes that are not mapped any more.
static int paged_pipe(long i) {
    int ends[2];
    (void)i;
    if (pipe2(ends, O_NONBLOCK)) return -1;
    char *pages = mmap(0, 1 << 16, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (pages == MAP_FAILED) return -1;
    memset(pages, 1, 1 << 16);
    struct iovec part = {pages, 1 << 16};
    ssize_t given = vmsplice(ends[1], &part, 1, 0);
    munmap(pages, 1 << 16);
    return given < 0 ? -1 : 0;
}

static void pipes_full_of_pages(void) { survive(paged_pipe, 0); }

// Messages from processes that have ended.
static int full_socket(long i) {
    int ends[2], status;
    (void)i;
    if (socketpair(AF_UNIX, SOCK_SEQPACKET | SOCK_NONBLOCK, 0, ends)) return -1;
    pid_t child = fork();
    if (child < 0) return -1;
    if (child == 0) _exit(send(ends[0], buffer, 200000, 0) == 200000 ? 0 : errno);
    CHECK(waitpid(child, &status, 0) == child);
    errno = WIFEXITED(status) ? WEXITSTATUS(status) : ENOMEM;
    return errno == ENOMEM ? -1 : 0;
}

static void sockets_full_of_messages(void) { survive(full_socket, 0); }

// Removes the folder of a flood.
static void remove_folder(void) {
    CHECK(!umount2("/tmp/flood", MNT_DETACH) && !rmdir("/tmp/flood"));
}

static void make_folder(void) {
    CHECK(!mkdir("/tmp/flood", 0700) && !mount("none", "/tmp/flood", "tmpfs", 0, 0));
}

static int long_link(long i) {
    static char target[4000], path[64];
    memset(target, 'x', sizeof target - 1);
    sprintf(path, "/tmp/flood/%ld", i);
    return symlink(target, path);
}

static void symbolic_links(void) {
    make_folder();
    survive(long_link, remove_folder);
}

static int hard_link(long i) {
    char path[512];
    sprintf(path, "/tmp/flood/%-200ld", i);
    return link("/tmp/flood/file", path);
}

static void hard_links(void) {
    make_folder();
    int file = open("/tmp/flood/file", O_CREAT | O_RDWR, 0600);
    CHECK(file >= 0 && !close(file));
    survive(hard_link, remove_folder);
}

static int empty_file(long i) {
    char path[64];
    sprintf(path, "/tmp/flood/%ld", i);
    return mknod(path, S_IFREG | 0600, 0);
}

static void empty_files(void) {
    make_folder();
    survive(empty_file, remove_folder);
}

static int full_file(long i) {
    char path[64];
    sprintf(path, "/tmp/flood/%ld", i);
    int file = open(path, O_CREAT | O_RDWR, 0600);
    if (file < 0) return -1;
    ssize_t written = write(file, buffer, sizeof buffer);
    close(file);
    if (written >= 0 && written < (ssize_t)sizeof buffer) errno = ENOSPC;
    return written == sizeof buffer ? 0 : -1;
}

static void full_files(void) {
    make_folder();
    survive(full_file, remove_folder);
}

// The memory of segments that are attached nowhere.
static int left_segment(long i) {
    (void)i;
    int id = shmget(IPC_PRIVATE, 1 << 20, IPC_CREAT | 0600);
    char *at = id < 0 ? (char *)-1 : shmat(id, 0, 0);
    if (at == (char *)-1) return -1;
    memset(at, 1, 1 << 20);
    CHECK(!shmdt(at));
    return 0;
}

static void remove_segments(void) {
    struct shmid_ds info;
    int last = shmctl(0, SHM_INFO, &info);
    for (int i = 0; i <= last; i++) {
        int id = shmctl(i, SHM_STAT, &info);
        if (id >= 0) CHECK(!shmctl(id, IPC_RMID, 0));
    }
}

static void left_segments(void) { survive(left_segment, remove_segments); }

// Sets of semaphores, each with changes that the end of the process would undo.
static int left_semaphores_of_one_set(long i) {
    struct sembuf part[500];
    (void)i;
    int id = semget(IPC_PRIVATE, 32000, IPC_CREAT | 0600);
    if (id < 0) return -1;
    for (int from = 0; from < 32000; from += 500) {
        for (int n = 0; n < 500; n++) part[n] = (struct sembuf){from + n, 1, SEM_UNDO};
        if (semop(id, part, 500)) return -1;
    }
    return 0;
}

static void remove_semaphores(void) {
    struct semid_ds info;
    struct seminfo limits;
    int last = semctl(0, 0, SEM_INFO, &limits);
    for (int i = 0; i <= last; i++) {
        int id = semctl(i, 0, SEM_STAT, &info);
        if (id >= 0) CHECK(!semctl(id, 0, IPC_RMID));
    }
}

static void left_semaphores(void) { survive(left_semaphores_of_one_set, remove_semaphores); }

static int attribute(long i) {
    char path[64];
    sprintf(path, "/tmp/flood/%ld", i);
    if (mknod(path, S_IFREG | 0600, 0)) return -1;
    return setxattr(path, "user.flood", buffer, 60000, 0);
}

static void attributes(void) {
    make_folder();
    survive(attribute, remove_folder);
}

// A thousand watches of one pipe by descriptors that are then closed, and again in a new set.
static int watched(long i) {
    static int set, ends[2];
    struct rlimit limit = {1 << 14, 1 << 14};
    if (i == 0) CHECK(!setrlimit(RLIMIT_NOFILE, &limit) && !pipe(ends));
    if (i % 1000 == 0 && (set = epoll_create1(0)) < 0) return -1;
    int other = fcntl(ends[0], F_DUPFD, 8000 + i % 1000);
    if (other < 0) return -1;
    struct epoll_event event = {EPOLLIN, {.u64 = i}};
    int result = epoll_ctl(set, EPOLL_CTL_ADD, other, &event), error = errno;
    close(other);
    errno = error;
    return result;
}

static void watched_descriptors(void) { survive(watched, 0); }

static int many_descriptors(long i) {
    struct rlimit limit = {1 << 19, 1 << 19};
    if (i == 0) CHECK(!setrlimit(RLIMIT_NOFILE, &limit));
    return eventfd(0, 0);
}

static void descriptors(void) { survive(many_descriptors, 0); }

// Passes the descriptors of full pipes to the flood, from a child that ends. The flood has hardly caused any memory.
static int pipes_of_a_child(long i) {
    static int meeting[2];
    enum { PIPES = 8 };
    int got[PIPES];
    char byte = 1, control[CMSG_SPACE(sizeof got)];
    struct iovec part = {&byte, 1};
    struct msghdr message = {.msg_iov = &part, .msg_iovlen = 1, .msg_control = control, .msg_controllen = sizeof control};
    if (i == 0) CHECK(!socketpair(AF_UNIX, SOCK_STREAM, 0, meeting));
    pid_t child = fork();
    if (child < 0) return -1;
    if (child == 0) {
        struct cmsghdr *header = CMSG_FIRSTHDR(&message);
        *header = (struct cmsghdr){CMSG_LEN(sizeof got), SOL_SOCKET, SCM_RIGHTS};
        for (int n = 0; n < PIPES; n++) {
            int ends[2];
            if (pipe2(ends, O_NONBLOCK) || write(ends[1], buffer, 65536) != 65536) _exit(1);
            got[n] = ends[0];
        }
        memcpy(CMSG_DATA(header), got, sizeof got);
        _exit(sendmsg(meeting[0], &message, 0) == 1 ? 0 : 1);
    }
    int status;
    CHECK(waitpid(child, &status, 0) == child);
    if (status) {
        errno = ENOMEM;
        return -1;
    }
    CHECK(recvmsg(meeting[1], &message, 0) == 1);
    return 0;
}

static void touch(long bytes) {
    char *memory = mmap(0, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    CHECK(memory != MAP_FAILED);
    memset(memory, 1, bytes);
}

// Of two processes, the one with the files of ended processes has to end, although the other has more memory.
static void left_pipes(void) {
    enum { SIZE = 8 << 20 };
    int status;
    pid_t bystander = fork();
    if (bystander == 0) {
        touch(SIZE);
        for (;;) pause();
    }
    report = eventfd(0, 0);
    pid_t child = fork();
    if (child == 0) flood(pipes_of_a_child);
    struct pollfd polled = {report, POLLIN, 0};
    while (poll(&polled, 1, 10) == 0 && waitpid(child, 0, WNOHANG) == 0) continue;
    pid_t needy = fork();
    if (needy == 0) {
        touch(SIZE / 2);
        _exit(0);
    }
    CHECK(waitpid(needy, &status, 0) == needy && status == 0);
    CHECK(waitpid(bystander, 0, WNOHANG) == 0);
    kill(child, SIGKILL);
    kill(bystander, SIGKILL);
    while (waitpid(-1, 0, 0) > 0) continue;
    close(report);
}

static int timer(long i) {
    timer_t id;
    (void)i;
    struct sigevent event = {.sigev_notify = SIGEV_NONE};
    return timer_create(CLOCK_MONOTONIC, &event, &id);
}

static void timers(void) { survive(timer, 0); }

static int process(long i) {
    (void)i;
    pid_t child = fork();
    if (child == 0) {
        for (;;) pause();
    }
    return child;
}

static void processes(void) { survive(process, 0); }

static int zombie(long i) {
    (void)i;
    pid_t child = vfork();
    if (child == 0) _exit(0);
    return child;
}

static void processes_that_nobody_waits_for(void) { survive(zombie, 0); }

static void *sleeper(void *unused) {
    pause();
    return unused;
}

static int thread(long i) {
    pthread_attr_t attributes;
    pthread_t new;
    (void)i;
    pthread_attr_init(&attributes);
    pthread_attr_setstacksize(&attributes, 16384);
    errno = pthread_create(&new, &attributes, sleeper, 0);
    // The C library reports a lack of memory as EAGAIN.
    if (errno == EAGAIN) errno = ENOMEM;
    return errno ? -1 : 0;
}

static void threads(void) { survive(thread, 0); }

static int segment(long i) {
    (void)i;
    int id = shmget(IPC_PRIVATE, 4096, IPC_CREAT | 0600);
    char *at = id < 0 ? (char *)-1 : shmat(id, 0, 0);
    if (at == (char *)-1) return -1;
    at[0] = 1;
    CHECK(!shmctl(id, IPC_RMID, 0));
    return 0;
}

static void segments(void) { survive(segment, 0); }

// Many mappings: 8,192 in each process.
static int mapping(long i) {
    static char *area;
    long n = i % 8192;
    if (n == 0) {
        pid_t child = i > 0 ? fork() : 0;
        if (child < 0) return -1;
        // Memory is used up if the other process is killed.
        if (child > 0) {
            waitpid(child, 0, 0);
            errno = ENOMEM;
            return -1;
        }
        area = mmap(0, 16384 * 4096l, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
        if (area == MAP_FAILED) return -1;
    }
    return mprotect(area + 2 * n * 4096, 4096, PROT_READ);
}

static void mappings(void) { survive(mapping, 0); }

static int touched(long i) {
    char *page = mmap(0, 4096, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (page == MAP_FAILED) return -1;
    page[0] = i;
    return 0;
}

static void touched_memory(void) { survive(touched, 0); }

// Calls of execve with 100,000 arguments, in more and more processes.
static int long_exec(long i) {
    static char *arguments[100001];
    (void)i;
    if (!arguments[0]) {
        for (int n = 0; n < 100000; n++) arguments[n] = "";
    }
    pid_t child = fork();
    if (child == 0) {
        for (;;) execv("/tests/no-such-program", arguments);
    }
    return child;
}

static void long_arguments(void) { survive(long_exec, 0); }

// Processes that wait for 20,000 descriptors each.
static int long_poll(long i) {
    static struct pollfd polled[20000];
    struct rlimit limit = {30000, 30000};
    if (i == 0) {
        int ends[2];
        CHECK(!setrlimit(RLIMIT_NOFILE, &limit) && !pipe(ends));
        for (int n = 0; n < 20000; n++) polled[n] = (struct pollfd){ends[0], POLLIN, 0};
    }
    pid_t child = fork();
    if (child == 0) {
        poll(polled, 20000, -1);
        CHECK(errno == ENOMEM);
        exit(1);
    }
    return child;
}

static void long_polls(void) { survive(long_poll, 0); }

// Arguments that are longer than memory: a read of cmdline needs no memory for all of them.
static void very_long_command_line(void) {
    const long size = 1L << 30;
    pid_t child = fork();
    CHECK(child >= 0);
    if (!child) {
        char *at = mmap(0, size, PROT_READ, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
        CHECK(at != MAP_FAILED);
        // On Linux the calls need a privilege.
        if (prctl(PR_SET_MM, PR_SET_MM_ARG_START, at, 0, 0) && errno == EPERM) _exit(0);
        CHECK(!prctl(PR_SET_MM, PR_SET_MM_ARG_END, at + size, 0, 0));
        int file = open("/proc/self/cmdline", O_RDONLY);
        CHECK(file >= 0 && read(file, buffer, 1) == 1 && buffer[0] == 0);
        CHECK(pread(file, buffer, 4096, size - 100) == 100 && pread(file, buffer, 1, size) == 0);
        _exit(0);
    }
    int status;
    CHECK(waitpid(child, &status, 0) == child && status == 0);
}

int main(int count, char **arguments) {
    if (count > 1) most = atol(arguments[1]);
    memset(buffer, 1, sizeof buffer);
    PART(threads);
    has_stacks = most == LONG_MAX;
    PART(pipes_full_of_bytes);
    PART(pipes_full_of_pages);
    PART(sockets_full_of_messages);
    PART(symbolic_links);
    PART(hard_links);
    PART(empty_files);
    PART(full_files);
    PART(left_segments);
    PART(left_semaphores);
    PART(attributes);
    PART(watched_descriptors);
    PART(descriptors);
    PART(left_pipes);
    PART(timers);
    PART(processes);
    PART(processes_that_nobody_waits_for);
    PART(threads);
    PART(segments);
    PART(mappings);
    PART(touched_memory);
    PART(long_arguments);
    PART(long_polls);
    PART(very_long_command_line);
}
