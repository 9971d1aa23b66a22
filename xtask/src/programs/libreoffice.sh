# Converts a page to PDF and to text with LibreOffice.
# has: soffice
# apt: libreoffice-writer-nogui

echo '<h1>Größe</h1><p>text</p>' > t.html
timeout 100 soffice --headless --writer --convert-to pdf t.html > log 2>&1; echo "status $?"; head -c 5 t.pdf; echo
timeout 100 soffice --headless --convert-to odt --writer t.html > log 2>&1; timeout 100 soffice --headless --convert-to txt:Text t.odt > log 2>&1; cat t.txt; rm -f t.pdf t.odt log
