# Starts a development server of vite that answers a request, and builds for production.
# has: node npm curl
# apt: nodejs npm curl
# npm: vite
# hide: s/in [0-9]+ ?ms/in TIME/; s/[0-9]+ ms/TIME/
# hide: s/vite v[0-9.]+/vite/

mkdir node_modules; ln -s "$TOOLS"/node/node_modules/* node_modules/
mkdir src
echo '<html><body><script type="module" src="/src/main.js"></script></body></html>' > index.html
echo 'import { double } from "./double.js"; document.title = String(double(21));' > src/main.js
echo 'export const double = (x) => 2 * x;' > src/double.js
vite --host --port 8124 --strictPort > server.log 2>&1 &
curl -s --retry 20 --retry-delay 1 --retry-connrefused http://127.0.0.1:8124/src/main.js | grep -o 'double(21)'
kill %1; wait
grep -c 'Local:.*8124' server.log; rm server.log
vite build --logLevel warn && ls dist && rm -r dist node_modules
