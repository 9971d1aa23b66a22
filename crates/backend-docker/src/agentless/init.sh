# Init process of a container without an agent. It ends with its standard input, and the container with it.
#
# It waits for a child that reads the input, because a waiting shell reaps every process that has ended.
exec 3<&0
(while read -r line; do :; done <&3) &
exec 3<&- 0</dev/null
echo ready
wait $!
