# Runs Lua with coroutines, files and a subprocess.
# has: lua5.4
# apt: lua5.4

cat > t.lua <<'END'
local gen = coroutine.wrap(function() for i = 1, 3 do coroutine.yield(i * i) end end)
print(gen(), gen(), gen(), string.format("%5.2f", math.pi), #arg)
local p = io.popen("echo from child; exit 3"); print(p:read("a"), p:close())
local f <close> = assert(io.open("out.txt", "w")); f:write("written\n")
print(select("#", pcall(error, { code = 1 }))); print(os.getenv("HOME") ~= nil, os.tmpname():sub(1, 5))
error("the end")
END
lua5.4 t.lua a b; echo "status $?"
echo 'print(6 * 7)' | lua5.4 -
