# Runs npm scripts with hooks and arguments, installs a local package and packs one.
# has: node npm
# apt: nodejs npm
# hide: s/[0-9.]+ ?m?s$/TIME/
# hide: /^err npm notice (shasum|integrity)|npm notice$|New .* version|Changelog|Run npm install/d

export npm_config_update_notifier=false npm_config_offline=true
mkdir lib
echo '{"name":"lib","version":"1.2.3","main":"i.js","bin":{"lib":"i.js"}}' > lib/package.json
printf '#!/usr/bin/env node\nmodule.exports = 42; if (require.main === module) console.log("bin of lib");\n' > lib/i.js
chmod +x lib/i.js
cat > package.json <<'END'
{"name": "app", "version": "0.0.1", "scripts": {
  "prebuild": "echo before", "build": "node -p 'require(\"lib\")'", "postbuild": "echo after",
  "args": "node -p 'process.argv.slice(2).join()' --", "bin": "lib", "fails": "exit 3"}}
END
npm install --no-audit --no-fund ./lib && npm run build
npm run --silent args -- one two
npm run --silent bin
npm run --silent fails; echo "status $?"
npm exec --offline lib
npm pack ./lib 2> /dev/null && tar tzf lib-1.2.3.tgz | sort && rm lib-1.2.3.tgz
rm -r node_modules
