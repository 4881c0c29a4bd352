# Commands of the test `gdb`, which runs `broken.c` under gdb: breakpoints, a watchpoint by single steps,
# changed registers, a caught system call. The test compares the output with that on Linux, except addresses
# and PIDs.
set pagination off
set print thread-events off
set can-use-hw-watchpoints 0
break stop_here
run
printf "stopped: thread %d, value %d\n", $rdi, $rsi
backtrace 2
delete
watch *(int *)&changed
set scheduler-locking on
continue
delete
set scheduler-locking off
set $rsi = 100
break stop_here
continue
stepi
x/i $rip
set $rax = 7
catch syscall exit_group
delete 3
continue
info inferiors
continue
