/* Removes segments of System V shared memory: first without other threads, then while another thread calls
   remap_file_pages. */
#define _GNU_SOURCE
#include <errno.h>
#include <pthread.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/shm.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>
#define P 4096L
static _Atomic int id = -1, turn;
static long anew(char *at, long len) { return syscall(SYS_remap_file_pages, at, len, 0, 0, 0); }
static void *remover(void *rounds) {
  for (long i = 0; i < (long)rounds; i++) {
    while (turn != 1);
    for (volatile int n = rand() % 20000; n > 0; n--);
    shmctl(id, IPC_RMID, 0);
    turn = 2;
  }
  return 0;
}
static char *segment(long pages) {
  id = shmget(IPC_PRIVATE, pages * P, 0600);
  char *at = shmat(id, 0, 0);
  memset(at, 1, pages * P);
  return at;
}
static void end(void) { shmctl(id, IPC_RMID, 0); }
int main(int count, char **args) {
  long rounds = count > 1 ? atol(args[1]) : 200;
  char *at = segment(2), *other;
  end(), anew(at, 2 * P), shmdt(at), shmat(id, 0, 0);               /* the segment is gone */
  at = segment(2), end(), anew(at, P), shmdt(at), shmat(id, 0, 0);     /* the other page stays */
  at = segment(2), other = shmat(id, 0, 0), end();
  anew(at, 2 * P), shmdt(at), anew(other, 2 * P), shmdt(other);       /* attached twice */
  at = segment(2), mprotect(at, P, PROT_READ), mprotect(at, P, PROT_READ | PROT_WRITE);
  end(), anew(at, 2 * P), shmdt(at);                                  /* mapped by two VMAs */
  at = segment(2), end(), at = mremap(at, 2 * P, 4 * P, MREMAP_MAYMOVE), anew(at, 4 * P), shmdt(at);
  at = segment(2), end();                                             /* a child keeps the segment */
  pid_t child = fork();
  if (!child) { usleep(20000); _exit(anew(at, 2 * P) == 0); }
  anew(at, 2 * P), shmdt(at), shmat(id, 0, 0), waitpid(child, 0, 0), shmat(id, 0, 0);
  at = segment(2), end(), child = fork();                             /* a child that leaves first */
  if (!child) _exit(0);
  waitpid(child, 0, 0), anew(at, 2 * P), shmdt(at);
  at = segment(1), shmdt(at), end(), shmat(id, 0, 0);
  id = shmget(IPC_PRIVATE, P, 0600), end(), shmat(id, 0, 0);          /* never attached */
  pthread_t thread;
  pthread_create(&thread, 0, remover, (void *)rounds);
  for (long i = 0; i < rounds; i++) {
    at = segment(1);
    turn = 1;
    for (volatile int n = rand() % 8000; n > 0; n--);
    anew(at, P);
    while (turn != 2);
    turn = 0;
    shmdt(at);
  }
  pthread_join(thread, 0);
  return 0;
}
