# Starts a command: says on standard error which process it is, or why there is none, and on both streams when it is over.
#
# $1 a word that nobody else knows, $2 `pipes` or `terminal`, $3 the directory, $4 and $5 how many files it has open and may
# allow itself; then the command.
word=$1 kind=$2 directory=$3
# Runtimes of containers do not always pass on the first one to what they start later.
ulimit -Hn "$5" 2>/dev/null
ulimit -Sn "$4" 2>/dev/null
shift 5

cannot() {
    echo "$word cannot $1" >&2
    exit 0
}

# A program is found as the kernel's callers find it; a shell would take a word of its own instead.
found() {
    case $1 in
        */*) look "$1" ;;
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

look() {
    if [ -d "$1" ]; then
        cannot 'execute'
    elif [ ! -e "$1" ]; then
        cannot 'find program'
    elif [ ! -x "$1" ]; then
        cannot 'execute'
    fi
    # What begins with `#!` needs the program that is named there.
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

# Its number and when it began, as the kernel has them.
started() {
    read -r line </proc/self/stat
    number=${line%% *}
    set -- ${line##*) }
    echo "$word started $number ${20} $$" >&2
}

cd "$directory" 2>/dev/null || cannot 'find directory'
found "$1"
if [ "$kind" = terminal ]; then
    # Its size is set before it begins.
    echo "$word ready" >&2
    read -r line
fi
# Signals for all of the command end the command alone, which says how it ended.
trap : HUP INT QUIT PIPE TERM USR1 USR2 ALRM
(
    trap - HUP INT QUIT PIPE TERM USR1 USR2 ALRM
    started
    exec "$@"
)
status=$?
echo "$word over $status"
[ "$kind" = terminal ] || echo "$word over $status" >&2
exit $status
