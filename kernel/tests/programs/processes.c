// Processes: fork and copying on write, vfork, exec, wait, statuses, groups, orphans, many at once. Checks
// `kernel/src/process` (`clone.rs`, `exec.rs`, `exit.rs`, `reap.rs`). Parts execute this program again with a
// word as its first argument, which `main` answers by an exit status.
#define _GNU_SOURCE
#include "check.h"
#include <fcntl.h>
#include <linux/sched.h>
#include <poll.h>
#include <pthread.h>
#include <sched.h>
#include <signal.h>
#include <sys/mman.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/wait.h>

enum { PAGES = 512 };

static char *itself;

static char *pages(int flags) {
    char *at = mmap(0, PAGES * 4096, PROT_READ | PROT_WRITE, flags | MAP_ANONYMOUS, -1, 0);
    CHECK(at != MAP_FAILED);
    for (int n = 0; n < PAGES; n++) at[n * 4096] = 1;
    return at;
}

static int ended(pid_t pid) {
    int status;
    CHECK(waitpid(pid, &status, 0) == pid);
    return status;
}

static void memory_is_copied_on_write(void) {
    char *own = pages(MAP_PRIVATE), *both = pages(MAP_SHARED);
    pid_t child = fork();
    if (!child) {
        for (int n = 0; n < PAGES; n += 2) own[n * 4096] = both[n * 4096] = 2;
        for (int n = 0; n < PAGES; n++) CHECK(own[n * 4096] == (n % 2 ? 1 : 2));
        _exit(7);
    }
    for (int n = 1; n < PAGES; n += 2) own[n * 4096] = 3;
    CHECK(ended(child) == 7 << 8);
    for (int n = 0; n < PAGES; n++) {
        CHECK(own[n * 4096] == (n % 2 ? 3 : 1));
        CHECK(both[n * 4096] == (n % 2 ? 1 : 2));
    }
    munmap(own, PAGES * 4096);
    munmap(both, PAGES * 4096);
}

static void descendants_see_memory_of_their_ancestors(void) {
    char *at = pages(MAP_PRIVATE);
    for (int depth = 0; depth < 20; depth++) {
        at[depth * 4096] = (char)(depth + 10);
        pid_t child = fork();
        if (child) {
            int status = ended(child);
            CHECK(status == 0);
            if (depth == 0) break;
            _exit(0);
        }
        for (int n = 0; n <= depth; n++) CHECK(at[n * 4096] == n + 10);
        if (depth == 19) _exit(0);
    }
    munmap(at, PAGES * 4096);
}

static pid_t made;
static int step[2];

static void *make_child(void *ends) {
    char byte;
    made = fork();
    if (made == 0) _exit(6);
    CHECK(write(step[1], "m", 1) == 1);
    // The children of a thread that has ended belong to the first thread.
    if (ends) return 0;
    while (read(step[0], &byte, 1) != 1 || byte != 'w') write(step[1], &byte, 1), usleep(1000);
    int status;
    CHECK(waitpid(made, &status, __WNOTHREAD) == made && WEXITSTATUS(status) == 6);
    return 0;
}

static void wait_can_leave_out_children_of_other_threads(void) {
    pthread_t thread;
    char byte;
    int status;
    siginfo_t info;
    CHECK(!pipe(step) && !pthread_create(&thread, 0, make_child, 0) && read(step[0], &byte, 1) == 1);
    CHECK(waitpid(made, &status, __WNOTHREAD) == -1 && errno == ECHILD);
    CHECK(waitid(P_ALL, 0, &info, WEXITED | __WNOTHREAD) == -1 && errno == ECHILD);
    CHECK(!waitid(P_PID, made, &info, WEXITED | WNOWAIT) && info.si_pid == made);
    CHECK(write(step[1], "w", 1) == 1 && !pthread_join(thread, 0));
    CHECK(!pthread_create(&thread, 0, make_child, &byte) && !pthread_join(thread, 0));
    // The thread still ends after the join.
    while (waitpid(made, &status, __WNOTHREAD) == -1 && errno == ECHILD) usleep(1000);
    CHECK(WEXITSTATUS(status) == 6);
    close(step[0]), close(step[1]);
}

static void vfork_waits_for_exec(void) {
    volatile int seen = 0;
    pid_t child = vfork();
    if (!child) {
        seen = 1;
        execl(itself, itself, "exit", "9", NULL);
        _exit(99);
    }
    CHECK(seen == 1);
    CHECK(ended(child) == 9 << 8);
}

static void exec_passes_arguments_and_descriptors(void) {
    int kept = open("/dev/null", O_RDWR), closed = open("/dev/null", O_RDWR | O_CLOEXEC);
    CHECK(kept >= 0 && closed >= 0);
    char a[12], b[12];
    snprintf(a, sizeof a, "%d", kept);
    snprintf(b, sizeof b, "%d", closed);
    pid_t child = fork();
    if (!child) {
        char *argv[] = {itself, "descriptors", a, b, NULL}, *envp[] = {"ONE=1", NULL};
        execve(itself, argv, envp);
        _exit(99);
    }
    CHECK(ended(child) == 0);
    CHECK(execl("/no/such/program", "x", NULL) == -1);
    CHECK((execl("/no/such/program", "x", NULL), errno == ENOENT));
    CHECK((execl("/dev/null", "x", NULL), errno == EACCES));
    close(kept);
    close(closed);
}

static void long_arguments_are_passed(void) {
    enum { MANY = 2000 };
    static char text[101], *argv[MANY + 3];
    memset(text, 'x', 100);
    argv[0] = itself;
    argv[1] = "count";
    for (int n = 0; n < MANY; n++) argv[n + 2] = text;
    pid_t child = fork();
    if (!child) {
        execv(itself, argv);
        _exit(99);
    }
    CHECK(ended(child) == (MANY % 251) << 8);
}

static void wait_reports_how_a_child_ended(void) {
    pid_t child = fork();
    if (!child) {
        raise(SIGKILL);
        _exit(0);
    }
    int status = ended(child);
    CHECK(WIFSIGNALED(status) && WTERMSIG(status) == SIGKILL);
    child = fork();
    if (!child) {
        struct rlimit none = {0, 0};
        setrlimit(RLIMIT_CORE, &none);
        *(volatile char *)16 = 1;
    }
    status = ended(child);
    CHECK(WIFSIGNALED(status) && WTERMSIG(status) == SIGSEGV);
    CHECK(waitpid(-1, &status, WNOHANG) == -1);
    CHECK((waitpid(-1, &status, WNOHANG), errno == ECHILD));
    child = fork();
    if (!child) {
        raise(SIGSTOP);
        _exit(3);
    }
    CHECK(waitpid(child, &status, WUNTRACED) == child && WIFSTOPPED(status));
    CHECK(!kill(child, SIGCONT));
    CHECK(ended(child) == 3 << 8);
    siginfo_t info;
    child = fork();
    if (!child) _exit(5);
    CHECK(!waitid(P_PID, child, &info, WEXITED | WNOWAIT) && info.si_pid == child && info.si_status == 5);
    // A child that has ended cannot stop or go on.
    CHECK(waitid(P_PID, child, &info, WSTOPPED | WCONTINUED) == -1 && errno == ECHILD);
    CHECK(ended(child) == 5 << 8);
}

static void orphans_are_adopted(void) {
    int ends[2];
    CHECK(!pipe(ends));
    pid_t child = fork();
    if (!child) {
        if (!fork()) {
            while (getppid() == getpid()) sched_yield();
            for (pid_t parent = getppid(); parent != 1 && getppid() == parent; sched_yield()) {}
            CHECK(write(ends[1], "x", 1) == 1);
        }
        _exit(0);
    }
    CHECK(ended(child) == 0);
    char byte;
    CHECK(read(ends[0], &byte, 1) == 1);
    close(ends[0]);
    close(ends[1]);
}

static void groups_are_killed_together(void) {
    pid_t first = fork();
    if (!first) {
        setpgid(0, 0);
        if (!fork()) pause();
        pause();
    }
    setpgid(first, first);
    CHECK(getpgid(first) == first);
    CHECK(!kill(-first, SIGTERM));
    CHECK(WTERMSIG(ended(first)) == SIGTERM);
}

static void many_processes_run_at_once(void) {
    enum { MANY = 200 };
    pid_t children[MANY];
    int ends[2];
    CHECK(!pipe(ends));
    for (int n = 0; n < MANY; n++) {
        children[n] = fork();
        CHECK(children[n] >= 0);
        if (!children[n]) {
            char byte;
            close(ends[1]);
            CHECK(read(ends[0], &byte, 1) == 0);
            _exit(n % 128);
        }
    }
    close(ends[1]);
    for (int n = 0; n < MANY; n++) CHECK(ended(children[n]) == (n % 128) << 8);
    close(ends[0]);
}

static int changes(void *ends) {
    CHECK(close(((int *)ends)[1]) == 0 && chdir("/tmp") == 0);
    umask(0123);
    return 0;
}

static pid_t with_stack(int (*run)(void *), int flags, int *ends) {
    static char stack[65536] __attribute__((aligned(16)));
    return clone(run, stack + sizeof stack, flags | SIGCHLD, ends);
}

static void clone_flags_share_files_and_directory(void) {
    int ends[2], flags = CLONE_VM | CLONE_FILES | CLONE_FS;
    char here[64];
    umask(022);
    CHECK(pipe(ends) == 0 && chdir("/") == 0);
    CHECK(ended(with_stack(changes, 0, ends)) == 0 && fcntl(ends[1], F_GETFD) >= 0);
    CHECK(!strcmp(getcwd(here, sizeof here), "/") && umask(022) == 022);
    CHECK(ended(with_stack(changes, flags, ends)) == 0 && fcntl(ends[1], F_GETFD) == -1);
    CHECK(!strcmp(getcwd(here, sizeof here), "/tmp") && umask(022) == 0123);
    CHECK(close(ends[0]) == 0 && chdir("/") == 0);
}

// Leaves the place of the other threads, and changes its own.
static void *leaves(void *unused) {
    char path[64], here[64] = "";
    CHECK(!unshare(CLONE_FS) && !chdir("/tmp") && umask(0123) == 022 && !strcmp(getcwd(here, sizeof here), "/tmp"));
    snprintf(path, sizeof path, "/proc/self/task/%ld/cwd", syscall(SYS_gettid));
    memset(here, 0, sizeof here);
    CHECK(readlink(path, here, sizeof here - 1) == 4 && !strcmp(here, "/tmp"));
    CHECK(syscall(SYS_kcmp, getpid(), syscall(SYS_gettid), 3 /* KCMP_FS */, 0, 0) > 0);
    // A child gets the place of the thread that makes it.
    pid_t child = fork();
    if (!child) _exit(strcmp(getcwd(here, sizeof here), "/tmp") || umask(0) != 0123);
    CHECK(ended(child) == 0);
    return unused;
}

static volatile int changed;

static int changes_in_thread(void *unused) {
    (void)unused;
    syscall(SYS_chdir, "/tmp");
    syscall(SYS_umask, 0123);
    changed = 1;
    syscall(SYS_exit, 0);
    return 0;
}

static void threads_may_have_directories_of_their_own(void) {
    static char stack[65536] __attribute__((aligned(16)));
    char here[64];
    pthread_t thread;
    umask(022);
    CHECK(!chdir("/") && !pthread_create(&thread, 0, leaves, 0) && !pthread_join(thread, 0));
    CHECK(!strcmp(getcwd(here, sizeof here), "/") && umask(022) == 022);
    for (int shares = 0; shares < 2; shares++) {
        int flags = CLONE_VM | CLONE_FILES | CLONE_SIGHAND | CLONE_THREAD | (shares ? CLONE_FS : 0);
        changed = 0;
        CHECK(clone(changes_in_thread, stack + sizeof stack, flags, 0) > 0);
        while (!changed) sched_yield();
        CHECK(!strcmp(getcwd(here, sizeof here), shares ? "/tmp" : "/") && umask(022) == (shares ? 0123 : 022));
        // The stack is free once the thread has ended.
        usleep(20000);
    }
    CHECK(!chdir("/"));
}

static void pidfd_signals_and_polls_a_process(void) {
    pid_t child = fork();
    if (child == 0) {
        pause();
        _exit(0);
    }
    int file = syscall(SYS_pidfd_open, child, 0);
    struct pollfd ready = {.fd = file, .events = POLLIN};
    siginfo_t info;
    CHECK(child > 0 && file >= 0 && fcntl(file, F_GETFD) == FD_CLOEXEC && poll(&ready, 1, 0) == 0);
    CHECK(syscall(SYS_pidfd_send_signal, file, 0, NULL, 0) == 0);
    CHECK(syscall(SYS_pidfd_send_signal, file, SIGUSR1, NULL, 0) == 0 && poll(&ready, 1, 5000) == 1);
    CHECK(waitid(3, file, &info, WEXITED) == 0 && info.si_pid == child && info.si_status == SIGUSR1);
    CHECK(syscall(SYS_pidfd_send_signal, file, 0, NULL, 0) == -1 && errno == ESRCH && close(file) == 0);
    CHECK(syscall(SYS_pidfd_open, child, 0) == -1 && errno == ESRCH);
}

#define FAILS(what, number) CHECK((what) == -1 && errno == (number))

// Makes a process with clone3. Returns its exit status, or -1.
static int cloned(struct clone_args *args, size_t bytes) {
    pid_t child = syscall(SYS_clone3, args, bytes);
    if (child == 0) _exit(0);
    return child < 0 ? -1 : ended(child);
}

static void flags_of_clone_are_checked(void) {
    struct { struct clone_args args; long more; } larger = {.args.exit_signal = SIGCHLD};
    for (int bit = 33; bit < 64; bit++) {
        struct clone_args args = {.flags = 1UL << bit, .exit_signal = SIGCHLD};
        FAILS(cloned(&args, sizeof args), bit == 33 ? EBADF : EINVAL);
    }
    CHECK(!cloned(&larger.args, 64) && !cloned(&larger.args, 88) && !cloned(&larger.args, 96));
    FAILS(cloned(&larger.args, 63), EINVAL);
    larger.more = 1;
    FAILS(cloned(&larger.args, 96), E2BIG);
    pid_t tid = 0;
    struct clone_args wrong[] = {
        {.set_tid_size = 1},
        {.set_tid = (unsigned long)&tid},
        {.set_tid = (unsigned long)&tid, .set_tid_size = 33},
        {.set_tid = (unsigned long)&tid, .set_tid_size = 1},
        {.flags = 1UL << 33, .cgroup = 1UL << 40},
        {.exit_signal = 65},
        {.exit_signal = 1UL << 40},
        {.stack_size = 4096},
        {.flags = CLONE_PIDFD | CLONE_PARENT_SETTID, .pidfd = (unsigned long)&tid, .parent_tid = (unsigned long)&tid},
        {.flags = 1UL << 32 | CLONE_SIGHAND | CLONE_VM},
    };
    for (unsigned n = 0; n < sizeof wrong / sizeof *wrong; n++) FAILS(cloned(wrong + n, sizeof *wrong), EINVAL);
    FAILS(syscall(SYS_clone, CLONE_PIDFD | CLONE_PARENT_SETTID | SIGCHLD, 0, &tid, 0, 0), EINVAL);
    FAILS(syscall(SYS_clone, CLONE_THREAD | SIGCHLD, 0, 0, 0, 0), EINVAL);
    FAILS(syscall(SYS_clone, CLONE_SIGHAND | SIGCHLD, 0, 0, 0, 0), EINVAL);
}

static void handle(int signal) { (void)signal; }

static void cleared_handlers_leave_ignored_signals(void) {
    struct sigaction action;
    struct clone_args args = {.flags = 1UL << 32, .exit_signal = SIGCHLD};
    signal(SIGUSR1, SIG_IGN), signal(SIGUSR2, handle);
    pid_t child = syscall(SYS_clone3, &args, sizeof args);
    if (child == 0) {
        CHECK(!sigaction(SIGUSR1, 0, &action) && action.sa_handler == SIG_IGN);
        CHECK(!sigaction(SIGUSR2, 0, &action) && action.sa_handler == SIG_DFL && !action.sa_flags);
        _exit(0);
    }
    CHECK(ended(child) == 0 && !sigaction(SIGUSR2, 0, &action) && action.sa_handler == handle);
    signal(SIGUSR1, SIG_DFL), signal(SIGUSR2, SIG_DFL);
}

static volatile int received;
static long compare(pid_t first, pid_t second, int kind, long index, long other) {
    return syscall(SYS_kcmp, first, second, kind, index, other);
}

static void objects_of_processes_are_compared(void) {
    enum { FILE_OF, SPACE, FILES, PLACE, ACTIONS, IO, SEMAPHORES, KINDS = 8 };
    pid_t self = getpid();
    int copy = dup(1), other = open("/dev/null", O_RDONLY), ends[2];
    CHECK(copy >= 0 && other >= 0 && !pipe(ends));
    for (int kind = SPACE; kind <= SEMAPHORES; kind++) CHECK(compare(self, self, kind, 0, 0) == 0);
    CHECK(compare(self, self, FILE_OF, 1, copy) == 0);
    long order = compare(self, self, FILE_OF, 1, other);
    CHECK(order == 1 || order == 2);
    CHECK(compare(self, self, FILE_OF, other, 1) == 3 - order);
    CHECK(compare(self, self, FILE_OF, 1, 900) == -1 && errno == EBADF);
    CHECK(compare(self, self, KINDS, 1, 1) == -1 && errno == EINVAL);
    CHECK(compare(self, 0x3fffffff, SPACE, 0, 0) == -1 && errno == ESRCH);
    pid_t child = fork();
    CHECK(child >= 0);
    if (!child) {
        char byte;
        close(ends[1]);
        _exit(read(ends[0], &byte, 1));
    }
    CHECK(compare(self, child, FILE_OF, 1, 1) == 0 && compare(self, child, SPACE, 0, 0) > 0);
    CHECK(compare(self, child, FILES, 0, 0) > 0 && compare(self, child, PLACE, 0, 0) > 0);
    CHECK(compare(self, child, ACTIONS, 0, 0) > 0);
    close(ends[1]);
    int status;
    CHECK(waitpid(child, &status, 0) == child && status == 0);
    close(ends[0]), close(copy), close(other);
}

// A file that shows a process's memory shows the program that ran when the file was opened.
static void opened_memory_is_that_of_one_program(void) {
    enum { FILES = 4 };
    static const char *names[FILES] = {"mem", "maps", "smaps", "pagemap"};
    static char text[64] = "before exec";
    int files[FILES], go[2], end[2], again, status;
    char path[64], found[64], byte;
    CHECK(!pipe(go) && !pipe2(end, O_CLOEXEC));
    pid_t child = fork();
    CHECK(child >= 0);
    if (!child) {
        close(go[1]), close(end[0]);
        char input[16];
        sprintf(input, "%d", go[0]);
        if (read(go[0], &byte, 1) == 1) execl("/proc/self/exe", "processes", "wait", input, (char *)0);
        _exit(1);
    }
    close(end[1]);
    for (int n = 0; n < FILES; n++) {
        sprintf(path, "/proc/%d/%s", child, names[n]);
        CHECK((files[n] = open(path, O_RDONLY)) >= 0);
    }
    CHECK(pread(files[0], found, sizeof text, (long)text) == sizeof text && !strcmp(found, text));
    CHECK(write(go[1], "x", 1) == 1);
    // The exec closes the other end.
    CHECK(read(end[0], &byte, 1) == 0);
    for (int n = 0; n < FILES; n++) {
        CHECK(pread(files[n], found, sizeof found, n == 0 ? (long)text : 0) == 0);
        close(files[n]);
    }
    sprintf(path, "/proc/%d/maps", child);
    CHECK((again = open(path, O_RDONLY)) >= 0 && read(again, found, sizeof found) > 0);
    CHECK(write(go[1], "x", 1) == 1 && waitpid(child, &status, 0) == child && status == 0);
    close(again), close(go[0]), close(go[1]), close(end[0]);
}

static void receive(int signal, siginfo_t *info, void *frame) { (void)info, (void)frame, received += signal; }

// Numbers below -10000 represent the caller. Linux has them since 6.14.
static void caller_is_its_own_pidfd(void) {
    enum { SELF_THREAD = -10000, SELF_PROCESS = -10001, TO_THREAD = 1, TO_PROCESS = 2, TO_GROUP = 4 };
    struct sigaction action = {.sa_sigaction = receive, .sa_flags = SA_SIGINFO};
    struct { void *at; size_t bytes; } range = {pages(MAP_PRIVATE), 4096};
    if (syscall(SYS_pidfd_send_signal, SELF_PROCESS, 0, 0, 0) == -1 && errno == EBADF) return;
    CHECK(!sigaction(SIGUSR1, &action, 0));
    CHECK(!syscall(SYS_pidfd_send_signal, SELF_THREAD, SIGUSR1, 0, 0) && received == SIGUSR1);
    for (int to = 0; to <= TO_PROCESS; to++) CHECK(!syscall(SYS_pidfd_send_signal, SELF_PROCESS, SIGUSR1, 0, to));
    CHECK(received == 4 * SIGUSR1);
    FAILS(syscall(SYS_pidfd_send_signal, SELF_PROCESS, 0, 0, TO_THREAD | TO_PROCESS), EINVAL);
    FAILS(syscall(SYS_pidfd_send_signal, SELF_PROCESS, 0, 0, 8), EINVAL);
    FAILS(syscall(SYS_pidfd_send_signal, SELF_PROCESS - 1, 0, 0, 0), EBADF);
    CHECK(syscall(SYS_process_madvise, SELF_PROCESS, &range, 1, MADV_COLD, 0) == 4096);
    FAILS(syscall(SYS_process_mrelease, SELF_PROCESS, 0), EINVAL);
    signal(SIGUSR1, SIG_DFL);
    CHECK(!munmap(range.at, PAGES * 4096));
    // A group is chosen by its first process.
    pid_t child = fork();
    if (child == 0) {
        CHECK(!setpgid(0, 0));
        int self = syscall(SYS_pidfd_open, getpid(), 0);
        CHECK(!syscall(SYS_pidfd_send_signal, self, SIGTERM, 0, TO_GROUP));
        _exit(1);
    }
    CHECK(ended(child) == SIGTERM);
}

static void pidfd_copies_descriptors(void) {
    int ends[2];
    char byte;
    CHECK(!pipe(ends));
    pid_t child = fork();
    if (child == 0) _exit(read(ends[0], &byte, 1) == 1 && byte == 'x' ? 0 : 1);
    int process = syscall(SYS_pidfd_open, child, 0);
    int copy = syscall(SYS_pidfd_getfd, process, ends[1], 0);
    CHECK(process >= 0 && copy >= 0 && copy != ends[1] && fcntl(copy, F_GETFD) == FD_CLOEXEC);
    FAILS(syscall(SYS_pidfd_getfd, process, 1000, 0), EBADF);
    FAILS(syscall(SYS_pidfd_getfd, process, 0, 1), EINVAL);
    FAILS(syscall(SYS_pidfd_getfd, ends[0], 0, 0), EBADF);
    CHECK(write(copy, "x", 1) == 1 && ended(child) == 0);
    FAILS(syscall(SYS_pidfd_getfd, process, 0, 0), ESRCH);
    CHECK(!close(copy) && !close(process) && !close(ends[0]) && !close(ends[1]));
}

int main(int argc, char **argv) {
    itself = argv[0];
    if (argc > 2 && !strcmp(argv[1], "exit")) return atoi(argv[2]);
    if (argc > 1 && !strcmp(argv[1], "count")) return (argc - 2) % 251;
    if (argc > 2 && !strcmp(argv[1], "wait")) {
        char byte;
        return read(atoi(argv[2]), &byte, 1) == 1 ? 0 : 1;
    }
    if (argc > 3 && !strcmp(argv[1], "descriptors")) {
        int kept = fcntl(atoi(argv[2]), F_GETFD), closed = fcntl(atoi(argv[3]), F_GETFD);
        return kept >= 0 && closed == -1 && getenv("ONE") && !getenv("PATH") ? 0 : 1;
    }
    PART(memory_is_copied_on_write);
    PART(descendants_see_memory_of_their_ancestors);
    PART(wait_can_leave_out_children_of_other_threads);
    PART(vfork_waits_for_exec);
    PART(exec_passes_arguments_and_descriptors);
    PART(long_arguments_are_passed);
    PART(wait_reports_how_a_child_ended);
    PART(orphans_are_adopted);
    PART(groups_are_killed_together);
    PART(many_processes_run_at_once);
    PART(clone_flags_share_files_and_directory);
    PART(threads_may_have_directories_of_their_own);
    PART(pidfd_signals_and_polls_a_process);
    PART(flags_of_clone_are_checked);
    PART(cleared_handlers_leave_ignored_signals);
    PART(caller_is_its_own_pidfd);
    PART(pidfd_copies_descriptors);
    PART(objects_of_processes_are_compared);
    PART(opened_memory_is_that_of_one_program);
    return 0;
}
