# Computes with Tcl, bc and awk.
# has: tclsh bc gawk
# apt: tcl bc gawk

echo 'puts [expr {6 * 7}]; puts [clock format 0 -format %Y -gmt 1]; puts [exec echo child]; exit 3' | tclsh; echo "status $?"
echo 'scale=30; 4*a(1)' | bc -l
seq 10 | gawk '{ s += $1 } END { print s; print strftime("%Y", 0, 1); "date -u -d @0 +%F" | getline d; print d; print "x" > "/dev/stderr" }'
gawk 'BEGIN { cmd = "sort -r"; print "a\nb" |& cmd; close(cmd, "to"); while ((cmd |& getline l) > 0) print l }'
