// Faults that a program serves itself, huge segments, and blocks of files: userfaultfd(2), shmget(2),
// stat(2). Checks `kernel/src/process/userfault.rs`, epoll on a userfaultfd, and counts of pages. The test
// boots with a pool of four huge pages (`hugepages=4`), which a part uses up.
#define _GNU_SOURCE
#include "check.h"
#include <fcntl.h>
#include <linux/userfaultfd.h>
#include <poll.h>
#include <pthread.h>
#include <signal.h>
#include <sys/epoll.h>
#include <sys/ioctl.h>
#include <sys/mman.h>
#include <sys/shm.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

#define PAGE 4096UL
#define HUGE (2UL << 20)

static int uffd;
static char *area;
static volatile int signals, loads;
static pthread_t faulting;

static void count(int number) { signals += number == SIGUSR1; }

static void *load(void *at) {
    long got = *(volatile char *)at;
    loads = loads + 1;
    return (void *)got;
}

static int polled(int timeout) {
    struct pollfd entry = {.fd = uffd, .events = POLLIN};
    return poll(&entry, 1, timeout) == 1 ? entry.revents : 0;
}

static void poll_fails_without_api_call_or_nonblock(void) {
    uffd = syscall(SYS_userfaultfd, O_NONBLOCK | O_CLOEXEC);
    CHECK(uffd >= 0 && polled(0) == POLLERR);
    struct uffdio_api api = {.api = UFFD_API};
    CHECK(!ioctl(uffd, UFFDIO_API, &api) && polled(0) == 0);
    area = mmap(0, 4 * PAGE, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    struct uffdio_register range = {{(long)area, 4 * PAGE}, UFFDIO_REGISTER_MODE_MISSING, 0};
    CHECK(!ioctl(uffd, UFFDIO_REGISTER, &range));
    // Polling a blocking descriptor reports an error.
    CHECK(!fcntl(uffd, F_SETFL, 0) && polled(0) == POLLERR);
    CHECK(!fcntl(uffd, F_SETFL, O_NONBLOCK) && polled(0) == 0);
}

static void fill(char *page, char with) {
    static char source[PAGE] __attribute__((aligned(4096)));
    memset(source, with, PAGE);
    struct uffdio_copy copy = {.dst = (long)page, .src = (long)source, .len = PAGE};
    CHECK(!ioctl(uffd, UFFDIO_COPY, &copy) && copy.copy == PAGE);
}

static void take_message_of(char *page) {
    struct uffd_msg message;
    CHECK(read(uffd, &message, sizeof message) == sizeof message);
    CHECK(message.event == UFFD_EVENT_PAGEFAULT && (message.arg.pagefault.address & -PAGE) == (unsigned long)page);
    CHECK(message.arg.pagefault.feat.ptid == 0);
}

// Opens a userfaultfd with these features. Returns the features that the system offers.
static unsigned long open_with(unsigned long features) {
    uffd = syscall(SYS_userfaultfd, O_NONBLOCK | O_CLOEXEC);
    struct uffdio_api api = {.api = UFFD_API, .features = features};
    CHECK(uffd >= 0 && !ioctl(uffd, UFFDIO_API, &api));
    return api.features;
}

static void *load_as_thread(void *id) {
    *(int *)id = gettid();
    return load(area + 3 * PAGE);
}

static void message_names_the_thread(void) {
    struct uffd_msg message;
    int thread = 0;
    CHECK(open_with(UFFD_FEATURE_THREAD_ID) & UFFD_FEATURE_THREAD_ID);
    struct uffdio_register range = {{(long)area + 3 * PAGE, PAGE}, UFFDIO_REGISTER_MODE_MISSING, 0};
    CHECK(!ioctl(uffd, UFFDIO_REGISTER, &range));
    CHECK(!pthread_create(&faulting, 0, load_as_thread, &thread) && polled(10000) == POLLIN);
    CHECK(read(uffd, &message, sizeof message) == sizeof message);
    CHECK(thread != getpid() && message.arg.pagefault.feat.ptid == (unsigned)thread);
    fill(area + 3 * PAGE, 'd');
    CHECK(!pthread_join(faulting, 0));
    close(uffd);
}

// A poll reports the message without taking it, and the message wakes an epoll.
static void poll_reports_a_fault(void) {
    int epoll = epoll_create1(0);
    struct epoll_event event = {.events = EPOLLIN | EPOLLET, .data.u32 = 7};
    CHECK(!epoll_ctl(epoll, EPOLL_CTL_ADD, uffd, &event) && epoll_wait(epoll, &event, 1, 0) == 0);
    for (int n = 0; n < 2; n++) {
        char *page = area + n * PAGE;
        void *got;
        CHECK(!pthread_create(&faulting, 0, load, page));
        CHECK(epoll_wait(epoll, &event, 1, 10000) == 1 && event.data.u32 == 7);
        CHECK(polled(10000) == POLLIN && polled(0) == POLLIN);
        take_message_of(page);
        CHECK(polled(0) == 0);
        fill(page, 'a' + n);
        CHECK(!pthread_join(faulting, &got) && (long)got == 'a' + n);
    }
    close(epoll);
}

// A handler runs while the fault of its thread waits. The thread faults again afterwards.
static void signal_interrupts_a_waiting_fault(void) {
    void *got;
    struct sigaction action = {.sa_handler = count};
    CHECK(!sigaction(SIGUSR1, &action, 0));
    loads = 0;
    CHECK(!pthread_create(&faulting, 0, load, area + 2 * PAGE));
    CHECK(polled(10000) == POLLIN);
    take_message_of(area + 2 * PAGE);
    CHECK(!pthread_kill(faulting, SIGUSR1));
    CHECK(polled(10000) == POLLIN && signals == 1 && loads == 0);
    take_message_of(area + 2 * PAGE);
    fill(area + 2 * PAGE, 'c');
    CHECK(!pthread_join(faulting, &got) && (long)got == 'c' && loads == 1);
    close(uffd);
}

// The descriptor for a child's faults has the flags of the call that made the parent's descriptor.
static void *fork_and_wait(void *unused) {
    pid_t child = fork();
    if (child == 0) _exit(0);
    CHECK(child > 0 && waitpid(child, 0, 0) == child);
    return unused;
}

static void fork_event_has_a_descriptor_with_the_same_flags(void) {
    static const int flags[] = {O_NONBLOCK | O_CLOEXEC, O_NONBLOCK, 0};
    for (int n = 0; n < 3; n++) {
        uffd = syscall(SYS_userfaultfd, flags[n]);
        struct uffdio_api api = {.api = UFFD_API, .features = UFFD_FEATURE_EVENT_FORK};
        CHECK(uffd >= 0 && !ioctl(uffd, UFFDIO_API, &api));
        area = mmap(0, PAGE, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
        struct uffdio_register range = {{(long)area, PAGE}, UFFDIO_REGISTER_MODE_MISSING, 0};
        CHECK(!ioctl(uffd, UFFDIO_REGISTER, &range));
        CHECK(!pthread_create(&faulting, 0, fork_and_wait, 0));
        struct uffd_msg message;
        int got;
        while ((got = read(uffd, &message, sizeof message)) == -1 && errno == EAGAIN) usleep(1000);
        CHECK(got == sizeof message && message.event == UFFD_EVENT_FORK);
        int child = message.arg.fork.ufd;
        CHECK((fcntl(child, F_GETFL) & O_NONBLOCK) == (flags[n] & O_NONBLOCK));
        CHECK(fcntl(child, F_GETFL) == fcntl(uffd, F_GETFL));
        CHECK((fcntl(child, F_GETFL) & O_ACCMODE) == O_RDONLY);
        CHECK(!(fcntl(child, F_GETFD) & FD_CLOEXEC) == !(flags[n] & O_CLOEXEC));
        CHECK(!pthread_join(faulting, 0));
        struct pollfd entry = {.fd = child, .events = POLLIN};
        CHECK(flags[n] ? poll(&entry, 1, 0) == 0 : poll(&entry, 1, 0) == 1 && entry.revents == POLLERR);
        CHECK(!close(child) && !close(uffd) && !munmap(area, PAGE));
    }
}

static void *remove_page(void *at) {
    CHECK(!madvise(at, PAGE, MADV_DONTNEED));
    return 0;
}

// From the start of a change to the reading of its message, each request that changes pages fails with
// EAGAIN, whatever its fields are.
static void requests_fail_while_a_change_is_unread(void) {
    uffd = syscall(SYS_userfaultfd, O_NONBLOCK);
    struct uffdio_api api = {.api = UFFD_API, .features = UFFD_FEATURE_EVENT_REMOVE};
    CHECK(uffd >= 0 && !ioctl(uffd, UFFDIO_API, &api));
    area = mmap(0, PAGE, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    struct uffdio_register range = {{(long)area, PAGE}, UFFDIO_REGISTER_MODE_MISSING, 0};
    CHECK(!ioctl(uffd, UFFDIO_REGISTER, &range));
    struct uffdio_copy copy = {0};
    CHECK(ioctl(uffd, UFFDIO_COPY, &copy) == -1 && errno == EINVAL && copy.copy == 0);
    CHECK(!pthread_create(&faulting, 0, remove_page, area));
    CHECK(polled(10000) == POLLIN);
    CHECK(ioctl(uffd, UFFDIO_COPY, &copy) == -1 && errno == EAGAIN && copy.copy == -EAGAIN);
    copy.copy = 0, copy.mode = ~0UL;
    CHECK(ioctl(uffd, UFFDIO_COPY, &copy) == -1 && errno == EAGAIN && copy.copy == -EAGAIN);
    struct uffdio_zeropage zeroes = {0};
    CHECK(ioctl(uffd, UFFDIO_ZEROPAGE, &zeroes) == -1 && errno == EAGAIN && zeroes.zeropage == -EAGAIN);
    struct uffdio_continue present = {0};
    CHECK(ioctl(uffd, UFFDIO_CONTINUE, &present) == -1 && errno == EAGAIN && present.mapped == -EAGAIN);
    // POISON, MOVE and WRITEPROTECT by their numbers: older headers lack the first two.
    long request[5] = {0};
    CHECK(ioctl(uffd, 0xc020aa08, request) == -1 && errno == EAGAIN && request[3] == -EAGAIN);
    CHECK(ioctl(uffd, 0xc028aa05, request) == -1 && errno == EAGAIN && request[4] == -EAGAIN);
    CHECK(ioctl(uffd, 0xc018aa06, 0) == -1 && errno == EAGAIN);
    CHECK(ioctl(uffd, UFFDIO_COPY, 0) == -1 && errno == EFAULT);
    CHECK(ioctl(uffd, UFFDIO_UNREGISTER, 0) == -1 && errno == EFAULT);
    struct uffd_msg message;
    CHECK(read(uffd, &message, sizeof message) == sizeof message && message.event == UFFD_EVENT_REMOVE);
    CHECK(!pthread_join(faulting, 0));
    fill(area, 'd');
    CHECK(area[0] == 'd' && !close(uffd) && !munmap(area, PAGE));
}

// The pool has four pages.
static void huge_segment_reserves_its_pages(void) {
    int first = shmget(IPC_PRIVATE, 3 * HUGE, SHM_HUGETLB | 0600);
    CHECK(first >= 0);
    CHECK(shmget(IPC_PRIVATE, 2 * HUGE, SHM_HUGETLB | 0600) == -1 && errno == ENOMEM);
    int loose = shmget(IPC_PRIVATE, 2 * HUGE, SHM_HUGETLB | SHM_NORESERVE | 0600);
    CHECK(loose >= 0);
    char *at = shmat(first, 0, 0);
    CHECK(at != (void *)-1);
    for (int n = 0; n < 3; n++) at[n * HUGE] = n;
    CHECK(!shmdt(at) && !shmctl(first, IPC_RMID, 0) && !shmctl(loose, IPC_RMID, 0));
    int again = shmget(IPC_PRIVATE, 4 * HUGE, SHM_HUGETLB | 0600);
    CHECK(again >= 0 && !shmctl(again, IPC_RMID, 0));
}

static void blocks_of_a_file_count_present_pages(void) {
    struct stat stat;
    int file = memfd_create("blocks", 0);
    CHECK(!ftruncate(file, 1 << 30) && !fstat(file, &stat) && stat.st_blocks == 0);
    for (long at = 0; at < 5; at++) CHECK(pwrite(file, "x", 1, at << 26) == 1);
    CHECK(!fstat(file, &stat) && stat.st_size == 1 << 30 && stat.st_blocks == 5 * 8);
    CHECK(!fallocate(file, FALLOC_FL_PUNCH_HOLE | FALLOC_FL_KEEP_SIZE, 1 << 26, PAGE));
    CHECK(!fstat(file, &stat) && stat.st_blocks == 4 * 8);
    CHECK(!ftruncate(file, PAGE) && !fstat(file, &stat) && stat.st_blocks == 8);
    close(file);
}

int main(void) {
    PART(poll_fails_without_api_call_or_nonblock);
    PART(poll_reports_a_fault);
    PART(signal_interrupts_a_waiting_fault);
    PART(message_names_the_thread);
    PART(fork_event_has_a_descriptor_with_the_same_flags);
    PART(requests_fail_while_a_change_is_unread);
    PART(huge_segment_reserves_its_pages);
    PART(blocks_of_a_file_count_present_pages);
    return 0;
}
