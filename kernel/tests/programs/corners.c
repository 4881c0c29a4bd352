// Rare cases of calls: memory policies, personalities, settings of prctl, limits, mounts, overcommitted
// memory, and the order in which errors are checked. Checks files of `kernel/src/calls` and
// `kernel/src/proc`. Parts that change settings of the machine or need the superuser outside of a user
// namespace run only without an argument. On Linux the test therefore passes `unprivileged`. Cases of
// calls that are the subject of no other program belong here.
#define _GNU_SOURCE
#include "check.h"
#include <fcntl.h>
#include <pthread.h>
#include <sched.h>
#include <signal.h>
#include <sys/mman.h>
#include <sys/mount.h>
#include <sys/personality.h>
#include <sys/prctl.h>
#include <sys/random.h>
#include <sys/resource.h>
#include <sys/shm.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/uio.h>
#include <sys/wait.h>

#define FAILS(what, number) CHECK((what) == -1 && errno == number)

static int ended(pid_t pid) {
    int status;
    CHECK(waitpid(pid, &status, 0) == pid);
    return status;
}

static char *text_of(const char *path) {
    static char text[4096];
    int file = open(path, O_RDONLY);
    CHECK(file >= 0);
    long bytes = read(file, text, sizeof text - 1);
    CHECK(bytes >= 0 && !close(file));
    text[bytes] = 0;
    return text;
}

static long value_of(const char *path, const char *row, int base) {
    char *at = strstr(text_of(path), row);
    CHECK(at);
    return strtol(at + strlen(row), 0, base);
}

static void *wait_for_ever(void *unused) { return pause(), unused; }

static void memory_policies_are_accepted(void) {
    enum { DEFAULT, PREFERRED, BIND, INTERLEAVE, LOCAL };
    unsigned long node = 1, none = 0, other = 2;
    int mode = -1;
    CHECK(!syscall(SYS_set_mempolicy, PREFERRED, 0, 0));
    CHECK(!syscall(SYS_get_mempolicy, &mode, 0, 0, 0, 0) && mode == LOCAL);
    CHECK(!syscall(SYS_set_mempolicy, DEFAULT, 0, 0));
    FAILS(syscall(SYS_set_mempolicy, PREFERRED | 3 << 14, &node, 64), EINVAL);
    FAILS(syscall(SYS_set_mempolicy, INTERLEAVE | 1 << 13, &node, 64), EINVAL);
    FAILS(syscall(SYS_migrate_pages, 0, 64, 8, &node), EFAULT);
    FAILS(syscall(SYS_migrate_pages, 0, 64, &node, &other), EINVAL);
    FAILS(syscall(SYS_migrate_pages, 0, 64, &node, &none), EINVAL);
    CHECK(!syscall(SYS_migrate_pages, 0, 64, &node, &node));
    char *at = mmap(0, 8192, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    at[0] = 1;
    FAILS(syscall(SYS_set_mempolicy_home_node, at, 8192, 0, 0), ENOENT);
    CHECK(!syscall(SYS_mbind, at, 4096, BIND, &node, 64, 0));
    CHECK(!syscall(SYS_set_mempolicy_home_node, at, 8192, 0, 0));
    FAILS(syscall(SYS_set_mempolicy_home_node, at, 8192, 0, 1), EINVAL);
    CHECK(!syscall(SYS_mbind, at, 4096, INTERLEAVE, &node, 64, 0));
    FAILS(syscall(SYS_set_mempolicy_home_node, at, 4096, 0, 0), EOPNOTSUPP);
    void *pages[] = {at, at + 4096, (void *)0x10000};
    int status[3] = {9, 9, 9};
    CHECK(!syscall(SYS_move_pages, 0, 3, pages, 0, status, 0));
    CHECK(status[0] == 0 && status[1] == -ENOENT && status[2] == -EFAULT);
}

// A thread's policy is passed on by fork and clone, and ends with the thread.
static void policy_belongs_to_the_thread(void) {
    enum { DEFAULT, PREFERRED, BIND };
    unsigned long node = 1;
    int mode = -1, status;
    CHECK(!syscall(SYS_set_mempolicy, BIND, &node, 64));
    pid_t child = fork();
    if (child == 0) {
        CHECK(!syscall(SYS_get_mempolicy, &mode, 0, 0, 0, 0) && mode == BIND);
        _exit(0);
    }
    CHECK(waitpid(child, &status, 0) == child && status == 0);
    CHECK(!syscall(SYS_set_mempolicy, DEFAULT, 0, 0));
    CHECK(!syscall(SYS_get_mempolicy, &mode, 0, 0, 0, 0) && mode == DEFAULT);
}

// Linux checks for errors in this order.
static void errors_are_checked_in_the_order_of_linux(void) {
    enum { BIND = 2, WAKE = 1, WAKE_BITSET = 10, PRIVATE = 128 };
    unsigned long node = 1;
    FAILS(syscall(SYS_mbind, 1, 4096, 99, 8, 64, 99), EINVAL);
    FAILS(syscall(SYS_mbind, 1, 4096, BIND, 8, 64, 99), EFAULT);
    FAILS(syscall(SYS_mbind, 1, 4096, BIND, &node, 64, 0), EINVAL);
    CHECK(!syscall(SYS_mbind, 4096, 0, BIND, 0, 0, 0));
    FAILS(syscall(SYS_set_mempolicy, 99, 8, 64), EINVAL);
    FAILS(syscall(SYS_set_mempolicy, BIND, 8, 64), EFAULT);
    FAILS(syscall(SYS_futex, 8, WAKE_BITSET, 1, 0, 0, 0), EINVAL);
    FAILS(syscall(SYS_futex, 8, WAKE, 1, 0, 0, 0), EFAULT);
    FAILS(syscall(SYS_futex, -8ul, WAKE | PRIVATE, 1, 0, 0, 0), EFAULT);
    CHECK(!syscall(SYS_futex, 8, WAKE | PRIVATE, 1, 0, 0, 0));
    FAILS(setpgid(-1, 0), EINVAL);
    int by_path = open("/proc/self/exe", O_PATH);
    CHECK(mmap(0, 4096, PROT_READ, MAP_PRIVATE, by_path, 0) == MAP_FAILED && errno == EBADF && !close(by_path));
    char path[40];
    pid_t child = fork();
    if (child == 0) wait_for_ever(0);
    sprintf(path, "/proc/%d/comm", child);
    int file = open(path, O_WRONLY);
    FAILS(write(file, "other", 5), EINVAL);
    CHECK(!close(file) && !kill(child, SIGKILL) && ended(child) == SIGKILL);
}

static void memfd_supports_each_listed_huge_page_size(void) {
    char path[80];
    for (unsigned shift = 1; shift < 64; shift++) {
        sprintf(path, "/sys/kernel/mm/hugepages/hugepages-%lukB/nr_hugepages", 1ul << shift >> 10);
        int is_size = !access(path, F_OK), file = syscall(SYS_memfd_create, "huge", MFD_HUGETLB | shift << 26);
        CHECK(is_size ? file >= 0 && !close(file) : file == -1 && errno == ENODEV);
    }
}

static int vm_flag_of(void *at, const char *flag) {
    static char text[1 << 16];
    char begin[32];
    sprintf(begin, "\n%08lx-", (unsigned long)at);
    int file = open("/proc/self/smaps", O_RDONLY);
    long bytes = 0, part;
    while ((part = read(file, text + bytes, sizeof text - 1 - bytes)) > 0) bytes += part;
    text[bytes] = 0;
    char *flags = strstr(strstr(text, begin), "VmFlags:");
    CHECK(!close(file) && flags);
    *strchr(flags, '\n') = 0;
    return strstr(flags, flag) != 0;
}

static void set(const char *path, const char *text) {
    int file = open(path, O_WRONLY);
    CHECK(file >= 0 && write(file, text, strlen(text)) == (long)strlen(text) && !close(file));
}

static void strict_overcommit_ignores_noreserve(void) {
    enum { ANONYMOUS = MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE };
    for (int mode = 0; mode <= 2; mode += 2) {
        set("/proc/sys/vm/overcommit_memory", mode ? "2" : "0");
        char *at = mmap(0, 4096, PROT_READ | PROT_WRITE, ANONYMOUS, -1, 0);
        char *huge = mmap(0, 2 << 20, PROT_READ, ANONYMOUS | MAP_HUGETLB, -1, 0);
        CHECK(at != MAP_FAILED && huge != MAP_FAILED);
        CHECK(vm_flag_of(at, " nr") == !mode && vm_flag_of(at, " ac") == !!mode && vm_flag_of(huge, " nr"));
        CHECK(!munmap(at, 4096) && !munmap(huge, 2 << 20));
    }
    set("/proc/sys/vm/overcommit_memory", "0");
}

static long meminfo(const char *name) {
    static char text[1 << 14];
    int file = open("/proc/meminfo", O_RDONLY);
    long bytes = read(file, text, sizeof text - 1);
    CHECK(bytes > 0 && !close(file));
    text[bytes] = 0;
    return atol(strchr(strstr(text, name), ':') + 1);
}

static void shared_memory_is_committed(void) {
    enum { SHARED = MAP_SHARED | MAP_ANONYMOUS, RW = PROT_READ | PROT_WRITE };
    size_t huge = 1ul << 45, page = 4096;
    CHECK(mmap(0, huge, RW, SHARED, -1, 0) == MAP_FAILED && errno == ENOMEM);
    CHECK(shmget(IPC_PRIVATE, huge, 0600) == -1 && errno == ENOMEM);
    char *at = mmap(0, huge, RW, SHARED | MAP_NORESERVE, -1, 0);
    CHECK(at != MAP_FAILED && !munmap(at, huge));
    int file = memfd_create("promised", 0), id = shmget(IPC_PRIVATE, huge, 0600 | SHM_NORESERVE);
    CHECK(file >= 0 && !ftruncate(file, huge) && id >= 0 && !shmctl(id, IPC_RMID, 0));
    at = mmap(0, huge, RW, MAP_SHARED, file, 0);
    CHECK(at != MAP_FAILED && (at[huge - page] = 1) && !munmap(at, huge) && !close(file));
}

static void committed_memory_is_counted_and_limited(void) {
    enum { SHARED = MAP_SHARED | MAP_ANONYMOUS, RW = PROT_READ | PROT_WRITE, MOST = 4096 };
    static char *pieces[MOST];
    size_t piece = 4 << 20, count = 0;
    long before = meminfo("Committed_AS");
    set("/proc/sys/vm/overcommit_memory", "2");
    while (count < MOST) {
        char *at = mmap(0, piece, RW, count % 2 ? SHARED : MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
        if (at == MAP_FAILED) break;
        pieces[count++] = at;
    }
    CHECK(errno == ENOMEM && count > 0 && count < MOST);
    long limit = meminfo("CommitLimit"), committed = meminfo("Committed_AS");
    CHECK(committed <= limit && limit - committed < (long)(piece >> 10));
    while (count > 0) CHECK(!munmap(pieces[--count], piece));
    set("/proc/sys/vm/overcommit_memory", "0");
    // The stack may have grown by some pages.
    CHECK(meminfo("Committed_AS") - before < (long)(piece >> 10));
}

static void prctl_stores_its_settings(void) {
    int is_reaper = 0;
    char name[16];
    CHECK(!prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) && prctl(PR_GET_NO_NEW_PRIVS, 0, 0, 0, 0) == 1);
    CHECK(strstr(text_of("/proc/self/status"), "NoNewPrivs:\t1\n"));
    FAILS(prctl(PR_GET_NO_NEW_PRIVS, 1, 0, 0, 0), EINVAL);
    CHECK(!prctl(PR_SET_DUMPABLE, 0) && prctl(PR_GET_DUMPABLE) == 0 && !prctl(PR_SET_DUMPABLE, 1));
    int file = open("/proc/self/comm", O_WRONLY);
    CHECK(write(file, "another", 7) == 7 && !close(file));
    CHECK(!prctl(PR_GET_NAME, name) && !strcmp(name, "another"));
    CHECK(!prctl(PR_SET_CHILD_SUBREAPER, 1) && !prctl(PR_GET_CHILD_SUBREAPER, &is_reaper) && is_reaper == 1);
    // A child does not inherit the setting. The child therefore sets it too, and adopts the orphan that its
    // own child leaves.
    pid_t above = fork();
    if (above == 0) {
        CHECK(!prctl(PR_GET_CHILD_SUBREAPER, &is_reaper) && is_reaper == 0 && !prctl(PR_SET_CHILD_SUBREAPER, 1));
        pid_t reaper = getpid(), child = fork();
        if (child == 0) {
            if (fork() == 0) {
                while (getppid() != reaper) usleep(1000);
                _exit(9);
            }
            _exit(0);
        }
        CHECK(ended(child) == 0);
        int status;
        CHECK(wait(&status) > 0 && status == 9 << 8);
        _exit(0);
    }
    CHECK(ended(above) == 0);
}

// The numbers are stored. Only one property has an effect: if the effective user is 0, mlock has no limit.
static void user_numbers_are_stored(void) {
    pid_t child = fork();
    if (child == 0) {
        struct rlimit limit = {4096, 4096};
        uid_t real, effective, saved;
        CHECK(!setrlimit(RLIMIT_MEMLOCK, &limit));
        char *at = mmap(0, 16384, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
        CHECK(!mlock(at, 16384) && !munlock(at, 16384) && !seteuid(65534));
        CHECK(mlock(at, 16384) == -1 && (errno == ENOMEM || errno == EPERM));
        CHECK(!getresuid(&real, &effective, &saved) && real == 0 && effective == 65534 && saved == 0);
        CHECK(!seteuid(0) && !mlock(at, 16384) && !setgid(65534) && !setuid(65534));
        CHECK(getuid() == 65534 && geteuid() == 65534 && getegid() == 65534);
        limit.rlim_max = 8192;
        FAILS(setrlimit(RLIMIT_MEMLOCK, &limit), EPERM);
        _exit(0);
    }
    CHECK(ended(child) == 0);
}

// Returns the exit status of this program when a part executes it with this word.
static int executed(const char *word) {
    return strcmp(word, "personality") || personality(-1) != PER_LINUX;
}

static void execute(const char *word) {
    execl("/proc/self/exe", "corners", word, NULL);
    _exit(2);
}

static void personality_belongs_to_the_process(void) {
    pid_t child = fork();
    if (child == 0) {
        CHECK(personality(READ_IMPLIES_EXEC) == PER_LINUX && personality(-1) == READ_IMPLIES_EXEC);
        char *at = mmap(0, 4096, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
        *at = (char)0xc3;
        ((void (*)(void))at)();
        CHECK(!mprotect(at, 4096, PROT_NONE) && !mprotect(at, 4096, PROT_READ));
        ((void (*)(void))at)();
        CHECK(!mprotect(at, 4096, PROT_NONE) && !syscall(SYS_pkey_mprotect, at, 4096, PROT_READ, -1));
        ((void (*)(void))at)();
        execute("personality");
    }
    CHECK(ended(child) == 0 && personality(-1) == PER_LINUX);
}

static void first_thread_may_end_before_others(void) {
    char path[40];
    pid_t child = fork();
    pthread_t other;
    if (child == 0) {
        CHECK(!pthread_create(&other, 0, wait_for_ever, 0));
        syscall(SYS_exit, 0);
    }
    sprintf(path, "/proc/%d/status", child);
    while (!strstr(text_of(path), "State:\tZ (zombie)\n")) usleep(1000);
    int status;
    CHECK(waitpid(child, &status, WNOHANG) == 0 && !kill(child, SIGKILL) && ended(child) == SIGKILL);
    struct rlimit limit = {20, 20};
    CHECK(!setrlimit(RLIMIT_NOFILE, &limit));
    FAILS(fcntl(0, F_DUPFD, 20), EINVAL);
}

// The state of a thread tells whether a signal wakes it from its sleep.
static void state_shows_how_a_thread_sleeps(void) {
    char path[40];
    pid_t *grandchild = mmap(0, 4096, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    pid_t child = fork();
    if (child == 0) {
        if (vfork() == 0) *grandchild = getpid(), pause(), _exit(0);
        _exit(0);
    }
    sprintf(path, "/proc/%d/status", child);
    while (!strstr(text_of(path), "State:\tD (disk sleep)\n")) usleep(1000);
    sprintf(path, "/proc/%d/status", *grandchild);
    while (!strstr(text_of(path), "State:\tS (sleeping)\n")) usleep(1000);
    CHECK(!kill(*grandchild, SIGKILL) && ended(child) == 0);
}

static void killed_process_can_be_released(void) {
    pid_t child = fork();
    if (child == 0) pause(), _exit(0);
    int process = syscall(SYS_pidfd_open, child, 0);
    FAILS(syscall(SYS_process_mrelease, process, 1), EINVAL);
    FAILS(syscall(SYS_process_mrelease, process, 0), EINVAL);
    FAILS(syscall(SYS_process_mrelease, 0, 0), EBADF);
    CHECK(!kill(child, SIGKILL));
    CHECK(syscall(SYS_process_mrelease, process, 0) == 0 || errno == ESRCH);
    CHECK(ended(child) == SIGKILL);
    FAILS(syscall(SYS_process_mrelease, process, 0), ESRCH);
}

static void nothing(int number) { (void)number; }

static void too_long_arguments_are_refused(void) {
    static char words[131073];
    char *arguments[] = {"x", words, 0}, *none[] = {0};
    memset(words, 'w', sizeof words - 1);
    FAILS(execve("/proc/self/exe", arguments, none), E2BIG);
    // The flags of clone have 32 bits, so this is not CLONE_CLEAR_SIGHAND.
    signal(SIGUSR1, nothing);
    pid_t child = syscall(SYS_clone, 1ul << 32 | SIGCHLD, 0, 0, 0, 0);
    if (child == 0) _exit(signal(SIGUSR1, SIG_DFL) == nothing);
    CHECK(ended(child) == 1 << 8);
    // A failure to store the child's number is not reported.
    child = syscall(SYS_clone, CLONE_PARENT_SETTID | SIGCHLD, 0, 8, 0, 0);
    if (child == 0) _exit(3);
    CHECK(child > 0 && ended(child) == 3 << 8);
}

static long kib_of(const char *row) { return value_of("/proc/meminfo", row, 10); }

// Does nothing on a large machine, because other programs may use memory there.
static void reaped_process_has_freed_its_memory(void) {
    enum { BYTES = 32 << 20 };
    for (int round = 0; round < 20 && kib_of("MemTotal:") <= 1 << 20; round++) {
        long before = kib_of("MemFree:");
        pid_t child = fork();
        if (child == 0) {
            pthread_t other;
            memset(mmap(0, BYTES, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0), 1, BYTES);
            for (int n = 0; n < 4; n++) CHECK(!pthread_create(&other, 0, wait_for_ever, 0));
            _exit(0);
        }
        CHECK(ended(child) == 0 && kib_of("MemFree:") > before - (BYTES >> 11));
    }
}

// Does nothing on a large machine, because the test uses all memory of the machine.
static void locking_too_much_memory_kills(void) {
    long kib = kib_of("MemTotal:");
    if (kib > 1 << 20) return;
    for (int round = 0; round < 2; round++) {
        pid_t child = fork();
        if (child == 0) {
            for (;;) {
                void *at = mmap(0, kib << 9, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
                CHECK(at != MAP_FAILED && (!mlock(at, kib << 9) || errno == EAGAIN));
            }
        }
        CHECK(ended(child) == SIGKILL);
    }
}

static void limit_of_pending_signals_is_enforced(void) {
    pid_t child = fork();
    if (child == 0) {
        struct rlimit limit = {3, 3};
        union sigval value = {7};
        sigset_t blocked;
        sigfillset(&blocked);
        CHECK(!setrlimit(RLIMIT_SIGPENDING, &limit) && !setuid(65533) && !sigprocmask(SIG_BLOCK, &blocked, 0));
        for (int n = 0; n < 3; n++) CHECK(!sigqueue(getpid(), SIGRTMIN + n % 2, value));
        CHECK(strstr(text_of("/proc/self/status"), "SigQ:\t3/3\n"));
        FAILS(sigqueue(getpid(), SIGRTMIN, value), EAGAIN);
        CHECK(!kill(getpid(), SIGUSR1));
        _exit(0);
    }
    CHECK(ended(child) == 0);
}

static void *its_number(void *to) {
    *(volatile int *)to = syscall(SYS_gettid);
    return wait_for_ever(to);
}

static void proc_lists_threads_and_huge_pages(void) {
    char path[64];
    volatile int tid = 0;
    pthread_t other;
    pid_t child = fork();
    if (child == 0) {
        CHECK(!pthread_create(&other, 0, its_number, (void *)&tid));
        while (!tid) usleep(1000);
        sprintf(path, "/proc/%d/status", tid);
        char wanted[64];
        sprintf(wanted, "\nTgid:\t%d\n", getpid());
        CHECK(strstr(text_of(path), wanted));
        set("/proc/sys/vm/nr_hugepages", "2");
        char *at = mmap(0, 4 << 20, PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_HUGETLB, -1, 0);
        CHECK(at != MAP_FAILED && (at[0] = 1));
        CHECK(strstr(text_of("/proc/self/status"), "HugetlbPages:\t    2048 kB\n"));
        _exit(0);
    }
    CHECK(ended(child) == 0);
    set("/proc/sys/vm/nr_hugepages", "0");
    int file = open("/proc/sys/vm/max_map_count", O_WRONLY);
    FAILS(write(file, "-1", 2), EINVAL);
    CHECK(!close(file));
}

static void mounts_are_listed(void) {
    mkdir("/tmp/mounted", 0755);
    CHECK(!mount("none", "/tmp/mounted", "tmpfs", 0, 0));
    CHECK(strstr(text_of("/proc/self/mounts"), " /tmp/mounted tmpfs "));
    CHECK(!mkdir("/tmp/mounted/a", 0755) && !mkdir("/tmp/mounted/a/b", 0755));
    int file = open("/tmp/mounted/a/b/file", O_CREAT | O_RDWR, 0600);
    CHECK(file >= 0 && !link("/tmp/mounted/a/b/file", "/tmp/mounted/a/link"));
    FAILS(umount("/tmp/mounted"), EBUSY);
    CHECK(!close(file) && !chdir("/tmp/mounted/a"));
    FAILS(umount("/tmp/mounted"), EBUSY);
    CHECK(!chdir("/") && !mount("none", "/tmp/mounted/a/b", "tmpfs", 0, 0));
    FAILS(umount("/tmp/mounted"), EBUSY);
    CHECK(!umount("/tmp/mounted/a/b"));
    CHECK(!umount("/tmp/mounted"));
    CHECK(!strstr(text_of("/proc/mounts"), "/tmp/mounted"));
    FAILS(umount("/tmp/mounted"), EINVAL);
    CHECK(!rmdir("/tmp/mounted"));
    // The list shows the current name, and escapes characters that would end the field.
    CHECK(!mkdir("/tmp/a b", 0755) && !mkdir("/tmp/a b/m", 0755));
    CHECK(!mount("none", "/tmp/a b/m", "tmpfs", 0, 0));
    CHECK(strstr(text_of("/proc/self/mounts"), " /tmp/a\\040b/m tmpfs "));
    CHECK(!rename("/tmp/a b", "/tmp/a\\b") && strstr(text_of("/proc/self/mounts"), " /tmp/a\\134b/m tmpfs "));
    CHECK(!umount("/tmp/a\\b/m") && !strstr(text_of("/proc/self/mounts"), "134b"));
    CHECK(!rmdir("/tmp/a\\b/m") && !rmdir("/tmp/a\\b"));
}

// The tree below a mount may be deeper than the kernel's stack allows for a recursion.
static void deep_tree_is_freed_with_its_mount(void) {
    CHECK(!mkdir("/tmp/deep", 0777) && !mount("none", "/tmp/deep", "tmpfs", 0, 0) && !chdir("/tmp/deep"));
    for (int depth = 0; depth < 3000; depth++) CHECK(!mkdir("d", 0777) && !chdir("d"));
    CHECK(!chdir("/tmp") && !umount("/tmp/deep") && !rmdir("/tmp/deep"));
}

// Node 0 is the only node. A policy may name more nodes, but at least one must exist.
static void nodes_of_policies_must_exist(void) {
    enum { DEFAULT, PREFERRED, BIND, INTERLEAVE, LOCAL, MANY, WEIGHTED, RELATIVE = 1 << 14, STATIC = 1 << 15 };
    unsigned long zero = 1, other = 2, both = 3, none = 0;
    for (int mode = PREFERRED; mode <= WEIGHTED; mode++) {
        if (mode == LOCAL) continue;
        CHECK(!syscall(SYS_set_mempolicy, mode, &both, 64) && !syscall(SYS_set_mempolicy, mode, &zero, 64));
        CHECK(!syscall(SYS_set_mempolicy, mode | STATIC, &both, 64));
        CHECK(!syscall(SYS_set_mempolicy, mode | RELATIVE, &other, 64));
        FAILS(syscall(SYS_set_mempolicy, mode, &other, 64), EINVAL);
        FAILS(syscall(SYS_set_mempolicy, mode | STATIC, &other, 64), EINVAL);
        FAILS(syscall(SYS_set_mempolicy, mode | RELATIVE, &none, 64), EINVAL);
    }
    CHECK(!syscall(SYS_set_mempolicy, DEFAULT | STATIC, 0, 0));
    CHECK(!syscall(SYS_set_mempolicy, DEFAULT | RELATIVE, &none, 64));
    for (int mode = DEFAULT; mode <= WEIGHTED; mode++) FAILS(syscall(SYS_set_mempolicy, mode, &zero, 0), EINVAL);
    FAILS(syscall(SYS_set_mempolicy, LOCAL, &zero, 64), EINVAL);
    FAILS(syscall(SYS_set_mempolicy, WEIGHTED + 1, &zero, 64), EINVAL);
    FAILS(syscall(SYS_set_mempolicy, BIND, 16, 64), EFAULT);
    CHECK(!syscall(SYS_set_mempolicy, DEFAULT, 0, 0));
}

static volatile int other_tid;

static void *tell_tid(void *unused) {
    other_tid = gettid();
    return wait_for_ever(unused);
}

static void process_is_found_by_any_thread(void) {
    pid_t child = fork();
    if (child == 0) {
        pthread_t thread;
        long from = 5, to = 0;
        struct iovec here = {&to, 8}, there = {&from, 8};
        CHECK(!pthread_create(&thread, 0, tell_tid, 0));
        while (!other_tid) usleep(1000);
        CHECK(syscall(SYS_process_vm_readv, other_tid, &here, 1, &there, 1, 0) == 8 && to == 5);
        CHECK(syscall(SYS_process_vm_writev, other_tid, &there, 1, &here, 1, 0) == 8);
        FAILS(syscall(SYS_process_vm_readv, 0, &here, 1, &there, 1, 0), ESRCH);
        CHECK(!syscall(SYS_move_pages, other_tid, 0, 0, 0, 0, 0) && !kill(other_tid, 0));
        _exit(0);
    }
    CHECK(ended(child) == 0);
}

// Returns a number of /proc/self/stat, counted from 1.
static unsigned long stat_field(int field) {
    char *at = strrchr(text_of("/proc/self/stat"), ')') + 1;
    for (int n = 3; n < field; n++) at = strchr(at + 1, ' ');
    return strtoul(at, 0, 10);
}

// Changes the places of the program's parts with PR_SET_MM, as a program with all privileges.
static void set_places_one_by_one(char *page) {
    enum { START_BRK = 6, BRK = 7, ARG_START = 8, ARG_END = 9, AUXV = 12, EXE_FILE = 13 };
    // The options, and the fields of /proc/self/stat that show them.
    static const int fields[][2] = {{1, 26}, {2, 27}, {3, 45}, {4, 46}, {5, 28}, {6, 47}, {8, 48}, {9, 49}, {10, 50}, {11, 51}};
    unsigned long to = (unsigned long)page;
    for (int n = 0; n < 10; n++) CHECK(stat_field(fields[n][1]) > 4096);
    unsigned long data = stat_field(45), top = 0x7ffffffff000;
    FAILS(prctl(PR_SET_MM, 1, stat_field(27), 0, 0), EINVAL);
    FAILS(prctl(PR_SET_MM, 4, data - 1, 0, 0), EINVAL);
    FAILS(prctl(PR_SET_MM, ARG_END, stat_field(48) - 1, 0, 0), EINVAL);
    FAILS(prctl(PR_SET_MM, START_BRK, (unsigned long)sbrk(0) + 1, 0, 0), EINVAL);
    FAILS(prctl(PR_SET_MM, 5, top, 0, 0), EINVAL);
    CHECK(!prctl(PR_SET_MM, 1, stat_field(26) + 1, 0, 0) && !prctl(PR_SET_MM, 5, page, 0, 0) && stat_field(28) == to);
    CHECK(!prctl(PR_SET_MM, ARG_START, page, 0, 0) && stat_field(48) == to);
    // The heap goes on behind the new break.
    char *end = sbrk(0);
    CHECK(!prctl(PR_SET_MM, BRK, end + 4096, 0, 0) && (char *)syscall(SYS_brk, 0) == end + 4096);
    CHECK((char *)syscall(SYS_brk, end + 8192) == end + 8192);
    end[4096] = 1;
    // The vector is copied and ends with a zero entry.
    unsigned long vector[52], seen[52];
    for (int n = 0; n < 52; n++) vector[n] = n + 1;
    FAILS(prctl(PR_SET_MM, AUXV, vector, sizeof vector + 1, 0), EINVAL);
    FAILS(prctl(PR_SET_MM, AUXV, 16, 16, 0), EFAULT);
    CHECK(!prctl(PR_SET_MM, AUXV, vector, sizeof vector, 0));
    vector[0] = 77;
    int file = open("/proc/self/auxv", O_RDONLY);
    int bytes = read(file, seen, sizeof seen);
    CHECK(bytes > 0 && bytes % 16 == 0 && seen[0] == 1 && seen[bytes / 8 - 2] == 0);
    close(file);
    // The executable is still mapped.
    FAILS(prctl(PR_SET_MM, EXE_FILE, 1000, 0, 0), EBADF);
    file = open("/dev/null", O_RDONLY);
    FAILS(prctl(PR_SET_MM, EXE_FILE, file, 0, 0), EACCES);
    close(file);
    file = open("/proc/self/exe", O_RDONLY);
    FAILS(prctl(PR_SET_MM, EXE_FILE, file, 0, 0), EBUSY);
    close(file);
}

static void prctl_moves_arguments_and_heap(void) {
    enum { BRK = 7, ARG_START = 8, ARG_END = 9, EXE_FILE = 13, MAP = 14, MAP_SIZE = 15 };
    unsigned size = 0;
    CHECK(!prctl(PR_SET_MM, MAP_SIZE, &size, 0, 0) && size == 104);
    FAILS(prctl(PR_SET_MM, MAP_SIZE, 16, 0, 0), EFAULT);
    FAILS(prctl(PR_SET_MM, BRK, sbrk(0), 0, 1), EINVAL);
    FAILS(prctl(PR_SET_MM, BRK, sbrk(0), 1, 0), EINVAL);
    FAILS(prctl(PR_SET_MM, MAP, 16, 103, 0), EINVAL);
    FAILS(prctl(PR_SET_MM, MAP, 16, 104, 0), EFAULT);
    unsigned long map[13] = {0};
    FAILS(prctl(PR_SET_MM, MAP, map, 104, 0), EINVAL);
    pid_t child = fork();
    if (child == 0) {
        char *at = mmap(0, 4096, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
        strcpy(at, "renamed");
        if (prctl(PR_SET_MM, ARG_START, at, 0, 0)) {
            // A program without the right may set all fields together.
            CHECK(errno == EPERM);
            FAILS(prctl(PR_SET_MM, 99, at, 0, 0), EPERM);
        } else {
            FAILS(prctl(PR_SET_MM, 99, at, 0, 0), EINVAL);
            FAILS(prctl(PR_SET_MM, ARG_START, 0, 0, 0), EINVAL);
            set_places_one_by_one(at);
        }
        unsigned long brk = (unsigned long)sbrk(0), start = (unsigned long)at;
        unsigned long full[13] = {start, start + 1, start, start, brk, brk, start, start, start + 8, start, start, 0,
                                  0xffffffffUL << 32};
        CHECK(!prctl(PR_SET_MM, MAP, full, 104, 0) && !strcmp(text_of("/proc/self/cmdline"), "renamed"));
        full[7] = start + 9;
        FAILS(prctl(PR_SET_MM, MAP, full, 104, 0), EINVAL);
        _exit(0);
    }
    CHECK(ended(child) == 0);
}

static void random_bytes_are_unpredictable(void) {
    enum { NONBLOCK = 1, RANDOM = 2, INSECURE = 4 };
    static unsigned char bytes[2][4096];
    int ones = 0, counts[256] = {0};
    for (int n = 0; n < 2; n++) CHECK(getrandom(bytes[n], 4096, 0) == 4096);
    CHECK(memcmp(bytes[0], bytes[1], 4096));
    for (int n = 0; n < 8192; n++) {
        unsigned char byte = bytes[n / 4096][n % 4096];
        ones += __builtin_popcount(byte);
        counts[byte]++;
    }
    CHECK(ones > 32000 && ones < 33536);
    for (int n = 0; n < 256; n++) CHECK(counts[n]);
    CHECK(getrandom(bytes, 5, NONBLOCK | RANDOM) == 5 && getrandom(bytes, 0, INSECURE) == 0);
    FAILS(getrandom(bytes, 1, RANDOM | INSECURE), EINVAL);
    FAILS(getrandom(bytes, 1, 8), EINVAL);
    FAILS(syscall(SYS_getrandom, 16, 1, 0), EFAULT);
    char *at = mmap(0, 8192, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    CHECK(!munmap(at + 4096, 4096) && getrandom(at + 4096 - 256, 512, 0) == 256);
    CHECK(!munmap(at, 4096));
}

// With the argument `unprivileged`, skips the parts that need privileges outside of the user namespace.
int main(int argc, char **argv) {
    if (argc == 2 && strcmp(argv[1], "unprivileged")) return executed(argv[1]);
    if (argc == 1) {
        PART(memfd_supports_each_listed_huge_page_size);
        PART(strict_overcommit_ignores_noreserve);
        PART(committed_memory_is_counted_and_limited);
        PART(user_numbers_are_stored);
        PART(mounts_are_listed);
        PART(deep_tree_is_freed_with_its_mount);
        PART(limit_of_pending_signals_is_enforced);
        PART(proc_lists_threads_and_huge_pages);
        PART(reaped_process_has_freed_its_memory);
        PART(locking_too_much_memory_kills);
    }
    PART(shared_memory_is_committed);
    PART(random_bytes_are_unpredictable);
    PART(nodes_of_policies_must_exist);
    PART(process_is_found_by_any_thread);
    PART(prctl_moves_arguments_and_heap);
    PART(memory_policies_are_accepted);
    PART(policy_belongs_to_the_thread);
    PART(errors_are_checked_in_the_order_of_linux);
    PART(prctl_stores_its_settings);
    PART(personality_belongs_to_the_process);
    PART(state_shows_how_a_thread_sleeps);
    PART(killed_process_can_be_released);
    PART(too_long_arguments_are_refused);
    PART(first_thread_may_end_before_others);
    return 0;
}
