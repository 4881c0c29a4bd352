// Checks that a program keeps its vector registers, its x87 stack and the control words of both, over page
// faults, system calls, interrupts and switches to other threads. Runs four threads, each with its own
// values, on two CPUs. `registers avx` also checks the upper halves. The code under test is
// `kernel/src/arch/entry.s` and `kernel/src/arch/features.rs`.
#define _GNU_SOURCE
#include "check.h"
#include <pthread.h>
#include <stddef.h>
#include <stdint.h>
#include <sys/mman.h>
#include <sys/syscall.h>

enum { FAULT, CALL, SPIN };
enum { THREADS = 4, ROUNDS = 4000, BYTES = 4 << 20 };

typedef struct {
    uint8_t vectors[16][32] __attribute__((aligned(32)));
    double deep;
    uint32_t control;
} State;

static int avx;

#define EACH(what)                                                                                     \
    what(0) what(1) what(2) what(3) what(4) what(5) what(6) what(7) what(8) what(9) what(10) what(11)  \
        what(12) what(13) what(14) what(15)
#define LOAD(n) "movaps " #n "*32(%[in]), %%xmm" #n "\n"
#define KEEP(n) "movaps %%xmm" #n ", " #n "*32(%[out])\n"
#define LOAD_AVX(n) "vmovaps " #n "*32(%[in]), %%ymm" #n "\n"
#define KEEP_AVX(n) "vmovaps %%ymm" #n ", " #n "*32(%[out])\n"
// Code between loading and storing the registers: the store that faults, a system call, or a loop that is
// interrupted.
#define BETWEEN                                                                                        \
    "ldmxcsr %c[control](%[in])\n fldl %c[deep](%[in])\n cmp $1, %[how]\n jb 1f\n je 2f\n mov $3000, %%ecx\n"    \
    "4: pause\n dec %%ecx\n jnz 4b\n jmp 3f\n 2: syscall\n jmp 3f\n 1: movb $1, (%[touch])\n"                \
    "3: fstpl %c[deep](%[out])\n stmxcsr %c[control](%[out])\n"
#define REGISTERS                                                                                      \
    "rcx", "r11", "memory", "xmm0", "xmm1", "xmm2", "xmm3", "xmm4", "xmm5", "xmm6", "xmm7", "xmm8",    \
        "xmm9", "xmm10", "xmm11", "xmm12", "xmm13", "xmm14", "xmm15"
#define INPUTS                                                                                         \
    [in] "r"(&in), [out] "r"(&out), [touch] "r"(touch), [how] "r"(how),                                \
        [control] "i"(offsetof(State, control)), [deep] "i"(offsetof(State, deep))

static int kept(char *touch, unsigned seed, int how) {
    State in, out;
    for (int n = 0; n < 16; n++)
        for (int byte = 0; byte < 32; byte++) in.vectors[n][byte] = (uint8_t)(seed * 31 + n * 7 + byte);
    in.control = 0x1f80 | (seed & 3) << 13;
    in.deep = seed * 1.5;
    long number = SYS_getppid;
    if (avx)
        __asm__ volatile(EACH(LOAD_AVX) BETWEEN EACH(KEEP_AVX) "vzeroupper\n"
                         : "+a"(number) : INPUTS : REGISTERS);
    else
        __asm__ volatile(EACH(LOAD) BETWEEN EACH(KEEP)
                         : "+a"(number) : INPUTS : REGISTERS);
    uint32_t usual = 0x1f80;
    __asm__ volatile("ldmxcsr %0" ::"m"(usual));
    for (int n = 0; n < 16; n++)
        if (memcmp(in.vectors[n], out.vectors[n], avx ? 32 : 16)) return 0;
    return in.control == out.control && in.deep == out.deep;
}

static void *work(void *arg) {
    unsigned seed = (unsigned)(long)arg * 1000;
    char *memory = MAP_FAILED;
    for (unsigned n = 0; n < ROUNDS; n++) {
        unsigned page = n % (BYTES / 4096);
        if (page == 0) {
            if (memory != MAP_FAILED) munmap(memory, BYTES);
            memory = mmap(0, BYTES, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
            CHECK(memory != MAP_FAILED);
        }
        CHECK(kept(memory + page * 4096, seed++, FAULT));
        CHECK(kept(memory, seed++, CALL));
        if (n % 16 == 0) CHECK(kept(memory, seed++, SPIN));
    }
    return arg;
}

int main(int argc, char **argv) {
    avx = argc > 1 && !strcmp(argv[1], "avx");
    pthread_t threads[THREADS];
    for (long n = 0; n < THREADS; n++) CHECK(!pthread_create(&threads[n], 0, work, (void *)(n + 1)));
    for (long n = 0; n < THREADS; n++) CHECK(!pthread_join(threads[n], 0));
    printf("registers are kept\n");
    return 0;
}
