// Capabilities: the sets of a process, how calls and exec change them, and what they permit. Checks
// `kernel/src/process/ids.rs`. The program must be started by the superuser. Each part runs in a child,
// because a process cannot get capabilities back.
#define _GNU_SOURCE
#include "check.h"
#include <linux/capability.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/resource.h>
#include <sys/syscall.h>
#include <sys/wait.h>

#define FAILS(what, number) CHECK((what) == -1 && errno == number)
#define BIT(capability) (1ull << (capability))

typedef struct {
    unsigned long long effective, permitted, inheritable;
} sets;

static int put(sets to) {
    struct __user_cap_header_struct header = {_LINUX_CAPABILITY_VERSION_3, 0};
    struct __user_cap_data_struct data[2];
    for (int n = 0; n < 2; n++) {
        data[n].effective = to.effective >> 32 * n;
        data[n].permitted = to.permitted >> 32 * n;
        data[n].inheritable = to.inheritable >> 32 * n;
    }
    return syscall(SYS_capset, &header, data);
}

static sets get(void) {
    struct __user_cap_header_struct header = {_LINUX_CAPABILITY_VERSION_3, 0};
    struct __user_cap_data_struct data[2];
    CHECK(!syscall(SYS_capget, &header, data));
    return (sets){data[0].effective | (unsigned long long)data[1].effective << 32,
                  data[0].permitted | (unsigned long long)data[1].permitted << 32,
                  data[0].inheritable | (unsigned long long)data[1].inheritable << 32};
}

static unsigned long long row(const char *name) {
    static char text[8192];
    FILE *file = fopen("/proc/self/status", "r");
    CHECK(file);
    text[fread(text, 1, sizeof text - 1, file)] = 0;
    CHECK(!fclose(file));
    char *at = strstr(text, name);
    CHECK(at);
    return strtoull(at + strlen(name), NULL, 16);
}

static void in_child(void (*part)(void)) {
    pid_t child = fork();
    if (child == 0) {
        part();
        _exit(0);
    }
    int status;
    CHECK(waitpid(child, &status, 0) == child && status == 0);
}

static void limit_locked_memory(unsigned long bytes) {
    struct rlimit limit = {bytes, bytes};
    CHECK(!setrlimit(RLIMIT_MEMLOCK, &limit));
}

// A part of the sets is dropped, and only its privilege is lost.
static void lose_the_right_to_lock(void) {
    char *at = mmap(0, 16384, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    limit_locked_memory(4096);
    CHECK(!mlock(at, 16384) && !munlock(at, 16384));
    sets now = get();
    now.effective &= ~BIT(CAP_IPC_LOCK);
    CHECK(!put(now));
    FAILS(mlock(at, 16384), ENOMEM);
    FAILS((long)mmap(0, 16384, PROT_READ, MAP_PRIVATE | MAP_ANONYMOUS | MAP_LOCKED, -1, 0), EAGAIN);
    CHECK(!mlock(at, 4096));
    FAILS((long)mremap(at, 4096, 8192, MREMAP_MAYMOVE), EAGAIN);
    CHECK(!munlock(at, 4096));
    // Other privileges are kept, and the capability may be put into effect again.
    CHECK(row("CapEff:") == now.effective && row("CapPrm:") == now.permitted);
    now.effective |= BIT(CAP_IPC_LOCK);
    CHECK(!put(now) && !mlock(at, 16384));
}

static void lose_the_right_to_raise_limits(void) {
    limit_locked_memory(4096);
    struct rlimit more = {4096, 1 << 20};
    sets now = get();
    now.effective = BIT(CAP_IPC_LOCK);
    CHECK(!put(now));
    FAILS(setrlimit(RLIMIT_MEMLOCK, &more), EPERM);
    // A container may lack this capability.
    now.effective = BIT(CAP_SYS_RESOURCE) & now.permitted;
    CHECK(!put(now) && (!now.effective || !setrlimit(RLIMIT_MEMLOCK, &more)));
}

static void try_to_gain(void) {
    sets all = get(), few = {BIT(CAP_IPC_LOCK), BIT(CAP_IPC_LOCK) | BIT(CAP_CHOWN), 0};
    CHECK(!put(few));
    FAILS(put(all), EPERM);
    sets not_permitted = {BIT(CAP_SYS_ADMIN), few.permitted, 0};
    FAILS(put(not_permitted), EPERM);
    sets offered = {few.effective, few.permitted, BIT(CAP_CHOWN)};
    CHECK(!put(offered) && get().inheritable == BIT(CAP_CHOWN));
    struct __user_cap_header_struct other = {_LINUX_CAPABILITY_VERSION_3, getppid()};
    struct __user_cap_data_struct data[2] = {{0}};
    FAILS(syscall(SYS_capset, &other, data), EPERM);
    CHECK(get().permitted == few.permitted);
}

static void change_the_user(void) {
    sets all = get();
    CHECK(!seteuid(65534) && get().effective == 0 && get().permitted == all.permitted);
    CHECK(!seteuid(0) && get().effective == all.permitted);
    CHECK(!prctl(PR_SET_KEEPCAPS, 1) && prctl(PR_GET_KEEPCAPS) == 1);
    CHECK(!setresuid(65534, 65534, 65534) && get().effective == 0 && get().permitted == all.permitted);
    sets some = {BIT(CAP_IPC_LOCK), BIT(CAP_IPC_LOCK), 0};
    CHECK(!put(some) && get().effective == some.effective);
}

static void leave_the_superuser(void) {
    CHECK(!setresuid(65534, 65534, 65534) && get().effective == 0 && get().permitted == 0);
    sets some = {BIT(CAP_IPC_LOCK), BIT(CAP_IPC_LOCK), 0};
    FAILS(put(some), EPERM);
}

static void execute(const char *word) {
    execl("/proc/self/exe", "capabilities", word, NULL);
    _exit(2);
}

static void execute_as_superuser(void) {
    sets none = {0, 0, 0};
    CHECK(!put(none));
    execute("all");
}

static void execute_as_other(void) {
    CHECK(!prctl(PR_SET_KEEPCAPS, 1) && !setresuid(65534, 65534, 65534) && get().permitted);
    execute("none");
}

static void one_capability_can_be_dropped(void) { in_child(lose_the_right_to_lock); }
static void limits_are_raised_by_their_capability(void) { in_child(lose_the_right_to_raise_limits); }
static void no_capability_is_gained(void) { in_child(try_to_gain); }
static void capabilities_follow_the_user(void) {
    in_child(change_the_user);
    in_child(leave_the_superuser);
}
static void exec_gives_the_superuser_all(void) {
    in_child(execute_as_superuser);
    in_child(execute_as_other);
}

int main(int argc, char **argv) {
    // The bounding set of a container may lack capabilities.
    if (argc == 2 && !strcmp(argv[1], "all")) return get().effective != row("CapBnd:");
    if (argc == 2) return get().effective != 0 || get().permitted != 0 || prctl(PR_GET_KEEPCAPS);
    PART(one_capability_can_be_dropped);
    PART(limits_are_raised_by_their_capability);
    PART(no_capability_is_gained);
    PART(capabilities_follow_the_user);
    PART(exec_gives_the_superuser_all);
    return 0;
}
