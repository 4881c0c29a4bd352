/* Uses the library wrongly: a handle is NULL. The library calls the function panic. */
#include "board.h"

#include <freehold.h>

int main(void) {
    board_boot(256);
    fh_trim(NULL);
    return 0;
}
