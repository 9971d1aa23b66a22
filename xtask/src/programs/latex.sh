# Typesets a document with LaTeX, twice for its references.
# has: pdflatex
# apt: texlive-latex-base

printf '\\documentclass{article}\n\\begin{document}\n\\section{One}\\label{a} $x^2$ in section~\\ref{a}.\n\\end{document}\n' > t.tex
for i in 1 2; do pdflatex -interaction=batchmode t.tex > log; echo "status $?"; done; grep -c 'Reference.*undefined' t.log; head -c 5 t.pdf; echo; ls; rm t.pdf t.log t.aux log
printf '\\documentclass{article}\\begin{document}\\nothing\\end{document}' > bad.tex; pdflatex -halt-on-error bad.tex | grep '^!'; echo "status ${PIPESTATUS[0]}"; rm bad.*
