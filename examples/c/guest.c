/* A hypervisor with one guest: guest memory that is mapped on demand, and the pages that the guest writes. */
#include "board.h"

#include <errno.h>
#include <freehold.h>
#include <inttypes.h>
#include <stdio.h>

#define PAGE BOARD_PAGE
#define READ FH_RIGHTS_EXEC
#define READ_WRITE (FH_RIGHTS_EXEC | FH_RIGHTS_WRITE)

/* Guest-physical addresses below 1 MiB are memory, except those of the devices from 640 KiB on. */
enum { PAGES = 256, DEVICES = 160 };

struct guest {
    struct fh_stage *stage;
    /* The pages that the guest has written since the log began, and whether there is a log. */
    bool logs, written[PAGES];
    int faults;
};

/* Handles a fault of the second stage: maps a missing page, or logs the first store to a page. Returns false
 * if the address is a device, which a hypervisor emulates. */
static bool handle_fault(struct guest *guest, uint64_t address, uint32_t access) {
    uint64_t frame, page = address / PAGE, start = page * PAGE;
    if (page >= DEVICES)
        return false;
    guest->faults++;
    bool store = access & FH_ACCESS_WRITE;
    if (store)
        guest->written[page] = true;
    uint32_t rights = store || !guest->logs ? READ_WRITE : READ;
    if (fh_stage_translate(guest->stage, start, &frame) == 0)
        fh_stage_protect(guest->stage, start, start + PAGE, rights);
    else
        REQUIRE(fh_stage_map(guest->stage, start, start + PAGE, rights) == 0);
    return true;
}

/* Acts as the CPU: walks the second stage, and leaves the guest at a fault. Returns NULL for a device. */
static _Atomic uint64_t *access_word(struct guest *guest, uint64_t address, uint32_t access) {
    uint64_t frame;
    while (fh_walk(fh_stage_root(guest->stage), address, access, &frame) != 0) {
        if (!handle_fault(guest, address, access))
            return NULL;
        fh_tick();
    }
    return board_word(frame, address % PAGE);
}

static void store(struct guest *guest, uint64_t address, uint64_t value) {
    _Atomic uint64_t *word = access_word(guest, address, FH_ACCESS_WRITE);
    REQUIRE(word);
    *word = value;
}

static uint64_t load(struct guest *guest, uint64_t address) {
    _Atomic uint64_t *word = access_word(guest, address, 0);
    REQUIRE(word);
    return *word;
}

/* Begins a round of the log: the next store to each page faults. */
static void begin_round(struct guest *guest) {
    guest->logs = true;
    for (int page = 0; page < PAGES; page++)
        guest->written[page] = false;
    fh_stage_protect(guest->stage, 0, PAGES * PAGE, READ);
}

/* Copies all pages, or only those of the log, to another guest. Returns the number of pages. */
static int send(struct guest *from, struct guest *to, bool only_written) {
    int sent = 0;
    for (uint64_t page = 0; page < DEVICES; page++) {
        uint64_t frame;
        bool resident = fh_stage_translate(from->stage, page * PAGE, &frame) == 0;
        if (!resident || (only_written && !from->written[page]))
            continue;
        for (uint64_t offset = 0; offset < PAGE; offset += 8)
            store(to, page * PAGE + offset, *board_word(frame, offset));
        sent++;
    }
    return sent;
}

int main(void) {
    struct fh_memory *memory;
    struct guest guest = {0}, target = {0};
    board_boot(1024);
    REQUIRE(fh_memory_new(&memory) == 0);
    REQUIRE(fh_stage_new(memory, &guest.stage) == 0 && fh_stage_new(memory, &target.stage) == 0);

    REQUIRE(fh_stage_map(guest.stage, 0, 4 * PAGE, READ_WRITE) == 0);
    printf("4 pages are mapped in advance\n");
    store(&guest, 0x7c00, 1);
    store(&guest, 0x8000, 2);
    REQUIRE(load(&guest, 0x9000) == 0 && load(&guest, 0x1000) == 0);
    printf("%d faults map pages: ", guest.faults);
    printf("%" PRIu64 " pages are resident\n", fh_stage_resident(guest.stage));
    REQUIRE(access_word(&guest, 0xb8000, FH_ACCESS_WRITE) == NULL);
    printf("a store to the screen at 0xb8000 leaves the guest for the device\n");

    begin_round(&guest);
    int all = send(&guest, &target, false);
    store(&guest, 0x7c00, 10);
    store(&guest, 0x7c08, 11);
    store(&guest, 0xa000, 12);
    load(&guest, 0x8000);
    printf("migration: %d pages are sent", all);
    printf(", then the %d pages that the guest has written since\n", send(&guest, &target, true));
    for (uint64_t address = 0; address < DEVICES * PAGE; address += 8)
        REQUIRE(load(&guest, address) == load(&target, address));
    printf("the target has the same memory\n");

    fh_stage_unmap(guest.stage, 0, PAGES * PAGE);
    printf("a balloon: %" PRIu64 " pages are resident\n", fh_stage_resident(guest.stage));
    fh_stage_end(guest.stage);
    fh_stage_end(target.stage);
    fh_memory_put(memory);
    board_check();
    return 0;
}
