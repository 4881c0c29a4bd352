/* cc -O1 -static -pthread: a thread stores to pages and discards them while the main thread forks.
   Each fork takes long enough for several stores and discards. */
#include <pthread.h>
#include <sys/mman.h>
#include <sys/wait.h>
#include <unistd.h>
#define PAGE 4096L
static char *pages;
static volatile int stop;

static void *stores(void *unused)
{
	while (!stop) {
		for (int i = 0; i < 22; i++)
			pages[i * PAGE] = 1;
		madvise(pages, 32 * PAGE, MADV_DONTNEED);
	}
	return unused;
}

int main(void)
{
	pthread_t thread;
	/* This mapping lies below all other mappings, so fork copies it first. */
	mmap((void *)0x10000000, 4096 * PAGE, PROT_READ | PROT_WRITE,
	     MAP_PRIVATE | MAP_ANONYMOUS | MAP_FIXED | MAP_POPULATE, -1, 0);
	pages = mmap(0, 32 * PAGE, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
	pthread_create(&thread, 0, stores, 0);
	for (int i = 0; i < 6; i++) {
		pid_t child = fork();
		if (!child)
			_exit(0);
		waitpid(child, 0, 0);
	}
	stop = 1;
	pthread_join(thread, 0);
	return 0;
}
