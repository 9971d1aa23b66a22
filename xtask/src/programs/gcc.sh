# Compiles C with sanitizers, links statically and dynamically, and makes a library.
# has: gcc g++ ar nm
# apt: gcc g++ libc6-dev binutils
# hide: s/==[0-9]+==/==PID==/; s/0x[0-9a-f]{6,}/ADDRESS/g; s/\(BuildId: [0-9a-f]+\)//; s/\+ADDRESS//

cat > bad.c <<'END'
#include <stdlib.h>
int main(int n, char **v) { int *p = malloc(4 * sizeof *p); int x = p[n + 3]; free(p); return x; }
END
echo '#include <limits.h>
int main(int n, char **v) { return INT_MAX + n == 0; }' > overflow.c
echo '#include <stdio.h>
#include <stdlib.h>
int main(void) { puts(getenv("HOME") ? "fine" : "odd"); return 5; }' > fine.c
echo '#include <stdlib.h>
int main(void) { volatile char *p = malloc(7); p = 0; return p != 0; }' > leak.c
gcc -g -fsanitize=address bad.c -o bad && ./bad 2>&1 | grep -o 'ERROR: AddressSanitizer: [a-z-]*'; echo "status ${PIPESTATUS[0]}"
gcc -g -fsanitize=address fine.c -o fine && ./fine; echo "status $?"
gcc -g -fsanitize=address leak.c -o leak && ./leak 2>&1 | grep -o 'SUMMARY: .*'; echo "leak: status ${PIPESTATUS[0]}"
gcc -fsanitize=undefined overflow.c -o overflow && ./overflow; echo "status $?"
gcc -static fine.c -o static && ./static; echo "status $?"
gcc -fsanitize=thread fine.c -o thread && ./thread; echo "status $?"
echo 'int one(void) { return 1; }' > one.c; gcc -c one.c && ar rcs libone.a one.o && nm libone.a | grep -c one
echo '#include <vector>
#include <iostream>
int main() { try { std::vector<int>().at(3); } catch (const std::exception &e) { std::cout << e.what() << "\n"; } }' > t.cc
g++ -O2 t.cc -o t && ./t
rm bad fine leak overflow static thread one.o libone.a t
