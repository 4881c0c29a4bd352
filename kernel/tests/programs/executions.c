// Files that are executed: the checks of their headers, interpreters and scripts, the size of arguments, and the
// exclusion of writers. Checks `kernel/src/process/exec.rs` and `kernel/src/files/access.rs`.
#define _GNU_SOURCE
#include "check.h"
#include <elf.h>
#include <fcntl.h>
#include <sys/mman.h>
#include <sys/ptrace.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/user.h>
#include <sys/wait.h>

#define FILE_NAME "/tmp/executed"
enum { REFUSED = 100 };

// Loads the byte one page after its own, and exits with it.
static const unsigned char code[] = {0x0f, 0xb6, 0x3d, 0xf9, 0x0f, 0, 0, 0xb8, 60, 0, 0, 0, 0x0f, 0x05};

static void put(const char *name, const void *bytes, size_t len) {
    int file = open(name, O_WRONLY | O_CREAT | O_TRUNC, 0755);
    CHECK(file >= 0 && write(file, bytes, len) == (ssize_t)len);
    close(file);
}

// Writes a program with these headers. Its code is at 0x800, and the bytes 0x1800 and 0x2800 are 42 and 43.
static void put_program(const char *name, int type, uint64_t entry, const Elf64_Phdr *headers, int count) {
    static unsigned char bytes[0x3000];
    memset(bytes, 0, sizeof bytes);
    Elf64_Ehdr head = {.e_ident = {0x7f, 'E', 'L', 'F', ELFCLASS64, ELFDATA2LSB, EV_CURRENT},
                       .e_type = type, .e_machine = EM_X86_64, .e_version = EV_CURRENT, .e_entry = entry,
                       .e_phoff = 64, .e_ehsize = 64, .e_phentsize = 56, .e_phnum = count};
    memcpy(bytes, &head, sizeof head);
    memcpy(bytes + 64, headers, count * sizeof *headers);
    memcpy(bytes + 0x800, code, sizeof code);
    strcpy((char *)bytes + 0x2900, "/tmp/interpreter");
    bytes[0x1800] = 42;
    bytes[0x2800] = 43;
    put(name, bytes, sizeof bytes);
}

static Elf64_Phdr load(uint64_t at) {
    return (Elf64_Phdr){PT_LOAD, PF_R | PF_X, 0, at, at, 0x3000, 0x3000, 0x1000};
}

// Returns the exit status of a program; REFUSED and the error if it cannot be executed; 1000 and the signal that
// ended it.
static int run_with(char **arguments) {
    pid_t child = vfork();
    if (!child) {
        execv(FILE_NAME, arguments);
        _exit(REFUSED + errno);
    }
    int status;
    CHECK(waitpid(child, &status, 0) == child);
    return WIFEXITED(status) ? WEXITSTATUS(status) : 1000 + WTERMSIG(status);
}

static int run(void) {
    return run_with((char *[]){"executed", NULL});
}

// Executes a traced program. Returns its exit status or, if the call fails, its error plus 1000 times the signal that
// ends the program. The number of the call stays visible in both cases.
static int run_traced(void) {
    pid_t child = fork();
    if (!child) {
        CHECK(!ptrace(PTRACE_TRACEME, 0, 0, 0) && !raise(SIGSTOP));
        execl(FILE_NAME, "executed", NULL);
        _exit(REFUSED);
    }
    int status;
    for (int stop = 0; stop < 3; stop++) {
        CHECK(waitpid(child, &status, 0) == child && WIFSTOPPED(status));
        if (stop < 2) CHECK(!ptrace(PTRACE_SYSCALL, child, 0, 0));
    }
    struct user_regs_struct all;
    CHECK(!ptrace(PTRACE_GETREGS, child, 0, &all) && all.orig_rax == SYS_execve);
    CHECK(!ptrace(PTRACE_CONT, child, 0, 0) && waitpid(child, &status, 0) == child && WIFSTOPPED(status));
    CHECK(WSTOPSIG(status) == (all.rax ? SIGSEGV : SIGTRAP));
    CHECK(!ptrace(PTRACE_CONT, child, 0, all.rax ? SIGSEGV : 0) && waitpid(child, &status, 0) == child);
    while (WIFSTOPPED(status)) {
        CHECK(!ptrace(PTRACE_CONT, child, 0, WSTOPSIG(status)) && waitpid(child, &status, 0) == child);
    }
    return WIFEXITED(status) ? WEXITSTATUS(status) : 1000 * WTERMSIG(status) - (int)all.rax;
}

// A second segment after a first one of a page; a program with both. The program returns a byte of 0x401000.
static int run_with_second(int flags, uint64_t offset, uint64_t at, uint64_t file, uint64_t memory) {
    Elf64_Phdr headers[] = {load(0x400000), {PT_LOAD, flags, offset, at, at, file, memory, 0x1000}};
    headers[0].p_filesz = headers[0].p_memsz = 0x1000;
    put_program(FILE_NAME, ET_EXEC, 0x400800, headers, 2);
    return run_traced();
}

static void segments_are_checked_while_they_are_mapped(void) {
    enum { RW = PF_R | PF_W, KILLED = 1000 * SIGSEGV };
    const uint64_t page = 0x1000, at = 0x401000, kernel = 0xffff800000000000, end = (1ul << 47) - page;
    CHECK(run_with_second(RW, 2 * page, at, page, page) == 43);
    // The offset and the address are equal within a page.
    CHECK(run_with_second(RW, 2 * page + 1, at, page, page) == KILLED + EINVAL);
    CHECK(run_with_second(RW, 2 * page, at + 1, page, page) == KILLED + EINVAL);
    CHECK(run_with_second(RW, 2 * page + 0x100, at + 0x100, page, page) == 43);
    // Offsets of 64 bits, and offsets of files.
    CHECK(run_with_second(RW, -page, at, page, page) == KILLED + EINVAL);
    CHECK(run_with_second(RW, -2 * page, at, page, page) == KILLED + EOVERFLOW);
    CHECK(run_with_second(RW, 1ul << 63, at, page, page) == KILLED + EOVERFLOW);
    CHECK(run_with_second(RW, 1ul << 62, at, page, page) == 1000 * SIGBUS);
    // Sizes.
    CHECK(run_with_second(RW, 2 * page, at, page, 1ul << 60) == KILLED + ENOMEM);
    CHECK(run_with_second(RW, 2 * page, at, page, 1ul << 46) == KILLED + ENOMEM);
    CHECK(run_with_second(RW, 2 * page, at, page, ~at) == KILLED + ENOMEM);
    CHECK(run_with_second(RW, 2 * page, at, page, ~at + 2) == KILLED + ENOMEM);
    CHECK(run_with_second(RW, 2 * page, at, 1ul << 60, 1ul << 60) == KILLED + ENOMEM);
    CHECK(run_with_second(RW, 2 * page, at, -page, -page) == KILLED + EINVAL);
    CHECK(run_with_second(RW, 0, at, -page, -page) == KILLED + ENOMEM);
    CHECK(run_with_second(RW, 2 * page, at, -1, -1) == KILLED + EINVAL);
    CHECK(run_with_second(RW, 2 * page, at, page, page - 1) == KILLED + EINVAL);
    // Addresses.
    CHECK(run_with_second(RW, 2 * page, kernel, page, page) == KILLED + ENOMEM);
    CHECK(run_with_second(RW, 2 * page, kernel, 0, page) == KILLED + ENOMEM);
    CHECK(run_with_second(RW, 2 * page, kernel, 0, 0) == KILLED + EINVAL);
    CHECK(run_with_second(RW, 2 * page, end, page, page) == KILLED + ENOMEM);
    // The rest of the last page is zero, if the program can write it.
    CHECK(run_with_second(RW, page, at, 0x100, 0x900) == 0);
    CHECK(run_with_second(PF_R, page, at, 0x100, 0x900) == 42);
    CHECK(run_with_second(RW, 2 * page, at, 2 * page - 1, 3 * page) == KILLED + EFAULT);
    CHECK(run_with_second(PF_R, 2 * page, at, 2 * page - 1, 3 * page) == 43);
    // Without contents the offset does not matter, and the segment begins at a page.
    CHECK(run_with_second(RW, 1, at + 0x900, 0, page) == 0);
    CHECK(run_with_second(RW, 1, at + 0x100, 0, 0x800) == 0);
    CHECK(run_with_second(RW, 1, at + 0x100, 0, 0) == KILLED);
    // Programs without segments, programs that can be moved, and entry points.
    Elf64_Phdr note = {.p_type = PT_NOTE}, large = load(0);
    put_program(FILE_NAME, ET_EXEC, 0x400800, &note, 1);
    CHECK(run_traced() == KILLED);
    put_program(FILE_NAME, ET_DYN, 0x800, &note, 1);
    CHECK(run_traced() == KILLED);
    large.p_memsz = 1ul << 60;
    put_program(FILE_NAME, ET_DYN, 0x800, &large, 1);
    CHECK(run_traced() == KILLED + ENOMEM);
    large.p_memsz = ~0ul;
    put_program(FILE_NAME, ET_DYN, 0x800, &large, 1);
    CHECK(run_traced() == KILLED + EINVAL);
    large = load(kernel);
    put_program(FILE_NAME, ET_DYN, kernel + 0x800, &large, 1);
    CHECK(run_traced() == KILLED + EINVAL);
    Elf64_Phdr plain = load(0x400000);
    put_program(FILE_NAME, ET_EXEC, end, &plain, 1);
    CHECK(run_traced() == KILLED + EINVAL);
}

static void superuser_programs_may_be_at_address_0(void) {
    Elf64_Phdr zero = load(0);
    put_program(FILE_NAME, ET_EXEC, 0x800, &zero, 1);
    CHECK(run() == 42);
}

static void movable_programs_may_have_any_addresses(void) {
    for (uint64_t at = 0; at < 1ul << 56; at = at ? at << 8 : 0x1000) {
        Elf64_Phdr high = load(at);
        put_program(FILE_NAME, ET_DYN, at + 0x800, &high, 1);
        int status = run();
        CHECK(status == (at < 1ul << 47 ? 42 : 1000 + 11));
    }
}

static void interpreters_are_checked(void) {
    Elf64_Phdr headers[] = {load(0x400000), {PT_INTERP, PF_R, 0x2900, 0, 0, 17, 17, 1}};
    put_program(FILE_NAME, ET_EXEC, 0x400800, headers, 2);
    unlink("/tmp/interpreter");
    CHECK(run() == REFUSED + ENOENT);
    put("/tmp/interpreter", "short", 5);
    CHECK(run() == REFUSED + EIO);
    put("/tmp/interpreter", (char[0x200]){0}, 0x200);
    CHECK(run() == REFUSED + ELIBBAD);
    Elf64_Phdr own = load(0);
    put_program("/tmp/interpreter", ET_DYN, 0x800, &own, 1);
    CHECK(run() == 42);
    int file = open("/tmp/interpreter", O_WRONLY);
    CHECK(run() == REFUSED + ETXTBSY);
    close(file);
    chmod("/tmp/interpreter", 0644);
    CHECK(run() == REFUSED + EACCES);
    // The name must end with a zero byte, and an empty name is that of the working directory.
    headers[1].p_filesz = 16;
    put_program(FILE_NAME, ET_EXEC, 0x400800, headers, 2);
    CHECK(run() == REFUSED + ENOEXEC);
    headers[1].p_offset = 0x2a00;
    put_program(FILE_NAME, ET_EXEC, 0x400800, headers, 2);
    CHECK(run() == REFUSED + EACCES);
    headers[1].p_filesz = 1;
    put_program(FILE_NAME, ET_EXEC, 0x400800, headers, 2);
    CHECK(run() == REFUSED + ENOEXEC);
    // The name must have an offset in a file.
    headers[1] = (Elf64_Phdr){PT_INTERP, PF_R, -8ul, 0, 0, 17, 17, 1};
    put_program(FILE_NAME, ET_EXEC, 0x400800, headers, 2);
    CHECK(run() == REFUSED + EINVAL);
    headers[1].p_offset = 1ul << 62;
    put_program(FILE_NAME, ET_EXEC, 0x400800, headers, 2);
    CHECK(run() == REFUSED + EIO);
    // A relative name begins in the working directory.
    chmod("/tmp/interpreter", 0755);
    headers[1] = (Elf64_Phdr){PT_INTERP, PF_R, 0x2905, 0, 0, 12, 12, 1};
    put_program(FILE_NAME, ET_EXEC, 0x400800, headers, 2);
    CHECK(!chdir("/tmp") && run() == 42);
    CHECK(!chdir("/") && run() == REFUSED + ENOENT);
    unlink("/tmp/interpreter");
}

static void writers_and_executions_exclude_each_other(void) {
    Elf64_Phdr plain = load(0x400000);
    put_program(FILE_NAME, ET_EXEC, 0x400800, &plain, 1);
    int reads = open(FILE_NAME, O_RDONLY), file = open(FILE_NAME, O_RDWR);
    CHECK(reads >= 0 && file >= 0);
    CHECK(run() == REFUSED + ETXTBSY);
    // A mapping keeps the file open.
    void *mapped = mmap(NULL, 4096, PROT_READ, MAP_PRIVATE, file, 0);
    close(file);
    CHECK(run() == REFUSED + ETXTBSY);
    munmap(mapped, 4096);
    CHECK(run() == 42);
    // A name that is no executable file is refused first, and the arguments are read last.
    file = open(FILE_NAME, O_RDWR);
    CHECK(syscall(SYS_execve, FILE_NAME, 8, 8) == -1 && errno == ETXTBSY);
    fchmod(file, 0644);
    CHECK(syscall(SYS_execve, FILE_NAME, 8, 8) == -1 && errno == EACCES);
    fchmod(file, 0755);
    close(file);
    CHECK(syscall(SYS_execve, FILE_NAME, 8, 8) == -1 && errno == EFAULT);

    // While the program runs it cannot be changed.
    int ends[2];
    CHECK(!pipe(ends));
    put(FILE_NAME "-copy", "", 0);
    file = open("/proc/self/exe", O_RDONLY);
    int copy = open(FILE_NAME "-copy", O_WRONLY);
    char part[4096];
    for (ssize_t bytes; (bytes = read(file, part, sizeof part)) > 0;) CHECK(write(copy, part, bytes) == bytes);
    close(copy);
    char number[12];
    snprintf(number, sizeof number, "%d", ends[0]);
    pid_t child = vfork();
    if (!child) {
        execl(FILE_NAME "-copy", "x", "wait", number, NULL);
        _exit(99);
    }
    CHECK(open(FILE_NAME "-copy", O_WRONLY) == -1 && errno == ETXTBSY);
    CHECK(open(FILE_NAME "-copy", O_RDWR | O_CREAT | O_APPEND, 0) == -1 && errno == ETXTBSY);
    CHECK(open(FILE_NAME "-copy", O_RDONLY | O_TRUNC) == -1 && errno == ETXTBSY);
    CHECK(truncate(FILE_NAME "-copy", 0) == -1 && errno == ETXTBSY);
    copy = open(FILE_NAME "-copy", O_RDONLY);
    CHECK(copy >= 0);
    CHECK(write(ends[1], "x", 1) == 1);
    int status;
    CHECK(waitpid(child, &status, 0) == child && status == 0);
    CHECK(!truncate(FILE_NAME "-copy", 0));
    close(copy);
    copy = open(FILE_NAME "-copy", O_WRONLY);
    CHECK(copy >= 0);
    close(copy);
    close(ends[0]);
    close(ends[1]);
    close(file);
    close(reads);
    // A file of memfd_create may be executed by a descriptor that can write.
    file = memfd_create("program", 0);
    char whole[0x3000];
    reads = open(FILE_NAME, O_RDONLY);
    CHECK(read(reads, whole, sizeof whole) == sizeof whole && write(file, whole, sizeof whole) == sizeof whole);
    child = vfork();
    if (!child) {
        char *arguments[] = {"x", NULL};
        fexecve(file, arguments, arguments + 1);
        _exit(99);
    }
    CHECK(waitpid(child, &status, 0) == child && status == 42 << 8);
    close(file);
    close(reads);
    unlink(FILE_NAME "-copy");
}

static void scripts_nest_five_times(void) {
    char name[40], line[60];
    Elf64_Phdr plain = load(0x400000);
    put_program(FILE_NAME "-0", ET_EXEC, 0x400800, &plain, 1);
    for (int n = 1; n <= 6; n++) {
        snprintf(line, sizeof line, "#!" FILE_NAME "-%d\n", n - 1);
        snprintf(name, sizeof name, FILE_NAME "-%d", n);
        put(n == 5 ? FILE_NAME : name, line, strlen(line));
        if (n == 5) CHECK(run() == 42);
        if (n == 5) put(name, line, strlen(line));
        if (n == 6) CHECK(!rename(name, FILE_NAME) && run() == REFUSED + ELOOP);
    }
    int file = open(FILE_NAME "-3", O_WRONLY);
    CHECK(run() == REFUSED + ETXTBSY);
    close(file);
    for (int n = 0; n <= 5; n++) {
        snprintf(name, sizeof name, FILE_NAME "-%d", n);
        unlink(name);
    }
}

// Executes with arguments of this total size, their zero bytes and pointers included.
static int run_with_bytes(size_t bytes, size_t length) {
    size_t environment = 0;
    for (char **at = environ; *at; at++) environment += strlen(*at) + 9;
    bytes -= environment + strlen(FILE_NAME) + 1;
    char **list = calloc(bytes / (length + 9) + 2, sizeof *list), *text = malloc(length + 1);
    memset(text, 'x', length);
    text[length] = 0;
    size_t n = 0;
    for (; bytes >= 2 * (length + 9); bytes -= length + 9) list[n++] = text;
    char *last = malloc(bytes);
    memset(last, 'y', bytes);
    last[bytes - 9] = 0;
    list[n] = last;
    int status = run_with(list);
    free(list);
    free(text);
    free(last);
    return status;
}

static void arguments_have_a_quarter_of_the_stack(void) {
    Elf64_Phdr plain = load(0x400000);
    put_program(FILE_NAME, ET_EXEC, 0x400800, &plain, 1);
    CHECK(run_with_bytes(2 << 20, 999) == 42);
    CHECK(run_with_bytes((2 << 20) + 1, 999) == REFUSED + E2BIG);
    struct rlimit limit, before;
    CHECK(!getrlimit(RLIMIT_STACK, &before));
    limit = before;
    limit.rlim_cur = 1 << 20;
    CHECK(!setrlimit(RLIMIT_STACK, &limit));
    CHECK(run_with_bytes(256 << 10, 99) == 42);
    CHECK(run_with_bytes((256 << 10) + 1, 99) == REFUSED + E2BIG);
    limit.rlim_cur = 256 << 10;
    CHECK(!setrlimit(RLIMIT_STACK, &limit));
    CHECK(run_with_bytes(128 << 10, 99) == 42);
    CHECK(run_with_bytes((128 << 10) + 1, 99) == REFUSED + E2BIG);
    limit.rlim_cur = RLIM_INFINITY;
    CHECK(!setrlimit(RLIMIT_STACK, &limit));
    CHECK(run_with_bytes(6 << 20, 9999) == 42);
    CHECK(run_with_bytes((6 << 20) + 1, 9999) == REFUSED + E2BIG);
    CHECK(!setrlimit(RLIMIT_STACK, &before));
    char *text = malloc(131073);
    memset(text, 'x', 131072);
    text[131072] = 0;
    CHECK(run_with((char *[]){"x", text, NULL}) == REFUSED + E2BIG);
    CHECK(run_with((char *[]){"x", text + 1, NULL}) == 42);
    free(text);
}

int main(int argc, char **argv) {
    char byte;
    if (argc > 2 && !strcmp(argv[1], "wait")) return read(atoi(argv[2]), &byte, 1) == 1 ? 0 : 1;
    PART(superuser_programs_may_be_at_address_0);
    PART(movable_programs_may_have_any_addresses);
    PART(interpreters_are_checked);
    PART(segments_are_checked_while_they_are_mapped);
    PART(writers_and_executions_exclude_each_other);
    PART(scripts_nest_five_times);
    PART(arguments_have_a_quarter_of_the_stack);
    unlink(FILE_NAME);
    return 0;
}
