# Compiles TypeScript, bundles with esbuild, tests with jest and formats with prettier.
# has: node
# apt: nodejs npm
# npm: typescript esbuild jest prettier
# hide: s/[0-9.]+ ?m?s\b/TIME/g

mkdir node_modules; ln -s "$TOOLS"/node/node_modules/* node_modules/
echo 'export const add = (a: number, b: number): number => a + b; const wrong: string = add(1, 2); console.log(add(40, 2));' > add.ts
tsc --ignoreConfig --target es2022 --module commonjs --pretty false add.ts; echo "status $?"; node add.js
esbuild add.ts --bundle --minify --log-level=error | head -c 60; echo
echo 'const { add } = require("./add"); test("adds", () => expect(add(1, 2)).toBe(3)); test("fails", () => expect(add(1, 2)).toBe(4));' > add.test.js
echo '{"jest": {"cacheDirectory": "cache"}}' > package.json
jest --colors=false > log 2>&1; echo "status $?"; grep -E '^Tests:|✓|✕' log
prettier add.ts; rm -r node_modules log cache
