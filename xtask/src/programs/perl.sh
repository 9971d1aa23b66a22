# Runs Perl with modules, forks, pipes, sockets and Unicode.
# has: perl
# apt: perl

cat > t.pl <<'END'
use strict; use warnings; use utf8; use open qw(:std :encoding(UTF-8));
use JSON::PP; use Digest::SHA qw(sha1_hex); use POSIX qw(strftime); use IO::Socket::INET; use File::Temp; use Time::HiRes;
print uc("größe"), " ", scalar reverse("abc"), " ", sha1_hex("x"), "\n";
print JSON::PP->new->canonical->encode({ b => [1, "2"], a => JSON::PP::true }), "\n";
print strftime("%Y-%m-%d", gmtime(0)), "\n";
my $server = IO::Socket::INET->new(Listen => 1, LocalAddr => "127.0.0.1") or die $!;
if (!fork) { my $c = IO::Socket::INET->new(PeerAddr => "127.0.0.1", PeerPort => $server->sockport) or die $!; print $c "hello\n"; exit 7 }
print "got ", scalar readline($server->accept); wait; print "child ", $? >> 8, "\n";
open(my $pipe, "-|", "sort", "-r", $0) or die; my @lines = <$pipe>; close $pipe; print scalar(@lines), "\n";
warn "warned\n"; $SIG{ALRM} = sub { die "alarm\n" }; alarm 1; eval { sleep 10 }; print "ended by $@"; exit 3;
END
perl t.pl; echo "status $?"
perl -ne 'print if /Socket/' t.pl | wc -l
