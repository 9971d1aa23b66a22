# Ends everything in a sandbox whose owner is gone. The owner writes a line in time, and closes the input where no guard is
# needed any more.
#
# $1 the seconds to wait for a line.
command -v timeout >/dev/null 2>&1 || exit 0
while :; do
    line=$(timeout "$1" head -n 1)
    # By that status `timeout` reports that the time is over, or that the signal for that has ended it.
    [ $? -ge 124 ] && kill -KILL -1
    [ "$line" ] || exit 0
done
