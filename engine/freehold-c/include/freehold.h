/*
 * Freehold for kernels in C: address spaces with the behaviour of Linux.
 *
 * SPDX-License-Identifier: MIT OR Apache-2.0
 *
 * This file is generated from the crate freehold-c, and a test compares both. `cargo xtask c-library` builds
 * the library. `examples/c` has programs, and `docs/guide/platform.md` has the contract of the functions that a
 * kernel provides.
 *
 * Rules for all calls:
 *
 * - A result of type int or int64_t is negative after an error: -EINVAL and so on, with the numbers of Linux.
 * - Pointers must not be NULL, unless the description says so. A pointer to an engine, a space, a file, a
 *   memory or a stage is valid from the call that stores it until the call that ends it, `fh_..._put` or
 *   `fh_stage_end`. These calls accept NULL. After an error, NULL is stored.
 * - A buffer has as many bytes as its length says, and no other thread uses it during the call.
 * - Calls may be made on any thread and at the same time, with preemption and interrupts on. They may sleep,
 *   except where the description says otherwise. A call must not be made from an interrupt, between cpu_enter
 *   and cpu_exit, or by a function of struct fh_platform_ops, except by memory_short.
 * - Addresses and lengths that come from a program need no check before a call. Numbers such as PROT_READ and
 *   MAP_PRIVATE are those of Linux.
 * - Declarations behind FH_LINK_TIME and FH_CONFORMANCE belong to libraries that are built with the option
 *   --link-time or --conformance of cargo xtask c-library. A program defines the macro before it includes this
 *   header.
 * - fh_init comes first. Only fh_version may be called before it.
 */


#ifndef FREEHOLD_H
#define FREEHOLD_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

/**
 * Stands for a frame number where there is none.
 */
#define FH_NO_FRAME UINT64_MAX

#if defined(FH_CONFORMANCE)
/**
 * Outcome of a check: no mistake was found.
 */
#define FH_CHECK_PASSED 0
#endif

#if defined(FH_CONFORMANCE)
/**
 * Outcome of a check: the text names the mistake.
 */
#define FH_CHECK_FAILED 1
#endif

#if defined(FH_CONFORMANCE)
/**
 * Outcome of a check: it did not run, for the reason in the text.
 */
#define FH_CHECK_NOT_RUN 2
#endif

/**
 * Bit of an access: a store.
 */
#define FH_ACCESS_WRITE 1

/**
 * Bit of an access: an instruction fetch.
 */
#define FH_ACCESS_EXEC 2

/**
 * Bit of an access: the processor was in its privileged mode.
 */
#define FH_ACCESS_KERNEL 4

/**
 * Bit of the access of a file: opened for reading.
 */
#define FH_FILE_READ 1

/**
 * Bit of the access of a file: opened for writing.
 */
#define FH_FILE_WRITE 2

/**
 * Bit of the rights of a page: stores are allowed.
 */
#define FH_RIGHTS_WRITE 1

/**
 * Bit of the rights of a page: instruction fetches are allowed.
 */
#define FH_RIGHTS_EXEC 2

/**
 * Size of the record of a frame in bytes. Records are aligned to 8 bytes.
 */
#define FH_FRAME_RECORD_SIZE 32

/**
 * Size of the record of a page table in bytes. Records are aligned to 64 bytes.
 */
#define FH_TABLE_RECORD_SIZE 64

/**
 * The use of frames: private memory of programs.
 */
#define FH_FRAMES_ANONYMOUS 0

/**
 * The use of frames: files and shared memory.
 */
#define FH_FRAMES_FILE 1

/**
 * The use of frames: page tables.
 */
#define FH_FRAMES_TABLE 2

/**
 * The use of frames: any other.
 */
#define FH_FRAMES_OTHER 3

/**
 * The state that all address spaces and files share.
 */
struct fh_engine;

/**
 * An open file.
 */
struct fh_file;

/**
 * The memory of stages.
 */
struct fh_memory;

/**
 * The address space of a process.
 */
struct fh_space;

/**
 * Page tables of a guest, with the pages that they map.
 */
struct fh_stage;

/**
 * A request for frames.
 */
struct fh_frame_request {
    /**
     * Each block has 2^order frames, and begins at a multiple of its size. 0 means single frames.
     */
    uint32_t order;
    /**
     * The use of the frames, FH_FRAMES_ANONYMOUS and so on.
     */
    uint32_t purpose;
    /**
     * The space that the pages are for, as space_created has recorded it. NULL for other owners.
     */
    void *space;
    /**
     * True if a failure costs only speed, so that the kernel should not wait or reclaim.
     */
    bool opportunistic;
};

/**
 * The translations that a flush removes.
 */
struct fh_flush {
    /**
     * The root table of the space.
     */
    uint64_t root;
    /**
     * The first address.
     */
    uint64_t start;
    /**
     * The address after the last one.
     */
    uint64_t end;
    /**
     * True if all addresses are flushed. Then start and end have no meaning.
     */
    bool all;
    /**
     * True if page tables were removed. The flush then also empties the caches of table walks.
     */
    bool tables_freed;
};

/**
 * The storage of a deferred function, inside of an object of the library.
 */
struct fh_deferred {
    /**
     * For lists of the kernel, from rcu_defer until fh_rcu_run.
     */
    struct fh_deferred *next;
    /**
     * Belongs to the library.
     */
    const void *function;
};

/**
 * The functions of the kernel. A field that is not marked as optional must not be NULL.
 *
 * Letters in parentheses name the context of the call, with the letters of docs/guide/platform.md. L: the
 * caller may hold sleeping locks of the library. T and S: also spin locks. R: also a read section. C: inside
 * of cpu_enter. D: inside of a deferred function. A function may sleep if the description says so; it must
 * not wait for a task that waits for the library. Only memory_short may call the library.
 */
struct fh_platform_ops {
    /**
     * Size of this structure in bytes: sizeof(struct fh_platform_ops).
     */
    size_t size;
    /**
     * Allocates memory of the kernel. Returns NULL if there is none; the call of the library then fails with
     * -ENOMEM. (L; may sleep)
     */
    void *(*alloc)(size_t size, size_t align);
    /**
     * Frees memory of alloc. The numbers are those of the allocation. (L, D)
     */
    void (*free)(void *memory, size_t size, size_t align);
    /**
     * Ends the kernel: the library has found a bug, in itself or in its use. The message is a string in
     * UTF-8. Must not return; the calling task stays in an endless loop if it does. (everywhere)
     */
    void (*panic)(const char *message);
    /**
     * Sleeps while the word has the expected value, until wake is called for this address. The comparison
     * and the start of the sleep are one step with respect to wake. May return early. (L; sleeps)
     */
    void (*wait)(const uint32_t *word, uint32_t expected);
    /**
     * Wakes one task that sleeps on this address, or all of them. Does not read the word. (L, R)
     */
    void (*wake)(const uint32_t *word, bool all);
    /**
     * Turns preemption off and returns the number of this CPU. The library calls cpu_exit before it sleeps.
     * Sections overlap, so the kernel counts them: preemption stays off until the last one ends. Interrupts
     * may stay on. (L, T, S, R, C, D)
     */
    uint32_t (*cpu_enter)(void);
    /**
     * Ends a section of cpu_enter on the same CPU. (L, T, S, R, C, D)
     */
    void (*cpu_exit)(void);
    /**
     * Takes up to count blocks of frames. Writes the number of the first frame of each block to frames, and
     * returns how many blocks it took. 0 means that there is no such block. A kernel without blocks of
     * several frames returns 0 for every order but 0. The contents of the frames may be anything. (L; may
     * sleep)
     */
    size_t (*alloc_frames)(const struct fh_frame_request *request, uint64_t *frames, size_t count);
    /**
     * Frees frames, which may have come in blocks, one by one. (L)
     */
    void (*free_frames)(const uint64_t *frames, size_t count);
    /**
     * Returns only when no CPU can use a translation that the request covers. If tables were freed, no CPU
     * may read a table of the range any more, either. space is the record of space_created. Must not wait
     * for a CPU that spins for a spin lock. (L, T, R)
     */
    void (*flush)(void *space, const struct fh_flush *request);
    /**
     * Optional. Like wait, but ends early if a fatal signal is pending for the task, also if there is
     * nothing to wait for. Returns true in this case; the call of the library then fails with -EINTR. By
     * default, wait is called, and calls are not interrupted. (L; sleeps)
     */
    bool (*wait_killable)(const uint32_t *word, uint32_t expected);
    /**
     * Optional. Like wait_killable, for any signal that the program must handle. By default, wait_killable
     * is called. (L; sleeps)
     */
    bool (*wait_interruptible)(const uint32_t *word, uint32_t expected);
    /**
     * Optional. Turns preemption off until spin_exit, because the task spins for a lock or holds one.
     * Sections overlap. Interrupts stay on, unless relax answers the interrupts of flushes. By default,
     * cpu_enter is called. Set both or none. (L, T, S, R)
     */
    void (*spin_enter)(void);
    /**
     * Optional. Ends a section of spin_enter. (L, T, S, R)
     */
    void (*spin_exit)(void);
    /**
     * Optional. Pauses briefly, in loops that wait for another CPU. By default, executes the instruction
     * that pauses a CPU. (L, T, S, R)
     */
    void (*relax)(void);
    /**
     * Optional. Lets another task run if it is time, for kernels without preemption. (L, S, R)
     */
    void (*cond_resched)(void);
    /**
     * Optional. Returns the time in nanoseconds, from a clock that does not go back. By default 0.
     * (everywhere)
     */
    uint64_t (*now_ns)(void);
    /**
     * Optional. Begins a read section of the kernel's own RCU. Sections nest. By default, the library has
     * grace periods of its own: a section is one of cpu_enter, and the kernel calls fh_tick from time to
     * time. Set all four functions of RCU, or none. (L, T, R)
     */
    void (*rcu_read_enter)(void);
    /**
     * Optional. Ends a read section. (L, T, R)
     */
    void (*rcu_read_exit)(void);
    /**
     * Optional. Arranges that fh_rcu_run(head) is called once, after all read sections that are open now
     * have ended. Until then, the kernel may use the field next of the head. Does not fail. (L, R, D)
     */
    void (*rcu_defer)(struct fh_deferred *head);
    /**
     * Optional. Returns when the functions of all earlier calls of rcu_defer have run. (L; sleeps)
     */
    void (*rcu_barrier)(void);
    /**
     * Optional. Takes a frame for a page table of the space with this root, and fills it with zeroes. root
     * is FH_NO_FRAME for the root of a new space. Returns false if there is no memory. By default, the
     * library takes a frame of alloc_frames. Set both functions for tables, or none. (L; may sleep)
     */
    bool (*alloc_table)(uint64_t root, uint64_t *table);
    /**
     * Optional. Frees a table of alloc_table. The table contains zeroes. The memory stays readable. (L)
     */
    void (*free_table)(uint64_t table);
    /**
     * Optional. Makes the contents of frames visible to the instruction fetches of all CPUs. Must be set on
     * processors whose fetches do not see earlier stores, which are RISC-V and Arm. (L, T)
     */
    void (*publish_code)(uint64_t first, uint64_t count);
    /**
     * Optional. Returns false for a number between first_frame and the last frame that has no memory. By
     * default, there are no holes. (everywhere)
     */
    bool (*has_frame)(uint64_t frame);
    /**
     * Optional. Takes count consecutive frames, and writes the number of the first one to frame. Returns
     * false if there are none. By default, there are none. (L; may sleep)
     */
    bool (*alloc_run)(uint64_t count, uint64_t *frame);
    /**
     * Optional. Fills a frame with zeroes. (L, T, R)
     */
    void (*zero_frame)(uint64_t frame);
    /**
     * Optional. Copies a frame. Programs may store to both frames during the copy. (L, T, R)
     */
    void (*copy_frame)(uint64_t to, uint64_t from);
    /**
     * Optional. Makes memory free for a call that has found none, and returns true if the call should try
     * again. order is that of the block that was not found, and round counts the earlier questions for this
     * call, from 0. Nothing is held, so the function may call the library. By default, the call fails.
     * (nothing held; may sleep)
     */
    bool (*memory_short)(uint32_t order, uint32_t round);
    /**
     * Optional. Begins the life of a space or a stage with this root table, which is empty. May fill the
     * kernel's half of the root. Writes the kernel's record of the space to space; it is an argument of the
     * other functions. Returns false if there is no memory. By default, the record is NULL. (nothing held;
     * may sleep)
     */
    bool (*space_created)(uint64_t root, void **space);
    /**
     * Optional. Ends the life of a space. When it returns, no CPU has the root in its register. (nothing
     * held; may sleep)
     */
    void (*space_ending)(void *space, uint64_t root);
    /**
     * Optional. Returns false if no CPU but this one may have translations of the space. By default true.
     * (L)
     */
    bool (*runs_elsewhere)(void *space);
};

/**
 * The memory and the CPUs of the kernel. All arrays exist as long as the kernel, and do not move.
 *
 * The library writes to a frame of `direct_map` only while it owns the frame, and only the library writes
 * to the records.
 */
struct fh_machine {
    /**
     * Size of this structure in bytes: sizeof(struct fh_machine).
     */
    size_t size;
    /**
     * The number of CPU numbers, from 1 to 256. cpu_enter returns numbers below it.
     */
    uint32_t cpus;
    /**
     * The number of the first frame. A frame has 4096 bytes; the frame with number n begins at the physical
     * address 4096 * n.
     */
    uint64_t first_frame;
    /**
     * The number of frames, from 1. Frame numbers stay below 2^40.
     */
    uint64_t frames;
    /**
     * The address at which the kernel reads and writes the first frame. The others follow it.
     */
    void *direct_map;
    /**
     * One record for each frame: an array of zeroes, FH_FRAME_RECORD_SIZE bytes for each frame.
     */
    void *frame_records;
    /**
     * One record for each frame that may become a page table: an array of zeroes, FH_TABLE_RECORD_SIZE bytes
     * for each frame.
     */
    void *table_records;
};

#if defined(FH_CONFORMANCE)
/**
 * The functions of the kernel that the conformance suite needs, besides those of struct fh_platform_ops.
 * docs/guide/conformance.md describes the checks.
 */
struct fh_check_ops {
    /**
     * Size of this structure in bytes: sizeof(struct fh_check_ops).
     */
    size_t size;
    /**
     * Receives the result of each check: its name, FH_CHECK_PASSED and so on, and a text. Called when all
     * checks have run.
     */
    void (*report)(const char *check, uint32_t outcome, const char *text);
    /**
     * Optional. Receives the name of each check before it begins. If the kernel hangs or panics, the last
     * name is that of the check.
     */
    void (*begins)(const char *check);
    /**
     * Optional. Runs first(first_data) on the calling task and second(second_data) on another CPU at the
     * same time. Returns when both have returned.
     */
    void (*run_two)(void (*first)(void *data), void *first_data, void (*second)(void *data), void *second_data);
    /**
     * Optional. Loads the aligned word at this address as a program of the space does, and writes it to
     * value. Returns false if the access faults; the fault is not handled.
     */
    bool (*load)(void *space, uint64_t root, uint64_t address, uint64_t *value);
    /**
     * Optional. Makes the CPU leave the space that load has entered.
     */
    void (*leave_space)(void *space, uint64_t root);
    /**
     * True if the suite may allocate all frames for a moment.
     */
    bool may_use_all_memory;
};
#endif

/**
 * The signal for the program whose access cannot continue. The numbers are those of Linux.
 */
struct fh_signal {
    /**
     * si_signo: 11 for SIGSEGV, 7 for SIGBUS.
     */
    int32_t number;
    /**
     * si_code.
     */
    int32_t code;
    /**
     * si_addr: the address of the access.
     */
    uint64_t address;
    /**
     * si_addr_lsb, for failed memory; otherwise 0.
     */
    uint32_t address_lsb;
};

/**
 * The functions of a file system, for one file. A field that is not marked as optional must not be NULL.
 *
 * data is the pointer that fh_file_new has received. Functions may be called at the same time, for different
 * pages, and hold no lock of the library if the description does not say so.
 */
struct fh_pager_ops {
    /**
     * Size of this structure in bytes: sizeof(struct fh_pager_ops).
     */
    size_t size;
    /**
     * Fills the memory at page, 4096 bytes, with the page of this number. Bytes beyond the end of the file
     * may be anything. Returns 0, or another number if the page cannot be read. May sleep.
     */
    int (*read_page)(void *data, uint64_t index, void *page);
    /**
     * Optional. Stores the memory at page as the page of this number. A program may store to the page during
     * the call; the page is then written again. Returns 0, or another number if the page cannot be written;
     * it then stays dirty. May sleep. By default, dirty pages count as written.
     */
    int (*write_page)(void *data, uint64_t index, const void *page);
    /**
     * Optional. Records a new size of the file in bytes. Called with a lock of the file held, so it must not
     * sleep and must not call the library.
     */
    void (*resized)(void *data, uint64_t size);
    /**
     * Optional. Frees pages that a truncation has cut off: count pages from the page first on. Later reads
     * return zeroes for them. May sleep.
     */
    void (*discard)(void *data, uint64_t first, uint64_t count);
    /**
     * Optional. Ends the use of data, after the last reference and the last mapping of the file. May sleep.
     */
    void (*release)(void *data);
};

#ifdef __cplusplus
extern "C" {
#endif // __cplusplus

/**
 * Returns the version of the library: 0x010203 is version 1.2.3.
 */
uint32_t fh_version(void);

/**
 * Tells the library the functions and the memory of the kernel. Called once, before all other calls except
 * fh_version.
 *
 * Both structures are copied. All functions stay valid as long as the kernel runs. A library that is built
 * with the feature link-time calls fh_platform_wait and so on instead of the mandatory functions. ops then
 * has the optional functions, or is NULL.
 *
 * Returns 0; -EINVAL if a mandatory function or a number is missing or wrong, and then changes nothing; or
 * -EBUSY if an earlier call has succeeded, or runs at this moment.
 */
int fh_init(const struct fh_platform_ops *ops, const struct fh_machine *machine);

#if defined(FH_CONFORMANCE)
/**
 * Runs the conformance suite on the functions of fh_init: first the functions alone, then an engine on them.
 * In a library that is built with the feature conformance.
 *
 * Returns the number of failed checks; -EINVAL if report is missing, or before fh_init has succeeded; or
 * -ENOMEM. The suite itself needs memory of alloc, and panics if there is none. No other task uses the
 * library during the call.
 */
int fh_check_platform(const struct fh_check_ops *ops);
#endif

/**
 * Creates an engine. Most kernels have one. Engines share nothing but the functions of fh_init.
 *
 * Returns 0; -EINVAL before fh_init has succeeded; or -ENOMEM.
 */
int fh_engine_new(struct fh_engine **engine);

/**
 * Drops a reference. The last reference of an engine is that of the kernel or of an address space or a file,
 * and its end waits for a grace period.
 */
void fh_engine_put(struct fh_engine *engine);

/**
 * Takes pages away from programs and files until this many frames are free, or until no more are found.
 * Returns the number of frames that have become free; some stay in the cache of this CPU (fh_trim).
 *
 * Dirty pages of files are written by the pager. Anonymous memory stays, because the library has no swap
 * devices. For memory_short, or for a task of the kernel that runs when little memory is free.
 */
uint64_t fh_reclaim(const struct fh_engine *engine, uint64_t frames);

/**
 * Returns the memory that the library keeps for this CPU to the kernel: free frames, and memory for records.
 */
void fh_trim(const struct fh_engine *engine);

/**
 * Handles a page fault of a task of the space. access has bits FH_ACCESS_. Called with interrupts on, by the
 * task that has faulted; may sleep.
 *
 * Returns 0 or 1 if the task repeats the access: 1 after a major fault, which has read from a file. Returns
 * -EFAULT if the program gets the signal that is written to signal. Returns -ENOMEM if there is no memory;
 * the kernel then makes memory free and repeats the access, or ends a process. Returns -EINTR if a signal is
 * pending, which the task handles first.
 */
int fh_fault(const struct fh_space *space, uint64_t address, uint32_t access, struct fh_signal *signal);

/**
 * Walks the page tables below a root, as the processor does, and sets accessed and dirty bits. For kernels
 * that simulate a processor, and for tests.
 *
 * Returns 0 and writes the frame of the address to frame, or returns -EFAULT if the processor would fault.
 * Takes no lock. The flush of the kernel must wait until both the walk and the access to the frame are over.
 */
int fh_walk(uint64_t root, uint64_t address, uint32_t access, uint64_t *frame);

/**
 * Opens a file of the kernel with this size in bytes. access has bits FH_FILE_. name is a string in UTF-8,
 * which reports show. ops is copied.
 *
 * Returns 0; -EINVAL if ops has no read_page, or if name is no string in UTF-8; or -ENOMEM. After a failure,
 * data still belongs to the caller, and release is not called.
 */
int fh_file_new(const struct fh_engine *engine,
                const struct fh_pager_ops *ops,
                void *data,
                uint64_t size,
                const char *name,
                uint32_t access,
                struct fh_file **file);

/**
 * Creates shared memory of this size in bytes, whose pages begin as zeroes (memfd_create). Returns 0 or
 * -ENOMEM.
 */
int fh_memory_file_new(const struct fh_engine *engine, uint64_t size, struct fh_file **file);

/**
 * Adds a reference, for example for a copy of a file descriptor. Returns file.
 */
struct fh_file *fh_file_get(struct fh_file *file);

/**
 * Drops a reference. Mappings have references of their own. Dirty pages are lost at the end of the file, so
 * the kernel calls fh_file_sync before. May sleep.
 */
void fh_file_put(struct fh_file *file);

/**
 * Returns the size of the file in bytes.
 */
uint64_t fh_file_size(const struct fh_file *file);

/**
 * Reads bytes of the file through the page cache, as pread(2) does. Returns the number of bytes, which is 0
 * at the end of the file, or -EIO, -ENOMEM or -EINTR. The access of the file is not checked.
 */
int64_t fh_file_read(const struct fh_file *file, uint64_t offset, void *out, size_t length);

/**
 * Writes bytes of the file through the page cache, as pwrite(2) does; the file grows if necessary. Returns
 * the number of bytes, or -EIO, -EFBIG, -ENOMEM or -EINTR. The access of the file is not checked.
 */
int64_t fh_file_write(const struct fh_file *file, uint64_t offset, const void *data, size_t length);

/**
 * Changes the size of the file in bytes. Pages beyond the end leave all address spaces; accesses to them
 * raise SIGBUS. Returns 0, -EIO, -ENOMEM or -EINTR.
 */
int fh_file_truncate(const struct fh_file *file, uint64_t size);

/**
 * Writes all dirty pages, as fsync(2) does, and waits for the writes. Returns 0, -EINTR, or -EIO if a write
 * has failed since the last call.
 */
int fh_file_sync(const struct fh_file *file);

/**
 * mmap(2). file is NULL for anonymous memory. The mapping keeps a reference to the file.
 *
 * Returns the address, or a negative errno number: -EINVAL, -ENOMEM, -EACCES, -EEXIST and so on.
 */
int64_t fh_mmap(const struct fh_space *space,
                uint64_t address,
                uint64_t length,
                uint64_t prot,
                uint64_t flags,
                const struct fh_file *file,
                uint64_t offset);

/**
 * munmap(2). Returns 0 or a negative errno number: -EINVAL, -ENOMEM, -EINTR.
 *
 * When the call returns, no CPU uses the pages any more, and their frames are free. Other calls and faults
 * of the space run at the same time, except those that touch the range.
 */
int fh_munmap(const struct fh_space *space, uint64_t address, uint64_t length);

/**
 * mprotect(2). Returns 0 or a negative errno number: -EINVAL, -ENOMEM, -EACCES, -EINTR.
 */
int fh_mprotect(const struct fh_space *space, uint64_t address, uint64_t length, uint64_t prot);

/**
 * mremap(2). Returns the new address, or a negative errno number: -EINVAL, -ENOMEM, -EFAULT, -EINTR.
 */
int64_t fh_mremap(const struct fh_space *space,
                  uint64_t address,
                  uint64_t old_length,
                  uint64_t new_length,
                  uint64_t flags,
                  uint64_t new_address);

/**
 * madvise(2), with the numbers of Linux: 4 is MADV_DONTNEED. Returns 0 or a negative errno number.
 */
int fh_madvise(const struct fh_space *space, uint64_t address, uint64_t length, uint32_t advice);

/**
 * mlock2(2): flags is 0, or 1 for MLOCK_ONFAULT. Returns 0 or a negative errno number.
 */
int fh_mlock(const struct fh_space *space, uint64_t address, uint64_t length, uint32_t flags);

/**
 * munlock(2). Returns 0 or a negative errno number.
 */
int fh_munlock(const struct fh_space *space, uint64_t address, uint64_t length);

/**
 * msync(2): flags has the bits 1 (MS_ASYNC), 2 (MS_INVALIDATE) and 4 (MS_SYNC). Returns 0 or a negative
 * errno number.
 */
int fh_msync(const struct fh_space *space, uint64_t address, uint64_t length, uint32_t flags);

/**
 * mincore(2): writes one byte for each page to out, 1 if the page is resident and 0 if not. out has room for
 * all pages. Returns 0 or a negative errno number.
 */
int fh_mincore(const struct fh_space *space, uint64_t address, uint64_t length, uint8_t *out);

/**
 * brk(2). Returns the break after the call, which is the old one if it could not move, or -EINTR.
 */
int64_t fh_brk(const struct fh_space *space, uint64_t address);

/**
 * Creates the memory that stages share. Returns 0; -EINVAL before fh_init has succeeded; or -ENOMEM.
 */
int fh_memory_new(struct fh_memory **memory);

/**
 * Drops a reference. Stages have references of their own. The end of the last one waits for a grace period.
 */
void fh_memory_put(struct fh_memory *memory);

/**
 * Creates an address space without mappings. Returns 0 or -ENOMEM.
 */
int fh_space_new(const struct fh_engine *engine, struct fh_space **space);

/**
 * Copies an address space, as fork(2) does. Private memory is shared until one side stores to it.
 *
 * Returns 0, -ENOMEM or -EINTR.
 */
int fh_fork(const struct fh_space *parent, struct fh_space **child);

/**
 * Drops a reference. The last reference unmaps everything. No task may run in the space any more.
 */
void fh_space_put(struct fh_space *space);

/**
 * Returns the frame of the root table, which a CPU loads into its register. It stays the same.
 */
uint64_t fh_space_root(const struct fh_space *space);

/**
 * Returns the record that space_created has stored for the space.
 */
void *fh_space_record(const struct fh_space *space);

/**
 * Returns the number of resident pages.
 */
uint64_t fh_resident(const struct fh_space *space);

/**
 * Reads bytes of a program for a system call. Handles the faults of the access.
 *
 * Returns the number of bytes before the first one that cannot be read. If that is none, returns -EFAULT,
 * -ENOMEM or -EINTR.
 */
int64_t fh_read_memory(const struct fh_space *space, uint64_t address, void *out, size_t length);

/**
 * Writes bytes of a program for a system call, like fh_read_memory.
 */
int64_t fh_write_memory(const struct fh_space *space, uint64_t address, const void *data, size_t length);

/**
 * Creates a stage in which nothing is mapped. Returns 0 or -ENOMEM.
 *
 * Calls for one stage must not run at the same time, except fh_stage_root. The kernel has a lock for this.
 */
int fh_stage_new(const struct fh_memory *memory, struct fh_stage **stage);

/**
 * Ends a stage: unmaps and frees all its pages. Does nothing for NULL. No CPU uses the stage any more.
 */
void fh_stage_end(struct fh_stage *stage);

/**
 * Returns the frame of the root table, which a CPU loads into its register. It stays the same.
 */
uint64_t fh_stage_root(const struct fh_stage *stage);

/**
 * Maps new pages of zeroes from start to end, which are multiples of 4096. rights has bits FH_RIGHTS_;
 * loads are always allowed.
 *
 * Returns 0; -EINVAL for a wrong range; -EEXIST if a page is mapped in the range; or -ENOMEM. Nothing is
 * mapped after a failure.
 */
int fh_stage_map(struct fh_stage *stage, uint64_t start, uint64_t end, uint32_t rights);

/**
 * Gives all mapped pages of a range these rights. No CPU uses older rights when the call returns.
 */
void fh_stage_protect(struct fh_stage *stage, uint64_t start, uint64_t end, uint32_t rights);

/**
 * Unmaps the pages of a range and frees them. No CPU uses them when the call returns.
 */
void fh_stage_unmap(struct fh_stage *stage, uint64_t start, uint64_t end);

/**
 * Finds the page of an address. Returns 0 and writes its frame to frame, or returns -EFAULT if nothing is
 * mapped. The frame belongs to the stage until the page is unmapped.
 */
int fh_stage_translate(const struct fh_stage *stage, uint64_t address, uint64_t *frame);

/**
 * Returns the number of mapped pages.
 */
uint64_t fh_stage_resident(const struct fh_stage *stage);

/**
 * Runs the functions whose grace period is over, and begins another grace period. The functions only free
 * memory of alloc.
 *
 * A kernel without an RCU of its own calls this from time to time, for example at the end of each fault or
 * in a tick: otherwise memory is freed only by fh_rcu_barrier. With an RCU of its own, the call does
 * nothing. Must not be called between cpu_enter and cpu_exit of the library. Does not sleep.
 */
void fh_tick(void);

/**
 * Returns when all memory that calls have freed until now was passed to free. Sleeps, or calls relax. The
 * caller holds nothing.
 */
void fh_rcu_barrier(void);

/**
 * Runs a deferred function, for a kernel with an RCU of its own; see rcu_defer. The head does not exist any
 * more when the call returns. Does not sleep.
 */
void fh_rcu_run(struct fh_deferred *head);

#if defined(FH_LINK_TIME)
extern void *fh_platform_alloc(size_t size, size_t align);
#endif

#if defined(FH_LINK_TIME)
extern void fh_platform_free(void *memory, size_t size, size_t align);
#endif

#if defined(FH_LINK_TIME)
extern void fh_platform_panic(const char *message);
#endif

#if defined(FH_LINK_TIME)
extern void fh_platform_wait(const uint32_t *word, uint32_t expected);
#endif

#if defined(FH_LINK_TIME)
extern void fh_platform_wake(const uint32_t *word, bool all);
#endif

#if defined(FH_LINK_TIME)
extern uint32_t fh_platform_cpu_enter(void);
#endif

#if defined(FH_LINK_TIME)
extern void fh_platform_cpu_exit(void);
#endif

#if defined(FH_LINK_TIME)
extern size_t fh_platform_alloc_frames(const struct fh_frame_request *request,
                                       uint64_t *frames,
                                       size_t count);
#endif

#if defined(FH_LINK_TIME)
extern void fh_platform_free_frames(const uint64_t *frames, size_t count);
#endif

#if defined(FH_LINK_TIME)
extern void fh_platform_flush(void *space, const struct fh_flush *request);
#endif

#ifdef __cplusplus
}  // extern "C"
#endif  // __cplusplus

#endif  /* FREEHOLD_H */
