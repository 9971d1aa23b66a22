# Runs a script, and passes on its output while it runs; then its errors and its status, on standard error.
#
# $1 the form, as for programs; $2 the script; then its arguments.
form=$1 script=$2
shift 2
encode() {
    if [ "$form" = lines ]; then base64; else cat; fi
}
{
    errors=$(
        LC_ALL=C /bin/sh -c "$script" sh "$@" </dev/null 2>&1 1>&3 3>&-
        printf '\nstatus %s' "$?"
    )
    printf %s "$errors" | encode >&2
} 3>&1 | encode
