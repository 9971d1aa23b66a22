# Follows system calls with strace and stops in a function with gdb.
# has: strace gdb gcc
# apt: strace gdb gcc libc6-dev
# hide: s/\(process [0-9]+\) exited/(process N) exited/

printf '#include <stdio.h>\nint twice(int x) { return 2 * x; }\nint main(void) { printf("%%d\\n", twice(21)); return 3; }\n' > t.c; gcc -g -O0 t.c -o t
strace -f -o trace -e trace=write ./t > out 2> err; echo "strace: status $?"; grep -c 'write(1, "42' trace
gdb -q -batch -ex 'break twice' -ex run -ex 'print x' -ex finish -ex continue ./t 2> err | grep -E '^\$|exited with code'
rm -f t trace out err
