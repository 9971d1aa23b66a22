# Bundles modules with webpack and runs the bundle; its development server answers a request.
# has: node curl
# apt: nodejs npm curl
# npm: webpack webpack-cli webpack-dev-server
# hide: s/in [0-9]+ ms/in TIME/
# hide: s/webpack [0-9.]+ /webpack /

mkdir node_modules; ln -s "$TOOLS"/node/node_modules/* node_modules/
mkdir src public
echo 'const { add } = require("./add"); console.log(add(40, 2));' > src/index.js
echo 'exports.add = (a, b) => a + b;' > src/add.js
echo '<p>page</p>' > public/index.html
webpack --mode production && node dist/main.js; echo "status $?"
webpack serve --mode development --port 8126 --no-open > server.log 2>&1 &
curl -s --retry 30 --retry-delay 1 --retry-connrefused http://127.0.0.1:8126/
kill %1; wait
grep -c 'Loopback:' server.log; rm -r server.log dist node_modules
