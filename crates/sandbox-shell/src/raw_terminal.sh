# Makes the terminal pass on every byte, has that checked, and becomes an interpreter.
#
# $1 a random word, $2 a file for errors, $3 the program of the check; then the arguments of the interpreter.
word=$1 errors=$2 check=$3
shift 3
stty raw -echo 2>/dev/null || {
    printf '%s lacking stty\n' "$word"
    exit 1
}
for python in python3 python; do
    command -v "$python" >/dev/null 2>&1 || continue
    "$python" -ESc "$check" "$word" 2>"$errors" && exec "$python" "$@" 2>"$errors"
    exit 1
done
printf '%s lacking python\n' "$word"
