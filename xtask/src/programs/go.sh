# Builds and tests a Go module with goroutines, a local HTTP server and cgo.
# has: go gcc
# apt: golang-go gcc libc6-dev
# hide: s/[0-9.]+s$/TIME/
# options: --memory 2g

export GOFLAGS=-mod=mod GOPROXY=off GOTOOLCHAIN=local GOTELEMETRY=off GOCACHE="$PWD/cache"
mkdir app && cd app
printf 'module example.org/app\n\ngo 1.18\n' > go.mod
cat > main.go <<'END'
package main

// int twice(int x) { return 2 * x; }
import "C"
import ("fmt"; "io"; "net"; "net/http"; "os"; "sync")

func main() {
	var group sync.WaitGroup
	sums := make([]int, 8)
	for i := range sums { group.Add(1); go func(i int) { defer group.Done(); sums[i] = i * i }(i) }
	group.Wait()
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil { panic(err) }
	go http.Serve(listener, http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) { fmt.Fprint(w, r.URL.Path) }))
	answer, err := http.Get("http://" + listener.Addr().String() + "/path")
	if err != nil { panic(err) }
	body, _ := io.ReadAll(answer.Body)
	interfaces, err := net.Interfaces()
	fmt.Println(sums, string(body), C.twice(21), len(interfaces) > 0, err)
	os.Exit(4)
}
END
printf 'package main\n\nimport "testing"\n\nfunc TestIt(t *testing.T) { if 1+1 != 2 { t.Fail() } }\n' > main_test.go
go vet ./... && go build -o app . && ./app; echo "status $?"
go test ./...
cd ..; go clean -cache; chmod -R u+w cache; rm -r app cache
