# Runs a script, and prints what it has printed and its errors in one text of base64, which every channel of text passes on
# unchanged.
#
# $1 a random word; $2 a file that is the input and is removed, or nothing, or `-` for the input of this script; $3 a file for
# the standard output, or nothing; $4 the script; then its arguments.
word=$1 input=$2 output=$3 script=$4
shift 4
command -v base64 >/dev/null 2>&1 || {
    echo "$word base64"
    exit 0
}
case $input in
    -) ;;
    '') exec </dev/null ;;
    *)
        exec <"$input"
        rm -f "$input"
        ;;
esac
run() {
    if [ "$output" ]; then
        LC_ALL=C /bin/sh -c "$script" sh "$@" >"$output"
    else
        LC_ALL=C /bin/sh -c "$script" sh "$@"
    fi
    printf '\nstatus %s' "$?" >&2
}
{
    errors=$(run "$@" 2>&1 1>&3 3>&-)
    printf '\n%s %s' "$word" "$errors" >&3
} 3>&1 | base64
