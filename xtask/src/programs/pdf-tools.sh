# Makes a PDF with Ghostscript, takes it apart with qpdf and poppler, and reads a picture with tesseract.
# has: gs qpdf pdftotext pdftoppm tesseract
# apt: ghostscript qpdf poppler-utils tesseract-ocr

printf '%%!PS\n/Helvetica findfont 40 scalefont setfont 100 600 moveto (Hello 42) show showpage\n100 600 moveto (Two) show showpage\n' > t.ps
gs -q -dBATCH -dNOPAUSE -sDEVICE=pdfwrite -o t.pdf t.ps; echo "status $?"; pdftotext t.pdf - | head -1; pdfinfo t.pdf | grep Pages; pdffonts t.pdf | tail -1 | cut -c1-30
qpdf t.pdf --pages . 1 -- one.pdf && qpdf --check one.pdf | tail -1; pdftoppm -r 72 -gray one.pdf p; tesseract p-1.pgm - 2> /dev/null | head -1; rm t.pdf one.pdf p*
