# Compiles OCaml to byte code and native code.
# has: ocaml ocamlc ocamlopt gcc
# apt: ocaml-nox gcc libc6-dev

echo 'let rec fib n = if n < 2 then n else fib (n - 1) + fib (n - 2);; Printf.printf "%d %s\n" (fib 20) (Filename.basename "a/b");; exit (if Sys.file_exists "t.ml" then 3 else 0)' > t.ml
ocaml t.ml; echo "status $?"; ocamlc -o byte t.ml && ./byte; echo "status $?"; ocamlopt -o native t.ml && ./native; echo "status $?"; rm t.cm* t.o byte native
