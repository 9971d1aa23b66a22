# Encodes output, each piece as a line of base64: that of standard input, or both outputs of a program.
#
# The arguments: a Python program that encodes much output; then the program, if there is one.
my ($packer, @program) = @ARGV;

# A longer line would not be written at once, and lines of both streams would be mixed in the log.
my $size = 2700;
# Pieces of that size, one after the other, from which output is much.
my $much = 4;

# EINTR.
my $interrupted = 4;

sub line {
    my $line = pack("u", $_[0]);
    $line =~ s/^.//mg;
    $line =~ tr|\n||d;
    $line =~ tr|` -_|AA-Za-z0-9+/|;
    my $rest = (3 - length($_[0]) % 3) % 3;
    substr($line, -$rest) = "=" x $rest if $rest;
    return "$line\n";
}

sub put {
    my ($to, $line) = @_;
    while (length $line) {
        my $count = syswrite($to, $line);
        exit 1 unless defined $count || $! == $interrupted;
        substr($line, 0, $count // 0) = "";
    }
}

# Has the rest of an output encoded by the other program. Returns false where the image cannot run it.
my $can_pack;
sub pack_rest {
    my ($from, $to) = @_;
    $can_pack //= system("python3 -c 'import zlib' </dev/null >/dev/null 2>&1") == 0;
    return 0 unless $can_pack;
    my $child = @program ? fork : 0;
    return defined $child if $child || !defined $child;
    fileno($from) == 0 or open(STDIN, "<&", $from) or exit 1;
    fileno($to) == 1 or open(STDOUT, ">&", $to) or exit 1;
    exec "python3", "-c", $packer;
    exit 1;
}

my @streams = [\*STDIN, \*STDOUT, 0];
if (@program) {
    pipe(my $out, my $to_out) && pipe(my $err, my $to_err) or exit 126;
    my $child = fork // exit 126;
    unless ($child) {
        open(STDIN, "<", "/dev/null");
        open(STDOUT, ">&", $to_out);
        open(STDERR, ">&", $to_err);
        exec { $program[0] } @program;
        exit 127;
    }
    close $to_out;
    close $to_err;
    @streams = ([$out, \*STDOUT, 0], [$err, \*STDERR, 0]);
}
while (@streams) {
    my $ready = "";
    vec($ready, fileno $_->[0], 1) = 1 for @streams;
    next if select($ready, undef, undef, undef) < 0;
    my @readable = grep { vec($ready, fileno $_->[0], 1) } @streams;
    for my $stream (@readable) {
        my ($from, $to) = @$stream;
        my $count = sysread($from, my $piece, $size);
        next if !defined $count && $! == $interrupted;
        put($to, line($piece)) if $count;
        $stream->[2] = ($count || 0) == $size ? $stream->[2] + 1 : 0;
        my $is_over = !$count || $stream->[2] == $much && pack_rest($from, $to);
        @streams = grep { $_ != $stream } @streams if $is_over;
    }
}
1 while wait > 0;
