// A tracer and its tracee: stops by signals, calls and steps, registers, memory, exec, children and threads
// of the tracee, and the end. Checks `kernel/src/process/trace.rs` and `kernel/src/calls/ptrace.rs`. A part
// makes a tracee with `traced`, waits for its stops with `next_stop`, and checks its exit status with
// `ends_with`.
#define _GNU_SOURCE
#include "check.h"
#include <pthread.h>
#include <signal.h>
#include <stddef.h>
#include <sys/ptrace.h>
#include <sys/syscall.h>
#include <sys/uio.h>
#include <sys/user.h>
#include <sys/wait.h>
#include <ucontext.h>

static volatile long word = 5;
static volatile int handled;

static void handler(int signal) { handled = signal; }

static int next_stop(pid_t child) {
    int status;
    CHECK(waitpid(child, &status, 0) == child && WIFSTOPPED(status));
    return status >> 8;
}

// Returns the next stop. Skips stops by SIGCHLD, because the tracee's child may end at any time.
static int next_event(pid_t child) {
    int stop;
    while ((stop = next_stop(child)) == SIGCHLD) CHECK(ptrace(PTRACE_CONT, child, 0, 0) == 0);
    return stop;
}

static void ends_with(pid_t child, int code) {
    int status;
    CHECK(waitpid(child, &status, 0) == child && WIFEXITED(status) && WEXITSTATUS(status) == code);
}

static pid_t traced(void (*run)(void)) {
    pid_t child = fork();
    CHECK(child >= 0);
    if (child == 0) {
        CHECK(ptrace(PTRACE_TRACEME, 0, 0, 0) == 0);
        CHECK(ptrace(PTRACE_TRACEME, 0, 0, 0) == -1 && errno == EPERM);
        raise(SIGSTOP);
        run();
        _exit(77);
    }
    CHECK(next_stop(child) == SIGSTOP);
    return child;
}

static void raise_two(void) {
    signal(SIGUSR2, handler);
    raise(SIGUSR1);
    raise(SIGUSR2);
    _exit(handled == SIGUSR2 && word == 6 ? 3 : 4);
}

static void tracer_decides_about_signals(void) {
    pid_t child = traced(raise_two);
    siginfo_t info;
    errno = 0;
    CHECK(ptrace(PTRACE_PEEKDATA, child, &word, 0) == 5 && errno == 0);
    CHECK(ptrace(PTRACE_POKEDATA, child, &word, 6) == 0 && word == 5);
    CHECK(ptrace(PTRACE_PEEKDATA, child, 16, 0) == -1 && errno == EIO);
    CHECK(ptrace(PTRACE_CONT, child, 0, 65) == -1 && errno == EIO);
    CHECK(ptrace(PTRACE_CONT, child, 0, 0) == 0 && next_stop(child) == SIGUSR1);
    CHECK(ptrace(PTRACE_GETSIGINFO, child, 0, &info) == 0 && info.si_signo == SIGUSR1);
    CHECK(ptrace(PTRACE_CONT, child, 0, 0) == 0 && next_stop(child) == SIGUSR2);
    CHECK(ptrace(PTRACE_CONT, child, 0, SIGUSR2) == 0);
    ends_with(child, 3);
    CHECK(ptrace(PTRACE_CONT, child, 0, 0) == -1 && errno == ESRCH);
}

static void ask_parent(void) { _exit(syscall(SYS_getppid) == 42 ? 5 : 6); }

static void tracer_sees_and_changes_calls(void) {
    pid_t child = traced(ask_parent);
    struct user_regs_struct all;
    struct iovec part = {&all, sizeof all};
    CHECK(ptrace(PTRACE_SETOPTIONS, child, 0, PTRACE_O_TRACESYSGOOD) == 0);
    do
        CHECK(ptrace(PTRACE_SYSCALL, child, 0, 0) == 0 && next_stop(child) == (SIGTRAP | 0x80) &&
              ptrace(PTRACE_GETREGS, child, 0, &all) == 0);
    while (all.orig_rax != SYS_getppid);
    CHECK((long)all.rax == -ENOSYS);
    CHECK(ptrace(PTRACE_SYSCALL, child, 0, 0) == 0 && next_stop(child) == (SIGTRAP | 0x80));
    CHECK(ptrace(PTRACE_GETREGSET, child, 1, &part) == 0 && part.iov_len == sizeof all);
    CHECK((pid_t)all.rax == getpid());
    CHECK(ptrace(PTRACE_POKEUSER, child, offsetof(struct user, regs.rax), 42) == 0);
    CHECK(ptrace(PTRACE_CONT, child, 0, 0) == 0);
    ends_with(child, 5);
}

static void count(void) {
    for (int n = 0; n < 1000; n++) word++;
}

static void single_step_runs_one_instruction(void) {
    pid_t child = traced(count);
    unsigned long long before = 0;
    int moved = 0;
    for (int n = 0; n < 50; n++) {
        struct user_regs_struct all;
        CHECK(ptrace(PTRACE_SINGLESTEP, child, 0, 0) == 0 && next_stop(child) == SIGTRAP);
        CHECK(ptrace(PTRACE_GETREGS, child, 0, &all) == 0);
        moved += all.rip != before;
        before = all.rip;
    }
    CHECK(moved == 50 && ptrace(PTRACE_CONT, child, 0, 0) == 0);
    ends_with(child, 77);
}

static void wait_for_long(void) {
    register double kept __asm__("xmm7") = 1.5;
    __asm__ volatile("1: cmpq $7, %1\n jne 1b" : "+x"(kept) : "m"(word));
    _exit(kept == 2.5 ? 8 : 9);
}

static void tracer_can_attach_to_a_process(void) {
    pid_t child = fork();
    CHECK(child >= 0);
    if (child == 0) wait_for_long();
    struct user_fpregs_struct vectors;
    usleep(10000);
    CHECK(ptrace(PTRACE_ATTACH, child, 0, 0) == 0 && next_stop(child) == SIGSTOP);
    CHECK(ptrace(PTRACE_ATTACH, child, 0, 0) == -1 && errno == EPERM);
    CHECK(ptrace(PTRACE_GETFPREGS, child, 0, &vectors) == 0);
    double *seven = (double *)&vectors.xmm_space[7 * 4];
    CHECK(*seven == 1.5);
    *seven = 2.5;
    CHECK(ptrace(PTRACE_SETFPREGS, child, 0, &vectors) == 0);
    CHECK(ptrace(PTRACE_POKEDATA, child, &word, 7) == 0 && ptrace(PTRACE_DETACH, child, 0, 0) == 0);
    ends_with(child, 8);
    CHECK(ptrace(PTRACE_ATTACH, child, 0, 0) == -1 && errno == ESRCH);
}

static void execute(void) {
    char *args[] = {"traced", "exit", NULL};
    execv("/proc/self/exe", args);
}

static void tracee_stops_after_exec(void) {
    pid_t child = traced(execute);
    CHECK(ptrace(PTRACE_CONT, child, 0, 0) == 0 && next_stop(child) == SIGTRAP);
    CHECK(ptrace(PTRACE_CONT, child, 0, 0) == 0);
    ends_with(child, 9);
    child = traced(execute);
    CHECK(ptrace(PTRACE_SETOPTIONS, child, 0, PTRACE_O_TRACEEXEC) == 0 && ptrace(PTRACE_CONT, child, 0, 0) == 0);
    CHECK(next_stop(child) == (SIGTRAP | PTRACE_EVENT_EXEC << 8));
    CHECK(kill(child, SIGKILL) == 0);
    int status;
    CHECK(waitpid(child, &status, 0) == child && WIFSIGNALED(status) && WTERMSIG(status) == SIGKILL);
}

static greg_t in_frame;

static void keep_selectors(int signal, siginfo_t *info, void *frame) {
    (void)signal, (void)info;
    in_frame = ((ucontext_t *)frame)->uc_mcontext.gregs[REG_CSGSFS];
}

static void do_nothing(void) { _exit(8); }

// Debuggers recognise 64-bit programs by cs.
static void selectors_match_linux(void) {
    unsigned short code, stack;
    __asm__("mov %%cs, %0; mov %%ss, %1" : "=r"(code), "=r"(stack));
    CHECK(code == 0x33 && stack == 0x2b);
    struct sigaction action = {.sa_sigaction = keep_selectors, .sa_flags = SA_SIGINFO};
    CHECK(sigaction(SIGUSR1, &action, 0) == 0 && raise(SIGUSR1) == 0);
    CHECK((in_frame & 0xffff) == 0x33 && (in_frame >> 48 & 0xffff) == 0x2b);
    __asm__ volatile("mov %%cs, %0; mov %%ss, %1" : "=r"(code), "=r"(stack));
    CHECK(code == 0x33 && stack == 0x2b);
    pid_t child = traced(do_nothing);
    struct user_regs_struct all;
    CHECK(ptrace(PTRACE_GETREGS, child, 0, &all) == 0 && all.cs == 0x33 && all.ss == 0x2b);
    CHECK(ptrace(PTRACE_CONT, child, 0, 0) == 0);
    ends_with(child, 8);
}

static void *nothing(void *argument) { return argument; }

static void make_children(void) {
    pthread_t thread;
    if (fork() == 0) _exit(3);
    if (vfork() == 0) _exit(4);
    CHECK(pthread_create(&thread, 0, nothing, 0) == 0 && pthread_join(thread, 0) == 0);
    // The thread has been joined first, because a thread that ends together with its process may get the
    // process's status.
    _exit(0);
}

static void goes_on(pid_t child, int first_stop, int status) {
    unsigned long made;
    int word;
    CHECK(ptrace(PTRACE_GETEVENTMSG, child, 0, &made) == 0 && (pid_t)made != child);
    CHECK(waitpid(made, &word, __WALL) == (pid_t)made && WIFSTOPPED(word) && word >> 8 == first_stop);
    CHECK(ptrace(PTRACE_CONT, made, 0, 0) == 0 && ptrace(PTRACE_CONT, child, 0, 0) == 0);
    CHECK(waitpid(made, &word, __WALL) == (pid_t)made && WIFEXITED(word) && WEXITSTATUS(word) == status);
}

// Checks that the tracee stops for this event, that its new child or thread stops before it runs, and that
// the new child or thread ends with this status.
static void follows(pid_t child, int event, int first_stop, int status) {
    CHECK(next_event(child) == (SIGTRAP | event << 8));
    goes_on(child, first_stop, status);
}

static void tracer_follows_children(void) {
    long options = PTRACE_O_TRACEFORK | PTRACE_O_TRACEVFORK | PTRACE_O_TRACECLONE | PTRACE_O_TRACEVFORKDONE;
    for (int seizes = 0; seizes < 2; seizes++) {
        handled = 0;
        signal(SIGUSR1, handler);
        pid_t child = seizes ? fork() : traced(make_children);
        if (child == 0) {
            while (!handled) usleep(1000);
            make_children();
        }
        if (seizes) {
            CHECK(ptrace(PTRACE_SEIZE, child, 0, options) == 0 && kill(child, SIGUSR1) == 0);
            CHECK(next_stop(child) == SIGUSR1 && ptrace(PTRACE_CONT, child, 0, SIGUSR1) == 0);
        } else {
            CHECK(ptrace(PTRACE_SETOPTIONS, child, 0, options) == 0 && ptrace(PTRACE_CONT, child, 0, 0) == 0);
        }
        int first = seizes ? SIGTRAP | PTRACE_EVENT_STOP << 8 : SIGSTOP;
        follows(child, PTRACE_EVENT_FORK, first, 3);
        follows(child, PTRACE_EVENT_VFORK, first, 4);
        CHECK(next_event(child) == (SIGTRAP | PTRACE_EVENT_VFORK_DONE << 8));
        CHECK(ptrace(PTRACE_CONT, child, 0, 0) == 0);
        follows(child, PTRACE_EVENT_CLONE, first, 0);
        int status;
        while (waitpid(child, &status, 0) == child && WIFSTOPPED(status)) {
            CHECK(status >> 8 == SIGCHLD && ptrace(PTRACE_CONT, child, 0, 0) == 0);
        }
        CHECK(WIFEXITED(status) && WEXITSTATUS(status) == 0);
    }
}

// Debuggers recognise the kinds of registers by XCR0 in the image of XSAVE.
static void xsave_image_contains_xcr0(void) {
    static unsigned long image[1024];
    struct iovec part = {image, sizeof image};
    pid_t child = traced(do_nothing);
    if (ptrace(PTRACE_GETREGSET, child, 0x202, &part) == 0 && part.iov_len > 512)
        CHECK((image[464 / 8] & 3) == 3 && image[472 / 8] == 0);
    CHECK(ptrace(PTRACE_CONT, child, 0, 0) == 0);
    ends_with(child, 8);
}

int main(int argc, char **argv) {
    if (argc > 1 && !strcmp(argv[1], "exit")) return 9;
    PART(tracer_decides_about_signals);
    PART(tracer_sees_and_changes_calls);
    PART(single_step_runs_one_instruction);
    PART(tracer_can_attach_to_a_process);
    PART(selectors_match_linux);
    PART(tracee_stops_after_exec);
    PART(tracer_follows_children);
    PART(xsave_image_contains_xcr0);
    return 0;
}
