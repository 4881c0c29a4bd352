// Rare cases of signals: flags of handlers, queues, sleeps, stops, timers, limits, threads that call exec.
// Also tests futexes and masks during a call, and prints how late a sleeping thread wakes while another
// process uses the CPU. Checks `kernel/src/process`; `signals.c` has the common cases of signals. Times are
// checked only roughly, because the host may have other load. A part about signals, futexes or sleeps belongs
// here; other rare cases belong in `corners.c`.
#define _GNU_SOURCE
#include "check.h"
#include <linux/futex.h>
#include <poll.h>
#include <pthread.h>
#include <sched.h>
#include <signal.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/resource.h>
#include <sys/syscall.h>
#include <sys/time.h>
#include <sys/wait.h>
#include <time.h>
#include <ucontext.h>

static volatile int came, depth, deepest, order[64];
static volatile siginfo_t said;
static char *itself;

static long now(void) {
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return t.tv_sec * 1000000000L + t.tv_nsec;
}

static void handle(int number, void (*handler)(int, siginfo_t *, void *), int flags) {
    struct sigaction action = {.sa_sigaction = handler, .sa_flags = SA_SIGINFO | flags};
    CHECK(!sigaction(number, &action, 0));
}

static void note(int number, siginfo_t *info, void *context) {
    (void)context;
    said = *info;
    if (came < 64) order[came] = number;
    came++;
}

static void again(int number, siginfo_t *info, void *context) {
    (void)info, (void)context;
    depth++;
    if (depth > deepest) deepest = depth;
    if (came++ == 0) raise(number);
    depth--;
}

static int ended(pid_t pid) {
    int status;
    CHECK(waitpid(pid, &status, 0) == pid);
    return status;
}

static void handler_flags_take_effect(void) {
    came = depth = deepest = 0;
    handle(SIGUSR1, again, 0);
    raise(SIGUSR1);
    CHECK(came == 2 && deepest == 1);
    came = depth = deepest = 0;
    handle(SIGUSR1, again, SA_NODEFER);
    raise(SIGUSR1);
    CHECK(came == 2 && deepest == 2);
    handle(SIGUSR1, note, SA_RESETHAND);
    raise(SIGUSR1);
    struct sigaction action;
    CHECK(!sigaction(SIGUSR1, 0, &action) && action.sa_handler == SIG_DFL);
}

static void real_time_signals_are_queued(void) {
    sigset_t set, old;
    sigemptyset(&set);
    for (int n = 0; n < 3; n++) sigaddset(&set, SIGRTMIN + n), handle(SIGRTMIN + n, note, 0);
    CHECK(!sigprocmask(SIG_BLOCK, &set, &old));
    came = 0;
    for (int n = 0; n < 9; n++) {
        union sigval value = {.sival_int = n};
        CHECK(!sigqueue(getpid(), SIGRTMIN + 2 - n % 3, value));
    }
    siginfo_t info;
    for (int n = 0; n < 3; n++) {
        CHECK(sigwaitinfo(&set, &info) == SIGRTMIN && info.si_value.sival_int == 2 + 3 * n);
        CHECK(info.si_code == SI_QUEUE && info.si_pid == getpid());
    }
    struct timespec none = {0, 0};
    CHECK(!sigprocmask(SIG_SETMASK, &old, 0));
    // The handlers nest in ascending order, so the lowest signal is handled last.
    CHECK(came == 6);
    CHECK(sigtimedwait(&set, &info, &none) == -1 && errno == EAGAIN);
}

// Beyond the limit a signal of kill is pending without information, and other real-time signals are refused.
static void limit_bounds_queued_signals(void) {
    pid_t child = fork();
    if (!child) {
        struct rlimit limit = {5, 5};
        union sigval value = {.sival_int = 1};
        sigset_t set;
        siginfo_t info;
        struct timespec none = {0, 0};
        int count = 0;
        sigemptyset(&set);
        for (int n = 0; n < 2; n++) sigaddset(&set, SIGRTMIN + n);
        // Linux counts the signals of each user.
        CHECK(!sigprocmask(SIG_BLOCK, &set, 0) && !setrlimit(RLIMIT_SIGPENDING, &limit) && !setuid(4321));
        for (int n = 0; n < 20; n++) CHECK(!kill(getpid(), SIGRTMIN));
        CHECK(sigqueue(getpid(), SIGRTMIN, value) == -1 && errno == EAGAIN);
        CHECK(!kill(getpid(), SIGRTMIN + 1) && !sigpending(&set) && sigismember(&set, SIGRTMIN + 1));
        while (sigtimedwait(&set, &info, &none) == SIGRTMIN) CHECK(count++ < 5 && info.si_pid == getpid());
        CHECK(count == 5 && info.si_signo == SIGRTMIN + 1 && info.si_code == SI_USER && info.si_pid == 0);
        CHECK(sigtimedwait(&set, &info, &none) == -1 && errno == EAGAIN);
        CHECK(!sigqueue(getpid(), SIGRTMIN, value) && sigtimedwait(&set, &info, &none) == SIGRTMIN);
        _exit(0);
    }
    CHECK(ended(child) == 0);
}

static volatile char *stack_of_handler;

static void where(int number, siginfo_t *info, void *context) {
    (void)info;
    char here;
    stack_of_handler = &here;
    stack_t now;
    CHECK(!sigaltstack(0, &now));
    ucontext_t *u = context;
    CHECK(number == SIGUSR1 ? now.ss_flags == SS_ONSTACK : now.ss_flags == SS_DISABLE);
    CHECK(u->uc_stack.ss_size == 1 << 16);
    if (number == SIGUSR1) CHECK(sigaltstack(&now, 0) == -1);
    came++;
}

static void handler_runs_on_the_alternate_stack(void) {
    char *room = malloc(1 << 16);
    stack_t other = {.ss_sp = room, .ss_size = 1 << 16}, old;
    CHECK(!sigaltstack(&other, 0));
    handle(SIGUSR1, where, SA_ONSTACK);
    came = 0;
    raise(SIGUSR1);
    CHECK(came == 1 && stack_of_handler > room && stack_of_handler < room + (1 << 16));
    other.ss_flags = 1U << 31; // SS_AUTODISARM
    CHECK(!sigaltstack(&other, 0));
    handle(SIGUSR2, where, SA_ONSTACK);
    raise(SIGUSR2);
    CHECK(came == 2 && stack_of_handler > room && stack_of_handler < room + (1 << 16));
    CHECK(!sigaltstack(0, &old) && old.ss_sp == room);
    other.ss_size = 100;
    other.ss_flags = 0;
    CHECK(sigaltstack(&other, 0) == -1 && errno == ENOMEM);
    other.ss_flags = SS_DISABLE;
    CHECK(!sigaltstack(&other, 0));
    free(room);
}

static void change(int number, siginfo_t *info, void *context) {
    (void)number, (void)info;
    ucontext_t *u = context;
    u->uc_mcontext.gregs[REG_R12] = 4711;
    u->uc_mcontext.gregs[REG_RIP] += 2; // Skips ud2.
    ((float *)u->uc_mcontext.fpregs->_xmm)[4 * 8] = 2.5f;
}

static void handler_can_change_registers(void) {
    handle(SIGILL, change, 0);
    register long value __asm__("r12") = 1;
    register float vector __asm__("xmm8") = 1;
    __asm__ volatile("ud2" : "+r"(value), "+x"(vector));
    CHECK(value == 4711 && vector == 2.5f);
}

static void later(pid_t pid, int number, long us) {
    if (!fork()) {
        usleep((useconds_t)us);
        kill(pid, number);
        _exit(0);
    }
}

static void sleep_ends_at_a_handler_and_survives_a_stop(void) {
    struct timespec nap = {0, 200000000}, left = {9, 9};
    handle(SIGUSR1, note, SA_RESTART);
    signal(SIGCHLD, SIG_DFL);
    later(getpid(), SIGUSR1, 50000);
    CHECK(nanosleep(&nap, &left) == -1 && errno == EINTR);
    CHECK(left.tv_sec == 0 && left.tv_nsec > 0 && left.tv_nsec < 160000000);
    CHECK(wait(0) > 0);
    // A stop does not end the sleep, and the time of the stop counts as slept.
    pid_t child = fork();
    if (!child) {
        long begin = now();
        nap.tv_nsec = 300000000;
        CHECK(!nanosleep(&nap, 0));
        long took = now() - begin;
        CHECK(took >= 300000000 && took < 900000000);
        begin = now();
        CHECK(poll(0, 0, 300) == 0);
        took = now() - begin;
        CHECK(took >= 300000000 && took < 900000000);
        _exit(0);
    }
    for (int n = 0; n < 4; n++) {
        usleep(70000);
        kill(child, SIGSTOP);
        int status;
        CHECK(waitpid(child, &status, WUNTRACED) == child && WIFSTOPPED(status));
        CHECK(WSTOPSIG(status) == SIGSTOP);
        usleep(40000);
        kill(child, SIGCONT);
        CHECK(waitpid(child, &status, WCONTINUED) == child && WIFCONTINUED(status));
    }
    CHECK(ended(child) == 0);
}

static void parent_is_notified_of_stops(void) {
    handle(SIGCHLD, note, 0);
    came = 0;
    pid_t child = fork();
    if (!child) {
        raise(SIGTSTP);
        raise(SIGKILL);
    }
    while (came < 1) usleep(1000);
    CHECK(said.si_code == CLD_STOPPED && said.si_status == SIGTSTP && said.si_pid == child);
    kill(child, SIGCONT);
    siginfo_t info;
    while (waitid(P_PID, child, &info, WEXITED | WNOWAIT) == -1) CHECK(errno == EINTR);
    CHECK(info.si_code == CLD_KILLED && info.si_status == SIGKILL);
    CHECK(ended(child) == SIGKILL);
    signal(SIGCHLD, SIG_IGN);
    if (!fork()) _exit(3);
    CHECK(wait(0) == -1 && errno == ECHILD);
    struct sigaction action = {.sa_handler = SIG_DFL, .sa_flags = SA_NOCLDWAIT};
    CHECK(!sigaction(SIGCHLD, &action, 0));
    if (!fork()) _exit(3);
    CHECK(wait(0) == -1 && errno == ECHILD);
    signal(SIGCHLD, SIG_DFL);
}

static void posix_timer_sends_its_signal(void) {
    timer_t timer;
    struct sigevent event = {.sigev_notify = SIGEV_SIGNAL, .sigev_signo = SIGRTMIN};
    event.sigev_value.sival_int = 99;
    handle(SIGRTMIN, note, 0);
    came = 0;
    CHECK(!timer_create(CLOCK_MONOTONIC, &event, &timer));
    struct itimerspec often = {{0, 2000000}, {0, 2000000}}, state;
    CHECK(!timer_settime(timer, 0, &often, 0));
    while (came < 5) pause();
    CHECK(said.si_code == SI_TIMER && said.si_value.sival_int == 99);
    sigset_t set;
    sigemptyset(&set);
    sigaddset(&set, SIGRTMIN);
    sigprocmask(SIG_BLOCK, &set, 0);
    usleep(50000);
    came = 0;
    sigprocmask(SIG_UNBLOCK, &set, 0);
    CHECK(came >= 1 && (came > 1 || timer_getoverrun(timer) >= 5));
    CHECK(!timer_gettime(timer, &state) && state.it_interval.tv_nsec == 2000000);
    CHECK(!timer_delete(timer) && timer_delete(timer) == -1);
    handle(SIGALRM, note, 0);
    CHECK(alarm(5) == 0 && alarm(0) == 5);
}

static void *execute(void *unused) {
    (void)unused;
    char text[20];
    sprintf(text, "%d", getpid());
    execl(itself, itself, "number", text, NULL);
    return 0;
}

static void any_thread_can_exec(void) {
    pid_t child = fork();
    if (!child) {
        pthread_t thread;
        pthread_create(&thread, 0, execute, 0);
        pause();
    }
    CHECK(ended(child) == 0);
}

static long microseconds(struct timeval time) { return time.tv_sec * 1000000L + time.tv_usec; }

static void limits_are_enforced_and_inherited(void) {
    pid_t child = fork();
    if (!child) {
        struct rlimit limit = {64 << 20, 64 << 20}, seen;
        CHECK(!setrlimit(RLIMIT_AS, &limit) && !getrlimit(RLIMIT_AS, &seen) && seen.rlim_cur == 64 << 20);
        CHECK(mmap(0, 128 << 20, PROT_READ, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0) == MAP_FAILED && errno == ENOMEM);
        if (!fork()) {
            CHECK(!getrlimit(RLIMIT_AS, &seen) && seen.rlim_max == 64 << 20);
            _exit(mmap(0, 128 << 20, PROT_READ, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0) != MAP_FAILED);
        }
        int status;
        CHECK(wait(&status) > 0 && status == 0);
        CHECK(!setresuid(1000, 1000, 1000));
        limit.rlim_max = 1 << 30;
        CHECK(setrlimit(RLIMIT_AS, &limit) == -1 && errno == EPERM);
        CHECK(getuid() == 1000 && geteuid() == 1000);
        _exit(0);
    }
    CHECK(ended(child) == 0);
    child = fork();
    if (!child) {
        for (clock_t begin = clock(); clock() - begin < CLOCKS_PER_SEC / 10;) {}
        _exit(0);
    }
    CHECK(ended(child) == 0);
    struct rusage usage;
    CHECK(!getrusage(RUSAGE_CHILDREN, &usage) && usage.ru_minflt > 0);
    // clock() is the sum of both times.
    CHECK(microseconds(usage.ru_utime) + microseconds(usage.ru_stime) >= 100000);
    CHECK(!getrusage(RUSAGE_SELF, &usage) && usage.ru_maxrss > 100);
}

static void process_group_can_be_signalled_and_awaited(void) {
    pid_t child = fork();
    if (!child) {
        CHECK(setsid() == getpid() && getsid(0) == getpid() && getpgrp() == getpid());
        CHECK(setpgid(0, 0) == -1 && errno == EPERM);
        pid_t first = fork();
        if (!first) pause();
        CHECK(!setpgid(first, 0) && getpgid(first) == first);
        pid_t second = fork();
        if (!second) pause();
        CHECK(!setpgid(second, first));
        CHECK(!kill(-first, SIGTERM));
        int status;
        CHECK(waitpid(-first, &status, 0) > 0 && WTERMSIG(status) == SIGTERM);
        CHECK(waitpid(-first, &status, 0) > 0 && WTERMSIG(status) == SIGTERM);
        CHECK(waitpid(-first, &status, 0) == -1 && errno == ECHILD);
        _exit(0);
    }
    CHECK(ended(child) == 0);
}

// Makes a process of the same kind again and again, and sometimes waits for one.
static void multiply(void) {
    for (long n = 0; n < 200; n++) {
        if (fork() < 0) usleep(1000);
        while (n % 4 == 3 && waitpid(-1, 0, WNOHANG) > 0) continue;
    }
    for (;;) pause();
}

// No process escapes a signal to its group because it is being made. The processes of each round become
// children of the calling process, which waits for all of them.
static void signal_to_a_group_reaches_processes_that_are_being_made(void) {
    struct rlimit few = {60, 60};
    CHECK(!prctl(PR_SET_CHILD_SUBREAPER, 1));
    for (int round = 0; round < 60; round++) {
        int ready[2];
        char byte;
        CHECK(!pipe(ready));
        pid_t leader = fork();
        CHECK(leader >= 0);
        if (leader == 0) {
            CHECK(!setpgid(0, 0));
            // Another user than root, because the limit does not bind root.
            CHECK(!setrlimit(RLIMIT_NPROC, &few) && !setuid(12345));
            CHECK(write(ready[1], "", 1) == 1);
            multiply();
        }
        CHECK(read(ready[0], &byte, 1) == 1);
        usleep(round * 100);
        CHECK(!kill(-leader, SIGKILL));
        while (waitpid(-1, 0, 0) > 0) continue;
        CHECK(errno == ECHILD);
        close(ready[0]);
        close(ready[1]);
    }
    CHECK(!prctl(PR_SET_CHILD_SUBREAPER, 0));
}

static int words[2];
static volatile int awake;

static void *sleeper(void *unused) {
    (void)unused;
    long answer = syscall(SYS_futex, &words[0], FUTEX_WAIT_PRIVATE, 0, 0, 0, 0);
    CHECK(answer == 0);
    __sync_fetch_and_add(&awake, 1);
    return 0;
}

static void futexes_are_requeued(void) {
    pthread_t threads[5];
    for (int n = 0; n < 5; n++) CHECK(!pthread_create(&threads[n], 0, sleeper, 0));
    usleep(100000);
    long moved = syscall(SYS_futex, &words[0], FUTEX_CMP_REQUEUE_PRIVATE, 1, 10L, &words[1], 0);
    CHECK(moved == 5);
    usleep(50000);
    CHECK(awake == 1);
    // The call counts the sleepers that it wakes and moves, and an operation needs an aligned word.
    CHECK(syscall(SYS_futex, &words[1], FUTEX_REQUEUE_PRIVATE, 0, 3L, &words[0], 0) == 3);
    CHECK(syscall(SYS_futex, &words[0], FUTEX_REQUEUE_PRIVATE, 0, 3L, &words[1], 0) == 3);
    void *odd = (char *)words + 1;
    CHECK(syscall(SYS_futex, odd, FUTEX_REQUEUE_PRIVATE, 0, 3L, &words[1], 0) == -1 && errno == EINVAL);
    CHECK(syscall(SYS_futex, odd, FUTEX_WAKE_OP_PRIVATE, 0, 0L, &words[1], 0) == -1 && errno == EINVAL);
    void *head;
    size_t bytes;
    pid_t thread = 0;
    for (pid_t tid = getpid() + 1; !thread; tid++) thread = syscall(SYS_tgkill, getpid(), tid, 0) ? 0 : tid;
    CHECK(!syscall(SYS_get_robust_list, thread, &head, &bytes) && head && bytes == 24);
    CHECK(syscall(SYS_futex, &words[0], FUTEX_WAKE_PRIVATE, 10, 0, 0, 0) == 0);
    CHECK(syscall(SYS_futex, &words[1], FUTEX_WAKE_PRIVATE, 10, 0, 0, 0) == 4);
    for (int n = 0; n < 5; n++) CHECK(!pthread_join(threads[n], 0));
}

// futex_waitv, with private words of 32 bits.
struct wait_word { unsigned long value, at; unsigned flags, reserved; };
static int sleeps_on[128];

static void *wake_third(void *unused) {
    (void)unused;
    while (syscall(SYS_futex, &sleeps_on[3], FUTEX_WAKE_PRIVATE, 1, 0, 0, 0) == 0) usleep(1000);
    return 0;
}

static void *wait_for_two(void *unused) {
    (void)unused;
    struct wait_word two[2] = {{0, (long)&sleeps_on[5], 2 | 128, 0}, {0, (long)&sleeps_on[6], 2 | 128, 0}};
    CHECK(syscall(449, two, 2, 0, 0, 0) == 0);
    return 0;
}

static void futex_waitv_waits_for_several_words(void) {
    struct wait_word many[129];
    for (int n = 0; n < 129; n++) many[n] = (struct wait_word){0, (long)&sleeps_on[n % 128], 2 | 128, 0};
    struct timespec end = {now() / 1000000000, 0};
    CHECK(syscall(449, many, 128, 0, &end, CLOCK_MONOTONIC) == -1 && errno == ETIMEDOUT);
    CHECK(syscall(449, many, 129, 0, 0, 0) == -1 && errno == EINVAL);
    CHECK(syscall(449, many, 1, 1, 0, 0) == -1 && errno == EINVAL);
    CHECK(syscall(449, many, 1, 0, &end, 99) == -1 && errno == EINVAL);
    pthread_t waker;
    CHECK(!pthread_create(&waker, 0, wake_third, 0));
    CHECK(syscall(449, many, 128, 0, 0, 0) == 3);
    CHECK(!pthread_join(waker, 0));
    // A thread that sleeps on several words can also be requeued.
    CHECK(!pthread_create(&waker, 0, wait_for_two, 0));
    while (syscall(SYS_futex, &sleeps_on[5], FUTEX_CMP_REQUEUE_PRIVATE, 0, 1L, &words[1], 0) == 0) usleep(1000);
    syscall(SYS_futex, &words[1], FUTEX_WAKE_PRIVATE, 1, 0, 0, 0);
    CHECK(!pthread_join(waker, 0));
    // The thread has left all lists.
    CHECK(syscall(SYS_futex, &sleeps_on[0], FUTEX_WAKE_PRIVATE, 1, 0, 0, 0) == 0);
    many[1].value = 1;
    CHECK(syscall(449, many, 2, 0, 0, 0) == -1 && errno == EAGAIN);
    many[1].flags = 1;
    CHECK(syscall(449, many, 2, 0, 0, 0) == -1 && errno == EINVAL);
    many[0].at = 0;
    CHECK(syscall(449, many, 1, 0, 0, 0) == -1 && errno == EFAULT);
    CHECK(syscall(SYS_futex, 8, FUTEX_WAKE, 1, 0, 0, 0) == -1 && errno == EFAULT);
    CHECK(syscall(SYS_futex, words, FUTEX_WAKE | FUTEX_CLOCK_REALTIME, 1, 0, 0, 0) == -1 && errno == ENOSYS);
}

static void mask_of_a_call_ends_with_the_call(void) {
    sigset_t blocked, none, seen;
    sigemptyset(&none);
    sigemptyset(&blocked);
    sigaddset(&blocked, SIGUSR1);
    handle(SIGUSR1, note, 0);
    CHECK(!sigprocmask(SIG_BLOCK, &blocked, 0));
    came = 0;
    later(getpid(), SIGUSR1, 30000);
    CHECK(ppoll(0, 0, 0, &none) == -1 && errno == EINTR && came == 1);
    CHECK(!sigprocmask(SIG_BLOCK, 0, &seen) && sigismember(&seen, SIGUSR1));
    raise(SIGUSR1);
    CHECK(sigsuspend(&none) == -1 && came == 2);
    CHECK(!sigprocmask(SIG_BLOCK, 0, &seen) && sigismember(&seen, SIGUSR1));
    CHECK(!sigprocmask(SIG_UNBLOCK, &blocked, 0) && came == 2);
    CHECK(wait(0) > 0);
}

static void write_to_a_broken_pipe_raises_sigpipe(void) {
    int ends[2];
    CHECK(!pipe(ends));
    close(ends[0]);
    handle(SIGPIPE, note, 0);
    came = 0;
    CHECK(write(ends[1], "x", 1) == -1 && errno == EPIPE && came == 1);
    close(ends[1]);
}

static void sleeper_wakes_beside_a_busy_process(void) {
    cpu_set_t one, seen;
    CPU_ZERO(&one);
    CPU_SET(0, &one);
    pid_t busy = fork();
    if (!busy) {
        CHECK(!sched_setaffinity(0, sizeof one, &one));
        for (;;) {}
    }
    CHECK(!sched_setaffinity(0, sizeof one, &one));
    CHECK(!sched_getaffinity(busy, sizeof seen, &seen));
    long worst = 0;
    for (int n = 0; n < 50; n++) {
        long begin = now();
        usleep(3000);
        long late = now() - begin - 3000000;
        if (late > worst) worst = late;
    }
    printf("worst %ld us late beside a busy process\n", worst / 1000);
    kill(busy, SIGKILL);
    CHECK(ended(busy) == SIGKILL);
}

int main(int argc, char **argv) {
    itself = argv[0];
    if (argc > 2 && !strcmp(argv[1], "number")) return getpid() == atoi(argv[2]) && gettid() == getpid() ? 0 : 1;
    PART(handler_flags_take_effect);
    PART(real_time_signals_are_queued);
    PART(limit_bounds_queued_signals);
    PART(handler_runs_on_the_alternate_stack);
    PART(handler_can_change_registers);
    PART(sleep_ends_at_a_handler_and_survives_a_stop);
    PART(parent_is_notified_of_stops);
    PART(posix_timer_sends_its_signal);
    PART(any_thread_can_exec);
    PART(limits_are_enforced_and_inherited);
    PART(process_group_can_be_signalled_and_awaited);
    PART(signal_to_a_group_reaches_processes_that_are_being_made);
    PART(futexes_are_requeued);
    PART(futex_waitv_waits_for_several_words);
    PART(mask_of_a_call_ends_with_the_call);
    PART(write_to_a_broken_pipe_raises_sigpipe);
    PART(sleeper_wakes_beside_a_busy_process);
    return 0;
}
