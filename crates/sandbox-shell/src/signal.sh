# Sends a signal to a command or to everything that it has started, and reports whether the command was alive.
#
# $1 the signal, $2 `alone`, `tree` or `leader`, $3 the process of the command, $4 its start, or `-` for one that leads its
# session, $5 the shell that started it.
signal=$1 target=$2 child=$3 since=$4 leader=$5

# Tells whether a process of that start and session is the command, whose number that process has.
is_it() {
    [ "$1" = "$since" ] || { [ "$since" = - ] && [ "$2" = "$child" ]; }
}

# Lists the processes: number, parent, session.
table() {
    for place in /proc/[0-9]*; do
        { read -r line <"$place/stat"; } 2>/dev/null || continue
        number=${place#/proc/}
        set -- ${line##*) }
        case $1 in Z | X) continue ;; esac
        [ "$number" = "$child" ] && ! is_it "${20}" "$4" && continue
        echo "$number $2 $4"
    done
}

# Finds the tree of the command: processes of the session that the shell leads, or the command, and descendants of these.
tree() {
    known=" $leader $child " news=yes all=$(table)
    while [ "$news" ]; do
        news=
        while read -r number parent session; do
            case $known in *" $number "*) continue ;; esac
            if [ "$session" = "$leader" ] || [ "$session" = "$own_session" ]; then
                known="$known$number " news=yes
                continue
            fi
            case $known in *" $parent "*) known="$known$number " news=yes ;; esac
        done <<END
$all
END
    done
    found=
    while read -r number parent session; do
        case $known in *" $number "*) found="$found $number" ;; esac
    done <<END
$all
END
}

alive= own_session=$child
{ read -r line <"/proc/$child/stat"; } 2>/dev/null && {
    set -- ${line##*) }
    if ! is_it "${20}" "$4"; then
        # A later process has the number, and the session of that number may be another one.
        own_session=
    else
        case $1 in Z | X) ;; *) alive=yes ;; esac
    fi
}
echo "${alive:-no}"
# The command may have stopped the shell that has to report its exit.
[ "$alive" ] || kill -CONT "$leader" 2>/dev/null
if [ "$target" = alone ]; then
    [ "$alive" ] && [ "$signal" != 0 ] && kill "-$signal" "$child" 2>/dev/null
    exit 0
fi
if [ "$target" = leader ]; then
    kill "-$signal" "$leader" 2>/dev/null
    exit 0
fi
# The shell of a command that has ended by itself is spared, to report the exit.
spared=
[ "$alive" ] || spared=$leader
if [ "$signal" != 9 ]; then
    tree
    for number in $found; do
        [ "$number" = "$leader" ] && [ "$leader" != "$child" ] || kill "-$signal" "$number" 2>/dev/null
    done
    exit 0
fi
# A stopped process starts no further ones.
former=none
rounds=0
while tree; [ "$found" != "$former" ] && [ $rounds -lt 50 ]; do
    for number in $found; do
        [ "$number" = "$spared" ] || kill -STOP "$number" 2>/dev/null
    done
    former=$found rounds=$((rounds + 1))
done
rounds=0 left=yes
while [ $rounds -lt 200 ]; do
    left=
    for number in $found; do
        [ "$number" = "$spared" ] && continue
        kill -KILL "$number" 2>/dev/null && left=yes
    done
    [ "$left" ] || break
    tree
    rounds=$((rounds + 1))
done
[ "$left" ] && exit 1
# No process is left that could stop the shell again.
[ "$spared" ] && kill -CONT "$spared" 2>/dev/null
exit 0
