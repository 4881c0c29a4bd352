// Processes and threads that have ended: what a process leaves until its parent has waited for it, and what is left
// afterwards in open folders of /proc and in pidfds. Checks `kernel/src/proc/subject.rs`, `kernel/src/process/pidfd.rs`
// and the calls that take the number of a thread.
#define _GNU_SOURCE
#include "check.h"
#include <fcntl.h>
#include <poll.h>
#include <pthread.h>
#include <sched.h>
#include <signal.h>
#include <sys/ptrace.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/wait.h>

#define FAILS(call, error) CHECK((call) == -1 && errno == (error))

static int release;

// Makes a process that ends once a byte is written to `release`.
static pid_t make_process(void) {
    int ends[2];
    CHECK(!pipe(ends));
    pid_t child = fork();
    if (!child) {
        char byte;
        close(ends[1]);
        CHECK(read(ends[0], &byte, 1) == 1);
        _exit(3);
    }
    close(ends[0]);
    release = ends[1];
    return child;
}

// Ends the process, which stays a zombie.
static void end_process(pid_t child) {
    siginfo_t info;
    CHECK(write(release, "x", 1) == 1 && !close(release));
    CHECK(!waitid(P_PID, child, &info, WEXITED | WNOWAIT));
}

static void *sleep_for_ever(void *unused) {
    for (;;) pause();
    return unused;
}

// Makes a process whose first thread has ended.
static pid_t make_headless(void) {
    pid_t child = fork();
    if (!child) {
        pthread_t thread;
        CHECK(!pthread_create(&thread, NULL, sleep_for_ever, NULL));
        syscall(SYS_exit, 0);
    }
    char path[64], text[4096];
    snprintf(path, sizeof path, "/proc/%d/status", child);
    for (;;) {
        int file = open(path, O_RDONLY);
        ssize_t bytes = read(file, text, sizeof text - 1);
        CHECK(bytes > 0 && !close(file));
        text[bytes] = 0;
        if (strstr(text, "State:\tZ (zombie)\n")) break;
        usleep(1000);
    }
    CHECK(strstr(text, "Threads:\t2\n"));
    return child;
}

static int folder_of(pid_t pid) {
    char path[32];
    snprintf(path, sizeof path, "/proc/%d", pid);
    int folder = open(path, O_RDONLY | O_DIRECTORY);
    CHECK(folder >= 0);
    return folder;
}

static int open_at(int folder, const char *name) {
    int file = openat(folder, name, O_RDONLY);
    if (file >= 0) close(file);
    return file >= 0 ? 0 : -1;
}

static ssize_t names_of(int folder) {
    char names[4096];
    CHECK(!lseek(folder, 0, SEEK_SET));
    return syscall(SYS_getdents64, folder, names, sizeof names);
}

// Files that can be read until the parent has waited, and files that can be opened until the process ends.
static const char *const known[] = {"status", "stat", "statm", "comm", "cmdline", "limits", "cgroup", "numa_maps",
                                    "maps", "smaps", "oom_score_adj", "coredump_filter"};
static const char *const live[] = {"environ", "auxv", "mem", "pagemap", "smaps_rollup"};
static const char *const links[] = {"exe", "cwd", "root"};
#define COUNT(list) (sizeof(list) / sizeof *(list))

static void zombie_keeps_its_folder_but_no_memory(void) {
    pid_t child = make_process();
    int folder = folder_of(child), memory = openat(folder, "mem", O_RDWR), name = openat(folder, "comm", O_WRONLY);
    char text[4096], byte;
    CHECK(memory >= 0 && name >= 0);
    end_process(child);
    for (unsigned n = 0; n < COUNT(known); n++) CHECK(!open_at(folder, known[n]));
    for (unsigned n = 0; n < COUNT(live); n++) FAILS(open_at(folder, live[n]), ESRCH);
    for (unsigned n = 0; n < COUNT(links); n++) {
        FAILS(readlinkat(folder, links[n], text, sizeof text), ENOENT);
        FAILS(open_at(folder, links[n]), ENOENT);
    }
    FAILS(open_at(folder, "mounts"), EINVAL);
    FAILS(open_at(folder, "fd/0"), ENOENT);
    CHECK(names_of(folder) > 0);
    CHECK(pread(memory, &byte, 1, (long)&byte) == 0);
    FAILS(write(name, "x", 1), EINVAL);
    int file = openat(folder, "status", O_RDONLY);
    ssize_t bytes = read(file, text, sizeof text - 1);
    CHECK(bytes > 0);
    text[bytes] = 0;
    CHECK(strstr(text, "State:\tZ (zombie)\n") && strstr(text, "Threads:\t1\n"));
    // The folder of the first thread stays.
    snprintf(text, sizeof text, "task/%d/status", child);
    CHECK(!open_at(folder, text));
    CHECK(waitpid(child, NULL, 0) == child);
    close(file);
    close(memory);
    close(name);
    close(folder);
}

static void open_folder_is_dead_after_the_wait(void) {
    pid_t child = make_process();
    char name[32], byte;
    snprintf(name, sizeof name, "%d", child);
    int folder = folder_of(child), task = openat(folder, "task", O_RDONLY), thread = openat(task, name, O_RDONLY);
    int fds = openat(folder, "fd", O_RDONLY), infos = openat(folder, "fdinfo", O_RDONLY);
    int info = openat(infos, "0", O_RDONLY), comm = openat(folder, "comm", O_WRONLY);
    int score = openat(folder, "oom_score_adj", O_WRONLY), clear = openat(folder, "clear_refs", O_WRONLY);
    int files[COUNT(known)], of_memory[COUNT(live)];
    for (unsigned n = 0; n < COUNT(known); n++) files[n] = openat(folder, known[n], O_RDONLY);
    for (unsigned n = 0; n < COUNT(live); n++) of_memory[n] = openat(folder, live[n], O_RDONLY);
    end_process(child);
    CHECK(waitpid(child, NULL, 0) == child);
    for (unsigned n = 0; n < COUNT(known); n++) {
        FAILS(open_at(folder, known[n]), ESRCH);
        FAILS(pread(files[n], &byte, 1, 0), ESRCH);
        close(files[n]);
    }
    for (unsigned n = 0; n < COUNT(live); n++) {
        char word[8];
        FAILS(open_at(folder, live[n]), ESRCH);
        if (strcmp(live[n], "auxv") && strcmp(live[n], "smaps_rollup")) CHECK(!pread(of_memory[n], word, 8, 0));
        close(of_memory[n]);
    }
    for (unsigned n = 0; n < COUNT(links); n++) FAILS(readlinkat(folder, links[n], &byte, 1), ESRCH);
    FAILS(open_at(folder, "none"), ESRCH);
    FAILS(open_at(folder, "."), ESRCH);
    FAILS(open_at(folder, "fd"), ESRCH);
    FAILS(open_at(task, name), ESRCH);
    FAILS(open_at(thread, "status"), ENOENT);
    FAILS(open_at(fds, "0"), ENOENT);
    FAILS(open_at(infos, "0"), ESRCH);
    FAILS(pread(info, &byte, 1, 0), ENOENT);
    FAILS(write(comm, "x", 1), ESRCH);
    FAILS(write(score, "1", 1), ESRCH);
    FAILS(write(clear, "1", 1), ESRCH);
    const int folders[] = {folder, task, fds, infos};
    for (unsigned n = 0; n < COUNT(folders); n++) FAILS(names_of(folders[n]), ENOENT);
    char path[64];
    snprintf(path, sizeof path, "/proc/%d/status", child);
    FAILS(open(path, O_RDONLY), ENOENT);
    const int rest[] = {folder, task, thread, fds, infos, info, comm, score, clear};
    for (unsigned n = 0; n < COUNT(rest); n++) close(rest[n]);
}

// Calls that take the number of a thread.
static void calls_reach(pid_t pid) {
    siginfo_t info = {.si_signo = SIGCHLD, .si_code = SI_QUEUE};
    cpu_set_t set;
    CHECK(!kill(pid, 0) && !kill(pid, SIGCHLD));
    CHECK(!syscall(SYS_tkill, pid, SIGCHLD) && !syscall(SYS_tgkill, pid, pid, SIGCHLD));
    CHECK(!syscall(SYS_rt_sigqueueinfo, pid, SIGCHLD, &info));
    CHECK(!syscall(SYS_rt_tgsigqueueinfo, pid, pid, SIGCHLD, &info));
    FAILS(syscall(SYS_tgkill, pid, pid, 65), EINVAL);
    FAILS(syscall(SYS_tgkill, getpid(), pid, SIGCHLD), ESRCH);
    CHECK(syscall(SYS_sched_getaffinity, pid, sizeof set, &set) > 0);
    CPU_ZERO(&set);
    CPU_SET(0, &set);
    CHECK(!sched_setaffinity(pid, sizeof set, &set) && sched_getscheduler(pid) == SCHED_OTHER);
    FAILS(ptrace(PTRACE_ATTACH, pid, 0, 0), EPERM);
    int file = syscall(SYS_pidfd_open, pid, 0);
    enum { TO_THREAD = 1 };
    CHECK(file >= 0);
    int sent = syscall(SYS_pidfd_send_signal, file, SIGCHLD, NULL, TO_THREAD);
    // Linux before 6.9 has no such flag.
    CHECK(!sent || errno == EINVAL);
    close(file);
}

static void first_thread_keeps_its_number_until_the_wait(void) {
    pid_t child = make_process();
    end_process(child);
    calls_reach(child);
    CHECK(waitpid(child, NULL, 0) == child);
    FAILS(syscall(SYS_tgkill, child, child, SIGCHLD), ESRCH);
    FAILS(sched_getscheduler(child), ESRCH);
    FAILS(ptrace(PTRACE_ATTACH, child, 0, 0), ESRCH);

    child = make_headless();
    calls_reach(child);
    // A signal to the thread that has ended does not reach the others, not even SIGKILL.
    CHECK(!syscall(SYS_tgkill, child, child, SIGKILL) && !syscall(SYS_tgkill, child, child, SIGTERM));
    usleep(20000);
    CHECK(waitpid(child, NULL, WNOHANG) == 0);
    int status;
    CHECK(!kill(child, SIGTERM) && waitpid(child, &status, 0) == child && status == SIGTERM);
}

static void pidfd_hangs_up_after_the_wait(void) {
    pid_t child = make_process();
    struct pollfd look = {syscall(SYS_pidfd_open, child, 0), POLLIN | POLLOUT, 0};
    struct stat stat;
    char byte;
    CHECK(look.fd >= 0 && !fstat(look.fd, &stat) && stat.st_mode == 0700 && stat.st_size == 0);
    FAILS(read(look.fd, &byte, 1), EINVAL);
    FAILS(pread(look.fd, &byte, 1, 0), EINVAL);
    FAILS(pwrite(look.fd, &byte, 1, 0), EINVAL);
    FAILS(lseek(look.fd, 0, SEEK_SET), ESPIPE);
    CHECK(poll(&look, 1, 0) == 0);
    end_process(child);
    CHECK(poll(&look, 1, 0) == 1 && look.revents == POLLIN);
    // A poll for the hangup alone sleeps until the wait.
    pid_t waiter = fork();
    if (!waiter) {
        struct pollfd hangup = {look.fd, 0, 0};
        _exit(poll(&hangup, 1, 10000) == 1 && hangup.revents == POLLHUP ? 0 : 1);
    }
    usleep(50000);
    CHECK(waitpid(child, NULL, 0) == child);
    CHECK(poll(&look, 1, 0) == 1 && look.revents == (POLLIN | POLLHUP));
    int status;
    CHECK(waitpid(waiter, &status, 0) == waiter && status == 0);
    FAILS(syscall(SYS_pidfd_send_signal, look.fd, 0, NULL, 0), ESRCH);
    close(look.fd);

    // Without a wait the process is gone at once.
    CHECK(signal(SIGCHLD, SIG_IGN) != SIG_ERR);
    child = make_process();
    look.fd = syscall(SYS_pidfd_open, child, 0);
    CHECK(write(release, "x", 1) == 1 && !close(release));
    look.events = 0;
    CHECK(poll(&look, 1, 10000) == 1 && look.revents == POLLHUP);
    CHECK(signal(SIGCHLD, SIG_DFL) != SIG_ERR);
    close(look.fd);
}

// A pidfd of the last process of a long chain of ancestors, each of which was waited for before its parent ended. If
// the pidfd kept all of them, its end would free a long chain.
static void pidfd_keeps_no_ancestors(void) {
    enum { CHAIN = 1500 };
    int told[2], go[2];
    char byte;
    pid_t first = getpid(), child = 0, last;
    CHECK(!pipe(told) && !pipe(go));
    for (int n = 0; n < CHAIN && child == 0; n++) {
        child = fork();
        // The number of threads is limited.
        if (child < 0) break;
    }
    if (child > 0 && getpid() != first) _exit(waitpid(child, NULL, 0) == child ? 0 : 1);
    if (child <= 0) {
        last = getpid();
        CHECK(write(told[1], &last, sizeof last) == sizeof last && read(go[0], &byte, 1) == 1);
        _exit(0);
    }
    CHECK(read(told[0], &last, sizeof last) == sizeof last);
    int file = syscall(SYS_pidfd_open, last, 0);
    CHECK(file >= 0 && write(go[1], "x", 1) == 1);
    CHECK(waitpid(child, NULL, 0) == child);
    CHECK(!close(file) && !close(told[0]) && !close(told[1]) && !close(go[0]) && !close(go[1]));
}

int main(void) {
    PART(zombie_keeps_its_folder_but_no_memory);
    PART(open_folder_is_dead_after_the_wait);
    PART(first_thread_keeps_its_number_until_the_wait);
    PART(pidfd_hangs_up_after_the_wait);
    PART(pidfd_keeps_no_ancestors);
    return 0;
}
