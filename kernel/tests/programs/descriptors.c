// The table of descriptors: its growth up to RLIMIT_NOFILE, ranges, FD_CLOEXEC, tables that processes or threads share,
// and the folder of descriptors in /proc. Checks `kernel/src/files/table.rs`.
#define _GNU_SOURCE
#include "check.h"
#include <dirent.h>
#include <fcntl.h>
#include <sched.h>
#include <signal.h>
#include <sys/resource.h>
#include <sys/syscall.h>
#include <sys/wait.h>

#define FAILS(what, number) CHECK((what) == -1 && errno == number)
enum { UNSHARE = 2, CLOEXEC = 4 };

static int close_between(unsigned first, unsigned last, unsigned flags) {
    return syscall(SYS_close_range, first, last, flags);
}

static int is_open(int file) { return fcntl(file, F_GETFD) >= 0; }

static void limit_to(rlim_t soft) {
    struct rlimit limit;
    CHECK(!getrlimit(RLIMIT_NOFILE, &limit) && soft <= limit.rlim_max);
    limit.rlim_cur = soft;
    CHECK(!setrlimit(RLIMIT_NOFILE, &limit));
}

// Runs a part in a child with this flag of clone, and checks the child's exit status.
static void in_child(int flag, void (*run)(void)) {
    pid_t child = syscall(SYS_clone, flag | SIGCHLD, 0, 0, 0, 0);
    CHECK(child >= 0);
    if (child == 0) {
        run();
        _exit(5);
    }
    int status;
    CHECK(waitpid(child, &status, 0) == child && WIFEXITED(status) && WEXITSTATUS(status) == 5);
}

static void numbers_reach_the_limit(void) {
    limit_to(5000);
    int last = 2;
    for (int n = 3; n < 5000; n++) CHECK((last = dup(1)) == n);
    FAILS(dup(1), EMFILE);
    FAILS(open("/dev/null", O_RDONLY), EMFILE);
    FAILS(fcntl(1, F_DUPFD, 4000), EMFILE);
    FAILS(fcntl(1, F_DUPFD, 5000), EINVAL);
    FAILS(dup2(1, 5000), EBADF);
    CHECK(!close(70) && !close(4990) && fcntl(1, F_DUPFD, 71) == 4990 && dup(1) == 70);
    // Descriptors above a lowered limit stay.
    limit_to(1024);
    CHECK(is_open(4999) && !close(1023) && dup(1) == 1023);
    FAILS(dup2(1, 1024), EBADF);
    CHECK(!close_between(100, 4997, CLOEXEC));
    for (int n = 3; n < 5000; n++) CHECK(fcntl(n, F_GETFD) == (n >= 100 && n <= 4997 ? FD_CLOEXEC : 0));
    CHECK(!close_between(3, ~0U, 0) && !is_open(4999) && dup(1) == 3 && !close(3));
}

static void high_number_needs_no_lower_one(void) {
    struct rlimit limit;
    CHECK(!getrlimit(RLIMIT_NOFILE, &limit) && limit.rlim_max >= 4096);
    limit_to(limit.rlim_max);
    int high = limit.rlim_max - 1;
    for (int n = 0; n < 1000; n++) {
        CHECK(dup2(1, high) == high && fcntl(high, F_SETFD, FD_CLOEXEC) == 0);
        CHECK(fcntl(high, F_GETFD) == FD_CLOEXEC && dup(1) == 3);
        CHECK(!close_between(4, ~0U, 0) && !is_open(high) && !close(3));
    }
    limit_to(1024);
}

// Returns the lowest soft and hard numbers of a row of /proc/self/limits.
static void shown(const char *row, long *soft, long *hard) {
    char line[200];
    FILE *file = fopen("/proc/self/limits", "r");
    int found = 0;
    CHECK(file);
    while (fgets(line, sizeof line, file))
        if (!strncmp(line, row, strlen(row))) found = sscanf(line + strlen(row), "%ld %ld", soft, hard);
    CHECK(found == 2 && !fclose(file));
}

static void limits_are_shown(void) {
    struct rlimit limit = {.rlim_cur = 300, .rlim_max = 0};
    struct rlimit processes;
    long soft, hard;
    limit_to(1000);
    CHECK(!getrlimit(RLIMIT_NOFILE, &limit));
    shown("Max open files", &soft, &hard);
    CHECK(soft == 1000 && hard == (long)limit.rlim_max);
    CHECK(!getrlimit(RLIMIT_NPROC, &processes));
    shown("Max processes", &soft, &hard);
    CHECK(soft == (long)processes.rlim_cur && hard == (long)processes.rlim_max);
    shown("Max msgqueue size", &soft, &hard);
    limit_to(1024);
}

static void ranges_close_and_mark(void) {
    for (int n = 3; n < 200; n++) CHECK(dup(1) == n);
    FAILS(close_between(5, 4, 0), EINVAL);
    FAILS(close_between(3, 4, 8), EINVAL);
    FAILS(close_between(3, 4, 1), EINVAL);
    CHECK(!close_between(60, 130, CLOEXEC) && !close_between(100, 101, 0));
    for (int n = 3; n < 200; n++) {
        if (n == 100 || n == 101)
            FAILS(fcntl(n, F_GETFD), EBADF);
        else
            CHECK(fcntl(n, F_GETFD) == (n >= 60 && n <= 130 ? FD_CLOEXEC : 0));
    }
    CHECK(fcntl(1, F_DUPFD_CLOEXEC, 90) == 100 && fcntl(100, F_GETFD) == FD_CLOEXEC);
    CHECK(dup2(1, 100) == 100 && fcntl(100, F_GETFD) == 0);
    // Numbers are `unsigned int`: upper halves of the arguments are ignored.
    CHECK(syscall(SYS_dup2, 1, 101 | 1L << 32) == 101 && is_open(101));
    CHECK(!close_between(150, 150, 0) && !is_open(150) && is_open(149) && is_open(151));
    CHECK(!close_between(3, ~0U, 0) && !close_between(1000000, ~0U, CLOEXEC));
}

static void close_all_but_standard(void) { CHECK(!close_between(3, ~0U, 0)); }
static void close_own(void) { CHECK(!close_between(3, ~0U, UNSHARE) && !is_open(70) && dup(1) == 3); }
static void mark_own(void) {
    CHECK(!close_between(3, ~0U, UNSHARE | CLOEXEC) && fcntl(70, F_GETFD) == FD_CLOEXEC);
}

static void unsharing_protects_the_other_process(void) {
    CHECK(dup2(1, 70) == 70 && dup2(1, 3) == 3);
    in_child(CLONE_FILES, close_own);
    CHECK(is_open(70) && is_open(3) && dup(1) == 4 && !close(4));
    in_child(CLONE_FILES, mark_own);
    CHECK(fcntl(70, F_GETFD) == 0);
    in_child(0, close_all_but_standard);
    CHECK(is_open(70));
    in_child(CLONE_FILES, close_all_but_standard);
    CHECK(!is_open(70));
}

// What a thread does, and the number of the thread. The thread stays until `go_on` is set.
static void (*act)(void);
static volatile int acted, go_on;
static volatile pid_t number;

static int thread_main(void *unused) {
    (void)unused;
    number = syscall(SYS_gettid);
    act();
    acted = 1;
    while (!go_on) syscall(SYS_sched_yield);
    syscall(SYS_exit, 0);
    return 0;
}

// Runs `what` in a thread that is made with these flags besides the usual ones.
static void begin_thread(int flags, void (*what)(void)) {
    static char stack[65536] __attribute__((aligned(16)));
    act = what;
    acted = go_on = 0;
    CHECK(clone(thread_main, stack + sizeof stack, CLONE_VM | CLONE_THREAD | CLONE_SIGHAND | CLONE_FS | flags, NULL) > 0);
    while (!acted) sched_yield();
}

static void end_thread(void) {
    char path[64];
    go_on = 1;
    snprintf(path, sizeof path, "/proc/self/task/%d", number);
    while (!access(path, F_OK)) sched_yield();
}

static int is_shown(pid_t thread, int file) {
    char path[64], target[64];
    snprintf(path, sizeof path, "/proc/self/task/%d/fd/%d", thread, file);
    return readlink(path, target, sizeof target) > 0;
}

static void unshare_files(void) { CHECK(!syscall(SYS_unshare, CLONE_FILES) && !close(70) && dup2(1, 71) == 71); }
static void close_one(void) { CHECK(!close(70) && dup2(1, 71) == 71); }
static int in_pipe;
static void keep_end(void) { CHECK(!syscall(SYS_unshare, CLONE_FILES) && is_open(in_pipe)); }

static void threads_may_have_tables_of_their_own(void) {
    struct {
        int flags;
        void (*act)(void);
        int is_shared;
    } cases[] = {{CLONE_FILES, close_own, 0}, {CLONE_FILES, unshare_files, 0}, {0, close_one, 0}, {CLONE_FILES, close_one, 1}};
    for (int n = 0; n < 4; n++) {
        CHECK(dup2(1, 70) == 70 && dup2(1, 3) == 3);
        begin_thread(cases[n].flags, cases[n].act);
        pid_t self = getpid();
        CHECK(is_open(70) == !cases[n].is_shared && is_open(71) == cases[n].is_shared);
        CHECK(is_shown(self, 70) == !cases[n].is_shared && !is_shown(number, 70));
        CHECK(is_shown(number, 71) == (n > 0) && is_shown(self, 71) == cases[n].is_shared);
        CHECK((syscall(SYS_kcmp, self, number, 2 /* KCMP_FILES */, 0, 0) == 0) == cases[n].is_shared);
        end_thread();
        close_all_but_standard();
    }
    // The end of a thread closes its own table.
    int ends[2];
    CHECK(!pipe2(ends, O_NONBLOCK));
    in_pipe = ends[1];
    begin_thread(CLONE_FILES, keep_end);
    CHECK(!close(ends[1]) && read(ends[0], ends, 1) == -1 && errno == EAGAIN);
    end_thread();
    CHECK(read(ends[0], ends + 1, 1) == 0);
    close(ends[0]);
    FAILS(syscall(SYS_unshare, 1), EINVAL);
    CHECK(!syscall(SYS_unshare, CLONE_FILES | CLONE_FS | CLONE_THREAD | CLONE_VM | CLONE_SIGHAND | CLONE_SYSVSEM));
}

static void execute(void) {
    char *args[] = {"descriptors", "executed", NULL};
    execv("/proc/self/exe", args);
}

static void exec_closes_marked_numbers(void) {
    limit_to(3000);
    CHECK(dup2(1, 2500) == 2500 && dup3(1, 2501, O_CLOEXEC) == 2501 && dup3(1, 64, O_CLOEXEC) == 64);
    in_child(CLONE_FILES, execute);
    CHECK(is_open(2501) && is_open(64) && !close_between(3, ~0U, 0));
    limit_to(1024);
}

// A program may close descriptors while it reads their folder. It then still finds all others.
static void folder_lists_all_while_they_are_closed(void) {
    limit_to(3000);
    for (int n = 3; n < 2900; n++) CHECK(dup(1) == n);
    CHECK(!close(3));
    DIR *folder = opendir("/proc/self/fd");
    CHECK(folder && dirfd(folder) == 3);
    for (struct dirent *entry; (entry = readdir(folder));) {
        int number = atoi(entry->d_name);
        if (entry->d_name[0] != '.' && number > 3) CHECK(!close(number));
    }
    CHECK(!closedir(folder) && dup(1) == 3);
    for (int n = 4; n < 2900; n++) CHECK(!is_open(n));
    CHECK(!close(3));
    limit_to(1024);
}

int main(int argc, char **argv) {
    if (argc > 1 && !strcmp(argv[1], "executed"))
        return is_open(2500) && !is_open(2501) && !is_open(64) ? 5 : 6;
    CHECK(!close_between(3, ~0U, 0));
    limit_to(1024);
    PART(numbers_reach_the_limit);
    PART(high_number_needs_no_lower_one);
    PART(limits_are_shown);
    PART(ranges_close_and_mark);
    PART(unsharing_protects_the_other_process);
    PART(threads_may_have_tables_of_their_own);
    PART(exec_closes_marked_numbers);
    PART(folder_lists_all_while_they_are_closed);
    return 0;
}
