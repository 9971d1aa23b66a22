# Builds, tests and runs a Rust workspace with a build script, without a network.
# has: cargo gcc
# apt: cargo gcc libc6-dev
# hide: s/in [0-9.]+s/in TIME/; s/-[0-9a-f]{16}/-HASH/
# options: --memory 2g

export CARGO_TERM_COLOR=never CARGO_NET_OFFLINE=true
cargo new -q --vcs none app && cd app || exit
cat > build.rs <<'END'
fn main() { println!("cargo:rustc-env=MADE_BY={}", 6 * 7); }
END
cat > src/main.rs <<'END'
fn main() {
    let threads: Vec<_> = (0..4).map(|n| std::thread::spawn(move || n * n)).collect();
    println!("{} {}", env!("MADE_BY"), threads.into_iter().map(|t| t.join().unwrap()).sum::<i32>());
    std::process::exit(3);
}
#[test] fn adds() { assert_eq!(1 + 1, 2); }
#[test] fn fails() { assert_eq!(1 + 1, 3); }
END
cargo run 2>&1; echo "status $?"
cargo test -q -- --test-threads 1 2>&1 | grep -v 'thread .* panicked'; echo "status ${PIPESTATUS[0]}"
cd ..; rm -r app
