//! What `--help` says beside the arguments. Each job has the same parts: what it does, what it reads or
//! writes, its exit status; then examples. `-h` is short, and says where more is.

use freehold_record::strace_command_line;

pub(crate) const ABOUT_SHORT: &str =
    "Replays what real programs did to their memory, and checks every answer against Linux's";

pub(crate) const ABOUT: &str = "\
Replays what real programs did to their memory on Freehold's address spaces, and checks every
answer against the one that Linux gave; records such programs; measures what the designs of
locking differ in.";

pub(crate) const MORE: &str = "More, with examples: freehold replay --help, freehold record --help, ...";

/// Of `freehold replay`.
pub(crate) fn replay() -> String {
    format!(
        "\
Runs what a recorded program did to its memory (mmap, munmap, page faults, fork, ...) on
Freehold's address spaces, its tasks side by side on virtual CPUs, as fast as they go. Each call's
result, the end of each page fault, and each snapshot of the kernel's own lists of VMAs is compared
with what Linux did.

A recording is what `freehold record` writes, NAME.trace with its NAME.snap beside it (plain, .zst
or .xz), or a text (plain, .zst or .xz) by
  {}
docs/trace-format.md describes both.

Exit status: 0 when all was as on Linux, 1 when something differed; 2 when a recording could not be
replayed (the others were), a file not be written, or the arguments make no sense.",
        strace_command_line()
    )
}

/// Of `--locking`.
pub(crate) const LOCKING: &str = "\
How to lock: unmap=, fault=, write=, hugetlb=, file-rmap=, with commas

unmap=exclusive holds the mmap lock for all of a munmap, sectioned (or sectioned:BYTES)
lets it go after every so many bytes (1GiB), downgraded lets readers in while pages are
freed (as Linux does), released lets everyone in.

fault=mmap-lock takes the mmap lock for every page fault (as Linux did before 6.4); the
others just that of the VMA: vma-rwsem a reader/writer lock beside it (6.4 to 6.14),
vma-count a count inside it (Linux today), per-cpu the same with a slot per CPU.

write=whole has an address space changed by one task at a time (as on Linux), ranges by
several, where they need different VMAs, from the first on that would have to wait;
ranges-only the same from the start.

hugetlb=file-lock keeps shared tables of huge pages by a lock of the file in every fault
(as Linux did before 6.1), vma-lock by one of the VMA.

file-rmap=mutex lets one at a time look up who maps a file (as Linux did before 3.19),
exclusive the same with a reader/writer lock, shared all.

[default: unmap=released,fault=per-cpu,write=ranges,hugetlb=vma-lock,file-rmap=shared]";

pub(crate) const REPLAY_MORE: &str = "More, with examples: freehold replay --help";

pub(crate) const REPLAY_EXAMPLES: &str = "\
Examples:
  freehold replay recordings/git.trace.zst
      replays it, and says how long anyone waited for the mmap lock, beside what it was on Linux
  freehold replay --compare recordings/git.trace.zst
      the same on every design of locking, side by side
  freehold replay --locking unmap=sectioned:64MiB,fault=mmap-lock --cpus 4 recordings/git.trace.zst
      on one design, on four virtual CPUs
  freehold replay --picture git.svg recordings/git.trace.zst
      draws the program's address spaces over time, too
  freehold replay --tasks recordings/git.trace.zst
      lists the tasks, and from when to when each lived
  freehold replay --maps-at 1.5s --task 3 recordings/git.trace.zst
      prints the address space of task 3 after a second and a half, as /proc/PID/maps would
  freehold replay --json result.json *.trace.zst
      for programs: times in nanoseconds, differences with both answers
  ssh host cat ls.strace | freehold replay -
      from standard input; the snapshots of a NAME.trace are named with --snap";

/// Of `freehold record`.
pub(crate) fn record() -> String {
    format!(
        "\
Runs a command and records what it and all it forks do to their memory: their calls of memory
management, their page faults, and snapshots of the kernel's own lists of their VMAs where a
process execs or exits. This takes root, tracefs, perf events and Linux 6.7. Without them the calls
alone are recorded, by
  {}

The recording is NAME.trace.zst and NAME.snap.zst (NAME.strace.zst, where strace makes it),
to be replayed by
  freehold replay NAME.trace.zst
docs/trace-format.md describes both. Existing files are left alone without --force.

The command is told of SIGTERM, and of a SIGINT that was sent to the recorder alone; it is recorded
until it ends, and killed at the second.

Exit status: that of the command, 128 + N if signal N ended it; 127 when there is no such command,
126 when it cannot be run, 125 when it could not be recorded; 2 when the arguments make no sense.",
        strace_command_line()
    )
}

pub(crate) const RECORD_MORE: &str = "More, with examples: freehold record --help";

pub(crate) const RECORD_EXAMPLES: &str = "\
Examples:
  freehold record -- ls -l
      writes ls.trace.zst and ls.snap.zst here
  freehold record -o /tmp/build --force -- make -j4
      writes /tmp/build.trace.zst and its snapshots, in place of older ones
  freehold record --snapshot-every 200ms --snapshots 50 -- redis-server
      looks at all address spaces five times a second, fifty times at most
  freehold record --rename $PWD=/src -- ./program
      without one's own name in the paths of mapped files
  freehold record --calls-only -- ls
      by strace, also where tracefs would do";

pub(crate) const REPRODUCE: &str = "\
Does the experiments by which Linux's steps were judged (docs/designs.md), on this engine: for
each the designs of locking that it compares, in turns in one run, and the host's own kernel
beside them where it can do the same. Prints tables in the shape of those published, with the
published figures beside what was measured.

Without --quick the sizes are those published, on phantom memory (page tables and records are real,
contents are not), and take about twenty minutes and 6 GiB. docs/measuring.md says what each
experiment does, and what phantom memory leaves out.

Interrupted (SIGINT, SIGTERM), it keeps what is finished: files are written with that, and say so.

Exit status: 0; 128 + N when signal N ended it; 2 when an experiment could not be done, a file not
be written, or the arguments make no sense.";

/// Of the experiments' names.
pub(crate) fn experiments() -> String {
    let names = freehold_reproduce::experiments().map(|(name, title)| format!("{name}\n  {title}"));
    format!("Experiments [default: all, in the order of the steps]\n\n{}", names.join("\n"))
}

pub(crate) const REPRODUCE_MORE: &str = "More, with examples: freehold reproduce --help";

pub(crate) const REPRODUCE_EXAMPLES: &str = "\
Examples:
  freehold reproduce --quick --report report.html
      everything small, in less than two minutes; with plots for a browser
  freehold reproduce munmap-hold munmap-stall
      two of them, at the published sizes: up to 320 GiB
  freehold reproduce hugetlb --at-most 64GiB --turns 9
      smaller, and more often
  freehold reproduce --markdown docs/results.md
      writes the tables of a full run as a document";

pub(crate) const COMPLETIONS: &str = "\
Prints what a shell needs to complete the words of this command: jobs, options, experiments.

Exit status: 0; 2 when the arguments make no sense.";

pub(crate) const COMPLETIONS_MORE: &str = "More, with examples: freehold completions --help";

pub(crate) const COMPLETIONS_EXAMPLES: &str = "\
Examples:
  source <(freehold completions bash)
      for this shell
  freehold completions bash > ~/.local/share/bash-completion/completions/freehold
  freehold completions zsh > ~/.zfunc/_freehold
  freehold completions fish > ~/.config/fish/completions/freehold.fish
      for all to come";

pub(crate) const MAN: &str = "\
Prints the manual page of this command, or writes it and those of its jobs into a folder. They say
what --help says.

Exit status: 0; 2 when a page cannot be written, or the arguments make no sense.";

pub(crate) const MAN_MORE: &str = "More, with examples: freehold man --help";

pub(crate) const MAN_EXAMPLES: &str = "\
Examples:
  freehold man | man -l -
      reads it
  freehold man --dir ~/.local/share/man/man1
      freehold(1), freehold-replay(1), freehold-record(1), ...";

#[cfg(test)]
#[path = "help_tests.rs"]
mod tests;
