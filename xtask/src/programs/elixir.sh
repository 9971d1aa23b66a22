# Runs Erlang and Elixir: processes, a local server and a compiled module.
# has: erl elixir elixirc
# apt: elixir

cat > own.ex <<'END'
defmodule Own do
  def squares(n), do: 1..n |> Task.async_stream(&(&1 * &1)) |> Enum.map(fn {:ok, x} -> x end)
end
END
elixirc own.ex && elixir -e 'IO.inspect(Own.squares(5)); IO.puts(String.upcase("größe")); exit({:shutdown, 3})'; echo "status $?"
erl -noshell -eval '{ok, L} = gen_tcp:listen(0, [{ip, {127,0,0,1}}, {active, false}, binary]), {ok, P} = inet:port(L), spawn(fun() -> {ok, S} = gen_tcp:accept(L), gen_tcp:send(S, <<"sent">>) end), {ok, C} = gen_tcp:connect({127,0,0,1}, P, [{active, false}, binary]), io:format("~p~n", [gen_tcp:recv(C, 4)]), {ok, I} = inet:getifaddrs(), io:format("~p~n", [lists:keymember("lo", 1, I)]), io:format("~s", [os:cmd("echo child")]), halt(0).'
rm *.beam
