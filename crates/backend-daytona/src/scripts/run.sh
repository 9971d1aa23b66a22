# Runs a script, and prints what it has printed and its errors in one text of base64, which the toolbox passes on unchanged.
#
# $1 a random word, $2 a file that is its input and is removed or nothing, $3 a file for its standard output or nothing, $4 the
# script; then its arguments.
word=$1 input=$2 output=$3 script=$4
shift 4
command -v base64 >/dev/null 2>&1 || {
    echo "$word base64"
    exit 0
}
if [ "$input" ]; then
    exec <"$input"
    rm -f "$input"
else
    exec </dev/null
fi
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
} 3>&1 | base64 | tr -d '\n'
