# Starts a command. Reports its process on standard error, or why it did not start, and its exit on both streams.
#
# $1 and $2 a secret word in two parts, so that no list of processes has it, $3 the kind, $4 the directory, $5 and $6 the soft
# and hard limit of open files or `-`; then the command.
#
# The kinds: `pipes`; `terminal`, or `sized` for a terminal that has its size; `direct`, or `direct-input` with a standard input,
# for a host that reports the exit itself, so that this shell becomes the command. A `+` at the end of a kind makes a directory
# that is missing.
word=$1$2 kind=${3%+} directory=$4
[ "$kind" = "$3" ] && made= || made=yes
# What this shell says itself, such as that the command was killed, is no output of the command.
exec 3>&2 2>/dev/null
# Runtimes do not always apply a container's limits to programs that are started later.
[ "$6" = - ] || ulimit -Hn "$6" 2>/dev/null
[ "$5" = - ] || ulimit -Sn "$5" 2>/dev/null
shift 6

cannot() {
    echo "$word cannot $1" >&3
    exit 0
}

# Finds a program in PATH, like `execvp`; a shell would use its own builtin of that name instead.
find_program() {
    case $1 in
        */*) check_program "$1" ;;
        *)
            kept=$IFS IFS=:
            set -f
            for place in $PATH; do
                if [ -f "${place:-.}/$1" ] && [ -x "${place:-.}/$1" ]; then
                    IFS=$kept
                    set +f
                    return
                fi
            done
            cannot 'find program'
            ;;
    esac
}

check_program() {
    if [ -d "$1" ]; then
        cannot 'execute'
    elif [ ! -e "$1" ]; then
        cannot 'find program'
    elif [ ! -x "$1" ]; then
        cannot 'execute'
    fi
    # Programs of the image have what they need.
    case $1 in /bin/* | /usr/bin/*) return ;; esac
    # A script needs the interpreter in its first line. A shell reads a line byte by byte, and that of a binary may be long.
    command -v head >/dev/null 2>&1 && [ "$(head -c 2 "$1" 2>/dev/null)" != '#!' ] && return
    { read -r first <"$1"; } 2>/dev/null
    case $first in
        '#!'*)
            first=${first#??}
            first=${first#"${first%%[! ]*}"}
            first=${first%% *}
            [ -e "$first" ] || cannot 'find program'
            ;;
    esac
}

# Reports the number and start of the process, as the kernel has them, and sets its session.
report_start() {
    read -r line </proc/self/stat
    number=${line%% *}
    set -- ${line##*) }
    session=$4
    echo "$word started $number ${20} $$" >&3
}

cd "$directory" 2>/dev/null || {
    [ "$made" ] && mkdir -p -- "$directory" && cd "$directory" || cannot 'find directory'
}
find_program "$1"
if [ "$kind" = terminal ]; then
    # The size of the terminal is set before the command starts.
    echo "$word ready" >&3
    read -r line
fi
case $kind in direct*)
    [ "$HOME" ] || export HOME=/root
    # It leads its session, by which it is told apart from a later process of its number.
    echo "$word started $$ - $$" >&3
    [ "$kind" = direct-input ] || exec </dev/null
    exec 2>&3 3>&-
    exec "$@"
    ;;
esac
# Signals to the whole session end only the command: this shell reports the exit.
trap : HUP INT QUIT PIPE TERM USR1 USR2 ALRM
(
    trap - HUP INT QUIT PIPE TERM USR1 USR2 ALRM
    report_start
    exec 2>&3 3>&-
    # Where the host has given no session to this shell, the command has one of its own, so that all of its processes are found.
    if [ "$kind" = pipes ] && [ "$session" != $$ ] && command -v setsid >/dev/null; then exec setsid -- "$@"; fi
    exec "$@"
)
status=$?
echo "$word exited $status"
[ "$kind" = pipes ] && echo "$word exited $status" >&3
exit $status
