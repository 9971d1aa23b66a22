# Builds with make: parallel jobs, pattern rules, shell functions and a failing target.
# has: make gcc
# apt: make gcc libc6-dev

cat > Makefile <<'END'
OBJECTS = $(patsubst %.c,%.o,$(sort $(wildcard *.c)))
VERSION := $(shell echo 1.$$((1 + 1)))
program: $(OBJECTS)
	$(CC) -o $@ $^
%.o: %.c
	@echo compile $<
	@$(CC) -DVERSION='"$(VERSION)"' -c -o $@ $<
fails:
	exit 7
END
printf '#include <stdio.h>\nint two(void);\nint main(void) { printf("%%s %%d\\n", VERSION, two()); return 0; }\n' > main.c
echo 'int two(void) { return 2; }' > two.c
make -j4 -O --no-print-directory | sort && ./program && make
sleep 0.02; touch two.c; make -s; make fails; echo "status $?"
make -j4 fails program -k; echo "status $?"
rm *.o program
