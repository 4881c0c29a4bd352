/* cc -O1 -static: stores to a huge page after a fork. The store of the child splits the page. The store
   of the parent keeps the page whole, because the child has exited and no other process maps the page. */
#include <stdint.h>
#include <sys/mman.h>
#include <sys/wait.h>
#include <unistd.h>
#define HUGE (2L << 20)

int main(void)
{
	for (int i = 0; i < 10; i++) {
		char *room = mmap(0, 4 * HUGE, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
		char *page = (char *)(((uintptr_t)room + HUGE - 1) & -HUGE);
		madvise(page, HUGE, MADV_HUGEPAGE);
		page[0] = 1;
		pid_t child = fork();
		if (!child) {
			page[0] = 2;
			_exit(0);
		}
		waitpid(child, 0, 0);
		page[0] = 3;
	}
	return 0;
}
