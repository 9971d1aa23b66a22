# Runs scripts of zsh, fish and dash, and edits files with vim.
# has: zsh fish dash vim
# apt: zsh fish dash vim

zsh -c 'a=(c b a); print -l ${(o)a}; print ${#a} $ZSH_NAME; setopt extendedglob; : > x.txt; print *.(txt|md); exit 3'; echo "status $?"
fish -c 'set l one two; for x in $l; echo $x | string upper; end; echo (count $l) $status; exit 4'; echo "status $?"
dash -c 'x=$(printf "%s" sub); echo "$x"; set -- a b; echo $#; false || echo or'; echo "status $?"
printf 'one\ntwo\n' > f; vim -es -u NONE +'%s/one/eins/' +'$s/$/!/' +wq f; echo "status $?"; cat f
printf 'b\na\n' > g; vim -es -u DEFAULTS +sort +wq g < /dev/null; cat g; bash -ic 'echo interactive' 2> /dev/null; bash -lc 'echo login $0'
rm x.txt
