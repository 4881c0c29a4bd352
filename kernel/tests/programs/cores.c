// Core files: which signals leave core files, and what a core file contains and omits. Checks
// `kernel/src/process/dump.rs`. Each part ends a child with three threads and reads the file `core` in the
// working directory.
#define _GNU_SOURCE
#include "check.h"
#include <elf.h>
#include <fcntl.h>
#include <pthread.h>
#include <signal.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/procfs.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <sys/wait.h>

enum { PAGES = 3, THREADS = 3 };
static char *core;
extern const char __ehdr_start;

static char *map(int kind, long bytes) {
    char *at = mmap(0, bytes, PROT_READ | PROT_WRITE, kind | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    CHECK(at != MAP_FAILED);
    return at;
}

static void *spin(void *unused) {
    for (volatile long n = 0;; n++);
    return unused;
}

static void *sleep_on(void *unused) { return pause(), unused; }

static void set_limit(long bytes) {
    struct rlimit limit = {bytes, RLIM_INFINITY};
    CHECK(!setrlimit(RLIMIT_CORE, &limit));
}

// Sends a child with several threads a signal that ends it. Returns 1 if the child leaves a core file.
static int dies(int number, long limit, int dumpable) {
    struct stat found;
    int status;
    siginfo_t info;
    unlink("core");
    pid_t child = fork();
    if (child == 0) {
        pthread_t other;
        set_limit(limit);
        CHECK(!prctl(PR_SET_DUMPABLE, dumpable) && !fcntl(2, F_GETFD));
        for (int n = 1; n < THREADS; n++) CHECK(!pthread_create(&other, 0, n % 2 ? spin : sleep_on, 0));
        usleep(20000);
        if (number == SIGSEGV) *(volatile char *)8 = 1;
        kill(getpid(), number);
        pause();
    }
    CHECK(!waitid(P_PID, child, &info, WEXITED | WNOWAIT) && waitpid(child, &status, 0) == child);
    CHECK(WIFSIGNALED(status) && WTERMSIG(status) == number && info.si_status == number);
    CHECK(info.si_code == (WCOREDUMP(status) ? CLD_DUMPED : CLD_KILLED));
    int is_there = !stat("core", &found);
    CHECK(is_there == !!WCOREDUMP(status) && (!is_there || (found.st_mode & 0777) == 0600));
    return is_there;
}

static void dumping_signals_leave_a_core_file(void) {
    int dumping[] = {SIGQUIT, SIGILL, SIGTRAP, SIGABRT, SIGBUS, SIGFPE, SIGSEGV, SIGSYS, SIGXCPU, SIGXFSZ};
    for (unsigned n = 0; n < sizeof dumping / sizeof *dumping; n++) CHECK(dies(dumping[n], RLIM_INFINITY, 1));
    CHECK(!dies(SIGTERM, RLIM_INFINITY, 1) && !dies(SIGKILL, RLIM_INFINITY, 1));
    CHECK(!dies(SIGSEGV, 0, 1) && !dies(SIGSEGV, 4095, 1) && !dies(SIGSEGV, RLIM_INFINITY, 0));
}

// Returns the part of the file that contains an address, or null if the file omits it.
static char *part_of(char *at, unsigned long *bytes) {
    Elf64_Ehdr *header = (void *)core;
    Elf64_Phdr *parts = (void *)(core + header->e_phoff);
    for (int n = 0; n < header->e_phnum; n++) {
        unsigned long within = (unsigned long)at - parts[n].p_vaddr;
        if (parts[n].p_type != PT_LOAD || within >= parts[n].p_memsz) continue;
        *bytes = parts[n].p_filesz - within;
        return within < parts[n].p_filesz ? core + parts[n].p_offset + within : 0;
    }
    CHECK(!"in any part");
    return 0;
}

static void core_file_has_memory_and_registers(void) {
    unsigned long bytes;
    char *kept = map(MAP_PRIVATE, PAGES * 4096), *shared = map(MAP_SHARED, 4096), *left_out = map(MAP_PRIVATE, 4096);
    strcpy(kept + 4096, "kept"), strcpy(shared, "shared"), strcpy(left_out, "left out");
    CHECK(!mprotect(kept, PAGES * 4096, PROT_NONE) && !madvise(left_out, 4096, MADV_DONTDUMP));
    CHECK(dies(SIGSEGV, RLIM_INFINITY, 1));
    int file = open("core", O_RDONLY);
    CHECK(file >= 0 && (core = mmap(0, lseek(file, 0, SEEK_END), PROT_READ, MAP_PRIVATE, file, 0)) != MAP_FAILED);
    Elf64_Ehdr *header = (void *)core;
    CHECK(!memcmp(core, ELFMAG, SELFMAG) && header->e_type == ET_CORE && header->e_machine == EM_X86_64);
    char *at = part_of(kept, &bytes);
    CHECK(at && bytes == PAGES * 4096 && !at[0] && !strcmp(at + 4096, "kept") && !at[8192]);
    CHECK(!strcmp(part_of(shared, &bytes), "shared") && !part_of(left_out, &bytes));
    CHECK(!memcmp(part_of((char *)&__ehdr_start, &bytes), ELFMAG, SELFMAG) && bytes == 4096);
    Elf64_Phdr *notes = (void *)(core + header->e_phoff);
    CHECK(notes->p_type == PT_NOTE);
    char *end = core + notes->p_offset + notes->p_filesz;
    int threads = 0, others = 0;
    for (char *note = core + notes->p_offset; note < end;) {
        Elf64_Nhdr *head = (void *)note;
        char *text = note + sizeof *head + 8;
        struct elf_prstatus *thread = (void *)text;
        CHECK(head->n_namesz == 5 || head->n_namesz == 6);
        if (head->n_type == NT_PRSTATUS) {
            CHECK(head->n_descsz == sizeof *thread && thread->pr_cursig == SIGSEGV && thread->pr_pid > 0);
            char *stack = (char *)((unsigned long *)thread->pr_reg)[19];
            CHECK(part_of(stack, &bytes) && ((unsigned long *)thread->pr_reg)[16] > 4096);
            threads++;
        } else if (head->n_type == NT_SIGINFO) {
            CHECK(((siginfo_t *)text)->si_signo == SIGSEGV && ((siginfo_t *)text)->si_addr == (void *)8);
        } else if (head->n_type == NT_PRPSINFO) {
            CHECK(!strcmp(((struct elf_prpsinfo *)text)->pr_fname, "cores"));
        } else others++;
        note = text + (head->n_descsz + 3) / 4 * 4;
    }
    CHECK(threads == THREADS && others >= 1 && !close(file));
}

static void core_file_obeys_its_limit_and_omits_holes(void) {
    struct stat found;
    CHECK(dies(SIGABRT, 20 * 4096, 1) && !stat("core", &found) && found.st_blocks <= 160);
    char *far_apart = map(MAP_PRIVATE, 1 << 30);
    far_apart[0] = far_apart[(1 << 30) - 1] = 1;
    CHECK(dies(SIGABRT, RLIM_INFINITY, 1) && !stat("core", &found));
    CHECK(found.st_size > 1 << 30 && found.st_blocks < 1 << 16);
    CHECK(!munmap(far_apart, 1 << 30));
}

static void core_file_is_not_written_through_a_link(void) {
    CHECK(!mkdir("others", 0755) && !chdir("others") && !symlink("../target", "core"));
    pid_t child = fork();
    if (child == 0) set_limit(RLIM_INFINITY), abort();
    int status;
    CHECK(waitpid(child, &status, 0) == child && access("../target", F_OK));
    CHECK(!unlink("core") && !chdir("..") && !rmdir("others"));
}

static void core_pattern_names_the_core_file(void) {
    char name[80];
    int file = open("/proc/sys/kernel/core_pattern", O_WRONLY);
    CHECK(file >= 0 && write(file, "/tmp/cores/%e.%p%%", 18) == 18 && !close(file));
    pid_t child = fork();
    int status;
    if (child == 0) set_limit(RLIM_INFINITY), abort();
    CHECK(waitpid(child, &status, 0) == child && WCOREDUMP(status));
    sprintf(name, "cores.%d%%", child);
    CHECK(!unlink(name));
    file = open("/proc/sys/kernel/core_pattern", O_WRONLY);
    CHECK(write(file, "core", 4) == 4 && !close(file));
}

// With a folder as its argument, the program only leaves a core file in this folder, for a debugger.
int main(int argc, char **argv) {
    if (argc == 2) return chdir(argv[1]) || !dies(SIGSEGV, RLIM_INFINITY, 1);
    CHECK(!mkdir("/tmp/cores", 0755) && !chdir("/tmp/cores"));
    PART(dumping_signals_leave_a_core_file);
    PART(core_file_has_memory_and_registers);
    PART(core_file_obeys_its_limit_and_omits_holes);
    PART(core_file_is_not_written_through_a_link);
    PART(core_pattern_names_the_core_file);
    return 0;
}
