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

static void leave(void) { _exit(8); }

// A wait for clones finds a tracee whatever its signal is.
static void tracee_is_found_by_waits_for_clones(void) {
    int status;
    siginfo_t info;
    pid_t child = traced(leave);
    CHECK(ptrace(PTRACE_CONT, child, 0, 0) == 0);
    CHECK(!waitid(P_PID, child, &info, WEXITED | WNOWAIT) && info.si_pid == child);
    CHECK(waitpid(child, &status, __WCLONE) == child && WIFEXITED(status) && WEXITSTATUS(status) == 8);
    child = traced(leave);
    CHECK(ptrace(PTRACE_DETACH, child, 0, 0) == 0);
    CHECK(waitpid(child, &status, __WCLONE) == -1 && errno == ECHILD);
    ends_with(child, 8);
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

static void pause_for_ever(void) {
    for (;;) pause();
}

static pid_t seized(long options) {
    pid_t child = fork();
    if (child == 0) pause_for_ever();
    CHECK(child > 0 && ptrace(PTRACE_SEIZE, child, 0, options) == 0);
    return child;
}

static void end(pid_t child) {
    int status;
    CHECK(kill(child, SIGKILL) == 0);
    // The tracee may stop once more, because it ends.
    while (waitpid(child, &status, 0) == child && WIFSTOPPED(status)) ptrace(PTRACE_CONT, child, 0, 0);
    CHECK(WIFSIGNALED(status) && WTERMSIG(status) == SIGKILL);
}

static void every_option_is_accepted(void) {
    const long options = 0xff | PTRACE_O_EXITKILL | PTRACE_O_SUSPEND_SECCOMP;
    for (int bit = 0; bit < 32; bit++) {
        long option = 1L << bit;
        pid_t child = fork();
        if (child == 0) pause_for_ever();
        long done = ptrace(PTRACE_SEIZE, child, 0, option);
        CHECK(options & option ? done == 0 : done == -1 && errno == EIO);
        end(child);
        child = traced(do_nothing);
        done = ptrace(PTRACE_SETOPTIONS, child, 0, option);
        CHECK(options & option ? done == 0 : done == -1 && errno == EINVAL);
        end(child);
    }
    pid_t child = traced(do_nothing);
    CHECK(ptrace(PTRACE_INTERRUPT, child, 0, 0) == -1 && errno == EIO);
    CHECK(ptrace(PTRACE_LISTEN, child, 0, 0) == -1 && errno == EIO);
    end(child);
}

static int is_quiet(pid_t child) {
    int status;
    usleep(20000);
    return waitpid(child, &status, WNOHANG) == 0;
}

// A tracer that listens leaves a stopped process stopped, and hears when the process continues.
static void tracer_listens_to_a_stopped_process(void) {
    const int event = PTRACE_EVENT_STOP << 8;
    siginfo_t info;
    pid_t child = seized(PTRACE_O_TRACESYSGOOD);
    CHECK(kill(child, SIGTSTP) == 0 && next_stop(child) == SIGTSTP);
    CHECK(ptrace(PTRACE_LISTEN, child, 0, 0) == -1 && errno == EIO);
    CHECK(ptrace(PTRACE_CONT, child, 0, SIGTSTP) == 0 && next_stop(child) == (SIGTSTP | event));
    CHECK(ptrace(PTRACE_GETSIGINFO, child, 0, &info) == 0 && info.si_signo == SIGTSTP);
    CHECK(info.si_code == (SIGTSTP | event));
    CHECK(ptrace(PTRACE_LISTEN, child, 0, 0) == 0 && is_quiet(child));
    CHECK(ptrace(PTRACE_CONT, child, 0, 0) == -1 && errno == ESRCH);
    CHECK(ptrace(PTRACE_GETSIGINFO, child, 0, &info) == -1 && errno == ESRCH);
    CHECK(ptrace(PTRACE_INTERRUPT, child, 0, 0) == 0 && next_stop(child) == (SIGTSTP | event));
    CHECK(ptrace(PTRACE_LISTEN, child, 0, 0) == 0 && is_quiet(child));
    CHECK(kill(child, SIGCONT) == 0 && next_stop(child) == (SIGTRAP | event));
    CHECK(ptrace(PTRACE_CONT, child, 0, 0) == 0 && next_stop(child) == SIGCONT);
    CHECK(ptrace(PTRACE_CONT, child, 0, 0) == 0 && is_quiet(child));
    // A process that runs also reports SIGCONT.
    CHECK(kill(child, SIGCONT) == 0 && next_stop(child) == (SIGTRAP | event));
    CHECK(ptrace(PTRACE_CONT, child, 0, 0) == 0 && next_stop(child) == SIGCONT);
    // A process that continues before the tracer listens stops again at once.
    CHECK(ptrace(PTRACE_CONT, child, 0, 0) == 0 && kill(child, SIGSTOP) == 0 && next_stop(child) == SIGSTOP);
    CHECK(ptrace(PTRACE_CONT, child, 0, SIGSTOP) == 0 && next_stop(child) == (SIGSTOP | event));
    CHECK(kill(child, SIGCONT) == 0 && ptrace(PTRACE_LISTEN, child, 0, 0) == 0);
    CHECK(next_stop(child) == (SIGTRAP | event));
    // An interruption of a stopped tracee takes effect when the tracee continues.
    CHECK(ptrace(PTRACE_CONT, child, 0, 0) == 0 && next_stop(child) == SIGCONT);
    CHECK(ptrace(PTRACE_INTERRUPT, child, 0, 0) == 0 && ptrace(PTRACE_CONT, child, 0, 0) == 0);
    CHECK(next_stop(child) == (SIGTRAP | event) && ptrace(PTRACE_CONT, child, 0, 0) == 0);
    CHECK(is_quiet(child));
    end(child);
}

static void stopped_process_can_be_seized(void) {
    int status;
    pid_t child = fork();
    if (child == 0) pause_for_ever();
    CHECK(kill(child, SIGSTOP) == 0 && waitpid(child, &status, WUNTRACED) == child && WIFSTOPPED(status));
    CHECK(ptrace(PTRACE_SEIZE, child, 0, 0) == 0);
    CHECK(next_stop(child) == (SIGSTOP | PTRACE_EVENT_STOP << 8));
    CHECK(ptrace(PTRACE_CONT, child, 0, 0) == 0 && is_quiet(child));
    end(child);
}

// Without PTRACE_SEIZE, a stop of the process has no information. Debuggers recognise the stop by that.
static void stop_of_a_process_has_no_information(void) {
    siginfo_t info;
    pid_t child = traced(pause_for_ever);
    CHECK(ptrace(PTRACE_GETSIGINFO, child, 0, &info) == 0 && info.si_signo == SIGSTOP);
    CHECK(ptrace(PTRACE_CONT, child, 0, SIGTTIN) == 0 && next_stop(child) == SIGTTIN);
    CHECK(ptrace(PTRACE_GETSIGINFO, child, 0, &info) == -1 && errno == EINVAL);
    CHECK(ptrace(PTRACE_CONT, child, 0, 0) == 0 && is_quiet(child));
    end(child);
}

// The structure of PTRACE_GET_SYSCALL_INFO: kind, architecture, addresses, and then number and arguments, or
// answer.
struct call {
    unsigned char op, reserved;
    unsigned short flags;
    unsigned architecture;
    unsigned long ip, sp, words[8];
};
enum { NONE = 0, ENTRY = 1, EXIT = 2 };
static const enum __ptrace_request get_call = 0x420e, set_call = 0x4212;

static struct call call_of(pid_t child, long bytes) {
    struct call call, part;
    memset(&call, 0, sizeof call);
    memset(&part, 0xee, sizeof part);
    CHECK(ptrace(get_call, child, sizeof call, &call) == bytes && call.architecture == 0xc000003e);
    CHECK(ptrace(get_call, child, 10, &part) == bytes && !memcmp(&part, &call, 10));
    CHECK(((unsigned char *)&part)[10] == 0xee);
    CHECK(ptrace(get_call, child, 24, 16) == -1 && errno == EFAULT);
    return call;
}

static int next_call(pid_t child) {
    CHECK(ptrace(PTRACE_SYSCALL, child, 0, 0) == 0);
    return next_stop(child);
}

static void make_calls(void) {
    syscall(SYS_getuid);
    CHECK(syscall(SYS_mmap, 1, 2, 3, 4, 5, 6) == -1 && errno == EINVAL);
    CHECK(syscall(SYS_getppid, 1) == 43);
    CHECK(syscall(SYS_gettid) == 44);
    CHECK(syscall(SYS_getpid) == -1 && errno == EXDEV);
    _exit(7);
}

static void tracer_gets_and_sets_calls(void) {
    const int at_call = SIGTRAP | 0x80;
    struct user_regs_struct all;
    unsigned long message;
    pid_t child = traced(make_calls);
    CHECK(call_of(child, 24).op == NONE);
    // Without the option, stops at calls are not distinguished from other stops.
    CHECK(next_call(child) == SIGTRAP && call_of(child, 24).op == NONE);
    CHECK(ptrace(PTRACE_SETOPTIONS, child, 0, PTRACE_O_TRACESYSGOOD) == 0);
    struct call call;
    do {
        CHECK(next_call(child) == at_call);
        CHECK(ptrace(PTRACE_GETEVENTMSG, child, 0, &message) == 0);
        call = call_of(child, message == ENTRY ? 80 : 33);
        CHECK(call.op == message);
    } while (call.op != ENTRY || call.words[0] != SYS_mmap);
    for (int n = 1; n < 7; n++) CHECK(call.words[n] == (unsigned long)n);
    CHECK(ptrace(PTRACE_GETREGS, child, 0, &all) == 0 && call.ip == all.rip && call.sp == all.rsp);
    CHECK(next_call(child) == at_call);
    call = call_of(child, 33);
    CHECK(call.op == EXIT && (long)call.words[0] == -EINVAL && *(unsigned char *)&call.words[1] == 1);

    CHECK(next_call(child) == at_call);
    call = call_of(child, 80);
    CHECK(call.op == ENTRY && call.words[0] == SYS_getppid && next_call(child) == at_call);
    call = call_of(child, 33);
    CHECK((int)call.words[0] == getpid() && *(unsigned char *)&call.words[1] == 0);
    int can_set = ptrace(set_call, child, sizeof call, &call) == 0;
    if (can_set) {
        call.words[0] = 43;
        CHECK(ptrace(set_call, child, sizeof call, &call) == 0);
        CHECK(ptrace(set_call, child, sizeof call - 1, &call) == -1 && errno == EINVAL);
        call.op = ENTRY;
        CHECK(ptrace(set_call, child, sizeof call, &call) == -1 && errno == EINVAL);
    } else {
        CHECK(ptrace(PTRACE_POKEUSER, child, offsetof(struct user, regs.rax), 43) == 0);
    }

    // The tracer skips a call and chooses its answer.
    CHECK(next_call(child) == at_call && call_of(child, 80).words[0] == SYS_gettid);
    CHECK(ptrace(PTRACE_POKEUSER, child, offsetof(struct user, regs.orig_rax), -1) == 0);
    CHECK(ptrace(PTRACE_POKEUSER, child, offsetof(struct user, regs.rax), 44) == 0);
    CHECK(next_call(child) == at_call && call_of(child, 33).words[0] == 44);

    CHECK(next_call(child) == at_call);
    call = call_of(child, 80);
    if (can_set) {
        call.words[0] = 1L << 40;
        CHECK(ptrace(set_call, child, sizeof call, &call) == -1 && errno == ERANGE);
        call.words[0] = SYS_close;
        call.words[1] = 1000000;
        CHECK(ptrace(set_call, child, sizeof call, &call) == 0);
        CHECK(next_call(child) == at_call && (long)call_of(child, 33).words[0] == -EBADF);
    } else {
        CHECK(next_call(child) == at_call);
    }
    CHECK(ptrace(PTRACE_POKEUSER, child, offsetof(struct user, regs.rax), -(long)EXDEV) == 0);
    CHECK(ptrace(PTRACE_CONT, child, 0, 0) == 0);
    ends_with(child, 7);
}

int main(int argc, char **argv) {
    if (argc > 1 && !strcmp(argv[1], "exit")) return 9;
    PART(tracee_is_found_by_waits_for_clones);
    PART(tracer_decides_about_signals);
    PART(tracer_sees_and_changes_calls);
    PART(single_step_runs_one_instruction);
    PART(tracer_can_attach_to_a_process);
    PART(selectors_match_linux);
    PART(tracee_stops_after_exec);
    PART(tracer_follows_children);
    PART(xsave_image_contains_xcr0);
    PART(every_option_is_accepted);
    PART(tracer_listens_to_a_stopped_process);
    PART(stopped_process_can_be_seized);
    PART(stop_of_a_process_has_no_information);
    PART(tracer_gets_and_sets_calls);
    return 0;
}
