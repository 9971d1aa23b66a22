# The first process of a container without an agent. It ends when its standard input does, and everything with it.
#
# It waits for a child of its own, because a shell that waits takes away every process that has ended.
exec 3<&0
(while read -r line; do :; done <&3) &
exec 3<&- 0</dev/null
echo ready
wait $!
