//! The help texts of the program and of its subcommands, and the long help of `--locking` and of
//! `EXPERIMENT`. The short help of all arguments is in `cli.rs`.
//!
//! The long help of each subcommand has the same parts: what it does, what it reads or writes, its exit
//! status, examples. The short help (`-h`) refers to the long help. `cli.rs` attaches the texts to the
//! subcommands, and the manual pages repeat them. Lines have at most 100 columns. The command line of strace
//! is inserted from `freehold-record` (`strace_command_line`), so that it is written only once.
//! `help_tests.rs` checks that every long help has all parts, that lines are not too long, and that documents
//! quote the same strace command. A new subcommand needs its description, a `..._MORE` for the short help,
//! and examples. A new value of a design needs a line in [`LOCKING`]; `freehold-replay/src/locking.rs` parses
//! the values.

use freehold_record::strace_command_line;

/// The description of `freehold` in its short help.
pub(crate) const ABOUT_SHORT: &str =
    "Replays the memory operations of real programs, and compares every answer with Linux's";

/// The description of `freehold` in its long help.
pub(crate) const ABOUT: &str = "\
Records the memory operations of real programs, replays them on Freehold's address spaces, compares
every answer with Linux's answer, and measures the locking designs against each other.";

pub(crate) const MORE: &str = "Run 'freehold COMMAND --help' for details and examples.";

/// Returns the description of `freehold replay`.
pub(crate) fn replay() -> String {
    format!(
        "\
Replays the memory operations of a recorded program (mmap, munmap, page faults, fork, ...) on
Freehold's address spaces. Its tasks run concurrently on virtual CPUs, at full speed. The result of
each call, the outcome of each page fault, and each snapshot of the kernel's VMA lists are compared
with Linux's.

A recording is a pair NAME.trace and NAME.snap written by `freehold record` (plain, .zst or .xz),
or the output (plain, .zst or .xz) of
{}
docs/reference/trace-format.md describes both formats.

Exit status: 0 if all answers match Linux's, 1 if an answer differs, 2 if a recording cannot be
replayed (the others are still replayed), a file cannot be written, or the arguments are invalid.",
        strace_command_line()
    )
}

/// Help of `--locking`: a table of all settings (KNOB) and their values.
pub(crate) const LOCKING: &str = "\
Locking design, as comma-separated KNOB=VALUE

  KNOB, VALUE          EFFECT
  unmap                munmap holds the mmap lock
    exclusive          - to its end
    sectioned[:BYTES]  - with a break after every BYTES (1GiB)
    downgraded         - shared while it frees pages (Linux)
    released *         - only until it frees pages
  fault                a page fault takes
    mmap-lock          - the mmap lock (Linux before 6.4)
    vma-rwsem          - a rwsem per VMA (Linux 6.4 to 6.14)
    vma-count          - a count per VMA (Linux since 6.15)
    per-cpu *          - a count per VMA and CPU
  write                an address space is changed by
    whole              - one task at a time (Linux)
    ranges *           - several tasks, once a task has to wait
    ranges-only        - several tasks, from the start
  hugetlb              shared page tables are kept by
    file-lock          - a lock per file (Linux before 6.1)
    vma-lock *         - a lock per VMA
  file-rmap            walks of a file's VMAs take
    mutex              - a mutex (Linux before 3.19)
    exclusive          - a rwsem for writing
    shared *           - a rwsem for reading

  * is the default. docs/guide/five-steps.md describes the designs.";

pub(crate) const REPLAY_MORE: &str = "Run 'freehold replay --help' for details and examples.";

pub(crate) const REPLAY_EXAMPLES: &str = "\
Examples:
  freehold replay recordings/git.trace.zst
      replay a recording, and report the waits for the mmap lock here and on Linux
  freehold replay --compare recordings/git.trace.zst
      replay the recording on every locking design
  freehold replay --locking unmap=sectioned:64MiB,fault=mmap-lock --cpus 4 recordings/git.trace.zst
      replay the recording on one design, on four virtual CPUs
  freehold replay --memory 25%..100% --swap 256M recordings/git.trace.zst
      compare the policies of reclaim in a quarter of the needed memory and more
  freehold replay --picture git.svg recordings/git.trace.zst
      draw the program's address spaces over time
  freehold replay --report git.html recordings/git.trace.zst
      write a page for browsers: waits between tasks, resident memory, faults
  freehold replay --tasks recordings/git.trace.zst
      list the tasks and their lifetimes
  freehold replay --maps-at 1.5s --task 3 recordings/git.trace.zst
      print the address space of task 3 after 1.5 seconds, in the format of /proc/PID/maps
  freehold replay --json result.json *.trace.zst
      write a JSON report: times in nanoseconds, differences with both answers
  ssh host cat ls.strace | freehold replay -
      read standard input; for a NAME.trace, name its snapshots with --snap";

/// Returns the description of `freehold record`.
pub(crate) fn record() -> String {
    format!(
        "\
Runs a command, and records the memory operations of the command and of all processes that it
forks: system calls of memory management, page faults, and snapshots of the kernel's VMA lists at
each exec and exit. Recording requires root, tracefs, perf events and Linux 6.7. Without them only
the calls are recorded, by
{}

The recording is NAME.trace.zst and NAME.snap.zst, or NAME.strace.zst if strace writes it. Replay it
with
  freehold replay NAME.trace.zst
docs/reference/trace-format.md describes both formats. Existing files are not overwritten without
--force.

SIGTERM, and SIGINT if sent only to the recorder, are forwarded to the command, and recording
continues until the command exits. A second signal kills the command.

Exit status: that of the command, or 128 + N if signal N ended it; 127 if the command is not found,
126 if it cannot be run, 125 if it cannot be recorded; 2 if the arguments are invalid.",
        strace_command_line()
    )
}

pub(crate) const RECORD_MORE: &str = "Run 'freehold record --help' for details and examples.";

pub(crate) const RECORD_EXAMPLES: &str = "\
Examples:
  freehold record -- ls -l
      write ls.trace.zst and ls.snap.zst to the current folder
  freehold record --report life.html -- python3 program.py
      record and replay a program, and write a page for browsers about it
  freehold record -o /tmp/build --force -- make -j4
      write /tmp/build.trace.zst and /tmp/build.snap.zst, overwriting older files
  freehold record --snapshot-every 200ms --snapshots 50 -- redis-server
      take a snapshot of all address spaces five times a second, at most fifty times
  freehold record --rename $PWD=/src -- ./program
      keep the name of the current folder out of the recorded paths
  freehold record --calls-only -- ls
      record with strace, even if tracefs is available";

pub(crate) const REPRODUCE: &str = "\
Repeats on Freehold the experiments by which Linux's changes of locking were judged
(docs/guide/five-steps.md). Each experiment compares several locking designs, which it measures in
alternation in one run. It also measures the host's kernel, if the kernel supports the experiment.
The output is tables in the layout of the published tables, with the published figures next to the
measured figures.

Without --quick the sizes are the published sizes, on phantom memory (page tables and page records
are real, page contents are not). All experiments then take about twenty minutes and 6 GiB of
memory. docs/reference/measuring.md describes each experiment, and what phantom memory leaves out.

If SIGINT or SIGTERM interrupts the run, the finished experiments are kept, and all output files
are written and marked as partial.

Exit status: 0 if all experiments ran; 128 + N if signal N interrupted them; 2 if an experiment
could not run, a file cannot be written, or the arguments are invalid.";

/// Returns the help of the argument `EXPERIMENT`: a list of all experiments.
pub(crate) fn experiments() -> String {
    let names = freehold_reproduce::experiments().map(|(name, title)| format!("{name}\n  {title}"));
    format!("Experiments to run [default: all, in the order of Linux's changes]\n\n{}", names.join("\n"))
}

pub(crate) const REPRODUCE_MORE: &str = "Run 'freehold reproduce --help' for details and examples.";

pub(crate) const REPRODUCE_EXAMPLES: &str = "\
Examples:
  freehold reproduce --quick --report report.html
      run all experiments with small sizes in less than two minutes, and write an HTML report
  freehold reproduce munmap-hold munmap-stall
      run two experiments at the published sizes, up to 320 GiB of phantom memory
  freehold reproduce hugetlb --at-most 64GiB --turns 9
      run one experiment with less memory and more measurements
  freehold reproduce --markdown docs/results/measured.md
      write the tables of a full run as a Markdown document";

pub(crate) const COMPLETIONS: &str = "\
Prints a script that completes the subcommands, options and experiments of this command in a shell.

Exit status: 0 if the script is printed; 2 if the arguments are invalid.";

pub(crate) const COMPLETIONS_MORE: &str = "Run 'freehold completions --help' for details and examples.";

pub(crate) const COMPLETIONS_EXAMPLES: &str = "\
Examples:
  source <(freehold completions bash)
      enable completions in the current shell
  freehold completions bash > ~/.local/share/bash-completion/completions/freehold
  freehold completions zsh > ~/.zfunc/_freehold
  freehold completions fish > ~/.config/fish/completions/freehold.fish
      enable completions in all future shells";

pub(crate) const MAN: &str = "\
Prints the manual page of this command, or writes the pages of this command and of all subcommands
to a folder. The pages have the contents of --help.

Exit status: 0 if the pages are written; 2 if a page cannot be written, or the arguments are
invalid.";

pub(crate) const MAN_MORE: &str = "Run 'freehold man --help' for details and examples.";

pub(crate) const MAN_EXAMPLES: &str = "\
Examples:
  freehold man | man -l -
      show the manual page
  freehold man --dir ~/.local/share/man/man1
      install freehold(1), freehold-replay(1), freehold-record(1), ...";

#[cfg(test)]
#[path = "help_tests.rs"]
mod tests;
