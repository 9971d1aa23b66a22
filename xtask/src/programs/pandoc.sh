# Converts text with pandoc: HTML, an office document and back.
# has: pandoc
# apt: pandoc

printf '# Größe\n\n- *one*\n- two\n\n| a | b |\n|---|---|\n| 1 | 2 |\n' > t.md
pandoc t.md -t html; pandoc t.md -o t.docx && pandoc t.docx -t markdown | sed -n 1,3p; rm t.docx
