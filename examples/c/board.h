/* A machine in an ordinary process: its memory, its CPUs, and the functions that Freehold requires. */
#ifndef BOARD_H
#define BOARD_H

#include <stdatomic.h>
#include <stdbool.h>
#include <stdint.h>

#define BOARD_PAGE 4096u

/* Creates a machine with this number of frames, and calls fh_init. */
void board_boot(uint64_t frames);

/* Lets the calling thread act as the CPU with this number, until it ends. The first thread is CPU 0. */
void board_act_as_cpu(uint32_t cpu);

/* Begins and ends one instruction of a program. A flush waits for the end of all instructions, so a
 * translation that an instruction has found stays valid until the end of the instruction. */
void board_begin_instruction(void);
void board_end_instruction(void);

/* Returns the word at this byte of a frame. */
_Atomic uint64_t *board_word(uint64_t frame, uint64_t offset);

/* Prints the number of frames and of bytes in the heap that are still in use, and ends the program if there
 * are any. All objects of the library have been put before. */
void board_check(void);

/* Ends the program if a condition does not hold. */
void board_require(bool holds, const char *condition);
#define REQUIRE(condition) board_require(condition, #condition)

#endif
