// Restartable sequences: the processor in a thread's memory, and sequences that begin again where the thread was
// interrupted in them. The C library is told to leave them to the program: GLIBC_TUNABLES.
#define _GNU_SOURCE
#include "check.h"
#include <linux/rseq.h>
#include <pthread.h>
#include <sched.h>
#include <signal.h>
#include <stdint.h>
#include <sys/mman.h>
#include <sys/syscall.h>
#include <sys/time.h>
#include <sys/wait.h>

#define SIGNATURE 0x53053053

struct area {
    uint32_t cpu_start, cpu;
    uint64_t sequence;
    uint32_t flags, node, mm_cid, end;
} __attribute__((aligned(32)));

static __thread struct area area;

static int rseq(struct area *at, unsigned bytes, int flags, unsigned signature)
{
    return syscall(SYS_rseq, at, bytes, flags, signature);
}

static void what_is_registered_is_checked(void)
{
    CHECK(rseq(&area, 31, 0, SIGNATURE) == -1 && errno == EINVAL);
    CHECK(rseq((void *)((char *)&area + 8), 32, 0, SIGNATURE) == -1 && errno == EINVAL);
    CHECK(rseq(&area, 32, 2, SIGNATURE) == -1 && errno == EINVAL);
    CHECK(rseq((void *)0xffff800000000000, 32, 0, SIGNATURE) == -1 && errno == EFAULT);
    CHECK(rseq(&area, 32, RSEQ_FLAG_UNREGISTER, SIGNATURE) == -1 && errno == EINVAL);
    CHECK(rseq(&area, 32, 0, SIGNATURE) == 0);
    CHECK(rseq(&area, 32, 0, SIGNATURE) == -1 && errno == EBUSY);
    CHECK(rseq(&area, 64, 0, SIGNATURE) == -1 && errno == EINVAL);
    CHECK(rseq(&area, 32, 0, 1) == -1 && errno == EPERM);
    CHECK(rseq(&area, 32, RSEQ_FLAG_UNREGISTER, 1) == -1 && errno == EPERM);
    CHECK(rseq(&area, 32, RSEQ_FLAG_UNREGISTER, SIGNATURE) == 0);
    CHECK(area.cpu_start == 0 && area.cpu == (uint32_t)-1);
}

static void stay_on(int cpu)
{
    cpu_set_t set;
    CPU_ZERO(&set);
    CPU_SET(cpu, &set);
    CHECK(sched_setaffinity(0, sizeof set, &set) == 0);
}

static void the_processor_is_said(void)
{
    CHECK(rseq(&area, 32, 0, SIGNATURE) == 0);
    int cpus = sysconf(_SC_NPROCESSORS_ONLN);
    for (int n = 0; n < 200; n++) {
        stay_on(n % cpus);
        CHECK(area.cpu == (uint32_t)(n % cpus) && area.cpu_start == area.cpu);
    }
    pid_t child = fork();
    if (child == 0) {
        // A process has its parent's; a thread has none.
        stay_on(cpus - 1);
        CHECK(area.cpu == (uint32_t)(cpus - 1));
        CHECK(rseq(&area, 32, 0, SIGNATURE) == -1 && errno == EBUSY);
        _exit(0);
    }
    int status;
    CHECK(waitpid(child, &status, 0) == child && status == 0);
    CHECK(rseq(&area, 32, RSEQ_FLAG_UNREGISTER, SIGNATURE) == 0);
}

// Counters by processor, without atomic instructions: a sequence that is interrupted counts nothing.
static struct { volatile uint64_t count; char apart[56]; } counters[64];
#define THREADS 6
#define TIMES 200000
static volatile uint64_t restarts;

static void count_one(void)
{
    __asm__ volatile(
        ".pushsection __rseq_cs, \"aw\"\n"
        ".balign 32\n"
        "1: .long 0, 0\n"
        "   .quad 2f, 3f - 2f, 4f\n"
        ".popsection\n"
        "5: leaq 1b(%%rip), %%rax\n"
        "   movq %%rax, 8(%[area])\n"
        "2: movl 4(%[area]), %%eax\n"
        "   shlq $6, %%rax\n"
        "   movq (%[counters], %%rax), %%rcx\n"
        "   incq %%rcx\n"
        // Long enough to be interrupted in.
        "   movl $20, %%edx\n"
        "6: decl %%edx\n"
        "   jnz 6b\n"
        "   movq %%rcx, (%[counters], %%rax)\n"
        "3: jmp 7f\n"
        "   .long 0x53053053\n"
        "4: lock incq %[restarts]\n"
        "   jmp 5b\n"
        "7:\n"
        : [restarts] "+m"(restarts)
        : [area] "r"(&area), [counters] "r"(counters)
        : "rax", "rcx", "rdx", "memory", "cc");
}

static void *count(void *unused)
{
    CHECK(rseq(&area, 32, 0, SIGNATURE) == 0);
    for (int n = 0; n < TIMES; n++)
        count_one();
    CHECK(rseq(&area, 32, RSEQ_FLAG_UNREGISTER, SIGNATURE) == 0);
    return unused;
}

static void rung(int signal) { (void)signal; }

static void interrupted_sequences_begin_again(void)
{
    pthread_t threads[THREADS];
    signal(SIGALRM, rung);
    struct itimerval often = {{0, 500}, {0, 500}};
    CHECK(setitimer(ITIMER_REAL, &often, NULL) == 0);
    for (int n = 0; n < THREADS; n++)
        CHECK(pthread_create(&threads[n], NULL, count, NULL) == 0);
    for (int n = 0; n < THREADS; n++)
        CHECK(pthread_join(threads[n], NULL) == 0);
    CHECK(setitimer(ITIMER_REAL, &(struct itimerval){0}, NULL) == 0);
    uint64_t sum = 0;
    for (int n = 0; n < 64; n++)
        sum += counters[n].count;
    CHECK(sum == (uint64_t)THREADS * TIMES);
    CHECK(restarts > 0);
}

struct sequence { uint32_t version, flags; uint64_t start, length, again; };

// What becomes of a child that names this.
static int end_with(struct sequence *named, struct sequence content)
{
    static struct sequence sequence __attribute__((aligned(32)));
    pid_t child = fork();
    if (child == 0) {
        CHECK(rseq(&area, 32, 0, SIGNATURE) == 0);
        sequence = content;
        area.sequence = (uint64_t)(named ? named : &sequence);
        // Looked at where the thread was away from its processor, and forgotten if it is right.
        while (*(volatile uint64_t *)&area.sequence)
            usleep(1000);
        _exit(5);
    }
    int status;
    CHECK(waitpid(child, &status, 0) == child);
    return status;
}

static void a_false_sequence_is_a_fault(void)
{
    const uint64_t end = (1ul << 47) - 4096;
    static uint32_t place[2] = {SIGNATURE};
    const uint64_t good = (uint64_t)&place[1];
    // The last page may be the stack's, which ends with a zero.
    const int flags = MAP_PRIVATE | MAP_ANONYMOUS | MAP_FIXED_NOREPLACE;
    char *page = mmap((void *)(end - 4096), 4096, PROT_READ | PROT_WRITE, flags, -1, 0);
    CHECK(page != MAP_FAILED || errno == EEXIST);
    *(volatile uint32_t *)(end - 4) = SIGNATURE;
    CHECK(end_with(NULL, (struct sequence){0, 0, 1, 1, good}) == 5 << 8);
    CHECK(end_with(NULL, (struct sequence){0, 0, end - 2, 1, good}) == 5 << 8);
    // Where it would go on has no signature before it.
    CHECK(end_with(NULL, (struct sequence){0, 0, 1, 1, (uint64_t)&counters[1]}) == SIGSEGV);
    // Neither does it lie where no program does.
    CHECK(end_with(NULL, (struct sequence){0, 0, 1, 1, end}) == SIGSEGV);
    CHECK(end_with(NULL, (struct sequence){0, 0, end - 1, 1, good}) == SIGSEGV);
    CHECK(end_with(NULL, (struct sequence){0, 0, 1ul << 63, 1, good}) == SIGSEGV);
    CHECK(end_with((void *)end, (struct sequence){0}) == SIGSEGV);
    *(volatile uint32_t *)(end - 4) = 0;
    CHECK(page == MAP_FAILED || munmap(page, 4096) == 0);
}

int main(void)
{
    PART(what_is_registered_is_checked);
    PART(the_processor_is_said);
    PART(interrupted_sequences_begin_again);
    PART(a_false_sequence_is_a_fault);
    return 0;
}
