# Runs Ruby with its standard library, threads and a gem of its own.
# has: ruby gem
# apt: ruby

cat > t.rb <<'END'
require "json"; require "set"; require "socket"; require "digest"; require "yaml"; require "tempfile"; require "open3"
puts "größe".upcase, JSON.generate(a: [1, nil]), { "k" => [1] }.to_yaml, Digest::MD5.hexdigest("x")
server = TCPServer.new("127.0.0.1", 0)
Thread.new { server.accept.puts "from thread" }
puts TCPSocket.new("127.0.0.1", server.addr[1]).gets
out, status = Open3.capture2e("sh", "-c", "echo err >&2; exit 4"); puts out, status.exitstatus
r, w = IO.pipe; fork { r.close; w.write "child"; exit! 0 }; w.close; puts r.read; Process.wait
at_exit { warn "bye" }
exit 5
END
ruby t.rb; echo "status $?"
mkdir -p lib; echo 'module Own; VALUE = 42; end' > lib/own.rb
printf 'Gem::Specification.new { |s| s.name = "own"; s.version = "1.0"; s.summary = "own"; s.author = "me"; s.files = ["lib/own.rb"] }\n' > own.gemspec
gem build -q own.gemspec 2> /dev/null | grep -c own; gem install -q --local --user-install --no-document own-1.0.gem 2> /dev/null && ruby -rown -e 'puts Own::VALUE'
rm own-1.0.gem
