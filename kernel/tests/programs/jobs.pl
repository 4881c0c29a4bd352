# Perl: threads, children behind pipes, large tables, files, signals. The test `perl` compares the output with
# that on Linux, so no line may depend on time or on the order of threads.
use strict;
use warnings;
use threads;
use threads::shared;
use Digest::MD5 qw(md5_hex);
use Time::HiRes qw(time sleep alarm);
$| = 1;

my %counts :shared;
my @workers = map {
    my $number = $_;
    threads->create(sub {
        for my $n (1 .. 2000) { lock(%counts); $counts{$n % 7}++; }
        return $number * 2;
    });
} 1 .. 4;
print "threads @{[map { $_->join } @workers]}\n";
print "counts @{[map { $counts{$_} } sort keys %counts]}\n";

my %words;
$words{"w" . ($_ * 7919 % 50021)} .= "$_," for 1 .. 200_000;
print "words ", scalar(keys %words), " ", md5_hex(join "", map { "$_=$words{$_}" } sort keys %words), "\n";

my @sums = map {
    my $from = $_;
    pipe(my $reader, my $writer) or die;
    my $child = fork // die;
    if (!$child) { my $sum = 0; $sum += $_ for $from .. $from + 100_000; print $writer $sum; close $writer; exit 0 }
    close $writer;
    my $sum = <$reader>;
    waitpid($child, 0);
    "$sum:$?";
} 1 .. 5;
print "children @sums\n";

open(my $out, ">", "/tmp/lines") or die;
print $out "line $_ ", "x" x ($_ % 50), "\n" for 1 .. 50_000;
close $out;
open(my $in, "-|", "/bin/sort", "-r", "/tmp/lines") or die;
my $text = do { local $/; <$in> };
close $in;
my $matches = () = $text =~ /^line \d*7 x{20,30}$/mg;
print "sorted ", md5_hex($text), " $matches\n";

my $rang = 0;
local $SIG{ALRM} = sub { $rang++ };
alarm(0.05);
sleep(1) while !$rang;
print "alarm $rang\n";
kill "TERM", $$ if eval { local $SIG{TERM} = sub { die "term\n" }; kill "TERM", $$; sleep 1; 1 };
print "caught $@";
