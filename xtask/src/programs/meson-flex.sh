# Generates a scanner and a parser with flex and bison, and builds with meson and ninja.
# has: flex bison meson ninja gcc
# apt: flex bison meson ninja-build gcc libc6-dev

printf '%%option noyywrap\n%%%%\n[0-9]+ { extern int yylval; yylval = atoi(yytext); return 258; }\n[+\\n] return *yytext;\n. ;\n%%%%\n' > s.l
cat > p.y <<'END'
%{
#include <stdio.h>
int yylex(void); void yyerror(const char *s) { fprintf(stderr, "%s\n", s); }
%}
%token NUM
%left '+'
%%
lines: | lines expr '\n' { printf("%d\n", $2); };
expr: NUM | expr '+' expr { $$ = $1 + $3; };
%%
int main(void) { return yyparse(); }
END
cat > meson.build <<'END'
project('sums', 'c')
flex = generator(find_program('flex'), output: '@BASENAME@.c', arguments: ['-o', '@OUTPUT@', '@INPUT@'])
bison = generator(find_program('bison'), output: '@BASENAME@.c', arguments: ['-o', '@OUTPUT@', '@INPUT@'])
e = executable('sums', flex.process('s.l'), bison.process('p.y'))
test('runs', e, args: [])
END
meson setup build > log 2>&1; echo "status $?"; ninja -C build > log 2>&1; echo "status $?"
printf '1+2+3\n40+2\n' | build/sums; echo '1++' | build/sums; echo "status $?"; rm -r build log
