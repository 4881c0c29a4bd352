// Signals: information of faults, stacks of handlers, masks, interrupted and restarted calls, timers,
// signalfd. Checks `kernel/src/process/signal`, `signalfd.rs` and `fault.rs` beside it; `jobs.c` has the rare
// cases. The handlers store the information of a signal in `said` and count signals in `came`.
#define _GNU_SOURCE
#include "check.h"
#include <pthread.h>
#include <setjmp.h>
#include <signal.h>
#include <fcntl.h>
#include <poll.h>
#include <sys/epoll.h>
#include <sys/mman.h>
#include <sys/resource.h>
#include <sys/signalfd.h>
#include <sys/syscall.h>
#include <sys/time.h>
#include <sys/wait.h>
#include <time.h>
#include <ucontext.h>

static sigjmp_buf back;
static volatile siginfo_t said;
static volatile int came;

static void leave(int number, siginfo_t *info, void *context) {
    (void)number, (void)context;
    said = *info;
    siglongjmp(back, 1);
}

static void note(int number, siginfo_t *info, void *context) {
    (void)number, (void)context;
    said = *info;
    came++;
}

static void handle(int number, void (*handler)(int, siginfo_t *, void *), int flags) {
    struct sigaction action = {.sa_sigaction = handler, .sa_flags = SA_SIGINFO | flags};
    CHECK(!sigaction(number, &action, 0));
}

static void faults(char *at, int number, int code) {
    if (!sigsetjmp(back, 1)) {
        *(volatile char *)at = 1;
        CHECK(!"the store should have failed");
    }
    CHECK(said.si_signo == number);
    CHECK(said.si_code == code);
    CHECK(said.si_addr == at);
}

static void fault_signal_reports_address_and_cause(void) {
    handle(SIGSEGV, leave, 0);
    handle(SIGBUS, leave, 0);
    char *at = mmap(0, 8192, PROT_READ, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    CHECK(at != MAP_FAILED);
    faults(at + 5, SIGSEGV, SEGV_ACCERR);
    CHECK(!munmap(at, 8192));
    faults(at + 5, SIGSEGV, SEGV_MAPERR);
    int file = memfd_create("short", 0);
    CHECK(file >= 0 && !ftruncate(file, 100));
    at = mmap(0, 8192, PROT_READ | PROT_WRITE, MAP_SHARED, file, 0);
    CHECK(at != MAP_FAILED);
    at[4095] = 1;
    faults(at + 4096, SIGBUS, BUS_ADRERR);
    munmap(at, 8192);
    close(file);
}

static void repair(int number, siginfo_t *info, void *context) {
    (void)number;
    ucontext_t *registers = context;
    CHECK(registers->uc_mcontext.gregs[REG_ERR] == 6 || registers->uc_mcontext.gregs[REG_ERR] == 7);
    CHECK(!mprotect((void *)((long)info->si_addr & -4096), 4096, PROT_READ | PROT_WRITE));
    came++;
}

static void handler_can_repair_a_fault(void) {
    handle(SIGSEGV, repair, 0);
    char *at = mmap(0, 64 * 4096, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    came = 0;
    for (int n = 0; n < 64; n++) at[n * 4096] = (char)n;
    CHECK(came == 64);
    for (int n = 0; n < 64; n++) CHECK(at[n * 4096] == n);
    munmap(at, 64 * 4096);
}

static int deeper(int n) {
    volatile char room[4096];
    room[0] = (char)n;
    return n < 1 << 20 ? deeper(n + 1) + room[0] : 0;
}

static void stack_overflow_is_handled_on_another_stack(void) {
    struct rlimit limit = {1 << 20, 8 << 20};
    pid_t child = fork();
    if (!child) {
        CHECK(!setrlimit(RLIMIT_STACK, &limit));
        stack_t other = {.ss_sp = malloc(1 << 16), .ss_size = 1 << 16};
        CHECK(!sigaltstack(&other, 0));
        handle(SIGSEGV, leave, SA_ONSTACK);
        if (!sigsetjmp(back, 1)) deeper(0);
        CHECK(said.si_signo == SIGSEGV);
        _exit(0);
    }
    int status;
    CHECK(waitpid(child, &status, 0) == child && status == 0);
}

static void exceptions_raise_their_signals(void) {
    handle(SIGFPE, leave, 0);
    handle(SIGILL, leave, 0);
    handle(SIGTRAP, note, 0);
    if (!sigsetjmp(back, 1)) __asm__ volatile("xor %%edx, %%edx\n div %%edx" ::: "eax", "edx");
    CHECK(said.si_signo == SIGFPE && said.si_code == FPE_INTDIV);
    if (!sigsetjmp(back, 1)) __asm__ volatile("ud2");
    CHECK(said.si_signo == SIGILL);
    came = 0;
    __asm__ volatile("int3");
    CHECK(came == 1 && said.si_signo == SIGTRAP);
    handle(SIGSEGV, leave, 0);
    if (!sigsetjmp(back, 1)) __asm__ volatile("hlt");
    CHECK(said.si_signo == SIGSEGV && said.si_code == SI_KERNEL);
}

static void blocked_signals_stay_pending(void) {
    handle(SIGUSR1, note, 0);
    sigset_t set, pending;
    sigemptyset(&set);
    sigaddset(&set, SIGUSR1);
    came = 0;
    CHECK(!sigprocmask(SIG_BLOCK, &set, 0));
    CHECK(!raise(SIGUSR1) && !raise(SIGUSR1));
    CHECK(came == 0 && !sigpending(&pending) && sigismember(&pending, SIGUSR1));
    CHECK(!sigprocmask(SIG_UNBLOCK, &set, 0));
    CHECK(came == 1);
    CHECK(!sigprocmask(SIG_BLOCK, &set, 0));
    union sigval value = {.sival_int = 77};
    CHECK(!sigqueue(getpid(), SIGUSR1, value));
    siginfo_t info;
    CHECK(sigwaitinfo(&set, &info) == SIGUSR1 && info.si_value.sival_int == 77);
    CHECK(info.si_pid == getpid());
    CHECK(!sigprocmask(SIG_UNBLOCK, &set, 0));
}

static int writing_end;

static void *disturb(void *whom) {
    usleep(20000);
    CHECK(!pthread_kill(*(pthread_t *)whom, SIGUSR2));
    usleep(20000);
    CHECK(write(writing_end, "x", 1) == 1);
    return 0;
}

static void read_is_interrupted_or_restarted(void) {
    for (int again = 0; again < 2; again++) {
        int ends[2];
        char byte;
        pthread_t itself = pthread_self(), other;
        handle(SIGUSR2, note, again ? SA_RESTART : 0);
        CHECK(!pipe(ends));
        came = 0;
        writing_end = ends[1];
        CHECK(!pthread_create(&other, 0, disturb, &itself));
        ssize_t got = read(ends[0], &byte, 1);
        CHECK(came == 1);
        CHECK(again ? got == 1 : got == -1);
        CHECK(!pthread_join(other, 0));
        close(ends[0]);
        close(ends[1]);
    }
}

static void timers_send_signals(void) {
    handle(SIGALRM, note, SA_RESTART);
    came = 0;
    struct itimerval often = {{0, 5000}, {0, 5000}}, never = {{0, 0}, {0, 0}};
    CHECK(!setitimer(ITIMER_REAL, &often, 0));
    while (came < 5) {}
    CHECK(!setitimer(ITIMER_REAL, &never, 0));
    struct timespec nap = {0, 30000000}, before, after;
    CHECK(!clock_gettime(CLOCK_MONOTONIC, &before));
    CHECK(!nanosleep(&nap, 0));
    CHECK(!clock_gettime(CLOCK_MONOTONIC, &after));
    long took = (after.tv_sec - before.tv_sec) * 1000000000 + after.tv_nsec - before.tv_nsec;
    CHECK(took >= 30000000);
}

static void sigchld_reports_an_ended_child(void) {
    handle(SIGCHLD, note, 0);
    sigset_t set, old;
    sigemptyset(&set);
    sigaddset(&set, SIGCHLD);
    CHECK(!sigprocmask(SIG_BLOCK, &set, &old));
    came = 0;
    pid_t child = fork();
    if (!child) _exit(6);
    while (!came) sigsuspend(&old);
    CHECK(said.si_pid == child && said.si_code == CLD_EXITED && said.si_status == 6);
    CHECK(waitpid(child, 0, 0) == child);
    CHECK(!sigprocmask(SIG_SETMASK, &old, 0));
}

static void *send_soon(void *to) {
    usleep(20000);
    CHECK(!pthread_kill(*(pthread_t *)to, SIGUSR1));
    return 0;
}

static void signals_are_read_from_a_file(void) {
    sigset_t set, old;
    struct signalfd_siginfo got[4];
    sigemptyset(&set);
    sigaddset(&set, SIGUSR1);
    sigaddset(&set, SIGRTMIN);
    sigaddset(&set, SIGKILL);
    CHECK(!sigprocmask(SIG_BLOCK, &set, &old));
    int file = signalfd(-1, &set, SFD_NONBLOCK | SFD_CLOEXEC);
    CHECK(file >= 0 && fcntl(file, F_GETFD) == FD_CLOEXEC && fcntl(file, F_GETFL) & O_NONBLOCK);
    struct pollfd look = {file, POLLIN, 0};
    CHECK(poll(&look, 1, 0) == 0);
    CHECK(read(file, got, sizeof got) == -1 && errno == EAGAIN);
    CHECK(write(file, got, sizeof got) == -1 && errno == EINVAL);
    CHECK(!kill(getpid(), SIGUSR1));
    CHECK(!sigqueue(getpid(), SIGRTMIN, (union sigval){.sival_int = 7}));
    CHECK(!sigqueue(getpid(), SIGRTMIN, (union sigval){.sival_int = 8}));
    CHECK(poll(&look, 1, 0) == 1 && look.revents == POLLIN);
    CHECK(read(file, got, 127) == -1 && errno == EINVAL);
    memset(got, 1, sizeof got);
    CHECK(read(file, got, sizeof got) == 3 * 128);
    CHECK(got[0].ssi_signo == SIGUSR1 && got[0].ssi_code == SI_USER && got[0].ssi_int == 0);
    CHECK(got[0].ssi_pid == (unsigned)getpid() && got[0].ssi_uid == getuid());
    CHECK(got[1].ssi_signo == (unsigned)SIGRTMIN && got[1].ssi_code == SI_QUEUE && got[1].ssi_int == 7);
    CHECK(got[2].ssi_int == 8 && got[2].ssi_ptr % (1l << 32) == 8 && got[2].ssi_addr == 0);

    // A child reads its own signals from the file of its parent.
    CHECK(!kill(getpid(), SIGUSR1));
    pid_t child = fork();
    if (!child) {
        CHECK(read(file, got, sizeof got) == -1 && errno == EAGAIN);
        CHECK(!raise(SIGRTMIN));
        CHECK(read(file, got, sizeof got) == 128 && got[0].ssi_pid == (unsigned)getpid());
        _exit(0);
    }
    int status;
    CHECK(waitpid(child, &status, 0) == child && status == 0);
    CHECK(read(file, got, sizeof got) == 128 && got[0].ssi_signo == SIGUSR1);

    // A read sleeps until a signal comes; epoll reports each signal.
    CHECK(!fcntl(file, F_SETFL, 0));
    pthread_t itself = pthread_self(), other;
    CHECK(!pthread_create(&other, 0, send_soon, &itself));
    CHECK(read(file, got, sizeof got) == 128 && got[0].ssi_code == SI_TKILL);
    CHECK(!pthread_join(other, 0));
    int events = epoll_create1(0);
    struct epoll_event event = {.events = EPOLLIN | EPOLLET};
    CHECK(!epoll_ctl(events, EPOLL_CTL_ADD, file, &event));
    CHECK(!pthread_create(&other, 0, send_soon, &itself));
    CHECK(epoll_wait(events, &event, 1, -1) == 1 && event.events == EPOLLIN);
    CHECK(epoll_wait(events, &event, 1, 0) == 0);
    CHECK(!pthread_join(other, 0));
    close(events);

    // The set changes; a signal outside the set stays pending.
    sigdelset(&set, SIGUSR1);
    CHECK(signalfd(file, &set, 0) == file);
    CHECK(poll(&look, 1, 0) == 0);
    sigaddset(&set, SIGUSR1);
    CHECK(signalfd(file, &set, 0) == file);
    CHECK(poll(&look, 1, 0) == 1);
    CHECK(syscall(SYS_read, file, 8, sizeof got) == -1 && errno == EFAULT);
    CHECK(signalfd(0, &set, 0) == -1 && errno == EINVAL);
    CHECK(signalfd(999, &set, 0) == -1 && errno == EBADF);
    CHECK(signalfd(-1, &set, 1) == -1 && errno == EINVAL);
    CHECK(syscall(SYS_signalfd4, -1, &set, 4, 0) == -1 && errno == EINVAL);
    close(file);
    CHECK(!sigprocmask(SIG_SETMASK, &old, 0));
}

static volatile stack_t in_frame, reported;

static void note_stack(int signal, siginfo_t *info, void *context) {
    stack_t now;
    (void)signal, (void)info;
    CHECK(!sigaltstack(NULL, &now));
    in_frame = ((ucontext_t *)context)->uc_stack;
    reported = now;
}

static void *note_stack_in_a_thread(void *unused) {
    (void)unused;
    CHECK(!raise(SIGUSR1) && in_frame.ss_flags == SS_DISABLE && reported.ss_flags == SS_DISABLE);
    return NULL;
}

static void frame_has_the_flags_of_the_alternate_stack(void) {
    enum { DISARM = 1 << 31, SIZE = 65536 };
    static const int all[] = {0, SS_ONSTACK, SS_DISABLE, DISARM, DISARM | SS_ONSTACK, DISARM | SS_DISABLE};
    struct sigaction action = {.sa_sigaction = note_stack, .sa_flags = SA_SIGINFO | SA_ONSTACK}, before;
    char *memory = malloc(SIZE);
    pthread_t thread;
    CHECK(!sigaction(SIGUSR1, &action, &before));
    for (unsigned n = 0; n < sizeof all / sizeof *all; n++) {
        stack_t stack = {memory, all[n], SIZE}, now;
        CHECK(!sigaltstack(&stack, NULL) && !sigaltstack(NULL, &now));
        CHECK(now.ss_flags == (all[n] & ~SS_ONSTACK));
        CHECK(now.ss_size == (all[n] & SS_DISABLE ? 0 : SIZE));
        CHECK(!raise(SIGUSR1) && in_frame.ss_flags == all[n] && in_frame.ss_size == now.ss_size);
        // A disarmed stack is none while the handler runs, and is there again afterwards.
        int during = all[n] & (DISARM | SS_DISABLE) ? SS_DISABLE : SS_ONSTACK;
        CHECK((reported.ss_flags & ~DISARM) == during);
        CHECK(!sigaltstack(NULL, &now) && now.ss_flags == (all[n] & ~SS_ONSTACK));
        pthread_create(&thread, NULL, note_stack_in_a_thread, NULL);
        pthread_join(thread, NULL);
    }
    stack_t none = {.ss_flags = SS_DISABLE}, wrong = {memory, 4, SIZE};
    CHECK(sigaltstack(&wrong, NULL) == -1 && errno == EINVAL);
    CHECK(!sigaltstack(&none, NULL) && !sigaction(SIGUSR1, &before, NULL));
    free(memory);
}

int main(void) {
    PART(fault_signal_reports_address_and_cause);
    PART(handler_can_repair_a_fault);
    PART(stack_overflow_is_handled_on_another_stack);
    PART(exceptions_raise_their_signals);
    PART(blocked_signals_stay_pending);
    PART(read_is_interrupted_or_restarted);
    PART(timers_send_signals);
    PART(sigchld_reports_an_ended_child);
    PART(signals_are_read_from_a_file);
    PART(frame_has_the_flags_of_the_alternate_stack);
    return 0;
}
