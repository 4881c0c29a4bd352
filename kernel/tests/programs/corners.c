// Calls in their corners: policies of memory, classes of threads, what prctl keeps, what others may not, mounts.
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

static void memory_has_policies(void) {
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

// Of several errors, the one that Linux tells.
static void errors_have_an_order(void) {
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
    FAILS(prctl(PR_CAP_AMBIENT, PR_CAP_AMBIENT_IS_SET, 1ul << 32, 0, 0), EINVAL);
    char path[40];
    pid_t child = fork();
    if (child == 0) wait_for_ever(0);
    sprintf(path, "/proc/%d/comm", child);
    int file = open(path, O_WRONLY);
    FAILS(write(file, "other", 5), EINVAL);
    CHECK(!close(file) && !kill(child, SIGKILL) && ended(child) == SIGKILL);
}

static void huge_files_have_sizes(void) {
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

static void counted_promises_are_for_all(void) {
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

static void shared_memory_is_promised(void) {
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

static void promises_have_a_sum(void) {
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

static void classes_are_kept(void) {
    struct sched_param param = {7};
    CHECK(sched_setscheduler(0, SCHED_RR | SCHED_RESET_ON_FORK, &param) == 0);
    CHECK(sched_getscheduler(0) == (SCHED_RR | SCHED_RESET_ON_FORK));
    pid_t child = fork();
    if (child == 0) _exit(sched_getscheduler(0));
    CHECK(ended(child) == 0);
    struct timespec turn;
    long ms = atoi(text_of("/proc/sys/kernel/sched_rr_timeslice_ms"));
    CHECK(!sched_rr_get_interval(0, &turn) && turn.tv_nsec == ms * 1000000);
    param.sched_priority = 100;
    FAILS(sched_setparam(0, &param), EINVAL);
    FAILS(sched_setparam(0, 0), EINVAL);
    CHECK(!sched_getparam(0, &param) && param.sched_priority == 7);
    // struct sched_attr: SCHED_DEADLINE, and back.
    unsigned long attributes[7] = {48 | 6ul << 32, 0, 0, 10000000, 30000000, 30000000, 0}, found[7];
    CHECK(!syscall(SYS_sched_setattr, 0, attributes, 0));
    CHECK(!syscall(SYS_sched_getattr, 0, found, sizeof found, 0));
    CHECK((unsigned)found[0] == 56 && found[0] >> 32 == 6 && !memcmp(&found[3], &attributes[3], 24));
    FAILS(syscall(SYS_sched_getattr, 0, found, 47, 0), EINVAL);
    attributes[3] = 40000000;
    FAILS(syscall(SYS_sched_setattr, 0, attributes, 0), EINVAL);
    param.sched_priority = 0;
    CHECK(!sched_setscheduler(0, SCHED_OTHER, &param));
    // What is behind the structure that is known has to be zero.
    unsigned long longer[20] = {sizeof longer};
    CHECK(!syscall(SYS_sched_setattr, 0, longer, 0));
    longer[19] = 1;
    FAILS(syscall(SYS_sched_setattr, 0, longer, 0), E2BIG);
    CHECK((unsigned)longer[0] >= 56 && (unsigned)longer[0] < sizeof longer);
    child = fork();
    if (child == 0) {
        CHECK(!setpriority(PRIO_PROCESS, 0, -5));
        CHECK(!sched_setscheduler(0, SCHED_OTHER | SCHED_RESET_ON_FORK, &param));
        if ((child = fork()) == 0) _exit(getpriority(PRIO_PROCESS, 0));
        CHECK(ended(child) == 0 && getpriority(PRIO_PROCESS, 0) == -5);
        // The policy and its values stay; and without them the policy alone.
        unsigned long kept[6] = {48 | 3ul << 32, 0x11, 7}, policy[6] = {48 | 3ul << 32, 8, 6};
        CHECK(!syscall(SYS_sched_setattr, 0, kept, 0) && getpriority(PRIO_PROCESS, 0) == -5);
        CHECK(sched_getscheduler(0) == (SCHED_OTHER | SCHED_RESET_ON_FORK));
        CHECK(!syscall(SYS_sched_setattr, 0, policy, 0) && getpriority(PRIO_PROCESS, 0) == 6);
        CHECK(sched_getscheduler(0) == (SCHED_OTHER | SCHED_RESET_ON_FORK));
        CHECK(!setgid(65534) && !setuid(65534));
        FAILS(sched_setscheduler(0, SCHED_OTHER, &param), EPERM);
        unsigned long nicer[6] = {48 | 3ul << 32, 1, 5};
        FAILS(syscall(SYS_sched_setattr, 0, nicer, 0), EPERM);
        CHECK(sched_getscheduler(0) == (SCHED_OTHER | SCHED_RESET_ON_FORK));
        _exit(0);
    }
    CHECK(ended(child) == 0);
}

static void prctl_keeps(void) {
    int is_reaper = 0;
    char name[16];
    CHECK(!prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) && prctl(PR_GET_NO_NEW_PRIVS, 0, 0, 0, 0) == 1);
    CHECK(strstr(text_of("/proc/self/status"), "NoNewPrivs:\t1\n"));
    FAILS(prctl(PR_GET_NO_NEW_PRIVS, 1, 0, 0, 0), EINVAL);
    CHECK(!prctl(PR_SET_DUMPABLE, 0) && prctl(PR_GET_DUMPABLE) == 0 && !prctl(PR_SET_DUMPABLE, 1));
    CHECK(!prctl(PR_SET_TIMERSLACK, 200) && prctl(PR_GET_TIMERSLACK) == 200);
    CHECK(atoi(text_of("/proc/self/timerslack_ns")) == 200);
    int file = open("/proc/self/comm", O_WRONLY);
    CHECK(write(file, "another", 7) == 7 && !close(file));
    CHECK(!prctl(PR_GET_NAME, name) && !strcmp(name, "another"));
    FAILS(prctl(PR_CAP_AMBIENT, PR_CAP_AMBIENT_RAISE, 99, 0, 0), EINVAL);
    FAILS(prctl(PR_CAP_AMBIENT, PR_CAP_AMBIENT_RAISE, 21, 0, 0), EPERM);
    CHECK(prctl(PR_CAP_AMBIENT, PR_CAP_AMBIENT_IS_SET, 21, 0, 0) == 0);
    CHECK(!prctl(PR_SET_CHILD_SUBREAPER, 1) && !prctl(PR_GET_CHILD_SUBREAPER, &is_reaper) && is_reaper == 1);
    // Not the first process's: one below adopts, and its own children do not.
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

static void others_are_left_alone(void) {
    pid_t here = getpid(), child = fork();
    if (child == 0) {
        cpu_set_t cpus;
        struct rlimit limit;
        CPU_ZERO(&cpus);
        CPU_SET(0, &cpus);
        CHECK(!setgid(65534) && !setuid(65534));
        FAILS(setpriority(PRIO_PROCESS, here, 5), EPERM);
        FAILS(sched_setaffinity(here, sizeof cpus, &cpus), EPERM);
        FAILS(prlimit(here, RLIMIT_CORE, 0, &limit), EPERM);
        FAILS(syscall(SYS_mbind, 0, 0, 0, 0, 0, 4), EPERM);
        FAILS(prctl(PR_CAPBSET_DROP, 1), EPERM);
        FAILS(umount("/nowhere"), ENOENT);
        FAILS(umount("/tmp"), EPERM);
        FAILS(umount2("/tmp", 16), EINVAL);
        FAILS(mount("none", "/tmp", "nothing", 0, 0), EPERM);
        char path[40], byte;
        sprintf(path, "/proc/%d/timerslack_ns", here);
        FAILS(read(open(path, O_RDONLY), &byte, 1), EPERM);
        _exit(0);
    }
    CHECK(ended(child) == 0);
    FAILS(setpgid(-1, 0), EINVAL);
    int file = open("/proc/self/exe", O_PATH);
    CHECK(mmap(0, 4096, PROT_READ, MAP_PRIVATE, file, 0) == MAP_FAILED && errno == EBADF && !close(file));
}

static long read_of(pid_t pid) {
    char from, to;
    struct iovec local = {&to, 1}, remote = {&from, 1};
    return process_vm_readv(pid, &local, 1, &remote, 1, 0);
}

static long advise(pid_t pid) {
    enum { COLD = 20 };
    char *at = mmap(0, 4096, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    struct iovec part = {at, 4096};
    return syscall(SYS_process_madvise, syscall(SYS_pidfd_open, pid, 0), &part, 1, COLD, 0);
}

// One that acts for another user is not looked into, before it says so.
static void the_closed_are_not_read(void) {
    pid_t child = fork();
    if (child == 0) {
        CHECK(!setgid(65534) && !setuid(65534) && prctl(PR_GET_DUMPABLE) == 0 && read_of(getpid()) == 1);
        pid_t closed = fork();
        if (closed == 0) wait_for_ever(0);
        FAILS(read_of(closed), EPERM);
        FAILS(advise(closed), EACCES);
        for (const char **name = (const char *[]){"maps", "mem", "environ", "auxv", "fd/1", "cwd/.", 0}; *name; name++) {
            char path[64];
            snprintf(path, sizeof path, "/proc/%d/%s", closed, *name);
            FAILS(open(path, O_RDONLY), EACCES);
        }
        CHECK(open("/proc/self/maps", O_RDONLY) >= 0);
        CHECK(!prctl(PR_SET_DUMPABLE, 1));
        pid_t open = fork();
        if (open == 0) wait_for_ever(0);
        CHECK(read_of(open) == 1);
        FAILS(advise(open), EPERM);
        CHECK(!kill(closed, SIGKILL) && !kill(open, SIGKILL) && ended(open) == SIGKILL);
        _exit(0);
    }
    CHECK(ended(child) == 0);
}

// What this program finds when it is executed with this word.
static int executed(const char *word) {
    if (!strcmp(word, "no rights")) return value_of("/proc/self/status", "CapPrm:\t", 16) != 0;
    if (!strcmp(word, "rights")) return value_of("/proc/self/status", "CapPrm:\t", 16) == 0;
    return strcmp(word, "personality") || personality(-1) != PER_LINUX;
}

static void execute(const char *word) {
    execl("/proc/self/exe", "corners", word, NULL);
    _exit(2);
}

static void rights_are_given_up(void) {
    unsigned header[2] = {0x20080522}, none[6] = {0}, all[6];
    for (int is_for_good = 0; is_for_good < 2; is_for_good++) {
        pid_t child = fork();
        if (child == 0) {
            CHECK(!syscall(SYS_capset, header, none));
            CHECK(!is_for_good || !prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0));
            execute(is_for_good ? "no rights" : "rights");
        }
        CHECK(ended(child) == 0);
    }
    pid_t child = fork();
    if (child == 0) {
        CHECK(!syscall(SYS_capget, header, all));
        all[2] = 1 << 5;
        CHECK(!syscall(SYS_capset, header, all) && !prctl(PR_CAP_AMBIENT, PR_CAP_AMBIENT_RAISE, 5, 0, 0));
        CHECK(!prctl(PR_SET_KEEPCAPS, 1) && !setuid(65534));
        CHECK(prctl(PR_CAP_AMBIENT, PR_CAP_AMBIENT_IS_SET, 5, 0, 0) == 0);
        CHECK(value_of("/proc/self/status", "CapPrm:\t", 16) != 0);
        _exit(0);
    }
    CHECK(ended(child) == 0);
}

static void personalities_are_processes(void) {
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

static void a_first_thread_may_end(void) {
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

static void the_killed_give_memory_back(void) {
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

static void long_arguments_are_refused(void) {
    static char words[131073];
    char *arguments[] = {"x", words, 0}, *none[] = {0};
    memset(words, 'w', sizeof words - 1);
    FAILS(execve("/proc/self/exe", arguments, none), E2BIG);
    // Flags of clone have 32 bits, so this is not CLONE_CLEAR_SIGHAND.
    signal(SIGUSR1, nothing);
    pid_t child = syscall(SYS_clone, 1ul << 32 | SIGCHLD, 0, 0, 0, 0);
    if (child == 0) _exit(signal(SIGUSR1, SIG_DFL) == nothing);
    CHECK(ended(child) == 1 << 8);
    // Where the number of the child is to be written there is nothing, and nobody is told.
    child = syscall(SYS_clone, CLONE_PARENT_SETTID | SIGCHLD, 0, 8, 0, 0);
    if (child == 0) _exit(3);
    CHECK(child > 0 && ended(child) == 3 << 8);
}

static long kib_of(const char *row) { return value_of("/proc/meminfo", row, 10); }

// On a small machine alone, where nobody else takes memory.
static void what_was_waited_for_has_no_memory(void) {
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

// On a small machine alone: all of its memory is taken.
static void locking_more_than_there_is_kills(void) {
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

static void limits_count(void) {
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

static void proc_knows_threads_and_huge_pages(void) {
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
    CHECK(!close(file) && atoi(text_of("/proc/sys/kernel/sched_rt_period_us")) > 0);
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
    // By the name that it has now; what would end the field is escaped.
    CHECK(!mkdir("/tmp/a b", 0755) && !mkdir("/tmp/a b/m", 0755));
    CHECK(!mount("none", "/tmp/a b/m", "tmpfs", 0, 0));
    CHECK(strstr(text_of("/proc/self/mounts"), " /tmp/a\\040b/m tmpfs "));
    CHECK(!rename("/tmp/a b", "/tmp/a\\b") && strstr(text_of("/proc/self/mounts"), " /tmp/a\\134b/m tmpfs "));
    CHECK(!umount("/tmp/a\\b/m") && !strstr(text_of("/proc/self/mounts"), "134b"));
    CHECK(!rmdir("/tmp/a\\b/m") && !rmdir("/tmp/a\\b"));
}

// What is below a mount that goes may be deeper than a stack of the kernel is large.
static void deep_trees_go(void) {
    CHECK(!mkdir("/tmp/deep", 0777) && !mount("none", "/tmp/deep", "tmpfs", 0, 0) && !chdir("/tmp/deep"));
    for (int depth = 0; depth < 3000; depth++) CHECK(!mkdir("d", 0777) && !chdir("d"));
    CHECK(!chdir("/tmp") && !umount("/tmp/deep") && !rmdir("/tmp/deep"));
}

// With an argument, for a root who is none outside: without what asks for rights there.
int main(int argc, char **argv) {
    if (argc == 2 && strcmp(argv[1], "unprivileged")) return executed(argv[1]);
    if (argc == 1) {
        PART(huge_files_have_sizes);
        PART(counted_promises_are_for_all);
        PART(promises_have_a_sum);
        PART(classes_are_kept);
        PART(others_are_left_alone);
        PART(the_closed_are_not_read);
        PART(rights_are_given_up);
        PART(mounts_are_listed);
        PART(deep_trees_go);
        PART(limits_count);
        PART(proc_knows_threads_and_huge_pages);
        PART(what_was_waited_for_has_no_memory);
        PART(locking_more_than_there_is_kills);
    }
    PART(shared_memory_is_promised);
    PART(memory_has_policies);
    PART(errors_have_an_order);
    PART(prctl_keeps);
    PART(personalities_are_processes);
    PART(the_killed_give_memory_back);
    PART(long_arguments_are_refused);
    PART(a_first_thread_may_end);
    return 0;
}
