# Draws a page and prints it with the browser Chromium, whose own sandbox is off.
# has: chromium
# apt: chromium fonts-dejavu-core

echo '<p id=p>text</p><script>p.textContent = [6 * 7, navigator.onLine !== undefined, new Intl.DateTimeFormat("de").format(new Date(0))].join()</script>' > page.html
run() { timeout -k 5 50 chromium --headless=new --no-sandbox --disable-gpu --user-data-dir="$PWD/profile" "$@" "file://$PWD/page.html" 2> log; }
run --dump-dom | grep -o '<p.*</p>'
run --window-size=80,60 --screenshot=page.png; file page.png | cut -d, -f1,2
run --no-pdf-header-footer --print-to-pdf=page.pdf; head -c 5 page.pdf; echo; rm -rf page.png page.pdf profile log ~/.cache ~/.config ~/.pki
