# Configures, builds, tests and installs a C++ project with cmake.
# has: cmake g++ make ctest
# apt: cmake g++ make
# hide: s/identification is GNU .*/identification is GNU/; s/\([0-9.]+s\)/(TIME)/; s/ +[0-9.]+ sec/ TIME/; s/= TIME/TIME/

cat > CMakeLists.txt <<'END'
cmake_minimum_required(VERSION 3.18)
project(demo CXX)
find_package(Threads REQUIRED)
add_library(sum SHARED sum.cpp)
add_executable(demo main.cpp)
target_link_libraries(demo sum Threads::Threads)
enable_testing()
add_test(NAME runs COMMAND demo)
install(TARGETS demo sum)
END
echo 'int sum(int a, int b) { return a + b; }' > sum.cpp
cat > main.cpp <<'END'
#include <iostream>
#include <thread>
int sum(int, int);
int main() { int x = 0; std::thread t([&] { x = sum(40, 2); }); t.join(); std::cout << x << std::endl; return x != 42; }
END
cmake -S . -B build -DCMAKE_INSTALL_PREFIX="$PWD/usr" -DCMAKE_BUILD_TYPE=Release && cmake --build build -j 2 > log && grep -c Built log
(cd build && ctest | tail -4)
cmake --install build > log && LD_LIBRARY_PATH=usr/lib usr/bin/demo
rm -r build usr log
