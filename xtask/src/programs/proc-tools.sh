# Looks at processes, memory, files and devices with the usual tools.
# has: ps pgrep free df lsof ip
# apt: procps lsof iproute2

sleep 300 & pid=$!
ps -o comm= -p $pid; pgrep -P $$ -x sleep | grep -cx $pid; cat /proc/$pid/comm; tr '\0' ' ' < /proc/$pid/cmdline; echo
readlink /proc/$pid/cwd | grep -cx "$PWD"; [ "$(nproc)" -gt 0 ] && free -b | awk 'NR == 2 { print ($2 > 0) }'; df . | wc -l
lsof -a -p $pid -d cwd -Fn 2> /dev/null | grep -cx "n$PWD"; kill $pid; wait $pid; echo "status $?"
ip -o link show lo | grep -c LOOPBACK; ls /dev/null /dev/zero /dev/full /dev/urandom /dev/tty /dev/ptmx /dev/shm -d; ls -l /dev/fd /dev/stdin | awk '{ print $NF }'
echo x > /dev/shm/own && cat /dev/shm/own && rm /dev/shm/own; uname -s; hostname | wc -l; id -u | grep -vcx 0; umask; mount | grep -c ' / '
awk '/MemTotal/ { print ($2 > 0) }' /proc/meminfo; cut -d. -f1 /proc/uptime | grep -c .; test -w / && echo "root is writable" || echo "root is read-only"; head -c 3 /dev/zero | od -An -tx1; stat -fc %T /proc; tail -c 1 /etc/passwd | od -c | head -1
time=$( { /usr/bin/env time -f %x true; } 2>&1 ); dd if=/dev/zero of=f bs=1k count=3 2>&1 | sed -n 1p; flock f echo locked; mknod p p && ls -l p | cut -c1; rm p
