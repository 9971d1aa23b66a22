# Uses job control of bash, traps, process groups, coprocesses and limits.
# has: bash setsid ps
# hide: s/(line [0-9]+:) +[0-9]+ /\1 PID /

set -m
sleep 100 & sleep 200 & jobs | sed 's/  */ /g'
kill %1; wait %1; echo "status $?"
kill -STOP %2; sleep 0.2; jobs | sed 's/  */ /g'; kill -CONT %2; kill -INT %2; wait %2; echo "status $?"
set +m
trap 'echo caught TERM' TERM; kill -TERM $$; trap - TERM
trap 'echo at the end' EXIT
(trap 'echo sub; exit 9' USR1; kill -USR1 $BASHPID; sleep 1); echo "status $?"
coproc { read -r line; echo "coproc: $line"; }; echo hello >&"${COPROC[1]}"; read -r answer <&"${COPROC[0]}"; echo "$answer"; wait
exec 3> >(sed 's/^/logged: /' > log); echo one >&3; exec 3>&-; wait $!; cat log
(ulimit -n 20; ulimit -n); (ulimit -t 1; while :; do :; done); echo "status $?"
timeout 0.3 sleep 10; echo "status $?"; timeout -s KILL 0.3 sleep 10; echo "status $?"
setsid sh -c 'ps -o pgid= -p $$ | tr -d " " | grep -qx $$ && echo leader'
nohup sh -c 'sleep 0.2; echo late' > late 2>&1 & wait $!; cat late
bash -c 'kill -SEGV $$'; echo "status $?"; nice -n 5 nice; cat <(echo substituted); mapfile -t a < <(seq 3); echo "${#a[@]}"
echo to stderr >&2; [ -t 1 ] && echo terminal; exit 6
